"""Plans with files: the states of a folder, audits, and the agreement of two plans.

An audit has one line for every sample of some steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import numpy as np

from .arguments import validate_arguments
from .arrays.columnar import import_arrow
from .engine.base.progress import Progress
from .engine.base.row_files import as_row_files
from .engine.base.rows import compute_bounds
from .engine.changes.edits import Edit, edit_from_json
from .engine.changes.masking import find_maskable_sources
from .engine.mixing import Mixture, SetWeights
from .engine.mixing.options import compute_limits, compute_spans
from .engine.mixing.rules import Drawing
from .engine.mixing.rules.chain import ChainSchedule
from .engine.mixing.rules.turns import TurnsSchedule
from .engine.orders import (
    BlockShuffle,
    Pick,
    Portion,
    Repeat,
    RepeatEach,
    Replay,
    Shuffle,
    Slice,
    Stride,
    WindowShuffle,
)
from .engine.packing import BestFit, ConcatSplit, FirstFit, get_inner_fold, has_independent_rows
from .engine.plan import Plan as EnginePlan
from .engine.plan.edit import group_by_source, list_removals
from .engine.plan.plan import Keys
from .engine.plan.questions import Questions
from .engine.plan.records import Removal
from .engine.plan.step_samples import StepReader, StepSamples
from .engine.runtime.seal import seal
from .engine.runtime.session import Session
from .engine.runtime.states import decode_state, make_other_pipeline_error, merge_states
from .engine.steps.batch import BatchOp
from .engine.steps.compiled import Compiled
from .engine.steps.function_step import FunctionOp
from .engine.steps.mask import DocumentMask
from .engine.steps.mix_eras import ErasOp
from .engine.steps.mix_op import MixOp
from .engine.steps.op import Op
from .engine.steps.pack import PackOp
from .engine.steps.pack_windows import WindowPackOp
from .engine.steps.packed import PackedOp
from .engine.steps.read import ReadOp
from .engine.steps.reorder_op import OrderOp
from .engine.steps.seek import Metered
from .engine.steps.tokens import Lengths
from .engine.streams.function_call import Leaf
from .errors import ConfigError, convert_storage_errors
from .saves import read_states
from .schedule import InterpolationSpan, Schedule
from .stores.outputs import writer
from .stores.urls import require_local
from .text.loss_tokens import measure_untrained
from .types import MAX_POSITION, FileSource, Flags, IdentifiesLengths, Ints, Json, is_source

D = TypeVar("D")

_FIRST_COMPARED = 1 << 6  # positions of two plans that are compared first,
_MOST_COMPARED = 1 << 14  # and at most so many together
_LENGTHS_COMPARED = 1 << 16  # lengths that are compared one by one if nothing identifies them
_FOLDS = (ConcatSplit, FirstFit, BestFit)
_ORDERS = (BlockShuffle, Pick, Portion, Repeat, RepeatEach, Replay, Shuffle, Stride, WindowShuffle)
_LAST_WINDOWS = 5  # the last window of a pass has fewer rows than so many others

COLUMNS = (
    "step",
    "rank",
    "row",
    "source",
    "epoch",
    "index",
    "key",
    "file",
    "row_in_file",
    "start",
    "stop",
    "masked",
)


class SampleKeys:
    """The values of one column of a source, which name its samples; archives have `__key__`."""

    def __init__(self, source: object, column: str) -> None:
        self._column, self.exist = column, False
        self._source: Any = (
            source.column_alone(column) if isinstance(source, FileSource) else source
        )

    def of(self, indices: Ints) -> list[str | None]:
        """Return the keys of these rows; `None` for a row without the column."""
        if self._source is None:
            return [None] * len(indices)
        unique, inverse = np.unique(indices, return_inverse=True)
        rows = self._source.read(unique)
        keys = [
            _to_optional_text(cast("dict[str, Any]", row).get(self._column))
            if isinstance(row, dict)
            else None
            for row in rows
        ]
        self.exist = self.exist or any(key is not None for key in keys)
        return [keys[number] for number in inverse.tolist()]


def _to_optional_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)


class Audit:
    """The lines of `plan.audit`, as record batches, as a table, or written to a file.

    Lines are made a few steps at a time. Users call `ds.plan.audit(range(...))`.

    >>> import penstock as ps
    >>> lines = ps.from_sequence("abcdef", name="letters").batch(2).plan.audit(range(3))
    >>> lines.table().select(["step", "row", "source", "index"]).to_pylist()[-1]
    {'step': 2, 'row': 1, 'source': 'letters', 'index': 5}
    """

    def __init__(self, reader: StepReader, sources: list[Leaf], key: str | None) -> None:
        self._reader, self._leaves, self._key = reader, sources, key

    @property
    def steps(self) -> range:
        """The global steps of the audit."""
        return self._reader.steps

    @cached_property
    def schema(self) -> Any:
        """The `pyarrow.Schema` of the lines."""
        pa = import_arrow()
        named = pa.dictionary(pa.int32(), pa.string())
        kinds = {"source": named, "file": named, "key": pa.string(), "masked": pa.bool_()}
        return pa.schema([(name, kinds.get(name, pa.int64())) for name in COLUMNS])

    def batches(self) -> Iterator[Any]:
        """Yield the lines as `pyarrow.RecordBatch`es, in constant memory.

        Raises:
            ConfigError: no sample of these steps has the column `key`.

        >>> import penstock as ps
        >>> sum(len(batch) for batch in ps.from_sequence("abcdef").plan.audit(range(6)).batches())
        6
        """
        for taken in self._reader.stretches():
            yield self._batch(taken)
        self._require_keys()

    def stretches(self) -> Iterator[StepSamples]:
        """The samples as columns of numbers, some steps at a time."""
        return self._reader.stretches()

    def table(self) -> Any:
        """Return all lines as a `pyarrow.Table`.

        >>> import penstock as ps
        >>> ps.from_sequence("abcdef", name="letters").plan.audit(range(2, 4)).table()["index"].to_pylist()
        [2, 3]
        """
        return import_arrow().Table.from_batches(list(self.batches()), self.schema)

    def write(self, path: str | Path) -> int:
        """Write the lines to a file atomically, and return how many there are.

        Args:
            path: a file that ends in .parquet, .arrow, .csv or .jsonl.

        Raises:
            ConfigError: the file has another ending, or no sample has the column `key`.

        >>> import tempfile, penstock as ps
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ps.from_sequence("abcdef").plan.audit(range(6)).write(f"{folder}/steps.csv")
        6
        """
        lines = 0
        with (
            writer(require_local(path), self.schema) as write,
            Progress("audit", len(self.steps), "steps") as progress,
        ):
            for taken in self._reader.stretches(progress.more):
                write(self._batch(taken))
                lines += len(taken.step)
            self._require_keys()
        return lines

    # ------------------------------------------------------------ inside

    def _require_keys(self) -> None:
        """Raise `ConfigError` if no sample that was read has the column `key`."""
        if self._keys and len(self.steps) and not any(keys.exist for keys in self._keys):
            raise ConfigError(
                f"audit(key={self._key!r}): no sample of these steps has this column; give the column "
                "that names the samples"
            )

    @cached_property
    def _files(self) -> tuple[list[Any], list[str], Ints]:
        """Return the file index of each leaf, all files, and the first file of each leaf."""
        known = [as_row_files(leaf.source) for leaf in self._leaves]
        paths = [[str(path) for path in source.paths] if source else [] for source in known]
        return (
            known,
            [path for some in paths for path in some],
            compute_bounds(np.asarray([len(some) for some in paths])),
        )

    @cached_property
    def _keys(self) -> list[SampleKeys]:
        return [SampleKeys(leaf.source, self._key) for leaf in self._leaves] if self._key else []

    def _batch(self, taken: StepSamples) -> Any:
        pa = import_arrow()
        file, row = self._lying(taken)
        gone = file < 0
        none = pa.nulls(len(taken.step), pa.int64())
        columns = {
            "step": taken.step,
            "rank": taken.rank,
            "row": taken.row,
            "source": _named(taken.leaf, self._names),
            "epoch": taken.epoch,
            "index": taken.index,
            "key": self._keys_of(taken),
            "file": _named(np.where(gone, 0, file), self._paths, gone),
            "row_in_file": pa.array(row, mask=gone),
            "start": none if taken.start is None else taken.start,
            "stop": none if taken.stop is None else taken.stop,
            "masked": taken.masked,
        }
        return pa.RecordBatch.from_arrays(
            [pa.array(column) for column in columns.values()], schema=self.schema
        )

    @cached_property
    def _names(self) -> Any:
        return import_arrow().array([leaf.name for leaf in self._leaves], import_arrow().string())

    @cached_property
    def _paths(self) -> Any:
        return import_arrow().array(self._files[1] or [""], import_arrow().string())

    def _lying(self, taken: StepSamples) -> tuple[Ints, Ints]:
        """Return the file number (-1 if unknown) and the row in the file of each line."""
        known, _, first = self._files
        file, row = np.full(len(taken.leaf), -1), np.zeros(len(taken.leaf), np.int64)
        for leaf, mine in by_leaf(taken.leaf):
            if (source := known[leaf]) is not None:
                part, row[mine] = source.file_rows(taken.index[mine])
                file[mine] = part + first[leaf]
        return file, row

    def _keys_of(self, taken: StepSamples) -> Any:
        if not self._keys:
            return import_arrow().nulls(len(taken.step), import_arrow().string())
        out: Any = np.full(len(taken.step), None, object)
        for leaf, mine in by_leaf(taken.leaf):
            out[mine] = self._keys[leaf].of(taken.index[mine])
        return import_arrow().array(out, import_arrow().string())


def _named(numbers: Ints, texts: Any, removed: Flags | None = None) -> Any:
    pa = import_arrow()
    return pa.DictionaryArray.from_arrays(pa.array(numbers.astype(np.int32), mask=removed), texts)


def by_leaf(source_ids: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield each leaf with the positions at which it occurs."""
    order = np.argsort(source_ids, kind="stable")
    cuts = np.flatnonzero(np.diff(source_ids[order])) + 1
    for mine in np.split(order, cuts) if len(source_ids) else ():
        yield int(source_ids[mine[0]]), mine


