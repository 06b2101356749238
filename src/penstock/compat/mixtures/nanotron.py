"""nanotron: `data_stages` with folders of token files and their weights, from a training step
each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ...mixture_files import MixtureFile, Scheduling, SourceEntry, Tokenising
from ...mixture_files.reading import Node
from ...sources.paths import TokenType
from .account import EVALUATION, Account, Reasons, Section, flat, nothing
from .places import Hub, Names, name_of_path
from .settings import CHECKPOINTS, MODEL, OPTIMIZER, TRACKING
from .trainers import OTHER_RUN, shared

_DATASET_REPORTED: Reasons = {
    OTHER_RUN: ("consumed_train_samples", "step"),
    "only so many tokens of a dataset are read: give each source a slice": ("dataset_max_tokens",),
    "where the run stood in its data is not carried over": ("skip_in_stream",),
    "another loader gives the samples": ("use_old_brrr_dataloader",),
    "files are shuffled, and samples come as they are stored": ("shuffle_files",),
    "the last batch is made full with padding": ("pad_samples_to_global_batch_size",),
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
    "model.model_config": MODEL | {"_use_qkv_packed", "_fused_rotary_emb", "_fused_rms_norm"},
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
"""The sections that hold more than data, and what of them says nothing about samples."""
_REPORTED: Reasons = {
    OTHER_RUN: ("consumed_train_samples", "step", "resume_checkpoint_path"),
    "it changes the tokens: give a tokenizer that has these settings": (
        "tokenizer_revision",
        "tokenizer_max_length",
    ),
    "documents are kept apart in attention: say so where the model is called": (
        "_use_doc_masking",
    ),
    "how long rows are is not said: say pack": ("max_position_embeddings",),
}
_NOTED: Reasons = {EVALUATION: ("limit_val_batches",)}
_COMMON = ("tokenized", "merged", "tokens", "data")  # what many folders of tokens are called


def is_mine(tree: Node) -> bool:
    stages = tree.value.get("data_stages") if isinstance(tree.value, dict) else None
    return stages is not None and isinstance(stages.value, tuple) and bool(stages.value)


def convert(tree: Node, account: Account) -> MixtureFile:
    """The mixture; weights are shares of rows of equal length there, of tokens here."""
    top = account.open(tree)
    model, tokens, general = (top.part(key) for key in ("model", "tokens", "general"))
    config = model.part("model_config") if model else None
    names, sources = Names(), dict[str, SourceEntry]()
    points = list[tuple[int, dict[str, float] | None]]()
    tokenizer = top.part("tokenizer")
    known = tokenizer.text("tokenizer_name_or_path") if tokenizer else None
    for stage in top.parts("data_stages"):
        data = stage.part("data")
        dataset = data.part("dataset") if data else None
        stage.pass_over("name")
        begins = stage.number("start_training_step") or 1
        if data is None or dataset is None:
            stage.drop("it names no data")
            continue
        data.pass_over("num_loading_workers")
        data.note("seed", "samples are drawn by the seed of general here")
        points.append((int(begins) - 1, _stage(dataset, names, sources, config, known)))
    if not sources:
        raise nothing(Path(tree.file), "nanotron")
    if points[0][0] != 0:
        top.report(
            "data_stages",
            f"the first stage begins at step {points[0][0] + 1}: here it begins with the run",
        )
    by_name = {source.name: source for source in sources.values()}
    weighted, more = _shares(top, by_name, points)
    length = tokens.count("sequence_length") if tokens else None
    if tokens is not None:
        more |= _run(top, tokens)
    seed = general.integer("seed") if general else None
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
            section.settle(_HARMLESS[section.at], _REPORTED, _NOTED)
    return MixtureFile(
        tuple(weighted),
        unit="tokens",
        seed=seed,
        pack={"length": length} if length else None,
        **more,
    )


def _stage(
    dataset: Section,
    names: Names,
    sources: dict[str, SourceEntry],
    model: Section | None,
    tokenizer: str | None,
) -> dict[str, float] | None:
    """The weights of a stage, by the names of sources; `None` where they come from the sizes."""
    if dataset.has("hf_dataset_or_datasets"):
        return _texts(dataset, names, sources, tokenizer)
    given: Any = dataset.peek("dataset_folder")
    weights: list[float] | None = None
    if isinstance(given, dict):
        folders = [str(folder) for folder in cast("dict[str, Any]", given)]
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
    """Add the weight of a dataset to what it has, where it is named more than once."""
    row[name] = row.get(name, 0.0) + (weights[number] if weights else 1.0)


def _numbers(dataset: Section, key: str, given: Iterable[Any], datasets: int) -> list[float] | None:
    """Weights, where all are such."""
    listed = list(given)
    found = [
        float(one)
        for one in listed
        if isinstance(one, int | float) and not isinstance(one, bool) and one >= 0
    ]
    if len(found) == len(listed) == datasets:
        return found
    dataset.report(key, f"not one number of at least 0 for each of {datasets} datasets")
    return None


def _by_size(dataset: Section, row: Mapping[str, float]) -> dict[str, float] | None:
    """The weights where none are said: each dataset as large as it is."""
    if len(row) > 1 and any(times > 1 for times in row.values()):
        dataset.account.report(
            dataset.node, dataset.at, "a dataset is named more than once, and counts once"
        )
    return dict(row) if len(row) == 1 else None


def _name(folder: str) -> str:
    """What a folder is called; not as all folders of tokens are."""
    parts = [part for part in folder.rstrip("/").split("/") if part]
    while len(parts) > 1 and parts[-1] in _COMMON:
        parts.pop()
    return name_of_path(parts[-1])


def _dtype(dataset: Section, model: Section | None) -> TokenType | None:
    """Return the type of ids: as wide as the dataset says, else enough for its vocabulary, or the
    model's."""
    size = dataset.count("token_size_in_bytes")
    if size is not None:
        dataset.pass_over("vocab_size")
        return "uint16" if size == 2 else "uint32"
    vocabulary = dataset.count("vocab_size") or (model.count("vocab_size") if model else None)
    return None if vocabulary is None else "uint16" if vocabulary <= 2**16 - 1 else "uint32"


