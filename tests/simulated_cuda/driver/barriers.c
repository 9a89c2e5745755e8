/* Barriers of a block (barrier.sync, .arrive, .red of PTX) and of the grid (cooperative groups). */
#include "grid.h"

#include <stdio.h>

static SimFiber *fiber_at(SimThread *thread, const char *operation) {
    if (!thread->block)
        sim_abandon(thread, CUDA_ERROR_LAUNCH_FAILED, "%s in a kernel that is declared to have none",
                    operation);
    return sim_fiber(thread);
}

static SimBarrier *barrier_at(SimThread *thread, uint32_t number, uint32_t threads) {
    if (number >= SIM_BARRIERS)
        sim_abandon(thread, CUDA_ERROR_ILLEGAL_INSTRUCTION, "barrier %u: a block has %d", number,
                    SIM_BARRIERS);
    if (threads % SIM_WARP_SIZE)
        sim_abandon(thread, CUDA_ERROR_ILLEGAL_INSTRUCTION,
                    "barrier %u for %u threads, which is not a multiple of %d", number, threads,
                    SIM_WARP_SIZE);
    return &thread->block->barriers[number];
}

/* With an explicit number of threads a warp counts as a whole ("the arrival count is incremented by
 * the warp size"): lanes that do not exist or have exited count for a warp that has arrived. */
static uint32_t arrived_of_warps(const SimBlock *block, const SimBarrier *barrier) {
    uint32_t arrived = 0;
    for (uint32_t rest = barrier->warps; rest; rest &= rest - 1) {
        int warp = __builtin_ctz(rest);
        arrived += (uint32_t)__builtin_popcount(barrier->lanes[warp] | ~block->warps[warp].alive);
    }
    return arrived;
}

static bool is_complete(const SimBlock *block, const SimBarrier *barrier) {
    if (barrier->threads)
        return arrived_of_warps(block, barrier) >= barrier->threads;
    return barrier->arrived >= block->live;
}

static void arrive(SimFiber *fiber, SimBarrier *barrier, uint32_t threads, uint32_t value) {
    SimBlock *block = fiber->thread.block;
    uint32_t warp = fiber->thread.warp, bit = 1u << (barrier - block->barriers);
    if (!(block->barriers_used & bit)) {
        block->barriers_used |= bit;
        barrier->waiting = (SimQueue){0};
        barrier->arrived = barrier->non_zero = barrier->warps = 0;
        barrier->is_reduction = false;
    }
    barrier->threads = threads;
    barrier->arrived++;
    barrier->non_zero += value != 0;
    if (threads) {
        if (!(barrier->warps >> warp & 1))
            barrier->lanes[warp] = 0;
        barrier->warps |= 1u << warp;
        barrier->lanes[warp] |= 1u << fiber->thread.lane;
    }
}

static uint32_t reduced(const SimBarrier *barrier, uint32_t operation) {
    switch (operation) {
    case 0:
        return barrier->non_zero;
    case 1:
        return barrier->non_zero == barrier->arrived;
    default:
        return barrier->non_zero != 0;
    }
}

static void release(SimBlock *block, SimBarrier *barrier) {
    if (barrier->is_reduction)
        for (SimFiber *fiber = barrier->waiting.first; fiber; fiber = fiber->next)
            fiber->result = reduced(barrier, fiber->b);
    sim_append(&block->grid->ready, &barrier->waiting);
    block->grid->progress++;
    block->barriers_used &= ~(1u << (barrier - block->barriers));
}

/* Wait at a barrier where the fiber has arrived. */
static void wait_at(SimFiber *fiber, SimBarrier *barrier) {
    SimBlock *block = fiber->thread.block;
    if (is_complete(block, barrier)) {
        release(block, barrier);
        sim_continue(fiber);
    } else {
        sim_push_waiter(block->grid, &barrier->waiting, fiber);
        sim_wait(fiber, SIM_AT_BARRIER);
    }
}

SIM_EXPORT void sim_barrier(SimThread *thread, uint32_t number, uint32_t threads) {
    SimFiber *fiber = fiber_at(thread, "a barrier");
    SimBarrier *barrier = barrier_at(thread, number, threads);
    fiber->what = number;
    arrive(fiber, barrier, threads, 0);
    wait_at(fiber, barrier);
}

