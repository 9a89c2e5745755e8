/* Modules, their functions and global variables. */
#include "modules.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

pthread_mutex_t sim_module_lock = PTHREAD_MUTEX_INITIALIZER;
static SimModule *modules; /* made by cuModuleLoad*, and still loaded */
static SimModule *retired; /* without references, not freed yet */

/* ---- life of a module ------------------------------------------------------------------------- */

void sim_module_release(SimModule *module) {
    if (atomic_fetch_sub(&module->references, 1) != 1)
        return;
    pthread_mutex_lock(&sim_module_lock);
    module->next = retired;
    retired = module;
    pthread_mutex_unlock(&sim_module_lock);
}

void sim_free_retired_modules(void) {
    pthread_mutex_lock(&sim_module_lock);
    SimModule *taken = retired;
    retired = NULL;
    pthread_mutex_unlock(&sim_module_lock);
    while (taken) {
        SimModule *module = taken;
        taken = module->next;
        sim_free_module(module);
    }
}

void sim_remove_module_handles(SimModule *module) {
    sim_remove_handle(module);
    for (SimFunctionHandle *function = module->functions; function; function = function->next)
        sim_remove_handle(function);
}

static CUresult load(CUmodule *result, const void *image, unsigned int count, CUjit_option *options,
                     void **values) {
    SimContext *context = sim_current();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!result)
        return CUDA_ERROR_INVALID_VALUE;
    SimJitOptions jit;
    CUresult status = sim_jit_options(count, options, values, &jit);
    const char *text;
    size_t length;
    if (!status)
        status = sim_image_text(image, &text, &length);
    SimModule *module;
    if (!status)
        status = sim_translate(text, length, sim_target(context->device), &jit, &module);
    if (status)
        return status;
    module->context = context;
    sim_add_handle(module, SIM_MODULE_HANDLE);
    pthread_mutex_lock(&sim_module_lock);
    module->next = modules;
    modules = module;
    pthread_mutex_unlock(&sim_module_lock);
    *result = module;
    sim_free_retired_modules();
    return CUDA_SUCCESS;
}

CUresult sim_cuModuleLoadData(CUmodule *module, const void *image) {
    return load(module, image, 0, NULL, NULL);
}

CUresult sim_cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count,
                                CUjit_option *options, void **values) {
    return load(module, image, count, options, values);
}

CUresult sim_cuModuleLoadFatBinary(CUmodule *module, const void *image) {
    return load(module, image, 0, NULL, NULL);
}

CUresult sim_cuModuleLoad(CUmodule *module, const char *path) {
    char *image;
    size_t size;
    CUresult status = sim_read_file(path, &image, &size);
    if (status)
        return status;
    status = load(module, image, 0, NULL, NULL);
    free(image);
    return status;
}

/* Take a module out of the list; false if it is not there. */
static bool unlink_module(SimModule *module) {
    pthread_mutex_lock(&sim_module_lock);
    SimModule **at = &modules;
    while (*at && *at != module)
        at = &(*at)->next;
    bool found = *at != NULL;
    if (found)
        *at = module->next;
    pthread_mutex_unlock(&sim_module_lock);
    return found;
}

CUresult sim_cuModuleUnload(CUmodule handle) {
    if (sim_handle_kind(handle) != SIM_MODULE_HANDLE)
        return CUDA_ERROR_INVALID_HANDLE;
    SimModule *module = handle;
    /* A module of a library is unloaded with it. */
    if (module->library || !unlink_module(module))
        return CUDA_ERROR_NOT_PERMITTED;
    sim_remove_module_handles(module);
    sim_module_release(module);
    sim_free_retired_modules();
    return CUDA_SUCCESS;
}

void sim_modules_release(SimContext *context) {
    for (;;) {
        pthread_mutex_lock(&sim_module_lock);
        SimModule **at = &modules;
        while (*at && (*at)->context != context)
            at = &(*at)->next;
        SimModule *module = *at;
        if (module)
            *at = module->next;
        pthread_mutex_unlock(&sim_module_lock);
        if (!module)
            break;
        sim_remove_module_handles(module);
        sim_module_release(module);
    }
    sim_libraries_release(context);
    sim_free_retired_modules();
}

/* ---- functions -------------------------------------------------------------------------------- */

static SimFunctionHandle *known_function(SimModule *module, const char *name) {
    SimFunctionHandle *function = module->functions;
    while (function && strcmp(function->name, name))
        function = function->next;
    return function;
}

