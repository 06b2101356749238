"""The helpers of tests do what they promise."""

from __future__ import annotations

from collections import namedtuple
from itertools import combinations, product

import numpy as np
import pytest

from helpers import as_lists, imports_a_framework, pairwise, pairwise_first

FACTORS = (range(6), "abcd", (False, True), (1, 2, 3))


def test_pairwise_has_every_pair_of_values_in_few_combinations() -> None:
    rows = pairwise(*FACTORS)
    for a, b in combinations(range(len(FACTORS)), 2):
        assert {(row[a], row[b]) for row in rows} == set(product(FACTORS[a], FACTORS[b]))
    assert len(rows) <= 30 < len(list(product(*FACTORS)))


def test_pairwise_first_has_the_whole_product_in_a_soak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOAK", raising=False)
    assert pairwise_first(*FACTORS) == pairwise(*FACTORS)
    monkeypatch.setenv("SOAK", "1")
    assert pairwise_first(*FACTORS) == list(product(*FACTORS))


def test_arrays_become_lists_in_their_containers() -> None:
    Point = namedtuple("Point", "x y")
    item = {"a": [np.arange(2), (np.int64(3), "text")], "p": Point(np.ones(1), None)}
    assert as_lists(item) == {"a": [[0, 1], (3, "text")], "p": Point([1.0], None)}


def test_imports_of_frameworks_are_found() -> None:
    assert imports_a_framework("import numpy\nfrom torch.utils import data")
    assert imports_a_framework('"""\n    >>> import jax\n"""')
    assert not imports_a_framework("import torchless\n# import torch is slow")
