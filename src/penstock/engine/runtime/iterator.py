"""One pass over a dataset in this process: what `iter(ds)` gives. The loader, with ranks and lanes,
is beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol
from weakref import finalize

from ...errors import ConfigError
from ..base.hints import guided
from ..base.machine import process, worker
from ..graph.compiled import Compiled
from ..graph.shown import Shown, Shows, attempt
from ..graph.tail import tail_of
from .executors.threads import Threads
from .session import Session
from .setting import Setting
from .show import shown_run
from .states import OnMismatch


class Described(Protocol):
    """Whatever holds a tree."""

    @property
    def compiled(self) -> Compiled: ...


@guided
class DatasetIterator(Shows, Iterator[Any]):
    """One pass over a dataset, with a state. `workers` threads compute up to `ahead` samples before
    they are asked for; neither changes a sample or a state.

    Args:
        dataset: what to iterate over.
        workers: threads that compute ahead; 0 computes inline.
        ahead: the most samples that are computed ahead; two for each worker when not given.
        lanes: for datasets without positions, in how many lanes they run; as in `Loader`.

    Raises:
        ConfigError: in one of several workers of a torch `DataLoader`.

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
        dataset: Described,
        workers: int = 0,
        ahead: int | None = None,
        lanes: int | None = None,
    ) -> None:
        refuse_copies("iter(ds)")
        executor = Threads(workers) if workers else None
        self._finish = (
            finalize(self, executor.close) if executor else None
        )  # most never close an iterator
        self._process = process()
        self._session = Session(
            dataset.compiled, Setting(lanes=lanes, window=2 * workers, most=ahead), executor
        )

    def _shown(self) -> Shown:
        session = self._session
        rows = attempt(session.rows, None)
        items = None if rows is None else session.spread.items(tail_of(session.flow).items, rows)
        return shown_run("DatasetIterator", session, items)

    def __next__(self) -> Any:
        out = self._session.out
        used = out.used
        if used >= out.stop:
            if self._finish and process() != self._process:
                raise ConfigError(
                    "the iterator was made before this process was forked, and its threads are not "
                    "here: make one in "
                    "each process"
                )
            return out.next()
        value = out.values[used]
        out.used = used + 1
        return value

    @property
    def rank(self) -> int:
        """An iterator gives all there is: 0."""
        return self._session.setting.rank

    @property
    def world_size(self) -> int:
        """1."""
        return self._session.setting.world_size

    def state_dict(self) -> dict[str, Any]:
        """Where the iterator stands, after the last sample it gave: small, plain JSON."""
        self._session.warn_of_unidentified()
        return self._session.state()

    def start(self) -> None:
        """Compute the next sample now, and with workers go on with those behind it."""
        self._session.start()

    def moment(self) -> Callable[[], dict[str, Any]]:
        """The same, to be written down later: costs next to nothing, until the function it gives is
        called."""
        return self._session.moment()

    def load_state_dict(
        self,
        state: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        on_mismatch: OnMismatch = "error",
    ) -> None:
        """Go where a state says; it stays where it was if the state does not fit.

        Args:
            state: what `state_dict()` returned, or a list of those of all ranks.
            on_mismatch: "error" refuses a state of another pipeline, "adopt" goes on with this one,
                every input where it was.

        Raises:
            StateError: for a state that is damaged or of another pipeline.
        """
        self._session.load(state, on_mismatch)

    def seek(self, item: int) -> None:
        """Go to an item of the pass: at once where the dataset is indexed, else by reading up to
        it.

        Args:
            item: counted from 0, from the beginning of the pass.

        Raises:
            ConfigError: for what is no whole number of at least 0.

        >>> import penstock as ps
        >>> it = iter(ps.from_sequence(range(10)))
        >>> it.seek(8)
        >>> list(it)
        [8, 9]
        """
        self._session.seek(item)

    def keys(self) -> list[tuple[str, int, int]]:
        """Source, epoch and index of every sample in the last item."""
        return self._session.out.keys()

    def close(self) -> None:
        """Let go of open files, and of the workers."""
        self._session.close()
        if self._finish:
            self._finish()


def refuse_copies(what: str) -> None:
    """Refuse to iterate in one of several workers of a torch `DataLoader`: each would give the same
    samples."""
    here = worker()
    if here is not None and here[1] > 1:
        raise ConfigError(
            f"{what} in worker {here[0]} of {here[1]} of a torch DataLoader would give every "
            f"sample {here[1]} times: "
            f"use ps.Loader(ds, workers={here[1]}) in its place, or give DataLoader "
            "penstock.integrations.torch.IterableDataset(ds); where the workers have their shares, "
            "say so in each: "
            "ps.Loader(ds, rank=..., world_size=...), counted over ranks and workers, or rank=0, "
            "world_size=1 where "
            "the data itself was split"
        )
