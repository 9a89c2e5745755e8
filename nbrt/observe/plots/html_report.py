"""A memory snapshot as one HTML page without external resources."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from nbrt.observe.call_sites import format_frame
from nbrt.observe.plots.lifetimes import device_name, read_lifetimes, segments_of, trace_of
from nbrt.observe.plots.segment_map import FREE, DrawnBlock, drawn_blocks, fragmentation_of, largest
from nbrt.observe.plots.style import OTHER_COLOR, size_text
from nbrt.observe.plots.timeline import row_colors, site_uses, timeline_of, top_uses
from nbrt.observe.snapshot_schema import check_snapshot

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from nbrt.observe.call_sites import Frames
    from nbrt.observe.plots.lifetimes import Lifetimes
    from nbrt.observe.plots.segment_map import Fragmentation
    from nbrt.observe.plots.timeline import SiteUsage, Timeline

__all__ = ["save_html", "to_html"]

_HERE = Path(__file__).parent
_POINTS = 800
_MAX_SITES = 200
_MAX_SEGMENTS = 120
_MAX_MARKS = 300
_MAX_FRAMES = 40


def to_html(snapshot: Mapping[str, Any], *, top: int = 12) -> str:
    """Return a snapshot as one HTML page: timeline, segment map and table of call sites.

    The page contains all its resources and may load no others. It shows the bytes alive at about
    800 points, each the peak of an interval, the 120 largest segments and the 200 call sites with
    the highest peaks.

    Parameters
    ----------
    snapshot : mapping
        A snapshot in the format of `torch.cuda.memory._snapshot`.
    top : int, default 12
        Number of call sites that the timeline distinguishes.

    Returns
    -------
    page : str
        HTML.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If the snapshot is invalid or `top` is negative.

    Examples
    --------
    >>> page = to_html({"segments": [], "device_traces": [[]]})
    >>> page.splitlines()[0], "http://" in page.replace("http://www.w3.org/2000/svg", "")
    ('<!DOCTYPE html>', False)
    """
    check_snapshot(snapshot)
    script = (_HERE / "html_report.js").read_text(encoding="utf-8")
    # The policy allows this script only, whatever text the snapshot contains.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'"
    devices = range(len(snapshot["device_traces"]))
    shown = [
        device for device in devices if trace_of(snapshot, device) or segments_of(snapshot, device)
    ] or list(devices)[:1]
    data = json.dumps([_device(snapshot, device, top) for device in shown], separators=(",", ":"))
    page = Template((_HERE / "html_report.html").read_text(encoding="utf-8"))
    # Only "<" could end the script element, and JSON can escape it.
    return page.substitute(policy=policy, data=data.replace("<", "\\u003c"), script=script)


def save_html(snapshot: Mapping[str, Any], path: str | os.PathLike[str], *, top: int = 12) -> None:
    """Write the page of `to_html` to a file.

    Parameters
    ----------
    snapshot, top
        See `to_html`; after an error, the file does not change.
    path : path-like
        The file, which is replaced if it exists.
    """
    Path(path).write_text(to_html(snapshot, top=top), encoding="utf-8")


def _device(snapshot: Mapping[str, Any], device: int, top: int) -> dict[str, Any]:
    lifetimes = read_lifetimes(snapshot, device)
    uses = site_uses(lifetimes)
    shown = top_uses(uses, top)
    lines = timeline_of(snapshot, lifetimes, device, shown).sampled(_POINTS)
    figures = fragmentation_of(snapshot, device)
    stacks: list[Frames] = [*(use.stack for use in shown), (), ()]
    colors = row_colors(shown)
    rows = [
        {
            "name": site, "color": colors[row], "bytes": lines.nbytes[row].tolist(),
            "stack": _stack(stacks[row]),
        }
        for row, site in reversed(list(enumerate(lines.sites))) if lines.nbytes[row].any()
    ]  # fmt: skip
    color_of = {use.number: color for use, color in zip(shown, colors, strict=False)}
    segments = segments_of(snapshot, device)
    return {
        "name": device_name(snapshot, device),
        "figures": _figures(lines, figures, len(trace_of(snapshot, device))),
        "times": lines.times.tolist(),
        "rows": rows,
        "total": lines.total.tolist(),
        "reserved": lines.reserved.tolist(),
        "marks": [mark._asdict() for mark in lines.marks[-_MAX_MARKS:]],
        "segments": _segments(largest(segments, _MAX_SEGMENTS), lifetimes, color_of),
        "hidden": max(len(segments) - _MAX_SEGMENTS, 0),
        "uses": [_use(use) for use in uses[:_MAX_SITES]],
    }


def _figures(lines: Timeline, now: Fragmentation, events: int) -> list[tuple[str, str]]:
    return [
        ("peak alive", size_text(int(lines.total.max()))),
        ("alive now", size_text(int(lines.total[-1]))),
        ("reserved now", f"{size_text(now.reserved)} in {now.segments}"),
        ("peak reserved", size_text(int(lines.reserved.max()))),
        ("free now", size_text(now.free)),
        ("largest free block", size_text(now.largest_free)),
        ("fragmentation", f"{now.ratio:.0%}"),
        ("lost to rounding", size_text(now.active - now.requested)),
        ("failed allocations", str(sum(mark.kind == "oom" for mark in lines.marks))),
        ("events", f"{events:,}"),
    ]


def _use(use: SiteUsage) -> dict[str, Any]:
    return {
        "name": use.label, "stack": _stack(use.stack), "alive": use.alive, "peak": use.peak,
        "total": use.total, "allocations": use.allocations,
    }  # fmt: skip


def _stack(frames: Frames) -> list[str]:
    return [format_frame(frame, folders=3) for frame in frames[:_MAX_FRAMES]]


def _segments(
    segments: Sequence[Mapping[str, Any]], lifetimes: Lifetimes, colors: Mapping[int, str]
) -> list[dict[str, Any]]:
    bars = [drawn_blocks(segment, lifetimes.sites) for segment in segments]
    labels = lifetimes.sites.labels()

    def entry(block: DrawnBlock) -> list[Any]:
        free = block.site == FREE
        name = "free" if free else labels[block.site]
        color = "transparent" if free else colors.get(block.site, OTHER_COLOR)
        return [block.offset, block.nbytes, block.state, name, color, block.blocks]

    return [
        {
            "name": f"{segment['address']:#x}", "size": segment["total_size"],
            "stream": segment.get("stream", 0), "blocks": [entry(block) for block in bar],
        }
        for segment, bar in zip(segments, bars, strict=True)
    ]  # fmt: skip