@validate_arguments
class Plan(EnginePlan[D]):
    __doc__ = EnginePlan.__doc__

    def _measure_untrained(self) -> Mapping[str, float]:
        return measure_untrained(self.compiled)

    def _find_difference(self, other: Questions, within: range) -> int | None:
        start, size = within.start, _FIRST_COMPARED
        if self.size != 0 and other.size != 0 and not self._entries and not other._entries:
            start = max(start, count_agreeing(self.compiled, other.compiled, within.stop))
        with Progress("compare plans", max(within.stop - start, 0), "positions") as progress:
            while start < within.stop:
                part = range(start, min(start + size, within.stop))
                if (first := super()._find_difference(other, part)) is not None:
                    return first
                progress.more(len(part))
                start, size = part.stop, min(2 * size, _MOST_COMPARED)
        return None

    def for_state(
        self,
        state: Mapping[str, Any] | Sequence[Mapping[str, Any]] | str | Path,
        step: int | None = None,
    ) -> Self:
        """Return the plan of the run that saved a state, with its changes.

        Later changes begin at the position of the run. The data is compared with the data of the
        state, which reads some rows of every source unless that was done before. The log says if
        the files differ and only some of the rows were compared.

        Args:
            state: the result of `state_dict()`, a list with the states of all ranks, or the folder
                given to `ps.save`.
            step: the saved step to use, of a folder; the newest complete one by default.

        Raises:
            StateError: the state is corrupted, or belongs to another pipeline or to other data.

        >>> import penstock as ps
        >>> ds = ps.mix({"a": ps.from_sequence("aaaa"), "b": ps.from_sequence("bb")}, {"a": 1, "b": 1})
        >>> loader = ps.Loader(ds)
        >>> _ = next(iter(loader)), loader.set_weights({"a": 1, "b": 0})
        >>> [ds.plan.for_state(loader.state_dict()).at(p)[0].source for p in range(5)]
        ['a', 'a', 'a', 'a', 'a']
        """
        if isinstance(state, str | Path):
            folder = require_local(state)
            with convert_storage_errors(folder):
                _, state = read_states(folder, step)
        states = [state] if isinstance(state, Mapping) else state
        if not (isinstance(states, Sequence) and states):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"plan.for_state({state!r:.60}): give loader.state_dict(), a list with the states of "
                "all ranks, or the folder given to ps.save"
            )
        return self._for_states(states)

    after = for_state
    """The former name of `for_state`."""

    def audit(self, steps: range, world_size: int | None = None, key: str | None = None) -> Audit:
        """List every sample of global steps: step, rank, row, source, epoch, index, key, file, row.

        For packed rows each line also has its tokens. A `masked` document was padding there: it
        was excluded before, or cannot be read. Ranks are those of loaders without
        `balance=`. `.write(path)` and `.batches()` work in constant memory. A sample of a source
        without files has neither file nor row.

        Args:
            steps: a range of global steps.
            world_size: the number of ranks, for a plan without a run; 1 by default.
            key: a column that names samples (`url`; in archives `__key__`). Reading it takes time.

        Raises:
            ConfigError: the steps are no ascending range, or endless.
            IndexError: a step is negative.

        >>> import penstock as ps
        >>> lines = ps.from_sequence("abcdef", name="letters").batch(2).plan.audit(range(1, 3), world_size=1)
        >>> [(line["step"], line["rank"], line["index"]) for line in lines.table().to_pylist()]
        [(1, 0, 2), (1, 0, 3), (2, 0, 4), (2, 0, 5)]
        """
        return Audit(self._read_steps(steps, world_size), self._builder.leaves, key)


