from __future__ import annotations

import contextlib
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import nbrt
from nbrt.errors import BackendUnavailableError, DeviceMismatchError
from nbrt.runtime.memory.adapters import rmm as rmm_adapter
from nbrt.runtime.memory.adapters.rmm import RmmAllocator
from nbrt.runtime.memory.adapters.torch import TorchAllocator
from nbrt.runtime.memory.allocators import Allocator

if TYPE_CHECKING:
    from collections.abc import Iterator

DEVICE = nbrt.Device("cuda", 1)
HOST = nbrt.Device("cpu", 0)
STREAM: Any = SimpleNamespace(handle=77, __cuda_stream__=lambda: (0, 77))
HOST_STREAM: Any = SimpleNamespace(handle=0)


class Resource:
    """`rmm.mr.DeviceMemoryResource`: positional arguments, and a stream of RMM's own type."""

    def __init__(self, name: str, log: list[Any]) -> None:
        self.name, self.log = name, log

    def allocate(self, nbytes: int, stream: Any) -> int:
        assert type(stream) is RmmStream
        if nbytes > 1000:
            raise MemoryError("std::bad_alloc")
        self.log.append((self.name, "allocate", nbytes, stream.handle))
        return 4096

    def deallocate(self, address: int, nbytes: int, stream: Any) -> None:
        assert type(stream) is RmmStream
        self.log.append((self.name, "deallocate", address, nbytes, stream.handle))


class RmmStream:
    """`rmm.pylibrmm.stream.Stream` over an object with ``__cuda_stream__``."""

    def __init__(self, stream: Any) -> None:
        self.handle = stream.__cuda_stream__()[1]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the calls of a simulated RMM, with the current device of each."""
    log: list[Any] = []
    for name in ("rmm", "rmm.mr", "rmm.pylibrmm", "rmm.pylibrmm.stream"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    current = iter(("first", "second"))
    resources: Any = sys.modules["rmm.mr"]
    resources.get_per_device_resource = lambda index: Resource(f"{next(current)} of {index}", log)
    streams: Any = sys.modules["rmm.pylibrmm.stream"]
    streams.Stream = RmmStream

    @contextlib.contextmanager
    def guard(device: nbrt.Device) -> Iterator[None]:
        log.append(device)
        yield
        log.append("left")

    monkeypatch.setattr(rmm_adapter, "DeviceGuard", guard)
    return log


def test_rmm_memory_goes_back_where_it_came_from(log: list[Any]) -> None:
    allocator = RmmAllocator()
    assert isinstance(allocator, Allocator)
    address = allocator.allocate(100, DEVICE, STREAM)
    allocator.deallocate(address, 100, DEVICE, STREAM)
    assert log == [
        DEVICE, ("first of 1", "allocate", 100, 77), "left",
        DEVICE, ("first of 1", "deallocate", 4096, 100, 77), "left",
    ]  # fmt: skip


def test_rmm_resource_of_ones_own(log: list[Any]) -> None:
    allocator = RmmAllocator(Resource("mine", log))
    allocator.allocate(10, DEVICE, STREAM)
    assert ("mine", "allocate", 10, 77) in log
    with pytest.raises(MemoryError, match="bad_alloc"):
        allocator.allocate(10_000, DEVICE, STREAM)
    with pytest.raises(DeviceMismatchError, match="cpu:0"):
        allocator.allocate(10, HOST, HOST_STREAM)


def test_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rmm", None)
    monkeypatch.setitem(sys.modules, "rmm.mr", None)
    with pytest.raises(BackendUnavailableError, match="pip install rmm-cu12"):
        RmmAllocator()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(BackendUnavailableError, match=r"expected torch.*pytorch\.org"):
        TorchAllocator()


def made_up_torch(log: list[Any], *, has_cuda: bool) -> ModuleType:
    """Torch's functions for other frameworks, with the signatures of torch 2.13."""

    class OutOfMemoryError(RuntimeError):
        pass

    def caching_allocator_alloc(size: int, device: Any = None, stream: Any = None) -> int:
        assert isinstance(device, int)
        assert isinstance(stream, int)
        if size > 1000:
            raise OutOfMemoryError("CUDA out of memory")
        log.append(("alloc", size, device, stream))
        return 512

    torch: Any = ModuleType("torch")
    torch.cuda = SimpleNamespace(
        OutOfMemoryError=OutOfMemoryError,
        is_available=lambda: has_cuda,
        caching_allocator_alloc=caching_allocator_alloc,
        caching_allocator_delete=lambda address: log.append(("delete", address)),
        empty_cache=lambda: log.append("empty_cache"),
    )
    made: ModuleType = torch
    return made


def test_memory_from_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[Any] = []
    monkeypatch.setitem(sys.modules, "torch", made_up_torch(log, has_cuda=True))
    allocator = TorchAllocator()
    assert isinstance(allocator, Allocator)
    assert allocator.allocate(100, DEVICE, STREAM) == 512
    allocator.deallocate(512, 100, DEVICE, STREAM)
    allocator.empty_cache()
    assert log == [("alloc", 100, 1, 77), ("delete", 512), "empty_cache"]
    with pytest.raises(MemoryError, match="CUDA out of memory"):
        allocator.allocate(10_000, DEVICE, STREAM)
    with pytest.raises(DeviceMismatchError, match="cpu:0"):
        allocator.allocate(10, HOST, HOST_STREAM)


def test_torch_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", made_up_torch([], has_cuda=False))
    with pytest.raises(BackendUnavailableError, match="finds no GPU"):
        TorchAllocator()


def test_torch_has_the_functions() -> None:
    """Against the real library, where it is installed; its CPU build has the same functions."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert issubclass(torch.cuda.OutOfMemoryError, RuntimeError)
    assert callable(torch.cuda.caching_allocator_alloc)
    assert callable(torch.cuda.caching_allocator_delete)
