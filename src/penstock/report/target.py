"""What the questions on the command line go to: a mixture file, opened, its plan, and how its steps
are counted."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from penstock import __version__
from penstock.dataset import Dataset
from penstock.engine.base.limits import STATE
from penstock.engine.base.seams import read_within
from penstock.engine.base.sizes import total
from penstock.engine.base.spelling import fingerprint
from penstock.engine.graph.digests import data_of
from penstock.engine.graph.indexed import lengths_known
from penstock.engine.graph.nodes import Flow, only_input
from penstock.engine.graph.recipe import describe
from penstock.engine.graph.shown import counted
from penstock.engine.mixing import Corrected, Mixture
from penstock.engine.mixing.asked import asked
from penstock.engine.ops.laps import LapsOp
from penstock.engine.ops.mix import MixOp
from penstock.engine.ops.op import OneInput, Op
from penstock.engine.ops.packed import PackedOp
from penstock.engine.ops.passes import PassesOp
from penstock.engine.ops.tokens import Lengths
from penstock.engine.plan import Exhaustion, Plan
from penstock.engine.runtime.step_log import StepRecord, record_of
from penstock.engine.streams.step import Leaf
from penstock.errors import ConfigError, IndexedError, StateError, storage_error
from penstock.mixture_files import MixtureFile, build, format_problems, read_model
from penstock.mixture_files.horizon import samples_of, steps_of
from penstock.mixture_files.stages import stage_ends
from penstock.types import is_source

_SHOWN = 100  # characters of a sample
_TOLD = 3  # records of steps
_SHORT, _LONG = (
    1_000,
    1 << 40,
)  # the horizon of an endless mixture lies between these if nobody says


@dataclass(frozen=True)
class Target:
    """An opened mixture file.

    `plan` is that of the dataset where that is indexed, else of what is drawn before the first step
    that is not (text that is tokenised and packed while it runs, say): then steps count samples,
    and `whole` is False. `rows` is the same
    plan by rows: its steps are those of the run that saved a state, or of one that begins on the
        ranks of the file;
    `note` says where the two differ.
    """

    path: Path
    model: MixtureFile
    dataset: Dataset
    plan: Plan[Dataset]
    rows: Plan[Dataset]
    whole: bool
    note: str = ""

    @property
    def log(self) -> tuple[StepRecord, ...]:
        """The steps of the run, a record for each stretch of one kind."""
        return self.rows.records

    @property
    def rows_of_step(self) -> int:
        """The rows of a global step now."""
        return self.log[-1].rows

    def fingerprint(self, data: bool = False) -> dict[str, str]:
        """What tells this run from any other: `order` is of names, rows, seeds, settings and
        functions. If asked for, `data` is of some rows of every source, in whatever files they lie;
        they are read for it, once.
        """
        found = {"order": fingerprint(describe(self.dataset.flow))}
        if data:
            facts = data_of(self.leaves)
            found["data"] = fingerprint(
                {name: {"rows": rows.get("rows")} for name, rows in facts.items()}
            )
        return {**found, "penstock": __version__}

    @property
    def unit(self) -> str:
        """What `steps` counts here: steps of the training, or samples drawn."""
        return "step" if self.whole else "sample"

    def row(self, step: int) -> int:
        """The first row of a step, counted over all passes."""
        return record_of(self.log, step).first_row(step, self.rows.size)

    def step(self, row: int) -> int:
        """The step that a row belongs to; the one before, where the row fills no step."""
        record = next(record for record in reversed(self.log) if record.row <= row)
        return max(0, record.steps_to(row + 1, self.rows.size) - 1)

    def holds(self, step: int, row: int) -> bool:
        """Return whether a row is one of a step; what is left at the end of a pass may fill
        none."""
        return row < self.row(step) + record_of(self.log, step).rows

    def horizon(self, steps: int | None) -> int:
        """The steps of the run: as asked, but no more than it has; else to the end, or until every
        source has been seen once.
        """
        last = self.last
        if steps is not None:
            return steps if last is None else min(steps, last)
        if last is not None:
            return last
        seen = [one.repeats for one in self.exhausts.values() if one.repeats is not None]
        return self.step(min(max(max(seen, default=_SHORT), _SHORT), _LONG))

    @cached_property
    def last(self) -> int | None:
        """The steps of a run that ends, at the horizon or with its data; about, where rows are
        packed while it runs."""
        if (size := self.rows.size) is not None:
            first_pass = next(
                record for record in reversed(self.log) if not record.row or record.row < size
            )
            return first_pass.steps_to(size, size) if size else 0
        steps = steps_of(self.model)
        if self.whole or steps is None or not lengths_known(self.plan.flow):
            return None
        return samples_of(Dataset(self.plan.flow), steps * self.model.per_step[1])

    @property
    def stages(self) -> list[tuple[int, str]]:
        """The steps at which the stages of the file begin, and their names; nothing where there are
        none."""
        steps_in, size = self.model.per_step
        if (
            not self.model.stages
            or not self.whole
            or (self.model.batch is None and self.rows_of_step != 1)
        ):
            return []
        unit, ends = stage_ends(self.model, self.model.run)
        begins = [0, *(end or 0 for end in ends[:-1])]
        names = [
            stage.name or f"stage {number}" for number, stage in enumerate(self.model.stages, 1)
        ]
        if unit != steps_in:
            size = max(1, (self.model.run or ("", 1))[1] // max(1, self.last or 1))
        return [(-(-begin // size), name) for begin, name in zip(begins, names, strict=True)]

    @cached_property
    def exhausts(self) -> dict[str, Exhaustion]:
        """When each source repeats and ends, in rows. What only the end of the run ends has
        none."""
        found, size = self.rows.exhausts(), self.rows.size
        if size is None:
            return found
        going = self._going(size)
        return {
            name: Exhaustion(one.repeats, None if name in going else one.ends)
            for name, one in found.items()
        }

    def _going(self, end: int) -> set[str]:
        """The sources that would be drawn from if the run did not end."""
        counts = self.rows.counts(end)
        weights = self.in_force(max(0, sum(counts.values()) - 1))
        return {
            name
            for name, count in counts.items()
            if weights.get(name.partition("/")[0]) and not self.spent(name, count)
        }

    @cached_property
    def caps(self) -> dict[str, float]:
        """The epochs after which a source is used up, of those that have a limit of their own or
        their mixture's."""
        return {
            name: cap
            for name, source in self.model.leaves()
            if (
                cap := self.model.cap(source)
                if "/" not in name
                else source.max_epochs or self.model.max_epochs
            )
            is not None
        }

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The samples that each source has to give, of those that know."""
        once = np.zeros(len(self.leaves), np.int64)
        self.op.once(once)
        return {leaf.name: int(once[leaf.number]) for leaf in self.leaves if is_source(leaf.source)}

    @cached_property
    def groups(self) -> dict[str, str]:
        """The groups of the sources that have one."""
        of = {
            source.name: source.group for source in self.model.sources if source.group is not None
        }
        return {
            name: of[top] for name in self.plan.sources if (top := name.partition("/")[0]) in of
        }

    def by_group(self, name: str) -> int:
        """Where the group of a source stands in the file; those without one come last."""
        return (
            list(self.model.groups or ()).index(self.groups[name])
            if name in self.groups
            else len(self.groups)
        )

    def spent(self, name: str, samples: int) -> bool:
        """Whether so many samples are all that a source may give: not where its weight went to
        0."""
        most = self.caps.get(name, 1.0 if self.model.stop == "all_exhausted" else None)
        return (
            most is not None
            and name in self.sizes
            and samples >= int(Fraction(repr(most)) * self.sizes[name])
        )

    @property
    def by_tokens(self) -> bool:
        """Whether shares are those of tokens: of packed rows, and where tokens are asked for and
        lengths are known."""
        return self.packed or (
            self.model.unit == "tokens" and len(self.all_tokens) == len(self.plan.sources)
        )

    @property
    def packed(self) -> bool:
        """Whether a step holds packed rows, planned ahead: then documents come in parts, and tokens
        are what counts."""
        return self._pack is not None

    @cached_property
    def _pack(self) -> PackedOp | None:
        found = self.op
        while isinstance(found, OneInput) and not isinstance(found, PackedOp):
            found = found.flow
        return found if isinstance(found, PackedOp) else None

    def in_force(self, sample: int) -> dict[str, float]:
        """The weights of the outermost mixture at one of its samples, of sum 1; those of sources
        used up are 0."""
        found = self.op
        while isinstance(found, OneInput):
            found = found.flow
        found = _present(found)
        assert isinstance(found, MixOp) and isinstance(found.schedule, Mixture | Corrected)
        size = found.schedule.size
        return found.schedule.weights_at(sample if size is None else min(sample, size - 1))

    @cached_property
    def all_tokens(self) -> dict[str, int]:
        """The tokens of each source whose lengths are known, with what packing adds to every
        document."""
        known, extra = (
            (self._pack.lengths, self._pack.extra)
            if self._pack
            else (self.plan.compiled.builder.lengths, 0)
        )
        out = dict[str, int]()
        for leaf, lengths in zip(self.leaves, known.by_leaf, strict=True):
            if is_source(leaf.source) and len(lengths) == len(
                leaf.source
            ):  # there are none where they are not known
                part = (
                    _of_pass(self.op, leaf.number, known)
                    if self.sizes[leaf.name] < len(lengths)
                    else None
                )
                out[leaf.name] = (total(lengths) if part is None else part) + extra * self.sizes[
                    leaf.name
                ]
        return out

    def tokens(self, steps: int) -> dict[str, int]:
        """The tokens of each source over so many steps; nothing for those whose lengths are not
        known."""
        if not self.all_tokens:
            return {}
        return self.rows.counts(step=steps, unit="tokens")

    def text(self, source: str, index: int) -> str:
        """How a sample of a source begins, as it lies in its file."""
        leaf = next(leaf for leaf in self.leaves if leaf.name == source)
        assert is_source(leaf.source)
        shown = repr(leaf.source.read(np.asarray([index]))[0])
        return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."

    @property
    def op(self) -> Op:
        """The plan's op."""
        return self.plan.compiled.op

    @property
    def leaves(self) -> list[Leaf]:
        """The sources at work, as the plan names them."""
        return self.plan.compiled.builder.leaves

    def asked(self, steps: int) -> dict[str, float]:
        """The share of the samples that the weights ask for, by source, over so many steps."""
        out = np.zeros(len(self.plan.sources))
        _shared(self.op, max(1, sum(self.rows.counts(step=steps).values())), 1.0, out)
        return dict(zip(self.plan.sources, out.tolist(), strict=True))


