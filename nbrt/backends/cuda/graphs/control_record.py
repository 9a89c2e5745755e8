"""`ControlRecord`: what a graph keeps of a branch or loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbrt.backends.cuda.driver import Driver
    from nbrt.backends.graphs import ControlKind

__all__ = ["COUNTER_BYTES", "ControlRecord", "LoopCounter"]

COUNTER_BYTES = 16


class LoopCounter:
    """The turns of a loop, and whether it had too many, as uint64[2] in device memory.

    Attributes
    ----------
    index : int
        The device.
    address : int
        The first byte.
    limit : int
        The largest number of turns.
    """

    __slots__ = ("_captures", "_memory", "address", "index", "limit")

    def __init__(self, driver: Driver, index: int, limit: int) -> None:
        self._captures = driver.captures
        with driver.on_device(index), driver.relaxed():
            self._memory = driver.cupy.cuda.Memory(COUNTER_BYTES)
        self.index = index
        self.address = int(self._memory.ptr)
        self.limit = limit

    def __del__(self) -> None:
        # The collector may run in another capture, which a free would make invalid.
        self._captures.keep_until_end(self._memory)


@dataclass(eq=False)
class ControlRecord:
    """A control flow node of a captured graph.

    Until the end of the capture its bodies are graphs apart; then they are those of the node.

    Attributes
    ----------
    kind : str
        As of a `GraphNode`.
    index : int
        The device.
    setters : list of int
        The kernel nodes that set its condition.
    bodies : list of int
        The graphs of its bodies.
    counter : LoopCounter or None
        Of a loop.
    node : int
        The conditional node, at the end of the capture.
    """

    kind: ControlKind
    index: int
    setters: list[int] = field(default_factory=list)
    bodies: list[int] = field(default_factory=list)
    counter: LoopCounter | None = None
    node: int = 0
