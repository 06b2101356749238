"""alignment-handbook: the `dataset_mixture` or `dataset_mixer` of a training file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from ...mixture_files import MixtureFile, SourceEntry, Splitting
from ...mixture_files.reading import MixtureNode
from .account import EVALUATION, Account, Section, nothing
from .locations import Hub, Names, name_of_path
from .trainers import hold_out, length, put_together, seed_of
from .trl import FILES, paths_of, plain_split, training

MIXERS = ("dataset_mixer", "dataset_mixer_list")
_SPLITS = ("dataset_splits", "dataset_mixer_list_splits", "dataset_train_splits")
_ENDS = (
    "dataset_eval_mixer", "dataset_eval_mixer_list", "dataset_mixer_eval_list", "dataset_mixer_eval_list_splits",
    "dataset_eval_splits",
)  # fmt: skip


def is_mine(tree: MixtureNode) -> bool:
    value = tree.value if isinstance(tree.value, dict) else {}
    if any(key in value and value[key].value for key in MIXERS):
        return True
    mixture = value.get("dataset_mixture")
    return mixture is not None and isinstance(mixture.value, dict) and "datasets" in mixture.value


def convert(tree: MixtureNode, account: Account) -> MixtureFile:
    """Convert the mixture: datasets, or parts of them, concatenated and shuffled."""
    top, names, split = account.open(tree), Names(), None
    mixture = top.part("dataset_mixture")
    if mixture is not None:
        sources = [
            source
            for item in mixture.parts("datasets")
            if (source := _entry(item, names)) is not None
        ]
        sources, split = hold_out(mixture, "test_split_size", sources, "the handbook")
        seed = mixture.integer("seed", 0)
        for key in ("seed", "data_seed"):
            top.note(key, "the seed of dataset_mixture draws and shuffles samples here")
        for key in ("dataset_name", "dataset_config", *MIXERS):
            top.report(key, "dataset_mixture takes precedence, so this is not read")
    else:
        sources, seed = list(read_mixer(top, names)), seed_of(top)
    if not sources:
        raise nothing(Path(tree.file), "alignment-handbook")
    steps = "max_train_steps" if top.has("max_train_steps") else "max_steps"
    horizon, passes = length(top, "num_train_epochs", 3, steps)
    combined, options = put_together(sources, passes)
    top.settle(noted={EVALUATION: _ENDS})
    return MixtureFile(
        combined, seed=seed, split=split, horizon=horizon, **training(top), **options
    )


def _entry(item: Section, names: Names) -> SourceEntry | None:
    """Return a dataset of a mixture; a weight below 1 takes a fixed random part of it."""
    if not item.has("id"):
        item.drop("id is missing: its samples are lost")
        return None
    split = plain_split(item, "split", item.text("split") or "train")
    hub = Hub(item.text("id") or "", item.text("config"), split)
    columns, weight = item.texts("columns"), item.number("weight")
    if "chat_template_kwargs" in columns:
        item.report("columns", "each row has values for the template in chat_template_kwargs")
    if weight == 0:
        item.note("weight", "no samples of this dataset are read")
        return None
    if weight is not None and weight > 1:
        item.report("weight", "a part of a dataset is at most 1: all of it is read")
    name = names.of(hub.source_name)
    held_out = Splitting(round(1 - weight, 6)) if weight is not None and weight < 1 else None
    paths = paths_of(item, "id", name, hub, "config", "split")
    return SourceEntry(name, paths, columns=tuple(columns) or None, split=held_out)


def read_mixer(top: Section, names: Names) -> Iterator[SourceEntry]:
    """Yield one source for each dataset and split.

    Amounts are shares (0.5, 1.0) or numbers of samples (5000).
    """
    key = next(key for key in MIXERS if top.has(key))
    for other in MIXERS:
        top.report(other, f"{key} takes precedence, so this is not read") if other != key else None
    pairs, by_name = list(_amounts(top, key)), isinstance(top.table[key].value, dict)
    configs = top.texts("dataset_configs")
    if configs and len(configs) != len(pairs):
        top.report(
            "dataset_configs", f"expected one configuration for each of {len(pairs)} datasets"
        )
        configs = []
    splits = _splits(top, len(pairs))
    split_key = next((name for name in _SPLITS if top.has(name)), _SPLITS[-1])
    columns = top.texts("columns_to_keep")
    for number, (dataset, amount) in enumerate(pairs):
        bounds = _first(amount)
        if str(amount) in ("0", "0.0"):
            top.note(key, f"no samples of {dataset} are read")
            continue
        if str(amount) == "1" and not by_name:
            top.report(
                key,
                f"1 of {dataset} means all of it or one sample, depending on the version: all of "
                "it is read",
            )
        elif bounds is None and amount not in (1.0, "1.0"):
            top.report(key, f"{amount!r} is neither a share nor a number of samples")
        elif bounds is not None:
            top.note(
                key,
                "a share or number takes the first rows of a dataset; the trainer may draw others, and "
                "repeat rows for a larger number",
            )
        for split in splits[number]:
            hub = Hub(str(dataset), configs[number] if configs else None, split)
            name = names.of(
                name_of_path(str(dataset)) if str(dataset).endswith(FILES) else hub.source_name
            )
            paths = paths_of(top, key, name, hub, "dataset_configs", split_key)
            yield SourceEntry(name, paths, slice=bounds, columns=tuple(columns) or None)


def _amounts(top: Section, key: str) -> Iterator[tuple[str, Any]]:
    """Yield datasets and amounts, from a mapping or from an alternating list."""
    if isinstance(top.table[key].value, dict):
        table = top.part(key)
        assert table is not None
        for name, node in table.table.items():
            if isinstance(node.value, int | float | str):
                yield name, table.get(name)
            else:
                table.report_at(name, "expected a share, or a number of samples")
        return
    setting = top.get(key)
    listed = cast("list[Any]", setting) if isinstance(setting, list) else str(setting).split()
    if len(listed) % 2:
        top.report(key, f"{listed[-1]!r} has no share or number of samples")
    yield from zip(listed[::2], listed[1::2], strict=False)


def _splits(top: Section, datasets: int) -> list[list[str | None]]:
    """Return the training splits of each dataset: of `dataset_splits` those named train."""
    setting = [plain_split(top, "dataset_splits", split) for split in top.texts("dataset_splits")]
    if setting:
        training = [split for split in setting if split and "train" in split]
        if len(training) < len(setting):
            top.note(
                "dataset_splits",
                "splits with train in their name are for training, others for evaluation",
            )
        return [list[str | None](training)] * datasets
    key = (
        "dataset_mixer_list_splits"
        if top.has("dataset_mixer_list_splits")
        else "dataset_train_splits"
    )
    listed = [plain_split(top, key, split) for split in top.texts(key)]
    if len(listed) not in (0, 1, datasets):
        top.report(key, f"expected one split for each of {datasets} datasets")
        listed = []
    return [
        [split]
        for split in (listed * datasets if len(listed) == 1 else listed or [None] * datasets)
    ]


def _first(amount: Any) -> tuple[int | str | None, ...] | None:
    """Return the slice of the first rows of a dataset: a share, or a number."""
    text = str(amount)
    if text.isdigit() and int(text) > 1:
        return (0, int(text))
    try:
        share = float(text)
    except ValueError:
        return None
    return ("0%", f"{round(share * 100, 6):.12g}%") if 0 < share < 1 else None
