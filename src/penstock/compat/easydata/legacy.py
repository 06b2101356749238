"""The older entry point: `build_dataset(DatasetMixture(informs=[...]))`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...dataset import Dataset
from ...engine.mixing import Stop
from ...errors import ConfigError, DataError
from ...inputs import mix
from .config import DatasetConfig, refuse
from .mixture import as_hub
from .pipeline import open_rows


@dataclass(frozen=True)
class TextDatasetInform:
    """One dataset of texts: its files (or its name on the hub), and its text field.

    Args:
        type: format of the files.
        data_files: files, a glob, or a hub name.
        num_rows: maximum number of rows.
        dataset_split_name: configuration on the hub.
        split: split on the hub.
        format_callback: returns another row.
        format_fields: old field name -> new one.
        content_field: the text field.
        additional_fields: other fields to keep.
        preprocessing_fn: not supported.

    Raises:
        ConfigError: without `data_files`.

    >>> TextDatasetInform(type="json", data_files="data/*.json", content_field="content").split
    'train'
    """

    type: str | None = None
    data_files: str | Sequence[str] | None = None
    num_rows: int | None = None
    dataset_split_name: str | None = None
    split: str = "train"
    format_callback: Callable[[Any], Any] | None = None
    format_fields: Mapping[str, str] | None = None
    content_field: str = "content"
    additional_fields: Sequence[str] | None = None
    preprocessing_fn: None = None

    def __post_init__(self) -> None:
        refuse(self, preprocessing_fn="EasyData never called it; use format_callback")
        if self.data_files is None:
            raise ConfigError(
                "TextDatasetInform: data_files is missing: give files, a glob, or a name on the hub"
            )


@dataclass(frozen=True)
class DatasetMixture:
    """Several datasets as one: mixed by blocks, or concatenated with `block_mixture=False`.

    The i-th weight belongs to the i-th inform, and its key becomes the name of that dataset. Rows
    have the text as `text_target_field`. For packing, tokenize and pack with `Pipeline`.

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
        image_target_field: not supported.
        pack_tokens: not supported.
        pack_on_the_fly: not supported.
        pack_seq_length: not supported.
        tokenize_callback: not supported.
        prefetch_workers: not supported.
        prefetch_buffer_size: not supported.
        cache_remote_files: not supported.
        dask_storage_options: not supported.

    Raises:
        ConfigError: without informs, or if weights or batch size do not fit.

    >>> DatasetMixture(informs=[TextDatasetInform(data_files="a.parquet")]).mixture_block_size
    2048
    """

    informs: Sequence[TextDatasetInform]
    cache_dir: str | None = None
    streaming: bool = True
    text_target_field: str = "text"
    batch_size: int = 1
    shuffle_buffer_size: int | None = None
    seed: int | None = 42
    block_mixture: bool = True
    mixture_block_size: int = 2048
    stop_strategy: Stop = "restart"
    mixture_weights: Mapping[str, float] | None = None
    image_target_field: None = None
    pack_tokens: None = None
    pack_on_the_fly: None = None
    pack_seq_length: None = None
    tokenize_callback: None = None
    prefetch_workers: None = None
    prefetch_buffer_size: None = None
    cache_remote_files: None = None
    dask_storage_options: None = None

    def __post_init__(self) -> None:
        packing, prefetch = (
            "use Pipeline(...).source().tokenize().pack()",
            "the trainer's loader prefetches",
        )
        refuse(
            self,
            image_target_field="only texts are supported",
            pack_tokens=packing,
            pack_on_the_fly=packing,
            pack_seq_length=packing,
            tokenize_callback=packing,
            prefetch_workers=prefetch,
            prefetch_buffer_size=prefetch,
            cache_remote_files="remote files cannot be read yet",
            dask_storage_options="remote files cannot be read yet",
        )
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
        name: _texts(inform, name, mixture)
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
    if mixture.batch_size > 1:
        dataset = dataset.batch(mixture.batch_size, collate=columns)
    return as_hub(dataset)


def _texts(inform: TextDatasetInform, name: str, mixture: DatasetMixture) -> Dataset:
    config = DatasetConfig(
        data_files=inform.data_files or "",
        name=name,
        type=inform.type,
        split=inform.split,
        num_rows=inform.num_rows,
        dataset_split_name=inform.dataset_split_name,
        cache_path=mixture.cache_dir,
        format_callback=inform.format_callback,
        format_fields=inform.format_fields,
    )
    extra_fields = tuple(inform.additional_fields or ())
    return open_rows(config, mixture.streaming).map(
        Text(name, inform.content_field, mixture.text_target_field, extra_fields)
    )


@dataclass(frozen=True)
class Text:
    """Rename the text field of rows, and drop all fields but the extra ones."""

    name: str
    field: str
    target: str
    extra_fields: tuple[str, ...]

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        for name in (self.field, *self.extra_fields):
            if name not in row:
                raise DataError(
                    f"a row has no field {name!r}, only {', '.join(row)}: set content_field",
                    where=self.name,
                )
        return {self.target: row[self.field], **{name: row[name] for name in self.extra_fields}}


def columns(rows: list[Any]) -> dict[str, list[Any]]:
    """Collate rows into one mapping of lists, like Hugging Face batches."""
    return {name: [row[name] for row in rows] for name in rows[0]}
