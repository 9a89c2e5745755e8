"""Figures of the optional matplotlib, which is imported when the first one is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.errors import NotSupportedError

if TYPE_CHECKING:
    from nbrt._internal.notebook_figure import NotebookFigure

__all__ = ["new_figure"]


def new_figure(width: float, height: float) -> NotebookFigure:
    """Return an empty figure of a size in inches, which a notebook shows.

    Raises
    ------
    NotSupportedError
        If matplotlib is missing.
    """
    try:
        from nbrt._internal.notebook_figure import NotebookFigure
    except ImportError as error:
        raise NotSupportedError(
            "expected matplotlib, to draw with, got none; install it with: pip install 'nbrt[viz]'"
        ) from error
    return NotebookFigure(figsize=(width, height), layout="constrained")
