/* cuGetProcAddress: functions by their base name and a CUDA version. */
#include "tables.h"

#include <stdlib.h>
#include <string.h>

static int compare(const void *name, const void *entry) {
    return strcmp(name, ((const SimFunction *)entry)->name);
}

static void *in_table(const SimFunction *table, int count, const char *name) {
    const SimFunction *found = bsearch(name, table, count, sizeof *table, compare);
    return found ? found->address : NULL;
}

/* The interface of a function that a CUDA version has; `is_known` tells whether some version has
 * the function. */
static void *newest(const char *name, int version, bool *is_known) {
    void *address = NULL;
    *is_known = false;
    for (int i = 0; i < sim_version_count; i++) {
        if (strcmp(sim_versions[i].name, name) != 0)
            continue;
        *is_known = true;
        if (sim_versions[i].version <= version)
            address = sim_versions[i].address;
    }
    if (*is_known)
        return address;
    address = in_table(sim_functions, sim_function_count, name);
    *is_known = address != NULL;
    return address;
}

static void *per_thread_variant(void *address) {
    for (int i = 0; i < sim_per_thread_count; i++)
        if (in_table(sim_functions, sim_function_count, sim_per_thread[i].name) == address)
            return sim_per_thread[i].address;
    return address;
}

/* As documented, a function that is not found is no error: its address is NULL. */
CUresult sim_cuGetProcAddress(const char *name, void **address, int version, cuuint64_t flags,
                              CUdriverProcAddressQueryResult *result) {
    const cuuint64_t known_flags =
        CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    if (!name || !address || flags & ~known_flags || version > SIM_DRIVER_VERSION)
        return CUDA_ERROR_INVALID_VALUE;
    bool is_known;
    *address = newest(name, version, &is_known);
    if (*address && flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
        *address = per_thread_variant(*address);
    if (result)
        *result = *address   ? CU_GET_PROC_ADDRESS_SUCCESS
                  : is_known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                             : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
}

/* The interface of CUDA 11.3, which has the symbol without a suffix and reports by its result. */
CUresult sim_proc_address_v1(const char *name, void **address, int version, cuuint64_t flags)
    __asm__("cuGetProcAddress");

SIM_EXPORT CUresult sim_proc_address_v1(const char *name, void **address, int version,
                                        cuuint64_t flags) {
    CUresult status = cuGetProcAddress(name, address, version, flags, NULL);
    return status == CUDA_SUCCESS && !*address ? CUDA_ERROR_NOT_FOUND : status;
}

/* Export tables are undocumented: there is none. */
CUresult sim_cuGetExportTable(const void **table, const CUuuid *id) {
    if (!table || !id)
        return CUDA_ERROR_INVALID_VALUE;
    *table = NULL;
    return CUDA_ERROR_NOT_FOUND;
}
