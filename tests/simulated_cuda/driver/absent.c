/* Stand-ins for the functions of files that do not exist yet, so that the library links. */
#include "sim.h"
#include "threads.h"

#define ABSENT __attribute__((weak))
#define REFUSE return CUDA_ERROR_NOT_SUPPORTED

ABSENT void sim_streams_release(SimContext *context) {}
ABSENT void sim_memory_release(SimContext *context) {}
ABSENT void sim_modules_release(SimContext *context) {}
ABSENT CUresult sim_context_synchronize(SimContext *context) { return CUDA_SUCCESS; }
ABSENT SimContext *sim_stream_context(CUstream stream) { return sim_current(); }
ABSENT CUresult sim_check_unsafe_call(void) { return CUDA_SUCCESS; }
ABSENT bool sim_is_capturing(CUstream stream) { return false; }
ABSENT CUresult sim_cuStreamSynchronize(CUstream stream) { return sim_context_synchronize(sim_current()); }

/* Until there are streams, an operation runs in the thread that submits it. */
ABSENT CUresult sim_submit(CUstream stream, SimOperation *operation) {
    operation->context = sim_current();
    CUresult status = operation->type->run(operation);
    operation->type->destroy(operation);
    return status;
}
ABSENT CUresult sim_submit_and_wait(CUstream stream, SimOperation *operation) {
    return sim_submit(stream, operation);
}

ABSENT bool sim_find_allocation(const void *address, size_t slack, SimAllocation *result) {
    return false;
}
ABSENT void sim_register_memory(void *start, size_t size, SimMemoryKind kind, int device) {}
ABSENT void sim_unregister_memory(void *start) {}

ABSENT CUresult sim_new_launch(const CUlaunchConfig *config, CUfunction function, void **params,
                               void **extra, bool is_cooperative, SimOperation **result) {
    REFUSE;
}
ABSENT void sim_launch_parameters(const SimOperation *operation, CUDA_KERNEL_NODE_PARAMS *result) {}
ABSENT CUresult sim_new_copy(const CUDA_MEMCPY3D_PEER *copy, SimOperation **result) { REFUSE; }
ABSENT CUresult sim_new_memset(const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context,
                               SimOperation **result) {
    REFUSE;
}
ABSENT void sim_copy_parameters(const SimOperation *operation, CUDA_MEMCPY3D *result) {}
ABSENT void sim_memset_parameters(const SimOperation *operation, CUDA_MEMSET_NODE_PARAMS *result) {}
ABSENT CUresult sim_new_pool_allocation(CUDA_MEM_ALLOC_NODE_PARAMS *params,
                                        SimOperation **result) {
    REFUSE;
}
ABSENT CUresult sim_new_pool_free(CUdeviceptr address, SimOperation **result) { REFUSE; }
ABSENT const SimOperationType sim_launch_type, sim_copy_type, sim_memset_type,
    sim_pool_allocation_type, sim_pool_free_type;
