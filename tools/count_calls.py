"""Count the calls and files that a user's request passes through in the package.

`python tools/count_calls.py [--json]` counts calls of functions that the package defines, for requests
that matter. It also counts their files, and the moves: calls from one file of the package into
another. Comprehensions and lambdas belong to the function around them; a generator is called once.
`PYTHONPATH=other/src python tools/count_calls.py` counts another checkout.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import penstock as ps

PACKAGE = str(Path(ps.__file__).parent)


class CallCounts:
    """Calls of functions of the package while `fn` runs, on all threads."""

    def __init__(self) -> None:
        self.calls, self.moves, self.files = (
            dict[str, int](),
            dict[tuple[str, str], int](),
            set[str](),
        )
        self._generators = set[int]()
        self._kept = list[
            FrameType
        ]()  # so that no other frame takes the place of one that was counted

    def _event(self, called: FrameType, event: str, _: Any) -> None:
        code = called.f_code
        if (
            event != "call"
            or not code.co_filename.startswith(PACKAGE)
            or code.co_name.startswith("<")
        ):
            return
        if code.co_flags & inspect.CO_GENERATOR:
            if id(called) in self._generators:
                return
            self._generators.add(id(called))
            self._kept.append(called)
        file = code.co_filename.removeprefix(PACKAGE + "/")
        name = f"{file}:{code.co_qualname}"
        self.calls[name] = self.calls.get(name, 0) + 1
        self.files.add(file)
        above = called.f_back
        while above is not None and not (above.f_code.co_filename.startswith(PACKAGE)):
            above = above.f_back
        if (
            above is not None
            and (came := above.f_code.co_filename.removeprefix(PACKAGE + "/")) != file
        ):
            self.moves[came, file] = self.moves.get((came, file), 0) + 1

    def of(self, fn: Callable[[], Any]) -> CallCounts:
        threading.setprofile(self._event)
        sys.setprofile(self._event)
        try:
            fn()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # pyright: ignore[reportArgumentType]
        return self

    def to_json(self) -> dict[str, int]:
        return {
            "calls": sum(self.calls.values()),
            "files": len(self.files),
            "moves": sum(self.moves.values()),
        }


def inputs(names: str) -> dict[str, ps.Dataset]:
    return {name: ps.from_sequence(range(500), name).shuffle() for name in names}


def mixed(names: str = "abc") -> ps.Dataset:
    """Mix + shuffle + map + batch."""
    return (
        ps.mix(inputs(names), {name: 1 + i for i, name in enumerate(names)}, seed=1)
        .map(_number)
        .batch(8)
    )


def laned() -> ps.Dataset:
    """Filter + pack, in lanes."""
    return (
        ps.mix(inputs("abc"), {"a": 5, "b": 3, "c": 1}, seed=1)
        .filter(_even)
        .map(_tokens)
        .pack(64)
        .batch(2)
    )


def _number(x: Any) -> Any:
    return x + 1


def _even(x: Any) -> bool:
    return x % 2 == 0


def _tokens(x: Any) -> Any:
    return np.arange(x % 7 + 1)


def first_batch() -> Callable[[], Any]:
    ds = mixed()
    return lambda: next(iter(ds))


def warm_refill() -> Callable[[], Any]:
    it = iter(mixed())
    for _ in range(40):
        next(it)
    return lambda: [next(it) for _ in range(40)]


def lanes_with_workers() -> Callable[[], Any]:
    loader = ps.Loader(laned(), workers=2)

    def request() -> None:
        next(iter(loader))
        loader.close()

    return request


def new_weights() -> Callable[[], Any]:
    loader = ps.Loader(mixed())
    next(iter(loader))
    return lambda: loader.set_weights({"a": 1, "b": 1, "c": 1})


def adopted() -> Callable[[], Any]:
    loader = ps.Loader(mixed())
    it = iter(loader)
    for _ in range(5):
        next(it)
    state = json.loads(json.dumps(loader.state_dict()))
    other = mixed("abcd")

    def request() -> None:
        new = ps.Loader(other)
        new.load_state_dict(state, on_mismatch="adopt")
        next(iter(new))

    return request


def ask_plan() -> Callable[[], Any]:
    ds = mixed()
    return lambda: ds.plan.at(83)


REQUESTS: dict[str, Callable[[], Callable[[], Any]]] = {
    "the first batch of mix + shuffle + map + batch": first_batch,
    "40 more batches, warm": warm_refill,
    "filter + pack in lanes, 2 workers: the first batch": lanes_with_workers,
    "set_weights": new_weights,
    "adopt a state in a mixture with a new source": adopted,
    "plan.at(step)": ask_plan,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--who", action="store_true", help="which functions were called how often")
    given = parser.parse_args()
    first_batch()()  # what is imported late is imported now
    counts_by_request = {name: CallCounts().of(made()) for name, made in REQUESTS.items()}
    if given.json:
        print(
            json.dumps(
                {name: counts.to_json() for name, counts in counts_by_request.items()}, indent=1
            )
        )
        return 0
    print(f"{'calls':>7}{'files':>7}{'moves':>7}")
    for name, counts in counts_by_request.items():
        told = counts.to_json()
        print(f"{told['calls']:>7}{told['files']:>7}{told['moves']:>7}  {name}")
        if given.who:
            for called, times in sorted(counts.calls.items(), key=lambda each: -each[1])[:40]:
                print(f"{times:>28}  {called}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