# ---------------------------------------------------------------- removals during a run


def exclude_from_run(session: Session, keys: Keys) -> tuple[Removal, ...]:
    """Exclude samples from the next item of a run on; return what became of each.

    Raises:
        ConfigError: a source does not exist; or no step can replace or mask its samples.
        IndexError: an index does not exist.
    """
    before, entries = session.changes, None
    if session.group is None:
        changes = _mask_in_stream(session.compiled_base, before, session.step, keys)
    else:
        plan = EnginePlan(session.compiled_base, lambda tree: tree, section=session.section)
        changes, entries = plan.find_exclusions(session.state(), keys)
    if changes:
        session.add_changes(changes, entries)
    return _list_new(before, changes)


def mask_in_states(
    compiled: Compiled, states: Sequence[Mapping[str, Any]], keys: Keys
) -> tuple[list[dict[str, Any]], tuple[Removal, ...]]:
    """Return the states of all ranks of a stream with documents masked, and the new removals.

    Raises:
        ConfigError: a source does not exist, or no step can mask its samples.
        StateError: the states are damaged, or of another pipeline.
    """
    bodies = [decode_state(state) for state in states]
    merged, _ = merge_states(bodies)
    base = compiled.remembered(merged.pipeline)
    if merged.pipeline != base.description:
        raise make_other_pipeline_error(merged.pipeline, base.description)
    before = tuple(map(edit_from_json, merged.changes))
    changes = _mask_in_stream(compiled, before, merged.step, keys)
    added = [change.to_json() for change in changes]
    edited = [{**body.to_json(), "changes": [*body.changes, *added]} for body in bodies]
    return [seal(body) for body in edited], _list_new(before, changes)


