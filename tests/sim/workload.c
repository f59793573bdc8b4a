/* SPDX-License-Identifier: Apache-2.0
 *
 * Clients: what they ask, how long they wait, when they ask again, and what they were answered. A client that gets no
 * answer in time sends the same id again; one that gets a retryable failure sometimes does, too. */
#include "tests/sim/workload.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMMANDS_MAX  128
#define MEANINGS_MAX  4
#define RETRIES_MAX   3    /* a client's own, after retryable failures */
#define PATIENCE_MS   2500 /* beyond the deadline, before the same id is sent again */
#define BODY_MAX      2048
#define SOURCE_MAX    1024
#define OVERSIZE_BODY (256 * 1024 + 1)
#define INBOX_PREFIX  "client."

struct sim_command {
    int tag;
    char id[SK_COMMAND_ID_SIZE];
    int identity;
    char sandbox_id[SK_SANDBOX_ID_SIZE];
    const char *op;
    char subject[SK_SUBJECT_SIZE];
    char *body;
    size_t body_len;
    int64_t deadline_ms;
    bool valid;   /* follows the contract; else it must be rejected */
    bool sibling; /* another command carries the same id with another meaning */
    bool twice;   /* published twice at once */
    bool if_idle;
    bool planned_out; /* its time has come: it was published at least once */
    int sends, retries;
    int64_t first_us, last_us, deadline_answer_us;
    bool outage, wiped;
    int answers; /* final ones, repeats not counted */
    bool final;  /* a final answer that no retry of the client follows */
    bool retryable, rejected, attempted, conflict;
    bool by_reply;
    int meaning_count;
    char meanings[MEANINGS_MAX][320];
};

struct sim_workload {
    struct sim_command *commands[COMMANDS_MAX];
    int count;
    bool done; /* no new ones */
};

struct sim_workload *sim_workload_new(struct sim_world *w)
{
    struct sim_workload *load = calloc(1, sizeof(*load));

    (void)w;
    if (load == NULL)
        abort();
    return load;
}

void sim_workload_free(struct sim_workload *load)
{
    for (int i = 0; i < load->count; i++) {
        free(load->commands[i]->body);
        free(load->commands[i]);
    }
    free(load);
}

struct sk_identity sim_identity(int index)
{
    struct sk_identity identity;
    char source[32], user[32];
    const char *type = index % 5 == 3 ? "skillEdit" : index % 5 == 4 ? "workflowBuilder" : "app";

    snprintf(source, sizeof(source), "source-%d", index / 2);
    snprintf(user, sizeof(user), "user-%d", index);
    if (sk_identity_set(&identity, type, source, strlen(source), user, strlen(user), NULL) != 0)
        abort();
    return identity;
}

void sim_sandbox_id(int index, char out[SK_SANDBOX_ID_SIZE])
{
    struct sk_identity identity = sim_identity(index);

    sk_identity_sandbox_id(&identity, out);
}

/* ---- sending
 * ---------------------------------------------------------------------------------------------------------- */

struct sending {
    struct sim_world *w;
    struct sim_command *c;
    bool again; /* because there was no answer */
};

static void send_at(struct sim_world *w, struct sim_command *c, int64_t at_us, bool again);

static void send(void *arg)
{
    struct sending *s = arg;
    struct sim_world *w = s->w;
    struct sim_command *c = s->c;
    char inbox[64], message_id[SK_COMMAND_ID_SIZE + 16];
    bool stored;

    if (c->final || (s->again && sim_now_us(w->sched) < c->last_us + (c->deadline_ms + PATIENCE_MS) * SIM_MS)) {
        free(s);
        return;
    }
    free(s);
    c->sends++;
    c->planned_out = true;
    if (c->sends == 1)
        c->first_us = sim_now_us(w->sched);
    c->last_us = sim_now_us(w->sched);
    c->outage = c->outage || sim_down(w, SIM_STORE);
    snprintf(inbox, sizeof(inbox), INBOX_PREFIX "%d.%d", c->tag, c->sends);
    snprintf(message_id, sizeof(message_id), "%s/%d/%d", c->id, c->tag, c->sends);
    stored = sim_bus_command(w, c->tag, c->subject, sim_percent(&w->work, 50) ? message_id : NULL, c->body, c->body_len,
                             inbox);
    SIM_TRACE(w, "client: %s %s id %s (%d. time)%s", c->op, c->sandbox_id, c->id, c->sends, stored ? "" : " no PubAck");
    if (!stored) {
        c->last_us = 0;
        send_at(w, c, sim_now_us(w->sched) + sim_between(&w->work, 50, 400) * SIM_MS, false);
        return;
    }
    send_at(w, c, c->last_us + (c->deadline_ms + PATIENCE_MS) * SIM_MS, true);
}

