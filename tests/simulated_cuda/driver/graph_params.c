/* Parameters of nodes: reading them, and setting those of graphs and of executable graphs. */
#include "graphs.h"
#include "memory_operations.h"
#include "pools.h"

#include <stdlib.h>
#include <string.h>

/* ---- reading ---------------------------------------------------------------------------------- */

static CUresult read_params(const SimNode *node, CUgraphNodeParams *result) {
    SimOperation *operation = node->contents ? node->contents->operation : NULL;
    memset(result, 0, sizeof *result);
    result->type = node->type;
    switch (node->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        sim_launch_parameters(operation, (CUDA_KERNEL_NODE_PARAMS *)&result->kernel);
        break;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        if (operation->type != &sim_copy_type) return CUDA_ERROR_NOT_SUPPORTED;
        sim_copy_parameters(operation, &result->memcpy.copyParams);
        result->memcpy.copyCtx = node->context;
        break;
    case CU_GRAPH_NODE_TYPE_MEMSET:
        sim_memset_parameters(operation, (CUDA_MEMSET_NODE_PARAMS *)&result->memset);
        result->memset.ctx = node->context;
        break;
    case CU_GRAPH_NODE_TYPE_HOST: {
        CUDA_HOST_NODE_PARAMS host;
        sim_host_parameters(operation, &host);
        result->host.fn = host.fn;
        result->host.userData = host.userData;
        break;
    }
    case CU_GRAPH_NODE_TYPE_GRAPH: result->graph.graph = node->child; break;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: result->eventRecord.event = node->event; break;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: result->eventWait.event = node->event; break;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        memcpy(&result->alloc, &((PoolOperation *)operation)->params, sizeof result->alloc);
        break;
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        result->free.dptr = (CUdeviceptr)(uintptr_t)((PoolOperation *)operation)->range->info.start;
        break;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        sim_memory_operations_parameters(operation,
                                         (CUDA_BATCH_MEM_OP_NODE_PARAMS *)&result->memOp);
        break;
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: result->conditional = node->conditional; break;
    default: break;
    }
    return CUDA_SUCCESS;
}

/* Read the parameters of a node of one type, or of any type (-1). */
static CUresult get_params(CUgraphNode handle, int type, CUgraphNodeParams *result) {
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_stream_lock);
    const SimNode *node = sim_find_node(handle);
    if (node != NULL && (type < 0 || node->type == type)) status = read_params(node, result);
    sim_unlock_graphs();
    return status;
}

/* Define a function that reads one member of the parameters. */
#define GETTER(name, type, kind, member)                                       \
    CUresult name(CUgraphNode node, kind *result) {                            \
        CUgraphNodeParams params;                                              \
        if (result == NULL) return CUDA_ERROR_INVALID_VALUE;                   \
        CUresult status = get_params(node, type, &params);                     \
        if (status == CUDA_SUCCESS) memcpy(result, &params.member, sizeof *result); \
        return status;                                                         \
    }

CUresult sim_cuGraphNodeGetParams(CUgraphNode node, CUgraphNodeParams *result) {
    return result ? get_params(node, -1, result) : CUDA_ERROR_INVALID_VALUE;
}

/* The declarations have to stand at the beginning of lines, where they are searched for. */
CUresult sim_cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *result);
CUresult sim_cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D *result);
CUresult sim_cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS *result);
CUresult sim_cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS *result);
CUresult sim_cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *result);
CUresult sim_cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent *result);
CUresult sim_cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent *result);
CUresult sim_cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *result);
CUresult sim_cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *result);
CUresult sim_cuGraphBatchMemOpNodeGetParams(CUgraphNode node,
                                            CUDA_BATCH_MEM_OP_NODE_PARAMS *result);

GETTER(sim_cuGraphKernelNodeGetParams, CU_GRAPH_NODE_TYPE_KERNEL, CUDA_KERNEL_NODE_PARAMS, kernel)
GETTER(sim_cuGraphMemcpyNodeGetParams, CU_GRAPH_NODE_TYPE_MEMCPY, CUDA_MEMCPY3D, memcpy.copyParams)
GETTER(sim_cuGraphMemsetNodeGetParams, CU_GRAPH_NODE_TYPE_MEMSET, CUDA_MEMSET_NODE_PARAMS, memset)
GETTER(sim_cuGraphHostNodeGetParams, CU_GRAPH_NODE_TYPE_HOST, CUDA_HOST_NODE_PARAMS, host)
GETTER(sim_cuGraphChildGraphNodeGetGraph, CU_GRAPH_NODE_TYPE_GRAPH, CUgraph, graph.graph)
GETTER(sim_cuGraphEventRecordNodeGetEvent, CU_GRAPH_NODE_TYPE_EVENT_RECORD, CUevent,
       eventRecord.event)
GETTER(sim_cuGraphEventWaitNodeGetEvent, CU_GRAPH_NODE_TYPE_WAIT_EVENT, CUevent, eventWait.event)
GETTER(sim_cuGraphMemAllocNodeGetParams, CU_GRAPH_NODE_TYPE_MEM_ALLOC, CUDA_MEM_ALLOC_NODE_PARAMS,
       alloc)
