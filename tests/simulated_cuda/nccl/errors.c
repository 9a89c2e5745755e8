/* Texts of errors, and errors of stream work. */
#include "nccl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char last_error[256]; /* guarded by `lock` */

static void set_last_error(const char *text) {
    pthread_mutex_lock(&lock);
    memcpy(last_error, text, sizeof last_error);
    pthread_mutex_unlock(&lock);
    if (getenv("NCCL_DEBUG") != NULL) {
        fprintf(stderr, "NCCL WARN %s\n", text);
    }
}

ncclResult_t sim_error(ncclResult_t result, const char *format, ...) {
    char text[sizeof last_error] = "";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    set_last_error(text);
    return result;
}

ncclResult_t sim_fail(ncclComm_t comm, ncclResult_t result, const char *format, ...) {
    char text[sizeof last_error] = "";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    int none = ncclSuccess, active = SIM_ACTIVE;
    if (atomic_compare_exchange_strong(&comm->async_error, &none, (int)result)) {
        memcpy(comm->error, text, sizeof text);
        set_last_error(text);
    }
    atomic_compare_exchange_strong(&comm->world->ranks[comm->rank].state, &active, SIM_FAILED);
    sim_notify(comm);
    return result;
}

SIM_EXPORT const char *ncclGetErrorString(ncclResult_t result) {
    static const char *const texts[ncclNumResults] = {
        [ncclSuccess] = "no error",
        [ncclUnhandledCudaError] = "a call of CUDA failed",
        [ncclSystemError] = "a call of the operating system failed",
        [ncclInternalError] = "internal error",
        [ncclInvalidArgument] = "invalid argument",
        [ncclInvalidUsage] = "invalid usage",
        [ncclRemoteError] = "a remote process or rank failed",
        [ncclInProgress] = "the operation is in progress",
    };
    return (unsigned int)result < ncclNumResults ? texts[result] : "unknown result";
}

/* The text is that of the calling thread's view: another thread may replace it. */
SIM_EXPORT const char *ncclGetLastError(ncclComm_t comm) {
    static _Thread_local char text[sizeof last_error];
    pthread_mutex_lock(&lock);
    memcpy(text, comm != NULL && comm->async_error ? comm->error : last_error, sizeof text);
    pthread_mutex_unlock(&lock);
    return text;
}
