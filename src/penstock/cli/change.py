"""A mixture's description with settings changed, as `NAME=NUMBER` on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from yaml import safe_load

from penstock.engine.base.hints import few, near
from penstock.errors import ConfigError
from penstock.mixture_files import MixtureFile, read_model
from penstock.mixture_files.write import text_of, tree_of


def changed(model: MixtureFile, weights: Sequence[str], caps: Sequence[str]) -> MixtureFile:
    """The description with other weights and caps. New weights replace stages, groups, amounts and
    a temperature.

    >>> from penstock.mixture_files import SourceEntry
    >>> model = MixtureFile((SourceEntry("a", weight=1.0), SourceEntry("b", weight=1.0)))
    >>> changed(model, ["a=3"], []).shares()
    {'a': 0.75, 'b': 0.25}
    """
    groups = model.groups or {}
    new, limits = (
        _numbers(model, "--weight", weights),
        _numbers(model, "--max-epochs", caps, [*groups]),
    )
    if of_groups := {name: limits.pop(name) for name in groups if name in limits}:
        for source in (
            model.sources
        ):  # a cap given here wins over one that the file gives to a source of the group
            if source.group in of_groups:
                limits.setdefault(source.name, of_groups[source.group])
    sources = [
        replace(source, max_epochs=limits.get(source.name, source.max_epochs))
        for source in model.sources
    ]
    if new:
        by_group = replace(model, max_epochs=None)
        kept_caps = [by_group.cap(source) for source in sources]
        plain = model.shares()
        if plain is None and (missing := [name for name in model.names if name not in new]):
            raise ConfigError(
                f"--weight: {', '.join(missing[:5])} have none, as the file's weights come from a "
                "schedule, amounts or "
                "sizes; give one for every source"
            )
        kept = {
            source.name: source.weight if source.weight is not None else 1.0
            for source in model.sources
        }
        kept |= model.grouped(model.own_weights(), model.groups) if model.groups and plain else {}
        sources = [
            replace(
                source,
                weight=new.get(source.name, kept[source.name]),
                tokens=None,
                epochs=None,
                group=None,
            )
            for source in sources
        ]
        sources = [
            replace(source, max_epochs=cap) for source, cap in zip(sources, kept_caps, strict=True)
        ]
        model = replace(
            model, schedule=None, temperature=None, stages=(), groups=None, group_max_epochs=None
        )
    return replace(model, sources=tuple(sources))


def changed_by(model: MixtureFile, given: Sequence[str]) -> MixtureFile:
    """The description with settings set by their place, as `stages.anneal.weights.math=30`.

    >>> from penstock.mixture_files import SourceEntry
    >>> model = MixtureFile((SourceEntry("a", path=("a.jsonl",), weight=1.0),), horizon=("steps", 300))
    >>> found = changed_by(model, ["horizon.steps=400", "sources.a.max_epochs=2", "batch={size: 8}"])
    >>> found.horizon, found.sources[0].max_epochs, found.batch.size
    (('steps', 400), 2, 8)
    """
    if not given:
        return model
    with TemporaryDirectory() as folder:
        path, tree = Path(folder) / "changed.yaml", tree_of(model, Path(folder))
        for text in given:
            key, sign, value = text.partition("=")
            if not sign or not key:
                raise ConfigError(
                    f"--set {text}: write PLACE=VALUE, such as stages.anneal.weights.math=30"
                )
            *above, last = key.split(".")
            inside = tree
            for name in above:
                inside = _inside(inside, name, text)
            _put(inside, last, safe_load(value), text)
        path.write_text(text_of(tree), encoding="utf-8")
        found, problems = read_model(path)
    errors = [problem for problem in problems if problem.severity == "error"]
    if found is None or errors:
        raise ConfigError(
            "--set: " + "; ".join(f"{problem.key}: {problem.message}" for problem in errors)
        )
    return found


def _inside(tree: object, name: str, text: str) -> Any:
    """What a place holds: of a mapping by name, of a list by number from 1 on, or by the name of a
    stage."""
    if isinstance(tree, dict):
        table = cast("dict[Any, Any]", tree)
        names = {str(key): key for key in table}
        if name in names:
            return table[names[name]]
        hint = near(name, names) or f"; there are {few(names)}"
        raise ConfigError(f"--set {text}: there is no {name!r}{hint}")
    listed: list[Any] = cast("list[Any]", tree) if isinstance(tree, list) else []
    for number, one in enumerate(listed, 1):
        if name == str(number) or (isinstance(one, dict) and cast(Any, one).get("name") == name):
            return cast(Any, one)
    raise ConfigError(f"--set {text}: there is no {name!r}")


def _put(tree: object, name: str, value: Any, text: str) -> None:
    if not isinstance(tree, dict):
        raise ConfigError(f"--set {text}: {name!r} has no place there")
    names, table = (
        {str(key): key for key in cast("dict[Any, Any]", tree)},
        cast("dict[Any, Any]", tree),
    )
    if value is None:
        table.pop(names.get(name, name), None)
    else:
        table[names.get(name, name)] = value


def _numbers(
    model: MixtureFile, option: str, given: Sequence[str], groups: Sequence[str] = ()
) -> dict[str, float]:
    out, known = dict[str, float](), [*model.names, *groups]
    for text in given:
        name, sign, number = text.rpartition("=")
        if not sign:
            raise ConfigError(f"{option} {text}: write NAME=NUMBER")
        if name not in known:
            hint = near(name, known) or f"; it has {few(known)}"
            kind = "source or group" if groups else "source"
            raise ConfigError(f"{option} {text}: the mixture has no {kind} {name!r}{hint}")
        try:
            out[name] = float(number)
        except ValueError:
            raise ConfigError(f"{option} {text}: {number!r} is no number") from None
    return out
