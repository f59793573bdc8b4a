/* SPDX-License-Identifier: Apache-2.0
 *
 * The invariant checker: a world in which all is well gives no finding, and each invariant broken once gives exactly
 * its own finding. A row per invariant; the test fails when checks.def has one without a row. */
#include "common/check/check.h"
#include "tests/unit/check_main.h"

#include <stdio.h>
#include <string.h>

#define NOW 1796025600000
#define OLD (NOW - 3600 * 1000)

/* A running, a stopped, a provisioning and an archived sandbox, and everything that belongs to them. */
struct world {
    struct sk_check_record records[6];
    struct sk_remote remotes[6];
    struct sk_check_volume volumes[6];
    char archives[2][SK_SANDBOX_ID_SIZE];
    struct sk_check_slot slots[8];
    struct sk_check_lease leases[2];
    struct sk_check_event pending[2], history[16];
    struct sk_check_change changes[16];
    struct sk_check_command commands[4];
    struct sk_check_snapshot s;
};

enum { RUNNING, STOPPED, PROVISIONING, ARCHIVED };

static void record(struct world *w, int n, enum sk_status status)
{
    struct sk_check_record *r = &w->records[n];
    char user[16];

    snprintf(user, sizeof(user), "user-%d", n);
    ck_assert_int_eq(sk_identity_set(&r->identity, "app", "source", 6, user, strlen(user), NULL), 0);
    sk_identity_sandbox_id(&r->identity, r->sandbox_id);
    strcpy(r->provider, "opensandbox");
    r->status = status;
    r->epoch = 100;
    r->sequence = 3;
    r->created_at = OLD;
    r->changed_at = OLD;
    strcpy(r->team_id, "red");
    ck_assert(sk_claim_name(r->claim_name, "fastgpt-session", r->sandbox_id, "0"));
    strcpy(w->volumes[n].claim_name, r->claim_name);
    w->volumes[n].created_at = OLD;
    w->s.record_count = w->s.volume_count = (size_t)n + 1;
}

static void event(struct world *w, int record_index, enum sk_event_type type, int64_t sequence, enum sk_status from,
                  enum sk_status to)
{
    struct sk_check_event *e = &w->history[w->s.history_count];

    snprintf(e->id, sizeof(e->id), "event-%zu", w->s.history_count);
    strcpy(e->sandbox_id, w->records[record_index].sandbox_id);
    e->type = type;
    e->time = OLD;
    e->epoch = 100;
    e->sequence = sequence;
    e->from = from;
    e->to = to;
    strcpy(e->operation_id, "op");
    strcpy(w->changes[w->s.change_count].event_id, e->id);
    strcpy(w->changes[w->s.change_count++].sandbox_id, e->sandbox_id);
    w->s.history_count++;
}

static void slot(struct world *w, int record_index, const char *scope)
{
    struct sk_check_slot *s = &w->slots[w->s.slot_count++];

    strcpy(s->scope, scope);
    strcpy(s->sandbox_id, w->records[record_index].sandbox_id);
    s->taken_at = OLD;
}

