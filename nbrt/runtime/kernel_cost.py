"""`KernelCost`: estimates of the work of a launch, for plans and traces."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from nbrt.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from nbrt.runtime.commands import Command

__all__ = [
    "CostFunction",
    "KernelCost",
    "command_cost",
    "cost_function",
    "costs_of",
    "declare_cost",
]

_NUMBERS = (int, float)


@dataclass(frozen=True, slots=True)
class KernelCost:
    """An estimate of the work of a launch.

    Attributes
    ----------
    flops : float or None
        Floating-point operations, a fused multiply-add being two; None: unknown.
    bytes : float or None
        Bytes read from and written to device memory; None: unknown.

    Raises
    ------
    ArgumentError
        If a number is negative or not finite.
    ArgumentTypeError
        If an attribute is no number.

    Examples
    --------
    >>> import nbrt
    >>> from numba import cuda
    >>> def work(x, factor):
    ...     return nbrt.KernelCost(flops=x.size, bytes=2 * x.nbytes)
    >>> @nbrt.kernel(cost=work)
    ... def scale(x, factor):
    ...     i = cuda.grid(1)
    ...     if i < x.size:
    ...         x[i] *= factor
    >>> scale.cost(nbrt.zeros(8, "float32", device="cpu"), 2.0)
    KernelCost(flops=8, bytes=64)
    """

    flops: float | None = None
    bytes: float | None = None

    def __post_init__(self) -> None:
        # Plans make one for each launch: the usual values are tested first.
        for value in (self.flops, self.bytes):
            if value is not None and not (type(value) in _NUMBERS and 0 <= value < math.inf):
                self._check()

    def _check(self) -> None:
        for name, value in (("flops", self.flops), ("bytes", self.bytes)):
            if value is None:
                continue
            try:
                is_valid = bool(math.isfinite(value) and value >= 0)
            except TypeError:
                raise ArgumentTypeError(
                    f"expected {name} of a kernel as a number, got {value!r}"
                ) from None
            if not is_valid:
                raise ArgumentError(f"expected {name} of a kernel of at least 0, got {value!r}")


CostFunction: TypeAlias = Callable[..., "KernelCost | tuple[float | None, float | None]"]
"""Takes the arguments of a launch."""

_declared: weakref.WeakKeyDictionary[Any, CostFunction] = weakref.WeakKeyDictionary()
"""Kernel function -> its cost, as given to `nbrt.kernel`."""


def declare_cost(function: Callable[..., object], cost: CostFunction) -> None:
    """Set the cost of a kernel function."""
    if not callable(cost):
        raise ArgumentTypeError(
            f"expected cost as a function of the kernel's arguments, got {cost!r}"
        )
    _declared[function] = cost


def cost_function(function: Callable[..., object]) -> CostFunction | None:
    """Return the function that estimates the cost of launches of a kernel function."""
    cost = _declared.get(function)
    if cost is None:
        cost = getattr(getattr(function, "py_func", function), "kernel_cost", None)
    return cost


def costs_of(function: Callable[..., object], args: tuple[Any, ...]) -> KernelCost | None:
    """Return the cost of a launch; None if the kernel function gives none.

    A kernel library, which does not import nbrt, sets the attribute ``kernel_cost`` of a function:
    a function of the kernel's arguments that returns (flops, bytes).
    """
    cost = cost_function(function)
    if cost is None:
        return None
    found = cost(*args)
    if isinstance(found, KernelCost):
        return found
    if isinstance(found, tuple) and len(found) == 2:
        return KernelCost(*found)
    raise ArgumentTypeError(
        f"expected the cost of {getattr(function, '__qualname__', function)} as a KernelCost, got "
        f"{found!r}"
    )


def command_cost(command: Command) -> KernelCost | None:
    """Return the cost of a launch or a draw on any device, for hooks; None if it is unknown.

    A draw writes its array and reads its parameters; its integer operations are no ``flops``.
    """
    if command.kind == "launch":
        plan = getattr(command.function, "__self__", None)
        function = getattr(plan, "function", None)
        return None if function is None else costs_of(function, command.args)
    if command.kind == "draw":
        out, draw = command.args
        return KernelCost(None, out.nbytes + sum(getattr(p, "nbytes", 0) for p in draw.parameters))
    return None
