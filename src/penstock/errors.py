"""Every error Penstock raises on purpose. Each says what was wrong, where, and what to do."""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager

# The name on the package index; the import is `penstock`. pyproject.toml repeats it.
DISTRIBUTION = "penstock-data"

_HEAD, _TAIL = 1400, 600


class PenstockError(Exception):
    """The root of all errors raised on purpose. A message that quotes much (a list of samples, say,
    where a number belongs) loses its middle.

    >>> print(str(ConfigError(f"batch({'ab' * 5_000}): give a whole number"))[1390:1440])
    ababababab [... 8,028 characters ...] abababababab
    """

    def __init__(self, *told: object) -> None:
        super().__init__(*(_short(each) if isinstance(each, str) else each for each in told))


class ConfigError(PenstockError, ValueError):
    """A pipeline, a mixture or an option that cannot work: found when it is described, before any
    data is read."""


class StateError(PenstockError, ValueError):
    """A saved state that is damaged, of another version, or of another pipeline. The loader stays
    where it was."""


class DataError(PenstockError, ValueError):
    """Data that cannot be read or that a function refused. `where` names file, line, row or key;
    `part` is the index of the item within its group (in a batch of packed rows: of the row, and of
    the document in it).

    >>> raise DataError("not valid JSON", where="code.jsonl, line 7")
    Traceback (most recent call last):
    ...
    penstock.errors.DataError: code.jsonl, line 7: not valid JSON
    """

    def __init__(self, message: str, *, where: str = "", part: tuple[int, ...] = ()) -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where, self.part = where, part

    def locate(self, path: str, row: int) -> None:
        """Name the file and the row of the sample, if the message does not name the file yet."""
        if path not in str(self):
            self.where = f"{path}, row {row}"
            self.args = (f"{self.where}: {self}",)


class StorageError(PenstockError, OSError):
    """Storage that failed: worth a retry, never a reason to drop a sample."""


_REMEDIES = {
    errno.EACCES: "give this process permission, or name another path",
    errno.EPERM: "give this process permission, or name another path",
    errno.EROFS: "name a path that can be written to",
    errno.ENOSPC: "free some space, or name a folder on another disk",
    errno.EDQUOT: "free some of your quota, or name a folder on another disk",
    errno.EFBIG: "see whether this is the right file",
    errno.EMFILE: "raise the limit of open files (ulimit -n), or take fewer workers",
    errno.ENFILE: "raise the limit of open files of this machine, or take fewer workers",
    errno.ENOMEM: "raise the memory limit (ulimit -v, or the limit of the job), or take fewer "
    "workers",
    errno.EAGAIN: "raise the limit of processes (ulimit -u), or take fewer workers",
    errno.ENAMETOOLONG: "shorten the path",
    errno.ELOOP: "mend the links, which lead to each other in a circle",
    errno.EISDIR: "name a file, not a folder",
    errno.ENOTDIR: "see which part of the path is a file, not a folder",
    errno.ENOENT: "see whether the path is right",
    errno.ESTALE: "see whether the network file system is mounted, and try again",
    errno.EIO: "see whether the disk is sound",
}


def storage_error(error: OSError, what: object) -> StorageError:
    """Return an error of the operating system as one of ours: what failed, why, and the remedy.

    >>> print(storage_error(OSError(errno.ENOSPC, "No space left on device"), "/data/x"))
    /data/x: No space left on device: free some space, or name a folder on another disk
    """
    remedy = _REMEDIES.get(error.errno or 0, "")
    made = StorageError(f"{what}: {error.strerror or error}{f': {remedy}' if remedy else ''}")
    made.errno = error.errno
    return made


@contextmanager
def storage(what: object) -> Generator[None]:
    """Turn failures of the operating system into errors that name the path, or whatever `what`
    is."""
    try:
        yield
    except (StorageError, BrokenPipeError):
        raise
    except OSError as error:
        raise storage_error(error, what) from error


class GivenUpError(StorageError):
    """Storage that failed for as long as it was asked again, or that refused: asking once more
    would not help."""


class IndexedError(PenstockError, TypeError):
    """`len(ds)` or `ds[i]` was asked of a pipeline that only a run can measure; the message names
    the step."""


def is_missing_file(error: BaseException) -> bool:
    """Return whether a path leads to no file: the fault of the sample that names it, not of the
    storage.

    >>> is_missing_file(FileNotFoundError(errno.ENOENT, "")), is_missing_file(PermissionError(errno.EACCES, ""))
    (True, False)
    """
    return (
        isinstance(error, OSError)
        and not isinstance(error, StorageError)
        and error.errno in _NO_FILE
    )


_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP)


def is_panic(error: BaseException) -> bool:
    """Return whether a package written in Rust panicked: PyO3 raises that past every `except
    Exception`."""
    return type(error).__module__ == "pyo3_runtime"


def no_end(error: Exception) -> Exception:
    """The error of a function, where Python would take it for the end of whoever iterates: what
    follows would be gone without a word.

    >>> no_end(StopIteration())
    RuntimeError('it raised StopIteration, as next() does where nothing is left: give next() a default')
    """
    if not isinstance(error, StopIteration):
        return error
    made = RuntimeError(
        "it raised StopIteration, as next() does where nothing is left: give next() a default"
    )
    return made.with_traceback(error.__traceback__)


class Skip(PenstockError):
    """Raised in the function of `map(fn, may_skip=True)`, it drops the sample. Anywhere else it is
    an error.

    >>> import penstock as ps
    >>> def even(x):
    ...     if x % 2:
    ...         raise ps.Skip
    ...     return x
    >>> list(ps.from_sequence(range(6)).map(even, may_skip=True))
    [0, 2, 4]
    """


def _short(text: str) -> str:
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
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def missing_extra(package: str, extra: str, purpose: str) -> ImportError:
    """Return the error for a missing optional package; it names the extra to install."""
    return ImportError(f"{purpose} needs the package {package!r}: {install_command(extra)}")
