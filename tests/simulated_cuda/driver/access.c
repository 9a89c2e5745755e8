/* Memory that a kernel may not access, although this process can: that of devices without peer
 * access, and pageable host memory. No page protection stops the kernel, because the pages of a
 * process are the same for all of its threads. Therefore a launch checks the pointers among its
 * arguments, and those at the begin of structures that are passed by value; pointers in memory are
 * not seen, nor those further in a structure, where CuPy leaves bytes as they are. */
#include "grid.h"
#include "memory.h"

#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* True if the host can read a byte at an address. */
static bool is_readable(const void *address) {
    char byte;
    struct iovec to = {&byte, 1}, from = {(void *)address, 1};
    return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1;
}

static bool is_accessible(const void *address, const SimContext *context, SimAllocation *found) {
    bool is_known = false, is_allowed = true;
    SIM_LOCKED({
        const SimRange *range = sim_find_range(address);
        is_known = range || sim_is_near_range(address) || sim_is_retired(address) || sim_is_reserved(address);
        if (range) {
            *found = range->info;
            is_allowed = sim_is_accessible_from(range, context) || !range->is_accessible;
        }
    });
    if (is_known) return is_allowed;
    if (context->device->attributes[CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS]) return true;
    return !is_readable(address);
}

CUresult sim_check_arguments(const SimGridLaunch *launch) {
    const uintptr_t lowest = 1ull << 32; /* smaller numbers are sizes, and rarely addresses */
    for (uint32_t i = 0; i < launch->info->parameter_count; i++) {
        const SimParameter *parameter = &launch->info->parameters[i];
        uintptr_t address;
        SimAllocation found = {0};
        if (parameter->size < sizeof address) continue;
        memcpy(&address, launch->parameters + parameter->offset, sizeof address);
        if (address < lowest || address >> 47) continue;
        if (is_accessible((void *)address, launch->context, &found)) continue;
        if (found.size)
            sim_report("kernel %s on device %d got an address of allocation %llu (%zu bytes at %p) of "
                       "device %d, without peer access",
                       launch->name, launch->context->device->ordinal, found.id, found.size,
                       (void *)found.start, found.device);
        else
            sim_report("kernel %s on device %d got the address %p of pageable host memory", launch->name,
                       launch->context->device->ordinal, (void *)address);
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    return CUDA_SUCCESS;
}
