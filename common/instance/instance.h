/* SPDX-License-Identifier: Apache-2.0
 *
 * The instance record (contract/lifecycle.md §2) as a plain value, and the lifecycle events that travel in its outbox.
 * A struct sk_instance owns nothing and may be copied with `=`: a change is made on a copy, and the store writes the
 * difference of the two under a compare-and-set. Unknown fields of the document are never touched. Not thread-safe. */
#ifndef SK_INSTANCE_INSTANCE_H
#define SK_INSTANCE_INSTANCE_H

#include "common/base/id.h"
#include "common/sm/sm.h"

#include <jansson.h>

#define SK_PROVIDER_SIZE    24
#define SK_OWNER_SIZE       64
#define SK_TRACEPARENT_SIZE 64
#define SK_CLAIM_NAME_SIZE  254
#define SK_PATH_SIZE        256
#define SK_TEAM_ID_SIZE     129
#define SK_REPOSITORY_SIZE  257
#define SK_TAG_SIZE         129
#define SK_REASON_SIZE      257
#define SK_PINS_MAX         32
#define SK_OUTBOX_MAX       64 /* more pending events than this and new claims wait for the relay (sandbox_busy) */

struct sk_limit {
    bool present;
    double cpu_count;
    double memory_mib;
    char storage_size[16]; /* "1Gi" */
};

struct sk_image {
    bool present;
    char repository[SK_REPOSITORY_SIZE];
    char tag[SK_TAG_SIZE]; /* "" = absent */
};

struct sk_storage {
    bool present;
    int volume_index;     /* where the volume stands in the document's array (others in it are left alone) */
    char volume_name[64]; /* "workspace"; "" = no volume */
    char claim_name[SK_CLAIM_NAME_SIZE]; /* "" = absent */
    char volume_mount_path[SK_PATH_SIZE];
    char sub_path[SK_PATH_SIZE];
    char mount_path[SK_PATH_SIZE]; /* storage.mountPath */
};

struct sk_pin {
    char id[SK_COMMAND_ID_SIZE];
    char kind[32];
    int64_t expires_at; /* Unix ms */
};

/* `error` of an operation or of lastOperation: stored as text by FastGPT, by us as "<code>: <detail>". */
struct sk_stored_error {
    char code[40];
    char detail[SK_ERROR_MESSAGE_MAX]; /* bounded at 500 bytes when stored */
};

struct sk_operation {
    enum sk_op type;
    char id[SK_UUID_SIZE];
    char phase[32];
    enum sk_status previous_status; /* NONE = absent */
    int64_t started_at, heartbeat_at;
    int64_t failed_at; /* 0 = absent */
    struct sk_stored_error error;
    /* What Sandkeep adds. job_id "" means: FastGPT wrote this operation. */
    int attempt;               /* failed tries so far */
    int64_t next_attempt_at;   /* 0 = none */
    char owner[SK_OWNER_SIZE]; /* replica id; "" = released: anybody may claim at next_attempt_at */
    char command_id[SK_COMMAND_ID_SIZE];
    char job_id[SK_UUID_SIZE]; /* made at the first claim, kept through take-overs */
    char traceparent[SK_TRACEPARENT_SIZE];
    int64_t deadline_at;          /* Unix ms of the current phase's deadline, for readers */
    char blocked[SK_REASON_SIZE]; /* visible reason; "" = not blocked */
};

struct sk_last_operation {
    bool present;
    char id[SK_UUID_SIZE];
    enum sk_op type;
    char result[16]; /* "completed" | "failed" | "compensated" */
    int64_t started_at, ended_at;
    struct sk_stored_error error;
};

