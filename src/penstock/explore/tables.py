"""Conversion of a dataset to tables of Arrow, pandas, polars and Hugging Face `datasets`.

Samples are read in blocks. A source of columns gives its columns, so no row is built for a pipeline
that only reads and orders samples.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from ..arguments import join_first, suggest_names
from ..arrays.columnar import import_arrow
from ..arrays.lossless import list_arrow_errors
from ..arrays.tables import concatenate_tables
from ..engine.base.progress import Progress
from ..errors import ConfigError, DataError
from ..sources.rows import convert_named_column
from ..sources.select import hash_values
from .base import BaseDataset
from .memory import MemoryGuard, estimate_bytes
from .rows import Columns, to_columns
from .schemas import find_stored_schema

D = TypeVar("D")

_FIRST_ROWS, _BLOCK_ROWS = 256, 8_192
"""Rows of the first block, which tells how much memory all need, and of later ones."""


class Tables(BaseDataset[D]):
    """Methods of `Dataset` that read all samples, or the first `limit`, into a table."""

    def to_arrow(self, limit: int | None = None) -> Any:
        """Read samples into a `pyarrow.Table`.

        Keys become columns; a key that a sample lacks is null. Samples that are no mappings become
        one column, `value`. Values keep their types: lists, mappings, times, decimals and bytes.
        Columns of Parquet and Arrow files and of tables are not converted to Python on the way.

        Args:
            limit: maximum number of samples. Default: one pass.

        Raises:
            ConfigError: if the table would not fit into memory, or if the dataset is endless and
                has no limit.
            DataError: if the values of a column have no common type in Arrow.

        >>> import penstock as ps
        >>> ps.from_sequence([{"x": 1, "y": [0.5]}, {"x": 2}]).to_arrow().to_pydict()
        {'x': [1, 2], 'y': [[0.5], None]}
        """
        pa = import_arrow()
        tables = [pa.table(columns) for columns in self._read_columns("to_arrow", limit, 1.2)]
        if not tables:
            return (find_stored_schema(self.flow) or pa.schema([])).empty_table()
        return concatenate_tables(tables)

    def to_pandas(self, limit: int | None = None) -> Any:
        """Read samples into a `pandas.DataFrame`.

        Whole numbers and truth values beside missing ones get pandas' nullable dtypes, so that they
        stay exact. Lists, mappings, decimals and bytes are objects; a list of numbers is an array.
        Values that Arrow cannot hold, such as images, stay the objects that they are.

        Args:
            limit: maximum number of samples. Default: one pass.

        Raises:
            ConfigError: if the frame would not fit into memory, or if the dataset is endless and
                has no limit.
            ImportError: if pandas is not installed.

        >>> import penstock as ps
        >>> ps.from_sequence([{"text": "a", "year": 1990}, {"text": "b"}]).to_pandas()
          text  year
        0    a  1990
        1    b  <NA>
        """
        pandas = _import_optional("pandas", "to_pandas")
        columns = self._join("to_pandas", limit, 2.5)
        rows = len(next(iter(columns.values()))) if columns else 0
        return pandas.DataFrame(
            {name: _to_pandas(pandas, name, column) for name, column in columns.items()},
            index=pandas.RangeIndex(rows),
        )

    def to_polars(self, limit: int | None = None) -> Any:
        """Read samples into a `polars.DataFrame`.

        Args:
            limit: maximum number of samples. Default: one pass.

        Raises:
            ConfigError: if the frame would not fit into memory, or if the dataset is endless and
                has no limit.
            DataError: if the values of a column have no common type in Arrow.
            ImportError: if polars is not installed.

        >>> import penstock as ps
        >>> ds = ps.from_sequence([{"x": 1}, {"x": 2}])
        >>> frame = ds.to_polars()  # doctest: +SKIP
        """
        polars = _import_optional("polars", "to_polars")
        return polars.from_arrow(self.to_arrow(limit))

    def to_hf(self, limit: int | None = None) -> Any:
        """Read samples into a Hugging Face `datasets.Dataset` in memory.

        Args:
            limit: maximum number of samples. Default: one pass.

        Raises:
            ConfigError: if the table would not fit into memory, or if the dataset is endless and
                has no limit.
            DataError: if neither Arrow nor `datasets` can hold a column.
            ImportError: if `datasets` is not installed.

        >>> import penstock as ps
        >>> ps.from_sequence([{"x": 1}, {"x": 2}]).to_hf()
        Dataset({
            features: ['x'],
            num_rows: 2
        })
        """
        datasets = _import_optional("datasets", "to_hf")
        columns = self._join("to_hf", limit, 1.2)
        arrays = {name: column for name, column in columns.items() if not isinstance(column, list)}
        in_memory = datasets.table.InMemoryTable(import_arrow().table(arrays))
        if len(arrays) == len(columns):
            return datasets.Dataset(in_memory)
        try:  # `datasets` encodes images and audio
            objects = datasets.Dataset.from_dict(
                {name: column for name, column in columns.items() if name not in arrays}
            )
        except Exception as error:
            raise DataError(f"`datasets` cannot hold a column: {error}", where="to_hf") from error
        parts = [objects] if not arrays else [datasets.Dataset(in_memory), objects]
        return datasets.concatenate_datasets(parts, axis=1).select_columns(list(columns))

    def to_list(self, limit: int | None = None) -> list[Any]:
        """Read samples into a list, as iteration gives them.

        Args:
            limit: maximum number of samples. Default: one pass.

        Raises:
            ConfigError: if the list would not fit into memory, or if the dataset is endless and has
                no limit.

        >>> import penstock as ps
        >>> ps.from_sequence("abc").repeat().to_list(limit=4)
        ['a', 'b', 'c', 'a']
        """
        samples, count = list[Any](), self._count(limit, "to_list")
        guard = MemoryGuard("to_list", count, 1.1)
        for block in self._read_blocks("to_list", count):
            samples += block
            guard.add(len(block), estimate_bytes(list(block)))
        return samples

    def _values_below(self, share: float, columns: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Return which samples have values in some columns whose hash is below a share.

        Raises:
            ConfigError: if the dataset is endless, if no sample has one of the columns, or if its
                values have no text.
        """
        if not columns:
            raise ConfigError("split(column=[]): name at least one column")
        if self.compiled.size is None:
            raise ConfigError("split(): the dataset is endless; split it before .repeat() or mix")
        hashes, names = [np.zeros(0, np.uint64)], set[str]()
        call = f"split(column={columns[0] if len(columns) == 1 else list(columns)!r})"
        for block in self._read_blocks(call, self.compiled.size):
            samples = to_columns(block, 0, keep_objects=True)
            names |= samples.keys()
            hashes.append(_hash_rows(call, samples, columns, len(block)))
        if self.compiled.size and (missing := [name for name in columns if name not in names]):
            raise ConfigError(
                f"{call}: no sample has {missing[0]!r}; they have "
                f"{join_first(sorted(names), 8)}{suggest_names(missing[0], names)}"
            )
        return np.concatenate(hashes) < np.uint64(min(int(share * (1 << 64)), (1 << 64) - 1))

    def _read_blocks(self, call: str, count: int | None) -> Iterator[Sequence[Any]]:
        """Yield the samples in blocks, a small one first, and report progress."""
        done = 0
        with Progress(call, count, "samples") as progress:
            for block in self._blocks(count, _FIRST_ROWS, _BLOCK_ROWS):
                yield block
                done += len(block)
                progress.tell(done)

    def _read_columns(
        self, call: str, limit: int | None, copies: float, *, keep_objects: bool = False
    ) -> Iterator[Columns]:
        count, done = self._count(limit, call), 0
        guard = MemoryGuard(call, count, copies)
        for block in self._read_blocks(call, count):
            columns = to_columns(block, done, keep_objects=keep_objects)
            done += len(block)
            guard.add(len(block), sum(map(_count_bytes, columns.values())))
            if columns:
                yield columns

    def _join(self, call: str, limit: int | None, copies: float) -> Columns:
        """Read samples into columns; one that Arrow cannot hold is a list."""
        blocks = [*self._read_columns(call, limit, copies, keep_objects=True)]
        if not blocks:
            schema = find_stored_schema(self.flow) or ()
            return {field.name: import_arrow().nulls(0, field.type) for field in schema}
        pa = import_arrow()
        names = list(dict.fromkeys(name for block in blocks for name in block))
        return {
            name: _join_column(
                [block.get(name, pa.nulls(len(next(iter(block.values()))))) for block in blocks],
                name,
            )
            for name in names
        }


