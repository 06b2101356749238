"""`penstock run`: take the steps of a mixture as a training would, and say how the data kept up."""

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

from .say import Allow, Json, Mixture, Steps, answer, guarded, here, say, stop

if TYPE_CHECKING:
    from penstock.engine.streams.journal import OnError
    from penstock.report import Target

    from .live import Meter, Redraw


@guarded
def run(
    mixture: Mixture,
    steps: Steps = None,
    workers: Annotated[int, typer.Option(min=0, help="Threads that compute ahead.")] = 0,
    state: Annotated[
        Path | None,
        typer.Option(
            parser=here,
            metavar="PATH",
            help="Go on from the state in this folder, and save it there.",
        ),
    ] = None,
    save_every: Annotated[int, typer.Option(min=1, help="Steps between two saves.")] = 1_000,
    pause: Annotated[
        float, typer.Option(min=0, help="Seconds that a training step takes, to see stalls.")
    ] = 0.0,
    dump: Annotated[
        Path | None,
        typer.Option(
            parser=here, metavar="PATH", help="Write the keys of every step here, as JSON lines."
        ),
    ] = None,
    on_error: Annotated[
        str, typer.Option(help="What a bad sample does: raise or quarantine.")
    ] = "raise",
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Drive a mixture as a training would, without the training: live progress, speed, shares,
    stalls, memory.

    Ctrl-C ends it well: the state is saved, and the next run with --state goes on from there.
    """
    from rich.console import Console

    from penstock.engine.base.hints import chosen
    from penstock.engine.streams.journal import POLICIES
    from penstock.report.target import opened

    from .live import Meter, live

    chosen(on_error, POLICIES, "--on-error {}")
    target = _together(opened(mixture, allow=allow))
    policy = cast("OnError", on_error)
    console = Console(stderr=True, quiet=as_json, highlight=False)
    with ExitStack() as stack:
        loader = stack.enter_context(
            ps.Loader(target.dataset, workers=workers, rank=0, world_size=1, on_error=policy)
        )
        first = (ps.restore(state, loader) or 0) if state else 0
        file = stack.enter_context(_written(dump, first))
        if state and first and target.whole:  # what was left out of the run makes it shorter
            plan = target.plan.after(state)
            target = replace(target, plan=plan, rows=plan.rows())
        last = max(first, _last(target, steps))
        meter = Meter(target, first, last)
        over = _driven(
            loader,
            meter,
            file,
            stack.enter_context(live(meter, console)),
            Habits(state, save_every, pause),
        )
        _save(loader, state, meter.step)
        found = meter.found(loader.stats())
    found |= {"mixture": str(mixture), "finished": over, "state": str(state) if state else None}

    def tell(out: Console) -> None:
        if first and first == last:
            say(
                out,
                f"nothing is left to do: the state in {state} is after step {first:,}, "
                f"{_why(target, steps)}",
            )
        else:
            meter.tell(out, found)

    answer(found, tell, as_json)
    if not over:
        raise stop(
            f"stopped before step {meter.step:,}"
            + (f"; go on with --state {state}" if state else ""),
            130,
        )


@dataclass(frozen=True)
class Habits:
    """What the training does beside taking steps."""

    state: Path | None
    save_every: int
    pause: float


def _together(target: Target) -> Target:
    """The run as one process takes it: a batch of it is what all ranks take in a step."""
    from penstock.report.target import opened

    batch = target.model.batch
    if batch is None or batch.ranks == 1:
        return target
    whole = replace(batch, size=batch.size * batch.ranks, ranks=1, over_ranks=True)
    return opened(target.path, replace(target.model, batch=whole))


def _driven(
    loader: ps.Loader, meter: Meter, dump: IO[str] | None, redraw: Redraw, habits: Habits
) -> bool:
    """Take steps until the last one, or the end of the data; False where Ctrl-C came first."""
    from penstock.engine.base.seams import world

    try:
        for item in _each(_passes(loader, meter)):
            if dump is not None:
                dump.write(json.dumps({"step": meter.step, "keys": loader.keys()}) + "\n")
            meter.took(item, loader.keys)
            redraw(loader)
            if habits.pause:
                world.sched.sleep(habits.pause)
            if meter.step % habits.save_every == 0:
                # What the state says was done must be in the file of keys, whatever happens next.
                if dump is not None:
                    dump.flush()
                    os.fsync(dump.fileno())
                _save(loader, habits.state, meter.step)
    except KeyboardInterrupt:
        return False
    return True


def _each(items: Iterator[Any]) -> Iterator[Any]:
    """The items. A first Ctrl-C waits for the end of a step: what was taken is written down. A
    second does not."""
    if threading.current_thread() is not threading.main_thread():
        yield from items
        return
    asked = False

    def hear(*_: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    before = signal.signal(signal.SIGINT, hear)
    try:
        for item in items:
            yield item
            if asked:
                raise KeyboardInterrupt
    finally:
        signal.signal(signal.SIGINT, before)


def _passes(loader: ps.Loader, meter: Meter) -> Iterator[Any]:
    """Item after item up to the last step, or to the horizon; without one, pass after pass."""
    while meter.step < meter.last:
        before = meter.step
        for item in loader:
            yield item
            if meter.step >= meter.last:
                return
        if meter.step == before:
            raise ps.DataError(
                "a whole pass gave no item: every sample was skipped or filtered out",
                where="the mixture",
            )
        if meter.target.model.horizon is not None:
            return


def _last(target: Target, steps: int | None) -> int:
    """The step to stop before: as asked, also where a state is gone on from, but no later than the
    horizon."""
    if steps is None:
        return _end(target)
    # Without a horizon the data is passed over again, for as long as is asked.
    return min(steps, _end(target)) if target.whole and target.model.horizon is not None else steps


def _why(target: Target, steps: int | None) -> str:
    end = _last(target, steps)
    return (
        f"and --steps {steps} ends there or before"
        if end == steps
        else f"and the run ends after {end:,}"
    )


def _end(target: Target) -> int:
    """The items of the run that the file describes: steps where it makes batches."""
    from penstock.mixture_files.horizon import steps_of

    if target.whole or (steps := steps_of(target.model)) is None:
        return target.horizon(None)
    return steps


def _save(loader: ps.Loader, state: Path | None, step: int) -> None:
    if state is not None:
        ps.save(state, loader, step=step, keep=1)


@contextmanager
def _written(path: Path | None, first: int) -> Generator[IO[str] | None]:
    """The file of keys: as far as the state that the run goes on from, and on from there."""
    if path is None:
        yield None
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = list[str]()
    if first and path.exists():
        # A run that was killed may have written steps that were not saved; they come again.
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n") and json.loads(line)["step"] < first:
                kept.append(line)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(kept)
        yield file
