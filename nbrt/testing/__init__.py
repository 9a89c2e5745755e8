"""Tools for tests of code that uses nbrt: latches, recorders of commands, comparisons of graphs."""

from __future__ import annotations

from nbrt.testing.graphs import GraphDifferenceError, graph_equals_eager
from nbrt.testing.latch import Latch
from nbrt.testing.recorder import CommandRecorder, RecordedCommand

__all__ = [
    "CommandRecorder",
    "GraphDifferenceError",
    "Latch",
    "RecordedCommand",
    "graph_equals_eager",
]
