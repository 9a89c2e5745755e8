/* A registry of live handles: tells a stale or foreign handle from a live one without reading it. */
#ifndef SIM_HANDLES_H
#define SIM_HANDLES_H
#include <stdbool.h>

typedef enum SimHandleKind {
    SIM_NO_HANDLE,
    SIM_STREAM_HANDLE,
    SIM_EVENT_HANDLE,
    SIM_GRAPH_HANDLE,
    SIM_NODE_HANDLE,
    SIM_EXEC_HANDLE,
    SIM_USER_OBJECT_HANDLE,
    SIM_ORPHAN_HANDLE, /* a stream or event whose context was destroyed */
    SIM_MODULE_HANDLE,
    SIM_FUNCTION_HANDLE,
    SIM_LIBRARY_HANDLE,
    SIM_KERNEL_HANDLE,
    SIM_LINK_HANDLE,
} SimHandleKind;

void sim_add_handle(const void *handle, SimHandleKind kind);
void sim_remove_handle(const void *handle);
SimHandleKind sim_handle_kind(const void *handle);
/* Call `visit` for each handle of a kind; it may add and remove handles. */
void sim_visit_handles(SimHandleKind kind, void (*visit)(void *handle, void *argument),
                       void *argument);
#endif
