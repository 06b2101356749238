"""Full rows that begin with a document: `pack(length, "best_fit", overflow="crop")`."""

from __future__ import annotations

import time
from bisect import bisect_right, insort
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.engine.packing import BestFit, Packing, plan_groups
from penstock.errors import ConfigError


def store(sizes: Any, name: str = "some") -> ps.Dataset:
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
    return ps.from_tokens(np.arange(offsets[-1], dtype=np.int32), offsets, name=name)


def crop(dataset: ps.Dataset, length: int, **options: Any) -> ps.Dataset:
    return dataset.pack(length, "best_fit", overflow="crop", **options)


def count_rows_of_buffer(sizes: np.ndarray, length: int, held: int = 1000) -> int:
    """Rows of best fit over a buffer of documents, which crops the shortest to fill a row.

    The documents left in the buffer at the end make rows too.
    """
    documents, buffer, rows = iter(sizes.tolist()), list[int](), 0
    while True:
        room = length
        while room:
            while len(buffer) < held and (size := next(documents, None)) is not None:
                insort(buffer, size)
            if not buffer:
                return rows
            fits = bisect_right(buffer, room)
            room = room - buffer.pop(fits - 1) if fits else 0 * buffer.pop(0)
        rows += 1


def draw_sizes(mean: float, sigma: float, number: int) -> np.ndarray:
    drawn = np.random.default_rng(0).lognormal(np.log(mean) - sigma * sigma / 2, sigma, number)
    return np.maximum(drawn, 1).astype(np.int64)


