"""`penstock report`: a mixture file, or a run of it, as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .say import Allow, Json, Mixture, State, Steps, answer, guarded, here, of_run, say


@guarded
def report(
    mixture: Mixture,
    out: Annotated[
        Path,
        typer.Option("-o", "--out", parser=here, metavar="PATH", help="The page: a .html file."),
    ],
    steps: Steps = None,
    state: State = None,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """One page of HTML for a pull request: the plan as a picture and as a table, what is odd in it,
    the file itself.

    It needs no network and no script.
    """
    from penstock.report.whole import write

    target = of_run(mixture, state, allow=allow)
    horizon = target.horizon(steps)
    write(out, target, horizon)
    found = {"mixture": str(mixture), "unit": target.unit, "steps": horizon, "report": str(out)}
    answer(found, lambda console: say(console, f"report: {out}"), as_json)
