/* The functions of the API about devices. */
#include "tables.h"

#include <stdio.h>
#include <string.h>

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

/* The LUID is of graphics interfaces on Windows; elsewhere it is 0. */
CUresult sim_cuDeviceGetLuid(char *luid, unsigned int *node_mask, CUdevice ordinal) {
    if (!luid || !node_mask)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    memset(luid, 0, 8);
    *node_mask = 0;
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

CUresult sim_cuDeviceComputeCapability(int *major, int *minor, CUdevice ordinal) {
    SimDevice *device = sim_device(ordinal);
    if (!major || !minor)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    *major = device->attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR];
    *minor = device->attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR];
    return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetProperties(CUdevprop *result, CUdevice ordinal) {
    SimDevice *device = sim_device(ordinal);
    if (!result)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    const int *values = device->attributes;
    for (int i = 0; i < 3; i++) {
        result->maxThreadsDim[i] = values[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i];
        result->maxGridSize[i] = values[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i];
    }
    result->maxThreadsPerBlock = values[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK];
    result->sharedMemPerBlock = values[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK];
    result->totalConstantMemory = values[CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY];
    result->SIMDWidth = values[CU_DEVICE_ATTRIBUTE_WARP_SIZE];
    result->memPitch = values[CU_DEVICE_ATTRIBUTE_MAX_PITCH];
    result->regsPerBlock = values[CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK];
    result->clockRate = values[CU_DEVICE_ATTRIBUTE_CLOCK_RATE];
    result->textureAlign = values[CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT];
    return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetPCIBusId(char *text, int size, CUdevice ordinal) {
    SimDevice *device = sim_device(ordinal);
    if (!text || size <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(text, size, "%04X:%02X:%02X.0", device->attributes[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID],
             device->attributes[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID],
             device->attributes[CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID]);
    return CUDA_SUCCESS;
}

/* The forms are domain:bus:device.function, domain:bus:device and bus:device.function, in
 * hexadecimal. */
CUresult sim_cuDeviceGetByPCIBusId(CUdevice *result, const char *text) {
    unsigned int domain = 0, bus = 0, device = 0, function = 0;
    if (!result || !text)
        return CUDA_ERROR_INVALID_VALUE;
    int found = sscanf(text, "%x:%x:%x.%x", &domain, &bus, &device, &function);
    if (found < 3) {
        domain = 0;
        if (sscanf(text, "%x:%x.%x", &bus, &device, &function) != 3)
            return CUDA_ERROR_INVALID_VALUE;
    }
    for (int i = 0; i < sim_device_count(); i++) {
        const int *values = sim_device(i)->attributes;
        if ((unsigned int)values[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID] == domain &&
            (unsigned int)values[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID] == bus &&
            (unsigned int)values[CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID] == device && function == 0) {
            *result = i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

CUresult sim_cuDeviceGetTexture1DLinearMaxWidth(size_t *width, CUarray_format format,
                                                unsigned channels, CUdevice ordinal) {
    SimDevice *device = sim_device(ordinal);
    if (!width || channels == 0 || channels > 4)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    *width = device->attributes[CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH];
    return CUDA_SUCCESS;
}

/* Contexts with a part of the multiprocessors need MPS, which is not simulated. */
CUresult sim_cuDeviceGetExecAffinitySupport(int *result, CUexecAffinityType type,
                                            CUdevice ordinal) {
    if (!result || type < 0 || type >= CU_EXEC_AFFINITY_TYPE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *result = 0;
    return CUDA_SUCCESS;
}

/* ---- peers ------------------------------------------------------------------------------------ */

CUresult sim_cuDeviceCanAccessPeer(int *result, CUdevice ordinal, CUdevice peer) {
    if (!result)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_device(ordinal) || !sim_device(peer))
        return CUDA_ERROR_INVALID_DEVICE;
    *result = sim_can_access_peer(ordinal, peer);
    return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice source,
                                     CUdevice target) {
    if (!sim_device(source) || !sim_device(target) || source == target)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
        *value = sim_can_access_peer(source, target);
        return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
    case CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED:
        *value = 0;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult atomic_capabilities(unsigned int *result, const CUatomicOperation *operations,
                                    unsigned int count, bool is_native) {
    const unsigned int integer = CU_ATOMIC_CAPABILITY_SIGNED | CU_ATOMIC_CAPABILITY_UNSIGNED |
                                 CU_ATOMIC_CAPABILITY_REDUCTION | CU_ATOMIC_CAPABILITY_SCALAR_32 |
                                 CU_ATOMIC_CAPABILITY_SCALAR_64;
    if (!result || !operations || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < count; i++)
        if (operations[i] < 0 || operations[i] >= CU_ATOMIC_OPERATION_MAX)
            return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < count; i++)
        result[i] = is_native ? integer : 0;
    return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetP2PAtomicCapabilities(unsigned int *result,
                                              const CUatomicOperation *operations,
                                              unsigned int count, CUdevice source,
                                              CUdevice target) {
    if (!sim_device(source) || !sim_device(target) || source == target)
        return CUDA_ERROR_INVALID_DEVICE;
    return atomic_capabilities(result, operations, count, sim_can_access_peer(source, target));
}

/* Attribute HOST_NATIVE_ATOMIC_SUPPORTED is 0. */
CUresult sim_cuDeviceGetHostAtomicCapabilities(unsigned int *result,
                                               const CUatomicOperation *operations,
                                               unsigned int count, CUdevice ordinal) {
    if (!sim_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    return atomic_capabilities(result, operations, count, false);
}
