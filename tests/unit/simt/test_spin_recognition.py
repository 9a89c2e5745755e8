# mypy: disable-error-code="no-untyped-def"
"""Which loops spin: those alone become coroutines that yield, all others stay as they are."""

from __future__ import annotations

import pytest
from numba import cuda, types
from numba.core.compiler_lock import global_compiler_lock

from nbrt.backends.captures import Captures
from nbrt.backends.cpu.simt.codegen.thread_ir import thread_code
from nbrt.backends.cpu.simt.frontend.pipeline import KernelBody, may_spin
from nbrt.backends.cpu.simt.llvm.parse import parse_function
from nbrt.backends.cpu.simt.llvm.spins import find_spins
from nbrt.backends.cpu.simt.thread_context import SimtContextType

INTS, FLOATS = types.int32[::1], types.float32[::1]
BLOCK = (64, 1, 1)


def _spins(kernel, *arguments) -> bool:
    with global_compiler_lock:
        body = KernelBody(Captures(kernel)).whole((SimtContextType(BLOCK), *arguments))
        if not may_spin(body):
            return False
        code = thread_code(body.library, body.fndesc.llvm_func_name, BLOCK, places=True)
        found = find_spins(parse_function(code.module, code.name))
    return bool(found)


# -- loops that spin -----------------------------------------------------------------------------


def polled(flag, x):
    while cuda.atomic.add(flag, 0, 0) < 32:
        pass


def loaded_without_a_fence(flag, x):
    while flag[0] == 0:
        pass


def loaded_with_a_fence(flag, x):
    while flag[0] == 0:
        cuda.threadfence()


def locked_in_one_place(flag, x):
    while cuda.atomic.cas(flag, 0, 0, 1) != 0:
        pass
    x[0] += 1
    cuda.atomic.exch(flag, 0, 0)


def locked_inside_the_loop(flag, x):
    done = False
    while not done:
        if cuda.atomic.cas(flag, 0, 0, 1) == 0:
            x[0] += 1
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 0)
            done = True


def left_by_break(flag, x):
    while True:
        if cuda.atomic.exch(flag, 0, 1) == 0:
            x[0] += 1
            cuda.atomic.exch(flag, 0, 0)
            break


def maximum_of_a_float(flag, x):
    while cuda.atomic.max(x, 0, 0.0) < 1.0:
        pass


def stays_or_moves_on(state, x):
    at = cuda.blockIdx.x - 1
    total = 0
    while at >= 0:
        seen = cuda.atomic.add(state, at, 0)
        if seen == 2:
            total += x[at]
            break
        if seen == 1:
            total += x[at]
            at -= 1
    x[0] = total


def gives_up(flag, x):
    tries = 0
    while cuda.atomic.add(flag, 0, 0) == 0 and tries < 1000:
        tries += 1
    x[0] = tries


def semaphore(flag, x):
    while True:
        if cuda.atomic.sub(flag, 0, 1) > 0:
            break
        cuda.atomic.add(flag, 0, 1)


def with_a_barrier(flag, x):
    while cuda.syncthreads_or(cuda.atomic.add(flag, 0, 0)) == 0:
        pass


def handed_on_through_shared_memory(flag, x):
    seen = cuda.shared.array(1, "int32")
    while True:
        if cuda.threadIdx.x == 0:
            seen[0] = cuda.atomic.add(flag, 0, 0)
        cuda.syncthreads()
        if seen[0] != 0:
            break
        cuda.syncthreads()
    x[0] = 1


def loaded_by_all_at_a_barrier(flag, x):
    while flag[0] == 0:
        cuda.syncthreads()
    x[0] = 1


def with_a_vote(flag, x):
    while not cuda.any_sync(0xFFFFFFFF, cuda.atomic.add(flag, 0, 0)):
        pass


@cuda.jit(device=True)
def acquire(flag):
    while cuda.atomic.cas(flag, 0, 0, 1) != 0:
        cuda.nanosleep(8)


def in_a_device_function(flag, x):
    acquire(flag)
    x[0] += 1
    cuda.atomic.exch(flag, 0, 0)


def at_an_address_in_memory(flag, x):
    while flag[flag[1]] == 0:
        pass


def never_left(flag, x):
    while True:
        pass


SPINNING = [
    polled,
    loaded_without_a_fence,
    loaded_with_a_fence,
    locked_in_one_place,
    locked_inside_the_loop,
    left_by_break,
    maximum_of_a_float,
    stays_or_moves_on,
    gives_up,
    semaphore,
    with_a_barrier,
    handed_on_through_shared_memory,
    loaded_by_all_at_a_barrier,
    with_a_vote,
    in_a_device_function,
    at_an_address_in_memory,
    never_left,
]


@pytest.mark.parametrize("kernel", SPINNING, ids=lambda each: each.__name__)
def test_loops_that_spin(kernel) -> None:
    assert _spins(kernel, INTS, FLOATS)


# -- loops that make progress by themselves -------------------------------------------------------


