/* SPDX-License-Identifier: Apache-2.0
 *
 * Turns, limits and bounds of the queue, each alone; then random sequences against a model that keeps everything in
 * plain arrays and looks for the answer by walking them. */
#include "services/code/host/queue.h"
#include "tests/unit/check_main.h"

#include <stdio.h>
#include <string.h>

static struct code_queue *queue_of(size_t waiting, int pool, int per_id)
{
    struct code_queue *queue = code_queue_new(
        &(struct code_queue_settings){.max_waiting = waiting, .pool_size = pool, .id_concurrency = per_id, .seed = 7});

    ck_assert_ptr_nonnull(queue);
    code_queue_set_ready(queue, CODE_POOL_JS, true);
    code_queue_set_ready(queue, CODE_POOL_PYTHON, true);
    return queue;
}

static void add(struct code_queue *queue, struct code_job *job, enum code_pool pool, const char *id)
{
    memset(job, 0, sizeof(*job));
    ck_assert_int_eq(code_queue_add(queue, job, pool, id, 0), CODE_ADMITTED);
}

/* Runs one job after another to its end and writes their numbers. */
static void run_all(struct code_queue *queue, enum code_pool pool, const struct code_job *jobs, char *order)
{
    struct code_job *job;

    while ((job = code_queue_next(queue, pool, 0)) != NULL) {
        order += sprintf(order, "%d ", (int)(job - jobs));
        code_queue_done(queue, job);
    }
}

START_TEST(test_lines_take_turns)
{
    static const char *const ids[] = {"a", "a", "a", "a", "b", "", "", "c", "b"};
    struct code_queue *queue = queue_of(100, 1, 0);
    struct code_job jobs[9];
    char order[64] = "";

    for (int i = 0; i < 9; i++)
        add(queue, &jobs[i], CODE_POOL_JS, ids[i]);
    ck_assert_uint_eq(code_queue_lines(queue), 3);
    run_all(queue, CODE_POOL_JS, jobs, order);
    ck_assert_str_eq(order, "0 4 5 7 1 8 6 2 3 ");
    ck_assert(code_queue_empty(queue));
    ck_assert_uint_eq(code_queue_lines(queue), 0);
    code_queue_free(queue);
}
END_TEST

/* One tenant's flood delays another's single task by one task. */
START_TEST(test_flood)
{
    struct code_queue *queue = queue_of(1000, 1, 0);
    static struct code_job flood[500];
    struct code_job one, *job;

    for (int i = 0; i < 500; i++)
        add(queue, &flood[i], CODE_POOL_JS, "flood");
    job = code_queue_next(queue, CODE_POOL_JS, 0);
    ck_assert_ptr_eq(job, &flood[0]);
    add(queue, &one, CODE_POOL_JS, "one");
    code_queue_done(queue, job);
    job = code_queue_next(queue, CODE_POOL_JS, 0);
    ck_assert_ptr_eq(job, &flood[1]);
    code_queue_done(queue, job);
    job = code_queue_next(queue, CODE_POOL_JS, 0);
    ck_assert_ptr_eq(job, &one);
    code_queue_done(queue, job);
    for (int i = 2; (job = code_queue_flush(queue, CODE_POOL_JS)) != NULL; i++) { /* in the order of arrival */
        ck_assert_ptr_eq(job, &flood[i]);
        ck_assert_int_eq(job->state, CODE_JOB_NEW);
    }
    ck_assert_int_eq(code_queue_counters(queue)->flushed, 498);
    ck_assert(code_queue_empty(queue));
    code_queue_free(queue);
}
END_TEST

