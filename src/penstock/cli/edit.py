"""Command `penstock edit`: remove steps or samples from a run in progress."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.errors import ConfigError

from .common import (
    AllowOption,
    JsonOption,
    MixtureArgument,
    handle_errors,
    open_run,
    parse_local_path,
    print_result,
    print_text,
)


@handle_errors
def edit(
    mixture: MixtureArgument,
    state: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="Folder of the run's states.")
    ],
    skip: Annotated[
        list[str] | None,
        typer.Option(
            help="FIRST:STOP, steps to remove; repeatable. Steps are numbered as before this edit."
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="SOURCE:INDEX, a sample to remove; repeatable.")
    ] = None,
    exclude_from: Annotated[
        Path | None,
        typer.Option(
            exists=True, help='File of samples to remove, one JSON line ["SOURCE", INDEX] each.'
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            parser=parse_local_path,
            metavar="PATH",
            help="Folder for the new state; default: replace the state.",
        ),
    ] = None,
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove steps or samples from the rest of a run.

    The next sample of the same source replaces a removed sample; all other samples stay. A document
    that cannot be replaced is masked: it keeps its place in rows as padding.
    """
    from penstock.engine.base.shown import counted
    from penstock.mixture_files.exclude import read_keys
    from penstock.plan import mask_in_states
    from penstock.saves import read_states, write_state

    keys = [_parse_key(text) for text in exclude or []]
    if exclude_from is not None:
        keys += read_keys(exclude_from)
    if not (skip or keys):
        raise ConfigError("nothing to remove: give --skip, --exclude or --exclude-from")
    ranges = _parse_ranges(skip or [])
    step, states = read_states(state)
    target = open_run(mixture, None, allow=allow)
    if not target.indexed:
        if ranges:
            raise ConfigError(
                "--skip: this mixture packs rows during the run, so no later step is known; only "
                "--exclude and --exclude-from edit its states"
            )
        states, removals = mask_in_states(target.dataset.compiled, states, keys)
    else:
        before = plan = open_run(mixture, state, allow=allow).rows
        # From the last range to the first: skipping a range renumbers only the steps after it.
        for first, stop in reversed(ranges):
            plan = plan.skip(steps=range(first, stop))
        plan = plan.exclude(keys) if keys else plan
        states, removals = [plan.state], plan.removals[len(before.removals) :]
    state_folder = out or state
    for rank, edited in enumerate(states):
        write_state(state_folder, edited, rank, len(states), step)

    def tell(console: Any) -> None:
        steps = sum(stop - first for first, stop in ranges)
        print_text(
            console,
            f"{state_folder}: {counted(steps, 'step')} and {counted(len(keys), 'sample')} removed "
            "from the rest of the run",
        )
        if masked := sum(removal.how == "masked" for removal in removals):
            print_text(
                console,
                f"{counted(masked, 'document')} cannot be replaced, and will be padding in its row",
            )
        print_text(console, f"inspect it with: penstock at {mixture} STEP --state {state_folder}")

    print_result(
        {
            "state": str(state_folder),
            "skipped": skip or [],
            "excluded": [list(key) for key in keys],
            "removals": [asdict(removal) for removal in removals],
        },
        tell,
        as_json,
    )


def _parse_key(text: str) -> tuple[str, int]:
    """Parse `SOURCE:INDEX`."""
    source, sign, index = text.rpartition(":")
    if not sign or not index.isdecimal():
        raise ConfigError(f"--exclude {text}: write SOURCE:INDEX")
    return source, int(index)


def _parse_range(text: str) -> tuple[int, int]:
    """Parse `FIRST:STOP`."""
    first, _, stop = text.partition(":")
    if not (first.isdecimal() and stop.isdecimal() and int(first) < int(stop)):
        raise ConfigError(f"--skip {text}: write FIRST:STOP, two steps with FIRST < STOP")
    return int(first), int(stop)


def _parse_ranges(texts: list[str]) -> list[tuple[int, int]]:
    """Parse `FIRST:STOP` texts; return disjoint ranges in ascending order."""
    ranges = sorted((*_parse_range(text), text) for text in texts)
    for (_, stop, text), (first, _, next_text) in pairwise(ranges):
        if first < stop:
            raise ConfigError(
                f"--skip {text} and --skip {next_text}: both name step {first}; write ranges that do "
                "not overlap"
            )
    return [(first, stop) for first, stop, _ in ranges]
