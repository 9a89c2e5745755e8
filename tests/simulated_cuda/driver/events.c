/* Events. Each record is an object: a later record of the same event does not change what earlier
 * calls of cuStreamWaitEvent wait for. */
#include "streams.h"

#include <stdlib.h>

typedef struct RecordOperation {
    SimOperation base;
    SimRecord *record;
    SimSharedEvent *shared; /* of an interprocess event, or NULL */
    uint32_t number;        /* of the record in `shared` */
} RecordOperation;

static void release_record(SimRecord *record) {
    if (record == NULL || --record->references > 0) return;
    sim_release_stream(record->point.stream);
    free(record);
}

static CUresult run_record(SimOperation *operation) {
    RecordOperation *self = (RecordOperation *)operation;
    self->record->time = sim_now();
    return CUDA_SUCCESS;
}

static void destroy_record(SimOperation *operation) {
    RecordOperation *self = (RecordOperation *)operation;
    /* A dropped record counts as complete, so that other processes do not wait for ever. */
    if (self->shared != NULL) sim_complete_shared_record(self->shared, self->number);
    pthread_mutex_lock(&sim_stream_lock);
    if (self->shared != NULL) sim_release_shared_event(self->shared);
    release_record(self->record);
    pthread_mutex_unlock(&sim_stream_lock);
    free(self);
}

static const SimOperationType record_type = {
    .node_type = CU_GRAPH_NODE_TYPE_EVENT_RECORD,
    .name = "event record",
    .run = run_record,
    .destroy = destroy_record,
};

SimEvent *sim_find_event(CUevent handle, CUresult *status) {
    *status = CUDA_SUCCESS;
    if (sim_handle_kind(handle) != SIM_EVENT_HANDLE) *status = CUDA_ERROR_INVALID_HANDLE;
    else if (handle->context == NULL) *status = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return *status ? NULL : handle;
}

void sim_enqueue_record(SimStream *stream, SimEvent *event, SimPoints *points) {
    RecordOperation *operation = sim_zeroed(sizeof *operation);
    SimRecord *record = sim_zeroed(sizeof *record);
    operation->base.type = &record_type;
    operation->record = record;
    record->references = 2; /* of the event and of the operation */
    record->point.stream = sim_retain_stream(stream);
    if (event->shared != NULL) {
        operation->shared = sim_retain_shared_event(event->shared);
        operation->number = sim_submit_shared_record(event->shared);
    }
    release_record(event->record);
    event->record = record;
    event->capture_id = 0;
    /* The operation may run at once, but nobody reads the point before the lock is released. */
    record->point.sequence = stream->submitted + 1;
    sim_enqueue_operation(stream, &operation->base, points);
}

void sim_enqueue_event_wait(SimStream *stream, SimEvent *event, SimPoints *points) {
    SimOperation *operation = NULL;
    uint32_t remote = event->shared ? sim_open_remote_record(event->shared) : 0;
    if (remote) operation = sim_new_remote_wait(event->shared, remote);
    else if (event->record != NULL)
        sim_add_point(points, event->record->point.stream, event->record->point.sequence);
    sim_enqueue_operation(stream, operation, points);
}

/* ---- record and wait -------------------------------------------------------------------------- */

