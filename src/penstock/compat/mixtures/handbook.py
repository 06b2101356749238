"""Trainers on TRL: alignment-handbook's `dataset_mixture`, open-instruct's `dataset_mixer`, TRL's `dataset_name`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from ...mixture_files import MixtureFile, SourceEntry, Splitting
from ...mixture_files.reading import Node
from .parts import Hub, Left, Names, Part, name_of_path, nothing
from .trainers import each, length, whole

_MIXERS = ("dataset_mixer", "dataset_mixer_list")
_FILES = (".jsonl", ".json", ".parquet", ".csv")
_ROWS = "rows are cut and packed when they are tokens, which a template makes: map the rows in Python"
_ENDS = "this many samples of all datasets together are held out: give each source its split"


def is_mine(tree: Node) -> bool:
    value = tree.value if isinstance(tree.value, dict) else {}
    if any(key in value and value[key].value for key in _MIXERS) and "datasets" not in value:
        return True
    mixture = value.get("dataset_mixture")
    if mixture is not None and isinstance(mixture.value, dict) and "datasets" in mixture.value:
        return True
    trl = {"model_name_or_path", "num_train_epochs", "per_device_train_batch_size"} & value.keys()
    return "dataset_name" in value and isinstance(value["dataset_name"].value, str) and len(trl) > 1


def convert(tree: Node, left: Left) -> MixtureFile:
    """The mixture: the datasets, or parts of them, put together and shuffled."""
    top, names = Part(tree, "", left), Names()
    mixture = top.part("dataset_mixture")
    if mixture is not None:
        sources = [_entry(item, names) for item in mixture.parts("datasets")]
        mixture.leave("test_split_size", _ENDS)
        seed = mixture.get("seed", 0)
        mixture.rest()
    elif any(top.has(key) for key in _MIXERS):
        sources, seed = list(_mixer(top, names)), top.get("seed", 42)
    else:
        sources, seed = [_named(top, names)], top.get("seed", 42)
    if not sources:
        raise nothing(Path(tree.file), "alignment-handbook")
    horizon, passes = length(top, "num_train_epochs", 3)
    put, how = whole(sources, passes)
    top.leave("chat_template", "its prompts are made by the trainer: map the rows in Python")
    left.note(tree, "", "rows are taken as they are stored: encode them in Python")
    if top.get("packing") is True:
        top.leave("packing", _ROWS)
    top.leave("max_train_samples")
    return MixtureFile(
        put,
        seed=seed if isinstance(seed, int) else None,
        horizon=horizon,
        batch=each(top.count("per_device_train_batch_size"), top, collate="list"),
        **how,
    )


def _entry(item: Part, names: Names) -> SourceEntry:
    """A dataset of a mixture; with a weight below 1 that part of it, at random but always the same."""
    place = Hub(item.text("id") or "", item.text("config"), item.text("split"))
    name = names.of(place.short)
    columns, weight = item.texts("columns"), item.number("weight")
    paths = _place(item, "id", name, place)
    item.rest()
    split = Splitting(round(1 - weight, 6)) if weight is not None and 0 < weight < 1 else None
    return SourceEntry(name, paths, columns=tuple(columns) or None, split=split)


def _place(item: Part, key: str, name: str, place: Hub) -> tuple[str, ...]:
    given = place.name
    beside = given.endswith(_FILES) or given.startswith((".", "/", "~")) or "://" in given
    return item.local(key, name, [given]) if beside else item.hub(key, name, place)


def _mixer(top: Part, names: Names) -> Iterator[SourceEntry]:
    """Names with a share of each (0.5, 1.0), or a number of samples (5000)."""
    key = next(key for key in _MIXERS if top.has(key))
    node, given = top.table[key], top.get(key)
    table: dict[str, Any] = given if isinstance(node.value, dict) else {}
    listed = cast("list[Any]", given) if isinstance(given, list) else []
    flat = given.split() if isinstance(given, str) else listed
    pairs = [*table.items(), *zip(flat[::2], flat[1::2], strict=False)]
    splits = top.texts("dataset_mixer_list_splits") or top.texts("dataset_train_splits")
    for number, (called, amount) in enumerate(pairs):
        split = splits[number] if number < len(splits) else splits[0] if len(splits) == 1 else None
        place = Hub(str(called), split=split)
        name = names.of(name_of_path(str(called)) if str(called).endswith(_FILES) else place.short)
        bounds = _first(amount)
        if bounds is None and amount not in (1.0, "1.0"):
            top.leave(key, f"{amount!r} is neither a share nor a number of samples")
        elif bounds is not None:
            top.say(key, "of a dataset with a share or number the first so many rows; the trainer may draw others")
        yield SourceEntry(name, _place(top, key, name, place), slice=bounds)


def _first(amount: Any) -> tuple[int | str | None, ...] | None:
    """The first rows of a dataset: a share, or so many."""
    text = str(amount)
    if text.isdigit() and (isinstance(amount, int) or int(text) > 1):
        return (0, int(text))
    try:
        share = float(text)
    except ValueError:
        return None
    return ("0%", f"{round(share * 100, 6):g}%") if 0 < share < 1 else None


def _named(top: Part, names: Names) -> SourceEntry:
    split = top.text("dataset_train_split") or top.text("dataset_split")
    place = Hub(top.text("dataset_name") or "", top.text("dataset_config"), split)
    name = names.of(place.short)
    return SourceEntry(name, _place(top, "dataset_name", name, place))
