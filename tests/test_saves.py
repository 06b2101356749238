"""States in a folder: every rank by itself, whatever dies when, on any number of ranks."""

from __future__ import annotations

import errno
import json
import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples, rounds
from penstock.engine.runtime.states import decode_state
from penstock.saves import _needed, read_states, write_state
from penstock.stores.storage import override_world
from penstock.testing import Crash, CrashingDisk

HERE = Path("/run/data")


# Compiled once: a loader over the same dataset opens at once.
def rows() -> ps.Dataset:
    flows = {"a": ps.from_sequence(range(40)).shuffle(), "b": ps.from_sequence(range(100, 130))}
    return ps.mix(flows, {"a": 3, "b": 1}, seed=1)


@cache
def indexed() -> ps.Dataset:
    return rows().batch(2, collate=list)


@cache
def laned() -> ps.Dataset:
    return rows().filter(lambda x: x % 5).shuffle_buffer(20).batch(2, collate=list)


def odd(x: int) -> int:
    if x % 7 == 3:
        raise ValueError("a bad sample")
    return x


@cache
def mended() -> ps.Dataset:
    return ps.from_sequence(range(90)).shuffle(seed=3).repeat().map(odd).batch(3, collate=list)


KINDS: dict[str, tuple[Callable[[], ps.Dataset], dict[str, Any]]] = {
    "indexed": (indexed, {}),
    "lanes": (laned, {"lanes": 12}),
    "journals": (mended, {"on_error": "quarantine"}),
}


def ranks_of(kind: str, world_size: int) -> list[ps.Loader]:
    make, options = KINDS[kind]
    return [
        ps.Loader(make(), rank=rank, world_size=world_size, **options) for rank in range(world_size)
    ]


def steps_of(loaders: list[ps.Loader]) -> Iterator[list[int]]:
    """The samples of each global step, in the order of their values."""
    for rows in zip(*loaders, strict=True):
        yield sorted(x for row in rows for x in row)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---------------------------------------------------------------- one process


@pytest.mark.parametrize("make", [indexed, laned])
def test_what_was_saved_is_gone_on_from(make: Callable[[], ps.Dataset], tmp_path: Path) -> None:
    whole = list(islice(iter(make()), 30))
    for kind in (iter, ps.Loader):
        for folder in (tmp_path / kind.__name__, str(tmp_path / "new" / kind.__name__)):
            run = kind(make())
            assert list(islice(iter(run), 11)) == whole[:11]
            assert ps.save(folder, run) == 11
            assert len(names(Path(folder))) == 1
            for other in (iter, ps.Loader):
                again = other(make())
                assert ps.restore(folder, again) == 11
                assert list(islice(iter(again), 19)) == whole[11:]


def test_nothing_saved_is_the_beginning(tmp_path: Path) -> None:
    run = iter(indexed())
    first = next(run)
    (tmp_path / "notes.txt").write_text("somebody's")
    for folder in (tmp_path, tmp_path / "none"):
        assert ps.restore(folder, run) is None
        with pytest.raises(ps.StateError, match="there is no step 3; no step is complete"):
            ps.restore(folder, run, step=3)
        with pytest.raises(ps.StateError, match="there is no state; no step is complete"):
            indexed().plan.for_state(folder)
    assert [first, next(run)] == list(islice(iter(indexed()), 2)), "and the run stays where it was"


def test_a_step_is_what_every_rank_was_given() -> None:
    for kind in KINDS:
        two = ranks_of(kind, 2)
        list(islice(steps_of(two), 7))
        assert {loader.state_dict()["step"] for loader in two} == {7}
        three = ranks_of(kind, 3)
        for loader in three:
            loader.load_state_dict([one.state_dict() for one in two])
        list(islice(steps_of(three), 4))
        assert {loader.state_dict()["step"] for loader in three} == {11}, (
            "whatever was a step before"
        )
        assert three[0].stats()["items"] == 4


def test_a_step_is_counted_over_passes_and_after_seek() -> None:
    loader = ps.Loader(ps.from_sequence(range(10)).batch(4))
    for _ in range(2):
        list(loader)
    assert loader.state_dict()["step"] == 6
    loader.seek(4)
    assert loader.state_dict()["step"] == 4
    next(iter(loader))
    assert loader.state_dict()["step"] == 5
    for it in (iter(ps.from_sequence(range(10))), iter(laned())):
        _ = next(it), next(it)
        it.seek(5)
        assert it.state_dict()["step"] == 5


