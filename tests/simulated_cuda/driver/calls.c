/* What happens around every call of the API: counters, injected faults, the log, the report. */
#include "tables.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_INJECTIONS 32
#define MAX_REPORT (1 << 20)

enum {
    NEEDS_NOTHING = 1, /* may be called before cuInit */
    IGNORES_CONTEXT = 2 /* works where the current context is broken or destroyed */
};

typedef struct Injection {
    int function; /* index, or -1: a free entry */
    long skip;    /* calls that succeed first */
    long times;   /* calls that fail then */
    CUresult status;
} Injection;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic long *counts;
static _Atomic long *stub_counts;
static unsigned char *traits;
static Injection injections[MAX_INJECTIONS];
static _Atomic int injection_count;
static char *report;
static size_t report_size;
static int log_file = -1;
static int stub_file = -1; /* NBRT_SIM_STUBS: names of called functions that are not simulated */
static _Atomic bool is_initialised, is_forked;
static _Thread_local bool per_thread_default;

static const char *const before_init[] = {
    "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString", "cuGetExportTable",
    "cuGetProcAddress",   "cuInit",         NULL,
};

static bool starts_with(const char *name, const char *prefix) {
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

static unsigned char traits_of(const char *name) {
    for (int i = 0; before_init[i]; i++)
        if (strcmp(name, before_init[i]) == 0)
            return NEEDS_NOTHING | IGNORES_CONTEXT;
    /* Contexts can be examined, left and destroyed after a fault, and devices can be reset. */
    bool is_context = starts_with(name, "cuCtx") && !starts_with(name, "cuCtxSynchronize");
    return is_context || starts_with(name, "cuDevice") ? IGNORES_CONTEXT : 0;
}

static void child_of_fork(void) {
    if (is_initialised)
        is_forked = true;
}

static int open_setting(const char *name) {
    const char *path = getenv(name);
    return path && *path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
}

/* One call of `write`, so that lines of several processes do not mix. */
static void append(int file, const char *line, size_t size) {
    if (file >= 0) {
        ssize_t written = write(file, line, size);
        (void)written; /* a log that cannot be written changes nothing */
    }
}

__attribute__((constructor)) static void start(void) {
    counts = calloc(sim_function_count, sizeof *counts);
    stub_counts = calloc(sim_function_count, sizeof *stub_counts);
    traits = calloc(sim_function_count, 1);
    if (!counts || !stub_counts || !traits)
        abort();
    for (int i = 0; i < sim_function_count; i++)
        traits[i] = traits_of(sim_functions[i].name);
    for (int i = 0; i < MAX_INJECTIONS; i++)
        injections[i].function = -1;
    log_file = open_setting("NBRT_SIM_LOG");
    stub_file = open_setting("NBRT_SIM_STUBS");
    pthread_atfork(NULL, NULL, child_of_fork);
}

static void log_call(int function, CUresult status, const char *note) {
    if (log_file < 0)
        return;
    char line[160];
    int size = snprintf(line, sizeof line, "%d %ld %s -> %d%s\n", (int)getpid(),
                        (long)syscall(SYS_gettid), sim_functions[function].name, (int)status, note);
    append(log_file, line, size);
}

/* Return the status that the test wants this call to have, or CUDA_SUCCESS. */
static CUresult injected(int function) {
    CUresult status = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_INJECTIONS && status == CUDA_SUCCESS; i++) {
        Injection *entry = &injections[i];
        if (entry->function != function)
            continue;
        if (entry->skip > 0) {
            entry->skip--;
        } else {
            status = entry->status;
            if (--entry->times == 0) {
                entry->function = -1;
                injection_count--;
            }
        }
    }
    pthread_mutex_unlock(&lock);
    return status;
}

CUresult sim_enter(int function) {
    counts[function]++;
    if (injection_count) {
        CUresult status = injected(function);
        if (status != CUDA_SUCCESS)
            return status;
    }
    if (!(traits[function] & NEEDS_NOTHING) && (!is_initialised || is_forked))
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!(traits[function] & NEEDS_NOTHING) && sim_in_host_function())
        return CUDA_ERROR_NOT_PERMITTED;
    if (!(traits[function] & IGNORES_CONTEXT)) {
        SimContext *context = sim_current();
        if (context && !context->is_active)
            return CUDA_ERROR_CONTEXT_IS_DESTROYED;
        if (context && context->sticky)
            return context->sticky;
    }
    return CUDA_SUCCESS;
}

