/* What the files of simulated memory share (ranges.c, pages.c, memory.c, host_memory.c, managed.c,
 * pointers.c, pools.c, stream_memory.c, virtual.c, ipc.c, copies.c).
 *
 * A range is memory that the driver knows: an allocation, a registration of host memory, a mapping
 * of virtual memory management, a variable of a module. Ranges are kept by address; one lock guards
 * all of them, the pools, and the counters of each device. */
#ifndef SIM_MEMORY_H
#define SIM_MEMORY_H
#include "sim.h"

#include <sys/mman.h>
#include <sys/types.h>

#define SIM_ALIGNMENT ((size_t)512) /* of allocations, and the unit in which memory is counted */
#define SIM_GRANULARITY ((size_t)2 << 20) /* of virtual memory management and of pools */
#define SIM_HOST (-1)                     /* the device number of host memory */
#define SIM_ALL_DEVICES (~0u)

typedef struct CUmemPoolHandle_st SimPool;
typedef struct SimPhysical SimPhysical;

/* Pages between two guard pages, and the part of a file that backs them (or -1). */
typedef struct SimPages {
    char *start;
    size_t size;
    int file;
    off_t offset;
} SimPages;

/* What cuMemAdvise and cuMemPrefetchAsync have said of managed memory. */
typedef struct SimAdvice {
    bool is_read_mostly;
    unsigned int accessed_by; /* bit k: device k; bit 31: the host */
    CUmemLocation preferred, prefetched;
} SimAdvice;

/* A stream, that may end: its number is never used again. */
typedef struct SimStreamName {
    CUstream handle; /* that of a default stream stands for different streams in different threads */
    unsigned long long id;
    SimContext *context;
} SimStreamName;

typedef struct SimRange {
    SimAllocation info;
    SimPages pages; /* `start` is NULL if the pages are not the range's */
    SimContext *context; /* it owns the range; NULL: none does */
    unsigned int flags;  /* of cuMemHostAlloc, cuMemHostRegister or cuMemAllocManaged */
    unsigned int readers, writers; /* bit k: device k may read or write (pools, mappings) */
    bool is_allocated;  /* to the host: calls may name the range */
    bool is_accessible; /* to the devices: its pages are readable */
    bool is_synchronous; /* CU_POINTER_ATTRIBUTE_SYNC_MEMOPS */
    int references;     /* of an IPC handle that was opened more than once; operations of a pool */
    SimAdvice *advice;  /* of managed memory */
    SimPhysical *physical; /* of a mapping */
    SimPool *pool;         /* of stream-ordered memory */
    struct SimRange *next_cached; /* freed ranges of a pool, newest first */
    SimStreamName free_stream;    /* where it was freed last */
    unsigned int generation, mapped, unmapped; /* counts of calls, and of operations that ran */
    bool is_graph_memory;
    bool is_claimed; /* of a graph: a launch allocates it, and no call has freed it since */
    unsigned long long remote_id; /* of the allocation of the process `flags`, for IPC memory */
} SimRange;

extern pthread_mutex_t sim_memory_lock;
#define SIM_LOCKED(statement)                      \
    do {                                           \
        pthread_mutex_lock(&sim_memory_lock);      \
        statement;                                 \
        pthread_mutex_unlock(&sim_memory_lock);    \
    } while (0)

static inline size_t sim_round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

/* ---- pages.c: all need the lock ---------------------------------------------------------------- */
/* Count memory of a device as used; false if that exceeds what the device has. */
bool sim_take_memory(int device, size_t bytes);
void sim_return_memory(int device, size_t bytes);
size_t sim_used_memory(int device);
/* Reserve addresses between guard pages, and a part of the file of the device (or of `file`, at
 * `offset`, if that is not -1). The pages are inaccessible until `sim_show_pages`. */
