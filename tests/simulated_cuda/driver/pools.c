/* Pools of stream-ordered memory: handles, attributes, access, the current pool of a device.
 *
 * REUSE_FOLLOW_EVENT_DEPENDENCIES is kept for queries only: whether a stream waits for a free by
 * events is not known here, and no program may rely on such a reuse. */
#include "pools.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PLACES (SIM_MAX_DEVICES + 1) /* devices and, last, the host */

static SimPool *pools;
static SimPool *default_pools[PLACES][2], *current_pools[PLACES][2]; /* pinned, managed */

int sim_location_device(const CUmemLocation *location) {
    switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE: return sim_device(location->id) ? location->id : -2;
    case CU_MEM_LOCATION_TYPE_HOST: return SIM_HOST;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA: return location->id == 0 ? SIM_HOST : -2;
    default: return -2;
    }
}

unsigned int sim_location_bit(const CUmemLocation *location) {
    int device = sim_location_device(location);
    return device >= 0 ? 1u << device : device == SIM_HOST ? SIM_HOST_BIT : 0;
}

bool sim_is_pool(const SimPool *pool) {
    for (const SimPool *known = pools; known; known = known->next)
        if (known == pool) return true;
    return false;
}

SimPool *sim_new_pool(const CUmemPoolProps *props, int device, int file) {
    SimPool *pool = calloc(1, sizeof *pool);
    if (!pool) return NULL;
    pool->props = *props;
    pool->device = device;
    pool->file = file;
    pool->follows_events = pool->is_opportunistic = pool->adds_dependencies = 1;
    bool is_managed = props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
    pool->readers = is_managed ? SIM_ALL_DEVICES : device < 0 ? SIM_HOST_BIT : 1u << device;
    pool->writers = pool->readers;
    pool->next = pools;
    pools = pool;
    return pool;
}

static SimPool *default_pool(int device, bool is_managed) {
    int place = device < 0 ? SIM_MAX_DEVICES : device;
    SimPool **found = &default_pools[place][is_managed];
    if (*found) return *found;
    CUmemPoolProps props = {
        .allocType = is_managed ? CU_MEM_ALLOCATION_TYPE_MANAGED : CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = device < 0 ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE,
                     .id = device < 0 ? 0 : device}};
    *found = sim_new_pool(&props, device, -1);
    if (*found) (*found)->is_default = true;
    return current_pools[place][is_managed] = *found;
}

static SimPool *current_pool(int device, bool is_managed) {
    SimPool *known = default_pool(device, is_managed);
    return known ? current_pools[device < 0 ? SIM_MAX_DEVICES : device][is_managed] : NULL;
}

SimPool *sim_current_pool(int device) { return current_pool(device, false); }

/* ---- memory of a pool ---------------------------------------------------------------------------- */

