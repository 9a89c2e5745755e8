/* Faults of kernels: signals of the processor, raised in translated code, end the launch.
 *
 * The handler runs on a stack of its own, notes the fault and jumps back to sim_run_grid, which
 * reports it. A signal that is not of a kernel goes to the handler that was there before. */
#include "grid.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define SIGNAL_STACK (64 * 1024)
#define MAX_PREVIOUS 16
/* How far from an allocation an address is still explained by it. */
#define SLACK (64 * 1024)

static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
#define SIGNAL_COUNT (sizeof signals / sizeof *signals)

/* Handlers that were replaced, the latest last: Python's faulthandler, nbrt's crash report. Each
 * may have been installed over this one, so each non-kernel fault goes to one of them less. */
static struct sigaction previous[SIGNAL_COUNT][MAX_PREVIOUS];
static atomic_int previous_count[SIGNAL_COUNT];
static pthread_mutex_t install_lock = PTHREAD_MUTEX_INITIALIZER;

/* The worker of each thread; not a thread-local variable, whose first use may allocate: the handler
 * must not. */
static pthread_key_t worker_key;

static void pass_on(int number, const siginfo_t *information) {
    size_t index = 0;
    while (signals[index] != number)
        index++;
    struct sigaction action = {.sa_handler = SIG_DFL};
    int count = atomic_load(&previous_count[index]);
    if (count > 0) {
        atomic_store(&previous_count[index], count - 1);
        action = previous[index][count - 1];
    }
    sigaction(number, &action, NULL);
    /* The instruction is repeated after the return; a signal that was sent is not. */
    if (information->si_code <= 0)
        raise(number);
}

