"""Strips of blocks: neighbouring blocks along x that run in step, region by region.

A block of several rows accesses a short run of each row of an array, and the next block continues
the runs. If blocks run one after the other, memory is accessed in many short runs, which caches and
prefetchers of processors serve slowly. In a strip, a region runs for the first row of every block,
then for the second, so that the runs become one long run for each row.

A strip is legal if its threads could be those of one block: from each region, all of them continue
to the same barrier, or return. Shared arrays and kept values exist for each block of the strip.
Blocks of a launch may run in any order and at the same time, so a kernel cannot tell; a loop that
waits for another block is never lowered to lanes. Operations whose results depend on the order of
blocks, such as sums of floats by atomic operations, would have other bits than block after block;
kernels with those keep single blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt import placeholders
from nbrt.backends.cpu.simt.lanes.analysis.divergence import VARYING, Divergence, Stride
from nbrt.backends.cpu.simt.lanes.analysis.legality import check_uniform, may_return_before_others
from nbrt.backends.cpu.simt.lanes.analysis.regions import FAILED
from nbrt.backends.cpu.simt.llvm.model import THREAD_PARAMETERS, CannotLowerError
from nbrt.backends.cpu.simt.llvm.types import is_integer, is_scalar, size_of
from nbrt.backends.cpu.simt.math_functions import PURE_FUNCTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nbrt.backends.cpu.simt.lanes.accesses.prefetch import Advances
    from nbrt.backends.cpu.simt.lanes.analysis.regions import SplitThread
    from nbrt.backends.cpu.simt.llvm.model import Function, Instruction

__all__ = [
    "STRIPS",
    "block_index",
    "continues_runs",
    "fitting_strip",
    "has_short_rows",
    "strip_obstacle",
]

STRIPS = "up to {} neighbouring blocks run in step, so that the runs of their rows are one run"
"""What the reasons of a lowering say about strips."""

_MAX_STRIP = 32
"""Maximum number of blocks. Up to 32, a Jacobi step with blocks of 16 x 16 threads gains: 2048^2
took 1.18 times Numba's time with single blocks, 1.02, 0.90 and 0.83 with 8, 16 and 32."""

_MAX_BYTES = 128 * 1024
"""Maximum size of the shared arrays and the kept values of a strip: part of a level-2 cache."""

_ANY_ORDER = frozenset(("and", "or", "xor", "max", "min", "umax", "umin", "fmax", "fmin"))
"""Atomic operations that give the same in any order."""

_ANY_ORDER_CALLS = ("nbrt_atomic_max", "nbrt_atomic_min")


def has_short_rows(block: tuple[int, int, int], width: int) -> bool:
    """Return whether blocks of a shape access short runs: several rows of at most one vector."""
    return block[1:] != (1, 1) and 1 < block[0] <= width


def block_index(function: Function) -> str:
    """Return the name of ``blockIdx.x``."""
    return function.parameters[THREAD_PARAMETERS + 3].text


def continues_runs(
    function: Function,
    width: int,
    advances: Advances,
    is_private: Callable[[str], bool],
) -> bool:
    """Return whether the next block continues the runs of an access to memory of the launch.

    `width` is that of the block; `is_private` tells whether an address is private to it.
    """
    for _, item in function.instructions():
        if item.opcode not in ("load", "store") or is_private(item.operands[-1].text):
            continue
        kind = item.type if item.opcode == "load" else item.operands[0].type
        if not is_scalar(kind):
            continue
        advance = advances.of(item.operands[-1])
        if advance is not None and advance.by is None and advance.factor == width * size_of(kind):
            return True
    return False


def fitting_strip(size: int) -> tuple[int, str]:
    """Return the number of blocks of a strip, for the bytes that a block needs, and what limits it.

    The reason is empty unless the number is 1.
    """
    fitting = _MAX_BYTES // max(1, size)
    if fitting < 2:
        return 1, "the shared arrays and kept values of two blocks take too much memory"
    return min(_MAX_STRIP, fitting), ""


def strip_obstacle(
    thread: SplitThread,
    varying: Mapping[str, Stride],
    used: set[str],
    is_private: Callable[[str], bool],
) -> str:
    """Return why blocks run one by one; empty if a strip may run in step.

    Parameters
    ----------
    thread : SplitThread
        The thread and its regions.
    varying : mapping
        The thread indices and the results of barriers, as values that vary in the block.
    used : set of str
        Names of the values that are used.
    is_private : callable
        Tells whether an address is always to memory that is private to the block.
    """
    if thread.interchanged or _has_loop_of_regions(thread):
        return "a barrier is in a loop, so the values of one block stay in the nearest cache"
    if any(barrier.result for barrier in thread.barriers.values()):
        return "a barrier counts the threads of the block"
    regions = thread.regions
    if any(FAILED in thread.successors(b) for r in regions for b in r.level.blocks):
        return "a thread may raise"
    whole = Divergence(thread.function, {**varying, block_index(thread.function): VARYING}, {}, 0)
    try:
        check_uniform(thread, whole)
    except CannotLowerError:
        return "threads of two blocks may wait at different barriers"
    if may_return_before_others(thread, whole):
        return "some threads may return before others wait"
    for _, item in thread.function.instructions():
        if not _is_independent(item, used, is_private):
            return f"the order of blocks may matter ({item.detail or item.opcode})"
    return ""


def _has_loop_of_regions(thread: SplitThread) -> bool:
    """Return whether a region may run again after others."""
    following = {
        region.wait: [t for label in region.level.blocks for t in thread.successors(label)]
        for region in thread.regions
    }
    for start, targets in following.items():
        reached: set[str] = set()
        pending = [*targets]
        while pending:
            place = pending.pop()
            if place in following and place not in reached:
                reached.add(place)
                pending += following[place]
        if start in reached:
            return True
    return False


def _is_independent(item: Instruction, used: set[str], is_private: Callable[[str], bool]) -> bool:
    """Return whether the effect of an instruction is the same for any order of blocks."""
    if item.opcode == "cmpxchg":
        return is_private(item.operands[0].text)
    if item.opcode == "atomicrmw":
        if is_private(item.operands[0].text):
            return True
        is_sum = item.detail in ("add", "sub") and is_integer(item.type)
        return item.name not in used and (is_sum or item.detail in _ANY_ORDER)
    if item.opcode in ("load", "store") and item.detail:
        return False  # volatile or atomic
    if item.opcode != "call":
        return True
    name = item.detail
    if name.startswith(_ANY_ORDER_CALLS):
        return item.name not in used
    if placeholders.is_marker(name):
        return name != placeholders.SHARED_DYNAMIC
    return name.startswith("llvm.") or name in PURE_FUNCTIONS
