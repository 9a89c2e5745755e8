"""The race checker: finds each kind of fault, and nothing in programs that order their streams."""

from __future__ import annotations

import gc
import pickle
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
from helpers.clocks import HANG_TIMEOUT
from helpers.memory_races import (
    ORDERS,
    N,
    Order,
    Streams,
    address_of,
    kinds,
    race,
)
from nbrt.errors import ArgumentError, MemoryRaceError, MemoryRaceWarning
from nbrt.observe.races.checker import check_races
from nbrt.runtime.commands import install_hook
from nbrt.testing import CommandRecorder, Latch

if TYPE_CHECKING:
    from nbrt.runtime.commands import Command

pytestmark = pytest.mark.usefixtures("no_garbage")


# -- arrays in use ---------------------------------------------------------------------------------


def test_an_unordered_write_is_refused_and_not_queued(side_streams: Streams) -> None:
    first, second = side_streams
    with Latch() as latch, check_races() as checker:
        x = nbrt.full(N, 5.0, stream=first)
        latch.hold(second)
        with CommandRecorder() as recorder, pytest.raises(MemoryRaceError) as caught:
            nbrt.copy(x, np.float32(1.0), stream=second)
        assert "copy" not in recorder.kinds  # arrays of other tests may be freed meanwhile
        latch.release()
        second.synchronize()
        assert np.all(nbrt.to_host(x, stream=first) == 5.0)
    (report,) = caught.value.reports
    assert checker.reports == [report]
    assert (report.kind, report.device) == ("unordered_use", first.device)
    assert (report.address, report.nbytes) == (address_of(x), x.nbytes)
    assert (report.touched.what, report.touched.stream) == ("copy", repr(second))
    assert (report.other.what, report.other.stream) == ("earlier fill", repr(first))
    assert "nbrt.copy(x" in report.touched.stack
    assert "nbrt.full(N" in report.other.stack
    assert "nbrt.full(N" in report.allocated.stack
    assert report.freed is None
    for part in (report.touched.stack.strip(), report.other.stack.strip(), report.advice):
        assert part.splitlines()[-1].strip() in str(caught.value)


@pytest.mark.parametrize("order", ORDERS)
def test_ordered_streams_share_an_array(side_streams: Streams, order: Order) -> None:
    first, second = side_streams
    with check_races() as checker:
        x = nbrt.full(N, 5.0, "float32", stream=first)
        order(first, second)
        nbrt.copy(x, np.float32(1.0), stream=second)
        order(second, first)
        nbrt.copy(x, np.float32(2.0), stream=first)
        assert np.all(nbrt.to_host(x, stream=first) == 2.0)
    assert checker.reports == []


def test_order_goes_through_a_third_stream(side_streams: Streams) -> None:
    first, second = side_streams
    third = nbrt.Stream(first.device)
    with check_races() as checker:
        x = nbrt.zeros(N, stream=first)
        third.wait_stream(first)
        second.wait_stream(third)
        nbrt.copy(x, np.float32(1.0), stream=second)
    assert checker.reports == []


def test_a_raw_stream_borrowed_twice_is_one(device: nbrt.Device) -> None:
    class Foreign:
        """A stream of another library."""

        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, handle

    if not nbrt.get_interface_for_device(device).capabilities.cuda_stream_protocol:
        pytest.skip(f"{device} has no raw streams")
    handle = nbrt.Stream(device).handle or 4096
    one, two = (nbrt.Stream.from_external(Foreign(), device) for _ in range(2))
    with check_races() as checker:
        x = nbrt.zeros(N, stream=one)
        nbrt.copy(x, np.float32(1.0), stream=two)
        two.synchronize()
    assert checker.reports == []


def test_an_event_orders_what_was_there_when_it_was_recorded(side_streams: Streams) -> None:
    first, second = side_streams
    with check_races(action="collect") as checker:
        event = first.record_event()
        x = nbrt.zeros(N, stream=first)
        second.wait_event(event)
        nbrt.copy(x, np.float32(1.0), stream=second)
    assert kinds(checker) == ["unordered_use"]


