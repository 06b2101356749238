"""From the description of a mixture to the dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from math import fsum
from typing import Any, Literal, NamedTuple

from ..dataset import Dataset
from ..engine.graph.lengths import mean_length
from ..engine.mixing.asking import tempered
from ..errors import ConfigError
from ..inputs import mix, read
from ..schedule import Schedule
from ..text import Tokenise
from ..types import Ints
from .exclude import left_out, without
from .horizon import drawn, ended, samples_of_passes
from .model import MixtureFile, Shuffling, SourceEntry, Tokenising
from .stages import staged

ENDS: tuple[Literal["bos"], Literal["eos"]] = ("bos", "eos")
"""Tokens before and behind documents that are packed."""


def build(model: MixtureFile) -> Dataset:
    """The dataset that a description means; files are opened, and indexed where they need it.

    Raises `ConfigError` or `DataError` with the source's name where it cannot be made.
    """
    return _finished(model, drawn(model, _mixture(model, _Shared({}, left_out(model)))))


class _Shared(NamedTuple):
    """What all sources of a file have in common: tokenizers, and the rows that are left out, by
    source."""

    tokenisers: dict[Tokenising, Tokenise]
    left_out: Mapping[str, Ints]

    def tokeniser(self, how: Tokenising) -> Tokenise:
        if how not in self.tokenisers:
            self.tokenisers[how] = Tokenise(how.tokenizer, how.field, how.special_tokens)
        return self.tokenisers[how]


def _mixture(model: MixtureFile, shared: _Shared, above: str = "") -> Dataset:
    model, datasets = _not_empty(model, _opened(model, shared, above))
    own = model.group_max_epochs or any(source.max_epochs is not None for source in model.sources)
    caps = {source.name: cap for source in model.sources if (cap := model.cap(source)) is not None}
    weights = _weights(model, datasets)
    return mix(
        datasets,
        weights,
        seed=model.seed or 0,
        block_size=model.block_size or 1,
        stop=model.stop or "restart",
        unit=model.unit or "samples",
        max_epochs=caps if own else model.max_epochs,
        temperature=model.temperature if weights is None else None,
    )


def _weights(
    model: MixtureFile, datasets: Mapping[str, Dataset]
) -> Mapping[str, float] | Schedule | None:
    """What the weights, groups, stages and points of a file mean; `None` where they are left to the
    mixture."""
    if model.schedule and model.schedule.points:
        return schedule_of(model, model.schedule.points)
    if model.stages:
        passes = model.horizon and model.horizon[0] == "epochs"
        run = ("samples", samples_of_passes(model, datasets.values())) if passes else model.run
        return staged(model, _inner(model, datasets), run)
    if model.groups is not None:
        weights = model.grouped(_inner(model, datasets), model.groups)
    elif model.temperature is not None:
        return None
    else:
        weights = weights_of(model, datasets)
    if model.schedule or any(
        source.start is not None or source.stop is not None for source in model.sources
    ):
        return schedule_of(model, ((0, weights or dict.fromkeys(model.names, 1.0)),))
    return weights


def _inner(model: MixtureFile, datasets: Mapping[str, Dataset]) -> dict[str, float]:
    """The weights of sources beside those of their group, or of the mixture."""
    if model.temperature is None:
        return model.own_weights()
    sizes = [len(datasets[name]) for name in model.names]
    by_tokens = model.unit == "tokens"
    lengths = [_tokens_each(name, datasets[name]) for name in model.names] if by_tokens else None
    return tempered(model.names, sizes, model.temperature, lengths)


def _not_empty(
    model: MixtureFile, datasets: dict[str, Dataset]
) -> tuple[MixtureFile, dict[str, Dataset]]:
    """Without the sources that are too small to have anything held out, where that is what is
    read."""

    def empty(source: SourceEntry) -> bool:
        split = source.splitting(model) if source.mixture is None else None
        return split is not None and split.part == "held_out" and not len(datasets[source.name])

    kept = tuple(source for source in model.sources if not empty(source))
    if not kept:
        raise ConfigError("nothing is held out: the sources are too small for the share")
    return replace(model, sources=kept), {source.name: datasets[source.name] for source in kept}


def _opened(model: MixtureFile, shared: _Shared, above: str) -> dict[str, Dataset]:
    """The sources; all that is wrong with them is said at once."""
    found, wrong = dict[str, Dataset](), list[str]()
    for source in model.sources:
        try:
            found[source.name] = _source(source, model, shared, above)
        except ConfigError as error:
            wrong.append(f"source {source.name!r}: {error}")
    if wrong:
        raise ConfigError("\n".join(wrong))
    return found


def _source(source: SourceEntry, model: MixtureFile, shared: _Shared, above: str) -> Dataset:
    if source.mixture is not None:
        return _mixture(source.mixture.inside(model), shared, f"{above}{source.name}/")
    how = source.tokenise or model.tokenise
    tokenise = None if how is None else shared.tokeniser(how)
    counted = how is not None and how.counted
    if counted and source.lengths is not None:
        raise ConfigError(
            "lengths names a column, and tokenise counts tokens: leave one of them out"
        )
    ds = read(
        source.path,
        source.format,
        list(source.columns) if source.columns else None,
        source.label or source.name,
        model.cache,
        lengths=tokenise if counted else source.lengths,
        split=source.split if isinstance(source.split, str) else None,
        where=source.where,
        dtype=source.dtype,
        eos=source.eos,
    )
    if source.slice is not None:
        ds = ds.slice(*source.rows(len(ds)))
    if (split := source.splitting(model)) is not None:
        train, held_out = ds.split(split.held_out, split.by, column=split.column, seed=split.seed)
        ds = held_out if split.part == "held_out" else train
    if (rows := shared.left_out.get(above + source.name)) is not None:
        if split is not None and split.column is not None:
            raise ConfigError(
                "exclude: what a column splits is numbered part by part; leave rows out of it by "
                "where"
            )
        ds = without(ds, rows)
    ds = _shuffled(ds, source.shuffle or model.shuffle or Shuffling())
    return ds if tokenise is None else ds.map(tokenise)


def _shuffled(ds: Dataset, how: Shuffling) -> Dataset:
    if how.kind == "none":
        return ds
    block = (how.rows, how.window) if how.rows is not None and how.window is not None else None
    return ds.shuffle(how.seed, block, buckets=how.buckets)


def weights_of(model: MixtureFile, datasets: Mapping[str, Dataset]) -> dict[str, float] | None:
    """The weights that the shares mean, in the unit of the mixture; `None` where no source has a
    share.

    `tokens` and `epochs` are amounts over the run. Where only amounts are given they are the
    weights themselves; beside them, sources with a `weight` share what the horizon leaves.
    """
    amounts = {
        source.name: _amount(source, model, datasets[source.name]) for source in model.sources
    }
    fixed = {name: amount for name, amount in amounts.items() if amount is not None}
    plain = {source.name: source.weight for source in model.sources if source.weight is not None}
    if not fixed or not plain:
        return fixed or plain or None
    unit, horizon = model.run or ("", 0)
    if unit != (model.unit or "samples"):
        raise ConfigError(
            f"the horizon counts {unit}, the weights of the mixture {model.unit or 'samples'}: "
            "give both in one unit, "
            "as weights and amounts together need"
        )
    left, total = horizon - fsum(fixed.values()), fsum(plain.values())
    if left < 0:
        raise ConfigError(
            f"the amounts come to {fsum(fixed.values()):,.0f} {unit}, the horizon is {horizon:,}"
        )
    rest = {name: left * weight / total if total else 0.0 for name, weight in plain.items()}
    return {
        source.name: fixed.get(source.name, rest.get(source.name, 0.0)) for source in model.sources
    }


def _amount(source: SourceEntry, model: MixtureFile, ds: Dataset) -> float | None:
    """What a source asks for over the run, in the unit of the mixture; `None` where it has a
    weight."""
    if source.tokens is None and source.epochs is None:
        return None
    by_tokens = model.unit == "tokens"
    if source.epochs is not None:
        rows = float(Fraction(str(source.epochs)) * len(ds))
        return rows * _tokens_each(source.name, ds) if by_tokens else rows
    tokens = float(source.tokens or 0)
    return tokens if by_tokens else tokens / _tokens_each(source.name, ds)


def _tokens_each(name: str, ds: Dataset) -> float:
    """Tokens per sample, as the mixture itself finds them."""
    return mean_length(name, ds.flow)


def schedule_of(
    model: MixtureFile, points: tuple[tuple[int, Mapping[str, float]], ...]
) -> Schedule:
    """The schedule of a mixture, in samples or tokens."""
    asked = model.schedule
    start = {source.name: source.start for source in model.sources if source.start is not None}
    stop = {source.name: source.stop for source in model.sources if source.stop is not None}
    unit = asked.unit if asked else "samples"
    made = Schedule(points, asked.interpolation if asked else "step", unit, start, stop)
    if unit != "steps":
        return made
    counts, size = model.per_step
    return replace(made.in_samples(size), unit=counts)


def _finished(model: MixtureFile, ds: Dataset) -> Dataset:
    if model.pack:
        options = dict(model.pack)
        for name in ENDS:
            if name in options:
                options[name] = token_of(options[name], model, name)
        ds = ds.pack(**options)
    ds = ended(model, ds)
    if model.batch:
        collate = list if model.batch.collate == "list" else None
        size = {"global_batch_size" if model.batch.over_ranks else "n": model.batch.size}
        ds = ds.batch(**size, drop_remainder=model.batch.drop_remainder, collate=collate)
    return ds


def token_of(token: Any, model: MixtureFile, option: Literal["bos", "eos"]) -> Any:
    """The number of a token: a text, or the tokenizer's own, is looked up in the tokenizer."""
    if isinstance(token, Mapping):
        return {name: token_of(one, model, option) for name, one in token.items()}  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(token, str) and token is not True:
        return token
    known = tokenizers_of(model)
    if len(known) != 1:
        raise ConfigError(
            f"pack: {option} is {token!r}; the mixture has no one tokenise that would know its "
            "number"
        )
    tokenise = Tokenise(known.pop())
    return tokenise.token(token) if isinstance(token, str) else tokenise.own(option)


def tokenizers_of(model: MixtureFile) -> set[str]:
    """The tokenizers of a mixture and its sources."""
    known = {
        source.tokenise.tokenizer for _, source in model.leaves() if source.tokenise is not None
    }
    return known | ({model.tokenise.tokenizer} if model.tokenise is not None else set())