def binary_search(a, x):
    low, high = 0, a.size
    while low < high:
        middle = (low + high) // 2
        if a[middle] < x[0]:
            low = middle + 1
        else:
            high = middle
    x[1] = low


def compare_and_swap_again(a, x):
    old = a[0]
    while True:
        assumed = old
        old = cuda.atomic.cas(a, 0, assumed, max(assumed, x[0]))
        if old == assumed:
            break


def queue_of_work(head, x):
    while True:
        i = cuda.atomic.add(head, 0, 1)
        if i >= x.size:
            break
        x[i] = i * 2


def hash_table(keys, x):
    slot = x[0] % keys.size
    while True:
        old = cuda.atomic.cas(keys, slot, 0, x[0])
        if old == 0 or old == x[0]:  # no tuple search in kernels
            break
        slot = (slot + 1) % keys.size
    x[1] = slot


def linked_list(following, x):
    node = x[0]
    while node != -1:
        node = following[node]
    x[0] = node


def insertion_sort(a, x):
    for i in range(1, 10):
        key = a[i]
        j = i - 1
        while j >= 0 and a[j] > key:
            a[j + 1] = a[j]
            j -= 1
        a[j + 1] = key


def levels_of_a_graph(level, x):
    t = cuda.threadIdx.x
    depth = 0
    while True:
        changed = 0
        if level[t] == depth:
            x[t] = depth + 1
            changed = 1
        depth += 1
        if cuda.syncthreads_or(changed) == 0:
            break


def until_nothing_changes(a, x):
    t = cuda.threadIdx.x
    while True:
        changed = 0
        if a[t] == 0:
            a[t] = x[t]
            changed = 1
        if cuda.syncthreads_or(changed) == 0:
            break


def blocks_take_work(a, x):
    item = cuda.shared.array(1, "int32")
    while True:
        if cuda.threadIdx.x == 0:
            item[0] = cuda.atomic.add(a, 0, 1)
        cuda.syncthreads()
        if item[0] >= x.size:
            break
        x[item[0]] = 1
        cuda.syncthreads()


def sweeps_until_none_changes(a, x):
    changed = cuda.shared.array(1, "int32")
    t = cuda.threadIdx.x
    while True:
        if t == 0:
            changed[0] = 0
        cuda.syncthreads()
        if x[t] < a[t]:
            x[t] += 1
            changed[0] = 1
        cuda.syncthreads()
        if changed[0] == 0:
            break


def sweeps_until_a_global_flag(a, x):
    t = cuda.threadIdx.x
    while a[0] == 0:
        x[t] += 1
        cuda.syncthreads()
        if x[0] > 100:
            a[0] = 1
        cuda.syncthreads()


def greatest_common_divisor(a, x):
    p, q = a[0], a[1]
    while q:
        p, q = q, p % q
    x[0] = p


def newtons_method(a, x):
    value, before = 1.0, 0.0
    while abs(value - before) > a[1]:
        before = value
        value = 0.5 * (value + a[0] / value)
    x[0] = value


def generator_in_memory(state, x):
    i = cuda.threadIdx.x
    while True:
        state[i] = (state[i] * 25173 + 13849) % 65536
        if state[i] < 1000:
            break
    x[i] = state[i]


def own_counter_in_memory(a, x):
    while a[0] < 10:
        a[0] += 1


def local_stack(a, x):
    stack = cuda.local.array(16, types.int32)
    stack[0] = a[0]
    depth = 1
    while depth > 0:
        depth -= 1
        node = stack[depth]
        if node > 1:
            stack[depth] = node // 2
            depth += 1
            x[node] = node


def grid_stride(a, x):
    i = cuda.grid(1)
    while i < x.size:
        x[i] = a[i]
        i += cuda.gridsize(1)


def rejection(threshold, x):
    i = cuda.grid(1)
    first, second, attempt = x[i], x[i] + 5, 0
    while first < threshold[i] or second < threshold[i]:
        attempt += 1
        drawn = attempt * 1664525 + i
        if first < threshold[i]:
            first = drawn
        if second < threshold[i]:
            second = drawn * 3
    x[i] = first + second


def reduction(a, x):
    s = cuda.shared.array(64, types.int32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    half = 32
    while half > 0:
        if t < half:
            s[t] += s[t + half]
        cuda.syncthreads()
        half //= 2
    x[0] = s[0]


WORKING = [
    binary_search,
    compare_and_swap_again,
    queue_of_work,
    hash_table,
    linked_list,
    insertion_sort,
    levels_of_a_graph,
    until_nothing_changes,
    blocks_take_work,
    sweeps_until_none_changes,
    sweeps_until_a_global_flag,
    greatest_common_divisor,
    newtons_method,
    generator_in_memory,
    own_counter_in_memory,
    local_stack,
    grid_stride,
    rejection,
    reduction,
]


@pytest.mark.parametrize("kernel", WORKING, ids=lambda each: each.__name__)
def test_loops_that_do_not_spin(kernel) -> None:
    assert not _spins(kernel, INTS, INTS)
