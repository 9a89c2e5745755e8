from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from nbrt.backends.cuda.memory.blocks import CudaBlock
from nbrt.backends.pools import AllocationHandle

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cuda.backend import CudaInterface


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


def test_another_device_and_another_thread_are_left_alone(interface: CudaInterface) -> None:
    undo = interface.enter_allocator(0, allocator("ours", []))
    interface.exchange_device(1)
    assert owner(interface) is None
    interface.exchange_device(0)
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
