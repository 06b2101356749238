"""Derive the description of a dataset's mixture, for `dump`.

Errors name the parts that a mixture file cannot express.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, cast

from ..arrays.trees import collate
from ..dataset import Dataset
from ..engine.base.canonical_json import list_differences
from ..engine.mixing.rules import Weighted
from ..engine.orders import Portion
from ..engine.orders.portion import MAX_DENOMINATOR
from ..engine.packing import PackedBatches, Packing
from ..engine.steps.function_step import name_of
from ..engine.steps.map import Map, keeps_token_counts
from ..engine.steps.mix import Mix, find_mixtures
from ..engine.steps.read import single_source
from ..engine.steps.step import Builder, Step
from ..errors import ConfigError
from ..inputs import key_of_fraction
from ..schedule import Schedule
from ..sources import JoinedFiles, SelectedRows
from ..sources.partition import Part, name_values
from ..stores import parse_location
from ..stores.urls import require_local
from ..text import Chat, Tokenize
from ..text.chat import MarkDropped, remove_dropped
from .build import build
from .model import (
    Batching,
    Chatting,
    MixtureFile,
    Partitioning,
    Scheduling,
    Shuffling,
    SourceEntry,
    Splitting,
    Tokenizing,
)
from .step_sizes import Border, find_step


def describe_dataset(dataset: Dataset) -> MixtureFile:
    """Return the description that builds an equal dataset; verified by building it.

    Args:
        dataset: A mixture, possibly packed and batched.

    Returns:
        The description.

    Raises:
        ConfigError: The dataset has parts that a mixture file cannot express.
    """
    node, batch = _split_batch(dataset.tree)
    node, rows = _split_limit(node)
    node, pack = _split_pack(node)
    if remove_dropped in node.functions:  # build adds it behind chats that drop samples
        node = _input_of(node)
    node, samples = _split_limit(node)
    mix = _as_mixture(node)
    if mix is None:
        raise _make_unsupported_error(
            node, "", "a mixture file holds a mixture, followed by pack and batch only"
        )
    if pack is None:
        mix, pack = _join_packs(mix)
    caches = set[str | None]()
    model = replace(
        _describe_mixture(mix, "", batch, pack, caches),
        horizon=_describe_horizon(rows, samples, batch, pack),
    )
    now, loaded = dataset.tree.description(), build(model).tree.description()
    if differs := list_differences(now, loaded):
        raise ConfigError(f"dump: the file would load as another mixture: {'; '.join(differs[:3])}")
    return model


def _as_mixture(node: Step) -> Mix | None:
    """Return a node if it is a mixture by weight."""
    mix = find_mixtures(node).get(())
    return mix if mix is node else None


def _split_batch(node: Step) -> tuple[Step, Batching | None]:
    groups = node.only_input
    match node.describe(), groups and groups.describe():
        case {"pack": _} | {"map": _}, {"batch": n, "drop_remainder": drop, **rest}:
            assert groups is not None
            below = _input_of(groups)
            if by_step := rest.get("global_batch_size"):
                n = Schedule(by_step, unit="steps")
        case _:
            return node, None
    (fn,), over_ranks = node.functions, bool(rest.get("over_ranks"))
    if isinstance(fn, PackedBatches):
        return Map(below, fn.packing), Batching(n, drop, over_ranks=over_ranks)
    if fn is not collate and fn is not list:
        raise ConfigError(
            f"dump: batch(collate={name_of(fn)}): a mixture file cannot hold a function"
        )
    form = "list" if fn is list else "stack"
    return below, Batching(n, drop, form, over_ranks=over_ranks)


def _split_limit(node: Step) -> tuple[Step, int | None]:
    """Return the input and the number of items of a limited dataset."""
    match node.describe():
        case {"order": "slice", "start": 0, "count": n, "step": 1} | {"limit": n}:
            return _input_of(node), n
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
    model = MixtureFile((), pack=pack, batch=batch)
    step = find_step(model.equal_steps, Border("rows", rows))
    if model.row_at(step) == rows:
        return "steps", step
    if model.changes_sizes:
        raise ConfigError(
            f"dump: the limit of {rows} rows ends within step {step - 1}, and a mixture file counts "
            f"whole steps: use .limit({model.row_at(step)})"
        )
    return "tokens", rows * int(pack["length"])


def _split_pack(node: Step) -> tuple[Step, Mapping[str, Any] | None]:
    match node.functions:
        case (Packing() as packing,):
            groups = _input_of(node)
            below, plan = _input_of(groups), getattr(getattr(groups, "fold", None), "plan", None)
        case _:
            return node, None
    length = Schedule(plan.points, unit=plan.unit) if plan else packing.length
    default = cast("dict[str, Any]", Packing(packing.length).describe())
    described = cast("dict[str, Any]", packing.describe())
    settings = {**described, "long": packing.long}  # states spell a value of `long` otherwise
    changed = {name: value for name, value in settings.items() if value != default.get(name)}
    return below, {"length": length, **changed}


def _join_packs(mix: Mix) -> tuple[Mix, Mapping[str, Any] | None]:
    """Return a mixture of documents and their packing, if every source packs alike by itself."""
    parts = [_split_pack(child) for child in mix.inputs]
    pack = parts[0][1]
    if cast("Weighted", mix.rule).one_source_per == 1 or any(other != pack for _, other in parts):
        return mix, None
    return replace(mix, inputs=tuple(documents for documents, _ in parts)), pack


def _describe_mixture(
    node: Mix,
    at: str,
    batch: Batching | None,
    pack: Mapping[str, Any] | None,
    caches: set[str | None],
) -> MixtureFile:
    rule = cast(Weighted, node.rule)
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
    for name, child in zip(node.names, node.inputs, strict=True):
        settings: dict[str, Any] = {"weight": shares.get(name), "max_epochs": caps.get(name)}
        settings |= {"start": start.get(name), "stop": stop.get(name)}
        settings["loss_weight"] = dict(node.loss_weights).get(name)
        sources.append(
            SourceEntry(
                name,
                **_describe_source(child, f"{at}/{name}" if at else name, name, rule.seed, caches),
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
        one_source_per=None if rule.one_source_per == 1 else rule.one_source_per,
        stop=rule.stop,
        unit=rule.unit,
        temperature=rule.temperature,
        max_epochs=None if caps else cast("float | None", rule.max_epochs),
        schedule=schedule,
        pack=pack,
        batch=batch,
        cache=next(iter(caches), None),
    )


def _describe_source(
    node: Step, at: str, name: str, mixture_seed: int, caches: set[str | None]
) -> dict[str, Any]:
    if (mix := _as_mixture(node)) is not None:
        return {"mixture": _describe_mixture(mix, at, None, None, caches)}
    settings: dict[str, Any] = {"shuffle": Shuffling("none")}
    match node.functions:
        case (Tokenize(tokenizer=str(), bos=None, eos=None, keep=()) as fn,):
            below = _input_of(node)
            counted = keeps_token_counts(fn, below)
            tokenizing = Tokenizing(fn.tokenizer, fn.field, fn.special_tokens, counted)
            settings["tokenize"], node = tokenizing, below
        case (Chat() | MarkDropped() as fn,):
            chat = fn.chat if isinstance(fn, MarkDropped) else fn
            settings["chat"], node = _describe_chat(chat, at), _input_of(node)
        case _:
            pass
    match node.describe():
        case {"step": _}:  # a mixture file cannot name a step
            pass
        case {"order": "shuffle", **rest}:
            seed = rest.get("seed")
            shuffling = None if seed is None else Shuffling("full", seed=seed)
            settings["shuffle"], node = shuffling, _input_of(node)
        case {"order": "block shuffle", "rows": rows, "window": window, **rest}:
            shuffling = Shuffling("block", rows, window, rest.get("seed"))
            settings["shuffle"], node = shuffling, _input_of(node)
        case {"order": "bucket shuffle", "rows": rows, **rest}:
            shuffling = Shuffling("buckets", seed=rest.get("seed"), buckets=rows)
            settings["shuffle"], node = shuffling, _input_of(node)
        case _:
            pass
    match node.describe():
        case {"order": "portion", "some": some, "out_of": of, "seed": key, "others": False} if (
            key == key_of_fraction(mixture_seed, name)
        ):
            settings["unique_fraction"] = f"{100 * some / of:g}%"
            node = _input_of(node)
        case _:
            pass
    match node.describe():
        case {"order": "portion", "some": some, "out_of": of, "seed": seed, "others": others}:
            below = _input_of(node)
            settings["split"] = _describe_split(Portion(some, of, seed, others), below)
            node = below
        case _:
            pass
    match node.describe():
        case {"order": "slice", "start": start, "count": count, "step": step} if (
            step > 0
        ):  # a mixture file cannot express reversed slices
            stop = start + (count - 1) * step + 1 if count else start
            settings["slice"], node = (start, stop, step), _input_of(node)
        case _:
            pass
    leaf, _ = single_source(node) or (None, ())
    if leaf is None or leaf is not node:
        raise _make_unsupported_error(
            node,
            at,
            "a source of a mixture file consists of files, sliced, shuffled and tokenized in this order",
        )
    source = leaf.source
    arguments = source.open_arguments if isinstance(source, JoinedFiles | SelectedRows) else None
    if arguments is None:
        kind = type(source).__name__
        raise ConfigError(
            f"dump: {at}: a mixture file names files, but this source is a {kind}: write its rows to "
            "files first"
        )
    caches.add(None if arguments.cache is None else str(require_local(arguments.cache).absolute()))
    paths = tuple(str(parse_location(path).absolute()) for path in arguments.paths)
    if leaf.name != name:
        settings["label"] = leaf.name
    if isinstance(source, SelectedRows) and source.parts:
        settings["partition"] = _describe_partition(cast("Sequence[Part]", source.parts), at)
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


def _describe_partition(parts: Sequence[Part], at: str) -> Partitioning:
    """Return the settings of one part of a source.

    Raises:
        ConfigError: It is a part of a part.
    """
    if len(parts) > 1:
        raise ConfigError(
            f"dump: {at}: a mixture file partitions a source once: give all columns to one "
            "partition_by, or select with where="
        )
    (part,) = parts
    names = tuple(sorted(map(name_values, part.values)))
    if not part.is_rest:
        return Partitioning(part.columns, input=names[0])
    rest = next(name for n in count() if (name := f"rest{n or ''}") not in names)
    return Partitioning(part.columns, rest=rest, only=names, input=rest)


def _describe_chat(chat: Chat, at: str) -> Chatting:
    """Return the settings of a chat.

    Raises:
        ConfigError: A mixture file cannot hold them.
    """
    options = chat.options
    if not isinstance(chat.tokenizer, str) or callable(chat.train_on):
        raise ConfigError(
            f"dump: {at}: a mixture file cannot hold a tokenizer in memory, or a function as "
            "train_on=: give the path of the tokenizer, and a word"
        )
    settings: dict[str, Any] = {
        name: getattr(chat, name)
        for name in (
            "format",
            "train_on",
            "max_length",
            "truncate",
            "untrained",
            "keep",
            "input_separator",
        )
    }
    settings |= {**options, "allowed_special": chat.allowed_special}
    if isinstance(settings["template"], Path):
        settings["template"] = str(settings["template"])
    return Chatting(chat.tokenizer, date=chat.date and chat.date.isoformat(), **settings)


def _input_of(node: Step) -> Step:
    (below,) = node.children
    return below


def _describe_split(share: Portion, below: Step) -> Splitting:
    """Return a share as written, or as the number of rows it was made from."""
    if MAX_DENOMINATOR % share.of == 0:
        held_out: str | int = f"{100 * share.some / share.of:g}%"
    else:
        held_out = replace(share, others=False).size(Builder(below).op(below).size) or 0
    return Splitting(held_out, seed=share.seed, part="train" if share.others else "held_out")


def _make_unsupported_error(node: Step, at: str, rule: str) -> ConfigError:
    written = node.write()
    call = written and written.text
    text = call or ("a mix without weights" if node.children else "a source without a mixture")
    return ConfigError(f"dump: {at + ': ' if at else ''}{text} cannot be written: {rule}")
