/* SPDX-License-Identifier: Apache-2.0
 *
 * The provider checks, one function per subject, in an order that builds on the ones before. */
#include "tests/conformance/provider/provider_conformance.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define EPOCH_1 1764500000001
#define EPOCH_2 1764500000002
#define EPOCH_3 1764500000003
#define JOB_1   "11111111-1111-4111-8111-111111111111"
#define JOB_2   "22222222-2222-4222-8222-222222222222"
#define JOB_3   "33333333-3333-4333-8333-333333333333"
#define NOBODY  "00000000-0000-4000-8000-000000000000"

#define OPS  (c->provider->ops)
#define SELF (c->provider->self)

static bool fail(struct sk_conformance *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool fail(struct sk_conformance *c, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(c->failure, sizeof(c->failure), fmt, args);
    va_end(args);
    return false;
}

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        c->checks++;                                                                                                   \
        if (!(condition))                                                                                              \
            return fail(c, __VA_ARGS__);                                                                               \
    } while (0)

static struct sk_create_spec spec_of(const struct sk_conformance *c, int64_t epoch, const char *job,
                                     const struct sk_storage *storage)
{
    static const struct sk_limit limit = {.present = true, .cpu_count = 0.5, .memory_mib = 256, .storage_size = "1Gi"};

    return (struct sk_create_spec){.sandbox_id = c->sandbox_id,
                                   .epoch = epoch,
                                   .job_id = job,
                                   .image = c->image,
                                   .limit = &limit,
                                   .storage = storage};
}

/* What is absent is an answer, never an error. */
static bool check_absence(struct sk_conformance *c)
{
    struct sk_remote remotes[SK_REMOTES_MAX];
    struct sk_error err = {0};
    bool flag = true, more = true;
    int count = -1;

    CHECK(OPS->find(SELF, c->call, c->sandbox_id, remotes, &count, &more, &err) == 0, "find of nobody: %s",
          err.message);
    CHECK(!more, "find of nobody: more");
    CHECK(count == 0, "find of nobody: %d objects", count);
    CHECK(OPS->get(SELF, c->call, NOBODY, remotes, &flag, &err) == 0 && !flag, "get of nobody: %s", err.message);
    flag = false;
    CHECK(OPS->remove(SELF, c->call, NOBODY, &flag, &err) == 0, "remove of nobody: %s", err.message);
    CHECK(flag, "remove of nobody: not gone");
    flag = true;
    CHECK(OPS->relabel(SELF, c->call, NOBODY, EPOCH_1, JOB_1, &flag, &err) == 0 && !flag, "relabel of nobody: %s",
          err.message);
    flag = true;
    CHECK(OPS->probe(SELF, c->call, NOBODY, &flag, &err) == 0 && !flag, "probe of nobody: %s", err.message);
    CHECK(OPS->resume(SELF, c->call, NOBODY, &err) == -1, "resume of nobody worked");
    CHECK(err.code == SK_ERR_PROVIDER_ERROR && err.provider_status == 404 && err.outcome == SK_OUTCOME_FAILED,
          "resume of nobody: %s", err.message);
    CHECK(OPS->ping(SELF, c->call, &err) == 0, "ping: %s", err.message);
    return true;
}

static bool same_labels(const struct sk_conformance *c, const struct sk_remote *r, int64_t epoch, const char *job)
{
    return strcmp(r->sandbox_id, c->sandbox_id) == 0 && r->epoch == epoch && strcmp(r->job_id, job) == 0;
}

static bool check_create(struct sk_conformance *c, int64_t epoch, const char *job, const struct sk_storage *storage,
                         struct sk_remote *out)
{
    struct sk_create_spec spec = spec_of(c, epoch, job, storage);
    struct sk_error err = {0};
    struct sk_remote seen;
    bool found = false;

