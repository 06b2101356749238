"""Plans with files: the states of a folder, and audits, one line for every sample of some steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
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
from .engine.plan import Plan as EnginePlan
from .engine.plan.edit import group_by_source, list_removals
from .engine.plan.plan import Keys
from .engine.plan.records import Removal
from .engine.plan.step_samples import StepReader, StepSamples
from .engine.runtime.seal import seal
from .engine.runtime.session import Session
from .engine.runtime.states import decode_state, make_other_pipeline_error, merge_states
from .engine.steps.compiled import Compiled
from .engine.steps.mask import DocumentMask
from .engine.streams.function_call import Leaf
from .errors import ConfigError, convert_storage_errors
from .saves import read_states
from .stores.outputs import writer
from .stores.urls import require_local
from .text.loss_tokens import measure_untrained
from .types import MAX_POSITION, FileSource, Flags, Ints, is_source

D = TypeVar("D")

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

    def __init__(self, reader: StepReader, leaves: list[Leaf], key: str | None) -> None:
        self._reader, self._leaves, self._key = reader, leaves, key

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


def _named(numbers: Ints, texts: Any, gone: Flags | None = None) -> Any:
    pa = import_arrow()
    return pa.DictionaryArray.from_arrays(pa.array(numbers.astype(np.int32), mask=gone), texts)


def by_leaf(leaf: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield each leaf with the places at which it occurs."""
    order = np.argsort(leaf, kind="stable")
    cuts = np.flatnonzero(np.diff(leaf[order])) + 1
    for mine in np.split(order, cuts) if len(leaf) else ():
        yield int(leaf[mine[0]]), mine


@validate_arguments
class Plan(EnginePlan[D]):
    __doc__ = EnginePlan.__doc__

    def _measure_untrained(self) -> Mapping[str, float]:
        return measure_untrained(self.compiled)

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
        plan = EnginePlan(session.compiled_base, lambda flow: flow, section=session.section)
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
    maskable = find_maskable_sources(compiled.flow, compiled.builder)
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
