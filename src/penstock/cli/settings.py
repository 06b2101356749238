"""Changes of a mixture file's settings, given as `NAME=NUMBER` or `KEY=VALUE` options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from penstock.arguments import join_first, suggest_names
from penstock.errors import ConfigError
from penstock.mixture_files import MixtureFile
from penstock.mixture_files.check import parse_tree
from penstock.mixture_files.reading import MixtureNode, ProblemLog, read_text
from penstock.mixture_files.write import convert_model, format_yaml
from penstock.stores import is_remote
from penstock.stores.urls import redact_urls


def override_weights(
    model: MixtureFile, weights: Sequence[str], caps: Sequence[str]
) -> MixtureFile:
    """Return the mixture with other weights and caps.

    New weights are those of the sources' own `weight:`, relative to a group, and before stages that
    set others. If weights derive from a schedule, a temperature or amounts, new ones for every
    source replace these.

    >>> from penstock.mixture_files import SourceEntry
    >>> model = MixtureFile((SourceEntry("a", weight=1.0), SourceEntry("b", weight=1.0)))
    >>> override_weights(model, ["a=3"], []).shares()
    {'a': 0.75, 'b': 0.25}
    """
    groups = model.groups or {}
    new_weights, new_caps = (
        _parse_numbers(model, "--weight", weights),
        _parse_numbers(model, "--max-epochs", caps, [*groups]),
    )
    for name, cap in new_caps.items():
        if not cap > 0:  # the file's own caps are checked where it is read
            raise ConfigError(
                f"--max-epochs {name}={cap:g}: give a number above 0; --weight {name}=0 leaves the "
                "source out"
            )
    if group_caps := {name: new_caps.pop(name) for name in groups if name in new_caps}:
        # A cap from the command line overrides the caps of the group's sources in the file.
        for source in model.sources:
            if source.group in group_caps:
                new_caps.setdefault(source.name, group_caps[source.group])
    sources = [
        replace(source, max_epochs=new_caps.get(source.name, source.max_epochs))
        for source in model.sources
    ]
    if new_weights and (
        model.schedule is not None
        or model.temperature is not None
        or any(source.tokens or source.epochs for source in sources)
    ):
        if missing := [name for name in model.names if name not in new_weights]:
            raise ConfigError(
                f"--weight: the file derives weights from a schedule, a temperature or amounts; "
                f"give a weight for every source ({', '.join(missing[:5])} have none), or change "
                "the file's own settings by --set"
            )
        cap_of = replace(model, max_epochs=None).cap
        sources = [
            replace(source, tokens=None, epochs=None, group=None, max_epochs=cap_of(source))
            for source in sources
        ]
        no_groups = {"groups": None, "group_max_epochs": None}
        model = replace(model, schedule=None, temperature=None, **no_groups)
    if new_weights:
        sources = [
            replace(
                source,
                weight=new_weights.get(
                    source.name, 1.0 if source.weight is None else source.weight
                ),
            )
            for source in sources
        ]
    return replace(model, sources=tuple(sources))


def override_settings(
    model: MixtureFile, settings: Sequence[str], file: Path = Path("mixture.yaml")
) -> MixtureFile:
    """Return the mixture with settings changed by key, such as `stages.anneal.weights.math=30`.

    Args:
        model: the mixture.
        settings: `KEY=VALUE` options; values are written as in a mixture file.
        file: the mixture file; new paths are relative to its folder.

    >>> from penstock.mixture_files import SourceEntry
    >>> model = MixtureFile((SourceEntry("a", path=("a.jsonl",), weight=1.0),), horizon=("steps", 300))
    >>> new = override_settings(model, ["horizon.steps=400", "sources.a.max_epochs=2", "batch={size: 8}"])
    >>> new.horizon, new.sources[0].max_epochs, new.batch.size
    (('steps', 400), 2, 8)
    """
    if not settings:
        return model
    folder = Path.cwd() if is_remote(file) else file.absolute().parent
    path, tree = folder / "changed.yaml", convert_model(model, folder)
    for setting in settings:
        (key, sign, value), text = setting.partition("="), redact_urls(setting)
        if not sign or not key:
            raise ConfigError(
                f"--set {text}: write KEY=VALUE, such as stages.anneal.weights.math=30"
            )
        *parents, last = key.split(".")
        if key == "include":
            raise ConfigError(f"--set {text}: files are included by the mixture file alone")
        parent = tree
        for name in parents:
            parent = _get_child(parent, name, text)
        _set_key(parent, last, _parse_value(value, text), text)
    notes = ProblemLog()
    node = read_text(format_yaml(tree), str(path), notes)
    new_model = None if node is None else parse_tree(node, path, notes)
    if new_model is None or any(problem.severity == "error" for problem in notes.problems):
        raise ConfigError(f"--set: {_join_errors(notes)}")
    return new_model


def _parse_value(value: str, text: str) -> Any:
    """Return the value of an option, by the rules of mixture files; None if it is empty."""
    if not value.strip():
        return None
    notes = ProblemLog()
    node = read_text(value, "--set", notes, variables=False)
    if node is None or notes.problems:
        raise ConfigError(f"--set {text}: {_join_errors(notes)}")
    return _convert_node(node)


def _convert_node(node: MixtureNode) -> Any:
    if isinstance(node.value, dict):
        return {name: _convert_node(child) for name, child in node.value.items()}
    if isinstance(node.value, tuple):
        return [_convert_node(child) for child in node.value]
    return node.value


def _join_errors(notes: ProblemLog) -> str:
    return "; ".join(
        f"{problem.key}: {problem.message}" if problem.key else problem.message
        for problem in sorted(notes.problems)
        if problem.severity == "error"
    )


def _get_child(tree: object, name: str, text: str) -> Any:
    """Return the child of a mapping by key, or of a list by number (from 1) or by stage name."""
    if isinstance(tree, dict):
        table = cast("dict[Any, Any]", tree)
        names = {str(key): key for key in table}
        if name in names:
            return table[names[name]]
        hint = suggest_names(name, names) or f"; there are {join_first(names)}"
        raise ConfigError(f"--set {text}: there is no key {name!r}{hint}")
    items: list[Any] = cast("list[Any]", tree) if isinstance(tree, list) else []
    for number, item in enumerate(items, 1):
        if name == str(number) or (isinstance(item, dict) and cast(Any, item).get("name") == name):
            return cast(Any, item)
    raise ConfigError(f"--set {text}: there is no key {name!r}")


def _set_key(tree: object, name: str, value: Any, text: str) -> None:
    """Set a key of a mapping; the value None deletes the key."""
    if not isinstance(tree, dict):
        raise ConfigError(
            f"--set {text}: {name!r} cannot be set there, since its parent is no mapping"
        )
    keys, mapping = (
        {str(key): key for key in cast("dict[Any, Any]", tree)},
        cast("dict[Any, Any]", tree),
    )
    if value is None:
        mapping.pop(keys.get(name, name), None)
    else:
        mapping[keys.get(name, name)] = value


def _parse_numbers(
    model: MixtureFile, option: str, texts: Sequence[str], groups: Sequence[str] = ()
) -> dict[str, float]:
    """Parse `NAME=NUMBER` options; names must be sources or groups of the mixture."""
    numbers, known = dict[str, float](), [*model.names, *groups]
    for text in texts:
        name, sign, number = text.rpartition("=")
        if not sign:
            raise ConfigError(f"{option} {text}: write NAME=NUMBER")
        if name not in known:
            hint = suggest_names(name, known) or f"; it has {join_first(known)}"
            kind = "source or group" if groups else "source"
            raise ConfigError(f"{option} {text}: the mixture has no {kind} {name!r}{hint}")
        try:
            numbers[name] = float(number)
        except ValueError:
            raise ConfigError(f"{option} {text}: {number!r} is not a number") from None
    return numbers
