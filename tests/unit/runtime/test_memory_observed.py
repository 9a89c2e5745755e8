"""Hooks change nothing about memory: the same blocks and segments are used as without them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nbrt
from nbrt.errors import OutOfMemoryError
from nbrt.runtime.commands import install_hook

if TYPE_CHECKING:
    from nbrt.runtime.commands import Command, RuntimeEvent

pytestmark = pytest.mark.usefixtures("no_garbage")

DEVICE = "cpu:2"
KIB = 1 << 10
MIB = 1 << 20


class Silent:
    """A hook that does nothing."""

    def before(self, stream: nbrt.Stream, command: Command) -> None: ...

    def after(self, stream: nbrt.Stream, command: Command, result: Any) -> None: ...

    def on_event(self, event: RuntimeEvent) -> None: ...


def run(program: list[tuple[str, int]], kind: str, *, is_hooked: bool) -> list[object]:
    """Return what a new pool says at the end, and where each array began, from the first."""
    arrays: list[Any] = []
    starts: list[int] = []
    with (
        install_hook(Silent()) if is_hooked else nullcontext(),
        nbrt.MemoryPool(DEVICE, kind) as pool,
        nbrt.memory.use_pool(pool),
    ):
        for action, number in program:
            if action == "allocate":
                try:
                    arrays.append(nbrt.empty(number, "uint8", device=DEVICE))
                except OutOfMemoryError:
                    starts.append(-1)
                else:
                    starts.append(arrays[-1].ctypes.data)
            elif action == "limit":
                pool.limit = number * MIB
            elif arrays:
                del arrays[number % len(arrays)]
        stats = pool.stats()
        arrays.clear()
    numbers: dict[int, int] = {}
    return [stats, [numbers.setdefault(start, len(numbers)) for start in starts]]


sizes = st.sampled_from(
    [1, 100, 700, 5 * KIB, 9 * KIB, 100 * KIB, 500 * KIB, MIB, MIB + 1, 2 * MIB, 3 * MIB, 9 * MIB]
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), sizes),
        st.tuples(st.just("free"), st.sampled_from([-1, -1, 0, 1, 7])),
        st.tuples(st.just("limit"), st.integers(20, 60)),
    ),
    max_size=120,
)


@pytest.mark.parametrize("kind", ["caching", "expandable"])
@given(program=steps)
@settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
def test_blocks_are_those_of_an_unobserved_run(kind: str, program: list[tuple[str, int]]) -> None:
    assert run(program, kind, is_hooked=True) == run(program, kind, is_hooked=False)


class Refusing(Silent):
    """A hook that fails on some calls."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.is_armed = False

    def after(self, stream: nbrt.Stream, command: Command, result: Any) -> None:
        if self.is_armed and command.kind == "allocate":
            raise self.error


def test_an_interrupt_in_a_hook_loses_no_block_that_was_used_again() -> None:
    hook = Refusing(KeyboardInterrupt())
    with nbrt.MemoryPool(DEVICE) as pool, nbrt.memory.use_pool(pool), install_hook(hook):
        first = nbrt.empty(2 * MIB, "uint8", device=DEVICE)
        start = first.ctypes.data
        del first
        hook.is_armed = True
        with pytest.raises(KeyboardInterrupt):
            nbrt.empty(2 * MIB, "uint8", device=DEVICE)
        hook.is_armed = False
        assert pool.memory_allocated() == 0
        again = nbrt.empty(2 * MIB, "uint8", device=DEVICE)
        assert again.ctypes.data == start
        stats = pool.stats()
        assert (stats["active.all.allocated"], stats["active.all.current"]) == (3, 1)


def test_a_dtype_that_no_array_can_have_frees_the_block_that_was_used_again() -> None:
    with nbrt.MemoryPool(DEVICE) as pool, nbrt.memory.use_pool(pool), install_hook(Silent()):
        first = nbrt.empty(2 * MIB, "uint8", device=DEVICE)
        del first
        with pytest.raises(Exception, match="object"):
            nbrt.empty(2 * MIB // 8, object, device=DEVICE)
        assert pool.memory_allocated() == 0
        assert nbrt.empty(2 * MIB, "uint8", device=DEVICE).nbytes == pool.memory_allocated()