def _texts(
    dataset: Section, names: Names, sources: dict[str, SourceEntry], tokenizer: str | None
) -> dict[str, float] | None:
    """Datasets of the hub, whose texts are tokenised while the run goes on."""
    key, weights = "hf_dataset_or_datasets", None
    if isinstance(dataset.peek(key), dict):
        inside = dataset.part(key)
        assert inside is not None
        several = list(inside.table)
        weights = [inside.weight(name) for name in several]
    else:
        several = dataset.texts(key)
    column = dataset.text("text_column_name") or "text"
    split = dataset.text("hf_dataset_splits")
    config = dataset.text("hf_dataset_config_name")
    row = dict[str, float]()
    for number, one in enumerate(several):
        if one not in sources:
            place = Hub(one, config, split)
            name = names.of(place.short)
            tokenise = Tokenising(tokenizer, column) if tokenizer else None
            there = dataset.dataset(key, name, place, "hf_dataset_config_name", "hf_dataset_splits")
            sources[one] = SourceEntry(name, there, tokenise=tokenise)
        _add(row, sources[one].name, weights, number)
    dataset.settle(_DATASET_HARMLESS, _DATASET_REPORTED)
    return row if weights else _by_size(dataset, row)


def _shares(
    top: Section,
    sources: Mapping[str, SourceEntry],
    points: list[tuple[int, dict[str, float] | None]],
) -> tuple[list[SourceEntry], dict[str, Any]]:
    """Sources with their weights, or a schedule of these; without weights they come from the
    sizes."""
    if len(points) == 1:
        row = points[0][1]
        if row is None:
            return list(sources.values()), {"temperature": 1}
        return [replace(source, weight=row.get(name, 0)) for name, source in sources.items()], {}
    rows = list[tuple[int, dict[str, float]]]()
    for at, row in points:
        if row is None:
            top.report(
                "data_stages",
                "a stage without weights shares out by sizes, which a schedule cannot: write them",
            )
            row = dict.fromkeys(sources, 1.0)
        rows.append((at, {name: row.get(name, 0.0) for name in sources}))
    top.note(
        "data_stages",
        "a source that is in several stages goes on where it was; nanotron begins it anew in each",
    )
    return list(sources.values()), {"schedule": Scheduling("steps", "step", tuple(rows))}


def _run(top: Section, tokens: Section) -> dict[str, Any]:
    parallel = top.part("parallelism")
    each = (tokens.count("micro_batch_size") or 1) * (
        tokens.count("batch_accumulation_per_replica") or 1
    )
    size = each * ((parallel.count("dp") if parallel else None) or 1)
    steps = tokens.count("train_steps")
    return {
        "batch": shared(size, tokens, "micro_batch_size", drop_remainder=True),
        "horizon": ("steps", steps) if steps else None,
    }
