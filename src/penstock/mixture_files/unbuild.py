"""Derive the description of a dataset's mixture, for `dump`.

Errors name the parts that a mixture file cannot express.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from ..dataset import Dataset
from ..engine.base.tree import collate
from ..engine.graph.build import Builder
from ..engine.graph.indexed import counted_for
from ..engine.graph.nodes import Batch, Flow, Head, Hold, Mix, Read, Reorder
from ..engine.graph.recipe import describe, difference
from ..engine.mixing.rules import Weighted
from ..engine.orders import BlockShuffle, BucketShuffle, Portion, Shuffle, Slice
from ..engine.orders.portion import MAX_DENOMINATOR
from ..engine.packing import PackedBatches, Packing
from ..engine.steps.function_step import FunctionStep, name_of
from ..engine.steps.map import Map
from ..errors import ConfigError
from ..schedule import Schedule
from ..sources import JoinedFiles, SelectedRows
from ..stores import parse_location
from ..stores.urls import require_local
from ..text import Tokenise
from .build import build
from .model import Batching, MixtureFile, Scheduling, Shuffling, SourceEntry, Splitting, Tokenising


def describe_dataset(dataset: Dataset) -> MixtureFile:
    """Return the description that builds an equal dataset; verified by building it.

    Args:
        dataset: A mixture, possibly packed and batched.

    Returns:
        The description.

    Raises:
        ConfigError: The dataset has parts that a mixture file cannot express.
    """
    node, batch = _split_batch(dataset.flow)
    node, rows = _split_limit(node)
    node, pack = _split_pack(node)
    node, samples = _split_limit(node)
    if not isinstance(node, Mix) or not isinstance(node.rule, Weighted):
        raise _make_unsupported_error(
            node, "", "a mixture file holds a mixture, followed by pack and batch only"
        )
    caches = set[str | None]()
    model = replace(
        _describe_mixture(node, node.rule, "", batch, pack, caches),
        horizon=_describe_horizon(rows, samples, batch, pack),
    )
    if differs := difference(describe(dataset.flow), describe(build(model).flow)):
        raise ConfigError(f"dump: the file would load as another mixture: {'; '.join(differs[:3])}")
    return model


def _split_batch(node: Flow) -> tuple[Flow, Batching | None]:
    match node:
        case Map(Hold(below, Batch(n, drop, over_ranks)), PackedBatches(packing)):
            return Map(below, packing), Batching(n, drop, over_ranks=over_ranks)
        case Map(Hold(below, Batch(n, drop, over_ranks)), fn):
            if fn is not collate and fn is not list:
                raise ConfigError(
                    f"dump: batch(collate={name_of(fn)}): a mixture file cannot hold a function"
                )
            return below, Batching(
                n, drop, "list" if fn is list else "stack", over_ranks=over_ranks
            )
        case _:
            return node, None


def _split_limit(node: Flow) -> tuple[Flow, int | None]:
    """Return the input and the number of items of a limited dataset."""
    match node:
        case Reorder(below, Slice(0, n, 1)) | Head(below, n):
            return below, n
        case _:
            return node, None


def _describe_horizon(
    rows: int | None, samples: int | None, batch: Batching | None, pack: Mapping[str, Any] | None
) -> tuple[str, int] | None:
    if rows is None or not (pack or batch):
        count = rows or samples
        return None if count is None else ("samples", count)
    if samples is not None:
        raise ConfigError(
            "dump: the dataset limits both samples and rows, but a mixture file has one horizon; "
            "remove one limit"
        )
    if pack is None:
        return "samples", rows
    rows_per_step = batch.size if batch else 1
    return (
        ("tokens", rows * int(pack["length"]))
        if rows % rows_per_step
        else ("steps", rows // rows_per_step)
    )


def _split_pack(node: Flow) -> tuple[Flow, Mapping[str, Any] | None]:
    match node:
        case Map(Hold(below), Packing() as packing):
            default = Packing(packing.length).describe()
            settings = cast("dict[str, Any]", packing.describe())
            changed = {
                name: value
                for name, value in settings.items()
                if value != cast("dict[str, Any]", default)[name]
            }
            return below, {"length": packing.length, **changed}
        case _:
            return node, None


def _describe_mixture(
    node: Mix,
    rule: Weighted,
    at: str,
    batch: Batching | None,
    pack: Mapping[str, Any] | None,
    caches: set[str | None],
) -> MixtureFile:
    if rule.draw_change is not None:
        raise ConfigError(
            f"dump: {at or 'the mixture'} uses count='settled', which a mixture file cannot express"
        )
    if rule.events or rule.pasts:
        raise ConfigError(
            f"dump: {at or 'the mixture'} was changed during a run; its state holds the changes"
        )
    caps = dict(rule.max_epochs) if isinstance(rule.max_epochs, tuple) else {}
    weights = rule.weights
    shares = dict(weights) if isinstance(weights, tuple) else {}
    schedule, start, stop = None, dict[str, int](), dict[str, int]()
    if isinstance(weights, Schedule):
        points = tuple((place, dict(row)) for place, row in weights.points)
        schedule = Scheduling(weights.unit, cast("Any", weights.interpolation), points)
        start, stop = dict(weights.start or {}), dict(weights.stop or {})
    sources: list[SourceEntry] = []
    for name, child in zip(node.names, node.flows, strict=True):
        settings: dict[str, Any] = {"weight": shares.get(name), "max_epochs": caps.get(name)}
        settings |= {"start": start.get(name), "stop": stop.get(name)}
        sources.append(
            SourceEntry(
                name,
                **_describe_source(child, f"{at}/{name}" if at else name, name, caches),
                **settings,
            )
        )
    if not at and len(caches) > 1:
        raise ConfigError(
            f"dump: the sources use several index folders ({caches}), but a mixture file has one "
            "cache; use one folder"
        )
    return MixtureFile(
        tuple(sources),
        seed=rule.seed,
        block_size=rule.block_size,
        stop=rule.stop,
        unit=rule.unit,
        temperature=rule.temperature,
        max_epochs=None if caps else cast("float | None", rule.max_epochs),
        schedule=schedule,
        pack=pack,
        batch=batch,
        cache=next(iter(caches), None),
    )


def _describe_source(node: Flow, at: str, name: str, caches: set[str | None]) -> dict[str, Any]:
    if isinstance(node, Mix) and isinstance(node.rule, Weighted):
        return {"mixture": _describe_mixture(node, node.rule, at, None, None, caches)}
    settings: dict[str, Any] = {"shuffle": Shuffling("none")}
    match node:
        case Map(below, Tokenise(tokenizer=str(), bos=None, eos=None, keep=()) as fn):
            counted = counted_for(fn, below)
            settings["tokenise"], node = (
                Tokenising(fn.tokenizer, fn.field, fn.special_tokens, counted),
                below,
            )
        case _:
            pass
    match node:
        case Reorder(below, Shuffle(), seed, None):
            settings["shuffle"], node = (
                None if seed is None else Shuffling("full", seed=seed),
                below,
            )
        case Reorder(below, BlockShuffle(rows, window), seed, None):
            settings["shuffle"], node = Shuffling("block", rows, window, seed), below
        case Reorder(below, BucketShuffle(rows), seed, None):
            settings["shuffle"], node = Shuffling("buckets", seed=seed, buckets=rows), below
        case _:
            pass
    match node:
        case Reorder(below, Portion() as share, _):
            settings["split"], node = _describe_split(share, below), below
        case _:
            pass
    match node:
        case Reorder(below, Slice(start, count, step)) if (
            step > 0
        ):  # a mixture file cannot express reversed slices
            stop = start + (count - 1) * step + 1 if count else start
            settings["slice"], node = (start, stop, step), below
        case _:
            pass
    if not isinstance(node, Read):
        raise _make_unsupported_error(
            node,
            at,
            "a source of a mixture file consists of files, sliced, shuffled and tokenised in this order",
        )
    source = node.source
    arguments = source.open_arguments if isinstance(source, JoinedFiles | SelectedRows) else None
    if arguments is None:
        kind = type(source).__name__
        raise ConfigError(
            f"dump: {at}: a mixture file names files, but this source is a {kind}: write its rows to "
            "files first"
        )
    caches.add(None if arguments.cache is None else str(require_local(arguments.cache).absolute()))
    paths = tuple(str(parse_location(path).absolute()) for path in arguments.paths)
    if node.name != name:
        settings["label"] = node.name
    return {
        "path": paths,
        "format": arguments.format,
        "columns": arguments.columns,
        "lengths": arguments.lengths if isinstance(arguments.lengths, str) else None,
        "dtype": arguments.dtype,
        "eos": arguments.eos,
        **({"split": arguments.split} if arguments.split else {}),
        "where": arguments.where,
        **settings,
    }


def _describe_split(share: Portion, below: Flow) -> Splitting:
    """Return a share as written, or as the number of rows it was made from."""
    if MAX_DENOMINATOR % share.of == 0:
        held_out: str | int = f"{100 * share.some / share.of:g}%"
    else:
        held_out = replace(share, others=False).size(Builder(below).op(below).size) or 0
    return Splitting(held_out, seed=share.seed, part="train" if share.others else "held_out")


def _make_unsupported_error(node: Flow, at: str, rule: str) -> ConfigError:
    match node:
        case FunctionStep(_, fn):
            step_text = f"{node.METHOD}({name_of(fn)})"
        case Reorder(_, order):
            step_text = f"the step {type(order).__name__}"
        case Hold(_, fold):
            step_text = f"the step {type(fold).__name__}"
        case Mix(_, _, kind):
            step_text = f"the step {type(kind).__name__}"
        case _:
            step_text = f"a {type(node).__name__} without a mixture"
    return ConfigError(f"dump: {at + ': ' if at else ''}{step_text} cannot be written: {rule}")
