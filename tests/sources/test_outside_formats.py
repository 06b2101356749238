"""Formats that other packages bring: found where they are installed, and nowhere else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock as ps

ROOT = Path(__file__).resolve().parents[2]

MODULE = """
import json

def files(folder):
    index = folder / "parts.json"
    return [folder / name for name in json.loads(index.read_text())] if index.exists() else []

def open(path):
    return path.read_text().splitlines()
"""
SCRIPT = """
import json, sys
import penstock as ps
import penstock.mixture_files

found = []
for paths, options in json.loads(sys.argv[1]):
    try:
        if paths.endswith(".yaml"):
            print(*ps.mixture_files.lint(paths), file=sys.stderr)
        ds = ps.load(paths)[:12] if paths.endswith(".yaml") else ps.read(paths, **options)
        found.append([list(ds.shuffle(seed=1)), sorted(ds, key=str), ds.plan.sources])
    except Exception as error:
        found.append(f"{type(error).__name__}: {error}")
print(json.dumps(found))
"""


def install(site: Path, entry: str = "pages = a_format_of_pages", package: str = "pages") -> None:
    """Write the files of an installed package: a module, and its metadata."""
    info = site / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[penstock.formats]\n{entry}\n")
    (site / "a_format_of_pages.py").write_text(MODULE)


def asked(folder: Path, *questions: tuple[str, dict[str, Any]]) -> list[Any]:
    """Read in a new process in `folder / "data"`, with packages in `folder / "user"`."""
    (folder / "data").mkdir(exist_ok=True)
    found = {"PYTHONUSERBASE": str(folder / "user"), "PYTHONPATH": f"{ROOT / 'src'}"}
    command = [sys.executable, "-c", SITE + SCRIPT, json.dumps(questions)]
    done = subprocess.run(
        command,
        cwd=folder / "data",
        env=os.environ | found,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0 and not done.stderr.strip(), done.stderr
    return json.loads(done.stdout)


# A virtual environment leaves the user's folder out; what lies there is then not installed for it.
SITE = "import site, sys; sys.path.append(site.getusersitepackages())\n"


def user(folder: Path) -> Path:
    """Where packages of a user lie."""
    return (
        folder
        / "user"
        / "lib"
        / f"python{sys.version_info[0]}.{sys.version_info[1]}"
        / "site-packages"
    )


def write(folder: Path) -> None:
    (folder / "data").mkdir()
    for part in range(3):
        (folder / "data" / f"{part}.pages").write_text("".join(f"{part}{line}\n" for line in "ab"))
    (folder / "data" / "whole.pages").mkdir()
    (folder / "data" / "whole.pages" / "x").write_text("x\ny\n")
    (folder / "data" / "whole.pages" / "parts.json").write_text('["x"]')


def test_an_installed_format_is_found_by_ending_and_by_name(tmp_path: Path) -> None:
    write(tmp_path)
    install(user(tmp_path))
    (tmp_path / "data" / "plain.txt").write_text("p\nq\n")
    rows, named, dataset, other, wrong = asked(
        tmp_path,
        ("?.pages", {}),
        (".", {"format": "pages"}),
        ("whole.pages", {}),
        ("plain.txt", {"format": "pages"}),
        ("?.pages", {"columns": ["text"]}),
    )
    assert (
        rows[1] == ["0a", "0b", "1a", "1b", "2a", "2b"]
        and sorted(rows[0]) == rows[1]
        and rows[2] == ["data"]
    )
    assert named[1] == rows[1]
    assert dataset[1] == ["x", "y"] and other[1] == ["p", "q"]
    assert "columns= does not apply to a custom format: the function pages decides" in wrong


def test_a_mixture_file_names_it_by_the_ending(tmp_path: Path) -> None:
    write(tmp_path)
    install(user(tmp_path))
    (tmp_path / "data" / "mixture.yaml").write_text("sources:\n  p: {path: '?.pages', weight: 1}\n")
    ((_, rows, _),) = asked(tmp_path, ("mixture.yaml", {}))
    assert rows == sorted(["0a", "0b", "1a", "1b", "2a", "2b"] * 2)


def test_a_format_beside_the_data_is_not_installed(tmp_path: Path) -> None:
    write(tmp_path)
    install(tmp_path / "data")
    (tmp_path / "data" / "a_format_of_pages.py").write_text("raise SystemExit('it ran')")
    by_ending, by_name = asked(tmp_path, ("?.pages", {}), ("?.pages", {"format": "pages"}))
    assert "names no format" in by_ending and "format='pages'" in by_name


def test_two_packages_of_one_format_are_refused_and_so_is_what_is_none(tmp_path: Path) -> None:
    write(tmp_path)
    install(user(tmp_path))
    install(user(tmp_path), package="others")
    install(user(tmp_path), "numbers = a_format_of_pages:nothing", package="numbers")
    install(user(tmp_path), "lists = json", package="lists")
    two, missing, none = asked(
        tmp_path,
        ("?.pages", {}),
        ("?.pages", {"format": "numbers"}),
        ("?.pages", {"format": "lists"}),
    )
    assert (
        "several packages bring the format 'pages'" in two and "others (a_format_of_pages)" in two
    )
    assert "the format 'numbers' (a_format_of_pages:nothing) cannot be loaded" in missing
    assert (
        "the format 'lists' (json): module has no files, open; see Format in penstock.types" in none
    )


def test_a_format_of_ours_cannot_be_taken_over(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    install(user(tmp_path), "text = a_format_of_pages", package="text")
    install(user(tmp_path), "txt = a_format_of_pages", package="txt")
    (tmp_path / "data" / "a.txt").write_text("1\n\n2\n")
    for _, rows, _ in asked(tmp_path, ("a.txt", {}), ("a.txt", {"format": "text"})):
        assert rows == [{"text": "1"}, {"text": "2"}]


def test_a_format_that_nobody_brings_is_named(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(ps.ConfigError, match="format='pages'.*choose"):
        ps.read(tmp_path / "data" / "0.pages", format="pages")
