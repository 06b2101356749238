"""Pickles of values, jobs and errors, with their large buffers apart (PEP 574).

Arrays, tensors on the CPU and Arrow columns are buffers: a worker process copies them once, into
shared memory, and they arrive as views of it.
"""

from __future__ import annotations

import contextlib
import copyreg
import io
import mmap
import pickle
import sys
import traceback
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from ....errors import ConfigError, install_command, type_and_message
from ...streams.function_call import SampleFailure

INLINE = 1 << 14
"""Smaller values travel over the socket; arrays under 1/32 of it stay inside the pickle."""

_ALIGNMENT = 64  # of buffers, in bytes

InlineValue: TypeAlias = "tuple[bytes, list[bytes]]"


class Serialized(NamedTuple):
    """A pickle, and its buffers apart."""

    pickled: bytes
    buffers: list[memoryview]

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Offset and length of the pickle and of each buffer, laid out one after the other."""
        spans, offset = list[tuple[int, int]](), 0
        for length in (len(self.pickled), *(buffer.nbytes for buffer in self.buffers)):
            spans.append((offset, length))
            offset += -(-length // _ALIGNMENT) * _ALIGNMENT
        return spans

    def size(self) -> int:
        """Return the bytes of that layout."""
        offset, length = self.spans[-1]
        return offset + length

    def inline(self) -> InlineValue:
        """Return a copy that can be part of a message."""
        return self.pickled, [bytes(buffer) for buffer in self.buffers]

    def write(self, memory: mmap.mmap, start: int = 0) -> None:
        """Copy pickle and buffers into memory."""
        target = np.frombuffer(memory, np.uint8, self.size(), start)
        for (offset, length), part in zip(self.spans, (self.pickled, *self.buffers), strict=True):
            target[offset : offset + length] = np.frombuffer(part, np.uint8)


def serialize(value: Any) -> Serialized:
    """Pickle a value for another process.

    Functions and classes that it cannot import travel by value.
    """
    return _serialize(value, _cloudpickler())


def serialize_result(value: Any) -> Serialized:
    """Pickle a value for the parent process; by value only if necessary, as that is slow."""
    try:
        return _serialize(value, _Pickler)
    except (pickle.PicklingError, AttributeError, TypeError):
        return serialize(value)


def deserialize(pickled: Any, buffers: Sequence[Any]) -> Any:
    """Return the value; its arrays are views of the buffers."""
    return pickle.loads(pickled, buffers=buffers)


def make_unpicklable_error(executor: str, error: Exception) -> ConfigError:
    """Return the error for functions or sources that cannot be sent to workers."""
    return ConfigError(
        f"executor={executor!r}: the functions and sources cannot be sent to another process: "
        f"{error}; keep open files, locks and connections out of functions and sources, or use "
        "executor='threads'"
    )


def serialize_error(error: BaseException) -> bytes:
    """Pickle an exception with its traceback as a note.

    An exception that cannot be pickled becomes a `RuntimeError` with its text.
    """
    sample = None
    if isinstance(error, SampleFailure):
        sample = {
            "leaf": error.leaf,
            "epoch": error.epoch,
            "index": error.index,
            "grouped": error.grouped,
        }
    cause = error.cause if isinstance(error, SampleFailure) else error
    trace = "".join(traceback.format_exception(cause))
    cause.add_note(f"in a worker process:\n{trace}")
    for candidate in (cause, RuntimeError(f"{type_and_message(cause)}\n{trace}")):
        with contextlib.suppress(Exception):
            value = serialize((sample, candidate)).inline()
            deserialize(*value)
            return pickle.dumps(value)
    raise AssertionError("a RuntimeError can be pickled")


def deserialize_error(data: bytes) -> BaseException:
    """Return the exception of `serialize_error`."""
    sample, cause = deserialize(*pickle.loads(data))
    return cause if sample is None else SampleFailure(**sample, cause=cause)


def _serialize(value: Any, pickler_class: Any) -> Serialized:
    buffers, file = list[memoryview](), io.BytesIO()

    def stays_inside(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < INLINE // 32:
            return True
        buffers.append(raw)
        return False

    pickler = pickler_class(file, pickle.HIGHEST_PROTOCOL, buffer_callback=stays_inside)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        others: dict[type, Any] = getattr(pickler, "dispatch_table", copyreg.dispatch_table)
        pickler.dispatch_table = {**others, torch.Tensor: _reduce_tensor}
    pickler.dump(value)
    return Serialized(file.getvalue(), buffers)


class _Pickler(pickle.Pickler):
    """Unlike the C class, it accepts a dispatch table."""


@cache
def _cloudpickler() -> Any:
    try:
        import cloudpickle  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        raise ConfigError(
            f"executor='processes' needs cloudpickle: {install_command('processes')}"
        ) from None
    return cloudpickle.Pickler


def _reduce_tensor(tensor: Any) -> Any:
    """Reduce a tensor to an array if it is a plain one."""
    if (
        type(tensor).__name__ == "Tensor"
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
    ):
        # NumPy does not have every dtype, and lazy tensors have no memory.
        with contextlib.suppress(TypeError, RuntimeError):
            return _build_tensor, (tensor.numpy(),)
        if str(tensor.dtype).startswith("torch.float8") and str(tensor.layout) == "torch.strided":
            import torch  # pyright: ignore[reportMissingImports]

            plain = cast("Any", torch)
            flat = tensor.reshape(-1).clone(memory_format=plain.contiguous_format).view(plain.uint8)
            # torch cannot unpickle these itself
            return _build_typed_tensor, (flat.numpy(), tensor.dtype, tuple(tensor.shape))
    return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)


def _build_tensor(array: Any) -> Any:
    import torch  # pyright: ignore[reportMissingImports]

    return torch.from_numpy(array)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def _build_typed_tensor(array: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    return _build_tensor(array).view(dtype).reshape(shape)
