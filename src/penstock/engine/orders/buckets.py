"""A shuffle of fixed buckets, so that sums of lengths are computed once for all passes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...types import Ints, Json
from ..base.integers import require_finite
from ..base.random import permute, unpermute
from .shuffle import Permute, permute_windows


@dataclass(frozen=True)
class BucketShuffle:
    """Shuffle by random buckets of `rows` rows, which are the same in every pass.

    A pass permutes runs of `together` buckets, the buckets of each run, and the rows of each
    bucket. Two rows are neighbours as often as in a full shuffle, but the rows of a bucket stay
    close in every pass. The tokens of a bucket are the same in all passes.
    """

    KEY = "BucketShuffle"

    rows: int
    together: int = 1024

    def size(self, below: int | None, /) -> int | None:
        return below

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        n = require_finite(below)
        epoch = positions // n
        i = positions - epoch * n
        bucket = i // self.rows
        i += (self.buckets(bucket, n, key, epoch) - bucket) * self.rows
        return self.rows_in_buckets(
            permute_windows(i, n, self.rows, key, epoch, permute), n, key
        ) + epoch * n, None

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        n = require_finite(below)
        epoch = positions // n
        i = permute_windows(
            unpermute(positions - epoch * n, n, key ^ 3), n, self.rows, key, epoch, unpermute
        )
        bucket = i // self.rows
        count = n // self.rows
        inner = permute_windows(bucket, count, self.together, key ^ 4, epoch, unpermute)
        outer = self._permute_runs(inner, count, key, epoch, unpermute)
        return i + (outer - bucket) * self.rows + epoch * n

    def buckets(self, indices: Ints, n: int, key: int, epoch: Ints) -> Ints:
        """Return the bucket at each index of a pass; a partial bucket is last."""
        count = n // self.rows
        outer = self._permute_runs(indices, count, key, epoch, permute)
        return permute_windows(outer, count, self.together, key ^ 4, epoch, permute)

    def runs(self, indices: Ints, n: int, key: int, epoch: Ints) -> Ints:
        """Return the complete run of buckets at each index of a pass."""
        return permute(indices, n // self.rows // self.together, key ^ 1, epoch)

    def rows_in_buckets(self, indices: Ints, n: int, key: int) -> Ints:
        """Return the rows in buckets, by their index over all buckets."""
        return permute(indices, n, key ^ 3)

    def bucket_of(self, rows: Ints, n: int, key: int) -> Ints:
        """Return the bucket of each row."""
        return unpermute(rows, n, key ^ 3) // self.rows

    def _permute_runs(
        self, bucket: Ints, count: int, key: int, epoch: Ints, permutation: Permute
    ) -> Ints:
        """Permute the runs of buckets; the buckets of a run stay together."""
        run, runs = bucket // self.together, count // self.together
        inside = np.flatnonzero(run < runs)
        out = bucket.copy()
        permuted = permutation(run[inside], runs, key ^ 1, epoch[inside])
        out[inside] += (permuted - run[inside]) * self.together
        return out

    def describe(self) -> Json:
        return {"order": "bucket shuffle", "rows": self.rows, "together": self.together}
