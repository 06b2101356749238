"""One reader a node: a process reads the loader, and its peers receive every batch from it.

The ranks of a tensor, context or pipeline parallel group need equal rows. Here one of them per node
decodes them, and the others copy them out of shared memory.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, cast

import numpy as np

from ..arguments import check_int
from ..engine.runtime.executors.serialization import deserialize, serialize, serialize_result
from ..engine.runtime.executors.shared_memory import create_shared_memory
from ..errors import ConfigError, type_and_message
from ..loader import Loader
from .trainers import gather_objects, require_loader

_BLOCKS = 2
"""Blocks of shared memory in the ring: the reader is at most as many messages ahead of a peer."""

_HEADER = struct.Struct("<IB")  # bytes of the description, and whether a block comes with it
_RANK = struct.Struct("<I")

MessageKind: TypeAlias = Literal["item", "end", "error", "state", "loaded"]


class SharedLoader:
    """Read a loader in one process of a node and give its batches to the peers of that process.

    All processes make one, iterate it alike, and call `state_dict` and `load_state_dict` at the same
    step. Rank 0 is the reader: only there `make` is called. Peers receive copies of the same items
    in the same order, so each sample is read and decoded once. Ends of passes and errors of the
    reader reach the peers as well.

    Memory has no names: a killed process leaves none behind. If the reader ends, peers raise
    `ConnectionError`, and so does the reader if a peer ends.

    Args:
        make: makes the loader, without `device=`, in the reader.
        address: path of a socket that all processes agree on; it exists until all have joined.
        rank: the rank among the processes that share the loader; 0 reads.
        ranks: number of these processes.
        timeout: seconds to wait for another process.

    Raises:
        ConfigError: for a rank that does not exist, or an address of another user.
        TimeoutError: if a process does not join, or does not answer.

    >>> import penstock as ps
    >>> make = lambda: ps.Loader(ps.from_sequence(range(4)).batch(2))
    >>> with SharedLoader(make, "/tmp/unused", rank=0, ranks=1) as shared:
    ...     [batch.tolist() for batch in shared]
    [[0, 1], [2, 3]]
    """

    def __init__(
        self,
        make: Callable[[], Loader],
        address: str | os.PathLike[str],
        *,
        rank: int,
        ranks: int,
        timeout: float = 600.0,
    ) -> None:
        self.ranks = check_int(ranks, "SharedLoader(ranks={})", 1)
        self.rank = check_int(rank, "SharedLoader(rank={})", 0)
        if self.rank >= self.ranks:
            raise ConfigError(
                f"SharedLoader: rank {rank} of {ranks}; give a rank from 0 to {ranks - 1}"
            )
        self.loader: Loader | None = None
        """The loader, in the reader; None in its peers."""
        self._timeout, self._closed = timeout, False
        self._sockets = dict[int, socket.socket]()
        self._unread = dict[int, int]()
        self._blocks: list[mmap.mmap | None] = [None] * _BLOCKS
        self._sent = 0
        path = os.fspath(address)
        try:
            if self.rank:
                self._sockets[0] = _join_reader(path, self.rank, timeout)
            else:
                self._sockets = _accept_peers(path, self.ranks, timeout)
                self._unread = dict.fromkeys(self._sockets, 0)
            self._exchange("loaded", lambda: self._open(make))
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the rest of the pass, in step with the other processes."""
        return _SharedPass(self)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the reader's loader; a call of all processes at one step.

        The reader may also call it alone.
        """
        return self._exchange("state", lambda: self._reader().state_dict())

    def load_state_dict(self, state: Any) -> None:
        """Load a state into the reader's loader; a call of all processes.

        Args:
            state: a state of `state_dict`, or of a `Loader`; only the reader's is loaded.
        """
        self._exchange("loaded", lambda: self._reader().load_state_dict(state))

    def _exchange(self, kind: MessageKind, call: Callable[[], Any]) -> Any:
        """Return the result of a call in the reader, in all processes.

        Raises:
            Exception: as raised by the call, in all processes; `StopIteration` too.
            ConnectionError: if another process has ended, or calls something else.
            TimeoutError: if another process does not answer.
        """
        if self._closed:
            raise ConnectionError("SharedLoader is closed; open another in all processes")
        if self.rank:
            return self._receive(kind)
        try:
            value = call()
        except StopIteration:
            self._send("end", None)
            raise
        except Exception as error:
            self._send("error", _make_portable(error))
            raise
        except BaseException:
            self.close()  # peers raise ConnectionError instead of waiting
            raise
        self._send(kind, value)
        return value

    def _open(self, make: Callable[[], Loader]) -> None:
        """Make the loader in the reader."""
        self.loader = require_loader(make(), "SharedLoader(make)")
        form = self.loader._form  # pyright: ignore[reportPrivateUsage]
        if form is not None and (form.copies or form.implied_rank is not None):
            raise ConfigError(
                "SharedLoader: the loader puts batches on a device of the reader; make it "
                "without device= and pin_memory= (and to='jax'), and copy in each process"
            )

    def _reader(self) -> Loader:
        assert self.loader is not None
        return self.loader

    def _send(self, kind: MessageKind, value: Any) -> None:
        """Write a message into the next block, once all peers have read what it held."""
        if not self._sockets:
            return
        peer = 0
        try:
            message = serialize_result(value)
            for peer, unread in self._unread.items():
                if unread == _BLOCKS:
                    _receive_exactly(self._sockets[peer], 1)
                    self._unread[peer] -= 1
            number, descriptor = self._sent % _BLOCKS, None
            block = self._blocks[number]
            if block is None or len(block) < message.size():
                size = 1 << max(16, (message.size() - 1).bit_length())
                if block is not None:
                    block.close()
                block, descriptor = create_shared_memory(size)
                self._blocks[number] = block
            try:
                message.write(block)
                text = json.dumps([kind, number, len(block), message.spans]).encode()
                header = _HEADER.pack(len(text), descriptor is not None)
                for peer, connection in self._sockets.items():
                    if descriptor is None:
                        connection.sendall(header)
                    else:
                        # A socket takes these few bytes whole.
                        socket.send_fds(connection, [header], [descriptor])
                    connection.sendall(text)
                    self._unread[peer] += 1
            finally:
                if descriptor is not None:
                    os.close(descriptor)
            self._sent += 1
        except BaseException as error:
            self._fail(error, f"peer {peer}")
            raise

    def _receive(self, kind: MessageKind) -> Any:
        """Return the reader's result of this call."""
        connection = self._sockets[0]
        while True:
            try:
                found, value = self._read_message(connection)
                if found not in (kind, "state", "error") and (found, kind) != ("end", "item"):
                    raise ConnectionError(
                        f"SharedLoader: the reader sent {found!r} where this process, rank "
                        f"{self.rank}, waits for {kind!r}; iterate, save and load in the same order "
                        "in all processes"
                    )
            except BaseException as error:
                self._fail(error, "the reader")
                raise
            if found == "error":
                value.add_note("raised in the process that reads for this node (SharedLoader)")
                raise value
            if found == "end":
                raise StopIteration
            if found == kind:
                return value

    def _read_message(self, connection: socket.socket) -> tuple[MessageKind, Any]:
        header, descriptors = b"", list[int]()
        try:
            while len(header) < _HEADER.size:
                part, received, _, _ = socket.recv_fds(connection, _HEADER.size - len(header), 1)
                descriptors += received
                if not part:
                    raise ConnectionError("the connection was closed")
                header += part
            length, _ = _HEADER.unpack(header)
            description = json.loads(_receive_exactly(connection, length))
            kind, number, size, spans = cast(
                "tuple[MessageKind, int, int, list[tuple[int, int]]]", description
            )
            if descriptors:
                if (old := self._blocks[number]) is not None:
                    old.close()
                self._blocks[number] = mmap.mmap(descriptors[0], size)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        block = self._blocks[number]
        assert block is not None
        # A copy belongs to this process: the reader writes to the block again.
        copied: Any = np.frombuffer(block, np.uint8, sum(spans[-1])).copy()
        try:
            connection.sendall(b"\0")
        except OSError:
            pass  # the reader has ended after this message, which counts
        parts = [memoryview(copied[offset : offset + size]) for offset, size in spans]
        return kind, deserialize(parts[0], parts[1:])

    def _fail(self, error: BaseException, other: str) -> None:
        """Close after a broken exchange, and name the process that caused it.

        Raises:
            ConnectionError: if the other process has ended.
            TimeoutError: if it does not answer.
        """
        self.close()
        if isinstance(error, TimeoutError):
            raise TimeoutError(
                f"SharedLoader: rank {self.rank} waited {self._timeout:g} s for {other}; look for "
                "what stopped it, or give a longer timeout="
            ) from error
        if isinstance(error, ConnectionError) and not str(error).startswith("SharedLoader"):
            raise ConnectionError(
                f"SharedLoader: rank {self.rank} lost {other}, which was closed or killed; see its "
                "log, and start the processes of this node again"
            ) from error

    def close(self) -> None:
        """Close the connections, the shared memory and the reader's loader."""
        self._closed = True
        while self._sockets:
            self._sockets.popitem()[1].close()
        for number, block in enumerate(self._blocks):
            if block is not None:
                self._blocks[number] = None
                block.close()
        if self.loader is not None:
            self.loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _SharedPass(Iterator[Any]):
    """Iterator over the rest of a pass; it stays exhausted after its end."""

    def __init__(self, shared: SharedLoader) -> None:
        self._shared, self._over = shared, False
        self._steps: Iterator[Any] | None = None

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        try:
            return self._shared._exchange("item", self._read)  # pyright: ignore[reportPrivateUsage]
        except StopIteration:
            self._over = True
            raise

    def _read(self) -> Any:
        if self._steps is None:
            assert self._shared.loader is not None
            self._steps = iter(self._shared.loader)
        return next(self._steps)


