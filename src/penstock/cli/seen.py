"""Commands `penstock seen` and `penstock leaks`: documents seen by a run, and leaked ones."""

from __future__ import annotations

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
    parse_mixture_file,
    print_result,
    print_table,
    print_text,
)


@handle_errors
def seen(
    mixture: MixtureArgument,
    before: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Count the steps before this one; default: up to the state, or the whole run.",
        ),
    ] = None,
    state: StateOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            parser=parse_local_path,
            metavar="PATH",
            help="A .parquet, .arrow, .csv or .jsonl file, one record per document.",
        ),
    ] = None,
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count the documents seen before a step or by a saved state.

    Prints distinct documents, their tokens, and how often each was seen.
    """
    from penstock.stores.outputs import writer

    target = open_run(mixture, state, allow=allow)
    target.require_separate_output(out, state)
    step = target.horizon(None) if before is None and state is None else before
    if step is not None and target.end is not None and step > target.end:
        raise ConfigError(
            f"--before {step}: the run ends at its horizon, after {target.end:,} steps"
        )
    seen_documents = target.rows.seen(step=step)
    if out is not None:
        with writer(out, seen_documents.schema) as write:
            for batch in seen_documents.batches():
                write(batch)
    documents, samples, tokens, repeats = (
        seen_documents.documents,
        seen_documents.samples,
        seen_documents.tokens,
        seen_documents.repeats(),
    )
    result = {
        "mixture": str(mixture),
        "unit": target.unit,
        "before": step,
        "samples": sum(samples.values()),
        "documents": sum(documents.values()),
        "tokens": sum(tokens.values()) if tokens else None,
        "repeats": [{"times": times, "documents": count} for times, count in repeats.items()],
        "sources": [
            {
                "source": name,
                "size": target.sizes.get(name),
                "samples": samples[name],
                "documents": documents[name],
                "tokens": tokens.get(name),
                "most": int(times.max(initial=0)),
            }
            for name, times in zip(seen_documents.names, seen_documents.times, strict=True)
        ],
        "out": str(out) if out else None,
    }
    print_result(result, lambda console: _print_seen_documents(console, result), as_json)


def _print_seen_documents(console: Any, result: dict[str, Any]) -> None:
    from rich.table import Table

    scope = (
        "by the state"
        if result["before"] is None
        else f"before {result['unit']} {result['before']:,}"
    )
    tokens = "" if result["tokens"] is None else f", {result['tokens']:,} tokens in them"
    print_text(
        console,
        f"{result['documents']:,} different documents {scope} in {result['samples']:,} samples{tokens}",
    )
    table = Table(box=None, header_style="bold", pad_edge=False)
    columns = ["size", "samples", "documents", "tokens", "most"]
    if result["tokens"] is None:
        columns.remove("tokens")
    for name in ("source", *columns):
        table.add_column(name, justify="left" if name == "source" else "right")
    for row in result["sources"]:
        cells = [row[name] for name in columns]
        table.add_row(row["source"], *("" if cell is None else f"{cell:,}" for cell in cells))
    print_table(console, table)
    largest, bar_width = max((repeat["documents"] for repeat in result["repeats"]), default=1), 12
    for repeat in result["repeats"]:
        bar = "#" * max(1, repeat["documents"] * bar_width // largest)
        print_text(console, f"  {repeat['times']:>4} x  {repeat['documents']:>14,}  {bar}")
    if result["out"]:
        print_text(console, f"one record per document: {result['out']}")


@handle_errors
def leaks(
    mixture: MixtureArgument,
    other: Annotated[
        Path | None,
        typer.Argument(
            parser=parse_mixture_file,
            help="Mixture to compare with; default: the held-out part of MIXTURE.",
        ),
    ] = None,
    by: Annotated[
        str,
        typer.Option(
            help="Identity of documents: content, row (its file and number), or a column."
        ),
    ] = "content",
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find documents that two mixtures, or both sides of a split, share.

    Exit code 1 if there are any.
    """
    from penstock.report.inspect import leaks as find_leaks
    from penstock.report.target import open_target

    target = open_target(mixture, allow=allow)
    if other is None and not target.model.held_out().sources:
        raise ConfigError(
            f"{mixture}: the mixture has no split; name a second mixture to compare with"
        )
    other_target = (
        open_target(mixture, target.model.held_out())
        if other is None
        else open_target(other, allow=allow)
    )
    shared = find_leaks(target, other_target, by)
    result = {
        "mixture": str(mixture),
        "other": str(other) if other else "held_out",
        "by": by,
        "documents": sum(leak.documents for leak in shared),
        "leaks": [
            {
                "here": leak.here,
                "there": leak.there,
                "documents": leak.documents,
                "examples": [list(pair) for pair in leak.examples],
            }
            for leak in shared
        ],
    }

    def tell(console: Any) -> None:
        name = result["other"] if other else "the held-out part"
        if not shared:
            print_text(console, f"no document of {mixture} is also in {name}, by {by}")
        for leak in shared:
            pairs = ", ".join(
                f"{leak.here}[{index}] = {leak.there}[{other_index}]"
                for index, other_index in leak.examples
            )
            print_text(
                console, f"{leak.here} and {leak.there}: {leak.documents:,} in both, as {pairs}"
            )

    print_result(result, tell, as_json)
    raise typer.Exit(1 if shared else 0)
