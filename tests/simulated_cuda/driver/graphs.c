/* Graphs and nodes: creation, copies, dependencies, destruction. */
#include "graphs.h"

#include <stdlib.h>
#include <string.h>

static unsigned int last_graph_id;
static unsigned long long last_node_id;
static SimOperation *discarded;

/* ---- handles and locks ------------------------------------------------------------------------ */

SimGraph *sim_find_graph(CUgraph handle) {
    return sim_handle_kind(handle) == SIM_GRAPH_HANDLE ? handle : NULL;
}

SimNode *sim_find_node(CUgraphNode handle) {
    return sim_handle_kind(handle) == SIM_NODE_HANDLE ? handle : NULL;
}

void sim_discard_operation(SimOperation *operation) {
    operation->next = discarded;
    discarded = operation;
}

void sim_unlock_graphs(void) {
    SimOperation *operation = discarded;
    discarded = NULL;
    SimUserObject *objects = sim_take_dead_user_objects();
    pthread_mutex_unlock(&sim_stream_lock);
    while (operation != NULL) {
        SimOperation *next = operation->next;
        sim_destroy_operation(operation);
        operation = next;
    }
    sim_destroy_user_objects(objects);
}

/* ---- edges ------------------------------------------------------------------------------------ */

bool sim_is_plain_edge(const CUgraphEdgeData *data) {
    static const CUgraphEdgeData plain;
    return data == NULL || memcmp(data, &plain, sizeof plain) == 0;
}

bool sim_has_edge(const SimEdges *edges, const SimNode *node) {
    for (size_t number = 0; number < edges->count; number++)
        if (edges->nodes[number] == node) return true;
    return false;
}

void sim_add_edge(SimEdges *edges, SimNode *node, const CUgraphEdgeData *data) {
    if (sim_has_edge(edges, node)) return;
    size_t capacity = edges->capacity;
    sim_grow((void **)&edges->nodes, &capacity, edges->count, sizeof *edges->nodes);
    sim_grow((void **)&edges->data, &edges->capacity, edges->count, sizeof *edges->data);
    edges->nodes[edges->count] = node;
    edges->data[edges->count++] = data ? *data : (CUgraphEdgeData){0};
}

void sim_clear_edges(SimEdges *edges) {
    free(edges->nodes);
    free(edges->data);
    *edges = (SimEdges){0};
}

static void remove_edge(SimEdges *edges, const SimNode *node) {
    for (size_t number = 0; number < edges->count; number++) {
        if (edges->nodes[number] != node) continue;
        edges->count--;
        size_t rest = edges->count - number;
        memmove(edges->nodes + number, edges->nodes + number + 1, rest * sizeof *edges->nodes);
        memmove(edges->data + number, edges->data + number + 1, rest * sizeof *edges->data);
        return;
    }
}

/* ---- contents --------------------------------------------------------------------------------- */

SimContents *sim_new_contents(SimOperation *operation) {
    if (operation == NULL) return NULL;
    SimContents *contents = sim_zeroed(sizeof *contents);
    contents->references = 1;
    contents->operation = operation;
    return contents;
}

SimContents *sim_retain_contents(SimContents *contents) {
    if (contents != NULL) contents->references++;
    return contents;
}

void sim_release_contents(SimContents *contents) {
    if (contents == NULL || --contents->references > 0) return;
    sim_discard_operation(contents->operation);
    free(contents);
}

void sim_replace_operation(SimNode *node, SimOperation *operation) {
    sim_release_contents(node->contents);
    node->contents = sim_new_contents(operation);
}

void sim_copy_contents(SimNode *to, const SimNode *from) {
    if (from->contents != NULL) {
        const SimOperation *operation = from->contents->operation;
        SimOperation *copy = operation->type->copy(operation);
        if (copy != NULL) copy->context = operation->context;
        sim_replace_operation(to, copy);
    }
    to->context = from->context;
    to->event = from->event;
    to->allocation = from->allocation;
    to->freed = from->freed;
    if (from->attributes != NULL) {
        size_t size = SIM_KERNEL_ATTRIBUTES * sizeof *from->attributes;
        if (to->attributes == NULL) to->attributes = sim_zeroed(size);
        memcpy(to->attributes, from->attributes, size);
    }
}

/* ---- creation and destruction ----------------------------------------------------------------- */

SimGraph *sim_new_graph(SimNode *owner) {
    SimGraph *graph = sim_zeroed(sizeof *graph);
    graph->id = ++last_graph_id;
    graph->owner = owner;
    sim_add_handle(graph, SIM_GRAPH_HANDLE);
    return graph;
}

