/* Communicators: creation, splits, queries, the end. */
#include "nccl.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ID_MAGIC "nbrt-sim-nccl-"
#define ID_RANDOM_BYTES 16

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t has_run = PTHREAD_COND_INITIALIZER; /* a queued operation has run */
static ncclComm_t valid;                                  /* communicators that users may use */

/* ---- handles ------------------------------------------------------------------------------------------ */

static bool is_valid(ncclComm_t comm) {
    ncclComm_t each = valid;
    while (each != NULL && each != comm) {
        each = each->next;
    }
    return comm != NULL && each == comm;
}

ncclResult_t sim_check_communicator(ncclComm_t comm) {
    pthread_mutex_lock(&lock);
    bool is_known = is_valid(comm);
    pthread_mutex_unlock(&lock);
    if (!is_known) {
        return sim_error(ncclInvalidArgument, "%p is no communicator", (void *)comm);
    }
    return comm->async_error;
}

static void remove_handle(ncclComm_t comm) {
    ncclComm_t *link = &valid;
    while (*link != comm) {
        link = &(*link)->next;
    }
    *link = comm->next;
}

void sim_hold(ncclComm_t comm) {
    pthread_mutex_lock(&lock);
    comm->references++;
    comm->queued++;
    pthread_mutex_unlock(&lock);
}

static void drop(ncclComm_t comm, int queued) {
    pthread_mutex_lock(&lock);
    comm->queued -= queued;
    bool is_last = --comm->references == 0;
    pthread_cond_broadcast(&has_run);
    pthread_mutex_unlock(&lock);
    if (is_last) {
        sim_leave(comm, SIM_LEFT);
        free(comm);
    }
}

void sim_release(ncclComm_t comm) { drop(comm, 1); }

void sim_capture(ncclComm_t comm) {
    pthread_mutex_lock(&lock);
    comm->queued--;
    pthread_mutex_unlock(&lock);
}

/* ---- creation ------------------------------------------------------------------------------------------ */

/* Return a communicator for the current context, or for device 0 without one, as CUDA's runtime. */
static ncclResult_t create(int size, int rank, ncclComm_t *result) {
    const SimDriver *driver = sim_driver();
    CUcontext context = NULL;
    CUdevice device;
    if (driver == NULL) {
        return ncclUnhandledCudaError;
    }
    CUresult status = driver->cuCtxGetCurrent(&context);
    if (status == CUDA_SUCCESS && context == NULL) {
        status = driver->cuDevicePrimaryCtxRetain(&context, 0);
    }
    status = status ? status : driver->cuCtxPushCurrent(context);
    if (status != CUDA_SUCCESS) {
        return sim_check(status, "cuCtxPushCurrent");
    }
    ncclComm_t comm = calloc(1, sizeof *comm);
    if (comm == NULL) {
        driver->cuCtxPopCurrent(&context);
        return sim_error(ncclSystemError, "no memory");
    }
    status = driver->cuCtxGetDevice(&device);
    status = status ? status : driver->cuDeviceGetUuid(&comm->device_uuid, device);
    status = status ? status : driver->cuEventCreate(&comm->last, CU_EVENT_DISABLE_TIMING);
    driver->cuCtxPopCurrent(&context);
    if (status != CUDA_SUCCESS) {
        free(comm);
        return sim_check(status, "cuEventCreate");
    }
    comm->context = context;
    comm->device = device;
    comm->rank = rank;
    comm->size = size;
    comm->references = 1;
    *result = comm;
    return ncclSuccess;
}

static void publish(ncclComm_t comm, ncclComm_t *result) {
    pthread_mutex_lock(&lock);
    comm->next = valid;
    valid = comm;
    pthread_mutex_unlock(&lock);
    *result = comm;
}

static ncclResult_t check_config(const ncclConfig_t *config) {
    if (config != NULL && config->magic != NCCL_CONFIG_MAGIC) {
        return sim_error(ncclInvalidArgument, "the configuration has not been initialized");
    }
    return ncclSuccess;
}

static ncclResult_t add_creation(ncclComm_t comm, ncclComm_t parent, ncclComm_t *result, uint64_t number) {
    SimCreation *creation = calloc(1, sizeof *creation);
    if (creation == NULL) {
        return sim_error(ncclSystemError, "no memory");
    }
    creation->comm = comm;
    creation->parent = parent;
    creation->result = result;
    creation->number = number;
    return sim_add_creation(creation);
}

SIM_EXPORT ncclResult_t ncclGetVersion(int *version) {
    if (version == NULL) {
        return sim_group_error(ncclInvalidArgument);
    }
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

SIM_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    unsigned char random[ID_RANDOM_BYTES];
    if (id == NULL) {
        return sim_group_error(ncclInvalidArgument);
    }
    int file = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    ssize_t size = file < 0 ? -1 : read(file, random, sizeof random);
    close(file);
    if (size != (ssize_t)sizeof random) {
        return sim_error(ncclSystemError, "no random numbers");
    }
    memset(id, 0, sizeof *id);
    char *end = stpcpy(id->internal, ID_MAGIC);
    for (int k = 0; k < ID_RANDOM_BYTES; k++) {
        end += sprintf(end, "%02x", random[k]);
    }
    return ncclSuccess;
}

