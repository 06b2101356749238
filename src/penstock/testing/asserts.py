"""Comparison of samples and runs; messages name the first difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

RunFactory = Callable[[], Iterable[Any]]
SampleEquality = Callable[[Any, Any], bool]

MAX_RECORDED_SAMPLES = 1000  # samples recorded of a run of unknown length


class End:
    """Marks the end of a pass in a recorded run; never a sample."""

    def __repr__(self) -> str:
        return "<end of the pass>"


PASS_END = End()


def describe_difference(
    got: Any, want: Any, same: SampleEquality | None = None, where: str = ""
) -> str:
    """Describe the first difference of two samples; empty if they are equal.

    Mappings, sequences and arrays are compared part by part; arrays by type, shape and bytes, with
    NaN equal to NaN.

    >>> describe_difference({"x": [1, 2]}, {"x": [1, 3]})
    "at ['x'][1]: 2 instead of 3"
    """
    at = f"at {where}: " if where else ""
    if isinstance(got, End) or isinstance(want, End):
        return "" if got is want else f"{at}{_shorten_repr(got)} instead of {_shorten_repr(want)}"
    if same is not None:
        return (
            "" if same(got, want) else f"{at}{_shorten_repr(got)} instead of {_shorten_repr(want)}"
        )
    if isinstance(got, Mapping) and isinstance(want, Mapping):
        left, right = cast("Mapping[Any, Any]", got), cast("Mapping[Any, Any]", want)
        if list(left) != list(right) and set(left) != set(right):
            return f"{at}the keys {list(left)} instead of {list(right)}"
        return _find_first_message(
            describe_difference(left[key], right[key], None, f"{where}[{key!r}]") for key in right
        )
    if _is_array(got) or _is_array(want):
        return _compare_arrays(got, want, where, at)
    if isinstance(got, list | tuple) and isinstance(want, list | tuple):
        a, b = cast("Sequence[Any]", got), cast("Sequence[Any]", want)
        if type(a) is not type(b) or len(a) != len(b):
            return f"{at}{_shorten_repr(a)} instead of {_shorten_repr(b)}"
        return _find_first_message(
            describe_difference(x, y, None, f"{where}[{i}]")
            for i, (x, y) in enumerate(zip(a, b, strict=True))
        )
    left, right = cast("Any", got), want
    equal = (type(left) is type(right) and bool(left == right)) or bool(
        left != left and right != right
    )
    return "" if equal else f"{at}{_shorten_repr(got)} instead of {_shorten_repr(want)}"


def assert_same_run(
    *makes: RunFactory, steps: int | None = None, same: SampleEquality | None = None
) -> None:
    """Assert that all runs give the same samples in the same order and end together.

    Args:
        makes: Factories of the runs.
        steps: Number of samples to compare (default: the first pass, at most 1,000).
        same: Comparison of two samples, in place of equality.

    Raises:
        AssertionError: A run differs from the first one.

    >>> assert_same_run(lambda: [1, 2, 3], lambda: range(1, 4))
    >>> assert_same_run(lambda: [1, 2, 3], lambda: [1, 4, 3])
    Traceback (most recent call last):
    ...
    AssertionError: run 1 is not run 0: sample 1: 4 instead of 2
    """
    first = list(record_run(makes[0](), steps))
    for number, make in enumerate(makes[1:], 1):
        try:
            assert_same_events(record_run(make(), steps), first, same)
        except AssertionError as error:
            raise AssertionError(f"run {number} is not run 0: {error}") from None


def assert_same_events(
    got: Iterable[Any], want: Sequence[Any], same: SampleEquality | None = None, start: int = 0
) -> None:
    """Raise at the first event that differs; `start` is the number of the first event."""
    number = 0
    for number, (a, b) in enumerate(zip(got, want, strict=False), 1):
        message = describe_difference(a, b, same)
        if message:
            raise AssertionError(f"sample {start + number - 1}: {message}")
    if number < len(want):
        raise AssertionError(
            f"sample {start + number}: nothing instead of {_shorten_repr(want[number])}"
        )


def assert_covers(
    items: Iterable[Any] | Callable[[], Iterable[Any]],
    expected: Iterable[Any],
    times: int = 1,
    key: Callable[[Any], Any] | None = None,
) -> None:
    """Assert that every expected key occurs exactly `times` times, and no other key.

    Args:
        items: Samples or keys, or a function that returns them.
        expected: The keys.
        times: Number of occurrences of each key.
        key: Returns the key of a sample; default: the sample itself.

    Raises:
        AssertionError: Keys are lost, repeated or unexpected.

    >>> assert_covers([2, 0, 1], range(3))
    >>> assert_covers([2, 0], range(3))
    Traceback (most recent call last):
    ...
    AssertionError: 1 of 3 keys lost, the first is 1 (0 of 1 times)
    """
    samples = items() if callable(items) else items
    names: dict[Hashable, Any] = {}
    counts: Counter[Hashable] = Counter()
    for sample in samples:
        sample_key = sample if key is None else key(sample)
        names.setdefault(frozen := _freeze_key(sample_key), sample_key)
        counts[frozen] += 1
    wanted = {_freeze_key(name): name for name in expected}
    lost = [k for k in wanted if counts[k] < times]
    doubled = [k for k in wanted if counts[k] > times]
    foreign = [k for k in counts if k not in wanted]
    parts: list[str] = []
    if lost:
        k = lost[0]
        parts.append(
            f"{len(lost)} of {len(wanted)} keys lost, the first is {wanted[k]!r} ({counts[k]} of "
            f"{times} times)"
        )
    if doubled:
        k = doubled[0]
        parts.append(
            f"{len(doubled)} given too often, the first is {wanted[k]!r} ({counts[k]} times "
            f"instead of {times})"
        )
    if foreign:
        parts.append(f"{len(foreign)} unexpected keys, the first is {names[foreign[0]]!r}")
    if parts:
        raise AssertionError("; ".join(parts))


def assert_mixture(
    sources: Iterable[Hashable], weights: Mapping[Any, float], within: float = 2.0, every: int = 1
) -> None:
    """Assert that each source's count stays within `within` of its weight's share.

    Args:
        sources: The source of each sample, in order.
        weights: The weights by source.
        within: Allowed deviation, in samples.
        every: Check after `every`, `2 * every`, ... samples (at block boundaries).

    Raises:
        AssertionError: A count deviates more, or a source has no weight.

    >>> assert_mixture("abaabaab", {"a": 2, "b": 1})
    >>> assert_mixture("bbbbbaaa", {"a": 1, "b": 1})
    Traceback (most recent call last):
    ...
    AssertionError: after 5 samples 'b' was drawn 5 times, by its weight 2.5 times: 2.5 off, at most 2 allowed
    """
    names = list(sources)
    total = float(sum(weights.values()))
    foreign = set(names) - set(weights)
    if foreign:
        raise AssertionError(f"{sorted(map(repr, foreign))[0]} was given but has no weight")
    places = np.arange(every, len(names) + 1, every)
    worst: tuple[int, str] | None = None
    for name, weight in weights.items():
        counts = np.cumsum([n == name for n in names])[every - 1 :: every]
        ideal = places * (weight / total)
        deviating = np.flatnonzero(np.abs(counts - ideal) > within + 1e-9)
        if deviating.size and (worst is None or deviating[0] < worst[0]):
            first = int(deviating[0])
            deviation = abs(float(counts[first] - ideal[first]))
            worst = (
                first,
                (
                    f"after {places[first]} samples {name!r} was drawn {counts[first]} times, by its "
                    f"weight {ideal[first]:.4g} times: {deviation:.4g} off, at most {within:g} allowed"
                ),
            )
    if worst is not None:
        raise AssertionError(worst[1])


# ---------------------------------------------------------------- helpers


def record_run(made: Iterable[Any], steps: int | None) -> Iterator[Any]:
    """Yield the samples of a run, and `PASS_END` after each pass; without `steps`, one pass."""
    remaining = MAX_RECORDED_SAMPLES if steps is None else steps
    while remaining > 0:
        for sample in made:
            yield sample
            remaining -= 1
            if remaining <= 0:
                return
        yield PASS_END
        remaining -= 1
        if steps is None or iter(made) is made:
            return


def _find_first_message(messages: Iterable[str]) -> str:
    return next((text for text in messages if text), "")


def _shorten_repr(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 120 else f"{text[:100]}... ({len(text)} characters)"


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic) or (
        hasattr(value, "__array__") and hasattr(value, "shape")
    )


def _compare_arrays(got: Any, want: Any, where: str, at: str) -> str:
    if type(got) is not type(want):
        return f"{at}{type(got).__name__} {_shorten_repr(got)} instead of {type(want).__name__} {_shorten_repr(want)}"
    a, b = np.asarray(got), np.asarray(want)
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{at}{a.dtype}{list(a.shape)} instead of {b.dtype}{list(b.shape)}"
    if a.dtype == object:
        return describe_difference(a.tolist(), b.tolist(), None, where)
    unequal = (a != b) & ~((a != a) & (b != b))
    if not unequal.any():
        return ""
    place = tuple(int(i) for i in np.argwhere(unequal)[0])
    index = f"{list(place)}" if place else ""
    return f"at {where}{index}: {a[place]!r} instead of {b[place]!r}"


def _freeze_key(value: Any) -> Hashable:
    """Return a hashable form of a key: arrays and lists become tuples."""
    if isinstance(value, np.ndarray):
        value = cast("Any", value).tolist()
    if isinstance(value, list | tuple):
        return tuple(_freeze_key(v) for v in cast("Sequence[Any]", value))
    if isinstance(value, Mapping):
        return tuple(
            sorted((str(k), _freeze_key(v)) for k, v in cast("Mapping[Any, Any]", value).items())
        )
    return cast("Hashable", value)
