/* Threads that run the queues of streams, and the choice when an operation may run.
 *
 * A stream whose first operation can run gets a thread of a pool until its queue is empty or has to
 * wait. Correct programs cannot tell when an operation runs before somebody waits for it. So the
 * scheduler holds operations back to expose programs that forget to wait (NBRT_SIM_SCHEDULE):
 *   eager   no operation is held back
 *   late    every operation is held back (the default: with every cuStreamWaitEvent left out, it
 *           fails more of nbrt's tests than random, and eager fails none; it costs no more time)
 *   random  a hash of seed, stream and sequence number decides (NBRT_SIM_SEED)
 * until somebody waits for them or for work behind them, or NBRT_SIM_HOLD_US have passed: a host
 * thread may wait for a host function by other means than CUDA. */
#include "streams.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_WORKERS 256
#define IDLE_SECONDS 5
#define STACK_BYTES (16u << 20)
#define MAX_IDLE_ROUNDS 20 /* of the timer, before it waits for a signal */

typedef enum Schedule { EAGER, RANDOM, LATE } Schedule;

#define DEFAULT_SCHEDULE LATE
#define DEFAULT_HOLD_US 1000

typedef struct Worker {
    struct Worker *next;
    SimStream *stream;
    pthread_cond_t wake;
} Worker;

pthread_mutex_t sim_stream_lock = PTHREAD_MUTEX_INITIALIZER;

static Worker *idle_workers;
static int worker_count;
static SimStream *ready_head, *ready_tail; /* can run, but all threads are busy */
static SimStream *held_streams;
static pthread_cond_t held_changed;
static bool has_timer;
static uint64_t timer_wakes; /* when it looks at the held streams again */
static Schedule schedule;
static uint64_t seed, hold_time;
static pthread_once_t is_prepared = PTHREAD_ONCE_INIT;

static void schedule_stream(SimStream *stream);

uint64_t sim_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void *sim_zeroed(size_t size) {
    void *memory = calloc(1, size);
    if (memory == NULL) {
        fputs("simulated CUDA driver: no memory\n", stderr);
        abort();
    }
    return memory;
}

void sim_grow(void **items, size_t *capacity, size_t count, size_t item_size) {
    if (count < *capacity) return;
    size_t larger = *capacity ? 2 * *capacity : 4;
    void *memory = sim_zeroed(larger * item_size);
    if (count) memcpy(memory, *items, count * item_size);
    free(*items);
    *items = memory;
    *capacity = larger;
}

