/* Conditional handles and nodes. */
#include "graphs.h"
#include "threads.h"

#include <stdlib.h>

/* All conditions by their handles, which are small numbers: a kernel that gets an address of the
 * host as argument would be suspected of a fault. */
static SimCondition **conditions;
static size_t condition_count, condition_capacity;

static CUgraphConditionalHandle add_condition(SimCondition *condition) {
    sim_grow((void **)&conditions, &condition_capacity, condition_count, sizeof *conditions);
    conditions[condition_count++] = condition;
    return condition->handle = condition_count;
}

SimCondition *sim_retain_condition(SimCondition *condition) {
    condition->references++;
    return condition;
}

void sim_release_condition(SimCondition *condition) {
    if (condition == NULL || --condition->references > 0) return;
    conditions[condition->handle - 1] = NULL;
    free(condition);
}

/* The condition of a handle that was created for a graph, or NULL. */
static SimCondition *find_condition(const SimGraph *graph, CUgraphConditionalHandle handle) {
    SimCondition *condition = graph->conditions;
    while (condition != NULL && condition->handle != handle) condition = condition->next;
    return condition;
}

CUresult sim_cuGraphConditionalHandleCreate(CUgraphConditionalHandle *result, CUgraph handle,
                                            CUcontext context, unsigned int default_value,
                                            unsigned int flags) {
    (void)context;
    if (result == NULL || (flags & ~(unsigned int)CU_GRAPH_COND_ASSIGN_DEFAULT))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_stream_lock);
    SimGraph *graph = sim_find_graph(handle);
    if (graph != NULL) {
        SimCondition *condition = sim_zeroed(sizeof *condition);
        condition->references = 1;
        condition->has_default = flags & CU_GRAPH_COND_ASSIGN_DEFAULT;
        if (condition->has_default) condition->value = condition->default_value = default_value;
        condition->next = graph->conditions;
        graph->conditions = condition;
        *result = add_condition(condition);
    }
    sim_unlock_graphs();
    return graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* cudaGraphSetConditional of device code. */
SIM_EXPORT void sim_set_conditional(SimThread *thread, uint64_t handle, uint32_t value) {
    pthread_mutex_lock(&sim_stream_lock);
    bool is_known = handle > 0 && handle <= condition_count && conditions[handle - 1] != NULL;
    if (is_known) conditions[handle - 1]->value = value;
    pthread_mutex_unlock(&sim_stream_lock);
    if (!is_known && thread != NULL) sim_trap(thread);
}

static bool is_valid(const SimNode *node, const CUDA_CONDITIONAL_NODE_PARAMS *params) {
    const SimCondition *condition = find_condition(node->graph, params->handle);
    if (condition == NULL || condition->is_used) return false; /* a handle is for one node */
    switch (params->type) {
    case CU_GRAPH_COND_TYPE_IF: return params->size == 1 || params->size == 2;
    case CU_GRAPH_COND_TYPE_WHILE: return params->size == 1;
    case CU_GRAPH_COND_TYPE_SWITCH: return params->size >= 1;
    default: return false;
    }
}

CUresult sim_make_conditional(SimNode *node, CUDA_CONDITIONAL_NODE_PARAMS *params) {
    if (!is_valid(node, params)) return CUDA_ERROR_INVALID_VALUE;
    node->condition = sim_retain_condition(find_condition(node->graph, params->handle));
    node->condition->is_used = true;
    node->conditional = *params;
    node->conditional.phGraph_out = sim_zeroed(params->size * sizeof(CUgraph));
    for (unsigned int number = 0; number < params->size; number++)
        node->conditional.phGraph_out[number] = sim_new_graph(node);
    params->phGraph_out = node->conditional.phGraph_out;
    return CUDA_SUCCESS;
}