CUresult sim_pool_hold(SimPool *pool, size_t bytes, size_t discount) {
    size_t needed = sim_round_up(pool->held - discount + bytes, SIM_GRANULARITY);
    if (needed < bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    if (needed > pool->reserved) {
        if (pool->props.maxSize && needed > sim_round_up(pool->props.maxSize, SIM_GRANULARITY))
            return CUDA_ERROR_OUT_OF_MEMORY;
        if (!sim_take_memory(pool->device, needed - pool->reserved)) return CUDA_ERROR_OUT_OF_MEMORY;
        pool->reserved = needed;
        if (needed > pool->reserved_high) pool->reserved_high = needed;
    }
    pool->held += bytes;
    return CUDA_SUCCESS;
}

static void release_down_to(SimPool *pool, size_t kept) {
    if (kept > pool->reserved) return;
    size_t target = sim_round_up(pool->held > kept ? pool->held : kept, SIM_GRANULARITY);
    if (target >= pool->reserved) return;
    sim_return_memory(pool->device, pool->reserved - target);
    pool->reserved = target;
}

void sim_pool_drop(SimPool *pool, size_t bytes) {
    pool->held -= bytes;
    release_down_to(pool, pool->threshold);
}

void sim_pool_forget(SimPool *pool, size_t kept) {
    for (SimRange **link = &pool->cached; *link;) {
        SimRange *range = *link;
        if (kept || range->unmapped != range->generation || range->references) {
            kept -= kept ? 1 : 0;
            link = &range->next_cached;
            continue;
        }
        *link = range->next_cached;
        pool->range_count--;
        sim_remove_range(range);
    }
}

void sim_pool_end(SimPool *pool) {
    if (!pool->is_destroyed) return;
    sim_pool_forget(pool, 0);
    if (pool->range_count) return;
    sim_return_memory(pool->device, pool->reserved);
    if (pool->file >= 0) close(pool->file);
    free(pool);
}

/* A range of a context that is allocated, or that an operation has to free; NULL: none. */
static SimRange *unfinished_range(const SimContext *context) {
    for (size_t index = sim_range_count(); index-- > 0;) {
        SimRange *range = sim_range_at(index);
        if (range->pool && range->context == context &&
            (range->is_allocated || range->unmapped != range->generation))
            return range;
    }
    return NULL;
}

void sim_pools_release(SimContext *context) {
    /* The streams of the context are gone: operations that waited there never run. */
    for (SimRange *range; (range = unfinished_range(context));) {
        if (range->is_allocated) sim_free_pool_range(range);
        else sim_end_generation(range, range->generation);
    }
}

/* ---- handles --------------------------------------------------------------------------------------- */

static bool is_valid(const CUmemPoolProps *props) {
    bool is_managed = props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
    if (!is_managed && props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return false;
    if (is_managed) return !props->handleTypes && !props->maxSize;
    if (props->location.type == CU_MEM_LOCATION_TYPE_HOST && props->handleTypes) return false;
    return sim_location_device(&props->location) != -2;
}

CUresult sim_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps) {
    if (!pool || !poolProps || !is_valid(poolProps)) return CUDA_ERROR_INVALID_VALUE;
    if (poolProps->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    int device = sim_location_device(&poolProps->location), file = -1;
    if (device == -2) device = SIM_HOST; /* managed memory without a preferred location */
    if (poolProps->handleTypes) {
        file = sim_new_memory_file(device, (size_t)1 << 46);
        if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    }
    SIM_LOCKED(*pool = sim_new_pool(poolProps, device, file));
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuMemPoolDestroy(CUmemoryPool pool) {
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_memory_lock);
    if (sim_is_pool(pool) && !pool->is_default) {
        SimPool **link = &pools;
        while (*link != pool) link = &(*link)->next;
        *link = pool->next;
        for (int place = 0; place < PLACES; place++)
            for (int kind = 0; kind < 2; kind++)
                if (current_pools[place][kind] == pool) current_pools[place][kind] = default_pools[place][kind];
        pool->is_destroyed = true;
        sim_pool_end(pool);
        status = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&sim_memory_lock);
    return status;
}

CUresult sim_cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep) {
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_memory_lock);
    if (sim_is_pool(pool)) {
        release_down_to(pool, minBytesToKeep);
        if (!minBytesToKeep) sim_pool_forget(pool, 0);
        status = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&sim_memory_lock);
    return status;
}

static CUresult set_attribute(SimPool *pool, CUmemPool_attribute attribute, const void *value) {
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES: pool->follows_events = *(const int *)value; break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: pool->is_opportunistic = *(const int *)value; break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: pool->adds_dependencies = *(const int *)value; break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: pool->threshold = *(const cuuint64_t *)value; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        if (*(const cuuint64_t *)value) return CUDA_ERROR_INVALID_VALUE;
        pool->reserved_high = pool->reserved;
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (*(const cuuint64_t *)value) return CUDA_ERROR_INVALID_VALUE;
        pool->used_high = pool->used;
        break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value) {
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    if (!value) return status;
    SIM_LOCKED(if (sim_is_pool(pool)) status = set_attribute(pool, attr, value));
    return status;
}

