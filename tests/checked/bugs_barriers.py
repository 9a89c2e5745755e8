"""Barriers that some threads go around on their way to the end, without another access."""

from __future__ import annotations

import numpy as np
from numba import cuda

from checked.cases import Suite, zeros

suite = Suite()
bug = suite.bug


@cuda.jit(device=True)
def in_a_branch(t):
    if t < 16:
        cuda.syncthreads()  # bug


@cuda.jit(device=True)
def behind_a_return(t):
    if t >= 16:
        return 0
    cuda.syncthreads()  # bug
    return 1


@cuda.jit(device=True)
def waits():
    cuda.syncthreads()  # bug


@bug("barrier", None)
def in_the_last_if():
    t = cuda.threadIdx.x
    if t < 16:
        cuda.syncthreads()  # bug


@bug("barrier", None)
def in_an_if_before_the_last_return():
    if cuda.threadIdx.x < 16:
        cuda.syncthreads()  # bug
    return


@bug("barrier", None, zeros(32))
def in_an_if_and_work_before(y):
    t = cuda.threadIdx.x
    y[t] = t
    if t % 2 == 0:
        y[t] += 1
        cuda.syncthreads()  # bug


@bug("barrier", None)
def with_an_else_that_does_nothing():
    if cuda.threadIdx.x < 16:
        cuda.syncthreads()  # bug
    else:
        pass


@bug("barrier", None, zeros(32))
def in_an_else(y):
    t = cuda.threadIdx.x
    if t < 16:
        y[t] = 1
    else:
        cuda.syncthreads()  # bug


@bug("barrier", None, zeros(32))
def in_an_elif(y):
    t = cuda.threadIdx.x
    if t < 8:
        y[t] = 1
    elif t < 16:
        cuda.syncthreads()  # bug
    else:
        y[t] = 2


@bug("barrier", None, np.int64(3))
def in_an_if_in_an_if(n):
    t = cuda.threadIdx.x
    if n > 2:  # noqa: SIM102
        if t < 16:
            cuda.syncthreads()  # bug


@bug("barrier", None, np.int64(3))
def behind_an_and(n):
    if n > 2 and cuda.threadIdx.x < 16:
        cuda.syncthreads()  # bug


@bug("barrier", None)
def trip_counts_of_a_while_differ():
    k = cuda.threadIdx.x % 3
    while k > 0:
        cuda.syncthreads()  # bug
        k -= 1


@bug("barrier", None)
def trip_counts_of_a_for_differ():
    for _ in range(cuda.threadIdx.x // 8):
        cuda.syncthreads()  # bug


@bug("barrier", None, np.int64(40))
def last_turn_of_a_grid_stride_loop(n):
    for _ in range(cuda.grid(1), n, cuda.gridsize(1)):
        cuda.syncthreads()  # bug


@bug("barrier", None)
def continue_around_it():
    t = cuda.threadIdx.x
    for k in range(4):
        if t % 4 == k:
            continue
        if k == 3:
            cuda.syncthreads()  # bug


@bug("barrier", None)
def break_in_front_of_it():
    t = cuda.threadIdx.x
    for k in range(4):
        if t == 5 and k == 2:
            break
        cuda.syncthreads()  # bug


@bug("barrier", None)
def one_thread_alone_goes_around_it():
    if cuda.threadIdx.x != 31:
        cuda.syncthreads()  # bug


@bug("barrier", None, block=(4, 4, 2))
def in_three_dimensions():
    if cuda.threadIdx.z == 0:
        cuda.syncthreads()  # bug


@bug("barrier", None, zeros(32))
def a_return_that_all_ways_lead_to(y):
    t = cuda.threadIdx.x
    if t < 16:
        cuda.syncthreads()  # bug
    z = t * 2
    if z > 50:
        return
    y[t] = z


@bug("barrier", None)
def those_that_wait_return_and_the_others_run_to_the_end():
    if cuda.threadIdx.x < 16:
        cuda.syncthreads()  # bug
        return


@bug("barrier", None, zeros(32))
def around_the_first_of_two(y):
    t = cuda.threadIdx.x
    if t < 16:
        cuda.syncthreads()  # bug
    if t < 20:
        y[t] = 1
    if t >= 16:
        return
    cuda.syncthreads()


@bug("barrier", None)
def a_device_function_with_a_branch():
    in_a_branch(cuda.threadIdx.x)


@bug("barrier", None)
def a_device_function_that_returns_early():
    behind_a_return(cuda.threadIdx.x)


@bug("barrier", None)
def a_device_function_in_a_branch():
    if cuda.threadIdx.x < 16:
        waits()


@bug("barrier", None, np.int64(7))
def a_counting_barrier(n):
    t = cuda.threadIdx.x
    if t < n:
        cuda.syncthreads_or(t)  # bug


@bug("barrier", None, np.int64(10))
def an_assertion_between(n):
    t = cuda.threadIdx.x
    if t < n:
        cuda.syncthreads()  # bug
        assert n > 0


@bug("barrier", None, zeros(32), strict=True)
def return_in_front_of_it_when_strict(y):
    t = cuda.threadIdx.x
    if t > 20:
        return
    cuda.syncthreads()  # bug
    y[t] = 1


@bug("barrier", None, grid=3)
def block_returns_before_the_barrier_of_the_grid():
    if cuda.blockIdx.x == 1:
        return
    cuda.cg.this_grid().sync()  # bug


@bug("barrier", None, grid=3)
def block_goes_around_the_barrier_of_the_grid():
    if cuda.blockIdx.x != 2:
        cuda.cg.this_grid().sync()  # bug


@bug("barrier", None, zeros(96), grid=3)
def block_goes_around_a_later_barrier_of_the_grid(y):
    grid = cuda.cg.this_grid()
    for _ in range(3 + cuda.blockIdx.x // 2):
        grid.sync()  # bug
    y[cuda.grid(1)] = 1


@bug("barrier", None, grid=2)
def threads_go_around_the_barrier_of_the_grid():
    if cuda.threadIdx.x < 16:
        cuda.cg.this_grid().sync()  # bug


@bug("barrier", None, np.int64(3))
def in_an_if_before_a_return_in_a_loop(n):
    t = cuda.threadIdx.x
    while True:
        n -= 1
        if n == 0:
            if t < 16:
                cuda.syncthreads()  # bug
            return


@bug("barrier", None)
def trip_counts_differ_before_the_last_return():
    for _ in range(cuda.threadIdx.x // 8):
        cuda.syncthreads()  # bug
    return
