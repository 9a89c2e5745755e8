"""Pools of a fake CPU against those of a real one: every number is equal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.allocation_traces import all_traces
from nbrt.backends.cpu.memory import PinnedPool
from nbrt.backends.cpu.properties import cpu_properties
from nbrt.backends.fake.memory import POOL_KINDS, DeviceMemory, make_pool
from nbrt.backends.registry import get_interface_for_device
from nbrt.backends.synchronous import SynchronousQueue
from nbrt.errors import OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helpers.allocation_traces import Event

KIB = 1 << 10
MIB = 1 << 20
QUEUE = SynchronousQueue(0)
TRACES = all_traces()

kinds = pytest.mark.parametrize("kind", POOL_KINDS["cpu"])


def numbers(pool: Any) -> tuple[object, ...]:
    """Return what a pool says, but for the addresses."""
    segments = sorted((each.nbytes, each.is_small) for each in pool.segments())
    return pool.reserved(), pool.segment_counts(), segments


def both(kind: str) -> tuple[Any, Any]:
    real: Any = get_interface_for_device("cpu").create_pool(0, kind, {})
    if kind == "pinned":
        real = PinnedPool(locker=lambda address, nbytes: None)  # locked pages take real memory
    return real, make_pool(DeviceMemory("cpu", cpu_properties()), kind, {})


def allocate(pool: Any, nbytes: int) -> Any:
    """Return a block, or the message of the error."""
    try:
        return pool.allocate(QUEUE, nbytes)
    except OutOfMemoryError as error:
        return str(error)


def replay(events: Sequence[Event], pools: Sequence[Any]) -> None:
    """Allocate and free in all pools, and compare them after each event."""
    blocks: dict[int, list[Any]] = {}
    for number, event in enumerate(events):
        if event.nbytes:
            made = blocks[event.block] = [pool.allocate(QUEUE, event.nbytes) for pool in pools]
            assert len({block.nbytes for block in made}) == 1
        else:
            for pool, block in zip(pools, blocks.pop(event.block), strict=True):
                pool.deallocate(QUEUE, block)
        first, *others = [(pool.reserved(), pool.segment_counts()) for pool in pools]
        assert all(other == first for other in others), (number, event)
    assert len({repr(numbers(pool)) for pool in pools}) == 1


@kinds
@pytest.mark.parametrize("name", TRACES)
def test_traces_reserve_the_same(name: str, kind: str) -> None:
    if kind == "plain" and len(TRACES[name]) > 20_000:
        pytest.skip("a mapping for each block of a long trace takes long")
    replay(TRACES[name], both(kind))


sizes = st.one_of(
    st.integers(1, 4 * KIB),
    st.sampled_from([KIB, 64 * KIB, MIB, MIB + 1, 3 * MIB, 8 * MIB, 20 * MIB]),
    st.integers(1, 40 * MIB),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), sizes),
        st.tuples(st.just("free"), st.integers(0, 99)),
        st.tuples(st.sampled_from(["empty", "limit", "unlimit"]), st.integers(1, 100 * MIB)),
    ),
    max_size=80,
)


@kinds
@given(program=steps)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_programs_reserve_the_same(kind: str, program: list[tuple[str, int]]) -> None:
    pools = both(kind)
    blocks: list[list[Any]] = []
    for action, number in program:
        if action == "allocate":
            made = [allocate(pool, number) for pool in pools]
            assert len({block if isinstance(block, str) else block.nbytes for block in made}) == 1
            if not isinstance(made[0], str):
                blocks.append(made)
        elif action == "free" and blocks:
            for pool, block in zip(pools, blocks.pop(number % len(blocks)), strict=True):
                pool.deallocate(QUEUE, block)
        else:
            for pool in pools:
                if action == "empty":
                    pool.empty_cache()
                else:
                    pool.set_limit(number if action == "limit" else None)
        assert numbers(pools[0]) == numbers(pools[1])
