/* Streams: handles, default streams, submission, waiting. */
#include "streams.h"

#include <stdlib.h>

/* Priorities of a GPU since Pascal; values outside are clamped, as documented. */
#define GREATEST_PRIORITY (-5)

/* Handles of the default streams. */
#define LEGACY ((CUstream)(uintptr_t)CU_STREAM_LEGACY)
#define PER_THREAD ((CUstream)(uintptr_t)CU_STREAM_PER_THREAD)

/* A per-thread default stream, in the list of its host thread. */
typedef struct ThreadStream {
    struct ThreadStream *next;
    SimContext *context;
    SimStream *stream;
} ThreadStream;

static pthread_key_t thread_streams;
static pthread_once_t has_key = PTHREAD_ONCE_INIT;
static unsigned long long last_id;

/* ---- finding streams -------------------------------------------------------------------------- */

SimStream *sim_new_stream(SimContext *context, SimStreamKind kind, unsigned int flags,
                          int priority) {
    SimStream *stream = sim_zeroed(sizeof *stream);
    stream->context = context;
    stream->kind = kind;
    stream->references = 1;
    stream->flags = flags;
    stream->priority = priority;
    stream->id = ++last_id;
    stream->synchronization.syncPolicy = CU_SYNC_POLICY_AUTO;
    stream->domain_map.memSyncDomainMap.remote = 1;
    sim_make_condition(&stream->done);
    stream->next = context->streams;
    if (stream->next != NULL) stream->next->previous = stream;
    context->streams = stream;
    sim_wait_with_context(stream);
    return stream;
}

static void destroy_stream(SimStream *stream) {
    SimPoints none = {0};
    stream->is_destroyed = true;
    sim_leave_capture(stream);
    /* An empty entry ends the stream when everything before it is done. */
    sim_enqueue(stream, NULL, &none);
}

void sim_end_stream(SimStream *stream) {
    if (stream->context != NULL) destroy_stream(stream);
    sim_release_stream(stream);
}

static void end_thread(void *list) {
    pthread_mutex_lock(&sim_stream_lock);
    for (ThreadStream *item = list, *next; item != NULL; item = next) {
        next = item->next;
        sim_end_stream(item->stream);
        free(item);
    }
    pthread_mutex_unlock(&sim_stream_lock);
}

static void make_key(void) { pthread_key_create(&thread_streams, end_thread); }

static SimStream *thread_stream(SimContext *context) {
    pthread_once(&has_key, make_key);
    ThreadStream *list = pthread_getspecific(thread_streams);
    for (ThreadStream *item = list; item != NULL; item = item->next)
        if (item->context == context && item->stream->context == context) return item->stream;
    ThreadStream *item = sim_zeroed(sizeof *item);
    item->context = context;
    item->stream = sim_retain_stream(sim_new_stream(context, SIM_THREAD_STREAM, 0, 0));
    item->next = list;
    pthread_setspecific(thread_streams, item);
    return item->stream;
}

static SimStream *find_default_stream(CUstream handle, CUresult *status) {
    SimContext *context = sim_current();
    if (context == NULL) {
        *status = CUDA_ERROR_INVALID_CONTEXT;
        return NULL;
    }
    if (handle == PER_THREAD || (handle == NULL && sim_per_thread_default()))
        return thread_stream(context);
    if (context->null_stream == NULL)
        context->null_stream = sim_new_stream(context, SIM_LEGACY_STREAM, 0, 0);
    return context->null_stream;
}

SimStream *sim_find_stream(CUstream handle, CUresult *status) {
    *status = CUDA_SUCCESS;
    if (handle == NULL || handle == LEGACY || handle == PER_THREAD)
        return find_default_stream(handle, status);
    SimHandleKind kind = sim_handle_kind(handle);
    if (kind == SIM_STREAM_HANDLE) return handle;
    *status = kind == SIM_ORPHAN_HANDLE ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                        : CUDA_ERROR_INVALID_HANDLE;
    return NULL;
}

CUresult sim_check_stream(CUstream handle) {
    CUresult status;
    pthread_mutex_lock(&sim_stream_lock);
    sim_find_stream(handle, &status);
    pthread_mutex_unlock(&sim_stream_lock);
    return status;
}

SimContext *sim_stream_context(CUstream handle) {
    CUresult status;
    pthread_mutex_lock(&sim_stream_lock);
    SimStream *stream = sim_find_stream(handle, &status);
    SimContext *context = stream ? stream->context : NULL;
    pthread_mutex_unlock(&sim_stream_lock);
    return context;
}

/* ---- default stream semantics ----------------------------------------------------------------- */

