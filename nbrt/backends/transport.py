"""`Transport`: how a kind of device moves memory between ranks, where it has its own way.

`Store` is where ranks meet that nothing connects yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nbrt.backends.queue import Queue
    from nbrt.typing import Array

__all__ = ["Store", "Transport"]


class Transport(Protocol):
    """The ranks of a group, as the device sees them.

    Buffers are flat, contiguous arrays of bytes on the device. Operations are enqueued; every rank
    of the group enqueues the same ones in the same order.
    """

    def reduces(self, dtype: Any, op: Literal["sum", "prod", "min", "max"]) -> bool:
        """Return whether the reductions below do this one, with NumPy's meaning."""
        ...

    def broadcast(self, queue: Queue, buffer: Array, root: int) -> None:
        """Fill `buffer` with that of `root`."""
        ...

    def all_gather(self, queue: Queue, outgoing: Array, incoming: Array) -> None:
        """Fill `incoming` with the `outgoing` of all ranks, of one size, in their order."""
        ...

    def all_reduce(
        self, queue: Queue, outgoing: Array, incoming: Array, dtype: Any, op: str
    ) -> None:
        """Fill `incoming` with the reduction of the `outgoing` of all ranks."""
        ...

    def reduce_scatter(
        self, queue: Queue, outgoing: Array, incoming: Array, dtype: Any, op: str
    ) -> None:
        """Fill `incoming` with this rank's part, of equal ones, of the reduction."""
        ...

    def exchange(
        self, queue: Queue, outgoing: Mapping[int, Array], incoming: Mapping[int, Array]
    ) -> None:
        """Send buffers to ranks and receive from ranks, all at once; sizes agree in pairs."""
        ...

    def close(self) -> None:
        """Give it back; nothing enqueued may be left."""
        ...

    def abort(self) -> None:
        """Give it up, with what is enqueued and waits for other ranks."""
        ...


class Store(Protocol):
    """Values by key, served by one process for all; both together take at most 200 bytes.

    Raises `OSError` while the server cannot be reached.
    """

    def get(self, key: str) -> bytes | None:
        """Return a value; None if there is none yet."""
        ...

    def set(self, key: str, value: bytes) -> None:
        """Set a value."""
        ...

    def close(self) -> None:
        """Give it back; the server ends."""
        ...
