"""Command `penstock find`: the steps that deliver a sample."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.errors import ConfigError

from .common import (
    AllowOption,
    JsonOption,
    MixtureArgument,
    StateOption,
    handle_errors,
    make_console,
    open_run,
    print_result,
    print_text,
)

if TYPE_CHECKING:
    from penstock.engine.plan.records import Sample
    from penstock.report.target import Target

_MAX_STEPS = 50  # steps
_COUNT_WORDS = {1: "once", 2: "twice"}


@handle_errors
def find(
    mixture: MixtureArgument,
    source: Annotated[str | None, typer.Argument(help="Name of a source.")] = None,
    index: Annotated[
        int | None, typer.Argument(min=0, help="Index of the sample in the source.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Key, id or url of the sample; or COLUMN=VALUE.")
    ] = None,
    words: Annotated[str | None, typer.Option(help="Text that the sample contains.")] = None,
    start: Annotated[int, typer.Option("--from", min=0, help="First step to search.")] = 0,
    until: Annotated[
        int | None,
        typer.Option(
            "--to", help="Step to stop before, at most the end of the run; default: that end."
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Print all steps, not only the first fifty.")
    ] = False,
    state: StateOption = None,
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the steps that deliver a sample.

    Select the sample by SOURCE INDEX, or by --name or --words in all sources or one; these options
    read the rows. Each step is printed as soon as it is known.
    """

    selector_count = sum(selector is not None for selector in (index, name, words))
    if selector_count != 1 or (index is not None and source is None):
        raise ConfigError("find: give SOURCE INDEX, or --name, or --words")
    target = open_run(mixture, state, allow=allow)
    stop = target.horizon(None) if until is None else until
    if target.end is not None:
        if start >= target.end:
            raise ConfigError(
                f"--from {start}: the run ends at its horizon, after {target.end:,} steps"
            )
        stop = min(stop, target.end)
    if stop <= start:
        raise ConfigError(f"--from {start} --to {stop}: the range is empty; give a later --to")
    steps = range(start, stop)
    samples = _select_samples(target, source, index, name, words)
    if as_json:
        results = [_describe_sample(target, source, index, steps) for source, index in samples]
        return print_result(
            {"unit": target.unit, "from": start, "to": stop, "samples": results},
            lambda _: None,
            True,
        )
    console, no_match = make_console(), True
    for sample_source, sample_index in samples:
        no_match, views = False, _iter_deliveries(target, sample_source, sample_index, steps)
        first = list(islice(views, 1))
        print_text(
            console, f"{sample_source}[{sample_index}] in {target.unit}s {start:,} to {stop:,}"
        )
        _print_views(chain(first, views), target, every)
    if no_match:
        print_text(console, f"no such sample in {'any source' if source is None else source}")


def _iter_deliveries(
    target: Target, source: str, index: int, steps: range
) -> Iterator[tuple[int, Sample | None]]:
    """Yield the steps that deliver a sample; for packed rows, one entry per piece."""
    for step, repeats in groupby(target.rows.iter_find(source, index, steps=steps)):
        if not target.packed:
            yield from ((repeated_step, None) for repeated_step in repeats)
            continue
        pieces = [
            sample
            for sample in target.rows.at(step=step)
            if (sample.source, sample.index) == (source, index)
        ]
        yield from (
            (step, piece)
            for piece in sorted(pieces, key=lambda piece: (piece.epoch, piece.start or 0))
        )


def _describe_sample(target: Target, source: str, index: int, within: range) -> dict[str, Any]:
    """Return the steps and pieces of a sample as JSON values."""
    views = list(_iter_deliveries(target, source, index, within))
    facts: dict[str, Any] = {
        "source": source,
        "index": index,
        "steps": sorted({step for step, _ in views}),
    }
    if not target.packed:
        return facts | {"steps": [step for step, _ in views]}
    pieces = [
        {target.unit: step, "epoch": piece.epoch, "start": piece.start, "stop": piece.stop}
        | ({"masked": True} if piece.masked else {})
        for step, piece in views
        if piece is not None
    ]
    return facts | {"passes": len({piece["epoch"] for piece in pieces}), "pieces": pieces}


def _print_views(views: Iterator[tuple[int, Sample | None]], target: Target, every: bool) -> None:
    """Print each step as soon as it is known, then the number of times."""
    from penstock.engine.base.shown import counted

    seen, passes = 0, set[int]()
    for step, piece in views:
        if seen == _MAX_STEPS and not every:
            print("  and more (--all prints them)")
            return
        part = (
            f", pass {piece.epoch:,}, tokens {piece.start:,} to {piece.stop:,}"
            + (", masked" if piece.masked else "")
            if piece is not None
            else ""
        )
        print(f"  {target.unit} {step:,}{part}", flush=True)
        seen += 1
        if piece is not None:
            passes.add(piece.epoch)
    if not seen:
        return print("  not seen")
    times = _COUNT_WORDS.get(number := len(passes) if target.packed else seen, f"{number:,} times")
    print(f"  seen {times}" + (f", in {counted(seen, 'piece')}" if seen > number else ""))


def _select_samples(
    target: Any, source: str | None, index: int | None, name: str | None, words: str | None
) -> Iterator[tuple[str, int]]:
    """Return source and index of the samples that the options select."""
    from penstock.report.inspect import find_by_name, find_by_words

    if source is not None and index is not None:
        return iter([(source, index)])
    return (
        find_by_name(target, name, source)
        if name is not None
        else find_by_words(target, words or "", source)
    )
