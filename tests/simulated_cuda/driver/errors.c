/* Names and texts of error codes. */
#include "tables.h"

#include <stdlib.h>

static int compare(const void *code, const void *entry) {
    int wanted = *(const int *)code, found = ((const SimError *)entry)->code;
    return (wanted > found) - (wanted < found);
}

static const SimError *find(CUresult error) {
    int code = error;
    return bsearch(&code, sim_errors, sim_error_count, sizeof *sim_errors, compare);
}

CUresult sim_cuGetErrorName(CUresult error, const char **name) {
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    const SimError *entry = find(error);
    *name = entry ? entry->name : NULL;
    return entry ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuGetErrorString(CUresult error, const char **text) {
    if (!text)
        return CUDA_ERROR_INVALID_VALUE;
    const SimError *entry = find(error);
    *text = entry ? entry->text : NULL;
    return entry ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
