/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated world: one run of one seed. Servers (store, lease service, bus, provider) live in the world and
 * survive; incarnations of the service (struct sim_inc, each with an lc_replica of its own) come and go. The code under
 * test sees the servers through the seams only; clients and FastGPT act on the servers directly.
 *
 *      workload ──> sim_bus ──> incarnation's dispatcher fibre ──> lc_replica ──> seams ──> sim_store, sim_lease, …
 *      FastGPT  ──> sim_store            (world.c)                              (seam.c)          │
 *                                                          monitors watch every effect  <─────────┘
 *
 * Everything is single-threaded and deterministic (sched.h). docs/simulator.md tells how to use it. */
#ifndef SK_SIM_SIM_H
#define SK_SIM_SIM_H

#include "services/lifecycle/lifecycle.h"
#include "services/lifecycle/mutations.h"
#include "tests/sim/sched.h"

#include <stdio.h>

#define SIM_REPLICAS_MAX  3
#define SIM_SANDBOXES_MAX 8
#define SIM_EPOCH_WALL_MS 1796025600000 /* 2026-11-30T08:00:00Z: the world's wall clock at virtual time 0 */
#define SIM_MS            1000          /* microseconds */
#define SIM_SECOND        1000000

enum sim_service { SIM_STORE, SIM_LEASE, SIM_BUS, SIM_PROVIDER, SIM_SERVICE_COUNT };

enum sim_call {
#define SIM_CALL(name, wire, service) SIM_##name,
#include "tests/sim/calls.def"
#undef SIM_CALL
    SIM_CALL_COUNT
};
const char *sim_call_name(enum sim_call call);

enum sim_fault {
#define SIM_FAULT(name, wire, percent, low, high, doc) SIM_FAULT_##name,
#include "tests/sim/faults.def"
#undef SIM_FAULT
    SIM_FAULT_COUNT
};

enum sim_sometimes {
#define SIM_SOMETIMES(name, wire, doc) SIM_SOME_##name,
#include "tests/sim/sometimes.def"
#undef SIM_SOMETIMES
    SIM_SOMETIMES_COUNT
};
const char *sim_sometimes_name(enum sim_sometimes which);

struct sim_options {
    uint64_t seed;
    bool trace; /* print every call */
    FILE *out;  /* for the trace and the report of a failure */
    bool quiet; /* no report of a failure */
};

struct sim_result {
    bool failed;
    char monitor[64];   /* name of the monitor or invariant that failed */
    char failure[1024]; /* one line for people */
    uint64_t hash;      /* of every call, its time and its result: equal for equal runs */
    int64_t virtual_ms;
    uint64_t steps, calls;
    int64_t counters[LC_COUNTER_COUNT];
    int64_t sometimes[SIM_SOMETIMES_COUNT];
    int64_t call_counts[SIM_CALL_COUNT];
    int64_t crashes[SIM_CALL_COUNT]; /* replicas that died at this call */
};

struct sim_inc;

/* Runs one seed from beginning to end. Never returns without a verdict. */
void sim_run_seed(const struct sim_options *options, struct sim_result *result);

/* Runs fn(inc, arg) on a fibre of an incarnation without a service, in a world without faults in which nothing is
 * judged: for tests of the seams themselves. False when it did not come to its end. */
bool sim_run_stage(uint64_t seed, void (*fn)(struct sim_inc *inc, void *arg), void *arg);

/* What the seed decided for this run (scenario.c). */
struct sim_crash_point {
    enum sim_call call;
    int64_t nth;
    bool after;
};
#define SIM_CRASH_POINTS_MAX 4

struct sim_scenario {
    struct lc_settings lc;
    int replicas, sandboxes, teams, commands;
    int64_t active_ms;      /* how long clients and faults are active */
    int64_t quiet_bound_ms; /* SIM_QUIET_BOUND_MS (scenario.h): how long the world may take to settle then */
    int64_t ack_wait_ms;
    int64_t store_timeout_ms, lease_timeout_ms, provider_timeout_ms;
    int64_t ghost_max_ms;           /* a ghost appears at most this late */
    int64_t fault[SIM_FAULT_COUNT]; /* intensity; 0 = off in this run */
    struct sim_crash_point crash_points[SIM_CRASH_POINTS_MAX];
    int crash_point_count;
    int hot_call; /* enum sim_call whose replies get lost often in this run; -1 = none */
    int64_t hot_ppm;
    bool has_volumes;
    bool bad_images;
};

struct sim_store;
struct sim_lease_server;
struct sim_bus;
struct sim_provider_server;
struct sim_monitor;
struct sim_workload;
struct sim_inc;

