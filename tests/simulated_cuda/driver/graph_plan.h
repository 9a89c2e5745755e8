/* The plan of an executable graph: the nodes of a copy of the graph and of its child graphs, in an
 * order that respects dependencies, spread over branches. All functions need sim_stream_lock. */
#ifndef SIM_GRAPH_PLAN_H
#define SIM_GRAPH_PLAN_H
#include "graphs.h"

typedef struct SimStep {
    SimNode *node; /* NULL: begin or end of a child graph */
    size_t *before; /* numbers of the steps that it waits for */
    size_t before_count;
    size_t branch;
    struct SimPlan **bodies; /* of a conditional node */
} SimStep;

struct SimPlan {
    int references; /* of the executable graph, and of its launches that run */
    SimGraph *graph;
    bool owns_graph;
    SimStep *steps;
    size_t count, capacity;
    size_t branch_count;
    SimCondition **conditions; /* that get their default at a launch */
    size_t condition_count, condition_capacity;
};

/* Plan a graph, which the plan owns or not; NULL if it has a cycle. */
SimPlan *sim_new_plan(SimGraph *graph, bool owns_graph);
SimPlan *sim_retain_plan(SimPlan *plan);
void sim_release_plan(SimPlan *plan);
/* An operation that runs a conditional node. */
SimOperation *sim_new_conditional(SimPlan *plan, SimStep *step);
/* Run an operation in the context of its node, without the lock. */
CUresult sim_run_contents(SimContents *contents, SimOperation *caller);
#endif
