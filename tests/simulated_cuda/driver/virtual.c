/* Virtual memory management: reservations of addresses, physical memory, and mappings of one to the
 * other. A mapping has no access until cuMemSetAccess. The pages of a process are the same for all
 * of its threads: memory that one device may access is accessible to kernels of all devices. */
#include "pools.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct SimPhysical {
    size_t size;
    CUmemAllocationProp prop;
    int device;
    SimPages pages; /* only the file and the offset */
    bool owns_file, is_filled;
    unsigned int handles, mappings;
    SimPhysical *next;
};

typedef struct Reservation {
    SimPages pages;
    struct Reservation *next;
} Reservation;

static SimPhysical *physicals;
static Reservation *reservations;

static bool is_aligned(CUdeviceptr address, size_t size) {
    return size && address % SIM_GRANULARITY == 0 && size % SIM_GRANULARITY == 0;
}

/* ---- reservations -------------------------------------------------------------------------------- */

const SimPages *sim_reservation(const void *address) {
    for (Reservation *known = reservations; known; known = known->next)
        if ((char *)address >= known->pages.start && (char *)address < known->pages.start + known->pages.size)
            return &known->pages;
    return NULL;
}

bool sim_is_reserved(const void *address) { return sim_reservation(address) != NULL; }

CUresult sim_cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                                 unsigned long long flags) {
    (void)addr; /* a hint */
    if (!ptr || flags || !size || size % SIM_GRANULARITY || (alignment & (alignment - 1)))
        return CUDA_ERROR_INVALID_VALUE;
    if (alignment < SIM_GRANULARITY) alignment = SIM_GRANULARITY;
    Reservation *reservation = calloc(1, sizeof *reservation);
    if (!reservation || !sim_reserve_addresses(size, alignment, &reservation->pages)) {
        free(reservation);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ptr = (CUdeviceptr)reservation->pages.start;
    SIM_LOCKED({
        reservation->next = reservations;
        reservations = reservation;
    });
    return CUDA_SUCCESS;
}

CUresult sim_cuMemAddressFree(CUdeviceptr ptr, size_t size) {
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_memory_lock);
    Reservation **link = &reservations, *found;
    while (*link && (*link)->pages.start != (char *)ptr) link = &(*link)->next;
    found = *link;
    if (found && found->pages.size == size && !sim_overlapping_range(found->pages.start, size)) {
        *link = found->next;
        /* A range of the freed addresses, so that a later use of them can be reported. */
        SimRange *range = sim_new_range(SIM_MAPPED_MEMORY, 0, size);
        if (range) {
            range->info.start = found->pages.start;
            range->pages = found->pages;
            sim_remove_range(range);
        } else {
            sim_unmap_pages(&found->pages);
        }
        free(found);
        status = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&sim_memory_lock);
    return status;
}

/* ---- physical memory ----------------------------------------------------------------------------- */

static SimPhysical *find_physical(CUmemGenericAllocationHandle handle) {
    for (SimPhysical *known = physicals; known; known = known->next)
        if ((CUmemGenericAllocationHandle)(uintptr_t)known == handle && known->handles) return known;
    return NULL;
}

int sim_handle_types(const SimPhysical *physical) { return physical->prop.requestedHandleTypes; }

static bool is_valid(const CUmemAllocationProp *prop) {
    return prop->type == CU_MEM_ALLOCATION_TYPE_PINNED && sim_location_device(&prop->location) != -2 &&
           (prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE ||
            prop->location.type != CU_MEM_LOCATION_TYPE_HOST);
}

