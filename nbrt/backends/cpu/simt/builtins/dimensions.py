"""``cuda.threadIdx`` and its relatives as values: three numbers."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Dim3"]


class Dim3(NamedTuple):
    """A position or a size along three axes; printed as CUDA prints it."""

    x: int
    y: int
    z: int

    def __str__(self) -> str:
        return f"({self.x}, {self.y}, {self.z})"