/* Whether the access was a write: 1, 0, or -1 if the processor does not say. */
static int is_write(const ucontext_t *context) {
#if defined(__x86_64__)
    return (context->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#else
    (void)context;
    return -1;
#endif
}

static void handle(int number, siginfo_t *information, void *context) {
    int saved = errno;
    SimWorker *worker = pthread_getspecific(worker_key);
    if (!worker || !worker->grid || information->si_code <= 0) {
        pass_on(number, information);
        errno = saved;
        return;
    }
    worker->fault = (SimFault){number, information->si_code, information->si_addr, is_write(context)};
    siglongjmp(worker->abandon, SIM_JUMP_FAULT);
}

static bool is_installed(int number, struct sigaction *current) {
    return sigaction(number, NULL, current) == 0 && (current->sa_flags & SA_SIGINFO) &&
           current->sa_sigaction == handle;
}

void sim_install_handlers(void) {
    struct sigaction current;
    if (is_installed(SIGSEGV, &current))
        return;
    pthread_mutex_lock(&install_lock);
    for (size_t i = 0; i < SIGNAL_COUNT; i++) {
        if (is_installed(signals[i], &current))
            continue;
        int count = atomic_load(&previous_count[i]);
        if (count == MAX_PREVIOUS) { /* forget the oldest */
            for (int k = 1; k < count; k++)
                previous[i][k - 1] = previous[i][k];
            count--;
        }
        previous[i][count] = current;
        atomic_store(&previous_count[i], count + 1);
        struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
        sigemptyset(&action.sa_mask);
        sigaction(signals[i], &action, NULL);
    }
    pthread_mutex_unlock(&install_lock);
}

/* ---- workers ---------------------------------------------------------------------------------- */

static void free_worker(void *value) {
    SimWorker *worker = value;
    stack_t none = {.ss_flags = SS_DISABLE};
    sigaltstack(&none, NULL);
    munmap(worker->signal_stack, SIGNAL_STACK);
    sim_free_stacks(&worker->stacks);
    if (worker->shared.mapping)
        munmap(worker->shared.mapping, worker->shared.size);
    sim_free_blocks(worker);
    free(worker);
}

__attribute__((constructor)) static void make_key(void) { pthread_key_create(&worker_key, free_worker); }

SimWorker *sim_worker(void) {
    SimWorker *worker = pthread_getspecific(worker_key);
    if (worker)
        return worker;
    worker = calloc(1, sizeof *worker);
    if (!worker)
        return NULL;
    worker->signal_stack = mmap(NULL, SIGNAL_STACK, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (worker->signal_stack == MAP_FAILED) {
        free(worker);
        return NULL;
    }
    stack_t stack = {.ss_sp = worker->signal_stack, .ss_size = SIGNAL_STACK};
    sigaltstack(&stack, NULL);
    pthread_attr_t attributes;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
        void *low;
        size_t size;
        if (pthread_attr_getstack(&attributes, &low, &size) == 0)
            worker->stack_low = low;
        pthread_attr_destroy(&attributes);
    }
    pthread_setspecific(worker_key, worker);
    return worker;
}

/* ---- reports ---------------------------------------------------------------------------------- */

static bool is_stack_overflow(const SimWorker *worker, const SimThread *thread, const char *address) {
    const char *low = worker->stack_low;
    if (thread->block) {
        const SimStack *stack = sim_fiber((SimThread *)thread)->stack;
        low = stack && stack->is_guarded ? stack->low : NULL;
    }
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return low && address < low + (thread->block ? 0 : page) && address >= low - page;
}

static const char *kind_name(SimMemoryKind kind) {
    static const char *const names[] = {"device", "pool", "managed", "pinned", "registered", "mapped",
                                        "IPC",    "module"};
    return names[kind];
}

/* "4 bytes past the end of the device allocation 7 of 400 bytes at 0x..." */
static void explain_address(const SimGrid *grid, const SimThread *thread, const char *address,
                            char *text, size_t size) {
    SimAllocation found;
    size_t shared = grid->shared_bytes;
    if (thread->shared && address >= thread->shared && address < thread->shared + shared + SLACK) {
        snprintf(text, size, "byte %td of the %zu bytes of shared memory", address - thread->shared, shared);
    } else if (address < (const char *)4096) {
        snprintf(text, size, "a null pointer with an offset");
    } else if (!sim_find_allocation(address, SLACK, &found)) {
        snprintf(text, size, "in no allocation");
    } else {
        const char *end = found.start + found.size;
        char place[96];
        if (address >= end)
            snprintf(place, sizeof place, "%td bytes past the end of", address - end);
        else if (address < found.start)
            snprintf(place, sizeof place, "%td bytes before", found.start - address);
        else
            snprintf(place, sizeof place, "at offset %td of", address - found.start);
        snprintf(text, size, "%s the %s%s allocation %llu of %zu bytes at %p on device %d", place,
                 found.is_freed ? "freed " : found.is_pending ? "future " : "", kind_name(found.kind), found.id, found.size,
                 (void *)found.start, found.device);
    }
}

static CUresult status_of(const SimFault *fault, bool is_overflow) {
    switch (fault->signal) {
    case SIGSEGV:
        return is_overflow ? CUDA_ERROR_HARDWARE_STACK_ERROR : CUDA_ERROR_ILLEGAL_ADDRESS;
    case SIGBUS:
        return fault->code == BUS_ADRALN ? CUDA_ERROR_MISALIGNED_ADDRESS : CUDA_ERROR_ILLEGAL_ADDRESS;
    case SIGILL:
        return CUDA_ERROR_ILLEGAL_INSTRUCTION;
    default:
        return CUDA_ERROR_LAUNCH_FAILED;
    }
}

SIM_EXPORT void sim_misaligned(SimThread *thread, uint64_t address, uint32_t alignment) {
    char what[512];
    const char *at = (const char *)(uintptr_t)address;
    explain_address(sim_worker()->grid, thread, at, what, sizeof what);
    sim_abandon(thread, CUDA_ERROR_MISALIGNED_ADDRESS, "access of %u bytes at the misaligned address %p, %s",
                alignment, (const void *)at, what);
}

CUresult sim_report_fault(SimWorker *worker) {
    const SimGrid *grid = worker->grid;
    const SimThread *thread = grid->running;
    const SimFault *fault = &worker->fault;
    char where[512], what[512];
    sim_describe(grid, thread, where, sizeof where);
    bool overflow = fault->signal == SIGSEGV && is_stack_overflow(worker, thread, fault->address);
    CUresult status = status_of(fault, overflow);
    if (overflow) {
        sim_message("%s: stack overflow", where);
    } else if (fault->signal == SIGSEGV && fault->code == SI_KERNEL) {
        /* The processor gives no address for these (general protection). */
        sim_message("%s: access of a misaligned or non-canonical address", where);
    } else if (fault->signal == SIGSEGV || fault->signal == SIGBUS) {
        const char *access = fault->is_write > 0 ? "write" : fault->is_write == 0 ? "read" : "access";
        explain_address(grid, thread, fault->address, what, sizeof what);
        sim_message("%s: illegal %s at %p, %s", where, access, fault->address, what);
    } else {
        sim_message("%s: %s", where,
                    fault->signal == SIGFPE ? "arithmetic fault" : "illegal instruction");
    }
    return status;
}

/* Write a line to the report and to stderr. */
void sim_message(const char *format, ...) {
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    sim_report("%s", text);
    fprintf(stderr, "simulated CUDA driver: %s\n", text);
}
