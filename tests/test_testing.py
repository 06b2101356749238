"""The kit finds what it promises to find: each helper against an object with the defect."""

from __future__ import annotations

import json
import pickle
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from example_counts import examples
from penstock.stores.storage import override_world
from penstock.testing import (
    Crash,
    CrashingDisk,
    SimulatedScheduler,
    assert_covers,
    assert_elastic,
    assert_mixture,
    assert_resumes,
    assert_same_run,
    pipelines,
    show,
)
from penstock.testing.asserts import describe_difference


class Good:
    """A loader over two-item batches, by the book; the classes below break one thing each."""

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self.rank, self.world, self.epoch, self.place = rank, world, 0, 0
        self.held: list[int] = []

    def items(self) -> list[Any]:
        rows = 7 - 7 % self.world  # what makes no whole step is left out
        return [{"x": np.array([self.epoch, i])} for i in range(rows)][self.rank :: self.world]

    def __iter__(self) -> Any:
        while self.place < len(self.items()):
            self.place += 1
            yield self.items()[self.place - 1]
        self.epoch, self.place = self.epoch + 1, 0

    def state_dict(self) -> Any:
        return {"epoch": self.epoch, "place": self.place * self.world}

    def load_state_dict(self, state: Any) -> None:
        state = state[0] if isinstance(state, list) else state
        self.epoch, self.place = state["epoch"], state["place"] // self.world


class StateOfTheStartAfterALoad(Good):
    loaded = False

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        self.loaded = True

    def __iter__(self) -> Any:
        for x in super().__iter__():
            self.loaded = False
            yield x

    def state_dict(self) -> Any:
        return {"epoch": 0, "place": 0} if self.loaded else super().state_dict()


class ForgetsTheEpoch(Good):
    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict({"epoch": 0, "place": state["place"]})


class EpochsStayShort(Good):
    skipped = 0

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        self.skipped = self.place

    def __iter__(self) -> Any:
        yield from super().__iter__()
        self.place = self.skipped


class LoadsOnlyWhenNew(Good):
    used = False

    def __iter__(self) -> Any:
        self.used = True
        yield from super().__iter__()

    def load_state_dict(self, state: Any) -> None:
        if not self.used:
            super().load_state_dict(state)


class SecondResumeRestarts(Good):
    resumed = False

    def load_state_dict(self, state: Any) -> None:
        self.resumed = True
        super().load_state_dict({"epoch": 0, "place": 0} if state.get("resumed") else state)

    def state_dict(self) -> Any:
        return super().state_dict() | ({"resumed": True} if self.resumed else {})


class SavingTakesASample(Good):
    def state_dict(self) -> Any:
        self.place += 1
        return super().state_dict()


class NotJson(Good):
    def state_dict(self) -> Any:
        return {"epoch": self.epoch, "place": np.int64(self.place)}


class SharesItsState(Good):
    def __init__(self) -> None:
        super().__init__()
        self.shared: dict[str, int] = {}

    def state_dict(self) -> Any:
        self.shared.update(super().state_dict())
        return self.shared


def test_a_loader_by_the_book_passes() -> None:
    assert_resumes(Good)
    assert_resumes(Good, steps=5, json=False)
    assert_same_run(Good, Good, steps=20)
    assert_elastic(lambda r, w: Good(r, w), worlds=(1, 2, 3))


