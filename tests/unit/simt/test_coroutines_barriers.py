"""A block's threads as coroutines: barriers in any control flow, shared memory, errors, memory."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np
import pytest

from helpers.coroutines import PLACE, Compiled, compiled, store, thread
from nbrt.backends.cpu.simt.coroutines import coroutine_block
from nbrt.errors import ArgumentError, UnsupportedConstructError

THREADS = np.arange(64)

# Each thread says what it has to say in the shared array, and hears the last thread that waits.
SAY = """
  %s = call ptr @nbrt.shared.256.4.said()
  %mine = getelementptr i32, ptr %s, i32 %tid.x
"""
HEAR = """
  %where = getelementptr i32, ptr %s, i32 %other
  %heard = load i32, ptr %where
""" + store("i32", "%heard")


def run(
    body: str, *args: Any, block: Any = 64, parameters: str = "ptr %out", **options: Any
) -> Any:
    out = np.full(int(np.prod(block)), -1, np.int32)
    call = compiled(thread(body, parameters, block), **options)
    assert call(out, *args) == 0
    return out


# -- the six barrier patterns ---------------------------------------------------------------------


def test_early_return_before_a_barrier() -> None:
    body = f"""
entry:
  {SAY}
  %late = icmp sge i32 %tid.x, 40
  br i1 %late, label %leave, label %stay
leave:
  ret i32 0
stay:
  store i32 %tid.x, ptr %mine
  call void @nbrt.barrier()
  %other = sub i32 39, %tid.x
  {HEAR}
  ret i32 0
"""
    np.testing.assert_array_equal(run(body), np.where(THREADS < 40, 39 - THREADS, -1))


@pytest.mark.parametrize("chosen", [0, 1])
def test_barrier_in_a_uniform_if(chosen: int) -> None:
    body = f"""
entry:
  {SAY}
  store i32 -7, ptr %mine
  %other = sub i32 63, %tid.x
  %yes = icmp ne i64 %chosen, 0
  br i1 %yes, label %then, label %after
then:
  store i32 %tid.x, ptr %mine
  call void @nbrt.barrier()
  br label %after
after:
  %from = phi i32 [ %tid.x, %entry ], [ %other, %then ]
  %at = getelementptr i32, ptr %s, i32 %from
  %got = load i32, ptr %at
  {store("i32", "%got")}
  ret i32 0
"""
    got = run(body, chosen, parameters="ptr %out, i64 %chosen")
    np.testing.assert_array_equal(got, 63 - THREADS if chosen else np.full(64, -7))


def test_a_barrier_in_each_arm_of_a_divergent_if() -> None:
    body = f"""
entry:
  {SAY}
  %bit = and i32 %tid.x, 1
  %odd = icmp ne i32 %bit, 0
  br i1 %odd, label %then, label %else
then:
  %negative = sub i32 0, %tid.x
  store i32 %negative, ptr %mine
  call void @nbrt.barrier()
  br label %after
else:
  store i32 %tid.x, ptr %mine
  call void @nbrt.barrier()
  br label %after
after:
  %other = sub i32 63, %tid.x
  {HEAR}
  ret i32 0
"""
    other = 63 - THREADS
    np.testing.assert_array_equal(run(body), np.where(other % 2, -other, other))


SCAN = f"""
entry:
  {SAY}
  %first = add i32 %tid.x, 1
  store i32 %first, ptr %mine
  br label %head
head:
  %offset = phi i32 [ 1, %entry ], [ %twice, %write ]
  call void @nbrt.barrier()
  %own = load i32, ptr %mine
  %from = sub i32 %tid.x, %offset
  %has = icmp sge i32 %from, 0
  br i1 %has, label %read, label %sum
read:
  %at = getelementptr i32, ptr %s, i32 %from
  %left = load i32, ptr %at
  br label %sum
sum:
  %more = phi i32 [ 0, %head ], [ %left, %read ]
  %total = add i32 %own, %more
  call void @nbrt.barrier()
  br label %write
write:
  store i32 %total, ptr %mine
  %twice = shl i32 %offset, 1
  %again = icmp slt i32 %twice, 64
  br i1 %again, label %head, label %end
end:
  {store("i32", "%total")}
  ret i32 0
"""


@pytest.mark.parametrize("options", [{}, {"order": "seeded"}])
def test_barriers_in_a_uniform_loop(options: Any) -> None:
    call, out = compiled(thread(SCAN), **options), np.zeros(64, np.int32)
    for seed in range(5):
        assert call(out, seed=seed if options else None) == 0
        np.testing.assert_array_equal(out, np.cumsum(THREADS + 1))


def test_barrier_in_a_loop_with_a_trip_count_for_each_thread() -> None:
    # In round r thread r speaks; a thread hears rounds below its own index, then leaves.
    body = f"""
