/* The simulated devices: GPUs of nbrt's table, all of one product.
 *
 * Settings: NBRT_SIM_GPU (a name of the table), NBRT_SIM_DEVICES (their number), NBRT_SIM_MEMORY
 * (bytes of each, with K, M or G), NBRT_SIM_PEER=0 (no peer access). CUDA_VISIBLE_DEVICES selects
 * and orders them, as the CUDA Programming Guide says. */
#include "tables.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_GPU "H100 SXM"
#define DEFAULT_DEVICES 2
#define DEFAULT_MEMORY (4L << 30)

static SimDevice devices[SIM_MAX_DEVICES];
static int device_count;
static bool is_peer_access_possible;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Compare names without case, spaces and dashes, as nbrt does. */
static bool is_same_name(const char *a, const char *b) {
    for (;;) {
        while (*a && !isalnum((unsigned char)*a))
            a++;
        while (*b && !isalnum((unsigned char)*b))
            b++;
        if (tolower((unsigned char)*a) != tolower((unsigned char)*b))
            return false;
        if (!*a)
            return true;
        a++;
        b++;
    }
}

static const SimGpu *find_gpu(const char *name) {
    for (int i = 0; i < sim_gpu_count; i++)
        if (is_same_name(sim_gpus[i].name, name))
            return &sim_gpus[i];
    return NULL;
}

static const SimGpu *gpu_of_settings(void) {
    const char *name = getenv("NBRT_SIM_GPU");
    if (!name || !*name)
        return find_gpu(DEFAULT_GPU);
    const SimGpu *gpu = find_gpu(name);
    if (gpu)
        return gpu;
    fprintf(stderr, "simulated CUDA driver: NBRT_SIM_GPU=%s is no GPU of nbrt's table; using %s\n",
            name, DEFAULT_GPU);
    return find_gpu(DEFAULT_GPU);
}

int sim_installed_count(void) {
    long count = sim_setting("NBRT_SIM_DEVICES", DEFAULT_DEVICES);
    return count < 0 ? 0 : count > SIM_MAX_DEVICES ? SIM_MAX_DEVICES : (int)count;
}

bool sim_installed_uuid(int place, CUuuid *uuid) {
    if (place < 0 || place >= sim_installed_count())
        return false;
    memset(uuid->bytes, 0, sizeof uuid->bytes);
    /* The number comes first, so that short prefixes differ, as those of real devices do. */
    uuid->bytes[0] = (char)(0xa0 + place);
    memcpy(uuid->bytes + 1, "nbrt-simulated", 14);
    return true;
}

void sim_format_uuid(const CUuuid *uuid, char text[41]) {
    char *end = text + sprintf(text, "GPU-");
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *end++ = '-';
        end += sprintf(end, "%02x", (unsigned char)uuid->bytes[i]);
    }
}

/* The place of the device that an entry of CUDA_VISIBLE_DEVICES names, or -1. */
static int place_of_entry(const char *entry, size_t size) {
    int found = -1;
    if (size > 4 && strncmp(entry, "GPU-", 4) == 0) {
        for (int place = 0; place < sim_installed_count(); place++) {
            CUuuid uuid;
            char text[41];
            sim_installed_uuid(place, &uuid);
            sim_format_uuid(&uuid, text);
            if (strncmp(text, entry, size) == 0) {
                if (found >= 0)
                    return -1; /* the prefix of several */
                found = place;
            }
        }
        return found;
    }
    for (size_t i = 0; i < size; i++)
        if (!isdigit((unsigned char)entry[i]))
            return -1;
    long place = size && size < 9 ? strtol(entry, NULL, 10) : -1;
    return place < sim_installed_count() ? (int)place : -1;
}

/* Fill `places` with the visible devices, and return their number. The list ends at the first
 * entry that names none, and a device named twice makes it invalid. */
static int visible_places(int places[SIM_MAX_DEVICES]) {
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    int count = 0;
    if (!text) {
        for (; count < sim_installed_count(); count++)
            places[count] = count;
        return count;
    }
    while (true) {
        text += strspn(text, " \t");
        size_t size = strcspn(text, ",");
        size_t used = size;
        while (used && isspace((unsigned char)text[used - 1]))
            used--;
        int place = place_of_entry(text, used);
        if (place < 0)
            return count;
        for (int i = 0; i < count; i++)
            if (places[i] == place)
                return 0;
        places[count++] = place;
        if (!text[size])
            return count;
        text += size + 1;
    }
}

static void make_devices(void) {
    const SimGpu *gpu = gpu_of_settings();
    int places[SIM_MAX_DEVICES];
    device_count = visible_places(places);
    is_peer_access_possible = sim_setting("NBRT_SIM_PEER", 1) != 0;
    for (int i = 0; i < device_count; i++) {
        SimDevice *device = &devices[i];
        device->ordinal = i;
        device->total_memory = sim_setting("NBRT_SIM_MEMORY", DEFAULT_MEMORY);
        snprintf(device->name, sizeof device->name, "NVIDIA %s", gpu->name);
        sim_installed_uuid(places[i], &device->uuid);
        sim_set_attributes(device, gpu, places[i]);
    }
}

int sim_device_count(void) {
    pthread_once(&once, make_devices);
    return device_count;
}

SimDevice *sim_device(CUdevice ordinal) {
    return ordinal >= 0 && ordinal < sim_device_count() ? &devices[ordinal] : NULL;
}

bool sim_can_access_peer(int ordinal, int peer) {
    return is_peer_access_possible && ordinal != peer && sim_device(ordinal) && sim_device(peer);
}

/* For the tests: change the memory of a device, and return the size before; 0 if there is none. */
SIM_EXPORT size_t sim_set_memory(int ordinal, size_t bytes) {
    SimDevice *device = sim_device(ordinal);
    if (!device)
        return 0;
    return __atomic_exchange_n(&device->total_memory, bytes, __ATOMIC_SEQ_CST);
}
