"""torchtitan's dataset configs, and Hugging Face's `interleave_datasets`, in Python files.

The files are not run.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ...engine.mixing import Stop
from ...errors import ConfigError
from ...mixture_files import MixtureFile, Shuffling, SourceEntry
from ...mixture_files.reading import MixtureNode
from .account import NO_COUNTERPART, Account, Section, nothing
from .arithmetic import Call, Unknown
from .locations import Hub, Names, name_of_path
from .trainers import put_together

_ENCODED = "rows are as stored: tokenize and filter them in Python"
_HARMLESS = frozenset(
    "trust_remote_code num_proc cache_dir token download_mode verification_mode".split()
)
_KINDS = {"json": "jsonl", "csv": "csv", "parquet": "parquet", "text": "text", "arrow": "arrow"}
_STOPS: dict[str, Stop] = {
    "first_exhausted": "first_exhausted",
    "all_exhausted": "all_exhausted_oversample",
    "all_exhausted_without_replacement": "all_exhausted",
}


def _mixed(call: Call, account: Account, calls: list[Call]) -> MixtureFile:
    """Convert a mix of weighted datasets."""
    return _require_sources(_children(call, account, weighted=True), call)


def _joined(call: Call, account: Account, calls: list[Call]) -> MixtureFile:
    """Convert concatenated datasets, which are shuffled together."""
    return _require_sources(_children(call, account, weighted=False), call)


def _single(call: Call, account: Account, calls: list[Call]) -> MixtureFile:
    source = _source(call, Names(), account)
    return _require_sources(MixtureFile(() if source is None else (source,)), call)


def _require_sources(model: MixtureFile, call: Call) -> MixtureFile:
    if not model.sources:
        raise nothing(Path(call.file), "torchtitan")
    return model


def _children(call: Call, account: Account, weighted: bool, key: str = "datasets") -> MixtureFile:
    account.open_call(call)
    setting, names, sources = call.of(key, 0), Names(), list[SourceEntry]()
    if not isinstance(setting, list):
        reason = setting.reason if isinstance(setting, Unknown) else "they are not a list"
        raise ConfigError(
            f"{call.file}, line {call.line}: its datasets cannot be determined: {reason}"
        )
    for number, child in enumerate(cast("list[Any]", setting)):
        if weighted and isinstance(child, Call):
            account.open_call(child)
        inner: Any = child.of("dataset", 0) if weighted and isinstance(child, Call) else child
        weight: Any = child.of("weight", 1, 1.0) if weighted and isinstance(child, Call) else None
        if weighted and not isinstance(weight, int | float):
            reason = weight.reason if isinstance(weight, Unknown) else "it is not a number"
            raise ConfigError(
                f"{call.file}, line {call.line}: the weight of datasets[{number}] cannot be "
                f"determined: {reason}"
            )
        if (source := _child(inner, names, account, call, f"datasets[{number}]")) is not None:
            sources.append(replace(source, weight=weight))
    if weighted:
        return MixtureFile(tuple(sources))
    combined, options = put_together(sources, 1)
    return MixtureFile(combined, **options)


def _child(
    inner: Any, names: Names, account: Account, call: Call, key_path: str
) -> SourceEntry | None:
    """Return the source of a dataset, or of a nested mix."""
    kind = inner.name.rsplit(".", 1)[-1] if isinstance(inner, Call) else ""
    if kind in ("DatasetMixConfig", "DatasetConcatConfig"):
        mixture = _children(inner, account, kind == "DatasetMixConfig")
        return SourceEntry(names.of("mix"), mixture=mixture) if mixture.sources else None
    if isinstance(inner, Call) and "dataset" in inner.options:  # a wrapper, such as a pack
        account.report(
            _at(inner),
            key_path,
            f"its wrapper {kind} is not carried over: set pack for the mixture",
        )
        return _child(
            inner.of("dataset"), names, account, call, key_path
        )  # reports everything inside
    if isinstance(inner, Call) and kind in ("SingleDatasetConfig", "load_dataset"):
        return _source(inner, names, account)
    reason = inner.reason if isinstance(inner, Unknown) else "it is not a known dataset"
    account.report(_at(call), key_path, f"{reason}: its share is lost")
    return None


def _at(call: Call) -> MixtureNode:
    return MixtureNode(None, call.file, call.line)


def _source(call: Call, names: Names, account: Account) -> SourceEntry | None:
    """Return the source of files, or of a hub dataset."""
    account.open_call(call)
    origin = call.of("source", 0) if "load_dataset" not in call.name else call
    if not isinstance(origin, Call):
        reason = origin.reason if isinstance(origin, Unknown) else "source is missing"
        account.report(_at(call), "source", f"{reason}: its share is lost")
        return None
    account.open_call(origin, _HARMLESS)
    if any([call.of("processor") is not None, call.of("pre_filters"), call.of("post_filters")]):
        account.note(_at(call), "processor", _ENCODED)
    patterns, path = origin.of("patterns"), origin.of("path", 0)
    config, split = (
        _plain(origin, *argument, account) for argument in (("name", 1), ("split", None))
    )
    setting = patterns if patterns is not None else origin.of("data_files")
    options = origin.of("load_dataset_kwargs")
    for name, value in cast("dict[str, Any]", options).items() if isinstance(options, dict) else ():
        if name == "data_files" and setting is None:
            setting = value
        elif name not in _HARMLESS:
            account.report(_at(origin), f"load_dataset_kwargs.{name}", NO_COUNTERPART)
    files = _listed(setting, split or "train")
    if len(files) != len(_values(setting, split or "train")):
        account.report(
            _at(origin), "data_files", "some of the files cannot be determined, and are lost"
        )
    if not isinstance(path, str) and not files:
        account.report(_at(origin), "path", "files and dataset are missing: its share is lost")
        return None
    local = path is None or path in _KINDS or path.startswith((".", "/", "~")) or "://" in path
    of_split = isinstance(setting, dict) and bool(files)  # the files belong to the split
    hub = Hub(
        str(path), None if path in _KINDS else config, None if of_split else split, tuple(files)
    )
    name = names.of(name_of_path(files[0] if files else str(path)) if local else hub.source_name)
    key = "patterns" if patterns else "path"
    settings = {key: hub.name, "name": config, "split": split}
    nodes = {name: MixtureNode(value, origin.file, origin.line) for name, value in settings.items()}
    part = Section(MixtureNode(nodes, origin.file, origin.line), "", account)
    paths = files or [str(path)] if local else []
    kind: Any = "jsonl" if patterns else _KINDS.get(str(path)) if local else None
    return SourceEntry(name, part.dataset(key, name, hub, "name", "split", paths), format=kind)


def _plain(origin: Call, key: str, number: int | None, account: Account) -> str | None:
    """Return a configuration or a split as one word; report another value."""
    value = origin.of(key) if number is None else origin.of(key, number)
    if value is None or (isinstance(value, str) and re.fullmatch(r"[\w.-]+", value)):
        return value
    account.report(
        _at(origin), key, f"{value!r} is not a single name, or cannot be determined: it is lost"
    )
    return None


def _values(setting: Any, split: str) -> list[Any]:
    """Return the file names: one, a list, or those of a split."""
    if isinstance(setting, dict):
        setting = cast("dict[str, Any]", setting).get(split)
    values: list[Any] = cast("list[Any]", setting) if isinstance(setting, list) else [setting]
    return [value for value in values if value is not None]


def _listed(setting: Any, split: str) -> list[str]:
    return [value for value in _values(setting, split) if isinstance(value, str)]


def _interleaved(call: Call, account: Account, calls: list[Call]) -> MixtureFile:
    """Convert `interleave_datasets`: shares of samples, or equal turns."""
    model = _children(call, account, weighted=False)
    shares, seed = call.of("probabilities", 1), call.of("seed", 2)
    stop = call.of("stopping_strategy", default="first_exhausted")
    account.open_call(call)
    if isinstance(shares, Unknown):
        raise ConfigError(
            f"{call.file}, line {call.line}: the probabilities cannot be determined: "
            f"{shares.reason}"
        )
    setting = call.of("datasets", 0)
    if shares and len(model.sources) != len(setting):
        raise ConfigError(
            f"{call.file}, line {call.line}: some of its datasets cannot be determined"
        )
    weights = shares or [1.0] * len(model.sources)
    sources = tuple(
        replace(source, weight=weight)
        for source, weight in zip(model.sources, weights, strict=True)
    )
    return _require_sources(
        MixtureFile(
            sources,
            seed=seed if isinstance(seed, int) else None,
            stop=_STOPS.get(str(stop)),
            shuffle=Shuffling("none"),
        ),
        call,
    )


def _concatenated(call: Call, account: Account, calls: list[Call]) -> MixtureFile:
    model = _children(call, account, weighted=False, key="dsets")
    account.note(
        _at(call), "", "sources are mixed evenly here instead of concatenated, each in its order"
    )
    return _require_sources(replace(model, shuffle=Shuffling("none")), call)


READERS: dict[str, Callable[[Call, Account, list[Call]], MixtureFile]] = {
    "DatasetMixConfig": _mixed,
    "DatasetConcatConfig": _joined,
    "SingleDatasetConfig": _single,
    "interleave_datasets": _interleaved,
    "concatenate_datasets": _concatenated,
}
