"""A `__len__` that is absent for objects without a known length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from ...errors import IndexedError

Measure = TypeVar("Measure", bound=Callable[[Any], int])


def hide_unknown_length(measure: Measure) -> Measure:
    """Decorate a `__len__` so that it is absent if it raises `TypeError`.

    Trainers check `hasattr(x, "__len__")`; `len(x)` still raises with the reason.

    >>> import penstock as ps
    >>> ds = ps.from_sequence("abc")
    >>> len(ds), hasattr(ds, "__len__"), hasattr(ds.repeat(), "__len__")
    (3, True, False)
    """
    return cast("Any", _LengthProperty(measure, doc=measure.__doc__))


class _LengthProperty(property):
    def __get__(self, owner: Any, kind: type[Any] | None = None, /) -> Any:
        if owner is None:
            return self
        assert self.fget is not None
        try:
            size = self.fget(owner)
        except TypeError as error:
            raise _NoLengthError(str(error)) from None
        return lambda: size


class _NoLengthError(IndexedError, AttributeError):
    """Error for both protocols of Python: a missing attribute, and an object without length."""
