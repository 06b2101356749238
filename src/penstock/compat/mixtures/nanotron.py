"""nanotron: `data_stages` with folders of token files and weights, each from a step on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ...mixture_files import MixtureFile, Scheduling, SourceEntry, Tokenizing
from ...mixture_files.reading import MixtureNode
from ...sources.paths import TokenType
from .account import EVALUATION, Account, Reasons, Section, flat, nothing
from .locations import Hub, Names, name_of_path
from .settings import CHECKPOINTS, MODEL, OPTIMIZER, TRACKING
from .trainers import OTHER_RUN, shared

_DATASET_REPORTED: Reasons = {
    OTHER_RUN: ("consumed_train_samples", "step"),
    "it limits the tokens of a dataset: give each source a slice": ("dataset_max_tokens",),
    "the position of the run is not carried over": ("skip_in_stream",),
    "another loader reads the samples": ("use_old_brrr_dataloader",),
    "files are shuffled, and samples keep their stored order": ("shuffle_files",),
    "the last batch is padded": ("pad_samples_to_global_batch_size",),
}
_DATASET_HARMLESS = (
    "return_positions", "tokenizer_name", "bos_token_id", "dataset_overwrite_cache",
    "dataset_processing_num_proc_per_process",
)  # fmt: skip
_HARMLESS: dict[str, frozenset[str]] = {
    "": OPTIMIZER | TRACKING | CHECKPOINTS | {"s3_upload", "lighteval", "metrics_logging"},
    "model": frozenset(
        {"ddp_bucket_cap_mb", "dtype", "init_method", "make_vocab_size_divisible_by"}
    ),
    "model.model_config": MODEL
    | frozenset(
        "_use_qkv_packed _fused_rotary_emb _fused_rms_norm flex_attention_mask z_loss_coefficient "
        "z_loss_enabled sliding_window_size no_rope_layer moe_config moe_layer_recompute "
        "interleaved_rotary ssm_cfg residual_in_fp32 fused_add_norm is_mamba_config rms_norm "
        "pad_vocab_size_multiple num_experts_per_tok moe_capacity_factor is_llamoe_config".split()
    ),
    "checkpoints": frozenset(
        "checkpoint_interval checkpoints_path checkpoints_path_is_shared_file_system "
        "save_initial_state save_final_state load_lr_scheduler load_optimizer".split()
    ),
    "general": frozenset("benchmark_csv_path ignore_sanity_checks project run".split()),
    "tokenizer": frozenset[str](),
    "tokens": frozenset({"val_check_interval", "limit_test_batches"}),
    "parallelism": frozenset(
        "expert_parallel_size pp pp_engine recompute_layer tp "
        "tp_linear_async_communication tp_mode context_parallel_size cp ep "
        "tp_recompute_allgather".split()
    ),
}
"""Section -> its keys without effect on samples."""
_REPORTED: Reasons = {
    OTHER_RUN: ("consumed_train_samples", "step", "resume_checkpoint_path"),
    "it changes the tokens: give a tokenizer that has these settings": (
        "tokenizer_revision",
        "tokenizer_max_length",
    ),
    "attention is restricted to one document: configure that in the model": ("_use_doc_masking",),
    "the row length is missing: set pack": ("max_position_embeddings",),
}
_NOTED: Reasons = {EVALUATION: ("limit_val_batches",)}
_DEFAULT_SEED = 42
_DTYPES: dict[int, TokenType] = {2: "uint16", 4: "uint32"}
_COMMON = ("tokenized", "merged", "tokens", "data")  # generic folder names


def is_mine(tree: MixtureNode) -> bool:
    stages = tree.value.get("data_stages") if isinstance(tree.value, dict) else None
    return stages is not None and isinstance(stages.value, tuple) and bool(stages.value)


def convert(tree: MixtureNode, account: Account) -> MixtureFile:
    """Convert the mixture; weights are shares of rows in nanotron, of tokens here.

    nanotron's rows all have one length.
    """
    top = account.open(tree)
    model, tokens, general = (top.part(key) for key in ("model", "tokens", "general"))
    config = model.part("model_config") if model else None
    names, sources = Names(), dict[str, SourceEntry]()
    points = list[tuple[int, dict[str, float] | None]]()
    seed: int | None = None
    tokenizer = top.part("tokenizer")
    tokenizer_name = tokenizer.text("tokenizer_name_or_path") if tokenizer else None
    for stage in sorted(top.parts("data_stages"), key=_start):
        data = stage.part("data")
        dataset = data.part("dataset") if data else None
        stage.pass_over("name")
        start_step = stage.number("start_training_step") or 1
        if data is None or dataset is None:
            stage.drop("data is missing: its share is lost")
            continue
        data.pass_over("num_loading_workers")
        if seed is None or data.peek("seed") in (None, seed):
            seed = data.integer("seed", _DEFAULT_SEED if seed is None else seed)
        else:
            data.note("seed", "the seed of the first stage draws the samples of all stages")
        points.append(
            (int(start_step) - 1, _stage(dataset, names, sources, config, tokenizer_name))
        )
    if not sources:
        raise nothing(Path(tree.file), "nanotron")
    if points[0][0] != 0:
        top.report(
            "data_stages",
            f"the first stage begins at step {points[0][0] + 1}: here it begins with the run",
        )
    by_name = {source.name: source for source in sources.values()}
    weighted, options = _shares(top, by_name, points)
    length = tokens.count("sequence_length") if tokens else None
    if tokens is not None:
        options |= _run(top, tokens)
    if general is not None:
        general.pass_over("seed")  # it seeds the model
    checkpoints = top.part("checkpoints")
    for section in (
        top,
        model,
        config,
        general,
        tokenizer,
        tokens,
        top.part("parallelism"),
        checkpoints,
    ):
        if section is not None:
            section.pass_over("max_position_embeddings") if length else None
            section.settle(_HARMLESS[section.key_path], _REPORTED, _NOTED)
    return MixtureFile(
        tuple(weighted),
        unit="tokens",
        seed=seed,
        pack={"length": length} if length else None,
        **options,
    )


def _start(stage: Section) -> float:
    """Return the step by which nanotron sorts its stages."""
    step: Any = stage.peek("start_training_step")
    return step if isinstance(step, int | float) else 1


def _stage(
    dataset: Section,
    names: Names,
    sources: dict[str, SourceEntry],
    model: Section | None,
    tokenizer: str | None,
) -> dict[str, float] | None:
    """Return the weights of a stage by source name; `None` if the sizes decide."""
    if dataset.has("hf_dataset_or_datasets"):
        return _texts(dataset, names, sources, tokenizer)
    setting: Any = dataset.peek("dataset_folder")
    weights: list[float] | None = None
    if isinstance(setting, dict):
        folders = [str(folder) for folder in cast("dict[str, Any]", setting)]
        inside = dataset.part("dataset_folder")
        weights = [] if inside is None else [inside.weight(folder) for folder in folders]
    else:
        folders = dataset.texts("dataset_folder")
        listed: Any = dataset.get("dataset_weights")
        weights = (
            None
            if listed is None
            else _numbers(dataset, "dataset_weights", flat([listed]), len(folders))
        )
    read = dataset.texts("dataset_read_path")
    dtype = _dtype(dataset, model)
    row = dict[str, float]()
    for number, folder in enumerate(folders):
        if folder not in sources:
            name = names.of(_name(folder))
            paths = dataset.local(
                "dataset_folder", name, [read[number] if number < len(read) else folder]
            )
            sources[folder] = SourceEntry(name, paths, dtype=dtype)
        _add(row, sources[folder].name, weights, number)
    dataset.settle(_DATASET_HARMLESS, _DATASET_REPORTED)
    return row if weights else _by_size(dataset, row)


def _add(row: dict[str, float], name: str, weights: list[float] | None, number: int) -> None:
    """Add the weight of a dataset, which may be named more than once."""
    row[name] = row.get(name, 0.0) + (weights[number] if weights else 1.0)


def _numbers(
    dataset: Section, key: str, setting: Iterable[Any], datasets: int
) -> list[float] | None:
    """Return the weights, if all are numbers."""
    listed = list(setting)
    numbers = [
        float(value)
        for value in listed
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    ]
    if len(numbers) == len(listed) == datasets:
        return numbers
    dataset.report(key, f"expected one number of at least 0 for each of {datasets} datasets")
    return None


def _by_size(dataset: Section, row: Mapping[str, float]) -> dict[str, float] | None:
    """Return the weights of a stage without weights: each dataset counts by its size."""
    if len(row) > 1 and any(count > 1 for count in row.values()):
        dataset.account.report(dataset.node, dataset.key_path, "a repeated dataset counts once")
    return dict(row) if len(row) == 1 else None


def _name(folder: str) -> str:
    """Return the name of a folder, without generic last parts."""
    parts = [part for part in folder.rstrip("/").split("/") if part]
    while len(parts) > 1 and parts[-1] in _COMMON:
        parts.pop()
    return name_of_path(parts[-1])


def _dtype(dataset: Section, model: Section | None) -> TokenType | None:
    """Return the type of ids: from the dataset, else from the size of the vocabulary."""
    size = dataset.count("token_size_in_bytes")
    if size is not None:
        dataset.pass_over("vocab_size")
        if size in _DTYPES:
            return _DTYPES[size]
        dataset.report("token_size_in_bytes", f"{size} is neither 2 nor 4: set dtype")
        return None
    vocabulary = dataset.count("vocab_size") or (model.count("vocab_size") if model else None)
    return None if vocabulary is None else "uint16" if vocabulary <= 2**16 else "uint32"


def _texts(
    dataset: Section, names: Names, sources: dict[str, SourceEntry], tokenizer: str | None
) -> dict[str, float] | None:
    """Return the weights of hub datasets, whose texts are tokenized during the run."""
    key, weights = "hf_dataset_or_datasets", None
    if isinstance(dataset.peek(key), dict):
        inside = dataset.part(key)
        assert inside is not None
        dataset_names = list(inside.table)
        weights = [inside.weight(name) for name in dataset_names]
    else:
        dataset_names = dataset.texts(key)
    column = dataset.text("text_column_name") or "text"
    split = dataset.text("hf_dataset_splits")
    config = dataset.text("hf_dataset_config_name")
    row = dict[str, float]()
    for number, dataset_name in enumerate(dataset_names):
        if dataset_name not in sources:
            hub = Hub(dataset_name, config, split)
            name = names.of(hub.source_name)
            tokenize = Tokenizing(tokenizer, column) if tokenizer else None
            paths = dataset.dataset(key, name, hub, "hf_dataset_config_name", "hf_dataset_splits")
            sources[dataset_name] = SourceEntry(name, paths, tokenize=tokenize)
        _add(row, sources[dataset_name].name, weights, number)
    dataset.settle(_DATASET_HARMLESS, _DATASET_REPORTED)
    return row if weights else _by_size(dataset, row)


def _shares(
    top: Section,
    sources: Mapping[str, SourceEntry],
    points: list[tuple[int, dict[str, float] | None]],
) -> tuple[list[SourceEntry], dict[str, Any]]:
    """Return sources with weights, or with a schedule; without weights the sizes decide."""
    if len(points) == 1:
        row = points[0][1]
        if row is None:
            return list(sources.values()), {"temperature": 1}
        return [replace(source, weight=row.get(name, 0)) for name, source in sources.items()], {}
    rows = list[tuple[int, dict[str, float]]]()
    for step, row in points:
        if row is None:
            top.report(
                "data_stages",
                "a stage without weights uses sizes, which a schedule cannot: write its weights",
            )
            row = dict.fromkeys(sources, 1.0)
        rows.append((step, {name: row.get(name, 0.0) for name in sources}))
    top.note(
        "data_stages",
        "a source of several stages continues; nanotron restarts it in each stage",
    )
    return list(sources.values()), {"schedule": Scheduling("steps", "step", tuple(rows))}


def _run(top: Section, tokens: Section) -> dict[str, Any]:
    parallel = top.part("parallelism")
    rank_batch = (tokens.count("micro_batch_size") or 1) * (
        tokens.count("batch_accumulation_per_replica") or 1
    )
    size = rank_batch * ((parallel.count("dp") if parallel else None) or 1)
    steps = tokens.count("train_steps")
    return {
        "batch": shared(size, tokens, "micro_batch_size", drop_remainder=True),
        "horizon": ("steps", steps) if steps else None,
    }