static void well(struct world *w)
{
    struct sk_check_record *r;

    memset(w, 0, sizeof(*w));
    w->s = (struct sk_check_snapshot){.now_ms = NOW,
                                      .grace = sk_check_grace_defaults,
                                      .records = w->records,
                                      .records_complete = true,
                                      .remotes_known = true,
                                      .remotes = w->remotes,
                                      .volumes_known = true,
                                      .volumes = w->volumes,
                                      .volume_prefix = "fastgpt-session-",
                                      .archives_known = true,
                                      .archives = (const char(*)[SK_SANDBOX_ID_SIZE])w->archives,
                                      .archive_count = 1,
                                      .slots_known = true,
                                      .slots = w->slots,
                                      .quota_global = 2,
                                      .quota_per_team = 2,
                                      .leases_known = true,
                                      .leases = w->leases,
                                      .lease_count = 1,
                                      .pending_known = true,
                                      .pending = w->pending,
                                      .pending_count = 1,
                                      .history_known = true,
                                      .history = w->history,
                                      .history_complete = true,
                                      .changes_known = true,
                                      .changes = w->changes,
                                      .commands_known = true,
                                      .commands = w->commands,
                                      .command_count = 1};
    record(w, RUNNING, SK_STATUS_RUNNING);
    record(w, STOPPED, SK_STATUS_STOPPED);
    record(w, PROVISIONING, SK_STATUS_PROVISIONING);
    record(w, ARCHIVED, SK_STATUS_ARCHIVED);
    r = &w->records[PROVISIONING];
    r->has_operation = true;
    r->operation.type = SK_OP_PROVISION;
    strcpy(r->operation.id, "op");
    strcpy(r->operation.phase, "claimed");
    r->operation.ours = r->operation.owned = true;
    r->operation.heartbeat_at = NOW - 1000;
    r->sequence = 1;
    w->records[ARCHIVED].epoch = w->records[ARCHIVED].sequence = 0; /* FastGPT's */
    strcpy(w->archives[0], w->records[ARCHIVED].sandbox_id);
    strcpy(w->remotes[0].id, "object-0");
    strcpy(w->remotes[0].sandbox_id, w->records[RUNNING].sandbox_id);
    w->remotes[0].state = SK_REMOTE_RUNNING;
    w->remotes[0].epoch = 100;
    w->remotes[0].created_at = OLD;
    w->s.remote_count = 1;
    slot(w, RUNNING, "global");
    slot(w, RUNNING, "team:red");
    slot(w, PROVISIONING, "global");
    slot(w, PROVISIONING, "team:red");
    w->leases[0] = (struct sk_check_lease){.name = "agent-sandbox:lifecycle:x", .ttl_ms = 15000};
    event(w, RUNNING, SK_EVENT_CLAIMED, 1, SK_STATUS_NONE, SK_STATUS_PROVISIONING);
    event(w, RUNNING, SK_EVENT_PHASE, 2, SK_STATUS_PROVISIONING, SK_STATUS_PROVISIONING);
    event(w, RUNNING, SK_EVENT_COMPLETED, 3, SK_STATUS_PROVISIONING, SK_STATUS_RUNNING);
    w->history[w->s.history_count++] = w->history[1]; /* published twice: legal */
    event(w, STOPPED, SK_EVENT_CLAIMED, 1, SK_STATUS_NONE, SK_STATUS_PROVISIONING);
    event(w, STOPPED, SK_EVENT_COMPLETED, 2, SK_STATUS_PROVISIONING, SK_STATUS_RUNNING);
    event(w, STOPPED, SK_EVENT_CLAIMED, 3, SK_STATUS_RUNNING, SK_STATUS_STOPPED);
    w->history[w->s.history_count - 1].epoch = 101;
    w->records[STOPPED].epoch = 101;
    /* The newest event of the provisioning one still waits in the outbox. */
    event(w, PROVISIONING, SK_EVENT_CLAIMED, 1, SK_STATUS_NONE, SK_STATUS_PROVISIONING);
    w->pending[0] = w->history[--w->s.history_count];
    w->pending[0].time = NOW - 100;
    strcpy(w->commands[0].sandbox_id, w->records[RUNNING].sandbox_id);
    strcpy(w->commands[0].command_id, "c1");
    w->commands[0].acknowledged = w->commands[0].stored = w->commands[0].must_answer = true;
    w->commands[0].answers = w->commands[0].meanings = 1;
}

/* ---- one way to break each invariant ------------------------------------------------------------------------------
 */

static void break_malformed(struct world *w)
{
    w->records[STOPPED].malformed = true;
    strcpy(w->records[STOPPED].trouble, "status is 7");
}

static void break_invalid(struct world *w)
{
    w->records[ARCHIVED].sequence = -4;
}

static void break_stable_operation(struct world *w)
{
    w->records[STOPPED].has_operation = true;
    w->records[STOPPED].operation.type = SK_OP_STOP;
}

static void break_operation_missing(struct world *w)
{
    w->records[PROVISIONING].has_operation = false;
}