    CHECK(OPS->create(SELF, c->call, &spec, out, &err) == 0, "create: %s", err.message);
    CHECK(out->id[0] != '\0' && same_labels(c, out, epoch, job), "create answered other labels");
    CHECK(OPS->get(SELF, c->call, out->id, &seen, &found, &err) == 0 && found, "get after create: %s", err.message);
    CHECK(strcmp(seen.id, out->id) == 0 && same_labels(c, &seen, epoch, job), "get after create: other labels");
    CHECK(seen.state == SK_REMOTE_RUNNING || seen.state == SK_REMOTE_PENDING, "get after create: state %d", seen.state);
    return true;
}

static bool check_ready(struct sk_conformance *c, const char *id)
{
    int64_t until = sk_mono_ms(c->call->sched) + c->wait_ms;
    struct sk_error err = {0};
    struct sk_remote seen;
    bool ready = false, found = false;

    while (!ready && sk_mono_ms(c->call->sched) < until) {
        CHECK(OPS->probe(SELF, c->call, id, &ready, &err) == 0, "probe: %s", err.message);
        if (!ready)
            (void)!sk_call_sleep_ms(c->call, 50);
    }
    CHECK(ready, "the command channel never answered");
    CHECK(OPS->get(SELF, c->call, id, &seen, &found, &err) == 0 && found, "get: %s", err.message);
    CHECK(seen.state == SK_REMOTE_RUNNING, "it answers, but its state is %d", seen.state);
    CHECK(OPS->resume(SELF, c->call, id, &err) == 0, "resume of a running object: %s", err.message);
    return true;
}

static const struct sk_remote *find_epoch(const struct sk_remote *remotes, int count, int64_t epoch)
{
    for (int i = 0; i < count; i++) {
        if (remotes[i].epoch == epoch)
            return &remotes[i];
    }
    return NULL;
}

static bool check_find(struct sk_conformance *c, int expected)
{
    struct sk_remote remotes[SK_REMOTES_MAX];
    struct sk_error err = {0};
    bool more = true;
    int count = -1;

    CHECK(OPS->find(SELF, c->call, c->sandbox_id, remotes, &count, &more, &err) == 0, "find: %s", err.message);
    CHECK(!more, "find: more than %d objects", count);
    CHECK(count == expected, "find: %d objects instead of %d", count, expected);
    for (int i = 0; i < count; i++)
        CHECK(strcmp(remotes[i].sandbox_id, c->sandbox_id) == 0, "find: a stranger's object");
    return true;
}

static bool check_list(struct sk_conformance *c, const char *id)
{
    struct sk_error err = {0};
    bool more = true, seen = false;
    int page = 1;

    for (; more && page < 1000; page++) {
        struct sk_remote remotes[2];
        int count = -1, unreadable = -1;

        CHECK(OPS->list(SELF, c->call, page, remotes, 2, &count, &unreadable, &more, &err) == 0, "list: %s",
              err.message);
        CHECK(unreadable == 0, "list: %d objects cannot be read", unreadable);
        CHECK(count >= 0 && count <= 2, "list: %d objects on a page of 2", count);
        for (int i = 0; i < count; i++) {
            CHECK(remotes[i].sandbox_id[0] != '\0', "list: an object without sessionId");
            seen = seen || strcmp(remotes[i].id, id) == 0;
        }
    }
    CHECK(!more, "list: no end after %d pages", page);
    CHECK(seen, "list: the object is on no page");
    return true;
}

static bool wait_absent(struct sk_conformance *c, const char *id)
{
    int64_t until = sk_mono_ms(c->call->sched) + c->wait_ms;
    struct sk_error err = {0};
    struct sk_remote seen;
    bool found = true;

    for (;;) {
        CHECK(OPS->get(SELF, c->call, id, &seen, &found, &err) == 0, "get while it goes: %s", err.message);
        if (!found)
            return true;
        CHECK(sk_mono_ms(c->call->sched) < until, "a removed object never went away (state %d)", seen.state);
        (void)!sk_call_sleep_ms(c->call, 50);
    }
}

