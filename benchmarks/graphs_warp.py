# No `from __future__ import annotations`: Warp reads the annotations of its kernels as objects.
"""Graphs of Warp on the CPU."""

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["warp_graph"]


def warp_graph(wp: Any, nodes: int, threads: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return functions that replay a graph of equal launches, and that capture it.

    Parameters
    ----------
    wp : module
        The module `warp`.
    nodes, threads : int
        Launches of the graph, and threads of each.
    """
    wp.config.quiet = True
    wp.init()

    @wp.kernel(enable_backward=False)
    def add(x: wp.array(dtype=wp.float32), value: wp.float32):
        i = wp.tid()
        x[i] = x[i] + value

    x = wp.from_numpy(np.zeros(threads, np.float32), device="cpu")
    wp.launch(add, dim=threads, inputs=[x, 1.0], device="cpu")

    def capture() -> Any:
        with wp.ScopedCapture(device="cpu") as scope:
            for _ in range(nodes):
                wp.launch(add, dim=threads, inputs=[x, 1.0], device="cpu")
        return scope.graph

    graph = capture()

    def replay() -> None:
        wp.capture_launch(graph)

    before = x.numpy()[0]
    replay()
    if x.numpy()[0] != before + nodes:
        raise RuntimeError(f"expected a replay of {nodes} launches, got {x.numpy()[0] - before}")
    return replay, capture
