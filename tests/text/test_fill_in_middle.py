"""Fill-in-the-middle: the parts put together are the text, and draws depend on the sample alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import ConfigError, DataError
from penstock.testing import assert_resumes
from penstock.text import FillInMiddle

PREFIX, MIDDLE, SUFFIX = 1, 2, 3


def letters(texts: list[str]) -> list[list[int]]:
    return [[ord(letter) + 10 for letter in text] for text in texts]


def fill(**options: Any) -> FillInMiddle:
    return FillInMiddle(letters, prefix=PREFIX, middle=MIDDLE, suffix=SUFFIX, **options)


def put_together(tokens: Any) -> tuple[str, str]:
    """Return the form and the text of tokens."""
    ids = list(tokens)
    if PREFIX not in ids:
        form, order = "whole", ids
    elif ids[1] == SUFFIX:
        middle = ids.index(MIDDLE)
        form, order = "spm", ids[middle + 1 :] + ids[2:middle]
    else:
        suffix, middle = ids.index(SUFFIX), ids.index(MIDDLE)
        form, order = "psm", ids[1:suffix] + ids[middle + 1 :] + ids[suffix + 1 : middle]
    return form, "".join(chr(token - 10) for token in order)


@given(st.text(max_size=30), st.integers(0, 1 << 32))
def test_the_parts_put_together_are_the_text(text: str, seed: int) -> None:
    tokens = fill(rate=1.0)(text, np.random.default_rng(seed))
    assert tokens.dtype == np.int32
    form, found = put_together(tokens)
    assert form in ("psm", "spm")
    # In SPM the prefix and the middle follow each other without a token between them.
    assert found == text


def test_shares_of_the_forms_and_of_the_cuts() -> None:
    text = "abcdefghij"
    rows = ps.from_sequence([text] * 4000).random_map(fill(rate=0.6, spm=0.25), seed=4)
    made = [put_together(row) for row in rows]
    assert all(found == text for _, found in made)
    counts = {form: sum(found == form for found, _ in made) for form in ("whole", "psm", "spm")}
    # A PSM without a prefix looks like SPM: 21 of 121 pairs of cuts.
    assert abs(counts["whole"] - 1600) < 150 and abs(counts["spm"] - 600 - 1800 * 21 / 121) < 150
    lengths = [list(row).index(SUFFIX) - 1 for row in rows if put_together(row)[0] == "psm"]
    assert {*lengths} == {*range(1, 11)}  # the prefix may be the text


def test_ends_kept_fields_and_other_shares() -> None:
    rows = [{"code": "ab", "id": i} for i in range(5)]
    options: dict[str, Any] = {"field": "code", "bos": 7, "eos": 8, "keep": ("id",)}
    for rate in (0.0, 1.0):
        for i, row in enumerate(ps.from_sequence(rows).random_map(fill(rate=rate, **options))):
            assert row.keys() == {"tokens", "id"} and row["id"] == i
            assert (row["tokens"][0], row["tokens"][-1]) == (7, 8)
            assert put_together(row["tokens"][1:-1])[1] == "ab"


def test_a_run_resumes_with_the_same_draws() -> None:
    texts = ["abcdef" * (1 + i % 3) for i in range(40)]
    make = lambda: ps.from_sequence(texts).shuffle().random_map(fill(eos=0)).pack(16).batch(2)  # noqa: E731
    assert_resumes(make)


def test_tokens_by_name() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {"<unk>": 0, "<pre>": 1, "<mid>": 2, "<suf>": 3}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made = FillInMiddle(tokenizer, prefix="<pre>", middle="<mid>", suffix="<suf>")
    assert (made.prefix, made.middle, made.suffix) == (1, 2, 3)
    with pytest.raises(ConfigError, match="no token '<gap>'"):
        FillInMiddle(tokenizer, prefix="<gap>", middle=2, suffix=3)


def test_wrong_arguments_and_samples() -> None:
    for name in ("rate", "spm"):
        with pytest.raises(ConfigError, match=rf"FillInMiddle\({name}=1.5\): give a share"):
            fill(**{name: 1.5})
    with pytest.raises(DataError, match="'text' holds no text"):
        fill(rate=1.0)({"body": "a"}, np.random.default_rng(0))
    names = {fill(rate=rate, eos=eos).__qualname__ for rate in (0.2, 0.3) for eos in (None, 0)}
    assert len(names) == 4
