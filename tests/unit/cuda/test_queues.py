from __future__ import annotations

import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from helpers.clocks import HANG_TIMEOUT
from helpers.processes import output_of, run_python
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
    from collections.abc import Iterator
    from types import ModuleType

    from nbrt.backends.cuda.backend import CudaInterface


def test_both_names_of_the_default_stream_are_one() -> None:
    assert canonical_handle(0) == canonical_handle(1) == 0
    with pytest.raises(NotSupportedError, match="per-thread"):
        canonical_handle(2)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event that a host call waits for; set at the end."""
    made = threading.Event()
    yield made
    made.set()


def test_host_calls_keep_stream_order(interface: CudaInterface, gate: threading.Event) -> None:
    queue = interface.create_queue(0, 0)
    seen: list[int] = []
    queue.put(gate.wait, HANG_TIMEOUT)
    queue.put(seen.append, 1)
    queue.put(seen.append, 2)
    assert seen == []
    assert not queue.query()
    gate.set()
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
    interface: CudaInterface, gate: threading.Event
) -> None:
    queue = interface.create_queue(0, 0)
    seen: list[int] = []
    before = interface.create_event(0, EventOptions())
    before.record(queue)
    queue.put(gate.wait, HANG_TIMEOUT)
    queue.put(lambda: 1 / 0)
    queue.put(seen.append, 1)
    after = interface.create_event(0, EventOptions())
    after.record(queue)
    before.synchronize()
    gate.set()
    with pytest.raises(StreamError, match=r"1 later command.s. of the stream were dropped: list"):
        after.synchronize()
    assert seen == []
    queue.put(seen.append, 2)
    queue.synchronize()
    assert seen == [2]


def test_waiting_for_oneself_raises(interface: CudaInterface) -> None:
    queue = interface.create_queue(0, 0)
    queue.put(queue.synchronize)
    with pytest.raises(StreamError, match="wait for itself"):
        queue.synchronize()


def test_arguments_of_host_calls_die_outside_the_callback(
    interface: CudaInterface, gate: threading.Event
) -> None:
    class Argument:
        pass

    queue = interface.create_queue(0, 0)
    where: list[int] = []
    done = threading.Event()
    argument = Argument()
    weakref.finalize(argument, lambda: where.append(threading.get_ident()))
    queue.put(gate.wait, HANG_TIMEOUT)
    queue.put(lambda value: None, argument)
    queue.put(done.set)
    del argument
    gate.set()
    assert done.wait(HANG_TIMEOUT)
    assert where == []  # the call has returned, and its argument lives
    queue.synchronize()
    gc.collect()
    assert where == [threading.get_ident()]


def test_callbacks_get_success_and_failure(interface: CudaInterface) -> None:
    queue = interface.create_queue(0, 0)
    results: list[BaseException | None] = []
    queue.add_done_callback(results.append)
    queue.put(lambda: 1 / 0)
    queue.add_done_callback(results.append)
    queue.synchronize()  # the callback has taken the failure
    assert results[0] is None
    assert isinstance(results[1], StreamError)


def test_a_lost_device_says_that_the_process_must_restart() -> None:
    """A fault of a kernel breaks its context, as on a GPU: later calls fail with the same code."""
    code = """
        import numpy as np
        import nbrt
        from numba import cuda

        @nbrt.kernel
        def write(x, i):
            x[i] = 1

        stream = nbrt.Stream("cuda:0")
        x = nbrt.zeros(4, device="cuda:0")
        nbrt.synchronize("cuda:0")
        results = []
        write[1, 1, stream](x, 1 << 40)
        stream.queue.add_done_callback(results.append)
        for act in (stream.synchronize, lambda: nbrt.zeros(1 << 20, device="cuda:0")):
            try:
                act()
            except nbrt.errors.NbrtError as error:
                print(type(error).__name__, "restart it" in str(error))
        print([type(each).__name__ for each in results])
        del x
        import os
        os._exit(0)
    """
    # The kernel must not run before the callback is added.
    held = {"NBRT_SIM_SCHEDULE": "late", "NBRT_SIM_HOLD_US": "60000000"}
    done = run_python(code, environment=held, simulated_cuda=True)
    lines = done.stdout.splitlines()
    assert lines == ["StreamError True", "StreamError True", "['StreamError']"], done.stderr


def test_closed_queue_refuses(interface: CudaInterface) -> None:
    queue = interface.create_queue(0, 0)
    queue.close()
    queue.close()
    with pytest.raises(StreamError, match="closed"):
        queue.put(print)


def current_handle(interface: CudaInterface, index: int) -> int:
    with interface._driver.on_device(index):
        return int(interface._driver.current_stream().ptr)


def test_enter_queue_moves_device_and_stream_and_restores_both(interface: CudaInterface) -> None:
    queue = interface.create_queue(1, 0)
    assert interface.current_device() == 0
    undo = interface.enter_queue(queue)
    assert interface.current_device() == 1
    assert current_handle(interface, 1) == queue.handle
    undo()
    assert interface.current_device() == 0
    assert current_handle(interface, 1) == 0


def test_undoing_in_another_order_restores_what_was(interface: CudaInterface) -> None:
    first, second = interface.create_queue(0, 0), interface.create_queue(0, 0)
    undo_first = interface.enter_queue(first)
    undo_second = interface.enter_queue(second)
    undo_first()
    undo_second()
    assert current_handle(interface, 0) == first.handle
    interface._driver.null_stream().use()


def test_maybe_exchange_creates_no_context() -> None:
    code = """
        import nbrt

        interface = nbrt.get_interface_for_device("cuda")
        print(interface.exchange_device(1), interface.maybe_exchange_device(0))
        driver = interface._driver
        print([driver.has_context(index) for index in (0, 1)], interface.current_device())
        interface.exchange_device(0)
        print(interface.maybe_exchange_device(1), interface.current_device())
    """
    assert output_of(code, simulated_cuda=True) == "0 1\n[False, True] 1\n0 1\n"


def test_a_new_thread_gets_its_context(interface: CudaInterface) -> None:
    """The runtime says device 0 there, but the driver has nothing current."""
    seen: list[bool] = []
    get_context = interface._driver.cupy.cuda.driver.ctxGetCurrent

    def work() -> None:
        seen.append(bool(get_context()))
        with interface._driver.on_device(0):
            seen.append(bool(get_context()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False, True]


def test_unknown_device(interface: CudaInterface) -> None:
    with pytest.raises(UnknownDeviceError, match="nvidia-smi"):
        interface.exchange_device(9)


def test_borrowed_stream_keeps_its_owner(interface: CudaInterface) -> None:
    class Owner:
        def __init__(self, stream: object) -> None:
            self.stream = stream

    owned = interface.create_queue(0, 0)
    owner = Owner(owned.stream)
    alive = weakref.ref(owner)
    queue = interface.borrow_queue(0, owned.handle, owner)
    del owner
    assert queue.handle == owned.handle
    assert alive() is not None
    queue.close()
    gc.collect()
    assert alive() is None


def test_events_order_two_streams(interface: CudaInterface, gate: threading.Event) -> None:
    first, second = interface.create_queue(0, 0), interface.create_queue(1, 0)
    event = interface.create_event(0, EventOptions())
    seen: list[str] = []
    assert event.query()
    first.put(gate.wait, HANG_TIMEOUT)
    first.put(seen.append, "first")
    event.record(first)
    assert not event.query()
    event.wait(second)
    second.put(seen.append, "second")
    gate.set()
    second.synchronize()
    assert seen == ["first", "second"]
    assert event.query()


def test_event_flags(interface: CudaInterface) -> None:
    interface.create_event(1, EventOptions(blocking=True, interprocess=True))
    with pytest.raises(EventError, match="at most one"):
        interface.create_event(0, EventOptions(enable_timing=True, interprocess=True))


def test_event_is_destroyed_once(interface: CudaInterface, simulation: ModuleType) -> None:
    event = interface.create_event(0, EventOptions())
    before = simulation.call_count("cuEventDestroy")
    event.close()
    event.close()
    assert simulation.call_count("cuEventDestroy") == before + 1
    dying: Any = interface.create_event(0, EventOptions())
    del dying
    gc.collect()
    assert simulation.call_count("cuEventDestroy") == before + 2


def test_event_timing_and_its_errors(interface: CudaInterface, gate: threading.Event) -> None:
    timed = EventOptions(enable_timing=True)
    start, end = interface.create_event(0, timed), interface.create_event(0, timed)
    queue = interface.create_queue(0, 0)
    start.record(queue)
    end.record(queue)
    queue.synchronize()
    assert start.elapsed_time(end) >= 0
    queue.put(gate.wait, HANG_TIMEOUT)
    end.record(queue)
    with pytest.raises(EventError, match="synchronize first"):
        start.elapsed_time(end)
    with pytest.raises(EventError, match="enable_timing"):
        start.elapsed_time(interface.create_event(0, EventOptions()))
    with pytest.raises(EventError, match="cuda:1"):
        start.record(interface.create_queue(1, 0))
    gate.set()
    queue.synchronize()


def test_ipc_handles(interface: CudaInterface) -> None:
    with pytest.raises(EventError, match="interprocess=True"):
        interface.create_event(0, EventOptions()).ipc_handle()
    shared = interface.create_event(0, EventOptions(interprocess=True))
    code = f"""
        import nbrt

        interface = nbrt.get_interface_for_device("cuda")
        interface.lazy.ensure()
        event = interface.open_event(0, {shared.ipc_handle()!r})
        print(event.index, event.query())
    """
    assert output_of(code, simulated_cuda=True) == "0 True\n"


@pytest.mark.parametrize("variable", ["CUPY_CUDA_PER_THREAD_DEFAULT_STREAM"])
def test_per_thread_default_stream_is_refused(
    cuda_interface: CudaInterface, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(BackendUnavailableError, match=f"{variable}=1"):
        type(cuda_interface)().lazy.ensure()


def test_properties_and_a_worker(interface: CudaInterface) -> None:
    properties = interface.get_device_properties(1)
    raw = interface._driver.properties(1)
    assert properties.name == raw["name"].decode()
    assert properties.compute_capability == (raw["major"], raw["minor"])
    assert properties.shared_memory_per_block == raw["sharedMemPerBlockOptin"]
    assert properties.details["shared_memory_per_block_static"] == raw["sharedMemPerBlock"]
    assert str(properties.details["uuid"]).startswith("GPU-")
    worker: Any = interface.worker()
    assert worker.get_device_properties(1) == properties
