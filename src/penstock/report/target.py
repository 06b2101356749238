"""Opened mixture files: the dataset, its plan and the numbering of its steps."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from penstock import __version__
from penstock.dataset import Dataset
from penstock.engine.base.canonical_json import compute_fingerprint
from penstock.engine.base.row_files import as_row_files
from penstock.engine.base.shown import counted
from penstock.engine.base.sizes import sum_lengths
from penstock.engine.mixing import Mixture
from penstock.engine.plan import Exhaustion
from penstock.engine.runtime.step_log import StepLog
from penstock.engine.steps.digests import data_of
from penstock.engine.steps.mix import mixture_in_line
from penstock.engine.steps.mix_eras import ErasOp
from penstock.engine.steps.mix_op import MixOp
from penstock.engine.steps.op import Op
from penstock.engine.steps.packed import PackedOp, top_pack
from penstock.engine.steps.step import Step
from penstock.engine.steps.tokens import Lengths
from penstock.engine.streams.function_call import Leaf
from penstock.errors import ConfigError, IndexedError, StateError, make_storage_error
from penstock.inputs import size_packed
from penstock.mixture_files import MixtureFile, build, format_problems, read_model
from penstock.mixture_files.build import build_pack_options
from penstock.mixture_files.horizon import count_pass_samples, count_steps, count_token_samples
from penstock.mixture_files.stages import compute_stage_ends
from penstock.mixture_files.step_sizes import count_before
from penstock.plan import Plan
from penstock.replacements import ReplacedDraws
from penstock.schedule import Schedule, place_points
from penstock.stores import parse_location
from penstock.stores.limits import STATE, read_within
from penstock.stores.remote import is_remote
from penstock.types import Sizer, is_source

from .target_shares import compute_target_shares

_STATES = re.compile(rb"\s*(\[\s*)?\{")
_MAX_TEXT_LENGTH = 100  # characters of a sample
_MAX_RECORDS = 3  # in a notice
# Bounds of the default horizon of an endless mixture.
_MIN_HORIZON, _MAX_HORIZON = 1_000, 1 << 40


class StageBorder(NamedTuple):
    """A step at which a stage begins, or from which on steps have another size.

    Attributes:
        step: the step.
        name: the name of the stage that begins.
        row: the rows before the step.
        tokens: the tokens before it, if rows are packed.
        length: the tokens of a row, if rows are packed.
        batch: the rows of a global step.
    """

    step: int
    name: str | None
    row: int
    tokens: int | None
    length: int | None
    batch: int


@dataclass(frozen=True)
class Target:
    """An opened mixture file.

    `plan` is the plan of the dataset if that is indexed (`indexed`). Otherwise it is the plan of the
    last indexed step below, such as the mixture before tokenizing and packing; then steps count
    samples. `rows` is the plan in rows: its steps are those of the run that saved a state, or of a
    run that begins on the ranks of the file. `note` describes a difference between the two.
    """

    path: Path
    model: MixtureFile
    dataset: Dataset
    plan: Plan[Dataset]
    rows: Plan[Dataset]
    indexed: bool
    note: str = ""

    @property
    def log(self) -> StepLog:
        """The global steps of the run."""
        return self.rows.step_log

    @property
    def rows_of_step(self) -> int:
        """Rows of a global step at the current position."""
        return self.log.records[-1].rows

    def fingerprint(self, data: bool = False) -> dict[str, str]:
        """Return fingerprints of the run.

        `order` covers names, rows, seeds, settings and functions. With `data`, some rows of every
        source are read and fingerprinted, independent of their files.
        """
        fingerprints = {"order": compute_fingerprint(self.dataset.tree.description())}
        if data:
            facts = data_of(self.leaves)
            fingerprints["data"] = compute_fingerprint(
                {name: {"rows": rows.get("rows")} for name, rows in facts.items()}
            )
        return {**fingerprints, "penstock": __version__}

    @property
    def unit(self) -> str:
        """Unit of steps: training steps, or samples drawn."""
        return "step" if self.indexed else "sample"

    def row(self, step: int) -> int:
        """Return the first row of a step, counted over all passes."""
        return self.log.first_row(step)

    def step(self, row: int) -> int:
        """Return the step of a row, or the last step if the row completes none."""
        return max(0, self.log.step_of(row))

    def holds(self, step: int, row: int) -> bool:
        """Return True if a row is part of a step; the last rows of a pass may fill none."""
        return row < self.row(step) + self.log.record_of(step).rows

    def horizon(self, steps: int | None) -> int:
        """Return the length of the run: `steps`, at most to its end.

        Without `steps`, an endless run counts until every source was seen once.
        """
        last = self.last
        if steps is not None:
            return steps if last is None else min(steps, last)
        if last is not None:
            return last
        try:
            exhaustions = self.exhaustion
        except ConfigError as error:  # the mixture can only be counted one by one
            raise ConfigError(
                f"{self.path}: the run has no end, and when each source was seen once cannot be "
                "computed; name the steps (--steps, --to or --before), or add a horizon to the "
                "file, such as 'horizon: {steps: 1000}'"
            ) from error
        seen = [one.repeats for one in exhaustions.values() if one.repeats is not None]
        return self.step(min(max(max(seen, default=_MIN_HORIZON), _MIN_HORIZON), _MAX_HORIZON))

    @cached_property
    def last(self) -> int | None:
        """Number of steps of a run that ends; approximate if rows are packed during the run."""
        if (passes := self.log.passes) is not None:
            size = passes.size(0)
            return self.log.step_of(size - 1) + 1 if size else 0
        steps = count_steps(self.model)
        if self.indexed or steps is None or not self.plan.tree.lengths_known:
            return None
        tokens = self.model.position_at(steps)
        sizer = size_packed(build_pack_options(self.model))
        return count_token_samples(Dataset(self.plan.tree), tokens, sizer)

    @cached_property
    def end(self) -> int | None:
        """Number of steps of a run with a horizon; None if the run has none, or no exact end."""
        if self.model.horizon is None or self.last is None or not self.indexed:
            return None
        return max(self.last, self.rows.next_step)

    @property
    def stages(self) -> list[tuple[int, str]]:
        """First steps and names of the stages that the run reaches.

        A stage begins with the step of the first row that may hold one of its samples.
        """
        if (
            not self.model.stages
            or not self.indexed
            or (self.model.batch is None and self.rows_of_step != 1)
        ):
            return []
        names = [
            stage.name or f"stage {number}" for number, stage in enumerate(self.model.stages, 1)
        ]
        if self.model.changes_sizes:
            ends = self.model.stage_ends
            return [*zip((0, *(end or 0 for end in ends[:-1])), names, strict=True)]
        rows = [self._find_row(sample) for sample in self._place_stages()]
        return [
            (self.step(row), name) for row, name in zip(rows, names, strict=True) if row is not None
        ]

    def _place_stages(self) -> list[int]:
        """Return the first sample of each stage, in the order of the mixture."""
        mix = mixture_in_line(self.plan.tree)
        assert mix is not None
        rule = mix.weighted
        assert rule is not None
        run = self.model.run
        if run is None and self.model.horizon is not None:
            run = "samples", count_pass_samples(self.model, map(Dataset, mix.inputs))
        unit, ends = compute_stage_ends(self.model, run)
        begins, means = [0, *(end or 0 for end in ends[:-1])], rule.means_by_unit()
        if isinstance(rule.weights, Schedule) and unit in means:
            lengths = means.get(rule.unit)
            places = place_points(rule.weights, means[unit], lengths is not None, lengths)
            begins = [places[begin] for begin in begins]
        schedule = self._mixture.schedule
        if isinstance(schedule, Mixture):
            begins = [schedule.event_position(begin) for begin in begins]
        return begins

    def _find_row(self, sample: int) -> int | None:
        """Return the first row that holds a sample of the mixture or a later one; None after the run."""
        size, row = self._mixture.size, sample
        if size is not None and sample >= size:
            return None
        if (pack := top_pack(self.rows.compiled.op)) is not None:
            row = pack.find_row(sample)
        size = self.rows.size
        return None if row is None or (size is not None and row >= size) else row

    def borders(self, steps: int) -> list[StageBorder]:
        """Return the steps below `steps` at which stages begin, and those of another size.

        Nothing if the file has no stages, and all steps have one size.
        """
        names, records = dict[int, str](), self.log.records
        for step, name in self.stages:  # several may begin in one step
            names[step] = f"{names[step]}, {name}" if step in names else name
        begins = {0, *names, *(each.step for each in self.model.equal_steps)}
        begins = {*begins, *(record.step for record in records)}
        parts = pairwise([*sorted(step for step in begins if step < steps), steps])
        begins |= {self._find_other_length(first, stop) for first, stop in parts}
        out = list[StageBorder]()
        for step in sorted(step for step in begins if step < steps):
            rows, length = self.log.record_of(step).rows, self.row_length(step)
            if step in names or not out or (out[-1].batch, out[-1].length) != (rows, length):
                tokens = sum(self.tokens(step).values()) if length else None
                out.append(StageBorder(step, names.get(step), self.row(step), tokens, length, rows))
        return out if len(out) > 1 or names else []

    def _find_other_length(self, first: int, stop: int) -> int:
        """Return the first of some steps whose rows have another length than those of the first."""
        length, last = self.row_length(first), stop - 1
        if self.row_length(last) == length:
            return first
        while last - first > 1:
            middle = (first + last) // 2
            first, last = (middle, last) if self.row_length(middle) == length else (first, middle)
        return last

    def row_length(self, step: int) -> int | None:
        """Return the tokens of the rows of a step; None if the file packs no planned rows."""
        if self._pack is None:
            return None
        if not self.model.changes_sizes and self._pack.row_length is not None:
            return self._pack.row_length
        row = self.row(step)
        samples = self.rows.at(slice(row, row + 1))
        assert samples.start is not None and samples.stop is not None
        return int((samples.stop - samples.start).sum())

    @cached_property
    def exhaustion(self) -> dict[str, Exhaustion]:
        """First repeat and end of each source, in rows.

        The end is None if only the end of the run stops the source.
        """
        exhaustions, size = self.rows.exhaustion(), self.rows.size
        if size is None:
            return exhaustions
        continuing = self._continuing(size)
        return {
            name: Exhaustion(exhaustion.repeats, None if name in continuing else exhaustion.ends)
            for name, exhaustion in exhaustions.items()
        }

    def exhaustion_within(self, steps: int) -> dict[str, Exhaustion]:
        """Return the first repeat and the end of each source, in rows of a run of so many steps.

        Repeats and ends after the run are included if arithmetic can count so far.
        """
        try:
            return self.exhaustion
        except ConfigError:  # the mixture can only be counted one by one
            return self.rows.exhaustion(self.row(steps))

    def _continuing(self, end: int) -> set[str]:
        """Return the sources that a longer run would continue to draw from."""
        counts = self.rows.counts(end)
        weights = self.in_force(max(0, sum(counts.values()) - 1))
        return {
            name
            for name, count in counts.items()
            if weights.get(name.partition("/")[0]) and not self.spent(name, count)
        }

    @cached_property
    def caps(self) -> dict[str, float]:
        """Maximum epochs of each source with a limit."""
        caps = {
            name: self.model.cap(source)
            if "/" not in name
            else source.max_epochs or self.model.max_epochs
            for name, source in self.model.iter_sources()
        }
        for name, source in self.model.iter_sources():
            if source.partition is not None and source.partition.input is None:
                of_parts = source.partition.max_epochs
                parts = [leaf for leaf in self.plan.sources if leaf.startswith(f"{name}/")]
                caps |= {
                    leaf: of_parts.get(leaf.removeprefix(f"{name}/"))
                    if isinstance(of_parts, Mapping)
                    else of_parts
                    for leaf in parts
                }
        return {name: cap for name, cap in caps.items() if cap is not None}

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Number of samples of each source that knows it."""
        once = np.zeros(len(self.leaves), np.int64)
        self.compiled.count_distinct(once)
        return {leaf.name: int(once[leaf.number]) for leaf in self.leaves if is_source(leaf.source)}

    @cached_property
    def groups(self) -> dict[str, str]:
        """Group of each source that has one."""
        of = {
            source.name: source.group for source in self.model.sources if source.group is not None
        }
        return {
            name: of[top] for name in self.plan.sources if (top := name.partition("/")[0]) in of
        }

    def by_group(self, name: str) -> int:
        """Return the sort key of a source's group; ungrouped sources come last."""
        return (
            list(self.model.groups or ()).index(self.groups[name])
            if name in self.groups
            else len(self.groups)
        )

    def spent(self, name: str, samples: int) -> bool:
        """Return True if `samples` reaches the limit of a source."""
        most = self.caps.get(name, 1.0 if self.model.stop == "all_exhausted" else None)
        return (
            most is not None
            and name in self.sizes
            and samples >= int(Fraction(repr(most)) * self.sizes[name])
        )

    @property
    def by_tokens(self) -> bool:
        """True if shares count tokens: packed rows, or token weights with known lengths."""
        return self.packed or (
            self.model.unit == "tokens" and len(self.all_tokens) == len(self.plan.sources)
        )

    @property
    def packed(self) -> bool:
        """True if a step holds packed rows that are planned ahead."""
        return self._pack is not None

    @cached_property
    def _pack(self) -> PackedOp | None:
        return top_pack(self.compiled)

    @property
    def _mixture(self) -> MixOp:
        """The outermost mixture."""
        op = self.compiled
        while op.only_input is not None:
            op = op.only_input
        op = _resolve_current_pass(op)
        assert isinstance(op, MixOp)
        return op

    def in_force(self, sample: int) -> dict[str, float]:
        """Return the normalised weights of the outermost mixture at a sample; 0 for used-up sources."""
        schedule = self._mixture.schedule
        assert isinstance(schedule, Mixture | ReplacedDraws)
        size = schedule.size
        return schedule.weights_at(sample if size is None else min(sample, size - 1))

    @cached_property
    def all_tokens(self) -> dict[str, int]:
        """Tokens of each source with known lengths, with those that packing adds, and cut as it cuts."""
        pack, known = self._pack, self.plan.compiled.builder.lengths
        if pack is not None:
            most = pack.row_length if pack.truncates else None
            known = pack.lengths.count_by(Sizer(len, most=most))
        out = dict[str, int]()
        for leaf, lengths in zip(self.leaves, known.by_leaf, strict=True):
            if is_source(leaf.source) and len(lengths) == len(leaf.source):
                part = (
                    _count_pass_tokens(self.compiled, leaf.number, known)
                    if self.sizes[leaf.name] < len(lengths)
                    else None
                )
                out[leaf.name] = sum_lengths(lengths) if part is None else part
        return out

    def tokens(self, steps: int) -> dict[str, int]:
        """Return the tokens of each source over `steps` steps, if lengths are known."""
        if not self.all_tokens:
            return {}
        return self.rows.counts(step=steps, unit="tokens")

    def text(self, source: str, index: int) -> str:
        """Return the first characters of a sample."""
        leaf = next(leaf for leaf in self.leaves if leaf.name == source)
        assert is_source(leaf.source)
        shown = repr(leaf.source.read(np.asarray([index]))[0])
        return shown if len(shown) <= _MAX_TEXT_LENGTH else f"{shown[:_MAX_TEXT_LENGTH]}..."

    def require_separate_output(self, out: Path | None, *read: Path | None) -> None:
        """Raise `ConfigError` if an output would overwrite a file that the command reads.

        These are the mixture file, the files of its data and of `exclude`, and `read`.
        """
        if out is None:
            return
        files = [as_row_files(leaf.source) for leaf in self.leaves]
        inputs = {self.path, *(path for file in files if file for path in file.paths)}
        if self.model.exclude is not None:
            inputs.add(parse_location(self.model.exclude))
        if out.resolve() in {path.resolve() for path in inputs if not is_remote(path)}:
            raise ConfigError(f"{out} is an input of {self.path.name}: name another output file")
        if out.resolve() in {path.resolve() for path in read if path is not None}:
            raise ConfigError(f"{out} is an input of this command: name another output file")

    @property
    def compiled(self) -> Op:
        """The compiled plan."""
        return self.plan.compiled.op

    @property
    def leaves(self) -> list[Leaf]:
        """The compiled sources, with the names of the plan."""
        return self.plan.compiled.builder.leaves

    def requested_shares(self, steps: int) -> dict[str, float]:
        """Return the requested share of the samples of each source over `steps` steps."""
        out = np.zeros(len(self.plan.sources))
        _distribute_share(
            self.compiled, max(1, sum(self.rows.counts(step=steps).values())), 1.0, out
        )
        return dict(zip(self.plan.sources, out.tolist(), strict=True))


