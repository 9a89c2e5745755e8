/* Interprocess events: a file in /dev/shm counts submitted and completed records. */
#include "streams.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NAME_SIZE 48 /* fits a CUipcEventHandle */

typedef struct Counters {
    _Atomic uint32_t submitted, completed;
    int device;
} Counters;

struct SimSharedEvent {
    int references;
    Counters *counters;
    uint32_t last_own; /* number of the last record that this process submitted */
    bool is_owner;     /* this process created the file */
    char name[NAME_SIZE];
};

typedef struct RemoteWait {
    SimOperation base;
    SimSharedEvent *shared;
    uint32_t number;
} RemoteWait;

static Counters *map_counters(int file) {
    Counters *counters =
        mmap(NULL, sizeof *counters, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return counters == MAP_FAILED ? NULL : counters;
}

SimSharedEvent *sim_new_shared_event(int device) {
    static _Atomic unsigned int count;
    SimSharedEvent *shared = sim_zeroed(sizeof *shared);
    shared->references = 1;
    shared->is_owner = true;
    snprintf(shared->name, sizeof shared->name, "/dev/shm/sim-event-%d-%u", (int)getpid(),
             count++);
    int file = open(shared->name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file >= 0 && ftruncate(file, sizeof(Counters)) == 0) shared->counters = map_counters(file);
    if (shared->counters == NULL) {
        free(shared);
        return NULL;
    }
    shared->counters->device = device;
    return shared;
}

SimSharedEvent *sim_retain_shared_event(SimSharedEvent *shared) {
    shared->references++;
    return shared;
}

void sim_release_shared_event(SimSharedEvent *shared) {
    if (--shared->references > 0) return;
    if (shared->is_owner) unlink(shared->name);
    munmap(shared->counters, sizeof(Counters));
    free(shared);
}

uint32_t sim_submit_shared_record(SimSharedEvent *shared) {
    return shared->last_own = ++shared->counters->submitted;
}

void sim_complete_shared_record(SimSharedEvent *shared, uint32_t number) {
    uint32_t before = shared->counters->completed;
    while (before < number &&
           !__atomic_compare_exchange_n((uint32_t *)&shared->counters->completed, &before, number,
                                        false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
    syscall(SYS_futex, &shared->counters->completed, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

uint32_t sim_open_remote_record(const SimSharedEvent *shared) {
    uint32_t last = shared->counters->submitted;
    if (last == shared->last_own || shared->counters->completed >= last) return 0;
    return last;
}

void sim_wait_for_remote_record(SimSharedEvent *shared, uint32_t number) {
    uint32_t completed;
    while ((completed = shared->counters->completed) < number)
        syscall(SYS_futex, &shared->counters->completed, FUTEX_WAIT, completed, NULL, NULL, 0);
}

static CUresult run_remote_wait(SimOperation *operation) {
    RemoteWait *self = (RemoteWait *)operation;
    sim_wait_for_remote_record(self->shared, self->number);
    return CUDA_SUCCESS;
}

static void destroy_remote_wait(SimOperation *operation) {
    RemoteWait *self = (RemoteWait *)operation;
    pthread_mutex_lock(&sim_stream_lock);
    sim_release_shared_event(self->shared);
    pthread_mutex_unlock(&sim_stream_lock);
    free(self);
}

static const SimOperationType remote_wait_type = {
    .node_type = CU_GRAPH_NODE_TYPE_WAIT_EVENT,
    .name = "wait for an event of another process",
    .run = run_remote_wait,
    .destroy = destroy_remote_wait,
};

SimOperation *sim_new_remote_wait(SimSharedEvent *shared, uint32_t number) {
    RemoteWait *operation = sim_zeroed(sizeof *operation);
    operation->base.type = &remote_wait_type;
    operation->shared = sim_retain_shared_event(shared);
    operation->number = number;
    return &operation->base;
}

CUresult sim_cuIpcGetEventHandle(CUipcEventHandle *result, CUevent handle) {
    if (result == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult status;
    pthread_mutex_lock(&sim_stream_lock);
    SimEvent *event = sim_find_event(handle, &status);
    if (event != NULL && event->shared == NULL) status = CUDA_ERROR_INVALID_HANDLE;
    if (status == CUDA_SUCCESS) {
        memset(result, 0, sizeof *result);
        memcpy(result->reserved, event->shared->name, NAME_SIZE);
    }
    pthread_mutex_unlock(&sim_stream_lock);
    return status;
}

CUresult sim_cuIpcOpenEventHandle(CUevent *result, CUipcEventHandle handle) {
    static const char prefix[] = "/dev/shm/sim-event-";
    if (result == NULL) return CUDA_ERROR_INVALID_VALUE;
    SimContext *context = sim_current();
    if (context == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (memcmp(handle.reserved, prefix, sizeof prefix - 1) != 0 ||
        handle.reserved[NAME_SIZE - 1] != '\0')
        return CUDA_ERROR_INVALID_VALUE;
    int file = open(handle.reserved, O_RDWR | O_CLOEXEC);
    Counters *counters = file < 0 ? NULL : map_counters(file);
    if (counters == NULL) return CUDA_ERROR_INVALID_HANDLE;
    SimEvent *event = sim_zeroed(sizeof *event);
    event->context = context;
    event->flags = CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    event->shared = sim_zeroed(sizeof *event->shared);
    event->shared->references = 1;
    event->shared->counters = counters;
    memcpy(event->shared->name, handle.reserved, NAME_SIZE);
    sim_add_handle(event, SIM_EVENT_HANDLE);
    *result = event;
    return CUDA_SUCCESS;
}
