"""Small JSON and YAML files that describe a dataset, such as `.nv-meta` of Energon."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from ..errors import ConfigError, DataError, convert_storage_errors
from ..stores.limits import METADATA, read_within
from .yaml import require_shallow

META_FOLDER = ".nv-meta"


def find_first_existing(root: Path, *names: str) -> Path:
    """Return the first of these files that exists."""
    for name in names:
        if (root / META_FOLDER / name).is_file():
            return root / META_FOLDER / name
    raise ConfigError(
        f"{root} is prepared incompletely: {' or '.join(names)} is missing in its {META_FOLDER}: prepare "
        "it again"
    )


def config(root: Path, name: str) -> Path:
    """Return the file of this name, which must not lead out of `.nv-meta`."""
    if name in ("", "..") or Path(name).name != name:
        raise ConfigError(f"{name!r} must be the name of a file in {META_FOLDER}, not a path")
    return find_first_existing(root, name)


def read(path: Path) -> Any:
    """Return the content of a JSON or YAML file as plain values."""
    text = read_bytes(path)
    try:
        return json.loads(text) if path.suffix == ".json" else _parse_yaml(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"cannot be read: {error}", where=str(path)) from error


def read_bytes(path: Path) -> bytes:
    """Read a file that describes data, up to a size limit."""
    with convert_storage_errors(path):
        return read_within(str(path), METADATA)


def _parse_yaml(text: bytes) -> Any:
    yaml = require_shallow(text, "reading a folder that Energon prepared")
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def require_mapping(value: Any, where: Path, name: str = "") -> Mapping[str, Any]:
    """Return a mapping with text keys; raise `DataError` for another value."""
    if not isinstance(value, Mapping):
        raise DataError(
            f"{name or 'the file'} must be a mapping, not {type(value).__name__}",
            where=str(where),
        )
    return {str(key): item for key, item in cast("Mapping[Any, Any]", value).items()}
