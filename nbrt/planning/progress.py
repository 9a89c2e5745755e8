"""`ProgressLine`: a progress bar on one line of a terminal or a notebook."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["ProgressLine"]

_CELLS = 20


class ProgressLine:
    """A bar that shows how many of a number of tasks have ended; the line vanishes at the end.

    Parameters
    ----------
    total : int
        Number of tasks.
    is_shown : bool, optional
        Write the line. By default only if ``sys.stderr`` is a terminal or a notebook.
    """

    def __init__(self, total: int, *, is_shown: bool | None = None) -> None:
        self._total = total
        self._file = sys.stderr
        self._is_shown = self._file.isatty() if is_shown is None else is_shown
        self._begin = time.monotonic()
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._write("")
        if self._is_shown:
            self._file.write("\r")
            self._file.flush()

    def show(self, done: int, label: str) -> None:
        """Show that `done` tasks have ended, and the latest of them."""
        filled = _CELLS * done // max(1, self._total)
        seconds = time.monotonic() - self._begin
        bar = "#" * filled + "." * (_CELLS - filled)
        self._write(f"[{bar}] {done}/{self._total} kernels, {seconds:.1f} s  {label}")

    def _write(self, text: str) -> None:
        """Replace the line. Spaces delete the rest of it: notebooks know no other way."""
        if not self._is_shown:
            return
        shown = text[: shutil.get_terminal_size().columns - 1]
        self._file.write(f"\r{shown.ljust(self._width)}")
        self._file.flush()
        self._width = len(shown)
