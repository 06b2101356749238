"""The loader: a dataset on its way to the training loop, on one of many ranks, with workers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import numpy as np

from .dataset import Dataset
from .engine.base.cursors import as_int
from .engine.base.hints import chosen, guided, no_dataset
from .engine.base.ints import FAR, whole
from .engine.base.machine import lock, one_thread_at_a_time, process
from .engine.base.seams import world
from .engine.base.sized import where_known
from .engine.graph.going import going_on
from .engine.graph.indexed import require_indexed, why_not
from .engine.graph.shown import Shown, Shows, attempt, counted
from .engine.graph.tail import rows_of_rank, shared_by_ranks, shares_batches, tail_of
from .engine.plan.steps import rows_of, rows_op
from .engine.runtime.delivery import Delivery
from .engine.runtime.executors import EXECUTORS, ExecutorName, hired
from .engine.runtime.executors.threads import Threads
from .engine.runtime.forms import FormName, form_of
from .engine.runtime.forms.copies import Copies
from .engine.runtime.iterator import refuse_copies
from .engine.runtime.metrics import flat, metrics_of
from .engine.runtime.session import Session
from .engine.runtime.setting import Setting, place_of
from .engine.runtime.settling import Settlement
from .engine.runtime.show import shown_run
from .engine.runtime.states import OnMismatch
from .engine.runtime.taking import TakenItem, Taking
from .engine.runtime.verdict import Verdict
from .engine.runtime.watch import Watch
from .engine.streams.balance import Balance, Cost, cost_of
from .engine.streams.deal import Remainder
from .engine.streams.journal import OnError, journal_to_json
from .errors import ConfigError
from .schedule import Schedule
from .types import Flags, Json

T = TypeVar("T")

_GIL = one_thread_at_a_time()


@guided
class Loader(Shows):
    """Gives what `iter(ds)` gives, computed ahead by workers, shared out between ranks, and
    resumable anywhere.

    `for batch in loader` runs from where the loader stands to the end of the pass; the next `for`
    is the next pass, in a new order.

    Args:
        dataset: what to load.
        workers: how many compute ahead; results come in order, so their number never changes an
            item or a state. 0 computes inline.
        executor: who the workers are: "threads"; "processes", for functions that hold the
            interpreter (pure Python); or "inline" for nobody.
        prefetch: how many pieces of work may be under way; two for each worker when not given.
        prefetch_bytes: how many bytes may be made ahead, about, whoever computes; a sample that is
            larger passes alone. An eighth of the machine's memory, shared by its ranks, when not
            given.
        rank: which share is ours. Found through torch.distributed, jax.distributed or the launcher
            (torchrun, MPI, srun) when not given; peers of one data-parallel group are given the
            same.
        world_size: how many shares there are (`WORLD_SIZE`).
        global_batch_size: the rows that all ranks take together in a step. A dataset without
            batches is batched by `ds.batch(global_batch_size=)`, so that each rank makes batches of
            its share; one with batches must fit.
        mesh: in the place of both, the data-parallel group: a torch `DeviceMesh` (of several
            dimensions, taken in their order) or `ProcessGroup`, of which this process is a member.
        lanes: for pipelines with filter, flat_map, pack and the like: how many independent lanes
            the run has. Fixed for
            a run: what a loaded state says, else by default as many as there are ranks, so that one
                rank keeps the
            order of the source. Ranks that do not divide the lanes each read everything; for a run
            that is to grow give a multiple of every world size that it may have.
        remainder: what becomes of the rows at the end of a pass that are no whole step of several
            ranks. They are left out ("drop"); filled up from the beginning of the pass ("pad"),
            with `valid` False for the rows that fill; or shared out as they are ("keep"), so that
            ranks may give different numbers of items.
        balance: what the rows of a global step are shared out by, as many for each rank: "tokens",
            "squares" of the tokens of every document (attention), or whole numbers that a function
            gives for an array of lengths. From lengths alone, so lengths must be known; the rows of
            a step are those of any other run.
        epoch_length: a `for` ends when all ranks together gave so many items (as many on each,
            rounded up), and the next one goes on from there. For datasets that never end, and for
            lanes, which then go on over the end of a pass.
        on_error: "raise"; "quarantine" puts another sample of the same source in the place of a bad
            one, and keeps a journal in the state.
        max_errors: beyond so many bad samples "quarantine" raises.
        timeout: seconds that a worker process may take over one piece of work before another takes
            its place; over one sample, when it was tried again. What a thread takes longer over is
            named in the log; for that the work is measured, as with `profile`. None waits for ever.
        profile: whether to measure what every step takes for every source, for `stats()` and
            `verdict()`.
        to: what arrays come as: "numpy", or tensors for "torch" or "jax", over the same memory
            where that can be.
        device: what the framework calls a device ("cuda:0"), where items are copied ahead, while a
            step works on those before; no state knows of copies. For JAX also a `NamedSharding` of
            global arrays, which says the rank too.
        pin_memory: whether tensors lie in pinned memory, and copies to a device come from there.
            For torch; where `device` is a CUDA GPU when not given.

    Raises:
        ConfigError: for options that cannot be, and for ranks that would end at different steps.

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
        global_batch_size: int | None = None,
        mesh: object = None,
        lanes: int | None = None,
        remainder: Remainder = "drop",
        balance: Balance | Cost | None = None,
        epoch_length: int | None = None,
        on_error: OnError = "raise",
        max_errors: int = 100,
        timeout: float | None = None,
        profile: bool = False,
        to: FormName = "numpy",
        device: object = None,
        pin_memory: bool | None = None,
    ) -> None:
        if not isinstance(dataset, Dataset):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise no_dataset("Loader", dataset)
        workers = whole(workers, "workers={}", 0, FAR)
        chosen(executor, EXECUTORS, "executor={}")
        prefetch = None if prefetch is None else whole(prefetch, "prefetch={}", 1)
        epoch_length = None if epoch_length is None else whole(epoch_length, "epoch_length={}", 1)
        self._placed = rank is not None
        timeout = None if timeout is None else float(timeout)
        form = form_of(to, device, pin_memory)
        rank, world_size = place_of(rank, world_size, mesh, form)
        self._workers = 0 if executor == "inline" else workers
        window = (prefetch or 2 * self._workers) if self._workers else 0
        self._epoch_length, self._remainder = epoch_length, remainder
        if global_batch_size is not None:
            dataset = _in_global_batches(
                dataset, whole(global_batch_size, "global_batch_size={}", 1), world_size
            )
        self._shares_batches = shares_batches(dataset.flow)
        flow = going_on(dataset.flow, world_size, remainder, epoch_length)
        bounds = max_errors, window, None, prefetch_bytes
        setting = Setting(
            rank, world_size, lanes, on_error, *bounds, remainder, form, cost=cost_of(balance)
        )
        self._executor = hired(executor, self._workers, timeout, prefetch_bytes)
        timed = profile or (
            timeout is not None and executor == "threads"
        )  # which says where a thread hangs
        self._closed = self._gone = False
        self._watch = Watch(executor, self._workers, self._executor, timed)
        self._pass: _Pass | None = None
        self._told, self._form = False, form
        self._copies = Copies(form.copy) if form is not None and form.copies else None
        self._taking: Taking | None = None
        self._lock, self._process = lock(), process()
        try:
            compiled = dataset.compiled.of(flow).timed(self._watch.timing)
            self._session = Session(compiled, setting, self._executor)
        except BaseException:
            for helper in (self._copies, self._executor):
                if helper is not None:
                    helper.close()
            raise

    # ------------------------------------------------------------ a pass

    def __iter__(self) -> Iterator[Any]:
        if not self._placed or process() != self._process:
            refuse_copies("iter(loader)")
        if self._session.spread.whole or self._session.ledger.used:
            raise ConfigError(
                "items of this run are taken, and not settled by a `for`: go on with loader.take(k)"
            )
        if self._pass is not None:
            self._pass.free = False
        self._session.warn_of_unidentified()
        self._session.identify_objects()
        self._session.warn_of_lanes()
        asked = (
            self._epoch_length is not None
            or self._session.spread.remainder == "pad"
            or self._copies is not None
        )
        self._pass = _Pass(self, not asked and _GIL)
        return self._pass

    @where_known
    def __len__(self) -> int:
        """How many items a `for` over a whole pass gives on this rank. TypeError where that is not
        known, or endless.

        >>> import penstock as ps
        >>> len(ps.Loader(ps.from_sequence(range(10)).batch(4), rank=0, world_size=2))
        1
        """
        session, most = self._session, self._epoch_length
        steps = None if most is None else -(-most // session.setting.world_size)
        if (rows := session.rows()) is not None:
            items = session.spread.items(tail_of(session.base).items, rows)
            return items if steps is None else min(steps, items)
        if steps is not None:
            return steps
        if (reason := why_not(session.base)) is not None:
            raise TypeError(
                f"the length of a pass is not known before it is run: {reason} (DataLoader takes "
                "penstock.integrations.torch.IterableDataset(ds))"
            )
        raise TypeError("the dataset never ends: Loader(epoch_length=n) gives its passes a length")

    def __bool__(self) -> bool:
        return True

    def _shown(self) -> Shown:
        setting = self._session.setting
        notes = [f"rank {setting.rank} of {setting.world_size}", counted(self._workers, "worker")]
        items = attempt(lambda: len(self), None)
        return shown_run("Loader", self._session, items, [*notes, "closed" if self._closed else ""])

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigError("the loader is closed; make a new one and load the state into it")
        if (self._executor or self._copies) and process() != self._process:
            raise ConfigError(
                "the loader was opened before this process was forked, and its workers are not "
                "here: open one in each "
                "process"
            )

    def _filled(self, item: Callable[[Delivery], Any]) -> Any:
        """What is made of an item that is at hand. How long that was waited for is noted."""
        self._check_open()
        out, began = self._session.out, world.sched.now()
        try:
            out.fill()
            value = item(out)
        except (RuntimeError, CancelledError):
            self._check_open()  # another thread, or a signal handler, closed it meanwhile
            raise
        self._watch.took(began, world.sched.now())
        return value

    def _item(self, out: Delivery) -> tuple[Sequence[Any], int, Any]:
        """Return the next item in the buffer, with the buffer and its place there."""
        if self._copies is None:
            values = out.values
            place = min(
                out.used, len(values) - 1
            )  # another thread may have taken the last one meanwhile
            return values, place, self._at(out, place)
        value = self._copies.take(out, partial(self._at, out))
        return out.values, out.used, value  # copies fetch items ahead, which moves the places

    def _at(self, out: Delivery, place: int) -> Any:
        """An item that is at hand; of a mapping with what is padding in it, where there may be
        some."""
        session = self._session
        batch = out.values[place]
        if session.spread.remainder != "pad" or not isinstance(batch, Mapping):
            return batch
        if "valid" in batch:
            raise ConfigError(
                "remainder='pad' notes in 'valid' which rows of a batch are padding, and the batch "
                "has a 'valid' of "
                "its own: rename that with .map(...)"
            )
        valid: Any = session.spread.valid(as_int(out.before(place)), session.epoch, session.rows())
        if self._form is not None:
            (valid,) = self._form.values([valid])
        return {**cast("Mapping[str, Any]", batch), "valid": valid}

    def _locked(self, call: str) -> AbstractContextManager[Any]:
        """Return the lock of the run; refuse functions on its worker threads, for which the holder
        may wait."""
        if isinstance(self._executor, Threads) and self._executor.computes_here():
            raise ConfigError(
                f"{call} by a function of the pipeline, on a thread that computes for the same "
                "loader: next() may wait "
                "for that thread; call it between two items, or from a thread of your own"
            )
        return self._lock

    def _alone(self, change: Callable[[], T]) -> T:
        """Make a change while no thread takes an item, of those at hand neither."""
        with self._locked("a change of the position or the weights"):
            out = self._session.out
            before, out.stop = out.stop, 0
            try:
                return change()
            finally:
                # 0 stays 0: of a closed loader, or in a forked process, nothing is at hand
                out.stop = before

    def _full(self) -> bool:
        """Whether as many items were given as make an epoch; they are then counted anew."""
        if self._epoch_length is None or self._session.given < self._epoch_length:
            return False
        self._session.given = 0
        return True

    def _end(self) -> None:
        self._require_step()
        self._tell_left_out()
        self._session.next_pass()

    def _require_step(self) -> None:
        """Raise `ConfigError` if the whole pass that ended has fewer rows than a batch of all
        ranks; it is one rank."""
        session, rows = self._session, self._session.rows()
        if rows is None or self._remainder != "drop" or not self._shares_batches:
            return
        if rows < session.spread.size and session.row == session.epoch * rows:
            raise session.spread.no_step(rows)

    def _tell_left_out(self) -> None:
        session, spread = self._session, self._session.spread
        rows = session.rows()
        if self._told or rows is None or self._remainder != "drop" or spread.rank:
            return
        left = rows % spread.size
        if spread.world_size == 1 and not self._shares_batches:
            return  # who is alone has the last, short batch too
        if left:
            self._told = True
            logging.getLogger("penstock").warning(
                "every pass leaves out its last %d of %d rows, which fill no step of %d ranks with "
                "%d rows each; "
                "Loader(remainder='pad') or 'keep' gives them "
                "too", left, rows, spread.world_size, spread.group,
            )  # fmt: skip

    # ------------------------------------------------------------ where it stands, and going there

    @property
    def rank(self) -> int:
        """Which of the ranks' shares it gives."""
        return self._session.setting.rank

    @property
    def world_size(self) -> int:
        """How many shares there are."""
        return self._session.setting.world_size

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands, after the last item it gave: plain JSON, no data. `ps.save`
        writes it to a file.

        For an indexed pipeline it is the same on every rank. With lanes each rank has the cursors
            of its own: keep
        all, and load the list.
        """
        with self._locked("state_dict()"):
            return self._session.state()

    def load_state_dict(
        self,
        state: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        on_mismatch: OnMismatch = "error",
    ) -> None:
        """Go where a state (or the states of all ranks) says, whatever the ranks and workers were
        then.

        A state of another pipeline is refused with the differences; `on_mismatch="adopt"` goes on
        with this pipeline all the same, every input that both have where it was. If anything is
        wrong the loader stays where it is.

        Args:
            state: what `state_dict()` returned, or a list of those of all ranks.
            on_mismatch: "error", or "adopt".

        Raises:
            StateError: for a state that is damaged, or of another pipeline, data or lanes.
        """

        def change() -> None:
            self._session.load(state, on_mismatch, takes=True)
            self._taking = None
            if self._session.ledger.lost:
                self._taken()  # all ranks make up for it here, where all know of it

        self._alone(change)

    def seek(self, step: int) -> None:
        """Go to a global step of the run, counted over all passes: its item on this rank comes
        next. Takes no reading, and is the same call on every rank; changes made to the run hold
        where they held.

        Steps that are jumped over count as not given, and those that the run goes back over as
        given twice (`plan.after(state).seen()`). Where the model goes back too, load a state that
        was saved there.

        An `epoch_length` is counted anew from there. `IndexedError` where steps depend on the data
        (filter and the like): only a state that was saved there leads back.

        Args:
            step: of the run, from 0 on, on all ranks alike.

        Raises:
            ConfigError: for what is no whole number of at least 0.
            IndexedError: where steps cannot be counted.

        >>> import penstock as ps
        >>> loader = ps.Loader(ps.from_sequence(range(10)).batch(2, collate=list))
        >>> loader.seek(3)
        >>> list(loader)
        [[6, 7], [8, 9]]
        """
        self._seek(step)

    def _seek(self, step: int, counted: bool = True) -> None:
        """Go to a step. Without `counted` the log does not tell of it: for random access, where no
        state is saved."""
        step = whole(step, "seek({})", 0)

        def change() -> None:
            session = self._session
            if session.ledger.used:
                raise ConfigError(
                    f"seek({step}): items were taken, and what is in flight would be lost; make a "
                    "new loader"
                )
            require_indexed(session.base, f"seek({step})", "load a state that was saved there")
            rows = rows_of(rows_op(session.compiled.op), session.records, step)
            session.go(step, rows.start, counted)

        self._alone(change)

    # ------------------------------------------------------------ items that finish in another
    # order

    def take(self, k: int) -> list[TakenItem]:
        """The next `k` items of this rank, for who finishes them out of order: each with its
        address in the plan.
        The state then stands below what nobody settled: a resume gives exactly that again, in
            order, and then goes on.

        Items are those of the plan (`plan.at(uid)`), dealt to the ranks whole; ranks take as fast
        as they like. What is to be given again comes first. The list is shorter at the end of a
        pass and before an item that fails, and empty
        where the pass has no more: the call after that begins the next one. What a `for` gave
            before counts as settled.

        Args:
            k: how many.

        Raises:
            ConfigError: with `epoch_length`, `remainder="pad"` and `global_batch_size`, which are
                for a `for`, and with copies to a device.

        >>> import penstock as ps
        >>> ds = ps.from_sequence("abcde")
        >>> loader = ps.Loader(ds)
        >>> [item.value for item in loader.take(3)]
        ['a', 'b', 'c']
        >>> loader.settle("0:1", "trained")
        >>> again = ps.Loader(ds)
        >>> again.load_state_dict(loader.state_dict())
        >>> [item.value for item in again.take(4)]
        ['a', 'c', 'd', 'e']
        """
        with self._locked("take()"):
            return self._taken().take(whole(k, "take({})", 1))

    def settle(self, uid: str, settlement: Settlement) -> None:
        """What became of an item that was taken. Settled once, it is never given again; but
        "requeue" says that it
        is to be: by the next `take`, before anything new, under the same uid.

        Args:
            uid: of the item, as `take` gave it.
            settlement: "trained", "filtered", "failed", or "requeue".

        Raises:
            ConfigError: for a uid that is not in flight on this rank: settled before, or never
                taken.

        >>> import penstock as ps
        >>> loader = ps.Loader(ps.from_sequence("abc"))
        >>> for item in loader.take(2):
        ...     loader.settle(item.uid, "trained" if item.value == "a" else "requeue")
        >>> loader.take(2)
        [TakenItem(uid='0:1', value='b'), TakenItem(uid='0:2', value='c')]
        """
        with self._locked("settle()"):
            self._taken().settle(uid, settlement)

    def settled_log(self) -> list[dict[str, Json]]:
        """Of `mix(count="settled")`: the draws that were put in for what was lost, since this was
        asked last. Plain records, to be appended to a file before each state is saved;
        `ds.plan.replay(records)` is the run again.

        Raises:
            ConfigError: of a run that does not count what is settled.

        >>> import penstock as ps
        >>> ds = ps.mix({"a": ps.from_sequence("aaa"), "b": ps.from_sequence("bbb")}, count="settled")
        >>> loader = ps.Loader(ds)
        >>> [item.value for item in loader.take(4)]
        ['a', 'b', 'a', 'b']
        >>> loader.settle("0:0", "filtered")
        >>> loader.settled_log(), [item.value for item in loader.take(3)]
        ([{'from': 0}, {'position': 4, 'source': 'a'}], ['a', 'b', 'a'])
        """
        with self._locked("settled_log()"):
            shares = self._taken().shares("settled_log()")
            found, shares.log = shares.log, []
            return found

    def settled_report(self) -> dict[str, Json]:
        """Of `mix(count="settled")` on several ranks: where this rank stands, what is open and what
        was lost, as plain JSON for `make_up` on every rank.

        Raises:
            ConfigError: of a run that does not count what is settled.

        >>> import penstock as ps
        >>> ds = ps.mix({"a": ps.from_sequence("aaa"), "b": ps.from_sequence("bbb")}, count="settled")
        >>> loader = ps.Loader(ds, rank=0, world_size=2)
        >>> uids = [item.uid for item in loader.take(2)]
        >>> loader.settle(uids[0], "filtered")
        >>> report = loader.settled_report()
        >>> report["of"], len(report["open"]), len(report["lost"])
        ([0, 2], 1, 1)
        """
        with self._locked("settled_report()"):
            return self._taken().shares("settled_report()").report()

    def make_up(self, reports: Sequence[Mapping[str, Json]]) -> None:
        """Of `mix(count="settled")` on several ranks: put draws in for what all of them lost.
        Called on every rank with the same reports, those of all ranks, before anything else is
        taken or settled there; say after each step, with `torch.distributed.all_gather_object`.
        Ranks then go on from where the furthest stands, and share what others had left out.

        On one rank what is lost is made up for at once, and this does nothing.

        Args:
            reports: what `settled_report()` gave on every rank.

        Raises:
            ConfigError: for reports that are not those of all ranks, and where this rank went on
                since it reported.
            StateError: for reports of ranks that made up for other draws before.

        >>> import penstock as ps
        >>> ds = ps.mix({"a": ps.from_sequence("aaa"), "b": ps.from_sequence("bbb")}, count="settled")
        >>> pair = [ps.Loader(ds, rank=rank, world_size=2) for rank in range(2)]
        >>> for item in pair[0].take(2):
        ...     pair[0].settle(item.uid, "filtered")
        >>> reports = [loader.settled_report() for loader in pair]
        >>> for loader in pair:
        ...     loader.make_up(reports)
        >>> pair[0].settled_log() == pair[1].settled_log()
        True
        """
        self._alone(lambda: self._taken().shares("make_up()").make_up(reports))

    def _taken(self) -> Taking:
        """The run as one that is taken from."""
        self._check_open()
        if self._taking is None:
            if self._session.setting.cost is not None:
                raise ConfigError("take() gives items to whoever is free; balance= is for `for`")
            if self._epoch_length is not None or self._session.spread.remainder == "pad":
                raise ConfigError(
                    "take() gives every item of a pass once; epoch_length and remainder='pad' are "
                    "for `for`"
                )
            if self._shares_batches:
                raise ConfigError(
                    "take() gives whole items to whichever rank is free, and global_batch_size "
                    "shares each out to all "
                    "ranks: leave it out, or use batch(n)"
                )
            if self._copies is not None:
                raise ConfigError(
                    "take() gives items where they lie: leave out device= and pin_memory=, and "
                    "to='jax'"
                )
            if self._pass is not None:
                self._pass.free, self._pass = False, None
            self._session.warn_of_unidentified()
            self._session.identify_objects()
            self._taking = Taking(self._session, lambda: self._filled(lambda _: None))
        return self._taking

    # ------------------------------------------------------------ the mixture, changed

    def set_weights(self, weights: Mapping[str, float] | Schedule, at: int | None = None) -> int:
        """Mix by other weights (a mapping or a `Schedule`) from position `at` of the mixture on;
        returns the position.

        The default is the first sample that was not drawn yet, which is the same on every rank at
        the same step. Passes of a mixture that ends are counted end to end; later ones have the
        weights from their beginning. The change is kept in the state.

        Args:
            weights: name -> weight, relative; or a `Schedule`. All sources of one mixture are
                named.
            at: a position of the mixture; without it the first that was not drawn.

        Raises:
            ConfigError: for names that are in no mixture, positions that are past, and where the
                pass would end so soon that rows of whole documents that were given already would be
                packed again.
        """
        return self._alone(lambda: self._session.set_weights(weights, at))

    # ------------------------------------------------------------ what was given, and how it went

    def keys(self) -> list[tuple[str, int, int]]:
        """Source, epoch and index of every sample in the last item, in order: what a batch or
        packed row is made of. Of items that were taken `plan.at(uid)` tells them.
        """
        if self._session.ledger.used:
            raise ConfigError(
                "keys() are those of the last item of a `for`; of one that was taken ask "
                "plan.at(uid)"
            )
        return self._session.out.keys()

    @property
    def valid(self) -> Flags:
        """Which rows of the last item are no padding: bool, all True but at the end of a pass with
        `remainder="pad"`.

        >>> import penstock as ps
        >>> loader = ps.Loader(ps.from_sequence(range(3)).batch(2), remainder="pad")
        >>> [(batch.tolist(), loader.valid.tolist()) for batch in loader]
        [([0, 1], [True, True]), ([2, 0], [True, False])]
        """
        session, lane = self._session, self._session.out
        if not len(found := lane.rows()):
            return np.zeros(0, np.bool_)
        if session.spread.remainder == "pad":
            return session.spread.valid(as_int(lane.began()), session.epoch, session.rows())
        for _ in tail_of(session.base).batches:
            found = found.ungrouped()
        return np.ones(len(found), np.bool_)

    @property
    def journal(self) -> list[dict[str, Any]]:
        """The samples that failed so far: source, epoch, index, error, and the index used in their
        place."""
        return journal_to_json(self._session.journal.entries)

    @property
    def notes(self) -> list[str]:
        """What there was to be told about the state that was loaded last: data moved, functions
        changed."""
        return list(self._session.notes)

    def stats(self) -> dict[str, Any]:
        """What was given out since the loader was opened (items, samples by source, bytes, errors),
        how long and how often there was nothing to take, what is under way, memory by process, and
        `time` by step and source if it measures (`profile=True`). See `docs/observe.md`.
        """
        with self._locked("stats()"):
            return self._watch.stats(self._session)

    def metrics(self) -> dict[str, float]:
        """The figures of `stats()` as one flat mapping of numbers, as TensorBoard and W&B take
        them.

        >>> import penstock as ps
        >>> with ps.Loader(ps.from_sequence(range(6), name="web").batch(2)) as loader:
        ...     batches = list(loader)
        >>> loader.metrics()["data/items"], loader.metrics()["data/samples/web"]
        (3.0, 6.0)
        """
        return flat(metrics_of(self.stats()))

    def verdict(self) -> Verdict:
        """Whether the run waits for its data, for which step of which source (`profile=True`), and
        what would help.

        >>> import penstock as ps
        >>> ds = ps.from_sequence(range(60)).map(lambda x: sum(range(100_000 + x))).batch(4)
        >>> with ps.Loader(ds, profile=True) as loader:
        ...     batches = list(loader)
        >>> loader.verdict().step.partition(" at ")[0]
        'map(<lambda>)'
        """
        with self._locked("verdict()"):
            return self._watch.verdict()

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """Stop the workers and let go of open files. Closing twice does nothing."""
        self._closed, self._session.out.stop = True, 0
        if not self._gone:  # closing that was interrupted goes on
            self._session.close()
            for helper in (self._copies, self._executor):
                if helper is not None:
                    helper.close()
            self._gone = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _in_global_batches(dataset: Dataset, size: int, world_size: int) -> Dataset:
    """The dataset in batches of all ranks; one that has batches, if they are these."""
    tail, shared = tail_of(dataset.flow), shares_batches(dataset.flow)
    if not tail.batches:
        return dataset.batch(global_batch_size=size)
    rows_of_rank(size, world_size)
    rows = tail.group if shared else tail.group * world_size
    if rows != size:
        raise ConfigError(
            f"Loader(global_batch_size={size}): the batches of the dataset are {rows} rows on "
            f"{world_size} ranks; "
            f"leave out .batch(...), or write .batch(global_batch_size={size})"
        )
    return dataset if shared else Dataset(shared_by_ranks(dataset.flow, world_size))


class _Pass(Iterator[Any]):
    """What is left of the loader's pass; ended for good at its end. `free` says that items at hand
    may be given as they are.
    """

    def __init__(self, loader: Loader, free: bool) -> None:
        self._loader, self._over, self.free = loader, False, free
        self._before = loader._session.ended  # pyright: ignore[reportPrivateUsage]

    def __next__(self) -> Any:
        out = self._loader._session.out  # pyright: ignore[reportPrivateUsage]
        used = out.used
        if used >= out.stop or not self.free:
            return self._one(self._loader)
        value = out.values[used]
        out.used = used + 1
        return value

    def _one(self, loader: Loader) -> Any:
        more = 0 if loader._epoch_length is None else loader.world_size  # pyright: ignore[reportPrivateUsage]
        while True:
            with loader._locked("next()"):  # pyright: ignore[reportPrivateUsage]
                session = loader._session  # pyright: ignore[reportPrivateUsage]
                out = session.out
                values, used, value = self._made(loader)
                if not _GIL:
                    out.used, session.given = used + 1, session.given + more
                    return value
            # The lock is open again, as what closes and opens it are calls, and an interrupt in a
            # call that stands behind the stores would lose the item. They are atomic, for other
            # threads too. Another thread may have filled the buffer again and be at the same place
            # in it, which holds another item.
            if session.out is out and out.values is values and out.used == used < out.stop:
                out.used, session.given = used + 1, session.given + more
                return value

    def _made(self, loader: Loader) -> tuple[Sequence[Any], int, Any]:
        """The buffer, and the place of the next item and the item; it counts as given when the
        cursor moves."""
        if not self._over and loader._pass is not self:  # pyright: ignore[reportPrivateUsage]
            raise ConfigError(
                "a later iter(loader) or take() took over from this one: a loader has one "
                "position; for two "
                "runs at a time make two loaders"
            )
        # A pass may have ended in a call of `next` that was interrupted.
        self._over = self._over or loader._session.ended > self._before  # pyright: ignore[reportPrivateUsage]
        if self._over or loader._full():  # pyright: ignore[reportPrivateUsage]
            self._over = True
            raise StopIteration
        try:
            return loader._filled(loader._item)  # pyright: ignore[reportPrivateUsage]
        except StopIteration:
            loader._end()  # pyright: ignore[reportPrivateUsage]
            self._over = True
            raise
