"""alignment-handbook's `dataset_mixture` and `dataset_mixer`, and open-instruct's
`dataset_mixer_list`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from ...mixture_files import MixtureFile, SourceEntry, Splitting
from ...mixture_files.reading import Node
from .account import EVALUATION, Account, Section, nothing
from .places import Hub, Names, name_of_path
from .trainers import length, put_together, seed_of
from .trl import FILES, place_of, plain_split, training

_MIXERS = ("dataset_mixer", "dataset_mixer_list")
_TEST_SPLIT = "this many samples of all datasets together are held out: give each source its split"
_SPLITS = ("dataset_splits", "dataset_mixer_list_splits", "dataset_train_splits")
_ENDS = (
    "dataset_eval_mixer", "dataset_eval_mixer_list", "dataset_mixer_eval_list", "dataset_mixer_eval_list_splits",
    "dataset_eval_splits",
)  # fmt: skip


def is_mine(tree: Node) -> bool:
    value = tree.value if isinstance(tree.value, dict) else {}
    if any(key in value and value[key].value for key in _MIXERS):
        return True
    mixture = value.get("dataset_mixture")
    return mixture is not None and isinstance(mixture.value, dict) and "datasets" in mixture.value


def convert(tree: Node, account: Account) -> MixtureFile:
    """The mixture: the datasets, or parts of them, put together and shuffled."""
    top, names = account.open(tree), Names()
    mixture = top.part("dataset_mixture")
    if mixture is not None:
        sources = [
            source
            for item in mixture.parts("datasets")
            if (source := _entry(item, names)) is not None
        ]
        mixture.report("test_split_size", _TEST_SPLIT)
        seed = mixture.integer("seed", 0)
        for key in ("seed", "data_seed"):
            top.note(key, "samples are drawn and shuffled by the seed of dataset_mixture here")
        for key in ("dataset_name", "dataset_config", *_MIXERS):
            top.report(key, "a dataset_mixture is given, and this is not read")
    else:
        sources, seed = list(_mixer(top, names)), seed_of(top)
    if not sources:
        raise nothing(Path(tree.file), "alignment-handbook")
    steps = "max_train_steps" if top.has("max_train_steps") else "max_steps"
    horizon, passes = length(top, "num_train_epochs", 3, steps)
    put, how = put_together(sources, passes)
    top.settle(noted={EVALUATION: _ENDS})
    return MixtureFile(put, seed=seed, horizon=horizon, **training(top), **how)


def _entry(item: Section, names: Names) -> SourceEntry | None:
    """A dataset of a mixture; with a weight below 1 that part of it, at random but always the
    same."""
    if not item.has("id"):
        item.drop("it names no id: its samples are lost")
        return None
    split = plain_split(item, "split", item.text("split") or "train")
    place = Hub(item.text("id") or "", item.text("config"), split)
    columns, weight = item.texts("columns"), item.number("weight")
    if weight == 0:
        item.note("weight", "nothing of this dataset is read")
        return None
    if weight is not None and weight > 1:
        item.report("weight", "a part of the dataset, at most 1: all of it is read")
    name = names.of(place.short)
    held_out = Splitting(round(1 - weight, 6)) if weight is not None and weight < 1 else None
    there = place_of(item, "id", name, place, "config", "split")
    return SourceEntry(name, there, columns=tuple(columns) or None, split=held_out)


def _mixer(top: Section, names: Names) -> Iterator[SourceEntry]:
    """Names with a share of each (0.5, 1.0), or a number of samples (5000); one source for each
    split of them."""
    key = next(key for key in _MIXERS if top.has(key))
    for other in _MIXERS:
        top.report(other, f"{key} is given as well, and is what is read") if other != key else None
    pairs, by_name = list(_amounts(top, key)), isinstance(top.table[key].value, dict)
    configs = top.texts("dataset_configs")
    if configs and len(configs) != len(pairs):
        top.report("dataset_configs", f"not one configuration for each of {len(pairs)} datasets")
        configs = []
    splits = _splits(top, len(pairs))
    of_splits = next((each for each in _SPLITS if top.has(each)), _SPLITS[-1])
    columns = top.texts("columns_to_keep")
    for number, (called, amount) in enumerate(pairs):
        bounds = _first(amount)
        if str(amount) in ("0", "0.0"):
            top.note(key, f"nothing of {called} is read")
            continue
        if str(amount) == "1" and not by_name:
            top.report(
                key,
                f"1 of {called} is all of it, or one sample, as the version has it: all of it is "
                "read",
            )
        elif bounds is None and amount not in (1.0, "1.0"):
            top.report(key, f"{amount!r} is neither a share nor a number of samples")
        elif bounds is not None:
            top.note(
                key,
                "of a dataset with a share or number the first so many rows; the trainer may "
                "draw others",
            )
        for split in splits[number]:
            place = Hub(str(called), configs[number] if configs else None, split)
            name = names.of(
                name_of_path(str(called)) if str(called).endswith(FILES) else place.short
            )
            there = place_of(top, key, name, place, "dataset_configs", of_splits)
            yield SourceEntry(name, there, slice=bounds, columns=tuple(columns) or None)


def _amounts(top: Section, key: str) -> Iterator[tuple[str, Any]]:
    """Datasets and how much of each is read: names with amounts, or both by turns."""
    if isinstance(top.table[key].value, dict):
        table = top.part(key)
        assert table is not None
        for name, node in table.table.items():
            if isinstance(node.value, int | float | str):
                yield name, table.get(name)
            else:
                table.report_at(name, "a share, or a number of samples, was expected here")
        return
    given = top.get(key)
    listed = cast("list[Any]", given) if isinstance(given, list) else str(given).split()
    if len(listed) % 2:
        top.report(key, f"{listed[-1]!r} has no share or number of samples")
    yield from zip(listed[::2], listed[1::2], strict=False)


def _splits(top: Section, datasets: int) -> list[list[str | None]]:
    """The splits of each dataset that are trained on: of `dataset_splits` those with train in their
    name."""
    given = [plain_split(top, "dataset_splits", split) for split in top.texts("dataset_splits")]
    if given:
        kept = [split for split in given if split and "train" in split]
        if len(kept) < len(given):
            top.note(
                "dataset_splits",
                "splits with train in their name are trained on; others are for evaluation",
            )
        return [list[str | None](kept)] * datasets
    key = (
        "dataset_mixer_list_splits"
        if top.has("dataset_mixer_list_splits")
        else "dataset_train_splits"
    )
    listed = [plain_split(top, key, split) for split in top.texts(key)]
    if len(listed) not in (0, 1, datasets):
        top.report(key, f"not one split for each of {datasets} datasets")
        listed = []
    return [
        [split]
        for split in (listed * datasets if len(listed) == 1 else listed or [None] * datasets)
    ]


def _first(amount: Any) -> tuple[int | str | None, ...] | None:
    """The first rows of a dataset: a share, or so many."""
    text = str(amount)
    if text.isdigit() and int(text) > 1:
        return (0, int(text))
    try:
        share = float(text)
    except ValueError:
        return None
    return ("0%", f"{round(share * 100, 6):.12g}%") if 0 < share < 1 else None
