"""The layout and fragmentation of reserved memory in a memory snapshot."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from nbrt._internal.figures import new_figure
from nbrt.observe.call_sites import CallSiteTable
from nbrt.observe.plots.lifetimes import (
    active_blocks,
    checked_top,
    device_index,
    device_name,
    segments_of,
    trace_of,
)
from nbrt.observe.plots.style import FREE_COLOR, OTHER_COLOR, legend_label, site_colors, size_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from matplotlib.axes import Axes

    from nbrt._internal.device import Device
    from nbrt._internal.notebook_figure import NotebookFigure

__all__ = [
    "FREE",
    "DrawnBlock",
    "Fragmentation",
    "drawn_blocks",
    "fragmentation_of",
    "largest",
    "plot_segments",
]

FREE = -1
_MAX_BARS = 48
_MAX_DRAWN_BLOCKS = 400


class Fragmentation(NamedTuple):
    """Use of a device's reserved memory, in bytes.

    Attributes
    ----------
    segments : int
        Number of segments.
    reserved : int
        Bytes reserved from the system.
    active : int
        Reserved bytes in blocks that are in use or wait for a stream.
    requested : int
        Active bytes that were requested; the rest is lost to rounding.
    largest_free : int
        Bytes of the largest free block.
    """

    segments: int
    reserved: int
    active: int
    requested: int
    largest_free: int

    @property
    def free(self) -> int:
        """Reserved bytes that are not active."""
        return self.reserved - self.active

    @property
    def ratio(self) -> float:
        """Fraction of the free bytes outside the largest free block: 0 is best."""
        return 1 - self.largest_free / self.free if self.free else 0.0

    def __str__(self) -> str:
        parts = f"{size_text(self.reserved)} reserved in {self.segments} segments"
        used = (
            f"{size_text(self.active)} active ({size_text(self.active - self.requested)} rounding)"
        )
        free = f"{size_text(self.free)} free, at most {size_text(self.largest_free)} in one piece"
        return f"{parts}; {used}; {free} (fragmentation {self.ratio:.0%})"


def fragmentation(snapshot: Mapping[str, Any], *, device: int | str | Device = 0) -> Fragmentation:
    """Return the use of a device's reserved memory.

    Parameters
    ----------
    snapshot : mapping
        A snapshot in the format of `torch.cuda.memory._snapshot`.
    device : int, str or Device, default 0
        The device or its index.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If the snapshot is invalid or lacks the device.

    Examples
    --------
    >>> used = {"address": 0, "size": 512, "requested_size": 500, "state": "active_allocated"}
    >>> idle = {"address": 512, "size": 1536, "requested_size": 0, "state": "inactive"}
    >>> segment = {"address": 0, "total_size": 2048, "blocks": [used, idle]}
    >>> print(fragmentation({"segments": [segment], "device_traces": []}))
    2.0 KiB reserved in 1 segments; 512 B active (12 B rounding); 1.5 KiB free, at most 1.5 KiB
    in one piece (fragmentation 0%)
    """
    return fragmentation_of(snapshot, device_index(snapshot, device))


def fragmentation_of(snapshot: Mapping[str, Any], device: int) -> Fragmentation:
    """Return the fragmentation of a device in a checked snapshot."""
    trace_of(snapshot, device)
    segments = segments_of(snapshot, device)
    active = [block for segment in segments for block in active_blocks(segment)]
    free = (
        block["size"]
        for segment in segments
        for block in segment["blocks"]
        if not block["state"].startswith("active")
    )
    return Fragmentation(
        segments=len(segments),
        reserved=sum(segment["total_size"] for segment in segments),
        active=sum(block["size"] for block in active),
        requested=sum(block["requested_size"] for block in active),
        largest_free=max(free, default=0),
    )


class DrawnBlock(NamedTuple):
    """A block, or a run of small blocks, that a plot draws as one.

    Attributes
    ----------
    offset, nbytes : int
        Offset in the segment, and size.
    state : str
        ``"active_allocated"``, ``"inactive"``, or ``"active_pending_free"``.
    site : int
        Number of the call site; `FREE` if inactive.
    blocks : int
        Number of blocks in the run; most of its bytes have this state and site.
    """

    offset: int
    nbytes: int
    state: str
    site: int
    blocks: int


def drawn_blocks(
    segment: Mapping[str, Any], sites: CallSiteTable, max_blocks: int = _MAX_DRAWN_BLOCKS
) -> list[DrawnBlock]:
    """Return the blocks of a segment in address order, with runs of small blocks joined.

    A block is small below the size of the segment divided by `max_blocks`, which the result
    therefore exceeds at most twofold.
    """
    drawn: list[DrawnBlock] = []
    run: list[DrawnBlock] = []
    run_bytes = 0
    min_bytes = segment["total_size"] / max_blocks
    for entry in sorted(segment["blocks"], key=lambda entry: entry["address"]):
        state = entry["state"]
        site = sites.number(entry.get("frames", ())) if state.startswith("active") else FREE
        block = DrawnBlock(entry["address"] - segment["address"], entry["size"], state, site, 1)
        if max(block.nbytes, run_bytes) >= min_bytes:
            drawn += _joined(run)
            run, run_bytes = [], 0
        run.append(block)
        run_bytes += block.nbytes
    return drawn + _joined(run)


def _joined(run: Sequence[DrawnBlock]) -> list[DrawnBlock]:
    if not run:
        return []
    shares = Counter[tuple[str, int]]()
    for block in run:
        shares[block.state, block.site] += block.nbytes
    (state, site), _ = shares.most_common(1)[0]
    return [DrawnBlock(run[0].offset, sum(block.nbytes for block in run), state, site, len(run))]


def largest(segments: Iterable[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
    """Return the `count` largest segments in address order."""
    by_size = sorted(segments, key=lambda segment: -segment["total_size"])
    return sorted(by_size[:count], key=lambda segment: segment["address"])


@overload
def plot_segments(
    snapshot: Mapping[str, Any], *, device: int | str | Device = 0, top: int = 12, ax: None = None
) -> NotebookFigure: ...


@overload
def plot_segments(
    snapshot: Mapping[str, Any], *, device: int | str | Device = 0, top: int = 12, ax: Axes
) -> None: ...


def plot_segments(
    snapshot: Mapping[str, Any],
    *,
    device: int | str | Device = 0,
    top: int = 12,
    ax: Axes | None = None,
) -> NotebookFigure | None:
    """Plot a bar for each segment, with its blocks in address order.

    Active blocks have the color of their call site, and are hatched if they wait for a stream; free
    blocks are white. Only the 48 largest segments are drawn.

    Parameters
    ----------
    snapshot, device
        See `fragmentation`.
    top : int, default 12
        Number of sites to distinguish, those with the most active bytes.
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
    index, top = device_index(snapshot, device), checked_top(top)
    figures = fragmentation_of(snapshot, index)
    segments = largest(segments_of(snapshot, index), _MAX_BARS)
    figure = new_figure(10.0, 1.6 + 0.28 * max(len(segments), 4)) if ax is None else None
    axes = ax if figure is None else figure.subplots()
    assert axes is not None
    sites = CallSiteTable()
    bars = [drawn_blocks(segment, sites) for segment in segments]
    colors = _top_colors(bars, sites, top)
    for row, bar in enumerate(bars):
        _draw_bar(axes, row, bar, colors)
    axes.set_yticks(range(len(segments)), [_name(segment) for segment in segments], fontsize=7)
    axes.set_ylim(max(len(segments), 1) - 0.4, -0.6)
    axes.set_xlabel("offset in the segment [MiB]")
    axes.set_xlim(left=0)
    held, rest = str(figures).split("; ", 1)
    axes.set_title(f"{device_name(snapshot, index)}: {held}\n{rest}", fontsize=9)
    _legend(axes, colors, sites.labels(), len(segments) < figures.segments)
    return figure


