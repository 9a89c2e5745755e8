"""Operations of the warp between coroutines: PTX's results, masks, divergence, partial warps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.coroutines import compiled, store, thread

COUNT = 40
RANKS = np.arange(COUNT)
LANES = RANKS % 32
VALUES = (RANKS.astype(np.int64) * 0x1_0000_0001 * 7919 + 13) % (1 << 62)


def warps(function: Any) -> np.ndarray:
    """Apply a function of the ranks in a warp to each warp, and put the results in a row."""
    return np.concatenate([function(RANKS[:32]), function(RANKS[32:])])


def shuffled(mode: str, lane: int, by: int) -> int:
    """PTX's ``shfl.sync``: the source lane with a width of 32, the lane itself if there is none."""
    by &= 31
    if mode == "idx":
        return by
    source = {"up": lane - by, "down": lane + by, "xor": lane ^ by}[mode]
    return source if 0 <= source < 32 else lane


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("mode", ["idx", "up", "down", "xor"])
def test_shuffles(mode: str, bits: int) -> None:
    body = f"""
entry:
  %from = getelementptr i64, ptr %in, i32 %tid.x
  %wide = load i64, ptr %from
  %value = {"add i64 %wide, 0" if bits == 64 else "trunc i64 %wide to i32"}
  %lane = trunc i64 %by to i32
  %got = call i{bits} @nbrt.shfl.{mode}.i{bits}(i32 -1, i{bits} %value, i32 %lane)
  {store(f"i{bits}", "%got")}
  ret i32 0
"""
    call = compiled(thread(body, "ptr %out, ptr %in, i64 %by", COUNT))
    values = VALUES.astype(f"i{bits // 8}")
    for by in (0, 1, 5, 7, 8, 16, 31, 32, 33, -1):
        out = np.zeros(COUNT, values.dtype)
        assert call(out, VALUES, by) == 0
        source = [r - r % 32 + shuffled(mode, r % 32, by) for r in range(COUNT)]
        expected = [values[s] if s < COUNT else values[r] for r, s in enumerate(source)]
        np.testing.assert_array_equal(out, expected, err_msg=f"by {by}")


@pytest.mark.parametrize("kind", ["all", "any", "eq", "ballot"])
@pytest.mark.parametrize("pattern", [0, -1, 0b1011, 1 << 31])
def test_votes(kind: str, pattern: int) -> None:
    body = f"""
entry:
  %pattern = trunc i64 %bits to i32
  %lane = and i32 %tid.x, 31
  %shifted = lshr i32 %pattern, %lane
  %test = and i32 %shifted, 1
  %got = call i32 @nbrt.vote.{kind}(i32 -1, i32 %test)
  {store("i32", "%got")}
  ret i32 0
"""
    out = np.zeros(COUNT, np.uint32)
    assert compiled(thread(body, "ptr %out, i64 %bits", COUNT))(out, pattern) == 0

    def vote(ranks: np.ndarray) -> np.ndarray:
        tests = np.array([pattern >> (r % 32) & 1 for r in ranks])
        value = {
            "all": int(tests.all()),
            "any": int(tests.any()),
            "eq": int(len(set(tests)) == 1),
            "ballot": sum(int(t) << i for i, t in enumerate(tests)),
        }[kind]
        return np.full(len(ranks), value)

    np.testing.assert_array_equal(out, warps(vote))


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("kind", ["any", "all"])
@pytest.mark.parametrize("groups", [1, 5, 64])
def test_matches(kind: str, bits: int, groups: int) -> None:
    body = f"""
entry:
  %from = getelementptr i64, ptr %in, i32 %tid.x
  %wide = load i64, ptr %from
  %value = {"add i64 %wide, 0" if bits == 64 else "trunc i64 %wide to i32"}
  %got = call i32 @nbrt.match.{kind}.i{bits}(i32 -1, i{bits} %value)
  {store("i32", "%got")}
  ret i32 0
"""
    # Equal in the low half, so that 64 bits find what 32 do not.
    values = (RANKS % groups).astype(np.int64) << (0 if bits == 32 else 32)
    out = np.zeros(COUNT, np.uint32)
    assert compiled(thread(body, "ptr %out, ptr %in", COUNT))(out, values) == 0

    def match(ranks: np.ndarray) -> np.ndarray:
        own = values[ranks]
        found = np.array([sum(1 << int(i) for i in np.flatnonzero(own == v)) for v in own])
        if kind == "all":
            found = np.where(len(set(own)) == 1, (1 << len(ranks)) - 1, 0) * np.ones_like(found)
        return found

    np.testing.assert_array_equal(out, warps(match))


