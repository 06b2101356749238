"""Small helpers that many tests use."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

import penstock as ps
from example_counts import is_soak


def numbers(n: int = 20, name: str = "a") -> ps.Dataset:
    """A source of the numbers below `n`."""
    return ps.from_sequence(range(n), name=name)


def through_json(value: Any) -> Any:
    """Save and load a value as JSON, as a checkpoint does."""
    return json.loads(json.dumps(value, allow_nan=False))


def as_lists(item: Any) -> Any:
    """Replace the arrays and scalars of NumPy in an item by lists and numbers, so that items compare with `==`."""
    if isinstance(item, dict):
        return {name: as_lists(value) for name, value in item.items()}
    if isinstance(item, list | tuple):
        values = [as_lists(value) for value in item]
        return type(item)(*values) if hasattr(item, "_fields") else type(item)(values)
    return item.tolist() if isinstance(item, np.ndarray | np.generic) else item


# Frameworks that take seconds to import.
FRAMEWORKS = ("torch", "torchdata", "jax", "orbax", "lightning", "transformers", "datasets")


def wait_for_ranks(ranks: Sequence[subprocess.Popen[str]]) -> None:
    """Wait for processes, and assert that none fails; an error shows what they wrote."""
    errors = [process.communicate(timeout=300)[1] for process in ranks]
    assert not any(process.returncode for process in ranks), "\n".join(errors)[-4000:]


def imports_a_framework(code: str) -> bool:
    """True if code, or an example in it, imports a framework."""
    return bool(
        re.search(rf"^\s*(>>> )?(import|from) ({'|'.join(FRAMEWORKS)})\b", code, re.MULTILINE)
    )


def slow_if(condition: bool) -> list[pytest.MarkDecorator]:
    """Marks for `pytest.param`."""
    return [pytest.mark.slow] if condition else []


def pairwise(*factors: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Combinations in which any two values of two factors occur together at least once.

    For `pytest.mark.parametrize`, where the full product takes too long: most faults need two factors at most. The
    greedy choice is deterministic: the next combination is one with the most pairs that have not occurred.
    """
    indices = [range(len(factor)) for factor in factors]
    pairs = {
        ((a, i), (b, j))
        for a, b in combinations(range(len(factors)), 2)
        for i in indices[a]
        for j in indices[b]
    }
    rows = list(product(*indices))
    chosen = list[tuple[int, ...]]()
    while pairs:
        best = max(rows, key=lambda row: len(pairs & set(combinations(enumerate(row), 2))))
        chosen.append(best)
        pairs -= set(combinations(enumerate(best), 2))
    return [
        tuple(factor[i] for factor, i in zip(factors, row, strict=True)) for row in sorted(chosen)
    ]


def pairwise_first(*factors: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The combinations of `pairwise`; in `make soak` the full product."""
    return list(product(*factors)) if is_soak() else pairwise(*factors)
