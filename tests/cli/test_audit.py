"""`penstock audit` against a run of the same file."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from cli_world import Penstock

LISTENING = """import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("penstock", run_name="__main__", alter_sys=True)"""


def lines(result: Any) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_its_lines_are_a_run(mixture: Path, penstock: Penstock, tmp_path: Path) -> None:
    keys = tmp_path / "keys.jsonl"
    penstock("run", mixture, "--dump", keys, "--state", tmp_path / "run")
    given = [
        (line["step"], *key)
        for line in map(json.loads, keys.read_text().splitlines())
        for key in line["keys"]
    ]
    for more in ((), ("--state", tmp_path / "run")):
        found = lines(penstock("audit", mixture, "--steps", "20:300", *more))
        told = [(line["step"], line["source"], line["epoch"], line["index"]) for line in found]
        assert told == [key for key in given if key[0] >= 20]
    state = tmp_path / "one.json"
    with ps.Loader(ps.load(mixture), rank=0, world_size=1) as loader:
        next(iter(loader))
        state.write_text(json.dumps(loader.state_dict()))
    assert lines(penstock("audit", mixture, "--steps", "20:300", "--state", state)) == found
    out = tmp_path / "steps.parquet"
    said = json.loads(penstock("audit", mixture, "--steps", "20:", "-o", out, "--json").stdout)
    assert said["lines"] == len(found) and said["version"] == 1
    assert pq.read_table(out).to_pylist() == found
    row = found[17]
    text = json.loads(Path(row["file"]).read_text().splitlines()[row["row_in_file"]])["text"]
    assert text == f"{row['source']} {row['index']}"
    (keyed, *_) = lines(penstock("audit", mixture, "--steps", ":1", "--key", "text"))
    assert keyed["key"] == f"{keyed['source']} {keyed['index']}"
    failed = penstock("audit", mixture, "--steps", ":1", "--key", "url", "-o", tmp_path / "a.csv")
    assert failed.exit_code == 2 and not (tmp_path / "a.csv").exists()
    assert "audit(key='url'): no sample of these steps has this column" in failed.stderr


def test_steps_are_replayed_as_they_were(mixture: Path, penstock: Penstock, tmp_path: Path) -> None:
    keys, out = tmp_path / "keys.jsonl", tmp_path / "samples.jsonl"
    penstock("run", mixture, "--dump", keys)
    done = penstock("replay", mixture, "--steps", "40:60", "--against", keys, "-o", out, "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["same"]
    samples = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(samples) == 160 == len(lines(penstock("replay", mixture, "--steps", "40:60")))
    assert all(one["value"] == {"text": f"{one['source']} {one['index']}"} for one in samples)
    mixture.write_text(mixture.read_text().replace("seed: 7", "seed: 8"))
    done = penstock("replay", mixture, "--steps", "40:60", "--against", keys)
    assert done.exit_code == 1 and "the samples differ from" in done.output
    keys.write_text("{}\n")
    assert "line 1" in penstock("replay", mixture, "--steps", "40:60", "--against", keys).stderr


def test_steps_that_a_dump_does_not_hold_are_not_the_same(
    mixture: Path, penstock: Penstock, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.jsonl"
    penstock("run", mixture, "--dump", keys, "--steps", 50)
    kept = [
        line
        for line in keys.read_text().splitlines(keepends=True)
        if json.loads(line)["step"] != 42
    ]
    keys.write_text("".join(kept))
    done = penstock("replay", mixture, "--steps", "40:60", "--against", keys)
    assert (
        done.exit_code == 1
        and "lacks steps 42:43, 50:60" in done.output
        and "as " not in done.output
    )
    done = penstock("replay", mixture, "--steps", "40:60", "--against", keys, "--json")
    found = json.loads(done.stdout)
    assert (
        not found["same"] and found["different"] == [] and found["missing"] == [42, *range(50, 60)]
    )
    assert penstock("replay", mixture, "--steps", "43:50", "--against", keys).exit_code == 0


def test_what_is_named_by_a_link_is_written_where_it_lies(
    mixture: Path, penstock: Penstock, tmp_path: Path
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "olmo.yaml").write_text(
        "sources:\n- {source_name: code, target_ratio: 1, paths: [code.jsonl]}\n"
    )
    for name, words in (
        ("audit.jsonl", ("audit", mixture, "--steps", "3:5")),
        ("seen.csv", ("seen", mixture, "--before", 4)),
        ("replay.jsonl", ("replay", mixture, "--steps", "3:5")),
        ("carried.yaml", ("convert", tmp_path / "olmo.yaml")),
    ):
        link, there = tmp_path / name, tmp_path / "there" / name
        link.symlink_to(there)
        assert penstock(*words, "-o", link).exit_code == 0
        assert link.is_symlink() and there.stat().st_size, name


def test_what_makes_no_sense_is_refused(mixture: Path, penstock: Penstock, tmp_path: Path) -> None:
    for asked, needle in (
        (("--steps", "7"), "FIRST:STOP"),
        (("--steps", "7:7"), "the range is empty"),
        (("--steps", "290:301"), "the run ends after 300"),
        (("--steps", f"0:{10**20}"), "the run ends after 300"),
        (("-o", tmp_path / "x.gif"), ".parquet, .arrow, .csv, .jsonl"),
        (("--json",), "with -o"),
    ):
        refused = penstock("audit", mixture, *asked)
        assert refused.exit_code == 2 and needle in refused.output, refused.output


@pytest.mark.parametrize("command", ["audit", "blame", "replay"])
def test_steps_beyond_all_positions_of_an_endless_run(
    mixture: Path, penstock: Penstock, command: str
) -> None:
    """Before, `blame` ended in an OverflowError."""
    endless = mixture.read_text().replace("horizon", "# horizon")
    mixture.write_text(endless)
    refused = penstock(command, mixture, "--steps", f"0:{10**20}")
    assert refused.exit_code == 2 and "counted up to 2^60" in refused.output, refused.output


def test_endless_runs_that_are_counted_one_by_one(penstock: Penstock, tmp_path: Path) -> None:
    """Before, commands whose steps were named asked for an argument of a function."""
    for name, documents in (("a", 30), ("b", 50), ("c", 60_000)):
        sizes = np.random.default_rng(documents).integers(1, 25, documents)
        tokens = [[0] * size for size in sizes.tolist()]
        pq.write_table(pa.table({"tokens": tokens}), tmp_path / f"{name}.parquet")
    path = tmp_path / "mixture.yaml"
    path.write_text(
        "sources:\n  i: {mixture: {stop: first_exhausted, sources: {a: {path: a.parquet, lengths: "
        "tokens}, b: {path: b.parquet, lengths: tokens}}}, weight: 1}\n"
        "  c: {path: c.parquet, lengths: tokens, weight: 1}\n"
        "pack: {length: 64}\nbatch: {size: 2}\n"
    )
    for words in (
        ("audit", path, "--steps", "0:3"),
        ("replay", path, "--steps", "0:3"),
        ("plan", path, "--steps", 20, "-o", tmp_path / "plan.svg"),
        ("report", path, "--steps", 20, "-o", tmp_path / "plan.html"),
    ):
        answer = penstock(*words)
        assert answer.exit_code == 0, answer.output
    plan = json.loads(penstock("plan", path, "--steps", 100, "--json").output)
    assert [row["source"] for row in plan["sources"] if row["first_repeat"]] == ["i/a", "i/b"]
    for words in (("plan", path), ("find", path, "c", 0), ("audit", path)):
        refused = penstock(*words)
        assert refused.exit_code == 2 and "add a horizon to the file" in refused.output


@pytest.mark.slow  # interrupts a process
def test_ctrl_c_leaves_no_half_file(mixture: Path, tmp_path: Path) -> None:
    mixture.write_text(mixture.read_text().replace("steps: 300", "steps: 30M"))
    out = tmp_path / "out" / "steps.parquet"
    out.parent.mkdir()
    command = [sys.executable, "-c", LISTENING, "audit", str(mixture), "-o", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 600
    while not any(f"{out.parent}/" in name for name in _open_files(process.pid)):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)
    errors = None
    while errors is None:
        # Python loses an interrupt that arrives in a weakref callback, as while a module is imported.
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            errors = process.communicate(timeout=30)[1]
    assert process.returncode == 130 and b"penstock: stopped" in errors
    assert list(out.parent.iterdir()) == []


def _open_files(pid: int) -> list[str]:
    names = list[str]()
    with contextlib.suppress(FileNotFoundError):
        for at in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                names.append(str(at.readlink()))
    return names


@pytest.mark.parametrize(
    "command",
    ["audit -o", "seen -o", "run --dump", "plan -o", "report -o", "replay --steps 0:2 -o"],
)
def test_an_input_of_the_mixture_is_never_overwritten(
    mixture: Path, penstock: Penstock, command: str
) -> None:
    name, *options = command.split()
    data = sorted(path for path in mixture.parent.rglob("*.jsonl"))
    keys = mixture.with_name("left_out.txt")
    keys.write_text('["code", 3]\n')
    mixture.write_text(mixture.read_text() + "exclude: left_out.txt\n")
    for path in (mixture, data[0], keys):
        before = path.read_bytes()
        result = penstock(name, mixture, *options, path)
        assert result.exit_code == 2 and "is an input of" in result.output, result.output
        assert path.read_bytes() == before


@pytest.mark.parametrize("command", ["audit -o", "seen -o", "plan -o", "report -o", "replay -o"])
def test_a_state_and_a_dump_are_never_overwritten(
    mixture: Path, penstock: Penstock, tmp_path: Path, command: str
) -> None:
    name, option = command.split()
    loader = ps.Loader(ps.load(mixture))
    next(iter(loader))
    state, dump = tmp_path / "state.json", tmp_path / "dump.jsonl"
    state.write_text(json.dumps(loader.state_dict()))
    steps = ["--steps", "0:1"] if name == "replay" else []
    before = state.read_bytes()
    result = penstock(name, mixture, *steps, "--state", state, option, state)
    assert result.exit_code == 2 and "is an input of this command" in result.output, result.output
    assert state.read_bytes() == before
    if name == "replay":
        dump.write_text('{"step": 0, "keys": [["code", 0, 3]]}\n')
        result = penstock(name, mixture, *steps, "--against", dump, option, dump)
        assert result.exit_code == 2 and "is an input of this command" in result.output
        assert dump.read_text().startswith('{"step": 0')
