"""Write descriptions as mixture files."""

from __future__ import annotations

import importlib
import io
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, cast

from ..errors import make_missing_extra_error
from ..schedule import Schedule
from ..stores.outputs import open_output
from ..text.chat import is_template_file
from .model import (
    Batching,
    Chatting,
    MixtureFile,
    Partitioning,
    Scheduling,
    Shuffling,
    SourceEntry,
    Splitting,
    Stage,
    Tokenizing,
)
from .reading import parse_scalar

PlainTree = dict[str, Any]

_PLAIN_KEYS = ("seed", "block_size", "one_source_per", "stop", "unit", "temperature", "max_epochs")
_SOURCE_KEYS = (
    "format", "lengths", "dtype", "eos", "label", "group", "weight", "tokens", "epochs", "max_epochs", "loss_weight",
    "start", "stop"
)  # fmt: skip


def write(model: MixtureFile, path: Path) -> None:
    """Write a description atomically; paths below the file's folder become relative to it.

    Args:
        model: The description.
        path: The file to write.
    """
    folder = path.absolute().parent
    text = format_yaml(convert_model(model, folder))
    with open_output(path) as file:
        file.write(text.encode())


def convert_model(model: MixtureFile, folder: Path) -> PlainTree:
    """Return a description as plain values for a file in `folder`."""
    out: PlainTree = {
        name: value for name in _PLAIN_KEYS if (value := getattr(model, name)) is not None
    }
    if model.cache is not None:
        out["cache"] = _make_relative_path(model.cache, folder)
    if model.exclude is not None:
        out["exclude"] = _make_relative_path(model.exclude, folder)
    if model.horizon is not None:
        out["horizon"] = dict([model.horizon])
    if model.shuffle is not None:
        out["shuffle"] = _convert_shuffle(model.shuffle)
    if model.tokenize is not None:
        out["tokenize"] = _convert_tokenize(model.tokenize, folder)
    if model.chat is not None:
        out["chat"] = _convert_chat(model.chat, folder)
    if model.split is not None:
        out["split"] = _convert_split(model.split)
    if model.groups is not None:
        out["groups"] = dict(model.groups)
    if model.group_max_epochs is not None:
        out["group_max_epochs"] = dict(model.group_max_epochs)
    out["sources"] = {source.name: _convert_source(source, folder) for source in model.sources}
    if model.stages:
        out["stages"] = [_convert_stage(stage) for stage in model.stages]
    if model.schedule is not None:
        out["schedule"] = _convert_schedule(model.schedule)
    if model.pack is not None:
        lists = {
            name: list(model.pack[name])
            for name in ("features", "unpacked")
            if model.pack.get(name)
        }
        out["pack"] = {**model.pack, "length": _convert_number(model.pack["length"]), **lists}
    if model.batch is not None:
        if model.batch.over_ranks:
            out["global_batch_size"] = _convert_number(model.batch.size)
            changed = _select_changed(model.batch, Batching(model.batch.size, over_ranks=True))
            out |= {"batch": changed} if changed else {}
        else:
            out["batch"] = _select_changed(model.batch, Batching(model.batch.size), "size")
    return out


def _convert_source(source: SourceEntry, folder: Path) -> PlainTree:
    out: PlainTree = {}
    if source.path:
        paths = [_make_relative_path(path, folder) for path in source.path]
        out["path"] = paths[0] if len(paths) == 1 else paths
    if source.mixture is not None:
        out["mixture"] = convert_model(source.mixture, folder)
    out |= {name: value for name in _SOURCE_KEYS if (value := getattr(source, name)) is not None}
    for name in ("columns", "slice"):
        if getattr(source, name) is not None:
            out[name] = list(getattr(source, name))
    if source.where is not None:
        out["where"] = {
            column: _unwrap_single_items(condition) for column, condition in source.where.items()
        }
    if source.partition is not None:
        out |= _convert_partition(source.partition)
    if source.unique_fraction is not None:
        out["unique_fraction"] = source.unique_fraction
    if source.split is not None:
        out["split"] = (
            source.split if isinstance(source.split, str) else _convert_split(source.split)
        )
    if source.shuffle is not None:
        out["shuffle"] = _convert_shuffle(source.shuffle)
    if source.tokenize is not None:
        out["tokenize"] = _convert_tokenize(source.tokenize, folder)
    if source.chat is not None:
        out["chat"] = _convert_chat(source.chat, folder)
    return out