def test_masks_in_divergent_code() -> None:
    # Odd and even lanes shuffle among themselves, in different arms, also more than once.
    body = f"""
entry:
  %bit = and i32 %tid.x, 1
  %odd = icmp ne i32 %bit, 0
  br i1 %odd, label %then, label %else
then:
  %a1 = call i32 @nbrt.shfl.down.i32(i32 u0xAAAAAAAA, i32 %tid.x, i32 2)
  %a2 = call i32 @nbrt.shfl.down.i32(i32 u0xAAAAAAAA, i32 %a1, i32 2)
  br label %after
else:
  %b1 = call i32 @nbrt.shfl.down.i32(i32 u0x55555555, i32 %tid.x, i32 1)
  %b2 = call i32 @nbrt.vote.ballot(i32 u0x55555555, i32 %tid.x)
  %b = add i32 %b1, %b2
  br label %after
after:
  %got = phi i32 [ %a2, %then ], [ %b, %else ]
  {store("i32", "%got")}
  ret i32 0
"""
    out, lanes = np.zeros(32, np.uint32), np.arange(32)
    assert compiled(thread(body, block=32))(out) == 0
    odd = np.array([x + min(4, 31 - x) for x in lanes])
    # An even lane's source is odd and not in the mask, so it keeps its own value.
    even = lanes + 0x55555554
    np.testing.assert_array_equal(out, np.where(lanes % 2, odd, even))


def test_one_mask_at_two_sites_is_one_group() -> None:
    body = f"""
entry:
  %low = icmp ult i32 %tid.x, 16
  br i1 %low, label %then, label %else
then:
  %a = call i32 @nbrt.shfl.xor.i32(i32 -1, i32 %tid.x, i32 16)
  br label %after
else:
  %b = call i32 @nbrt.shfl.xor.i32(i32 -1, i32 %tid.x, i32 16)
  br label %after
after:
  %got = phi i32 [ %a, %then ], [ %b, %else ]
  {store("i32", "%got")}
  ret i32 0
"""
    out = np.zeros(32, np.int32)
    assert compiled(thread(body, block=32))(out) == 0
    np.testing.assert_array_equal(out, np.arange(32) ^ 16)


def test_returned_lanes_have_no_part() -> None:
    body = f"""
entry:
  %gone = icmp ult i32 %tid.x, 10
  br i1 %gone, label %leave, label %ask
leave:
  ret i32 0
ask:
  %ballot = call i32 @nbrt.vote.ballot(i32 -1, i32 1)
  %all = call i32 @nbrt.match.all.i32(i32 -1, i32 7)
  %same = icmp eq i32 %ballot, %all
  %got = select i1 %same, i32 %ballot, i32 0
  {store("i32", "%got")}
  ret i32 0
"""
    out = np.zeros(32, np.uint32)
    assert compiled(thread(body, block=32))(out) == 0
    np.testing.assert_array_equal(out, np.where(np.arange(32) < 10, 0, 0xFFFFFC00))


