"""A source of your own: anything with a length and items. Give it `__getitems__` to read many at once."""

from collections.abc import Sequence

import penstock as ps


class Squares:
    """The squares of 0, 1, 2, ..., as if they came from a slow disk that likes to be asked for many at a time."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.asked = 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[int]:
        self.asked += 1
        return [int(index) ** 2 for index in indices]


squares = Squares(1_000_000)
ds = ps.from_sequence(squares, name="squares").shuffle(seed=3).batch(256)
with ps.Loader(ds, workers=2) as loader:
    batches = [batch for _, batch in zip(range(100), loader, strict=False)]
print(
    f"{len(batches)} batches of {len(batches[0])}, first {batches[0][:3].tolist()}; asked {squares.asked} times"
)