def _name(segment: Mapping[str, Any]) -> str:
    stream = f", stream {segment['stream']:#x}" if segment.get("stream") else ""
    return f"{segment['address']:#x}{stream}  {segment['total_size'] / 2**20:.1f} MiB"


def _top_colors(
    bars: Iterable[Sequence[DrawnBlock]], sites: CallSiteTable, top: int
) -> dict[int, str]:
    """Return the colors of the `top` sites with the most bytes."""
    nbytes = Counter[int]()
    for bar in bars:
        for block in bar:
            nbytes[block.site] += block.nbytes
    del nbytes[FREE]
    shown = [site for site, _ in nbytes.most_common(top)]
    return dict(zip(shown, site_colors(sites.stacks[site] for site in shown), strict=True))


def _draw_bar(axes: Axes, row: int, bar: Sequence[DrawnBlock], colors: Mapping[int, str]) -> None:
    for waiting in (False, True):
        drawn = [
            block
            for block in bar
            if (block.state not in {"active_allocated", "inactive"}) is waiting
        ]
        axes.broken_barh(
            [(block.offset / 2**20, block.nbytes / 2**20) for block in drawn], (row - 0.4, 0.8),
            facecolors=[_color(block, colors) for block in drawn], edgecolor="#555", linewidth=0.4,
            hatch="////" if waiting else None,
        )  # fmt: skip


def _color(block: DrawnBlock, colors: Mapping[int, str]) -> str:
    return FREE_COLOR if block.site == FREE else colors.get(block.site, OTHER_COLOR)


def _legend(axes: Axes, colors: Mapping[int, str], labels: Sequence[str], cut: bool) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=color, label=legend_label(labels[site])) for site, color in colors.items()
    ]
    if len(labels) > len(colors):
        handles.append(Patch(facecolor=OTHER_COLOR, label="other"))
    handles += [
        Patch(facecolor=FREE_COLOR, edgecolor="#555", label="free"),
        Patch(facecolor=FREE_COLOR, edgecolor="#555", hatch="////", label="waits for a stream"),
    ]
    axes.legend(
        handles=handles, fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0),
        title="the largest segments only" if cut else None, title_fontsize=7,
    )  # fmt: skip
