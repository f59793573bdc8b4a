/* SPDX-License-Identifier: Apache-2.0
 *
 * skctl's own small client of the bus, on nats.c's blocking calls: a command line wants to fail at once when nobody
 * listens, where a service waits. common/bus stays for the services.
 *
 * Ambiguity: a publish whose PubAck does not come is repeated under the same Nats-Msg-Id, so that it is stored once. */
#include "services/ctl/ctl.h"

#include "proto/subjects.h"

#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONNECT_TIMEOUT_MS 3000
#define PUBACK_TIMEOUT_MS  3000
#define API_TIMEOUT_MS     5000
#define RECONNECT_WAIT_MS  250
#define SLICE_MS           100 /* how soon an interrupt is seen */

struct ctl_link {
    natsConnection *connection;
    natsOptions *options;
    atomic_uint reconnects;
    atomic_int live_threads;
};

atomic_int ctl_interrupted;

static void on_signal(int number)
{
    (void)number;
    if (atomic_exchange(&ctl_interrupted, 1) != 0)
        _exit(CTL_INTERRUPTED);
}

void ctl_catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal};

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

int ctl_say_interrupted(const char *fmt, ...)
{
    static bool told;
    va_list args;

    if (!told) {
        fputs("skctl: interrupted: ", stderr);
        va_start(args, fmt);
        vfprintf(stderr, fmt, args);
        va_end(args);
        fputc('\n', stderr);
    }
    told = true;
    return CTL_INTERRUPTED;
}

void ctl_sleep(int64_t ms)
{
    for (; ms > 0 && !ctl_interrupted; ms -= SLICE_MS)
        sk_sleep_ms(&sk_sched_system, ms < SLICE_MS ? ms : SLICE_MS);
}

static void on_reconnected(natsConnection *connection, void *arg)
{
    struct ctl_link *link = arg;

    (void)connection;
    atomic_fetch_add(&link->reconnects, 1);
}

/* Without a handler the library writes its own lines to stderr. */
static void on_error(natsConnection *connection, natsSubscription *subscription, natsStatus status, void *arg)
{
    (void)connection;
    (void)subscription;
    (void)status;
    (void)arg;
}

static natsStatus set_options(struct ctl_link *link, const struct ctl_config *config)
{
    natsOptions *options = NULL;
    natsStatus status = natsOptions_Create(&options);

    link->options = options;
    if (status == NATS_OK)
        status = natsOptions_SetURL(options, config->nats_url);
    if (status == NATS_OK)
        status = natsOptions_SetName(options, "skctl");
    if (status == NATS_OK)
        status = natsOptions_SetTimeout(options, CONNECT_TIMEOUT_MS);
    if (status == NATS_OK)
        status = natsOptions_SetMaxReconnect(options, -1);
    if (status == NATS_OK)
        status = natsOptions_SetReconnectWait(options, RECONNECT_WAIT_MS);
    if (status == NATS_OK)
        status = natsOptions_SetReconnectedCB(options, on_reconnected, link);
    if (status == NATS_OK)
        status = natsOptions_SetErrorHandler(options, on_error, NULL);
    if (status == NATS_OK)
        status = natsOptions_SetSendAsap(options, true);
    if (status == NATS_OK && config->nats_token[0] != '\0')
        status = natsOptions_SetToken(options, config->nats_token);
    if (status == NATS_OK && config->nats_credentials_file[0] != '\0')
        status = natsOptions_SetUserCredentialsFromFiles(options, config->nats_credentials_file, NULL);
    return status;
}

/* The host of the last server: a name, a password or a token before it is nobody's business. */
static const char *without_userinfo(const char *url)
{
    const char *at = strrchr(url, '@');

    return at != NULL ? at + 1 : url;
}

int ctl_link(struct ctl *ctl)
{
    struct ctl_link *link;
    natsStatus status;

    if (ctl->link != NULL)
        return 0;
    link = calloc(1, sizeof(*link));
    if (link == NULL) {
        ctl_complain("out of memory");
        return CTL_FAILED;
    }
    ctl_catch_signals();
    ctl->link = link;
    status = set_options(link, &ctl->config);
    if (status == NATS_OK)
        status = natsConnection_Connect(&link->connection, link->options);
    if (status == NATS_OK)
        return 0;
    ctl_link_close(ctl);
    if (ctl_interrupted)
        return ctl_say_interrupted("the bus was not reached, nothing was sent");
    ctl_complain("cannot reach the bus at %s (SANDKEEP_NATS_URL): %s", without_userinfo(ctl->config.nats_url),
                 natsStatus_GetText(status));
    return CTL_UNREACHABLE;
}

void ctl_link_close(struct ctl *ctl)
{
    struct ctl_link *link = ctl->link;

    if (link == NULL)
        return;
    ctl->link = NULL;
    if (link->connection != NULL) {
        natsConnection_Close(link->connection);
        natsConnection_Destroy(link->connection);
    }
    natsOptions_Destroy(link->options);
    nats_CloseAndWait(1000);
    free(link);
}

