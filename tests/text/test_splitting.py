"""Long texts cut into pieces: nothing is lost, and pieces end where a reader would end them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import ConfigError, DataError
from penstock.testing import assert_resumes
from penstock.text import SplitText
from penstock.text.splitting import split_text

TEXT = st.text(st.sampled_from("ab.!? \n\r\t。é👍\u0301\u200d🏽👩"), max_size=80)


@given(TEXT, st.integers(1, 30))
def test_pieces_joined_are_the_text_and_none_is_too_long(text: str, size: int) -> None:
    pieces = split_text(text, size)
    assert "".join(pieces) == text
    assert all(0 < len(piece) <= size for piece in pieces) or pieces == [text] == [""]
    if len(text) <= size:
        assert pieces == [text]


@pytest.mark.parametrize(
    ("text", "size", "pieces"),
    [
        ("one two\n\nthree. four\nfive six", 14, ["one two\n\n", "three. four\n", "five six"]),
        ("One. Two! Three? Four", 12, ["One. Two! ", "Three? Four"]),
        ("你好。再见。谢谢。", 7, ["你好。再见。", "谢谢。"]),
        ("a\n\nbbbbbbb ccccccc", 12, ["a\n\nbbbbbbb ", "ccccccc"]),  # no piece of one letter
        ("a bbbbbbbbbbbb", 10, ["a ", "bbbbbbbbbb", "bb"]),  # a word is whole if it can be
        ("eeee\u0301eee", 4, ["eee", "e\u0301ee", "e"]),
        ("👩\u200d👩\u200d👩x", 4, ["👩\u200d👩\u200d", "👩x"]),  # longer than a piece
        ("👍🏽👍🏽", 3, ["👍🏽", "👍🏽"]),
        ("ab\r\ncd", 3, ["ab", "\r\n", "cd"]),
    ],
)
def test_where_pieces_end(text: str, size: int, pieces: list[str]) -> None:
    assert split_text(text, size) == pieces


def test_documents_of_a_dataset() -> None:
    rows = [{"body": "one two three", "id": i} for i in range(20)]
    pieces = ps.from_sequence(rows).flat_map(SplitText(8, "body"))
    assert list(pieces)[:2] == [{"body": "one two ", "id": 0}, {"body": "three", "id": 0}]
    assert_resumes(lambda: ps.from_sequence(rows).flat_map(SplitText(8, "body")).batch(3))
    assert list(ps.from_sequence(["one two three"]).flat_map(SplitText(8))) == ["one two ", "three"]
    with pytest.raises(DataError, match="the field 'text' holds no text; the sample has body, id"):
        list(ps.from_sequence(rows).flat_map(SplitText(8)))
    with pytest.raises(DataError, match="the sample has no fields"):
        SplitText(8)(7)
    with pytest.raises(ConfigError, match=r"SplitText\(0\)"):
        SplitText(0)
