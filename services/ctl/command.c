/* SPDX-License-Identifier: Apache-2.0
 *
 * Lifecycle commands (contract/messaging.md §2): published to the command stream with an inbox for progress and result.
 * When the bus connection broke meanwhile, a result may have passed by: the command is published again under the same
 * id, which runs nothing twice and brings the stored result. */
#include "services/ctl/ctl.h"

#include "proto/subjects.h"

#include <stdlib.h>
#include <string.h>

#define ANSWER_GRACE_MS 5000 /* the service answers at the deadline; this long after it nobody does */

static int set_text(json_t *object, const char *name, const char *text)
{
    return text == NULL ? 0 : json_object_set_new(object, name, json_string(text));
}

/* "repository:tag"; a colon inside the last path segment only, so that registry ports survive. */
static json_t *image_json(const char *text)
{
    const char *slash = strrchr(text, '/'), *colon = strrchr(slash != NULL ? slash : text, ':');

    if (colon == NULL)
        return json_pack("{s:s}", "repository", text);
    return json_pack("{s:s%, s:s}", "repository", text, (size_t)(colon - text), "tag", colon + 1);
}

static int params_json(struct ctl *ctl, const char *op, json_t *params)
{
    const struct ctl_args *args = &ctl->args;
    int bad = 0;

    if (args->image != NULL)
        bad |= json_object_set_new(params, "image", image_json(args->image));
    bad |= set_text(params, "provider", args->provider);
    bad |= set_text(params, "teamId", args->team);
    bad |= set_text(params, "versionId", args->version_id);
    bad |= set_text(params, "reason", args->reason);
    bad |= set_text(params, "action", args->action);
    if (strcmp(op, "recover") == 0 && args->action == NULL)
        bad |= set_text(params, "action", "retry");
    if (!args->restore)
        bad |= json_object_set_new(params, "restore", json_false());
    if (args->force)
        bad |= json_object_set_new(params, "force", json_true());
    if (args->cpu > 0 || args->memory_mib > 0 || args->storage != NULL) {
        json_t *limit = json_object();
        if (args->cpu > 0)
            bad |= json_object_set_new(limit, "cpuCount", json_real(args->cpu));
        if (args->memory_mib > 0)
            bad |= json_object_set_new(limit, "memoryMiB", json_integer(args->memory_mib));
        bad |= set_text(limit, "storageSize", args->storage);
        bad |= json_object_set_new(params, "limit", limit);
    }
    if (args->if_idle_since != NULL) {
        char time[SK_TIME_SIZE];
        int64_t when;
        if (!ctl_parse_when(args->if_idle_since, &when))
            return ctl_usage(ctl, "--if-idle-since=%s: must be RFC 3339 or a time such as 30m", args->if_idle_since);
        sk_time_format(when, time);
        bad |= set_text(params, "ifIdleSince", time);
    }
    if (bad != 0) {
        ctl_complain("out of memory, or an argument is not UTF-8");
        return CTL_FAILED;
    }
    return 0;
}

/* The command's JSON text in *out. */
static int command_text(struct ctl *ctl, const char *op, const char *id, char **out)
{
    char time[SK_TIME_SIZE];
    json_t *params = json_object(), *command;
    int status = params_json(ctl, op, params);

    *out = NULL;
    if (status != 0) {
        json_decref(params);
        return status;
    }
    sk_time_format(sk_wall_ms(&sk_sched_system), time);
    command = json_pack("{s:s, s:s, s:s, s:s, s:I, s:o}", "id", id, "op", op, "sandboxId", ctl->sandbox_id,
                        "requestedAt", time, "deadlineMs", (json_int_t)ctl->args.deadline_ms, "params", params);
    if (command != NULL && ctl->has_identity)
        json_object_set_new(command, "source",
                            json_pack("{s:s, s:s, s:s}", "sourceType", sk_source_type_name(ctl->identity.source_type),
                                      "sourceId", ctl->identity.source_id, "userId", ctl->identity.user_id));
    if (command != NULL)
        *out = json_dumps(command, JSON_COMPACT);
    json_decref(command);
    if (*out == NULL) {
        ctl_complain("the command cannot be written as JSON");
        return CTL_FAILED;
    }
    return 0;
}

static void show_progress(const struct ctl *ctl, const json_t *progress)
{
    const char *message = ctl_text(progress, "message");
    int64_t percent = ctl_integer(progress, "percent", -1);
    char part[16] = "";

    if (percent >= 0 && percent <= 100)
        snprintf(part, sizeof(part), " %d %%", (int)percent);
    ctl_note(ctl, "  … %s: %s%s%s%s", ctl_clean(ctl_text(progress, "status")), ctl_clean(ctl_text(progress, "phase")),
             part, message[0] != '\0' ? ", " : "", ctl_clean(message));
}

static int show_result(const struct ctl *ctl, const json_t *result, int64_t took_ms)
{
    const char *status = ctl_text(result, "status");

    if (!json_is_true(json_object_get(result, "ok")))
        return ctl_show_failure(ctl, result);
    if (ctl->args.json) {
        ctl_json(result);
        return CTL_OK;
    }
    printf("%s  %s", ctl_clean(ctl_text(result, "sandboxId")),
           status[0] != '\0' && strcmp(status, "none") != 0 ? ctl_clean(status) : "deleted");
    if (ctl_integer(result, "epoch", 0) > 0)
        printf("  epoch %lld", (long long)ctl_integer(result, "epoch", 0));
    if (ctl_text(result, "instance.provider")[0] != '\0')
        printf("  %s", ctl_clean(ctl_text(result, "instance.provider")));
    if (ctl_text(result, "operationId")[0] != '\0')
        printf("  operation %s", ctl_clean(ctl_text(result, "operationId")));
    printf("  (%s%s)\n", ctl_duration(took_ms), ctl_text(result, "operationId")[0] != '\0' ? "" : ", nothing to do");
    return CTL_OK;
}

