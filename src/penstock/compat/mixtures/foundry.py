"""llm-foundry: the `streams` of a train loader, with proportions, repeats or numbers of samples, or its one dataset."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ...mixture_files import Batching, MixtureFile, Shuffling, SourceEntry
from ...mixture_files.reading import Node
from .parts import Hub, Left, Names, Part, nothing, plain
from .trainers import Horizon, shared

_ONLY_ABSOLUTE = "choose counts samples and repeat counts passes: beside each other they have no counterpart"
_PLACES = ((), ("dataset",), ("train_loader", "dataset"), ("parameters", "train_loader", "dataset"))
_FILES = ("json", "csv", "parquet", "text")  # what `hf_name` is where the files are local
_DURATION = re.compile(r"([0-9_.]+(?:e[0-9]+)?)(ep|ba|tok|sp)")
_UNITS = {"ep": "epochs", "ba": "steps", "tok": "tokens", "sp": "samples"}
_HOW = (
    "predownload", "cache_limit", "partition_algo", "num_canonical_nodes", "batch_size", "shuffle_algo",
    "shuffle_block_size", "keep_zip", "download_retry", "download_timeout", "validate_hash", "allow_unsafe_types",
    "keep_raw", "replication", "stream_name",
)  # fmt: skip


def is_mine(tree: Node) -> bool:
    return _dataset(tree, Left()) is not None


def _dataset(tree: Node, left: Left) -> Part | None:
    """The mapping that says what is read: at the top, in `dataset`, in a train loader, or in parameters around it."""
    for place in _PLACES:
        part: Part | None = Part(tree, "", left)
        for key in place:
            part = part.part(key) if part else None
        if part is None:
            continue
        streams = part.has("streams") and isinstance(part.table["streams"].value, dict)
        if streams or (len(place) > 1 and any(part.has(key) for key in ("local", "remote", "hf_name"))):
            return part
    return None


def convert(tree: Node, left: Left) -> MixtureFile:
    """The mixture of the training streams; one pass is one of their epochs."""
    dataset = _dataset(tree, left)
    assert dataset is not None
    top = Part(tree, "", left)
    top = top.part("parameters") or top
    values = _Values(top.node)
    found = _streams(dataset, values)
    if not found:
        raise nothing(Path(tree.file), "llm-foundry")
    left.note(dataset.node, dataset.at, "rows are taken as they are stored: decode, tokenise and pad them in Python")
    sources = _shares(found)
    for item, _ in found:
        item.skip(*_HOW)
        item.rest() if item.node is not dataset.node else None
    horizon = _duration(top, values)
    whole = all(source.epochs for source in sources)
    if horizon and horizon[0] == "epochs" and whole:
        times = horizon[1]
        sources = [
            replace(source, epochs=(source.epochs or 1) * times, max_epochs=(source.epochs or 1) * times)
            for source in sources
        ]
        horizon = None
    elif horizon and whole:
        sources = [replace(source, max_epochs=None) for source in sources]
    model = MixtureFile(
        tuple(sources),
        seed=_seed(dataset, values),
        shuffle=None if dataset.get("shuffle") else Shuffling("none"),
        batch=_batch(top, dataset, values),
        horizon=horizon,
    )
    if dataset.has("packing_ratio"):
        dataset.leave("packing_ratio", "rows are packed after tokenising: encode them in Python, and add pack")
    dataset.skip("max_seq_len", "decoder_only_format", "allow_pad_trimming", "tokenizer_name", "eos_token_id", *_HOW)
    dataset.leave("epoch_size", "an epoch has as many samples as its streams say; say horizon for another length")
    dataset.rest()
    return model


def _streams(dataset: Part, values: _Values) -> list[tuple[Part, SourceEntry]]:
    names, found = Names(), list[tuple[Part, SourceEntry]]()
    if (streams := dataset.part("streams")) is None:
        own = _hub(dataset, values) if dataset.has("hf_name") else _folder(names.of("train"), dataset, dataset, values)
        return [] if own is None else [(dataset, own)]
    for name, item in streams.named():
        if (own := _folder(names.of(name), item, dataset, values)) is not None:
            found.append((item, own))
    return found


def _folder(name: str, item: Part, dataset: Part, values: _Values) -> SourceEntry | None:
    """A folder of MDS shards."""
    local, remote, split = (values.filled(item.text(key) or "") for key in ("local", "remote", "split"))
    for key in ("local", "remote", "split"):
        if item.has(key) and "${" in values.filled(item.text(key) or ""):
            item.leave(key, "it names a variable that this file does not define")
    home = local or remote
    if not home:
        item.left.lost(item.node, item.at, "it names no folder")
        return None
    split = split or values.filled(dataset.text("split") or "")
    path = f"{home.rstrip('/')}/{split}" if split else home
    return SourceEntry(name, item.local("local" if local else "remote", name, [path]), format="mds")


def _hub(dataset: Part, values: _Values) -> SourceEntry | None:
    """What `datasets.load_dataset` would give: a dataset of the hub, or files of a kind."""
    name, split = values.filled(dataset.text("hf_name") or ""), values.filled(dataset.text("split") or "") or None
    options = dataset.part("hf_kwargs")
    config = options.text("name") if options else None
    folder = values.filled((options.text("data_dir") if options else None) or "")
    files = [values.filled(path) for path in _data_files(options, split)] if options else []
    dataset.leave("safe_load")
    dataset.leave("preprocessing_fn", "a function: map the rows in Python")
    if options:
        options.rest()
    if name in _FILES:
        paths = [f"{folder.rstrip('/')}/{file}" if folder else file for file in files] or ([folder] if folder else [])
        if not paths:
            dataset.leave("hf_name", "it names no files")
            return None
        if not files:
            dataset.say("hf_name", f"all files of the folder are read; datasets takes those of the split {split!r}")
        kind: Any = "jsonl" if name == "json" else name
        return SourceEntry("train", (options or dataset).local("data_dir", "train", paths), format=kind)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name) or not name.startswith((".", "/")):
        if "://" in name:
            return SourceEntry("train", dataset.local("hf_name", "train", [name]))
        place = Hub(name, config, split, tuple(files))
        return SourceEntry("train", dataset.hub("hf_name", "train", place))
    return SourceEntry("train", dataset.local("hf_name", "train", [name]))


def _data_files(options: Part, split: str | None) -> list[str]:
    node = options.table.get("data_files")
    if node is not None and isinstance(node.value, dict):
        part = options.part("data_files")
        return part.texts(split or "train") if part else []
    return options.texts("data_files")


def _duration(top: Part, values: _Values) -> Horizon:
    """How long the run is, in Composer's times: 4800ba, 1ep, 26e9tok."""
    given = values.value(top.get("max_duration"))
    if given in (None, ""):
        return None
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:  # batches
        return "steps", given
    found = _DURATION.fullmatch(str(given).replace(" ", ""))
    number = float(found[1].replace("_", "")) if found else 0
    if not found or not number:
        top.leave("max_duration", f"{given!r} is no time such as 10ep, 4800ba or 26e9tok")
        return None
    unit = _UNITS[found[2]]
    if unit == "tokens":
        top.leave("max_duration", "rows are not tokens here: how many rows so many tokens are, the data tells")
        return None
    return unit, number if unit == "epochs" else int(number)


def _shares(found: list[tuple[Part, SourceEntry]]) -> list[SourceEntry]:
    """What the streams say of themselves, all in the same way."""
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


def _batch(top: Part, dataset: Part, values: _Values) -> Batching | None:
    if dataset.node is top.node:
        return None
    size = values.value(top.get("global_train_batch_size"))
    top.say("eval_loader", "only training data makes a mixture")
    loader = top.part("train_loader")
    drop = bool(loader.get("drop_last")) if loader else False
    if loader is not None:
        loader.skip("dataset", "num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "timeout", "name")
        loader.rest()
    if not isinstance(size, int) or size < 1:
        return None
    return shared(size, top, "global_train_batch_size", drop_remainder=drop, collate="list")


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
            table = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
            value = table.get(step, otherwise)
        return "" if value is None else otherwise if isinstance(value, dict | list) else value
