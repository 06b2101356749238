"""A mixture file, read: frozen descriptions with the places they came from. Nothing here touches data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..mixing import Stop
from ..schedule import Clock, Counted, Interpolation
from ..sources.paths import FormatName
from .reading import Node

SHARES = ("weight", "tokens", "epochs")
Where = Mapping[str, Any]
"""Column -> a tuple of allowed values, or the settings of a range (min, max, above, below, not)."""


@dataclass(frozen=True)
class Shuffling:
    """How the rows of a source are ordered: full, none, or blocks of `rows` within windows of `window` blocks."""

    kind: str = "full"
    rows: int | None = None
    window: int | None = None
    seed: int | None = None


@dataclass(frozen=True)
class Tokenising:
    """How a text field becomes tokens. `tokenizer` is a path where there is such a file, else a name on a hub."""

    tokenizer: str
    field: str = "text"
    special_tokens: bool = False


@dataclass(frozen=True)
class Batching:
    """Batches of `size`; `ranks` take one each in a training step."""

    size: int
    drop_remainder: bool = False
    collate: str = "stack"
    ranks: int = 1


@dataclass(frozen=True)
class Scheduling:
    """Weights over the run: place -> source -> weight. Without points, those of the sources."""

    unit: Clock = "samples"
    interpolation: Interpolation = "step"
    points: tuple[tuple[int, Mapping[str, float]], ...] = ()


@dataclass(frozen=True)
class SourceEntry:
    """One source as the file describes it. Either `path` or `mixture` says where its samples come from."""

    name: str
    path: tuple[str, ...] = ()
    format: FormatName | None = None
    columns: tuple[str, ...] | None = None
    lengths: str | None = None
    split: str | None = None
    where: Where | None = None
    slice: tuple[int | None, ...] | None = None
    shuffle: Shuffling | None = None
    tokenise: Tokenising | None = None
    label: str | None = None
    mixture: MixtureFile | None = None
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
    schedule: Scheduling | None = None
    shuffle: Shuffling | None = None
    tokenise: Tokenising | None = None
    horizon: tuple[str, int] | None = None
    """Unit ("samples", "steps" or "tokens") and number."""
    pack: Mapping[str, Any] | None = None
    batch: Batching | None = None
    cache: str | None = None
    marks: Mapping[str, Node] = field(default_factory=dict[str, Node], compare=False, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The sources, in the order of the file."""
        return tuple(source.name for source in self.sources)

    def leaves(self, above: str = "") -> Iterator[tuple[str, SourceEntry]]:
        """Every source that reads files, with its name as samples show it ("web/news" for one of a nested mixture)."""
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
            cache=self.cache or outer.cache,
        )

    def shares(self) -> dict[str, float] | None:
        """The shares that plain weights ask for; `None` where they come from sizes, amounts or a schedule's points."""
        if self.temperature is not None or (self.schedule and self.schedule.points):
            return None
        if any(source.tokens or source.epochs for source in self.sources):
            return None
        weights = {source.name: 1.0 if source.weight is None else source.weight for source in self.sources}
        total = sum(weights.values())
        return {name: weight / total for name, weight in weights.items()} if total else None

    @property
    def per_step(self) -> tuple[str, int]:
        """What one training step of all ranks takes: so many samples, or so many tokens where rows are packed."""
        size = self.batch.size * self.batch.ranks if self.batch else 1
        return ("tokens", size * int(self.pack["length"])) if self.pack else ("samples", size)

    @property
    def run(self) -> tuple[str, int] | None:
        """The horizon in samples or tokens."""
        if self.horizon is None or self.horizon[0] != "steps":
            return self.horizon
        unit, size = self.per_step
        return unit, size * self.horizon[1]
