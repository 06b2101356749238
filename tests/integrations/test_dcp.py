"""States in checkpoints of torch: saved over two ranks, loaded on one and three, torn at every file."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import penstock as ps

pytestmark = pytest.mark.slow  # ranks of torch.distributed, some of which are killed

torch = pytest.importorskip("torch")

from torch.distributed.checkpoint.api import CheckpointException  # noqa: E402

from dcp_ranks import KINDS, STEPS, loaders  # noqa: E402
from penstock.integrations.dcp import LoaderState  # noqa: E402

CREW = Path(__file__).parent.parent / "dcp_ranks.py"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the observations of ranks that run in processes of their own."""
    folder = tmp_path_factory.mktemp("dcp")
    done = subprocess.run(
        [sys.executable, CREW, folder], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def counted(ranks: list[dict[str, list[Any]]], kind: str) -> Counter[str]:
    return Counter(json.dumps(key) for given in ranks for item in given[kind] for key in item)


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_saved_on_two_ranks_loaded_on_others(
    kind: str, size: int, how: str, told: dict[str, Any]
) -> None:
    whole = [[json.dumps(key) for key in item] for item in told["alone"][kind]]
    assert counted(told[how]["saved"], kind) == Counter(
        key for item in whole[: 2 * STEPS] for key in item
    )
    loaded = told[how][str(size)]
    after = Counter(key for item in whole[2 * STEPS : 2 * STEPS + 4 * size] for key in item)
    assert counted([rank["given"] for rank in loaded], kind) == after


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("size", [1, 3])
def test_every_rank_has_the_whole_state(size: int, how: str, told: dict[str, Any]) -> None:
    loaded = told[how][str(size)]
    for number, rank in enumerate(loaded):
        assert not rank["notes"], "no journal and no lane is missing"
        assert set(rank["steps"]) == {STEPS}
        assert [change["event"]["weights"] for change in rank["changes"]] == [{"a": 1, "b": 5}]
        assert rank["journal"] == loaded[0]["journal"] != []
        own = ["penstock"] if size == 1 else [f"penstock-rank-{number}-of-3"]
        alike = {"indexed": ["penstock"], "weights": ["penstock"]}
        assert rank["keys"] == {kind: alike.get(kind, own) for kind in KINDS}


def test_a_crash_at_any_file_leaves_the_checkpoint_before(told: dict[str, Any]) -> None:
    (torn,), (after,) = told["torn"], told["afterwards"]
    assert len(torn) >= 5, "folder, data of two ranks, metadata, its name"
    assert {name.split("-")[1] for name in torn} == {"0", "1"}
    assert "whole" not in torn.values(), "one that is not whole does not load"
    assert after == told["sync"]["1"][0]


def test_ranks_at_different_steps_are_refused_by_all_of_them(told: dict[str, Any]) -> None:
    for rank in told["apart"]:
        assert len(rank) == 8
        for error in rank.values():
            assert (
                f"rank 0 was at step {STEPS}, rank 1 at step {STEPS + 1}; save on all ranks after the same"
                in error
            )


def test_peers_of_one_rank_at_different_steps_are_refused_by_all_processes(
    told: dict[str, Any],
) -> None:
    for process in told["peers"]:
        assert len(process) == 32
        for name, outcome in process.items():
            if "1 ahead" in name:
                assert (
                    f"process 2 at step {STEPS}, process 3 at step {STEPS + 1}; save on all processes"
                    in outcome
                )
            else:
                assert outcome == "saved", name


def test_only_the_processes_of_a_group_are_asked(told: dict[str, Any]) -> None:
    *refused, without = told["group"]
    assert without == "no loader"
    assert all(
        f"process 0 was at step {STEPS}, process 1 at step {STEPS + 1}" in error
        for error in refused
    )


# ---------------------------------------------------------------- in one process


def some(kind: str = "packed") -> tuple[ps.Loader, list[Any]]:
    loader = loaders(0, 1)[kind]
    list(islice(loader, 5))
    return loader, loader.keys()


def checkpoint(folder: Path, state: dict[str, Any]) -> Path:
    with pytest.warns(UserWarning, match="single process"):
        torch.distributed.checkpoint.save(state, checkpoint_id=folder)
    return folder


def loaded(folder: Path, state: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match="single process"):
        torch.distributed.checkpoint.load(state, checkpoint_id=folder)


@pytest.mark.parametrize("kind", KINDS)
def test_torch_save_loads_without_pickled_objects(kind: str) -> None:
    loader, _ = some(kind)
    for state in (
        loader.state_dict(),
        LoaderState(loader).state_dict(),
        iter(KINDS[kind][0]()).state_dict(),
    ):
        file = io.BytesIO()
        torch.save({"step": 5, "data": state}, file)
        file.seek(0)
        assert torch.load(file, weights_only=True) == {"step": 5, "data": state}


def test_a_wrapper_is_stateful_and_keeps_its_run() -> None:
    from torch.distributed.checkpoint.stateful import Stateful

    loader, _ = some()
    wrapper = LoaderState(loader)
    assert isinstance(wrapper, Stateful)
    state = wrapper.state_dict()
    rest = [loader.keys() for _ in islice(loader, 3)]
    wrapper.load_state_dict(state)
    assert [loader.keys() for _ in islice(loader, 3)] == rest


def test_several_runs_in_a_checkpoint_are_told_apart(tmp_path: Path) -> None:
    packed, keys = some()
    other, more = some("buffered")
    app = {
        "app": {"train": LoaderState(packed).state_dict(), "val": LoaderState(other).state_dict()}
    }
    folder = checkpoint(tmp_path / "both", app)
    again = {name: loaders(0, 1)[kind] for name, kind in (("train", "packed"), ("val", "buffered"))}
    with pytest.raises(
        ps.StateError, match=r"states of several runs: choose one with name= \(app.train, app.val\)"
    ):
        LoaderState(again["val"], folder)
    with pytest.raises(ps.StateError, match="no state of Penstock"):
        LoaderState(again["val"], folder, name="val")
    for name, run in again.items():
        wrapper = LoaderState(run, folder, name=f"app.{name}")
        state = {"app": {name: wrapper.state_dict()}}
        loaded(folder, state)
        wrapper.load_state_dict(state["app"][name])
    _ = list(islice(packed, 1)), list(islice(again["train"], 1))
    assert packed.keys() == again["train"].keys() != keys
    assert again["val"].state_dict() == other.state_dict() and more


def test_what_awaits_a_state_is_not_saved(tmp_path: Path) -> None:
    packed, _ = some()
    folder = checkpoint(tmp_path / "one", {"data": LoaderState(packed)})
    wrapper = LoaderState(loaders(0, 1)["packed"], folder)
    with pytest.raises(ps.ConfigError, match="load it first"):
        pickle.dumps(wrapper.state_dict())
    with pytest.warns(UserWarning), pytest.raises(CheckpointException, match="load it first"):
        torch.distributed.checkpoint.save({"data": wrapper}, checkpoint_id=tmp_path / "two")
    loaded(folder, {"data": wrapper})
    assert wrapper.state_dict() == LoaderState(packed).state_dict()


def test_wrong_checkpoints_are_refused_and_the_run_stays(tmp_path: Path) -> None:
    packed, _ = some()
    before = packed.state_dict()
    folder = checkpoint(tmp_path / "other", {"data": LoaderState(some("buffered")[0])})
    with pytest.raises(ps.StateError, match="of another pipeline"):
        loaded(folder, {"data": LoaderState(packed, folder)})
    with pytest.raises(ps.StateError, match="holds no state of Penstock"):
        LoaderState(packed, checkpoint(tmp_path / "none", {"model": torch.zeros(3)}))
    with pytest.raises(FileNotFoundError):
        LoaderState(packed, tmp_path / "nowhere")
    wrapper = LoaderState(packed)
    for wrong in ({}, {"penstock": "{"}, {"penstock": 3}, {"penstock": "{}"}):
        with pytest.raises(ps.StateError):
            wrapper.load_state_dict(wrong)
    half = {
        f"penstock-rank-{rank}-of-3": LoaderState(loaders(rank, 3)["packed"]) for rank in (0, 2)
    }
    half = {name: each.state_dict()[name] for name, each in half.items()}
    folder = checkpoint(tmp_path / "half", {"data": half})
    with pytest.raises(ps.StateError, match=r"lacks the states of ranks \[1\] of 3"):
        LoaderState(packed, folder)
    with (
        pytest.warns(UserWarning),
        pytest.raises(CheckpointException, match="Missing key.*data.penstock"),
    ):
        torch.distributed.checkpoint.load({"data": wrapper}, checkpoint_id=folder)
    assert packed.state_dict() == before


def test_another_mixture_is_adopted(tmp_path: Path) -> None:
    loader, _ = some("indexed")
    state = LoaderState(loader).state_dict()
    flows = {"a": ps.from_sequence(range(90)), "b": ps.from_sequence(range(200, 260))}
    other = ps.Loader(ps.mix(flows, {"a": 1, "b": 1}, seed=4).batch(2, collate=list))
    with pytest.raises(ps.StateError, match="of another pipeline"):
        LoaderState(other).load_state_dict(state)
    LoaderState(other, on_mismatch="adopt").load_state_dict(state)
    assert other.state_dict()["step"] == 5


def test_what_each_rank_took_has_a_key_of_its_own() -> None:
    ds = ps.from_sequence(range(40), name="n").repeat()
    ranks = [ps.Loader(ds, rank=rank, world_size=2) for rank in range(2)]
    held = dict[str, Any]()
    for loader, many in zip(ranks, (5, 3), strict=True):
        loader.lease(many)
        held |= LoaderState(loader).state_dict()
    assert list(held) == ["penstock-rank-0-of-2", "penstock-rank-1-of-2"]
    again = ps.Loader(ds)
    LoaderState(again).load_state_dict(held)
    assert len({item.uid for item in again.lease(8)}) == 8


def test_ranks_that_cannot_agree_have_a_key_each_and_are_compared_when_they_are_loaded(
    tmp_path: Path,
) -> None:
    held = dict[str, Any]()
    for rank in range(12):  # as of tensor parallelism, where not every process is a rank of its own
        loader = ps.Loader(
            ps.from_sequence(range(240)).batch(2, collate=list), rank=rank, world_size=12
        )
        list(islice(loader, 4 + (rank == 10)))
        held |= LoaderState(loader).state_dict()
    assert len(held) == 12
    folder = checkpoint(tmp_path / "apart", {"data": held})
    again = ps.Loader(ps.from_sequence(range(240)).batch(2, collate=list), rank=0, world_size=2)
    before = again.state_dict()
    with pytest.raises(
        ps.StateError, match="rank 0 was at step 4, .* and 4 more; save on all ranks"
    ):
        loaded(folder, {"data": LoaderState(again, folder)})
    assert again.state_dict() == before
