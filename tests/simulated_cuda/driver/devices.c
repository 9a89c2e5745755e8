/* The simulated devices: GPUs of nbrt's table (NBRT_SIM_GPU), all of one product. */
#include "tables.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_GPU "H100 SXM"
#define DEFAULT_DEVICES 2
#define DEFAULT_MEMORY (4L << 30)

static SimDevice devices[SIM_MAX_DEVICES];
static int device_count;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Compare names without case, spaces and dashes, as nbrt does. */
static bool is_same_name(const char *a, const char *b) {
    for (;;) {
        while (*a && !isalnum((unsigned char)*a))
            a++;
        while (*b && !isalnum((unsigned char)*b))
            b++;
        if (tolower((unsigned char)*a) != tolower((unsigned char)*b))
            return false;
        if (!*a)
            return true;
        a++;
        b++;
    }
}

static const SimGpu *gpu_of_settings(void) {
    const char *name = getenv("NBRT_SIM_GPU");
    if (!name || !*name)
        name = DEFAULT_GPU;
    const SimGpu *result = NULL;
    for (int i = 0; i < sim_gpu_count; i++)
        if (is_same_name(sim_gpus[i].name, name))
            return &sim_gpus[i];
        else if (is_same_name(sim_gpus[i].name, DEFAULT_GPU))
            result = &sim_gpus[i];
    fprintf(stderr, "simulated CUDA driver: NBRT_SIM_GPU=%s is no GPU of nbrt's table; using %s\n",
            name, DEFAULT_GPU);
    return result;
}

static void set_attributes(SimDevice *device, const SimGpu *gpu) {
    int *a = device->attributes;
    a[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024;
    a[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X] = 1024;
    a[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y] = 1024;
    a[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z] = 64;
    a[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X] = 2147483647;
    a[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y] = 65535;
    a[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z] = 65535;
    a[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK] = 48 << 10;
    a[CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY] = 64 << 10;
    a[CU_DEVICE_ATTRIBUTE_WARP_SIZE] = 32;
    a[CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK] = 64 << 10;
    a[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT] = gpu->multiprocessors;
    a[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = gpu->major;
    a[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR] = gpu->minor;
    a[CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING] = 1;
    a[CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED] = 1;
    a[CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY] = 1;
}

static void make_devices(void) {
    const SimGpu *gpu = gpu_of_settings();
    long count = sim_setting("NBRT_SIM_DEVICES", DEFAULT_DEVICES);
    device_count = count < 0 ? 0 : count > SIM_MAX_DEVICES ? SIM_MAX_DEVICES : count;
    for (int i = 0; i < device_count; i++) {
        SimDevice *device = &devices[i];
        device->ordinal = i;
        device->total_memory = sim_setting("NBRT_SIM_MEMORY", DEFAULT_MEMORY);
        snprintf(device->name, sizeof device->name, "NVIDIA %s (simulated)", gpu->name);
        memcpy(device->uuid.bytes, "nbrt-simulated-", 15);
        device->uuid.bytes[15] = i;
        set_attributes(device, gpu);
    }
}

int sim_device_count(void) {
    pthread_once(&once, make_devices);
    return device_count;
}

SimDevice *sim_device(CUdevice ordinal) {
    return ordinal >= 0 && ordinal < sim_device_count() ? &devices[ordinal] : NULL;
}

CUresult sim_cuDeviceGet(CUdevice *device, int ordinal) {
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetCount(int *count) {
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = sim_device_count();
    return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetName(char *name, int size, CUdevice ordinal) {
    SimDevice *device = sim_device(ordinal);
    if (!name || size <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, size, "%s", device->name);
    return CUDA_SUCCESS;
}

CUresult sim_cuDeviceTotalMem(size_t *bytes, CUdevice ordinal) {
    SimDevice *device = sim_device(ordinal);
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = device->total_memory;
    return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetUuid(CUuuid *uuid, CUdevice ordinal) {
    SimDevice *device = sim_device(ordinal);
    if (!uuid)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    *uuid = device->uuid;
    return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice ordinal) {
    SimDevice *device = sim_device(ordinal);
    if (!value || attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    *value = device->attributes[attribute];
    return CUDA_SUCCESS;
}
