"""TRL: the `datasets` of a training file, or its one `dataset_name`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ...mixture_files import MixtureFile, SourceEntry
from ...mixture_files.reading import MixtureNode
from .account import EVALUATION, Account, Reasons, Section, nothing
from .axolotl import lists_paths
from .locations import Hub, Names, name_of_path
from .trainers import (
    MAY_STOP,
    NO_TOKENIZER,
    TRANSFORMERS_HARMLESS,
    TRANSFORMERS_NOTED,
    TRANSFORMERS_REPORTED,
    TRANSFORMERS_USUAL,
    WORKERS,
    count_or_default,
    hold_out,
    length,
    per_rank,
    put_together,
    seed_of,
    settle_accelerator,
    settle_deepspeed,
)
from .trl_prompts import LENGTHS, PROMPTS, read_chat

ARGUMENTS = frozenset(
    "model_name_or_path num_train_epochs per_device_train_batch_size "
    "per_device_eval_batch_size lr_scheduler_type report_to max_length max_seq_length "
    "dataset_text_field test_split_size dataset_config dataset_train_split "
    "dataset_test_split dataset_kwargs max_prompt_length packing packing_strategy "
    "padding_free assistant_only_loss use_peft push_to_hub overwrite_output_dir".split()
)
"""Top-level keys that distinguish its files from other formats."""
ENTRY_ARGUMENTS = frozenset("columns data_dir fraction".split())
"""Keys of a dataset that distinguish its files from other formats."""
FILES = (".jsonl", ".json", ".parquet", ".csv")
_KINDS = {"json": "jsonl", "csv": "csv", "parquet": "parquet", "text": "text", "arrow": "arrow"}
_STREAMS = (
    "a stream uses a shuffle buffer and is sharded across workers: rows are read by index here"
)
_REPEATED = "the trainer repeats prompts, or generates answers"
_REPORTED: Reasons = {
    **TRANSFORMERS_REPORTED,
    PROMPTS: (
        "chat_template", "chat_template_path", "dataset_text_field", "dataset_kwargs", "eos_token",
        "completion_only_loss", "assistant_only_loss", "chat_template_kwargs", "step_separator",
        "train_on_last_step_only", "is_encoder_decoder",
    ),
    "an empty system message begins conversations without one": ("auto_insert_empty_system_msg",),
    LENGTHS: (
        "max_length", "max_seq_length", "max_prompt_length", "max_completion_length", "max_target_length",
        "truncation_mode", "packing", "packing_strategy", "model_max_length",
    ),
    _REPEATED: (
        "num_generations", "generation_batch_size", "steps_per_generation", "num_iterations", "num_ppo_epochs",
        "num_mini_batches", "total_episodes", "replay_buffer_size", "seq_kd", "lmbda",
    ),
    "samples are shuffled before packing, or, if false, keep their stored order": (
        "shuffle_dataset",
    ),
    _STREAMS: ("streaming", "dataset_streaming"),
    "it limits the number of samples: give each source a "
    "slice": ("max_train_samples", "max_samples"),
}  # fmt: skip
_USUAL = {**TRANSFORMERS_USUAL, "shuffle_dataset": None}
_NOTED: Reasons = {
    **TRANSFORMERS_NOTED,
    EVALUATION: (
        "dataset_test_split",
        "max_eval_samples",
        "eval_packing",
        "num_generations_eval",
        "eval_dataset",
    ),
    "rows are joined or padded by the collator of the trainer": (
        "padding_free",
        "pad_to_multiple_of",
    ),
    MAY_STOP: ("early_stopping_patience", "early_stopping_threshold", "early_stopping_steps"),
    "environment variables may set the number of ranks: give --ranks": ("env",),
}
_HARMLESS = TRANSFORMERS_HARMLESS | frozenset(
    "use_peft peft_config lora_r lora_alpha lora_dropout lora_target_modules "
    "lora_target_parameters lora_modules_to_save lora_task_type use_rslora use_dora "
    "load_in_8bit load_in_4bit bnb_4bit_quant_type use_bnb_nested_quant "
    "bnb_4bit_quant_storage beta loss_type loss_weights label_smoothing ld_alpha "
    "f_divergence_type f_alpha_divergence_coef reference_free rpo_alpha simpo_gamma "
    "cpo_alpha desirable_weight undesirable_weight center_rewards_coefficient "
    "disable_dropout precompute_ref_log_probs precompute_ref_batch_size use_weighting "
    "discopop_tau sync_ref_model ref_model_mixup_alpha ref_model_sync_steps "
    "router_aux_loss_coef activation_offloading model_init_kwargs ref_model_init_kwargs "
    "generate_during_eval ignore_bias_buffers gradient_checkpointing_use_reentrant "
    "use_liger use_logits_to_keep code_revision pad_token padding_value "
    "code_revision".split()
)
_PREPARING = ("dataset_num_proc", "preprocessing_num_workers", "dataset_batch_size")


def is_mine(tree: MixtureNode) -> bool:
    if lists_paths(tree, "datasets"):
        return True
    value = tree.value if isinstance(tree.value, dict) else {}
    named = "dataset_name" in value and isinstance(value["dataset_name"].value, str)
    return named and bool(ARGUMENTS & value.keys())


def convert(tree: MixtureNode, account: Account) -> MixtureFile:
    """Convert the combined datasets, or the single named one, in a shuffled order."""
    top, names, split = account.open(tree), Names(), None
    if lists_paths(tree, "datasets"):
        sources = [
            _entry(item, names)
            for item in top.parts("datasets")
            if item.has("path") or _pathless(item)
        ]
        for key in ("dataset_name", "dataset_config", "dataset_train_split"):
            top.report(key, "datasets takes precedence, so TRL does not read this")
        sources, split = hold_out(top, "test_split_size", sources, "TRL")
    else:
        sources = [_named(top, names)]
    if not sources:
        raise nothing(Path(tree.file), "TRL")
    horizon, passes = length(top, "num_train_epochs", 3)
    combined, options = put_together(sources, passes)
    return MixtureFile(
        combined, seed=seed_of(top), split=split, horizon=horizon, **training(top), **options
    )


def training(top: Section) -> dict[str, Any]:
    """Return tokens and batches of a file for transformers' trainer, and account for its other keys."""
    read = read_chat(top)
    chat, pack = read if read is not None else (None, None)
    if chat is None:
        top.account.note(top.node, top.key_path, NO_TOKENIZER)
    size = count_or_default(top, "per_device_train_batch_size", 8, "transformers")
    collate = "stack" if pack else "list"
    options = {"collate": collate, "drop_remainder": top.flag("dataloader_drop_last")}
    batch = per_rank(size, top, "per_device_train_batch_size", **options)
    settle_deepspeed(top)
    settle_accelerator(top)
    if top.peek("streaming") or top.peek("dataset_streaming"):
        top.settle(reported={_STREAMS: WORKERS})
    top.settle({*_HARMLESS, *WORKERS, *_PREPARING}, _REPORTED, _NOTED, _USUAL)
    return {"chat": chat, "pack": pack, "batch": batch}


