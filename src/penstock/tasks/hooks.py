"""How the hooks of an encoder are called: on copies, with randomness of their own; errors name the
sample."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from inspect import isgeneratorfunction
from typing import Any, cast

import numpy as np

from ..errors import ConfigError, Skip
from .samples import basic_sample_keys, copied, fields_of

Hook = Callable[[Any], Any]

_RNG: ContextVar[np.random.Generator] = ContextVar("penstock.tasks.rng")


def current_rng() -> np.random.Generator:
    """The generator of the sample that a hook of this thread is working on."""
    try:
        return _RNG.get()
    except LookupError:
        raise ConfigError(
            "self.rng belongs to a sample: it can be used inside the hooks of an encoder only"
        ) from None


@contextmanager
def using(rng: np.random.Generator) -> Generator[None]:
    """A block in which `current_rng` is this generator."""
    token = _RNG.set(rng)
    try:
        yield
    finally:
        _RNG.reset(token)


class Stage:
    """Hooks one after the other as one step of a pipeline. `one` gives one result, `many` none, one
    or several.

    Where no hook is a generator function, and none is to drop samples on several ranks, the step
    stays one-to-one, and the pipeline indexed.
    """

    def __init__(self, encoder: Any, name: str, hooks: Sequence[Hook]) -> None:
        self.hooks, self.name = tuple(hooks), name
        self.__qualname__ = f"{type(encoder).__qualname__}.{name}"

    @property
    def one_to_one(self) -> bool:
        return not any(isgeneratorfunction(hook) for hook in self.hooks)

    def one(self, value: Any, rng: np.random.Generator) -> Any:
        """The result; an error where a hook drops the sample."""
        with using(rng):
            for hook in self.hooks:
                try:
                    with _naming(hook, value):
                        value = hook(_own(value))
                except Skip as skip:
                    raise ConfigError(
                        f"{_name(hook)} raised Skip; build(..., drops=True) makes a pipeline whose "
                        "hooks may"
                    ) from skip
                if isinstance(value, Generator):
                    raise ConfigError(
                        f"{_name(hook)} returned a generator; write it as a generator function "
                        "(with yield in its own body), so that it is known to give several samples"
                    )
            return value

    def many(self, value: Any, rng: np.random.Generator) -> list[Any]:
        """All results; none where a hook drops the sample."""
        with using(rng):
            return list(_through(self.hooks, value))


def _through(hooks: Sequence[Hook], value: Any) -> Iterator[Any]:
    first, rest = hooks[0], hooks[1:]
    for result in _results(first, value):
        if rest:
            yield from _through(rest, result)
        else:
            yield result


def _results(hook: Hook, value: Any) -> Iterator[Any]:
    """What one hook makes of one value. A generator that raises `Skip` keeps what it gave
    before."""
    try:
        with _naming(hook, value):
            found = hook(_own(value))
            if isinstance(found, Generator):
                found = [*_kept(cast("Iterator[Any]", found))]
            else:
                found = [found]
    except Skip:
        return
    yield from found


def _kept(results: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from results
    except Skip:
        return


def _own(value: Any) -> Any:
    """A value that the hook may assign to: the library may have to call it again with the same
    one."""
    return (
        [copied(entry) for entry in cast("list[Any]", value)]
        if isinstance(value, list)
        else copied(value)
    )


@contextmanager
def _naming(hook: Hook, value: Any) -> Generator[None]:
    """Errors say in which hook they arose, and of which sample."""
    try:
        yield
    except Skip:
        raise
    except Exception as error:
        entries = cast("list[Any]", value) if isinstance(value, list) else [value]
        keys = [_key(entry) for entry in entries]
        shown = ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
        error.add_note(f"penstock: in {_name(hook)}, sample {shown}")
        raise


def _key(entry: Any) -> str:
    kind: Any = cast("Any", type(entry))
    if not issubclass(kind, dict) and not fields_of(kind):
        return f"of type {kind.__name__}"
    found = basic_sample_keys(entry)
    key, place = found.get("__key__"), cast("tuple[Any, ...] | None", found.get("__restore_key__"))
    return f"{key!r} of {place[0]!r}, index {place[-1]}" if place else repr(key)


def _name(hook: Hook) -> str:
    return (
        _name(hook.func)
        if isinstance(hook, partial)
        else str(getattr(hook, "__qualname__", type(hook).__qualname__))
    )
