"""A shuffle whose lengths need to be added up once, for all passes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...types import Ints, Json
from ..base.ints import finite
from ..base.random import permute, unpermute
from .shuffle import Permute, within


@dataclass(frozen=True)
class BucketShuffle:
    """Rows are dealt once, at random, into buckets of `rows`; a pass permutes runs of `together`
    buckets, the buckets of each run, and the rows of each bucket.

    Any two rows are neighbours as often as in a full shuffle, but those of one bucket come close
    together in every pass. How many tokens a bucket holds is the same in all of them.
    """

    KEY = "BucketShuffle"

    rows: int
    together: int = 1024

    def size(self, below: int | None, /) -> int | None:
        return below

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        n = finite(below)
        epoch = positions // n
        i = positions - epoch * n
        bucket = i // self.rows
        i += (self.buckets(bucket, n, key, epoch) - bucket) * self.rows
        return self.dealt(within(i, n, self.rows, key, epoch, permute), n, key) + epoch * n, None

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        n = finite(below)
        epoch = positions // n
        i = within(
            unpermute(positions - epoch * n, n, key ^ 3), n, self.rows, key, epoch, unpermute
        )
        bucket = i // self.rows
        many = n // self.rows
        moved = within(bucket, many, self.together, key ^ 4, epoch, unpermute)
        return i + (self._runs(moved, many, key, epoch, unpermute) - bucket) * self.rows + epoch * n

    def buckets(self, places: Ints, n: int, key: int, epoch: Ints) -> Ints:
        """Which bucket comes at a place of a pass; one that is not full comes last."""
        many = n // self.rows
        return within(
            self._runs(places, many, key, epoch, permute),
            many,
            self.together,
            key ^ 4,
            epoch,
            permute,
        )

    def runs(self, places: Ints, n: int, key: int, epoch: Ints) -> Ints:
        """Which whole run of buckets comes at a place of a pass."""
        return permute(places, n // self.rows // self.together, key ^ 1, epoch)

    def dealt(self, places: Ints, n: int, key: int) -> Ints:
        """The rows that were dealt to places, bucket after bucket."""
        return permute(places, n, key ^ 3)

    def bucket_of(self, rows: Ints, n: int, key: int) -> Ints:
        """The bucket to which each row was dealt."""
        return unpermute(rows, n, key ^ 3) // self.rows

    def _runs(self, bucket: Ints, many: int, key: int, epoch: Ints, how: Permute) -> Ints:
        """Buckets where their run goes."""
        run, whole = bucket // self.together, many // self.together
        inside = np.flatnonzero(run < whole)
        out = bucket.copy()
        out[inside] += (
            how(run[inside], whole, key ^ 1, epoch[inside]) - run[inside]
        ) * self.together
        return out

    def describe(self) -> Json:
        return {"order": "bucket shuffle", "rows": self.rows, "together": self.together}
