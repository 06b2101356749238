"""Descriptions of mixture files: frozen dataclasses with the lines they were read from.

Nothing here touches data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import floor, fsum
from typing import Any, Literal, TypeAlias, cast, get_args

from ..dataset import SplitBy
from ..engine.base.step_plan import EqualSteps
from ..engine.mixing import Stop
from ..errors import ConfigError
from ..schedule import CountedUnit, Interpolation, RunUnit, Schedule, ScheduleUnit
from ..sources.paths import FormatName, TokenType
from ..text.chat import TrainOn, Truncate, Untrained
from .reading import MixtureNode
from .step_sizes import Border, StageSizes, count_before, divide_run, find_step, resolve_fraction

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
class Tokenizing:
    """Tokenization of a text field.

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
    input_separator: str = "\n\n"
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

    With `over_ranks`, `size` counts the rows of all ranks together, for any world size. A schedule
    of numbers changes them during the run.
    """

    size: int | Schedule
    drop_remainder: bool = False
    collate: str = "stack"
    ranks: int = 1
    over_ranks: bool = False


@dataclass(frozen=True)
class RunPosition:
    """A position in the run: a number of "samples", "tokens" or "steps", or "percent"."""

    unit: RunUnit | Literal["percent"]
    number: float


@dataclass(frozen=True)
class Stage:
    """A part of the run: weights of groups and sources, its end, and the interpolation.

    `length` and `global_batch_size` hold from its beginning on, until a later stage changes them.
    """

    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    until: RunPosition | None = None
    interpolation: Interpolation = "step"
    name: str | None = None
    length: int | None = None
    global_batch_size: int | None = None


@dataclass(frozen=True)
class Scheduling:
    """Weights over the run: position -> source -> weight; empty points mean constant weights."""

    unit: ScheduleUnit = "samples"
    interpolation: Interpolation | tuple[Interpolation, ...] = "step"
    points: tuple[tuple[float, Mapping[str, float]], ...] = ()


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
    tokenize: Tokenizing | Literal["none"] | None = None
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

    def encoding(self, mixture: MixtureFile) -> Tokenizing | Chatting | None:
        """Return how the samples become tokens: a setting of the source, or else of the mixture."""
        how = self.tokenize or self.chat or mixture.tokenize or mixture.chat
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
    tokenize: Tokenizing | Literal["none"] | None = None
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
        encodes = self.tokenize or self.chat
        return replace(
            self,
            seed=outer.seed if self.seed is None else self.seed,
            block_size=self.block_size or outer.block_size,
            stop=self.stop or outer.stop,
            unit=self.unit or outer.unit,
            shuffle=self.shuffle or outer.shuffle,
            tokenize=self.tokenize if encodes else outer.tokenize,
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
        last = self.equal_steps[-1]
        pack = self.pack and {**self.pack, "length": last.length}
        batch = self.batch
        if batch is not None and self.changes_sizes:
            batch = replace(batch, size=last.rows)
        return replace(
            self,
            sources=tuple(sources),
            pack=pack,
            batch=batch,
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
        points = self.schedule and self.schedule.points
        if self.temperature is not None or self.weighs_in_stages or points:
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
        staged = {None} if self.weighs_in_stages else set[str | None]()
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

    # ------------------------------------------------------------ steps

    @property
    def unit_of_run(self) -> CountedUnit:
        """The unit of positions in the run: tokens if rows are packed."""
        return "tokens" if self.pack else "samples"

    @property
    def sizes_in_stages(self) -> bool:
        """True if stages give row lengths or global batches."""
        return any(stage.length or stage.global_batch_size for stage in self.stages)

    @property
    def weighs_in_stages(self) -> bool:
        """True if stages give weights; stages may give nothing but sizes of steps."""
        return bool(self.stages) and (
            not self.sizes_in_stages or any(stage.weights for stage in self.stages)
        )

    @property
    def changes_sizes(self) -> bool:
        """True if row lengths or global batches change during the run."""
        return self.sizes_in_stages or any(isinstance(size, Schedule) for size in self._sizes)

    @property
    def _sizes(self) -> tuple[int | Schedule, int | Schedule]:
        """The rows of a global step over all ranks, and the tokens of a row (1 without `pack`)."""
        batch, length = self.batch, self.pack["length"] if self.pack else 1
        if batch is None:
            return 1, length
        return batch.size if isinstance(batch.size, Schedule) else batch.size * batch.ranks, length

    @cached_property
    def equal_steps(self) -> tuple[EqualSteps, ...]:
        """The stretches of global steps of one size; without `pack`, a sample counts as one token.

        Raises:
            ConfigError: the steps cannot be planned.
        """
        rows, length = self._sizes
        if not self.sizes_in_stages:
            return divide_run(rows, length, self._border_at)
        return tuple(stage.steps for stage in self._stages_by_size)

    @cached_property
    def _stages_by_size(self) -> tuple[StageSizes, ...]:
        """The stages of a run, with the size of their steps."""
        rows, length = self._sizes
        if isinstance(rows, Schedule) or isinstance(length, Schedule):
            raise ConfigError(
                "some stages give row lengths or global batches, and the file has a table of them: "
                "give all of them in stages, or all in tables"
            )
        stages = list[StageSizes]()
        for stage in self.stages:
            rows, length = stage.global_batch_size or rows, stage.length or length
            end = None if stage.until is None else self._border_of(stage.until)
            stages.append(StageSizes.follow(stages, rows, length, end))
        return tuple(stages)

    @cached_property
    def stage_ends(self) -> tuple[int | None, ...]:
        """The global steps at which stages end; None for a last stage without an end.

        Raises:
            ConfigError: the steps cannot be planned, or a stage has none.
        """
        if self.sizes_in_stages:
            return tuple(stage.end for stage in self._stages_by_size)
        borders = [stage.until and self._border_of(stage.until) for stage in self.stages]
        return tuple(border and find_step(self.equal_steps, border) for border in borders)

    def _border_of(self, until: RunPosition) -> Border:
        """Return a position of the run in steps, rows or tokens."""
        if until.unit == "percent":
            return self._border_at(Fraction(repr(until.number)) / 100)
        if until.unit == "loss_tokens" or until.unit not in ("steps", self.unit_of_run):
            raise ConfigError(
                f"a stage ends at {until.unit}, and steps that change are counted in steps or "
                f"{self.unit_of_run}: use one of them"
            )
        return Border("rows" if until.unit == "samples" else until.unit, int(until.number))

    def _border_at(self, fraction: float | Fraction) -> Border:
        """Return a fraction of the run in steps, rows or tokens."""
        unit, number = self.horizon or ("", 0)
        if unit not in ("steps", self.unit_of_run):
            raise ConfigError(
                f"a share of the run needs a horizon in steps or {self.unit_of_run}: add one"
            )
        length = resolve_fraction(fraction, int(number))
        return Border("rows" if unit == "samples" else cast("Any", unit), length)

    def position_at(self, step: int) -> int:
        """Return the samples, or the tokens of packed rows, before a global step."""
        return count_before(self.equal_steps, step).tokens

    def row_at(self, step: int) -> int:
        """Return the samples or packed rows before a global step."""
        return count_before(self.equal_steps, step).row

    def step_at(self, position: int) -> int:
        """Return the first global step at or after a number of samples, or of packed tokens."""
        return find_step(self.equal_steps, Border("tokens", position))

    @property
    def has_length(self) -> bool:
        """True if the file says how long the run is, without looking at data."""
        return self.horizon is not None and self.horizon[0] != "epochs"

    @property
    def run(self) -> tuple[CountedUnit, int] | None:
        """The horizon in samples or tokens; None for epochs, which depend on the data.

        None too if the steps cannot be planned, which is a problem of the file.
        """
        if not self.has_length:
            return None
        assert self.horizon is not None
        unit, number = self.horizon
        if unit == "steps":
            try:
                return self.unit_of_run, self.position_at(int(number))
            except ConfigError:
                return None
        return cast("CountedUnit", unit), int(number)