SimNode *sim_new_node(SimGraph *graph, CUgraphNodeType type) {
    SimNode *node = sim_zeroed(sizeof *node);
    sim_grow((void **)&graph->nodes, &graph->capacity, graph->count, sizeof *graph->nodes);
    graph->nodes[graph->count++] = node;
    node->graph = graph;
    node->type = type;
    node->id = ++last_node_id;
    node->local_id = ++graph->last_local_id;
    sim_add_handle(node, SIM_NODE_HANDLE);
    return node;
}

static void destroy_node(SimNode *node) {
    sim_remove_handle(node);
    sim_release_contents(node->contents);
    if (node->child != NULL) sim_destroy_graph(node->child);
    for (unsigned int number = 0; number < node->conditional.size; number++)
        sim_destroy_graph(node->conditional.phGraph_out[number]);
    free(node->conditional.phGraph_out);
    sim_release_condition(node->condition);
    sim_clear_edges(&node->dependencies);
    free(node->attributes);
    free(node);
}

void sim_remove_node(SimNode *node) {
    SimGraph *graph = node->graph;
    size_t kept = 0;
    for (size_t number = 0; number < graph->count; number++) {
        remove_edge(&graph->nodes[number]->dependencies, node);
        if (graph->nodes[number] != node) graph->nodes[kept++] = graph->nodes[number];
    }
    graph->count = kept;
    destroy_node(node);
}

void sim_destroy_graph(SimGraph *graph) {
    for (size_t number = 0; number < graph->count; number++) destroy_node(graph->nodes[number]);
    while (graph->conditions != NULL) {
        SimCondition *condition = graph->conditions;
        graph->conditions = condition->next;
        condition->next = NULL;
        sim_release_condition(condition);
    }
    sim_release_user_references(graph);
    sim_remove_handle(graph);
    free(graph->nodes);
    free(graph);
}

static void clone_node(SimGraph *clone, const SimNode *node) {
    SimNode *copy = sim_new_node(clone, node->type);
    copy->local_id = node->local_id;
    copy->origin = node->id;
    sim_copy_contents(copy, node);
    if (node->child != NULL) copy->child = sim_clone_graph(node->child, copy);
    if (node->condition == NULL) return;
    copy->condition = sim_retain_condition(node->condition);
    copy->conditional = node->conditional;
    copy->conditional.phGraph_out = sim_zeroed(node->conditional.size * sizeof(CUgraph));
    for (unsigned int number = 0; number < node->conditional.size; number++)
        copy->conditional.phGraph_out[number] =
            sim_clone_graph(node->conditional.phGraph_out[number], copy);
}

SimGraph *sim_clone_graph(const SimGraph *graph, SimNode *owner) {
    SimGraph *clone = sim_new_graph(owner);
    for (size_t number = 0; number < graph->count; number++) {
        graph->nodes[number]->mark = number;
        clone_node(clone, graph->nodes[number]);
    }
    clone->last_local_id = graph->last_local_id;
    for (size_t number = 0; number < graph->count; number++) {
        const SimEdges *edges = &graph->nodes[number]->dependencies;
        for (size_t edge = 0; edge < edges->count; edge++)
            sim_add_edge(&clone->nodes[number]->dependencies,
                         clone->nodes[edges->nodes[edge]->mark], &edges->data[edge]);
    }
    sim_copy_user_references(clone, graph);
    return clone;
}

/* ---- order ------------------------------------------------------------------------------------ */

/* The dependents of each node, by its mark: items[first[mark]] to items[first[mark + 1] - 1]. */
typedef struct Dependents {
    size_t *first;
    SimNode **items;
} Dependents;

static Dependents find_dependents(const SimGraph *graph) {
    size_t *first = sim_zeroed((graph->count + 1) * sizeof *first);
    size_t *place = sim_zeroed((graph->count + 1) * sizeof *place);
    for (size_t number = 0; number < graph->count; number++) {
        const SimEdges *edges = &graph->nodes[number]->dependencies;
        for (size_t edge = 0; edge < edges->count; edge++) first[edges->nodes[edge]->mark + 1]++;
    }
    for (size_t number = 1; number <= graph->count; number++) first[number] += first[number - 1];
    memcpy(place, first, (graph->count + 1) * sizeof *place);
    SimNode **items = sim_zeroed((first[graph->count] + 1) * sizeof *items);
    for (size_t number = 0; number < graph->count; number++) {
        const SimEdges *edges = &graph->nodes[number]->dependencies;
        for (size_t edge = 0; edge < edges->count; edge++)
            items[place[edges->nodes[edge]->mark]++] = graph->nodes[number];
    }
    free(place);
    return (Dependents){first, items};
}

