"""Shards: what they hold, whoever writes them, and that nothing that is killed on the way shows in them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import done, examples
from helpers import pairwise_first
from killed_writer import documents
from penstock.engine.runtime.executors import EXECUTORS
from penstock.stores.storage import override_world
from penstock.testing.simulate import Crash, CrashingDisk
from penstock.writing import write
from writing_disk import Over

HERE = Path(__file__).parent.parent


def held(folder: Path) -> dict[str, bytes]:
    """Everything that lies in a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_shards_hold_the_samples_in_order(tmp_path: Path) -> None:
    ds = documents(103)
    files = write(ds, tmp_path / "out", shard=25, format="tar")
    assert [file.name for file in files] == [f"shard-{i:06d}.tar" for i in range(5)]
    assert sorted(held(tmp_path / "out")) == [".shards.json", *(file.name for file in files)]
    again = ps.read(tmp_path / "out")
    assert [json.loads(sample["json"]) for sample in again] == [sample["json"] for sample in ds]
    assert [sample["__key__"] for sample in again] == [f"{i:012d}" for i in range(103)]
    about = json.loads((tmp_path / "out/.shards.json").read_bytes())
    assert [file["samples"] for shard in about["shards"] for file in shard] == [25, 25, 25, 25, 3]


@pytest.mark.parametrize("format", ["tar", "arrow"])
@pytest.mark.parametrize("executor", [name for name in EXECUTORS if name != "ray"])
def test_whoever_writes_them(executor: Any, format: Any, tmp_path: Path) -> None:
    write(documents(90), tmp_path / "one", shard=20, format=format)
    write(documents(90), tmp_path / "many", shard=20, executor=executor, workers=3, format=format)
    assert held(tmp_path / "many") == held(tmp_path / "one")


def test_others_read_the_archives(tmp_path: Path) -> None:
    (file,) = write(documents(7), tmp_path, format="tar")
    with tarfile.open(file) as archive:
        assert [member.name for member in archive][:3] == [
            "000000000000.txt",
            "000000000000.json",
            "000000000001.txt",
        ]
        assert {(m.mtime, m.uid, m.gid, m.mode, m.uname) for m in archive} == {(0, 0, 0, 0o644, "")}
    listed = subprocess.run(["tar", "tf", str(file)], capture_output=True, text=True, check=True)
    assert len(listed.stdout.splitlines()) == 14 and not listed.stderr


def test_lines(tmp_path: Path) -> None:
    ds = ps.from_sequence([{"tokens": np.arange(i), "n": np.int64(i)} for i in range(10)])
    files = write(ds, tmp_path, "jsonl", shard=4)
    assert [file.name for file in files] == [f"shard-{i:06d}.jsonl" for i in range(3)]
    assert list(ps.read(tmp_path)) == [{"tokens": list(range(i)), "n": i} for i in range(10)]


