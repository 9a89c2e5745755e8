"""Colors of call sites and texts in plots: sizes, units of time, legend labels."""

from __future__ import annotations

import colorsys
import threading
from typing import TYPE_CHECKING

from nbrt.observe.call_sites import site_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nbrt.observe.call_sites import Frames, SiteKey

__all__ = [
    "BEFORE_COLOR",
    "FREE_COLOR",
    "NO_STACK_COLOR",
    "OTHER_COLOR",
    "legend_label",
    "shorten",
    "site_colors",
    "size_text",
    "time_unit",
]

# Of medium lightness: visible on a white and on a black background.
_COLORS = (
    "#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#d9b000", "#3aa6a0",
    "#d37295", "#9c755f", "#7b6fd0", "#86a832", "#e15759", "#5aa9e6",
)  # fmt: skip
OTHER_COLOR, BEFORE_COLOR, NO_STACK_COLOR, FREE_COLOR = "#8a8a8a", "#b4b4b4", "#66727e", "#ffffff"

_GOLDEN_RATIO = 0.6180339887498949
"""The step in hue: multiples of it modulo 1 stay far apart."""

_lock = threading.Lock()
_numbers: dict[SiteKey, int] = {}
"""The number of each call site that was drawn, in order of first use."""


def site_colors(stacks: Iterable[Frames]) -> list[str]:
    """Return the color of the call site of each stack.

    A site keeps its color for the whole process. Stacks without a site have a neutral color.

    Examples
    --------
    >>> step = {"filename": "train.py", "line": 3, "name": "step"}
    >>> first, neutral = site_colors([[step], []])
    >>> site_colors([[{"filename": "main.py", "line": 1, "name": "run"}], [step]])[1] == first
    True
    """
    with _lock:
        return [
            NO_STACK_COLOR if key is None else _color(_numbers.setdefault(key, len(_numbers)))
            for key in map(site_key, stacks)
        ]


def _color(number: int) -> str:
    if number < len(_COLORS):
        return _COLORS[number]
    hue, lightness = number * _GOLDEN_RATIO % 1, (0.42, 0.6)[number % 2]
    red, green, blue = colorsys.hls_to_rgb(hue, lightness, 0.5)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def size_text(nbytes: float) -> str:
    """Return a number of bytes as text with a binary unit.

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
    """Return the unit for a span of microseconds: its length in microseconds and its symbol."""
    return next(
        unit for unit in ((10**6, "s"), (1000, "ms"), (1, "µs")) if span >= unit[0] or unit[0] == 1
    )


def shorten(text: str, width: int) -> str:
    """Return a text as one line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"


def legend_label(site: str) -> str:
    """Return the legend label of a call site: matplotlib hides labels that begin with "_".

    Examples
    --------
    >>> legend_label("__init__.py:2"), legend_label("train.py:3 step")
    ('./__init__.py:2', 'train.py:3 step')
    """
    return f"./{site}" if site.startswith("_") else site
