"""The scripts under `examples/operations`: stopped, killed and started again, they train every batch.

Schedulers are replaced by small stand-ins. The batch script runs with a `srun` that starts ranks on
this machine, and a `scontrol` that notes its call.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from example_counts import is_soak
from penstock.engine.runtime.metrics import METRICS

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "examples" / "operations"
TRAIN = FOLDER / "train.py"
STEPS = 60


def environment(**variables: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), **variables}


def start(folder: Path, rank: int = 0, world_size: int = 1, seconds: float = 0.01) -> Any:
    return subprocess.Popen(
        [
            sys.executable,
            TRAIN,
            "--folder",
            folder,
            "--steps",
            str(STEPS),
            "--seconds",
            f"{seconds}",
        ],
        env=environment(RANK=str(rank), WORLD_SIZE=str(world_size)),
        stderr=subprocess.PIPE,
        text=True,
    )


def read_log(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def wait_for_steps(folder: Path, count: int, ranks: Sequence[int] = (0,)) -> None:
    """Return once all ranks have trained some steps; it polls the journals of other processes."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        paths = [folder / f"steps-{rank}.jsonl" for rank in ranks]
        if all(path.exists() and path.read_text().count("\n") >= count for path in paths):
            return
        time.sleep(0.02)
    raise AssertionError(f"no {count} steps in {folder}")


def trained(folder: Path) -> dict[int, list[int]]:
    """Return the batch of every step, of all ranks; a step that was done twice must be equal."""
    parts = dict[tuple[int, int], list[int]]()
    for path in sorted(folder.glob("steps-*.jsonl")):
        for line in path.read_text().splitlines():
            if not line.endswith("}"):
                continue  # cut off by the kill
            entry = json.loads(line)
            key = entry["step"], int(path.stem.partition("-")[2])
            assert parts.setdefault(key, entry["batch"]) == entry["batch"], key
    steps = dict[int, list[int]]()
    for (step, _), batch in sorted(parts.items()):
        steps.setdefault(step, []).extend(batch)
    return steps


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[int]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    run = start(folder, seconds=0)
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 0, errors
    steps = trained(folder)
    assert list(steps) == list(range(1, STEPS + 1))
    return steps


@pytest.mark.slow  # starts and kills processes
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *([signal.SIGINT, signal.SIGUSR1] if is_soak() else [])]
)
def test_stopped_within_the_grace_period_nothing_is_done_twice(
    number: signal.Signals, tmp_path: Path, undisturbed: dict[int, list[int]]
) -> None:
    run = start(tmp_path)
    wait_for_steps(tmp_path, 13)
    run.send_signal(number)
    _, errors = run.communicate(timeout=30)
    assert run.returncode == 75, errors
    log = read_log(errors)
    assert [entry["message"] for entry in log][-2:] == ["saved", "stopped"]
    stopped = log[-1]["step"]
    assert not (tmp_path / "complete").exists()
    run = start(tmp_path, seconds=0)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 0 and (tmp_path / "complete").exists(), errors
    assert read_log(errors)[0]["step"] == stopped
    assert trained(tmp_path) == undisturbed
    assert len((tmp_path / "steps-0.jsonl").read_text().splitlines()) == STEPS


@pytest.mark.slow
@pytest.mark.skipif(not is_soak(), reason="runs in make soak")
def test_killed_again_and_again_and_with_other_ranks(
    tmp_path: Path, undisturbed: dict[int, list[int]]
) -> None:
    """Two ranks are killed, then three are, then one ends the run."""
    for world_size, steps in ((2, 14), (3, 16)):
        ranks = [start(tmp_path, rank, world_size) for rank in range(world_size)]
        wait_for_steps(tmp_path, steps, range(world_size))
        for rank in ranks:
            rank.kill()
            rank.communicate(timeout=30)
            assert rank.returncode == -signal.SIGKILL
        # Another number of ranks shares the rows in another way, so the journals do not compare.
        for path in tmp_path.glob("steps-*.jsonl"):
            path.unlink()
    run = start(tmp_path, seconds=0)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 0, errors
    first = read_log(errors)[0]["step"]
    assert first >= 10
    steps = trained(tmp_path)
    assert steps == {step: undisturbed[step] for step in range(first + 1, STEPS + 1)}


SRUN = """#!{python}
import os, signal, subprocess, sys
command = [word for word in sys.argv[1:] if word != "--kill-on-bad-exit=0"]
ranks = [
    subprocess.Popen(
        command, env={{**os.environ, "SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "2"}}
    )
    for rank in range(2)
]
def forward(number, frame):
    for rank in ranks:
        rank.send_signal(number)
signal.signal(signal.SIGTERM, forward)
open(os.environ["SRUN_PID"], "w").write(str(os.getpid()))
codes = [rank.wait() for rank in ranks]
sys.exit(max(128 - code if code < 0 else code for code in codes))
"""
SCONTROL = '#!/bin/sh\necho "$@" >> "$SCONTROL_LOG"\n'


