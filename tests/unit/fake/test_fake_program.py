"""`FakeProgram` by itself: checks of arguments, compilation for the target, capture."""

from __future__ import annotations

import collections
import ctypes
import mmap
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from nbrt._internal.device import Device
from nbrt.backends.fake.array import FakeArray
from nbrt.backends.fake.program import FakeCpuProgram, FakeProgram
from nbrt.backends.graphs import RecordingQueue
from nbrt.backends.inspection import Resources
from nbrt.backends.interface import CapturingProgram, CheckableProgram, DeviceProperties
from nbrt.backends.occupancy import max_threads_by_registers, occupancy_of
from nbrt.backends.registry import get_interface_for_device
from nbrt.backends.synchronous import SynchronousQueue
from nbrt.errors import (
    ArgumentTypeError,
    BackendUnavailableError,
    CompileError,
    DeviceMismatchError,
    LaunchError,
    UnsupportedConstructError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

ONE = (1, 1, 1)
H100 = DeviceProperties(
    "H100",
    80 << 30,
    132,
    shared_memory_per_block=227 * 1024,
    compute_capability=(9, 0),
)
PAGES = mmap.mmap(-1, 1 << 16, prot=0)
_ADDRESS = np.ndarray(1, np.uint8, PAGES).__array_interface__["data"][0]
UNTOUCHABLE = (ctypes.c_char * len(PAGES)).from_address(_ADDRESS)
"""Memory that ends the process if a test reads or writes it."""

Pair = collections.namedtuple("Pair", "array factor")
scale = 2.0


class Memory:
    def __init__(self, kind: str, index: int, is_host: bool) -> None:
        self.device = Device(kind, index)
        self.is_host = is_host
        self.is_active = True
        self.is_current = True
        self.on_launch = None
        self.on_version = None

    def array(self, shape: Any = (8,), dtype: Any = "f4", order: Any = "C") -> FakeArray:
        layout: Any = np.ndarray(shape, dtype, UNTOUCHABLE, order=order)
        memory: Any = self
        return FakeArray(layout, memory, object())


class Fake:
    """Two fake devices of a kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.memories = [Memory(kind, index, kind == "cpu") for index in range(2)]
        self.x = self.memories[0].array()

    def program(self, function: Callable[..., Any], *, compiles: bool = False) -> FakeProgram:
        memories: Any = self.memories
        inspect = get_interface_for_device(self.kind).inspect
        target = "H100 SXM" if self.kind == "cuda" else None
        make = FakeCpuProgram if self.kind == "cpu" else FakeProgram
        return make(function, self.kind, H100, memories, inspect, target=target, compiles=compiles)

    def launch(self, function: Callable[..., Any], *args: Any, **options: Any) -> None:
        program = self.program(function, **options)
        program.plan(0, ONE, ONE, 0).launch(SynchronousQueue(0), *args)


@pytest.fixture(params=["cpu", "cuda"])
def fake(request: pytest.FixtureRequest) -> Fake:
    return Fake(request.param)


@pytest.fixture
def fake_gpu() -> Fake:
    return Fake("cuda")


def scaled(out, x):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < out.size:
        out[i] = scale * x[i]


def uses_pair(pair, n=3):  # type: ignore[no-untyped-def]
    pair[0][0] = pair[1] * n


def attribute_missing(x):  # type: ignore[no-untyped-def]
    first = 1
    x[0] = first + x.nope


def declares_shared(x):  # type: ignore[no-untyped-def]
    tile = cuda.shared.array(1024, np.float64)
    tile[cuda.threadIdx.x] = x[0]
    cuda.syncthreads()
    x[0] = tile[0]


def test_accepts_what_the_kernel_takes(fake: Fake) -> None:
    column = fake.memories[0].array((4, 4))
    fake.launch(scaled, fake.x, fake.x)
    fake.launch(scaled, column, FakeArray(column.layout.T, column.memory, column.handle))
    fake.launch(scaled, column, FakeArray(column.layout[:, ::2], column.memory, column.handle))
    fake.launch(scaled, fake.memories[0].array(()), np.float32(1))
    fake.launch(uses_pair, Pair(fake.x, 2.0))
    fake.launch(uses_pair, Pair(fake.x, True), 2**63)


@pytest.mark.parametrize("compiles", [False, True])
def test_compiles_at_the_first_launch_of_each_signature(fake: Fake, compiles: bool) -> None:
    program = fake.program(scaled, compiles=compiles)
    plan, queue = program.plan(0, ONE, (128, 1, 1), 0), SynchronousQueue(0)
    doubles = fake.memories[0].array(dtype="f8")
    for args in ((fake.x, fake.x), (doubles, fake.x), (fake.x, fake.x)):
        plan.launch(queue, *args)
    first, second = plan.compiled((fake.x, fake.x)), plan.compiled((doubles, fake.x))
    assert (first is not None) == (second is not None) == compiles
    if first is not None and second is not None:
        assert first.signature.endswith(
            "scaled(out: array(float32, 1d, C), x: array(float32, 1d, C))"
        )
        assert "float64" in second.signature
    assert plan.compiled((doubles, doubles)) is None


def test_resources_and_occupancy_are_those_of_inspect(fake_gpu: Fake) -> None:
    plan = fake_gpu.program(declares_shared, compiles=True).plan(0, ONE, (128, 1, 1), 1024)
    plan.launch(SynchronousQueue(0), fake_gpu.x)
    found = plan.compiled((fake_gpu.x,))
    assert found is not None
    try:
        expected = nbrt.kernel(declares_shared)[1, 128, None, 1024].inspect(
            "float32[::1]", gpu="H100 SXM"
        )
        assert found.resources == expected.resources
        assert found.occupancy == expected.occupancy
        assert found.resources is not None
        assert found.resources.static_shared == 8192
    except BackendUnavailableError as error:
        assert found.resources is None
        assert found.missing == str(error)  # noqa: PT017 (either way, the same)


def test_code_is_shared_by_later_programs_with_the_same_captures(
    fake_gpu: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def code(value: float) -> Any:
        monkeypatch.setitem(globals(), "scale", value)
        plan = fake_gpu.program(scaled, compiles=True).plan(0, ONE, ONE, 0)
        plan.launch(SynchronousQueue(0), fake_gpu.x, fake_gpu.x)
        found = plan.compiled((fake_gpu.x, fake_gpu.x))
        assert found is not None
        return found.code

    doubled, again, tripled = code(2.0), code(2.0), code(3.0)
    assert doubled is again
    assert doubled.ptx != tripled.ptx


def test_captured_values_are_checked(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    program = fake.program(scaled)
    assert isinstance(program, CapturingProgram)
    assert program.captures.is_current is not None
    assert program.captures.is_current()
    monkeypatch.setitem(globals(), "scale", 4.0)
    assert not program.captures.is_current()


def test_compile_errors_name_the_line_of_the_kernel(fake: Fake) -> None:
    fake.launch(attribute_missing, fake.x)  # types only
    line = attribute_missing.__code__.co_firstlineno + 2
    with pytest.raises(CompileError, match=rf"test_fake_program\.py:{line}"):
        fake.launch(attribute_missing, fake.x, compiles=True)


def test_code_without_ptxas_says_what_is_missing(
    fake_gpu: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find() -> str:
        raise BackendUnavailableError("expected ptxas")

    monkeypatch.setattr("nbrt.backends.cuda.ptxas.find_ptxas", find)
    plan = fake_gpu.program(uses_pair, compiles=True).plan(0, ONE, ONE, 0)
    args = (Pair(fake_gpu.x, 1.0),)
    plan.launch(SynchronousQueue(0), *args)
    found = plan.compiled(args)
    assert found is not None
    assert (found.resources, found.occupancy, found.missing) == (None, None, "expected ptxas")
    assert ".entry" in found.code.ptx  # type: ignore[attr-defined]


class Needs:
    """The code of a kernel with given needs."""

    ptx = ""
    signature = "scaled()"
    resources = Resources(registers=128, static_shared=8192)
    captures = SimpleNamespace(agrees=lambda other: False)


def test_limits_are_those_left_by_registers_and_static_shared_memory(fake_gpu: Fake) -> None:
    memories: Any = fake_gpu.memories
    program = FakeProgram(
        scaled, "cuda", H100, memories, lambda *_: Needs, target="H100", compiles=True
    )
    limit, queue, x = H100.shared_memory_per_block, SynchronousQueue(0), fake_gpu.x
    program.plan(0, ONE, (512, 1, 1), limit - 8192).launch(queue, x, x)
    for _ in range(2):
        with pytest.raises(LaunchError, match=r"at most 512 .*registers of scaled, got 513"):
            program.plan(0, ONE, (513, 1, 1), 0).launch(queue, x, x)
        with pytest.raises(LaunchError, match="got 224257 dynamic ones and 8192 that scaled"):
            program.plan(0, ONE, ONE, limit - 8191).launch(queue, x, x)


def test_the_thread_limit_by_registers_agrees_with_occupancy() -> None:
    for registers in range(256):
        most = max_threads_by_registers(registers)
        needs = Resources(registers)
        assert occupancy_of((9, 0), needs, most).blocks > 0
        assert most == 1024 or occupancy_of((9, 0), needs, most + 1).blocks == 0


def test_names_both_sides_of_a_mix(fake: Fake) -> None:
    elsewhere = Fake(fake.kind)
    ended = Fake(fake.kind)
    ended.memories[0].is_active = False
    there = r"argument 1 \(x\) on the fake device {0}:0, .*got {1}; copy it with nbrt\.to"
    for other, text in (
        (fake.memories[1].array(), f"a fake array of {fake.kind}:1"),
        (ended.x, "an array of a fake device whose nbrt.fake block has ended"),
        (type("Tensor", (), {"__dlpack_device__": None})(), f"a real array of {__name__}"),
    ):
        with pytest.raises(DeviceMismatchError, match=there.format(fake.kind, text)):
            fake.launch(scaled, fake.x, other)
        with pytest.raises(DeviceMismatchError, match=rf"argument 0 \(pair\).*{text}"):
            fake.launch(uses_pair, Pair(other, 1.0))
    if fake.kind == "cuda":
        for other, text in (
            (elsewhere.x, "an array of the fake cuda:0 of another nbrt.fake block"),
            (Fake("cpu").x, "a fake array of cpu:0"),
            (Memory("cuda", 0, is_host=True).array(), "a fake NumPy array"),
            (np.zeros(3), "a real array of NumPy"),
        ):
            with pytest.raises(DeviceMismatchError, match=there.format("cuda", text)):
                fake.launch(scaled, fake.x, other)


def test_a_kernel_on_a_fake_cpu_takes_arrays_of_the_host() -> None:
    fake, values = Fake("cpu"), np.arange(3.0)
    fake.launch(scaled, fake.x, values)
    fake.launch(scaled, values, Memory("cuda", 0, is_host=True).array())
    np.testing.assert_array_equal(values, np.arange(3.0))  # nothing ran


def test_refuses_streams_of_another_device(fake: Fake) -> None:
    plan = fake.program(scaled).plan(0, ONE, ONE, 0)
    plan.launch(SynchronousQueue(0), fake.x, fake.x)
    with pytest.raises(DeviceMismatchError, match=f"a stream of {fake.kind}:0"):
        plan.launch(SynchronousQueue(1), fake.x, fake.x)


def test_a_refused_launch_is_refused_again(fake: Fake) -> None:
    plan, queue = fake.program(scaled).plan(0, ONE, ONE, 0), SynchronousQueue(0)
    plan.launch(queue, fake.x, fake.x)
    for _ in range(2):
        with pytest.raises(ArgumentTypeError):
            plan.launch(queue, fake.x, "text")
        with pytest.raises(ArgumentTypeError):
            plan.launch(queue, fake.x)
    plan.launch(queue, fake.x, fake.x)


def test_a_change_of_an_array_is_seen(fake: Fake) -> None:
    plan, queue = fake.program(scaled, compiles=True).plan(0, ONE, ONE, 0), SynchronousQueue(0)
    x, source = fake.memories[0].array((4, 4), order="F"), fake.x
    plan.launch(queue, x, source)
    flat = plan.compiled((x, source))
    x.shape = (16, 1)[::-1] if x.flags.c_contiguous else (4, 4)
    column = FakeArray(x.layout[:, :1], x.memory, x.handle)
    plan.launch(queue, column, source)
    assert plan.compiled((column, source)) is not flat
    column.shape = (4,)
    plan.launch(queue, column, source)
    assert flat is not None
    found = plan.compiled((column, source))
    assert found is not None
    assert "float32, 1d" in found.signature
    if fake.kind == "cpu":
        column.flags.writeable = False
        with pytest.raises(CompileError, match="readonly"):
            plan.launch(queue, column, source)


def test_a_recorded_launch_has_its_arguments(fake: Fake) -> None:
    plan = fake.program(scaled).plan(0, ONE, ONE, 0)
    recording = RecordingQueue(SynchronousQueue(0))
    plan.launch(recording, fake.x, fake.x)
    ((function, args),) = recording.take()
    assert function is plan
    assert args == (fake.x, fake.x) or [a is fake.x for a in args] == [True, True]
    function(*args)
    assert (plan.function, plan.grid, plan.block, plan.shared) == (scaled, ONE, ONE, 0)


def test_refuses_functions_that_are_no_kernels(fake: Fake) -> None:
    with pytest.raises(ArgumentTypeError):
        fake.program(print)
    if fake.kind == "cuda":
        with pytest.raises(ArgumentTypeError, match="device"):
            fake.program(cuda.jit(device=True)(lambda x: x))
    else:

        def generator(x):  # type: ignore[no-untyped-def]
            yield x

        with pytest.raises(UnsupportedConstructError, match="generator"):
            fake.program(generator)


def test_only_a_fake_cpu_has_checked_launches(fake: Fake) -> None:
    assert isinstance(fake.program(scaled), CheckableProgram) == (fake.kind == "cpu")
