"""Tools for testing code that runs on nbrt: latches that hold a stream, recorders of commands."""

from __future__ import annotations

from nbrt.testing.latch import Latch
from nbrt.testing.recorder import CommandRecorder, RecordedCommand

__all__ = ["CommandRecorder", "Latch", "RecordedCommand"]
