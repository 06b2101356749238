"""The target shares of a mixture over a run: the share of each source if no source ever ended."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.engine.mixing import Mixture, SetWeights
from penstock.engine.mixing.options import compute_spans
from penstock.schedule import Floats, InterpolationSpan

_POINTS = 256  # points of a ramp at which its weights are taken


def compute_target_shares(mixture: Mixture, stop: int) -> Floats:
    """Return the mean target shares of the positions before `stop`: float64[sources], of sum 1.

    >>> compute_target_shares(Mixture(("a", "b"), {"a": 3, "b": 1}, (None, None)), 1_000).tolist()
    [0.75, 0.25]
    """
    changes = [(event.at, event.weights) for event in mixture.log if isinstance(event, SetWeights)]
    begins = [0, *(at for at, _ in changes)]
    total = np.zeros(len(mixture.names))
    for number, weights in enumerate([mixture.weights, *(weights for _, weights in changes)]):
        end = min(stop, begins[number + 1] if number + 1 < len(begins) else stop)
        temperature = None if number else mixture.temperature
        spans = compute_spans(mixture.names, mixture.sizes, weights, temperature, mixture.lengths)
        total += _sum_shares(spans, begins[number], end)
    return total / max(float(total.sum()), 1e-300)


def _sum_shares(spans: Sequence[InterpolationSpan], start: int, stop: int) -> Floats:
    """Return the sum of the shares over positions `start` to `stop - 1`."""
    out = np.zeros(len(spans[0].first))
    for span in (span.over(span.first + span.last > 0) for span in spans):
        low, high = max(start, span.begin), stop if span.end is None else min(stop, span.end)
        if high <= low:
            continue
        if span.constant:
            rows = span.first[None, :]
        else:
            positions = np.linspace(low, high - 1, min(_POINTS, high - low)).astype(np.int64)
            rows = span.means(positions, np.ones_like(positions), 1)
        out += (rows / rows.sum(axis=1, keepdims=True)).mean(axis=0) * (high - low)
    return out
