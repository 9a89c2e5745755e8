"""A plan as text."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from nbrt.observe.plots.style import shorten, size_text
from nbrt.planning.capacity import spare_text
from nbrt.planning.tables import text_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.planning.plan import MemoryPlan
    from nbrt.planning.results import (
        Collective,
        CompiledLaunch,
        DevicePeak,
        Holder,
        PlanTimeline,
        Transfer,
    )

__all__ = ["Section", "holder_rows", "link_text", "peak_text", "plan_text", "sections", "title"]

_MAX_HOLDERS = 10
_MAX_KERNELS = 10
_COMMON = ("B200", "H200", "H100 SXM", "A100", "L40S", "L4", "T4")
"""GPUs of data centers with different sizes of memory."""
_SPARK = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 60
_MAX_NAME = 60

Section = tuple[str, list[list[str]]]
"""Title and rows of a table, whose first row is the header."""


def plan_text(plan: MemoryPlan) -> str:
    """Return a plan as the text that `print` shows."""
    parts = [title(plan), *peak_text(plan)]
    line = sparkline(plan.busiest.timeline)
    if line:
        parts.append(f"over time on {plan.busiest.device}: {line}")
    for name, rows in sections(plan):
        parts.append(f"{name}:\n{text_table(rows, '  ')}")
    others = _others(plan)
    if others:
        parts.append(f"other GPUs: {others}")
    if plan.assumptions:
        parts.append("not modelled or assumed:")
        parts += [f"  {each}" for each in plan.assumptions]
    return "\n".join(parts)


def title(plan: MemoryPlan) -> str:
    """Return the first line: the devices, and whether the program fits."""
    data, fit = plan.data, plan.fit()
    count = len(data.peaks)
    many = f"{count} x " if count > 1 else ""
    memory = f"{size_text(data.total_memory)} usable"
    if fit.overhead:
        memory += f", context {size_text(fit.overhead)} assumed"
    verdict = "yes" if fit.fits else "no"
    return (
        f"plan for {many}{data.gpu or data.name} ({memory}); "
        f"fits: {verdict}, {spare_text(fit.spare)}"
    )


def peak_text(plan: MemoryPlan) -> list[str]:
    """Return the lines about the peaks."""
    peak = plan.busiest
    on = f" on {peak.device}" if len(plan.data.peaks) > 1 else ""
    lines = [
        f"peak allocated {size_text(peak.allocated)}{on}{_place(peak)}",
        f"peak reserved {size_text(plan.reserved)}, "
        f"{size_text(plan.reserved - peak.allocated)} more than allocated",
    ]
    if peak.page_locked:
        lines.append(f"page-locked host memory {size_text(peak.page_locked)}")
    return lines


def _place(peak: DevicePeak) -> str:
    if not peak.line:
        return " at the start"
    names = [
        f"{name} ({_ordinal(number)} time)" if number > 1 else name
        for name, number in zip(
            peak.annotations, (*peak.entries, *(1 for _ in peak.annotations)), strict=False
        )
    ]
    inside = f" in {' / '.join(names)}" if names else ""
    return f" at {peak.line}{inside}{f' after {peak.work}' if peak.work else ''}"


def _ordinal(number: int) -> str:
    ending = (
        "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    )
    return f"{number}{ending}"


def holder_rows(holders: Sequence[Holder], most: int) -> list[list[str]]:
    """Return the table of holders, the largest first; the last row sums the rest."""
    rows = [["held at the peak by", "bytes", "arrays", "in", "stream"]]
    for holder in holders[:most]:
        inside = shorten(" / ".join(holder.annotations), _MAX_NAME)
        stream = "default" if holder.stream == 0 else f"{holder.stream:#x}"
        line = shorten(holder.line, _MAX_NAME)
        rows.append([line, size_text(holder.nbytes), f"{holder.arrays:,}", inside, stream])
    rest = holders[most:]
    if rest:
        nbytes = sum(holder.nbytes for holder in rest)
        arrays = sum(holder.arrays for holder in rest)
        rows.append([f"{len(rest)} others", size_text(nbytes), f"{arrays:,}", "", ""])
    return rows


def link_text(device: object) -> str:
    """Return the name of an end of a link."""
    return "host" if device is None else str(device)


def sections(plan: MemoryPlan, most: int = _MAX_HOLDERS) -> list[Section]:
    """Return the tables of a plan that have rows."""
    data = plan.data
    found: list[Section] = []
    if plan.holders:
        found.append(("at the peak", holder_rows(plan.holders, most)))
    if len(data.peaks) > 1:
        rows = [["device", "allocated", "reserved"]]
        rows += [
            [str(peak.device), size_text(peak.allocated), size_text(peak.reserved)]
            for peak in data.peaks
        ]
        found.append(("peaks", rows))
    if data.kernels:
        total = sum(plan.launches.values())
        name = f"{_count(total, 'launch', 'es')} of {_count(len(plan.launches), 'kernel')}"
        found.append((name, _kernel_rows(plan)))
    if data.transfers:
        found.append(("copies", _link_rows(data.transfers, most)))
    if data.compiled:
        found.append(("compiled kernels", _compiled_rows(data.compiled)))
    if data.collectives:
        found.append(("collectives", _collective_rows(data.collectives)))
    if data.reads:
        rows = [["line", "reads"], *([line, f"{count:,}"] for line, count in data.reads.items())]
        found.append(("reads of values that do not exist", rows))
    return found


def _count(number: int, noun: str, ending: str = "s") -> str:
    return f"{number:,} {noun}{'' if number == 1 else ending}"


def _others(plan: MemoryPlan) -> str:
    """Return whether the program fits a few common GPUs of other memory sizes."""
    if plan.device_type != "cuda":
        return ""
    fits = [plan.fit(name) for name in _COMMON if name != plan.gpu]
    return ", ".join(
        f"{fit.name} yes" if fit.fits else f"{fit.name} no ({spare_text(fit.spare)})"
        for fit in fits
    )


def _link_rows(transfers: Sequence[Transfer], most: int) -> list[list[str]]:
    """Return the table of copies, the most bytes first; the last row sums the rest."""
    order = sorted(
        transfers, key=lambda each: (-each.nbytes, str(each.source), str(each.destination))
    )
    rows = [["from", "to", "copies", "bytes"]]
    for each in order[:most]:
        ends = [link_text(each.source), link_text(each.destination)]
        rows.append([*ends, f"{each.copies:,}", size_text(each.nbytes)])
    rest = order[most:]
    if rest:
        copies, nbytes = sum(each.copies for each in rest), sum(each.nbytes for each in rest)
        rows.append([f"{len(rest)} other links", "", f"{copies:,}", size_text(nbytes)])
    return rows


def _collective_rows(collectives: Sequence[Collective]) -> list[list[str]]:
    """Return the table of collectives; devices with equal calls and bytes are one row."""
    groups: dict[tuple[str, int, int], list[str]] = {}
    for each in collectives:
        groups.setdefault((each.name, each.calls, each.nbytes), []).append(str(each.device))
    rows = [["collective", "devices", "calls of each rank", "bytes of each rank"]]
    for (name, calls, nbytes), devices in sorted(groups.items(), key=lambda item: -item[0][2]):
        where = devices[0] if len(devices) == 1 else f"{len(devices)} devices"
        rows.append([name, where, f"{calls:,}", size_text(nbytes)])
    return rows


def _kernel_rows(plan: MemoryPlan) -> list[list[str]]:
    sums: dict[str, list[float]] = {}
    for each in plan.kernels:
        known = sums.setdefault(each.kernel, [0, 0, 0])
        for place, value in enumerate((each.launches, each.flops or 0, each.nbytes or 0)):
            known[place] += value
    largest = sorted(sums.items(), key=lambda each: -each[1][0])
    rows = [["kernel", "launches", "FLOP", "bytes"]]
    rows += [
        [shorten(name, _MAX_NAME), f"{launches:,}", f"{flops:.3g}" if flops else "",
         size_text(nbytes) if nbytes else ""]
        for name, (launches, flops, nbytes) in largest[:_MAX_KERNELS]
    ]  # fmt: skip
    if len(largest) > _MAX_KERNELS:
        rest = sum(values[0] for _, values in largest[_MAX_KERNELS:])
        rows.append([f"{len(largest) - _MAX_KERNELS} others", f"{rest:,}", "", ""])
    return rows


def _compiled_rows(compiled: tuple[CompiledLaunch, ...]) -> list[list[str]]:
    rows = [["kernel", "block", "registers", "shared", "spilled", "occupancy"]]
    for each in compiled:
        known = each.registers is not None
        shared = each.shared + (each.static_shared or 0)
        occupancy = "" if each.occupancy is None else f"{each.occupancy:.0%}"
        rows.append([
            shorten(each.signature, _MAX_NAME), " x ".join(map(str, each.block)),
            str(each.registers) if known else "", size_text(shared),
            size_text(each.spilled) if each.spilled is not None else "", occupancy,
        ])  # fmt: skip
    return rows


def sparkline(timeline: PlanTimeline) -> str:
    """Return the allocated bytes over the allocations and frees as one line of blocks.

    Examples
    --------
    >>> from nbrt.planning.results import PlanTimeline
    >>> sparkline(PlanTimeline((0, 1, 2), (0, 8, 4), (8, 8, 8)))
    '▁█▅'
    """
    values, top = timeline.allocated, max(timeline.allocated, default=0)
    if not top:
        return ""
    width = min(_SPARK_WIDTH, len(values))
    edges = [place * len(values) // width for place in range(width + 1)]
    peaks = [max(values[a:b]) for a, b in itertools.pairwise(edges)]
    return "".join(_SPARK[round(peak * (len(_SPARK) - 1) / top)] for peak in peaks)
