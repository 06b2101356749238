"""MaxText: a training file with data files or a hub dataset, and JSON mixture files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...mixture_files import MixtureFile, Shuffling, SourceEntry, Tokenizing
from ...mixture_files.reading import MixtureNode
from ...sources.paths import FormatName
from .account import EVALUATION, Account, Reasons, Section, nothing
from .locations import Hub, Names, name_of_path
from .settings import CHECKPOINTS, MODEL, OPTIMIZER, TRACKING
from .trainers import OTHER_RUN, SHARED_RANKS, per_rank

_DATA = ("grain_train_files", "grain_train_mixture_config_path", "hf_path", "hf_train_files")
_OF_FILES = ("grain_train_files", "grain_train_mixture_config_path", "grain_file_type")
_OF_HUB = ("hf_path", "hf_name", "hf_train_files", "hf_data_dir", "train_split")
_FORMATS: dict[str, FormatName] = {
    "arrayrecord": "array_record",
    "tfrecord": "tfrecord",
    "parquet": "parquet",
}
_METHODS = {"first_fit": "first_fit", "best_fit": "best_fit", "concat_then_split": "concat_split"}
_REPORTED: Reasons = {
    "MaxText makes prompts of its rows: map the rows in Python": (
        "use_sft", "use_dpo", "sft_train_on_completion_only", "chat_template_path", "chat_template", "formatting_func",
        "use_multimodal", "image_path", "video_path",
    ),
    OTHER_RUN: ("load_full_state_path",),
    "rows are packed differently": ("max_segments_per_seq",),
    "the batch grows during the run": (
        "rampup_batch_size", "enable_rampup_batch_size", "global_rampup_samples", "per_device_batch_size_start",
        "per_device_batch_size_increment", "expansion_factor_real_data",
    ),
    "tokens are made differently": ("tokenizer_type", "use_truncation", "add_generation_prompt"),
    "samples of files shared by hosts have another order": (
        "grain_shuffle_buffer_size", "reuse_example_batch", "grain_worker_count",
    ),
}  # fmt: skip
_NOTED: Reasons = {
    "its settings are not read": ("base_config",),
    EVALUATION: (
        "hf_eval_files", "hf_eval_split", "grain_eval_files", "eval_interval", "eval_steps", "eval_data_columns",
        "eval_dataset_name", "eval_split", "eval_per_device_batch_size", "test_batch_start_index",
    ),
    SHARED_RANKS: (
        "ici_tensor_parallelism", "ici_sequence_parallelism", "ici_context_parallelism", "ici_pipeline_parallelism",
        "dcn_tensor_parallelism", "dcn_sequence_parallelism", "dcn_pipeline_parallelism", "num_slices",
        "context_parallel_size",
    ),
}  # fmt: skip
_HARMLESS = (
    MODEL
    | OPTIMIZER
    | TRACKING
    | CHECKPOINTS
    | frozenset(
        "model_name override_model_config base_emb_dim base_num_query_heads "
        "base_num_kv_heads base_mlp_dim base_num_decoder_layers base_output_directory "
        "decoder_block mlp_activations normalization_layer_epsilon logits_via_embedding "
        "remat_policy quantization quant_cfg_path weight_dtype attention attention_type "
        "hardware enable_checkpointing async_checkpointing checkpoint_period "
        "load_parameters_path enable_single_controller log_period save_config_to_gcs "
        "profiler_steps skip_first_n_steps_for_profiler enable_goodput_recording "
        "monitor_goodput metrics_file gcs_metrics adam_b1 adam_b2 adam_eps adam_eps_root "
        "adam_weight_decay opt_type gradient_clipping_threshold warmup_steps_fraction "
        "cosine_learning_rate_final_fraction ici_fsdp_parallelism ici_data_parallelism "
        "dcn_data_parallelism dcn_fsdp_parallelism compile_topology "
        "compile_topology_num_slices jax_cache_dir grain_per_worker_buffer_size "
        "hf_access_token use_iota_embed scan_layers param_scan_axis megablox "
        "sparse_matmul enable_nnx use_vertex_tensorboard vertex_tensorboard_project "
        "vertex_tensorboard_region dataset_path colocated_python_data_input".split()
    )
)


def is_mine(tree: MixtureNode) -> bool:
    if not isinstance(tree.value, dict):
        return False
    return _is_mixture(tree) or (
        "dataset_type" in tree.value and any(key in tree.value for key in _DATA)
    )


def _is_mixture(tree: MixtureNode) -> bool:
    """Return whether a file only maps names to a path and a weight."""
    table = tree.value
    if not isinstance(table, dict) or not table:
        return False
    inner = [node.value for node in table.values()]
    return all(isinstance(item, dict) and item.keys() == {"path", "weight"} for item in inner)


def convert(tree: MixtureNode, account: Account) -> MixtureFile:
    """Convert the mixture; the first exhausted dataset ends it.

    Weights are shares of documents.
    """
    top = account.open(tree)
    if _is_mixture(tree):
        return MixtureFile(
            tuple(_blended(top, Names(), {"format": "array_record"})), stop="first_exhausted"
        )
    columns = top.texts("train_data_columns") or ["text"]
    kind = top.text("grain_file_type") or "arrayrecord"
    options: dict[str, Any] = {"columns": tuple(columns)}
    reader = top.text("dataset_type")
    if reader not in ("grain", "hf"):
        top.report(
            "dataset_type", f"datasets of type {reader!r} cannot be converted: only grain and hf"
        )
        raise nothing(Path(tree.file), "MaxText")
    hub = reader == "hf"
    if hub:
        sources = _of_hub(top, options)
    else:
        sources = _of_files(top, {**options, "format": _FORMATS.get(kind)})
    if not sources:
        raise nothing(Path(tree.file), "MaxText")
    passes = top.number("num_epoch") or 1
    if len(sources) > 1 and passes != 1:
        top.report("num_epoch", "a mixture that ends with its first dataset is a single pass here")
    if len(sources) == 1:
        sources = [replace(sources[0], weight=None, epochs=passes, max_epochs=passes)]
    rows = _rows(top, columns)
    seed, steps = top.integer("data_shuffle_seed", 0), top.integer("steps", -1)
    if steps == -1:
        steps = top.integer("learning_rate_schedule_steps")
    top.pass_over("learning_rate_schedule_steps")
    shuffle = None if top.flag("enable_data_shuffling", True) else Shuffling("none")
    batch = per_rank(
        top.count("per_device_batch_size"), top, "per_device_batch_size", drop_remainder=True
    )
    top.pass_over(
        *(key for reason in _REPORTED.values() for key in reason if top.peek(key) in (0, -1))
    )  # disabled settings
    top.pass_over(*(_OF_FILES if hub else _OF_HUB))  # the settings of the other reader are not read
    top.settle(_HARMLESS, _REPORTED, _NOTED)
    return MixtureFile(
        tuple(sources),
        seed=seed,
        stop="first_exhausted" if len(sources) > 1 else None,
        shuffle=shuffle,
        horizon=("steps", steps) if steps is not None and steps > 0 else None,
        batch=batch,
        **rows,
    )


def _of_files(top: Section, options: Mapping[str, Any]) -> list[SourceEntry]:
    """Return the datasets of `A,0.3;B,0.7`, of a named JSON file, or of one pattern."""
    if top.has("grain_train_mixture_config_path"):
        message = (
            f"convert {top.get('grain_train_mixture_config_path')} instead, which has the mixture"
        )
        top.report("grain_train_mixture_config_path", message)
    setting, names, sources = top.text("grain_train_files") or "", Names(), list[SourceEntry]()
    for part in filter(None, setting.split(";")):
        pattern, _, weight = (
            part.strip().rpartition(",") if ";" in setting else (part.strip(), "", "")
        )
        share = _number(weight) if weight else None
        if not pattern or (weight and share is None):
            top.report(
                "grain_train_files",
                f"{part!r} is not a pattern with a weight after a comma: its share is lost",
            )
            continue
        name = names.of(name_of_path(pattern.partition("*")[0]))
        sources.append(
            SourceEntry(
                name, top.local("grain_train_files", name, [pattern]), weight=share, **options
            )
        )
    return sources


def _of_hub(top: Section, options: Mapping[str, Any]) -> list[SourceEntry]:
    """Return the source of a hub dataset, or of files read by its library."""
    path, files = top.text("hf_path"), top.text("hf_train_files")
    split = top.text("train_split")
    top.report("hf_data_dir", "the folder within the dataset is lost: name it with files")
    if path in ("json", "parquet", "csv", "text", "arrow") and files:
        name = Names().of(name_of_path(files))
        kind: Any = "jsonl" if path == "json" else path
        top.pass_over("hf_name")  # only a name for the configuration
        hub = Hub(path, None, split)
        paths = top.dataset("hf_train_files", name, hub, "hf_name", "train_split", [files])
        return [SourceEntry(name, paths, format=kind, **options)]
    if not path:
        return []
    hub = Hub(path, top.text("hf_name") or None, split, (files,) if files else ())
    name = Names().of(hub.source_name)
    return [
        SourceEntry(name, top.dataset("hf_path", name, hub, "hf_name", "train_split"), **options)
    ]


def _blended(top: Section, names: Names, options: Mapping[str, Any]) -> list[SourceEntry]:
    """Return the datasets of a mixture file."""
    sources = list[SourceEntry]()
    for name, part in top.named():
        weight, source_name = part.number("weight"), names.of(name)
        sources.append(
            SourceEntry(
                source_name,
                part.local("path", source_name, part.texts("path")),
                weight=weight,
                **options,
            )
        )
    return sources


def _rows(top: Section, columns: Sequence[str]) -> dict[str, Any]:
    """Return the settings that turn documents into rows."""
    tokenizer, length = top.text("tokenizer_path"), top.count("max_target_length")
    tokenizes = top.flag("tokenize_train_data", True)
    method, packed = top.text("grain_packing_type") or "first_fit", top.flag("packing", True)
    bos, eos = top.flag("add_bos", True), top.flag("add_eos", True)
    options: dict[str, Any] = {}
    if tokenizes and tokenizer:
        if len(columns) != 1:
            top.report("train_data_columns", "a sample has several texts: tokenize them in Python")
        else:
            hub_name = (
                tokenizer
                if "/" in tokenizer and not tokenizer.endswith((".model", ".json"))
                else None
            )
            if hub_name is None or tokenizer.startswith(("src/", "assets/", "gs://")):
                top.note(
                    "tokenizer_path",
                    "a tokenizer of their checkout: give the path of its tokenizer.json",
                )
            options["tokenize"] = Tokenizing(tokenizer, columns[0])
    elif tokenizes:
        top.account.note(
            top.node, top.key_path, "tokenizer_path is missing: rows are read as stored"
        )
    if not packed:
        top.report("packing", "rows are single padded documents: pad them in Python")
    elif length and method in _METHODS:
        ends = {
            name: True
            for name, enabled in (("bos", bos), ("eos", eos))
            if enabled and "tokenize" in options
        }
        options["pack"] = {"length": length, "method": _METHODS[method], **ends}
    elif length:
        top.report("grain_packing_type", f"{method!r} is not a known packing method")
    return options


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
