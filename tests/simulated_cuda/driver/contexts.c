/* Contexts: the primary one of each device, created ones, and the stack of each thread.
 *
 * A context is never freed, so that a stale handle is recognised: a destroyed context is inactive
 * for ever, and a primary context until it is retained again. */
#include "contexts.h"

#include <stdlib.h>
#include <string.h>

/* The contexts of a thread. It is not thread-local itself: the thread-local memory of a library
 * that is loaded late is scarce. */
typedef struct Stack {
    int depth, capacity;
    SimContext *entries[];
} Stack;

typedef struct CreatedContext {
    SimContext context; /* first: a handle is its address */
    struct CreatedContext *next;
} CreatedContext;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static SimContext primaries[SIM_MAX_DEVICES];
static CreatedContext *created;
static unsigned long long last_id;
static _Thread_local Stack *stack;
static pthread_key_t stack_key; /* frees the stack of a thread that ends */

__attribute__((constructor)) static void make_key(void) { pthread_key_create(&stack_key, free); }

SimContext *sim_current(void) {
    return stack && stack->depth ? stack->entries[stack->depth - 1] : NULL;
}

static CUresult push(SimContext *context) {
    if (!stack || stack->depth == stack->capacity) {
        int capacity = stack ? 2 * stack->capacity : 8;
        Stack *larger = realloc(stack, sizeof *larger + capacity * sizeof *larger->entries);
        if (!larger)
            return CUDA_ERROR_OUT_OF_MEMORY;
        if (!stack)
            larger->depth = 0;
        larger->capacity = capacity;
        stack = larger;
        pthread_setspecific(stack_key, stack);
    }
    stack->entries[stack->depth++] = context;
    return CUDA_SUCCESS;
}

bool sim_is_context(const SimContext *context) {
    if (context >= primaries && context < primaries + SIM_MAX_DEVICES)
        return context->device != NULL;
    pthread_mutex_lock(&lock);
    CreatedContext *entry = created;
    while (entry && &entry->context != context)
        entry = entry->next;
    pthread_mutex_unlock(&lock);
    return entry != NULL;
}

