"""The address map against a dictionary of bytes; the accesses that a shadow block stores."""

from __future__ import annotations

import itertools
import random
from typing import cast

import numpy as np
import pytest

from nbrt._internal.callsite import CallSite
from nbrt._internal.device import Device
from nbrt.observe.races.footprint import Footprint, footprint_of
from nbrt.observe.races.shadow_blocks import (
    AccessMode,
    AddressMap,
    MemoryAccess,
    ShadowBlock,
    StreamKey,
    StreamName,
)
from nbrt.observe.races.shadow_memory import ShadowMemory

DEVICE = Device("cpu", 0)
A, B, C = (StreamName(StreamKey(DEVICE, name), f"stream {name}") for name in "abc")


def make_block(address: int, nbytes: int, stream: StreamName = A) -> ShadowBlock:
    return ShadowBlock(DEVICE, address, nbytes, stream, CallSite.here())


def access(
    shadow: ShadowMemory,
    mode: AccessMode,
    of: ShadowBlock,
    stream: StreamName,
    *,
    part: tuple[int, int] | None = None,
    is_recorded: bool = False,
) -> MemoryAccess:
    low, high = part or (0, of.nbytes)
    footprint = Footprint(
        of.address + low, of.address + high, of.address + low, (high - low,), (1,), 1
    )
    step = shadow.clocks.advance(stream.key)
    return MemoryAccess(mode, footprint, of, "copy", stream, CallSite.here(), is_recorded, step)


@pytest.mark.parametrize("seed", range(40))
def test_the_map_agrees_with_a_dictionary_of_bytes(seed: int) -> None:
    choose = random.Random(seed)
    known, model = AddressMap(), dict[int, ShadowBlock]()
    for _ in range(60):
        begin = choose.randrange(100)
        end = begin + choose.randrange(1, 30)
        owners = {model[byte] for byte in range(begin, end) if byte in model}
        assert {entry[2] for entry in known.find(begin, end)} == owners
        if choose.random() < 0.6:
            new = make_block(begin, end - begin)
            pieces = known.insert(new)
            taken = {byte: model[byte] for byte in range(begin, end) if byte in model}
            model.update(dict.fromkeys(range(begin, end), new))
        else:
            pieces = known.cut(begin, end)
            taken = {byte: model.pop(byte) for byte in range(begin, end) if byte in model}
        assert {byte: one for low, high, one in pieces for byte in range(low, high)} == taken
        assert {byte: one for low, high, one in known for byte in range(low, high)} == model


def test_a_reused_block_is_ordered_after_all_accesses_to_the_earlier_block() -> None:
    shadow = ShadowMemory()
    old = make_block(0, 64)
    shadow.allocate(old)
    shadow.record(access(shadow, "reads", old, B))
    shadow.free(old, CallSite.here(), ())
    new = make_block(0, 64)
    shadow.allocate(new)
    report = shadow.check(access(shadow, "writes", new, A))
    assert report is not None
    assert report.kind == "reuse_race"
    shadow.clocks.host_waits_for_stream(B.key)
    assert shadow.check(access(shadow, "writes", new, A)) is None


def test_a_block_without_accesses_inherits_those_of_earlier_blocks() -> None:
    shadow = ShadowMemory()
    blocks = [make_block(0, 64) for _ in range(3)]
    shadow.allocate(blocks[0])
    shadow.record(access(shadow, "writes", blocks[0], B))
    for old, new in itertools.pairwise(blocks):
        shadow.free(old, CallSite.here(), ())
        shadow.allocate(new)
    report = shadow.check(access(shadow, "reads", blocks[2], A))
    assert report is not None
    assert report.kind == "reuse_race"
    assert blocks[0].accesses == {}


@pytest.mark.parametrize("how", ["passed", "launch", "other stream"])
def test_what_the_pool_waits_for_is_not_handed_on(how: str) -> None:
    shadow = ShadowMemory()
    old = make_block(0, 64)
    shadow.allocate(old)
    shadow.record(access(shadow, "uses", old, B, is_recorded=how == "launch"))
    shadow.free(old, CallSite.here(), [B.key] if how == "passed" else [])
    new = make_block(0, 64, C if how == "other stream" else A)
    shadow.allocate(new)
    assert new.accesses == {}


def test_a_part_of_a_block_inherits_the_accesses_to_that_part() -> None:
    shadow = ShadowMemory()
    old = make_block(0, 128)
    shadow.allocate(old)
    shadow.record(access(shadow, "reads", old, B, part=(64, 128)))
    shadow.free(old, CallSite.here(), ())
    low, high = make_block(0, 64), make_block(64, 64)
    shadow.allocate(low)
    shadow.allocate(high)
    assert shadow.check(access(shadow, "writes", low, A)) is None
    assert shadow.check(access(shadow, "writes", high, A)) is not None


# What a kernel uses it may write, what a call uses it is trusted to read.
DOINGS = ("copy reads", "copy writes", "call uses", "launch updates", "launch uses")
MAY_MEET = {
    ("copy reads", "copy reads"),
    ("copy reads", "call uses"),
    ("call uses", "call uses"),
    ("launch updates", "launch updates"),
}


@pytest.mark.parametrize("first", DOINGS)
@pytest.mark.parametrize("second", DOINGS)
def test_on_a_block_in_use_writes_must_be_ordered(first: str, second: str) -> None:
    def doing(what: str, stream: StreamName) -> MemoryAccess:
        command, mode = what.split()
        made = access(shadow, cast("AccessMode", mode), block, stream)
        made.is_launch = command == "launch"
        return made

    shadow = ShadowMemory()
    block = make_block(0, 64)
    shadow.allocate(block)
    shadow.record(doing(first, A))
    report = shadow.check(doing(second, B))
    assert (report is None) == bool({(first, second), (second, first)} & MAY_MEET)
    assert shadow.check(doing(second, A)) is None
    if report is not None:
        assert report.kind == "unordered_use"


def test_a_reused_block_is_ordered_after_atomic_operations_too() -> None:
    shadow = ShadowMemory()
    old, new = make_block(0, 64), make_block(0, 64)
    shadow.allocate(old)
    shadow.record(access(shadow, "updates", old, B))
    shadow.free(old, CallSite.here(), ())
    shadow.allocate(new)
    report = shadow.check(access(shadow, "updates", new, A))
    assert report is not None
    assert report.kind == "reuse_race"


def test_memory_of_the_past_is_bounded() -> None:
    shadow = ShadowMemory()
    memory = np.zeros(4096, np.uint8)
    whole = footprint_of(memory)
    assert whole is not None
    for number in range(300):
        block = make_block(whole.begin, 4096)
        shadow.allocate(block)
        for place in range(number, number + 100):
            stream = (A, B, C)[place % 3]
            shadow.record(access(shadow, "writes", block, stream, part=(place, place + 1)))
        assert len(block.accesses) <= 64
        shadow.free(block, CallSite.here(), ())
    assert len(list(shadow.map)) == 1
