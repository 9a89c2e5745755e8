"""Plain values that describe a compiled kernel; see `nbrt.runtime.inspection`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.backends.captures import Captures

__all__ = ["DeviceCode", "HostCode", "KernelCode", "Loop", "Lowering", "Occupancy", "Resources"]


class Lowering(Protocol):
    """The lowering of a kernel by the CPU compiler, and its reasons."""

    @property
    def kind(self) -> str:
        """``threads``: one loop over threads; ``lanes``: fission; ``coroutines``: the fallback."""
        ...

    @property
    def reasons(self) -> tuple[str, ...]:
        """The constructs that forced the kind, with their source lines."""
        ...


@dataclass(frozen=True, slots=True)
class Loop:
    """An innermost loop of the machine code's LLVM IR.

    Attributes
    ----------
    block : str
        Name of the block of IR where it begins.
    depth : int
        Loops around it, itself included.
    lanes : int
        Width of its widest vector; 1: the loop is scalar.
    element : str
        LLVM type of that vector's elements; empty for a scalar loop.
    calls : tuple of str
        Functions called in it, LLVM's intrinsics aside.
    """

    block: str
    depth: int
    lanes: int
    element: str
    calls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of a kernel on a GPU, as reported by ptxas.

    Attributes
    ----------
    registers : int
        Per thread.
    static_shared : int
        Bytes of shared memory per block that the kernel declares.
    stack, spill_stores, spill_loads : int
        Bytes of local memory per thread: stack frame and register spills.
    constant : int
        Bytes of constant memory, the kernel's parameters included.
    barriers : int
        Hardware barriers used by a block.
    """

    registers: int
    static_shared: int = 0
    stack: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    constant: int = 0
    barriers: int = 0


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Resident blocks of a kernel on one multiprocessor.

    Attributes
    ----------
    blocks, warps : int
        Resident at a time; with 0 blocks a launch fails.
    max_warps : int
        Warps that the multiprocessor can hold.
    limited_by : tuple of str
        The limiting resources: ``warps``, ``blocks``, ``registers``, ``shared memory``.
    """

    blocks: int
    warps: int
    max_warps: int
    limited_by: tuple[str, ...]

    @property
    def fraction(self) -> float:
        """Resident warps divided by the maximum."""
        return self.warps / self.max_warps


class KernelCode(Protocol):
    """A kernel and the types of its arguments, before it is compiled."""

    @property
    def captures(self) -> Captures:
        """The captured values that the kernel is compiled with."""
        ...

    @property
    def signature(self) -> str:
        """The kernel's name, its parameters and their types.

        Raises
        ------
        ArgumentTypeError
            If kernels cannot take an argument of such a type, or the number of arguments is wrong.
        """
        ...


class HostCode(KernelCode, Protocol):
    """A kernel compiled for a CPU device; every property compiles when it is first read."""

    @property
    def lowering(self) -> Lowering: ...  # noqa: D102  # as in `nbrt.runtime.inspection`
    @property
    def loops(self) -> Sequence[Loop]: ...  # noqa: D102
    @property
    def llvm(self) -> str: ...  # noqa: D102
    @property
    def asm(self) -> str: ...  # noqa: D102


class DeviceCode(KernelCode, Protocol):
    """A kernel compiled for a GPU, present or not; every property computes when first read."""

    @property
    def ptx(self) -> str: ...  # noqa: D102  # as in `nbrt.runtime.inspection`
    @property
    def resources(self) -> Resources: ...  # noqa: D102
    @property
    def occupancy(self) -> Occupancy: ...  # noqa: D102
