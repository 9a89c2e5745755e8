"""A memory snapshot as one web page, which needs no network."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from nbrt.observe.call_sites import format_frame
from nbrt.observe.plots.lifetimes import device_name, read_lifetimes, segments_of, trace_of
from nbrt.observe.plots.segment_map import FREE, DrawnBlock, fragmentation_of, largest, pieces
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
    """Return a snapshot as one web page: timeline, segment map and table of call sites.

    The page holds everything that it needs and may load nothing. It shows the bytes alive at about
    800 moments, each the peak of its stretch of time, the 120 largest segments and the 200 call
    sites with the highest peaks.

    Parameters
    ----------
    snapshot : mapping
        In the format of `torch.cuda.memory._snapshot`.
    top : int, default 12
        How many call sites the timeline tells apart.

    Returns
    -------
    page : str
        HTML.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If it is no snapshot, is broken, or `top` is negative.

    Examples
    --------
    >>> page = to_html({"segments": [], "device_traces": [[]]})
    >>> page.splitlines()[0], "http://" in page.replace("http://www.w3.org/2000/svg", "")
    ('<!DOCTYPE html>', False)
    """
    check_snapshot(snapshot)
    script = (_HERE / "html_report.js").read_text(encoding="utf-8")
    # The browser is told to run this script and no other, whatever the snapshot may hold.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'"
    devices = range(len(snapshot["device_traces"]))
    shown = [device for device in devices if _has_something(snapshot, device)] or list(devices)[:1]
    data = json.dumps([_device(snapshot, device, top) for device in shown], separators=(",", ":"))
    page = Template((_HERE / "html_report.html").read_text(encoding="utf-8"))
    # Within a script element only "<" could end it, and JSON can spell that as an escape.
    return page.substitute(policy=policy, data=data.replace("<", "\\u003c"), script=script)


def save_html(snapshot: Mapping[str, Any], path: str | os.PathLike[str], *, top: int = 12) -> None:
    """Write the page of `to_html` to a file.

    Parameters
    ----------
    snapshot : mapping
        In the format of `torch.cuda.memory._snapshot`.
    path : path-like
        The file, which is replaced if it is there.
    top : int, default 12
        How many call sites the timeline tells apart.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If it is no snapshot, is broken, or `top` is negative; no file is written then.
    """
    Path(path).write_text(to_html(snapshot, top=top), encoding="utf-8")


def _has_something(snapshot: Mapping[str, Any], device: int) -> bool:
    return bool(trace_of(snapshot, device) or segments_of(snapshot, device))


def _device(snapshot: Mapping[str, Any], device: int, top: int) -> dict[str, Any]:
    lives = read_lifetimes(snapshot, device)
    uses = site_uses(lives)
    chosen = top_uses(uses, top)
    drawn = timeline_of(snapshot, lives, device, chosen).sampled(_POINTS)
    figures = fragmentation_of(snapshot, device)
    stacks: list[Frames] = [*(use.stack for use in chosen), (), ()]
    colors = row_colors(chosen)
    rows = [
        {
            "name": site, "color": colors[row], "bytes": drawn.nbytes[row].tolist(),
            "stack": _stack(stacks[row]),
        }
        for row, site in reversed(list(enumerate(drawn.sites))) if drawn.nbytes[row].any()
    ]  # fmt: skip
    color_of = {use.number: color for use, color in zip(chosen, colors, strict=False)}
    segments = segments_of(snapshot, device)
    return {
        "name": device_name(snapshot, device),
        "figures": _figures(drawn, figures, len(trace_of(snapshot, device))),
        "times": drawn.times.tolist(),
        "rows": rows,
        "total": drawn.total.tolist(),
        "reserved": drawn.reserved.tolist(),
        "marks": [mark._asdict() for mark in drawn.marks[-_MAX_MARKS:]],
        "segments": _segments(largest(segments, _MAX_SEGMENTS), lives, color_of),
        "hidden": max(len(segments) - _MAX_SEGMENTS, 0),
        "uses": [_use(use) for use in uses[:_MAX_SITES]],
    }


def _figures(drawn: Timeline, now: Fragmentation, events: int) -> list[tuple[str, str]]:
    return [
        ("peak alive", size_text(int(drawn.total.max()))),
        ("alive now", size_text(int(drawn.total[-1]))),
        ("reserved now", f"{size_text(now.reserved)} in {now.segments}"),
        ("peak reserved", size_text(int(drawn.reserved.max()))),
        ("free now", size_text(now.free)),
        ("largest free block", size_text(now.largest_free)),
        ("fragmentation", f"{now.ratio:.0%}"),
        ("lost to rounding", size_text(now.active - now.requested)),
        ("failed allocations", str(sum(mark.kind == "oom" for mark in drawn.marks))),
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
    segments: Sequence[Mapping[str, Any]], lives: Lifetimes, colors: Mapping[int, str]
) -> list[dict[str, Any]]:
    bars = [pieces(segment, lives.sites) for segment in segments]
    labels = lives.sites.labels()

    def shown(piece: DrawnBlock) -> list[Any]:
        free = piece.site == FREE
        name = "free" if free else labels[piece.site]
        color = "transparent" if free else colors.get(piece.site, OTHER_COLOR)
        return [piece.offset, piece.nbytes, piece.state, name, color, piece.blocks]

    return [
        {
            "name": f"{segment['address']:#x}", "size": segment["total_size"],
            "stream": segment.get("stream", 0), "pieces": [shown(piece) for piece in bar],
        }
        for segment, bar in zip(segments, bars, strict=True)
    ]  # fmt: skip