def _pathless(item: Section) -> bool:
    item.drop("path is missing: its samples are lost")
    return False


def _entry(item: Section, names: Names) -> SourceEntry:
    path, files, split = item.text("path") or "", _data_files(item), item.text("split")
    folder, columns = item.text("data_dir"), item.texts("columns")
    item.report(
        "fraction",
        "shares of the smallest mixture without repeated samples: set weight, and stop",
    )
    options: dict[str, Any] = {"columns": tuple(columns) or None}
    of_split = isinstance(item.peek("data_files"), dict) and bool(
        files
    )  # the files belong to the split
    if path in _KINDS and (files or folder):
        item.pass_over("name")  # only a name for the configuration
        within = [f"{folder.rstrip('/')}/{file}" for file in files] if folder else files
        name = names.of(name_of_path((within or [str(folder)])[0]))
        key = "data_files" if files else "data_dir"
        options["format"] = _KINDS[path] if files else None
        hub = Hub(path, None, None if of_split else split)
        paths = item.dataset(key, name, hub, "name", "split", within or [str(folder)])
        return SourceEntry(name, paths, **options)
    if folder:
        item.report("data_dir", "the folder within the dataset is lost: set data_files")
    split = None if of_split else plain_split(item, "split", split) or "train"
    hub = Hub(path, item.text("name"), split, tuple(files))
    name = names.of(hub.source_name)
    return SourceEntry(name, paths_of(item, "path", name, hub, "name", "split"), **options)


def _data_files(item: Section) -> list[str]:
    """Return the files of a dataset: one text, a list, or those of the selected split."""
    setting = item.peek("data_files")
    if not isinstance(setting, dict):
        return item.texts("data_files")
    split = str(item.peek("split") or "train")
    part = item.part("data_files")
    assert part is not None
    for name in part.table.keys() - {split}:
        part.note(name, EVALUATION)
    return part.texts(split)


def plain_split(item: Section, key: str, split: str | None) -> str | None:
    """Return the split of a hub dataset; report several splits, or a part of one."""
    if split is None or re.fullmatch(r"\w+(\.\w+)*", split):
        return split
    item.report(key, f"{split!r} is more than one split, or a part of one: set slice")
    return (re.match(r"\w+", split) or [None])[0]


def paths_of(
    item: Section, key: str, name: str, hub: Hub, config: str, split: str
) -> tuple[str, ...]:
    """Return the paths of named files, or of a hub dataset."""
    setting = hub.name
    is_local = setting.endswith(FILES) or setting.startswith((".", "/", "~")) or "://" in setting
    local = [f"{setting.rstrip('/')}/{file}" for file in hub.files] or [setting] if is_local else []
    return item.dataset(key, name, hub, config, split, local)


def _named(top: Section, names: Names) -> SourceEntry:
    key = next(
        (key for key in ("dataset_train_split", "dataset_split") if top.has(key)),
        "dataset_train_split",
    )
    hub = Hub(
        top.text("dataset_name") or "",
        top.text("dataset_config"),
        plain_split(top, key, top.text(key)) or "train",
    )
    name = names.of(hub.source_name)
    return SourceEntry(name, paths_of(top, "dataset_name", name, hub, "dataset_config", key))
