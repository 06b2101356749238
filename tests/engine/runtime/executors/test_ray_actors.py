"""Actors of a Ray cluster, on a cluster of this machine: the same stream, whoever is lost when."""

from __future__ import annotations

import logging
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from example_counts import is_soak, rounds
from helpers import as_lists
from killed_writer import documents
from penstock.engine.runtime.compute import compute
from penstock.engine.runtime.executors import ray_actors
from penstock.sources import index_files
from penstock.writing import write

ray = pytest.importorskip("ray")
from ray.cluster_utils import Cluster  # noqa: E402

# Ray begins its nodes by fork, which JAX warns of where other tests have loaded it into this process.
pytestmark = [
    pytest.mark.slow,  # a Ray cluster
    pytest.mark.filterwarnings("ignore:os.fork.. was called:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def patiently(begin: Callable[[], Any]) -> Any:
    """Ray gives a node half a minute to begin, which is little for a machine with other work to do."""
    for left in reversed(range(5)):
        try:
            return begin()
        except Exception as error:
            if not left or "timed out during startup" not in str(error):
                raise
    raise AssertionError


def begun() -> tuple[Any, list[Any]]:
    found = Cluster(shutdown_at_exit=True)
    try:
        found.add_node(num_cpus=0, include_dashboard=False)
        return found, [patiently(lambda: found.add_node(num_cpus=2)) for _ in range(2)]
    except Exception:
        found.shutdown()
        raise


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without CPUs, and two nodes with two each."""
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setenv(
            "PYTHONPATH", str(Path(__file__).parents[3]), os.pathsep
        )  # actors import what tests share
        found, nodes = patiently(begun)
        ray.init(address=found.address, log_to_driver=False, configure_logging=False)
        yield found, nodes
        ray.shutdown()
        found.shutdown()


def row(x: int) -> dict[str, Any]:
    return {"x": x, "many": np.full(3000, x)}


def numbers(n: int = 160) -> ps.Dataset:
    return ps.from_sequence(range(n), name="web").shuffle(seed=1)


PIPELINES = {
    "batches": lambda: numbers().map(row).batch(8),
    "filter": lambda: numbers().filter(lambda x: x % 3).map(row).batch(4),
    "packed": lambda: numbers().map(lambda x: np.arange(x % 30 + 1)).pack(64).batch(2),
    "mixture": lambda: (
        ps.mix({"a": numbers(50).map(row), "b": numbers(30).map(row)}, {"a": 1, "b": 2})
        .limit(60)
        .batch(3)
    ),
    "flat map": lambda: numbers(60).flat_map(lambda x: [row(x)] * (x % 4)).batch(3),
    "shuffle buffer": lambda: (
        numbers(80).filter(lambda x: x % 3).shuffle_buffer(16, seed=2).map(row).batch(3)
    ),
    "packed, lengths known": lambda: (
        ps.from_tokens(np.arange(400), np.arange(0, 401, 8)).shuffle().pack(24, "best_fit")
    ),
    "nested": lambda: (
        ps.mix(
            {
                "in": ps.mix({"a": numbers(50), "b": numbers(30)}, {"a": 1, "b": 2}),
                "c": numbers(33).repeat(),
            },
            ps.Schedule([(0, {"in": 3, "c": 1}), (90, {"in": 1, "c": 3})]),
        )
        .limit(150)
        .map(row)
        .batch(3)
    ),
}
"""Those after the second in `make soak`."""


@pytest.mark.parametrize("name", list(PIPELINES)[: rounds(2, 8)])
def test_the_stream_and_its_states_are_those_without(cluster: Any, name: str) -> None:
    def run(**options: Any) -> list[Any]:
        with ps.Loader(PIPELINES[name](), **options) as loader:
            return [(as_lists(item), loader.keys(), loader.state_dict()) for item in loader]

    want = run()
    assert len(want) > 10
    assert run(workers=2, executor="ray") == want


def test_the_work_of_actors_is_timed(cluster: Any) -> None:
    parts = {"web": numbers(80).map(row), "code": numbers(80)}
    with ps.Loader(
        ps.mix(parts, stop="all_exhausted").batch(4, collate=list),
        workers=2,
        executor="ray",
        profile=True,
    ) as loader:
        assert len(list(loader)) == 40
        time = {
            (each["step"].partition(" at ")[0], each["source"]): each["items"]
            for each in loader.stats()["time"]
        }
    assert time["map(row)", "web"] == time["read", "web"] == time["read", "code"] == 80


def deadly(x: int) -> int:
    if x == 11:
        os._exit(9)
    if x == 13:
        raise ValueError("no 13")
    return x


def test_lost_actors_bad_samples_and_errors(cluster: Any) -> None:
    ds = numbers(60).map(deadly).batch(5)
    with ps.Loader(ds, workers=2, executor="ray", on_error="quarantine") as loader:
        items = list[Any]()
        for i, item in enumerate(loader):
            items.append(item.tolist())
            if i == 3:
                executor: Any = loader._executor  # pyright: ignore[reportPrivateUsage]
                ray.kill(executor.workers[0].actor)
        journal = loader.journal
    want = [item.tolist() for item in ps.Loader(numbers(60).batch(5))]
    used = {entry["index"]: entry["used"] for entry in journal}
    assert sorted(used) == [11, 13]
    assert items == [[used.get(x, x) for x in item] for item in want]
    assert any("lost 3 times" in entry["error"] for entry in journal)


@pytest.mark.skipif(not is_soak(), reason="20 seconds of a cluster: `make soak`")
def test_a_node_may_die(cluster: Any) -> None:
    found, nodes = cluster
    ds = numbers(400).map(row).batch(4)
    want = [as_lists(item) for item in ps.Loader(ds)]
    with ps.Loader(ds, workers=2, executor="ray", prefetch=4) as loader:
        items = list[Any]()
        for i, item in enumerate(loader):
            items.append(as_lists(item))
            if i == 20:
                found.remove_node(nodes.pop(), allow_graceful=False)
                nodes.append(patiently(lambda: found.add_node(num_cpus=2)))
    assert items == want
    deadline = time.monotonic() + 120
    while sum(node["Alive"] for node in ray.nodes()) > 3:  # or later tests get the dead node
        assert time.monotonic() < deadline
        time.sleep(0.2)


class Holder:
    """Takes up a CPU."""

    def here(self) -> None:
        """There it is."""


class Freeing(logging.Handler):
    """Lets go of the CPUs that others wait for, once it is said that they do."""

    def __init__(self, holders: list[Any]) -> None:
        super().__init__(logging.WARNING)
        self.holders, self.said = holders, list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())
        for holder in self.holders:
            ray.kill(holder)


def test_actors_that_find_no_room_are_told_of_once(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_actors, "START_SECONDS", 0.5)
    holders: list[Any] = [ray.remote(num_cpus=1)(Holder).remote() for _ in range(4)]
    ray.get([holder.here.remote() for holder in holders])
    log, freeing = logging.getLogger("penstock"), Freeing(holders)
    log.addHandler(freeing)
    try:
        with ps.Loader(numbers(60).batch(5), workers=3, executor="ray", timeout=30) as loader:
            items = [item.tolist() for item in loader]
    finally:
        log.removeHandler(freeing)
    assert items == [item.tolist() for item in ps.Loader(numbers(60).batch(5))]
    (said,) = freeing.said
    assert said.startswith(
        "3 of 3 actors have not started after 0.5 s: each takes a CPU, and the cluster has 4 in all"
    )


# A million, with 10,000 in a shard, in `make soak`.
DOCUMENTS = int(os.environ.get("DOCUMENTS", "4000"))


def test_shards_of_actors_that_are_killed_are_those_of_one_process(
    cluster: Any, tmp_path: Path
) -> None:
    places = {DOCUMENTS // 3, DOCUMENTS // 2}

    def deadly(sample: dict[str, Any]) -> dict[str, Any]:
        marker = tmp_path / f"killed at {sample['json']['number']}"
        if sample["json"]["number"] in places and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return sample

    def written(name: str, **options: Any) -> list[Path]:
        ds = documents(DOCUMENTS).map(deadly)
        return write(ds, tmp_path / name, "tar", shard=max(100, DOCUMENTS // 100), **options)

    many = written("many", executor="ray", workers=4)
    assert len(list(tmp_path.glob("killed at *"))) == 2
    one = written("one")
    assert [file.name for file in many] == [file.name for file in one]
    assert all(
        file.read_bytes() == other.read_bytes() for file, other in zip(many, one, strict=True)
    )
    assert sorted(path.name for path in many[0].parent.iterdir()) == [
        ".shards.json",
        *(file.name for file in many),
    ]


def test_files_are_indexed_by_actors(cluster: Any, tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.jsonl" for i in range(5)]
    for i, path in enumerate(paths):
        path.write_text('{"x": 1}\n' * (i + 1))
    rows = index_files(paths, each=lambda fn, files: compute("index", "files", fn, files, "ray", 2))
    many = [path.read_bytes() for path in sorted(tmp_path.glob(".*"))]
    assert rows == index_files(paths, rebuild=True) and len(many) == 5
    assert [path.read_bytes() for path in sorted(tmp_path.glob(".*"))] == many