CUresult sim_cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                           CUmemAllocationGranularity_flags option) {
    if (!granularity || !prop || !is_valid(prop)) return CUDA_ERROR_INVALID_VALUE;
    if (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = SIM_GRANULARITY;
    return CUDA_SUCCESS;
}

/* Register physical memory of a file, which is -1 for that of the device. */
static SimPhysical *add_physical(const CUmemAllocationProp *prop, int device, size_t size, int file) {
    SimPhysical *physical = calloc(1, sizeof *physical);
    if (!physical) return NULL;
    physical->owns_file = file >= 0;
    if (!sim_new_pages(device, size, file, 0, &physical->pages)) {
        free(physical);
        return NULL;
    }
    /* Only the part of the file is needed: mappings have addresses of reservations. */
    sim_unmap_pages(&physical->pages);
    physical->size = size;
    physical->prop = *prop;
    physical->device = device;
    physical->handles = 1;
    physical->next = physicals;
    return physicals = physical;
}

static void release_physical(SimPhysical *physical) {
    if (physical->handles || physical->mappings) return;
    SimPhysical **link = &physicals;
    while (*link != physical) link = &(*link)->next;
    *link = physical->next;
    if (physical->owns_file) close(physical->pages.file);
    else sim_drop_pages(&physical->pages);
    sim_return_memory(physical->device, physical->size);
    free(physical);
}

CUresult sim_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                         unsigned long long flags) {
    if (!handle || !prop || flags || !size || size % SIM_GRANULARITY || !is_valid(prop))
        return CUDA_ERROR_INVALID_VALUE;
    if (prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    int device = sim_location_device(&prop->location);
    SimPhysical *physical = NULL;
    pthread_mutex_lock(&sim_memory_lock);
    if (sim_take_memory(device, size)) {
        int file = prop->requestedHandleTypes ? sim_new_memory_file(device, size) : -1;
        if (file >= 0 || !prop->requestedHandleTypes) physical = add_physical(prop, device, size, file);
        if (!physical) {
            if (file >= 0) close(file);
            sim_return_memory(device, size);
        }
    }
    pthread_mutex_unlock(&sim_memory_lock);
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)physical;
    return physical ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuMemRelease(CUmemGenericAllocationHandle handle) {
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED({
        SimPhysical *physical = find_physical(handle);
        if (physical) {
            physical->handles--;
            release_physical(physical);
            status = CUDA_SUCCESS;
        }
    });
    return status;
}

CUresult sim_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    if (!handle) return status;
    SIM_LOCKED({
        SimRange *range = sim_find_range(addr);
        if (range && range->physical) {
            range->physical->handles++;
            *handle = (CUmemGenericAllocationHandle)(uintptr_t)range->physical;
            status = CUDA_SUCCESS;
        }
    });
    return status;
}

CUresult sim_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                    CUmemGenericAllocationHandle handle) {
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    if (!prop) return status;
    SIM_LOCKED({
        SimPhysical *physical = find_physical(handle);
        if (physical) {
            *prop = physical->prop;
            status = CUDA_SUCCESS;
        }
    });
    return status;
}

/* ---- handles for other processes ----------------------------------------------------------------- */

CUresult sim_cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
                                          CUmemAllocationHandleType handleType, unsigned long long flags) {
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    if (!shareableHandle || flags || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return status;
    SIM_LOCKED({
        SimPhysical *physical = find_physical(handle);
        if (physical && (physical->prop.requestedHandleTypes & handleType)) {
            int file = fcntl(physical->pages.file, F_DUPFD_CLOEXEC, 0);
            *(int *)shareableHandle = file;
            status = file < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
        }
    });
    return status;
}

CUresult sim_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                            CUmemAllocationHandleType shHandleType) {
    if (!handle || shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
    int given = (int)(intptr_t)osHandle, device = sim_memory_file_device(given);
    struct stat status;
    if (device == -2 || fstat(given, &status)) return CUDA_ERROR_INVALID_VALUE;
    int file = fcntl(given, F_DUPFD_CLOEXEC, 0);
    if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = device < 0 ? CU_MEM_LOCATION_TYPE_HOST_NUMA : CU_MEM_LOCATION_TYPE_DEVICE,
                     .id = device < 0 ? 0 : device}};
    SimPhysical *physical = NULL;
    SIM_LOCKED({
        if (sim_take_memory(device, (size_t)status.st_size)) {
            physical = add_physical(&prop, device, (size_t)status.st_size, file);
            if (physical) physical->is_filled = true;
            else sim_return_memory(device, (size_t)status.st_size);
        }
    });
    if (!physical) close(file);
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)physical;
    return physical ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* ---- mappings ------------------------------------------------------------------------------------ */

