/* Collectives: each rank copies a chunk to its staging memory, all wait, each takes what it needs.
 *
 * Sums are taken in order of rank, ((rank 0 + rank 1) + rank 2) + ..., and rounded to the type after
 * each step. NCCL leaves the order open, and documents only that all ranks get the same. */
#include "nccl.h"

#include <string.h>

static ncclResult_t compare_signatures(SimCall *call) {
    ncclComm_t comm = call->comm;
    for (int rank = 0; rank < comm->size; rank++) {
        const SimSignature *other = &comm->world->ranks[rank].signature;
        if (memcmp(other, &comm->world->ranks[0].signature, sizeof *other) != 0) {
            char first[80], second[80];
            return sim_fail(comm, ncclInvalidUsage, "rank 0 calls %s, rank %d calls %s",
                            sim_describe(&comm->world->ranks[0].signature, first, sizeof first), rank,
                            sim_describe(other, second, sizeof second));
        }
    }
    return ncclSuccess;
}

static void reduce_chunk(const SimCall *call, char *total, size_t start, size_t bytes) {
    ncclComm_t comm = call->comm;
    const SimSignature *signature = &call->signature;
    size_t count = bytes / sim_item_size(signature->datatype);
    memcpy(total, sim_staging(comm, 0) + start, bytes);
    for (int rank = 1; rank < comm->size; rank++) {
        sim_reduce(total, sim_staging(comm, rank) + start, count, signature->datatype, signature->operation);
    }
    if (signature->operation == ncclAvg) {
        sim_divide(total, count, signature->datatype, comm->size);
    }
}

static size_t smaller(size_t left, size_t right) { return left < right ? left : right; }
static size_t larger(size_t left, size_t right) { return left > right ? left : right; }

/* Take what this rank needs of the staged bytes `offset` to `offset + bytes` of all ranks. */
static void take_chunk(const SimCall *call, size_t offset, size_t bytes) {
    ncclComm_t comm = call->comm;
    const SimSignature *signature = &call->signature;
    size_t block = signature->count * sim_item_size(signature->datatype);
    size_t own = (size_t)comm->rank * block;
    size_t begin = larger(offset, own), end = smaller(offset + bytes, own + block);
    switch (signature->kind) {
    case SIM_REDUCE_SCATTER:
        if (begin < end) {
            reduce_chunk(call, call->receive + (begin - own), begin - offset, end - begin);
        }
        return;
    case SIM_ALL_GATHER:
        for (int rank = 0; rank < comm->size; rank++) {
            memcpy(call->receive + (size_t)rank * block + offset, sim_staging(comm, rank), bytes);
        }
        return;
    case SIM_BROADCAST:
        memcpy(call->receive + offset, sim_staging(comm, signature->root), bytes);
        return;
    default:
        if (signature->kind == SIM_ALL_REDUCE || signature->root == comm->rank) {
            reduce_chunk(call, call->receive + offset, 0, bytes);
        }
    }
}

ncclResult_t sim_run_collective(SimCall *call) {
    ncclComm_t comm = call->comm;
    const SimSignature *signature = &call->signature;
    size_t total = signature->count * sim_item_size(signature->datatype);
    if (signature->kind == SIM_REDUCE_SCATTER) {
        total *= (size_t)comm->size;
    }
    bool gives = signature->kind != SIM_BROADCAST || signature->root == comm->rank;
    comm->world->ranks[comm->rank].signature = *signature;
    ncclResult_t result = sim_barrier(comm);
    result = result ? result : compare_signatures(call);
    for (size_t offset = 0; offset < total && result == ncclSuccess; offset += SIM_CHUNK_BYTES) {
        size_t bytes = smaller(total - offset, SIM_CHUNK_BYTES);
        if (gives) {
            memcpy(sim_staging(comm, comm->rank), call->send + offset, bytes);
        }
        result = sim_barrier(comm);
        if (result == ncclSuccess) {
            take_chunk(call, offset, bytes);
            result = sim_barrier(comm);
        }
    }
    /* Nobody may change its signature before all have compared it. */
    return result || total > 0 ? result : sim_barrier(comm);
}
