/* Executable graphs: instantiation and launches. A launch puts the nodes into queues of streams, one
 * for each branch, so that the scheduler runs them as it runs all work. */
#include "graph_plan.h"

#include <stdlib.h>

static unsigned int last_id;

SimExec *sim_find_exec(CUgraphExec handle) {
    return sim_handle_kind(handle) == SIM_EXEC_HANDLE ? handle : NULL;
}

SimGraph *sim_exec_graph(const SimExec *exec) { return exec->plan->graph; }

static SimNode *find_by_origin(const SimGraph *graph, unsigned long long origin) {
    for (size_t number = 0; number < graph->count; number++) {
        SimNode *node = graph->nodes[number], *found = NULL;
        if (node->origin == origin) return node;
        if (node->child != NULL) found = find_by_origin(node->child, origin);
        for (unsigned int body = 0; found == NULL && body < node->conditional.size; body++)
            found = find_by_origin(node->conditional.phGraph_out[body], origin);
        if (found != NULL) return found;
    }
    return NULL;
}

SimNode *sim_find_exec_node(const SimExec *exec, CUgraphNode original) {
    const SimNode *node = sim_find_node(original);
    return node ? find_by_origin(exec->plan->graph, node->id) : NULL;
}

CUresult sim_cuGraphNodeFindInClone(CUgraphNode *result, CUgraphNode original, CUgraph handle) {
    if (result == NULL) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_stream_lock);
    const SimNode *node = sim_find_node(original);
    const SimGraph *clone = sim_find_graph(handle);
    *result = node && clone ? find_by_origin(clone, node->id) : NULL;
    sim_unlock_graphs();
    return *result ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- instantiation ---------------------------------------------------------------------------- */

static bool has_unused_condition(const SimGraph *graph) {
    for (const SimCondition *condition = graph->conditions; condition; condition = condition->next)
        if (!condition->is_used) return true;
    return false;
}

/* A node that cannot be sorted because it depends on a cycle, or NULL. */
static SimNode *find_cycle(SimGraph *graph) {
    SimNode **sorted = sim_zeroed((graph->count + 1) * sizeof *sorted);
    SimNode *found = NULL;
    if (!sim_sort_graph(graph, sorted)) {
        for (size_t number = 0; number < graph->count; number++) graph->nodes[number]->mark = 0;
        for (size_t number = 0; sorted[number] != NULL; number++) sorted[number]->mark = 1;
        for (size_t number = 0; found == NULL; number++)
            if (graph->nodes[number]->mark == 0) found = graph->nodes[number];
    }
    free(sorted);
    return found;
}

static CUresult instantiate(CUgraphExec *result, SimGraph *graph, unsigned long long flags,
                            CUgraphNode *error, CUgraphInstantiateResult *reason) {
    *error = NULL;
    *reason = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    if (graph == NULL) {
        *reason = CUDA_GRAPH_INSTANTIATE_ERROR;
    } else if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) {
        *reason = CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED;
        return CUDA_ERROR_NOT_SUPPORTED;
    } else if (has_unused_condition(graph)) {
        *reason = CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED;
    }
    if (*reason) return CUDA_ERROR_INVALID_VALUE;
    SimPlan *plan = sim_new_plan(sim_clone_graph(graph, NULL), true);
    if (plan == NULL) {
        *error = find_cycle(graph);
        *reason = CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
        return CUDA_ERROR_INVALID_VALUE;
    }
    SimExec *exec = sim_zeroed(sizeof *exec);
    exec->id = ++last_id;
    exec->flags = flags;
    exec->plan = plan;
    sim_add_handle(exec, SIM_EXEC_HANDLE);
    *result = exec;
    return CUDA_SUCCESS;
}

static const unsigned long long known_flags =
    CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
    CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;

