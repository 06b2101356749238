"""LLaMA-Factory: `dataset_info.json`, or a training file that names datasets of it and how to mix them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...mixture_files import Batching, MixtureFile, SourceEntry
from ...mixture_files.reading import Node, Notes, read_file
from .parts import Left, Names, Part, nothing

_PLACES = ("hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name", "file_name")
_STOPS = {"interleave_under": "first_exhausted", "interleave_over": "all_exhausted_oversample"}
_ABOUT_DATA = (
    "eval_dataset", "tokenized_path", "template", "train_on_prompt", "mask_history", "val_size", "streaming",
    "buffer_size", "max_samples", "cutoff_len", "packing", "neat_packing", "media_dir", "gradient_accumulation_steps",
)  # fmt: skip


def is_mine(tree: Node) -> bool:
    value = tree.value
    if not isinstance(value, dict) or not value:
        return False
    if _is_info(tree):
        return True
    named = value.get("dataset")
    known = {"dataset_dir", "stage", "template", "finetuning_type"}
    return named is not None and isinstance(named.value, str | tuple) and bool(known & value.keys())


def _is_info(tree: Node) -> bool:
    values = list(tree.value.values()) if isinstance(tree.value, dict) else []
    return bool(values) and all(isinstance(each.value, dict) and set(_PLACES) & each.value.keys() for each in values)


def convert(tree: Node, left: Left) -> MixtureFile:
    """The mixture of all datasets of a `dataset_info.json`, or of those that a training file names."""
    if _is_info(tree):
        return _model(_sources(tree, left, None), {}, Path(tree.file))
    top = Part(tree, "", left)
    folder = Path(top.path(top.text("dataset_dir") or "data"))
    notes = Notes()
    info = read_file(folder / "dataset_info.json", notes, variables=False)
    if info is None or not _is_info(info):
        raise ConfigError(
            f"{tree.file}: its datasets are described in {folder / 'dataset_info.json'}, which is not there"
        )
    asked = top.get("dataset")
    names = [name.strip() for name in (asked.split(",") if isinstance(asked, str) else map(str, asked))]
    for name in names:
        if name not in Part(info, "", left).table:
            top.leave("dataset", f"{name!r} is not described in {folder / 'dataset_info.json'}")
    sources = _sources(info, left, names)
    more: dict[str, Any] = {"seed": top.get("seed") if isinstance(top.get("seed"), int) else None}
    strategy = top.text("mix_strategy") or "concat"
    if strategy in _STOPS:
        sources = _probable(top, names, sources)
        more["stop"] = _STOPS[strategy]
    elif strategy != "concat":
        top.leave("mix_strategy", f"{strategy!r} is no stop rule of a mixture file")
    size = top.count("per_device_train_batch_size")
    more["batch"] = Batching(size, collate="list") if size else None
    top.rest(only=_ABOUT_DATA)
    return _model(sources, more, Path(tree.file))


def _model(sources: dict[str, SourceEntry], more: dict[str, Any], file: Path) -> MixtureFile:
    if not sources:
        raise nothing(file, "LLaMA-Factory")
    if "stop" not in more:  # one after the other, and shuffled: every sample once, shares by size
        more = {**more, "temperature": 1, "stop": "all_exhausted"}
    return MixtureFile(tuple(sources.values()), **more)


def _sources(tree: Node, left: Left, wanted: list[str] | None) -> dict[str, SourceEntry]:
    names, out = Names(), dict[str, SourceEntry]()
    for name, item in Part(tree, "", left).named():
        if wanted is not None and name not in wanted:
            continue
        place = next(key for key in _PLACES if key in item.table)
        given = item.text(place) or ""
        if place != "file_name":
            item.leave(place, "it lies elsewhere: download it and give its files as path")
            continue
        item.leave("num_samples", "the first so many are taken, not random ones")
        most = item.count("num_samples")
        item.rest()
        bounds = None if most is None else (0, most)
        out[name] = SourceEntry(names.of(name), (item.path(given),), slice=bounds)
    return out


def _probable(top: Part, names: list[str], sources: dict[str, SourceEntry]) -> dict[str, SourceEntry]:
    """The interleaving probabilities, in the order in which the datasets are named."""
    given = top.get("interleave_probs")
    texts = given.split(",") if isinstance(given, str) else given if isinstance(given, list) else []  # pyright: ignore[reportUnknownVariableType]
    try:
        shares = [float(text) for text in texts]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    except (TypeError, ValueError):
        shares = []
    if not shares and given is None:
        return sources
    if len(shares) != len(names):
        top.leave("interleave_probs", f"not one number for each of {len(names)} datasets")
        return sources
    of = dict(zip(names, shares, strict=True))
    return {name: replace(source, weight=of[name]) for name, source in sources.items()}
