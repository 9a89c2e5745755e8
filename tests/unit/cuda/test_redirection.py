from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from nbrt.backends.cuda.memory.blocks import CudaBlock, device_owner_of
from nbrt.backends.cuda.memory.cupy_hook import CupyAllocatorHook
from nbrt.backends.pools import AllocationHandle

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cuda.backend import CudaInterface
    from unit.cuda.fake_cuda import Simulation


def allocator(name: str, asked: list[Any]) -> Callable[[int], tuple[Any, object]]:
    def allocate(nbytes: int) -> tuple[Any, object]:
        asked.append((name, nbytes))
        return CudaBlock(1 << 30, nbytes, 0, None, None), AllocationHandle(name)

    return allocate


def owner(interface: CudaInterface, count: int = 4) -> object:
    return interface.owner_of(interface._driver.cupy.empty((count,), "f4"))


def test_cupy_allocates_through_the_pool_until_undone(interface: CudaInterface) -> None:
    asked: list[Any] = []
    undo = interface.enter_allocator(0, allocator("outer", asked))
    inner = interface.enter_allocator(0, allocator("inner", asked))
    assert owner(interface) == "inner"
    inner()
    assert owner(interface) == "outer"
    assert owner(interface, 0) is None
    undo()
    assert owner(interface) is None
    assert asked == [("inner", 16), ("outer", 16)]


def test_another_device_and_another_thread_are_left_alone(
    interface: CudaInterface, simulation: Simulation
) -> None:
    undo = interface.enter_allocator(0, allocator("ours", []))
    simulation.setDevice(1)
    assert owner(interface) is None
    simulation.setDevice(0)
    assert owner(interface) == "ours"
    seen: list[object] = []
    thread = threading.Thread(target=lambda: seen.append(owner(interface)))
    thread.start()
    thread.join()
    assert seen == [None]
    undo()


def test_tasks_that_leave_in_another_order(interface: CudaInterface) -> None:
    cuda = interface._driver.cupy.cuda
    before = cuda.get_allocator()
    first = interface.enter_allocator(0, allocator("first", []))
    second = interface.enter_allocator(0, allocator("second", []))
    third = interface.enter_allocator(0, allocator("third", []))
    first()
    second()
    assert owner(interface) == "third"
    third()
    assert owner(interface) is None
    assert cuda.get_allocator() == before


def test_the_users_allocator_inside_is_kept(interface: CudaInterface) -> None:
    cuda = interface._driver.cupy.cuda
    undo = interface.enter_allocator(0, allocator("ours", []))

    def theirs(nbytes: int) -> Any:
        return cuda.MemoryPointer(cuda.UnownedMemory(1 << 20, nbytes, "theirs", 0), 0)

    with cuda.using_allocator(theirs):
        undo()
        assert interface._driver.cupy.empty((4,), "f4").data.ptr == 1 << 20
    assert owner(interface) is None


def test_real_cupy_allocates_through_it() -> None:
    """CuPy's own functions, which need no GPU as long as the memory is ours."""
    cupy = pytest.importorskip("cupy")
    driver: Any = SimpleNamespace(cupy=cupy, get_device=lambda: 0)
    asked: list[Any] = []
    redirection = CupyAllocatorHook(driver, 0, allocator("ours", asked))
    before = cupy.cuda.get_allocator()
    redirection.enter()
    array = cupy.empty((5, 6), "float64")
    nothing = cupy.empty((0,), "float64")
    redirection.leave()
    assert cupy.cuda.get_allocator() == before
    assert asked == [("ours", 240)]
    assert device_owner_of(array[1:].T) == "ours"
    assert nothing.size == 0
