"""Documents of packed and padded rows in which no token carries loss are counted and logged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.engine.base.event_counts import EVENT_COUNTS
from penstock.text import Padded


def count_untrained() -> int:
    return EVENT_COUNTS.totals(["untrained"])["untrained"]


def make_chats(masks: list[list[int]], feature: str = "loss_mask") -> ps.Dataset:
    chats = [
        {
            "tokens": np.arange(1, len(mask) + 1),
            feature: np.asarray(mask) if feature == "loss_mask" else np.where(mask, 5, -100),
        }
        for mask in masks
    ]
    return ps.from_sequence(chats)


masks = st.lists(
    st.lists(st.integers(0, 1), min_size=1, max_size=30)
    | st.integers(1, 30).map(lambda size: [0] * size),
    min_size=1,
    max_size=12,
)


@examples(60)
@given(
    masks=masks,
    options=st.sampled_from(
        [
            {"method": "first_fit", "long": "truncate"},
            {"method": "first_fit"},
            {},
            {"method": "first_fit", "long": "truncate", "eos": 0, "bos": {"tokens": 99}},
        ]
    ),
    feature=st.sampled_from(["loss_mask", "labels"]),
    batch=st.integers(1, 3),
)
def test_documents_without_loss_are_counted(
    masks: list[list[int]], options: dict[str, Any], feature: str, batch: int
) -> None:
    before = count_untrained()
    pad: Any = {"labels": -100} if feature == "labels" else 0
    list(make_chats(masks, feature).pack(16, pad=pad, **options).batch(batch))
    room = 16 - ("eos" in options) - ("bos" in options)
    if options.get("long") == "truncate":
        kept = [mask[: room + ("eos" in options)] for mask in masks]
        first = 0 if "bos" in options else 1
        assert count_untrained() - before == sum(not any(mask[first:]) for mask in kept)
    elif options:
        whole = [mask for mask in masks if len(mask) <= 16]
        assert count_untrained() - before == sum(not any(mask[1:]) for mask in whole)
    else:
        starts = np.cumsum([0, *map(len, masks)])
        whole = [
            mask
            for mask, start in zip(masks, starts, strict=False)
            if start // 16 == (start + len(mask) - 1) // 16
        ]
        assert count_untrained() - before == sum(not any(mask[1:]) for mask in whole)


def test_padded_batches_count_too() -> None:
    before = count_untrained()
    list(make_chats([[1, 0, 0], [0, 1], [0, 0, 0, 0]]).batch(2, collate=Padded()))
    assert count_untrained() - before == 2


def test_loaders_log_and_count(caplog: pytest.LogCaptureFixture) -> None:
    rows = make_chats([[0] * 20 + [1]] * 4).pack(16, "first_fit", long="truncate").batch(2)
    with ps.Loader(rows, workers=2) as loader:
        before = loader.stats()["untrained"]
        list(loader)
        assert loader.stats()["untrained"] - before == 4
        assert loader.metrics()["data/untrained"] >= 4


class Measured(list[Any]):
    """Documents in memory whose lengths are known."""

    @property
    def lengths(self) -> np.ndarray:
        return np.array([len(document["tokens"]) for document in self], np.int64)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"method": "first_fit", "long": "truncate"},
    {"method": "first_fit", "long": "truncate", "bos": {"tokens": 99, "loss_mask": 1}},
    {"method": "first_fit", "long": "truncate", "eos": {"tokens": 99, "loss_mask": 1}},
    {"method": "first_fit", "long": "truncate", "eos": 98, "bos": 99},
    {"method": "first_fit", "features": ("tokens",), "unpacked": ("loss_mask",)},
    {"method": "best_fit", "long": "truncate", "overflow": "never", "pad_to_multiple": 4},
    {"method": "best_fit", "overflow": "split", "long": "truncate"},
    {"method": "best_fit", "overflow": "crop"},
    {"pad_to_multiple": 2, "eos": 98},
]


def is_trained(mask: list[int], options: dict[str, Any]) -> bool:
    """Return whether a token of a document carries loss in its row, by its mask as the row has it."""
    if "unpacked" in options:
        return True
    ends = [options.get(name) for name in ("bos", "eos")]
    before, after = ([] if end is None else [int(isinstance(end, dict))] for end in ends)
    row = [*before, *mask, *after]
    is_cut = options.get("long") == "truncate" or options.get("overflow") == "crop"
    return any(row[1 : 16 if is_cut else None])


@examples(150)
@given(
    masks=masks, options=st.sampled_from(OPTIONS), feature=st.sampled_from(["loss_mask", "labels"])
)
def test_skipped_documents_are_in_no_row_and_all_others_as_if_they_were_not_there(
    masks: list[list[int]], options: dict[str, Any], feature: str
) -> None:
    if feature == "labels":  # the mask of BOS and EOS is the padding of labels
        options = {name: value for name, value in options.items() if name not in ("bos", "eos")}
        options |= {"unpacked": ("labels",)} if "unpacked" in options else {"pad": {"labels": -100}}
    documents = list(make_chats(masks, feature))
    kept = [
        document
        for document, mask in zip(documents, masks, strict=True)
        if is_trained(mask, options)
    ]
    expected = list(ps.from_sequence(Measured(kept)).pack(16, **options))
    known = ps.from_sequence(Measured(documents)).pack(16, untrained="skip", **options)
    assert len(known) == len(expected)
    np.testing.assert_equal([known[i] for i in range(len(known))], expected)
    if options.get("overflow") != "split":  # needs known lengths
        np.testing.assert_equal(
            list(ps.from_sequence(documents).pack(16, untrained="skip", **options)),
            list(ps.from_sequence(kept).pack(16, **options)),
        )


def write_chats(path: Path, masks: list[list[int]]) -> None:
    rows = [{"tokens": list(range(1, len(mask) + 1)), "loss_mask": mask} for mask in masks]
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)


def draw_masks(seed: int, number: int, size: int = 30) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [
        (rng.random(n) < rng.choice([0.0, 0.1, 0.9])).astype(int).tolist()
        for n in rng.integers(1, size, number)
    ]


def test_skipped_documents_of_files_stay_out_in_every_pass(tmp_path: Path) -> None:
    masks = draw_masks(1, 100)
    write_chats(tmp_path / "chats.parquet", masks)
    chats = ps.read(tmp_path / "chats.parquet", lengths="tokens", name="chats").shuffle(seed=1)
    for options in (OPTIONS[0], OPTIONS[7]):
        untrained = {i for i, mask in enumerate(masks) if not is_trained(mask, options)}
        rows = chats.repeat().pack(16, untrained="skip", **options)
        assert len(untrained) > 20 and rows.tree.reason_not_indexed is None
        samples = [sample for i in range(200) for sample in rows.plan.at(i)]
        assert {sample.index for sample in samples} == {*range(100)} - untrained
        assert rows.plan.counts(200)["chats"] == sum(sample.start == 0 for sample in samples)
        assert not rows.plan.find("chats", sorted(untrained)[0], range(200))
        far = rows.plan.at(10**9)
        assert all(sample.index not in untrained for sample in far)
    with pytest.raises(ps.DataError, match="no document of 'chats' has a token"):
        write_chats(tmp_path / "none.parquet", [[0, 0]])
        none = ps.read(tmp_path / "none.parquet", lengths="tokens", name="chats")
        none.repeat().pack(16, untrained="skip").plan.at(0)


def test_large_passes_that_end_leave_documents_out() -> None:
    masks = draw_masks(3, 20_000, 9)
    offsets = np.cumsum([0, *map(len, masks)]).astype(np.int32)
    arrow: Any = pa
    columns = {
        name: arrow.ListArray.from_arrays(arrow.array(offsets), arrow.array(values))
        for name, values in (
            ("tokens", np.zeros(offsets[-1], np.int32)),
            ("loss_mask", np.concatenate(masks).astype(np.int64)),
        )
    }
    chats = ps.read(arrow.table(columns), lengths="tokens", name="chats").shuffle(seed=1)
    mixed = ps.mix({"chats": chats}, stop="first_exhausted")
    kept = {i for i, mask in enumerate(masks) if any(mask[1:])}
    rows = mixed.pack(64, untrained="skip")
    tokens = sum(len(masks[i]) for i in kept)
    assert len(rows) == -(-tokens // 64) and rows.plan.packing().tokens == tokens
    for first in (0, len(rows) - 9):
        found = {part.index for row in range(first, first + 9) for part in rows.plan.at(row)}
        assert found and found <= kept
    counts = rows.plan.counts(len(rows))
    assert counts == {"chats": len(kept)}


def test_the_plan_says_how_many_documents_are_untrained(tmp_path: Path) -> None:
    masks = {"a": draw_masks(1, 60), "b": draw_masks(2, 90)}
    for name in masks:
        write_chats(tmp_path / f"{name}.parquet", masks[name])
    inputs = {
        name: ps.read(tmp_path / f"{name}.parquet", lengths="tokens", name=name) for name in masks
    }
    inputs["plain"] = ps.from_tokens(np.arange(40), np.arange(0, 41, 8), name="plain")
    both = ps.mix({name: inputs[name] for name in masks}, stop="all_exhausted")
    for options in OPTIONS[1:4] + OPTIONS[6:7] + OPTIONS[8:9]:
        rows = both.pack(16, **options)
        expected = {
            name: sum(not is_trained(mask, options) for mask in masks[name]) / len(masks[name])
            for name in masks
        }
        skipped = both.pack(16, untrained="skip", **options)
        assert skipped.plan.packing().untrained == pytest.approx(expected)
        if "overflow" not in options or options["overflow"] == "never":
            assert rows.plan.packing().untrained == pytest.approx(expected)
            before = count_untrained()
            list(rows.batch(3))
            total = sum(expected[name] * len(masks[name]) for name in masks)
            assert count_untrained() - before == pytest.approx(total)
        before = count_untrained()
        list(skipped.batch(3))
        assert options.get("overflow") == "crop" or count_untrained() == before
    assert inputs["plain"].pack(16).plan.packing().untrained == {}


def test_sources_without_counts_say_how_to_get_them(tmp_path: Path) -> None:
    class Own:
        def __len__(self) -> int:
            return 3

        def read(self, indices: Any) -> list[Any]:
            return [{"tokens": [1, 2], "loss_mask": [0, 1]} for _ in indices]

        def lengths(self) -> Any:
            return np.full(3, 2)

        def describe(self) -> str:
            return "own"

    rows = ps.from_sequence(Own()).pack(4, untrained="skip")  # pyright: ignore[reportArgumentType]
    with pytest.raises(
        ps.ConfigError, match=r"pack\(untrained='skip'\): the source .* loss_counts\(\)"
    ):
        len(rows)
    with pytest.raises(ps.ConfigError, match=r"pack\(untrained='drop'\)"):
        ps.from_sequence([[1]]).pack(4, untrained="drop")  # pyright: ignore[reportArgumentType]
    both = [{"tokens": [1, 2], "loss_mask": [0, 1], "labels": [-100, -100]}]
    table = ps.read(pa.Table.from_pylist(both), lengths="tokens")
    some = table.pack(4, features=("tokens", "loss_mask"), untrained="skip")
    with pytest.raises(ps.ConfigError, match=r"rows have .'loss_mask'., and the documents also"):
        len(some)
    rows = [{"tokens": [1, 2, 3], "loss_mask": [1, 1], "labels": [1, 1, 1]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "uneven.parquet")
    uneven = ps.read(tmp_path / "uneven.parquet", lengths="tokens").pack(4, untrained="skip")
    with pytest.raises(ps.DataError, match="loss_mask and labels of a document differ in length"):
        len(uneven)
