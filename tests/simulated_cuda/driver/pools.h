/* What the files of memory pools share (pools.c, stream_memory.c, graph_memory.c, pool_ipc.c).
 *
 * A pool counts memory: `held` is allocated or freed by an operation that has not run, and
 * `reserved`, in units of SIM_GRANULARITY, is what the pool has taken from its device. Each
 * allocation has pages of its own, whose addresses the pool keeps for reuse after a free. */
#ifndef SIM_POOLS_H
#define SIM_POOLS_H
#include "memory.h"

struct CUmemPoolHandle_st {
    CUmemPoolProps props;
    int device; /* SIM_HOST: host memory */
    bool is_default, is_imported, is_destroyed;
    int file; /* of a pool that can be exported, or -1 */
    off_t next_offset;
    int follows_events, is_opportunistic, adds_dependencies; /* policies of reuse */
    size_t threshold, used, used_high, held, reserved, reserved_high;
    size_t range_count; /* allocated or cached */
    unsigned int readers, writers;
    SimRange *cached; /* freed ranges, newest first */
    SimPool *next;
};

#define SIM_HOST_BIT (1u << 31)

/* All need the lock. */
bool sim_is_pool(const SimPool *pool);
SimPool *sim_new_pool(const CUmemPoolProps *props, int device, int file);
/* Count `bytes` more as held, and reserve memory for them, without that for `discount` of the held
 * bytes, which are freed before; CUDA_ERROR_OUT_OF_MEMORY if there is not enough. */
CUresult sim_pool_hold(SimPool *pool, size_t bytes, size_t discount);
/* Count `bytes` less as held, and release what is more than the threshold. */
void sim_pool_drop(SimPool *pool, size_t bytes);
/* Forget cached ranges, all that were freed or all but the newest `kept`. */
void sim_pool_forget(SimPool *pool, size_t kept);
/* End a destroyed pool whose memory has been freed. */
void sim_pool_end(SimPool *pool);

/* Make memory inaccessible that was allocated as the given generation of its range. */
void sim_end_generation(SimRange *range, unsigned int generation);
/* The pages of memory in graphs: needs the lock. */
CUresult sim_show_graph_memory(SimRange *range);
bool sim_hide_graph_memory(SimRange *range);

/* An operation of pool memory. Graphs own the ranges that they allocate: all copies of the
 * operations of a graph refer to one range. */
typedef struct PoolOperation {
    SimOperation base;
    SimRange *range;
    unsigned int generation;
    CUDA_MEM_ALLOC_NODE_PARAMS params; /* of a graph node */
} PoolOperation;
/* Both need the lock. */
SimOperation *sim_new_pool_operation(const SimOperationType *type, SimRange *range);
void sim_leave_pool_range(SimRange *range);

/* The device number of a location, SIM_HOST, or -2 if it is invalid. */
int sim_location_device(const CUmemLocation *location);
/* The bit of a location in masks of access, or 0 if it is invalid. */
unsigned int sim_location_bit(const CUmemLocation *location);
#endif
