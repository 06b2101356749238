"""Another mixture takes over a run: what a state tells of its mixtures, and how every input goes on where it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from .build import Builder, why_not
from .draws import FURTHEST, Spliced, mixture
from .edits import Change, Edit, changed
from .errors import StateError
from .inverse import Counted, below_batch
from .mix import Adopt, Mixture, mixture_from_json, mixture_to_json
from .nodes import Flow, Mix, Past, Path, Read, Weighted, inputs_of, under
from .order import Gap, Repeat, Replay, Slice
from .packed import PackProgram
from .program import BatchProgram, EachProgram, MixProgram, Program, ReorderProgram
from .recipe import canonical
from .tail import tail_of
from .types import Json

Places = Callable[[Flow], Mapping[Path, int]]
"""Where in its pass each mixture of a tree stands; mixtures of which that cannot be said are left out."""


def told(builder: Builder) -> list[Json]:
    """What a state tells of the mixtures of a tree: everything that their order depends on."""
    found = {path: _present(each) for path, each in builder.mixtures.items()} | _woven(builder)
    return [{"path": list(path), "mixture": mixture_to_json(each)} for path, each in found.items()]


def _woven(builder: Builder) -> dict[Path, Mixture]:
    """The mixtures of streams."""
    out = dict[Path, Mixture]()
    for path, flow in builder.woven.items():
        assert isinstance(flow.rule, Weighted)
        out[path] = mixture(flow.rule, flow.names, (None,) * len(flow.names), path)
    return out


def _present(found: Mixture | Spliced) -> Mixture:
    return found.present if isinstance(found, Spliced) else found


class Adopted(NamedTuple):
    """The edits by which mixtures take over, and of mixtures of streams the names that their inputs had: these go on by
    their cursors.
    """

    edits: tuple[Edit, ...]
    streams: dict[Path, tuple[str, ...]]


def adopted(base: Flow, edits: Sequence[Edit], saved: Any, places: Places) -> Adopted:
    """How the mixtures of a tree go on where those that a state tells of stand, each input where it was."""
    pasts = _pasts(saved, edits)
    builder = _compiled(base)
    streams = _woven(builder)
    now, moves = {**builder.mixtures, **streams}, dict[Path, tuple[str, ...]]()
    here = {_named(path): path for path in now}
    others = tuple(edit for edit in edits if not isinstance(edit, Change))
    kept, taken = list[Change](), dict[Path, Past]()
    for name, past in pasts.items():
        if (path := here.get(name)) is None:
            continue
        if _bare(past.mixture) == _bare(_present(now[path])):
            kept += [replace(edit, path=path) for edit in _changes(edits, name)]
        elif path in streams:
            moves[path] = past.mixture.names
        else:
            taken[path] = past
    until = [Change(path, Adopt(FURTHEST, {}), past) for path, past in taken.items()]
    stands: Mapping[Path, int] = places(changed(base, [*kept, *until, *others])) if taken else {}
    made = list(kept)
    for path in sorted(taken, key=len, reverse=True):  # what lies inside first: its length is that of an input
        if path not in stands:
            raise StateError(
                f"the mixture {'/'.join(_named(path)) or 'of the pipeline'} is shuffled as a whole, so it is not drawn "
                "from in its own order, and cannot be changed within a pass: adopt at the end of one"
            )
        if at := stands[path]:
            made.append(_takeover(base, [*made, *others], path, taken[path], at))
    return Adopted((*made, *others), moves)


def without_takeovers(edits: Sequence[Edit]) -> tuple[Edit, ...]:
    """The edits that are left at the end of a pass: the next one is of the present mixtures from its beginning."""
    return tuple(edit for edit in edits if not (isinstance(edit, Change) and edit.past))


def _takeover(base: Flow, edits: Sequence[Edit], path: Path, past: Past, at: int) -> Change:
    """The change by which the mixture at a path goes on at a position where another one stops."""
    present = _present(_compiled(changed(base, edits)).mixtures[path])
    counts = Spliced(replace(past, at=None), present).counts(at)
    drawn = {name: int(k) for name, k in zip(present.names, counts, strict=True) if name in past.mixture.names}
    return Change(path, Adopt(at, drawn), replace(past, at=at))


def _compiled(flow: Flow) -> Builder:
    builder = Builder(flow)
    _compile(builder, flow, 0, ())
    return builder


def _compile(builder: Builder, flow: Flow, seed: int, path: Path) -> None:
    """Compile what is indexed in a tree."""
    if why_not(flow) is None:
        builder.program(flow, seed, path)
    elif isinstance(flow, Mix):
        inner = flow.rule.seed if isinstance(flow.rule, Weighted) else seed
        for child, place in inputs_of(flow, path):
            _compile(builder, child, inner, place)
    elif not isinstance(flow, Read):
        _compile(builder, flow.flow, seed, under(flow, path))


def _pasts(saved: Any, edits: Sequence[Edit]) -> dict[tuple[str, ...], Past]:
    """The mixtures that a state tells of, by their names; what they took over from is in its changes."""
    try:
        found = {_named(tuple(entry["path"])): mixture_from_json(entry["mixture"]) for entry in saved}
    except StateError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"the mixtures in the state cannot be read ({error!r}); it is damaged") from error
    earlier = {name: [edit.past for edit in _changes(edits, name) if edit.past] for name in found}
    return {name: Past(mixture, None, earlier[name][-1] if earlier[name] else None) for name, mixture in found.items()}


def _changes(edits: Sequence[Edit], name: tuple[str, ...]) -> list[Change]:
    return [edit for edit in edits if isinstance(edit, Change) and _named(edit.path) == name]


def _named(path: Path) -> tuple[str, ...]:
    """A place without what only says that a slice lies there: a limit may come and go."""
    return tuple(str(place) for place in path if place != -1)


def _bare(mixture: Mixture) -> bytes:
    """What a mixture is, without what happened to it."""
    return canonical(mixture_to_json(replace(mixture, log=())))


# ---------------------------------------------------------------- where mixtures stand


def standing(flow: Flow, epoch: int, at: int) -> dict[Path, int]:
    """Where the mixtures of an indexed tree stand at a row of a pass."""
    builder = Builder(flow)
    program = builder.program(tail_of(flow).flow)
    found = dict[int, int]()
    _descend(program, at + epoch * (program.size or 0), found)
    paths = {id(schedule): path for path, schedule in builder.mixtures.items()}
    return {paths[mark]: place for mark, place in found.items() if mark in paths}


def _descend(program: Program, position: int, found: dict[int, int], ahead: bool = False) -> None:
    """`ahead`: rows that are to come may be of documents before the position, so the end of a pass is no beginning."""
    match program:
        case EachProgram(flow) | ReorderProgram(flow, Repeat()):
            _descend(flow, position, found, ahead)
        case BatchProgram(flow):
            _descend(flow, below_batch(program, position), found, ahead)
        case PackProgram(flow):
            _descend(flow, program.drawn(position), found, True)
        case ReorderProgram(flow, Slice(start, count, 1)):
            _descend(flow, start + position % max(count, 1), found, ahead)
        case ReorderProgram(flow, Replay()):
            _descend(flow, position % max(flow.size or 1, 1), found, ahead)
        case ReorderProgram(flow, Gap() as gap) if position:
            last = gap.down(np.asarray([position - 1]), flow.size, 0)[0]
            _descend(flow, int(last[0]) + 1, found, ahead)
        case ReorderProgram(flow) if flow.size and position % flow.size == 0:
            _descend(flow, position, found, ahead)
        case MixProgram(flows, schedule):
            epoch, place = divmod(position, program.size) if program.size else (0, position)
            if ahead and epoch and not place:
                epoch, place = epoch - 1, program.size or 0
            found[id(schedule)] = place
            if isinstance(schedule, Counted):
                for flow, k in zip(flows, (schedule.counts(place) + epoch * _advance(program)).tolist(), strict=True):
                    _descend(flow, k, found, ahead)
        case _:
            pass


def _advance(program: MixProgram) -> Any:
    return program.advance if program.size is not None else 0
