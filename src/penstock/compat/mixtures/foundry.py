"""llm-foundry: the `streams` of a train loader, with proportions, repeats or numbers of samples."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ...mixture_files import Batching, MixtureFile, Shuffling, SourceEntry
from ...mixture_files.reading import Node
from .parts import Left, Names, Part, nothing, plain, remote

_ONLY_ABSOLUTE = "choose counts samples and repeat counts passes: beside each other they have no counterpart"


def is_mine(tree: Node) -> bool:
    return _dataset(tree, Left()) is not None


def _dataset(tree: Node, left: Left) -> Part | None:
    """The mapping with `streams`: at the top, in `dataset`, or in `train_loader.dataset`."""
    for place in ((), ("dataset",), ("train_loader", "dataset")):
        part: Part | None = Part(tree, "", left)
        for key in place:
            part = part.part(key) if part else None
        if part is not None and part.has("streams") and isinstance(part.table["streams"].value, dict):
            return part
    return None


def convert(tree: Node, left: Left) -> MixtureFile:
    """The mixture of the training streams; one pass is one of their epochs."""
    dataset = _dataset(tree, left)
    assert dataset is not None
    streams = dataset.part("streams")
    values = _Values(tree)
    names, found = Names(), list[tuple[Part, SourceEntry]]()
    for name, item in streams.named() if streams else ():
        local, remote_, split = (values.filled(item.text(key) or "") for key in ("local", "remote", "split"))
        for key in ("local", "remote", "split"):
            if item.has(key) and "${" in values.filled(item.text(key) or ""):
                item.leave(key, "it names a variable that this file does not define")
        home = local or remote_
        if not home:
            left.note(item.node, item.at, "it names no folder")
            continue
        remote(item, "remote", [] if local else [remote_])
        split = split or values.filled(dataset.text("split") or "")
        path = item.path(f"{home.rstrip('/')}/{split}" if split else home)
        found.append((item, SourceEntry(names.of(name), (path,))))
    if not found:
        raise nothing(Path(tree.file), "llm-foundry")
    left.note(
        dataset.node, dataset.at, "MDS shards are no format of mixture files: write their rows as Parquet or Arrow"
    )
    sources = _shares(found)
    for item, _ in found:
        item.rest()
    model = MixtureFile(
        tuple(sources),
        seed=_seed(dataset, values),
        shuffle=Shuffling("none") if dataset.get("shuffle") is False else None,
        batch=_batch(tree, dataset, left, values),
    )
    dataset.leave("max_seq_len", "rows are taken as they are stored; add pack where they are documents")
    dataset.rest()
    return model


def _shares(found: list[tuple[Part, SourceEntry]]) -> list[SourceEntry]:
    relative = any(item.has("proportion") for item, _ in found)
    counted = [item.has("choose") for item, _ in found]
    out: list[SourceEntry] = []
    for item, source in found:
        proportion, repeat, choose = (item.number(key) for key in ("proportion", "repeat", "choose"))
        share: dict[str, Any] = {"weight": proportion or 0}
        if not relative and all(counted):
            share = {"weight": choose}
        elif not relative:
            if choose is not None:
                item.leave("choose", _ONLY_ABSOLUTE)
            times = 1 if repeat is None else repeat
            share = {"epochs": times, "max_epochs": times} if times else {"weight": 0}
        out.append(replace(source, **share))
    return out


def _seed(dataset: Part, values: _Values) -> int | None:
    given = dataset.get("shuffle_seed")
    given = values.value(given) if isinstance(given, str) else given
    if given is None or isinstance(given, int):
        return given
    dataset.leave("shuffle_seed", "no whole number")
    return None


def _batch(tree: Node, dataset: Part, left: Left, values: _Values) -> Batching | None:
    top = Part(tree, "", left)
    if dataset.node is tree:
        return None
    size = values.value(top.get("global_train_batch_size"))
    top.leave("eval_loader", "only training data makes a mixture")
    loader = top.part("train_loader")
    drop = bool(loader.get("drop_last")) if loader else False
    if loader is not None:
        loader.taken.add("dataset")
        loader.rest()
    return Batching(size, drop) if isinstance(size, int) and size > 0 else None


class _Values:
    """References such as `${variables.data_local}`, filled in from the same file."""

    def __init__(self, tree: Node) -> None:
        self.values: Any = plain(tree)

    def value(self, given: Any) -> Any:
        """The value that a text of one reference stands for; anything else as it is."""
        found = re.fullmatch(r"\$\{([\w.]+)\}", given) if isinstance(given, str) else None
        return self._at(found[1], given) if found else given

    def filled(self, text: str) -> str:
        """A text with its references filled in, as far as the file defines them."""
        for _ in range(4):  # a reference may lead to another one
            text = re.sub(r"\$\{([\w.]+)\}", lambda found: str(self._at(found[1], found[0])), text)
        return text

    def _at(self, name: str, otherwise: Any) -> Any:
        value: Any = self.values
        for step in name.split("."):
            value = cast("dict[str, Any]", value).get(step) if isinstance(value, dict) else None
        return otherwise if value is None or isinstance(value, dict | list) else value
