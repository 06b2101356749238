"""States of an open stream as JSON texts, in which only the parts that changed are encoded again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import is_
from typing import Any, NamedTuple

from ...types import Json
from ..base.canonical_json import encode_canonical_text
from ..base.columns import encode_columns
from ..streams.stream_opener import LastItem
from .rank_stream import RankStream
from .seal import StateText


class _LaneEntry(NamedTuple):
    """A lane in a state: its cursor and last samples, as JSON."""

    cursor: Json
    epoch: int
    text: str | None
    """None for a cursor with names, which all entries of a state share."""
    came: LastItem | None
    digest: str


class StateWriter:
    """Writes the states of a stream after any of its items.

    A step moves few lanes, and seldom the changes or the journal. So the writer keeps the text of
    each lane while its cursor is the same object, and the text of all else while its parts are.
    """

    def __init__(self, opened: RankStream) -> None:
        self._opened = opened
        self._lanes = dict[str, _LaneEntry]()
        self._fixed: tuple[tuple[object, ...], StateText] = ((), StateText())
        self._latest: tuple[_LaneEntry | None, Json] = (None, {})
        self._journal = dict[Any, Any]()

    def capture_journal(self, entries: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """Return the present entries of a journal; the same object while they are equal."""
        if entries != self._journal:
            self._journal = dict(entries)
        return self._journal

    def write(
        self,
        parts: tuple[object, ...],
        describe: Callable[[], Mapping[str, Any]],
        body: Mapping[str, Any],
        cursor: Json,
    ) -> str:
        """Return a state as JSON.

        Args:
            parts: the immutable objects from which `describe` makes its entries.
            describe: returns the entries that few steps change.
            body: the other entries, with the epoch.
            cursor: the cursor of the state: a position, or cursors by lane.
        """
        known, fixed = self._fixed
        if len(parts) != len(known) or not all(map(is_, parts, known)):
            fixed = StateText()
            for name, value in describe().items():
                fixed.add(name, value)
            self._fixed = parts, fixed
        state = StateText(fixed)
        for name, value in body.items():
            state.add(name, value)
        self._add_place(state, body["epoch"], cursor)
        return state.seal()

    def _add_place(self, state: StateText, epoch: int, cursor: Json) -> None:
        """Add the cursors, the digest of the last samples by lane, and the latest by source."""
        if isinstance(cursor, dict):
            for name, value in cursor.items():
                if name != "at":
                    state.add(name, value)
            lanes = self._find_lanes(epoch, cursor["at"], cursor)
            texts = {lane: _get_text(entry, state.tables) for lane, entry in lanes.items()}
            state.add_text("at", _join(texts, lanes), _join(texts, sorted(lanes)))
        else:
            state.add("at", cursor)
            lanes = self._find_lanes(epoch, {"0": cursor}, cursor)
        digests = {lane: entry.digest for lane, entry in lanes.items()}
        state.add_text("last", _join(digests, lanes), _join(digests, sorted(lanes)))
        state.add("latest", self._find_latest(lanes))

    def _find_lanes(self, epoch: int, cursors: Any, cursor: Any) -> dict[str, _LaneEntry]:
        """Return the entries by lane; those of lanes that moved are made here."""
        known = self._lanes
        moved = {
            lane: at
            for lane, at in cursors.items()
            if (entry := known.get(lane)) is None or entry.cursor is not at or entry.epoch != epoch
        }
        if not moved:
            return {lane: known[lane] for lane in cursors}
        opened = self._opened
        came = opened.last_items(epoch, {"at": moved} if isinstance(cursor, dict) else cursor)
        digests = opened.digest_items(came)
        made = {
            lane: _LaneEntry(
                at, epoch, _encode(at), came[lane], encode_canonical_text(digests[lane])
            )
            for lane, at in moved.items()
        }
        self._lanes = {**known, **made}
        return {lane: made.get(lane) or known[lane] for lane in cursors}

    def _find_latest(self, lanes: Mapping[str, _LaneEntry]) -> Json:
        """Return the latest sample of every source, in the first lane that gave an item."""
        for lane, entry in lanes.items():
            if entry.came:
                if self._latest[0] is not entry:
                    self._latest = entry, {lane: {**self._opened.digest_by_source(entry.came)}}
                return self._latest[1]
        return {}


def _encode(cursor: Json) -> str | None:
    tables = list[list[str]]()
    encoded = encode_columns(cursor, tables)
    return None if tables else encode_canonical_text(encoded)


def _get_text(entry: _LaneEntry, tables: list[list[str]]) -> str:
    return entry.text or encode_canonical_text(encode_columns(entry.cursor, tables))


def _join(texts: Mapping[str, str], order: Any) -> str:
    entries = ",".join([f'"{lane}":{texts[lane]}' for lane in order])
    return f"{{{entries}}}"
