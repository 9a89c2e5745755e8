"""What the table of kernels consists of, and how its entries are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Example", "KernelSpec", "Shape", "both", "spec", "uniform"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Example:
    """One launch of a kernel and what it must give.

    Attributes
    ----------
    arguments : tuple
        All arguments of the kernel: NumPy arrays, the output first, and scalars.
    expected : ndarray
        What the output holds afterwards, to the tolerance of the `KernelSpec`.
    threads : tuple of int
        Threads needed along x, then y and z.
    """

    arguments: tuple[Any, ...]
    expected: Any
    threads: tuple[int, ...]


@dataclass(frozen=True)
class KernelSpec:
    """One kernel of the library.

    Attributes
    ----------
    name : str
        Key in `KERNELS`.
    function : callable
        The kernel, undecorated.
    reference : callable
        Its NumPy reference.
    description : str
        One line.
    signatures : tuple of tuples of str
        Example argument types, by Numba's names: ``"float32[:,::1]"``, ``"int64"``.
    dimensions : int
        1 to 3: of the shape that `example` takes.
    tolerance : float
        Allowed error relative to the largest expected value; 0 means equal bits.
    example : callable
        ``example(shape, seed)`` makes an `Example` of that size.
    block : tuple of int
        The thread block that `example` counts on; empty: any, and one index of the grid for each
        of the `dimensions`.
    """

    name: str
    function: Callable[..., None]
    reference: Callable[..., Any]
    description: str
    signatures: tuple[tuple[str, ...], ...]
    dimensions: int
    tolerance: float
    example: Callable[[Shape, int], Example]
    block: tuple[int, ...] = ()


def spec(
    function: Callable[..., None],
    reference: Callable[..., Any],
    example: Callable[[Shape, int], Example],
    *signatures: tuple[str, ...],
    dimensions: int = 1,
    tolerance: float = 0.0,
    block: tuple[int, ...] = (),
) -> KernelSpec:
    """Describe a kernel; name and description come from the function."""
    description = (function.__doc__ or "").partition("\n")[0]
    return KernelSpec(
        function.__name__,
        function,
        reference,
        description,
        signatures,
        dimensions,
        tolerance,
        example,
        block,
    )


def _doubled(signature: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part.replace("float32", "float64") for part in signature)


def both(*signature: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return a signature in float32 and the same in float64."""
    return signature, _doubled(signature)


def uniform(shape: Shape, seed: int) -> Any:
    """Draw float32 values from [0, 1)."""
    return np.random.default_rng(seed).random(shape, dtype=np.float32)
