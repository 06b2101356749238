"""Levanter's data section: `configs` (or `components`) with `train_weights`, alone or in a training config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ...mixture_files import Batching, MixtureFile, Scheduling, Shuffling, SourceEntry, Tokenising
from ...mixture_files.reading import Node, dotted
from .parts import Left, Names, Part, nothing, remote

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
    if section is None:
        raise nothing(Path(tree.file), "Levanter")
    tokenizer = data.text("tokenizer")
    names, sources = Names(), dict[str, SourceEntry]()
    for name, item in section.named():
        if (source := _source(names.of(name), item, tokenizer)) is not None:
            sources[name] = source
    if not sources:
        raise nothing(Path(tree.file), "Levanter")
    weights, schedule = _weights(data, {name: source.name for name, source in sources.items()})
    entries = [
        source if schedule else replace(source, weight=weights.get(source.name, 0)) for source in sources.values()
    ]
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


def _weights(data: Part, names: Mapping[str, str]) -> tuple[dict[str, float], Scheduling | None]:
    """Weights of the whole run, or a schedule of them."""
    given = data.table["train_weights"]
    if isinstance(given.value, dict):
        part = data.part("train_weights")
        return ({} if part is None else _row(part, names)), None
    data.taken.add("train_weights")
    points = list[tuple[int, dict[str, float]]]()
    for number, item in enumerate(given.value if isinstance(given.value, tuple) else ()):
        at = dotted(data.at, f"train_weights[{number}]")
        pair = item.value if isinstance(item.value, tuple) else ()
        if len(pair) != 2 or not isinstance(pair[0].value, int) or not isinstance(pair[1].value, dict):
            data.left.note(item, at, "a step and its weights were expected here")
            continue
        points.append((pair[0].value, _row(Part(pair[1], at, data.left), names)))
    return {}, Scheduling("steps", "step", tuple(points)) if points else None


def _row(part: Part, names: Mapping[str, str]) -> dict[str, float]:
    """A weight for each source: `names` are those of the file, and what they are called here."""
    for name in part.table:
        if name not in names and part.number(name):
            part.leave(name, "its source is not carried over, and the others share its weight")
    return {here: part.number(name) or 0 for name, here in names.items()}


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
