"""Every error Penstock raises on purpose. Each says what was wrong, where, and what to do."""

from __future__ import annotations


class PenstockError(Exception):
    """The root of all errors raised on purpose."""


class ConfigError(PenstockError, ValueError):
    """A pipeline, a mixture or an option that cannot work: found when it is described, before any data is read."""


class StateError(PenstockError, ValueError):
    """A saved state that is damaged, of another version, or of another pipeline. The loader stays where it was."""


class DataError(PenstockError, ValueError):
    """Data that cannot be read or that a function refused. `where` names file, line, row or key.

    >>> raise DataError("not valid JSON", where="code.jsonl, line 7")
    Traceback (most recent call last):
    ...
    penstock.errors.DataError: code.jsonl, line 7: not valid JSON
    """

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


class StorageError(PenstockError, OSError):
    """Storage that failed: worth a retry, never a reason to drop a sample."""


class GivenUpError(StorageError):
    """Storage that failed for as long as it was asked again, or that refused: asking once more would not help."""


class IndexedError(PenstockError, TypeError):
    """`len(ds)` or `ds[i]` was asked of a pipeline that only a run can measure; the message names the step."""


class Skip(PenstockError):
    """Raised in the function of `map(fn, may_skip=True)`, it drops the sample. Anywhere else it is an error.

    >>> import penstock as ps
    >>> def even(x):
    ...     if x % 2:
    ...         raise ps.Skip
    ...     return x
    >>> list(ps.from_sequence(range(6)).map(even, may_skip=True))
    [0, 2, 4]
    """


def missing_extra(package: str, extra: str, purpose: str) -> ImportError:
    """The error for an optional package that is not installed; it names the extra to install."""
    return ImportError(f"{purpose} needs the package {package!r}: pip install 'penstock[{extra}]'")
