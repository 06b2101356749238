"""Command `penstock audit`: one record for every sample of a range of steps."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.errors import ConfigError

from .common import (
    AllowOption,
    JsonOption,
    MixtureArgument,
    StateOption,
    handle_errors,
    open_run,
    parse_local_path,
    parse_steps,
    print_result,
    print_text,
)

StepRangeOption = Annotated[
    str | None,
    typer.Option("--steps", help="FIRST:STOP, steps counted from 0; default: the whole run."),
]


@handle_errors
def audit(
    mixture: MixtureArgument,
    steps: StepRangeOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            parser=parse_local_path,
            metavar="PATH",
            help="A .parquet, .arrow, .csv or .jsonl file; default: JSON lines on stdout.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            help="Column that identifies samples (such as url, or __key__ of archives); it is read."
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            min=1, help="World size for a global_batch_size; not with --state, which knows it."
        ),
    ] = None,
    state: StateOption = None,
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write one record per sample: step, rank, source, index, file.

    Without -o the records are printed as JSON lines. The file is written atomically, also if Ctrl-C
    stops the command.
    """
    from penstock.stores.outputs import written

    if as_json and out is None:
        raise ConfigError(
            "--json: stdout cannot hold both the result and the records; write the records to a "
            "file with -o"
        )
    target = open_run(mixture, state, ranks, allow=allow)
    target.require_separate_output(out, state)
    step_range = parse_steps(target, steps)
    lines = target.rows.audit(step_range, key=key)
    if out is None:
        with written(sys.stdout.buffer, lines.schema, ".jsonl") as write:
            for batch in lines.batches():
                write(batch)
        return
    result = {
        "mixture": str(mixture),
        "unit": target.unit,
        "first": step_range.start,
        "stop": step_range.stop,
        "lines": lines.write(out),
        "out": str(out),
    }

    def tell(console: Any) -> None:
        summary = f"{target.unit}s {step_range.start:,} to {step_range.stop:,}, {result['lines']:,} lines: {out}"
        print_text(console, summary)

    print_result(result, tell, as_json)
