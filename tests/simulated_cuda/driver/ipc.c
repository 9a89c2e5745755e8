/* Handles of memory for other processes: they open the file of the memory by way of /proc. */
#include "memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAGIC 0x6D656D6970636e62ull

typedef struct Handle {
    unsigned long long magic, id;
    pid_t process;
    int file, device;
    unsigned int lead; /* bytes between the first page and the memory */
    off_t offset;
    size_t page_bytes, size;
} Handle;

_Static_assert(sizeof(Handle) <= sizeof(CUipcMemHandle), "a handle must fit");

CUresult sim_cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr) {
    SimContext *context;
    if (!pHandle) return CUDA_ERROR_INVALID_VALUE;
    CUresult status = sim_require_context(&context);
    if (status) return status;
    pthread_mutex_lock(&sim_memory_lock);
    const SimRange *range = sim_find_range((void *)dptr);
    if (!range || range->info.kind != SIM_DEVICE_MEMORY) {
        status = CUDA_ERROR_INVALID_VALUE;
    } else {
        Handle handle = {.magic = MAGIC,
                         .id = range->info.id,
                         .process = getpid(),
                         .file = range->pages.file,
                         .device = range->info.device,
                         .lead = (unsigned int)(range->info.start - range->pages.start),
                         .offset = range->pages.offset,
                         .page_bytes = range->pages.size,
                         .size = range->info.size};
        memset(pHandle, 0, sizeof *pHandle);
        memcpy(pHandle, &handle, sizeof handle);
    }
    pthread_mutex_unlock(&sim_memory_lock);
    return status;
}

/* The range of a handle that was opened before. */
static SimRange *opened(const Handle *handle, const SimContext *context) {
    for (size_t index = 0; index < sim_range_count(); index++) {
        SimRange *range = sim_range_at(index);
        if (range->info.kind == SIM_IPC_MEMORY && range->remote_id == handle->id &&
            range->flags == (unsigned int)handle->process && range->context == context)
            return range;
    }
    return NULL;
}

static CUresult open_handle(const Handle *handle, SimContext *context, SimRange **result) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)handle->process, handle->file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return CUDA_ERROR_MAP_FAILED;
    CUresult status = CUDA_ERROR_MAP_FAILED;
    SimRange *range = NULL;
    if (sim_memory_file_device(file) != handle->device) goto done;
    range = sim_new_range(SIM_IPC_MEMORY, handle->device, handle->size);
    if (!range || !sim_new_pages(handle->device, handle->page_bytes, file, handle->offset, &range->pages))
        goto done;
    range->info.start = range->pages.start + handle->lead;
    range->context = context;
    range->remote_id = handle->id;
    range->flags = (unsigned int)handle->process;
    if (sim_show_pages(&range->pages, PROT_READ | PROT_WRITE) && sim_add_range(range)) {
        range->pages.file = -1;
        *result = range;
        status = CUDA_SUCCESS;
    } else {
        sim_unmap_pages(&range->pages);
    }
done:
    if (status) free(range);
    close(file); /* the mapping keeps the memory */
    return status;
}

CUresult sim_cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags) {
    SimContext *context;
    Handle given;
    memcpy(&given, &handle, sizeof given);
    if (!pdptr || Flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
    CUresult status = sim_require_context(&context);
    if (status) return status;
    if (given.magic != MAGIC || !sim_device(given.device)) return CUDA_ERROR_INVALID_HANDLE;
    /* A process cannot open its own handles. */
    if (given.process == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&sim_memory_lock);
    SimRange *range = opened(&given, context);
    if (!range) status = open_handle(&given, context, &range);
    if (!status) {
        range->references++;
        *pdptr = (CUdeviceptr)range->info.start;
        if (given.device != context->device->ordinal) context->peers |= 1u << given.device;
    }
    pthread_mutex_unlock(&sim_memory_lock);
    return status;
}

CUresult sim_cuIpcCloseMemHandle(CUdeviceptr dptr) {
    SimContext *context;
    CUresult status = sim_require_context(&context);
    if (status) return status;
    if ((status = sim_context_synchronize(context))) return status;
    status = CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED({
        SimRange *range = sim_find_range((void *)dptr);
        if (range && range->info.kind == SIM_IPC_MEMORY && range->info.start == (char *)dptr) {
            if (--range->references == 0) sim_remove_range(range);
            status = CUDA_SUCCESS;
        }
    });
    return status;
}
