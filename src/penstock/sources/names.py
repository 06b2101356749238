"""What a source is called that was given no name: randomness is keyed by that outside a mixture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..stores import located
from .paths import KINDS, PACKED


def name_of(given: Sequence[str | Path], found: Sequence[Path]) -> str:
    """A name for the source: the folder that was given, however many files lie in it; else the stem
    of the only file, or the folder of the first of many.

    >>> name_of(["data/*"], [Path("data/code.jsonl.gz")])
    'code'
    >>> name_of(["data/**"], [Path("data/code/0.txt"), Path("data/code/1.txt")])
    'code'
    """
    folder, first = located(given[0]).absolute(), found[0]
    if len(given) == 1 and folder.name and folder in first.absolute().parents:
        return _text(folder.stem if folder.suffix.lower()[1:] in KINDS else folder.name)
    if len(found) > 1:
        return _text(first.absolute().parent.name) or "data"
    return _text(Path(first.stem).stem if first.suffix.lower() in PACKED else first.stem)


def _text(name: str) -> str:
    """A file name as text that can be written: names of files may hold any bytes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
