/* Stream capture: what is submitted to a capturing stream becomes nodes of a graph. */
#include "graphs.h"

#include <stdlib.h>

struct SimCapture {
    SimCapture *next;
    unsigned long long id;
    SimGraph *graph;
    bool owns_graph; /* until the end; not if the user gave the graph */
    bool is_invalid;
    CUstreamCaptureMode mode;
    pthread_t thread;
    SimStream *origin;
    SimStream *streams;
};

static SimCapture *captures;
static unsigned long long last_id;
static _Thread_local CUstreamCaptureMode thread_mode; /* global at first */

/* ---- streams of a capture --------------------------------------------------------------------- */

static void join(SimCapture *capture, SimStream *stream) {
    stream->capture = capture;
    stream->capture_next = capture->streams;
    capture->streams = stream;
}

static void leave(SimStream *stream) {
    SimStream **link = &stream->capture->streams;
    while (*link != stream) link = &(*link)->capture_next;
    *link = stream->capture_next;
    stream->capture = NULL;
    sim_clear_edges(&stream->capture_edges);
}

static void end_capture(SimCapture *capture) {
    while (capture->streams != NULL) leave(capture->streams);
    SimCapture **link = &captures;
    while (*link != capture) link = &(*link)->next;
    *link = capture->next;
    capture->graph->is_captured_into = false;
    if (capture->owns_graph) sim_destroy_graph(capture->graph);
    free(capture);
}

void sim_leave_capture(SimStream *stream) {
    SimCapture *capture = stream->capture;
    if (capture == NULL) return;
    sim_invalidate_capture(capture);
    if (capture->origin == stream) end_capture(capture);
    else leave(stream);
}

void sim_invalidate_capture(SimCapture *capture) { capture->is_invalid = true; }

static bool is_capturing(const SimStream *stream, const SimContext *context, bool blocking_only) {
    return stream->capture != NULL && stream->context == context &&
           !(blocking_only && (stream->flags & CU_STREAM_NON_BLOCKING));
}

bool sim_invalidate_captures(SimContext *context, bool blocking_only) {
    bool found = false;
    for (SimCapture *capture = captures; capture != NULL; capture = capture->next) {
        for (SimStream *stream = capture->streams; stream; stream = stream->capture_next) {
            if (!is_capturing(stream, context, blocking_only)) continue;
            sim_invalidate_capture(capture);
            found = true;
        }
    }
    return found;
}

static CUresult fail(SimCapture *capture, CUresult status) {
    sim_invalidate_capture(capture);
    return status;
}

/* ---- adding nodes ----------------------------------------------------------------------------- */

/* Add a node that depends on what the stream did before. */
static SimNode *add_node(SimStream *stream, CUgraphNodeType type) {
    SimNode *node = sim_new_node(stream->capture->graph, type);
    node->context = stream->context;
    for (size_t number = 0; number < stream->capture_edges.count; number++)
        sim_add_edge(&node->dependencies, stream->capture_edges.nodes[number],
                     &stream->capture_edges.data[number]);
    sim_clear_edges(&stream->capture_edges);
    sim_add_edge(&stream->capture_edges, node, NULL);
    return node;
}

