"""A mixture file, read: frozen descriptions with the places they came from. Nothing here touches
data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import floor, fsum
from typing import Any, Literal, TypeAlias, get_args

from ..engine.graph.halves import SplitBy
from ..engine.mixing import Stop
from ..errors import ConfigError
from ..schedule import Clock, Counted, Interpolation
from ..sources.paths import FormatName, TokenType
from .reading import Node

SHARES = ("weight", "tokens", "epochs")
_RUN = ("max_epochs", "schedule", "horizon", "groups", "group_max_epochs")
Part: TypeAlias = Literal["train", "held_out"]
PARTS: tuple[Part, ...] = get_args(Part)
Where = Mapping[str, Any]
"""Column -> a tuple of allowed values, or the settings of a range (min, max, above, below, not)."""


@dataclass(frozen=True)
class Shuffling:
    """How the rows of a source are ordered: full, none, blocks of `rows` within windows of `window`
    blocks, or dealt into `buckets` of so many rows.
    """

    kind: str = "full"
    rows: int | None = None
    window: int | None = None
    seed: int | None = None
    buckets: int | None = None


@dataclass(frozen=True)
class Tokenising:
    """How a text field becomes tokens. `tokenizer` is a path where there is such a file, else a
    name on a hub. Tokens that are `counted` are known of every row ahead.
    """

    tokenizer: str
    field: str = "text"
    special_tokens: bool = False
    counted: bool = False


@dataclass(frozen=True)
class Splitting:
    """What is held out, a share ("0.5%") or a number of rows, and which part is read."""

    held_out: str | float
    by: SplitBy = "hash"
    column: str | None = None
    seed: int = 0
    part: Part = "train"


@dataclass(frozen=True)
class Batching:
    """Batches of `size`; `ranks` take one each in a training step. `over_ranks`: `size` is that of
    all ranks together, however many they are.
    """

    size: int
    drop_remainder: bool = False
    collate: str = "stack"
    ranks: int = 1
    over_ranks: bool = False


@dataclass(frozen=True)
class Place:
    """A place in the run: so many "samples", "tokens" or "steps", or "percent" of the horizon."""

    unit: Clock | Literal["percent"]
    number: float


@dataclass(frozen=True)
class Stage:
    """A part of the run: weights of groups and sources, where it ends, and how its weights are
    reached."""

    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    until: Place | None = None
    interpolation: Interpolation = "step"
    name: str | None = None


@dataclass(frozen=True)
class Scheduling:
    """Weights over the run: place -> source -> weight. Without points, those of the sources."""

    unit: Clock = "samples"
    interpolation: Interpolation | tuple[Interpolation, ...] = "step"
    points: tuple[tuple[int, Mapping[str, float]], ...] = ()


@dataclass(frozen=True)
class SourceEntry:
    """One source as the file describes it. Either `path` or `mixture` says where its samples come
    from."""

    name: str
    path: tuple[str, ...] = ()
    format: FormatName | None = None
    columns: tuple[str, ...] | None = None
    lengths: str | None = None
    dtype: TokenType | None = None
    eos: int | None = None
    split: str | Splitting | None = None
    where: Where | None = None
    slice: tuple[int | str | None, ...] | None = None
    """Bounds as Python's, or `80%` of the rows."""
    shuffle: Shuffling | None = None
    tokenise: Tokenising | None = None
    label: str | None = None
    mixture: MixtureFile | None = None
    group: str | None = None
    weight: float | None = None
    tokens: float | None = None
    epochs: float | None = None
    max_epochs: float | None = None
    start: int | None = None
    stop: int | None = None
    marks: Mapping[str, Node] = field(default_factory=dict[str, Node], compare=False, repr=False)
    """Key -> where it stands; "" is the source itself."""

    @property
    def shares(self) -> list[str]:
        """The keys in the file that say its share; one at most, where the file is right."""
        return [key for key in SHARES if key in self.marks]

    def splitting(self, mixture: MixtureFile) -> Splitting | None:
        """What is held out of it, as it says or the mixture does."""
        return self.split if isinstance(self.split, Splitting) else mixture.split

    def rows(self, size: int) -> tuple[int | None, ...]:
        """Its slice in whole rows of so many: a percentage is rounded down.

        >>> SourceEntry("a", slice=("10%", "80%")).rows(55)
        (5, 44)
        """
        bounds = self.slice or (None,)
        found = tuple(
            floor(Fraction(one.rstrip(" %")) * size / 100) if isinstance(one, str) else one
            for one in bounds
        )
        return (None, *found) if len(found) == 1 else found

    @property
    def zero(self) -> bool:
        """Whether it is never drawn from by its own weight."""
        return self.weight == 0


