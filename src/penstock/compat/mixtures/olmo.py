"""OLMo-core source mixtures: a list of sources with target ratios, alone or as `source_list`."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from ...mixture_files import MixtureFile, SourceEntry
from ...mixture_files.reading import MixtureNode
from ...sources.paths import TOKEN_TYPES, TokenType
from .account import EVALUATION, Account, Reasons, Section, nothing, parts_of
from .locations import Names
from .settings import CHECKPOINTS, MODEL, OPTIMIZER, TRACKING
from .trainers import OTHER_RUN, seed_of, shared

_HARMLESS = (
    OPTIMIZER
    | TRACKING
    | CHECKPOINTS
    | frozenset(
        "tokenizer compile ddp fsdp distributed_strategy single activation_checkpointing "
        "softmax_auxiliary_loss auxiliary_loss_multiplier device_train_microbatch_size "
        "device_eval_batch_size device_train_grad_accum eval_interval eval_on_load "
        "eval_subset_num_batches eval_first save_interval_unsharded "
        "save_interval_ephemeral save_num_unsharded_checkpoints_to_keep save_data_indices "
        "save_sharded_checkpoint_type sharded_checkpointer new_style_checkpoints "
        "remote_save_folder no_pre_train_checkpoint max_grad_norm max_grad_norm_ratio "
        "precision speed_monitor gen1_gc_interval hf_datasets_cache_dir "
        "module_outputs_save_steps python_profiling torch_profiling "
        "canceled_check_interval force_save_unsharded".split()
    )
)
_DATA_HARMLESS = frozenset(
    "num_workers pin_memory prefetch_factor persistent_workers timeout "
    "generate_attention_mask generate_doc_lengths_info".split()
)
_MODEL_HARMLESS = MODEL | frozenset(
    "attention_dropout alibi_bias_max rope_full_precision include_bias norm_after "
    "multi_query_attention scale_emb_init init_fn layer_norm_eps precision scale_logits".split()
)
_REPORTED: Reasons = {
    "the run may end before "
    "its horizon": ("stop_at", "stop_after", "time_limit", "extra_steps_after_cancel"),
    OTHER_RUN: (
        "load_path", "restore_dataloader", "epoch", "try_load_latest_save", "reset_trainer_state",
        "fast_forward_batches",
    ),
    "training is disabled": ("dry_run",),
    "rows are padded": ("pad_direction",),
    "attention is restricted to one document: configure that in the "
    "model": ("generate_doc_lengths",),
}  # fmt: skip
_NOTED: Reasons = {EVALUATION: ("evaluators",)}


def is_mine(tree: MixtureNode) -> bool:
    return _sources(tree) is not None or _has_paths(tree)


def _has_paths(tree: MixtureNode) -> bool:
    """Return whether this is a training file of OLMo, with a list of token files."""
    data = tree.value.get("data") if isinstance(tree.value, dict) else None
    paths = data.value.get("paths") if data is not None and isinstance(data.value, dict) else None
    listed = paths.value if paths is not None and isinstance(paths.value, tuple) else ()
    return bool(listed) and not any(
        _is_weight(item.value) for item in listed
    )  # weights between paths: a file of NeMo


def _is_weight(value: object) -> bool:
    return isinstance(value, int | float) or (
        isinstance(value, str) and value.replace(".", "", 1).isdigit()
    )


def _sources(tree: MixtureNode) -> tuple[MixtureNode, MixtureNode] | None:
    """Return the mapping that contains the list, and the list."""
    value = tree.value
    inner = value.get("source_list") if isinstance(value, dict) else None
    for holder in (tree, inner):
        items = (
            holder.value.get("sources")
            if holder is not None and isinstance(holder.value, dict)
            else None
        )
        if items is not None and isinstance(items.value, tuple) and items.value:
            first = items.value[0].value
            if holder is not None and isinstance(first, dict) and "target_ratio" in first:
                return holder, items
    return None


def convert(tree: MixtureNode, account: Account) -> MixtureFile:
    """Convert the mixture; ratios are shares of tokens."""
    located = _sources(tree)
    if located is None:
        return _training(account.open(tree))
    top = account.open(tree)
    holder = top if located[0] is tree else top.part("source_list")
    assert holder is not None
    holder.get("sources")
    dtype = top.text("dtype")
    names, sources = Names(), list[SourceEntry]()
    for item in parts_of(
        located[1], "sources" if located[0] is tree else "source_list.sources", account
    ):
        ratio = item.number("target_ratio")
        repetitions, fraction = (
            item.number("max_repetition_ratio"),
            item.number("max_source_fraction"),
        )
        name = names.of(item.text("source_name") or "source")
        if fraction not in (None, 1):
            item.note(
                "max_source_fraction",
                "part of the cap: the selected documents differ",
            )
        paths = _flat(item.texts("paths"))
        if not paths:
            item.drop("paths is missing: its share is lost")
            continue
        files = item.local("paths", name, paths)
        cap = (1 if repetitions is None else repetitions) * (1 if fraction is None else fraction)
        tokens = any(path.endswith(".npy") for path in (*paths, *files))
        kind = _dtype(item, dtype) if tokens else None
        weight = 1 if ratio is None else ratio
        sources.append(SourceEntry(name, files, dtype=kind, weight=weight, max_epochs=cap or None))
    if not sources:
        raise nothing(Path(tree.file), "OLMo-core")
    horizon = top.count("requested_tokens")
    size, seed = top.count("global_batch_size"), top.integer("seed")
    length = top.count("sequence_length") or top.count("max_target_sequence_length")
    batch = (
        shared(size // length, top, "global_batch_size", drop_remainder=True)
        if size and length
        else None
    )
    if size and not length:
        top.note(
            "global_batch_size",
            "it counts tokens: set pack with the row length, and batch in rows",
        )
    top.pass_over("processes", "quiet", "render_tables")
    return MixtureFile(
        tuple(sources),
        unit="tokens",
        seed=seed,
        horizon=None if horizon is None else ("tokens", horizon),
        pack={"length": length} if length else None,
        batch=batch,
    )


def _flat(paths: list[str]) -> list[str]:
    return [
        path
        for setting in paths
        for path in (setting.split(",") if "," in setting and "{" not in setting else [setting])
    ]


def _dtype(item: Section, dtype: str | None) -> TokenType:
    """Return the type of ids; by default `uint32`, as for OLMo's tokenizers."""
    if dtype in TOKEN_TYPES:
        return dtype
    item.note(
        "paths",
        "raw token ids: read as uint32, as for the tokenizer dolma2; change dtype if that is wrong",
    )
    return "uint32"