struct sk_instance {
    char oid[25]; /* Mongo _id, hex; "" before the first insert */
    char provider[SK_PROVIDER_SIZE];
    char sandbox_id[SK_SANDBOX_ID_SIZE];
    struct sk_identity identity;
    enum sk_status status;
    int64_t last_active_at, created_at;
    struct sk_limit limit;
    struct sk_storage storage;
    char team_id[SK_TEAM_ID_SIZE];
    struct sk_image image;
    char version_id[SK_TEAM_ID_SIZE];
    bool has_operation;
    struct sk_operation operation;
    int64_t epoch;    /* 0 = absent (written by FastGPT) */
    int64_t sequence; /* 0 = absent */
    struct sk_last_operation last_operation;
    int pin_count;
    struct sk_pin pins[SK_PINS_MAX];
    int outbox_count; /* events waiting in the record when it was read */
    /* Set by the decoder: the document breaks the contract; it is left alone and commands answer operation_blocked. */
    bool malformed;
    char malformed_reason[SK_REASON_SIZE];
};

enum sk_event_type {
    SK_EVENT_CLAIMED,
    SK_EVENT_PHASE,
    SK_EVENT_COMPLETED,
    SK_EVENT_FAILED,
    SK_EVENT_BLOCKED,
    SK_EVENT_TAKENOVER,
    SK_EVENT_DELETED,
    SK_EVENT_TYPE_COUNT
};
const char *sk_event_type_name(enum sk_event_type type);  /* "lifecycle.claimed", … */
enum sk_event_type sk_event_type_parse(const char *name); /* SK_EVENT_TYPE_COUNT when unknown */

/* One lifecycle event as it waits in the outbox. Identity and provider are those of the record that carries it; a copy
 * is held here so that an event read from the store is complete. */
struct sk_event {
    char id[SK_ULID_SIZE]; /* also ce-id and Nats-Msg-Id */
    enum sk_event_type type;
    int64_t time;
    char sandbox_id[SK_SANDBOX_ID_SIZE];
    struct sk_identity identity;
    char team_id[SK_TEAM_ID_SIZE];
    char provider[SK_PROVIDER_SIZE];
    int64_t epoch, sequence;
    enum sk_status from, to; /* NONE: no record before / after */
    char operation_id[SK_UUID_SIZE];
    char job_id[SK_UUID_SIZE];
    enum sk_op operation_type;
    char phase[32];
    int attempt;
    char owner[SK_OWNER_SIZE];
    char reason[SK_REASON_SIZE];
    struct sk_stored_error error;
    int64_t duration_ms; /* -1 = absent: of the step (phase) or of the whole operation (terminal events) */
    char command_id[SK_COMMAND_ID_SIZE];
    char traceparent[SK_TRACEPARENT_SIZE];
};

/* Checks contract §2.4 on one record (stable <=> no operation, status/operation pairing, known phase, positive epoch
 * where we own it …). NULL when it holds, else a constant sentence. Called before every write. */
const char *sk_instance_invariant(const struct sk_instance *instance);
/* Checks a change: legal move, epoch and sequence never fall, identity unchanged. NULL when it holds. */
const char *sk_instance_change_invariant(const struct sk_instance *before, const struct sk_instance *after);

/* The public view (contract §2.3). New reference; NULL only when out of memory. */
json_t *sk_instance_public_json(const struct sk_instance *instance);
/* The data object of a lifecycle event (contract/messaging.md §4). New reference. */
json_t *sk_event_data_json(const struct sk_event *event);
/* How an event ends its operation, in the timeline's word (contract/lifecycle.md §2.2); NULL when it does not. A
 * constant. */
const char *sk_event_result(const struct sk_event *event);

void sk_stored_error_set(struct sk_stored_error *out, const struct sk_error *error);
bool sk_instance_pinned(const struct sk_instance *instance, int64_t now_ms);
/* "<prefix>-<sandboxId>-<generation>", lower case; false when it would not be a DNS label of at most 253 bytes. */
SK_MUST_USE bool sk_claim_name(char out[SK_CLAIM_NAME_SIZE], const char *prefix, const char *sandbox_id,
                               const char *generation);

#endif
