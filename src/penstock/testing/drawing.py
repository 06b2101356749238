"""Random recipes for property tests: every drawn pipeline is valid and can be shrunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import make_missing_extra_error
from . import recipes as r

if TYPE_CHECKING:
    from hypothesis import strategies as st

T = TypeVar("T")


@dataclass(frozen=True)
class _DrawnRecipe:
    """A recipe with the properties that decide which steps may follow."""

    recipe: r.Recipe
    indexed: bool = True
    length: int | None = None  # of every pass, if known
    full: bool = True  # never empty
    endless: bool = False
    once: bool = False  # a second pass is undefined
    random: bool = False  # every pass has a new order
    steady: bool = True  # every pass has the same number of samples
    batches: bool = False
    one_source: bool = False  # stretches of one source, which no pack may cut
    lengths: bool = False  # documents whose lengths are known without reading
    final: bool = False  # the order is only partly determined: no step may follow

    def then(self, kind: str, *args: Any, **changes: Any) -> _DrawnRecipe:
        return replace(
            self,
            recipe=(kind, self.recipe, *args),
            **{"batches": False, "lengths": False, **changes},
        )

    def stream(self, kind: str, *args: Any, **changes: Any) -> _DrawnRecipe:
        """Append a step without an index, whose output depends on the data."""
        usual: dict[str, Any] = {
            "indexed": False, "length": None, "full": False, "steady": self.steady and not self.random,
        }  # fmt: skip
        return self.then(kind, *args, **{**usual, **changes})


class _StrategyChoices:
    """Small choices from a hypothesis draw function, simplest first."""

    def __init__(self, draw: Callable[[Any], Any], strategies: Any) -> None:
        self._draw, self._st = draw, strategies

    def between(self, low: int, high: int) -> int:
        return self._draw(self._st.integers(low, high))

    def one(self, options: Sequence[T]) -> T:
        return self._draw(self._st.sampled_from(options))

    def coin(self) -> bool:
        return self._draw(self._st.booleans())


def pipelines(
    depth: int = 4, *, endless: bool = True, streams: bool = True
) -> st.SearchStrategy[r.Recipe]:
    """Return a hypothesis strategy for recipes of up to `depth` steps over small sources.

    Sources have 1 to 12 samples; all steps occur in every valid order. Needs the extra `test`.

    Args:
        depth: Maximum number of steps.
        endless: Include endless pipelines.
        streams: Include pipelines without an index.

    Returns:
        The strategy. It draws recipes for `build`, and shrinks to few and simple steps.

    Raises:
        ImportError: hypothesis is not installed.

    >>> import penstock.testing as testing
    >>> from hypothesis import given, settings
    >>> @settings(max_examples=5, derandomize=True, database=None)
    ... @given(pipelines(2, endless=False))
    ... def check(recipe):
    ...     testing.assert_same_run(lambda: testing.build(recipe), lambda: testing.build(recipe))
    >>> check()
    """
    try:
        from hypothesis import strategies as st
    except ImportError:
        raise make_missing_extra_error("hypothesis", "test", "penstock.testing.pipelines") from None

    @st.composite
    def one(draw: st.DrawFn) -> r.Recipe:
        dice = _StrategyChoices(draw, st)
        names = iter("abcdefghijklmnopqrstuvwxyz")
        drawn = _draw_pipeline(dice, names, dice.between(0, depth), endless, streams)
        seeded = dice.between(0, 5) == 5
        return ("seed", drawn.recipe, dice.between(1, 3)) if seeded else drawn.recipe

    return one()


def _draw_pipeline(
    dice: _StrategyChoices, names: Any, depth: int, endless: bool, streams: bool
) -> _DrawnRecipe:
    drawn = _draw_source(dice, names, streams)
    for left in range(depth - 1, -1, -1):
        if drawn.final:
            break
        drawn = dice.one(_list_steps(drawn, left, endless, streams))(dice, names, drawn, left)
    return drawn


def _draw_source(dice: _StrategyChoices, names: Any, streams: bool) -> _DrawnRecipe:
    n = dice.between(1, 12)
    first = dice.between(0, 9)
    values: tuple[Any, ...] = tuple(range(first, first + n))
    kind = dice.one(("seq", "seq", "seq", "holes", "iterable", "source", "tokens"))
    name = next(names)
    if kind == "iterable" and streams:
        return _DrawnRecipe(("iterable", values, name), indexed=False)
    if kind == "tokens":
        return _DrawnRecipe(
            ("tokens", tuple(1 + v * 5 % 7 for v in values), name), length=n, lengths=True
        )
    if kind == "source":
        return _DrawnRecipe(("with_source", ("map", ("seq", values, name), r.mapping)), length=n)
    if kind == "holes":
        values = tuple(None if v % 4 == 3 else v for v in values)
    return _DrawnRecipe(("seq", values, name), length=n)


_StepFunction = Callable[[_StrategyChoices, Any, _DrawnRecipe, int], _DrawnRecipe]


def _list_steps(
    drawn: _DrawnRecipe, left: int, endless: bool, streams: bool
) -> list[_StepFunction]:
    """Return the steps that may follow."""
    steps: list[_StepFunction] = [
        _append_map,
        _append_random_map,
        _append_batch,
        _append_map_with_index,
        _append_limit,
        _append_skip,
    ]
    if streams:
        steps += [_append_shuffle_buffer, _append_window, _append_doubling]
    if drawn.batches and streams:
        steps += [_append_rebatch, _append_rebatch]
    if not drawn.endless:
        # An empty stream is invalid.
        steps += [_append_repeat] if not drawn.once and (drawn.full or drawn.indexed) else []
        steps += (
            [
                _append_skip_map,
                _append_filter,
                _append_flat_map,
                _append_bucket_by_length,
                _append_batch_by_tokens,
                *([] if drawn.one_source else [_append_pack]),
            ]
            if streams
            else []
        )
        steps += [_append_endless_repeat] if drawn.full and endless and not drawn.once else []
    if drawn.indexed:
        steps += [_append_slice, _append_slice, _append_repeat_each]
        steps += [] if drawn.endless else [_append_select]
        steps += (
            [_append_window]
            if drawn.endless
            else [_append_shuffle, _append_shuffle, _append_window, _append_shard]
        )
    if left:
        steps += [_append_concat, _append_zip]
        if drawn.full and (drawn.endless or (drawn.steady and not drawn.once)):
            steps += [partial(_append_mix, endless=endless, streams=streams)] * 3
    return steps


# ---------------------------------------------------------------- steps


def _append_map(dice: _StrategyChoices, _n: Any, f: _DrawnRecipe, _k: int) -> _DrawnRecipe:
    many = dice.between(0, 3)
    return (
        f.then("map_batched", r.doubles, many)
        if many
        else f.then("map", dice.one((r.double, r.paired)))
    )


def _append_random_map(_d: _StrategyChoices, _n: Any, f: _DrawnRecipe, _k: int) -> _DrawnRecipe:
    return f.then("random_map", r.noisy)


def _append_map_with_index(_d: _StrategyChoices, _n: Any, f: _DrawnRecipe, _k: int) -> _DrawnRecipe:
    return f.then("map_with_index", r.split_by_position)


def _append_skip_map(_d: _StrategyChoices, _n: Any, f: _DrawnRecipe, _k: int) -> _DrawnRecipe:
    return f.stream("skip_map", r.refuse_thirds, batches=f.batches)


def _append_filter(dice: _StrategyChoices, _n: Any, f: _DrawnRecipe, _k: int) -> _DrawnRecipe:
    return f.stream("filter", dice.one((r.even, r.most)), batches=f.batches)


def _append_flat_map(_d: _StrategyChoices, _n: Any, f: _DrawnRecipe, _k: int) -> _DrawnRecipe:
    return f.stream("flat_map", r.spread)


def _append_doubling(_d: _StrategyChoices, _n: Any, f: _DrawnRecipe, _k: int) -> _DrawnRecipe:
    return f.stream("flat_map", r.twice, full=f.full, steady=f.steady, batches=f.batches)


def _append_batch(dice: _StrategyChoices, _n: Any, f: _DrawnRecipe, _k: int) -> _DrawnRecipe:
    n, drop = dice.between(1, 4), dice.coin()
    length = None if f.length is None else f.length // n if drop else -(-f.length // n)
    full = f.full and (not drop or f.endless or bool(length))
    return f.then("batch", n, drop, length=length, full=full, batches=True)


def _append_rebatch(dice: _StrategyChoices, _n: Any, f: _DrawnRecipe, _k: int) -> _DrawnRecipe:
    return f.stream("rebatch", dice.between(1, 5), dice.coin(), batches=True)


def _append_shuffle_buffer(
    dice: _StrategyChoices, _n: Any, f: _DrawnRecipe, _k: int
) -> _DrawnRecipe:
    return f.stream(
        "shuffle_buffer",
        dice.between(1, 6),
        full=f.full,
        steady=f.steady,
        random=True,
        batches=f.batches,
    )


def _append_window(dice: _StrategyChoices, _n: Any, f: _DrawnRecipe, _k: int) -> _DrawnRecipe:
    kept: dict[str, Any] = {"random": True, "batches": f.batches}
    args = dice.between(1, 6), dice.between(0, 3)
    if f.indexed:
        return f.then("window", *args, lengths=f.lengths, **kept)
    return f.stream("window", *args, full=f.full, steady=f.steady, **kept)


def _append_bucket_by_length(
    dice: _StrategyChoices, _n: Any, f: _DrawnRecipe, _k: int
) -> _DrawnRecipe:
    return f.stream("bucket_by_length", (2, 4, 6), dice.between(1, 3), r.size, full=f.full)


def _append_batch_by_tokens(
    dice: _StrategyChoices, _n: Any, f: _DrawnRecipe, _k: int
) -> _DrawnRecipe:
    return f.stream("batch_by_tokens", dice.between(7, 15), r.size, full=f.full)


def _append_pack(dice: _StrategyChoices, _n: Any, f: _DrawnRecipe, _k: int) -> _DrawnRecipe:
    method = dice.one(("concat_split", "concat_split", "first_fit", "best_fit"))
    final, multiple = method != "concat_split", dice.one((1, 1, 2, 4))
    length = dice.between(7, 16) // multiple * multiple
    if f.lengths:
        return f.then("pack", length, method, multiple, length=None, final=final)
    return f.then("map", r.document).stream(
        "pack", length, method, multiple, full=f.full, final=final
    )


def _append_limit(dice: _StrategyChoices, _n: Any, f: _DrawnRecipe, _k: int) -> _DrawnRecipe:
    n = dice.between(0, 9)
    length = n if f.endless and f.indexed else None if f.length is None else min(n, f.length)
    changes: dict[str, Any] = {
        "length": length,
        "full": f.full and n > 0,
        "endless": False,
        "batches": f.batches,
        "lengths": f.lengths and f.indexed,
    }
    first = {"random": False, "once": False} if f.indexed else {"once": f.once or f.endless}
    return f.then("limit", n, **changes, **first)


def _append_skip(dice: _StrategyChoices, _n: Any, f: _DrawnRecipe, _k: int) -> _DrawnRecipe:
    n = dice.between(0, 4)
    length = None if f.length is None else max(0, f.length - n)
    first = {"random": False, "once": False} if f.indexed and not f.endless else {}
    kept: dict[str, Any] = {"batches": f.batches, "lengths": f.lengths and f.indexed, **first}
    return f.then(
        "skip", n, length=length, full=f.full and (n == 0 or f.endless or bool(length)), **kept
    )


def _append_repeat(dice: _StrategyChoices, _n: Any, f: _DrawnRecipe, _k: int) -> _DrawnRecipe:
    n, again = dice.between(1, 3), not f.indexed or dice.coin()
    length = None if f.length is None else n * f.length
    return f.then("repeat", n, again, length=length, batches=f.batches, lengths=f.lengths)


def _append_repeat_each(dice: _StrategyChoices, _n: Any, f: _DrawnRecipe, _k: int) -> _DrawnRecipe:
    n = dice.between(1, 3)
    return f.then(
        "repeat_each", n, length=f.length and n * f.length, batches=f.batches, lengths=f.lengths
    )


def _append_endless_repeat(
    dice: _StrategyChoices, _n: Any, f: _DrawnRecipe, _k: int
) -> _DrawnRecipe:
    again = not f.indexed or dice.coin()
    kept: dict[str, Any] = {"batches": f.batches, "lengths": f.lengths}
    return f.then("repeat", None, again, length=None, endless=True, steady=False, **kept)


def _append_shuffle(dice: _StrategyChoices, _n: Any, f: _DrawnRecipe, _k: int) -> _DrawnRecipe:
    return f.then("shuffle", dice.between(0, 3), random=True, batches=f.batches, lengths=f.lengths)


def _append_slice(dice: _StrategyChoices, _n: Any, f: _DrawnRecipe, _k: int) -> _DrawnRecipe:
    """Append any slice of a finite pass, also reversed; of an endless one, a finite slice."""
    a, c = dice.between(0, 4), dice.one((1, 1, 2, 3))
    if f.endless:
        b: int | None = a + dice.between(0, 12)
        length = len(range(a, b, c))
    else:
        b = dice.one((None, 3, 8, -1, -2))
        if dice.between(0, 4) == 4:
            a, b, c = -1 - a, None, -c
        length = None if f.length is None else len(range(f.length)[a:b:c])
    return _append_fixed_set(f, length, "slice", a, b, c)


def _append_select(dice: _StrategyChoices, _n: Any, f: _DrawnRecipe, _k: int) -> _DrawnRecipe:
    """Select positions of a pass of known length, else slice."""
    if not f.length:
        return _append_slice(dice, _n, f, _k)
    places = tuple(dice.between(-f.length, f.length - 1) for _ in range(dice.between(1, 4)))
    return _append_fixed_set(f, len(places), "select", places)


def _append_shard(dice: _StrategyChoices, _n: Any, f: _DrawnRecipe, _k: int) -> _DrawnRecipe:
    n = dice.between(1, 3)
    i = dice.between(0, n - 1)
    return _append_fixed_set(
        f, None if f.length is None else len(range(i, f.length, n)), "shard", i, n
    )


def _append_fixed_set(f: _DrawnRecipe, length: int | None, kind: str, *args: Any) -> _DrawnRecipe:
    """Append a fixed set of positions of the first pass, equal in every pass."""
    kept: dict[str, Any] = {
        "batches": f.batches,
        "lengths": f.lengths,
        "full": bool(length),
        "length": length,
    }
    return f.then(kind, *args, random=False, endless=False, once=False, steady=True, **kept)


def _draw_other_inputs(
    dice: _StrategyChoices, names: Any, left: int, endless: bool, streams: bool
) -> list[_DrawnRecipe]:
    """Draw one or two more inputs; drop those that allow no further step."""
    found = [
        _draw_pipeline(dice, names, dice.between(0, min(left, 2)), endless, streams)
        for _ in range(dice.between(1, 2))
    ]
    return [f for f in found if not f.final]


def _append_concat(dice: _StrategyChoices, names: Any, f: _DrawnRecipe, left: int) -> _DrawnRecipe:
    others = _draw_other_inputs(dice, names, left, False, not f.indexed)
    joined = [*others, f] if f.endless else [f, *others]  # no input follows an endless one
    return _join_recipes(
        "concat",
        joined,
        sum,
        any(g.full for g in joined),
        any(g.endless for g in joined),
    )


def _append_zip(dice: _StrategyChoices, names: Any, f: _DrawnRecipe, left: int) -> _DrawnRecipe:
    joined = [f, *_draw_other_inputs(dice, names, left, False, not f.indexed)]
    return _join_recipes(
        "zip", joined, min, all(g.full for g in joined), all(g.endless for g in joined)
    )


def _join_recipes(
    kind: str,
    joined: list[_DrawnRecipe],
    total: Callable[[list[int]], int],
    full: bool,
    endless: bool,
) -> _DrawnRecipe:
    lengths = [g.length for g in joined]
    known = [n for n in lengths if n is not None]
    return _DrawnRecipe(
        (kind, tuple(g.recipe for g in joined)),
        indexed=all(g.indexed for g in joined),
        length=total(known) if len(known) == len(joined) else None,
        full=full,
        endless=endless,
        random=any(g.random for g in joined),
        steady=all(g.steady for g in joined) and not endless,
        once=any(g.once or g.endless for g in joined),
        lengths=kind == "concat" and all(g.lengths for g in joined),
    )


def _append_mix(
    dice: _StrategyChoices, names: Any, f: _DrawnRecipe, left: int, *, endless: bool, streams: bool
) -> _DrawnRecipe:
    others = _draw_other_inputs(dice, names, left, False, streams)
    joined = [f, *(g for g in others if g.full and g.steady and not g.once)]
    finite = not any(g.endless for g in joined)
    stops = ["all_exhausted", "first_exhausted", "all_exhausted_oversample"] if finite else []
    stop = dice.one([*stops, *(["restart"] if endless or f.endless else [])])
    weights = [dice.between(1, 4) for _ in joined]
    if len(joined) > 1 and dice.between(0, 9) == 9:
        weights[dice.between(0, len(joined) - 1)] = 0
    caps: Any = None
    if finite and stop in ("restart", "all_exhausted"):
        some: tuple[float, ...] = (
            (1, 2, 1.5) if all(g.indexed for g in joined) else (1, 2)
        )  # streams repeat in whole passes only
        caps = dice.one((None, None, *some, tuple(dice.one(some) for _ in joined)))
    per, lengths = dice.one((1, 1, 2, 3)), [g.length or 0 for g in joined]
    if (finite and min(lengths) < per) or (caps is not None and not all(g.indexed for g in joined)):
        per = 1
    if stop != "restart" and not all(g.indexed for g in joined):
        per = 1
    return _DrawnRecipe(
        ("mix", tuple((f"m{i}", g.recipe) for i, g in enumerate(joined)), tuple(weights), dice.one((1, 1, 3, 10, 1000)),
         stop, caps, dice.between(0, 3), per),
        one_source=per > 1,
        indexed=all(g.indexed for g in joined),
        endless=not finite or (stop == "restart" and caps is None),
        random=True,
        steady=stop == "all_exhausted" or caps is not None,
        once=stop == "all_exhausted_oversample" and not all(g.indexed for g in joined),
        lengths=all(g.lengths for g in joined),
    )  # fmt: skip
