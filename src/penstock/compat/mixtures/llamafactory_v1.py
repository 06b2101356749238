"""LLaMA-Factory v1: a training file, and the file of datasets that its `train_dataset` names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...mixture_files import MixtureFile, SourceEntry
from ...mixture_files.reading import MixtureNode, ProblemLog, read_file
from .account import EVALUATION, Account, Reasons, Section, nothing
from .llamafactory_prompts import PICTURES, Prompts, make_chat
from .locations import Hub, Names
from .trainers import (
    OTHER_RUN,
    count_or_default,
    length,
    per_rank_batch,
    put_together,
    settle_ranks,
    shared,
)
from .trl import FILES, plain_split

_FORMS = {"alpaca": "alpaca", "sharegpt": "sharegpt", "pair": "preference", None: "messages"}
"""Converters of datasets, with the formats of their rows."""
_REPORTED: Reasons = {
    OTHER_RUN: ("resume_from_checkpoint",),
    "it changes the prompts: give chat a template that has it": ("template", "enable_thinking"),
}
_NOTED: Reasons = {
    EVALUATION: ("eval_dataset",),
    "a batch of padding_free has the same samples, joined": ("batching_strategy",),
}
_HARMLESS = frozenset(
    # the model and its computation
    "model_class trust_remote_code init_config peft_config kernel_config quant_config dist_config "
    "flash_attn bf16 cp_mode enable_activation_checkpointing dist_timeout optim_config lr_scheduler_config "
    "learning_rate max_grad_norm full_determinism "
    # the loss
    "pref_loss pref_beta pref_ftx simpo_gamma dpo_label_smoothing ld_alpha "
    # generation, logs, checkpoints
    "sample_backend max_new_tokens output_dir logging_steps save_steps save_epochs save_ckpt_as_hf "
    "save_total_limit batching_workers report_to run_name".split()
)
_RANKS = ("dp_size", "cp_size", "mp_replicate_size", "mp_shard_size")


def is_mine(tree: MixtureNode) -> bool:
    value = tree.value if isinstance(tree.value, dict) else {}
    named = value.get("train_dataset")
    return (
        named is not None and isinstance(named.value, str) and "model" in value
    ) or _is_datasets(tree)


def _is_datasets(tree: MixtureNode) -> bool:
    """Return whether a file describes datasets: mappings with a path, and a source or a converter."""
    values = list(tree.value.values()) if isinstance(tree.value, dict) else []
    return bool(values) and all(
        isinstance(node.value, dict)
        and "path" in node.value
        and bool({"converter", "source"} & node.value.keys())
        for node in values
    )


def convert(tree: MixtureNode, account: Account) -> MixtureFile:
    """Convert the datasets of a training file, or those of a file of datasets."""
    top, names = account.open(tree), Names()
    if _is_datasets(tree):
        sources = [_source(item, names, name, None, top.folder) for name, item in top.named()]
        return MixtureFile(tuple(sources), temperature=1, stop="all_exhausted")
    prompts = Prompts(
        top.text("model") or "", None, top.count("cutoff_len") or 2048, "assistant", ""
    )
    top.note(
        "model", "the template of the tokenizer is used; LLaMA-Factory has templates of its models"
    )
    sources = _read_datasets(top, names, prompts)
    if not sources:
        raise nothing(Path(tree.file), "LLaMA-Factory")
    account.note(
        tree,
        "",
        "a conversation is one sample, and all its answers are learned; LLaMA-Factory makes a sample "
        "of each answer",
    )
    horizon, passes = length(top, "num_train_epochs", 3)
    combined, options = put_together(sources, passes)
    size = count_or_default(top, "micro_batch_size", 1, "LLaMA-Factory")
    rows: dict[str, Any] = {"collate": "list", "drop_remainder": True}
    if top.has("global_batch_size"):
        batch = shared(top.count("global_batch_size"), top, "global_batch_size", **rows)
    else:
        batch = per_rank_batch(size, top, "micro_batch_size", **rows)
    strategy = top.peek("batching_strategy")
    if strategy == "normal":
        top.get("batching_strategy")
    elif strategy not in (None, "padding_free"):
        top.report("batching_strategy", "the lengths of samples decide how many a batch has")
    settle_ranks(top, _RANKS)
    top.settle(_HARMLESS, _REPORTED, _NOTED)
    return MixtureFile(
        combined, seed=top.integer("seed", 42), horizon=horizon, batch=batch, **options
    )


def _read_datasets(top: Section, names: Names, prompts: Prompts) -> list[SourceEntry]:
    """Return the sources that `train_dataset` names: a file of datasets, or one dataset."""
    named = top.text("train_dataset") or ""
    if not named.endswith((".yaml", ".yml")):
        location = names.of(Path(named).stem)
        is_file = named.endswith(FILES) or named.startswith((".", "/"))
        paths = top.dataset(
            "train_dataset", location, Hub(named), "", "", [named] if is_file else []
        )
        return [SourceEntry(location, paths, chat=make_chat(prompts, "auto", {}, {}))]
    folders = (top.folder, *top.folder.parents)
    start = next((folder for folder in folders if (folder / named).is_file()), None)
    tree = read_file(start / named, ProblemLog(), variables=False) if start is not None else None
    if tree is None or start is None:
        raise ConfigError(
            f"{top.node.file}: train_dataset: the file {named!r} is missing beside it and in the folders "
            "above: if it is on a hub, download it, and name the path"
        )
    described = top.account.open(tree)
    return [_source(item, names, name, prompts, start) for name, item in described.named()]


def _source(
    item: Section, names: Names, name: str, prompts: Prompts | None, start: Path
) -> SourceEntry:
    """Return a dataset with its rows, and the chat of its converter.

    Args:
        item: the dataset.
        names: names of sources.
        name: the name of the dataset.
        prompts: settings of the training file, if there is one.
        start: the folder where LLaMA-Factory starts, for paths.
    """
    named, split = item.text("path") or "", plain_split(item, "split", item.text("split"))
    location = names.of(name)
    local = [str(start / named)] if item.text("source") == "local" else []
    paths = item.dataset("path", location, Hub(named, None, split or "train"), "", "split", local)
    item.report("weight", "it repeats or drops rows at random: set the weight of the source")
    item.report("streaming", "a stream is shuffled in a buffer: rows are read by index here")
    size = item.count("size")
    if size:
        item.note(
            "size", "the first samples are taken; LLaMA-Factory draws random ones, with repetitions"
        )
    source = SourceEntry(location, paths, slice=(0, size) if size else None)
    converter = item.peek("converter")
    if prompts is None:
        key = "converter" if item.has("converter") else "path"
        item.report(key, "the training file names the model: convert it")
        return source
    if converter not in _FORMS:
        item.report("converter", f"{converter!r} is no converter that is known")
        return source
    if "multimodal" in name or "multimodal" in named:
        item.report("path", PICTURES)
    item.text("converter")
    return replace(source, chat=make_chat(prompts, _FORMS[converter], {}, {}))
