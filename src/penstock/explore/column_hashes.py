"""Values of columns: their hashes, which put equal values on one side of a split, and their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..arguments import join_first, suggest_names
from ..arrays.columnar import import_arrow
from ..arrays.lossless import list_arrow_errors
from ..engine.orders import Pick
from ..engine.steps.step import Step
from ..errors import ConfigError
from ..sources.chain import divide_hashes
from ..sources.partition import ColumnValues, encode_rows, join_rows
from ..sources.select import hash_values, scale_hash, spell_values
from .rows import Columns, to_columns


def find_hash_range(step: Step, columns: Sequence[str]) -> tuple[float, float]:
    """Return the range of hashes, from 0 to 1, that earlier splits by the same columns left.

    Args:
        step: the last step of the dataset.
        columns: the names of the columns.
    """
    order = getattr(step, "order", None)
    if isinstance(order, Pick) and order.hashes is not None and [*order.hashes[0]] == [*columns]:
        return order.hashes[1:]
    if not step.children:
        arguments: Any = getattr(getattr(step, "source", None), "open_arguments", None)
        where: Mapping[str, Any] = (arguments and arguments.where) or {}
        condition: Any = where.get(columns[0]) if len(columns) == 1 else None
        if not isinstance(condition, dict):
            return 0, 1
        low, high = cast("dict[str, Any]", condition).get("hash", (0, 1))
        return low, high
    ranges = {find_hash_range(each, columns) for each in step.children}
    return ranges.pop() if len(ranges) == 1 else (0, 1)


def split_hashes(
    hashes: npt.NDArray[np.uint64], share: float, low: float, high: float
) -> tuple[npt.NDArray[np.bool_], tuple[float, float, float]]:
    """Return which hashes are held out, and the ends of both ranges: from low to middle, to high.

    Args:
        hashes: the hashes of samples.
        share: the share to hold out.
        low: the start of the range that earlier splits left.
        high: the end of it. A step behind the splits may have changed the values, so that hashes
            are outside: then the range is from 0 to 1.
    """
    if len(hashes) and not scale_hash(low) <= int(hashes.min()) <= int(hashes.max()) < scale_hash(
        high
    ):
        low, high = 0, 1
    middle = divide_hashes(share, low, high)
    return hashes < np.uint64(min(scale_hash(middle), (1 << 64) - 1)), (low, middle, high)


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
    hashes = [np.zeros(0, np.uint64)]
    hashes += map(_hash_texts, _spell_blocks(blocks, columns, call))
    return np.concatenate(hashes)


def encode_columns(
    blocks: Iterable[Sequence[Any]], columns: Sequence[str], call: str
) -> ColumnValues:
    """Return the values of some columns for each sample.

    Args:
        blocks: the samples.
        columns: the names of the columns.
        call: the call, for errors.

    Raises:
        ConfigError: if no sample has one of the columns, or if its values have no text.

    >>> encode_columns([[{"x": 1}, {"x": 2}], [{"x": 1}]], ["x"], "partition_by")
    ColumnValues(distinct=[('1',), ('2',)], codes=array([0, 1, 0], dtype=int32))
    """
    return join_rows(map(encode_rows, _spell_blocks(blocks, columns, call)))


def _spell_blocks(
    blocks: Iterable[Sequence[Any]], columns: Sequence[str], call: str
) -> Iterator[list[Any]]:
    """Yield the texts of the columns of each block; raise an error if no sample has a column."""
    names, empty = set[str](), True
    for block in blocks:
        samples, empty = to_columns(block, 0, keep_objects=True), False
        names |= samples.keys()
        yield _spell_columns(call, samples, columns, len(block))
    missing = [name for name in columns if name not in names]
    if missing and not empty:
        raise ConfigError(
            f"{call}: no sample has {missing[0]!r}; they have "
            f"{join_first(sorted(names), 8)}{suggest_names(missing[0], names)}"
        )


def _spell_columns(call: str, samples: Columns, columns: Sequence[str], rows: int) -> list[Any]:
    pa, texts = import_arrow(), list[Any]()
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
    return texts


def _hash_texts(texts: list[Any]) -> npt.NDArray[np.uint64]:
    """Return a hash of the texts of several columns for each row."""
    pa, pc = import_arrow(), import_arrow("pyarrow.compute")
    if len(texts) == 1:
        return hash_values(pa.chunked_array(texts))
    # The length of each text separates "a", "bc" from "ab", "c".
    large, parts = pa.large_string(), list[Any]()
    for text in texts:
        filled = pc.fill_null(text, pa.scalar("", large))
        parts += [pc.cast(pc.utf8_length(filled), large), filled]
    joined = pc.binary_join_element_wise(*parts, pa.scalar(":", large))
    return hash_values(pa.chunked_array([joined]))