CUresult sim_cuEventRecordWithFlags(CUevent handle, CUstream stream_handle, unsigned int flags) {
    if (flags & ~(unsigned int)CU_EVENT_RECORD_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
    CUresult status;
    pthread_mutex_lock(&sim_stream_lock);
    SimEvent *event = sim_find_event(handle, &status);
    SimStream *stream = event ? sim_find_stream(stream_handle, &status) : NULL;
    if (stream == NULL) {
    } else if (event->context != stream->context) {
        status = CUDA_ERROR_INVALID_HANDLE;
    } else if (stream->capture != NULL) {
        status = sim_capture_record(stream, event, flags & CU_EVENT_RECORD_EXTERNAL);
    } else if (flags) { /* external records exist in captures only */
        status = CUDA_ERROR_INVALID_VALUE;
    } else if ((status = sim_check_legacy_stream(stream)) == CUDA_SUCCESS) {
        SimPoints points = {0};
        sim_enqueue_record(stream, event, &points);
    }
    pthread_mutex_unlock(&sim_stream_lock);
    return status;
}

CUresult sim_cuEventRecord(CUevent event, CUstream stream) {
    return sim_cuEventRecordWithFlags(event, stream, 0);
}

CUresult sim_cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned int flags) {
    if (flags & ~(unsigned int)CU_EVENT_WAIT_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
    CUresult status;
    pthread_mutex_lock(&sim_stream_lock);
    SimStream *stream = sim_find_stream(stream_handle, &status);
    SimEvent *event = stream ? sim_find_event(handle, &status) : NULL;
    if (event == NULL) {
    } else if (stream->capture != NULL) {
        status = sim_capture_event_wait(stream, event, flags & CU_EVENT_WAIT_EXTERNAL);
    } else if (flags) { /* external waits exist in captures only */
        status = CUDA_ERROR_INVALID_VALUE;
    } else if ((status = sim_check_legacy_stream(stream)) != CUDA_SUCCESS) {
    } else if (event->capture_id != 0) {
        status = sim_capture_event_wait(stream, event, false);
    } else {
        SimPoints points = {0};
        sim_enqueue_event_wait(stream, event, &points);
    }
    pthread_mutex_unlock(&sim_stream_lock);
    return status;
}

/* Record all work of a context, by a stream that waits for the ends of the others. */
CUresult sim_cuCtxRecordEvent(CUcontext context, CUevent handle) {
    CUresult status;
    if (context == NULL) context = sim_current();
    if (context == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&sim_stream_lock);
    SimEvent *event = sim_find_event(handle, &status);
    if (event == NULL) {
    } else if (event->context != context) {
        status = CUDA_ERROR_INVALID_HANDLE;
    } else if (sim_invalidate_captures(context, false)) {
        status = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    } else {
        SimPoints points = {0};
        for (SimStream *stream = context->streams; stream != NULL; stream = stream->next)
            sim_add_point(&points, stream, stream->submitted);
        SimStream *stream =
            sim_new_stream(context, SIM_CREATED_STREAM, CU_STREAM_NON_BLOCKING, 0);
        stream->is_destroyed = true; /* it ends behind the record */
        sim_enqueue_record(stream, event, &points);
    }
    pthread_mutex_unlock(&sim_stream_lock);
    return status;
}

/* A record that all work of a context waits for, also work of streams that are made later. */
typedef struct ContextWait {
    struct ContextWait *next;
    SimContext *context;
    SimPoint point;
} ContextWait;

static ContextWait *context_waits;

void sim_wait_with_context(SimStream *stream) {
    SimPoints points = {0};
    for (ContextWait **link = &context_waits; *link != NULL;) {
        ContextWait *wait = *link;
        if (sim_is_done(wait->point)) {
            *link = wait->next;
            sim_release_stream(wait->point.stream);
            free(wait);
            continue;
        }
        if (wait->context == stream->context)
            sim_add_point(&points, wait->point.stream, wait->point.sequence);
        link = &wait->next;
    }
    if (points.count) sim_enqueue(stream, NULL, &points);
}

static void add_context_wait(SimContext *context, SimEvent *event) {
    for (SimStream *stream = context->streams; stream != NULL; stream = stream->next) {
        SimPoints points = {0};
        sim_enqueue_event_wait(stream, event, &points);
    }
    if (event->record == NULL) return;
    ContextWait *wait = sim_zeroed(sizeof *wait);
    *wait = (ContextWait){context_waits, context, event->record->point};
    sim_retain_stream(wait->point.stream);
    context_waits = wait;
}

CUresult sim_cuCtxWaitEvent(CUcontext context, CUevent handle) {
    CUresult status;
    if (context == NULL) context = sim_current();
    if (context == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&sim_stream_lock);
    SimEvent *event = sim_find_event(handle, &status);
    if (event == NULL) {
    } else if (event->capture_id != 0) {
        status = CUDA_ERROR_CAPTURED_EVENT;
    } else if (sim_invalidate_captures(context, false)) {
        status = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    } else {
        add_context_wait(context, event);
    }
    pthread_mutex_unlock(&sim_stream_lock);
    return status;
}

/* ---- host side -------------------------------------------------------------------------------- */

/* An event that the host may wait for, or NULL and a status. */
static SimEvent *find_to_wait(CUevent handle, CUresult *status) {
    SimEvent *event = sim_find_event(handle, status);
    if (event == NULL || event->capture_id == 0) return event;
    SimCapture *capture = sim_capture_of_event(event);
    if (capture != NULL) sim_invalidate_capture(capture);
    *status = CUDA_ERROR_CAPTURED_EVENT;
    return NULL;
}

CUresult sim_cuEventQuery(CUevent handle) {
    CUresult status;
    pthread_mutex_lock(&sim_stream_lock);
    SimEvent *event = find_to_wait(handle, &status);
    if (event != NULL) {
        bool is_open = event->shared != NULL && sim_open_remote_record(event->shared);
        if (!is_open && event->record != NULL) {
            sim_demand(event->record->point);
            is_open = !sim_is_done(event->record->point);
        }
        status = event->context->sticky;
        if (status == CUDA_SUCCESS && is_open) status = CUDA_ERROR_NOT_READY;
    }
    pthread_mutex_unlock(&sim_stream_lock);
    return status;
}

CUresult sim_cuEventSynchronize(CUevent handle) {
    CUresult status;
    SimContext *context = NULL;
    SimSharedEvent *shared = NULL;
    pthread_mutex_lock(&sim_stream_lock);
    SimEvent *event = find_to_wait(handle, &status);
    if (event != NULL) {
        context = event->context;
        uint32_t remote = event->shared ? sim_open_remote_record(event->shared) : 0;
        if (remote) {
            shared = sim_retain_shared_event(event->shared);
            pthread_mutex_unlock(&sim_stream_lock);
            sim_wait_for_remote_record(shared, remote);
            pthread_mutex_lock(&sim_stream_lock);
            sim_release_shared_event(shared);
        } else if (event->record != NULL) {
            SimPoint point = event->record->point;
            sim_retain_stream(point.stream);
            sim_wait_for(point);
            sim_release_stream(point.stream);
        }
        status = context->sticky;
    }
    pthread_mutex_unlock(&sim_stream_lock);
    sim_flush_printing(context);
    return status;
}

static CUresult elapsed_time(float *milliseconds, const SimEvent *start, const SimEvent *end) {
    if ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_HANDLE;
    if (start->record == NULL || end->record == NULL || start->context != end->context)
        return CUDA_ERROR_INVALID_HANDLE;
    bool is_done = sim_is_done(start->record->point) && sim_is_done(end->record->point);
    if (!is_done) {
        sim_demand(start->record->point);
        sim_demand(end->record->point);
        return CUDA_ERROR_NOT_READY;
    }
    int64_t nanoseconds = (int64_t)(end->record->time - start->record->time);
    *milliseconds = (float)((double)nanoseconds / 1e6);
    return CUDA_SUCCESS;
}

CUresult sim_cuEventElapsedTime(float *milliseconds, CUevent start_handle, CUevent end_handle) {
    if (milliseconds == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult status;
    pthread_mutex_lock(&sim_stream_lock);
    SimEvent *start = find_to_wait(start_handle, &status);
    SimEvent *end = start ? find_to_wait(end_handle, &status) : NULL;
    if (end != NULL) status = elapsed_time(milliseconds, start, end);
    pthread_mutex_unlock(&sim_stream_lock);
    return status;
}

CUresult sim_cuEventCreate(CUevent *result, unsigned int flags) {
    const unsigned int known =
        CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    if (result == NULL || (flags & ~known)) return CUDA_ERROR_INVALID_VALUE;
    /* The timing of an interprocess event must be disabled, as documented. */
    if ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_VALUE;
    SimContext *context = sim_current();
    if (context == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    SimEvent *event = sim_zeroed(sizeof *event);
    event->context = context;
    event->flags = flags;
    if (flags & CU_EVENT_INTERPROCESS) {
        event->shared = sim_new_shared_event(context->device->ordinal);
        if (event->shared == NULL) {
            free(event);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    sim_add_handle(event, SIM_EVENT_HANDLE);
    *result = event;
    return CUDA_SUCCESS;
}

CUresult sim_cuEventDestroy(CUevent handle) {
    CUresult status;
    pthread_mutex_lock(&sim_stream_lock);
    SimEvent *event = sim_handle_kind(handle) == SIM_EVENT_HANDLE ? handle : NULL;
    sim_find_event(handle, &status);
    if (event != NULL) {
        sim_remove_handle(event);
        release_record(event->record);
        free(event->capture_edges.nodes);
        free(event->capture_edges.data);
        if (event->shared != NULL) sim_release_shared_event(event->shared);
        free(event);
    }
    pthread_mutex_unlock(&sim_stream_lock);
    return status;
}
