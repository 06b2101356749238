"""Metrics of loaders as a Prometheus collector: items, waits and buffers at each scrape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any
from weakref import ref

from ..engine.runtime.metrics import METRICS, group_by_name, iter_metrics
from ..errors import make_missing_extra_error
from ..loader import Loader


class LoaderCollector:
    """Collect the metrics of loaders: one time series per loader, source, step or process.

    Nothing is measured between two scrapes. Loaders that were garbage-collected are left out. A
    scrape waits for the item in progress.

    Args:
        loaders: loaders by name; the name becomes the label `loader`.

    Raises:
        ImportError: without the package `prometheus_client` (the extra `metrics`).

    >>> import penstock as ps
    >>> from prometheus_client import CollectorRegistry
    >>> loader = ps.Loader(ps.from_sequence(range(6)).batch(2))
    >>> registry = CollectorRegistry()
    >>> registry.register(LoaderCollector({"train": loader}))
    >>> batches = list(loader)
    >>> registry.get_sample_value("penstock_items_total", {"loader": "train"})
    3.0
    """

    def __init__(self, loaders: Mapping[str, Loader]) -> None:
        try:
            from prometheus_client import core
        except ImportError:
            raise make_missing_extra_error(
                "prometheus_client", "metrics", "LoaderCollector"
            ) from None
        self._core, self._loaders = core, {name: ref(loader) for name, loader in loaders.items()}

    def collect(self) -> Iterator[Any]:
        """Yield one metric family per metric, for Prometheus."""
        alive = {
            name: loader
            for name, reference in self._loaders.items()
            if (loader := reference()) is not None
        }
        runs = {name: list(iter_metrics(loader.stats())) for name, loader in alive.items()}
        for name, group in groupby(group_by_name(runs), key=lambda entry: entry[0]):
            grows, help_ = METRICS[name]
            metrics = list(group)
            kind = self._core.CounterMetricFamily if grows else self._core.GaugeMetricFamily
            family = kind(f"penstock_{name}", help_, labels=["loader", *metrics[0][2].labels])
            for _, run, metric in metrics:
                family.add_metric([run, *metric.labels.values()], metric.value)
            yield family
