from __future__ import annotations

import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from nbrt.backends.cuda.queues import canonical_handle
from nbrt.backends.queue import EventOptions
from nbrt.errors import (
    BackendUnavailableError,
    EventError,
    NotSupportedError,
    StreamError,
    UnknownDeviceError,
)

if TYPE_CHECKING:
    from nbrt.backends.cuda.backend import CudaInterface
    from unit.cuda.fake_cuda import Simulation


def test_both_names_of_the_default_stream_are_one() -> None:
    assert canonical_handle(0) == canonical_handle(1) == 0
    with pytest.raises(NotSupportedError, match="per-thread"):
        canonical_handle(2)


def test_host_calls_keep_stream_order(interface: CudaInterface, simulation: Simulation) -> None:
    simulation.is_eager = False
    queue = interface.create_queue(0, 0)
    seen: list[int] = []
    queue.put(seen.append, 1)
    queue.put(seen.append, 2)
    assert seen == []
    assert not queue.query()
    queue.synchronize()
    assert seen == [1, 2]
    assert queue.query()


def test_failed_host_call_is_raised_once_at_synchronize(interface: CudaInterface) -> None:
    queue = interface.create_queue(0, 0)
    queue.put(lambda: 1 / 0)
    with pytest.raises(StreamError, match=r"ZeroDivisionError(?s:.*)submitted here") as caught:
        queue.synchronize()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    queue.synchronize()


def test_calls_behind_a_failed_one_are_dropped_and_named(
    interface: CudaInterface, simulation: Simulation
) -> None:
    simulation.is_eager = False
    queue = interface.create_queue(0, 0)
    seen: list[int] = []
    before = interface.create_event(0, EventOptions())
    before.record(queue)
    queue.put(lambda: 1 / 0)
    queue.put(seen.append, 1)
    after = interface.create_event(0, EventOptions())
    after.record(queue)
    before.synchronize()
    with pytest.raises(StreamError, match=r"1 later command.s. of the stream were dropped: list"):
        after.synchronize()
    assert seen == []
    queue.put(seen.append, 2)
    queue.synchronize()
    assert seen == [2]


def test_waiting_for_oneself_raises(interface: CudaInterface, simulation: Simulation) -> None:
    queue = interface.create_queue(0, 0)
    queue.put(queue.synchronize)
    with pytest.raises(StreamError, match="wait for itself"):
        queue.synchronize()


def test_arguments_of_host_calls_die_outside_the_callback(
    interface: CudaInterface, simulation: Simulation
) -> None:
    class Argument:
        pass

    simulation.is_eager = False
    queue = interface.create_queue(0, 0)
    where: list[int] = []
    argument = Argument()
    weakref.finalize(argument, lambda: where.append(threading.get_ident()))
    queue.put(lambda value: None, argument)
    del argument
    worker = threading.Thread(target=simulation.streamSynchronize, args=(queue.handle,))
    worker.start()
    worker.join()
    gc.collect()
    assert where == []  # the callback ran, and let go of nothing
    queue.synchronize()
    assert where == [threading.get_ident()]


def test_notify_tells_success_failure_and_a_lost_device(
    interface: CudaInterface, simulation: Simulation
) -> None:
    queue = interface.create_queue(0, 0)
    told: list[BaseException | None] = []
    queue.add_done_callback(told.append)
    queue.put(lambda: 1 / 0)
    queue.add_done_callback(told.append)
    assert told[0] is None
    assert isinstance(told[1], StreamError)
    queue.synchronize()  # the failure was taken over
    simulation.is_eager = False
    queue.add_done_callback(told.append)
    simulation.status = 700
    simulation.queues[queue.handle].popleft()()
    assert "restart" in str(told[2])
    with pytest.raises(StreamError, match="restart it"):
        queue.synchronize()


def test_closed_queue_refuses(interface: CudaInterface) -> None:
    queue = interface.create_queue(0, 0)
    queue.close()
    queue.close()
    with pytest.raises(StreamError, match="closed"):
        queue.put(print)


def test_enter_queue_moves_device_and_stream_and_restores_both(
    interface: CudaInterface, simulation: Simulation
) -> None:
    simulation.setDevice(0)
    queue = interface.create_queue(1, 0)
    assert simulation.get_device() == 0
    undo = interface.enter_queue(queue)
    assert simulation.get_device() == 1
    assert simulation.current_streams[1].ptr == queue.handle
    undo()
    assert simulation.get_device() == 0
    assert simulation.current_streams[1] is simulation.null


def test_undoing_in_another_order_restores_what_was(
    interface: CudaInterface, simulation: Simulation
) -> None:
    first, second = interface.create_queue(0, 0), interface.create_queue(0, 0)
    undo_first = interface.enter_queue(first)
    undo_second = interface.enter_queue(second)
    undo_first()
    undo_second()
    assert simulation.current_streams[0].ptr == first.handle


