"""Mixtures written for other projects, read as mixture files; what cannot be carried over is named.

Known are the files of Megatron-Energon, Levanter, OLMo-core, llm-foundry, NeMo, LLaMA-Factory and axolotl. They are
read as plain data: nothing that they name is imported, no code is run, no network is used.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from ...errors import ConfigError
from ...mixture_files import MixtureFile, Problem
from ...mixture_files.reading import Node, Notes, read_file
from . import axolotl, energon, foundry, levanter, llamafactory, nemo, olmo
from .parts import Left

KINDS: dict[str, ModuleType] = {
    "energon": energon,
    "levanter": levanter,
    "olmo-core": olmo,
    "llm-foundry": foundry,
    "nemo": nemo,
    "llamafactory": llamafactory,
    "axolotl": axolotl,
}
"""Names of the formats, in the order in which they are looked for."""


def convert(path: str | Path, kind: str | None = None, split: str = "train") -> tuple[MixtureFile, list[Problem]]:
    """A file of another project as the description of a mixture file, and everything that it does not carry over.

    The format is found from what the file holds where `kind` does not say it (one of `KINDS`). What is left out is
    named with file, line and key; write the rest with `ps.dump`. `split` chooses among the splits of an Energon
    metadataset. Raises `ConfigError` where the file cannot be read, or holds no source that a mixture file could name.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "mix.yaml"
    >>> _ = file.write_text(
    ...     "sources:\\n- {source_name: web, target_ratio: 0.75, paths: [web.jsonl]}\\n"
    ...     "- {source_name: code, target_ratio: 0.25, paths: [code.jsonl]}\\nprocesses: 4\\n"
    ... )
    >>> model, left_out = convert(file)
    >>> model.names, model.shares(), [problem.key for problem in left_out]
    (('web', 'code'), {'web': 0.75, 'code': 0.25}, ['processes'])
    """
    notes = Notes()
    tree = read_file(Path(path), notes, variables=False)
    if tree is None or notes.problems:
        raise ConfigError("; ".join(map(str, notes.problems)))
    found = kind_of(tree) if kind is None else kind
    if found is None:
        known = ", ".join(KINDS)
        raise ConfigError(f"{path}: its format is not clear from what it holds; say which: kind= one of {known}")
    if found not in KINDS:
        raise ConfigError(f"unknown kind {found!r}: one of {', '.join(KINDS)}")
    if not KINDS[found].is_mine(tree):
        raise ConfigError(f"{path}: this is no {found} file")
    left = Left()
    read: Callable[..., MixtureFile] = KINDS[found].convert
    model = read(tree, left, split) if found == "energon" else read(tree, left)
    return model, sorted(set(left.problems))


def kind_of(tree: Node) -> str | None:
    """The format of a file; `None` where none or several fit."""
    fits = [name for name, module in KINDS.items() if module.is_mine(tree)]
    return fits[0] if len(fits) == 1 else None