SIM_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *result, int size, ncclUniqueId id, int rank,
                                               ncclConfig_t *config) {
    ncclComm_t comm;
    size_t length = strlen(ID_MAGIC) + 2 * ID_RANDOM_BYTES;
    if (result == NULL || size < 1 || rank < 0 || rank >= size) {
        return sim_group_error(
            sim_error(ncclInvalidArgument, "expected a rank below the number of ranks, got %d of %d", rank, size));
    }
    if (size > SIM_MAX_RANKS) {
        return sim_group_error(
            sim_error(ncclInvalidUsage, "the simulation has at most %d ranks, got %d", SIM_MAX_RANKS, size));
    }
    if (strnlen(id.internal, sizeof id) != length || memcmp(id.internal, ID_MAGIC, strlen(ID_MAGIC)) != 0 ||
        strchr(id.internal, '/') != NULL) {
        return sim_group_error(sim_error(ncclInvalidArgument, "the unique ID is not one of ncclGetUniqueId"));
    }
    ncclResult_t status = check_config(config);
    status = status ? status : create(size, rank, &comm);
    if (status != ncclSuccess) {
        return sim_group_error(status);
    }
    memcpy(comm->name, id.internal, length + 1);
    *result = comm;
    return add_creation(comm, NULL, result, 0);
}

SIM_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *result, int size, ncclUniqueId id, int rank) {
    return ncclCommInitRankConfig(result, size, id, rank, NULL);
}

/* Create a rank on a device in the group of this thread. */
static ncclResult_t init_on_device(ncclComm_t *result, int size, const ncclUniqueId *id, int rank, int device) {
    const SimDriver *driver = sim_driver();
    CUcontext context;
    CUresult status = driver->cuDevicePrimaryCtxRetain(&context, device);
    status = status ? status : driver->cuCtxPushCurrent(context);
    if (status != CUDA_SUCCESS) {
        return sim_group_error(sim_check(status, "cuDevicePrimaryCtxRetain"));
    }
    ncclResult_t done = ncclCommInitRank(result, size, *id, rank);
    driver->cuCtxPopCurrent(&context);
    return done;
}

ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

SIM_EXPORT ncclResult_t ncclCommInitAll(ncclComm_t *results, int size, const int *devices) {
    ncclUniqueId id;
    if (results == NULL || size < 1) {
        return sim_error(ncclInvalidArgument, "expected at least one device, got %d", size);
    }
    if (sim_driver() == NULL) {
        return ncclUnhandledCudaError;
    }
    ncclResult_t status = ncclGetUniqueId(&id);
    if (status != ncclSuccess) {
        return status;
    }
    ncclGroupStart();
    for (int rank = 0; rank < size && status == ncclSuccess; rank++) {
        int device = devices == NULL ? rank : devices[rank];
        status = init_on_device(&results[rank], size, &id, rank, device);
    }
    ncclResult_t ended = ncclGroupEnd();
    return status ? status : ended;
}

SIM_EXPORT ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *result,
                                      ncclConfig_t *config) {
    ncclComm_t comm = NULL;
    ncclResult_t status = sim_check_communicator(parent);
    status = status ? status : check_config(config);
    if (status != ncclSuccess) {
        return sim_group_error(status);
    }
    if (result == NULL || (color < 0 && color != NCCL_SPLIT_NOCOLOR)) {
        return sim_group_error(sim_error(ncclInvalidArgument, "expected a color of at least -1, got %d", color));
    }
    *result = NULL;
    if (color != NCCL_SPLIT_NOCOLOR) {
        const SimDriver *driver = sim_driver();
        CUcontext popped;
        driver->cuCtxPushCurrent(parent->context);
        status = create(1, 0, &comm);
        driver->cuCtxPopCurrent(&popped);
        if (status != ncclSuccess) {
            return sim_group_error(status);
        }
    }
    SimRank *mine = &parent->world->ranks[parent->rank];
    mine->color[parent->splits & 1] = color;
    mine->key[parent->splits & 1] = key;
    return add_creation(comm, parent, result, parent->splits++);
}

/* ---- the steps of a creation ------------------------------------------------------------------------- */

ncclResult_t sim_begin(SimCreation *creation) {
    if (creation->parent == NULL) {
        return sim_join(creation->comm);
    }
    sim_arrive(creation->parent, SIM_HOST_PHASE);
    return ncclSuccess;
}

