"""Taking from runs in lanes: whoever settles what, and whoever resumes, nothing is lost and nothing given twice."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples, rounds
from helpers import through_json
from penstock.engine.runtime.seal import seal, unseal
from simulated_rollouts import Rollouts

LANES = 12
FATES: tuple[Any, ...] = ("trained", "filtered", "failed", "requeue")


def numbers(n: int = 60) -> ps.Dataset:
    return ps.from_sequence(range(n), name="numbers").shuffle(seed=2)


def filtered() -> ps.Dataset:
    return numbers().filter(lambda x: x % 3 > 0)


def several() -> ps.Dataset:
    return numbers().flat_map(lambda x: [(x, i) for i in range(x % 4)]).map(repr)


def buffered() -> ps.Dataset:
    parts = {"a": filtered(), "b": numbers(20).map(lambda x: -x, may_skip=True)}
    return (
        ps.mix(parts, seed=3, stop="first_exhausted")
        .shuffle_buffer(40, seed=5)
        .random_map(lambda x, rng: (x, int(rng.integers(1000))))
    )


def packed() -> ps.Dataset:
    documents = numbers().map(lambda x: {"tokens": [x] * (x % 7 + 1)})
    return documents.pack(8, method="first_fit").map(lambda row: row["tokens"].tolist())


def streamed() -> ps.Dataset:
    return ps.from_iterable(lambda: iter(range(90)), name="stream")


MAKES = (filtered, several, buffered, packed, streamed)


def loaders(make: Any, ranks: int, states: Any = None, **options: Any) -> list[ps.Loader]:
    found = [
        ps.Loader(make().repeat(), rank=rank, world_size=ranks, lanes=LANES, **options)
        for rank in range(ranks)
    ]
    for loader in found if states is not None else []:
        loader.load_state_dict(through_json(states))
    return found


@pytest.fixture(scope="module")
def whole() -> dict[Any, dict[str, Any]]:
    """Return the items of an undisturbed run, by uid."""
    return {
        make: {f"0:{i}": x for i, x in zip(range(900), loaders(make, 1)[0], strict=False)}
        for make in MAKES
    }


@pytest.mark.parametrize("make", MAKES)
def test_uids_are_those_of_the_plain_run(make: Any, whole: dict[Any, dict[str, Any]]) -> None:
    (loader,) = loaders(make, 1)
    assert dict(loader.lease(150)) == {f"0:{i}": whole[make][f"0:{i}"] for i in range(150)}
    (plain,) = loaders(make, 1)
    assert len([*zip(range(150), plain, strict=False)]) == 150
    assert [*map(tuple, plain.lease(2))] == [(uid, whole[make][uid]) for uid in ("0:150", "0:151")]


@pytest.mark.parametrize("make", MAKES)
@given(data=st.data())
@examples(12)
def test_any_ranks_go_on_where_any_ranks_were(
    make: Any, whole: dict[Any, dict[str, Any]], data: st.DataObject
) -> None:
    states, settled, taken = None, set[str](), set[str]()
    for _ in range(data.draw(st.integers(1, 3), "lives")):
        ranks = data.draw(st.sampled_from([1, 2, 3, 4]), "ranks")
        here, flight = loaders(make, ranks, states), [dict[str, Any]() for _ in range(ranks)]
        for _ in range(data.draw(st.integers(0, 8), "steps")):
            rank = data.draw(st.integers(0, ranks - 1), "rank")
            for uid, value in here[rank].lease(data.draw(st.integers(1, 9), "k")):
                assert uid not in settled and not any(uid in each for each in flight)
                assert whole[make][uid] == value
                flight[rank][uid] = value
                taken.add(uid)
            for uid in sorted(
                data.draw(st.sets(st.sampled_from([*flight[rank], ""]), max_size=6), "done") - {""}
            ):
                fate = data.draw(st.sampled_from(FATES), "fate")
                here[rank].settle(uid, fate)
                del flight[rank][uid]
                settled |= {uid} if fate != "requeue" else set()
        states = [loader.state_dict() for loader in here]
    (alone,) = loaders(make, 1, states)
    rest = [item.uid for item in alone.lease(LANES * 12)]
    assert len({*rest}) == len(rest) and not settled & {*rest} and taken - settled <= {*rest}
    for lane in range(LANES):  # of every lane an unbroken beginning
        ours = sorted(int(uid[2:]) for uid in settled | {*rest} if int(uid[2:]) % LANES == lane)
        assert ours == [*range(lane, lane + len(ours) * LANES, LANES)]


def test_workers_change_nothing(whole: dict[Any, dict[str, Any]]) -> None:
    (loader,) = loaders(several, 1, workers=2)
    for item in loader.lease(40)[::2]:
        loader.settle(item.uid, "trained")
    (again,) = loaders(several, 1, [loader.state_dict()], workers=2)
    assert [*map(tuple, again.lease(22))] == [
        (uid, whole[several][uid]) for uid in [*(f"0:{i}" for i in range(1, 40, 2)), "0:40", "0:41"]
    ]
    loader.close()
    again.close()


def test_a_requeued_item_is_computed_again_and_comes_first() -> None:
    (loader,) = loaders(buffered, 1)
    first = loader.lease(30)
    for item in (first[17], first[5]):
        loader.settle(item.uid, "requeue")
    assert [*map(tuple, loader.lease(2))] == [tuple(first[17]), tuple(first[5])]
    loader.settle(first[0].uid, "trained")
    with pytest.raises(ps.ConfigError, match="not in flight"):
        loader.settle(first[0].uid, "trained")


def test_passes_end_on_one_rank_with_an_empty_list_and_keep_what_is_open() -> None:
    def make() -> ps.Loader:
        return ps.Loader(numbers(20).filter(lambda x: x % 2 == 0), lanes=4)

    loader = make()
    first = loader.lease(50)
    assert sorted(item.value for item in first) == [*range(0, 20, 2)] and loader.lease(1) == []
    second = loader.lease(3)
    assert [item.uid for item in second] == ["1:0", "1:1", "1:2"]
    for item in [*first[:4], *first[5:], second[1]]:
        loader.settle(item.uid, "trained")
    again = make()
    again.load_state_dict(loader.state_dict())
    assert [*map(tuple, again.lease(3))] == [tuple(first[4]), tuple(second[0]), tuple(second[2])]
    assert [item.uid for item in again.lease(1)] == ["1:3"]


def test_a_state_holds_what_is_open_and_little_else() -> None:
    (loader,) = loaders(filtered, 1)
    slow = loader.lease(1)[0]
    for _ in range(20):
        for item in loader.lease(48):
            loader.settle(item.uid, "trained")
    assert loader.state_dict()["settling"] == {"behind": {}, "open": [[0, 0, None, [0]]]}
    loader.lease(63)
    state = loader.state_dict()
    assert len(json.dumps(state["settling"])) < 2048
    (again,) = loaders(filtered, 1, [state])
    again.settle(slow.uid, "trained")  # its result outlived the crash
    assert again.state_dict()["settling"]["open"] == state["settling"]["open"][1:] or len(
        again.state_dict()["settling"]["open"]
    ) == len(state["settling"]["open"])
    assert len(again.lease(63)) == 63 and again.lease(1)[0].uid == "0:1024"


def test_what_no_lane_gives_alone_is_refused() -> None:
    for ds in (filtered().batch(2), filtered().repeat().limit(5)):
        with pytest.raises(ps.ConfigError, match="one by one"):
            ps.Loader(ds).lease(1)
    with pytest.raises(ps.ConfigError, match="endless"):
        ps.Loader(filtered(), rank=0, world_size=2, remainder="keep").lease(1)
    (loader,) = loaders(filtered, 1)
    loader.lease(2)
    with pytest.raises(
        ps.StateError, match="sections \\['settling'\\], which only a ps.Loader reads"
    ):
        iter(filtered().repeat()).load_state_dict(loader.state_dict())
    with pytest.raises(ps.ConfigError, match="lease"):
        iter(loader)
    with pytest.raises(ps.StateError, match="never settled"):
        ps.Loader(filtered().map(repr).repeat()).load_state_dict(
            loader.state_dict(), on_mismatch="adopt"
        )


def test_a_lane_that_gives_less_than_was_taken_from_it_is_named() -> None:
    least = [0]

    def make() -> ps.Loader:
        return ps.Loader(numbers(20).filter(lambda x: x >= least[0]), lanes=1)

    loader = make()
    loader.lease(20)
    state, least[0] = loader.state_dict(), 10
    again = make()
    again.load_state_dict(state)
    assert len(again.lease(20)) == 10
    with pytest.raises(
        ps.StateError, match="item 0:10 was leased, but its lane ends before it now"
    ):
        again.lease(20)


@pytest.mark.parametrize(
    "settling",
    [None, [], {}, {"behind": {}}, {"behind": {"x": 1}, "open": []}, {"behind": {"0": -1}, "open": []},
     {"behind": {}, "open": [3]}, {"behind": {}, "open": [[0, 0, None, []]]}, {"behind": {}, "open": [[0, 0, None, [1]]]},
     {"behind": {}, "open": [[0, 0, None, [0, 0]]]}, {"behind": {}, "open": [[0, 0, None, [600]]]},
     {"behind": {}, "open": [[1, 0, None, [0]]]}, {"behind": {}, "open": [[0, 0, "x", [0]]]}],
)  # fmt: skip
def test_a_state_that_tells_nonsense_is_refused(settling: Any) -> None:
    (loader,) = loaders(filtered, 1)
    loader.lease(3)
    (other,) = loaders(filtered, 1)
    with pytest.raises(ps.StateError):
        other.load_state_dict(seal({**unseal(loader.state_dict()), "settling": settling}))
        other.lease(1)


def test_none_is_lost_and_none_trained_twice_whenever_it_is_killed() -> None:
    import random

    def make() -> ps.Dataset:
        return (
            ps.from_sequence(range(700), name="n")
            .shuffle(seed=1)
            .filter(lambda x: x % 5 > 0)
            .repeat()
        )

    dice, saved = random.Random(3), None
    for _ in range(rounds(20, 50)):
        run = Rollouts(make, dice.choice([1, 2, 3]), seed=dice.randrange(1 << 30)).load(saved)
        for _ in range(dice.randint(1, 40)):
            run.step()
        saved = run.save() if dice.random() < 0.7 else saved
        run.close()
    assert saved is not None
    reference = dict(ps.Loader(make(), lanes=48).lease(4000))
    found = {uid: value for uid, value, _ in saved["settled"]}
    assert len(found) == len(saved["settled"]) > 100
    assert all(reference[uid] == value for uid, value in found.items())
    alone = ps.Loader(make())
    alone.load_state_dict(saved["states"])
    rest = {item.uid for item in alone.lease(600)}
    assert not rest & found.keys()
    for lane in range(48):
        ours = sorted(int(uid[2:]) for uid in rest | found.keys() if int(uid[2:]) % 48 == lane)
        assert ours == [*range(lane, lane + 48 * len(ours), 48)]


def test_a_rank_that_takes_nothing_keeps_how_far_its_lanes_are_behind() -> None:
    """The others are ahead of it when their states meet; saved again before it takes anything, it loses none."""
    here = loaders(filtered, 4)
    taken = {item.uid for item in here[3].lease(7)}
    here = loaders(filtered, 4, [loader.state_dict() for loader in here])
    (alone,) = loaders(filtered, 1, [loader.state_dict() for loader in here])
    given = {item.uid for item in alone.lease(LANES * 3)}
    assert taken <= given and {f"0:{i}" for i in range(LANES)} <= given


def test_ranks_whose_lanes_have_ended_are_loaded_on_others() -> None:
    """Lanes end in another order than ranks hold them."""
    ds = ps.from_sequence(range(12)).filter(lambda x: x >= 4)

    def job(world: int) -> list[ps.Loader]:
        return [
            ps.Loader(ds, rank=rank, world_size=world, lanes=6, remainder="keep")
            for rank in range(world)
        ]

    for steps in range(5):
        two, (one,) = job(2), job(1)
        its = [iter(loader) for loader in two]
        given = [
            item
            for _ in range(steps)
            for item in [next(it, None) for it in its]
            if item is not None
        ]
        one.load_state_dict([loader.state_dict() for loader in two])
        assert sorted([*given, *one]) == [*range(4, 12)]
