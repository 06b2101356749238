"""Facts about data files for `penstock info`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from penstock.sources import JoinedFiles, checksummed, open_files
from penstock.sources.lru import LRUCache
from penstock.sources.saved_dataset import is_saved_dataset
from penstock.stores import storage

_CHECKSUMMED_FORMATS = ("tfrecord", "array_record")
_INDEXED_FORMATS = ("jsonl", "text", "csv")  # their indexes store checksums
_TYPE_INFERENCE_ROWS = 64  # rows read to infer column types if the file declares none


def describe_files(paths: Sequence[str], format: str | None, cache: Path | None) -> dict[str, Any]:
    """Return format, counts, columns, sizes, token lengths, checksums and row groups."""
    chain = cast(JoinedFiles, open_files(list(paths), format, cache=cache))
    sizes = [storage.world.store.stat(str(path)).size for path in chain.paths]
    lengths, cost = chain.lengths(), chain.decoding()
    return {
        "name": chain.name,
        "format": chain.format,
        "files": len(chain.paths),
        "samples": len(chain),
        "bytes": sum(sizes),
        "columns": _describe_columns(chain),
        "checksums": _describe_checksums(chain, cache),
        "written_by_penstock": len(paths) == 1 and is_saved_dataset(paths[0]),
        "tokens": None
        if lengths is None or not len(lengths)
        else _summarise_lengths(np.asarray(lengths[:]), chain.column),
        "row_groups": None if cost is None else {"rows": cost.rows, "bytes": cost.group},
    }


def _describe_columns(chain: JoinedFiles) -> dict[str, str]:
    """Return columns and types: declared by the files, or inferred from the first rows."""
    declared = getattr(chain.files[0], "types", None) if len(chain.files) else None
    if isinstance(declared, dict):
        return {
            name: str(column_type) for name, column_type in cast("dict[str, Any]", declared).items()
        }
    types_by_column: dict[str, dict[str, None]] = {}
    for row in chain.read(np.arange(min(_TYPE_INFERENCE_ROWS, len(chain)))):
        fields = cast("dict[str, Any]", row) if isinstance(row, dict) else {"(sample)": row}
        for name, value in fields.items():
            types_by_column.setdefault(str(name), {})[_describe_type(value)] = None
    return {name: " or ".join(types) for name, types in types_by_column.items()}


def _describe_type(value: Any) -> str:
    if isinstance(value, np.ndarray):
        array = cast("npt.NDArray[Any]", value)
        return f"{array.dtype}[{', '.join('n' * array.ndim)}]"
    return "null" if value is None else type(value).__name__


def _describe_checksums(chain: JoinedFiles, cache: Path | None) -> str:
    if chain.format in _CHECKSUMMED_FORMATS:
        return "built in, verified when a sample is read"
    if chain.format in _INDEXED_FORMATS:
        return "yes, in the index"
    known = [
        checksummed.open_checked_data(path, LRUCache(1), cache).known()
        for path in chain.paths
        if path.is_file()
    ]
    if known and all(known):
        return "yes"
    return "for some files" if any(known) else "no (penstock index --checksum adds them)"


def _summarise_lengths(lengths: npt.NDArray[Any], column: str | None) -> dict[str, Any]:
    median, p99 = np.percentile(lengths, [50, 99]).tolist()
    statistics = {
        "total": int(lengths.sum()),
        "mean": float(lengths.mean()),
        "median": median,
        "p99": p99,
    }
    return {"column": column, **statistics, "least": int(lengths.min()), "most": int(lengths.max())}
