"""Paths that may be remote, with the methods of `pathlib.Path`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...stores import parse_location
from ...stores.urls import require_local


class EPath:
    """A local path or the URL of an object in a store, such as `s3://` or `msc://`.

    Args:
        initial_path: a path, a URL, or another `EPath`.

    >>> path = EPath("data") / "a.tar"
    >>> path.name, str(path), path.is_local()
    ('a.tar', 'data/a.tar', True)
    """

    def __init__(self, initial_path: Any) -> None:
        self._path: Any = (
            initial_path._path
            if isinstance(initial_path, EPath)
            else parse_location(str(initial_path))
        )

    def __fspath__(self) -> str:
        return str(self._path)

    def __str__(self) -> str:
        return str(self._path)

    def __repr__(self) -> str:
        return f"EPath({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EPath | Path) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __lt__(self, other: Any) -> bool:
        return str(self) < str(other)

    def __truediv__(self, other: Any) -> EPath:
        return EPath(str(other)) if "://" in str(other) else EPath(self._path / str(other))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._path, name)

    @property
    def parent(self) -> EPath:
        """The folder of the path."""
        return EPath(self._path.parent)

    @property
    def url(self) -> str:
        """The path as a URL."""
        return str(self) if "://" in str(self) else f"file://{self._path.absolute()}"

    @property
    def display_name(self) -> str:
        """The path for messages."""
        return str(self)

    def is_local(self) -> bool:
        """Return whether the path is on this machine."""
        return "://" not in str(self)

    def local_path(self) -> Path:
        """Return the path as a `pathlib.Path`.

        Raises:
            ConfigError: for a remote path.
        """
        return require_local(str(self))

    def glob(self, pattern: str) -> Iterator[EPath]:
        """Yield the paths below that match a pattern.

        Args:
            pattern: the pattern.
        """
        return (EPath(path) for path in self._path.glob(pattern))

    def with_suffix(self, suffix: str) -> EPath:
        """Return the path with another suffix.

        Args:
            suffix: the suffix.
        """
        return EPath(self._path.with_suffix(suffix))