static void send_at(struct sim_world *w, struct sim_command *c, int64_t at_us, bool again)
{
    struct sending *s = calloc(1, sizeof(*s));

    if (s == NULL)
        abort();
    *s = (struct sending){.w = w, .c = c, .again = again};
    sim_at_own(w->sched, at_us, send, s);
}

/* ---- what is asked
 * -------------------------------------------------------------------------------------------------------- */

static struct sim_command *command_new(struct sim_world *w, const char *op, int identity)
{
    struct sim_workload *load = w->workload;
    struct sim_command *c = calloc(1, sizeof(*c));

    if (c == NULL || load->count == COMMANDS_MAX)
        abort();
    c->tag = load->count;
    load->commands[load->count++] = c;
    c->op = op;
    c->identity = identity;
    c->valid = true;
    c->deadline_ms = w->scenario.lc.default_deadline_ms;
    sim_sandbox_id(identity, c->sandbox_id);
    snprintf(c->id, sizeof(c->id), "cmd-%d", c->tag);
    snprintf(c->subject, sizeof(c->subject), "sandbox.cmd.lifecycle.%s.%s", op, c->sandbox_id);
    return c;
}

static void set_body(struct sim_command *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void set_body(struct sim_command *c, const char *fmt, ...)
{
    char text[BODY_MAX];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    free(c->body);
    c->body = strdup(text);
    if (c->body == NULL)
        abort();
    c->body_len = strlen(text);
}

static const char *source_json(int identity, char out[SOURCE_MAX])
{
    struct sk_identity id = sim_identity(identity);

    snprintf(out, SOURCE_MAX, "\"source\":{\"sourceType\":\"%s\",\"sourceId\":\"%s\",\"userId\":\"%s\"},",
             sk_source_type_name(id.source_type), id.source_id, id.user_id);
    return out;
}

static void compose(struct sim_command *c, bool source, const char *params)
{
    char text[SOURCE_MAX];

    set_body(c, "{\"id\":\"%s\",%s\"deadlineMs\":%lld,\"params\":%s}", c->id,
             source ? source_json(c->identity, text) : "", (long long)c->deadline_ms, params);
}

static void compose_ensure(struct sim_world *w, struct sim_command *c)
{
    char params[512], team[64] = "";
    const char *image = "";

    if (w->scenario.teams > 0 && sim_percent(&w->work, 70))
        snprintf(team, sizeof(team), "\"teamId\":\"team-%d\",", c->identity % w->scenario.teams);
    if (w->scenario.bad_images && sim_percent(&w->work, 12))
        image = "\"image\":{\"repository\":\"bad/image\"},";
    else if (sim_percent(&w->work, 6))
        image = "\"image\":{\"repository\":\"other/image\",\"tag\":\"2\"},";
    snprintf(params, sizeof(params), "{%s%s\"reason\":\"turn\"}", team, image);
    compose(c, true, params);
}

static void compose_stop(struct sim_world *w, struct sim_command *c)
{
    char params[128] = "{}", at[SK_TIME_SIZE];

    if (sim_percent(&w->work, 30)) {
        c->if_idle = true;
        sk_time_format(sim_wall(w) + w->scenario.active_ms / 2 - sim_between(&w->work, -4000, 8000), at);
        snprintf(params, sizeof(params), "{\"ifIdleSince\":\"%s\"}", at);
    }
    compose(c, sim_percent(&w->work, 30), params);
}

static void make_bad(struct sim_world *w, struct sim_command *c)
{
    c->valid = false;
    c->op = "bad input";
    switch (sim_below(&w->work, 9)) {
    case 0:
        set_body(c, "this is not JSON");
        break;
    case 1:
        set_body(c, "{\"id\":17}");
        break;
    case 2:
        set_body(c, "{\"id\":\"%s\",\"sandboxId\":\"app-0000000000000000\"}", c->id);
        break;
    case 3:
        set_body(c, "{\"id\":\"%s\",\"deadlineMs\":-1}", c->id);
        break;
    case 4:
        set_body(c, "{\"id\":\"%s\",\"params\":{\"ifIdleSince\":\"yesterday\"}}", c->id);
        snprintf(c->subject, sizeof(c->subject), "sandbox.cmd.lifecycle.stop.%s", c->sandbox_id);
        break;
    case 5:
        set_body(c, "{\"op\":\"stop\",\"id\":\"%s\"}", c->id); /* the subject says ensure */
        break;
    case 6:
        set_body(c, "%s", "");
        break;
    case 7:
        set_body(c, "{\"id\":\"%s\"}", c->id);
        snprintf(c->subject, sizeof(c->subject), "sandbox.cmd.lifecycle.explode.%s", c->sandbox_id);
        break;
    default:
        free(c->body);
        c->body = calloc(1, OVERSIZE_BODY + 1);
        if (c->body == NULL)
            abort();
        memset(c->body, ' ', OVERSIZE_BODY);
        c->body_len = OVERSIZE_BODY;
        break;
    }
}

/* Another body under an id that is in use. */
static void make_sibling(struct sim_world *w, struct sim_command *c)
{
    struct sim_workload *load = w->workload;
    struct sim_command *other = load->commands[sim_below(&w->work, (uint64_t)c->tag)];

    if (!other->valid || other->sibling || strcmp(other->op, "ensure") == 0)
        return;
    c->sibling = other->sibling = true;
    c->identity = other->identity;
    memcpy(c->sandbox_id, other->sandbox_id, sizeof(c->sandbox_id));
    memcpy(c->id, other->id, sizeof(c->id));
    c->op = "ensure";
    snprintf(c->subject, sizeof(c->subject), "sandbox.cmd.lifecycle.ensure.%s", c->sandbox_id);
    compose_ensure(w, c);
}

static struct sim_command *draw_command(struct sim_world *w)
{
    static const struct {
        int weight;
        const char *op;
    } mix[] = {{42, "ensure"}, {4, "provision"}, {16, "stop"},   {13, "delete"},  {7, "touch"},
               {9, "recover"}, {2, "archive"},   {1, "restore"}, {2, "converge"}, {4, "bad"}};
    int identity = (int)sim_below(&w->work, (uint64_t)w->scenario.sandboxes);
    int roll = (int)sim_below(&w->work, 100);
    const char *op = "ensure";
    struct sim_command *c;

    for (size_t i = 0; i < sizeof(mix) / sizeof(mix[0]); i++) {
        if (roll < mix[i].weight) {
            op = mix[i].op;
            break;
        }
        roll -= mix[i].weight;
    }
    c = command_new(w, strcmp(op, "bad") == 0 ? "ensure" : op, identity);
    if (sim_percent(&w->work, 20))
        c->deadline_ms = sim_between(&w->work, 20, 600);
    else if (sim_percent(&w->work, 30))
        c->deadline_ms = sim_between(&w->work, 2000, 12000);
    if (strcmp(op, "bad") == 0)
        make_bad(w, c);
    else if (strcmp(op, "ensure") == 0 || strcmp(op, "provision") == 0)
        compose_ensure(w, c);
    else if (strcmp(op, "stop") == 0)
        compose_stop(w, c);
    else if (strcmp(op, "recover") == 0)
        compose(c, false, sim_percent(&w->work, 60) ? "{\"action\":\"retry\"}" : "{\"action\":\"abandon\"}");
    else if (strcmp(op, "converge") == 0)
        compose(c, true, "{\"image\":{\"repository\":\"other/image\"},\"provider\":\"opensandbox\"}");
    else
        compose(c, sim_percent(&w->work, 50), "{}");
    if (c->valid && c->tag > 0 && sim_percent(&w->work, 4))
        make_sibling(w, c);
    c->twice = sim_percent(&w->work, 12);
    return c;
}

static void source_vanishes(void *arg)
{
    struct sim_world *w = arg;
    struct sim_store *store = w->store;

    if (store->source_count > 0)
        store->sources[sim_below(&w->work, (uint64_t)store->source_count)].deleted = true;
}

static void activity(void *arg)
{
    sim_fastgpt_activity(arg);
}

void sim_workload_start(struct sim_world *w)
{
    struct sim_store *store = w->store;
    int64_t span_us = w->scenario.active_ms * SIM_MS;

    for (int i = 0; i < w->scenario.commands; i++) {
        struct sim_command *c = draw_command(w);
        int64_t at = sim_between(&w->work, 0, span_us);

        /* Bursts: a sandbox that is used is used several times at once. */
        if (i > 0 && sim_percent(&w->work, 35))
            at = w->workload->commands[i - 1]->first_us + sim_between(&w->work, 0, 30 * SIM_MS);
        c->first_us = at;
        send_at(w, c, at, false);
        if (c->twice)
            send_at(w, c, at + sim_between(&w->work, 0, 300 * SIM_MS), false);
    }
    store->source_check = sim_percent(&w->work, 40);
    for (int i = 0; i < (w->scenario.sandboxes + 1) / 2; i++) {
        struct sim_source *source = &store->sources[store->source_count++];

        snprintf(source->id, sizeof(source->id), "source-%d", i);
        if (sim_percent(&w->work, 50))
            snprintf(source->team_id, sizeof(source->team_id), "team-%d", i % w->scenario.teams);
    }
    if (store->source_check && sim_percent(&w->work, 50))
        sim_at(w->sched, sim_between(&w->work, 0, span_us), source_vanishes, w);
    for (int64_t n = sim_between(&w->work, 0, 12); n > 0; n--)
        sim_at(w->sched, sim_between(&w->work, 0, span_us), activity, w);
}

static int identity_of(struct sim_world *w, const char *sandbox_id)
{
    char id[SK_SANDBOX_ID_SIZE];

    for (int i = 0; i < w->scenario.sandboxes; i++) {
        sim_sandbox_id(i, id);
        if (strcmp(id, sandbox_id) == 0)
            return i;
    }
    return -1;
}

void sim_workload_burst(struct sim_world *w, const char *sandbox_id)
{
    int identity = identity_of(w, sandbox_id);
    int64_t now = sim_now_us(w->sched);
    struct sim_command *c;

    if (identity < 0 || w->workload->count + 2 > COMMANDS_MAX)
        return;
    c = command_new(w, "delete", identity);
    compose(c, false, "{}");
    send_at(w, c, now + sim_between(&w->work, 1, 100) * SIM_MS, false);
    c = command_new(w, "ensure", identity);
    compose(c, true, "{}");
    send_at(w, c, now + sim_between(&w->work, 20, 600) * SIM_MS, false);
}

void sim_workload_final_ensure(struct sim_world *w, const char *sandbox_id)
{
    int identity = identity_of(w, sandbox_id);
    struct sim_command *c;

    if (identity < 0 || w->workload->count == COMMANDS_MAX)
        return;
    c = command_new(w, "ensure", identity);
    c->deadline_ms = 60000;
    compose(c, true, "{\"reason\":\"use after interference\"}");
    send_at(w, c, sim_now_us(w->sched), false);
}

/* ---- what is answered
 * --------------------------------------------------------------------------------------------------------- */

static bool text_is(const json_t *object, const char *key, const char *value)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text != NULL && strcmp(text, value) == 0;
}