def open_target(
    path: Path,
    model: MixtureFile | None = None,
    state: Path | None = None,
    ranks: int | None = None,
    allow: Collection[str] | None = None,
    opened: dict[str, Dataset] | None = None,
) -> Target:
    """Open a mixture file.

    Args:
        path: The file.
        model: Its description, if settings were changed.
        state: A state; the target is then the run that saved it.
        ranks: World size of a run that begins, if the file has a global batch size.
        allow: Rights of a file from a URL, as in `ps.load`.
        opened: Sources that earlier calls opened, as in `build`.

    Returns:
        The target.

    Raises:
        ConfigError: The file has problems; the message lists all of them.
    """
    if model is None:
        model, problems = read_model(path, allow or ())
        errors = [problem for problem in problems if problem.severity == "error"]
        if model is None or errors:
            raise ConfigError(format_problems(errors))
    batch = model.batch
    if ranks is not None and state is not None:
        raise ConfigError(
            f"--ranks {ranks}: the state stores the world size of the run; remove --ranks"
        )
    if ranks is not None and batch is not None and batch.ranks > 1:
        raise ConfigError(
            f"--ranks {ranks}: {path} sets batch.ranks: {batch.ranks}; remove one of them"
        )
    begins_on = ranks or (batch.ranks if batch else 1)
    dataset = build(model, opened)
    tree: Step = dataset.tree
    while True:
        try:
            indexed = tree is dataset.tree
            plan = dataset.plan if indexed else Dataset(tree).plan
            if state is not None:
                if not indexed:
                    raise ConfigError(
                        f"{state}: this mixture packs rows during the run, so its states cannot be "
                        "planned; leave out --state"
                    )
                plan = plan.for_state(_read_state(state))
            rows = plan.rows(None if state else begins_on if indexed else 1)
            note = "" if state is None else _describe_other_steps(path, model, rows.step_log)
            return Target(path, model, dataset, plan, rows, indexed, note)
        except IndexedError:
            if (below := tree.only_input) is None:
                raise
            tree = below


