/* Graphs. All functions need sim_stream_lock, except those that say otherwise. */
#ifndef SIM_GRAPHS_H
#define SIM_GRAPHS_H
#include "streams.h"

/* The operation of a node. Running launches share it with the graph, so that new parameters of an
 * executable graph do not change launches that were submitted before. */
typedef struct SimContents {
    int references;
    SimOperation *operation;
} SimContents;

/* The value behind a CUgraphConditionalHandle. */
typedef struct SimCondition {
    int references;
    CUgraphConditionalHandle handle;
    _Atomic uint32_t value;
    uint32_t default_value;
    bool has_default; /* assigned at every launch */
    bool is_used;     /* by a conditional node */
    struct SimCondition *next; /* of the graph */
} SimCondition;

typedef struct CUuserObject_st SimUserObject;

typedef struct SimUserReference {
    struct SimUserReference *next;
    SimUserObject *object;
    unsigned int count;
} SimUserReference;

#define SIM_KERNEL_ATTRIBUTES 32

struct CUgraphNode_st {
    SimGraph *graph;
    CUgraphNodeType type;
    unsigned long long id; /* unique in the process */
    unsigned int local_id; /* unique in the graph */
    unsigned long long origin; /* id of the node that this one was cloned from */
    SimContext *context;
    SimContents *contents; /* of nodes that run an operation */
    SimGraph *child;       /* child graph node */
    SimEvent *event;       /* event record and event wait nodes */
    CUDA_CONDITIONAL_NODE_PARAMS conditional; /* phGraph_out: its bodies */
    SimCondition *condition;
    CUDA_MEM_ALLOC_NODE_PARAMS allocation;
    CUdeviceptr freed; /* memory free node */
    CUlaunchAttributeValue *attributes; /* of a kernel node, by id, or NULL */
    SimEdges dependencies;
    bool is_disabled; /* in an executable graph */
    size_t mark;      /* used while a graph is copied, sorted or planned */
};

struct CUgraph_st {
    unsigned int id, last_local_id;
    SimNode *owner; /* the node whose child or body it is, or NULL */
    SimNode **nodes;
    size_t count, capacity;
    SimCondition *conditions;
    SimUserReference *users;
    bool is_captured_into;
};

/* ---- graphs.c --------------------------------------------------------------------------------- */
SimGraph *sim_new_graph(SimNode *owner);
SimGraph *sim_clone_graph(const SimGraph *graph, SimNode *owner);
void sim_destroy_graph(SimGraph *graph);
SimNode *sim_new_node(SimGraph *graph, CUgraphNodeType type);
void sim_remove_node(SimNode *node);
SimContents *sim_new_contents(SimOperation *operation);
SimContents *sim_retain_contents(SimContents *contents);
void sim_release_contents(SimContents *contents); /* NULL is allowed */
void sim_replace_operation(SimNode *node, SimOperation *operation);
/* Copy operation, event and attributes of a node to another of the same type. */
void sim_copy_contents(SimNode *to, const SimNode *from);
void sim_add_edge(SimEdges *edges, SimNode *node, const CUgraphEdgeData *data); /* once */
void sim_clear_edges(SimEdges *edges);
bool sim_has_edge(const SimEdges *edges, const SimNode *node);
bool sim_is_plain_edge(const CUgraphEdgeData *data);
/* Write the nodes in an order that respects dependencies; false if there is a cycle. The scheduler
 * chooses among the possible orders. */
bool sim_sort_graph(SimGraph *graph, SimNode **sorted);
SimGraph *sim_find_graph(CUgraph handle);    /* NULL if it is none */
SimNode *sim_find_node(CUgraphNode handle);  /* NULL if it is none */
/* Release the lock, then free what was released under it: operations and user objects, whose
 * destructors are functions of others. */
void sim_unlock_graphs(void);
void sim_discard_operation(SimOperation *operation); /* freed by sim_unlock_graphs */

/* ---- user_objects.c --------------------------------------------------------------------------- */
void sim_copy_user_references(SimGraph *to, const SimGraph *from);
void sim_release_user_references(SimGraph *graph);
SimUserObject *sim_take_dead_user_objects(void);
void sim_destroy_user_objects(SimUserObject *list); /* without the lock */

/* ---- conditions.c ----------------------------------------------------------------------------- */
SimCondition *sim_retain_condition(SimCondition *condition);
void sim_release_condition(SimCondition *condition); /* NULL is allowed */
CUresult sim_make_conditional(SimNode *node, CUDA_CONDITIONAL_NODE_PARAMS *params);

/* ---- graph_nodes.c ---------------------------------------------------------------------------- */
/* Make the operation of a node, without the lock; *operation is NULL for nodes without one. */
CUresult sim_new_node_operation(CUgraphNodeParams *params, bool is_cooperative,
                                SimOperation **operation);
CUresult sim_check_dependencies(const SimGraph *graph, const CUgraphNode *dependencies,
                                const CUgraphEdgeData *data, size_t count);
SimContext *sim_node_context(const CUgraphNodeParams *params);

/* ---- capture.c: launches of graphs in a capture become child graphs ---------------------------- */
CUresult sim_capture_child(SimStream *stream, const SimGraph *graph);

/* ---- graph_exec.c ----------------------------------------------------------------------------- */
typedef struct SimPlan SimPlan;
#define SIM_MAX_BRANCHES 8

struct CUgraphExec_st {
    unsigned int id;
    unsigned long long flags;
    SimPlan *plan;
    SimStream *branches[SIM_MAX_BRANCHES]; /* the first is unused: the stream of the launch */
    SimPoint last; /* end of the last launch: an executable graph runs one launch at a time */
};

SimExec *sim_find_exec(CUgraphExec handle); /* NULL if it is none */
SimGraph *sim_exec_graph(const SimExec *exec);
/* The node of an executable graph that was made from a node of the graph. */
SimNode *sim_find_exec_node(const SimExec *exec, CUgraphNode original);
CUresult sim_cuGraphUpload(CUgraphExec exec, CUstream stream);
CUresult sim_cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child);
#endif
