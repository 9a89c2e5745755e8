"""Colours of call sites, the same in every picture of a process."""

from __future__ import annotations

import colorsys
import threading
from typing import TYPE_CHECKING

from nbrt.observe.pictures.sites import site_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nbrt.observe.pictures.sites import Frames, SiteKey

__all__ = ["BEFORE_COLOR", "FREE_COLOR", "NO_STACK_COLOR", "OTHER_COLOR", "site_colors"]

# Of middle lightness, so that they can be told from a white and from a black ground.
_COLORS = (
    "#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#d9b000", "#3aa6a0",
    "#d37295", "#9c755f", "#7b6fd0", "#86a832", "#e15759", "#5aa9e6",
)  # fmt: skip
OTHER_COLOR, BEFORE_COLOR, NO_STACK_COLOR, FREE_COLOR = "#8a8a8a", "#b4b4b4", "#66727e", "#ffffff"

_GOLDEN = 0.6180339887498949
"""Steps of this part of a circle are far apart, however many there are."""

_lock = threading.Lock()
_numbers: dict[SiteKey, int] = {}
"""Each site that was drawn, with its place in the order in which they were."""


def site_colors(stacks: Iterable[Frames]) -> list[str]:
    """Return the colour of the call site of each stack.

    A site keeps the colour that it has in the first picture of this process; a new one takes the
    next colour. Stacks without a site have a neutral colour.

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
    red, green, blue = colorsys.hls_to_rgb(number * _GOLDEN % 1, (0.42, 0.6)[number % 2], 0.5)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"
