/* Pools for other processes: a pool that can be exported has a file of its own, and the data of an
 * exported pointer tells the part of that file. */
#include "pools.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0x706F6F6C6E627274ull

typedef struct Export {
    unsigned long long magic, inode;
    unsigned int lead; /* bytes between the first page and the memory */
    off_t offset;
    size_t page_bytes, size;
} Export;

_Static_assert(sizeof(Export) <= sizeof(CUmemPoolPtrExportData), "the data of a pointer must fit");

static unsigned long long inode_of(int file) {
    struct stat status;
    return fstat(file, &status) ? 0 : status.st_ino;
}

CUresult sim_cuMemPoolExportToShareableHandle(void *handle_out, CUmemoryPool pool,
                                              CUmemAllocationHandleType handleType, unsigned long long flags) {
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    if (!handle_out || flags || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return status;
    SIM_LOCKED({
        if (sim_is_pool(pool) && pool->file >= 0 && !pool->is_imported) {
            int file = fcntl(pool->file, F_DUPFD_CLOEXEC, 0);
            *(int *)handle_out = file;
            status = file < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
        }
    });
    return status;
}

CUresult sim_cuMemPoolImportFromShareableHandle(CUmemoryPool *pool_out, void *handle,
                                                CUmemAllocationHandleType handleType,
                                                unsigned long long flags) {
    if (!pool_out || flags || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    int given = (int)(intptr_t)handle, device = sim_memory_file_device(given);
    if (device == -2) return CUDA_ERROR_INVALID_VALUE;
    int file = fcntl(given, F_DUPFD_CLOEXEC, 0);
    if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    CUmemPoolProps props = {
        .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = device < 0 ? CU_MEM_LOCATION_TYPE_HOST_NUMA : CU_MEM_LOCATION_TYPE_DEVICE,
                     .id = device < 0 ? 0 : device}};
    SIM_LOCKED({
        *pool_out = sim_new_pool(&props, device, file);
        if (*pool_out) (*pool_out)->is_imported = true;
    });
    if (!*pool_out) close(file);
    return *pool_out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuMemPoolExportPointer(CUmemPoolPtrExportData *shareData_out, CUdeviceptr ptr) {
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    if (!shareData_out) return status;
    pthread_mutex_lock(&sim_memory_lock);
    const SimRange *range = sim_find_range((void *)ptr);
    if (range && range->is_allocated && range->pool && range->pool->file >= 0 && !range->pool->is_imported) {
        Export data = {.magic = MAGIC,
                       .inode = inode_of(range->pool->file),
                       .lead = (unsigned int)(range->info.start - range->pages.start),
                       .offset = range->pages.offset,
                       .page_bytes = range->pages.size,
                       .size = range->info.size};
        memset(shareData_out, 0, sizeof *shareData_out);
        memcpy(shareData_out, &data, sizeof data);
        status = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&sim_memory_lock);
    return status;
}

static CUresult import(SimPool *pool, const Export *data, CUdeviceptr *result) {
    if (!sim_is_pool(pool) || !pool->is_imported || data->magic != MAGIC || data->inode != inode_of(pool->file))
        return CUDA_ERROR_INVALID_VALUE;
    SimRange *range = sim_new_range(SIM_POOL_MEMORY, pool->device, data->size);
    if (!range) return CUDA_ERROR_OUT_OF_MEMORY;
    if (!sim_new_pages(pool->device, data->page_bytes, pool->file, data->offset, &range->pages)) goto failed;
    range->info.start = range->pages.start + data->lead;
    range->pool = pool;
    range->generation = range->mapped = 1;
    if (!sim_show_pages(&range->pages, PROT_READ | PROT_WRITE) || !sim_add_range(range)) {
        sim_unmap_pages(&range->pages);
        goto failed;
    }
    pool->range_count++;
    *result = (CUdeviceptr)range->info.start;
    return CUDA_SUCCESS;
failed:
    free(range);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuMemPoolImportPointer(CUdeviceptr *ptr_out, CUmemoryPool pool,
                                    CUmemPoolPtrExportData *shareData) {
    Export data;
    CUresult status;
    if (!ptr_out || !shareData) return CUDA_ERROR_INVALID_VALUE;
    memcpy(&data, shareData, sizeof data);
    SIM_LOCKED(status = import(pool, &data, ptr_out));
    return status;
}
