"""Mixture files: a training's data as a file that can be read, checked, compared and loaded."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ..dataset import Dataset
from ..engine.base.hints import chosen, guided, no_dataset
from ..engine.base.urls import local
from ..errors import ConfigError, storage
from ..stores import display_path
from .build import build
from .check import parse, parsed
from .keys import schema
from .lint import lint
from .model import (
    PARTS,
    Batching,
    MixtureFile,
    Part,
    Place,
    Scheduling,
    Shuffling,
    SourceEntry,
    Splitting,
    Stage,
    Tokenising,
)
from .reading import GRANTS, Grant, Notes, Problem, granted, read_text
from .unbuild import model_of
from .write import text_of, tree_of, write

__all__ = [
    "GRANTS",
    "Batching",
    "Grant",
    "MixtureFile",
    "Place",
    "Problem",
    "Scheduling",
    "Shuffling",
    "SourceEntry",
    "Splitting",
    "Stage",
    "Tokenising",
    "build",
    "dump",
    "lint",
    "load",
    "model_of",
    "read_model",
    "schema",
    "unfit",
]


@guided
def load(path: str | Path, part: Part = "train", *, allow: Collection[Grant] = ()) -> Dataset:
    """The dataset that a mixture file describes; see the page "Mixture files" for all it may say.

    Raises `ConfigError` with everything that is wrong in the file, each with file, line and key.

    Args:
        path: a YAML or JSON file; paths in it are relative to its folder.
        part: "held_out" gives what its `split` holds out of the sources, each sample once.
        allow: what a file from a URL may use of this machine: "env" (`${NAME}`), "local_files",
            "cache". A local file may use all of it.

    >>> import penstock as ps, tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.jsonl").write_text('{"x": 1}\\n{"x": 2}\\n')
    >>> _ = (folder / "mixture.yaml").write_text("sources: {a: {path: a.jsonl}}\\nstop: all_exhausted\\n")
    >>> sorted(row["x"] for row in ps.load(folder / "mixture.yaml"))
    [1, 2]
    """
    chosen(part, PARTS, "load(part={})")
    model, problems = read_model(path, allow)
    if model is None or _errors(problems):
        raise ConfigError(said(_errors(lint(path, allow=allow))))
    if part == "held_out" and not (model := model.held_out()).sources:
        raise ConfigError(
            f"{display_path(path)}: nothing is held out; say how much: split: {{held_out: 1%}}"
        )
    try:
        with storage(display_path(path)):
            return build(model)
    except ConfigError as error:
        found = _errors(lint(path, allow=allow))
        raise ConfigError(said(found) if found else f"{display_path(path)}: {error}") from error


@guided
def dump(mixture: Dataset | MixtureFile, path: str | Path) -> None:
    """Write a mixture file that loads to an equal dataset: the same samples, the same fingerprint.

    What a file cannot hold is refused by name: functions, sources in memory, and steps other than
        those that mixture
    files know.

    Args:
        mixture: a dataset, or a description of one.
        path: the file to write.

    Raises:
        ConfigError: for what a file cannot hold, and for what is no dataset.

    >>> import penstock as ps, tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.jsonl").write_text('{"x": 1}\\n{"x": 2}\\n')
    >>> ds = ps.mix({"a": ps.read(folder / "a.jsonl").shuffle()}, seed=3).batch(4)
    >>> ps.dump(ds, folder / "mixture.yaml")
    >>> print((folder / "mixture.yaml").read_text().splitlines()[0])
    seed: 3
    """
    if not isinstance(mixture, Dataset | MixtureFile):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise no_dataset("dump", mixture)
    write(model_of(mixture) if isinstance(mixture, Dataset) else mixture, local(path))


def _errors(problems: list[Problem]) -> list[Problem]:
    return [problem for problem in problems if problem.severity == "error"]


def read_model(
    path: str | Path, allow: Collection[str] = ()
) -> tuple[MixtureFile | None, list[Problem]]:
    """The description of a mixture file, and all that is wrong in what it says; no data is looked
    at.

    The description is as complete as the problems allow; `None` where the file cannot be read at
    all.
    """
    notes = Notes(allow=granted(allow))
    model = parse(path, notes)
    return model, sorted(notes.problems)


def unfit(model: MixtureFile, path: str | Path) -> list[Problem]:
    """What would be wrong in a file of a description, which lay at `path`; nothing of one that was
    read."""
    notes = Notes()
    tree = read_text(text_of(tree_of(model, Path(path).absolute().parent)), str(path), notes)
    if tree is not None and parsed(tree, Path(path), notes) != model and not notes.problems:
        return [Problem(str(path), 1, "", "error", "it would be read as another mixture")]
    return sorted(notes.problems)


def said(problems: list[Problem]) -> str:
    """Problems as one message."""
    if len(problems) == 1:
        return str(problems[0])
    return f"{len(problems)} problems:\n" + "\n".join(f"  {problem}" for problem in problems)
