/* What translated PTX and the driver agree on (translator: ../ptx/, driver: modules.c, launch.c,
 * threads.c). Offsets of SimThread are part of the translator: keep ptx/thread_layout.py equal. */
#ifndef SIM_THREADS_H
#define SIM_THREADS_H
#include <stddef.h>
#include <stdint.h>

typedef struct SimBlock SimBlock;

/* One CUDA thread, the second argument of every translated function. */
typedef struct SimThread {
    uint32_t tid[3], ntid[3];     /* offsets 0, 12 */
    uint32_t ctaid[3], nctaid[3]; /* offsets 24, 36 */
    char *shared;                 /* 48: static, then dynamic shared memory of the block */
    uint32_t lane, warp;          /* 56, 60 */
    SimBlock *block;              /* 64: used by threads.c only */
    uint32_t dynamic_shared;      /* 72: bytes */
    uint32_t sm;                  /* 76: %smid */
    uint64_t grid;                /* 80: %gridid */
    uint32_t sm_count;            /* 88: %nsmid */
    uint32_t total_shared;        /* 92: %total_smem_size */
    uint32_t clusters[6];         /* 96: %clusterid.{x,y,z}, %nclusterid.{x,y,z} */
} SimThread;

/* A translated kernel: `parameters` is the packed parameter block. Device functions have the
 * signature void f(SimThread *, return slots..., parameter slots...) and are internal. */
typedef void (*SimEntry)(const uint8_t *parameters, SimThread *thread);

typedef struct SimParameter {
    uint32_t offset, size;
} SimParameter;

typedef struct SimKernelInfo {
    SimEntry entry;
    uint32_t parameter_count, parameter_bytes;
    SimParameter parameters[512];
    uint32_t static_shared;      /* bytes, rounded up to where dynamic shared memory begins */
    uint32_t local_bytes;        /* per thread: variables in local memory */
    uint32_t waits;              /* 1: threads wait for each other (barriers, shuffles, votes) */
    uint32_t spins;              /* 1: a loop reads memory that other threads write */
    uint32_t max_threads;        /* .maxntid, or 0 */
    uint32_t required_threads[3]; /* .reqntid, or 0 */
    uint32_t approximates;       /* 1: results depend on approximate instructions */
    uint32_t stack_bytes;        /* stack that one thread needs at most, without recursion */
} SimKernelInfo;

/* The translator, in Python: ctypes callbacks, which take the GIL. Each returns a CUresult. */
typedef struct SimTranslator {
    /* `target` is the compute capability as 90; `error` gets a message (the JIT error log). */
    int (*load)(const char *ptx, size_t size, int target, void **module, char *error, size_t error_size);
    int (*kernel)(void *module, const char *name, SimKernelInfo *info);
    int (*global)(void *module, const char *name, void **address, size_t *size);
    /* Names of the kernels, separated by newlines, into `names`; returns CUDA_SUCCESS. */
    int (*kernels)(void *module, char *names, size_t size);
    int (*unload)(void *module);
} SimTranslator;
void sim_set_translator(const SimTranslator *translator);

/* ---- what translated code calls (exported; the translator binds them by name) ---------------- */
void sim_barrier(SimThread *thread, uint32_t barrier, uint32_t threads); /* threads 0: all */
void sim_barrier_arrive(SimThread *thread, uint32_t barrier, uint32_t threads);
/* operation: 0 popc, 1 and, 2 or */
uint32_t sim_barrier_reduce(SimThread *thread, uint32_t barrier, uint32_t threads, uint32_t operation,
                            uint32_t value);
void sim_warp_sync(SimThread *thread, uint32_t mask);
/* mode: 0 up, 1 down, 2 bfly, 3 idx, with the operands b and c of shfl.sync; *in_range is its
 * predicate. */
uint32_t sim_shuffle(SimThread *thread, uint32_t mode, uint32_t value, uint32_t b, uint32_t c,
                     uint32_t mask, uint32_t *in_range);
uint32_t sim_ballot(SimThread *thread, uint32_t value, uint32_t mask);
uint32_t sim_match(SimThread *thread, uint64_t value, uint32_t mask, uint32_t all, uint32_t *is_all);
/* redux.sync: operation as the PTX name's index in {add, min.s, max.s, min.u, max.u, and, or, xor} */
uint32_t sim_redux(SimThread *thread, uint32_t operation, uint32_t value, uint32_t mask);
uint32_t sim_active_mask(SimThread *thread, uint32_t line); /* line: where the instruction is */
/* Called in loops that may wait for other threads: lets them run, and ends a cancelled launch. */
void sim_yield(SimThread *thread);
void sim_grid_sync(SimThread *thread); /* cooperative groups */
/* The address in %envreg1 and %envreg2: of the size and the barrier of the grid, by which the
 * headers of cooperative groups synchronize it; NULL in a launch that is not cooperative. */
void *sim_grid_workspace(SimThread *thread);
void sim_trap(SimThread *thread);      /* does not return */
/* An access whose address is no multiple of its size; does not return. */
void sim_misaligned(SimThread *thread, uint64_t address, uint32_t alignment);
void sim_exit(SimThread *thread);      /* `exit` within a function; does not return */
int32_t sim_vprintf(SimThread *thread, const char *format, const void *arguments);
void *sim_malloc(SimThread *thread, uint64_t size);
void sim_free(SimThread *thread, void *address);
void sim_set_conditional(SimThread *thread, uint64_t handle, uint32_t value); /* of a graph */
void sim_assert_fail(SimThread *thread, const char *message, const char *file, uint32_t line,
                     const char *function);
#endif
