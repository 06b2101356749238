"""The dataset: one public class over the tree of steps, with a method for every step."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from inspect import currentframe
from math import ceil, prod
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
    overload,
)

import numpy as np
import numpy.typing as npt

from .arguments import (
    check_choice,
    check_indices,
    check_int,
    check_position,
    join_first,
    make_not_dataset_error,
    require_no_lightning,
    require_protocol,
    validate_arguments,
)
from .arrays.trees import collate as default_collate
from .arrays.trees import leading_size
from .engine.base.batch_size import BatchSize
from .engine.base.row_files import describe_row_location
from .engine.base.shown import Shown
from .engine.base.step_plan import RowsByStep
from .engine.grouping import BatchByTokens, BucketByLength, ShuffleBuffer
from .engine.mixing.rules import Chain, Cycle, Rule, Turns
from .engine.orders import (
    BlockShuffle,
    BucketShuffle,
    Gap,
    Pick,
    Portion,
    Repeat,
    RepeatEach,
    Replay,
    Shuffle,
    Slice,
    WindowShuffle,
    parse_fraction,
)
from .engine.packing import (
    DType,
    Long,
    Method,
    Missing,
    Overflow,
    Packing,
    Rebatch,
    Untrained,
    join_parts,
    make_crop_error,
    make_length_plan,
)
from .engine.runtime.iterator import DatasetIterator
from .engine.steps.batch import make_batches, shares_batches
from .engine.steps.batched_function import Batched, Collated, unchanged_sources
from .engine.steps.compiled import Compiled
from .engine.steps.filter import Filter
from .engine.steps.flat_map import FlatMap
from .engine.steps.function_step import FunctionStep, name_of
from .engine.steps.group import Group
from .engine.steps.limit import Limit, SkipFirst
from .engine.steps.map import Map
from .engine.steps.map_with_index import MapWithIndex
from .engine.steps.mix import Mix
from .engine.steps.one_source import pack_each_source, with_global_step
from .engine.steps.op import Op
from .engine.steps.planned_batches import plan_batches, rows_by_step
from .engine.steps.random_map import RandomMap
from .engine.steps.read import make_counter, single_source
from .engine.steps.reorder import Reorder
from .engine.steps.repeat import RepeatPasses
from .engine.steps.show import length, shown
from .engine.steps.skipping_map import SkippingMap
from .engine.steps.step import Step, iter_steps
from .engine.steps.token_dtypes import require_ids_fit
from .engine.steps.with_source import WithSource
from .engine.steps.zip import make_zip
from .engine.streams.function_call import SampleFailure, locate_cause, to_list
from .errors import ConfigError, DataError, IndexedError, hide_unknown_length
from .explore.look import Look
from .explore.tables import Tables
from .schedule import Schedule
from .sources import reads_columns, warn_of_full_shuffle
from .sources.block import to_columns
from .sources.partition import check_parts, choose_parts, has_columns, keep_part, show_columns
from .stores.limits import BATCH
from .types import MAX_POSITION, FileSource, Fold, Indices, Ints, Order, Part, Sizer

if TYPE_CHECKING:
    from .writing.one_file import FileFormat

P = ParamSpec("P")
R = TypeVar("R")

SplitBy: TypeAlias = Literal["hash", "position"]
SPLITS: tuple[SplitBy, ...] = get_args(SplitBy)

_SPLIT_REMEDY = "split before that step, or write its result: ps.read(ds.write('part.parquet'))"

_ENDLESS_ALREADY = (
    "repeat(): the dataset is endless already (mixtures repeat their inputs by default); leave "
    "repeat() out, or let the dataset end before it: mix(stop='all_exhausted') or limit(n)"
)


_TRAINERS = (
    "(torch's DataLoader takes penstock.integrations.torch.IterableDataset(ds), and trainers take "
    "penstock.integrations.transformers.hf_dataset(ds))"
)


@validate_arguments
class Dataset(Look["Dataset"], Tables["Dataset"]):
    """An immutable pipeline over samples; every method returns a new dataset.

    A dataset is a description: nothing is read until samples are requested. Every dataset can be
    iterated, any number of times. An indexed dataset also has `len(ds)`, `ds[i]` and slices. The
    specification, `docs/semantics.md`, has the exact semantics of each step.

    Args:
        tree: the tree of steps. Users begin with `ps.read` and similar functions, which build it.
        seed: seed of random steps that have no seed of their own.

    Raises:
        ConfigError: if it is made of anything but a description; use `ps.from_sequence`.

    >>> import penstock as ps
    >>> ds = ps.from_sequence(range(6)).map(lambda x: x * x).batch(4, collate=list)
    >>> len(ds), ds[1], list(ds)
    (2, [16, 25], [[0, 1, 4, 9], [16, 25]])
    """

    def __init__(self, tree: Step, seed: int | None = None) -> None:
        if not hasattr(tree, "__dataclass_fields__"):
            raise make_not_dataset_error("Dataset", tree)
        self.tree = tree
        self._seed, self._compiled = seed, Compiled(tree)

    def _shown(self) -> Shown:
        return shown(f"Dataset{length(self._compiled)}", self.tree)

    def __reduce__(self) -> tuple[Any, ...]:
        return Dataset, (self.tree, self._seed)

    def _with(self, step: Step, /) -> Dataset:
        dataset = Dataset(step, self._seed)
        dataset._compiled = Compiled(step, base=self._compiled)
        return dataset

    # ------------------------------------------------------------ random access

    @property
    def compiled(self) -> Compiled:
        """The compiled tree, shared by all loaders, iterators and plans of this dataset.

        >>> import penstock as ps
        >>> ps.from_sequence("abc").batch(2).compiled.op.size
        2
        """
        return self._compiled

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of all sources. `source_ids` of packed rows are indices of it.

        >>> import penstock as ps
        >>> ps.mix({"b": ps.from_sequence("xy"), "a": ps.from_sequence("z")}).sources
        ('a', 'b')
        """
        return tuple(leaf.name for leaf in self.compiled.builder.leaves)

    @cached_property
    def loss_weights(self) -> tuple[float, ...]:
        """The weight of the losses of each source, in the order of `sources`; 1 unless given.

        `ps.mix(loss_weights=...)` gives them. The weight of a source in nested mixtures is the
        product of those on its path. `penstock.integrations.losses.weigh_losses` takes them.

        >>> import penstock as ps
        >>> a, b, c = (ps.from_sequence(letter) for letter in "abc")
        >>> inner = ps.mix({"a": a, "b": b}, loss_weights={"a": 0.5})
        >>> ps.mix({"c": c, "ab": inner}, loss_weights={"ab": 0.5}).loss_weights
        (0.25, 0.5, 1.0)
        """
        return _list_loss_weights(self.tree)

    @property
    def _compiled_step(self) -> Op:
        self.tree.require_indexed("this", "iterate over the dataset instead")
        return self.compiled.op

    @cached_property
    def _size(self) -> int | None:
        self.tree.require_indexed("this", "iterate over the dataset instead")
        return self.compiled.size

    @hide_unknown_length
    def __len__(self) -> int:
        self.tree.require_indexed(
            "len()",
            f"count with sum(1 for _ in ds), or filter files by ps.read(paths, where=...) {_TRAINERS}",
        )
        if self._size is None:
            raise IndexedError(
                f"len() of an endless dataset; .limit(n) gives it a length {_TRAINERS}"
            )
        return self._size

    @overload
    def __getitem__(self, index: int, /) -> Any: ...
    @overload
    def __getitem__(self, index: slice, /) -> Dataset: ...
    @overload
    def __getitem__(self, index: Indices, /) -> list[Any]: ...
    def __getitem__(self, index: int | slice | Indices, /) -> Any:
        if isinstance(index, slice):
            return self._sliced(index)
        if getattr(index, "ndim", 0) or (
            isinstance(index, Sequence) and not isinstance(index, str | bytes)
        ):
            return self.__getitems__(cast("Indices", index))
        if isinstance(index, str):
            raise TypeError(
                f"ds[{index!r}]: samples have positions, not names; write "
                f"ds.to_arrow()[{index!r}] for the column, or ds[0][{index!r}] of one sample"
            )
        position = operator.index(cast("int", index))
        self.tree.require_indexed(f"ds[{position}]", "write ds.head(n), or iterate")
        self._check_bounds(position, position)
        if position < 0:
            position += self._size or 0
        return self._values(np.asarray([position]))[0]

    def __getitems__(self, indices: Indices) -> list[Any]:
        """Return several samples at once; torch's DataLoader calls this method."""
        self.tree.require_indexed("ds[[...]], ds.__getitems__", "iterate over the dataset instead")
        return to_list(self._values(self._positions(indices, "ds[{}]")))

    def _values(self, positions: Ints) -> Sequence[Any]:
        rows = self._compiled_step.locate(positions)
        try:
            return self._compiled_step.values(rows)
        except SampleFailure as failure:
            leaf = self.compiled.builder.leaves[failure.leaf]
            cause = locate_cause(failure, self.compiled.builder.leaves)
            file = describe_row_location(leaf.source, failure.index)
            cause.add_note(
                f"penstock: at index {failure.index} of source {leaf.name} (pass "
                f"{failure.epoch}){file}"
            )
            raise cause from None

    def _positions(self, indices: Indices, call: str) -> Ints:
        """Return the positions of indices; negative indices count from the end."""
        positions = check_indices(indices, call)
        if len(positions):
            self._check_bounds(int(positions.min()), int(positions.max()))
        return np.where(positions < 0, positions + (self._size or 0), positions)

    def _check_bounds(self, lowest: int, highest: int) -> None:
        """Raise `IndexError` if the dataset lacks one of the indices."""
        size = self._size
        if size is None:
            check_position(highest)
            if lowest < 0:
                raise IndexError(f"index {lowest}: an endless dataset has no end to count from")
        elif lowest < -size or highest >= size:
            raise IndexError(
                f"index {highest if highest >= size else lowest} of a dataset of {size}"
            )

    def __iter__(self) -> DatasetIterator:
        require_no_lightning(
            currentframe(),
            "under Lightning, every epoch of a bare dataset would have the order of the first, and "
            "every rank all samples",
        )
        return DatasetIterator(self)

    # ------------------------------------------------------------ order

    def shuffle(
        self,
        seed: int | None = None,
        block: tuple[int, int] | None = None,
        window: int | None = None,
        buckets: int | None = None,
        *,
        name: str | None = None,
    ) -> Dataset:
        """Shuffle the samples, with another order in every pass.

        The order is a keyed permutation, so it needs O(1) memory and keeps random access.

        Args:
            seed: seed of this step. Default: the seed of `.seed()` or of the mixture, else 0.
            block: (rows, window): shuffle blocks of `rows` neighbours, then the rows inside windows
                of `window` blocks. Reads stay local; the order is less random.
            window: shuffle only inside windows of this many neighbours; needs no random access.
            buckets: rows in a bucket. Rows are assigned to buckets once, at random; a pass shuffles
                the buckets, and the rows of each. For packing 10^8 documents and more: lengths are
                summed once, not once per pass.
            name: name that keys the randomness of this step. Unnamed steps are keyed by their
                number, which changes when random steps are added or removed before them.

        Raises:
            ConfigError: if the dataset is endless, if two of block, window and buckets are given,
                or if a number is below 1.
            IndexedError: if an earlier step has no positions; not with `window`.

        >>> import penstock as ps
        >>> ds = ps.from_sequence(range(100)).shuffle(seed=7)
        >>> sorted(ds) == list(range(100)), list(ds) == list(ds)
        (True, True)
        """
        name = self._step_name("shuffle", name)
        if sum(option is not None for option in (block, window, buckets)) > 1:
            raise ConfigError(
                f"shuffle(block={block}, window={window}, buckets={buckets}): give one of them"
            )
        if window is not None:
            window = check_int(window, "shuffle(window={})", 1, MAX_POSITION)
            if self.tree.reason_not_indexed is not None:
                return self._fold(WindowShuffle(window), _one, _only, self._seed_of(seed), name)
            return self._reorder(WindowShuffle(window), seed, name)
        self._require_indexed("shuffle()", "use .shuffle_buffer(n), or shuffle before that step")
        if self._size is None:
            raise ConfigError(
                "shuffle(): the dataset is endless; shuffle it before .repeat() or mix"
            )
        if buckets is not None:
            order = BucketShuffle(check_int(buckets, "shuffle(buckets={})", 1, MAX_POSITION))
            return self._reorder(order, seed, name)
        if block is None:
            if (found := single_source(self.tree)) is not None:
                warn_of_full_shuffle(found[0].source, found[0].name)
            return self._reorder(Shuffle(), seed, name)
        if not isinstance(block, tuple | list) or len(block) != 2:  # pyright: ignore[reportUnnecessaryComparison, reportUnnecessaryIsInstance]
            raise ConfigError(f"shuffle(block={block!r}): give a pair, (rows, window)")
        rows, window = (
            check_int(number, f"{{}} in shuffle(block={block})", 1, MAX_POSITION)
            for number in block
        )
        check_int(rows * window, f"shuffle(block={block}): {{}} rows", 1, MAX_POSITION)
        return self._reorder(BlockShuffle(rows, window), seed, name)

    def reorder(self, order: Order, seed: int | None = None, *, name: str | None = None) -> Dataset:
        """Reorder the samples by a custom `Order`, a pure map between positions.

        The dataset must be indexed, and stays indexed. `penstock.testing.assert_order` checks an
        order.

        Args:
            order: object with `size`, `down`, `up` and `describe`, see `penstock.types.Order`. The
                seed enters the `key` that its methods receive.
            seed: seed of this step. Default: the seed of `.seed()` or of the mixture, else 0.
            name: name that keys the randomness of this step. Unnamed steps are keyed by their
                number, which changes when random steps are added or removed before them.

        Raises:
            ConfigError: if the order lacks a method.
            IndexedError: if an earlier step has no positions.

        >>> import numpy as np, penstock as ps
        >>> class Backwards:
        ...     def size(self, below):
        ...         return below
        ...     def down(self, positions, below, key):
        ...         epoch, index = np.divmod(positions, below)
        ...         return epoch * below + below - 1 - index, None
        ...     def up(self, positions, below, key):
        ...         return self.down(positions, below, key)[0]
        ...     def describe(self):
        ...         return {"order": "backwards"}
        >>> "".join(ps.from_sequence("abc").reorder(Backwards()))
        'cba'
        """
        self._require_indexed("reorder()", "reorder before that step")
        name = self._step_name("reorder", name)
        return self._reorder(require_protocol(order, Order, "reorder()"), seed, name)

    def repeat(self, epochs: int | None = None, reshuffle: bool = True) -> Dataset:
        """Repeat the dataset: `epochs` passes as one pass.

        Args:
            epochs: number of passes. Default: endless.
            reshuffle: whether every pass has its own order; False repeats the order of the first.

        Raises:
            ConfigError: if the dataset is endless already, or empty and repeated for ever.

        >>> import penstock as ps
        >>> list(ps.from_sequence("ab").repeat(2))
        ['a', 'b', 'a', 'b']
        """
        epochs = None if epochs is None else check_int(epochs, "repeat({})", 0)
        if self.tree.reason_not_indexed is not None:
            if not reshuffle:
                self.tree.require_indexed(
                    "repeat(reshuffle=False)",
                    "repeat with reshuffling, or before that step",
                )
            if self.tree.is_endless:
                raise ConfigError(_ENDLESS_ALREADY)
            return self.limit(0) if epochs == 0 else self._with(RepeatPasses(self.tree, epochs))
        size = self.compiled.of(with_global_step(self.tree, 1)).size  # at most so many
        if size is None:
            raise ConfigError(_ENDLESS_ALREADY)
        if size == 0 and epochs is None:
            raise ConfigError("repeat(): the dataset is empty, so it cannot be repeated for ever")
        check_position(size, epochs or 1)
        return self._with(Reorder(self.tree, Repeat(epochs) if reshuffle else Replay(epochs)))

    def repeat_each(self, n: int) -> Dataset:
        """Repeat each sample `n` times, adjacent; for example a group of rollouts per prompt.

        Earlier random steps draw the same values for all `n` copies.

        Args:
            n: number of copies of each sample.

        Raises:
            IndexedError: if an earlier step has no positions.

        >>> import penstock as ps
        >>> list(ps.from_sequence("ab").repeat_each(3))
        ['a', 'a', 'a', 'b', 'b', 'b']
        """
        n = check_int(n, "repeat_each({})", 1)
        self.tree.require_indexed(
            "repeat_each()",
            "use .flat_map(lambda sample: [sample] * n), or put it before that step",
        )
        check_position(self._size or 0, n)
        return self._with(Reorder(self.tree, RepeatEach(n)))

    def slice(self, *bounds: int | None) -> Dataset:
        """Slice the dataset: `ds.slice(start, stop, step)` is `ds[start:stop:step]`.

        A slice is a fixed set of samples, the same in every pass.

        Args:
            *bounds: stop; start and stop; or start, stop and step, as for a list.

        Raises:
            ConfigError: if the dataset is endless and the slice has no stop.
            IndexedError: if an earlier step has no positions.

        >>> import penstock as ps
        >>> list(ps.from_sequence(range(10)).slice(2, 9, 3))
        [2, 5, 8]
        """
        return self._sliced(slice(*bounds))

    def _sliced(self, bounds: slice) -> Dataset:
        self._require_indexed("a slice", "use .limit(n), or slice before that step")
        size = self._size
        if size is None:
            start, stop, step = bounds.start or 0, bounds.stop, bounds.step or 1
            if stop is None or stop < 0 or start < 0 or step < 1:
                raise ConfigError(
                    "a slice of an endless dataset needs a stop and counts forwards from the start"
                )
            check_position(max(start, stop))
            positions = range(start, stop, step)
        else:
            positions = range(size)[bounds]
        return self._fixed_set(Slice(positions.start, len(positions), positions.step))

    def _fixed_set(self, order: Slice | Pick) -> Dataset:
        return self._with(Reorder(self._seeded_node, order))

    @property
    def _seeded_node(self) -> Step:
        # A fixed set must not depend on later steps, so its seeds are fixed here.
        return self.tree.seeded(self._seed or 0)

    def split(
        self,
        held_out: str | float,
        by: SplitBy = "hash",
        *,
        column: str | Sequence[str] | None = None,
        seed: int = 0,
    ) -> tuple[Dataset, Dataset]:
        """Split into two disjoint datasets: one to train on, and one held out.

        A hash of each position decides, so every prefix has its share, and appended data moves no
        earlier sample to the other side. Both parts are fixed sets, the same in every pass; shuffle
        them afterwards.

        With `column`, a hash of that column's value decides: equal values (the pages of a site, the
        copies of a text, also in other sources) stay on one side. For several columns, the values
        together decide. The share then applies to distinct values, approximately. A part can be
        split again by the same column. Directly after
        `ps.read` of files this reads one column. Else, and for several columns, it reads every
        sample once, and reports progress.

        Args:
            held_out: share, such as "0.5%" or 0.005; or an integer number of samples.
            by: "hash"; or "position", which holds out the last samples.
            column: column whose values decide, or a list of columns. Values are texts, numbers,
                times or null.
            seed: seed of the hash by position; not with `column`.

        Returns:
            The dataset to train on, and the one held out.

        Raises:
            ConfigError: if `held_out` is no share, if the dataset is endless, or if no sample has
                the column.
            IndexedError: if an earlier step has no positions.

        >>> import penstock as ps
        >>> train, held_out = ps.from_sequence(range(1_000)).split("1%")
        >>> len(train), len(held_out), sorted([*train, *held_out]) == list(range(1_000))
        (990, 10, True)
        """
        _require_one_share(held_out, by)
        if column is not None:
            if by != "hash" or seed:
                raise ConfigError(
                    "split(column=...): its values decide alone; leave out by= and seed="
                )
            columns = _parse_columns(column, "split(column={!r})")
            share = _parse_column_share(held_out, column)
            trees = _split_files(self.tree, share, columns)
            if trees is None:
                self._require_indexed("split(column=...)", _SPLIT_REMEDY)
                first, second = map(self._fixed_set, self._split_by_columns(share, columns))
                _warn_of_empty_part(first, second, columns)
                return first, second
        else:
            self._require_indexed("split()", _SPLIT_REMEDY)
            if self._size is None:
                raise ConfigError(
                    "split(): the dataset is endless; split it before .repeat() or mix"
                )
            trees = _split_by_position(self._seeded_node, self._size, held_out, by, seed)
        train, test = map(self._with, trees)
        if column is not None:
            _warn_of_empty_part(train, test, _parse_columns(column, "split(column={!r})"))
        return train, test

    def partition_by(
        self,
        columns: str | Sequence[str],
        *,
        min_size: int = 1,
        rest: str | None = None,
        only: Sequence[str] | None = None,
    ) -> dict[str, Dataset]:
        """Partition by the values of columns: the inputs of a mixture, one for each value.

        The name of an input is the value as text. The values of several columns are joined by `:`,
        as in `de:high`. Null is named `null`, and the empty text `empty`. A `/`, `%`, leading `+` or
        control character is percent-encoded, and so is `:` in one of several values.

        Every part is a fixed set, in order. Directly after `ps.read` of files, each part counts its
        samples from 0, and appended rows continue their parts, as with `where=`. One pass reads the
        columns alone, where the format has columns, with progress; the values of each file are
        cached. Other datasets are read once, as `split(column=...)` reads them.

        Args:
            columns: column, or a list of columns, whose values decide together. Values are texts,
                numbers, times or null.
            min_size: fewest samples of an input of its own.
            rest: name of the input of all other samples. Without it, rarer values are an error that
                counts them. If there are no others, there is no such input.
            only: names of the inputs, instead of `min_size`, so that a value that becomes frequent
                stays in the rest. Without `rest`, other samples are left out.

        Returns:
            The parts by name, sorted; the rest comes last.

        Raises:
            ConfigError: if values are rarer than `min_size`, if a name is missing or taken, if the
                dataset is endless, or if no sample has a column.
            IndexedError: if an earlier step has no positions.

        >>> import penstock as ps
        >>> rows = [{"lang": lang, "id": i} for i, lang in enumerate(["de", "en", "de", "fr", "en"])]
        >>> parts = ps.from_sequence(rows).partition_by("lang", min_size=2, rest="other")
        >>> {name: [row["id"] for row in part] for name, part in parts.items()}
        {'de': [0, 2], 'en': [1, 4], 'other': [3]}
        >>> mixture = ps.mix(parts, {"de": 1, "en": 3, "other": 1})
        """
        names = _parse_columns(columns, "partition_by({!r})")
        call = f"partition_by({show_columns(names)})"
        if len(set(names)) < len(names):
            raise ConfigError(f"{call}: a column is named twice")
        min_size = check_int(min_size, "partition_by(min_size={})", 1)
        check_parts(min_size, rest, only)
        self._require_indexed(call, "partition before that step")
        if self._size is None:
            raise ConfigError(
                f"{call}: the dataset is endless; partition it before .repeat() or mix"
            )
        values = self._read_column_values(call, names)
        parts = choose_parts(values, names, min_size, rest, only)
        rows = zip(parts.items(), values.find_rows(parts.values()), strict=True)
        leaf, _ = single_source(self.tree) or (None, ())
        if leaf is None or leaf is not self.tree or not has_columns(source := leaf.source):
            return {name: self._fixed_set(Pick(indices)) for (name, _), indices in rows}
        return {
            name: self._with(replace(leaf, source=keep_part(source, part, indices)))
            for (name, part), indices in rows
        }

    def select(self, indices: Indices) -> Dataset:
        """Select samples by index, in the given order: a fixed set, the same in every pass.

        It needs eight bytes of memory per index. For neighbours a slice needs less memory; to
        select by the content of samples, use `filter`. For a boolean mask pass
        `np.flatnonzero(mask)`.

        Args:
            indices: list, range or array of integers. Negative ones count from the end; repeated
                ones repeat their sample.

        Raises:
            ConfigError: if `indices` are no integers.
            IndexedError: if an earlier step has no positions.
            IndexError: if an index is out of range.

        >>> import penstock as ps
        >>> list(ps.from_sequence("abcd").select([3, 1, -1]))
        ['d', 'b', 'd']
        """
        self._require_indexed("select()", "use .filter(fn), or select before that step")
        return self._fixed_set(Pick(self._positions(indices, "select({})")))

    def shard(self, index: int, count: int) -> Dataset:
        """Take one of `count` disjoint shards: `ds[index::count]`.

        Distributed training needs no such step: a `Loader` shards over ranks by itself.

        Args:
            index: index of the shard, 0 to count - 1.
            count: number of shards.

        Raises:
            ConfigError: if the index is out of range.

        >>> import penstock as ps
        >>> [list(ps.from_sequence(range(5)).shard(i, 2)) for i in range(2)]
        [[0, 2, 4], [1, 3]]
        """
        index, count = (
            check_int(index, "shard({}, ...)"),
            check_int(count, "shard(..., {})", 0, MAX_POSITION),
        )
        if not 0 <= index < count:
            raise ConfigError(
                f"shard(index={index}, count={count}): give the index first, from 0 to count - 1, "
                "then the count"
            )
        return self._sliced(slice(index, None, count))

    def limit(self, n: int) -> Dataset:
        """Keep the first `n` samples of each pass; a slice if the dataset is indexed.

        Args:
            n: maximum number of samples.

        Raises:
            ConfigError: if `n` is no integer of at least 0.

        >>> import penstock as ps
        >>> list(ps.from_sequence(range(9)).filter(lambda x: x % 2).limit(3))
        [1, 3, 5]
        """
        n = check_int(n, "limit({})", 0)
        if self.tree.reason_not_indexed is None:
            return self._sliced(slice(0, n))
        return self._with(Limit(self.tree, n))

    def skip(self, n: int) -> Dataset:
        """Skip the first `n` samples of each pass; a slice if the dataset is indexed and finite.

        With `limit(n)` it splits a dataset in two. A stream reads and drops the skipped samples, on
        every rank, so skip before costly steps.

        Args:
            n: number of samples to skip at the beginning of each pass.

        Raises:
            ConfigError: if `n` is no integer of at least 0.

        >>> import penstock as ps
        >>> list(ps.from_sequence(range(5)).skip(3))
        [3, 4]
        """
        n = check_int(n, "skip({})", 0)
        if self.tree.reason_not_indexed is not None:
            return self._with(SkipFirst(self.tree, n) if n else self.tree)
        if self._size is not None:
            return self._sliced(slice(n, None))
        check_position(n)
        return self._with(Reorder(self.tree, Gap(0, n)))

    def concat(self, *others: Dataset) -> Dataset:
        """Concatenate datasets, one after the other.

        Args:
            *others: the datasets that follow, in this order.

        Raises:
            ConfigError: if an argument is no dataset, or if any but the last dataset is endless.

        >>> import penstock as ps
        >>> list(ps.from_sequence("ab").concat(ps.from_sequence("c")))
        ['a', 'b', 'c']
        """
        mix = _mix_by_rule("concat", (self, *others), Chain())
        # The rule refuses an endless dataset before others; streams have no sizes to tell it later.
        mix.rule.schedule([None if child.is_endless else 0 for child in mix.inputs])
        return self._with(mix)

    def interleave(self, *others: Dataset, width: int = 16) -> Dataset:
        """Interleave datasets: one sample of each of `width` open datasets in turn.

        When a dataset ends, its turns are skipped; from the next round the next unopened dataset
        replaces it.

        Args:
            *others: the datasets that follow.
            width: number of datasets open at a time. A larger width mixes better, and holds more
                files open.

        Raises:
            ConfigError: if an argument is no dataset, or if `width` is below 1.

        >>> import penstock as ps
        >>> a, b, c = (ps.from_sequence(letters) for letters in ("aaa", "b", "cc"))
        >>> "".join(a.interleave(b, c, width=2))
        'abaacc'
        """
        rule = Cycle(check_int(width, "interleave(width={})", 1))
        mix = _mix_by_rule("interleave", (self, *others), rule)
        return self._with(replace(mix, names=tuple(str(i) for i in range(len(mix.inputs)))))

    def zip(self, *others: Dataset) -> Dataset:
        """Zip datasets into tuples of one sample each; the shortest dataset ends a pass.

        Args:
            *others: the datasets to zip with this one.

        Raises:
            ConfigError: if an argument is no dataset.

        >>> import penstock as ps
        >>> list(ps.from_sequence("ab").zip(ps.from_sequence(range(9))))
        [('a', 0), ('b', 1)]
        """
        datasets = (self, *others)
        return self._with(make_zip(_mix_by_rule("zip", datasets, Turns())))

    # ------------------------------------------------------------ functions

    def map(
        self, fn: Callable[[Any], Any], may_skip: bool = False, batched: int | None = None
    ) -> Dataset:
        """Apply `fn` to every sample.

        With `batched=n`, `fn` receives a list of up to `n` samples, or their columns with
        `read(rows="columns")`: a mapping of arrays and lists, with the Arrow record batch as
        `.arrow`. It returns a list with one result per sample, or a mapping of columns, which is
        divided into one mapping per sample. A call may receive any neighbours, or a single sample,
        so results must not depend on the others; for fixed groups use
        `.batch(n, collate=list).map(fn)`. If `fn` raises, its samples are retried one by one, to
        find the bad one. A wrong number of results is a `ConfigError`.

        Args:
            fn: pure function of a sample: the same input gives the same output, in any thread.
            may_skip: whether `fn` may raise `ps.Skip` to drop a sample. The dataset then has no
                positions.
            batched: maximum number of samples in a call, for a function of a list.

        Raises:
            ConfigError: if `fn` is not callable.

        >>> import penstock as ps
        >>> list(ps.from_sequence([1, 2]).map(str))
        ['1', '2']
        >>> ds = ps.from_sequence(["a", "bcd"])
        >>> ds = ds.map(lambda texts: {"text": texts, "size": [len(text) for text in texts]}, batched=2)
        >>> ds[1]
        {'text': 'bcd', 'size': 3}
        """
        if batched is None:
            return self._apply(SkippingMap if may_skip else Map, fn)
        if batched is True:  # pyright: ignore[reportUnnecessaryComparison]
            raise ConfigError(
                "map(batched=True): give the maximum number of samples in a call: "
                ".map(fn, batched=1_000)"
            )
        if may_skip:
            raise ConfigError(
                "map(batched=..., may_skip=True): a list of results drops none; filter before or "
                "after it"
            )
        batched_fn = Batched(
            _require_callable(fn, "map"),
            check_int(batched, "map(batched={})", 1),
            to_columns if reads_columns(unchanged_sources(self.tree), "map") else None,
        )
        return self._apply(Map, batched_fn)

    def rename(self, names: Mapping[str, str]) -> Dataset:
        """Rename keys of samples (mappings): `{"old": "new"}`; other keys are unchanged.

        Keys are checked at the first sample; the error lists the keys that it has.

        Args:
            names: old key -> new key.

        Raises:
            ConfigError: while reading, if a key is missing, or would occur twice.

        >>> import penstock as ps
        >>> ps.from_sequence([{"content": "a", "id": 7}]).rename({"content": "text"})[0]
        {'text': 'a', 'id': 7}
        """
        return self._apply(Map, _Rename(names))

    def map_with_index(self, fn: Callable[[int, Any], Any]) -> Dataset:
        """Apply `fn(i, x)` to the i-th sample of the pass.

        Args:
            fn: function of the number of the sample in the pass, from 0, and the sample.

        Raises:
            ConfigError: if `fn` is not callable.

        >>> import penstock as ps
        >>> list(ps.from_sequence("ab").map_with_index(lambda i, x: f"{i}{x}"))
        ['0a', '1b']
        """
        if self.tree.reason_not_indexed is None:
            return self._apply(MapWithIndex, fn)
        return (
            Dataset(make_counter())
            .zip(self)
            .map(_PairFunction(_require_callable(fn, "map_with_index")))
        )

    def random_map(
        self,
        fn: Callable[[Any, np.random.Generator], Any],
        seed: int | None = None,
        *,
        name: str | None = None,
    ) -> Dataset:
        """Apply `fn(x, rng)` to every sample, with a random generator keyed by the sample.

        The draws are the same with any workers and after any resume, and differ between passes.

        Args:
            fn: function of a sample and its `numpy.random.Generator`.
            seed: seed of this step. Default: the seed of `.seed()` or of the mixture, else 0.
            name: name that keys the randomness of this step. Unnamed steps are keyed by their
                number, which changes when random steps are added or removed before them.

        Raises:
            ConfigError: if `fn` is not callable.

        >>> import penstock as ps
        >>> ds = ps.from_sequence([0.0] * 3).random_map(lambda x, rng: x + rng.random())
        >>> list(ds) == list(ds), len(set(ds))
        (True, 3)
        """
        fn, seed = _require_callable(fn, "random_map"), self._seed_of(seed)
        return self._with(
            RandomMap(self.tree, fn, seed=seed, name=self._step_name("random_map", name))
        )

    def filter(self, fn: Callable[[Any], Any]) -> Dataset:
        """Keep the samples for which `fn(x)` is true.

        The dataset then has no positions: it runs in lanes, and has no `len`.

        Args:
            fn: pure function of a sample. One that remembers samples leaves out others at the
                second pass: drop duplicates in a table, as in
                `ps.read(ds.to_pandas().drop_duplicates("text"))`.

        Raises:
            ConfigError: if `fn` is not callable.

        >>> import penstock as ps
        >>> list(ps.from_sequence(range(6)).filter(lambda x: x % 3 == 0))
        [0, 3]
        """
        return self._apply(Filter, fn)

    def flat_map(self, fn: Callable[[Any], Iterable[Any]]) -> Dataset:
        """Replace every sample by the samples that `fn(x)` yields.

        The dataset then has no positions.

        Args:
            fn: function from a sample to any number of samples.

        Raises:
            ConfigError: if `fn` is not callable.

        >>> import penstock as ps
        >>> list(ps.from_sequence(["a b", "c"]).flat_map(str.split))
        ['a', 'b', 'c']
        """
        return self._apply(FlatMap, fn)

    def with_source(self, fn: Callable[[Any, str, int, int], Any] | None = None) -> Dataset:
        """Add the provenance of every sample: `__source__`, `__epoch__` and `__index__`.

        Args:
            fn: function `fn(x, source, epoch, index)` that returns the sample. Default: add the
                three keys to a mapping.

        Raises:
            ConfigError: if `fn` is not callable; while reading, if a sample is no mapping and `fn`
                is not given.

        >>> import penstock as ps
        >>> ps.from_sequence([{"x": 1}], name="wiki").with_source()[0]
        {'x': 1, '__source__': 'wiki', '__epoch__': 0, '__index__': 0}
        """
        return self._apply(WithSource, fn or _add_source)

    def pipe(
        self, fn: Callable[Concatenate[Dataset, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call `fn(ds, ...)`, so that custom steps fit into a chain of methods.

        Args:
            fn: function of a dataset.
            *args: positional arguments after the dataset.
            **kwargs: keyword arguments.

        Returns:
            The result of `fn`.

        Raises:
            ConfigError: if `fn` is not callable.

        >>> import penstock as ps
        >>> list(ps.from_sequence(range(4)).pipe(lambda ds: ds.limit(2)))
        [0, 1]
        """
        if not callable(fn):
            raise ConfigError(f"pipe({fn!r}): give a function of the dataset")
        return fn(self, *args, **kwargs)

    def seed(self, seed: int) -> Dataset:
        """Set the seed of all random steps, earlier and later, that have none of their own.

        Args:
            seed: any integer; neighbouring seeds give unrelated orders.

        Raises:
            ConfigError: if `seed` is no integer.

        >>> import penstock as ps
        >>> a, b = (ps.from_sequence(range(50)).shuffle().seed(s) for s in (1, 2))
        >>> list(a) == list(b)
        False
        """
        seed = check_int(seed, "seed({})")
        return Dataset(self.tree.seeded(seed), seed)

    # ------------------------------------------------------------ groups

    def batch(
        self,
        n: int | None = None,
        drop_remainder: bool = False,
        collate: Callable[[list[Any]], Any] | None = None,
        *,
        global_batch_size: int | Schedule | None = None,
    ) -> Dataset:
        """Batch `n` neighbours by stacking them; the last batch of a pass may be short.

        With `global_batch_size` instead of `n`, each rank of a loader builds batches of
        `global_batch_size / world_size` rows. Steps are then the same on any number of ranks. A
        short last step is dropped, also on one rank, unless `Loader(remainder=)` says otherwise.
        Without ranks, in `iter(ds)` and the plan, an item is the whole global batch.

        `collate=list` keeps the samples as they are. After `read(rows="columns")` other functions
        receive columns.

        Args:
            n: samples in a batch.
            drop_remainder: whether to drop the last, short batch of a pass, for equal shapes.
            collate: function from a list of samples to one item. The default stacks numbers and
                arrays, also inside mappings and tuples, and keeps strings in lists.
            global_batch_size: samples in a batch of all ranks together; replaces `n`. A `Schedule`
                of numbers changes it at global steps, or at the tokens that packed rows have room
                for; only a `Loader` reads such batches, of an endless indexed dataset.

        Raises:
            ConfigError: if a size is below 1, if not exactly one size is given, or at a second
                `global_batch_size`.
            DataError: while reading, if samples cannot be stacked.

        >>> import penstock as ps
        >>> ps.from_sequence([{"x": i} for i in range(3)]).batch(2)[0]
        {'x': array([0, 1])}
        >>> ds = ps.from_sequence(range(8)).batch(global_batch_size=4)
        >>> [len(ps.Loader(ds, rank=0, world_size=ranks)) for ranks in (1, 2, 4)]
        [2, 2, 2]
        """
        if (n is None) == (global_batch_size is None):
            raise ConfigError(
                "batch: give either n, the samples of a batch, or global_batch_size, the samples "
                "of all ranks together"
            )
        over_ranks = n is None
        if rows_by_step(self.tree):
            raise ConfigError(
                "batch: the batches of batch(global_batch_size=Schedule(...)) are the steps of a "
                "run; leave out this batch, or put it first"
            )
        if over_ranks and shares_batches(self.tree):
            raise ConfigError(
                "batch(global_batch_size=...): the dataset has global batches already; leave out "
                "one of the two"
            )
        by_step: RowsByStep | None = None
        if isinstance(global_batch_size, Schedule):
            by_step = plan_batches(self.tree, global_batch_size)
            n = check_int(by_step[0][1], "batch(global_batch_size={})", 1, BATCH)
        elif n is None:
            n = check_int(global_batch_size, "batch(global_batch_size={})", 1, BATCH)
        else:
            n = check_int(n, "batch({})", 1, BATCH)
        stack = None if collate is None else _resolve_collate(collate)
        if (
            stack is not None
            and collate not in (list, tuple)
            and reads_columns(unchanged_sources(self.tree), "batch")
        ):
            stack = Collated(stack, to_columns)
        size = BatchSize(n, drop_remainder, over_ranks, by_step)
        return self._with(make_batches(self.tree, size, stack))

    def rebatch(self, n: int, drop_remainder: bool = False) -> Dataset:
        """Regroup the rows of batches into batches of `n` rows.

        Args:
            n: rows in a batch, along the first axis.
            drop_remainder: whether to drop the last, short batch of a pass.

        Raises:
            ConfigError: if `n` is below 1.

        >>> import penstock as ps, numpy as np
        >>> batches = ps.from_sequence([np.arange(3), np.arange(3, 8)]).rebatch(4)
        >>> [b.tolist() for b in batches]
        [[0, 1, 2, 3], [4, 5, 6, 7]]
        """
        n = check_int(n, "rebatch({})", 1, BATCH)
        return self._with(
            Map(Group(self.tree, Rebatch(n, drop_remainder), Sizer(leading_size)), join_parts)
        )

    def shuffle_buffer(
        self, n: int, seed: int | None = None, *, name: str | None = None
    ) -> Dataset:
        """Shuffle a stream: draw each sample at random from a buffer of the next `n`.

        For datasets without random access; prefer `shuffle()` for indexed ones.

        Args:
            n: samples in the buffer. A larger buffer mixes better, needs more memory, and is read
                again at a resume.
            seed: seed of this step. Default: the seed of `.seed()` or of the mixture, else 0.
            name: name that keys the randomness of this step. Unnamed steps are keyed by their
                number, which changes when random steps are added or removed before them.

        Raises:
            ConfigError: if `n` is below 1.

        >>> import penstock as ps
        >>> sorted(ps.from_sequence(range(20)).filter(bool).shuffle_buffer(5)) == list(range(1, 20))
        True
        """
        name = self._step_name("shuffle_buffer", name)
        return self._fold(ShuffleBuffer(n), _one, _only, self._seed_of(seed), name)

    def bucket_by_length(
        self,
        bounds: Iterable[int],
        n: int,
        size: Callable[[Any], int] = len,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> Dataset:
        """Group `n` samples of similar length, so that batches need little padding.

        Args:
            bounds: ascending sizes that separate the buckets; the first bucket is below the first
                bound, the last one starts at the last bound.
            n: samples in a group.
            size: size of a sample, such as its number of tokens. `len` reads no sample if the
                source knows its lengths.
            collate: function from a list of samples to one item. The default stacks numbers and
                arrays, also inside mappings and tuples, and keeps strings in lists.

        Raises:
            ConfigError: if the bounds do not ascend, or if `n` is below 1.

        >>> import penstock as ps
        >>> groups = ps.from_sequence(["a", "bbbb", "c", "dddd"]).bucket_by_length([3], 2, collate=list)
        >>> list(groups)
        [['a', 'c'], ['bbbb', 'dddd']]
        """
        if not isinstance(bounds, Iterable) or getattr(bounds, "ndim", 1) == 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"bucket_by_length({bounds!r}): bounds must be ascending sizes such as (64, 256)"
            )
        return self._fold(BucketByLength(tuple(bounds), n), size, _resolve_collate(collate))

    def batch_by_tokens(
        self,
        max_tokens: int,
        size: Callable[[Any], int] = len,
        padded: bool = False,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> Dataset:
        """Group neighbours that have at most `max_tokens` tokens together.

        Args:
            max_tokens: maximum number of tokens in a group; a larger sample is an error.
            size: size of a sample, such as its number of tokens. `len` reads no sample if the
                source knows its lengths.
            padded: whether every sample counts as the longest of its group, as after padding.
            collate: function from a list of samples to one item. The default stacks numbers and
                arrays, also inside mappings and tuples, and keeps strings in lists.

        Raises:
            ConfigError: if `max_tokens` is below 1.
            DataError: while reading, if a sample is too large.

        >>> import penstock as ps
        >>> batches = ps.from_sequence(["aa", "b", "ccc"]).batch_by_tokens(3, collate=list)
        >>> list(batches)
        [['aa', 'b'], ['ccc']]
        """
        return self._fold(BatchByTokens(max_tokens, padded), size, _resolve_collate(collate))

    def pack(
        self,
        length: int | Schedule,
        method: Method = "concat_split",
        *,
        long: Long | None = None,
        max_segments: int | None = None,
        features: Sequence[str] | None = None,
        unpacked: Sequence[str] = (),
        pad: float | dict[str, float] = 0,
        bos: int | dict[str, int] | None = None,
        eos: int | dict[str, int] | None = None,
        dtype: DType | dict[str, DType] = None,
        open_rows: int | None = None,
        window: int | None = None,
        overflow: Overflow | None = None,
        rows: int | None = None,
        pad_to_multiple: int = 1,
        group_by: str | None = None,
        provenance: bool = False,
        untrained: Untrained = "keep",
        name: str | None = None,
    ) -> Dataset:
        """Pack documents into rows of exactly `length` tokens.

        A row is a mapping of the features with `segment_ids` and `positions` (int32[length]).
        `concat_split` splits documents at the end of each row; `first_fit` and `best_fit` keep
        documents whole. If the source knows its lengths (`from_tokens`, `read(lengths=...)`), rows
        are planned from the lengths, and the dataset stays indexed. With `concat_split` and
        `best_fit` this holds for endless datasets too, and no row depends on earlier rows.

        Args:
            length: tokens in a row; or, for `concat_split` over known lengths, a `Schedule` of numbers
                by steps or tokens. Each length begins with a global step; only `map`, `limit` and
                `batch` may follow.
            method: "concat_split"; "first_fit", which fills the first open row with room; or
                "best_fit", which fills the fullest one, so rows stay open longer.
            long: handling of documents over `length` by `first_fit` and `best_fit`: "split" (the
                default), "truncate" or "error". Not for `overflow="crop"`, which crops them.
            max_segments: maximum number of documents in a row.
            features: features to pack; the first one counts the tokens. Default: all.
            unpacked: features collected in a list, one entry per document.
            pad: padding value, or {feature: value}. Give labels the value that the loss ignores,
                often -100.
            bos: token before every document; or {feature: value}.
            eos: token after every document; or {feature: value}. Both count as tokens.
            dtype: dtype of the rows, or {feature: dtype}. Default: int32 for vectors of integers,
                whatever the sources store; other features keep their dtype.
            open_rows: number of rows filled at a time. Default: 64 for `first_fit`, 4 for
                `best_fit`.
            window: number of documents that `best_fit` places together. Default: 1,000, or 4,000
                with `overflow="crop"`.
            overflow: for `best_fit` over known lengths. With "split", it packs `rows` rows at a
                time, and splits the rare document that fits into none of them. With "never", it
                keeps all documents whole, and plans a pass at a time. With "crop", every row is full
                and begins with a document: the document that fills a row loses its end, and
                lengths need not be known. The default is "never" with
                several `features`, `open_rows`, `window` or `max_segments`, else "split".
            rows: number of rows packed together, see `overflow`. Default: 256, or 1,024 for rows
                of 8,192 tokens or more.
            pad_to_multiple: pad each document in a row to a multiple of this, for context
                parallelism (in Megatron: twice the ranks that share a row). The padding counts as
                tokens of the document. It must divide `length`.
            group_by: key (text or number) of documents. Documents with different values never share
                a row; "__source__" separates sources. Rows of rare values wait for more documents.
                With known lengths, "__source__" is planned in windows, and each window has one
                partial row per source (`rows` is then at least 64 per source, also for
                `concat_split`).
            provenance: add `source_ids` (int16[length]), the index in `ds.sources` of the source of
                each token, -1 in padding; with `max_segments` also `segment_sources`
                (int16[max_segments]), the source of each document, padded with -1.
            untrained: "keep" or "skip" documents in which no token carries loss, by their features
                `loss_mask` or `labels`: such as chats whose answer lies behind `long="truncate"`.
                To skip them over known lengths, the masks of a source are added up once, and
                stored as its lengths are.
            name: name that keys the randomness of this step. Unnamed steps are keyed by their
                number, which changes when random steps are added or removed before them.

        Raises:
            ConfigError: if options are invalid, or unused by the method, or if the dtype cannot
                hold the ids of a source in memory.
            DataError: while reading, if a document cannot be packed, or if the dtype cannot hold an
                id.

        >>> import penstock as ps
        >>> rows = ps.from_sequence([[1, 2, 3], [4, 5, 6]]).pack(4)
        >>> {name: column.tolist() for name, column in next(iter(rows)).items()}
        {'tokens': [1, 2, 3, 4], 'segment_ids': [1, 1, 1, 2], 'positions': [0, 1, 2, 0]}
        """
        row = features, unpacked, pad, bos, eos, dtype
        plan = make_length_plan(length) if isinstance(length, Schedule) else None
        if long is not None and overflow == "crop":
            raise make_crop_error("long")
        packing = Packing(
            plan.points[-1][1] if plan else cast("int", length),
            method,
            long or "split",
            max_segments,
            *row,
            open_rows,
            window,
            overflow,
            rows,
            pad_to_multiple,
            group_by,
            provenance,
            untrained,
        )
        fold = packing.fold() if plan is None else packing.plan_fold(plan)
        require_ids_fit(self.tree, packing.token_dtype, f"pack({packing.length})")
        name = self._step_name("pack", name)

        sizer = packing.sizer
        if untrained == "skip":
            from .text.untrained import UntrainedDocuments

            sizer = replace(sizer, untrained=UntrainedDocuments(packing))

        def pack(documents: Step) -> Step:
            groups = Group(documents, fold, sizer, name=name)
            if plan is not None:
                groups.require_cuts()
            return Map(groups.with_seed(self._seed), packing)

        return self._with(pack_each_source(self.tree, pack))

    def pack_features(
        self,
        lengths: Mapping[str, int],
        method: Method = "concat_split",
        *,
        max_segments: int | None = None,
        unpacked: Sequence[str] = (),
        pad: float | dict[str, float] = 0,
        align: int | dict[str, int] = 1,
        open_rows: int | None = None,
        dtype: DType | dict[str, DType] = None,
    ) -> Dataset:
        """Pack documents whose features differ in length: inputs and targets, tokens and patches.

        A row has every feature, with `<feature>_segment_ids` (from 1) and `<feature>_positions`
        (from 0 in every piece), both int32. `concat_split` concatenates documents until a feature
        of the row is full, and continues in the next row. `first_fit` and `best_fit` keep documents
        whole; a document that fits into no open row closes all of them. For features that are
        aligned token by token use `pack`.

        Args:
            lengths: feature -> number of its entries in a row, for the features to pack.
            method: "concat_split", "first_fit" or "best_fit".
            max_segments: maximum number of documents in a row.
            unpacked: features collected in a list, one entry per document.
            pad: padding value; or {feature: value}, with 0 for the rest.
            align: alignment of the first entry of every document; or {feature: number}, with 1 for
                the rest.
            open_rows: number of rows filled at a time. Default: 64.
            dtype: dtype of the rows, or {feature: dtype}, as for `pack`.

        Raises:
            ConfigError: if options are invalid, or unused by the method.
            DataError: while reading, if a document lacks a feature, has other features, or is
                longer than a row and must stay whole.

        >>> import penstock as ps
        >>> pairs = ps.from_sequence([{"ask": [1, 2], "say": [3]}, {"ask": [4], "say": [5, 6]}])
        >>> [row] = pairs.pack_features({"ask": 4, "say": 3}, "first_fit")
        >>> row["ask"].tolist(), row["say"].tolist(), row["say_segment_ids"].tolist()
        ([1, 2, 4, 0], [3, 5, 6], [1, 2, 2])
        """
        from .text.feature_rows import build_feature_packing

        fold, rows = build_feature_packing(
            lengths, method, max_segments, unpacked, pad, align, open_rows, dtype
        )
        return self._with(
            pack_each_source(self.tree, lambda documents: Map(Group(documents, fold), rows))
        )

    def fold(
        self,
        fold: Fold,
        size: Callable[[Any], int] = len,
        build: Callable[[list[Any]], Any] = list,
        *,
        name: str | None = None,
    ) -> Dataset:
        """Group samples by a custom fold, and build an item from each group.

        Args:
            fold: see `penstock.types.Fold`.
            size: size of a sample, such as its number of tokens. `len` reads no sample if the
                source knows its lengths.
            build: function from the samples of a group to an item.
            name: name that keys the randomness of this step. Unnamed steps are keyed by their
                number, which changes when random steps are added or removed before them.

        Raises:
            ConfigError: if `size` or `build` is not callable, or if the fold lacks a method.

        >>> import penstock as ps
        >>> from penstock.engine.grouping import BatchByTokens
        >>> joined = ps.from_sequence(["aa", "b", "ccc"]).fold(BatchByTokens(3), build="".join)
        >>> list(joined)
        ['aab', 'ccc']
        """
        return self._fold(fold, size, build, name=self._step_name("fold", name))

    def _fold(
        self,
        fold: Fold,
        size: Callable[[Any], int],
        build: Callable[[list[Any]], Any],
        seed: int | None = None,
        name: str | None = None,
    ) -> Dataset:
        sizer = Sizer(_require_callable(size, "size"), by_length=size is len)
        groups = Group(
            self.tree, require_protocol(fold, Fold, "fold()"), sizer, seed=seed, name=name
        )
        return self._with(
            Map(groups.with_seed(self._seed), _ValueBuilder(_require_callable(build, "build")))
        )

    # ------------------------------------------------------------ files

    def write(
        self, path: str | Path, format: FileFormat | None = None, overwrite: bool = False
    ) -> list[Path]:
        """Write the first pass into a file or a folder; `ps.read` gives the samples back.

        The ending of the name tells the format: `.parquet`, `.arrow`, `.jsonl` or `.csv`, and lines
        and CSV also with `.gz` or `.zst`. A name without an ending is a folder of shards: Arrow for
        an indexed dataset, else Parquet. A file appears complete or not at all. `ps.write` and
        `penstock.writing.write_rows` have more options for folders, such as workers.

        Tables hold mappings, or arrays of one axis: the column `input_ids`, whose lengths are known
        if it holds integers. Lines hold any JSON value, arrays as lists. CSV holds mappings, and
        keeps no types: a null text is read as an empty one. A table has one schema: if a later
        sample has a new column or a wider type, the dataset is read twice.

        Args:
            path: the file or folder.
            format: "parquet", "arrow", "jsonl", "csv", or "tar" for a folder. Default: by the name.
            overwrite: replace the file, or the shards in the folder. Shards are deleted first.

        Returns:
            The files.

        Raises:
            ConfigError: if the dataset is endless, if the name tells no format, or if the file
                exists.
            DataError: if the format cannot hold a sample.
            StorageError: if the file cannot be written.

        >>> import penstock as ps, tempfile
        >>> ds = ps.from_sequence([{"text": "a"}, {"text": "b"}])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [file] = ds.write(f"{folder}/texts.jsonl.gz")
        ...     file.name, ps.read(file)[1]
        ('texts.jsonl.gz', {'text': 'b'})
        """
        from .writing.one_file import write_dataset

        def read_blocks() -> Iterator[Sequence[Any]]:
            return self._blocks(self._count(None, "write"), 1_024)

        return write_dataset(self, read_blocks, path, format, overwrite)

    # ------------------------------------------------------------ helpers

    def _apply(self, step: type[FunctionStep], fn: Callable[..., Any]) -> Dataset:
        return self._with(step(self.tree, _require_callable(fn, step.METHOD)))

    def _reorder(self, order: Order, seed: int | None, name: str | None) -> Dataset:
        return self._with(Reorder(self.tree, order, seed=self._seed_of(seed), name=name))

    def _step_name(self, step: str, name: str | None) -> str | None:
        """Check the name of a random step: steps of one chain need distinct names."""
        if name is None:
            return None
        if not name:
            raise ConfigError(f"{step}(name=''): a name has at least one character")
        if name in self.tree.step_names:
            raise ConfigError(
                f"{step}(name={name!r}): an earlier step has this name already; give each step its "
                "own name"
            )
        return name

    def _seed_of(self, seed: int | None) -> int | None:
        return self._seed if seed is None else check_int(seed, "seed={}")

    def _require_indexed(self, step: str, remedy: str) -> None:
        self.tree.require_indexed(step, remedy)


# ---------------------------------------------------------------- picklable functions of the steps


class _ValueBuilder:
    """Apply a user's `build` to the values of the items of a group."""

    def __init__(self, build: Callable[[list[Any]], Any]) -> None:
        self.build: Any = build
        self.__qualname__, self.version = name_of(build), getattr(build, "version", None)
        self.provenance, self.document_level = getattr(build, "provenance", False), 1
        self.keeps_loss = getattr(build, "keeps_loss", False)
        self.masks_documents = getattr(build, "masks_documents", False)

    def __call__(self, items: list[Any]) -> Any:
        return self.build(self._values(items))

    def build_with_sources(
        self, groups: Sequence[list[Any]], sources: npt.NDArray[Any]
    ) -> list[Any]:
        """Build items with the sources of their samples."""
        return self.build.build_with_sources([*map(self._values, groups)], sources)

    def _values(self, items: list[Any]) -> list[Any]:
        values = [item.item.value if isinstance(item, Part) else item.value for item in items]
        if not self.masks_documents and any(isinstance(value, Missing) for value in values):
            raise DataError(
                "a document of the group cannot be read, and only rows of pack() can omit a "
                "document; group with pack(), or repair the document"
            )
        return values


class _PairFunction:
    """The function `fn(i, x)` of a pair."""

    def __init__(self, fn: Callable[[int, Any], Any]) -> None:
        self.fn = fn
        self.__qualname__, self.version = name_of(fn), getattr(fn, "version", None)

    def __call__(self, pair: tuple[int, Any]) -> Any:
        return self.fn(*pair)


class _Rename:
    """Renames the keys of mappings."""

    def __init__(self, names: Mapping[str, str]) -> None:
        if not isinstance(names, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"rename({names!r}): give a mapping, {{'old': 'new', ...}}")
        self.names = dict(names)
        self.__qualname__ = (
            f"rename({', '.join(f'{old}={new}' for old, new in sorted(self.names.items()))})"
        )

    def __call__(self, sample: Any) -> dict[str, Any]:
        if not isinstance(sample, Mapping):
            raise ConfigError(
                f"rename: the sample is a {type(sample).__name__}, not a mapping; map it to a dict "
                "first"
            )
        row = cast("Mapping[str, Any]", sample)
        if missing := [old for old in self.names if old not in row]:
            raise ConfigError(
                f"rename: the sample has no key {missing[0]!r}; name one that it has: "
                f"{join_first(row, 8)}"
            )
        out = dict[str, Any]()
        for old, value in row.items():
            new = self.names.get(old, old)
            if new in out:
                raise ConfigError(
                    f"rename: two keys would be {new!r}, and the sample has {join_first(row, 8)}; "
                    "give each a name of its own"
                )
            out[new] = value
        return out


def _add_source(sample: Any, source: str, epoch: int, index: int) -> dict[str, Any]:
    if not isinstance(sample, Mapping):
        raise ConfigError(
            f"with_source() adds keys to mappings, but a sample of {source!r} is a "
            f"{type(sample).__name__}; map it to a dict first"
        )
    return {**sample, "__source__": source, "__epoch__": epoch, "__index__": index}  # pyright: ignore[reportUnknownVariableType]


def _one(sample: Any) -> int:
    return 1


def _only(values: list[Any]) -> Any:
    return values[0]


def _require_callable(fn: Any, step: str) -> Callable[..., Any]:
    if not callable(fn):
        example = ", as in ds.filter(lambda row: row['year'] > 2000)" if step == "filter" else ""
        raise ConfigError(f"{step}({fn!r}): give a function, not a {type(fn).__name__}{example}")
    if isinstance(fn, type) and any("__call__" in vars(base) for base in fn.__mro__[:-1]):
        name = fn.__name__
        raise ConfigError(
            f"{step}({name}) is given a class, whose objects are functions: {name}(...)"
        )
    return fn


def _resolve_collate(fn: Callable[[list[Any]], Any] | None) -> Callable[[list[Any]], Any]:
    return default_collate if fn is None else _require_callable(fn, "collate")


def require_datasets(step: str, arguments: tuple[Any, ...]) -> tuple[Dataset, ...]:
    """Check that the arguments of a step that joins datasets are datasets."""
    if not arguments:
        raise ConfigError(f"{step}(): no dataset; give at least one")
    for argument in arguments:
        if isinstance(argument, list | tuple) and not argument:
            raise ConfigError(f"{step}({argument!r}): give at least one dataset: {step}(*datasets)")
        if isinstance(argument, list | tuple) and any(
            isinstance(element, Dataset) for element in cast("list[Any]", argument)
        ):
            raise ConfigError(
                f"{step}: a list of datasets is no dataset; unpack the list: {step}(*datasets)"
            )
        if isinstance(argument, Mapping) and any(
            isinstance(element, Dataset) for element in cast("Mapping[Any, Any]", argument).values()
        ):
            raise ConfigError(
                f"{step}: a mapping of datasets is no dataset; give its values, "
                f"{step}(*datasets.values()), or mix them by name: ps.mix(datasets)"
            )
        if not isinstance(argument, Dataset):
            raise make_not_dataset_error(step, cast(object, argument))
    return arguments


def _require_one_share(held_out: Any, by: Any) -> None:
    """Raise `ConfigError` for the shares of several parts, as other libraries take them."""
    shares = list[Any]()
    if isinstance(by, int | float):
        shares = [held_out, by]
    elif isinstance(held_out, Mapping):
        shares = list(cast("Mapping[str, Any]", held_out).values())
    elif isinstance(held_out, list | tuple):
        shares = list(cast("Sequence[Any]", held_out))
    if not shares:
        return
    lines = ["train, held_out = ds.split(0.2)"]
    if len(shares) > 2:
        lines = ["train, others = ds.split(0.2)", "valid, test = others.split(0.5)"]
    raise ConfigError(
        f"split({', '.join(map(repr, shares))}): give the share to hold out, for two parts: "
        f"{'; '.join(lines)}"
    )


def _split_by_position(
    node: Step, size: int, held_out: Any, by: SplitBy, seed: int
) -> tuple[Step, Step]:
    """Split an indexed tree by the positions of its samples."""
    check_choice(by, SPLITS, "split(by={})")
    seed = check_int(seed, "split(seed={})")
    share = _parse_share(held_out, size)
    if by == "position":
        remaining = size - ceil(share * size)
        return Reorder(node, Slice(0, remaining)), Reorder(node, Slice(remaining, size - remaining))
    order = Portion(share.numerator, share.denominator, seed)
    return Reorder(node, order.complement()), Reorder(node, order)


def _parse_columns(column: Any, call: str) -> list[str]:
    names = cast("Sequence[Any]", [column] if isinstance(column, str) else column)
    if (
        not isinstance(names, Sequence)  # pyright: ignore[reportUnnecessaryIsInstance]
        or not names
        or not all(isinstance(name, str) for name in names)
    ):
        raise ConfigError(f"{call.format(column)}: give at least one column by its name")
    return list(names)


def _parse_column_share(held_out: Any, column: str | Sequence[str]) -> float:
    """Return the share of values to hold out."""
    if isinstance(held_out, int):
        raise ConfigError(
            f"split({held_out}, column={column!r}): keys cannot be counted beforehand; give a "
            "share, such as '0.5%'"
        )
    return float(parse_fraction(held_out, "split({})"))


def _warn_of_empty_part(train: Dataset, held_out: Dataset, columns: Sequence[str]) -> None:
    """Warn if all values of the columns are on one side, as is likely for few values."""
    if bool(len(train)) == bool(len(held_out)):
        return
    side = "held-out" if len(train) else "training"
    logging.getLogger("penstock").warning(
        "split(column=%r): the %s part is empty, because no hash of a value is on its side, which "
        "is likely for few values; choose the values to hold out, with where= of ps.read or filter",
        columns[0] if len(columns) == 1 else columns,
        side,
    )


def _split_files(node: Step, share: float, columns: Sequence[str]) -> tuple[Step, Step] | None:
    """Split the rows of files by a hash of one column; `None` for anything else."""
    leaf, _ = single_source(node) or (None, ())
    if leaf is None or leaf is not node or len(columns) != 1:
        return None
    source = leaf.source
    halves = source.split_by_hash(columns[0], share) if isinstance(source, FileSource) else None
    if halves is None:
        return None
    return replace(leaf, source=halves[0]), replace(leaf, source=halves[1])


def _parse_share(held_out: Any, size: int) -> Fraction:
    """Return the share to hold out, from a share or a number of samples."""
    if not isinstance(held_out, int):
        return parse_fraction(held_out, "split({})")
    if not 0 < check_int(held_out, "split({})", 1) < size:
        raise ConfigError(
            f"split({held_out}): the dataset has {size} samples; hold out between 1 and {size - 1}"
        )
    return Fraction(held_out, size)


def _list_loss_weights(root: Step) -> tuple[float, ...]:
    """Return the loss weight of each source: the product of those of the inputs on its path."""
    given, sources = dict[tuple[Any, ...], float](), list[tuple[Any, ...]]()
    for step, path in iter_steps(root):
        weights: dict[str, float] = dict(getattr(step, "loss_weights", ()))
        if weights:
            names: Sequence[str] = getattr(step, "names", ())
            places = zip(names, step.child_paths(path), strict=True)
            given |= {place: weights.get(name, 1.0) for name, (_, place) in places}
        sources += [] if step.children else [path]
    return tuple(
        prod(given.get(path[:depth], 1.0) for depth in range(1, len(path) + 1)) for path in sources
    )


def _mix_by_rule(step: str, datasets: tuple[Dataset, ...], rule: Rule) -> Mix:
    datasets = require_datasets(step, datasets)
    return Mix(
        tuple(dataset.tree for dataset in datasets),
        tuple(f"+{i}" for i in range(len(datasets))),
        rule,
    )
