/* Adding nodes to graphs. */
#include "graphs.h"
#include "memory_operations.h"

#include <string.h>

/* ---- operations ------------------------------------------------------------------------------- */

static CUresult new_kernel(const CUDA_KERNEL_NODE_PARAMS_v3 *params, bool is_cooperative,
                           SimOperation **operation) {
    CUfunction function = params->func ? params->func : (CUfunction)params->kern;
    CUlaunchConfig config = {
        .gridDimX = params->gridDimX,
        .gridDimY = params->gridDimY,
        .gridDimZ = params->gridDimZ,
        .blockDimX = params->blockDimX,
        .blockDimY = params->blockDimY,
        .blockDimZ = params->blockDimZ,
        .sharedMemBytes = params->sharedMemBytes,
    };
    if (function == NULL) return CUDA_ERROR_INVALID_VALUE;
    return sim_new_launch(&config, function, params->kernelParams, params->extra, is_cooperative,
                          operation);
}

static CUresult new_copy(const CUDA_MEMCPY3D *params, CUcontext context,
                         SimOperation **operation) {
    CUDA_MEMCPY3D_PEER copy;
    /* Both have the same members, but that a copy between peers has contexts in reserved places. */
    _Static_assert(sizeof copy == sizeof *params, "copies have the same layout");
    memcpy(&copy, params, sizeof copy);
    copy.srcContext = copy.dstContext = context;
    return sim_new_copy(&copy, operation);
}

CUresult sim_new_node_operation(CUgraphNodeParams *params, bool is_cooperative,
                                SimOperation **operation) {
    *operation = NULL;
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return new_kernel(&params->kernel, is_cooperative, operation);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return new_copy(&params->memcpy.copyParams, sim_node_context(params), operation);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        CUDA_MEMSET_NODE_PARAMS memset = {
            params->memset.dst,         params->memset.pitch, params->memset.value,
            params->memset.elementSize, params->memset.width, params->memset.height,
        };
        return sim_new_memset(&memset, sim_node_context(params), operation);
    }
    case CU_GRAPH_NODE_TYPE_HOST:
        if (params->host.fn == NULL) return CUDA_ERROR_INVALID_VALUE;
        *operation = sim_new_host_function(params->host.fn, params->host.userData);
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
        CUDA_MEM_ALLOC_NODE_PARAMS *alloc = (CUDA_MEM_ALLOC_NODE_PARAMS *)&params->alloc;
        return sim_new_pool_allocation(alloc, operation);
    }
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return sim_new_pool_free(params->free.dptr, operation);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        return sim_new_memory_operations(params->memOp.count, params->memOp.paramArray,
                                         params->memOp.flags, operation);
    case CU_GRAPH_NODE_TYPE_EMPTY:
    case CU_GRAPH_NODE_TYPE_GRAPH:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

SimContext *sim_node_context(const CUgraphNodeParams *params) {
    SimContext *context = NULL;
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: context = params->kernel.ctx; break;
    case CU_GRAPH_NODE_TYPE_MEMCPY: context = params->memcpy.copyCtx; break;
    case CU_GRAPH_NODE_TYPE_MEMSET: context = params->memset.ctx; break;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: context = params->memOp.ctx; break;
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: context = params->conditional.ctx; break;
    default: break;
    }
    return context ? context : sim_current();
}

/* ---- checks ----------------------------------------------------------------------------------- */

