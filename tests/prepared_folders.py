"""Prepared folders made by hand, with whatever is wrong in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from archives import some, write


def folder(
    path: Path, *, splits: Any = None, exclude: Any = (), counts: Any = None, **form: Any
) -> Path:
    """A prepared folder of three shards with two samples each."""
    (path / ".nv-meta").mkdir(parents=True)
    members = some(6)
    for part in range(3):
        write(path / f"{part}.tar", members[6 * part : 6 * part + 6])
    put(
        path,
        ".info.json",
        {
            "energon_version": "7.0",
            "shard_counts": counts or {f"{part}.tar": 2 for part in range(3)},
        },
    )
    splits = splits or {"train": ["{2..1}.tar"], "val": ["0.tar"]}
    put(path, "split.json", {"split_parts": splits, "exclude": list(exclude)})
    if form:
        put(path, "dataset.yaml", form)
    return path


def put(path: Path, name: str, value: Any) -> None:
    (path / ".nv-meta" / name).write_text(
        value if isinstance(value, str) else json.dumps(value)
    )  # JSON is YAML too
