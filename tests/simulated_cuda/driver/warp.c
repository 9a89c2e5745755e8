/* Operations of a warp. The lanes that a mask names meet: the last one that arrives computes the
 * results of all. Lanes that have exited, or do not exist, are not waited for. */
#include "grid.h"

/* The result of a shuffle from a lane that takes no part is undefined: make that visible. */
#define UNDEFINED 0x7f7f7f7fu

/* Operations 0 to 3 are the modes of shfl.sync; from REDUX on those of redux.sync. */
enum { SYNC = 4, VOTE, MATCH_ANY, MATCH_ALL, REDUX };

static void shuffle(SimFiber *lanes, const SimMeeting *meeting) {
    for (uint32_t rest = meeting->arrived; rest; rest &= rest - 1) {
        SimFiber *fiber = &lanes[__builtin_ctz(rest)];
        /* The rules are those of the PTX ISA, shfl.sync. */
        int lane = (int)fiber->thread.lane, b = (int)(fiber->b & 31), clamp = (int)(fiber->c & 31);
        int segment = (int)(fiber->c >> 8 & 31);
        int highest = (lane & segment) | (clamp & ~segment), lowest = lane & segment;
        int source;
        switch (meeting->operation) {
        case 0:
            source = lane - b;
            fiber->flag = source >= highest;
            break;
        case 1:
            source = lane + b;
            fiber->flag = source <= highest;
            break;
        case 2:
            source = lane ^ b;
            fiber->flag = source <= highest;
            break;
        default:
            source = lowest | (b & ~segment);
            fiber->flag = source <= highest;
        }
        if (!fiber->flag)
            source = lane;
        bool is_there = meeting->arrived >> source & 1;
        fiber->result = is_there ? (uint32_t)lanes[source].value : UNDEFINED;
    }
}

static uint32_t reduced(uint32_t operation, uint32_t a, uint32_t b) {
    switch (operation) {
    case 0:
        return a + b;
    case 1:
        return (int32_t)a < (int32_t)b ? a : b;
    case 2:
        return (int32_t)a > (int32_t)b ? a : b;
    case 3:
        return a < b ? a : b;
    case 4:
        return a > b ? a : b;
    case 5:
        return a & b;
    case 6:
        return a | b;
    default:
        return a ^ b;
    }
}

/* Operations with one result for all lanes. */
static uint32_t common_result(SimFiber *lanes, const SimMeeting *meeting) {
    uint32_t result = 0;
    bool is_first = true;
    for (uint32_t rest = meeting->arrived; rest; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        uint32_t value = (uint32_t)lanes[lane].value;
        if (meeting->operation == VOTE)
            result |= (uint32_t)(value != 0) << lane;
        else
            result = is_first ? value : reduced(meeting->operation - REDUX, result, value);
        is_first = false;
    }
    return result;
}

static uint32_t equal_lanes(SimFiber *lanes, const SimMeeting *meeting, uint64_t value) {
    uint32_t result = 0;
    for (uint32_t rest = meeting->arrived; rest; rest &= rest - 1)
        if (lanes[__builtin_ctz(rest)].value == value)
            result |= rest & -rest;
    return result;
}

static void compute(SimFiber *lanes, const SimMeeting *meeting) {
    if (meeting->operation == SYNC)
        return;
    if (meeting->operation < SYNC) {
        shuffle(lanes, meeting);
        return;
    }
    bool is_match = meeting->operation == MATCH_ANY || meeting->operation == MATCH_ALL;
    uint32_t common = is_match ? 0 : common_result(lanes, meeting);
    for (uint32_t rest = meeting->arrived; rest; rest &= rest - 1) {
        SimFiber *fiber = &lanes[__builtin_ctz(rest)];
        fiber->result = is_match ? equal_lanes(lanes, meeting, fiber->value) : common;
        if (meeting->operation == MATCH_ALL) {
            fiber->flag = fiber->result == meeting->arrived;
            fiber->result = fiber->flag ? meeting->arrived : 0;
        }
    }
}

/* Compute the results of a meeting and release its lanes, but for the one that runs now. */
static void complete(SimGrid *grid, SimWarp *warp, SimFiber *lanes, SimMeeting *meeting, uint32_t running) {
    compute(lanes, meeting);
    uint32_t rest = meeting->arrived & ~running;
    while (rest) {
        int lane = grid->is_reversed ? 31 - __builtin_clz(rest) : __builtin_ctz(rest);
        sim_push(&grid->ready, &lanes[lane]);
        rest &= ~(1u << lane);
    }
    warp->used &= ~(1u << (meeting - warp->meetings));
    grid->progress++;
}

static SimMeeting *meeting_at(SimWarp *warp, uint32_t operation, uint32_t mask) {
    for (uint32_t rest = warp->used; rest; rest &= rest - 1) {
        SimMeeting *meeting = &warp->meetings[__builtin_ctz(rest)];
        if (meeting->mask == mask && meeting->operation == operation)
            return meeting;
    }
    /* Each lane is in at most one meeting, so one of 32 is unused. */
    int unused = __builtin_ctz(~warp->used);
    warp->used |= 1u << unused;
    warp->meetings[unused] = (SimMeeting){.mask = mask, .operation = operation};
    return &warp->meetings[unused];
}

