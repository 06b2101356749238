"""Levanter's data section: `configs` (or `components`) with `train_weights`, alone or in a training config."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from ...files import Batching, MixtureFile, Scheduling, Shuffling, SourceEntry, Tokenising
from ...files.reading import Node
from .parts import Left, Names, Part, remote

_STOPS = ("restart", "first_exhausted", "all_exhausted")


def is_mine(tree: Node) -> bool:
    return _data(tree) is not None


def _data(tree: Node) -> Node | None:
    for node in (tree, tree.value.get("data") if isinstance(tree.value, dict) else None):
        value = node.value if node is not None else None
        if isinstance(value, dict) and "train_weights" in value and ("configs" in value or "components" in value):
            return node
    return None


def convert(tree: Node, left: Left) -> MixtureFile:
    """The mixture; weights are shares of sequences of equal length there, of tokens here."""
    found = _data(tree)
    assert found is not None
    data = Part(found, "" if found is tree else "data", left)
    section = data.part("configs") or data.part("components")
    assert section is not None
    tokenizer = data.text("tokenizer")
    names, sources = Names(), dict[str, SourceEntry]()
    for name, item in section.named():
        if (source := _source(names.of(name), item, tokenizer)) is not None:
            sources[name] = source
    weights, schedule = _weights(data, list(sources))
    entries = [source if schedule else replace(source, weight=weights.get(name, 0)) for name, source in sources.items()]
    stop = data.text("stop_strategy")
    if stop is not None and stop not in _STOPS:
        data.leave("stop_strategy", f"{stop!r} is no stop rule of a mixture file")
        stop = None
    fields: dict[str, Any] = {
        "unit": "tokens",
        "stop": stop,
        "block_size": data.count("mixture_block_size") or 2048,
        "shuffle": _shuffle(data),
        "tokenise": None if tokenizer is None else Tokenising(tokenizer),
        "schedule": schedule,
    }
    data.leave("cache_dir", "the cache of tokens is made by Levanter; sources are read and tokenised anew")
    data.rest()
    more = _training(tree, data, left)
    if schedule and "batch" not in more:
        data.leave(
            "train_weights", "its points are training steps: say the size of a step as batch, or they are samples"
        )
    return MixtureFile(tuple(entries), **fields, **more)


def _source(name: str, item: Part, tokenizer: str | None) -> SourceEntry | None:
    inner = item.part("source") or item
    if inner is not item:
        inner.leave("type")
    urls = inner.texts("train_urls")
    form = item.part("format")
    key = inner.text("text_key") or (form.text("text_key") if form else None)
    if form is not None:
        kind = form.text("type")
        if kind not in (None, "text"):
            form.leave("type", f"only plain text is tokenised by a mixture file, not {kind}")
        form.rest()
    if not urls:
        inner.leave("id", "a dataset of the Hugging Face hub: download it and give its files as path")
        if not inner.has("id"):
            item.left.note(item.node, item.at, "it names no training files")
        return None
    remote(inner, "train_urls", urls)
    inner.rest()
    item.rest()
    own = Tokenising(tokenizer, key) if tokenizer and key not in (None, "text") else None
    return SourceEntry(name, tuple(inner.path(url) for url in urls), tokenise=own)


def _weights(data: Part, names: list[str]) -> tuple[dict[str, Any], Scheduling | None]:
    given = data.get("train_weights")
    if isinstance(given, dict):
        return cast("dict[str, Any]", given), None
    points = list[tuple[int, dict[str, float]]]()
    for entry in cast("list[Any]", given):
        step, row = (entry["start_seq"], entry["weights"]) if isinstance(entry, dict) else entry  # pyright: ignore[reportUnknownVariableType]
        points.append((int(cast(int, step)), {name: float(row.get(name, 0)) for name in names}))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    return {}, Scheduling("steps", "step", tuple(points))


def _shuffle(data: Part) -> Shuffling | None:
    value = data.get("shuffle")
    if value is False:
        return Shuffling("none")
    if isinstance(value, dict):
        given = cast("dict[str, Any]", value)
        rows, window = given.get("io_block_size"), given.get("window_blocks")
        if isinstance(rows, int) and isinstance(window, int):
            return Shuffling("block", rows, window)
    elif value not in (None, True):
        data.leave("shuffle", "an era shuffle has no counterpart: sources are shuffled fully")
    return None


def _training(tree: Node, data: Part, left: Left) -> dict[str, Any]:
    """Row length, batch and horizon, where the file is a training config."""
    if data.node is tree:
        return {}
    out: dict[str, Any] = {}
    top = Part(tree, "", left)
    model, trainer = top.part("model"), top.part("trainer")
    length = top.count("train_seq_len") or (model.count("max_seq_len") or model.count("seq_len") if model else None)
    if length:
        out["pack"] = {"length": length}
    if trainer is not None:
        if size := trainer.count("train_batch_size"):
            out["batch"] = Batching(size, drop_remainder=True)
        if steps := trainer.count("num_train_steps"):
            out["horizon"] = ("steps", steps)
    return out
