/* The functions of NVML by which a program counts GPUs without initialising CUDA: all simulated
 * devices, whatever CUDA_VISIBLE_DEVICES says. Signatures and codes are those of the NVML API
 * reference. Built as libnvidia-ml.so.1. */
#include "../driver/tables.h"

#include <stdio.h>
#include <string.h>

enum { NVML_SUCCESS = 0, NVML_INVALID_ARGUMENT = 2, NVML_INSUFFICIENT_SIZE = 7 };

SIM_EXPORT int nvmlInit_v2(void) { return NVML_SUCCESS; }

SIM_EXPORT int nvmlInitWithFlags(unsigned int flags) {
    return flags > 3 ? NVML_INVALID_ARGUMENT : NVML_SUCCESS;
}

SIM_EXPORT int nvmlShutdown(void) { return NVML_SUCCESS; }

SIM_EXPORT const char *nvmlErrorString(int status) {
    return status == NVML_SUCCESS            ? "Success"
           : status == NVML_INVALID_ARGUMENT ? "Invalid Argument"
           : status == NVML_INSUFFICIENT_SIZE ? "Insufficient Size"
                                              : "Unknown Error";
}

SIM_EXPORT int nvmlSystemGetCudaDriverVersion(int *version) {
    if (!version)
        return NVML_INVALID_ARGUMENT;
    *version = SIM_DRIVER_VERSION;
    return NVML_SUCCESS;
}

SIM_EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    return nvmlSystemGetCudaDriverVersion(version);
}

SIM_EXPORT int nvmlDeviceGetCount_v2(unsigned int *count) {
    if (!count)
        return NVML_INVALID_ARGUMENT;
    *count = sim_installed_count();
    return NVML_SUCCESS;
}

/* A handle is a number, as a pointer that is not NULL. */
SIM_EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
    if (!device || index >= (unsigned int)sim_installed_count())
        return NVML_INVALID_ARGUMENT;
    *device = (void *)((uintptr_t)index + 1);
    return NVML_SUCCESS;
}

SIM_EXPORT int nvmlDeviceGetUUID(void *device, char *text, unsigned int size) {
    uintptr_t number = (uintptr_t)device;
    CUuuid uuid;
    if (!text || number == 0 || !sim_installed_uuid((int)(number - 1), &uuid))
        return NVML_INVALID_ARGUMENT;
    char result[41];
    sim_format_uuid(&uuid, result);
    if (size < sizeof result)
        return NVML_INSUFFICIENT_SIZE;
    memcpy(text, result, sizeof result);
    return NVML_SUCCESS;
}
