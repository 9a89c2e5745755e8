/* Sends and receives: those of one group proceed together, through a mailbox for each pair of ranks.
 *
 * A send ends when its receiver has taken everything. NCCL may end it earlier, but documents no
 * buffering, so two ranks that both send before they receive wait for ever there and here. */
#include "nccl.h"

#include <string.h>

static bool is_exchange(const SimCall *call) {
    return call->signature.kind == SIM_SEND || call->signature.kind == SIM_RECEIVE;
}

static size_t total_of(const SimCall *call) {
    return call->signature.count * sim_item_size(call->signature.datatype);
}

static void report_mismatch(SimCall *call, const SimSignature *other) {
    char mine[80], theirs[80];
    ncclComm_t comm = call->comm;
    sim_fail(comm, ncclInvalidUsage, "rank %d calls %s, rank %d calls %s", comm->rank,
             sim_describe(&call->signature, mine, sizeof mine), call->signature.root,
             sim_describe(other, theirs, sizeof theirs));
}

/* Each returns whether it changed a mailbox. */
static bool advance_send(SimCall *call, SimMailbox *mailbox) {
    size_t total = total_of(call);
    if (mailbox->state == SIM_MAIL_REFUSED) {
        report_mismatch(call, &mailbox->signature);
        return false;
    }
    if (mailbox->state != SIM_MAIL_EMPTY) {
        return false;
    }
    if (call->is_begun && call->done == total) {
        call->is_done = true;
        return false;
    }
    size_t bytes = total - call->done < SIM_MAIL_BYTES ? total - call->done : SIM_MAIL_BYTES;
    if (bytes > 0) {
        memcpy(mailbox->data, call->send + call->done, bytes);
    }
    mailbox->signature = call->signature;
    mailbox->size = bytes;
    call->done += bytes;
    call->is_begun = true;
    mailbox->state = SIM_MAIL_FULL;
    return true;
}

static bool advance_receive(SimCall *call, SimMailbox *mailbox) {
    SimSignature *other = &mailbox->signature;
    if (mailbox->state != SIM_MAIL_FULL) {
        return false;
    }
    if (other->count != call->signature.count || other->datatype != call->signature.datatype) {
        SimSignature theirs = *other;
        *other = call->signature;
        mailbox->state = SIM_MAIL_REFUSED; /* before this rank counts as failed */
        report_mismatch(call, &theirs);
        return true;
    }
    if (mailbox->size > 0) {
        memcpy(call->receive + call->done, mailbox->data, mailbox->size);
    }
    call->done += mailbox->size;
    call->is_done = call->done == total_of(call);
    mailbox->state = SIM_MAIL_EMPTY;
    return true;
}

/* Calls of one pair and direction go in order: only the first that is not done may proceed. */
static bool is_first(const SimCall *calls, const SimCall *call) {
    const SimCall *each = calls;
    while (each->is_done || each->signature.kind != call->signature.kind ||
           each->signature.root != call->signature.root) {
        each = each->next;
    }
    return each == call;
}

/* Let every call proceed as far as it can; return the peers of the others. */
static uint64_t advance(ncclComm_t comm, void *argument) {
    SimCall *calls = argument;
    uint64_t mask = 0;
    bool has_changed = false;
    for (SimCall *call = calls; call != NULL && comm->async_error == ncclSuccess; call = call->next) {
        if (!is_exchange(call) || call->is_done || !is_first(calls, call)) {
            continue;
        }
        int peer = call->signature.root;
        has_changed |= call->signature.kind == SIM_SEND
                           ? advance_send(call, sim_mailbox(comm, comm->rank, peer))
                           : advance_receive(call, sim_mailbox(comm, peer, comm->rank));
    }
    for (SimCall *call = calls; call != NULL; call = call->next) {
        if (is_exchange(call) && !call->is_done) {
            mask |= (uint64_t)1 << call->signature.root;
        }
    }
    if (has_changed) {
        sim_notify(comm);
    }
    return mask;
}

ncclResult_t sim_run_exchange(ncclComm_t comm, SimCall *calls) { return sim_wait(comm, advance, calls); }