def test_the_default_stream_is_a_stream_like_any_other(side_stream: nbrt.Stream) -> None:
    with check_races(action="collect") as checker:
        x = nbrt.zeros(N, device=side_stream.device)
        nbrt.copy(x, np.float32(1.0), stream=side_stream)
    assert kinds(checker) == ["unordered_use"]


def test_copies_between_devices_order_themselves(
    side_stream: nbrt.Stream, other_device: nbrt.Device
) -> None:
    with check_races() as checker, nbrt.stream(side_stream):
        x = nbrt.full(N, 3.0, "float32")
        there = nbrt.to(x, other_device)
        nbrt.copy(x, np.float32(4.0))
        back = nbrt.to(there, side_stream.device)
        assert np.all(nbrt.to_host(there) == 3.0)
        assert np.all(nbrt.to_host(back) == 3.0)
        assert np.all(nbrt.to_host(x) == 4.0)
    assert checker.reports == []


def test_reads_need_no_order(side_streams: Streams) -> None:
    first, second = side_streams
    out = [np.zeros(N, np.float32) for _ in range(2)]
    with check_races() as checker:
        x = nbrt.full(N, 3.0, "float32", stream=first)
        second.wait_stream(first)
        for values, stream in zip(out, side_streams, strict=True):
            nbrt.copy(values, x, stream=stream)
        first.wait_stream(second)
        nbrt.copy(x, np.float32(1.0), stream=first)
        first.synchronize()
    assert checker.reports == []
    assert np.all(np.stack(out) == 3.0)


def test_a_write_must_wait_for_reads(side_streams: Streams) -> None:
    first, second = side_streams
    with check_races(action="collect") as checker:
        x = nbrt.full(N, 3.0, "float32", stream=first)
        second.wait_stream(first)
        nbrt.copy(np.zeros(N, np.float32), x, stream=second)
        nbrt.copy(x, np.float32(1.0), stream=first)
    assert kinds(checker) == ["unordered_use"]
    assert "an earlier copy reads" in checker.reports[0].message


def test_parts_of_an_array_are_told_apart(side_streams: Streams) -> None:
    first, second = side_streams
    with check_races(action="collect") as checker:
        x = nbrt.empty((20, 20), stream=first)
        nbrt.copy(x[:10], np.float32(1.0), stream=first)
        nbrt.copy(x[10:], np.float32(2.0), stream=second)
        y = nbrt.empty((20, 20), stream=first)
        nbrt.copy(y[:, :10], np.float32(1.0), stream=first)
        nbrt.copy(y[:, 10:], np.float32(2.0), stream=second)
        assert checker.reports == []
        nbrt.copy(y.T[9:11], np.float32(3.0), stream=second)
    assert kinds(checker) == ["unordered_use"]


def test_arrays_from_before_the_watch_are_watched(side_streams: Streams) -> None:
    first, second = side_streams
    x = nbrt.empty(N, stream=first)
    with check_races(action="collect") as checker:
        nbrt.copy(x[1:], np.float32(1.0), stream=first)
        nbrt.copy(x[:5], np.float32(1.0), stream=second)
    assert kinds(checker) == ["unordered_use"]


def test_a_refused_command_leaves_no_trace(side_streams: Streams) -> None:
    class RefusedError(Exception):
        """The exception of the hook below."""

    class Refuser:
        def before(self, stream: nbrt.Stream, command: Command) -> None:
            raise RefusedError

        def after(self, stream: nbrt.Stream, command: Command, result: object) -> None:
            """Never called."""

    first, second = side_streams
    with check_races() as checker:
        x = nbrt.empty(N, stream=first)
        with install_hook(Refuser(), ["copy"]), pytest.raises(RefusedError):
            nbrt.copy(x, np.float32(1.0), stream=first)
        nbrt.copy(x, np.float32(2.0), stream=second)
        second.synchronize()
    assert checker.reports == []


