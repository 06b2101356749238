"""Metrics of a run: numbers with a name and labels, for any backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..base.event_counts import EVENT_NAMES

METRICS: dict[str, tuple[bool, str]] = {
    "epoch": (False, "The current pass of the run."),
    "items": (True, "Delivered items."),
    "samples": (True, "Delivered samples, by source."),
    "cropped": (True, "Tokens that delivered rows cut off their documents, by source."),
    "bytes": (True, "Bytes of the delivered items, about."),
    "errors": (True, "Samples that could not be read or computed."),
    "quarantined": (True, "Draws of bad samples that were replaced or left out, by source."),
    "worker_deaths": (True, "Worker processes that were replaced."),
    "retries": (True, "Retries of storage calls, in this process and its workers."),
    "cache_hits": (
        True,
        "Blocks of remote files that the cache of the machine had, in this process and its "
        "workers.",
    ),
    "cache_misses": (True, "Blocks of remote files that were fetched."),
    "untrained": (
        True,
        "Documents without a token to train on in their rows, in this process and its workers.",
    ),
    "elapsed_seconds": (True, "Seconds from the first item to the last."),
    "waited_seconds": (True, "Seconds that the run waited for data, after the first item."),
    "stalls": (True, "Waits for an item longer than a millisecond."),
    "under_way": (False, "Units of work in flight."),
    "under_way_bytes": (
        False,
        "Bytes of the units of work in flight, as the memory budget counts them.",
    ),
    "resident_bytes": (False, "Memory of each process."),
    "step_seconds": (True, "Seconds that a step took, by source."),
    "step_processor_seconds": (True, "Seconds of processor time that a step took, by source."),
    "step_items": (True, "Items of a source that went through a step."),
}
"""By name: true for a counter, which only grows, and a description."""


class Metric(NamedTuple):
    """One measured value."""

    name: str
    labels: Mapping[str, str]
    value: float


def iter_metrics(stats: Mapping[str, Any]) -> Iterator[Metric]:
    """Yield the metrics of a loader's `stats()`."""
    plain = (
        "epoch",
        "items",
        "bytes",
        "errors",
        "stalls",
        "under_way",
        "under_way_bytes",
        "worker_deaths",
    )
    for name in (*plain, *EVENT_NAMES):
        yield Metric(name, {}, float(stats[name]))
    yield Metric("elapsed_seconds", {}, stats["elapsed_s"])
    yield Metric("waited_seconds", {}, stats["waited_s"] - stats["first_s"])
    for name in ("samples", "cropped", "quarantined"):
        for source, count in stats[name].items():
            yield Metric(name, {"source": source}, float(count))
    for process, size in stats["resident_bytes"].items():
        yield Metric("resident_bytes", {"process": process}, float(size))
    for row in stats["time"]:
        labels = {"step": row["step"], "source": row["source"]}
        yield Metric("step_seconds", labels, row["seconds"])
        yield Metric("step_processor_seconds", labels, row["processor"])
        yield Metric("step_items", labels, float(row["items"]))


def flatten_metrics(metrics: Iterator[Metric]) -> dict[str, float]:
    """Return metrics as one mapping; a key is `data/`, the name, and the labels."""
    return {
        "/".join(["data", name, *filter(None, labels.values())]): value
        for name, labels, value in metrics
    }


def group_by_name(runs: Mapping[str, Sequence[Metric]]) -> Iterator[tuple[str, str, Metric]]:
    """Yield name, run and metric of several runs, grouped by name."""
    for name in METRICS:
        for run, metrics in runs.items():
            yield from ((name, run, metric) for metric in metrics if metric.name == name)
