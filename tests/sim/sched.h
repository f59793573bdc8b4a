/* SPDX-License-Identifier: Apache-2.0
 *
 * The seeded scheduler of the simulator: fibres of which exactly one runs at a time, virtual time that moves only when
 * nobody can run, gates, and `struct sk_sched` for the code under test. What runs next is drawn from the seed, so the
 * same seed gives the same run, instruction for instruction.
 *
 * A `group` is one process: its fibres share a wall clock (skewed), a monotonic clock with its own zero, and a death.
 * After sim_group_kill every sleep of the group ends at once and later ones last at most a millisecond, so that code
 * that unwinds is not held up; the seams refuse the group's calls (seam.c). Gates still wait for their notification.
 *
 * Single-threaded. Out of memory aborts: a simulation is worth nothing without memory. */
#ifndef SK_SIM_SCHED_H
#define SK_SIM_SCHED_H

#include "common/base/sched.h"
#include "tests/sim/rng.h"

#define SIM_NAME_SIZE          32
#define SIM_STEPS_WITHOUT_TIME 400000 /* switches at one virtual moment: more is a livelock */

struct sim_sched;
struct sim_fiber;

struct sim_group {
    struct sim_sched *sched;
    char name[SIM_NAME_SIZE];
    int64_t wall_zero_ms; /* the group's wall clock at virtual time 0 */
    int64_t mono_zero_us; /* the group's monotonic clock at virtual time 0 */
    int live;             /* fibres that have not ended */
    bool dead;
    int64_t frozen_until_us; /* the process does not run until then (a paused machine); what it sent is on its way */
    struct sk_gate *ended;   /* notified when a fibre of the group ends */
    void *owner;             /* the incarnation, for the seams; NULL for the world's own fibres */
};

struct sim_sched *sim_sched_new(uint64_t seed);
/* Fibres that are still there are abandoned: their stacks are reused, what they hold leaks. */
void sim_sched_free(struct sim_sched *sched);

int64_t sim_now_us(const struct sim_sched *sched);
/* The random stream of ids and tokens (sk_random of every group). */
struct sim_rng *sim_sched_ids(struct sim_sched *sched);

void sim_group_init(struct sim_group *group, struct sim_sched *sched, const char *name, int64_t wall_zero_ms,
                    int64_t mono_zero_us);
void sim_group_fini(struct sim_group *group);             /* no fibre may be left */
struct sk_sched sim_group_clock(struct sim_group *group); /* the seam for this group */
void sim_group_kill(struct sim_group *group);
/* A fibre of a frozen group does not come back from here before it thaws (or dies). Gates and sleeps of the code under
 * test end with it; a call through a seam does when its reply was read (seam.c). */
void sim_group_thaw(struct sim_group *group);
void sim_group_join(struct sim_group *group); /* from a fibre of another group: returns when no fibre is left */

/* The name is kept (cut to SIM_NAME_SIZE - 1). */
struct sim_fiber *sim_spawn(struct sim_group *group, const char *name, void (*fn)(void *arg), void *arg);
struct sim_fiber *sim_self(struct sim_sched *sched); /* NULL outside of fibres */
const char *sim_fiber_name(const struct sim_fiber *fiber);
struct sim_group *sim_fiber_group(const struct sim_fiber *fiber);
unsigned sim_fiber_id(const struct sim_fiber *fiber); /* 1, 2, … in order of creation */

/* Runs fn(arg) at that virtual time on the scheduler's own stack: it must not wait. */
void sim_at(struct sim_sched *sched, int64_t at_us, void (*fn)(void *arg), void *arg);
void sim_after(struct sim_sched *sched, int64_t us, void (*fn)(void *arg), void *arg);
/* The same for an argument from malloc that `fn` frees: when its time never comes, sim_sched_free frees it. */
void sim_at_own(struct sim_sched *sched, int64_t at_us, void (*fn)(void *arg), void *arg);
void sim_after_own(struct sim_sched *sched, int64_t us, void (*fn)(void *arg), void *arg);

/* From fibres only. */
void sim_sleep_us(struct sim_sched *sched, int64_t us);
enum sim_wait { SIM_WAIT_DONE, SIM_WAIT_CANCELLED, SIM_WAIT_DEADLINE, SIM_WAIT_DEAD };
/* Sleeps that long unless the call (may be NULL) is cancelled or its deadline passes, or the group dies, before. */
enum sim_wait sim_sleep_call_us(struct sim_sched *sched, struct sk_call *call, int64_t us);

enum sim_end { SIM_END_TIME, SIM_END_STOPPED, SIM_END_IDLE, SIM_END_LIVELOCK };
/* Runs until that virtual time, until sim_stop, or until nothing is left to run. Not from a fibre. */
enum sim_end sim_run(struct sim_sched *sched, int64_t until_us);
void sim_stop(struct sim_sched *sched); /* sim_run returns before the next switch */
uint64_t sim_steps(const struct sim_sched *sched);
/* The fibre that ran last, for the report of a livelock. */
const char *sim_last_fiber(const struct sim_sched *sched);
/* Calls fn for each fibre that is left, with what it waits for: for reports. */
void sim_each_fiber(struct sim_sched *sched, void (*fn)(void *arg, const struct sim_fiber *fiber, const char *state),
                    void *arg);

#endif
