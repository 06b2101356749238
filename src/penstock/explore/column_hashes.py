"""Hashes of the values of columns, which put equal values on one side of a split."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arguments import join_first, suggest_names
from ..arrays.columnar import import_arrow
from ..arrays.lossless import list_arrow_errors
from ..errors import ConfigError
from ..sources.select import hash_values, spell_values
from .rows import Columns, to_columns


def hash_columns(
    blocks: Iterable[Sequence[Any]], columns: Sequence[str], call: str
) -> npt.NDArray[np.uint64]:
    """Return a hash of the values of some columns for each sample, equal for equal values.

    A single column has the hash by which `ps.read(..., where={column: {"hash": ...}})` selects.

    Args:
        blocks: the samples.
        columns: the names of the columns.
        call: the call, for errors.

    Raises:
        ConfigError: if no sample has one of the columns, or if its values have no text.

    >>> hashes = hash_columns([[{"x": 1}, {"x": 2}], [{"x": 1}]], ["x"], "split")
    >>> hashes[0] == hashes[2], hashes[0] == hashes[1]
    (np.True_, np.False_)
    """
    hashes, names = [np.zeros(0, np.uint64)], set[str]()
    for block in blocks:
        samples = to_columns(block, 0, keep_objects=True)
        names |= samples.keys()
        hashes.append(_hash_rows(call, samples, columns, len(block)))
    missing = [name for name in columns if name not in names]
    if missing and len(hashes) > 1:
        raise ConfigError(
            f"{call}: no sample has {missing[0]!r}; they have "
            f"{join_first(sorted(names), 8)}{suggest_names(missing[0], names)}"
        )
    return np.concatenate(hashes)


def _hash_rows(
    call: str, samples: Columns, columns: Sequence[str], rows: int
) -> npt.NDArray[np.uint64]:
    pa, pc = import_arrow(), import_arrow("pyarrow.compute")
    texts = list[Any]()
    for name in columns:
        column = samples.get(name, pa.nulls(rows))
        try:
            if isinstance(column, list):
                raise TypeError("values of several types, or objects")
            texts.append(spell_values(column))
        except (TypeError, *list_arrow_errors()) as error:
            raise ConfigError(
                f"{call}: {name!r} holds values that are no texts, numbers or times ({error}); map "
                "them to texts first"
            ) from error
    if len(texts) == 1:
        return hash_values(pa.chunked_array(texts))
    # The length of each text separates "a", "bc" from "ab", "c".
    large, parts = pa.large_string(), list[Any]()
    for text in texts:
        filled = pc.fill_null(text, pa.scalar("", large))
        parts += [pc.cast(pc.utf8_length(filled), large), filled]
    joined = pc.binary_join_element_wise(*parts, pa.scalar(":", large))
    return hash_values(pa.chunked_array([joined]))
