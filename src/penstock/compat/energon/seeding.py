"""Hooks that draw from the global generators of the process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any, TypeVar, overload

from ...errors import ConfigError, Skip
from ...sources.seeding import seed_globals
from ...tasks import current_rng

F = TypeVar("F", bound=Callable[..., Any])


@overload
def stateless(fn: F) -> F: ...
@overload
def stateless(
    fn: None = None, *, restore_seeds: bool = False, failure_tolerance: int | None = None
) -> Callable[[F], F]: ...
def stateless(
    fn: Any = None, *, restore_seeds: bool = False, failure_tolerance: int | None = None
) -> Any:
    """Return a hook unchanged, or with seeded global generators; every hook can resume here.

    With `restore_seeds`, `random`, `np.random` and `torch` (on the CPU) start from a seed of the
    sample within the hook, and are restored after it. These generators belong to the whole process:
    such hooks run one at a time, and a concurrent draw of another thread disturbs both. `self.rng`
    has neither cost.

    Args:
        fn: the hook.
        restore_seeds: whether to seed the global generators.
        failure_tolerance: not used: `max_errors` of the WorkerConfig limits failures.

    >>> @stateless
    ... def cook(sample):
    ...     return sample
    """
    mark = _seeded if restore_seeds else _same
    return mark if fn is None else mark(fn)


def _same(fn: F) -> F:
    return fn


def _seeded(fn: Any) -> Any:
    """Run a hook in a block with its own seed."""

    @wraps(fn)
    def one(*args: Any, **options: Any) -> Any:
        with seed_globals(_seed()):
            return fn(*args, **options)

    @wraps(fn)
    def several(*args: Any, **options: Any) -> Iterator[Any]:
        results, skipped = list[Any](), None
        with seed_globals(_seed()):
            try:
                results.extend(fn(*args, **options))
            except Skip as skip:  # keep the earlier results
                skipped = skip
        yield from results
        if skipped:
            raise skipped

    return several if isgeneratorfunction(fn) else one


def _seed() -> int:
    return int(current_rng().integers(2**32))


class SystemRng:
    """Not available: hooks take random numbers from `self.rng`, or from `@stateless`."""

    @staticmethod
    def seed(seed: int) -> None:
        """Not available.

        Args:
            seed: not used.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "SystemRng: take random numbers from self.rng, or seed a hook with "
            "@stateless(restore_seeds=True)"
        )
