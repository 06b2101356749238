"""Levanter's data section: `configs` (or `components`) with `train_weights`, alone or in a training config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ...mixing import Stop
from ...mixture_files import MixtureFile, Scheduling, Shuffling, SourceEntry, Tokenising
from ...mixture_files.reading import Node, dotted
from .parts import Hub, Left, Names, Part, nothing
from .trainers import shared

_STOPS = ("restart", "first_exhausted", "all_exhausted")
_SECTIONS = (("configs", "train_weights"), ("components", "train_weights"), ("supervised_data", "mixture_weights"))


def is_mine(tree: Node) -> bool:
    return _data(tree) is not None


def _data(tree: Node) -> Node | None:
    """The mapping that says what is read: the file itself, or its `data`."""
    top = tree.value if isinstance(tree.value, dict) else {}
    for node in (tree, top.get("data")):
        value = node.value if node is not None else None
        if not isinstance(value, dict):
            continue
        several = any(names in value and weights in value for names, weights in _SECTIONS)
        known = "cache_dir" in value or "tokenizer" in value or (node is not tree and "trainer" in top)
        if several or (known and ("train_urls" in value or _is_hub(value))):
            return node
    return None


def _is_hub(value: Mapping[str, Node]) -> bool:
    return "id" in value and isinstance(value["id"].value, str)


def convert(tree: Node, left: Left) -> MixtureFile:
    """The mixture; weights are shares of sequences of equal length there, of tokens here."""
    found = _data(tree)
    assert found is not None
    data = Part(found, "" if found is tree else "data", left)
    tokenizer = data.text("tokenizer")
    if tokenizer is None and not data.has("supervised_data"):
        tokenizer = "gpt2"
        left.note(found, data.at, "no tokenizer is said: Levanter takes gpt2")
    schedule, entries = None, list[SourceEntry]()
    section, weights = next(((names, weights) for names, weights in _SECTIONS if data.has(names)), (None, None))
    if section is not None and weights is not None:
        entries, schedule = _several(data, section, weights, tokenizer)
    elif (single := _source(Names().of(_called(data)), data, tokenizer)) is not None:
        entries = [single]
    if not entries:
        raise nothing(Path(tree.file), "Levanter")
    stop = data.text("stop_strategy")
    if stop is not None and stop not in _STOPS:
        data.leave("stop_strategy", f"{stop!r} is no stop rule of a mixture file")
        stop = None
    data.skip("cache_dir", "cache_options", "shuffle_buffer_size", "permutation_type")
    block = data.count("mixture_block_size") or 2048
    shuffle, eos = _shuffle(data), data.get("enforce_eos", True)
    more = _training(tree, data, left, bool(tokenizer), bool(eos))
    data.leave("max_train_batches", "how many rows of a source are used at most, counted in batches: say max_epochs")
    data.leave("num_validation_sequences", "rows that are held out, counted in packed rows: say split")
    data.rest(None if data.node is not tree or "trainer" not in data.table else ())
    if "pack" in more:
        left.note(data.node, data.at, "documents are shuffled, mixed and then cut; Levanter cuts sources, then mixes")
    if schedule and "batch" not in more:
        data.leave(str(weights), "its points are training steps: say the size of a step as batch, or they are samples")
    return MixtureFile(
        tuple(entries),
        unit="tokens" if tokenizer else None,
        stop=cast("Stop | None", stop),
        block_size=block if len(entries) > 1 else None,
        shuffle=shuffle,
        tokenise=None if tokenizer is None else Tokenising(tokenizer),
        schedule=schedule,
        **more,
    )


def _called(data: Part) -> str:
    given = data.text("id")
    return Hub(given, data.text("name")).short if given else "train"


def _several(
    data: Part, section: str, weights: str, tokenizer: str | None
) -> tuple[list[SourceEntry], Scheduling | None]:
    names, sources = Names(), dict[str, SourceEntry]()
    wanted = _weighted(data.table[weights]) if data.has(weights) else set[str]()
    inside = data.part(section)
    for name, item in inside.named() if inside else ():
        if name not in wanted:
            continue  # it is there for evaluation
        if (source := _source(names.of(name), item, tokenizer)) is not None:
            sources[name] = source
    shares, schedule = _weights(data, weights, {name: source.name for name, source in sources.items()})
    entries = [
        source if schedule else replace(source, weight=shares.get(source.name, 0)) for source in sources.values()
    ]
    return entries, schedule


def _weighted(node: Node) -> set[str]:
    """The names that have a weight above 0 at some time."""
    rows = (
        [pair.value[1] for pair in node.value if isinstance(pair.value, tuple) and len(pair.value) == 2]
        if isinstance(node.value, tuple)
        else [node]
    )
    return {name for row in rows if isinstance(row.value, dict) for name, weight in row.value.items() if weight.value}


def _source(name: str, item: Part, tokenizer: str | None) -> SourceEntry | None:
    inner = item.part("source") or item
    if inner is not item:
        inner.skip("type")
    urls, hub, form = inner.texts("train_urls"), inner.text("id"), item.part("format")
    key = inner.text("text_key") or (form.text("text_key") if form else None)
    if form is not None:
        kind = form.text("type")
        if kind not in (None, "text"):
            form.leave("type", f"only plain text is tokenised by a mixture file, not {kind}")
        form.rest()
    if not urls and not hub:
        item.left.lost(item.node, item.at, "it names no training files, and has a weight: its share is lost")
        return None
    if urls:
        paths = inner.local("train_urls", name, urls)
    else:
        paths = inner.hub("id", name, Hub(str(hub), inner.text("name")))
        inner.skip("plaintext", "stream", "splits")
    inner.skip("validation_urls", "cache_dir", "tags")
    item.skip("cache_dir", "tags")
    if item.at and "data" != item.at:
        inner.rest()
        item.rest()
    own = Tokenising(tokenizer, key) if tokenizer and key not in (None, "text") else None
    return SourceEntry(name, paths, tokenise=own)


def _weights(data: Part, key: str, names: Mapping[str, str]) -> tuple[dict[str, float], Scheduling | None]:
    """Weights of the whole run, or a schedule of them."""
    given = data.table[key]
    if isinstance(given.value, dict):
        part = data.part(key)
        return ({} if part is None else _row(part, names)), None
    data.taken.add(key)
    points = list[tuple[int, dict[str, float]]]()
    for number, item in enumerate(given.value if isinstance(given.value, tuple) else ()):
        at = dotted(data.at, f"{key}[{number}]")
        pair = item.value if isinstance(item.value, tuple) else ()
        if len(pair) != 2 or not isinstance(pair[0].value, int) or not isinstance(pair[1].value, dict):
            data.left.lost(item, at, "a step and its weights were expected here")
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
    """The order within sources: their own where the file says nothing."""
    value = data.get("shuffle")
    if value in (None, False, 0):
        return Shuffling("none")
    if isinstance(value, dict):
        given = cast("dict[str, Any]", value)
        rows, window = given.get("io_block_size"), given.get("window_blocks")
        if isinstance(rows, int) and isinstance(window, int):
            return Shuffling("block", rows, window)
    if value is not True:
        data.leave("shuffle", "an era shuffle has no counterpart: sources are shuffled fully")
    return None


def _training(tree: Node, data: Part, left: Left, tokenized: bool, eos: bool) -> dict[str, Any]:
    """Row length, batch and horizon, where the file is a training config."""
    if data.node is tree and "trainer" not in data.table:
        return {}
    out: dict[str, Any] = {}
    top = Part(tree, "", left)
    model, trainer = top.part("model"), top.part("trainer")
    length = (
        top.count("train_seq_len")
        or top.count("max_seq_len")
        or (model.count("max_seq_len") or model.count("seq_len") if model else None)
    )
    if length:
        ends = {"bos": True, "eos": eos} if tokenized else {}
        out["pack"] = {"length": length, **{name: True for name, there in ends.items() if there}}
    elif model:
        left.lost(model.node, model.at, "it does not say how long rows are: say pack with the length of the model")
    top.leave("epoch", "the run ends after so many passes: say horizon with epochs") if top.get("epoch") else None
    if trainer is not None:
        if not isinstance(trainer.get("train_batch_size"), int | None):
            trainer.leave("train_batch_size", "batches that grow have no counterpart in a mixture file")
        else:
            size = trainer.count("train_batch_size") or 512  # the defaults are Levanter's
            out["batch"] = shared(size, trainer, "train_batch_size", drop_remainder=True)
        out["horizon"] = ("steps", trainer.count("num_train_steps") or 400_000)
        if isinstance(seed := top.get("data_seed", trainer.get("seed")), int):
            out["seed"] = seed
    return out
