"""Memory that other processes open by a handle: pages of a memory file of Linux.

`SharedBlocks.share` moves the pages of a block into a memory file, in place: addresses stay valid.
Another process of the same user opens the file through ``/proc``; the system deletes it with the
last process that maps it.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nbrt.compat.numba_cuda.driver.results import DriverCallError

if TYPE_CHECKING:
    from nbrt.compat.numba_cuda.driver.blocks import Blocks
    from nbrt.compat.numba_cuda.driver.streams import Streams
    from nbrt.runtime.event import Event

__all__ = ["HANDLE_BYTES", "PAGE", "CUipcMemHandle", "SharedBlocks", "can_share"]

PAGE = mmap.PAGESIZE
HANDLE_BYTES = 64
"""``CU_IPC_HANDLE_SIZE``."""

_LAYOUT = struct.Struct("<4sIIQQ")
"""A mark, process, file descriptor, inode and bytes of the block."""

_MARK = b"nbrt"
_MAP_FIXED = 0x10
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


def can_share() -> bool:
    """Return whether the system has memory files."""
    return hasattr(os, "memfd_create")


class CUipcMemHandle:
    """A handle of memory for other processes."""

    def __init__(self) -> None:
        self.reserved: Any = bytes(HANDLE_BYTES)

    def __bytes__(self) -> bytes:
        return bytes(self.reserved)


class _Export(NamedTuple):
    file: int
    nbytes: int


class _Retired(NamedTuple):
    address: int
    export: _Export
    block: Any
    pending: list[Event]


class SharedBlocks:
    """The blocks that this process shares, and those of other processes that it has open.

    Parameters
    ----------
    device : Blocks
        Memory of devices. A block begins at a page, and no other memory is in its pages.
    streams : Streams
        Their work may still use a block that is freed.
    """

    def __init__(self, device: Blocks, streams: Streams) -> None:
        self._device = device
        self._streams = streams
        self._exports: dict[int, _Export] = {}
        self._opened: set[int] = set()
        self._retired: list[_Retired] = []
        self._pid = os.getpid()

    def share(self, address: Any) -> CUipcMemHandle:
        """Return the handle of the block at an address."""
        found = self._device.find(int(address))
        if found is None:
            raise DriverCallError("INVALID_VALUE")
        if not can_share() or found[0] in self._opened or found[0] % PAGE:
            raise DriverCallError("NOT_SUPPORTED")
        start, nbytes, _ = found
        self._release_idle()
        export = self._exports.get(start)
        if export is None:
            self._streams.synchronize_all()
            export = self._exports[start] = _into_file(start, -(-nbytes // PAGE) * PAGE)
        inode = os.fstat(export.file).st_ino
        handle = CUipcMemHandle()
        fields = _LAYOUT.pack(_MARK, os.getpid(), export.file, inode, nbytes)
        handle.reserved = fields.ljust(HANDLE_BYTES, b"\0")
        return handle

    def open(self, handle: Any, flags: Any = 0) -> int:  # noqa: ARG002  # the driver's signature
        """Map a block of another process; return its address."""
        text = bytes(handle.reserved)
        if len(text) != HANDLE_BYTES:
            raise DriverCallError("INVALID_VALUE")
        mark, process, file, inode, nbytes = _LAYOUT.unpack(text[: _LAYOUT.size])
        if mark != _MARK:
            raise DriverCallError("INVALID_VALUE")
        try:
            descriptor = os.open(f"/proc/{process}/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # the process has ended or freed the block, or is another user's
            raise DriverCallError("INVALID_HANDLE") from None
        try:
            if os.fstat(descriptor).st_ino != inode:
                raise DriverCallError("INVALID_HANDLE")
            mapping = mmap.mmap(descriptor, -(-nbytes // PAGE) * PAGE, mmap.MAP_SHARED)
        finally:
            os.close(descriptor)
        block = np.frombuffer(mapping, np.uint8, nbytes)
        address = int(block.ctypes.data)
        self._device.add(address, nbytes, block)
        self._opened.add(address)
        return address

    def close(self, address: Any) -> None:
        """Forget a block that `open` mapped; work that is queued may still use it."""
        start = int(address)
        if start not in self._opened:
            raise DriverCallError("INVALID_VALUE")
        self._opened.remove(start)
        self._device.remove(start)

    def withdraw(self, address: int, block: Any) -> None:
        """Stop sharing a block that is freed; its owner is `block`."""
        if not self._exports:
            return
        export = self._exports.pop(address, None)
        if export is not None and os.getpid() == self._pid:
            # A process that still has it open must not see what its memory is used for next.
            self._retired.append(_Retired(address, export, block, self._streams.events_of_busy()))
            del block
            self._release_idle()

    def _release_idle(self) -> None:
        for retired in list(self._retired):
            if all(event.query() for event in retired.pending) and retired in self._retired:
                self._retired.remove(retired)
                _map(retired.address, retired.export.nbytes, _PRIVATE, -1)
                os.close(retired.export.file)


def _into_file(address: int, nbytes: int) -> _Export:
    """Move pages into a new memory file, in place."""
    file = os.memfd_create("nbrt", os.MFD_CLOEXEC)
    try:
        os.fchmod(file, 0o600)
        content = memoryview((ctypes.c_uint8 * nbytes).from_address(address)).cast("B")
        done = 0
        while done < nbytes:
            done += os.pwrite(file, content[done:], done)
        _map(address, nbytes, mmap.MAP_SHARED, file)
    except OSError as error:
        os.close(file)
        raise DriverCallError("OUT_OF_MEMORY") from error
    return _Export(file, nbytes)


def _map(address: int, nbytes: int, flags: int, file: int) -> None:
    access = mmap.PROT_READ | mmap.PROT_WRITE
    result = _mmap()(address, nbytes, access, flags | _MAP_FIXED, file, 0)
    if result != address:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@functools.cache
def _mmap() -> Any:
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_size_t
    number, size = ctypes.c_int, ctypes.c_size_t
    function.argtypes = [size, size, number, number, number, ctypes.c_long]
    return function
