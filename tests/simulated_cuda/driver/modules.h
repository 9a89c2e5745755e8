/* What modules.c, libraries.c, linker.c, function_attributes.c, occupancy.c and launch.c share: modules,
 * libraries, and their kernels. */
#ifndef MODULES_H
#define MODULES_H
#include "handles.h"
#include "sim.h"
#include "threads.h"

typedef struct CUmod_st SimModule;
typedef struct CUfunc_st SimFunctionHandle;
typedef struct CUlib_st SimLibrary;
typedef struct CUkern_st SimKernel;

/* A loaded module: one translation of one image, with its own global variables. */
struct CUmod_st {
    _Atomic int references; /* 1 of the handle, and 1 of each launch that is queued */
    SimContext *context;    /* NULL: of a library, and not used in a context yet */
    SimLibrary *library;    /* NULL if made by cuModuleLoad */
    int target;             /* compute capability that it was translated for, as 90 */
    int ptx_version;        /* of its .target directive, as 80 */
    int const_bytes;        /* of its variables in constant memory */
    void *translated;       /* of the translator */
    SimFunctionHandle *functions;
    char **names; /* of its kernels */
    unsigned int name_count;
    void **globals; /* addresses that sim_register_memory knows */
    unsigned int global_count;
    SimModule *next; /* of the library, of modules.c otherwise */
};

/* Values that cuFuncSetAttribute and cuKernelSetAttribute set. */
typedef struct SimFunctionSettings {
    int max_dynamic_shared; /* -1: what fits without opting in */
    int carveout;           /* per cent of the shared memory, or -1 */
    int cluster[3];
    int is_non_portable_cluster_allowed;
    int cluster_policy;
} SimFunctionSettings;

/* A kernel of a module. */
struct CUfunc_st {
    SimModule *module;
    const char *name;
    SimKernelInfo *info;
    SimFunctionSettings settings; /* unless it belongs to a kernel */
    SimKernel *kernel;            /* NULL if not asked for by a kernel */
    SimFunctionHandle *next;
};

/* An image that is loaded into each context that uses it. */
struct CUlib_st {
    char *image; /* PTX */
    size_t size;
    SimModule *modules; /* one per context */
    SimKernel *kernels;
    SimLibrary *next;
};

struct CUkern_st {
    SimLibrary *library;
    char *name;
    SimFunctionSettings settings[SIM_MAX_DEVICES];
    SimKernel *next;
};

/* ---- modules.c -------------------------------------------------------------------------------- */
/* Guards the lists of modules, functions, libraries and kernels; never held during a translation. */
extern pthread_mutex_t sim_module_lock;

bool sim_has_kernel(const SimModule *module, const char *name);
CUresult sim_module_function(SimModule *module, const char *name, SimFunctionHandle **result);
CUresult sim_module_global(SimModule *module, const char *name, CUdeviceptr *address, size_t *size);
/* Give up a reference; the last one retires the module. Calls no Python. */
void sim_module_release(SimModule *module);
/* Free retired modules; called where Python may be called. */
void sim_free_retired_modules(void);
/* Make the handles of a module and of its functions invalid. */
void sim_remove_module_handles(SimModule *module);

/* ---- images.c --------------------------------------------------------------------------------- */
typedef struct SimJitOptions {
    char *info, *error;
    size_t info_size, error_size;
    void **info_written, **error_written; /* option values that take the bytes written */
    float *wall_time;
} SimJitOptions;

CUresult sim_jit_options(unsigned int count, const CUjit_option *options, void **values,
                         SimJitOptions *result);
void sim_jit_message(char *log, size_t size, void **written, const char *message);
/* Find the PTX in an image, which ends with a null character. */
CUresult sim_image_text(const void *image, const char **text, size_t *length);
CUresult sim_read_file(const char *path, char **data, size_t *size);
/* Translate PTX into a new module for compute capability `target`. */
CUresult sim_translate(const char *text, size_t length, int target, const SimJitOptions *options,
                       SimModule **result);
/* Free a module whose last reference is gone; calls the translator. */
void sim_free_module(SimModule *module);
/* NULL if none is registered (loader.py does), or the Python interpreter has ended. */
const SimTranslator *sim_translator(void);

/* ---- libraries.c ------------------------------------------------------------------------------ */
void sim_libraries_release(SimContext *context);
/* The function of a kernel in a context: loads the library there if needed. */
CUresult sim_kernel_function(SimKernel *kernel, SimContext *context, SimFunctionHandle **result);

/* ---- function_attributes.c ----------------------------------------------------------------------------- */
/* The function of a handle that is a CUfunction, or a CUkernel cast to it, in a context. */
CUresult sim_function(CUfunction handle, SimContext *context, SimFunctionHandle **result);
void sim_default_settings(SimFunctionSettings *settings);
SimFunctionSettings *sim_settings(SimFunctionHandle *function);
int sim_target(const SimDevice *device);
/* Registers of a thread: translated code has none, so occupancy is that of a typical kernel. */
#define SIM_REGISTERS 32
int sim_max_threads(const SimFunctionHandle *function, const SimDevice *device);
/* The limit of dynamic shared memory, which cuFuncSetAttribute raises. */
int sim_max_dynamic_shared(SimFunctionHandle *function);

/* ---- occupancy.c ------------------------------------------------------------------------------ */
/* Blocks that one multiprocessor holds at a time. */
int sim_resident_blocks(const SimFunctionHandle *function, const SimDevice *device, int threads,
                        size_t dynamic_shared);
#endif
