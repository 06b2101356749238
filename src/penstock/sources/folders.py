"""Folders that are one dataset by themselves: an index in them tells which files are its data, and
in what order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias, cast

from ..errors import ConfigError, DataError
from ..stores import display_path, located
from . import meta
from .mds_index import shards_of
from .metadata import is_metadata

ZARR = ("zarr.json", ".zarray", ".zgroup")
"""The metadata of a Zarr folder, which stands for all of it."""

Listed: TypeAlias = Callable[[dict[str, Any], Path], Iterable[list[str]] | None]
"""The files that an index lists, each by all names that it may have; `None` where it is no such
index."""


def files(folder: Path) -> list[Path] | None:
    """The data files of a folder that is one dataset, in their order; `None` for any other folder.

    >>> files(Path("no/such/folder")) is None
    True
    """
    if metadata := next((folder / name for name in ZARR if (folder / name).is_file()), None):
        return [metadata]
    if versions := [path for path in folder.glob("_versions/*.manifest") if path.stem.isdigit()]:
        return [max(versions, key=lance_version)]
    for name, pattern, listed in _INDEXES:
        index = folder / name
        if index.is_file() and (found := _listed(folder, index, pattern, listed)) is not None:
            return found
    return None


def lance_version(manifest: Path) -> int:
    """The version of a Lance dataset that a manifest is of; new ones count down from the largest
    number of 64 bits.

    >>> lance_version(Path("3.manifest")), lance_version(Path("18446744073709551613.manifest"))
    (3, 2)
    """
    number = int(manifest.stem)
    return number if len(manifest.stem) < 20 else (1 << 64) - 1 - number


def _listed(folder: Path, index: Path, pattern: str, listed: Listed) -> list[Path] | None:
    """The files that an index lists; `None` where a file of this name is no index, but data
    itself."""
    try:
        found = meta.read(index)
    except DataError:
        if any(folder.glob(pattern)):
            raise
        return None
    names = listed(cast("dict[str, Any]", found), index) if isinstance(found, dict) else None
    if names is None:
        return None
    if not (there := list(_there(folder, names, index))):
        raise ConfigError(f"{index} lists no files: the dataset is empty")
    return there


def _shards(found: dict[str, Any], index: Path) -> list[list[str]] | None:
    """MosaicML MDS."""
    return [shard.basenames for shard in shards_of(found, index)] if "shards" in found else None


def _chunks(found: dict[str, Any], index: Path) -> list[list[str]] | None:
    """LitData."""
    if not {"chunks", "config"} <= found.keys():
        return None
    try:
        return [[str(chunk["filename"])] for chunk in found["chunks"]]
    except (LookupError, TypeError) as error:
        raise DataError(f"does not list its chunks: {error!r}", where=str(index)) from error


def _saved(found: dict[str, Any], index: Path) -> list[list[str]] | None:
    """What `save_to_disk` of Hugging Face's `datasets` wrote: Arrow files."""
    if "_data_files" not in found:
        return None
    if found.get("_indices_data_files") or found.get("_indices_files"):
        raise ConfigError(
            f"{index}: the rows are chosen by a file of indices: save it once more, by datasets 2 "
            "or later"
        )
    try:
        return [[str(file["filename"])] for file in found["_data_files"]]
    except (LookupError, TypeError) as error:
        raise DataError(f"does not list its files: {error!r}", where=str(index)) from error


def _splits(found: dict[str, Any], index: Path) -> None:
    """A `DatasetDict` is several datasets."""
    if isinstance(splits := found.get("splits"), list):
        names = ", ".join(map(str, cast("list[Any]", splits)))
        raise ConfigError(f"{index.parent} holds the splits {names}: choose one with split=")


_INDEXES: tuple[tuple[str, str, Listed], ...] = (
    ("index.json", "*.mds*", _shards),
    ("index.json", "chunk-*.bin", _chunks),
    ("state.json", "data-*.arrow", _saved),
    ("dataset_dict.json", "*/state.json", _splits),
)
"""Names of indexes, what lies beside them where they are no data, and what they list."""


def _there(folder: Path, names: Iterable[list[str]], index: Path) -> Iterator[Path]:
    """Of the names of each file the first that is there; none may lead out of the folder."""
    for each in names:
        for name in each:
            place = PurePosixPath(name)
            if (
                not name
                or place.is_absolute()
                or ".." in place.parts
                or "\\" in name
                or "\0" in name
            ):
                raise DataError(
                    f"the file {name!r} does not lie below this folder, and is not read",
                    where=str(index),
                )
        path = next((folder / name for name in each if (folder / name).is_file()), None)
        if path is None:
            raise DataError(f"the file {each[0]!r} is missing", where=str(index))
        yield path


def part(folder: str | Path, split: str) -> Path:
    """The folder of this name below another, where it is a dataset."""
    found = located(folder) / split
    if (
        not split
        or PurePosixPath(split).name != split
        or not found.is_dir()
        or files(found) is None
    ):
        raise ConfigError(
            f"split={split!r}: only a folder that Energon prepared, or one of datasets by split, "
            "has splits; "
            f"{display_path(folder)!r} has none of this name"
        )
    return found


def whole(files: Sequence[Path]) -> list[Path]:
    """All the files that data lies in: of a Zarr folder, its chunks too, but not what other tools
    leave there."""
    found = list[Path]()
    for path in files:
        inside = path.parent.rglob("*") if path.name in ZARR else [path]
        found += sorted(
            one for one in inside if one.is_file() and not is_metadata(PurePosixPath(one.name))
        )
    return found
