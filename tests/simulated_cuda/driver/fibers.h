/* Stacks, and switches between them: the threads of a block whose kernel has barriers. */
#ifndef FIBERS_H
#define FIBERS_H
#include <stdbool.h>
#include <stddef.h>

/* Stacks of one size for one thread of the process; mapped when first used, and kept. */
typedef struct SimStack {
    char *low;  /* lowest usable address; the page below is inaccessible if `is_guarded` */
    char *high; /* where the stack begins: it grows towards `low` */
    bool is_guarded;
    struct SimStack *next;
} SimStack;

typedef struct SimStacks {
    size_t size; /* of each, without the guard page */
    SimStack *unused;
    struct SimStackSlab *slabs;
    size_t count;
} SimStacks;

/* NULL without memory. The stack that was put back last is taken first: it is in the cache. */
SimStack *sim_take_stack(SimStacks *stacks);
void sim_put_stack(SimStacks *stacks, SimStack *stack);
/* Declare every stack unused, after a launch was abandoned. */
void sim_reset_stacks(SimStacks *stacks);
void sim_free_stacks(SimStacks *stacks);

/* Save the execution state of the caller on its stack and its address in *save; continue at `to`. */
void sim_switch_context(void **save, void *to);
/* An execution state that calls `entry` on a stack; `entry` must not return. */
void *sim_new_context(const SimStack *stack, void (*entry)(void));
#endif