def test_steps_are_asked_for_and_pruned(tmp_path: Path) -> None:
    run, whole = iter(indexed()), list(islice(iter(indexed()), 50))
    for n in range(1, 10):
        next(run)
        ps.save(tmp_path, run, keep=3)
        assert len(names(tmp_path)) == min(n, 3)
    for step in (7, 8, 9):
        again = iter(indexed())
        assert ps.restore(tmp_path, again, step=step) == step
        assert next(again) == whole[step]
    with pytest.raises(ps.StateError, match="there is no step 6; the newest complete step is 9"):
        ps.restore(tmp_path, run, step=6)
    ps.save(tmp_path, run)
    assert len(names(tmp_path)) == 3, "the same moment again is the same file; nothing else goes"


@pytest.mark.parametrize(
    "wrong", [{"keep": 0}, {"keep": -1}, {"keep": 1.5}, {"step": -1}, {"step": "x"}], ids=str
)
def test_steps_and_numbers_that_are_none_are_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ps.ConfigError):
        ps.save(tmp_path, iter(indexed()), **wrong)
    assert not names(tmp_path)


@pytest.mark.parametrize("step", ["3", 3.0, True, -1], ids=repr)
def test_a_step_to_restore_is_a_whole_number(step: Any, tmp_path: Path) -> None:
    with pytest.raises(ps.ConfigError, match="step=.*whole number"):
        ps.restore(tmp_path, iter(indexed()), step=step)


def test_a_state_that_is_no_object_is_not_parsed(tmp_path: Path) -> None:
    run = iter(indexed())
    next(run)
    ps.save(tmp_path, run)
    (name,) = names(tmp_path)
    (tmp_path / name).write_text(" [" + "[]," * 100 + "1]")
    with pytest.raises(ps.StateError, match="holds no JSON object"):
        ps.restore(tmp_path, iter(indexed()))


@pytest.mark.parametrize(
    "thing", [None, [1], indexed(), {"at": 3}], ids=lambda thing: type(thing).__name__
)
def test_what_stands_nowhere_is_refused(thing: Any, tmp_path: Path) -> None:
    for call in (ps.save, ps.restore):
        with pytest.raises(
            ps.ConfigError, match=f"a {type(thing).__name__} has no position.*give a ps.Loader"
        ):
            call(tmp_path, thing)


def test_another_number_of_a_step_is_the_callers(tmp_path: Path) -> None:
    run = ps.Loader(ps.from_sequence(range(10)).batch(2, collate=list))
    for epoch in range(3):
        list(run)
        assert ps.save(tmp_path, run, step=epoch) == epoch
    assert ps.restore(tmp_path, run, step=1) == 1
    assert run.state_dict()["step"] == 10


