/* SPDX-License-Identifier: Apache-2.0
 *
 * One request and its one reply over the confirmation table. */
#include "common/bus/internal.h"

#include <stdlib.h>
#include <string.h>

int sk_bus_nats_request(struct sk_bus_nats *bus, const char *subject, const char *body, size_t len, int64_t timeout_ms,
                        char **reply, size_t *reply_len, struct sk_error *err)
{
    int64_t deadline_us = sk_mono_us(bus->sched) + timeout_ms * 1000;
    char reply_subject[SK_BUS_INBOX_SIZE + 24];
    struct sk_reply answer;
    struct sk_reply_group group;
    const char *data;
    int rc = -1;

    *reply = NULL;
    *reply_len = 0;
    if (!sk_subject_valid(subject))
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "request: not a subject");
    if (!sk_bus_wait_link(bus, false, deadline_us))
        return sk_fail(err, SK_ERR_INTERNAL, "request: not connected to NATS");
    sk_group_init(&group, &answer, 1);
    if (!sk_group_open(bus, &group, 0, reply_subject, deadline_us)) {
        (void)sk_fail(err, SK_ERR_DEADLINE_EXCEEDED, "request: too many are waiting already");
        goto out;
    }
    if (sk_bus_publish_raw(bus, subject, reply_subject, body, len, NULL, err) != 0) {
        sk_group_abandon(bus, &group, 0);
        goto out;
    }
    sk_group_wait(bus, &group, deadline_us);
    switch (answer.state) {
    case SK_REPLY_ARRIVED:
        *reply_len = (size_t)natsMsg_GetDataLength(answer.message);
        data = natsMsg_GetData(answer.message);
        *reply = malloc(*reply_len + 1);
        if (*reply == NULL) {
            (void)sk_fail_unknown(err, SK_ERR_INTERNAL, "out of memory");
            break;
        }
        if (*reply_len > 0)
            memcpy(*reply, data, *reply_len);
        (*reply)[*reply_len] = '\0';
        rc = 0;
        break;
    case SK_REPLY_NOBODY:
        (void)sk_fail(err, SK_ERR_INTERNAL, "request: nobody serves %s", subject);
        break;
    case SK_REPLY_LOST:
        (void)sk_fail_unknown(err, SK_ERR_INTERNAL, "request: the connection broke");
        break;
    default:
        (void)sk_fail_unknown(err, SK_ERR_DEADLINE_EXCEEDED, "request: no answer in time");
        break;
    }
out:
    sk_group_fini(&group);
    return rc;
}
