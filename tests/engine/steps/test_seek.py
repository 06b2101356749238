"""Where tokens lie in a flow: what is remembered in blocks is what is worked out anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.engine.steps import tokens as token_sums
from penstock.engine.steps.seek import NEAR, BlockMeter, Metered
from penstock.engine.steps.step import Builder
from penstock.engine.steps.tokens import Lengths
from penstock.types import Sizer


@pytest.fixture(autouse=True, params=["sums by position", "sums by block"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "sums by block":
        monkeypatch.setattr(token_sums, "_SMALL", 0)


def test_a_meter_of_blocks_tells_what_a_plain_one_tells() -> None:
    dice = np.random.default_rng(0)
    sizes = dice.integers(0, 50, 700)
    tokens = np.zeros(int(sizes.sum()), np.int32)
    flow = (
        ps.from_tokens(tokens, np.concatenate([[0], np.cumsum(sizes)]))
        .shuffle(seed=1)
        .repeat()
        .tree
    )
    builder = Builder(flow)
    op, lengths = builder.op(flow), builder.lengths
    plain, blocks = Metered(op, lengths), BlockMeter(op, lengths)
    # Far more blocks than are remembered, in no order, over the ends of blocks and of passes.
    for start in dice.integers(0, 60_000, 400).tolist():
        stop = start + int(dice.integers(0, 600))
        assert blocks.tokens(start) == plain.tokens(start)
        assert blocks.lengths(start, stop).tolist() == plain.lengths(start, stop).tolist()
    assert blocks.lengths(0, 256).tolist() == plain.lengths(0, 256).tolist()
    assert blocks.lengths(255, 511).tolist() == plain.lengths(255, 511).tolist()


def test_tokens_of_a_shuffle_whose_passes_hold_other_documents() -> None:
    sizes = {
        name: np.random.default_rng(n).integers(0, 50, n) for name, n in {"a": 30, "b": 20}.items()
    }
    flows = {
        name: ps.from_tokens(
            np.zeros(int(each.sum()), np.int32), np.concatenate([[0], np.cumsum(each)])
        ).shuffle()
        for name, each in sizes.items()
    }
    ds = ps.mix(flows, {"a": 1, "b": 2}, stop="first_exhausted").shuffle(seed=4)
    samples, op, lengths = (
        ds.repeat().plan.at(slice(0, 110)),
        ds.compiled.op,
        ds.compiled.builder.lengths,
    )
    held = [
        sizes["ab"[source]][index]
        for source, index in zip(samples.source, samples.index, strict=True)
    ]
    for position in range(110):
        found, want = (
            np.zeros(2, np.int64),
            np.bincount(samples.source[:position], held[:position], minlength=2),
        )
        op.tokens(position, lengths, found)
        assert found.tolist() == want.tolist()


@pytest.mark.parametrize("extra", [0, 1, 2, 3])
def test_tokens_that_every_document_has_besides_are_counted(extra: int) -> None:
    sizes = np.random.default_rng(0).integers(0, 9, 300)
    flow = (
        ps.from_tokens(np.zeros(int(sizes.sum()), np.int32), np.cumsum([0, *sizes]))
        .shuffle(seed=1)
        .repeat()
        .tree
    )
    builder = Builder(flow)
    lengths = builder.lengths.count_by(Sizer(len, extra))
    meter = Metered(builder.op(flow), lengths)
    known = np.cumsum([0, *meter.lengths(0, 900)])
    assert known[300] == sizes.sum() + 300 * extra
    assert [meter.tokens(document) for document in range(0, 900, 7)] == known[:900:7].tolist()
    for token in range(0, int(known[-1]), 53):
        document, begins = meter.near(token)
        assert known[document] == begins <= token


def test_the_document_that_holds_a_token_of_a_leaf_as_it_lies() -> None:
    many = np.random.default_rng(3).integers(0, 4, 5000)
    starts = np.cumsum([0, *many])
    lengths = Lengths([many])
    for token in range(0, lengths.total(0), 61):
        document = int(np.searchsorted(starts, token, side="right")) - 1
        assert lengths.holding(0, token) == (document, starts[document])
        assert lengths.until(0, document) == starts[document]


@pytest.mark.parametrize("sigma", [0.5, 2.5])
@pytest.mark.parametrize("ramped", [False, True])
def test_far_tokens_take_few_sums(
    sigma: float, ramped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    flows, dice = dict[str, ps.Dataset](), np.random.default_rng(1)
    for i in range(8):
        sizes = dice.lognormal(4, sigma, 9000).astype(np.int64) + 1
        tokens = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint16), (int(sizes.sum()),), (0,))
        flows[f"s{i}"] = ps.from_tokens(tokens, np.cumsum([0, *sizes]), name=f"s{i}").shuffle(
            seed=i
        )
    end = ps.Schedule(
        [(0, dict.fromkeys(flows, 1.0)), (10**9, {n: 1.0 + i for i, n in enumerate(flows)})],
        "linear",
    )
    flow = ps.mix(flows, end if ramped else dict.fromkeys(flows, 1.0), seed=1).tree
    builder = Builder(flow)
    op, lengths = builder.op(flow), builder.lengths
    meter, asked = Metered(op, lengths), list[int]()
    mean = lengths.total(0) / 9000

    def counted(document: int, *args: Any) -> None:
        asked.append(document)
        tokens_of(document, *args)

    tokens_of = op.tokens
    monkeypatch.setattr(op, "tokens", counted)
    for place, most in ((10**9, 8), (10**9 + 300, 4), (10**9 + 7 * 10**5, 5)):
        token = int(place * mean)
        asked.clear()
        document, begins = meter.near(token)
        assert len(asked) <= most, (place, asked)
        assert (
            begins
            == meter.tokens(document)
            <= token
            < meter.tokens(document + 512 * (1 + (sigma > 1)))
        )


@pytest.mark.parametrize("order", ["skip", "limit", "slice"])
def test_what_holds_a_token_of_a_part_lies_close_before_it(order: str) -> None:
    """Also far behind what is left out, and in every pass."""
    sizes = np.random.default_rng(5).integers(1, 9, 20_000)
    ds = ps.from_tokens(np.zeros(int(sizes.sum()), np.int32), np.cumsum([0, *sizes]))
    part = {"skip": ds.skip(9_001), "limit": ds.limit(9_001), "slice": ds[4_999:17_003]}[order]
    flow = part.repeat().tree
    builder = Builder(flow)
    op, lengths = builder.op(flow), builder.lengths
    meter = Metered(op, lengths)
    for token in range(7, 4 * meter.tokens(len(part)), 20_011):
        document, begins = op.holding(token, lengths)
        assert begins == meter.tokens(document) <= token < begins + 8 * 3 * NEAR
