/* Images of modules (PTX text only), the options of the JIT compiler, and the translator. */
#include "modules.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_MESSAGE 8192
#define MAX_NAMES (1u << 20)

static SimTranslator translator;
static atomic_bool has_translator;

SIM_EXPORT void sim_set_translator(const SimTranslator *given) {
    translator = *given;
    atomic_store(&has_translator, true);
}

/* Objects of C++ and of other libraries call the driver after the interpreter has ended. */
const SimTranslator *sim_translator(void) {
    if (!atomic_load(&has_translator))
        return NULL;
    int (*is_initialised)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "Py_IsInitialized");
    return is_initialised && !is_initialised() ? NULL : &translator;
}

/* ---- options of the JIT compiler -------------------------------------------------------------- */

/* Values smaller than a pointer are passed in the pointer itself (cuda.h, CUjit_option). */
CUresult sim_jit_options(unsigned int count, const CUjit_option *options, void **values,
                         SimJitOptions *result) {
    *result = (SimJitOptions){0};
    if (count && (!options || !values))
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < count; i++) {
        switch (options[i]) {
        case CU_JIT_WALL_TIME:
            /* An output: the value is replaced by a float. */
            result->wall_time = (float *)&values[i];
            break;
        case CU_JIT_INFO_LOG_BUFFER:
            result->info = values[i];
            break;
        case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
            result->info_size = (unsigned int)(uintptr_t)values[i];
            result->info_written = &values[i];
            break;
        case CU_JIT_ERROR_LOG_BUFFER:
            result->error = values[i];
            break;
        case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
            result->error_size = (unsigned int)(uintptr_t)values[i];
            result->error_written = &values[i];
            break;
        default:
            if (options[i] < 0 || options[i] >= CU_JIT_NUM_OPTIONS)
                return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}

void sim_jit_message(char *log, size_t size, void **written, const char *message) {
    size_t taken = 0;
    if (log && size) {
        taken = strlen(message);
        if (taken > size - 1)
            taken = size - 1;
        memcpy(log, message, taken);
        log[taken] = 0;
    }
    if (written)
        *written = (void *)(uintptr_t)taken;
}

/* ---- images ----------------------------------------------------------------------------------- */

/* The first four bytes of binary code of a GPU, which cannot run here. */
static bool is_binary(const unsigned char *image) {
    static const unsigned char starts[][4] = {
        {0x7f, 'E', 'L', 'F'},    /* cubin */
        {0x50, 0xed, 0x55, 0xba}, /* fat binary */
        {0xb1, 0x43, 0x62, 0x46}, /* wrapper of a fat binary */
    };
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        int same = 0;
        while (same < 4 && image[same] == starts[i][same]) /* a short text ends with 0 */
            same++;
        if (same == 4)
            return true;
    }
    return false;
}

CUresult sim_image_text(const void *image, const char **text, size_t *length) {
    if (!image)
        return CUDA_ERROR_INVALID_VALUE;
    if (is_binary(image))
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    *text = image;
    *length = strlen(image);
    for (const char *at = image; at < *text + *length; at++) {
        if (strncmp(at, ".version", 8) == 0)
            return CUDA_SUCCESS;
        if (*at == '/' && at[1] == '/') {
            while (at + 1 < *text + *length && *at != '\n')
                at++;
        } else if (*at == '/' && at[1] == '*') {
            const char *end = strstr(at, "*/");
            if (!end)
                break;
            at = end + 1;
        } else if (!strchr(" \t\r\n", *at)) {
            break;
        }
    }
    return CUDA_ERROR_INVALID_IMAGE;
}

CUresult sim_read_file(const char *path, char **data, size_t *size) {
    if (!path)
        return CUDA_ERROR_INVALID_VALUE;
    FILE *file = fopen(path, "rb");
    if (!file)
        return CUDA_ERROR_FILE_NOT_FOUND;
    CUresult status = CUDA_ERROR_FILE_NOT_FOUND;
    long length;
    if (fseek(file, 0, SEEK_END) == 0 && (length = ftell(file)) >= 0 && fseek(file, 0, SEEK_SET) == 0) {
        char *read = malloc((size_t)length + 1);
        if (!read) {
            status = CUDA_ERROR_OUT_OF_MEMORY;
        } else if (fread(read, 1, (size_t)length, file) == (size_t)length) {
            read[length] = 0;
            *data = read;
            *size = (size_t)length;
            status = CUDA_SUCCESS;
        } else {
            free(read);
        }
    }
    fclose(file);
    return status;
}