bool sim_new_pages(int device, size_t size, int file, off_t offset, SimPages *result);
bool sim_show_pages(const SimPages *pages, int protection);
/* Make pages inaccessible and keep their contents. */
void sim_hide_pages(const SimPages *pages);
/* Give the physical memory of the pages back. */
void sim_drop_pages(const SimPages *pages);
/* Give the addresses back. */
void sim_unmap_pages(const SimPages *pages);
/* Reserve aligned addresses between guard pages, without memory. */
bool sim_reserve_addresses(size_t size, size_t alignment, SimPages *result);
/* Fill new memory with the pattern of uninitialised memory, and what surrounds it with canaries. */
void sim_fill(const SimRange *range);
void sim_fill_bytes(char *start, size_t size);
unsigned char sim_fill_value(void); /* the byte of the pattern; 0: none */
/* Report a canary that changed. */
void sim_check_canaries(const SimRange *range);
/* A new file of physical memory: its name tells the device to importing processes. */
int sim_new_memory_file(int device, size_t size);
/* The device of a file of physical memory, SIM_HOST, or -2 if it is another file. */
int sim_memory_file_device(int file);

/* ---- ranges.c: all need the lock --------------------------------------------------------------- */
/* A new range, not in the registry yet. */
SimRange *sim_new_range(SimMemoryKind kind, int device, size_t size);
bool sim_add_range(SimRange *range);
/* Allocate a range again: with a new number, and a size that its pages have. */
void sim_renew_range(SimRange *range, size_t size);
/* Forget a range; its addresses stay inaccessible for a while. */
void sim_remove_range(SimRange *range);
/* The range that holds an address, or NULL. */
SimRange *sim_find_range(const void *address);
/* A range that overlaps [start, start + size), or NULL. */
SimRange *sim_overlapping_range(const void *start, size_t size);
/* True if an address is on the pages of a range, or the first after a range. */
bool sim_is_near_range(const void *address);
/* True if an address belongs to freed memory, or to guard pages. */
bool sim_is_retired(const void *address);
/* The ranges by address. */
size_t sim_range_count(void);
SimRange *sim_range_at(size_t index);

typedef enum SimPlace { SIM_PAGEABLE, SIM_HOST_PLACE, SIM_DEVICE_PLACE, SIM_MANAGED_PLACE, SIM_NOWHERE } SimPlace;
/* Where [start, start + size) lies; SIM_NOWHERE if it leaves an allocation or is freed memory. */
SimPlace sim_place(const void *start, size_t size);
/* True if no device may access a part of [start, start + size) now; copies it to `result`. */
bool sim_find_inaccessible(const void *start, size_t size, SimAllocation *result);
/* Without the lock: report that `operation` used memory which does not exist (yet, or any more). */
void sim_report_missing(const char *operation, const void *address, const SimAllocation *allocation);

/* ---- memory.c ------------------------------------------------------------------------------------ */
/* Allocate memory of a kind that has its own pages; takes the lock. */
CUresult sim_allocate_range(SimMemoryKind kind, SimContext *context, size_t size, SimRange **result);
/* Free such memory; needs the lock. */
void sim_free_range(SimRange *range);
/* The context that is current, or CUDA_ERROR_INVALID_CONTEXT. */
CUresult sim_require_context(SimContext **result);
/* True if kernels of a context may access a range. Needs the lock. */
bool sim_is_accessible_from(const SimRange *range, const SimContext *context);

/* ---- virtual.c ----------------------------------------------------------------------------------- */
/* True if an address belongs to a reservation. Needs the lock. */
bool sim_is_reserved(const void *address);
/* The reservation that holds an address. Needs the lock. */
const SimPages *sim_reservation(const void *address);
/* The kinds of handles that the memory of a mapping can be exported as. */
int sim_handle_types(const SimPhysical *physical);

/* ---- stream_memory.c, pools.c ----------------------------------------------------------------------- */
/* Free stream-ordered memory now, as cuMemFree does; needs the lock. */
void sim_free_pool_range(SimRange *range);
SimPool *sim_current_pool(int device);
/* Release what pools hold for a context that is destroyed; needs the lock. */
void sim_pools_release(SimContext *context);
#endif
