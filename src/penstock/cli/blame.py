"""`penstock blame`: what is unusual in some steps of a run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from .say import Allow, Json, Mixture, State, answer, guarded, of_run, say, stretch


@guarded
def blame(
    mixture: Mixture,
    steps: Annotated[
        str, typer.Option("--steps", help="FIRST:STOP, the steps that are asked about.")
    ],
    state: State = None,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """What is unusual in some steps against the run, the most unusual first.

    Shares of sources, lengths of documents, repeats, files and passes, each beside what is usual.
    """
    from penstock.report.blame import blame as found_in

    target = of_run(mixture, state, allow=allow)
    asked = stretch(target, steps)
    found = found_in(target, asked)

    def tell(console: Any) -> None:
        for one in found:
            say(console, f"{one.source}: {one.text}")
        if not found:
            say(console, f"nothing unusual in {target.unit}s {asked.start:,} to {asked.stop:,}")

    told = {
        "mixture": str(mixture),
        "unit": target.unit,
        "first": asked.start,
        "stop": asked.stop,
        "findings": [asdict(one) for one in found],
    }
    answer(told, tell, as_json)
