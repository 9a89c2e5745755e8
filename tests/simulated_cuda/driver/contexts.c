/* Contexts: the primary one of each device, created ones, and the stack of each thread. */
#include "tables.h"

#include <stdlib.h>

#define MAX_STACK 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static SimContext primaries[SIM_MAX_DEVICES];
static unsigned long long last_id;
static _Thread_local SimContext *stack[MAX_STACK];
static _Thread_local int depth;

SimContext *sim_current(void) { return depth ? stack[depth - 1] : NULL; }

SimContext *sim_primary(int ordinal) {
    pthread_mutex_lock(&lock);
    SimContext *context = &primaries[ordinal];
    if (!context->device) {
        context->device = sim_device(ordinal);
        context->is_primary = true;
        context->id = ++last_id;
    }
    pthread_mutex_unlock(&lock);
    return context;
}

void sim_break_context(SimContext *context, CUresult status) {
    int none = 0;
    __atomic_compare_exchange_n((int *)&context->sticky, &none, (int)status, false,
                                __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

CUresult sim_cuDevicePrimaryCtxRetain(CUcontext *result, CUdevice ordinal) {
    if (!result)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    SimContext *context = sim_primary(ordinal);
    pthread_mutex_lock(&lock);
    context->references++;
    context->is_active = true;
    pthread_mutex_unlock(&lock);
    *result = context;
    return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetCurrent(CUcontext *result) {
    if (!result)
        return CUDA_ERROR_INVALID_VALUE;
    *result = sim_current();
    return CUDA_SUCCESS;
}

CUresult sim_cuCtxSetCurrent(CUcontext context) {
    if (depth == 0)
        depth = 1;
    stack[depth - 1] = context;
    if (!context)
        depth--;
    return CUDA_SUCCESS;
}

CUresult sim_cuCtxPushCurrent(CUcontext context) {
    if (!context || depth == MAX_STACK)
        return CUDA_ERROR_INVALID_CONTEXT;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult sim_cuCtxPopCurrent(CUcontext *result) {
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    SimContext *context = stack[--depth];
    if (result)
        *result = context;
    return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetDevice(CUdevice *result) {
    if (!result)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_current())
        return CUDA_ERROR_INVALID_CONTEXT;
    *result = sim_current()->device->ordinal;
    return CUDA_SUCCESS;
}

CUresult sim_cuCtxSynchronize(void) {
    if (!sim_current())
        return CUDA_ERROR_INVALID_CONTEXT;
    return sim_context_synchronize(sim_current());
}
