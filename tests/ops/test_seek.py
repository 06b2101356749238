"""Where tokens lie in a flow: what is remembered in blocks is what is worked out anew."""

from __future__ import annotations

import numpy as np
import pytest

import penstock as ps
from penstock.graph.build import Builder
from penstock.ops.seek import BlockMeter, Metered
from penstock.ops.tokens import Lengths


def test_a_meter_of_blocks_tells_what_a_plain_one_tells() -> None:
    dice = np.random.default_rng(0)
    sizes = dice.integers(0, 50, 700)
    tokens = np.zeros(int(sizes.sum()), np.int32)
    flow = ps.from_tokens(tokens, np.concatenate([[0], np.cumsum(sizes)])).shuffle(seed=1).repeat().flow
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


@pytest.mark.parametrize("extra", [0, 1, 2, 3])
def test_tokens_that_every_document_has_besides_are_counted(extra: int) -> None:
    sizes = np.random.default_rng(0).integers(0, 9, 300)
    flow = ps.from_tokens(np.zeros(int(sizes.sum()), np.int32), np.cumsum([0, *sizes])).shuffle(seed=1).repeat().flow
    builder = Builder(flow)
    meter = Metered(builder.op(flow), builder.lengths, extra)
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