static void break_operation_foreign(struct world *w)
{
    w->records[PROVISIONING].operation.type = SK_OP_STOP;
}

static void break_phase(struct world *w)
{
    strcpy(w->records[PROVISIONING].operation.phase, "providerStopped");
}

static void break_identity(struct world *w)
{
    strcpy(w->records[ARCHIVED].identity.user_id, "somebody else");
}

static void break_sandbox_duplicate(struct world *w)
{
    w->records[4] = w->records[ARCHIVED];
    w->records[4].claim_name[0] = '\0';
    w->s.record_count = 5;
}

static void break_identity_duplicate(struct world *w)
{
    /* A record whose id was computed otherwise: both findings are true of it. */
    w->records[4] = w->records[ARCHIVED];
    strcpy(w->records[4].sandbox_id, "app-0000000000000000");
    strcpy(w->archives[1], "app-0000000000000000");
    w->s.archive_count = 2;
    w->records[4].claim_name[0] = '\0';
    w->s.record_count = 5;
}

static void break_stuck_owner(struct world *w)
{
    w->records[PROVISIONING].operation.heartbeat_at = OLD;
}

static void break_stuck_due(struct world *w)
{
    w->records[PROVISIONING].operation.owned = false;
    w->records[PROVISIONING].operation.next_attempt_at = OLD;
}

static void break_blocked(struct world *w)
{
    strcpy(w->records[PROVISIONING].operation.blocked, "provider_error: HTTP 500");
}

static void break_remote_missing(struct world *w)
{
    w->remotes[0].state = SK_REMOTE_ENDED;
}

static void break_remote_duplicate(struct world *w)
{
    w->remotes[1] = w->remotes[0];
    strcpy(w->remotes[1].id, "object-1");
    w->remotes[1].epoch = 99;
    w->s.remote_count = 2;
}

static void break_remote_ahead(struct world *w)
{
    w->remotes[0].epoch = 101;
}

static void break_remote_of_stopped(struct world *w)
{
    w->remotes[1] = w->remotes[0];
    strcpy(w->remotes[1].id, "object-1");
    strcpy(w->remotes[1].sandbox_id, w->records[STOPPED].sandbox_id);
    w->s.remote_count = 2;
}

static void break_remote_orphan(struct world *w)
{
    w->remotes[1] = w->remotes[0];
    strcpy(w->remotes[1].id, "object-1");
    strcpy(w->remotes[1].sandbox_id, "app-ffffffffffffffff");
    w->s.remote_count = 2;
}

static void break_volume_missing(struct world *w)
{
    w->volumes[RUNNING] = w->volumes[ARCHIVED];
    w->s.volume_count = 3;
}

static void break_volume_orphan(struct world *w)
{
    strcpy(w->volumes[4].claim_name, "fastgpt-session-app-ffffffffffffffff-0");
    strcpy(w->volumes[5].claim_name, "somebody-elses");
    w->s.volume_count = 6;
}

static void break_volume_shared(struct world *w)
{
    strcpy(w->records[STOPPED].claim_name, w->records[RUNNING].claim_name);
    w->volumes[STOPPED] = w->volumes[ARCHIVED];
    w->s.volume_count = 3;
}

static void break_archive(struct world *w)
{
    strcpy(w->archives[0], w->records[STOPPED].sandbox_id);
}

static void break_slot_missing(struct world *w)
{
    w->s.slot_count = 3; /* the provisioning one's team slot */
}

static void break_slot_leaked(struct world *w)
{
    w->s.quota_global = w->s.quota_per_team = 3;
    slot(w, STOPPED, "team:red");
}

static void break_quota(struct world *w)
{
    w->s.quota_global = 1;
}

static void break_lease(struct world *w)
{
    w->leases[0].ttl_ms = -1;
}

static char idle_lease[128];

static void break_lease_idle(struct world *w)
{
    snprintf(idle_lease, sizeof(idle_lease), "agent-sandbox:lifecycle:%s", w->records[STOPPED].sandbox_id);
    w->leases[0] = (struct sk_check_lease){.name = idle_lease, .ttl_ms = 600000};
}

