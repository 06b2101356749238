"""nanotron: `data_stages` with folders of token files and their weights, from a training step each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ...mixture_files import MixtureFile, Scheduling, SourceEntry, Tokenising
from ...mixture_files.reading import Node
from ...sources.paths import TokenType
from .parts import Hub, Left, Names, Part, flat, name_of_path, nothing
from .trainers import shared

_LOADING = ("num_loading_workers", "seed")
_ABOUT_DATA = ("dataset_max_tokens", "shuffle_files", "skip_in_stream", "pad_samples_to_global_batch_size")
_COMMON = ("tokenized", "merged", "tokens", "data")  # what many folders of tokens are called


def is_mine(tree: Node) -> bool:
    stages = tree.value.get("data_stages") if isinstance(tree.value, dict) else None
    return stages is not None and isinstance(stages.value, tuple) and bool(stages.value)


def convert(tree: Node, left: Left) -> MixtureFile:
    """The mixture; weights are shares of rows of equal length there, of tokens here."""
    top = Part(tree, "", left)
    model, tokens, general = (top.part(key) for key in ("model", "tokens", "general"))
    config = model.part("model_config") if model else None
    vocabulary = config.count("vocab_size") if config else None
    names, sources = Names(), dict[str, SourceEntry]()
    points = list[tuple[int, dict[str, float] | None]]()
    tokenizer = top.part("tokenizer")
    known = tokenizer.text("tokenizer_name_or_path") if tokenizer else None
    for stage in top.parts("data_stages"):
        data = stage.part("data")
        dataset = data.part("dataset") if data else None
        stage.skip("name")
        begins = stage.number("start_training_step") or 1
        stage.rest()
        if data is None or dataset is None:
            left.lost(stage.node, stage.at, "it names no data")
            continue
        data.skip(*_LOADING)
        data.rest()
        points.append((int(begins) - 1, _stage(dataset, names, sources, vocabulary, known)))
    if not sources:
        raise nothing(Path(tree.file), "nanotron")
    by_name = {source.name: source for source in sources.values()}
    weighted, more = _shares(top, by_name, points)
    length = tokens.count("sequence_length") if tokens else None
    if tokens is not None:
        more |= _run(top, tokens)
    seed = general.get("seed") if general else None
    return MixtureFile(
        tuple(weighted),
        unit="tokens",
        seed=seed if isinstance(seed, int) else None,
        pack={"length": length} if length else None,
        **more,
    )


def _stage(
    dataset: Part, names: Names, sources: dict[str, SourceEntry], vocabulary: int | None, tokenizer: str | None
) -> dict[str, float] | None:
    """The weights of a stage, by the names of sources; `None` where they come from the sizes."""
    if dataset.has("hf_dataset_or_datasets"):
        return _texts(dataset, names, sources, tokenizer)
    node = dataset.table.get("dataset_folder")
    given: Any = dataset.get("dataset_folder")
    weights: list[float] | None = None
    if node is not None and isinstance(node.value, dict):
        folders = list(node.value)
        weights = _numbers(dataset, "dataset_folder", [one.value for one in node.value.values()])
    else:
        folders = [folder for folder in flat([given]) if isinstance(folder, str)]
        listed: Any = dataset.get("dataset_weights")
        weights = None if listed is None else _numbers(dataset, "dataset_weights", flat([listed]))
    read = dataset.texts("dataset_read_path")
    size = dataset.count("token_size_in_bytes")
    dtype = _dtype(size, dataset.count("vocab_size") or vocabulary)
    dataset.skip("return_positions", "tokenizer_name", "use_old_brrr_dataloader", "bos_token_id")
    row = dict[str, float]()
    for number, folder in enumerate(folders):
        if folder not in sources:
            name = names.of(_name(folder))
            paths = dataset.local("dataset_folder", name, [read[number] if number < len(read) else folder])
            sources[folder] = SourceEntry(name, paths, dtype=dtype)
        row[sources[folder].name] = weights[number] if weights and number < len(weights) else 1.0
    for key in _ABOUT_DATA:
        if dataset.get(key):
            dataset.leave(key)
    return row if weights else _by_size(row)


def _numbers(dataset: Part, key: str, given: Iterable[Any]) -> list[float] | None:
    """Weights, where all are such."""
    listed = list(given)
    found = [float(one) for one in listed if isinstance(one, int | float) and not isinstance(one, bool) and one >= 0]
    if len(found) == len(listed) and found:
        return found
    dataset.leave(key, "its weights are no numbers of at least 0")
    return None


def _by_size(row: Mapping[str, float]) -> dict[str, float] | None:
    return dict(row) if len(row) == 1 else None


def _name(folder: str) -> str:
    """What a folder is called; not as all folders of tokens are."""
    parts = [part for part in folder.rstrip("/").split("/") if part]
    while len(parts) > 1 and parts[-1] in _COMMON:
        parts.pop()
    return name_of_path(parts[-1])


def _dtype(size: int | None, vocabulary: int | None) -> TokenType | None:
    if size is None and vocabulary is None:
        return None
    return "uint16" if size == 2 or (size is None and cast("int", vocabulary) <= 2**16 - 1) else "uint32"


def _texts(
    dataset: Part, names: Names, sources: dict[str, SourceEntry], tokenizer: str | None
) -> dict[str, float] | None:
    """Datasets of the hub, whose texts are tokenised while the run goes on."""
    node, given = dataset.table["hf_dataset_or_datasets"], dataset.get("hf_dataset_or_datasets")
    weights = _numbers(dataset, "hf_dataset_or_datasets", given.values()) if isinstance(node.value, dict) else None
    column = dataset.text("text_column_name") or "text"
    split = dataset.get("hf_dataset_splits")
    config = dataset.text("hf_dataset_config_name")
    dataset.skip("dataset_overwrite_cache", "dataset_processing_num_proc_per_process")
    row = dict[str, float]()
    several = list(given) if isinstance(node.value, dict) else list(flat([given]))
    for number, one in enumerate(str(each) for each in several):
        if one not in sources:
            place = Hub(str(one), config, split if isinstance(split, str) else None)
            name = names.of(place.short)
            tokenise = Tokenising(tokenizer, column) if tokenizer else None
            sources[one] = SourceEntry(name, dataset.hub("hf_dataset_or_datasets", name, place), tokenise=tokenise)
        row[sources[one].name] = weights[number] if weights and number < len(weights) else 1.0
    dataset.rest()
    return row if weights else _by_size(row)


def _shares(
    top: Part, sources: Mapping[str, SourceEntry], points: list[tuple[int, dict[str, float] | None]]
) -> tuple[list[SourceEntry], dict[str, Any]]:
    """Sources with their weights, or a schedule of these; without weights they come from the sizes."""
    if len(points) == 1:
        row = points[0][1]
        if row is None:
            return list(sources.values()), {"temperature": 1}
        return [replace(source, weight=row.get(name, 0)) for name, source in sources.items()], {}
    rows = list[tuple[int, dict[str, float]]]()
    for at, row in points:
        if row is None:
            top.leave("data_stages", "a stage without weights shares out by sizes, which a schedule cannot: write them")
            row = dict.fromkeys(sources, 1.0)
        rows.append((at, {name: row.get(name, 0.0) for name in sources}))
    top.say("data_stages", "a source that is in several stages goes on where it was; nanotron begins it anew in each")
    return list(sources.values()), {"schedule": Scheduling("steps", "step", tuple(rows))}


def _run(top: Part, tokens: Part) -> dict[str, Any]:
    parallel = top.part("parallelism")
    each = (tokens.count("micro_batch_size") or 1) * (tokens.count("batch_accumulation_per_replica") or 1)
    size = each * ((parallel.count("dp") if parallel else None) or 1)
    steps = tokens.count("train_steps")
    return {
        "batch": shared(size, tokens, "micro_batch_size", drop_remainder=True),
        "horizon": ("steps", steps) if steps else None,
    }
