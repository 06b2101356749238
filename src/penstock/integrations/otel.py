"""Loaders as instruments of OpenTelemetry, read whenever its reader asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import ref

from ..engine.runtime.metrics import TOLD, metrics_of
from ..errors import missing_extra
from ..loader import Loader


def observe(loaders: Mapping[str, Loader], meter: Any = None) -> None:
    """Have a meter observe the figures of loaders, as `penstock.items`, `penstock.waited_seconds`
    and so on; nothing is measured for it between two readings. Loaders that are gone are left out.
    A reading waits for the item that is being made.

    Args:
        loaders: by the name that they have as the attribute `loader`.
        meter: of OpenTelemetry; that of the global provider when not given.

    Raises:
        ImportError: without the package `opentelemetry-api` (the extra `metrics`).

    >>> import penstock as ps
    >>> loader = ps.Loader(ps.from_sequence(range(6)).batch(2))
    >>> observe({"train": loader})
    """
    try:
        from opentelemetry import metrics
    except ImportError:
        raise missing_extra("opentelemetry-api", "metrics", "observe") from None
    meter = meter or metrics.get_meter("penstock")
    held = {name: ref(loader) for name, loader in loaders.items()}

    def values(of: str) -> Callable[[Any], Iterable[Any]]:
        def observed(_: Any) -> Iterable[Any]:
            for run, loader in ((run, each()) for run, each in held.items()):
                for name, labels, value in metrics_of(loader.stats()) if loader else ():
                    if name == of:
                        yield metrics.Observation(value, {"loader": run, **labels})

        return observed

    for name, (grows, help_) in TOLD.items():
        create = meter.create_observable_counter if grows else meter.create_observable_gauge
        create(f"penstock.{name}", [values(name)], description=help_)
