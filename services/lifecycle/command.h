/* SPDX-License-Identifier: Apache-2.0
 *
 * A lifecycle command as it comes from the stream (contract/messaging.md §2): parsed, checked and turned into plain
 * values before anything else looks at it. Pure functions over one delivery; nothing blocks, nothing is kept. */
#ifndef SK_LIFECYCLE_COMMAND_H
#define SK_LIFECYCLE_COMMAND_H

#include "common/bus/bus.h"
#include "common/instance/instance.h"

#define LC_REPLY_TO_SIZE   256
#define LC_COMMAND_ID_MAX  64 /* code points */
#define LC_JSON_DEPTH_MAX  32
#define LC_DEADLINE_MS_MAX 3600000
#define LC_CPU_COUNT_MAX   1024.0
#define LC_MEMORY_MIB_MAX  4194304.0
#define LC_TRACESTATE_MAX  512 /* bytes; W3C: what everybody has to pass on */

enum lc_verb {
    LC_VERB_NONE = 0,
    LC_VERB_ENSURE,
    LC_VERB_PROVISION,
    LC_VERB_STOP,
    LC_VERB_ARCHIVE,
    LC_VERB_RESTORE,
    LC_VERB_DELETE,
    LC_VERB_CONVERGE,
    LC_VERB_RECOVER,
    LC_VERB_TOUCH,
    LC_VERB_COUNT
};
const char *lc_verb_name(enum lc_verb verb);  /* "ensure"; "" for NONE */
enum lc_verb lc_verb_parse(const char *name); /* LC_VERB_NONE when unknown */

struct lc_params {
    bool restore;                     /* ensure; default true */
    bool force;                       /* archive */
    bool abandon;                     /* recover: action "abandon"; else "retry" */
    int64_t if_idle_since;            /* stop, archive: Unix ms, 0 = absent */
    struct sk_image image;            /* ensure, converge */
    struct sk_limit limit;            /* ensure: members that are 0 or "" were not given */
    char provider[SK_PROVIDER_SIZE];  /* ensure, converge; "" = absent */
    char team_id[SK_TEAM_ID_SIZE];    /* ensure */
    char version_id[SK_TEAM_ID_SIZE]; /* ensure */
    char reason[SK_REASON_SIZE];      /* ensure, stop, delete */
};

struct lc_command {
    enum lc_verb verb;
    char id[SK_COMMAND_ID_SIZE];
    char sandbox_id[SK_SANDBOX_ID_SIZE];
    bool has_identity;
    struct sk_identity identity;
    int64_t deadline_ms;
    struct lc_params params;
    char hash[65];                   /* SHA-256 of op, source, sandboxId and params: the command's meaning */
    char reply_to[LC_REPLY_TO_SIZE]; /* "" = nobody asks */
    bool reply_ignored;              /* a Sandbox-Reply-To was there but is not usable: log it */
    char traceparent[SK_TRACEPARENT_SIZE];
    const char *tracestate; /* the delivery's, as long as that lives; NULL = none, or no traceparent to it */
};

/* Fills *out from a delivery. On -1 the members that could be made out are set all the same (id, sandbox_id, reply_to;
 * "" where not), so that the refusal can be sent to whoever asked. Errors: invalid_request, identity_mismatch,
 * source_unsupported, operation_blocked (a command of a service that this release has not); none is retryable. `prefix`
 * is the first token of our subjects. */
SK_MUST_USE int lc_command_parse(const struct sk_delivery *delivery, const char *prefix, int64_t default_deadline_ms,
                                 struct lc_command *out, struct sk_error *err);

#endif