static bool is_blocking(const SimStream *stream) {
    return stream->kind != SIM_LEGACY_STREAM && !(stream->flags & CU_STREAM_NON_BLOCKING);
}

void sim_add_implicit_points(SimStream *stream, SimPoints *points) {
    SimContext *context = stream->context;
    if (stream->kind == SIM_LEGACY_STREAM) {
        for (SimStream *other = context->streams; other != NULL; other = other->next)
            if (is_blocking(other)) sim_add_point(points, other, other->submitted);
    } else if (is_blocking(stream) && context->null_stream != NULL) {
        sim_add_point(points, context->null_stream, context->null_stream->submitted);
    }
}

CUresult sim_check_legacy_stream(SimStream *stream) {
    if (stream->kind != SIM_LEGACY_STREAM) return CUDA_SUCCESS;
    return sim_invalidate_captures(stream->context, true) ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
                                                          : CUDA_SUCCESS;
}

/* ---- submitting ------------------------------------------------------------------------------- */

void sim_destroy_operation(SimOperation *operation) { operation->type->destroy(operation); }

uint64_t sim_enqueue_operation(SimStream *stream, SimOperation *operation, SimPoints *points) {
    sim_add_implicit_points(stream, points);
    return sim_enqueue(stream, operation, points);
}

/* The stream that an operation may be submitted to, or NULL and a status. */
static SimStream *find_target(CUstream handle, const SimOperation *operation, CUresult *status) {
    SimStream *stream = sim_find_stream(handle, status);
    if (stream == NULL) return NULL;
    /* A kernel of one context cannot run in a stream of another. */
    if (operation->type->node_type == CU_GRAPH_NODE_TYPE_KERNEL && operation->context != NULL &&
        operation->context != stream->context)
        *status = CUDA_ERROR_INVALID_HANDLE;
    else if (stream->context->sticky)
        *status = stream->context->sticky;
    else
        *status = sim_check_legacy_stream(stream);
    return *status ? NULL : stream;
}

CUresult sim_submit(CUstream handle, SimOperation *operation) {
    CUresult status;
    pthread_mutex_lock(&sim_stream_lock);
    SimStream *stream = find_target(handle, operation, &status);
    if (stream != NULL && stream->capture != NULL) {
        operation->context = stream->context;
        status = sim_capture_operation(stream, operation);
        operation = NULL;
    } else if (stream != NULL) {
        SimPoints points = {0};
        sim_enqueue_operation(stream, operation, &points);
        operation = NULL;
    }
    pthread_mutex_unlock(&sim_stream_lock);
    if (operation != NULL) sim_destroy_operation(operation);
    return status;
}

CUresult sim_submit_and_wait(CUstream handle, SimOperation *operation) {
    CUresult status;
    SimContext *context = NULL;
    pthread_mutex_lock(&sim_stream_lock);
    SimStream *stream = find_target(handle, operation, &status);
    if (stream != NULL && stream->capture != NULL) {
        sim_invalidate_capture(stream->capture);
        status = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    } else if (stream != NULL) {
        SimPoints points = {0};
        sim_add_implicit_points(stream, &points);
        context = stream->context;
        status = sim_enqueue_and_wait(stream, operation, &points);
        operation = NULL;
    }
    pthread_mutex_unlock(&sim_stream_lock);
    if (operation != NULL) sim_destroy_operation(operation);
    sim_flush_printing(context);
    return status;
}

bool sim_is_capturing(CUstream handle) {
    CUresult status;
    pthread_mutex_lock(&sim_stream_lock);
    SimStream *stream = sim_find_stream(handle, &status);
    bool is_capturing = stream != NULL && stream->capture != NULL;
    pthread_mutex_unlock(&sim_stream_lock);
    return is_capturing;
}

/* ---- waiting ---------------------------------------------------------------------------------- */

/* Points behind which a stream is done: its own, and those of streams it synchronises with. */
static SimPoints end_of_stream(SimStream *stream) {
    SimPoints points = {0};
    sim_add_point(&points, stream, stream->submitted);
    if (stream->kind == SIM_LEGACY_STREAM) sim_add_implicit_points(stream, &points);
    return points;
}

static void demand_all(const SimPoints *points) {
    for (size_t number = 0; number < points->count; number++) sim_demand(points->items[number]);
}

static void wait_for_all(SimPoints *points) {
    demand_all(points);
    for (size_t number = 0; number < points->count; number++) sim_wait_for(points->items[number]);
    sim_clear_points(points);
}

static void wait_for_context(SimContext *context) {
    SimPoints points = {0};
    for (SimStream *stream = context->streams; stream != NULL; stream = stream->next)
        sim_add_point(&points, stream, stream->submitted);
    wait_for_all(&points);
}

