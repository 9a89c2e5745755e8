/* What contexts.c and context_settings.c share. */
#ifndef SIM_CONTEXTS_H
#define SIM_CONTEXTS_H
#include "tables.h"

bool sim_is_context(const SimContext *context);
/* The context of a handle (NULL: the current one), if it can be used. */
CUresult sim_usable_context(CUcontext handle, SimContext **result);
/* Give a context the settings that it has at first: limits, peers, no error. */
void sim_reset_settings(SimContext *context, const SimDevice *device);
bool sim_are_context_flags(unsigned int flags);
#endif
