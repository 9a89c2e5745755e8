/* A launch that runs: its blocks, and the fibers of their threads (threads.c, barriers.c, warp.c,
 * faults.c, printing.c). Each thread of the process that runs launches has a worker. */
#ifndef GRID_H
#define GRID_H
#include "fibers.h"
#include "sim.h"
#include "threads.h"

#include <setjmp.h>

#define SIM_BARRIERS 16 /* named barriers of a block */
#define SIM_WARP_SIZE 32
#define SIM_MAX_WARPS 32

/* A launch, as launch.c describes it. */
typedef struct SimGridLaunch {
    SimContext *context;
    const char *name;
    const SimKernelInfo *info;
    const uint8_t *parameters;
    uint32_t grid[3], block[3];
    uint32_t dynamic_shared;
    uint32_t resident; /* blocks that the simulated GPU holds at a time */
    bool is_cooperative;
} SimGridLaunch;

typedef enum SimFiberState {
    SIM_NOT_STARTED,
    SIM_RUNNABLE,
    SIM_AT_BARRIER,
    SIM_AT_WARP_SYNC,
    SIM_AT_ACTIVE_MASK,
    SIM_AT_GRID_SYNC,
    SIM_EXITED,
} SimFiberState;

typedef struct SimFiber SimFiber;
struct SimFiber {
    SimThread thread; /* first, so that a SimThread of a block is a fiber */
    SimFiberState state;
    uint32_t index; /* in the block */
    void *context;  /* where it continues */
    SimStack *stack;
    SimFiber *next; /* of the list that it is in */
    /* An exchange with other threads: operands, and the results that the last thread writes. */
    uint64_t value;
    uint32_t b, c, mask, result, flag;
    uint32_t what;    /* the barrier, or the operation of a warp, for reports */
    uint32_t line; /* of activemask */
    uint32_t yields;
};

typedef struct SimQueue {
    SimFiber *first, *last;
} SimQueue;

typedef struct SimBarrier {
    SimQueue waiting;
    uint32_t threads;  /* that complete it, or 0: all threads of the block */
    uint32_t arrived;  /* threads */
    uint32_t non_zero; /* of a reduction: threads with a value */
    bool is_reduction;
    /* With an explicit number of threads: */
    uint32_t warps;                 /* that have arrived */
    uint32_t lanes[SIM_MAX_WARPS]; /* of them, that have arrived */
} SimBarrier;

/* Lanes that have arrived at an operation of a warp. */
typedef struct SimMeeting {
    uint32_t mask, arrived, operation;
} SimMeeting;

typedef struct SimWarp {
    uint32_t alive; /* lanes that have not exited */
    uint32_t used;  /* meetings in use: bits */
    SimMeeting meetings[SIM_WARP_SIZE];
} SimWarp;

/* Shared memory of a block, with a guard page behind its end. */
typedef struct SimShared {
    char *mapping;
    size_t size; /* of the mapping */
} SimShared;

struct SimBlock {
    struct SimGrid *grid;
    SimFiber *fibers;
    uint32_t live;            /* threads that have not exited */
    uint32_t started;         /* threads that were started */
    uint32_t next_index;      /* thread that starts next */
    uint32_t barriers_used;   /* bits: those with arrivals */
    SimBarrier barriers[SIM_BARRIERS];
    SimWarp warps[SIM_MAX_WARPS];
    uint32_t ctaid[3], sm;
    SimShared shared;
    uint32_t capacity; /* fibers */
    SimBlock *next;    /* of `unused` */
    SimBlock *next_of_all;
};

typedef struct SimGrid {
    const SimGridLaunch *launch;
    struct SimWorker *worker;
    SimThread prototype; /* values that all threads share */
    uint32_t threads;    /* of a block */
    uint32_t shared_bytes;
    uint64_t blocks, next_block, first_block; /* number, number begun, and offset of the order */
    bool is_reversed;                         /* blocks run in descending order */
    bool is_shuffled;                         /* NBRT_SIM_SEED is not 0 */
    uint64_t random;
    uint32_t stride; /* between threads that run one after the other; coprime to `threads` */
    SimThread *running;
    /* fibers */
    uint32_t resident; /* blocks begun and not finished */
    uint32_t max_resident;
    SimBlock *starting; /* block with threads that have not started */
    SimBlock *unused;   /* blocks that are finished */
    SimBlock *all;
    SimQueue ready, yielded, masks, synchronized;
    uint32_t workspace[2];  /* sim_grid_workspace */
    uint64_t live, arrived; /* threads of the grid that have not exited; those at the grid barrier */
    uint64_t progress;      /* counts exits and releases */
    uint64_t seen_progress; /* when the yielded threads ran last */
    uint32_t idle_rounds;
    uint64_t idle_since; /* nanoseconds */
    void *scheduler;     /* context of sim_run_grid */
    /* plain loops */
    uint32_t position; /* threads of the block that were run */
    uint32_t thread_index;
} SimGrid;

