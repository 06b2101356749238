"""What `penstock info` says of files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from penstock.engine.base.seams import world
from penstock.sources import Chain, checksummed, open_files
from penstock.sources.lru import LRUCache
from penstock.sources.saved_dataset import is_saved_dataset

_OWN = ("tfrecord", "array_record")  # formats with checksums of their own
_INDEXED = ("jsonl", "text", "csv")  # whose indexes and copies hold checksums
_ROWS = 64  # rows that tell the types, where no file does


def outline(paths: Sequence[str], format: str | None, cache: Path | None) -> dict[str, Any]:
    """Format, samples, columns and their types, sizes, lengths of tokens, checksums, row groups."""
    chain = cast(Chain, open_files(list(paths), format, cache=cache))
    sizes = [world.store.stat(str(path)).size for path in chain.paths]
    lengths, cost = chain.lengths(), chain.decoding()
    return {
        "name": chain.name,
        "format": chain.format,
        "files": len(chain.paths),
        "samples": len(chain),
        "bytes": sum(sizes),
        "columns": _columns(chain),
        "checksums": _checksums(chain, cache),
        "written_by_penstock": len(paths) == 1 and is_saved_dataset(paths[0]),
        "tokens": None
        if lengths is None or not len(lengths)
        else _lengths(np.asarray(lengths[:]), chain.column),
        "row_groups": None if cost is None else {"rows": cost.rows, "bytes": cost.group},
    }


def _columns(chain: Chain) -> dict[str, str]:
    """The columns and their types: as the files tell, or as the first rows have them."""
    told = getattr(chain.files[0], "types", None) if len(chain.files) else None
    if isinstance(told, dict):
        return {name: str(kind) for name, kind in cast("dict[str, Any]", told).items()}
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
    known = [
        checksummed.of_data(path, LRUCache(1), cache).known()
        for path in chain.paths
        if path.is_file()
    ]
    if known and all(known):
        return "yes"
    return "of some files" if any(known) else "no (penstock index --checksum makes them)"


def _lengths(lengths: npt.NDArray[Any], column: str | None) -> dict[str, Any]:
    middle, high = np.percentile(lengths, [50, 99]).tolist()
    found = {
        "total": int(lengths.sum()),
        "mean": float(lengths.mean()),
        "median": middle,
        "p99": high,
    }
    return {"column": column, **found, "least": int(lengths.min()), "most": int(lengths.max())}
