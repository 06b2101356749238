"""Bounds on the memory of JSON before it is parsed; honest JSON is parsed as before."""

from __future__ import annotations

import copy
import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from penstock.stores import json_memory
from penstock.stores.json_memory import (
    MemoryLimitError,
    copy_json,
    decode_text,
    parse_json,
    require_small_json,
)

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False)
    | st.text(st.sampled_from('a,:"[{\\é😀\n'), max_size=9),
    lambda part: (
        st.lists(part, max_size=6)
        | st.dictionaries(st.text(st.sampled_from('ab"\\,:'), max_size=4), part, max_size=5)
    ),
    max_leaves=40,
)


def measure(value: Any, seen: set[int]) -> int:
    """The bytes of a parsed value, objects that it shares once."""
    size = 0 if id(value) in seen else sys.getsizeof(value)
    seen.add(id(value))
    if isinstance(value, dict):
        return size + sum(measure(part, seen) for pair in value.items() for part in pair)
    return size + (sum(measure(part, seen) for part in value) if isinstance(value, list) else 0)


def count_marks(text: str) -> dict[str, int]:
    """The marks outside of strings, letter by letter."""
    counts, is_inside, is_escaped = dict.fromkeys('[{:,"', 0), False, False
    for letter in text:
        if letter == '"' and not is_escaped:
            is_inside = not is_inside
            counts[letter] += 1
        elif not is_inside and letter in counts:
            counts[letter] += 1
        is_escaped = letter == "\\" and not is_escaped
    return counts


@examples(300)
@given(VALUES, st.booleans(), st.integers(1, 9))
def test_marks_outside_of_strings_are_those_of_a_plain_loop(
    value: Any, ascii_only: bool, chunk: int
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_memory, "_CHUNK_BYTES", chunk)
        parts = [*json_memory._count_outside_strings(text.encode())]  # pyright: ignore[reportPrivateUsage]
    counted = [sum(column) for column in zip(*(marks for marks, _ in parts), strict=True)]
    assert counted == list(count_marks(text).values())


@examples(300)
@given(VALUES, st.booleans())
def test_no_value_takes_much_more_than_its_estimate(value: Any, ascii_only: bool) -> None:
    data = json.dumps([value] * 3, ensure_ascii=ascii_only).encode()
    parsed = json.loads(data)
    estimate = json_memory._estimate_json_bytes(data)  # pyright: ignore[reportPrivateUsage]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_memory, "DECODED", 0)  # marks are counted outside of strings
        exact = json_memory._estimate_json_bytes(data)  # pyright: ignore[reportPrivateUsage]
    taken = measure(parsed, set())
    assert exact <= estimate
    assert taken <= 1.2 * exact + 300
    assert len(data) * json_memory._MAX_RATIO + 300 >= taken  # pyright: ignore[reportPrivateUsage]


def test_json_is_refused_by_its_values_not_by_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_memory, "DECODED", 1 << 20)
    text = json.dumps({"text": '{"a": [1, 2], "b": {}}, ' * 9_000}).encode()
    assert len(text) > 250_000
    assert parse_json(text) == json.loads(text)
    rows = json.dumps([{"name": n, "kind": "text of a row" * 3} for n in range(1_500)]).encode()
    assert parse_json(rows) == json.loads(rows)  # keys lie in memory once
    for data in (b"[" + b"{}," * 9_000 + b"1]", b"[" + b"[]," * 12_000 + b"1]"):
        with pytest.raises(MemoryLimitError, match="more than 1 MiB of memory: write smaller"):
            parse_json(data)
        with pytest.raises(MemoryLimitError):
            require_small_json(data)
    for letter in ("😀", "\\ud83d\\ude00"):
        with pytest.raises(MemoryLimitError):
            parse_json(f'"{letter}{"a" * 200_000}"'.encode())
    assert len(parse_json(b'"' + b"a" * 300_000 + b'"')) == 300_000


def test_one_wide_letter_counts_for_all_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_memory, "DECODED", 1 << 20)
    assert decode_text(b"a" * 500_000) == "a" * 500_000
    assert decode_text("語".encode() * 150_000) == "語" * 150_000
    with pytest.raises(MemoryLimitError):
        decode_text("😀".encode() + b"a" * 300_000)


@given(VALUES)
def test_a_copy_shares_no_list_or_object(value: Any) -> None:
    made = copy_json(value)
    assert made == value
    assert json.dumps(made) == json.dumps(value)
    before = copy.deepcopy(value)
    parts = [made]
    while parts:
        part = parts.pop()
        if isinstance(part, dict | list):
            parts += part.values() if isinstance(part, dict) else part
            part.clear()
    assert value == before


def test_a_copy_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_memory, "DECODED", 1 << 20)
    with pytest.raises(MemoryLimitError, match="a copy of the row"):
        copy_json([[[] for _ in range(5_000)]])
