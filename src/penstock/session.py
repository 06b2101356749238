"""One run of one rank: which lanes it owns, where each stands, what was changed on the way.

Iterators and loaders are faces of this. A pipeline without data-dependent steps is one program, and ranks share out its
positions; any other runs as lanes, each with its own cursor, and a rank owns whole lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

from .adopt import Places, adopted, standing, without_takeovers
from .adopt import told as told_of
from .build import Builder
from .cursor import seal, unseal
from .deal import spread_of
from .digests import code_notes, code_of, compared, data_of
from .edits import Change, Edit, changed, edit_from_json, locate_mixture, mixtures
from .errors import ConfigError, PenstockError, StateError
from .ints import whole, within_reach
from .lane import Lane
from .mix import SetWeights
from .nodes import Flow, Path
from .quarantine import Journal, journal_from_json, journal_to_json, whose_journals_are_missing
from .recipe import fingerprint, identity, remembered
from .run import Opener, lane_of, tail_group
from .schedule import Schedule, plain
from .seams import Hands
from .setting import Setting
from .sizes import Size, logged, size_of, sizes_from_json
from .states import check_lanes, entries_of, merged, of_another, out_of_order, told
from .streams import as_int, bad_cursor, stands_at
from .tail import tail_of
from .takeover import moved
from .types import Json
from .work import Hired

_ODD = (TypeError, ValueError, LookupError, AttributeError, OverflowError, RecursionError)
"""What comes of a cursor of another shape."""


class Session:
    """A run: items in order, a state after each, changes on the way."""

    def __init__(self, flow: Flow, setting: Setting, hands: Hands | None) -> None:
        self.base, self.flow, self.setting, self.hands = flow, flow, setting, hands
        self.group = tail_group(flow)
        self.spread = spread_of(setting.rank, setting.world_size, self.group, setting.remainder)
        self.lanes: int = 1 if self.group else setting.lanes
        if not self.group and self.lanes % setting.world_size:
            fits = ", ".join(str(w) for w in range(1, self.lanes + 1) if self.lanes % w == 0)
            raise ConfigError(
                f"{self.lanes} lanes cannot be dealt out to {setting.world_size} ranks; with these lanes world_size "
                f"can be {fits} (the pipeline has steps whose yield depends on the data, so it runs as lanes; choose "
                "lanes= once for a run)"
            )
        self._size = size_of(self.spread, tail_of(flow))
        self.sizes: tuple[Size, ...] = (self._size,)
        self.epoch: int = 0
        self.turn: int = 0
        self.given: int = 0  # items of a loader's epoch, where that is shorter than a pass
        self.changes: tuple[Edit, ...] = ()
        self.journal = Journal(setting.on_error, setting.max_errors)
        self.description = identity(flow)
        self.notes = list[str]()
        self._open({})

    # ------------------------------------------------------------ lanes

    def _mine(self) -> list[int]:
        """The lanes of this rank in the order of their turns, from the current turn on."""
        first = self.turn + self.setting.rank
        count = self.lanes // self.setting.world_size if not self.group else 1
        return [(first + i * self.setting.world_size) % self.lanes for i in range(count)]

    def _open(self, cursors: Mapping[int, Json], check: Callable[[Mapping[int, Lane]], None] | None = None) -> None:
        """Open this rank's lanes of the current tree and put them where the cursors say; where `check` refuses them,
        the lanes stay those of before.
        """
        setting = self.setting
        opened = dict[int, Lane]()
        self.leaves = Builder(self.flow).leaves
        hired = Hired(self.journal, self.leaves, self.hands, setting.window, setting.most)
        for lane in self._mine():
            tree = self.flow if self.lanes == 1 else lane_of(self.flow, lane, self.lanes)
            opened[lane] = Lane(Opener(Builder(tree, lane), hired, self.spread), tree)
            opened[lane].seek(self.epoch, cursors.get(lane))
        if check is not None:
            check(opened)
        self.close()
        self._lanes, self._order, self._next = opened, self._mine(), 0
        self._only = self.last = opened[0] if self.lanes == 1 else None

    _lanes: dict[int, Lane] = {}  # noqa: RUF012 - replaced as a whole, never changed

    @property
    def lanes_here(self) -> list[Lane]:
        """The lanes of this rank."""
        return list(self._lanes.values())

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.tap.stream.close()

    def ready(self) -> None:
        """Have the next item of this rank at hand; StopIteration at the end of the pass."""
        for _ in self._order:
            try:
                return self._lanes[self._order[self._next]].start()
            except StopIteration:
                self._turned()
        raise StopIteration

    def next(self) -> Any:
        """The next item of this rank; StopIteration at the end of the pass."""
        if self._only is not None:
            return self._only.next()
        self.ready()
        self.last, after = self._lanes[self._order[self._next]], (self._next + 1) % len(self._order)
        value = self.last.next()
        self._next, self.turn = after, self.turn + self.setting.world_size
        return value

    def start(self) -> None:
        """Make the next items now, so that the workers are busy behind them."""
        for lane in self._lanes.values():
            with suppress(StopIteration):
                lane.start()

    def _turned(self) -> None:
        self._next = (self._next + 1) % len(self._order)
        self.turn += self.setting.world_size

    last: Lane | None = None
    _only: Lane | None = None

    def next_pass(self) -> None:
        """Go to the beginning of the next pass."""
        self.epoch, self.turn = self.epoch + 1, 0
        self.changes = without_takeovers(self.changes)
        self.flow = changed(self.base, self.changes)
        self._open({})

    def rows(self) -> int | None:
        """The rows of a pass of an indexed flow."""
        positions = self._lanes[0].opener.positions if self.group else None
        return positions.program.size if positions else None

    def seek(self, item: int) -> None:
        """Go to an item of the pass: at once where positions are items, else by reading up to it."""
        item = whole(item, "seek({})", 0)
        within_reach(item, self.group or 1)
        self.turn = 0
        row, rows = item * (self.group or 1), self.rows()
        self._open({0: row if rows is None else min(row, rows)} if self.group else {})
        for _ in range(0 if self.group else item):
            try:
                self.next()
            except StopIteration:
                return

    # ------------------------------------------------------------ state

    @cached_property
    def _facts(self) -> dict[str, Any]:
        """What the data and the functions are, found out once."""
        return {"data": data_of(self.leaves), "code": code_of(self.base)}

    def state(self) -> dict[str, Any]:
        """Where the run stands: small, plain JSON, after the last item given out."""
        return self.moment()()

    def moment(self) -> Callable[[], dict[str, Any]]:
        """Where the run stands now, to be written down later: costs next to nothing."""
        lanes = [(number, lane.moment(), lane.ended) for number, lane in self._lanes.items()]
        epoch, turn, changes = self.epoch, self.turn, self.changes
        journal, openers = dict(self.journal.entries), {number: lane.opener for number, lane in self._lanes.items()}
        given, sizes = self.given, self.sizes

        def state() -> dict[str, Any]:
            at = {str(number): cursor() for number, cursor, _ in sorted(lanes, key=lambda lane: lane[0])}
            ended = sorted(number for number, _, over in lanes if over)
            body: dict[str, Any] = {
                "fingerprint": fingerprint(self.description),
                "pipeline": self.description,
                "epoch": epoch,
                "at": at["0"] if self.group else at,
                "last": {number: openers[int(number)].last_key(epoch, cursor) for number, cursor in at.items()},
                **self._facts,
                "mixtures": told_of(openers[min(openers)].builder),
                "given": given,
                "changes": [change.to_json() for change in changes],
                "journal": journal_to_json(journal),
            }
            if self.group:
                body["sizes"] = [size.to_json() for size in sizes]
            else:
                body |= {"lanes": self.lanes, "turn": turn, "ended": ended}
            if self.setting.on_error == "quarantine" and self.setting.world_size > 1:
                body["journal_of"] = [self.setting.rank, self.setting.world_size]
            return seal(body)

        return state

    def load(self, states: Any, on_mismatch: str) -> None:
        """Go where a state says. Whatever is wrong with it, the run then stays where it was."""
        bodies = [unseal(state) for state in (states if isinstance(states, list | tuple) else [states])]  # pyright: ignore[reportUnknownVariableType]
        if not bodies:
            raise StateError("an empty list of states; pass one state, or those of all ranks")
        body, cursors = merged(bodies)
        changes = tuple(edit_from_json(change) for change in entries_of(body, "changes"))
        base, description = remembered(self.base, body.get("pipeline"))
        if body.get("fingerprint") != fingerprint(description) or body.get("pipeline") != description:
            if on_mismatch != "adopt":
                raise of_another(body.get("pipeline"), self.description)
            epoch = as_int(body.get("epoch"))
            found = adopted(base, changes, body["mixtures"], self._places(epoch, cursors))
            changes = found.edits
            cursors = {lane: moved(base, cursor, found.streams, epoch) for lane, cursor in cursors.items()}
        adopt = on_mismatch == "adopt"
        notes = compared(body["data"], self.leaves, self._facts["data"], adopt)
        notes += [] if adopt else code_notes(body["code"], self._facts["code"])
        notes += whose_journals_are_missing(bodies)
        before = self.flow, self.epoch, self.turn, self.given, self.changes, self.journal, self.sizes
        made = self.base, self.description
        try:
            self.base, self.description, self.flow, self.changes = base, description, changed(base, changes), changes
            self.epoch, self.turn = as_int(body.get("epoch")), as_int(body.get("turn", 0))
            self.given = as_int(body.get("given", 0))
            noted = journal_from_json([entry for each in bodies for entry in entries_of(each, "journal")])
            self.journal = Journal(self.setting.on_error, self.setting.max_errors, noted)
            check_lanes(body, cursors, self.lanes, [] if self.group else self._mine())
            log = sizes_from_json(body["sizes"]) if self.group else ()
            self._open(cursors, lambda lanes: self._check_place(lanes, body["last"], cursors, adopt))
            if self.group:
                rows = self.rows()
                self.sizes = logged(log, self.epoch * (rows or 0) + as_int(cursors[0]), self._size, rows)
            for number in set(entries_of(body, "ended")) & self._lanes.keys():
                self._lanes[number].ended = True
        except BaseException as error:
            self.flow, self.epoch, self.turn, self.given, self.changes, self.journal, self.sizes = before
            self.base, self.description = made
            if changes and isinstance(error, ConfigError):
                raise StateError(f"the changes in the state do not fit this pipeline: {error}") from error
            if isinstance(error, _ODD) and not isinstance(error, PenstockError):
                raise StateError(f"the state does not fit this pipeline: {error!r}; it is damaged") from error
            raise
        self.notes = told(notes)

    def _check_place(self, lanes: Mapping[int, Lane], last: Any, cursors: Mapping[int, Json], adopt: bool) -> None:
        """Whether lanes stand where the cursors say, and what came last there is what came last in the run."""
        for number, lane in lanes.items():
            if not stands_at(lane.cursor(), cursors[number]):
                raise bad_cursor(cursors[number], "a position of this pipeline")
            if not adopt and last.get(str(number)) != lane.opener.last_key(self.epoch, cursors[number]):
                raise out_of_order()

    def _places(self, epoch: int, cursors: Mapping[int, Json]) -> Places:
        """Where the mixtures of a tree stand that goes on at these cursors."""

        def places(flow: Flow) -> Mapping[Path, int]:
            if self.group:
                return standing(flow, epoch, as_int(cursors[0]))
            probe = Session(flow, replace(self.setting, window=0), None)
            probe.epoch = epoch
            probe._open(cursors)
            return {path: probe._furthest(path) for path in mixtures(flow)}

        return places

    def _furthest(self, path: Path) -> int:
        """The first position of a mixture that no lane of this rank has drawn yet."""
        return max(
            lane.opener.furthest(path, as_int(lane.cursor()) if self.group else None) for lane in self._lanes.values()
        )

    # ------------------------------------------------------------ changes and failures

    def set_weights(self, weights: Mapping[str, float] | Schedule, at: int | None) -> int:
        """Other weights from a position of the mixture on; returns that position."""
        if not isinstance(weights, Mapping | Schedule):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"set_weights({weights!r}): give a mapping, {{name: weight, ...}}, or a Schedule")
        if isinstance(weights, Mapping):
            weights = {name: plain(weight) for name, weight in weights.items()}
        path = locate_mixture(self.base, weights)
        if at is None and self.setting.world_size > 1 and not self.group:
            raise ConfigError(
                "set_weights over several ranks with lanes needs at=, the same on all: ranks cannot see each other"
            )
        furthest = self._furthest(path)
        events = [edit.event.at for edit in self.changes if isinstance(edit, Change) and edit.path == path]
        furthest = max([furthest, *events])
        position = furthest if at is None else whole(at, "set_weights(at={})")
        within_reach(position)
        if position < furthest:
            raise ConfigError(
                f"set_weights(at={at}): up to position {furthest} samples were drawn or weights set already; the past "
                "is fixed"
            )
        change = Change(path, SetWeights(position, weights))
        flow = changed(self.base, (*self.changes, change))
        cursors = {number: lane.cursor() for number, lane in self._lanes.items()}
        before = self.flow, self.changes
        try:
            self.flow, self.changes = flow, (*self.changes, change)
            self._open(cursors)
        except BaseException:
            self.flow, self.changes = before
            raise
        return position
