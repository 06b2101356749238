"""`penstock replay`: steps of a run once more, as they were, sample by sample."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from penstock.errors import ConfigError, DataError

from .say import Allow, Json, Mixture, State, answer, guarded, here, of_run, say, stretch

_SHOWN = 10  # ranges


@guarded
def replay(
    mixture: Mixture,
    steps: Annotated[str, typer.Option("--steps", help="FIRST:STOP, the steps to take again.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            parser=here,
            metavar="PATH",
            help="A .jsonl file for the samples; default: lines here.",
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="What `penstock run --dump` wrote: is it the same?"
        ),
    ] = None,
    state: State = None,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Read the samples of some steps again, in the order of the run. Exit code 1 if --against tells
    of others, or does not hold some of these steps.
    """
    from penstock.engine.base.outputs import output

    if as_json and out is None and against is None:
        raise ConfigError(
            "--json prints what was done, and the samples are printed too: say where to, with -o"
        )
    target = of_run(mixture, state, allow=allow)
    taken = stretch(target, steps)
    lines = _lines(target, taken)
    given = None if against is None else _given(against)
    seen, samples, different, missing = (
        dict[int, list[tuple[Any, ...]]](),
        0,
        list[int](),
        list[int](),
    )

    def kept() -> Iterator[bytes]:
        nonlocal samples
        for line in lines:
            seen.setdefault(line["step"], []).append((line["source"], line["epoch"], line["index"]))
            samples += 1
            yield (json.dumps(line, default=_plain) + "\n").encode()

    if out is not None:
        with output(out) as file:
            file.writelines(kept())
    elif against is None:
        for line in kept():
            sys.stdout.buffer.write(line)
        return
    else:
        for _ in kept():
            pass
    if given is not None:
        missing = [step for step in taken if step not in given]
        # A run on one process wrote a step in the order of its positions, here it comes rank by
        # rank.
        order = sorted if any(record.ranks > 1 for record in target.log) else list
        different = [
            step
            for step in taken
            if step in given and order(given[step]) != order(seen.get(step, []))
        ]
    found = {
        "mixture": str(mixture),
        "first": taken.start,
        "stop": taken.stop,
        "samples": samples,
        "same": not (different or missing),
        "different": different,
        "missing": missing,
        "out": str(out) if out else None,
    }

    def tell(console: Any) -> None:
        say(
            console,
            f"{target.unit}s {taken.start:,} to {taken.stop:,}, {samples:,} "
            f"samples{f': {out}' if out else ''}",
        )
        if given is not None:
            if different:
                say(console, f"not what {against} tells, first in step {different[0]:,}")
            if missing:
                say(console, f"{against} does not hold {target.unit}s {_spans(missing)}")
            if not (different or missing):
                say(console, f"as {against} tells")

    answer(found, tell, as_json)
    raise typer.Exit(1 if different or missing else 0)


def _lines(target: Any, steps: range) -> Iterator[dict[str, Any]]:
    """Every sample with what its source reads."""
    import numpy as np

    from penstock.types import is_source

    sources = {leaf.name: leaf.source for leaf in target.leaves}
    for batch in target.rows.audit(steps).batches():
        for line in batch.to_pylist():
            source = sources[line["source"]]
            value = source.read(np.asarray([line["index"]]))[0] if is_source(source) else None
            yield {name: one for name, one in line.items() if one is not None} | {"value": value}


def _spans(steps: list[int]) -> str:
    """Ascending steps as FIRST:STOP, the way they are asked for."""
    firsts = [step for before, step in pairwise([-2, *steps]) if step != before + 1]
    lasts = [step for step, after in pairwise([*steps, -2]) if after != step + 1]
    spans = [f"{first}:{last + 1}" for first, last in zip(firsts, lasts, strict=True)]
    return ", ".join(spans[:_SHOWN]) + (
        f" and {len(spans) - _SHOWN} more ranges" if len(spans) > _SHOWN else ""
    )


def _given(path: Path) -> dict[int, list[tuple[Any, ...]]]:
    """The keys of every step, as a run wrote them down."""
    out = dict[int, list[tuple[Any, ...]]]()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            found = json.loads(line)
            out[found["step"]] = [tuple(key) for key in found["keys"]]
        except (ValueError, KeyError, TypeError):
            raise DataError(
                "this is no line that `penstock run --dump` writes", where=f"{path}, line {number}"
            ) from None
    return out


def _plain(value: Any) -> Any:
    """What JSON lacks."""
    import numpy as np

    if isinstance(value, np.ndarray | np.generic):
        return cast("Any", value).tolist()
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else repr(value)