def test_what_is_later_or_of_another_run_is_not_mixed(tmp_path: Path) -> None:
    run = iter(indexed())
    _ = next(run), next(run)
    ps.save(tmp_path, run)
    other = iter(ps.from_sequence(range(5)))
    with pytest.raises(
        ps.StateError, match="states of another pipeline .step 2.; save into another folder"
    ):
        ps.save(tmp_path, other, step=5)
    with pytest.raises(ps.StateError, match=r"data|saves|step 2: the state is of another pipeline"):
        ps.restore(tmp_path, other)
    assert next(other) == 0
    new = iter(indexed())
    next(new)
    with pytest.raises(
        ps.StateError, match="holds step 2, which is later than step 1.*go back with"
    ):
        ps.save(tmp_path, new)
    assert [read_states(tmp_path)[0], len(names(tmp_path))] == [2, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_going_back_makes_an_older_state_the_one_that_is_opened(kind: str, tmp_path: Path) -> None:
    def restored(step: int | None = None) -> tuple[int | None, list[ps.Loader]]:
        run = ranks_of(kind, 2)
        (found,) = {ps.restore(tmp_path, loader, step=step) for loader in run}
        return found, run

    def go(run: list[ps.Loader], steps: int) -> None:
        for loader in run:
            _ = list(islice(loader, steps))
        for loader in run:
            ps.save(tmp_path, loader)

    run = ranks_of(kind, 2)
    for _ in range(4):
        go(run, 2)
    assert restored()[0] == 8
    _, run = restored(2)
    assert restored()[0] == 2 and read_states(tmp_path)[0] == 2
    go(run, 1)  # a step between those that are there
    assert restored()[0] == 3
    go(run, 3)  # one of those that are there
    assert restored()[0] == 6 and [restored(step)[0] for step in (8, 6)] == [8, 6]
    assert restored()[0] == 6
    go(run, 3)
    assert restored()[0] == 9 and not (tmp_path / "current.json").exists()
    assert len({name.split(".")[0] for name in names(tmp_path)}) == 6


def test_what_a_run_went_back_before_is_not_among_those_kept(tmp_path: Path) -> None:
    run = ps.Loader(indexed())
    for _ in range(4):
        next(iter(run))
        ps.save(tmp_path, run)
    ps.restore(tmp_path, run, step=1)
    next(iter(run))
    run.set_weights({"a": 1, "b": 5})
    ps.save(tmp_path, run, keep=1)
    again = ps.Loader(indexed())
    assert ps.restore(tmp_path, again) == 2 and again.state_dict() == run.state_dict()
    (tmp_path / "current.json").write_text("{")
    with pytest.raises(ps.StateError, match="does not name a step.*remove it"):
        ps.restore(tmp_path, again)


@pytest.mark.parametrize("seed", range(4))
def test_a_crash_while_a_left_step_is_saved_again_opens_the_run_that_goes_on(seed: int) -> None:
    for n in range(1, 100):
        disk, run = CrashingDisk(seed=seed, how="kill"), ps.Loader(indexed())
        with override_world(disk=disk):
            for _ in range(3):
                next(iter(run))
                ps.save(HERE, run)
            ps.restore(HERE, run, step=1)
            run.set_weights(
                {"a": 1, "b": 5 + seed}
            )  # the digests of one seed or another are below those left
            next(iter(run))
            disk.fail_at = disk.effects + n
            done = True
            try:
                ps.save(HERE, run)
            except Crash:
                done = False
            disk.fail_at = None
            again = ps.Loader(indexed())
            step = ps.restore(HERE, again)
            assert step == 2 or (step == 1 and not done), f"effect {n}"
            assert step == 1 or again.state_dict() == run.state_dict(), f"effect {n}"
        if done:
            return
    raise AssertionError("saving never came to its end")


def test_a_step_is_restored_from_a_folder_that_cannot_be_written_to(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class ReadOnly(CrashingDisk):
        closed: int | None = None

        def write(self, path: Path, data: bytes, /) -> None:
            if self.closed is not None:
                raise OSError(self.closed, "closed", str(path))
            super().write(path, data)

    disk, run = ReadOnly(seed=0), ps.Loader(indexed())
    with override_world(disk=disk):
        for _ in range(2):
            next(iter(run))
            ps.save(HERE, run)
        disk.closed = errno.EROFS
        assert ps.restore(HERE, run, step=1) == 1 == run.state_dict()["step"]
        assert "not the current one" in caplog.text
        assert ps.restore(HERE, run) == 2
        disk.closed = errno.ENOSPC
        with pytest.raises(ps.StorageError, match="current.json"):
            ps.restore(HERE, run, step=1)


def test_a_damaged_state_stops_no_later_one(tmp_path: Path) -> None:
    run = iter(indexed())
    for step in (1, 2):
        next(run)
        ps.save(tmp_path, run)
        (newest,) = tmp_path.glob(f"step-{step}.*")
        newest.write_bytes(newest.read_bytes()[:-30])
    again = iter(indexed())
    with pytest.raises(
        ps.StateError, match=r"step-2.*the JSON file is incomplete.*use an earlier step"
    ):
        ps.restore(tmp_path, again)
    next(run)
    ps.save(tmp_path, run, keep=1)
    assert ps.restore(tmp_path, again) == 3 and len(names(tmp_path)) == 1


def test_a_run_goes_on_in_its_folder_with_another_mixture(tmp_path: Path) -> None:
    def mixed(*weights: int) -> ps.Dataset:
        return ps.mix(
            {name: ps.from_sequence(range(100)) for name in "abc"[: len(weights)]},
            dict(zip("abc", weights, strict=False)),
        )

    run, drawn = ps.Loader(mixed(1, 3)), list[Any]()
    for weights in ((1, 3), (1, 1, 2), (3, 1, 1)):
        run = ps.Loader(mixed(*weights))
        ps.restore(tmp_path, run, on_mismatch="adopt")
        for _ in islice(run, 20):
            drawn += run.keys()
        ps.save(tmp_path, run, keep=2)
    assert len(names(tmp_path)) == 2
    for name in "abc":
        indices = [index for source, _, index in drawn if source == name]
        assert indices == list(range(len(indices)))
    assert ps.restore(tmp_path, ps.Loader(mixed(3, 1, 1))) == 60


def test_a_changed_run_takes_the_place_of_its_step(tmp_path: Path) -> None:
    run = ps.Loader(indexed())
    next(iter(run))
    ps.save(tmp_path, run)
    before = names(tmp_path)
    for weight in (2, 5, 1):
        run.set_weights({"a": 1, "b": weight})
        ps.save(tmp_path, run)
        assert len(names(tmp_path)) == 1 and names(tmp_path) != before
    again = ps.Loader(indexed())
    ps.restore(tmp_path, again)
    assert again.state_dict() == run.state_dict()
    assert indexed().plan.for_state(tmp_path).at(9) == indexed().plan.for_state(
        run.state_dict()
    ).at(9)


# ---------------------------------------------------------------- damage


@cache
def on_disk() -> tuple[Path, bytes]:
    disk, run = CrashingDisk(seed=0), iter(laned())
    list(islice(run, 2))
    with override_world(disk=disk):
        ps.save(HERE, run)
    (path,) = disk.paths()
    return path, disk.read(path)


def read_back(data: bytes) -> dict[str, Any] | None:
    """Read these bytes as a save; return None if the error names the file."""
    disk, (path, _) = CrashingDisk(seed=0), on_disk()
    disk.write(path, data)
    with override_world(disk=disk):
        try:
            return read_states(HERE)[1][0]
        except ps.StateError as error:
            assert str(path) in str(error)
            return None


def test_every_truncation_is_refused() -> None:
    _, data = on_disk()
    whole = [n for n in range(len(data)) if read_back(data[:n]) is not None]
    assert whole == [len(data) - 1], "only the last line end may be missing"
    assert read_back(data) == json.loads(data)


def test_every_changed_byte_is_refused_or_means_the_same() -> None:
    _, data = on_disk()
    same, text = 0, json.dumps(json.loads(data))
    for place in range(0, len(data), 3):
        flipped = data[place] ^ 1 << place % 8
        for changed in (bytes([flipped]), b"", data[place : place + 1] + b"0"):
            found = read_back(data[:place] + changed + data[place + 1 :])
            assert found is None or json.dumps(found) == text, f"{changed} at byte {place}"
            same += found is not None
    assert same < len(data) / 5, "only white space may change"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 600,
        b"{",
        b"null",
        b"[]",
        b"3",
        b"\xff\xfe",
        b"not json",
        b"{}" * 2,
        b"[" * 200_000,
    ],
)
def test_other_files_are_refused_by_name(data: bytes) -> None:
    assert read_back(data) is None


