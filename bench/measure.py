"""The ways of measuring. Each runs in a process of its own and gives a flat mapping of what it
found."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .parallel import WORKS
from .reading import READS
from .table import CASES, Row
from .texts import TEXTS
from .work import MANY, Docs, Ints, Mixed, MixedDocs, scratch

Found = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """Duration of the measurements, and size of the data."""

    slice_s: float = 0.5
    slices: int = 3
    share_s: float = 10.0
    docs: int = 200_000
    reach_s: float = 30.0
    first: bool = True  # the first round also takes what does not change from run to run

    @classmethod
    def quick(cls) -> Scale:
        return cls(slice_s=0.15, slices=3, share_s=0.2, docs=20_000, reach_s=1.0)

    @classmethod
    def tiny(cls) -> Scale:
        """Return a scale at which every row runs once; its figures mean nothing."""
        return cls(slice_s=0.01, slices=1, share_s=0.0, docs=2_000, reach_s=0.3)


# ---------------------------------------------------------------- streams


class Meter:
    """Draws batches from an endless succession of passes; counts, and stops when the time is
    over."""

    def __init__(self, make: Callable[[], Iterable[Any]]) -> None:
        self.make = make
        self.it: Iterator[Any] | None = None
        self.wall = self.cpu = 0.0
        self.batches = 0
        self.first_s = 0.0

    def run(self, seconds: float) -> None:
        """Another slice. Making a pass and its first batch are not in the rate; they are told
        apart."""
        left = seconds
        while left > 0:
            if self.it is None:
                began = time.perf_counter()
                self.it = iter(self.make())
                next(self.it)
                self.first_s = self.first_s or time.perf_counter() - began
            left -= self._drain(self.it, left)

    def _drain(self, it: Iterator[Any], seconds: float) -> float:
        done = 0
        cpu, began = time.process_time(), time.perf_counter()
        end = began + seconds
        for _ in it:
            done += 1
            # Slow batches are few: the clock is read after each of the first.
            if (done < 16 or not done & 15) and time.perf_counter() > end:
                break
        else:
            self.it = None
        wall = time.perf_counter() - began
        self.cpu += time.process_time() - cpu
        self.wall += wall
        self.batches += done
        return wall


def alternate(floor: Meter, peer: Meter, scale: Scale) -> None:
    """The floor and the peer in turn, so that a busy machine disturbs both alike."""
    floor.run(scale.slice_s / 4)
    peer.run(scale.slice_s / 4)
    for meter in (floor, peer):  # the first slices warm up
        meter.wall = meter.cpu = 0.0
        meter.batches = 0
    for _ in range(scale.slices):
        floor.run(scale.slice_s / 2)
        peer.run(scale.slice_s)
    floor.run(scale.slice_s / 2)


def stream(row: Row, scale: Scale) -> Found:
    """Rates of a row and of the floor. Samples of a batch, or real tokens of one where rows are
    packed."""
    work = work_of(row, scale)
    peer, floor = Meter(lambda: row.make(work)), Meter(work.floor)
    if row.facts.get("offline"):
        return offline(row, work, floor, scale)
    alternate(floor, peer, scale)
    each = float(getattr(work, "batch", 0)) or work.rows * work.length
    found = {"first_batch_s": peer.first_s}
    mine = each
    if isinstance(work, Docs):
        fill = row.facts.get("fill", lambda batch: (np.size(batch), np.size(batch)))
        real, places = filled(row.make(work), fill, scale)
        mine = each * real / places
        found["fill"] = real / places
    found |= rates(peer, mine, floor, each)
    if row.case in WORKS or row.case in (
        "index_lines",
        "count_tokens",
        "chats",
    ):  # what other processes compute is not in the time of this one
        found["ratio"] = found["ratio_wall"]
    reaches = found["per_s"] * scale.share_s >= 1000
    if isinstance(work, Mixed) and scale.first and reaches and row.peer != "floor":
        found |= shares(row, work, scale)
    return found


def rates(peer: Meter, mine: float, floor: Meter, each: float) -> Found:
    """A second of wall time and of CPU time, and both as parts of what the floor did in the same
    slices."""
    found = {
        "per_s": peer.batches * mine / peer.wall,
        "per_cpu_s": peer.batches * mine / peer.cpu,
        "floor_per_s": floor.batches * each / floor.wall,
        "floor_per_cpu_s": floor.batches * each / floor.cpu,
    }
    found["ratio"] = found["per_cpu_s"] / found["floor_per_cpu_s"]
    found["ratio_wall"] = found["per_s"] / found["floor_per_s"]
    return found


def offline(row: Row, work: Docs, floor: Meter, scale: Scale) -> Found:
    """A packer that takes all documents at once: `make` gives a function that packs and returns
    (real, places)."""
    pack = row.make(work)
    floor.run(scale.slice_s)
    cpu, began = time.process_time(), time.perf_counter()
    real, places = pack()
    peer = Meter(lambda: ())
    peer.wall, peer.cpu, peer.batches = time.perf_counter() - began, time.process_time() - cpu, 1
    floor.run(scale.slice_s)
    return {"fill": real / places, **rates(peer, real, floor, work.rows * work.length)}


def filled(
    batches: Iterable[Any], fill: Callable[[Any], tuple[int, int]], scale: Scale
) -> tuple[int, int]:
    """Real tokens and places in the first few hundred batches."""
    real = places = 0
    end = time.perf_counter() + scale.slice_s
    for number, batch in enumerate(batches):
        a, b = fill(batch)
        real, places = real + a, places + b
        if number >= 300 or time.perf_counter() > end:
            break
    return real, places


def shares(row: Row, work: Mixed, scale: Scale) -> Found:
    """Measure the distance of each source's count from its weight, and count repeated samples."""
    taken, count, end = [], 0, 0.0
    ids = row.facts.get("ids", np.asarray)
    for number, batch in enumerate(row.make(work)):
        taken.append(np.asarray(ids(batch), dtype=np.int64).reshape(-1))
        count += len(taken[-1])
        end = end or time.perf_counter() + scale.share_s  # from the first batch on
        if count >= 1_000_000 or (not number & 15 and time.perf_counter() > end):
            break
    values = np.concatenate(taken)
    found: Found = {"distinct": len(np.unique(values)) / len(values)}
    for power in (3, 4, 5, 6):
        if len(values) >= 10**power:
            found[f"off_1e{power}"] = worst(work.source_of(values[: 10**power]), work.weights)
    return found