void sim_make_condition(pthread_cond_t *condition) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* The finalizer of splitmix64. */
static uint64_t mix(uint64_t bits) {
    bits += UINT64_C(0x9E3779B97F4A7C15);
    bits = (bits ^ (bits >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    bits = (bits ^ (bits >> 27)) * UINT64_C(0x94D049BB133111EB);
    return bits ^ (bits >> 31);
}

uint64_t sim_choice(uint64_t a, uint64_t b) { return mix(mix(seed ^ mix(a)) ^ b); }

static bool set_schedule(const char *name) {
    static const char *const names[] = {[EAGER] = "eager", [RANDOM] = "random", [LATE] = "late"};
    for (int number = EAGER; number <= LATE; number++) {
        if (strcmp(name, names[number]) == 0) {
            schedule = (Schedule)number;
            return true;
        }
    }
    return false;
}

/* Take the schedule from the environment. */
static void read_schedule(void) {
    const char *name = getenv("NBRT_SIM_SCHEDULE");
    schedule = DEFAULT_SCHEDULE;
    seed = (uint64_t)sim_setting("NBRT_SIM_SEED", 1);
    hold_time = (uint64_t)sim_setting("NBRT_SIM_HOLD_US", DEFAULT_HOLD_US) * 1000;
    if (name != NULL && *name != '\0' && !set_schedule(name))
        fprintf(stderr, "NBRT_SIM_SCHEDULE must be eager, random or late, got %s\n", name);
}

static void prepare(void) {
    sim_make_condition(&held_changed);
    read_schedule();
}

/* Change the schedule of this process, e.g. for one test; NULL: as the environment says. Returns
 * false if there is no such schedule. */
SIM_EXPORT bool sim_set_schedule(const char *name, unsigned long long new_seed,
                                 unsigned long long hold_microseconds);
SIM_EXPORT bool sim_set_schedule(const char *name, unsigned long long new_seed,
                                 unsigned long long hold_microseconds) {
    pthread_once(&is_prepared, prepare);
    pthread_mutex_lock(&sim_stream_lock);
    bool is_known = name == NULL || set_schedule(name);
    if (name == NULL) {
        read_schedule();
    } else if (is_known) {
        seed = new_seed;
        hold_time = hold_microseconds * 1000;
    }
    pthread_mutex_unlock(&sim_stream_lock);
    return is_known;
}

/* ---- references and points -------------------------------------------------------------------- */

SimStream *sim_retain_stream(SimStream *stream) {
    stream->references++;
    return stream;
}

/* Not inlined: gcc would believe that a stream with other references is freed here. */
__attribute__((noinline)) void sim_release_stream(SimStream *stream) {
    if (--stream->references > 0) return;
    pthread_cond_destroy(&stream->done);
    free(stream->capture_edges.nodes);
    free(stream->capture_edges.data);
    free(stream);
}

void sim_add_point(SimPoints *points, SimStream *stream, uint64_t sequence) {
    if (stream->completed >= sequence) return;
    sim_grow((void **)&points->items, &points->capacity, points->count, sizeof *points->items);
    points->items[points->count++] = (SimPoint){sim_retain_stream(stream), sequence};
}

void sim_clear_points(SimPoints *points) {
    for (size_t number = 0; number < points->count; number++)
        sim_release_stream(points->items[number].stream);
    free(points->items);
    *points = (SimPoints){0};
}

bool sim_is_done(SimPoint point) { return point.stream->completed >= point.sequence; }

/* ---- running ---------------------------------------------------------------------------------- */

static bool is_broken(const SimStream *stream) {
    return stream->context != NULL && stream->context->sticky != CUDA_SUCCESS;
}

static SimStream *first_open_point(const SimQueueEntry *entry) {
    for (size_t number = 0; number < entry->points.count; number++)
        if (!sim_is_done(entry->points.items[number])) return entry->points.items[number].stream;
    return NULL;
}

static bool is_held_back(const SimStream *stream, const SimQueueEntry *entry) {
    if (entry->sequence <= stream->released || schedule == EAGER) return false;
    if (schedule == RANDOM && (sim_choice(stream->id, entry->sequence) & 1)) return false;
    return sim_now() < entry->submitted_at + hold_time;
}

static bool can_run(const SimStream *stream) {
    const SimQueueEntry *entry = stream->head;
    if (entry == NULL) return false;
    return is_broken(stream) || (!first_open_point(entry) && !is_held_back(stream, entry));
}

/* Errors after which the context of a process cannot be used any more. */
static bool is_fault(CUresult status) {
    return status >= CUDA_ERROR_ILLEGAL_ADDRESS && status <= CUDA_ERROR_LAUNCH_FAILED;
}

/* Run an operation that was taken from its queue; releases the lock meanwhile. */
static CUresult run_operation(SimStream *stream, const SimQueueEntry *entry) {
    SimOperation *operation = entry->operation;
    SimContext *context = stream->context;
    CUresult status = context->sticky;
    bool was_broken = status != CUDA_SUCCESS;
    operation->context = context;
    operation->stream = stream;
    pthread_mutex_unlock(&sim_stream_lock);
    /* A callback gets the error of its context; every other operation is dropped. */
    if (!was_broken || operation->type == &sim_callback_type)
        status = operation->type->run(operation);
    operation->type->destroy(operation);
    bool breaks = !was_broken && status && (entry->result == NULL || is_fault(status));
    if (breaks) sim_break_context(context, status);
    pthread_mutex_lock(&sim_stream_lock);
    if (breaks) sim_wake_streams(context);
    return status;
}

static void wake_waiters(SimStream *stream) {
    if (stream->host_waiters) pthread_cond_broadcast(&stream->done);
    SimStream *waiter = stream->waiters;
    stream->waiters = NULL;
    while (waiter != NULL) {
        SimStream *next = waiter->waiters_next;
        waiter->waits_for = NULL;
        schedule_stream(waiter);
        waiter = next;
    }
}

static void run_first_entry(SimStream *stream) {
    SimQueueEntry *entry = stream->head;
    stream->head = entry->next;
    if (stream->head == NULL) stream->tail = NULL;
    CUresult status = entry->operation ? run_operation(stream, entry) : CUDA_SUCCESS;
    if (entry->result != NULL) *entry->result = status;
    stream->completed = entry->sequence;
    sim_clear_points(&entry->points);
    free(entry);
    wake_waiters(stream);
}

/* Remove a destroyed stream from its context when its last operation is done. */
static void end_stream(SimStream *stream) {
    SimContext *context = stream->context;
    if (!stream->is_destroyed || stream->head != NULL || context == NULL) return;
    if (stream->previous != NULL) stream->previous->next = stream->next;
    else context->streams = stream->next;
    if (stream->next != NULL) stream->next->previous = stream->previous;
    stream->context = NULL;
    sim_release_stream(stream);
}

static void finish_run(SimStream *stream) {
    stream->is_running = false;
    schedule_stream(stream);
    sim_release_stream(stream);
}

static SimStream *next_ready_stream(void) {
    SimStream *stream = ready_head;
    if (stream == NULL) return NULL;
    ready_head = stream->ready_next;
    if (ready_head == NULL) ready_tail = NULL;
    return stream;
}

static bool wait_for_work(Worker *worker) {
    struct timespec limit;
    clock_gettime(CLOCK_MONOTONIC, &limit);
    limit.tv_sec += IDLE_SECONDS;
    worker->next = idle_workers;
    idle_workers = worker;
    int error = 0;
    while (worker->stream == NULL && error == 0)
        error = pthread_cond_timedwait(&worker->wake, &sim_stream_lock, &limit);
    if (worker->stream != NULL) return true;
    Worker **link = &idle_workers;
    while (*link != worker) link = &(*link)->next;
    *link = worker->next;
    return false;
}

static void *work(void *argument) {
    Worker *self = argument;
    pthread_mutex_lock(&sim_stream_lock);
    do {
        SimStream *stream = self->stream;
        while (can_run(stream)) run_first_entry(stream);
        finish_run(stream);
        self->stream = next_ready_stream();
    } while (self->stream != NULL || wait_for_work(self));
    worker_count--;
    pthread_mutex_unlock(&sim_stream_lock);
    pthread_cond_destroy(&self->wake);
    free(self);
    return NULL;
}

static bool start_thread(void *(*function)(void *), void *argument) {
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    int error = pthread_create(&thread, &attributes, function, argument);
    pthread_attr_destroy(&attributes);
    return error == 0;
}

/* Give a stream to an idle thread, or to a new one, or to the first that becomes idle. */
static void start_running(SimStream *stream) {
    stream->is_running = true;
    sim_retain_stream(stream);
    Worker *worker = idle_workers;
    if (worker != NULL) {
        idle_workers = worker->next;
        worker->stream = stream;
        pthread_cond_signal(&worker->wake);
        return;
    }
    if (worker_count < MAX_WORKERS) {
        worker = sim_zeroed(sizeof *worker);
        worker->stream = stream;
        sim_make_condition(&worker->wake);
        worker_count++;
        if (start_thread(work, worker)) return;
        worker_count--;
        free(worker);
    }
    stream->ready_next = NULL;
    if (ready_tail != NULL) ready_tail->ready_next = stream;
    else ready_head = stream;
    ready_tail = stream;
}

/* ---- holding back ----------------------------------------------------------------------------- */

static void stop_holding(SimStream *stream) {
    if (!stream->is_held) return;
    stream->is_held = false;
    if (stream->held_previous != NULL) stream->held_previous->held_next = stream->held_next;
    else held_streams = stream->held_next;
    if (stream->held_next != NULL) stream->held_next->held_previous = stream->held_previous;
    stream->held_next = stream->held_previous = NULL;
}

/* Schedule the held streams whose time is over, and return when the next one's is. */
static uint64_t schedule_held_streams(void) {
    uint64_t earliest = UINT64_MAX;
    for (SimStream *stream = held_streams, *next; stream != NULL; stream = next) {
        next = stream->held_next;
        schedule_stream(stream);
        if (!stream->is_held) continue;
        uint64_t deadline = stream->head->submitted_at + hold_time;
        if (deadline < earliest) earliest = deadline;
    }
    return earliest;
}

/* Thread that runs held streams when their time is over. While streams are held now and then, it
 * looks from time to time, which costs less than a signal for each of them. */
static void *watch_held_streams(void *argument) {
    (void)argument;
    pthread_mutex_lock(&sim_stream_lock);
    for (int idle_rounds = 0;; idle_rounds = held_streams == NULL ? idle_rounds + 1 : 0) {
        timer_wakes = schedule_held_streams();
        if (idle_rounds >= MAX_IDLE_ROUNDS) {
            pthread_cond_wait(&held_changed, &sim_stream_lock);
            continue;
        }
        if (timer_wakes == UINT64_MAX) timer_wakes = sim_now() + hold_time;
        struct timespec limit = {(time_t)(timer_wakes / 1000000000u),
                                 (long)(timer_wakes % 1000000000u)};
        pthread_cond_timedwait(&held_changed, &sim_stream_lock, &limit);
    }
    return NULL;
}

static void hold_back(SimStream *stream) {
    if (stream->is_held) return;
    if (!has_timer) has_timer = start_thread(watch_held_streams, NULL);
    if (timer_wakes > stream->head->submitted_at + 2 * hold_time)
        pthread_cond_signal(&held_changed);
    if (held_streams != NULL) held_streams->held_previous = stream;
    stream->is_held = true;
    stream->held_next = held_streams;
    held_streams = stream;
}

static void stop_waiting(SimStream *stream) {
    if (stream->waits_for == NULL) return;
    SimStream **link = &stream->waits_for->waiters;
    while (*link != stream) link = &(*link)->waiters_next;
    *link = stream->waiters_next;
    stream->waits_for = NULL;
}

static void schedule_stream(SimStream *stream) {
    if (stream->is_running) return;
    if (stream->head == NULL) {
        end_stream(stream);
        return;
    }
    if (!is_broken(stream)) {
        SimStream *open = first_open_point(stream->head);
        if (open != NULL) {
            if (stream->waits_for != NULL) return;
            stream->waits_for = open;
            stream->waiters_next = open->waiters;
            open->waiters = stream;
            return;
        }
        if (is_held_back(stream, stream->head)) {
            hold_back(stream);
            return;
        }
    }
    stop_waiting(stream);
    stop_holding(stream);
    start_running(stream);
}

void sim_wake_streams(SimContext *context) {
    for (SimStream *stream = context->streams, *next; stream != NULL; stream = next) {
        next = stream->next;
        schedule_stream(stream);
    }
}

/* ---- submitting and waiting ------------------------------------------------------------------- */

static SimQueueEntry *append(SimStream *stream, SimOperation *operation, SimPoints *points) {
    pthread_once(&is_prepared, prepare);
    SimQueueEntry *entry = sim_zeroed(sizeof *entry);
    entry->operation = operation;
    entry->sequence = ++stream->submitted;
    entry->submitted_at = sim_now();
    entry->points = *points;
    *points = (SimPoints){0};
    if (stream->tail != NULL) stream->tail->next = entry;
    else stream->head = entry;
    stream->tail = entry;
    return entry;
}

uint64_t sim_enqueue(SimStream *stream, SimOperation *operation, SimPoints *points) {
    uint64_t sequence = append(stream, operation, points)->sequence;
    schedule_stream(stream);
    return sequence;
}

CUresult sim_enqueue_and_wait(SimStream *stream, SimOperation *operation, SimPoints *points) {
    CUresult result = CUDA_SUCCESS;
    SimQueueEntry *entry = append(stream, operation, points);
    SimPoint point = {sim_retain_stream(stream), entry->sequence};
    entry->result = &result;
    if (stream->head == entry && !stream->is_running && first_open_point(entry) == NULL) {
        /* Nothing is in front of it, so this thread runs it: no change of threads. */
        stream->is_running = true;
        sim_retain_stream(stream);
        run_first_entry(stream);
        finish_run(stream);
    } else {
        sim_wait_for(point);
    }
    sim_release_stream(stream);
    return result;
}

void sim_demand(SimPoint point) {
    SimStream *stream = point.stream;
    if (stream->released >= point.sequence) return;
    stream->released = point.sequence;
    for (SimQueueEntry *entry = stream->head; entry != NULL; entry = entry->next) {
        if (entry->sequence > point.sequence) break;
        for (size_t number = 0; number < entry->points.count; number++)
            sim_demand(entry->points.items[number]);
    }
    schedule_stream(stream);
}

void sim_wait_for(SimPoint point) {
    SimStream *stream = point.stream;
    sim_demand(point);
    stream->host_waiters++;
    while (stream->completed < point.sequence) pthread_cond_wait(&stream->done, &sim_stream_lock);
    stream->host_waiters--;
}