def test_what_is_no_state_is_not_written() -> None:
    state = json.loads(on_disk()[1])
    disk = CrashingDisk(seed=0)
    with override_world(disk=disk):
        for bad in ({}, {**state, "epoch": 5}, {"model": 1}):
            with pytest.raises(ps.StateError):
                write_state(HERE, bad, 0, 1)
    assert disk.paths() == []


# ---------------------------------------------------------------- failures of every effect


def faults(
    how: Any, seed: int, **options: Any
) -> Iterator[tuple[int, CrashingDisk, Callable[[], bool]]]:
    """One disk that holds step 2 for every effect that can fail; the function saves step 7."""
    old, new = iter(indexed()), iter(indexed())
    _ = list(islice(old, 2)), list(islice(new, 7))
    for n in range(1, 100):
        disk = CrashingDisk(seed=1000 * seed + n, how=how)
        with override_world(disk=disk):
            ps.save(HERE, old)
            disk.fail_at = disk.effects + n
            done = False

            def save() -> bool:
                nonlocal done
                try:
                    ps.save(HERE, new, **options)
                    done = True
                except (OSError, Crash):
                    pass
                return done

            yield n, disk, save
            if done:
                return
    raise AssertionError("saving never came to its end")


@pytest.mark.parametrize("how", ["error", "full"])
def test_an_effect_that_fails_leaves_the_old_step_or_the_new_and_no_rubbish(how: Any) -> None:
    found, code = list[int](), {"error": errno.EIO, "full": errno.ENOSPC}[how]
    for n, disk, save in faults(how, seed=0):
        done = save()
        step, _ = read_states(HERE)
        assert step == 7 or (step == 2 and not done), f"effect {n} failed"
        assert all(path.suffix == ".json" for path in disk.paths()), (
            f"effect {n} failed and left {disk.paths()}"
        )
        found.append(step)
    assert len(found) >= 5, "write, sync, replace, sync of the folder, and once without a fault"
    assert found[0] == 2 and found == sorted(found), "later effects leave the new one"
    disk = CrashingDisk(seed=0, fail_at=1, how=how)
    with override_world(disk=disk), pytest.raises(OSError, match="effect 1") as caught:
        ps.save(HERE, iter(indexed()))
    assert caught.value.errno == code


@pytest.mark.parametrize("how", ["error", "full", "kill"])
@pytest.mark.parametrize("options", [{}, {"keep": 1}, {"step": 2, "keep": 1}], ids=str)
def test_a_crash_after_any_effect_leaves_the_old_step_or_the_new(
    how: Any, options: dict[str, Any]
) -> None:
    for seed in range(8):
        for n, disk, save in faults(how, seed, **options):
            done = save()
            disk.crash()
            again = iter(indexed())
            ps.restore(HERE, again)
            assert again.state_dict()["step"] == 7 or (
                again.state_dict()["step"] == 2 and not done
            ), f"effect {n}"
            list(islice(again, 7 - again.state_dict()["step"]))
            ps.save(HERE, again, **options)
            assert ps.restore(HERE, iter(indexed())) == options.get("step", 7), (
                "and the next save works"
            )