static void break_lease_of_nobody(struct world *w)
{
    w->leases[0].ttl_ms = 600000;
}

static void break_outbox(struct world *w)
{
    w->pending[0].time = OLD;
}

static void break_event_id(struct world *w)
{
    w->history[3].to = SK_STATUS_RUNNING; /* the repetition differs from its original */
    w->history[3].from = SK_STATUS_RUNNING;
}

static void break_event_sequence(struct world *w)
{
    w->history[3] = w->history[1];
    strcpy(w->history[3].id, "event-x");
    strcpy(w->changes[w->s.change_count].sandbox_id, w->history[3].sandbox_id);
    strcpy(w->changes[w->s.change_count++].event_id, "event-x");
}

static void break_event_gap(struct world *w)
{
    w->records[RUNNING].sequence = 4;
    w->history[2].sequence = 4;
}

static void break_event_gap_at_end(struct world *w)
{
    w->records[RUNNING].sequence = 4;
}

static void break_event_chain(struct world *w)
{
    w->history[2].from = SK_STATUS_STOPPED;
}

static void break_event_epoch(struct world *w)
{
    w->history[6].epoch = 100; /* a claim that does not raise it */
    w->records[STOPPED].epoch = 100;
}

static void break_event_ahead(struct world *w)
{
    w->records[RUNNING].sequence = 2;
}

static void break_event_status(struct world *w)
{
    w->history[2].to = SK_STATUS_STOPPED;
}

static void break_event_lost(struct world *w)
{
    w->s.pending_count = 0;
}

static void break_event_invented(struct world *w)
{
    strcpy(w->changes[2].event_id, w->changes[1].event_id);
}

static void break_command_unanswered(struct world *w)
{
    w->commands[0].answers = 0;
}

static void break_command_ambiguous(struct world *w)
{
    w->commands[0].meanings = 2;
}

static void break_command_lost(struct world *w)
{
    w->commands[0].stored = false;
}

static void break_code(struct world *w)
{
    w->s.code_trouble = "http://127.0.0.1:3000/health gave no answer";
}

