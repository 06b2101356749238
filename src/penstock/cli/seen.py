"""`penstock seen` and `penstock leaks`: which documents a run has seen, and which of them it should
not have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.errors import ConfigError

from .say import Allow, Json, Mixture, State, answer, guarded, here, mixture_file, of_run, put, say


@guarded
def seen(
    mixture: Mixture,
    before: Annotated[
        int | None,
        typer.Option(
            min=0, help="The step before which it is; default: the state, or the whole run."
        ),
    ] = None,
    state: State = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            parser=here,
            metavar="PATH",
            help="A .parquet, .arrow, .csv or .jsonl file: a line a document.",
        ),
    ] = None,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Documents seen before a step, or by a state: how many different ones, their tokens, how often
    each."""
    from penstock.engine.plan.lines import writer

    target = of_run(mixture, state, allow=allow)
    step = target.horizon(None) if before is None and state is None else before
    found = target.rows.seen(step=step)
    if out is not None:
        with writer(out, found.schema) as write:
            for batch in found.batches():
                write(batch)
    documents, samples, tokens, repeats = (
        found.documents,
        found.samples,
        found.tokens,
        found.repeats(),
    )
    told = {
        "mixture": str(mixture),
        "unit": target.unit,
        "before": step,
        "samples": sum(samples.values()),
        "documents": sum(documents.values()),
        "tokens": sum(tokens.values()) if tokens else None,
        "repeats": [{"times": times, "documents": many} for times, many in repeats.items()],
        "sources": [
            {
                "source": name,
                "size": target.sizes.get(name),
                "samples": samples[name],
                "documents": documents[name],
                "tokens": tokens.get(name),
                "most": int(times.max(initial=0)),
            }
            for name, times in zip(found.names, found.times, strict=True)
        ],
        "out": str(out) if out else None,
    }
    answer(told, lambda console: _tell(console, told), as_json)


def _tell(console: Any, told: dict[str, Any]) -> None:
    from rich.table import Table

    where = (
        "by the state" if told["before"] is None else f"before {told['unit']} {told['before']:,}"
    )
    tokens = "" if told["tokens"] is None else f", {told['tokens']:,} tokens in them"
    say(
        console,
        f"{told['documents']:,} different documents {where} in {told['samples']:,} samples{tokens}",
    )
    made = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("source", "size", "samples", "documents", "tokens", "most"):
        made.add_column(name, justify="left" if name == "source" else "right")
    for row in told["sources"]:
        cells = [row[name] for name in ("size", "samples", "documents", "tokens", "most")]
        made.add_row(row["source"], *("" if cell is None else f"{cell:,}" for cell in cells))
    put(console, made)
    most, wide = max((one["documents"] for one in told["repeats"]), default=1), 12
    for one in told["repeats"]:
        bar = "#" * max(1, one["documents"] * wide // most)
        say(console, f"  {one['times']:>4} x  {one['documents']:>14,}  {bar}")
    if told["out"]:
        say(console, f"a line a document: {told['out']}")


@guarded
def leaks(
    mixture: Mixture,
    other: Annotated[
        Path | None,
        typer.Argument(parser=mixture_file, help="Another; default: what the file holds out."),
    ] = None,
    by: Annotated[
        str,
        typer.Option(
            help="What tells documents apart: content, place (file and row), or a column."
        ),
    ] = "content",
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Documents that two mixtures, or the two sides of a split, both give. Exit code 1 if there are
    some."""
    from penstock.report.look import leaks as common
    from penstock.report.target import opened

    one = opened(mixture, allow=allow)
    if other is None and not one.model.held_out().sources:
        raise ConfigError(f"{mixture}: it has no split; name another mixture to compare it with")
    two = opened(mixture, one.model.held_out()) if other is None else opened(other, allow=allow)
    found = common(one, two, by)
    told = {
        "mixture": str(mixture),
        "other": str(other) if other else "held_out",
        "by": by,
        "documents": sum(leak.documents for leak in found),
        "leaks": [
            {
                "here": leak.here,
                "there": leak.there,
                "documents": leak.documents,
                "examples": [list(pair) for pair in leak.examples],
            }
            for leak in found
        ],
    }

    def tell(console: Any) -> None:
        name = told["other"] if other else "what is held out"
        if not found:
            say(console, f"no document of {mixture} is in {name} too, by {by}")
        for leak in found:
            pairs = ", ".join(f"{leak.here}[{a}] = {leak.there}[{b}]" for a, b in leak.examples)
            say(console, f"{leak.here} and {leak.there}: {leak.documents:,} in both, as {pairs}")

    answer(told, tell, as_json)
    raise typer.Exit(1 if found else 0)
