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
