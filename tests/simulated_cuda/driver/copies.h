/* What the files of copies share. */
#ifndef SIM_COPIES_H
#define SIM_COPIES_H
#include "memory.h"

/* Copy in stream order; a synchronous call waits where CUDA documents that it does. */
CUresult sim_start_copy(const CUDA_MEMCPY3D_PEER *params, CUstream stream, bool is_synchronous);
CUresult sim_cuStreamSynchronize(CUstream stream);
#endif
