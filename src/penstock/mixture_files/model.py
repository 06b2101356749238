"""Descriptions of mixture files: frozen dataclasses with the lines they were read from.

Nothing here touches data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import floor, fsum
from typing import Any, Literal, TypeAlias, get_args

from ..dataset import SplitBy
from ..engine.mixing import Stop
from ..errors import ConfigError
from ..schedule import CountedUnit, Interpolation, ScheduleUnit
from ..sources.paths import FormatName, TokenType
from ..text.chat import TrainOn, Truncate, Untrained
from .reading import MixtureNode

SHARE_KEYS = ("weight", "tokens", "epochs")
_RUN_KEYS = ("max_epochs", "schedule", "horizon", "groups", "group_max_epochs", "one_source_per")
END_TOKENS: tuple[Literal["bos"], Literal["eos"]] = ("bos", "eos")
"""Options of `pack` that add a token before or after every document."""
SplitPart: TypeAlias = Literal["train", "held_out"]
SPLIT_PARTS: tuple[SplitPart, ...] = get_args(SplitPart)
Selection = Mapping[str, Any]
"""Column -> a tuple of allowed values, or a range (min, max, above, below, not)."""


@dataclass(frozen=True)
class Shuffling:
    """Order of the rows of a source.

    `kind` is "full", "none", "block" (blocks of `rows` within windows of `window` blocks) or
    "buckets" (buckets of `buckets` rows).
    """

    kind: str = "full"
    rows: int | None = None
    window: int | None = None
    seed: int | None = None
    buckets: int | None = None


@dataclass(frozen=True)
class Tokenising:
    """Tokenisation of a text field.

    `tokenizer` is a path if the file exists, else a name on a hub. If `counted`, the number of
    tokens of every row is known in advance.
    """

    tokenizer: str
    field: str = "text"
    special_tokens: bool = False
    counted: bool = False


@dataclass(frozen=True)
class Chatting:
    """Conversion of conversations to tokens and loss masks; the arguments of `Chat`.

    `tokenizer` and `template` are absolute paths if they name files. A chat that drops samples is
    followed, behind the mixture, by a step that removes them.
    """

    tokenizer: str
    format: str = "auto"
    template: str | None = None
    train_on: TrainOn = "assistant"
    fields: Mapping[str, str] | None = None
    roles: Mapping[str, str] | None = None
    max_length: int | None = None
    truncate: Truncate = "turns"
    untrained: Untrained = "skip"
    keep: tuple[str, ...] = ()
    allowed_special: tuple[str, ...] | Literal["all"] = ()
    variables: Mapping[str, Any] | None = None
    date: str | None = None
    bos: str | None = None
    eos: str | None = None


@dataclass(frozen=True)
class Splitting:
    """Rows to hold out, a share ("0.5%") or a number, and the part to read."""

    held_out: str | float
    by: SplitBy = "hash"
    column: str | None = None
    seed: int = 0
    part: SplitPart = "train"


@dataclass(frozen=True)
class Partitioning:
    """Parts of a source by the values of columns; the arguments of `Dataset.partition_by`.

    `input` is the one part that the source reads. Without it, the source is a nested mixture of all
    parts, with these weights, temperature and caps.
    """

    columns: tuple[str, ...]
    min_size: int = 1
    rest: str | None = None
    only: tuple[str, ...] | None = None
    input: str | None = None
    weights: Mapping[str, float] | None = None
    temperature: float | None = None
    max_epochs: float | Mapping[str, float] | None = None


@dataclass(frozen=True)
class Batching:
    """Batches of `size` rows; `ranks` take one each in a training step.

    With `over_ranks`, `size` counts the rows of all ranks together, for any world size.
    """

    size: int
    drop_remainder: bool = False
    collate: str = "stack"
    ranks: int = 1
    over_ranks: bool = False


@dataclass(frozen=True)
class RunPosition:
    """A position in the run: a number of "samples", "tokens" or "steps", or "percent"."""

    unit: ScheduleUnit | Literal["percent"]
    number: float


@dataclass(frozen=True)
class Stage:
    """A part of the run: weights of groups and sources, its end, and the interpolation."""

    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    until: RunPosition | None = None
    interpolation: Interpolation = "step"
    name: str | None = None


@dataclass(frozen=True)
class Scheduling:
    """Weights over the run: position -> source -> weight; empty points mean constant weights."""

    unit: ScheduleUnit = "samples"
    interpolation: Interpolation | tuple[Interpolation, ...] = "step"
    points: tuple[tuple[int, Mapping[str, float]], ...] = ()


@dataclass(frozen=True)
class SourceEntry:
    """A source as the file describes it; its samples come from `path` or from `mixture`."""

    name: str
    path: tuple[str, ...] = ()
    format: FormatName | None = None
    columns: tuple[str, ...] | None = None
    lengths: str | None = None
    dtype: TokenType | None = None
    eos: int | None = None
    split: str | Splitting | None = None
    where: Selection | None = None
    slice: tuple[int | str | None, ...] | None = None
    """Bounds as in Python, or percentages such as `80%`."""
    partition: Partitioning | None = None
    unique_fraction: str | float | None = None
    shuffle: Shuffling | None = None
    tokenise: Tokenising | Literal["none"] | None = None
    chat: Chatting | None = None
    label: str | None = None
    mixture: MixtureFile | None = None
    group: str | None = None
    weight: float | None = None
    tokens: float | None = None
    epochs: float | None = None
    max_epochs: float | None = None
    loss_weight: float | None = None
    start: int | None = None
    stop: int | None = None
    marks: Mapping[str, MixtureNode] = field(
        default_factory=dict[str, MixtureNode], compare=False, repr=False
    )
    """Key -> the node in the file; the key "" is the source itself."""

    @property
    def shares(self) -> list[str]:
        """The keys in the file that define the share; a valid file has at most one."""
        return [key for key in SHARE_KEYS if key in self.marks]

    def splitting(self, mixture: MixtureFile) -> Splitting | None:
        """Return the split of the source, or else of the mixture."""
        return self.split if isinstance(self.split, Splitting) else mixture.split

    def encoding(self, mixture: MixtureFile) -> Tokenising | Chatting | None:
        """Return how the samples become tokens: a setting of the source, or else of the mixture."""
        how = self.tokenise or self.chat or mixture.tokenise or mixture.chat
        return None if how == "none" else how

    def rows(self, size: int) -> tuple[int | None, ...]:
        """Return the slice as row numbers of `size` rows; percentages are rounded down.

        >>> SourceEntry("a", slice=("10%", "80%")).rows(55)
        (5, 44)
        """
        bounds = self.slice or (None,)
        rows = tuple(
            floor(Fraction(bound.rstrip(" %")) * size / 100) if isinstance(bound, str) else bound
            for bound in bounds
        )
        return (None, *rows) if len(rows) == 1 else rows

    @property
    def zero(self) -> bool:
        """True if the weight of the source itself is 0."""
        return self.weight == 0


@dataclass(frozen=True)
class MixtureFile:
    """A mixture as its file describes it, with absolute paths; None marks missing settings.

    >>> model = MixtureFile((SourceEntry("code", ("/data/code",), weight=3), SourceEntry("text", weight=1)))
    >>> model.names, model.shares()
    (('code', 'text'), {'code': 0.75, 'text': 0.25})
    """

    sources: tuple[SourceEntry, ...]
    seed: int | None = None
    block_size: int | None = None
    one_source_per: int | Literal["global_step"] | None = None
    stop: Stop | None = None
    unit: CountedUnit | None = None
    temperature: float | None = None
    max_epochs: float | None = None
    groups: Mapping[str, float] | None = None
    group_max_epochs: Mapping[str, float] | None = None
    stages: tuple[Stage, ...] = ()
    schedule: Scheduling | None = None
    shuffle: Shuffling | None = None
    tokenise: Tokenising | Literal["none"] | None = None
    chat: Chatting | None = None
    split: Splitting | None = None
    horizon: tuple[str, float] | None = None
    """Unit ("samples", "steps", "tokens" or "epochs") and number; only epochs may be fractional."""
    pack: Mapping[str, Any] | None = None
    batch: Batching | None = None
    exclude: str | None = None
    """A file with the keys of excluded samples."""
    cache: str | None = None
    marks: Mapping[str, MixtureNode] = field(
        default_factory=dict[str, MixtureNode], compare=False, repr=False
    )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sources, in the order of the file."""
        return tuple(source.name for source in self.sources)

    def iter_sources(self, above: str = "") -> Iterator[tuple[str, SourceEntry]]:
        """Yield every source of files with its full name, such as "web/news" in a nested mixture."""
        for source in self.sources:
            if source.mixture is None:
                yield above + source.name, source
            else:
                yield from source.mixture.iter_sources(f"{above}{source.name}/")

    def inside(self, outer: MixtureFile) -> MixtureFile:
        """Return a nested mixture with missing settings taken from the outer one."""
        encodes = self.tokenise or self.chat
        return replace(
            self,
            seed=outer.seed if self.seed is None else self.seed,
            block_size=self.block_size or outer.block_size,
            stop=self.stop or outer.stop,
            unit=self.unit or outer.unit,
            shuffle=self.shuffle or outer.shuffle,
            tokenise=self.tokenise if encodes else outer.tokenise,
            chat=self.chat if encodes else outer.chat,
            split=self.split or outer.split,
            cache=self.cache or outer.cache,
        )

    def held_out(self) -> MixtureFile:
        """Return the mixture of all held-out parts, each sample once, without the run's settings."""
        sources = list[SourceEntry]()
        for source in self.sources:
            unweighted = replace(
                source, **dict.fromkeys((*SHARE_KEYS, "max_epochs", "start", "stop", "group"))
            )
            if source.mixture is not None:
                inner = replace(source.mixture, split=source.mixture.split or self.split).held_out()
                sources += [replace(unweighted, mixture=inner)] if inner.sources else []
            elif (split := source.splitting(self)) is not None:
                parts = source.partition and replace(
                    source.partition, weights=None, temperature=1.0, max_epochs=None
                )
                held_out = replace(split, part="held_out")
                sources.append(
                    replace(unweighted, split=held_out, partition=parts, unique_fraction=None)
                )
        return replace(
            self,
            sources=tuple(sources),
            stop="all_exhausted",
            unit="samples",
            temperature=1.0,
            stages=(),
            **dict.fromkeys(_RUN_KEYS),
        )

    def cap(self, source: SourceEntry) -> float | None:
        """Return the maximum passes of a source: its source_weights, its group's, or the mixture's."""
        of_group = (self.group_max_epochs or {}).get(source.group or "")
        return source.max_epochs or of_group or self.max_epochs

    def shares(self) -> dict[str, float] | None:
        """Return the shares of plain weights.

        Returns None if they come from sizes, amounts, stages or the points of a schedule.
        """
        if self.temperature is not None or self.stages or (self.schedule and self.schedule.points):
            return None
        if any(source.tokens or source.epochs for source in self.sources):
            return None
        weights = self.grouped(self.own_weights(), self.groups or {})
        total = sum(weights.values())
        return {name: weight / total for name, weight in weights.items()} if total else None

    def own_weights(self) -> dict[str, float]:
        """Return the weights of sources as written.

        If no source of a group (or outside groups) has a weight, all of them weigh the same. With
        stages, a source outside of groups weighs 0 until a stage names it.
        """
        weighted_groups = {source.group for source in self.sources if source.weight is not None}
        staged = {None} if self.stages else set[str | None]()
        default = {
            source.group: 0.0 if source.group in weighted_groups | staged else 1.0
            for source in self.sources
        }
        return {
            source.name: default[source.group] if source.weight is None else source.weight
            for source in self.sources
        }

    def grouped(
        self, source_weights: Mapping[str, float], groups: Mapping[str, float]
    ) -> dict[str, float]:
        """Distribute the weight of each group among its sources, in proportion to theirs.

        >>> sources = (SourceEntry("a", group="x"), SourceEntry("b", group="x"), SourceEntry("c", group="y"))
        >>> MixtureFile(sources).grouped({"a": 1, "b": 3, "c": 1}, {"x": 8, "y": 2})
        {'a': 2.0, 'b': 6.0, 'c': 2.0}
        """
        group_of = {source.name: source.group for source in self.sources}
        sums = {
            group: fsum(source_weights[name] for name in source_weights if group_of[name] == group)
            for group in groups
        }
        for group, weight in groups.items():
            if weight and not sums[group]:
                raise ConfigError(
                    f"the group {group!r} has a weight, but all its sources have weight 0; raise one"
                )
        weights = dict[str, float]()
        for name, weight in source_weights.items():
            group = group_of[name]
            weights[name] = (
                weight if group is None else groups[group] * weight / sums[group] if weight else 0.0
            )
        return weights

    @property
    def rows_of_step(self) -> int:
        """Samples or packed rows of one training step, over all ranks."""
        return self.batch.size * self.batch.ranks if self.batch else 1

    @property
    def per_step(self) -> tuple[str, int]:
        """Unit and amount of one training step over all ranks: tokens if rows are packed."""
        size = self.rows_of_step
        return ("tokens", size * int(self.pack["length"])) if self.pack else ("samples", size)

    @property
    def run(self) -> tuple[str, int] | None:
        """The horizon in samples or tokens; None for epochs, which depend on the data."""
        if self.horizon is None or self.horizon[0] == "epochs":
            return None
        horizon_unit, number = self.horizon
        unit, size = self.per_step if horizon_unit == "steps" else (horizon_unit, 1)
        return unit, size * int(number)