CUresult sim_check_dependencies(const SimGraph *graph, const CUgraphNode *dependencies,
                                const CUgraphEdgeData *data, size_t count) {
    if (graph == NULL || (count != 0 && dependencies == NULL)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t number = 0; number < count; number++) {
        if (!sim_find_node(dependencies[number]) || dependencies[number]->graph != graph)
            return CUDA_ERROR_INVALID_VALUE;
        for (size_t other = 0; other < number; other++)
            if (dependencies[other] == dependencies[number]) return CUDA_ERROR_INVALID_VALUE;
        if (data != NULL && data[number].type > CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static bool has_memory_nodes(const SimGraph *graph) {
    for (size_t number = 0; number < graph->count; number++)
        if (graph->nodes[number]->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
            graph->nodes[number]->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
            return true;
    return false;
}

static CUresult check_child(const SimGraph *graph, const CUDA_CHILD_GRAPH_NODE_PARAMS *params) {
    const SimGraph *child = sim_find_graph(params->graph);
    if (child == NULL || params->ownership < CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE ||
        params->ownership > CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE)
        return CUDA_ERROR_INVALID_VALUE;
    bool is_moved = params->ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
    if (is_moved && (child->owner != NULL || child->is_captured_into || child == graph))
        return CUDA_ERROR_INVALID_VALUE;
    return !is_moved && has_memory_nodes(child) ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

/* Nodes that the body of a conditional node may have. */
static bool is_body_type(CUgraphNodeType type) {
    return type == CU_GRAPH_NODE_TYPE_KERNEL || type == CU_GRAPH_NODE_TYPE_MEMCPY ||
           type == CU_GRAPH_NODE_TYPE_MEMSET || type == CU_GRAPH_NODE_TYPE_EMPTY ||
           type == CU_GRAPH_NODE_TYPE_GRAPH || type == CU_GRAPH_NODE_TYPE_CONDITIONAL;
}

static bool is_body(const SimGraph *graph) {
    for (; graph->owner != NULL; graph = graph->owner->graph)
        if (graph->owner->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) return true;
    return false;
}

static CUresult check_node(const SimGraph *graph, const CUgraphNodeParams *params) {
    CUresult status;
    if (is_body(graph) && !is_body_type(params->type)) return CUDA_ERROR_NOT_SUPPORTED;
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_GRAPH: return check_child(graph, &params->graph);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return sim_find_event(params->eventRecord.event, &status) ? CUDA_SUCCESS
                                                                  : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return sim_find_event(params->eventWait.event, &status) ? CUDA_SUCCESS
                                                                : CUDA_ERROR_INVALID_VALUE;
    default: return CUDA_SUCCESS;
    }
}

/* ---- adding ----------------------------------------------------------------------------------- */

static CUresult fill_node(SimNode *node, CUgraphNodeParams *params) {
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_GRAPH:
        if (params->graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE) {
            node->child = params->graph.graph;
            node->child->owner = node;
        } else {
            node->child = sim_clone_graph(params->graph.graph, node);
        }
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        node->event = params->eventRecord.event;
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        node->event = params->eventWait.event;
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: return sim_make_conditional(node, &params->conditional);
    default: return CUDA_SUCCESS;
    }
}

static CUresult add_node(CUgraphNode *result, CUgraph handle, const CUgraphNode *dependencies,
                         const CUgraphEdgeData *data, size_t count, CUgraphNodeParams *params) {
    SimOperation *operation;
    if (result == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult status = sim_new_node_operation(params, false, &operation);
    if (status) return status;
    pthread_mutex_lock(&sim_stream_lock);
    SimGraph *graph = sim_find_graph(handle);
    status = sim_check_dependencies(graph, dependencies, data, count);
    if (status == CUDA_SUCCESS) status = check_node(graph, params);
    if (status == CUDA_SUCCESS) {
        SimNode *node = sim_new_node(graph, params->type);
        node->context = sim_node_context(params);
        node->contents = sim_new_contents(operation);
        if (operation != NULL) operation->context = node->context;
        operation = NULL;
        for (size_t number = 0; number < count; number++)
            sim_add_edge(&node->dependencies, dependencies[number], data ? &data[number] : NULL);
        status = fill_node(node, params);
        if (status == CUDA_SUCCESS) *result = node;
        else sim_remove_node(node);
    }
    if (operation != NULL) sim_discard_operation(operation);
    sim_unlock_graphs();
    return status;
}

CUresult sim_cuGraphAddNode(CUgraphNode *result, CUgraph graph, const CUgraphNode *dependencies,
                            const CUgraphEdgeData *data, size_t count, CUgraphNodeParams *params) {
    if (params == NULL) return CUDA_ERROR_INVALID_VALUE;
    return add_node(result, graph, dependencies, data, count, params);
}

CUresult sim_cuGraphAddNode_v3(CUgraphNode *result, CUgraph graph, const CUgraphNode *dependencies,
                               const CUgraphEdgeData *data, size_t count,
                               CUgraphNodeParams *params) {
    return sim_cuGraphAddNode(result, graph, dependencies, data, count, params);
}

CUresult sim_cuGraphAddKernelNode(CUgraphNode *result, CUgraph graph,
                                  const CUgraphNode *dependencies, size_t count,
                                  const CUDA_KERNEL_NODE_PARAMS *kernel) {
    if (kernel == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
    memcpy(&params.kernel, kernel, sizeof *kernel);
    return add_node(result, graph, dependencies, NULL, count, &params);
}

CUresult sim_cuGraphAddMemcpyNode(CUgraphNode *result, CUgraph graph,
                                  const CUgraphNode *dependencies, size_t count,
                                  const CUDA_MEMCPY3D *copy, CUcontext context) {
    if (copy == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMCPY,
                                .memcpy = {.copyCtx = context, .copyParams = *copy}};
    return add_node(result, graph, dependencies, NULL, count, &params);
}

CUresult sim_cuGraphAddMemsetNode(CUgraphNode *result, CUgraph graph,
                                  const CUgraphNode *dependencies, size_t count,
                                  const CUDA_MEMSET_NODE_PARAMS *memset, CUcontext context) {
    if (memset == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
    memcpy(&params.memset, memset, sizeof *memset);
    params.memset.ctx = context;
    return add_node(result, graph, dependencies, NULL, count, &params);
}

CUresult sim_cuGraphAddHostNode(CUgraphNode *result, CUgraph graph,
                                const CUgraphNode *dependencies, size_t count,
                                const CUDA_HOST_NODE_PARAMS *host) {
    if (host == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_HOST};
    params.host.fn = host->fn;
    params.host.userData = host->userData;
    return add_node(result, graph, dependencies, NULL, count, &params);
}

CUresult sim_cuGraphAddChildGraphNode(CUgraphNode *result, CUgraph graph,
                                      const CUgraphNode *dependencies, size_t count,
                                      CUgraph child) {
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .graph = {.graph = child}};
    return add_node(result, graph, dependencies, NULL, count, &params);
}

CUresult sim_cuGraphAddEmptyNode(CUgraphNode *result, CUgraph graph,
                                 const CUgraphNode *dependencies, size_t count) {
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
    return add_node(result, graph, dependencies, NULL, count, &params);
}

CUresult sim_cuGraphAddEventRecordNode(CUgraphNode *result, CUgraph graph,
                                       const CUgraphNode *dependencies, size_t count,
                                       CUevent event) {
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD,
                                .eventRecord = {.event = event}};
    return add_node(result, graph, dependencies, NULL, count, &params);
}

CUresult sim_cuGraphAddEventWaitNode(CUgraphNode *result, CUgraph graph,
                                     const CUgraphNode *dependencies, size_t count,
                                     CUevent event) {
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT,
                                .eventWait = {.event = event}};
    return add_node(result, graph, dependencies, NULL, count, &params);
}

CUresult sim_cuGraphAddMemAllocNode(CUgraphNode *result, CUgraph graph,
                                    const CUgraphNode *dependencies, size_t count,
                                    CUDA_MEM_ALLOC_NODE_PARAMS *alloc) {
    if (alloc == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
    memcpy(&params.alloc, alloc, sizeof *alloc);
    CUresult status = add_node(result, graph, dependencies, NULL, count, &params);
    if (status == CUDA_SUCCESS) alloc->dptr = params.alloc.dptr;
    return status;
}

CUresult sim_cuGraphAddMemFreeNode(CUgraphNode *result, CUgraph graph,
                                   const CUgraphNode *dependencies, size_t count,
                                   CUdeviceptr address) {
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .free = {.dptr = address}};
    return add_node(result, graph, dependencies, NULL, count, &params);
}

CUresult sim_cuGraphAddBatchMemOpNode(CUgraphNode *result, CUgraph graph,
                                      const CUgraphNode *dependencies, size_t count,
                                      const CUDA_BATCH_MEM_OP_NODE_PARAMS *operations) {
    if (operations == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP};
    memcpy(&params.memOp, operations, sizeof *operations);
    return add_node(result, graph, dependencies, NULL, count, &params);
}