GETTER(sim_cuGraphMemFreeNodeGetParams, CU_GRAPH_NODE_TYPE_MEM_FREE, CUdeviceptr, free.dptr)
GETTER(sim_cuGraphBatchMemOpNodeGetParams, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
       CUDA_BATCH_MEM_OP_NODE_PARAMS, memOp)

/* ---- setting ---------------------------------------------------------------------------------- */

/* Which node a call means: one of a graph, or its copy in an executable graph. */
typedef struct Target {
    CUgraphNode node;
    CUgraphExec exec;
    bool is_exec;
} Target;

static SimNode *find_target(const Target *target) {
    if (!target->is_exec) return sim_find_node(target->node);
    const SimExec *exec = sim_find_exec(target->exec);
    return exec ? sim_find_exec_node(exec, target->node) : NULL;
}

static bool is_cooperative(const Target *target) {
    pthread_mutex_lock(&sim_stream_lock);
    const SimNode *node = find_target(target);
    bool result = node != NULL && node->attributes != NULL &&
                  node->attributes[CU_LAUNCH_ATTRIBUTE_COOPERATIVE].cooperative;
    sim_unlock_graphs();
    return result;
}

static CUresult set_contents(SimNode *node, const CUgraphNodeParams *params,
                             SimOperation **operation) {
    CUresult status;
    CUevent event = NULL;
    if (params->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD) event = params->eventRecord.event;
    if (params->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT) event = params->eventWait.event;
    if (*operation != NULL) {
        (*operation)->context = sim_node_context(params);
        node->context = (*operation)->context;
        sim_replace_operation(node, *operation);
        *operation = NULL;
    } else if (event != NULL && sim_find_event(event, &status)) {
        node->event = event;
    } else {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static CUresult set_params(Target target, CUgraphNodeParams *params) {
    SimOperation *operation;
    if (params->type == CU_GRAPH_NODE_TYPE_GRAPH && target.is_exec)
        return sim_cuGraphExecChildGraphNodeSetParams(target.exec, target.node,
                                                      params->graph.graph);
    /* The addresses of memory nodes and the bodies of conditional nodes cannot change. */
    if (params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
        params->type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
        params->type == CU_GRAPH_NODE_TYPE_CONDITIONAL ||
        params->type == CU_GRAPH_NODE_TYPE_GRAPH)
        return CUDA_ERROR_NOT_SUPPORTED;
    bool cooperative = params->type == CU_GRAPH_NODE_TYPE_KERNEL && is_cooperative(&target);
    CUresult status = sim_new_node_operation(params, cooperative, &operation);
    if (status) return status;
    pthread_mutex_lock(&sim_stream_lock);
    SimNode *node = find_target(&target);
    status = node != NULL && node->type == params->type ? set_contents(node, params, &operation)
                                                        : CUDA_ERROR_INVALID_VALUE;
    if (operation != NULL) sim_discard_operation(operation);
    sim_unlock_graphs();
    return status;
}

static Target in_graph(CUgraphNode node) { return (Target){.node = node}; }

static Target in_exec(CUgraphExec exec, CUgraphNode node) { return (Target){node, exec, true}; }

static CUresult set_kernel(Target target, const CUDA_KERNEL_NODE_PARAMS *kernel) {
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
    if (kernel == NULL) return CUDA_ERROR_INVALID_VALUE;
    memcpy(&params.kernel, kernel, sizeof *kernel);
    return set_params(target, &params);
}

static CUresult set_copy(Target target, const CUDA_MEMCPY3D *copy, CUcontext context) {
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};
    if (copy == NULL) return CUDA_ERROR_INVALID_VALUE;
    params.memcpy.copyParams = *copy;
    params.memcpy.copyCtx = context;
    return set_params(target, &params);
}

static CUresult set_memset(Target target, const CUDA_MEMSET_NODE_PARAMS *memset,
                           CUcontext context) {
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
    if (memset == NULL) return CUDA_ERROR_INVALID_VALUE;
    memcpy(&params.memset, memset, sizeof *memset);
    params.memset.ctx = context;
    return set_params(target, &params);
}

static CUresult set_host(Target target, const CUDA_HOST_NODE_PARAMS *host) {
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_HOST};
    if (host == NULL) return CUDA_ERROR_INVALID_VALUE;
    params.host.fn = host->fn;
    params.host.userData = host->userData;
    return set_params(target, &params);
}

static CUresult set_operations(Target target, const CUDA_BATCH_MEM_OP_NODE_PARAMS *operations) {
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP};
    if (operations == NULL) return CUDA_ERROR_INVALID_VALUE;
    memcpy(&params.memOp, operations, sizeof *operations);
    return set_params(target, &params);
}

