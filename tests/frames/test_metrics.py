"""The figures of loaders where others draw them, against the real packages."""

from __future__ import annotations

import gc
import urllib.request
from typing import Any

import pytest

import penstock as ps
from penstock.runtime.metrics import TOLD, metrics_of


def plain(x: int) -> int:
    return x + 1


def given(n: int = 12, **options: Any) -> ps.Loader:
    parts = {"web": ps.from_sequence(range(n)).map(plain), "code/py": ps.from_sequence(range(n))}
    loader = ps.Loader(ps.mix(parts, stop="all_exhausted").batch(4), profile=True, **options)
    assert len(list(loader)) == n // 2
    loader.close()
    return loader


def test_metrics_are_one_flat_mapping_of_numbers() -> None:
    loader = given()
    found = loader.metrics()
    assert found["data/items"] == 6 and found["data/samples/web"] == found["data/samples/code/py"] == 12
    assert found["data/epoch"] == 1 and found["data/errors"] == 0 and found["data/resident_bytes/run"] > 1 << 20
    assert found["data/step_items/read/web"] == 12
    assert all(type(value) is float and type(name) is str and name.startswith("data/") for name, value in found.items())
    assert 0 <= found["data/waited_seconds"] <= found["data/elapsed_seconds"]


def test_every_metric_is_told_and_every_name_is_used() -> None:
    assert {metric.name for metric in metrics_of(given().stats())} == set(TOLD)


def test_prometheus_scrapes_several_loaders() -> None:
    prometheus = pytest.importorskip("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families

    from penstock.frames.prometheus import LoaderCollector

    train, val = given(12), given(8)
    registry = prometheus.CollectorRegistry(auto_describe=True)
    registry.register(LoaderCollector({"train": train, "val": val}))
    server, thread = prometheus.start_http_server(0, "127.0.0.1", registry)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as page:
            text = page.read().decode()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {f"penstock_{name}" for name in TOLD} == set(families)
    samples = {(s.labels["loader"], s.labels["source"]): s.value for s in families["penstock_samples"].samples}
    assert samples == {("train", "web"): 12, ("train", "code/py"): 12, ("val", "web"): 8, ("val", "code/py"): 8}
    assert families["penstock_samples"].type == "counter" and families["penstock_under_way"].type == "gauge"
    assert all(family.documentation for family in families.values())


def test_a_collector_does_not_keep_a_loader() -> None:
    prometheus = pytest.importorskip("prometheus_client")
    from penstock.frames.prometheus import LoaderCollector

    loader = given()
    registry = prometheus.CollectorRegistry()
    registry.register(LoaderCollector({"train": loader}))
    assert registry.get_sample_value("penstock_items_total", {"loader": "train"}) == 6
    del loader
    gc.collect()
    assert registry.get_sample_value("penstock_items_total", {"loader": "train"}) is None
    assert prometheus.generate_latest(registry) == b""


def test_counters_only_grow_while_a_run_goes_on() -> None:
    ds = ps.mix({"a": ps.from_sequence(range(40)).map(plain), "b": ps.from_sequence(range(40))}, stop="all_exhausted")
    with ps.Loader(ds.batch(3), workers=2, profile=True) as loader:
        before = dict[str, float]()
        for _ in range(2):
            for i, _item in enumerate(loader):
                now = {
                    metric[0] + str(metric[1]): metric[2]
                    for metric in metrics_of(loader.stats())
                    if TOLD[metric.name][0]
                }
                assert all(now[name] >= value for name, value in before.items())
                before = now
                if i == 5:
                    loader.set_weights({"a": 2, "b": 1})
        assert loader.stats()["items"] == 54


def test_opentelemetry_reads_the_same() -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.metrics")
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    from penstock.frames.otel import observe

    loader = given()
    reader = export.InMemoryMetricReader()
    provider = sdk.MeterProvider([reader])
    observe({"train": loader}, provider.get_meter("penstock"))
    data: Any = reader.get_metrics_data()
    found = {
        (metric.name, *sorted(point.attributes.items())): point.value
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
        for point in metric.data.data_points
    }
    assert found["penstock.items", ("loader", "train")] == 6
    assert found["penstock.samples", ("loader", "train"), ("source", "web")] == 12
    assert {name for name, *_ in found} == {f"penstock.{name}" for name in TOLD}
    del loader
    gc.collect()
    assert reader.get_metrics_data() is None
    provider.shutdown()


@pytest.mark.parametrize(
    ("module", "name", "package"),
    [("prometheus", "LoaderCollector", "prometheus_client"), ("otel", "observe", "opentelemetry")],
)
def test_without_the_package_the_extra_is_named(
    module: str, name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib
    import sys

    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r"penstock\[metrics\]"):
        getattr(importlib.import_module(f"penstock.frames.{module}"), name)({})
