"""The allocation traces of the benchmarks, for tests of pools."""

from __future__ import annotations

from pathlib import Path

import pytest

__all__ = ["SYNTHETIC", "Event", "all_traces", "load", "most_asked_for"]

with pytest.MonkeyPatch.context() as _patch:
    _patch.syspath_prepend(str(Path(__file__).resolve().parents[2]))
    from benchmarks.allocation_traces import (
        SYNTHETIC,
        Event,
        all_traces,
        load,
        most_asked_for,
    )
