"""The cells of the notebooks of the docs run as plain Python. `make notebooks` executes them in Jupyter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from example_counts import is_soak
from helpers import imports_a_framework, slow_if

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def read_cells(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def code_of(path: Path) -> str:
    cells = read_cells(path)
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def nightly_if(trains: bool) -> list[pytest.MarkDecorator]:
    """Mark a notebook that trains: its imports take 12 s, and `make notebooks` executes it every night."""
    reason = "trains a model: `make notebooks`"
    return [
        *slow_if(trains),
        *([pytest.mark.skipif(not is_soak(), reason=reason)] if trains else []),
    ]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=nightly_if(imports_a_framework(code_of(path))))
        for path in NOTEBOOKS
    ],
)
def test_the_cells_of_a_notebook_run(path: Path, tmp_path: Path) -> None:
    # A process of its own, since trainers of notebooks warn and set seeds.
    script = tmp_path / "cells.py"
    script.write_text(code_of(path), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HOME": str(tmp_path / "home")}
    ended = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_stores_its_outputs(path: Path) -> None:
    cells = read_cells(path)
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    assert outputs and not any(output["output_type"] == "error" for output in outputs)
    assert path.stat().st_size < 60_000
    assert sum("assert " in "".join(cell["source"]) for cell in cells) >= 5
    text = json.dumps(cells)
    assert "site-packages" not in text and "/home/" not in text, "paths of a machine"


def test_a_page_has_the_outputs_of_its_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    import notebook_pages  # pyright: ignore[reportMissingImports]

    for path in NOTEBOOKS:
        page = "\n\n".join(notebook_pages.render_cells(read_cells(path), path.stem))
        assert page.startswith("# ") and f'href="{path.stem}.ipynb"' in page
        assert page.count('<div class="notebook-output">') > 3
    linked = notebook_pages.on_page_markdown("[a](notebooks/a.ipynb) [b](../b.md)", None)
    assert linked == "[a](notebooks/a.md) [b](../b.md)"
