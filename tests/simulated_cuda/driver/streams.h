/* What the files of streams, events, captures and graphs share. */
#ifndef SIM_STREAMS_H
#define SIM_STREAMS_H
#include "handles.h"
#include "sim.h"

/* A position in the queue of a stream: done when the stream has completed that many operations. */
typedef struct SimPoint {
    SimStream *stream;
    uint64_t sequence;
} SimPoint;

/* A list of points; each owns a reference of its stream. */
typedef struct SimPoints {
    SimPoint *items;
    size_t count, capacity;
} SimPoints;

typedef struct SimQueueEntry {
    struct SimQueueEntry *next;
    SimOperation *operation; /* NULL: the entry only waits for its points */
    uint64_t sequence, submitted_at;
    CUresult *result; /* where a blocking caller reads the status, or NULL */
    SimPoints points; /* the entry runs when they are done */
} SimQueueEntry;

typedef enum SimStreamKind { SIM_CREATED_STREAM, SIM_LEGACY_STREAM, SIM_THREAD_STREAM } SimStreamKind;

typedef struct SimCapture SimCapture;
typedef struct CUgraph_st SimGraph;
typedef struct CUgraphNode_st SimNode;
typedef struct CUgraphExec_st SimExec;

/* Nodes that the next node of a capture or of a graph depends on. */
typedef struct SimEdges {
    SimNode **nodes;
    CUgraphEdgeData *data;
    size_t count, capacity;
} SimEdges;

struct CUstream_st {
    SimContext *context; /* NULL: its context was destroyed */
    SimStream *next, *previous; /* in the list of the context */
    SimStreamKind kind;
    int references;
    unsigned int flags;
    int priority;
    unsigned long long id;
    CUstreamAttrValue access_policy, synchronization, domain_map, domain;
    bool is_destroyed; /* by cuStreamDestroy: it ends when its work is done */

    /* The queue. Operations with sequence <= released are not held back. */
    SimQueueEntry *head, *tail;
    uint64_t submitted, completed, released;
    bool is_running;               /* a thread runs an operation of it */
    bool is_held;                  /* in the list of the scheduler */
    SimStream *held_next, *held_previous;
    SimStream *waits_for;          /* the stream in whose list `waiters` this one is */
    SimStream *waiters, *waiters_next;
    SimStream *ready_next;         /* waits for a thread */
    pthread_cond_t done;
    int host_waiters;

    SimCapture *capture; /* NULL: not capturing */
    SimEdges capture_edges;
    SimStream *capture_next; /* next stream of the capture */
};

/* ---- scheduler.c ------------------------------------------------------------------------------
 * One lock guards all streams, events and captures; functions that say so need it. */
extern pthread_mutex_t sim_stream_lock;
uint64_t sim_now(void); /* nanoseconds */
/* Allocate zeroed memory; ends the process without memory. */
void *sim_zeroed(size_t size);
/* Make room for one more item in a list. */
void sim_grow(void **items, size_t *capacity, size_t count, size_t item_size);
void sim_make_condition(pthread_cond_t *condition); /* on the monotonic clock */
uint64_t sim_choice(uint64_t a, uint64_t b); /* a hash of both and of the seed */

/* All of these need the lock. */
SimStream *sim_retain_stream(SimStream *stream);
void sim_release_stream(SimStream *stream);
void sim_add_point(SimPoints *points, SimStream *stream, uint64_t sequence);
void sim_clear_points(SimPoints *points);
bool sim_is_done(SimPoint point);
/* Append an entry that waits for `points`, which it takes; returns its sequence number. */
uint64_t sim_enqueue(SimStream *stream, SimOperation *operation, SimPoints *points);
/* The same, and wait until it is done. Releases the lock meanwhile. */
CUresult sim_enqueue_and_wait(SimStream *stream, SimOperation *operation, SimPoints *points);
/* Stop holding back everything that a point depends on. */
void sim_demand(SimPoint point);
/* Demand a point and wait for it. Releases the lock meanwhile; the caller owns a reference. */
void sim_wait_for(SimPoint point);
/* Reconsider every stream of a context, after it was broken. */
void sim_wake_streams(SimContext *context);

