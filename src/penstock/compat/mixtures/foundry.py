"""llm-foundry: the `streams` of a train loader, or its single dataset.

Streams have proportions, repeats or numbers of samples.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ...mixture_files import Batching, MixtureFile, Shuffling, SourceEntry
from ...mixture_files.reading import MixtureNode
from .account import EVALUATION, Account, Reasons, Section, nothing, plain
from .foundry_prompts import read_chat
from .locations import Hub, Names
from .settings import CHECKPOINTS, MODEL, OPTIMIZER, TRACKING
from .trainers import OTHER_RUN, SHARED_RANKS, Horizon, shared

_ONLY_ABSOLUTE = (
    "proportion, choose and repeat cannot be combined here: only one of them is carried over"
)
_DATA_PATHS = (
    (),
    ("dataset",),
    ("train_loader", "dataset"),
    ("parameters", "train_loader", "dataset"),
)
_FILES = ("json", "csv", "parquet", "text")  # values of `hf_name` for local files
_DURATION = re.compile(r"([0-9_.]+(?:e[0-9]+)?)(ep|ba|tok|sp)")
_UNITS = {"ep": "epochs", "ba": "steps", "tok": "tokens", "sp": "samples"}
_LOADING = frozenset(
    "predownload cache_limit keep_zip download_retry download_timeout validate_hash "
    "allow_unsafe_types keep_raw".split()
)
"""Keys that configure download and cache of shards."""
_ORDER: Reasons = {
    "it changes the order within a pass: every source is shuffled fully here": (
        "partition_algo", "num_canonical_nodes", "batch_size", "shuffle_algo", "shuffle_block_size", "batching_method",
    ),
}  # fmt: skip
_DATASET_REPORTED: Reasons = {
    "rows are packed after tokenizing: tokenize them in Python, and add pack": ("packing_ratio",),
    "rows are read as stored: tokenize and change them in Python": (
        "eos_token_id", "bos_token_id", "preprocessing_fn", "safe_load", "target_prompts", "target_responses",
        "text_column_name", "max_leftover_bins_to_keep", "backend_attention_mask",
    ),
    "an epoch has the samples of its streams; set horizon for another length": ("epoch_size",),
    "several ranks read the same samples": ("replication",),
    "an epoch draws other samples of a stream": ("sampling_method", "sampling_granularity"),
}  # fmt: skip
_NOTED: Reasons = {
    "samples are shuffled by shuffle_seed": ("seed", "global_seed"),
    "rows are truncated and padded to it: do so in Python": (
        "max_seq_len",
        "decoder_only_format",
        "allow_pad_trimming",
        "tokenizer_name",
        "tokenizer",
    ),
    OTHER_RUN: ("load_path",),
    SHARED_RANKS: ("tp_config", "parallelism_config"),
    EVALUATION: ("eval_loader", "eval_loaders", "icl_tasks", "icl_tasks_str", "icl_seq_len"),
}
_HARMLESS = (
    OPTIMIZER
    | TRACKING
    | CHECKPOINTS
    | frozenset(
        "variables precision fsdp_config deepspeed_config save_ignore_keys eval_interval "
        "eval_first eval_subset_num_batches device_eval_batch_size "
        "device_train_microbatch_size device_train_grad_accum load_ignore_keys "
        "load_exclude_algorithms dist_timeout cluster gpu_num gpu_type compute image "
        "integrations scheduling compile_config expandable_segments max_split_size_mb "
        "only_hf_checkpoint only_composer_checkpoint".split()
    )
)
_REPORTED: Reasons = {
    "custom code may change the samples": ("code_paths",),
    "the run may end before its horizon": ("stop_on_loss",),
    OTHER_RUN: ("autoresume", "spin_dataloaders", "reset_time"),
    "its arguments may override the settings of this file": ("command",),
    "attention is restricted to one document: configure that in the model": (
        "attn_uses_sequence_id",
    ),
}
_MODEL_HARMLESS = MODEL | frozenset(
    "loss_fn verbose fc_type ffn_config fuse_norm_attn_norm no_bias emb_pdrop logit_scale "
    "norm_eps use_flash_attention_2 use_train_metrics additional_train_metrics "
    "additional_eval_metrics peft_config load_in_8bit return_dict z_loss "
    "final_logit_softcapping tie_word_embeddings should_save_peft_only "
    "allow_embedding_resizing attn_impl attn_type alibi rope_impl rope_dail_config "
    "rope_hf_config softmax_scale qk_ln qk_gn clip_qkv kv_n_heads sliding_window_size "
    "config_overrides".split()
)
_CALLBACKS = frozenset(
    "speed_monitor lr_monitor memory_monitor runtime_estimator optimizer_monitor "
    "system_metrics_monitor activation_monitor activation_monitor_full_model "
    "loss_perp_v_len memory_snapshot oom_observer mlperf scheduled_gc hf_checkpointer "
    "mono_checkpoint_saver checkpoint_saver export_for_inference generate_callback "
    "eval_output_logging image_visualizer run_event_callback".split()
)
"""Callbacks that only log or write checkpoints; others may change samples, or end the run."""
_ALGORITHMS = frozenset(
    "gradient_clipping alibi fused_layernorm gated_linear_units low_precision_layernorm ema swa "
    "sam weight_standardization".split()
)
"""Algorithms of Composer that change the model or its optimizer, but no samples."""


def is_mine(tree: MixtureNode) -> bool:
    return _data_path(tree) is not None


def _data_path(tree: MixtureNode) -> tuple[str, ...] | None:
    """Return the section that names the data: the top level, `dataset`, a train loader, or
    parameters around it."""
    for path in _DATA_PATHS:
        node: MixtureNode | None = tree
        for key in path:
            node = (
                node.value.get(key) if node is not None and isinstance(node.value, dict) else None
            )
        if node is None or not isinstance(node.value, dict):
            continue
        streams = "streams" in node.value and isinstance(node.value["streams"].value, dict)
        named = any(
            key in node.value and node.value[key].value for key in ("local", "remote", "hf_name")
        )
        if streams or (len(path) > 1 and named):
            return path
    return None


def convert(tree: MixtureNode, account: Account) -> MixtureFile:
    """Convert the mixture of the training streams; one pass is one of their epochs."""
    data_path = _data_path(tree)
    assert data_path is not None
    dataset = file = account.open(tree)
    outer_sections = list[Section]()
    for key in data_path:
        outer_sections.append(dataset)
        section_inside = dataset.part(key)
        assert section_inside is not None
        dataset = section_inside
    top = file.part("parameters") if "parameters" in data_path else file
    assert top is not None
    values = _Values(top.node)
    streams = _streams(dataset, values)
    if not streams:
        raise nothing(Path(tree.file), "llm-foundry")
    loader = outer_sections[-1] if outer_sections else dataset
    read = read_chat(top, dataset, values.value) if loader.peek("name") == "finetuning" else None
    chat, pack = read if read is not None else (None, None)
    if chat is None:
        account.note(
            dataset.node,
            dataset.key_path,
            "rows are read as stored: decode, tokenize and pad them in Python",
        )
    sources = _shares(streams)
    horizon = _duration(top, values)
    all_by_epochs = all(source.epochs for source in sources)
    if horizon and horizon[0] == "epochs" and all_by_epochs:
        epochs = horizon[1]
        sources = [
            replace(
                source,
                epochs=(source.epochs or 1) * epochs,
                max_epochs=(source.epochs or 1) * epochs,
            )
            for source in sources
        ]
        horizon = None
    elif horizon and all_by_epochs:
        sources = [replace(source, max_epochs=None) for source in sources]
    elif horizon and horizon[0] == "epochs":
        top.report(
            "max_duration",
            "an epoch has the samples of all streams: set horizon in samples",
        )
        horizon = None
    model = MixtureFile(
        tuple(sources),
        seed=_seed(dataset, values),
        shuffle=None if dataset.flag("shuffle") else Shuffling("none"),
        chat=chat,
        pack=pack,
        batch=_batch(top, dataset, values, "stack" if pack else "list"),
        horizon=horizon,
    )
    for section in (*outer_sections, *(item for item, _ in streams), dataset):
        harmless = _HARMLESS if section in outer_sections else _LOADING
        section.settle(
            harmless,
            _REPORTED if section in outer_sections else _DATASET_REPORTED,
            {**_ORDER, **_NOTED},
        )
        _settle_inside(section)
    top.settle(values.referenced())
    return model


def _settle_inside(section: Section) -> None:
    """Account for the model and the callbacks; some change samples, or the length of the run."""
    if isinstance(section.peek("algorithms"), dict):
        algorithms = section.part("algorithms")
        assert algorithms is not None
        for name in algorithms.table.keys() - _ALGORITHMS:
            algorithms.report_at(name, "an algorithm may change the samples")
        algorithms.pass_over(*_ALGORITHMS)
    for key, harmless in (("model", _MODEL_HARMLESS), ("callbacks", _CALLBACKS)):
        inside = section.part(key) if isinstance(section.peek(key), dict) else None
        if inside is None:
            continue
        if (
            isinstance(inside.peek("attn_config"), dict)
            and (attention := inside.part("attn_config")) is not None
        ):
            attention.settle(_MODEL_HARMLESS, _REPORTED)
        inside.settle(harmless, _REPORTED, _NOTED)


def _streams(dataset: Section, values: _Values) -> list[tuple[Section, SourceEntry]]:
    names, entries = Names(), list[tuple[Section, SourceEntry]]()
    if (streams := dataset.part("streams")) is None:
        entry = (
            _hub(dataset, values)
            if dataset.has("hf_name")
            else _folder(names.of("train"), dataset, dataset, values)
        )
        return [] if entry is None else [(dataset, entry)]
    for name, item in streams.named():
        if (entry := _folder(names.of(name), item, dataset, values)) is not None:
            entries.append((item, entry))
    return entries


def _folder(name: str, item: Section, dataset: Section, values: _Values) -> SourceEntry | None:
    """Return the source of a folder of MDS shards."""
    local, remote, split = (
        values.filled(item.text(key) or "") for key in ("local", "remote", "split")
    )
    if local and remote:
        item.note("remote", "local is read, which is a copy")
    for key in ("local", "remote", "split"):
        if item.has(key) and "${" in values.filled(item.text(key) or ""):
            item.report(key, "it refers to a variable that this file does not define")
    root = local or remote
    if not root:
        item.drop("local and remote are missing: its share is lost")
        return None
    split = split or values.filled(dataset.text("split") or "")
    path = f"{root.rstrip('/')}/{split}" if split else root
    return SourceEntry(name, item.local("local" if local else "remote", name, [path]), format="mds")


def _hub(dataset: Section, values: _Values) -> SourceEntry | None:
    """Return the source that `datasets.load_dataset` would read: a hub dataset, or files."""
    name, split = (
        values.filled(dataset.text("hf_name") or ""),
        values.filled(dataset.text("split") or "") or None,
    )
    options = dataset.part("hf_kwargs")
    folder = values.filled((options.text("data_dir") if options else None) or "")
    files = [values.filled(path) for path in _data_files(options, split)] if options else []
    of_split = bool(
        options and isinstance(options.peek("data_files"), dict)
    )  # the files belong to the split
    if name in _FILES:
        paths = [f"{folder.rstrip('/')}/{file}" if folder else file for file in files] or (
            [folder] if folder else []
        )
        if not paths:
            dataset.report("hf_name", "data_files and data_dir are missing: its share is lost")
            return None
        if not files:
            dataset.note(
                "hf_name",
                f"all files of the folder are read; datasets reads only the split {split!r}",
            )
        if options is not None:
            options.pass_over("name")  # only a name for the configuration
        kind: Any = "jsonl" if name == "json" else name
        paths_read = dataset.dataset(
            "hf_kwargs", "train", Hub(name, None, None if of_split else split), "", "split", paths
        )
        return SourceEntry("train", paths_read, format=kind)
    config = options.text("name") if options else None
    is_local = name.startswith((".", "/", "~")) or "://" in name
    local = [f"{name.rstrip('/')}/{file}" for file in files] or [name] if is_local else []
    hub = Hub(name, config, None if of_split and files else split, tuple(files))
    paths_read = dataset.dataset("hf_name", "train", hub, "", "split", local)
    if options is not None:
        options.report("data_dir", "the folder within the dataset is lost: set data_files")
        file_rules = dataset.account.files
        if file_rules.of("train") is None and (local or files or file_rules.of(name) is not None):
            options.report(
                "name",
                "files have no configurations: name the files with files (train=PATH)",
            )
    return SourceEntry("train", paths_read)


def _data_files(options: Section, split: str | None) -> list[str]:
    if not isinstance(options.peek("data_files"), dict):
        return options.texts("data_files")
    part = options.part("data_files")
    assert part is not None
    for name in part.table.keys() - {split or "train"}:
        part.note(name, EVALUATION)
    return part.texts(split or "train")


def _duration(top: Section, values: _Values) -> Horizon:
    """Return the length of the run from Composer's durations: 4800ba, 1ep, 26e9tok.

    A plain number counts epochs.
    """
    setting = values.value(top.get("max_duration"))
    if setting in (None, ""):
        return None
    if isinstance(setting, int) and not isinstance(setting, bool) and setting > 0:
        return "epochs", setting
    match = _DURATION.fullmatch(str(setting).replace(" ", ""))
    number = float(match[1].replace("_", "")) if match else 0
    if not match or not number:
        top.report("max_duration", f"{setting!r} is not a duration such as 10ep, 4800ba or 26e9tok")
        return None
    unit = _UNITS[match[2]]
    if unit == "tokens":
        top.report(
            "max_duration",
            "the number of rows for these tokens depends on the data: set horizon in samples",
        )
        return None
    return unit, number if unit == "epochs" else int(number)


def _shares(entries: list[tuple[Section, SourceEntry]]) -> list[SourceEntry]:
    """Return the sources with their shares, all of one type."""
    relative = any(item.has("proportion") for item, _ in entries)
    has_choose = [item.has("choose") for item, _ in entries]
    out: list[SourceEntry] = []
    for item, source in entries:
        proportion, repeat, choose = (
            item.number(key) for key in ("proportion", "repeat", "choose")
        )
        kind = "proportion" if relative else "choose" if all(has_choose) else "repeat"
        for key in {"proportion", "choose", "repeat"} - {kind}:
            item.report(key, _ONLY_ABSOLUTE)
        if relative and proportion is None:
            item.drop(
                "proportion is missing, but other streams have one: no samples of it are read"
            )
        share: dict[str, Any] = {"weight": proportion or 0} if relative else {"weight": choose}
        if kind == "repeat":
            times = 1 if repeat is None else repeat
            share = {"epochs": times, "max_epochs": times} if times else {"weight": 0}
        out.append(replace(source, **share))
    return out


def _seed(dataset: Section, values: _Values) -> int | None:
    setting = dataset.get("shuffle_seed")
    setting = values.value(setting) if isinstance(setting, str) else setting
    if setting is None or isinstance(setting, int):
        return setting
    dataset.report("shuffle_seed", "it is not a whole number")
    return None


def _batch(top: Section, dataset: Section, values: _Values, collate: str) -> Batching | None:
    if dataset.node is top.node:
        return None
    size = values.value(top.get("global_train_batch_size"))
    loader = top.part("train_loader")
    drop = loader.flag("drop_last") if loader else False
    if loader is not None:
        loader.pass_over(
            "num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "timeout", "name"
        )
    if not isinstance(size, int) or size < 1:
        top.report("global_train_batch_size", f"{size!r} is not a whole number above 0")
        return None
    return shared(size, top, "global_train_batch_size", drop_remainder=drop, collate=collate)


class _Values:
    """Resolve references such as `${variables.data_local}` within one file."""

    def __init__(self, tree: MixtureNode) -> None:
        self.values: Any = plain(tree)

    def referenced(self) -> set[str]:
        """Return the top-level names that references use."""
        return set(re.findall(r"\$\{(\w+)[.\w]*\}", repr(self.values)))

    def value(self, setting: Any) -> Any:
        """Resolve a text that is one reference; return other values unchanged."""
        match = re.fullmatch(r"\$\{([\w.]+)\}", setting) if isinstance(setting, str) else None
        return self._at(match[1], setting) if match else setting

    def filled(self, text: str) -> str:
        """Resolve the references in a text, as far as the file defines them."""
        for _ in range(4):  # a reference may resolve to another one
            text = re.sub(r"\$\{([\w.]+)\}", lambda match: str(self._at(match[1], match[0])), text)
        return text

    def _at(self, name: str, otherwise: Any) -> Any:
        value: Any = self.values
        for step in name.split("."):
            table = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
            value = table.get(step, otherwise)
        return "" if value is None else otherwise if isinstance(value, dict | list) else value
