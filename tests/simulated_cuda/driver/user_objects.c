/* User objects: counted references with a destructor, which graphs keep alive. */
#include "graphs.h"

#include <stdlib.h>

struct CUuserObject_st {
    SimUserObject *next; /* in the list of dead objects */
    unsigned long long references;
    CUhostFn destructor;
    void *data;
};

static SimUserObject *dead_objects;

SimUserObject *sim_take_dead_user_objects(void) {
    SimUserObject *list = dead_objects;
    dead_objects = NULL;
    return list;
}

void sim_destroy_user_objects(SimUserObject *list) {
    while (list != NULL) {
        SimUserObject *next = list->next;
        list->destructor(list->data);
        free(list);
        list = next;
    }
}

static void release(SimUserObject *object, unsigned int count) {
    object->references -= count;
    if (object->references > 0) return;
    sim_remove_handle(object);
    object->next = dead_objects;
    dead_objects = object;
}

static void add_reference(SimGraph *graph, SimUserObject *object, unsigned int count) {
    for (SimUserReference *user = graph->users; user != NULL; user = user->next) {
        if (user->object == object) {
            user->count += count;
            return;
        }
    }
    SimUserReference *user = sim_zeroed(sizeof *user);
    *user = (SimUserReference){graph->users, object, count};
    graph->users = user;
}

/* A copy of a graph keeps its objects alive with references of its own. */
void sim_copy_user_references(SimGraph *to, const SimGraph *from) {
    for (SimUserReference *user = from->users; user != NULL; user = user->next) {
        user->object->references += user->count;
        add_reference(to, user->object, user->count);
    }
}

void sim_release_user_references(SimGraph *graph) {
    while (graph->users != NULL) {
        SimUserReference *user = graph->users;
        graph->users = user->next;
        release(user->object, user->count);
        free(user);
    }
}

static bool is_object(CUuserObject object) {
    return sim_handle_kind(object) == SIM_USER_OBJECT_HANDLE;
}

CUresult sim_cuUserObjectCreate(CUuserObject *result, void *data, CUhostFn destructor,
                                unsigned int references, unsigned int flags) {
    /* The destructor may run at any time after the last release: the one flag there is. */
    if (result == NULL || destructor == NULL || references == 0 || references > INT32_MAX ||
        flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    SimUserObject *object = sim_zeroed(sizeof *object);
    object->references = references;
    object->destructor = destructor;
    object->data = data;
    sim_add_handle(object, SIM_USER_OBJECT_HANDLE);
    *result = object;
    return CUDA_SUCCESS;
}

CUresult sim_cuUserObjectRetain(CUuserObject object, unsigned int count) {
    pthread_mutex_lock(&sim_stream_lock);
    bool is_valid = is_object(object) && count > 0 && count <= INT32_MAX;
    if (is_valid) object->references += count;
    sim_unlock_graphs();
    return is_valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuUserObjectRelease(CUuserObject object, unsigned int count) {
    pthread_mutex_lock(&sim_stream_lock);
    bool is_valid = is_object(object) && count > 0 && count <= object->references;
    if (is_valid) release(object, count);
    sim_unlock_graphs();
    return is_valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuGraphRetainUserObject(CUgraph handle, CUuserObject object, unsigned int count,
                                     unsigned int flags) {
    pthread_mutex_lock(&sim_stream_lock);
    SimGraph *graph = sim_find_graph(handle);
    bool is_valid = graph != NULL && is_object(object) && count > 0 && count <= INT32_MAX &&
                    !(flags & ~(unsigned int)CU_GRAPH_USER_OBJECT_MOVE);
    if (is_valid) {
        /* A moved reference is one that the caller gives away. */
        if (!(flags & CU_GRAPH_USER_OBJECT_MOVE)) object->references += count;
        add_reference(graph, object, count);
    }
    sim_unlock_graphs();
    return is_valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuGraphReleaseUserObject(CUgraph handle, CUuserObject object, unsigned int count) {
    bool is_valid = false;
    pthread_mutex_lock(&sim_stream_lock);
    SimGraph *graph = sim_find_graph(handle);
    SimUserReference **link = graph ? &graph->users : NULL;
    while (link != NULL && *link != NULL && (*link)->object != object) link = &(*link)->next;
    if (link != NULL && *link != NULL && count > 0 && count <= (*link)->count) {
        SimUserReference *user = *link;
        is_valid = true;
        user->count -= count;
        if (user->count == 0) {
            *link = user->next;
            free(user);
        }
        release(object, count);
    }
    sim_unlock_graphs();
    return is_valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