START_TEST(test_id_limit_spans_languages)
{
    struct code_queue *queue = queue_of(100, 4, 1);
    struct code_job a, b, c, d, e;

    add(queue, &a, CODE_POOL_JS, "x");
    add(queue, &b, CODE_POOL_PYTHON, "x");
    add(queue, &c, CODE_POOL_JS, "x");
    add(queue, &d, CODE_POOL_JS, "");
    add(queue, &e, CODE_POOL_JS, "");
    ck_assert_ptr_eq(code_queue_next(queue, CODE_POOL_JS, 0), &a);
    ck_assert_ptr_null(code_queue_next(queue, CODE_POOL_PYTHON, 0));
    ck_assert_ptr_eq(code_queue_next(queue, CODE_POOL_JS, 0), &d); /* no id: no limit */
    ck_assert_ptr_eq(code_queue_next(queue, CODE_POOL_JS, 0), &e);
    ck_assert_ptr_null(code_queue_next(queue, CODE_POOL_JS, 0));
    code_queue_done(queue, &a);
    ck_assert_ptr_eq(code_queue_next(queue, CODE_POOL_PYTHON, 0), &b);
    ck_assert_ptr_null(code_queue_next(queue, CODE_POOL_JS, 0));
    code_queue_done(queue, &b);
    ck_assert_ptr_eq(code_queue_next(queue, CODE_POOL_JS, 0), &c);
    code_queue_done(queue, &c);
    code_queue_done(queue, &d);
    code_queue_done(queue, &e);
    ck_assert_int_eq(code_queue_counters(queue)->finished, 5);
    ck_assert(code_queue_empty(queue));
    code_queue_free(queue);
}
END_TEST

START_TEST(test_bounds)
{
    struct code_queue *queue = queue_of(3, 2, 0);
    struct code_job jobs[6], more = {.state = CODE_JOB_NEW};

    for (int i = 0; i < 3; i++)
        add(queue, &jobs[i], i == 1 ? CODE_POOL_PYTHON : CODE_POOL_JS, i == 2 ? "b" : "a");
    ck_assert_int_eq(code_queue_add(queue, &more, CODE_POOL_JS, "new", 0), CODE_FULL);
    ck_assert_uint_eq(code_queue_lines(queue), 2); /* a refused one leaves no line */
    ck_assert_int_eq(more.state, CODE_JOB_NEW);
    ck_assert_ptr_eq(code_queue_next(queue, CODE_POOL_JS, 0), &jobs[0]);
    add(queue, &jobs[3], CODE_POOL_JS, "c");
    ck_assert_ptr_eq(code_queue_next(queue, CODE_POOL_JS, 0), &jobs[2]);
    ck_assert_ptr_null(code_queue_next(queue, CODE_POOL_JS, 0)); /* pool of two */
    struct code_queue_pool js = code_queue_pool(queue, CODE_POOL_JS), python = code_queue_pool(queue, CODE_POOL_PYTHON);
    ck_assert(js.total == 2 && js.busy == 2 && js.idle == 0 && js.queued == 1 && js.ready);
    ck_assert(python.total == 2 && python.busy == 0 && python.idle == 2 && python.queued == 1);
    ck_assert_int_eq(code_queue_counters(queue)->refused_full, 1);
    code_queue_done(queue, &jobs[0]);
    code_queue_done(queue, &jobs[2]);
    code_queue_done(queue, &jobs[2]); /* a second time: nothing */
    ck_assert_int_eq(code_queue_counters(queue)->finished, 2);
    ck_assert(code_queue_leave(queue, &jobs[1]));
    ck_assert(code_queue_leave(queue, &jobs[3]));
    ck_assert(!code_queue_leave(queue, &jobs[3]));
    ck_assert(code_queue_empty(queue));
    code_queue_free(queue);
}
END_TEST