static const struct {
    enum sk_check expected;
    void (*damage)(struct world *w);
    enum sk_check also; /* a second finding that cannot be avoided; SK_CHECK_COUNT = none */
} rows[] = {
    {SK_CHECK_RECORD_MALFORMED, break_malformed, SK_CHECK_COUNT},
    {SK_CHECK_RECORD_INVALID, break_invalid, SK_CHECK_COUNT},
    {SK_CHECK_STABLE_OPERATION, break_stable_operation, SK_CHECK_COUNT},
    {SK_CHECK_OPERATION_MISSING, break_operation_missing, SK_CHECK_COUNT},
    {SK_CHECK_OPERATION_FOREIGN, break_operation_foreign, SK_CHECK_COUNT},
    {SK_CHECK_PHASE_UNKNOWN, break_phase, SK_CHECK_COUNT},
    {SK_CHECK_IDENTITY_MISMATCH, break_identity, SK_CHECK_COUNT},
    {SK_CHECK_SANDBOX_DUPLICATE, break_sandbox_duplicate, SK_CHECK_COUNT},
    {SK_CHECK_IDENTITY_DUPLICATE, break_identity_duplicate, SK_CHECK_IDENTITY_MISMATCH},
    {SK_CHECK_OPERATION_STUCK, break_stuck_owner, SK_CHECK_COUNT},
    {SK_CHECK_OPERATION_STUCK, break_stuck_due, SK_CHECK_COUNT},
    {SK_CHECK_OPERATION_BLOCKED, break_blocked, SK_CHECK_COUNT},
    {SK_CHECK_REMOTE_MISSING, break_remote_missing, SK_CHECK_COUNT},
    {SK_CHECK_REMOTE_DUPLICATE, break_remote_duplicate, SK_CHECK_COUNT},
    {SK_CHECK_REMOTE_EPOCH_AHEAD, break_remote_ahead, SK_CHECK_COUNT},
    {SK_CHECK_REMOTE_OF_STOPPED, break_remote_of_stopped, SK_CHECK_COUNT},
    {SK_CHECK_REMOTE_ORPHAN, break_remote_orphan, SK_CHECK_COUNT},
    {SK_CHECK_VOLUME_MISSING, break_volume_missing, SK_CHECK_COUNT},
    {SK_CHECK_VOLUME_ORPHAN, break_volume_orphan, SK_CHECK_COUNT},
    {SK_CHECK_VOLUME_SHARED, break_volume_shared, SK_CHECK_COUNT},
    {SK_CHECK_ARCHIVE_MISSING, break_archive, SK_CHECK_COUNT},
    {SK_CHECK_SLOT_MISSING, break_slot_missing, SK_CHECK_COUNT},
    {SK_CHECK_SLOT_LEAKED, break_slot_leaked, SK_CHECK_COUNT},
    {SK_CHECK_QUOTA_EXCEEDED, break_quota, SK_CHECK_COUNT},
    {SK_CHECK_LEASE_ENDLESS, break_lease, SK_CHECK_COUNT},
    {SK_CHECK_LEASE_IDLE, break_lease_idle, SK_CHECK_COUNT},
    {SK_CHECK_LEASE_IDLE, break_lease_of_nobody, SK_CHECK_COUNT},
    {SK_CHECK_OUTBOX_LATE, break_outbox, SK_CHECK_COUNT},
    {SK_CHECK_EVENT_ID_REUSED, break_event_id, SK_CHECK_COUNT},
    {SK_CHECK_EVENT_SEQUENCE_REUSED, break_event_sequence, SK_CHECK_COUNT},
    {SK_CHECK_EVENT_GAP, break_event_gap, SK_CHECK_COUNT},
    {SK_CHECK_EVENT_GAP, break_event_gap_at_end, SK_CHECK_COUNT},
    {SK_CHECK_EVENT_CHAIN, break_event_chain, SK_CHECK_COUNT},
    {SK_CHECK_EVENT_EPOCH, break_event_epoch, SK_CHECK_COUNT},
    {SK_CHECK_EVENT_AHEAD, break_event_ahead, SK_CHECK_COUNT},
    {SK_CHECK_EVENT_STATUS, break_event_status, SK_CHECK_COUNT},
    {SK_CHECK_EVENT_LOST, break_event_lost, SK_CHECK_COUNT},
    {SK_CHECK_EVENT_INVENTED, break_event_invented, SK_CHECK_COUNT},
    {SK_CHECK_COMMAND_UNANSWERED, break_command_unanswered, SK_CHECK_COUNT},
    {SK_CHECK_COMMAND_AMBIGUOUS, break_command_ambiguous, SK_CHECK_COUNT},
    {SK_CHECK_COMMAND_LOST, break_command_lost, SK_CHECK_COUNT},
    {SK_CHECK_CODE_DOWN, break_code, SK_CHECK_COUNT},
};

static void print(const struct sk_check_report *report)
{
    for (size_t i = 0; i < report->count; i++)
        fprintf(stderr, "  %s %s: %s\n", sk_check_name(report->findings[i].check), report->findings[i].sandbox_id,
                report->findings[i].detail);
}

START_TEST(test_all_is_well)
{
    static struct world w;
    struct sk_check_report report;

    well(&w);
    sk_check_report_init(&report);
    ck_assert_int_eq(sk_check_run(&w.s, &report), 0);
    print(&report);
    ck_assert_uint_eq(report.count, 0);
    ck_assert_uint_eq(report.violations, 0);
    sk_check_report_fini(&report);
}
END_TEST