/* Was this the sandbox's status at some moment since the command was first sent? */
static bool status_seen(struct sim_world *w, const struct sim_command *c, enum sk_status status)
{
    const struct sim_store *store = w->store;
    enum sk_status before = SK_STATUS_NONE;

    for (size_t i = 0; i < store->stretch_count; i++) {
        const struct sim_stretch *s = &store->stretches[i];

        if (strcmp(s->sandbox_id, c->sandbox_id) != 0)
            continue;
        if (s->at_us >= c->first_us && (before == status || s->status == status))
            return true;
        before = s->status;
    }
    return before == status;
}

/* The deleted event is out: only the removal of the record is left. */
static bool told_to_be_gone(struct sim_world *w, const struct sim_command *c)
{
    const struct sim_doc *doc = sim_store_doc(w, c->sandbox_id);

    return doc != NULL && doc->i.status == SK_STATUS_DELETING && strcmp(doc->i.operation.phase, "archiveDeleted") == 0;
}

static void judge_ok(struct sim_world *w, const struct sim_command *c, const json_t *data)
{
    const char *status = json_string_value(json_object_get(data, "status"));
    enum sk_status told = status == NULL ? SK_STATUS_NONE : sk_status_parse(status);
    bool ensure = strcmp(c->op, "ensure") == 0 || strcmp(c->op, "provision") == 0;

    if (ensure && told != SK_STATUS_RUNNING)
        sim_fail(w, "answer", "%s: ensure %s was answered ok with status %s", c->sandbox_id, c->id,
                 status == NULL ? "(none)" : status);
    else if (strcmp(c->op, "delete") == 0 && !status_seen(w, c, SK_STATUS_NONE) && !told_to_be_gone(w, c))
        sim_fail(w, "answer", "%s: delete %s was answered ok but the record was never gone", c->sandbox_id, c->id);
    else if (strcmp(c->op, "stop") == 0 && !c->if_idle && told == SK_STATUS_RUNNING)
        sim_fail(w, "answer", "%s: stop %s was answered ok with status running", c->sandbox_id, c->id);
    else if (told != SK_STATUS_NONE && told != SK_STATUS_INVALID && strcmp(c->op, "delete") != 0 &&
             !status_seen(w, c, told))
        sim_fail(w, "answer", "%s: %s %s was answered ok with status %s, which it never had meanwhile", c->sandbox_id,
                 c->op, c->id, status);
}

