"""The loader: delivers a dataset to the training loop, on one of many ranks, with workers."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, suppress
from functools import partial
from importlib import import_module
from inspect import currentframe, unwrap
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypeVar, cast, get_args

import numpy as np

from .arguments import (
    check_choice,
    check_int,
    make_not_dataset_error,
    require_no_lightning,
    validate_arguments,
)
from .dataset import Dataset
from .engine.base.canonical_json import compute_fingerprint
from .engine.base.cursors import parse_cursor_int
from .engine.base.machine import get_pid, is_gil_enabled, make_lock
from .engine.base.rows import ProvenanceRows
from .engine.base.seams import world
from .engine.base.shown import Shown, Shows, attempt, counted
from .engine.plan.plan import Keys
from .engine.plan.records import Removal
from .engine.runtime.delivery import Delivery, OutputForm
from .engine.runtime.executors import EXECUTORS, ExecutorName, make_executor
from .engine.runtime.executors.threads import Threads
from .engine.runtime.iterator import describe_run, require_no_dataloader_workers
from .engine.runtime.metrics import flatten_metrics, iter_metrics
from .engine.runtime.prefetched_copies import PrefetchedCopies
from .engine.runtime.run_monitor import RunMonitor
from .engine.runtime.run_options import RunOptions, resolve_rank
from .engine.runtime.session import Session
from .engine.runtime.states import OnMismatch
from .engine.runtime.verdict import Verdict
from .engine.steps.batch import rows_of_rank, shared_by_ranks, shares_batches, step_of_rank, tail_of
from .engine.steps.compiled import Compiled
from .engine.steps.planned_batches import Stages, rows_by_step
from .engine.steps.step import Step, iter_steps
from .engine.streams.balance import Balance, Cost, make_cost
from .engine.streams.journal import OnError, journal_to_json
from .engine.streams.rank_sharding import REMAINDERS, Remainder
from .errors import ConfigError, hide_unknown_length
from .leases import LeasedItem, Leases, Settlement, UnsettledItems
from .schedule import Schedule
from .types import MAX_POSITION, CountingFunction, Flags, Json

if TYPE_CHECKING:
    from .explore.run_reporter import RunReporter
    from .text.loss_tokens import LossTokens

T = TypeVar("T")

ArrayType: TypeAlias = Literal["numpy", "torch", "jax"]

_GIL_ENABLED = is_gil_enabled()


@validate_arguments
class Loader(Shows):
    """Deliver the items of `iter(ds)`, prefetched by workers and sharded over ranks.

    `for batch in loader` runs from the loader's position to the end of the pass. The next `for` is
    the next pass, in a new order. A state saved after any item resumes the run there.

    Args:
        dataset: the dataset to load.
        workers: number of workers that prefetch. Items arrive in order, so this number changes no
            item and no state. 0 computes inline.
        executor: kind of worker: "threads"; "processes", for functions that hold the interpreter
            (pure Python); "ray", for actors of a cluster; or "inline" for no worker. Without
            workers it has no effect.
        prefetch: maximum number of tasks in flight. Default: two per worker.
        prefetch_bytes: approximate limit on the bytes prefetched, with any executor. A larger
            sample is computed alone. Default: an eighth of the machine's memory, divided by its
            ranks.
        rank: the rank of this loader. Default: from torch.distributed, jax.distributed or the
            launcher (torchrun, MPI, srun). Peers of one data-parallel group need the same rank.
        world_size: number of ranks (`WORLD_SIZE`).
        global_batch_size: rows of all ranks together in a step. A dataset without batches is
            batched by `ds.batch(global_batch_size=)`, so each rank builds batches of its share.
            Existing batches must have this size. A `Schedule` of numbers changes it during the
            run, see `ds.batch`.
        mesh: replaces `rank` and `world_size`: the data-parallel group, as a torch `DeviceMesh`
            (several dimensions count in their order) or `ProcessGroup` that contains this process.
        lanes: for pipelines with filter, flat_map, pack and similar steps: number of independent
            lanes. Fixed for a run: from the loaded state, else the number of ranks, so one rank
            keeps the order of the source. If the ranks do not divide the lanes, each rank reads
            everything. For a run that may grow, give a multiple of every world size.
        remainder: handling of the last rows of a pass that fill no step of several ranks. With
            "drop", they are omitted. With "pad", rows from the beginning of the pass fill the
            step, and `valid` is False for them. With "keep", they are delivered, so that ranks may
            deliver different numbers of items.
        balance: cost that the ranks share evenly in a global step, each with as many rows:
            "tokens", "squares" of the tokens of each document (attention), or a function. The
            function converts an array of lengths to integers. Needs known lengths; the rows of a
            step do not change.
        epoch_length: number of items, over all ranks, after which a `for` ends (each rank delivers
            the same number, rounded up). The next `for` continues there. For endless datasets, and
            for lanes, which then continue over the end of a pass.
        on_error: "raise"; or "quarantine", which replaces a bad sample by another one of the same
            source and keeps a journal in the state.
        max_errors: number of bad samples above which "quarantine" raises.
        timeout: seconds that a worker process may spend on one task before another worker replaces
            it; on one sample, when a task is retried. The log names slow work on a thread. It
            needs at least one worker. None waits for ever.
        profile: whether to measure the time of every step and source, for `stats()` and
            `verdict()`.
        to: array type of items: "numpy", "torch" or "jax". Tensors share memory where possible.
        device: the framework's name of a device ("cuda:0") to which items are copied ahead, while
            the training step works on earlier ones. Copies do not affect the state. For JAX also a
            `NamedSharding` of global arrays, which implies the rank.
        pin_memory: for torch: whether tensors are in pinned memory, from which copies to a device
            start. Default: True if `device` is a CUDA GPU.
        stats: file to which the loader appends its `stats()` about once a second, as JSON lines.
            `penstock top` and `penstock explore` follow it, also over restarts. Rank 0 writes this
            file, and rank 3 `stats.rank3.jsonl` beside `stats.jsonl`.
        progress: whether rank 0 shows the progress: a live display in a terminal (with `rich`) and
            in a notebook, else a line every ten seconds on stderr.

    Raises:
        ConfigError: if options are invalid, or if ranks would end at different steps.

    >>> import penstock as ps
    >>> with ps.Loader(ps.from_sequence(range(10)).shuffle().batch(4), workers=2) as loader:
    ...     sizes = [len(batch) for batch in loader]
    ...     state = loader.state_dict()
    >>> sizes
    [4, 4, 2]
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        workers: int = 0,
        executor: ExecutorName = "threads",
        prefetch: int | None = None,
        prefetch_bytes: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        global_batch_size: int | Schedule | None = None,
        mesh: object = None,
        lanes: int | None = None,
        remainder: Remainder = "drop",
        balance: Balance | Cost | None = None,
        epoch_length: int | None = None,
        on_error: OnError = "raise",
        max_errors: int = 100,
        timeout: float | None = None,
        profile: bool = False,
        to: ArrayType = "numpy",
        device: object = None,
        pin_memory: bool | None = None,
        stats: str | Path | None = None,
        progress: bool = False,
    ) -> None:
        if not isinstance(dataset, Dataset):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise make_not_dataset_error("Loader", dataset)
        workers = check_int(workers, "workers={}", 0, MAX_POSITION)
        check_choice(executor, EXECUTORS, "executor={}")
        prefetch = None if prefetch is None else check_int(prefetch, "prefetch={}", 1)
        epoch_length = (
            None if epoch_length is None else check_int(epoch_length, "epoch_length={}", 1)
        )
        self._placed = rank is not None
        timeout = None if timeout is None else float(timeout)
        form = _load_form(to, device, pin_memory)
        rank, world_size = resolve_rank(rank, world_size, mesh, form)
        self._workers = 0 if executor == "inline" else workers
        window = (prefetch or 2 * self._workers) if self._workers else 0
        check_choice(remainder, REMAINDERS, "remainder={}")
        self._epoch_length, self._remainder = epoch_length, remainder
        if global_batch_size is not None:
            dataset = _batch_globally(dataset, global_batch_size, world_size)
        self._shares_batches = shares_batches(dataset.tree)
        of_rank = partial(
            step_of_rank,
            world_size=world_size,
            remainder=remainder,
            epoch_length=epoch_length,
            lanes=lanes,
        )
        tree, planned = of_rank(dataset.tree), rows_by_step(dataset.tree)
        bounds = max_errors, window, None, prefetch_bytes
        setting = RunOptions(
            rank, world_size, lanes, on_error, *bounds, remainder, form, cost=make_cost(balance)
        )
        self._executor = make_executor(executor, self._workers, timeout, prefetch_bytes)
        timed = profile or (
            timeout is not None and executor == "threads"
        )  # the measurements tell which sample a thread hangs on
        self._closed = self._released = False
        self._watch = RunMonitor(executor, self._workers, self._executor, timed)
        self._pass: _PassIterator | None = None
        self._warned, self._form = False, form
        self._copies = PrefetchedCopies(form.copy) if form is not None and form.copies else None
        self._leases: Leases | None = None
        self._loss_tokens: tuple[Compiled, LossTokens] | None = None
        self._lock, self._process = make_lock(), get_pid()
        try:
            compiled = dataset.compiled.of(tree).timed(self._watch.timing)
            stages = Stages.of(dataset.tree, planned, of_rank, compiled) if planned else None
            self._session = Session(compiled, setting, self._executor, UnsettledItems(), stages)
            self._reporter = (
                self._make_reporter(stats, progress, dataset, executor, profile)
                if stats is not None or progress
                else None
            )
        except BaseException:
            for helper in (self._copies, self._executor):
                if helper is not None:
                    helper.close()
            raise

    def _make_reporter(
        self,
        stats: str | Path | None,
        progress: bool,
        dataset: Dataset,
        executor: str,
        profile: bool,
    ) -> RunReporter:
        """Open the stats file and the progress display of this loader."""
        from .explore.run_reporter import RunReporter

        session, setting = self._session, self._session.setting
        fingerprint: str | None = None
        with suppress(Exception):  # a function without a description
            fingerprint = compute_fingerprint(dataset.tree.description())
        steps: int | None = None
        with suppress(Exception):  # endless, or unknown before the run
            steps = len(self)
        facts: dict[str, Any] = {
            "rank": setting.rank,
            "world_size": setting.world_size,
            "run": fingerprint,
            "sources": [leaf.name for leaf in session.leaves],
            "rows_per_step": session.group * setting.world_size if session.group else None,
            "steps": steps,
            "workers": self._workers,
            "executor": executor if self._workers else "inline",
            "prefetch": setting.window,
            "profile": profile,
        }

        def collect() -> tuple[dict[str, Any], dict[str, Any]]:
            # Without the lock, which a waiting next() holds.
            figures = self._watch.stats(self._session)
            return figures, {"step": self._session.step, "warnings": self.warnings}

        return RunReporter(stats, progress, facts, collect)

    # ------------------------------------------------------------ a pass

    def __iter__(self) -> Iterator[Any]:
        if not self._placed or get_pid() != self._process:
            require_no_dataloader_workers("iter(loader)")
        require_no_lightning(
            currentframe(),
            "Lightning counts batches and never asks for the end of a pass, so every second epoch "
            "of a bare loader would be empty",
        )
        if self._session.sharding.keeps_groups or self._in_flight.used:
            raise ConfigError(
                "iter(loader): this run leases items, and a `for` cannot settle them; continue with "
                "loader.lease(k)"
            )
        if self._pass is not None:
            self._pass.free = False
        self._session.require_pass()
        self._session.warn_of_unidentified()
        self._session.identify_objects()
        self._session.warn_of_lanes()
        needs_checks = (
            self._epoch_length is not None
            or self._session.sharding.remainder == "pad"
            or self._copies is not None
            or self._reporter is not None
        )
        self._pass = _PassIterator(self, not needs_checks and _GIL_ENABLED)
        return self._pass

    @hide_unknown_length
    def __len__(self) -> int:
        """Return the number of items that a `for` over a whole pass delivers on this rank.

        Raises:
            TypeError: if the length is unknown before the run, or endless.

        >>> import penstock as ps
        >>> len(ps.Loader(ps.from_sequence(range(10)).batch(4), rank=0, world_size=2))
        1
        """
        session, epoch_length = self._session, self._epoch_length
        steps = None if epoch_length is None else -(-epoch_length // session.setting.world_size)
        if (rows := session.rows()) is not None:
            items = session.planned_steps if session.stages else None
            if items is None:
                items = session.sharding.count_items(tail_of(session.base).items, rows)
            return items if steps is None else min(steps, items)
        if steps is not None:
            return steps
        if (reason := session.base.reason_not_indexed) is not None:
            raise TypeError(
                f"len(loader): the length of a pass is unknown before it is run: {reason}. For "
                "DataLoader use penstock.integrations.torch.IterableDataset(ds)"
            )
        raise TypeError(
            "len(loader): the dataset never ends; Loader(epoch_length=n) gives its passes a length "
            "(the Trainer of transformers takes loaders by penstock.integrations.transformers.FromLoader)"
        )

    def __bool__(self) -> bool:
        return True

    def _shown(self) -> Shown:
        setting = self._session.setting
        notes = [f"rank {setting.rank} of {setting.world_size}", counted(self._workers, "worker")]
        items = attempt(lambda: len(self), None)
        return describe_run(
            "Loader", self._session, items, [*notes, "closed" if self._closed else ""]
        )

    def _repr_html_(self) -> str:
        return (
            super()._repr_html_() + attempt(self._show_progress, "") + attempt(self._show_speed, "")
        )

    def _show_progress(self) -> str:
        """Return how much of the pass is delivered as an HTML element; empty if unknown."""
        session = self._session
        if not session.group:
            return ""
        each, items = session.group * session.setting.world_size, len(self)
        done = session.step if session.stages else parse_cursor_int(session.out.cursor()) // each
        return f'<br><progress value="{done}" max="{items}"></progress> {done:,} of {items:,} items'

    def _show_speed(self) -> str:
        """Return samples per second and the share of time waited, from the first item on."""
        stats = self._watch.stats(self._session)  # without the lock, which a waiting next() holds
        elapsed, samples = stats["elapsed_s"] + stats["first_s"], sum(stats["samples"].values())
        if not samples or elapsed <= 0:
            return ""
        waited = min(stats["waited_s"] / elapsed, 1)
        return f"<br>{samples / elapsed:,.0f} samples/s, {waited:.0%} of the time waiting for data"

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigError("the loader is closed; open a new one and load the state into it")
        if (self._executor or self._copies) and get_pid() != self._process:
            raise ConfigError(
                "the loader was opened before this process was forked, and its workers are in the "
                "parent process; open a loader in each process"
            )

    def _filled(self, item: Callable[[Delivery], Any]) -> Any:
        """Fill the item buffer, record the time waited, and return `item` of the buffer."""
        self._check_open()
        if self._reporter is not None:
            self._reporter.report()
        out, began = self._session.out, world.sched.now()
        try:
            out.fill()
            value = item(out)
        except (RuntimeError, CancelledError):
            self._check_open()  # another thread, or a signal handler, closed it meanwhile
            raise
        self._watch.record_wait(began, world.sched.now())
        if self._reporter is not None and out.used < len(out.values):
            session = self._session
            item = out.values[out.used]
            self._reporter.count_item(session.items, item, session.group or None)
        return value

    def _item(self, out: Delivery) -> tuple[Sequence[Any], int, Any]:
        """Return the buffer, the offset of the next item in it, and the item."""
        if self._copies is None:
            values = out.values
            # Another thread may have delivered the last item meanwhile.
            offset = min(out.used, len(values) - 1)
            return values, offset, self._at(out, offset)
        value = self._copies.take(out, partial(self._at, out))
        return out.values, out.used, value  # copies prefetch items, which moves the offsets

    def _at(self, out: Delivery, offset: int) -> Any:
        """Return a buffered item; mappings get `valid` with `remainder="pad"`."""
        session = self._session
        batch = out.values[offset]
        if session.sharding.remainder != "pad" or not isinstance(batch, Mapping):
            return batch
        if "valid" in batch:
            raise ConfigError(
                "remainder='pad' marks the padding rows of a batch in 'valid', and the batch has a "
                "key 'valid' already; rename that key with .rename(...)"
            )
        valid: Any = self._mask_padding(out.cursor_before(offset), out.rows_of(offset))
        if self._form is not None:
            (valid,) = self._form.values([valid])
        return {**cast("Mapping[str, Any]", batch), "valid": valid}

    def _locked(self, call: str) -> AbstractContextManager[Any]:
        """Return the lock of the run, but raise on its own worker threads.

        The holder of the lock may wait for a worker thread, so a worker that waits for the lock
        would be a deadlock.
        """
        if isinstance(self._executor, Threads) and self._executor.computes_here():
            raise ConfigError(
                f"{call} was called by a function of the pipeline, on a worker thread of the same "
                "loader, and next() may wait for that thread; call it between two items, or from a "
                "thread of your own"
            )
        return self._lock

    def _alone(self, change: Callable[[], T]) -> T:
        """Make a change while no thread takes an item, not even a buffered one."""
        with self._locked("a change of the position or the weights"):
            out = self._session.out
            before, out.stop = out.stop, 0
            try:
                return change()
            finally:
                # 0 stays 0: the buffer of a closed loader, or of a forked process, is empty.
                out.stop = before

    def _full(self) -> bool:
        """Return whether `epoch_length` items were delivered; if so, reset their count."""
        if self._epoch_length is None or self._session.given < self._epoch_length:
            return False
        self._session.given = 0
        return True

    def _begins_epoch_within_pass(self) -> bool:
        """Return whether `epoch_length` items were delivered, and none of the next epoch yet."""
        session = self._session
        if self._epoch_length is None or session.given:
            return False
        cursor = session.out.cursor()
        return bool(cursor["turn"] if isinstance(cursor, dict) else cursor)

    def _end(self) -> None:
        self._require_step()
        self._warn_of_omitted_rows()
        if self._reporter is not None:
            self._reporter.report(now=True)
        self._session.next_pass()

    def _require_step(self) -> None:
        """Raise `ConfigError` if the pass that ended has fewer rows than a global batch."""
        session, rows = self._session, self._session.rows()
        if rows is None or self._remainder != "drop" or not self._shares_batches:
            return
        if rows < session.sharding.size and session.row == session.pass_start:
            raise session.sharding.make_no_step_error(rows)

    def _warn_of_omitted_rows(self) -> None:
        session, spread = self._session, self._session.sharding
        rows = session.rows()
        if self._warned or rows is None or self._remainder != "drop" or spread.rank:
            return
        start = session.step_log.records[-2].row if session.stages else 0  # of the last batches
        left = (rows - start) % spread.size
        if spread.world_size == 1 and not self._shares_batches:
            return  # a single rank delivers the last, short batch too
        if left:
            self._warned = True
            logging.getLogger("penstock").warning(
                "every pass omits its last %d of %d rows, which fill no step of %d ranks with %d "
                "rows each; Loader(remainder='pad') or 'keep' delivers them "
                "too", left, rows, spread.world_size, spread.group,
            )  # fmt: skip

    # ------------------------------------------------------------ position and state

    @property
    def rank(self) -> int:
        """The rank of this loader."""
        return self._session.setting.rank

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self._session.setting.world_size

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last delivered item: plain JSON, no data.

        `ps.save` writes it to a file. For an indexed pipeline all ranks have the same state. With
        lanes each rank has its own cursors: keep the states of all ranks, and load the list.

        Returns:
            The state, for `load_state_dict`.

        Raises:
            ConfigError: if called by a function of the pipeline on a worker thread.
        """
        with self._locked("state_dict()"):
            return self._session.state()

    def load_state_dict(
        self,
        state: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        on_mismatch: OnMismatch = "error",
    ) -> None:
        """Load a state, or the states of all ranks, saved with any ranks and workers.

        The state of another pipeline is an error that lists the differences.
        `on_mismatch="adopt"` continues with this pipeline instead: each input that both pipelines
        have keeps its position. After an error the loader is unchanged.

        Args:
            state: a result of `state_dict()`, or a list of the results of all ranks.
            on_mismatch: "error", or "adopt".

        Raises:
            StateError: if a state is damaged, or of another pipeline, other data or other lanes.
        """

        def change() -> None:
            self._session.load(state, on_mismatch)
            self._leases = None
            if self._in_flight.lost:
                self._leasing()  # all ranks replace the lost draws here, as all have these states

        self._alone(change)

    def seek(self, step: int) -> None:
        """Move to a global step of the run, counted over all passes, without reading.

        The next item is the item of that step on this rank. Make the same call on every rank.
        Changes of the run stay in effect at their positions.

        `plan.for_state(state).seen()` counts skipped steps as not delivered, and repeated steps as
        delivered twice. If the model goes back too, load a state that was saved there. The count
        of `epoch_length` restarts.

        Args:
            step: global step of the run, from 0, the same on all ranks.

        Raises:
            ConfigError: if `step` is no integer of at least 0, or if items were leased.
            IndexedError: if steps depend on the data (filter and similar steps). Load a state that
                was saved there instead.

        >>> import penstock as ps
        >>> loader = ps.Loader(ps.from_sequence(range(10)).batch(2, collate=list))
        >>> loader.seek(3)
        >>> list(loader)
        [[6, 7], [8, 9]]
        """
        self._seek(step)

    def _seek(self, step: int, counted: bool = True) -> None:
        """Move to a step; with `counted=False`, for random access, the log does not record it."""
        step = check_int(step, "seek({})", 0)

        def change() -> None:
            session = self._session
            if self._in_flight.used:
                raise ConfigError(
                    f"seek({step}): items were leased, and those in flight would be lost; open a "
                    "new loader"
                )
            session.base.require_indexed(f"seek({step})", "load a state that was saved there")
            session.go_to_step(step, session.step_log.rows(step).start, counted)

        self._alone(change)

    # ------------------------------------------------------------ items that finish out of order

    def lease(self, k: int) -> list[LeasedItem]:
        """Lease the next `k` items of this rank, each with its address in the plan.

        For trainers that finish items out of order, such as rollouts: `settle` reports each item
        that is finished. The state stores the items in flight, so a resume leases exactly these
        again, in order, and then continues.

        Items are those of the plan (`plan.at(uid)`), each on one rank; ranks may lease at different
        speeds. Requeued items come first. Items that a `for` delivered before count as settled.

        Args:
            k: maximum number of items.

        Returns:
            Items with `uid` and `value`. The list is shorter at the end of a pass and before an
            item that fails. It is empty after the last item of a pass; the next call begins the
            next pass.

        Raises:
            ConfigError: with `epoch_length`, `remainder="pad"`, `global_batch_size` or `balance`,
                which need a `for`, and with copies to a device.

        >>> import penstock as ps
        >>> ds = ps.from_sequence("abcde")
        >>> loader = ps.Loader(ds)
        >>> [item.value for item in loader.lease(3)]
        ['a', 'b', 'c']
        >>> loader.settle("0:1", "trained")
        >>> again = ps.Loader(ds)
        >>> again.load_state_dict(loader.state_dict())
        >>> [item.value for item in again.lease(4)]
        ['a', 'c', 'd', 'e']
        """
        with self._locked("lease()"):
            return self._leasing().lease(check_int(k, "lease({})", 1))

    def settle(self, uid: str, settlement: Settlement) -> None:
        """Report the outcome of a leased item.

        A settled item is never delivered again. After "requeue" the next `lease` returns the item
        again, under the same uid and before new items.

        Args:
            uid: the uid of the leased item.
            settlement: "trained", "filtered", "failed", or "requeue".

        Raises:
            ConfigError: if the uid is not in flight on this rank: already settled, or never
                leased.

        >>> import penstock as ps
        >>> loader = ps.Loader(ps.from_sequence("abc"))
        >>> for item in loader.lease(2):
        ...     loader.settle(item.uid, "trained" if item.value == "a" else "requeue")
        >>> loader.lease(2)
        [LeasedItem(uid='0:1', value='b'), LeasedItem(uid='0:2', value='c')]
        """
        with self._locked("settle()"):
            self._leasing().settle(uid, settlement)

    def settled_log(self) -> list[dict[str, Json]]:
        """Return the replacement draws of `mix(count="settled")` since the last call.

        Append these plain records to a file before each state is saved; `ds.plan.replay(records)`
        reproduces the run from them.

        Returns:
            Records with a position and the source that was drawn there.

        Raises:
            ConfigError: if the pipeline has no `mix(count="settled")`.

        >>> import penstock as ps
        >>> ds = ps.mix({"a": ps.from_sequence("aaa"), "b": ps.from_sequence("bbb")}, count="settled")
        >>> loader = ps.Loader(ds)
        >>> [item.value for item in loader.lease(4)]
        ['a', 'b', 'a', 'b']
        >>> loader.settle("0:0", "filtered")
        >>> loader.settled_log(), [item.value for item in loader.lease(3)]
        ([{'from': 0}, {'position': 4, 'source': 'a'}], ['a', 'b', 'a'])
        """
        with self._locked("settled_log()"):
            compensation = self._leasing().compensation("settled_log()")
            records, compensation.log = compensation.log, []
            return records

    def settled_report(self) -> dict[str, Json]:
        """Return this rank's progress for `compensate`, with `mix(count="settled")` on several ranks.

        Returns:
            Plain JSON: the position of this rank, and its open and lost items.

        Raises:
            ConfigError: if the pipeline has no `mix(count="settled")`.

        >>> import penstock as ps
        >>> ds = ps.mix({"a": ps.from_sequence("aaa"), "b": ps.from_sequence("bbb")}, count="settled")
        >>> loader = ps.Loader(ds, rank=0, world_size=2)
        >>> uids = [item.uid for item in loader.lease(2)]
        >>> loader.settle(uids[0], "filtered")
        >>> report = loader.settled_report()
        >>> report["of"], len(report["open"]), len(report["lost"])
        ([0, 2], 1, 1)
        """
        with self._locked("settled_report()"):
            return self._leasing().compensation("settled_report()").report()

    def compensate(self, reports: Sequence[Mapping[str, Json]]) -> None:
        """Schedule replacement draws for the lost items of all ranks.

        For `mix(count="settled")` on several ranks. Call it on every rank with the reports of all
        ranks, before that rank leases or settles more; for example after each step, with
        `torch.distributed.all_gather_object`. All ranks then continue from the furthest position,
        and divide the items that slower ranks had not reached.

        A single rank replaces lost items at once, and this call does nothing.

        Args:
            reports: the results of `settled_report()` on every rank.

        Raises:
            ConfigError: if a rank's report is missing, or if this rank leased or settled since its
                report.
            StateError: if ranks replaced different draws before.

        >>> import penstock as ps
        >>> ds = ps.mix({"a": ps.from_sequence("aaa"), "b": ps.from_sequence("bbb")}, count="settled")
        >>> pair = [ps.Loader(ds, rank=rank, world_size=2) for rank in range(2)]
        >>> for item in pair[0].lease(2):
        ...     pair[0].settle(item.uid, "filtered")
        >>> reports = [loader.settled_report() for loader in pair]
        >>> for loader in pair:
        ...     loader.compensate(reports)
        >>> pair[0].settled_log() == pair[1].settled_log()
        True
        """
        self._alone(lambda: self._leasing().compensation("compensate()").compensate(reports))

    @property
    def _in_flight(self) -> UnsettledItems:
        return cast("UnsettledItems", self._session.section)

    def _leasing(self) -> Leases:
        """Switch the run to leasing items, at the first call, and return it."""
        self._check_open()
        if self._leases is None:
            if self._session.setting.cost is not None:
                raise ConfigError(
                    "lease() gives each item to the next free rank, and balance= divides the rows "
                    "of a `for`; leave out balance="
                )
            if self._epoch_length is not None or self._session.sharding.remainder == "pad":
                raise ConfigError(
                    "lease() delivers every item of a pass once; epoch_length and remainder='pad' "
                    "need a `for`: leave them out"
                )
            if self._shares_batches:
                raise ConfigError(
                    "lease() gives each item to one rank, and global_batch_size divides each item "
                    "over all ranks; leave it out, or use batch(n)"
                )
            if self._copies is not None:
                raise ConfigError(
                    "lease() copies no items to a device; leave out device=, pin_memory= and "
                    "to='jax'"
                )
            if self._pass is not None:
                self._pass.free, self._pass = False, None
            self._session.warn_of_unidentified()
            self._session.identify_objects()
            self._leases = Leases(self._session, lambda: self._filled(lambda _: None))
        return self._leases

    # ------------------------------------------------------------ changes of the mixture

    def set_weights(self, weights: Mapping[str, float] | Schedule, at: int | None = None) -> int:
        """Change the weights of a mixture from position `at` on.

        Passes of a finite mixture are counted end to end; later passes use the new weights from
        their beginning. The state stores the change.

        Args:
            weights: name -> relative weight, for all sources of one mixture; or a `Schedule`.
            at: position in the mixture. Default: the first sample not drawn or skipped yet, which
                is the same on every rank at the same step.

        Returns:
            The position at which the change takes effect.

        Raises:
            ConfigError: if no mixture has these names, or if the position is in the past. Also if
                the pass would end so early that delivered rows of whole documents would be packed
                again.
        """
        return self._alone(lambda: self._session.set_weights(weights, at))

    # ------------------------------------------------------------ tokens that carry loss

    def loss_tokens(self, steps: int = 1) -> int:
        """Return the number of tokens that carry loss in the next global steps, over all ranks.

        It follows from the plan, so no rank communicates. Divide the sum of losses of an optimizer
        step by it: `steps` is then the number of accumulated batches. Steps continue over the end
        of a pass; rows that only fill up a step do not count.

        It is the number of labels of `CausalLM` that are trained on. So the first token of a
        document's part in a row does not count, nor one whose `loss_mask` is 0 or whose label is
        ignored. See `docs/tasks/loss-tokens.md`.

        Args:
            steps: number of global steps, from the position of the loader on.

        Raises:
            ConfigError: if the plan does not know the number: lengths are unknown, functions may
                change what carries loss, items are leased, or `on_error="quarantine"`. Then count
                batches, and reduce the counts (`penstock.integrations.losses`).

        >>> import numpy as np, penstock as ps
        >>> store = ps.from_tokens(np.arange(90), np.arange(0, 91, 9))  # 10 documents
        >>> loader = ps.Loader(store.pack(18).batch(2), rank=0, world_size=2)
        >>> loader.loss_tokens(), 4 * 18 - 8
        (64, 64)
        """
        steps = check_int(steps, "loss_tokens(steps={})", 0)
        with self._locked("loss_tokens()"):
            counter, session = self._count_loss(), self._session
            first = session.step_log.next_step(session.row)
            return counter.count_steps(session.step_log, range(first, first + steps))

    def _count_loss(self) -> LossTokens:
        """Return the counter of tokens that carry loss in steps of the run."""
        from .text.loss_tokens import LossTokens, make_unknown_error

        session = self._session
        if self._in_flight.used or session.sharding.keeps_groups:
            raise make_unknown_error("leased items make no global steps")
        if session.journal.entries or session.setting.on_error == "quarantine":
            raise make_unknown_error(
                "on_error='quarantine' replaces bad samples when it reads them"
            )
        if self._loss_tokens is None or self._loss_tokens[0] is not session.compiled:
            self._loss_tokens = session.compiled, LossTokens(session.compiled)
        return self._loss_tokens[1]

    def exclude(self, keys: Keys) -> tuple[Removal, ...]:
        """Exclude samples from the next item on.

        The next sample of the same source replaces an excluded one. Documents in rows of `pack` or
        `Padded` become padding until then, and for good where their order cannot change. The state
        stores the change. Make the same call on every rank at the same step.

        Args:
            keys: (source, index) or (source, epoch, index), as in `keys()`.

        Returns:
            For each sample not excluded before: source, index, "replaced" or "masked", and the
            first row that does not train on it.

        Raises:
            ConfigError: if a source does not exist, if the samples can be neither replaced nor
                masked, or if the run leases items.
            IndexError: if an index does not exist.

        >>> import penstock as ps
        >>> loader = ps.Loader(ps.from_sequence("abcd", name="letters").repeat())
        >>> loader.exclude([("letters", 1)])
        (Removal(source='letters', index=1, how='replaced', row=0),)
        >>> [letter for letter, _ in zip(loader, range(5))]
        ['a', 'c', 'd', 'a', 'c']
        """
        if self._in_flight.used:
            raise ConfigError(
                "exclude(): this run leases items, and those in flight keep their samples; settle "
                "them, and load ds.plan.for_state(state).exclude(keys).state"
            )
        from .plan import exclude_from_run

        return self._alone(lambda: exclude_from_run(self._session, keys))

    # ------------------------------------------------------------ provenance and metrics

    def keys(self) -> list[tuple[str, int, int]]:
        """Return source, epoch and index of every sample in the last item, in order.

        The provenance of a batch or a packed row. For leased items use `plan.at(uid)`.

        Raises:
            ConfigError: if the run leases items.
        """
        if self._in_flight.used:
            raise ConfigError(
                "keys() describes the last item of a `for`, and this run leases items; use "
                "plan.at(uid)"
            )
        return self._session.out.keys()

    @property
    def valid(self) -> Flags:
        """Mask of the last item's rows that are no padding: bool[rows].

        All True, except at the end of a pass with `remainder="pad"`.

        >>> import penstock as ps
        >>> loader = ps.Loader(ps.from_sequence(range(3)).batch(2), remainder="pad")
        >>> [(batch.tolist(), loader.valid.tolist()) for batch in loader]
        [([0, 1], [True, True]), ([2, 0], [True, False])]
        """
        session, out = self._session, self._session.out
        if not len(rows := out.last_rows()):
            return np.zeros(0, np.bool_)
        if session.sharding.remainder == "pad":
            return self._mask_padding(out.last_item_start(), rows)
        rows = self._ungroup(rows)
        return np.ones(len(rows.ungrouped() if self._holds_batches else rows), np.bool_)

    def _mask_padding(self, cursor: Json, rows: ProvenanceRows) -> Flags:
        """Return a mask of the rows of an item that are no padding."""
        session = self._session
        valid = session.sharding.mask_padding(
            parse_cursor_int(cursor), session.pass_start, session.rows()
        )
        if self._holds_batches:  # padding fills whole ones
            return np.repeat(valid, np.diff(self._ungroup(rows).levels[0]))
        return valid

    def _ungroup(self, rows: ProvenanceRows) -> ProvenanceRows:
        """Return the rows that the ranks divide, of an item."""
        for _ in tail_of(self._session.base).batches:
            rows = rows.ungrouped()
        return rows

    @property
    def _holds_batches(self) -> bool:
        """True if the ranks divide batches, such as `batch(4).limit(9)` gives, or groups by length."""
        return tail_of(self._session.base).rows.forms_batches

    @property
    def journal(self) -> list[dict[str, Any]]:
        """The bad samples so far: source, epoch, index, error, and the replacement's index."""
        return journal_to_json(self._session.journal.entries)

    @property
    def warnings(self) -> list[str]:
        """Remarks on the last loaded state: data that moved, functions that changed."""
        return list(self._session.notes)

    def stats(self) -> dict[str, Any]:
        """Return statistics since the loader was opened.

        Items, samples by source and bytes; number and duration of waits; tasks in flight; memory by
        process; counts of functions. With `profile=True` also `time` by step and source. `epoch`,
        `errors` and `quarantined` are those of the whole run, which a restored loader continues.
        See `docs/observe.md`.

        Raises:
            ConfigError: if called by a function of the pipeline on a worker thread.
        """
        with self._locked("stats()"):
            stats = self._watch.stats(self._session)
        return {**stats, "functions": _function_counts(self._session.tree)}

    def metrics(self) -> dict[str, float]:
        """Return the numbers of `stats()` as a flat mapping, for TensorBoard, W&B and similar tools.

        `data/waited_seconds` leaves out the wait for the first item. Only `stats()` has the longest
        wait and the counts of functions.

        >>> import penstock as ps
        >>> with ps.Loader(ps.from_sequence(range(6), name="web").batch(2)) as loader:
        ...     batches = list(loader)
        >>> loader.metrics()["data/items"], loader.metrics()["data/samples/web"]
        (3.0, 6.0)
        """
        return flatten_metrics(iter_metrics(self.stats()))

    def verdict(self) -> Verdict:
        """Diagnose whether the run waits for data, and suggest a remedy.

        Returns:
            Whether the run waits for data more than a tenth of its time, and the exact fraction.
            With `profile=True`, also the step that takes most of the work, and the source whose
            samples take at least half of it. `str()` gives the diagnosis in words.

        >>> import penstock as ps
        >>> ds = ps.from_sequence(range(60)).map(lambda x: sum(range(100_000 + x))).batch(4)
        >>> with ps.Loader(ds, profile=True) as loader:
        ...     batches = list(loader)
        >>> loader.verdict().step.partition(" at ")[0]
        'map(<lambda>)'
        """
        with self._locked("verdict()"):
            return self._watch.verdict()

    # ------------------------------------------------------------ closing

    def close(self) -> None:
        """Stop the workers and close open files. Closing twice does nothing."""
        self._closed, self._session.out.stop = True, 0
        if not self._released:  # a second call completes one that was interrupted
            if self._reporter is not None:
                self._reporter.close()
            self._session.close()
            for helper in (self._copies, self._executor):
                if helper is not None:
                    helper.close()
            self._released = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _batch_globally(dataset: Dataset, size: int | Schedule, world_size: int) -> Dataset:
    """Batch the dataset by global batches; check the size of the batches it has already."""
    tail, shared = tail_of(dataset.tree), shares_batches(dataset.tree)
    if not tail.batches:
        return dataset.batch(global_batch_size=size)
    if isinstance(size, Schedule) or rows_by_step(dataset.tree):
        raise ConfigError(
            "Loader(global_batch_size=...): the dataset has batches already, and one of the two is "
            "a Schedule; leave out .batch(...), or this option"
        )
    size = check_int(size, "global_batch_size={}", 1)
    rows_of_rank(size, world_size)
    rows = tail.group if shared else tail.group * world_size
    if rows != size:
        raise ConfigError(
            f"Loader(global_batch_size={size}): the batches of the dataset have {rows} rows on "
            f"{counted(world_size, 'rank')}; leave out .batch(...), or write "
            f".batch(global_batch_size={size})"
        )
    return dataset if shared else Dataset(shared_by_ranks(dataset.tree, world_size))


def _function_counts(root: Step) -> dict[str, dict[str, int]]:
    """Return the counts of the functions of a pipeline that have some, by their class."""
    called = (unwrap(fn) for step, _ in iter_steps(root) for fn in step.functions)
    functions = {id(fn): fn for fn in called}
    counts, numbers = dict[str, dict[str, int]](), Counter[str]()
    for fn in functions.values():
        if isinstance(fn, CountingFunction):
            name = type(fn).__name__
            numbers[name] += 1
            number = numbers[name]
            counts[f"{name} {number}" if number > 1 else name] = fn.stats._asdict()
    return counts


class _PassIterator(Iterator[Any]):
    """Iterator over the rest of the loader's pass; it stays exhausted after its end.

    `free` permits the fast path, which delivers buffered items without a call.
    """

    def __init__(self, loader: Loader, free: bool) -> None:
        self._loader, self._over, self.free = loader, False, free
        self._before = loader._session.ended  # pyright: ignore[reportPrivateUsage]
        self._skips_empty_rest = loader._begins_epoch_within_pass()  # pyright: ignore[reportPrivateUsage]

    def __next__(self) -> Any:
        out = self._loader._session.out  # pyright: ignore[reportPrivateUsage]
        used = out.used
        if used >= out.stop or not self.free:
            return self._next(self._loader)
        value = out.values[used]
        out.used = used + 1
        return value

    def _next(self, loader: Loader) -> Any:
        step = 0 if loader._epoch_length is None else loader.world_size  # pyright: ignore[reportPrivateUsage]
        while True:
            with loader._locked("next()"):  # pyright: ignore[reportPrivateUsage]
                session = loader._session  # pyright: ignore[reportPrivateUsage]
                out = session.out
                values, used, value = self._peek(loader)
                if not _GIL_ENABLED:
                    out.used, session.given = used + 1, session.given + step
                    return value
            # The stores follow the release of the lock: releasing is a call, and an interrupt in a
            # call after the stores would lose the item. With the GIL the stores are atomic. Another
            # thread may have refilled the buffer, so that the same offset holds another item.
            if session.out is out and out.values is values and out.used == used < out.stop:
                out.used, session.given = used + 1, session.given + step
                return value

    def _peek(self, loader: Loader) -> tuple[Sequence[Any], int, Any]:
        """Return the buffer, the offset of the next item and the item; the cursor stays."""
        if not self._over and loader._pass is not self:  # pyright: ignore[reportPrivateUsage]
            raise ConfigError(
                "next(): a later iter(loader) or lease() replaced this iterator, as a loader has "
                "one position; open two loaders for two runs at a time"
            )
        # The pass may have ended in an interrupted call of `next`.
        self._over = self._over or loader._session.ended > self._before  # pyright: ignore[reportPrivateUsage]
        if self._over or loader._full():  # pyright: ignore[reportPrivateUsage]
            self._over = True
            raise StopIteration
        try:
            return loader._filled(loader._item)  # pyright: ignore[reportPrivateUsage]
        except StopIteration:
            if loader._session.begin_next_stage():  # pyright: ignore[reportPrivateUsage]
                return self._peek(loader)
            if self._skips_empty_rest and loader._begins_epoch_within_pass():  # pyright: ignore[reportPrivateUsage]
                # The last epoch ended with the pass. An interrupt may follow any of these lines.
                self._before = loader._session.ended + 1  # pyright: ignore[reportPrivateUsage]
                loader._end()  # pyright: ignore[reportPrivateUsage]
                return self._peek(loader)
            loader._end()  # pyright: ignore[reportPrivateUsage]
            self._over = True
            raise


def _load_form(to: ArrayType, device: object, pin_memory: bool | None) -> OutputForm | None:
    """Load the output form of a framework; None leaves items as NumPy arrays."""
    check_choice(to, get_args(ArrayType), "to={}")
    if to != "numpy":
        # The integration imports the framework, so it is imported only when it is needed.
        return import_module(f".integrations.{to}_form", __package__).make_form(device, pin_memory)
    if device is None and not pin_memory:
        return None
    raise ConfigError(
        f"device={device!r}, pin_memory={pin_memory}: NumPy arrays are in plain memory of this "
        "machine; use to='torch' or 'jax'"
    )
