"""Messages over a socket, each with at most one file descriptor."""

from __future__ import annotations

import errno
import os
import pickle
import socket
import struct
from collections import deque
from typing import Any

_HEADER = struct.Struct("<QB")  # length of the message, and whether a descriptor comes with it
_READ_BYTES = 1 << 18
_MAX_DESCRIPTORS = 64


class Descriptor:
    """A received file descriptor; it is closed with the last reference."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def __del__(self) -> None:
        os.close(self._fd)


class Connection:
    """One end of a socket that carries whole messages."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._in, self._descriptors = bytearray(), deque[Descriptor]()
        self._out = deque[tuple[memoryview, int | None]]()

    def fileno(self) -> int:
        return self.end.fileno()

    def put(self, message: Any, fd: int | None = None) -> None:
        """Queue a message. Its descriptor is closed once it is sent."""
        body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        frame = _HEADER.pack(len(body), fd is not None) + body
        self._out.append((memoryview(frame), fd))

    @property
    def has_output(self) -> bool:
        """True if a part of the queue is still unsent."""
        return bool(self._out)

    def send(self) -> None:
        """Send what the socket accepts now; on a blocking socket, the whole queue."""
        while self._out:
            frame, fd = self._out[0]
            try:
                if fd is None:
                    sent = self.end.send(frame)
                else:
                    sent = socket.send_fds(self.end, [frame], [fd])
                    os.close(fd)
            except BlockingIOError:
                return
            if sent == len(frame):
                self._out.popleft()
            else:
                self._out[0] = frame[sent:], None

    def read(self) -> bool:
        """Read what has arrived; return False if the other end is closed.

        Raises:
            OSError: if a descriptor that was sent exceeds the limit of this process.
        """
        try:
            received, fds, flags, _ = socket.recv_fds(self.end, _READ_BYTES, _MAX_DESCRIPTORS)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        self._descriptors.extend(map(Descriptor, fds))
        if flags & socket.MSG_CTRUNC:  # the system drops descriptors beyond the limit
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self._in += received
        return bool(received)

    def messages(self) -> list[tuple[Any, Descriptor | None]]:
        """Return the complete messages that were read, with their descriptors."""
        messages, start = list[tuple[Any, "Descriptor | None"]](), 0
        while len(self._in) - start >= _HEADER.size:
            length, has_descriptor = _HEADER.unpack_from(self._in, start)
            stop = start + _HEADER.size + length
            if len(self._in) < stop:
                break
            body = bytes(self._in[start + _HEADER.size : stop])
            descriptor = self._descriptors.popleft() if has_descriptor else None
            messages.append((pickle.loads(body), descriptor))
            start = stop
        if start:
            self._in = self._in[start:]
        return messages

    def close(self) -> None:
        """Close the socket and all descriptors."""
        for _, fd in self._out:
            if fd is not None:
                os.close(fd)
        self._out.clear()
        self._descriptors.clear()
        self.end.close()
