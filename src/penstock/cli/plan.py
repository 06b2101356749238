"""Commands that query a plan: `plan`, `report`, `at`, `diff`, `simulate`.

They read the metadata of files, never their samples, unless an option says so.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.errors import ConfigError

from .common import (
    AllowOption,
    JsonOption,
    MixtureArgument,
    StateOption,
    StepsOption,
    handle_errors,
    open_run,
    parse_local_path,
    parse_mixture_file,
    print_result,
    print_table,
    print_text,
)

PictureOption = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--out",
        parser=parse_local_path,
        metavar="PATH",
        help="Write a picture: a .svg, .png or .html file.",
    ),
]


AllRemarksOption = Annotated[
    bool, typer.Option("--all", help="Print all remarks, not only the ten most important.")
]
_MAX_REMARKS = 10  # remarks


@handle_errors
def plan(
    mixture: MixtureArgument,
    steps: StepsOption = None,
    out: PictureOption = None,
    state: StateOption = None,
    every: AllRemarksOption = False,
    digest: Annotated[
        bool, typer.Option(help="Fingerprint the data too; reads 64 rows of every source.")
    ] = False,
    compare_packing: Annotated[
        bool, typer.Option(help="Pack the documents by every method, and compare the rows.")
    ] = False,
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print shares, epochs, first repeats and ends of all sources.

    Compares the requested share of every source with the share that the run delivers.
    """
    from penstock.report import shares

    target = open_run(mixture, state, allow=allow)
    target.require_separate_output(out, state)
    horizon = target.horizon(steps)
    rows = shares.rows(target, horizon)
    if out is not None:
        from penstock.report.full_report import write_picture

        write_picture(out, target, horizon)
    samples, fingerprints = sum(row.samples for row in rows), target.fingerprint(digest)
    borders = target.borders(horizon)
    result = {
        "mixture": str(mixture),
        "unit": target.unit,
        "steps": horizon,
        "samples": samples,
        "fingerprint": fingerprints,
        "sources": shares.convert_to_json(rows),
        "stages": [border._asdict() for border in borders],
        "picture": str(out) if out else None,
    }
    packing = target.plan.packing(compare=compare_packing) if target.packed else None
    if packing is not None:
        result["packing"] = asdict(packing)

    def tell(console: Any) -> None:
        amount = (
            f"{sum(row.tokens or 0 for row in rows):,} tokens"
            if target.packed
            else f"{samples:,} samples"
        )
        print_table(
            console,
            shares.table(rows, f"{mixture}: {horizon:,} {target.unit}s, {amount}", target.packed),
        )
        if borders:
            print_table(console, shares.make_stage_table(borders))
        if packing is not None:
            print_text(console, f"packing: {shares.packing(packing)}")
            if packing.methods:
                print_table(console, shares.make_packing_table(packing))
        if not target.indexed:
            print_text(
                console,
                "\nRows are packed during the run, so no step has fixed samples: all counts are of "
                "samples.",
            )
        _print_remarks(console, rows, every)
        print_text(
            console,
            f"fingerprint: {', '.join(f'{kind} {value}' for kind, value in fingerprints.items())}",
        )
        if out:
            print_text(console, f"picture: {out}")

    print_result(result, tell, as_json)


def _print_remarks(console: Any, rows: Any, every: bool) -> None:
    """Print remarks on sources, the most important ones first."""
    from penstock.report.remarks import collect_remarks

    all_remarks = collect_remarks(rows)
    shown = (
        all_remarks
        if every or len(all_remarks) <= _MAX_REMARKS
        else all_remarks[: _MAX_REMARKS - 1]
    )
    for source, text in shown:
        print_text(console, f"  {source}: {text}", "yellow")
    if more := len(all_remarks) - len(shown):
        print_text(console, f"  and {more} more (--all prints them)", "yellow")


