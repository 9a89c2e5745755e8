/* Libraries and their kernels: images that are loaded into each context that uses them. */
#include "modules.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static SimLibrary *libraries; /* guarded by sim_module_lock */

/* ---- modules of a library --------------------------------------------------------------------- */

/* The module of a library in a context. A module that no context uses yet, translated for the
 * context's capability, becomes that of the context. Called with sim_module_lock. */
static SimModule *module_in(SimLibrary *library, SimContext *context) {
    SimModule *unused = NULL;
    for (SimModule *module = library->modules; module; module = module->next) {
        if (module->context == context)
            return module;
        if (!module->context && module->target == sim_target(context->device))
            unused = module;
    }
    if (unused)
        unused->context = context;
    return unused;
}

static CUresult load_in(SimLibrary *library, SimContext *context, SimModule **result) {
    pthread_mutex_lock(&sim_module_lock);
    *result = module_in(library, context);
    pthread_mutex_unlock(&sim_module_lock);
    if (*result)
        return CUDA_SUCCESS;
    SimModule *module;
    SimJitOptions options = {0};
    int target = sim_target(context->device);
    CUresult status = sim_translate(library->image, library->size, target, &options, &module);
    if (status)
        return status;
    module->library = library;
    module->context = context;
    sim_add_handle(module, SIM_MODULE_HANDLE);
    pthread_mutex_lock(&sim_module_lock);
    *result = module_in(library, context); /* another thread may have been faster */
    if (!*result) {
        module->next = library->modules;
        library->modules = *result = module;
        module = NULL;
    }
    pthread_mutex_unlock(&sim_module_lock);
    if (module) {
        sim_remove_handle(module);
        sim_free_module(module);
    }
    return CUDA_SUCCESS;
}

static CUresult current_module(SimLibrary *library, SimModule **result) {
    SimContext *context = sim_current();
    if (sim_handle_kind(library) != SIM_LIBRARY_HANDLE)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    return load_in(library, context, result);
}

/* ---- loading ---------------------------------------------------------------------------------- */

static CUresult check_options(unsigned int count, const CUlibraryOption *options) {
    if (count && !options)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < count; i++)
        if (options[i] < 0 || options[i] >= CU_LIBRARY_NUM_OPTIONS)
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult new_library(const char *text, size_t length, SimModule *module, CUlibrary *result) {
    SimLibrary *library = calloc(1, sizeof *library);
    char *image = malloc(length + 1);
    if (!library || !image) {
        free(library);
        free(image);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memcpy(image, text, length);
    image[length] = 0;
    library->image = image;
    library->size = length;
    library->modules = module;
    module->library = library;
    sim_add_handle(module, SIM_MODULE_HANDLE);
    sim_add_handle(library, SIM_LIBRARY_HANDLE);
    pthread_mutex_lock(&sim_module_lock);
    library->next = libraries;
    libraries = library;
    pthread_mutex_unlock(&sim_module_lock);
    *result = library;
    return CUDA_SUCCESS;
}

CUresult sim_cuLibraryLoadData(CUlibrary *result, const void *code, CUjit_option *jit_options,
                               void **jit_values, unsigned int jit_count, CUlibraryOption *options,
                               void **values, unsigned int count) {
    if (!result)
        return CUDA_ERROR_INVALID_VALUE;
    SimJitOptions jit;
    CUresult status = sim_jit_options(jit_count, jit_options, jit_values, &jit);
    if (!status)
        status = check_options(count, options);
    const char *text;
    size_t length;
    if (!status)
        status = sim_image_text(code, &text, &length);
    if (status)
        return status;
    /* A library needs no context, but an error of the image shall appear here. */
    SimContext *context = sim_current();
    SimDevice *device = context ? context->device : sim_device(0);
    SimModule *module;
    status = sim_translate(text, length, sim_target(device), &jit, &module);
    if (status)
        return status;
    module->context = context;
    status = new_library(text, length, module, result);
    if (status)
        sim_free_module(module);
    sim_free_retired_modules();
    return status;
}

CUresult sim_cuLibraryLoadFromFile(CUlibrary *result, const char *path, CUjit_option *jit_options,
                                   void **jit_values, unsigned int jit_count,
                                   CUlibraryOption *options, void **values, unsigned int count) {
    char *image;
    size_t size;
    CUresult status = sim_read_file(path, &image, &size);
    if (status)
        return status;
    status = sim_cuLibraryLoadData(result, image, jit_options, jit_values, jit_count, options, values,
                                   count);
    free(image);
    return status;
}

static void release_modules(SimModule *module) {
    while (module) {
        SimModule *next = module->next;
        sim_remove_module_handles(module);
        sim_module_release(module);
        module = next;
    }
}

CUresult sim_cuLibraryUnload(CUlibrary library) {
    if (sim_handle_kind(library) != SIM_LIBRARY_HANDLE)
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&sim_module_lock);
    SimLibrary **at = &libraries;
    while (*at && *at != library)
        at = &(*at)->next;
    if (*at)
        *at = library->next;
    pthread_mutex_unlock(&sim_module_lock);
    sim_remove_handle(library);
    release_modules(library->modules);
    for (SimKernel *kernel = library->kernels, *next; kernel; kernel = next) {
        next = kernel->next;
        sim_remove_handle(kernel);
        free(kernel->name);
        free(kernel);
    }
    free(library->image);
    /* Its few bytes are kept, so that no other library gets the same handle: numba-cuda and
     * cuda.core each unload a library that both know, and the second call must not find another. */
    library->image = NULL;
    sim_free_retired_modules();
    return CUDA_SUCCESS;
}