def opened(
    path: Path,
    model: MixtureFile | None = None,
    state: Path | None = None,
    ranks: int | None = None,
    allow: Collection[str] | None = None,
) -> Target:
    """Open a mixture file, or one with settings changed (`model`); with a `state`, as the run that
    saved it has it. `ranks` are those of a run that begins, where the file does not say them.
    `allow` means the same as in `ps.load`.

    Raises `ConfigError` with all that is wrong in the file.
    """
    if model is None:
        model, problems = read_model(path, allow or ())
        errors = [problem for problem in problems if problem.severity == "error"]
        if model is None or errors:
            raise ConfigError(format_problems(errors))
    batch = model.batch
    if ranks is not None and state is not None:
        raise ConfigError(
            f"--ranks {ranks}: the state knows on how many ranks the run made its steps; leave it "
            "out"
        )
    if ranks is not None and batch is not None and batch.ranks > 1:
        raise ConfigError(
            f"--ranks {ranks}: {path} says batch.ranks: {batch.ranks}; leave out one of them"
        )
    begins_on = ranks or (batch.ranks if batch else 1)
    dataset = build(model)
    flow: Flow = dataset.flow
    while True:
        try:
            whole = flow is dataset.flow
            plan = dataset.plan if whole else Dataset(flow).plan
            if state is not None:
                if not whole:
                    raise ConfigError(
                        f"{state}: rows are packed while this mixture runs; only without a state "
                        "it is told"
                    )
                plan = plan.after(_state(state))
            rows = plan.rows(None if state else begins_on if whole else 1)
            note = "" if state is None else _other_steps(path, model, rows.records)
            return Target(path, model, dataset, plan, rows, whole, note)
        except IndexedError:
            if (below := only_input(flow)) is None:
                raise
            flow = below