/* Meet the other lanes of `mask`. Operands are in the fiber, results will be. */
static void meet(SimFiber *fiber, uint32_t operation, uint32_t mask) {
    SimThread *thread = &fiber->thread;
    SimBlock *block = thread->block;
    SimWarp *warp = &block->warps[thread->warp];
    SimFiber *lanes = &block->fibers[thread->warp * SIM_WARP_SIZE];
    uint32_t own = 1u << thread->lane;
    fiber->mask = mask;
    fiber->what = operation;
    if (!(mask & own))
        sim_abandon(thread, CUDA_ERROR_ILLEGAL_INSTRUCTION,
                    "lane %u calls an operation of its warp with the mask 0x%08x, which does not name it",
                    thread->lane, mask);
    SimMeeting *meeting = meeting_at(warp, operation, mask);
    meeting->arrived |= own;
    uint32_t expected = mask & warp->alive;
    if ((meeting->arrived & expected) == expected) {
        complete(block->grid, warp, lanes, meeting, own);
        sim_continue(fiber);
    } else {
        sim_wait(fiber, SIM_AT_WARP_SYNC);
    }
}

static SimFiber *fiber_at(SimThread *thread) {
    if (!thread->block)
        sim_abandon(thread, CUDA_ERROR_LAUNCH_FAILED,
                    "an operation of a warp in a kernel that is declared to have none");
    return sim_fiber(thread);
}

void sim_warp_exit(SimFiber *fiber) {
    SimBlock *block = fiber->thread.block;
    SimWarp *warp = &block->warps[fiber->thread.warp];
    warp->alive &= ~(1u << fiber->thread.lane);
    for (uint32_t rest = warp->used; rest; rest &= rest - 1) {
        SimMeeting *meeting = &warp->meetings[__builtin_ctz(rest)];
        uint32_t expected = meeting->mask & warp->alive;
        if ((meeting->arrived & expected) == expected)
            complete(block->grid, warp, &block->fibers[fiber->thread.warp * SIM_WARP_SIZE], meeting, 0);
    }
}

/* ---- calls of kernels ------------------------------------------------------------------------- */

SIM_EXPORT void sim_warp_sync(SimThread *thread, uint32_t mask) { meet(fiber_at(thread), SYNC, mask); }

SIM_EXPORT uint32_t sim_shuffle(SimThread *thread, uint32_t mode, uint32_t value, uint32_t b, uint32_t c,
                                uint32_t mask, uint32_t *in_range) {
    SimFiber *fiber = fiber_at(thread);
    fiber->value = value;
    fiber->b = b;
    fiber->c = c;
    meet(fiber, mode & 3, mask);
    if (in_range)
        *in_range = fiber->flag;
    return fiber->result;
}

SIM_EXPORT uint32_t sim_ballot(SimThread *thread, uint32_t value, uint32_t mask) {
    SimFiber *fiber = fiber_at(thread);
    fiber->value = value;
    meet(fiber, VOTE, mask);
    return fiber->result;
}

SIM_EXPORT uint32_t sim_match(SimThread *thread, uint64_t value, uint32_t mask, uint32_t all,
                              uint32_t *is_all) {
    SimFiber *fiber = fiber_at(thread);
    fiber->value = value;
    meet(fiber, all ? MATCH_ALL : MATCH_ANY, mask);
    if (all && is_all)
        *is_all = fiber->flag;
    return fiber->result;
}

SIM_EXPORT uint32_t sim_redux(SimThread *thread, uint32_t operation, uint32_t value, uint32_t mask) {
    SimFiber *fiber = fiber_at(thread);
    fiber->value = value;
    meet(fiber, REDUX + operation, mask);
    return fiber->result;
}

/* Lanes that reach the same activemask together are active together, as they would be on a
 * GPU: a lane waits until no other thread of the launch can run. */
SIM_EXPORT uint32_t sim_active_mask(SimThread *thread, uint32_t line) {
    if (!thread->block)
        return 1u << thread->lane;
    SimFiber *fiber = sim_fiber(thread);
    fiber->line = line;
    sim_push(&thread->block->grid->masks, fiber);
    sim_wait(fiber, SIM_AT_ACTIVE_MASK);
    return fiber->result;
}

bool sim_answer_active_masks(SimGrid *grid) {
    if (!grid->masks.first)
        return false;
    for (SimFiber *fiber = grid->masks.first; fiber; fiber = fiber->next) {
        const SimBlock *block = fiber->thread.block;
        const SimFiber *lanes = &block->fibers[fiber->thread.warp * SIM_WARP_SIZE];
        fiber->result = 0;
        for (uint32_t rest = block->warps[fiber->thread.warp].alive; rest; rest &= rest - 1) {
            const SimFiber *other = &lanes[__builtin_ctz(rest)];
            if (other->state == SIM_AT_ACTIVE_MASK && other->line == fiber->line)
                fiber->result |= rest & -rest;
        }
    }
    sim_append(&grid->ready, &grid->masks);
    grid->progress++;
    return true;
}