static void meaning_of(const json_t *data, bool ok, const char *code, char out[320])
{
    const char *status = json_string_value(json_object_get(data, "status"));
    const char *operation = json_string_value(json_object_get(data, "operationId"));

    if (ok)
        snprintf(out, 320, "ok %s epoch %lld operation %s", status == NULL ? "-" : status,
                 (long long)json_integer_value(json_object_get(data, "epoch")), operation == NULL ? "-" : operation);
    else
        snprintf(out, 320, "error %s", code);
}

static void note_meaning(struct sim_world *w, struct sim_command *c, const char *meaning, bool repeated)
{
    for (int i = 0; i < c->meaning_count; i++) {
        if (strcmp(c->meanings[i], meaning) == 0) {
            if (repeated)
                sim_saw(w, SIM_SOME_IDEMPOTENT_ANSWER);
            return;
        }
    }
    if (c->meaning_count < MEANINGS_MAX)
        snprintf(c->meanings[c->meaning_count++], sizeof(c->meanings[0]), "%s", meaning);
    if (c->meaning_count > 1)
        SIM_TRACE(w, "client: id %s was answered \"%s\" and \"%s\"", c->id, c->meanings[0], meaning);
}

static void note_sometimes(struct sim_world *w, struct sim_command *c, const char *code, bool reply)
{
    if (strcmp(code, "sandbox_busy") == 0)
        sim_saw(w, SIM_SOME_BUSY_ANSWER);
    if (strcmp(code, "deadline_exceeded") == 0) {
        sim_saw(w, SIM_SOME_DEADLINE_ANSWER);
        c->deadline_answer_us = sim_now_us(w->sched);
    } else if (c->deadline_answer_us != 0) {
        sim_saw(w, SIM_SOME_ANSWER_AFTER_DEADLINE);
    }
    if (strcmp(code, "operation_blocked") == 0) {
        const struct sim_doc *doc = sim_store_doc(w, c->sandbox_id);

        if (doc != NULL && doc->i.malformed)
            sim_saw(w, SIM_SOME_MALFORMED_REFUSED);
    }
    if (!reply && !c->by_reply)
        sim_saw(w, SIM_SOME_ANSWER_BY_EVENT_ONLY);
    if (c->outage)
        sim_saw(w, SIM_SOME_OUTAGE_SURVIVED);
    if (c->wiped)
        sim_saw(w, SIM_SOME_WIPE_SURVIVED);
}

