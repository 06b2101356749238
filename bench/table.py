"""The two tables: `CASES`, what is measured, and `peers()`, who is measured. A peer is one file in
`bench/peers`.

A peer's file makes one `Peer` and puts a row in it for every case it can do, nothing heavy imported
outside of the functions:

    PEER = Peer("mine", needs=("mine",), imports="mine.loader")

    @PEER.row("overhead", "Loader, no workers")
    def overhead(work):
        import mine
        return mine.Loader(...)          # any iterable of batches

It takes a `work.Ints`, `work.Mixed` or `work.Docs` and gives batches; for "pack" cases `fill=`
counts the real tokens and the places of a batch. For "memory" it takes the number of samples and
gives batches; for "resume" it gives a `Held`; for "kit" a mapping from the checks of `kit.py` to
what they run. Rows of the kind "times" take a number of documents, measure themselves, and give
their figures by name. `quick=True` puts the row into `make bench-quick`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import peers as folder


@dataclass(frozen=True)
class Case:
    """Something to measure: what the reader should know of it, and which way of measuring it
    takes."""

    name: str
    # "stream", "resume", "start", "workers", "memory", "times", "kit": how it is measured, by a
    # function in measure.py, fresh.py or kit.py
    kind: str
    title: str
    what: str
    params: tuple[int, ...] = ()


CASES = {
    case.name: case
    for case in (
        Case(
            "overhead",
            "stream",
            "Per-sample overhead",
            "1,000,000 integers under a full shuffle, a function that adds one, batches of 32, one "
            "process.",
            (1_000_000,),
        ),
        *(
            Case(
                f"mix{n}",
                "stream",
                f"Mixing {n} sources",
                "Shuffled sources of integers mixed by weight, the function that adds one, batches "
                "of 32, one process.",
                (n,),
            )
            for n in (3, 50, 500)
        ),
        *(
            Case(
                f"pack{length}",
                "stream",
                f"Packing into rows of {length:,} tokens",
                "Lognormal documents (mean about 600 tokens, 8 to 8,192) in a memory-mapped file "
                "of uint16, shuffled, "
                "packed, batches of 8 rows of int32.",
                (length,),
            )
            for length in (2048, 8192)
        ),
        *(
            Case(
                f"tokens{n}",
                "stream",
                f"Tokens of {n} source{'s' * (n > 1)}: mixed, shuffled, packed",
                "The documents of the packing tables, dealt to as many sources, each shuffled, "
                "mixed by weight, packed "
                "into rows of 2,048 tokens, batches of 8 rows of int32.",
                (n,),
            )
            for n in (1, 3, 60)
        ),
        Case(
            "move64",
            "stream",
            "Workers: large batches",
            "Batches of 64 MiB of float32, 16 rows stacked by 2 workers; the floor copies as many "
            "bytes in one thread.",
        ),
        Case(
            "move1000",
            "stream",
            "Workers: many small arrays",
            "Items of 1,000 arrays of 64 bytes, made by 2 workers; the floor makes them in the "
            "calling thread.",
        ),
        Case(
            "tokenize",
            "stream",
            "Workers: pure Python",
            "Texts of 2 kB tokenized in pure Python by 2 workers, batches of 32; the floor "
            "tokenizes in the calling "
            "thread.",
        ),
        Case(
            "pictures",
            "stream",
            "Workers: pictures",
            "JPEGs of 256 by 256 decoded with Pillow by 2 workers, batches of 32; the floor is the "
            "bare loop in 2 "
            "processes that send nothing back.",
        ),
        Case(
            "waiting",
            "stream",
            "Workers: a slow source",
            "A source that takes 5 ms over a sample, by 16 workers, batches of 32; the floor waits "
            "as long as 16 who "
            "wait side by side.",
        ),
        Case(
            "read_random",
            "stream",
            "Reading: batches at random",
            "Batches of 64 rows at random of a table of 200,000 rows of 400 bytes, as columns; the "
            "floor takes them "
            "with pyarrow.",
        ),
        Case(
            "read_row",
            "stream",
            "Reading: single rows at random",
            "One row at a time of the same table, as a dict; the floor takes it with pyarrow from "
            "its record batch.",
        ),
        Case(
            "read_columns",
            "stream",
            "Reading: Parquet from front to back",
            "Batches of 1,000 neighbours of the same table as Parquet, as columns; the floor is "
            "pyarrow's scan.",
        ),
        Case(
            "read_blocks",
            "stream",
            "Reading: shuffles of large Parquet files",
            "Batches of 64 rows of 400 bytes in row groups of 10,000, as many of them as "
            "PENSTOCK_BENCH_GROUPS says "
            "(50; 500 are 5 million rows); the floor scans the file in its order.",
        ),
        Case(
            "read_tars",
            "stream",
            "Reading: tars, shuffled",
            "Samples of 50 kB in two members at random, batches of 16; the floor is a loop of "
            "pread.",
        ),
        Case(
            "read_tars_in_order",
            "stream",
            "Reading: tars, in order",
            "The same from front to back.",
        ),
        Case(
            "index_lines",
            "stream",
            "Indexing JSON lines",
            "Where lines begin in a file of JSON lines, and its checksums, by all processors; the "
            "floor is `wc -l`.",
        ),
        Case(
            "count_tokens",
            "stream",
            "Counting tokens",
            "The number of tokens of each of 2,000 texts in Parquet, as a plan of packed rows needs "
            "them; the floor is the batch call of tokenizers over all of them.",
        ),
        Case(
            "chats",
            "stream",
            "Chats",
            "Chats of two answers as token ids and loss masks, batches of 16; the floor renders a "
            "template with jinja2 and encodes with tokenizers, without masks.",
        ),
        Case(
            "resume",
            "resume",
            "Resume",
            "Run to a step, keep the state and the batch that follows; in a new process build the "
            "pipeline, load the "
            "state and take one batch.",
            (10, 10_000, 100_000, 1_000_000_000),
        ),
        Case(
            "start",
            "start",
            "Import and first batch",
            "A new process each: import, build shuffled integers in batches of 32, take the first.",
            (100_000,),
        ),
        Case(
            "changes",
            "times",
            "Changes of weights",
            "`set_weights` and the next batch, 1,000 times in one run of five sources.",
        ),
        Case(
            "states",
            "times",
            "A state at every step",
            "`state_dict()` after each of 200 batches, of an indexed run of 3 and of 500 sources "
            "and of a stream with a shuffle buffer in 8 lanes.",
        ),
        Case(
            "curriculum",
            "times",
            "A curriculum of 60 packed sources",
            "60 sources of tokens in memory with a cap each, weights in three stages, whole "
            "documents packed into rows of 2,048 tokens: questions to the plan, the first batch, "
            "a resume at step 1,000. Each question twice, the second time of a plan that has "
            "answered.",
        ),
        Case(
            "workers",
            "workers",
            "Starting and closing with workers",
            "A new process each: import, the first batch of 32 integers from 2 workers; then, "
            "while they are inside "
            "batches that take 1.6 s, the end of the loader.",
            (100_000,),
        ),
        Case(
            "memory",
            "memory",
            "Memory under a full shuffle",
            "The first 1,000 batches of 32 of a virtual source of integers in an order that is a "
            "shuffle of all of "
            "them.",
            (100_000_000, 1_000_000_000),
        ),
        Case(
            "kit",
            "kit",
            "The conformance kit",
            "`penstock.testing` run over every peer.",
        ),
    )
}


@dataclass(frozen=True)
class Row:
    """One peer driven in one way for one case."""

    peer: str
    case: str
    how: str
    make: Callable[..., Any]
    quick: bool = False
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.peer}: {self.how}"


class Peer:
    """A library: the distributions whose versions are told, the module whose import is timed (and
    what must be done before it), and its rows."""

    def __init__(
        self,
        name: str,
        needs: tuple[str, ...],
        imports: str,
        before: Callable[[], None] | None = None,
    ) -> None:
        self.name, self.needs, self.imports, self.before = name, needs, imports, before
        self.rows: list[Row] = []

    def load(self) -> None:
        """Import the library."""
        if self.before:
            self.before()
        importlib.import_module(self.imports)

    def row(self, case: str, how: str, quick: bool = False, **facts: Any) -> Callable[[Any], Any]:
        """Put a function into the table: the peer driven in one way for one case (or several, by
        several rows)."""
        assert case in CASES, f"{case!r} is no case; they are {', '.join(CASES)}"

        def put(make: Callable[..., Any]) -> Callable[..., Any]:
            self.rows.append(Row(self.name, case, how, make, quick, facts))
            return make

        return put


def peers() -> dict[str, Peer]:
    """Every file of `bench/peers`, the floor and Penstock first."""
    found = [
        importlib.import_module(f"{folder.__name__}.{module.name}").PEER
        for module in pkgutil.iter_modules(folder.__path__)
    ]
    first = ("floor", "penstock")
    return {peer.name: peer for peer in sorted(found, key=lambda p: (p.name not in first, p.name))}


def find(peer: str, case: str, how: str) -> Row:
    """The row of this name."""
    return next(row for row in peers()[peer].rows if (row.case, row.how) == (case, how))
