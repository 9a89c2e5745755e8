/* Groups of calls, and their way to the streams.
 *
 * The calls of a group on one communicator are one operation: a host function on the stream of the
 * first call. The other streams of the group wait for it, and it for them. Operations of one
 * communicator run in the order of their calls, also on different streams. */
#include "nccl.h"

#include <stdlib.h>

/* Calls of one communicator, queued on a stream. */
typedef struct Operation {
    ncclComm_t comm;
    SimCall *calls;
    bool is_captured;       /* it belongs to a graph, which may run it at any later time */
    _Atomic int references; /* of the queue, and of the thread that fills it */
} Operation;

typedef struct Group {
    int depth;
    ncclResult_t result; /* of the first call that failed */
    SimCall *calls, **calls_end;
    SimCreation *creations, **creations_end;
} Group;

static _Thread_local Group group;

ncclResult_t sim_group_error(ncclResult_t result) {
    if (group.depth > 0 && group.result == ncclSuccess) {
        group.result = result;
    }
    return result;
}

/* ---- operations ---------------------------------------------------------------------------------------- */

static void free_calls(SimCall *calls) {
    while (calls != NULL) {
        SimCall *next = calls->next;
        free(calls);
        calls = next;
    }
}

static void drop(Operation *operation) {
    if (--operation->references == 0) {
        sim_release(operation->comm);
        free_calls(operation->calls);
        free(operation);
    }
}

/* The host function. */
static void run(void *argument) {
    Operation *operation = argument;
    ncclComm_t comm = operation->comm;
    ncclResult_t result = comm->async_error;
    for (SimCall *call = operation->calls; call != NULL && result == ncclSuccess; call = call->next) {
        call->done = 0;
        call->is_begun = call->is_done = false;
        if (call->signature.kind != SIM_SEND && call->signature.kind != SIM_RECEIVE) {
            result = sim_run_collective(call);
        }
    }
    if (result == ncclSuccess) {
        sim_run_exchange(comm, operation->calls);
    }
    if (!operation->is_captured) {
        drop(operation);
    }
}

/* Let `waiting` wait for the work of `stream` so far. */
static CUresult order(CUevent event, CUstream stream, CUstream waiting) {
    const SimDriver *driver = sim_driver();
    CUresult status = stream == waiting ? CUDA_SUCCESS : driver->cuEventRecord(event, stream);
    return status || stream == waiting ? status : driver->cuStreamWaitEvent(waiting, event, 0);
}

/* Join the streams of all calls with the first one, before the operation or behind it. */
static CUresult join(const Operation *operation, CUevent event, bool is_before) {
    CUstream first = operation->calls->stream;
    CUresult status = CUDA_SUCCESS;
    for (SimCall *call = operation->calls->next; call != NULL && status == CUDA_SUCCESS; call = call->next) {
        status = is_before ? order(event, call->stream, first) : order(event, first, call->stream);
    }
    return status;
}

static CUresult enqueue(Operation *operation, CUevent event) {
    const SimDriver *driver = sim_driver();
    ncclComm_t comm = operation->comm;
    CUstream stream = operation->calls->stream;
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult status = driver->cuStreamIsCapturing(stream, &capture);
    if (status == CUDA_ERROR_NOT_SUPPORTED) status = 0;
    operation->is_captured = capture != CU_STREAM_CAPTURE_STATUS_NONE;
    status = status ? status : join(operation, event, true);
    if (status == CUDA_SUCCESS && !operation->is_captured && comm->has_last) {
        status = driver->cuStreamWaitEvent(stream, comm->last, 0);
    }
    operation->references++;
    status = status ? status : driver->cuLaunchHostFunc(stream, run, operation);
    if (status != CUDA_SUCCESS) {
        operation->references--;
        return status;
    }
    status = join(operation, event, false);
    if (operation->is_captured) {
        sim_capture(comm);
    } else if (status == CUDA_SUCCESS) {
        status = driver->cuEventRecord(comm->last, stream);
        comm->has_last = true;
    }
    return status;
}

static ncclResult_t launch(Operation *operation) {
    const SimDriver *driver = sim_driver();
    CUcontext popped;
    CUevent event;
    CUresult status = driver->cuCtxPushCurrent(operation->comm->context);
    if (status != CUDA_SUCCESS) {
        return sim_check(status, "cuCtxPushCurrent");
    }
    status = driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    if (status == CUDA_SUCCESS) {
        status = enqueue(operation, event);
        driver->cuEventDestroy(event);
    }
    driver->cuCtxPopCurrent(&popped);
    return sim_check(status, "the queueing of an operation");
}

/* Move the calls on the communicator of the first one from the list to an operation. */
static Operation *take_operation(SimCall **calls) {
    Operation *operation = calloc(1, sizeof *operation);
    if (operation == NULL) {
        return NULL;
    }
    operation->comm = (*calls)->comm;
    operation->references = 1;
    SimCall **taken = &operation->calls, **link = calls;
    while (*link != NULL) {
        SimCall *call = *link;
        if (call->comm == operation->comm) {
            *link = call->next;
            call->next = NULL;
            *taken = call;
            taken = &call->next;
        } else {
            link = &call->next;
        }
    }
    sim_hold(operation->comm);
    return operation;
}

static ncclResult_t launch_calls(SimCall *calls) {
    ncclResult_t result = ncclSuccess;
    while (calls != NULL && result == ncclSuccess) {
        Operation *operation = take_operation(&calls);
        if (operation == NULL) {
            result = sim_error(ncclSystemError, "no memory");
            break;
        }
        result = launch(operation);
        drop(operation);
    }
    free_calls(calls);
    return result;
}

/* ---- creations ----------------------------------------------------------------------------------------- */

static ncclResult_t create_all(SimCreation *creations, ncclResult_t result) {
    ncclResult_t (*const steps[])(SimCreation *) = {sim_begin, sim_continue, sim_finish};
    for (int step = 0; step < 3; step++) {
        for (SimCreation *each = creations; each != NULL && result == ncclSuccess; each = each->next) {
            result = steps[step](each);
        }
    }
    while (creations != NULL) {
        SimCreation *next = creations->next;
        if (result != ncclSuccess) {
            sim_discard(creations);
        }
        free(creations);
        creations = next;
    }
    return result;
}

/* ---- the public functions -------------------------------------------------------------------------------- */

ncclResult_t sim_add_call(SimCall *call) {
    if (group.depth == 0) {
        return launch_calls(call);
    }
    *group.calls_end = call;
    group.calls_end = &call->next;
    return ncclSuccess;
}

ncclResult_t sim_add_creation(SimCreation *creation) {
    if (group.depth == 0) {
        return create_all(creation, ncclSuccess);
    }
    *group.creations_end = creation;
    group.creations_end = &creation->next;
    return ncclSuccess;
}

SIM_EXPORT ncclResult_t ncclGroupStart(void) {
    if (group.depth++ == 0) {
        group.result = ncclSuccess;
        group.calls = NULL;
        group.calls_end = &group.calls;
        group.creations = NULL;
        group.creations_end = &group.creations;
    }
    return ncclSuccess;
}

SIM_EXPORT ncclResult_t ncclGroupEnd(void) {
    if (group.depth == 0) {
        return sim_error(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    }
    if (--group.depth > 0) {
        return ncclSuccess;
    }
    ncclResult_t result = create_all(group.creations, group.result);
    if (result != ncclSuccess) {
        free_calls(group.calls);
        return result;
    }
    return launch_calls(group.calls);
}
