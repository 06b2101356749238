"""Whatever is thrown inside `next` leaves the iterator where it was: the next call gives the item that was due."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

import penstock as ps
from example_counts import rounds
from penstock.engine.grouping import BatchByTokens


class Bomb:
    """Counts what passes through it, and throws at one of the calls."""

    def __init__(self) -> None:
        self.left, self.error = -1, KeyboardInterrupt

    def __call__(self, value: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            raise self.error("stop here")
        return value

    def keep(self, value: Any) -> bool:
        return bool(self(value) % 7)


class Throwing:
    """Shards whose rows pass through a bomb."""

    def __init__(self, bomb: Bomb) -> None:
        self.bomb = bomb

    def names(self) -> list[str]:
        return ["one", "two", "three"]

    def open(self, name: str, row: int, /) -> Iterator[Any]:
        first = 100 * self.names().index(name)
        return map(self.bomb, range(first + row, first + 20))

    def describe(self) -> Any:
        return {"type": "throwing"}


class Folding(BatchByTokens):
    """A fold that passes its items through a bomb."""

    bomb: Bomb

    def step(self, carry: Any, item: Any, /) -> Any:
        self.bomb(None)
        return super().step(carry, item)


def numbers(n: int = 60, first: int = 0) -> ps.Dataset:
    return ps.from_sequence(range(first, first + n)).shuffle(seed=1)


def folding(bomb: Bomb) -> ps.Dataset:
    fold = Folding(30)
    object.__setattr__(fold, "bomb", bomb)
    return numbers().fold(fold, size=lambda x: x % 9, build=list)


def woven(bomb: Bomb, stop: Any = "all_exhausted") -> ps.Dataset:
    inputs = {
        "a": numbers().map(bomb).filter(lambda x: x % 3),
        "b": numbers(30, 100).filter(bomb.keep),
    }
    return ps.mix(inputs, {"a": 2, "b": 1}, stop=stop)


PIPELINES: dict[str, Callable[[Bomb], ps.Dataset]] = {
    "map": lambda b: numbers().map(b),
    "filter": lambda b: numbers().filter(b.keep),
    "flat_map": lambda b: numbers().flat_map(lambda x: [b(x)] * (x % 4)),
    "batch": lambda b: numbers().filter(b.keep).batch(4, collate=list),
    "rebatch": lambda b: numbers().filter(b.keep).map(lambda x: [x] * 3).map(np.asarray).rebatch(5),
    "zip": lambda b: numbers().map(b).zip(numbers().filter(b.keep)),
    "concat": lambda b: numbers(20).filter(b.keep).concat(numbers(20, 50).map(b)),
    "mix": woven,
    "mix that restarts": lambda b: woven(b, "restart"),
    "nested mix": lambda b: ps.mix(
        {"m": woven(b), "n": numbers(30).filter(bool)}, stop="first_exhausted"
    ),
    "repeat": lambda b: numbers(20).filter(b.keep).repeat(3),
    "limit": lambda b: numbers().filter(b.keep).limit(40),
    "pack": lambda b: numbers().map(lambda x: [b(x)] * (x % 5 + 1)).pack(16),
    "best fit": lambda b: numbers().map(lambda x: [b(x)] * (x % 5 + 1)).pack(16, method="best_fit"),
    "buffer": lambda b: numbers().filter(b.keep).shuffle_buffer(9),
    "buffer over a buffer": lambda b: (
        numbers().filter(b.keep).shuffle_buffer(9).map(b).shuffle_buffer(5)
    ),
    "group": lambda b: (
        numbers().filter(b.keep).bucket_by_length([20], 3, size=lambda x: x, collate=list)
    ),
    "interleave": lambda b: (
        numbers(20).filter(b.keep).interleave(numbers(9, 70).map(b), numbers(9, 80), width=2)
    ),
    "shards": lambda b: (
        ps.from_iterable(Throwing(b)).filter(lambda x: x % 5).batch(3, collate=list)
    ),
    "a fold of one's own": folding,
    "shuffled windows": lambda b: numbers().filter(b.keep).shuffle(window=8),
}
FEW = 30


def shown(item: Any) -> str:
    return repr(item)


def taken(it: Iterator[Any], most: int, interrupts: list[int]) -> list[str]:
    """Up to `most` items, going on with the same iterator after whatever was thrown; notes when it was."""
    found = list[str]()
    while len(found) < most:
        try:
            found.append(shown(next(it)))
        except StopIteration:
            break
        except (KeyboardInterrupt, ValueError, MemoryError):
            interrupts.append(len(found))
            assert len(interrupts) < 500
    return found


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", PIPELINES.values(), ids=PIPELINES)
def test_a11_an_interrupt_inside_next_loses_nothing(
    make: Callable[[Bomb], ps.Dataset], workers: int
) -> None:
    want = [shown(x) for x in islice(make(Bomb()), FEW)]
    for call in (1, 2, 3, 5, 9, 14, 23, 31):
        bomb, thrown = Bomb(), list[int]()
        with ps.Loader(make(bomb), workers=workers) as loader:
            bomb.left = call
            assert taken(iter(loader), FEW, thrown) == want, (
                f"thrown at call {call}, after {thrown} items"
            )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", PIPELINES.values(), ids=PIPELINES)
def test_states_after_an_interrupt_are_those_of_a_run_without(
    make: Callable[[Bomb], ps.Dataset], workers: int
) -> None:
    with ps.Loader(make(Bomb())) as loader:
        run = iter(loader)
        states = [loader.state_dict()]
        states += [loader.state_dict() for _ in islice(run, 12)]
    bomb, found = Bomb(), list[Any]()
    with ps.Loader(make(bomb), workers=workers) as loader:
        run = iter(loader)
        found.append(loader.state_dict())
        while len(found) < len(states):
            bomb.left = 4
            try:
                next(run)
            except StopIteration:
                break
            except KeyboardInterrupt:
                assert loader.state_dict() == found[-1]
                bomb.left = -1
                next(run)
            found.append(loader.state_dict())
    assert found == states


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", PIPELINES.values(), ids=PIPELINES)
def test_what_precedes_a_failing_sample_is_delivered_before_it(
    make: Callable[[Bomb], ps.Dataset], workers: int
) -> None:
    class Bad(Bomb):
        """Fails on one value until it is mended."""

        value = 107 if "shards" in PIPELINES and make is PIPELINES["shards"] else 13

        def __call__(self, value: Any) -> Any:
            if value == self.value and self.left:
                raise ValueError("bad sample")
            return value

    def run(bad: Bad) -> tuple[list[str], list[int]]:
        thrown = list[int]()
        with ps.Loader(make(bad), workers=workers) as loader:
            it = iter(loader)
            found = list[str]()
            while len(found) < FEW:
                try:
                    found.append(shown(next(it)))
                except StopIteration:
                    break
                except ValueError:
                    thrown.append(len(found))
                    if len(thrown) == 3:
                        bad.left = 0
        return found, thrown

    mended = Bad()
    mended.left = 0
    want, _ = run(mended)
    found, thrown = run(Bad())
    assert found == want
    assert len(set(thrown)) <= 1, "tried again, it fails at the same place"


def events(k: int) -> Callable[[Any, str, Any], None]:
    """Throws at the `k`-th place where Python looks for signals: a call that begins, a call that came back."""
    left = k

    def watch(frame: Any, event: str, arg: Any) -> None:
        nonlocal left
        if (
            event in ("call", "c_return")
            and "penstock" in frame.f_code.co_filename
            and not frame.f_code.co_flags & 32
        ):
            left -= 1
            if left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    return watch


@pytest.mark.parametrize(
    "make",
    [PIPELINES["batch"], PIPELINES["mix"], PIPELINES["buffer"]],
    ids=["batch", "mix", "buffer"],
)
def test_an_interrupt_at_any_call_within_next_loses_nothing(
    make: Callable[[Bomb], ps.Dataset],
) -> None:
    want = [shown(x) for x in islice(make(Bomb()), 2)]
    with ps.Loader(make(Bomb())) as loader:
        it, found, k = iter(loader), list[str](), 1
        while len(found) < len(want):
            sys.setprofile(events(k))
            try:
                value = next(it)
            except KeyboardInterrupt:
                k += rounds(3, 1)
                continue
            finally:
                sys.setprofile(None)
            found.append(shown(value))
            k = 1 + len(found)  # other calls than for the item before
    assert found == want
