"""`penstock info` and `penstock preview`: what a path is, and its first rows."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import numpy.typing as npt
import typer

import penstock as ps
from penstock.base.seams import world
from penstock.graph.shown import counted
from penstock.sources import Chain, checked, open_files
from penstock.sources.held import Held
from penstock.sources.store import says_itself

from .say import Json, answer, guarded, say
from .verify import Cache, Format, Paths

_OWN = ("tfrecord", "array_record")  # formats with checksums of their own
_INDEXED = ("jsonl", "text", "csv")  # whose indexes and copies hold checksums
_PIPE = 1_000  # letters of a line where nobody says how wide it may be
_ROWS = 64  # rows that tell the types, where no file does


@guarded
def info(paths: Paths, format: Format = None, cache: Cache = None, as_json: Json = False) -> None:
    """What a path is: format, samples, columns and their types, sizes, lengths of tokens, checksums."""
    chain = cast(Chain, open_files(list(paths), format, cache=cache))
    sizes = [world.store.stat(str(path)).size for path in chain.paths]
    lengths, cost = chain.lengths(), chain.decoding()
    found: dict[str, Any] = {
        "name": chain.name,
        "format": chain.format,
        "files": len(chain.paths),
        "samples": len(chain),
        "bytes": sum(sizes),
        "columns": _columns(chain),
        "checksums": _checksums(chain, cache),
        "written_by_penstock": len(paths) == 1 and says_itself(paths[0]),
        "tokens": None if lengths is None or not len(lengths) else _lengths(np.asarray(lengths[:]), chain.column),
        "row_groups": None if cost is None else {"rows": cost.rows, "bytes": cost.group},
    }

    def tell(console: Any) -> None:
        out = [f"{found['name']}: {found['format']}, {found['samples']:,} samples in {counted(found['files'], 'file')}"]
        out.append(f"{found['bytes']:,} bytes, {found['bytes'] / max(found['samples'], 1):,.0f} a sample")
        if cost is not None:
            out.append(f"row groups of {cost.rows:,} rows, {cost.group / 2**20:,.1f} MiB decoded")
        out.append(f"checksums: {found['checksums']}")
        if tokens := found["tokens"]:
            out.append(f"tokens: {tokens['total']:,}, {tokens['mean']:,.1f} a sample, at most {tokens['most']:,}")
        out += ["columns:" if found["columns"] else "no columns", *(f"  {n}: {k}" for n, k in found["columns"].items())]
        for line in out:
            say(console, line)

    answer(found, tell, as_json)


def _columns(chain: Chain) -> dict[str, str]:
    """The columns and their types: as the files tell, or as the first rows have them."""
    told = getattr(chain.files[0], "types", None) if len(chain.files) else None
    if isinstance(told, dict):
        return cast("dict[str, str]", told)
    kinds: dict[str, dict[str, None]] = {}
    for row in chain.read(np.arange(min(_ROWS, len(chain)))):
        fields = cast("dict[str, Any]", row) if isinstance(row, dict) else {"(sample)": row}
        for name, value in fields.items():
            kinds.setdefault(str(name), {})[_kind(value)] = None
    return {name: " or ".join(some) for name, some in kinds.items()}


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        array = cast("npt.NDArray[Any]", value)
        return f"{array.dtype}[{', '.join('n' * array.ndim)}]"
    return "null" if value is None else type(value).__name__


def _checksums(chain: Chain, cache: Path | None) -> str:
    if chain.format in _OWN:
        return "its own, compared when a sample is read"
    if chain.format in _INDEXED:
        return "yes, in the index"
    known = [checked.of_data(path, Held(1), cache).known() for path in chain.paths if path.is_file()]
    if known and all(known):
        return "yes"
    return "of some files" if any(known) else "no (penstock index --checksum makes them)"


def _lengths(lengths: npt.NDArray[Any], column: str | None) -> dict[str, Any]:
    middle, high = np.percentile(lengths, [50, 99]).tolist()
    found = {"total": int(lengths.sum()), "mean": float(lengths.mean()), "median": middle, "p99": high}
    return {"column": column, **found, "least": int(lengths.min()), "most": int(lengths.max())}


@guarded
def preview(
    paths: Paths,
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="How many.")] = 3,
    at: Annotated[int, typer.Option(min=0, help="From this sample on.")] = 0,
    format: Format = None,
    cache: Cache = None,
    as_json: Json = False,
) -> None:
    """Some samples in the terminal: texts cut to its width, arrays by type and shape, media told and not dumped."""
    from penstock.report.values import jsonable, shown

    dataset = ps.read(list(paths), format=format, cache=cache)
    if at >= len(dataset):
        raise ps.ConfigError(f"--at {at}: there are {len(dataset):,} samples")
    places = range(at, min(at + count, len(dataset)))
    samples = dataset[list(places)]
    width = shutil.get_terminal_size((_PIPE, 24)).columns

    def tell(console: Any) -> None:
        for place, sample in zip(places, samples, strict=True):
            console.print(f"sample {place:,} of {len(dataset):,}", style="bold", markup=False)
            for line in shown(sample, width):
                console.print(line, markup=False, soft_wrap=True)

    answer(
        {"samples": [{"index": i, "sample": jsonable(s)} for i, s in zip(places, samples, strict=True)]}, tell, as_json
    )
