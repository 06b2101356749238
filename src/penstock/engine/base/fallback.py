"""Faults that show only where samples are handled together: logged, as the slower way around them
hides them."""

from __future__ import annotations

import logging

_LOGGED = set[tuple[str, str]]()


def log_fallback(name: str, error: Exception) -> None:
    """Log, once for each source and kind of error, that samples failed together and worked one by
    one.

    The samples are sound, so a package, or the code that reads them, is at fault; reading one by
    one is slow.
    """
    kind = type(error).__name__
    if (name, kind) not in _LOGGED:
        _LOGGED.add((name, kind))
        logging.getLogger("penstock").warning(
            "%s: samples failed together and worked one by one, which is slow: %s: %s",
            name,
            kind,
            error,
        )
