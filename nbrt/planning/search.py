"""`largest`: the largest value of a parameter with which a function fits a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt._internal.checks import checked_int
from nbrt.errors import ArgumentError, OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.planning.plan import MemoryPlan

__all__ = ["largest"]


def largest(
    run: Callable[[dict[str, Any]], MemoryPlan], name: str, lo: int, hi: int, gpu: str | None
) -> int:
    """Return the largest value of a parameter with which a function fits; see `MemoryPlan`."""
    low, high = checked_int("lo", lo), checked_int("hi", hi)
    if low > high:
        raise ArgumentError(f"expected lo of at most hi, got lo={low} and hi={high}")

    def refusal(value: int) -> str | None:
        try:
            fit = run({name: value}).fit(gpu)
        except OutOfMemoryError as error:  # of a limit
            return str(error).splitlines()[0]
        return None if fit.fits else str(fit)

    why = refusal(low)
    if why is not None:
        raise ArgumentError(f"expected a {name} of at least {low} to fit, got none: {why}")
    if high == low or refusal(high) is None:
        return high
    while high - low > 1:  # `low` fits, `high` does not
        middle = (low + high) // 2
        if refusal(middle) is None:
            low = middle
        else:
            high = middle
    return low
