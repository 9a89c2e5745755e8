"""Anonymous mappings of the operating system, and what can be asked of their pages."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import sys
from functools import cache
from typing import Any

import numpy as np

__all__ = [
    "HUGE_PAGE",
    "MAPPING_ERRORS",
    "PAGE",
    "address_of",
    "discard",
    "forbid",
    "lock_pages",
    "map_segment",
    "reserve_segment",
]

PAGE = mmap.PAGESIZE
HUGE_PAGE = 2 << 20
MAPPING_ERRORS = (OSError, OverflowError, MemoryError, ValueError)
"""What `mmap.mmap` raises where the system refuses a mapping, or its size is beyond all systems."""

# Private: mmap's default would share the pages with forked children, and shared memory gets no huge
# pages on most systems.
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
# Python has the name since 3.13; the value is Linux's on x86, ARM and RISC-V.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


def map_segment(nbytes: int) -> mmap.mmap:
    """Map zeroed memory, which has pages once it is touched; raises one of `MAPPING_ERRORS`."""
    mapping = mmap.mmap(-1, nbytes, flags=_FLAGS)
    _advise_huge(mapping, nbytes)
    return mapping


def reserve_segment(nbytes: int) -> mmap.mmap:
    """Map addresses that count as memory once they are touched; raises one of `MAPPING_ERRORS`."""
    mapping = mmap.mmap(-1, nbytes, flags=_FLAGS | _NO_RESERVE)
    _advise_huge(mapping, nbytes)
    return mapping


def address_of(mapping: mmap.mmap) -> int:
    """Return where a mapping begins."""
    return int(np.ndarray((1,), np.uint8, mapping).ctypes.data)


def discard(mapping: mmap.mmap, offset: int, nbytes: int) -> None:
    """Give the pages of a part back to the system; it reads as zeros when it is touched again."""
    mapping.madvise(mmap.MADV_DONTNEED, offset, nbytes)


def forbid(address: int, nbytes: int) -> None:
    """Let every access to these pages fault."""
    _call("mprotect", address, nbytes, 0)


def lock_pages(address: int, nbytes: int) -> str | None:
    """Keep pages in memory until they are unmapped; return why not, if the system refuses."""
    try:
        _call("mlock", address, nbytes)
    except OSError as error:
        most = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        limit = "" if most == resource.RLIM_INFINITY else f"; RLIMIT_MEMLOCK is {most} bytes"
        return f"the system refused to lock {nbytes} bytes: {error.strerror}{limit}"
    return None


def _advise_huge(mapping: mmap.mmap, nbytes: int) -> None:
    if nbytes >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        # 512 times fewer faults at first touch. Refused on some kernels; harmless.
        with contextlib.suppress(OSError):
            mapping.madvise(mmap.MADV_HUGEPAGE)


def _call(name: str, address: int, nbytes: int, *args: int) -> None:
    if _library()[name](ctypes.c_void_p(address), ctypes.c_size_t(nbytes), *args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@cache
def _library() -> Any:
    return ctypes.CDLL(None, use_errno=True)
