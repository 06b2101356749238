"""Errors that Penstock raises. Each message names the problem, its location and a remedy."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

Measure = TypeVar("Measure", bound=Callable[[Any], int])

# The name on the package index; the import is `penstock`. pyproject.toml repeats it.
DISTRIBUTION_NAME = "penstock-data"

_HEAD, _TAIL = 1400, 600

# C0 but for tabs and line ends, C1, and what changes the direction or the lines of a text.
_CONTROL_CHARACTERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)


class PenstockError(Exception):
    """Base class of all errors of Penstock.

    Args:
        *args: the message. Control characters, which names in files may hold, are escaped. Of a
            text of 2,600 characters or more, such as one that quotes a list of samples, only the
            first 1,400 and the last 600 are kept.

    >>> print(str(ConfigError(f"batch({'ab' * 5_000}): give a whole number"))[1390:1440])
    ababababab [... 8,028 characters ...] abababababab
    >>> print(DataError("there is no column 'x'", where="\\x1b[31mred.csv"))
    \\x1b[31mred.csv: there is no column 'x'
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(_clean_message(arg) if isinstance(arg, str) else arg for arg in args))


class ConfigError(PenstockError, ValueError):
    """Invalid pipeline, mixture or option, found before any data is read."""


class NoTokensError(ConfigError):
    """A sample has no tokens to count; `name` is its input."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"mix(unit='tokens'): a sample of {name!r} {reason}; tokenize before mixing, or use "
            "unit='samples'"
        )
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return ConfigError, self.args


class StateError(PenstockError, ValueError):
    """Saved state that is corrupted, of another version, or of another pipeline.

    The loader keeps its position.
    """


class PositionError(StateError):
    """Position in a saved state that this pipeline lacks, or that other samples lead up to."""


class DataError(PenstockError, ValueError):
    """Data that cannot be read, or that a function rejected.

    Args:
        message: the problem and the remedy.
        where: file, line, row or key.
        part: index of the item within its group. In a batch of packed rows: the index of the row,
            and of the document in it.

    >>> raise DataError("not valid JSON", where="code.jsonl, line 7")
    Traceback (most recent call last):
    ...
    penstock.errors.DataError: code.jsonl, line 7: not valid JSON
    """

    def __init__(self, message: str, *, where: str = "", part: tuple[int, ...] = ()) -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where, self.part = where, part

    def locate(self, path: str, row: int) -> None:
        """Add the file and the row of the sample, unless the message names the file.

        Args:
            path: the file.
            row: the row in the file.
        """
        if path not in str(self):
            self.where = f"{path}, row {row}"
            self.args = (_clean_message(f"{self.where}: {self}"),)


class ChangedFileError(DataError):
    """A file that was changed while it was in use."""


class StorageError(PenstockError, OSError):
    """Storage failure: worth a retry, never a reason to drop a sample."""


_REMEDY_BY_ERRNO = {
    errno.EACCES: "give this process permission, or name another path",
    errno.EPERM: "give this process permission, or name another path",
    errno.EROFS: "name a path that can be written to",
    errno.ENOSPC: "free some space, or name a folder on another disk",
    errno.EDQUOT: "free some of your quota, or name a folder on another disk",
    errno.EFBIG: "check that this is the right file",
    errno.EMFILE: "raise the limit of open files (ulimit -n), or use fewer workers",
    errno.ENFILE: "raise the limit of open files of this machine, or use fewer workers",
    errno.ENOMEM: "raise the memory limit (ulimit -v, or the limit of the job), or use fewer "
    "workers",
    errno.EAGAIN: "raise the limit of processes (ulimit -u), or use fewer workers",
    errno.ENAMETOOLONG: "shorten the path",
    errno.ELOOP: "repair the symbolic links, which form a cycle",
    errno.EISDIR: "name a file, not a folder",
    errno.ENOTDIR: "check which part of the path is a file, not a folder",
    errno.ENOENT: "check the path",
    errno.EEXIST: "remove the file that has this name, or name another path",
    errno.ESTALE: "check that the network file system is mounted, and try again",
    errno.EIO: "check the disk",
}


def make_storage_error(error: OSError, what: object) -> StorageError:
    """Convert an error of the operating system to a `StorageError` with path, cause and remedy.

    Args:
        error: the error of the operating system.
        what: the path, or the description of the operation, for the message.

    >>> print(make_storage_error(OSError(errno.ENOSPC, "No space left on device"), "/data/x"))
    /data/x: No space left on device: free some space, or name a folder on another disk
    """
    remedy = _REMEDY_BY_ERRNO.get(error.errno or 0, "")
    converted = StorageError(f"{what}: {error.strerror or error}{f': {remedy}' if remedy else ''}")
    converted.errno = error.errno
    return converted


def make_thread_error(error: RuntimeError) -> StorageError:
    """Convert the limit of threads to a `StorageError` with a remedy.

    Args:
        error: the error of Python.

    >>> print(make_thread_error(RuntimeError("can't start new thread")))  # doctest: +ELLIPSIS
    threads: can't start new thread: raise the limit of processes (ulimit -u), or use fewer workers
    """
    return make_storage_error(OSError(errno.EAGAIN, str(error)), "threads")


def make_memory_error(error: MemoryError, what: object) -> StorageError:
    """Convert a lack of memory to a `StorageError` with path and remedy.

    Args:
        error: the error of Python or of a package.
        what: the path, for the message.

    >>> print(make_memory_error(MemoryError("malloc of size 99 failed"), "a.parquet"))  # doctest: +ELLIPSIS
    a.parquet: there is not enough memory (malloc of size 99 failed): raise the memory limit ...
    """
    reason = f" ({error})" if str(error) else ""
    converted = StorageError(
        f"{what}: there is not enough memory{reason}: raise the memory limit (ulimit -v, or the "
        "limit of the job), use fewer workers, or write smaller rows, row groups or record batches"
    )
    converted.errno = errno.ENOMEM
    return converted


@contextmanager
def convert_storage_errors(what: object) -> Generator[None]:
    """Convert errors of the operating system to `StorageError`s that name `what`.

    Args:
        what: the path, or the description of the operation.

    Raises:
        StorageError: in place of an `OSError`.
    """
    try:
        yield
    except (StorageError, BrokenPipeError):
        raise
    except OSError as error:
        raise make_storage_error(error, what) from error


class GivenUpError(StorageError):
    """Storage failure after all retries, or a rejected request: retrying would not help."""


class IndexedError(PenstockError, TypeError):
    """Random access to a pipeline without positions; the message names the step.

    `len(ds)` and `ds[i]` raise it after steps whose yield depends on the data.
    """


def hide_unknown_length(measure: Measure) -> Measure:
    """Decorate a `__len__` so that it is absent if it raises `TypeError`.

    Trainers check `hasattr(x, "__len__")`; `len(x)` still raises with the reason.

    Args:
        measure: the method.

    >>> import penstock as ps
    >>> ds = ps.from_sequence("abc")
    >>> len(ds), hasattr(ds, "__len__"), hasattr(ds.repeat(), "__len__")
    (3, True, False)
    """
    return cast("Any", _LengthProperty(measure, doc=measure.__doc__))


class _LengthProperty(property):
    def __get__(self, owner: Any, kind: type[Any] | None = None, /) -> Any:
        if owner is None:
            return self
        assert self.fget is not None
        try:
            size = self.fget(owner)
        except TypeError as error:
            raise UnknownLengthError(str(error)) from None
        return lambda: size


class UnknownLengthError(IndexedError, AttributeError):
    """Error for both protocols of Python: a missing attribute, and an object without length."""


def is_missing_file(error: BaseException) -> bool:
    """Return whether a path names no file, which is an error of the sample, not of the storage.

    Args:
        error: the error of the operating system.

    >>> is_missing_file(FileNotFoundError(errno.ENOENT, "")), is_missing_file(PermissionError(errno.EACCES, ""))
    (True, False)
    """
    return (
        isinstance(error, OSError)
        and not isinstance(error, StorageError)
        and error.errno in _MISSING_FILE_ERRNOS
    )


_MISSING_FILE_ERRNOS = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP)


MALFORMED_INPUT_ERRORS = (
    ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip
"""The errors of reading fields of parsed JSON that has another structure than expected."""


def is_panic(error: BaseException) -> bool:
    """Return whether a Rust extension panicked; `except Exception` does not catch PyO3's panics.

    Args:
        error: the caught error.
    """
    return type(error).__module__ == "pyo3_runtime"


def type_and_message(error: BaseException) -> str:
    """Return an error as `type: message`, also if its `__str__` raises.

    >>> type_and_message(KeyError("x"))
    "KeyError: 'x'"
    """
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as failure:
        return f"{type(error).__name__} (its __str__ raises {type(failure).__name__})"


def replace_stop_iteration(error: Exception) -> Exception:
    """Replace a `StopIteration` of a user's function by a `RuntimeError`.

    Python would take it for the end of the iterator, and drop the remaining samples silently.

    Args:
        error: the error of the function.

    >>> replace_stop_iteration(StopIteration())
    RuntimeError('it raised StopIteration, as next() does at the end: give next() a default')
    """
    if not isinstance(error, StopIteration):
        return error
    replacement = RuntimeError(
        "it raised StopIteration, as next() does at the end: give next() a default"
    )
    return replacement.with_traceback(error.__traceback__)


class Skip(PenstockError):
    """Signal to drop a sample, raised by the function of `map(fn, may_skip=True)`.

    Anywhere else it is an error.

    Args:
        *args: the message.
        reason: a word by which dropped samples are counted.

    >>> import penstock as ps
    >>> def even(x):
    ...     if x % 2:
    ...         raise ps.Skip
    ...     return x
    >>> list(ps.from_sequence(range(6)).map(even, may_skip=True))
    [0, 2, 4]
    """

    def __init__(self, *args: object, reason: str = "skipped") -> None:
        super().__init__(*args)
        self.reason = reason


def _clean_message(text: str) -> str:
    """Escape control characters, which a terminal would obey, and leave out the middle of a long
    text."""
    text = _CONTROL_CHARACTERS.sub(lambda found: ascii(found[0])[1:-1], text)
    left_out = len(text) - _HEAD - _TAIL
    return (
        text
        if left_out < _TAIL
        else f"{text[:_HEAD]} [... {left_out:,} characters ...] {text[-_TAIL:]}"
    )


def install_command(extra: str) -> str:
    """Return the command that installs an extra of this distribution.

    >>> install_command("zstd")
    "pip install 'penstock-data[zstd]'"
    """
    return f"pip install '{DISTRIBUTION_NAME}[{extra}]'"


def make_missing_extra_error(package: str, extra: str, purpose: str) -> ImportError:
    """Return the error for a missing optional package; it names the extra to install.

    Args:
        package: the missing package.
        extra: the extra of Penstock that installs it.
        purpose: the feature that needs the package.
    """
    return ImportError(f"{purpose} needs the package {package!r}: {install_command(extra)}")


def make_no_value_error(column: str, where: str) -> DataError:
    """Return the error of masks that lack a value.

    Args:
        column: The column of the masks.
        where: The file or the source.
    """
    return DataError(
        f"column {column!r} has rows or tokens without a value: fill or drop them", where=where
    )
