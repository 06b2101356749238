"""The verdict on a run: bound by its data or not, by which step and source, and what would help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..streams.profiler import READ_STEP, SEVERAL_SOURCES, WorkTime

BOUND_SHARE = 0.1
"""A run that waits more of its time for data is bound by it."""
# what uses less of a core waits for something; on a busy machine, work uses less than all of one
_IDLE = 0.25
_SHOWN = 3  # steps and sources that are named
_LEAST = 0.05  # what takes less of the work is not named


@dataclass(frozen=True)
class Verdict:
    """The verdict on a run, and its reasons; `str()` returns the text.

    Args:
        bound: whether the run waits for data more than a tenth of its time.
        waits: the part of its time that it waits.
        step: what most of the work is, as it was written (`"read"` for reading a source); None
            without a measurement.
        source: whose samples take at least half of that; None where it is spread.
        text: all of it in words.
    """

    bound: bool
    waits: float
    step: str | None
    source: str | None
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class RunTimes:
    """The measurements for a verdict: executor, seconds and stalls, and times by step (None: not
    measured).

    `spent` is the processor time of functions on threads.
    """

    executor: str
    workers: int
    cores: int
    waited: float
    elapsed: float
    stalls: int
    longest: float
    spent: float
    notes: Sequence[WorkTime] | None

    @property
    def waits(self) -> float:
        """The share of the time that the run waited for items."""
        return self.waited / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def is_lock_bound(self) -> bool:
        """True if threads take turns: a run waits most of the time, and they use one core of
        several.
        """
        several = self.executor == "threads" and min(self.workers, self.cores) > 1
        return several and self.waits > 0.5 and 0.8 < self.spent / self.elapsed < 1.15


def describe_lock_contention(facts: RunTimes) -> str:
    """Describe that threads take turns, and a remedy."""
    return (
        f"the functions of {facts.workers} threads use {facts.spent / facts.elapsed:.1f} of "
        f"{facts.cores} cores, because they hold the interpreter lock (GIL), so only one runs at "
        f"a time; Loader(executor='processes') may be up to {min(facts.workers, facts.cores)} "
        "times as fast"
    )


def make_verdict(facts: RunTimes) -> Verdict:
    """Return the verdict on a run."""
    if facts.elapsed <= 0:
        return Verdict(False, 0.0, None, None, "Nothing can be said before the second item.")
    bound, said = facts.waits > BOUND_SHARE, list[str]()
    waits = f"it waits {facts.waits:.0%} of its time for data"
    if facts.stalls:
        waits += f" ({facts.stalls:,} times, at most {facts.longest:.3g} s)"
    said.append(f"The run is {'' if bound else 'not '}bound by its data: {waits}.")
    step, source, where = _most(facts.notes or ())
    if facts.notes is None:
        said.append("Loader(profile=True) says where the time goes.")
    elif step:
        said.append(f"Of the work {where}.")
    if bound and (advice := _advice(facts, step)):
        said.append(advice)
    return Verdict(bound, facts.waits, step, source, " ".join(said))


def _most(notes: Sequence[WorkTime]) -> tuple[str | None, str | None, str]:
    """Return the slowest step, the source that takes at least half of it, and a summary of the
    first few steps.
    """
    total, steps = sum(note.seconds for note in notes), dict[str, float]()
    if not total:
        return None, None, ""
    for note in notes:
        steps[note.step] = steps.get(note.step, 0.0) + note.seconds
    first = sorted(steps, key=lambda step: -steps[step])
    words = [_words(step, notes, total) for step in first[:_SHOWN] if steps[step] >= _LEAST * total]
    source = next(
        (n.source for n in notes if n.step == first[0] and n.seconds >= 0.5 * steps[first[0]]),
        SEVERAL_SOURCES,
    )
    return first[0], source or None, ", ".join(words)


def _words(step: str, notes: Sequence[WorkTime], total: float) -> str:
    """Describe the share of a step in the work, by source."""
    mine = sorted((note for note in notes if note.step == step), key=lambda note: -note.seconds)
    name = "reading" if step == READ_STEP else step
    took = sum(note.seconds for note in mine)
    share = f"{took / total:.0%} is {name}"
    mine = [note for note in mine if note.seconds >= _LEAST * took]
    if len(mine) == 1:
        one = mine[0].source
        return (
            share
            if one == SEVERAL_SOURCES
            else f"{share} {one!r}"
            if step == READ_STEP
            else f"{share} of {one!r}"
        )
    each = [f"{note.source or 'several'!r} {note.seconds / total:.0%}" for note in mine[:_SHOWN]]
    return f"{share} ({', '.join(each)}{', ...' if len(mine) > _SHOWN else ''})"


def _advice(facts: RunTimes, step: str | None) -> str:
    """Return advice for a run that waits."""
    if facts.is_lock_bound:
        return f"{describe_lock_contention(facts).capitalize()}."
    most = [note for note in facts.notes or () if note.step == step]
    idle = bool(most) and sum(note.processor for note in most) < _IDLE * sum(
        note.seconds for note in most
    )
    if not facts.workers:
        what = (
            "workers=8 would wait for several at once"
            if idle
            else f"workers={facts.cores} would work ahead"
        )
        return f"The loader does no work ahead while the step runs: {what}."
    if idle:
        enough = "" if facts.executor == "threads" else ", and threads are enough"
        return f"Most of that is waiting, not computing: more than {facts.workers} workers would help{enough}."
    if facts.workers < facts.cores:
        return f"{facts.workers} of {facts.cores} cores have a worker: more would help."
    return "Every core has a worker: only less work for each sample would help, such as preparing it beforehand."
