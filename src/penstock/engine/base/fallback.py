"""Logging of slow fallbacks: samples that fail in a batch, but succeed one by one."""

from __future__ import annotations

import logging

_LOGGED_FALLBACKS = set[tuple[str, str]]()


def log_fallback(name: str, error: Exception) -> None:
    """Log once per source and error type that samples failed together, but not one by one.

    The samples are valid, so the error is in a package or in the code that reads them; reading one
    by one is slow.
    """
    kind = type(error).__name__
    if (name, kind) not in _LOGGED_FALLBACKS:
        _LOGGED_FALLBACKS.add((name, kind))
        logging.getLogger("penstock").warning(
            "%s: samples failed together and worked one by one, which is slow: %s: %s",
            name,
            kind,
            error,
        )
