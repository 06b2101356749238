"""The orders of random steps, learnt from the library by running each step over places instead of samples.

Only the order is taken from the library; that it is an allowed one, and what follows from it, is judged by the model.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

import penstock as ps
from allowed_orders import allowed
from oracle import children, endless, indexed, leaf, passes
from penstock.testing import build, show

MOST = 700  # samples learnt of a pass that never ends


def place(i: int, x: Any) -> int:
    return int(i)


def labelled(name: str, i: int) -> tuple[str, int]:
    return name, i


class Count:
    """The place of each sample in its pass, counted by a function that is called once for each, in order.

    For streams and for what skips: an index there may be the place before the samples that were dropped.
    """

    def __init__(self, length: int | None) -> None:
        self.length, self.next = length, 0

    def __call__(self, x: Any) -> int:
        found = self.next if self.length is None else self.next % self.length
        self.next += 1
        return found


class Orders:
    """`orders(node, k)`: how the library orders pass `k` of a random node that stands in `recipe`.

    A node is run as it stands alone, but for the mixtures above it: what has no seed of its own takes theirs.
    """

    def __init__(self, recipe: Any) -> None:
        self._seed = _seed(recipe)
        self._above: dict[Any, tuple[tuple[str, int], ...]] = {}
        self._known: dict[Any, tuple[list[Any], bool]] = {}
        self._climb(recipe, ())

    def __call__(self, node: Any, k: int):
        if (node, k) not in self._known:
            counts: list[Count] = []
            order, whole = run(
                build(self._over_places(node, counts)), k, MOST, restart=counts, lanes=1
            )
            found = allowed(node, k, order, whole, self)
            assert not found, f"pass {k} of {show(node)}: {found}"
            self._known[node, k] = order, whole
        order, whole = self._known[node, k]
        yield from order
        assert whole, "more than was learnt: raise MOST"

    def _climb(self, node: Any, above: tuple[tuple[str, int], ...]) -> None:
        self._above[node] = above
        if leaf(node):
            return
        fixed = node[0] == "skip" and indexed(node) and not endless(node)
        if fixed or node[0] in ("slice", "select", "shard", "limit"):
            above = ()  # the same samples wherever it stands
        names = [name for name, _ in node[1]] if node[0] == "mix" else None
        for i, child in enumerate(children(node)):
            self._climb(child, above if names is None else (*above, (names[i], node[6])))

    def _over_places(self, node: Any, counts: list[Count]) -> Any:
        if node[0] == "mix":
            inputs = tuple(
                (n, ("map", self._placed(c, counts), partial(labelled, n))) for n, c in node[1]
            )
            bare = ("mix", inputs, *node[2:])
        else:
            bare = (node[0], self._placed(node[1], counts), *node[2:])
        for name, seed in reversed(self._above[node]):
            bare = (
                "mix",
                ((name, bare),),
                (1,),
                1,
                "restart" if endless(node) else "all_exhausted",
                None,
                seed,
                1,
            )
        return bare if self._seed is None else ("seed", bare, self._seed)

    def _placed(self, child: Any, counts: list[Count]) -> Any:
        if indexed(child):
            return ("map_with_index", child, place)
        length = None if endless(child) else sum(1 for _ in passes(child, 0, self))
        counts.append(Count(length))
        return ("map", child, counts[-1])


def _seed(recipe: Any) -> int | None:
    """The seed of a recipe, whose step stands at the top or below steps with one input."""
    while recipe[0] != "seed":
        if leaf(recipe) or recipe[0] in ("mix", "concat", "zip"):
            return None
        recipe = recipe[1]
    return recipe[2]


def run(
    ds: ps.Dataset, k: int, most: int, restart: Iterable[Count] = (), **options: Any
) -> tuple[list[Any], bool]:
    """At most `most` samples of pass `k`, and whether that was all of it. `restart` are set to 0 before it."""
    with ps.Loader(ds, **options) as loader:
        for _ in range(k):
            for _ in loader:
                pass
        for count in restart:
            count.next = 0
        found = list(islice(loader, most + 1))
    return found[:most], len(found) <= most


def model(recipe: Any, k: int, most: int, orders: Orders | None = None) -> list[Any]:
    return [plain(x) for x in islice(passes(recipe, k, orders or Orders(recipe)), most)]


def plain(x: Any) -> Any:
    """A sample as plain Python. Random numbers, epochs and names are gone: they are tested by themselves."""
    if isinstance(x, float):
        return "~"
    if isinstance(x, np.ndarray | np.generic):
        return plain(x.tolist())
    if isinstance(x, dict):
        if "segment_ids" in x:
            return row(x)
        return {k: plain(v) for k, v in x.items() if k not in ("__epoch__", "__source__")}
    if isinstance(x, list | tuple):
        return type(x)(plain(v) for v in x)
    return x


def row(x: dict[str, Any]) -> dict[str, Any]:
    """A packed row, with its padding blanked: only which cells are padding is documented."""
    ids = plain(x["segment_ids"])
    cells = {k: plain(x[k]) for k in ("tokens", "positions")}
    return {"segment_ids": ids} | {
        k: [c if i else 0 for c, i in zip(v, ids, strict=True)] for k, v in cells.items()
    }
