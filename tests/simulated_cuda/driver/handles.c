/* The registry is a hash table with open addressing. Removed places keep their kind as
 * SIM_NO_HANDLE with a handle that is not NULL, so that probes pass over them. */
#include "handles.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct Place {
    const void *handle;
    SimHandleKind kind;
} Place;

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static Place *places;
static size_t place_count, used_count, live_count; /* used: live and removed places */

static size_t first_place(const void *handle, size_t count) {
    uint64_t bits = (uint64_t)(uintptr_t)handle * UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(bits >> 32) & (count - 1);
}

static Place *find_place(Place *table, size_t count, const void *handle) {
    size_t number = first_place(handle, count);
    while (table[number].handle != NULL && table[number].handle != handle)
        number = (number + 1) & (count - 1);
    return &table[number];
}

static void make_room(void) {
    if (places != NULL && 2 * used_count < place_count) return;
    size_t count = 1024;
    while (count < 4 * (live_count + 1)) count *= 2;
    Place *table = calloc(count, sizeof *table);
    if (table == NULL) {
        fputs("simulated CUDA driver: no memory for handles\n", stderr);
        abort();
    }
    for (size_t number = 0; number < place_count; number++)
        if (places[number].kind != SIM_NO_HANDLE)
            *find_place(table, count, places[number].handle) = places[number];
    free(places);
    places = table;
    place_count = count;
    used_count = live_count;
}

void sim_add_handle(const void *handle, SimHandleKind kind) {
    pthread_mutex_lock(&registry_lock);
    make_room();
    Place *place = find_place(places, place_count, handle);
    if (place->handle == NULL) used_count++;
    if (place->kind == SIM_NO_HANDLE) live_count++;
    *place = (Place){handle, kind};
    pthread_mutex_unlock(&registry_lock);
}

void sim_remove_handle(const void *handle) {
    pthread_mutex_lock(&registry_lock);
    if (places != NULL) {
        Place *place = find_place(places, place_count, handle);
        if (place->kind != SIM_NO_HANDLE) live_count--;
        place->kind = SIM_NO_HANDLE;
    }
    pthread_mutex_unlock(&registry_lock);
}

SimHandleKind sim_handle_kind(const void *handle) {
    if (handle == NULL) return SIM_NO_HANDLE;
    pthread_mutex_lock(&registry_lock);
    SimHandleKind kind = SIM_NO_HANDLE;
    if (places != NULL) kind = find_place(places, place_count, handle)->kind;
    pthread_mutex_unlock(&registry_lock);
    return kind;
}

void sim_visit_handles(SimHandleKind kind, void (*visit)(void *handle, void *argument),
                       void *argument) {
    pthread_mutex_lock(&registry_lock);
    const void **found = malloc((live_count + 1) * sizeof *found);
    size_t count = 0;
    for (size_t number = 0; found != NULL && number < place_count; number++)
        if (places[number].kind == kind) found[count++] = places[number].handle;
    pthread_mutex_unlock(&registry_lock);
    for (size_t number = 0; number < count; number++) visit((void *)found[number], argument);
    free(found);
}
