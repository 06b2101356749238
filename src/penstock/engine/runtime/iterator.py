"""One pass over a dataset in this process: the result of `iter(ds)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol
from weakref import finalize

from ...arguments import validate_arguments
from ...errors import ConfigError
from ..base.cursors import parse_cursor_int
from ..base.machine import detect_dataloader_worker, get_pid
from ..base.shown import Shown, Shows, attempt, counted
from ..steps.batch import tail_of
from ..steps.compiled import Compiled
from ..steps.show import shown
from .executors.threads import Threads
from .run_options import RunOptions
from .session import Session
from .states import OnMismatch


class HasCompiled(Protocol):
    """An object with a compiled tree."""

    @property
    def compiled(self) -> Compiled: ...


@validate_arguments
class DatasetIterator(Shows, Iterator[Any]):
    """One pass over a dataset, with a state.

    `workers` threads compute up to `ahead` samples in advance. Neither option changes a sample or a
    state.

    Args:
        dataset: the dataset to iterate over.
        workers: threads that compute in advance; 0 computes inline.
        ahead: the largest number of samples in advance; two for each worker by default.
        lanes: the number of lanes of a dataset without positions, as in `Loader`.

    Raises:
        ConfigError: the iterator runs in one of several workers of a torch `DataLoader`.

    >>> import penstock as ps
    >>> it = iter(ps.from_sequence(range(5)))
    >>> next(it), next(it)
    (0, 1)
    >>> state = it.state_dict()
    >>> again = iter(ps.from_sequence(range(5)))
    >>> again.load_state_dict(state)
    >>> list(again)
    [2, 3, 4]
    """

    def __init__(
        self,
        dataset: HasCompiled,
        workers: int = 0,
        ahead: int | None = None,
        lanes: int | None = None,
    ) -> None:
        require_no_dataloader_workers("iter(ds)")
        executor = Threads(workers) if workers else None
        self._finish = (
            finalize(self, executor.close) if executor else None
        )  # most never close an iterator
        self._process = get_pid()
        self._session = Session(
            dataset.compiled, RunOptions(lanes=lanes, window=2 * workers, max_items=ahead), executor
        )

    def _shown(self) -> Shown:
        session = self._session
        rows = attempt(session.rows, None)
        items = (
            None
            if rows is None
            else session.sharding.count_items(tail_of(session.tree).items, rows)
        )
        return describe_run("DatasetIterator", session, items)

    def __next__(self) -> Any:
        out = self._session.out
        used = out.used
        if used >= out.stop:
            if self._finish and get_pid() != self._process:
                raise ConfigError(
                    "the iterator was made before this process was forked, and its threads do "
                    "not exist here; make an iterator in each process"
                )
            return out.next()
        value = out.values[used]
        out.used = used + 1
        return value

    @property
    def rank(self) -> int:
        """The rank of an iterator is 0: it delivers everything."""
        return self._session.setting.rank

    @property
    def world_size(self) -> int:
        """The number of ranks of an iterator is 1."""
        return self._session.setting.world_size

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last delivered sample, as small plain JSON."""
        self._session.warn_of_unidentified()
        return self._session.state()

    def start(self) -> None:
        """Begin to compute the next sample now, and with workers also those after it."""
        self._session.start()

    def capture_state(self) -> Callable[[], dict[str, Any]]:
        """Return a function that returns the present state later.

        Costs next to nothing until the function is called, so a state can be taken at every step.
        """
        return self._session.capture_state()

    def load_state_dict(
        self,
        state: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        on_mismatch: OnMismatch = "error",
    ) -> None:
        """Continue from a saved state. If it does not fit, the iterator stays unchanged.

        Args:
            state: the result of `state_dict()`, or a list with the states of all ranks.
            on_mismatch: "error" refuses the state of another pipeline, "adopt" continues with this
                pipeline and keeps the position of every input.

        Raises:
            StateError: the state is corrupted, or belongs to another pipeline.
        """
        self._session.load(state, on_mismatch)

    def seek(self, item: int) -> None:
        """Go to an item of the pass: at once for an indexed dataset, else by reading up to it.

        Args:
            item: the number of the item, counted from 0 at the start of the pass.

        Raises:
            ConfigError: the number is no integer, or negative.

        >>> import penstock as ps
        >>> it = iter(ps.from_sequence(range(10)))
        >>> it.seek(8)
        >>> list(it)
        [8, 9]
        """
        self._session.seek(item)

    def keys(self) -> list[tuple[str, int, int]]:
        """Return source, epoch and index of every sample in the last item."""
        return self._session.out.keys()

    def close(self) -> None:
        """Close open files and stop the workers."""
        self._session.close()
        if self._finish:
            self._finish()


def require_no_dataloader_workers(what: str) -> None:
    """Raise `ConfigError` in one of several workers of a torch `DataLoader`.

    Each worker would deliver the same samples.
    """
    here = detect_dataloader_worker()
    if here is not None and here[1] > 1:
        error = ConfigError(
            f"{what} in worker {here[0]} of {here[1]} of a torch DataLoader would give every "
            f"sample {here[1]} times; use ps.Loader(ds, workers={here[1]}) instead, or give "
            "DataLoader penstock.integrations.torch.IterableDataset(ds)"
        )
        error.add_note(
            "if each worker has its own share of the data, give it in each: ps.Loader(ds, "
            "rank=..., world_size=...), counted over ranks and workers, or rank=0, world_size=1 if "
            "the data itself was split"
        )
        raise error


def describe_run(
    kind: str, session: Session, items: int | None, notes: Sequence[str] = ()
) -> Shown:
    """Describe a run for people: its kind, the items of a pass, notes and position, and its tree."""
    stops = not attempt(lambda: session.base.is_endless, False)
    most = f" of {counted(items, 'item')}" if items is not None else "" if stops else ", endless"
    at = attempt(lambda: _describe_position(session), "")
    return shown(
        f"{kind}{most}" + "".join(f", {note}" for note in [*notes, at] if note), session.tree
    )


def _describe_position(session: Session) -> str:
    if session.group:
        item = parse_cursor_int(session.out.cursor()) // (
            session.group * session.setting.world_size
        )
        return f"at item {item:,} of pass {session.epoch}"
    given = counted(sum(session.samples.values()), "sample")
    return f"{counted(session.lanes, 'lane')}, in pass {session.epoch}, {given} given since it was opened"
