/* The linker: joins PTX modules to one, which is what it returns as the linked image.
 *
 * The translator takes modules behind each other and resolves .extern by name. Here, symbols of one
 * module that have the name of a symbol of another one are renamed, and references that nothing
 * resolves are errors. */
#include "modules.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SUFFIX 24

typedef struct Symbol {
    char *name;
    size_t input;
    bool is_private, is_external; /* neither .visible nor .weak nor .common; .extern */
    bool is_function;
    bool clashes; /* private, and another input has a symbol of this name */
} Symbol;

typedef struct CUlinkState_st {
    SimJitOptions options;
    char **inputs; /* PTX */
    size_t input_count;
    Symbol *symbols;
    size_t symbol_count;
    bool has_device_runtime; /* libcudadevrt was added */
    char *linked;
} SimLink;

/* Functions that every module can call, and those of libcudadevrt. */
static const char *const built_in[] = {"vprintf", "malloc", "free", "__assertfail", NULL};
static const char *const device_runtime[] = {"cudaCGGetIntrinsicHandle", "cudaCGSynchronize", NULL};

static void fail(SimLink *link, const char *format, const char *name) {
    char message[512];
    snprintf(message, sizeof message, format, name);
    sim_jit_message(link->options.error, link->options.error_size, link->options.error_written, message);
}

/* ---- symbols of a module ---------------------------------------------------------------------- */

static bool is_word_start(char c) { return isalpha((unsigned char)c) || (c && strchr("_$%", c)); }
static bool is_word(char c) { return isalnum((unsigned char)c) || (c && strchr("_$", c)); }

/* The end of the token at `at`: of a word, directive, number, string, comment or space, or of one
 * character. */
static const char *token_end(const char *at) {
    if (at[0] == '/' && at[1] == '/')
        return at + strcspn(at, "\n");
    if (at[0] == '/' && at[1] == '*') {
        const char *end = strstr(at + 2, "*/");
        return end ? end + 2 : at + strlen(at);
    }
    if (*at == '"') {
        for (at++; *at && *at != '"'; at++)
            if (*at == '\\' && at[1])
                at++;
        return *at ? at + 1 : at;
    }
    if (isspace((unsigned char)*at))
        return at + strspn(at, " \t\r\n\f\v");
    if (is_word_start(*at) || *at == '.' || isdigit((unsigned char)*at))
        do
            at++;
        while (is_word(*at));
    else
        at++;
    return at;
}

static bool is_token(const char *at, const char *end, const char *text) {
    return (size_t)(end - at) == strlen(text) && strncmp(at, text, (size_t)(end - at)) == 0;
}

static bool add_symbol(SimLink *link, const char *at, const char *end, Symbol symbol) {
    Symbol *grown = realloc(link->symbols, (link->symbol_count + 1) * sizeof *grown);
    if (!grown)
        return false;
    link->symbols = grown;
    symbol.name = strndup(at, (size_t)(end - at));
    if (!symbol.name)
        return false;
    link->symbols[link->symbol_count++] = symbol;
    return true;
}

/* Collect what an input declares: the first word behind .func, .entry or a state space, outside of
 * braces and parentheses (parameters, return values, attributes). */
static bool collect(SimLink *link, size_t input) {
    static const char *const spaces[] = {".func", ".entry", ".global", ".const", ".shared", NULL};
    Symbol next = {.input = input, .is_private = true};
    bool is_declaration = false;
    int depth = 0;
    for (const char *at = link->inputs[input], *end; *at; at = end) {
        end = token_end(at);
        if (strchr("{(", *at))
            depth++;
        else if (strchr("})", *at) && --depth == 0 && *at == '}')
            next = (Symbol){.input = input, .is_private = true};
        if (depth)
            continue;
        for (int i = 0; spaces[i]; i++)
            if (is_token(at, end, spaces[i])) {
                is_declaration = true;
                next.is_function = i < 2;
            }
        if (is_token(at, end, ".extern"))
            next.is_external = true;
        if (is_token(at, end, ".visible") || is_token(at, end, ".weak") || is_token(at, end, ".common") ||
            is_token(at, end, ".extern"))
            next.is_private = false;
        if (*at == ';')
            next = (Symbol){.input = input, .is_private = true};
        if (is_declaration && is_word_start(*at)) {
            if (!add_symbol(link, at, end, next))
                return false;
            is_declaration = false;
        }
    }
    return true;
}

static bool is_defined(const SimLink *link, const char *name) {
    for (const char *const *known = built_in; *known; known++)
        if (strcmp(*known, name) == 0)
            return true;
    for (const char *const *known = device_runtime; link->has_device_runtime && *known; known++)
        if (strcmp(*known, name) == 0)
            return true;
    for (size_t i = 0; i < link->symbol_count; i++)
        if (!link->symbols[i].is_external && strcmp(link->symbols[i].name, name) == 0)
            return true;
    return false;
}

static CUresult resolve(SimLink *link) {
    for (size_t i = 0; i < link->symbol_count; i++) {
        Symbol *symbol = &link->symbols[i];
        if (symbol->is_external && symbol->is_function && !is_defined(link, symbol->name)) {
            fail(link, "error   : Undefined reference to '%s'", symbol->name);
            return CUDA_ERROR_NO_BINARY_FOR_GPU;
        }
        for (size_t k = 0; symbol->is_private && k < link->symbol_count; k++)
            if (link->symbols[k].input != symbol->input && strcmp(link->symbols[k].name, symbol->name) == 0)
                symbol->clashes = true;
    }
    return CUDA_SUCCESS;
}

/* ---- the linked text -------------------------------------------------------------------------- */