/* ---- translation ------------------------------------------------------------------------------ */

static int target_of(const char *text, size_t length) {
    const char *found = memmem(text, length, ".target", 7);
    const char *number = found ? strstr(found, "sm_") : NULL;
    return number ? atoi(number + 3) : 0;
}

/* The size of a declaration such as ".align 4 .b32 name[2][5] = ...;" */
static long declared_bytes(const char *text, const char *end) {
    long size = 0;
    for (const char *at = text; at < end; at++) {
        if (*at == '.' && at[1] && strchr("bufs", at[1]) && at[2] >= '1' && at[2] <= '9')
            size = atol(at + 2) / 8; /* the type: .b8, .u32, .f64, ... */
        else if (*at == '[')
            size *= atol(at + 1);
    }
    return size;
}

/* Bytes of the variables in constant memory: declared by .const and a space, unlike ld.const.u32. */
static int const_bytes_of(const char *text) {
    long total = 0;
    while ((text = strstr(text, ".const"))) {
        text += strlen(".const");
        if (*text == ' ' || *text == '\t')
            total += declared_bytes(text, text + strcspn(text, ";="));
    }
    return (int)total;
}

/* Split the names of the kernels, which the translator separates by newlines. */
static CUresult read_names(SimModule *module) {
    char *names = malloc(MAX_NAMES);
    if (!names)
        return CUDA_ERROR_OUT_OF_MEMORY;
    names[0] = 0;
    CUresult status = translator.kernels(module->translated, names, MAX_NAMES);
    unsigned int count = 0;
    for (const char *at = names; !status && *at; at += strcspn(at, "\n"), at += *at == '\n')
        count++;
    module->names = calloc(count + 1, sizeof *module->names);
    if (!module->names)
        status = CUDA_ERROR_OUT_OF_MEMORY;
    char *rest = names;
    for (unsigned int i = 0; !status && i < count; i++)
        if (!(module->names[module->name_count++] = strdup(strsep(&rest, "\n"))))
            status = CUDA_ERROR_OUT_OF_MEMORY;
    free(names);
    return status;
}

CUresult sim_translate(const char *text, size_t length, int target, const SimJitOptions *options,
                       SimModule **result) {
    if (!sim_translator())
        return CUDA_ERROR_JIT_COMPILER_NOT_FOUND;
    SimModule *module = calloc(1, sizeof *module);
    char *message = calloc(1, MAX_MESSAGE);
    if (!module || !message) {
        free(module);
        free(message);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    CUresult status;
    int wanted = target_of(text, length);
    if (wanted > target) { /* a GPU runs the PTX of older ones only */
        snprintf(message, MAX_MESSAGE, "the PTX is for sm_%d, and the device is sm_%d", wanted, target);
        status = CUDA_ERROR_NO_BINARY_FOR_GPU;
    } else {
        status = translator.load(text, length, target, &module->translated, message, MAX_MESSAGE);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    sim_jit_message(options->error, options->error_size, options->error_written, status ? message : "");
    sim_jit_message(options->info, options->info_size, options->info_written, status ? "" : message);
    if (options->wall_time)
        *options->wall_time = (float)((double)(end.tv_sec - start.tv_sec) * 1e3 +
                                      (double)(end.tv_nsec - start.tv_nsec) / 1e6);
    if (status && sim_setting("NBRT_SIM_VERBOSE", 0))
        fprintf(stderr, "simulated CUDA driver: cannot translate PTX: %s\n", message);
    free(message);
    if (status) {
        free(module);
        return status;
    }
    atomic_store(&module->references, 1);
    module->target = target;
    module->ptx_version = wanted;
    module->const_bytes = const_bytes_of(text);
    status = read_names(module);
    if (status)
        sim_free_module(module);
    else
        *result = module;
    return status;
}

void sim_free_module(SimModule *module) {
    for (unsigned int i = 0; i < module->global_count; i++)
        sim_unregister_memory(module->globals[i]);
    free(module->globals);
    if (sim_translator())
        translator.unload(module->translated);
    for (SimFunctionHandle *function = module->functions, *next; function; function = next) {
        next = function->next;
        free(function->info);
        free(function);
    }
    for (unsigned int i = 0; i < module->name_count; i++)
        free(module->names[i]);
    free(module->names);
    free(module);
}
