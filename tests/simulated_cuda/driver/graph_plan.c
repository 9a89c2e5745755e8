/* Plans of executable graphs, and conditional nodes, whose bodies run step by step. */
#include "graph_plan.h"

#include <stdlib.h>

#define NO_STEP ((size_t)-1)

/* ---- making a plan ---------------------------------------------------------------------------- */

static size_t add_step(SimPlan *plan, SimNode *node, size_t before_capacity) {
    sim_grow((void **)&plan->steps, &plan->capacity, plan->count, sizeof *plan->steps);
    plan->steps[plan->count] = (SimStep){
        .node = node,
        .before = sim_zeroed((before_capacity + 1) * sizeof(size_t)),
    };
    return plan->count++;
}

static void add_before(SimPlan *plan, size_t step, size_t before) {
    if (before != NO_STEP) plan->steps[step].before[plan->steps[step].before_count++] = before;
}

static bool plan_bodies(SimPlan *plan, size_t step, SimNode *node) {
    unsigned int size = node->conditional.size;
    SimPlan **bodies = sim_zeroed((size + 1) * sizeof *bodies);
    plan->steps[step].bodies = bodies;
    for (unsigned int number = 0; number < size; number++) {
        bodies[number] = sim_new_plan(node->conditional.phGraph_out[number], false);
        if (bodies[number] == NULL) return false;
    }
    if (!node->condition->has_default) return true;
    sim_grow((void **)&plan->conditions, &plan->condition_capacity, plan->condition_count,
             sizeof *plan->conditions);
    plan->conditions[plan->condition_count++] = node->condition;
    return true;
}

static bool plan_graph(SimPlan *plan, SimGraph *graph, size_t begin);

/* Add the steps of a node. Its mark becomes the number of the last one. */
static bool plan_node(SimPlan *plan, SimNode *node, size_t begin) {
    const SimEdges *edges = &node->dependencies;
    size_t step = add_step(plan, node->child ? NULL : node, edges->count + 1);
    for (size_t number = 0; number < edges->count; number++)
        add_before(plan, step, edges->nodes[number]->mark);
    if (edges->count == 0) add_before(plan, step, begin);
    node->mark = step;
    if (node->condition != NULL) return plan_bodies(plan, step, node);
    if (node->child == NULL) return true;
    if (!plan_graph(plan, node->child, step)) return false;
    /* The end of the child waits for all of its nodes. */
    size_t end = add_step(plan, NULL, node->child->count + 1);
    for (size_t number = 0; number < node->child->count; number++)
        add_before(plan, end, node->child->nodes[number]->mark);
    add_before(plan, end, step);
    node->mark = end;
    return true;
}

static bool plan_graph(SimPlan *plan, SimGraph *graph, size_t begin) {
    SimNode **sorted = sim_zeroed((graph->count + 1) * sizeof *sorted);
    bool is_valid = sim_sort_graph(graph, sorted);
    for (size_t number = 0; is_valid && number < graph->count; number++)
        is_valid = plan_node(plan, sorted[number], begin);
    free(sorted);
    return is_valid;
}

/* Continue the branch of a step before where nothing else does, or open a branch. */
static void choose_branches(SimPlan *plan) {
    size_t last[SIM_MAX_BRANCHES];
    for (size_t number = 0; number < plan->count; number++) {
        SimStep *step = &plan->steps[number];
        size_t branch = NO_STEP;
        for (size_t item = 0; item < step->before_count && branch == NO_STEP; item++) {
            size_t candidate = plan->steps[step->before[item]].branch;
            if (last[candidate] == step->before[item]) branch = candidate;
        }
        if (branch == NO_STEP)
            branch = plan->branch_count < SIM_MAX_BRANCHES ? plan->branch_count++
                                                           : number % SIM_MAX_BRANCHES;
        step->branch = branch;
        last[branch] = number;
    }
}

SimPlan *sim_new_plan(SimGraph *graph, bool owns_graph) {
    SimPlan *plan = sim_zeroed(sizeof *plan);
    plan->references = 1;
    plan->graph = graph;
    plan->owns_graph = owns_graph;
    if (!plan_graph(plan, graph, NO_STEP)) {
        sim_release_plan(plan);
        return NULL;
    }
    choose_branches(plan);
    return plan;
}

