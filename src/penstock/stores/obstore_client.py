"""S3, Google Cloud Storage and Azure by obstore, where it is installed."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterator
from datetime import timedelta
from os.path import expanduser, isfile
from typing import Any

from ..engine.base import machine
from ..engine.base.urls import scheme_of
from .client import Answer, PermanentError, ObjectInfo, NotFound, RetryableError, VersionMismatch, UnsupportedName, UnresolvedHost, error_for_status

SCHEMES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "azure")

# Where it says so: names of objects and times, which its texts hold too, may have such numbers in
# them.
_STATUS = re.compile(r"\bstatus(?: code)?(?:: ?| )(4\d\d|5\d\d)\b")
_CODE = re.compile(
    r"<Code>(AccessDenied|AccountProblem|AllAccessDisabled|AuthorizationHeaderMalformed|ExpiredToken|InternalError|"
    r"InvalidAccessKeyId|InvalidObjectState|InvalidToken|NoSuchBucket|NoSuchKey|PermanentRedirect|RequestTimeTooSkewed|"
    r"RequestTimeout|ServiceUnavailable|SignatureDoesNotMatch|SlowDown|TemporaryRedirect)</Code>"
)
_UNRESOLVED = re.compile(r"dns error|failed to lookup address")
_first: list[int] = []


def usable(url: str) -> bool:
    """Whether obstore is here, and may ask this store: in a process that was forked it may not, it
    does not read the profiles of AWS's tools, and it takes no names with empty parts."""
    if "//" in url.split("://", 1)[1]:
        return False
    if scheme_of(url) not in SCHEMES or importlib.util.find_spec("obstore") is None:
        return False
    if _first and _first[0] != machine.process():
        return False
    return (
        scheme_of(url) not in ("s3", "s3a")
        or _signs() != "profile"
        or bool(importlib.util.find_spec("boto3"))
    )


def _signs() -> str:
    """Where the credentials of AWS come from: a variable of the environment, the files of its
    tools, or the machine."""
    if machine.environment("AWS_ACCESS_KEY_ID"):
        return "environment"
    files = [machine.environment("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials"]
    files.append(machine.environment("AWS_CONFIG_FILE") or "~/.aws/config")
    there = any(isfile(expanduser(file)) for file in files)
    return "profile" if machine.environment("AWS_PROFILE") or there else "machine"


class ObstoreClient:
    """One bucket or container. Nothing is asked again here: that is done in one place, for all
    stores."""

    def __init__(self, url: str) -> None:
        _first[:] = _first or [machine.process()]
        self._module: Any = importlib.import_module("obstore")
        self._errors: Any = importlib.import_module("obstore.exceptions")
        scheme, rest = url.split("://", 1)
        bucket, _, _ = rest.partition("/")
        self._root = f"{scheme}://{bucket}/"
        again: dict[str, Any] = {"max_retries": 0, "retry_timeout": timedelta(seconds=30)}
        client: dict[str, Any] = {
            "timeout": timedelta(seconds=60),
            "connect_timeout": timedelta(seconds=10),
        }
        settings: dict[str, Any] = {}
        if scheme.lower() in ("s3", "s3a"):
            client["allow_http"] = (machine.environment("AWS_ENDPOINT_URL") or "").startswith(
                "http:"
            )
            if machine.environment("AWS_ENDPOINT_URL_S3"):
                settings.setdefault("endpoint", machine.environment("AWS_ENDPOINT_URL_S3"))
            if _signs() == "profile":
                settings["credential_provider"] = importlib.import_module(
                    "obstore.auth.boto3"
                ).Boto3CredentialProvider()
            if (machine.environment("AWS_NO_SIGN_REQUEST") or "").lower() in ("1", "true"):
                settings["skip_signature"] = True
        root = re.sub(
            "^(s3a|gcs|azure)",
            lambda found: {"s3a": "s3", "gcs": "gs", "azure": "az"}[found[0]],
            self._root,
        )
        self._store: Any = self._module.store.from_url(
            root, client_options=client, retry_config=again, **settings
        )

    def list(self, prefix: str, flat: bool, /) -> Iterator[ObjectInfo]:
        folder, _, begun = prefix.removeprefix(self._root).rpartition("/")
        try:
            if flat:
                told = self._module.list_with_delimiter(self._store, prefix=folder or None)
                yield from (
                    ObjectInfo(f"{self._root}{name}/", 0, "") for name in told["common_prefixes"]
                )
                yield from map(self._found, told["objects"])
                return
            for chunk in self._module.list(self._store, prefix=folder or None, chunk_size=1000):
                for one in chunk:
                    if one["path"].startswith(f"{folder}/{begun}" if folder else begun):
                        yield self._found(one)
        except Exception as error:
            raise self._translated(error) from None

    def close(self) -> None:
        pass

    def stat(self, url: str, /) -> ObjectInfo:
        if f"{url}/" == self._root:
            raise NotFound("a bucket")
        try:
            return self._found(self._module.head(self._store, url.removeprefix(self._root)))
        except Exception as error:
            raise self._translated(error) from None

    def read(self, url: str, start: int, stop: int, pinned: ObjectInfo, /) -> Answer:
        options: dict[str, Any] = {"range": (start, stop)}
        if pinned.etag:
            options["if_match"] = f'"{pinned.etag}"'
        try:
            result = self._module.get(self._store, url.removeprefix(self._root), options=options)
            told = result.meta
            if tuple(result.range) != (start, stop):
                raise RetryableError("it answered with other bytes than those that were asked for")
            return Answer(result.bytes().to_bytes(), int(told["size"]), told.get("e_tag"))
        except (RetryableError, VersionMismatch):
            raise
        except Exception as error:
            raise self._translated(error) from None

    def _found(self, told: Any) -> ObjectInfo:
        modified = told.get("last_modified")
        at = int(modified.timestamp() * 1e9) if modified else 0
        return ObjectInfo(self._root + told["path"], int(told["size"]), told.get("e_tag") or "", at)

    def _translated(self, error: Exception) -> Exception:
        """A failure of obstore's. Its text holds whole answers, in which keys and signatures may
        be."""
        kinds, text = self._errors, str(error)
        code = _CODE.search(text)
        said = f"{type(error).__name__}{f' ({code[1]})' if code else ''}"
        if isinstance(error, kinds.NotFoundError | FileNotFoundError):
            return NotFound(said)
        if isinstance(error, kinds.PreconditionError):
            return VersionMismatch(said)
        if isinstance(
            error, kinds.PermissionDeniedError | kinds.UnauthenticatedError | PermissionError
        ):
            return PermanentError(said)
        if isinstance(error, kinds.InvalidPathError):
            return UnsupportedName(
                f"{said}: obstore lists no names with an empty part, . or .., or a control "
                "character: rename the object"
            )
        if isinstance(error, kinds.UnknownConfigurationKeyError | kinds.NotSupportedError):
            return PermanentError(said)
        if found := _STATUS.search(text):
            return error_for_status(int(found[1]), code[1] if code else "")
        return UnresolvedHost() if _UNRESOLVED.search(text) else RetryableError(said)
