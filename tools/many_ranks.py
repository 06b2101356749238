"""Rehearse the first batch of a run on thousands of ranks.

500 sources in a store, each of 2 * 10^7 rows, shuffled and mixed, are opened by 4,096 ranks on 512
machines.

    python tools/many_ranks.py --home FOLDER [--machines 512] [--ranks 8] [--run 0,255,511]
    [--latency 0.03]

The work of a machine depends only on the numbers of its ranks. So a few machines run, one after
another and without the others. Every rank is a process with the environment that a launcher gives
it, and a machine is a parent process with a cache of its own.

The ranks run all the code of a real run, except for the store. An fsspec protocol that is
registered here replaces it. It counts requests, waits as long as a store does, and returns parts of
one real Parquet file under many names.

The report has a machine's requests by kind and by source, the waits for locks, and the seconds to
the first batch. Each row of the batch is compared with the plan.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

SCHEME = "rehearsed"
GROUP = 50_000
BATCH = 8


def written(path: Path, rows: int) -> None:
    """A Parquet file in which every row tells its number. A second column makes it longer than its
    index."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    dice = np.random.default_rng(1)
    schema = pa.schema([("row", pa.int64()), ("kind", pa.int8())])
    how: Any = {
        "use_dictionary": ["kind"],
        "column_encoding": {"row": "DELTA_BINARY_PACKED"},
        "compression": "none",
    }
    with pq.ParquetWriter(path, schema, write_statistics=False, **how) as file:
        for start in range(0, rows, GROUP):
            many = min(GROUP, rows - start)
            numbers = np.arange(start, start + many)
            columns: Any = {"row": numbers, "kind": dice.integers(0, 2, many, np.int8)}
            table = pa.table(columns)
            file.write_table(table, row_group_size=GROUP)


def register(path: Path, sources: int, latency: float, log: Path) -> None:
    """Have fsspec know a bucket in which so many folders hold this file, and in which requests are
    counted."""
    import fsspec

    size = path.stat().st_size

    class Bucket(fsspec.AbstractFileSystem):
        protocol = SCHEME

        def _asked(self, kind: str, name: str) -> str:
            with open(log, "a") as file:
                file.write(f"{kind} {name.split('/')[1]} {os.getpid()}\n")
            time.sleep(latency)
            return name

        def _entry(self, name: str) -> dict[str, Any]:
            number = int(name.split("/")[1])
            if number >= sources or not name.endswith("/rows.parquet"):
                raise FileNotFoundError(name)
            return {"name": name, "size": size, "type": "file", "etag": f"{number:032x}"}

        def find(self, path: str, *_: Any, **__: Any) -> Any:
            name = self._asked("list", f"{self._strip_protocol(path)}/rows.parquet")
            return {name: self._entry(name)}

        def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
            found = self.find(path)
            return [*(found.values() if detail else found)]

        def info(self, path: str, **_: Any) -> Any:
            return self._entry(self._asked("stat", str(self._strip_protocol(path))))

        def cat_file(self, path: str, start: int = 0, end: int | None = None, **_: Any) -> bytes:
            self._asked("index" if end == size else "data", str(self._strip_protocol(path)))
            with open(file, "rb") as raw:
                raw.seek(start)
                return raw.read((size if end is None else end) - start)

    file = path
    fsspec.register_implementation(SCHEME, Bucket, clobber=True)


def dataset(sources: int, threads: int, cache: Path | None) -> Any:
    """All of them under full shuffles, mixed by weights of which no two are equal."""
    import penstock as ps

    def opened(i: int) -> Any:
        return ps.read(f"{SCHEME}://bucket/{i}/*.parquet", cache=cache)

    with ThreadPoolExecutor(threads) as pool:  # a store answers many at once
        each = {f"s{i:03}": one for i, one in enumerate(pool.map(opened, range(sources)))}
    weights = {name: 1 + 0.01 * i for i, name in enumerate(each)}
    return ps.mix({name: one.shuffle(seed=3) for name, one in each.items()}, weights, seed=7).batch(
        BATCH
    )


@contextlib.contextmanager
def counted_locks() -> Generator[list[float]]:
    """Yield a list that collects the seconds of waiting for each lock of this process."""
    from penstock.stores import storage

    waits = list[float]()

    class Disk(storage.LocalDisk):
        @contextlib.contextmanager
        def lock(self, path: Path, /) -> Generator[bool]:
            began = time.perf_counter()
            with super().lock(path) as held:
                waits.append(time.perf_counter() - began)
                yield held

    with storage.override_world(disk=Disk()):
        yield waits