def _hash_rows(
    call: str, samples: Columns, columns: Sequence[str], rows: int
) -> npt.NDArray[np.uint64]:
    """Return a hash of the values of some columns for each row, equal for equal values.

    A single column has the hash by which files are split.
    """
    pa, pc = import_arrow(), import_arrow("pyarrow.compute")
    texts = list[Any]()
    for name in columns:
        column = samples.get(name, pa.nulls(rows))
        try:
            if isinstance(column, list):
                raise TypeError("values of several types, or objects")
            texts.append(pc.cast(column, pa.large_string()))
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


def _count_bytes(column: Any) -> int:
    return estimate_bytes(column) if isinstance(column, list) else column.nbytes


def _join_column(parts: Sequence[Any], name: str) -> Any:
    """Concatenate the parts of a column; one that Arrow cannot hold becomes a list."""
    pa = import_arrow()
    if not any(isinstance(part, list) for part in parts):
        try:
            return concatenate_tables([pa.table({name: part}) for part in parts]).column(0)
        except DataError:
            pass  # a field of one type in some samples, and of another in others
    return [
        value
        for part in parts
        for value in (cast("list[Any]", part) if isinstance(part, list) else _to_values(name, part))
    ]


def _to_values(name: str, column: Any) -> list[Any]:
    """Return the values of a column as samples have them."""
    chunks = column.chunks if isinstance(column, import_arrow().ChunkedArray) else [column]
    return [value for chunk in chunks for value in convert_named_column(name, chunk, None, True)]


def _to_pandas(pandas: Any, name: str, column: Any) -> Any:
    """Return a column as a series, in a dtype that keeps its values."""
    if isinstance(column, list):
        return pandas.Series(column, dtype=object)
    types: Any = import_arrow("pyarrow.types")
    if types.is_nested(column.type) or types.is_null(column.type):
        return pandas.Series(_to_values(name, column), dtype=object)
    if not column.null_count:
        return column.to_pandas()
    if types.is_boolean(column.type):
        return column.to_pandas(types_mapper={column.type: pandas.BooleanDtype()}.get)
    if types.is_integer(column.type):
        dtype = getattr(
            pandas, str(column.type).replace("int", "Int").replace("uI", "UI") + "Dtype"
        )
        return column.to_pandas(types_mapper={column.type: dtype()}.get)
    return column.to_pandas()


def _import_optional(package: str, call: str) -> Any:
    """Import a package that Penstock does not require.

    Raises:
        ImportError: if it is not installed; the message has the command that installs it.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ImportError(f"{call} needs the package {package!r}: pip install {package}") from None
