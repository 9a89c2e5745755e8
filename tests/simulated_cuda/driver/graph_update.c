/* Updates of executable graphs. Parameters change in place: launches that were submitted before
 * share the operations that they began with. */
#include "graphs.h"

typedef struct Difference {
    CUgraphExecUpdateResult result;
    SimNode *node, *from; /* of the graph with the new parameters */
} Difference;

static bool report(Difference *difference, CUgraphExecUpdateResult result, SimNode *node) {
    difference->result = result;
    difference->node = node;
    return false;
}

/* Compare the dependencies of two nodes, whose marks are their numbers in their graphs. */
static bool is_same_place(const SimNode *old, SimNode *new, Difference *difference) {
    const SimEdges *before = &old->dependencies, *after = &new->dependencies;
    for (size_t edge = 0; edge < after->count; edge++) {
        bool is_known = false;
        for (size_t other = 0; other < before->count && !is_known; other++)
            is_known = before->nodes[other]->mark == after->nodes[edge]->mark;
        if (is_known) continue;
        difference->from = after->nodes[edge];
        return report(difference, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, new);
    }
    if (before->count == after->count) return true;
    return report(difference, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, new);
}

static bool is_same_graph(const SimGraph *old, const SimGraph *new, Difference *difference);

static bool is_same_node(const SimNode *old, SimNode *new, Difference *difference) {
    if (old->type != new->type)
        return report(difference, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, new);
    if (!is_same_place(old, new, difference)) return false;
    /* Allocations of a graph have fixed addresses, which another graph does not have. */
    if (new->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || new->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
        return report(difference, CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED, new);
    if (new->type == CU_GRAPH_NODE_TYPE_CONDITIONAL &&
        (old->condition != new->condition || old->conditional.type != new->conditional.type ||
         old->conditional.size != new->conditional.size))
        return report(difference, CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED, new);
    return true;
}

/* Compare two graphs. Nodes correspond by the order in which they were added. */
static bool is_same_graph(const SimGraph *old, const SimGraph *new, Difference *difference) {
    if (old->count != new->count)
        return report(difference, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, NULL);
    for (size_t number = 0; number < old->count; number++)
        old->nodes[number]->mark = new->nodes[number]->mark = number;
    for (size_t number = 0; number < old->count; number++)
        if (!is_same_node(old->nodes[number], new->nodes[number], difference)) return false;
    for (size_t number = 0; number < old->count; number++) {
        const SimNode *before = old->nodes[number], *after = new->nodes[number];
        if (before->child != NULL && !is_same_graph(before->child, after->child, difference))
            return false;
        for (unsigned int body = 0; body < before->conditional.size; body++)
            if (!is_same_graph(before->conditional.phGraph_out[body],
                               after->conditional.phGraph_out[body], difference))
                return false;
    }
    return true;
}

static void copy_graph(SimGraph *to, const SimGraph *from) {
    for (size_t number = 0; number < to->count; number++) {
        SimNode *node = to->nodes[number];
        const SimNode *source = from->nodes[number];
        sim_copy_contents(node, source);
        if (node->child != NULL) copy_graph(node->child, source->child);
        for (unsigned int body = 0; body < node->conditional.size; body++)
            copy_graph(node->conditional.phGraph_out[body], source->conditional.phGraph_out[body]);
    }
}

CUresult sim_cuGraphExecUpdate(CUgraphExec handle, CUgraph graph_handle,
                               CUgraphExecUpdateResultInfo *info) {
    if (info == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult status = CUDA_SUCCESS;
    Difference difference = {0};
    pthread_mutex_lock(&sim_stream_lock);
    SimExec *exec = sim_find_exec(handle);
    SimGraph *graph = sim_find_graph(graph_handle);
    if (exec == NULL || graph == NULL) {
        difference.result = CU_GRAPH_EXEC_UPDATE_ERROR;
        status = CUDA_ERROR_INVALID_VALUE;
    } else if (is_same_graph(sim_exec_graph(exec), graph, &difference)) {
        copy_graph(sim_exec_graph(exec), graph);
    } else {
        status = CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    *info = (CUgraphExecUpdateResultInfo){difference.result, difference.node, difference.from};
    sim_unlock_graphs();
    return status;
}

CUresult sim_cuGraphExecChildGraphNodeSetParams(CUgraphExec handle, CUgraphNode node_handle,
                                                CUgraph child) {
    CUresult status = CUDA_SUCCESS;
    Difference difference;
    pthread_mutex_lock(&sim_stream_lock);
    const SimExec *exec = sim_find_exec(handle);
    const SimGraph *graph = sim_find_graph(child);
    SimNode *node = exec ? sim_find_exec_node(exec, node_handle) : NULL;
    if (node == NULL || node->child == NULL || graph == NULL) status = CUDA_ERROR_INVALID_VALUE;
    else if (!is_same_graph(node->child, graph, &difference))
        status = CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    else copy_graph(node->child, graph);
    sim_unlock_graphs();
    return status;
}

/* Nodes that can be disabled. */
static SimNode *find_switchable(CUgraphExec handle, CUgraphNode node_handle) {
    const SimExec *exec = sim_find_exec(handle);
    SimNode *node = exec ? sim_find_exec_node(exec, node_handle) : NULL;
    if (node == NULL) return NULL;
    bool is_switchable = node->type == CU_GRAPH_NODE_TYPE_KERNEL ||
                         node->type == CU_GRAPH_NODE_TYPE_MEMSET ||
                         node->type == CU_GRAPH_NODE_TYPE_MEMCPY;
    return is_switchable ? node : NULL;
}

CUresult sim_cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode handle, unsigned int is_enabled) {
    pthread_mutex_lock(&sim_stream_lock);
    SimNode *node = find_switchable(exec, handle);
    if (node != NULL) node->is_disabled = !is_enabled;
    sim_unlock_graphs();
    return node ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode handle,
                                   unsigned int *is_enabled) {
    if (is_enabled == NULL) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_stream_lock);
    const SimNode *node = find_switchable(exec, handle);
    if (node != NULL) *is_enabled = !node->is_disabled;
    sim_unlock_graphs();
    return node ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
