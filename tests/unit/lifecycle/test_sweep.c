/* SPDX-License-Identifier: Apache-2.0
 * The orphan sweep alone, over a provider whose objects fill several pages: what it takes for surplus, for an orphan,
 * and for nobody's business. */
#include "tests/unit/check_main.h"
#include "tests/unit/lifecycle/fakes.h"

#include <string.h>

#define OBJECTS_MAX 400
#define RECORD_AGE  (60 * 60 * 1000)

static struct fake f;

static struct sk_remote objects[OBJECTS_MAX];
static int object_count, passes, unreadable_on_page;
static bool records_fail;

static int list(void *self, struct sk_call *call, int page, struct sk_remote *out, int capacity, int *count,
                int *unreadable, bool *more, struct sk_error *err)
{
    int first = (page - 1) * capacity;

    (void)self;
    (void)call;
    (void)err;
    if (page == 1 && ++passes > 1)
        lc_replica_stop(f.replica); /* one pass is enough */
    *count = object_count - first < capacity ? object_count - first : capacity;
    memcpy(out, objects + first, (size_t)*count * sizeof(*out));
    *unreadable = unreadable_on_page;
    *more = first + *count < object_count;
    return 0;
}

/* Every sandbox but those named app-orphan… has a running record of epoch 5. */
static int get_many(void *self, struct sk_call *call, const char (*ids)[SK_SANDBOX_ID_SIZE], int count, sk_scan_fn fn,
                    void *arg, struct sk_error *err)
{
    static struct sk_instance record;

    (void)self;
    (void)call;
    if (records_fail)
        return sk_fail(err, SK_ERR_STORE_UNAVAILABLE, "a test says so");
    for (int i = 0; i < count; i++) {
        bool asked_before = strncmp(ids[i], "app-orphan", 10) == 0;

        for (int k = 0; k < i && !asked_before; k++)
            asked_before = strcmp(ids[k], ids[i]) == 0;
        if (asked_before)
            continue;
        memset(&record, 0, sizeof(record));
        memcpy(record.sandbox_id, ids[i], sizeof(record.sandbox_id));
        record.status = SK_STATUS_RUNNING;
        record.epoch = 5;
        fn(arg, &record, NULL, 0);
    }
    return 0;
}

static int scan(void *self, struct sk_call *call, enum sk_scan_kind kind, int64_t before_ms, int limit, sk_scan_fn fn,
                void *arg, struct sk_error *err)
{
    (void)self;
    (void)call;
    (void)kind;
    (void)before_ms;
    (void)limit;
    (void)fn;
    (void)arg;
    (void)err;
    return 0;
}

static const struct sk_provider_ops provider_ops = {.list = list, .name = "opensandbox"};
static const struct sk_provider provider = {.ops = &provider_ops};
static const struct sk_store_ops store_ops = {.get_many = get_many, .scan = scan};
static const struct sk_store store = {.ops = &store_ops};

static void often(struct lc_settings *settings)
{
    settings->orphan_sweep_ms = 1000;
    settings->orphan_remove = true;
    settings->idle_stop_ms = 0;
}

static void begin(void)
{
    fake_start(&f, often);
    f.replica->seams.providers = &provider;
    f.replica->seams.provider_count = 1;
    f.replica->seams.store = &store;
    object_count = passes = unreadable_on_page = 0;
    records_fail = false;
}

static struct sk_remote *add(const char *sandbox_id)
{
    struct sk_remote *remote = &objects[object_count];

    memset(remote, 0, sizeof(*remote));
    snprintf(remote->id, sizeof(remote->id), "object-%d", object_count++);
    sk_copy_cut(remote->sandbox_id, sizeof(remote->sandbox_id), sandbox_id);
    sk_copy_cut(remote->job_id, sizeof(remote->job_id), "6d1c8a60-2f4b-4f0e-9c0a-111111111111");
    remote->state = SK_REMOTE_RUNNING;
    remote->epoch = 5;
    remote->created_at = sk_wall_ms(&f.sched) - RECORD_AGE;
    return remote;
}

static void add_others(int count)
{
    for (int i = 0; i < count; i++) {
        char id[SK_SANDBOX_ID_SIZE];

        snprintf(id, sizeof(id), "app-%016x", object_count);
        add(id);
    }
}

/* One pass; the sandboxes that are to be settled, in the order in which they were found, joined by spaces. */
static const char *settled(void)
{
    static char text[1024];
    size_t used = 0;

    text[0] = '\0';
    lc_sweep_main(f.replica);
    ck_assert_int_eq(passes, 2);
    atomic_store(&f.replica->stopping, false);
    lc_dispatch_inbox(f.replica);
    SK_LIST_FOREACH (struct lc_job, job, &f.replica->later_jobs, link) {
        ck_assert_int_eq(job->kind, LC_JOB_SETTLE);
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", used > 0 ? " " : "", job->sandbox_id);
    }
    return text;
}

START_TEST(test_one_object_each)
{
    begin();
    add_others(250);
    ck_assert_str_eq(settled(), "");
    fake_stop(&f);
}
END_TEST

START_TEST(test_twins_on_one_page)
{
    begin();
    add("app-twin");
    add_others(20);
    add("app-twin");
    ck_assert_str_eq(settled(), "app-twin");
    fake_stop(&f);
}
END_TEST

START_TEST(test_twins_on_two_pages)
{
    begin();
    add("app-twin");
    add_others(320);
    add("app-twin");
    ck_assert_str_eq(settled(), "app-twin");
    fake_stop(&f);
}
END_TEST

/* Pages are cut from a list that moves: what slid to the next page is no second object. */
START_TEST(test_an_object_listed_twice)
{
    begin();
    add_others(99);
    add("app-slides");
    objects[object_count] = objects[object_count - 1];
    object_count++;
    add_others(20);
    ck_assert_str_eq(settled(), "");
    fake_stop(&f);
}
END_TEST

START_TEST(test_a_later_epoch)
{
    begin();
    add_others(5);
    add("app-ahead")->epoch = 6;
    ck_assert_str_eq(settled(), "app-ahead");
    fake_stop(&f);
}
END_TEST

START_TEST(test_orphans)
{
    begin();
    add("app-orphan-old");
    add("app-orphan-young")->created_at = sk_wall_ms(&f.sched);
    add("app-orphan-fastgpt")->epoch = 0;
    add_others(120);
    unreadable_on_page = 3; /* the rest of the page is judged all the same */
    add("app-orphan-late");
    ck_assert_str_eq(settled(), "app-orphan-old app-orphan-late");
    fake_stop(&f);
}
END_TEST

/* Without the records nothing is taken for an orphan. */
START_TEST(test_records_that_cannot_be_read)
{
    begin();
    records_fail = true;
    add("app-orphan");
    ck_assert_str_eq(settled(), "");
    fake_stop(&f);
}
END_TEST

SK_CHECK_MAIN("lifecycle sweep", test_one_object_each, test_twins_on_one_page, test_twins_on_two_pages,
              test_an_object_listed_twice, test_a_later_epoch, test_orphans, test_records_that_cannot_be_read)
