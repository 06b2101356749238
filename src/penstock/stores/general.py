"""Any other store that fsspec knows."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, cast

from ..engine.base.machine import is_unresolved
from ..engine.base.urls import redacted, scheme_of
from ..errors import ConfigError, install_command
from .client import Answer, Denied, Found, Gone, Later, UnresolvedHost, judged

EXTRAS = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("az", "abfs", "abfss", "adl", "azure"), "azure"),
    "hf": "hf",
}
"""What to install for a protocol; for any other it is `remote`, and what fsspec itself names."""

_ETAGS = ("ETag", "etag", "e_tag", "md5Hash", "blob_id", "checksum", "content_md5", "uid", "sha")
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "created")


class GeneralClient:
    """One protocol of fsspec's."""

    def __init__(self, url: str, full: Callable[[str], str]) -> None:
        scheme = scheme_of(url)
        extra = EXTRAS.get(scheme.rpartition("::")[2], "remote")
        if importlib.util.find_spec("fsspec") is None:
            raise ImportError(f"reading {scheme}:// needs a package more: {install_command(extra)}")
        fsspec: Any = importlib.import_module("fsspec")
        try:
            self._fs, path = cast(
                "tuple[Any, str]",
                fsspec.core.url_to_fs(
                    full(url), skip_instance_cache=True, use_listings_cache=False
                ),
            )
        except ImportError as error:
            raise ImportError(
                f"reading {scheme}:// needs a package more: {install_command(extra)} ({error})"
            ) from None
        except ValueError as error:
            raise ConfigError(f"{url}: {redacted(str(error))}") from None
        self._scheme = url.split("://", 1)[0]
        self._path: Callable[[str], str] = (lambda _: path) if "::" in url else full

    def list(self, prefix: str, flat: bool, /) -> Iterator[Found]:
        try:
            folder = prefix.rpartition("/")[0]
            inside: Any = (
                self._fs.ls(folder, detail=True)
                if flat
                else self._fs.find(folder, detail=True).values()
            )
        except FileNotFoundError:
            return
        except Exception as error:
            raise _judged(error) from None
        path = self._fs._strip_protocol(
            folder
        )  # what stands before it, such as a host, is in no name of a listing
        root = folder.removesuffix(path) if folder.endswith(path) else ""
        for told in inside:
            name = self._fs._strip_protocol(told["name"])
            url = root + name if root else f"{self._scheme}://{name.lstrip('/')}"
            if url.startswith(prefix):
                yield (
                    Found(f"{url}/", 0, "")
                    if told.get("type") == "directory"
                    else _found(url, told)
                )

    def close(self) -> None:
        pass

    def stat(self, url: str, /) -> Found:
        try:
            told = self._fs.info(self._path(url))
        except Exception as error:
            raise _judged(error) from None
        if told.get("type") == "directory":
            raise Gone("a folder")
        return _found(url, told)

    def read(self, url: str, start: int, stop: int, pinned: Found, /) -> Answer:
        try:
            data = self._fs.cat_file(self._path(url), start=start, end=stop)
        except Exception as error:
            raise _judged(error) from None
        # No answer tells its version. An object that is the pinned one after it was read was that
        # while it was read.
        found = self.stat(url)
        return Answer(data, found.size, found.etag, found.modified)


def _found(url: str, told: Any) -> Found:
    etag = next((str(told[name]) for name in _ETAGS if told.get(name)), "")
    time = next((told[name] for name in _TIMES if told.get(name)), 0)
    if isinstance(time, datetime):
        time = time.timestamp()
    at = int(time * 1e9) if isinstance(time, int | float) else 0
    if told.get("size") is None:
        raise Denied(f"the store does not tell how large {url} is: copy it to a local folder")
    return Found(url, int(told["size"]), etag, at)


def _judged(error: Exception) -> Exception:
    """A failure of fsspec's, or of what it asks."""
    said = type(error).__name__
    answered: Any = getattr(error, "response", None) or getattr(error.__cause__, "response", None)
    status = getattr(error, "status", None) or getattr(answered, "status_code", None)
    if isinstance(answered, dict):  # of botocore
        status = cast("dict[str, Any]", answered).get("ResponseMetadata", {}).get("HTTPStatusCode")
    if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError):
        return Gone(said)
    if isinstance(error, PermissionError):
        return Denied(said)
    if isinstance(status, int) and status >= 400:
        return judged(status, said)
    if type(error).__name__ in (
        "NoCredentialsError",
        "NoCredentialsException",
        "DefaultCredentialsError",
    ):
        return Denied(said)
    if isinstance(error, ValueError | TypeError | NotImplementedError):
        return Denied(f"{said}: {redacted(str(error))[:200]}")
    return UnresolvedHost() if is_unresolved(error) else Later(said)
