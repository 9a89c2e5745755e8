/* Stacks, and switches between them.
 *
 * A switch saves the registers that the calling convention preserves, on the stack that is left.
 * Neither signal masks nor floating-point modes are saved: kernels change none. */
#include "fibers.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define STACKS_PER_SLAB 64
/* Guard pages split mappings, of which a process may have 65,530 (vm.max_map_count). */
#define MAX_GUARDED 4096
/* Stacks begin at different offsets in their pages, so that the hot ends of many stacks do not
 * fall into the same sets of the cache. */
#define COLOURS 16
#define COLOUR_BYTES 192

typedef struct SimStackSlab {
    char *start;
    size_t size;
    SimStack stacks[STACKS_PER_SLAB];
    struct SimStackSlab *next;
} SimStackSlab;

static size_t page_size(void) { return (size_t)sysconf(_SC_PAGESIZE); }

static bool add_slab(SimStacks *stacks) {
    size_t page = page_size();
    stacks->size = (stacks->size + page - 1) / page * page;
    size_t step = stacks->size + page;
    SimStackSlab *slab = calloc(1, sizeof *slab);
    if (!slab)
        return false;
    slab->size = step * STACKS_PER_SLAB;
    slab->start = mmap(NULL, slab->size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (slab->start == MAP_FAILED) {
        free(slab);
        return false;
    }
    for (int i = STACKS_PER_SLAB - 1; i >= 0; i--) {
        SimStack *stack = &slab->stacks[i];
        char *start = slab->start + (size_t)i * step;
        stack->low = start + page;
        stack->high = start + step - (size_t)(i % COLOURS) * COLOUR_BYTES;
        stack->is_guarded = stacks->count < MAX_GUARDED && mprotect(start, page, PROT_NONE) == 0;
        stack->next = stacks->unused;
        stacks->unused = stack;
        stacks->count++;
    }
    slab->next = stacks->slabs;
    stacks->slabs = slab;
    return true;
}

SimStack *sim_take_stack(SimStacks *stacks) {
    if (!stacks->unused && !add_slab(stacks))
        return NULL;
    SimStack *stack = stacks->unused;
    stacks->unused = stack->next;
    return stack;
}

void sim_put_stack(SimStacks *stacks, SimStack *stack) {
    stack->next = stacks->unused;
    stacks->unused = stack;
}

void sim_reset_stacks(SimStacks *stacks) {
    stacks->unused = NULL;
    for (SimStackSlab *slab = stacks->slabs; slab; slab = slab->next)
        for (int i = STACKS_PER_SLAB - 1; i >= 0; i--)
            sim_put_stack(stacks, &slab->stacks[i]);
}

void sim_free_stacks(SimStacks *stacks) {
    for (SimStackSlab *slab = stacks->slabs, *next; slab; slab = next) {
        next = slab->next;
        munmap(slab->start, slab->size);
        free(slab);
    }
    *stacks = (SimStacks){.size = stacks->size};
}

#if defined(__x86_64__)

__asm__(".text\n"
        ".p2align 4\n"
        ".globl sim_switch_context\n"
        ".hidden sim_switch_context\n"
        ".type sim_switch_context, @function\n"
        "sim_switch_context:\n"
        "  pushq %rbp\n"
        "  pushq %rbx\n"
        "  pushq %r12\n"
        "  pushq %r13\n"
        "  pushq %r14\n"
        "  pushq %r15\n"
        "  movq %rsp, (%rdi)\n"
        "  movq %rsi, %rsp\n"
        "  popq %r15\n"
        "  popq %r14\n"
        "  popq %r13\n"
        "  popq %r12\n"
        "  popq %rbx\n"
        "  popq %rbp\n"
        "  ret\n"
        ".size sim_switch_context, .-sim_switch_context\n");

void *sim_new_context(const SimStack *stack, void (*entry)(void)) {
    uintptr_t *top = (uintptr_t *)((uintptr_t)stack->high & ~(uintptr_t)15);
    *--top = 0; /* no return address: a function begins with rsp + 8 a multiple of 16 */
    *--top = (uintptr_t)entry;
    for (int i = 0; i < 6; i++)
        *--top = 0;
    return top;
}

#elif defined(__aarch64__)

__asm__(".text\n"
        ".p2align 4\n"
        ".globl sim_switch_context\n"
        ".hidden sim_switch_context\n"
        ".type sim_switch_context, %function\n"
        "sim_switch_context:\n"
        "  sub sp, sp, #160\n"
        "  stp x19, x20, [sp]\n"
        "  stp x21, x22, [sp, #16]\n"
        "  stp x23, x24, [sp, #32]\n"
        "  stp x25, x26, [sp, #48]\n"
        "  stp x27, x28, [sp, #64]\n"
        "  stp x29, x30, [sp, #80]\n"
        "  stp d8, d9, [sp, #96]\n"
        "  stp d10, d11, [sp, #112]\n"
        "  stp d12, d13, [sp, #128]\n"
        "  stp d14, d15, [sp, #144]\n"
        "  mov x9, sp\n"
        "  str x9, [x0]\n"
        "  mov sp, x1\n"
        "  ldp x19, x20, [sp]\n"
        "  ldp x21, x22, [sp, #16]\n"
        "  ldp x23, x24, [sp, #32]\n"
        "  ldp x25, x26, [sp, #48]\n"
        "  ldp x27, x28, [sp, #64]\n"
        "  ldp x29, x30, [sp, #80]\n"
        "  ldp d8, d9, [sp, #96]\n"
        "  ldp d10, d11, [sp, #112]\n"
        "  ldp d12, d13, [sp, #128]\n"
        "  ldp d14, d15, [sp, #144]\n"
        "  add sp, sp, #160\n"
        "  ret\n"
        ".size sim_switch_context, .-sim_switch_context\n");

void *sim_new_context(const SimStack *stack, void (*entry)(void)) {
    uintptr_t *saved = (uintptr_t *)(((uintptr_t)stack->high & ~(uintptr_t)15) - 160);
    for (int i = 0; i < 20; i++)
        saved[i] = 0;
    saved[11] = (uintptr_t)entry; /* x30 */
    return saved;
}

#else
#include <ucontext.h>

void sim_switch_context(void **save, void *to) {
    ucontext_t here;
    *save = &here;
    swapcontext(&here, to);
}

void *sim_new_context(const SimStack *stack, void (*entry)(void)) {
    /* At the low end of the stack, which a thread reaches last. */
    ucontext_t *context = (ucontext_t *)stack->low;
    getcontext(context);
    context->uc_stack.ss_sp = stack->low + sizeof *context;
    context->uc_stack.ss_size = (size_t)(stack->high - stack->low) - sizeof *context;
    context->uc_link = NULL;
    makecontext(context, entry, 0);
    return context;
}
#endif
