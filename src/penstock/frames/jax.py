"""JAX: batches as global arrays, made of the rows that each process has, and copied to the devices ahead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import numpy as np
import numpy.typing as npt

from ..base.ints import whole
from ..base.rows import Rows
from ..base.tree import leaves, map_leaves
from ..errors import ConfigError, DataError, missing_extra
from ..loader import Loader
from ..runtime.ahead import Ahead, Moment
from ..runtime.delivery import named
from ..runtime.states import OnMismatch
from ..schedule import Schedule
from ..streams.step import Leaf

if TYPE_CHECKING:
    from jax.sharding import NamedSharding


class Share(NamedTuple):
    """Which rows of a global batch a process holds: share `rank` of `world_size`, in `pieces` of equal size."""

    rank: int
    world_size: int
    pieces: int


def place(sharding: NamedSharding) -> tuple[int, int]:
    """The rank and the world size of this process, by the rows that its devices hold; processes that hold the same rows
    (over axes of the model) have one rank.

    Args:
        sharding: of the batches. Its first entry says over which axes of the mesh the rows are split.

    Raises:
        ConfigError: where processes hold some rows in common and others not, unlike numbers of rows, or none.

    >>> import jax
    >>> from jax.sharding import Mesh, NamedSharding, PartitionSpec
    >>> place(NamedSharding(Mesh(jax.devices(), "data"), PartitionSpec("data")))
    (0, 1)
    """
    return _share(sharding)[:2]


def _share(sharding: NamedSharding) -> Share:
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
        raise ConfigError(f"process {jax.process_index()} has no device in the mesh, and so no rows to load")
    shares = sorted({tuple(sorted(each)) for each in held.values()})
    if len({len(share) for share in shares}) > 1 or sum(map(len, shares)) != pieces:
        said = ", ".join(f"process {process} holds {sorted(each)}" for process, each in sorted(held.items())[:4])
        raise ConfigError(
            f"of the {pieces} pieces in which the rows are split over {axes}, {said}: processes must hold the same "
            "rows or none in common, and all as many; split the rows over other axes, or order the devices of the mesh "
            "so that a process holds whole pieces"
        )
    return Share(shares.index(tuple(sorted(mine))), len(shares), len(mine))


class Global:
    """What a batch is on the devices: every column of numbers a global array, what is no number as it was.

    Args:
        sharding: of the arrays; arrays with fewer axes are split as its first ones say.

    Raises:
        ConfigError: for layouts that `place` refuses.

    >>> import jax, numpy as np
    >>> from jax.sharding import Mesh, NamedSharding, PartitionSpec
    >>> form = Global(NamedSharding(Mesh(jax.devices(), "data"), PartitionSpec("data")))
    >>> form.value({"x": np.arange(4, dtype=np.int32), "name": list("abcd")})
    {'x': Array([0, 1, 2, 3], dtype=int32), 'name': ['a', 'b', 'c', 'd']}
    """

    def __init__(self, sharding: NamedSharding) -> None:
        self._jax, self._sharding, self.share = _jax(), sharding, _share(sharding)
        self._shardings = dict[int, Any]()

    def value(self, item: Any) -> Any:
        """The batch with global arrays in it.

        Args:
            item: a batch as the loader gives it: this process's rows.

        Raises:
            DataError: for a column whose rows cannot be split, and integers that JAX would cut to 32 bits.
        """
        for path, column in leaves(item, lists=False):
            if self._numbers(column):
                self._check(path or "the batch", column)
        return map_leaves(self._array, item, lists=False)

    def _numbers(self, column: Any) -> bool:
        if not isinstance(column, np.ndarray) or not column.ndim:
            return False
        kind = cast("npt.NDArray[Any]", column).dtype
        return kind == np.bool_ or bool(self._jax.dtypes.issubdtype(kind, np.number))

    def _check(self, path: str, column: npt.NDArray[Any]) -> None:
        if len(column) % self.share.pieces:
            raise DataError(
                f"{path} has {len(column)} rows, which cannot be split over the {self.share.pieces} pieces of this "
                "process: make batches of a multiple of that, and leave out the last one of a pass where it is shorter "
                "(.batch(n, drop_remainder=True))"
            )
        if column.dtype.kind not in "iu" or not column.size:
            return
        here = np.iinfo(self._jax.dtypes.canonicalize_dtype(column.dtype))
        if here.bits < column.dtype.itemsize * 8 and not here.min <= column.min() <= column.max() <= here.max:
            raise DataError(
                f"{path} has {column.dtype} between {column.min()} and {column.max()}, which JAX would cut to "
                f"{here.dtype} without a word: make them smaller in a map, or set jax_enable_x64"
            )

    def _array(self, column: Any) -> Any:
        if not self._numbers(column):
            return column
        shape = (len(column) * self.share.world_size, *column.shape[1:])
        return self._jax.make_array_from_process_local_data(self._split(column.ndim), column, shape)

    def _split(self, axes: int) -> Any:
        if axes not in self._shardings:
            given, jax = self._sharding, self._jax
            spec = jax.sharding.PartitionSpec(*given.spec[:axes])
            self._shardings[axes] = jax.sharding.NamedSharding(given.mesh, spec, memory_kind=given.memory_kind)
        return self._shardings[axes]


class _Given(NamedTuple):
    """An item, the samples in it, and what they were read from."""

    value: Any
    rows: Rows
    leaves: Sequence[Leaf]


class _Pass:
    """What is left of the loader's pass, each item with its samples."""

    def __init__(self, loader: Loader) -> None:
        self._loader, self._steps = loader, iter(loader)
        self._session = loader._session  # pyright: ignore[reportPrivateUsage]

    def __next__(self) -> _Given:
        value = next(self._steps)
        return _Given(value, self._session.out.rows(), self._session.leaves)

    def moment(self) -> Moment:
        return self._session.moment()

    def load_state_dict(self, state: Mapping[str, Any], on_mismatch: OnMismatch = "error", /) -> None:
        self._loader.load_state_dict(state, on_mismatch)

    def close(self) -> None:
        """The loader stays open for its next pass."""


