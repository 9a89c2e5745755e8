/* Stream memory operations as the contents of graph nodes. */
#ifndef SIM_MEMORY_OPERATIONS_H
#define SIM_MEMORY_OPERATIONS_H
#include "streams.h"

extern const SimOperationType sim_memory_operations_type;
CUresult sim_new_memory_operations(unsigned int count, const CUstreamBatchMemOpParams *params,
                                   unsigned int flags, SimOperation **operation);
/* The array belongs to the operation. */
void sim_memory_operations_parameters(SimOperation *operation,
                                      CUDA_BATCH_MEM_OP_NODE_PARAMS *result);
#endif
