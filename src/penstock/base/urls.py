"""URLs as they may be told: who reads an error or a log is to learn no password from it."""

from __future__ import annotations

import re

_URL = re.compile(r"([A-Za-z][\w+.:-]+:/+)(?:[^/]*@)?([^?#]*).*", re.DOTALL)


def is_url(path: str) -> bool:
    """Whether this is a URL, also one that `pathlib` has taken a slash from.

    >>> is_url("s3://bucket/x"), is_url("https:/host/x"), is_url("c:/x"), is_url("a/b")
    (True, True, False, False)
    """
    return bool(_URL.match(path))


def without_secrets(path: str) -> str:
    """A path, or a URL without user, password, query and fragment.

    >>> without_secrets("https://me:secret@host/x.jsonl?token=secret"), without_secrets("a/b?.jsonl")
    ('https://host/x.jsonl', 'a/b?.jsonl')
    """
    return _URL.sub(r"\1\2", path)


def spelled_out(path: str) -> str:
    """A URL with both of its slashes, also one that `pathlib` has taken one from.

    >>> spelled_out("s3:/bucket/x"), spelled_out("memory://x"), spelled_out("file:///x")
    ('s3://bucket/x', 'memory://x', 'file:///x')
    """
    scheme, _, rest = path.partition(":/")
    return f"{scheme}://{rest.removeprefix('/')}"


def scheme_of(path: str) -> str:
    """The protocol of a URL, as it is spelled.

    >>> scheme_of("S3://bucket/x"), scheme_of("simplecache::s3://bucket/x")
    ('s3', 'simplecache::s3')
    """
    return path.partition(":/")[0].lower()


def open_name(path: str) -> str:
    """What a URL is called wherever it is told of: without a password, and without a query, which may be a signature.
    A container's name before an @ stays, as Azure writes it.

    >>> open_name("https://me:secret@host/x.jsonl?token=secret"), open_name("abfs://box@host/x")
    ('https://host/x.jsonl', 'abfs://box@host/x')
    """
    path = spelled_out(path)
    head, rest = path.split("://", 1)
    if head.lower() in ("http", "https"):
        rest = re.split(r"[?#]", rest, maxsplit=1)[0]
    place, slash, key = rest.partition("/")
    user, at, host = place.rpartition("@")
    if at and (":" in user or head.lower() in ("http", "https")):
        place = host
    return f"{head}://{place}{slash}{key}"


_INSIDE = re.compile(r"[A-Za-z][\w+.-]*:/+[^\s'\"<>]+")


def redacted(text: str) -> str:
    """A text with the URLs in it as they may be told.

    >>> redacted("GET https://me:pw@host/x?sig=abc failed")
    'GET https://host/x failed'
    """
    return _INSIDE.sub(lambda found: without_secrets(found.group()), text)