@pytest.mark.slow
def test_the_batch_script_is_requeued_until_the_run_is_complete(
    tmp_path: Path, undisturbed: dict[int, list[int]]
) -> None:
    programs, folder, requeued = tmp_path / "bin", tmp_path / "run", tmp_path / "requeued"
    programs.mkdir()
    for name, text in {"srun": SRUN.format(python=sys.executable), "scontrol": SCONTROL}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    variables = environment(
        PATH=f"{programs}:{os.environ['PATH']}",
        FOLDER=str(folder),
        STEPS=str(STEPS),
        TRAIN=str(TRAIN),
        LAUNCH=sys.executable,
        SLURM_JOB_ID="4711",
        SCONTROL_LOG=str(requeued),
        SRUN_PID=str(tmp_path / "pid"),
    )
    batch = FOLDER / "train.sbatch"
    for attempt, number in enumerate((signal.SIGTERM, signal.SIGKILL, None)):
        job = subprocess.Popen(
            ["bash", batch],
            env={**variables, "SLURM_RESTART_COUNT": str(attempt)},
            stderr=subprocess.PIPE,
            text=True,
        )
        if number is not None:
            wait_for_steps(folder, 13 * (attempt + 1), (0, 1))
        if number is signal.SIGTERM:
            os.kill(int((tmp_path / "pid").read_text()), number)
        elif number is signal.SIGKILL:
            srun = (tmp_path / "pid").read_text()
            children = Path(f"/proc/{srun}/task/{srun}/children").read_text().split()
            for child in children:
                os.kill(int(child), number)
        _, errors = job.communicate(timeout=60)
        assert job.returncode == 0, errors
    assert requeued.read_text().splitlines() == ["requeue 4711"] * 2
    assert (folder / "complete").exists()
    steps = trained(folder)  # each rank has its half of the rows of a step
    assert {step: sorted(batch) for step, batch in steps.items()} == {
        step: sorted(batch) for step, batch in undisturbed.items()
    }


def test_the_batch_script_does_not_requeue_an_error(tmp_path: Path) -> None:
    (tmp_path / "srun").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "scontrol").write_text(SCONTROL)
    for name in ("srun", "scontrol"):
        (tmp_path / name).chmod(0o755)
    variables = environment(
        PATH=f"{tmp_path}:{os.environ['PATH']}",
        FOLDER=str(tmp_path / "run"),
        SLURM_JOB_ID="1",
        SCONTROL_LOG=str(tmp_path / "requeued"),
    )
    ended = subprocess.run(["bash", FOLDER / "train.sbatch"], env=variables, capture_output=True)
    assert ended.returncode == 1 and not (tmp_path / "requeued").exists()


@pytest.mark.slow  # torch, two ranks
@pytest.mark.skipif(not is_soak(), reason="runs in make soak")
def test_torchrun_stops_all_ranks_at_one_step(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [str(TRAIN), "--distributed", "--folder", str(tmp_path), "--steps", "400"]
    run = subprocess.Popen(command, env=environment(OMP_NUM_THREADS="1"), stderr=subprocess.PIPE)
    wait_for_steps(tmp_path, 13, (0, 1))
    run.send_signal(signal.SIGTERM)
    _, errors = run.communicate(timeout=60)
    assert run.returncode != 0, errors  # torchrun reports the signal
    last = [
        json.loads((tmp_path / f"steps-{rank}.jsonl").read_text().splitlines()[-1])["step"]
        for rank in range(2)
    ]
    assert last[0] == last[1] < 400
    with ps.Loader(ps.from_sequence(range(1))) as loader, pytest.raises(ps.StateError):
        ps.restore(tmp_path / "data", loader)  # a state of this run is there
    states = sorted(path.name for path in (tmp_path / "data").glob(f"step-{last[0]}.*"))
    assert len(states) == 2


def test_every_metric_of_the_dashboard_exists() -> None:
    dashboard = json.loads((FOLDER / "grafana.json").read_text(encoding="utf-8"))
    names = set[str]()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            names |= set(re.findall(r"\bpenstock_\w+", target["expr"]))
    exported = {
        f"penstock_{name}{'_total' if grows else ''}" for name, (grows, _) in METRICS.items()
    }
    assert len(names) >= 12 and names <= exported, names - exported
    identifiers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(identifiers)) == len(identifiers)


def test_the_dashboard_finds_its_metrics_in_a_scrape() -> None:
    prometheus = pytest.importorskip("prometheus_client")
    from penstock.integrations.prometheus import LoaderCollector

    with ps.Loader(ps.from_sequence(range(10)).batch(2)) as loader:
        registry = prometheus.CollectorRegistry()
        registry.register(LoaderCollector({"train": loader}))
        _ = list(loader)
        text = prometheus.generate_latest(registry).decode()
    for name in ("items_total", "waited_seconds_total", "resident_bytes", "under_way", "epoch"):
        assert f"\npenstock_{name}{{" in text, name


def test_the_manifest_runs_the_script_and_handles_its_exit_code() -> None:
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load((FOLDER / "job.yaml").read_text(encoding="utf-8"))
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    spec = job["spec"]
    rules = [
        rule["onExitCodes"] for rule in spec["podFailurePolicy"]["rules"] if "onExitCodes" in rule
    ]
    assert rules == [{"operator": "In", "values": [75]}]
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never"  # a failure policy needs it
    assert spec["completions"] == spec["parallelism"]
    (container,) = pod["containers"]
    assert f"WORLD_SIZE={spec['completions']}" in container["args"][0]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
