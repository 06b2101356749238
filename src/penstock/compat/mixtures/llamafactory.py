"""LLaMA-Factory: `dataset_info.json`, or a training file that names datasets of it and how to mix them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...mixture_files import MixtureFile, SourceEntry, Splitting, Tokenising
from ...mixture_files.reading import Node, Notes, read_file
from .parts import Hub, Left, Names, Part, nothing
from .trainers import each, length, whole

_PLACES = ("hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name", "file_name")
_STOPS = {
    "interleave_under": "first_exhausted",
    "interleave_over": "all_exhausted_oversample",
    "interleave_once": "all_exhausted",
}
_ABOUT_DATA = (
    "tokenized_path", "train_on_prompt", "mask_history", "streaming", "packing", "neat_packing", "template",
)  # fmt: skip
_OF_THE_PROMPT = ("formatting", "columns", "tags", "ranking")


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
        return _model(_sources(tree, left, None, None, None), Path(tree.file), temperature=1, stop="all_exhausted")
    top = Part(tree, "", left)
    info = _described(top)
    asked = top.get("dataset")
    names = [name.strip() for name in (asked.split(",") if isinstance(asked, str) else map(str, asked))]
    for name in names:
        if name not in Part(info, "", left).table:
            top.leave("dataset", f"{name!r} is not described in {info.file}: its share is lost")
    tokenizer = top.text("model_name_or_path") if top.text("stage") == "pt" else None
    sources = _sources(info, left, names, top.count("max_samples"), tokenizer)
    if not sources:
        raise nothing(Path(tree.file), "LLaMA-Factory")
    strategy = top.text("mix_strategy") or "concat"
    horizon, passes = length(top, "num_train_epochs", 3)
    more: dict[str, Any] = {}
    if strategy in _STOPS:
        sources, more["stop"] = _probable(top, names, sources), _STOPS[strategy]
        if passes not in (0, 1):
            top.leave("num_train_epochs", "a pass ends where a source does, and then begins anew: one pass is carried")
    else:
        if strategy != "concat":
            top.leave("mix_strategy", f"{strategy!r} is no stop rule of a mixture file")
        put, more = whole(list(sources.values()), passes)
        sources = {source.name: source for source in put}
    return _model(
        sources,
        Path(tree.file),
        seed=top.get("seed") if isinstance(top.get("seed"), int) else 42,
        split=_held_out(top),
        horizon=horizon,
        **_rows(top),
        **more,
    )


def _described(top: Part) -> Node:
    """The file in which the datasets are described: in the folder that is named, from where LLaMA-Factory is started,
    which is the root of its checkout or of the project around the file.
    """
    given = top.text("dataset_dir") or "data"
    if given.startswith("REMOTE:"):
        raise ConfigError(
            f"{top.node.file}: its datasets are described on a hub, in {given[7:]!r}: download that folder, and "
            "name it as dataset_dir"
        )
    file = Path(top.path(given)) / "dataset_info.json"
    for folder in top.folder.parents:
        if file.is_file():
            break
        if (folder / given / "dataset_info.json").is_file():
            file = folder / given / "dataset_info.json"
    notes = Notes()
    info = read_file(file, notes, variables=False) if file.is_file() else None
    if info is None or not _is_info(info):
        where = f"{Path(top.path(given)) / 'dataset_info.json'}, or in {given!r} of a folder above"
        raise ConfigError(f"{top.node.file}: its datasets are described in {where}, which is not there")
    return info


def _held_out(top: Part) -> Splitting | None:
    top.say("eval_dataset", "only training data makes a mixture")
    size = top.number("val_size")
    if not size:
        return None
    if size >= 1:
        top.leave("val_size", "so many samples of all datasets together: give each source its split")
        return None
    top.say("val_size", "this share of every source is held out, by a hash; LLaMA-Factory draws other samples")
    return Splitting(size)


def _rows(top: Part) -> dict[str, Any]:
    """Tokens, rows and batches. Texts to train on as they are (`stage: pt`) are joined and cut, or each cut off."""
    size = top.count("per_device_train_batch_size")
    batch = each(size, top, collate="list")
    if top.text("stage") != "pt":
        top.leave("template", "its prompts are made by LLaMA-Factory: map the rows in Python")
        for key in ("packing", "neat_packing", "cutoff_len"):
            top.leave(key, "rows are cut and packed when they are tokens, which the template makes")
        top.rest(only=_ABOUT_DATA)
        return {"batch": batch}
    cut, joined = top.count("cutoff_len") or 2048, top.get("packing") is not False
    cut -= int(top.get("packing") is True)  # LLaMA-Factory takes one off where packing is said
    eos = "<|end_of_text|>" if top.text("template") == "llama3" else True
    top.rest(only=_ABOUT_DATA)
    top.say(
        "stage", "texts are shuffled, joined and cut; LLaMA-Factory joins and cuts 1,000 at a time, and shuffles rows"
    )
    if not top.has("model_name_or_path"):
        return {"batch": batch}
    if not joined:
        top.leave("packing", "texts are cut off one by one and padded: only packed rows have a length here")
        return {"batch": batch}
    return {
        "pack": {"length": cut, "method": "concat_split", "eos": eos},
        "batch": each(size, top),
    }


def _model(sources: dict[str, SourceEntry], file: Path, **more: Any) -> MixtureFile:
    if not sources:
        raise nothing(file, "LLaMA-Factory")
    return MixtureFile(tuple(sources.values()), **more)


def _sources(
    tree: Node, left: Left, wanted: list[str] | None, most: int | None, tokenizer: str | None
) -> dict[str, SourceEntry]:
    """The datasets that are wanted, in the order in which they are named."""
    names, described = Names(), dict(Part(tree, "", left).named())
    out = dict[str, SourceEntry]()
    for name in described if wanted is None else wanted:
        if name in described and name not in out:
            out[name] = _source(names.of(name), described[name], most, tokenizer)
    return out


def _source(name: str, item: Part, most: int | None, tokenizer: str | None) -> SourceEntry:
    place = next(key for key in _PLACES if key in item.table)
    given = item.text(place) or ""
    for other in _PLACES:
        item.skip(other)
    if place == "hf_hub_url":
        there = item.hub(place, name, Hub(given, item.text("subset"), item.text("split"), tuple(item.texts("folder"))))
    elif place == "file_name":
        there = item.local(place, name, [given])
    else:
        there = item.local(place, name, [given if "://" in given else f"{place.removesuffix('_url')}://{given}"])
    item.say("num_samples", "the first so many are taken; LLaMA-Factory draws random ones, and repeats where it must")
    columns = item.part("columns")
    field = (columns.text("prompt") if columns else None) or "instruction"
    for key in () if tokenizer else _OF_THE_PROMPT:
        item.say(key, "prompts are made by LLaMA-Factory: map the rows in Python")
    counts = [count for count in (item.count("num_samples"), most) if count is not None]
    item.skip(*_OF_THE_PROMPT)
    item.rest()
    tokenise = Tokenising(tokenizer, field) if tokenizer else None
    return SourceEntry(name, there, slice=(0, min(counts)) if counts else None, tokenise=tokenise)


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
