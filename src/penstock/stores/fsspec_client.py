"""Client for any other store that fsspec supports."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, cast

from ..errors import ConfigError, install_command
from .client import (
    NotFound,
    ObjectInfo,
    PermanentError,
    RetryableError,
    StoreAnswer,
    UnresolvedHost,
    error_for_status,
    get_timeout_seconds,
)
from .network import is_unresolved
from .urls import get_scheme, redact_urls

EXTRAS_BY_SCHEME = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("az", "abfs", "abfss", "adl", "azure"), "azure"),
    "hf": "hf",
}
"""Extra to install for a protocol; others need `remote` and the package that fsspec names."""

_ETAG_NAMES = (
    "ETag",
    "etag",
    "e_tag",
    "md5Hash",
    "blob_id",
    "checksum",
    "content_md5",
    "uid",
    "sha",
)
_READ_SECONDS = 15.0  # the default of s3fs
_S3_SCHEMES = ("s3", "s3a")
_TIME_NAMES = ("LastModified", "last_modified", "mtime", "updated", "created")


class FsspecClient:
    """Client for one fsspec protocol.

    Args:
        url: a URL of the store.
        full: returns the request URL, with its secrets, of a name.
    """

    def __init__(self, url: str, full: Callable[[str], str]) -> None:
        scheme = get_scheme(url)
        extra = EXTRAS_BY_SCHEME.get(scheme.rpartition("::")[2], "remote")
        if importlib.util.find_spec("fsspec") is None:
            raise ImportError(
                f"reading {scheme}:// needs another package: {install_command(extra)}"
            )
        fsspec: Any = importlib.import_module("fsspec")
        try:
            self._fs, path = cast(
                "tuple[Any, str]",
                fsspec.core.url_to_fs(
                    full(url),
                    skip_instance_cache=True,
                    use_listings_cache=False,
                    **_build_options(scheme, fsspec.config.conf),
                ),
            )
            if scheme in _S3_SCHEMES:
                self._fs.retries = 1  # retried here
        except ImportError as error:
            raise ImportError(
                f"reading {scheme}:// needs another package: {install_command(extra)} ({error})"
            ) from None
        except ValueError as error:
            raise ConfigError(f"{url}: {redact_urls(str(error))}") from None
        except OSError as error:  # some backends connect here
            raise _to_store_error(error) from None
        self._scheme = url.split("://", 1)[0]
        self._path: Callable[[str], str] = (lambda _: path) if "::" in url else full

    def list(self, prefix: str, flat: bool, /) -> Iterator[ObjectInfo]:
        try:
            folder = prefix.rpartition("/")[0]
            entries: Any = (
                self._fs.ls(folder, detail=True)
                if flat
                else self._fs.find(folder, detail=True).values()
            )
        except FileNotFoundError:
            return
        except Exception as error:
            raise _to_store_error(error) from None
        # Names in a listing lack what precedes the path, such as a host.
        path = self._fs._strip_protocol(folder)
        root = folder.removesuffix(path) if folder.endswith(path) else ""
        for entry in entries:
            name = self._fs._strip_protocol(entry["name"])
            url = root + name if root else f"{self._scheme}://{name.lstrip('/')}"
            if url.startswith(prefix):
                yield (
                    ObjectInfo(f"{url}/", 0, "")
                    if entry.get("type") == "directory"
                    else _build_object_info(url, entry)
                )

    def close(self) -> None:
        pass

    def stat(self, url: str, /) -> ObjectInfo:
        try:
            entry = self._fs.info(self._path(url))
        except Exception as error:
            raise _to_store_error(error) from None
        if entry.get("type") == "directory":
            raise NotFound("a folder")
        return _build_object_info(url, entry)

    def read(self, url: str, start: int, stop: int, pinned: ObjectInfo, /) -> StoreAnswer:
        try:
            data = self._fs.cat_file(self._path(url), start=start, end=stop)
        except Exception as error:
            raise _to_store_error(error) from None
        # Answers hold no version: an object that is unchanged after the read was so during it.
        info = self.stat(url)
        return StoreAnswer(data, info.size, info.etag, info.modified)


def _build_options(scheme: str, user_settings: dict[str, Any]) -> dict[str, Any]:
    """Return options that make S3 requests fail in time, without retries of botocore.

    Args:
        scheme: the scheme of the URL.
        user_settings: fsspec's own configuration, by protocol; its settings of botocore remain.
    """
    if scheme not in _S3_SCHEMES:
        return {}
    requests: dict[str, Any] = {
        "read_timeout": min(_READ_SECONDS, get_timeout_seconds()),
        "retries": {"max_attempts": 0},
    }
    return {"config_kwargs": {**requests, **user_settings.get("s3", {}).get("config_kwargs", {})}}


def _build_object_info(url: str, entry: Any) -> ObjectInfo:
    etag = next((str(entry[name]) for name in _ETAG_NAMES if entry.get(name)), "")
    time = next((entry[name] for name in _TIME_NAMES if entry.get(name)), 0)
    if isinstance(time, datetime):
        time = time.timestamp()
    modified = int(time * 1e9) if isinstance(time, int | float) else 0
    if entry.get("size") is None:
        raise PermanentError(
            f"the store does not report the size of {url}: copy it to a local folder"
        )
    return ObjectInfo(url, int(entry["size"]), etag, modified)


def _to_store_error(error: Exception) -> Exception:
    """Return an exception of fsspec, or of its backend, as one of the store errors."""
    reason = type(error).__name__
    response: Any = getattr(error, "response", None) or getattr(error.__cause__, "response", None)
    status = getattr(error, "status", None) or getattr(response, "status_code", None)
    if isinstance(response, dict):  # botocore
        status = cast("dict[str, Any]", response).get("ResponseMetadata", {}).get("HTTPStatusCode")
    if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError):
        return NotFound(reason)
    if isinstance(error, PermissionError):
        return PermanentError(reason)
    if isinstance(status, int) and status >= 400:
        return error_for_status(status, reason)
    if type(error).__name__ in (
        "NoCredentialsError",
        "NoCredentialsException",
        "DefaultCredentialsError",
    ):
        return PermanentError(reason)
    if isinstance(error, ValueError | TypeError | NotImplementedError):
        return PermanentError(f"{reason}: {redact_urls(str(error))[:200]}")
    return UnresolvedHost() if is_unresolved(error) else RetryableError(reason)
