"""`Blocks`: blocks of memory by their addresses."""

from __future__ import annotations

import bisect
from typing import Any

from nbrt.compat.numba_cuda.driver.results import DriverCallError

__all__ = ["Blocks"]

_MAX_FREED = 4096
"""Freed blocks that are remembered, so that a use of one is an error."""


class Blocks:
    """Blocks of memory by address, and those that were freed."""

    def __init__(self) -> None:
        self._owners: dict[int, tuple[int, Any]] = {}
        self._starts: list[int] = []
        self._freed: dict[int, int] = {}
        # A finalizer may free a block in the middle of a search.
        self._changes = 0

    def add(self, address: int, nbytes: int, owner: Any) -> None:
        """Enter a block and what keeps it alive."""
        self._changes += 1
        bisect.insort(self._starts, address)
        self._owners[address] = nbytes, owner
        self._freed.pop(address, None)

    def remove(self, address: int) -> Any:
        """Remove a block and return its owner; raise if none starts at the address."""
        found = self._owners.pop(address, None)
        if found is None:
            raise DriverCallError("INVALID_VALUE")
        self._changes += 1
        del self._starts[bisect.bisect_left(self._starts, address)]
        self._freed.pop(address, None)  # so that it becomes the latest
        self._freed[address] = found[0]
        if len(self._freed) > _MAX_FREED:
            self._freed.pop(next(iter(self._freed)), None)
        return found[1]

    def find(self, address: int) -> tuple[int, int, Any] | None:
        """Return start, size and owner of the block with an address, or None."""
        while True:
            changes = self._changes
            position = bisect.bisect_right(self._starts, address) - 1
            start = self._starts[position] if 0 <= position < len(self._starts) else None
            found = None if start is None else self._owners.get(start)
            if changes == self._changes:
                break
        if start is None or found is None or address >= start + found[0]:
            return None
        return start, *found

    def starts_at(self, address: int) -> bool:
        """Return whether a block starts at an address."""
        return address in self._owners

    def is_freed(self, address: int) -> bool:
        """Return whether a block started at an address and was freed."""
        return address in self._freed