bool sim_sort_graph(SimGraph *graph, SimNode **sorted) {
    size_t *open = sim_zeroed((graph->count + 1) * sizeof *open);
    SimNode **ready = sim_zeroed((graph->count + 1) * sizeof *ready);
    size_t ready_count = 0, done = 0;
    for (size_t number = 0; number < graph->count; number++) {
        SimNode *node = graph->nodes[number];
        node->mark = number;
        open[number] = node->dependencies.count;
        if (open[number] == 0) ready[ready_count++] = node;
    }
    Dependents dependents = find_dependents(graph);
    while (ready_count > 0) {
        size_t chosen = (size_t)(sim_choice(graph->id, done) % ready_count);
        SimNode *node = ready[chosen];
        ready[chosen] = ready[--ready_count];
        sorted[done++] = node;
        for (size_t item = dependents.first[node->mark]; item < dependents.first[node->mark + 1];
             item++) {
            SimNode *dependent = dependents.items[item];
            if (--open[dependent->mark] == 0) ready[ready_count++] = dependent;
        }
    }
    free(dependents.first);
    free(dependents.items);
    free(ready);
    free(open);
    return done == graph->count;
}

/* ---- functions of the API --------------------------------------------------------------------- */

CUresult sim_cuGraphCreate(CUgraph *result, unsigned int flags) {
    if (result == NULL || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_stream_lock);
    *result = sim_new_graph(NULL);
    sim_unlock_graphs();
    return CUDA_SUCCESS;
}

CUresult sim_cuGraphDestroy(CUgraph handle) {
    pthread_mutex_lock(&sim_stream_lock);
    SimGraph *graph = sim_find_graph(handle);
    /* The graph of a child node or of a running capture belongs to it. */
    bool is_free = graph != NULL && graph->owner == NULL && !graph->is_captured_into;
    if (is_free) sim_destroy_graph(graph);
    sim_unlock_graphs();
    return is_free ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuGraphClone(CUgraph *result, CUgraph handle) {
    if (result == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult status = CUDA_SUCCESS;
    pthread_mutex_lock(&sim_stream_lock);
    SimGraph *graph = sim_find_graph(handle);
    if (graph == NULL) status = CUDA_ERROR_INVALID_VALUE;
    for (size_t number = 0; graph != NULL && number < graph->count; number++)
        if (graph->nodes[number]->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
            graph->nodes[number]->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
            status = CUDA_ERROR_NOT_SUPPORTED; /* as documented for memory nodes */
    if (status == CUDA_SUCCESS) *result = sim_clone_graph(graph, NULL);
    sim_unlock_graphs();
    return status;
}

CUresult sim_cuGraphDestroyNode(CUgraphNode handle) {
    CUresult status = CUDA_SUCCESS;
    pthread_mutex_lock(&sim_stream_lock);
    SimNode *node = sim_find_node(handle);
    if (node == NULL) status = CUDA_ERROR_INVALID_VALUE;
    else if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
             node->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
        status = CUDA_ERROR_NOT_SUPPORTED; /* memory nodes cannot be removed */
    else sim_remove_node(node);
    sim_unlock_graphs();
    return status;
}

/* Check the pairs of nodes of an added or a removed list of dependencies. */
static bool are_edges(const SimGraph *graph, const CUgraphNode *from, const CUgraphNode *to,
                      size_t count, bool exist) {
    if (graph == NULL || (count != 0 && (from == NULL || to == NULL))) return false;
    for (size_t number = 0; number < count; number++) {
        if (!sim_find_node(from[number]) || !sim_find_node(to[number]) ||
            from[number]->graph != graph || to[number]->graph != graph ||
            from[number] == to[number] ||
            sim_has_edge(&to[number]->dependencies, from[number]) != exist)
            return false;
    }
    return true;
}

CUresult sim_cuGraphAddDependencies(CUgraph handle, const CUgraphNode *from, const CUgraphNode *to,
                                    const CUgraphEdgeData *data, size_t count) {
    pthread_mutex_lock(&sim_stream_lock);
    bool is_valid = are_edges(sim_find_graph(handle), from, to, count, false);
    for (size_t number = 0; is_valid && number < count; number++)
        sim_add_edge(&to[number]->dependencies, from[number], data ? &data[number] : NULL);
    sim_unlock_graphs();
    return is_valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuGraphRemoveDependencies(CUgraph handle, const CUgraphNode *from,
                                       const CUgraphNode *to, const CUgraphEdgeData *data,
                                       size_t count) {
    (void)data;
    pthread_mutex_lock(&sim_stream_lock);
    bool is_valid = are_edges(sim_find_graph(handle), from, to, count, true);
    for (size_t number = 0; is_valid && number < count; number++)
        remove_edge(&to[number]->dependencies, from[number]);
    sim_unlock_graphs();
    return is_valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
