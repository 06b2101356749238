"""Mixtures written for other projects, read as mixture files; what cannot be carried over is named.

Known are the files of `KINDS`. They are read as plain data, Python by its syntax tree alone:
    nothing that they name is
imported, no code is run, no network is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ...errors import ConfigError, PenstockError
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
    trl,
)
from .account import Account, Keys
from .places import Files

KINDS: dict[str, ModuleType] = {
    "energon": energon,
    "levanter": levanter,
    "olmo-core": olmo,
    "llm-foundry": foundry,
    "nemo": nemo,
    "llamafactory": llamafactory,
    "axolotl": axolotl,
    "trl": trl,
    "megatron": megatron,
    "nanotron": nanotron,
    "handbook": handbook,
    "maxtext": maxtext,
    "dolma": dolma,
    "dclm": dclm,
    "python": python,
}
"""Names of the formats, in the order in which they are looked for."""


_TOLD_APART = (axolotl, trl)
"""Formats whose lists of datasets look alike: the arguments around and inside tell them apart."""
_NOT_READ = {
    "Accelerate": {"distributed_type", "compute_environment", "mixed_precision"},
    "DeepSpeed": {"zero_optimization", "train_micro_batch_size_per_gpu"},
    "GitHub": {"jobs", "on", "updates"},
    "Docker Compose": {"services"},
    "pre-commit": {"repos"},
    "LLaMA-Factory v1": {"train_dataset", "sample_backend"},
    "torchtune": {"_component_"},
}
"""Settings by which files are known that name no data, or in a way that is not read here."""


@dataclass
class Conversion:
    """A mixture of another project as a mixture file, and what became of everything that its file
    says.

    Of the problems, warnings are what is lost, and notes are what one should know about the rest.
    """

    mixture: MixtureFile
    format: str
    keys: Keys
    problems: list[Problem]


def convert(
    path: str | Path,
    kind: str | None = None,
    pick: str | None = None,
    *,
    files: Mapping[str, str] | None = None,
    ranks: int | None = None,
) -> tuple[MixtureFile, list[Problem]]:
    """A file of another project as the description of a mixture file, and everything that it does
    not carry over.

    Of the problems, warnings are what is lost, and notes are what one should know about the rest;
    each with file, line and key. Write the description with `ps.dump`. `convert_with_keys` lists
    all keys of the file as well.

    Args:
        path: the file.
        kind: its format, one of `KINDS`; found from what the file holds where it is not said.
        pick: which of several: the split of an Energon metadataset ("train"), the mixture of a
            Python file.
        files: where data lies here: a source's name, a dataset's name on a hub, or how a path
            begins (`gs://bucket/`) -> a path; `*` is for all other sources, and `{name}` in its
            path their names.
        ranks: how many ranks read samples of their own: a batch that the file means for all is
            shared out to them, and one that it means for each is theirs. Where it means one for
            each, and `ranks` is not said, that is lost.

    Raises:
        ConfigError: where the file cannot be read, its format is not clear, it holds no source that
            a mixture file could name, or `files` says something that nothing is.

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
    found = convert_with_keys(path, kind, pick, files=files, ranks=ranks)
    return found.mixture, found.problems


