"""An out-of-tree backend in about 200 lines, which only subclasses `DeviceInterface`.

Its memory is the host's, its arrays are a subclass of ndarray, its kernels are interpreted
one thread after the other. `SampleWorker` compiles them to bytecode in other processes. Guards,
streams, events, memory statistics and launches come from nbrt.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import marshal
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends import in_flight
from nbrt.backends.by_value import dumps, loaded
from nbrt.backends.captures import Captures
from nbrt.backends.code_store.entry import Entry
from nbrt.backends.code_store.store import CodeStore
from nbrt.backends.compile_jobs import CompileJob, NotStoredError, Worker
from nbrt.backends.fingerprint import fingerprint
from nbrt.backends.interface import Capabilities, DeviceInterface, DeviceProperties
from nbrt.backends.pools import AllocationHandle
from nbrt.backends.synchronous import SynchronousQueue
from nbrt.errors import CompileError, DeviceMismatchError, OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Callable

MEMORY = 1 << 24
THREADS_PER_BLOCK = 256


class SampleArray(np.ndarray):
    """The array type of this device's library."""

    handle: AllocationHandle | None = None

    def __array_finalize__(self, parent: object) -> None:
        self.handle = getattr(parent, "handle", None)


@dataclass
class SampleBlock:
    data: np.ndarray
    address: int
    nbytes: int

    def handle(self, owner: object) -> AllocationHandle:
        return AllocationHandle(owner)


class SampleDialect:
    """The name ``cuda`` in a kernel: positions as plain attributes."""

    def __init__(self) -> None:
        self.threadIdx = self.blockIdx = self.blockDim = self.gridDim = types.SimpleNamespace()

    def grid(self, ndim: int) -> Any:
        place = [
            getattr(self.blockIdx, axis) * getattr(self.blockDim, axis)
            + getattr(self.threadIdx, axis)
            for axis in "xyz"[:ndim]
        ]
        return place[0] if ndim == 1 else tuple(place)


STORE = CodeStore("sample")


def key_of(captures: Captures) -> str:
    """Return the key of the code of a kernel, which does not depend on the arguments."""
    return hashlib.sha256(b"sample" + fingerprint(captures.frozen, captures.freeze)).hexdigest()


class SampleWorker(Worker):
    """The compiler in another process: it stores bytecode."""

    preload = ("helpers.sample_backend",)

    def compile(self, payload: bytes) -> str:
        with loaded(payload) as (function,):
            if function.__code__.co_flags & inspect.CO_GENERATOR:
                code = function.__code__
                raise CompileError(f"{code.co_filename}:{code.co_firstlineno}: a generator")
            key = key_of(Captures(function))
            sections = {"code": marshal.dumps(function.__code__)}
            entry = Entry("sample", function.__name__, "any", "sample", sections=sections)
        if not STORE.put(key, entry):
            raise NotStoredError(function.__name__)
        return key


class SampleProgram:
    def __init__(self, function: Callable[..., object]) -> None:
        self.source = source = getattr(function, "py_func", function)
        self.cuda = SampleDialect()
        self.function = types.FunctionType(
            source.__code__,
            {**source.__globals__, "cuda": self.cuda},
            source.__name__,
            source.__defaults__,
            source.__closure__,
        )

    def load(self) -> str:
        """Take the code from the store; return its key."""
        key = key_of(Captures(self.source))
        with in_flight.joined(key):
            entry = STORE.get(key)
        if entry is not None:
            self.function.__code__ = marshal.loads(entry.sections["code"])
        return key

    def plan(self, index: int, grid: Any, block: Any, shared: int) -> SamplePlan:
        return SamplePlan(self, index, grid, block)


