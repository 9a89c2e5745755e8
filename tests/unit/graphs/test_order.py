"""`GraphOrder` against the transitive closure."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrt.errors import GraphError
from nbrt.graphs.order import GraphOrder


@st.composite
def dependencies(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """Draw the edges of a graph: chains with forks and joins, or any edges."""
    size = draw(st.integers(0, 25))
    most = draw(st.integers(1, 4))
    reach = draw(st.integers(1, 25))
    return [
        tuple(draw(st.lists(st.integers(max(0, node - reach), node - 1), max_size=most)))
        if node
        else ()
        for node in range(size)
    ]


def closure(edges: list[tuple[int, ...]]) -> list[set[int]]:
    before: list[set[int]] = []
    for each in edges:
        before.append({*each, *(further for node in each for further in before[node])})
    return before


@given(dependencies())
def test_order_is_the_transitive_closure(edges: list[tuple[int, ...]]) -> None:
    order, before = GraphOrder(edges), closure(edges)
    for first in range(len(edges)):
        for second in range(len(edges)):
            assert order.precedes(first, second) == (first in before[second])
    assert sorted(node for chain in order.chains for node in chain) == list(range(len(edges)))
    for number, chain in enumerate(order.chains):
        assert all(order.chain_of(node) == number for node in chain)
        assert all(first in before[second] for first, second in itertools.pairwise(chain))


@given(dependencies())
def test_the_reduction_is_the_smallest_graph_with_the_same_order(
    edges: list[tuple[int, ...]],
) -> None:
    order = GraphOrder(edges)
    reduced = order.reduced()
    assert closure(reduced) == closure(edges)
    for node, each in enumerate(reduced):
        for dropped in each:
            fewer = [*reduced]
            fewer[node] = tuple(other for other in each if other != dropped)
            assert closure(fewer) != closure(edges)


@given(dependencies())
def test_orders_of_the_nodes_respect_the_edges(edges: list[tuple[int, ...]]) -> None:
    order, before = GraphOrder(edges), closure(edges)
    for nodes in (order.by_depth(), order.by_branch()):
        assert sorted(nodes) == list(range(len(edges)))
        place = {node: index for index, node in enumerate(nodes)}
        assert all(place[first] < place[node] for node, all_ in enumerate(before) for first in all_)


def test_a_stream_of_forks_and_joins_has_as_many_chains_as_branches() -> None:
    edges: list[tuple[int, ...]] = [()]
    for _ in range(1000):
        fork = len(edges) - 1
        edges += [(fork,), (fork,), (fork,), (fork + 1, fork + 2, fork + 3)]
    order = GraphOrder(edges)
    assert len(order.chains) == 3
    assert order.precedes(0, len(order) - 1)
    assert not order.is_ordered(1, 2)


def test_many_branches_of_one_node_share_a_clock() -> None:
    width = 50_000
    edges = [(), *((0,) for _ in range(width)), tuple(range(1, width + 1))]
    order = GraphOrder(edges)
    assert len(order.chains) == width
    assert order.precedes(0, width + 1)
    assert not order.is_ordered(1, width)
    assert order.reduced() == edges
    assert len({id(clock) for clock in order._clocks}) <= 4


def test_repeated_edges_count_once() -> None:
    order = GraphOrder([(), (0, 0)])
    assert order.edges == [(0, 1)]
    assert order.successors == [[1], []]
    assert order.depths == [0, 1]


@pytest.mark.parametrize("edges", [[(0,)], [(), (2,), ()], [(-1,)]])
def test_an_edge_from_a_later_node_is_refused(edges: list[tuple[int, ...]]) -> None:
    with pytest.raises(GraphError, match="depend on earlier nodes only"):
        GraphOrder(edges)


def test_random_large_graphs_agree_with_bit_sets() -> None:
    numbers = random.Random(5)
    edges = [
        tuple(numbers.randrange(node) for _ in range(numbers.randrange(3))) if node else ()
        for node in range(400)
    ]
    order, before = GraphOrder(edges), closure(edges)
    for _ in range(4000):
        first, second = numbers.randrange(400), numbers.randrange(400)
        assert order.precedes(first, second) == (first in before[second])
