"""`take_over`: replaces the work of a graph by that of another; `Closing` of the program before."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.driver_capture import DriverProgram
from nbrt.errors import ArgumentTypeError, GraphError
from nbrt.graphs.buffers import address_of
from nbrt.graphs.comparison import topology_difference
from nbrt.graphs.generators import GeneratorUse, new_state
from nbrt.runtime.creation import empty
from nbrt.runtime.memory.pool import use_pool
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.backends.graphs import GraphBuffer, GraphNode, GraphProgram

__all__ = ["Closing", "take_over"]

_TAKEN = ("label", "stream", "device", "work", "site", "flag", "limit", "source")


class Closing:
    """Closes a program once no thread refers to this object."""

    __slots__ = ("_program",)

    def __init__(self, program: GraphProgram) -> None:
        self._program = program

    def __del__(self) -> None:
        if sys is not None and not sys.is_finalizing():
            self._program.close()


def take_over(graph: Any, other: Any) -> None:
    """Replace the work of a graph by that of another one, which stays independent.

    Raises
    ------
    GraphError
        If kinds of nodes, dependencies or branches differ; names the first node that does.
    """
    if not isinstance(other, type(graph)):
        raise ArgumentTypeError(f"expected a Graph, got {other!r}")
    with graph._lock:
        program, _ = graph._usable()
        other_program, parameters = other._usable()
        difference = topology_difference(graph._nodes, other._nodes)
        if difference is not None or graph.device != other.device:
            where = difference or f"it was captured on {other.device}, this one on {graph.device}"
            raise GraphError(
                f"expected a graph of the same topology, got one that differs: {where}; use the "
                f"other graph instead"
            )
        buffers, uses, arena = other._buffers, other._uses, other._arena
        if isinstance(program, DriverProgram):
            program.update(other_program)
            graph._memory_keys = (graph._memory_keys[0], *other._memory_keys)
        else:
            buffers, uses, arena = _copied_memory(graph, other)
        _take_nodes(graph._nodes, other._nodes)
        graph._buffers, graph._uses, graph._arena = buffers, uses, arena
        graph._parameters, graph._plan = parameters, other._plan
        graph._origin, graph._collectives = other._origin, other._collectives
        if not isinstance(program, DriverProgram):
            graph._adopt(graph._new_program(graph._nodes, buffers))


def _take_nodes(nodes: Sequence[GraphNode], others: Sequence[GraphNode]) -> None:
    """Change nodes in place: references to them stay valid, and disabled ones stay disabled."""
    for node, other in zip(nodes, others, strict=True):
        for name in _TAKEN:
            setattr(node, name, getattr(other, name))
        for branch, source in zip(node.branches, other.branches, strict=True):
            branch.advances = source.advances
            _take_nodes(branch.nodes, source.nodes)


def _copied_memory(graph: Any, other: Any) -> tuple[list[GraphBuffer], list[Any], Any]:
    """Return buffers, generators and private memory, so that replays of both may overlap."""
    stream = current_stream(graph.device)
    buffers = [dataclasses.replace(buffer) for buffer in other._buffers]
    arena: Any = None
    if other._plan is not None and other._plan.peak:
        with use_pool(graph.pool):
            arena = empty(other._plan.peak, np.uint8, stream=stream)
        for number, offset in other._plan.offsets.items():
            buffers[number].address, buffers[number].owner = address_of(arena) + offset, arena
    uses = []
    for use in other._uses:
        copied = GeneratorUse(use.position, new_state(stream), use.buffer)
        copied.words, copied.is_dynamic = use.words, use.is_dynamic
        buffers[use.buffer].address = address_of(copied.array)
        buffers[use.buffer].owner = copied.array
        uses.append(copied)
    return buffers, uses, arena
