"""What checked mode looks for, and what an access can be."""

from __future__ import annotations

from enum import IntEnum, StrEnum

__all__ = ["Access", "Kind", "SiteKind"]


class Access(IntEnum):
    """What is done with an element."""

    READ = 0
    WRITE = 1
    ATOMIC = 2
    FILL = 3
    """Written by code that cannot be looked into: initialised from now on."""


class Kind(IntEnum):
    """What a report is about."""

    OUT_OF_BOUNDS = 1
    NEGATIVE_INDEX = 2
    INDEX_OVERFLOW = 3
    UNINITIALISED = 4
    RACE = 5
    BARRIER = 6
    WARP = 7
    DYNAMIC_SHARED = 8
    LIMITS = 9


class SiteKind(StrEnum):
    """What stands at a place in a kernel."""

    READ = "read"
    WRITE = "write"
    ATOMIC = "atomic"
    ARITHMETIC = "arithmetic"
    LOCAL = "local array"
    SHARED = "shared array"
    BARRIER = "barrier"
    WARP = "warp operation"