# -- telling ---------------------------------------------------------------------------------------


def test_warnings(side_streams: Streams) -> None:
    with pytest.warns(MemoryRaceWarning, match="unordered use") as caught:  # noqa: SIM117
        with check_races(action="warn") as checker:
            race(side_streams, 3)
    assert len(caught) == 1
    assert kinds(checker) == ["unordered_use"]


def test_the_same_lines_are_told_once(side_streams: Streams) -> None:
    with check_races(action="collect") as checker:
        race(side_streams, 5)
    assert len(checker.reports) == 1
    with check_races() as checker:
        for _ in range(2):
            with pytest.raises(MemoryRaceError):  # a refusal is one each time
                race(side_streams)
        nbrt.synchronize(side_streams[0].device)


def test_reports_travel(side_streams: Streams) -> None:
    with check_races(), pytest.raises(MemoryRaceError) as caught:
        race(side_streams)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.reports) == (str(caught.value), caught.value.reports)


def test_one_device(side_streams: Streams, other_device: nbrt.Device) -> None:
    with check_races(other_device) as checker:
        race(side_streams)
    assert checker.reports == []
    with check_races(side_streams[0].device), pytest.raises(MemoryRaceError):
        race(side_streams)


def test_watches_nest(side_streams: Streams) -> None:
    with check_races(action="collect") as outer:
        race(side_streams)
        with check_races(action="collect") as inner:
            x = nbrt.zeros(N, stream=side_streams[0])
            nbrt.copy(x, np.float32(1.0), stream=side_streams[1])
            nbrt.synchronize(side_streams[0].device)
            del x
    assert kinds(inner) == ["unordered_use"]
    assert kinds(outer) == ["unordered_use"] * 2
    race(side_streams)
    assert len(outer.reports) == 2


@pytest.mark.parametrize("wrong", [{"action": "print"}, {"poison": 3}, {"poison": "some"}])
def test_bad_arguments(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="expected"), check_races(**wrong):
        pass


# -- programs --------------------------------------------------------------------------------------


def test_a_pipeline_that_forgets_to_wait(side_streams: Streams) -> None:
    copying, computing = side_streams
    with check_races(action="collect") as checker:
        buffer, out = (nbrt.empty(N, stream=copying) for _ in range(2))
        for _ in range(2):
            nbrt.copy(buffer, np.float32(1.0), stream=copying)
            computing.wait_stream(copying)
            nbrt.copy(out, buffer, stream=computing)
    assert kinds(checker) == ["unordered_use"]
    assert "an earlier copy reads" in checker.reports[0].message


def test_threads_with_streams_of_their_own(device: nbrt.Device) -> None:
    failures: list[BaseException] = []
    barrier = threading.Barrier(6)

    def work(number: int) -> None:
        stream = nbrt.Stream(device)
        try:
            barrier.wait(HANG_TIMEOUT)
            for turn in range(30):
                x = nbrt.full(N + 64 * (turn % 3), float(number), "float32", stream=stream)
                y = nbrt.empty(x.size, stream=stream)
                nbrt.copy(y, x, stream=stream)
                del x
                assert np.all(nbrt.to_host(y, stream=stream) == number)
        except BaseException as error:  # noqa: BLE001  # shown by the main thread
            failures.append(error)

    with check_races() as checker:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert checker.reports == []


def test_frees_in_the_middle_of_the_checkers_own_work(device: nbrt.Device) -> None:
    threshold = gc.get_threshold()
    gc.enable()
    with check_races() as checker:
        gc.set_threshold(1, 1, 1)
        try:
            for _ in range(50):
                cycle = [nbrt.zeros(100, device=device)]
                cycle.append(cycle)
        finally:
            gc.set_threshold(*threshold)
        del cycle
        gc.collect()
    assert checker.reports == []