START_TEST(test_each_invariant)
{
    static struct world w;
    bool has_row[SK_CHECK_COUNT] = {false};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sk_check_report report;
        size_t expected = rows[i].also == SK_CHECK_COUNT ? 1 : 2;
        bool seen = false;

        well(&w);
        rows[i].damage(&w);
        sk_check_report_init(&report);
        ck_assert_int_eq(sk_check_run(&w.s, &report), 0);
        for (size_t n = 0; n < report.count; n++) {
            seen = seen || report.findings[n].check == rows[i].expected;
            ck_assert_msg(report.findings[n].check == rows[i].expected || report.findings[n].check == rows[i].also,
                          "%s also gives %s: %s", sk_check_name(rows[i].expected),
                          sk_check_name(report.findings[n].check), report.findings[n].detail);
        }
        if (report.count != expected)
            print(&report);
        ck_assert_msg(report.count == expected && seen, "%s gives %zu findings", sk_check_name(rows[i].expected),
                      report.count);
        ck_assert_uint_eq(report.violations,
                          (sk_check_severity(rows[i].expected) == SK_CHECK_VIOLATION) + (expected - 1));
        has_row[rows[i].expected] = true;
        sk_check_report_fini(&report);
    }
    for (int i = 0; i < SK_CHECK_COUNT; i++)
        ck_assert_msg(has_row[i], "%s has no row in this test", sk_check_name((enum sk_check)i));
}
END_TEST

/* What is not known is not judged; what is young is not judged. */
START_TEST(test_unknown_and_young)
{
    static struct world w;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sk_check_report report;

        well(&w);
        rows[i].damage(&w);
        w.s = (struct sk_check_snapshot){.now_ms = NOW, .grace = w.s.grace};
        sk_check_report_init(&report);
        ck_assert_int_eq(sk_check_run(&w.s, &report), 0);
        ck_assert_uint_eq(report.count, 0);
        sk_check_report_fini(&report);
    }
    for (int kind = 0; kind < 4; kind++) {
        struct sk_check_report report;

        well(&w);
        if (kind == 0) {
            break_remote_orphan(&w);
            w.remotes[1].created_at = NOW - 1000;
        } else if (kind == 1) {
            break_volume_orphan(&w);
            w.volumes[4].created_at = NOW - 1000;
        } else if (kind == 2) {
            break_slot_leaked(&w);
            w.slots[4].taken_at = NOW - 1000;
        } else {
            break_remote_of_stopped(&w);
            w.records[STOPPED].changed_at = NOW - 1000;
        }
        sk_check_report_init(&report);
        ck_assert_int_eq(sk_check_run(&w.s, &report), 0);
        ck_assert_msg(report.count == 0, "kind %d", kind);
        sk_check_report_fini(&report);
    }
}
END_TEST

/* A second life of a sandbox starts again at 1, after `deleted` and after a provision that was undone. */
START_TEST(test_second_life)
{
    static struct world w;
    struct sk_check_report report;

    for (int way = 0; way < 2; way++) {
        well(&w);
        event(&w, STOPPED, way == 0 ? SK_EVENT_DELETED : SK_EVENT_FAILED, 4, SK_STATUS_STOPPED, SK_STATUS_NONE);
        w.history[w.s.history_count - 1].epoch = 101;
        event(&w, STOPPED, SK_EVENT_CLAIMED, 1, SK_STATUS_NONE, SK_STATUS_PROVISIONING);
        w.history[w.s.history_count - 1].epoch = 500;
        event(&w, STOPPED, SK_EVENT_COMPLETED, 2, SK_STATUS_PROVISIONING, SK_STATUS_STOPPED);
        w.history[w.s.history_count - 1].epoch = 500;
        w.records[STOPPED].epoch = 500;
        w.records[STOPPED].sequence = 2;
        sk_check_report_init(&report);
        ck_assert_int_eq(sk_check_run(&w.s, &report), 0);
        print(&report);
        ck_assert_uint_eq(report.count, 0);
        sk_check_report_fini(&report);
    }
}
END_TEST

/* FastGPT takes a record away without an event, and makes it again: nothing is missing. With ours alone something is.
 */
