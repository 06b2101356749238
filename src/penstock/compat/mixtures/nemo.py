"""NeMo's `input_cfg`: lists of datasets of several types, in groups."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from ...mixture_files import MixtureFile, SourceEntry
from ...mixture_files.reading import MixtureNode, ProblemLog, read_file
from ...sources.paths import FormatName
from .account import EVALUATION, Account, Reasons, Section, flat, nothing, parts_of
from .locations import Names, name_of_path
from .settings import CHECKPOINTS, MODEL, OPTIMIZER, TRACKING
from .trainers import MAY_STOP, settle_exp_manager

# type -> the key of its files, and their format
_FILES: dict[str, tuple[str, FormatName]] = {
    "nemo": ("manifest_filepath", "jsonl"),
    "nemo_tarred": ("manifest_filepath", "jsonl"),
    "lhotse": ("cuts_path", "jsonl"),
    "txt": ("paths", "text"),
    "txt_jsonl": ("paths", "jsonl"),
    "multimodal_conversation": ("manifest_filepath", "jsonl"),
}
_TOP = TRACKING | OPTIMIZER | CHECKPOINTS
_TRAINER_HARMLESS = frozenset(
    "_target_ accelerator strategy precision logger enable_checkpointing "
    "enable_progress_bar enable_model_summary log_every_n_steps val_check_interval "
    "check_val_every_n_epoch limit_val_batches limit_test_batches limit_predict_batches "
    "num_sanity_val_steps gradient_clip_val gradient_clip_algorithm sync_batchnorm "
    "benchmark deterministic detect_anomaly profiler default_root_dir inference_mode "
    "barebones devices num_nodes".split()
)
_TRAINER_REPORTED: Reasons = {
    "the length of the run depends on the batches of its loader: set horizon": (
        "max_steps", "max_epochs", "min_steps", "min_epochs", "limit_train_batches",
    ),
    "the loader decides the batch size: set batch": ("accumulate_grad_batches",),
    MAY_STOP: ("max_time",),
    "data is read in part, or repeatedly": (
        "overfit_batches", "fast_dev_run", "reload_dataloaders_every_n_epochs", "use_distributed_sampler",
    ),
}  # fmt: skip
_TRAINER_USUAL = {
    "max_steps": "-1", "max_epochs": "-1", "limit_train_batches": "1.0", "accumulate_grad_batches": "1",
    "overfit_batches": "0.0", "reload_dataloaders_every_n_epochs": "0",
}  # fmt: skip
"""Values without effect, as text; of batches, 1.0 means all, and 1 means one."""
_AROUND = {
    "model": _TOP,
    "data": _TOP,
    "train_ds": MODEL
    | OPTIMIZER
    | {"encoder", "decoder", "preprocessor", "perception", "modality_adapter"},
    "input_cfg": frozenset({"pin_memory"}),
}
"""A key on the path to the list -> its sibling keys without effect on samples."""
_NOTED: Reasons = {EVALUATION: ("validation_ds", "test_ds")}
_RANGE = re.compile(r"_OP_(\d+)\.\.(\d+)_CL_")


def is_mine(tree: MixtureNode) -> bool:
    return _list(tree) is not None


def _list(tree: MixtureNode) -> tuple[MixtureNode, str] | None:
    """Return the list of datasets and its key path: the file itself, or a usual key."""
    for key_path in (
        "",
        "input_cfg",
        "train_ds.input_cfg",
        "model.train_ds.input_cfg",
        "data.train_ds.input_cfg",
    ):
        node: MixtureNode | None = tree
        for key in filter(None, key_path.split(".")):
            node = (
                node.value.get(key) if node is not None and isinstance(node.value, dict) else None
            )
        if node is not None and isinstance(node.value, tuple) and node.value:
            first = node.value[0].value
            if isinstance(first, dict) and (
                {"type", "input_cfg", "manifest_filepath"} & first.keys()
            ):
                return node, key_path
    return None


def convert(tree: MixtureNode, account: Account) -> MixtureFile:
    """Convert the mixture; groups become nested mixtures."""
    located = _list(tree)
    assert located is not None
    node, key_path = located
    _open(tree, key_path, account)
    model = _mixture(node, key_path, account, (Path(tree.file).resolve(),))
    if not model.sources:
        raise nothing(Path(tree.file), "NeMo")
    return model


def _open(tree: MixtureNode, key_path: str, account: Account) -> None:
    """Account for the keys around the list of datasets."""
    section: Section | None = account.open(tree)
    if key_path and (trainer := section.part("trainer")) is not None:
        trainer.pass_over(
            *(key for key, usual in _TRAINER_USUAL.items() if str(trainer.peek(key)) == usual)
        )
        trainer.settle(_TRAINER_HARMLESS, _TRAINER_REPORTED)
    if key_path:
        settle_exp_manager(section)
    if key_path.startswith("data.") and (model := section.part("model")) is not None:
        model.settle(MODEL | OPTIMIZER)
    for key in filter(None, key_path.split(".")):
        assert section is not None
        section.get(key)
        section.settle(_AROUND[key], noted=_NOTED)
        section = section.part(key) if isinstance(section.peek(key), dict) else None


def _mixture(
    node: MixtureNode, key_path: str, account: Account, chain: tuple[Path, ...]
) -> MixtureFile:
    names = Names()
    entries = [_entry(item, names, account, chain) for item in parts_of(node, key_path, account)]
    sources = [source for source in entries if source is not None]
    if sum(source.weight is not None for source in sources) not in (0, len(sources)):
        account.note(node, key_path, "some datasets have no weight: they get 1")
        sources = [_with_weight(source) for source in sources]
    return MixtureFile(tuple(sources))


def _with_weight(source: SourceEntry) -> SourceEntry:
    return replace(source, weight=1) if source.weight is None else source


def _entry(
    item: Section, names: Names, account: Account, chain: tuple[Path, ...]
) -> SourceEntry | None:
    kind = item.peek("type") or (
        "nemo_tarred" if "tarred_audio_filepaths" in item.table else "nemo"
    )
    weight, name = item.number("weight"), item.text("name") or item.text("corpus")
    if "input_cfg" in item.table:
        item.pass_over("type") if kind == "group" else item.report(
            "type", "a list of datasets is converted as a group"
        )
        inner = _group(item, account, chain)
        if inner is None or not inner.sources:
            return None
        return SourceEntry(names.of(name or "group"), mixture=inner, weight=weight)
    item.text("type")
    if kind not in _FILES:
        item.drop(f"datasets of type {kind!r} cannot be converted: its share is lost")
        return None
    key, form = _FILES[kind]
    setting = item.texts(key)
    if any(not isinstance(path, str) for path in flat([item.peek(key) or []])):
        item.report(key, "its files have their own weights: write one entry with a weight for each")
        setting = [path for path in flat([item.peek(key)]) if isinstance(path, str)]
    paths = [_RANGE.sub(r"{\1..\2}", path) for path in setting]
    if not paths:
        item.drop(f"{key} is missing: its share is lost")
        return None
    item.report(
        "tarred_audio_filepaths",
        "the rows of the manifest are read; audio in archives is not joined to them",
    )
    item.report(
        "tarred_audio_filepath",
        "the rows of the manifest are read; audio in archives is not joined to them",
    )
    source_name = names.of(name or name_of_path(paths[0]))
    files = item.local(key, source_name, paths)
    return SourceEntry(source_name, files, format=form, weight=weight)


def _group(item: Section, account: Account, chain: tuple[Path, ...]) -> MixtureFile | None:
    """Return the datasets of a group, in place or in another file."""
    node = item.table["input_cfg"]
    item.get("input_cfg")
    if not isinstance(node.value, str):
        return _mixture(node, f"{item.key_path}.input_cfg", account, chain)
    path = Path(item.path(node.value))
    if path.resolve() in chain:
        item.report("input_cfg", "the files include each other in a cycle")
        return None
    notes = ProblemLog()
    tree = read_file(path, notes, variables=False)
    located = None if tree is None else _list(tree)
    if located is None:
        item.report("input_cfg", "the file is missing, or has no list of datasets")
        return None
    assert tree is not None
    _open(tree, located[1], account)
    return _mixture(*located, account, (*chain, path.resolve()))
