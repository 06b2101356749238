"""Mixtures written for other projects, read as mixture files; what cannot be carried over is named.

Known are the files of `KINDS`. They are read as plain data, Python by its syntax tree alone: nothing that they name is
imported, no code is run, no network is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from ...errors import ConfigError
from ...mixture_files import MixtureFile, Problem, unfit
from ...mixture_files.reading import Node, Notes, read_file
from . import (
    axolotl,
    dclm,
    dolma,
    energon,
    foundry,
    handbook,
    levanter,
    llamafactory,
    maxtext,
    megatron,
    nanotron,
    nemo,
    olmo,
    python,
)
from .parts import Files, Left

KINDS: dict[str, ModuleType] = {
    "energon": energon,
    "levanter": levanter,
    "olmo-core": olmo,
    "llm-foundry": foundry,
    "nemo": nemo,
    "llamafactory": llamafactory,
    "axolotl": axolotl,
    "megatron": megatron,
    "nanotron": nanotron,
    "handbook": handbook,
    "maxtext": maxtext,
    "dolma": dolma,
    "dclm": dclm,
    "python": python,
}
"""Names of the formats, in the order in which they are looked for."""


def convert(
    path: str | Path,
    kind: str | None = None,
    pick: str | None = None,
    *,
    files: Mapping[str, str] | None = None,
    ranks: int = 1,
) -> tuple[MixtureFile, list[Problem]]:
    """A file of another project as the description of a mixture file, and everything that it does not carry over.

    Of the problems, warnings are what is lost, and notes are what one should know about the rest; each with file, line
    and key. Write the description with `ps.dump`.

    Args:
        path: the file.
        kind: its format, one of `KINDS`; found from what the file holds where it is not said.
        pick: which of several: the split of an Energon metadataset ("train"), the mixture of a Python file.
        files: where data lies here: a source's name, a dataset's name on a hub, or how a path begins (`gs://bucket/`)
            -> a path; `*` is for all other sources, and `{name}` in its path their names.
        ranks: how many ranks the run has: a batch that the file means for all is shared out to them, and one that it
            means for each is theirs.

    Raises:
        ConfigError: where the file cannot be read, holds no source that a mixture file could name, or `files` says
            something that nothing is.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "mix.yaml"
    >>> _ = file.write_text(
    ...     "sources:\\n- {source_name: web, target_ratio: 0.75, paths: [web.jsonl]}\\n"
    ...     "- {source_name: code, target_ratio: 0.25, paths: [code.jsonl]}\\nsampling: odd\\n"
    ... )
    >>> model, problems = convert(file)
    >>> model.names, model.shares(), [problem.key for problem in problems if problem.severity == "warning"]
    (('web', 'code'), {'web': 0.75, 'code': 0.25}, ['sampling'])
    """
    tree = _tree(Path(path))
    found = kind_of(tree) if kind is None else kind
    if found is None:
        known = ", ".join(KINDS)
        raise ConfigError(
            f"{path}: its format is not clear from what it holds; say which, by kind= (on the command "
            f"line --from): one of {known}"
        )
    if found not in KINDS:
        raise ConfigError(f"unknown kind {found!r}: one of {', '.join(KINDS)}")
    if not KINDS[found].is_mine(tree):
        raise ConfigError(f"{path}: this is no {found} file")
    if pick is not None and found not in ("energon", "python"):
        raise ConfigError(f"{path}: pick={pick!r}: there is only one mixture in {found} files")
    left = Left(files=Files(files or {}), ranks=ranks)
    more = () if pick is None else (pick,)
    try:
        model: MixtureFile = KINDS[found].convert(tree, left, *more)
    except ConfigError as error:
        why = [str(one) for one in sorted(set(left.problems)) if one.severity == "warning"]
        raise ConfigError("\n".join([str(error), *why])) from None
    if unused := left.files.unused():
        raise ConfigError(f"files: nothing in {path} is called {unused[0]!r}; its sources are {', '.join(model.names)}")
    if wrong := unfit(model, path):
        raise ConfigError(
            "\n".join(f"{path}: what it says makes no mixture: {one.key}: {one.message}" for one in wrong)
        )
    return model, sorted(set(left.problems))


def _tree(path: Path) -> Node:
    """What a file holds; of Python code its text."""
    if path.suffix == ".py":
        return python.read(path)
    notes = Notes()
    tree = read_file(path, notes, variables=False)
    if tree is None or notes.problems:
        raise ConfigError("; ".join(map(str, notes.problems)))
    return tree


def kind_of(tree: Node) -> str | None:
    """The format of a file; `None` where none or several fit."""
    fits = [name for name, module in KINDS.items() if module.is_mine(tree)]
    return fits[0] if len(fits) == 1 else None