/* ---- streams.c (these need the lock) ---------------------------------------------------------- */
/* The stream of a handle, or NULL and a status. */
SimStream *sim_find_stream(CUstream handle, CUresult *status);
SimStream *sim_new_stream(SimContext *context, SimStreamKind kind, unsigned int flags, int priority);
/* End a stream of the driver itself: release it when its work is done. */
void sim_end_stream(SimStream *stream);
/* Add the points that legacy default stream semantics demand of the next operation. */
void sim_add_implicit_points(SimStream *stream, SimPoints *points);
/* CUDA_ERROR_STREAM_CAPTURE_IMPLICIT if the legacy stream would depend on a capture. */
CUresult sim_check_legacy_stream(SimStream *stream);
/* Enqueue on a stream that is not capturing. */
uint64_t sim_enqueue_operation(SimStream *stream, SimOperation *operation, SimPoints *points);
void sim_destroy_operation(SimOperation *operation); /* does not need the lock */

/* ---- events.c --------------------------------------------------------------------------------- */
/* One call of cuEventRecord. */
typedef struct SimRecord {
    int references;
    SimPoint point;
    _Atomic uint64_t time; /* of completion, 0 before */
} SimRecord;

typedef struct SimSharedEvent SimSharedEvent;

struct CUevent_st {
    SimContext *context; /* NULL: its context was destroyed */
    unsigned int flags;
    SimRecord *record; /* the last one, or NULL */
    /* If the last record was captured: which capture, and after which nodes. */
    unsigned long long capture_id;
    SimEdges capture_edges;
    SimSharedEvent *shared; /* of an interprocess event */
};

/* These need the lock. */
SimEvent *sim_find_event(CUevent handle, CUresult *status);
void sim_enqueue_record(SimStream *stream, SimEvent *event, SimPoints *points);
void sim_enqueue_event_wait(SimStream *stream, SimEvent *event, SimPoints *points);
/* Let a new stream wait for the events of cuCtxWaitEvent. */
void sim_wait_with_context(SimStream *stream);

/* ---- shared_events.c: interprocess events ------------------------------------------------------
 * Memory of both processes counts the records that were submitted and completed. */
SimSharedEvent *sim_new_shared_event(int device);
void sim_release_shared_event(SimSharedEvent *shared); /* when its last user is gone */
SimSharedEvent *sim_retain_shared_event(SimSharedEvent *shared);
uint32_t sim_submit_shared_record(SimSharedEvent *shared); /* returns its number */
void sim_complete_shared_record(SimSharedEvent *shared, uint32_t number);
/* The number of the last record if this process did not submit it and it is not complete, or 0. */
uint32_t sim_open_remote_record(const SimSharedEvent *shared);
void sim_wait_for_remote_record(SimSharedEvent *shared, uint32_t number);
/* An operation that waits for a record of another process. */
SimOperation *sim_new_remote_wait(SimSharedEvent *shared, uint32_t number);

/* ---- callbacks.c ------------------------------------------------------------------------------ */
extern const SimOperationType sim_host_type, sim_callback_type;
SimOperation *sim_new_host_function(CUhostFn function, void *data);
void sim_host_parameters(const SimOperation *operation, CUDA_HOST_NODE_PARAMS *result);

/* ---- capture.c (these need the lock) ---------------------------------------------------------- */
/* Add an operation to the graph of a capturing stream; takes the operation. */
CUresult sim_capture_operation(SimStream *stream, SimOperation *operation);
void sim_invalidate_capture(SimCapture *capture);
/* Invalidate the captures of a context and report whether there was one. */
bool sim_invalidate_captures(SimContext *context, bool blocking_only);
/* A stream leaves its capture because it is destroyed. */
void sim_leave_capture(SimStream *stream);
CUresult sim_capture_record(SimStream *stream, SimEvent *event, bool is_external);
CUresult sim_capture_event_wait(SimStream *stream, SimEvent *event, bool is_external);
/* The active capture that an event was last recorded in, or NULL. */
SimCapture *sim_capture_of_event(const SimEvent *event);
#endif