static void answered(struct sim_world *w, struct sim_command *c, const json_t *data, bool reply)
{
    const json_t *error = json_object_get(data, "error");
    const char *code = json_string_value(json_object_get(error, "code"));
    bool ok = json_is_true(json_object_get(data, "ok"));
    bool retryable = json_is_true(json_object_get(error, "retryable"));
    char meaning[320];
    bool repeated;

    if (!ok && code == NULL) {
        sim_fail(w, "answer", "%s: the answer to %s is neither ok nor an error", c->sandbox_id, c->id);
        return;
    }
    if (ok && !c->valid) {
        sim_fail(w, "answer", "bad input %s was answered ok", c->id);
        return;
    }
    meaning_of(data, ok, code, meaning);
    SIM_TRACE(w, "client: %s %s id %s is answered by %s: %s", c->op, c->sandbox_id, c->id, reply ? "reply" : "event",
              meaning);
    note_sometimes(w, c, ok ? "" : code, reply);
    c->answers++;
    repeated = reply && c->by_reply;
    c->by_reply = c->by_reply || reply;
    if (!ok && strcmp(code, "idempotency_conflict") == 0) {
        sim_saw(w, SIM_SOME_IDEMPOTENCY_CONFLICT);
        if (!c->sibling)
            sim_fail(w, "answer", "%s: id %s got idempotency_conflict but has one meaning only", c->sandbox_id, c->id);
        c->conflict = c->final = true;
        return;
    }
    if (retryable) {
        c->retryable = true;
        if (c->retries < RETRIES_MAX && sim_percent(&w->work, 50)) {
            c->retries++;
            c->last_us = 0;
            send_at(w, c, sim_now_us(w->sched) + sim_between(&w->work, 20, 1500) * SIM_MS, false);
        } else {
            c->final = true;
        }
        return;
    }
    c->final = true;
    if (ok)
        judge_ok(w, c, data);
    if (!ok && !c->valid)
        c->rejected = true;
    note_meaning(w, c, meaning, repeated);
}

