"""A hook of MkDocs: a page for each notebook of the docs, with its stored outputs.

Links to `NAME.ipynb` lead to the page of the notebook, whose first line leads to the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import escape
from typing import Any


def on_files(files: Any, config: Any) -> Any:
    """Add a generated page for each notebook."""
    from mkdocs.structure.files import File

    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            with open(file.abs_src_path, encoding="utf-8") as stream:
                content = "\n\n".join(render_cells(json.load(stream)["cells"], file.name))
            page = file.src_uri.removesuffix(".ipynb") + ".md"
            files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links to notebooks lead to their pages."""
    return re.sub(r"\]\(((?:\.\./)*(?:notebooks/)?\w+)\.ipynb\)", r"](\1.md)", markdown)


def render_cells(cells: list[dict[str, Any]], name: str) -> Iterator[str]:
    """Yield the parts of a page of Markdown: texts, code, and outputs as HTML or text."""
    for number, cell in enumerate(cells):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield source
            if number == 0:
                yield f'<a href="{name}.ipynb" download>Download the notebook</a>'
            continue
        yield f"```python\n{source}\n```"
        for output in cell["outputs"]:
            data = output.get("data", {})
            text = "".join(data.get("text/plain") or output.get("text", ""))
            html = "".join(data.get("text/html", "")) or f"<pre>{escape(text)}</pre>"
            # On one line: the parser of Markdown would read HTML after a blank line.
            yield f'<div class="notebook-output">{html.replace(chr(10), "&#10;")}</div>'
