"""Draw the imports between the folders of the package, and between those of the engine.

`python tools/import_picture.py` writes `docs/pictures/imports.svg` and `engine_imports.svg`. A row
imports the columns that are marked; the number counts the importing files. Folders are in the order
of `docs/architecture.md`, lowest first, so a mark right of the diagonal would point up.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "penstock"
PAGE = ROOT / "docs" / "architecture.md"
PICTURES = ROOT / "docs" / "pictures"

CELL, NAME, GAP = 26, 118, 60  # pixels
_SHOWN = 4  # files named when the pointer is over a mark
_DARK, _LINE = "#1f2933", "#d9e2ec"
_FILL, _UP = "#2f6f9f", "#c0392b"

Edges = dict[tuple[str, str], set[str]]
"""The importing files of each pair of folders (importer, imported)."""


def read_orders() -> tuple[list[str], list[str]]:
    """Return the top folders and modules, and the folders of the engine, as the page lists them."""
    text = PAGE.read_text(encoding="utf-8")
    top = re.findall(r"\*\*`(\w+)`\*\*", text)
    engine = re.findall(r"^\| `(\w+)` \| [^`]", text, re.MULTILINE)
    return top, engine


def iter_imports(path: Path) -> Iterator[tuple[str, ...]]:
    """Yield the modules of the package that a file imports, as parts below the package."""
    package = path.relative_to(SOURCE).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            module = tuple(node.module.split(".")) if node.module else ()
            yield from ((*base, *module, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("penstock."):
            yield from (((*(node.module or "").split(".")[1:], alias.name)) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (
                tuple(alias.name.split(".")[1:])
                for alias in node.names
                if alias.name.startswith("penstock.")
            )


def collect_edges(folder: Path, names: list[str]) -> Edges:
    """Return the imports between the given folders and modules of a folder."""
    depth, edges = len(folder.relative_to(SOURCE).parts), Edges()
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        importer = parts[depth]
        for module in iter_imports(path):
            if module[:depth] != parts[:depth] or len(module) <= depth:
                continue
            imported = module[depth]
            if importer != imported and {importer, imported} <= {*names}:
                edges.setdefault((importer, imported), set()).add("/".join(parts) + ".py")
    return edges


def iter_marks(names: list[str], edges: Edges) -> Iterator[str]:
    """Yield the SVG elements of a table: a row for each importer, a mark for each import."""
    side = CELL * len(names)
    for row, importer in enumerate(names):
        y = CELL * row
        middle = y + CELL / 2 + 4
        yield f'<text x="{NAME - 8}" y="{middle}" class="n" text-anchor="end">{importer}</text>'
        x = NAME + CELL * row
        yield f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="{_LINE}"/>'
        yield f'<line x1="{NAME}" x2="{NAME + side}" y1="{y}" y2="{y}" stroke="{_LINE}"/>'
        for column, imported in enumerate(names):
            if files := edges.get((importer, imported)):
                x, color = NAME + CELL * column, _UP if column > row else _FILL
                shown = ", ".join(sorted(files)[:_SHOWN]) + ", ..." * (len(files) > _SHOWN)
                label = escape(f"{importer} imports {imported}: {shown}")
                yield (
                    f'<g><title>{label}</title><rect x="{x + 2}" y="{y + 2}" width="{CELL - 4}" '
                    f'height="{CELL - 4}" rx="3" fill="{color}"/><text x="{x + CELL / 2}" '
                    f'y="{middle}" class="c" text-anchor="middle">{len(files)}</text></g>'
                )
    for column, name in enumerate(names):
        x, y = NAME + CELL * column + CELL / 2 + 4, side + 8
        yield f'<text transform="translate({x},{y}) rotate(60)" class="n">{name}</text>'


def draw(folder: Path, names: list[str]) -> str:
    """Return the picture of the imports between the parts of a folder, lowest first."""
    width, height = NAME + CELL * len(names) + GAP, CELL * len(names) + NAME
    style = (
        f"text{{font-family:system-ui,sans-serif;fill:{_DARK}}}"
        f".n{{font-size:12px}}.c{{font-size:11px;fill:#fff}}"
    )
    label = f"Imports between the parts of {folder.name}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" role="img" aria-label="{label}"><style>{style}</style>',
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
            *iter_marks(names, collect_edges(folder, names)),
            "</svg>\n",
        ]
    )


def draw_all() -> dict[Path, str]:
    """Return the pictures by the files that hold them."""
    top, engine = read_orders()
    return {
        PICTURES / "imports.svg": draw(SOURCE, top),
        PICTURES / "engine_imports.svg": draw(SOURCE / "engine", engine),
    }


def main() -> None:
    """Write the pictures."""
    for path, picture in draw_all().items():
        path.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
