"""What pictures of memory share: colours, sizes as text, and axes of the optional matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.errors import NotSupportedError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "BEFORE_COLOR",
    "OTHER_COLOR",
    "colors_of",
    "figure_of",
    "legend_label",
    "new_axes",
    "shorten",
    "size_text",
    "time_unit",
]

# Of middle lightness, so that they can be told from a white and from a black ground.
_COLORS = (
    "#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#d9b000", "#3aa6a0",
    "#d37295", "#9c755f", "#7b6fd0", "#86a832", "#e15759", "#5aa9e6",
)  # fmt: skip
OTHER_COLOR, BEFORE_COLOR = "#8a8a8a", "#b4b4b4"


def colors_of(sites: int) -> list[str]:
    """Return a colour for each of so many call sites, for all others, and for what was before."""
    return [*(_COLORS[site % len(_COLORS)] for site in range(sites)), OTHER_COLOR, BEFORE_COLOR]


def size_text(nbytes: float) -> str:
    """Return a number of bytes as a reader wants it.

    Examples
    --------
    >>> size_text(700), size_text(1536), size_text(5 * 2**30)
    ('700 B', '1.5 KiB', '5.0 GiB')
    """
    if nbytes < 1024:
        return f"{nbytes:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        nbytes /= 1024
        if nbytes < 1024:
            return f"{nbytes:.1f} {unit}"
    return f"{nbytes / 1024:.1f} TiB"


def time_unit(span: int) -> tuple[int, str]:
    """Return the unit for a span of microseconds: how many of them it is, and its symbol."""
    return next(
        unit for unit in ((10**6, "s"), (1000, "ms"), (1, "µs")) if span >= unit[0] or unit[0] == 1
    )


def shorten(text: str, width: int) -> str:
    """Return a text of at most `width` characters, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"


def legend_label(site: str) -> str:
    """Return a call site as a legend shows it: matplotlib hides what begins with an underscore.

    Examples
    --------
    >>> legend_label("__init__.py:2"), legend_label("train.py:3 step")
    ('./__init__.py:2', 'train.py:3 step')
    """
    return f"./{site}" if site.startswith("_") else site


def new_axes(size: tuple[float, float]) -> Axes:
    """Return the axes of a new figure of `size` inches; raises if there is no matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NotSupportedError(
            "expected matplotlib, to draw with, got none; install it with: pip install 'nbrt[viz]'"
        ) from error
    return Figure(figsize=size, layout="constrained").subplots()


def figure_of(axes: Axes) -> Figure:
    """Return the figure that holds the axes."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    return figure
