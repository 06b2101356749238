"""Uses of a dataset between two steps of its description, and all its answers."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.testing import recipes

FEW = 8  # items that are compared

Answer = Any
"""A value of numbers, texts and containers, or the error that came in its place."""


def plain(x: Any) -> Any:
    """An item that can be compared."""
    if isinstance(x, dict):
        return {key: plain(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [type(x).__name__, *map(plain, x)]
    return [x.dtype.str, x.tolist()] if isinstance(x, np.ndarray | np.generic) else x


def answer(ask: Callable[[], Any]) -> Answer:
    """An answer, or the error that came in its place: two datasets that are equal raise equal errors."""
    try:
        return ask()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# ---------------------------------------------------------------- uses


def leave(ds: ps.Dataset) -> ps.Dataset:
    return ds


def iterate(ds: ps.Dataset) -> ps.Dataset:
    list(islice(ds, 3))
    return ds


def open_loader(ds: ps.Dataset) -> ps.Dataset:
    ps.Loader(ds).close()
    return ds


def load_on_two_ranks(ds: ps.Dataset) -> ps.Dataset:
    with ps.Loader(ds, rank=1, world_size=2, remainder="keep") as loader:
        next(iter(loader), None)
    return ds


def resume(ds: ps.Dataset) -> ps.Dataset:
    with ps.Loader(ds) as loader:
        next(iter(loader), None)
        state = loader.state_dict()
    with ps.Loader(ds) as loader:
        loader.load_state_dict(state)
        next(iter(loader), None)
    return ds


def ask_plan(ds: ps.Dataset) -> ps.Dataset:
    for ask in QUESTIONS.values():
        answer(partial(ask, ds))
    return ds


def measure(ds: ps.Dataset) -> ps.Dataset:
    answer(lambda: len(ds))
    return ds


def look_up(ds: ps.Dataset) -> ps.Dataset:
    answer(lambda: ds[0])
    answer(lambda: ds[1])
    return ds


def show(ds: ps.Dataset) -> ps.Dataset:
    repr(ds)
    ds._repr_html_()
    return ds


def pickled(ds: ps.Dataset) -> ps.Dataset:
    return pickle.loads(pickle.dumps(ds))


def extend_otherwise(ds: ps.Dataset) -> ps.Dataset:
    """Another dataset is made from the same one, and used."""
    iterate(ds.map(str).limit(2))
    return ds


def join_with_itself(ds: ps.Dataset) -> ps.Dataset:
    """Use another tree in which the description occurs twice."""
    for both in (ds.concat(ds), ds.zip(ds), ps.mix({"a": ds, "b": ds}, stop="all_exhausted")):
        iterate(both)
    return ds


USES: list[Callable[[ps.Dataset], ps.Dataset]] = [
    leave, iterate, open_loader, load_on_two_ranks, resume, ask_plan, measure, look_up, show, pickled, copy.copy,
    copy.deepcopy, extend_otherwise, join_with_itself,
]  # fmt: skip


@dataclass
class Use:
    """Uses every dataset on the way to another one, by turns. `begun` are iterators that were left open."""

    turns: Sequence[Callable[[ps.Dataset], ps.Dataset]]
    count: int = 0
    begun: list[tuple[int, Any, list[Any]]] = field(default_factory=list[Any])

    def __call__(self, ds: ps.Dataset) -> ps.Dataset:
        turn, number = self.turns[self.count % len(self.turns)], self.count
        self.count += 1
        with suppress(Exception):  # questions that it cannot answer raise errors and change nothing
            it = iter(ds)
            self.begun.append((number, it, [plain(x) for x in islice(it, 2)]))
        with suppress(Exception):
            return turn(ds)
        return ds

    def rest(self) -> list[tuple[int, Answer]]:
        """Return the next items of the iterators that were left open."""
        return [
            (number, [*first, *answer(partial(_items, it))]) for number, it, first in self.begun
        ]


def _items(it: Any) -> list[Any]:
    return [plain(x) for x in islice(it, FEW)]


def built(recipe: Any, use: Callable[[ps.Dataset], ps.Dataset]) -> ps.Dataset:
    """The dataset of a recipe of `penstock.testing`; each dataset on the way is what `use` returns for it."""
    original = recipes.build
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipes, "build", lambda recipe: use(original(recipe)))
        return recipes.build(recipe)


# ---------------------------------------------------------------- answers


def _told(plan: Any) -> list[Any]:
    return [repr(sample) for sample in plan.at(slice(0, FEW))]


def _found(plan: Any) -> list[Any]:
    return [plan.find(name, index, within=range(FEW)) for name in plan.sources for index in (0, 2)]


QUESTIONS: dict[str, Callable[[ps.Dataset], Any]] = {
    "at": lambda ds: _told(ds.plan),
    "step": lambda ds: [repr(sample) for sample in ds.plan.at(step=1)],
    "find": lambda ds: _found(ds.plan),
    "counts": lambda ds: [ds.plan.counts(position) for position in (0, 1, FEW)],
    "tokens": lambda ds: ds.plan.counts(FEW, "tokens"),
    "seen": lambda ds: repr(ds.plan.seen(FEW)),
    "packing": lambda ds: repr(ds.plan.packing()),
    "audit": lambda ds: str(ds.plan.audit(range(2)).table().to_pylist()),
    "length": len,
    "first": lambda ds: plain(ds[0]),
    "fourth": lambda ds: plain(ds[3]),
}


def answers(
    ds: ps.Dataset, world: int = 1, lanes: int | None = None, at: int = 2
) -> dict[str, Answer]:
    """Everything that a dataset answers: its plan, its items on every rank, its states, what comes after a resume."""
    out = {name: answer(partial(ask, ds)) for name, ask in QUESTIONS.items()}
    for rank in range(world):
        options: Any = {"rank": rank, "world_size": world, "remainder": "keep", "lanes": lanes}
        out[f"rank {rank}"] = answer(partial(_run, ds, at, options))
    return out


def _run(ds: ps.Dataset, at: int, options: Any) -> Any:
    """The first items with their keys, the state after some of them, and what comes after a resume from there."""
    items, state = list[Any](), None
    with ps.Loader(ds, **options) as loader:
        for number, item in enumerate(islice(loader, FEW)):
            items.append([plain(item), loader.keys()])
            if number + 1 == at:
                state = loader.state_dict()
        state = state or loader.state_dict()
    with ps.Loader(ds, **options) as loader:
        loader.load_state_dict(json.loads(json.dumps(state)))
        rest = [[plain(item), loader.keys()] for item in islice(loader, FEW)]
        return [items, state, rest, loader.state_dict()]
