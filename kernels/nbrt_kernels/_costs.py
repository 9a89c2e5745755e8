"""Estimates of the work of kernels: the attribute ``kernel_cost`` of a kernel function.

It takes the kernel's arguments and returns (flops, bytes). A fused multiply-add is two operations;
a comparison and integer arithmetic are none. Bytes count every array once, as if all of its
repeated accesses hit a cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["costs", "moved", "per_element"]

Function = TypeVar("Function", bound=Callable[..., Any])


def costs(flops: Callable[..., float | None]) -> Callable[[Function], Function]:
    """Return a decorator that gives a kernel its cost.

    Parameters
    ----------
    flops : callable
        Takes the arguments of the kernel; returns floating-point operations, None if unknown.
    """

    def decorate(function: Function) -> Function:
        def kernel_cost(*args: Any) -> tuple[float | None, float]:
            return flops(*args), moved(args)

        function.kernel_cost = kernel_cost  # type: ignore[attr-defined]  # functions take any
        return function

    return decorate


def per_element(count: float) -> Callable[..., float]:
    """Return a function for `costs`: `count` operations for each element of the first array."""

    def flops(out: Any, *_: Any) -> float:
        return float(count * out.size)

    return flops


def moved(args: tuple[Any, ...]) -> float:
    """Return the bytes of the arrays among arguments."""
    total = 0
    for value in args:
        if getattr(value, "ndim", 0):
            total += value.nbytes
    return total
