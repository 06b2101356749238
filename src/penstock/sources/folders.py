"""Folders that are one dataset: an index lists the data files in order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias, cast

from ..errors import ConfigError, DataError
from ..stores import display_path, parse_location
from . import meta
from .mds_index import parse_shards
from .metadata import is_metadata

ZARR_METADATA_NAMES = ("zarr.json", ".zarray", ".zgroup")
"""Metadata files of a Zarr folder, which represent the folder."""

ListFiles: TypeAlias = Callable[[dict[str, Any], Path], Iterable[list[str]] | None]
"""Returns the files of an index, each with all its possible names; `None` for another file."""


def find_dataset_files(folder: Path) -> list[Path] | None:
    """Return the ordered files of a folder that is one dataset; `None` for any other folder.

    >>> find_dataset_files(Path("no/such/folder")) is None
    True
    """
    if metadata := next(
        (folder / name for name in ZARR_METADATA_NAMES if (folder / name).is_file()), None
    ):
        return [metadata]
    if versions := [path for path in folder.glob("_versions/*.manifest") if path.stem.isdigit()]:
        return [max(versions, key=parse_lance_version)]
    for name, pattern, list_files in _FOLDER_INDEXES:
        index = folder / name
        if (
            index.is_file()
            and (data_files := _read_listed_files(folder, index, pattern, list_files)) is not None
        ):
            return data_files
    return None


def parse_lance_version(manifest: Path) -> int:
    """Return the version of a Lance manifest.

    The names of newer manifests count down from the largest 64-bit number.

    >>> parse_lance_version(Path("3.manifest")), parse_lance_version(Path("18446744073709551613.manifest"))
    (3, 2)
    """
    number = int(manifest.stem)
    return number if len(manifest.stem) < 20 else (1 << 64) - 1 - number


def _read_listed_files(
    folder: Path, index: Path, pattern: str, list_files: ListFiles
) -> list[Path] | None:
    """Return the files that an index lists; `None` if a file of this name is data itself."""
    try:
        content = meta.read(index)
    except DataError:
        if any(folder.glob(pattern)):
            raise
        return None
    names = (
        list_files(cast("dict[str, Any]", content), index) if isinstance(content, dict) else None
    )
    if names is None:
        return None
    if not (existing := list(_iterate_existing_files(folder, names, index))):
        raise ConfigError(f"{index} lists no files: the dataset is empty")
    return existing


def _list_mds_shards(content: dict[str, Any], index: Path) -> list[list[str]] | None:
    """List the shards of a MosaicML MDS index."""
    return (
        [shard.basenames for shard in parse_shards(content, index)] if "shards" in content else None
    )


def _list_litdata_chunks(content: dict[str, Any], index: Path) -> list[list[str]] | None:
    """List the chunks of a LitData index."""
    if not {"chunks", "config"} <= content.keys():
        return None
    try:
        return [[str(chunk["filename"])] for chunk in content["chunks"]]
    except (LookupError, TypeError) as error:
        raise DataError(f"does not list its chunks: {error!r}", where=str(index)) from error


def _list_saved_arrow_files(content: dict[str, Any], index: Path) -> list[list[str]] | None:
    """List the Arrow files that `save_to_disk` of Hugging Face's `datasets` wrote."""
    if "_data_files" not in content:
        return None
    if content.get("_indices_data_files") or content.get("_indices_files"):
        raise ConfigError(
            f"{index}: a file of indices selects the rows: save the dataset again, with datasets 2 "
            "or later"
        )
    try:
        return [[str(file["filename"])] for file in content["_data_files"]]
    except (LookupError, TypeError) as error:
        raise DataError(f"does not list its files: {error!r}", where=str(index)) from error


def _refuse_dataset_dict(content: dict[str, Any], index: Path) -> None:
    """Raise for a `DatasetDict`, which is several datasets."""
    if isinstance(splits := content.get("splits"), list):
        names = ", ".join(map(str, cast("list[Any]", splits)))
        raise ConfigError(f"{index.parent} holds the splits {names}: choose one with split=")


_FOLDER_INDEXES: tuple[tuple[str, str, ListFiles], ...] = (
    ("index.json", "*.mds*", _list_mds_shards),
    ("index.json", "chunk-*.bin", _list_litdata_chunks),
    ("state.json", "data-*.arrow", _list_saved_arrow_files),
    ("dataset_dict.json", "*/state.json", _refuse_dataset_dict),
)
"""Names of indexes, patterns of the data beside them, and functions that list it."""


def _iterate_existing_files(
    folder: Path, names: Iterable[list[str]], index: Path
) -> Iterator[Path]:
    """Yield the first existing name of each file; raise for names outside the folder."""
    for candidates in names:
        for name in candidates:
            relative = PurePosixPath(name)
            if (
                not name
                or relative.is_absolute()
                or ".." in relative.parts
                or "\\" in name
                or "\0" in name
            ):
                raise DataError(
                    f"the file {name!r} does not lie below this folder: move it there",
                    where=str(index),
                )
        path = next((folder / name for name in candidates if (folder / name).is_file()), None)
        if path is None:
            raise DataError(f"the file {candidates[0]!r} is missing", where=str(index))
        yield path


def find_split(folder: str | Path, split: str) -> Path:
    """Return the folder of a split, if it is a dataset."""
    path = parse_location(folder) / split
    if (
        not split
        or PurePosixPath(split).name != split
        or not path.is_dir()
        or find_dataset_files(path) is None
    ):
        remedy = (
            f"; to hold out a share, write split: {{held_out: {split}}} in a mixture file, or "
            f"read(...).split({split!r}) in Python"
            if re.fullmatch(r"[\d.]+%?", split)
            else ""
        )
        raise ConfigError(
            f"split={split!r}: {display_path(folder)!r} has no split of this name; splits exist in folders "
            f"that Energon prepared, and in folders of one dataset per split{remedy}"
        )
    return path


def list_data_files(files: Sequence[Path]) -> list[Path]:
    """Return all files that contain data: for a Zarr folder also its chunks.

    Files that other tools leave there are omitted.
    """
    paths = list[Path]()
    for path in files:
        candidates = path.parent.rglob("*") if path.name in ZARR_METADATA_NAMES else [path]
        paths += sorted(
            file
            for file in candidates
            if file.is_file() and not is_metadata(PurePosixPath(file.name))
        )
    return paths
