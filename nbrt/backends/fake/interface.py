"""`FakeInterface`: devices that account for everything and compute nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from nbrt._internal.device import Device
from nbrt.backends.fake.array import FakeArray
from nbrt.backends.fake.graphs import FakeGraphProgram, array_over, arrays_of
from nbrt.backends.fake.memory import POOL_KINDS, DeviceMemory, make_pool
from nbrt.backends.fake.memory_segments import layout, new_layout
from nbrt.backends.fake.program import FakeCpuProgram, FakeProgram
from nbrt.backends.fake.queues import FakeQueue
from nbrt.backends.fake.transport import FakeTransport
from nbrt.backends.interface import Capabilities, DeviceInterface, DeviceProperties
from nbrt.backends.synchronous import SynchronousQueue
from nbrt.errors import CaptureError, DeviceError, DeviceMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nbrt.backends.draw import Draw
    from nbrt.backends.driver_capture import CaptureErrorMode
    from nbrt.backends.fake.draws import FakeFiller
    from nbrt.backends.fake.numpy_metadata import OnLaunch
    from nbrt.backends.fake.program import Inspect
    from nbrt.backends.fake.reads import ReadPolicy
    from nbrt.backends.fake.versions import OnVersion
    from nbrt.backends.graphs import ArrayView, GraphBuffer, GraphNode, ReplayValues
    from nbrt.backends.pools import AllocationHandle, BackendPool
    from nbrt.backends.programs import Program
    from nbrt.backends.queue import Queue
    from nbrt.typing import Dim3, HostArray

__all__ = ["FakeInterface"]

_new = object.__new__

_CAPABILITIES = {
    "cpu": Capabilities(
        computes=False,
        stream_priorities=(0, -1),
        dlpack_device_types=(1, 3),  # kDLCPU, kDLCUDAHost
        more_devices="pass devices= to nbrt.fake for more",
    ),
    "cuda": Capabilities(
        computes=False,
        packs_graph_memory=False,
        host_addressable=False,
        pinned_memory=True,
        stream_priorities=(0, -5),
        dlpack_device_types=(2, 13),  # kDLCUDA, kDLCUDAManaged
        more_devices="pass devices= to nbrt.fake for more",
    ),
}
"""Kind of device -> what its fake has of the real backend's capabilities: work is done when it is
submitted, and there are no raw streams."""


class ArrayMemory:
    """The memory of a fake device, or the host memory beside it, as arrays see it.

    Attributes
    ----------
    interface : FakeInterface
        The backend of the device.
    device : Device
        The device, with its real name.
    is_host : bool
        It is host memory.
    on_launch : callable or None
        Called after each launch on the device.
    on_version : callable or None
        Called with each kernel that a real device would compile.
    """

    __slots__ = ("device", "interface", "is_host", "on_launch", "on_version")

    def __init__(self, interface: FakeInterface, index: int, *, is_host: bool) -> None:
        self.interface = interface
        self.device = Device(interface.name, index)
        self.is_host = is_host
        self.on_launch: OnLaunch | None = None
        self.on_version: OnVersion | None = None

    @property
    def is_active(self) -> bool:
        """Whether the fake devices still exist."""
        return self.interface.is_active

    @property
    def is_current(self) -> bool:
        """Whether no devices of an inner block are in the place of these."""
        return self.interface.library.is_current(self.interface)

    def result(self, shape: tuple[int, ...], dtype: Any, order: str = "C") -> FakeArray:
        """Return an array for the result of an expression.

        On the device it comes from the device's default pool; on the host it counts nowhere, as a
        NumPy array.
        """
        if self.is_host:
            return FakeArray(new_layout(shape, dtype, order), self, None)
        array = self.interface.library.empty(shape, dtype, self.device)
        if order == "C" or len(shape) < 2:
            return array
        reordered = np.ndarray(shape, dtype, array.layout, order="F")
        return FakeArray(reordered, self, array.handle)

    def read(self, array: FakeArray) -> Any:
        """Return the values that the host reads."""
        return self.interface.policy.read(array)

    def to_host(self, array: FakeArray) -> FakeArray:
        """Return an array of host memory after a copy."""
        return self.interface.library.to_host(array)

    def from_host(self, array: FakeArray, values: Any) -> None:
        """Copy a host array into an array of this memory."""
        self.interface.library.copy(array, values)


class ArrayLibrary(Protocol):
    """The runtime's functions that methods of arrays call; each submits a command."""

    def empty(self, shape: tuple[int, ...], dtype: Any, device: Device) -> FakeArray:
        """Return an array from the default pool of a device."""
        ...

    def to_host(self, array: FakeArray) -> FakeArray:
        """Copy an array to the host."""
        ...

    def is_current(self, interface: FakeInterface) -> bool:
        """Return whether a kind has these devices now."""
        ...

    def copy(self, destination: FakeArray, source: Any) -> None:
        """Copy into an array."""
        ...


