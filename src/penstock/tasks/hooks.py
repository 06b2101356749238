"""Run the hooks of an encoder: on copies, with a generator per sample.

Errors name the hook and the sample.
"""

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

_CURRENT_RNG: ContextVar[np.random.Generator] = ContextVar("penstock.tasks.rng")


def current_rng() -> np.random.Generator:
    """Return the random generator of the sample that the current hook processes.

    Raises:
        ConfigError: outside the hooks of an encoder.
    """
    try:
        return _CURRENT_RNG.get()
    except LookupError:
        raise ConfigError(
            "self.rng belongs to a sample: use it only inside the hooks of an encoder"
        ) from None


@contextmanager
def using(rng: np.random.Generator) -> Generator[None]:
    """Make `current_rng` return this generator inside the block."""
    token = _CURRENT_RNG.set(rng)
    try:
        yield
    finally:
        _CURRENT_RNG.reset(token)


class Stage:
    """A sequence of hooks as one step of a pipeline.

    `one` returns one result; `many` returns any number of results. The step stays one-to-one, and
    the pipeline indexed, if no hook is a generator function and hooks do not drop samples.
    """

    def __init__(self, encoder: Any, name: str, hooks: Sequence[Hook]) -> None:
        self.hooks, self.name = tuple(hooks), name
        self.__qualname__ = f"{type(encoder).__qualname__}.{name}"

    @property
    def one_to_one(self) -> bool:
        return not any(isgeneratorfunction(hook) for hook in self.hooks)

    def one(self, value: Any, rng: np.random.Generator) -> Any:
        """Return the single result; raise if a hook drops the sample."""
        with using(rng):
            for hook in self.hooks:
                try:
                    with _annotating_errors(hook, value):
                        value = hook(_copy_for_hook(value))
                except Skip as skip:
                    raise ConfigError(
                        f"{_name(hook)} raised Skip: allow that with build(..., drops=True)"
                    ) from skip
                if isinstance(value, Generator):
                    raise ConfigError(
                        f"{_name(hook)} returned a generator: write it as a generator function "
                        "(with yield in its own body), so that the pipeline knows it yields "
                        "several samples"
                    )
            return value

    def many(self, value: Any, rng: np.random.Generator) -> list[Any]:
        """Return all results; none if a hook drops the sample."""
        with using(rng):
            return list(_through(self.hooks, value))


def _through(hooks: Sequence[Hook], value: Any) -> Iterator[Any]:
    first, rest = hooks[0], hooks[1:]
    for result in _run_hook(first, value):
        if rest:
            yield from _through(rest, result)
        else:
            yield result


def _run_hook(hook: Hook, value: Any) -> Iterator[Any]:
    """Yield the results of one hook; a generator that raises `Skip` keeps its earlier results."""
    try:
        with _annotating_errors(hook, value):
            result = hook(_copy_for_hook(value))
            if isinstance(result, Generator):
                results = [*_stop_at_skip(cast("Iterator[Any]", result))]
            else:
                results = [result]
    except Skip:
        return
    yield from results


def _stop_at_skip(results: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from results
    except Skip:
        return


def _copy_for_hook(value: Any) -> Any:
    """Copy a value so that the hook may assign to it: a retry needs the original."""
    return (
        [copied(entry) for entry in cast("list[Any]", value)]
        if isinstance(value, list)
        else copied(value)
    )


@contextmanager
def _annotating_errors(hook: Hook, value: Any) -> Generator[None]:
    """Add the hook and the sample to errors raised in the block."""
    try:
        yield
    except Skip:
        raise
    except Exception as error:
        entries = cast("list[Any]", value) if isinstance(value, list) else [value]
        keys = [_describe_entry(entry) for entry in entries]
        shown = ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
        error.add_note(f"penstock: in {_name(hook)}, sample {shown}")
        raise


def _describe_entry(entry: Any) -> str:
    entry_type: Any = cast("Any", type(entry))
    if not issubclass(entry_type, dict) and not fields_of(entry_type):
        return f"of type {entry_type.__name__}"
    keys = basic_sample_keys(entry)
    key = keys.get("__key__")
    restore_key = cast("tuple[Any, ...] | None", keys.get("__restore_key__"))
    return f"{key!r} of {restore_key[0]!r}, index {restore_key[-1]}" if restore_key else repr(key)


def _name(hook: Hook) -> str:
    return (
        _name(hook.func)
        if isinstance(hook, partial)
        else str(getattr(hook, "__qualname__", type(hook).__qualname__))
    )