def test_the_first_save_leaves_nothing_or_the_new_state() -> None:
    outcomes = set[int | None]()
    for seed in range(30):
        for n in range(1, 6):
            disk, run = CrashingDisk(seed=100 * seed + n, fail_at=n, how="kill"), iter(indexed())
            next(run)
            with override_world(disk=disk):
                try:
                    ps.save(HERE, run)
                except Crash:
                    pass
                disk.crash()
                outcomes.add(ps.restore(HERE, run))
    assert outcomes == {1, None}


def test_what_killed_writers_leave_goes_with_its_step() -> None:
    run, disk = iter(indexed()), CrashingDisk(seed=0)
    with override_world(disk=disk):
        for step in range(3):
            next(run)
            disk.write(HERE / f".step-{step}.rank-0-of-2.0123456789abcdef.json.17.ab12.tmp", b"{")
            ps.save(HERE, run, keep=1)
        disk.write(HERE / "another.json", b"{}")
        ps.save(HERE, run, keep=1)
        assert [path.name for path in disk.paths() if "step-3" not in path.name] == ["another.json"]


# ---------------------------------------------------------------- many ranks


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("before, after", [(1, 3), (2, 2), (2, 3), (3, 1), (4, 2), (4, 6)])
def test_saved_on_some_ranks_restored_on_others(
    kind: str, before: int, after: int, tmp_path: Path
) -> None:
    whole = Counter(
        x for step in islice(steps_of(ranks_of(kind, 1)), 12 * (before + after)) for x in step
    )
    loaders = ranks_of(kind, before)
    seen = Counter(x for step in islice(steps_of(loaders), 12) for x in step)
    for loader in loaders:
        assert ps.save(tmp_path, loader) == 12
    again = ranks_of(kind, after)
    assert {ps.restore(tmp_path, loader) for loader in again} == {12}
    bad = {(entry["index"], entry["epoch"]) for loader in loaders for entry in loader.journal}
    assert bool(bad) == (kind == "journals")
    assert all(
        {(entry["index"], entry["epoch"]) for entry in loader.journal} == bad for loader in again
    )
    assert not any(loader.warnings for loader in again)
    seen += Counter(x for step in islice(steps_of(again), 12) for x in step)
    assert seen == whole


@examples(300)
@given(st.integers(1, 24), st.integers(1, 24), st.integers(1, 4))
def test_a_rank_reads_what_it_needs_and_all_together_read_all(
    saved: int, now: int, times: int
) -> None:
    lanes = saved * now * times
    state = decode_state(ps.Loader(indexed()).state_dict())
    first = replace(state, lanes=lanes, at={str(lane): None for lane in range(0, lanes, saved)})
    read = [{0, *_needed(saved, first, (rank, now))} for rank in range(now)]
    for rank in range(now):
        assert {lane % saved for lane in range(rank, lanes, now)} <= read[rank]
    assert set[int]().union(*read) == set(range(saved)) == {0, *_needed(saved, first, None)}
    assert sum(map(len, read)) <= 2 * saved * now
    if saved == now:
        assert all(one == {0, rank} for rank, one in enumerate(read))
    alone = replace(state, lanes=saved, at={"0": None})  # which other ranks may not share out
    assert saved % now == 0 or all(
        {0, *_needed(saved, alone, (rank, now))} == {*range(saved)} for rank in range(now)
    )


