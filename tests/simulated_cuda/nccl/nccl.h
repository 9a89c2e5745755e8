/* What the files of the simulated NCCL share.
 *
 * The library implements functions of NCCL's public API (NVIDIA's user guide, "NCCL API") over the
 * simulated CUDA driver. The ranks of a communicator are threads or processes of one machine; they
 * meet in a file of shared memory, the world. A call becomes a host function on its stream, in
 * which the rank waits for the others and moves the data.
 *
 * Types and values are those of the public header; the structures behind handles are not. */
#ifndef SIM_NCCL_H
#define SIM_NCCL_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "cuda_declarations.h"

#include <pthread.h>
#include <stdatomic.h>

#define SIM_EXPORT __attribute__((visibility("default")))

/* ---- the public API's types -------------------------------------------------------------------- */

#define NCCL_VERSION_CODE 22707 /* 2.27.7, which CuPy 14 names */
#define NCCL_UNIQUE_ID_BYTES 128
#define NCCL_SPLIT_NOCOLOR (-1)
#define NCCL_CONFIG_MAGIC 0xcafebeefu

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
    ncclNumResults = 8,
} ncclResult_t;

typedef enum { ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg, ncclNumOps } ncclRedOp_t;

typedef enum {
    ncclInt8,
    ncclUint8,
    ncclInt32,
    ncclUint32,
    ncclInt64,
    ncclUint64,
    ncclFloat16,
    ncclFloat32,
    ncclFloat64,
    ncclBfloat16,
    ncclFloat8e4m3,
    ncclFloat8e5m2,
    ncclNumTypes,
} ncclDataType_t;