natsConnection *ctl_link_connection(struct ctl_link *link)
{
    return link->connection;
}

unsigned ctl_link_reconnects(const struct ctl_link *link)
{
    return atomic_load(&link->reconnects);
}

/* *nobody: the server says that nobody listens where the request went (nats.c turns that message into a status). */
static natsMsg *next(natsSubscription *subscription, int64_t ms, bool *nobody)
{
    int64_t end = sk_mono_ms(&sk_sched_system) + ms;

    *nobody = false;
    while (!ctl_interrupted) {
        int64_t left = end - sk_mono_ms(&sk_sched_system);
        natsMsg *message = NULL;
        natsStatus status;
        if (left <= 0)
            return NULL;
        status = natsSubscription_NextMsg(&message, subscription, left < SLICE_MS ? left : SLICE_MS);
        if (status == NATS_OK)
            return message;
        *nobody = status == NATS_NO_RESPONDERS;
        if (*nobody)
            return NULL;
        if (status != NATS_TIMEOUT)
            sk_sleep_ms(&sk_sched_system, left < SLICE_MS ? left : SLICE_MS); /* disconnected: never spin */
    }
    return NULL;
}

natsMsg *ctl_next(natsSubscription *subscription, int64_t ms)
{
    bool nobody;

    return next(subscription, ms, &nobody);
}

json_t *ctl_message_json(natsMsg *message)
{
    int len = natsMsg_GetDataLength(message);

    if (len <= 0 || len > CTL_ANSWER_MAX)
        return NULL;
    return json_loadb(natsMsg_GetData(message), (size_t)len, JSON_ALLOW_NUL, NULL);
}

/* One request with an inbox of its own, so that an interrupt is seen while waiting. NULL and *exit_status on failure.
 */
static natsMsg *request(struct ctl *ctl, natsMsg *message, const char *inbox, int64_t timeout_ms, int *exit_status)
{
    natsSubscription *subscription = NULL;
    natsMsg *answer = NULL;
    bool nobody = false;
    natsStatus status = natsConnection_SubscribeSync(&subscription, ctl->link->connection, inbox);

    *exit_status = CTL_DEADLINE;
    if (status == NATS_OK)
        status = natsConnection_PublishMsg(ctl->link->connection, message);
    if (status != NATS_OK) {
        *exit_status = CTL_UNREACHABLE;
    } else {
        answer = next(subscription, timeout_ms, &nobody);
        if (nobody)
            *exit_status = CTL_UNREACHABLE;
        else if (ctl_interrupted)
            *exit_status = CTL_INTERRUPTED;
    }
    natsSubscription_Destroy(subscription);
    return answer;
}

/* What a service that refuses means: for a question that may go unanswered a note, else the end. */
static int refused(struct ctl *ctl, const char *unjudged, const json_t *answer)
{
    const char *detail = ctl_text(answer, "error.detail");

    if (unjudged == NULL)
        return ctl_show_failure(ctl, answer);
    ctl_note(ctl, "%s are not judged: %s", unjudged, ctl_clean(detail[0] != '\0' ? detail : "the service refused"));
    return 0;
}

static int ask(struct ctl *ctl, const char *method, const char *unjudged, json_t *body, json_t **data)
{
    char *text = json_dumps(body, JSON_COMPACT);
    natsInbox *inbox = NULL;
    natsMsg *message = NULL, *answer = NULL;
    json_t *parsed = NULL;
    char subject[256];
    int status = ctl_link(ctl);

    json_decref(body);
    if (status != 0)
        goto out;
    status = CTL_FAILED;
    if (text == NULL)
        goto out;
    snprintf(subject, sizeof(subject), SK_SUBJECT_RPC_FMT, ctl->config.prefix, "lifecycle", method);
    if (natsInbox_Create(&inbox) != NATS_OK ||
        natsMsg_Create(&message, subject, inbox, text, (int)strlen(text)) != NATS_OK)
        goto out;
    answer = request(ctl, message, inbox, CTL_RPC_TIMEOUT_MS, &status);
    if (answer == NULL) {
        if (status == CTL_UNREACHABLE && unjudged != NULL) {
            ctl_note(ctl, "%s are not judged: nobody answers on %s", unjudged, subject);
            status = 0;
        } else if (status == CTL_UNREACHABLE)
            ctl_complain("no sk-lifecycle answers on %s: is the service running?", subject);
        else if (status == CTL_DEADLINE)
            ctl_complain("no answer on %s within %s", subject, ctl_duration(CTL_RPC_TIMEOUT_MS));
        else if (status == CTL_INTERRUPTED)
            ctl_say_interrupted("the answer on %s was not waited for", subject);
        goto out;
    }
    parsed = ctl_message_json(answer);
    if (parsed == NULL) {
        ctl_complain("the answer on %s is not JSON", subject);
        status = CTL_FAILED;
    } else if (!json_is_true(json_object_get(parsed, "ok"))) {
        status = refused(ctl, unjudged, parsed);
    } else {
        *data = json_incref(json_object_get(parsed, "data"));
        status = 0;
        if (*data == NULL)
            *data = json_null();
    }
out:
    json_decref(parsed);
    natsMsg_Destroy(answer);
    natsMsg_Destroy(message);
    natsInbox_Destroy(inbox);
    free(text);
    return status;
}

