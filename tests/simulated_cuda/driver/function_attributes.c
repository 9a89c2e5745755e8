/* Attributes and parameters of functions and kernels. */
#include "modules.h"

#include <stdlib.h>
#include <string.h>

int sim_target(const SimDevice *device) {
    return 10 * device->attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] +
           device->attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR];
}

CUresult sim_function(CUfunction handle, SimContext *context, SimFunctionHandle **result) {
    if (sim_handle_kind(handle) == SIM_FUNCTION_HANDLE) {
        *result = handle;
        return CUDA_SUCCESS;
    }
    /* "f can also be a CUkernel handle" (cuLaunchKernel). */
    if (sim_handle_kind(handle) != SIM_KERNEL_HANDLE)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    return sim_kernel_function((SimKernel *)handle, context, result);
}

/* ---- values ----------------------------------------------------------------------------------- */

void sim_default_settings(SimFunctionSettings *settings) {
    *settings = (SimFunctionSettings){.max_dynamic_shared = -1, .carveout = -1};
}

SimFunctionSettings *sim_settings(SimFunctionHandle *function) {
    SimKernel *kernel = function->kernel;
    return kernel ? &kernel->settings[function->module->context->device->ordinal]
                  : &function->settings;
}

int sim_max_threads(const SimFunctionHandle *function, const SimDevice *device) {
    const SimKernelInfo *info = function->info;
    int limit = device->attributes[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK];
    if (info->required_threads[0])
        return (int)(info->required_threads[0] * info->required_threads[1] * info->required_threads[2]);
    return info->max_threads && (int)info->max_threads < limit ? (int)info->max_threads : limit;
}

static int dynamic_shared_limit(const SimFunctionHandle *function, const SimDevice *device,
                                const SimFunctionSettings *settings) {
    if (settings->max_dynamic_shared >= 0)
        return settings->max_dynamic_shared;
    int limit = device->attributes[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK];
    int own = (int)function->info->static_shared;
    return own < limit ? limit - own : 0;
}

int sim_max_dynamic_shared(SimFunctionHandle *function) {
    return dynamic_shared_limit(function, function->module->context->device, sim_settings(function));
}

static CUresult get_attribute(int *result, CUfunction_attribute attribute,
                              const SimFunctionHandle *function, const SimDevice *device,
                              const SimFunctionSettings *settings) {
    const SimKernelInfo *info = function->info;
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *result = sim_max_threads(function, device);
        break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
        *result = (int)info->static_shared;
        break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
        *result = function->module->const_bytes;
        break;
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
        *result = 0;
        break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
        *result = (int)info->local_bytes;
        break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *result = SIM_REGISTERS;
        break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
        *result = function->module->ptx_version;
        break;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        *result = sim_target(device);
        break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *result = dynamic_shared_limit(function, device, settings);
        break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        *result = settings->carveout;
        break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
        *result = settings->cluster[attribute - CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH];
        break;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
        *result = settings->is_non_portable_cluster_allowed;
        break;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        *result = settings->cluster_policy;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static CUresult set_attribute(CUfunction_attribute attribute, int value,
                              const SimFunctionHandle *function, const SimDevice *device,
                              SimFunctionSettings *settings) {
    int limit = device->attributes[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN];
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        if (value < 0 || value > limit - (int)function->info->static_shared)
            return CUDA_ERROR_INVALID_VALUE;
        settings->max_dynamic_shared = value;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        if (value < -1 || value > 100)
            return CUDA_ERROR_INVALID_VALUE;
        settings->carveout = value;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
        settings->is_non_portable_cluster_allowed = value != 0;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        settings->cluster_policy = value;
        return CUDA_SUCCESS;
    default: /* the others are read-only, or need clusters */
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* ---- functions -------------------------------------------------------------------------------- */

CUresult sim_cuFuncGetAttribute(int *result, CUfunction_attribute attribute, CUfunction handle) {
    if (!result)
        return CUDA_ERROR_INVALID_VALUE;
    SimFunctionHandle *function;
    CUresult status = sim_function(handle, sim_current(), &function);
    if (status)
        return status;
    const SimDevice *device = function->module->context->device;
    return get_attribute(result, attribute, function, device, sim_settings(function));
}

CUresult sim_cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
    SimFunctionHandle *function;
    CUresult status = sim_function(handle, sim_current(), &function);
    if (status)
        return status;
    const SimDevice *device = function->module->context->device;
    return set_attribute(attribute, value, function, device, sim_settings(function));
}

CUresult sim_cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache config) {
    if (config < CU_FUNC_CACHE_PREFER_NONE || config > CU_FUNC_CACHE_PREFER_EQUAL)
        return CUDA_ERROR_INVALID_VALUE;
    SimFunctionHandle *function;
    return sim_function(handle, sim_current(), &function);
}

