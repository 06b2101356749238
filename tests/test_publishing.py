"""What `make dist`, `make extras`, `make lock` and `make test-changed` rely on; the targets run nightly."""

from __future__ import annotations

import doctest
import importlib.util
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCK = (ROOT / "constraints.txt").read_text(encoding="utf-8")


def load_tool(name: str) -> ModuleType:
    """Import a script of tools/."""
    spec = importlib.util.spec_from_file_location(f"tool_{name}", ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["changed_tests", "install", "lock", "text_pages"])
def test_examples_of_tools_run(name: str) -> None:
    outcome = doctest.testmod(load_tool(name))
    assert outcome.attempted and not outcome.failed


def test_every_extra_has_a_check_and_a_page_that_names_it() -> None:
    checks = load_tool("extra_checks").CHECKS
    untested = load_tool("distribution").UNTESTED
    assert set(checks) == set(PROJECT["project"]["optional-dependencies"]) - untested
    for name, check in checks.items():
        pages = re.findall(r"(?:docs/[\w/-]+|README)\.md", check.__doc__ or "")
        assert pages and all((ROOT / page).exists() for page in pages), name


def test_the_site_gets_a_text_of_every_page_and_a_list_of_them(tmp_path: Path) -> None:
    tool = load_tool("text_pages")

    def make_page(path: str, title: str, markdown: str, html: str = "") -> SimpleNamespace:
        page = SimpleNamespace(
            file=SimpleNamespace(src_uri=path), title=title, is_section=False, is_page=True
        )
        tool.on_page_markdown(markdown, page)
        tool.on_page_content(html, page)
        return page

    pages = [
        make_page("index.md", "Home", "# Home\n\nIt mixes\nsources. More.\n"),
        make_page("tasks/api.md", "API", "::: penstock.mix\n", "<h3>mix</h3><p>Mix <b>it</b>.</p>"),
    ]
    section = SimpleNamespace(is_section=True, is_page=False, title="Reference", children=pages[1:])
    config: dict[str, Any] = {"site_dir": tmp_path, "site_name": "P", "site_description": "D"}
    config["extra"] = {}
    tool.on_nav(SimpleNamespace(items=[pages[0], section]), config)
    tool.on_post_build(config)
    assert (tmp_path / "index.md").read_text().startswith("# Home\n")
    assert (tmp_path / "tasks/api.md").read_text() == "### mix\n\nMix it.\n"
    listed = (tmp_path / "llms.txt").read_text()
    assert "- [Home](index.md): It mixes sources.\n" in listed
    assert "## Reference\n\n- [API](tasks/api.md): Mix it.\n" in listed


def make_wheel(folder: Path, *surplus: str) -> Path:
    path = folder / "penstock_data-0.1.0-py3-none-any.whl"
    names = ("penstock/__init__.py", "penstock/py.typed", "p.dist-info/licenses/LICENSE", *surplus)
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            file.writestr(name, "")
    return path


def test_a_wheel_with_tests_or_pictures_or_without_types_is_an_error(tmp_path: Path) -> None:
    tool = load_tool("distribution")
    tool.check_wheel(make_wheel(tmp_path))
    for surplus in ("tests/test_a.py", "penstock/plan.svg", "penstock/__pycache__/a.pyc"):
        with pytest.raises(RuntimeError, match=re.escape(surplus)):
            tool.check_wheel(make_wheel(tmp_path, surplus))
    wheel = tmp_path / "empty.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("penstock/__init__.py", "")
    with pytest.raises(RuntimeError, match=r"py\.typed"):
        tool.check_wheel(wheel)


def test_the_lock_has_every_package_of_development_and_names_no_index() -> None:
    locked = {line.split("==")[0] for line in LOCK.splitlines() if "==" in line}
    optional = PROJECT["project"]["optional-dependencies"]
    wanted = set[str]()
    stack = [*PROJECT["project"]["dependencies"], *optional["dev"], *optional["publish"]]
    while stack:
        requirement = stack.pop()
        name, _, extras = re.split(r"[<>=]", requirement)[0].partition("[")
        if name == "penstock-data":
            stack += [item for extra in extras.rstrip("]").split(",") for item in optional[extra]]
        else:
            wanted.add(name.lower())
    assert wanted <= locked, f"run `make lock`: {sorted(wanted - locked)}"
    assert "://" not in LOCK and "--" not in LOCK
    assert re.search(r"^torch==2\.13\.0$", LOCK, re.MULTILINE)
    assert not re.search(r"^(nvidia|cuda|triton)", LOCK, re.MULTILINE)


def test_an_install_shows_its_progress_and_the_error_of_pip(
    tmp_path: Path,
) -> None:
    pip = tmp_path / "python"
    pip.write_text(
        '#!/bin/sh\necho "$@" > arguments\necho Collecting numpy\n'
        "echo Installing collected packages: numpy\necho ERROR: the disk is full >&2\nexit 3\n"
    )
    pip.chmod(0o755)
    command = [sys.executable, ROOT / "tools" / "install.py", pip, "--editable", ".[dev]"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 3
    assert ended.stdout.startswith("pip install .[dev]\n")
    assert "1 packages: installing 1 packages" in ended.stdout
    assert "ERROR: the disk is full" in ended.stdout and "pip failed after" in ended.stdout
    arguments = (tmp_path / "arguments").read_text()
    assert "--editable .[dev]" in arguments and "constraints.txt" in arguments
    subprocess.run([*command, "--no-lock"], cwd=tmp_path, capture_output=True)
    assert "constraints.txt" not in (tmp_path / "arguments").read_text()


def test_a_change_is_tested_by_its_neighbours(tmp_path: Path) -> None:
    find_tests = load_tool("changed_tests").find_tests
    (tmp_path / "tests/sources").mkdir(parents=True)
    (tmp_path / "tests/sources/test_lines.py").touch()
    (tmp_path / "tests/sources/test_other.py").write_text(
        "from penstock.sources import json_form\n"
    )
    assert find_tests("src/penstock/sources/lines.py", tmp_path) == ["tests/sources/test_lines.py"]
    assert find_tests("src/penstock/sources/json_form.py", tmp_path) == [
        "tests/sources/test_other.py"
    ]
    assert find_tests("src/penstock/sources/new.py", tmp_path) == ["tests/sources"]
    assert find_tests("tests/sources/test_gone.py", tmp_path) == []
    assert find_tests("bench/run.py", tmp_path) == []
