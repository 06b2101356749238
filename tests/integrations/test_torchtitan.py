"""torchtitan's loader in both places where it stood, torchtitan itself stubbed; its own Trainer runs in `titan.py`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

import penstock as ps
from penstock.integrations import torchtitan
from penstock.integrations.torchtitan import ProcessInfo, data_loader

OLD = {"seq_len": 4, "local_batch_size": 2}
NEW = {"max_context_length": 4, "num_tokens_per_batch": 8}
PLACES = {"torchtitan.components.dataloader": OLD, "torchtitan.components.data.loader": NEW}


class Base:
    """Common base of the stand-ins: a nested configuration, and the interface of a loader."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        pass


@pytest.fixture(params=PLACES)
def asked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """torchtitan with its loader in one of the places; how it tells the sizes there."""
    parts = request.param.split(".")
    for name in [*PLACES, *(".".join(parts[:i]) for i in range(1, len(parts) + 1))]:
        module: Any = ModuleType(name)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module if request.param.startswith(name) else None)
    sys.modules[request.param].BaseDataLoader = Base  # pyright: ignore[reportAttributeAccessIssue]
    made: Callable[[], Any] = torchtitan._define_loader_class  # pyright: ignore[reportPrivateUsage]
    made.cache_clear()  # pyright: ignore[reportFunctionMemberAccess]
    request.addfinalizer(made.cache_clear)  # pyright: ignore[reportFunctionMemberAccess]
    return PLACES[request.param]


def make(place: ProcessInfo) -> ps.Loader:
    assert (place.batch_size, place.seq_len, place.tokenizer) == (2, 4, "words")
    rows = (
        ps.from_sequence([[i] * place.seq_len for i in range(24)])
        .shuffle(seed=1)
        .batch(place.batch_size, collate=list)
    )
    return ps.Loader(rows, rank=place.rank, world_size=place.world_size)


def built(rank: int, ranks: int, asked: dict[str, int]) -> Any:
    config = data_loader(make)
    kind: Any
    (kind,) = [each for each in Base.__subclasses__() if each.Config is type(config)]
    return kind(config, dp_rank=rank, dp_world_size=ranks, tokenizer="words", **asked)


def test_it_gives_what_the_loader_gives_and_goes_on_from_its_state(asked: dict[str, int]) -> None:
    want = [*make(ProcessInfo(1, 2, 2, 4, "words"))]
    loader = built(1, 2, asked)
    steps = iter(loader)
    assert [next(steps) for _ in range(2)] == want[:2]
    again = built(1, 2, asked)
    again.load_state_dict(loader.state_dict())
    assert [*again] == want[2:]
    loader.close()
    with pytest.raises(ps.ConfigError, match="closed"):
        next(iter(loader))


def test_tokens_that_are_no_whole_rows_are_refused(asked: dict[str, int]) -> None:
    if asked is NEW:
        with pytest.raises(ps.ConfigError, match="num_tokens_per_batch=9"):
            built(0, 1, NEW | {"num_tokens_per_batch": 9})