static bool check_remove(struct sk_conformance *c, const char *id)
{
    struct sk_error err = {0};
    bool gone = false;

    CHECK(OPS->remove(SELF, c->call, id, &gone, &err) == 0, "remove: %s", err.message);
    if (!wait_absent(c, id))
        return false;
    CHECK(OPS->remove(SELF, c->call, id, &gone, &err) == 0, "second remove: %s", err.message);
    CHECK(gone, "second remove: not gone");
    return true;
}

/* A create has no idempotency key: two of them are two objects, told apart by their epochs. */
static bool check_twins(struct sk_conformance *c)
{
    struct sk_remote first, second, remotes[SK_REMOTES_MAX];
    struct sk_error err = {0};
    bool found = false, more = false;
    int count = 0;

    if (!check_create(c, EPOCH_1, JOB_1, NULL, &first) || !check_ready(c, first.id) || !check_find(c, 1) ||
        !check_create(c, EPOCH_2, JOB_2, NULL, &second) || !check_find(c, 2) || !check_list(c, first.id) ||
        !check_list(c, second.id))
        return false;
    CHECK(strcmp(first.id, second.id) != 0, "two creates gave one object");
    CHECK(OPS->find(SELF, c->call, c->sandbox_id, remotes, &count, &more, &err) == 0, "find: %s", err.message);
    CHECK(find_epoch(remotes, count, EPOCH_1) != NULL && find_epoch(remotes, count, EPOCH_2) != NULL,
          "find does not show both epochs");

    CHECK(OPS->relabel(SELF, c->call, second.id, EPOCH_3, JOB_3, &found, &err) == 0 && found, "relabel: %s",
          err.message);
    CHECK(OPS->get(SELF, c->call, second.id, &second, &found, &err) == 0 && found, "get after relabel: %s",
          err.message);
    CHECK(same_labels(c, &second, EPOCH_3, JOB_3), "relabel did not stick, or lost sessionId");

    if (!check_remove(c, first.id) || !check_find(c, 1))
        return false;
    CHECK(OPS->get(SELF, c->call, second.id, &second, &found, &err) == 0 && found && second.epoch == EPOCH_3,
          "removing one twin touched the other");
    return check_remove(c, second.id) && check_find(c, 0);
}

/* More objects of one sandbox than are looked at in one go: the newest are shown, and removing what is shown gets to
 * all.
 */
static bool check_many(struct sk_conformance *c)
{
    enum { MANY = SK_REMOTES_MAX + 3 };
    struct sk_remote remotes[SK_REMOTES_MAX], first;
    struct sk_error err = {0};
    bool more = false, gone;
    int count = 0, removed = 0;

    for (int i = 0; i < MANY; i++) {
        if (!check_create(c, EPOCH_1 + i, JOB_1, NULL, &first))
            return false;
    }
    CHECK(OPS->find(SELF, c->call, c->sandbox_id, remotes, &count, &more, &err) == 0, "find of many: %s", err.message);
    CHECK(count == SK_REMOTES_MAX && more, "find of many: %d objects, more %d", count, more);
    for (int i = MANY - SK_REMOTES_MAX; i < MANY; i++)
        CHECK(find_epoch(remotes, count, EPOCH_1 + i) != NULL, "find of many does not show the %dth object", i + 1);
    for (; count > 0; removed += count) {
        CHECK(removed < MANY, "an object that is gone is found again");
        for (int i = 0; i < count; i++) {
            CHECK(OPS->remove(SELF, c->call, remotes[i].id, &gone, &err) == 0, "remove of many: %s", err.message);
            if (!wait_absent(c, remotes[i].id))
                return false;
        }
        CHECK(OPS->find(SELF, c->call, c->sandbox_id, remotes, &count, &more, &err) == 0, "find of the rest: %s",
              err.message);
    }
    return check_find(c, 0);
}

