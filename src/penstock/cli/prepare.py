"""`penstock prepare`: whatever data there is, as shards that a run reads at full speed."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

import penstock as ps
from penstock.errors import ConfigError, missing_extra

from .say import Json, answer, guarded, here, say
from .verify import Cache, Engine, Format, Workers, engine_of

if TYPE_CHECKING:
    from penstock.writing import ShardFormat

KINDS = ("auto", "data", "files", "list", "hub")


@guarded
def prepare(
    paths: Annotated[
        list[str],
        typer.Argument(help="Files, folders, globs; with --from a folder, a list, a name."),
    ],
    out: Annotated[
        Path,
        typer.Option("-o", "--out", parser=here, metavar="PATH", help="The folder of the shards."),
    ],
    kind: Annotated[
        str,
        typer.Option(
            "--from", help="data, files (a folder of them), list (of files), hub (datasets); auto."
        ),
    ] = "auto",
    to: Annotated[
        str | None,
        typer.Option(help="arrow, tar or jsonl; default: tar for bytes, arrow for the rest."),
    ] = (None),
    shard: Annotated[int, typer.Option(min=1, help="Samples in a shard.")] = 10_000,
    max_bytes: Annotated[int, typer.Option(min=1, help="A shard with more bytes is cut.")] = 1
    << 30,
    shuffle: Annotated[int | None, typer.Option(help="Shuffle with this seed before.")] = None,
    columns: Annotated[str | None, typer.Option(help="Only these, by comma.")] = None,
    split: Annotated[str | None, typer.Option(help="Of data with splits: train, say.")] = None,
    format: Format = None,
    cache: Cache = None,
    engine: Engine = "inline",
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Write data as shards: resumable at any moment, with the same bytes whoever wrote them, in
    however many tries."""
    from penstock.engine.base.hints import chosen
    from penstock.engine.graph.shown import counted
    from penstock.writing import write

    chosen(kind, KINDS, "--from {}")
    executor = engine_of(engine)
    names = None if columns is None else [name.strip() for name in columns.split(",")]
    dataset = _opened(kind, paths, format, names, cache, split)
    if shuffle is not None:
        dataset = dataset.shuffle(seed=shuffle)
    form = cast("ShardFormat", to) if to else _form(dataset)
    files = write(dataset, out, form, shard, max_bytes, executor, workers)
    size = sum(file.stat().st_size for file in files)

    def tell(console: Any) -> None:
        say(
            console,
            f"{out}: {len(dataset):,} samples in {counted(len(files), 'file')} ({form}), {size:,} "
            "bytes",
        )

    told = {
        "out": str(out),
        "format": form,
        "samples": len(dataset),
        "files": list(map(str, files)),
        "bytes": size,
    }
    answer(told, tell, as_json)


def _opened(
    kind: str,
    paths: Sequence[str],
    format: str | None,
    columns: list[str] | None,
    cache: Path | None,
    split: str | None,
) -> ps.Dataset:
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
        raise ConfigError(f"--from {kind} takes one path, not {len(paths)}")
    if kind == "hub":
        return _chosen(_hub(paths[0], split or "train"), columns)
    if not first.exists():
        raise ConfigError(f"{first}: no such file or folder")
    return _chosen(
        ps.from_sequence(
            file_samples.folder(first) if kind == "files" else file_samples.listed(first)
        ),
        columns,
    )


def _hub(name: str, split: str) -> ps.Dataset:
    try:
        datasets: Any = importlib.import_module("datasets")
    except ModuleNotFoundError:
        raise missing_extra("datasets", "hf", "penstock prepare --from hub") from None
    return ps.from_sequence(datasets.load_dataset(name, split=split), name=name.rpartition("/")[2])


class Chosen:
    """Some fields of a sample."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = list(columns)
        self.__qualname__ = f"columns {', '.join(columns)}"

    def __call__(self, sample: Any) -> dict[str, Any]:
        return {name: sample[name] for name in self.columns}


def _chosen(dataset: ps.Dataset, columns: list[str] | None) -> ps.Dataset:
    return dataset if columns is None else dataset.map(Chosen(columns))


def _form(dataset: ps.Dataset) -> ShardFormat:
    """The format that fits the first sample: tars for parts that are bytes, tables for columns,
    lines for the rest."""
    if not len(dataset):
        raise ConfigError("prepare: there are no samples")
    first = dataset[0]
    if not isinstance(first, dict):
        return "arrow" if hasattr(first, "ndim") else "jsonl"
    values = cast("dict[str, Any]", first)
    return (
        "tar"
        if "__key__" in values or any(isinstance(value, bytes) for value in values.values())
        else "arrow"
    )
