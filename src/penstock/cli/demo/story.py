"""The demo: make data, run, kill, resume, run again undisturbed, compare, draw."""

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

import numpy as np
from rich.console import Console

from penstock.report import Target, open_target, rows, shares
from penstock.saves import read_states

from . import page
from .data import build
from .journal import JournalReader, Record, RunComparison, compare_runs
from .pipeline import tokenize, train_tokenizer, write_mixture
from .queries import PlanAnswers, query_plan
from .show import DemoProcess, DemoScreen, draw_shares
from .train import get_states_folder


@dataclass(frozen=True)
class DemoSettings:
    """Settings of the demo: folder, steps, workers and saves."""

    folder: Path
    steps: int = 400
    workers: tuple[int, int, int] = (2, 1, 3)  # before the kill, after it, and undisturbed
    save_every: int = 20


@dataclass(frozen=True)
class DemoResult:
    """Results of the demo."""

    proof: RunComparison
    answers: PlanAnswers
    killed_at: int
    resumed_from: int
    samples: dict[str, int]
    tokens: int
    seconds: float
    mixture: Path
    report: Path
    settings: DemoSettings

    @property
    def holds(self) -> bool:
        """True if the streams are equal and match the plan."""
        return self.proof.holds and self.answers.hold

    def as_json(self) -> dict[str, Any]:
        """Return the results as JSON values."""
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
            "steps_as_planned": self.settings.steps - len(self.answers.wrong_steps),
            "documents_asked": self.answers.queried,
            "documents_as_planned": self.answers.queried - len(self.answers.wrong_documents),
            "mixture": str(self.mixture),
            "report": str(self.report),
        }

    def tell(self, console: Console) -> None:
        """Print the results."""
        proof, (before, after, undisturbed) = self.proof, self.settings.workers
        console.print()
        for kind, steps in (("DIFFERENT", proof.different), ("MISSING", proof.missing)):
            if steps:
                console.print(
                    f"{kind} steps: {steps[:10]}{' ...' if len(steps) > 10 else ''}",
                    style="bold red",
                )
        console.print(
            f"{proof.equal} of {self.settings.steps} steps equal: {before} workers, killed at "
            f"{self.killed_at}, "
            f"resumed from {self.resumed_from} with {after}, against {undisturbed} workers never stopped",
            style="bold green" if proof.holds else "bold red",
            highlight=False,
            soft_wrap=True,
        )
        for line in self.facts():
            console.print(f"  {line}", highlight=False, soft_wrap=True)
        steps, documents = self.settings.steps, self.answers.queried
        console.print(
            f"{steps - len(self.answers.wrong_steps)} of {steps} steps match the plan; "
            f"{documents - len(self.answers.wrong_documents)} of {documents} documents were seen "
            "when it says",
            style="bold green" if self.answers.hold else "bold red",
            highlight=False,
            soft_wrap=True,
        )
        console.print(f"report with pictures: {self.report}", highlight=False, soft_wrap=True)

    def facts(self) -> list[str]:
        """Return the compared facts, line by line."""
        proof = self.proof
        return [
            f"{proof.again} steps were done twice, before the kill and after the resume, and came "
            "out equal",
            f"first batch  sha256 {proof.first}",
            f"last batch   sha256 {proof.last}",
            f"{self.tokens:,} tokens of {sum(self.samples.values()):,} samples a run, "
            f"{self.seconds:.0f} s in all",
        ]


class TrainingProcessError(Exception):
    """A training process failed; the message holds its stderr."""


def demo(settings: DemoSettings, console: Console) -> DemoResult:
    """Run the demo and return its results."""
    begin = time.monotonic()
    folder = settings.folder
    runs = folder / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    runs.mkdir(parents=True)
    target = _prepare_data(settings, console)
    with _create_screen(target, settings, console) as board:
        before, saved = _run_until_killed(settings, board)
        after = _resume_run(settings, board, before, saved)
        undisturbed = _run_undisturbed(
            settings, board, {record.step: record.digest for record in (*before, *after)}
        )
        proof = compare_runs(before, after, undisturbed, settings.steps)
        board.say("every step equal" if proof.holds else "THE RUNS DIFFER")
    killed, resumed = before[-1].step, after[0].step - 1
    answers = query_plan(target, undisturbed, min(killed, settings.steps - 1))
    samples = Counter[str]()
    for record in undisturbed:
        samples.update(record.samples)
    outcome = DemoResult(
        proof=proof,
        answers=answers,
        killed_at=killed,
        resumed_from=resumed,
        samples=dict(samples),
        tokens=sum(record.tokens for record in undisturbed),
        seconds=time.monotonic() - begin,
        mixture=target.path,
        report=folder / "report.html",
        settings=settings,
    )
    _show_results(outcome, target, undisturbed, console)
    return outcome


def _create_screen(target: Target, settings: DemoSettings, console: Console) -> DemoScreen:
    caps = {source.name: source.max_epochs for source in target.model.sources if source.max_epochs}
    return DemoScreen(settings.steps, target.sizes, caps, target.in_force, console)


