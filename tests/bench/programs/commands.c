/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands over core NATS: JetStream stores what is published on their subjects. */
#include "tests/bench/programs/commands.h"

#include "common/base/id.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void commands_check(natsStatus status, const char *what)
{
    if (status == NATS_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, natsStatus_GetText(status));
    exit(1);
}

void commands_open(struct commands *c, const char *url, natsMsgHandler on_answer, void *arg)
{
    natsOptions *options = NULL;
    char ulid[SK_ULID_SIZE], subject[80];

    memset(c, 0, sizeof(*c));
    sk_ulid(&sk_sched_system, ulid);
    snprintf(c->inbox, sizeof(c->inbox), "bench.%s", ulid);
    snprintf(c->run, sizeof(c->run), "%s", ulid);
    snprintf(subject, sizeof(subject), "%s.*", c->inbox);
    commands_check(natsOptions_Create(&options), "options");
    commands_check(natsOptions_SetURL(options, url), "NATS URL");
    commands_check(natsOptions_SetSendAsap(options, true), "options");
    commands_check(natsConnection_Connect(&c->nc, options), "NATS");
    commands_check(natsConnection_Subscribe(&c->answers, c->nc, subject, on_answer, arg), "subscribe");
    commands_check(natsSubscription_SetPendingLimits(c->answers, -1, -1), "limits");
    commands_check(natsConnection_Flush(c->nc), "flush");
    natsOptions_Destroy(options);
}

void commands_close(struct commands *c)
{
    natsSubscription_Destroy(c->answers);
    natsConnection_Close(c->nc);
    natsConnection_Destroy(c->nc);
}

void commands_send(struct commands *c, const char *op, const char *source_id, const char *sandbox_id, int index,
                   long number)
{
    char subject[160], body[512], reply[96];
    natsMsg *message = NULL;
    int length;

    snprintf(subject, sizeof(subject), PREFIX ".cmd.lifecycle.%s.%s", op, sandbox_id);
    snprintf(reply, sizeof(reply), "%s.%d", c->inbox, index);
    length = snprintf(body, sizeof(body),
                      "{\"id\":\"%s-%d-%ld\",\"op\":\"%s\",\"source\":{\"sourceType\":\"app\",\"sourceId\":\"%s\","
                      "\"userId\":\"bench\"},\"sandboxId\":\"%s\",\"deadlineMs\":120000}",
                      c->run, index, number, op, source_id, sandbox_id);
    commands_check(natsMsg_Create(&message, subject, NULL, body, length), "message");
    commands_check(natsMsgHeader_Set(message, "Sandbox-Reply-To", reply), "header");
    commands_check(natsConnection_PublishMsg(c->nc, message), "publish");
    natsMsg_Destroy(message);
}

bool commands_is_result(natsMsg *message, int *index, bool *ok)
{
    const char *progress = NULL, *dot = strrchr(natsMsg_GetSubject(message), '.');

    if (natsMsgHeader_Get(message, "Sandbox-Progress", &progress) == NATS_OK)
        return false;
    *index = dot != NULL ? atoi(dot + 1) : 0;
    *ok = strstr(natsMsg_GetData(message), "\"ok\":true") != NULL;
    return true;
}
