"""Checkpoints by Orbax: several processes save, others restore, in every API; what is killed, damaged, or of another run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from orbax.checkpoint.experimental import v1

import penstock as ps
from example_counts import pick_cases
from jax_ranks import crew
from jax_tasks import STEPS, WAYS, keys_of, opened, restore, restoring, save
from penstock.errors import StateError
from penstock.integrations.orbax import Checkpointable, Restore, Save, read_states

pytestmark = pytest.mark.slow  # processes of jax.distributed

ALL = [f"{name}/{way}" for name, ways in WAYS.items() for way in ways]
IN_TURN = ("packed", "buffered")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """Checkpoints of two processes, and how each of them went on."""
    folder = tmp_path_factory.mktemp("saved")
    return folder, crew(2, "jax_tasks", "saving", str(folder))


def as_one(name: str, ranks: list[Any]) -> list[Any]:
    """Merge the items of all ranks: in turn for lanes, else sorted within a global step."""
    if name.startswith(IN_TURN):
        return [item for step in zip(*ranks, strict=True) for item in step]
    return [sorted(key for share in step for key in share) for step in zip(*ranks, strict=True)]


@pytest.mark.parametrize("processes", pick_cases([3, 1], 2))
def test_restored_on_other_processes_the_run_goes_on(
    saved: tuple[Path, list[Any]], processes: int
) -> None:
    folder, went_on = saved
    found = (
        crew(processes, "jax_tasks", "restoring", str(folder))
        if processes > 1
        else [restoring(str(folder))]
    )
    for name in ALL:
        want = as_one(name, [rank[name][0] for rank in went_on])
        got = as_one(name, [[[[*key] for key in item] for item in rank[name][0]] for rank in found])
        assert len(got) == STEPS * (processes if name.startswith(IN_TURN) else 1)
        assert got == want[: len(got)], name
        journals = [
            [(each["source"], each["index"]) for each in rank[name][1]]
            for rank in (*went_on, *found)
        ]
        assert bool(journals[0]) == name.startswith("journal")
        for journal in journals[2:]:
            assert {*journals[0], *journals[1]} <= {*journal}


def test_each_process_has_a_file(saved: tuple[Path, list[Any]]) -> None:
    names = ["process_0-of-2.json", "process_1-of-2.json"]
    for name in ALL:
        folder = saved[0] / name / ("" if "/v1" in name else "7") / "data"
        assert sorted(path.name for path in folder.glob("*.json")) == names


def test_a_save_that_is_killed_leaves_the_one_before(tmp_path: Path) -> None:
    said = crew(2, "jax_tasks", "dying", str(tmp_path), killed=True)
    assert len(list(tmp_path.glob("2*/data*/process_*-of-2.json"))) == 2, (
        "it was killed in the middle"
    )
    loader = opened("packed")
    with ocp.CheckpointManager(tmp_path) as manager:
        assert manager.latest_step() == 1
        manager.restore(1, args=ocp.args.Composite(data=Restore(loader)))
        assert [[[*key] for key in keys] for keys in keys_of(loader, 6)] == as_one(
            "packed", [rank[0] for rank in said]
        )
        manager.save(2, args=ocp.args.Composite(data=Save(loader)))
    again = opened("packed")
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.restore(2, args=ocp.args.Composite(data=Restore(again)))
    assert keys_of(again, 5) == keys_of(loader, 5)


def numbers(n: int = 60) -> ps.Dataset:
    return ps.from_sequence(range(n), name="numbers").shuffle(seed=1).batch(4)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[tuple[ps.Loader, Path]]:
    """A loader after three steps, saved as step 7."""
    with ps.Loader(numbers()) as loader:
        keys_of(loader, 3)
        save(loader, str(tmp_path / "run"), "sync")
        loader.seek(3)
        yield loader, tmp_path / "run"


def woven(*names: str) -> ps.Loader:
    return ps.Loader(
        ps.mix({name: ps.from_sequence(range(60)).shuffle(seed=1) for name in names}, seed=2).batch(
            4
        )
    )


def test_on_mismatch(tmp_path: Path) -> None:
    loader, other, folder = woven("old", "kept"), woven("kept", "new"), str(tmp_path / "one")
    keys_of(loader, 3)
    save(loader, str(tmp_path / "run"), "sync")
    v1.save_checkpointables(folder, {"data": Checkpointable(loader)})
    before = other.state_dict()
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        with pytest.raises(StateError, match="another pipeline"):
            manager.restore(7, args=ocp.args.Composite(data=Restore(other)))
        with pytest.raises(LookupError) as caught:  # Orbax's own, of this one
            v1.load_checkpointables(folder, {"data": Checkpointable(other)})
        cause: BaseException | None = caught.value
        while cause and not isinstance(cause, StateError):
            cause = cause.__cause__
        assert "another pipeline" in str(cause)
        assert other.state_dict() == before
        manager.restore(7, args=ocp.args.Composite(data=Restore(other, on_mismatch="adopt")))
    for at in (3, 4):
        loader.seek(at)
        want = [key for keys in keys_of(loader, 4) for key in keys if key[0] == "kept"]
        assert [key for keys in keys_of(other, 4) for key in keys if key[0] == "kept"][:6] == want[
            :6
        ]
        v1.load_checkpointables(folder, {"data": Checkpointable(other, on_mismatch="adopt")})


def test_files_that_are_missing_or_damaged_are_named(run: tuple[ps.Loader, Path]) -> None:
    loader, folder = run
    before, file = loader.state_dict(), folder / "7/data/process_0-of-1.json"
    whole = file.read_text()
    for text, said in (
        (whole[:-9], "not a complete JSON file"),
        (whole.replace("60", "61"), "damaged"),
        ("[]", "mapping"),
    ):
        file.write_text(text)
        with pytest.raises(StateError, match=said):
            restore(loader, str(folder), "sync")
    file.write_text(whole)
    file.rename(file.with_name("process_1-of-2.json"))
    with pytest.raises(
        StateError, match=r"process_0-of-2\.json is missing, found process_1-of-2\.json"
    ):
        restore(loader, str(folder), "sync")
    assert loader.state_dict() == before


def test_processes_at_different_steps_are_refused_with_each_of_them(tmp_path: Path) -> None:
    ds = ps.from_sequence(range(60)).batch(2, collate=list)
    for rank in range(3):
        loader = ps.Loader(ds, rank=rank, world_size=3)
        for _ in islice(loader, 4 + (rank == 2)):
            pass
        (tmp_path / f"process_{rank}-of-3.json").write_text(json.dumps(loader.state_dict()))
    with pytest.raises(
        StateError,
        match="process 0 was at step 4, process 1 at step 4, process 2 at step 5; save on all",
    ):
        read_states(tmp_path)
    (tmp_path / "process_2-of-3.json").write_bytes((tmp_path / "process_1-of-3.json").read_bytes())
    assert len(read_states(tmp_path)) == 1


def test_what_was_copied_ahead_is_not_in_the_state(tmp_path: Path) -> None:
    here = NamedSharding(Mesh(np.array(jax.devices()[:1]), "data"), PartitionSpec("data"))
    with (
        ps.Loader(numbers(), to="jax", device=here) as batches,
        ps.Loader(numbers(), to="jax", device=here) as again,
    ):
        seen = [np.asarray(batch).tolist() for _, batch in zip(range(5), batches, strict=False)]
        v1.save_checkpointables(str(tmp_path / "one"), {"data": Checkpointable(batches)})
        v1.load_checkpointables(str(tmp_path / "one"), {"data": Checkpointable(again)})
        assert [*seen, *(np.asarray(batch).tolist() for batch in again)] == [
            x.tolist() for x in numbers()
        ]


def test_what_orbax_itself_does_with_a_state(tmp_path: Path) -> None:
    loader = ps.Loader(numbers())
    keys_of(loader, 2)
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=False)
    with ocp.CheckpointManager(tmp_path, options=options) as manager:
        with pytest.raises(ValueError, match="Unsupported type: <class 'str'>"):
            manager.save(1, args=ocp.args.StandardSave(loader.state_dict()))
    with ocp.CheckpointManager(tmp_path, options=options) as manager:
        manager.save(2, args=ocp.args.JsonSave(loader.state_dict()))
        again = ps.Loader(numbers())
        again.load_state_dict(manager.restore(2, args=ocp.args.JsonRestore()))
    assert keys_of(again, 3) == keys_of(loader, 3)