def _training(top: Section) -> MixtureFile:
    """Convert a training file: files listed n times are read n times per pass."""
    data, model = top.part("data"), top.part("model")
    assert data is not None
    counts = Counter(data.texts("paths"))
    dtype, eos = data.text("memmap_dtype"), model.count("eos_token_id") if model else None
    length = model.count("max_sequence_length") if model else None
    drop = data.flag("drop_last", True)
    kind: TokenType = dtype if dtype in TOKEN_TYPES else "uint16"
    data.report("instance_filter", "rows are not filtered: filter the documents first")
    data.report("label_mask_paths", "separate mask files have no counterpart")
    for key in ("datasets", "custom_dataset"):
        data.report(key, "paths takes precedence, so this is not read")
    horizon, passes = _duration(top)
    sources = list[SourceEntry]()
    for repetitions in sorted(set(counts.values())):
        name = "data" if repetitions == 1 else f"data-x{repetitions}"
        paths = data.local("paths", name, [path for path in counts if counts[path] == repetitions])
        amount = repetitions * passes
        cap = None if horizon else amount
        sources.append(SourceEntry(name, paths, dtype=kind, eos=eos, epochs=amount, max_epochs=cap))
    if not sources:
        raise nothing(Path(top.node.file), "OLMo")
    data.note(
        "paths",
        "documents are shuffled, mixed and then split; OLMo splits files into rows, and shuffles "
        "these",
    )
    seed = seed_of(top, None)
    for section, harmless in ((top, _HARMLESS), (data, _DATA_HARMLESS), (model, _MODEL_HARMLESS)):
        if section is not None:
            section.settle(harmless, _REPORTED, _NOTED)
    return MixtureFile(
        tuple(sources),
        unit="tokens",
        seed=seed,
        horizon=horizon,
        pack={"length": length} if length else None,
        batch=shared(
            top.count("global_train_batch_size"),
            top,
            "global_train_batch_size",
            drop_remainder=drop,
        ),
    )


def _duration(top: Section) -> tuple[tuple[str, float] | None, float]:
    """Return the length of the run in tokens (`50e9T`) or steps, or its number of passes."""
    setting = top.get("max_duration")
    match = (
        re.fullmatch(r"([0-9_.]+(?:e[0-9]+)?)(T|ep)?", str(setting).strip())
        if setting is not None
        else None
    )
    if match is None:
        top.report(
            "max_duration", f"{setting!r} is not a duration such as 1ep, 50e9T or a number of steps"
        )
        return None, 1
    number = float(match[1].replace("_", ""))
    if match[2] == "ep":
        return None, number
    return ("tokens" if match[2] == "T" else "steps", int(number)), 1
