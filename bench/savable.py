"""A pipeline that can be saved and loaded, whatever its library calls that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


class SavablePipeline:
    """Iterates `made`; its state comes from `made` itself or from the iterator, under the names its
    library uses.

    `save(owner)` and `load(owner, state)` stand in for `state_dict` and `load_state_dict`.
    `jump(owner, step)` makes a state far away without running there, and `want(step)` gives the
    batch that must follow, found in another way than by resuming.
    """

    def __init__(
        self,
        made: Any,
        save: Callable[[Any], Any] | None = None,
        load: Callable[[Any, Any], Any] | None = None,
        on_iterator: bool = False,
        jump: Callable[[Any, int], Any] | None = None,
        want: Callable[[int], Any] | None = None,
    ) -> None:
        self.made, self.on_iterator, self.jump, self.want = made, on_iterator, jump, want
        self._save = save or (lambda owner: owner.state_dict())
        self._load = load or (lambda owner, state: owner.load_state_dict(state))
        self._it: Iterator[Any] | None = iter(made) if on_iterator else None

    @property
    def owner(self) -> Any:
        """Return the object that has the state: the iterator or the iterable."""
        return self._it if self.on_iterator else self.made

    def __iter__(self) -> Iterator[Any]:
        if self._it is None:
            self._it = iter(self.made)
        return self._it

    def __next__(self) -> Any:
        return next(iter(self))

    def state_dict(self) -> Any:
        return self._save(self.owner)

    def load_state_dict(self, state: Any) -> None:
        self._load(self.owner, state)
        if not self.on_iterator:
            self._it = None