def convert_with_keys(
    path: str | Path,
    kind: str | None = None,
    pick: str | None = None,
    *,
    files: Mapping[str, str] | None = None,
    ranks: int | None = None,
) -> Conversion:
    """Convert as `convert` does, and list every key of the file: carried, harmless, or reported
    among the problems.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "sft.yaml"
    >>> _ = file.write_text(
    ...     "datasets: [{path: a/b, split: train}]\\nmodel_name_or_path: m\\nnum_train_epochs: 3\\nlearnin_rate: 1"
    ... )
    >>> keys = convert_with_keys(file, ranks=1).keys
    >>> [key.key for key in keys.carried]
    ['datasets', 'datasets[0].path', 'datasets[0].split', 'num_train_epochs']
    >>> [key.key for key in keys.harmless], [key.key for key in keys.reported]
    (['model_name_or_path'], ['learnin_rate'])
    """
    tree = _tree(Path(path))
    found = _kind(tree, path) if kind is None else kind
    if found not in KINDS:
        raise ConfigError(f"unknown kind {found!r}: one of {', '.join(KINDS)}")
    if not KINDS[found].is_mine(tree):
        raise ConfigError(f"{path}: this is no {found} file")
    if pick is not None and found not in ("energon", "python"):
        raise ConfigError(f"{path}: pick={pick!r}: there is only one mixture in {found} files")
    account = Account(found, Files(files or {}), ranks)
    more = () if pick is None else (pick,)
    try:
        model: MixtureFile = KINDS[found].convert(tree, account, *more)
    except ConfigError as error:
        why = [str(one) for one in sorted(set(account.problems)) if one.severity == "warning"]
        raise ConfigError("\n".join([str(error), *why])) from None
    except PenstockError:
        raise
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        # Files of other projects may hold anything in any place.
        raise ConfigError(f"{path}: what it says cannot be carried over: {error!r}") from error
    if unused := account.files.unused():
        raise ConfigError(
            f"files: nothing in {path} is called {unused[0]!r}; its sources are "
            f"{', '.join(model.names)}"
        )
    if wrong := unfit(model, path):
        raise ConfigError(
            "\n".join(
                f"{path}: what it says makes no mixture: {one.key}: {one.message}" for one in wrong
            )
        )
    if model.horizon is not None and model.horizon[0] == "steps" and model.batch is None:
        account.report(
            tree,
            "",
            "the length of the run counts steps, and the size of a step is not said: say batch",
        )
    keys = account.close()
    return Conversion(model, found, keys, sorted(set(account.problems)))


def _tree(path: Path) -> Node:
    """What a file holds; of Python code its text."""
    if path.suffix == ".py":
        return python.read(path)
    notes = Notes()
    tree = read_file(path, notes, variables=False)
    if tree is None or notes.problems:
        raise ConfigError("; ".join(map(str, notes.problems)))
    return tree


def kinds_of(tree: Node) -> list[str]:
    """The formats that a file may be of, as far as what it holds tells."""
    fits = [name for name, module in KINDS.items() if module.is_mine(tree)]
    alike = [name for name in fits if KINDS[name] in _TOLD_APART]
    if len(alike) < 2:
        return fits
    told = [
        name
        for name in alike
        if _arguments(tree) & (KINDS[name].ARGUMENTS | KINDS[name].ENTRY_ARGUMENTS)
    ]
    return [name for name in fits if name not in alike or name in told or not told]


def _arguments(tree: Node) -> set[str]:
    """The names of the settings of a file, and of its datasets."""
    top = tree.value if isinstance(tree.value, dict) else {}
    datasets = top["datasets"].value if "datasets" in top else ()
    entries = (
        [item.value for item in datasets if isinstance(item.value, dict)]
        if isinstance(datasets, tuple)
        else []
    )
    return {*top, *(name for entry in entries for name in entry)}


def _kind(tree: Node, path: str | Path) -> str:
    """The format of a file, or an error that says why it is not clear."""
    fits = kinds_of(tree)
    if len(fits) == 1:
        return fits[0]
    if fits:
        raise ConfigError(
            f"{path}: its format is not clear from what it holds, which fits {' and '.join(fits)}; "
            f"say which, by kind= (on the command line --from): one of {', '.join(fits)}"
        )
    top = tree.value if isinstance(tree.value, dict) else {}
    inside = [
        item
        for node in top.values()
        for item in (node, *(node.value if isinstance(node.value, tuple) else ()))
    ]
    names = {
        *top,
        *(
            name
            for node in inside
            if isinstance(node.value, dict)
            for name in node.value
            if name[:1] == "_"
        ),
    }
    for other, settings in _NOT_READ.items():
        if names & settings:
            raise ConfigError(
                f"{path}: this looks like a file of {other}, which names no data that can be read "
                "here"
            )
    raise ConfigError(
        f"{path}: its format is not clear from what it holds: it names no data as the known "
        f"formats do; say which, by kind= (on the command line --from): one of {', '.join(KINDS)}"
    )
