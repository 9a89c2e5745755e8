/* Queries of graphs and nodes, and their description for Graphviz. */
#include "graphs.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- lists ------------------------------------------------------------------------------------ */

/* Write a list in the way of the API: without `nodes`, only the count; else at most *count nodes,
 * NULL behind the last one, and *count becomes the number of nodes. */
static void write_nodes(const SimEdges *found, CUgraphNode *nodes, CUgraphEdgeData *data,
                        size_t *count) {
    if (nodes != NULL || data != NULL) {
        for (size_t number = 0; number < *count; number++) {
            bool is_there = number < found->count;
            if (nodes != NULL) nodes[number] = is_there ? found->nodes[number] : NULL;
            if (data != NULL && is_there) data[number] = found->data[number];
        }
        if (*count > found->count) *count = found->count;
    } else {
        *count = found->count;
    }
}

/* A query without room for edge data must not lose any. */
static CUresult write_edges(const SimEdges *found, CUgraphNode *nodes, CUgraphEdgeData *data,
                            size_t *count) {
    for (size_t number = 0; nodes != NULL && data == NULL && number < found->count; number++)
        if (!sim_is_plain_edge(&found->data[number])) return CUDA_ERROR_LOSSY_QUERY;
    write_nodes(found, nodes, data, count);
    return CUDA_SUCCESS;
}

static CUresult get_nodes(CUgraph handle, CUgraphNode *nodes, size_t *count, bool roots_only) {
    if (count == NULL) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_stream_lock);
    const SimGraph *graph = sim_find_graph(handle);
    SimEdges found = {0};
    for (size_t number = 0; graph != NULL && number < graph->count; number++)
        if (!roots_only || graph->nodes[number]->dependencies.count == 0) {
            size_t capacity = found.capacity;
            sim_grow((void **)&found.nodes, &capacity, found.count, sizeof *found.nodes);
            found.capacity = capacity;
            found.nodes[found.count++] = graph->nodes[number];
        }
    if (graph != NULL) write_nodes(&found, nodes, NULL, count);
    sim_clear_edges(&found);
    sim_unlock_graphs();
    return graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    return get_nodes(graph, nodes, count, false);
}

CUresult sim_cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    return get_nodes(graph, nodes, count, true);
}

CUresult sim_cuGraphNodeGetDependencies(CUgraphNode handle, CUgraphNode *nodes,
                                        CUgraphEdgeData *data, size_t *count) {
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    if (count == NULL) return status;
    pthread_mutex_lock(&sim_stream_lock);
    const SimNode *node = sim_find_node(handle);
    if (node != NULL) status = write_edges(&node->dependencies, nodes, data, count);
    sim_unlock_graphs();
    return status;
}

CUresult sim_cuGraphNodeGetDependentNodes(CUgraphNode handle, CUgraphNode *nodes,
                                          CUgraphEdgeData *data, size_t *count) {
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    if (count == NULL) return status;
    pthread_mutex_lock(&sim_stream_lock);
    const SimNode *node = sim_find_node(handle);
    if (node != NULL) {
        SimEdges found = {0};
        for (size_t number = 0; number < node->graph->count; number++) {
            SimNode *other = node->graph->nodes[number];
            for (size_t edge = 0; edge < other->dependencies.count; edge++)
                if (other->dependencies.nodes[edge] == node)
                    sim_add_edge(&found, other, &other->dependencies.data[edge]);
        }
        status = write_edges(&found, nodes, data, count);
        sim_clear_edges(&found);
    }
    sim_unlock_graphs();
    return status;
}

CUresult sim_cuGraphGetEdges(CUgraph handle, CUgraphNode *from, CUgraphNode *to,
                             CUgraphEdgeData *data, size_t *count) {
    CUresult status = CUDA_SUCCESS;
    if (count == NULL || (from == NULL) != (to == NULL)) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_stream_lock);
    const SimGraph *graph = sim_find_graph(handle);
    size_t found = 0;
    for (size_t number = 0; graph != NULL && number < graph->count; number++) {
        SimNode *node = graph->nodes[number];
        for (size_t edge = 0; edge < node->dependencies.count; edge++, found++) {
            const CUgraphEdgeData *this_data = &node->dependencies.data[edge];
            if (from == NULL || found >= *count) continue;
            from[found] = node->dependencies.nodes[edge];
            to[found] = node;
            if (data != NULL) data[found] = *this_data;
            else if (!sim_is_plain_edge(this_data)) status = CUDA_ERROR_LOSSY_QUERY;
        }
    }
    if (graph == NULL) status = CUDA_ERROR_INVALID_VALUE;
    for (size_t number = found; from != NULL && number < *count; number++)
        from[number] = to[number] = NULL;
    if (status == CUDA_SUCCESS && (from == NULL || *count > found)) *count = found;
    sim_unlock_graphs();
    return status;
}