@pytest.mark.parametrize("broken,message", [
    (StateOfTheStartAfterALoad, "the state right after the load is not the one of the uninterrupted run"),
    (ForgetsTheEpoch, "resumed at position 8"),
    (EpochsStayShort, "resumed at position 1 .* the state|resumed at position 1 .* sample 8"),
    (LoadsOnlyWhenNew, "in a used object"),
    (SavingTakesASample, "two states saved at position 0 are not equal"),
    (NotJson, "the state is not JSON"),
    (SharesItsState, "was changed later"),
])  # fmt: skip
def test_broken_loaders_are_found(broken: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        assert_resumes(broken)


@pytest.mark.parametrize(
    "broken", [StateOfTheStartAfterALoad, EpochsStayShort, SecondResumeRestarts]
)
def test_broken_loaders_are_found_by_their_samples_alone(broken: Any) -> None:
    with pytest.raises(AssertionError, match=r"sample \d+: "):
        assert_resumes(broken, equal_states=False)


def test_a_state_under_other_names_and_another_comparison() -> None:
    class Walk:
        def __init__(self) -> None:
            self.n = -1

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> Any:
            self.n += 1
            if self.n >= 4:
                raise StopIteration
            return np.array([self.n]), float("nan")

        def tell(self) -> int:
            return min(self.n, 4)

        def seek(self, n: int) -> None:
            self.n = n

    assert_resumes(Walk, state=Walk.tell, load=Walk.seek)
    assert_resumes(Walk, state=Walk.tell, load=Walk.seek, same=lambda a, b: bool(a[0] == b[0]))
    with pytest.raises(AssertionError, match="instead of"):
        assert_resumes(Walk, state=Walk.tell, load=Walk.seek, same=lambda a, b: False)


def test_differences_name_the_place() -> None:
    a = {"x": [np.arange(4), (1, "a")], "y": None}
    assert describe_difference(a, {"x": [np.arange(4), (1, "a")], "y": None}) == ""
    assert (
        describe_difference({"x": [np.array([0, 1, 9, 3])]}, {"x": [np.arange(4)]})
        == "at ['x'][0][2]: np.int64(9) instead of np.int64(2)"
    )
    assert "the keys" in describe_difference({"x": 1}, {"y": 1})
    assert "int32[4] instead of int64[4]" in describe_difference(
        np.arange(4, dtype=np.int32), np.arange(4)
    )
    assert "instead of" in describe_difference((1, 2), [1, 2])
    assert "instead of" in describe_difference(1, True)
    assert describe_difference(np.array([np.nan, 1.0]), np.array([np.nan, 1.0])) == ""


def test_other_runs_are_found() -> None:
    with pytest.raises(AssertionError, match="run 1 is not run 0: sample 2: <end"):
        assert_same_run(lambda: [1, 2, 3], lambda: [1, 2])
    with pytest.raises(AssertionError, match="sample 2: 3 instead of <end"):
        assert_same_run(lambda: [1, 2], lambda: [1, 2, 3])


def test_runs_that_are_not_elastic_are_found() -> None:
    class SameOnAllRanks(Good):
        def items(self) -> list[Any]:
            return list(range(8))

    class LosesOneOnSwitch(Good):
        def load_state_dict(self, state: Any) -> None:
            super().load_state_dict(state)
            self.place += 1

    class Longer(Good):
        def items(self) -> list[Any]:
            return super().items() * (1 + self.rank)

    with pytest.raises(AssertionError, match="on 2 ranks: sample 1"):
        assert_elastic(SameOnAllRanks, worlds=(1, 2))
    with pytest.raises(AssertionError, match="1 ranks until sample 2, then 2: sample 2"):
        assert_elastic(LosesOneOnSwitch, worlds=(1, 2))
    with pytest.raises(AssertionError, match="on 2 ranks: "):
        assert_elastic(Longer, worlds=(1, 2))


def test_coverage_names_the_lost_the_doubled_and_the_foreign() -> None:
    assert_covers([[1, 2], [3]], [(1, 2), (3,)])
    assert_covers(lambda: [1, 1, 2, 2], [1, 2], times=2)
    assert_covers([{"id": 4}], [4], key=lambda x: x["id"])
    with pytest.raises(AssertionError, match="2 of 3 keys lost, the first is 5"):
        assert_covers([7], [5, 6, 7])
    with pytest.raises(AssertionError, match="1 given too often, the first is 7"):
        assert_covers([7, 7], [7])
    with pytest.raises(AssertionError, match="1 unexpected keys, the first is 8"):
        assert_covers([7, 8], [7])


def test_a_mixture_out_of_bounds_is_found() -> None:
    names = list("ab" * 20)
    assert_mixture(names, {"a": 1, "b": 1}, within=0.5)
    assert_mixture("bbbbaaaa", {"a": 1, "b": 1}, within=0, every=8)
    with pytest.raises(AssertionError, match="after 45 samples 'a' was drawn 25 times"):
        assert_mixture([*names, *"aaaaaaa"], {"a": 1, "b": 1})
    with pytest.raises(AssertionError, match="'c' was given but has no weight"):
        assert_mixture("abc", {"a": 1, "b": 1})


@examples(100)
@given(pipelines())
def test_recipes_are_data_and_print_as_code(recipe: Any) -> None:
    assert pickle.loads(pickle.dumps(recipe)) == recipe
    assert show(recipe).count("(") == show(recipe).count(")")


def test_without_hypothesis_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(ImportError, match=r"penstock-data\[test\]"):
        pipelines()


# ---------------------------------------------------------------- simulations


def test_the_disk_forgets_what_was_not_synced() -> None:
    path, found = Path("/d/f"), set()
    for seed in range(60):
        disk = CrashingDisk(seed)
        disk.write(path, b"old")
        disk.sync(path)
        disk.sync(path.parent)
        disk.write(path, b"newer")
        disk.crash()
        found.add(disk.read(path))
    assert {b"old", b"newer"} < found and any(b"newer".startswith(x) and len(x) < 5 for x in found)


def test_the_disk_shows_a_rename_before_the_sync() -> None:
    found = set()
    for seed in range(60):
        disk = CrashingDisk(seed)
        disk.write(Path("/d/f"), b"old")
        disk.sync(Path("/d/f"))
        disk.sync(Path("/d"))
        disk.write(Path("/d/t"), b"new")
        disk.replace(Path("/d/t"), Path("/d/f"))
        disk.crash()
        found.add(disk.read(Path("/d/f")))
    assert found - {b"old", b"new"}, "a writer that renames before it syncs must be caught"


@pytest.mark.parametrize("how", ["error", "full", "kill"])
def test_the_disk_fails_at_the_nth_effect(how: Any) -> None:
    disk = CrashingDisk(1, fail_at=2, how=how)
    disk.write(Path("/f"), b"x")
    with pytest.raises(Crash if how == "kill" else OSError):
        disk.sync(Path("/f"))
    if how == "kill":
        with pytest.raises(Crash):
            disk.unlink(Path("/f"))
    else:
        disk.sync(Path("/f"))
    with pytest.raises(FileNotFoundError):
        disk.read(Path("/g"))


def test_the_scheduler_reorders_repeats_and_fails_from_one_seed() -> None:
    def ran(seed: int, **options: Any) -> list[int]:
        order: list[int] = []
        sched = SimulatedScheduler(seed, **options)
        with override_world(sched=sched):
            hands = sched.spawn(3)
            futures = [hands.submit(lambda i=i: order.append(i)) for i in range(8)]
            for future in futures:
                future.wait()
            hands.close()
        assert sched.now() < sched.now()
        return order

    assert ran(1) == ran(1) != ran(2)
    assert sorted(set(ran(1))) == list(range(8)) and ran(1, twice=0.0) != list(range(8))
    assert len(ran(3, twice=1.0)) == 16
    assert len(ran(3, twice=0.0, fail=0.5)) < 8
    with pytest.raises(RuntimeError, match="after close"):
        hands = SimulatedScheduler(1).spawn(1)
        hands.close()
        hands.submit(lambda: None)


def test_states_are_text_in_between() -> None:
    """A state that the kit loads never shares memory with the saved one."""
    seen: list[Any] = []

    class Watched(Good):
        def load_state_dict(self, state: Any) -> None:
            seen.append(state)
            super().load_state_dict(state)

    assert_resumes(Watched, steps=4)
    assert all(a is not b for a, b in zip(seen, islice(seen, 1, None), strict=False))
    assert all(json.dumps(s) for s in seen)
