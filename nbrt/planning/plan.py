"""`MemoryPlan`: which memory, launches and copies a program needs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from nbrt.errors import ArgumentError
from nbrt.observe.history.snapshot import Snapshot
from nbrt.planning.capacity import Fit, FitTable, fit_all, fit_of
from nbrt.planning.gathering import gather
from nbrt.planning.html import plan_html
from nbrt.planning.json_form import data_from_json, data_to_json
from nbrt.planning.recorder import PlanRecorder
from nbrt.planning.results import ByDevice, PlanData
from nbrt.planning.text import plan_text
from nbrt.runtime.memory.registry import all_allocators

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nbrt._internal.device import Device
    from nbrt.backends.interface import DeviceProperties
    from nbrt.planning.results import (
        Collective,
        CompiledLaunch,
        DevicePeak,
        Holder,
        KernelLaunches,
        PlanTimeline,
        Transfer,
    )

__all__ = ["MemoryPlan"]


class MemoryPlan:
    """The memory, launches and copies of a program, from a run on fake devices.

    ``with nbrt.fake(...) as plan`` and `nbrt.plan` make it. In the block it shows what was recorded
    so far. It prints as text, and as HTML in a notebook. It holds no array and can be pickled.

    Attributes
    ----------
    device_type : str
        The kind of the devices.
    devices : tuple of Device
        The devices.
    gpu : str or None
        Name of the GPU.
    properties : DeviceProperties or None
        The properties of each device; None for a plan that was read from JSON.

    Examples
    --------
    >>> import nbrt
    >>> with nbrt.fake("cuda", gpu="L4") as plan:
    ...     x = nbrt.empty(1 << 20, "float32")
    >>> plan.peak, plan.peaks["cuda:0"].allocated, plan.fits("L4")
    (4194304, 4194304, True)
    """

    _repeat: Callable[..., MemoryPlan] | None = None
    """Runs the planned function again with other arguments."""

    _VERSION: ClassVar[int] = 1

    def __init__(
        self,
        device_type: str,
        devices: tuple[Device, ...],
        properties: DeviceProperties,
        gpu: str | None = None,
        assumptions: tuple[str, ...] = (),
    ) -> None:
        self.device_type = device_type
        self.devices = devices
        self.properties: DeviceProperties | None = properties
        self.gpu = gpu
        self._assumptions = assumptions
        self._recorder: PlanRecorder | None = PlanRecorder(device_type)
        self._data: PlanData | None = None
        self._parts: Snapshot | None = None
        self._snapshot: dict[str, Any] | None = None

    def _start(self) -> None:
        """Start to record."""
        assert self._recorder is not None
        self._recorder.start()

    def _stop(self, reads: Mapping[str, int] | None = None) -> None:
        """Stop to record, and keep the result; `reads` counts the reads of values by line."""
        assert self._recorder is not None
        self._recorder.stop()
        self._data = replace(self._gather(), reads=dict(reads or {}))
        self._parts = self._take_snapshot(self._recorder, is_complete=True)

    def _gather(self) -> PlanData:
        assert self._recorder is not None
        assert self.properties is not None
        return gather(
            self._recorder, self.devices, self.properties, self.gpu, tuple(self._assumptions)
        )

    def _take_snapshot(self, recorder: PlanRecorder, *, is_complete: bool) -> Snapshot:
        kind = self.device_type
        allocators = [each for each in all_allocators() if each.device.kind == kind]
        return Snapshot(kind, allocators, recorder, is_complete=is_complete)

    @property
    def data(self) -> PlanData:
        """Everything that was recorded, as plain values."""
        return self._gather() if self._data is None else self._data

    # -- memory ------------------------------------------------------------------------------------

    @property
    def peak(self) -> int:
        """The most bytes that arrays held on one device at once, on the busiest device."""
        return max((peak.allocated for peak in self.data.peaks), default=0)

    @property
    def reserved(self) -> int:
        """The most bytes that the pools of one device held from the system."""
        return max((peak.reserved for peak in self.data.peaks), default=0)

    @property
    def peaks(self) -> ByDevice[DevicePeak]:
        """The peaks of each device, by `Device`, name or index."""
        return ByDevice({peak.device: peak for peak in self.data.peaks})

    @property
    def busiest(self) -> DevicePeak:
        """The peaks of the device with the most allocated bytes."""
        return max(self.data.peaks, key=lambda peak: (peak.allocated, peak.reserved))

    @property
    def holders(self) -> tuple[Holder, ...]:
        """The lines that hold memory at the peak of the busiest device, the largest first."""
        return self.busiest.holders

    @property
    def timeline(self) -> ByDevice[PlanTimeline]:
        """Allocated and reserved bytes over time, by device."""
        return ByDevice({peak.device: peak.timeline for peak in self.data.peaks})

    def snapshot(self) -> dict[str, Any]:
        """Return the segments at the end and the latest 100 000 events, for torch's memory viewer.

        The format is that of `nbrt.memory.snapshot`, whose functions take it as well.
        """
        if self._snapshot is None:
            if self._recorder is None:
                raise ArgumentError("expected a plan with its record, got one read from JSON")
            if self._parts is None:
                return self._take_snapshot(self._recorder, is_complete=False).as_dict()
            self._snapshot = self._parts.as_dict()
        return self._snapshot

    # -- devices that it fits ----------------------------------------------------------------------

    def fit(self, device: str | int | DeviceProperties | None = None) -> Fit:
        """Return whether the program fits a device, and how many bytes are spare or short.

        Parameters
        ----------
        device : str, int, DeviceProperties or None
            A GPU by name, a size such as ``"24GB"`` or bytes, or the properties of a device; the
            plan's own device by default.

        Raises
        ------
        ArgumentError
            If the text is neither a known GPU nor a size.
        """
        data = self.data
        needed = self.reserved
        if device is not None:
            return fit_of(needed, device, data.kind)
        if self.properties is not None:
            return replace(fit_of(needed, self.properties, data.kind), name=data.gpu or data.name)
        return fit_of(needed, data.gpu or data.total_memory, data.kind)

    def fits(self, device: str | int | DeviceProperties | None = None) -> bool:
        """Return whether the program fits a device: `fit`, as True or False.

        The bytes that the pools reserve on the device that reserves most are compared with the
        memory of `device`. Of that of a GPU, the assumed CUDA context is subtracted first.

        Examples
        --------
        >>> import nbrt
        >>> with nbrt.fake("cuda", gpu="H100") as plan:
        ...     x = nbrt.empty(30 << 30, "uint8")
        >>> plan.fits(), plan.fits("L4"), plan.fits("40GB")
        (True, False, True)
        """
        return self.fit(device).fits

    def table(self) -> FitTable:
        """Return for every known GPU whether the program fits, the largest memory first."""
        return fit_all(self.reserved)

    def largest(self, name: str, lo: int, hi: int, *, gpu: str | None = None) -> int:
        """Return the largest value of an int parameter with which the function fits.

        Only a plan that `nbrt.plan` made has a function. It runs again about log2(hi - lo) times.
        The search assumes that a larger value needs no less memory.

        Parameters
        ----------
        name : str
            A parameter of the function.
        lo, hi : int
            The smallest and the largest value to try.
        gpu : str, optional
            Another GPU, or a size, as for `fits`.

        Raises
        ------
        ArgumentError
            If not even `lo` fits, the function has no such parameter, or the plan has no function.
        """
        from nbrt.planning.search import largest

        if self._repeat is None:
            found = "one read from JSON or a pickle, which keep no function"
            if self._recorder is not None:
                found = "that of a 'with' block, which cannot run again"
            raise ArgumentError(
                f"expected the plan of a function, got {found}; call nbrt.plan(function, ...) and "
                f"then largest()"
            )
        return largest(self._repeat, name, lo, hi, gpu)

    # -- work --------------------------------------------------------------------------------------

    @property
    def launches(self) -> dict[str, int]:
        """The number of launches of each kernel, on all devices together."""
        counts: dict[str, int] = {}
        for each in self.data.kernels:
            counts[each.kernel] = counts.get(each.kernel, 0) + each.launches
        return counts

    @property
    def compiled(self) -> tuple[CompiledLaunch, ...]:
        """The registers, shared memory and occupancy of kernels, with ``compile=True``."""
        return self.data.compiled

    @property
    def kernels(self) -> tuple[KernelLaunches, ...]:
        """The launches of each kernel on each device, with operations and bytes if known."""
        return self.data.kernels

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """The copies of each link between host and devices."""
        return self.data.transfers

    @property
    def bytes_moved(self) -> dict[str, int]:
        """The bytes of copies by direction, such as ``"host_to_device"``."""
        moved: dict[str, int] = {}
        for each in self.data.transfers:
            moved[each.direction] = moved.get(each.direction, 0) + each.nbytes
        return moved

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """The collective operations of each rank."""
        return self.data.collectives

    @property
    def commands(self) -> dict[str, int]:
        """The number of commands by kind: launch, copy, fill, draw, call, collective."""
        return dict(self.data.commands)

    @property
    def reads(self) -> dict[str, int]:
        """The number of reads of values that do not exist, by file and line."""
        return dict(self.data.reads)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions of the numbers, and parts of the memory that they do not contain."""
        return self.data.assumptions

    # -- forms -------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """Return the plan as JSON; `from_json` reads it.

        The keys are the attributes of `PlanData` and of the classes in it: ``peaks`` (a list with
        the attributes of `DevicePeak`), ``kernels``, ``transfers``, ``collectives``, ``commands``
        and ``reads``. ``"version"`` is 1, and ``"peak"`` is `peak`. Devices are names, the host is
        null, sizes are bytes.
        """
        return data_to_json(self.data, self._VERSION, self.peak)

    @classmethod
    def from_json(cls, text: str) -> MemoryPlan:
        """Return the plan that `to_json` wrote; it has no snapshot and no function.

        Raises
        ------
        ArgumentError
            If the text is no plan of this version.
        """
        data = data_from_json(text, cls._VERSION)
        plan = cls.__new__(cls)
        plan.__setstate__({"data": data, "properties": None, "snapshot": None})
        return plan

    def __getstate__(self) -> dict[str, Any]:
        snapshot = None if self._recorder is None and self._snapshot is None else self.snapshot()
        return {"data": self.data, "properties": self.properties, "snapshot": snapshot}

    def __setstate__(self, state: dict[str, Any]) -> None:
        data: PlanData = state["data"]
        self.device_type, self.gpu, self._data = data.kind, data.gpu, data
        self.devices = tuple(peak.device for peak in data.peaks)
        self.properties = state["properties"]
        self._assumptions = data.assumptions
        self._recorder = self._parts = None
        self._snapshot = state["snapshot"]

    def __str__(self) -> str:
        return plan_text(self)

    def __repr__(self) -> str:
        from nbrt.observe.plots.style import size_text

        return (
            f"<MemoryPlan of {len(self.devices)} x {self.data.name}, peak {size_text(self.peak)}>"
        )

    def _repr_html_(self) -> str:
        return plan_html(self)
