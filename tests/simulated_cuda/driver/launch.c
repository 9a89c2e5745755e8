/* Launches: checks, operations of streams, and the contents of kernel nodes. */
#include "grid.h"
#include "modules.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Of the packed parameters: more than any type of a parameter needs. */
#define PARAMETER_ALIGNMENT 64

typedef struct LaunchOperation {
    SimOperation base;
    SimFunctionHandle *function; /* kept with its module */
    SimGridLaunch launch;
    void **pointers; /* to each parameter */
    uint8_t *parameters;
} LaunchOperation;

/* ---- operations ------------------------------------------------------------------------------- */

static CUresult run(SimOperation *operation) {
    LaunchOperation *self = (LaunchOperation *)operation;
    self->launch.context = self->function->module->context;
    CUresult status = sim_check_arguments(&self->launch);
    return status ? status : sim_run_grid(&self->launch);
}

static void destroy(SimOperation *operation) {
    LaunchOperation *self = (LaunchOperation *)operation;
    sim_module_release(self->function->module);
    free(self->pointers);
    free(self->parameters);
    free(self);
}

/* Set the kernel of an operation without parameters yet; NULL without memory. */
static LaunchOperation *new_operation(SimFunctionHandle *function) {
    const SimKernelInfo *info = function->info;
    LaunchOperation *self = calloc(1, sizeof *self);
    size_t bytes = (info->parameter_bytes + PARAMETER_ALIGNMENT) & ~(size_t)(PARAMETER_ALIGNMENT - 1);
    if (!self)
        return NULL;
    self->pointers = malloc((info->parameter_count + 1) * sizeof *self->pointers);
    self->parameters = aligned_alloc(PARAMETER_ALIGNMENT, bytes);
    if (!self->pointers || !self->parameters) {
        free(self->pointers);
        free(self->parameters);
        free(self);
        return NULL;
    }
    memset(self->parameters, 0, bytes);
    for (uint32_t i = 0; i < info->parameter_count; i++)
        self->pointers[i] = self->parameters + info->parameters[i].offset;
    self->base.type = &sim_launch_type;
    self->function = function;
    atomic_fetch_add(&function->module->references, 1);
    self->launch.name = function->name;
    self->launch.info = info;
    self->launch.parameters = self->parameters;
    return self;
}

static SimOperation *copy(const SimOperation *operation) {
    const LaunchOperation *self = (const LaunchOperation *)operation;
    LaunchOperation *result = new_operation(self->function);
    if (!result)
        return NULL;
    memcpy(result->parameters, self->parameters, self->function->info->parameter_bytes);
    uint8_t *parameters = result->parameters;
    result->launch = self->launch;
    result->launch.parameters = parameters;
    result->base.context = self->base.context;
    return &result->base;
}

const SimOperationType sim_launch_type = {CU_GRAPH_NODE_TYPE_KERNEL, "kernel", run, copy, destroy};

void sim_launch_parameters(const SimOperation *operation, CUDA_KERNEL_NODE_PARAMS *result) {
    const LaunchOperation *self = (const LaunchOperation *)operation;
    const SimGridLaunch *launch = &self->launch;
    *result = (CUDA_KERNEL_NODE_PARAMS){
        .func = self->function,
        .gridDimX = launch->grid[0],
        .gridDimY = launch->grid[1],
        .gridDimZ = launch->grid[2],
        .blockDimX = launch->block[0],
        .blockDimY = launch->block[1],
        .blockDimZ = launch->block[2],
        .sharedMemBytes = launch->dynamic_shared,
        .kernelParams = self->pointers,
        .ctx = self->function->module->context,
    };
}

/* ---- checks ----------------------------------------------------------------------------------- */

static bool is_within(unsigned int value, int limit) { return value >= 1 && value <= (unsigned int)limit; }

