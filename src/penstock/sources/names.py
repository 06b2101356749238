"""Default names of sources; outside a mixture, randomness is keyed by these names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..stores import parse_location
from .paths import ALL_FORMATS, PACKED_EXTENSIONS


def choose_source_name(given: Sequence[str | Path], files: Sequence[Path]) -> str:
    """Return a default name for a source.

    It is the name of the only folder given, or else of the only file, or of the first file's folder.

    >>> choose_source_name(["data/*"], [Path("data/code.jsonl.gz")])
    'code'
    >>> choose_source_name(["data/**"], [Path("data/code/0.txt"), Path("data/code/1.txt")])
    'code'
    """
    folder, first = parse_location(given[0]).absolute(), files[0]
    if len(given) == 1 and folder.name and folder in first.absolute().parents:
        return _to_valid_unicode(
            folder.stem if folder.suffix.lower()[1:] in ALL_FORMATS else folder.name
        )
    if len(files) > 1:
        return _to_valid_unicode(first.absolute().parent.name) or "data"
    return _to_valid_unicode(
        Path(first.stem).stem if first.suffix.lower() in PACKED_EXTENSIONS else first.stem
    )


def _to_valid_unicode(name: str) -> str:
    """Return a file name, which may contain any bytes, as valid Unicode."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
