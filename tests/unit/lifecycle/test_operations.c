/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations against the simulator's servers, one step at a time: what chance meets once in a hundred thousand runs,
 * laid out on purpose. No thread of the service runs unless a test starts it. */
#include "services/lifecycle/internal.h"
#include "tests/sim/servers.h"
#include "tests/unit/check_main.h"

#include <stdio.h>
#include <string.h>

#define OLD_JOB "11111111-1111-4111-8111-111111111111"

enum lc_mutation lc_mutation = LC_MUTATION_NONE;

struct bench {
    struct sim_inc *inc;
    struct sim_world *w;
    struct lc_replica *replica;
    struct lc_run *run;
    struct lc_job job;
    struct lc_held held;
    struct sk_identity identity;
    char id[SK_SANDBOX_ID_SIZE];
    struct sk_store_ops store;       /* the simulator's, for a test to put its own in between */
    struct sk_provider_ops provider; /* the same */
    void (*test)(struct bench *b);
};

static struct bench *bench; /* of the test that runs: the seams in between have no other way to it */

static void prepare(struct bench *b)
{
    b->w = b->inc->w;
    b->inc->settings.ready_timeout_ms = 300000;
    b->inc->settings.idle_stop_ms = 60000;
    b->inc->settings.quota_global = b->inc->settings.quota_per_team = 0;
    b->store = *b->inc->store.ops;
    b->inc->store.ops = &b->store;
    b->provider = *b->inc->provider.ops;
    b->inc->provider.ops = &b->provider;
    b->identity = (struct sk_identity){.source_type = SK_SOURCE_APP};
    memcpy(b->identity.source_id, "source-0", sizeof("source-0"));
    memcpy(b->identity.user_id, "user-0", sizeof("user-0"));
    sk_identity_sandbox_id(&b->identity, b->id);
}

static void relay(void *replica)
{
    lc_relay_main(replica);
}

static void poller(void *replica)
{
    lc_poller_main(replica);
}

/* After the settings were changed. */
static void begin(struct bench *b)
{
    b->replica = lc_replica_new(&b->inc->settings, &b->inc->seams, &b->inc->hooks);
    b->run = calloc(1, sizeof(*b->run));
    ck_assert(b->replica != NULL && b->run != NULL);
    b->run->replica = b->replica;
    b->run->job = &b->job;
    b->run->call = &b->job.call;
    sk_list_init(&b->run->beat.link);
    sk_list_init(&b->job.link);
    sk_list_init(&b->job.members);
    sk_call_init(&b->job.call, &b->inc->clock);
    sk_call_init(&b->run->commit, &b->inc->clock);
    memcpy(b->job.sandbox_id, b->id, sizeof(b->id));
    b->run->provider = &b->inc->provider;
}

static void let_events_out(struct bench *b)
{
    sim_spawn(&b->inc->group, "relay", relay, b->replica);
    sim_spawn(&b->inc->group, "poller", poller, b->replica);
}

static void end(struct bench *b)
{
    lc_engine_forget(b->run);
    lc_unlock(b->run);
    free(b->held.stored);
    lc_replica_stop(b->replica);
    sim_sleep_us(b->w->sched, 2 * SIM_SECOND); /* whatever the test started ends */
    lc_replica_free(b->replica);
    free(b->run);
}

/* The command that the job runs. */
static void command(struct bench *b, enum lc_verb verb, const char *id)
{
    free(b->held.stored);
    memset(&b->held, 0, sizeof(b->held));
    sk_list_init(&b->held.link);
    b->held.command.verb = verb;
    sk_copy_cut(b->held.command.id, sizeof(b->held.command.id), id);
    memcpy(b->held.command.sandbox_id, b->id, sizeof(b->id));
    sk_list_init(&b->job.members);
    sk_list_push_back(&b->job.members, &b->held.link);
    ck_assert(lc_pick_head(b->run));
}

static struct sk_instance record(const struct bench *b, enum sk_status status, int64_t epoch)
{
    struct sk_instance i = {.identity = b->identity, .status = status, .epoch = epoch, .sequence = 9};

    memcpy(i.oid, "0123456789abcdef01234567", sizeof("0123456789abcdef01234567"));
    sk_copy_cut(i.provider, sizeof(i.provider), b->inc->provider.ops->name);
    memcpy(i.sandbox_id, b->id, sizeof(i.sandbox_id));
    i.last_active_at = i.created_at = sk_wall_ms(&b->inc->clock) - 3600000;
    return i;
}

