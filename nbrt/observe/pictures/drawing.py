"""Text in pictures of memory: sizes, spans of time, labels of legends."""

from __future__ import annotations

__all__ = ["legend_label", "shorten", "size_text", "time_unit"]


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
