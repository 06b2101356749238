"""States that somebody sealed anew with something wrong inside: refused at load, by a `StateError`, and nothing moves.

What nobody can tell from a state of this run goes on as one, or ends by an error that Penstock raises on purpose.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import pytest

import penstock as ps
from example_counts import rounds
from helpers import through_json
from penstock.engine.base.canonical_json import encode_canonical_json
from penstock.engine.grouping import BatchByTokens
from penstock.engine.mixing.rules import By
from penstock.engine.runtime.seal import unseal
from penstock.engine.steps.mix import Mix
from penstock.engine.steps.read import Read
from penstock.types import Ints

Place = tuple[Any, ...]
SAMPLE = rounds(
    20, 200
)  # mutants of every pipeline that are tried at each run; there are some 1,000


def numbers(n: int, first: int = 0) -> ps.Dataset:
    return ps.from_sequence(range(first, first + n), name=f"from {first}")


def odd(n: int, first: int = 0) -> ps.Dataset:
    """A flow whose length is not known beforehand."""
    return numbers(n, first).filter(lambda x: x % 2)


def documents(n: int = 40) -> ps.Dataset:
    return numbers(n).filter(lambda x: x % 3).map(lambda x: [x] * (1 + x * 7 % 11))


def pairs(n: int = 40) -> ps.Dataset:
    return documents(n).map(lambda doc: {"a": doc, "b": doc[:3]})


def tokens(n: int = 40) -> ps.Dataset:
    documents = [[i] * (1 + i * 7 % 11) for i in range(n)]
    offsets = [0]
    for document in documents:
        offsets.append(offsets[-1] + len(document))
    return ps.from_tokens([token for document in documents for token in document], offsets)


def mixed(stop: Any, **options: Any) -> ps.Dataset:
    return ps.mix(
        {"a": odd(20), "b": odd(40, 100), "c": odd(9, 300)},
        {"a": 3, "b": 1, "c": 1},
        stop=stop,
        **options,
    )


class Broken:
    """A source some of whose numbers cannot be read."""

    def __len__(self) -> int:
        return 60

    def read(self, indices: Ints, /) -> list[int]:
        if bad := [i for i in indices.tolist() if i % 7 == 3]:
            raise ValueError(f"cannot read {bad}")
        return [range(60)[i] for i in indices.tolist()]

    def lengths(self) -> None:
        return None

    def describe(self) -> Any:
        return {"rows": 60}


class Rule:
    """A mixing rule: two of the first for one of the second."""

    def size(self, sizes: Sequence[int | None], /) -> None:
        return None

    def at(self, positions: Ints, /) -> tuple[Ints, Ints]:
        return (positions % 3 == 2).astype("int64"), positions // 3

    def describe(self) -> Any:
        return {"rule": "two to one"}


def loader(make: Callable[[], ps.Dataset], **options: Any) -> Callable[[], list[ps.Loader]]:
    """One rank with few lanes."""
    return lambda: [ps.Loader(make(), **{"lanes": 2, **options})]


def ranks(make: Callable[[], ps.Dataset], **options: Any) -> Callable[[], list[ps.Loader]]:
    return lambda: [ps.Loader(make(), rank=rank, world_size=2, **options) for rank in range(2)]


def changed() -> list[ps.Loader]:
    """A mixture of which everything was changed on the way."""
    flows = {"a": numbers(50).shuffle(), "b": numbers(30, 100)}
    data = ps.mix(flows, {"a": 3, "b": 1}, stop="all_exhausted").batch(2)
    found = ps.Loader(data)
    next(iter(found))
    edited = (
        data.plan.for_state(found.state_dict()).exclude([("a", 7), ("b", 3)]).skip(range(15, 17))
    )
    found.load_state_dict(edited.state)
    list(islice(iter(found), 3))
    found.set_weights({"a": 1, "b": 2})
    return [found]


def schedule() -> ps.Dataset:
    weights = ps.Schedule([(0, {"a": 1, "b": 3}), (40, {"a": 3, "b": 1})])
    return ps.mix(
        {"a": numbers(50).shuffle(), "b": numbers(30, 100)}, weights, max_epochs={"b": 2}
    ).batch(2)


def inner_limit() -> ps.Dataset:
    return ps.mix(
        {"a": odd(40).repeat().limit(13), "b": odd(20, 100)}, {"a": 1, "b": 1}, stop="restart"
    )


PIPELINES: dict[str, Callable[[], list[ps.Loader]]] = {
    "plain": loader(lambda: numbers(40).shuffle().repeat(2).batch(3)),
    "tokens, planned": loader(lambda: tokens().pack(16, "first_fit").batch(2)),
    "quarantine": loader(lambda: ps.Dataset(Read(Broken(), "a")).shuffle().batch(2), on_error="quarantine"),
    "changed": changed,
    "schedule": loader(schedule),
    "ranks of positions": ranks(lambda: numbers(40).shuffle().batch(3)),
    "shuffle_buffer": loader(lambda: odd(120).shuffle_buffer(9)),
    "concat_split": loader(lambda: documents().pack(16).batch(2)),
    "first_fit": loader(lambda: documents().pack(16, "first_fit", max_segments=3)),
    "best_fit": loader(lambda: documents().pack(16, "best_fit", window=3)),
    "features, end to end": loader(lambda: pairs().pack_features({"a": 9, "b": 7})),
    "features, best fit": loader(lambda: pairs().pack_features({"a": 16, "b": 16}, "best_fit", open_rows=3)),
    "bucket_by_length": loader(lambda: documents().bucket_by_length([3, 6], 2, collate=list)),
    "batch_by_tokens": loader(lambda: documents().batch_by_tokens(20, padded=True, collate=list)),
    "a fold of one's own": loader(lambda: documents().fold(BatchByTokens(20)).shuffle_buffer(3)),
    "rebatch": loader(lambda: documents().map(lambda x: {"x": x}).rebatch(4)),
    "flat_map": loader(lambda: odd(40).flat_map(lambda x: [x] * (x % 5)).map(lambda x: x + 1), lanes=4, workers=2),
    "interleave": loader(lambda: odd(20).interleave(odd(6, 100), odd(9, 200), width=2)),
    "concat": loader(lambda: odd(6).concat(odd(20, 100))),
    "zip": loader(lambda: odd(40).zip(odd(40, 100)).batch(2)),
    "mix, restart": loader(lambda: mixed("restart")),
    "mix, caps": loader(lambda: mixed("restart", max_epochs={"a": 2, "c": 1}, block_size=8)),
    "mix, all_exhausted": loader(lambda: mixed("all_exhausted")),
    "mix, all_exhausted_oversample": loader(lambda: mixed("all_exhausted_oversample")),
    "mix by a rule": loader(lambda: ps.Dataset(Mix((odd(90).tree, odd(40, 100).tree), ("a", "b"), By(Rule())))),
    "repeat": loader(lambda: odd(10).repeat(9).shuffle_buffer(4)),
    "iterable": loader(lambda: ps.from_iterable(lambda: iter(range(50)), name="rows").shuffle_buffer(6), lanes=3),
    "endless iterable": loader(lambda: ps.from_iterable(lambda: iter(range(1 << 60)), name="rows").batch(2), lanes=3),
    "endless": loader(lambda: odd(40).repeat().shuffle_buffer(5)),
    "limit inside": loader(inner_limit),
    "limit": loader(lambda: odd(40).repeat().limit(50).batch(2)),
    "ranks of lanes, quarantine": ranks(
        lambda: ps.Dataset(Read(Broken(), "a")).filter(bool).repeat().shuffle_buffer(4), on_error="quarantine", lanes=2
    ),
    "ranks of lanes": ranks(lambda: documents().repeat().pack(16, "best_fit", window=5), lanes=4),
}  # fmt: skip


def sealed(body: dict[str, Any]) -> dict[str, Any]:
    """A state as whoever forges one would write it, with nothing folded."""
    return {**body, "check": hashlib.sha256(encode_canonical_json(body)).hexdigest()[:32]}


def state_of(make: Callable[[], list[ps.Loader]]) -> list[dict[str, Any]]:
    """The states of all ranks somewhere in the middle, without their seals."""
    found = list[dict[str, Any]]()
    for each in make():
        taken = list(islice(iter(each), 7))
        assert len(taken) >= 3
        found.append(unseal(each.state_dict()))
        each.close()
    return through_json(found)


def places(tree: Any, at: Place = ()) -> Iterator[Place]:
    """Every leaf and every container."""
    yield at
    entries = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for name, below in entries:
        yield from places(below, (*at, name))


def wrongs(value: Any) -> Iterator[Any]:
    """Yield values that may replace a value of a state."""
    yield from (None, -1, 0, 1 << 40, 1 << 59, 10**30, 1.5, True, "x", [], {}, [value])
    yield {"x": value}
    if type(value) is int:
        yield from (value + 1, value - 1, float(value), str(value))
    if isinstance(value, list):
        yield from (
            [*value, *value[-1:]],
            value[:-1],
            value[::-1],
            [*value, None],
            dict.fromkeys(map(str, value)),
        )
    if isinstance(value, dict):
        for name in value:
            yield {key: below for key, below in value.items() if key != name}
        yield {**value, "more": 1}
        yield dict(zip(value, [*value.values()][::-1], strict=True))
    deep: Any = value
    for _ in range(500):
        deep = [deep]
    yield deep


def put(tree: Any, at: Place, value: Any) -> Any:
    """The tree with another value at a place."""
    if not at:
        return value
    other = dict(tree) if isinstance(tree, dict) else list(tree)
    other[at[0]] = put(tree[at[0]], at[1:], value)
    return other


def mutants(states: list[dict[str, Any]]) -> list[tuple[Place, Any]]:
    """Return (path, value) pairs to write into the state of the last rank."""
    last = states[-1]
    found = [at for at in places(last) if at and at[0] not in ("penstock", "version", "order")]
    out = list[tuple[Place, Any]]()
    for at in found:
        value = last
        for name in at:
            value = value[name]
        out += [(at, wrong) for wrong in wrongs(value) if json.dumps(wrong) != json.dumps(value)]
    return out


def try_one(
    make: Callable[[], list[ps.Loader]],
    states: list[dict[str, Any]],
    at: Place,
    wrong: Any,
    adopt: bool = False,
) -> str:
    """Load a mutant and take some items; what became of it."""
    found = make()[-1]
    try:
        before = found.state_dict()
        forged = [*states[:-1], put(states[-1], at, wrong)]
        try:
            found.load_state_dict(
                [sealed(state) for state in forged], on_mismatch="adopt" if adopt else "error"
            )
        except ps.StateError:
            assert found.state_dict() == before, "a state that is refused moves nothing"
            return "refused"
        try:
            list(islice(iter(found), 20))
        except ps.PenstockError:
            return "stopped"
        return "went on"
    finally:
        found.close()


@pytest.mark.parametrize("name", PIPELINES)
def test_a_forged_state_is_refused_or_goes_on(name: str) -> None:
    states = state_of(PIPELINES[name])
    assert try_one(PIPELINES[name], states, ("epoch",), states[-1]["epoch"]) == "went on"
    found = random.Random(name).sample(mutants(states), SAMPLE)
    for at, wrong in found:
        try:
            try_one(PIPELINES[name], states, at, wrong)
        except Exception as error:
            error.add_note(f"{name}: {str(wrong)[:80]} written at {at}")
            raise
