"""Packing: sequences put into rows, with one length per feature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from ...dataset import Dataset
from ...engine.base.random import permute
from ...engine.steps.group import Group
from ...engine.steps.map import Map
from ...errors import ConfigError
from ...text.feature_folds import Bins, EndToEnd, FeatureCapacity
from ...text.feature_rows import FeatureRows
from ...types import Fold, Item, Json, Part
from .iter_dataset import IterDataset, PipelineIterDataset
from .transforms import BOSHandling


class _Packed(PipelineIterDataset):
    def __init__(self, parent: IterDataset, fold: Fold, rows: FeatureRows) -> None:
        parent.ready_for(type(self).__name__)
        made = parent.then(Dataset(Map(Group(parent.core.tree, fold), rows)))
        super().__init__(made.core, made.lineage, made.run, parent)


class FirstFitPackIterDataset(_Packed):
    """Pack whole sequences into rows: each goes into the first open row with room.

    There are `num_packing_bins` open rows. A sequence that fits into none emits all of them and
    opens new ones. A sequence longer than a row is an error.

    `length_struct` is the row length per feature. A row has the features, and for each
    `<feature>_segment_ids` (1, 2, ..., 0 for padding) and `<feature>_positions`. Features in
    `meta_features` have neither; those not in `length_struct` become a list with one entry per
    sequence. `shuffle_bins` shuffles the rows emitted together; `shuffle_bins_group_by_feature`
    sorts them by a feature, low values first. `pack_alignment_struct` aligns the start of sequences
    to multiples; `padding_struct` sets the padding values.

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
        features = _make_feature_room(length_struct)
        align = _per_feature("pack_alignment_struct", pack_alignment_struct, features, 1)
        if (
            num_packing_bins < 1
            or (max_sequences_per_bin is not None and max_sequences_per_bin < 1)
            or min(align) < 1
        ):
            raise ConfigError(
                f"num_packing_bins={num_packing_bins}, "
                f"max_sequences_per_bin={max_sequences_per_bin}, "
                f"pack_alignment_struct={pack_alignment_struct}: give numbers of at least 1"
            )
        group = shuffle_bins_group_by_feature
        if group is not None and group not in features.names:
            raise ConfigError(
                f"shuffle_bins_group_by_feature={group!r} is not in length_struct: name one of its "
                "features"
            )
        shuffle_seed = parent.lineage.seed("packing", seed)
        shuffled = Shuffled(shuffle_seed, parent.lineage.grain, group) if shuffle_bins else None
        padding = _per_feature("padding_struct", padding_struct, features, 0)
        fold = Bins(features, num_packing_bins, align, self.best, max_sequences_per_bin, shuffled)
        super().__init__(
            parent, fold, FeatureRows(features, meta_features, align=align, padding=padding)
        )


class BestFitPackIterDataset(FirstFitPackIterDataset):
    """Pack whole sequences into rows: each goes into the fullest open row with room.

    Arguments are as in `FirstFitPackIterDataset`.
    """

    best = True


class ConcatThenSplitIterDataset(_Packed):
    """Concatenate sequences, and split them where a feature fills its row; pad the others.

    Rows are as in `FirstFitPackIterDataset`; positions of a piece begin at 0. Features in
    `meta_features` are whole in every piece of their sequence. With
    `split_full_length_features=False`, a sequence that fills a row exactly gets its own row after
    the open one. With `BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS` the first token of every piece
    becomes `bos_token_id` in `bos_features`.

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
                f"bos_features={bos_features}: use them only with REPLACE_FIRST_TOKEN_WITH_BOS, "
                "which needs bos_token_id"
            )
        features = _make_feature_room(length_struct)
        cut = tuple(name not in set(meta_features) for name in features.names)
        if unknown := set(bos_features) - {
            name for name, is_cut in zip(features.names, cut, strict=True) if is_cut
        }:
            raise ConfigError(
                f"bos_features: {sorted(unknown)} must be in length_struct and not in meta_features"
            )
        if not any(cut):
            raise ConfigError(
                f"meta_features={[*meta_features]} covers every feature: leave out at least one"
            )
        bos = dict.fromkeys(bos_features, bos_token_id) if bos_token_id is not None else {}
        fold = EndToEnd(features, cut, keep_full=not split_full_length_features)
        super().__init__(parent, fold, FeatureRows(features, meta_features, bos=bos, exact=True))


def _make_feature_room(length_struct: Mapping[str, int]) -> FeatureCapacity:
    lengths: Mapping[str, Any] = length_struct
    if not lengths or not all(
        isinstance(length, int) and length > 0 for length in lengths.values()
    ):
        raise ConfigError(
            f"length_struct={dict(lengths)}: give each feature a length of at least 1, without "
            "nested dicts"
        )
    return FeatureCapacity(tuple(lengths), tuple(lengths.values()))


def _per_feature(
    option: str, values: Mapping[str, Any] | None, features: FeatureCapacity, default: Any
) -> tuple[Any, ...]:
    if values is not None and set(values) != set(features.names):
        raise ConfigError(
            f"{option}={dict(values)}: give an entry for each of {[*features.names]}, as in "
            "length_struct"
        )
    return tuple((default if values is None else values[name]) for name in features.names)


@dataclass(frozen=True)
class Shuffled:
    """Order of rows that were packed together.

    With `group_by`, rows with a lower mean of that feature (distinct nonzero values) come first.
    """

    seed: int
    numpy: bool
    group_by: str | None = None

    def order(self, rows: Sequence[Sequence[Item | Part]], before: int) -> list[int]:
        """Return a permutation of `rows`; `before` is the number of rows emitted so far."""
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