def test_maybe_exchange_creates_no_context(
    interface: CudaInterface, simulation: Simulation
) -> None:
    assert interface.exchange_device(1) == 0
    assert interface.maybe_exchange_device(0) == 1
    assert simulation.contexts == {1}
    assert interface.current_device() == 1
    interface.exchange_device(0)
    assert interface.maybe_exchange_device(1) == 0
    assert interface.current_device() == 1


def test_a_new_thread_gets_its_context(interface: CudaInterface, simulation: Simulation) -> None:
    """The runtime says device 0 there, but the driver has nothing current."""
    interface.exchange_device(0)
    seen: list[int] = []

    def work() -> None:
        seen.append(simulation.ctxGetCurrent())
        with interface._driver.on_device(0):
            seen.append(simulation.ctxGetCurrent())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [0, 1]


def test_unknown_device(interface: CudaInterface) -> None:
    with pytest.raises(UnknownDeviceError, match="nvidia-smi"):
        interface.exchange_device(9)


def test_borrowed_stream_keeps_its_owner(interface: CudaInterface) -> None:
    class Owner:
        pass

    owner = Owner()
    alive = weakref.ref(owner)
    queue = interface.borrow_queue(0, 4242, owner)
    del owner
    assert queue.handle == 4242
    assert alive() is not None
    queue.close()
    gc.collect()
    assert alive() is None


def test_events_order_two_streams(interface: CudaInterface, simulation: Simulation) -> None:
    simulation.is_eager = False
    first, second = interface.create_queue(0, 0), interface.create_queue(1, 0)
    event = interface.create_event(0, EventOptions())
    seen: list[str] = []
    first.put(seen.append, "first")
    assert event.query()
    event.record(first)
    assert not event.query()
    event.wait(second)
    second.put(seen.append, "second")
    second.synchronize()
    assert seen == ["first", "second"]
    assert event.query()


def test_event_flags(interface: CudaInterface, simulation: Simulation) -> None:
    interface.create_event(0, EventOptions(enable_timing=True))
    interface.create_event(1, EventOptions(blocking=True, interprocess=True))
    made = [entry for entry in simulation.log if entry[0] == "event"]
    assert made == [("event", 0, 0), ("event", 1 | 2 | 4, 1)]
    with pytest.raises(EventError, match="at most one"):
        interface.create_event(0, EventOptions(enable_timing=True, interprocess=True))


def test_event_is_destroyed_once(interface: CudaInterface, simulation: Simulation) -> None:
    event = interface.create_event(0, EventOptions())
    assert event.handle in simulation.events
    event.close()
    event.close()
    assert simulation.events == {}
    dying: Any = interface.create_event(0, EventOptions())
    del dying
    gc.collect()
    assert simulation.events == {}


def test_event_timing_and_its_errors(interface: CudaInterface, simulation: Simulation) -> None:
    timed = EventOptions(enable_timing=True)
    start, end = interface.create_event(0, timed), interface.create_event(0, timed)
    queue = interface.create_queue(0, 0)
    start.record(queue)
    end.record(queue)
    assert start.elapsed_time(end) == 1.5
    simulation.is_eager = False
    queue.put(lambda: None)
    end.record(queue)
    with pytest.raises(EventError, match="synchronize first"):
        start.elapsed_time(end)
    with pytest.raises(EventError, match="enable_timing"):
        start.elapsed_time(interface.create_event(0, EventOptions()))
    with pytest.raises(EventError, match="cuda:1"):
        start.record(interface.create_queue(1, 0))


def test_ipc_handles(interface: CudaInterface) -> None:
    with pytest.raises(EventError, match="interprocess=True"):
        interface.create_event(0, EventOptions()).ipc_handle()
    shared = interface.create_event(0, EventOptions(interprocess=True))
    opened = interface.open_event(1, shared.ipc_handle())
    assert opened.index == 1


@pytest.mark.parametrize("variable", ["CUPY_CUDA_PER_THREAD_DEFAULT_STREAM"])
def test_per_thread_default_stream_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    from nbrt.backends.cuda.backend import CudaInterface
    from unit.cuda.fake_cuda import FakeDriver

    monkeypatch.setenv(variable, "1")
    with pytest.raises(BackendUnavailableError, match=f"{variable}=1"):
        CudaInterface(FakeDriver).lazy.ensure()


def test_properties(interface: CudaInterface, simulation: Simulation) -> None:
    properties = interface.get_device_properties(1)
    assert properties.name == "Paper GPU"
    assert properties.compute_capability == (9, 0)
    assert properties.shared_memory_per_block == 232448
    assert properties.details["shared_memory_per_block_static"] == 49152
    assert properties.details["uuid"] == "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"
    assert simulation.contexts == set()
    assert interface.worker().get_device_properties(0) == properties
