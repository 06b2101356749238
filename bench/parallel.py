"""Inputs for workers: large arrays, many small ones, images, pure Python functions, a slow source.
Measured by wall time.
"""

from __future__ import annotations

import io
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .work import IS_TINY

MANY = 1_000_000_000  # passes are endless for who measures


class Rows:
    """A map-style source without end, of rows that are at hand."""

    def __init__(self, row: Any) -> None:
        self.row = row

    def __len__(self) -> int:
        return MANY

    def __getitem__(self, i: int) -> Any:
        return self.row


@dataclass(frozen=True)
class Large:
    """Batches of 64 MiB: 16 rows of 2**20 numbers of float32, stacked."""

    batch: int = 16

    @cached_property
    def data(self) -> Rows:
        return Rows(np.random.default_rng(1).random(1 << 20, np.float32))

    def floor(self) -> Iterator[np.ndarray]:
        """The bytes of a batch, copied to memory that is there."""
        source, target = (
            np.ones((self.batch, 1 << 20), np.float32),
            np.zeros((self.batch, 1 << 20), np.float32),
        )
        while True:
            np.copyto(target, source)
            yield target


def small(x: Any) -> dict[str, np.ndarray]:
    """A thousand small arrays."""
    return {f"a{i}": np.full(8, i) for i in range(1_000)}


@dataclass(frozen=True)
class Small:
    """Items of 1,000 arrays of 64 bytes, made by a function."""

    batch: int = 1

    @cached_property
    def data(self) -> Rows:
        return Rows(0)

    def floor(self) -> Iterator[Any]:
        """The function, here."""
        while True:
            yield small(0)


WORDS = {
    f"{a}{b}": 31 * i + j for i, a in enumerate("abcdefghij") for j, b in enumerate("abcdefghij")
}
TEXT = " ".join(word * (i % 4 + 1) for i, word in enumerate(list(WORDS) * 4))


def tokens(text: str) -> np.ndarray:
    """Greedy pieces of two letters, in pure Python."""
    out = []
    for word in text.split():
        at = 0
        while at < len(word):
            out.append(WORDS.get(word[at : at + 2], 0))
            at += 2
    return np.asarray(out, np.int32)


@dataclass(frozen=True)
class Tokenized:
    """A text of 2 kB a sample, tokenized in pure Python, 32 a batch."""

    batch: int = 32

    @cached_property
    def data(self) -> Rows:
        return Rows(TEXT)

    def floor(self) -> Iterator[Any]:
        """The function and the stacking, here."""
        while True:
            yield np.stack([tokens(TEXT) for _ in range(self.batch)])


def picture(side: int = 32 if IS_TINY else 256) -> bytes:
    """A JPEG with something in it: smooth, with edges and some noise."""
    from PIL import Image

    dice, (y, x) = np.random.default_rng(1), np.mgrid[:side, :side]
    waves = np.stack([np.sin(x / 17) * np.cos(y / 23), np.sin((x + y) / 31), np.cos(x / 9)], -1)
    edges = ((x // 32 + y // 32) % 2)[..., None] * 60
    pixels = 110 + 60 * waves + edges + dice.normal(0, 8, (side, side, 3))
    out = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(out, "JPEG", quality=90)
    return out.getvalue()


def decoded(data: bytes) -> np.ndarray:
    """A picture as numbers."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def decode_many(data: bytes, many: int) -> int:
    """The bare loop; what it makes goes nowhere."""
    return sum(decoded(data).shape[0] for _ in range(many))


@dataclass(frozen=True)
class Pictures:
    """JPEGs of 256 by 256, decoded by a function, 32 a batch."""

    batch: int = 32

    @cached_property
    def data(self) -> Rows:
        return Rows(picture())

    def floor(self) -> Iterator[Any]:
        """The bare loop in two processes, which send nothing back."""
        data, ahead = picture(), 4
        with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
            waiting = [pool.submit(decode_many, data, self.batch) for _ in range(ahead)]
            while True:
                yield waiting.pop(0).result()
                waiting.append(pool.submit(decode_many, data, self.batch))


LATENCY = 0.005


class Slow(Rows):
    """A source that answers after 5 ms, as a store does."""

    def __getitem__(self, i: int) -> Any:
        time.sleep(LATENCY)
        return self.row


@dataclass(frozen=True)
class Waiting:
    """Samples that are waited for, 32 a batch."""

    batch: int = 32

    @cached_property
    def data(self) -> Slow:
        return Slow(np.zeros(256, np.float32))

    def floor(self) -> Iterator[Any]:
        """As long as 16 who wait side by side take over a batch."""
        row = np.zeros(256, np.float32)
        while True:
            time.sleep(LATENCY * self.batch / 16)
            yield np.stack([row] * self.batch)


WORKS = {
    "move64": Large,
    "move1000": Small,
    "tokenize": Tokenized,
    "pictures": Pictures,
    "waiting": Waiting,
}
