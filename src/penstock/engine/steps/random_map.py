"""`ds.random_map(fn)`: one item for each sample, computed with a random generator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...types import Json
from ..base.random import create_sample_generator
from ..base.rows import ProvenanceRows
from ..base.shown import quote_name
from ..streams.function_call import FunctionCall
from .function_step import FunctionStep
from .step import RandomStep, Written


class RandomMapCall(FunctionCall):
    """`fn(x, rng)`; the generator is keyed by the step, the source, the pass and the sample."""

    takes_value_alone = False

    def bind(self, rows: ProvenanceRows) -> Callable[[int], Callable[[Any], Any]]:
        fn, key, leaves, first = self.fn, self.key, self.leaves, rows.firsts()
        leaf, epoch, index, part = rows.leaf, rows.epoch, rows.index, rows.part

        def bind_generator(i: int) -> Callable[[Any], Any]:
            row = first[i]
            rng = create_sample_generator(
                key ^ leaves[int(leaf[row])].key, int(epoch[row]), int(index[row]), int(part[row])
            )
            return lambda value: fn(value, rng)

        return bind_generator


@dataclass(frozen=True)
class RandomMap(RandomStep, FunctionStep):
    """Replace every sample by `fn(x, rng)`."""

    KEY = "random"
    METHOD = "random_map"
    CALL = RandomMapCall
    varies_by_pass = True

    @property
    def kind(self) -> str:
        return self.KEY

    def describe(self) -> dict[str, Json]:
        return {**super().describe(), **self.describe_keys()}

    def write(self) -> Written:
        text = self._format_call(seed=self.seed, name=quote_name(self.name))
        return Written(text, self.input)
