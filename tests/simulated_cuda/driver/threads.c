/* The threads of a launch.
 *
 * A kernel whose threads never wait for each other is called for one thread after the other.
 * Otherwise each thread of a block is a fiber that runs until it waits; the next one continues
 * directly. Blocks begin one after the other, or, if threads of different blocks may wait for each
 * other, when all threads of the blocks before wait, up to what the simulated GPU holds. */
#include "grid.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIN_STACK (64 * 1024) /* for the C library beside what a thread needs */
#define MAX_KEPT_STACKS 4096
/* A loop that reads memory is polled this often between two switches. */
#define POLLS_PER_SWITCH 8
/* Rounds of loops that wait without progress, before another block begins. */
#define ROUNDS_PER_BLOCK 16
/* Nanoseconds without progress after which waiting loops are polled less often. */
#define PATIENT_WAIT 1000000
#define IDLE_WAIT 50000000

/* ---- queues ----------------------------------------------------------------------------------- */

void sim_push(SimQueue *queue, SimFiber *fiber) {
    fiber->next = NULL;
    if (queue->first)
        queue->last->next = fiber;
    else
        queue->first = fiber;
    queue->last = fiber;
}

void sim_push_waiter(SimGrid *grid, SimQueue *queue, SimFiber *fiber) {
    if (!grid->is_reversed || !queue->first) {
        sim_push(queue, fiber);
    } else {
        fiber->next = queue->first;
        queue->first = fiber;
    }
}

void sim_append(SimQueue *queue, SimQueue *taken) {
    if (!taken->first)
        return;
    if (queue->first)
        queue->last->next = taken->first;
    else
        queue->first = taken->first;
    queue->last = taken->last;
    *taken = (SimQueue){0};
}

/* ---- ends of a launch ------------------------------------------------------------------------- */

void sim_describe(const SimGrid *grid, const SimThread *thread, char *text, size_t size) {
    snprintf(text, size, "kernel %s, block (%u, %u, %u), thread (%u, %u, %u)", grid->launch->name,
             thread->ctaid[0], thread->ctaid[1], thread->ctaid[2], thread->tid[0], thread->tid[1],
             thread->tid[2]);
}

static void abandon(SimGrid *grid, CUresult status) {
    grid->worker->status = status;
    siglongjmp(grid->worker->abandon, SIM_JUMP_ABANDON);
}

