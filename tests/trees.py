"""Random indexed trees, and what a loader delivers, for the tests of plans."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
from hypothesis import strategies as st

import penstock as ps

Key = tuple[str, int, int]


def numbers(n: int, name: str) -> ps.Dataset:
    return ps.from_sequence(range(n), name=name)


def documents(n: int, name: str, most: int = 9) -> ps.Dataset:
    """Documents of 1 to `most` tokens; each token says which document it is of."""
    sizes = 1 + np.arange(n) * 7 % most
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return ps.from_tokens(np.repeat(np.arange(n), sizes), offsets, name=name)


def delivered(ds: ps.Dataset, steps: int, state: Any = None, **options: Any) -> list[list[Key]]:
    """The keys of the next items of a loader, over as many passes as it takes."""
    out = list[list[Key]]()
    with ps.Loader(ds, **options) as loader:
        if state is not None:
            loader.load_state_dict(state)
        while len(out) < steps:
            before = len(out)
            for _ in islice(loader, steps - len(out)):
                out.append(loader.keys())
            if before == len(out):
                break
    return out


@st.composite
def ordered(draw: st.DrawFn, name: str, pack: bool = False) -> ps.Dataset:
    """One source under some orders, with a length."""
    n = draw(st.integers(1, 12))
    ds = documents(n, name) if pack else numbers(n, name)
    for _ in range(draw(st.integers(0, 3))):
        match draw(st.sampled_from(["shuffle", "block", "slice", "repeat", "replay"])):
            case "shuffle":
                ds = ds.shuffle(seed=draw(st.integers(0, 3)))
            case "block":
                ds = ds.shuffle(seed=1, block=(draw(st.integers(1, 3)), draw(st.integers(1, 3))))
            case "slice" if len(ds) > 1:
                start = draw(st.integers(0, len(ds) - 1))
                step = draw(st.sampled_from([1, 1, 2, -1]))
                ds = ds[start : None if step < 0 else draw(st.integers(start + 1, len(ds))) : step]
            case "repeat" if len(ds) < 30:
                ds = ds.repeat(draw(st.integers(1, 3)))
            case "replay" if len(ds) < 30:
                ds = ds.repeat(draw(st.integers(1, 3)), reshuffle=False)
    return ds


@st.composite
def woven(draw: st.DrawFn, name: str = "", pack: bool = False, depth: int = 0) -> ps.Dataset:
    """Some sources in one."""
    flows = dict[str, ps.Dataset]()
    for letter in "abc"[: draw(st.integers(1, 3))]:
        deeper = depth == 0 and draw(st.integers(0, 3)) == 0
        flows[letter] = draw(woven(name + letter, pack, 1) if deeper else ordered(name + letter, pack))
        if flows[letter]._size is None:
            flows[letter] = flows[letter].limit(draw(st.integers(1, 20)))
    kind = draw(st.sampled_from(["mix", "mix", "concat", "zip"]))
    first, *rest = flows.values()
    if kind == "concat":
        return first.concat(*rest)
    if kind == "zip" and not pack and depth == 0:
        return first.zip(*rest)
    weights: Any = {letter: draw(st.sampled_from([1, 2, 5])) for letter in flows}
    if draw(st.booleans()):
        weights = ps.Schedule([(0, weights), (draw(st.integers(1, 20)), dict.fromkeys(flows, 1))], "linear")
    stop = draw(st.sampled_from(["restart", "first_exhausted", "all_exhausted", "all_exhausted_oversample"]))
    cap = draw(st.sampled_from([None, 1, 1.5])) if min(len(flow) for flow in flows.values()) > 1 else None
    return ps.mix(flows, weights, stop=stop, block_size=draw(st.sampled_from([1, 3, 8])), max_epochs=cap, seed=2)


@st.composite
def trees(draw: st.DrawFn) -> ps.Dataset:
    """Any tree that a plan can be asked of."""
    pack = draw(st.integers(0, 3)) == 0
    ds = draw(woven("", pack))
    if pack and ds._size is None:
        ds = ds.limit(draw(st.integers(1, 30)))
    if pack:
        ds = ds.pack(draw(st.integers(4, 12)), draw(st.sampled_from(["concat_split", "first_fit", "best_fit"])))
    for _ in range(draw(st.integers(0, 2))):
        match draw(st.sampled_from(["shuffle", "slice", "batch", "drop", "repeat", "map"])):
            case "shuffle" if ds._size:
                ds = ds.shuffle(seed=4)
            case "slice" if ds._size is None or ds._size > 2:
                ds = ds[1 : min(ds._size or 20, 20)]
            case "batch":
                ds = ds.batch(draw(st.integers(1, 4)), collate=list)
            case "drop":
                ds = ds.batch(draw(st.integers(1, 4)), drop_remainder=True, collate=list)
            case "repeat" if ds._size:
                ds = ds.repeat()
            case "map":
                ds = ds.map(str)
    return ds