CUresult sim_cuFuncSetSharedMemConfig(CUfunction handle, CUsharedconfig config) {
    if (config < CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE ||
        config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE)
        return CUDA_ERROR_INVALID_VALUE;
    SimFunctionHandle *function;
    return sim_function(handle, sim_current(), &function);
}

CUresult sim_cuFuncGetModule(CUmodule *result, CUfunction handle) {
    if (!result)
        return CUDA_ERROR_INVALID_VALUE;
    SimFunctionHandle *function;
    CUresult status = sim_function(handle, sim_current(), &function);
    if (!status)
        *result = function->module;
    return status;
}

CUresult sim_cuFuncGetName(const char **name, CUfunction handle) {
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    SimFunctionHandle *function;
    CUresult status = sim_function(handle, sim_current(), &function);
    if (!status)
        *name = function->name;
    return status;
}

static CUresult parameter(const SimFunctionHandle *function, size_t index, size_t *offset, size_t *size) {
    if (index >= function->info->parameter_count)
        return CUDA_ERROR_INVALID_VALUE;
    *offset = function->info->parameters[index].offset;
    if (size)
        *size = function->info->parameters[index].size;
    return CUDA_SUCCESS;
}

CUresult sim_cuFuncGetParamInfo(CUfunction handle, size_t index, size_t *offset, size_t *size) {
    if (!offset)
        return CUDA_ERROR_INVALID_VALUE;
    SimFunctionHandle *function;
    CUresult status = sim_function(handle, sim_current(), &function);
    return status ? status : parameter(function, index, offset, size);
}

CUresult sim_cuFuncGetParamCount(CUfunction handle, size_t *count) {
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    SimFunctionHandle *function;
    CUresult status = sim_function(handle, sim_current(), &function);
    if (!status)
        *count = function->info->parameter_count;
    return status;
}

CUresult sim_cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction handle) {
    if (!state)
        return CUDA_ERROR_INVALID_VALUE;
    SimFunctionHandle *function;
    CUresult status = sim_function(handle, sim_current(), &function);
    if (!status)
        *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return status;
}

CUresult sim_cuFuncLoad(CUfunction handle) {
    SimFunctionHandle *function;
    return sim_function(handle, sim_current(), &function);
}

/* ---- kernels: values for each device ---------------------------------------------------------- */

static CUresult kernel_of(CUkernel kernel, CUdevice ordinal, SimFunctionHandle **result) {
    if (sim_handle_kind(kernel) != SIM_KERNEL_HANDLE)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!sim_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    SimContext *context = sim_current();
    if (!context || context->device->ordinal != ordinal)
        context = sim_primary(ordinal);
    return sim_kernel_function(kernel, context, result);
}

CUresult sim_cuKernelGetAttribute(int *result, CUfunction_attribute attribute, CUkernel kernel,
                                  CUdevice ordinal) {
    if (!result)
        return CUDA_ERROR_INVALID_VALUE;
    SimFunctionHandle *function;
    CUresult status = kernel_of(kernel, ordinal, &function);
    if (status)
        return status;
    return get_attribute(result, attribute, function, sim_device(ordinal), &kernel->settings[ordinal]);
}

CUresult sim_cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                                  CUdevice ordinal) {
    SimFunctionHandle *function;
    CUresult status = kernel_of(kernel, ordinal, &function);
    if (status)
        return status;
    return set_attribute(attribute, value, function, sim_device(ordinal), &kernel->settings[ordinal]);
}

CUresult sim_cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice ordinal) {
    if (config < CU_FUNC_CACHE_PREFER_NONE || config > CU_FUNC_CACHE_PREFER_EQUAL)
        return CUDA_ERROR_INVALID_VALUE;
    SimFunctionHandle *function;
    return kernel_of(kernel, ordinal, &function);
}

CUresult sim_cuKernelGetName(const char **name, CUkernel kernel) {
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_handle_kind(kernel) != SIM_KERNEL_HANDLE)
        return CUDA_ERROR_INVALID_HANDLE;
    *name = kernel->name;
    return CUDA_SUCCESS;
}

/* Parameters are the same on every device. */
static CUresult any_function(CUkernel kernel, SimFunctionHandle **result) {
    SimContext *context = sim_current();
    return kernel_of(kernel, context ? context->device->ordinal : 0, result);
}

CUresult sim_cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *size) {
    if (!offset)
        return CUDA_ERROR_INVALID_VALUE;
    SimFunctionHandle *function;
    CUresult status = any_function(kernel, &function);
    return status ? status : parameter(function, index, offset, size);
}

CUresult sim_cuKernelGetParamCount(CUkernel kernel, size_t *count) {
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    SimFunctionHandle *function;
    CUresult status = any_function(kernel, &function);
    if (!status)
        *count = function->info->parameter_count;
    return status;
}