CUresult sim_cuGraphInstantiate(CUgraphExec *result, CUgraph handle, unsigned long long flags) {
    CUgraphNode error;
    CUgraphInstantiateResult reason;
    /* The flag to upload is for cuGraphInstantiateWithParams, which has a stream for it. */
    if (result == NULL || (flags & (~known_flags | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_stream_lock);
    CUresult status = instantiate(result, sim_find_graph(handle), flags, &error, &reason);
    sim_unlock_graphs();
    return status;
}

CUresult sim_cuGraphInstantiateWithParams(CUgraphExec *result, CUgraph handle,
                                          CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    if (result == NULL || params == NULL || (params->flags & ~known_flags))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_stream_lock);
    CUresult status = instantiate(result, sim_find_graph(handle), params->flags,
                                  &params->hErrNode_out, &params->result_out);
    sim_unlock_graphs();
    if (status == CUDA_SUCCESS && (params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD))
        status = sim_cuGraphUpload(*result, params->hUploadStream);
    return status;
}

/* Running launches keep what they need, so an executable graph may be destroyed at any time. */
CUresult sim_cuGraphExecDestroy(CUgraphExec handle) {
    pthread_mutex_lock(&sim_stream_lock);
    SimExec *exec = sim_find_exec(handle);
    if (exec != NULL) {
        sim_remove_handle(exec);
        for (size_t branch = 1; branch < SIM_MAX_BRANCHES; branch++)
            if (exec->branches[branch] != NULL) sim_end_stream(exec->branches[branch]);
        if (exec->last.stream != NULL) sim_release_stream(exec->last.stream);
        sim_release_plan(exec->plan);
        free(exec);
    }
    sim_unlock_graphs();
    return exec ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- operations of a launch ------------------------------------------------------------------- */

typedef struct NodeOperation {
    SimOperation base;
    SimContents *contents;
} NodeOperation;

static CUresult run_node(SimOperation *operation) {
    return sim_run_contents(((NodeOperation *)operation)->contents, operation);
}

static void destroy_node_operation(SimOperation *operation) {
    pthread_mutex_lock(&sim_stream_lock);
    sim_release_contents(((NodeOperation *)operation)->contents);
    sim_unlock_graphs();
    free(operation);
}

static const SimOperationType node_operation_type = {
    .node_type = CU_GRAPH_NODE_TYPE_EMPTY,
    .name = "graph node",
    .run = run_node,
    .destroy = destroy_node_operation,
};

typedef struct LaunchOperation {
    SimOperation base;
    SimPlan *plan;
} LaunchOperation;

static CUresult begin_launch(SimOperation *operation) {
    const SimPlan *plan = ((LaunchOperation *)operation)->plan;
    for (size_t number = 0; number < plan->condition_count; number++)
        plan->conditions[number]->value = plan->conditions[number]->default_value;
    return CUDA_SUCCESS;
}

static CUresult end_launch(SimOperation *operation) {
    (void)operation;
    return CUDA_SUCCESS;
}

static void destroy_launch(SimOperation *operation) {
    pthread_mutex_lock(&sim_stream_lock);
    sim_release_plan(((LaunchOperation *)operation)->plan);
    sim_unlock_graphs();
    free(operation);
}

static const SimOperationType begin_type = {CU_GRAPH_NODE_TYPE_EMPTY, "begin of a graph",
                                            begin_launch, NULL, destroy_launch};
static const SimOperationType end_type = {CU_GRAPH_NODE_TYPE_EMPTY, "end of a graph", end_launch,
                                          NULL, destroy_launch};

static SimOperation *new_launch_operation(const SimOperationType *type, SimPlan *plan) {
    LaunchOperation *operation = sim_zeroed(sizeof *operation);
    operation->base.type = type;
    operation->plan = sim_retain_plan(plan);
    return &operation->base;
}

/* ---- launching -------------------------------------------------------------------------------- */

typedef struct Launch {
    SimExec *exec;
    SimStream *stream;
    uint64_t begin; /* sequence number of the first operation */
    uint64_t *ends; /* of each step, in the stream of its branch */
} Launch;

static SimStream *branch_stream(const Launch *launch, size_t branch) {
    if (branch == 0) return launch->stream;
    SimStream **place = &launch->exec->branches[branch];
    /* A branch runs in the context of the launch, which may change from launch to launch. */
    if (*place != NULL && (*place)->context != launch->stream->context) {
        sim_end_stream(*place);
        *place = NULL;
    }
    if (*place == NULL)
        *place = sim_retain_stream(sim_new_stream(launch->stream->context, SIM_CREATED_STREAM,
                                                  CU_STREAM_NON_BLOCKING, 0));
    return *place;
}

static void enqueue_step(const Launch *launch, size_t number) {
    SimPlan *plan = launch->exec->plan;
    SimStep *step = &plan->steps[number];
    SimStream *stream = branch_stream(launch, step->branch);
    SimNode *node = step->node;
    SimPoints points = {0};
    if (step->branch != 0) sim_add_point(&points, launch->stream, launch->begin);
    for (size_t item = 0; item < step->before_count; item++) {
        size_t before = step->before[item];
        if (plan->steps[before].branch != step->branch)
            sim_add_point(&points, branch_stream(launch, plan->steps[before].branch),
                          launch->ends[before]);
    }
    CUresult status;
    SimOperation *operation = NULL;
    bool has_event = node != NULL && node->event != NULL && sim_find_event(node->event, &status);
    if (has_event && node->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD) {
        sim_enqueue_record(stream, node->event, &points);
    } else if (has_event) {
        sim_enqueue_event_wait(stream, node->event, &points);
    } else {
        if (step->bodies != NULL) {
            operation = sim_new_conditional(plan, step);
        } else if (node != NULL && node->contents != NULL && !node->is_disabled) {
            NodeOperation *wrapper = sim_zeroed(sizeof *wrapper);
            wrapper->base.type = &node_operation_type;
            wrapper->contents = sim_retain_contents(node->contents);
            operation = &wrapper->base;
        }
        sim_enqueue(stream, operation, &points);
    }
    launch->ends[number] = stream->submitted;
}

static void launch_exec(SimExec *exec, SimStream *stream) {
    SimPlan *plan = exec->plan;
    Launch launch = {exec, stream, 0, sim_zeroed((plan->count + 1) * sizeof(uint64_t))};
    SimPoints points = {0};
    if (exec->last.stream != NULL) {
        sim_add_point(&points, exec->last.stream, exec->last.sequence);
        sim_release_stream(exec->last.stream);
    }
    launch.begin = sim_enqueue_operation(stream, new_launch_operation(&begin_type, plan), &points);
    for (size_t number = 0; number < plan->count; number++) enqueue_step(&launch, number);
    for (size_t branch = 1; branch < plan->branch_count; branch++)
        sim_add_point(&points, exec->branches[branch], exec->branches[branch]->submitted);
    exec->last.stream = sim_retain_stream(stream);
    exec->last.sequence = sim_enqueue(stream, new_launch_operation(&end_type, plan), &points);
    free(launch.ends);
}

CUresult sim_cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
    CUresult status;
    pthread_mutex_lock(&sim_stream_lock);
    SimExec *exec = sim_find_exec(handle);
    SimStream *stream = exec ? sim_find_stream(stream_handle, &status) : NULL;
    if (exec == NULL) {
        status = CUDA_ERROR_INVALID_VALUE;
    } else if (stream == NULL) {
    } else if (stream->capture != NULL) {
        status = sim_capture_child(stream, exec->plan->graph);
    } else if ((status = sim_check_legacy_stream(stream)) == CUDA_SUCCESS) {
        status = stream->context->sticky;
        if (status == CUDA_SUCCESS)
            status = sim_claim_graph_memory(
                exec->plan->graph,
                exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
        if (status == CUDA_SUCCESS) launch_exec(exec, stream);
    }
    sim_unlock_graphs();
    return status;
}

/* There is nothing to upload, so an upload only takes its place in the order of the stream. */
CUresult sim_cuGraphUpload(CUgraphExec handle, CUstream stream_handle) {
    CUresult status;
    pthread_mutex_lock(&sim_stream_lock);
    SimStream *stream = sim_find_stream(stream_handle, &status);
    if (sim_find_exec(handle) == NULL) {
        status = CUDA_ERROR_INVALID_VALUE;
    } else if (stream != NULL && stream->capture != NULL) {
        sim_invalidate_capture(stream->capture);
        status = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    } else if (stream != NULL && (status = sim_check_legacy_stream(stream)) == CUDA_SUCCESS) {
        SimPoints points = {0};
        sim_enqueue_operation(stream, NULL, &points);
    }
    sim_unlock_graphs();
    return status;
}

CUresult sim_cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t *flags) {
    if (flags == NULL || sim_find_exec(handle) == NULL) return CUDA_ERROR_INVALID_VALUE;
    *flags = handle->flags;
    return CUDA_SUCCESS;
}

CUresult sim_cuGraphExecGetId(CUgraphExec handle, unsigned int *id) {
    if (id == NULL || sim_find_exec(handle) == NULL) return CUDA_ERROR_INVALID_VALUE;
    *id = handle->id;
    return CUDA_SUCCESS;
}
