/* SPDX-License-Identifier: Apache-2.0
 *
 * What leases there are, for the doctor: SCAN in small steps, so that neither the server nor our bound of an answer
 * notices, and the time that is left of each. */
#include "common/lease/internal.h"

#include <stdlib.h>
#include <string.h>

#define SCAN_COUNT "64" /* looked at in one step: 64 names of the longest kind fit into one answer */
#define BATCH      64

/* The text with what SCAN's patterns mean by something else escaped. */
static bool escape(char *out, size_t size, const char *text)
{
    size_t used = 0;

    for (; *text != '\0'; text++) {
        if (used + 3 > size)
            return false;
        if (strchr("*?[]^\\-", *text) != NULL)
            out[used++] = '\\';
        out[used++] = *text;
    }
    out[used] = '\0';
    return true;
}

static int unexpected(struct sk_error *err, const redisReply *reply)
{
    return sk_fail(err, SK_ERR_LEASE_UNAVAILABLE, "Redis: %.200s",
                   reply->type == REDIS_REPLY_ERROR ? reply->str : "unexpected answer");
}

/* The names of one step; those without an answer of their own (they ended meanwhile) are left out. */
static int tell(struct sk_lease_redis *service, struct sk_call *call, redisReply *const *keys, int count, size_t skip,
                void (*fn)(void *arg, const char *name, int64_t ttl_ms), void *arg, struct sk_error *err)
{
    struct sk_redis_command commands[BATCH];
    redisReply *replies[BATCH];
    int rc = 0;

    for (int i = 0; i < count; i++) {
        if (keys[i]->type != REDIS_REPLY_STRING || keys[i]->len <= skip || strlen(keys[i]->str) != keys[i]->len)
            return unexpected(err, keys[i]);
        commands[i] = (struct sk_redis_command){2, {"PTTL", keys[i]->str}};
    }
    if (count == 0)
        return 0;
    if (sk_redis_run(&service->redis, call, 0, commands, count, true, replies, err) != 0)
        return -1;
    for (int i = 0; i < count && rc == 0; i++) {
        if (replies[i]->type != REDIS_REPLY_INTEGER)
            rc = unexpected(err, replies[i]);
        else if (replies[i]->integer != -2)
            fn(arg, keys[i]->str + skip, replies[i]->integer);
    }
    sk_redis_replies_free(replies, count);
    return rc;
}

int sk_lease_redis_list(void *self, struct sk_call *call, const char *cursor,
                        void (*fn)(void *arg, const char *name, int64_t ttl_ms), void *arg,
                        char next[SK_LEASE_CURSOR_SIZE], struct sk_error *err)
{
    struct sk_lease_redis *service = self;
    char pattern[2 * sizeof(service->prefix) + 64], escaped[2 * sizeof(service->prefix) + 2];
    struct sk_redis_command scan = {6,
                                    {"SCAN", cursor[0] != '\0' ? cursor : "0", "MATCH", pattern, "COUNT", SCAN_COUNT}};
    redisReply *reply;
    int rc = -1;

    if (strlen(cursor) >= SK_LEASE_CURSOR_SIZE || strspn(cursor, "0123456789") != strlen(cursor))
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "the cursor is none of ours");
    if (!escape(escaped, sizeof(escaped), service->prefix))
        return sk_fail(err, SK_ERR_INTERNAL, "the key prefix is too long");
    snprintf(pattern, sizeof(pattern), "%slock:" SK_LEASE_NAMES "*", escaped);
    if (sk_redis_run(&service->redis, call, 0, &scan, 1, true, &reply, err) != 0)
        return -1;
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 || reply->element[0]->type != REDIS_REPLY_STRING ||
        reply->element[1]->type != REDIS_REPLY_ARRAY) {
        (void)unexpected(err, reply);
        goto out;
    }
    if (!sk_copy(next, SK_LEASE_CURSOR_SIZE, strcmp(reply->element[0]->str, "0") == 0 ? "" : reply->element[0]->str)) {
        (void)unexpected(err, reply);
        goto out;
    }
    rc = 0;
    for (size_t first = 0; first < reply->element[1]->elements && rc == 0; first += BATCH) {
        size_t left = reply->element[1]->elements - first;

        rc = tell(service, call, reply->element[1]->element + first, (int)(left < BATCH ? left : BATCH),
                  strlen(service->prefix) + strlen("lock:"), fn, arg, err);
    }
out:
    freeReplyObject(reply);
    return rc;
}
