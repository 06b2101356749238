"""`penstock find`: when a sample is seen, by its number, its name, or words in it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Annotated, Any

import typer

from penstock.errors import ConfigError

from .say import Allow, Json, Mixture, State, answer, guarded, of_run, people, say

_FEW = 50  # steps


@guarded
def find(
    mixture: Mixture,
    source: Annotated[str | None, typer.Argument(help="The name of a source.")] = None,
    index: Annotated[int | None, typer.Argument(min=0, help="The number of the sample in it.")] = None,
    name: Annotated[str | None, typer.Option(help="A key, id or url that the sample carries; or COLUMN=VALUE.")] = None,
    words: Annotated[str | None, typer.Option(help="Words that it holds.")] = None,
    start: Annotated[int, typer.Option("--from", min=0, help="The first step looked at.")] = 0,
    until: Annotated[int | None, typer.Option("--to", help="The step to stop before; default: the whole run.")] = None,
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
        told = [
            {"source": source, "index": index, "steps": list(target.rows.finds(source, index, steps=within))}
            for source, index in samples
        ]
        return answer({"unit": target.unit, "from": start, "to": stop, "samples": told}, lambda _: None, True)
    console, nothing = people(), True
    for its, number in samples:
        nothing, steps = False, target.rows.finds(its, number, steps=within)
        first = list(islice(steps, 1))
        say(console, f"{its}[{number}] in {target.unit}s {start:,} to {stop:,}")
        _say(chain(first, steps), target.unit, every)
    if nothing:
        say(console, f"no such sample in {'any source' if source is None else source}")


def _say(steps: Iterator[int], unit: str, every: bool) -> None:
    seen = 0
    for step in steps:
        if seen == _FEW and not every:
            print("  and more; all of them with --all")
            return
        print(f"  {unit} {step:,}", flush=True)
        seen += 1
    times = {0: "not", 1: "once", 2: "twice"}.get(seen, f"{seen:,} times")
    print(f"  seen {times}")


def _samples(
    target: Any, source: str | None, index: int | None, name: str | None, words: str | None
) -> Iterator[tuple[str, int]]:
    from penstock.report.look import by_name, by_words

    if source is not None and index is not None:
        return iter([(source, index)])
    return by_name(target, name, source) if name is not None else by_words(target, words or "", source)
