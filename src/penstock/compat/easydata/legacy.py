"""The older entry point: `build_dataset(DatasetMixture(informs=[...]))`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ...dataset import Dataset
from ...engine.mixing import Stop
from ...errors import ConfigError, DataError, PenstockError
from ...inputs import mix
from ...stores import storage
from .config import DatasetConfig
from .mixture import as_hub
from .opening import open_rows
from .packers import TokensOf, pack_full_rows
from .refused import refuse


class DatasetType(StrEnum):
    """Formats of files, and the Hugging Face hub."""

    JSON = "json"
    PARQUET = "parquet"
    CSV = "csv"
    ARROW = "arrow"
    HF = "huggingface"
    TSV = "tsv"
    TXT = "txt"

    @classmethod
    def from_string(cls, value: str) -> DatasetType | str:
        """Return the type of a text in any case; another text is returned unchanged.

        Args:
            value: the text.
        """
        return next((kind for kind in cls if kind.value == value.lower()), value)

    @classmethod
    def infer_from_path(cls, path: str) -> DatasetType | None:
        """Return the type of a file by the ending of its name; None for another ending.

        Args:
            path: the path.

        >>> DatasetType.infer_from_path("a.jsonl.gz")
        <DatasetType.JSON: 'json'>
        """
        name = path.removesuffix(".gz").removesuffix(".zst")
        ending = name.rpartition(".")[2]
        return next((kind for kind in cls if kind.value == _ENDINGS.get(ending)), None)


_ENDINGS = {
    "json": "json", "jsonl": "json", "parquet": "parquet", "csv": "csv", "arrow": "arrow",
    "tsv": "tsv", "txt": "txt",
}  # fmt: skip

DatasetLoadError = PenstockError
"""Base class of all errors of this package."""


@dataclass(frozen=True)
class BaseDatasetInform:
    """One dataset: its files, or its name on the hub.

    Args:
        type: format of the files, or "huggingface"; by default the ending decides.
        data_files: files, a glob, or a hub name.
        num_rows: maximum number of rows.
        dataset_split_name: configuration on the hub.
        split: split on the hub.
        format_callback: returns another row.
        format_fields: old field name -> new one.

    Raises:
        ConfigError: without `data_files`.
    """

    type: DatasetType | str | None = None
    data_files: str | Path | Sequence[str | Path] | None = None
    num_rows: int | None = None
    dataset_split_name: str | None = None
    split: str = "train"
    format_callback: Callable[[Any], Any] | None = None
    format_fields: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if not self.data_files:
            raise ConfigError(
                f"{type(self).__name__}: data_files is missing: give files, a glob, or a name on "
                "the hub"
            )

    def get_str_type(self) -> str | None:
        """Return the type as a text; None if the ending of the files decides."""
        return None if self.type is None else str(self.type).lower()

    def to_config(self, name: str, cache_dir: str | None) -> DatasetConfig:
        """Return the settings for a pipeline.

        Args:
            name: name of the dataset.
            cache_dir: folder of indexes.
        """
        return DatasetConfig(
            data_files=self.data_files or "",
            name=name,
            type=self.get_str_type(),
            split=self.split,
            num_rows=self.num_rows,
            dataset_split_name=self.dataset_split_name,
            cache_path=cache_dir,
            format_callback=self.format_callback,
            format_fields=self.format_fields,
        )


@dataclass(frozen=True)
class TextDatasetInform(BaseDatasetInform):
    """One dataset of texts: its files (or its name on the hub), and its text field.

    Args:
        content_field: the text field; None keeps rows as they are.
        additional_fields: other fields to keep.
        preprocessing_fn: returns another row, after `format_callback` and `format_fields`.

    >>> TextDatasetInform(type="json", data_files="data/*.json", content_field="content").split
    'train'
    """

    content_field: str | None = "content"
    additional_fields: Sequence[str] | None = None
    preprocessing_fn: Callable[[Any], Any] | None = None


@dataclass(frozen=True)
class VisualDatasetInform(BaseDatasetInform):
    """One dataset of images, maybe with texts.

    Args:
        pixel_field: the image field.
        content_field: the text field, if there is one.
        image_size: width and height to which images of Pillow are resized.
        preprocessing_fn: returns another row, after `format_callback` and `format_fields`.
    """

    pixel_field: str = "images"
    content_field: str | None = None
    image_size: tuple[int, int] | None = None
    preprocessing_fn: Callable[[Any], Any] | None = None


@dataclass(frozen=True)
class DatasetMixture:
    """Several datasets as one: mixed by blocks, or concatenated with `block_mixture=False`.

    The i-th weight belongs to the i-th inform, and its key becomes the name of that dataset. Rows
    have the text as `text_target_field`, and images as `image_target_field`.

    Args:
        informs: the datasets.
        cache_dir: folder of indexes.
        streaming: whether hub datasets are streamed.
        text_target_field: name of the text field of the mixture.
        batch_size: rows per batch; 1 does not batch.
        shuffle_buffer_size: rows of a shuffle buffer.
        seed: seed of the order.
        block_mixture: whether to mix by blocks, instead of concatenating.
        mixture_block_size: rows per block.
        stop_strategy: as `stop` of `block_mixture_interleave`.
        mixture_weights: weights in the order of the informs; the keys become names.
        image_target_field: name of the image field of the mixture.
        pack_tokens: whether to pack the tokens of a field into full rows of `input_ids`.
        tokens_field_name: that field.
        pack_seq_length: tokens per packed row; 1,024 by default.
        pack_eos_token_id: token after each document.
        pack_shuffle: whether to shuffle packed rows.
        pack_shuffle_buffer_factor: batches in that shuffle buffer.
        pack_on_the_fly: whether to pack the tokens of `tokenize_callback`.
        tokenize_callback: function from a row to its tokens.
        prefetch_workers: not supported.
        prefetch_buffer_size: not supported.
        cloud_max_retries: not supported.
        cloud_retry_delay: not supported.
        cache_remote_files: not supported.
        cache_expiry_seconds: not supported.
        dask_storage_options: not supported.

    Raises:
        ConfigError: without informs, or if weights or batch size do not fit.

    >>> DatasetMixture(informs=[TextDatasetInform(data_files="a.parquet")]).mixture_block_size
    2048
    """

    informs: Sequence[TextDatasetInform | VisualDatasetInform]
    cache_dir: str | None = None
    streaming: bool = True
    text_target_field: str = "text"
    image_target_field: str = "image"
    batch_size: int = 1
    shuffle_buffer_size: int | None = None
    seed: int | None = 42
    pack_tokens: bool = False
    tokens_field_name: str = "tokens"
    pack_seq_length: int | None = None
    pack_eos_token_id: int = 0
    pack_shuffle: bool = True
    pack_shuffle_buffer_factor: int = 16
    dask_storage_options: Mapping[str, Any] | None = None
    pack_on_the_fly: bool = False
    tokenize_callback: Callable[[Any], Sequence[int]] | None = None
    prefetch_workers: int | None = 2
    prefetch_buffer_size: int | None = 4
    cloud_max_retries: int | None = 3
    cloud_retry_delay: float | None = 0.1
    cache_remote_files: bool | None = True
    cache_expiry_seconds: int | None = 86400
    block_mixture: bool = True
    mixture_block_size: int = 2048
    stop_strategy: Stop = "restart"
    mixture_weights: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        refuse(self)
        if not self.informs:
            raise ConfigError("DatasetMixture: no informs; give at least one TextDatasetInform")
        weights = self.mixture_weights
        if weights is not None and len(weights) != len(self.informs):
            raise ConfigError(
                f"DatasetMixture: {len(weights)} weights ({', '.join(weights)}) for "
                f"{len(self.informs)} informs: give one weight per inform, in the same order"
            )
        if weights is not None and not self.block_mixture:
            raise ConfigError("DatasetMixture: mixture_weights need block_mixture=True")
        if self.batch_size < 1:
            raise ConfigError(f"DatasetMixture(batch_size={self.batch_size}): give at least 1")
        if self.pack_on_the_fly and self.tokenize_callback is None:
            raise ConfigError("DatasetMixture(pack_on_the_fly=True): give tokenize_callback")

    def to_json_string(self) -> str:
        """Return the settings as JSON.

        Raises:
            ConfigError: for functions, which JSON does not have.
        """
        settings = {name: value for name, value in asdict(self).items() if value is not None}
        try:
            return json.dumps(settings, indent=2, sort_keys=True, default=_path_to_text) + "\n"
        except TypeError as error:
            raise ConfigError(f"DatasetMixture: {error}: JSON has no functions") from error

    def save_mixture(self, json_file_path: str | Path) -> None:
        """Write the settings to a JSON file.

        Args:
            json_file_path: the file.
        """
        storage.write_atomically(Path(json_file_path), self.to_json_string().encode())

    @classmethod
    def load_mixture(cls, json_file: str | Path) -> DatasetMixture:
        """Return the settings of a JSON file.

        Args:
            json_file: the file.
        """
        settings = json.loads(Path(json_file).read_text(encoding="utf-8"))
        informs = [
            (VisualDatasetInform if "pixel_field" in inform else TextDatasetInform)(**inform)
            for inform in settings.pop("informs")
        ]
        return cls(informs=informs, **settings)

    def build(self) -> Any:
        """Return the rows as a Hugging Face `IterableDataset`."""
        return build_dataset(self)


def build_dataset(mixture: DatasetMixture) -> Any:
    """Return the rows of a mixture as a Hugging Face `IterableDataset`.

    Its state is the one of `block_mixture_interleave`.

    Args:
        mixture: the datasets and how to mix them.

    >>> import tempfile, pyarrow as pa, pyarrow.parquet as pq
    >>> folder = tempfile.mkdtemp()
    >>> pq.write_table(pa.table({"content": ["one", "two"]}), f"{folder}/a.parquet")
    >>> list(build_dataset(DatasetMixture([TextDatasetInform(data_files=f"{folder}/*.parquet")])).take(3))
    [{'text': 'one'}, {'text': 'two'}, {'text': 'one'}]
    """
    named_weights = mixture.mixture_weights or {
        f"dataset_{i}": 1.0 for i in range(len(mixture.informs))
    }
    inputs = {
        name: _open(inform, name, mixture)
        for name, inform in zip(named_weights, mixture.informs, strict=True)
    }
    if mixture.block_mixture:
        weights = mixture.mixture_weights
        block, stop = mixture.mixture_block_size, mixture.stop_strategy
        dataset = mix(inputs, weights, seed=mixture.seed or 0, block_size=block, stop=stop)
    else:
        first, *others = inputs.values()
        dataset = first.concat(*others)
    if mixture.shuffle_buffer_size is not None:
        dataset = dataset.shuffle_buffer(mixture.shuffle_buffer_size, seed=mixture.seed or 0)
    if mixture.pack_tokens or mixture.pack_on_the_fly:
        return as_hub(_pack(dataset, mixture))
    if mixture.batch_size > 1:
        dataset = dataset.batch(mixture.batch_size, collate=columns)
    return as_hub(dataset)


def _pack(dataset: Dataset, mixture: DatasetMixture) -> Dataset:
    field = mixture.tokens_field_name
    if not mixture.pack_tokens and mixture.tokenize_callback is not None:
        dataset, field = dataset.map(TokensOf(mixture.tokenize_callback)), "tokens"
    buffer_size = mixture.batch_size * mixture.pack_shuffle_buffer_factor
    return pack_full_rows(
        dataset,
        field,
        mixture.pack_seq_length or 1024,
        mixture.pack_eos_token_id,
        buffer_size if mixture.pack_shuffle else None,
        mixture.seed or 0,
    )


def _open(inform: BaseDatasetInform, name: str, mixture: DatasetMixture) -> Dataset:
    rows = open_rows(inform.to_config(name, mixture.cache_dir), mixture.streaming)
    if isinstance(inform, VisualDatasetInform):
        return rows.map(_Visual(name, inform, mixture))
    if not isinstance(inform, TextDatasetInform):
        return rows
    if inform.preprocessing_fn is not None:
        rows = rows.map(inform.preprocessing_fn)
    if inform.content_field is None:
        return rows
    extra_fields = list(inform.additional_fields or ())
    if mixture.pack_tokens:
        return rows.map(Text(name, mixture.tokens_field_name, mixture.tokens_field_name, ()))
    return rows.map(
        Text(name, inform.content_field, mixture.text_target_field, tuple(extra_fields))
    )


class _Visual:
    """Rename the image and the text of a row, and resize the image."""

    def __init__(self, name: str, inform: VisualDatasetInform, mixture: DatasetMixture) -> None:
        self._name, self._inform = name, inform
        self._fields = {inform.pixel_field: mixture.image_target_field}
        if inform.content_field is not None:
            self._fields[inform.content_field] = mixture.text_target_field
        self.__qualname__ = f"visual({self._fields}, {inform.image_size})"

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        if self._inform.preprocessing_fn is not None:
            row = self._inform.preprocessing_fn(row)
        require_fields(row, self._fields, self._name)
        named = {self._fields.get(name, name): value for name, value in row.items()}
        if self._inform.image_size is not None:
            image = self._fields[self._inform.pixel_field]
            named[image] = named[image].resize(self._inform.image_size)
        return named


@dataclass(frozen=True)
class Text:
    """Rename the text field of rows, and drop all fields but the extra ones."""

    name: str
    field: str
    target: str
    extra_fields: tuple[str, ...]

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        require_fields(row, (self.field, *self.extra_fields), self.name)
        return {self.target: row[self.field], **{name: row[name] for name in self.extra_fields}}


def require_fields(row: Mapping[str, Any], fields: Iterable[str], location: str) -> None:
    """Raise `DataError` if a row lacks a field.

    Args:
        row: the row.
        fields: names of the fields.
        location: name of the dataset.
    """
    for name in fields:
        if name not in row:
            raise DataError(
                f"a row has no field {name!r}, only {', '.join(row)}: set content_field",
                where=location,
            )


def _path_to_text(value: Any) -> str:
    if isinstance(value, Path):
        return value.as_posix()
    raise TypeError(f"{type(value).__name__} {value!r} is not JSON")


def columns(rows: list[Any]) -> dict[str, list[Any]]:
    """Collate rows into one mapping of lists, like Hugging Face batches."""
    return {name: [row[name] for row in rows] for name in rows[0]}
