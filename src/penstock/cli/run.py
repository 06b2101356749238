"""Command `penstock run`: drive a mixture as a training would, and measure it."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, cast

import typer

import penstock as ps

from .common import (
    AllowOption,
    JsonOption,
    MixtureArgument,
    StepsOption,
    handle_errors,
    parse_local_path,
    print_error,
    print_result,
    print_text,
)

if TYPE_CHECKING:
    from penstock.engine.streams.journal import OnError
    from penstock.report import Target

    from .live import Redraw, RunMeter


@handle_errors
def run(
    mixture: MixtureArgument,
    steps: StepsOption = None,
    workers: Annotated[int, typer.Option(min=0, help="Prefetching threads.")] = 0,
    state: Annotated[
        Path | None,
        typer.Option(
            parser=parse_local_path,
            metavar="PATH",
            help="Folder of states: resume from it and save to it.",
        ),
    ] = None,
    save_every: Annotated[int, typer.Option(min=1, help="Steps between saves.")] = 1_000,
    pause: Annotated[
        float, typer.Option(min=0, help="Seconds per simulated training step, to measure stalls.")
    ] = 0.0,
    dump: Annotated[
        Path | None,
        typer.Option(
            parser=parse_local_path,
            metavar="PATH",
            help="File for the sample keys of every step, as JSON lines.",
        ),
    ] = None,
    stats: Annotated[
        Path | None,
        typer.Option(
            parser=parse_local_path,
            metavar="PATH",
            help="File for the figures of the run, which `penstock top` shows.",
        ),
    ] = None,
    on_error: Annotated[
        str, typer.Option(help="Policy for bad samples: raise or quarantine.")
    ] = "raise",
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Drive a mixture as a training would, and measure its speed.

    Shows progress, throughput, shares, stalls and memory. Ctrl-C saves the state and stops; the
    next run with the same --state resumes.
    """
    from rich.console import Console

    from penstock.arguments import check_choice
    from penstock.engine.streams.journal import POLICIES
    from penstock.report.target import open_target

    from .live import RunMeter, show_live_totals

    check_choice(on_error, POLICIES, "--on-error {}")
    target = _merge_ranks(open_target(mixture, allow=allow))
    for output in (dump, stats):
        target.require_separate_output(output)
    policy = cast("OnError", on_error)
    console = Console(stderr=True, quiet=as_json, highlight=False)
    with ExitStack() as stack:
        loader = stack.enter_context(
            ps.Loader(
                target.dataset,
                workers=workers,
                rank=0,
                world_size=1,
                on_error=policy,
                stats=stats,
            )
        )
        first = (ps.restore(state, loader) or 0) if state else 0
        file = stack.enter_context(_open_dump(dump, first))
        if state and first and target.indexed:  # removed steps shorten the run
            plan = target.plan.for_state(state)
            target = replace(target, plan=plan, rows=plan.rows())
        last = max(first, _compute_last_step(target, steps))
        meter = RunMeter(target, first, last)
        finished = _take_steps(
            loader,
            meter,
            file,
            stack.enter_context(show_live_totals(meter, console)),
            SimulatedTraining(state, save_every, pause),
        )
        _save_state(loader, state, meter.step)
        result = meter.figures(loader.stats())
    result |= {
        "mixture": str(mixture),
        "finished": finished,
        "state": str(state) if state else None,
    }

    def tell(out: Console) -> None:
        if first and first == last:
            print_text(
                out,
                f"nothing to do: the state in {state} is after step {first:,}, "
                f"{_explain_finish(target, steps)}",
            )
        else:
            meter.print_summary(out, result)

    print_result(result, tell, as_json)
    if not finished:
        raise print_error(
            f"stopped before step {meter.step:,}"
            + (f"; resume with --state {state}" if state else ""),
            130,
        )


@dataclass(frozen=True)
class SimulatedTraining:
    """Actions of the simulated training beside taking steps."""

    state: Path | None
    save_every: int
    pause: float


def _merge_ranks(target: Target) -> Target:
    """Return the target as one process runs it: one batch holds the rows of all ranks."""
    from penstock.report.target import open_target
    from penstock.schedule import Schedule

    batch = target.model.batch
    if batch is None or batch.ranks == 1 or isinstance(batch.size, Schedule):
        return target
    global_batch = replace(batch, size=batch.size * batch.ranks, ranks=1, over_ranks=True)
    return open_target(target.path, replace(target.model, batch=global_batch))


