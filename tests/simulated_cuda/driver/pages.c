/* Pages of simulated memory: files in memory back them, so that one page can be mapped twice and in
 * other processes. Offsets of a file are never used twice; freed parts of it become holes. */
#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FILE_BYTES ((off_t)1 << 46)
#define CANARY 0xCA
#define FILE_PREFIX "nbrt-simulated-memory-"

typedef struct Store {
    int file;
    off_t next;
} Store;

static Store stores[SIM_MAX_DEVICES + 1]; /* the last one: host memory */
static size_t used[SIM_MAX_DEVICES];

static size_t page_bytes(void) {
    static size_t bytes;
    if (!bytes) bytes = (size_t)sysconf(_SC_PAGESIZE);
    return bytes;
}

bool sim_take_memory(int device, size_t bytes) {
    if (device < 0) return true;
    size_t total = sim_device(device)->total_memory; /* a test may have made it smaller */
    if (bytes > total || used[device] > total - bytes) return false;
    used[device] += bytes;
    return true;
}

void sim_return_memory(int device, size_t bytes) {
    if (device >= 0) used[device] -= bytes;
}

size_t sim_used_memory(int device) { return device < 0 ? 0 : used[device]; }

int sim_new_memory_file(int device, size_t size) {
    char name[64];
    snprintf(name, sizeof name, FILE_PREFIX "%d", device);
    /* glibc 2.17 has no memfd_create. */
    int file = (int)syscall(__NR_memfd_create, name, 1u /* MFD_CLOEXEC */);
    if (file < 0) return -1;
    if (ftruncate(file, (off_t)size)) {
        close(file);
        return -1;
    }
    return file;
}

int sim_memory_file_device(int file) {
    char link[64], target[128];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, target, sizeof target - 1);
    if (length < 0) return -2;
    target[length] = 0;
    const char *found = strstr(target, FILE_PREFIX);
    if (!found) return -2;
    return atoi(found + strlen(FILE_PREFIX));
}

static Store *store_of(int device) {
    Store *store = &stores[device < 0 ? SIM_MAX_DEVICES : device];
    if (store->next == 0) {
        store->file = sim_new_memory_file(device, FILE_BYTES);
        if (store->file < 0) return NULL;
        store->next = (off_t)page_bytes();
    }
    return store;
}

bool sim_reserve_addresses(size_t size, size_t alignment, SimPages *result) {
    size_t guard = page_bytes(), spare = alignment > guard ? alignment : 0;
    size_t whole = size + 2 * guard + spare;
    if (whole < size) return false;
    char *start = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return false;
    uintptr_t first = (uintptr_t)start + guard;
    if (spare) first = (first + alignment - 1) / alignment * alignment;
    char *kept = (char *)first - guard;
    if (kept > start) munmap(start, (size_t)(kept - start));
    char *end = kept + size + 2 * guard;
    if (end < start + whole) munmap(end, (size_t)(start + whole - end));
    *result = (SimPages){.start = (char *)first, .size = size, .file = -1};
    return true;
}

bool sim_new_pages(int device, size_t size, int file, off_t offset, SimPages *result) {
    size = sim_round_up(size, page_bytes());
    if (!sim_reserve_addresses(size, 0, result)) return false;
    result->file = file;
    result->offset = offset;
    if (file >= 0) return true;
    Store *store = store_of(device);
    if (!store) {
        sim_unmap_pages(result);
        return false;
    }
    result->file = store->file;
    result->offset = store->next;
    store->next += (off_t)size;
    return true;
}

bool sim_show_pages(const SimPages *pages, int protection) {
    return mmap(pages->start, pages->size, protection, MAP_SHARED | MAP_FIXED, pages->file,
                pages->offset) != MAP_FAILED;
}

void sim_hide_pages(const SimPages *pages) {
    /* Anonymous pages join the guard pages, so that they count as one mapping of the process. */
    mmap(pages->start, pages->size, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

void sim_drop_pages(const SimPages *pages) {
    fallocate(pages->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, pages->offset,
              (off_t)pages->size);
}

void sim_unmap_pages(const SimPages *pages) {
    munmap(pages->start - page_bytes(), pages->size + 2 * page_bytes());
}

unsigned char sim_fill_value(void) {
    static _Atomic int value = -1;
    if (value < 0) value = (int)(sim_setting("NBRT_SIM_FILL", 0xCB) & 0xFF);
    return (unsigned char)value;
}

void sim_fill_bytes(char *start, size_t size) {
    static size_t limit;
    if (!limit) limit = (size_t)sim_setting("NBRT_SIM_FILL_BYTES", 4 << 20);
    /* Only the beginning of large memory: filling all of it would need as much real memory. */
    if (sim_fill_value()) memset(start, sim_fill_value(), size < limit ? size : limit);
}

void sim_fill(const SimRange *range) {
    const SimAllocation *info = &range->info;
    char *end = info->start + info->size, *pages_end = range->pages.start + range->pages.size;
    memset(range->pages.start, CANARY, (size_t)(info->start - range->pages.start));
    memset(end, CANARY, (size_t)(pages_end - end));
    sim_fill_bytes(info->start, info->size);
}

static void check_canary(const SimAllocation *info, const char *start, const char *end) {
    for (const char *byte = start; byte < end; byte++) {
        if ((unsigned char)*byte == CANARY) continue;
        bool is_before = byte < info->start;
        long long distance = is_before ? info->start - byte : byte - (info->start + info->size);
        sim_report("a write outside allocation %llu (%zu bytes at %p, device %d): %lld bytes %s it",
                   info->id, info->size, (void *)info->start, info->device, distance,
                   is_before ? "before" : "after the end of");
        return;
    }
}

void sim_check_canaries(const SimRange *range) {
    const SimAllocation *info = &range->info;
    check_canary(info, range->pages.start, info->start);
    check_canary(info, info->start + info->size, range->pages.start + range->pages.size);
}
