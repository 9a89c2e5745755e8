"""The race checker on launches and draws."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING

import numpy as np
import pytest

import nbrt
from helpers.memory_races import (
    ORDERS,
    Address,
    N,
    Order,
    Streams,
    add,
    address_of,
    double,
    kinds,
)
from nbrt.errors import MemoryRaceError
from nbrt.observe.races.checker import check_races
from nbrt.testing import CommandRecorder

if TYPE_CHECKING:
    from nbrt.runtime.kernel import Kernel

pytestmark = pytest.mark.usefixtures("no_garbage")


@functools.cache
def unseen() -> Kernel:
    """Return a kernel like `add`, made by a program that keeps its text to itself."""
    text = inspect.getsource(add.py_func).partition("\n")[2].replace("add", "unseen")
    namespace = dict(add.py_func.__globals__)
    exec(text, namespace)
    return nbrt.kernel(namespace["unseen"])


def test_a_launch_must_wait_for_what_fills_its_array(side_streams: Streams) -> None:
    first, second = side_streams
    with check_races(action="collect") as checker:
        x = nbrt.full(N, 3.0, "float32", stream=first)
        double.forall(N, stream=second)(x)
    assert kinds(checker) == ["unordered_use"]
    assert checker.reports[0].touched.what == "launch of double"


def test_a_copy_must_wait_for_the_launch_whose_result_it_reads(side_streams: Streams) -> None:
    first, second = side_streams
    with check_races(action="collect") as checker:
        x, out = (nbrt.zeros(N, stream=stream) for stream in side_streams)
        second.wait_stream(first)
        double.forall(N, stream=first)(x)
        nbrt.copy(out, x, stream=second)
    (report,) = checker.reports
    assert "an earlier launch of double writes on another stream" in report.message
    assert "flags.writeable" not in report.advice


def test_a_launch_must_wait_for_a_copy_that_reads_its_array(side_streams: Streams) -> None:
    first, second = side_streams
    with check_races(action="collect") as checker:
        x = nbrt.zeros(N, stream=first)
        second.wait_stream(first)
        out = nbrt.zeros(N, stream=second)
        nbrt.copy(out, x, stream=second)
        double.forall(N, stream=first)(x)
    (report,) = checker.reports
    assert report.touched.what == "launch of double"
    assert "an earlier copy reads on another stream" in report.message


@pytest.mark.parametrize("earlier", [double, add])
def test_a_launch_that_writes_must_wait_for_another(side_streams: Streams, earlier: Kernel) -> None:
    first, second = side_streams
    with CommandRecorder() as recorder, check_races():
        x, out = nbrt.zeros(N, stream=first), nbrt.zeros(N, stream=first)
        second.wait_stream(first)
        if earlier is add:
            add.forall(N, stream=first)(out, x)
        else:
            double.forall(N, stream=first)(x)
        with pytest.raises(MemoryRaceError) as caught:
            double.forall(N, stream=second)(x)
    assert recorder.kinds.count("launch") == 1  # the second one was refused
    (report,) = caught.value.reports
    done = "reads" if earlier is add else "writes"
    name = earlier.__name__
    assert report.kind == "unordered_use"
    assert report.touched.what == "launch of double"
    assert "double.forall(N, stream=second)(x)" in report.touched.stack
    assert report.other.what == f"earlier launch of {name}"
    assert f"{name}.forall(N, stream=first)" in report.other.stack
    assert f"which an earlier launch of {name} {done} on another stream" in report.message
    assert report.advice.endswith(f"recorded behind the launch of {name}")


def test_a_launch_that_reads_must_wait_for_one_that_writes(side_streams: Streams) -> None:
    first, second = side_streams
    with check_races(action="collect") as checker:
        x, out = nbrt.zeros(N, stream=first), nbrt.zeros(N, stream=second)
        second.wait_stream(first)
        double.forall(N, stream=first)(x)
        add.forall(N, stream=second)(out, x)
    (report,) = checker.reports
    assert report.message.startswith("launch of add reads 4000 bytes")


@pytest.mark.parametrize("order", ORDERS)
def test_launches_in_order_share_an_array(side_streams: Streams, order: Order) -> None:
    first, second = side_streams
    with check_races() as checker:
        x = nbrt.full(N, 3.0, "float32", stream=first)
        double.forall(N, stream=first)(x)
        order(first, second)
        double.forall(N, stream=second)(x)
        assert np.all(nbrt.to_host(x, stream=second) == 12.0)
    assert checker.reports == []


def test_launches_on_parts_of_an_array(side_streams: Streams) -> None:
    first, second = side_streams
    with check_races(action="collect") as checker:
        x = nbrt.full(N, 3.0, "float32", stream=first)
        second.wait_stream(first)
        double.forall(N, stream=first)(x[::2])
        double.forall(N, stream=second)(x[1::2])
        assert checker.reports == []
        double.forall(N, stream=second)(x[10:13])
    assert [(each.kind, each.nbytes) for each in checker.reports] == [("unordered_use", 12)]


def test_a_kernel_without_source_may_write(side_streams: Streams) -> None:
    first, second = side_streams
    with check_races(action="collect") as checker:
        x = nbrt.zeros(N, stream=first)
        outs = [nbrt.zeros(N, stream=stream) for stream in side_streams]
        second.wait_stream(first)
        for out, stream in zip(outs, side_streams, strict=True):
            unseen().forall(N, stream=stream)(out, x)
    (report,) = checker.reports
    assert report.address == address_of(x)
    assert "launch of unseen uses 4000 bytes" in report.message
    assert "flags.writeable = False" in report.advice


def test_launches_and_copies_in_order(side_streams: Streams) -> None:
    first, second = side_streams
    with check_races() as checker:
        x = nbrt.full(N, 3.0, "float32", stream=first)
        second.wait_stream(first)
        double.forall(N, stream=second)(x)
        first.wait_stream(second)
        nbrt.copy(x[:5], np.float32(1.0), stream=first)
        double.forall(N, stream=first)(x)
        assert nbrt.to_host(x, stream=first)[4:6].tolist() == [2.0, 12.0]
    assert checker.reports == []


def test_launches_may_share_what_they_read(side_streams: Streams) -> None:
    first, second = side_streams
    with check_races() as checker:
        x = nbrt.full(N, 3.0, "float32", stream=first)
        outs = [nbrt.zeros(N, stream=stream) for stream in side_streams]
        second.wait_stream(first)
        for out, stream in zip(outs, side_streams, strict=True):
            add.forall(N, stream=stream)(out, x)
        for out, stream in zip(outs, side_streams, strict=True):
            assert np.all(nbrt.to_host(out, stream=stream) == 3.0)
    assert checker.reports == []


def test_a_pipeline_with_two_buffers(side_streams: Streams) -> None:
    """Copies on one stream, kernels on the other, each waiting for the buffer it needs."""
    copying, computing = side_streams
    batches = [np.full(N, float(number), np.float32) for number in range(8)]
    with check_races() as checker:
        total = nbrt.zeros(N, stream=computing)
        buffers = [nbrt.empty(N, stream=copying) for _ in range(2)]
        filled = [nbrt.Event() for _ in buffers]
        used = [nbrt.Event() for _ in buffers]
        for number, batch in enumerate(batches):
            slot = number % 2
            used[slot].wait(copying)
            nbrt.copy(buffers[slot], batch, stream=copying)
            filled[slot].record(copying)
            filled[slot].wait(computing)
            add.forall(N, stream=computing)(total, buffers[slot])
            used[slot].record(computing)
        assert np.all(nbrt.to_host(total, stream=computing) == 28.0)
    assert checker.reports == []


def test_random_numbers_and_kernels(side_stream: nbrt.Stream) -> None:
    with nbrt.stream(side_stream), check_races() as checker:
        generator = nbrt.Generator(5)
        for _ in range(3):
            x = generator.random(N, dtype="float32")
            double.forall(N)(x)
            values = nbrt.to_host(x)
        assert np.all((values >= 0.0) & (values < 2.0))
    assert checker.reports == []


def test_a_launch_on_freed_memory(device: nbrt.Device) -> None:
    if device.kind == "sample":
        pytest.skip("the sample backend keeps no freed memory")
    with nbrt.device(device), check_races():
        x = nbrt.full(N, 1.0, "float32")
        alias = Address(x)
        double.forall(N)(alias.array())
        assert np.all(nbrt.to_host(x) == 2.0)
        del x
        with pytest.raises(MemoryRaceError, match="launch of double writes 4000 bytes"):
            double.forall(N)(alias.array())


def test_a_read_only_argument_is_read(side_streams: Streams) -> None:
    first, second = side_streams
    if not first.interface.capabilities.host_addressable:
        pytest.skip("read-only arrays are NumPy's")
    with check_races(action="collect") as checker:
        x = nbrt.full(N, 1.0, "float32", stream=first)
        out = nbrt.zeros(N, stream=second)
        second.wait_stream(first)
        view = x[:]
        view.flags.writeable = False
        unseen().forall(N, stream=second)(out, view)
        nbrt.copy(x, np.float32(2.0), stream=first)
    (report,) = checker.reports
    assert "an earlier launch of unseen reads on another stream" in report.message


def test_copies_and_launches_may_read_the_same(side_streams: Streams) -> None:
    first, second = side_streams
    with check_races() as checker:
        x = nbrt.full(N, 1.0, "float32", stream=first)
        outs = [nbrt.zeros(N, stream=stream) for stream in side_streams]
        second.wait_stream(first)
        add.forall(N, stream=first)(outs[0], x)
        nbrt.copy(outs[1], x, stream=second)
        add.forall(N, stream=second)(outs[1], x)
        second.synchronize()
        first.synchronize()
    assert checker.reports == []
    assert np.all(nbrt.to_host(outs[0]) == 1.0)
    assert np.all(nbrt.to_host(outs[1]) == 2.0)