SimPlan *sim_retain_plan(SimPlan *plan) {
    plan->references++;
    return plan;
}

void sim_release_plan(SimPlan *plan) {
    if (--plan->references > 0) return;
    for (size_t number = 0; number < plan->count; number++) {
        SimStep *step = &plan->steps[number];
        free(step->before);
        for (size_t body = 0; step->bodies != NULL && step->bodies[body] != NULL; body++)
            sim_release_plan(step->bodies[body]);
        free(step->bodies);
    }
    if (plan->owns_graph) sim_destroy_graph(plan->graph);
    free(plan->conditions);
    free(plan->steps);
    free(plan);
}

/* ---- running ---------------------------------------------------------------------------------- */

CUresult sim_run_contents(SimContents *contents, SimOperation *caller) {
    SimOperation *operation = contents->operation;
    if (operation->context == NULL) operation->context = caller->context;
    operation->stream = caller->stream;
    return operation->type->run(operation);
}

static CUresult run_conditional_step(SimStep *step, SimOperation *caller);

/* Run the nodes of a body one after the other. */
static CUresult run_body(SimPlan *body, SimOperation *caller) {
    CUresult status = CUDA_SUCCESS;
    pthread_mutex_lock(&sim_stream_lock);
    for (size_t number = 0; number < body->condition_count; number++)
        body->conditions[number]->value = body->conditions[number]->default_value;
    for (size_t number = 0; number < body->count && status == CUDA_SUCCESS; number++) {
        SimStep *step = &body->steps[number];
        if (step->node == NULL || step->node->is_disabled) continue;
        SimContents *contents = sim_retain_contents(step->node->contents);
        pthread_mutex_unlock(&sim_stream_lock);
        if (step->bodies != NULL) status = run_conditional_step(step, caller);
        else if (contents != NULL) status = sim_run_contents(contents, caller);
        pthread_mutex_lock(&sim_stream_lock);
        sim_release_contents(contents);
    }
    sim_unlock_graphs();
    return status;
}

static CUresult run_conditional_step(SimStep *step, SimOperation *caller) {
    const SimCondition *condition = step->node->condition;
    unsigned int size = step->node->conditional.size, value = condition->value;
    CUresult status = CUDA_SUCCESS;
    switch (step->node->conditional.type) {
    case CU_GRAPH_COND_TYPE_IF:
        if (value != 0) status = run_body(step->bodies[0], caller);
        else if (size == 2) status = run_body(step->bodies[1], caller);
        break;
    case CU_GRAPH_COND_TYPE_WHILE:
        while (condition->value != 0 && status == CUDA_SUCCESS) {
            status = run_body(step->bodies[0], caller);
            if (status == CUDA_SUCCESS) status = caller->context->sticky;
        }
        break;
    default:
        if (value < size) status = run_body(step->bodies[value], caller);
        break;
    }
    return status;
}

typedef struct ConditionalOperation {
    SimOperation base;
    SimPlan *plan;
    SimStep *step;
} ConditionalOperation;

static CUresult run_conditional(SimOperation *operation) {
    return run_conditional_step(((ConditionalOperation *)operation)->step, operation);
}

static void destroy_conditional(SimOperation *operation) {
    pthread_mutex_lock(&sim_stream_lock);
    sim_release_plan(((ConditionalOperation *)operation)->plan);
    sim_unlock_graphs();
    free(operation);
}

static const SimOperationType conditional_type = {
    .node_type = CU_GRAPH_NODE_TYPE_CONDITIONAL,
    .name = "conditional node",
    .run = run_conditional,
    .destroy = destroy_conditional,
};

SimOperation *sim_new_conditional(SimPlan *plan, SimStep *step) {
    ConditionalOperation *operation = sim_zeroed(sizeof *operation);
    operation->base.type = &conditional_type;
    operation->plan = sim_retain_plan(plan);
    operation->step = step;
    return &operation->base;
}
