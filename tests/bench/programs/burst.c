/* SPDX-License-Identifier: Apache-2.0
 *
 * Many `ensure`s for one sandbox at once, and how many operations they were. */
#include "tests/bench/programs/commands.h"
#include "tests/bench/programs/load.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UUID_TEXT   37
#define ANSWERS_MAX 65536

static struct {
    atomic_int answered, failed;
    pthread_mutex_t lock;
    char operations[64][UUID_TEXT]; /* the different ones */
    int operation_count;
    char error_text[512];
} s;

static void note_operation(const char *body)
{
    const char *at = strstr(body, "\"operationId\":\"");
    char id[UUID_TEXT];

    if (at == NULL)
        return;
    snprintf(id, sizeof(id), "%s", at + strlen("\"operationId\":\""));
    pthread_mutex_lock(&s.lock);
    for (int i = 0; i < s.operation_count; i++) {
        if (strcmp(s.operations[i], id) == 0)
            goto out;
    }
    if (s.operation_count < 64)
        memcpy(s.operations[s.operation_count++], id, sizeof(id));
out:
    pthread_mutex_unlock(&s.lock);
}

static void on_answer(natsConnection *nc, natsSubscription *sub, natsMsg *message, void *arg)
{
    int index;
    bool ok;

    (void)nc;
    (void)sub;
    (void)arg;
    if (commands_is_result(message, &index, &ok)) {
        if (ok) {
            note_operation(natsMsg_GetData(message));
        } else {
            atomic_fetch_add(&s.failed, 1);
            snprintf(s.error_text, sizeof(s.error_text), "%s", natsMsg_GetData(message));
        }
        atomic_fetch_add(&s.answered, 1);
    }
    natsMsg_Destroy(message);
}

int load_burst(const struct load_options *options)
{
    char source_id[64], sandbox_id[64];
    struct commands commands;
    int64_t begun_us = load_now_us(), sent_us, end_us;
    json_t *out;

    pthread_mutex_init(&s.lock, NULL);
    load_sandbox(options->tag, 0, source_id, sandbox_id);
    commands_open(&commands, options->nats, on_answer, NULL);
    for (int i = 0; i < options->clients; i++)
        commands_send(&commands, "ensure", source_id, sandbox_id, i, 0);
    commands_check(natsConnection_Flush(commands.nc), "flush");
    sent_us = load_now_us();
    end_us = sent_us + (int64_t)(options->seconds * 1e6);
    while (atomic_load(&s.answered) < options->clients && load_now_us() < end_us)
        usleep(1000);
    out = json_pack("{s:i,s:i,s:i,s:s,s:i,s:f,s:f}", "commands", options->clients, "answered", atomic_load(&s.answered),
                    "failed", atomic_load(&s.failed), "lastError", s.error_text, "operations", s.operation_count,
                    "sendSeconds", (double)(sent_us - begun_us) / 1e6, "seconds",
                    (double)(load_now_us() - begun_us) / 1e6);
    json_dumpf(out, stdout, JSON_COMPACT);
    printf("\n");
    commands_close(&commands);
    return atomic_load(&s.answered) == options->clients && atomic_load(&s.failed) == 0 ? 0 : 1;
}