/* Why a launch was abandoned, for the report after the jump. */
typedef struct SimFault {
    int signal, code;
    const void *address;
    int is_write; /* -1: unknown */
} SimFault;

typedef struct SimWorker {
    SimGrid *grid; /* that runs now, or NULL */
    sigjmp_buf abandon;
    CUresult status; /* of an abandoned launch */
    SimFault fault;
    SimStacks stacks;
    char *signal_stack;
    char *stack_low; /* lowest address of the stack of this thread of the process */
    SimBlock *blocks; /* kept for the next launch, by next_of_all */
    SimShared shared; /* of plain loops */
} SimWorker;

/* Values of the jump to sim_run_grid. */
enum { SIM_JUMP_FAULT = 1, SIM_JUMP_ABANDON, SIM_JUMP_EXIT };

/* ---- threads.c -------------------------------------------------------------------------------- */
CUresult sim_run_grid(const SimGridLaunch *launch);

/* ---- access.c ---------------------------------------------------------------------------------- */
/* CUDA_ERROR_ILLEGAL_ADDRESS if an argument points to memory that the device may not access. */
CUresult sim_check_arguments(const SimGridLaunch *launch);
static inline SimFiber *sim_fiber(SimThread *thread) { return (SimFiber *)thread; }
void sim_push(SimQueue *queue, SimFiber *fiber);
/* Add to the end, or to the front in a launch whose seed says so. */
void sim_push_waiter(SimGrid *grid, SimQueue *queue, SimFiber *fiber);
/* Move all fibers of a queue to the end of another. */
void sim_append(SimQueue *queue, SimQueue *taken);
uint32_t sim_random(SimGrid *grid);
/* Let other threads run, until this one is in the ready queue again and its turn comes. */
void sim_wait(SimFiber *fiber, SimFiberState state);
/* After a release: let the caller continue at once, or after the others. */
void sim_continue(SimFiber *fiber);
/* End the launch: report the message with the names of the kernel, block and thread. */
void sim_abandon(SimThread *thread, CUresult status, const char *format, ...)
    __attribute__((format(printf, 3, 4), noreturn));
/* "kernel f, block (0, 0, 0), thread (1, 0, 0)" */
void sim_describe(const SimGrid *grid, const SimThread *thread, char *text, size_t size);

/* Write a line to the report and to stderr. */
void sim_message(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- blocks.c --------------------------------------------------------------------------------- */
void sim_begin_grid(SimGrid *grid, const SimGridLaunch *launch, SimWorker *worker);
/* Set ctaid, clusterid and sm of a thread to those of the next block, and count that begun. */
void sim_next_block(SimGrid *grid, SimThread *thread);
static inline void sim_set_index(SimThread *thread, uint32_t index) {
    uint32_t width = thread->ntid[0], height = thread->ntid[1];
    if (index < width) {
        thread->tid[0] = index;
        thread->tid[1] = thread->tid[2] = 0;
    } else {
        uint32_t row = index / width;
        thread->tid[0] = index - row * width;
        thread->tid[1] = row % height;
        thread->tid[2] = row / height;
    }
    thread->lane = index % SIM_WARP_SIZE;
    thread->warp = index / SIM_WARP_SIZE;
}
/* Shared memory filled with a pattern; NULL without memory. */
char *sim_shared_memory(SimShared *shared, size_t size);
/* The next block of the grid, with none of its threads started; NULL without memory. */
SimBlock *sim_begin_block(SimGrid *grid);
/* Keep some blocks for the next launch of the worker. */
void sim_keep_blocks(SimGrid *grid);
void sim_free_blocks(SimWorker *worker);

/* ---- barriers.c, warp.c: what an exit releases ------------------------------------------------ */
void sim_barriers_exit(SimFiber *fiber);
void sim_warp_exit(SimFiber *fiber);
/* Answer the threads that wait for activemask; false if there are none. */
bool sim_answer_active_masks(SimGrid *grid);
/* "barrier 0", "shfl.sync", ...: what a fiber waits for. */
void sim_describe_wait(const SimFiber *fiber, char *text, size_t size);

/* ---- faults.c --------------------------------------------------------------------------------- */
SimWorker *sim_worker(void); /* of this thread; NULL without memory */
/* Make sure that faults of this process come to the handler first. */
void sim_install_handlers(void);
/* Report the fault that ended a launch; returns its status. */
CUresult sim_report_fault(SimWorker *worker);
#endif