def _other_steps(path: Path, model: MixtureFile, log: tuple[StepRecord, ...]) -> str:
    """Return the notice that the run took steps with other ranks or batches than its file says."""
    batch = model.batch
    if batch is None or all(
        record.rows == model.rows_of_step and (batch.over_ranks or record.ranks == batch.ranks)
        for record in log
    ):
        return ""
    asked = f"{counted(batch.ranks, 'rank')} with {counted(batch.size, 'row')} each"
    asked = f"global_batch_size: {batch.size:,}" if batch.over_ranks else asked
    told = [
        f"{counted(record.ranks, 'rank')} with {counted(record.group, 'row')} each from step "
        f"{record.step:,} on"
        for record in log[-_TOLD:]
    ]
    return f"{path} says {asked}, and the run had {', '.join(told)}; answers are those of the run"


def _state(path: Path) -> Mapping[str, Any] | Path:
    """A folder of states, or what a file of JSON says."""
    if path.is_dir():
        return path
    try:
        found = json.loads(read_within(str(path), STATE))
    except (FileNotFoundError, NotADirectoryError):
        raise StateError(
            f"{path}: there is no state: name the folder that `ps.save` or `penstock run --state` "
            "was given, or a file "
            "of JSON with what state_dict() said"
        ) from None
    except OSError as error:
        raise storage_error(error, path) from None
    except (ValueError, RecursionError) as error:
        raise StateError(f"{path}: no state: {error}") from None
    return cast("Mapping[str, Any]", found)


