from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from nbrt.backends.captures import Captures
from nbrt.backends.cuda.launch import CudaProgram
from nbrt.errors import ArgumentTypeError, DeviceMismatchError, LaunchError

if TYPE_CHECKING:
    from nbrt.backends.cuda.backend import CudaInterface

ONE = (1, 1, 1)
KERNEL_NEEDS = SimpleNamespace(max_threads_per_block=512, static_shared=1024)


class FakeLoaded:
    """A compiled kernel that writes down its launches."""

    def __init__(self) -> None:
        self.max_threads_per_block = KERNEL_NEEDS.max_threads_per_block
        self.static_shared = KERNEL_NEEDS.static_shared
        self.launches: list[Any] = []
        self.allowed: list[int] = []

    def allow_shared(self, nbytes: int) -> None:
        self.allowed.append(nbytes)

    def launch(self, queue: Any, *configuration: Any) -> None:
        self.launches.append((queue.driver.get_device(), queue.handle, *configuration))


class FakeCompiler:
    """Numba's key rules, and no compiler."""

    name = "saxpy"
    parameter_names = ("a", "x")
    defaults: tuple[Any, ...] = ()

    def __init__(self) -> None:
        self.compiled: list[FakeLoaded] = []
        self.captures = Captures(array)

    def adopt(self, function: Any) -> FakeCompiler:
        return self

    def key_of(self, argument: object) -> Any:
        return type(argument) if isinstance(argument, (int, float, np.generic)) else None

    def compile(self, args: Any) -> FakeLoaded:
        self.compiled.append(FakeLoaded())
        return self.compiled[-1]

    def compile_ptx(self, args: Any, capability: Any) -> str:
        return ""


@pytest.fixture
def compiler() -> FakeCompiler:
    return FakeCompiler()


@pytest.fixture
def program(interface: CudaInterface, compiler: FakeCompiler) -> CudaProgram:
    return CudaProgram(
        interface._driver, compiler, print, interface.get_device_properties, interface.adopt
    )


def array(interface: CudaInterface, index: int = 0, dtype: str = "f4") -> Any:
    with interface._driver.on_device(index):
        return interface._driver.cupy.empty((8,), dtype)


def test_launch_happens_on_the_queue_and_its_device(
    interface: CudaInterface, program: CudaProgram, compiler: FakeCompiler
) -> None:
    queue = interface.create_queue(1, 0)
    x = array(interface, 1)
    program.plan(1, (3, 1, 1), (64, 1, 1), 16).launch(queue, 2.0, x)
    (launched,) = compiler.compiled[0].launches
    assert launched == (1, queue.handle, (3, 1, 1), (64, 1, 1), 16, (2.0, x))
    assert interface.current_device() == 0


def test_compiles_once_per_types_and_device(
    interface: CudaInterface, program: CudaProgram, compiler: FakeCompiler
) -> None:
    queue = interface.create_queue(0, 0)
    plans = [program.plan(0, ONE, (32, 1, 1), shared) for shared in (0, 8)]
    x = array(interface)
    for plan in plans:
        for first in (1.0, 2.0, np.float64(1), 1):
            plan.launch(queue, first, x)
            plan.launch(queue, first, x[::2])
    assert len(compiler.compiled) == 6  # three scalar types, dense or not
    program.plan(1, ONE, ONE, 0).launch(interface.create_queue(1, 0), 1, array(interface, 1))
    assert len(compiler.compiled) == 7


def test_kernel_limits(
    interface: CudaInterface, program: CudaProgram, compiler: FakeCompiler
) -> None:
    queue, x = interface.create_queue(0, 0), array(interface)
    limit = interface.get_device_properties(0).shared_memory_per_block
    with pytest.raises(LaunchError, match="registers of saxpy"):
        program.plan(0, ONE, (513, 1, 1), 0).launch(queue, 1.0, x)
    with pytest.raises(LaunchError, match="1024 that saxpy declares"):
        program.plan(0, ONE, ONE, limit).launch(queue, 1.0, x)
    program.plan(0, ONE, ONE, 48 * 1024).launch(queue, 1.0, x)
    program.plan(0, ONE, ONE, 16).launch(queue, 1.0, x)
    assert compiler.compiled[0].allowed == [48 * 1024]


def test_refuses_arrays_from_elsewhere(interface: CudaInterface, program: CudaProgram) -> None:
    queue, plan = interface.create_queue(0, 0), program.plan(0, ONE, ONE, 0)
    with pytest.raises(DeviceMismatchError, match=r"1 \(x\).*NumPy.*nbrt\.to\(array, 'cuda:0'\)"):
        plan.launch(queue, 1.0, np.zeros(3))
    with pytest.raises(DeviceMismatchError, match=r"1 \(x\).*array of cuda:1.*nbrt\.to"):
        plan.launch(queue, 1.0, array(interface, 1))
    with pytest.raises(DeviceMismatchError, match="NumPy"):
        plan.launch(queue, 1.0, (1, np.zeros(3)))
    with pytest.raises(DeviceMismatchError, match="stream of cuda:0"):
        plan.launch(interface.create_queue(1, 0), 1.0, array(interface))


def test_counts_arguments(interface: CudaInterface, program: CudaProgram) -> None:
    with pytest.raises(ArgumentTypeError, match=r"2 arguments of saxpy \(a, x\), got 1"):
        program.plan(0, ONE, ONE, 0).launch(interface.create_queue(0, 0), 1.0)


def test_fills_in_defaults(
    interface: CudaInterface, program: CudaProgram, compiler: FakeCompiler
) -> None:
    x = array(interface)
    compiler.defaults = (x,)
    program.plan(0, ONE, ONE, 0).launch(interface.create_queue(0, 0), 1.0)
    assert compiler.compiled[0].launches[0][-1] == (1.0, x)


def test_foreign_arrays_are_adopted(
    interface: CudaInterface, program: CudaProgram, compiler: FakeCompiler
) -> None:
    x = array(interface)
    foreign = SimpleNamespace(__cuda_array_interface__={})
    program.adopt = lambda given: x if given is foreign else given
    program.plan(0, ONE, ONE, 0).launch(interface.create_queue(0, 0), 1.0, foreign)
    assert compiler.compiled[0].launches[0][-1] == (1.0, x)
