"""Execute the notebooks of the docs in Jupyter, and compare their outputs with the stored ones.

    PYTHONPATH=src python tools/notebooks.py                    all notebooks: compare
    PYTHONPATH=src python tools/notebooks.py --write PATH...    replace the outputs

`make notebooks` installs nbclient and ipykernel, which this needs. Each notebook runs in an empty
folder. A cell that raises, and a text that differs from the stored one, is a failure. HTML is stored
for readers, and not compared; warnings are not stored. `tests/test_notebooks.py` runs the cells as
plain Python.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "notebooks"
CELL_SECONDS = 120
SHOWN = ("text/plain", "text/html")  # of the forms of an output


def execute(path: Path) -> dict[str, Any]:
    """Run a notebook in an empty folder, and return it with its outputs.

    Raises:
        CellExecutionError: if a cell raises.
    """
    import nbformat  # pyright: ignore[reportMissingImports]
    from nbclient import NotebookClient  # pyright: ignore[reportMissingImports]

    notebook: Any = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        place = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=CELL_SECONDS, resources=place).execute()
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        if cell.cell_type == "code":
            outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            cell.outputs = [_reduce_output(output) for output in outputs]
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def _reduce_output(output: Any) -> Any:
    """Remove what differs between runs or machines, and forms that are not shown."""
    if "data" in output:
        output.data = {form: output.data[form] for form in SHOWN if form in output.data}
        output.metadata = {}
    return output


def list_texts(cell: Any) -> list[str]:
    """Return the printed lines of a cell and the text of its value."""
    texts = [
        output["text"] if "text" in output else output.get("data", {}).get("text/plain", "")
        for output in cell["outputs"]
    ]
    return ["".join(text) for text in texts]


def compare(path: Path, notebook: Any) -> list[str]:
    """Return a line for each cell whose texts differ from the stored ones."""
    stored = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [
        f"{path.name}, cell {number}: stored\n{before}\nand now\n{after}"
        for number, (old, new) in enumerate(zip(stored, notebook.cells, strict=True))
        if new.cell_type == "code" and (before := list_texts(old)) != (after := list_texts(new))
    ]


def main(arguments: list[str]) -> int:
    """Execute the notebooks, print a line for each, and return the exit status."""
    write = "--write" in arguments
    paths = [Path(name) for name in arguments if name != "--write"]
    failures = list[str]()
    for path in paths or sorted(FOLDER.glob("*.ipynb")):
        began = time.perf_counter()
        notebook = execute(path)
        if write:
            text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True)
            path.write_text(f"{text}\n", encoding="utf-8")
        else:
            failures += compare(path, notebook)
        print(f"{path.name}: {time.perf_counter() - began:.0f} s")
    print("\n".join(failures))
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
