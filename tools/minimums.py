"""Prints the lowest versions that pyproject.toml allows, of the dependencies and of the extras
named, for pip."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def minimums(project: dict[str, object], extras: list[str]) -> list[str]:
    """Return `name==version` for each requirement, with the version behind its `>=`.

    >>> minimums({"dependencies": ["numpy>=1.26"], "optional-dependencies": {"cli": ["typer>=0.12,<0.29"]}}, ["cli"])
    ['numpy==1.26', 'typer==0.12']
    """
    optional: dict[str, list[str]] = project["optional-dependencies"]  # type: ignore[assignment]
    wanted: list[str] = project["dependencies"]  # type: ignore[assignment]
    wanted = [*wanted, *(requirement for extra in extras for requirement in optional[extra])]
    return list(
        dict.fromkeys(
            re.sub(r"^([^<>=]+)>=([^,]+).*", r"\1==\2", requirement) for requirement in wanted
        )
    )


if __name__ == "__main__":
    pyproject = Path(__file__).resolve().parent.parent / "pyproject.toml"
    print(*minimums(tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"], sys.argv[1:]))
