"""Folders as `energon prepare` leaves them, written by hand: a few tars, and what `.nv-meta` says of them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def picture(number: int, size: tuple[int, int] = (6, 8), format: str = "png") -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 255, (*size, 3), np.uint8)
    Image.fromarray(pixels).save(file, format)
    return file.getvalue()


def texts(start: int, n: int) -> list[dict[str, bytes]]:
    return [{"txt": f"text {i}".encode()} for i in range(start, start + n)]


def captions(start: int, n: int) -> list[dict[str, bytes]]:
    return [
        {"png": picture(i, (4, 4 + i % 3)), "txt": f"caption {i}".encode()}
        for i in range(start, start + n)
    ]


def folder(
    path: Path,
    splits: Mapping[str, list[dict[str, bytes]]],
    sample_type: str = "TextSample",
    field_map: Mapping[str, str] | None = None,
    subflavors: Mapping[str, Any] | None = None,
    per_shard: int = 10,
) -> Path:
    """A prepared folder; samples have the keys `<split>/<number>`."""
    counts: dict[str, int] = {}
    parts: dict[str, list[str]] = {}
    for split, samples in splits.items():
        for first in range(0, len(samples), per_shard):
            shard, chunk = f"{split}-{first:03d}.tar", samples[first : first + per_shard]
            path.mkdir(parents=True, exist_ok=True)
            with tarfile.open(path / shard, "w") as archive:
                for number, sample in enumerate(chunk, first):
                    for part, data in sample.items():
                        member = tarfile.TarInfo(f"{split}/{number}.{part}")
                        member.size = len(data)
                        archive.addfile(member, io.BytesIO(data))
            counts[shard] = len(chunk)
            parts.setdefault(split, []).append(shard)
    form: dict[str, Any] = {
        "sample_type": {"__module__": "megatron.energon", "__class__": sample_type}
    }
    if sample_type != "CrudeSample":
        form["field_map"] = dict(field_map or {"text": "txt"})
    form["subflavors"] = dict(subflavors or {})
    about = path / ".nv-meta"
    about.mkdir(parents=True, exist_ok=True)
    (about / ".info.json").write_text(
        json.dumps({"energon_version": "7.4.1", "shard_counts": counts})
    )
    (about / "split.yaml").write_text(json.dumps({"split_parts": parts, "exclude": []}))
    (about / "dataset.yaml").write_text(json.dumps(form))
    return path
