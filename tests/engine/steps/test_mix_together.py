"""Many shuffled sources looked up together: what each would tell by itself."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.engine.base.random import MIN_FEISTEL_SIZE
from penstock.engine.steps.mix_together import ShuffledSources

SIZES = (MIN_FEISTEL_SIZE, 9_000, 12_345, 20_000, 8_000, 30_011)


def flows() -> dict[str, ps.Dataset]:
    """Sources shuffled whole; the fifth is too small for it, the last is sliced."""
    out = dict[str, ps.Dataset]()
    for i, n in enumerate(SIZES):
        offsets = np.cumsum(np.random.default_rng(i).integers(0, 9, n + 1))
        out[f"s{i}"] = ps.from_tokens(
            np.zeros(offsets[-1], np.uint8), offsets - offsets[0]
        ).shuffle(seed=3)
    out["s1"] = out["s1"].repeat()
    out["s5"] = out["s5"][5:]
    return out


def mixture() -> Any:
    return ps.mix(flows(), {f"s{i}": i + 1 for i in range(len(SIZES))}, seed=1).compiled


def test_samples_and_tokens_are_those_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    op, lengths = mixture().op, mixture().builder.lengths
    assert op._shuffled_sources.mine.tolist() == [True, True, True, True, False, False]
    wanted = mixture().op
    monkeypatch.setattr("penstock.engine.steps.mix_together._WORTH", 99)
    assert not wanted._shuffled_sources.mine.any()
    four = np.flatnonzero(np.isin(op.schedule.at(np.arange(4_000))[0], range(4)))[:200]
    for at in (0, 70_000, 10**6, 10**9):
        positions = np.sort(four[:, None] + np.asarray([at, at]), axis=None)
        assert at or op._shuffled_sources.locate(*op.draws(positions)) is not None
        found, want = (each.locate(positions) for each in (op, wanted))
        for column in ("leaf", "epoch", "index", "part"):
            assert np.array_equal(getattr(found, column), getattr(want, column)), (at, column)
        for each in (lengths, lengths.about):
            for position in (at, at + 777):
                out, by_each = np.zeros((2, len(SIZES)), np.int64)
                op.tokens(position, each, out)
                wanted.tokens(position, each, by_each, 2)
                assert (abs(2 * out - by_each) <= (2 if each is lengths.about else 0)).all(), at


def test_it_is_for_a_few_samples_of_many_sources() -> None:
    inputs = mixture().op.inputs
    together = ShuffledSources(inputs)
    source = np.zeros(5_000, np.int64)
    assert together.locate(source, np.arange(5_000)) is None, "by itself it is as fast"
    assert together.locate(source[:5], np.arange(5)) is not None
    assert together.locate(source[:5] + 5, np.arange(5)) is None, "another kind of input"
    assert not ShuffledSources(inputs[:3]).mine.any()


def lined(rng: Any, i: int) -> ps.Dataset:
    """A source of some size, in one of the ways in which a position of it is one of the source."""
    ds = ps.from_sequence(
        range(int(rng.choice([1, 2, 7, 500, MIN_FEISTEL_SIZE - 1, MIN_FEISTEL_SIZE, 20_000])))
    )
    match i % 5:
        case 0:
            return ds
        case 1:
            return ds.shuffle(seed=i).repeat()
        case 2:
            return ds.map(abs).shuffle().map(abs).repeat(3)
        case 3:
            return ds.random_map(lambda x, rng: x + rng.integers(2))
        case _:
            return ds.shuffle()


@pytest.mark.parametrize("seed", range(4))
def test_sources_and_shuffles_are_looked_up_by_one_permutation_each(seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = {f"s{i}": lined(rng, i) for i in range(seed, 3 * seed + 4)}
    weights = {name: float(rng.random() + 0.01) for name in inputs}
    op: Any = ps.mix(inputs, weights, seed=seed, block_size=1 + 49 * (seed % 2)).compiled.op
    for first, many in ((0, 700), (10**5, 17), (10**6, 3_000)):
        positions = rng.permutation(np.arange(first, first + many))
        source, k = op.draws(positions)
        found = op._permuted_sources.locate(source, k)
        for i, each in enumerate(op.inputs):
            mine = source == i
            want = each.locate(k[mine])
            for column in ("leaf", "epoch", "index", "part"):
                assert np.array_equal(getattr(found, column)[mine], getattr(want, column)), (
                    i,
                    column,
                )


@pytest.mark.parametrize("other", ["slice", "pass", "pairs", "nested", "batch"])
def test_inputs_of_other_kinds_are_asked_each(other: str) -> None:
    ds = ps.from_sequence(range(100), name="other")
    kinds = {
        "slice": ds.shuffle()[5:],
        "pass": ds.repeat(2).shuffle(),
        "pairs": ds.map_with_index(lambda i, x: x),
        "nested": ps.mix({"c": ds, "d": ds}, seed=1),
        "batch": ds.batch(2),
    }
    mixed: Any = ps.mix({"a": ps.from_sequence(range(50)).shuffle(), "b": kinds[other]}, seed=1)
    op = mixed.compiled.op
    assert op._permuted_sources.locate(*op.draws(np.arange(9))) is None
    assert [str(mixed[i]) for i in range(40)] == [str(each) for each in mixed[:40]]


@pytest.mark.parametrize("many", [1, 12])
@pytest.mark.parametrize("kind", [list, tuple, lambda r: r, np.asarray])
def test_samples_in_memory_are_taken_in_the_order_asked(kind: Any, many: int) -> None:
    ranges = [range(1_000, 0, -3), range(5_000, 5_400), range(10**12, 10**12 + 77)] * many
    parts = [ranges[0] if kind is tuple else kind(ranges[0]), *map(kind, ranges[1:])]
    mixed: Any = ps.mix(
        {f"s{i:02}": ps.from_sequence(part).shuffle() for i, part in enumerate(parts)}, seed=2
    )
    rows = mixed.compiled.op.locate(np.arange(300))
    want = [
        ranges[leaf][index]
        for leaf, index in zip(rows.leaf.tolist(), rows.index.tolist(), strict=True)
    ]
    assert list(mixed[:300]) == want
    assert all(type(value) is int for value in list(mixed[:300]))


def test_a_list_that_became_shorter_is_named_with_its_sample() -> None:
    shrinks = [*range(60)]
    mixed = ps.mix({"a": ps.from_sequence(shrinks), "b": ps.from_sequence(range(60))}, seed=1)
    del shrinks[3:]
    with pytest.raises(IndexError) as caught:
        list(mixed)
    assert "a[3]" in str(caught.value.__notes__)


class Twice:
    """A function that counts how often it is called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: int) -> str:
        if x == 13:
            raise ValueError("unlucky")
        self.calls += 1
        return f"{x} {x}"