static CUresult get_attribute(const SimPool *pool, CUmemPool_attribute attribute, void *value) {
    cuuint64_t *bytes = value;
    int *number = value;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES: *number = pool->follows_events; break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: *number = pool->is_opportunistic; break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: *number = pool->adds_dependencies; break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *bytes = pool->threshold; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *bytes = pool->reserved; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *bytes = pool->reserved_high; break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *bytes = pool->used; break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *bytes = pool->used_high; break;
    case CU_MEMPOOL_ATTR_ALLOCATION_TYPE: *number = pool->props.allocType; break;
    case CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES: *number = pool->props.handleTypes; break;
    case CU_MEMPOOL_ATTR_LOCATION_ID: *number = pool->props.location.id; break;
    case CU_MEMPOOL_ATTR_LOCATION_TYPE: *number = pool->props.location.type; break;
    case CU_MEMPOOL_ATTR_MAX_POOL_SIZE: *bytes = sim_round_up(pool->props.maxSize, SIM_GRANULARITY); break;
    case CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED: *number = 0; break;
    case CU_MEMPOOL_ATTR_LOCALITY_DOMAIN_ID: *number = -1; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value) {
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    if (!value) return status;
    SIM_LOCKED(if (sim_is_pool(pool)) status = get_attribute(pool, attr, value));
    return status;
}

/* ---- access ---------------------------------------------------------------------------------------- */

static CUresult set_access(SimPool *pool, const CUmemAccessDesc *map, size_t count) {
    unsigned int readers = pool->readers, writers = pool->writers;
    for (size_t i = 0; i < count; i++) {
        unsigned int bit = sim_location_bit(&map[i].location);
        bool can_read = map[i].flags & CU_MEM_ACCESS_FLAGS_PROT_READ;
        bool can_write = map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        if (!bit) return CUDA_ERROR_INVALID_DEVICE;
        /* The device of the pool always has access. */
        if (pool->device >= 0 && bit == 1u << pool->device && !can_write) return CUDA_ERROR_INVALID_VALUE;
        readers = can_read ? readers | bit : readers & ~bit;
        writers = can_write ? writers | bit : writers & ~bit;
    }
    pool->readers = readers;
    pool->writers = writers;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count) {
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    if (!map && count) return status;
    SIM_LOCKED(if (sim_is_pool(pool)) status = set_access(pool, map, count));
    return status;
}

CUresult sim_cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool memPool, CUmemLocation *location) {
    if (!flags || !location) return CUDA_ERROR_INVALID_VALUE;
    unsigned int bit = sim_location_bit(location);
    if (!bit) return CUDA_ERROR_INVALID_DEVICE;
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED(if (sim_is_pool(memPool)) {
        status = CUDA_SUCCESS;
        *flags = memPool->writers & bit   ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                 : memPool->readers & bit ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                          : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    });
    return status;
}

/* ---- default and current pools ------------------------------------------------------------------------ */

static CUresult find_pool(CUmemoryPool *result, const CUmemLocation *location, CUmemAllocationType type,
                          SimPool *(*find)(int, bool)) {
    if (!result || !location) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_ALLOCATION_TYPE_PINNED && type != CU_MEM_ALLOCATION_TYPE_MANAGED)
        return CUDA_ERROR_INVALID_VALUE;
    int device = sim_location_device(location);
    bool is_managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
    if (device == -2 && is_managed && location->type == CU_MEM_LOCATION_TYPE_NONE) device = SIM_HOST;
    if (device == -2) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED(*result = find(device, is_managed));
    return *result ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location, CUmemAllocationType type) {
    return find_pool(pool_out, location, type, default_pool);
}

CUresult sim_cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) {
    return find_pool(pool, location, type, current_pool);
}

CUresult sim_cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool) {
    CUmemoryPool known;
    CUresult status = find_pool(&known, location, type, default_pool);
    if (status) return status;
    int device = sim_location_device(location), place = device < 0 ? SIM_MAX_DEVICES : device;
    SIM_LOCKED({
        if (!sim_is_pool(pool) || pool->is_imported || pool->device != known->device ||
            pool->props.allocType != type)
            status = CUDA_ERROR_INVALID_VALUE;
        else current_pools[place][type == CU_MEM_ALLOCATION_TYPE_MANAGED] = pool;
    });
    return status;
}

CUresult sim_cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev) {
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = dev};
    if (!sim_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
    return sim_cuMemGetDefaultMemPool(pool_out, &location, CU_MEM_ALLOCATION_TYPE_PINNED);
}

CUresult sim_cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev) {
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = dev};
    if (!sim_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
    return sim_cuMemGetMemPool(pool, &location, CU_MEM_ALLOCATION_TYPE_PINNED);
}

CUresult sim_cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = dev};
    if (!sim_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
    return sim_cuMemSetMemPool(&location, CU_MEM_ALLOCATION_TYPE_PINNED, pool);
}
