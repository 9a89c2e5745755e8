/* Blocks of a launch: their order, shared memory and fibers. */
#include "grid.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* As a float, a double or an integer, this is a large number that shows in results. */
#define UNINITIALISED 0x7f
/* Shared memory ends at a guard page, but for this rounding: the largest .align that numba-cuda's
 * tests ask for. */
#define SHARED_ALIGNMENT 256
#define MAX_KEPT_BLOCKS 4

static atomic_ullong grid_ids;

static long seed_setting(void) {
    static _Atomic long cached = -1;
    long seed = atomic_load_explicit(&cached, memory_order_relaxed);
    if (seed < 0) {
        seed = labs(sim_setting("NBRT_SIM_SEED", 1));
        atomic_store_explicit(&cached, seed, memory_order_relaxed);
    }
    return seed;
}

uint32_t sim_random(SimGrid *grid) { /* xorshift64* */
    uint64_t x = grid->random;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    grid->random = x;
    return (uint32_t)(x * 0x2545f4914f6cdd1du >> 32);
}

static uint32_t common_divisor(uint32_t a, uint32_t b) {
    while (b) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The order depends on the seed, the name of the kernel and its geometry only, so a failure can be
 * repeated. Threads run in steps of a stride, blocks in ascending or descending order from some
 * block on: that exposes missing barriers, and leaves the memory accesses of a grid in sequence. */
static void choose_order(SimGrid *grid) {
    const SimGridLaunch *launch = grid->launch;
    long seed = seed_setting();
    grid->is_shuffled = seed != 0;
    grid->stride = 1;
    if (!grid->is_shuffled)
        return;
    uint64_t hash = 0xcbf29ce484222325u ^ (uint64_t)seed;
    for (const char *at = launch->name; *at; at++)
        hash = (hash ^ (unsigned char)*at) * 0x100000001b3u;
    for (int i = 0; i < 3; i++)
        hash = (hash ^ launch->grid[i] ^ (uint64_t)launch->block[i] << 32) * 0x9e3779b97f4a7c15u;
    grid->random = hash ? hash : 1;
    grid->is_reversed = sim_random(grid) & 1;
    grid->first_block = sim_random(grid) % grid->blocks;
    if (grid->threads > 2) {
        do
            grid->stride = 1 + sim_random(grid) % (grid->threads - 1);
        while (common_divisor(grid->stride, grid->threads) != 1);
    }
}

void sim_begin_grid(SimGrid *grid, const SimGridLaunch *launch, SimWorker *worker) {
    memset(grid, 0, sizeof *grid);
    grid->launch = launch;
    grid->worker = worker;
    SimThread *thread = &grid->prototype;
    grid->blocks = grid->threads = 1;
    for (int i = 0; i < 3; i++) {
        thread->ntid[i] = launch->block[i];
        thread->nctaid[i] = thread->clusters[3 + i] = launch->grid[i];
        grid->threads *= launch->block[i];
        grid->blocks *= launch->grid[i];
    }
    const int *attributes = launch->context->device->attributes;
    thread->dynamic_shared = launch->dynamic_shared;
    thread->total_shared = grid->shared_bytes = launch->info->static_shared + launch->dynamic_shared;
    thread->grid = atomic_fetch_add(&grid_ids, 1) + 1;
    thread->sm_count = (uint32_t)attributes[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT];
    grid->live = grid->blocks * grid->threads;
    grid->running = thread;
    grid->position = grid->threads;
    choose_order(grid);
}

void sim_next_block(SimGrid *grid, SimThread *thread) {
    uint64_t number = grid->next_block++ + grid->first_block;
    if (number >= grid->blocks)
        number -= grid->blocks;
    if (grid->is_reversed)
        number = grid->blocks - 1 - number;
    uint64_t width = thread->nctaid[0], height = thread->nctaid[1];
    thread->ctaid[0] = (uint32_t)(number % width);
    thread->ctaid[1] = (uint32_t)(number / width % height);
    thread->ctaid[2] = (uint32_t)(number / width / height);
    memcpy(thread->clusters, thread->ctaid, sizeof thread->ctaid); /* clusters of one block */
    thread->sm = (uint32_t)(number % thread->sm_count);
}

char *sim_shared_memory(SimShared *shared, size_t size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t rounded = (size + SHARED_ALIGNMENT - 1) / SHARED_ALIGNMENT * SHARED_ALIGNMENT;
    size_t needed = (rounded + page - 1) / page * page + page;
    if (shared->size < needed) {
        if (shared->mapping)
            munmap(shared->mapping, shared->size);
        *shared = (SimShared){0};
        char *mapping = mmap(NULL, needed, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapping == MAP_FAILED)
            return NULL;
        mprotect(mapping + needed - page, page, PROT_NONE);
        *shared = (SimShared){mapping, needed};
    }
    char *start = shared->mapping + shared->size - page - rounded;
    memset(start, UNINITIALISED, rounded);
    return start;
}

/* ---- blocks with fibers ----------------------------------------------------------------------- */

static void free_block(SimBlock *block) {
    if (block->shared.mapping)
        munmap(block->shared.mapping, block->shared.size);
    free(block->fibers);
    free(block);
}

/* A block for fibers of this grid: one that is kept from an earlier launch, or a new one. */
static SimBlock *new_block(SimGrid *grid) {
    SimWorker *worker = grid->worker;
    SimBlock *block = worker->blocks;
    if (block)
        worker->blocks = block->next_of_all;
    else
        block = calloc(1, sizeof *block);
    if (block && block->capacity < grid->threads) {
        free(block->fibers);
        block->fibers = calloc(grid->threads, sizeof *block->fibers);
        block->capacity = block->fibers ? grid->threads : 0;
        if (!block->fibers) {
            free_block(block);
            block = NULL;
        }
    }
    if (!block)
        return NULL;
    block->grid = grid;
    block->next_of_all = grid->all;
    grid->all = block;
    for (uint32_t i = 0; i < grid->threads; i++) {
        SimFiber *fiber = &block->fibers[i];
        fiber->thread = grid->prototype;
        fiber->thread.block = block;
        fiber->index = i;
        sim_set_index(&fiber->thread, i);
    }
    return block;
}

SimBlock *sim_begin_block(SimGrid *grid) {
    SimBlock *block = grid->unused;
    if (block)
        grid->unused = block->next;
    else if (!(block = new_block(grid)))
        return NULL;
    char *shared = NULL;
    if (grid->shared_bytes && !(shared = sim_shared_memory(&block->shared, grid->shared_bytes)))
        return NULL;
    sim_next_block(grid, &grid->prototype);
    const SimThread *common = &grid->prototype;
    for (uint32_t i = 0; i < grid->threads; i++) {
        SimFiber *fiber = &block->fibers[i];
        SimThread *thread = &fiber->thread;
        memcpy(thread->ctaid, common->ctaid, sizeof thread->ctaid);
        memcpy(thread->clusters, common->clusters, sizeof thread->ctaid);
        thread->sm = common->sm;
        thread->shared = shared;
        fiber->state = SIM_NOT_STARTED;
        fiber->yields = 0;
    }
    block->live = grid->threads;
    block->started = 0;
    block->next_index = grid->is_shuffled ? sim_random(grid) % grid->threads : 0;
    block->barriers_used = 0;
    for (uint32_t first = 0; first < grid->threads; first += SIM_WARP_SIZE) {
        uint32_t lanes = grid->threads - first;
        SimWarp *warp = &block->warps[first / SIM_WARP_SIZE];
        warp->alive = lanes >= SIM_WARP_SIZE ? UINT32_MAX : (1u << lanes) - 1;
        warp->used = 0;
    }
    return block;
}

void sim_keep_blocks(SimGrid *grid) {
    int kept = 0;
    for (SimBlock *block = grid->all, *next; block; block = next) {
        next = block->next_of_all;
        if (kept++ < MAX_KEPT_BLOCKS) {
            block->next_of_all = grid->worker->blocks;
            grid->worker->blocks = block;
        } else {
            free_block(block);
        }
    }
    grid->all = NULL;
}

void sim_free_blocks(SimWorker *worker) {
    for (SimBlock *block = worker->blocks, *next; block; block = next) {
        next = block->next_of_all;
        free_block(block);
    }
    worker->blocks = NULL;
}
