"""Packing: sequences put into rows, each feature with a length of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from ...dataset import Dataset
from ...engine.base.random import permute
from ...engine.graph.nodes import Each, Hold
from ...engine.grouping import Bins, EndToEnd, FeatureRoom
from ...engine.packing import FeatureRows
from ...errors import ConfigError
from ...types import Fold, Item, Json, Part
from .iter_dataset import IterDataset
from .transforms import BOSHandling


class _Packed(IterDataset):
    def __init__(self, parent: IterDataset, fold: Fold, rows: FeatureRows) -> None:
        parent.ready_for(type(self).__name__)
        made = parent.then(Dataset(Each(Hold(parent.core.flow, fold), "map", rows)))
        super().__init__(made.core, made.lineage, made.run)


class FirstFitPackIterDataset(_Packed):
    """Rows of whole sequences: each goes into the first of `num_packing_bins` rows in which it
    fits; where it fits in none, all of them are given out and new ones begun.

    `length_struct` gives the length of a row for each feature. A row has the features, and for each
    `<feature>_segment_ids` (1, 2, ..., 0 for padding) and `<feature>_positions`, but for those in
    `meta_features`: these are only packed, or come in a list with one entry for each sequence if
    they are not in `length_struct`. With `shuffle_bins` the rows that are given out together are
    shuffled; with `shuffle_bins_group_by_feature` those with low values of a feature come first.
    `pack_alignment_struct` has each sequence begin at a multiple of a number, `padding_struct` says
    what is put where nothing is. A sequence longer than a row is an error.

    >>> from penstock.compat.grain import MapDataset
    >>> ds = MapDataset.source([{"x": [1, 2]}, {"x": [3, 4, 5]}, {"x": [6]}]).to_iter_dataset()
    >>> row = next(iter(FirstFitPackIterDataset(ds, length_struct={"x": 4}, num_packing_bins=2, shuffle_bins=False)))
    >>> {name: column.tolist() for name, column in row.items()}
    {'x': [1, 2, 6, 0], 'x_segment_ids': [1, 1, 2, 0], 'x_positions': [0, 1, 0, 0]}
    """

    best = False

    def __init__(
        self,
        parent: IterDataset,
        *,
        length_struct: Mapping[str, int],
        num_packing_bins: int,
        seed: int = 0,
        shuffle_bins: bool = True,
        shuffle_bins_group_by_feature: str | None = None,
        meta_features: Sequence[str] = (),
        pack_alignment_struct: Mapping[str, int] | None = None,
        padding_struct: Mapping[str, Any] | None = None,
        max_sequences_per_bin: int | None = None,
    ) -> None:
        room = _room(length_struct)
        align = _of_each("pack_alignment_struct", pack_alignment_struct, room, 1)
        if (
            num_packing_bins < 1
            or (max_sequences_per_bin is not None and max_sequences_per_bin < 1)
            or min(align) < 1
        ):
            raise ConfigError(
                f"num_packing_bins={num_packing_bins}, "
                f"max_sequences_per_bin={max_sequences_per_bin}, "
                f"pack_alignment_struct={pack_alignment_struct}: numbers of at least 1"
            )
        group = shuffle_bins_group_by_feature
        if group is not None and group not in room.names:
            raise ConfigError(f"shuffle_bins_group_by_feature={group!r} must be in length_struct")
        own = parent.lineage.seed("packing", seed)
        shuffled = Shuffled(own, parent.lineage.grain, group) if shuffle_bins else None
        padding = _of_each("padding_struct", padding_struct, room, 0)
        fold = Bins(room, num_packing_bins, align, self.best, max_sequences_per_bin, shuffled)
        super().__init__(
            parent, fold, FeatureRows(room, meta_features, align=align, padding=padding)
        )


class BestFitPackIterDataset(FirstFitPackIterDataset):
    """As `FirstFitPackIterDataset`, with each sequence in the fullest row in which it fits."""

    best = True


class ConcatThenSplitIterDataset(_Packed):
    """Sequences end to end, cut wherever a feature fills its row; the others are padded there.

    Rows are as those of `FirstFitPackIterDataset`; the positions of a piece begin at 0. Features in
    `meta_features` are whole in every piece of their sequence. With
    `split_full_length_features=False`, sequences that fill a row exactly have one of their own,
    after the row that is open. With `BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS` the first token of
    every piece becomes `bos_token_id` in `bos_features`.

    >>> from penstock.compat.grain import MapDataset
    >>> ds = MapDataset.source([{"x": [1, 2, 3]}, {"x": [4, 5]}]).to_iter_dataset()
    >>> [row["x"].tolist() for row in ConcatThenSplitIterDataset(ds, length_struct={"x": 2})]
    [[1, 2], [3, 4], [5, 0]]
    """

    def __init__(
        self,
        parent: IterDataset,
        *,
        length_struct: Mapping[str, int],
        meta_features: Sequence[str] = (),
        split_full_length_features: bool = True,
        bos_handling: BOSHandling = BOSHandling.DO_NOTHING,
        bos_features: Sequence[str] = (),
        bos_token_id: int | None = None,
    ) -> None:
        replaces = bos_handling is BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS
        if replaces != (bos_token_id is not None) or (bos_features and not replaces):
            raise ConfigError(
                f"bos_handling={bos_handling.name}, bos_token_id={bos_token_id}, "
                f"bos_features={bos_features}: the token and its features are for "
                "REPLACE_FIRST_TOKEN_WITH_BOS, which needs a token"
            )
        room = _room(length_struct)
        cut = tuple(name not in set(meta_features) for name in room.names)
        if unknown := set(bos_features) - {
            name for name, is_cut in zip(room.names, cut, strict=True) if is_cut
        }:
            raise ConfigError(
                f"bos_features: {sorted(unknown)} must be in length_struct and not in meta_features"
            )
        if not any(cut):
            raise ConfigError(
                f"meta_features={[*meta_features]}: at least one feature must not be among them"
            )
        bos = dict.fromkeys(bos_features, bos_token_id) if bos_token_id is not None else {}
        fold = EndToEnd(room, cut, keep_full=not split_full_length_features)
        super().__init__(parent, fold, FeatureRows(room, meta_features, bos=bos, exact=True))


def _room(length_struct: Mapping[str, int]) -> FeatureRoom:
    lengths: Mapping[str, Any] = length_struct
    if not lengths or not all(
        isinstance(length, int) and length > 0 for length in lengths.values()
    ):
        raise ConfigError(
            f"length_struct={dict(lengths)}: a length of at least 1 for each feature, and no dicts "
            "in it"
        )
    return FeatureRoom(tuple(lengths), tuple(lengths.values()))


def _of_each(
    option: str, given: Mapping[str, Any] | None, room: FeatureRoom, default: Any
) -> tuple[Any, ...]:
    if given is not None and set(given) != set(room.names):
        raise ConfigError(
            f"{option}={dict(given)}: an entry for each of {[*room.names]}, as in length_struct"
        )
    return tuple((default if given is None else given[name]) for name in room.names)


@dataclass(frozen=True)
class Shuffled:
    """The order in which rows that were packed together are given out.

    With `group_by`, rows with a lower mean of that feature (each value once, zeros left out) come
    first.
    """

    seed: int
    numpy: bool
    group_by: str | None = None

    def order(self, rows: Sequence[Sequence[Item | Part]], before: int) -> list[int]:
        """Places of `rows`; `before` rows were given out so far."""
        n = len(rows)
        if self.numpy:
            order: list[int] = np.random.default_rng(self.seed + before).permuted(range(n)).tolist()
        else:
            order = permute(np.arange(n), n, self.seed, before).tolist()
        if self.group_by is None:
            return order
        means = [self._mean(row) for row in rows]
        return sorted(range(n), key=lambda i: (means[i], order[i]))

    def _mean(self, row: Sequence[Item | Part]) -> float:
        values = {
            v
            for item in row
            for v in np.ravel(cast("Item", item).value[self.group_by]).tolist()
            if v
        }
        return sum(values) / len(values) if values else 0.0

    def describe(self) -> Json:
        return {"seed": self.seed, "numpy": self.numpy, "group_by": self.group_by}