static bool check_volumes(struct sk_conformance *c)
{
    struct sk_storage storage = {.present = true, .volume_name = "workspace", .volume_mount_path = "/workspace"};
    struct sk_create_spec spec;
    struct sk_error err = {0};
    struct sk_remote remote;

    if (c->claim_name[0] == '\0')
        return true;
    CHECK(OPS->volume_ensure(SELF, c->call, c->claim_name, "1Gi", &err) == 0, "volume ensure: %s", err.message);
    CHECK(OPS->volume_ensure(SELF, c->call, c->claim_name, "1Gi", &err) == 0, "second volume ensure: %s", err.message);
    if (OPS->has_volumes) {
        snprintf(storage.claim_name, sizeof(storage.claim_name), "%s", c->claim_name);
        if (!check_create(c, EPOCH_1, JOB_1, &storage, &remote) || !check_ready(c, remote.id) ||
            !check_remove(c, remote.id))
            return false;
    }
    CHECK(OPS->volume_remove(SELF, c->call, c->claim_name, &err) == 0, "volume remove: %s", err.message);
    CHECK(OPS->volume_remove(SELF, c->call, c->claim_name, &err) == 0, "second volume remove: %s", err.message);
    if (OPS->has_volumes) {
        /* Never a fresh, empty workspace in the place of one that is gone. */
        spec = spec_of(c, EPOCH_1, JOB_1, &storage);
        CHECK(OPS->create(SELF, c->call, &spec, &remote, &err) == -1, "create with a missing claim worked");
        CHECK(err.code == SK_ERR_PROVIDER_ERROR && err.outcome == SK_OUTCOME_FAILED, "create with a missing claim: %s",
              err.message);
        return check_find(c, 0);
    }
    return true;
}

/* A call that is over already has no effect at all, and says so. */
static bool check_ended_call(struct sk_conformance *c, bool cancelled)
{
    struct sk_create_spec spec = spec_of(c, EPOCH_1, JOB_1, NULL);
    struct sk_remote remotes[SK_REMOTES_MAX];
    struct sk_error err = {0};
    struct sk_call over;
    bool flag, more;
    int count;

    sk_call_init(&over, c->call->sched);
    over.transport = c->call->transport;
    if (cancelled)
        sk_call_cancel(&over);
    else
        over.deadline_us = sk_mono_us(over.sched) - 1;
    CHECK(OPS->create(SELF, &over, &spec, remotes, &err) == -1, "create with an ended call worked");
    CHECK(err.outcome == SK_OUTCOME_FAILED, "create with an ended call: outcome unknown");
    CHECK(err.code == SK_ERR_CANCELLED || (!cancelled && err.code == SK_ERR_PROVIDER_TIMEOUT),
          "create with an ended call: %s", err.message);
    CHECK(OPS->find(SELF, &over, c->sandbox_id, remotes, &count, &more, &err) == -1, "find with an ended call worked");
    CHECK(OPS->get(SELF, &over, NOBODY, remotes, &flag, &err) == -1, "get with an ended call worked");
    CHECK(OPS->remove(SELF, &over, NOBODY, &flag, &err) == -1, "remove with an ended call worked");
    CHECK(OPS->probe(SELF, &over, NOBODY, &flag, &err) == -1, "probe with an ended call worked");
    c->call->transport = over.transport;
    return check_find(c, 0);
}

bool sk_provider_conformance(struct sk_conformance *c)
{
    c->checks = 0;
    c->failure[0] = '\0';
    return check_absence(c) && check_ended_call(c, true) && check_ended_call(c, false) && check_twins(c) &&
           check_many(c) && check_volumes(c) && check_absence(c);
}

void sk_provider_conformance_clean(struct sk_conformance *c)
{
    struct sk_remote remotes[SK_REMOTES_MAX];
    struct sk_error err;
    bool more = true;
    int count = 0;

    while (more && OPS->find(SELF, c->call, c->sandbox_id, remotes, &count, &more, &err) == 0) {
        for (int i = 0; i < count; i++) {
            bool gone;
            (void)!OPS->remove(SELF, c->call, remotes[i].id, &gone, &err);
            (void)wait_absent(c, remotes[i].id);
        }
    }
    if (c->claim_name[0] != '\0')
        (void)!OPS->volume_remove(SELF, c->call, c->claim_name, &err);
}
