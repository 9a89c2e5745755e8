"""What lies where in the memory that is held from the system, read from a memory snapshot."""

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
    "fragmentation",
    "fragmentation_of",
    "largest",
    "pieces",
    "plot_segments",
]

FREE = -1
_MAX_BARS = 48
_MAX_DRAWN_BLOCKS = 400


class Fragmentation(NamedTuple):
    """How well the memory of a device is filled, in bytes.

    Attributes
    ----------
    segments : int
        How many there are.
    reserved : int
        Held from the system.
    active : int
        Of these, in blocks that are in use or wait for a stream.
    requested : int
        Of these, what was asked for; the rest is lost to rounding.
    largest_free : int
        The largest free block.
    """

    segments: int
    reserved: int
    active: int
    requested: int
    largest_free: int

    @property
    def free(self) -> int:
        """Bytes held and not in use."""
        return self.reserved - self.active

    @property
    def ratio(self) -> float:
        """Part of the free bytes that one large allocation could not have: 0 is best."""
        return 1 - self.largest_free / self.free if self.free else 0.0

    def __str__(self) -> str:
        parts = f"{size_text(self.reserved)} reserved in {self.segments} segments"
        used = (
            f"{size_text(self.active)} active ({size_text(self.active - self.requested)} rounding)"
        )
        free = f"{size_text(self.free)} free, at most {size_text(self.largest_free)} in one piece"
        return f"{parts}; {used}; {free} (fragmentation {self.ratio:.0%})"


def fragmentation(snapshot: Mapping[str, Any], *, device: int | str | Device = 0) -> Fragmentation:
    """Return how well the memory of a device is filled.

    Parameters
    ----------
    snapshot : mapping
        In the format of `torch.cuda.memory._snapshot`.
    device : int, str or Device, default 0
        The device, or its index.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If it is no snapshot, is broken, or has no such device.

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
    """Return how well the memory of a device is filled, by a snapshot that was checked."""
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
    """A stretch of a segment that a picture shows as one.

    Attributes
    ----------
    offset, nbytes : int
        Where in the segment, and how long.
    state : str
        ``"active_allocated"``, ``"inactive"``, or in use and waiting for a stream.
    site : int
        Number of the call site, `FREE` if it is inactive.
    blocks : int
        How many small blocks it stands for; state and site are those of most of its bytes.
    """

    offset: int
    nbytes: int
    state: str
    site: int
    blocks: int


def pieces(
    segment: Mapping[str, Any], sites: CallSiteTable, most: int = _MAX_DRAWN_BLOCKS
) -> list[DrawnBlock]:
    """Return the blocks of a segment in address order, small neighbours as one.

    Parameters
    ----------
    segment : mapping
        Of a snapshot.
    sites : CallSiteTable
        Numbers the call sites.
    most : int, default 400
        How many pieces are wanted at most, about: blocks below that part of the segment are joined
        with their neighbours.
    """
    found: list[DrawnBlock] = []
    run: list[DrawnBlock] = []
    length = 0
    least = segment["total_size"] / most
    for block in sorted(segment["blocks"], key=lambda block: block["address"]):
        state = block["state"]
        site = sites.number(block.get("frames", ())) if state.startswith("active") else FREE
        piece = DrawnBlock(block["address"] - segment["address"], block["size"], state, site, 1)
        if max(piece.nbytes, length) >= least:
            found += _joined(run)
            run, length = [], 0
        run.append(piece)
        length += piece.nbytes
    return found + _joined(run)


def _joined(run: Sequence[DrawnBlock]) -> list[DrawnBlock]:
    if not run:
        return []
    shares = Counter[tuple[str, int]]()
    for piece in run:
        shares[piece.state, piece.site] += piece.nbytes
    (state, site), _ = shares.most_common(1)[0]
    return [DrawnBlock(run[0].offset, sum(piece.nbytes for piece in run), state, site, len(run))]


def largest(segments: Iterable[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """Return the `most` largest segments, in the order of their addresses."""
    chosen = sorted(segments, key=lambda segment: -segment["total_size"])[:most]
    return sorted(chosen, key=lambda segment: segment["address"])


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
    """Draw a bar for each segment with its blocks in the order of their addresses.

    Blocks in use have the colour of their call site, hatched if they wait for a stream; free ones
    are white. Of more than 48 segments the largest are drawn.

    Parameters
    ----------
    snapshot : mapping
        In the format of `torch.cuda.memory._snapshot`.
    device : int, str or Device, default 0
        The device, or its index.
    top : int, default 12
        How many sites to tell apart, those with the most bytes in use.
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
    index, top = device_index(snapshot, device), checked_top(top)
    figures = fragmentation_of(snapshot, index)
    segments = largest(segments_of(snapshot, index), _MAX_BARS)
    figure = new_figure(10.0, 1.6 + 0.28 * max(len(segments), 4)) if ax is None else None
    axes = ax if figure is None else figure.subplots()
    assert axes is not None
    sites = CallSiteTable()
    bars = [pieces(segment, sites) for segment in segments]
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
    """Return the colours of the sites with the most bytes, and of no other."""
    held = Counter[int]()
    for bar in bars:
        for piece in bar:
            held[piece.site] += piece.nbytes
    del held[FREE]
    chosen = [site for site, _ in held.most_common(top)]
    return dict(zip(chosen, site_colors(sites.stacks[site] for site in chosen), strict=True))


def _draw_bar(axes: Axes, row: int, bar: Sequence[DrawnBlock], colors: Mapping[int, str]) -> None:
    for waiting in (False, True):
        drawn = [
            piece
            for piece in bar
            if (piece.state not in {"active_allocated", "inactive"}) is waiting
        ]
        axes.broken_barh(
            [(piece.offset / 2**20, piece.nbytes / 2**20) for piece in drawn], (row - 0.4, 0.8),
            facecolors=[_color(piece, colors) for piece in drawn], edgecolor="#555", linewidth=0.4,
            hatch="////" if waiting else None,
        )  # fmt: skip


def _color(piece: DrawnBlock, colors: Mapping[int, str]) -> str:
    return FREE_COLOR if piece.site == FREE else colors.get(piece.site, OTHER_COLOR)


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