def share_loader(
    make: Callable[[], Loader], peers: Any = None, *, timeout: float = 600.0
) -> SharedLoader:
    """Share a loader among the ranks of torch that need equal rows and run on the same node.

    The first of them on each node reads. All of them call this together.

    Args:
        make: makes the loader of this data-parallel rank: `lambda: ps.Loader(ds, mesh=mesh["dp"])`.
        peers: the ranks that need equal rows: a `DeviceMesh` of one or more dimensions, such as
            `mesh["cp", "tp"]`, or a `ProcessGroup`; all processes by default.
        timeout: seconds to wait for another process.

    Returns:
        The shared loader of this rank.

    Raises:
        ConfigError: if torch.distributed is not initialised.
    """
    folder = tempfile.mkdtemp(prefix="penstock-")
    address = str(Path(folder, "socket"))
    try:
        host, process = socket.gethostname(), os.getpid()
        members: list[Any] = [[host, process, address]]
        # Over one dimension after the other, from the last: the order is then the one of the mesh.
        groups = [peers]
        if hasattr(peers, "mesh_dim_names"):
            groups = [peers.get_group(dimension) for dimension in reversed(range(peers.ndim))]
        for group in groups:
            gathered = gather_objects(members, group)
            if gathered is None:
                raise ConfigError(
                    "share_loader: torch.distributed is not initialised; call "
                    "init_process_group(), or use SharedLoader with an address"
                )
            members = [member for part in gathered for member in part]
        local = [member for member in members if member[0] == host]
        rank = local.index([host, process, address])
        return SharedLoader(make, local[0][2], rank=rank, ranks=len(local), timeout=timeout)
    finally:
        Path(address).unlink(missing_ok=True)
        Path(folder).rmdir()