int ctl_rpc(struct ctl *ctl, const char *method, json_t *body, json_t **data)
{
    return ask(ctl, method, NULL, body, data);
}

int ctl_rpc_optional(struct ctl *ctl, const char *method, const char *unjudged, json_t *body, json_t **data)
{
    *data = NULL;
    return ask(ctl, method, unjudged, body, data);
}

json_t *ctl_api(struct ctl *ctl, const char *subject, const json_t *body)
{
    natsConnection *connection = ctl->link->connection;
    char *text = json_dumps(body, JSON_COMPACT);
    natsSubscription *subscription = NULL;
    natsInbox *inbox = NULL;
    natsMsg *answer = NULL;
    json_t *parsed = NULL;

    if (text != NULL && natsInbox_Create(&inbox) == NATS_OK &&
        natsConnection_SubscribeSync(&subscription, connection, inbox) == NATS_OK &&
        natsConnection_PublishRequest(connection, subject, inbox, text, (int)strlen(text)) == NATS_OK)
        answer = ctl_next(subscription, API_TIMEOUT_MS);
    if (answer != NULL)
        parsed = ctl_message_json(answer);
    natsMsg_Destroy(answer);
    natsSubscription_Destroy(subscription);
    natsInbox_Destroy(inbox);
    free(text);
    return parsed;
}

/* Reads a PubAck. 0 stored, -1 look again (the stream is not ready), else an exit status. */
static int read_puback(natsMsg *answer, uint64_t *sequence)
{
    json_t *ack = ctl_message_json(answer);
    const json_t *error = json_object_get(ack, "error");
    int status = CTL_FAILED;

    if (error != NULL && ctl_integer(error, "code", 0) == 503) { /* no leader, restarting: not stored */
        status = -1;
    } else if (error != NULL) {
        ctl_complain("the command stream refused the command: %s", ctl_clean(ctl_text(error, "description")));
    } else if (json_is_integer(json_object_get(ack, "seq"))) {
        *sequence = (uint64_t)ctl_integer(ack, "seq", 0);
        status = 0;
    } else {
        ctl_complain("the bus gave an unreadable acknowledgement");
    }
    json_decref(ack);
    return status;
}

int ctl_publish_stored(struct ctl *ctl, const char *subject, const char *message_id, const char *reply_to,
                       const char *body, int64_t deadline_us, uint64_t *sequence)
{
    int status = CTL_UNREACHABLE;

    for (int attempt = 0; !ctl_interrupted; attempt++) {
        int64_t left = (deadline_us - sk_mono_us(&sk_sched_system)) / 1000;
        natsInbox *inbox = NULL;
        natsMsg *message = NULL, *answer = NULL;
        if (left <= 0)
            break;
        if (natsInbox_Create(&inbox) != NATS_OK ||
            natsMsg_Create(&message, subject, inbox, body, (int)strlen(body)) != NATS_OK ||
            (message_id != NULL && natsMsgHeader_Set(message, SK_HEADER_MESSAGE_ID, message_id) != NATS_OK) ||
            (reply_to != NULL && natsMsgHeader_Set(message, SK_HEADER_REPLY_TO, reply_to) != NATS_OK)) {
            ctl_complain("out of memory");
            status = CTL_FAILED;
            left = 0;
        } else {
            answer = request(ctl, message, inbox, left < PUBACK_TIMEOUT_MS ? left : PUBACK_TIMEOUT_MS, &status);
        }
        if (answer != NULL)
            status = read_puback(answer, sequence);
        natsMsg_Destroy(answer);
        natsMsg_Destroy(message);
        natsInbox_Destroy(inbox);
        if (status == 0 || (answer != NULL && status != -1) || left == 0 || status == CTL_INTERRUPTED)
            return status;
        if (status == CTL_UNREACHABLE && attempt == 0) {
            ctl_complain("the command stream does not exist on this bus: has sk-lifecycle been started (or "
                         "sk-lifecycle --setup)?");
            return status;
        }
        sk_sleep_ms(&sk_sched_system, SLICE_MS);
    }
    if (ctl_interrupted)
        return CTL_INTERRUPTED;
    ctl_complain("the command could not be stored in time; it may have been: use the same --id to try again");
    return status == -1 ? CTL_UNREACHABLE : CTL_DEADLINE;
}
