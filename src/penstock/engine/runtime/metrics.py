"""The figures of a run as metrics: numbers with a name and labels, for whatever draws them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..base.event_counts import COUNTED

TOLD: dict[str, tuple[bool, str]] = {
    "epoch": (False, "The pass that the run is in."),
    "items": (True, "Items that were given."),
    "samples": (True, "Samples that were given, by source."),
    "bytes": (True, "Bytes of the items that were given, about."),
    "errors": (True, "Samples that could not be read or computed."),
    "quarantined": (True, "Draws of bad samples that are replaced or left out, by source."),
    "worker_deaths": (True, "Worker processes that were replaced."),
    "retries": (True, "Calls of storage that were made again, in this process and its workers."),
    "cache_hits": (
        True,
        "Blocks of remote files found in the cache of the machine, in this process and its "
        "workers.",
    ),
    "cache_misses": (True, "Blocks of remote files that were fetched."),
    "elapsed_seconds": (True, "Seconds from the first item to the last."),
    "waited_seconds": (True, "Seconds in which there was nothing to take, after the first item."),
    "stalls": (True, "How often an item was waited for longer than a millisecond."),
    "under_way": (False, "Pieces of work that are made ahead."),
    "under_way_bytes": (False, "Bytes that these count as."),
    "resident_bytes": (False, "Memory of each process."),
    "step_seconds": (True, "Seconds that a step took for samples of a source."),
    "step_processor_seconds": (True, "Those of them in which a core was busy."),
    "step_items": (True, "Items of a source that went through a step."),
}
"""For every name: whether it only grows, and what it is."""


class Metric(NamedTuple):
    """One number."""

    name: str
    labels: Mapping[str, str]
    value: float


def metrics_of(stats: Mapping[str, Any]) -> Iterator[Metric]:
    """The metrics of a loader's `stats()`."""
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
    for name in (*plain, *COUNTED):
        yield Metric(name, {}, float(stats[name]))
    yield Metric("elapsed_seconds", {}, stats["elapsed_s"])
    yield Metric("waited_seconds", {}, stats["waited_s"] - stats["first_s"])
    for source, count in stats["samples"].items():
        yield Metric("samples", {"source": source}, float(count))
    for source, count in stats["quarantined"].items():
        yield Metric("quarantined", {"source": source}, float(count))
    for process, size in stats["resident_bytes"].items():
        yield Metric("resident_bytes", {"process": process}, float(size))
    for row in stats["time"]:
        labels = {"step": row["step"], "source": row["source"]}
        yield Metric("step_seconds", labels, row["seconds"])
        yield Metric("step_processor_seconds", labels, row["processor"])
        yield Metric("step_items", labels, float(row["items"]))


def flat(metrics: Iterator[Metric]) -> dict[str, float]:
    """The same as one mapping: `data/`, the name, and the labels."""
    return {
        "/".join(["data", name, *filter(None, labels.values())]): value
        for name, labels, value in metrics
    }


def of_all(runs: Mapping[str, Sequence[Metric]]) -> Iterator[tuple[str, str, Metric]]:
    """The metrics of several runs, those of one name together: the name, the run, the metric."""
    for name in TOLD:
        for run, metrics in runs.items():
            yield from ((name, run, metric) for metric in metrics if metric.name == name)