static void put(struct bench *b, struct sk_instance i)
{
    ck_assert(sim_store_foreign(b->w, &i) != NULL);
}

/* What the timeline has of an operation that ended. */
static void remember(struct bench *b, enum sk_op op, const char *command_id, int64_t epoch, enum sk_event_type end,
                     enum sk_status to)
{
    struct sk_event events[2] = {{.type = SK_EVENT_CLAIMED, .from = SK_STATUS_RUNNING, .to = SK_STATUS_STOPPING},
                                 {.type = end, .from = SK_STATUS_STOPPING, .to = to}};

    for (int i = 0; i < 2; i++) {
        sk_ulid(&b->inc->clock, events[i].id);
        events[i].time = sk_wall_ms(&b->inc->clock);
        memcpy(events[i].sandbox_id, b->id, sizeof(b->id));
        events[i].identity = b->identity;
        events[i].epoch = epoch;
        events[i].operation_type = op;
        snprintf(events[i].operation_id, sizeof(events[i].operation_id), "operation-%d", (int)epoch);
        sk_copy_cut(events[i].command_id, sizeof(events[i].command_id), command_id);
    }
    sim_store_apply_timeline(b->w->store, events, 2);
}

static enum sk_status status_now(struct bench *b)
{
    const struct sim_doc *doc = sim_store_doc(b->w, b->id);

    return doc == NULL ? SK_STATUS_NONE : doc->i.status;
}

static struct sim_object *object(struct bench *b, int64_t epoch, const char *job_id)
{
    struct sim_object *made = sim_provider_add(b->w, b->id, epoch, job_id);

    made->visible_us = made->running_us = made->ready_us = 0;
    return made;
}

static void on_fiber(struct sim_inc *inc, void *arg)
{
    bench = arg;
    bench->inc = inc;
    prepare(bench);
    bench->test(bench);
}