class FakeInterface(DeviceInterface):
    """Devices with the properties of a kind of device, without a driver.

    Work is done when it is submitted: it changes no memory.

    Parameters
    ----------
    name : {"cpu", "cuda"}
        The kind that it stands for.
    properties : DeviceProperties
        The properties of every device.
    count : int
        Number of devices.
    policy : ReadPolicy
        The values that the host reads.
    library : ArrayLibrary
        The functions that methods of arrays call.
    inspect : callable
        `DeviceInterface.inspect` of the real kind of device.
    target : str, optional
        The GPU that launches compile their kernel for.
    compiles : bool
        Launches compile their kernel.
    enforces : bool
        Allocations fail beyond the memory of a device.
    lifts_devices : bool
        Arrays of the real devices of the kind become fake arrays, instead of an error.

    Attributes
    ----------
    is_active : bool
        The devices exist.
    """

    def __init__(
        self,
        name: str,
        properties: DeviceProperties,
        count: int,
        policy: ReadPolicy,
        library: ArrayLibrary,
        inspect: Inspect,
        *,
        target: str | None = None,
        compiles: bool = False,
        enforces: bool = False,
        lifts_devices: bool = False,
    ) -> None:
        super().__init__(name)
        self.capabilities = _CAPABILITIES[name]
        self.pool_kinds = POOL_KINDS[name]
        self.properties = properties
        self.policy = policy
        self.library = library
        self.lifts_devices = lifts_devices
        self.is_active = True
        self._inspect = inspect
        self._target = target
        self._compiles = compiles
        self._filler: FakeFiller | None = None
        self._form: tuple[Any, ...] = ()
        self._devices = [DeviceMemory(name, properties, enforce=enforces) for _ in range(count)]
        self.memories = [ArrayMemory(self, index, is_host=name == "cpu") for index in range(count)]
        self.host_memories = [ArrayMemory(self, index, is_host=True) for index in range(count)]

    def initialize(self) -> None:
        """Refuse to start after the end of the block."""
        reason = self.unavailable_reason()
        if reason is not None:
            raise DeviceError(f"expected fake devices that exist, got {reason}; enter nbrt.fake")

    def end(self) -> None:
        """End the devices: their streams and arrays refuse work from now on."""
        self.is_active = False
        self.lazy.retire()

    def device_count(self) -> int:
        """Return the number of fake devices."""
        return len(self._devices)

    def unavailable_reason(self) -> str | None:
        """Return why the devices are gone, after their block."""
        return None if self.is_active else f"the fake {self.name} devices of a block that has ended"

    def get_device_properties(self, index: int) -> DeviceProperties:
        """Describe a device."""
        return self.properties

    def can_access_peer(self, index: int, peer: int) -> bool:
        """Return True: the devices are taken to be linked."""
        return True

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The numbers that only a real device knows, as sentences."""
        if self.name == "cpu":
            return ()
        numbers = self._devices[0].driver.assumptions()
        return tuple(f"{each.name}: {each.nbytes >> 20} MiB, {each.reason}" for each in numbers)

    def create_queue(self, index: int, priority: int) -> Queue:
        """Create a queue; pools of cuda devices keep freed memory by stream."""
        return (FakeQueue if self.name == "cuda" else SynchronousQueue)(index, priority)

    # -- memory ------------------------------------------------------------------------------------

    def create_pool(self, index: int, kind: str, options: Mapping[str, Any]) -> BackendPool:
        """Make a pool that runs the allocator of the real kind over addresses without memory."""
        pool = make_pool(self._devices[index], kind, options)
        if pool is None:
            raise self.no_pool(index, kind, options)
        return pool

    def mem_get_info(self, index: int) -> tuple[int, int]:
        """Return (free, total) bytes; free is 0 where pools hold more than there is."""
        return self._devices[index].info()

    def as_array(
        self, block: Any, shape: tuple[int, ...], dtype: Any, handle: AllocationHandle
    ) -> FakeArray:
        """Return an array over a block of a pool."""
        latest_shape, latest_dtype, known = block.latest
        is_known = known is not None and latest_dtype is dtype and latest_shape == shape
        # Half of the time of the constructor.
        array: FakeArray = _new(FakeArray)
        if is_known and block.made is not None and block.made[0] is known:
            # Launches need not ask for the form.
            _, array.memory, array.known_form = block.made
            array.layout = known.view()  # the caller may change the shape and the flags
            array.handle = handle
            array.base = None
            array.is_scalar = False
            return array
        owner: Any = handle.owner
        is_pinned = owner.pool.kind == "pinned"
        memory = (self.host_memories if is_pinned else self.memories)[owner.index]
        array.layout = layout(block, shape, dtype)
        array.memory = memory
        array.handle = handle
        array.base = array.known_form = None
        array.is_scalar = False
        if is_known:
            # Equal forms as one object: launches compare those in turn.
            form = array.form()
            if form == self._form:
                form = self._form
            self._form = array.known_form = form
            block.made = known, memory, form
        return array

    def empty_host(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return an array of host memory that counts nowhere."""
        return FakeArray(new_layout(shape, dtype, "C"), self.host_memories[0], None)

    def owner_of(self, array: object) -> object | None:
        """Return the allocation under an array or a view of it."""
        handle = array.handle if isinstance(array, FakeArray) else None
        return getattr(handle, "owner", None)

    def index_of(self, array: object) -> int | None:
        """Return the device of a fake array; that of its host memory for a host array.

        Real host arrays belong to device 0 of a fake CPU, as to that of a real one.
        """
        if isinstance(array, np.ndarray):
            return 0 if self.name == "cpu" else None
        memory = array.memory if isinstance(array, FakeArray) else None
        is_of_this = isinstance(memory, ArrayMemory) and memory.interface is self
        return memory.device.index if is_of_this else None  # type: ignore[union-attr]  # as tested

    def is_host_array(self, array: object) -> bool:
        """Return whether an array is in host memory."""
        return isinstance(array, np.ndarray) or (
            isinstance(array, FakeArray) and array.memory.is_host
        )

    def adopt(self, array: Any) -> FakeArray:
        """Return a fake array of the shape and dtype of a real device's array."""
        shape, dtype = tuple(array.shape), np.dtype(array.dtype)
        if not self.lifts_devices:
            raise DeviceMismatchError(
                f"expected host data or an array of the fake {self.name} devices, got an array of "
                f"shape {shape} and dtype {dtype} of a real {self.name} device; copy it to the "
                f"host before the block, or set only_lift_cpu_arrays=False in nbrt.fake"
            )
        return self.memories[0].result(shape, dtype)

    def copy(self, queue: Queue, destination: Any, source: Any) -> None:
        """Account for a copy; a copy into a real host array reads by the policy."""
        if isinstance(destination, FakeArray):
            if np.broadcast_shapes(destination.shape, np.shape(source)) != destination.shape:
                raise ValueError(
                    f"could not broadcast input array from shape {np.shape(source)} into shape "
                    f"{destination.shape}"
                )
            if not isinstance(queue, SynchronousQueue):
                queue.put(_copy_values, destination, source)
            return
        queue.put(_copy_values, destination, source)

    def fill(self, queue: Queue, array: Any, value: Any) -> None:
        """Account for a fill."""
        if not isinstance(queue, SynchronousQueue):
            queue.put(_copy_values, array, value)
        elif isinstance(array, np.ndarray):
            queue.put(np.copyto, array, value)

    # -- graphs ------------------------------------------------------------------------------------

    def begin_capture(self, queue: Queue, mode: CaptureErrorMode) -> None:
        """Refuse the streams that CUDA does not capture; commands go to a `RecordingQueue`."""
        if self.name == "cuda" and queue.handle == 0:
            raise CaptureError(
                f"expected a stream that CUDA captures, got the default stream of "
                f"cuda:{queue.index}; capture with nbrt.graph(nbrt.Stream())"
            )

    def graph_program(
        self, nodes: Sequence[GraphNode], buffers: Sequence[GraphBuffer], *, deterministic: bool
    ) -> FakeGraphProgram:
        """Return a program whose replays compute nothing."""
        return FakeGraphProgram(self, nodes, buffers)

    def replayed_arrays(
        self, buffers: Sequence[GraphBuffer], values: ReplayValues
    ) -> Callable[[ArrayView], Any]:
        """Return a function from the views of a replay to fake arrays."""
        return arrays_of(self, buffers, values)

    # -- ranks -------------------------------------------------------------------------------------

    def connect_ranks(
        self, index: int, rank: int, size: int, share: Callable[[Any], Any]
    ) -> FakeTransport:
        """Return a transport that moves nothing; ranks need not meet for it."""
        return FakeTransport()

    def array_over(self, layout: HostArray, owner: object, index: int | None) -> Any:
        """Return the array with a layout."""
        return array_over(self, layout, owner, index)

    # -- kernels and draws -------------------------------------------------------------------------

    def report_launches(self, function: OnLaunch | None, /) -> None:
        """Call a function after each launch from now on; None: no longer."""
        for memory in self.memories:
            memory.on_launch = function

    def report_versions(self, function: OnVersion | None, /) -> None:
        """Call a function with each kernel that real devices would compile; None: no longer.

        Launches of a configuration report the types of their arguments once, draws each time.
        Launches that compile, and those in checked mode, report nothing.
        """
        for memory in self.memories:
            memory.on_version = function

    def program(self, function: Callable[..., object]) -> Program:
        """Return a kernel whose launches are checked only."""
        make = FakeCpuProgram if self.name == "cpu" else FakeProgram
        return make(
            function,
            self.name,
            self.properties,
            self.memories,
            self._inspect,
            target=self._target,
            compiles=self._compiles,
        )

    def inspect(
        self,
        function: Callable[..., object],
        args: tuple[Any, ...],
        grid: Dim3,
        block: Dim3,
        shared: int,
        target: str | None,
    ) -> Any:
        """Return the code of a kernel, by the compiler of the real kind of device."""
        return self._inspect(function, args, grid, block, shared, target or self._target)

    def draw(self, queue: Queue, out: Any, draw: Draw) -> None:
        """Check a draw; the generator has reserved its words."""
        if self._filler is None:
            from nbrt.backends.fake.draws import FakeFiller

            self._filler = FakeFiller(self.name)
        self._filler.draw(queue, out, draw, self.memories[queue.index].on_version)


def _copy_values(destination: Any, source: Any) -> None:
    """Copy into a host array; there is nothing to copy into a fake one."""
    if isinstance(destination, np.ndarray):
        values = source.memory.read(source) if isinstance(source, FakeArray) else source
        np.copyto(destination, values)
