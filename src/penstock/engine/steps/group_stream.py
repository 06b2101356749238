"""Folds at run time: the only stream with a memory, and it remembers which items, never their data.

Items are numbered as they are pulled. The cursor is the one of the input before the oldest
item that is still held, the number of items pulled since, and the fold's carry with every item
replaced by its number. Restoring pulls those items again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from ...errors import ConfigError
from ...types import Carry, Fold, Item, Json, Part, Sizer
from ..base.cursors import make_cursor_error, parse_cursor_int, parse_cursor_list
from ..base.random import derive_pass_key
from ..base.rows import ProvenanceRows, compute_bounds, join_rows, make_empty_rows
from ..grouping import BatchByTokens, BucketByLength, ShuffleBuffer
from ..orders import WindowShuffle
from ..packing import SOURCE, Apart, BestFit, FirstFit, Missing, get_group
from ..streams.chunk_cursors import Chunk, ChunkCursors, ConstantCursor
from ..streams.shared_reader import PassCounts
from ..streams.stream import BufferedStream, Stream, UnaryStream
from ..streams.stream_opener import StreamOpener
from .op import Groups, Op

Members: TypeAlias = Sequence[Item | Part]
"""The items of a group."""
_LONGEST = 1 << 24  # no item is held while so many are pulled


class Stretch(NamedTuple):
    """Items `first, first+1, ...` as they were pulled: where they come from and the cursor before
    each."""

    first: int
    rows: ProvenanceRows
    cursors: ChunkCursors


class GroupState(NamedTuple):
    """The state after one group came out: everything a cursor is made of."""

    carry: Any
    ready: tuple[Members, ...]
    given: int  # so many of those were given out
    number: int
    flushed: bool
    log: list[Stretch]
    end: ChunkCursors

    @property
    def pending(self) -> tuple[Members, ...]:
        return self.ready[self.given :]


@dataclass(frozen=True, slots=True)
class GroupTrail:
    """The cursors of groups."""

    states: Sequence[GroupState]

    def at(self, count: int, /) -> Json:
        return cursor_of(self.states[count])


class GroupStream(UnaryStream):
    """A fold over a stream."""

    def __init__(
        self, stream: Stream, fold: Fold, size: Sizer, key: int, names: Sequence[str]
    ) -> None:
        self.input = BufferedStream(stream)
        self.fold = fold
        self.size = size
        self.key = key
        self.names = names
        self._by_len = size.measure is len and isinstance(fold, BatchByTokens | BucketByLength)
        self._reset(0)

    def _reset(self, epoch: int) -> None:
        self._key = derive_pass_key(self.key, epoch)
        self._carry: Any = self.fold.init(self._key)
        self._ready: tuple[Members, ...] = ()
        self._given, self._number, self._flushed = 0, 0, False
        self._log, self._limit = list[Stretch](), 64

    def cursor(self) -> Json:
        return cursor_of(self._capture_state())

    def input_at(self, epoch: int, cursor: Json, /) -> tuple[object, int, Json]:
        at, first, number, *_ = (None, 0, 0) if cursor is None else parse_cursor_list(cursor, 6)
        return (
            self.input.stream,
            epoch,
            at + parse_cursor_int(number) - parse_cursor_int(first) if isinstance(at, int) else at,
        )

    def _capture_state(self) -> GroupState:
        return GroupState(
            self._carry,
            self._ready,
            self._given,
            self._number,
            self._flushed,
            self._log,
            self.input.cursor_trail(),
        )

    def close(self) -> None:
        self.input.stream.close()

    def seek(self, epoch: int, cursor: Json, /) -> None:
        self._reset(epoch)
        if cursor is None:
            return self.input.seek(epoch, None)
        below, first, number, carry, pending, flushed = parse_cursor_list(cursor, 6)
        self.input.seek(epoch, below)
        self._number = parse_cursor_int(first)
        again = parse_cursor_int(parse_cursor_int(number) - self._number, _LONGEST)
        held = dict[int, Item]()
        while again:
            chunk = self.input.take(min(again, 1024))
            if not chunk.values:
                raise make_cursor_error(cursor, "a cursor of this data (it ends too early)")
            held |= {
                number: self._item(number, value)
                for number, value in enumerate(chunk.values, self._number)
            }
            self._took(chunk)
            again -= len(chunk.values)
        self._carry = decode(carry, held, getattr(self.fold, "restored", None))
        self._ready, self._given, self._flushed = decode_groups(pending, held), 0, bool(flushed)

    def _item(self, number: int, value: Any) -> Item:
        document = value.like if isinstance(value, Missing) else value
        if self._by_len and isinstance(document, Mapping):
            raise _no_length(self.fold, cast("Mapping[str, Any]", document))
        return Item(number, self.size.of(document), value)

    def _took(self, chunk: Chunk) -> None:
        """Items went into the carry."""
        self._log.append(Stretch(self._number, chunk.rows, chunk.cursors))
        self._number += len(chunk.values)

    def _trim(self) -> None:
        """Forget the way back to items that are gone. Trails made so far keep the old list."""
        oldest = min(numbers((self._carry, self._ready[self._given :])), default=self._number)
        keep = max(0, bisect_right(self._log, oldest, key=lambda stretch: stretch.first) - 1)
        self._log = self._log[keep:]
        self._limit = 2 * len(self._log) + 64

    def pull(self, n: int, /) -> Chunk:
        groups, rows, states = list[Members](), list[ProvenanceRows](), [self._capture_state()]
        while len(groups) < n:
            if self._given == len(self._ready):
                if self._flushed:
                    break
                self._step()
                continue
            group = self._ready[self._given]
            self._given += 1
            groups.append(group)
            rows.append(self._rows(group))
            states.append(self._capture_state())
        if not groups:
            return Chunk([], make_empty_rows(0), ConstantCursor(None))
        offsets = compute_bounds(np.asarray([len(group) for group in groups], np.int64))
        return Chunk(list(groups), join_rows(rows).grouped(offsets), GroupTrail(states))

    def _step(self) -> None:
        """One item into the fold, or the end of the pass."""
        chunk = self.input.take(1)
        if chunk.values:
            ready = self._take(chunk.values[0], chunk.rows)
        else:
            ready = self.fold.flush(self._carry)
            self._carry = self.fold.init(self._key)
            self._flushed = True
        self._ready, self._given = tuple(group for group in ready if len(group)), 0
        if chunk.values:
            self._took(chunk)
            if len(self._log) > self._limit:
                self._trim()

    def _take(self, value: Any, rows: ProvenanceRows) -> Sequence[Members]:
        try:
            item = self._item(self._number, value)
        except Exception as error:
            name, epoch, index = self.names[int(rows.leaf[0])], rows.epoch[0], rows.index[0]
            error.add_note(f"penstock: at sample {name}[{index}] (pass {epoch})")
            raise
        if isinstance(self.fold, Apart):
            by = self.fold.by
            document = value.like if isinstance(value, Missing) else value
            group = self.names[int(rows.leaf[0])] if by == SOURCE else get_group(document, by)
            self._carry, ready = self.fold.take(self._carry, item, group)
        else:
            self._carry, ready = self.fold.step(self._carry, item)
        return ready

    def _rows(self, group: Members) -> ProvenanceRows:
        """Return the origin of the items of a group; pieces of a document get part numbers."""
        found, starts = list[ProvenanceRows](), list[int]()
        for member in group:
            item, start = (member.item, member.start) if isinstance(member, Part) else (member, 0)
            stretch = self._log[
                bisect_right(self._log, item.number, key=lambda stretch: stretch.first) - 1
            ]
            row = stretch.rows.slice(item.number - stretch.first, item.number - stretch.first + 1)
            found.append(row)
            starts += [start] * len(row.leaf)
        rows = join_rows(found)
        return replace(rows, part=rows.part + np.asarray(starts, np.int64)) if any(starts) else rows


def cursor_of(state: GroupState) -> Json:
    """The cursor of a moment: six entries, plain JSON."""
    oldest = min(numbers((state.carry, state.pending)), default=state.number)
    below = state.end.at(0)
    if oldest < state.number:
        stretch = state.log[bisect_right(state.log, oldest, key=lambda stretch: stretch.first) - 1]
        below = stretch.cursors.at(oldest - stretch.first)
    carry, pending = encode(state.carry), encode_groups(state.pending)
    return [below, oldest, state.number, carry, pending, state.flushed]


class GroupOp(Groups):
    """A fold over items whose sizes are not known beforehand."""

    def __init__(
        self, input: Op, fold: Fold, size: Sizer | None, key: int, names: Sequence[str]
    ) -> None:
        super().__init__(input)
        self.indexed = False
        self.fold, self.sizer, self.key, self.names = fold, size or Sizer(_one), key, names

    def stream(self, opening: StreamOpener, passes: PassCounts) -> Stream:
        lane, lanes = opening.own_lane[:2]
        key = self.key + lane & (1 << 64) - 1
        return GroupStream(
            opening.open(self.input, passes), shared(self.fold, lanes), self.sizer, key, self.names
        )


def _no_length(fold: Fold, sample: Mapping[str, Any]) -> ConfigError:
    """`len` of a mapping counts its keys: groups by that are of any number of tokens."""
    step = "batch_by_tokens()" if isinstance(fold, BatchByTokens) else "bucket_by_length()"
    key = next((key for key, value in sample.items() if hasattr(value, "__len__")), "input_ids")
    return ConfigError(
        f"{step}: a sample is a mapping of {', '.join(map(repr, sample))}, so its len() counts "
        f"keys, not tokens; give a size, such as size=lambda x: len(x[{key!r}])"
    )


def shared(fold: Fold, lanes: int) -> Fold:
    """A lane's share of a fold: buffers, windows and open rows are those of the run. A few there
    are in any case, or a lane could neither shuffle nor choose.
    """
    match fold:
        case ShuffleBuffer(n):
            return replace(fold, n=_share(n, lanes, 2))
        case WindowShuffle(n):
            return replace(fold, window=_share(n, lanes, 2))
        case Apart(inner):
            return replace(fold, fold=shared(inner, lanes))
        case FirstFit():
            return replace(fold, open_rows=_share(fold.open_rows, lanes, 4))
        case BestFit():
            window = _share(fold.window, lanes, 64)
            return replace(fold, open_rows=_share(fold.open_rows, lanes, 4), window=window)
        case _:
            return fold


def _share(n: int, lanes: int, least: int) -> int:
    return max(-(-n // lanes), min(n, least))


def _one(value: Any) -> int:
    return 1


# ---------------------------------------------------------------- carries as JSON


def numbers(tree: Any) -> list[int]:
    """The numbers of all items in a carry."""
    out, todo = list[int](), [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, Item):
            out.append(node.number)
        elif isinstance(node, Part):
            out.append(node.item.number)
        elif isinstance(node, dict):
            todo.extend(cast("dict[str, Any]", node).values())
        elif isinstance(node, list | tuple):
            todo.extend(cast("Sequence[Any]", node))
    return out


def encode(tree: Any) -> Json:
    """A carry as JSON: items as numbers, tuples and dicts marked so that they come back as they
    were."""
    if isinstance(tree, Item):
        return {"@": tree.number}
    if isinstance(tree, Part):
        return {"@": [tree.item.number, tree.start, tree.stop]}
    if isinstance(tree, dict):
        return {"{": [[key, encode(value)] for key, value in cast("dict[Any, Any]", tree).items()]}
    if isinstance(tree, list | tuple):
        entries = cast("Sequence[Any]", tree)
        mark = "(" if isinstance(tree, tuple) else "["
        if entries and all(isinstance(entry, Item) for entry in entries):
            return {mark + "@": [entry.number for entry in entries]}
        inner = [encode(entry) for entry in entries]
        return {"(": inner} if mark == "(" else inner
    if (
        tree is None
        or isinstance(tree, bool | int | str)
        or (isinstance(tree, float) and isfinite(tree))
    ):
        return tree
    raise TypeError(
        f"a fold has {_shown(tree)} in its carry, which cannot be saved as JSON; make carries of "
        "items, parts, tuples, lists, dicts and plain numbers or strings"
    )


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, float) else f"a {type(value).__name__}"


def encode_groups(groups: Sequence[Members]) -> Json:
    """Groups that wait as JSON: just the numbers where each is one item, as behind a shuffle
    buffer."""
    if groups and all(len(group) == 1 and isinstance(group[0], Item) for group in groups):
        return {"1": [number for group in groups for number in numbers(group)]}
    return [encode(group) for group in groups]


def decode_groups(saved: Any, held: dict[int, Item]) -> tuple[Members, ...]:
    """The groups that `encode_groups` saved."""
    if isinstance(saved, dict):
        waiting = cast("dict[str, Any]", saved).get("1")
        return tuple([item] for item in decode({"[@": waiting}, held))
    groups: Any = decode(saved, held)
    if not isinstance(groups, list) or not all(map(_is_group, cast("list[Any]", groups))):
        raise make_cursor_error(saved, "groups of this pipeline's folds")
    return tuple(cast("list[Members]", groups))


def _is_group(group: Any) -> bool:
    return (
        bool(group)
        and isinstance(group, list)
        and all(isinstance(one, Item | Part) for one in cast("Any", group))
    )


def decode(
    tree: Json, held: dict[int, Item], restored: Callable[[Carry], Carry] | None = None
) -> Any:
    """The carry that `encode` saved, with the items put back, as its fold makes it of that."""
    try:
        carry = _decode(tree, held)
        return restored(carry) if restored else carry
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise make_cursor_error(tree, "a carry of this pipeline's folds") from error


def _decode(tree: Any, held: dict[int, Item]) -> Any:
    if isinstance(tree, list):
        return [_decode(entry, held) for entry in cast("list[Any]", tree)]
    if not isinstance(tree, dict):
        return tree
    ((mark, body),) = cast("dict[str, Any]", tree).items()
    match mark:
        case "@" if isinstance(body, list):
            number, start, stop = cast("list[int]", body)
            if parse_cursor_int(start) > parse_cursor_int(stop):
                raise ValueError(f"a part from {start} to {stop}")
            return Part(held[number], start, stop)
        case "@":
            return held[body]
        case "(@":
            return tuple(held[number] for number in body)
        case "[@":
            return [held[number] for number in body]
        case "(":
            return tuple(_decode(entry, held) for entry in body)
        case "{":
            return {key: _decode(value, held) for key, value in body}
        case _:
            raise ValueError(mark)
