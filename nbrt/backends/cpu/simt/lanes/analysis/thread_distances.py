"""Distances between the values of neighbouring threads, through shifts and masks of indices.

Of threads that begin at a multiple of their number, ``t >> 1 & 120`` and ``(t << 3) & 120`` follow
from the low bits that differ, if no addition carries over them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.lanes.analysis.divergence import address_indices
from nbrt.backends.cpu.simt.llvm.types import is_integer

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.lanes.analysis.divergence import Divergence
    from nbrt.backends.cpu.simt.llvm.model import Instruction, Operand

__all__ = ["ThreadDistances"]

_MAX_DEPTH = 24
_MAX_ALIGNMENT = 4096

Distances = tuple[int, ...]


class ThreadDistances:
    """Distances of integers and addresses of neighbouring threads from those of the first one.

    Parameters
    ----------
    divergence : Divergence
        Strides of values in the same threads.
    threads : int
        Number of threads, a power of two that divides the index of the first one.
    """

    def __init__(self, divergence: Divergence, threads: int) -> None:
        self._divergence = divergence
        self._threads = threads
        self._known: dict[str, Distances | None] = {}

    def of(self, operand: Operand, depth: int = _MAX_DEPTH) -> Distances | None:
        """Return the distances, modulo the values of the type; None if they are not known."""
        name = operand.text
        stride = self._divergence[operand]
        if not (is_integer(operand.type) or operand.type == "ptr") or operand.type == "i1":
            return self._multiples(0) if stride == 0 else None
        if stride is not None:
            return self._multiples(stride)
        if name not in self._known:
            item = self._divergence.definitions.get(name)
            self._known[name] = None
            if item is not None and depth > 0:
                self._known[name] = self._of_item(item, depth - 1)
        return self._known[name]

    def _multiples(self, step: int) -> Distances:
        return tuple(step * number for number in range(self._threads))

    def _of_item(self, item: Instruction, depth: int) -> Distances | None:
        opcode = item.opcode
        if opcode == "getelementptr":
            return self._of_address(item, depth)
        if opcode not in (
            *("add", "sub", "or", "mul", "shl", "and", "lshr", "ashr"),
            *("zext", "sext", "trunc", "freeze"),
        ):
            return None
        parts = [self.of(operand, depth) for operand in item.operands]
        left, right = parts[0], parts[-1]
        if left is None or right is None:
            return None
        if opcode in ("trunc", "freeze") or (opcode == "zext" and "nneg" in item.flags):
            return left
        if opcode == "sext" and self._divergence.is_exact(item.operands[0]):
            return left
        if opcode == "add" or (opcode == "or" and "disjoint" in item.flags):
            return tuple(a + b for a, b in zip(left, right, strict=True))
        if opcode == "sub":
            return tuple(a - b for a, b in zip(left, right, strict=True))
        return self._with_constant(item, left, depth)

    def _of_address(self, item: Instruction, depth: int) -> Distances | None:
        indices = address_indices(item)
        total = self.of(item.operands[0], depth)
        if indices is None or total is None:
            return None
        for index, size in indices:
            found = self.of(index, depth)
            if found is None or (any(found) and index.type != "i64"):
                return None
            total = tuple(a + size * b for a, b in zip(total, found, strict=True))
        return total

    def _with_constant(self, item: Instruction, left: Distances, depth: int) -> Distances | None:
        """Return the distances of an operation with a constant.

        If the first value is a multiple of a power of two above all distances, the sums with them
        are unions of bits, which masks and shifts treat one by one.
        """
        text = item.operands[1].text
        if not text.lstrip("-").isdigit():
            return None
        constant, opcode = int(text), item.opcode
        if opcode == "mul":
            return tuple(each * constant for each in left)
        if opcode == "shl":
            return tuple(each << constant for each in left)
        if min(left) < 0 or constant < 0 or max(left) >= self._alignment(item.operands[0], depth):
            return None
        if opcode == "and":
            return tuple(each & constant for each in left)
        if opcode == "or":
            return tuple((each | constant) - constant for each in left)
        return tuple(each >> constant for each in left) if opcode in ("lshr", "ashr") else None

    def _alignment(self, operand: Operand, depth: int) -> int:
        """Return a power of two that divides the value of the first thread."""
        known = self._divergence.aligned(operand)
        item = self._divergence.definitions.get(operand.text)
        if item is None or depth == 0:
            return known
        parts = [self._alignment(each, depth - 1) for each in item.operands]
        text = item.operands[-1].text
        found = 1
        if item.opcode in ("zext", "sext", "trunc", "freeze"):
            found = parts[0]
        elif item.opcode in ("add", "or", "sub"):
            found = min(parts)
        elif item.opcode == "and":
            found = max(parts)
        elif item.opcode == "shl" and text.isdigit():
            found = parts[0] << int(text)
        elif item.opcode in ("lshr", "ashr") and text.isdigit():
            found = max(parts[0] >> int(text), 1)
        return max(known, min(found, _MAX_ALIGNMENT))