def _show_results(
    outcome: DemoResult, target: Target, undisturbed: Sequence[Record], console: Console
) -> None:
    """Print the run as a picture and the answers, and write the report."""
    last = len(undisturbed)
    marks = {
        outcome.killed_at: f"killed at {outcome.killed_at}, resumed from {outcome.resumed_from}"
    }
    marks |= {
        exhaustion.ends: f"{name} used up"
        for name, exhaustion in target.exhaustion.items()
        if exhaustion.ends and exhaustion.ends < last
    }
    run = page.measure_run_counts(target, undisturbed)
    page.write(
        outcome.report, target, rows(target, last), run, marks, outcome.answers, outcome.facts()
    )
    delivered_tokens = np.diff(run.counts, axis=0)
    console.print("\nShare of the tokens over the run", style="bold")
    draw_shares(
        console,
        dict(
            zip(
                run.names,
                (delivered_tokens / delivered_tokens.sum(axis=1, keepdims=True)).T.tolist(),
                strict=True,
            )
        ),
    )
    console.print(
        f"\nWhat is in step {outcome.answers.step}? The plan says, before anything is read:",
        style="bold",
    )
    for line in outcome.answers.step_in_words()[:6]:
        console.print(f"  {line}", highlight=False, markup=False)
    if len(outcome.answers.samples) > 6:
        console.print(f"  and {len(outcome.answers.samples) - 6} more", highlight=False)
    console.print(
        f"When is a document seen? {outcome.answers.seen_in_words()}", highlight=False, markup=False
    )


# ---------------------------------------------------------------- runs


def _prepare_data(settings: DemoSettings, console: Console) -> Target:
    folder = settings.folder
    console.print(f"Data from this machine, into {folder}", style="bold", highlight=False)
    for source in build(folder):
        console.print(
            f"  {source.name:<6} {source.samples:>6,} samples {source.text_bytes / 1e6:>5.1f} MB  "
            f"{source.files} {source.format}",
            highlight=False,
        )
    start = time.monotonic()
    train_tokenizer(folder)
    trained = time.monotonic()
    tokens = tokenize(folder)
    console.print(f"  tokenizer trained in {trained - start:.1f} s", highlight=False)
    console.print(
        f"  {tokens:,} tokens written in {time.monotonic() - trained:.1f} s", highlight=False
    )
    target = open_target(write_mixture(folder, settings.steps))
    size = target.plan.size
    if size is not None and size < settings.steps:
        raise TrainingProcessError(
            f"the data lasts for {size} steps; lower --steps {settings.steps}"
        )
    console.print()
    title = f"The plan of {target.path}: {settings.steps} steps of 8 x 1,024 tokens"
    console.print(shares.table(rows(target, settings.steps), title, target.packed))
    console.print()
    return target


def _run_until_killed(settings: DemoSettings, board: DemoScreen) -> tuple[list[Record], Path]:
    run = DemoProcess("first run", settings.workers[0], start=0)
    # Kill half-way between two saves, so that some steps must be repeated. The process waits before
    # the second save, so that it is still running when the kill comes late.
    fatal = settings.steps // 2
    hold_at = (fatal // settings.save_every + 1) * settings.save_every - 1
    board.begin(run, {})
    with _start_training_process(settings, "first", run.workers, hold_at=hold_at) as (
        process,
        tail,
    ):
        for _ in _follow_process(process, tail, board):
            step = tail.records[-1].step if tail.records else 0
            if step >= fatal and step % settings.save_every >= settings.save_every // 4:
                break
        process.kill()
        process.wait()
    for record in tail.more():
        board.feed(record)
    run.note = f"killed at {run.step}"
    board.say(f"SIGKILL at step {run.step}; no cleanup ran")
    return tail.records, get_states_folder(settings.folder / "runs" / "first")


def _resume_run(
    settings: DemoSettings, board: DemoScreen, before: Sequence[Record], state: Path
) -> list[Record]:
    step, _ = read_states(state)
    run = DemoProcess("resumed", settings.workers[1], start=step, step=step)
    board.begin(run, _count_samples(before, step))
    with _start_training_process(settings, "resumed", run.workers, state) as (process, tail):
        for _ in _follow_process(process, tail, board):
            pass
    run.note, run.over = f"from {step}", True
    return tail.records


def _run_undisturbed(
    settings: DemoSettings, board: DemoScreen, known: Mapping[int, str]
) -> list[Record]:
    run = DemoProcess("untouched", settings.workers[2], start=0)
    board.begin(run, {})
    with _start_training_process(settings, "untouched", run.workers) as (process, tail):
        for _ in _follow_process(process, tail, board):
            equal = sum(known.get(record.step) == record.digest for record in tail.records)
            board.message = f"{equal} of {len(tail.records)} steps so far equal to those of the killed and resumed run"
    run.note, run.over = "never stopped", True
    return tail.records


def _count_samples(records: Sequence[Record], step: int) -> Counter[str]:
    totals = Counter[str]()
    for record in records[:step]:
        totals.update(record.samples)
    return totals


# ---------------------------------------------------------------- processes


@contextmanager
def _start_training_process(
    settings: DemoSettings,
    name: str,
    workers: int,
    state: Path | None = None,
    hold_at: int | None = None,
) -> Generator[tuple[subprocess.Popen[bytes], JournalReader]]:
    """Start a training process; kill it when the block ends."""
    run = settings.folder / "runs" / name
    command = [sys.executable, "-m", "penstock.cli.demo.train", str(settings.folder), str(run)]
    command += [
        "--steps",
        str(settings.steps),
        "--workers",
        str(workers),
        "--save-every",
        str(settings.save_every),
    ]
    command += ["--state", str(state)] if state else []
    command += ["--hold-at", str(hold_at)] if hold_at else []
    # Disable the tokenizer's own threads, which would compete with the loader's.
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    with (
        run.with_suffix(".err").open("wb") as errors,
        subprocess.Popen(
            command, stdout=errors, stderr=errors, stdin=subprocess.PIPE, env=environment
        ) as process,
    ):
        try:
            yield process, JournalReader(run.with_suffix(".jsonl"))
        finally:
            process.kill()


def _follow_process(
    process: subprocess.Popen[bytes], tail: JournalReader, board: DemoScreen
) -> Iterator[None]:
    """Update the board until the process ends; raise `TrainingProcessError` if it fails."""
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
        raise TrainingProcessError(
            f"a training process ended with exit code {process.returncode}\n{tail.errors()}"
        )
