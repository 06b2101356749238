"""Packing: sequences put into rows of one length, by the core's folds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import ConfigError
from .iter_dataset import IterDataset
from .transforms import BOSHandling


class _Packed(IterDataset):
    def __init__(self, parent: IterDataset, rows: Rows, method: str, shuffled: tuple[int, int] | None, **options: Any):
        parent.ready_for(type(self).__name__)
        core = parent.core.pack(rows.length, method, features=rows.features, unpacked=rows.listed, **options).map(rows)
        if shuffled is not None:
            window, seed = shuffled
            core = core.shuffle(parent.lineage.seed("packing", seed), window=window)
        made = parent.then(core)
        super().__init__(made.core, made.lineage, made.run)


class FirstFitPackIterDataset(_Packed):
    """Rows of whole sequences, each put into the first of `num_packing_bins` open rows in which it fits.

    `length_struct` gives the length of a row for each feature, the same for all. A row has the features, and for each
    `<feature>_segment_ids` (1, 2, ..., 0 for padding) and `<feature>_positions`, but for those in `meta_features`:
    these are only packed, or come in a list with one entry for each sequence if they are not in `length_struct`. With
    `shuffle_bins` the rows are shuffled, `num_packing_bins` at a time. A sequence longer than a row is an error.

    >>> from penstock.compat.grain import MapDataset
    >>> ds = MapDataset.source([{"x": [1, 2]}, {"x": [3, 4, 5]}, {"x": [6]}]).to_iter_dataset()
    >>> row = next(iter(FirstFitPackIterDataset(ds, length_struct={"x": 4}, num_packing_bins=2, shuffle_bins=False)))
    >>> {name: column.tolist() for name, column in row.items()}
    {'x': [1, 2, 6, 0], 'x_segment_ids': [1, 1, 2, 0], 'x_positions': [0, 1, 0, 0]}
    """

    method = "first_fit"

    def __init__(
        self,
        parent: IterDataset,
        *,
        length_struct: Mapping[str, int],
        num_packing_bins: int,
        seed: int = 0,
        shuffle_bins: bool = True,
        meta_features: Sequence[str] = (),
        padding_struct: Mapping[str, Any] | None = None,
        max_sequences_per_bin: int | None = None,
    ) -> None:
        super().__init__(
            parent,
            Rows(length_struct, meta_features),
            self.method,
            (num_packing_bins, seed) if shuffle_bins else None,
            open_rows=num_packing_bins,
            max_segments=max_sequences_per_bin,
            long="refuse",
            pad=0 if padding_struct is None else dict(padding_struct),
        )


class BestFitPackIterDataset(FirstFitPackIterDataset):
    """As `FirstFitPackIterDataset`, with each sequence in the row that it fills best."""

    method = "best_fit"


class ConcatThenSplitIterDataset(_Packed):
    """Sequences end to end, cut wherever a row is full; only the last row of a pass has padding.

    Rows are as those of `FirstFitPackIterDataset`; the positions of a piece begin at 0. With
    `BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS` the first token of every piece becomes `bos_token_id` in `bos_features`.

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
        bos_handling: BOSHandling = BOSHandling.DO_NOTHING,
        bos_features: Sequence[str] = (),
        bos_token_id: int | None = None,
    ) -> None:
        replaces = bos_handling is BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS
        if replaces != (bos_token_id is not None) or (bos_features and not replaces):
            raise ConfigError(
                f"bos_handling={bos_handling.name}, bos_token_id={bos_token_id}, bos_features={bos_features}: "
                "the token and its features are for REPLACE_FIRST_TOKEN_WITH_BOS, which needs a token"
            )
        bos = dict.fromkeys(bos_features, bos_token_id) if bos_token_id is not None else {}
        super().__init__(parent, Rows(length_struct, meta_features, bos), "concat_split", None)


class Rows:
    """From the core's rows to Grain's."""

    def __init__(
        self, length_struct: Mapping[str, int], meta: Sequence[str], bos: Mapping[str, int] | None = None
    ) -> None:
        if not length_struct or len(set(length_struct.values())) != 1:
            raise ConfigError(
                f"length_struct={dict(length_struct)}: at least one feature, and one length for all; features of other "
                "lengths cannot share a row"
            )
        self.features, self.length = list(length_struct), next(iter(length_struct.values()))
        self.listed = tuple(name for name in meta if name not in length_struct)
        self.meta, self.bos = frozenset(meta), dict(bos or {})
        if unknown := set(self.bos) - set(self.features) | set(self.bos) & self.meta:
            raise ConfigError(f"bos_features: {sorted(unknown)} must be in length_struct and not in meta_features")

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        ids = row["segment_ids"]
        starts = np.flatnonzero(np.diff(ids, prepend=0) * (ids > 0))
        out = dict[str, Any]()
        for name in self.features:
            out[name] = _with_bos(row[name], starts, self.bos[name]) if name in self.bos else row[name]
            if name not in self.meta:
                out[f"{name}_segment_ids"], out[f"{name}_positions"] = ids, _positions(ids, starts)
        return out | {name: row[name] for name in self.listed}


def _with_bos(values: Any, starts: npt.NDArray[Any], token: int) -> Any:
    out = values.copy()
    out[starts] = token
    return out


def _positions(ids: npt.NDArray[Any], starts: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """The place of every token within its piece; 0 for padding."""
    begin = np.zeros(len(ids), np.int64)
    begin[starts] = starts
    return np.where(ids > 0, np.arange(len(ids)) - np.maximum.accumulate(begin), 0).astype(np.int32)
