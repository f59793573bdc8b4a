/* SPDX-License-Identifier: Apache-2.0
 *
 * SK_CHECK(3): the invariant checker. One implementation, used by the simulator after every run, by integration tests
 * after every scenario and by `skctl doctor` on live data (contract/lifecycle.md §2.4, contract/messaging.md §4).
 *
 * SYNOPSIS
 *     struct sk_check_snapshot snapshot = {.now_ms = …, .grace = sk_check_grace_defaults};
 *     snapshot.records = …; snapshot.record_count = …; snapshot.records_complete = true;
 *     snapshot.remotes = …; snapshot.remotes_known = true;
 *     struct sk_check_report report;
 *     sk_check_report_init(&report);
 *     sk_check_run(&snapshot, &report);
 *     for (size_t i = 0; i < report.count; i++) … report.findings[i] …
 *     sk_check_report_fini(&report);
 *
 * DESCRIPTION
 *     A snapshot is what the caller could see: plain arrays, borrowed for the time of the call. Each kind of thing has
 * a `known` flag: what is not known is not judged, so that a doctor without access to Redis still judges the rest. The
 * invariants stand in checks.def; each has a name that never changes and a severity.
 *
 *     A live system moves while it is read. The parts of a snapshot are therefore taken in this order: remotes,
 * volumes, slots and leases first, records last; and what is younger than the `grace` of its kind is not judged. A
 * finding on live data counts when a second snapshot, taken one grace period later, shows it again: sk_check_confirm
 * does that.
 *
 * MEMORY AND THREADS
 *     sk_check_run allocates a few index arrays of the size of the input and frees them; findings belong to the report.
 *     Everything is reentrant; nothing blocks. Out of memory is told by sk_check_run's return value.
 *
 * COST
 *     O(n log n) in the number of things of the snapshot. */
#ifndef SK_CHECK_CHECK_H
#define SK_CHECK_CHECK_H

#include "common/instance/instance.h"
#include "common/provider/provider.h"

enum sk_check {
#define SK_CHECK(name, wire, severity, meaning) SK_CHECK_##name,
#include "common/check/checks.def"
#undef SK_CHECK
    SK_CHECK_COUNT
};

enum sk_check_severity { SK_CHECK_ATTENTION, SK_CHECK_VIOLATION };

const char *sk_check_name(enum sk_check check);    /* "remote-duplicate" */
const char *sk_check_meaning(enum sk_check check); /* one sentence for operators */
enum sk_check_severity sk_check_severity(enum sk_check check);

/* The part of a record that the checker judges. Filled by sk_check_record_of (whole records: store, simulator) or by
 * sk_check_record_parse (the public view that `get` and `list` answer). */
struct sk_check_record {
    char sandbox_id[SK_SANDBOX_ID_SIZE];
    char provider[SK_PROVIDER_SIZE];
    struct sk_identity identity;
    enum sk_status status;
    bool malformed;
    char trouble[SK_REASON_SIZE]; /* why it is malformed, or what sk_instance_invariant says of the whole record; "" */
    bool has_operation;
    struct {
        enum sk_op type;
        char id[SK_UUID_SIZE];
        char phase[32];
        bool ours;   /* has a job id: not written by FastGPT */
        bool owned;  /* has an owner */
        bool failed; /* FastGPT: `error` is set */
        int64_t heartbeat_at, next_attempt_at;
        char blocked[SK_REASON_SIZE];
    } operation;
    int64_t epoch, sequence;
    int64_t created_at;
    int64_t changed_at; /* when the status was reached, 0 = unknown (lastOperation.endedAt) */
    char team_id[SK_TEAM_ID_SIZE];
    char claim_name[SK_CLAIM_NAME_SIZE];
};

struct sk_check_volume {
    char claim_name[SK_CLAIM_NAME_SIZE];
    int64_t created_at; /* 0 = unknown: counts as old */
};

struct sk_check_slot {
    char scope[SK_TEAM_ID_SIZE + 8]; /* "global" or "team:<teamId>" */
    char sandbox_id[SK_SANDBOX_ID_SIZE];
    int64_t taken_at; /* 0 = unknown: counts as old */
};

struct sk_check_lease {
    const char *name; /* the logical one: "agent-sandbox:lifecycle:<sandboxId>" */
    int64_t ttl_ms;   /* -1 = no expiry */
};

/* A lifecycle event, published or still in an outbox. */
struct sk_check_event {
    char id[SK_ULID_SIZE];
    char sandbox_id[SK_SANDBOX_ID_SIZE];
    enum sk_event_type type;
    int64_t time;
    int64_t epoch, sequence;
    enum sk_status from, to;
    char operation_id[SK_UUID_SIZE];
};

/* One change of state as the store's own history tells it; only the simulator has such a history. */
struct sk_check_change {
    char sandbox_id[SK_SANDBOX_ID_SIZE];
    char event_id[SK_ULID_SIZE];
};