CUresult sim_usable_context(CUcontext handle, SimContext **result) {
    SimContext *context = handle ? handle : sim_current();
    *result = context;
    if (!context || !sim_is_context(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    return context->is_active ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

SimContext *sim_primary(int ordinal) {
    pthread_mutex_lock(&lock);
    SimContext *context = &primaries[ordinal];
    if (!context->device) {
        context->is_primary = true;
        sim_reset_settings(context, sim_device(ordinal));
        context->device = sim_device(ordinal);
    }
    pthread_mutex_unlock(&lock);
    return context;
}

void sim_break_context(SimContext *context, CUresult status) {
    int none = 0;
    __atomic_compare_exchange_n((int *)&context->sticky, &none, (int)status, false,
                                __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* Release everything that belongs to a context which is not active any more. */
static void release(SimContext *context) {
    sim_streams_release(context);
    sim_modules_release(context);
    sim_memory_release(context);
    sim_reset_settings(context, context->device);
}

/* ---- primary contexts ------------------------------------------------------------------------- */

CUresult sim_cuDevicePrimaryCtxRetain(CUcontext *result, CUdevice ordinal) {
    if (!result)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    SimContext *context = sim_primary(ordinal);
    pthread_mutex_lock(&lock);
    context->references++;
    if (!context->is_active) {
        context->id = ++last_id;
        context->is_active = true;
    }
    pthread_mutex_unlock(&lock);
    *result = context;
    return CUDA_SUCCESS;
}

CUresult sim_cuDevicePrimaryCtxRelease(CUdevice ordinal) {
    if (!sim_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    SimContext *context = sim_primary(ordinal);
    pthread_mutex_lock(&lock);
    bool is_retained = context->references > 0;
    bool is_last = is_retained && --context->references == 0 && context->is_active;
    if (is_last)
        context->is_active = false;
    pthread_mutex_unlock(&lock);
    if (is_last)
        release(context);
    return is_retained ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult sim_cuDevicePrimaryCtxReset(CUdevice ordinal) {
    if (!sim_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    SimContext *context = sim_primary(ordinal);
    pthread_mutex_lock(&lock);
    bool was_active = context->is_active;
    context->is_active = false;
    pthread_mutex_unlock(&lock);
    if (was_active)
        release(context);
    return CUDA_SUCCESS;
}

CUresult sim_cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int *flags, int *is_active) {
    if (!flags || !is_active)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    SimContext *context = sim_primary(ordinal);
    *flags = context->flags;
    *is_active = context->is_active;
    return CUDA_SUCCESS;
}

CUresult sim_cuDevicePrimaryCtxSetFlags(CUdevice ordinal, unsigned int flags) {
    if (!sim_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    if (!sim_are_context_flags(flags))
        return CUDA_ERROR_INVALID_VALUE;
    sim_primary(ordinal)->flags = flags;
    return CUDA_SUCCESS;
}

/* ---- the stack of the calling thread ---------------------------------------------------------- */

CUresult sim_cuCtxGetCurrent(CUcontext *result) {
    if (!result)
        return CUDA_ERROR_INVALID_VALUE;
    *result = sim_current();
    return CUDA_SUCCESS;
}

CUresult sim_cuCtxSetCurrent(CUcontext context) {
    if (context && !sim_is_context(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (stack && stack->depth)
        stack->depth--;
    return context ? push(context) : CUDA_SUCCESS;
}

CUresult sim_cuCtxPushCurrent(CUcontext context) {
    if (!context || !sim_is_context(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    return push(context);
}

CUresult sim_cuCtxPopCurrent(CUcontext *result) {
    SimContext *context = sim_current();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    stack->depth--;
    if (result)
        *result = context;
    return CUDA_SUCCESS;
}

/* ---- created contexts ------------------------------------------------------------------------- */

static CUresult create(CUcontext *result, unsigned int flags, CUdevice ordinal) {
    if (!result || !sim_are_context_flags(flags))
        return CUDA_ERROR_INVALID_VALUE;
    SimDevice *device = sim_device(ordinal);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    CreatedContext *entry = calloc(1, sizeof *entry);
    if (!entry)
        return CUDA_ERROR_OUT_OF_MEMORY;
    SimContext *context = &entry->context;
    sim_reset_settings(context, device);
    context->device = device;
    context->flags = flags;
    context->references = 1;
    context->is_active = true;
    pthread_mutex_lock(&lock);
    context->id = ++last_id;
    entry->next = created;
    created = entry;
    pthread_mutex_unlock(&lock);
    *result = context;
    return push(context);
}

CUresult sim_cuCtxCreate(CUcontext *result, CUctxCreateParams *params, unsigned int flags,
                         CUdevice ordinal) {
    if (params && params->numExecAffinityParams)
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY; /* needs MPS */
    if (params && params->cigParams)
        return CUDA_ERROR_NOT_SUPPORTED;
    return create(result, flags, ordinal);
}

CUresult sim_cuCtxCreate_v2(CUcontext *result, unsigned int flags, CUdevice ordinal) {
    return create(result, flags, ordinal);
}

CUresult sim_cuCtxCreate_v3(CUcontext *result, CUexecAffinityParam *params, int count,
                            unsigned int flags, CUdevice ordinal) {
    if (count)
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    return create(result, flags, ordinal);
}

/* End the life of a created context; false if it is another's, or destroyed. */
static bool retire(SimContext *context) {
    if (!context || !sim_is_context(context) || context->is_primary)
        return false;
    pthread_mutex_lock(&lock);
    bool was_active = context->is_active;
    context->is_active = false;
    pthread_mutex_unlock(&lock);
    return was_active;
}

CUresult sim_cuCtxDestroy(CUcontext context) {
    if (!retire(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    release(context);
    if (sim_current() == context)
        stack->depth--;
    return CUDA_SUCCESS;
}

/* Deprecated: the usage count of a created context. */
CUresult sim_cuCtxAttach(CUcontext *result, unsigned int flags) {
    SimContext *context;
    if (!result || flags)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = sim_usable_context(NULL, &context);
    if (status == CUDA_SUCCESS) {
        pthread_mutex_lock(&lock);
        context->references++;
        pthread_mutex_unlock(&lock);
        *result = context;
    }
    return status;
}

CUresult sim_cuCtxDetach(CUcontext context) {
    if (!context || context != sim_current() || context->is_primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    bool is_last = --context->references == 0;
    pthread_mutex_unlock(&lock);
    return is_last ? sim_cuCtxDestroy(context) : CUDA_SUCCESS;
}
