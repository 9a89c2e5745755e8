"""Garbage collection among the objects of thousands of tests."""

from __future__ import annotations

import gc

__all__ = ["freeze_objects"]


def freeze_objects() -> None:
    """Exclude all objects that exist from collections, which then take milliseconds.

    For good: all that earlier tests have made would make each later collection take seconds.
    """
    gc.collect()
    gc.freeze()
