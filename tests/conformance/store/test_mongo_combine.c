/* SPDX-License-Identifier: Apache-2.0
 *
 * Many callers read by key at once, and one command asks for several of them: each gets its own document or none, an
 * answer that does not come holds up nobody else, and a failure is nobody's but of the one who asked. */
#include "tests/conformance/store/fixture.h"
#include "tests/conformance/store/mongo_fixture.h"
#include "tests/conformance/store/proxy.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define READERS 24
#define RECORDS 12
#define ROUNDS  40
#define PATIENT 5000000 /* us: well below the 10 s after which the store gives an answer up */

#undef OPS
#undef SELF
#define OPS  (readers->f.store.ops)
#define SELF (readers->f.store.self)

struct readers {
    struct mf f;
    struct proxy *proxy;
    struct sk_instance records[RECORDS];
    atomic_int wrong, failed, done;
    int64_t done_us; /* when all but the first had their answers */
};

static struct readers *readers_new(struct proxy *proxy, const char *options, int pool_size)
{
    struct readers *readers = calloc(1, sizeof(*readers));

    ck_assert_ptr_nonnull(readers);
    readers->proxy = proxy;
    mf_open(&readers->f, proxy != NULL ? proxy_port(proxy) : 0, options, pool_size);
    for (int i = 0; i < RECORDS; i++) {
        struct sk_command_record result = {.command_id = "known", .body_hash = "hash", .at = 1764500000000};
        struct sk_error err = {0};

        ck_assert_msg(sc_running(&readers->f.c, &readers->records[i]), "%s", readers->f.c.failure);
        memcpy(result.sandbox_id, readers->records[i].sandbox_id, sizeof(result.sandbox_id));
        result.result = readers->records[i].sandbox_id;
        ck_assert_msg(OPS->command_put(SELF, &result, 1, &err) == 0, "%s", err.message);
    }
    return readers;
}

static void readers_free(struct readers *readers)
{
    mf_close(&readers->f);
    free(readers);
}

/* Every third one is not there; two ask for the same at the same time. */
static void read_some(void *arg, int index)
{
    struct readers *readers = arg;
    struct sk_instance *seen = calloc(1, sizeof(*seen));

    for (int i = 0; seen != NULL && i < ROUNDS; i++) {
        const char *sandbox_id = readers->records[(index / 2 + i) % RECORDS].sandbox_id;
        bool there = (index + i) % 3 != 0, found = !there;
        struct sk_command_record result;
        struct sk_error err = {0};
        char id[SK_SANDBOX_ID_SIZE];

        sk_copy_cut(id, sizeof(id), sandbox_id);
        if (!there)
            id[strlen(id) - 1] = 'x';
        seen->sandbox_id[0] = '\0';
        if (OPS->get(SELF, NULL, id, seen, &found, &err) != 0)
            atomic_fetch_add(&readers->failed, 1);
        else if (found != there || strcmp(seen->sandbox_id, there ? id : "") != 0)
            atomic_fetch_add(&readers->wrong, 1);
        found = !there;
        if (OPS->command_find(SELF, NULL, sandbox_id, there ? "known" : "unknown", &result, &found, &err) != 0)
            atomic_fetch_add(&readers->failed, 1);
        else if (found != there || (found && strcmp(result.result, sandbox_id) != 0))
            atomic_fetch_add(&readers->wrong, 1);
        sk_command_record_fini(&result);
    }
    free(seen);
}

START_TEST(test_each_gets_its_own)
{
    struct readers *readers = readers_new(NULL, "", 3);

    mf_parallel(READERS, read_some, readers);
    ck_assert_int_eq(atomic_load(&readers->failed), 0);
    ck_assert_int_eq(atomic_load(&readers->wrong), 0);
    readers_free(readers);
}
END_TEST

static void while_one_hangs(void *arg, int index)
{
    struct readers *readers = arg;
    struct sk_instance seen;
    struct sk_error err = {0};
    bool found;

    if (index == 0) {
        /* Its answer is kept back; when the connection is cut it asks again. */
        if (OPS->get(SELF, NULL, readers->records[0].sandbox_id, &seen, &found, &err) != 0 || !found)
            atomic_fetch_add(&readers->failed, 1);
        return;
    }
    while (proxy_met(readers->proxy) == 0)
        sched_yield();
    if (OPS->get(SELF, NULL, readers->records[index % RECORDS].sandbox_id, &seen, &found, &err) != 0)
        atomic_fetch_add(&readers->failed, 1);
    else if (!found || strcmp(seen.sandbox_id, readers->records[index % RECORDS].sandbox_id) != 0)
        atomic_fetch_add(&readers->wrong, 1);
    if (atomic_fetch_add(&readers->done, 1) + 1 == READERS - 1) {
        readers->done_us = sk_mono_us(&sk_sched_system);
        proxy_speak(readers->proxy);
    }
}

START_TEST(test_one_hangs)
{
    struct proxy *proxy = proxy_start(mf_server.port);
    struct readers *readers = readers_new(proxy, "", 4);
    int64_t begun_us = sk_mono_us(&sk_sched_system);

    proxy_rule(proxy, "find", PROXY_SILENCE, 1, NULL);
    mf_parallel(READERS, while_one_hangs, readers);
    ck_assert_int_eq(atomic_load(&readers->failed), 0);
    ck_assert_int_eq(atomic_load(&readers->wrong), 0);
    ck_assert_int_lt(readers->done_us - begun_us, PATIENT);
    readers_free(readers);
    proxy_stop(proxy);
}
END_TEST

/* Without retries of the store's own: who asked for others fails alone, they ask for themselves. */
START_TEST(test_one_is_cut_off)
{
    struct proxy *proxy = proxy_start(mf_server.port);
    struct readers *readers = readers_new(proxy, "retryReads=false", 4);

    proxy_rule(proxy, "find", PROXY_CUT_AFTER, 5, NULL);
    mf_parallel(READERS, read_some, readers);
    ck_assert_int_eq(proxy_met(proxy), 5);
    ck_assert_int_le(atomic_load(&readers->failed), 5);
    ck_assert_int_eq(atomic_load(&readers->wrong), 0);
    readers_free(readers);
    proxy_stop(proxy);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {test_each_gets_its_own, test_one_hangs, test_one_is_cut_off};

    return mf_main("store_mongo_combine", tests, 3, 120);
}
