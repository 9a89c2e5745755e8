"""Bytes alive over time by call site in a memory snapshot."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from nbrt._internal.figures import new_figure
from nbrt.errors import ArgumentError
from nbrt.observe.plots.lifetimes import (
    BEFORE,
    checked_top,
    device_index,
    device_name,
    read_lifetimes,
    segments_of,
    trace_of,
)
from nbrt.observe.plots.style import (
    BEFORE_COLOR,
    OTHER_COLOR,
    legend_label,
    shorten,
    site_colors,
    size_text,
    time_unit,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from matplotlib.axes import Axes

    from nbrt._internal.device import Device
    from nbrt._internal.notebook_figure import NotebookFigure
    from nbrt.observe.call_sites import Frames
    from nbrt.observe.plots.lifetimes import IntArray, Lifetimes

__all__ = [
    "SiteUsage",
    "Timeline",
    "TimelineMark",
    "plot_timeline",
    "row_colors",
    "site_uses",
    "timeline",
    "timeline_of",
    "top_uses",
]

_DRAWN_POINTS = 2000
_SIGNS = {"alloc": 1, "map": 1, "free": -1, "unmap": -1}


class TimelineMark(NamedTuple):
    """A marker in a timeline.

    Attributes
    ----------
    time : int
        Microseconds since the first event.
    kind : str
        ``"oom"``, a failed allocation, or ``"note"``, an annotation of the user.
    text : str
        Label of the marker.
    """

    time: int
    kind: str
    text: str


class SiteUsage(NamedTuple):
    """The allocations of one call site.

    Attributes
    ----------
    label : str
        The site, ``"train.py:12 step"``.
    stack : sequence of mapping
        The first stack of the site, innermost frame first.
    alive, peak, total : int
        Bytes alive at the end, most bytes alive at once, and the sum of all allocations.
    allocations : int
        Number of allocations.
    number : int
        Number of the site in the snapshot; -1 for allocations before the trace.
    """

    label: str
    stack: Frames
    alive: int
    peak: int
    total: int
    allocations: int
    number: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """The bytes alive at each point of a trace, by call site.

    Point 0 is the state before the first event, every further one that after an event.

    Attributes
    ----------
    times : ndarray of int64, shape (points,)
        Microseconds since the first event.
    sites : tuple of str
        Call sites, those with the highest peaks first; the last two are ``"other"``, all other
        sites together, and ``"before the record"``, allocations before the trace.
    nbytes : ndarray of int64, shape (len(sites), points)
        Requested bytes alive; memory whose free waits for a stream is alive.
    reserved : ndarray of int64, shape (points,)
        Bytes reserved from the system.
    marks : tuple of TimelineMark
        Failed allocations and annotations.
    """

    times: IntArray
    sites: tuple[str, ...]
    nbytes: IntArray
    reserved: IntArray
    marks: tuple[TimelineMark, ...]

    @property
    def total(self) -> IntArray:
        """Bytes alive at each point."""
        total: IntArray = self.nbytes.sum(axis=0)
        return total

    def sampled(self, points: int) -> Timeline:
        """Return a timeline of about `points` points, at least 2, that keeps the peaks.

        Keeps the point with the most bytes alive in each of `points` intervals of equal length, and
        the first and the last point.
        """
        if points < 2:
            raise ArgumentError(f"expected at least 2 points, got {points}")
        if self.times.size <= points:
            return self
        total = self.total
        interval = self.times * (points - 1) // max(int(self.times[-1]), 1)
        # Sorted by interval, then by bytes: the last point of each interval is its peak.
        order = np.lexsort((total, interval))
        highest = order[np.flatnonzero(np.diff(interval[order], append=points))]
        kept = np.union1d(highest, [0, self.times.size - 1])
        return replace(
            self, times=self.times[kept], nbytes=self.nbytes[:, kept], reserved=self.reserved[kept]
        )


def timeline(
    snapshot: Mapping[str, Any], *, device: int | str | Device = 0, top: int = 12
) -> Timeline:
    """Return the bytes alive at every point of a snapshot's trace, by call site.

    A call site is the innermost line outside nbrt, NumPy, CuPy and Numba.

    Parameters
    ----------
    snapshot : mapping
        A snapshot in the format of `torch.cuda.memory._snapshot`, with a trace.
    device : int, str or Device, default 0
        The device or its index.
    top : int, default 12
        Number of sites to distinguish, those with the highest peaks.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If the snapshot is invalid or lacks the device, or `top` is negative.

    Examples
    --------
    >>> frames = [{"filename": "train.py", "line": 3, "name": "step"}]
    >>> alloc = {"action": "alloc", "addr": 64, "size": 10, "time_us": 100, "frames": frames}
    >>> free = {"action": "free_completed", "addr": 64, "size": 10, "time_us": 250, "frames": []}
    >>> lines = timeline({"segments": [], "device_traces": [[alloc, free]]})
    >>> lines.sites, lines.times.tolist(), lines.nbytes[0].tolist()
    (('train.py:3 step', 'other', 'before the record'), [0, 0, 150], [0, 10, 0])
    """
    index = device_index(snapshot, device)
    lifetimes = read_lifetimes(snapshot, index)
    return timeline_of(snapshot, lifetimes, index, top_uses(site_uses(lifetimes), top))


def top_uses(uses: Iterable[SiteUsage], top: int) -> list[SiteUsage]:
    """Return the first `top` uses of call sites in the trace."""
    return [use for use in uses if use.number != BEFORE][: checked_top(top)]


def row_colors(shown: Iterable[SiteUsage]) -> list[str]:
    """Return the color of each row of the timeline of these uses."""
    return [*site_colors(use.stack for use in shown), OTHER_COLOR, BEFORE_COLOR]


def timeline_of(
    snapshot: Mapping[str, Any], lifetimes: Lifetimes, device: int, shown: Sequence[SiteUsage]
) -> Timeline:
    """Return the timeline of lifetimes, with a row for each shown use."""
    trace = trace_of(snapshot, device)
    row_of = np.full(len(lifetimes.sites.stacks) + 1, len(shown))  # the last is BEFORE
    row_of[[use.number for use in shown]] = np.arange(len(shown))
    row_of[BEFORE] = len(shown) + 1
    nbytes = np.zeros((len(shown) + 2, lifetimes.points + 1), np.int64)
    rows = row_of[lifetimes.site]
    np.add.at(nbytes, (rows, lifetimes.start), lifetimes.nbytes)
    np.add.at(nbytes, (rows, lifetimes.stop), -lifetimes.nbytes)
    return Timeline(
        times=_times(trace),
        sites=(*(use.label for use in shown), "other", "before the record"),
        nbytes=nbytes.cumsum(axis=1)[:, :-1],
        reserved=_reserved(
            trace, sum(each["total_size"] for each in segments_of(snapshot, device))
        ),
        marks=tuple(_marks(trace)),
    )


def site_uses(lifetimes: Lifetimes) -> list[SiteUsage]:
    """Return the allocations of each call site, the highest peak first."""
    if not lifetimes.site.size:
        return []
    # Ends come first, so that a block that is reused at once does not count twice.
    number = np.concatenate([lifetimes.site, lifetimes.site])
    change = np.concatenate([-lifetimes.nbytes, lifetimes.nbytes])
    order = np.lexsort((np.concatenate([lifetimes.stop, lifetimes.start]), number))
    number, running = number[order], change[order].cumsum()
    # Every allocation has an end, at the latest after the last point: running sums end at zero.
    first = np.flatnonzero(np.diff(number, prepend=BEFORE - 1))
    peaks = np.maximum.reduceat(running, first).tolist()
    still = lifetimes.nbytes * (lifetimes.stop == lifetimes.points)
    alive, total, count = (
        np.bincount(lifetimes.site - BEFORE, weights).astype(np.int64).tolist()
        for weights in (still, lifetimes.nbytes, None)
    )
    labels = [*lifetimes.sites.labels(), "before the record"]  # BEFORE, -1, is the last
    stacks: list[Frames] = [*lifetimes.sites.stacks, ()]
    uses = [
        SiteUsage(
            labels[site], stacks[site], alive[site - BEFORE], peak, total[site - BEFORE],
            count[site - BEFORE], site,
        )
        for site, peak in zip(number[first].tolist(), peaks, strict=True)
    ]  # fmt: skip
    return sorted(uses, key=lambda use: -use.peak)


def _times(trace: Sequence[Mapping[str, Any]]) -> IntArray:
    """Return the microseconds since the first event of each point."""
    if not trace:
        return np.zeros(1, np.int64)
    times = np.array([event["time_us"] for event in trace], np.int64)
    # Events of several threads can be slightly out of order.
    elapsed: IntArray = np.maximum.accumulate(np.concatenate([times[:1], times])) - times[0]
    return elapsed


def _reserved(trace: Sequence[Mapping[str, Any]], now: int) -> IntArray:
    """Return the reserved bytes at each point, computed backwards from the last."""
    changes = [0]
    for event in trace:
        kind, _, change = event["action"].partition("_")
        changes.append(event["size"] * _SIGNS.get(change, 0) if kind == "segment" else 0)
    growth = np.array(changes, np.int64).cumsum()
    reserved: IntArray = growth - growth[-1] + now
    return reserved


def _marks(trace: Sequence[Mapping[str, Any]]) -> Iterator[TimelineMark]:
    for event in trace:
        time = event["time_us"] - trace[0]["time_us"]
        if event["action"] == "oom":
            free = size_text(event["device_free"])
            yield TimelineMark(
                time, "oom", f"out of memory: {size_text(event['size'])} asked, {free} free"
            )
        elif event["action"] == "annotate" and event.get("stage") != "END":
            yield TimelineMark(time, "note", event["name"])


@overload
def plot_timeline(
    snapshot: Mapping[str, Any], *, device: int | str | Device = 0, top: int = 12, ax: None = None
) -> NotebookFigure: ...


@overload
def plot_timeline(
    snapshot: Mapping[str, Any], *, device: int | str | Device = 0, top: int = 12, ax: Axes
) -> None: ...


def plot_timeline(
    snapshot: Mapping[str, Any],
    *,
    device: int | str | Device = 0,
    top: int = 12,
    ax: Axes | None = None,
) -> NotebookFigure | None:
    """Plot the bytes alive over time by call site, and the bytes reserved.

    Red lines mark failed allocations, gray lines with names mark annotations.

    Parameters
    ----------
    snapshot, device, top
        See `timeline`.
    ax : matplotlib.axes.Axes, optional
        The axes; a new figure by default.

    Returns
    -------
    figure : matplotlib.figure.Figure or None
        A new figure, which a notebook shows and ``savefig`` saves. None with `ax`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If the snapshot is invalid or lacks the device, or `top` is negative.
    NotSupportedError
        If matplotlib is missing.
    """
    index = device_index(snapshot, device)
    lifetimes = read_lifetimes(snapshot, index)
    shown = top_uses(site_uses(lifetimes), top)
    lines = timeline_of(snapshot, lifetimes, index, shown).sampled(_DRAWN_POINTS)
    figure = new_figure(10.0, 4.5) if ax is None else None
    axes = ax if figure is None else figure.subplots()
    assert axes is not None
    _draw(axes, lines, row_colors(shown))
    peak = size_text(int(lines.total.max()))
    axes.set_title(f"{device_name(snapshot, index)}: peak {peak} alive")
    return figure


def _draw(axes: Axes, lines: Timeline, colors: Sequence[str]) -> None:
    """Draw areas, markers and legend; `colors` are those of the rows."""
    unit, name = time_unit(int(lines.times[-1]))
    times = lines.times / unit
    # Reversed: the rows "before the record" and "other" are at the bottom.
    rows = [row for row in range(len(lines.sites))[::-1] if lines.nbytes[row].any()]
    if rows:
        axes.stackplot(
            times, lines.nbytes[rows] / 2**20, step="post", linewidth=0,
            labels=[legend_label(lines.sites[row]) for row in rows],
            colors=[colors[row] for row in rows],
        )  # fmt: skip
    axes.step(
        times, lines.reserved / 2**20, where="post", color="#444", linewidth=1.2, label="reserved"
    )
    _draw_marks(axes, lines, unit)
    axes.set(xlabel=f"time [{name}]", ylabel="alive [MiB]")
    axes.margins(x=0)
    axes.set_ylim(bottom=0)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1], labels[::-1], fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0)
    )


def _draw_marks(axes: Axes, lines: Timeline, unit: int) -> None:
    """Draw the markers as lines; omit names that would overlap with the previous one."""
    span = max(int(lines.times[-1]), 1)
    named = -span
    for mark in lines.marks:
        color = "#d00000" if mark.kind == "oom" else "#777"
        axes.axvline(mark.time / unit, color=color, linewidth=1.0, linestyle="--")
        if mark.time - named < span / 60 and mark.kind != "oom":
            continue
        named = mark.time
        axes.annotate(
            shorten(mark.text, 45), (mark.time / unit, 1.0), xycoords=("data", "axes fraction"),
            xytext=(2 if mark.time < 0.95 * span else -9, -3), textcoords="offset points",
            rotation=90, va="top", fontsize=7, color=color,
        )  # fmt: skip