START_TEST(test_second_life_of_fastgpt)
{
    static struct world w;
    struct sk_check_report report;

    for (int foreign = 0; foreign < 2; foreign++) {
        well(&w);
        w.s.foreign_writers = foreign;
        event(&w, STOPPED, SK_EVENT_CLAIMED, 1, SK_STATUS_NONE, SK_STATUS_PROVISIONING);
        w.history[w.s.history_count - 1].epoch = 500;
        event(&w, STOPPED, SK_EVENT_COMPLETED, 2, SK_STATUS_PROVISIONING, SK_STATUS_STOPPED);
        w.history[w.s.history_count - 1].epoch = 500;
        w.records[STOPPED].epoch = 500;
        w.records[STOPPED].sequence = 2;
        sk_check_report_init(&report);
        ck_assert_int_eq(sk_check_run(&w.s, &report), 0);
        if (foreign)
            print(&report);
        ck_assert_uint_eq(report.count, foreign ? 0 : 1);
        sk_check_report_fini(&report);
    }
}
END_TEST

/* A lease is nobody's trouble while an operation is under way, and when it ends soon. */
START_TEST(test_leases_that_are_fine)
{
    static struct world w;
    struct sk_check_report report;

    for (int way = 0; way < 4; way++) {
        well(&w);
        break_lease_idle(&w);
        if (way == 0)
            w.leases[0].ttl_ms = 30000;
        else if (way == 1)
            snprintf(idle_lease, sizeof(idle_lease), "agent-sandbox:lifecycle:%s", w.records[PROVISIONING].sandbox_id);
        else if (way == 2)
            snprintf(idle_lease, sizeof(idle_lease), "agent-sandbox:source:app:%s", w.records[STOPPED].sandbox_id);
        else
            snprintf(idle_lease, sizeof(idle_lease), "agent-sandbox:legacy-migration-job");
        sk_check_report_init(&report);
        ck_assert_int_eq(sk_check_run(&w.s, &report), 0);
        ck_assert_msg(report.count == 0, "way %d", way);
        sk_check_report_fini(&report);
    }
}
END_TEST

START_TEST(test_confirm)
{
    static struct world w;
    struct sk_check_report earlier, later;

    well(&w);
    break_remote_orphan(&w);
    sk_check_report_init(&earlier);
    ck_assert_int_eq(sk_check_run(&w.s, &earlier), 0);
    break_remote_ahead(&w);
    sk_check_report_init(&later);
    ck_assert_int_eq(sk_check_run(&w.s, &later), 0);
    ck_assert_uint_eq(later.count, 2);
    sk_check_confirm(&earlier, &later);
    ck_assert_uint_eq(later.count, 1);
    ck_assert_uint_eq(later.violations, 1);
    ck_assert_int_eq(later.findings[0].check, SK_CHECK_REMOTE_ORPHAN);
    sk_check_report_fini(&earlier);
    sk_check_report_fini(&later);
}
END_TEST

/* The report is bounded; what does not fit is counted. */
START_TEST(test_bounded)
{
    enum { MANY = SK_CHECK_FINDINGS_MAX + 5 };
    struct sk_remote *remotes = calloc(MANY, sizeof(*remotes));
    struct sk_check_snapshot s = {
        .now_ms = NOW, .records_complete = true, .remotes_known = true, .remotes = remotes, .remote_count = MANY};
    struct sk_check_report report;

    for (int i = 0; i < MANY; i++) {
        snprintf(remotes[i].id, sizeof(remotes[i].id), "o%d", i);
        snprintf(remotes[i].sandbox_id, sizeof(remotes[i].sandbox_id), "app-%d", i);
    }
    sk_check_report_init(&report);
    ck_assert_int_eq(sk_check_run(&s, &report), 0);
    ck_assert_uint_eq(report.count, SK_CHECK_FINDINGS_MAX);
    ck_assert_uint_eq(report.dropped, 5);
    ck_assert_uint_eq(report.violations, MANY);
    sk_check_report_fini(&report);
    free(remotes);
}
END_TEST

SK_CHECK_MAIN("invariants", test_all_is_well, test_each_invariant, test_unknown_and_young, test_second_life,
              test_second_life_of_fastgpt, test_leases_that_are_fine, test_confirm, test_bounded)