void sim_workload_reply(struct sim_world *w, const char *inbox, const char *body, size_t len, bool progress, bool lost)
{
    int tag = atoi(inbox + strlen(INBOX_PREFIX));
    struct sim_command *c;
    json_t *data;

    if (tag < 0 || tag >= w->workload->count)
        return;
    c = w->workload->commands[tag];
    data = json_loadb(body, len, 0, NULL);
    if (data == NULL || (c->valid && !json_is_string(json_object_get(data, "id")))) {
        sim_fail(w, "answer", "the reply to %s is not a JSON object with an id", c->id);
    } else if (!progress) {
        c->attempted = true;
        if (!lost)
            answered(w, c, data, true);
    }
    json_decref(data);
}

void sim_workload_event(struct sim_world *w, const char *type, const json_t *data)
{
    const char *id = json_string_value(json_object_get(data, "commandId"));

    if (strncmp(type, "command.", 8) != 0)
        return;
    for (int i = 0; id != NULL && i < w->workload->count; i++) {
        struct sim_command *c = w->workload->commands[i];

        if (strcmp(c->id, id) != 0 || !c->planned_out)
            continue;
        c->attempted = true;
        if (strcmp(type, "command.rejected") == 0)
            c->rejected = true;
        /* Which of two meanings an event of a shared id speaks of is not told: those wait for their reply. */
        if (!c->sibling && (c->valid || text_is(data, "sandboxId", c->sandbox_id)))
            answered(w, c, data, false);
    }
}

void sim_workload_acked(struct sim_world *w, const struct sim_message *message)
{
    const struct sim_command *c = w->workload->commands[message->tag];

    if (sim_store_result(w, c->sandbox_id, c->id) != NULL || c->attempted || c->retryable || c->conflict || c->rejected)
        return;
    if (!c->valid)
        return; /* a rejection without a usable id; the dead letter stream has it */
    sim_fail(w, "ack-before-result", "%s: command %s (#%llu) was acknowledged without a stored result or an answer",
             c->sandbox_id, c->id, (unsigned long long)message->sequence);
}

void sim_workload_wiped(struct sim_world *w, const struct sim_message *message)
{
    w->workload->commands[message->tag]->wiped = true;
}

bool sim_workload_answered(struct sim_world *w)
{
    for (int i = 0; i < w->workload->count; i++) {
        const struct sim_command *c = w->workload->commands[i];

        if (c->valid && !c->final)
            return false;
    }
    return true;
}

void sim_workload_report(struct sim_world *w)
{
    for (int i = 0; i < w->workload->count; i++) {
        const struct sim_command *c = w->workload->commands[i];

        if (c->valid && !c->final)
            SIM_TRACE(w, "no answer: %s %s id %s, sent %d times", c->op, c->sandbox_id, c->id, c->sends);
    }
}

struct sk_check_command *sim_workload_commands(struct sim_world *w, size_t *count)
{
    struct sk_check_command *out = calloc((size_t)w->workload->count + 1, sizeof(*out));

    if (out == NULL)
        abort();
    *count = 0;
    for (int i = 0; i < w->workload->count; i++) {
        const struct sim_command *c = w->workload->commands[i];
        struct sk_check_command *o = &out[*count];

        if (!c->valid)
            continue;
        (*count)++;
        memcpy(o->sandbox_id, c->sandbox_id, sizeof(o->sandbox_id));
        memcpy(o->command_id, c->id, sizeof(o->command_id));
        o->acknowledged = true;
        o->stored = sim_store_result(w, c->sandbox_id, c->id) != NULL;
        o->rejected = c->rejected || c->conflict;
        o->retryable = c->retryable;
        o->must_answer = true;
        o->answers = c->answers;
        o->meanings = c->meaning_count;
    }
    return out;
}