def _describe_other_steps(path: Path, model: MixtureFile, log: StepLog) -> str:
    """Return the notice that the run took steps with other ranks or batches than its file says."""
    batch = model.batch
    if batch is None:
        return ""
    steps = {each.step for each in (*model.equal_steps, *log.records)}
    if all(
        record.gives == "nothing"
        or (
            record.rows == count_before(model.equal_steps, step).rows
            and (batch.over_ranks or record.ranks == batch.ranks)
        )
        for step in steps
        for record in [log.record_of(step)]
    ):
        return ""
    sizes = ", ".join(f"{each.rows:,} from step {each.step:,} on" for each in model.equal_steps)
    if not model.changes_sizes:
        sizes = f"{batch.size:,}"
    asked = f"{counted(batch.ranks, 'rank')} with {sizes} rows each"
    asked = f"global_batch_size: {sizes}" if batch.over_ranks else asked
    told = [
        f"{counted(record.ranks, 'rank')} with {counted(record.group, 'row')} each from step "
        f"{record.step:,} on"
        for record in log.records[-_MAX_RECORDS:]
    ]
    lately = ", at last," if len(log.records) > _MAX_RECORDS else ""
    return f"{path} says {asked}, and the run had{lately} {', '.join(told)}; answers are those of the run"


def _read_state(path: Path) -> Mapping[str, Any] | Path:
    """Return a folder of states, or the state of a JSON file."""
    if path.is_dir():
        return path
    try:
        data = read_within(str(path), STATE)
        if not _STATES.match(data):  # other lists take far more memory than their text
            raise ValueError("it holds no JSON object, and no list of objects")
        found = json.loads(data)
    except (FileNotFoundError, NotADirectoryError):
        raise StateError(
            f"{path}: no state found: pass the folder given to `ps.save` or `penstock run --state`, "
            "or a JSON file with the result of state_dict()"
        ) from None
    except OSError as error:
        raise make_storage_error(error, path) from None
    except (ValueError, RecursionError) as error:
        raise StateError(f"{path}: not a valid state: {error}") from None
    if not isinstance(found, dict | list) or not found:
        raise StateError(f"{path}: not a valid state: pass the JSON of state_dict()")
    return cast("Mapping[str, Any]", found)