void sim_abandon(SimThread *thread, CUresult status, const char *format, ...) {
    SimGrid *grid = sim_worker()->grid;
    char what[1024], where[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    sim_describe(grid, thread, where, sizeof where);
    sim_message("%s: %s", where, what);
    abandon(grid, status);
    __builtin_unreachable();
}

static void report_deadlock(SimGrid *grid) {
    const SimFiber *example = NULL;
    unsigned long long waiting = 0;
    for (const SimBlock *block = grid->all; block; block = block->next_of_all)
        for (uint32_t i = 0; block->live && i < grid->threads; i++) {
            const SimFiber *fiber = &block->fibers[i];
            if (fiber->state != SIM_NOT_STARTED && fiber->state != SIM_EXITED) {
                example = example ? example : fiber;
                waiting++;
            }
        }
    char where[512], what[128];
    sim_describe(grid, &example->thread, where, sizeof where);
    sim_describe_wait(example, what, sizeof what);
    sim_message("%s: deadlock: %llu threads wait and nothing can release them; this thread waits at %s",
                where, waiting, what);
    abandon(grid, CUDA_ERROR_LAUNCH_TIMEOUT);
}

/* ---- scheduling of fibers --------------------------------------------------------------------- */

static uint64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* End a launch that cannot go on: its context is broken, or it waits for too long. */
static void check_limits(SimGrid *grid, uint64_t idle) {
    SimContext *context = grid->launch->context;
    if (context->sticky)
        abandon(grid, context->sticky);
    if (!context->is_active) /* it is being destroyed, and waits for this launch */
        abandon(grid, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    uint64_t limit = (uint64_t)sim_setting("NBRT_SIM_TIMEOUT", 120) * 1000000000u;
    if (limit && idle > limit) {
        char where[512];
        sim_describe(grid, grid->running, where, sizeof where);
        sim_message("%s: no thread of the kernel made progress for %llu s (NBRT_SIM_TIMEOUT)", where,
                    (unsigned long long)(idle / 1000000000u));
        abandon(grid, CUDA_ERROR_LAUNCH_TIMEOUT);
    }
}

/* All runnable threads poll memory. If none made progress for a while, the host or another stream
 * must write that memory: leave the processor to it. */
static void poll_again(SimGrid *grid) {
    sim_append(&grid->ready, &grid->yielded);
    if (grid->progress != grid->seen_progress) {
        grid->seen_progress = grid->progress;
        grid->idle_rounds = 0;
        return;
    }
    if (++grid->idle_rounds < 2 * ROUNDS_PER_BLOCK)
        return;
    if (grid->idle_rounds == 2 * ROUNDS_PER_BLOCK)
        grid->idle_since = nanoseconds();
    if (grid->idle_rounds % ROUNDS_PER_BLOCK)
        return;
    uint64_t idle = nanoseconds() - grid->idle_since;
    if (idle > PATIENT_WAIT) {
        check_limits(grid, idle);
        struct timespec pause = {0, idle > IDLE_WAIT ? 200000 : 20000};
        nanosleep(&pause, NULL);
    }
}

/* The fiber that runs next, or NULL if the launch is done. */
static SimFiber *choose(SimGrid *grid) {
    for (;;) {
        SimFiber *fiber = grid->ready.first;
        if (fiber) {
            grid->ready.first = fiber->next;
            return fiber;
        }
        SimBlock *block = grid->starting;
        if (block) {
            fiber = &block->fibers[block->next_index];
            block->next_index += grid->stride;
            if (block->next_index >= grid->threads)
                block->next_index -= grid->threads;
            if (++block->started == grid->threads)
                grid->starting = NULL;
            return fiber;
        }
        if (sim_answer_active_masks(grid))
            continue;
        bool may_begin = grid->next_block < grid->blocks && grid->resident < grid->max_resident;
        if (may_begin && (!grid->yielded.first || grid->idle_rounds >= ROUNDS_PER_BLOCK)) {
            grid->starting = sim_begin_block(grid);
            if (!grid->starting)
                abandon(grid, CUDA_ERROR_OUT_OF_MEMORY);
            grid->resident++;
            grid->idle_rounds = 0;
        } else if (grid->yielded.first) {
            poll_again(grid);
        } else if (!grid->resident) {
            return NULL;
        } else {
            report_deadlock(grid);
        }
    }
}

static void fiber_main(void);

/* Prepare a fiber to be continued: one that starts gets a stack. */
static void *context_of(SimGrid *grid, SimFiber *fiber) {
    if (fiber->state == SIM_NOT_STARTED) {
        fiber->stack = sim_take_stack(&grid->worker->stacks);
        if (!fiber->stack)
            abandon(grid, CUDA_ERROR_OUT_OF_MEMORY);
        fiber->context = sim_new_context(fiber->stack, fiber_main);
    }
    fiber->state = SIM_RUNNABLE;
    grid->running = &fiber->thread;
    return fiber->context;
}

void sim_wait(SimFiber *fiber, SimFiberState state) {
    SimGrid *grid = fiber->thread.block->grid;
    fiber->state = state;
    SimFiber *next = choose(grid);
    if (next == fiber) {
        fiber->state = SIM_RUNNABLE;
        grid->running = &fiber->thread;
    } else {
        void *context = context_of(grid, next);
        sim_switch_context(&fiber->context, context);
    }
}

void sim_continue(SimFiber *fiber) {
    SimGrid *grid = fiber->thread.block->grid;
    if (grid->is_shuffled && sim_random(grid) & 1) {
        sim_push(&grid->ready, fiber);
        sim_wait(fiber, SIM_RUNNABLE);
    }
}

static void finish(SimGrid *grid, SimFiber *fiber) {
    SimBlock *block = fiber->thread.block;
    fiber->state = SIM_EXITED;
    grid->progress++;
    grid->live--;
    block->live--;
    sim_warp_exit(fiber);
    sim_barriers_exit(fiber);
    if (!block->live) {
        block->next = grid->unused;
        grid->unused = block;
        grid->resident--;
    }
}

/* Continue with another thread, never with this one; its stack is free from now on. The next thread
 * may have taken a stack before, but not this one, which is in use until the switch. */
static void leave(SimGrid *grid, SimStack *stack, SimFiber *next) {
    void *context = next ? context_of(grid, next) : grid->scheduler;
    void *dropped;
    sim_put_stack(&grid->worker->stacks, stack);
    sim_switch_context(&dropped, context);
    __builtin_unreachable();
}

static void fiber_main(void) {
    SimGrid *grid = sim_worker()->grid;
    for (;;) {
        SimFiber *fiber = sim_fiber(grid->running);
        grid->launch->info->entry(grid->launch->parameters, &fiber->thread);
        SimStack *stack = fiber->stack;
        finish(grid, fiber);
        SimFiber *next = choose(grid);
        if (!next || next->state != SIM_NOT_STARTED)
            leave(grid, stack, next);
        next->stack = stack; /* the next thread starts on the same stack */
        next->state = SIM_RUNNABLE;
        grid->running = &next->thread;
    }
}

static void run_fibers(SimGrid *grid) {
    const SimGridLaunch *launch = grid->launch;
    SimStacks *stacks = &grid->worker->stacks;
    size_t needed = MIN_STACK + launch->info->stack_bytes + launch->context->limits[CU_LIMIT_STACK_SIZE];
    if (stacks->size < needed) {
        sim_free_stacks(stacks);
        stacks->size = needed;
    }
    grid->max_resident = 1;
    if (launch->is_cooperative)
        grid->max_resident = (uint32_t)grid->blocks;
    else if (launch->info->spins && launch->resident > 1)
        grid->max_resident = launch->resident;
    void *context = context_of(grid, choose(grid));
    sim_switch_context(&grid->scheduler, context);
}

/* ---- plain loops ------------------------------------------------------------------------------ */

static void run_threads(SimGrid *grid, SimThread *thread) {
    SimEntry entry = grid->launch->info->entry;
    const uint8_t *parameters = grid->launch->parameters;
    while (grid->position < grid->threads) {
        uint32_t index = grid->thread_index;
        sim_set_index(thread, index);
        index += grid->stride;
        grid->thread_index = index < grid->threads ? index : index - grid->threads;
        grid->position++; /* before the call, which may jump (sim_exit) */
        entry(parameters, thread);
    }
}

static void run_plain(SimGrid *grid) {
    SimThread *thread = &grid->prototype;
    run_threads(grid, thread); /* after sim_exit: the rest of the block */
    while (grid->next_block < grid->blocks) {
        sim_next_block(grid, thread);
        if (grid->shared_bytes)
            thread->shared = sim_shared_memory(&grid->worker->shared, grid->shared_bytes);
        if (grid->shared_bytes && !thread->shared)
            abandon(grid, CUDA_ERROR_OUT_OF_MEMORY);
        grid->position = 0;
        grid->thread_index = grid->is_shuffled ? sim_random(grid) % grid->threads : 0;
        run_threads(grid, thread);
    }
}

CUresult sim_run_grid(const SimGridLaunch *launch) {
    SimWorker *worker = sim_worker();
    if (!worker)
        return CUDA_ERROR_OUT_OF_MEMORY;
    sim_install_handlers();
    SimGrid grid;
    sim_begin_grid(&grid, launch, worker);
    worker->grid = &grid;
    CUresult status = CUDA_SUCCESS;
    bool has_fibers = launch->info->waits || launch->info->spins;
    /* The handler of faults blocks no signal, so the mask is not saved. */
    switch (sigsetjmp(worker->abandon, 0)) {
    case 0:
    case SIM_JUMP_EXIT:
        if (has_fibers)
            run_fibers(&grid);
        else
            run_plain(&grid);
        break;
    case SIM_JUMP_FAULT:
        status = sim_report_fault(worker);
        sim_reset_stacks(&worker->stacks);
        break;
    default:
        status = worker->status;
        sim_reset_stacks(&worker->stacks);
    }
    worker->grid = NULL;
    if (has_fibers)
        sim_keep_blocks(&grid);
    if (worker->stacks.count > MAX_KEPT_STACKS)
        sim_free_stacks(&worker->stacks);
    return status;
}

/* ---- calls of kernels ------------------------------------------------------------------------- */

SIM_EXPORT void sim_exit(SimThread *thread) {
    if (thread->block) {
        SimGrid *grid = thread->block->grid;
        SimStack *stack = sim_fiber(thread)->stack;
        finish(grid, sim_fiber(thread));
        leave(grid, stack, choose(grid));
    }
    siglongjmp(sim_worker()->abandon, SIM_JUMP_EXIT);
}

SIM_EXPORT void sim_trap(SimThread *thread) {
    sim_abandon(thread, CUDA_ERROR_LAUNCH_FAILED, "trap");
}

SIM_EXPORT void sim_yield(SimThread *thread) {
    if (!thread->block)
        return;
    SimFiber *fiber = sim_fiber(thread);
    if (++fiber->yields % POLLS_PER_SWITCH)
        return;
    sim_push(&thread->block->grid->yielded, fiber);
    sim_wait(fiber, SIM_RUNNABLE);
}
