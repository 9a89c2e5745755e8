/* The functions of the public API that move data: they check what they can, and queue a call. */
#include "nccl.h"

#include <stdio.h>
#include <stdlib.h>

static const char *const names[] = {
    [SIM_ALL_REDUCE] = "AllReduce", [SIM_REDUCE] = "Reduce",
    [SIM_BROADCAST] = "Broadcast",  [SIM_ALL_GATHER] = "AllGather",
    [SIM_SEND] = "Send",            [SIM_REDUCE_SCATTER] = "ReduceScatter",
    [SIM_RECEIVE] = "Recv",
};

const char *sim_describe(const SimSignature *signature, char *text, size_t size) {
    static const char *const operations[] = {"sum", "prod", "max", "min", "avg"};
    int length = snprintf(text, size, "%s(count=%llu, %s", names[signature->kind],
                          (unsigned long long)signature->count, sim_type_name(signature->datatype));
    if (signature->operation >= 0) {
        length += snprintf(text + length, size - length, ", %s", operations[signature->operation]);
    }
    if (signature->root >= 0) {
        length += snprintf(text + length, size - length, ", %s=%d", signature->kind < SIM_SEND ? "root" : "peer",
                           signature->root);
    }
    snprintf(text + length, size - length, ")");
    return text;
}

/* Bytes of a buffer, of which all ranks have a part in the larger one of some collectives. */
static size_t bytes_of(const SimCall *call, bool is_receive) {
    size_t bytes = call->signature.count * sim_item_size(call->signature.datatype);
    SimCallKind large = is_receive ? SIM_ALL_GATHER : SIM_REDUCE_SCATTER;
    return call->signature.kind == (int)large ? bytes * (size_t)call->comm->size : bytes;
}

static bool uses_send(const SimCall *call) {
    int rank = call->comm->rank;
    return call->signature.kind != SIM_RECEIVE &&
           (call->signature.kind != SIM_BROADCAST || call->signature.root == rank);
}

static bool uses_receive(const SimCall *call) {
    int rank = call->comm->rank;
    return call->signature.kind != SIM_SEND &&
           (call->signature.kind != SIM_REDUCE || call->signature.root == rank);
}

/* As with NCCL_CHECK_POINTERS=1: memory of CUDA, and of the communicator's device; and in addition,
 * enough of it. */
static ncclResult_t check_buffer(ncclComm_t comm, const void *buffer, size_t bytes, const char *name) {
    const SimDriver *driver = sim_driver();
    unsigned int kind = 0;
    int device = -1;
    CUdeviceptr address = (CUdeviceptr)buffer, start = address;
    size_t size = bytes;
    CUcontext popped;
    if (bytes == 0) {
        return ncclSuccess;
    }
    driver->cuCtxPushCurrent(comm->context);
    CUresult status = driver->cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
    if (status == CUDA_SUCCESS && kind == CU_MEMORYTYPE_DEVICE) {
        status = driver->cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
        status = status ? status : driver->cuMemGetAddressRange(&start, &size, address);
    }
    driver->cuCtxPopCurrent(&popped);
    if (status != CUDA_SUCCESS) {
        return sim_error(ncclInvalidArgument, "%s %p is not memory of CUDA", name, buffer);
    }
    if (kind == CU_MEMORYTYPE_DEVICE && device != comm->device) {
        return sim_error(ncclInvalidArgument, "%s %p is on device %d, rank %d on device %d", name, buffer, device,
                         comm->rank, comm->device);
    }
    if (address + bytes > start + size) {
        return sim_error(ncclInvalidArgument, "%s %p has %zu bytes, expected at least %zu", name, buffer,
                         (size_t)(start + size - address), bytes);
    }
    return ncclSuccess;
}

static ncclResult_t check(const SimCall *call) {
    const SimSignature *signature = &call->signature;
    ncclResult_t result = sim_check_communicator(call->comm);
    if (result != ncclSuccess) {
        return result;
    }
    if (signature->datatype < 0 || signature->datatype >= ncclNumTypes) {
        return sim_error(ncclInvalidArgument, "%d is no data type", signature->datatype);
    }
    if (signature->operation < -1 || signature->operation >= ncclNumOps) {
        return sim_error(ncclInvalidArgument, "%d is no reduction", signature->operation);
    }
    if (signature->root < -1 || signature->root >= call->comm->size) {
        return sim_error(ncclInvalidArgument, "%s: rank %d is not below %d", names[signature->kind],
                         signature->root, call->comm->size);
    }
    if (uses_send(call)) {
        result = check_buffer(call->comm, call->send, bytes_of(call, false), "sendbuff");
    }
    if (result == ncclSuccess && uses_receive(call)) {
        result = check_buffer(call->comm, call->receive, bytes_of(call, true), "recvbuff");
    }
    return result;
}

/* Operation and root are -1 where the function has none; -2 is never valid. */
static ncclResult_t add(SimSignature signature, const void *send, void *receive, ncclComm_t comm,
                        CUstream stream) {
    SimCall template = {
        .signature = signature, .send = send, .receive = receive, .comm = comm, .stream = stream};
    ncclResult_t result = check(&template);
    if (result != ncclSuccess) {
        return sim_group_error(result);
    }
    SimCall *call = malloc(sizeof *call);
    if (call == NULL) {
        return sim_group_error(sim_error(ncclSystemError, "no memory"));
    }
    *call = template;
    return sim_add_call(call);
}

static int given(int value) { return value < 0 ? -2 : value; }

SIM_EXPORT ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t datatype,
                                      ncclRedOp_t operation, ncclComm_t comm, CUstream stream) {
    SimSignature signature = {SIM_ALL_REDUCE, datatype, given(operation), -1, count};
    return add(signature, send, receive, comm, stream);
}

SIM_EXPORT ncclResult_t ncclReduce(const void *send, void *receive, size_t count, ncclDataType_t datatype,
                                   ncclRedOp_t operation, int root, ncclComm_t comm, CUstream stream) {
    SimSignature signature = {SIM_REDUCE, datatype, given(operation), given(root), count};
    return add(signature, send, receive, comm, stream);
}

SIM_EXPORT ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t datatype,
                                          ncclRedOp_t operation, ncclComm_t comm, CUstream stream) {
    SimSignature signature = {SIM_REDUCE_SCATTER, datatype, given(operation), -1, count};
    return add(signature, send, receive, comm, stream);
}

SIM_EXPORT ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t datatype,
                                      int root, ncclComm_t comm, CUstream stream) {
    SimSignature signature = {SIM_BROADCAST, datatype, -1, given(root), count};
    return add(signature, send, receive, comm, stream);
}

SIM_EXPORT ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                                  CUstream stream) {
    return ncclBroadcast(buffer, buffer, count, datatype, root, comm, stream);
}

SIM_EXPORT ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t datatype,
                                      ncclComm_t comm, CUstream stream) {
    SimSignature signature = {SIM_ALL_GATHER, datatype, -1, -1, count};
    return add(signature, send, receive, comm, stream);
}

SIM_EXPORT ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t datatype, int peer,
                                 ncclComm_t comm, CUstream stream) {
    SimSignature signature = {SIM_SEND, datatype, -1, given(peer), count};
    return add(signature, send, NULL, comm, stream);
}

SIM_EXPORT ncclResult_t ncclRecv(void *receive, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                                 CUstream stream) {
    SimSignature signature = {SIM_RECEIVE, datatype, -1, given(peer), count};
    return add(signature, NULL, receive, comm, stream);
}
