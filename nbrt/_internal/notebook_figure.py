"""`NotebookFigure`: a figure that a notebook shows. The module imports matplotlib itself."""

from __future__ import annotations

import io

from matplotlib.figure import Figure

__all__ = ["NotebookFigure"]


class NotebookFigure(Figure):
    """A figure that IPython can show without pyplot and without ``%matplotlib inline``.

    IPython knows no way to show matplotlib's own `Figure` before an inline backend is loaded. Once
    one is, IPython uses that backend's way for this class too: the figure is shown once.
    """

    def _repr_png_(self) -> bytes:
        """Return the figure as PNG; IPython calls this."""
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", bbox_inches="tight")  # as the inline backend does
        return buffer.getvalue()
