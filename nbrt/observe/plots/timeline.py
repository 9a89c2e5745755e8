"""Bytes alive over time by call site, read from a memory snapshot."""

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
_RESERVED = {"alloc": 1, "map": 1, "free": -1, "unmap": -1}


class TimelineMark(NamedTuple):
    """Something to point out in a timeline.

    Attributes
    ----------
    time : int
        Microseconds since the first event.
    kind : str
        ``"oom"``, an allocation that failed; or ``"note"``, an annotation of the user.
    text : str
        What to say there.
    """

    time: int
    kind: str
    text: str


class SiteUsage(NamedTuple):
    """What one call site allocated.

    Attributes
    ----------
    label : str
        The site, ``"train.py:12 step"``.
    stack : sequence of mapping
        The first stack that led to it, innermost frame first.
    alive, peak, total : int
        Bytes alive at the end, most bytes alive at once, and sum of all its allocations.
    allocations : int
        How many allocations.
    number : int
        The site's number in the snapshot; -1 for what was allocated before the record.
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
        Call sites, those with the highest peaks first; the last two are ``"other"``, all further
        ones together, and ``"before the record"``, what was alive when the trace began.
    nbytes : ndarray of int64, shape (len(sites), points)
        Bytes alive, as asked for; memory whose free waits for a stream is alive.
    reserved : ndarray of int64, shape (points,)
        Bytes held from the system.
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
        """Bytes alive at each point, of all sites together."""
        total: IntArray = self.nbytes.sum(axis=0)
        return total

    def sampled(self, points: int) -> Timeline:
        """Return a timeline of about so many points that keeps the peak of every stretch.

        Parameters
        ----------
        points : int
            At least 2. Of each of so many stretches of equal time, the point with the most bytes
            alive stays; the first and the last point stay as well.
        """
        if points < 2:
            raise ArgumentError(f"expected at least 2 points, got {points}")
        if self.times.size <= points:
            return self
        total = self.total
        stretch = self.times * (points - 1) // max(int(self.times[-1]), 1)
        # Stable and by stretch first, so that the last of each stretch is its highest.
        order = np.lexsort((total, stretch))
        highest = order[np.flatnonzero(np.diff(stretch[order], append=points))]
        kept = np.union1d(highest, [0, self.times.size - 1])
        return replace(
            self, times=self.times[kept], nbytes=self.nbytes[:, kept], reserved=self.reserved[kept]
        )


def timeline(
    snapshot: Mapping[str, Any], *, device: int | str | Device = 0, top: int = 12
) -> Timeline:
    """Return the bytes alive at every moment of a snapshot's trace, by call site.

    The call site is the innermost line outside nbrt, NumPy, CuPy and Numba.

    Parameters
    ----------
    snapshot : mapping
        In the format of `torch.cuda.memory._snapshot`, with a trace.
    device : int, str or Device, default 0
        The device, or its index.
    top : int, default 12
        How many sites to tell apart, those with the highest peaks.

    Returns
    -------
    timeline : Timeline

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If it is no snapshot, is broken, has no such device, or `top` is negative.

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
    lives = read_lifetimes(snapshot, index)
    return timeline_of(snapshot, lives, index, top_uses(site_uses(lives), top))


def top_uses(uses: Iterable[SiteUsage], top: int) -> list[SiteUsage]:
    """Return the first `top` of the uses that have a call site, of all that `site_uses` returns."""
    return [use for use in uses if use.number != BEFORE][: checked_top(top)]


def row_colors(chosen: Iterable[SiteUsage]) -> list[str]:
    """Return the colour of each row of the timeline that tells these uses apart."""
    return [*site_colors(use.stack for use in chosen), OTHER_COLOR, BEFORE_COLOR]


def timeline_of(
    snapshot: Mapping[str, Any], lives: Lifetimes, device: int, chosen: Sequence[SiteUsage]
) -> Timeline:
    """Return the timeline of lives that were read already, with a row for each chosen use."""
    trace = trace_of(snapshot, device)
    row_of = np.full(len(lives.sites.stacks) + 1, len(chosen))  # of the last, BEFORE: one further
    row_of[[use.number for use in chosen]] = np.arange(len(chosen))
    row_of[BEFORE] = len(chosen) + 1
    nbytes = np.zeros((len(chosen) + 2, lives.points + 1), np.int64)
    rows = row_of[lives.site]
    np.add.at(nbytes, (rows, lives.start), lives.nbytes)
    np.add.at(nbytes, (rows, lives.stop), -lives.nbytes)
    return Timeline(
        times=_times(trace),
        sites=(*(use.label for use in chosen), "other", "before the record"),
        nbytes=nbytes.cumsum(axis=1)[:, :-1],
        reserved=_reserved(
            trace, sum(each["total_size"] for each in segments_of(snapshot, device))
        ),
        marks=tuple(_marks(trace)),
    )


