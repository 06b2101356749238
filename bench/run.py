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


@dataclass(frozen=True)
class Task:
    """A measurement that a process of its own makes: some rows, in one round, with the parameter of
    its case."""

    rows: tuple[Row, ...]
    number: int = 0
    more: tuple[tuple[str, int], ...] = ()
    after: str = ""  # a figure of an earlier task without which there is nothing to measure

    @property
    def name(self) -> str:
        keys = ["/".join(key_of(row)) for row in self.rows]
        return f"{self.number} {self.more} {'; '.join(keys)}"


class Runner:
    """Starts the children. A row that failed or took too long is not run again.

    With `saved`, a file, what was found is written there after every task, and a runner that is
    given the file later continues behind the last task. The file is taken if `stamp` is equal.
    """

    def __init__(
        self,
        scale: Scale,
        timeout: float,
        quiet: bool,
        saved: Path | None = None,
        stamp: object = None,
    ) -> None:
        self.scale, self.timeout, self.quiet, self.results = scale, timeout, quiet, Results()
        self.saved, self.stamp, self.done = saved, stamp, set[str]()
        if saved is not None and saved.exists():
            data = json.loads(saved.read_text())
            if data["stamp"] == stamp:
                self.results, self.done = Results.from_json(data["results"]), set(data["done"])

    def run(self, tasks: list[Task], deadline: float | None = None) -> None:
        """Run the tasks that are left; those of later rounds only until the deadline."""
        left = [task for task in tasks if task.name not in self.done]
        if len(left) < len(tasks) and not self.quiet:
            skipped = len(tasks) - len(left)
            print(f"{skipped} of {len(tasks)} tasks were done before", file=sys.stderr)
        began = time.perf_counter()
        for number, task in enumerate(left, len(tasks) - len(left)):
            if task.number and deadline is not None and time.perf_counter() > deadline:
                print(f"out of time in round {task.number + 1}", file=sys.stderr)
                return
            middle = self.results.middle(key_of(task.rows[0]), task.after)
            if not task.after or middle is not None:
                taken = time.perf_counter() - began
                ran = number - (len(tasks) - len(left))
                rest = taken / ran * (len(tasks) - number) / 60 if ran else 0.0
                self.shown = f"{number + 1:4} of {len(tasks)}, {rest:3.0f} min left"
                self.scale = replace(self.scale, first=task.number == 0)
                self.ask(list(task.rows), **dict(task.more))
            self.done.add(task.name)
            self._keep()

    def _keep(self) -> None:
        if self.saved is not None:
            data = {
                "stamp": self.stamp,
                "done": sorted(self.done),
                "results": self.results.to_json(),
            }
            part = self.saved.with_suffix(".part")
            part.write_text(json.dumps(data))
            part.replace(self.saved)

    shown = ""  # how far the run is

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
                    f"{self.shown} {time.perf_counter() - began:6.1f} s  {row.case:9} {row.name} "
                    f"{place} {sign}",
                    file=sys.stderr,
                    flush=True,
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


def make_tasks(rows: list[Row], repeats: int) -> list[Task]:
    """Every row in every round, in turn; what does not change from run to run only in the first."""
    steps, sizes = CASES["resume"].params, CASES["memory"].params
    tasks = [Task((row,)) for row in rows if CASES[row.case].kind in ("kit", "resume")]
    for number in range(repeats):
        for row in rows:
            kind = CASES[row.case].kind
            if kind in ("stream", "start", "workers", "times"):
                tasks.append(Task((row,), number))
            elif kind == "resume":
                tasks += [Task((row,), number, (("step", s),), f"state_{s}") for s in steps]
            elif kind == "memory" and number == 0:
                most = row.facts.get("most", max(sizes))
                tasks += [Task((row,), 0, (("size", n),)) for n in sizes if n <= most]
    return tasks


def make_tiny_tasks(rows: list[Row]) -> list[Task]:
    """Every row once, those that need no process of their own in one for each peer."""
    tasks, step = list[Task](), CASES["resume"].params[0]
    for peer in dict.fromkeys(row.peer for row in rows):
        kinds = ("stream", "resume", "times")
        group = [r for r in rows if r.peer == peer and CASES[r.case].kind in kinds]
        tasks.append(Task(tuple(group)))
        tasks += [
            Task((row,), 0, (("step", step),), f"state_{step}")
            for row in group
            if CASES[row.case].kind == "resume"
        ]
    for row in rows:
        kind = CASES[row.case].kind
        if kind == "memory":
            tasks.append(Task((row,), 0, (("size", 100_000),)))
        elif kind in ("start", "workers", "kit"):
            tasks.append(Task((row,)))
    return [task for task in tasks if task.rows]


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