def rank(given: argparse.Namespace) -> dict[str, Any]:
    """The life of one rank up to its first batch."""
    began = time.perf_counter()
    import penstock as ps

    home = Path(given.home)
    register(home / "rows.parquet", given.sources, given.latency, Path(given.log))
    imported = time.perf_counter()
    with counted_locks() as waits:
        ds = dataset(given.sources, given.threads, Path(os.environ["PENSTOCK_CACHE"]))
        opened = time.perf_counter()
        with ps.Loader(ds) as loader:
            batch = next(iter(loader))
            done = time.perf_counter()
            used = resource.getrusage(resource.RUSAGE_SELF)
            keys, me = loader.keys(), (loader.rank, loader.world_size)
            planned = {sample.key for sample in ds.plan.at(step=0, world_size=me[1])}
    assert planned.issuperset(keys) and len(keys) == BATCH, (
        "the batch is a part of what the plan has for all ranks"
    )
    assert batch["row"].tolist() == [index for _, _, index in keys], (
        "every row is the one that its key names"
    )
    return {
        "rank": me[0],
        "of": me[1],
        "import_s": imported - began,
        "open_s": opened - imported,
        "first_s": done - opened,
        "cpu_s": used.ru_utime + used.ru_stime,
        "rss_mb": used.ru_maxrss / 1024,
        "locks": len(waits),
        "locked_s": sum(waits),
        "keys": keys,
    }


def machine(given: argparse.Namespace, number: int) -> Iterator[dict[str, Any]]:
    """Collect the reports of all ranks of a machine, started together; this process is their
    launcher.
    """
    cache = Path(given.home) / f"machine-{number}"
    log = Path(given.home) / f"asked-{number}"
    cache.mkdir()
    log.touch()
    for name in ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"):
        os.environ.pop(name, None)
    command = [sys.executable, __file__, *sys.argv[1:], "--log", str(log)]
    shared = {"PENSTOCK_CACHE": str(cache), "MASTER_ADDR": "nobody-is-there", "MASTER_PORT": "1"}
    world = {"WORLD_SIZE": str(given.machines * given.ranks), "LOCAL_WORLD_SIZE": str(given.ranks)}
    children = list[subprocess.Popen[str]]()
    try:
        for local in range(given.ranks):
            mine = {"RANK": str(number * given.ranks + local), "LOCAL_RANK": str(local)}
            environment = {**os.environ, **shared, **world, **mine, "PENSTOCK_PROGRESS": "0"}
            children.append(
                subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
            )
        for child in children:
            told = child.communicate()[0]
            if child.returncode:
                raise SystemExit(f"a rank of machine {number} ended with {child.returncode}")
            yield json.loads(told)
    finally:
        for child in children:
            child.kill()
            child.wait()


def asked_of(log: Path) -> dict[str, Counter[str]]:
    """Count the requests for each source, by kind."""
    found: dict[str, Counter[str]] = {kind: Counter() for kind in ("list", "stat", "index", "data")}
    for line in log.read_text().splitlines():
        kind, source, _ = line.split()
        found[kind][source] += 1
    return found


def rehearsed(given: argparse.Namespace) -> list[dict[str, Any]]:
    """The machines that are run, each by itself."""
    home, out = Path(given.home), list[dict[str, Any]]()
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "rows.parquet").exists():
        written(home / "rows.parquet", given.rows)
    seen = Counter[Any]()
    for number in given.run:
        began = time.perf_counter()
        ranks = list(machine(given, number))
        wall = time.perf_counter() - began
        seen.update(tuple(key) for one in ranks for key in one.pop("keys"))
        asked = asked_of(home / f"asked-{number}")
        out.append(
            {
                "machine": number,
                "ranks": [one["rank"] for one in ranks],
                "of": ranks[0]["of"],
                "requests": {kind: sum(by.values()) for kind, by in asked.items()},
                "most_of_a_source": {
                    kind: max(by.values(), default=0)
                    for kind, by in asked.items()
                    if kind != "data"
                },
                "slowest_rank_s": round(
                    max(r["import_s"] + r["open_s"] + r["first_s"] for r in ranks), 2
                ),
                "launch_to_last_batch_s": round(wall, 2),
                **{name: round(float(np.median([r[name] for r in ranks])), 2) for name in _MEDIANS},
            }
        )
        print(json.dumps(out[-1]), flush=True)
    assert set(seen.values()) == {1}, "no two ranks have a sample in common"
    if len(given.run) == given.machines:
        assert len(seen) == given.machines * given.ranks * BATCH, (
            "all ranks together have the whole step"
        )
    return out


_MEDIANS = ("import_s", "open_s", "first_s", "cpu_s", "rss_mb", "locks", "locked_s")


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument(
        "--home", required=True, help="an empty folder for the file, the caches and the counts"
    )
    for name, default in (
        ("sources", 500),
        ("rows", 20_000_000),
        ("machines", 512),
        ("ranks", 8),
        ("threads", 16),
    ):
        asked.add_argument(
            f"--{name}", type=lambda text: int(text.replace("_", "")), default=default
        )
    asked.add_argument(
        "--run", type=lambda text: [int(one) for one in text.split(",")], default=[511, 0, 255]
    )
    asked.add_argument(
        "--latency", type=float, default=0.03, help="seconds that the store takes over a request"
    )
    asked.add_argument("--log", help=argparse.SUPPRESS)
    return asked.parse_args(words)


if __name__ == "__main__":
    options = arguments()
    if options.log:
        print(json.dumps(rank(options)))
    else:
        rehearsed(options)
