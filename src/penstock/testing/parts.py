"""Conformance tests of one part: a source, an order, a mixing rule or a fold."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from ..arguments import require_protocol
from ..engine.mixing.rules import Invertible
from ..sources.memory import Memory
from ..types import Fold, Ints, Item, Mixing, Order, Part, Source
from .asserts import describe_difference

_DISTANT_POSITION = 3 * 10**12
_MAX_POSITIONS = 300


def assert_source(source: Any, size: Callable[[Any], int] | None = None) -> None:
    """Assert that a source reads any indices, alone or together, with equal results.

    Args:
        source: Anything that `from_sequence` takes, or a source of a format; some samples are read.
        size: Size of a sample, which must agree with `lengths`.

    Raises:
        AssertionError: The source violates its contract.

    >>> assert_source("abc")
    >>> class Few:
    ...     def __len__(self): return 5
    ...     def read(self, indices): return sorted(set(indices.tolist()))
    >>> assert_source(Few())
    Traceback (most recent call last):
    ...
    AssertionError: Few.read gave 5 samples for 10 indices: one for each, also where an index is repeated
    """
    name, read = type(source).__name__, source if isinstance(source, Source) else Memory(source)
    n, sampled = len(read), np.unique(np.linspace(0, max(len(read) - 1, 0), 16).astype(np.int64))
    indices = np.concatenate([sampled[::-1], sampled]) if n else sampled[:0]
    together = read.read(indices)
    if len(together) != len(indices):
        raise AssertionError(
            f"{name}.read gave {len(together)} samples for {len(indices)} indices: one for each, "
            "also where an index is "
            "repeated"
        )
    for index, sample in zip(indices.tolist(), together, strict=True):
        if message := describe_difference(sample, read.read(np.array([index]))[0]):
            raise AssertionError(
                f"{name}.read gives another sample of index {index} among others than alone: "
                f"{message}"
            )
    lengths = read.lengths()
    if lengths is not None and ((shape := np.shape(lengths[:])) != (n,) or len(lengths) != n):
        raise AssertionError(
            f"{name}.lengths gave {shape}: one integer for each of {n} samples is needed"
        )
    for index, sample in zip(indices.tolist(), together, strict=True):
        if lengths is not None and size is not None and size(sample) != lengths[index]:
            raise AssertionError(
                f"{name}.lengths says {lengths[index]} of index {index}, its size is {size(sample)}"
            )
    _check_description(source, name)


def assert_order(
    order: Order, sizes: Sequence[int] = (1, 2, 7, 64), keys: Sequence[int] = (0, (1 << 64) - 1)
) -> None:
    """Assert that an order permutes within a pass, and that `up` inverts `down`.

    Args:
        order: The order.
        sizes: Lengths of the input's passes to test.
        keys: Random keys (64 bits) to test, over three passes each.

    Raises:
        AssertionError: The order violates its contract.

    >>> class Backwards:
    ...     def size(self, below): return below
    ...     def down(self, positions, below, key):
    ...         return positions // below * below + below - 1 - positions % below, None
    ...     def up(self, positions, below, key): return positions
    ...     def describe(self): return {"order": "backwards"}
    >>> assert_order(Backwards())
    Traceback (most recent call last):
    ...
    AssertionError: Backwards.up is not the inverse of down: position 0 comes from 1 of a pass of 2, and up(1) is 1
    """
    name = type(require_protocol(order, Order, "assert_order")).__name__
    for below in sizes:
        for key in keys:
            _check_order(order, name, below, key)
    _check_description(order, name)


def _check_order(order: Order, name: str, below: int, key: int) -> None:
    size = order.size(below)
    if size is None or size < 0:
        raise AssertionError(
            f"{name}.size({below}) is {size}: a pass of a finite input has a length"
        )
    positions = np.arange(3 * size)
    places, laps = order.down(positions, below, key)
    if laps is not None:
        raise AssertionError(
            f"{name}.down must return None after the indices: only slices and repeats replay samples"
        )
    _require_index_vector(places, positions, f"{name}.down")
    if len(wrong := np.flatnonzero(places // below != positions // max(size, 1))):
        p = int(wrong[0])
        raise AssertionError(
            f"{name}.down leaves the pass: position {p} (passes of {size}) comes from {places[p]} "
            f"(of {below})"
        )
    found, times = np.unique(places, return_counts=True)
    if (times > 1).any():
        raise AssertionError(
            f"{name}.down returns index {found[times > 1][0]} of a pass of {below} more than once"
        )
    back = order.up(places, below, key)
    _require_index_vector(back, positions, f"{name}.up")
    if len(wrong := np.flatnonzero(back != positions)):
        p = int(wrong[0])
        raise AssertionError(
            f"{name}.up is not the inverse of down: position {p} comes from {places[p]} of a pass of "
            f"{below}, and "
            f"up({places[p]}) is {back[p]}"
        )
    alone = [
        int(order.down(positions[p : p + 1], below, key)[0][0]) for p in range(0, len(positions), 5)
    ]
    if alone != places[::5].tolist():
        raise AssertionError(
            f"{name}.down returns other indices for one position than for several: it must be pure"
        )


def assert_rule(rule: Mixing, sizes: Sequence[int | None]) -> None:
    """Assert that a mixing rule makes every draw of each input once and in order.

    `counts` and `positions_of`, if defined, must agree with the draws. The first 300 positions (or three
    passes) are tested, and some distant ones.

    Args:
        rule: The rule.
        sizes: Lengths of the inputs' passes, None for endless.

    Raises:
        AssertionError: The rule violates its contract.

    >>> class Turns:
    ...     def size(self, sizes): return None
    ...     def at(self, positions): return positions % 2, positions
    ...     def describe(self): return {"rule": "turns"}
    >>> assert_rule(Turns(), (5, 5))
    Traceback (most recent call last):
    ...
    AssertionError: Turns.at skips a draw: position 2 is draw 2 of input 0, where draw 1 is next
    """
    name = type(require_protocol(rule, Mixing, "assert_rule")).__name__
    size = rule.size(sizes)
    positions = np.arange(_MAX_POSITIONS if size is None else min(_MAX_POSITIONS, 3 * size))
    source, k = rule.at(positions)
    _require_index_vector(source, positions, f"{name}.at")
    _require_index_vector(k, positions, f"{name}.at")
    far = rule.at(_DISTANT_POSITION + positions[:9])
    for where, found in ((positions, source), (_DISTANT_POSITION + positions[:9], far[0])):
        if len(wrong := np.flatnonzero((found < 0) | (found >= len(sizes)))):
            at = int(wrong[0])
            raise AssertionError(
                f"{name}.at draws from input {found[at]} of {len(sizes)} at position {where[at]}"
            )
    next_draws = [0] * len(sizes)
    for p, i, draw in zip(positions.tolist(), source.tolist(), k.tolist(), strict=True):
        if draw != next_draws[i]:
            problem = "skips a draw" if draw > next_draws[i] else "makes a draw twice"
            raise AssertionError(
                f"{name}.at {problem}: position {p} is draw {draw} of input {i}, where draw {next_draws[i]} "
                "is next"
            )
        next_draws[i] += 1
        if isinstance(rule, Invertible) and (counts := rule.counts(p + 1).tolist()) != next_draws:
            raise AssertionError(f"{name}.counts({p + 1}) is {counts}, but {next_draws} were drawn")
    if [int(rule.at(positions[p : p + 1])[1][0]) for p in positions[::7]] != k[::7].tolist():
        raise AssertionError(
            f"{name}.at returns other draws for one position than for several: it must be pure"
        )
    if isinstance(rule, Invertible):
        for where, (i, draws) in (
            (positions, (source, k)),
            (_DISTANT_POSITION + positions[:9], far),
        ):
            if len(wrong := np.flatnonzero(rule.positions_of(i, draws) != where)):
                at = int(wrong[0])
                raise AssertionError(
                    f"{name}.positions_of is not the inverse of at: draw {draws[at]} of input {i[at]} is made "
                    f"at {where[at]}"
                )
    _check_description(rule, name)


def assert_fold(
    fold: Fold, sizes: Sequence[int] = (1, 3, 2, 5, 4, 1, 1, 2, 6, 3), key: int = 0
) -> None:
    """Assert that a fold returns every item once, whole or in adjacent parts, and is pure.

    Args:
        fold: The fold.
        sizes: Sizes of the items to test with.
        key: Random key of the fold.

    Raises:
        AssertionError: The fold violates its contract.

    >>> class Pairs:
    ...     def init(self, key): return []
    ...     def step(self, held, item): return ([], [[*held, item]]) if held else ([item], [])
    ...     def flush(self, held): return []
    ...     def describe(self): return {"fold": "pairs"}
    >>> assert_fold(Pairs(), (1, 1, 1))
    Traceback (most recent call last):
    ...
    AssertionError: Pairs loses item 2 of 3: no group has it, and flush does not return it
    """
    name = type(require_protocol(fold, Fold, "assert_fold")).__name__
    first, again = (_run_fold(fold, name, sizes, key) for _ in range(2))
    if first != again:
        raise AssertionError(f"{name} returns other groups the second time: it must be pure")
    spans = dict[int, list[tuple[int, int]]]()
    for group in first:
        if not group:
            raise AssertionError(f"{name} returns a group of no items")
        for member in group:
            item, start, stop = (
                (member.item, member.start, member.stop)
                if isinstance(member, Part)
                else (member, 0, member.size)
            )
            spans.setdefault(item.number, []).append((start, stop))
    for number, size in enumerate(sizes):
        parts = sorted(spans.get(number, []))
        if not parts:
            raise AssertionError(
                f"{name} loses item {number} of {len(sizes)}: no group has it, and flush does not return it"
            )
        ends = [0, *(stop for _, stop in parts)]
        if [start for start, _ in parts] != ends[:-1] or ends[-1] != size:
            raise AssertionError(
                f"{name} returns item {number} of size {size} as {parts}: return it once, or in adjacent parts"
            )
    _check_description(fold, name)


def _run_fold(fold: Fold, name: str, sizes: Sequence[int], key: int) -> list[list[Item | Part]]:
    carry, groups = fold.init(key), list[list[Item | Part]]()
    for number, size in enumerate(sizes):
        before = copy.deepcopy(carry)
        after, ready = fold.step(carry, Item(number, size, f"item {number}"))
        if carry != before:
            raise AssertionError(
                f"{name}.step changed its argument `carry` at item {number}: return a new one"
            )
        carry = after
        groups += [list(group) for group in ready]
        if wrong := _find_foreign_type(carry):
            raise AssertionError(
                f"{name}.step puts a {wrong} into the carry, which a state cannot store: use "
                "numbers, text, lists, tuples, mappings, items and parts"
            )
    return groups + [list(group) for group in fold.flush(carry)]


def _find_foreign_type(carry: Any) -> str:
    """Return the type in a carry that a state cannot store, or an empty text."""
    if isinstance(carry, Item | Part | bool | int | float | str | None):
        return ""
    if isinstance(carry, list | tuple):
        return next(
            (
                type_name
                for item in cast("Sequence[Any]", carry)
                if (type_name := _find_foreign_type(item))
            ),
            "",
        )
    if isinstance(carry, dict):
        return next(
            (
                type_name
                for item in cast("dict[Any, Any]", carry).values()
                if (type_name := _find_foreign_type(item))
            ),
            "",
        )
    return type(carry).__name__


def _require_index_vector(found: Any, positions: Ints, where: str) -> None:
    shape, kind = getattr(found, "shape", None), getattr(getattr(found, "dtype", None), "kind", "")
    if shape != positions.shape or kind not in "iu":
        raise AssertionError(
            f"{where} returned {type(found).__name__} of shape {shape} for {len(positions)} positions: "
            "return a vector with an integer for each"
        )


def _check_description(part: Any, name: str) -> None:
    if not callable(getattr(part, "describe", None)):
        return
    try:
        texts = [json.dumps(part.describe(), allow_nan=False) for _ in range(2)]
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{name}.describe does not return JSON: {error}") from None
    if texts[0] != texts[1]:
        raise AssertionError(f"{name}.describe returns {texts[0]}, then {texts[1]}")
