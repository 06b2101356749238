"""Whether a part from outside has what its contract in `penstock.types` asks for."""

from __future__ import annotations

from typing import TypeVar

from ...errors import ConfigError

T = TypeVar("T")


def fulfilled(part: T, contract: type, where: str) -> T:
    """The part itself; one that lacks a method, or is a class and no object, is refused by name.

    >>> from penstock.types import Order
    >>> fulfilled("abc", Order, "reorder()")
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: reorder(): str has no size, down, up, describe; see Order in penstock.types
    """
    if isinstance(part, type):
        raise ConfigError(
            f"{where}: {part.__name__} is a class; give an object, {part.__name__}(...)"
        )
    asked = [name for name in vars(contract) if not name.startswith("_")]
    if lacking := [name for name in asked if not callable(getattr(part, name, None))]:
        raise ConfigError(
            f"{where}: {type(part).__name__} has no {', '.join(lacking)}; see {contract.__name__} "
            "in penstock.types"
        )
    return part
