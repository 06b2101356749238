"""Every argument of every public function is given what it is not made for: an error of ours, or it works."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps

ODD: list[Any] = [
    5,
    -1,
    10**400,
    1.5,
    float("nan"),
    float("inf"),
    "5",
    "",
    "a\0b",
    "\ud800",
    "x" * 200,
    b"x",
    None,
]
ODD += [
    [],
    [1, 2],
    ["a"],
    (),
    {},
    {"a": 1},
    {1: 2},
    {"a": []},
    {"a": None},
    {1},
    [[]],
    [None],
    object(),
    True,
    False,
]
ODD += [
    np.array([1, 2]),
    np.array(["a", "b"]),
    np.array(2),
    np.float32(2),
    np.int64(3),
    np.datetime64("2020"),
]
ODD += [Path("none"), range(3), iter([1]), ..., 2 + 1j, slice(1)]

NUMBERS, DOCUMENTS = range(20), [np.arange(5, dtype=np.int32)] * 20
ROWS = [{"x": i, "text": "ab"} for i in range(20)]
GOOD: dict[str, Any] = {
    **{
        "n": 2,
        "length": 8,
        "count": 3,
        "index": 0,
        "epochs": 2,
        "seed": 3,
        "max_tokens": 16,
        "bounds": (3, 6),
    },
    **{
        "fn": lambda *given: given[-1],
        "indices": [1, 2],
        "names": {"x": "y"},
        "held_out": 0.5,
        "fields": ["x"],
    },
    **{
        "seq": [1, 2, 3],
        "factory": lambda: iter(range(5)),
        "paths": "a.jsonl",
        "tokens": [1, 2],
        "offsets": [0, 2],
    },
    **{"points": [(0, {"a": 1.0})], "path": "a.yaml", "folder": "out"},
    **{"lengths": {"x": 4, "y": 4}},
}
STEPS: dict[str, Callable[[], ps.Dataset]] = {
    **dict.fromkeys(
        ("pack", "batch_by_tokens", "bucket_by_length"), lambda: ps.from_sequence(DOCUMENTS)
    ),
    "pack_features": lambda: ps.from_sequence([{"x": [1, 2], "y": [3]}] * 20),
    "rename": lambda: ps.from_sequence(ROWS),
}
AS_LISTS_DO = {
    "slice",
}  # an index that is no number is Python's own TypeError, as it is of a list
# autotune runs for seconds; what fold and pipe are given is the user's own code.
LEFT_OUT = {"autotune", "fold", "pipe", "compiled", "plan", *AS_LISTS_DO}
QUESTIONS = {
    "for_state",
    "after",
    "diff",
    "exhaustion",
}  # of a plan: other questions take positions, and answer as lists do


def numbers() -> ps.Dataset:
    return ps.from_sequence(NUMBERS)


def functions() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    found: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {}
    own = {"mix": {"datasets": {"a": numbers(), "b": numbers()}}}
    for name in ps.__all__:
        thing = getattr(ps, name)
        if inspect.isfunction(thing) or name in ("Loader", "Schedule"):
            found[name] = thing, {"dataset": numbers(), "run": iter(numbers()), **own.get(name, {})}
    for name, method in vars(ps.Dataset).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            make = STEPS.get(name, numbers)
            found[f"ds.{name}"] = (
                (lambda *args, _m=method, _d=make, **given: _m(_d(), *args, **given)),
                {},
            )
    for name in sorted(QUESTIONS):
        state, other = ps.Loader(numbers()).state_dict(), numbers().plan
        found[f"plan.{name}"] = (
            (lambda *args, _n=name, **given: getattr(numbers().plan, _n)(*args, **given)),
            {"state": state, "other": other},
        )
    return {name: what for name, what in found.items() if name.removeprefix("ds.") not in LEFT_OUT}


def parameters(name: str, fn: Callable[..., Any]) -> list[inspect.Parameter]:
    owners = {"ds": ps.Dataset, "plan": type(numbers().plan)}
    owner, _, method = name.rpartition(".")
    there = inspect.signature(getattr(owners[owner], method) if owner else fn).parameters.values()
    return [each for each in there if each.name != "self" and each.kind is not each.VAR_KEYWORD]


def used(result: Any) -> None:
    """The first samples of what was made."""
    if isinstance(result, ps.Dataset):
        list(itertools.islice(iter(result), 3))
    elif isinstance(result, ps.Loader):
        with result:
            list(itertools.islice(iter(result), 3))
    elif isinstance(result, tuple):
        for each in result:  # pyright: ignore[reportUnknownVariableType]
            used(each)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", functions())
def test_what_is_given_is_refused_by_us_or_works(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
    fn, own = functions()[name]
    asked = parameters(name, fn)
    needed = {
        p.name: {**GOOD, **own}.get(p.name)
        for p in asked
        if p.default is p.empty and p.kind is not p.VAR_POSITIONAL
    }
    foreign: list[str] = []
    refused = 0
    for parameter, odd in itertools.product(asked, ODD):
        several = parameter.kind is parameter.VAR_POSITIONAL
        given = needed if several else {**needed, parameter.name: odd}
        try:
            used(fn(*([odd] if several else []), **given))
        except ps.PenstockError:
            refused += 1
        except IndexError as error:  # of positions
            refused += 1
            assert "counted up to 2^60" in str(error)
        except Exception as error:
            foreign.append(
                f"{name}({parameter.name}={odd!r:.40}): {type(error).__name__}: {error}"[:200]
            )
    assert not foreign
    assert refused > len(asked)
