"""Replays of graphs on streams of CPU devices: order, overlap, failures, cancellation, lifetime."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
from numba import cuda

import nbrt
from helpers.cpu_graphs import Graph
from nbrt.backends.graphs import ReplayValues
from nbrt.errors import GraphError, StreamError
from nbrt.testing import Latch

TURNS = 3_000_000_000_000


def add(x, value):
    i = cuda.grid(1)
    if i < x.size:
        x[i] += value


def fail(x):
    if x[0] >= 0:
        raise ValueError("in the kernel")


def run_for_hours(out, seen, turns):
    i = cuda.threadIdx.x
    seen[0] = 1
    total = 0.0
    for turn in range(turns):
        total += turn * out[i]
    out[i] = total


@pytest.fixture
def streams():
    return [nbrt.Stream("cpu:0") for _ in range(3)]


def _held_graph(latch, seen):
    """Return a graph whose replay notes its begin, waits for the latch, and notes its end."""
    graph = Graph()
    x = np.zeros(1)
    graph.call(seen.append, "begin")
    graph.call(latch.wait)
    graph.launch(add, 1, 1, x, 1.0)
    graph.call(seen.append, "end")
    return graph


class _Gate:
    """Blocks host functions of a graph until it is opened."""

    def __init__(self):
        self._event = threading.Event()
        self.reached = threading.Event()

    def wait(self):
        self.reached.set()
        assert self._event.wait(300)

    def open(self):
        self._event.set()


@pytest.fixture
def gate():
    gate = _Gate()
    yield gate
    gate.open()


def test_a_replay_keeps_its_place_in_the_stream(streams):
    graph, seen = Graph(), []
    graph.call(seen.append, "graph")
    program = graph.program()
    with Latch() as latch:
        latch.hold(streams[0])
        streams[0].call(seen.append, "before")
        program.replay(streams[0].queue, ReplayValues())
        streams[0].call(seen.append, "after")
        assert not seen
    streams[0].synchronize()
    assert seen == ["before", "graph", "after"]


def test_replays_on_several_streams_run_one_after_the_other(streams, gate):
    seen = []
    program = _held_graph(gate, seen).program()
    for stream in streams:
        program.replay(stream.queue, ReplayValues())
    gate.reached.wait()
    assert seen == ["begin"]
    assert not any(stream.query() for stream in streams)
    gate.open()
    for stream in streams:
        stream.synchronize()
    assert seen == ["begin", "end"] * 3


def test_each_replay_has_its_own_values(streams):
    graph = Graph()
    state, out = np.zeros(2, np.uint64), np.zeros(1)
    graph.launch(add, 1, 1, out, 1.0)
    graph.call(lambda a, b: results.append((a[1], b[0])), state, out)
    results = []
    program = graph.program()
    number = graph.number_of(state)
    other = np.full(1, 50.0)
    with Latch() as latch:
        latch.hold(streams[0])
        program.replay(streams[0].queue, ReplayValues(states=[(number, 7, 4)]))
        replaced = {graph.number_of(out): other.ctypes.data}
        values = ReplayValues(states=[(number, 7, 8)], addresses=replaced, owners=(other,))
        program.replay(streams[1].queue, values)
        program.replay(streams[2].queue, ReplayValues(states=[(number, 7, 12)]))
    for stream in streams:
        stream.synchronize()
    assert results == [(4, 1), (8, 51), (12, 2)]


def test_a_replay_on_the_default_stream_waits_for_one_on_a_stream(streams, gate):
    seen = []
    program = _held_graph(gate, seen).program()
    program.replay(streams[0].queue, ReplayValues())
    gate.reached.wait()
    default = nbrt.default_stream("cpu:0")
    thread = threading.Thread(target=program.replay, args=(default.queue, ReplayValues()))
    thread.start()
    # The default stream is not blocked by a replay that waits for its turn.
    default.call(seen.append, "default")
    gate.open()
    thread.join()
    streams[0].synchronize()
    assert seen == ["begin", "default", "end", "begin", "end"]


def test_a_graph_in_its_own_function_is_refused(streams):
    graph = Graph()
    default = nbrt.default_stream("cpu:0")
    graph.call(lambda: program.replay(default.queue, ReplayValues()))
    program = graph.program()
    with pytest.raises(GraphError, match="overlap"):
        program.replay(default.queue, ReplayValues())


def test_a_function_replays_another_graph(streams):
    inner, outer, x = Graph(), Graph(), np.zeros(1)
    inner.launch(add, 1, 1, x, 1.0)
    program = inner.program()
    outer.call(inner.replay, program)
    outer.launch(add, 1, 1, x, 10.0)
    outer.call(inner.replay, program)
    outer.replay(outer.program())
    assert x[0] == 12


@pytest.mark.parametrize("fails", ["kernel", "function"])
def test_a_failed_replay_fails_the_stream_and_frees_the_program(streams, fails):
    graph, x = Graph(), np.zeros(1)

    def fail_once():
        if x[0] >= 0:
            raise ValueError("in the function")

    if fails == "kernel":
        graph.launch(fail, 1, 1, x)
    else:
        graph.call(fail_once)
    graph.launch(add, 1, 1, x, 1.0)
    program = graph.program()
    with Latch() as latch:
        latch.hold(streams[0])
        for stream in streams:
            program.replay(stream.queue, ReplayValues())
        program.replay(streams[0].queue, ReplayValues())  # dropped
    for stream in streams:
        with pytest.raises(StreamError, match=r"replay of a graph failed on .* with ValueError"):
            stream.synchronize()
    assert x[0] == 0
    x[0] = -1
    program.replay(streams[1].queue, ReplayValues())
    streams[1].synchronize()
    assert x[0] == 0


def test_cancelled_replays_free_the_program(streams, gate):
    graph, x = Graph(), np.zeros(1)
    graph.launch(add, 1, 1, x, 1.0)
    program = graph.program()
    streams[0].call(gate.wait)
    gate.reached.wait()
    program.replay(streams[0].queue, ReplayValues())
    program.replay(streams[1].queue, ReplayValues())
    assert streams[0].cancel() == 1
    gate.open()
    for stream in streams[:2]:
        stream.synchronize()
    assert x[0] == 1


def test_a_cancelled_replay_does_not_let_others_overlap(streams, gate):
    seen = []
    program = _held_graph(gate, seen).program()
    program.replay(streams[0].queue, ReplayValues())
    gate.reached.wait()
    program.replay(streams[1].queue, ReplayValues())
    streams[1].cancel()
    streams[1].synchronize()
    program.replay(streams[2].queue, ReplayValues())
    assert seen == ["begin"]
    gate.open()
    streams[2].synchronize()
    assert seen == ["begin", "end"] * 2


@pytest.mark.parametrize(("grid", "block"), [(1, 1), (1, 64), (4, 64)])
def test_cancel_ends_a_running_kernel_and_the_nodes_behind_it(streams, grid, block):
    graph, out, after, seen = Graph(), np.zeros(block), np.zeros(1), np.zeros(1)
    graph.launch(run_for_hours, grid, block, out, seen, TURNS)
    graph.launch(add, 1, 1, after, 1.0)
    program = graph.program()
    program.replay(streams[0].queue, ReplayValues())
    while seen[0] == 0:
        pass
    streams[0].cancel()
    streams[0].synchronize()
    assert after[0] == 0
    program.close()


def test_cancel_ends_an_endless_loop(streams):
    graph, x, flag = Graph(), np.zeros(1), np.ones(1, bool)
    graph.control("while", flag, [lambda: graph.launch(add, 1, 1, x, 1.0)], limit=2**62)
    program = graph.program()
    program.replay(streams[0].queue, ReplayValues())
    while x[0] == 0:
        pass
    streams[0].cancel()
    streams[0].synchronize()
    flag[0] = False
    program.replay(streams[0].queue, ReplayValues())
    streams[0].synchronize()


def test_cancel_during_a_function_skips_the_nodes_behind_it(streams, gate):
    graph, after = Graph(), np.zeros(1)
    graph.call(gate.wait)
    graph.launch(add, 1, 1, after, 1.0)
    program = graph.program()
    program.replay(streams[0].queue, ReplayValues())
    gate.reached.wait()
    streams[0].cancel()
    gate.open()
    streams[0].synchronize()
    assert after[0] == 0


def test_close_during_a_replay_keeps_the_memory_until_its_end(streams, gate):
    graph, seen = Graph(), []
    x = np.zeros(1000)
    result = np.zeros(1)
    alive = weakref.ref(x)
    graph.call(gate.wait)
    graph.launch(add, 1, 1, x, 1.0)
    graph.copy(result, x[:1])
    program = graph.program()
    for _ in range(2):
        program.replay(streams[0].queue, ReplayValues())
    gate.reached.wait()
    del graph, x
    closing = threading.Thread(target=program.close)
    closing.start()
    closing.join()
    gc.collect()
    assert alive() is not None
    gate.open()
    streams[0].synchronize()
    del program
    gc.collect()
    assert (result[0], alive(), seen) == (2, None, [])


def test_replays_from_many_threads():
    graph, x = Graph(), np.zeros(1)
    for _ in range(10):
        graph.launch(add, 1, 1, x, 1.0)
    program = graph.program()
    queues = [nbrt.Stream("cpu:0").queue for _ in range(2)]
    queues += [nbrt.default_stream(f"cpu:{index}").queue for index in range(2)]

    def replay(queue):
        for _ in range(50):
            program.replay(queue, ReplayValues())

    threads = [threading.Thread(target=replay, args=(queue,)) for queue in queues * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for queue in queues:
        queue.synchronize()
    assert x[0] == len(threads) * 50 * 10


def test_a_closed_stream_refuses_a_replay_and_the_program_stays_usable():
    from nbrt.backends.cpu.queues import WorkerQueue

    graph, x = Graph(), np.zeros(1)
    graph.launch(add, 1, 1, x, 1.0)
    program = graph.program()
    queue = WorkerQueue(0, 0, "a queue")
    queue.close()
    with pytest.raises(StreamError, match="closed"):
        program.replay(queue, ReplayValues())
    graph.replay(program)
    assert x[0] == 1
