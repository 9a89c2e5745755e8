"""Grids whose blocks wait for each other, shuffled order, and what the checked mode is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.coroutines import compiled, store, thread

RANK = """
  %gx.row = mul i32 %bid.z, %grid.y
  %gx.rows = add i32 %gx.row, %bid.y
  %gx.first = mul i32 %gx.rows, %grid.x
  %block = add i32 %gx.first, %bid.x
  %base = mul i32 %block, 8
  %me = add i32 %base, %tid.x
"""
# Heat along a ring: every round each thread takes its left neighbour's value, across blocks.
RING = f"""
entry:
  %own = call ptr @nbrt.shared.32.4.own()
  %dynamic = call ptr @nbrt.shared.dynamic()
  {RANK}
  %total = trunc i64 %count to i32
  %left0 = add i32 %me, %total
  %left1 = sub i32 %left0, 1
  %left = urem i32 %left1, %total
  %at = getelementptr i32, ptr %out, i32 %me
  %left.at = getelementptr i32, ptr %out, i32 %left
  %own.at = getelementptr i32, ptr %own, i32 %tid.x
  %dynamic.at = getelementptr i32, ptr %dynamic, i32 %tid.x
  br label %head
head:
  %round = phi i64 [ 0, %entry ], [ %next, %write ]
  %value = load i32, ptr %left.at
  store i32 %value, ptr %own.at
  store i32 %value, ptr %dynamic.at
  call void @nbrt.barrier()
  call void @nbrt.grid.sync()
  br label %write
write:
  %a = load i32, ptr %own.at
  %b = load i32, ptr %dynamic.at
  %same = icmp eq i32 %a, %b
  %kept = select i1 %same, i32 %a, i32 -1
  store i32 %kept, ptr %at
  call void @nbrt.grid.sync()
  %next = add i64 %round, 1
  %more = icmp slt i64 %next, %rounds
  br i1 %more, label %head, label %end
end:
  ret i32 0
"""


@pytest.mark.parametrize("grid", [(1, 1, 1), (7, 1, 1), (3, 2, 4)])
@pytest.mark.parametrize("order", ["linear", "seeded"])
def test_grid_sync_over_several_blocks(grid: tuple[int, int, int], order: Any) -> None:
    count = 8 * int(np.prod(grid))
    code = thread(RING, "ptr %out, i64 %count, i64 %rounds", 8)
    call = compiled(code, "grid", order=order)
    out, seed = np.arange(count, dtype=np.int32), 9 if order == "seeded" else None
    assert call(out, count, 5, grid=grid, dynamic=np.zeros(8, np.int32), seed=seed) == 0
    np.testing.assert_array_equal(out, np.roll(np.arange(count), 5))


def test_blocks_that_return_early_do_not_hold_up_the_grid() -> None:
    body = f"""
entry:
  {RANK}
  %odd.block = and i32 %bid.x, 1
  %leaves = icmp ne i32 %odd.block, 0
  br i1 %leaves, label %leave, label %wait
leave:
  ret i32 0
wait:
  call void @nbrt.grid.sync()
  %at = getelementptr i32, ptr %out, i32 %me
  store i32 1, ptr %at
  ret i32 0
"""
    out = np.zeros(40, np.int32)
    assert compiled(thread(body, block=8), "grid")(out, grid=(5, 1, 1)) == 0
    np.testing.assert_array_equal(out.reshape(5, 8), np.tile([[1], [0], [1], [0], [1]], 8)[:, :8])


def test_a_failing_thread_ends_the_grid() -> None:
    body = f"""
entry:
  {RANK}
  call void @nbrt.grid.sync()
  %bad = trunc i64 %which to i32
  %fails = icmp eq i32 %me, %bad
  br i1 %fails, label %raise, label %wait
raise:
  ret i32 2
wait:
  call void @nbrt.grid.sync()
  %at = getelementptr i32, ptr %out, i32 %me
  store i32 1, ptr %at
  ret i32 0
"""
    call = compiled(thread(body, "ptr %out, i64 %which", 8), "grid")
    out = np.zeros(96, np.int32)
    # Block 1 + 2 * (2 + 3 * 1) of a grid of 2 x 3 x 2 blocks
    assert call(out, 8 * 11 + 6, grid=(2, 3, 2)) == 2
    np.testing.assert_array_equal(call.where, [6, 0, 0, 1, 2, 1])
    assert not out.any()


# -- shuffled order -------------------------------------------------------------------------------

ORDER = """
entry:
  %turn = atomicrmw add ptr %counter, i32 1 monotonic
  %at = getelementptr i32, ptr %out, i32 %turn
  store i32 %tid.x, ptr %at
  call void @nbrt.barrier()
  %again = atomicrmw add ptr %counter, i32 1 monotonic
  %at2 = getelementptr i32, ptr %out, i32 %again
  store i32 %tid.x, ptr %at2
  ret i32 0
"""


def test_seeds_give_permutations_of_the_order() -> None:
    call = compiled(thread(ORDER, "ptr %out, ptr %counter", 70), order="seeded")
    seen = set()
    for seed in range(20):
        for block in ((0, 0, 0), (1, 0, 0)):
            runs = []
            for _ in range(2):
                out = np.zeros((2, 70), np.int32)
                assert call(out, np.zeros(1, np.int32), at=block, grid=(2, 1, 1), seed=seed) == 0
                np.testing.assert_array_equal(np.sort(out, axis=1), [range(70)] * 2)
                runs.append(out.tobytes())
            assert runs[0] == runs[1]
            seen.update([out[0].tobytes(), out[1].tobytes()])
    assert len(seen) == 80


def test_the_linear_order_is_the_index() -> None:
    out = np.zeros((2, 70), np.int32)
    assert compiled(thread(ORDER, "ptr %out, ptr %counter", 70))(out, np.zeros(1, np.int32)) == 0
    np.testing.assert_array_equal(out, [range(70)] * 2)


@pytest.mark.parametrize("marker", ["barrier()", "warp.sync(i32 -1)"])
def test_every_thread_stores_once(marker: str) -> None:
    body = f"entry:\n  call void @nbrt.{marker}\n{store('i32', '%tid.x')}\n  ret i32 0"
    out = np.zeros(96, np.int32)
    assert compiled(thread(body, block=96))(out) == 0
    np.testing.assert_array_equal(out, np.arange(96))
