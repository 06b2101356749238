"""The data of all peers: integers, mixtures, documents, made from fixed seeds."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the import of NumPy is part of what is timed
    import numpy as np

BATCH, SEED, ROWS = 32, 7, 8
FOLDER = "PENSTOCK_BENCH_FOLDER"
TINY = "PENSTOCK_BENCH_TINY"  # set by `--tiny`: little data, for a look whether every row runs
IS_TINY = TINY in os.environ
MANY = 20_000 if IS_TINY else 1_000_000  # integers of the floor


def plus_one(x: Any) -> Any:
    return x + 1


@dataclass(frozen=True)
class Ints:
    """`n` integers, to be shuffled, mapped and put into batches."""

    n: int
    batch: int = BATCH
    seed: int = SEED

    @property
    def data(self) -> range:
        return range(self.n)

    def floor(self) -> Iterator[list[int]]:
        """`[fn(data[i]) for i in order]`, 32 at a time, in an order drawn beforehand."""
        import numpy as np

        # A list that was shuffled, as people have it: its integers lie in memory in another order
        # than it has.
        data, numbers = self.data, np.arange(self.n).astype(object)
        order = numbers[np.random.default_rng(self.seed).permutation(self.n)].tolist()
        while True:
            for start in range(0, self.n, self.batch):
                yield [plus_one(data[i]) for i in order[start : start + self.batch]]


class Late:
    """Integers of which the first are there at once; each of the others takes 50 ms."""

    def __init__(self, n: int, late: int) -> None:
        self.n, self.late = n, late

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> int:
        if i >= self.n:
            raise IndexError(i)
        if i >= self.late:
            time.sleep(0.05)
        return i


@dataclass(frozen=True)
class Mixed:
    """`count` sources of integers; each is large enough for a million draws of the mixture."""

    count: int
    batch: int = BATCH
    seed: int = SEED

    @cached_property
    def weights(self) -> list[float]:
        import numpy as np

        if self.count == 3:
            return [0.5, 0.3, 0.2]
        drawn = np.random.default_rng(0).pareto(1.2, self.count) + 1e-2
        return [round(float(w), 9) for w in drawn / drawn.sum()]

    @cached_property
    def starts(self) -> list[int]:
        import numpy as np

        sizes = [int(1_250_000 * w) + 2_000 for w in self.weights]
        return np.cumsum([0, *sizes]).tolist()

    @property
    def sources(self) -> list[range]:
        return [range(a, b) for a, b in pairwise(self.starts)]

    @property
    def names(self) -> list[str]:
        return [f"s{i}" for i in range(self.count)]

    def shuffled(self, i: int) -> list[int]:
        """A source as a list in an order of its own, for peers that only take iterables."""
        import numpy as np

        return (
            np.random.default_rng(self.seed + i).permutation(np.asarray(self.sources[i])).tolist()
        )

    def source_of(self, values: np.ndarray) -> np.ndarray:
        """Which source each delivered integer is from (one was added to it)."""
        import numpy as np

        return np.searchsorted(np.asarray(self.starts), values - 1, side="right") - 1

    def floor(self) -> Iterator[list[int]]:
        """The loop over shuffled integers: a mix without decisions about the next source."""
        return Ints(MANY, self.batch, self.seed).floor()


@dataclass(frozen=True)
class Docs:
    """Documents of tokens in a memory-mapped file, to be packed into rows."""

    length: int
    count: int = 100_000
    rows: int = ROWS
    seed: int = SEED

    @cached_property
    def offsets(self) -> np.ndarray:
        import numpy as np

        drawn = np.random.default_rng(0).lognormal(6.0, 1.0, self.count)
        return np.concatenate([[0], np.cumsum(np.clip(drawn, 8, 8192).astype(np.int64))])

    @property
    def folder(self) -> Path:
        return scratch(f"docs-{self.count}")

    @cached_property
    def tokens(self) -> np.ndarray:
        import numpy as np

        file = self.folder / "tokens.bin"
        if not file.exists():
            drawn = np.random.default_rng(1).integers(
                0, 60_000, int(self.offsets[-1]), dtype=np.uint16
            )
            drawn.tofile(part := file.with_suffix(f".{os.getpid()}"))
            part.replace(file)
        return np.memmap(file, np.uint16, "r")

    @property
    def order(self) -> list[int]:
        import numpy as np

        return np.random.default_rng(self.seed).permutation(self.count).tolist()

    def document(self, i: int) -> np.ndarray:
        import numpy as np

        return np.asarray(self.tokens[self.offsets[i] : self.offsets[i + 1]]).astype(np.int32)

    def floor(self) -> Iterator[np.ndarray]:
        """Copies documents into rows, in an order drawn beforehand, and does nothing else."""
        import numpy as np

        ends, order, tokens, size = (
            self.offsets.tolist(),
            self.order,
            self.tokens,
            self.rows * self.length,
        )
        while True:
            buffer, place = np.empty(size, np.int32), 0
            for i in order:
                a, b = ends[i], ends[i + 1]
                while a < b:
                    n = min(size - place, b - a)
                    buffer[place : place + n] = tokens[a : a + n]
                    a, place = a + n, place + n
                    if place == size:
                        yield buffer.reshape(self.rows, self.length)
                        buffer, place = np.empty(size, np.int32), 0


@dataclass(frozen=True)
class MixedDocs(Docs):
    """The documents of `Docs` as `sources` sources of equal size, to be mixed by weight."""

    sources: int = 3

    @property
    def weights(self) -> list[float]:
        return [1.0] if self.sources == 1 else Mixed(self.sources).weights

    @property
    def names(self) -> list[str]:
        return [f"s{i}" for i in range(self.sources)]

    @property
    def cuts(self) -> list[int]:
        """The first document of each source, and their number."""
        return [self.count * i // self.sources for i in range(self.sources + 1)]

    @cached_property
    def order(self) -> list[int]:
        """Documents drawn by weight, those of each source in an order of their own, again and
        again."""
        import numpy as np

        rng, cuts = np.random.default_rng(self.seed), self.cuts
        weights = np.asarray(self.weights)
        drawn = rng.choice(self.sources, self.count, p=weights / weights.sum())
        found = np.empty(self.count, np.int64)
        for i in range(self.sources):
            where = np.flatnonzero(drawn == i)
            passes = -(-len(where) // (cuts[i + 1] - cuts[i]))
            own = [rng.permutation(np.arange(cuts[i], cuts[i + 1])) for _ in range(max(passes, 1))]
            found[where] = np.concatenate(own)[: len(where)]
        return found.tolist()


class Texts:
    """The documents as a map-style source of mappings, for the peers that take one."""

    def __init__(self, docs: Docs) -> None:
        self.docs, self.tokens, self.ends = docs, docs.tokens, docs.offsets.tolist()

    def __len__(self) -> int:
        return self.docs.count

    def __getitem__(self, i: Any) -> dict[str, np.ndarray]:
        return {"tokens": self.tokens[self.ends[i] : self.ends[i + 1]].astype("int32")}


def scratch(name: str) -> Path:
    """A folder for files that are made once. In memory where there is room: a cold page cache is no
    peer's fault."""
    shm = Path("/dev/shm")
    base = str(shm) if shm.is_dir() and os.access(shm, os.W_OK) else tempfile.gettempdir()
    folder = Path(os.environ.get(FOLDER) or tempfile.mkdtemp(prefix="penstock-bench-", dir=base))
    if (
        FOLDER not in os.environ
    ):  # the children of this process find the same one; it goes when this process does
        os.environ[FOLDER] = str(folder)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / name).mkdir(parents=True, exist_ok=True)
    return folder / name