void sim_libraries_release(SimContext *context) {
    SimModule *taken = NULL;
    pthread_mutex_lock(&sim_module_lock);
    for (SimLibrary *library = libraries; library; library = library->next) {
        SimModule **at = &library->modules;
        while (*at) {
            SimModule *module = *at;
            if (module->context == context) {
                *at = module->next;
                module->next = taken;
                taken = module;
            } else {
                at = &module->next;
            }
        }
    }
    pthread_mutex_unlock(&sim_module_lock);
    release_modules(taken);
}

CUresult sim_cuLibraryGetModule(CUmodule *result, CUlibrary library) {
    if (!result)
        return CUDA_ERROR_INVALID_VALUE;
    return current_module(library, result);
}

/* ---- kernels ---------------------------------------------------------------------------------- */

/* Any module of a library knows the names of its kernels. If the contexts of all its modules have
 * been destroyed, it is loaded again. */
static CUresult any_module(SimLibrary *library, SimModule **result) {
    pthread_mutex_lock(&sim_module_lock);
    *result = library->modules;
    pthread_mutex_unlock(&sim_module_lock);
    if (*result)
        return CUDA_SUCCESS;
    SimContext *context = sim_current();
    return load_in(library, context ? context : sim_primary(0), result);
}

static CUresult get_kernel(SimLibrary *library, const char *name, SimKernel **result) {
    SimModule *module;
    CUresult status = any_module(library, &module);
    if (status)
        return status;
    pthread_mutex_lock(&sim_module_lock);
    SimKernel *kernel = library->kernels;
    while (kernel && strcmp(kernel->name, name))
        kernel = kernel->next;
    if (!kernel && !sim_has_kernel(module, name)) {
        status = CUDA_ERROR_NOT_FOUND;
    } else if (!kernel) {
        kernel = calloc(1, sizeof *kernel);
        if (kernel && (kernel->name = strdup(name))) {
            kernel->library = library;
            for (int i = 0; i < SIM_MAX_DEVICES; i++)
                sim_default_settings(&kernel->settings[i]);
            kernel->next = library->kernels;
            library->kernels = kernel;
            sim_add_handle(kernel, SIM_KERNEL_HANDLE);
        } else {
            free(kernel);
            status = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    pthread_mutex_unlock(&sim_module_lock);
    *result = kernel;
    return status;
}

CUresult sim_cuLibraryGetKernel(CUkernel *result, CUlibrary library, const char *name) {
    if (!result || !name)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_handle_kind(library) != SIM_LIBRARY_HANDLE)
        return CUDA_ERROR_INVALID_HANDLE;
    return get_kernel(library, name, result);
}

CUresult sim_cuLibraryGetKernelCount(unsigned int *count, CUlibrary library) {
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_handle_kind(library) != SIM_LIBRARY_HANDLE)
        return CUDA_ERROR_INVALID_HANDLE;
    SimModule *module;
    CUresult status = any_module(library, &module);
    if (!status)
        *count = module->name_count;
    return status;
}

CUresult sim_cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int count, CUlibrary library) {
    if (!kernels || !count)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_handle_kind(library) != SIM_LIBRARY_HANDLE)
        return CUDA_ERROR_INVALID_HANDLE;
    SimModule *module;
    CUresult status = any_module(library, &module);
    for (unsigned int i = 0; !status && i < count && i < module->name_count; i++)
        status = get_kernel(library, module->names[i], &kernels[i]);
    return status;
}

CUresult sim_kernel_function(SimKernel *kernel, SimContext *context, SimFunctionHandle **result) {
    SimModule *module;
    CUresult status = load_in(kernel->library, context, &module);
    if (!status)
        status = sim_module_function(module, kernel->name, result);
    /* The settings of a kernel hold for its function in every context of the device. */
    if (!status)
        (*result)->kernel = kernel;
    return status;
}

CUresult sim_cuKernelGetFunction(CUfunction *result, CUkernel kernel) {
    if (!result)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_handle_kind(kernel) != SIM_KERNEL_HANDLE)
        return CUDA_ERROR_INVALID_HANDLE;
    SimContext *context = sim_current();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    return sim_kernel_function(kernel, context, result);
}

CUresult sim_cuKernelGetLibrary(CUlibrary *result, CUkernel kernel) {
    if (!result)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_handle_kind(kernel) != SIM_KERNEL_HANDLE)
        return CUDA_ERROR_INVALID_HANDLE;
    *result = kernel->library;
    return CUDA_SUCCESS;
}

/* ---- global variables ------------------------------------------------------------------------- */

CUresult sim_cuLibraryGetGlobal(CUdeviceptr *address, size_t *size, CUlibrary library,
                                const char *name) {
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    SimModule *module;
    CUresult status = current_module(library, &module);
    return status ? status : sim_module_global(module, name, address, size);
}

/* Whether the declaration of a variable has the attribute .managed. */
static bool is_managed(const char *text, const char *name) {
    size_t length = strlen(name);
    while ((text = strstr(text, ".managed"))) {
        const char *end = text + strcspn(text, ";=");
        for (const char *at = text; at + length <= end; at++)
            if (strncmp(at, name, length) == 0 && strchr(" \t", at[-1]) && strchr(" \t[;=", at[length]))
                return true;
        text = end;
    }
    return false;
}

CUresult sim_cuLibraryGetManaged(CUdeviceptr *address, size_t *size, CUlibrary library,
                                 const char *name) {
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    SimModule *module;
    CUresult status = current_module(library, &module);
    if (status)
        return status;
    if (!is_managed(library->image, name))
        return CUDA_ERROR_NOT_FOUND;
    return sim_module_global(module, name, address, size);
}
