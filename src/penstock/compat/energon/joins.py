"""Join prepared folders by keys: an index of positions, by which the samples are read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

import numpy as np

from ... import tasks
from ...errors import ConfigError, DataError
from ...sources import prepared
from ...types import Digest, Ints, Json, Source
from . import allowed, form
from .caching import open_index
from .references import Join


class JoinedRows:
    """Rows of several sources, joined: a sample is a list with one row of each, or None.

    Args:
        sources: the sources.
        positions: for each source the position of every joined row; -1 for none.
    """

    def __init__(self, sources: Sequence[Source], positions: Sequence[Ints]) -> None:
        self.sources, self.positions = sources, positions
        self.name = "+".join(str(cast("Any", source).name) for source in sources)

    def __len__(self) -> int:
        return len(self.positions[0])

    def read(self, indices: Ints, /) -> list[Any]:
        """Return the joined rows at `indices`."""
        rows = [[None] * len(self.sources) for _ in range(len(indices))]
        for number, (source, positions) in enumerate(
            zip(self.sources, self.positions, strict=True)
        ):
            present = np.flatnonzero(positions[indices] >= 0)
            for at, row in zip(present, source.read(positions[indices][present]), strict=True):
                rows[at][number] = row
        return rows

    def lengths(self) -> None:
        """Return None: sizes are unknown before reading."""

    def digest(self) -> Digest:
        """Return the digests of the sources."""
        return {
            f"{number}.{part}": value
            for number, source in enumerate(self.sources)
            for part, value in cast("Any", source).digest().items()
        }

    def describe(self) -> Json:
        """Return the descriptions of the sources."""
        return {"join": [source.describe() for source in self.sources]}


def match_keys(join: Join) -> list[Ints]:
    """Return the positions of the joined rows in each dataset of a join; -1 for none.

    Raises:
        ConfigError: if a folder has no index by keys.
        DataError: for a key that a dataset lacks, unless it may.
    """
    keys = [
        read_keys(part.reference.path, part.reference.split_config, part.reference.split_part)
        for part in join.parts
    ]
    taken = np.ones(len(keys[0]), bool)
    columns = [np.arange(len(keys[0]))]
    for part, names in zip(join.parts[1:], keys[1:], strict=True):
        position_by_key = {key: position for position, key in enumerate(names)}
        column = np.array([position_by_key.get(key, -1) for key in keys[0]], np.int64)
        missing = column < 0
        if part.nonmatch == "error" and missing.any():
            key = keys[0][int(np.flatnonzero(missing)[0])]
            raise DataError(
                f"{part.reference.path} has no sample {key!r}, and {int(missing.sum())} keys are "
                "missing in total: set nonmatch to skip or none",
                where=join.location,
            )
        if part.nonmatch == "skip":
            taken &= ~missing
        columns.append(column)
    return [column[taken] for column in columns]


def read_keys(folder: Any, split_config: str | None, split: str) -> list[str]:
    """Return the keys of a split in the order of its samples.

    Args:
        folder: the prepared folder.
        split_config: name of the file of the splits.
        split: name of the split.

    Raises:
        ConfigError: if the folder has no index by keys, or no such split.
    """
    loaded = prepared.load(folder, split_config)
    if split not in loaded.splits:
        raise ConfigError(f"{folder}: there is no split {split!r}; there are {[*loaded.splits]}")
    numbers = {shard: number for number, shard in enumerate(loaded.counts)}
    keys = list[str]()
    with open_index(folder) as connection:
        for shard in loaded.splits[split]:
            excluded = loaded.excluded.get(shard, frozenset())
            rows = connection.execute(
                "SELECT sample_key FROM samples WHERE tar_file_id = ? ORDER BY sample_index",
                (numbers[shard],),
            )
            shard_keys = [key for (key,) in rows]
            if len(shard_keys) != loaded.counts[shard]:
                raise DataError(
                    "the index by keys is old: prepare the folder again", where=str(folder)
                )
            keys += [key for key in shard_keys if key not in excluded]
    return keys


def choose_joiner(join: Join, allow: Collection[str]) -> Callable[..., Any]:
    """Return the function that makes a sample of the joined ones.

    Raises:
        ConfigError: for code that is not allowed.
    """
    described = cast("Mapping[str, Any]", join.joiner)
    module = str(described.get("__module__", ""))
    name = str(described.get("__class__") or described.get("__function__") or "")
    if form.names_energon(module) and name in tasks.__all__:
        joiner: Any = getattr(tasks, name)
    else:
        joiner = allowed.load_code(f"{module}.{name}", allow, None, join.location)
    return joiner.from_joined if hasattr(joiner, "from_joined") else joiner


class MakeJoined:
    """Make a sample of one joined row.

    Args:
        join: the join.
        makers: a function for each dataset, as `with_source` takes it.
        joiner: makes the sample.
    """

    def __init__(
        self, join: Join, makers: Sequence[Callable[..., Any]], joiner: Callable[..., Any]
    ) -> None:
        self.makers, self.joiner, self.names = makers, joiner, join.names
        self.__qualname__ = "join"

    def __call__(self, rows: Sequence[Any], source: str, epoch: int, index: int) -> Any:
        samples = [
            None if row is None else make(row, source, epoch, index)
            for make, row in zip(self.makers, rows, strict=True)
        ]
        return (
            self.joiner(**dict(zip(self.names, samples, strict=True)))
            if self.names
            else self.joiner(*samples)
        )