class Sharded(Iterator[Any]):
    """The batches of a loader as global `jax.Array`s, copied to the devices up to `ahead` of them before they are asked
    for.

    Each process gives the rows that its loader has; together they are the global batch. Columns of numbers become
    arrays, everything else stays as it is. State and keys are those of the last batch *given*: ask them here, not of
    the loader, which is ahead.

    Args:
        loader: of batches; its rank is that of the sharding (see `place`), which is what it finds by itself where every
            process has rows of its own.
        sharding: of the arrays; the first entry of its spec splits the rows.
        ahead: how many batches may lie on the devices before they are asked for.

    Raises:
        ConfigError: for a loader of other rows than this process holds, or whose ranks may end at different steps.

    >>> import jax, numpy as np, penstock as ps
    >>> from jax.sharding import Mesh, NamedSharding, PartitionSpec
    >>> loader = ps.Loader(ps.from_sequence(np.arange(8, dtype=np.int32)).batch(4))
    >>> batches = Sharded(loader, NamedSharding(Mesh(jax.devices(), "data"), PartitionSpec("data")))
    >>> next(batches), batches.keys()[0]
    (Array([0, 1, 2, 3], dtype=int32), ('data', 0, 0))
    >>> state = batches.state_dict()
    >>> batches.close()
    """

    def __init__(self, loader: Loader, sharding: NamedSharding, *, ahead: int = 2) -> None:
        self._loader, self._form, self._n = loader, Global(sharding), whole(ahead, "ahead={}", 1)
        share, setting = self._form.share, loader._session.setting  # pyright: ignore[reportPrivateUsage]
        if (setting.rank, setting.world_size) != share[:2]:
            raise ConfigError(
                f"the loader is rank {setting.rank} of {setting.world_size}, and this process's devices hold share "
                f"{share.rank} of {share.world_size} of the rows: ps.Loader(ds, rank=rank, world_size=world_size), as "
                "penstock.frames.jax.place(sharding) says"
            )
        if setting.remainder == "keep" and share.world_size > 1:
            raise ConfigError("remainder='keep' ends ranks at different steps, and a global batch needs all of them")
        self._pass: Ahead | None = None
        self._given: _Given | None = None
        self._over = self._closed = False

    def __iter__(self) -> Self:
        self._over = False
        return self

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        if self._closed:
            raise ConfigError("these batches are closed; make a new loader and load the state into it")
        if self._pass is None:
            form = self._form
            self._pass = Ahead(
                _Pass(self._loader), self._n, lambda given: given._replace(value=form.value(given.value))
            )
        try:
            given: _Given = next(self._pass)
        except StopIteration:
            self._over = True
            self._drop()
            raise
        self._given = given
        return given.value

    def __len__(self) -> int:
        """How many batches a `for` over a whole pass gives."""
        return len(self._loader)

    def __bool__(self) -> bool:
        return True

    def keys(self) -> list[tuple[str, int, int]]:
        """Source, epoch and index of every sample in this process's rows of the last batch given."""
        return [] if self._given is None else named(self._given.rows, self._given.leaves)

    def state_dict(self) -> dict[str, Any]:
        """Where we stand, after the last batch given; as a loader's."""
        return self._loader.state_dict() if self._pass is None else self._pass.state_dict()

    def load_state_dict(
        self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], on_mismatch: OnMismatch = "error"
    ) -> None:
        """Go where a state (or the states of all ranks) says; as a loader does.

        Args:
            state: what `state_dict()` returned, here or of a loader, or a list of those of all ranks.
            on_mismatch: "error", or "adopt".

        Raises:
            StateError: for a state that is damaged, or of another pipeline, data or lanes.
        """
        self._back()
        self._loader.load_state_dict(state, on_mismatch)
        self._given = None

    def seek(self, step: int) -> None:
        """Go to a global step of the run; as a loader does.

        Args:
            step: of the run, from 0 on, on all ranks alike.

        Raises:
            ConfigError: for what is no whole number of at least 0.
            IndexedError: where steps cannot be counted.
        """
        self._back()
        self._loader.seek(step)
        self._given = None

    def set_weights(self, weights: Mapping[str, float] | Schedule, at: int | None = None) -> int:
        """Mix by other weights from the first sample after the last batch given, or from position `at`; as a loader
        does. What was made ahead is made again.

        Args:
            weights: name -> weight, relative; or a `Schedule`.
            at: a position of the mixture.

        Raises:
            ConfigError: for names that are in no mixture, and positions that are past.
        """
        self._back()
        return self._loader.set_weights(weights, at)

    def _back(self) -> None:
        """Let go of what was made ahead: the loader stands after the last batch given."""
        if self._pass is not None:
            state = self._pass.state_dict()
            self._drop()
            self._loader.load_state_dict(state)

    def _drop(self) -> None:
        if self._pass is not None:
            self._pass.close()
            self._pass = None

    def close(self) -> None:
        """Stop copying, and close the loader."""
        self._closed = True
        self._drop()
        self._loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _jax() -> Any:
    try:
        import jax
    except ImportError as error:
        raise missing_extra("jax", "jax", "global arrays") from error
    return jax
