"""Tools for tests of code that uses nbrt: latches for streams, recorders of commands."""

from __future__ import annotations

from nbrt.testing.latch import Latch
from nbrt.testing.recorder import CommandRecorder, RecordedCommand

__all__ = ["CommandRecorder", "Latch", "RecordedCommand"]