def site_uses(lives: Lifetimes) -> list[SiteUsage]:
    """Return what each call site allocated, the highest peak first."""
    if not lives.site.size:
        return []
    # Ends go first, so that a block that is reused at once does not count twice.
    number = np.concatenate([lives.site, lives.site])
    change = np.concatenate([-lives.nbytes, lives.nbytes])
    order = np.lexsort((np.concatenate([lives.stop, lives.start]), number))
    number, running = number[order], change[order].cumsum()
    # All of a site ends, if only after the last point: each running sum begins and ends at zero.
    first = np.flatnonzero(np.diff(number, prepend=BEFORE - 1))
    peaks = np.maximum.reduceat(running, first).tolist()
    still = lives.nbytes * (lives.stop == lives.points)
    alive, total, count = (
        np.bincount(lives.site - BEFORE, weights).astype(np.int64).tolist()
        for weights in (still, lives.nbytes, None)
    )
    labels = [*lives.sites.labels(), "before the record"]  # BEFORE, -1, is the last
    stacks: list[Frames] = [*lives.sites.stacks, ()]
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
    # Threads may write their events a little out of order.
    since: IntArray = np.maximum.accumulate(np.concatenate([times[:1], times])) - times[0]
    return since


def _reserved(trace: Sequence[Mapping[str, Any]], now: int) -> IntArray:
    """Return the bytes held from the system at each point, from those held at the last."""
    changes = [0]
    for event in trace:
        kind, _, what = event["action"].partition("_")
        changes.append(event["size"] * _RESERVED.get(what, 0) if kind == "segment" else 0)
    grown = np.array(changes, np.int64).cumsum()
    held: IntArray = grown - grown[-1] + now
    return held


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
    """Draw the bytes alive over time, by call site, under the line of the bytes reserved.

    Failed allocations are marked in red, annotations by grey lines with their names.

    Parameters
    ----------
    snapshot : mapping
        In the format of `torch.cuda.memory._snapshot`, with a trace.
    device : int, str or Device, default 0
        The device, or its index.
    top : int, default 12
        How many sites to tell apart, those with the highest peaks.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure if left out.

    Returns
    -------
    figure : matplotlib.figure.Figure or None
        A new figure: shown by a notebook, saved by its ``savefig``. None with `ax`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If it is no snapshot, is broken, has no such device, or `top` is negative.
    NotSupportedError
        If matplotlib is missing.
    """
    index = device_index(snapshot, device)
    lives = read_lifetimes(snapshot, index)
    chosen = top_uses(site_uses(lives), top)
    drawn = timeline_of(snapshot, lives, index, chosen).sampled(_DRAWN_POINTS)
    figure = new_figure(10.0, 4.5) if ax is None else None
    axes = ax if figure is None else figure.subplots()
    assert axes is not None
    _draw(axes, drawn, row_colors(chosen))
    peak = size_text(int(drawn.total.max()))
    axes.set_title(f"{device_name(snapshot, index)}: peak {peak} alive")
    return figure


def _draw(axes: Axes, drawn: Timeline, colors: Sequence[str]) -> None:
    """Draw areas, marks and legend; `colors` are those of the rows."""
    unit, name = time_unit(int(drawn.times[-1]))
    times = drawn.times / unit
    # The oldest and the rest lie at the bottom, as a ground on which the sites stand.
    rows = [row for row in range(len(drawn.sites))[::-1] if drawn.nbytes[row].any()]
    if rows:
        axes.stackplot(
            times, drawn.nbytes[rows] / 2**20, step="post", linewidth=0,
            labels=[legend_label(drawn.sites[row]) for row in rows],
            colors=[colors[row] for row in rows],
        )  # fmt: skip
    axes.step(
        times, drawn.reserved / 2**20, where="post", color="#444", linewidth=1.2, label="reserved"
    )
    _draw_marks(axes, drawn, unit)
    axes.set(xlabel=f"time [{name}]", ylabel="alive [MiB]")
    axes.margins(x=0)
    axes.set_ylim(bottom=0)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1], labels[::-1], fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0)
    )


def _draw_marks(axes: Axes, drawn: Timeline, unit: int) -> None:
    """Draw the marks as lines; those too near to the last named one to be read get no name."""
    span = max(int(drawn.times[-1]), 1)
    named = -span
    for mark in drawn.marks:
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
