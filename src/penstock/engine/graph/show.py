"""Descriptions of pipelines for people: a short tree of steps, sources, rows and shares.

No data is read, and broken pipelines can be shown too, because people look at those most.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

from ...schedule import Schedule
from ...types import Sizer, is_source
from ..base.tree import collate
from ..mixing import SetWeights
from ..mixing.rules import By, Chain, Cycle, Turns, Weighted
from ..orders import (
    AllBut,
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
)
from ..packing import PackedBatches, Packing
from ..steps.function_step import FunctionStep, describe_function
from ..steps.map import Map
from ..steps.random_map import RandomMap
from .compiled import Compiled
from .ends import endless
from .indexed import why_not
from .nodes import (
    Again,
    Batch,
    Flow,
    Head,
    Hold,
    Mix,
    Read,
    Reorder,
    Rest,
    Without,
    is_counter,
)
from .shown import Shown, attempt, counted

_LINES = 12
_STEPS = 10  # of a chain
_INPUTS = 64  # more are not compiled to be shown
_NAME = 40  # characters


def shown(head: str, flow: Flow) -> Shown:
    """`head`, and the tree: in one line where it is a chain over one source.

    >>> from penstock.engine.orders import Shuffle
    >>> print(shown("Dataset", Reorder(Read(range(3), "words"), Shuffle(), 1)))
    Dataset: words (3 rows) -> shuffle(seed=1)
    """
    tree = attempt(lambda: _tree(flow, "", _LINES - 1), Shown(f"{type(flow).__name__}?"))
    return Shown(head, (tree,)) if tree.below else Shown(f"{head}: {tree.text}")


def length(compiled: Compiled) -> str:
    """How many items a pass has, as far as that is known without reading, and soon."""
    return attempt(lambda: _length(compiled), ", length unknown")


def _length(compiled: Compiled) -> str:
    if "size" not in vars(compiled):
        inputs = _inputs_in(compiled.flow)
        if inputs is not None and why_not(compiled.flow):
            return ", not indexed"
        if endless(compiled.flow):
            return ", endless"
        if inputs is None or inputs > _INPUTS:
            return ", length not computed yet"
    return ", endless" if compiled.size is None else f" of {counted(compiled.size, 'item')}"


def _inputs_in(flow: Flow) -> int | None:
    """Return the number of inputs of the mixtures in a tree; None if the length depends on packing
    and may need reads.
    """
    left, inputs = [flow], 0
    while left:
        match left.pop():
            case Hold(Read() | Reorder() | Mix(), _, Sizer(by_length=True)):
                return None
            case Mix(flows):
                inputs += len(flows)
                left += flows
            case Reorder(below) | FunctionStep(below) | Hold(below):
                left.append(below)
            case _:
                pass
    return inputs


def _tree(flow: Flow, name: str, room: int) -> Shown:
    """A flow in so many lines."""
    steps, end = _chain(flow)
    if isinstance(end, Mix):
        return Shown(_joined([_titled(name, _rule(end)), *steps]), _inputs(end, room - 1))
    return Shown(_joined([_source(end, name), *steps]))


def _chain(flow: Flow) -> tuple[list[str], Flow]:
    """The steps over a source or a mixture, in the order in which they were written, and that."""
    steps = list[str]()
    while True:
        below = (
            flow.flow
            if isinstance(flow, Reorder | FunctionStep | Hold | Head | Rest | Again)
            else None
        )
        broken = (f"{type(flow).__name__}?", below) if below else None
        if (found := attempt(partial(_step, flow), broken)) is None:
            break
        steps.append(found[0])
        flow = found[1]
    if isinstance(flow, FunctionStep) and isinstance(flow.flow, Hold):  # the tuples of a zip
        flow = flow.flow.flow
    return steps[::-1], flow


def stage(flow: Flow) -> str:
    """A step as the user wrote it."""
    found = attempt(lambda: _step(flow), None)
    return found[0] if found else "zip()"


def _step(flow: Flow) -> tuple[str, Flow] | None:
    """The last step of a chain as the user wrote it, and what it is a step of; None at the end of
    the chain."""
    match flow:
        case Head(below, n):
            return _call("limit", n), below
        case Rest(below, n):
            return _call("skip", n), below
        case Again(below, epochs):
            return _call("repeat", epochs), below
        case Map(Hold(Mix((numbers, below), _, Turns()))) if is_counter(numbers):
            return "zip(index)", below
        case Map(Hold(Mix(_, _, Turns()), Batch()), fn) if fn is tuple:
            return None
        case Map(Hold(Hold(below), Batch() as batch), PackedBatches(packing)):
            return f"{_packed(packing)} -> {_batch(batch, collate)}", below
        case Map(Hold(below, Batch() as batch), fn):
            return _batch(batch, fn), below
        case Map(Hold(below), Packing() as packing):
            return _packed(packing), below
        case Map(Hold(below, fold, _, seed, named)) if not isinstance(fold, Batch):
            return _described(fold.describe(), seed, named), below
        case FunctionStep(below, fn):
            seed, named = (flow.seed, flow.name) if isinstance(flow, RandomMap) else (None, None)
            function, option = _called(fn), flow.OPTION or None
            return _call(flow.METHOD, function, option, seed=seed, name=_text(named)), below
        case Hold(below, Batch() as batch):
            return _batch(batch, collate), below
        case Hold(below, fold, _, seed, named):
            return _described(cast(Any, fold).describe(), seed, named), below
        case Reorder(below, order, seed, named):
            return _order(order, seed, named), below
        case _:
            return None


def _order(order: Any, seed: int | None, named: str | None) -> str:
    match order:
        case Shuffle():
            return _call("shuffle", seed=seed, name=_text(named))
        case BlockShuffle(rows, window):
            return _call("shuffle", block=(rows, window), seed=seed, name=_text(named))
        case BucketShuffle(rows):
            return _call("shuffle", buckets=rows, seed=seed, name=_text(named))
        case WindowShuffle(window):
            return _call("shuffle", window=window, seed=seed, name=_text(named))
        case Slice(start, count, step):
            return _call("slice", start, start + count * step, *([] if step == 1 else [step]))
        case AllBut(places):
            return f"without {counted(len(places), 'row')}"
        case Pick(places):
            return _call("select", counted(len(places), "row"))
        case Portion(some, of, key, others):
            part = of - some if others else some
            return _call("split", _percent(part / of), seed=key or None)
        case Gap(0, count):
            return _call("skip", count)
        case Repeat(epochs):
            return _call("repeat", epochs)
        case RepeatEach(n):
            return _call("repeat_each", n)
        case Replay(epochs):
            return _call("repeat", epochs, reshuffle=False)
        case Without(_, indices):
            return f"without {counted(sum(map(len, indices)), 'sample')}"
        case _:
            return _described(order.describe(), seed, named)


def _batch(batch: Batch, build: Any) -> str:
    own = None if build is collate else _called(build)
    return _call("batch", batch.n, drop_remainder=batch.drop_remainder or None, collate=own)


def _packed(packing: Packing) -> str:
    return _call(
        "pack", packing.length, None if packing.method == "concat_split" else packing.method
    )


def _text(name: str | None) -> str | None:
    """The name of a step, as it is written in a call."""
    return None if name is None else repr(_named(name))


def _described(described: Any, seed: int | None, named: str | None) -> str:
    """A step from its description: the name under which it goes, and the settings that are
    short."""
    settings = dict(cast("Mapping[str, Any]", described))
    name = _named(settings.pop("order", None) or settings.pop("fold", "a step"))
    short = {
        _named(key): _named(value)
        for key, value in settings.items()
        if isinstance(value, str | int | float)
    }
    return _call(name, short.pop("n", None), **{**short, "seed": seed, "name": _text(named)})


def _call(step: str, /, *args: Any, **options: Any) -> str:
    """A call as it is written, without what was not given."""
    given = [str(arg) for arg in args if arg is not None]
    given += [f"{key}={value}" for key, value in options.items() if value is not None]
    return f"{step}({', '.join(given)})"


def _called(fn: Any) -> str | None:
    """The name of a function, without where it was defined; None of our own."""
    name = attempt(lambda: describe_function(fn), type(fn).__name__).rpartition("<locals>.")[2]
    return None if name.startswith("_") else _named(name)


def _named(name: object) -> str:
    """A name that was found in data, on one line and short."""
    text = str(name) if str(name).isprintable() else ascii(name)
    return text if len(text) <= _NAME else f"{text[: _NAME - 3]}..."


def _titled(name: str, text: str) -> str:
    return f"{_named(name)}: {text}" if name else text


def _joined(steps: list[str]) -> str:
    if len(steps) > _STEPS:
        head, tail = _STEPS // 2, _STEPS - _STEPS // 2 - 1
        steps = [*steps[:head], f"... {len(steps) - head - tail} more steps", *steps[-tail:]]
    return " -> ".join(steps)


def _source(flow: Flow, name: str) -> str:
    if not isinstance(flow, Read):
        return _titled(name, f"{type(flow).__name__}?")
    source: Any = flow.source
    rows = "a stream"
    if attempt(lambda: is_source(source) or hasattr(source, "__len__"), True):
        rows = attempt(lambda: counted(len(source), "row"), "rows unknown")
    return f"{_named(name or flow.name or 'data')} ({rows})"


def _rule(mix: Mix) -> str:
    """How a mixture weaves, as the user wrote it."""
    inputs = counted(len(mix.flows), "input")
    match mix.rule:
        case Chain():
            return _call("concat", inputs)
        case Turns():
            return _call("zip", inputs)
        case Cycle(width):
            return _call("interleave", inputs, width=width)
        case By(mixing):
            return _call("mix", inputs, rule=type(mixing).__name__)
        case Weighted() as rule:
            caps = rule.max_epochs
            return _call(
                "mix",
                inputs,
                seed=rule.seed or None,
                stop=None if rule.stop == "restart" else rule.stop,
                unit=None if rule.unit == "samples" else rule.unit,
                block_size=None if rule.block_size == 1 else rule.block_size,
                max_epochs=_named(dict(caps)) if isinstance(caps, tuple) else caps,
                temperature=rule.temperature,
                **({} if rule.draw_change is None else rule.draw_change.describe()),
                changes=len(rule.events) or None,
            )
        case _:
            return _call(type(mix.rule).__name__.lower(), inputs)


def _inputs(mix: Mix, room: int) -> tuple[Shown, ...]:
    """The inputs of a mixture in so many lines: the largest few by weight, and how many more there
    are."""
    first, last = attempt(lambda: _shares(mix), ({}, {}))
    everything = list(zip(mix.names, mix.flows, strict=False))
    if first:
        everything.sort(key=lambda each: -max(first[each[0]], last[each[0]]))
    few = everything if len(everything) <= room else everything[: max(0, room - 1)]
    found, spare = list[Shown](), room - len(few) - (len(few) < len(everything))
    texts = [_share(first[name], last[name]) if first else "" for name, _ in few]
    wide = max(map(len, texts), default=0)
    for text, (name, flow) in zip(texts, few, strict=True):
        below = _tree(flow, name if isinstance(mix.rule, Weighted | By) else "", 1 + spare)
        spare -= _lines_of(below) - 1
        found.append(Shown(f"{text:>{wide}}  {below.text}" if text else below.text, below.below))
    if rest := everything[len(few) :]:
        share = f", {_percent(sum(first[name] for name, _ in rest))} together" if first else ""
        found.append(Shown(f"... {len(rest)} more{share}"))
    return tuple(found) if room > 0 else ()


def _lines_of(tree: Shown) -> int:
    return 1 + sum(map(_lines_of, tree.below))


def _shares(mix: Mix) -> tuple[dict[str, float], dict[str, float]]:
    """The share of every input at first and at last; nothing where the weights follow from lengths,
    or are none."""
    rule = mix.rule
    if not isinstance(rule, Weighted) or (rule.weights is None and rule.temperature is not None):
        return {}, {}
    given: Any = rule.weights or dict.fromkeys(mix.names, 1.0)
    for _, event in rule.events:
        given = event.weights if isinstance(event, SetWeights) else given
    ends = (
        (given.points[0][1], given.points[-1][1]) if isinstance(given, Schedule) else (given, given)
    )
    return _parts(mix.names, dict(ends[0])), _parts(mix.names, dict(ends[1]))


def _parts(names: tuple[str, ...], weights: Mapping[str, Any]) -> dict[str, float]:
    found = {name: float(weights.get(name, 0.0)) for name in names}
    whole = sum(found.values())
    return {name: weight / whole for name, weight in found.items()}


def _share(first: float, last: float) -> str:
    return _percent(first) if first == last else f"{_percent(first)} to {_percent(last)}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