@handle_errors
def report(
    mixture: MixtureArgument,
    out: Annotated[
        Path,
        typer.Option(
            "-o",
            "--out",
            parser=parse_local_path,
            metavar="PATH",
            help="Page to write, a .html file.",
        ),
    ],
    steps: StepsOption = None,
    state: StateOption = None,
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the plan as one HTML page, for a pull request.

    The page holds the plan as picture and table, remarks and the mixture file. It needs no network
    and no script.
    """
    from penstock.report.full_report import write

    target = open_run(mixture, state, allow=allow)
    target.require_separate_output(out, state)
    horizon = target.horizon(steps)
    write(out, target, horizon)
    result = {"mixture": str(mixture), "unit": target.unit, "steps": horizon, "report": str(out)}
    print_result(result, lambda console: print_text(console, f"report: {out}"), as_json)


@handle_errors
def at(
    mixture: MixtureArgument,
    step: Annotated[int, typer.Argument(min=0, help="Step, counted from 0.")],
    until: Annotated[
        int | None, typer.Option("--to", help="Print all steps up to this one, exclusive.")
    ] = None,
    read: Annotated[
        bool, typer.Option(help="Read the samples and print their first characters.")
    ] = False,
    state: StateOption = None,
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the samples of a step."""

    target = open_run(mixture, state, allow=allow)
    stop = step + 1 if until is None else until
    if stop <= step:
        raise ConfigError(f"--to {until}: not after step {step}; give a later step")
    if (
        target.model.horizon is not None
        and target.last is not None
        and stop > max(target.last, target.rows.next_step)
    ):
        raise ConfigError(
            f"step {stop - 1:,}: the run ends at its horizon, after {target.last:,} {target.unit}s"
        )
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
            row["masked"] = sample.masked
            if read:
                row["text"] = target.text(sample.source, sample.index)
            rows.append(row)
    if not any(row["masked"] for row in rows):
        for row in rows:
            del row["masked"]
    print_result(
        {"unit": target.unit, "samples": rows},
        lambda console: _print_samples(console, rows),
        as_json,
    )


def _print_samples(console: Any, rows: list[dict[str, Any]]) -> None:
    """Print samples as a table."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in rows[0] if rows else ():
        table.add_column(name, justify="left" if name in ("source", "text") else "right")
    for row in rows:
        table.add_row(*(f"{cell:,}" if type(cell) is int else str(cell) for cell in row.values()))
    print_table(console, table)


@handle_errors
def diff(
    mixture: MixtureArgument,
    other: Annotated[
        Path,
        typer.Argument(parser=parse_mixture_file, help="Mixture file to compare with, or its URL."),
    ],
    steps: StepsOption = None,
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two mixtures: their settings, and the samples they give.

    Prints the first step with other samples. Exit code 1 if the mixtures differ.
    """
    from penstock.engine.base.canonical_json import list_differences
    from penstock.report.changes import list_changes
    from penstock.report.target import open_target

    first_target, second_target = open_target(mixture, allow=allow), open_target(other, allow=allow)
    ends = first_target.horizon(steps), second_target.horizon(steps)
    horizon = min(ends)
    common_rows = range(0, min(first_target.row(horizon), second_target.row(horizon)))
    order_diff = first_target.rows.diff(second_target.rows, common_rows)
    setting_changes = list_changes(first_target.model, second_target.model)
    changed_sizes = {
        name: (size, second_target.sizes[name])
        for name, size in first_target.sizes.items()
        if second_target.sizes.get(name, size) != size
    }
    setting_changes += [
        f"{name}: {before:,} -> {after:,} rows" for name, (before, after) in changed_sizes.items()
    ]
    if not setting_changes:  # equal settings may still give other datasets
        setting_changes = list_differences(
            first_target.dataset.tree.description(), second_target.dataset.tree.description()
        )
    result = {
        "says": setting_changes,
        "unit": first_target.unit,
        "first": None if order_diff.first is None else first_target.step(order_diff.first),
        "samples": {name: list(pair) for name, pair in order_diff.counts.items()},
        "steps": horizon,
    }

    def tell(console: Any) -> None:
        for line in setting_changes:
            print_text(console, f"  {line}")
        if order_diff.first is None:
            print_text(console, f"the same samples in {first_target.unit}s 0 to {horizon:,}")
        else:
            first_step, (_, *difference_text) = (
                first_target.step(order_diff.first),
                str(order_diff).partition(": "),
            )
            print_text(
                console,
                f"other samples from {first_target.unit} {first_step:,} on: {difference_text[-1]}",
            )
        if ends[0] != ends[1]:
            print_text(
                console,
                f"one ends after {ends[0]:,} {first_target.unit}s, the other after {ends[1]:,}",
            )

    print_result(result, tell, as_json)
    raise typer.Exit(1 if setting_changes or order_diff else 0)


WeightsOption = Annotated[
    list[str] | None,
    typer.Option("--weight", help="NAME=WEIGHT, as `weight:` in the file; repeatable."),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="KEY=VALUE: stages.anneal.weights.math=30, horizon.steps=5k; repeatable."
    ),
]
MaxEpochsOption = Annotated[
    list[str] | None, typer.Option("--max-epochs", help="NAME=EPOCHS; repeatable.")
]


@handle_errors
def simulate(
    mixture: MixtureArgument,
    weight: WeightsOption = None,
    max_epochs: MaxEpochsOption = None,
    settings: SettingsOption = None,
    batch: Annotated[int | None, typer.Option(min=1, help="New batch size.")] = None,
    stop: Annotated[str | None, typer.Option(help="New stop rule.")] = None,
    steps: StepsOption = None,
    out: PictureOption = None,
    every: AllRemarksOption = False,
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the plan with other settings, beside the plan of the file.

    Changes weights, caps, stages, schedules or any other setting. The file stays as it is.
    """
    from penstock.report import shares
    from penstock.report.target import open_target

    from .settings import override_settings, override_weights

    before = open_target(mixture, allow=allow)
    model = override_settings(
        override_weights(before.model, weight or [], max_epochs or []), settings or [], before.path
    )
    if batch is not None:
        if model.batch is None:
            raise ConfigError(
                f"--batch {batch}: {mixture} has no batch; add one to the file, or leave out --batch"
            )
        model = replace(model, batch=replace(model.batch, size=batch))
    model = replace(model, stop=stop or model.stop)
    after = open_target(mixture, model)
    horizon = before.horizon(steps), after.horizon(steps)
    rows = [shares.rows(target, n) for target, n in zip((before, after), horizon, strict=True)]
    if out is not None:
        from penstock.report.full_report import write_picture

        write_picture(out, after, horizon[1], changed=True)
    result = {
        name: {"steps": n, "unit": target.unit, "sources": shares.convert_to_json(sources)}
        for name, n, target, sources in zip(
            ("as_it_is", "changed"), horizon, (before, after), rows, strict=True
        )
    }

    def tell(console: Any) -> None:
        print_table(console, shares.compare_plans(rows[0], rows[1]))
        _print_remarks(console, rows[1], every)
        if out:
            print_text(console, f"picture: {out}")

    print_result(result, tell, as_json)
