# mypy: disable-error-code="no-untyped-def"
"""Kernels whose threads spin on values that other threads write, with the expected results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import cuda, float32, int32, int64

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CASES", "DEADLOCKS", "Case", "line_of"]


@dataclass(frozen=True)
class Case:
    """A launch, and what its last argument holds behind it."""

    name: str
    kernel: Callable[..., object]
    grid: int
    block: int
    make: Callable[[], tuple[Any, ...]]
    expected: Any

    def check(self, run: Callable[..., object]) -> None:
        """Run it with fresh arguments; `run` takes kernel, grid, block and the arguments."""
        arguments = self.make()
        run(self.kernel, self.grid, self.block, *arguments)
        np.testing.assert_array_equal(arguments[-1], self.expected)


def _i(*shape: int) -> Any:
    return np.zeros(shape, np.int32)


def specialised(x, producer, out):
    data = cuda.shared.array(64, float32)
    ready = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 0:
        ready[0] = 0
    cuda.syncthreads()
    half = cuda.blockDim.x // 2
    lane = t % half
    if t // half == producer:
        data[lane] = x[lane] * 2
        cuda.threadfence_block()
        cuda.atomic.add(ready, 0, 1)
    else:
        while cuda.atomic.add(ready, 0, 0) < half:
            pass
        out[lane] = data[half - 1 - lane]


def float_flag(x, producer, flag, out):
    half = cuda.blockDim.x // 2
    t = cuda.threadIdx.x
    if t // half == producer:
        out[t % half] = x[t % half] * 2
        cuda.threadfence()
        cuda.atomic.add(flag, 0, 1)
    else:
        while cuda.atomic.add(flag, 0, 0) < half:
            pass
        cuda.atomic.add(out, t % half, 1)


def plain_lanes(flags, waiters, out):
    """Lanes of one warp wait for each other, by plain loads without any fence."""
    t = cuda.threadIdx.x
    if t % 2 == waiters:
        while flags[t ^ 1] == 0:
            pass
        out[t] = flags[t ^ 1]
    else:
        flags[t] = t + 1


def kinds(flag, kind, out):
    """Wait by each kind of atomic operation, in a device function, with nanosleep and syncwarp."""
    t = cuda.threadIdx.x
    if t == cuda.blockDim.x - 1:
        cuda.atomic.exch(flag, 0, 1)
    elif kind == 0:
        while cuda.atomic.or_(flag, 0, 0) == 0:
            cuda.threadfence()
    elif kind == 1:
        while cuda.atomic.max(flag, 0, 0) == 0:
            cuda.nanosleep(20)
    elif kind == 2:
        while cuda.atomic.cas(flag, 0, 1, 1) != 1:
            cuda.threadfence_block()
    elif kind == 3:
        wait_for(flag)
    elif kind == 4:
        while not cuda.any_sync(1 << (t % 32), cuda.ldcv(flag, 0)):
            pass
    else:
        # A handful of attempts at a time.
        done = False
        while not done:
            for _ in range(3):
                if cuda.atomic.add(flag, 0, 0) != 0:
                    done = True
    out[t] = cuda.atomic.add(flag, 0, 0)


@cuda.jit(device=True)
def wait_for(flag):
    while cuda.atomic.min(flag, 0, 9) == 0:
        cuda.nanosleep(8)


def grid_barriers(count, sense, x, out):
    """Pass a sense-reversing barrier of the grid, many times."""
    b, n = cuda.blockIdx.x, cuda.gridDim.x
    turn = 0
    for step in range(out.shape[0]):
        for phase in range(2):
            if phase == 0 and cuda.threadIdx.x == 0:
                x[b] += b + step
            elif phase == 1 and cuda.threadIdx.x == 0:
                out[step, b] = x[(b + 1) % n]
            cuda.syncthreads()
            turn = 1 - turn
            if cuda.threadIdx.x == 0:
                cuda.threadfence()
                if cuda.atomic.add(count, 0, 1) == n - 1:
                    cuda.atomic.exch(count, 0, 0)
                    cuda.threadfence()
                    cuda.atomic.exch(sense, 0, turn)
                else:
                    while cuda.atomic.add(sense, 0, 0) != turn:
                        pass
            cuda.syncthreads()


def _grid_barriers(blocks: int, steps: int) -> Any:
    numbers = np.arange(blocks)
    return np.roll(np.cumsum(numbers + np.arange(steps)[:, None], axis=0), -1, axis=1)


def look_back(x, state, own, prefix, out):
    """Scan over the grid in one launch: a block reads what those before it have got."""
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    before = cuda.shared.array(1, int64)
    i = b * cuda.blockDim.x + t
    if t == 0:
        total = 0
        for k in range(cuda.blockDim.x):
            total += x[i + k]
        own[b] = total
        cuda.threadfence()
        cuda.atomic.exch(state, b, 1)
        found = 0
        at = b - 1
        while at >= 0:
            seen = cuda.atomic.add(state, at, 0)
            if seen == 2:
                found += prefix[at]
                break
            if seen == 1:
                found += own[at]
                at -= 1
        prefix[b] = found + total
        cuda.threadfence()
        cuda.atomic.exch(state, b, 2)
        before[0] = found
    cuda.syncthreads()
    out[i] = before[0]


def ticket_lock(ticket, count):
    mine = cuda.atomic.add(ticket, 0, 1)
    while cuda.atomic.add(ticket, 1, 0) != mine:
        pass
    count[0] = count[0] * 3 + 1
    cuda.threadfence()
    cuda.atomic.add(ticket, 1, 1)


def backwards(flag, out):
    """Wait for the block that comes next."""
    b = cuda.blockIdx.x
    if b < cuda.gridDim.x - 1:
        while cuda.atomic.add(flag, b + 1, 0) == 0:
            pass
    out[b] = cuda.threadIdx.x + 1
    cuda.atomic.exch(flag, b, 1)


def barriers_in_turns(flag, out):
    """Wait, all threads of a block together, for another block."""
    b = cuda.blockIdx.x
    if b == cuda.gridDim.x - 1:
        if cuda.threadIdx.x == 0:
            cuda.atomic.exch(flag, 0, 7)
    else:
        while cuda.syncthreads_or(cuda.atomic.add(flag, 0, 0)) == 0:
            pass
    out[cuda.grid(1)] = cuda.atomic.add(flag, 0, 0)


def counted_attempts(flag, attempts, out):
    """Change memory in every turn, as a livelock does."""
    b = cuda.blockIdx.x
    if b < cuda.gridDim.x - 1:
        while cuda.atomic.add(flag, 0, 0) == 0:
            attempts[b] += 1
    else:
        cuda.atomic.exch(flag, 0, 1)
    out[b] = 1


def grid_and_flag(flag, x, out):
    """Use the grid's own barrier and a flag between blocks."""
    grid = cuda.cg.this_grid()
    b = cuda.blockIdx.x
    if cuda.threadIdx.x == 0:
        if b == 0:
            while cuda.atomic.add(flag, 0, 0) < cuda.gridDim.x - 1:
                pass
        else:
            cuda.atomic.add(flag, 0, 1)
        x[b] = b + 1
    grid.sync()
    out[cuda.grid(1)] = x[(b + 1) % cuda.gridDim.x]