def test_activemask_is_the_lanes_that_are_there() -> None:
    # In an arm, in a loop left at different times, and together again behind it
    body = """
entry:
  %lane = and i32 %tid.x, 31
  %low = icmp ult i32 %lane, 3
  br i1 %low, label %then, label %head
then:
  %arm = call i32 @nbrt.activemask()
  br label %head
head:
  %in.arm = phi i32 [ 0, %entry ], [ %arm, %then ], [ %in.arm, %body ]
  %round = phi i32 [ 0, %entry ], [ 0, %then ], [ %next, %body ]
  %last = phi i32 [ 0, %entry ], [ 0, %then ], [ %mask, %body ]
  %go = icmp ult i32 %round, %lane
  br i1 %go, label %body, label %behind
body:
  %mask = call i32 @nbrt.activemask()
  %next = add i32 %round, 1
  br label %head
behind:
  %all = call i32 @nbrt.activemask()
  %row = mul i32 %tid.x, 3
  %at = getelementptr i32, ptr %out, i32 %row
  store i32 %in.arm, ptr %at
  %at1 = getelementptr i32, ptr %at, i32 1
  store i32 %last, ptr %at1
  %at2 = getelementptr i32, ptr %at, i32 2
  store i32 %all, ptr %at2
  ret i32 0
"""
    out = np.zeros((COUNT, 3), np.uint32)
    assert compiled(thread(body, block=COUNT))(out) == 0
    full = np.where(RANKS < 32, 0xFFFFFFFF, 0xFF)
    np.testing.assert_array_equal(out[:, 2], full)
    np.testing.assert_array_equal(out[:, 0], np.where(LANES < 3, 0b111, 0))
    # In its last round a lane is there with those above it.
    below = (1 << LANES) - 1
    np.testing.assert_array_equal(out[:, 1], np.where(LANES > 0, full & ~below, 0))


def test_a_group_waits_for_lanes_that_are_held_up_elsewhere() -> None:
    body = f"""
entry:
  %low = icmp ult i32 %tid.x, 16
  br i1 %low, label %first, label %together
first:
  %a = call i32 @nbrt.vote.ballot(i32 65535, i32 %tid.x)
  %b = call i32 @nbrt.vote.ballot(i32 65535, i32 %a)
  br label %together
together:
  %part = phi i32 [ 0, %entry ], [ %b, %first ]
  %all = call i32 @nbrt.vote.ballot(i32 -1, i32 1)
  %got = xor i32 %all, %part
  {store("i32", "%got")}
  ret i32 0
"""
    out = np.zeros(32, np.uint32)
    assert compiled(thread(body, block=32))(out) == 0
    np.testing.assert_array_equal(out, np.where(np.arange(32) < 16, 0xFFFF0000, 0xFFFFFFFF))


def test_activemask_goes_before_a_group_that_lacks_its_lanes() -> None:
    # Though the vote is first in the order of the code
    body = f"""
entry:
  %low = icmp ult i32 %tid.x, 3
  br i1 %low, label %together, label %apart
together:
  %mask = phi i32 [ 0, %entry ], [ %active, %apart ]
  %all = call i32 @nbrt.vote.ballot(i32 -1, i32 1)
  %got = xor i32 %all, %mask
  {store("i32", "%got")}
  ret i32 0
apart:
  %active = call i32 @nbrt.activemask()
  br label %together
"""
    out = np.zeros(32, np.uint32)
    assert compiled(thread(body, block=32))(out) == 0
    np.testing.assert_array_equal(out, np.where(np.arange(32) < 3, 0xFFFFFFFF, 7))


