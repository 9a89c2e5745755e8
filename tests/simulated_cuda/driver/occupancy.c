/* Occupancy: how many blocks of a kernel a multiprocessor holds.
 *
 * The formulas are those of cuda_occupancy.h of the CUDA runtime's package, for compute capability
 * 7.0 and newer: registers are allocated to warps in units of 256, and a multiprocessor has four
 * partitions with a quarter of the registers each. */
#include "modules.h"

#define WARP 32
#define REGISTER_UNIT 256
#define PARTITIONS 4

static long round_up(long value, long unit) { return (value + unit - 1) / unit * unit; }

static long shared_unit(const SimDevice *device) {
    /* 128 bytes since 8.0, 256 before. */
    return device->attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] >= 8 ? 128 : 256;
}

static long blocks_by_registers(const SimDevice *device, long warps) {
    long registers = device->attributes[CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR];
    long of_block = device->attributes[CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK];
    long per_warp = round_up((long)SIM_REGISTERS * WARP, REGISTER_UNIT);
    if (per_warp * round_up(warps, PARTITIONS) > of_block)
        return 0;
    return registers / PARTITIONS / per_warp * PARTITIONS / warps;
}

static long blocks_by_shared(const SimFunctionHandle *function, const SimDevice *device, size_t dynamic) {
    long shared = (long)function->info->static_shared + (long)dynamic;
    if (shared > device->attributes[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN])
        return 0;
    long reserved = device->attributes[CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK];
    long taken = round_up(shared + reserved, shared_unit(device));
    long total = device->attributes[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR];
    return taken ? total / taken : device->attributes[CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR];
}

int sim_resident_blocks(const SimFunctionHandle *function, const SimDevice *device, int threads,
                        size_t dynamic_shared) {
    if (threads <= 0 || threads > sim_max_threads(function, device))
        return 0;
    long warps = (threads + WARP - 1) / WARP;
    long limit = device->attributes[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR] / WARP / warps;
    long others[] = {
        device->attributes[CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR],
        blocks_by_registers(device, warps),
        blocks_by_shared(function, device, dynamic_shared),
    };
    for (int i = 0; i < 3; i++)
        if (others[i] < limit)
            limit = others[i];
    return (int)limit;
}

static CUresult device_function(CUfunction handle, SimFunctionHandle **function, SimDevice **device) {
    CUresult status = sim_function(handle, sim_current(), function);
    if (!status)
        *device = (*function)->module->context->device;
    return status;
}

CUresult sim_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction handle,
                                                                  int threads, size_t dynamic_shared,
                                                                  unsigned int flags) {
    if (!blocks || threads <= 0 || flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE)
        return CUDA_ERROR_INVALID_VALUE;
    SimFunctionHandle *function;
    SimDevice *device;
    CUresult status = device_function(handle, &function, &device);
    if (!status)
        *blocks = sim_resident_blocks(function, device, threads, dynamic_shared);
    return status;
}

CUresult sim_cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction handle, int threads,
                                                         size_t dynamic_shared) {
    return sim_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, handle, threads,
                                                                    dynamic_shared, CU_OCCUPANCY_DEFAULT);
}

CUresult sim_cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction handle,
                                                       CUoccupancyB2DSize shared_of_block,
                                                       size_t dynamic_shared, int limit,
                                                       unsigned int flags) {
    if (!grid || !block || limit < 0 || flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE)
        return CUDA_ERROR_INVALID_VALUE;
    SimFunctionHandle *function;
    SimDevice *device;
    CUresult status = device_function(handle, &function, &device);
    if (status)
        return status;
    int maximum = sim_max_threads(function, device);
    if (limit && limit < maximum)
        maximum = limit;
    int best_threads = 0, best_blocks = 0;
    /* From large to small blocks: the largest block of those with the most resident threads. */
    for (int threads = (int)round_up(maximum, WARP); threads > 0; threads -= WARP) {
        int size = threads < maximum ? threads : maximum;
        size_t shared = shared_of_block ? shared_of_block(size) : dynamic_shared;
        int blocks = sim_resident_blocks(function, device, size, shared);
        if (blocks * size > best_blocks * best_threads) {
            best_blocks = blocks;
            best_threads = size;
        }
    }
    *grid = best_blocks * device->attributes[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT];
    *block = best_threads;
    return CUDA_SUCCESS;
}

CUresult sim_cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction handle,
                                              CUoccupancyB2DSize shared_of_block, size_t dynamic_shared,
                                              int limit) {
    return sim_cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, handle, shared_of_block,
                                                         dynamic_shared, limit, CU_OCCUPANCY_DEFAULT);
}

CUresult sim_cuOccupancyAvailableDynamicSMemPerBlock(size_t *result, CUfunction handle, int blocks,
                                                     int threads) {
    if (!result || blocks <= 0 || threads <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    SimFunctionHandle *function;
    SimDevice *device;
    CUresult status = device_function(handle, &function, &device);
    if (status)
        return status;
    if (blocks > sim_resident_blocks(function, device, threads, 0))
        return CUDA_ERROR_INVALID_VALUE;
    long total = device->attributes[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR];
    long limit = device->attributes[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN];
    long reserved = device->attributes[CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK];
    long available = total / blocks / shared_unit(device) * shared_unit(device) - reserved;
    if (available > limit)
        available = limit;
    available -= (long)function->info->static_shared;
    *result = available > 0 ? (size_t)available : 0;
    return CUDA_SUCCESS;
}