entry:
  {SAY}
  store i32 0, ptr %mine
  br label %head
head:
  %round = phi i32 [ 0, %entry ], [ %next, %body ]
  %sum = phi i32 [ 0, %entry ], [ %more, %body ]
  %go = icmp slt i32 %round, %tid.x
  br i1 %go, label %body, label %end
body:
  %speak = add i32 %round, 1
  store i32 %speak, ptr %mine
  call void @nbrt.barrier()
  %last = getelementptr i32, ptr %s, i32 63
  %heard = load i32, ptr %last
  call void @nbrt.barrier()
  %more = add i32 %sum, %heard
  %next = add i32 %round, 1
  br label %head
end:
  {store("i32", "%sum")}
  ret i32 0
"""
    np.testing.assert_array_equal(run(body), THREADS * (THREADS + 1) // 2)


def test_while_true_with_a_break_that_depends_on_the_thread() -> None:
    body = f"""
entry:
  {SAY}
  store i32 0, ptr %mine
  br label %head
head:
  %round = phi i32 [ 0, %entry ], [ %next, %stay ]
  %next = add i32 %round, 1
  store i32 %next, ptr %mine
  call void @nbrt.barrier()
  %limit = and i32 %tid.x, 7
  %done = icmp sge i32 %round, %limit
  br i1 %done, label %end, label %stay
stay:
  call void @nbrt.barrier()
  br label %head
end:
  %at = getelementptr i32, ptr %s, i32 63
  %heard = load i32, ptr %at
  {store("i32", "%heard")}
  ret i32 0
"""
    np.testing.assert_array_equal(run(body), THREADS % 8 + 1)


# -- what barriers count --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["count", "and", "or"])
@pytest.mark.parametrize("threshold", [0, 17, 64])
def test_deciding_barriers(kind: str, threshold: int) -> None:
    # Threads from 50 on have returned: they have no say.
    body = f"""
entry:
  %gone = icmp sge i32 %tid.x, 50
  br i1 %gone, label %leave, label %ask
leave:
  ret i32 0
ask:
  %limit = trunc i64 %threshold to i32
  %below = icmp slt i32 %tid.x, %limit
  %test = select i1 %below, i32 -5, i32 0
  call void @nbrt.barrier()
  %first = call i32 @nbrt.barrier.{kind}(i32 %test)
  %second = call i32 @nbrt.barrier.{kind}(i32 1)
  %scaled = mul i32 %second, 1000
  %both = add i32 %scaled, %first
  {store("i32", "%both")}
  ret i32 0
"""
    tests = THREADS[:50] < threshold
    decide: Any = {"count": np.sum, "and": np.all, "or": np.any}[kind]
    expected = int(decide(tests)) + 1000 * int(decide(np.ones(50, bool)))
    got = run(body, threshold, parameters="ptr %out, i64 %threshold")
    np.testing.assert_array_equal(got, np.where(THREADS < 50, expected, -1))


# -- places, arguments, shared memory -------------------------------------------------------------


@pytest.mark.parametrize("block", [(1, 1, 1), (33, 1, 1), (4, 3, 5), (1, 7, 2), (1024, 1, 1)])
def test_indices_and_arguments_of_every_kind_after_waiting(block: tuple[int, int, int]) -> None:
    width, height, depth = block
    body = f"""
entry:
  %always = icmp sge i32 %tid.x, 0
  br i1 %always, label %"a wait", label %skip
"a wait":
  call void @nbrt.barrier()
  br label %join
skip:
  br label %join
join:
  %bias = phi double [ %y, %"a wait" ], [ 0.0, %skip ]
  %row = mul i32 %tid.y, {width}
  %plane = mul i32 %tid.z, {width * height}
  %part = add i32 %row, %plane
  %rank = add i32 %tid.x, %part
  switch i32 %bid.y, label %other [
    i32 5, label %five
    i32 6, label %other
  ]
five:
  call void @nbrt.barrier()
  %i = sitofp i32 %rank to double
  %b = sitofp i32 %bid.x to double
  %scaled = fmul double %i, %bias
  %sum = fadd double %scaled, %b
  %chosen = select i1 %"is it", double %sum, double 0.0
  %field = extractvalue {{ i64, double }} %pair, 1
  %result = fadd double %chosen, %field
  %at = getelementptr double, ptr %out, i32 %rank
  store double %result, ptr %at
  ret i32 0