/* What is known of one command id of one sandbox. */
struct sk_check_command {
    char sandbox_id[SK_SANDBOX_ID_SIZE];
    char command_id[SK_COMMAND_ID_SIZE];
    bool acknowledged; /* gone from the stream */
    bool stored;       /* a result is in sandkeep_commands */
    bool rejected;     /* answered as bad input and dead-lettered */
    bool retryable;    /* a retryable failure was answered */
    bool must_answer;  /* the time to answer has passed */
    int answers;       /* final answers seen, repeats not counted */
    int meanings;      /* different ones among those that are not retryable */
};

/* Things younger than this are not judged: they may be in the middle of a legal change. Milliseconds. */
struct sk_check_grace {
    int64_t operation_ms; /* heartbeat, or the due time of the next try, may be this old */
    int64_t remote_ms;    /* an object of a stopped or absent record, a missing object of a running one */
    int64_t volume_ms;
    int64_t slot_ms;
    int64_t outbox_ms;
    int64_t lease_ms; /* a lease that ends within this is no trouble, whoever holds it */
};
/* The periods of the default configuration: take-over 30 s and retries of 60 s; orphans 10 min; quota 10 min; relay 5
 * s; leases 15 s
 * (FastGPT's live for 11 min, and without an operation nobody needs one). */
extern const struct sk_check_grace sk_check_grace_defaults;

struct sk_check_snapshot {
    int64_t now_ms; /* of the clock that made the times of the snapshot */
    struct sk_check_grace grace;

    const struct sk_check_record *records;
    size_t record_count;
    bool records_complete; /* a sandbox without a record here has none: needed to judge orphans */

    bool remotes_known;
    const struct sk_remote *remotes;
    size_t remote_count;
    const char
        *remotes_provider; /* objects are of this provider; records of others are not judged by them; NULL = all */

    bool volumes_known;
    const struct sk_check_volume *volumes;
    size_t volume_count;
    const char *volume_prefix; /* volumes of other names are not ours; NULL = all are */

    bool archives_known;
    const char (*archives)[SK_SANDBOX_ID_SIZE]; /* sandboxes whose archive exists and was verified */
    size_t archive_count;

    bool slots_known;
    const struct sk_check_slot *slots;
    size_t slot_count;
    int64_t quota_global, quota_per_team; /* 0 = no limit, no slots */

    bool leases_known;
    const struct sk_check_lease *leases;
    size_t lease_count;

    bool pending_known;
    const struct sk_check_event *pending; /* of all outboxes, any order */
    size_t pending_count;

    bool history_known;
    const struct sk_check_event *history; /* in the order of the stream; repeats of one event are legal */
    size_t history_count;
    bool history_complete; /* from the first event of every sandbox; else the oldest may be missing */
    bool foreign_writers;  /* FastGPT writes too: a claim may start from a status no event told of */

    bool changes_known;
    const struct sk_check_change *changes;
    size_t change_count;

    bool commands_known;
    const struct sk_check_command *commands;
    size_t command_count;

    const char *code_trouble; /* what is wrong with the code sandbox; NULL = nothing, or nobody asked */
};

#define SK_CHECK_DETAIL_MAX   320
#define SK_CHECK_FINDINGS_MAX 10000 /* kept in a report; more are counted only */

struct sk_check_finding {
    enum sk_check check;
    char sandbox_id[SK_SANDBOX_ID_SIZE]; /* "" when it is about no single sandbox */
    char detail[SK_CHECK_DETAIL_MAX];    /* for people */
    char subject[SK_CLAIM_NAME_SIZE]; /* what it is about besides the sandbox (object id, claim, event id …), or "" */
};

struct sk_check_report {
    struct sk_check_finding *findings; /* in the order of checks.def, then of sandbox ids */
    size_t count, size;
    size_t dropped;    /* findings above SK_CHECK_FINDINGS_MAX */
    size_t violations; /* of count and dropped */
};

void sk_check_report_init(struct sk_check_report *report);
void sk_check_report_fini(struct sk_check_report *report);
/* Appends the findings. 0, or -1 when out of memory (the report is then incomplete). */
SK_MUST_USE int sk_check_run(const struct sk_check_snapshot *snapshot, struct sk_check_report *report);
/* Removes from `later` what `earlier` did not show (same check, sandbox and subject): the rest was no passing state. */
void sk_check_confirm(const struct sk_check_report *earlier, struct sk_check_report *later);
/* {"violations": n, "dropped": n, "findings": [{"check","severity","sandboxId"?,"subject"?,"detail","meaning"}…]}.
 * New reference; NULL when out of memory. */
json_t *sk_check_report_json(const struct sk_check_report *report);

void sk_check_record_of(struct sk_check_record *out, const struct sk_instance *instance);
void sk_check_event_of(struct sk_check_event *out, const struct sk_event *event);
/* From the public view of a record (contract/lifecycle.md §2.3) and from the body of a lifecycle event together with
 * its ce-id, ce-type ("dev.sandkeep.lifecycle.phase.v1" or "lifecycle.phase") and ce-time. False when it is not one. */
SK_MUST_USE bool sk_check_record_parse(struct sk_check_record *out, const json_t *view);
SK_MUST_USE bool sk_check_event_parse(struct sk_check_event *out, const char *id, const char *type, const char *time,
                                      const json_t *data);

#endif
