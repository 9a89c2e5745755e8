"""Places the private memory of a graph in one block of its pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.graphs.buffers import address_of
from nbrt.graphs.memory_plan import MemoryPlan, plan_memory
from nbrt.runtime.creation import empty
from nbrt.runtime.memory.pool import use_pool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.backends.graphs import GraphNode
    from nbrt.graphs.buffers import BufferTable
    from nbrt.runtime.memory.pool import MemoryPool
    from nbrt.runtime.stream import Stream

__all__ = ["place_buffers"]


def place_buffers(
    buffers: BufferTable, nodes: Sequence[GraphNode], stream: Stream, pool: MemoryPool
) -> tuple[MemoryPlan, Any]:
    """Keep the arrays that are alive, and move the memory of the others into one array.

    Arrays that died during the capture are used by the nodes only, so their memory may lie
    anywhere, and share bytes with that of others.

    Returns
    -------
    plan : MemoryPlan
        The places of the buffers in the array.
    arena : array or None
        The array; None if the graph has no such memory.
    """
    for allocation, buffer in buffers.private.items():
        record = allocation.free_record
        buffer.owner = None if record is None else record()
        buffer.is_private = buffer.owner is None
    if not any(buffer.is_private for buffer in buffers.buffers):
        return MemoryPlan([], 0), None
    plan = plan_memory(nodes, buffers.buffers)
    if not plan.peak:
        return plan, None
    with use_pool(pool):
        arena: Any = empty(plan.peak, np.uint8, stream=stream)
    base = address_of(arena)
    for number, offset in plan.offsets.items():
        buffer = buffers.buffers[number]
        buffer.address, buffer.owner = base + offset, arena
    return plan, arena
