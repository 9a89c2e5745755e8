/* The tables that ../tables.py generates. */
#ifndef SIM_TABLES_H
#define SIM_TABLES_H
#include "sim.h"

/* A product of nbrt's table of GPUs; sizes in bytes, for one multiprocessor. */
typedef struct SimGpu {
    const char *name;
    int major, minor, multiprocessors;
    int warps, blocks, shared, shared_per_block, shared_reserved;
} SimGpu;
extern const SimGpu sim_gpus[];
extern const int sim_gpu_count;

typedef struct SimError {
    int code;
    const char *name, *text;
} SimError;
extern const SimError sim_errors[]; /* sorted by code */
extern const int sim_error_count;

/* An interface of a function whose interface changed: CUDA `version` introduced it. The versions
 * of a name follow each other, the oldest first. */
typedef struct SimVersion {
    const char *name;
    int version;
    void *address; /* NULL: not provided */
} SimVersion;
extern const SimVersion sim_versions[];
extern const int sim_version_count;

/* The variants of functions that use the per-thread stream instead of stream 0. */
extern const SimFunction sim_per_thread[]; /* sorted by name, without the suffix */
extern const int sim_per_thread_count;

/* ---- devices.c: the devices of the machine, whatever CUDA_VISIBLE_DEVICES says ------------- */

#define SIM_FIRST_BUS 0x1b /* PCI bus of the first device */

SIM_EXPORT int sim_installed_count(void);
SIM_EXPORT bool sim_installed_uuid(int place, CUuuid *uuid); /* false: there is no such device */
SIM_EXPORT void sim_format_uuid(const CUuuid *uuid, char text[41]);
/* Whether kernels of a device may access the memory of another. */
bool sim_can_access_peer(int ordinal, int peer);
/* attributes.c */
void sim_set_attributes(SimDevice *device, const SimGpu *gpu, int place);
#endif
