/* The registry of memory ranges, by address, and the freed ranges whose addresses are kept
 * inaccessible for a while, so that a use after free faults and can be named. */
#include "pools.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RETIRED 4096
#define MAX_RETIRED_BYTES ((size_t)1 << 42)

pthread_mutex_t sim_memory_lock = PTHREAD_MUTEX_INITIALIZER;

static SimRange **ranges; /* sorted by address */
static size_t range_count, range_capacity;
static SimRange *retired[MAX_RETIRED]; /* a ring: the oldest at retired_first */
static size_t retired_first, retired_count, retired_bytes;
static struct {
    const char *start, *end;
} retired_bounds[MAX_RETIRED]; /* of the pages, guard pages excluded: fast to search */
static unsigned long long last_id;

SimRange *sim_new_range(SimMemoryKind kind, int device, size_t size) {
    SimRange *range = calloc(1, sizeof *range);
    if (!range) return NULL;
    range->info = (SimAllocation){.kind = kind, .device = device, .size = size, .id = ++last_id};
    range->pages.file = -1;
    range->is_allocated = range->is_accessible = true;
    return range;
}

void sim_renew_range(SimRange *range, size_t size) {
    range->info.size = size;
    range->info.id = ++last_id;
    range->is_allocated = true;
}

/* The number of ranges that begin at or before an address. */
static size_t ranges_before(const void *address) {
    size_t low = 0, high = range_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if ((const void *)ranges[middle]->info.start <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

bool sim_add_range(SimRange *range) {
    if (range_count == range_capacity) {
        size_t capacity = range_capacity ? 2 * range_capacity : 256;
        SimRange **larger = realloc(ranges, capacity * sizeof *larger);
        if (!larger) return false;
        ranges = larger;
        range_capacity = capacity;
    }
    size_t index = ranges_before(range->info.start);
    memmove(ranges + index + 1, ranges + index, (range_count - index) * sizeof *ranges);
    ranges[index] = range;
    range_count++;
    return true;
}

static void forget_oldest(void) {
    SimRange *oldest = retired[retired_first];
    retired_bounds[retired_first].end = NULL;
    retired_first = (retired_first + 1) % MAX_RETIRED;
    retired_count--;
    retired_bytes -= oldest->pages.size;
    sim_unmap_pages(&oldest->pages);
    free(oldest);
}

void sim_remove_range(SimRange *range) {
    size_t index = ranges_before(range->info.start);
    while (index > 0 && ranges[index - 1] != range) index--;
    if (index > 0) {
        memmove(ranges + index - 1, ranges + index, (range_count - index) * sizeof *ranges);
        range_count--;
    }
    free(range->advice);
    range->advice = NULL;
    if (!range->pages.start) {
        free(range);
        return;
    }
    range->info.is_freed = true;
    range->is_allocated = range->is_accessible = false;
    sim_hide_pages(&range->pages);
    while (retired_count == MAX_RETIRED ||
           (retired_count && retired_bytes + range->pages.size > MAX_RETIRED_BYTES))
        forget_oldest();
    size_t slot = (retired_first + retired_count++) % MAX_RETIRED;
    retired[slot] = range;
    retired_bounds[slot].start = range->pages.start;
    retired_bounds[slot].end = range->pages.start + range->pages.size;
    retired_bytes += range->pages.size;
}

static bool holds(const SimRange *range, const void *address) {
    const char *start = range->info.start;
    return (const char *)address >= start && (const char *)address < start + range->info.size;
}

SimRange *sim_find_range(const void *address) {
    size_t index = ranges_before(address);
    return index && holds(ranges[index - 1], address) ? ranges[index - 1] : NULL;
}

SimRange *sim_overlapping_range(const void *start, size_t size) {
    size_t index = ranges_before((const char *)start + size - 1);
    if (!index) return NULL;
    SimRange *last = ranges[index - 1];
    return last->info.start + last->info.size > (const char *)start ? last : NULL;
}

bool sim_is_near_range(const void *address) {
    const char *byte = address;
    size_t index = ranges_before(address);
    if (index) {
        const SimRange *before = ranges[index - 1];
        if (byte == before->info.start + before->info.size) return true;
        if (before->pages.start && byte < before->pages.start + before->pages.size) return true;
    }
    return index < range_count && ranges[index]->pages.start && byte >= ranges[index]->pages.start;
}

size_t sim_range_count(void) { return range_count; }

SimRange *sim_range_at(size_t index) { return ranges[index]; }

static bool is_near(const SimRange *range, const void *address, size_t slack, size_t *distance) {
    const char *start = range->info.start, *end = start + range->info.size, *byte = address;
    *distance = byte < start ? (size_t)(start - byte) : byte < end ? 0 : (size_t)(byte - end) + 1;
    return *distance <= slack;
}

static SimRange *retired_at(size_t age) {
    return retired[(retired_first + retired_count - 1 - age) % MAX_RETIRED];
}

bool sim_is_retired(const void *address) {
    const char *byte = address;
    bool is_found = false;
    for (size_t slot = 0; slot < MAX_RETIRED; slot++)
        is_found |= byte >= retired_bounds[slot].start && byte < retired_bounds[slot].end;
    return is_found;
}

/* The range nearest to an address: live ranges before freed ones of the same distance. */
static SimRange *nearest(const void *address, size_t slack) {
    SimRange *best = NULL;
    size_t best_distance = slack, distance, index = ranges_before(address);
    for (size_t next = index ? index - 1 : 0; next < range_count && next <= index; next++) {
        if (is_near(ranges[next], address, best_distance, &distance) &&
            (!best || distance < best_distance)) {
            best = ranges[next];
            best_distance = distance;
        }
    }
    for (size_t age = 0; age < retired_count && !(best && best_distance == 0); age++) {
        if (is_near(retired_at(age), address, best_distance, &distance) &&
            (!best || distance < best_distance)) {
            best = retired_at(age);
            best_distance = distance;
        }
    }
    return best;
}

static void describe(const SimRange *range, SimAllocation *result) {
    *result = range->info;
    result->is_freed = !range->is_allocated;
    result->is_pending = range->is_allocated && !range->is_accessible && range->info.kind == SIM_POOL_MEMORY;
}

bool sim_find_allocation(const void *address, size_t slack, SimAllocation *result) {
    /* The fault handler calls this: no thread that holds the lock runs code of users, so that a
     * short wait is enough, but the handler must not depend on it. */
    int attempts = 0;
    while (pthread_mutex_trylock(&sim_memory_lock)) {
        if (++attempts == 1000) return false;
        sched_yield();
    }
    const SimRange *range = nearest(address, slack);
    if (range) describe(range, result);
    pthread_mutex_unlock(&sim_memory_lock);
    return range != NULL;
}

static SimPlace place_of(const SimRange *range) {
    switch (range->info.kind) {
    case SIM_PINNED_MEMORY:
    case SIM_REGISTERED_MEMORY: return SIM_HOST_PLACE;
    case SIM_MANAGED_MEMORY: return SIM_MANAGED_PLACE;
    default:
        if (range->pool && range->pool->props.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED)
            return SIM_MANAGED_PLACE;
        return range->info.device == SIM_HOST ? SIM_HOST_PLACE : SIM_DEVICE_PLACE;
    }
}

SimPlace sim_place(const void *start, size_t size) {
    const char *address = start, *end = address + size;
    SimRange *range = sim_find_range(address);
    if (!range) return sim_is_retired(address) || sim_is_reserved(address) ? SIM_NOWHERE : SIM_PAGEABLE;
    SimPlace place = place_of(range);
    /* Mappings of virtual memory may be adjacent. */
    for (; range; range = sim_find_range(address)) {
        if (!range->is_allocated || (range->physical && !range->readers)) return SIM_NOWHERE;
        address = range->info.start + range->info.size;
        if (address >= end) return place;
    }
    return place == SIM_HOST_PLACE && !sim_is_retired(address) ? SIM_PAGEABLE : SIM_NOWHERE;
}

bool sim_find_inaccessible(const void *start, size_t size, SimAllocation *result) {
    const char *address = start, *end = address + size;
    while (address < end) {
        SimRange *range = sim_find_range(address);
        if (!range) {
            range = sim_is_retired(address) ? nearest(address, 0) : NULL;
            if (range) describe(range, result);
            return range != NULL;
        }
        if (!range->is_accessible) {
            describe(range, result);
            return true;
        }
        address = range->info.start + range->info.size;
    }
    return false;
}

void sim_report_missing(const char *operation, const void *address, const SimAllocation *allocation) {
    sim_report("%s used %p of allocation %llu (%zu bytes at %p, device %d), which %s", operation,
               address, allocation->id, allocation->size, (void *)allocation->start,
               allocation->device,
               allocation->is_freed     ? "was freed"
               : allocation->is_pending ? "does not exist yet in stream order"
                                        : "no device may access");
}

void sim_register_memory(void *start, size_t size, SimMemoryKind kind, int device) {
    pthread_mutex_lock(&sim_memory_lock);
    SimRange *range = size ? sim_new_range(kind, device, size) : NULL;
    if (range) {
        range->info.start = start;
        if (!sim_add_range(range)) free(range);
    }
    pthread_mutex_unlock(&sim_memory_lock);
}

void sim_unregister_memory(void *start) {
    pthread_mutex_lock(&sim_memory_lock);
    SimRange *range = sim_find_range(start);
    if (range && range->info.start == start && range->info.kind == SIM_MODULE_MEMORY)
        sim_remove_range(range);
    pthread_mutex_unlock(&sim_memory_lock);
}