other:
  ret i32 0
"""
    parameters = 'ptr noundef %out, double %y, i1 %"is it", { i64, double } %pair'
    # A struct cannot be passed through ctypes by value: a caller in the module makes it.
    count = width * height * depth
    code = thread(body, parameters, block)
    lowered = coroutine_block(code)
    passed = "ptr %out, double %y, i1 %is, { i64, double } %pair, ptr %s, i64 %n, ptr %w"
    lowered += f"""
define i32 @call({PLACE}, ptr %out, double %y, i64 %flag, double %z, ptr %s, i64 %n, ptr %w) {{
  %is = trunc i64 %flag to i1
  %pair = insertvalue {{ i64, double }} poison, double %z, 1
  %status = call i32 @work.block({PLACE}, {passed})
  ret i32 %status
}}
"""
    out = np.zeros(count)
    call = Compiled(lowered, "call")
    arguments = (ctypes.c_double(0.5), 1, ctypes.c_double(100.0))
    assert call(out, *arguments, at=(3, 5, 0), grid=(4, 6, 1)) == 0
    np.testing.assert_array_equal(out, np.arange(count) * 0.5 + 3 + 100)


def test_an_argument_that_comes_to_a_phi_by_two_edges() -> None:
    body = f"""
entry:
  call void @nbrt.barrier()
  switch i32 %tid.x, label %other [
    i32 3, label %join
    i32 5, label %join
  ]
other:
  br label %join
join:
  %got = phi i64 [ %n, %entry ], [ %n, %entry ], [ 7, %other ]
  %narrow = trunc i64 %got to i32
  {store("i32", "%narrow")}
  ret i32 0
"""
    got = run(body, 40, parameters="ptr %out, i64 %n")
    np.testing.assert_array_equal(got, np.where((THREADS == 3) | (THREADS == 5), 40, 7))


def test_static_shared_arrays_are_apart_aligned_and_large() -> None:
    size = 300_000
    body = f"""
entry:
  %small = call ptr @nbrt.shared.4.4.one()
  %large = call ptr @nbrt.shared.{size}.256.two()
  %again = call ptr @nbrt.shared.4.4.one()
  %third = call ptr @nbrt.shared.8.8.three()
  %a = ptrtoint ptr %small to i64
  %b = ptrtoint ptr %large to i64
  %c = ptrtoint ptr %again to i64
  %d = ptrtoint ptr %third to i64
  store i64 %a, ptr %out
  %o1 = getelementptr i64, ptr %out, i64 1
  store i64 %b, ptr %o1
  %o2 = getelementptr i64, ptr %out, i64 2
  store i64 %c, ptr %o2
  %o3 = getelementptr i64, ptr %out, i64 3
  store i64 %d, ptr %o3
  %end = getelementptr i8, ptr %large, i64 {size - 1}
  store volatile i8 1, ptr %end
  call void @nbrt.barrier()
  ret i32 0
"""
    out = np.zeros(4, np.int64)
    assert compiled(thread(body))(out) == 0
    small, large, again, third = out
    assert small == again
    assert small % 4 == 0
    assert large % 256 == 0
    assert third % 8 == 0
    spans = sorted([(small, 4), (large, size), (third, 8)])
    assert all(at + n <= after for (at, n), (after, _) in itertools.pairwise(spans))


def test_dynamic_shared_memory_is_the_callers() -> None:
    body = f"""
entry:
  call void @nbrt.barrier()
  %s = call ptr @nbrt.shared.dynamic()
  %n = call i64 @nbrt.shared.bytes()
  %bytes = trunc i64 %n to i32
  %at = getelementptr i32, ptr %s, i32 %tid.x
  store i32 %tid.x, ptr %at
  {store("i32", "%bytes")}
  ret i32 0
"""
    out, memory = np.zeros(64, np.int32), np.zeros(80, np.int32)
    assert compiled(thread(body))(out, dynamic=memory) == 0
    np.testing.assert_array_equal(memory, [*range(64), *[0] * 16])
    np.testing.assert_array_equal(out, np.full(64, 320))


def test_large_local_arrays_live_across_a_barrier_in_1024_threads() -> None:
    body = f"""
entry:
  %local = alloca [1000 x i64], align 64
  %even = ptrtoint ptr %local to i64
  %low = and i64 %even, 63
  %wide = zext i32 %tid.x to i64
  br label %fill
