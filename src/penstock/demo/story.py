"""The demo from beginning to end: make data, run, kill, resume, run again undisturbed, compare, draw."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from .data import Made, build
from .journal import Proof, Record, Tail, compare
from .picture import Chart, svg
from .pipeline import CAPS, SOURCES, plan, train_tokenizer
from .show import Board, Run, draw_shares
from .train import step_of


@dataclass(frozen=True)
class Settings:
    """How long, with how many hands, and where."""

    folder: Path
    steps: int = 600
    workers: tuple[int, int, int] = (2, 1, 3)  # before the kill, after it, and undisturbed
    save_every: int = 20


@dataclass(frozen=True)
class Outcome:
    """What the demo found."""

    proof: Proof
    killed_at: int
    resumed_from: int
    samples: dict[str, int]
    tokens: int
    seconds: float
    picture: Path
    settings: Settings

    def as_json(self) -> dict[str, Any]:
        """The outcome as plain values."""
        return {
            "equal_stream": self.proof.holds,
            "steps": self.settings.steps,
            "steps_equal": self.proof.equal,
            "steps_done_twice_equal": self.proof.again,
            "steps_different": self.proof.different,
            "steps_missing": self.proof.missing,
            "workers": self.settings.workers,
            "killed_at": self.killed_at,
            "resumed_from": self.resumed_from,
            "samples": self.samples,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 1),
            "first_digest": self.proof.first,
            "last_digest": self.proof.last,
            "picture": str(self.picture),
        }

    def tell(self, console: Console) -> None:
        """The outcome in words."""
        proof, (before, after, whole) = self.proof, self.settings.workers
        console.print()
        for kind, steps in (("DIFFERENT", proof.different), ("MISSING", proof.missing)):
            if steps:
                console.print(f"{kind} steps: {steps[:10]}{' ...' if len(steps) > 10 else ''}", style="bold red")
        console.print(
            f"{proof.equal} of {self.settings.steps} steps equal: {before} workers, killed at {self.killed_at}, "
            f"resumed from {self.resumed_from} with {after}, against {whole} workers never stopped",
            style="bold green" if proof.holds else "bold red",
            highlight=False,
            soft_wrap=True,
        )
        plain: list[str] = [
            f"{proof.again} steps were done twice, before the kill and after the resume, and came out equal",
            f"first batch  sha256 {proof.first}",
            f"last batch   sha256 {proof.last}",
            f"{self.tokens:,} tokens of {sum(self.samples.values()):,} samples a run, {self.seconds:.0f} s in all",
            f"shares over the run: {self.picture}",
        ]
        for line in plain:
            console.print(f"  {line}", highlight=False, soft_wrap=True)


class Failed(Exception):
    """A training process ended by itself and not well; the message holds what it said."""


def demo(settings: Settings, console: Console) -> Outcome:
    """Run the whole demo and return what it found; the caller decides what that means."""
    begin = time.monotonic()
    folder = settings.folder
    runs = folder / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    runs.mkdir(parents=True)
    made = _prepare(folder, console)
    sizes = {one.name: one.samples for one in made}
    with Board(settings.steps, sizes, CAPS, plan(sizes), console) as board:
        before, saved = _until_killed(settings, board)
        after = _resumed(settings, board, before, saved)
        whole = _undisturbed(settings, board, {record.step: record.digest for record in (*before, *after)})
        proof = compare(before, after, whole, settings.steps)
        board.say("every step equal" if proof.holds else "THE RUNS DIFFER")
    picture = folder / "shares.svg"
    killed, resumed = before[-1].step, after[0].step - 1
    events = {killed: f"killed at {killed}, resumed from {resumed}", **_used_up(whole, sizes)}
    chart = _chart(whole, sizes, events)
    picture.write_text(svg(chart, "Share of samples over the run"), encoding="utf-8")
    console.print()
    draw_shares(console, chart.real)
    samples = Counter[str]()
    for record in whole:
        samples.update(record.samples)
    return Outcome(
        proof=proof,
        killed_at=killed,
        resumed_from=resumed,
        samples=dict(samples),
        tokens=sum(record.tokens for record in whole),
        seconds=time.monotonic() - begin,
        picture=picture,
        settings=settings,
    )


# ---------------------------------------------------------------- the acts


def _prepare(folder: Path, console: Console) -> list[Made]:
    console.print(f"Data from this machine, into {folder}", style="bold", highlight=False)
    made: list[Made] = []
    for one in build(folder):
        console.print(
            f"  {one.name:<6} {one.samples:>6,} samples {one.text_bytes / 1e6:>5.1f} MB  {one.files} {one.format}",
            highlight=False,
        )
        made.append(one)
    start = time.monotonic()
    train_tokenizer(folder)
    console.print(f"  tokenizer trained in {time.monotonic() - start:.1f} s\n", highlight=False)
    return made


def _until_killed(settings: Settings, board: Board) -> tuple[list[Record], Path]:
    run = Run("first run", settings.workers[0], start=0)
    # Half-way, and between two saves, so that some steps are lost and must be done again.
    fatal = settings.steps // 2
    board.begin(run, {})
    with _child(settings, "first", run.workers) as (process, tail):
        for _ in _watch(process, tail, board):
            step = tail.records[-1].step if tail.records else 0
            if step >= fatal and step % settings.save_every >= settings.save_every // 4:
                break
        if process.poll() is not None:
            raise Failed("the first run was over before it could be killed; ask for more --steps")
        process.kill()
        process.wait()
    for record in tail.more():
        board.feed(record)
    if not tail.records:
        raise Failed("the first run wrote no step")
    run.note = f"killed at {run.step}"
    board.say(f"SIGKILL at step {run.step}; nothing was told, nothing was closed")
    return tail.records, max((settings.folder / "runs").glob("first-*.state.json"))


def _resumed(settings: Settings, board: Board, before: Sequence[Record], state: Path) -> list[Record]:
    step = step_of(state)
    run = Run("resumed", settings.workers[1], start=step, step=step)
    board.begin(run, _totals(before, step))
    with _child(settings, "resumed", run.workers, state) as (process, tail):
        for _ in _watch(process, tail, board):
            pass
    run.note, run.over = f"from {step}", True
    return tail.records


def _undisturbed(settings: Settings, board: Board, known: Mapping[int, str]) -> list[Record]:
    run = Run("untouched", settings.workers[2], start=0)
    board.begin(run, {})
    with _child(settings, "untouched", run.workers) as (process, tail):
        for _ in _watch(process, tail, board):
            equal = sum(known.get(record.step) == record.digest for record in tail.records)
            board.message = f"{equal} of {len(tail.records)} steps so far equal to those of the killed and resumed run"
    run.note, run.over = "never stopped", True
    return tail.records


def _totals(records: Sequence[Record], step: int) -> Counter[str]:
    totals = Counter[str]()
    for record in records[:step]:
        totals.update(record.samples)
    return totals


# ---------------------------------------------------------------- processes


@contextmanager
def _child(
    settings: Settings, name: str, workers: int, state: Path | None = None
) -> Generator[tuple[subprocess.Popen[bytes], Tail]]:
    """A training process; whatever happens here, it does not outlive the block."""
    run = settings.folder / "runs" / name
    command = [sys.executable, "-m", "penstock.demo.train", str(settings.folder), str(run)]
    command += ["--steps", str(settings.steps), "--workers", str(workers), "--save-every", str(settings.save_every)]
    command += ["--state", str(state)] if state else []
    # The loader brings the threads; more of the tokenizer's own would only be in their way.
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    with run.with_suffix(".err").open("wb") as errors:
        process = subprocess.Popen(command, stdout=errors, stderr=errors, stdin=subprocess.DEVNULL, env=environment)
        try:
            yield process, Tail(run.with_suffix(".jsonl"))
        finally:
            process.kill()
            process.wait()


def _watch(process: subprocess.Popen[bytes], tail: Tail, board: Board) -> Iterator[None]:
    """Feed the board until the process ends; raise if it ends badly."""
    while True:
        ended = process.poll() is not None
        for record in tail.more():
            board.feed(record)
        board.draw()
        yield
        if ended:
            break
        time.sleep(0.05)
    if process.returncode:
        raise Failed(f"a training process ended with exit code {process.returncode}\n{tail.errors()}")


# ---------------------------------------------------------------- the picture


def _used_up(records: Sequence[Record], sizes: Mapping[str, int]) -> dict[int, str]:
    """The step at which each capped source gave its last sample."""
    events: dict[int, str] = {}
    for name, cap in CAPS.items():
        left = int(cap * sizes[name])
        for record in records:
            left -= record.samples[name]
            if left <= 0:
                events[record.step] = f"{name} used up: {cap} epochs"
                break
    return events


def _chart(records: Sequence[Record], sizes: Mapping[str, int], events: Mapping[int, str], windows: int = 60) -> Chart:
    """Shares in windows of steps, beside the plan at each window's middle."""
    planned = plan(sizes)
    real: dict[str, list[float]] = {name: [] for name in SOURCES}
    wanted: dict[str, list[float]] = {name: [] for name in SOURCES}
    ends: list[int] = []
    position = 0
    width = -(-len(records) // windows)
    for start in range(0, len(records), width):
        counts = Counter[str]()
        for record in records[start : start + width]:
            counts.update(record.samples)
        ideal = planned(position + counts.total() // 2)
        position += counts.total()
        ends.append(records[min(start + width, len(records)) - 1].step)
        for name in SOURCES:
            real[name].append(counts[name] / max(1, counts.total()))
            wanted[name].append(ideal[name])
    return Chart(ends, real, wanted, events)
