"""Between a process and its workers: messages over a socket, and memory that both see for what is
large.

Values are pickled with their buffers apart (PEP 574): arrays, tensors on the CPU and Arrow columns
are copied once, by the worker, into memory that it shares, and come up here as views of it. That
memory has no name, so none is left behind when a process is killed.
"""

from __future__ import annotations

import copyreg
import io
import mmap
import os
import pickle
import socket
import struct
import sys
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from ....errors import ConfigError, install_command
from ...streams.step import Failed

INLINE = 1 << 14
"""What is smaller goes over the socket; arrays smaller than a 32nd of that are no buffers of their
own."""

_FRAME = struct.Struct("<QB")
_AT_ONCE = 1 << 18
_LINE = 64  # buffers begin at multiples of it


class Descriptor:
    """A file descriptor that came over a wire; it is closed when nobody holds it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def __del__(self) -> None:
        os.close(self._fd)


class Wire:
    """One end of a socket: whole messages, each with at most one file descriptor."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._in, self._fds = bytearray(), deque[Descriptor]()
        self._out = deque[tuple[memoryview, int | None]]()

    def fileno(self) -> int:
        return self.end.fileno()

    def put(self, message: Any, fd: int | None = None) -> None:
        """Have a message sent, as soon as the other end takes it. The descriptor is closed then."""
        body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        frame = _FRAME.pack(len(body), fd is not None) + body
        self._out.append((memoryview(frame), fd))

    @property
    def waiting(self) -> bool:
        """Whether something is still to be sent."""
        return bool(self._out)

    def send(self) -> None:
        """Send what the other end takes now (all, on a socket that blocks)."""
        while self._out:
            frame, fd = self._out[0]
            rights = (
                [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", fd))]
            )
            try:
                sent = self.end.sendmsg([frame], rights)
            except BlockingIOError:
                return
            if fd is not None:
                os.close(fd)
            if sent == len(frame):
                self._out.popleft()
            else:
                self._out[0] = frame[sent:], None

    def read(self) -> bool:
        """Take what is there; False where the other end is gone."""
        try:
            found, rights, *_ = self.end.recvmsg(_AT_ONCE, socket.CMSG_LEN(4 * 64))
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        for level, kind, data in rights:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._fds.extend(
                    Descriptor(fd) for (fd,) in struct.iter_unpack("i", data[: len(data) // 4 * 4])
                )
        self._in += found
        return bool(found)

    def messages(self) -> list[tuple[Any, Descriptor | None]]:
        """The whole messages that were taken, with their descriptors."""
        found, at = list[tuple[Any, "Descriptor | None"]](), 0
        while len(self._in) - at >= _FRAME.size:
            length, has = _FRAME.unpack_from(self._in, at)
            stop = at + _FRAME.size + length
            if len(self._in) < stop:
                break
            body = bytes(self._in[at + _FRAME.size : stop])
            found.append((pickle.loads(body), self._fds.popleft() if has else None))
            at = stop
        if at:
            self._in = self._in[at:]
        return found

    def close(self) -> None:
        for _, fd in self._out:
            if fd is not None:
                os.close(fd)
        self._out.clear()
        self._fds.clear()
        self.end.close()


# ---------------------------------------------------------------- values


Whole: TypeAlias = "tuple[bytes, list[bytes]]"


class Packed(NamedTuple):
    """Values, pickled: the pickle, and its buffers apart."""

    head: bytes
    buffers: list[memoryview]

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Where head and buffers lie one after the other: offset and length."""
        spans, at = list[tuple[int, int]](), 0
        for length in (len(self.head), *(buffer.nbytes for buffer in self.buffers)):
            spans.append((at, length))
            at += -(-length // _LINE) * _LINE
        return spans

    def size(self) -> int:
        offset, length = self.spans[-1]
        return offset + length

    def whole(self) -> Whole:
        """All of it, for what goes through the socket."""
        return self.head, [bytes(buffer) for buffer in self.buffers]

    def write(self, memory: mmap.mmap, start: int = 0) -> None:
        """Copy all of it to a place in memory."""
        target = np.frombuffer(memory, np.uint8, self.size(), start)
        for (offset, length), part in zip(self.spans, (self.head, *self.buffers), strict=True):
            target[offset : offset + length] = np.frombuffer(part, np.uint8)


def packed(value: Any) -> Packed:
    """A value, ready to go to a worker; what has no module to be found in, or only the script that
    runs, goes by value.
    """
    return _packed(value, _by_value())


def packed_here(value: Any) -> Packed:
    """Pack the result of a worker; copy by value only where necessary, since that takes several
    times as long.
    """
    try:
        return _packed(value, _Plain)
    except (pickle.PicklingError, AttributeError, TypeError):
        return packed(value)


def _packed(value: Any, pickler: Any) -> Packed:
    buffers, file = list[memoryview](), io.BytesIO()

    def inside(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < INLINE // 32:
            return True
        buffers.append(raw)
        return False

    found = pickler(file, pickle.HIGHEST_PROTOCOL, buffer_callback=inside)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        others: dict[type, Any] = getattr(found, "dispatch_table", copyreg.dispatch_table)
        found.dispatch_table = {**others, torch.Tensor: _reduced}
    found.dump(value)
    return Packed(file.getvalue(), buffers)


class _Plain(pickle.Pickler):
    """One that may have a table of its own."""


@cache
def _by_value() -> Any:
    try:
        import cloudpickle  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        raise ConfigError(
            f"executor='processes' needs cloudpickle: {install_command('processes')}"
        ) from None
    return cloudpickle.Pickler


def _reduced(tensor: Any) -> Any:
    """A tensor as an array where it is one."""
    if (
        type(tensor).__name__ == "Tensor"
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
    ):
        with suppress(TypeError, RuntimeError):  # of a kind that NumPy does not have, and lazy ones
            return _tensor, (tensor.numpy(),)
        if str(tensor.dtype).startswith("torch.float8") and str(tensor.layout) == "torch.strided":
            import torch  # pyright: ignore[reportMissingImports]

            plain = cast("Any", torch)
            flat = tensor.reshape(-1).clone(memory_format=plain.contiguous_format).view(plain.uint8)
            return _typed, (
                flat.numpy(),
                tensor.dtype,
                tuple(tensor.shape),
            )  # pickle of torch fails to read these
    return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)


def _tensor(array: Any) -> Any:
    import torch  # pyright: ignore[reportMissingImports]

    return torch.from_numpy(array)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def _typed(array: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    return _tensor(array).view(dtype).reshape(shape)


def unpacked(head: Any, buffers: Sequence[Any]) -> Any:
    """The value; its arrays are views of the buffers."""
    return pickle.loads(head, buffers=buffers)


def heard(told: bytes) -> BaseException:
    """The exception that `told_of` in a worker has told."""
    place, cause = unpacked(*pickle.loads(told))
    return cause if place is None else Failed(**place, cause=cause)


# ---------------------------------------------------------------- memory


def shared_memory(size: int) -> tuple[mmap.mmap, int]:
    """Memory that can be shared, without a name: mapped here, and a descriptor for others."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("penstock")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return mmap.mmap(fd, size), fd


def views(
    ranges: Sequence[tuple[mmap.mmap, int, int]],
    spans: Sequence[tuple[int, int, int]],
    gone: Callable[[int], None],
) -> list[memoryview]:
    """Parts (range, offset, length) of places in shared memory (where it begins, its size). A range
    is free again (`gone` is called with its number) once nothing uses any part of it.
    """
    wholes = list[Any]()
    for number, (shared, start, size) in enumerate(ranges):
        whole: Any = np.frombuffer(shared, np.uint8, size, start)
        weakref.finalize(whole, gone, number).atexit = False
        wholes.append(whole)
    # A slice of an array keeps the array, and a memoryview keeps the slice.
    return [
        memoryview(wholes[number][offset : offset + length]) for number, offset, length in spans
    ]
