"""`HostPool`: what every pool of host memory counts and refuses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from nbrt.backends.cpu.memory.mapping import MAPPING_ERRORS, map_segment
from nbrt.errors import DeviceError, OutOfMemoryError

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    from nbrt.backends.cpu.memory.blocks import HostBlock
    from nbrt.backends.pools import SegmentInfo
    from nbrt.backends.queue import Queue

__all__ = ["HostPool", "round_up"]


class HostPool(ABC):
    """Mappings of the system, counted and bounded.

    Parameters
    ----------
    mapper : callable, optional
        Returns a mapping of so many bytes, or raises one of `MAPPING_ERRORS`.
    """

    kind: str
    stream_ordered = False
    caches = True

    def __init__(self, mapper: Callable[[int], mmap.mmap] = map_segment) -> None:
        self._mapper = mapper
        self._limit: int | None = None
        self._reserved = 0
        self._made = 0
        self._released = 0
        self._is_closed = False

    @abstractmethod
    def allocate(self, queue: Queue, nbytes: int) -> HostBlock:
        """Return a block of at least `nbytes`; raises OutOfMemoryError."""

    @abstractmethod
    def deallocate(self, queue: Queue, block: Any) -> None:
        """Take a block back."""

    @abstractmethod
    def segments(self) -> list[SegmentInfo]:
        """Return what is held from the system."""

    def reserved(self) -> int:
        """Return the bytes held from the system."""
        return self._reserved

    def segment_counts(self) -> tuple[int, int]:
        """Return how many segments were taken from the system, and how many given back."""
        return self._made, self._released

    def set_limit(self, nbytes: int | None) -> None:
        """Bound the bytes held from the system from now on; None: no bound."""
        self._limit = nbytes

    def empty_cache(self) -> None:
        """Give back to the system what no block uses; a pool that caches has more to do."""

    def close(self) -> None:
        """Do the same, and hand out nothing more; blocks that are out stay valid."""
        self._is_closed = True
        self.empty_cache()

    def _check_open(self) -> None:
        if self._is_closed:
            raise DeviceError(f"expected an open {self.kind} pool, got a closed one; make another")

    def _map(self, nbytes: int, guard: int = 0) -> mmap.mmap | str:
        """Return a mapping, which counts without its guard; or who refuses it."""
        if self._limit is not None and self._reserved + nbytes > self._limit:
            return f"a limit of {self._limit} bytes"
        try:
            mapping = self._mapper(nbytes + guard)
        except MAPPING_ERRORS as error:
            return f"{error!r} from the system"
        self._taken(nbytes)
        return mapping

    def _taken(self, nbytes: int) -> None:
        self._reserved += nbytes
        self._made += 1

    def _given_back(self, nbytes: int) -> None:
        self._reserved -= nbytes
        self._released += 1

    def _out_of_memory(self, nbytes: int, refusal: str | None) -> OutOfMemoryError:
        return OutOfMemoryError(
            f"expected room for {nbytes} bytes, got {refusal}, with {self._reserved} bytes "
            f"reserved; free arrays or ask for less"
        )


def round_up(nbytes: int, unit: int) -> int:
    """Return the smallest multiple of `unit`, a power of two, that is at least `nbytes`."""
    return (nbytes + unit - 1) & -unit