fill:
  %i = phi i64 [ 0, %entry ], [ %next, %fill ]
  %at = getelementptr i64, ptr %local, i64 %i
  %value = mul i64 %i, %wide
  store i64 %value, ptr %at
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, 1000
  br i1 %more, label %fill, label %wait
wait:
  call void @nbrt.barrier()
  %chosen = sub i32 1000, 1
  %last.at = getelementptr i64, ptr %local, i32 %chosen
  %last = load i64, ptr %last.at
  %sum = add i64 %last, %low
  %narrow = trunc i64 %sum to i32
  {store("i32", "%narrow")}
  ret i32 0
"""
    np.testing.assert_array_equal(run(body, block=1024), np.arange(1024) * 999)


def test_code_without_any_waiting() -> None:
    got = run("entry:\n" + store("i32", "%tid.x") + "\n  ret i32 0")
    np.testing.assert_array_equal(got, THREADS)


# -- errors and memory ----------------------------------------------------------------------------

FAILING = """
entry:
  %rank = mul i32 %tid.y, 8
  %linear = add i32 %rank, %tid.x
  %bad = trunc i64 %which to i32
  %fails = icmp eq i32 %linear, %bad
  call void @nbrt.barrier()
  br i1 %fails, label %raise, label %go
raise:
  store ptr inttoptr (i64 4711 to ptr), ptr %excinfo
  ret i32 3
go:
  call void @nbrt.barrier()
  %at = getelementptr i32, ptr %out, i32 %linear
  store i32 1, ptr %at
  ret i32 0
"""


def test_a_failing_thread_ends_the_block() -> None:
    call = compiled(thread(FAILING, "ptr %out, i64 %which", (8, 8, 1)))
    out = np.zeros(64, np.int32)
    assert call(out, 37) == 3
    assert call.excinfo.value == 4711
    np.testing.assert_array_equal(call.where, [5, 4, 0, -1, -1, -1])
    assert not out.any()
    assert call(out, -1) == 0
    assert out.all()


class Counted:
    """The C library's malloc and free, counted; `room` blocks at a time."""

    def __init__(self, room: int) -> None:
        self.alive: set[int] = set()
        self.calls = 0
        self._library = ctypes.CDLL(None)
        self._library.malloc.restype = ctypes.c_void_p
        self._library.malloc.argtypes = [ctypes.c_size_t]
        self._library.free.argtypes = [ctypes.c_void_p]
        self._room = room
        self.hooks = {
            "counted_malloc": ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(self._malloc),
            "counted_free": ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._free),
        }

    def _malloc(self, size: int) -> int | None:
        self.calls += 1
        if len(self.alive) >= self._room:
            return None
        address = int(self._library.malloc(size))
        self.alive.add(address)
        return address

    def _free(self, address: int) -> None:
        self.alive.remove(address)
        self._library.free(address)


@pytest.mark.parametrize("room", [0, 1])
def test_memory_is_given_back_in_every_case(room: int) -> None:
    memory = Counted(room)
    text = coroutine_block(thread(FAILING, "ptr %out, i64 %which", (8, 8, 1)))
    text = text.replace("@malloc(", "@counted_malloc(").replace("@free(", "@counted_free(")
    call, out = Compiled(text, "work.block", memory.hooks), np.zeros(64, np.int32)
    for which, status in ((37, 3), (-1, 0), (0, 3)):
        assert call(out, which) == (status if room else -1)
        assert not memory.alive
    assert memory.calls == 3


def test_what_cannot_be_lowered_is_refused() -> None:
    with pytest.raises(ArgumentError, match="1 to 1024 threads, got"):
        coroutine_block(thread("entry:\n  ret i32 0", block=1025))
    grid = thread("entry:\n  call void @nbrt.grid.sync()\n  ret i32 0")
    with pytest.raises(ArgumentError, match="use coroutine_grid"):
        coroutine_block(grid)
    code = thread(
        "entry:\n  call void @nbrt.odd()\n  ret i32 0", module="declare void @nbrt.odd()\n"
    )
    with pytest.raises(UnsupportedConstructError, match=r"nbrt\.odd"):
        coroutine_block(code)
    body = "entry:\n  %a = alloca i8, i32 %tid.x\n  ret i32 0"
    with pytest.raises(UnsupportedConstructError, match="local memory of constant size"):
        coroutine_block(thread(body))
    inner = "define void @inner() {\n  call void @nbrt.barrier()\n  ret void\n}\n"
    code = thread("entry:\n  call void @inner()\n  ret i32 0", module=inner)
    with pytest.raises(UnsupportedConstructError, match="is it recursive"):
        coroutine_block(code)
