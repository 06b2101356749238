"""Row lengths that change where each input of a mixture is packed by itself."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from helpers import through_json

BATCH = 4
SIZES = {"a": 30, "b": 40, "c": 25, "d": 20}


def documents(name: str) -> ps.Dataset:
    number = ord(name)
    lengths = np.random.default_rng(number).integers(3, 60, SIZES[name])
    begins = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.arange(begins[-1]) + (number << 20)
    return ps.from_tokens(ids.astype(np.int32), begins, name=name).shuffle()


def inputs() -> dict[str, ps.Dataset]:
    """A mixture of two sources, and two sources by themselves."""
    mixed = ps.mix({name: documents(name) for name in "ab"}, {"a": 2, "b": 1}, unit="tokens")
    return {"mixed": mixed, "c": documents("c").repeat(), "d": documents("d").repeat()}


def read_tokens(name: str, count: int) -> np.ndarray[Any, Any]:
    """Return the first tokens of an input, packed by itself."""
    weights = {key: float(key == name) for key in inputs()}
    rows = ps.mix(inputs(), weights, seed=5, one_source_per=2).pack(count)
    return rows[0]["tokens"]


Stretch = int | Literal["global_step"]


def make(lengths: ps.Schedule, weights: Any, stretch: Stretch) -> ps.Dataset:
    return ps.mix(inputs(), weights, seed=5, one_source_per=stretch).pack(lengths)


def model(
    sources: list[str], lengths: list[int], streams: dict[str, np.ndarray[Any, Any]]
) -> list[bytes]:
    """Cut the rows of each input from its tokens, one row after the other."""
    used, rows = Counter[str](), list[bytes]()
    for name, length in zip(sources, lengths, strict=True):
        rows.append(streams[name][used[name] : used[name] + length].tobytes())
        used[name] += length
    return rows


STREAMS = {name: read_tokens(name, 6_000) for name in inputs()}


@examples(40)
@given(data=st.data())
def test_every_input_is_cut_into_rows_of_the_lengths_of_its_steps(data: st.DataObject) -> None:
    steps = 14
    stretch: Any = data.draw(st.sampled_from(["global_step", 2, 4, 8]))
    borders = sorted(data.draw(st.sets(st.integers(1, steps - 1), max_size=3)))
    sizes = data.draw(st.lists(st.integers(5, 40), min_size=4, max_size=4))
    lengths = ps.Schedule(dict(zip([0, *borders], sizes, strict=False)), unit="steps")
    weights: Any = dict(zip(inputs(), data.draw(st.permutations([1, 2, 5])), strict=True))
    if data.draw(st.booleans()):
        weights = ps.Schedule([(0, weights), (20, {"mixed": 0, "c": 1, "d": 1}), (40, weights)])
    changed = data.draw(st.sets(st.integers(1, steps - 1), max_size=2))
    stops = sorted({0, steps, *data.draw(st.sets(st.integers(1, steps - 1), max_size=2)), *changed})
    state: Any = None
    ds, rows = make(lengths, weights, stretch), list[bytes]()
    for start, stop in pairwise(stops):
        ranks = data.draw(st.sampled_from([1, 2, 4]))
        loaders = [
            ps.Loader(ds, global_batch_size=BATCH, rank=rank, world_size=ranks)
            for rank in range(ranks)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
            if start in changed:
                loader.set_weights({"mixed": 1, "c": start, "d": 3})
        for _, *batches in zip(range(start, stop), *loaders, strict=False):
            assert len({batch["tokens"].shape for batch in batches}) == 1
            rows += sorted(row.tobytes() for batch in batches for row in batch["tokens"])
        state = through_json(loaders[0].state_dict())
    plan = ds.batch(global_batch_size=BATCH).plan.for_state(state)
    located = plan.rows().at(slice(0, steps * BATCH))
    tops = [name.partition("/")[0] for name in plan.sources]
    first = np.searchsorted(located.position, np.arange(steps * BATCH))
    drawn = [tops[source] for source in located.source[first].tolist()]
    points = dict(lengths.numbers or ())
    planned = [
        int(points[max(at for at in points if at <= row // BATCH)]) for row in range(steps * BATCH)
    ]
    wanted = model(drawn, planned, STREAMS)
    for step in range(steps):
        mine = slice(step * BATCH, (step + 1) * BATCH)
        assert rows[mine] == sorted(wanted[mine])
        if stretch in ("global_step", BATCH, 2 * BATCH):
            assert len({*drawn[mine]}) == 1
    tokens = np.cumsum(planned).tolist()
    for step in (0, steps // 2, steps - 1):
        told = sum(plan.counts(step=step + 1, unit="tokens").values())
        assert told == tokens[(step + 1) * BATCH - 1]
        for sample in plan.at(step=step)[:2]:
            assert step in plan.find(sample.source, sample.index, steps=range(step, step + 1))


def test_a_batch_may_grow_beside_stretches_of_a_number_of_rows() -> None:
    lengths = ps.Schedule({0: 8, 5: 16, 9: 24}, unit="steps")
    batches = ps.Schedule({0: 4, 7: 8}, unit="steps")
    ds = make(lengths, {"mixed": 1, "c": 1, "d": 2}, 4)
    shapes = [
        batch["tokens"].shape
        for _, batch in zip(range(12), ps.Loader(ds, global_batch_size=batches), strict=False)
    ]
    assert shapes == [(4 if n < 7 else 8, 8 if n < 5 else 16 if n < 9 else 24) for n in range(12)]


MISTAKES: dict[str, tuple[Any, str]] = {
    "an input with an end": (
        lambda: ps.mix({"c": documents("c")}, one_source_per=2).pack(
            ps.Schedule({0: 8}, unit="steps")
        ),
        r"add \.repeat\(\)",
    ),
    "an input of one length": (
        lambda: ps.mix(
            {
                "c": documents("c").repeat().pack(ps.Schedule({0: 8, 2: 9}, unit="steps")),
                "d": documents("d").repeat().pack(8),
            }
        ),
        "whose rows are not known",
    ),
    "weights in tokens": (
        lambda: (
            ps.mix(
                {name: documents(name).repeat() for name in "cd"}, one_source_per=2, unit="tokens"
            )
            .pack(ps.Schedule({0: 8, 2: 9}, unit="steps"))
            .batch(global_batch_size=2)
            .plan.at(0)
        ),
        "leave out unit='tokens'",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_other_uses_are_errors(case: str) -> None:
    act, message = MISTAKES[case]
    with pytest.raises(ps.ConfigError, match=message):
        act()
