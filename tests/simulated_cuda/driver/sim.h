/* What the files of the simulated CUDA driver share.
 *
 * The types and prototypes of the driver API are generated from cuda-bindings (declarations.py).
 * Each file implements functions of the API as `sim_<name>`; the exported `<name>` is generated and
 * counts the call, injects faults, and returns the sticky error of a broken context.
 *
 * Addresses of device memory are addresses of this process, so kernels are native functions. Work
 * is an operation; each stream is a thread that runs the operations of its queue in order. */
#ifndef SIM_H
#define SIM_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "cuda_declarations.h"

#include <pthread.h>

#define SIM_EXPORT __attribute__((visibility("default")))
#define SIM_MAX_DEVICES 16
#define SIM_MAX_ATTRIBUTES 192
#define SIM_MAX_LIMITS 16
#define SIM_DRIVER_VERSION 13040

/* ---- calls.c: counters, injected faults, log, settings -------------------------------------- */

typedef struct SimFunction {
    const char *name;
    void *address;
} SimFunction;
extern const SimFunction sim_functions[]; /* sorted by name */
extern const int sim_function_count;

CUresult sim_enter(int function);
CUresult sim_leave(int function, CUresult status);
CUresult sim_not_supported(int function);
/* Append a line to the report of faults, which tests read (`sim_take_report`). */
void sim_report(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* An integer of the environment, e.g. NBRT_SIM_SEED. */
long sim_setting(const char *name, long default_value);
/* Whether stream 0 is the per-thread default stream in the running call of this thread: it was
 * called by a name of suffix _ptsz or _ptds. streams.c looks when it resolves stream 0. */
bool sim_per_thread_default(void);
bool sim_set_per_thread_default(bool is_per_thread); /* returns the value before */
/* Whether the calling process was forked from one that had initialised the driver. */
bool sim_is_forked(void);

/* ---- devices.c, contexts.c ------------------------------------------------------------------- */

typedef struct SimDevice {
    int ordinal;
    char name[96];
    size_t total_memory;                /* bytes */
    int attributes[SIM_MAX_ATTRIBUTES]; /* by CUdevice_attribute */
    CUuuid uuid;
} SimDevice;

typedef struct CUctx_st SimContext;
typedef struct CUstream_st SimStream;
typedef struct CUevent_st SimEvent;

struct CUctx_st {
    SimDevice *device;
    bool is_primary;
    bool is_active; /* a primary context is active while it is retained */
    int references;
    unsigned int flags;
    unsigned long long id;
    _Atomic int sticky; /* CUresult of a fault that broke the context, or 0 */
    unsigned int peers; /* bit k: this context may access the memory of device k */
    size_t limits[SIM_MAX_LIMITS];
    int cache_config; /* CUfunc_cache */
    SimStream *null_stream; /* legacy default stream; made by streams.c on first use */
    SimStream *streams;     /* all streams of the context; guarded by the lock of streams.c */
};

int sim_device_count(void);
SimDevice *sim_device(CUdevice ordinal); /* NULL if there is none */
/* The context that is current in the calling thread, or NULL. */
SimContext *sim_current(void);
/* The primary context of a device, without making it active. */
SimContext *sim_primary(int ordinal);
/* Break a context: every later call in it returns `status`, as after a fault on a GPU. */
void sim_break_context(SimContext *context, CUresult status);
/* Called by contexts.c before a context is reset or destroyed; each waits for its own work. */
void sim_streams_release(SimContext *context);
void sim_memory_release(SimContext *context);
void sim_modules_release(SimContext *context);

/* ---- operations ------------------------------------------------------------------------------
 * One piece of stream work, and the contents of one graph node. A function of the API that takes
 * a stream builds an operation and hands it to `sim_submit`. */

typedef struct SimOperation SimOperation;

typedef struct SimOperationType {
    CUgraphNodeType node_type; /* of the graph node that a capture makes of the operation */
    const char *name;
    /* Run the operation; called in the thread of a stream, without locks. */
    CUresult (*run)(SimOperation *operation);
    /* Return a copy (graphs run the copies of their nodes), or NULL without memory. */
    SimOperation *(*copy)(const SimOperation *operation);
    /* Free everything that the operation owns, and itself. */
    void (*destroy)(SimOperation *operation);
} SimOperationType;

struct SimOperation {
    const SimOperationType *type;
    SimContext *context; /* sim_submit sets the context of the stream */
    SimStream *stream;   /* where it runs; set by streams.c before `run` */
    SimOperation *next;  /* of the queue of a stream; used by streams.c only */
};
/* Types of operations begin with a SimOperation:
 *   typedef struct { SimOperation base; ... } CopyOperation; */

/* Queue an operation on a stream (handles 0, 1 and 2 are the default streams), or add it to the
 * graph that the stream is being captured into. Takes the operation in any case: if the result is
 * not CUDA_SUCCESS, it has been destroyed. */
CUresult sim_submit(CUstream stream, SimOperation *operation);
/* Submit, then wait until it is done and return its result. Refused during a capture of the
 * stream (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, and the capture is invalidated). */
CUresult sim_submit_and_wait(CUstream stream, SimOperation *operation);
/* CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if a capture forbids an unsafe call (cudaMalloc, ...) in
 * this thread now, by cuThreadExchangeStreamCaptureMode; invalidates that capture. */
CUresult sim_check_unsafe_call(void);
bool sim_is_capturing(CUstream stream);
/* Whether this thread runs a host function, in which calls of the API are not permitted. */
bool sim_in_host_function(void);
/* Wait for all work of a context; runs what the scheduler holds back. */
CUresult sim_context_synchronize(SimContext *context);
/* CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if streams of a context are being captured, which forbids
 * cuCtxSynchronize; invalidates those captures. */
CUresult sim_check_context_captures(SimContext *context);
/* The context a stream handle belongs to (default streams: the current one), or NULL. */
SimContext *sim_stream_context(CUstream stream);
/* The error of a handle for which `sim_stream_context` returns NULL, else CUDA_SUCCESS. */
CUresult sim_check_stream(CUstream stream);

/* ---- memory.c, pools.c, virtual.c, copies.c -------------------------------------------------- */

typedef enum SimMemoryKind {
    SIM_DEVICE_MEMORY,
    SIM_POOL_MEMORY, /* stream-ordered */
    SIM_MANAGED_MEMORY,
    SIM_PINNED_MEMORY,     /* cuMemHostAlloc */
    SIM_REGISTERED_MEMORY, /* cuMemHostRegister: not ours */
    SIM_MAPPED_MEMORY,     /* a mapping of virtual memory management */
    SIM_IPC_MEMORY,        /* of another process */
    SIM_MODULE_MEMORY,     /* a global variable of a module; see sim_register_memory */
} SimMemoryKind;

typedef struct SimAllocation {
    char *start;
    size_t size;
    SimMemoryKind kind;
    int device;
    unsigned long long id;
    bool is_freed;   /* kept for reports of use after free */
    bool is_pending; /* stream-ordered memory that does not exist yet in stream order */
} SimAllocation;

/* Copy the description of the allocation that holds an address, or of the nearest one within
 * `slack` bytes; false if there is none. Async-signal-safe enough for the fault handler: it does
 * not wait for a lock. */
bool sim_find_allocation(const void *address, size_t slack, SimAllocation *result);
/* Memory that a module owns: known to pointer queries, and never freed by cuMemFree. */
void sim_register_memory(void *start, size_t size, SimMemoryKind kind, int device);
void sim_unregister_memory(void *start);

/* ---- modules.c, launch.c, threads.c ----------------------------------------------------------- */

/* A kernel launch as an operation, for cuLaunchKernel and kernel nodes of graphs. `params` are the
 * kernelParams, `extra` the packed form; both are copied. Checks limits of the launch. */
CUresult sim_new_launch(const CUlaunchConfig *config, CUfunction function, void **params,
                        void **extra, bool is_cooperative, SimOperation **result);
/* The values of a launch operation as kernel node parameters (pointers into the operation). */
void sim_launch_parameters(const SimOperation *operation, CUDA_KERNEL_NODE_PARAMS *result);
extern const SimOperationType sim_launch_type;
/* Write what kernels have printed to the C library's stdout: at launches, synchronizations, blocking
 * copies, and before host functions of streams. Cheap if there is nothing. */
void sim_flush_printing(SimContext *context);

/* ---- copies.c --------------------------------------------------------------------------------- */
CUresult sim_new_copy(const CUDA_MEMCPY3D_PEER *copy, SimOperation **result);
CUresult sim_new_memset(const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context, SimOperation **result);
void sim_copy_parameters(const SimOperation *operation, CUDA_MEMCPY3D *result);
void sim_memset_parameters(const SimOperation *operation, CUDA_MEMSET_NODE_PARAMS *result);
extern const SimOperationType sim_copy_type, sim_memset_type;

/* ---- pools.c: allocations in graphs ------------------------------------------------------------
 * cuMemAllocAsync and cuMemFreeAsync during a capture become nodes of these types. */
CUresult sim_new_pool_allocation(CUDA_MEM_ALLOC_NODE_PARAMS *params, SimOperation **result);
CUresult sim_new_pool_free(CUdeviceptr address, SimOperation **result);
/* Note that a graph is launched: CUDA_ERROR_INVALID_VALUE if memory that it allocates has not been
 * freed since its last launch, unless `frees` (AUTO_FREE_ON_LAUNCH). */
CUresult sim_claim_graph_memory(CUgraph graph, bool frees);
extern const SimOperationType sim_pool_allocation_type, sim_pool_free_type;
#endif