/* Set size, rank and name by the colors and keys of all ranks of the parent. */
static void find_place(ncclComm_t comm, ncclComm_t parent, uint64_t number) {
    SimRank *ranks = parent->world->ranks;
    int parity = number & 1;
    int color = ranks[parent->rank].color[parity], key = ranks[parent->rank].key[parity];
    comm->size = comm->rank = 0;
    for (int rank = 0; rank < parent->size; rank++) {
        if (ranks[rank].color[parity] == color) {
            comm->size++;
            int other = ranks[rank].key[parity];
            comm->rank += other < key || (other == key && rank < parent->rank);
        }
    }
    /* Names of splits of splits would grow: keep the random part, and hash what is before it. */
    uint64_t hash = 14695981039346656037u;
    char text[SIM_WORLD_NAME + 64];
    snprintf(text, sizeof text, "%s/%llu/%d", parent->name, (unsigned long long)number, color);
    for (const char *each = text; *each; each++) {
        hash = (hash ^ (unsigned char)*each) * 1099511628211u;
    }
    snprintf(comm->name, sizeof comm->name, "%.*s-%016llx", (int)strlen(ID_MAGIC) + 2 * ID_RANDOM_BYTES,
             parent->name, (unsigned long long)hash);
}

ncclResult_t sim_continue(SimCreation *creation) {
    ncclComm_t parent = creation->parent;
    if (parent == NULL) {
        return ncclSuccess;
    }
    ncclResult_t status = sim_wait_for_arrivals(parent, SIM_HOST_PHASE);
    if (status == ncclSuccess && creation->comm != NULL) {
        find_place(creation->comm, parent, creation->number);
        status = sim_join(creation->comm);
    }
    return status;
}

ncclResult_t sim_finish(SimCreation *creation) {
    if (creation->comm == NULL) {
        return ncclSuccess;
    }
    ncclResult_t status = sim_wait_for_ranks(creation->comm);
    if (status == ncclSuccess) {
        publish(creation->comm, creation->result);
    }
    return status;
}

static void free_event(ncclComm_t comm) {
    sim_driver()->cuEventDestroy(comm->last);
}

void sim_discard(SimCreation *creation) {
    if (creation->comm != NULL) {
        *creation->result = NULL;
        free_event(creation->comm);
        sim_leave(creation->comm, SIM_FAILED);
        free(creation->comm);
    }
}

/* ---- queries and the end ------------------------------------------------------------------------------- */

static ncclResult_t query(ncclComm_t comm, int *result, int (*value)(ncclComm_t comm)) {
    pthread_mutex_lock(&lock);
    bool is_known = is_valid(comm) && result != NULL;
    if (is_known) {
        *result = value(comm);
    }
    pthread_mutex_unlock(&lock);
    return is_known ? ncclSuccess : sim_error(ncclInvalidArgument, "%p is no communicator", (void *)comm);
}

static int size_of(ncclComm_t comm) { return comm->size; }
static int rank_of(ncclComm_t comm) { return comm->rank; }
static int device_of(ncclComm_t comm) { return comm->device; }
static int error_of(ncclComm_t comm) { return comm->async_error; }

SIM_EXPORT ncclResult_t ncclCommCount(ncclComm_t comm, int *count) { return query(comm, count, size_of); }

SIM_EXPORT ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank) { return query(comm, rank, rank_of); }

SIM_EXPORT ncclResult_t ncclCommCuDevice(ncclComm_t comm, int *device) {
    return query(comm, device, device_of);
}

SIM_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
    return query(comm, (int *)error, error_of);
}

/* Take the handle from its user; with `waits`, wait until queued operations have run. */
static ncclResult_t retire(ncclComm_t comm, bool waits) {
    pthread_mutex_lock(&lock);
    bool is_known = is_valid(comm);
    if (is_known) {
        remove_handle(comm);
    }
    while (is_known && waits && comm->queued > 0) {
        pthread_cond_wait(&has_run, &lock);
    }
    pthread_mutex_unlock(&lock);
    return is_known ? ncclSuccess : sim_error(ncclInvalidArgument, "%p is no communicator", (void *)comm);
}

/* Take the handle from its user and tell the other ranks; queued operations keep the rest. */
static ncclResult_t end(ncclComm_t comm, SimRankState state) {
    ncclResult_t status = comm == NULL ? ncclSuccess : retire(comm, state == SIM_LEFT);
    if (comm != NULL && status == ncclSuccess) {
        int active = SIM_ACTIVE;
        atomic_compare_exchange_strong(&comm->world->ranks[comm->rank].state, &active, (int)state);
        sim_notify(comm);
        free_event(comm);
        drop(comm, 0);
    }
    return status;
}

SIM_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) { return end(comm, SIM_LEFT); }

SIM_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) { return end(comm, SIM_ABORTED); }

/* The operations of a communicator need nothing more than their streams here. */
SIM_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm) { return sim_check_communicator(comm); }