def _of_pass(op: Op, leaf: int, lengths: Lengths) -> int | None:
    """The tokens of what is read of a source in one pass of it."""
    below = next((each for each in op.inputs if leaf in each.leaves), None)
    if op.leaf == leaf and op.size is not None:
        out = np.zeros(len(lengths.by_leaf), np.int64)
        op.tokens(op.size, lengths, out)
        return int(out[leaf])
    return None if below is None else _of_pass(below, leaf, lengths)


def _present(op: Op) -> Op:
    """Of a mixture that ends and was changed on the way, the first pass that is told."""
    op = op.present if isinstance(op, LapsOp) else op
    return op.place(op.first * op.size)[0] if isinstance(op, PassesOp) else op


def _shared(op: Op, samples: int, share: float, out: npt.NDArray[np.float64]) -> None:
    """Give every leaf below its part of a share."""
    op = _present(op)
    if isinstance(op, MixOp):
        even = np.ones(len(op.inputs)) / len(op.inputs)
        parts = asked(op.schedule, samples) if isinstance(op.schedule, Mixture) else even
        for each, part in zip(op.inputs, parts.tolist(), strict=True):
            _shared(each, max(1, round(samples * part)), share * part, out)
    elif op.leaf is not None and not op.inputs:
        out[op.leaf] += share
    for each in op.inputs if isinstance(op, OneInput) else ():
        _shared(each, samples, share, out)
