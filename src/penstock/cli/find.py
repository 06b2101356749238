"""`penstock find`: when a sample is seen, by its number, its name, or words in it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.errors import ConfigError

from .say import Allow, Json, Mixture, State, answer, guarded, of_run, people, say

if TYPE_CHECKING:
    from penstock.engine.plan.records import Sample
    from penstock.report.target import Target

_FEW = 50  # steps
_TIMES = {0: "not", 1: "once", 2: "twice"}


@guarded
def find(
    mixture: Mixture,
    source: Annotated[str | None, typer.Argument(help="The name of a source.")] = None,
    index: Annotated[
        int | None, typer.Argument(min=0, help="The number of the sample in it.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="A key, id or url that the sample carries; or COLUMN=VALUE.")
    ] = None,
    words: Annotated[str | None, typer.Option(help="Words that it holds.")] = None,
    start: Annotated[int, typer.Option("--from", min=0, help="The first step looked at.")] = 0,
    until: Annotated[
        int | None, typer.Option("--to", help="The step to stop before; default: the whole run.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All steps, not the first fifty.")] = False,
    state: State = None,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """The steps at which a sample is seen: each is told as soon as it is known.

    By SOURCE INDEX; or, of all sources or one, by --name or --words: then their rows are read.
    """

    ways = sum(way is not None for way in (index, name, words))
    if ways != 1 or (index is not None and source is None):
        raise ConfigError("find: give SOURCE INDEX, or --name, or --words")
    target = of_run(mixture, state, allow=allow)
    stop = target.horizon(None) if until is None else until
    if stop <= start:
        raise ConfigError(f"--from {start} --to {stop}: no step lies between them")
    within = range(start, stop)
    samples = _samples(target, source, index, name, words)
    if as_json:
        told = [_told(target, source, index, within) for source, index in samples]
        return answer(
            {"unit": target.unit, "from": start, "to": stop, "samples": told}, lambda _: None, True
        )
    console, nothing = people(), True
    for its, number in samples:
        nothing, views = False, _views(target, its, number, within)
        first = list(islice(views, 1))
        say(console, f"{its}[{number}] in {target.unit}s {start:,} to {stop:,}")
        _say(chain(first, views), target, every)
    if nothing:
        say(console, f"no such sample in {'any source' if source is None else source}")


def _views(
    target: Target, source: str, index: int, within: range
) -> Iterator[tuple[int, Sample | None]]:
    """The steps at which a sample is seen; of packed rows, every piece of it."""
    for step, again in groupby(target.rows.finds(source, index, steps=within)):
        if not target.packed:
            yield from ((each, None) for each in again)
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


def _told(target: Target, source: str, index: int, within: range) -> dict[str, Any]:
    """Return the facts about a sample as plain values."""
    views = list(_views(target, source, index, within))
    found: dict[str, Any] = {
        "source": source,
        "index": index,
        "steps": sorted({step for step, _ in views}),
    }
    if not target.packed:
        return found | {"steps": [step for step, _ in views]}
    pieces = [
        {target.unit: step, "epoch": piece.epoch, "start": piece.start, "stop": piece.stop}
        for step, piece in views
        if piece is not None
    ]
    return found | {"passes": len({piece["epoch"] for piece in pieces}), "pieces": pieces}


def _say(views: Iterator[tuple[int, Sample | None]], target: Target, every: bool) -> None:
    from penstock.engine.graph.shown import counted

    seen, passes = 0, set[int]()
    for step, piece in views:
        if seen == _FEW and not every:
            print("  and more; all of them with --all")
            return
        part = (
            f", pass {piece.epoch:,}, tokens {piece.start:,} to {piece.stop:,}"
            if piece is not None
            else ""
        )
        print(f"  {target.unit} {step:,}{part}", flush=True)
        seen += 1
        if piece is not None:
            passes.add(piece.epoch)
    times = _TIMES.get(number := len(passes) if target.packed else seen, f"{number:,} times")
    print(f"  seen {times}" + (f", in {counted(seen, 'piece')}" if seen > number else ""))


def _samples(
    target: Any, source: str | None, index: int | None, name: str | None, words: str | None
) -> Iterator[tuple[str, int]]:
    from penstock.report.look import by_name, by_words

    if source is not None and index is not None:
        return iter([(source, index)])
    return (
        by_name(target, name, source) if name is not None else by_words(target, words or "", source)
    )