/* The bound is one on waiting: an idle language, and a tenant below its limit, are served although others fill it. */
START_TEST(test_bound_spares_idle_places)
{
    struct code_queue *queue = queue_of(2, 2, 1);
    struct code_job jobs[8] = {0}, late[4] = {0};

    for (int i = 0; i < 3; i++) { /* one of the crowd runs, two wait; a place is idle */
        ck_assert_int_eq(code_queue_add(queue, &jobs[i], CODE_POOL_JS, "crowd", 0), CODE_ADMITTED);
        ck_assert(code_queue_next(queue, CODE_POOL_JS, 0) == (i == 0 ? &jobs[0] : NULL));
    }
    ck_assert_int_eq(code_queue_add(queue, &late[0], CODE_POOL_JS, "crowd", 0), CODE_FULL);
    ck_assert_int_eq(code_queue_add(queue, &late[0], CODE_POOL_PYTHON, "crowd", 0), CODE_FULL);
    ck_assert_int_eq(code_queue_add(queue, &late[0], CODE_POOL_JS, "other", 0), CODE_ADMITTED);
    ck_assert_int_eq(code_queue_add(queue, &late[1], CODE_POOL_JS, "third", 0), CODE_FULL); /* somebody is before it */
    ck_assert_ptr_eq(code_queue_next(queue, CODE_POOL_JS, 0), &late[0]);
    ck_assert_int_eq(code_queue_add(queue, &late[1], CODE_POOL_JS, "third", 0), CODE_FULL); /* no place */
    ck_assert_int_eq(code_queue_add(queue, &late[1], CODE_POOL_PYTHON, "", 0), CODE_ADMITTED);
    ck_assert_ptr_eq(code_queue_next(queue, CODE_POOL_PYTHON, 0), &late[1]);
    code_queue_done(queue, &late[0]);
    code_queue_done(queue, &late[1]);
    code_queue_set_ready(queue, CODE_POOL_PYTHON, false);
    ck_assert_int_eq(code_queue_add(queue, &late[2], CODE_POOL_PYTHON, "", 0), CODE_FULL); /* it would have to wait */
    ck_assert(code_queue_leave(queue, &jobs[1]));
    ck_assert(code_queue_leave(queue, &jobs[2]));
    code_queue_done(queue, &jobs[0]);
    ck_assert(code_queue_empty(queue));
    code_queue_free(queue);
}
END_TEST

START_TEST(test_cancel)
{
    struct code_queue *queue = queue_of(10, 1, 1);
    struct code_job a, b, c;

    add(queue, &a, CODE_POOL_JS, "x");
    add(queue, &b, CODE_POOL_JS, "x");
    add(queue, &c, CODE_POOL_JS, "x");
    ck_assert_ptr_eq(code_queue_next(queue, CODE_POOL_JS, 0), &a);
    ck_assert(code_queue_leave(queue, &b));
    ck_assert_int_eq(b.state, CODE_JOB_NEW);
    ck_assert(!code_queue_leave(queue, &a));
    ck_assert(!code_queue_leave(queue, &a));
    ck_assert(a.cancelled);
    ck_assert_ptr_null(code_queue_next(queue, CODE_POOL_JS, 0)); /* its place is free when it has ended */
    code_queue_done(queue, &a);
    ck_assert_ptr_eq(code_queue_next(queue, CODE_POOL_JS, 0), &c);
    code_queue_done(queue, &c);
    ck_assert_int_eq(code_queue_counters(queue)->cancelled_waiting, 1);
    ck_assert_int_eq(code_queue_counters(queue)->cancelled_running, 1);
    ck_assert_int_eq(code_queue_counters(queue)->finished, 2);
    ck_assert(code_queue_empty(queue));
    code_queue_free(queue);
}
END_TEST

START_TEST(test_ready_and_drain)
{
    struct code_queue *queue =
        code_queue_new(&(struct code_queue_settings){.max_waiting = 10, .pool_size = 1, .seed = 7});
    struct code_job a, b, more = {.state = CODE_JOB_NEW};

    ck_assert_ptr_nonnull(queue);
    ck_assert_int_eq(code_queue_add(queue, &more, CODE_POOL_JS, "x", 0), CODE_NOT_READY);
    code_queue_set_ready(queue, CODE_POOL_JS, true);
    ck_assert_int_eq(code_queue_add(queue, &more, CODE_POOL_PYTHON, "x", 0), CODE_NOT_READY);
    code_queue_set_ready(queue, CODE_POOL_JS, false); /* its zygote is being replaced: jobs wait */
    memset(&a, 0, sizeof(a));
    ck_assert_int_eq(code_queue_add(queue, &a, CODE_POOL_JS, "x", 1000), CODE_ADMITTED);
    add(queue, &b, CODE_POOL_JS, "");
    ck_assert_ptr_null(code_queue_next(queue, CODE_POOL_JS, 1000));
    ck_assert(!code_queue_pool(queue, CODE_POOL_JS).ready);
    code_queue_set_ready(queue, CODE_POOL_JS, true);
    code_queue_drain(queue);
    ck_assert_int_eq(code_queue_add(queue, &more, CODE_POOL_JS, "x", 0), CODE_DRAINING);
    ck_assert_ptr_eq(code_queue_next(queue, CODE_POOL_JS, 1250), &a); /* what waits still gets its turn */
    ck_assert_int_eq(a.wait_ms, 250);
    ck_assert_ptr_eq(code_queue_flush(queue, CODE_POOL_JS), &b);
    ck_assert_ptr_null(code_queue_flush(queue, CODE_POOL_JS));
    ck_assert(!code_queue_empty(queue));
    code_queue_done(queue, &a);
    ck_assert(code_queue_empty(queue));
    const struct code_queue_counters *c = code_queue_counters(queue);
    ck_assert(c->refused_not_ready == 2 && c->refused_draining == 1 && c->flushed == 1 && c->wait_ms_max == 250);
    code_queue_free(queue);
}
END_TEST

