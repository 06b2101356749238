"""A mixture's description with settings changed, as `NAME=NUMBER` on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.base.hints import few, near
from penstock.errors import ConfigError
from penstock.mixture_files import MixtureFile


def changed(model: MixtureFile, weights: Sequence[str], caps: Sequence[str]) -> MixtureFile:
    """The description with other weights and caps. New weights replace stages, groups, amounts and a temperature.

    >>> from penstock.mixture_files import SourceEntry
    >>> model = MixtureFile((SourceEntry("a", weight=1.0), SourceEntry("b", weight=1.0)))
    >>> changed(model, ["a=3"], []).shares()
    {'a': 0.75, 'b': 0.25}
    """
    new, limits = _numbers(model, "--weight", weights), _numbers(model, "--max-epochs", caps)
    sources = [replace(source, max_epochs=limits.get(source.name, source.max_epochs)) for source in model.sources]
    if new:
        plain = model.shares()
        if plain is None and (missing := [name for name in model.names if name not in new]):
            raise ConfigError(
                f"--weight: {', '.join(missing[:5])} have none, as the file's weights come from a schedule, amounts or "
                "sizes; give one for every source"
            )
        kept = {source.name: source.weight if source.weight is not None else 1.0 for source in model.sources}
        kept |= model.grouped(model.own_weights(), model.groups) if model.groups and plain else {}
        sources = [
            replace(source, weight=new.get(source.name, kept[source.name]), tokens=None, epochs=None, group=None)
            for source in sources
        ]
        model = replace(model, schedule=None, temperature=None, stages=(), groups=None)
    return replace(model, sources=tuple(sources))


def _numbers(model: MixtureFile, option: str, given: Sequence[str]) -> dict[str, float]:
    out = dict[str, float]()
    for text in given:
        name, sign, number = text.rpartition("=")
        if not sign:
            raise ConfigError(f"{option} {text}: write NAME=NUMBER")
        if name not in model.names:
            hint = near(name, model.names) or f"; it has {few(model.names)}"
            raise ConfigError(f"{option} {text}: the mixture has no source {name!r}{hint}")
        try:
            out[name] = float(number)
        except ValueError:
            raise ConfigError(f"{option} {text}: {number!r} is no number") from None
    return out
