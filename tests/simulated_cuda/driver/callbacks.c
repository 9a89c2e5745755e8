/* Host functions and callbacks of streams. They run in the thread of a stream, without locks. */
#include "streams.h"

#include <stdlib.h>

typedef struct HostOperation {
    SimOperation base;
    CUDA_HOST_NODE_PARAMS parameters;
} HostOperation;

typedef struct CallbackOperation {
    SimOperation base;
    CUstreamCallback function;
    CUstream stream; /* the handle that the caller gave */
    void *data;
} CallbackOperation;

static _Thread_local bool in_host_function;

bool sim_in_host_function(void) { return in_host_function; }

static CUresult run_host_function(SimOperation *operation) {
    HostOperation *self = (HostOperation *)operation;
    in_host_function = true;
    sim_flush_printing(operation->context); /* output of kernels comes before that of the host */
    self->parameters.fn(self->parameters.userData);
    in_host_function = false;
    return CUDA_SUCCESS;
}

static SimOperation *copy_host_function(const SimOperation *operation) {
    const HostOperation *self = (const HostOperation *)operation;
    return sim_new_host_function(self->parameters.fn, self->parameters.userData);
}

static void free_operation(SimOperation *operation) { free(operation); }

const SimOperationType sim_host_type = {
    .node_type = CU_GRAPH_NODE_TYPE_HOST,
    .name = "host function",
    .run = run_host_function,
    .copy = copy_host_function,
    .destroy = free_operation,
};

SimOperation *sim_new_host_function(CUhostFn function, void *data) {
    HostOperation *operation = sim_zeroed(sizeof *operation);
    operation->base.type = &sim_host_type;
    operation->parameters = (CUDA_HOST_NODE_PARAMS){function, data};
    return &operation->base;
}

void sim_host_parameters(const SimOperation *operation, CUDA_HOST_NODE_PARAMS *result) {
    *result = ((const HostOperation *)operation)->parameters;
}

CUresult sim_cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data) {
    if (function == NULL) return CUDA_ERROR_INVALID_VALUE;
    return sim_submit(stream, sim_new_host_function(function, data));
}

/* Both ways to synchronise with the host thread have the same effect here. */
CUresult sim_cuLaunchHostFunc_v2(CUstream stream, CUhostFn function, void *data,
                                 unsigned int sync_mode) {
    if (sync_mode > CU_HOST_TASK_SPINWAIT) return CUDA_ERROR_INVALID_VALUE;
    return sim_cuLaunchHostFunc(stream, function, data);
}

static CUresult run_callback(SimOperation *operation) {
    CallbackOperation *self = (CallbackOperation *)operation;
    in_host_function = true;
    self->function(self->stream, self->base.context->sticky, self->data);
    in_host_function = false;
    return CUDA_SUCCESS;
}

const SimOperationType sim_callback_type = {
    .node_type = CU_GRAPH_NODE_TYPE_HOST,
    .name = "stream callback",
    .run = run_callback,
    .destroy = free_operation,
};

/* Callbacks of this old form cannot be captured, as documented. */
CUresult sim_cuStreamAddCallback(CUstream stream, CUstreamCallback function, void *data,
                                 unsigned int flags) {
    if (function == NULL || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    CallbackOperation *operation = sim_zeroed(sizeof *operation);
    operation->base.type = &sim_callback_type;
    operation->function = function;
    operation->stream = stream;
    operation->data = data;
    return sim_submit(stream, &operation->base);
}
