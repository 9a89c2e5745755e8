/* A world: a file of shared memory in which the ranks of a communicator meet.
 *
 * It is the same for threads and processes. Nobody holds a lock while others wait: a rank writes
 * its own places, then announces the change; waiting is a futex with a look at the other processes
 * now and then, so that a process that died does not leave the others waiting. The file has no name
 * from the time when all ranks have joined, and needs no cleaning up. */
#include "nccl.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#define LOOK_NANOSECONDS 200000000L /* between two looks at the other processes */
#define DEFAULT_TIMEOUT 300L        /* seconds */

/* ---- layout: the world, staging memory of each rank, mailboxes of each pair -------------------------- */

static size_t staging_offset(void) { return (sizeof(SimWorld) + 4095) / 4096 * 4096; }

static size_t mail_offset(int size) { return staging_offset() + (size_t)size * SIM_CHUNK_BYTES; }

static size_t world_bytes(int size) {
    return mail_offset(size) + (size_t)size * (size_t)size * sizeof(SimMailbox);
}

char *sim_staging(ncclComm_t comm, int rank) {
    return (char *)comm->world + staging_offset() + (size_t)rank * SIM_CHUNK_BYTES;
}

SimMailbox *sim_mailbox(ncclComm_t comm, int sender, int receiver) {
    SimMailbox *first = (SimMailbox *)((char *)comm->world + mail_offset(comm->size));
    return first + (size_t)sender * (size_t)comm->size + receiver;
}

/* ---- joining -------------------------------------------------------------------------------------- */

static void path_of(ncclComm_t comm, char *path, size_t size) {
    snprintf(path, size, "/dev/shm/%s", comm->name);
}

