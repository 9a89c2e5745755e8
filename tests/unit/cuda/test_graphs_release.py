"""Memory, failures and the end of CUDA graphs."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from helpers.clocks import HANG_TIMEOUT
from helpers.cuda_graph_kernels import add, count_down, scale
from helpers.cuda_graphs import SIZE, Recorder, on_device, values_of
from nbrt.backends.graphs import ReplayValues
from nbrt.backends.queue import EventOptions
from nbrt.errors import CaptureError, GraphError, NbrtError, StreamError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from nbrt.backends.cuda.backend import CudaInterface
    from nbrt.backends.cuda.queues import CudaQueue

ONCE = ReplayValues()


@pytest.mark.parametrize("kind", ["caching", "managed", "plain", "expandable"])
@pytest.mark.parametrize("mode", ["global", "thread_local"])
def test_pools_grow_and_shrink_under_capture(
    interface: CudaInterface, queue: CudaQueue, new_recorder: Callable[..., Recorder],
    arrays: tuple[Any, Any], kind: str, mode: str,
) -> None:  # fmt: skip
    x, y = arrays
    pool = interface.create_pool(0, kind, {})
    other_pool = interface.create_pool(0, kind, {})
    other = interface.create_queue(0, 0)
    unrelated = other_pool.allocate(other, 1 << 20)
    before = other_pool.allocate(queue, 1 << 20)
    recorder = new_recorder(queue, mode)
    blocks = [pool.allocate(queue, nbytes) for nbytes in (x.nbytes, 4 << 20)]
    inner = interface.as_array(blocks[0], (SIZE,), np.dtype("float64"), blocks[0])
    recorder.launch(scale, queue, x, inner, 3.0)
    recorder.launch(scale, queue, inner, y, 2.0)
    pool.deallocate(queue, blocks[1])
    other_pool.deallocate(queue, unrelated)  # freed on the captured stream
    other_pool.deallocate(other, before)  # freed on another stream
    pool.empty_cache()
    other_pool.empty_cache()
    program = recorder.program()
    program.replay(queue, ONCE)
    assert values_of(queue, y)[1] == 6.0
    program.close()
    pool.deallocate(queue, blocks[0])
    for each in (pool, other_pool):
        each.empty_cache()
        assert each.reserved() == 0


def test_events_for_frees_are_behind_the_work_before_the_capture(
    interface: CudaInterface, queue: CudaQueue, new_recorder: Callable[..., Recorder],
    arrays: tuple[Any, Any],
) -> None:  # fmt: skip
    x, y = arrays
    gate = threading.Event()
    queue.put(gate.wait, HANG_TIMEOUT)
    recorder = new_recorder(queue)
    recorder.launch(add, queue, x, y)
    event = interface.create_event(0, EventOptions())
    event.record(queue)
    assert not event.query()
    gate.set()
    event.synchronize()
    assert event.query()
    recorder.program().replay(queue, ONCE)
    assert values_of(queue, y)[1] == 1.0


def test_close_while_a_replay_runs(
    recorder: Recorder, interface: CudaInterface, queue: CudaQueue, arrays: tuple[Any, Any]
) -> None:
    class Owner:
        pass

    x, y = arrays
    gate = threading.Event()
    owner = Owner()
    alive = weakref.ref(owner)
    recorder.launch(add, queue, x, y)
    recorder.buffer(y)
    recorder.buffers[0].owner = owner
    program = recorder.program()
    recorder.buffers.clear()
    del owner
    queue.put(gate.wait, HANG_TIMEOUT)
    program.replay(queue, ONCE)
    program.close()
    program.close()
    gc.collect()
    assert alive() is not None
    with pytest.raises(GraphError, match="reset"):
        program.replay(queue, ONCE)
    gate.set()
    queue.synchronize()
    assert values_of(queue, y)[1] == 1.0
    interface.create_queue(0, 0).query()  # any operation drops it
    gc.collect()
    assert alive() is None


def test_close_in_another_capture_is_put_off(
    interface: CudaInterface, queue: CudaQueue, arrays: tuple[Any, Any], simulation: ModuleType,
    new_recorder: Callable[..., Recorder],
) -> None:  # fmt: skip
    x, y = arrays
    first = new_recorder(queue)
    first.launch(add, queue, x, y)
    program = first.program()
    program.replay(queue, ONCE)
    second = new_recorder(interface.create_queue(0, 0), "global")
    destroyed = simulation.call_count("cuGraphExecDestroy")
    thread = threading.Thread(target=program.close)  # such as that of a collector
    thread.start()
    thread.join(HANG_TIMEOUT)
    assert simulation.call_count("cuGraphExecDestroy") == destroyed
    second.launch(add, second.capture._region.queue, x, y)
    again = second.program()
    assert simulation.call_count("cuGraphExecDestroy") == destroyed + 1
    again.replay(queue, ONCE)
    assert values_of(queue, y)[1] == 2.0


def test_owners_of_replacements_live_until_the_replay_is_done(
    recorder: Recorder, interface: CudaInterface, queue: CudaQueue, arrays: tuple[Any, Any]
) -> None:
    x, y = arrays
    gate = threading.Event()
    recorder.launch(add, queue, x, y)
    program = recorder.program()

    class Owner:
        pass

    owner = Owner()
    alive = weakref.ref(owner)
    queue.put(gate.wait, HANG_TIMEOUT)
    program.replay(queue, ReplayValues(owners=(owner,)))
    del owner
    gc.collect()
    assert alive() is not None
    gate.set()
    queue.synchronize()
    gc.collect()
    assert alive() is None


def test_the_end_in_another_thread_is_refused(
    recorder: Recorder, interface: CudaInterface, queue: CudaQueue, arrays: tuple[Any, Any]
) -> None:
    errors: list[BaseException] = []

    def end() -> None:
        try:
            recorder.capture.abort()
        except CaptureError as error:
            errors.append(error)

    thread = threading.Thread(target=end)
    thread.start()
    thread.join(HANG_TIMEOUT)
    assert "in the thread that began it" in str(errors[0])
    assert recorder.capture.holds(queue)
    x, y = arrays
    recorder.launch(add, queue, x, y)
    recorder.program().replay(queue, ONCE)
    assert values_of(queue, y)[1] == 1.0


def test_peer_copies_are_captured(
    interface: CudaInterface, queue: CudaQueue, arrays: tuple[Any, Any], cupy: Any,
    new_recorder: Callable[..., Recorder],
) -> None:  # fmt: skip
    x, _ = arrays
    with cupy.cuda.Device(1):
        there = cupy.zeros(SIZE)
        cupy.cuda.Device().synchronize()
    recorder = new_recorder(queue)
    recorder.run("copy", interface.copy, queue, there, x)
    program = recorder.program()
    with cupy.cuda.Device(1):
        assert not there.get().any()
    program.replay(queue, ONCE)
    queue.synchronize()
    with cupy.cuda.Device(1):
        assert there.get().tolist() == x.get().tolist()


@pytest.mark.parametrize(
    "function",
    ["cuStreamBeginCapture", "cuGraphInstantiate", "cuStreamEndCapture", "cuGraphLaunch"],
)
def test_a_failed_call_leaves_the_stream_usable(
    interface: CudaInterface, queue: CudaQueue, arrays: tuple[Any, Any], simulation: ModuleType,
    function: str,
) -> None:  # fmt: skip
    x, y = arrays

    def attempt() -> None:
        recorder = Recorder(interface, queue)
        try:
            recorder.launch(add, queue, x, y)
            recorder.program().replay(queue, ONCE)
        finally:
            recorder.close()

    with simulation.failing(function, 999), pytest.raises(Exception, match=r"999|UNKNOWN|unknown"):
        attempt()
    assert queue.capture is None
    assert not queue.is_capturing()
    attempt()
    assert values_of(queue, y)[1] == 1.0


def test_branches_on_two_devices(
    interface: CudaInterface, queue: CudaQueue, arrays: tuple[Any, Any], cupy: Any,
    new_recorder: Callable[..., Recorder],
) -> None:  # fmt: skip
    x, y = arrays
    with cupy.cuda.Device(1):
        a, b = cupy.full(SIZE, 3.0), cupy.zeros(SIZE)
        other_b = cupy.zeros(SIZE)
        cupy.cuda.Device().synchronize()
    there = interface.create_queue(1, 0)
    recorder = new_recorder(queue)
    b_number = recorder.buffer(b)
    first = recorder.launch(add, queue, x, y)
    recorder.capture.wait(there, first.handles)
    branch = recorder.launch(add, there, a, b)
    cleared = recorder.run("fill", interface.fill, there, a, 0)
    recorder.capture.wait(queue, cleared.handles)
    assert branch.handles != cleared.handles
    program = recorder.program()
    program.replay(queue, ReplayValues(addresses={b_number: int(other_b.data.ptr)}))
    queue.synchronize()
    with cupy.cuda.Device(1):
        assert other_b.get().tolist() == [3.0] * SIZE
        a.fill(2.0)
        cupy.cuda.Device().synchronize()
    program.replay(queue, ONCE)
    queue.synchronize()
    with cupy.cuda.Device(1):
        assert b.get().tolist() == [2.0] * SIZE
        assert not a.get().any()
    assert values_of(queue, y)[1] == 2.0


def test_a_capture_of_another_library_is_left_alone(
    recorder: Recorder, queue: CudaQueue, arrays: tuple[Any, Any], cupy: Any,
    interface: CudaInterface,
) -> None:  # fmt: skip
    x, y = arrays
    recorder.launch(add, queue, x, y)
    program = recorder.program()
    stream = cupy.cuda.Stream(non_blocking=True)
    borrowed = interface.borrow_queue(0, stream.ptr, stream)
    stream.begin_capture()
    with pytest.raises(CaptureError, match="captured by other code"):
        program.replay(borrowed, ONCE)
    with pytest.raises(CaptureError, match="no capture uses"):
        interface.begin_capture(borrowed, "relaxed")
    graph = stream.end_capture()
    program.replay(borrowed, ONCE)
    assert values_of(borrowed, y)[1] == 1.0
    del graph


_CALLS = [
    "cuStreamGetCaptureInfo", "cuStreamUpdateCaptureDependencies", "cuEventRecord",
    "cuStreamWaitEvent", "cuLaunchKernel", "cuGraphNodeGetDependencies", "cuGraphAddNode",
    "cuGraphConditionalHandleCreate", "cuGraphAddEmptyNode", "cuGraphAddKernelNode",
    "cuGraphKernelNodeGetParams", "cuGraphKernelNodeSetParams", "cuGraphGetNodes",
    "cuGraphInstantiate", "cuGraphLaunch", "cuStreamBeginCapture",
    "cuStreamEndCapture", "cuGraphExecKernelNodeSetParams", "cuMemcpyAsync", "cuModuleLoadData",
]  # fmt: skip


@pytest.mark.parametrize("skip", [0, 2])
def test_any_call_may_fail(
    interface: CudaInterface, queue: CudaQueue, arrays: tuple[Any, Any], cupy: Any,
    simulation: ModuleType, skip: int,
) -> None:  # fmt: skip
    x, y = arrays
    flag, state = on_device(cupy, [2], "int32"), on_device(cupy, [0, 0], "uint64")
    other = interface.create_queue(0, 0)
    gc.collect()

    def attempt() -> None:
        recorder = Recorder(interface, queue)
        try:
            number = recorder.buffer(state)
            y_number = recorder.buffer(y)
            first = recorder.launch(add, queue, x, y)
            recorder.capture.wait(other, first.handles)
            branch = recorder.launch(add, other, x, y)
            recorder.capture.wait(queue, branch.handles)
            loop = recorder.capture.control(queue, "while", flag, 5)
            body = loop.begin_body()
            recorder.launch(add, body, x, y)
            recorder.launch(count_down, body, flag)
            loop.end_body([(int(state.data.ptr), 4)])
            loop.end()
            recorder.nodes.clear()
            program = recorder.program()
            addresses = {y_number: int(y.data.ptr) + 8}
            program.replay(queue, ReplayValues(states=[(number, 1, 2)], addresses=addresses))
        finally:
            recorder.close()

    attempt()  # compiles the kernels
    for function in _CALLS:
        simulation.inject(function, 999, skip=skip)
        try:
            with contextlib.suppress(NbrtError, RuntimeError):
                attempt()
        finally:
            simulation.clear()
        for used in (queue, other):
            assert used.capture is None, function
            assert not used.is_capturing(), function
        assert not interface._driver.captures, function
        with contextlib.suppress(StreamError):
            queue.synchronize()
        y.fill(0)
        flag.fill(2)
        flag.device.synchronize()
        attempt()
        # Two launches, two turns; the replay wrote one element further.
        assert values_of(queue, y)[2] == 4.0, function
