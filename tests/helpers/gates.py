"""`Gate`: holds the commands of a stream as a compilation does."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from helpers.clocks import HANG_TIMEOUT
from nbrt.runtime.deferral import defer

if TYPE_CHECKING:
    import nbrt


class Gate:
    """Stands for a compilation: commands behind it wait for `open`."""

    def __init__(self) -> None:
        self._is_open = threading.Event()

    def hold(self, stream: nbrt.Stream) -> None:
        defer(stream, self._wait)

    def open(self) -> None:
        self._is_open.set()

    def _wait(self) -> None:
        assert self._is_open.wait(HANG_TIMEOUT)