@examples(30)
@given(
    sizes=st.lists(st.integers(0, 5_000), min_size=1, max_size=40),
    shard=st.integers(1, 50),
    most=st.integers(1, 40_000),
)
def test_files_are_no_larger_than_asked(
    sizes: list[int], shard: int, most: int, tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.mktemp("out")
    ds = ps.from_sequence([{"bin": bytes(size)} for size in sizes])
    files = write(ds, folder, shard=shard, max_bytes=most, format="tar")
    again = [ps.read(file) for file in files]
    assert [sample["bin"] for part in again for sample in part] == [bytes(size) for size in sizes]
    assert [
        len(sample["bin"]) for sample in ps.read(folder)
    ] == sizes  # by their names they are in order, too
    for file, part in zip(files, again, strict=True):
        assert len(part) <= shard and (file.stat().st_size <= most or len(part) == 1)


def test_a_second_call_writes_nothing(tmp_path: Path) -> None:
    calls = list[int]()

    def called(x: int) -> dict[str, str]:
        calls.append(x)
        return {"txt": str(x)}

    ds = ps.from_sequence(range(10)).map(called)
    files = write(ds, tmp_path, shard=3, format="tar")
    before, times = held(tmp_path), [file.stat().st_mtime_ns for file in files]
    assert write(ds, tmp_path, shard=3, format="tar") == files and len(calls) == 10
    files[1].unlink()
    assert write(ds, tmp_path, shard=3, format="tar") == files and calls[10:] == [3, 4, 5]
    assert held(tmp_path) == before
    assert [file.stat().st_mtime_ns for file in files][::2] == times[::2]


@pytest.mark.parametrize(
    "other",
    [
        lambda ds, folder: write(ds, folder, shard=4, format="tar"),
        lambda ds, folder: write(ds, folder, "jsonl", shard=3),
        lambda ds, folder: write(ds, folder, shard=3, max_bytes=99, format="tar"),
        lambda ds, folder: write(ds.shuffle(seed=1), folder, shard=3, format="tar"),
        lambda ds, folder: write(ds.map(dict), folder, shard=3, format="tar"),
        lambda ds, folder: write(
            ps.from_sequence("bbcdefghij", name="x").map(plain), folder, shard=3, format="tar"
        ),
    ],
)
def test_shards_of_something_else_are_refused(other: Any, tmp_path: Path) -> None:
    ds = ps.from_sequence("abcdefghij", name="x").map(plain)
    write(ds, tmp_path, shard=3, format="tar")
    before = held(tmp_path)
    with pytest.raises(ps.ConfigError, match=r"(?s)holds other shards:\n  .*\ngive another folder"):
        other(ds, tmp_path)
    assert held(tmp_path) == before


def test_a_row_that_no_digest_samples_and_that_changed_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data.jsonl"
    lines = [f'{{"text": "{number:060d}"}}\n' for number in range(4_000)]
    data.write_text("".join(lines))
    write(ps.read(data), tmp_path / "out", shard=1_000)
    write(ps.read(data), tmp_path / "out", shard=1_000)
    assert "written again" not in caplog.text
    lines[1_777] = lines[1_777].replace("0", "1")
    data.write_text("".join(lines))
    write(ps.read(data), tmp_path / "out", shard=1_000)
    assert "the files of data were written again since" in caplog.text


def test_functions_that_are_others_by_now_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for word in ("cat", "dog"):
        write(
            ps.from_sequence(range(3)).map(lambda x, word=word: {"txt": word}),
            tmp_path,
            format="tar",
        )
    assert "<lambda> has changed; give the function a version" in caplog.text
    assert ps.read(tmp_path)[0]["txt"] == b"cat"


def plain(text: str) -> dict[str, str]:
    return {"txt": text}


def test_a_folder_of_somebody_elses_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shard-000007.tar").write_bytes(b"")
    with pytest.raises(ps.ConfigError, match="no .shards.json"):
        write(documents(3), tmp_path, format="tar")
    (tmp_path / ".shards.json").write_bytes(b"{")
    with pytest.raises(ps.DataError, match="corrupted"):
        write(documents(3), tmp_path, format="tar")


def test_a_folder_that_cannot_be_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for name, words in (("file", "file: Not a directory"), ("n" * 300, "nnn: File name too long")):
        with pytest.raises(ps.StorageError, match=words):
            ps.write(ps.from_sequence([{"a": 1}]), tmp_path / name)


def test_what_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ps.IndexedError):
        write(documents(9).repeat(), tmp_path, format="tar")
    with pytest.raises(ps.IndexedError):
        write(documents(9).filter(bool), tmp_path, format="tar")
    with pytest.raises(ps.ConfigError, match="is empty"):
        write(documents(9).limit(0), tmp_path, format="tar")
    with pytest.raises(ps.ConfigError, match="did you mean 'tar'"):
        write(documents(9), tmp_path, "tarr")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ps.ConfigError, match="shard=0"):
        write(documents(9), tmp_path, shard=0, format="tar")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ps.ConfigError, match="several ranks"):
        write(documents(9), tmp_path, format="tar")
    assert held(tmp_path) == {}


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_a_bad_sample_stops_it_and_nothing_is_left_of_the_try(
    executor: Any, tmp_path: Path
) -> None:
    def bad(x: int) -> dict[str, Any]:
        if x == 17 and (tmp_path / "bad").exists():
            raise ValueError("no 17")
        return {"txt": str(x)}

    (tmp_path / "bad").touch()
    ds, out = ps.from_sequence(range(30), name="numbers").map(bad), tmp_path / "out"
    with pytest.raises(ValueError, match="no 17") as caught:
        write(ds, out, shard=4, executor=executor, workers=2, format="tar")
    assert any("at index 17 of source numbers" in note for note in caught.value.__notes__)
    assert not list(out.glob(".*.tmp"))
    (tmp_path / "bad").unlink()
    files = write(ds, out, shard=4, executor=executor, workers=2, format="tar")
    assert sorted(held(out)) == [".shards.json", *(file.name for file in files)]
    assert [sample["txt"] for sample in ps.read(out)] == [str(x).encode() for x in range(30)]


@pytest.mark.slow  # processes that are killed
def test_workers_that_are_killed(tmp_path: Path) -> None:
    def deadly(sample: dict[str, Any]) -> dict[str, Any]:
        marker = tmp_path / f"killed at {sample['json']['number']}"
        if sample["json"]["number"] in (11, 47) and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return sample

    write(documents(90), tmp_path / "one", shard=10, format="tar")
    want = held(tmp_path / "one")
    files = write(
        documents(90).map(deadly),
        tmp_path / "many",
        shard=10,
        executor="processes",
        workers=2,
        format="tar",
    )
    assert len(list(tmp_path.glob("killed at *"))) == 2
    assert {file.name: file.read_bytes() for file in files} == {
        name: want[name] for name in want if name[0] != "."
    }


