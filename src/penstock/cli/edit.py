"""`penstock edit`: steps left out, and documents, in a run that is under way."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.errors import ConfigError

from .say import Allow, Json, Mixture, answer, guarded, here, of_run, say


@guarded
def edit(
    mixture: Mixture,
    state: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="The folder of the run's states.")
    ],
    skip: Annotated[
        list[str] | None,
        typer.Option(
            help="FIRST:STOP, steps to leave out, as often as needed; numbered as they are before "
            "this edit."
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="SOURCE:INDEX, a sample to leave out.")
    ] = None,
    exclude_from: Annotated[
        Path | None,
        typer.Option(
            exists=True, help='Samples to leave out: a JSON line ["SOURCE", INDEX] for each.'
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            parser=here,
            metavar="PATH",
            help="A folder for the new state; default: in its place.",
        ),
    ] = None,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Leave out steps or samples from here on. A sample's place goes to the next of its source; the
    rest stays."""
    from penstock.engine.runtime.saves import read_states, write_state
    from penstock.mixture_files.exclude import read_keys

    target = of_run(mixture, state, allow=allow)
    keys = [_key(text) for text in exclude or []]
    if exclude_from is not None:
        keys += read_keys(exclude_from)
    if not (skip or keys):
        raise ConfigError("nothing to leave out: give --skip, --exclude or --exclude-from")
    plan, ranges = target.rows, _ranges(skip or [])
    for first, stop in reversed(
        ranges
    ):  # what follows moves up, so those before it still mean the steps they named
        plan = plan.skip(steps=range(first, stop))
    plan = plan.exclude(keys) if keys else plan
    step, _ = read_states(state)
    written = out or state
    write_state(written, plan.state, 0, 1, step)

    def tell(console: Any) -> None:
        steps = sum(stop - first for first, stop in ranges)
        say(console, f"{written}: {steps:,} steps and {len(keys):,} samples left out from here on")
        say(console, f"see it with: penstock at {mixture} STEP --state {written}")

    answer(
        {"state": str(written), "skipped": skip or [], "excluded": [list(key) for key in keys]},
        tell,
        as_json,
    )


def _key(text: str) -> tuple[str, int]:
    source, sign, index = text.rpartition(":")
    if not sign or not index.isdecimal():
        raise ConfigError(f"--exclude {text}: write SOURCE:INDEX")
    return source, int(index)


def _range(text: str) -> tuple[int, int]:
    first, _, stop = text.partition(":")
    if not (first.isdecimal() and stop.isdecimal() and int(first) < int(stop)):
        raise ConfigError(
            f"--skip {text}: write FIRST:STOP, two steps, the second behind the first"
        )
    return int(first), int(stop)


def _ranges(texts: list[str]) -> list[tuple[int, int]]:
    """What is to be left out, in ascending order."""
    found = sorted((*_range(text), text) for text in texts)
    for (_, stop, one), (first, _, other) in pairwise(found):
        if first < stop:
            raise ConfigError(
                f"--skip {one} and --skip {other}: both name step {first}; write ranges that do "
                "not overlap"
            )
    return [(first, stop) for first, stop, _ in found]