struct sim_world {
    struct sim_options options;
    struct sim_result *result;
    struct sim_scenario scenario;
    struct sim_sched *sched;
    struct sim_group group; /* the world's own fibres: keepers, clients, FastGPT */
    struct sk_sched clock;  /* true time */
    struct sim_rng faults, work;
    bool faults_on;
    int freezes_armed; /* the next that comes to the last phase of an operation stands still there */
    int64_t down_since_us[SIM_SERVICE_COUNT], down_until_us[SIM_SERVICE_COUNT];
    struct sim_store *store;
    struct sim_lease_server *lease;
    struct sim_bus *bus;
    struct sim_provider_server *provider;
    struct sim_monitor *monitor;
    struct sim_workload *workload;
    struct sim_inc *slots[SIM_REPLICAS_MAX]; /* the living incarnation of each replica, or NULL */
    struct sim_inc *incs;                    /* all that ever lived */
    int inc_count;
    int keepers;  /* incarnations that have not been freed */
    bool closing; /* no incarnation is started any more */
    bool lenient; /* nothing is judged: other tests use the servers */
    bool failed;
};

/* ---- randomness, faults, failures ------------------------------------------------------------------------------- */
/* True when a fault of this kind strikes now; draws only while the kind is on and faults are active. */
bool sim_strike(struct sim_world *w, enum sim_fault fault);
bool sim_down(const struct sim_world *w, enum sim_service service);
static inline void sim_saw(struct sim_world *w, enum sim_sometimes which)
{
    w->result->sometimes[which]++;
}
/* The first failure is kept and ends the run. */
void sim_fail(struct sim_world *w, const char *monitor, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static inline int64_t sim_ms(const struct sim_world *w)
{
    return sim_now_us(w->sched) / 1000;
}
static inline int64_t sim_wall(const struct sim_world *w)
{
    return SIM_EPOCH_WALL_MS + sim_ms(w);
}

/* ---- trace ------------------------------------------------------------------------------------------------------ */
/* Feeds the hash; cheap. */
void sim_mark(struct sim_world *w, int what, int64_t a, int64_t b);
/* Prints one line (time, who, text) when the run is traced. */
#define SIM_TRACE(w, ...)                                                                                              \
    do {                                                                                                               \
        if ((w)->options.trace)                                                                                        \
            sim_trace((w), __VA_ARGS__);                                                                               \
    } while (0)
void sim_trace(struct sim_world *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- incarnations (world.c) ------------------------------------------------------------------------------------- */
struct sim_delivery_node {
    struct sk_delivery *delivery;
    struct sim_delivery_node *next;
};

struct sim_inc {
    struct sim_world *w;
    struct sim_inc *next;
    int slot, number;
    char id[SK_OWNER_SIZE];
    struct sim_group group;
    struct sk_sched clock;
    struct sk_store store;
    struct sk_lease_service lease;
    struct sk_bus bus;
    struct sk_provider provider;
    struct lc_settings settings;
    struct lc_seams seams;
    struct lc_hooks hooks;
    struct lc_replica *replica;
    struct sk_gate *inbox;                  /* something for the dispatcher */
    struct sk_gate *attention;              /* something for the keeper: death, drain */
    struct sim_delivery_node *first, *last; /* deliveries on their way into the dispatcher */
    int arriving;                           /* deliveries that are under way to it */
    char hints[SIM_SANDBOXES_MAX * 2][SK_SANDBOX_ID_SIZE];
    int hint_count;
    bool hint_all, woken;
    bool crashed, drain, stopping, ended;
    int workers;
    int64_t started_us;
    int64_t cut_until_us, lease_cut_until_us; /* cannot reach the message server, the lease service */
    int64_t sluggish_until_us;                /* its provider calls drag */
    bool stuck_reported;
};

bool sim_inc_alive(const struct sim_inc *inc);                      /* lives and was not told to stop */
struct sim_inc *sim_inc_by_id(struct sim_world *w, const char *id); /* NULL when nobody ever had this id */
/* The process stands still for longer than the take-over. */
void sim_freeze(struct sim_inc *inc);
/* The process dies now: from here on none of its calls has an effect. */
void sim_crash(struct sim_inc *inc, const char *why);

/* ---- one call through a seam (seam.c) --------------------------------------------------------------------------- */
enum sim_arrival {
    SIM_REFUSED,  /* err is filled; certainly no effect */
    SIM_ARRIVED,  /* do it now */
    SIM_VANISHED, /* never arrives; the caller will not know */
    SIM_LATE,     /* arrives at io.late_us (virtual time); the caller will not know */
};

struct sim_io {
    struct sim_inc *inc;
    struct sk_call *call; /* may be NULL */
    enum sim_call kind;
    const char *about;   /* for the trace: a sandbox id, a lease name, … */
    bool write;          /* has an effect */
    bool can_be_late;    /* the caller can carry the effect out later */
    int64_t slow_max_us; /* longest time on the way there; 0 = the service's own */
    /* set by sim_send */
    enum sim_arrival arrival;
    int64_t late_us, began_us;
    bool reply_lost;
    enum sim_wait interrupted;
};
/* The way there: takes time, may fail, crash the caller or lose the request. */
enum sim_arrival sim_send(struct sim_io *io, struct sk_error *err);
/* The way back. 0 = the caller sees the reply; -1 = err is filled (outcome UNKNOWN for writes). */
int sim_reply(struct sim_io *io, struct sk_error *err);
/* One line of trace and one step of the hash for a finished call. */
void sim_done(struct sim_io *io, int64_t result, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
