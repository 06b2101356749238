"""Build the dataset of a mixture description."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from fractions import Fraction
from itertools import pairwise
from math import fsum
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from ..arguments import join_first, suggest_names
from ..dataset import Dataset
from ..engine.mixing.options import compute_temperature_weights
from ..engine.orders import parse_fraction
from ..engine.steps.mean_lengths import mean_length, mean_loss_tokens, tokens_of
from ..engine.steps.one_source import with_global_step
from ..engine.streams.function_call import SampleFailure
from ..errors import ConfigError, NoTokensError
from ..inputs import is_whole, mix, read, size_packed, use_fraction
from ..schedule import TOKEN_UNITS, CountedUnit, Schedule, check_names
from ..stores import parse_location
from ..text import Chat, Tokenize
from ..text.chat import MarkDropped, can_drop, remove_dropped
from ..text.tokenize import identify_tokenizer, locate_tokenizer, open_tokenizer
from ..types import Ints, Sizer
from .exclude import exclude_rows, read_excluded_rows, require_known_sources
from .horizon import count_distinct_samples, count_pass_samples, limit_rows, limit_samples
from .model import (
    END_TOKENS,
    SHARE_KEYS,
    Chatting,
    MixtureFile,
    Partitioning,
    Shuffling,
    SourceEntry,
    Tokenizing,
)
from .stages import build_stage_schedule
from .stand_ins import StandIns, shorten_run

_READ_KEYS = ("path", "format", "columns", "lengths", "split", "where", "dtype", "eos")


def build(model: MixtureFile, opened: dict[str, Dataset] | None = None) -> Dataset:
    """Build the dataset of a description; open its files, and index them if needed.

    Args:
        model: The description.
        opened: Sources that earlier calls opened, for descriptions of the same files. The call
            adds those that it opens.

    Returns:
        The dataset.

    Raises:
        ConfigError: A source cannot be opened, or settings contradict each other.
        DataError: The data of a source is damaged.
    """
    require_equal_samples(model)
    model, shared = _share(model, build_pack_options(model))
    return _build_dataset(model, shared._replace(opened=opened))


def require_valid_whole(model: MixtureFile, stand_ins: StandIns) -> None:
    """Raise the errors of a mixture as a whole that show without its data.

    Args:
        model: A description whose sources open without reading rows.
        stand_ins: Makes its sources.

    Raises:
        ConfigError: `build` of the description would fail.
    """
    model, shared = _share(model, build_pack_options(model))
    ds = _build_dataset(model, shared._replace(stand_ins=stand_ins))
    if ds.tree.reason_not_indexed is None:
        _ = ds.compiled


def _build_dataset(model: MixtureFile, shared: _SharedResources) -> Dataset:
    require_known_sources(model, shared.excluded_rows)
    mixture = _tell_steps(model, _build_mixture(model, shared))
    _require_whole_stretches(model, shared)
    _require_plan(model, mixture)
    if shared.stand_ins is not None:
        _ = mixture.tree.reason_not_indexed is None and mixture.compiled
        model = shorten_run(model)
    try:
        limited = limit_samples(model, mixture)
    except NoTokensError as error:
        raise _no_tokens("horizon", "the mixture", "horizon: {samples: N}") from error
    _require_tokens(model, mixture)
    if any(map(can_drop, shared.chats.values())):
        limited = limited.map(remove_dropped, may_skip=True)
    return _pack_and_batch(model, limited, shared.pack)


def _require_tokens(model: MixtureFile, mixture: Dataset) -> None:
    """Raise `ConfigError` if the file packs samples, and the first one holds no tokens."""
    if (
        model.pack is None
        or mixture.tree.lengths_known
        or mixture.tree.reason_not_indexed is not None
        or dict(iterate_encodings(model))
    ):
        return
    op = mixture.compiled.op
    if op.size == 0:
        return
    try:
        tokens_of(op.values(op.locate(np.zeros(1, np.int64)))[0], "the mixture")
    except SampleFailure:  # which the run handles, such as by quarantine
        return
    except NoTokensError as error:
        raise ConfigError(f"pack: {describe_no_tokens('the mixture')}") from error


def require_equal_samples(model: MixtureFile) -> None:
    """Raise an error if chats, with loss masks, are packed beside texts, without.

    Args:
        model: The description.

    Raises:
        ConfigError: One source has `chat`, another one `tokenize`, and the file has `pack`.
    """
    names = dict(iterate_encodings(model)) if model.pack is not None else {}
    if {"chat", "tokenize"} <= names.keys():
        raise ConfigError(
            f"pack: {names['chat']!r} has chat, with loss masks, and {names['tokenize']!r} has "
            "tokenize, without: give texts a chat too, which learns all of a field 'text'"
        )


def iterate_encodings(model: MixtureFile, above: str = "") -> Iterator[tuple[str, str]]:
    """Yield "chat" or "tokenize" for each source that is drawn, with its full name.

    Args:
        model: The description.
        above: The start of the names.
    """
    for source in model.sources:
        if source.mixture is not None:
            inner = source.mixture.inside(model)
            yield from iterate_encodings(inner, f"{above}{source.name}/")
        elif not source.zero and (how := source.encoding(model)) is not None:
            yield "chat" if isinstance(how, Chatting) else "tokenize", above + source.name


def find_source_problems(model: MixtureFile) -> dict[str, str]:
    """Open every source by itself, whatever the mixture counts, and return the problems.

    Args:
        model: A description whose sources open without reading rows.

    Returns:
        Full name of a source -> why it does not open, is empty, or has a cap below one sample.
    """
    model, shared = _share(model)
    return dict(_find_source_problems(model, shared, ""))


def _find_source_problems(
    model: MixtureFile, shared: _SharedResources, above: str
) -> Iterator[tuple[str, str]]:
    varies = model.weighs_in_stages or model.schedule or model.groups
    for source in model.sources:
        name = above + source.name
        if source.mixture is not None:
            yield from _find_source_problems(source.mixture.inside(model), shared, f"{name}/")
            continue
        try:
            ds = _open_source(source, model, shared, above)
            split = source.splitting(model)
            is_held_out = split is not None and split.part == "held_out"
            if not (varies or source.zero or (is_held_out and not len(ds))):
                _ = mix({source.name: ds}, max_epochs=model.cap(source)).compiled
        except ConfigError as error:
            yield name, str(error)


class _SharedResources(NamedTuple):
    """Tokenizers, excluded rows, options of packing and parts, shared by all sources of a file."""

    tokenizers: dict[Tokenizing, Tokenize]
    chats: dict[str, Chat]
    excluded_rows: Mapping[str, Ints]
    pack: Mapping[str, Any] | None
    partitions: dict[str, dict[str, Dataset]]
    stand_ins: StandIns | None = None  # of the sources, if no data is read
    opened: dict[str, Dataset] | None = None  # by their settings

    @property
    def sizer(self) -> Sizer | None:
        """Return the size of a sample once it is packed."""
        return size_packed(self.pack)

    def encoder(self, how: Tokenizing | Chatting | None) -> Tokenize | Chat | None:
        """Return what makes the tokens of a source."""
        return self.chat(how) if isinstance(how, Chatting) else how and self.tokenizer(how)

    def chat(self, how: Chatting) -> Chat:
        """Return the chat of these settings; open its tokenizer at its first use."""
        key = repr(how)
        if key not in self.chats:
            self.chats[key] = make_chat(how)
        return self.chats[key]

    def tokenizer(self, how: Tokenizing) -> Tokenize:
        """Return the tokenizer of these settings; open it at its first use."""
        if how not in self.tokenizers:
            require_tokenizer(how.tokenizer)
            self.tokenizers[how] = Tokenize(how.tokenizer, how.field, how.special_tokens)
        return self.tokenizers[how]


def require_tokenizer(name: str) -> None:
    """Open a tokenizer file, so that a broken one is an error before the first text.

    Args:
        name: The tokenizer. Folders are not opened, and names on a hub are not looked up.

    Raises:
        ConfigError: The file cannot be opened.
    """
    if parse_location(name).exists():
        with suppress(ImportError):
            origin = locate_tokenizer(name)
            identity = identify_tokenizer(origin)
            if name.endswith((".json", ".model")):
                open_tokenizer(origin, identity)


def _share(
    model: MixtureFile, pack: Mapping[str, Any] | None = None
) -> tuple[MixtureFile, _SharedResources]:
    """Return the mixture with its partitions expanded, and what its sources share."""
    shared = _SharedResources({}, {}, {}, pack, {})
    model = _expand_partitions(model, shared)
    return model, shared._replace(excluded_rows=read_excluded_rows(model))


def expand_partitions(model: MixtureFile) -> MixtureFile:
    """Return the mixture with each partitioned source as a nested mixture of its parts.

    Args:
        model: The description.

    Raises:
        ConfigError: A source cannot be opened or partitioned.
    """
    return _share(model)[0]


def _expand_partitions(model: MixtureFile, shared: _SharedResources) -> MixtureFile:
    def expand(source: SourceEntry) -> SourceEntry:
        if source.mixture is not None:
            inner = source.mixture.inside(model)
            expanded = _expand_partitions(inner, shared)
            return source if expanded is inner else replace(source, mixture=expanded)
        if source.partition is None or source.partition.input is not None:
            return source
        try:
            return _expand_partition(source, source.partition, _open_parts(source, model, shared))
        except ConfigError as error:
            raise ConfigError(f"source {source.name!r}: {error}") from error

    sources = tuple(map(expand, model.sources))
    return model if sources == model.sources else replace(model, sources=sources)


def _expand_partition(
    source: SourceEntry, partition: Partitioning, names: Iterable[str]
) -> SourceEntry:
    """Return a source as a nested mixture of the parts with these names."""
    names, weights, caps = [*names], partition.weights, partition.max_epochs
    if weights is not None:
        check_names(weights, names, "mix.weights")
    caps_by_name = caps if isinstance(caps, Mapping) else dict[str, float]()
    if unknown := sorted({*caps_by_name} - {*names}):
        known = suggest_names(unknown[0], names) or f"; there are {join_first(names)}"
        raise ConfigError(f"mix.max_epochs names {join_first(unknown)}{known}")
    one = replace(partition, weights=None, temperature=None, max_epochs=None)
    unshared = dict.fromkeys((*SHARE_KEYS, "max_epochs", "loss_weight", "start", "stop", "group"))
    parts = tuple(
        replace(
            source,
            **{
                **unshared,
                "name": name,
                "label": source.label or source.name,
                "partition": replace(one, input=name),
                "weight": None if weights is None else weights[name],
                "max_epochs": caps_by_name.get(name),
                "marks": {},
            },
        )
        for name in names
    )
    cap = None if isinstance(caps, Mapping) else caps
    inner = MixtureFile(parts, temperature=partition.temperature, max_epochs=cap)
    shares = {key: getattr(source, key) for key in unshared}
    return SourceEntry(source.name, mixture=inner, marks=source.marks, **shares)


def make_chat(how: Chatting) -> Chat:
    """Return the chat of these settings.

    Raises:
        ConfigError: The tokenizer or the template cannot be opened, or they do not fit together.
    """
    settings = {each.name: getattr(how, each.name) for each in fields(how)}
    return Chat(settings.pop("tokenizer"), **settings)


def _no_tokens(key: str, name: str, in_samples: str) -> ConfigError:
    """Return the error of a key that counts tokens, over samples without any."""
    return ConfigError(f"{key}: {describe_no_tokens(name, in_samples)}")


def describe_no_tokens(name: str, in_samples: str = "") -> str:
    """Return the message for a key that counts tokens, over samples without any.

    Args:
        name: The source.
        in_samples: The setting that counts samples instead; the key `pack` has none.
    """
    other = f"count samples with '{in_samples}'" if in_samples else "leave out pack"
    return (
        f"counts tokens, and the samples of {name!r} hold none: add 'tokenize: {{tokenizer: "
        f"PATH}}' to the file, or {other}"
    )


def _build_mixture(model: MixtureFile, shared: _SharedResources, above: str = "") -> Dataset:
    try:
        return _mix_sources(model, shared, above)
    except NoTokensError as error:
        if model.unit in TOKEN_UNITS:
            raise _no_tokens("unit", above + error.name, "unit: samples") from error
        counted = "schedule" if model.schedule and model.schedule.unit in TOKEN_UNITS else "tokens"
        in_samples = "schedule: {unit: samples}" if counted == "schedule" else "weight: N"
        raise _no_tokens(counted, above + error.name, in_samples) from error


def _mix_sources(model: MixtureFile, shared: _SharedResources, above: str) -> Dataset:
    model, datasets = _drop_empty(model, _open_sources(model, shared, above))
    caps_by_source = model.group_max_epochs or any(
        source.max_epochs is not None for source in model.sources
    )
    caps = {source.name: cap for source in model.sources if (cap := model.cap(source)) is not None}
    amounts = any(source.tokens or source.epochs for source in model.sources)
    if model.one_source_per and shared.pack and amounts and model.unit != "tokens":
        raise ConfigError(
            "one_source_per: with pack, weights count packed rows, and tokens or epochs of a source "
            "are no number of rows; add 'unit: tokens', or give weights"
        )
    weights = _build_weights(model, datasets, shared.sizer)
    units = {model.unit, weights.unit if isinstance(weights, Schedule) else None}
    return mix(
        datasets,
        weights,
        seed=model.seed or 0,
        block_size=model.block_size or 1,
        stop=model.stop or "restart",
        unit=model.unit or "samples",
        max_epochs=caps if caps_by_source else model.max_epochs,
        temperature=model.temperature if weights is None else None,
        packed=None if "loss_tokens" in units and "tokens" not in units else shared.pack,
        one_source_per=model.one_source_per or 1,
        loss_weights={
            source.name: source.loss_weight
            for source in model.sources
            if source.loss_weight is not None
        },
    )


def _build_weights(
    model: MixtureFile, datasets: Mapping[str, Dataset], sizer: Sizer | None
) -> Mapping[str, float] | Schedule | None:
    """Return the weights, or the schedule, that weights, groups, stages and points define.

    Returns None if the mixture derives them itself (equal weights, or `temperature`).
    """
    if model.schedule and model.schedule.points:
        return build_schedule(model, model.schedule.points)
    if model.weighs_in_stages:
        passes = model.horizon and model.horizon[0] == "epochs"
        run = ("samples", count_pass_samples(model, datasets.values())) if passes else model.run
        relative = _compute_relative_weights(model, datasets, sizer)
        return build_stage_schedule(model, relative, run)
    if model.groups is not None:
        weights = model.grouped(_compute_relative_weights(model, datasets, sizer), model.groups)
    elif model.temperature is not None:
        return None
    else:
        weights = compute_source_weights(model, datasets, sizer)
    if model.schedule or any(
        source.start is not None or source.stop is not None for source in model.sources
    ):
        return build_schedule(model, ((0, weights or dict.fromkeys(model.names, 1.0)),))
    return weights


def _compute_relative_weights(
    model: MixtureFile, datasets: Mapping[str, Dataset], sizer: Sizer | None
) -> dict[str, float]:
    """Return the weight of each source within its group, or within the mixture."""
    if model.temperature is None:
        return model.own_weights()
    sizes = [_count_samples(datasets[name]) for name in model.names]
    lengths = (
        [_measure_mean(name, datasets[name], model.unit, sizer) for name in model.names]
        if model.unit in TOKEN_UNITS
        else None
    )
    return compute_temperature_weights(model.names, sizes, model.temperature, lengths)


def open_in_order(model: MixtureFile) -> Iterator[tuple[str, Dataset]]:
    """Yield every source that makes tokens, with its full name, in the order of its rows.

    A sample that a chat drops is a row with the reason.

    Args:
        model: The description.
    """
    yield from _open_in_order(*_share(model), "")


def _open_in_order(
    model: MixtureFile, shared: _SharedResources, above: str
) -> Iterator[tuple[str, Dataset]]:
    for source in model.sources:
        if source.mixture is not None:
            inner = source.mixture.inside(model)
            yield from _open_in_order(inner, shared, f"{above}{source.name}/")
        elif source.encoding(model) is not None:
            in_order = replace(source, shuffle=Shuffling("none"))
            yield above + source.name, _open_source(in_order, model, shared, above)


def _drop_empty(
    model: MixtureFile, datasets: dict[str, Dataset]
) -> tuple[MixtureFile, dict[str, Dataset]]:
    """Drop sources that are too small to hold anything out, if the held-out part is read."""

    def empty(source: SourceEntry) -> bool:
        split = source.splitting(model) if source.mixture is None else None
        return split is not None and split.part == "held_out" and not len(datasets[source.name])

    sources = tuple(source for source in model.sources if not empty(source))
    if not sources:
        raise ConfigError(
            "nothing is held out: the sources are too small for the share; hold out a larger one"
        )
    return replace(model, sources=sources), {
        source.name: datasets[source.name] for source in sources
    }


def _open_sources(model: MixtureFile, shared: _SharedResources, above: str) -> dict[str, Dataset]:
    """Open all sources; report the problems of all of them at once."""
    datasets, problems = dict[str, Dataset](), list[str]()
    for source in model.sources:
        try:
            datasets[source.name] = _open_source(source, model, shared, above)
        except ConfigError as error:
            problems.append(f"source {source.name!r}: {error}")
    if problems:
        raise ConfigError("\n".join(problems))
    return datasets


def _open_source(
    source: SourceEntry, model: MixtureFile, shared: _SharedResources, above: str
) -> Dataset:
    if source.mixture is not None:
        return _build_mixture(source.mixture.inside(model), shared, f"{above}{source.name}/")
    how = source.shuffle or model.shuffle or Shuffling()
    if (stand_ins := shared.stand_ins) is not None:
        is_known = above + source.name not in stand_ins.unknown
        ds = _open_rows(source, model, shared, above) if is_known else None
        return _apply_shuffle(stand_ins.make(ds, source, model), how)
    ds = _apply_shuffle(_open_rows(source, model, shared, above), how)
    encoder = shared.encoder(source.encoding(model))
    if isinstance(encoder, Chat) and can_drop(encoder):
        return ds.map(MarkDropped(encoder))
    return ds if encoder is None else ds.map(encoder)


def _open_rows(
    source: SourceEntry, model: MixtureFile, shared: _SharedResources, above: str
) -> Dataset:
    """Open the rows of a source that the mixture uses, in order."""
    partition = source.partition
    if partition is None:
        ds = _read_files(source, model, shared)
    else:
        assert partition.input is not None  # other partitions are nested mixtures
        parts = _open_parts(source, model, shared)
        if (ds := parts.get(partition.input)) is None:
            known = suggest_names(partition.input, parts) or f"; there are {join_first(parts)}"
            raise ConfigError(f"there is no input {partition.input!r}{known}")
    if source.slice is not None:
        ds = ds.slice(*source.rows(len(ds)))
    if (split := source.splitting(model)) is not None:
        train, held_out = ds.split(split.held_out, split.by, column=split.column, seed=split.seed)
        ds = held_out if split.part == "held_out" else train
    if source.unique_fraction is not None and not is_whole(source.unique_fraction):
        share = parse_fraction(source.unique_fraction, "unique_fraction: {}")
        ds = Dataset(use_fraction(source.name, ds.tree, share, model.seed or 0))
    if (rows := shared.excluded_rows.get(above + source.name)) is not None:
        if split is not None and split.column is not None:
            raise ConfigError(
                "exclude: rows have no fixed numbers if a column splits the source; filter them with "
                "where"
            )
        ds = exclude_rows(ds, rows)
    return ds


def _read_files(source: SourceEntry, model: MixtureFile, shared: _SharedResources) -> Dataset:
    encoding, lengths = source.encoding(model), source.lengths
    if shared.stand_ins is not None:
        lengths = None
    elif isinstance(encoding, Tokenizing) and encoding.counted:
        if lengths is not None:
            raise ConfigError(
                "lengths names a column, and tokenize counts tokens: remove one of them"
            )
        lengths = shared.tokenizer(encoding)
    settings = [getattr(source, key) for key in _READ_KEYS]
    key = repr((settings, source.label or source.name, encoding, model.cache))
    if shared.opened is not None and key in shared.opened:
        return shared.opened[key]
    ds = read(
        source.path,
        source.format,
        list(source.columns) if source.columns else None,
        source.label or source.name,
        model.cache,
        lengths=lengths,
        split=source.split if isinstance(source.split, str) else None,
        where=source.where,
        dtype=source.dtype,
        eos=source.eos,
    )
    if shared.opened is not None:
        shared.opened[key] = ds
    return ds


def _open_parts(
    source: SourceEntry, model: MixtureFile, shared: _SharedResources
) -> dict[str, Dataset]:
    """Return the parts of a partitioned source; sources of one partition share them."""
    partition = cast("Partitioning", source.partition)
    rest, only = partition.rest, partition.only
    if only is None and rest is None and partition.min_size == 1 and partition.input is not None:
        only = (partition.input,)
    reading = [getattr(source, key) for key in _READ_KEYS]
    reading += [source.label or source.name, source.encoding(model), model.cache]
    key = repr((reading, partition.columns, partition.min_size, rest, only))
    if key not in shared.partitions:
        ds = _read_files(source, model, shared)
        shared.partitions[key] = ds.partition_by(
            partition.columns, min_size=partition.min_size, rest=rest, only=only
        )
    return shared.partitions[key]


def _apply_shuffle(ds: Dataset, how: Shuffling) -> Dataset:
    if how.kind == "none":
        return ds
    block = (how.rows, how.window) if how.rows is not None and how.window is not None else None
    return ds.shuffle(how.seed, block, buckets=how.buckets)


def compute_source_weights(
    model: MixtureFile, datasets: Mapping[str, Dataset], sizer: Sizer | None = None
) -> dict[str, float] | None:
    """Return the weights of the sources, in the unit of the mixture; None if no source has any.

    `sizer` counts the tokens of a sample once it is packed.

    `tokens` and `epochs` are amounts over the run. If all sources have amounts, these are the
    weights. Otherwise the sources with a `weight` share the rest of the horizon.
    """
    amounts = {
        source.name: _compute_amount(source, model, datasets[source.name], sizer)
        for source in model.sources
    }
    fixed_amounts = {name: amount for name, amount in amounts.items() if amount is not None}
    relative_weights = {
        source.name: source.weight for source in model.sources if source.weight is not None
    }
    if not fixed_amounts or not relative_weights:
        return fixed_amounts or relative_weights or None
    unit, horizon = model.run or ("", 0)
    if unit != (model.unit or "samples"):
        raise ConfigError(
            f"the horizon counts {unit}, the weights of the mixture {model.unit or 'samples'}: "
            "give both in one unit "
            "if weights and amounts are combined"
        )
    remaining, total = horizon - fsum(fixed_amounts.values()), fsum(relative_weights.values())
    if remaining < 0:
        raise ConfigError(
            f"the amounts sum to {fsum(fixed_amounts.values()):,.0f} {unit}, more than the horizon of {horizon:,}"
        )
    rest = {
        name: remaining * weight / total if total else 0.0
        for name, weight in relative_weights.items()
    }
    return {
        source.name: fixed_amounts.get(source.name, rest.get(source.name, 0.0))
        for source in model.sources
    }


def _compute_amount(
    source: SourceEntry, model: MixtureFile, ds: Dataset, sizer: Sizer | None
) -> float | None:
    """Return the amount that a source requests over the run, in the unit of the mixture.

    Returns None if the source has a weight instead.
    """
    if source.tokens is None and source.epochs is None:
        return None
    if source.epochs is not None:
        samples = float(Fraction(str(source.epochs)) * _count_samples(ds))
    elif model.unit == "tokens":
        return float(source.tokens or 0)
    else:
        samples = float(source.tokens or 0) / mean_length(source.name, ds.tree, sizer=sizer)
    return samples * _measure_mean(source.name, ds, model.unit, sizer)


def _count_samples(ds: Dataset) -> int:
    """Return the number of samples in a pass; parts and nested mixtures repeat by themselves."""
    return count_distinct_samples(ds) if ds.plan.size is None else len(ds)


def _measure_mean(name: str, ds: Dataset, unit: CountedUnit | None, sizer: Sizer | None) -> float:
    """Return the mean size of a sample of a source, in the unit of the mixture."""
    if unit == "tokens":
        return mean_length(name, ds.tree, sizer=sizer)
    return mean_loss_tokens(name, ds.tree) if unit == "loss_tokens" else 1.0


def build_schedule(
    model: MixtureFile, points: tuple[tuple[float, Mapping[str, float]], ...]
) -> Schedule:
    """Return the schedule of a mixture, in samples or tokens."""
    settings = model.schedule
    start = {source.name: source.start for source in model.sources if source.start is not None}
    stop = {source.name: source.stop for source in model.sources if source.stop is not None}
    unit = settings.unit if settings else "samples"
    schedule = Schedule(points, settings.interpolation if settings else "step", unit, start, stop)
    if unit == "fraction":
        if model.run is None:
            raise ConfigError(
                "schedule: unit 'fraction' counts from the end of the run: add a horizon in steps, "
                "tokens or samples"
            )
        run_unit, length = model.run
        if model.horizon is None or model.horizon[0] != "steps":
            return schedule.resolve_fractions(length, run_unit)
        schedule = replace(schedule.resolve_fractions(int(model.horizon[1])), unit="steps")
    if schedule.unit != "steps":
        return schedule
    places = model.position_at
    return replace(
        schedule,
        points=[(places(step), weights) for step, weights in schedule.points],
        unit=model.unit_of_run,
        start={name: places(step) for name, step in (schedule.start or {}).items()},
        stop={name: places(step) for name, step in (schedule.stop or {}).items()},
    )


def _pack_and_batch(model: MixtureFile, ds: Dataset, pack: Mapping[str, Any] | None) -> Dataset:
    rows, lengths = _build_step_sizes(model)
    if pack:
        options: dict[str, Any] = {**pack, "length": lengths}
        ds = ds.pack(**options)
    ds = limit_rows(model, ds)
    if model.batch:
        collate = list if model.batch.collate == "list" else None
        size: dict[str, Any] = {"global_batch_size" if model.batch.over_ranks else "n": rows}
        ds = ds.batch(**size, drop_remainder=model.batch.drop_remainder, collate=collate)
    return ds


def _build_step_sizes(model: MixtureFile) -> tuple[int | Schedule, int | Schedule]:
    """Return the rows of a global step and the tokens of a row, as `batch` and `pack` take them."""
    steps, rows = model.equal_steps, model.batch.size if model.batch else 1
    lengths = model.pack["length"] if model.pack else 1
    if model.sizes_in_stages or isinstance(rows, Schedule):
        rows = _make_number_schedule([(each.step, each.rows) for each in steps], rows)
    if model.sizes_in_stages or (isinstance(lengths, Schedule) and lengths.unit == "fraction"):
        lengths = _make_number_schedule([(each.step, each.length) for each in steps], lengths)
    return rows, lengths


def _make_number_schedule(numbers: list[tuple[int, int]], given: int | Schedule) -> int | Schedule:
    """Return the schedule of numbers by step; a number that never changes, if it was given as one."""
    changed = [now for before, now in pairwise(numbers) if before[1] != now[1]]
    if not changed and not isinstance(given, Schedule):
        return numbers[0][1]
    return Schedule(dict([numbers[0], *changed]), unit="steps")


def _require_plan(model: MixtureFile, mixture: Dataset) -> None:
    """Raise `ConfigError` if row lengths or batches change, and the mixture cannot plan them."""
    if not model.changes_sizes:
        return
    where = "stages" if model.sizes_in_stages else "pack" if model.pack else "global_batch_size"
    reason = mixture.tree.reason_not_indexed
    if reason is None and model.pack and not mixture.tree.lengths_known:
        reason = (
            "the lengths of the samples are not known beforehand; name a column with lengths, or "
            "add 'counted: true' to tokenize"
        )
    if reason is None and not mixture.tree.is_endless:
        reason = "every source stops at its max_epochs; leave it out for one of them"
    if reason is not None:
        raise ConfigError(f"{where}: row lengths and batches that change are planned, and {reason}")


def _tell_steps(model: MixtureFile, ds: Dataset) -> Dataset:
    """Return the mixture with the rows of a global step, if the file says how many ranks there are."""
    if model.batch is None or not (model.batch.over_ranks or model.batch.ranks > 1):
        return ds
    rows = {each.rows for each in model.equal_steps}
    return ds if len(rows) > 1 else Dataset(with_global_step(ds.tree, rows.pop()))


def _require_whole_stretches(model: MixtureFile, shared: _SharedResources) -> None:
    """Refuse settings that would cut the stretches of one source."""
    if not model.one_source_per:
        return
    if any(map(can_drop, shared.chats.values())):
        raise ConfigError(
            "one_source_per: a chat may drop samples, and rows of one source would lack them; give "
            "it 'untrained: keep', and no max_length or 'truncate: right'"
        )
    if model.pack and model.horizon and model.horizon[0] in ("samples", "epochs"):
        raise ConfigError(
            f"horizon: with one_source_per and pack, the mixture draws packed rows, not samples, so "
            f"{model.horizon[0]} are no length of the run; give steps or tokens"
        )


def build_pack_options(model: MixtureFile) -> dict[str, Any] | None:
    """Return the options of `pack`, with the ids of tokens; None if the file packs no rows."""
    options = dict(model.pack or {})
    if options and model.changes_sizes:
        options["length"] = model.equal_steps[-1].length
    for name in END_TOKENS:
        if name in options:
            options[name] = resolve_token(options[name], model, name)
    return options or None


def resolve_token(token: Any, model: MixtureFile, option: Literal["bos", "eos"]) -> Any:
    """Return the id of a token; look up a text, or the tokenizer's own token (True)."""
    if isinstance(token, Mapping):
        return {name: resolve_token(one, model, option) for name, one in token.items()}  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(token, str) and token is not True:
        return token
    tokenizers = collect_tokenizers(model)
    if len(tokenizers) != 1:
        raise ConfigError(
            f"pack: {option} is {token!r}; a text needs exactly one tokenizer in the "
            "mixture; give the token id"
        )
    tokenize = Tokenize(tokenizers.pop())
    return tokenize.token(token) if isinstance(token, str) else tokenize.special_token(option)


def collect_tokenizers(model: MixtureFile) -> set[str]:
    """Return the tokenizers of a mixture and its sources."""
    users = [model, *(source for _, source in model.iter_sources())]
    encodings = [how for user in users for how in (user.tokenize, user.chat)]
    return {how.tokenizer for how in encodings if isinstance(how, Tokenizing | Chatting)}
