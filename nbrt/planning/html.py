"""A plan as HTML for a notebook or a file, without scripts and other resources."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from nbrt.observe.plots.style import size_text, time_unit
from nbrt.planning.tables import html_table
from nbrt.planning.text import peak_text, sections, title

if TYPE_CHECKING:
    from nbrt.planning.plan import MemoryPlan
    from nbrt.planning.results import DevicePeak

__all__ = ["plan_html", "plan_page"]

_WIDTH, _HEIGHT = 720, 160
_MAX_POINTS = 720
_MAX_HOLDERS = 30
_MAX_CHARTS = 8
_ALLOCATED, _RESERVED = "#4e79a7", "#8a8a8a"


def plan_html(plan: MemoryPlan) -> str:
    """Return a plan as an HTML fragment."""
    parts = [f"<p><b>{escape(title(plan))}</b></p>"]
    parts += [f"<p>{escape(line)}</p>" for line in peak_text(plan)]
    busiest = sorted(plan.data.peaks, key=lambda peak: -peak.reserved)
    parts += [_chart(peak) for peak in busiest[:_MAX_CHARTS] if peak.reserved]
    for name, rows in sections(plan, _MAX_HOLDERS):
        parts.append(f"<p>{escape(name)}</p>{html_table(rows)}")
    if len(plan.table()):
        parts.append(
            f"<details><summary>other GPUs</summary>{plan.table()._repr_html_()}</details>"
        )
    if plan.assumptions:
        lines = "".join(f"<li>{escape(each)}</li>" for each in plan.assumptions)
        parts.append(f"<p>not modelled or assumed:</p><ul>{lines}</ul>")
    return f'<div class="nbrt-plan">{"".join(parts)}</div>'


def plan_page(plan: MemoryPlan) -> str:
    """Return a plan as an HTML page."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        "<!DOCTYPE html>\n"
        f'<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{escape(title(plan))}</title>"
        "<style>body{font-family:sans-serif;margin:2em;max-width:60em}</style></head>"
        f"<body>{plan_html(plan)}</body></html>\n"
    )


def _chart(peak: DevicePeak) -> str:
    """Return the memory of a device over time as an SVG picture."""
    timeline, top = peak.timeline, max(peak.reserved, 1)
    count = len(timeline.times)
    width = -(-count // _MAX_POINTS)
    steps = range(0, count, width)

    def points(values: tuple[int, ...]) -> str:
        highest = [max(values[step : step + width]) for step in steps]
        heights = [_HEIGHT - value * (_HEIGHT - 10) / top for value in highest]
        return " ".join(  # steps: memory does not change in between
            f"{edge * _WIDTH / len(heights):.1f},{height:.1f}"
            for place, height in enumerate(heights)
            for edge in (place, place + 1)
        )

    unit, name = time_unit(max(timeline.times[-1], 1) if timeline.times else 1)
    span = f"{(timeline.times[-1] if timeline.times else 0) / unit:.1f} {name}"
    area = f"0,{_HEIGHT} {points(timeline.allocated)} {_WIDTH},{_HEIGHT}"
    return (
        f'<figure style="margin:0 0 1em"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" role="img" aria-label="memory of {peak.device} over time">'
        f'<polygon points="{area}" fill="{_ALLOCATED}"/>'
        f'<polyline points="{points(timeline.reserved)}" fill="none" stroke="{_RESERVED}" '
        f'stroke-width="1.5"/></svg>'
        f"<figcaption>{peak.device}: allocated (filled) up to {size_text(peak.allocated)}, "
        f"reserved (line) up to {size_text(peak.reserved)}, in the order of allocations and frees, "
        f"over {span}</figcaption></figure>"
    )