CUresult sim_leave(int function, CUresult status) {
    log_call(function, status, "");
    return status;
}

CUresult sim_not_supported(int function) {
    counts[function]++;
    stub_counts[function]++;
    log_call(function, CUDA_ERROR_NOT_SUPPORTED, " (not simulated)");
    if (stub_file >= 0) {
        char line[96];
        append(stub_file, line, snprintf(line, sizeof line, "%s\n", sim_functions[function].name));
    }
    return CUDA_ERROR_NOT_SUPPORTED;
}

void sim_report(const char *format, ...) {
    char line[2048];
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    if (size < 0)
        return;
    if (size > (int)sizeof line - 2)
        size = sizeof line - 2;
    line[size++] = '\n';
    pthread_mutex_lock(&lock);
    if (!report)
        report = malloc(MAX_REPORT);
    if (report && report_size + size <= MAX_REPORT) {
        memcpy(report + report_size, line, size);
        report_size += size;
    }
    pthread_mutex_unlock(&lock);
    append(log_file, line, size);
}

long sim_setting(const char *name, long default_value) {
    const char *text = getenv(name);
    if (!text || !*text)
        return default_value;
    char *end;
    errno = 0;
    long value = strtol(text, &end, 0);
    int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    if (shift)
        end++;
    if (errno || *end) {
        fprintf(stderr, "simulated CUDA driver: %s=%s is no number; using %ld\n", name, text,
                default_value);
        return default_value;
    }
    return value * (1L << shift);
}

bool sim_per_thread_default(void) { return per_thread_default; }

bool sim_set_per_thread_default(bool is_per_thread) {
    bool before = per_thread_default;
    per_thread_default = is_per_thread;
    return before;
}

bool sim_is_forked(void) { return is_forked; }

CUresult sim_cuInit(unsigned int flags) {
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (is_forked)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (sim_device_count() == 0)
        return CUDA_ERROR_NO_DEVICE;
    is_initialised = true;
    return CUDA_SUCCESS;
}

CUresult sim_cuDriverGetVersion(int *version) {
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = SIM_DRIVER_VERSION;
    return CUDA_SUCCESS;
}

/* ---- what the tests call ---------------------------------------------------------------------- */

static int function_named(const char *name) {
    for (int i = 0; i < sim_function_count; i++)
        if (strcmp(sim_functions[i].name, name) == 0)
            return i;
    return -1;
}

/* Let calls of a function fail: the next `skip` succeed, then `times` (0: all) return `status`.
 * Returns false if the name is unknown or there are too many injections. */
SIM_EXPORT bool sim_inject(const char *name, long skip, long times, int status) {
    int function = function_named(name);
    if (function < 0)
        return false;
    bool is_done = false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_INJECTIONS && !is_done; i++) {
        if (injections[i].function >= 0)
            continue;
        injections[i] = (Injection){function, skip, times, status};
        injection_count++;
        is_done = true;
    }
    pthread_mutex_unlock(&lock);
    return is_done;
}

SIM_EXPORT void sim_clear_injections(void) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_INJECTIONS; i++)
        injections[i].function = -1;
    injection_count = 0;
    pthread_mutex_unlock(&lock);
}

/* Return how often a function was called, or -1 if the name is unknown. */
SIM_EXPORT long sim_call_count(const char *name) {
    int function = function_named(name);
    return function < 0 ? -1 : counts[function];
}

/* The i-th function, and how often it was called while it is not simulated; NULL at the end. */
SIM_EXPORT const char *sim_stub(int index, long *count) {
    if (index < 0 || index >= sim_function_count)
        return NULL;
    *count = stub_counts[index];
    return sim_functions[index].name;
}

/* Move at most `size` bytes of the report to `text`, and return their number. */
SIM_EXPORT size_t sim_take_report(char *text, size_t size) {
    pthread_mutex_lock(&lock);
    size_t taken = report_size < size ? report_size : size;
    if (taken) {
        memcpy(text, report, taken);
        memmove(report, report + taken, report_size - taken);
        report_size -= taken;
    }
    pthread_mutex_unlock(&lock);
    return taken;
}
