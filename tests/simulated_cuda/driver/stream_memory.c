/* Stream-ordered memory: cuMemAllocAsync and cuMemFreeAsync.
 *
 * A call decides about an address at once; the operations that it submits make the pages accessible
 * and inaccessible when the stream reaches them. A use that stream order does not allow therefore
 * faults. An address may be reused while its free is still queued, if stream order allows that:
 * each use of a range is a generation, and an operation acts on the generation it was made for. */
#include "pools.h"

#include <stdlib.h>

#define MAX_CACHED 256
#define MAX_WAITS 16

CUresult sim_cuEventCreate(CUevent *phEvent, unsigned int Flags);
CUresult sim_cuEventRecord(CUevent hEvent, CUstream hStream);
CUresult sim_cuEventDestroy(CUevent hEvent);
CUresult sim_cuStreamGetId(CUstream hStream, unsigned long long *streamId);
CUresult sim_cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags);

static size_t counted(const SimRange *range) { return sim_round_up(range->info.size, SIM_ALIGNMENT); }

static bool is_free_pending(const SimRange *range) { return range->unmapped != range->generation; }

/* ---- operations -------------------------------------------------------------------------------------- */

SimOperation *sim_new_pool_operation(const SimOperationType *type, SimRange *range) {
    PoolOperation *operation = calloc(1, sizeof *operation);
    if (!operation) return NULL;
    operation->base.type = type;
    operation->range = range;
    operation->generation = range->generation;
    range->references++;
    return &operation->base;
}

static SimOperation *copy_operation(const SimOperation *operation) {
    PoolOperation *result = malloc(sizeof *result);
    if (!result) return NULL;
    *result = *(const PoolOperation *)operation;
    SIM_LOCKED(result->range->references++);
    return &result->base;
}

static void destroy_operation(SimOperation *operation) {
    SIM_LOCKED(sim_leave_pool_range(((PoolOperation *)operation)->range));
    free(operation);
}

void sim_leave_pool_range(SimRange *range) {
    range->references--;
    if (range->is_graph_memory) {
        if (!range->references && !range->is_accessible) sim_remove_range(range);
    } else {
        sim_pool_end(range->pool);
    }
}

