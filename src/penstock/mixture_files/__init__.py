"""Mixture files: load, check, write and compare the data description of a training run.

`model` has the contents of a file, `keys` its keys and their types. `check` and `lint` find errors,
`build` makes the dataset of a file, and `unbuild` the file of a dataset. May import the engine, sources,
stores and the public API below it, but no integration and no tool.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ..arguments import check_choice, make_not_dataset_error, validate_arguments
from ..dataset import Dataset
from ..errors import ConfigError, StorageError, convert_storage_errors
from ..stores import display_path
from ..stores.urls import redact_urls, require_local
from .build import build
from .check import parse_mixture, parse_tree
from .keys import build_schema
from .lint import lint
from .model import (
    SPLIT_PARTS,
    Batching,
    Chatting,
    MixtureFile,
    RunPosition,
    Scheduling,
    Shuffling,
    SourceEntry,
    SplitPart,
    Splitting,
    Stage,
    Tokenizing,
)
from .reading import GRANTS, Grant, Problem, ProblemLog, check_rights, read_text
from .unbuild import describe_dataset
from .write import convert_model, format_yaml, write

__all__ = [
    "GRANTS",
    "Batching",
    "Chatting",
    "Grant",
    "MixtureFile",
    "Problem",
    "RunPosition",
    "Scheduling",
    "Shuffling",
    "SourceEntry",
    "Splitting",
    "Stage",
    "Tokenizing",
    "build",
    "build_schema",
    "check_round_trip",
    "describe_dataset",
    "dump",
    "lint",
    "load",
    "read_model",
]


@validate_arguments
def load(path: str | Path, part: SplitPart = "train", *, allow: Collection[Grant] = ()) -> Dataset:
    r"""Load the dataset that a mixture file describes (see the page "Mixture files").

    Args:
        path: A YAML or JSON file; paths in it are relative to its folder.
        part: "held_out" gives the samples that `split` holds out of the sources, each once.
        allow: Rights of a file from a URL on this machine: "env" (`${NAME}`), "local_files",
            "cache". A local file has all of them.

    Returns:
        The dataset.

    Raises:
        ConfigError: The file has problems; the message lists all of them with file, line and key.

    >>> import penstock as ps, tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
    >>> _ = (folder / "mixture.yaml").write_text("sources: {a: {path: a.jsonl}}\nstop: all_exhausted\n")
    >>> sorted(row["x"] for row in ps.load(folder / "mixture.yaml"))
    [1, 2]
    """
    check_choice(part, SPLIT_PARTS, "load(part={})")
    model, problems = read_model(path, allow)
    if model is None or _select_errors(problems):
        # Without a description lint finds nothing more, and would ask an unreachable store again.
        found = sorted(set(problems)) if model is None else lint(path, allow=allow)
        raise ConfigError(format_problems(_select_errors(found)))
    if part == "held_out" and not (model := model.held_out()).sources:
        raise ConfigError(
            f"{display_path(path)}: nothing is held out; add a split, such as split: {{held_out: 1%}}"
        )
    try:
        with convert_storage_errors(display_path(path)):
            return build(model)
    except StorageError as error:
        if model.cache is None or model.cache not in str(error):
            raise
        raise ConfigError(format_problems([_place_error(model, "cache", error)])) from error
    except ConfigError as error:
        errors = _select_errors(lint(path, allow=allow))
        if not errors and "exclude: " in str(error):  # rows of files that lint does not index
            errors = [_place_error(model, "exclude", error)]
        raise ConfigError(
            format_problems(errors) if errors else f"{display_path(path)}: {error}"
        ) from error


@validate_arguments
def dump(mixture: Dataset | MixtureFile, path: str | Path) -> None:
    r"""Write a mixture file that loads to an equal dataset: same samples, same fingerprint.

    Args:
        mixture: A dataset, or a description of one.
        path: The file to write.

    Raises:
        ConfigError: The dataset has parts that a file cannot hold: functions, sources in memory,
            or steps unknown to mixture files. Also raised if `mixture` is no dataset.

    >>> import penstock as ps, tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
    >>> ds = ps.mix({"a": ps.read(folder / "a.jsonl").shuffle()}, seed=3).batch(4)
    >>> ps.dump(ds, folder / "mixture.yaml")
    >>> print((folder / "mixture.yaml").read_text().splitlines()[0])
    seed: 3
    """
    if not isinstance(mixture, Dataset | MixtureFile):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise make_not_dataset_error("dump", mixture)
    write(
        describe_dataset(mixture) if isinstance(mixture, Dataset) else mixture, require_local(path)
    )


def _place_error(model: MixtureFile, key: str, error: Exception) -> Problem:
    """Return an error as the problem of a key of the file."""
    node = model.marks.get(key, model.marks[""])
    return Problem(
        node.file, node.line, key, "error", redact_urls(str(error).replace(f"{key}: ", ""))
    )


def _select_errors(problems: list[Problem]) -> list[Problem]:
    return [problem for problem in problems if problem.severity == "error"]


def read_model(
    path: str | Path, allow: Collection[str] = ()
) -> tuple[MixtureFile | None, list[Problem]]:
    """Read the description of a mixture file and its problems, without looking at data.

    Returns:
        The description, as complete as the problems allow (None if the file cannot be read), and
        the problems in the order of lines.
    """
    notes = ProblemLog(allow=check_rights(allow))
    model = parse_mixture(path, notes)
    return model, sorted(notes.problems)


def check_round_trip(model: MixtureFile, path: str | Path) -> list[Problem]:
    """Return the problems that a description would have as a file at `path`.

    A description that was read from a file has none.

    Args:
        model: A description.
        path: A file that need not exist; paths are relative to its folder.

    Returns:
        The problems.
    """
    notes = ProblemLog()
    tree = read_text(
        format_yaml(convert_model(model, Path(path).absolute().parent)), str(path), notes
    )
    if tree is not None and parse_tree(tree, Path(path), notes) != model and not notes.problems:
        return [Problem(str(path), 1, "", "error", "the file would load as another mixture")]
    return sorted(notes.problems)


def format_problems(problems: list[Problem]) -> str:
    """Format problems as one message."""
    if len(problems) == 1:
        return str(problems[0])
    return f"{len(problems)} problems:\n" + "\n".join(f"  {problem}" for problem in problems)