static const char *kernel_name(const SimModule *module, const char *name) {
    for (unsigned int i = 0; i < module->name_count; i++)
        if (strcmp(module->names[i], name) == 0)
            return module->names[i];
    return NULL;
}

bool sim_has_kernel(const SimModule *module, const char *name) {
    return kernel_name(module, name) != NULL;
}

CUresult sim_module_function(SimModule *module, const char *name, SimFunctionHandle **result) {
    pthread_mutex_lock(&sim_module_lock);
    *result = known_function(module, name);
    pthread_mutex_unlock(&sim_module_lock);
    if (*result)
        return CUDA_SUCCESS;
    const char *own = kernel_name(module, name);
    if (!own)
        return CUDA_ERROR_NOT_FOUND;
    SimFunctionHandle *function = calloc(1, sizeof *function);
    SimKernelInfo *info = calloc(1, sizeof *info);
    const SimTranslator *translator = sim_translator();
    CUresult status = translator ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_DEINITIALIZED;
    if (translator && function && info)
        status = translator->kernel(module->translated, own, info);
    if (status) {
        free(function);
        free(info);
        return status;
    }
    function->module = module;
    function->name = own;
    function->info = info;
    sim_default_settings(&function->settings);
    pthread_mutex_lock(&sim_module_lock);
    *result = known_function(module, name); /* another thread may have been faster */
    if (!*result) {
        function->next = module->functions;
        module->functions = *result = function;
        sim_add_handle(function, SIM_FUNCTION_HANDLE);
        function = NULL;
        info = NULL;
    }
    pthread_mutex_unlock(&sim_module_lock);
    free(function);
    free(info);
    return CUDA_SUCCESS;
}

CUresult sim_cuModuleGetFunction(CUfunction *result, CUmodule module, const char *name) {
    if (!result || !name)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_handle_kind(module) != SIM_MODULE_HANDLE)
        return CUDA_ERROR_INVALID_HANDLE;
    return sim_module_function(module, name, result);
}

CUresult sim_cuModuleGetFunctionCount(unsigned int *count, CUmodule module) {
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_handle_kind(module) != SIM_MODULE_HANDLE)
        return CUDA_ERROR_INVALID_HANDLE;
    *count = module->name_count;
    return CUDA_SUCCESS;
}

CUresult sim_cuModuleEnumerateFunctions(CUfunction *functions, unsigned int count, CUmodule module) {
    if (!functions || !count)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_handle_kind(module) != SIM_MODULE_HANDLE)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult status = CUDA_SUCCESS;
    for (unsigned int i = 0; !status && i < count && i < module->name_count; i++)
        status = sim_module_function(module, module->names[i], &functions[i]);
    return status;
}

CUresult sim_cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
    if (!mode)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = CU_MODULE_LAZY_LOADING; /* kernels are compiled when a function is asked for */
    return CUDA_SUCCESS;
}

/* ---- global variables ------------------------------------------------------------------------- */

/* Make the memory of a global variable known to pointer queries, once. */
static CUresult register_global(SimModule *module, void *address, size_t size) {
    CUresult status = CUDA_SUCCESS;
    pthread_mutex_lock(&sim_module_lock);
    unsigned int i = 0;
    while (i < module->global_count && module->globals[i] != address)
        i++;
    bool is_new = i == module->global_count;
    if (is_new) {
        void **grown = realloc(module->globals, (i + 1) * sizeof *grown);
        if (grown) {
            module->globals = grown;
            module->globals[module->global_count++] = address;
        } else {
            status = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    pthread_mutex_unlock(&sim_module_lock);
    if (is_new && !status)
        sim_register_memory(address, size, SIM_MODULE_MEMORY, module->context->device->ordinal);
    return status;
}

CUresult sim_module_global(SimModule *module, const char *name, CUdeviceptr *address, size_t *size) {
    void *start = NULL;
    size_t bytes = 0;
    const SimTranslator *translator = sim_translator();
    if (!translator)
        return CUDA_ERROR_DEINITIALIZED;
    CUresult status = translator->global(module->translated, name, &start, &bytes);
    if (!status)
        status = register_global(module, start, bytes);
    if (status)
        return status;
    if (address)
        *address = (CUdeviceptr)(uintptr_t)start;
    if (size)
        *size = bytes;
    return CUDA_SUCCESS;
}

CUresult sim_cuModuleGetGlobal(CUdeviceptr *address, size_t *size, CUmodule module, const char *name) {
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_handle_kind(module) != SIM_MODULE_HANDLE)
        return CUDA_ERROR_INVALID_HANDLE;
    return sim_module_global(module, name, address, size);
}