static CUresult run_allocation(SimOperation *operation) {
    PoolOperation *allocation = (PoolOperation *)operation;
    SimRange *range = allocation->range;
    CUresult status = CUDA_SUCCESS;
    pthread_mutex_lock(&sim_memory_lock);
    if (!allocation->generation) {
        status = sim_show_graph_memory(range);
    } else if (range->unmapped < allocation->generation) {
        if (sim_show_pages(&range->pages, PROT_READ | PROT_WRITE)) {
            range->mapped = allocation->generation;
            range->is_accessible = true;
            sim_fill(range);
        } else {
            status = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    pthread_mutex_unlock(&sim_memory_lock);
    return status;
}

void sim_end_generation(SimRange *range, unsigned int generation) {
    if (range->unmapped >= generation) return;
    SimPool *pool = range->pool;
    if (range->is_accessible) {
        /* Another process owns the physical memory of an imported pool. */
        if (!pool->is_imported) sim_check_canaries(range);
        if (!pool->is_imported) sim_drop_pages(&range->pages);
        sim_hide_pages(&range->pages);
        range->is_accessible = false;
    }
    range->unmapped = generation;
    if (range->is_allocated || range->generation != generation) return;
    sim_pool_drop(pool, pool->is_imported ? 0 : counted(range));
    sim_pool_forget(pool, pool->is_imported ? 0 : MAX_CACHED);
    sim_pool_end(pool);
}

static CUresult run_free(SimOperation *operation) {
    PoolOperation *free = (PoolOperation *)operation;
    SimRange *range = free->range;
    CUresult status = CUDA_SUCCESS;
    SimAllocation early = {0};
    pthread_mutex_lock(&sim_memory_lock);
    if (!free->generation) {
        if (!sim_hide_graph_memory(range)) status = CUDA_ERROR_INVALID_VALUE;
    } else {
        if (range->mapped < free->generation && range->unmapped < free->generation) early = range->info;
        sim_end_generation(range, free->generation);
    }
    pthread_mutex_unlock(&sim_memory_lock);
    if (early.size)
        sim_report("a stream freed allocation %llu (%zu bytes at %p, device %d) before its allocation "
                   "in stream order",
                   early.id, early.size, (void *)early.start, early.device);
    return status;
}

const SimOperationType sim_pool_allocation_type = {
    CU_GRAPH_NODE_TYPE_MEM_ALLOC, "an allocation", run_allocation, copy_operation, destroy_operation};
const SimOperationType sim_pool_free_type = {
    CU_GRAPH_NODE_TYPE_MEM_FREE, "a free", run_free, copy_operation, destroy_operation};

/* ---- allocation ---------------------------------------------------------------------------------------- */

/* What an allocation found: where it is ordered after queued frees of other streams, and has to wait. */
typedef struct Request {
    SimPool *pool;
    size_t size;
    SimStreamName stream, waits[MAX_WAITS];
    int wait_count;
} Request;

static CUresult find_stream(CUstream handle, SimStreamName *result) {
    result->handle = handle;
    result->context = sim_stream_context(handle);
    return result->context ? sim_cuStreamGetId(handle, &result->id) : sim_check_stream(handle);
}

static bool is_same_stream(const SimRange *range, const Request *request) {
    return range->free_stream.id == request->stream.id;
}

/* Take a freed range of the same size out of the cache: one that was freed on the stream of the
 * request, even if that free is still queued, or one whose free is complete. */
static SimRange *take_cached(const Request *request) {
    SimRange **best = NULL;
    for (SimRange **link = &request->pool->cached; *link; link = &(*link)->next_cached) {
        SimRange *range = *link;
        bool is_pending = is_free_pending(range);
        if (is_pending ? range->info.size != request->size
                       : counted(range) != sim_round_up(request->size, SIM_ALIGNMENT))
            continue;
        if (is_same_stream(range, request)) {
            best = link;
            break;
        }
        if (!is_pending && request->pool->is_opportunistic && !best) best = link;
    }
    if (!best) return NULL;
    SimRange *range = *best;
    *best = range->next_cached;
    return range;
}

/* Hold memory for a request. Frees that precede it on its stream count as done; if memory is short,
 * those of other streams too, and the request has to wait for them. */
static CUresult hold(Request *request, size_t bytes) {
    SimPool *pool = request->pool;
    size_t before = 0, elsewhere = 0;
    request->wait_count = 0;
    for (SimRange *range = pool->cached; range; range = range->next_cached) {
        if (!is_free_pending(range)) continue;
        if (is_same_stream(range, request)) {
            before += counted(range);
        } else if (range->free_stream.context == request->stream.context &&
                   request->wait_count < MAX_WAITS) {
            elsewhere += counted(range);
            request->waits[request->wait_count++] = range->free_stream;
        }
    }
    if (!sim_pool_hold(pool, bytes, before)) {
        request->wait_count = 0;
        return CUDA_SUCCESS;
    }
    if (!pool->adds_dependencies) return CUDA_ERROR_OUT_OF_MEMORY;
    return sim_pool_hold(pool, bytes, before + elsewhere);
}

static SimRange *new_range(SimPool *pool, size_t size) {
    SimRange *range = sim_new_range(SIM_POOL_MEMORY, pool->device, size);
    if (!range) return NULL;
    size_t bytes = counted(range);
    if (!sim_new_pages(pool->device, bytes, pool->file, pool->next_offset, &range->pages)) {
        free(range);
        return NULL;
    }
    if (pool->file >= 0) pool->next_offset += (off_t)range->pages.size;
    range->info.start = range->pages.start + range->pages.size - bytes;
    range->pool = pool;
    range->is_accessible = false;
    if (!sim_add_range(range)) {
        sim_unmap_pages(&range->pages);
        free(range);
        return NULL;
    }
    pool->range_count++;
    return range;
}

/* Find memory for a request; needs the lock. */
static CUresult take_range(Request *request, SimRange **result) {
    size_t bytes = sim_round_up(request->size, SIM_ALIGNMENT);
    if (bytes < request->size) return CUDA_ERROR_OUT_OF_MEMORY;
    SimRange *range = take_cached(request);
    request->wait_count = 0;
    /* A range whose free is still queued is held already. */
    if (!range || !is_free_pending(range)) {
        CUresult status = hold(request, bytes);
        if (status && range) {
            range->next_cached = request->pool->cached;
            request->pool->cached = range;
        }
        if (status) return status;
    }
    if (!range && !(range = new_range(request->pool, request->size))) {
        sim_pool_drop(request->pool, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_renew_range(range, request->size);
    range->context = request->stream.context;
    range->generation++;
    request->pool->used += bytes;
    if (request->pool->used > request->pool->used_high) request->pool->used_high = request->pool->used;
    *result = range;
    return CUDA_SUCCESS;
}

/* Put a range into the cache of its pool. */
static void cache(SimRange *range, SimStreamName stream) {
    SimPool *pool = range->pool;
    range->is_allocated = false;
    range->free_stream = stream;
    range->next_cached = pool->cached;
    pool->cached = range;
    if (!pool->is_imported) pool->used -= counted(range);
}

/* Undo `take_range`, whose operation was refused. */
static void give_back(SimRange *range, const Request *request) {
    pthread_mutex_lock(&sim_memory_lock);
    cache(range, request->stream);
    range->generation--;
    if (!is_free_pending(range)) sim_pool_drop(range->pool, counted(range));
    pthread_mutex_unlock(&sim_memory_lock);
}

/* Order a stream after the work of other streams, which free memory that it is given. */
static CUresult wait_for_frees(const Request *request) {
    for (int i = 0; i < request->wait_count; i++) {
        CUevent event;
        SimStreamName found;
        if (find_stream(request->waits[i].handle, &found) || found.id != request->waits[i].id)
            return CUDA_ERROR_OUT_OF_MEMORY;
        CUresult status = sim_cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
        if (status) return status;
        status = sim_cuEventRecord(event, found.handle);
        if (!status) status = sim_cuStreamWaitEvent(request->stream.handle, event, 0);
        sim_cuEventDestroy(event);
        if (status) return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

/* During a capture: allocate in the graph, with the properties of the pool. */
static CUresult capture_allocation(CUdeviceptr *dptr, size_t size, SimPool *pool, CUstream stream) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.bytesize = size};
    SimOperation *operation;
    SIM_LOCKED(params.poolProps = pool->props);
    params.poolProps.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
    params.poolProps.maxSize = 0;
    CUresult status = sim_new_pool_allocation(&params, &operation);
    if (!status) status = sim_submit(stream, operation);
    if (!status) *dptr = params.dptr;
    return status;
}

static CUresult allocate(CUdeviceptr *dptr, size_t size, SimPool *pool, CUstream stream) {
    Request request = {.pool = pool, .size = size};
    SimRange *range = NULL;
    if (!dptr || !size) return CUDA_ERROR_INVALID_VALUE;
    CUresult status = find_stream(stream, &request.stream);
    if (status) return status;
    SIM_LOCKED({
        if (!pool) request.pool = sim_current_pool(request.stream.context->device->ordinal);
        if (!sim_is_pool(request.pool) || request.pool->is_imported) status = CUDA_ERROR_INVALID_VALUE;
    });
    if (status) return status;
    if (sim_is_capturing(stream)) return capture_allocation(dptr, size, request.pool, stream);
    SIM_LOCKED(status = take_range(&request, &range));
    if (status) return status;
    SimOperation *operation;
    SIM_LOCKED(operation = sim_new_pool_operation(&sim_pool_allocation_type, range));
    status = operation ? wait_for_frees(&request) : CUDA_ERROR_OUT_OF_MEMORY;
    if (!status) status = sim_submit(stream, operation);
    else if (operation) destroy_operation(operation);
    if (status) give_back(range, &request);
    else *dptr = (CUdeviceptr)range->info.start;
    return status;
}

CUresult sim_cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream) {
    return allocate(dptr, bytesize, NULL, hStream);
}

CUresult sim_cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                     CUstream hStream) {
    return pool ? allocate(dptr, bytesize, pool, hStream) : CUDA_ERROR_INVALID_VALUE;
}

/* ---- free ------------------------------------------------------------------------------------------------ */

void sim_free_pool_range(SimRange *range) {
    if (range->is_graph_memory) {
        range->is_claimed = false;
        sim_hide_graph_memory(range);
        return;
    }
    cache(range, (SimStreamName){0});
    sim_end_generation(range, range->generation);
}

/* Undo a free whose operation was refused. */
static void take_back(SimRange *range) {
    pthread_mutex_lock(&sim_memory_lock);
    SimRange **link = &range->pool->cached;
    while (*link && *link != range) link = &(*link)->next_cached;
    if (*link) {
        *link = range->next_cached;
        range->is_allocated = true;
        if (!range->pool->is_imported) range->pool->used += counted(range);
    }
    pthread_mutex_unlock(&sim_memory_lock);
}

/* Free memory of a graph outside of graphs: no range remains if a call has freed it before. */
static bool take_claim(SimRange **range) {
    bool is_claimed = (*range)->is_claimed;
    (*range)->is_claimed = false;
    if (!is_claimed) *range = NULL;
    return is_claimed;
}

CUresult sim_cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) {
    SimStreamName stream;
    CUresult status = find_stream(hStream, &stream);
    if (status) return status;
    SimOperation *operation = NULL;
    SimRange *range = NULL;
    bool is_in_graph = sim_is_capturing(hStream);
    if (!is_in_graph) {
        pthread_mutex_lock(&sim_memory_lock);
        range = sim_find_range((void *)dptr);
        if (!range || !range->is_allocated || range->info.kind != SIM_POOL_MEMORY ||
            range->info.start != (char *)dptr)
            range = NULL;
        else if (range->is_graph_memory) is_in_graph = take_claim(&range);
        else if ((operation = sim_new_pool_operation(&sim_pool_free_type, range)))
            cache(range, stream);
        pthread_mutex_unlock(&sim_memory_lock);
        if (!range) return CUDA_ERROR_INVALID_VALUE;
        if (!is_in_graph && !operation) return CUDA_ERROR_OUT_OF_MEMORY;
    }
    status = is_in_graph ? sim_new_pool_free(dptr, &operation) : CUDA_SUCCESS;
    if (!status) status = sim_submit(hStream, operation);
    if (status && !is_in_graph) take_back(range);
    return status;
}
