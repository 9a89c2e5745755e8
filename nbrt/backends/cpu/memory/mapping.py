"""Anonymous mappings of the operating system, and operations on their pages."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import resource
import sys
from functools import cache
from typing import Any, Protocol

import numpy as np

__all__ = [
    "HUGE_PAGE",
    "MAPPING_ERRORS",
    "PAGE",
    "Mapping",
    "address_of",
    "discard",
    "lock_pages",
    "map_segment",
    "protect_none",
    "reserve_segment",
]

PAGE = mmap.PAGESIZE
HUGE_PAGE = 2 << 20
MAPPING_ERRORS = (OSError, OverflowError, MemoryError, ValueError)
"""The exceptions of `mmap.mmap` if the system refuses a mapping or cannot express its size."""

# Private: mmap's default would share the pages with forked children, and shared memory gets no huge
# pages on most systems.
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_MLOCK_ONFAULT = 1
# Python has the name since 3.13; the value is Linux's on x86, ARM and RISC-V.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


class Mapping(Protocol):
    """Addresses, with or without pages: `mmap.mmap`, or another buffer."""

    def madvise(self, option: int, start: int, length: int, /) -> None:
        """Apply an advice, such as `mmap.MADV_DONTNEED`, to the pages of a part."""
        ...


def map_segment(nbytes: int) -> mmap.mmap:
    """Map zeroed memory, which gets pages at first touch; raises one of `MAPPING_ERRORS`."""
    mapping = mmap.mmap(-1, nbytes, flags=_FLAGS)
    _advise_huge(mapping, nbytes)
    return mapping


def reserve_segment(nbytes: int) -> mmap.mmap:
    """Map addresses that count as memory at first touch; raises one of `MAPPING_ERRORS`."""
    mapping = mmap.mmap(-1, nbytes, flags=_FLAGS | _NO_RESERVE)
    _advise_huge(mapping, nbytes)
    return mapping


def address_of(mapping: Any) -> int:
    """Return the first address of a mapping."""
    return int(np.ndarray((1,), np.uint8, mapping).ctypes.data)


def discard(mapping: Mapping, offset: int, nbytes: int) -> None:
    """Return the pages of a part to the system; it reads as zeros afterwards."""
    mapping.madvise(mmap.MADV_DONTNEED, offset, nbytes)


def protect_none(address: int, nbytes: int) -> None:
    """Make every access to these pages fault."""
    _call("mprotect", address, nbytes, 0)


def lock_pages(address: int, nbytes: int) -> str | None:
    """Lock pages in memory until they are unmapped; return the reason of a refusal.

    On Linux each page is locked at its first touch. Elsewhere all pages are touched here.
    """
    try:
        if not _is_locked_on_fault(address, nbytes):
            _call("mlock", address, nbytes)
    except OSError as error:
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        hint = "" if limit == resource.RLIM_INFINITY else f"; RLIMIT_MEMLOCK is {limit} bytes"
        return f"the system refused to lock {nbytes} bytes: {error.strerror}{hint}"
    return None


def _is_locked_on_fault(address: int, nbytes: int) -> bool:
    """Lock pages from their first touch on; return False if the system has no such call.

    Raises
    ------
    OSError
        If the system refuses it.
    """
    try:
        _call("mlock2", address, nbytes, ctypes.c_uint(_MLOCK_ONFAULT))
    except AttributeError:  # the C library has no such function
        return False
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EINVAL):  # the kernel has none
            return False
        raise
    return True


def _advise_huge(mapping: mmap.mmap, nbytes: int) -> None:
    if nbytes >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        # 512 times fewer faults at first touch. Refused on some kernels; harmless.
        with contextlib.suppress(OSError):
            mapping.madvise(mmap.MADV_HUGEPAGE)


def _call(name: str, address: int, nbytes: int, *args: Any) -> None:
    if _library()[name](ctypes.c_void_p(address), ctypes.c_size_t(nbytes), *args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@cache
def _library() -> Any:
    return ctypes.CDLL(None, use_errno=True)
