/* Stream capture. */
#include "streams.h"

CUresult sim_capture_operation(SimStream *stream, SimOperation *operation) {
    (void)stream;
    sim_destroy_operation(operation);
    return CUDA_ERROR_NOT_SUPPORTED;
}
void sim_invalidate_capture(SimCapture *capture) { (void)capture; }
bool sim_invalidate_captures(SimContext *context, bool blocking_only) {
    (void)context;
    (void)blocking_only;
    return false;
}
void sim_leave_capture(SimStream *stream) { (void)stream; }
CUresult sim_capture_record(SimStream *stream, SimEvent *event, bool is_external) {
    (void)stream;
    (void)event;
    (void)is_external;
    return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult sim_capture_event_wait(SimStream *stream, SimEvent *event, bool is_external) {
    return sim_capture_record(stream, event, is_external);
}
SimCapture *sim_capture_of_event(const SimEvent *event) {
    (void)event;
    return NULL;
}
CUresult sim_check_unsafe_call(void) { return CUDA_SUCCESS; }
