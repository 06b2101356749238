"""Runs the rows of the table, each in a process of its own, in turn, and collects what they
found."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from .measure import Scale
from .table import CASES, Row, peers

ROOT = Path(__file__).resolve().parent.parent
Key = tuple[str, str, str]


@dataclass
class Results:
    """Measurements by row, failures and absent libraries with their reasons."""

    numbers: dict[Key, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    words: dict[Key, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    failed: dict[Key, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    def add(self, answer: dict[str, Any]) -> None:
        key = (answer["peer"], answer["case"], answer["how"])
        if "failed" in answer:
            self.failed[key] = answer["failed"]
        for name, value in answer.get("found", {}).items():
            if isinstance(value, str):
                self.words[key][name] = value
            else:
                self.numbers[key][name].append(value)

    def middle(self, key: Key, metric: str) -> float | None:
        """The median over the rounds."""
        values = self.numbers.get(key, {}).get(metric)
        return median(values) if values else None

    def to_json(self) -> dict[str, Any]:
        def flat(table: Any) -> list[Any]:
            return [[*key, value] for key, value in table.items()]

        tables = {name: flat(getattr(self, name)) for name in ("numbers", "words", "failed")}
        return {**tables, "absent": self.absent}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Results:
        found = cls(absent=data["absent"])
        for name in ("numbers", "words", "failed"):
            for peer, case, how, value in data[name]:
                getattr(found, name)[peer, case, how] = value
        return found


class Runner:
    """Starts the children. A row that failed or took too long is not run again."""

    def __init__(self, scale: Scale, timeout: float, quiet: bool) -> None:
        self.scale, self.timeout, self.quiet, self.results = scale, timeout, quiet, Results()

    def ask(self, rows: list[Row], **more: Any) -> None:
        """One process that measures these rows one after the other."""
        rows = [row for row in rows if key_of(row) not in self.results.failed]
        if not rows:
            return
        order = {
            "rows": [[r.peer, r.case, r.how] for r in rows],
            "scale": asdict(self.scale),
            **more,
        }
        began = time.perf_counter()
        lines, said, ended = child(order, self.timeout)
        answers = [json.loads(line[1:]) for line in lines if line.startswith("@")]
        for answer in answers:
            self.results.add(answer)
        for row in rows[len(answers) :]:
            reason = "took too long" if ended is None else f"the process ended with {ended}: {said}"
            self.results.failed[key_of(row)] = reason
        if not self.quiet:
            for row in rows:
                sign = "failed" if key_of(row) in self.results.failed else "ok"
                place = more.get("step") or more.get("size") or ""
                print(
                    f"{time.perf_counter() - began:7.1f} s  {row.case:9} {row.name} {place} {sign}",
                    file=sys.stderr,
                )


def key_of(row: Row) -> Key:
    return row.peer, row.case, row.how


def child(order: dict[str, Any], timeout: float) -> tuple[list[str], str, int | None]:
    """A process in a session of its own: what a peer leaves running is ended with it, and cannot
    hold a pipe open."""
    env = {
        **os.environ,
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "PYTHONWARNINGS": "ignore",
    }
    env |= {"HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "JAX_PLATFORMS": "cpu"}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        args = [sys.executable, "-m", "bench.child", json.dumps(order)]
        process = subprocess.Popen(
            args, stdout=out, stderr=err, cwd=ROOT, env=env, start_new_session=True
        )
        ended: int | None
        try:
            ended = process.wait(timeout)
        except subprocess.TimeoutExpired:
            ended = None
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        out.seek(0)
        err.seek(0)
        said = err.read().strip().splitlines()
        return out.read().splitlines(), " ".join(said[-1:])[:300], ended


def absent(names: list[str], try_import: bool) -> dict[str, str]:
    """The peers that cannot be imported here, and what Python says about it."""
    found = dict[str, str]()
    for name in names:
        peer = peers()[name]
        if importlib.util.find_spec(peer.imports.partition(".")[0]) is None:
            found[name] = "not installed"
        elif try_import:
            code = f"from bench.table import peers; peers()[{name!r}].load()"
            done = subprocess.run(
                [sys.executable, "-W", "ignore", "-c", code],
                capture_output=True,
                text=True,
                cwd=ROOT,
            )
            if done.returncode:
                found[name] = " ".join(done.stderr.strip().splitlines()[-1:])[:300]
    return found


def chosen(only: list[str], who: list[str], without: dict[str, str]) -> Iterator[Row]:
    """The rows of these cases and peers (all when empty), in the order of the cases."""
    for case in CASES:
        for peer in peers().values():
            if peer.name not in without and (not who or peer.name in who or peer.name == "floor"):
                yield from (r for r in peer.rows if r.case == case and (not only or case in only))


def full(runner: Runner, rows: list[Row], rounds: int) -> None:
    """Every row in every round, in turn; what does not change from run to run only in the first."""
    for row in (r for r in rows if CASES[r.case].kind in ("kit", "resume")):
        runner.ask([row])
    steps = {
        key_of(row): [
            s
            for s in CASES["resume"].params
            if runner.results.middle(key_of(row), f"state_{s}") is not None
        ]
        for row in rows
        if row.case == "resume"
    }
    for number in range(rounds):
        runner.scale = replace(runner.scale, first=number == 0)
        for row in rows:
            kind = CASES[row.case].kind
            if kind in ("stream", "start", "workers"):
                runner.ask([row])
            elif kind == "resume":
                for step in steps[key_of(row)]:
                    runner.ask([row], step=step)
            elif kind == "memory" and number == 0:
                for size in CASES["memory"].params:
                    if size <= row.facts.get("most", size):
                        runner.ask([row], size=size)


def quick(runner: Runner, rows: list[Row]) -> None:
    """The quick rows: streams of one peer in one process, the rest in processes of their own."""
    chosen_rows = [row for row in rows if row.quick]
    by_peer: dict[str, list[Row]] = defaultdict(list)
    for row in chosen_rows:
        if CASES[row.case].kind in ("stream", "resume"):
            by_peer[row.peer].append(row)
    for group in by_peer.values():
        runner.ask(group)
    for row in chosen_rows:
        if row.case == "resume":
            for step in (1_000_000_000, 10_000, 10):
                if runner.results.middle(key_of(row), f"state_{step}") is not None:
                    runner.ask([row], step=step)
                    break
        elif row.case == "start":
            runner.ask([row])
        elif row.case == "memory":
            runner.ask([row], size=1_000_000_000)


def ratios(results: Results) -> dict[str, Any]:
    """Print the result of the quick run: ratios to the floor by case and peer, resume time and
    memory.
    """
    found: dict[str, Any] = defaultdict(dict)
    for (peer, case, _), metrics in results.numbers.items():
        best = max(metrics["ratio"], default=None) if "ratio" in metrics else None
        if best is not None:
            found[case][peer] = max(best, found[case].get(peer, 0.0))
        for metric, values in metrics.items():
            if metric.startswith(
                ("total_s_", "right_", "over_bare_", "import_s", "off_1e4", "fill")
            ):
                found[f"{case} {metric}"][peer] = median(values)
    for case in [c for c in found if c in CASES]:
        for peer, ratio in found[case].items():
            if peer not in ("penstock", "floor") and "penstock" in found[case]:
                found[f"{case} penstock over"][peer] = found[case]["penstock"] / ratio
    return {
        name: {peer: round(value, 5) for peer, value in row.items()} for name, row in found.items()
    }
