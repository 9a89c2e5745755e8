/* Pools of stream-ordered memory. */
#include "memory.h"

void sim_free_pool_range(SimRange *range) { (void)range; }

void sim_pools_release(SimContext *context) { (void)context; }
