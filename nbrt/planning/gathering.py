"""From the counts of a recorder to the data of a plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from nbrt.observe.call_sites import NO_STACK, CallSiteTable, site_frame
from nbrt.observe.plots.style import size_text
from nbrt.planning.memory_usage import MemoryUsage
from nbrt.planning.results import (
    Collective,
    CompiledLaunch,
    DevicePeak,
    Holder,
    KernelLaunches,
    PlanData,
    PlanTimeline,
    Transfer,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nbrt._internal.callsite import CallSite
    from nbrt._internal.device import Device
    from nbrt.backends.fake.program import CompiledKernel
    from nbrt.backends.interface import DeviceProperties
    from nbrt.planning.memory_usage import HolderKey
    from nbrt.planning.recorder import PlanRecorder, Totals
    from nbrt.planning.reported_launches import ReportedLaunch

__all__ = ["gather"]

Line: TypeAlias = tuple[str, str, int, str]
"""Label, file, line number and function."""

_NO_LINE: Line = ("", "", 0, "")


def gather(
    recorder: PlanRecorder,
    devices: tuple[Device, ...],
    properties: DeviceProperties,
    gpu: str | None,
    assumptions: tuple[str, ...],
) -> PlanData:
    """Return what a recorder has counted, as plain values."""
    recorder.count()
    usage = {device: recorder.usage.get(device) or MemoryUsage() for device in devices}
    held = {device: each.at_peak() for device, each in usage.items()}
    sites = {key[0] for each in held.values() for key, _, _ in each}
    sites.update(each.peak_entry[6] for each in usage.values() if each.peak_entry is not None)
    lines = _Lines(sites)
    page_locked = recorder.page_locked
    peaks = tuple(
        _peak(
            device,
            each,
            held[device],
            page_locked[device].peak if device in page_locked else 0,
            lines,
            recorder.started,
        )
        for device, each in usage.items()
    )
    totals = recorder.totals
    return PlanData(
        kind=recorder.kind,
        gpu=gpu,
        name=properties.name,
        total_memory=properties.total_memory,
        assumptions=(*assumptions, *_not_modelled(recorder, properties)),
        peaks=peaks,
        kernels=_kernels(totals),
        compiled=_compiled(recorder),
        transfers=tuple(
            Transfer(*link, *values)
            for link, values in sorted(totals.copies.items(), key=lambda each: -each[1][1])
        ),
        collectives=tuple(
            Collective(*key, *values)
            for key, values in sorted(totals.collectives.items(), key=lambda each: -each[1][1])
        ),
        commands=_commands(totals),
    )


def _kernels(totals: Totals) -> tuple[KernelLaunches, ...]:
    launches = sorted(totals.launches.items(), key=lambda each: -each[1][0])
    return tuple(KernelLaunches(*key, *values) for key, values in launches if values[0])


def _compiled(recorder: PlanRecorder) -> tuple[CompiledLaunch, ...]:
    found = {
        _compiled_launch(plan, kernel)
        for plan in list(recorder.plans)
        for kernel in plan.compiled_kernels
    }
    return tuple(sorted(found, key=lambda each: (each.signature, each.block, each.shared)))


def _compiled_launch(plan: ReportedLaunch, kernel: CompiledKernel) -> CompiledLaunch:
    launch = CompiledLaunch(kernel.signature, plan.block, plan.shared)
    used, occupancy = kernel.resources, kernel.occupancy
    if used is not None:
        spilled = used.spill_stores + used.spill_loads
        launch = replace(
            launch,
            registers=used.registers,
            static_shared=used.static_shared,
            spilled=spilled,
        )
    if occupancy is None:
        return launch
    return replace(launch, occupancy=occupancy.fraction, limited_by=occupancy.limited_by)


def _not_modelled(recorder: PlanRecorder, properties: DeviceProperties) -> Iterator[str]:
    """Yield lines about the memory of a GPU that no pool of nbrt holds."""
    if properties.compute_capability is None:
        return
    known = [(plan.local_memory, plan.name) for plan in list(recorder.plans)]
    most, name = max(((size, name) for size, name in known if size is not None), default=(None, ""))
    if most is not None:
        threads = properties.multi_processor_count * properties.max_threads_per_multi_processor
        yield (
            f"local memory of kernels: {size_text(most * threads)}, not in the peaks ({most} bytes "
            f"of {name} x {threads:,} resident threads)"
        )
    else:
        yield "local memory of kernels: not counted; known with compile=True and ptxas"
    yield "module code of kernels: not counted"
    yield "workspaces of libraries such as cuBLAS, cuFFT and NCCL: not counted"


def _commands(totals: Totals) -> dict[str, int]:
    launches = sum(numbers[0] for numbers in list(totals.launches.values()))
    counts = {"launch": launches, **totals.commands}
    return {kind: count for kind, count in counts.items() if count}


def _peak(
    device: Device,
    usage: MemoryUsage,
    held: list[tuple[HolderKey, int, int]],
    page_locked: int,
    lines: _Lines,
    start: int,
) -> DevicePeak:
    entry = usage.peak_entry
    samples = usage.samples
    names: tuple[str, ...] = ()
    if entry is not None:
        names = tuple(annotation.name for annotation in entry[7])
    line = _NO_LINE if entry is None else lines.of(entry[6])
    return DevicePeak(
        device,
        usage.peak,
        usage.peak_reserved,
        *line,
        annotations=names,
        entries=usage.peak_numbers,
        work=usage.peak_label,
        holders=_holders(held, lines),
        allocations=usage.allocations,
        allocated_at_end=usage.allocated,
        page_locked=page_locked,
        timeline=PlanTimeline(
            tuple((time - start) // 1000 for time in samples.times),
            tuple(samples.allocated),
            tuple(samples.reserved),
        ),
    )


def _holders(held: Iterable[tuple[HolderKey, int, int]], lines: _Lines) -> tuple[Holder, ...]:
    """Return holders by line: different stacks may end in the same line."""
    sums: dict[tuple[Line, tuple[str, ...], int], tuple[int, int]] = {}
    for (site, names, stream), nbytes, arrays in held:
        key = lines.of(site), names, stream
        known = sums.get(key, (0, 0))
        sums[key] = known[0] + nbytes, known[1] + arrays
    largest = sorted(sums.items(), key=lambda each: -each[1][0])
    return tuple(
        Holder(*line, nbytes, arrays, names, stream)
        for (line, names, stream), (nbytes, arrays) in largest
    )


class _Lines:
    """The lines of stacks; files of the same name get labels with folders."""

    def __init__(self, sites: Iterable[CallSite | None]) -> None:
        table = CallSiteTable()
        numbers = {site: table.number([] if site is None else site.frames()) for site in set(sites)}
        labels = table.labels()
        lines = []
        for label, stack in zip(labels, table.stacks, strict=True):
            frame = site_frame(stack)
            lines.append(
                (NO_STACK, "", 0, "")
                if frame is None
                else (label, frame["filename"], frame["line"], frame["name"])
            )
        self._lines: dict[CallSite | None, Line] = {
            site: lines[number] for site, number in numbers.items()
        }

    def of(self, site: CallSite | None) -> Line:
        return self._lines[site]
