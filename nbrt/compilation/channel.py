"""Messages between the scheduler and a process, over a socket that never blocks the scheduler."""

from __future__ import annotations

import pickle
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

__all__ = ["Channel"]

_HEADER = struct.Struct("!i")
"""Bytes that follow, as in `multiprocessing.connection.Connection`, the other end's class."""

_LONG = struct.Struct("!Q")
_CHUNK = 1 << 16


class Channel:
    """One end of a socket. Messages are pickled objects.

    Parameters
    ----------
    end : socket
        The end, which the channel owns.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._outgoing = bytearray()
        self._incoming = bytearray()

    def fileno(self) -> int:
        """Return the file descriptor, for selectors."""
        return self._end.fileno()

    @property
    def has_output(self) -> bool:
        """Whether bytes wait until the other end reads."""
        return bool(self._outgoing)

    def send(self, message: object) -> None:
        """Send a message, or keep the rest of it for `flush`; ignore a closed other end."""
        data = pickle.dumps(message)
        if len(data) < 1 << 31:
            self._outgoing += _HEADER.pack(len(data))
        else:
            self._outgoing += _HEADER.pack(-1) + _LONG.pack(len(data))
        self._outgoing += data
        self.flush()

    def flush(self) -> None:
        """Send as many waiting bytes as the socket takes."""
        while self._outgoing:
            try:
                sent = self._end.send(self._outgoing[:_CHUNK])
            except BlockingIOError:
                return
            except OSError:  # `receive` then sees the end of the stream
                self._outgoing.clear()
                return
            del self._outgoing[:sent]

    def receive(self) -> list[Any]:
        """Return the messages that have arrived.

        Raises
        ------
        EOFError
            If the other end is closed.
        """
        while True:
            try:
                data = self._end.recv(_CHUNK)
            except BlockingIOError:
                break
            except OSError as error:
                raise EOFError from error
            if not data:
                raise EOFError
            self._incoming += data
        messages = []
        while (message := self._next()) is not None:
            messages.append(pickle.loads(message))
        return messages

    def close(self) -> None:
        """Close this end."""
        self._end.close()

    def _next(self) -> bytes | None:
        if len(self._incoming) < _HEADER.size:
            return None
        (size,), start = _HEADER.unpack_from(self._incoming), _HEADER.size
        if size == -1:
            if len(self._incoming) < start + _LONG.size:
                return None
            (size,), start = _LONG.unpack_from(self._incoming, start), start + _LONG.size
        if len(self._incoming) < start + size:
            return None
        message = bytes(self._incoming[start : start + size])
        del self._incoming[: start + size]
        return message
