"""Branches of graphs on several cores of a CPU device."""

from __future__ import annotations

import random
import threading
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda

import nbrt
from helpers.cpu_graphs import Graph
from nbrt.backends.cpu.block_scheduler import get_num_threads, set_num_threads
from nbrt.backends.cpu.graphs.chains import Chain, chains_of, makespan, regions_of
from nbrt.backends.graphs import ReplayValues

LONG = 3_000_000
"""Turns of a loop that takes milliseconds: long enough for a second thread."""

HOURS = 3_000_000_000_000


def add(x, value):
    i = cuda.grid(1)
    if i < x.size:
        x[i] += value


def count(out, seen, turns):
    i = cuda.threadIdx.x
    seen[0] = 1
    total = 0.0
    for turn in range(turns):
        total += turn * out[i]
    out[i] = total


def fail(x):
    if x[0] >= 0:
        raise ValueError("in a branch")


@pytest.fixture
def two_threads():
    before = get_num_threads()
    set_num_threads(2)
    yield
    set_num_threads(before)


# -- chains ----------------------------------------------------------------------------------------


def _random_dependencies(seed: int, size: int) -> list[tuple[int, ...]]:
    chooser = random.Random(seed)
    return [
        tuple(chooser.sample(range(number), min(number, chooser.randint(0, 3))))
        for number in range(size)
    ]


def _ancestors(dependencies) -> list[set[int]]:
    found: list[set[int]] = []
    for before in dependencies:
        found.append(set(before).union(*(found[node] for node in before)))
    return found


@given(st.integers(0, 10**6), st.integers(0, 30))
@settings(max_examples=100, deadline=None)
def test_chains_keep_exactly_the_order_of_a_graph(seed, size):
    dependencies = _random_dependencies(seed, size)
    chains = chains_of(dependencies)
    assert sorted(node for chain in chains for node in chain.nodes) == list(range(size))
    expanded: dict[int, tuple[int, ...]] = {}
    for number, chain in enumerate(chains):
        assert all(before < number for before in chain.before)
        for position, node in enumerate(chain.nodes):
            expanded[node] = (
                (chain.nodes[position - 1],)
                if position
                else tuple(chains[before].nodes[-1] for before in chain.before)
            )
    assert _ancestors([expanded[node] for node in range(size)]) == _ancestors(dependencies)


@given(st.integers(0, 10**6), st.integers(0, 30))
@settings(max_examples=100, deadline=None)
def test_a_region_is_done_before_the_next_one(seed, size):
    chains = chains_of(_random_dependencies(seed, size))
    ancestors = _ancestors([chain.before for chain in chains])
    regions = regions_of(chains)
    assert [number for region in regions for number in region] == list(range(len(chains)))
    for region, following in pairwise(regions):
        if len(region) == 1 or len(following) == 1:
            assert all(a in ancestors[b] for a in region for b in following)


def test_the_chains_of_common_shapes():
    assert chains_of([(), (0,), (1, 0)]) == [Chain([0, 1, 2], ())]
    assert chains_of([]) == []
    fork = [(), (0,), (0,), (1,), (2,), (3, 4)]
    chains = chains_of(fork)
    assert chains == [Chain([0], ()), Chain([1, 3], (0,)), Chain([2, 4], (0,)), Chain([5], (1, 2))]
    assert regions_of(chains) == [range(1), range(1, 3), range(3, 4)]
    assert makespan(chains, range(1, 3), [30, 20], 2) == 30
    assert makespan(chains, range(1, 3), [30, 20], 1) == 50


# -- replays ---------------------------------------------------------------------------------------


def _fork(turns: int, calls=(), seen=None) -> tuple[Graph, list[np.ndarray], np.ndarray]:
    """Return a graph with a fork into two long branches, and a join that counts."""
    graph, joined = Graph(), np.zeros(1)
    seen = np.zeros(1) if seen is None else seen
    first = graph.launch(add, 1, 1, joined, 1.0)
    outs, ends = [np.ones(1), np.ones(1)], []
    for number, out in enumerate(outs):
        node = graph.launch(count, 1, 1, out, seen, turns, after=[first])
        ends.append(
            graph.call(calls[number], after=[node])
            if calls
            else graph.launch(add, 1, 1, out, 1.0, after=[node])
        )
    graph.launch(add, 1, 1, joined, 10.0, after=ends)
    return graph, outs, joined


