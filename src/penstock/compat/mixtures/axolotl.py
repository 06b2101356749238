"""axolotl: the `datasets` (or `pretraining_dataset`) of a training file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ...mixture_files import MixtureFile, Shuffling, SourceEntry, Splitting, Tokenising
from ...mixture_files.reading import Node
from ...sources.paths import FormatName
from .parts import Hub, Left, Names, Part, name_of_path, nothing
from .trainers import each, length, whole

_FORMATS: dict[str, FormatName] = {
    "json": "jsonl",
    "csv": "csv",
    "parquet": "parquet",
    "arrow": "arrow",
    "text": "text",
}
_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_SLICE = re.compile(r"\w+\[(\d*%?):(\d*%?)\]")
_ABOUT_DATA = (
    "dataset_exact_deduplication", "curriculum_sampling", "rl", "excess_length_strategy", "min_sample_len",
    "sample_packing_sequentially",
)  # fmt: skip
_OF_THE_PROMPT = (
    "chat_template", "message_field_role", "message_field_content", "field_messages", "message_property_mappings",
    "roles", "roles_to_train", "train_on_eos", "conversation", "field_human", "field_model", "system_prompt",
)  # fmt: skip


def is_mine(tree: Node) -> bool:
    value = tree.value
    if not isinstance(value, dict):
        return False
    for key in ("datasets", "pretraining_dataset"):
        items = value[key].value if key in value else None
        first = items[0].value if isinstance(items, tuple) and items else None
        if isinstance(first, dict) and "path" in first:
            return True
    return False


def convert(tree: Node, left: Left) -> MixtureFile:
    """The mixture: every sample once a pass, as axolotl merges its datasets."""
    top = Part(tree, "", left)
    tokenizer = top.text("tokenizer_config") or top.text("base_model")
    names, sources, streams = Names(), list[SourceEntry](), top.has("pretraining_dataset")
    for key in ("datasets", "pretraining_dataset"):
        for item in top.parts(key):
            for config in _configs(item):
                if (found := _source(item, names, tokenizer, config)) is not None:
                    sources.append(found)
            item.rest()
    if not sources:
        raise nothing(Path(tree.file), "axolotl")
    texts = all(source.tokenise is not None for source in sources)
    size = top.count("micro_batch_size")
    pack = _pack(top, texts, streams)
    for key in ("test_datasets", "val_set_size", "eval_sample_packing"):
        top.skip(key)
    split = _held_out(top)
    horizon, passes = length(top, "num_epochs", 1)
    put, how = whole(sources, passes)
    seed = top.get("seed", 42)
    if not isinstance(seed, int):
        top.leave("seed", "no whole number")
        seed = None
    plain = top.get("shuffle_merged_datasets") is False
    if plain and len(sources) > 1:
        top.say("shuffle_merged_datasets", "sources are mixed evenly here, not one after the other; each in its order")
    if texts and top.has("special_tokens"):
        top.leave("special_tokens", "tokens that are added to the tokenizer: give one that has them")
    top.rest(only=_ABOUT_DATA)
    return MixtureFile(
        put,
        seed=seed,
        shuffle=Shuffling("none") if plain else None,
        split=split,
        pack=pack,
        horizon=horizon,
        batch=each(size, top, collate="stack" if pack else "list"),
        **how,
    )


def _configs(item: Part) -> list[str | None]:
    """One source for each configuration of a dataset of the hub."""
    names = item.texts("name")
    return [*names] or [None]


def _held_out(top: Part) -> Splitting | None:
    """A share or a number of samples that axolotl keeps for evaluation, of all datasets together."""
    size = top.number("val_set_size")
    if not size or top.has("test_datasets"):
        return None
    if size >= 1:
        top.leave("val_set_size", "so many samples of all datasets together: give each source its split")
        return None
    top.say("val_set_size", "this share of every source is held out, by a hash; axolotl draws other samples")
    return Splitting(size)


def _pack(top: Part, texts: bool, streams: bool) -> dict[str, Any] | None:
    size = top.count("sequence_len")
    asked = top.get("sample_packing") or (streams and top.get("pretrain_multipack_buffer_size"))
    if not asked:
        top.skip("sequence_len")
        return None
    if not texts or not size:
        top.leave("sample_packing", "samples are packed when they are tokens; these types make tokens by a template")
        return None
    return {"length": size, "method": "best_fit", "long": "split", "eos": True}


def _source(item: Part, names: Names, tokenizer: str | None, config: str | None) -> SourceEntry | None:
    path, files = item.text("path") or "", item.texts("data_files")
    kind, own = item.get("type"), item.text("field") or item.text("text_column")
    form = _format(item)
    plain_text = kind in ("completion", "pretrain")
    if kind == "pretrain":
        item.say("type", "long texts are split where a row is full; axolotl lets the parts overlap by 256 tokens")
    elif not plain_text and kind is not None:
        item.leave("type", "its prompts are made by axolotl: map the rows in Python")
    elif not plain_text and item.has("path"):
        item.skip("type")
    item.skip(*(() if plain_text else _OF_THE_PROMPT))
    count, index = item.count("shards"), item.get("shards_idx", 0)
    bounds = (int(index), None, count) if count and isinstance(index, int) else None
    if bounds is not None:
        item.say("shards", "every n-th row; axolotl takes as many random ones")
    split = item.text("split")
    beside = Path(item.path(path)).exists()
    away = not beside and bool(_HUB.fullmatch(path)) and not Path(path).suffix
    if away:
        place = Hub(path, config, _without_slice(split), tuple(files))
        name = names.of(place.short)
        there = item.hub("path", name, place)
    else:
        name = names.of(config or name_of_path(path))
        there = item.local("path", name, files or [path])
        if _without_slice(split) not in (None, "train"):
            item.leave("split", "files have no splits; name the files of this split")
    bounds = bounds or _part_of(split)
    tokenise = Tokenising(tokenizer, own or "text", special_tokens=True) if plain_text and tokenizer else None
    if own and tokenise is None:
        item.leave("field", "it names the text of a completion, and these rows are not tokenised")
    return SourceEntry(name, there, format=form, slice=bounds, tokenise=tokenise)


def _format(item: Part) -> FormatName | None:
    given = item.text("ds_type")
    if given is None or given in _FORMATS:
        return _FORMATS.get(given or "")
    item.leave("ds_type", f"{given!r} is no format of mixture files")
    return None


def _without_slice(split: str | None) -> str | None:
    return split and split.partition("[")[0]


def _part_of(split: str | None) -> tuple[str | int | None, ...] | None:
    """The slice in a split such as `train[10%:80%]`."""
    found = _SLICE.fullmatch(split or "")
    if not found:
        return None
    ends = [int(end) if end.isdigit() else end or None for end in found.groups()]
    return tuple(ends)