def test_one_step_of_contradicting_ranks_is_an_error_not_an_empty_folder(tmp_path: Path) -> None:
    mixture = ps.mix(
        {"a": ps.from_sequence(range(9), name="a"), "b": ps.from_sequence(range(9), name="b")},
        {"a": 1, "b": 1},
        seed=1,
    ).batch(2)
    loaders = [ps.Loader(mixture, rank=rank, world_size=2) for rank in range(2)]
    for its in zip(*loaders, strict=True):
        assert len(its) == 2
        break
    loaders[0].set_weights({"a": 1, "b": 3})  # and not on the other rank
    for loader in loaders:
        ps.save(tmp_path, loader)
    with pytest.raises(ps.StateError, match="no other step is complete; delete the files"):
        ps.restore(tmp_path, ps.Loader(mixture))


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_is_missing_is_named(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loaders = ranks_of(kind, 4)
    steps = steps_of(loaders)
    for complete in (True, False):
        next(steps)
        for loader in loaders[: 4 if complete else 3]:
            ps.save(tmp_path, loader, keep=1)
    again = ranks_of(kind, 2)
    with caplog.at_level(logging.WARNING, "penstock"):
        assert ps.restore(tmp_path, again[0]) == 1
    assert "rank 3 of 4 is missing in step 2; step 1 is used" in caplog.text
    with pytest.raises(
        ps.StateError, match="rank 3 of 4 is missing in step 2; the newest complete step is 1"
    ):
        ps.restore(tmp_path, again[1], step=2)
    for path in tmp_path.glob("step-1.rank-[012]*"):
        path.unlink()
    caplog.clear()
    with caplog.at_level(logging.WARNING, "penstock"):
        assert ps.restore(tmp_path, again[1]) is None
    assert (
        "rank 3 of 4 is missing in step 2, and no other step is complete; nothing is restored"
        in caplog.text
    )
    with pytest.raises(
        ps.StateError, match="3 of 4 ranks are missing in step 1; no step is complete"
    ):
        ps.restore(tmp_path, again[1], step=1)
    ps.save(tmp_path, loaders[3], keep=1)
    assert ps.restore(tmp_path, again[1]) == 2
    assert len(names(tmp_path)) == 4, "what was begun before goes too"


@pytest.mark.parametrize("kind", KINDS)
def test_states_of_different_moments_are_not_taken_together(kind: str, tmp_path: Path) -> None:
    loaders = ranks_of(kind, 2)
    for loader in loaders:
        next(steps_of(loaders))
        ps.save(tmp_path, loader, step=1)
    with pytest.raises(
        ps.StateError, match="the ranks saved step 1 from different positions or runs"
    ):
        ps.restore(tmp_path, loaders[0], step=1)


def test_lanes_of_a_dead_run_that_stood_elsewhere_at_this_step_do_not_complete_it(
    tmp_path: Path,
) -> None:
    """Steps of 2 ranks and of 3 lead to other places in the lanes; a state of neither is made of both."""
    stood = dict[int, list[int]]()
    for before, alive in ((2, (0,)), (3, (1,)), (2, (0, 1))):
        first, then = ranks_of("lanes", before), ranks_of("lanes", 2)
        next(steps_of(first))
        for loader in then:
            loader.load_state_dict([one.state_dict() for one in first])
        next(steps_of(then))
        for rank in alive:
            ps.save(tmp_path, then[rank])
        (one,) = ranks_of("lanes", 1)
        if alive == (1,):
            with pytest.raises(ps.StateError, match="from different positions or runs"):
                ps.restore(tmp_path, one)
        else:
            assert ps.restore(tmp_path, one) == (2 if alive == (0, 1) else None)
        stood[before] = [loader.state_dict()["turn"] for loader in then]
    assert set(stood[2]) != set(stood[3])
    assert len(names(tmp_path)) == 2, "and what the dead runs left has gone"


def test_logs_of_weights_that_differ_are_not_taken_together(tmp_path: Path) -> None:
    for kind, at in (("indexed", None), ("lanes", 500)):
        loaders = ranks_of(kind, 2)
        next(steps_of(loaders))
        for loader, weight in zip(loaders, (2, 3), strict=True):
            loader.set_weights({"a": 1, "b": weight}, at)
            ps.save(tmp_path / kind, loader)
        with pytest.raises(
            ps.StateError, match="the ranks saved step 1 from different positions or runs"
        ):
            ps.restore(tmp_path / kind, loaders[0], step=1)
        with pytest.raises(ps.StateError, match="are of different runs, with other changes"):
            loaders[0].load_state_dict([loader.state_dict() for loader in loaders])


def test_ranks_that_end_at_different_steps_say_the_step(tmp_path: Path) -> None:
    def loader(rank: int) -> ps.Loader:
        ds = ps.from_sequence(range(50)).filter(lambda x: x % 7 > 1)
        return ps.Loader(ds, rank=rank, world_size=3, lanes=6, remainder="keep")

    ranks = [loader(rank) for rank in range(3)]
    assert len({len(list(rank)) for rank in ranks}) > 1
    for rank in ranks:
        ps.save(tmp_path, rank, step=1)
    again = [loader(rank) for rank in range(3)]
    assert [ps.restore(tmp_path, rank) for rank in again] == [1, 1, 1]
    assert [list(rank) for rank in again] == [list(rank) for rank in ranks]


def test_a_dead_runs_files_never_complete_another_runs(tmp_path: Path) -> None:
    """Ranks 0 and 1 of 4 saved step 3 and died; the next run is given other weights, and rank 2 and 3 die then."""
    for weight, alive in ((2, (0, 1)), (3, (2, 3)), (4, (0, 1, 2, 3))):
        loaders = ranks_of("indexed", 4)
        steps = steps_of(loaders)
        assert {ps.restore(tmp_path, loader) for loader in loaders} == (
            {None} if weight == 2 else {2}
        )
        if weight == 2:
            _ = next(steps), next(steps)
            for loader in loaders:
                ps.save(tmp_path, loader, keep=1)
        for loader in loaders:
            loader.set_weights({"a": 1, "b": weight}, at=100)
        next(steps)
        for rank in alive:
            ps.save(tmp_path, loaders[rank], keep=1)
    (one,) = ranks_of("indexed", 1)
    assert ps.restore(tmp_path, one) == 3 and len(names(tmp_path)) == 4
    assert one.state_dict()["changes"][0]["event"]["weights"] == {"a": 1, "b": 4}


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_that_die_at_any_effect_go_on_from_the_last_complete_step(kind: str) -> None:
    """Three ranks save in turn; the power goes at every effect, and two ranks go on."""
    samples = Counter(x for step in islice(steps_of(ranks_of(kind, 1)), 24) for x in step)
    for n in range(1, 60, rounds(2, 1)):
        disk, safe, keep = CrashingDisk(seed=n, fail_at=n, how="kill"), 0, (None, 1, 2)[n % 3]
        with override_world(disk=disk):
            loaders, given = ranks_of(kind, 3), list[list[int]]()
            try:
                for given_now in islice(steps_of(loaders), 3):
                    given.append(given_now)
                    for turn in range(3):
                        ps.save(HERE, loaders[(turn + n) % 3], keep=keep)
                    safe = len(given)
            except Crash:
                pass
            disk.crash()
            again = ranks_of(kind, 2)
            (step,) = {ps.restore(HERE, loader) or 0 for loader in again}
            assert step == safe or safe < step <= len(given), f"effect {n}: {disk.paths()}"
            rest = (x for row in islice(steps_of(again), (24 - 3 * step) // 2) for x in row)
            seen = Counter(rest) + Counter(x for row in given[:step] for x in row)
            assert seen == samples or (step % 2 and seen < samples), f"effect {n}"
            for loader in again:
                ps.save(HERE, loader, keep=1)
            assert {ps.restore(HERE, loader) for loader in ranks_of(kind, 3)} == {
                again[0].state_dict()["step"]
            }
            assert len(disk.paths()) == 2, "and what the dead run left has gone"
        if safe == 3:
            return
    raise AssertionError("three saves never came to their end")


class Life(NamedTuple):
    """One start of a training: on how many ranks, with which weights, and when the power goes."""

    size: int
    steps: int
    keep: int | None
    weight: int | None
    fatal: int


LIVES = st.builds(
    Life,
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([None, 1, 2]),
    st.none() | st.integers(1, 9),
    st.integers(1, 60),
)


@examples(12)
@given(st.lists(LIVES, min_size=1, max_size=6), st.integers(0, 2**20))
def test_whatever_dies_when_the_newest_complete_step_is_found(lives: list[Life], seed: int) -> None:
    disk, safe = CrashingDisk(seed), 0
    moments = dict[int, list[tuple[int, Any]]]()  # what ranks that stood alike saved, by step
    with override_world(disk=disk):
        for life in [*lives, Life(1, 1, None, None, 10**6)]:
            loaders = ranks_of("indexed", life.size)
            (step,) = {ps.restore(HERE, loader) or 0 for loader in loaders}
            stands = [
                (loader.state_dict()["at"], loader.state_dict()["changes"]) for loader in loaders
            ]
            assert step >= safe and all(one == stands[0] for one in stands)
            assert stands[0] in moments.get(step, [(0, [])])
            if life.weight:
                for loader in loaders:
                    loader.set_weights({"a": 1, "b": life.weight})
            disk.fail_at, disk.how = disk.effects + life.fatal, "kill"
            try:
                for _ in islice(steps_of(loaders), life.steps):
                    step += 1
                    state = loaders[0].state_dict()
                    moments.setdefault(step, []).append((state["at"], state["changes"]))
                    for loader in loaders:
                        assert ps.save(HERE, loader, keep=life.keep) == step
                    safe = step
                    assert [ps.restore(HERE, one) for one in ranks_of("indexed", 2)] == [step, step]
                    if life.keep:
                        assert (
                            len(
                                {
                                    path.name.split(".")[0]
                                    for path in disk.paths()
                                    if path.suffix == ".json"
                                }
                            )
                            <= life.keep
                        )
            except Crash:
                pass
            disk.crash()


class Moving(CrashingDisk):
    """A disk on which something happens before the next read."""

    then: Callable[[], Any] | None = None

    def read(self, path: Path, limit: int | None = None, /) -> bytes:
        then, self.then = self.then, None
        if then:
            then()
        return super().read(path, limit)


def test_who_looks_on_while_old_steps_go_finds_a_newer_one() -> None:
    disk, run = Moving(seed=0), iter(indexed())
    with override_world(disk=disk):
        next(run)
        ps.save(HERE, run, keep=1)
        (old,) = disk.paths()
        next(run)

        def saved() -> None:
            ps.save(HERE, run)
            disk.unlink(old)

        disk.then = saved
        assert ps.restore(HERE, iter(indexed())) == 2
        assert len(disk.paths()) == 1


def test_a_rank_that_is_behind_makes_a_step_complete_while_one_that_is_ahead_saves() -> None:
    disk, (ahead, behind) = Moving(seed=0), ranks_of("indexed", 2)
    steps, later = iter(ahead), iter(behind)
    with override_world(disk=disk):
        for run, items in ((ahead, steps), (behind, later)):
            next(items)
            ps.save(HERE, run, keep=1)
        next(steps)
        ps.save(HERE, ahead, keep=1)
        next(steps)
        next(later)
        disk.then = lambda: ps.save(
            HERE, behind, keep=1
        )  # the one that is ahead goes to read the step before
        ps.save(HERE, ahead, keep=1)
        assert {path.name.split(".")[0] for path in disk.paths()} == {"step-2", "step-3"}
        assert ps.restore(HERE, ranks_of("indexed", 2)[0]) == 2


class Interleaved(CrashingDisk):
    """A disk on which another writer acts between the write and the rename of a file."""

    then: Callable[[], object] | None = None

    def replace(self, source: Path, target: Path, /) -> None:
        if then := self.then:
            self.then = None
            then()
        super().replace(source, target)


@pytest.mark.parametrize("keep", [None, 1])
@pytest.mark.parametrize("kind", ["indexed", "lanes"])
@pytest.mark.parametrize("writers", ["ranks after a kill", "peers of one rank"])
def test_a_step_that_is_complete_already_is_written_by_several_at_a_time(
    writers: str, kind: str, keep: int | None
) -> None:
    """Files of a killed run, or of a peer, complete a step while a rank still writes its own."""
    disk = Interleaved(seed=0)
    with override_world(disk=disk):
        if writers == "ranks after a kill":
            killed, _ = ranks_of(kind, 2)
            next(iter(killed))
            ps.save(HERE, killed, keep=keep)
            first, second = ranks_of(kind, 2)
        else:
            (first,), (second,) = ranks_of(kind, 1), ranks_of(kind, 1)
        for run in (first, second):
            next(iter(run))
        disk.then = lambda: ps.save(HERE, second, keep=keep)
        ps.save(HERE, first, keep=keep)
        assert all(path.suffix == ".json" for path in disk.paths())
        assert ps.restore(HERE, ranks_of(kind, first.world_size)[0]) == 1


@pytest.mark.slow  # processes that are killed
@pytest.mark.parametrize("kind", ["indexed", "lanes"])
def test_ranks_that_are_killed_again_and_again_lose_and_double_nothing(
    kind: str, tmp_path: Path
) -> None:
    """Processes; one of them dies by SIGKILL at an effect on the folder, and others, more or fewer, go on."""
    command = [sys.executable, Path(__file__).parent / "saving_ranks.py", tmp_path, kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert sum(told["died"]) >= 8 and not told["died"][-1]
    assert all(len(steps) == 1 for steps in told["restored"]), "all ranks go on from the same step"
    assert max(told["restored"])[0] > 20
    count = len(told["given"])
    assert Counter(map(str, told["given"])) == Counter(map(str, told["alone"][:count]))
    assert told["after"] == told["alone"][count:]


def test_what_was_taken_on_several_ranks_is_refused_and_on_one_is_saved(tmp_path: Path) -> None:
    ds = ps.from_sequence(range(9), name="n")
    one, two = ps.Loader(ds), ps.Loader(ds, rank=0, world_size=2)
    for loader in (one, two):
        loader.settle(loader.lease(3)[1].uid, "trained")
    with pytest.raises(ps.StateError, match="items were delivered out of order on 2 ranks"):
        ps.save(tmp_path / "two", two)
    ps.save(tmp_path / "one", one)
    again = ps.Loader(ds)
    ps.restore(tmp_path / "one", again)
    assert [item.value for item in again.lease(3)] == [0, 2, 3]


def test_a_file_is_no_folder_of_states(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(
        ps.ConfigError, match=r"state\.json is a file; give the folder that ps\.save was given"
    ):
        ps.restore(tmp_path / "state.json", iter(ps.from_sequence("abc")))
