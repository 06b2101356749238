"""The dataset: one public class over the tree, with a method for every step."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, overload

import numpy as np

from .engine.base.contract import fulfilled
from .engine.base.hints import guided, no_dataset
from .engine.base.ints import FAR, places, whole, within_reach
from .engine.base.limits import BATCH
from .engine.base.sized import where_known
from .engine.base.tree import collate as default_collate
from .engine.base.tree import leading
from .engine.graph.batched import Batched, Collated, in_columns
from .engine.graph.build import name_of
from .engine.graph.compiled import Compiled
from .engine.graph.costs import tell_of_shuffle
from .engine.graph.ends import endless
from .engine.graph.functions import OfPair, Renamed
from .engine.graph.halves import SplitBy, keyed, placed
from .engine.graph.indexed import STEP, require_indexed, why_not
from .engine.graph.nodes import (
    Again,
    Batch,
    Each,
    Flow,
    Head,
    Hold,
    Kind,
    Mix,
    Reorder,
    Rest,
    Rule,
    Sizer,
    counter,
    step_names,
)
from .engine.graph.seeds import seeded, with_seed
from .engine.graph.show import length, shown
from .engine.graph.shown import Shown, Shows
from .engine.graph.tail import batched, shares_batches
from .engine.graph.tokens import require_ids_fit
from .engine.grouping import BatchByTokens, BucketByLength, ShuffleBuffer
from .engine.mixing.rules import Chain, Cycle, Turns
from .engine.ops.op import Op
from .engine.orders import (
    BlockShuffle,
    BucketShuffle,
    Gap,
    Pick,
    Repeat,
    RepeatEach,
    Replay,
    Shuffle,
    Slice,
    WindowShuffle,
)
from .engine.packing import (
    DType,
    Long,
    Method,
    Missing,
    Overflow,
    Packing,
    Rebatch,
    feature_packing,
    join_parts,
)
from .engine.plan import Plan
from .engine.runtime.iterator import DatasetIterator
from .engine.streams.step import Failed, cause_of, listed
from .errors import ConfigError, DataError, IndexedError
from .sources.row_files import file_and_row
from .types import Fold, Indices, Ints, Order, Part

P = ParamSpec("P")
R = TypeVar("R")


@guided
class Dataset(Shows):
    """A sequence of samples that can be passed over again and again; every method gives a new one.

    Datasets describe; nothing is read until samples are asked for. An indexed one has `len(ds)`,
    `ds[i]` and slices; any can be iterated. See the page "What every step means" for the exact
    semantics of each step.

    Args:
        flow: the tree; users begin with `ps.read` and its like, which make it.
        seed: the seed of random steps that have none of their own.

    >>> import penstock as ps
    >>> ds = ps.from_sequence(range(6)).map(lambda x: x * x).batch(4, collate=list)
    >>> len(ds), ds[1], list(ds)
    (2, [16, 25], [[0, 1, 4, 9], [16, 25]])
    """

    def __init__(self, flow: Flow, seed: int | None = None) -> None:
        self.flow = flow
        self._seed, self._compiled = seed, Compiled(flow)

    def _shown(self) -> Shown:
        return shown(f"Dataset{length(self._compiled)}", self.flow)

    def __reduce__(self) -> tuple[Any, ...]:
        return Dataset, (self.flow, self._seed)

    def _with(self, flow: Flow) -> Dataset:
        found = Dataset(flow, self._seed)
        found._compiled = Compiled(flow, base=self._compiled)
        return found

    # ------------------------------------------------------------ asking

    @property
    def compiled(self) -> Compiled:
        """The tree with what is worked out of it once, for all loaders, iterators and plans of this
        dataset.

        >>> import penstock as ps
        >>> ps.from_sequence("abc").batch(2).compiled.op.size
        2
        """
        return self._compiled

    @property
    def _op(self) -> Op:
        require_indexed(self.flow, "this", "iterate over the dataset instead")
        return self.compiled.op

    @cached_property
    def _size(self) -> int | None:
        require_indexed(self.flow, "this", "iterate over the dataset instead")
        return self.compiled.size

    @cached_property
    def plan(self) -> Plan[Dataset]:
        """What every position holds, when each sample comes up, what was given by then: answered
        without reading.

        >>> import penstock as ps
        >>> plan = ps.from_sequence(range(1_000), name="numbers").shuffle(seed=1).batch(4).plan
        >>> where = plan.find("numbers", 17)
        >>> 17 in [sample.index for sample in plan.at(where[0])]
        True
        """
        return Plan(self.compiled, self._with)

    @where_known
    def __len__(self) -> int:
        require_indexed(
            self.flow,
            "len()",
            "iterate and count (DataLoader and trainers take "
            "penstock.integrations.torch.IterableDataset(ds))",
        )
        if self._size is None:
            raise IndexedError(
                "len() of an endless dataset; .limit(n) gives it a length (DataLoader and trainers "
                "take "
                "penstock.integrations.torch.IterableDataset(ds))"
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
        place = operator.index(cast("int", index))
        require_indexed(self.flow, f"ds[{place}]", "iterate over the dataset instead")
        self._check(place, place)
        return self._values(np.asarray([place + (self._size or 0) if place < 0 else place]))[0]

    def __getitems__(self, indices: Indices) -> list[Any]:
        """Many samples at once, for torch's DataLoader and whoever else asks so."""
        require_indexed(self.flow, "ds[[...]], ds.__getitems__", "iterate over the dataset instead")
        return listed(self._values(self._places(indices, "ds[{}]")))

    def _values(self, positions: Ints) -> Sequence[Any]:
        rows = self._op.locate(positions, np.zeros_like(positions))
        try:
            return self._op.values(rows)
        except Failed as failure:
            leaf = self.compiled.builder.leaves[failure.leaf]
            cause, file = (
                cause_of(failure, self.compiled.builder.leaves),
                file_and_row(leaf.source, failure.index),
            )
            cause.add_note(
                f"penstock: at index {failure.index} of source {leaf.name} (pass "
                f"{failure.epoch}){file}"
            )
            raise cause from None

    def sample(self, position: int) -> Any:
        """The sample at a position of all passes, end to end: `ds.sample(len(ds))` is the first of
        the second pass.

        Args:
            position: counted from 0, over all passes.

        Raises:
            IndexedError: if a step before has no positions (filter, say).
            IndexError: for a negative position.

        >>> import penstock as ps
        >>> ps.from_sequence("abc").sample(4)
        'b'
        """
        require_indexed(self.flow, f"sample({position})", "iterate over the dataset instead")
        position = operator.index(position)
        within_reach(position)
        if position < 0 or self._size == 0:
            raise IndexError(
                f"position {position} of a dataset of {self._size}: positions count from 0"
            )
        return self._values(np.asarray([position]))[0]

    def _places(self, indices: Indices, where: str) -> Ints:
        """The positions that were named; negative ones count from the end."""
        found = places(indices, where)
        if len(found):
            self._check(int(found.min()), int(found.max()))
        return np.where(found < 0, found + (self._size or 0), found)

    def _check(self, least: int, most: int) -> None:
        """Refuse indices that the dataset does not have."""
        size = self._size
        if size is None:
            within_reach(most)
            if least < 0:
                raise IndexError(f"index {least}: an endless dataset has no end to count from")
        elif least < -size or most >= size:
            raise IndexError(f"index {most if most >= size else least} of a dataset of {size}")

    def __iter__(self) -> DatasetIterator:
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
        """Every sample once a pass, in an order that is new in every pass; O(1) memory, random
        access.

        Args:
            seed: the seed of this step; without it that of `.seed()` or of the mixture, else 0.
            block: (rows, window): blocks of `rows` neighbours are shuffled, then the rows inside
                windows of `window` blocks. Reads stay local, the order is less random.
            window: only every `window` neighbours are shuffled among themselves; needs no random
                access.
            buckets: rows are dealt once, at random, into buckets of so many; a pass shuffles the
                buckets and the rows of each. To pack 10^8 documents and more: lengths are added up
                once, not anew for each pass.
            name: for the randomness of this step: named steps are not counted, so steps may come
                and go beside it.

        Raises:
            ConfigError: for an endless dataset, two of block, window and buckets, or numbers below
                1.
            IndexedError: after a step without positions, but for `window`.

        >>> import penstock as ps
        >>> ds = ps.from_sequence(range(100)).shuffle(seed=7)
        >>> sorted(ds) == list(range(100)), list(ds) == list(ds)
        (True, True)
        """
        name = self._step_name("shuffle", name)
        if sum(given is not None for given in (block, window, buckets)) > 1:
            raise ConfigError(
                f"shuffle(block={block}, window={window}, buckets={buckets}): give one of them"
            )
        if window is not None:
            window = whole(window, "shuffle(window={})", 1, FAR)
            if why_not(self.flow) is not None:
                return self._fold(WindowShuffle(window), _one, _only, self._own(seed), name)
            return self._with(Reorder(self.flow, WindowShuffle(window), self._own(seed), name))
        self._ordered("shuffle()", "use .shuffle_buffer(n), or shuffle before that step")
        if self._size is None:
            raise ConfigError(
                "shuffle(): the dataset is endless; shuffle it before .repeat() or mix"
            )
        if buckets is not None:
            order = BucketShuffle(whole(buckets, "shuffle(buckets={})", 1, FAR))
            return self._with(Reorder(self.flow, order, self._own(seed), name))
        if block is None:
            tell_of_shuffle(self.flow)
            return self._with(Reorder(self.flow, Shuffle(), self._own(seed), name))
        if not isinstance(block, tuple | list) or len(block) != 2:  # pyright: ignore[reportUnnecessaryComparison, reportUnnecessaryIsInstance]
            raise ConfigError(f"shuffle(block={block!r}): a pair, (rows, window)")
        rows, window = (
            whole(number, f"{{}} in shuffle(block={block})", 1, FAR) for number in block
        )
        whole(rows * window, f"shuffle(block={block}): {{}} rows", 1, FAR)
        return self._with(Reorder(self.flow, BlockShuffle(rows, window), self._own(seed), name))

    def reorder(self, order: Order, seed: int | None = None, *, name: str | None = None) -> Dataset:
        """Another order, by an `Order` of your own: a pure map from positions to positions of this
        dataset.

        The dataset must be indexed, and stays so. `order` is an object with `size`, `down`, `up`
        and `describe`, see `penstock.types.Order`; `penstock.testing.assert_order` checks it.
        `seed` goes into the `key` that its methods are given; without one it is that of `.seed()`
        or `mix`, else 0. Raises `ConfigError` where a method is missing, `IndexedError` where the
        dataset can only be iterated.

        Args:
            order: see `penstock.types.Order`.
            seed: the seed of this step; without it that of `.seed()` or of the mixture, else 0.
            name: for the randomness of this step: named steps are not counted, so steps may come
                and go beside it.

        Raises:
            ConfigError: if it lacks a method.
            IndexedError: after a step without positions.

        >>> import numpy as np, penstock as ps
        >>> class Backwards:
        ...     def size(self, below):
        ...         return below
        ...     def down(self, positions, below, key):
        ...         epoch, place = np.divmod(positions, below)
        ...         return epoch * below + below - 1 - place, None
        ...     def up(self, positions, below, key):
        ...         return self.down(positions, below, key)[0]
        ...     def describe(self):
        ...         return {"order": "backwards"}
        >>> "".join(ps.from_sequence("abc").reorder(Backwards()))
        'cba'
        """
        self._ordered("reorder()", "reorder before that step")
        name = self._step_name("reorder", name)
        return self._with(
            Reorder(self.flow, fulfilled(order, Order, "reorder()"), self._own(seed), name)
        )

    def repeat(self, epochs: int | None = None, reshuffle: bool = True) -> Dataset:
        """`epochs` passes as one (endless without a number), reshuffled each time or in the order
        of the first.

        Args:
            epochs: how many passes; endless without a number.
            reshuffle: False keeps the order of the first pass in every one.

        Raises:
            ConfigError: if the dataset is endless already, or empty and would never end.

        >>> import penstock as ps
        >>> list(ps.from_sequence("ab").repeat(2))
        ['a', 'b', 'a', 'b']
        """
        epochs = None if epochs is None else whole(epochs, "repeat({})", 0)
        if why_not(self.flow) is not None:
            if not reshuffle:
                require_indexed(
                    self.flow,
                    "repeat(reshuffle=False)",
                    "repeat with reshuffling, or before that step",
                )
            if endless(self.flow):
                raise ConfigError("repeat(): the dataset is endless already")
            return self.limit(0) if epochs == 0 else self._with(Again(self.flow, epochs))
        if self._size is None:
            raise ConfigError("repeat(): the dataset is endless already")
        if self._size == 0 and epochs is None:
            raise ConfigError("repeat(): the dataset is empty, so it cannot be repeated for ever")
        within_reach(self._size, epochs or 1)
        return self._with(Reorder(self.flow, Repeat(epochs) if reshuffle else Replay(epochs)))

    def repeat_each(self, n: int) -> Dataset:
        """Each sample `n` times, adjacent: a group of rollouts for each prompt, say. Random steps
        do the same to all.

        Args:
            n: how many times.

        Raises:
            IndexedError: after a step without positions.

        >>> import penstock as ps
        >>> list(ps.from_sequence("ab").repeat_each(3))
        ['a', 'a', 'a', 'b', 'b', 'b']
        """
        n = whole(n, "repeat_each({})", 1)
        require_indexed(
            self.flow,
            "repeat_each()",
            "use .flat_map(lambda sample: [sample] * n), or put it before that step",
        )
        within_reach(self._size or 0, n)
        return self._with(Reorder(self.flow, RepeatEach(n)))

    def slice(self, *bounds: int | None) -> Dataset:
        """`ds.slice(start, stop, step)` is `ds[start:stop:step]`: a fixed set of samples, the same
        in every pass.

        Args:
            *bounds: stop; start and stop; or start, stop and step, as of a list.

        Raises:
            ConfigError: for an endless dataset without a stop.
            IndexedError: after a step without positions.

        >>> import penstock as ps
        >>> list(ps.from_sequence(range(10)).slice(2, 9, 3))
        [2, 5, 8]
        """
        return self._sliced(slice(*bounds))

    def _sliced(self, bounds: slice) -> Dataset:
        self._ordered("a slice", "use .limit(n), or slice before that step")
        size = self._size
        if size is None:
            start, stop, step = bounds.start or 0, bounds.stop, bounds.step or 1
            if stop is None or stop < 0 or start < 0 or step < 1:
                raise ConfigError(
                    "a slice of an endless dataset needs a stop and counts forwards from the start"
                )
            within_reach(max(start, stop))
            found = range(start, stop, step)
        else:
            found = range(size)[bounds]
        return self._fixed(Slice(found.start, len(found), found.step))

    def _fixed(self, order: Slice | Pick) -> Dataset:
        return self._with(Reorder(self._settled, order))

    @property
    def _settled(self) -> Flow:
        # A fixed set must not depend on where it is put, so seeds are settled now.
        return seeded(self.flow, self._seed or 0)

    def split(
        self,
        held_out: str | float,
        by: SplitBy = "hash",
        *,
        column: str | None = None,
        seed: int = 0,
    ) -> tuple[Dataset, Dataset]:
        """Two datasets that never share a sample: the larger part to train on, and the part that is
        held out.

        By a hash of where samples lie, any prefix has its share, and what more data adds changes
        nothing for the data that was there. With `column`, rows of files go by a hash of what that
        column holds, so that equal values (the pages of a site, the copies of a text, in other
        sources too) stay on one side; shares are then those of values, about. Both are fixed sets,
        the same in every pass; shuffle them afterwards.

        Args:
            held_out: a share, "0.5%" or 0.005; or a whole number of samples.
            by: "hash", or "position": the last ones are held out.
            column: the column whose values decide, of what `ps.read` just gave.
            seed: another one holds out other samples; not with `column`.

        Raises:
            ConfigError: for what is no share, an endless dataset, and a column of what is no file.
            IndexedError: after a step without positions.

        >>> import penstock as ps
        >>> train, held_out = ps.from_sequence(range(1_000)).split("1%")
        >>> len(train), len(held_out), sorted([*train, *held_out]) == list(range(1_000))
        (990, 10, True)
        """
        if column is not None:
            if by != "hash" or seed:
                raise ConfigError(
                    "split(column=...): its values decide alone; leave out by= and seed="
                )
            halves = keyed(self.flow, held_out, column)
        else:
            self._ordered("split()", "split before that step")
            if self._size is None:
                raise ConfigError(
                    "split(): the dataset is endless; split it before .repeat() or mix"
                )
            halves = placed(self._settled, self._size, held_out, by, seed)
        kept, held = map(self._with, halves)
        return kept, held

    def select(self, indices: Indices) -> Dataset:
        """These samples, in this order: a fixed set, the same in every pass. Eight bytes of memory
        for each.

        `indices` is a list, a range or an array of whole numbers; negative ones count from the end,
        and one that comes twice gives its sample twice. Bools are refused (`np.flatnonzero(mask)`
        gives the indices), and so are datasets without random access. For neighbours a slice is
        smaller; where the samples tell who stays, `filter` needs no list.

        Args:
            indices: the rows, in the order in which they are to come; negative ones count from the
                end.

        Raises:
            IndexedError: after a step without positions.
            IndexError: for a row that is not there.

        >>> import penstock as ps
        >>> list(ps.from_sequence("abcd").select([3, 1, -1]))
        ['d', 'b', 'd']
        """
        self._ordered("select()", "use .filter(fn), or select before that step")
        return self._fixed(Pick(self._places(indices, "select({})")))

    def shard(self, index: int, count: int) -> Dataset:
        """The `index`-th of `count` disjoint shares: `ds[index::count]`. (A `Loader` shares out
        between ranks by itself.)

        Args:
            index: which share, 0 to count - 1.
            count: how many shares there are.

        Raises:
            ConfigError: for an index out of range.

        >>> import penstock as ps
        >>> [list(ps.from_sequence(range(5)).shard(i, 2)) for i in range(2)]
        [[0, 2, 4], [1, 3]]
        """
        index, count = whole(index, "shard({}, ...)"), whole(count, "shard(..., {})", 0, FAR)
        if not 0 <= index < count:
            raise ConfigError(f"shard({index}, {count}): the index is 0 to count - 1")
        return self._sliced(slice(index, None, count))

    def limit(self, n: int) -> Dataset:
        """The first `n` samples of each pass; a slice where the dataset is indexed.

        Args:
            n: at most so many samples.

        Raises:
            ConfigError: for what is no whole number of at least 0.

        >>> import penstock as ps
        >>> list(ps.from_sequence(range(9)).filter(lambda x: x % 2).limit(3))
        [1, 3, 5]
        """
        n = whole(n, "limit({})", 0)
        if why_not(self.flow) is None:
            return self._sliced(slice(0, n))
        return self._with(Head(self.flow, n))

    def skip(self, n: int) -> Dataset:
        """All but the first `n` samples of each pass; a slice where the dataset is indexed and
        ends.

        With `limit(n)` it splits a dataset in two. Of a stream the first samples are read and
        dropped, and every rank
        goes through the whole of it: skip before what is costly.

        Args:
            n: so many samples are left out at the beginning of each pass.

        Raises:
            ConfigError: for what is no whole number of at least 0.

        >>> import penstock as ps
        >>> list(ps.from_sequence(range(5)).skip(3))
        [3, 4]
        """
        n = whole(n, "skip({})", 0)
        if why_not(self.flow) is not None:
            return self._with(Rest(self.flow, n) if n else self.flow)
        if self._size is not None:
            return self._sliced(slice(n, None))
        within_reach(n)
        return self._with(Reorder(self.flow, Gap(0, n)))

    def concat(self, *others: Dataset) -> Dataset:
        """One dataset after the other.

        Args:
            *others: the datasets that follow, in this order.

        Raises:
            ConfigError: for what is no dataset, and if one that is not the last is endless.

        >>> import penstock as ps
        >>> list(ps.from_sequence("ab").concat(ps.from_sequence("c")))
        ['a', 'b', 'c']
        """
        return self._with(_woven("concat", (self, *others), Chain()))

    def interleave(self, *others: Dataset, width: int = 16) -> Dataset:
        """One sample of each of `width` datasets in turn; where one ends, its turn falls out, and
        from the next round on the next dataset that was not begun has its place.

        Args:
            *others: the datasets that follow.
            width: how many datasets are open at a time; more of them mix better and hold more files
                open.

        Raises:
            ConfigError: for what is no dataset, or a width below 1.

        >>> import penstock as ps
        >>> a, b, c = (ps.from_sequence(letters) for letters in ("aaa", "b", "cc"))
        >>> "".join(a.interleave(b, c, width=2))
        'abaacc'
        """
        woven = _woven(
            "interleave", (self, *others), Cycle(whole(width, "interleave(width={})", 1))
        )
        return self._with(replace(woven, names=tuple(str(i) for i in range(len(woven.flows)))))

    def zip(self, *others: Dataset) -> Dataset:
        """Tuples of one sample of each, as many as the shortest has.

        Args:
            *others: the datasets whose samples stand beside those of this one.

        Raises:
            ConfigError: for what is no dataset.

        >>> import penstock as ps
        >>> list(ps.from_sequence("ab").zip(ps.from_sequence(range(9))))
        [('a', 0), ('b', 1)]
        """
        flows = (self, *others)
        groups = Hold(_woven("zip", flows, Turns()), Batch(len(flows), drop_remainder=True))
        return self._with(Each(groups, "map", tuple))

    # ------------------------------------------------------------ functions

    def map(
        self, fn: Callable[[Any], Any], may_skip: bool = False, batched: int | None = None
    ) -> Dataset:
        """`fn(x)` for every sample. With `may_skip`, `fn` drops a sample by raising `ps.Skip`; like
        a filter, such a step is not indexed.

        With `batched=n`, `fn` is given a list of up to `n` samples, or their columns
        (`read(rows="columns")`: a mapping of arrays and lists, `.arrow` the Arrow record batch),
        and returns a list of as many results, or columns: a mapping of lists or arrays, of which
        each sample gets its own mapping. Which samples come together is not promised, and may be a
        single one, so a result may not depend on its neighbours; for fixed groups use `.batch(n,
        collate=list).map(fn)`. If `fn` raises, its samples are tried one by one, to find out whose
        fault it is. Another number of results is a `ConfigError`.

        Args:
            fn: a pure function of a sample: the same input, the same output, in any thread.
            may_skip: whether it may raise `ps.Skip`; the dataset then has no positions.
            batched: how many samples it is given at most, where it takes a list.

        Raises:
            ConfigError: for what is no function.

        >>> import penstock as ps
        >>> list(ps.from_sequence([1, 2]).map(str))
        ['1', '2']
        >>> ds = ps.from_sequence(["a", "bcd"])
        >>> ds = ds.map(lambda texts: {"text": texts, "size": [len(text) for text in texts]}, batched=2)
        >>> ds[1]
        {'text': 'bcd', 'size': 3}
        """
        if batched is None:
            return self._each("may_skip" if may_skip else "map", fn)
        if may_skip:
            raise ConfigError(
                "map(batched=..., may_skip=True): a list of results drops none; filter before or "
                "after it"
            )
        many = Batched(
            _function(fn, "map"), whole(batched, "map(batched={})", 1), in_columns(self.flow, "map")
        )
        return self._each("map", many)

    def rename(self, names: Mapping[str, str]) -> Dataset:
        """Samples (mappings) under other keys, `{"old": "new"}`; what is not named stays as it is.

        A key that is not there, or that would be there twice, is a `ConfigError` at the first
        sample, which names the keys that it has.

        Args:
            names: old key -> new key.

        Raises:
            ConfigError: for keys that are not there, or would be there twice.

        >>> import penstock as ps
        >>> ps.from_sequence([{"content": "a", "id": 7}]).rename({"content": "text"})[0]
        {'text': 'a', 'id': 7}
        """
        return self._each("map", Renamed(names))

    def map_with_index(self, fn: Callable[[int, Any], Any]) -> Dataset:
        """`fn(i, x)` for the i-th sample of the pass.

        Args:
            fn: a function of the number in the pass, from 0 on, and the sample.

        Raises:
            ConfigError: for what is no function.

        >>> import penstock as ps
        >>> list(ps.from_sequence("ab").map_with_index(lambda i, x: f"{i}{x}"))
        ['0a', '1b']
        """
        if why_not(self.flow) is None:
            return self._each("index", fn)
        return Dataset(counter()).zip(self).map(OfPair(_function(fn, "map_with_index")))

    def random_map(
        self,
        fn: Callable[[Any, np.random.Generator], Any],
        seed: int | None = None,
        *,
        name: str | None = None,
    ) -> Dataset:
        """`fn(x, rng)`, with a generator keyed by the sample: the same for any workers and after
        any resume, new in every pass.

        Args:
            fn: a function of a sample and its `numpy.random.Generator`.
            seed: the seed of this step; without it that of `.seed()` or of the mixture, else 0.
            name: for the randomness of this step: named steps are not counted, so steps may come
                and go beside it.

        Raises:
            ConfigError: for what is no function.

        >>> import penstock as ps
        >>> ds = ps.from_sequence([0.0] * 3).random_map(lambda x, rng: x + rng.random())
        >>> list(ds) == list(ds), len(set(ds))
        (True, 3)
        """
        return self._each("random", fn, self._own(seed), self._step_name("random_map", name))

    def filter(self, fn: Callable[[Any], Any]) -> Dataset:
        """The samples for which `fn(x)` is true.

        Args:
            fn: whether a sample stays. The dataset then has no positions: it runs in lanes, and has
                no `len`.

        Raises:
            ConfigError: for what is no function.

        >>> import penstock as ps
        >>> list(ps.from_sequence(range(6)).filter(lambda x: x % 3 == 0))
        [0, 3]
        """
        return self._each("filter", fn)

    def flat_map(self, fn: Callable[[Any], Iterable[Any]]) -> Dataset:
        """Everything that `fn(x)` yields.

        Args:
            fn: gives any number of samples for one. The dataset then has no positions.

        Raises:
            ConfigError: for what is no function.

        >>> import penstock as ps
        >>> list(ps.from_sequence(["a b", "c"]).flat_map(str.split))
        ['a', 'b', 'c']
        """
        return self._each("flat", fn)

    def with_source(self, fn: Callable[[Any, str, int, int], Any] | None = None) -> Dataset:
        """Samples (mappings) with `__source__`, `__epoch__` and `__index__` added; or `fn(x,
        source, epoch, index)`.

        Args:
            fn: makes the sample; without it three fields are added.

        Raises:
            ConfigError: for what is no function; while reading, if a sample is no mapping and there
                is no `fn`.

        >>> import penstock as ps
        >>> ps.from_sequence([{"x": 1}], name="wiki").with_source()[0]
        {'x': 1, '__source__': 'wiki', '__epoch__': 0, '__index__': 0}
        """
        return self._each("source", fn or _add_source)

    def pipe(
        self, fn: Callable[Concatenate[Dataset, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """`fn(ds, ...)`: a step of your own.

        Args:
            fn: a function of a dataset.
            *args: given to it after the dataset.
            **kwargs: given to it by name.

        >>> import penstock as ps
        >>> list(ps.from_sequence(range(4)).pipe(lambda ds: ds.limit(2)))
        [0, 1]
        """
        if not callable(fn):
            raise ConfigError(f"pipe({fn!r}): give a function of the dataset")
        return fn(self, *args, **kwargs)

    def seed(self, seed: int) -> Dataset:
        """The seed for all random steps, before and after, that have none of their own.

        Args:
            seed: any whole number; neighbouring seeds are unrelated.

        Raises:
            ConfigError: for what is no whole number.

        >>> import penstock as ps
        >>> a, b = (ps.from_sequence(range(50)).shuffle().seed(s) for s in (1, 2))
        >>> list(a) == list(b)
        False
        """
        seed = whole(seed, "seed({})")
        return Dataset(seeded(self.flow, seed), seed)

    # ------------------------------------------------------------ groups

    def batch(
        self,
        n: int | None = None,
        drop_remainder: bool = False,
        collate: Callable[[list[Any]], Any] | None = None,
        *,
        global_batch_size: int | None = None,
    ) -> Dataset:
        """Groups of `n` neighbours, stacked; the last of a pass is short, or dropped.

        With `global_batch_size` in the place of `n` a loader makes batches of its share: so many
            rows over the number
        of ranks. Steps are then the same on any number of ranks; a short last one is left out on
        one rank too, unless `Loader(remainder=)` says otherwise. Without ranks, in `iter(ds)` and
        the plan, an item is the whole batch.

        `collate=list` leaves the samples as they are; after `read(rows="columns")` other functions
        are given columns.

        Args:
            n: samples in a batch.
            drop_remainder: whether the last, short batch of a pass is left out, for equal shapes.
            collate: makes one item of a list of samples; the default stacks numbers and arrays,
                goes into mappings and tuples, and keeps strings in lists.
            global_batch_size: samples in the batches of all ranks together, in the place of `n`.

        Raises:
            ConfigError: for a size below 1, unless one of both sizes is given, and for a second
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
                "batch: give n, the samples of a batch, or global_batch_size, those of all ranks "
                "together"
            )
        over_ranks = n is None
        if over_ranks and shares_batches(self.flow):
            raise ConfigError(
                "batch(global_batch_size=...): the dataset has batches of all ranks already; leave "
                "out one"
            )
        where, given = (
            ("batch({})", n)
            if n is not None
            else ("batch(global_batch_size={})", global_batch_size)
        )
        n = whole(given, where, 1, BATCH)
        stack = None if collate is None else _collate(collate)
        if stack is not None and collate not in (list, tuple) and in_columns(self.flow, "batch"):
            stack = Collated(stack)
        return self._with(batched(self.flow, Batch(n, drop_remainder, over_ranks), stack))

    def rebatch(self, n: int, drop_remainder: bool = False) -> Dataset:
        """Batches of `n` rows, cut from batches of other sizes.

        Args:
            n: rows in a batch, counted along the first axis.
            drop_remainder: whether the last, short batch of a pass is left out.

        Raises:
            ConfigError: for an `n` below 1.

        >>> import penstock as ps, numpy as np
        >>> batches = ps.from_sequence([np.arange(3), np.arange(3, 8)]).rebatch(4)
        >>> [b.tolist() for b in batches]
        [[0, 1, 2, 3], [4, 5, 6, 7]]
        """
        n = whole(n, "rebatch({})", 1, BATCH)
        return self._with(
            Each(Hold(self.flow, Rebatch(n, drop_remainder), Sizer(leading)), "map", join_parts)
        )

    def shuffle_buffer(
        self, n: int, seed: int | None = None, *, name: str | None = None
    ) -> Dataset:
        """Each sample drawn at random from the next `n`: for datasets without random access. Prefer
        `shuffle()` where it works.

        Args:
            n: samples in the buffer: more of them mix better, take memory, and are read again at a
                resume.
            seed: the seed of this step; without it that of `.seed()` or of the mixture, else 0.
            name: for the randomness of this step: named steps are not counted, so steps may come
                and go beside it.

        Raises:
            ConfigError: for an `n` below 1.

        >>> import penstock as ps
        >>> sorted(ps.from_sequence(range(20)).filter(bool).shuffle_buffer(5)) == list(range(1, 20))
        True
        """
        name = self._step_name("shuffle_buffer", name)
        return self._fold(ShuffleBuffer(n), _one, _only, self._own(seed), name)

    def bucket_by_length(
        self,
        bounds: Iterable[int],
        n: int,
        size: Callable[[Any], int] = len,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> Dataset:
        """Groups of `n` samples whose lengths lie between the same two bounds, so that padding is
        small.

        Args:
            bounds: ascending sizes: one bucket below the first, one from the last on.
            n: samples in a group.
            size: the size of a sample, its tokens say; `len` is known from lengths alone where the
                source has them.
            collate: makes one item of a list of samples; the default stacks numbers and arrays,
                goes into mappings and tuples, and keeps strings in lists.

        Raises:
            ConfigError: for bounds that do not ascend, or an `n` below 1.

        >>> import penstock as ps
        >>> groups = ps.from_sequence(["a", "bbbb", "c", "dddd"]).bucket_by_length([3], 2, collate=list)
        >>> list(groups)
        [['a', 'c'], ['bbbb', 'dddd']]
        """
        if not isinstance(bounds, Iterable) or getattr(bounds, "ndim", 1) == 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"bucket_by_length({bounds!r}): bounds must be ascending sizes such as (64, 256)"
            )
        return self._fold(BucketByLength(tuple(bounds), n), size, _collate(collate))

    def batch_by_tokens(
        self,
        max_tokens: int,
        size: Callable[[Any], int] = len,
        padded: bool = False,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> Dataset:
        """Groups of neighbours that hold at most `max_tokens` together (`padded=True` counts
        padding to the longest).

        Args:
            max_tokens: the most that a group holds; a larger sample is an error.
            size: the size of a sample, its tokens say; `len` is known from lengths alone where the
                source has them.
            padded: whether every sample counts as much as the longest of its group.
            collate: makes one item of a list of samples; the default stacks numbers and arrays,
                goes into mappings and tuples, and keeps strings in lists.

        Raises:
            ConfigError: for `max_tokens` below 1.
            DataError: while reading, for a sample that is too large.

        >>> import penstock as ps
        >>> batches = ps.from_sequence(["aa", "b", "ccc"]).batch_by_tokens(3, collate=list)
        >>> list(batches)
        [['aa', 'b'], ['ccc']]
        """
        return self._fold(BatchByTokens(max_tokens, padded), size, _collate(collate))

    def pack(
        self,
        length: int,
        method: Method = "concat_split",
        *,
        long: Long = "split",
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
        name: str | None = None,
    ) -> Dataset:
        """Rows of exactly `length` tokens with `segment_ids` and `positions` (int32[length]).

        `concat_split` cuts documents wherever a row ends; `first_fit` and `best_fit` keep them
        whole. With a source that knows its lengths (`from_tokens`, `read(lengths=...)`) rows follow
        from these alone, and the dataset stays
        indexed: with `concat_split` and `best_fit` also one that never ends, and no row needs those
            before it.

        Args:
            length: tokens in a row.
            method: `first_fit` fills the first open row with room, `best_fit` the fullest, at the
                price of rows that wait.
            long: what `first_fit` and `best_fit` do with documents over `length`: "split", "refuse"
                or "cut" them.
            max_segments: the most documents in a row.
            features: the features to pack, the one that counts the tokens first; all of them when
                not given.
            unpacked: features that come in a list, one entry for each document.
            pad: fills the row: one value, or {feature: value}; give labels the value that the loss
                skips, often -100.
            bos: a token before every document; {feature: value} gives each feature its own.
            eos: a token after every document, in the same way; both count as tokens.
            dtype: of the rows: one or {feature: dtype}. Without it, vectors of integers become
                int32, whatever the sources store, and other features keep their dtype.
            open_rows: rows that are filled at a time: 64 for `first_fit`, 4 for `best_fit`.
            window: for `best_fit`: documents that are looked at together, 1,000 when not given.
            overflow: for `best_fit` over known lengths: "split" packs `rows` rows at a time and
                cuts the rare document that fits into none of them; "never" keeps all whole, and
                plans a pass at a time. "never" where several `features`, `open_rows`, `window` or
                `max_segments` are given, else "split".
            rows: see `overflow`: 256 when not given, 1,024 for rows of 8,192 tokens or more.
            pad_to_multiple: what a row has of each document is filled up to a multiple of this, for
                context parallelism (twice the ranks that share a row, in Megatron); the padding
                counts as tokens of the document. It divides `length`.
            group_by: documents of which this key has different values (texts or numbers) are never
                in one row; "__source__" is the source that they are of. Rows of what comes rarely
                wait for more of it; where lengths are known, "__source__" is planned in windows, in
                each of which every source has a row that is not full (`rows` is then 64 for each
                source or more, also of `concat_split`).
            name: for the randomness of this step: named steps are not counted, so steps may come
                and go beside it.

        Raises:
            ConfigError: for options that cannot work, or that the method does not use, and for ids
                of a source in memory that the dtype does not hold.
            DataError: while reading, for documents that cannot be packed, and ids that the dtype
                does not hold.

        >>> import penstock as ps
        >>> rows = ps.from_sequence([[1, 2, 3], [4, 5, 6]]).pack(4)
        >>> {name: column.tolist() for name, column in next(iter(rows)).items()}
        {'tokens': [1, 2, 3, 4], 'segment_ids': [1, 1, 1, 2], 'positions': [0, 1, 2, 0]}
        """
        row = features, unpacked, pad, bos, eos, dtype
        packing = Packing(
            length,
            method,
            long,
            max_segments,
            *row,
            open_rows,
            window,
            overflow,
            rows,
            pad_to_multiple,
            group_by,
        )
        require_ids_fit(self.flow, packing.token_dtype, f"pack({length})")
        groups = Hold(self.flow, packing.fold(), packing.sizer, name=self._step_name("pack", name))
        return self._with(Each(with_seed(groups, self._seed), "map", packing))

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
        """Rows of documents whose features have lengths of their own: inputs and targets, tokens
        and patches.

        A row has every feature, and `<feature>_segment_ids` and `<feature>_positions` (int32)
        beside it, from 1 and from 0 in every piece. `concat_split` lays documents end to end until
        a feature of the row is full and goes on in the next row. `first_fit` and `best_fit` keep
        documents whole; one that fits into none of the open rows has all of them given out. For
        features that are aligned token by token use `pack`.

        Args:
            lengths: the features to pack and how many entries of each make a row.
            method: "concat_split", "first_fit" or "best_fit".
            max_segments: the most documents in a row.
            unpacked: features that come in a list, one entry for each document.
            pad: fills the rows: one value, or {feature: value} and 0 for the rest.
            align: every document begins at a multiple of it; {feature: number} and 1 for the rest.
            open_rows: rows that are filled at a time, 64 when not given.
            dtype: of the rows, as for `pack`: one or {feature: dtype}.

        Raises:
            ConfigError: for options that cannot work, or that the method does not use.
            DataError: while reading, for documents that lack a feature, have others, or are longer
                than a row where they stay whole.

        >>> import penstock as ps
        >>> pairs = ps.from_sequence([{"ask": [1, 2], "say": [3]}, {"ask": [4], "say": [5, 6]}])
        >>> [row] = pairs.pack_features({"ask": 4, "say": 3}, "first_fit")
        >>> row["ask"].tolist(), row["say"].tolist(), row["say_segment_ids"].tolist()
        ([1, 2, 4, 0], [3, 5, 6], [1, 2, 2])
        """
        fold, rows = feature_packing(
            lengths, method, max_segments, unpacked, pad, align, open_rows, dtype
        )
        return self._with(Each(Hold(self.flow, fold), "map", rows))

    def fold(
        self,
        fold: Fold,
        size: Callable[[Any], int] = len,
        build: Callable[[list[Any]], Any] = list,
        *,
        name: str | None = None,
    ) -> Dataset:
        """Groups by a fold of your own; `build` makes each out of its samples.

        Args:
            fold: see `penstock.types.Fold`.
            size: the size of a sample, its tokens say; `len` is known from lengths alone where the
                source has them.
            build: makes an item of the samples of a group.
            name: for the randomness of this step: named steps are not counted, so steps may come
                and go beside it.

        Raises:
            ConfigError: for what is no function, or lacks a method.

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
        sizer = Sizer(_function(size, "size"), by_length=size is len)
        groups = Hold(self.flow, fulfilled(fold, Fold, "fold()"), sizer, seed, name)
        return self._with(
            Each(with_seed(groups, self._seed), "map", _Values(_function(build, "build")))
        )

    # ------------------------------------------------------------ helpers

    def _each(
        self, kind: Kind, fn: Callable[..., Any], seed: int | None = None, name: str | None = None
    ) -> Dataset:
        return self._with(
            Each(self.flow, kind, _function(fn, STEP[kind].partition("(")[0]), seed, name)
        )

    def _step_name(self, step: str, name: str | None) -> str | None:
        """The name of a random step; two steps of one chain cannot share one."""
        if name is None:
            return None
        if not name:
            raise ConfigError(f"{step}(name=''): a name has at least one character")
        if name in step_names(self.flow):
            raise ConfigError(
                f"{step}(name={name!r}): a step below has this name already; give each step its own"
            )
        return name

    def _own(self, seed: int | None) -> int | None:
        return self._seed if seed is None else whole(seed, "seed={}")

    def _ordered(self, step: str, remedy: str) -> None:
        require_indexed(self.flow, step, remedy)


# ---------------------------------------------------------------- small functions of the steps
# (picklable)


class _Values:
    """A builder over the values of a group's items."""

    def __init__(self, build: Callable[[list[Any]], Any]) -> None:
        self.build = build
        self.__qualname__, self.version = name_of(build), getattr(build, "version", None)

    def __call__(self, items: list[Any]) -> Any:
        values = [item.item.value if isinstance(item, Part) else item.value for item in items]
        if any(isinstance(value, Missing) for value in values):
            raise DataError(
                "a document of the group cannot be read, and only rows of pack() can leave a hole "
                "for it"
            )
        return self.build(values)


def _add_source(sample: Any, source: str, epoch: int, index: int) -> dict[str, Any]:
    if not isinstance(sample, Mapping):
        raise ConfigError(
            f"with_source() adds fields to mappings, but a sample of {source!r} is a "
            f"{type(sample).__name__}; map "
            "it to a dict first"
        )
    return {**sample, "__source__": source, "__epoch__": epoch, "__index__": index}  # pyright: ignore[reportUnknownVariableType]


def _one(sample: Any) -> int:
    return 1


def _only(values: list[Any]) -> Any:
    return values[0]


def _function(fn: Any, where: str) -> Callable[..., Any]:
    if not callable(fn):
        raise ConfigError(f"{where}({fn!r}): a function, not a {type(fn).__name__}")
    return fn


def _collate(fn: Callable[[list[Any]], Any] | None) -> Callable[[list[Any]], Any]:
    return default_collate if fn is None else _function(fn, "collate")


def datasets_of(step: str, given: tuple[Any, ...]) -> tuple[Dataset, ...]:
    """The datasets that were given to be joined."""
    if not given:
        raise ConfigError(f"{step}(): no dataset; give at least one")
    for each in given:
        if isinstance(each, list | tuple) and any(
            isinstance(one, Dataset) for one in cast("list[Any]", each)
        ):
            raise ConfigError(
                f"{step}: datasets are given one by one; put a star before a list: "
                f"{step}(*datasets)"
            )
        if not isinstance(each, Dataset):
            raise no_dataset(step, cast(object, each))
    return given


def _woven(step: str, datasets: tuple[Dataset, ...], rule: Rule) -> Mix:
    datasets = datasets_of(step, datasets)
    return Mix(
        tuple(dataset.flow for dataset in datasets),
        tuple(f"+{i}" for i in range(len(datasets))),
        rule,
    )
