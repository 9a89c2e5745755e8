/* The functions of the CUDA driver that the library calls. */
#include "nccl.h"

#include <dlfcn.h>

static SimDriver driver;
static const char *absent; /* the library or function that is missing */

static void load(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL) {
        absent = "libcuda.so.1";
        return;
    }
#define SIM_LOAD(function, symbol)                                                                          \
    *(void **)&driver.function = dlsym(library, symbol);                                                    \
    absent = driver.function == NULL ? symbol : absent;
    SIM_DRIVER_FUNCTIONS(SIM_LOAD)
#undef SIM_LOAD
    if (absent == NULL && driver.cuInit(0) != CUDA_SUCCESS) {
        absent = "a device";
    }
}

const SimDriver *sim_driver(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    if (absent != NULL) {
        sim_error(ncclUnhandledCudaError, "the CUDA driver lacks %s", absent);
        return NULL;
    }
    return &driver;
}

ncclResult_t sim_check(CUresult status, const char *function) {
    if (status == CUDA_SUCCESS) {
        return ncclSuccess;
    }
    return sim_error(ncclUnhandledCudaError, "%s returned CUDA error %d", function, (int)status);
}