@pytest.mark.parametrize("shuffled", [False, True])
def test_one_function_on_every_input_is_called_as_if_it_came_after_the_mix(shuffled: bool) -> None:
    first, second = Twice(), Twice()

    def made(fns: dict[str, Twice]) -> ps.Dataset:
        parts = {
            name: ps.from_sequence(range(a, a + 40))
            for name, a in (("a", 100), ("b", 200), ("c", 300))
        }
        flows = {name: ds.map(str).map(int).map(fns.get(name, first)) for name, ds in parts.items()}
        return ps.mix(
            {name: ds.shuffle() if shuffled else ds for name, ds in flows.items()}, seed=1
        )

    alike, apart = made({}), made({"b": second})
    op: Any = alike.compiled.op
    assert [step.fn for step in op._functions] == [
        str,
        int,
        first,
    ] and not apart.compiled.op._functions  # type: ignore[attr-defined]
    wanted = list(islice(apart, 110))
    before = first.calls
    assert list(islice(alike, 110)) == wanted
    assert first.calls >= before + 110 and second.calls


@pytest.mark.parametrize("on_error", ["raise", "quarantine"])
def test_a_function_on_every_input_that_fails_names_its_sample(on_error: Any) -> None:
    fn = Twice()
    mixed = ps.mix(
        {name: ps.from_sequence(range(n)).map(fn) for name, n in (("a", 9), ("b", 20), ("c", 9))},
        seed=1,
    )
    loader = ps.Loader(mixed, on_error=on_error)
    if on_error == "raise":
        with pytest.raises(ValueError, match="unlucky") as caught:
            list(islice(loader, 200))
        assert "b[13]" in str(caught.value.__notes__)
    else:
        found = list(islice(loader, 100))
        assert len(found) == 100 and "13 13" not in found
        assert {(each["source"], each["index"]) for each in loader.journal} == {("b", 13)}
