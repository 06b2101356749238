"""The distribution is `penstock-data`, since `penstock` on the package index is another project."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import DISTRIBUTION_NAME, install_command, make_missing_extra_error

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]

CHECKED = (
    *("src", "docs", "examples", "tools", "bench", ".ci"),
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "pyproject.toml", "mkdocs.yml"),
)
# `penstock[zstd]`, or an installer, its options and the bare word; `tests` quote neither.
FOREIGN = re.compile(
    r"(?<![\w.-])penstock\["
    r"|\b(?:pip3?|pipx|uv|poetry|conda|mamba)\s+(?:pip\s+)?(?:install|add)\b[^\n`]*?[\s'\"]penstock(?![\w/.-])"
)


def texts() -> Iterator[tuple[str, str]]:
    """Yield the name and text of every tracked text file that a user may copy a command from."""
    listed = subprocess.run(
        ["git", "ls-files", *CHECKED], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode == 0:
        names = listed.stdout.split("\n")
    else:  # a source distribution has no git folder
        names = [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*")]
        names = [name for name in names if name.startswith(CHECKED)]
    for name in names:
        path = ROOT / name
        if path.is_file() and path.suffix in ("", ".py", ".md", ".toml", ".yml", ".yaml", ".ipynb"):
            yield name, path.read_text(encoding="utf-8")


def foreign_installs(text: str) -> list[int]:
    """Return the numbers of the lines that name the foreign package to an installer."""
    return [number for number, line in enumerate(text.splitlines(), 1) if FOREIGN.search(line)]


@pytest.mark.parametrize(
    "line",
    [
        "pip install penstock",
        "`pip install penstock` has the core",
        "pip install --upgrade 'penstock'",
        "uv add penstock",
        "uv pip install penstock==0.1.0",
        'dependencies = ["penstock[zstd]"]',
        "needs `penstock[hf]`",
    ],
)
def test_a_foreign_install_is_found(line: str) -> None:
    assert foreign_installs(line) == [1]


@pytest.mark.parametrize(
    "line",
    [
        "pip install penstock-data",
        "pip install 'penstock-data[zstd]'",
        "pip install -e /src/penstock",
        "`pip install torch`, then `import penstock`",
        "git clone <this repository> penstock && cd penstock",
        "penstock install",
    ],
)
def test_other_lines_are_not_reported(line: str) -> None:
    assert foreign_installs(line) == []


def test_nothing_tells_anyone_to_install_a_foreign_package() -> None:
    names, violations = list[str](), list[str]()
    for name, text in texts():
        names.append(name)
        violations += [f"{name}:{line}: say {DISTRIBUTION_NAME}" for line in foreign_installs(text)]
    assert len(names) > 400 and "README.md" in names
    assert not violations, "\n" + "\n".join(violations)


def test_pyproject_has_the_name_and_the_version_of_the_package() -> None:
    assert PROJECT["project"]["name"] == DISTRIBUTION_NAME
    assert PROJECT["project"]["version"] == penstock.__version__


def test_the_project_requires_only_extras_of_its_own() -> None:
    required = [requirement for extra in EXTRAS.values() for requirement in extra]
    own = [requirement for requirement in required if requirement.startswith("penstock")]
    assert own
    for requirement in own:
        name, _, extras = requirement.removesuffix("]").partition("[")
        assert name == DISTRIBUTION_NAME and set(extras.split(",")) <= set(EXTRAS), requirement


def test_every_extra_that_an_error_names_exists() -> None:
    calls = re.compile(
        r"(?:missing_extra_error\(\s*[^,()]+,|install_command\()\s*['\"]([\w-]+)['\"]"
    )
    named = {
        extra for name, text in texts() if name.startswith("src") for extra in calls.findall(text)
    }
    assert {"ray", "processes", "zstd", "hf"} <= named <= set(EXTRAS)


def test_an_error_about_a_missing_extra_names_the_distribution() -> None:
    error = make_missing_extra_error("zstandard", "zstd", "reading a.zst")
    command = "pip install 'penstock-data[zstd]'"
    assert str(error) == f"reading a.zst needs the package 'zstandard': {command}"
    assert install_command("zstd") == command


def test_the_bench_finds_the_version_of_penstock_without_an_installation() -> None:
    from bench.machine import version
    from bench.peers.penstock import PEER

    assert DISTRIBUTION_NAME in PEER.needs
    assert version(DISTRIBUTION_NAME) == penstock.__version__
