"""Metadatasets: YAML files that name datasets, blends and splits.

Only data is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, cast

from ...errors import ConfigError
from ...sources import meta
from ...sources.prepared import is_prepared
from ...stores import parse_location

Bound = tuple[Fraction, bool]
"""A bound of a range, and whether it is a fraction of the samples instead of a count."""


@dataclass(frozen=True)
class DatasetReference:
    """A reference to one dataset; `ranges` apply in order, the innermost first."""

    path: Path
    split_part: str
    subflavors: Mapping[str, Any] = field(default_factory=dict[str, Any])
    dataset_config: str = "dataset.yaml"
    split_config: str | None = None
    multiplier: int | None = 1
    ranges: tuple[tuple[Bound, Bound | None], ...] = ()
    aux: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Blend:
    """Parts drawn by weight; or, if `epochized`, repeated by their numbers in each pass."""

    parts: tuple[tuple[Tree, float], ...]
    epochized: bool
    location: str


@dataclass(frozen=True)
class JoinPart:
    """A dataset of a join. `nonmatch` says what becomes of a key that it lacks.

    The key is an error, is skipped, or gets no sample of this dataset.
    """

    reference: DatasetReference
    nonmatch: Literal["error", "skip", "none"]


@dataclass(frozen=True)
class Join:
    """Datasets joined by the keys of the first; `names` are those of a mapping, else empty.

    `joiner` is the description of a class or function. `ranges` and `multiplier` apply to the
    joined samples.
    """

    parts: tuple[JoinPart, ...]
    names: tuple[str, ...]
    joiner: Any
    base: DatasetReference
    location: str


Tree = DatasetReference | Blend | Join

_REFERENCE = {
    "path", "split_part", "subflavor", "subflavors", "dataset_config", "split_config", "subset",
    "shuffle_over_epochs_multiplier", "weight", "repetitions", "blend", "blend_epochized", "join",
    "joiner", "aux",
}  # fmt: skip


def parse(path: Any, base: DatasetReference) -> Tree:
    """Resolve a path, or a metadataset as a mapping, to one dataset or a tree of blends.

    Args:
        path: a prepared folder, a `.jsonl` file, a `.yaml` metadataset, or a mapping.
        base: settings that the references inherit.

    Raises:
        ConfigError: for a path that is none of these.
    """
    if isinstance(path, Mapping):
        return _File("the metadataset", Path(), cast("Mapping[str, Any]", path)).tree(base)
    location = parse_location(str(path))
    location = location if "://" in str(location) else location.expanduser()
    if location.suffix in (".yaml", ".yml"):
        if not location.is_file():
            raise ConfigError(f"{location}: no such file: check the path")
        return _File(
            str(location), location.parent, meta.require_mapping(meta.read(location), location)
        ).tree(base)
    if location.suffix == ".jsonl" or is_prepared(location):
        return replace(base, path=location)
    raise ConfigError(
        f"{location} is neither a prepared dataset, a .jsonl file nor a metadataset: run `energon "
        "prepare` on a folder of tars, or open other files with ps.read and pass that dataset"
    )


def references(tree: Tree) -> list[DatasetReference]:
    """Return all datasets of a tree, in order."""
    return (
        [tree]
        if isinstance(tree, DatasetReference)
        else [part.reference for part in tree.parts]
        if isinstance(tree, Join)
        else [reference for part, _ in tree.parts for reference in references(part)]
    )


def list_leaves(tree: Tree) -> list[DatasetReference | Join]:
    """Return all datasets and joins of a tree, in order."""
    return (
        [leaf for part, _ in tree.parts for leaf in list_leaves(part)]
        if isinstance(tree, Blend)
        else [tree]
    )


@dataclass(frozen=True)
class _File:
    """One metadataset file; relative paths start at its folder."""

    name: str
    folder: Path
    content: Mapping[str, Any]

    def tree(self, base: DatasetReference) -> Tree:
        kind = str(self.content.get("__class__", "Metadataset"))
        if kind not in ("Metadataset", "MetadatasetV2"):
            raise ConfigError(
                f"{self.name}: unknown class {kind}: use Metadataset or MetadatasetV2"
            )
        self._require_known_keys(self.content, {"__module__", "__class__", "splits"}, "")
        splits = self._mapping(self.content.get("splits"), "splits")
        if base.split_part not in splits:
            raise ConfigError(
                f"{self.name}: unknown split {base.split_part!r}; the splits are "
                f"{', '.join(splits)}"
            )
        location = f"splits.{base.split_part}"
        split = self._mapping(splits[base.split_part], location)
        if kind == "MetadatasetV2":
            return self._reference(split, base, location)
        self._require_known_keys(split, {"datasets"}, location)
        return self._blend({"blend": split.get("datasets")}, "blend", base, location)

    def _reference(self, entry: Mapping[str, Any], base: DatasetReference, location: str) -> Tree:
        """Resolve one entry: a path, or a blend in place."""
        self._require_known_keys(entry, _REFERENCE, location)
        if entry.get("split_part") is not None:
            base = replace(base, split_part=str(entry["split_part"]))
        for name in ("dataset_config", "split_config"):
            if entry.get(name) is not None:
                base = replace(base, **{name: str(entry[name])})
        # Outer labels override inner ones.
        inner = self._mapping(entry.get("subflavors") or {}, f"{location}.subflavors")
        if entry.get("subflavor") is not None:  # single label of old files
            inner = {"__subflavor__": entry["subflavor"], **inner}
        base = replace(base, subflavors={**inner, **base.subflavors})
        if "shuffle_over_epochs_multiplier" in entry:
            base = replace(base, multiplier=self._multiplied(base.multiplier, entry, location))
        if entry.get("subset") is not None:
            base = replace(
                base, ranges=(self._range(entry["subset"], f"{location}.subset"), *base.ranges)
            )
        kinds = [
            name
            for name in ("path", "blend", "blend_epochized", "join")
            if entry.get(name) is not None
        ]
        if len(kinds) != 1:
            raise ConfigError(
                f"{self.name}, {location}: give exactly one of path, blend, blend_epochized and "
                f"join, not {kinds or 'none'}"
            )
        if kinds == ["join"]:
            return self._join(entry, base, location)
        if kinds != ["path"]:
            self._require_fractions(base, location)
            return self._blend(entry, cast(Any, kinds[0]), base, location)
        path = str(entry["path"])
        aux = self._mapping(entry.get("aux") or {}, f"{location}.aux")
        if aux:
            named = {name: self._resolve_aux(str(value)) for name, value in aux.items()}
            base = replace(base, aux={**base.aux, **named})
        try:
            tree = parse(self._resolve(path), base)
        except ConfigError as error:
            raise ConfigError(f"{self.name}, {location}: {error}") from error
        if isinstance(tree, Blend):
            self._require_fractions(base, location)
        return tree

    def _resolve(self, path: str) -> str:
        return path if "://" in path else str(self.folder / Path(path).expanduser())

    def _resolve_aux(self, path: str) -> str:
        """Resolve the path of auxiliary files, whose scheme may begin with `filesystem`."""
        for prefix in ("filesystem://", "filesystem+"):
            if path.startswith(prefix):
                return f"filesystem:{self._resolve(path.removeprefix(prefix))}"
        return self._resolve(path)

    def _join(self, entry: Mapping[str, Any], base: DatasetReference, location: str) -> Join:
        """Resolve a join: a list or a mapping of datasets; the first has the keys."""
        given = entry["join"]
        names = (
            tuple(map(str, cast("Mapping[Any, Any]", given))) if isinstance(given, Mapping) else ()
        )
        entries = list(cast("Any", given).values() if names else cast("Any", given))
        if not entries:
            raise ConfigError(f"{self.name}, {location}: join must name datasets")
        if not isinstance(entry.get("joiner"), Mapping):
            raise ConfigError(
                f"{self.name}, {location}: a join needs a joiner, with __module__ and __class__ or "
                "__function__"
            )
        parts = list[JoinPart]()
        for number, part in enumerate(entries):
            where = f"{location}.join[{names[number] if names else number}]"
            item = dict(self._mapping(part, where))
            nonmatch = item.pop("nonmatch", "error")
            if nonmatch not in ("error", "skip", "none"):
                raise ConfigError(
                    f"{self.name}, {where}: nonmatch is {nonmatch!r}: give error, skip or none"
                )
            tree = self._reference(item, replace(base, ranges=(), aux={}), where)
            if not isinstance(tree, DatasetReference) or tree.path.suffix == ".jsonl":
                raise ConfigError(f"{self.name}, {where}: join prepared folders")
            if tree.ranges:
                raise ConfigError(
                    f"{self.name}, {where}: take the subset of the join, not of its datasets"
                )
            parts.append(JoinPart(tree, nonmatch))
        return Join(tuple(parts), names, entry["joiner"], base, f"{self.name}, {location}")

    def _require_fractions(self, base: DatasetReference, location: str) -> None:
        """Raise if a range over several datasets is a count instead of a fraction."""
        if any(
            not share for bounds in base.ranges for _, share in (bound for bound in bounds if bound)
        ):
            raise ConfigError(
                f"{self.name}, {location}: a subset of several datasets counts samples: give it in "
                "percent, or name it at each dataset"
            )

    def _blend(
        self,
        section: Mapping[str, Any],
        kind: Literal["blend", "blend_epochized"],
        base: DatasetReference,
        location: str,
    ) -> Blend:
        share_key, entries = (
            {"blend": "weight", "blend_epochized": "repetitions"}[kind],
            section.get(kind),
        )
        if not isinstance(entries, list) or not entries:
            raise ConfigError(f"{self.name}, {location}: {kind} must be a list of datasets")
        parts = list[tuple[Tree, float]]()
        for i, entry in enumerate(cast("list[Any]", entries)):
            entry_where = f"{location}.{kind}[{i}]"
            item = self._mapping(entry, entry_where)
            wrong_key = {"weight": "repetitions", "repetitions": "weight"}[share_key]
            if wrong_key in item:
                raise ConfigError(
                    f"{self.name}, {entry_where}: {wrong_key} has no meaning in a {kind}: give "
                    f"{share_key}"
                )
            share = item.get(share_key, 1)
            if (
                isinstance(share, bool)
                or not isinstance(share, int | float)
                or not 0 < share < float("inf")
            ):
                raise ConfigError(
                    f"{self.name}, {entry_where}: {share_key} is {share!r}: give a number above 0"
                )
            parts.append((self._reference(item, base, entry_where), share))
        return Blend(tuple(parts), kind == "blend_epochized", f"{self.name}, {location}")

    def _multiplied(self, outer: int | None, entry: Mapping[str, Any], location: str) -> int | None:
        inner = entry["shuffle_over_epochs_multiplier"]
        if inner is None or outer is None:
            return None
        if isinstance(inner, bool) or not isinstance(inner, int) or (inner < 1 and inner != -1):
            raise ConfigError(
                f"{self.name}, {location}: shuffle_over_epochs_multiplier is {inner!r}: give 1 or "
                "more, or null"
            )
        return -1 if -1 in (inner, outer) else inner * outer

    def _range(self, entry: Any, location: str) -> tuple[Bound, Bound | None]:
        """Return start and stop; a stop of None is the end."""
        inner = self._mapping(entry, location)
        self._require_known_keys(inner, {"range"}, location)
        bounds = inner.get("range")
        if not isinstance(bounds, list) or len(cast("list[Any]", bounds)) != 2:
            raise ConfigError(
                f"{self.name}, {location}: range is not a list of two: write [0%, 80%] or [100, "
                "end]"
            )
        start, stop = cast("Sequence[Any]", bounds)
        return self._bound(start, location), None if stop == "end" else self._bound(stop, location)

    def _bound(self, value: Any, location: str) -> Bound:
        text = str(value).strip()
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
                f"{self.name}, {location}: {value!r} is not a bound: give 0% to 100%, a number, or "
                "'end'"
            )
        return bound

    def _mapping(self, value: Any, location: str) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise ConfigError(
                f"{self.name}, {location}: must be a mapping, not a {type(value).__name__}"
            )
        return {str(key): item for key, item in cast("Mapping[Any, Any]", value).items()}

    def _require_known_keys(self, table: Mapping[str, Any], known: set[str], location: str) -> None:
        for name in table:
            if name not in known:
                raise ConfigError(f"{self.name}, {location or 'at the top'}: unknown key {name!r}")