def _list_new(before: Sequence[Edit], changes: Sequence[Edit]) -> tuple[Removal, ...]:
    """Return the removals by the last changes."""
    return list_removals([*before, *changes])[len(list_removals(before)) :]


def _mask_in_stream(
    compiled: Compiled, before: Sequence[Edit], step: int, keys: Keys
) -> tuple[DocumentMask, ...]:
    """Return the masks of documents of a pipeline that is no function of positions."""
    sources = {leaf.name: leaf.source for leaf in compiled.builder.leaves}
    sizes = {
        name: len(source) if is_source(source) else MAX_POSITION for name, source in sources.items()
    }
    asked = group_by_source(keys, sizes)
    maskable = find_maskable_sources(compiled.tree, compiled.builder)
    if unmasked := sorted(asked.keys() - maskable):
        raise ConfigError(
            f"exclude: the samples of {unmasked[0]!r} come as a stream, and no pack() or Padded "
            "builds rows of them that could mask them; leave them out by filter() in a new run"
        )
    removed = {(removal.source, removal.index) for removal in list_removals(before)}
    left = {
        source: tuple(sorted({index for index in indices if (source, index) not in removed}))
        for source, indices in asked.items()
    }
    return tuple(DocumentMask(source, step, indices) for source, indices in left.items() if indices)