@examples(100)
@given(
    st.lists(st.integers(0, 30), max_size=120),
    st.sampled_from([4, 8, 12, 20]),
    st.sampled_from([1, 5, 4000]),
    st.sampled_from([1, 2]),
)
def test_rows_are_full_of_beginnings_of_documents(
    sizes: list[int], length: int, window: int, multiple: int
) -> None:
    padded = -(-np.asarray(sizes, np.int64) // multiple) * multiple
    layout = plan_groups(BestFit(length, overflow="crop", window=window), padded, multiple=multiple)
    rows = np.repeat(np.arange(len(layout)), np.diff(layout.bounds))
    taken = layout.stop - layout.start
    assert np.bincount(rows, taken, len(layout)).tolist() == [length] * len(layout)
    assert not layout.start.any() and len({*layout.item.tolist()}) == len(layout.item)
    assert (taken > 0).all() and (layout.stop <= padded[layout.item]).all()
    cropped = layout.stop < np.minimum(padded[layout.item], length)
    last = np.r_[rows[1:] != rows[:-1], True] if len(rows) else cropped
    assert not (cropped & ~last).any()  # at most one a row, and it fills the row
    if np.minimum(padded, length).sum() >= 2 * length:
        assert len(layout) > 0


@pytest.mark.parametrize("length", [512, 2048, 8192])
@pytest.mark.parametrize(("mean", "sigma"), [(600, 1.0), (600, 1.5), (1000, 1.2), (600, 2.0)])
def test_no_more_is_cropped_than_by_a_buffer_of_documents(
    length: int, mean: float, sigma: float
) -> None:
    sizes = draw_sizes(mean, sigma, 10_000)
    fold = Packing(length, "best_fit", overflow="crop").fold()
    assert len(plan_groups(fold, sizes)) >= count_rows_of_buffer(sizes, length)


def test_predicted_figures_are_those_of_a_run() -> None:
    names = {"a": draw_sizes(60, 1.0, 500), "b": draw_sizes(200, 1.5, 300)}
    sources = {name: store(sizes, name).shuffle(seed=1) for name, sizes in names.items()}
    mixed = ps.mix(sources, {"a": 1, "b": 1}).limit(500)
    drawn = mixed.plan.counts(500)
    for method, options in (
        ("concat_split", {}),
        ("first_fit", {}),
        ("best_fit", {"overflow": "split"}),
        ("best_fit", {"overflow": "never"}),
        ("best_fit", {"overflow": "crop"}),
    ):
        given: Any = options
        how: Any = method
        packed = mixed.pack(256, how, provenance=True, **given)
        shares = packed.plan.packing(compare=True)
        [told] = [share for share in shares.methods if share.current]
        assert (told.method, told.overflow) == (method, options.get("overflow"))
        rows = list(packed)
        assert told.rows == len(rows)
        held = sum(int((row["segment_ids"] > 0).sum()) for row in rows)
        assert told.fill == pytest.approx(held / (256 * len(rows)))
        assert shares.tokens is not None
        assert told.crop == pytest.approx(1 - held / shares.tokens)
        assert told.aligned == sum(row["positions"][0] == 0 for row in rows) / len(rows)
        parts = [(p.source, p.index) for i in range(len(rows)) for p in packed.plan.at(i)]
        assert told.split == pytest.approx(
            sum(parts.count(one) > 1 for one in {*parts}) / len({*parts})
        )
        ids = np.concatenate([row["source_ids"] for row in rows])
        for i, name in enumerate(packed.sources):
            order = [
                sample.index for sample in mixed.plan.at(slice(0, 500)) if sample.source == name
            ]
            assert len(order) == drawn[name]
            every = int(names[name][order].sum())
            assert told.crop_by_source[name] == pytest.approx(1 - (ids == i).sum() / every)
        if options.get("overflow") == "crop":
            assert (shares.fill, shares.split, told.aligned, told.split) == (1.0, 0.0, 1.0, 0.0)
            assert shares.cut > 0 and told.crop > 0


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("best_fit", {"overflow": "crop"}),
        ("best_fit", {"overflow": "crop", "bos": 1, "eos": 2, "pad_to_multiple": 4}),
        ("best_fit", {"overflow": "split", "long": "truncate"}),
        ("best_fit", {"overflow": "never", "long": "truncate", "eos": 2}),
        ("first_fit", {"long": "truncate", "pad_to_multiple": 8}),
        ("concat_split", {}),
    ],
)
def test_a_run_counts_the_tokens_that_its_plan_crops(method: Any, options: Any) -> None:
    names = {"a": draw_sizes(60, 1.0, 300), "b": draw_sizes(200, 1.5, 200)}
    sources = {name: store(sizes, name).shuffle(seed=1) for name, sizes in names.items()}
    documents = ps.mix(sources, {"a": 1, "b": 1}, stop="all_exhausted").limit(300)
    rows = documents.pack(256, method, **options)
    extra = sum(name in options for name in ("bos", "eos"))
    drawn, held = list(documents.plan.at(slice(0, 300))), held_tokens(rows, names, extra)
    total, lost, left_over = (dict.fromkeys(names, 0) for _ in range(3))
    for sample in drawn:
        size = int(names[sample.source][sample.index]) + extra
        total[sample.source] += size
        if (tokens := held.get((sample.source, sample.index))) is None:
            left_over[sample.source] += size  # at the end of the pass; it is in no row
        else:
            lost[sample.source] += size - tokens
    assert len(drawn) == len({(sample.source, sample.index) for sample in drawn})
    [told] = [share for share in rows.plan.packing(compare=True).methods if share.current]
    shares = {name: (lost[name] + left_over[name]) / total[name] for name in names}
    assert told.crop_by_source == pytest.approx(shares)
    assert any(lost.values()) == (method != "concat_split")
    loaders = [
        ps.Loader(rows.batch(4), rank=rank, world_size=2, remainder="keep") for rank in range(2)
    ]
    cropped = dict.fromkeys(names, 0)
    for loader in loaders:
        first, batches = dict[str, int](), iter(loader)
        for number, _ in enumerate(batches):
            if number == 1:
                first = dict(loader.stats()["cropped"])
        counted = loader.stats()["cropped"]
        assert all(first[name] <= counted[name] for name in names)
        assert loader.metrics()["data/cropped/a"] == counted["a"]
        cropped = {name: cropped[name] + counted[name] for name in names}
    assert cropped == lost


