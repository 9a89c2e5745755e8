"""Graphs on CUDA devices: work of other libraries, memory, and what CUDA excludes."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from helpers.clocks import HANG_TIMEOUT
from helpers.processes import run_python
from nbrt.errors import CaptureError, GraphError, StreamError
from nbrt.testing import Latch

pytestmark = pytest.mark.gpu

SIZE = 300


@nbrt.kernel
def add(x, y):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < x.size:
        y[i] += x[i]


@pytest.fixture
def arrays() -> tuple[Any, Any]:
    """0, 1, 2, ... and as many zeros."""
    x = nbrt.asarray(np.arange(float(SIZE)), device="cuda:0")
    y = nbrt.zeros(SIZE, "float64", device="cuda:0")
    nbrt.synchronize("cuda:0")
    return x, y


def host(array: Any, stream: nbrt.Stream) -> list[float]:
    stream.synchronize()
    values: list[float] = nbrt.to_host(array).tolist()
    return values


def test_plain_cupy_code_is_captured_with_its_temporaries(
    cupy: Any, arrays: tuple[Any, Any]
) -> None:
    x, y = arrays
    stream = nbrt.Stream("cuda:0")
    with nbrt.graph(stream) as g:
        temporary = cupy.sqrt(x * x + 3.0 * x * x)
        y += temporary
        add.forall(SIZE)(x, y)
        total = temporary.sum()
    assert host(y, stream) == [0.0] * SIZE
    labels = [node["name"] for node in g.nodes if node["kind"] == "launch"]
    assert len(labels) >= 6
    del temporary
    gc.collect()
    other = nbrt.Stream("cuda:0")
    for replay in (1, 2):
        g.replay(stream=other)
        assert host(y, other) == [3.0 * replay * i for i in range(SIZE)]
    assert float(total) == SIZE * (SIZE - 1)


def test_pinned_copies_read_the_host_at_each_replay(arrays: tuple[Any, Any]) -> None:
    x, y = arrays
    stream = nbrt.Stream("cuda:0")
    source = nbrt.empty_pinned(SIZE, "float64", device="cuda:0")
    target = nbrt.empty_pinned(SIZE, "float64", device="cuda:0")
    with nbrt.graph(stream) as g:
        nbrt.copy(x, source)
        add.forall(SIZE)(x, y)
        nbrt.copy(target, y)
    for value in (1.0, 2.0):
        source[:] = value
        g.replay(stream=stream)
        stream.synchronize()
    assert target.tolist() == [3.0] * SIZE


@pytest.mark.parametrize("mode", ["thread_local", "relaxed"])
def test_capture_while_another_thread_allocates_and_frees(
    arrays: tuple[Any, Any], mode: Any
) -> None:
    x, y = arrays
    stream, other = nbrt.Stream("cuda:0"), nbrt.Stream("cuda:0")
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for size in range(1, 20):
                z = nbrt.zeros(size << 16, device="cuda:0", stream=other)
                del z
                nbrt.empty_cache("cuda:0")
                other.synchronize()
        except nbrt.errors.NbrtError as error:
            failures.append(error)

    with nbrt.graph(stream, error_mode=mode) as g:
        add.forall(SIZE)(x, y)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(HANG_TIMEOUT)
        temporary = nbrt.empty(1 << 20, device="cuda:0")
        temporary[...] = 1.0
    assert not failures
    g.replay(stream=stream)
    assert host(y, stream)[1] == 1.0


def test_two_threads_capture_at_the_same_time(arrays: tuple[Any, Any]) -> None:
    x, _ = arrays
    barrier = threading.Barrier(2)
    results: dict[int, list[float]] = {}
    outputs = [nbrt.zeros(SIZE, "float64", device="cuda:0") for _ in range(2)]
    nbrt.synchronize("cuda:0")

    def work(number: int) -> None:
        stream = nbrt.Stream("cuda:0")
        with nbrt.graph(stream) as g:
            barrier.wait(HANG_TIMEOUT)
            for _ in range(number + 1):
                add.forall(SIZE)(x, outputs[number])
            barrier.wait(HANG_TIMEOUT)
        g.replay(stream=stream)
        results[number] = host(outputs[number], stream)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_TIMEOUT)
    assert [results[number][1] for number in range(2)] == [1.0, 2.0]


def test_a_graph_collected_during_another_capture(arrays: tuple[Any, Any]) -> None:
    x, y = arrays
    stream = nbrt.Stream("cuda:0")
    with nbrt.graph(stream) as g:
        z = nbrt.zeros(SIZE, "float64", device="cuda:0")
        add.forall(SIZE)(x, z)
        add.forall(SIZE)(z, y)
    g.replay(stream=stream)
    before = nbrt.memory_stats("cuda:0")["allocated_bytes.all.current"]
    with nbrt.graph(stream, error_mode="global") as other:
        add.forall(SIZE)(x, y)
        del g, z
        gc.collect()
    other.replay(stream=stream)
    assert host(y, stream)[1] == 2.0
    stream.query()
    gc.collect()
    assert nbrt.memory_stats("cuda:0")["allocated_bytes.all.current"] < before


def test_overlapping_replays_draw_different_numbers(arrays: tuple[Any, Any]) -> None:
    generator = nbrt.Generator(5, device="cuda:0")
    streams = [nbrt.Stream("cuda:0") for _ in range(3)]
    out = nbrt.zeros(SIZE, "float64", device="cuda:0")
    copies = [nbrt.zeros(SIZE, "float64", device="cuda:0") for _ in range(9)]
    nbrt.synchronize("cuda:0")
    with nbrt.graph(streams[0]) as g:
        generator.random(out=out, dtype="float64")
        target = copies[0]
        nbrt.copy(target, out)
    for number, into in enumerate(copies):
        g.replay((target, into), stream=streams[number % 3])
    for stream in streams:
        stream.synchronize()
    eager = nbrt.Generator(5, device="cuda:0")
    for into in copies:
        assert (
            nbrt.to_host(into).tolist()
            == nbrt.to_host(eager.random(SIZE, dtype="float64")).tolist()
        )
    drawn, expected = nbrt.to_host(generator.random(3)), nbrt.to_host(eager.random(3))
    assert drawn.tolist() == expected.tolist()


def test_what_cuda_excludes_is_refused_with_a_remedy(cupy: Any, arrays: tuple[Any, Any]) -> None:
    x, y = arrays
    with (
        pytest.raises(CaptureError, match=r"nbrt\.Stream"),
        nbrt.graph(nbrt.default_stream("cuda:0")),
    ):
        pass
    stream = nbrt.Stream("cuda:0")
    for call in (
        lambda: float(x[0]),
        lambda: x.get(),
        lambda: cupy.cuda.runtime.deviceSynchronize(),
        lambda: cupy.cuda.runtime.malloc(512),
    ):
        with pytest.raises((CaptureError, RuntimeError)), nbrt.graph(stream):
            call()
        assert stream.capture is None
    add.forall(SIZE, stream=stream)(x, y)
    assert host(y, stream)[1] == 1.0
    with nbrt.graph(stream) as g:
        add.forall(SIZE)(x, y)
    g.replay(stream=stream)
    assert host(y, stream)[1] == 2.0


def test_a_failed_host_call_of_a_graph(arrays: tuple[Any, Any]) -> None:
    stream = nbrt.Stream("cuda:0")
    with nbrt.graph(stream) as g:
        stream.call(lambda: 1 / 0)
    for _ in range(2):
        g.replay(stream=stream)
        with pytest.raises(StreamError, match="ZeroDivisionError"):
            stream.synchronize()


def test_reset_while_a_replay_waits(arrays: tuple[Any, Any]) -> None:
    x, y = arrays
    stream = nbrt.Stream("cuda:0")
    with nbrt.graph(stream) as g:
        z = nbrt.zeros(SIZE, "float64", device="cuda:0")
        add.forall(SIZE)(x, z)
        add.forall(SIZE)(z, y)
    with Latch(stream):
        g.replay(stream=stream)
        g.reset()
        del g, z
        gc.collect()
        taken = [nbrt.full(SIZE, 7.0, device="cuda:0") for _ in range(4)]
    assert host(y, stream) == [float(i) for i in range(SIZE)]
    assert all(float(each[0]) == 7.0 for each in taken)


def test_the_interpreter_exits_with_live_graphs() -> None:
    code = """
        import numpy as np
        import nbrt

        x = nbrt.zeros(4, device="cuda:0")
        stream = nbrt.Stream("cuda:0")
        with nbrt.graph(stream) as g:
            x[...] = 2.0
            stream.call(print, "called")
        g.replay(stream=stream)
        stream.synchronize()
        print(x.get().tolist())
        cycle = [g]
        cycle.append(cycle)
    """
    done = run_python(code, simulated_cuda=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["called", "[2.0, 2.0, 2.0, 2.0]"], done.stderr


def test_temporaries_in_bodies(cupy: Any, arrays: tuple[Any, Any]) -> None:
    x, y = arrays
    stream = nbrt.Stream("cuda:0")
    left = nbrt.asarray(np.array([3], np.int32), device="cuda:0")
    nbrt.synchronize("cuda:0")
    with nbrt.graph(stream) as g:
        outer = cupy.full(SIZE, 2.0)
        holder = [outer * 1.0]

        def body() -> None:
            nonlocal y
            inner = x * outer
            y += inner
            del inner
            y += x * 0.0 + 1.0
            holder.clear()  # the last reference to memory of the outer graph
            cupy.subtract(left, 1, out=left)

        nbrt.graphs.while_(left, body, limit=10)
        y *= 2.0
    for replay in (1, 2):
        left.fill(3)
        y.fill(0.0)
        nbrt.synchronize("cuda:0")
        g.replay(stream=stream)
        assert host(y, stream) == [2.0 * 3 * (2.0 * i + 1.0) for i in range(SIZE)], replay


@pytest.mark.parametrize("is_nested", [False, True])
def test_an_error_in_a_body_ends_the_capture(arrays: tuple[Any, Any], is_nested: bool) -> None:
    x, y = arrays
    stream = nbrt.Stream("cuda:0")
    flag = nbrt.asarray(np.array([1], np.int32), device="cuda:0")
    nbrt.synchronize("cuda:0")

    def fail() -> None:
        add.forall(SIZE)(x, y)
        nbrt.synchronize("cuda:0")

    def outer() -> None:
        add.forall(SIZE)(x, y)
        nbrt.graphs.cond(flag, fail)

    body = outer if is_nested else fail
    with pytest.raises(CaptureError, match="during a capture"), nbrt.graph(stream):
        nbrt.graphs.cond(flag, body)
    assert stream.capture is None
    with nbrt.graph(stream) as g:
        nbrt.graphs.cond(flag, lambda: add.forall(SIZE)(x, y))
    g.replay(stream=stream)
    assert host(y, stream)[1] == 1.0


def test_graphs_with_control_flow_are_not_updated(arrays: tuple[Any, Any]) -> None:
    x, y = arrays
    flag = nbrt.asarray(np.array([1], np.int32), device="cuda:0")
    nbrt.synchronize("cuda:0")
    graphs = []
    for _ in range(2):
        with nbrt.graph(nbrt.Stream("cuda:0")) as g:
            nbrt.graphs.cond(flag, lambda: add.forall(SIZE)(x, y))
        graphs.append(g)
    with pytest.raises(GraphError, match="without branches and loops"):
        graphs[0].update(graphs[1])
    stream = nbrt.Stream("cuda:0")
    graphs[0].replay(stream=stream)
    assert host(y, stream)[1] == 1.0


def test_debug_kernels_are_refused(arrays: tuple[Any, Any]) -> None:
    x, y = arrays
    debug = nbrt.kernel(cuda.jit(debug=True, opt=False)(add.py_func))
    with pytest.raises(CaptureError, match="debug=True"), nbrt.graph(nbrt.Stream("cuda:0")):
        debug.forall(SIZE)(x, y)


def test_a_profile_is_a_replay(cupy: Any, arrays: tuple[Any, Any]) -> None:
    x, y = arrays
    stream = nbrt.Stream("cuda:0")
    left = nbrt.asarray(np.array([2], np.int32), device="cuda:0")
    other = nbrt.full(SIZE, 5.0, "float64", device="cuda:0")
    nbrt.synchronize("cuda:0")
    seen: list[int] = []

    def body() -> None:
        add.forall(SIZE)(x, y)
        cupy.subtract(left, 1, out=left)

    with nbrt.graph(stream) as g:
        add.forall(SIZE)(x, y)
        stream.call(seen.append, 1)
        nbrt.graphs.while_(left, body, limit=10)
        add.forall(SIZE)(x, y)
        disabled = nbrt.zeros(SIZE, "float64")
    g[0].enable(False)
    seconds = g.profile((x, other), stream=stream)
    assert len(seconds) >= 5
    assert min(seconds) >= 0
    assert host(y, stream) == [15.0] * SIZE
    assert seen == [1]
    assert not nbrt.to_host(disabled).any()
    left.fill(1)
    nbrt.synchronize("cuda:0")
    g.replay(stream=stream)
    assert host(y, stream)[1] == 17.0
