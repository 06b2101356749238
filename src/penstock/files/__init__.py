"""Mixture files: a training's data as a file that can be read, checked, compared and loaded."""

from __future__ import annotations

from pathlib import Path

from ..dataset import Dataset
from ..errors import ConfigError
from .build import build
from .check import parse
from .keys import schema
from .model import Batching, MixtureFile, Scheduling, Shuffling, SourceEntry, Tokenising
from .reading import Notes, Problem

__all__ = [
    "Batching",
    "MixtureFile",
    "Problem",
    "Scheduling",
    "Shuffling",
    "SourceEntry",
    "Tokenising",
    "build",
    "load",
    "read_model",
    "schema",
]


def load(path: str | Path) -> Dataset:
    """The dataset that a mixture file describes; see the page "Mixture files" for all it may say.

    Raises `ConfigError` with everything that is wrong in the file, each with file, line and key.

    >>> import penstock as ps, tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.jsonl").write_text('{"x": 1}\\n{"x": 2}\\n')
    >>> _ = (folder / "mixture.yaml").write_text("sources: {a: {path: a.jsonl}}\\nstop: all_exhausted\\n")
    >>> sorted(row["x"] for row in ps.load(folder / "mixture.yaml"))
    [1, 2]
    """
    model, problems = read_model(path)
    errors = [problem for problem in problems if problem.severity == "error"]
    if model is None or errors:
        raise ConfigError(said(errors))
    try:
        return build(model)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def read_model(path: str | Path) -> tuple[MixtureFile | None, list[Problem]]:
    """The description of a mixture file, and all that is wrong in what it says; no data is looked at.

    The description is as complete as the problems allow; `None` where the file cannot be read at all.
    """
    notes = Notes()
    model = parse(path, notes)
    return model, sorted(notes.problems)


def said(problems: list[Problem]) -> str:
    """Problems as one message."""
    if len(problems) == 1:
        return str(problems[0])
    return f"{len(problems)} problems:\n" + "\n".join(f"  {problem}" for problem in problems)
