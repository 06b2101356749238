"""Command `penstock prepare`: convert data of any kind to shards for fast reading."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

import penstock as ps
from penstock.errors import ConfigError, make_missing_extra_error

from .common import JsonOption, handle_errors, parse_local_path, print_result, print_text
from .verify import CacheOption, ExecutorOption, Format, WorkersOption, parse_executor

if TYPE_CHECKING:
    from penstock.writing import ShardFormat

INPUT_KINDS = ("auto", "data", "files", "list", "hub")


@handle_errors
def prepare(
    paths: Annotated[
        list[str],
        typer.Argument(help="Files, folders or globs; with --from, a folder, a list or a name."),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "-o", "--out", parser=parse_local_path, metavar="PATH", help="Folder for the shards."
        ),
    ],
    kind: Annotated[
        str,
        typer.Option(
            "--from", help="Kind of input: auto, data, files (a folder), list (of files) or hub."
        ),
    ] = "auto",
    to: Annotated[
        str | None,
        typer.Option(help="arrow, tar or jsonl; default: tar for bytes, else arrow."),
    ] = None,
    shard: Annotated[int, typer.Option(min=1, help="Samples per shard.")] = 10_000,
    max_bytes: Annotated[int, typer.Option(min=1, help="Maximum bytes per shard.")] = 1 << 30,
    shuffle: Annotated[int | None, typer.Option(help="Seed to shuffle the samples with.")] = None,
    columns: Annotated[
        str | None, typer.Option(help="Columns to write, separated by commas.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split of the data, such as train.")] = None,
    format: Format = None,
    cache: CacheOption = None,
    executor: ExecutorOption = "inline",
    workers: WorkersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write data of any kind as shards; resumable after a crash.

    The shards are byte-identical for any number of workers and restarts.
    """
    from penstock.arguments import check_choice
    from penstock.engine.base.shown import counted
    from penstock.writing import write
    from penstock.writing.shard import SHARD_FORMATS

    check_choice(kind, INPUT_KINDS, "--from {}")
    executor_name = parse_executor(executor)
    if to is not None:
        check_choice(to, SHARD_FORMATS, "--to {}")
    column_names = None if columns is None else [name.strip() for name in columns.split(",")]
    dataset = _open_dataset(kind, paths, format, column_names, cache, split)
    if shuffle is not None:
        dataset = dataset.shuffle(seed=shuffle)
    shard_format = cast("ShardFormat", to) if to else _choose_format(dataset)
    files = write(dataset, out, shard_format, shard, max_bytes, executor_name, workers)
    size = sum(file.stat().st_size for file in files)

    def tell(console: Any) -> None:
        print_text(
            console,
            f"{out}: {len(dataset):,} samples in {counted(len(files), 'file')} ({shard_format}), {size:,} "
            "bytes",
        )

    result = {
        "out": str(out),
        "format": shard_format,
        "samples": len(dataset),
        "files": list(map(str, files)),
        "bytes": size,
    }
    print_result(result, tell, as_json)


def _open_dataset(
    kind: str,
    paths: Sequence[str],
    format: str | None,
    columns: list[str] | None,
    cache: Path | None,
    split: str | None,
) -> ps.Dataset:
    """Open the input as a dataset, according to `--from`."""
    from penstock.sources import file_samples

    first = Path(paths[0]).expanduser()
    if kind == "auto":
        kind = (
            "files"
            if len(paths) == 1 and format is None and file_samples.is_media(first)
            else "data"
        )
    if kind == "data":
        return ps.read(list(paths), format=format, columns=columns, cache=cache, split=split)
    if len(paths) != 1:
        raise ConfigError(f"--from {kind} takes one path, got {len(paths)}")
    if kind == "hub":
        return _select_columns(_load_hub_dataset(paths[0], split or "train"), columns)
    if not first.exists():
        raise ConfigError(f"{first}: no such file or folder; check the path")
    return _select_columns(
        ps.from_sequence(
            file_samples.list_folder(first) if kind == "files" else file_samples.read_list(first)
        ),
        columns,
    )


def _load_hub_dataset(name: str, split: str) -> ps.Dataset:
    try:
        datasets: Any = importlib.import_module("datasets")
    except ModuleNotFoundError:
        raise make_missing_extra_error("datasets", "hf", "penstock prepare --from hub") from None
    return ps.from_sequence(datasets.load_dataset(name, split=split), name=name.rpartition("/")[2])


class SelectColumns:
    """Select some columns of a sample."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = list(columns)
        self.__qualname__ = f"columns {', '.join(columns)}"

    def __call__(self, sample: Any) -> dict[str, Any]:
        return {name: sample[name] for name in self.columns}


def _select_columns(dataset: ps.Dataset, columns: list[str] | None) -> ps.Dataset:
    return dataset if columns is None else dataset.map(SelectColumns(columns))


def _choose_format(dataset: ps.Dataset) -> ShardFormat:
    """Return the format that suits the first sample: tar (parts of bytes), arrow or jsonl."""
    from penstock.writing.tar import is_encodable

    if not len(dataset):
        raise ConfigError("prepare: the input has no samples")
    first = dataset[0]
    if not isinstance(first, dict):
        return "arrow" if hasattr(first, "ndim") else "jsonl"
    values = cast("dict[str, Any]", first)
    has_parts = any(isinstance(value, bytes) for value in values.values()) and all(
        is_encodable(str(name), value) for name, value in values.items()
    )
    return "tar" if "__key__" in values or has_parts else "arrow"
