"""Items as arrays of JAX: on a device, or global arrays of the rows of all processes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from ..arrays.trees import iter_leaves, map_leaves
from ..errors import ConfigError, DataError, make_missing_extra_error

if TYPE_CHECKING:
    from jax.sharding import NamedSharding


class _ProcessRows(NamedTuple):
    """The rows of a global batch in a process: share `rank` of `world_size`, in equal `pieces`."""

    rank: int
    world_size: int
    pieces: int


def share_of(sharding: NamedSharding) -> _ProcessRows:
    """Return the rows of this process in batches of a layout.

    Processes with equal rows (over axes of the model) have one rank. The first entry of the layout
    names the mesh axes over which rows are split.

    Args:
        sharding: the layout of batches.

    Raises:
        ConfigError: if processes share some rows but not all.
    """
    jax = _jax()
    over = sharding.spec[0] if len(sharding.spec) else None
    axes = () if over is None else (over,) if isinstance(over, str) else tuple(over)
    pieces = prod(sharding.mesh.shape[axis] for axis in axes)
    rows = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec(axes))
    held = dict[int, set[int]]()
    for device, (piece,) in rows.devices_indices_map((pieces,)).items():
        held.setdefault(device.process_index, set()).add(piece.start or 0)
    mine = held.get(jax.process_index())
    if mine is None:
        raise ConfigError(
            f"process {jax.process_index()} has no device in the mesh, so it has no rows to load; "
            "add its devices to the mesh, or make no loader there"
        )
    shares = sorted({tuple(sorted(each)) for each in held.values()})
    if len({len(share) for share in shares}) > 1 or sum(map(len, shares)) != pieces:
        said = ", ".join(
            f"process {process} holds {sorted(each)}" for process, each in sorted(held.items())[:4]
        )
        raise ConfigError(
            f"of the {pieces} pieces in which the rows are split over {axes}, {said}; processes "
            "must hold the same rows or none in common, and equally many: split the rows over "
            "other axes, or order the devices of the mesh so that a process holds whole pieces"
        )
    return _ProcessRows(shares.index(tuple(sorted(mine))), len(shares), len(mine))


def make_form(device: Any, pin_memory: bool | None) -> JaxForm:
    """Return the form of `Loader(to="jax")`.

    Args:
        device: a device or a layout, as of `JaxForm`.
        pin_memory: must not be true, as JAX pins memory by itself.

    Raises:
        ConfigError: if an argument is invalid.
    """
    if pin_memory:
        raise ConfigError(
            "pin_memory=True is for to='torch', because JAX pins by itself; leave it out"
        )
    return JaxForm(device)


class JaxForm:
    """Converts columns of numbers to arrays on a device, or to global arrays; others stay.

    Args:
        device: a `jax.Device`, a `NamedSharding` of batches, or None for the default device.

    Raises:
        ConfigError: if the device is of another type.
    """

    copies = True  # of every item

    def __init__(self, device: Any) -> None:
        jax = self._jax = _jax()
        self._device, self._share = device, None
        self._shardings = dict[int, Any]()
        if isinstance(device, jax.sharding.NamedSharding):
            self._share = share_of(cast("NamedSharding", device))
        elif device is not None and not isinstance(device, jax.Device):
            raise ConfigError(
                f"device={device!r}: give a jax.Device, or a NamedSharding of batches, for to='jax'"
            )

    @property
    def implied_rank(self) -> tuple[int, int] | None:
        """The rank and world size that a layout of all processes implies."""
        return self._share and self._share[:2]

    def values(self, items: list[Any], /) -> list[Any]:
        """Return the items as they are: JAX converts arrays while it copies them.

        Args:
            items: the items.
        """
        return items

    def copy(self, item: Any, /) -> Callable[[], Any]:
        """Copy the columns of an item to their devices.

        Args:
            item: a batch.

        Raises:
            DataError: if JAX would change a value, or rows cannot be split evenly.
        """
        if self._device is not None:
            item = map_leaves(self._fetch, item, lists=False)
        for path, column in iter_leaves(item, lists=False):
            if self._numbers(column):
                self._check(path or "the batch", column)
        copied = map_leaves(self._array, item, lists=False)
        return lambda: copied

    def _fetch(self, column: Any) -> Any:
        """Return an array that a function of batches left on one device as one of NumPy."""
        jax = self._jax
        if (
            not isinstance(column, jax.Array)
            or jax.dtypes.issubdtype(column.dtype, jax.dtypes.extended)
            or len(column.devices()) > 1
        ):
            return column
        return np.asarray(column)

    def _numbers(self, column: Any) -> bool:
        if (
            not isinstance(column, np.ndarray)
            or isinstance(column, np.ma.MaskedArray)
            or not column.ndim
        ):
            return False
        kind = cast("npt.NDArray[Any]", column).dtype
        if kind.char in "gG" or kind.kind == "m":  # of NumPy, durations are integers
            return False
        return kind == np.bool_ or bool(self._jax.dtypes.issubdtype(kind, np.number))

    def _check(self, path: str, column: npt.NDArray[Any]) -> None:
        if self._share and len(column) % self._share.pieces:
            raise DataError(
                f"{path} has {len(column)} rows, which cannot be split over the "
                f"{self._share.pieces} pieces of this process; make batches of a multiple of "
                "that, and drop a shorter last batch of a pass (.batch(n, drop_remainder=True))"
            )
        if column.dtype.kind in "fc":
            self._check_floats(path, column)
        if column.dtype.kind not in "iu" or not column.size:
            return
        here = np.iinfo(self._jax.dtypes.canonicalize_dtype(column.dtype))
        if (
            here.bits < column.dtype.itemsize * 8
            and not here.min <= column.min() <= column.max() <= here.max
        ):
            raise DataError(
                f"{path} has {column.dtype} between {column.min()} and {column.max()}, which JAX "
                f"would silently truncate to {here.dtype}; make the values smaller in a map, or "
                "set jax_enable_x64"
            )

    def _check_floats(self, path: str, column: npt.NDArray[Any]) -> None:
        dtype = self._jax.dtypes.canonicalize_dtype(column.dtype)
        if dtype == column.dtype.newbyteorder("="):
            return
        largest = np.abs(column[np.isfinite(column)]).max(initial=0)
        if largest > np.finfo(dtype).max:
            raise DataError(
                f"{path} has {largest:g} as {column.dtype}, which would be infinite as JAX's "
                f"{dtype}; make the values smaller in a map, or set jax_enable_x64"
            )

    def _array(self, column: Any) -> Any:
        if not self._numbers(column):
            return column
        if self._share is None:
            return self._jax.device_put(column, self._device)
        shape = (len(column) * self._share.world_size, *column.shape[1:])
        return self._jax.make_array_from_process_local_data(self._split(column.ndim), column, shape)

    def _split(self, axes: int) -> Any:
        if axes not in self._shardings:
            given, jax = self._device, self._jax
            spec = jax.sharding.PartitionSpec(*given.spec[:axes])
            self._shardings[axes] = jax.sharding.NamedSharding(
                given.mesh, spec, memory_kind=given.memory_kind
            )
        return self._shardings[axes]


def _jax() -> Any:
    try:
        import jax
    except ImportError as error:
        raise make_missing_extra_error("jax", "jax", "Loader(to='jax')") from error
    return jax
