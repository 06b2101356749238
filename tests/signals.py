"""Interrupts for tests: at every place where CPython runs signal handlers, one after the other, or by real signals."""

from __future__ import annotations

import dis
import gc
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

# What an exception cannot leave, so that it would only be printed.
_SWALLOWED = {"__del__", "_remove", "_commit_removals", "gone", "remove", "_clean", "_on_weakref"}


def _swallows(frame: FrameType | None) -> bool:
    """An exception that is raised here would only be printed."""
    while frame is not None:
        code = frame.f_code
        if code.co_name in _SWALLOWED or code.co_filename.endswith("weakref.py"):
            return True
        frame = frame.f_back
    return False


class Interrupter:
    """Raises `KeyboardInterrupt` at the `k`-th place where CPython looks for signals: where a function begins or a
    generator goes on, behind a call of C, and behind a jump backwards. Neither a return nor a store is such a place.
    """

    def __init__(self, k: int) -> None:
        self.left, self.raised = k, False
        self._before = dict[int, str]()

    def begins(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Trace a function that is called."""
        name = frame.f_code.co_name
        if event != "call" or "importlib" in frame.f_code.co_filename:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if frame.f_back is not None and not name.startswith("__"):
            self._before[id(frame.f_back)] = "CALL of Python"  # which is no call of C
        self._before[id(frame)] = "RESUME"
        return self._goes_on

    def _goes_on(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            before = self._before.get(id(frame), "")
            self._before[id(frame)] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if before in ("RESUME", "CALL", "CALL_FUNCTION_EX", "CALL_KW") or "BACKWARD" in before:
                self._look(frame)
        elif event == "return":
            self._before.pop(id(frame), None)
        return self._goes_on

    def act(self) -> None:
        """Do what the signal handler does."""
        raise KeyboardInterrupt

    def _look(self, frame: FrameType | None) -> None:
        self.left -= 1
        if self.left > 0 or self.raised:
            return
        if _swallows(frame):
            return
        self.raised = True
        sys.settrace(None)
        self.act()


class Handler(Interrupter):
    """Calls a function in the place of a signal handler that returns, at the `k`-th place."""

    def __init__(self, k: int, handle: Callable[[], None]) -> None:
        super().__init__(k)
        self.act = handle


def interrupted(k: int, call: Callable[[], T]) -> T:
    """The result of a call, if `KeyboardInterrupt` at the `k`-th place is not raised before."""
    before = sys.gettrace()
    gc.disable()
    sys.settrace(Interrupter(k).begins)
    try:
        return call()
    finally:
        sys.settrace(before)
        gc.enable()


def handled(handler: Handler, call: Callable[[], T]) -> T:
    """The result of a call during which a handler may run; the handler counts places over several calls."""
    before = sys.gettrace()
    if not handler.raised:
        sys.settrace(handler.begins)
    try:
        return call()
    finally:
        sys.settrace(before)


@contextmanager
def alarms(seed: int, longest: float) -> Iterator[Callable[[Callable[[], T]], T]]:
    """A function that calls another, and has a real signal raise `KeyboardInterrupt` in it at a random moment."""
    dice, armed = random.Random(seed), False

    def hear(*_: Any) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    def run(call: Callable[[], T]) -> T:
        nonlocal armed
        signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-5, longest))
        try:
            # Disarmed by the frame that raises or returns, or else a result could be lost behind its return.
            armed = True
            found = call()
            armed = False
            return found
        finally:
            armed = False

    printed = sys.unraisablehook

    def print_others(unraisable: Any) -> None:
        # Python only prints what is raised in callbacks of weak references and of the collector.
        if unraisable.exc_type is not KeyboardInterrupt:
            printed(unraisable)

    old, sys.unraisablehook = signal.signal(signal.SIGALRM, hear), print_others
    try:
        yield run
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
        sys.unraisablehook = printed


def children() -> list[int]:
    """The child processes of this one, dead ones that nobody waited for too."""
    found = list[int]()
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                        found.append(int(name))
            except (OSError, IndexError):
                pass
    return found