def _take_steps(
    loader: ps.Loader,
    meter: RunMeter,
    dump: IO[str] | None,
    redraw: Redraw,
    training: SimulatedTraining,
) -> bool:
    """Take steps up to the last one or the end of the data; return False after Ctrl-C."""
    from penstock.engine.base.seams import world

    try:
        for item in _yield_until_interrupt(_iter_items(loader, meter)):
            if dump is not None:
                dump.write(json.dumps({"step": meter.step, "keys": loader.keys()}) + "\n")
            meter.count_step(item, loader.keys)
            redraw(loader)
            if training.pause:
                world.sched.sleep(training.pause)
            if meter.step % training.save_every == 0:
                # Flush the keys first: a saved state must never be ahead of the dump.
                if dump is not None:
                    dump.flush()
                    os.fsync(dump.fileno())
                _save_state(loader, training.state, meter.step)
    except KeyboardInterrupt:
        return False
    return True


def _yield_until_interrupt(items: Iterator[Any]) -> Iterator[Any]:
    """Yield the items; the first Ctrl-C takes effect after the step, the second at once."""
    if threading.current_thread() is not threading.main_thread():
        yield from items
        return
    interrupted = False

    def on_interrupt(*_: Any) -> None:
        nonlocal interrupted
        if interrupted:
            raise KeyboardInterrupt
        interrupted = True

    old_handler = signal.signal(signal.SIGINT, on_interrupt)
    try:
        for item in items:
            yield item
            if interrupted:
                raise KeyboardInterrupt
    finally:
        signal.signal(signal.SIGINT, old_handler)


def _iter_items(loader: ps.Loader, meter: RunMeter) -> Iterator[Any]:
    """Yield items up to the last step or the horizon; without a horizon, repeat passes."""
    while meter.step < meter.last:
        first_step = meter.step
        for item in loader:
            yield item
            if meter.step >= meter.last:
                return
        if meter.step == first_step:
            raise ps.DataError(
                "a pass over the data gave no item: every sample was skipped or filtered out",
                where="the mixture",
            )
        if meter.target.model.horizon is not None:
            return


def _compute_last_step(target: Target, steps: int | None) -> int:
    """Return the step to stop before: `steps`, but at most the horizon."""
    if steps is None:
        return _count_described_steps(target)
    # Without a horizon, passes repeat until --steps.
    return (
        min(steps, _count_described_steps(target))
        if target.indexed and target.model.horizon is not None
        else steps
    )


def _explain_finish(target: Target, steps: int | None) -> str:
    """Explain why no step is left."""
    end = _compute_last_step(target, steps)
    return (
        f"and --steps {steps} ends at or before it"
        if end == steps
        else f"and the run ends after {end:,}"
    )


def _count_described_steps(target: Target) -> int:
    """Return the number of items of the run that the file describes: steps, if it makes batches."""
    from penstock.mixture_files.horizon import count_steps

    if target.indexed or (steps := count_steps(target.model)) is None:
        return target.horizon(None)
    return steps


def _save_state(loader: ps.Loader, state: Path | None, step: int) -> None:
    if state is not None:
        ps.save(state, loader, step=step, keep=1)


@contextmanager
def _open_dump(path: Path | None, first: int) -> Generator[IO[str] | None]:
    """Open the dump of keys; keep the lines before the step at which the run resumes."""
    if path is None:
        yield None
        return
    from penstock.stores.outputs import open_output

    path.parent.mkdir(parents=True, exist_ok=True)
    resumes = bool(first) and path.is_file()
    if resumes:
        saved_lines = list[str]()
        # Drop steps after the state: a killed run may have dumped steps that it did not save.
        try:
            for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
                if line.endswith("\n") and json.loads(line)["step"] < first:
                    saved_lines.append(line)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ps.ConfigError(
                f"{path}: not a file of --dump, so the run cannot continue it; name another file"
            ) from None
        # A crash or a full disk between truncating and writing would lose the steps of the past.
        with open_output(path) as output:
            output.writelines(line.encode() for line in saved_lines)
    with path.open("a" if resumes else "w", encoding="utf-8") as file:
        yield file
