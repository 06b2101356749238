"""The code in the README and in the docs runs, page by page, and shows what it gives: see `docs_page.py`.

Commands of `docs/command-line.md` run beside the files of `command_pages.py`. Other pages that do not
make their own data run in a folder with a little data in `data/`:

- `data/code/*.parquet`: 2 files, 60 rows of `text` and `path`
- `data/text/*.jsonl.gz`: 2 files, 90 rows of `text`
- `data/pairs.arrow`: 40 rows of `instruction` and `answer`

and beside it

- `mds/code`, `mds/text`: MDS shards, 100 and 200 rows of `text`
- `photos/*.tar`: 3 tars, 12 samples of `png` and `json`
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from command_pages import make_command_data
from docs_page import DOCS, ROOT, SELF_CONTAINED, blocks, require_equal_output, run, run_page
from foreign_formats import write_mds
from helpers import imports_a_framework, slow_if

PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
COMMAND_LINE = DOCS / "command-line.md"
RAY = 'executor="ray"'  # such a page runs in a process of its own: a cluster forks, and leaves threads


def code_of(page: Path) -> str:
    """Join the Python blocks of a page."""
    return "\n".join(code for _, language, code in blocks(page) if language == "python")


def make_data(folder: Path) -> None:
    """Write the data that pages of the guide read."""
    for name in ("data/code", "data/text"):
        (folder / name).mkdir(parents=True)
    for part in range(2):
        rows = [
            {"text": f"def f{i}():\n    return {i}\n" * (1 + i % 5), "path": f"f{i}.py"}
            for i in range(30)
        ]
        pq.write_table(
            pa.Table.from_pylist(rows), folder / f"data/code/part-{part}.parquet", row_group_size=10
        )
        with gzip.open(folder / f"data/text/part-{part}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(
                json.dumps({"text": f"Page {i}. " * (1 + i % 7)}) + "\n" for i in range(45)
            )
    pairs = [{"instruction": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(40)]
    table = pa.Table.from_pylist(pairs)
    with (
        pa.OSFile(str(folder / "data/pairs.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table, max_chunksize=16)
    for name, count in (("code", 100), ("text", 200)):
        rows = [{"text": f"{name} {i}"} for i in range(count)]
        write_mds(folder / "mds" / name, rows, {"text": "str"}, shard=50)
    (folder / "photos").mkdir()
    for shard in range(3):
        with tarfile.open(folder / f"photos/part-{shard}.tar", "w") as tar:
            for i in range(4 * shard, 4 * shard + 4):
                picture = io.BytesIO()
                Image.fromarray(np.full((4, 6, 3), i, np.uint8)).save(picture, "png")
                facts = json.dumps({"number": i}).encode()
                for part, body in {"png": picture.getvalue(), "json": facts}.items():
                    info = tarfile.TarInfo(f"{i:03}.{part}")
                    info.size = len(body)
                    tar.addfile(info, io.BytesIO(body))


def case(page: Path) -> Any:
    """A page, marked slow if it imports a framework, begins a cluster, or has many commands."""
    code = code_of(page)
    name = page.relative_to(DOCS).with_suffix("").as_posix() if DOCS in page.parents else page.stem
    slow = imports_a_framework(code) or RAY in code or page == COMMAND_LINE
    return pytest.param(page, id=name, marks=slow_if(slow))


@pytest.mark.parametrize("page", [case(page) for page in PAGES])
def test_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    # A process of its own, as a reader has: counters of the process, such as retries, begin at 0.
    if RAY in code_of(page) or page in SELF_CONTAINED:
        ended = subprocess.run(
            [sys.executable, ROOT / "tests" / "docs_page.py", page],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "RAY_ADDRESS": "local"},
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0, ended.stderr
        return
    if page == COMMAND_LINE:
        make_command_data(tmp_path)
    elif page not in SELF_CONTAINED:
        make_data(tmp_path)
    run_page(page)


def test_a_wrong_value_is_found() -> None:
    run("x = 2\nx + 1  # 3\n", {}, "here", 1)
    with pytest.raises(AssertionError, match="line 12: the page says 4, it is 3"):
        run("x = 2\n\nx + 1  # 4\n", {}, "here", 10)


def test_a_wrong_output_is_found() -> None:
    require_equal_output("a\n...\nd", "a\nb\nc\nd\n", "here")
    with pytest.raises(AssertionError, match="here: the page shows"):
        require_equal_output("a", "b", "here")


def test_commands_that_fail_or_print_something_else_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text("```console\n$ penstock plan missing.yaml\n```\n")
    with pytest.raises(AssertionError, match=r"line 2: penstock plan missing.yaml fails:"):
        run_page(page)
    page.write_text("```console\n$ penstock plan missing.yaml\n...\n```\n")
    with pytest.raises(AssertionError, match=r"line 2: penstock plan missing.yaml fails:"):
        run_page(page)
    page.write_text("```console\n$ penstock --version\npenstock 0\n```\n")
    with pytest.raises(AssertionError, match="line 2: the page shows"):
        run_page(page)


def test_promises_name_tests_that_exist() -> None:
    text = (DOCS / "promises.md").read_text(encoding="utf-8")
    tests = re.findall(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`", text)
    assert sum(bool(test) for _, test in tests) > 10
    for file, test in tests:
        assert (ROOT / file).exists(), f"there is no {file}"
        assert not test or f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), (
            f"there is no {test} in {file}"
        )


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def list_anchors(page: Path) -> set[str]:
    """Return the anchors of a page: its headings, and ids in HTML."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    slugs = (re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings)
    return {*slugs, *re.findall(r'id="([^"]+)"', text)}


def test_anchors_of_links_exist() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\(([^)#:]*\.md|)#([^)]+)\)", text):
            anchors = list_anchors(page.parent / target if target else page)
            assert anchor in anchors, f"{page.name} links to {target}#{anchor}"


def test_members_in_the_reference_exist() -> None:
    text = (DOCS / "reference.md").read_text(encoding="utf-8")
    for entry in text.split("\n::: ")[1:]:
        documented = resolve_name(entry.partition("\n")[0])
        for members in re.findall(r"members: \[([^\]]*)\]", entry):
            for name in re.findall(r"\w+", members):
                assert hasattr(documented, name), f"{documented.__name__} has no {name}"
