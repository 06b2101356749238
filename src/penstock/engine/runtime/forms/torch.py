"""Items as torch takes them: arrays as tensors over the same memory, pinned or on a device where
that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from operator import attrgetter
from typing import Any, cast

import numpy as np

from ....errors import ConfigError, make_missing_extra_error
from ...base.columnar import Jagged
from ...base.tree import iter_leaves, map_leaves

try:
    import torch
except ImportError:
    raise make_missing_extra_error("torch", "torch", "Loader(to='torch')") from None

_torch = cast("Any", torch)  # without torch the checker knows none of its types
_writeable = attrgetter("flags.writeable")


class TorchForm:
    """NumPy arrays as tensors, over the same memory where torch can share it. What is read-only,
    lies backwards or in another byte order is copied; what torch has no dtype for (objects,
    strings, dates, records) stays as it is, and so does whatever is no array.
    """

    def __init__(self, device: object, pin_memory: bool | None) -> None:
        self._device = None if device is None else _numbered(device)
        # Copies from memory that is not pinned wait for the device, and so does the step.
        self._pin = (
            pin_memory
            if pin_memory is not None
            else self._device is not None and self._device.type == "cuda"
        )
        if pin_memory and not _torch.accelerator.is_available():
            raise ConfigError(
                "pin_memory=True: pinned memory serves copies to an accelerator, and this "
                "machine has none; write pin_memory=torch.accelerator.is_available() for both"
            )
        self._stream = None
        if self._device is not None and self._device.type not in _WITHOUT_STREAMS:
            self._module = _torch.get_device_module(self._device)
            self._stream = self._module.Stream(self._device)

    place = None

    @property
    def copies(self) -> bool:
        return self._pin or self._device is not None

    def values(self, items: list[Any], /) -> list[Any]:
        if {*map(type, items)} == {np.ndarray} and all(map(_writeable, items)):
            with suppress(TypeError, ValueError):
                return [*map(_torch.from_numpy, items)]  # a call for each item costs as much again
        return [map_leaves(_tensor, item) for item in items]

    def copy(self, item: Any, /) -> Callable[[], Any]:
        if self._pin:
            item = _each_tensor(lambda tensor: tensor.pin_memory(), item)
        if self._device is None:
            return lambda: item
        if self._stream is None:
            moved = _each_tensor(lambda tensor: tensor.to(self._device), item)
            return lambda: moved
        with self._module.stream(self._stream):
            moved = _each_tensor(lambda tensor: tensor.to(self._device, non_blocking=True), item)
            done = self._stream.record_event()

        def taken() -> Any:
            current = self._module.current_stream(self._device)
            current.wait_event(done)
            for _, leaf in iter_leaves(moved):
                if isinstance(leaf, _torch.Tensor):
                    leaf.record_stream(
                        current
                    )  # its memory is the side stream's, which could use it again too soon
            return moved

        return taken


_WITHOUT_STREAMS = ("cpu", "mps")


def _numbered(given: object) -> Any:
    """The device with its number: which one is current is another matter on the thread that
    copies."""
    try:
        device = _torch.device(given)
        there = device.type == "cpu" or _torch.get_device_module(device).is_available()
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"device={given!r}: torch knows no such device ({str(error).splitlines()[0]}); name "
            "one that it knows, such as 'cuda:0'"
        ) from None
    if not there:
        raise ConfigError(
            f"device={given!r}: torch {_torch.__version__} finds no such device here; "
            "name one that this machine has"
        )
    if device.index is not None or device.type in _WITHOUT_STREAMS:
        return device
    return _torch.device(device.type, _torch.get_device_module(device).current_device())


def _each_tensor(fn: Callable[[Any], Any], item: Any) -> Any:
    return map_leaves(lambda leaf: fn(leaf) if isinstance(leaf, _torch.Tensor) else leaf, item)


def _tensor(leaf: Any) -> Any:
    if isinstance(leaf, Jagged):
        values = _tensor(leaf.values)
        if not isinstance(values, _torch.Tensor):
            return leaf
        return _torch.nested.nested_tensor_from_jagged(values, _tensor(leaf.offsets))
    if not isinstance(leaf, np.ndarray) or isinstance(leaf, np.ma.MaskedArray):
        return cast("Any", leaf)
    array = cast("np.ndarray[Any, Any]", leaf)
    try:
        if array.flags.writeable:
            with suppress(ValueError):
                return _torch.from_numpy(array)
        return _torch.from_numpy(np.array(array, array.dtype.newbyteorder("="), order="C"))
    except TypeError:
        return array