FIND = f"import sys\nsys.path.append({str(HERE)!r})\n"

INTERRUPTED = """
import signal, sys, time
from pathlib import Path
from killed_writer import documents
from penstock.writing import write

signal.signal(signal.SIGINT, signal.default_int_handler)  # where the tests run in the background it is ignored

def slow(sample, folder=sys.argv[1]):
    if sample["json"]["number"] == 40 and not Path(folder, "go on").exists():
        sys.stdout.write("now\\n")
        sys.stdout.flush()
        time.sleep(600)
    return sample

if __name__ == "__main__":
    write(documents(90).map(slow), f"{sys.argv[1]}/many", shard=10, executor="processes", workers=2, format="tar")
"""


KILLED = """
import sys
from killed_writer import documents
from penstock.writing import write

def told(sample):
    sys.stdout.write("a sample\\n")
    sys.stdout.flush()
    return sample

if __name__ == "__main__":
    write(documents(400).map(told), sys.argv[1], shard=20, executor="processes", workers=2, format="tar")
"""


@pytest.mark.slow  # processes that are killed
@examples(1)
@given(seed=st.integers(0, 1 << 30))
def test_the_writer_killed_with_its_workers(seed: int, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-c", FIND + KILLED, str(folder / "many")]
    dice = random.Random(seed)
    for samples in (dice.randrange(1, 150) for _ in range(3)):
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        for _ in zip(range(samples), child.stdout, strict=False):
            pass
        workers = psutil.Process(child.pid).children()
        child.kill()
        child.communicate()
        assert not psutil.wait_procs(workers, timeout=300)[1]
        done["writers killed"] += 1
    subprocess.run(command, check=True, timeout=600, stdout=subprocess.DEVNULL)
    write(documents(400), folder / "one", shard=20, format="tar")
    want, found = held(folder / "one"), held(folder / "many")
    assert found.keys() == want.keys() and all(
        found[name] == want[name] for name in want if name[0] != "."
    )


@pytest.mark.slow  # interrupts a process
def test_ctrl_c_ends_it_and_nothing_is_left_of_the_try(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FIND + INTERRUPTED, str(tmp_path)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "now\n"
    workers = psutil.Process(child.pid).children()
    child.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in child.communicate(timeout=300)[1]
    assert workers and not psutil.wait_procs(workers, timeout=300)[1]
    assert not list((tmp_path / "many").glob(".*.tmp"))
    (tmp_path / "go on").touch()
    subprocess.run(command, check=True, timeout=600)
    write(documents(90), tmp_path / "one", shard=10, format="tar")
    want = held(tmp_path / "one")
    found = held(tmp_path / "many")
    assert found.keys() == want.keys() and all(
        found[name] == want[name] for name in want if name[0] != "."
    )


@pytest.mark.slow  # processes that are killed
def test_a_sample_that_kills_every_worker_is_named(tmp_path: Path) -> None:
    def deadly(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["json"]["number"] == 11:
            os._exit(3)
        return sample

    with pytest.raises(ps.DataError, match="3 times in a row") as caught:
        write(
            documents(30).map(deadly),
            tmp_path,
            shard=10,
            executor="processes",
            workers=1,
            format="tar",
        )
    assert any("the job was" in note for note in caught.value.__notes__)


@pytest.mark.slow  # processes that are killed
@examples(2)
@given(seed=st.integers(0, 1 << 30), format=st.sampled_from(["tar", "arrow"]))
def test_the_writer_killed_at_its_effects(seed: int, format: Any, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("killed")
    write(documents(400), folder / "one", shard=50, max_bytes=20_000, format=format)
    told = subprocess.run(
        [sys.executable, str(HERE / "killed_writer.py"), str(folder / "many"), str(seed), format],
        capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    assert held(folder / "many") == held(folder / "one")
    done["writers killed"] += int(told.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("how,format", pairwise_first(["kill", "error", "full"], ["tar", "arrow"]))
def test_every_effect_of_the_disk_may_fail(how: Any, format: Any) -> None:
    ds, place = documents(10), Path("/out")

    def written(disk: CrashingDisk) -> None:
        with override_world(disk=disk, store=Over(disk)):
            write(ds, place, shard=4, format=format)

    plain = CrashingDisk(0)
    written(plain)
    want = {path: plain.read(path) for path in plain.paths()}
    assert plain.effects > 25
    for n in range(1, plain.effects + 1):
        disk = CrashingDisk(n, fail_at=n, how=how)
        try:
            written(disk)
        except (Crash, OSError):
            pass
        if how == "kill":
            disk.crash()
        disk.fail_at = None
        written(disk)
        assert {path: disk.read(path) for path in disk.paths()} == want, n