/* Open the file and lock it; again if the last rank removed its name in between. */
static int open_world(const char *path) {
    for (;;) {
        int file = open(path, O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
        struct stat status;
        if (file < 0) {
            return -1;
        }
        if (flock(file, LOCK_EX) == 0 && fstat(file, &status) == 0 && status.st_nlink > 0) {
            return file;
        }
        close(file);
    }
}

/* Let the ranks that have joined fail as well. */
static ncclResult_t report_conflict(ncclComm_t comm, const char *what) {
    comm->world->has_conflict = true;
    sim_notify(comm);
    return sim_error(ncclInvalidUsage, "rank %d of %d: %s", comm->rank, comm->size, what);
}

static ncclResult_t map_world(ncclComm_t comm) {
    struct stat status;
    size_t bytes = world_bytes(comm->size);
    bool fails = fstat(comm->world_file, &status) != 0;
    if (!fails && status.st_size == 0) {
        fails = ftruncate(comm->world_file, (off_t)bytes) != 0;
        status.st_size = (off_t)bytes;
    }
    comm->world_bytes = fails ? 0 : (size_t)status.st_size;
    void *memory = MAP_FAILED;
    if (!fails) {
        memory = mmap(NULL, comm->world_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, comm->world_file, 0);
    }
    if (memory == MAP_FAILED) {
        return sim_error(ncclSystemError, "no shared memory: %s", strerror(errno));
    }
    comm->world = memory;
    return comm->world_bytes == bytes ? ncclSuccess : report_conflict(comm, "others expect another number");
}

static ncclResult_t take_place(ncclComm_t comm, const char *path) {
    SimRank *mine = &comm->world->ranks[comm->rank];
    if (mine->process != 0) {
        return report_conflict(comm, "another one has this number");
    }
    mine->device = comm->device_uuid;
    mine->process = getpid();
    comm->world->attached++;
    if (++comm->world->joined == comm->size) {
        unlink(path);
    }
    return ncclSuccess;
}

static void unmap_world(ncclComm_t comm) {
    if (comm->world != NULL) {
        munmap(comm->world, comm->world_bytes);
    }
    close(comm->world_file); /* unlocks it */
    comm->world = NULL;
}

ncclResult_t sim_join(ncclComm_t comm) {
    char path[SIM_WORLD_NAME + 16];
    path_of(comm, path, sizeof path);
    comm->world_file = open_world(path);
    if (comm->world_file < 0) {
        return sim_error(ncclSystemError, "no shared memory at %s: %s", path, strerror(errno));
    }
    ncclResult_t result = map_world(comm);
    if (result == ncclSuccess) {
        result = take_place(comm, path);
    }
    if (result != ncclSuccess) {
        unmap_world(comm);
        return result;
    }
    flock(comm->world_file, LOCK_UN);
    sim_notify(comm);
    return ncclSuccess;
}

void sim_leave(ncclComm_t comm, SimRankState state) {
    if (comm->world == NULL) {
        return;
    }
    int active = SIM_ACTIVE;
    atomic_compare_exchange_strong(&comm->world->ranks[comm->rank].state, &active, (int)state);
    sim_notify(comm);
    flock(comm->world_file, LOCK_EX);
    if (--comm->world->attached == 0 && comm->world->joined < comm->size) {
        char path[SIM_WORLD_NAME + 16];
        path_of(comm, path, sizeof path);
        unlink(path);
    }
    unmap_world(comm);
}

static uint64_t missing(ncclComm_t comm, void *argument) {
    (void)argument;
    uint64_t mask = 0;
    for (int rank = 0; rank < comm->size; rank++) {
        mask |= (uint64_t)(comm->world->ranks[rank].process == 0) << rank;
    }
    return mask;
}

ncclResult_t sim_wait_for_ranks(ncclComm_t comm) {
    ncclResult_t result = sim_wait(comm, missing, NULL);
    for (int first = 0; result == ncclSuccess && first < comm->size; first++) {
        for (int second = first + 1; second < comm->size; second++) {
            SimRank *ranks = comm->world->ranks;
            if (memcmp(&ranks[first].device, &ranks[second].device, sizeof(CUuuid)) == 0) {
                return sim_error(ncclInvalidUsage, "ranks %d and %d have the same device", first, second);
            }
        }
    }
    return result;
}

/* ---- waiting -------------------------------------------------------------------------------------- */

void sim_notify(ncclComm_t comm) {
    comm->world->changes++;
    syscall(SYS_futex, &comm->world->changes, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec;
}

static bool has_died(int process) {
    if (process == 0 || process == getpid()) {
        return false;
    }
    int file = (int)syscall(SYS_pidfd_open, process, 0);
    if (file < 0) {
        return errno == ESRCH;
    }
    struct pollfd request = {.fd = file, .events = POLLIN};
    bool is_readable = poll(&request, 1, 0) == 1; /* also when nobody has waited for it yet */
    close(file);
    return is_readable;
}

static void look_for_dead_processes(ncclComm_t comm) {
    for (int rank = 0; rank < comm->size; rank++) {
        SimRank *other = &comm->world->ranks[rank];
        int active = SIM_ACTIVE;
        if (other->state == SIM_ACTIVE && has_died(other->process)) {
            atomic_compare_exchange_strong(&other->state, &active, SIM_DIED);
        }
    }
}

/* Return the first rank of a mask that will not come any more, or -1. */
static int lost_rank(ncclComm_t comm, uint64_t mask) {
    for (int rank = 0; rank < comm->size; rank++) {
        if (mask >> rank & 1 && comm->world->ranks[rank].state != SIM_ACTIVE) {
            return rank;
        }
    }
    return -1;
}

static ncclResult_t report_lost(ncclComm_t comm, int rank) {
    static const char *const what[] = {"", "destroyed its communicator", "aborted", "failed", "died"};
    int state = comm->world->ranks[rank].state;
    return sim_fail(comm, ncclRemoteError, "rank %d waits for rank %d, which %s", comm->rank, rank,
                    what[state]);
}

static int64_t timeout(void) {
    const char *text = getenv("NBRT_SIM_NCCL_TIMEOUT");
    return text != NULL ? atol(text) : DEFAULT_TIMEOUT;
}

ncclResult_t sim_wait(ncclComm_t comm, uint64_t (*awaited)(ncclComm_t comm, void *argument), void *argument) {
    SimRank *mine = &comm->world->ranks[comm->rank];
    const struct timespec look = {.tv_nsec = LOOK_NANOSECONDS};
    int64_t end = now() + timeout();
    for (;;) {
        uint32_t seen = comm->world->changes;
        uint64_t mask = awaited(comm, argument);
        if (mask == 0) {
            return ncclSuccess;
        }
        if (comm->async_error != ncclSuccess) {
            return comm->async_error;
        }
        if (mine->state != SIM_ACTIVE) {
            return sim_fail(comm, ncclRemoteError, "the communicator of rank %d was aborted", comm->rank);
        }
        if (comm->world->has_conflict) {
            return sim_fail(comm, ncclInvalidUsage, "the ranks disagree about their numbers");
        }
        int lost = lost_rank(comm, mask);
        /* A rank may have come just before it left. */
        if (lost >= 0 && awaited(comm, argument) >> lost & 1) {
            return report_lost(comm, lost);
        }
        if (now() >= end) {
            return sim_fail(comm, ncclRemoteError, "rank %d has waited %ld s for ranks %#llx (a mask)",
                            comm->rank, (long)timeout(), (unsigned long long)mask);
        }
        if (syscall(SYS_futex, &comm->world->changes, FUTEX_WAIT, seen, &look, NULL, 0) != 0 &&
            errno == ETIMEDOUT) {
            look_for_dead_processes(comm);
        }
    }
}

/* ---- barriers --------------------------------------------------------------------------------------- */

void sim_arrive(ncclComm_t comm, SimPhase phase) {
    comm->world->ranks[comm->rank].phases[phase]++;
    sim_notify(comm);
}

static uint64_t not_arrived(ncclComm_t comm, void *argument) {
    SimPhase phase = *(SimPhase *)argument;
    uint64_t reached = comm->world->ranks[comm->rank].phases[phase];
    uint64_t mask = 0;
    for (int rank = 0; rank < comm->size; rank++) {
        mask |= (uint64_t)(comm->world->ranks[rank].phases[phase] < reached) << rank;
    }
    return mask;
}

ncclResult_t sim_wait_for_arrivals(ncclComm_t comm, SimPhase phase) {
    return sim_wait(comm, not_arrived, &phase);
}

ncclResult_t sim_barrier(ncclComm_t comm) {
    sim_arrive(comm, SIM_STREAM_PHASE);
    return sim_wait_for_arrivals(comm, SIM_STREAM_PHASE);
}
