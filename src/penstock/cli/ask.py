"""The commands that ask a plan: `plan`, `at`, `find`, `diff`, `simulate`. Nothing is read but the
files' outlines."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.errors import ConfigError

from .say import (
    Allow,
    Json,
    Mixture,
    State,
    Steps,
    answer,
    guarded,
    here,
    mixture_file,
    of_run,
    put,
    say,
)

Picture = Annotated[
    Path | None,
    typer.Option(
        "-o", "--out", parser=here, metavar="PATH", help="Draw it: a .svg, .png or .html file."
    ),
]


Every = Annotated[bool, typer.Option("--all", help="All remarks, not the ten most important ones.")]
_FEW = 10  # remarks


@guarded
def plan(
    mixture: Mixture,
    steps: Steps = None,
    out: Picture = None,
    state: State = None,
    every: Every = False,
    digest: Annotated[
        bool, typer.Option(help="The fingerprint also of the data: reads some rows, once.")
    ] = False,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """What a run gives: share of every source, asked and as it comes out, epochs, first repeat,
    end."""
    from penstock.report import shares

    target = of_run(mixture, state, allow=allow)
    horizon = target.horizon(steps)
    rows = shares.rows(target, horizon)
    if out is not None:
        from penstock.report.page import save

        lines = shares.lines(rows, target.packed)
        course = shares.course(target, horizon)
        strip = shares.strip(target, horizon, course.names)
        save(course, out, f"{mixture.name}: {horizon:,} {target.unit}s", lines, strip)
    samples, prints = sum(row.samples for row in rows), target.fingerprint(digest)
    found = {
        "mixture": str(mixture),
        "unit": target.unit,
        "steps": horizon,
        "samples": samples,
        "fingerprint": prints,
        "sources": shares.as_json(rows),
        "picture": str(out) if out else None,
    }
    packing = target.plan.packing() if target.packed else None
    if packing is not None:
        found["packing"] = asdict(packing)

    def tell(console: Any) -> None:
        amount = (
            f"{sum(row.tokens or 0 for row in rows):,} tokens"
            if target.packed
            else f"{samples:,} samples"
        )
        put(
            console,
            shares.table(rows, f"{mixture}: {horizon:,} {target.unit}s, {amount}", target.packed),
        )
        if packing is not None:
            say(console, f"packing: {shares.packing(packing)}")
        if not target.whole:
            say(
                console,
                "\nRows are packed while it runs, so a step has no fixed samples: all counts are "
                "of samples.",
            )
        _remark(console, rows, every)
        say(
            console,
            f"fingerprint: {', '.join(f'{what} {which}' for what, which in prints.items())}",
        )
        if out:
            say(console, f"picture: {out}")

    answer(found, tell, as_json)


def _remark(console: Any, rows: Any, every: bool) -> None:
    """What is to be known of the sources, in a few lines."""
    from penstock.report.remarks import remarks

    told = remarks(rows)
    shown = told if every or len(told) <= _FEW else told[: _FEW - 1]
    for source, text in shown:
        say(console, f"  {source}: {text}", "yellow")
    if more := len(told) - len(shown):
        say(console, f"  and {more} more; all of them with --all", "yellow")


@guarded
def at(
    mixture: Mixture,
    step: Annotated[int, typer.Argument(min=0, help="The step asked about, from 0.")],
    until: Annotated[
        int | None, typer.Option("--to", help="And all steps before this one.")
    ] = None,
    read: Annotated[bool, typer.Option(help="Read the samples and show how they begin.")] = False,
    state: State = None,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Which samples a step is made of."""

    target = of_run(mixture, state, allow=allow)
    stop = step + 1 if until is None else until
    if stop <= step:
        raise ConfigError(f"--to {until}: it is not behind step {step}")
    if (
        target.model.horizon is not None
        and target.last is not None
        and stop > max(target.last, target.rows.next_step)
    ):
        raise ConfigError(f"step {stop - 1:,}: the run ends at its horizon, after {target.last:,}")
    rows = list[dict[str, Any]]()
    for number in range(step, stop):
        for sample in target.rows.at(step=number):
            row: dict[str, Any] = {
                target.unit: number,
                "source": sample.source,
                "epoch": sample.epoch,
                "index": sample.index,
            }
            if sample.start is not None:
                row |= {"start": sample.start, "stop": sample.stop}
            if read:
                row["text"] = target.text(sample.source, sample.index)
            rows.append(row)
    answer({"unit": target.unit, "samples": rows}, lambda console: _list(console, rows), as_json)