static void play(void (*test)(struct bench *b))
{
    struct bench *b = calloc(1, sizeof(*b));

    ck_assert_ptr_nonnull(b);
    b->test = test;
    ck_assert(sim_run_stage(1, on_fiber, b));
    free(b);
}
#define PLAY(name)                                                                                                     \
    START_TEST(test_##name)                                                                                            \
    {                                                                                                                  \
        play(name);                                                                                                    \
    }                                                                                                                  \
    END_TEST

/* ---- quota -------------------------------------------------------------------------------------- */
static int given_back;
static bool team_fails;

static int reserve_between(void *self, struct sk_call *call, const char *scope, int64_t limit, const char *sandbox_id,
                           bool *granted, struct sk_error *err)
{
    *granted = false;
    if (strcmp(scope, SK_QUOTA_GLOBAL) != 0)
        return team_fails ? sk_fail(err, SK_ERR_STORE_UNAVAILABLE, "away") : 0;
    *granted = true;
    (void)self;
    (void)call;
    (void)limit;
    (void)sandbox_id;
    return 0;
}

static int release_between(void *self, const char *scope, const char *sandbox_id, struct sk_error *err)
{
    (void)self;
    (void)scope;
    (void)sandbox_id;
    (void)err;
    given_back++;
    return 0;
}

/* A slot that was held before may belong to an insert that is still on its way. */
static void slots_stay_through_an_outage(struct bench *b)
{
    b->inc->settings.quota_global = b->inc->settings.quota_per_team = 3;
    b->store.quota_reserve = reserve_between;
    b->store.quota_release = release_between;
    begin(b);
    ck_assert_int_eq(lc_lock(b->run), 0);
    given_back = 0;
    team_fails = true;
    ck_assert_int_ne(lc_quota_reserve(b->run, "team-0"), 0);
    ck_assert_int_eq(b->run->err.code, SK_ERR_STORE_UNAVAILABLE);
    ck_assert_int_eq(given_back, 0);
    team_fails = false;
    ck_assert_int_ne(lc_quota_reserve(b->run, "team-0"), 0);
    ck_assert_int_eq(b->run->err.code, SK_ERR_TEAM_LIMIT_REACHED);
    ck_assert_int_eq(given_back, 1);
    end(b);
}
PLAY(slots_stay_through_an_outage)

/* ---- provider objects --------------------------------------------------------------------------- */
static int (*real_find)(void *self, struct sk_call *call, const char *sandbox_id, struct sk_remote *out, int *count,
                        bool *more, struct sk_error *err);
static struct sim_object *newcomer;
static int finds;

/* Right after the first look somebody starts the sandbox. */
static int find_between(void *self, struct sk_call *call, const char *sandbox_id, struct sk_remote *out, int *count,
                        bool *more, struct sk_error *err)
{
    int rc = real_find(self, call, sandbox_id, out, count, more, err);

    if (newcomer == NULL)
        newcomer = object(bench, 6, "22222222-2222-4222-8222-222222222222");
    return rc;
}

static void settling_removes_what_it_judged(struct bench *b)
{
    struct sim_object *left;

    begin(b);
    put(b, record(b, SK_STATUS_STOPPED, 5));
    left = object(b, 4, OLD_JOB);
    real_find = b->provider.find;
    newcomer = NULL;
    b->provider.find = find_between;
    ck_assert_int_eq(lc_op_settle(b->run), LC_OUTCOME_DONE);
    sim_sleep_us(b->w->sched, SIM_SECOND);
    ck_assert(left->gone);
    ck_assert(newcomer != NULL && !newcomer->gone && newcomer->remote.state != SK_REMOTE_STOPPING);
    end(b);
}
PLAY(settling_removes_what_it_judged)

/* FastGPT made the sandbox again. Its record was put above what is left of the former life, which is still there. */
static void what_is_left_of_a_former_life_is_not_the_sandbox(struct bench *b)
{
    struct sk_instance i = record(b, SK_STATUS_RUNNING, 8);
    struct sim_object *ghost, *used;
    enum lc_sight sight;

    begin(b);
    i.sequence = 0;
    put(b, i);
    ghost = object(b, 8, OLD_JOB);
    ck_assert_int_eq(lc_read(b->run), 0);
    ck_assert_int_eq(lc_remote_look(b->run, &sight), 0);
    ck_assert_int_eq(sight, LC_SIGHT_MISSING);
    used = object(b, 0, "");
    ck_assert_int_eq(lc_op_settle(b->run), LC_OUTCOME_DONE);
    sim_sleep_us(b->w->sched, SIM_SECOND);
    ck_assert(ghost->gone);
    ck_assert(!used->gone && used->remote.state != SK_REMOTE_STOPPING);
    end(b);
}
PLAY(what_is_left_of_a_former_life_is_not_the_sandbox)

/* While the owner of epoch 5 removes, its lease goes, others delete the sandbox, and FastGPT makes it again. */
static int find_after_a_life(void *self, struct sk_call *call, const char *sandbox_id, struct sk_remote *out,
                             int *count, bool *more, struct sk_error *err)
{
    if (finds++ == 1) {
        struct sk_instance i = record(bench, SK_STATUS_RUNNING, 0);

        i.sequence = 0;
        put(bench, i);
        newcomer = object(bench, 0, "");
    }
    return real_find(self, call, sandbox_id, out, count, more, err);
}

static void a_late_object_without_epoch_is_not_taken_for_ones_own(struct bench *b)
{
    const struct lc_claim claim = {.type = SK_OP_STOP};

    begin(b);
    put(b, record(b, SK_STATUS_RUNNING, 4));
    (void)object(b, 4, OLD_JOB);
    ck_assert(lc_read(b->run) == 0 && lc_lock(b->run) == 0 && lc_engine_claim(b->run, &claim) == 0);
    real_find = b->provider.find;
    b->provider.find = find_after_a_life;
    finds = 0;
    ck_assert_int_ne(lc_remote_remove(b->run), 0);
    ck_assert_int_eq(b->run->err.code, SK_ERR_LOST_OWNERSHIP);
    sim_sleep_us(b->w->sched, SIM_SECOND);
    ck_assert(!newcomer->gone && newcomer->remote.state != SK_REMOTE_STOPPING);
    end(b);
}
PLAY(a_late_object_without_epoch_is_not_taken_for_ones_own)

/* The owner of epoch 5 comes back after it lost its operation. */
static bool cleaned(struct bench *b, enum sk_status status, int64_t other_epoch)
{
    struct sim_object *own, *other = NULL;
    bool gone;

    put(b, record(b, status, 6));
    own = object(b, 5, OLD_JOB);
    if (other_epoch != 0)
        other = object(b, other_epoch, OLD_JOB);
    b->run->claimed_at = &b->inc->provider;
    b->run->create_sent = true;
    b->run->beat.epoch = 5;
    memcpy(b->run->beat.job_id, OLD_JOB, sizeof(OLD_JOB));
    lc_remote_clean_own(b->run);
    sim_sleep_us(b->w->sched, SIM_SECOND);
    gone = own->gone;
    own->gone = true;
    if (other != NULL) {
        ck_assert(!other->gone);
        other->gone = true;
    }
    return gone;
}

static void a_lost_owner_leaves_what_the_next_one_relies_on(struct bench *b)
{
    begin(b);
    ck_assert(!cleaned(b, SK_STATUS_RUNNING, 0));
    ck_assert(cleaned(b, SK_STATUS_RUNNING, 6));
    ck_assert(cleaned(b, SK_STATUS_STOPPED, 0));
    end(b);
}
PLAY(a_lost_owner_leaves_what_the_next_one_relies_on)

static void an_ensure_gives_its_worker_back(struct bench *b)
{
    int64_t began_ms = sim_ms(b->w);
    struct sim_object *slow;

    begin(b);
    put(b, record(b, SK_STATUS_RUNNING, 5));
    slow = object(b, 5, OLD_JOB);
    slow->ready_us = -1;
    slow->remote.state = SK_REMOTE_RUNNING;
    slow->running_us = INT64_MAX;
    slow->remote.state = SK_REMOTE_PENDING;
    command(b, LC_VERB_ENSURE, "c-1");
    ck_assert_int_eq(lc_op_ensure(b->run), LC_OUTCOME_OUTAGE);
    ck_assert_int_eq(b->run->err.code, SK_ERR_PROVIDER_TIMEOUT);
    ck_assert_int_lt(sim_ms(b->w) - began_ms, 5000);
    /* It looks again later, and then it is there. */
    slow->running_us = slow->ready_us = 0;
    ck_assert_int_eq(lc_op_ensure(b->run), LC_OUTCOME_DONE);
    end(b);
}
PLAY(an_ensure_gives_its_worker_back)

/* ---- commands that come again ------------------------------------------------------------------- */
static void a_stop_is_done_once(struct bench *b)
{
    begin(b);
    put(b, record(b, SK_STATUS_RUNNING, 7));
    (void)object(b, 7, OLD_JOB);
    remember(b, SK_OP_STOP, "stop-1", 5, SK_EVENT_COMPLETED, SK_STATUS_STOPPED);
    remember(b, SK_OP_STOP, "stop-2", 6, SK_EVENT_BLOCKED, SK_STATUS_STOPPING);
    command(b, LC_VERB_STOP, "stop-1");
    ck_assert_int_eq(lc_op_stop(b->run), LC_OUTCOME_DONE);
    ck_assert_int_eq(status_now(b), SK_STATUS_RUNNING);
    ck_assert_ptr_nonnull(b->held.stored);
    ck_assert_ptr_nonnull(strstr(b->held.stored, "\"status\":\"stopped\""));
    ck_assert_ptr_nonnull(strstr(b->held.stored, "\"operationId\":\"operation-5\""));
    ck_assert(b->held.recalled);
    /* One that was not done, and one that nobody knows. */
    command(b, LC_VERB_STOP, "stop-2");
    ck_assert_int_eq(lc_op_stop(b->run), LC_OUTCOME_DONE);
    ck_assert_ptr_null(b->held.stored);
    ck_assert_int_eq(status_now(b), SK_STATUS_STOPPED);
    end(b);
}
PLAY(a_stop_is_done_once)

/* How often the timeline is asked: for the commands at hand, and for all that it has. */
static int asked, read_whole;

static int counted_of_commands(void *self, struct sk_call *call, const char *sandbox_id,
                               const char (*command_ids)[SK_COMMAND_ID_SIZE], int command_count,
                               struct sk_timeline_entry *out, int *count, struct sk_error *err)
{
    asked++;
    return sim_store_timeline_of_commands(self, call, sandbox_id, command_ids, command_count, out, count, err);
}

static int counted_list(void *self, struct sk_call *call, const char *sandbox_id, struct sk_timeline_entry *out,
                        int *count, struct sk_error *err)
{
    read_whole++;
    return sim_store_timeline_list(self, call, sandbox_id, out, count, err);
}

static void stop(struct bench *b, const char *id)
{
    command(b, LC_VERB_STOP, id);
    ck_assert_int_eq(lc_op_stop(b->run), LC_OUTCOME_DONE);
    lc_unlock(b->run);
}

static void start_again(struct bench *b)
{
    static int number;
    char id[32];

    snprintf(id, sizeof(id), "ensure-%d", ++number);
    command(b, LC_VERB_ENSURE, id);
    ck_assert_int_eq(lc_op_ensure(b->run), LC_OUTCOME_DONE);
    lc_unlock(b->run);
    ck_assert_int_eq(status_now(b), SK_STATUS_RUNNING);
}

static void stops_that_are_known_to_be_new_ask_nobody(struct bench *b)
{
    struct sk_instance other;

    asked = read_whole = 0;
    b->store.timeline_of_commands = counted_of_commands;
    b->store.timeline_list = counted_list;
    begin(b);
    put(b, record(b, SK_STATUS_RUNNING, 7));
    (void)object(b, 7, OLD_JOB);
    remember(b, SK_OP_STOP, "stop-0", 5, SK_EVENT_COMPLETED, SK_STATUS_STOPPED);
    stop(b, "stop-1");
    ck_assert_int_eq(asked, 1);
    ck_assert_int_eq(read_whole, 0);
    start_again(b);
    stop(b, "stop-2");
    ck_assert_int_eq(read_whole, 1);
    for (int i = 3; i < 6; i++) {
        char id[32];

        snprintf(id, sizeof(id), "stop-%d", i);
        start_again(b);
        stop(b, id);
        ck_assert_int_eq(status_now(b), SK_STATUS_STOPPED);
    }
    ck_assert_int_eq(asked, 1);
    ck_assert_int_eq(read_whole, 1);
    /* Those that were done are known, whoever did them: from before, and by this replica. */
    start_again(b);
    stop(b, "stop-0");
    ck_assert(b->held.recalled);
    stop(b, "stop-4");
    ck_assert(b->held.recalled);
    ck_assert_int_eq(status_now(b), SK_STATUS_RUNNING);
    /* Another replica was at it: nothing is known any more. */
    stop(b, "stop-6");
    start_again(b);
    stop(b, "stop-7");
    start_again(b);
    remember(b, SK_OP_STOP, "stop-8", sim_store_doc(b->w, b->id)->i.epoch + 1, SK_EVENT_COMPLETED, SK_STATUS_STOPPED);
    other = sim_store_doc(b->w, b->id)->i;
    other.epoch += 2;
    other.sequence += 6;
    put(b, other);
    stop(b, "stop-8");
    ck_assert(b->held.recalled);
    ck_assert_int_eq(status_now(b), SK_STATUS_RUNNING);
    end(b);
}
PLAY(stops_that_are_known_to_be_new_ask_nobody)

static struct sk_instance provisioning(const struct bench *b, int64_t epoch, const char *command_id)
{
    struct sk_instance i = record(b, SK_STATUS_PROVISIONING, epoch);

    i.has_operation = true;
    i.operation = (struct sk_operation){.type = SK_OP_PROVISION, .previous_status = SK_STATUS_STOPPED, .attempt = 1};
    memcpy(i.operation.id, "33333333-3333-4333-8333-333333333333", SK_UUID_SIZE);
    memcpy(i.operation.job_id, OLD_JOB, SK_UUID_SIZE);
    memcpy(i.operation.phase, "claimed", sizeof("claimed"));
    sk_copy_cut(i.operation.command_id, sizeof(i.operation.command_id), command_id);
    i.operation.started_at = i.operation.heartbeat_at = sk_wall_ms(&b->inc->clock);
    i.operation.next_attempt_at = i.operation.heartbeat_at + 3000;
    return i;
}

static void an_operation_is_abandoned_once(struct bench *b)
{
    begin(b);
    let_events_out(b);
    put(b, provisioning(b, 7, "ensure-1"));
    command(b, LC_VERB_RECOVER, "recover-1");
    b->held.command.params.abandon = true;
    ck_assert_int_eq(lc_op_recover(b->run), LC_OUTCOME_DONE);
    ck_assert_int_eq(status_now(b), SK_STATUS_STOPPED);
    /* Its result is lost, and somebody starts the sandbox again. */
    remember(b, SK_OP_PROVISION, "recover-1", 8, SK_EVENT_FAILED, SK_STATUS_STOPPED);
    put(b, provisioning(b, 9, "ensure-2"));
    command(b, LC_VERB_RECOVER, "recover-1");
    b->held.command.params.abandon = true;
    ck_assert_int_eq(lc_op_recover(b->run), LC_OUTCOME_DONE);
    ck_assert_int_eq(status_now(b), SK_STATUS_PROVISIONING);
    ck_assert_ptr_nonnull(b->held.stored);
    end(b);
}
PLAY(an_operation_is_abandoned_once)

static const char *name_of_claim(struct bench *b, enum lc_verb verb, bool abandon, struct sk_instance before,
                                 enum sk_op op)
{
    const struct lc_claim claim = {.type = op};

    put(b, before);
    command(b, verb, "mine");
    b->held.command.params.abandon = abandon;
    lc_engine_forget(b->run);
    ck_assert_int_eq(lc_read(b->run), 0);
    ck_assert_int_eq(lc_lock(b->run), 0);
    ck_assert_msg(lc_engine_claim(b->run, &claim) == 0, "%s", b->run->err.message);
    return b->run->record.operation.command_id;
}

static void an_operation_has_the_name_of_who_wants_it(struct bench *b)
{
    begin(b);
    ck_assert_str_eq(name_of_claim(b, LC_VERB_ENSURE, false, record(b, SK_STATUS_STOPPED, 3), SK_OP_PROVISION), "mine");
    ck_assert_str_eq(name_of_claim(b, LC_VERB_STOP, false, record(b, SK_STATUS_RUNNING, 3), SK_OP_STOP), "mine");
    /* The stop of a repair, the removal of what failed, somebody else's operation that stood in the way. */
    ck_assert_str_eq(name_of_claim(b, LC_VERB_ENSURE, false, record(b, SK_STATUS_RUNNING, 3), SK_OP_STOP), "");
    ck_assert_str_eq(name_of_claim(b, LC_VERB_ENSURE, false, record(b, SK_STATUS_STOPPED, 3), SK_OP_DELETE), "");
    ck_assert_str_eq(name_of_claim(b, LC_VERB_STOP, false, provisioning(b, 3, ""), SK_OP_PROVISION), "");
    ck_assert_str_eq(name_of_claim(b, LC_VERB_ENSURE, false, provisioning(b, 3, "theirs"), SK_OP_PROVISION), "theirs");
    ck_assert_str_eq(name_of_claim(b, LC_VERB_RECOVER, false, provisioning(b, 3, "theirs"), SK_OP_PROVISION), "theirs");
    ck_assert_str_eq(name_of_claim(b, LC_VERB_RECOVER, true, provisioning(b, 3, "theirs"), SK_OP_PROVISION), "mine");
    end(b);
}
PLAY(an_operation_has_the_name_of_who_wants_it)

/* ---- a lease that somebody else holds ------------------------------------------------------------ */
static void a_delete_goes_on_beside_whom_it_overtook(struct bench *b)
{
    struct sk_instance i = record(b, SK_STATUS_DELETING, 7);
    char name[SK_LEASE_NAME_SIZE];

    begin(b);
    let_events_out(b);
    i.has_operation = true;
    i.operation = (struct sk_operation){.type = SK_OP_DELETE, .previous_status = SK_STATUS_RUNNING};
    memcpy(i.operation.id, "33333333-3333-4333-8333-333333333333", SK_UUID_SIZE);
    memcpy(i.operation.job_id, OLD_JOB, SK_UUID_SIZE);
    memcpy(i.operation.phase, "providerDeleted", sizeof("providerDeleted"));
    memcpy(i.operation.owner, b->inc->settings.replica_id, sizeof(i.operation.owner));
    i.operation.started_at = i.operation.heartbeat_at = sk_wall_ms(&b->inc->clock);
    put(b, i);
    snprintf(name, sizeof(name), "agent-sandbox:lifecycle:%s", b->id);
    ck_assert(sim_lease_take(b->w, name, "of a worker that hangs", 3600000));
    ck_assert_int_eq(lc_op_takeover(b->run), LC_OUTCOME_DONE);
    ck_assert_int_eq(status_now(b), SK_STATUS_NONE);
    end(b);
}
PLAY(a_delete_goes_on_beside_whom_it_overtook)

/* ---- threads ------------------------------------------------------------------------------------ */
static void heartbeat(void *replica)
{
    lc_heartbeat_main(replica);
}

static int64_t stuck_now(struct bench *b)
{
    struct lc_gauges gauges;

    lc_replica_gauges(b->replica, &gauges);
    return gauges.stuck_workers;
}

static void a_worker_is_stuck_until_it_comes_back(struct bench *b)
{
    begin(b);
    sim_spawn(&b->inc->group, "heartbeat", heartbeat, b->replica);
    put(b, provisioning(b, 3, ""));
    ck_assert_int_eq(lc_read(b->run), 0);
    b->run->claimed = true;
    lc_beats_add(b->run, sk_mono_us(&b->inc->clock) + 100 * SIM_MS);
    sim_sleep_us(b->w->sched, (b->inc->settings.stuck_grace_ms - 500) * SIM_MS);
    ck_assert_int_eq(stuck_now(b), 0);
    sim_sleep_us(b->w->sched, 3 * SIM_SECOND);
    ck_assert_int_eq(stuck_now(b), 1);
    ck_assert_int_eq(lc_replica_count(b->replica, LC_COUNT_STUCK_WORKERS), 1);
    lc_engine_forget(b->run);
    ck_assert_int_eq(stuck_now(b), 0);
    end(b);
}
PLAY(a_worker_is_stuck_until_it_comes_back)

static void leases(void *replica)
{
    lc_lease_main(replica);
}

/* What the record says, and how long the lease is good for from now on. */
static int64_t last_beat(struct bench *b)
{
    ck_assert_int_eq(lc_read(b->run), 0);
    return b->run->record.operation.heartbeat_at;
}

static int64_t lease_left_ms(const struct bench *b)
{
    return (atomic_load(&b->run->lifecycle.valid_until_us) - sk_mono_us(&b->inc->clock)) / 1000;
}

static void those_who_keep_alive_sleep_until_an_operation_begins(struct bench *b)
{
    struct sk_instance i;
    int64_t claimed_at;

    begin(b);
    sim_spawn(&b->inc->group, "heartbeat", heartbeat, b->replica);
    sim_spawn(&b->inc->group, "lease", leases, b->replica);
    sim_sleep_us(b->w->sched, 60 * SIM_SECOND);
    ck_assert_int_eq(b->replica->beat_sleepers, 2);

    i = provisioning(b, 3, "");
    memcpy(i.operation.owner, b->inc->settings.replica_id, sizeof(i.operation.owner));
    put(b, i);
    ck_assert_int_eq(lc_lock(b->run), 0);
    claimed_at = last_beat(b);
    b->run->claimed = true;
    lc_beats_add(b->run, sk_mono_us(&b->inc->clock) + 60 * SIM_SECOND);
    for (int round = 1; round <= 3; round++) {
        int64_t before = last_beat(b);

        sim_sleep_us(b->w->sched, (b->inc->settings.heartbeat_ms + 1000) * SIM_MS);
        ck_assert_int_gt(last_beat(b), before);
        ck_assert_int_gt(lease_left_ms(b), b->inc->settings.lease_ttl_ms / 2);
    }
    ck_assert_int_eq(b->replica->beat_sleepers, 0);
    ck_assert_int_gt(last_beat(b), claimed_at);
    sim_sleep_us(b->w->sched, 60 * SIM_SECOND);
    ck_assert_int_eq(lc_job_cancelled(&b->job), LC_CANCEL_DEADLINE);
    lc_engine_forget(b->run);
    sim_sleep_us(b->w->sched, 60 * SIM_SECOND);
    ck_assert_int_eq(b->replica->beat_sleepers, 2);
    end(b);
}
PLAY(those_who_keep_alive_sleep_until_an_operation_begins)

static void who_was_heard_of_need_not_be_asked(struct bench *b)
{
    begin(b);
    ck_assert_int_eq(lc_replica_store_sign(b->replica), LC_SIGN_NONE);
    ck_assert_int_eq(lc_read(b->run), 0);
    ck_assert_int_eq(lc_replica_store_sign(b->replica), LC_SIGN_GOOD);
    ck_assert_int_eq(lc_replica_store_sign(b->replica), LC_SIGN_NONE);
    lc_note_store(b->replica, true);
    lc_note_store(b->replica, false);
    ck_assert_int_eq(lc_replica_store_sign(b->replica), LC_SIGN_BAD);
    ck_assert_int_eq(lc_replica_store_sign(b->replica), LC_SIGN_BAD);
    lc_note_store(b->replica, true);
    ck_assert_int_eq(lc_replica_store_sign(b->replica), LC_SIGN_GOOD);
    ck_assert_int_eq(lc_replica_lease_sign(b->replica), LC_SIGN_NONE);
    ck_assert_int_eq(lc_lock(b->run), 0);
    ck_assert_int_eq(lc_replica_lease_sign(b->replica), LC_SIGN_GOOD);
    end(b);
}
PLAY(who_was_heard_of_need_not_be_asked)

#define CROWD    50
#define LOOK_MAX 16

static struct crowd {
    int64_t pinned_until[CROWD];
    int calls, looked;
} crowd;

/* A crowd of records, all idle for long, the oldest first; most of them are pinned. */
static int scan_crowd(void *self, struct sk_call *call, struct sk_idle_cursor *cursor, int64_t before_ms, int limit,
                      sk_scan_fn fn, void *arg, struct sk_error *err)
{
    struct sk_instance i = record(bench, SK_STATUS_RUNNING, 3);
    int n = (int)cursor->last_active_at;

    (void)self;
    (void)call;
    (void)before_ms;
    (void)err;
    crowd.calls++;
    for (int told = 0; n < CROWD && told < limit; told++, n++) {
        snprintf(i.sandbox_id, sizeof(i.sandbox_id), "app-%016x", n);
        i.pin_count = crowd.pinned_until[n] != 0;
        i.pins[0].expires_at = crowd.pinned_until[n];
        crowd.looked++;
        if (!fn(arg, &i, NULL, 0))
            break;
    }
    cursor->last_active_at = n < CROWD ? n : 0;
    return 0;
}

static void sweep(void *replica)
{
    lc_sweep_main(replica);
}

/* What the last sweep posted: the number in the id, -1 = nothing. Sleeps until well after the next one. */
static int swept(struct bench *b)
{
    struct lc_view *post;
    int number = -1;

    ck_assert_int_le(crowd.looked, LOOK_MAX);
    ck_assert_int_gt(crowd.looked, 0);
    ck_assert_int_le((int)sk_list_length(&b->replica->posts), 1);
    if (!sk_list_empty(&b->replica->posts)) {
        post = SK_LIST_ENTRY(struct lc_view, sk_list_pop_front(&b->replica->posts), link);
        number = (int)strtol(post->sandbox_id + strlen("app-"), NULL, 16);
        free(post);
    }
    crowd.looked = 0;
    sim_sleep_us(b->w->sched, b->inc->settings.idle_sweep_ms * SIM_MS);
    return number;
}

/* More pinned records at the front than a sweep looks at: the next one goes on behind them, and after the last record
 * the walk begins at the oldest again. */
static void pinned_records_hide_no_idle_one(struct bench *b)
{
    int64_t far = sk_wall_ms(&b->inc->clock) + 3600000;

    memset(&crowd, 0, sizeof(crowd));
    for (int n = 0; n < CROWD - 1; n++)
        crowd.pinned_until[n] = far;
    b->store.scan_idle = scan_crowd;
    b->inc->settings.idle_look_max = LOOK_MAX;
    begin(b);
    sim_spawn(&b->inc->group, "sweep", sweep, b->replica);
    while (crowd.calls == 0)
        sim_sleep_us(b->w->sched, SIM_MS);
    sim_sleep_us(b->w->sched, b->inc->settings.idle_sweep_ms * SIM_MS / 2);
    crowd.pinned_until[3] = 0; /* too late for this walk */
    ck_assert_int_eq(swept(b), -1);
    ck_assert_int_eq(swept(b), -1);
    ck_assert_int_eq(swept(b), -1);
    crowd.pinned_until[CROWD - 1] = far;
    ck_assert_int_eq(swept(b), CROWD - 1);
    ck_assert_int_eq(swept(b), 3);
    end(b);
}
PLAY(pinned_records_hide_no_idle_one)

SK_CHECK_MAIN("operations", test_slots_stay_through_an_outage, test_settling_removes_what_it_judged,
              test_what_is_left_of_a_former_life_is_not_the_sandbox,
              test_a_late_object_without_epoch_is_not_taken_for_ones_own,
              test_a_lost_owner_leaves_what_the_next_one_relies_on, test_an_ensure_gives_its_worker_back,
              test_a_stop_is_done_once, test_stops_that_are_known_to_be_new_ask_nobody,
              test_an_operation_is_abandoned_once, test_an_operation_has_the_name_of_who_wants_it,
              test_a_delete_goes_on_beside_whom_it_overtook, test_a_worker_is_stuck_until_it_comes_back,
              test_those_who_keep_alive_sleep_until_an_operation_begins, test_who_was_heard_of_need_not_be_asked,
              test_pinned_records_hide_no_idle_one)
