"""axolotl: the `datasets` (or `pretraining_dataset`) of a training file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ...mixture_files import Batching, MixtureFile, Shuffling, SourceEntry, Tokenising
from ...mixture_files.reading import Node
from ...sources.paths import FormatName
from .parts import Left, Names, Part, name_of_path, nothing, remote

_FORMATS: dict[str, FormatName] = {
    "json": "jsonl",
    "csv": "csv",
    "parquet": "parquet",
    "arrow": "arrow",
    "text": "text",
}
_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_ABOUT_DATA = (
    "test_datasets", "val_set_size", "dataset_prepared_path", "eval_sample_packing", "pad_to_sequence_len",
    "chat_template", "train_on_inputs", "dataset_exact_deduplication", "shuffle_before_merging_datasets",
    "curriculum_sampling", "sample_packing_group_size", "sample_packing_bin_size", "special_tokens", "rl",
    "gradient_accumulation_steps",
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
    names, sources, texts = Names(), list[SourceEntry](), list[bool]()
    for key in ("datasets", "pretraining_dataset"):
        for item in top.parts(key):
            if (found := _source(item, names, tokenizer)) is not None:
                sources.append(found)
                texts.append(found.tokenise is not None)
    if not sources:
        raise nothing(Path(tree.file), "axolotl")
    length, packed, size = top.count("sequence_len"), top.get("sample_packing"), top.count("micro_batch_size")
    pack: dict[str, Any] | None = None
    if packed and length and all(texts):
        pack = {"length": length, "method": "best_fit", "long": "cut"}
    elif packed:
        top.leave("sample_packing", "samples are packed when they are tokens; these types make tokens by a template")
    shuffled = top.get("shuffle_merged_datasets")
    seed = top.get("seed")
    if seed is not None and not isinstance(seed, int):
        top.leave("seed", "no whole number")
        seed = None
    top.rest(only=_ABOUT_DATA)
    return MixtureFile(
        tuple(sources),
        seed=seed,
        stop="all_exhausted",
        temperature=1,
        shuffle=Shuffling("none") if shuffled is False else None,
        pack=pack,
        batch=Batching(size, collate="stack" if all(texts) and pack else "list") if size else None,
    )


def _source(item: Part, names: Names, tokenizer: str | None) -> SourceEntry | None:
    path, files = item.text("path") or "", item.texts("data_files")
    kind, own = item.get("type"), item.text("field") or item.text("text_column")
    form = _format(item)
    plain_text = kind in ("completion", "pretrain")
    if not plain_text and kind is not None:
        item.leave("type", "its prompts are made by axolotl: map the rows in Python")
    count, index = item.count("shards"), item.get("shards_idx", 0)
    bounds = (int(index), None, count) if count and isinstance(index, int) else None
    if bounds is not None:
        item.leave("shards", "taken as every n-th row; axolotl's shards may be runs of rows")
    if item.text("split") not in (None, "train"):
        item.leave("split", "files have no splits; name the files of this split")
    name = names.of(item.text("name") or name_of_path(path))
    there = [item.path(file) for file in files] or [item.path(path)]
    if not files and not Path(there[0]).exists() and _HUB.fullmatch(path) and not Path(path).suffix:
        item.leave("path", "a dataset of the Hugging Face hub: download it and give its files as path")
        item.rest()
        return None
    remote(item, "path", [path])
    item.rest()
    tokenise = Tokenising(tokenizer, own or "text") if plain_text and tokenizer else None
    if own and tokenise is None:
        item.leave("field", "it names the text of a completion, and these rows are not tokenised")
    return SourceEntry(name, tuple(there), format=form, slice=bounds, tokenise=tokenise)


def _format(item: Part) -> FormatName | None:
    given = item.text("ds_type")
    if given is None or given in _FORMATS:
        return _FORMATS.get(given or "")
    item.leave("ds_type", f"{given!r} is no format of mixture files")
    return None