/* The stored result may have been sent while the connection was away: ask for it again. */
static void ask_again(struct ctl *ctl, const char *subject, const char *inbox, const char *body)
{
    natsMsg *message = NULL;

    if (natsMsg_Create(&message, subject, NULL, body, (int)strlen(body)) == NATS_OK &&
        natsMsgHeader_Set(message, SK_HEADER_REPLY_TO, inbox) == NATS_OK)
        natsConnection_PublishMsg(ctl_link_connection(ctl->link), message);
    natsMsg_Destroy(message);
}

static int wait_result(struct ctl *ctl, natsSubscription *subscription, const char *subject, const char *inbox,
                       const char *body, const char *id, int64_t started_us)
{
    int64_t end_us = started_us + (ctl->args.deadline_ms + ANSWER_GRACE_MS) * 1000;
    unsigned seen = ctl_link_reconnects(ctl->link);

    for (;;) {
        int64_t left = (end_us - sk_mono_us(&sk_sched_system)) / 1000;
        natsMsg *message = ctl_next(subscription, left < 1000 ? left : 1000);
        const char *progress = NULL;
        json_t *answer;
        if (ctl_interrupted) {
            natsMsg_Destroy(message);
            return ctl_say_interrupted(
                "the operation goes on; see skctl timeline %s, or repeat with --id=%s for its result", ctl->sandbox_id,
                id);
        }
        if (message == NULL) {
            if (ctl_link_reconnects(ctl->link) != seen) {
                seen = ctl_link_reconnects(ctl->link);
                ctl_note(ctl, "  … the bus was away, asking again");
                ask_again(ctl, subject, inbox, body);
            }
            if (left > 0)
                continue;
            ctl_complain(
                "deadline_exceeded: no answer within %s; the operation may go on (skctl timeline %s, or --id=%s again)",
                ctl_duration(ctl->args.deadline_ms), ctl->sandbox_id, id);
            return CTL_DEADLINE;
        }
        answer = ctl_message_json(message);
        if (answer == NULL || strcmp(ctl_text(answer, "id"), id) != 0) {
            /* somebody else's message on our inbox, or noise */
        } else if (natsMsgHeader_Get(message, SK_HEADER_PROGRESS, &progress) == NATS_OK) {
            show_progress(ctl, answer);
        } else {
            int status = show_result(ctl, answer, (sk_mono_us(&sk_sched_system) - started_us) / 1000);
            json_decref(answer);
            natsMsg_Destroy(message);
            return status;
        }
        json_decref(answer);
        natsMsg_Destroy(message);
    }
}

int ctl_command(struct ctl *ctl)
{
    int status = ctl_identity(ctl);

    return status != 0 ? status : ctl_send(ctl, ctl->verb->name);
}

int ctl_send(struct ctl *ctl, const char *op)
{
    struct ctl_args *args = &ctl->args;
    char id[SK_COMMAND_ID_SIZE], subject[256], *body = NULL;
    natsSubscription *subscription = NULL;
    natsInbox *inbox = NULL;
    int64_t started_us = sk_mono_us(&sk_sched_system);
    uint64_t sequence = 0;
    int status;

    if (args->deadline_ms < 0)
        args->deadline_ms = CTL_DEADLINE_DEFAULT_MS;
    if (args->deadline_ms < 1 || args->deadline_ms > 3600000)
        return ctl_usage(ctl, "--deadline: must be between 1ms and 1h");
    if (args->id == NULL)
        sk_ulid(&sk_sched_system, id);
    else if (!sk_copy(id, sizeof(id), args->id) || id[0] == '\0')
        return ctl_usage(ctl, "--id: must have 1 to 64 characters");
    status = command_text(ctl, op, id, &body);
    if (status == 0)
        status = ctl_link(ctl);
    if (status != 0)
        goto out;

    snprintf(subject, sizeof(subject), SK_SUBJECT_COMMAND_LIFECYCLE_FMT, ctl->config.prefix, op, ctl->sandbox_id);
    if (natsInbox_Create(&inbox) != NATS_OK ||
        natsConnection_SubscribeSync(&subscription, ctl_link_connection(ctl->link), inbox) != NATS_OK) {
        ctl_complain("cannot subscribe to an inbox");
        status = CTL_UNREACHABLE;
        goto out;
    }
    /* A caller who repeats an id wants the stored result: JetStream must not drop the repetition. */
    status = ctl_publish_stored(ctl, subject, args->id == NULL ? id : NULL, args->wait ? inbox : NULL, body,
                                started_us + args->deadline_ms * 1000, &sequence);
    if (status == CTL_INTERRUPTED)
        ctl_say_interrupted("the command may have been stored; repeat with --id=%s to be sure", id);
    if (status != 0)
        goto out;
    if (args->wait) {
        status = wait_result(ctl, subscription, subject, inbox, body, id, started_us);
    } else if (args->json) {
        json_t *stored = json_pack("{s:s, s:s, s:b, s:I}", "id", id, "sandboxId", ctl->sandbox_id, "stored", 1,
                                   "sequence", (json_int_t)sequence);
        ctl_json(stored);
        json_decref(stored);
    } else {
        printf("%s  stored as command %s\n", ctl->sandbox_id, id);
    }
out:
    natsSubscription_Destroy(subscription);
    natsInbox_Destroy(inbox);
    free(body);
    return status;
}
