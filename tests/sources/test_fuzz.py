"""Parsers that are ours, fed what nobody wrote: an answer, or an error that says what is wrong."""

from __future__ import annotations

import time

import pytest

from damage import Careless
from example_counts import done, rounds
from fuzz import PARSERS, wrong
from penstock.base import seams

pytestmark = pytest.mark.slow  # a fuzzer: 20 seconds


@pytest.mark.parametrize("name", PARSERS)
def test_any_bytes_give_an_answer_or_an_error_of_ours(name: str) -> None:
    # 20 seconds for all of them in every run, ten minutes under `make soak`.
    with seams.pretend(disk=Careless()):
        tried, problems = wrong(PARSERS[name], rounds(20, 600) / len(PARSERS), seed=rounds(0, int(time.time())))
    assert not problems, "\n".join(problems)
    done["inputs"] += tried
    assert tried