def _accept_peers(address: str, ranks: int, timeout: float) -> dict[int, socket.socket]:
    """Return the connection to each peer."""
    if ranks == 1:
        return {}
    if os.path.exists(address) and stat.S_ISSOCK(os.stat(address).st_mode):
        os.unlink(address)  # of a process that was killed
    deadline, peers = time.monotonic() + timeout, dict[int, socket.socket]()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        try:
            os.chmod(address, 0o600)
            listener.listen(ranks)
            while len(peers) < ranks - 1:
                listener.settimeout(max(0.001, deadline - time.monotonic()))
                connection, _ = listener.accept()
                connection.settimeout(timeout)
                (rank,) = _RANK.unpack(_receive_exactly(connection, _RANK.size))
                if rank in peers or not 0 < rank < ranks:
                    connection.close()
                    raise ConfigError(
                        f"SharedLoader: a process joined as rank {rank} of {ranks}, which is taken "
                        "or does not exist; give each process of the node its own rank"
                    )
                peers[rank] = connection
        except BaseException as error:
            for connection in peers.values():
                connection.close()
            if isinstance(error, TimeoutError):
                missing = sorted({*range(1, ranks)} - {*peers})
                raise TimeoutError(
                    f"SharedLoader: ranks {missing} did not join within {timeout:g} s; start "
                    f"{ranks} processes with the address {address}, or give a longer timeout="
                ) from None
            raise
        finally:
            os.unlink(address)
    return peers


def _join_reader(address: str, rank: int, timeout: float) -> socket.socket:
    """Return the connection to the reader, as soon as it listens."""
    deadline = time.monotonic() + timeout
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(address)
            if os.name == "posix" and _read_owner(connection, address) != os.getuid():
                raise ConfigError(
                    f"SharedLoader: {address} belongs to another user; give a path in a folder of "
                    "your own"
                )
            connection.settimeout(timeout)
            connection.sendall(_RANK.pack(rank))
            return connection
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"SharedLoader: rank {rank} found no reader at {address} within {timeout:g} s; "
                    "start rank 0 with the same address, or give a longer timeout="
                ) from None
            time.sleep(0.02)
        except BaseException:
            connection.close()
            raise


def _read_owner(connection: socket.socket, address: str) -> int:
    """Return the user of the process at the other end."""
    if hasattr(socket, "SO_PEERCRED"):
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return struct.unpack("3i", peer)[1]
    return os.stat(address).st_uid


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the connection was closed")
        data += part
    return bytes(data)


def _make_portable(error: Exception) -> Exception:
    """Return an error that another process can load: itself, or its text."""
    try:
        deserialize(*serialize(error).inline())
    except Exception:
        return RuntimeError(type_and_message(error))
    return error
