"""The data of a memory plan: plain values, without arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from nbrt._internal.device import Device
from nbrt.errors import ArgumentError, ArgumentTypeError

__all__ = [
    "ByDevice",
    "Collective",
    "CompiledLaunch",
    "DevicePeak",
    "Holder",
    "KernelLaunches",
    "PlanData",
    "PlanTimeline",
    "Transfer",
]

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Holder:
    """Memory that one line of a program holds at the peak.

    Attributes
    ----------
    line : str
        File, line and function, ``"train.py:88 step"``.
    filename, lineno, function : str, int, str
        The same in parts; an empty file name and 0 if no stack was recorded.
    nbytes : int
        Bytes, rounded up by the pool.
    arrays : int
        Number of allocations.
    annotations : tuple of str
        The annotations that were active at the allocation, the outermost first.
    stream : int
        The stream of the allocation, as in a snapshot: 0 is the default stream.
    """

    line: str
    filename: str
    lineno: int
    function: str
    nbytes: int
    arrays: int
    annotations: tuple[str, ...]
    stream: int


@dataclass(frozen=True, slots=True)
class PlanTimeline:
    """Memory over time, in at most 2048 intervals.

    Attributes
    ----------
    times : tuple of int
        Microseconds since the start of the plan, of the first change in each interval.
    allocated, reserved : tuple of int
        The largest values in each interval.
    """

    times: tuple[int, ...]
    allocated: tuple[int, ...]
    reserved: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DevicePeak:
    """The memory of one device in a plan.

    Attributes
    ----------
    device : Device
        The device.
    allocated, reserved : int
        The most bytes that arrays held, and the most that pools held from the system, as in
        `memory_stats`. They count from the start of the plan and need not be of one moment.
    line, filename, lineno, function : str, str, int, str
        The line whose allocation made the peak of `allocated`; empty if it was at the start.
    annotations : tuple of str
        The annotations that were active then, the outermost first.
    entries : tuple of int
        How often the thread had entered each of them, such as the number of the step.
    work : str
        The work submitted to the device last before the peak: a kernel, or a kind of command.
    holders : tuple of Holder
        Who held the memory at the peak of `allocated`, the largest first. Their bytes sum to it.
    allocations : int
        Number of allocations.
    allocated_at_end : int
        Bytes that arrays held at the end of the plan.
    page_locked : int
        The most bytes of page-locked host memory for this device.
    timeline : PlanTimeline
        Both over time.
    """

    device: Device
    allocated: int
    reserved: int
    line: str
    filename: str
    lineno: int
    function: str
    annotations: tuple[str, ...]
    entries: tuple[int, ...]
    work: str
    holders: tuple[Holder, ...]
    allocations: int
    allocated_at_end: int
    page_locked: int
    timeline: PlanTimeline


@dataclass(frozen=True, slots=True)
class KernelLaunches:
    """The launches of one kernel on one device.

    Attributes
    ----------
    kernel : str
        Name of the kernel.
    device : Device
        The device.
    launches : int
        Number of launches.
    flops, nbytes : float or None
        Floating-point operations and bytes of all launches together, if the kernel gives them.
    """

    kernel: str
    device: Device
    launches: int
    flops: float | None
    nbytes: float | None


@dataclass(frozen=True, slots=True)
class CompiledLaunch:
    """The code of a kernel for the types of its arguments, in one configuration.

    Attributes
    ----------
    signature : str
        Name of the kernel, its parameters and their types.
    block : tuple of int
        Threads of a block.
    shared : int
        Bytes of dynamic shared memory of a block.
    registers, static_shared, spilled : int or None
        Registers of a thread, bytes of shared memory that the kernel declares, and bytes of spilled
        registers that a thread writes and reads; None without ptxas, and on a CPU.
    occupancy : float or None
        Resident warps of a multiprocessor divided by the most that it can hold.
    limited_by : tuple of str
        The resources that limit the occupancy.
    """

    signature: str
    block: tuple[int, int, int]
    shared: int
    registers: int | None = None
    static_shared: int | None = None
    spilled: int | None = None
    occupancy: float | None = None
    limited_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Transfer:
    """The copies between two places.

    Attributes
    ----------
    source, destination : Device or None
        The link; None is the host.
    copies, nbytes : int
        Number of copies, and their bytes.
    """

    source: Device | None
    destination: Device | None
    copies: int
    nbytes: int

    @property
    def direction(self) -> str:
        """One of host_to_device, device_to_host, device_to_device, peer_to_peer, host_to_host."""
        if self.source is None or self.destination is None:
            ends = ("host" if end is None else "device" for end in (self.source, self.destination))
            return "_to_".join(ends)
        return "device_to_device" if self.source == self.destination else "peer_to_peer"


@dataclass(frozen=True, slots=True)
class Collective:
    """The collective operations of one rank.

    Attributes
    ----------
    name : str
        The operation.
    device : Device
        The device of the rank.
    calls, nbytes : int
        Number of calls, and the bytes that the rank puts in.
    """

    name: str
    device: Device
    calls: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class PlanData:
    """Everything that a plan knows, as plain values."""

    kind: str
    gpu: str | None
    name: str
    total_memory: int
    assumptions: tuple[str, ...]
    peaks: tuple[DevicePeak, ...]
    kernels: tuple[KernelLaunches, ...] = ()
    compiled: tuple[CompiledLaunch, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    collectives: tuple[Collective, ...] = ()
    commands: Mapping[str, int] = field(default_factory=dict)
    reads: Mapping[str, int] = field(default_factory=dict)


class ByDevice(Mapping[Device, V]):
    """Values by device; a key is a `Device`, its name or its index.

    Examples
    --------
    >>> peaks = ByDevice({Device("cuda:0"): 512})
    >>> peaks["cuda:0"], peaks["cuda"], peaks[0]
    (512, 512, 512)
    """

    def __init__(self, values: Mapping[Device, V]) -> None:
        self._values = dict(values)

    def __getitem__(self, key: Device | str | int) -> V:
        if isinstance(key, int) and not isinstance(key, bool):
            found = [device for device in self._values if device.index == key]
        elif isinstance(key, (str, Device)):
            device = Device(key) if isinstance(key, str) else key
            found = [device] if device in self._values else []
        else:
            raise ArgumentTypeError(f"expected a device, its name or its index, got {key!r}")
        if len(found) != 1:
            known = ", ".join(map(str, self._values))
            raise ArgumentError(f"expected a device of the plan ({known}), got {key!r}")
        return self._values[found[0]]

    def __contains__(self, key: object) -> bool:
        try:
            self[key]  # type: ignore[index]  # any key may be asked for
        except (ArgumentError, ArgumentTypeError):
            return False
        return True

    def __iter__(self) -> Iterator[Device]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"ByDevice({self._values!r})"
