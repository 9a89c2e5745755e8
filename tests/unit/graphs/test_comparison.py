"""The first difference between two graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.graph_nodes import branch, copy, fill, launch, loop, node, view
from nbrt._internal.callsite import CallSite
from nbrt.backends.draw import Draw
from nbrt.backends.graphs import NodeSource, StateAdvance
from nbrt.graphs.comparison import first_difference, topology_difference


def scale(x: object, factor: float) -> None:
    """Stand for a kernel."""


def shift(x: object, factor: float) -> None:
    """Stand for another kernel."""


def draw(offset: int, **fields: Any) -> Any:
    """Return a node that draws."""
    request = Draw("normal", "float32", 4, (0.0, 1.0), offset=offset, **fields)
    args = (view(0), request._replace(device_state=view(9, (2,), "uint64")))
    return node(0, "draw", label="normal", source=NodeSource(print, args))


def loop_drawing(words: int) -> Any:
    """Return a loop whose body draws."""
    body = branch(copy(0, view(1), view(0)))
    body.advances = (StateAdvance(9, words),)
    return loop(0, view(2, (1,), "bool"), body)


CASES: dict[str, tuple[list[Any], list[Any], str]] = {
    "kind": (
        [fill(0, view(0), 0.0)],
        [copy(0, view(0), view(1))],
        "node 0: fill here, copy there",
    ),
    "shape": (
        [fill(0, view(0), 0.0), copy(1, view(1), view(0), 0)],
        [fill(0, view(0), 0.0), copy(1, view(1), view(0, (8,)), 0)],
        "node 1: copy of (4,) float32 here, (8,) float32 there",
    ),
    "dtype": (
        [launch(0, scale, [view(0), 2.0])],
        [launch(0, scale, [view(0, dtype="float64"), 2.0])],
        "node 0: launch of scale, argument 0: (4,) float32 here, (4,) float64 there",
    ),
    "scalar": (
        [launch(0, scale, [view(0), 2.0])],
        [launch(0, scale, [view(0), 3.0])],
        "node 0: launch of scale, argument 1: 2.0 here, 3.0 there",
    ),
    "scalar type": (
        [launch(0, scale, [view(0), 2.0])],
        [launch(0, scale, [view(0), np.float32(2.0)])],
        "node 0: launch of scale, argument 1: 2.0 here, np.float32(2.0) there",
    ),
    "fill": (
        [fill(0, view(0), 0.0)],
        [fill(0, view(0), -0.0)],
        "node 0: fill with 0.0 here, -0.0 there",
    ),
    "kernel": (
        [launch(0, scale, [view(0), 2.0], label="k")],
        [launch(0, shift, [view(0), 2.0], label="k")],
        f"node 0: launch of scale of line {scale.__code__.co_firstlineno} here, of shift of line "
        f"{shift.__code__.co_firstlineno} there",
    ),
    "grid": (
        [launch(0, scale, [view(0), 2.0])],
        [launch(0, scale, [view(0), 2.0], grid=(4, 2, 1))],
        "node 0: launch of scale with grid 1 here, (4, 2) there",
    ),
    "edge": (
        [fill(0, view(0), 0.0), fill(1, view(1), 0.0, 0)],
        [fill(0, view(0), 0.0), fill(1, view(1), 0.0)],
        "node 1: after 0 here, after no node there",
    ),
    "buffer": (
        [fill(0, view(0), 0.0), fill(1, view(0), 0.0, 0)],
        [fill(0, view(0), 0.0), fill(1, view(1), 0.0, 0)],
        "node 1: fill of buffer 0 here, buffer 1 there, which earlier nodes do not use in the same "
        "places",
    ),
    "offset": (
        [fill(0, view(0), 0.0)],
        [fill(0, view(0, offset=16), 0.0)],
        "node 0: fill of byte 0 of a buffer here, byte 16 there",
    ),
    "longer": (
        [fill(0, view(0), 0.0)],
        [fill(0, view(0), 0.0), launch(1, scale, [view(0), 1.0])],
        "node 1: no node here, launch of scale there",
    ),
    "enabled": (
        [fill(0, view(0), 0.0)],
        [fill(0, view(0), 0.0, is_enabled=False)],
        "node 0: enabled here, disabled there",
    ),
    "limit": (
        [loop(0, view(0, (1,), "bool"), branch())],
        [loop(0, view(0, (1,), "bool"), branch(), limit=7)],
        "node 0: at most 100 turns here, 7 there",
    ),
    "body": (
        [loop(0, view(0, (1,), "bool"), branch(fill(0, view(1), 0.0)))],
        [loop(0, view(0, (1,), "bool"), branch(fill(0, view(1), 1.0)))],
        "node 0.body.0: fill with 0.0 here, 1.0 there",
    ),
    "stream": (
        [fill(0, view(0), 0.0), fill(1, view(1), 0.0, 0)],
        [fill(0, view(0), 0.0), fill(1, view(1), 0.0, 0, stream=4)],
        "node 1: on stream 1 here, on another stream, 4, there",
    ),
    "offset of a draw": (
        [draw(0)],
        [draw(16)],
        "node 0: draw with offset 0 here, 16 there",
    ),
    "words of a body": (
        [loop_drawing(4)],
        [loop_drawing(8)],
        "node 0: while with draws of [4] words here, of [8] there",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_difference_names_the_node_and_both_values(name: str) -> None:
    here, there, text = CASES[name]
    assert str(first_difference(here, there)) == text
    assert first_difference(there, here) is not None


@pytest.mark.parametrize("name", CASES)
def test_a_graph_equals_itself(name: str) -> None:
    here, there, _ = CASES[name]
    assert first_difference(here, here) is None
    assert first_difference(there, there) is None


@pytest.mark.parametrize("name", CASES)
def test_topology_ignores_arguments(name: str) -> None:
    here, there, _ = CASES[name]
    found = topology_difference(here, there)
    assert (found is not None) == (name in ("kind", "edge", "longer"))
    if found is not None:
        assert found == first_difference(here, there)


def test_graphs_on_other_arrays_and_streams_are_equal() -> None:
    here = [fill(0, view(0), 0.0), copy(1, view(3), view(0), 0, stream=2)]
    there = [fill(0, view(5), 0.0, stream=8), copy(1, view(0), view(5), 0, stream=7)]
    assert first_difference(here, there) is None


def test_nan_equals_nan() -> None:
    nan = float("nan")
    assert first_difference([fill(0, view(0), nan)], [fill(0, view(0), -nan * 0 + nan)]) is None


def test_both_lines_are_named() -> None:
    here = fill(0, view(0), 0.0, site=CallSite.here())
    there = fill(0, view(0), 1.0, site=CallSite.here())
    text = str(first_difference([here], [there]))
    first, last = (
        int(part.split(")")[0].split(",")[0]) for part in text.split("test_comparison.py:")[1:]
    )
    assert last == first + 1