def _count_pass_tokens(compiled: Op, leaf: int, lengths: Lengths) -> int | None:
    """Return the tokens that one pass reads of a source."""
    below = next((each for each in compiled.inputs if leaf in each.leaves), None)
    if compiled.leaf == leaf and compiled.size is not None:
        out = np.zeros(len(lengths.by_leaf), np.int64)
        compiled.tokens(compiled.size, lengths, out)
        return int(out[leaf])
    return None if below is None else _count_pass_tokens(below, leaf, lengths)


def _resolve_current_pass(compiled: Op) -> Op:
    """Return the mixture at the end of the first pass, of one that was changed during the run."""
    return (
        [era.mix for era in compiled.eras if not era.epoch][-1]
        if isinstance(compiled, ErasOp)
        else compiled
    )


def _distribute_share(
    compiled: Op, samples: int, share: float, out: npt.NDArray[np.float64]
) -> None:
    """Distribute a share among the leaves below a compiled step."""
    compiled = _resolve_current_pass(compiled)
    if isinstance(compiled, MixOp):
        even = np.ones(len(compiled.inputs)) / len(compiled.inputs)
        parts = (
            compute_target_shares(compiled.schedule, samples)
            if isinstance(compiled.schedule, Mixture)
            else even
        )
        for each, part in zip(compiled.inputs, parts.tolist(), strict=True):
            _distribute_share(each, max(1, round(samples * part)), share * part, out)
    elif compiled.leaf is not None and not compiled.inputs:
        out[compiled.leaf] += share
    if compiled.only_input is not None:
        _distribute_share(compiled.only_input, samples, share, out)