def worst(sources: np.ndarray, weights: list[float]) -> float:
    """The largest distance of a source's count from its ideal, over all prefixes and sources."""
    ideal = np.asarray(weights) / sum(weights)
    order = np.argsort(sources, kind="stable")
    counts = np.bincount(sources, minlength=len(ideal))
    found, start = 0.0, 0
    for source, count in enumerate(counts.tolist()):
        at = order[
            start : start + count
        ]  # the places of this source's draws; it is furthest off right before or after
        start += count
        drawn = np.arange(count)
        before, after = ideal[source] * at - drawn, drawn + 1 - ideal[source] * (at + 1)
        end = ideal[source] * len(sources) - count
        found = max(found, abs(end), *(float(np.abs(x).max()) for x in (before, after) if count))
    return found


def work_of(row: Row, scale: Scale) -> Any:
    """Return the workload of a row."""
    made = WORKS | READS | TEXTS
    if row.case in made:
        return made[row.case]()
    n = CASES[row.case].params[0]
    if row.case.startswith("mix"):
        return Mixed(n)
    if row.case.startswith("tokens"):
        return MixedDocs(2048, scale.docs, sources=n)
    return Docs(n, scale.docs) if row.case.startswith("pack") else Ints(min(n, MANY))


def times(row: Row, scale: Scale) -> Found:
    """The figures that a row measures itself; it is given the number of documents."""
    return dict(row.make(scale.docs))


# ---------------------------------------------------------------- resuming


def run_to(row: Row, scale: Scale) -> Found:
    """Phase one: run, and leave behind the state at each step and the batch that followed it."""
    found: Found = {}
    held, done, began = row.make(), 0, time.perf_counter()
    for step in CASES["resume"].params:
        if step > 1_000_000:
            if held.jump is not None:
                leave(row, step, held.jump(held, step), held.want(step))
                found[f"state_{step}"] = size_of(held.jump(held, step))
            continue
        while (
            done < step
            and time.perf_counter() - began < scale.reach_s
            and next(held, None) is not None
        ):
            done += 1
        if done < step:
            found[f"reached_{step}"] = done
            continue
        state = held.state_dict()
        found[f"state_{step}"] = size_of(state)
        blob = pickle.dumps(state)
        want = next(held)
        done += 1
        if held.want is not None and not same(want, held.want(step)):
            raise AssertionError(f"step {step}: random access gives another batch than the run")
        leave(row, step, pickle.loads(blob), want)
    return found


def go_on(row: Row, step: int) -> Found:
    """Phase two, in a new process: the time from an open pipeline and a state in memory to the
    right batch."""
    state, want = pickle.loads(state_path(row, step).read_bytes())
    began = time.perf_counter()
    held = row.make()
    built = time.perf_counter()
    held.load_state_dict(state)
    loaded = time.perf_counter()
    batch = next(held)
    over = time.perf_counter()
    return {
        f"build_s_{step}": built - began,
        f"load_s_{step}": loaded - built,
        f"batch_s_{step}": over - loaded,
        f"total_s_{step}": over - built,
        f"right_{step}": float(same(batch, want)),
    }


def leave(row: Row, step: int, state: Any, want: Any) -> None:
    state_path(row, step).write_bytes(pickle.dumps((state, want)))


def state_path(row: Row, step: int) -> Path:
    name = "".join(c if c.isalnum() else "-" for c in row.name)
    return scratch("resume") / f"{name}.{step}"


def size_of(state: Any) -> int:
    """Bytes as JSON where it is JSON, pickled otherwise."""
    if isinstance(state, bytes):
        return len(state)
    try:
        return len(json.dumps(state))
    except TypeError:
        return len(pickle.dumps(state))


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return bool(np.array_equal(np.asarray(a), np.asarray(b)))
