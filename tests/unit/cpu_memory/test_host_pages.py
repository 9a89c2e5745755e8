"""The pages of each pool, as the operating system counts them."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from helpers.allocation_traces import SYNTHETIC
from nbrt.backends.cpu.memory import ExpandablePool, HostBlock, PinnedPool, PlainPool, mapping
from nbrt.backends.cpu.memory.mapping import PAGE, lock_pages, reserve_segment

if TYPE_CHECKING:
    import mmap

MIB = 1 << 20
LIBRARY = ctypes.CDLL(None, use_errno=True)

on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="reads /proc, and other systems free pages when they want"
)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE


def faults(address: int) -> bool:
    """Return whether a byte can be read, as the kernel sees it: no signal if not."""
    reader, writer = os.pipe()
    try:
        return LIBRARY.write(writer, ctypes.c_void_p(address), ctypes.c_size_t(1)) != 1
    finally:
        os.close(reader)
        os.close(writer)


def touched(pool: ExpandablePool, nbytes: int) -> HostBlock:
    block = pool.allocate(None, nbytes)
    block.handle(None)[::PAGE] = 1
    return block


@on_linux
def test_memory_that_is_given_back_leaves_the_process() -> None:
    pool = ExpandablePool()
    before = resident()
    block = touched(pool, 64 * MIB)
    assert resident() - before > 60 * MIB
    pool.deallocate(None, block)
    assert resident() - before > 60 * MIB
    pool.empty_cache()
    assert resident() - before < 4 * MIB


@on_linux
def test_a_pool_that_grows_gives_back_what_did_not_fit() -> None:
    pool = ExpandablePool()
    before = resident()
    first, kept = touched(pool, 32 * MIB), touched(pool, 2 * MIB)
    pool.deallocate(None, first)
    second = touched(pool, 64 * MIB)
    assert pool.reserved() <= 1.1 * 66 * MIB
    assert resident() - before <= 1.1 * 66 * MIB
    assert (kept.handle(None)[::PAGE] == 1).all()
    committed = [each.nbytes for each in pool.segments()]
    assert sum(committed) == pool.reserved()
    # What was given back is the hole that the next block of its size is put into.
    third = touched(pool, 32 * MIB)
    assert third.address + 32 * MIB == kept.address
    assert second.address == kept.address + 2 * MIB


def test_a_block_grows_into_the_hole_behind_what_is_free() -> None:
    pool = ExpandablePool()
    address = 0
    for size in range(4, 64, 4):
        block = pool.allocate(None, size * MIB)
        address = address or block.address
        assert block.address == address
        assert pool.reserved() == size * MIB
        pool.deallocate(None, block)


@pytest.mark.parametrize("name", SYNTHETIC)
def test_little_more_is_reserved_than_was_ever_in_use(name: str) -> None:
    pool = ExpandablePool()
    pool._capacity = 1 << 40
    blocks: dict[int, HostBlock] = {}
    in_use = peak = most = 0
    for block, nbytes, _ in SYNTHETIC[name]():
        if nbytes:
            blocks[block] = pool.allocate(None, nbytes)
            in_use += blocks[block].nbytes
        else:
            in_use -= blocks[block].nbytes
            pool.deallocate(None, blocks.pop(block))
        peak, most = max(peak, in_use), max(most, pool.reserved())
    assert peak > 300 * MIB
    assert most <= 1.1 * peak


def test_several_reservations_where_one_is_refused() -> None:
    made: list[int] = []

    def reserver(nbytes: int) -> mmap.mmap:
        if nbytes > 40 * MIB:
            raise OSError(12, "the test refuses")
        made.append(nbytes)
        return reserve_segment(nbytes)

    pool = ExpandablePool(reserver=reserver)
    blocks = [pool.allocate(None, 12 * MIB) for _ in range(8)]
    assert len(made) > 1
    spans = sorted((block.address, block.address + block.nbytes) for block in blocks)
    for each in pool.segments():
        inside = [s for s in spans if each.address <= s[0] and s[1] <= each.address + each.nbytes]
        assert inside
        spans = [span for span in spans if span not in inside]
    assert spans == []
    for block in blocks:
        pool.deallocate(None, block)
    pool.empty_cache()
    assert pool.reserved() == 0


@on_linux
def test_a_guarded_block_ends_where_the_system_stops_everybody() -> None:
    pool = PlainPool(guard=True)
    for nbytes in (64, 100, PAGE, 3 * PAGE - 64, 2 * MIB):
        block = pool.allocate(None, nbytes)
        assert not faults(block.address)
        assert not faults(block.address + block.nbytes - 1)
        assert faults(block.address + block.nbytes)
        assert block.nbytes - nbytes < 64


@on_linux
def test_a_plain_block_is_gone_when_its_arrays_are() -> None:
    pool = PlainPool()
    block = pool.allocate(None, 3 * MIB)
    array = np.ndarray((8,), np.uint8, block.handle(object()))
    address = block.address
    pool.deallocate(None, block)
    assert not faults(address)
    del array
    assert faults(address)


def locked_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(r"^VmLck:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


@on_linux
def test_pinned_memory_is_locked_or_says_why_not() -> None:
    pool = PinnedPool()
    before = locked_bytes()
    block = pool.allocate(None, 3 * MIB)
    if pool.is_page_locked:
        assert locked_bytes() - before == 3 * MIB
        assert pool.why_not is None
    else:
        assert "refused to lock" in (pool.why_not or "")
    pool.deallocate(None, block)
    pool.empty_cache()
    assert locked_bytes() == before


@on_linux
def test_pinned_pages_are_locked_when_they_are_touched() -> None:
    """The pool touches none of them, so a block costs what its user writes."""
    pool = PinnedPool()
    if not pool.is_page_locked or not hasattr(LIBRARY, "mlock2"):
        pytest.skip("this system does not lock pages at their first touch")
    locked, before = locked_bytes(), resident()
    block = pool.allocate(None, 64 * MIB)
    if not pool.is_page_locked:
        pytest.skip(str(pool.why_not))
    assert locked_bytes() - locked == 64 * MIB
    assert resident() - before < 4 * MIB
    block.handle(None)[:] = 1
    assert resident() - before > 60 * MIB


@on_linux
@pytest.mark.parametrize("number", [None, errno.ENOSYS, errno.EINVAL])
def test_a_system_without_locks_at_first_touch_locks_at_once(
    number: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old C library has no such function, an old kernel refuses it."""
    call = mapping._call

    def old(name: str, address: int, nbytes: int, *rest: object) -> None:
        if name == "mlock2":
            raise AttributeError(name) if number is None else OSError(number, "old")
        call(name, address, nbytes, *rest)

    monkeypatch.setattr(mapping, "_call", old)
    before = resident()
    pool = PinnedPool()
    block = pool.allocate(None, 16 * MIB)
    if not pool.is_page_locked:
        pytest.skip(str(pool.why_not))
    assert resident() - before > 12 * MIB
    pool.deallocate(None, block)


def test_memory_that_may_not_be_locked_is_ordinary_memory() -> None:
    def locker(address: int, nbytes: int) -> str | None:
        return None if nbytes <= PAGE else "the test refuses"

    pool = PinnedPool(locker=locker)
    assert pool.is_page_locked
    block = pool.allocate(None, 100)
    assert (pool.is_page_locked, pool.why_not) == (False, "the test refuses")
    block.handle(None)[:] = 3


def test_a_refused_lock_names_the_limit_of_the_process() -> None:
    most = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    # Nothing is mapped at the first page, so that even those who may lock everything are refused.
    reason = lock_pages(0, PAGE)
    assert reason is not None
    assert f"refused to lock {PAGE} bytes" in reason
    assert (str(most) in reason) == (most != resource.RLIM_INFINITY)