def _f(n: int) -> Any:
    return np.arange(n, dtype=np.float32)


def _thirds(n: int) -> list[int]:
    value = 0
    for _ in range(n):
        value = (value * 3 + 1) & 0xFFFFFFFF
    return [np.uint32(value).astype(np.int32)]


CASES = [
    *(
        Case(f"specialised-{n}-{who}", specialised, 1, n, make, np.arange(n // 2)[::-1] * 2)
        for n in (64, 6)
        for who, make in (
            ("first", lambda n=n: (_f(n), 0, np.zeros(n // 2, np.float32))),
            ("second", lambda n=n: (_f(n), 1, np.zeros(n // 2, np.float32))),
        )
    ),
    *(
        Case(
            f"float_flag-{producer}",
            float_flag,
            1,
            64,
            lambda producer=producer: (
                *(_f(32), producer),
                *(np.zeros(1, np.float32), np.zeros(32, np.float32)),
            ),
            np.arange(32) * 2 + 1,
        )
        for producer in (0, 1)
    ),
    *(
        Case(
            f"plain_lanes-{waiters}",
            plain_lanes,
            1,
            32,
            lambda waiters=waiters: (_i(32), waiters, _i(32)),
            np.where(np.arange(32) % 2 == waiters, (np.arange(32) ^ 1) + 1, 0),
        )
        for waiters in (0, 1)
    ),
    *(
        Case(f"kinds-{kind}", kinds, 1, 40, lambda kind=kind: (_i(1), kind, _i(40)), np.ones(40))
        for kind in range(6)
    ),
    *(
        Case(
            f"grid_barriers-{blocks}-{steps}",
            grid_barriers,
            blocks,
            4,
            lambda blocks=blocks, steps=steps: (
                *(_i(1), _i(1), np.zeros(blocks, np.int64)),
                np.zeros((steps, blocks), np.int64),
            ),
            _grid_barriers(blocks, steps),
        )
        for blocks, steps in ((1, 2), (2, 3), (7, 3))
    ),
    Case(
        "look_back",
        look_back,
        9,
        4,
        lambda: (
            *(np.arange(36), _i(9), np.zeros(9, np.int64), np.zeros(9, np.int64)),
            np.zeros(36, np.int64),
        ),
        np.repeat(np.concatenate([[0], np.cumsum(np.arange(36))[3:-1:4]]), 4),
    ),
    Case("ticket_lock", ticket_lock, 20, 3, lambda: (_i(2), _i(1)), _thirds(60)),
    Case("backwards", backwards, 13, 1, lambda: (_i(13), _i(13)), np.ones(13)),
    Case("barriers_in_turns", barriers_in_turns, 3, 6, lambda: (_i(1), _i(18)), np.full(18, 7)),
    Case("counted_attempts", counted_attempts, 6, 1, lambda: (_i(1), _i(6), _i(6)), np.ones(6)),
    Case(
        "grid_and_flag",
        grid_and_flag,
        5,
        3,
        lambda: (_i(1), _i(5), _i(15)),
        np.repeat([2, 3, 4, 5, 1], 3),
    ),
]


def never_set(flag, out):
    while flag[0] == 0:  # waits
        pass
    out[cuda.grid(1)] = 1


def behind_a_barrier(flag, out):
    """Wait for a flag that is set behind the barrier at which the others wait."""
    if cuda.threadIdx.x == 0:
        while cuda.atomic.add(flag, 0, 0) == 0:  # waits
            pass
    cuda.syncthreads()
    if cuda.threadIdx.x == 1:
        cuda.atomic.exch(flag, 0, 1)
    out[cuda.grid(1)] = 1


def taken_twice(flag, out):
    """Take a lock that the thread has already."""
    if cuda.grid(1) == 0:
        take(flag)
        take(flag)
        cuda.atomic.exch(flag, 0, 0)
    out[cuda.grid(1)] = 1


def take_once(flag):
    while cuda.atomic.cas(flag, 0, 0, 1) != 0:  # waits
        cuda.nanosleep(8)


take = cuda.jit(device=True)(take_once)


def one_is_missing(flag, out):
    """Wait, in a barrier of the grid made by hand, for a block that does not come."""
    if cuda.blockIdx.x != 1:
        cuda.atomic.add(flag, 0, 1)
        while cuda.atomic.add(flag, 0, 0) < cuda.gridDim.x * cuda.blockDim.x:  # waits
            pass
    out[cuda.grid(1)] = 1


def lanes_apart(flag, out):
    """Wait in a warp operation for a lane that waits for what comes after it."""
    if cuda.threadIdx.x == 0:
        while cuda.atomic.max(flag, 0, 0) == 0:  # waits
            pass
    cuda.syncwarp()
    cuda.atomic.exch(flag, 0, 1)
    out[cuda.grid(1)] = 1


DEADLOCKS = [
    (never_set, never_set),
    (behind_a_barrier, behind_a_barrier),
    (taken_twice, take_once),
    (one_is_missing, one_is_missing),
    (lanes_apart, lanes_apart),
]
"""Kernels, and the function whose line, marked "waits", their threads wait at."""


def line_of(function: Callable[..., object]) -> str:
    """Return ``FILE:LINE`` of the line of a function that is marked "waits"."""
    code = function.__code__
    with open(code.co_filename, encoding="utf-8") as file:
        lines = file.read().splitlines()
    first = code.co_firstlineno
    found = next(n for n, text in enumerate(lines[first - 1 :], first) if text.endswith("# waits"))
    return f"{code.co_filename}:{found}"
