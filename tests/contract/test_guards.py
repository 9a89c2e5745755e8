"""Guards, on every kind of device."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import nbrt
from helpers.clocks import HANG_TIMEOUT
from nbrt.errors import ArgumentTypeError, UnknownDeviceError

if TYPE_CHECKING:
    from collections.abc import Iterator


def ambient(device: nbrt.Device) -> tuple[nbrt.Device, nbrt.Stream]:
    return nbrt.current_device(), nbrt.current_stream(device)


def test_device_guard_switches_and_restores(device: nbrt.Device, other_device: nbrt.Device) -> None:
    before = nbrt.current_device()
    with nbrt.device(device):
        assert nbrt.current_device() == device
        with nbrt.device(str(other_device)) as inner:
            assert nbrt.current_device() == inner.device == other_device
        assert nbrt.current_device() == device
    assert nbrt.current_device() == before


def test_an_index_means_the_current_kind(device: nbrt.Device, other_device: nbrt.Device) -> None:
    with nbrt.device(device), nbrt.device(1):
        assert nbrt.current_device() == other_device
        assert nbrt.get_interface_for_device(device).current_device() == 1


def test_the_same_guard_object_nests(device: nbrt.Device, other_device: nbrt.Device) -> None:
    guard = nbrt.device(device)
    with nbrt.device(other_device), guard:
        with guard, nbrt.device(other_device), guard:
            assert nbrt.current_device() == device
        assert nbrt.current_device() == device


def test_the_same_stream_guard_object_nests(device: nbrt.Device) -> None:
    first, second = nbrt.Stream(device), nbrt.Stream(device)
    outer, inner = nbrt.stream(first), nbrt.StreamGuard(second)
    before = ambient(device)
    with outer, inner, outer:
        assert nbrt.current_stream() is first
        with inner:
            assert nbrt.current_stream() is second
        assert nbrt.current_stream() is first
    assert ambient(device) == before


def test_guards_restore_after_exceptions(device: nbrt.Device) -> None:
    before = ambient(device)
    stream = nbrt.Stream(device)
    guards = (
        nbrt.device(device),
        nbrt.DeviceGuard(device),
        nbrt.OptionalDeviceGuard(device),
        nbrt.OptionalDeviceGuard(),
        nbrt.stream(stream),
        nbrt.StreamGuard(stream),
        nbrt.OptionalStreamGuard(),
        nbrt.MultiStreamGuard(stream),
    )
    for guard in guards:
        with pytest.raises(ZeroDivisionError), guard:
            raise ZeroDivisionError
        assert ambient(device) == before, repr(guard)


@pytest.mark.parametrize("nothing", [None, -1])
def test_none_and_minus_one_change_nothing(device: nbrt.Device, nothing: int | None) -> None:
    with nbrt.device(device):
        for make in (nbrt.device, nbrt.DeviceGuard, nbrt.OptionalDeviceGuard):
            with make(nothing) as guard:
                assert guard.device is None
                assert nbrt.current_device() == device
            assert nbrt.current_device() == device
        nbrt.set_device(nothing)
        assert nbrt.current_device() == device


def test_none_is_no_stream(device: nbrt.Device) -> None:
    with nbrt.stream(nbrt.Stream(device)) as entered:
        with nbrt.stream(None), nbrt.OptionalStreamGuard():
            assert nbrt.current_stream() is entered.stream
        with pytest.raises(ArgumentTypeError, match=r"expected an nbrt\.Stream, got None"):
            nbrt.StreamGuard(None)


def test_a_guard_of_a_device_that_does_not_exist_creates_nothing(device: nbrt.Device) -> None:
    before = nbrt.current_device()
    missing = nbrt.Device(device.kind, nbrt.device_count(device.kind))
    for make in (nbrt.device, nbrt.OptionalDeviceGuard, nbrt.set_device, nbrt.Stream):
        with pytest.raises(UnknownDeviceError, match=f"got {missing}"):
            make(missing)
    assert nbrt.current_device() == before


def test_stream_guard_switches_the_device_and_restores_both(
    device: nbrt.Device, other_device: nbrt.Device
) -> None:
    here, there = nbrt.Stream(device), nbrt.Stream(other_device)
    with nbrt.stream(here):
        with nbrt.stream(there):
            assert nbrt.current_device() == other_device
            assert nbrt.current_stream() is there
            assert nbrt.current_stream(device) is here
        assert nbrt.current_device() == device
        assert nbrt.current_stream() is here
        assert nbrt.current_stream(other_device) is nbrt.default_stream(other_device)


def test_device_guard_keeps_the_streams(device: nbrt.Device, other_device: nbrt.Device) -> None:
    here = nbrt.Stream(device)
    with nbrt.stream(here), nbrt.device(other_device):
        assert nbrt.current_stream() is nbrt.default_stream(other_device)
        with nbrt.device(device):
            assert nbrt.current_stream() is here


def test_multi_stream_guard(device: nbrt.Device, other_device: nbrt.Device) -> None:
    here, there, last = nbrt.Stream(device), nbrt.Stream(other_device), nbrt.Stream(device)
    with nbrt.device(device):
        guard = nbrt.MultiStreamGuard(here, there)
        with guard, guard:
            assert nbrt.current_device() == device
            assert nbrt.current_stream(device) is here
            assert nbrt.current_stream(other_device) is there
        with nbrt.MultiStreamGuard(here, last):
            assert nbrt.current_stream() is last
        with nbrt.MultiStreamGuard():
            assert nbrt.current_stream() is nbrt.default_stream(device)
    with pytest.raises(ArgumentTypeError):
        nbrt.MultiStreamGuard(here, None)


def test_optional_device_guard_is_given_its_device_inside(
    device: nbrt.Device, other_device: nbrt.Device
) -> None:
    with nbrt.device(device):
        with nbrt.OptionalDeviceGuard() as guard:
            assert nbrt.current_device() == device
            guard.set_device(other_device)
            assert nbrt.current_device() == other_device
            guard.set_device(device)
            guard.set_device(other_device)
        assert nbrt.current_device() == device


def test_set_device_inside_a_guard_ends_with_it(
    device: nbrt.Device, other_device: nbrt.Device
) -> None:
    with nbrt.device(device):
        with nbrt.device(device):
            nbrt.set_device(other_device)
            assert nbrt.current_device() == other_device
        assert nbrt.current_device() == device


def test_set_stream_inside_guards(device: nbrt.Device) -> None:
    first, second = nbrt.Stream(device), nbrt.Stream(device)
    with nbrt.stream(first):
        with nbrt.stream(first):
            nbrt.set_stream(second)
            assert nbrt.current_stream() is second
        assert nbrt.current_stream() is first
        with nbrt.device(device):
            nbrt.set_stream(second)
        # As in torch: a device guard restores the device alone.
        assert nbrt.current_stream() is second
        with pytest.raises(ArgumentTypeError):
            nbrt.set_stream(7)


def test_threads_start_from_the_default(device: nbrt.Device, other_device: nbrt.Device) -> None:
    seen: dict[str, object] = {}
    shared = nbrt.device(other_device)
    is_inside, may_leave = threading.Event(), threading.Event()
    default = nbrt.current_device()

    def work() -> None:
        seen["start"] = nbrt.current_device()
        with shared:
            is_inside.set()
            assert may_leave.wait(HANG_TIMEOUT)
            seen["inside"] = nbrt.current_device()
        seen["end"] = nbrt.current_device()

    with nbrt.device(device), shared:
        thread = threading.Thread(target=work)
        thread.start()
        assert is_inside.wait(HANG_TIMEOUT)
        with nbrt.device(device):
            may_leave.set()
            thread.join(HANG_TIMEOUT)
            assert nbrt.current_device() == device
        assert nbrt.current_device() == other_device
    assert seen == {"start": default, "inside": other_device, "end": default}


def test_asyncio_tasks_do_not_see_each_other(
    device: nbrt.Device, other_device: nbrt.Device
) -> None:
    shared = {device: nbrt.Stream(device), other_device: nbrt.Stream(other_device)}

    async def task(mine: nbrt.Device) -> None:
        for _ in range(5):
            with nbrt.device(mine):
                await asyncio.sleep(0)
                assert nbrt.current_device() == mine
                with nbrt.stream(shared[mine]):
                    await asyncio.sleep(0)
                    assert nbrt.current_stream() is shared[mine]
                await asyncio.sleep(0)
                assert nbrt.current_stream() is nbrt.default_stream(mine)

    async def main() -> None:
        with nbrt.device(device):
            await asyncio.gather(*(task(mine) for mine in (device, other_device) * 3))
            assert nbrt.current_device() == device

    # In another thread: CuPy's current stream belongs to a thread, and the guards of tasks that are
    # left out of order do not restore it.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, main()).result()


def test_a_suspended_generator_lends_its_guard_to_the_caller(
    device: nbrt.Device, other_device: nbrt.Device
) -> None:
    """Generators share their caller's context, so a guard around ``yield`` is in force outside."""

    def inside() -> Iterator[nbrt.Device]:
        with nbrt.device(other_device):
            yield nbrt.current_device()

    with nbrt.device(device):
        suspended = inside()
        assert next(suspended) == other_device
        assert nbrt.current_device() == other_device
        suspended.close()
        assert nbrt.current_device() == device


def test_guards_left_out_of_order_restore_in_the_end(
    device: nbrt.Device, other_device: nbrt.Device
) -> None:
    def inside() -> Iterator[None]:
        with nbrt.device(other_device):
            yield

    with nbrt.device(device):
        suspended = inside()
        next(suspended)
        with nbrt.device(device):
            suspended.close()
            assert nbrt.current_device() == device
        assert nbrt.current_device() == device


def test_a_guard_left_in_another_thread_leaves_that_thread_alone(
    device: nbrt.Device, other_device: nbrt.Device
) -> None:
    def inside() -> Iterator[None]:
        with nbrt.device(other_device):
            yield

    seen: list[nbrt.Device] = []
    suspended = inside()
    next(suspended)

    def close_elsewhere() -> None:
        with nbrt.device(device):
            suspended.close()
            seen.append(nbrt.current_device())

    thread = threading.Thread(target=close_elsewhere)
    thread.start()
    thread.join(HANG_TIMEOUT)
    assert seen == [device]