static CUresult map(char *start, size_t size, SimPhysical *physical) {
    const SimPages *reservation = sim_reservation(start);
    if (!reservation || start + size > reservation->start + reservation->size) return CUDA_ERROR_INVALID_VALUE;
    if (!physical || size > physical->size || sim_overlapping_range(start, size)) return CUDA_ERROR_INVALID_VALUE;
    SimRange *range = sim_new_range(SIM_MAPPED_MEMORY, physical->device, size);
    if (!range) return CUDA_ERROR_OUT_OF_MEMORY;
    range->info.start = start;
    range->physical = physical;
    range->is_accessible = false;
    if (!sim_add_range(range)) {
        free(range);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    physical->mappings++;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                      unsigned long long flags) {
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    if (flags || offset || !is_aligned(ptr, size)) return status;
    SIM_LOCKED(status = map((char *)ptr, size, find_physical(handle)));
    return status;
}

/* True if whole mappings fill [start, start + size). */
static bool are_whole_mappings(const char *start, size_t size) {
    const char *end = start + size;
    while (start < end) {
        SimRange *range = sim_find_range(start);
        if (!range || !range->physical || range->info.start != start) return false;
        start += range->info.size;
    }
    return start == end;
}

/* The pages of a mapping. */
static SimPages pages_of(const SimRange *range) {
    return (SimPages){range->info.start, range->info.size, range->physical->pages.file,
                      range->physical->pages.offset};
}

CUresult sim_cuMemUnmap(CUdeviceptr ptr, size_t size) {
    if (!is_aligned(ptr, size)) return CUDA_ERROR_INVALID_VALUE;
    char *start = (char *)ptr, *end = start + size;
    pthread_mutex_lock(&sim_memory_lock);
    CUresult status = are_whole_mappings(start, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    while (!status && start < end) {
        SimRange *range = sim_find_range(start);
        SimPhysical *physical = range->physical;
        SimPages pages = pages_of(range);
        sim_hide_pages(&pages);
        start += range->info.size;
        sim_remove_range(range);
        physical->mappings--;
        release_physical(physical);
    }
    pthread_mutex_unlock(&sim_memory_lock);
    return status;
}

/* ---- access -------------------------------------------------------------------------------------- */

static CUresult show(SimRange *range) {
    SimPages pages = pages_of(range);
    int protection = range->writers ? PROT_READ | PROT_WRITE : PROT_READ;
    range->is_accessible = range->readers != 0;
    if (!range->readers) {
        sim_hide_pages(&pages);
        return CUDA_SUCCESS;
    }
    if (!sim_show_pages(&pages, protection)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (range->writers && !range->physical->is_filled) {
        range->physical->is_filled = true;
        sim_fill_bytes(pages.start, pages.size);
    }
    return CUDA_SUCCESS;
}

static CUresult set_access(char *start, size_t size, const CUmemAccessDesc *desc, size_t count) {
    if (!are_whole_mappings(start, size)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!sim_location_bit(&desc[i].location)) return CUDA_ERROR_INVALID_DEVICE;
    for (char *end = start + size; start < end;) {
        SimRange *range = sim_find_range(start);
        for (size_t i = 0; i < count; i++) {
            unsigned int bit = sim_location_bit(&desc[i].location);
            bool can_write = desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
            range->readers = desc[i].flags ? range->readers | bit : range->readers & ~bit;
            range->writers = can_write ? range->writers | bit : range->writers & ~bit;
        }
        CUresult status = show(range);
        if (status) return status;
        start += range->info.size;
    }
    return CUDA_SUCCESS;
}

CUresult sim_cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count) {
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    if (!desc || !count || !is_aligned(ptr, size)) return status;
    SIM_LOCKED(status = set_access((char *)ptr, size, desc, count));
    return status;
}

CUresult sim_cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr) {
    if (!flags || !location) return CUDA_ERROR_INVALID_VALUE;
    unsigned int bit = sim_location_bit(location);
    if (!bit) return CUDA_ERROR_INVALID_DEVICE;
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED({
        SimRange *range = sim_find_range((void *)ptr);
        if (range && range->physical) {
            *flags = range->writers & bit   ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                     : range->readers & bit ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                            : CU_MEM_ACCESS_FLAGS_PROT_NONE;
            status = CUDA_SUCCESS;
        }
    });
    return status;
}
