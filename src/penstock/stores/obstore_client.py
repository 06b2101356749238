"""Client for S3, Google Cloud Storage and Azure, by obstore."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from os.path import expanduser, isfile
from typing import Any

from ..engine.base import machine
from .client import (
    NotFound,
    ObjectInfo,
    PermanentError,
    RetryableError,
    StoreAnswer,
    UnresolvedHost,
    UnsupportedName,
    VersionMismatch,
    error_for_status,
    get_timeout_seconds,
)
from .urls import get_scheme

SCHEMES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "azure")

# With its context: object names and times in these texts may contain such numbers too.
_STATUS_PATTERN = re.compile(r"\bstatus(?: code)?(?:: ?| )(4\d\d|5\d\d)\b")
_ERROR_CODE_PATTERN = re.compile(
    r"<Code>(AccessDenied|AccountProblem|AllAccessDisabled|AuthorizationHeaderMalformed|ExpiredToken|InternalError|"
    r"InvalidAccessKeyId|InvalidObjectState|InvalidToken|NoSuchBucket|NoSuchKey|PermanentRedirect|RequestTimeTooSkewed|"
    r"RequestTimeout|ServiceUnavailable|SignatureDoesNotMatch|SlowDown|TemporaryRedirect)</Code>"
)
_UNRESOLVED_HOST_PATTERN = re.compile(r"dns error|failed to lookup address")
_CHUNK_BYTES = 10 << 20  # per read of an answer; most answers are smaller
_first_process: list[int] = []


def is_usable(url: str) -> bool:
    """Return whether obstore is installed and can access the store of this URL.

    It cannot in a forked process, for names with empty parts, and for AWS profiles without boto3.
    """
    if "//" in url.split("://", 1)[1]:
        return False
    if get_scheme(url) not in SCHEMES or importlib.util.find_spec("obstore") is None:
        return False
    if _first_process and _first_process[0] != machine.get_pid():
        return False
    return (
        get_scheme(url) not in ("s3", "s3a")
        or _find_credential_source() != "profile"
        or bool(importlib.util.find_spec("boto3"))
    )


def _find_credential_source() -> str:
    """Return the source of AWS credentials: the environment, a profile, or the machine."""
    if machine.read_environment_variable("AWS_ACCESS_KEY_ID"):
        return "environment"
    files = [
        machine.read_environment_variable("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials"
    ]
    files.append(machine.read_environment_variable("AWS_CONFIG_FILE") or "~/.aws/config")
    has_profile = any(isfile(expanduser(file)) for file in files)
    return (
        "profile" if machine.read_environment_variable("AWS_PROFILE") or has_profile else "machine"
    )


class ObstoreClient:
    """Client for one bucket or container, without retries of its own.

    Args:
        url: a URL in the bucket.
    """

    def __init__(self, url: str) -> None:
        _first_process[:] = _first_process or [machine.get_pid()]
        self._module: Any = importlib.import_module("obstore")
        self._errors: Any = importlib.import_module("obstore.exceptions")
        scheme, rest = url.split("://", 1)
        bucket, _, _ = rest.partition("/")
        self._root = f"{scheme}://{bucket}/"
        retries: dict[str, Any] = {"max_retries": 0, "retry_timeout": timedelta(seconds=30)}
        client: dict[str, Any] = {
            "timeout": timedelta(seconds=60),
            "connect_timeout": timedelta(seconds=10),
            "read_timeout": timedelta(seconds=get_timeout_seconds()),
        }
        settings: dict[str, Any] = {}
        if scheme.lower() in ("s3", "s3a"):
            client["allow_http"] = (
                machine.read_environment_variable("AWS_ENDPOINT_URL") or ""
            ).startswith("http:")
            if machine.read_environment_variable("AWS_ENDPOINT_URL_S3"):
                settings.setdefault(
                    "endpoint", machine.read_environment_variable("AWS_ENDPOINT_URL_S3")
                )
            if _find_credential_source() == "profile":
                settings["credential_provider"] = importlib.import_module(
                    "obstore.auth.boto3"
                ).Boto3CredentialProvider()
            if (machine.read_environment_variable("AWS_NO_SIGN_REQUEST") or "").lower() in (
                "1",
                "true",
            ):
                settings["skip_signature"] = True
        root = re.sub(
            "^(s3a|gcs|azure)",
            lambda match: {"s3a": "s3", "gcs": "gs", "azure": "az"}[match[0]],
            self._root,
        )
        create: Any = partial(self._module.store.from_url, root, retry_config=retries, **settings)
        try:
            self._store: Any = create(client_options=client)
        except ValueError:  # an older obstore has no read_timeout
            del client["read_timeout"]
            self._store = create(client_options=client)

    def list(self, prefix: str, flat: bool, /) -> Iterator[ObjectInfo]:
        folder, _, name_prefix = prefix.removeprefix(self._root).rpartition("/")
        try:
            if flat:
                listing = self._module.list_with_delimiter(self._store, prefix=folder or None)
                yield from (
                    ObjectInfo(f"{self._root}{name}/", 0, "") for name in listing["common_prefixes"]
                )
                yield from map(self._object_info, listing["objects"])
                return
            for chunk in self._module.list(self._store, prefix=folder or None, chunk_size=1000):
                for entry in chunk:
                    if entry["path"].startswith(
                        f"{folder}/{name_prefix}" if folder else name_prefix
                    ):
                        yield self._object_info(entry)
        except Exception as error:
            raise self._to_store_error(error) from None

    def close(self) -> None:
        pass

    def stat(self, url: str, /) -> ObjectInfo:
        if f"{url}/" == self._root:
            raise NotFound("a bucket")
        try:
            return self._object_info(self._module.head(self._store, url.removeprefix(self._root)))
        except Exception as error:
            raise self._to_store_error(error) from None

    def read(self, url: str, start: int, stop: int, pinned: ObjectInfo, /) -> StoreAnswer:
        options: dict[str, Any] = {"range": (start, stop)}
        if pinned.etag:
            options["if_match"] = f'"{pinned.etag}"'
        try:
            result = self._module.get(self._store, url.removeprefix(self._root), options=options)
            meta = result.meta
            if tuple(result.range) != (start, stop):
                raise RetryableError(
                    "the store answered with a different byte range than requested"
                )
            chunks, remaining = list[bytes](), stop - start
            for chunk in result.stream(min_chunk_size=_CHUNK_BYTES):
                chunks.append(bytes(chunk))
                remaining -= len(chunks[-1])
                if remaining < 0:  # endless, or longer than its header says
                    raise RetryableError("the server answered with more bytes than requested")
            data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            return StoreAnswer(data, int(meta["size"]), meta.get("e_tag"))
        except (RetryableError, VersionMismatch):
            raise
        except Exception as error:
            raise self._to_store_error(error) from None

    def _object_info(self, entry: Any) -> ObjectInfo:
        modified = entry.get("last_modified")
        nanoseconds = int(modified.timestamp() * 1e9) if modified else 0
        return ObjectInfo(
            self._root + entry["path"], int(entry["size"]), entry.get("e_tag") or "", nanoseconds
        )

    def _to_store_error(self, error: Exception) -> Exception:
        """Return an obstore exception as a store error, without its text.

        That text holds whole answers, which may contain keys and signatures.
        """
        errors, text = self._errors, str(error)
        code = _ERROR_CODE_PATTERN.search(text)
        reason = f"{type(error).__name__}{f' ({code[1]})' if code else ''}"
        if isinstance(error, errors.NotFoundError | FileNotFoundError):
            return NotFound(reason)
        if isinstance(error, errors.PreconditionError):
            return VersionMismatch(reason)
        if isinstance(
            error, errors.PermissionDeniedError | errors.UnauthenticatedError | PermissionError
        ):
            return PermanentError(reason)
        if isinstance(error, errors.InvalidPathError):
            return UnsupportedName(
                f"{reason}: obstore lists no names with an empty part, . or .., or a control "
                "character: rename the object"
            )
        if isinstance(error, errors.UnknownConfigurationKeyError | errors.NotSupportedError):
            return PermanentError(reason)
        if match := _STATUS_PATTERN.search(text):
            return error_for_status(int(match[1]), code[1] if code else "")
        return UnresolvedHost() if _UNRESOLVED_HOST_PATTERN.search(text) else RetryableError(reason)
