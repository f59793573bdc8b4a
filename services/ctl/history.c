/* SPDX-License-Identifier: Apache-2.0
 *
 * The lifecycle events that the stream still has, for the doctor: an ephemeral consumer without acknowledgements, asked
 * for one batch after the other, so that nothing is ever pushed faster than it is read. */
#include "services/ctl/look.h"

#include "proto/subjects.h"

#include <stdlib.h>
#include <string.h>

#define BATCH            500
#define BATCH_WAIT_MS    5000
#define IDLE_CONSUMER_MS 30000 /* the server forgets our consumer after this long without us */

struct history {
    struct ctl *ctl;
    struct ctl_look *look;
    char consumer[64], next_subject[160];
    natsSubscription *subscription;
    natsInbox *inbox;
};

static const char *header(natsMsg *message, const char *name)
{
    const char *value = NULL;

    return natsMsgHeader_Get(message, name, &value) == NATS_OK ? value : NULL;
}

/* Events that make no sense are left out: the gap that they leave is found. */
static int add_event(struct ctl_look *look, natsMsg *message)
{
    struct sk_check_event event;
    json_t *data = ctl_message_json(message);
    bool good = data != NULL && sk_check_event_parse(&event, header(message, "ce-id"), header(message, "ce-type"),
                                                     header(message, "ce-time"), data);

    json_decref(data);
    if (!good)
        return 0;
    if (look->event_count % 1024 == 0) {
        struct sk_check_event *grown = realloc(look->events, (look->event_count + 1024) * sizeof(*grown));

        if (grown == NULL) {
            ctl_complain("out of memory");
            return CTL_FAILED;
        }
        look->events = grown;
    }
    look->events[look->event_count++] = event;
    return 0;
}

/* The number behind the last dot of "$JS.ACK.….<pending>": what is left after this message. */
static bool is_last(natsMsg *message)
{
    const char *reply = natsMsg_GetReply(message), *dot = reply != NULL ? strrchr(reply, '.') : NULL;

    return dot != NULL && strcmp(dot, ".0") == 0;
}

/* One batch. 0 with *end, -1 (no answer), or an exit status. */
static int read_batch(struct history *h, bool *end)
{
    char request[64];
    int status = 0;

    snprintf(request, sizeof(request), "{\"batch\":%d,\"no_wait\":true}", BATCH);
    if (natsConnection_PublishRequest(ctl_link_connection(h->ctl->link), h->next_subject, h->inbox, request,
                                      (int)strlen(request)) != NATS_OK) {
        ctl_complain("the event stream cannot be asked");
        return CTL_UNREACHABLE;
    }
    for (int i = 0; i < BATCH && status == 0 && !*end; i++) {
        natsMsg *message = ctl_next(h->subscription, BATCH_WAIT_MS);

        if (message == NULL) {
            if (ctl_interrupted)
                return ctl_say_interrupted("not all events were read");
            return -1;
        }
        if (header(message, "Status") != NULL && natsMsg_GetDataLength(message) == 0) {
            *end = true; /* 404: there is no more */
        } else {
            status = add_event(h->look, message);
            *end = is_last(message);
        }
        natsMsg_Destroy(message);
    }
    return status;
}

/* *first = where to begin so that at most CTL_EVENTS_MAX are read. 0, -1 (no stream: noted), or an exit status. */
static int find_first(struct ctl *ctl, int64_t *first)
{
    json_t *body = json_object(), *answer = ctl_api(ctl, "$JS.API.STREAM.INFO." SK_STREAM_EVENTS, body);
    int64_t last = ctl_integer(answer, "state.last_seq", -1);
    int status = 0;

    *first = last > CTL_EVENTS_MAX ? last - CTL_EVENTS_MAX + 1 : 1;
    if (ctl_interrupted) {
        status = ctl_say_interrupted("no events were read");
    } else if (last < 0) {
        ctl_note(ctl, "events are not judged: %s",
                 answer == NULL ? "the bus has no JetStream" : ctl_clean(ctl_text(answer, "error.description")));
        status = -1;
    }
    json_decref(answer);
    json_decref(body);
    return status;
}

static int make_consumer(struct history *h, int64_t first)
{
    char filter[160];
    json_t *body, *answer;
    int status = 0;

    snprintf(filter, sizeof(filter), "%s.evt.*.lifecycle.*", h->ctl->config.prefix);
    body = json_pack("{s:s, s:{s:s, s:s, s:I, s:I, s:s, s:b}}", "stream_name", SK_STREAM_EVENTS, "config", "ack_policy",
                     "none", "deliver_policy", "by_start_sequence", "opt_start_seq", (json_int_t)first,
                     "inactive_threshold", (json_int_t)IDLE_CONSUMER_MS * 1000000, "filter_subject", filter,
                     "mem_storage", 1);
    answer = ctl_api(h->ctl, "$JS.API.CONSUMER.CREATE." SK_STREAM_EVENTS, body);
    if (!sk_copy(h->consumer, sizeof(h->consumer), ctl_text(answer, "name")) || h->consumer[0] == '\0') {
        status = ctl_interrupted ? ctl_say_interrupted("no events were read") : CTL_FAILED;
        if (!ctl_interrupted)
            ctl_complain("the event stream gives no consumer: %s",
                         answer == NULL ? "no answer" : ctl_clean(ctl_text(answer, "error.description")));
    }
    snprintf(h->next_subject, sizeof(h->next_subject), "$JS.API.CONSUMER.MSG.NEXT." SK_STREAM_EVENTS ".%s",
             h->consumer);
    json_decref(answer);
    json_decref(body);
    return status;
}

static void drop_consumer(const struct history *h)
{
    char subject[160];

    if (h->consumer[0] == '\0')
        return;
    snprintf(subject, sizeof(subject), "$JS.API.CONSUMER.DELETE." SK_STREAM_EVENTS ".%s", h->consumer);
    natsConnection_PublishString(ctl_link_connection(h->ctl->link), subject, "");
}

int ctl_look_events(struct ctl *ctl, struct ctl_look *look)
{
    struct history h = {.ctl = ctl, .look = look};
    int64_t first;
    bool end = false;
    int status = ctl_link(ctl);

    if (status == 0)
        status = find_first(ctl, &first);
    if (status != 0)
        return status < 0 ? 0 : status;
    if (natsInbox_Create(&h.inbox) != NATS_OK ||
        natsConnection_SubscribeSync(&h.subscription, ctl_link_connection(ctl->link), h.inbox) != NATS_OK) {
        ctl_complain("cannot subscribe to an inbox");
        status = CTL_UNREACHABLE;
    }
    if (status == 0)
        status = make_consumer(&h, first);
    while (status == 0 && !end)
        status = read_batch(&h, &end);
    look->events_known = status == 0;
    if (status < 0) { /* it went away, or we may not ask it */
        ctl_note(ctl, "events are not judged: the stream does not answer");
        look->event_count = 0;
        status = 0;
    }
    drop_consumer(&h);
    natsSubscription_Destroy(h.subscription);
    natsInbox_Destroy(h.inbox);
    return status;
}