/* ---- against a model ---------------------------------------------------------------------------- */
#define IDS  6 /* 0 is the shared line */
#define JOBS 64

/* Per line and language the waiting jobs in order, and when the line last came to the end of the turn. */
struct model {
    int waiting[IDS][CODE_POOLS][JOBS], count[IDS][CODE_POOLS];
    long turn[IDS][CODE_POOLS]; /* 0 = in no ring */
    int running[IDS], busy[CODE_POOLS];
    long now;
    int max_waiting, pool_size, per_id;
};

static void model_settle(struct model *m, int id)
{
    bool may = id == 0 || m->per_id == 0 || m->running[id] < m->per_id;

    for (int p = 0; p < CODE_POOLS; p++) {
        if (!may || m->count[id][p] == 0)
            m->turn[id][p] = 0;
        else if (m->turn[id][p] == 0)
            m->turn[id][p] = ++m->now;
    }
}

static void model_remove(struct model *m, int id, int pool, int job)
{
    int *line = m->waiting[id][pool], at = 0;

    while (at < m->count[id][pool] && line[at] != job)
        at++;
    ck_assert_int_lt(at, m->count[id][pool]);
    memmove(line + at, line + at + 1, sizeof(int) * (size_t)(m->count[id][pool] - at - 1));
    m->count[id][pool]--;
}

static int model_next(struct model *m, int pool, int *id)
{
    int best = -1;

    for (int i = 0; i < IDS; i++) {
        if (m->turn[i][pool] != 0 && (best < 0 || m->turn[i][pool] < m->turn[best][pool]))
            best = i;
    }
    if (m->busy[pool] >= m->pool_size || best < 0)
        return -1;
    *id = best;
    return m->waiting[best][pool][0];
}

static bool model_at_once(const struct model *m, int id, int pool)
{
    for (int i = 0; i < IDS; i++) {
        if (m->turn[i][pool] != 0)
            return false;
    }
    return m->busy[pool] < m->pool_size && (id == 0 || m->per_id == 0 || m->running[id] < m->per_id);
}

static int model_waiting(const struct model *m)
{
    int n = 0;

    for (int i = 0; i < IDS; i++) {
        for (int p = 0; p < CODE_POOLS; p++)
            n += m->count[i][p];
    }
    return n;
}

static unsigned seed;

static int rnd(int below)
{
    seed = seed * 1103515245u + 12345u;
    return (int)((seed >> 16) % (unsigned)below);
}

