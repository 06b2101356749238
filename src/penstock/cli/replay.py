"""Command `penstock replay`: read the samples of past steps again."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from penstock.errors import ConfigError, DataError

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

_MAX_RANGES = 10  # in a message


@handle_errors
def replay(
    mixture: MixtureArgument,
    steps: Annotated[str, typer.Option("--steps", help="FIRST:STOP, the steps to read again.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            parser=parse_local_path,
            metavar="PATH",
            help="A .jsonl file for the samples; default: JSON lines on stdout.",
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="File of `penstock run --dump` to compare with."
        ),
    ] = None,
    state: StateOption = None,
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read the samples of past steps again, in the order of the run.

    Exit code 1 if --against holds other samples, or lacks some of the steps.
    """
    from penstock.stores.outputs import open_output

    if as_json and out is None and against is None:
        raise ConfigError(
            "--json: stdout cannot hold both the result and the samples; write the samples to a "
            "file with -o"
        )
    target = open_run(mixture, state, allow=allow)
    target.require_separate_output(out, against, state)
    step_range = parse_steps(target, steps)
    lines = _iter_records(target, step_range)
    expected = None if against is None else _read_dump(against)
    actual, samples, different, missing = (
        dict[int, list[tuple[Any, ...]]](),
        0,
        list[int](),
        list[int](),
    )

    def encoded_lines() -> Iterator[bytes]:
        nonlocal samples
        for line in lines:
            actual.setdefault(line["step"], []).append(
                (line["source"], line["epoch"], line["index"])
            )
            samples += 1
            yield (json.dumps(line, default=_convert_to_json) + "\n").encode()

    if out is not None:
        with open_output(out) as file:
            file.writelines(encoded_lines())
    elif against is None:
        for line in encoded_lines():
            sys.stdout.buffer.write(line)
        return
    else:
        for _ in encoded_lines():
            pass
    if expected is not None:
        missing = [step for step in step_range if step not in expected]
        # `penstock run` writes a step of several ranks in the order of positions; the audit lists
        # it rank by rank.
        order = sorted if any(record.ranks > 1 for record in target.log.records) else list
        different = [
            step
            for step in step_range
            if step in expected and order(expected[step]) != order(actual.get(step, []))
        ]
    result = {
        "mixture": str(mixture),
        "first": step_range.start,
        "stop": step_range.stop,
        "samples": samples,
        "same": not (different or missing),
        "different": different,
        "missing": missing,
        "out": str(out) if out else None,
    }

    def tell(console: Any) -> None:
        print_text(
            console,
            f"{target.unit}s {step_range.start:,} to {step_range.stop:,}, {samples:,} "
            f"samples{f': {out}' if out else ''}",
        )
        if expected is not None:
            if different:
                print_text(
                    console, f"the samples differ from {against}, first in step {different[0]:,}"
                )
            if missing:
                print_text(console, f"{against} lacks {target.unit}s {_format_ranges(missing)}")
            if not (different or missing):
                print_text(console, f"same samples as {against}")

    print_result(result, tell, as_json)
    raise typer.Exit(1 if different or missing else 0)


def _iter_records(target: Any, steps: range) -> Iterator[dict[str, Any]]:
    """Yield the audit record of every sample, with the value that its source reads."""
    import numpy as np

    from penstock.types import is_source

    sources = {leaf.name: leaf.source for leaf in target.leaves}
    for batch in target.rows.audit(steps).batches():
        for line in batch.to_pylist():
            source = sources[line["source"]]
            value = source.read(np.asarray([line["index"]]))[0] if is_source(source) else None
            yield {name: cell for name, cell in line.items() if cell is not None} | {"value": value}


def _format_ranges(steps: list[int]) -> str:
    """Return ascending steps as `FIRST:STOP` ranges."""
    firsts = [step for before, step in pairwise([-2, *steps]) if step != before + 1]
    lasts = [step for step, after in pairwise([*steps, -2]) if after != step + 1]
    spans = [f"{first}:{last + 1}" for first, last in zip(firsts, lasts, strict=True)]
    return ", ".join(spans[:_MAX_RANGES]) + (
        f" and {len(spans) - _MAX_RANGES} more ranges" if len(spans) > _MAX_RANGES else ""
    )


def _read_dump(path: Path) -> dict[int, list[tuple[Any, ...]]]:
    """Read the keys of every step from a file of `penstock run --dump`."""
    from penstock.stores.limits import LINE

    keys_by_step = dict[int, list[tuple[Any, ...]]]()
    with path.open("rb") as file:
        for number, line in enumerate(iter(partial(file.readline, LINE), b""), 1):
            try:
                record = json.loads(line)
                keys_by_step[record["step"]] = [tuple(key) for key in record["keys"]]
            except (ValueError, KeyError, TypeError, RecursionError):
                raise DataError(
                    "the line is not valid; pass a file written by `penstock run --dump`",
                    where=f"{path}, line {number}",
                ) from None
    return keys_by_step


def _convert_to_json(value: Any) -> Any:
    """Convert a value that JSON cannot represent."""
    import numpy as np

    if isinstance(value, np.ndarray | np.generic):
        return cast("Any", value).tolist()
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else repr(value)
