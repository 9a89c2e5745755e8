"""Captures and replays of CUDA graphs, through the interface of the backend."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from helpers.cuda_graph_kernels import add, scale
from helpers.cuda_graphs import SIZE, Recorder, values_of
from nbrt.backends.graphs import ReplayValues
from nbrt.errors import (
    CaptureError,
    DeviceMismatchError,
    GraphError,
)

if TYPE_CHECKING:
    from nbrt.backends.cuda.backend import CudaInterface
    from nbrt.backends.cuda.queues import CudaQueue


def test_nothing_runs_before_the_replay(
    recorder: Recorder, queue: CudaQueue, arrays: tuple[Any, Any]
) -> None:
    x, y = arrays
    recorder.launch(scale, queue, x, y, 2.0)
    recorder.launch(add, queue, x, y)
    program = recorder.program()
    assert values_of(queue, y) == [0.0] * SIZE
    program.replay(queue, ReplayValues())
    assert values_of(queue, y) == [3.0 * i for i in range(SIZE)]
    program.replay(queue, ReplayValues())
    assert values_of(queue, y) == [3.0 * i for i in range(SIZE)]


def test_nodes_since_names_what_a_command_added(
    recorder: Recorder, interface: CudaInterface, queue: CudaQueue, arrays: tuple[Any, Any]
) -> None:
    x, y = arrays
    first = recorder.launch(scale, queue, x, y, 2.0)
    copied = recorder.run("copy", interface.copy, queue, x, y)
    filled = recorder.run("fill", interface.fill, queue, y, 0)
    described = [recorder.capture.describe(node.handles[0]) for node in recorder.nodes]
    assert [kind for kind, _ in described] == ["launch", "copy", "fill"]
    assert "scale" in described[0][1]
    assert [len(node.handles) for node in (first, copied, filled)] == [1, 1, 1]
    assert recorder.capture.nodes_since(queue) == ()
    assert recorder.capture.tails(queue) == filled.handles


def test_work_of_cupy_is_captured(
    recorder: Recorder, queue: CudaQueue, arrays: tuple[Any, Any], cupy: Any
) -> None:
    x, y = arrays
    with queue.entered():
        cupy.multiply(x, 3.0, out=y)
    (node,) = recorder.capture.nodes_since(queue)
    kind, label = recorder.capture.describe(node)
    assert kind == "launch"
    assert "multiply" in label
    program = recorder.program()
    assert values_of(queue, y) == [0.0] * SIZE
    program.replay(queue, ReplayValues())
    assert values_of(queue, y) == [3.0 * i for i in range(SIZE)]


def test_replay_on_another_stream(
    recorder: Recorder, interface: CudaInterface, queue: CudaQueue, arrays: tuple[Any, Any]
) -> None:
    x, y = arrays
    recorder.launch(add, queue, x, y)
    program = recorder.program()
    other, default = interface.create_queue(0, 0), interface.default_queue(0)
    for used in (queue, other, default, other):
        program.replay(used, ReplayValues())
    assert values_of(other, y) == [4.0 * i for i in range(SIZE)]
    with pytest.raises(DeviceMismatchError, match="where the graph was captured"):
        program.replay(interface.create_queue(1, 0), ReplayValues())


def test_arrays_are_replaced_for_one_replay(
    recorder: Recorder, interface: CudaInterface, queue: CudaQueue, arrays: tuple[Any, Any],
    cupy: Any, z: Any,
) -> None:  # fmt: skip
    x, y = arrays
    x_number, y_number = recorder.buffer(x), recorder.buffer(y)
    recorder.launch(scale, queue, x, y, 2.0)
    recorder.run("copy", interface.copy, queue, z, y)
    with queue.entered():
        cupy.add(y, x, out=y)
    recorder.capture.nodes_since(queue)
    program = recorder.program()
    other_x, other_y = cupy.full(SIZE, 5.0), cupy.zeros(SIZE)
    cupy.cuda.Device().synchronize()
    replaced = {x_number: int(other_x.data.ptr), y_number: int(other_y.data.ptr)}
    program.replay(queue, ReplayValues(addresses=replaced))
    assert values_of(queue, other_y) == [15.0] * SIZE
    assert values_of(queue, z) == [10.0] * SIZE
    assert values_of(queue, y) == [0.0] * SIZE
    program.replay(queue, ReplayValues())
    assert values_of(queue, y) == [3.0 * i for i in range(SIZE)]
    assert values_of(queue, z) == [2.0 * i for i in range(SIZE)]
    assert values_of(queue, other_y) == [15.0] * SIZE


def test_views_move_with_their_buffer(
    recorder: Recorder, queue: CudaQueue, arrays: tuple[Any, Any], cupy: Any
) -> None:
    x, y = arrays
    number = recorder.buffer(y)
    recorder.launch(scale, queue, x[:10], y[20:30], 1.0)
    program = recorder.program()
    other = cupy.zeros(SIZE)
    cupy.cuda.Device().synchronize()
    program.replay(queue, ReplayValues(addresses={number: int(other.data.ptr)}))
    assert values_of(queue, other)[20:30] == [float(i) for i in range(10)]
    assert values_of(queue, y) == [0.0] * SIZE


def test_scalars_are_replaced_for_one_replay(
    recorder: Recorder, queue: CudaQueue, arrays: tuple[Any, Any]
) -> None:
    x, y = arrays
    node = recorder.launch(scale, queue, x, y, 2.0)
    program = recorder.program()
    program.replay(queue, ReplayValues(scalars={(node.index, 0, 2): 7.0}))
    assert values_of(queue, y) == [7.0 * i for i in range(SIZE)]
    program.replay(queue, ReplayValues())
    assert values_of(queue, y) == [2.0 * i for i in range(SIZE)]
    with pytest.raises(GraphError, match="scalar argument"):
        program.replay(queue, ReplayValues(scalars={(node.index, 0, 0): 7.0}))
    program.replay(queue, ReplayValues())
    assert values_of(queue, y) == [2.0 * i for i in range(SIZE)]


def test_nodes_are_left_out(recorder: Recorder, queue: CudaQueue, arrays: tuple[Any, Any]) -> None:
    x, y = arrays
    recorder.launch(scale, queue, x, y, 2.0)
    node = recorder.launch(add, queue, x, y)
    called = recorder.run("call", recorder.interface.call_host, queue, list)
    program = recorder.program()
    program.set_enabled(node, False)
    program.replay(queue, ReplayValues())
    assert values_of(queue, y) == [2.0 * i for i in range(SIZE)]
    node.is_enabled = True
    program.replay(queue, ReplayValues())
    assert values_of(queue, y) == [3.0 * i for i in range(SIZE)]
    with pytest.raises(GraphError, match="which CUDA cannot"):
        program.set_enabled(called, False)
    assert called.is_enabled


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_every_mode_captures(
    new_recorder: Any,
    interface: CudaInterface,
    queue: CudaQueue,
    arrays: tuple[Any, Any],
    mode: str,
) -> None:
    x, y = arrays
    recorder = new_recorder(queue, mode)
    recorder.launch(add, queue, x, y)
    program = recorder.program()
    program.replay(queue, ReplayValues())
    assert values_of(queue, y) == [float(i) for i in range(SIZE)]


def test_what_cannot_be_captured_is_refused_and_the_capture_goes_on(
    recorder: Recorder, interface: CudaInterface, queue: CudaQueue, arrays: tuple[Any, Any]
) -> None:
    x, y = arrays
    with pytest.raises(CaptureError, match="page-locked"):
        interface.copy(queue, np.empty(SIZE), x)
    with pytest.raises(CaptureError, match="synchronisation of a stream"):
        queue.synchronize()
    with pytest.raises(CaptureError, match="query"):
        queue.query()
    with pytest.raises(CaptureError, match="wait"):
        queue.add_done_callback(print)
    with pytest.raises(CaptureError, match="synchronisation of cuda:0"):
        interface.synchronize(0)
    with pytest.raises(CaptureError, match="kind 'async'"):
        interface.create_pool(0, "async", {}).allocate(queue, 512)
    recorder.launch(add, queue, x, y)
    program = recorder.program()
    program.replay(queue, ReplayValues())
    assert values_of(queue, y) == [float(i) for i in range(SIZE)]


def test_default_and_captured_streams_are_refused(
    recorder: Recorder, interface: CudaInterface, queue: CudaQueue
) -> None:
    with pytest.raises(CaptureError, match=r"default stream of cuda:0.*nbrt\.Stream"):
        interface.begin_capture(interface.default_queue(0), "thread_local")
    with pytest.raises(CaptureError, match="is being captured"):
        interface.begin_capture(queue, "thread_local")
    with pytest.raises(ValueError, match="'thread_local'"):
        interface.begin_capture(interface.create_queue(0, 0), "local")  # type: ignore[arg-type]


def test_an_invalid_capture_leaves_the_stream_usable(
    new_recorder: Any, recorder: Recorder, interface: CudaInterface, queue: CudaQueue,
    arrays: tuple[Any, Any], cupy: Any,
) -> None:  # fmt: skip
    x, y = arrays
    recorder.launch(add, queue, x, y)
    with queue.entered(), pytest.raises(cupy.cuda.runtime.CUDARuntimeError):
        x.sum().item()
    with pytest.raises(CaptureError, match="made the capture invalid"):
        recorder.capture.nodes_since(queue)
    with pytest.raises(CaptureError):
        recorder.capture.end()
    assert not recorder.capture.holds(queue)
    interface.copy(queue, y, x)
    assert values_of(queue, y) == [float(i) for i in range(SIZE)]
    again = new_recorder(queue)
    again.launch(add, queue, x, y)
    again.program().replay(queue, ReplayValues())
    assert values_of(queue, y) == [2.0 * i for i in range(SIZE)]


def test_abort_leaves_all_streams_usable(
    recorder: Recorder, interface: CudaInterface, queue: CudaQueue, arrays: tuple[Any, Any]
) -> None:
    x, y = arrays
    other = interface.create_queue(0, 0)
    recorder.launch(add, queue, x, y)
    recorder.capture.wait(other, recorder.capture.tails(queue))
    recorder.launch(add, other, x, y)
    recorder.capture.abort()
    recorder.capture.abort()
    for used in (queue, other):
        assert not recorder.capture.holds(used)
        interface.copy(used, y, x)
        assert values_of(used, y) == [float(i) for i in range(SIZE)]


def test_branches_join(
    recorder: Recorder, interface: CudaInterface, queue: CudaQueue, arrays: tuple[Any, Any],
    cupy: Any, z: Any,
) -> None:  # fmt: skip
    x, y = arrays
    other = interface.create_queue(0, 0)
    first = recorder.launch(scale, queue, x, y, 2.0)
    assert not recorder.capture.holds(other)
    recorder.capture.wait(other, first.handles)
    assert recorder.capture.holds(other)
    assert recorder.capture.nodes_since(other) == ()
    branch = recorder.launch(scale, other, y, z, 10.0)
    recorder.launch(add, queue, x, x)
    with pytest.raises(CaptureError, match="not part of it"):
        queue.join(interface.create_queue(0, 0))
    recorder.capture.wait(queue, branch.handles)
    last = recorder.launch(add, queue, z, x)
    calls = recorder.capture.state.calls
    assert set(calls.dependencies(last.handles[0])) == {
        recorder.nodes[2].handles[0],
        branch.handles[0],
    }
    program = recorder.program()
    assert not recorder.capture.holds(other)
    program.replay(queue, ReplayValues())
    assert values_of(queue, x) == [22.0 * i for i in range(SIZE)]


def test_an_unjoined_branch_is_named_with_its_line(
    recorder: Recorder, interface: CudaInterface, queue: CudaQueue, arrays: tuple[Any, Any]
) -> None:
    x, y = arrays
    other = interface.create_queue(0, 0)
    other.name = "the side stream"
    recorder.capture.wait(other, recorder.launch(add, queue, x, y).handles)  # the fork
    recorder.launch(add, other, x, y)
    with pytest.raises(CaptureError, match=r"work of the side stream(?s:.*)# the fork"):
        recorder.capture.end()
    other.synchronize()
    queue.synchronize()


def test_depend_replaces_the_order_of_the_stream(
    recorder: Recorder, queue: CudaQueue, arrays: tuple[Any, Any]
) -> None:
    x, y = arrays
    first = recorder.launch(add, queue, x, y)
    recorder.capture.depend(queue, ())
    second = recorder.launch(add, queue, y, x)
    assert recorder.capture.state.calls.dependencies(second.handles[0]) == []
    recorder.capture.depend(queue, (*first.handles, *second.handles))
    third = recorder.launch(add, queue, x, y)
    assert len(recorder.capture.state.calls.dependencies(third.handles[0])) == 2


def test_deterministic_nodes_run_in_their_order(
    recorder: Recorder, queue: CudaQueue, arrays: tuple[Any, Any]
) -> None:
    x, y = arrays
    for _ in range(4):
        recorder.capture.depend(queue, ())
        recorder.launch(add, queue, x, y)
    recorder.capture.depend(queue, [node.handles[0] for node in recorder.nodes])
    program = recorder.program(deterministic=True)
    edges = program.graph.state.calls.edges(program.graph.handle)
    handles = [node.handles[0] for node in recorder.nodes]
    assert {(a, b) for a, b, _ in edges} == set(itertools.pairwise(handles))
    program.replay(queue, ReplayValues())
    assert values_of(queue, y) == [4.0 * i for i in range(SIZE)]