def held_tokens(
    rows: ps.Dataset, names: dict[str, np.ndarray], extra: int
) -> dict[tuple[str, int], int]:
    """Return the tokens, with BOS and EOS, that rows hold of each document."""
    held = dict[tuple[str, int], int]()
    for number in range(len(rows)):
        for part in rows.plan.at(number):
            size, document = int(names[part.source][part.index]) + extra, (part.source, part.index)
            tokens = min(part.stop or 0, size) - (part.start or 0)
            held[document] = held.get(document, 0) + tokens
    return held


def test_a_resumed_run_counts_its_own_crops() -> None:
    documents = store(draw_sizes(200, 1.5, 300), "a").shuffle(seed=1).repeat()
    rows = crop(documents.limit(2_000), 256, window=20)
    whole = ps.Loader(rows.batch(2))
    for _, _ in zip(range(9), whole, strict=False):
        pass
    first = ps.Loader(rows.batch(2))
    for _, _ in zip(range(4), first, strict=False):
        pass
    second = ps.Loader(rows.batch(2), workers=2, executor="processes")
    second.load_state_dict(first.state_dict())
    for _, _ in zip(range(5), second, strict=False):
        pass
    parts = [loader.stats()["cropped"]["a"] for loader in (first, second)]
    second.close()
    assert sum(parts) == whole.stats()["cropped"]["a"] > min(parts) > 0


def test_every_pass_has_full_rows_and_any_is_located_quickly() -> None:
    rows = crop(store(draw_sizes(600, 1.0, 3_000)).shuffle(seed=1), 2048)
    two = [rows.repeat()[i] for i in range(len(rows), 2 * len(rows))]
    assert all((row["segment_ids"] > 0).all() and row["positions"][0] == 0 for row in two)
    start = time.perf_counter()
    parts = rows.plan.at(len(rows) // 2)
    assert time.perf_counter() - start < 0.02
    assert sum((part.stop or 0) - (part.start or 0) for part in parts) == 2048
    assert [rows[7]["tokens"].tolist()] == [[*rows][7]["tokens"].tolist()]


def test_counts_of_passes_are_those_of_their_rows() -> None:
    sources = {name: store(draw_sizes(60, 1.0, 200), name).shuffle(seed=1) for name in "ab"}
    rows = crop(ps.mix(sources, {"a": 1, "b": 1}).limit(150), 256, provenance=True).repeat()
    stop = 3 * len(crop(ps.mix(sources, {"a": 1, "b": 1}).limit(150), 256)) + 2
    ids = np.concatenate([rows[i]["source_ids"] for i in range(stop)])
    tokens = {name: int((ids == i).sum()) for i, name in enumerate(rows.sources)}
    assert rows.plan.counts(stop, unit="tokens") == tokens


def test_rows_of_unknown_lengths_are_full_and_resume() -> None:
    sizes = draw_sizes(60, 1.0, 400).tolist()
    rows = crop(ps.from_sequence(sizes).map(lambda n: np.full(n, n, np.int32)), 256, window=50)
    with ps.Loader(rows) as loader:
        run = iter(loader)
        whole = [next(run)["tokens"].tolist() for _ in range(5)]
        state = loader.state_dict()
        rest = [row["tokens"].tolist() for row in run]
    with ps.Loader(rows) as loader:
        loader.load_state_dict(state)
        assert [row["tokens"].tolist() for row in loader] == rest
    assert whole and all(np.all(row) for row in whole + rest)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"open_rows": 4}, "open_rows does not go"),
        ({"max_segments": 4}, "max_segments does not go"),
        ({"group_by": "__source__"}, "group_by does not go"),
        ({"rows": 8}, "rows does not go"),
        ({"long": "split"}, "long does not go"),
        ({"long": "truncate"}, "long does not go"),
        ({"bos": 1, "eos": 2, "length": 2}, "has no room for a token"),
    ],
)
def test_options_that_do_not_fill_rows_are_errors(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        crop(store([3]), **{"length": 8, **options})
    with pytest.raises(ConfigError, match="overflow is for best_fit"):
        store([3]).pack(8, "first_fit", overflow="crop")