/* ---- properties ------------------------------------------------------------------------------- */

CUresult sim_cuGraphGetId(CUgraph handle, unsigned int *id) {
    if (id == NULL || sim_find_graph(handle) == NULL) return CUDA_ERROR_INVALID_VALUE;
    *id = handle->id;
    return CUDA_SUCCESS;
}

CUresult sim_cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType *type) {
    if (type == NULL || sim_find_node(handle) == NULL) return CUDA_ERROR_INVALID_VALUE;
    *type = handle->type;
    return CUDA_SUCCESS;
}

CUresult sim_cuGraphNodeGetContainingGraph(CUgraphNode handle, CUgraph *graph) {
    if (graph == NULL || sim_find_node(handle) == NULL) return CUDA_ERROR_INVALID_VALUE;
    *graph = handle->graph;
    return CUDA_SUCCESS;
}

CUresult sim_cuGraphNodeGetLocalId(CUgraphNode handle, unsigned int *id) {
    if (id == NULL || sim_find_node(handle) == NULL) return CUDA_ERROR_INVALID_VALUE;
    *id = handle->local_id;
    return CUDA_SUCCESS;
}

CUresult sim_cuGraphNodeGetToolsId(CUgraphNode handle, unsigned long long *id) {
    if (id == NULL || sim_find_node(handle) == NULL) return CUDA_ERROR_INVALID_VALUE;
    *id = handle->id;
    return CUDA_SUCCESS;
}

/* ---- Graphviz --------------------------------------------------------------------------------- */

static const char *type_name(CUgraphNodeType type) {
    switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return "KERNEL";
    case CU_GRAPH_NODE_TYPE_MEMCPY: return "MEMCPY";
    case CU_GRAPH_NODE_TYPE_MEMSET: return "MEMSET";
    case CU_GRAPH_NODE_TYPE_HOST: return "HOST";
    case CU_GRAPH_NODE_TYPE_GRAPH: return "GRAPH";
    case CU_GRAPH_NODE_TYPE_EMPTY: return "EMPTY";
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return "EVENT_WAIT";
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return "EVENT_RECORD";
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return "MEM_ALLOC";
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return "MEM_FREE";
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return "MEM_OP";
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: return "CONDITIONAL";
    default: return "NODE";
    }
}

static void print_nodes(FILE *file, const SimGraph *graph, unsigned int flags) {
    for (size_t number = 0; number < graph->count; number++) {
        const SimNode *node = graph->nodes[number];
        fprintf(file, "\"node_%llu\" [label=\"%u %s", node->id, node->local_id,
                type_name(node->type));
        if (flags & (CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE | CU_GRAPH_DEBUG_DOT_FLAGS_HANDLES))
            fprintf(file, "\\nhandle %p", (const void *)node);
        fprintf(file, "\"];\n");
        for (size_t edge = 0; edge < node->dependencies.count; edge++)
            fprintf(file, "\"node_%llu\" -> \"node_%llu\";\n",
                    node->dependencies.nodes[edge]->id, node->id);
    }
}

static void print_graph(FILE *file, const SimGraph *graph, unsigned int flags) {
    fprintf(file, "subgraph cluster_%u {\nlabel=\"graph_%u\";\n", graph->id, graph->id);
    print_nodes(file, graph, flags);
    fprintf(file, "}\n");
    for (size_t number = 0; number < graph->count; number++) {
        const SimNode *node = graph->nodes[number];
        if (node->child != NULL) print_graph(file, node->child, flags);
        for (unsigned int body = 0; body < node->conditional.size; body++)
            print_graph(file, node->conditional.phGraph_out[body], flags);
    }
}

CUresult sim_cuGraphDebugDotPrint(CUgraph handle, const char *path, unsigned int flags) {
    FILE *file = path && sim_find_graph(handle) ? fopen(path, "w") : NULL;
    if (file == NULL) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_stream_lock);
    fprintf(file, "digraph dot {\n");
    print_graph(file, handle, flags);
    fprintf(file, "}\n");
    sim_unlock_graphs();
    return fclose(file) ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}