static CUresult set_event(Target target, CUgraphNodeType type, CUevent event) {
    CUgraphNodeParams params = {.type = type};
    if (type == CU_GRAPH_NODE_TYPE_EVENT_RECORD) params.eventRecord.event = event;
    else params.eventWait.event = event;
    return set_params(target, &params);
}

CUresult sim_cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams *params) {
    return params ? set_params(in_graph(node), params) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuGraphNodeSetParams_v2(CUgraphNode node, CUgraphNodeParams *params) {
    return sim_cuGraphNodeSetParams(node, params);
}

CUresult sim_cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                      CUgraphNodeParams *params) {
    return params ? set_params(in_exec(exec, node), params) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params) {
    return set_kernel(in_graph(node), params);
}

CUresult sim_cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                            const CUDA_KERNEL_NODE_PARAMS *params) {
    return set_kernel(in_exec(exec, node), params);
}

CUresult sim_cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D *params) {
    return set_copy(in_graph(node), params, NULL);
}

CUresult sim_cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                            const CUDA_MEMCPY3D *params, CUcontext context) {
    return set_copy(in_exec(exec, node), params, context);
}

CUresult sim_cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params) {
    return set_memset(in_graph(node), params, NULL);
}

CUresult sim_cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                            const CUDA_MEMSET_NODE_PARAMS *params,
                                            CUcontext context) {
    return set_memset(in_exec(exec, node), params, context);
}

CUresult sim_cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS *params) {
    return set_host(in_graph(node), params);
}

CUresult sim_cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                          const CUDA_HOST_NODE_PARAMS *params) {
    return set_host(in_exec(exec, node), params);
}

CUresult sim_cuGraphBatchMemOpNodeSetParams(CUgraphNode node,
                                            const CUDA_BATCH_MEM_OP_NODE_PARAMS *params) {
    return set_operations(in_graph(node), params);
}

CUresult sim_cuGraphExecBatchMemOpNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                const CUDA_BATCH_MEM_OP_NODE_PARAMS *params) {
    return set_operations(in_exec(exec, node), params);
}

CUresult sim_cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event) {
    return set_event(in_graph(node), CU_GRAPH_NODE_TYPE_EVENT_RECORD, event);
}

CUresult sim_cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node,
                                                CUevent event) {
    return set_event(in_exec(exec, node), CU_GRAPH_NODE_TYPE_EVENT_RECORD, event);
}

CUresult sim_cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event) {
    return set_event(in_graph(node), CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
}

CUresult sim_cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
    return set_event(in_exec(exec, node), CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
}

/* ---- attributes of kernel nodes --------------------------------------------------------------- */

static SimNode *find_kernel_node(CUgraphNode handle) {
    SimNode *node = sim_find_node(handle);
    return node != NULL && node->type == CU_GRAPH_NODE_TYPE_KERNEL ? node : NULL;
}

static CUlaunchAttributeValue *attributes_of(SimNode *node) {
    if (node->attributes == NULL)
        node->attributes = sim_zeroed(SIM_KERNEL_ATTRIBUTES * sizeof *node->attributes);
    return node->attributes;
}

static bool is_attribute(CUkernelNodeAttrID attribute) {
    return attribute > CU_LAUNCH_ATTRIBUTE_IGNORE && attribute < SIM_KERNEL_ATTRIBUTES;
}

CUresult sim_cuGraphKernelNodeGetAttribute(CUgraphNode handle, CUkernelNodeAttrID attribute,
                                           CUkernelNodeAttrValue *value) {
    pthread_mutex_lock(&sim_stream_lock);
    SimNode *node = find_kernel_node(handle);
    bool is_valid = node != NULL && value != NULL && is_attribute(attribute);
    if (is_valid) *value = attributes_of(node)[attribute];
    sim_unlock_graphs();
    return is_valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuGraphKernelNodeSetAttribute(CUgraphNode handle, CUkernelNodeAttrID attribute,
                                           const CUkernelNodeAttrValue *value) {
    pthread_mutex_lock(&sim_stream_lock);
    SimNode *node = find_kernel_node(handle);
    bool is_valid = node != NULL && value != NULL && is_attribute(attribute);
    if (is_valid) attributes_of(node)[attribute] = *value;
    sim_unlock_graphs();
    if (!is_valid) return CUDA_ERROR_INVALID_VALUE;
    if (attribute != CU_LAUNCH_ATTRIBUTE_COOPERATIVE) return CUDA_SUCCESS;
    /* The attribute is a property of the launch, which is made again. */
    CUgraphNodeParams params;
    CUresult status = get_params(handle, CU_GRAPH_NODE_TYPE_KERNEL, &params);
    return status ? status : set_params(in_graph(handle), &params);
}

CUresult sim_cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from) {
    pthread_mutex_lock(&sim_stream_lock);
    SimNode *target = find_kernel_node(to), *source = find_kernel_node(from);
    bool is_valid = target != NULL && source != NULL;
    if (is_valid)
        memcpy(attributes_of(target), attributes_of(source),
               SIM_KERNEL_ATTRIBUTES * sizeof *target->attributes);
    sim_unlock_graphs();
    return is_valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