typedef struct ncclUniqueId {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

/* The beginning of every version of the configuration; nothing of the rest has an effect here. */
typedef struct ncclConfig_t {
    size_t size;
    unsigned int magic;
    unsigned int version;
} ncclConfig_t;

typedef struct ncclComm *ncclComm_t;

/* ---- worlds.c: shared memory of the ranks ------------------------------------------------------ */

#define SIM_MAX_RANKS 64 /* ranks are bits of a mask */
#define SIM_CHUNK_BYTES ((size_t)1 << 20)
#define SIM_MAIL_BYTES ((size_t)1 << 18)
#define SIM_WORLD_NAME 96

typedef enum { SIM_ALL_REDUCE, SIM_REDUCE, SIM_BROADCAST, SIM_ALL_GATHER, SIM_REDUCE_SCATTER, SIM_SEND,
               SIM_RECEIVE } SimCallKind;

/* What every rank must give equally; the root is the peer of a send or receive. */
typedef struct SimSignature {
    int kind, datatype, operation, root;
    uint64_t count;
} SimSignature;

typedef enum { SIM_ACTIVE, SIM_LEFT, SIM_ABORTED, SIM_FAILED, SIM_DIED } SimRankState;
/* Barriers of stream work, and of calls that wait on the host, count separately. */
typedef enum { SIM_STREAM_PHASE, SIM_HOST_PHASE, SIM_PHASES } SimPhase;

typedef struct SimRank {
    _Atomic int process; /* 0: the rank has not joined */
    _Atomic int state;
    _Atomic uint64_t phases[SIM_PHASES]; /* barriers that the rank has reached */
    CUuuid device;
    SimSignature signature; /* of its current collective */
    int color[2], key[2];   /* of its splits of even and of odd number */
} SimRank;

/* From one rank to another. The sender fills an empty one, the receiver empties or refuses it. */
typedef struct SimMailbox {
    _Atomic int state;
    SimSignature signature;
    size_t size;
    char data[SIM_MAIL_BYTES];
} SimMailbox;
enum { SIM_MAIL_EMPTY, SIM_MAIL_FULL, SIM_MAIL_REFUSED };

typedef struct SimWorld {
    _Atomic uint32_t changes; /* a futex: grows with each change that others may wait for */
    _Atomic int joined, attached;
    _Atomic bool has_conflict; /* ranks came with different sizes, or with one number */
    SimRank ranks[SIM_MAX_RANKS];
} SimWorld;

struct ncclComm {
    SimWorld *world;
    size_t world_bytes;
    int world_file;
    char name[SIM_WORLD_NAME]; /* of the world */
    int rank, size;
    CUcontext context;
    CUdevice device;
    CUuuid device_uuid;
    uint64_t splits;
    _Atomic int async_error;
    char error[256];
    CUevent last; /* recorded behind the newest operation */
    bool has_last;
    /* The rest is guarded by the lock of communicators.c. */
    int references; /* the handle, and queued operations */
    int queued;     /* operations that have not run */
    struct ncclComm *next;
};

/* Create or open the world `comm->name` and take the rank's place in it, without waiting. */
ncclResult_t sim_join(ncclComm_t comm);
/* Wait until all ranks have joined; no two may have one device. */
ncclResult_t sim_wait_for_ranks(ncclComm_t comm);
void sim_leave(ncclComm_t comm, SimRankState state);
/* Announce a change of the world. */
void sim_notify(ncclComm_t comm);
/* Wait until `awaited` returns no ranks; it returns the mask of those that are waited for. */
ncclResult_t sim_wait(ncclComm_t comm, uint64_t (*awaited)(ncclComm_t comm, void *argument), void *argument);
void sim_arrive(ncclComm_t comm, SimPhase phase);
ncclResult_t sim_wait_for_arrivals(ncclComm_t comm, SimPhase phase);
ncclResult_t sim_barrier(ncclComm_t comm);
char *sim_staging(ncclComm_t comm, int rank);
SimMailbox *sim_mailbox(ncclComm_t comm, int sender, int receiver);

/* ---- errors.c ----------------------------------------------------------------------------------- */

/* Set the text of the last error, print it if NCCL_DEBUG is set, and return `result`. */
ncclResult_t sim_error(ncclResult_t result, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same for an error of a communicator in its stream work: other ranks see it as failed. */
ncclResult_t sim_fail(ncclComm_t comm, ncclResult_t result, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- driver.c: the CUDA driver, found at the first call ------------------------------------------ */

#define SIM_DRIVER_FUNCTIONS(X)                                                                             \
    X(cuCtxGetCurrent, "cuCtxGetCurrent")                                                                   \
    X(cuCtxGetDevice, "cuCtxGetDevice")                                                                     \
    X(cuCtxPushCurrent, "cuCtxPushCurrent_v2")                                                              \
    X(cuCtxPopCurrent, "cuCtxPopCurrent_v2")                                                                \
    X(cuDeviceGetCount, "cuDeviceGetCount")                                                                 \
    X(cuDeviceGetUuid, "cuDeviceGetUuid_v2")                                                                \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain")                                                 \
    X(cuEventCreate, "cuEventCreate")                                                                       \
    X(cuEventDestroy, "cuEventDestroy_v2")                                                                  \
    X(cuEventRecord, "cuEventRecord")                                                                       \
    X(cuInit, "cuInit")                                                                                     \
    X(cuLaunchHostFunc, "cuLaunchHostFunc")                                                                 \
    X(cuMemGetAddressRange, "cuMemGetAddressRange_v2")                                                      \
    X(cuPointerGetAttribute, "cuPointerGetAttribute")                                                       \
    X(cuStreamIsCapturing, "cuStreamIsCapturing")                                                           \
    X(cuStreamWaitEvent, "cuStreamWaitEvent")

typedef struct SimDriver {
#define SIM_MEMBER(function, symbol) __typeof__(function) *function;
    SIM_DRIVER_FUNCTIONS(SIM_MEMBER)
#undef SIM_MEMBER
} SimDriver;

/* NULL, and an error, without the library or one of the functions. */
const SimDriver *sim_driver(void);
/* Turn a status of the driver into a result. */
ncclResult_t sim_check(CUresult status, const char *function);

/* ---- communicators.c ----------------------------------------------------------------------------- */

/* Check a handle that a user gave, and the state of its communicator. */
ncclResult_t sim_check_communicator(ncclComm_t comm);
/* A queued operation holds its communicator. */
void sim_hold(ncclComm_t comm);
void sim_release(ncclComm_t comm);
/* An operation that a graph has taken still holds it, but is not waited for. */
void sim_capture(ncclComm_t comm);

/* One creation of a communicator; those of a group go through each step together, as one thread
 * may hold several ranks. */
typedef struct SimCreation SimCreation;
struct SimCreation {
    ncclComm_t comm;    /* the new communicator, or NULL without a color */
    ncclComm_t *result; /* where the user wants it */
    ncclComm_t parent;  /* of a split, or NULL */
    uint64_t number;    /* of the split */
    SimCreation *next;
};
ncclResult_t sim_begin(SimCreation *creation);
ncclResult_t sim_continue(SimCreation *creation);
ncclResult_t sim_finish(SimCreation *creation);
void sim_discard(SimCreation *creation);

/* ---- groups.c ------------------------------------------------------------------------------------- */

typedef struct SimCall SimCall;
struct SimCall {
    SimSignature signature;
    ncclComm_t comm;
    CUstream stream;
    const char *send;
    char *receive;
    size_t done; /* bytes of a send or receive */
    bool is_begun, is_done;
    SimCall *next;
};

/* Queue a call, at once or at the end of the thread's group. Takes what it gets, which malloc made. */
ncclResult_t sim_add_call(SimCall *call);
ncclResult_t sim_add_creation(SimCreation *creation);
/* Let the group of this thread fail at its end. */
ncclResult_t sim_group_error(ncclResult_t result);

/* ---- collectives.c, exchange.c: run in host functions ---------------------------------------------- */

ncclResult_t sim_run_collective(SimCall *call);
/* Run the sends and receives of a list, all at the same time; other calls are left out. */
ncclResult_t sim_run_exchange(ncclComm_t comm, SimCall *calls);
const char *sim_describe(const SimSignature *signature, char *text, size_t size);

/* ---- elements.c -------------------------------------------------------------------------------------- */

size_t sim_item_size(int datatype);
const char *sim_type_name(int datatype);
/* total = total op part. The partial result is rounded to the type after each step; a minimum or
 * maximum ignores NaN, as CUDA's fmin and fmax do. */
void sim_reduce(char *total, const char *part, size_t count, int datatype, int operation);
/* Divide by the number of ranks, for the average; integers truncate. */
void sim_divide(char *total, size_t count, int datatype, int ranks);
#endif
