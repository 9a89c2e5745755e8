"""Replays of CUDA graphs: generators, host calls, child graphs, updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from helpers.cuda_graph_kernels import add, copy_flag, count_down, scale
from helpers.cuda_graphs import SIZE, Recorder, on_device, values_of
from nbrt.backends.draw import Draw
from nbrt.backends.graphs import ReplayValues
from nbrt.backends.queue import EventOptions
from nbrt.errors import GraphError, StreamError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from nbrt.backends.cuda.backend import CudaInterface
    from nbrt.backends.cuda.queues import CudaQueue

ONCE = ReplayValues()


def uniform(state: Any, offset: int = 0) -> Draw:
    return Draw("uniform", "float64", SIZE, (0.0, 1.0), device_state=state, offset=offset)


# -- generators ------------------------------------------------------------------------------------


def test_draws_take_seed_and_offset_of_the_replay(
    cupy: Any, interface: CudaInterface, queue: CudaQueue, new_recorder: Callable[..., Recorder]
) -> None:
    state = on_device(cupy, [0, 0], "uint64")
    out, later = on_device(cupy, np.zeros((2, SIZE)), "float64")
    recorder = new_recorder(queue)
    number = recorder.buffer(state)
    recorder.run("draw", interface.draw, queue, out, uniform(state))
    recorder.run("draw", interface.draw, queue, later, uniform(state, 400))
    program = recorder.program()
    expected = cupy.empty(SIZE)
    for seed, offset in ((7, 0), (7, 800), (8, 40)):
        program.replay(queue, ReplayValues(states=[(number, seed, offset)]))
        for drawn, ahead in ((out, 0), (later, 400)):
            interface.draw(
                queue,
                expected,
                Draw("uniform", "float64", SIZE, (0.0, 1.0), seed=seed, offset=offset + ahead),
            )
            assert values_of(queue, drawn) == values_of(queue, expected)


@pytest.mark.parametrize("schedule", ["late", "random", "eager"])
def test_overlapping_replays_have_their_own_states(
    cupy: Any, interface: CudaInterface, queue: CudaQueue, simulation: ModuleType,
    new_recorder: Callable[..., Recorder], schedule: str,
) -> None:  # fmt: skip
    count = 100  # more than there are cells
    state = on_device(cupy, [0, 0], "uint64")
    log = on_device(cupy, np.zeros(count), "uint64")
    position = on_device(cupy, [count], "int64")
    recorder = new_recorder(queue)
    number = recorder.buffer(state)
    log_number = recorder.buffer(log)
    recorder.launch(copy_flag, queue, state[1:], log)
    recorder.launch(count_down, queue, position)
    program = recorder.program()
    others = [queue, interface.create_queue(0, 0), interface.create_queue(0, 0)]
    with simulation.schedule(schedule, seed=3):
        for replay in range(count):
            program.replay(
                others[replay % 3],
                ReplayValues(
                    states=[(number, 1, 1000 + replay)],
                    addresses={log_number: int(log.data.ptr) + 8 * replay},
                ),
            )
        for used in others:
            used.synchronize()
    assert log.get().tolist() == [1000 + replay for replay in range(count)]
    assert int(position[0]) == 0


# -- host calls ------------------------------------------------------------------------------------


def test_host_calls_run_in_every_replay(
    recorder: Recorder, interface: CudaInterface, queue: CudaQueue
) -> None:
    seen: list[int] = []
    recorder.run("call", interface.call_host, queue, seen.append, 1)
    recorder.run("call", interface.call_host, queue, seen.append, 2)
    program = recorder.program()
    assert seen == []
    program.replay(queue, ONCE)
    program.replay(interface.create_queue(0, 0), ONCE)
    program.replay(queue, ONCE)
    queue.synchronize()
    assert seen == [1, 2] * 3


def test_a_failed_host_call_fails_the_stream_of_its_replay(
    recorder: Recorder, interface: CudaInterface, queue: CudaQueue
) -> None:
    seen: list[int] = []
    values = iter([1, 0, 1])
    recorder.run("call", interface.call_host, queue, lambda: seen.append(1 // next(values)))
    program = recorder.program()
    other = interface.create_queue(0, 0)
    before = interface.create_event(0, EventOptions())
    program.replay(queue, ONCE)
    before.record(other)
    program.replay(other, ONCE)
    program.replay(queue, ONCE)
    queue.synchronize()
    before.synchronize()
    with pytest.raises(StreamError, match=r"ZeroDivisionError(?s:.*)call_host, queue, lambda"):
        other.synchronize()
    other.synchronize()
    assert seen == [1, 1]


def test_a_replay_after_failed_work_of_its_stream_runs_no_host_calls(
    recorder: Recorder, interface: CudaInterface, queue: CudaQueue, arrays: tuple[Any, Any]
) -> None:
    x, y = arrays
    seen: list[int] = []
    recorder.run("call", interface.call_host, queue, seen.append, 1)
    recorder.launch(add, queue, x, y)
    program = recorder.program()
    queue.put(lambda: 1 / 0)
    program.replay(queue, ONCE)
    with pytest.raises(StreamError, match="dropped"):
        queue.synchronize()
    assert seen == []
    program.replay(queue, ONCE)
    assert values_of(queue, y)[1] == 2.0
    assert seen == [1]


# -- graphs in graphs ------------------------------------------------------------------------------


def test_a_replay_in_a_capture_becomes_part_of_it(
    recorder: Recorder, interface: CudaInterface, queue: CudaQueue, arrays: tuple[Any, Any],
    z: Any, new_recorder: Callable[..., Recorder],
) -> None:  # fmt: skip
    x, y = arrays
    seen: list[int] = []
    y_number = recorder.buffer(y)
    factor = recorder.launch(scale, queue, x, y, 2.0)
    recorder.run("call", interface.call_host, queue, seen.append, 1)
    left_out = recorder.launch(add, queue, x, y)
    child = recorder.program()
    child.set_enabled(left_out, False)
    parent = new_recorder(queue)
    replaced = ReplayValues(
        addresses={y_number: int(z.data.ptr)}, scalars={(factor.index, 0, 2): 5.0}
    )
    parent.run("graph", parent.capture.replay, queue, child, ONCE)
    assert len(parent.nodes[0].handles) == 3
    parent.run("graph", parent.capture.replay, queue, child, replaced)
    parent.launch(add, queue, z, y)
    program = parent.program()
    child.close()
    program.replay(queue, ONCE)
    assert values_of(queue, y)[1] == 7.0
    assert values_of(queue, z)[1] == 5.0
    assert seen == [1, 1]


def test_a_graph_with_a_loop_is_replayed_in_a_body_of_another(
    cupy: Any, queue: CudaQueue, arrays: tuple[Any, Any], new_recorder: Callable[..., Recorder]
) -> None:
    x, y = arrays
    flag, start, outer = (on_device(cupy, [value], "int32") for value in (0, 3, 2))
    recorder = new_recorder(queue)
    recorder.launch(copy_flag, queue, start, flag)
    loop = recorder.capture.control(queue, "while", flag, 4)
    body = loop.begin_body()
    recorder.launch(add, body, x, y)
    recorder.launch(count_down, body, flag)
    loop.end_body(())
    loop.end()
    recorder.nodes.clear()
    child = recorder.program()
    parent = new_recorder(queue)
    again = parent.capture.control(queue, "while", outer, 10)
    body = again.begin_body()
    parent.capture.replay(body, child, ONCE)
    parent.launch(count_down, body, outer)
    again.end_body(())
    again.end()
    parent.nodes.clear()
    program = parent.program()
    program.replay(queue, ONCE)
    assert values_of(queue, y)[1] == 6.0
    child.replay(queue, ONCE)
    assert values_of(queue, y)[1] == 9.0
    start.fill(5)  # the limit of the inner loop is 4
    start.device.synchronize()
    child.replay(queue, ONCE)
    with pytest.raises(StreamError, match="at most 4 turns"):
        queue.synchronize()


def test_the_state_of_a_child_is_derived_on_the_device(
    cupy: Any, queue: CudaQueue, new_recorder: Callable[..., Recorder]
) -> None:
    parent_state, child_state = (on_device(cupy, [0, 0], "uint64") for _ in range(2))
    recorder = new_recorder(queue)
    number = recorder.buffer(parent_state)
    target, source = int(child_state.data.ptr), int(parent_state.data.ptr)
    recorder.capture.derive_state(queue, target, source, 12)
    program = recorder.program()
    program.replay(queue, ReplayValues(states=[(number, 2**63, 100)]))
    assert child_state.dtype == np.uint64
    queue.synchronize()
    assert child_state.get().tolist() == [2**63, 112]


# -- updates ---------------------------------------------------------------------------------------


def test_update_takes_over_parameters(
    recorder: Recorder, interface: CudaInterface, queue: CudaQueue, arrays: tuple[Any, Any],
    z: Any, new_recorder: Callable[..., Recorder],
) -> None:  # fmt: skip
    x, y = arrays
    seen: list[int] = []
    x_number = recorder.buffer(x)
    recorder.launch(scale, queue, x, y, 2.0)
    recorder.run("call", interface.call_host, queue, seen.append, 1)
    program = recorder.program()
    fives = interface._driver.cupy.full(SIZE, 5.0)
    fives.device.synchronize()
    other = new_recorder(queue)
    other.buffer(x)
    other.launch(scale, queue, x, z, 3.0)
    other.run("call", interface.call_host, queue, seen.append, 2)
    newer = other.program()
    program.update(newer)
    newer.close()
    program.replay(queue, ONCE)
    assert values_of(queue, z)[1] == 3.0
    assert values_of(queue, y)[1] == 0.0
    assert seen == [2]
    program.replay(queue, ReplayValues(addresses={x_number: int(fives.data.ptr)}))
    assert values_of(queue, z)[1] == 15.0
    program.replay(queue, ReplayValues(scalars={(0, 0, 2): 4.0}))
    assert values_of(queue, z)[1] == 4.0
    program.replay(queue, ONCE)
    assert values_of(queue, z)[1] == 3.0
    assert seen == [2] * 4
    outer = new_recorder(queue)
    outer.capture.replay(queue, program, ReplayValues(scalars={(0, 0, 2): 6.0}))
    outer.program().replay(queue, ONCE)
    assert values_of(queue, z)[1] == 6.0
    assert seen == [2] * 5


def test_update_names_the_node_that_differs(
    recorder: Recorder, interface: CudaInterface, queue: CudaQueue, arrays: tuple[Any, Any],
    new_recorder: Callable[..., Recorder],
) -> None:  # fmt: skip
    x, y = arrays
    recorder.launch(scale, queue, x, y, 2.0)
    recorder.launch(add, queue, x, y)
    program = recorder.program()
    other = new_recorder(queue)
    other.launch(scale, queue, x, y, 2.0)
    other.run("fill", interface.fill, queue, y, 0)
    with pytest.raises(GraphError, match=r"a memset in place of a kernel at node 1 \(fill"):
        program.update(other.program())
    shorter = new_recorder(queue)
    shorter.launch(scale, queue, x, y, 2.0)
    with pytest.raises(GraphError, match="1 nodes of the driver instead of 2"):
        program.update(shorter.program())
    program.replay(queue, ONCE)
    assert values_of(queue, y)[1] == 3.0
