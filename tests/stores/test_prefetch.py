"""Read-ahead: along the known order, many requests at once, and hardly a byte more than is needed."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.engine.base import seams
from penstock.stores import ByteRange, CompositeStore, storage
from penstock.stores.prefetch import Prefetcher, merge_ranges

from . import servers

ROWS = 400


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Site]:
    folder = tmp_path_factory.mktemp("www")
    for number in range(2):
        rows = range(number * ROWS // 2, (number + 1) * ROWS // 2)
        body = (
            json.dumps({"id": i, "t": "x" * random.Random(i).randint(9_000, 30_000)}) for i in rows
        )
        (folder / f"{number}.jsonl").write_text("\n".join(body))
    np.save(folder / "t.npy", np.arange(200_000, dtype=np.uint32))
    with servers.site(folder) as found:
        yield found


def test_bytes_asked_are_those_needed(site: servers.Site) -> None:
    ds = ps.read(f"{site.url}/{{0..1}}.jsonl").shuffle()
    needed = sum(len(data) for data, _ in site.files.values())
    site.sent, site.most = 0, 0
    assert sorted(row["id"] for row in ds) == list(range(ROWS))
    assert site.sent <= 1.1 * needed
    site.sent = 0
    assert len({row["id"] for row in ds.skip(ROWS // 2)}) == ROWS // 2
    assert site.sent <= 1.1 * needed * 0.6  # also of half of it


def test_many_requests_are_under_way(site: servers.Site) -> None:
    """Every request waits until another one comes: one at a time would never end."""
    ds = ps.read(f"{site.url}/{{0..1}}.jsonl").shuffle()
    barrier, came, met = threading.Barrier(8), iter(range(8)), list[int]()

    def wait(_: Any) -> bool:
        if next(came, None) is not None:
            met.append(barrier.wait(60))
            there.release()
        return False

    there = threading.Semaphore(0)
    site.always = wait
    try:
        next(iter(ds))
    finally:
        site.always = None
    assert all(there.acquire(timeout=60) for _ in range(8))
    assert sorted(met) == list(range(8))


def test_row_groups_are_fetched_ahead_and_only_their_columns(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    dice = np.random.default_rng(0)
    columns: Any = {
        "id": np.arange(4_000),
        "a": dice.random(4_000),
        "b": dice.random((4_000, 9)).tolist(),
    }
    pq.write_table(pa.table(columns), tmp_path / "x.parquet", row_group_size=100)
    footer = pq.read_metadata(tmp_path / "x.parquet")
    chunks = [footer.row_group(n).column(m) for n in range(40) for m in (0, 1)]
    needed = sum(chunk.total_compressed_size for chunk in chunks)
    with servers.site(tmp_path) as site:
        ds = ps.read(f"{site.url}/x.parquet", columns=["id", "a"]).shuffle()
        footers, site.sent, site.most = site.sent, 0, 0
        assert [row["id"] for row in ds] == [
            row["id"] for row in ps.read(tmp_path / "x.parquet", name="x").shuffle()
        ]
        assert needed <= site.sent <= 1.1 * needed + footers


def test_windows_of_tokens_are_fetched_ahead(site: servers.Site) -> None:
    ds = ps.windows(ps.read(f"{site.url}/t.npy"), 999)
    site.asked.clear()
    site.sent = 0
    found = list(ds)
    assert len(found) == 200 and found[7].tolist() == list(range(7 * 999, 8 * 999 + 1))
    assert site.sent <= 1.1 * 800_000 and len(site.asked) < 60


class Pool:
    """Hands that do what they are told when they are told."""

    def submit(self, task: Any, /) -> Future[Any]:
        found: Future[Any] = Future()
        try:
            found.set_result(task())
        except Exception as error:
            found.set_exception(error)
        return found

    def close(self, seconds: float | None = None, /) -> None:
        pass


class Sched(seams.LocalSched):
    def spawn(self, workers: int, /) -> Any:
        return Pool()


def test_any_reads_over_any_announcements_give_the_bytes() -> None:
    data = bytes(random.Random(0).randbytes(5_000))
    for seed in range(150):
        dice, asked = random.Random(seed), list[ByteRange]()

        def ask(
            wanted: ByteRange, asked: list[ByteRange] = asked, dice: random.Random = dice
        ) -> bytes:
            asked.append(wanted)
            if dice.random() < 0.05:
                raise OSError("lost")
            return data[wanted.start : wanted.stop]

        with storage.override_world(sched=Sched()):
            prefetcher = Prefetcher(ask)
            for _ in range(30):
                spans = [sorted(dice.sample(range(5_001), 2)) for _ in range(dice.randint(1, 5))]
                if dice.random() < 0.5:
                    prefetcher.begin(ByteRange("a", *span) for span in spans)
                elif dice.random() < 0.05:
                    prefetcher.forget("a")
                else:
                    for start, stop in spans:
                        try:
                            assert (
                                bytes(prefetcher.read(ByteRange("a", start, stop)))
                                == data[start:stop]
                            )
                        except OSError as error:
                            assert str(error) == "lost"


def test_what_nobody_wants_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.stores.prefetch._MAX_PENDING_BYTES", 1_000)
    with storage.override_world(sched=Sched()):
        prefetcher = Prefetcher(lambda wanted: bytes(wanted.stop - wanted.start))
        assert prefetcher.begin([ByteRange("a", n, n + 90) for n in range(0, 1_000, 100)])
        assert not prefetcher.begin([ByteRange("a", 5_000, 5_500)])
        assert not prefetcher.begin([ByteRange("b", 0, 200)])
        assert prefetcher.begin(
            [ByteRange("b", 0, 200)], now=True
        )  # what waits for the longest time is let go of
        assert prefetcher.begin([ByteRange("b", 0, 200), ByteRange("a", 500, 590)])
        assert not prefetcher.begin([ByteRange("a", 0, 90), ByteRange("a", 5_000, 5_500)])
        assert prefetcher.begin([ByteRange("a", 5_000, 5_500)], now=True)


def test_more_than_fits_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.stores.prefetch._MAX_PENDING_BYTES", 1_000)
    asked = list[ByteRange]()

    def ask(wanted: ByteRange) -> bytes:
        asked.append(wanted)
        return bytes(wanted.stop - wanted.start)

    with storage.override_world(sched=Sched()):
        assert Prefetcher(ask).begin([ByteRange("a", n, n + 300) for n in range(0, 9_000, 400)])
    assert len(asked) == 3


def test_what_another_thread_let_go_of_is_asked_for_again() -> None:
    """The last dataset over a store may be collected by a thread while another one opens the next."""
    prefetcher = Prefetcher(lambda wanted: b"")

    class LetGo(Pool):
        def submit(self, task: Any, /) -> Future[Any]:
            prefetcher.close()
            found: Future[Any] = Future()
            assert found.cancel()
            return found

    pools = iter([LetGo(), LetGo(), Pool()])

    class Pools(seams.LocalSched):
        def spawn(self, workers: int, /) -> Any:
            return next(pools)

    with storage.override_world(sched=Pools()):
        assert prefetcher.each(lambda item: 2 * item, range(5)) == [0, 2, 4, 6, 8]


def test_ranges_are_joined() -> None:
    assert merge_ranges([ByteRange("a", 3, 5), ByteRange("a", 0, 4)]) == [ByteRange("a", 0, 5)]


def test_ranks_of_a_node_list_once(
    site: servers.Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """16 processes, each with a store of its own that knows nothing of the others."""
    from penstock.engine.base import machine

    monkeypatch.setenv("WORLD_SIZE", "16")
    site.asked.clear()
    for rank in range(16):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setattr(machine, "get_pid", lambda rank=rank: 1_000_000 + rank)
        store = CompositeStore(storage.LocalStore())
        with storage.override_world(store=store):
            assert len(ps.read(f"{site.url}/{{0..1}}.jsonl", cache=tmp_path)) == ROWS
        store.close()
    assert sum(method == "HEAD" for method, *_ in site.asked) == 2
    assert len({asked for asked in site.asked if asked[0] == "GET"}) == len(
        [a for a in site.asked if a[0] == "GET"]
    )


def test_an_answer_is_kept_while_others_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is written beside has another name for a moment, and is gone when it is looked at."""
    from penstock.engine.base import machine
    from penstock.stores import listings
    from penstock.stores.client import ObjectInfo

    class Fleeting(storage.LocalDisk):
        def list(self, folder: Path, /) -> list[str]:
            return [".of-another.tmp", *super().list(folder)]

    asked, found = list[int](), [ObjectInfo("s3://a/b", 7, "etag")]
    monkeypatch.setenv("WORLD_SIZE", "2")
    with storage.override_world(disk=Fleeting()):
        for process in (1_000_000, 1_000_001):
            monkeypatch.setattr(machine, "get_pid", lambda process=process: process)
            assert (
                listings.share_listing(
                    ["s3://a/*"], lambda process=process: asked.append(process) or found
                )
                == found
            )
    assert asked == [1_000_000]
