/* What kernels print, assert and allocate: device printf, assert, malloc and free. */
#include "grid.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_FIFO (1u << 20)
#define DEFAULT_HEAP (8u << 20)
#define MAX_SPECIFIER 32
#define MAX_USAGES 64
#define UNINITIALISED 0x7f
#define HEAP_MAGIC 0x6e62727468656170u /* of a live allocation */
#define HEAP_FREED 0x6e62727466726565u

/* A line of a kernel that was not written to stdout yet. */
typedef struct Output {
    SimContext *context;
    size_t size;
    struct Output *next;
    char text[];
} Output;

/* Bytes that the kernels of a context have printed, and hold on the heap. */
typedef struct Usage {
    SimContext *context;
    size_t printed, heap;
} Usage;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Output *first_output, **last_output = &first_output;
static Usage usages[MAX_USAGES];
static atomic_bool has_output;

/* Called with the lock. Contexts beyond the size of the table share its last entry. */
static Usage *usage_of(SimContext *context) {
    int i = 0;
    while (i < MAX_USAGES - 1 && usages[i].context && usages[i].context != context)
        i++;
    usages[i].context = context;
    return &usages[i];
}

/* ---- printf ----------------------------------------------------------------------------------- */

typedef struct Text {
    char *data;
    size_t size, capacity;
} Text;

static char *room(Text *text, size_t size) {
    if (text->size + size > text->capacity) {
        size_t capacity = 2 * (text->size + size) + 64;
        char *data = realloc(text->data, capacity);
        if (!data)
            return NULL;
        text->data = data;
        text->capacity = capacity;
    }
    return text->data + text->size;
}

static void add(Text *text, const char *from, size_t size) {
    char *to = room(text, size);
    if (to) {
        memcpy(to, from, size);
        text->size += size;
    }
}

/* An argument of the packed buffer of vprintf: aligned to its size (CUDA programming guide). */
static const void *next_argument(const char **arguments, size_t size) {
    uintptr_t at = ((uintptr_t)*arguments + size - 1) & ~(uintptr_t)(size - 1);
    *arguments = (const char *)at + size;
    return (const void *)at;
}

static void add_number(Text *text, const char *specifier, const void *argument, size_t size, bool is_float) {
    for (int attempt = 0, needed = 128; attempt < 2; attempt++) {
        char *to = room(text, (size_t)needed + 1);
        if (!to)
            return;
        int written;
        if (is_float)
            written = snprintf(to, (size_t)needed + 1, specifier, *(const double *)argument);
        else if (size == 8)
            written = snprintf(to, (size_t)needed + 1, specifier, *(const long long *)argument);
        else
            written = snprintf(to, (size_t)needed + 1, specifier, *(const int *)argument);
        if (written <= needed) {
            text->size += written > 0 ? (size_t)written : 0;
            return;
        }
        needed = written;
    }
}

/* Format one conversion, %[flags][width][.precision][length]type; returns the end of it. */
static const char *add_conversion(Text *text, const char *format, const char **arguments) {
    char specifier[MAX_SPECIFIER + 4];
    size_t used = 0;
    bool is_long = false;
    const char *at = format;
    specifier[used++] = *at++;
    for (; *at && strchr("-+ #0123456789.*hljztL", *at) && used < MAX_SPECIFIER; at++) {
        if (*at == '*') {
            used += (size_t)snprintf(specifier + used, MAX_SPECIFIER - used, "%d",
                                     *(const int *)next_argument(arguments, 4));
        } else if (strchr("ljzt", *at)) {
            is_long = true; /* all of them have eight bytes; written as ll below */
        } else if (*at != 'h' && *at != 'L') {
            specifier[used++] = *at;
        }
    }
    bool is_float = *at && strchr("aAeEfFgG", *at), is_pointer = *at == 's' || *at == 'p';
    if (!*at || (!is_float && !is_pointer && !strchr("diouxXc", *at)) || used > MAX_SPECIFIER) {
        add(text, format, (size_t)(at - format) + (*at != 0)); /* not a conversion: as it is */
        return at + (*at != 0);
    }
    if (is_long && !is_float && !is_pointer && *at != 'c') {
        specifier[used++] = 'l';
        specifier[used++] = 'l';
    }
    specifier[used++] = *at;
    specifier[used] = 0;
    size_t size = is_long || is_float || is_pointer ? 8 : 4;
    const void *argument = next_argument(arguments, size);
    if (*at == 's') {
        const char *string = *(const char *const *)argument;
        int needed = snprintf(NULL, 0, specifier, string ? string : "(null)");
        char *to = room(text, (size_t)needed + 1);
        if (to)
            text->size += (size_t)snprintf(to, (size_t)needed + 1, specifier, string ? string : "(null)");
    } else {
        add_number(text, specifier, argument, size, is_float);
    }
    return at + 1;
}

