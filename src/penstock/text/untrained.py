"""Documents in which no token carries loss once they are packed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from ..arguments import join_first
from ..engine.packing import Packing
from ..engine.packing.row import get_end_value, get_feature_setting
from ..errors import ConfigError
from ..types import LOSS_MASKS, MAX_POSITION, Flags, Ints, LossCounts


class UntrainedDocuments:
    """Finds the documents without a token that carries loss in rows of a packing.

    Masks that are not packed say nothing, and documents without masks are trained on.

    Args:
        packing: the options of `pack`.

    >>> rule = UntrainedDocuments(Packing(3, "first_fit", "truncate"))
    >>> [rule.is_untrained({"tokens": [1] * 4, "loss_mask": mask}) for mask in ([0, 0, 1, 1], [1, 0, 0, 1])]
    [False, True]
    """

    def __init__(self, packing: Packing) -> None:
        self.packing = packing

    def is_untrained(self, document: Any, /) -> bool:
        """Return whether a document has masks, and no token that carries loss in its row.

        Args:
            document: the document as packing takes it.
        """
        if not isinstance(document, Mapping):
            return False
        fields = cast("Mapping[str, Any]", document)
        masks = {
            name: np.asarray(fields[name]) != none
            for name, none in LOSS_MASKS.items()
            if name in fields and self._packs(name) and np.ndim(fields[name]) == 1
        }
        if not masks:
            return False
        flags: Flags = np.logical_and.reduce([*masks.values()])
        size = np.asarray([len(flags)])
        counts = LossCounts.of(flags, np.asarray([0, len(flags)]), tuple(masks))
        return bool(self.find_untrained(counts, size)[0])

    def find_untrained(self, counts: LossCounts, lengths: Ints, /) -> Flags:
        """Return which documents have no token that carries loss in their rows.

        The first token of a document, or BOS, is not predicted.

        Args:
            counts: the loss counts of the documents.
            lengths: their tokens, without BOS and EOS.

        Raises:
            ConfigError: if only some of the masks are packed.
        """
        packing = self.packing
        masks = [name for name in counts.masks if self._packs(name)]
        if not masks:
            return np.zeros(len(lengths), np.bool_)
        if left_out := {*counts.masks} - {*masks}:
            raise ConfigError(
                f"pack(untrained='skip'): rows have {join_first(masks)}, and the documents also have "
                f"{join_first(sorted(left_out))}; pack both, or read the columns without one"
            )
        limit = packing.length if packing.truncates else MAX_POSITION
        before = int(packing.bos is not None)
        trained = (counts.first >= 0) & (counts.first + before < limit)
        if before:
            trained |= counts.lead & (limit > 1)
        if packing.eos is not None and all(map(self._learns_end, masks)):
            end = lengths + before
            trained |= (end > 0) & (end < limit)
        return ~trained

    def _packs(self, name: str) -> bool:
        """Return whether rows have a feature of the documents."""
        features = self.packing.features
        return name not in self.packing.unpacked and (features is None or name in features)

    def _learns_end(self, name: str) -> bool:
        """Return whether a mask says that EOS carries loss."""
        packing = self.packing
        pad = get_feature_setting(packing.pad, name, 0)
        is_lead = packing.features is not None and packing.features[0] == name
        return get_end_value(packing.eos, name, pad, is_lead) != LOSS_MASKS[name]
