"""`Transport`: collectives of a kind of device; `Store`: a key-value store for the bootstrap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nbrt.backends.queue import Queue
    from nbrt.typing import Array

__all__ = ["Store", "Transport"]


class Transport(Protocol):
    """Collectives over the ranks of a group.

    Buffers are flat, contiguous arrays of bytes on the device. Every rank of the group enqueues the
    same operations in the same order.
    """

    def reduces(self, dtype: Any, op: Literal["sum", "prod", "min", "max"]) -> bool:
        """Return whether the reductions below support an operation with NumPy's semantics."""
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
        """Fill `incoming` with this rank's part of the reduction; the parts are equal in size."""
        ...

    def exchange(
        self, queue: Queue, outgoing: Mapping[int, Array], incoming: Mapping[int, Array]
    ) -> None:
        """Send buffers to ranks and receive from ranks in one operation; sizes agree in pairs."""
        ...

    def close(self) -> None:
        """Release the transport, after its operations are done."""
        ...

    def abort(self) -> None:
        """Release the transport and end its unfinished operations."""
        ...


class Store(Protocol):
    """A key-value store in one process; key and value have at most 200 bytes together.

    Methods raise `OSError` while the server is unreachable.
    """

    def get(self, key: str) -> bytes | None:
        """Return a value; None if it is not set."""
        ...

    def set(self, key: str, value: bytes) -> None:
        """Set a value."""
        ...

    def close(self) -> None:
        """Release the store; this ends the server."""
        ...
