"""The small files that describe a prepared folder, in its `.nv-meta`: JSON and YAML, read as plain
values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from ..engine.base import seams
from ..engine.base.limits import METADATA
from ..engine.base.yaml import shallow
from ..errors import ConfigError, DataError
from . import sidecar

META = ".nv-meta"


def first(root: Path, *names: str) -> Path:
    """The first of these files that is there."""
    for name in names:
        if (root / META / name).is_file():
            return root / META / name
    raise ConfigError(
        f"{root} was not prepared to its end: there is no {' or '.join(names)} in its {META}"
    )


def config(root: Path, name: str) -> Path:
    """The file of this name, which may not lead anywhere else."""
    if name in ("", "..") or Path(name).name != name:
        raise ConfigError(f"{name!r} must be the name of a file in {META}, not a path")
    return first(root, name)


def read(path: Path) -> Any:
    """What a JSON or YAML file holds: plain values, no objects."""
    text = read_bytes(path)
    try:
        return json.loads(text) if path.suffix == ".json" else _from_yaml(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"cannot be read: {error}", where=str(path)) from error


def read_bytes(path: Path) -> bytes:
    """Read a file that describes data, unless it is larger than such files can be."""
    with sidecar.storage(path):
        return seams.read_within(str(path), METADATA)


def _from_yaml(text: bytes) -> Any:
    yaml = shallow(text, "reading a folder that Energon prepared")
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def mapping(found: Any, where: Path, name: str = "") -> Mapping[str, Any]:
    """A mapping with names for keys; a `DataError` where it is none."""
    if not isinstance(found, Mapping):
        raise DataError(
            f"{name or 'the file'} must be a mapping, it is {type(found).__name__}",
            where=str(where),
        )
    return {str(key): value for key, value in cast("Mapping[Any, Any]", found).items()}
