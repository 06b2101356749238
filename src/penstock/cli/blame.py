"""Command `penstock blame`: anomalies in a range of steps."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from .common import (
    AllowOption,
    JsonOption,
    MixtureArgument,
    StateOption,
    handle_errors,
    open_run,
    parse_steps,
    print_result,
    print_text,
)


@handle_errors
def blame(
    mixture: MixtureArgument,
    steps: Annotated[str, typer.Option("--steps", help="FIRST:STOP, the steps to examine.")],
    state: StateOption = None,
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Report anomalies of some steps, the strongest first.

    Compares shares of sources, lengths of documents, repeats, files and passes with the rest of the
    run.
    """
    from penstock.report.blame import blame as find_anomalies

    target = open_run(mixture, state, allow=allow)
    step_range = parse_steps(target, steps)
    findings = find_anomalies(target, step_range)

    def tell(console: Any) -> None:
        for finding in findings:
            print_text(console, f"{finding.source}: {finding.text}")
        if not findings:
            print_text(
                console,
                f"nothing unusual in {target.unit}s {step_range.start:,} to {step_range.stop:,}",
            )

    result = {
        "mixture": str(mixture),
        "unit": target.unit,
        "first": step_range.start,
        "stop": step_range.stop,
        "findings": [asdict(finding) for finding in findings],
    }
    print_result(result, tell, as_json)