static CUresult check_geometry(const CUlaunchConfig *config, SimFunctionHandle *function) {
    const SimDevice *device = function->module->context->device;
    const int *limits = device->attributes;
    const SimKernelInfo *info = function->info;
    if (!is_within(config->gridDimX, limits[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X]) ||
        !is_within(config->gridDimY, limits[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y]) ||
        !is_within(config->gridDimZ, limits[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z]) ||
        !is_within(config->blockDimX, limits[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X]) ||
        !is_within(config->blockDimY, limits[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y]) ||
        !is_within(config->blockDimZ, limits[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z]))
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t threads = (uint64_t)config->blockDimX * config->blockDimY * config->blockDimZ;
    if (threads > (uint64_t)sim_max_threads(function, device))
        return CUDA_ERROR_INVALID_VALUE;
    const uint32_t *required = info->required_threads;
    if (required[0] && (config->blockDimX != required[0] || config->blockDimY != required[1] ||
                        config->blockDimZ != required[2]))
        return CUDA_ERROR_INVALID_VALUE;
    if (config->sharedMemBytes > (unsigned int)sim_max_dynamic_shared(function))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult check_attributes(const CUlaunchConfig *config, bool *is_cooperative) {
    if (config->numAttrs && !config->attrs)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < config->numAttrs; i++) {
        const CUlaunchAttribute *attribute = &config->attrs[i];
        switch (attribute->id) {
        case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
            *is_cooperative |= attribute->value.cooperative != 0;
            break;
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
            /* A cluster of one block is what every block is without clusters. */
            if (attribute->value.clusterDim.x != 1 || attribute->value.clusterDim.y != 1 ||
                attribute->value.clusterDim.z != 1)
                return CUDA_ERROR_NOT_SUPPORTED;
            break;
        case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
            return CUDA_ERROR_NOT_SUPPORTED;
        default: /* hints of performance: order and results are the same without them */
            if (attribute->id < 0 || attribute->id > CU_LAUNCH_ATTRIBUTE_SHARED_MEMORY_MODE)
                return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}

static CUresult check_cooperative(const LaunchOperation *self) {
    const SimDevice *device = self->function->module->context->device;
    if (!device->attributes[CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH])
        return CUDA_ERROR_NOT_SUPPORTED;
    const uint32_t *grid = self->launch.grid;
    uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
    return blocks > self->launch.resident ? CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE : CUDA_SUCCESS;
}

/* ---- parameters ------------------------------------------------------------------------------- */

static CUresult copy_extra(LaunchOperation *self, void **extra) {
    const void *buffer = NULL;
    const size_t *size = NULL;
    for (int i = 0; extra[i] != (void *)CU_LAUNCH_PARAM_END; i += 2) {
        if (extra[i] == (void *)CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = extra[i + 1];
        else if (extra[i] == (void *)CU_LAUNCH_PARAM_BUFFER_SIZE)
            size = extra[i + 1];
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    const SimKernelInfo *info = self->function->info;
    if (!info->parameter_count)
        return CUDA_SUCCESS;
    const SimParameter *last = &info->parameters[info->parameter_count - 1];
    /* The buffer may end with the last parameter, before the padding of the whole. */
    if (!buffer || !size || *size < last->offset + last->size)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(self->parameters, buffer, *size < info->parameter_bytes ? *size : info->parameter_bytes);
    return CUDA_SUCCESS;
}

static CUresult copy_parameters(LaunchOperation *self, void **params, void **extra) {
    if (params && extra)
        return CUDA_ERROR_INVALID_VALUE;
    if (extra)
        return copy_extra(self, extra);
    const SimKernelInfo *info = self->function->info;
    if (!params)
        return info->parameter_count ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    for (uint32_t i = 0; i < info->parameter_count; i++) {
        if (!params[i])
            return CUDA_ERROR_INVALID_VALUE;
        memcpy(self->pointers[i], params[i], info->parameters[i].size);
    }
    return CUDA_SUCCESS;
}

CUresult sim_new_launch(const CUlaunchConfig *config, CUfunction handle, void **params, void **extra,
                        bool is_cooperative, SimOperation **result) {
    SimContext *context = sim_stream_context(config->hStream);
    SimFunctionHandle *function;
    CUresult status = sim_function(handle, context, &function);
    if (!status)
        status = check_geometry(config, function);
    if (!status)
        status = check_attributes(config, &is_cooperative);
    if (status)
        return status;
    LaunchOperation *self = new_operation(function);
    if (!self)
        return CUDA_ERROR_OUT_OF_MEMORY;
    SimGridLaunch *launch = &self->launch;
    memcpy(launch->grid, &config->gridDimX, sizeof launch->grid);
    memcpy(launch->block, &config->blockDimX, sizeof launch->block);
    launch->dynamic_shared = config->sharedMemBytes;
    launch->is_cooperative = is_cooperative;
    const SimDevice *device = function->module->context->device;
    int threads = (int)(config->blockDimX * config->blockDimY * config->blockDimZ);
    launch->resident = (uint32_t)sim_resident_blocks(function, device, threads, config->sharedMemBytes) *
                       (uint32_t)device->attributes[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT];
    if (is_cooperative)
        status = check_cooperative(self);
    if (!status)
        status = copy_parameters(self, params, extra);
    if (status)
        destroy(&self->base);
    else
        *result = &self->base;
    return status;
}

/* ---- functions of the API --------------------------------------------------------------------- */

CUresult sim_cuEventRecord(CUevent event, CUstream stream);

/* Record the events of a launch, which need not be complete before its end: "all blocks have begun",
 * "all blocks have triggered the event or ended". */
static CUresult record_events(const CUlaunchConfig *config) {
    CUresult status = CUDA_SUCCESS;
    for (unsigned int i = 0; !status && i < config->numAttrs; i++) {
        const CUlaunchAttribute *attribute = &config->attrs[i];
        if (attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT)
            status = sim_cuEventRecord(attribute->value.programmaticEvent.event, config->hStream);
        else if (attribute->id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT)
            status = sim_cuEventRecord(attribute->value.launchCompletionEvent.event, config->hStream);
    }
    return status;
}

static CUresult launch(const CUlaunchConfig *config, CUfunction handle, void **params, void **extra,
                       bool is_cooperative) {
    SimContext *context = sim_stream_context(config->hStream);
    if (!context)
        return sim_check_stream(config->hStream);
    SimFunctionHandle *function;
    CUresult status = sim_function(handle, context, &function);
    if (status)
        return status;
    if (function->module->context != context)
        return CUDA_ERROR_INVALID_HANDLE;
    SimOperation *operation;
    status = sim_new_launch(config, function, params, extra, is_cooperative, &operation);
    if (status)
        return status;
    sim_flush_printing(context);
    status = sim_submit(config->hStream, operation);
    return status ? status : record_events(config);
}

CUresult sim_cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                            unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                            unsigned int block_z, unsigned int shared, CUstream stream, void **params,
                            void **extra) {
    CUlaunchConfig config = {grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, NULL, 0};
    return launch(&config, function, params, extra, false);
}

CUresult sim_cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params,
                              void **extra) {
    return config ? launch(config, function, params, extra, false) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                       unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                       unsigned int block_z, unsigned int shared, CUstream stream,
                                       void **params) {
    CUlaunchConfig config = {grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, NULL, 0};
    return launch(&config, function, params, NULL, true);
}
