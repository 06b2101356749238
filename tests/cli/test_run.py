"""`penstock run`: what it writes down, and that it goes on after Ctrl-C and after SIGKILL as if nothing had been."""

from __future__ import annotations

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
from penstock.explore.run_reporter import count_tokens
from penstock.saves import read_states


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_step_is_written_down(mixture: Path, penstock: Penstock, tmp_path: Path) -> None:
    result = penstock("run", mixture, "--dump", tmp_path / "keys.jsonl", "--workers", 2, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["steps"] == 300 and found["samples"] == 2_400 and found["finished"]
    assert found["sources"]["math"]["samples"] == 125
    with ps.Loader(ps.load(mixture), rank=0, world_size=1) as loader:
        wanted = [
            {"step": step, "keys": [list(key) for key in loader.keys()]}
            for step, _ in zip(range(300), loader, strict=False)
        ]
    assert lines(tmp_path / "keys.jsonl") == wanted


def test_it_goes_on_from_its_state(mixture: Path, penstock: Penstock, tmp_path: Path) -> None:
    whole, parts, state = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl", tmp_path / "run"
    penstock("run", mixture, "--dump", whole)
    for steps in (100, 157):
        assert (
            penstock("run", mixture, "--dump", parts, "--state", state, "--steps", steps).exit_code
            == 0
        )
    result = penstock("run", mixture, "--dump", parts, "--state", state)
    assert result.exit_code == 0 and "state after step 300" in result.output
    assert parts.read_text() == whole.read_text()


def test_steps_are_the_length_of_the_run_however_often_it_goes_on(
    mixture: Path, penstock: Penstock, tmp_path: Path
) -> None:
    state = tmp_path / "run"

    def went(*more: object) -> tuple[int, int, str]:
        found = json.loads(penstock("run", mixture, "--state", state, *more, "--json").stdout)
        said = penstock("run", mixture, "--state", state, *more)
        assert said.exit_code == 0, said.output
        return found["steps"], read_states(state)[0], said.stdout

    assert went("--steps", 60)[:2] == (60, 60)
    steps, step, said = went("--steps", 60)
    assert (
        (steps, step) == (0, 60)
        and "nothing to do" in said
        and "--steps 60 ends at or before it" in said
    )
    assert went("--steps", 40)[:2] == (0, 60)
    assert went("--steps", 100)[:2] == (40, 100)
    assert went("--steps", 400)[:2] == (200, 300)
    for more in ((), ("--steps", 400)):
        steps, step, said = went(*more)
        assert (steps, step) == (0, 300) and "the run ends after 300" in said, more


def test_a_step_is_that_of_all_ranks(mixture: Path, penstock: Penstock, tmp_path: Path) -> None:
    mixture.write_text(
        mixture.read_text()
        .replace("size: 8", "size: 4, ranks: 2")
        .replace("steps: 300", "steps: 30")
    )
    keys, state = tmp_path / "keys.jsonl", tmp_path / "run"
    planned = json.loads(penstock("plan", mixture, "--json").stdout)
    found = json.loads(penstock("run", mixture, "--dump", keys, "--json").stdout)
    assert (found["steps"], found["samples"]) == (planned["steps"], planned["samples"]) == (30, 240)
    said = json.loads(penstock("at", mixture, 0, "--to", 30, "--json").stdout)["samples"]
    told = {
        step: [(row["source"], row["index"]) for row in said if row["step"] == step]
        for step in range(30)
    }
    assert {
        line["step"]: [(source, index) for source, _, index in line["keys"]] for line in lines(keys)
    } == told
    for steps in (
        7,
        30,
    ):  # a state of some steps is one of the training, where every rank took as many
        penstock(
            "run", mixture, "--dump", tmp_path / "parts.jsonl", "--state", state, "--steps", steps
        )
        assert ps.load(mixture).plan.for_state(state).position == 2 * steps
    assert (tmp_path / "parts.jsonl").read_text() == keys.read_text()
    for more in ((), ("--state", state)):
        done = penstock("replay", mixture, "--steps", "5:9", "--against", keys, *more)
        assert done.exit_code == 0, done.output


LISTENING = """import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("penstock", run_name="__main__", alter_sys=True)"""
"""Hears Ctrl-C, which a shell turns off in what it runs in the background."""


@pytest.mark.slow  # processes that are killed
def test_it_goes_on_after_sigkill_and_ctrl_c(
    mixture: Path, penstock: Penstock, tmp_path: Path
) -> None:
    whole, parts, state = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl", tmp_path / "run"
    penstock("run", mixture, "--dump", whole)
    command = [
        sys.executable,
        "-c",
        LISTENING,
        "run",
        str(mixture),
        "--dump",
        str(parts),
        "--state",
        str(state),
    ]
    for number in (signal.SIGKILL, signal.SIGINT):
        before = sorted(state.glob("step-*"))
        process = subprocess.Popen(
            [*command, "--save-every", "10", "--pause", "0.05"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        deadline = time.monotonic() + 600
        while sorted(state.glob("step-*")) == before:
            assert process.poll() is None and time.monotonic() < deadline, process.stderr
            time.sleep(0.01)
        process.send_signal(number)
        _, errors = process.communicate(timeout=600)
        assert process.returncode == (-9 if number == signal.SIGKILL else 130), errors
    assert b"resume with --state" in errors
    assert penstock("run", mixture, "--dump", parts, "--state", state).exit_code == 0
    assert parts.read_text() == whole.read_text()


def test_a_foreign_state_is_refused(mixture: Path, penstock: Penstock, tmp_path: Path) -> None:
    state = tmp_path / "run"
    ps.save(state, iter(ps.from_sequence(range(5))))
    before = read_states(state)
    result = penstock("run", mixture, "--state", state)
    assert result.exit_code == 2 and "of another pipeline" in result.stderr
    assert read_states(state) == before
    result = penstock("run", mixture, "--state", mixture)
    assert result.exit_code == 2 and "is a file; give the folder" in result.stderr


def test_a_bad_sample_stops_it_or_is_set_aside(mixture: Path, penstock: Penstock) -> None:
    rows = (mixture.parent / "code.jsonl").read_text().splitlines()
    rows[5] = '{"text": '
    (mixture.parent / "code.jsonl").write_text("\n".join(rows) + "\n")
    assert penstock("run", mixture).exit_code == 2
    found = json.loads(
        penstock("run", mixture, "--steps", 400, "--on-error", "quarantine", "--json").stdout
    )
    assert found["errors"] == 1 and found["steps"] == 300, "it ends at the horizon"
    assert penstock("run", mixture, "--on-error", "ignore").exit_code == 2


def test_tokens_are_counted_where_there_are_some() -> None:
    assert count_tokens({"tokens": np.zeros((2, 8), np.int32), "segment_ids": np.eye(2, 8)}) == 2
    assert count_tokens({"ids": np.zeros((2, 8), np.int64), "score": np.zeros(4)}) == 16
    assert count_tokens(["a", 3, None]) == 0


def test_a_run_of_several_ranks_has_the_steps_of_its_plan(
    mixture: Path, penstock: Penstock, tmp_path: Path
) -> None:
    mixture.write_text(
        mixture.read_text()
        .replace("size: 8", "size: 4, ranks: 3")
        .replace("steps: 300", "samples: 100")
    )
    ran = json.loads(penstock("run", mixture, "--dump", tmp_path / "keys.jsonl", "--json").stdout)
    told = json.loads(penstock("plan", mixture, "--json").stdout)
    assert (
        ran["steps"]
        == told["steps"]
        == len((tmp_path / "keys.jsonl").read_text().splitlines())
        == 8
    )


@pytest.mark.parametrize(
    ("lengths", "unit"), [("lengths: ids, ", "tokens"), ("columns: [ids], ", "documents")]
)
def test_shares_and_what_is_asked_for_are_of_one_unit(
    lengths: str, unit: str, penstock: Penstock, tmp_path: Path
) -> None:
    for name, size in (("long", 90), ("short", 10)):
        pq.write_table(pa.table({"ids": [list(range(size))] * 400}), tmp_path / f"{name}.parquet")
    path = tmp_path / "packed.yaml"
    sources = "".join(
        f"  {name}: {{path: {name}.parquet, {lengths}weight: 1}}\n" for name in ("long", "short")
    )
    path.write_text(
        f"pack: {{length: 32, method: concat_split}}\nhorizon: {{steps: 300}}\nsources:\n{sources}"
    )
    found = json.loads(penstock("run", path, "--json").stdout)
    assert found["unit"] == unit
    for source in found["sources"].values():
        assert source["share"] == pytest.approx(source["requested"], abs=0.1)
    assert found["sources"]["long"]["requested"] == pytest.approx(
        0.9 if unit == "tokens" else 0.5, abs=0.01
    )
    assert f"share of {unit}" in penstock("run", path).output