@dataclass(frozen=True)
class MixtureFile:
    """A mixture as its file describes it, all paths absolute. What is `None` was not said.

    >>> model = MixtureFile((SourceEntry("code", ("/data/code",), weight=3), SourceEntry("text", weight=1)))
    >>> model.names, model.shares()
    (('code', 'text'), {'code': 0.75, 'text': 0.25})
    """

    sources: tuple[SourceEntry, ...]
    seed: int | None = None
    block_size: int | None = None
    stop: Stop | None = None
    unit: Counted | None = None
    temperature: float | None = None
    max_epochs: float | None = None
    groups: Mapping[str, float] | None = None
    group_max_epochs: Mapping[str, float] | None = None
    stages: tuple[Stage, ...] = ()
    schedule: Scheduling | None = None
    shuffle: Shuffling | None = None
    tokenise: Tokenising | None = None
    split: Splitting | None = None
    horizon: tuple[str, float] | None = None
    """Unit ("samples", "steps", "tokens" or "epochs") and number; only epochs need not be whole."""
    pack: Mapping[str, Any] | None = None
    batch: Batching | None = None
    exclude: str | None = None
    """A file of the keys of samples that are left out."""
    cache: str | None = None
    marks: Mapping[str, Node] = field(default_factory=dict[str, Node], compare=False, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The sources, in the order of the file."""
        return tuple(source.name for source in self.sources)

    def leaves(self, above: str = "") -> Iterator[tuple[str, SourceEntry]]:
        """Every source that reads files, with its name as samples show it ("web/news" for one of a
        nested mixture)."""
        for source in self.sources:
            if source.mixture is None:
                yield above + source.name, source
            else:
                yield from source.mixture.leaves(f"{above}{source.name}/")

    def inside(self, outer: MixtureFile) -> MixtureFile:
        """A nested mixture with what it does not say itself taken from the one around it."""
        return replace(
            self,
            seed=outer.seed if self.seed is None else self.seed,
            block_size=self.block_size or outer.block_size,
            stop=self.stop or outer.stop,
            unit=self.unit or outer.unit,
            shuffle=self.shuffle or outer.shuffle,
            tokenise=self.tokenise or outer.tokenise,
            split=self.split or outer.split,
            cache=self.cache or outer.cache,
        )

    def held_out(self) -> MixtureFile:
        """What is held out of all sources, each sample once, evenly mixed: nothing of how the run
        is meant to go."""
        sources = list[SourceEntry]()
        for source in self.sources:
            plain = replace(
                source, **dict.fromkeys((*SHARES, "max_epochs", "start", "stop", "group"))
            )
            if source.mixture is not None:
                inner = replace(source.mixture, split=source.mixture.split or self.split).held_out()
                sources += [replace(plain, mixture=inner)] if inner.sources else []
            elif (split := source.splitting(self)) is not None:
                sources.append(replace(plain, split=replace(split, part="held_out")))
        return replace(
            self,
            sources=tuple(sources),
            stop="all_exhausted",
            unit="samples",
            temperature=1.0,
            stages=(),
            **dict.fromkeys(_RUN),
        )

    def cap(self, source: SourceEntry) -> float | None:
        """The passes after which one of its sources is used up: as the source says, its group, or
        the mixture."""
        of_group = (self.group_max_epochs or {}).get(source.group or "")
        return source.max_epochs or of_group or self.max_epochs

    def shares(self) -> dict[str, float] | None:
        """The shares that plain weights ask for; `None` where they come from sizes, amounts or a
        schedule's points."""
        if self.temperature is not None or self.stages or (self.schedule and self.schedule.points):
            return None
        if any(source.tokens or source.epochs for source in self.sources):
            return None
        weights = self.grouped(self.own_weights(), self.groups or {})
        total = sum(weights.values())
        return {name: weight / total for name, weight in weights.items()} if total else None

    def own_weights(self) -> dict[str, float]:
        """The weights of sources as they stand in the file. Where none has one, in a group or
        outside, all are equal; but outside of groups stages name those that they take.
        """
        said = {source.group for source in self.sources if source.weight is not None}
        staged = {None} if self.stages else set[str | None]()
        default = {
            source.group: 0.0 if source.group in said | staged else 1.0 for source in self.sources
        }
        return {
            source.name: default[source.group] if source.weight is None else source.weight
            for source in self.sources
        }

    def grouped(self, own: Mapping[str, float], groups: Mapping[str, float]) -> dict[str, float]:
        """Weights of sources: that of a group is shared out among its sources by theirs.

        >>> sources = (SourceEntry("a", group="x"), SourceEntry("b", group="x"), SourceEntry("c", group="y"))
        >>> MixtureFile(sources).grouped({"a": 1, "b": 3, "c": 1}, {"x": 8, "y": 2})
        {'a': 2.0, 'b': 6.0, 'c': 2.0}
        """
        of = {source.name: source.group for source in self.sources}
        sums = {group: fsum(own[name] for name in own if of[name] == group) for group in groups}
        for group, weight in groups.items():
            if weight and not sums[group]:
                raise ConfigError(
                    f"the group {group!r} has a weight, and none of its sources has one"
                )
        out = dict[str, float]()
        for name, weight in own.items():
            group = of[name]
            out[name] = (
                weight if group is None else groups[group] * weight / sums[group] if weight else 0.0
            )
        return out

    @property
    def rows_of_step(self) -> int:
        """Samples, or packed rows, of one training step of all ranks."""
        return self.batch.size * self.batch.ranks if self.batch else 1

    @property
    def per_step(self) -> tuple[str, int]:
        """What one training step of all ranks takes: so many samples, or so many tokens where rows
        are packed."""
        size = self.rows_of_step
        return ("tokens", size * int(self.pack["length"])) if self.pack else ("samples", size)

    @property
    def run(self) -> tuple[str, int] | None:
        """The horizon in samples or tokens; of passes only the data tells how many."""
        if self.horizon is None or self.horizon[0] == "epochs":
            return None
        given, number = self.horizon
        unit, size = self.per_step if given == "steps" else (given, 1)
        return unit, size * int(number)