static bool is_renamed(const SimLink *link, size_t input, const char *at, const char *end) {
    for (size_t i = 0; i < link->symbol_count; i++) {
        const Symbol *symbol = &link->symbols[i];
        if (symbol->clashes && symbol->input == input && is_token(at, end, symbol->name))
            return true;
    }
    return false;
}

/* Write one input, with a suffix behind the names that another input has too. Members of a call
 * such as foo.bar do not exist in PTX, so a word is a name wherever it stands. */
static void write_input(const SimLink *link, size_t input, FILE *out) {
    for (const char *at = link->inputs[input], *end; *at; at = end) {
        end = token_end(at);
        fwrite(at, 1, (size_t)(end - at), out);
        if (is_word_start(*at) && is_renamed(link, input, at, end))
            fprintf(out, "$module%zu", input);
    }
    fputc('\n', out);
}

static CUresult write_all(SimLink *link) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < link->input_count; i++)
        write_input(link, i, out);
    bool failed = ferror(out);
    if (fclose(out) || failed) {
        free(text);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    free(link->linked);
    link->linked = text;
    return CUDA_SUCCESS;
}

/* ---- functions of the API --------------------------------------------------------------------- */

CUresult sim_cuLinkCreate(unsigned int count, CUjit_option *options, void **values, CUlinkState *result) {
    if (!result)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_current())
        return CUDA_ERROR_INVALID_CONTEXT;
    SimLink *link = calloc(1, sizeof *link);
    if (!link)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult status = sim_jit_options(count, options, values, &link->options);
    if (status) {
        free(link);
        return status;
    }
    sim_add_handle(link, SIM_LINK_HANDLE);
    *result = link;
    return CUDA_SUCCESS;
}

static CUresult add_ptx(SimLink *link, const void *data, size_t size, const char *name) {
    char **grown = realloc(link->inputs, (link->input_count + 1) * sizeof *grown);
    if (!grown)
        return CUDA_ERROR_OUT_OF_MEMORY;
    link->inputs = grown;
    char *copy = strndup(data, size);
    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const char *text;
    size_t length;
    CUresult status = sim_image_text(copy, &text, &length);
    if (status) {
        fail(link, "error   : '%s' is not PTX", name ? name : "<unnamed>");
        free(copy);
        return status == CUDA_ERROR_INVALID_IMAGE ? CUDA_ERROR_INVALID_PTX : status;
    }
    link->inputs[link->input_count++] = copy;
    return collect(link, link->input_count - 1) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult add(SimLink *link, CUjitInputType type, const void *data, size_t size, const char *name) {
    if (link->linked)
        return CUDA_ERROR_INVALID_VALUE;
    switch (type) {
    case CU_JIT_INPUT_PTX:
        return add_ptx(link, data, size, name);
    case CU_JIT_INPUT_LIBRARY:
        if (name && strstr(name, "cudadevrt")) {
            link->has_device_runtime = true;
            return CUDA_SUCCESS;
        }
        /* fall through */
    case CU_JIT_INPUT_CUBIN:
    case CU_JIT_INPUT_FATBINARY:
    case CU_JIT_INPUT_OBJECT:
        fail(link, "error   : '%s' is machine code of a GPU", name ? name : "<unnamed>");
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult sim_cuLinkAddData(CUlinkState link, CUjitInputType type, void *data, size_t size,
                           const char *name, unsigned int count, CUjit_option *options, void **values) {
    if (sim_handle_kind(link) != SIM_LINK_HANDLE)
        return CUDA_ERROR_INVALID_HANDLE;
    SimJitOptions ignored;
    CUresult status = sim_jit_options(count, options, values, &ignored);
    if (!status && (!data || !size))
        status = CUDA_ERROR_INVALID_VALUE;
    return status ? status : add(link, type, data, size, name);
}

CUresult sim_cuLinkAddFile(CUlinkState link, CUjitInputType type, const char *path, unsigned int count,
                           CUjit_option *options, void **values) {
    if (sim_handle_kind(link) != SIM_LINK_HANDLE)
        return CUDA_ERROR_INVALID_HANDLE;
    SimJitOptions ignored;
    CUresult status = sim_jit_options(count, options, values, &ignored);
    char *data;
    size_t size;
    if (!status)
        status = sim_read_file(path, &data, &size);
    if (status)
        return status;
    status = add(link, type, data, size, path);
    free(data);
    return status;
}

CUresult sim_cuLinkComplete(CUlinkState link, void **image, size_t *size) {
    if (sim_handle_kind(link) != SIM_LINK_HANDLE)
        return CUDA_ERROR_INVALID_HANDLE;
    SimContext *context = sim_current();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!image || !link->input_count)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = resolve(link);
    if (!status)
        status = write_all(link);
    SimModule *module;
    if (!status) /* errors of the PTX appear here, not when the image is loaded */
        status = sim_translate(link->linked, strlen(link->linked), sim_target(context->device),
                               &link->options, &module);
    if (status)
        return status;
    sim_free_module(module);
    *image = link->linked;
    if (size)
        *size = strlen(link->linked) + 1;
    return CUDA_SUCCESS;
}

CUresult sim_cuLinkDestroy(CUlinkState link) {
    if (sim_handle_kind(link) != SIM_LINK_HANDLE)
        return CUDA_ERROR_INVALID_HANDLE;
    sim_remove_handle(link);
    for (size_t i = 0; i < link->symbol_count; i++)
        free(link->symbols[i].name);
    for (size_t i = 0; i < link->input_count; i++)
        free(link->inputs[i]);
    free(link->symbols);
    free(link->inputs);
    free(link->linked);
    free(link);
    return CUDA_SUCCESS;
}
