"""Convert mixtures of other projects to mixture files, and report everything that is lost.

The known formats are in `KINDS`. Files are read as plain data, and Python only by its syntax tree:
nothing is imported, no code runs, no network is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ...errors import ConfigError, PenstockError
from ...mixture_files import MixtureFile, Problem, check_round_trip
from ...mixture_files.reading import MixtureNode, ProblemLog, read_file
from . import (
    axolotl,
    dclm,
    dolma,
    energon,
    foundry,
    handbook,
    levanter,
    lingua,
    litgpt,
    llamafactory,
    llamafactory_v1,
    maxtext,
    megatron,
    megatron_shell,
    nanotron,
    nemo,
    nemotron,
    olmo,
    olmo_mix,
    open_instruct,
    python,
    trl,
)
from .account import Account, Keys
from .locations import Files

KINDS: dict[str, ModuleType] = {
    "energon": energon,
    "levanter": levanter,
    "olmo-core": olmo,
    "olmo-core-mix": olmo_mix,
    "llm-foundry": foundry,
    "nemo": nemo,
    "nemotron": nemotron,
    "llamafactory": llamafactory,
    "llamafactory-v1": llamafactory_v1,
    "axolotl": axolotl,
    "trl": trl,
    "megatron": megatron,
    "megatron-shell": megatron_shell,
    "nanotron": nanotron,
    "open-instruct": open_instruct,
    "handbook": handbook,
    "maxtext": maxtext,
    "lingua": lingua,
    "litgpt": litgpt,
    "dolma": dolma,
    "dclm": dclm,
    "python": python,
}
"""Converters by format, in the order of detection."""


_SIMILAR = (axolotl, trl)
"""Formats with similar lists of datasets; other keys of the file distinguish them."""
_SPECIAL = {
    "megatron-shell": ("megatron", "nemo"),
    "nemotron": ("axolotl", "trl"),
    "open-instruct": ("handbook", "trl"),
}
"""Formats with keys that no other format has -> formats that would fit too."""
_UNSUPPORTED = {
    "Accelerate": {"distributed_type", "compute_environment", "mixed_precision"},
    "GPT-NeoX without the file of its data_path": {
        "pipe_parallel_size",
        "pipe-parallel-size",
        "global_num_gpus",
        "sparsity_config",
        "text_gen_type",
        "memory_profiling_path",
    },
    "DeepSpeed": {"zero_optimization", "train_micro_batch_size_per_gpu"},
    "GitHub": {"jobs", "on", "updates"},
    "Docker Compose": {"services"},
    "pre-commit": {"repos"},
    "LLaMA-Factory for inference or export": {"infer_backend", "export_dir", "do_predict"},
    "torchtune": {"_component_"},
    "Beaker": {"budget", "tasks"},
    "the cloud of axolotl": {"dockerfile_commands", "node_count"},
    "nanotron for DoReMi": {"doremi"},
    "DCLM, for training without its data": {"chinchilla_multiplier"},
    "NeMo RL": {"grpo", "env"},
    "lm-evaluation-harness": {"harness", "output_type", "doc_to_text"},
    "MosaicML's platform without data": {"integrations"},
    "Megatron Bridge, whose recipe is Python": {"recipe"},
    "Hydra, which merges other files": {"defaults"},
}
"""Keys that identify files without data, or in formats that are not supported."""


@dataclass
class Conversion:
    """A mixture of another project as a mixture file, with the outcome for every key.

    Problems are warnings (what is lost) and notes (what to know about the rest).

    Args:
        mixture: the description.
        format: format of the file.
        keys: every key of the file.
        problems: warnings and notes.
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
    """Convert a file of another project to a mixture description, with everything it loses.

    Problems are warnings (what is lost) and notes (what to know about the rest), each with file,
    line and key. Write the description with `ps.dump`. `convert_with_keys` also lists all keys of
    the file.

    Args:
        path: the file.
        kind: its format, one of `KINDS`; detected from the content by default.
        pick: selects one of several: the split of an Energon metadataset ("train"), the mixture of
            a Python file.
        files: local locations of the data: a source's name, a dataset's name on a hub, or a path
            prefix (`gs://bucket/`) -> a path. `*` stands for all other sources, and `{name}` in its
            path for their names.
        ranks: number of ranks that read their own samples. A batch for all ranks is divided by it,
            a batch per rank is kept. Without `ranks`, a batch per rank is lost.

    Returns:
        The description and the problems.

    Raises:
        ConfigError: if the file cannot be read, its format is unclear, it has no source that a
            mixture file could name, or a key of `files` matches nothing.

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
    conversion = convert_with_keys(path, kind, pick, files=files, ranks=ranks)
    return conversion.mixture, conversion.problems


def convert_with_keys(
    path: str | Path,
    kind: str | None = None,
    pick: str | None = None,
    *,
    files: Mapping[str, str] | None = None,
    ranks: int | None = None,
) -> Conversion:
    """Convert like `convert`, and list every key of the file: carried, harmless, or reported.

    Args:
        path: the file.
        kind: as in `convert`.
        pick: as in `convert`.
        files: as in `convert`.
        ranks: as in `convert`.

    Returns:
        The conversion.

    Raises:
        ConfigError: as in `convert`.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "sft.yaml"
    >>> _ = file.write_text(
    ...     "datasets: [{path: a/b, split: train}]\\nlearning_rate: 1\\nnum_train_epochs: 3\\nlearnin_rate: 1"
    ... )
    >>> keys = convert_with_keys(file, ranks=1).keys
    >>> [key.key for key in keys.carried]
    ['datasets', 'datasets[0].path', 'datasets[0].split', 'num_train_epochs']
    >>> [key.key for key in keys.harmless], [key.key for key in keys.reported]
    (['learning_rate'], ['learnin_rate'])
    """
    tree = _tree(Path(path))
    format_name = _kind(tree, path) if kind is None else kind
    if format_name not in KINDS:
        raise ConfigError(f"unknown kind {format_name!r}: use one of {', '.join(KINDS)}")
    if not KINDS[format_name].is_mine(tree):
        raise ConfigError(f"{path}: this is not a {format_name} file: check kind=")
    if pick is not None and format_name not in ("energon", "python"):
        raise ConfigError(
            f"{path}: pick={pick!r}: {format_name} files have only one mixture: leave pick out"
        )
    account = Account(format_name, Files(files or {}), ranks)
    pick_arguments = () if pick is None else (pick,)
    try:
        model: MixtureFile = KINDS[format_name].convert(tree, account, *pick_arguments)
    except ConfigError as error:
        problems = sorted(set(account.problems))
        warnings = [str(problem) for problem in problems if problem.severity == "warning"]
        raise ConfigError("\n".join([str(error), *warnings])) from None
    except PenstockError:
        raise
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        # Files of other projects may have any value at any key.
        raise ConfigError(f"{path}: its content cannot be converted: {error!r}") from error
    if unused := account.files.unused():
        raise ConfigError(
            f"files: {unused[0]!r} matches nothing in {path}; its sources are "
            f"{', '.join(model.names)}"
        )
    if invalid := check_round_trip(model, path):
        raise ConfigError(
            "\n".join(
                f"{path}: the result is not a valid mixture: {problem.key}: {problem.message}"
                for problem in invalid
            )
        )
    if model.horizon is not None and model.horizon[0] == "steps" and model.batch is None:
        account.report(
            tree,
            "",
            "the length of the run counts steps, but there is no batch size: set batch",
        )
    keys = account.close()
    return Conversion(model, format_name, keys, sorted(set(account.problems)))


def _tree(path: Path) -> MixtureNode:
    """Parse a file by its suffix; of Python code return the text."""
    readers = {".py": python.read, ".txt": olmo_mix.read, ".sh": megatron_shell.read}
    if path.suffix in readers:
        return readers[path.suffix](path)
    notes = ProblemLog()
    tree = read_file(path, notes, variables=False)
    if tree is None or notes.problems:
        raise ConfigError("; ".join(map(str, notes.problems)))
    return tree


def kinds_of(tree: MixtureNode) -> list[str]:
    """Return the formats that the content of a file allows.

    Args:
        tree: content of the file.
    """
    matching = [name for name, module in KINDS.items() if module.is_mine(tree)]
    for name, others in _SPECIAL.items():
        if name in matching:
            matching = [other for other in matching if other not in others]
    similar = [name for name in matching if KINDS[name] in _SIMILAR]
    if len(similar) < 2:
        return matching
    distinguished = [
        name
        for name in similar
        if _arguments(tree) & (KINDS[name].ARGUMENTS | KINDS[name].ENTRY_ARGUMENTS)
    ]
    return [
        name
        for name in matching
        if name not in similar or name in distinguished or not distinguished
    ]


def _arguments(tree: MixtureNode) -> set[str]:
    """Return the names of the settings of a file, and of its datasets."""
    top = tree.value if isinstance(tree.value, dict) else {}
    datasets = top["datasets"].value if "datasets" in top else ()
    entries = (
        [item.value for item in datasets if isinstance(item.value, dict)]
        if isinstance(datasets, tuple)
        else []
    )
    return {*top, *(name for entry in entries for name in entry)}


def _kind(tree: MixtureNode, path: str | Path) -> str:
    """Detect the format of a file, or raise an error that explains the ambiguity."""
    matching = kinds_of(tree)
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise ConfigError(
            f"{path}: the format is ambiguous, its content fits {' and '.join(matching)}: choose "
            "one with kind= (--from on the command line)"
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
    for other, settings in _UNSUPPORTED.items():
        if names & settings:
            raise ConfigError(
                f"{path}: this looks like a file of {other}, which names no data that can be "
                "converted"
            )
    raise ConfigError(
        f"{path}: unknown format: its content names no data as known formats do: choose one with "
        f"kind= (--from on the command line): {', '.join(KINDS)}"
    )
