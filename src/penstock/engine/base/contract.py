"""Validation of custom objects against their protocols in `penstock.types`."""

from __future__ import annotations

from typing import TypeVar

from ...errors import ConfigError

T = TypeVar("T")


def require_protocol(part: T, contract: type, where: str) -> T:
    """Return the object; raise `ConfigError` if it lacks a method, or is a class.

    >>> from penstock.types import Order
    >>> require_protocol("abc", Order, "reorder()")
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: reorder(): str has no size, down, up, describe; see Order in penstock.types
    """
    if isinstance(part, type):
        raise ConfigError(
            f"{where}: {part.__name__} is a class; give an object, {part.__name__}(...)"
        )
    methods = [name for name in vars(contract) if not name.startswith("_")]
    if missing := [name for name in methods if not callable(getattr(part, name, None))]:
        raise ConfigError(
            f"{where}: {type(part).__name__} has no {', '.join(missing)}; see {contract.__name__} "
            "in penstock.types"
        )
    return part
