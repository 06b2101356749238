"""Items as tensors of torch: over the same memory, pinned, or on a device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from operator import attrgetter
from typing import Any, cast

import numpy as np

from ..arrays.columnar import Jagged
from ..arrays.dtypes import name_dtype_by_width
from ..arrays.trees import iter_leaves, map_leaves
from ..errors import ConfigError, make_missing_extra_error

try:
    import torch
except ImportError:
    raise make_missing_extra_error("torch", "torch", "Loader(to='torch')") from None

_torch = cast("Any", torch)  # without torch the checker knows none of its types
_writeable = attrgetter("flags.writeable")


class TorchForm:
    """Converts NumPy arrays to tensors, over the same memory if torch can share it.

    Arrays that are read-only, reversed or in another byte order are copied. Arrays without a dtype
    of torch (objects, strings, dates, records) stay, like all other values.

    Args:
        device: the device to copy to, by the name or object of torch.
        pin_memory: whether to copy to pinned memory; by default for CUDA devices.

    Raises:
        ConfigError: if this machine has no such device, or no accelerator for pinned memory.
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

    implied_rank = None

    @property
    def copies(self) -> bool:
        """True if items are copied, to a device or to pinned memory."""
        return self._pin or self._device is not None

    def values(self, items: list[Any], /) -> list[Any]:
        """Convert the arrays of items to tensors.

        Args:
            items: the items.
        """
        if {*map(type, items)} == {np.ndarray} and all(map(_writeable, items)):
            with suppress(TypeError, ValueError):
                return [*map(_torch.from_numpy, items)]  # a call for each item costs as much again
        return [map_leaves(_tensor, item) for item in items]

    def copy(self, item: Any, /) -> Callable[[], Any]:
        """Begin to copy the tensors of an item, on a stream of the device.

        Args:
            item: an item of `values`.
        """
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
                    # Its memory belongs to the side stream, which could reuse it too soon.
                    leaf.record_stream(current)
            return moved

        return taken


make_form = TorchForm

_WITHOUT_STREAMS = ("cpu", "mps")


def _numbered(given: object) -> Any:
    """Return the device with its number, as the copying thread may have another current device."""
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


def _tensor(value: Any) -> Any:
    if isinstance(value, Jagged):
        values = _tensor(value.values)
        if not isinstance(values, _torch.Tensor):
            return value
        return _torch.nested.nested_tensor_from_jagged(values, _tensor(value.offsets))
    if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
        return cast("Any", value)
    array = name_dtype_by_width(cast("np.ndarray[Any, Any]", value))
    try:
        if array.flags.writeable:
            with suppress(ValueError):
                return _torch.from_numpy(array)
        return _torch.from_numpy(np.array(array, array.dtype.newbyteorder("="), order="C"))
    except TypeError:
        return array
