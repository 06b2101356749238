"""The indexed flows: those whose n-th item needs no earlier item; and the reason why others are
not.
"""

from __future__ import annotations

from typing import Any

from ...errors import IndexedError
from ...types import is_source
from ..base.seams import world
from ..mixing.rules import Chain, Weighted
from ..packing import SOURCE, Apart, has_independent_rows
from ..steps.function_step import FunctionStep
from ..steps.map import Map
from .ends import endless
from .nodes import Again, Batch, Flow, Head, Hold, Mix, Read, Reorder, Rest, fact
from .tail import tail_of


@fact
def why_not(flow: Flow) -> str | None:
    """The step that keeps a flow from being indexed, or None if it is."""
    match flow:
        case Read(source, name):
            return (
                None
                if is_source(source)
                else f"the source {name or 'stream'!r} can only be read in sequence"
            )
        case Reorder(below) | Head(below) | Rest(below) | Again(below):
            return why_not(below)
        case Mix(flows, _, rule):
            return rule.unindexed or next(
                (reason for reason in map(why_not, flows) if reason), None
            )
        case FunctionStep(below):
            if flow.keeps_positions:
                return why_not(below)
            step = f"{flow.METHOD}({flow.OPTION})"
            return f"{step} gives a number of samples that depends on the data"
        case Hold(below, fold, size):
            if (reason := why_not(below)) is not None or isinstance(fold, Batch):
                return reason
            if isinstance(fold, Apart) and fold.by != SOURCE:
                return f"pack(group_by={fold.by!r}) needs values of the samples, which are not known beforehand"
            if getattr(fold, "reads_values", False):
                return f"{type(fold).__name__} needs values of the samples, which are not known beforehand"
            if size is not None and not size.by_length:
                return f"{type(fold).__name__} needs sizes that a function gives, which are not known beforehand"
            if not lengths_known(below):
                return f"{type(fold).__name__} needs the lengths of the samples, which are not known beforehand"
            if endless(below) and not has_independent_rows(fold):
                return f"{type(fold).__name__} over an endless dataset cannot be planned ahead (limit(n) makes it end)"
            return None


def tail_group(flow: Flow) -> int | None:
    """How many rows one item of an indexed flow takes; None where the yield depends on the data."""
    return tail_of(flow).group if why_not(flow) is None else None


def require_indexed(flow: Flow, wanted: str, remedy: str) -> None:
    """Refuse, with the reason and the remedy, what needs random access."""
    if (reason := why_not(flow)) is not None:
        raise IndexedError(f"{wanted} needs random access, but {reason}; {remedy}")


@fact
def lengths_known(flow: Flow) -> bool:
    """Whether the lengths of all samples of a flow are known without reading them."""
    match flow:
        case Read(source):
            return is_source(source) and source.lengths() is not None
        case Reorder(below):
            return lengths_known(below)
        case Mix(flows, _, Weighted() | Chain()):
            return all(map(lengths_known, flows))
        case Map(below, fn):
            return counted_for(fn, below) and lengths_known(below)
        case _:
            return False


def counted_for(fn: Any, flow: Flow) -> bool:
    """Whether the lengths that sources know are those that a function makes of their rows."""
    return (known := _known_as(fn)) is not None and known == _counted(flow)


def _counted(flow: Flow) -> tuple[str, str] | None:
    """Return the tokenizer for which the lengths of all sources were counted; None if they differ
    or have plain lengths.
    """
    match flow:
        case Read(source):
            return _known_as(getattr(source, "counts", None) or source)
        case Reorder(below):
            return _counted(below)
        case Mix(flows):
            found = set(map(_counted, flows))
            return found.pop() if len(found) == 1 else None
        case _:
            return None


def _known_as(counts: Any) -> tuple[str, str] | None:
    """Return the identity of a token counter: its name, and its code if other counters share the
    name.
    """
    told = getattr(counts, "counted", None)
    return (
        None
        if told is None
        else (told, "" if getattr(counts, "lasting", True) else world.digests.digest_code(counts))
    )
