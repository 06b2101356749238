"""`penstock audit`: every sample of a stretch of steps, a line each."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.errors import ConfigError

from .say import Allow, Json, Mixture, State, answer, guarded, here, of_run, say, stretch

Stretch = Annotated[
    str | None, typer.Option("--steps", help="FIRST:STOP, steps from 0; default: the whole run.")
]


@guarded
def audit(
    mixture: Mixture,
    steps: Stretch = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            parser=here,
            metavar="PATH",
            help="A .parquet, .arrow, .csv or .jsonl file; default: lines here.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(help="The column that names samples (url; __key__ in archives): it is read."),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            min=1, help="Ranks that share a global_batch_size; with --state, those of the run."
        ),
    ] = None,
    state: State = None,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Every sample or part of a step, a line each: step, rank, row, source, epoch, index, key,
    file, row in it, tokens.

    Without -o JSON lines are printed. A file is there whole or not at all, also after Ctrl-C.
    """
    from penstock.engine.plan.lines import written

    if as_json and out is None:
        raise ConfigError(
            "--json prints what was written, and the lines are printed too: say where to, with -o"
        )
    target = of_run(mixture, state, ranks, allow=allow)
    taken = stretch(target, steps)
    lines = target.rows.audit(taken, key=key)
    if out is None:
        with written(sys.stdout.buffer, lines.schema, ".jsonl") as write:
            for batch in lines.batches():
                write(batch)
        return
    found = {
        "mixture": str(mixture),
        "unit": target.unit,
        "first": taken.start,
        "stop": taken.stop,
        "lines": lines.write(out),
        "out": str(out),
    }

    def tell(console: Any) -> None:
        said = f"{target.unit}s {taken.start:,} to {taken.stop:,}, {found['lines']:,} lines: {out}"
        say(console, said)

    answer(found, tell, as_json)