class SamplePlan:
    def __init__(self, program: SampleProgram, index: int, grid: Any, block: Any) -> None:
        self.program, self.index, self.grid, self.block = program, index, grid, block

    def launch(self, queue: SynchronousQueue, *args: Any) -> None:
        for argument in args:
            holder = getattr(getattr(argument, "handle", None), "owner", self).index
            if holder != self.index:
                raise DeviceMismatchError(f"expected arrays of sample:{self.index}, got {holder}")
        queue.put(self.run, *args)

    def prepare(self, args: tuple[Any, ...]) -> None:
        self.program.load()

    def run(self, *args: Any) -> None:
        cuda = self.program.cuda
        cuda.blockDim, cuda.gridDim = _xyz(self.block), _xyz(self.grid)
        for cuda.blockIdx in map(_xyz, _places(self.grid)):
            for cuda.threadIdx in map(_xyz, _places(self.block)):
                with np.errstate(over="ignore"):  # integers wrap around, as on a GPU
                    self.program.function(*args)


class SampleInterface(DeviceInterface):
    capabilities = Capabilities(cuda_stream_protocol=True, stream_priorities=(0, -2))

    def __init__(self, name: str = "sample") -> None:
        super().__init__(name)
        self.used = [0, 0]
        self.initialized = 0

    def initialize(self) -> None:
        self.initialized += 1

    def device_count(self) -> int:
        return 2

    def get_device_properties(self, index: int) -> DeviceProperties:
        return DeviceProperties("sample device", MEMORY, 1, max_threads_per_block=THREADS_PER_BLOCK)

    def borrow_queue(self, index: int, handle: int, owner: object) -> SynchronousQueue:
        queue = SynchronousQueue(index)
        queue.handle = handle
        return queue

    def allocate(self, queue: SynchronousQueue, nbytes: int) -> SampleBlock:
        size = -(-max(nbytes, 1) // 64) * 64
        if self.used[queue.index] + size > MEMORY:
            raise OutOfMemoryError(f"expected at most {MEMORY} bytes in use, got {size} more")
        self.used[queue.index] += size
        raw = np.empty(size + 64, np.uint8)
        start = -raw.ctypes.data % 64
        return SampleBlock(raw[start : start + size], raw.ctypes.data + start, size)

    def deallocate(self, queue: SynchronousQueue, block: SampleBlock) -> None:
        self.used[queue.index] -= block.nbytes

    def mem_get_info(self, index: int) -> tuple[int, int]:
        return MEMORY - self.used[index], MEMORY

    def as_array(
        self, block: SampleBlock, shape: Any, dtype: Any, handle: AllocationHandle
    ) -> SampleArray:
        array = np.ndarray(shape, dtype, block.data).view(SampleArray)
        array.handle = handle
        return array

    def owner_of(self, array: object) -> object | None:
        handle = array.handle if isinstance(array, SampleArray) else None
        return None if handle is None else handle.owner

    def index_of(self, array: object) -> int | None:
        return getattr(self.owner_of(array), "index", None)

    def copy(self, queue: SynchronousQueue, destination: Any, source: Any) -> None:
        queue.put(np.copyto, destination, source)

    def fill(self, queue: SynchronousQueue, array: Any, value: Any) -> None:
        queue.put(np.copyto, array, value)

    def program(self, function: Callable[..., object]) -> SampleProgram:
        return SampleProgram(function)

    def worker(self) -> SampleWorker:
        properties = tuple(map(self.get_device_properties, range(2)))
        return SampleWorker(self.name, properties, self.current_device())

    def compile_jobs(self, program: SampleProgram, *launch: Any, **_: Any) -> list[CompileJob]:
        captures = Captures(program.source)
        key = key_of(captures)
        if STORE.has(key):
            return []
        return [CompileJob(self.name, key, program.source.__name__, dumps(captures))]


def _xyz(place: Any) -> types.SimpleNamespace:
    return types.SimpleNamespace(**dict(zip("xyz", place, strict=True)))


def _places(sizes: Any) -> list[tuple[int, int, int]]:
    z_first = itertools.product(*(range(size) for size in reversed(sizes)))
    return [(x, y, z) for z, y, x in z_first]