def test_a_group_without_returned_lanes_is_complete() -> None:
    # So it goes on before the activemask, which finds its lanes there too.
    body = f"""
entry:
  %gone = icmp ult i32 %tid.x, 10
  br i1 %gone, label %leave, label %stay
leave:
  ret i32 0
stay:
  %some = icmp ult i32 %tid.x, 20
  br i1 %some, label %vote, label %together
vote:
  %votes = call i32 @nbrt.vote.ballot(i32 1048575, i32 1)
  br label %together
together:
  %part = phi i32 [ 0, %stay ], [ %votes, %vote ]
  %active = call i32 @nbrt.activemask()
  %got = xor i32 %active, %part
  {store("i32", "%got")}
  ret i32 0
"""
    out, lanes = np.zeros(32, np.uint32), np.arange(32)
    assert compiled(thread(body, block=32))(out) == 0
    there = np.where(lanes < 20, 0xFFF00000, 0xFFFFFC00)
    np.testing.assert_array_equal(out, np.where(lanes < 10, 0, there))


def test_syncwarp_orders_memory_within_a_warp() -> None:
    body = f"""
entry:
  %s = call ptr @nbrt.shared.160.4.s()
  %mine = getelementptr i32, ptr %s, i32 %tid.x
  %twice = shl i32 %tid.x, 1
  store i32 %twice, ptr %mine
  call void @nbrt.warp.sync(i32 -1)
  %warp = and i32 %tid.x, -8
  %low = and i32 %tid.x, 7
  %back = sub i32 7, %low
  %other = or i32 %warp, %back
  %at = getelementptr i32, ptr %s, i32 %other
  %got = load i32, ptr %at
  {store("i32", "%got")}
  ret i32 0
"""
    out = np.zeros(COUNT, np.int32)
    assert compiled(thread(body, block=COUNT))(out) == 0
    np.testing.assert_array_equal(out, 2 * (RANKS // 8 * 8 + 7 - RANKS % 8))


INCOMPLETE = f"""
entry:
  %few = icmp ult i32 %tid.x, 5
  br i1 %few, label %ask, label %wait
ask:
  %ballot = call i32 @nbrt.vote.ballot(i32 -1, i32 1)
  br label %wait
wait:
  %got = phi i32 [ 0, %entry ], [ %ballot, %ask ]
  call void @nbrt.barrier()
  {store("i32", "%got")}
  ret i32 0
"""


def test_lanes_missing_from_a_mask_never_hang() -> None:
    out = np.zeros(COUNT, np.int32)
    assert compiled(thread(INCOMPLETE, block=COUNT))(out) == 0
    np.testing.assert_array_equal(out, np.where(RANKS < 5, 0b11111, 0))


@pytest.mark.parametrize("order", ["linear", "seeded"])
def test_sum_of_a_block_by_shuffles_and_a_barrier(order: Any) -> None:
    steps = "\n".join(
        f"  %m{k} = call i64 @nbrt.shfl.xor.i64(i32 -1, i64 %s{k}, i32 {1 << k})\n"
        f"  %s{k + 1} = add i64 %s{k}, %m{k}"
        for k in range(5)
    )
    body = f"""
entry:
  %sums = call ptr @nbrt.shared.64.8.sums()
  %from = getelementptr i64, ptr %in, i32 %tid.x
  %s0 = load i64, ptr %from
{steps}
  %warp = lshr i32 %tid.x, 5
  %at = getelementptr i64, ptr %sums, i32 %warp
  store i64 %s5, ptr %at
  call void @nbrt.barrier()
  br label %add
add:
  %w = phi i32 [ 0, %entry ], [ %next, %add ]
  %before = phi i64 [ 0, %entry ], [ %after, %add ]
  %part.at = getelementptr i64, ptr %sums, i32 %w
  %part = load i64, ptr %part.at
  %after = add i64 %before, %part
  %next = add i32 %w, 1
  %more = icmp ult i32 %next, 8
  br i1 %more, label %add, label %end
end:
  {store("i64", "%after")}
  ret i32 0
"""
    values = np.random.default_rng(0).integers(-(2**40), 2**40, 256)
    out = np.zeros(256, np.int64)
    call = compiled(thread(body, "ptr %out, ptr %in", 256), order=order)
    assert call(out, values, seed=3 if order == "seeded" else None) == 0
    np.testing.assert_array_equal(out, np.full(256, values.sum()))