CUresult sim_context_synchronize(SimContext *context) {
    pthread_mutex_lock(&sim_stream_lock);
    wait_for_context(context);
    CUresult status = context->sticky;
    pthread_mutex_unlock(&sim_stream_lock);
    sim_flush_printing(context);
    return status;
}

CUresult sim_check_context_captures(SimContext *context) {
    pthread_mutex_lock(&sim_stream_lock);
    bool is_capturing = sim_invalidate_captures(context, false);
    pthread_mutex_unlock(&sim_stream_lock);
    return is_capturing ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

/* A stream that can be waited for, or NULL and a status. */
static SimStream *find_to_wait(CUstream handle, CUresult *status) {
    SimStream *stream = sim_find_stream(handle, status);
    if (stream == NULL) return NULL;
    if (stream->capture != NULL) {
        sim_invalidate_capture(stream->capture);
        *status = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    } else {
        *status = sim_check_legacy_stream(stream);
    }
    return *status ? NULL : stream;
}

CUresult sim_cuStreamSynchronize(CUstream handle) {
    CUresult status;
    SimContext *context = NULL;
    pthread_mutex_lock(&sim_stream_lock);
    SimStream *stream = find_to_wait(handle, &status);
    if (stream != NULL) {
        context = stream->context;
        SimPoints points = end_of_stream(stream);
        wait_for_all(&points);
        status = context->sticky;
    }
    pthread_mutex_unlock(&sim_stream_lock);
    sim_flush_printing(context);
    return status;
}

CUresult sim_cuStreamQuery(CUstream handle) {
    CUresult status;
    pthread_mutex_lock(&sim_stream_lock);
    SimStream *stream = find_to_wait(handle, &status);
    if (stream != NULL) {
        SimPoints points = end_of_stream(stream);
        demand_all(&points);
        status = stream->context->sticky;
        if (status == CUDA_SUCCESS && points.count) status = CUDA_ERROR_NOT_READY;
        sim_clear_points(&points);
    }
    pthread_mutex_unlock(&sim_stream_lock);
    return status;
}

/* ---- creating and destroying ------------------------------------------------------------------ */

CUresult sim_cuStreamCreateWithPriority(CUstream *result, unsigned int flags, int priority) {
    if (result == NULL || (flags & ~(unsigned int)CU_STREAM_NON_BLOCKING))
        return CUDA_ERROR_INVALID_VALUE;
    SimContext *context = sim_current();
    if (context == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (priority > 0) priority = 0;
    if (priority < GREATEST_PRIORITY) priority = GREATEST_PRIORITY;
    pthread_mutex_lock(&sim_stream_lock);
    *result = sim_new_stream(context, SIM_CREATED_STREAM, flags, priority);
    sim_add_handle(*result, SIM_STREAM_HANDLE);
    pthread_mutex_unlock(&sim_stream_lock);
    return CUDA_SUCCESS;
}

CUresult sim_cuStreamCreate(CUstream *result, unsigned int flags) {
    return sim_cuStreamCreateWithPriority(result, flags, 0);
}

CUresult sim_cuStreamDestroy(CUstream handle) {
    CUresult status = CUDA_SUCCESS;
    pthread_mutex_lock(&sim_stream_lock);
    SimHandleKind kind = sim_handle_kind(handle);
    if (kind == SIM_STREAM_HANDLE || kind == SIM_ORPHAN_HANDLE) sim_remove_handle(handle);
    if (kind == SIM_STREAM_HANDLE) destroy_stream(handle);
    else status = kind == SIM_ORPHAN_HANDLE ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                            : CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_unlock(&sim_stream_lock);
    return status;
}

static void orphan_event(void *handle, void *context) {
    SimEvent *event = handle;
    if (event->context == context) event->context = NULL;
}

void sim_streams_release(SimContext *context) {
    pthread_mutex_lock(&sim_stream_lock);
    sim_invalidate_captures(context, false);
    wait_for_context(context);
    while (context->streams != NULL) {
        SimStream *stream = context->streams;
        context->streams = stream->next;
        if (stream->next != NULL) stream->next->previous = NULL;
        if (sim_handle_kind(stream) == SIM_STREAM_HANDLE) {
            sim_leave_capture(stream);
            sim_add_handle(stream, SIM_ORPHAN_HANDLE);
        }
        stream->context = NULL;
        sim_release_stream(stream);
    }
    context->null_stream = NULL;
    sim_visit_handles(SIM_EVENT_HANDLE, orphan_event, context);
    pthread_mutex_unlock(&sim_stream_lock);
}