def _convert_partition(how: Partitioning) -> PlainTree:
    changed = _select_changed(how, Partitioning(how.columns))
    parts: PlainTree = {
        name: dict(cast("Mapping[str, float]", value))
        if isinstance(value := changed.pop(name), Mapping)
        else value
        for name in ("weights", "temperature", "max_epochs")
        if name in changed
    }
    only = {"only": list(how.only)} if how.only is not None else {}
    columns = how.columns[0] if len(how.columns) == 1 else list(how.columns)
    return {"partition_by": columns, **changed, **only, **({"mix": parts} if parts else {})}


def _convert_shuffle(how: Shuffling) -> Any:
    given = {
        name: value
        for name in ("rows", "window", "buckets", "seed")
        if (value := getattr(how, name)) is not None
    }
    return given or how.kind


def _convert_split(how: Splitting) -> PlainTree:
    return _select_changed(how, Splitting(how.held_out), "held_out")


def _convert_tokenize(
    how: Tokenizing | Literal["none"], folder: Path
) -> PlainTree | Literal["none"]:
    if isinstance(how, str):
        return how
    tokenizer = _convert_existing_path(how.tokenizer, folder)
    return {"tokenizer": tokenizer, **_select_changed(how, Tokenizing(how.tokenizer))}


def _convert_chat(how: Chatting, folder: Path) -> PlainTree:
    changed = _select_changed(how, Chatting(how.tokenizer))
    if how.template is not None and is_template_file(how.template):
        changed["template"] = _make_relative_path(how.template, folder)
    for name in ("keep", "allowed_special"):
        if isinstance(changed.get(name), tuple):
            changed[name] = list(changed[name])
    return {"tokenizer": _convert_existing_path(how.tokenizer, folder), **changed}


def _convert_existing_path(name: str, folder: Path) -> str:
    """Return the relative path of a tokenizer that is a file, or its name on a hub."""
    return _make_relative_path(name, folder) if Path(name).exists() else name


def _convert_stage(stage: Stage) -> PlainTree:
    out = _select_changed(stage, Stage())
    if stage.until is not None:
        unit, number = stage.until.unit, stage.until.number
        out["until"] = f"{number:g}%" if unit == "percent" else {unit: number}
    return {**out, **({"weights": dict(stage.weights)} if stage.weights else {})}


def _convert_number(number: int | Schedule) -> Any:
    """Return a number, or the table of a schedule of numbers."""
    if not isinstance(number, Schedule):
        return number
    unit = {} if number.unit == "steps" else {"unit": number.unit}
    return {**unit, "points": dict(number.numbers or ())}


def _convert_schedule(schedule: Scheduling) -> PlainTree:
    out = _select_changed(schedule, Scheduling(points=schedule.points))
    if isinstance(schedule.interpolation, tuple):
        out["interpolation"] = list(schedule.interpolation)
    return (
        {**out, "points": {place: dict(weights) for place, weights in schedule.points}}
        if schedule.points
        else out
    )


def _select_changed(settings: Any, default: Any, *always: str) -> PlainTree:
    """Return the settings that differ from the defaults."""
    pairs = {each.name: getattr(settings, each.name) for each in fields(settings)}
    return {
        name: value
        for name, value in pairs.items()
        if name in always or value != getattr(default, name)
    }


def _make_relative_path(path: str, folder: Path) -> str:
    """Return a path relative to the folder if it is below, else absolute."""
    if path.startswith("~") or "://" in path:
        return path
    absolute = Path(path).absolute()
    return str(absolute.relative_to(folder)) if absolute.is_relative_to(folder) else str(absolute)


def _unwrap_single_items(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _unwrap_single_items(one) for name, one in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return value[0] if len(value) == 1 else list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return value


def format_yaml(tree: PlainTree) -> str:
    """Return plain values as YAML that parses to the same values."""
    try:
        yaml: Any = importlib.import_module("yaml")
    except ModuleNotFoundError:
        raise make_missing_extra_error("pyyaml", "yaml", "writing mixture files") from None

    class Writer(yaml.SafeDumper):
        pass

    def text(writer: Any, value: str) -> Any:
        # Quote texts that YAML 1.2 reads as another type, and escape `${`.
        quoted = not isinstance(parse_scalar(value), str)
        filled = value.replace("${", "$${")
        return writer.represent_scalar(
            "tag:yaml.org,2002:str", filled, style='"' if quoted else None
        )

    Writer.add_representer(str, text)
    out = io.StringIO()
    yaml.dump(
        tree,
        out,
        Dumper=Writer,
        sort_keys=False,
        allow_unicode=True,
        width=120,
        default_flow_style=None,
    )
    return out.getvalue()
