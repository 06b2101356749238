"""Metadatasets: YAML files that name datasets, how they are blended, and how they are split. Only
data is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, cast

from ...engine.base.urls import without_secrets
from ...errors import ConfigError
from ...sources import meta
from ...sources.prepared import is_prepared

Bound = tuple[Fraction, bool]
"""A bound of a range: a share of the samples (True), or a number of them."""


@dataclass(frozen=True)
class Leaf:
    """A reference to one dataset. `ranges` are applied one after the other, the innermost first."""

    path: Path
    split_part: str
    subflavors: Mapping[str, Any] = field(default_factory=dict[str, Any])
    dataset_config: str = "dataset.yaml"
    split_config: str | None = None
    multiplier: int | None = 1
    ranges: tuple[tuple[Bound, Bound | None], ...] = ()


@dataclass(frozen=True)
class Blend:
    """Parts drawn from by weight; or, `epochized`, each as many times a pass as its number says."""

    parts: tuple[tuple[Tree, float], ...]
    epochized: bool
    where: str


Tree = Leaf | Blend

_REFERENCE = {
    "path", "split_part", "subflavor", "subflavors", "dataset_config", "split_config", "subset",
    "shuffle_over_epochs_multiplier", "weight", "repetitions", "blend", "blend_epochized",
}  # fmt: skip
_LATER = {
    "join": "joining datasets by their keys",
    "aux": "auxiliary data",
    "joiner": "joining datasets by their keys",
}


def parse(path: Any, base: Leaf) -> Tree:
    """What a path (or a metadataset as a mapping) stands for: one dataset, or a tree of blends."""
    if isinstance(path, Mapping):
        return _File("the metadataset", Path(), cast("Mapping[str, Any]", path)).tree(base)
    where = Path(path).expanduser()
    if where.suffix in (".yaml", ".yml"):
        if not where.is_file():
            raise ConfigError(f"{where}: no such file")
        return _File(str(where), where.parent, meta.mapping(meta.read(where), where)).tree(base)
    if where.suffix == ".jsonl" or is_prepared(where):
        return replace(base, path=where)
    raise ConfigError(
        f"{where} is no prepared dataset, no .jsonl file and no metadataset: `energon prepare` "
        "makes a folder of tars one; read other files by ps.read, and give that dataset in place "
        "of the path"
    )


def leaves(tree: Tree) -> list[Leaf]:
    """All datasets of a tree, in order."""
    return (
        [tree]
        if isinstance(tree, Leaf)
        else [leaf for part, _ in tree.parts for leaf in leaves(part)]
    )


@dataclass(frozen=True)
class _File:
    """One metadataset, whose relative paths are those of its own folder."""

    name: str
    folder: Path
    found: Mapping[str, Any]

    def tree(self, base: Leaf) -> Tree:
        kind = str(self.found.get("__class__", "Metadataset"))
        if kind not in ("Metadataset", "MetadatasetV2"):
            raise ConfigError(
                f"{self.name}: a {kind} is not known; Metadataset and MetadatasetV2 are"
            )
        self._only(self.found, {"__module__", "__class__", "splits"}, "")
        splits = self._mapping(self.found.get("splits"), "splits")
        if base.split_part not in splits:
            raise ConfigError(
                f"{self.name}: there is no split {base.split_part!r}; there are {', '.join(splits)}"
            )
        where = f"splits.{base.split_part}"
        split = self._mapping(splits[base.split_part], where)
        if kind == "MetadatasetV2":
            return self._reference(split, base, where)
        self._only(split, {"datasets"}, where)
        return self._blend({"blend": split.get("datasets")}, "blend", base, where)

    def _reference(self, found: Mapping[str, Any], base: Leaf, where: str) -> Tree:
        """One entry: a path, or a blend in place."""
        self._only(found, _REFERENCE, where)
        if found.get("split_part") is not None:
            base = replace(base, split_part=str(found["split_part"]))
        for name in ("dataset_config", "split_config"):
            if found.get(name) is not None:
                base = replace(base, **{name: str(found[name])})
        # What is said outside goes over what is said inside.
        inner = self._mapping(found.get("subflavors") or {}, f"{where}.subflavors")
        if found.get("subflavor") is not None:  # one label, as old files have it
            inner = {"__subflavor__": found["subflavor"], **inner}
        base = replace(base, subflavors={**inner, **base.subflavors})
        if "shuffle_over_epochs_multiplier" in found:
            base = replace(base, multiplier=self._multiplied(base.multiplier, found, where))
        if found.get("subset") is not None:
            base = replace(
                base, ranges=(self._range(found["subset"], f"{where}.subset"), *base.ranges)
            )
        which = [
            name for name in ("path", "blend", "blend_epochized") if found.get(name) is not None
        ]
        if len(which) != 1:
            raise ConfigError(
                f"{self.name}, {where}: one of path, blend and blend_epochized, not "
                f"{which or 'none'}"
            )
        if which != ["path"]:
            self._relative(base, where)
            return self._blend(found, cast(Any, which[0]), base, where)
        path = str(found["path"])
        if "://" in path:
            raise ConfigError(
                f"{self.name}, {where}: {without_secrets(path)} is not on this machine, and cannot "
                "be read yet"
            )
        try:
            tree = parse(self.folder / Path(path).expanduser(), base)
        except ConfigError as error:
            raise ConfigError(f"{self.name}, {where}: {error}") from error
        if isinstance(tree, Blend):
            self._relative(base, where)
        return tree

    def _relative(self, base: Leaf, where: str) -> None:
        """Numbers of samples count those of one dataset."""
        if any(
            not share for bounds in base.ranges for _, share in (bound for bound in bounds if bound)
        ):
            raise ConfigError(
                f"{self.name}, {where}: a subset of several datasets is given in percent; numbers "
                "of samples are allowed for one dataset only"
            )

    def _blend(
        self,
        found: Mapping[str, Any],
        kind: Literal["blend", "blend_epochized"],
        base: Leaf,
        where: str,
    ) -> Blend:
        number, entries = (
            {"blend": "weight", "blend_epochized": "repetitions"}[kind],
            found.get(kind),
        )
        if not isinstance(entries, list) or not entries:
            raise ConfigError(f"{self.name}, {where}: {kind} must be a list of datasets")
        parts = list[tuple[Tree, float]]()
        for i, entry in enumerate(cast("list[Any]", entries)):
            at = f"{where}.{kind}[{i}]"
            one = self._mapping(entry, at)
            other = {"weight": "repetitions", "repetitions": "weight"}[number]
            if other in one:
                raise ConfigError(
                    f"{self.name}, {at}: {other} has no meaning in a {kind}; give {number}"
                )
            share = one.get(number, 1)
            if (
                isinstance(share, bool)
                or not isinstance(share, int | float)
                or not 0 < share < float("inf")
            ):
                raise ConfigError(f"{self.name}, {at}: {number} is {share!r}; a number above 0")
            parts.append((self._reference(one, base, at), share))
        return Blend(tuple(parts), kind == "blend_epochized", f"{self.name}, {where}")

    def _multiplied(self, outer: int | None, found: Mapping[str, Any], where: str) -> int | None:
        own = found["shuffle_over_epochs_multiplier"]
        if own is None or outer is None:
            return None
        if isinstance(own, bool) or not isinstance(own, int) or (own < 1 and own != -1):
            raise ConfigError(
                f"{self.name}, {where}: shuffle_over_epochs_multiplier is {own!r}; 1 or more, or "
                "null"
            )
        return -1 if -1 in (own, outer) else own * outer

    def _range(self, found: Any, where: str) -> tuple[Bound, Bound | None]:
        """Start and stop; a stop of None is the end."""
        inner = self._mapping(found, where)
        self._only(inner, {"range"}, where)
        bounds = inner.get("range")
        if not isinstance(bounds, list) or len(cast("list[Any]", bounds)) != 2:
            raise ConfigError(
                f"{self.name}, {where}: range is a list of two, such as [0%, 80%] or [100, end]"
            )
        start, stop = cast("Sequence[Any]", bounds)
        return self._bound(start, where), None if stop == "end" else self._bound(stop, where)

    def _bound(self, found: Any, where: str) -> Bound:
        text = str(found).strip()
        try:
            bound = (
                (Fraction(text[:-1]) / 100, True)
                if text.endswith("%")
                else (Fraction(int(text)), False)
            )
        except ValueError:
            bound = (Fraction(-1), False)
        if bound[0] < 0 or (bound[1] and bound[0] > 1):
            raise ConfigError(
                f"{self.name}, {where}: {found!r} is no bound; give 0% to 100%, a number, or 'end'"
            )
        return bound

    def _mapping(self, found: Any, where: str) -> Mapping[str, Any]:
        if not isinstance(found, Mapping):
            raise ConfigError(
                f"{self.name}, {where}: must be a mapping, it is a {type(found).__name__}"
            )
        return {str(key): value for key, value in cast("Mapping[Any, Any]", found).items()}

    def _only(self, found: Mapping[str, Any], known: set[str], where: str) -> None:
        for name in found:
            if name in _LATER:
                raise ConfigError(
                    f"{self.name}, {where}: {name!r} ({_LATER[name]}) is not supported yet"
                )
            if name not in known:
                raise ConfigError(f"{self.name}, {where or 'at the top'}: unknown key {name!r}")
