"""Metrics of loaders as OpenTelemetry instruments, collected on each read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import ref

from ..engine.runtime.metrics import METRICS, iter_metrics
from ..errors import make_missing_extra_error
from ..loader import Loader


def observe(loaders: Mapping[str, Loader], meter: Any = None) -> None:
    """Register observable instruments for the metrics of loaders.

    Instruments are named `penstock.items`, `penstock.waited_seconds` and so on. Nothing is measured
    between two reads. Loaders that were garbage-collected are left out. A read waits for the item
    in progress.

    Args:
        loaders: loaders by name; the name becomes the attribute `loader`.
        meter: an OpenTelemetry meter; the global provider's by default.

    Raises:
        ImportError: without the package `opentelemetry-api` (the extra `metrics`).

    >>> import penstock as ps
    >>> loader = ps.Loader(ps.from_sequence(range(6)).batch(2))
    >>> observe({"train": loader})
    """
    try:
        from opentelemetry import metrics
    except ImportError:
        raise make_missing_extra_error("opentelemetry-api", "metrics", "observe") from None
    meter = meter or metrics.get_meter("penstock")
    references = {name: ref(loader) for name, loader in loaders.items()}

    def values(metric_name: str) -> Callable[[Any], Iterable[Any]]:
        def read_metric(_: Any) -> Iterable[Any]:
            for run, loader in ((run, reference()) for run, reference in references.items()):
                for name, labels, value in iter_metrics(loader.stats()) if loader else ():
                    if name == metric_name:
                        yield metrics.Observation(value, {"loader": run, **labels})

        return read_metric

    for name, (grows, help_) in METRICS.items():
        create = meter.create_observable_counter if grows else meter.create_observable_gauge
        create(f"penstock.{name}", [values(name)], description=help_)