SIM_EXPORT uint32_t sim_barrier_reduce(SimThread *thread, uint32_t number, uint32_t threads,
                                       uint32_t operation, uint32_t value) {
    SimFiber *fiber = fiber_at(thread, "a barrier");
    SimBarrier *barrier = barrier_at(thread, number, threads);
    fiber->what = number;
    fiber->b = operation;
    arrive(fiber, barrier, threads, value);
    barrier->is_reduction = true;
    /* If this is the last thread, the barrier may be used again before it continues. */
    fiber->result = reduced(barrier, operation);
    wait_at(fiber, barrier);
    return fiber->result;
}

SIM_EXPORT void sim_barrier_arrive(SimThread *thread, uint32_t number, uint32_t threads) {
    SimFiber *fiber = fiber_at(thread, "a barrier");
    SimBarrier *barrier = barrier_at(thread, number, threads);
    arrive(fiber, barrier, threads, 0);
    if (is_complete(thread->block, barrier))
        release(thread->block, barrier);
}

/* ---- the barrier of the grid ------------------------------------------------------------------ */

static void release_grid(SimGrid *grid) {
    grid->arrived = 0;
    grid->progress++;
    sim_append(&grid->ready, &grid->synchronized);
}

SIM_EXPORT void sim_grid_sync(SimThread *thread) {
    SimGrid *grid = sim_worker()->grid;
    if (!grid->launch->is_cooperative)
        sim_abandon(thread, CUDA_ERROR_LAUNCH_FAILED,
                    "synchronization of the grid in a launch that is not cooperative");
    SimFiber *fiber = fiber_at(thread, "synchronization of the grid");
    if (++grid->arrived == grid->live) {
        release_grid(grid);
        sim_continue(fiber);
    } else {
        sim_push_waiter(grid, &grid->synchronized, fiber);
        sim_wait(fiber, SIM_AT_GRID_SYNC);
    }
}

SIM_EXPORT void *sim_grid_workspace(SimThread *thread) {
    (void)thread;
    SimGrid *grid = sim_worker()->grid;
    return grid->launch->is_cooperative ? grid->workspace : NULL;
}

/* A thread that has exited is not waited for. */
void sim_barriers_exit(SimFiber *fiber) {
    SimBlock *block = fiber->thread.block;
    SimGrid *grid = block->grid;
    for (uint32_t rest = block->barriers_used; rest; rest &= rest - 1) {
        SimBarrier *barrier = &block->barriers[__builtin_ctz(rest)];
        if (is_complete(block, barrier))
            release(block, barrier);
    }
    if (grid->arrived && grid->arrived == grid->live)
        release_grid(grid);
}

void sim_describe_wait(const SimFiber *fiber, char *text, size_t size) {
    static const char *const operations[] = {
        "shfl.sync", "shfl.sync", "shfl.sync", "shfl.sync", "bar.warp.sync", "vote.sync", "match.sync",
        "match.sync", "redux.sync",
    };
    const SimBarrier *barrier = &fiber->thread.block->barriers[fiber->what % SIM_BARRIERS];
    const SimGrid *grid = fiber->thread.block->grid;
    switch (fiber->state) {
    case SIM_AT_BARRIER:
        snprintf(text, size, "barrier %u, where %u of %u threads have arrived", fiber->what,
                 barrier->arrived, barrier->threads ? barrier->threads : fiber->thread.block->live);
        break;
    case SIM_AT_WARP_SYNC:
        snprintf(text, size, "%s with mask 0x%08x, of which lanes 0x%08x have not exited",
                 operations[fiber->what < 8 ? fiber->what : 8], fiber->mask,
                 fiber->mask & fiber->thread.block->warps[fiber->thread.warp].alive);
        break;
    case SIM_AT_GRID_SYNC:
        snprintf(text, size, "the barrier of the grid, where %llu of %llu threads have arrived",
                 (unsigned long long)grid->arrived, (unsigned long long)grid->live);
        break;
    default:
        snprintf(text, size, "no operation");
    }
}
