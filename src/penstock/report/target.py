"""What the questions on the command line go to: a mixture file, opened, its plan, and how its steps are counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.dataset import Dataset
from penstock.errors import ConfigError, IndexedError
from penstock.graph.build import Builder
from penstock.graph.nodes import Flow, only_input
from penstock.mixing import Corrected, Mixture
from penstock.mixing.asked import asked
from penstock.mixture_files import MixtureFile, build, read_model
from penstock.mixture_files import said as problems_said
from penstock.ops.mix import MixOp
from penstock.ops.op import OneInput, Op
from penstock.ops.packed import PackedOp
from penstock.plan import Exhaustion, Plan
from penstock.types import is_source

_FEW = 64  # sources
_SHOWN = 100  # characters of a sample
_SHORT, _LONG = 1_000, 1 << 40  # the horizon of an endless mixture lies between these if nobody says


@dataclass(frozen=True)
class Target:
    """An opened mixture file.

    `plan` is that of the dataset where that is indexed, else of what is drawn before the first step that is not (text
    that is tokenised and packed while it runs, say): then positions count samples, and `whole` is False.
    """

    path: Path
    model: MixtureFile
    dataset: Dataset
    plan: Plan[Dataset]
    whole: bool

    @property
    def ranks(self) -> int:
        """How many items one training step takes."""
        return self.model.batch.ranks if self.whole and self.model.batch else 1

    @property
    def unit(self) -> str:
        """What `steps` counts here: steps of the training, or samples drawn."""
        return "step" if self.whole else "sample"

    def position(self, step: int) -> int:
        """The first position of a step."""
        return step * self.ranks

    def step(self, position: int) -> int:
        """The step that a position belongs to."""
        return position // self.ranks

    def horizon(self, steps: int | None) -> int:
        """The steps of the run: as asked, as the file says, to the end, or until every source has been seen once."""
        size = self.plan.size
        last = None if size is None else -(-size // self.ranks)
        said = steps if steps is not None else self._said
        if said is not None:
            return said if last is None else min(said, last)
        if last is not None:
            return last
        seen = [one.repeats for one in self.exhausts.values() if one.repeats is not None]
        return self.step(min(max(max(seen, default=_SHORT), _SHORT), _LONG))

    @property
    def _said(self) -> int | None:
        """The horizon of the file in our steps."""
        if self.model.horizon is None:
            return None
        unit, number = self.model.horizon
        if unit == "steps":
            return number if self.whole else None
        per_unit, each = self.model.per_step
        if not self.whole:
            return number if unit == "samples" else None
        return -(-number // each) if unit == per_unit else None

    @cached_property
    def exhausts(self) -> dict[str, Exhaustion]:
        """When each source repeats and ends, in positions of the plan. Of packed rows only the ends, and only those
        of a few sources.
        """
        if not self.packed:
            return self.plan.exhausts()
        names, size = self.plan.sources, self.plan.size
        if size is None or len(names) > _FEW:
            return {}
        return {name: Exhaustion(None, _last(lambda p, n=name: self.plan.counts(p)[n], size)) for name in names}

    @cached_property
    def caps(self) -> dict[str, float]:
        """The epochs after which a source is used up, of those that have a limit of their own or their mixture's."""
        return {
            name: cap
            for name, source in self.model.leaves()
            if (cap := source.max_epochs or self.model.max_epochs) is not None
        }

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The rows of each source."""
        return {leaf.name: len(leaf.source) for leaf in self._builder.leaves if is_source(leaf.source)}

    @property
    def packed(self) -> bool:
        """Whether a step holds packed rows, planned ahead: then documents come in parts, and tokens are what counts."""
        return self._pack is not None

    @cached_property
    def _pack(self) -> PackedOp | None:
        found = self._builder.op(self.plan.flow)
        while isinstance(found, OneInput) and not isinstance(found, PackedOp):
            found = found.flow
        return found if isinstance(found, PackedOp) else None

    def in_force(self, sample: int) -> dict[str, float]:
        """The weights of the outermost mixture at one of its samples, of sum 1; those of sources used up are 0."""
        found = self._builder.op(self.plan.flow)
        while isinstance(found, OneInput):
            found = found.flow
        assert isinstance(found, MixOp) and isinstance(found.schedule, Mixture | Corrected)
        size = found.schedule.size
        return found.schedule.weights_at(sample if size is None else min(sample, size - 1))

    @cached_property
    def all_tokens(self) -> dict[str, int]:
        """The tokens of each source whose lengths are known, with what packing adds to every document."""
        extra = self._pack.extra if self._pack else 0
        out = dict[str, int]()
        for leaf in self._builder.leaves:
            lengths = leaf.source.lengths() if is_source(leaf.source) else None
            if lengths is not None:
                out[leaf.name] = int(lengths.sum()) + extra * len(lengths)
        return out

    def tokens(self, steps: int) -> dict[str, int]:
        """The tokens of each source over so many steps; nothing for those whose lengths are not known."""
        if not self.all_tokens:
            return {}
        return self.plan.counts(self.position(steps), unit="tokens")

    def text(self, source: str, index: int) -> str:
        """How a sample of a source begins, as it lies in its file."""
        leaf = next(leaf for leaf in self._builder.leaves if leaf.name == source)
        assert is_source(leaf.source)
        shown = repr(leaf.source.read(np.asarray([index]))[0])
        return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."

    @cached_property
    def _builder(self) -> Builder:
        return Builder(self.plan.flow)

    def asked(self, steps: int) -> dict[str, float]:
        """The share of the samples that the weights ask for, by source, over so many steps."""
        out = np.zeros(len(self.plan.sources))
        _shared(
            self._builder.op(self.plan.flow), max(1, sum(self.plan.counts(self.position(steps)).values())), 1.0, out
        )
        return dict(zip(self.plan.sources, out.tolist(), strict=True))


def opened(path: Path, model: MixtureFile | None = None, state: Path | None = None) -> Target:
    """Open a mixture file, or one with settings changed (`model`); with a `state`, as the run that saved it has it.

    Raises `ConfigError` with all that is wrong in the file.
    """
    if model is None:
        model, problems = read_model(path)
        errors = [problem for problem in problems if problem.severity == "error"]
        if model is None or errors:
            raise ConfigError(problems_said(errors))
    dataset = build(model)
    flow: Flow = dataset.flow
    while True:
        try:
            plan, whole = Dataset(flow).plan, flow is dataset.flow
            if state is not None:
                if not whole:
                    raise ConfigError(
                        f"{state}: rows are packed while this mixture runs; only without a state it is told"
                    )
                plan = plan.after(state)
            return Target(path, model, dataset, plan, whole)
        except IndexedError:
            if (below := only_input(flow)) is None:
                raise
            flow = below


def _last(count: Callable[[int], int], size: int) -> int | None:
    """The first position before which a count has reached what it has at the end; None if that is the end."""
    low, high, final = 0, size, count(size)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if count(middle) == final else (middle, high)
    return high if high < size else None


def _shared(op: Op, samples: int, share: float, out: npt.NDArray[np.float64]) -> None:
    """Give every leaf below its part of a share."""
    if isinstance(op, MixOp):
        even = np.ones(len(op.inputs)) / len(op.inputs)
        parts = asked(op.schedule, samples) if isinstance(op.schedule, Mixture) else even
        for each, part in zip(op.inputs, parts.tolist(), strict=True):
            _shared(each, max(1, round(samples * part)), share * part, out)
    elif op.leaf is not None and not op.inputs:
        out[op.leaf] += share
    for each in op.inputs if isinstance(op, OneInput) else ():
        _shared(each, samples, share, out)
