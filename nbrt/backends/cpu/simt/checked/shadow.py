"""The shadow runtime: what instrumented code calls at every access, barrier and warp operation.

Native functions over the words that `layout` describes. They never fail and never print: what they
find they write down as a report, once for each kind and pair of sites, and the kernel goes on.
"""

from __future__ import annotations

from llvmlite import binding

from nbrt.backends.cpu.simt.checked import accesses, order

__all__ = ["PREFIX", "install"]

PREFIX = "nbrt_check_"
"""In front of the names under which compiled code knows the functions of the runtime."""

_FUNCTIONS = (
    accesses.access,
    accesses.bounds,
    accesses.overflow,
    accesses.local_array,
    accesses.shared_array,
    order.begin_block,
    order.end_block,
    order.begin_thread,
    order.before_barrier,
    order.before_grid,
    order.after_barrier,
    order.after_grid,
    order.passed,
    order.returned,
    order.before_warp,
    order.after_warp,
    order.fence,
)


def install() -> None:
    """Make the runtime known to compiled code by name."""
    for function in _FUNCTIONS:
        binding.add_symbol(f"{PREFIX}{function.__name__}", function.address)