CUresult sim_capture_operation(SimStream *stream, SimOperation *operation) {
    CUresult status = CUDA_SUCCESS;
    if (stream->capture->is_invalid) {
        status = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    } else if (operation->type->copy == NULL) {
        status = fail(stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    } else {
        SimNode *node = add_node(stream, operation->type->node_type);
        node->contents = sim_new_contents(operation);
        return CUDA_SUCCESS;
    }
    sim_discard_operation(operation);
    return status;
}

CUresult sim_capture_child(SimStream *stream, const SimGraph *graph) {
    if (stream->capture->is_invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    SimNode *node = add_node(stream, CU_GRAPH_NODE_TYPE_GRAPH);
    node->child = sim_clone_graph(graph, node);
    return CUDA_SUCCESS;
}

/* ---- events ----------------------------------------------------------------------------------- */

SimCapture *sim_capture_of_event(const SimEvent *event) {
    SimCapture *capture = captures;
    while (capture != NULL && capture->id != event->capture_id) capture = capture->next;
    return capture;
}

static void add_edges(SimEdges *to, const SimEdges *from) {
    for (size_t number = 0; number < from->count; number++)
        sim_add_edge(to, from->nodes[number], &from->data[number]);
}

CUresult sim_capture_record(SimStream *stream, SimEvent *event, bool is_external) {
    if (stream->capture->is_invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (is_external) {
        add_node(stream, CU_GRAPH_NODE_TYPE_EVENT_RECORD)->event = event;
        return CUDA_SUCCESS;
    }
    event->capture_id = stream->capture->id;
    sim_clear_edges(&event->capture_edges);
    add_edges(&event->capture_edges, &stream->capture_edges);
    return CUDA_SUCCESS;
}

/* A wait of a stream that is not capturing for a captured event brings it into the capture. */
static CUresult fork_capture(SimStream *stream, SimEvent *event) {
    SimCapture *capture = sim_capture_of_event(event);
    if (capture == NULL) return CUDA_ERROR_CAPTURED_EVENT; /* the capture is over */
    if (capture->is_invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream->kind == SIM_LEGACY_STREAM)
        return fail(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    join(capture, stream);
    add_edges(&stream->capture_edges, &event->capture_edges);
    return CUDA_SUCCESS;
}

CUresult sim_capture_event_wait(SimStream *stream, SimEvent *event, bool is_external) {
    SimCapture *capture = stream->capture;
    if (capture == NULL) return fork_capture(stream, event);
    if (capture->is_invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (is_external) {
        add_node(stream, CU_GRAPH_NODE_TYPE_WAIT_EVENT)->event = event;
        return CUDA_SUCCESS;
    }
    if (event->capture_id == 0 && event->record == NULL) return CUDA_SUCCESS;
    if (event->capture_id != capture->id) {
        SimCapture *other = event->capture_id ? sim_capture_of_event(event) : NULL;
        if (other == NULL) return fail(capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
        sim_invalidate_capture(other);
        return fail(capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
    add_edges(&stream->capture_edges, &event->capture_edges);
    return CUDA_SUCCESS;
}

/* ---- begin and end ---------------------------------------------------------------------------- */

static CUresult check_begin(const SimStream *stream, CUstreamCaptureMode mode) {
    if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->kind == SIM_LEGACY_STREAM) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return stream->capture ? CUDA_ERROR_ILLEGAL_STATE : CUDA_SUCCESS;
}

static SimCapture *begin(SimStream *stream, CUstreamCaptureMode mode, SimGraph *graph) {
    SimCapture *capture = sim_zeroed(sizeof *capture);
    capture->id = ++last_id;
    capture->owns_graph = graph == NULL;
    capture->graph = graph ? graph : sim_new_graph(NULL);
    capture->graph->is_captured_into = true;
    capture->mode = mode;
    capture->thread = pthread_self();
    capture->origin = stream;
    capture->next = captures;
    captures = capture;
    join(capture, stream);
    return capture;
}

CUresult sim_cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
    CUresult status;
    pthread_mutex_lock(&sim_stream_lock);
    SimStream *stream = sim_find_stream(handle, &status);
    if (stream != NULL) status = check_begin(stream, mode);
    if (status == CUDA_SUCCESS) begin(stream, mode, NULL);
    sim_unlock_graphs();
    return status;
}

CUresult sim_cuStreamBeginCaptureToGraph(CUstream handle, CUgraph graph_handle,
                                         const CUgraphNode *dependencies,
                                         const CUgraphEdgeData *data, size_t count,
                                         CUstreamCaptureMode mode) {
    CUresult status;
    pthread_mutex_lock(&sim_stream_lock);
    SimStream *stream = sim_find_stream(handle, &status);
    SimGraph *graph = sim_find_graph(graph_handle);
    if (stream != NULL) status = check_begin(stream, mode);
    if (status == CUDA_SUCCESS) status = sim_check_dependencies(graph, dependencies, data, count);
    if (status == CUDA_SUCCESS && graph->is_captured_into) status = CUDA_ERROR_INVALID_VALUE;
    if (status == CUDA_SUCCESS) {
        begin(stream, mode, graph);
        for (size_t number = 0; number < count; number++)
            sim_add_edge(&stream->capture_edges, dependencies[number],
                         data ? &data[number] : NULL);
    }
    sim_unlock_graphs();
    return status;
}

/* Whether the ends of all streams lead to the end of the origin. */
static bool is_joined(const SimCapture *capture) {
    const SimGraph *graph = capture->graph;
    SimNode **stack = sim_zeroed((graph->count + 1) * sizeof *stack);
    size_t depth = 0;
    for (size_t number = 0; number < graph->count; number++) graph->nodes[number]->mark = 0;
    const SimEdges *edges = &capture->origin->capture_edges;
    for (;;) {
        for (size_t number = 0; number < edges->count; number++) {
            SimNode *node = edges->nodes[number];
            if (node->mark == 0) stack[depth++] = node;
            node->mark = 1;
        }
        if (depth == 0) break;
        edges = &stack[--depth]->dependencies;
    }
    free(stack);
    for (SimStream *stream = capture->streams; stream != NULL; stream = stream->capture_next)
        for (size_t number = 0; number < stream->capture_edges.count; number++)
            if (stream->capture_edges.nodes[number]->mark == 0) return false;
    return true;
}

static CUresult end(SimStream *stream, CUgraph *graph) {
    SimCapture *capture = stream->capture;
    if (capture == NULL) return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
        !pthread_equal(capture->thread, pthread_self()))
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    if (capture->origin != stream) return fail(capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    CUresult status = CUDA_SUCCESS;
    if (capture->is_invalid) status = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!is_joined(capture)) status = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    if (status == CUDA_SUCCESS) {
        capture->owns_graph = false;
        *graph = capture->graph;
    }
    end_capture(capture);
    return status;
}

CUresult sim_cuStreamEndCapture(CUstream handle, CUgraph *graph) {
    CUresult status;
    if (graph == NULL) return CUDA_ERROR_INVALID_VALUE;
    *graph = NULL;
    pthread_mutex_lock(&sim_stream_lock);
    SimStream *stream = sim_find_stream(handle, &status);
    if (stream != NULL) status = end(stream, graph);
    sim_unlock_graphs();
    return status;
}

/* ---- queries ---------------------------------------------------------------------------------- */

/* A query of the legacy stream fails during the capture of a blocking stream, which stays valid. */
static CUresult check_query(const SimStream *stream) {
    if (stream->kind != SIM_LEGACY_STREAM) return CUDA_SUCCESS;
    for (SimCapture *capture = captures; capture != NULL; capture = capture->next)
        for (SimStream *other = capture->streams; other; other = other->capture_next)
            if (is_capturing(other, stream->context, true))
                return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    return CUDA_SUCCESS;
}

static CUstreamCaptureStatus capture_status(const SimStream *stream) {
    if (stream->capture == NULL) return CU_STREAM_CAPTURE_STATUS_NONE;
    return stream->capture->is_invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                       : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

CUresult sim_cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *result) {
    CUresult status;
    if (result == NULL) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_stream_lock);
    const SimStream *stream = sim_find_stream(handle, &status);
    if (stream != NULL && (status = check_query(stream)) == CUDA_SUCCESS)
        *result = capture_status(stream);
    sim_unlock_graphs();
    return status;
}

CUresult sim_cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus *result,
                                    cuuint64_t *id, CUgraph *graph,
                                    const CUgraphNode **dependencies,
                                    const CUgraphEdgeData **data, size_t *count) {
    CUresult status;
    if (result == NULL) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_stream_lock);
    const SimStream *stream = sim_find_stream(handle, &status);
    if (stream != NULL && (status = check_query(stream)) == CUDA_SUCCESS) {
        const SimEdges *edges = &stream->capture_edges;
        *result = capture_status(stream);
        if (*result == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
            for (size_t number = 0; dependencies && !data && number < edges->count; number++)
                if (!sim_is_plain_edge(&edges->data[number])) status = CUDA_ERROR_LOSSY_QUERY;
            if (id != NULL) *id = stream->capture->id;
            if (graph != NULL) *graph = stream->capture->graph;
            if (dependencies != NULL) *dependencies = edges->nodes;
            if (data != NULL) *data = edges->data;
            if (count != NULL) *count = edges->count;
        }
    }
    sim_unlock_graphs();
    return status;
}

CUresult sim_cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus *result,
                                       cuuint64_t *id, CUgraph *graph,
                                       const CUgraphNode **dependencies, size_t *count) {
    return sim_cuStreamGetCaptureInfo(handle, result, id, graph, dependencies, NULL, count);
}

CUresult sim_cuStreamUpdateCaptureDependencies(CUstream handle, CUgraphNode *dependencies,
                                               const CUgraphEdgeData *data, size_t count,
                                               unsigned int flags) {
    CUresult status;
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_stream_lock);
    SimStream *stream = sim_find_stream(handle, &status);
    SimCapture *capture = stream ? stream->capture : NULL;
    if (stream != NULL && capture == NULL) status = CUDA_ERROR_ILLEGAL_STATE;
    else if (capture != NULL && capture->is_invalid) status = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (capture != NULL)
        status = sim_check_dependencies(capture->graph, dependencies, data, count);
    if (status == CUDA_SUCCESS) {
        if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) sim_clear_edges(&stream->capture_edges);
        for (size_t number = 0; number < count; number++)
            sim_add_edge(&stream->capture_edges, dependencies[number],
                         data ? &data[number] : NULL);
    }
    sim_unlock_graphs();
    return status;
}

/* ---- unsafe calls ----------------------------------------------------------------------------- */

CUresult sim_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    if (mode == NULL || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL ||
        *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

/* Whether a capture forbids unsafe calls in this thread, by the rules of
 * cuThreadExchangeStreamCaptureMode. */
static bool forbids_unsafe_calls(const SimCapture *capture) {
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
    if (pthread_equal(capture->thread, pthread_self()))
        return capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    return thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
           capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult sim_check_unsafe_call(void) {
    CUresult status = CUDA_SUCCESS;
    pthread_mutex_lock(&sim_stream_lock);
    for (SimCapture *capture = captures; capture != NULL; capture = capture->next)
        if (forbids_unsafe_calls(capture))
            status = fail(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    pthread_mutex_unlock(&sim_stream_lock);
    return status;
}
