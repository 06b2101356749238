"""`flat_map`: pieces are numbered, and a state may be between two of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock as ps
from helpers import numbers, through_json


def count_up(x: int) -> Iterator[int]:
    for i in range(x % 4):
        yield 10 * x + i


def test_every_piece_is_an_item() -> None:
    assert list(numbers(4).flat_map(count_up)) == [10, 20, 21, 30, 31, 32]
    twice = numbers(4).flat_map(count_up).flat_map(lambda x: [x, -x])
    assert list(twice)[:4] == [10, -10, 20, -20]


def test_pieces_have_random_numbers_of_their_own() -> None:
    ds = numbers(20).flat_map(lambda x: [x] * 5).random_map(lambda _, rng: float(rng.random()))
    drawn = list(ds)
    assert len(set(drawn)) == 100 and drawn == list(ds)


def test_a_state_between_two_pieces() -> None:
    ds = numbers(8).flat_map(count_up)
    want = list(ds)
    for taken in range(len(want)):
        it = iter(ds)
        assert [next(it) for _ in range(taken)] == want[:taken]
        again = iter(ds)
        again.load_state_dict(through_json(it.state_dict()))
        assert list(again) == want[taken:], taken


def test_an_error_in_the_middle_of_a_sample_names_it() -> None:
    def fail(x: int) -> Iterator[int]:
        yield x
        if x == 3:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        list(ps.from_sequence(range(5), name="digits").flat_map(fail))
    assert "digits[3] (pass 0)" in str(caught.value.__notes__)