static void random_sequence(int max_waiting, int pool_size, int per_id)
{
    static const char *const ids[IDS] = {"", "a", "b", "c", "dd", "a b"};
    struct code_queue *queue = queue_of((size_t)max_waiting, pool_size, per_id);
    struct model m = {.max_waiting = max_waiting, .pool_size = pool_size, .per_id = per_id};
    struct code_job jobs[JOBS];
    int ids_of[JOBS], states[JOBS] = {0};

    memset(jobs, 0, sizeof(jobs));
    for (int step = 0; step < 20000; step++) {
        int job = rnd(JOBS), pool, id = 0;
        switch (rnd(5)) {
        case 0:
        case 4: /* more come than go: bounds are met */
            if (states[job] != CODE_JOB_NEW)
                break;
            pool = rnd(CODE_POOLS);
            /* Half of all is one tenant's. */
            id = rnd(2) ? 1 : rnd(IDS);
            if (model_waiting(&m) >= m.max_waiting && !model_at_once(&m, id, pool)) {
                ck_assert_int_eq(code_queue_add(queue, &jobs[job], (enum code_pool)pool, ids[id], step), CODE_FULL);
                break;
            }
            ck_assert_int_eq(code_queue_add(queue, &jobs[job], (enum code_pool)pool, ids[id], step), CODE_ADMITTED);
            m.waiting[id][pool][m.count[id][pool]++] = job;
            ids_of[job] = id;
            states[job] = CODE_JOB_WAITING;
            model_settle(&m, id);
            break;
        case 1: {
            pool = rnd(CODE_POOLS);
            int expected = model_next(&m, pool, &id);
            struct code_job *got = code_queue_next(queue, (enum code_pool)pool, step);
            ck_assert_int_eq(got == NULL ? -1 : (int)(got - jobs), expected);
            if (got == NULL)
                break;
            model_remove(&m, id, pool, expected);
            m.turn[id][pool] = 0;
            m.running[id]++;
            m.busy[pool]++;
            states[expected] = CODE_JOB_RUNNING;
            model_settle(&m, id);
            break;
        }
        case 2:
            for (int i = 0; i < JOBS && states[job] != CODE_JOB_RUNNING; i++)
                job = (job + 1) % JOBS;
            if (states[job] != CODE_JOB_RUNNING)
                break;
            code_queue_done(queue, &jobs[job]);
            m.running[ids_of[job]]--;
            m.busy[jobs[job].pool]--;
            states[job] = CODE_JOB_NEW;
            model_settle(&m, ids_of[job]);
            break;
        default:
            ck_assert(code_queue_leave(queue, &jobs[job]) == (states[job] == CODE_JOB_WAITING));
            if (states[job] != CODE_JOB_WAITING)
                break;
            model_remove(&m, ids_of[job], jobs[job].pool, job);
            states[job] = CODE_JOB_NEW;
            model_settle(&m, ids_of[job]);
            break;
        }
        size_t lines = 0;
        for (int i = 1; i < IDS; i++)
            lines += m.running[i] > 0 || m.count[i][0] > 0 || m.count[i][1] > 0;
        ck_assert_uint_eq(code_queue_lines(queue), lines);
        for (int p = 0; p < CODE_POOLS; p++) {
            struct code_queue_pool pool_now = code_queue_pool(queue, (enum code_pool)p);
            ck_assert_int_eq(pool_now.busy, m.busy[p]);
            ck_assert_int_eq(pool_now.idle, m.pool_size - m.busy[p]);
        }
        ck_assert_uint_eq(code_queue_pool(queue, CODE_POOL_JS).queued + code_queue_pool(queue, CODE_POOL_PYTHON).queued,
                          (size_t)model_waiting(&m));
        for (int i = 1; i < IDS && per_id > 0; i++)
            ck_assert_int_le(m.running[i], per_id);
    }
    for (int i = 0; i < JOBS; i++) {
        if (!code_queue_leave(queue, &jobs[i]) && states[i] == CODE_JOB_RUNNING)
            code_queue_done(queue, &jobs[i]);
    }
    ck_assert(code_queue_empty(queue));
    ck_assert_uint_eq(code_queue_lines(queue), 0);
    const struct code_queue_counters *c = code_queue_counters(queue);
    ck_assert_int_eq(c->added, c->started + c->cancelled_waiting + c->flushed);
    ck_assert_int_eq(c->started, c->finished);
    ck_assert_int_gt(c->finished, 500);
    ck_assert_int_gt(c->refused_full, max_waiting < 30 ? 50 : -1);
    code_queue_free(queue);
}

START_TEST(test_against_model)
{
    static const int settings[][3] = {{8, 2, 1}, {8, 3, 2}, {20, 4, 0}, {64, 1, 1}, {64, 8, 3}, {1, 1, 1}};

    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        seed = 20261130u + (unsigned)i;
        random_sequence(settings[i][0], settings[i][1], settings[i][2]);
    }
}
END_TEST

SK_CHECK_MAIN("code host queue", test_lines_take_turns, test_flood, test_id_limit_spans_languages, test_bounds,
              test_bound_spares_idle_places, test_cancel, test_ready_and_drain, test_against_model)
