"""Cost over size: sources, documents, changes, ranks and steps, in operations and milliseconds.

Each cell is a question asked of a pipeline of one size. Operations are calls of functions, which do
not depend on the machine; tests compare these. Each question has a promise: its cost is the same at
every size (flat), or grows at most with the size (linear).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Promise = Literal["flat", "linear"]

REPEATS = 3  # the least of so many times counts
SLACK = 2.0  # times the first cost that a flat one may reach; digits of numbers cost something
BATCH = 8


@dataclass(frozen=True)
class Cost:
    """The cost of a question: calls of functions, CPU milliseconds, bytes or reads of its result."""

    calls: int
    ms: float
    size: int


@dataclass(frozen=True)
class Question:
    """A question about a pipeline of a size, and the promise about its cost."""

    name: str
    promise: Promise
    ask: Callable[[], object]
    size_of: Callable[[object], int] = lambda answer: 0


@dataclass(frozen=True)
class Table:
    """A table of costs: the sizes of its rows, and the questions of each."""

    name: str
    axis: str
    sizes: tuple[int, ...]
    questions: Callable[[int], Iterator[Question]]


def count_calls(call: Callable[[], object]) -> int:
    """Return the number of calls of functions that a call makes."""
    calls = 0

    def note(_: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return calls


def measure(question: Question, repeats: int = REPEATS) -> Cost:
    """Ask once to fill caches, then count calls and take the least CPU time."""
    size = question.size_of(question.ask())
    calls = count_calls(question.ask)
    taken = list[float]()
    for _ in range(repeats):
        began = time.process_time()
        question.ask()
        taken.append(1e3 * (time.process_time() - began))
    return Cost(calls, min(taken, default=0.0), size)


def holds(promise: Promise, sizes: list[int], costs: list[int]) -> bool:
    """Return whether costs, of calls or bytes, grow no more than promised."""
    first = max(costs[0], 1)
    if promise == "flat":
        return all(cost <= SLACK * first + 200 for cost in costs)
    grown = ((size / max(sizes[0], 1), cost) for size, cost in zip(sizes, costs, strict=True))
    return all(cost <= SLACK * first * max(times, 1) for times, cost in grown)


# ---------------------------------------------------------------- pipelines


class Lengths:
    """Documents without tokens, whose lengths follow from their numbers."""

    def __init__(self, many: int) -> None:
        self.many, self.read = many, 0

    def __len__(self) -> int:
        return self.many

    def __getitem__(self, index: int) -> Any:
        import numpy as np

        self.read += 1
        return np.zeros(int(self.length_of(np.asarray([index]))[0]), np.uint16)

    def length_of(self, index: Any) -> Any:
        return index * 7 % 400 + 100

    def digest(self) -> str:
        return f"lengths by formula {self.many}"


def mixture(sources: int, documents: int = 10**6) -> Any:
    import penstock as ps

    inputs = {
        f"s{i}": ps.from_sequence(range(documents)).shuffle(seed=i).repeat() for i in range(sources)
    }
    return ps.mix(inputs, {f"s{i}": 1 + i % 7 for i in range(sources)}, seed=1).batch(BATCH)


def first_batch(ds: Any, step: int = 0, **options: Any) -> object:
    """Open a loader at a step, and return its state after one batch."""
    import penstock as ps

    loader = ps.Loader(ds, **options)
    if step:
        loader.seek(step)
    next(iter(loader))
    return loader.state_dict()


def resume(ds: Any, state: Any, **options: Any) -> object:
    import penstock as ps

    loader = ps.Loader(ds, **options)
    loader.load_state_dict(state)
    return next(iter(loader))


def size_of(state: object) -> int:
    return len(json.dumps(state))


# ---------------------------------------------------------------- tables


def by_sources(sources: int) -> Iterator[Question]:
    ds = mixture(sources)
    plan, state = ds.plan, first_batch(ds, 10**6)
    yield Question("plan.at", "linear", lambda: plan.at(10**6))
    yield Question("plan.counts", "linear", lambda: plan.counts(10**6), len)
    yield Question("plan.find", "linear", lambda: plan.find("s0", 3, within=range(10**5)))
    yield Question("state", "linear", lambda: first_batch(ds), size_of)
    yield Question("resume", "linear", lambda: resume(ds, state))


def by_documents(documents: int) -> Iterator[Question]:
    ds = mixture(5, documents)
    plan, state = ds.plan, first_batch(ds, 10**6)
    yield Question("plan.at", "flat", lambda: plan.at(10**6))
    yield Question("plan.counts", "flat", lambda: plan.counts(10**6), len)
    yield Question("plan.find", "flat", lambda: plan.find("s0", 3, within=range(10**5)))
    yield Question("state", "flat", lambda: first_batch(ds), size_of)
    yield Question("resume", "flat", lambda: resume(ds, state))


def by_packed_documents(documents: int) -> Iterator[Question]:
    import penstock as ps

    source = Lengths(documents)
    ds = ps.from_sequence(source, name="docs").shuffle(seed=1)
    packed = ds.pack(2048, "best_fit").repeat().batch(BATCH)
    plan, state = packed.plan, first_batch(packed, 1_000)
    yield Question("plan.at", "flat", lambda: plan.at(1_000))
    yield Question("plan.counts", "flat", lambda: plan.counts(1_000), len)
    yield Question("state", "flat", lambda: first_batch(packed, 1_000), size_of)
    yield Question("resume", "flat", lambda: resume(packed, state))


def by_changes(changes: int) -> Iterator[Question]:
    import penstock as ps

    ds = mixture(5)
    loader = ps.Loader(ds)
    batches = iter(loader)
    next(batches)
    made = 0

    def change() -> None:
        nonlocal made
        made += 1
        loader.set_weights({f"s{i}": 1 + (made * (i + 2)) % 7 for i in range(5)})
        next(batches)

    while made < changes:
        change()
    state = loader.state_dict()
    yield Question("set_weights, next batch", "flat", change)
    yield Question("state", "linear", loader.state_dict, size_of)
    yield Question("resume", "linear", lambda: resume(ds, state))


def by_ranks(ranks: int) -> Iterator[Question]:
    ds, options = mixture(5), {"rank": ranks // 2, "world_size": ranks}
    state = first_batch(ds, 10**6, **options)
    yield Question("plan.at(step=), a rank", "linear", lambda: ds.plan.at(step=5, world_size=ranks))
    yield Question("state", "flat", lambda: first_batch(ds, **options), size_of)
    yield Question("resume", "flat", lambda: resume(ds, state, **options))


def by_step(step: int) -> Iterator[Question]:
    ds = mixture(5)
    plan, state = ds.plan, first_batch(ds, step)
    yield Question("plan.at", "flat", lambda: plan.at(step))
    yield Question("plan.counts", "flat", lambda: plan.counts(step), len)
    yield Question("seek, state", "flat", lambda: first_batch(ds, step), size_of)
    yield Question("resume", "flat", lambda: resume(ds, state))


TABLES = (
    Table("Sources of a mixture", "sources", (1, 10, 100, 500, 2_000), by_sources),
    Table("Documents of 5 sources", "documents", (10**4, 10**6, 10**9), by_documents),
    Table(
        "Documents that are packed, sums of lengths known",
        "documents",
        (10**5, 10**6, 10**7),
        by_packed_documents,
    ),
    Table("Changes of weights", "changes", (1, 10, 100, 1_000), by_changes),
    Table("Ranks", "ranks", (1, 8, 64, 512, 4_096), by_ranks),
    Table("Step", "step", (0, 10**3, 10**6, 10**9, 10**12), by_step),
)


def run(table: Table, sizes: tuple[int, ...], repeats: int = REPEATS) -> dict[str, list[Cost]]:
    """Return the costs of each question at each size; the promise is the last part of a name."""
    costs = dict[str, list[Cost]]()
    for size in sizes:
        for question in table.questions(size):
            name = f"{question.name}, {question.promise}"
            costs.setdefault(name, []).append(measure(question, repeats))
    return costs


def compare_with_promises(costs: dict[str, list[Cost]], sizes: tuple[int, ...]) -> dict[str, bool]:
    """Return by question whether calls and bytes grow as promised."""
    verdicts = dict[str, bool]()
    for name, cells in costs.items():
        promise: Promise = "flat" if name.endswith("flat") else "linear"
        calls, sizes_of = [cell.calls for cell in cells], [cell.size for cell in cells]
        verdicts[name] = holds(promise, [*sizes], calls) and holds(promise, [*sizes], sizes_of)
    return verdicts


def write(folder: Path, machine: str) -> bool:
    """Measure all tables, write them to GROWTH.md, and return whether every promise holds."""
    parts, holds_all = ["# Growth", "", "Written by `python -m bench --growth`.", ""], True
    parts += [
        "A cell has the CPU milliseconds of a question, the least of three, and the calls of",
        "functions that it makes; behind a colon the bytes of a state. Caches are filled. *Flat*:",
        f"no size costs more than {SLACK:g} times the first; *linear*: none more than {SLACK:g}",
        "times its share. Calls and bytes are judged, times are not.",
        "",
        f"**Machine**: {machine}.",
    ]
    for table in TABLES:
        print(table.name, file=sys.stderr, flush=True)
        costs = run(table, table.sizes)
        verdicts = compare_with_promises(costs, table.sizes)
        holds_all = holds_all and all(verdicts.values())
        heads = [table.axis, *costs]
        parts += ["", f"## {table.name}", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        for row, size in enumerate(table.sizes):
            cells = [show(cells[row]) for cells in costs.values()]
            parts.append(f"| {size:,} | {' | '.join(cells)} |")
        shown = ["holds" if verdict else "**does not hold**" for verdict in verdicts.values()]
        parts.append(f"| promise | {' | '.join(shown)} |")
    (folder / "GROWTH.md").write_text("\n".join(parts) + "\n", encoding="utf-8")
    return holds_all


def show(cost: Cost) -> str:
    size = f": {cost.size:,}" if cost.size > 10 else ""
    return f"{cost.ms:,.1f} ms, {cost.calls:,} calls{size}"