# ---------------------------------------------------------------- agreement of two plans
#
# Two runs of one mixture often agree for millions of rows, up to a stage that differs. What the
# samples follow from is compared, node by node: sources, orders, weights, limits, lengths.


def count_agreeing(here: Compiled, there: Compiled, stop: int) -> int:
    """Return a number of first positions at which two plans have the same samples.

    Later positions may agree too. Parts of the user, such as orders, agree only with themselves.

    Args:
        here: The compiled tree of a plan.
        there: The other one.
        stop: The first position that does not matter.

    Returns:
        At most `stop`.

    >>> import penstock as ps
    >>> numbers = ps.from_sequence(range(100), name="numbers")
    >>> plans = [numbers.shuffle(seed=seed).repeat().batch(4).compiled for seed in (1, 1, 2)]
    >>> count_agreeing(plans[0], plans[1], 10**9), count_agreeing(plans[0], plans[2], 10**9)
    (1000000000, 0)
    """
    names = [[leaf.name for leaf in compiled.builder.leaves] for compiled in (here, there)]
    if names[0] != names[1]:
        return 0
    return min(_Comparison(here, there).count(here.op, there.op), stop)


class _Comparison:
    """A comparison of compiled steps. Their leaves have the same names in the same order."""

    def __init__(self, here: Compiled, there: Compiled) -> None:
        self._here, self._there = here, there
        self._equal_leaves = dict[int, bool]()

    def count(self, a: Op, b: Op) -> int:
        """Return a number of first positions that agree; `MAX_POSITION` if all do."""
        if a is b:
            return MAX_POSITION
        while isinstance(a, FunctionOp):
            a = a.input
        while isinstance(b, FunctionOp):
            b = b.input
        if isinstance(a, MixOp | ErasOp) and isinstance(b, MixOp | ErasOp):
            return self._count_eras(a, b)
        if type(a) is not type(b):
            return 0
        if isinstance(a, ReadOp) and isinstance(b, ReadOp):
            return _count_read(a, b)
        if isinstance(a, OrderOp) and isinstance(b, OrderOp):
            return self._count_ordered(a, b)
        if isinstance(a, BatchOp) and isinstance(b, BatchOp):
            return self._count_batches(a, b)
        if isinstance(a, PackedOp) and isinstance(b, PackedOp):
            return self._count_packed(a, b)
        return 0

    def _count_ordered(self, a: OrderOp, b: OrderOp) -> int:
        one, other, below = a.order, b.order, self.count(a.input, b.input)
        if a.key == b.key and isinstance(one, Slice) and isinstance(other, Slice):
            if (one.start, one.step) != (other.start, other.step) or one.step < 1:
                return 0
            last = one.start + (one.count - 1) * one.step
            if below > last and one.count == other.count:
                return MAX_POSITION
            agreed = max(-(-(below - one.start) // one.step), 0)
            return min(agreed, one.count, other.count)
        if not _are_equal_orders(a, b):
            return 0
        if below == MAX_POSITION and a.input.size == b.input.size:
            return MAX_POSITION
        is_plain = type(a) is OrderOp and isinstance(one, Repeat)
        return below if is_plain and a.input.size == b.input.size else 0

    def _count_batches(self, a: BatchOp, b: BatchOp) -> int:
        if (a.n, a.drop) != (b.n, b.drop) or a.by_step or b.by_step:
            return 0
        below = self.count(a.input, b.input)
        if below == MAX_POSITION and a.input.passes == b.input.passes:
            return MAX_POSITION
        sizes = [size for op in (a, b) if (size := op.input.size) is not None]
        return min(below, *sizes) // a.n if sizes else below // a.n

    # ------------------------------------------------------------ packed rows

    def _count_packed(self, a: PackedOp, b: PackedOp) -> int:
        if not _are_equal_folds(a, b) or not self._have_equal_lengths(a.lengths, b.lengths):
            return 0
        below = self.count(a.input, b.input)
        if below == MAX_POSITION:
            return MAX_POSITION if a.input.passes == b.input.passes and a.passes == b.passes else 0
        if not has_independent_rows(a.fold):
            return 0
        most = MAX_POSITION
        for op in (a, b):
            if op.size is None:
                continue
            if not op.is_large or op.input.size is None:
                return 0
            below = min(below, op.input.size - 1)
            most = min(most, op.size - 1 - _LAST_WINDOWS * op.together)
        return max(_find_row(a, below, most), 0)

    def _have_equal_lengths(self, a: Lengths, b: Lengths) -> bool:
        """Return whether two plans count the same tokens for every sample."""
        if a.described != b.described or len(a.by_leaf) != len(b.by_leaf):
            return False
        return all(self._has_equal_lengths(number, a, b) for number in range(len(a.by_leaf)))

    def _has_equal_lengths(self, number: int, a: Lengths, b: Lengths) -> bool:
        sizes, others = a.by_leaf[number], b.by_leaf[number]
        if sizes is others:
            return True
        if len(sizes) != len(others):
            return False
        if number not in self._equal_leaves:
            one, other = (each.builder.leaves[number].source for each in (self._here, self._there))
            version = one.lengths_version() if isinstance(one, IdentifiesLengths) else None
            self._equal_leaves[number] = one is other or (
                version is not None
                and isinstance(other, IdentifiesLengths)
                and version == other.lengths_version()
            )
        if self._equal_leaves[number]:
            return True
        if len(sizes) > _LENGTHS_COMPARED:
            return False
        return np.array_equal(np.asarray(sizes[:]), np.asarray(others[:]))

    # ------------------------------------------------------------ mixtures

    def _count_eras(self, a: MixOp | ErasOp, b: MixOp | ErasOp) -> int:
        """Compare mixtures up to the first era that differs."""
        if isinstance(a, MixOp) and isinstance(b, MixOp):
            return self._count_mixed(a, b)
        agreed = 0
        for one, other in zip(_list_eras(a), _list_eras(b), strict=False):
            if one[0] != other[0]:
                return agreed
            end = min(one[1], other[1])
            agreed = min(self._count_mixed(one[2], other[2]), end)
            if agreed < end or one[1] != other[1]:
                return agreed
        return agreed

    def _count_mixed(self, a: MixOp, b: MixOp) -> int:
        if len(a.inputs) != len(b.inputs) or not np.array_equal(a.base, b.base):
            return 0
        below = [self.count(one, other) for one, other in zip(a.inputs, b.inputs, strict=True)]
        same_sizes = [op.size for op in a.inputs] == [op.size for op in b.inputs]
        is_whole = min(below) == MAX_POSITION and same_sizes
        rule, other_rule = a.schedule, b.schedule
        if not isinstance(rule, Mixture) or not isinstance(other_rule, Mixture):
            return MAX_POSITION if is_whole and _are_equal_rules(rule, other_rule) else 0
        has_clock = rule.meters is not None or other_rule.meters is not None
        if has_clock and not (is_whole and self._have_equal_clocks(a, b)):
            return 0
        agreed = _count_draws(rule, other_rule)
        sizes = [size for size in (a.size, b.size) if size is not None]
        if sizes and is_whole and a.size == b.size and agreed >= sizes[0]:
            if np.array_equal(a.advance, b.advance):
                return MAX_POSITION
        agreed = min(agreed, *sizes, MAX_POSITION)
        for i, draws in enumerate(below):
            if draws < MAX_POSITION:
                agreed = min(agreed, _find_draw(rule, i, draws - int(a.base[i])))
        return agreed

    def _have_equal_clocks(self, a: MixOp, b: MixOp) -> bool:
        """Return whether two mixtures count the same tokens for their draws."""
        units = list[tuple[Json, Json]]()
        for compiled, mix in ((self._here, a), (self._there, b)):
            step = None if mix.at is None else compiled.builder.mixtures.get(mix.at)
            described = dict[str, Json]() if step is None else dict(step[0].describe())
            units.append((described.get("unit"), described.get("packed")))
        if units[0] != units[1] or units[0][0] != "tokens":
            return False
        return self._have_equal_lengths(self._here.builder.lengths, self._there.builder.lengths)


def _count_read(a: ReadOp, b: ReadOp) -> int:
    if a.named.name != b.named.name or a.former or b.former:
        return 0
    return MAX_POSITION if a.size == b.size else min(a.size, b.size)


def _are_equal_orders(a: OrderOp, b: OrderOp) -> bool:
    one, other = a.order, b.order
    if a.key != b.key or type(one) is not type(other):
        return False
    if one is other:
        return True
    return type(one) in _ORDERS and one.describe() == other.describe()


def _are_equal_rules(one: Drawing, other: Drawing) -> bool:
    """Return whether two rules, other than weights, draw alike; rules of the user are unknown."""
    same = isinstance(one, ChainSchedule | TurnsSchedule) and type(one) is type(other)
    return one is other or (same and one == other)


def _list_eras(mix: MixOp | ErasOp) -> Iterator[tuple[int, int, MixOp]]:
    """Yield the eras that begin in the first pass: first position, last one plus 1, mixture."""
    if isinstance(mix, MixOp):
        yield 0, MAX_POSITION, mix
        return
    for era, later in zip_longest(mix.eras, mix.eras[1:]):
        if era.epoch:
            return
        stop = MAX_POSITION if later is None else mix.position(later.epoch, later.offset)
        yield era.offset, stop, era.mix


# ---------------------------------------------------------------- packed rows


def _are_equal_folds(a: PackedOp, b: PackedOp) -> bool:
    if not isinstance(a, PackOp | WindowPackOp) or not isinstance(b, PackOp | WindowPackOp):
        return False
    known = all(type(get_inner_fold(op.fold)) in _FOLDS for op in (a, b))
    options = [(op.fold, op.key, op.multiple, op.group_count) for op in (a, b)]
    return known and options[0] == options[1]


def _find_row(pack: PackedOp, documents: int, most: int) -> int:
    """Return a number of first rows, at most `most`, that hold none but the first documents."""
    tokens = Metered(pack.input, pack.lengths).tokens(documents)
    row, back = min(tokens // (pack.row_length or 1), most), max(pack.together, 1)
    while row > 0 and pack.drawn(row) > documents:
        row, back = row - back, 2 * back
    return row


# ---------------------------------------------------------------- weights and limits


def _count_draws(one: Mixture, other: Mixture) -> int:
    """Return a number of first positions at which mixtures make the same draws."""
    if _get_fixed(one) != _get_fixed(other) or (one.meters is None) != (other.meters is None):
        return 0
    if one.meters is not None and one.lengths != other.lengths:
        return 0
    if one.log != other.log and any(
        not isinstance(event, SetWeights) for event in (*one.log, *other.log)
    ):
        return 0
    agreed = min(_compare_weights(one, other), _compare_limits(one, other))
    if agreed == MAX_POSITION:
        return agreed
    # A block, or a stretch of one source, may begin before the difference and depend on it.
    margin = one.block_size if one.block_size > 1 else 0
    if (size := one.one_source_per) > 1:
        margin = (margin + 2) * size
    return max(agreed - margin, 0)


def _get_fixed(mixture: Mixture) -> tuple[object, ...]:
    stop, size = mixture.stop, mixture.one_source_per
    return mixture.names, stop, mixture.block_size, mixture.key, size


def _compare_weights(one: Mixture, other: Mixture) -> int:
    """Return the first position from which on other weights may count."""
    agreed = _compare_spans(_list_spans(one, one.weights), _list_spans(other, other.weights))
    for event, changed in zip_longest(one.log, other.log):
        if not isinstance(event, SetWeights) or not isinstance(changed, SetWeights):
            if event == changed:
                continue
            return min([agreed, *(each.at for each in (event, changed) if each is not None)])
        spans = [
            _list_spans(mixture, each.weights, is_changed=True)
            for mixture, each in ((one, event), (other, changed))
        ]
        if event.at != changed.at or _compare_spans(*spans) < MAX_POSITION:
            return min(agreed, event.at, changed.at)
    return agreed


def _list_spans(
    mixture: Mixture, weights: Mapping[str, float] | Schedule | None, is_changed: bool = False
) -> Sequence[InterpolationSpan]:
    return compute_spans(
        mixture.names,
        mixture.sizes,
        weights,
        None if is_changed else mixture.temperature,
        mixture.lengths,
        mixture.meters is not None,
    )


def _compare_spans(spans: Sequence[InterpolationSpan], others: Sequence[InterpolationSpan]) -> int:
    for one, other in zip_longest(spans, others):
        if one is None or other is None:
            return min(span.begin for span in (one, other) if span is not None)
        kinds = [(each.begin, each.interpolation) for each in (one, other)]
        same = np.array_equal(one.first, other.first) and np.array_equal(one.last, other.last)
        if not same or kinds[0] != kinds[1]:
            return min(one.begin, other.begin)
        ends = [(each.end, each.origin, each.target) for each in (one, other)]
        if ends[0] != ends[1]:
            if not (one.constant and other.constant):
                return one.begin
            return min(end for end in (one.end, other.end, MAX_POSITION) if end is not None)
    return MAX_POSITION


def _compare_limits(one: Mixture, other: Mixture) -> int:
    """Return the first position from which on other sizes or caps of sources may count."""
    limits, others = (
        compute_limits(
            mixture.names,
            mixture.sizes,
            mixture.stop,
            mixture.block_size,
            mixture.key,
            mixture.max_epochs,
        )
        for mixture in (one, other)
    )
    agreed = MAX_POSITION
    for here, there in ((limits.most, others.most), (limits.goal, others.goal)):
        for i in np.flatnonzero(here != there).tolist():
            draw = min(int(here[i]), int(there[i])) - one.one_source_per
            agreed = min(agreed, _find_draw(one, i, draw))
    return agreed


def _find_draw(mixture: Mixture, source: int, draw: int) -> int:
    """Return the position of a draw of a source; `MAX_POSITION` if it is never made."""
    if draw < 0:
        return 0
    place = int(mixture.positions_of(np.asarray([source]), np.asarray([draw]))[0])
    return MAX_POSITION if place < 0 else place