def _list(console: Any, rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in rows[0] if rows else ():
        table.add_column(name, justify="left" if name in ("source", "text") else "right")
    for row in rows:
        table.add_row(
            *(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row.values())
        )
    put(console, table)


@guarded
def diff(
    mixture: Mixture,
    other: Annotated[Path, typer.Argument(parser=mixture_file, help="The other one.")],
    steps: Steps = None,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Where two mixtures differ: in what they say, and from which step on in what they give. Exit
    code 1 if they do."""
    from penstock.engine.graph.recipe import describe, difference
    from penstock.report.changes import changes
    from penstock.report.target import opened

    one, two = opened(mixture, allow=allow), opened(other, allow=allow)
    ends = one.horizon(steps), two.horizon(steps)
    horizon = min(ends)
    within = range(0, min(one.row(horizon), two.row(horizon)))
    given = one.rows.diff(two.rows, within)
    said = changes(one.model, two.model)
    rows = {
        name: (size, two.sizes[name])
        for name, size in one.sizes.items()
        if two.sizes.get(name, size) != size
    }
    said += [f"{name}: {a:,} -> {b:,} rows" for name, (a, b) in rows.items()]
    if not said:  # the files say the same, and mean something else
        said = difference(describe(one.dataset.flow), describe(two.dataset.flow))
    found = {
        "says": said,
        "unit": one.unit,
        "first": None if given.first is None else one.step(given.first),
        "samples": {name: list(pair) for name, pair in given.counts.items()},
        "steps": horizon,
    }

    def tell(console: Any) -> None:
        for line in said:
            say(console, f"  {line}")
        if given.first is None:
            say(console, f"the same samples in {one.unit}s 0 to {horizon:,}")
        else:
            first, (_, *where) = one.step(given.first), str(given).partition(": ")
            say(console, f"others from {one.unit} {first:,} on: {where[-1]}")
        if ends[0] != ends[1]:
            say(console, f"one ends after {ends[0]:,} {one.unit}s, the other after {ends[1]:,}")

    answer(found, tell, as_json)
    raise typer.Exit(1 if said or given else 0)


Changes = Annotated[
    list[str] | None, typer.Option("--weight", help="NAME=WEIGHT, as often as needed.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="PLACE=VALUE: stages.anneal.weights.math=30, horizon.steps=5k."),
]
Caps = Annotated[
    list[str] | None, typer.Option("--max-epochs", help="NAME=EPOCHS, as often as needed.")
]


@guarded
def simulate(
    mixture: Mixture,
    weight: Changes = None,
    max_epochs: Caps = None,
    settings: Settings = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Another batch size.")] = None,
    stop: Annotated[str | None, typer.Option(help="Another stop rule.")] = None,
    steps: Steps = None,
    out: Picture = None,
    every: Every = False,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """What would be: the plan with other weights, caps, stages, schedules or any other setting,
    beside it as it is."""
    from penstock.report import shares
    from penstock.report.target import opened

    from .change import changed, changed_by

    before = opened(mixture, allow=allow)
    model = changed_by(changed(before.model, weight or [], max_epochs or []), settings or [])
    if batch is not None:
        if model.batch is None:
            raise ConfigError(f"--batch {batch}: {mixture} makes no batches")
        model = replace(model, batch=replace(model.batch, size=batch))
    model = replace(model, stop=stop or model.stop)
    after = opened(mixture, model)
    horizon = before.horizon(steps), after.horizon(steps)
    rows = [shares.rows(target, n) for target, n in zip((before, after), horizon, strict=True)]
    if out is not None:
        from penstock.report.page import save

        lines = shares.lines(rows[1], after.packed)
        course = shares.course(after, horizon[1])
        strip = shares.strip(after, horizon[1], course.names)
        save(course, out, f"{mixture.name}, changed: {horizon[1]:,} {after.unit}s", lines, strip)
    found = {
        name: {"steps": n, "unit": target.unit, "sources": shares.as_json(sources)}
        for name, n, target, sources in zip(
            ("as_it_is", "changed"), horizon, (before, after), rows, strict=True
        )
    }

    def tell(console: Any) -> None:
        put(console, shares.beside(rows[0], rows[1]))
        _remark(console, rows[1], every)
        if out:
            say(console, f"picture: {out}")

    answer(found, tell, as_json)
