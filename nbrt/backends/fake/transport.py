"""`FakeTransport`: collectives of fake devices, which move nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nbrt.backends.queue import Queue
    from nbrt.typing import Array

__all__ = ["FakeTransport"]


class FakeTransport:
    """A `Transport` without ranks on the other side.

    Its reductions take the dtypes of NCCL, so that the same buffers are needed.
    """

    def reduces(self, dtype: Any, op: str) -> bool:  # of the interface
        """Return whether the transport itself reduces, as NCCL does numbers but complex ones."""
        kind = np.dtype(dtype)
        return kind.kind in "iuf" and kind.name not in ("int16", "uint16", "longdouble")

    def broadcast(self, queue: Queue, buffer: Array, root: int) -> None:
        """Do nothing."""

    def all_gather(self, queue: Queue, outgoing: Array, incoming: Array) -> None:
        """Do nothing."""

    def all_reduce(
        self, queue: Queue, outgoing: Array, incoming: Array, dtype: Any, op: str
    ) -> None:
        """Do nothing."""

    def reduce_scatter(
        self, queue: Queue, outgoing: Array, incoming: Array, dtype: Any, op: str
    ) -> None:
        """Do nothing."""

    def exchange(
        self, queue: Queue, outgoing: Mapping[int, Array], incoming: Mapping[int, Array]
    ) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: there is no resource."""

    def abort(self) -> None:
        """Do nothing: operations end when they are submitted."""