static int format_all(Text *text, const char *format, const char *arguments) {
    int count = 0;
    while (*format) {
        size_t plain = strcspn(format, "%");
        add(text, format, plain);
        format += plain;
        if (format[0] == '%' && format[1] == '%') {
            add(text, "%", 1);
            format += 2;
        } else if (*format) {
            format = add_conversion(text, format, &arguments);
            count++;
        }
    }
    return count;
}

/* The FIFO has a limited size: the oldest output is lost. Called with the lock. */
static void drop_oldest(Usage *usage, size_t limit) {
    Output **at = &first_output;
    while (*at && usage->printed > limit) {
        Output *output = *at;
        if (output->context != usage->context) {
            at = &output->next;
            continue;
        }
        usage->printed -= output->size;
        *at = output->next;
        if (!output->next)
            last_output = at;
        free(output);
    }
}

SIM_EXPORT int32_t sim_vprintf(SimThread *thread, const char *format, const void *arguments) {
    (void)thread;
    if (!format)
        return -1;
    SimContext *context = sim_worker()->grid->launch->context;
    Text text = {0};
    /* Strings are memory of the device, so this may fault: no lock is held. */
    int count = format_all(&text, format, arguments);
    Output *output = malloc(sizeof *output + text.size);
    if (!output) {
        free(text.data);
        return -2;
    }
    *output = (Output){context, text.size, NULL};
    if (text.size)
        memcpy(output->text, text.data, text.size);
    free(text.data);
    size_t limit = context->limits[CU_LIMIT_PRINTF_FIFO_SIZE];
    pthread_mutex_lock(&lock);
    Usage *usage = usage_of(context);
    *last_output = output;
    last_output = &output->next;
    usage->printed += output->size;
    atomic_store(&has_output, true);
    drop_oldest(usage, limit ? limit : DEFAULT_FIFO);
    pthread_mutex_unlock(&lock);
    return count;
}

void sim_flush_printing(SimContext *context) {
    /* Two threads that flush must not mix their output. */
    static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;
    if (!context || !atomic_load(&has_output))
        return;
    pthread_mutex_lock(&order);
    Output *taken = NULL, **end = &taken;
    pthread_mutex_lock(&lock);
    Output **at = &first_output;
    while (*at) {
        Output *output = *at;
        if (output->context == context) {
            *at = output->next;
            *end = output;
            end = &output->next;
        } else {
            at = &output->next;
        }
    }
    *end = NULL;
    last_output = at;
    atomic_store(&has_output, first_output != NULL);
    usage_of(context)->printed = 0;
    pthread_mutex_unlock(&lock);
    bool any = taken != NULL;
    while (taken) {
        Output *output = taken;
        taken = output->next;
        fwrite(output->text, 1, output->size, stdout);
        free(output);
    }
    if (any)
        fflush(stdout);
    pthread_mutex_unlock(&order);
}

/* ---- assert ----------------------------------------------------------------------------------- */

SIM_EXPORT void sim_assert_fail(SimThread *thread, const char *message, const char *file, uint32_t line,
                                const char *function) {
    /* As the CUDA programming guide shows it. */
    fprintf(stderr, "%s:%u: %s: block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `%s` failed.\n", file,
            line, function, thread->ctaid[0], thread->ctaid[1], thread->ctaid[2], thread->tid[0],
            thread->tid[1], thread->tid[2], message);
    sim_abandon(thread, CUDA_ERROR_ASSERT, "assertion `%s` failed at %s:%u", message, file, line);
}

/* ---- malloc and free in kernels --------------------------------------------------------------- */

typedef struct HeapHeader {
    uint64_t size, magic; /* 16 bytes: the alignment of what follows */
} HeapHeader;

SIM_EXPORT void *sim_malloc(SimThread *thread, uint64_t size) {
    (void)thread;
    SimContext *context = sim_worker()->grid->launch->context;
    size_t limit = context->limits[CU_LIMIT_MALLOC_HEAP_SIZE];
    if (!limit)
        limit = DEFAULT_HEAP;
    pthread_mutex_lock(&lock);
    Usage *usage = usage_of(context);
    bool fits = size && size <= limit && usage->heap + size <= limit;
    if (fits)
        usage->heap += size;
    pthread_mutex_unlock(&lock);
    HeapHeader *header = fits ? malloc(sizeof *header + size) : NULL;
    if (!header)
        return NULL;
    *header = (HeapHeader){size, HEAP_MAGIC};
    return memset(header + 1, UNINITIALISED, size);
}

SIM_EXPORT void sim_free(SimThread *thread, void *address) {
    if (!address)
        return;
    HeapHeader *header = (HeapHeader *)address - 1;
    if (header->magic != HEAP_MAGIC)
        sim_abandon(thread, CUDA_ERROR_LAUNCH_FAILED, "free of %p, which %s", address,
                    header->magic == HEAP_FREED ? "is free already" : "malloc did not return");
    SimContext *context = sim_worker()->grid->launch->context;
    pthread_mutex_lock(&lock);
    usage_of(context)->heap -= header->size;
    pthread_mutex_unlock(&lock);
    header->magic = HEAP_FREED;
    free(header);
}