def test_branches_run_at_once(two_threads):
    armed, meeting = [False], threading.Barrier(2, timeout=300)

    def meet():
        if armed[0]:
            meeting.wait()

    graph, _, joined = _fork(LONG, [meet, meet])
    program = graph.program()
    for _ in range(2):
        graph.replay(program)
    armed[0] = True
    for _ in range(3):
        graph.replay(program)  # returns only if both branches wait at once
    assert joined[0] == 55


def test_a_deterministic_program_uses_one_thread(two_threads):
    idents = set()
    graph, _, _ = _fork(LONG, [lambda: idents.add(threading.get_ident())] * 2)
    program = graph.program(deterministic=True)
    for _ in range(4):
        graph.replay(program)
    assert idents == {threading.get_ident()}


def test_branches_give_the_values_of_one_thread(two_threads):
    graph, outs, joined = _fork(LONG)
    alone, expected, _ = _fork(LONG)
    program, other = graph.program(), alone.program(deterministic=True)
    for replays in range(1, 5):
        graph.replay(program)
        alone.replay(other)
        np.testing.assert_array_equal(outs, expected)
        assert joined[0] == 11 * replays
        for out in (*outs, *expected):
            out[0] = 1


def test_large_launches_in_branches(two_threads):
    graph, n = Graph(), 1 << 20
    first = graph.call(int)
    arrays = [np.zeros(n), np.zeros(n)]
    for x in arrays:
        node = graph.launch(add, n // 256, 256, x, 1.0, after=[first])
        graph.launch(add, n // 256, 256, x, 1.0, after=[node])
    program = graph.program()
    for replays in range(1, 6):
        graph.replay(program)
        for x in arrays:
            assert (x == 2 * replays).all()


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs_give_the_values_of_their_order(two_threads, seed):
    """Each node adds the values of its dependencies to its own."""
    dependencies = _random_dependencies(seed, 24)
    graph, values = Graph(), np.zeros(len(dependencies))

    def gather(x, number, before, turns):
        total = 0.0
        for turn in range(turns):
            total += turn * 1e-9
        x[number] = 1.0 + (total - total)
        for other in before:
            x[number] += x[other] * 0.5

    for number, before in enumerate(dependencies):
        after = [graph.nodes[node] for node in before]
        numbers = np.array(before, np.int64)
        graph.launch(gather, 1, 1, values, number, numbers, 200_000, after=after)
    program = graph.program()
    expected = np.zeros(len(dependencies))
    for number, before in enumerate(dependencies):
        expected[number] = 1
        for other in before:
            expected[number] += expected[other] * 0.5
    for _ in range(6):
        values[:] = 0
        graph.replay(program)
        np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("branch", [0, 1])
@pytest.mark.parametrize("replays", [0, 3])
def test_a_failure_in_a_branch_ends_the_other(two_threads, branch, replays):
    graph, joined, seen = Graph(), np.zeros(1), np.zeros(1)
    turns, broken = LONG, np.full(1, -1)
    first = graph.launch(add, 1, 1, joined, 1.0)
    ends = []
    for number in range(2):
        node = graph.launch(count, 1, 1, np.ones(1), seen, turns, after=[first])
        if number == branch:
            node = graph.launch(fail, 1, 1, broken, after=[node])
        ends.append(graph.launch(add, 1, 1, np.zeros(1), 1.0, after=[node]))
    graph.launch(add, 1, 1, joined, 10.0, after=ends)
    program = graph.program()
    for _ in range(replays):
        graph.replay(program)
    before, broken[0] = joined[0], 0
    # The other branch would run for hours.
    endless = [node for node in graph.nodes if node.label == "count"][1 - branch]
    values = ReplayValues(scalars={(endless.index, 0, 2): HOURS} if replays else {})
    with pytest.raises(ValueError, match="in a branch") as caught:
        graph.replay(program, values)
    assert any("launch 'fail'" in note for note in caught.value.__notes__)
    assert joined[0] == before + 1
    broken[0] = -1
    graph.replay(program)
    assert joined[0] == before + 12


def test_cancel_ends_all_branches(two_threads):
    seen = np.zeros(1)
    graph, _, joined = _fork(LONG, seen=seen)
    program = graph.program()
    for _ in range(3):
        graph.replay(program)
    stream = nbrt.Stream("cpu:0")
    counts = [node.index for node in graph.nodes if node.label == "count"]
    scalars = {(index, 0, 2): HOURS for index in counts}
    seen[0] = 0
    program.replay(stream.queue, ReplayValues(scalars=scalars))
    while seen[0] == 0:
        pass
    stream.cancel()
    stream.synchronize()
    assert joined[0] == 34
    graph.replay(program)
    assert joined[0] == 45
