"""Anomalies in a range of steps, by comparison with other ranges of the same length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.engine.base.progress import Progress

from .step_ranges import RangeFigures, RangeMeter
from .target import Target

COMPARED_RANGES = 48  # other step ranges to compare with
_MIN_BITS = 0.004  # smaller findings are dropped
_MIN_QUANTILE = 0.9  # a finding must exceed this quantile of the other ranges

Floats: TypeAlias = npt.NDArray[np.float64]
RangeFigure: TypeAlias = Callable[[RangeFigures], Floats]


@dataclass(frozen=True)
class Finding:
    """An anomaly of a source.

    `here` is the figure in the examined steps, `usual` its median over the other ranges. `bits` is
    the strength: the affected share of the steps times |log2(here / usual)|, minus the value that
    most other ranges have.
    """

    kind: str
    source: str
    here: float
    usual: float
    bits: float
    text: str


def blame(target: Target, steps: range) -> list[Finding]:
    """Return the anomalies of some steps: at most one per source, the strongest first.

    Compares shares of sources, lengths of documents, repeats within the steps (copies of a file
    count as the file), files that give more than usual, and passes.

    Args:
        target: The opened mixture.
        steps: The range of steps.

    Returns:
        The findings.
    """
    meter = RangeMeter(target)
    here, other_ranges = meter.measure(steps), list[RangeFigures]()
    with Progress("blame", COMPARED_RANGES, "stretches") as progress:
        for other_range in _iter_other_ranges(steps, target.horizon(None)):
            other_ranges.append(meter.measure(other_range))
            progress.more(1)
    if not other_ranges:
        return []
    findings = [
        *_compare_figure(
            "share", here, other_ranges, lambda one: one.share, lambda one: one.share, _format_share
        ),
        *_compare_figure(
            "length",
            here,
            other_ranges,
            lambda one: one.length,
            lambda one: one.share,
            _format_length,
        ),
        *_compare_figure(
            "repeats",
            here,
            other_ranges,
            lambda one: one.again,
            lambda one: one.again,
            _make_repeats_describer(meter, here),
        ),
        *_compare_figure(
            "file",
            here,
            other_ranges,
            lambda one: one.fullest,
            lambda one: one.share,
            _make_file_describer(meter, here),
        ),
        *_compare_figure(
            "epoch",
            here,
            other_ranges,
            lambda one: 1 + one.epoch,
            lambda one: one.share,
            _format_epoch,
        ),
    ]
    boundaries = _describe_boundaries(target, steps)
    named_findings = [
        replace(
            one, source=target.plan.sources[number], text=f"{one.text}{boundaries.get(number, '')}"
        )
        for number, one in _merge_findings(findings)
    ]
    return [one for one in named_findings if one.bits >= _MIN_BITS]


def _iter_other_ranges(steps: range, end: int) -> Iterator[range]:
    """Yield ranges of the same length, spread over the run, disjoint from the examined one."""
    length, last_start = len(steps), end - len(steps)
    starts = np.unique(
        np.linspace(0, max(last_start, 0), 2 * COMPARED_RANGES).astype(np.int64)
    ).tolist()
    disjoint = [start for start in starts if start >= steps.stop or start + length <= steps.start]
    for start in disjoint[:: -(-len(disjoint) // COMPARED_RANGES) or 1]:
        yield range(start, start + length)


FigureDescriber: TypeAlias = Callable[[int, float, float], str]
NumberedFinding: TypeAlias = "tuple[int, Finding]"


def _compare_figure(
    kind: str,
    here: RangeFigures,
    others: Sequence[RangeFigures],
    figure: RangeFigure,
    part: RangeFigure,
    describe: FigureDescriber,
) -> Iterator[NumberedFinding]:
    """Yield the sources whose figure differs more than in most other ranges."""
    with np.errstate(invalid="ignore"):
        values = np.stack([figure(measured) for measured in others])
        is_known = ~np.isnan(values).all(axis=0)
        usual = np.zeros(values.shape[1])
        usual[is_known] = np.nanmedian(values[:, is_known], axis=0)
    parts, small = np.stack([part(measured) for measured in others]), 0.5 / max(1, here.total)
    usual_part = np.median(parts, axis=0)

    def bits(value: Floats, share: Floats) -> Floats:
        # A deficit concerns the usual share, an excess the share in these steps.
        log_ratio = np.log2((np.nan_to_num(value) + small) / (usual + small))
        log_ratio[np.isnan(value)] = 0
        return np.where(log_ratio > 0, share, np.maximum(usual_part, share)) * np.abs(log_ratio)

    bits_here = bits(figure(here), part(here))
    bits_elsewhere = np.quantile(
        np.stack([bits(*both) for both in zip(values, parts, strict=True)]), _MIN_QUANTILE, axis=0
    )
    if kind != "share":
        bits_here[~is_known] = 0
    for number in np.flatnonzero(bits_here - bits_elsewhere >= _MIN_BITS).tolist():
        value_here, usual_value = float(figure(here)[number]), float(usual[number])
        if (
            kind == "epoch" and value_here < usual_value
        ):  # a lower pass is normal at the start of a run
            continue
        yield (
            number,
            Finding(
                kind,
                "",
                value_here,
                usual_value,
                float(bits_here[number] - bits_elsewhere[number]),
                describe(number, value_here, usual_value),
            ),
        )


def _merge_findings(findings: Sequence[NumberedFinding]) -> list[NumberedFinding]:
    """Merge the findings of each source, the strongest first; return sources by strength."""
    best = dict[int, Finding]()
    for number, finding in sorted(findings, key=lambda pair: -pair[1].bits):
        if number not in best:
            best[number] = finding
        else:
            best[number] = replace(best[number], text=f"{best[number].text}; {finding.text}")
    return sorted(best.items(), key=lambda pair: -pair[1].bits)


def _format_share(_: int, here: float, usual: float) -> str:
    return f"gives {here:.2%} of these steps, usually {usual:.2%}"


def _format_length(_: int, here: float, usual: float) -> str:
    ratio = (
        f"{here / usual:.1f} times as long as"
        if here > usual
        else f"{usual / max(here, 1e-9):.1f} times shorter than"
    )
    return f"its documents are {ratio} usual: {here:,.0f} tokens, usually {usual:,.0f}"


def _make_repeats_describer(look: RangeMeter, here: RangeFigures) -> FigureDescriber:
    def describe(number: int, repeat_share: float, usual: float) -> str:
        document_count = here.samples[number]
        file_name = look.file(number, int(here.file[number]))
        file_part = f", {here.fullest[number]:.0%} of them from {file_name}" if file_name else ""
        repeated = f"{repeat_share * here.total:,.0f} of its {document_count:,.0f} documents"
        text = f"{repeated} are repeated within these steps"
        return f"{text}, usually {usual * here.total:,.0f}{file_part}"

    return describe


def _make_file_describer(look: RangeMeter, here: RangeFigures) -> FigureDescriber:
    def describe(number: int, part: float, usual: float) -> str:
        name = look.file(number, int(here.file[number]))
        return f"{part:.0%} of it comes from {name}, usually {usual:.0%} from one file"

    return describe


def _format_epoch(_: int, here: float, usual: float) -> str:
    return f"it is in pass {here:.1f} on average, usually {usual:.1f}"


def _describe_boundaries(target: Target, steps: range) -> dict[int, str]:
    """Return the first draws, new passes and last draws of sources within the steps."""
    counts_before, counts_after, counts_at_end = (
        list(target.rows.counts(step=step).values())
        for step in (steps.start, steps.stop, target.horizon(None))
    )
    texts = dict[int, str]()
    for number, name in enumerate(target.plan.sources):
        size = target.sizes.get(name, 0)
        if not counts_before[number] and counts_after[number] and steps.start:
            texts[number] = "; first drawn here"
        elif size and counts_before[number] // size < counts_after[number] // size:
            texts[number] = f"; its pass {counts_after[number] // size + 1:,} begins here"
        elif (
            counts_after[number] == counts_at_end[number]
            and counts_before[number] < counts_after[number]
            and steps.stop < target.horizon(None)
        ):
            texts[number] = "; not drawn after these steps"
    return texts
