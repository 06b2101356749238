"""A folder with a little data, and a function that writes a mixture file there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

Write = Callable[..., Path]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`code/*.parquet`: 2 x 30 rows of text, lang, stars, day; `text/*.jsonl`: 2 x 20 rows of text, lang."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("code", "text"):
        (tmp_path / name).mkdir()
    for part in range(2):
        rows = [
            {
                "text": f"code {part} {i} " * (1 + i % 3),
                "lang": ["py", "c", None][i % 3],
                "stars": i,
                "day": f"2024-01-{1 + i:02d}",
            }
            for i in range(30)
        ]
        pq.write_table(
            pa.Table.from_pylist(rows), tmp_path / "code" / f"{part}.parquet", row_group_size=7
        )
        lines = [
            json.dumps({"text": f"text {part} {i}", "lang": ["en", "de"][i % 2]}) for i in range(20)
        ]
        (tmp_path / "text" / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.fixture
def write(data: Path) -> Write:
    def write(text: str, name: str = "mixture.yaml") -> Path:
        path = data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write
