"""The figures of loaders where others draw them, against the real packages."""

from __future__ import annotations

import errno
import gc
import os
import signal
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.engine.base.event_counts import EVENT_COUNTS
from penstock.engine.base.seams import LocalSched
from penstock.engine.runtime.metrics import METRICS, iter_metrics
from penstock.stores.blocks import BlockCache
from penstock.stores.client import ObjectInfo
from penstock.stores.storage import LocalStore, override_world

ROOT = Path(__file__).parents[2]


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
    assert (
        found["data/items"] == 6
        and found["data/samples/web"] == found["data/samples/code/py"] == 12
    )
    assert (
        found["data/epoch"] == 1
        and found["data/errors"] == 0
        and found["data/resident_bytes/run"] > 1 << 20
    )
    assert found["data/step_items/read/web"] == 12
    assert all(
        type(value) is float and type(name) is str and name.startswith("data/")
        for name, value in found.items()
    )
    assert 0 <= found["data/waited_seconds"] <= found["data/elapsed_seconds"]


def test_the_page_names_the_statistics_that_are_not_exported() -> None:
    loader = given()
    exported = {name.split("/")[1] for name in loader.metrics()}
    names = {"elapsed_s": "elapsed_seconds", "waited_s": "waited_seconds", "time": "step_seconds"}
    rest = {name for name in loader.stats() if names.get(name, name) not in exported}
    page = (ROOT / "docs" / "observe.md").read_text(encoding="utf-8")
    section = page.partition("## Exporting metrics")[2].partition("```")[0]
    assert rest == {"first_s", "longest_stall_s", "functions"}
    assert all(f"`{name}`" in section for name in rest)
    stats, metrics = loader.stats(), loader.metrics()
    assert metrics["data/waited_seconds"] == stats["waited_s"] - stats["first_s"]


def fails_at_three(x: int) -> int:
    if x == 3:
        raise ValueError("a bad sample")
    return x


def test_quarantined_samples_are_counted_by_source() -> None:
    parts = {
        "good": ps.from_sequence(range(9)),
        "bad": ps.from_sequence(range(9)).map(fails_at_three),
    }
    loader = ps.Loader(ps.mix(parts, stop="all_exhausted"), on_error="quarantine")
    assert len(list(loader)) == 18
    found = loader.metrics()
    assert (found["data/quarantined/bad"], found["data/quarantined/good"]) == (1, 0)


class Failing(LocalStore):
    """Fails at every second read of a file of lines."""

    reads = 0

    def read(self, path: str, start: int = 0, length: int | None = None, /) -> bytes:
        self.reads += path.endswith(".jsonl")
        if path.endswith(".jsonl") and self.reads % 2:
            raise OSError(errno.EIO, "busy")
        return super().read(path, start, length)


class NoWait(LocalSched):
    def sleep(self, seconds: float, /) -> None:
        pass


def test_reads_of_storage_that_are_made_again_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
    ds = ps.read(tmp_path / "a.jsonl")
    assert len(list(ds)) == 2
    loader = ps.Loader(ds)
    before = loader.stats()["retries"]
    with override_world(store=Failing(), sched=NoWait()):
        assert len(list(loader)) == 2
    assert loader.stats()["retries"] > before


def test_blocks_of_the_cache_are_counted_as_hits_and_misses(tmp_path: Path) -> None:
    before, found = EVENT_COUNTS.totals(), ObjectInfo("http://x/a.bin", 3 << 20, "v1", 0)

    def ask(start: int, stop: int) -> bytes:
        return bytes(stop - start)

    for _ in range(2):
        BlockCache(tmp_path).read(found, 0, 2 << 20, ask)
    BlockCache(tmp_path).read(found, 0, 3 << 20, ask)
    after = EVENT_COUNTS.totals()
    assert [after[name] - before[name] for name in ("cache_hits", "cache_misses")] == [4, 3]


def counts_once(x: int) -> int:
    if x == 0:
        EVENT_COUNTS.add("retries", 7)
    return x


def dies_once(x: int, marker: str) -> int:
    if x == 5 and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return x


@pytest.mark.slow  # starts processes
def test_worker_processes_tell_what_they_counted_and_how_many_died(tmp_path: Path) -> None:
    ds = (
        ps.from_sequence(range(20))
        .map(counts_once)
        .map(partial(dies_once, marker=str(tmp_path / "died")))
    )
    with ps.Loader(ds, workers=1, executor="processes") as loader:
        before = loader.stats()["retries"]
        assert list(loader) == list(range(20))
        assert loader.metrics()["data/worker_deaths"] == 1
        assert loader.stats()["retries"] - before in (
            7,
            14,
        )  # what died may have told of its unit, or not


def test_every_metric_is_told_and_every_name_is_used() -> None:
    assert {metric.name for metric in iter_metrics(given().stats())} == set(METRICS)


def test_prometheus_scrapes_several_loaders() -> None:
    prometheus = pytest.importorskip("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families

    from penstock.integrations.prometheus import LoaderCollector

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
    assert {f"penstock_{name}" for name in METRICS} == set(families)
    samples = {
        (s.labels["loader"], s.labels["source"]): s.value
        for s in families["penstock_samples"].samples
    }
    assert samples == {
        ("train", "web"): 12,
        ("train", "code/py"): 12,
        ("val", "web"): 8,
        ("val", "code/py"): 8,
    }
    assert (
        families["penstock_samples"].type == "counter"
        and families["penstock_under_way"].type == "gauge"
    )
    assert all(family.documentation for family in families.values())


def test_a_collector_does_not_keep_a_loader() -> None:
    prometheus = pytest.importorskip("prometheus_client")
    from penstock.integrations.prometheus import LoaderCollector

    loader = given()
    registry = prometheus.CollectorRegistry()
    registry.register(LoaderCollector({"train": loader}))
    assert registry.get_sample_value("penstock_items_total", {"loader": "train"}) == 6
    del loader
    gc.collect()
    assert registry.get_sample_value("penstock_items_total", {"loader": "train"}) is None
    assert prometheus.generate_latest(registry) == b""


def test_counters_only_grow_while_a_run_goes_on() -> None:
    ds = ps.mix(
        {"a": ps.from_sequence(range(40)).map(plain), "b": ps.from_sequence(range(40))},
        stop="all_exhausted",
    )
    with ps.Loader(ds.batch(3), workers=2, profile=True) as loader:
        before = dict[str, float]()
        for _ in range(2):
            for i, _item in enumerate(loader):
                now = {
                    metric[0] + str(metric[1]): metric[2]
                    for metric in iter_metrics(loader.stats())
                    if METRICS[metric.name][0]
                }
                assert all(now[name] >= value for name, value in before.items())
                before = now
                if i == 5:
                    loader.set_weights({"a": 2, "b": 1})
        assert loader.stats()["items"] == 54


def test_opentelemetry_reads_the_same() -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.metrics")
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    from penstock.integrations.otel import observe

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
    assert {name for name, *_ in found} == {f"penstock.{name}" for name in METRICS}
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
    with pytest.raises(ImportError, match=r"penstock-data\[metrics\]"):
        getattr(importlib.import_module(f"penstock.integrations.{module}"), name)({})
