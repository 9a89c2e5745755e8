"""Branches and loops in CUDA graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from helpers.cuda_graph_kernels import add, copy_flag, count_down, note_offset, scale
from helpers.cuda_graphs import SIZE, Recorder, on_device, values_of
from nbrt.backends.cuda.graphs.kernels import CONDITION_TYPES, condition_text, state_text
from nbrt.backends.cuda.ptxas import resources_of
from nbrt.backends.graphs import ReplayValues
from nbrt.errors import ArgumentTypeError, CaptureError, StreamError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cuda.backend import CudaInterface
    from nbrt.backends.cuda.queues import CudaQueue

ONCE = ReplayValues()


def control(
    recorder: Recorder,
    queue: CudaQueue,
    kind: Any,
    flag: Any,
    *bodies: Callable[[CudaQueue], object],
    limit: int = 1000,
    advances: Any = (),
) -> tuple[int, ...]:
    """Capture control flow, whose bodies are functions of their queue."""
    made = recorder.capture.control(queue, kind, flag, limit)
    for body in bodies:
        body(made.begin_body())
        made.end_body(advances)
    return made.end()


@pytest.fixture
def flag(cupy: Any) -> Any:
    """A flag that is an argument of the capture: made before it."""
    return on_device(cupy, [0], "int32")


@pytest.mark.parametrize("has_else", [False, True])
def test_if(
    flag: Any, recorder: Recorder, queue: CudaQueue, arrays: tuple[Any, Any], has_else: bool
) -> None:
    x, y = arrays
    bodies = [lambda q: recorder.launch(scale, q, x, y, 2.0)]
    if has_else:
        bodies.append(lambda q: recorder.launch(scale, q, x, y, 5.0))
    control(recorder, queue, "if", flag, *bodies)
    recorder.launch(add, queue, x, y)
    recorder.nodes.clear()
    program = recorder.program()
    program.replay(queue, ONCE)
    expected = [6.0 if has_else else 1.0, 3.0, 6.0 if has_else else 4.0, 3.0]
    assert values_of(queue, y)[1] == expected[0]
    for value, result in ((7, expected[1]), (0, expected[2]), (-1, expected[3])):
        flag.fill(value)
        flag.device.synchronize()
        program.replay(queue, ONCE)
        assert values_of(queue, y)[1] == result


def test_while_runs_until_its_flag_is_0(
    flag: Any, recorder: Recorder, queue: CudaQueue, arrays: tuple[Any, Any]
) -> None:
    x, y = arrays

    def body(q: CudaQueue) -> None:
        recorder.launch(add, q, x, y)
        recorder.launch(count_down, q, flag)

    control(recorder, queue, "while", flag, body)
    recorder.launch(add, queue, x, y)
    recorder.nodes.clear()
    program = recorder.program()
    total = 0
    for turns in (0, 1, 5, 40):
        flag.fill(turns)
        flag.device.synchronize()
        program.replay(queue, ONCE)
        total += turns + 1
        assert values_of(queue, y) == [float(total * i) for i in range(SIZE)]
        assert int(flag[0]) == 0


def test_a_loop_beyond_its_limit_fails_the_stream(
    flag: Any, recorder: Recorder, queue: CudaQueue, arrays: tuple[Any, Any]
) -> None:
    x, y = arrays

    def body(q: CudaQueue) -> None:
        recorder.launch(add, q, x, y)
        recorder.launch(count_down, q, flag)

    handles = control(recorder, queue, "while", flag, body, limit=5)
    recorder.nodes.clear()
    node = recorder.run("while", lambda _: None, queue)
    node.handles = handles
    program = recorder.program()
    flag.fill(6)
    flag.device.synchronize()
    program.replay(queue, ONCE)
    with pytest.raises(StreamError, match=r"at most 5 turns of node 0 \(while"):
        queue.synchronize()
    assert values_of(queue, y)[1] == 5.0
    flag.fill(5)
    flag.device.synchronize()
    program.replay(queue, ONCE)
    assert values_of(queue, y)[1] == 10.0


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint64"])
def test_switch(
    new_recorder: Any,
    cupy: Any,
    interface: CudaInterface,
    queue: CudaQueue,
    arrays: tuple[Any, Any],
    dtype: str,
) -> None:
    x, y = arrays
    flag = on_device(cupy, [0], dtype)
    recorder = new_recorder(queue)
    bodies = [
        lambda q, factor=factor: recorder.launch(scale, q, x, y, factor)
        for factor in (1.0, 2.0, 3.0)
    ]
    control(recorder, queue, "switch", flag, *bodies)
    recorder.nodes.clear()
    program = recorder.program()
    largest = np.iinfo(dtype).max
    for value in (2, 0, 1, 3, largest, *((-1, -(2**7)) if dtype[0] == "i" else ())):
        y.fill(0)
        flag.fill(value)
        flag.device.synchronize()
        program.replay(queue, ONCE)
        assert values_of(queue, y)[1] == (value + 1 if 0 <= value < 3 else 0)


@pytest.mark.parametrize("dtype", list(CONDITION_TYPES))
def test_flags_of_every_dtype(
    new_recorder: Any,
    cupy: Any,
    interface: CudaInterface,
    queue: CudaQueue,
    arrays: tuple[Any, Any],
    dtype: str,
) -> None:
    x, y = arrays
    flags = on_device(cupy, [0, 1, 0], dtype)
    recorder = new_recorder(queue)
    for number in range(3):
        control(
            recorder, queue, "if", flags[number : number + 1],
            lambda q: recorder.launch(add, q, x, y),
        )  # fmt: skip
    recorder.nodes.clear()
    recorder.program().replay(queue, ONCE)
    assert values_of(queue, y)[1] == 1.0


def test_control_flow_nests(
    new_recorder: Any,
    cupy: Any,
    interface: CudaInterface,
    queue: CudaQueue,
    arrays: tuple[Any, Any],
) -> None:
    x, y = arrays
    outer, inner, start = (on_device(cupy, [value], "int64") for value in (3, 0, 4))
    choice = on_device(cupy, [1], "int64")
    recorder = new_recorder(queue)

    def turn(q: CudaQueue) -> None:
        recorder.launch(add, q, x, y)
        recorder.launch(count_down, q, inner)

    def choose(q: CudaQueue) -> None:
        recorder.launch(add, q, x, y)

    def body(q: CudaQueue) -> None:
        recorder.launch(copy_flag, q, start, inner)
        control(recorder, q, "while", inner, turn)
        control(recorder, q, "if", choice, choose)
        recorder.launch(count_down, q, outer)

    control(recorder, queue, "while", outer, body)
    recorder.nodes.clear()
    program = recorder.program()
    program.replay(queue, ONCE)
    assert values_of(queue, y)[1] == 3 * (4 + 1)
    outer.fill(2)
    choice.fill(0)
    choice.device.synchronize()
    program.replay(queue, ONCE)
    assert values_of(queue, y)[1] == 15 + 2 * 4


def test_more_bodies_than_streams_of_the_pool(
    flag: Any, recorder: Recorder, queue: CudaQueue, arrays: tuple[Any, Any]
) -> None:
    x, y = arrays
    for _ in range(40):
        control(recorder, queue, "if", flag, lambda q: recorder.launch(add, q, x, y))
    recorder.nodes.clear()
    program = recorder.program()
    flag.fill(1)
    flag.device.synchronize()
    program.replay(queue, ONCE)
    assert values_of(queue, y)[1] == 40.0


def test_streams_fork_and_join_in_a_body(
    flag: Any, recorder: Recorder, interface: CudaInterface, queue: CudaQueue,
    arrays: tuple[Any, Any], z: Any,
) -> None:  # fmt: skip
    x, y = arrays
    side = interface.create_queue(0, 0)

    def body(q: CudaQueue) -> None:
        first = recorder.launch(scale, q, x, y, 2.0)
        recorder.capture.wait(side, first.handles)
        branch = recorder.launch(scale, side, y, z, 10.0)
        recorder.capture.wait(q, branch.handles)
        recorder.launch(add, q, z, y)

    control(recorder, queue, "if", flag, body)
    assert not recorder.capture.holds(side)
    recorder.nodes.clear()
    program = recorder.program()
    flag.fill(1)
    flag.device.synchronize()
    program.replay(queue, ONCE)
    assert values_of(queue, y)[1] == 22.0


def test_arrays_of_bodies_are_replaced(
    flag: Any, recorder: Recorder, queue: CudaQueue, arrays: tuple[Any, Any], cupy: Any
) -> None:
    x, y = arrays
    number = recorder.buffer(y)
    control(recorder, queue, "if", flag, lambda q: recorder.launch(add, q, x, y))
    recorder.nodes.clear()
    program = recorder.program()
    other = on_device(cupy, np.zeros(SIZE), "float64")
    flag.fill(1)
    flag.device.synchronize()
    program.replay(queue, ReplayValues(addresses={number: int(other.data.ptr)}))
    assert values_of(queue, other)[1] == 1.0
    program.replay(queue, ONCE)
    assert values_of(queue, other)[1] == 1.0
    assert values_of(queue, y)[1] == 1.0


def test_a_loop_advances_the_state_of_a_generator(
    new_recorder: Any, cupy: Any, interface: CudaInterface, queue: CudaQueue
) -> None:
    flag, state = on_device(cupy, [3], "int32"), on_device(cupy, [11, 100], "uint64")
    seen = on_device(cupy, np.zeros(4), "uint64")

    recorder = new_recorder(queue)
    number = recorder.buffer(state)

    def body(q: CudaQueue) -> None:
        recorder.launch(note_offset, q, state, seen)
        recorder.launch(count_down, q, flag)

    control(recorder, queue, "while", flag, body, advances=[(int(state.data.ptr), 8)])
    recorder.nodes.clear()
    program = recorder.program()
    program.replay(queue, ReplayValues(states=[(number, 5, 40)]))
    assert values_of(queue, seen) == [3, 40, 48, 56]
    assert values_of(queue, state) == [5, 64]


def test_an_invalid_body_ends_with_an_error(
    flag: Any, recorder: Recorder, queue: CudaQueue, arrays: tuple[Any, Any], cupy: Any
) -> None:
    x, y = arrays
    node = recorder.capture.control(queue, "if", flag, 0)
    body = node.begin_body()
    recorder.launch(add, body, x, y)
    with body.entered(), pytest.raises(cupy.cuda.runtime.CUDARuntimeError):
        x.sum().item()
    with pytest.raises(CaptureError, match="invalid"):
        node.end_body(())
    recorder.capture.abort()
    for used in (queue, body):
        assert not recorder.capture.holds(used)
    recorder.interface.copy(queue, y, x)
    assert values_of(queue, y)[1] == 1.0


def test_what_a_body_cannot_have_is_refused(
    new_recorder: Any, flag: Any, recorder: Recorder, interface: CudaInterface, queue: CudaQueue,
    arrays: tuple[Any, Any],
) -> None:  # fmt: skip
    x, y = arrays
    with pytest.raises(ArgumentTypeError, match="one element of a bool or integer"):
        recorder.capture.control(queue, "if", x, 0)
    node = recorder.capture.control(queue, "if", flag, 0)
    body = node.begin_body()
    with pytest.raises(CaptureError, match="got a host call"):
        interface.call_host(body, print)
    with pytest.raises(CaptureError, match="two bodies"):
        node.begin_body()
    with pytest.raises(CaptureError, match="that have ended"):
        node.end()
    with pytest.raises(CaptureError, match="a body that is still captured"):
        recorder.capture.end()
    again = new_recorder(queue)
    node = again.capture.control(queue, "if", flag, 0)
    node.begin_body()
    again.launch(add, queue, x, y)
    with pytest.raises(CaptureError, match="whatever the flag is"):
        node.end_body(())
    again.capture.abort()


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_kernels_of_graphs_assemble(capability: tuple[int, int]) -> None:
    for text in (state_text(), *map(condition_text, CONDITION_TYPES)):
        assert resources_of(text, capability).spill_stores == 0
