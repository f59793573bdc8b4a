/* SPDX-License-Identifier: Apache-2.0
 * The dispatcher alone: order, coalescing, overtaking, waiting with all its bounds, deadlines, drain. */
#include "tests/unit/check_main.h"
#include "tests/unit/lifecycle/fakes.h"

#include <string.h>

#define ID    "app-8a3cb7a4e074fa1d"
#define OTHER "app-3b49bb9a3adef32c"

static struct fake f;

static int waiting_jobs(void)
{
    return (int)sk_list_length(&f.replica->jobs);
}

static int results(void)
{
    return (int)sk_list_length(&f.replica->finishes);
}

/* Ends everything that is on its way to the finisher; the code of the last one. */
static enum sk_code finish_all(void)
{
    enum sk_code code = SK_OK;
    struct lc_held *held;

    while ((held = fake_result(&f)) != NULL) {
        code = held->answer != NULL ? held->answer->err.code : SK_OK;
        fake_finished(&f, held);
    }
    return code;
}

static int later_jobs(void)
{
    return (int)sk_list_length(&f.replica->later_jobs);
}

START_TEST(test_commands_do_not_wait_behind_housekeeping)
{
    struct lc_job *job;

    fake_start(&f, NULL);
    for (int i = 0; i < 100; i++) {
        char id[SK_SANDBOX_ID_SIZE];

        snprintf(id, sizeof(id), "app-%016x", i);
        lc_dispatch_post(f.replica, LC_JOB_IDLE_STOP, id);
    }
    lc_dispatch_post(f.replica, LC_JOB_IDLE_STOP, ID);
    lc_dispatch_post(f.replica, LC_JOB_RECOVER, OTHER);
    lc_dispatch_inbox(f.replica);
    ck_assert_int_eq(later_jobs(), 101);
    /* A recovery is no housekeeping, and a command takes the place of what nobody began. */
    fake_send(&f, "ensure", ID, "a", "");
    ck_assert_int_eq(later_jobs(), 100);
    ck_assert_int_eq(waiting_jobs(), 2);
    ck_assert_int_eq(fake_take(&f)->kind, LC_JOB_RECOVER);
    job = fake_take(&f);
    ck_assert_int_eq(job->kind, LC_JOB_COMMANDS);
    ck_assert_str_eq(job->sandbox_id, ID);
    fake_end(&f, job, LC_OUTCOME_DONE, SK_OK, 0);
    finish_all();
    /* What a worker began is waited for. */
    job = SK_LIST_ENTRY(struct lc_job, sk_list_pop_front(&f.replica->later_jobs), link);
    job->taken = true;
    fake_send(&f, "ensure", job->sandbox_id, "b", "");
    ck_assert_int_eq(waiting_jobs(), 0);
    fake_end(&f, job, LC_OUTCOME_DONE, SK_OK, 0);
    ck_assert_int_eq(waiting_jobs(), 1);
    fake_stop(&f);
}
END_TEST

START_TEST(test_hints_reach_those_that_wait_for_a_retry)
{
    struct lc_job *job;

    fake_start(&f, NULL);
    fake_send(&f, "ensure", ID, "a", "");
    job = fake_take(&f);
    fake_end(&f, job, LC_OUTCOME_RETRY, SK_OK, 60000);
    ck_assert_int_eq((int)sk_list_length(&f.replica->polls), 0);
    lc_dispatch_hint(f.replica, ID);
    ck_assert_int_eq((int)sk_list_length(&f.replica->polls), 1);
    {
        struct sk_list views;
        struct lc_view *view = SK_LIST_ENTRY(struct lc_view, sk_list_pop_front(&f.replica->polls), link);

        sk_list_init(&views);
        view->known = view->runnable = true;
        sk_list_push_back(&views, &view->link);
        lc_dispatch_view(f.replica, &views);
    }
    lc_dispatch_inbox(f.replica);
    ck_assert_int_eq(waiting_jobs(), 1);
    fake_stop(&f);
}
END_TEST

START_TEST(test_a_parked_command_that_matters_twice_asks_for_its_result_again)
{
    static const char *const verbs[] = {"delete", "ensure", "stop", "touch"};

    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        struct lc_job *job;
        struct lc_held *held;

        fake_start(&f, NULL);
        fake_send(&f, verbs[i], ID, "a", "");
        job = fake_take(&f);
        held = SK_LIST_ENTRY(struct lc_held, job->members.next, link);
        held->looked_up = true;
        fake_end(&f, job, LC_OUTCOME_BUSY, SK_OK, 0);
        ck_assert_msg(held->looked_up == (strcmp(verbs[i], "touch") == 0), "%s", verbs[i]);
        fake_stop(&f);
    }
}
END_TEST

START_TEST(test_one_worker_per_sandbox)
{
    struct lc_job *first, *second;

    fake_start(&f, NULL);
    fake_send(&f, "ensure", ID, "a", "");
    fake_send(&f, "stop", ID, "b", "");
    fake_send(&f, "ensure", OTHER, "c", "");
    ck_assert_int_eq(waiting_jobs(), 2);
    first = fake_take(&f);
    ck_assert_str_eq(first->sandbox_id, ID);
    second = fake_take(&f);
    ck_assert_str_eq(second->sandbox_id, OTHER);
    fake_end(&f, first, LC_OUTCOME_DONE, SK_OK, 0);
    /* The stop had to wait, and comes now. */
    ck_assert_int_eq(waiting_jobs(), 1);
    ck_assert_int_eq(results(), 1);
    ck_assert_int_eq(lc_replica_count(f.replica, LC_COUNT_COMMANDS_PARKED), 1);
    fake_end(&f, second, LC_OUTCOME_DONE, SK_OK, 0);
    fake_end(&f, fake_take(&f), LC_OUTCOME_DONE, SK_OK, 0);
    finish_all();
    ck_assert_int_eq(atomic_load(&f.replica->held_count), 0);
    ck_assert_uint_eq(sk_map_count(&f.replica->queues), 0);
    fake_stop(&f);
}
END_TEST

START_TEST(test_a_thousand_are_one)
{
    struct lc_job *job;
    char id[16];

    fake_start(&f, NULL);
    for (int i = 0; i < 1000; i++) {
        snprintf(id, sizeof(id), "c%d", i);
        fake_send(&f, "ensure", ID, id, "");
    }
    job = fake_take(&f);
    ck_assert_int_eq(job->member_count, 1);
    ck_assert_int_eq(waiting_jobs(), 0);
    fake_end(&f, job, LC_OUTCOME_DONE, SK_OK, 0);
    job = fake_take(&f);
    ck_assert_int_eq(job->member_count, 999);
    ck_assert_int_eq(lc_replica_count(f.replica, LC_COUNT_COMMANDS_COALESCED), 998);
    fake_end(&f, job, LC_OUTCOME_DONE, SK_OK, 0);
    ck_assert_int_eq(waiting_jobs(), 0);
    ck_assert_int_eq(results(), 1000);
    finish_all();
    ck_assert_int_eq(atomic_load(&f.replica->held_count), 0);
    fake_stop(&f);
}
END_TEST

START_TEST(test_only_neighbours_of_one_meaning_ride_together)
{
    struct lc_job *job;

    fake_start(&f, NULL);
    fake_send(&f, "touch", ID, "0", "");
    fake_send(&f, "ensure", ID, "1", "");
    fake_send(&f, "ensure", ID, "2", "");
    fake_send(&f, "ensure", ID, "3", ",\"params\":{\"teamId\":\"t\"}");
    fake_send(&f, "stop", ID, "4", "");
    fake_send(&f, "ensure", ID, "5", "");
    fake_end(&f, fake_take(&f), LC_OUTCOME_DONE, SK_OK, 0);
    job = fake_take(&f);
    ck_assert_int_eq(job->member_count, 2);
    fake_end(&f, job, LC_OUTCOME_DONE, SK_OK, 0);
    job = fake_take(&f);
    ck_assert_int_eq(job->member_count, 1);
    fake_end(&f, job, LC_OUTCOME_DONE, SK_OK, 0);
    fake_end(&f, fake_take(&f), LC_OUTCOME_DONE, SK_OK, 0);
    fake_end(&f, fake_take(&f), LC_OUTCOME_DONE, SK_OK, 0);
    ck_assert_int_eq(results(), 6);
    fake_stop(&f);
    ck_assert_int_eq(f.dropped, 6);
}
END_TEST

START_TEST(test_delete_overtakes)
{
    struct lc_job *job;

    fake_start(&f, NULL);
    fake_send(&f, "ensure", ID, "1", "");
    job = fake_take(&f);
    fake_send(&f, "stop", ID, "2", "");
    fake_send(&f, "delete", ID, "3", "");
    ck_assert(sk_call_cancelled(&job->call));
    ck_assert_int_eq(lc_job_cancelled(job), LC_CANCEL_OVERTAKEN);
    fake_end(&f, job, LC_OUTCOME_AGAIN, SK_OK, 0);
    /* The delete is next, before the ensure that was called back and before the stop; it does not wait. */
    job = fake_take(&f);
    ck_assert_ptr_nonnull(job);
    ck_assert_int_eq(SK_LIST_ENTRY(struct lc_held, job->members.next, link)->command.verb, LC_VERB_DELETE);
    /* A second delete does not cancel the first. */
    fake_send(&f, "delete", ID, "4", "");
    ck_assert(!sk_call_cancelled(&job->call));
    fake_end(&f, job, LC_OUTCOME_DONE, SK_OK, 0);
    job = fake_take(&f);
    ck_assert_int_eq(SK_LIST_ENTRY(struct lc_held, job->members.next, link)->command.verb, LC_VERB_DELETE);
    fake_end(&f, job, LC_OUTCOME_DONE, SK_OK, 0);
    job = fake_take(&f);
    ck_assert_int_eq(SK_LIST_ENTRY(struct lc_held, job->members.next, link)->command.verb, LC_VERB_ENSURE);
    fake_end(&f, job, LC_OUTCOME_DONE, SK_OK, 0);
    fake_stop(&f);
}
END_TEST

START_TEST(test_delete_wakes_a_parked_queue)
{
    fake_start(&f, NULL);
    fake_send(&f, "ensure", ID, "1", "");
    fake_end(&f, fake_take(&f), LC_OUTCOME_BUSY, SK_ERR_SANDBOX_BUSY, 0);
    ck_assert_int_eq(waiting_jobs(), 0);
    ck_assert(lc_dispatch_hint_wanted(f.replica));
    fake_send(&f, "delete", ID, "2", "");
    ck_assert_int_eq(waiting_jobs(), 1);
    fake_end(&f, fake_take(&f), LC_OUTCOME_DONE, SK_OK, 0);
    ck_assert_int_eq(waiting_jobs(), 1);
    fake_stop(&f);
}
END_TEST

static void small_queue(struct lc_settings *s)
{
    s->park_limit = 3;
}

START_TEST(test_waiting_is_bounded)
{
    char large[2100];

    fake_start(&f, small_queue);
    fake_send(&f, "ensure", ID, "1", "");
    for (int i = 0; i < 3; i++)
        fake_send(&f, "stop", ID, i == 0 ? "2" : i == 1 ? "3" : "4", "");
    ck_assert_int_eq(results(), 0);
    fake_send(&f, "stop", ID, "5", "");
    ck_assert_int_eq(results(), 1);
    ck_assert_int_eq(finish_all(), SK_ERR_SANDBOX_BUSY);
    ck_assert_int_eq(lc_replica_count(f.replica, LC_COUNT_PARK_REFUSED), 1);
    /* Delete is never refused for want of room. */
    fake_send(&f, "delete", ID, "6", "");
    ck_assert_int_eq(results(), 0);
    /* A large command may run at once, but not wait. */
    memset(large, 'x', sizeof(large));
    memcpy(large, ",\"ignored\":\"", 12);
    memcpy(large + sizeof(large) - 2, "\"", 2);
    fake_send(&f, "stop", OTHER, "7", large);
    ck_assert_int_eq(results(), 0);
    fake_send(&f, "stop", OTHER, "8", large);
    ck_assert_int_eq(finish_all(), SK_ERR_SANDBOX_BUSY);
    fake_stop(&f);
}
END_TEST

START_TEST(test_deadline_while_busy)
{
    fake_start(&f, NULL);
    fake_send(&f, "ensure", ID, "1", ",\"deadlineMs\":3000");
    fake_end(&f, fake_take(&f), LC_OUTCOME_BUSY, SK_ERR_SANDBOX_BUSY, 0);
    fake_advance(&f, 2999);
    ck_assert_int_eq(results(), 0);
    fake_advance(&f, 2);
    ck_assert_int_eq(results(), 1);
    ck_assert_int_eq(finish_all(), SK_ERR_SANDBOX_BUSY);
    fake_advance(&f, 5000);
    fake_stop(&f);
    ck_assert_int_eq(f.dropped, 0);
}
END_TEST

START_TEST(test_deadline_while_its_own_operation_goes_on)
{
    struct lc_job *job;

    fake_start(&f, NULL);
    fake_send(&f, "ensure", ID, "1", ",\"deadlineMs\":1000");
    job = fake_take(&f);
    fake_advance(&f, 1001);
    /* Answered, once, without an end: the operation goes on. */
    ck_assert_int_eq(f.published, 1);
    ck_assert_str_eq(f.last_subject, "inbox.1");
    ck_assert_ptr_nonnull(strstr(f.last_body, "deadline_exceeded"));
    ck_assert_int_eq(results(), 0);
    fake_end(&f, job, LC_OUTCOME_RETRY, SK_OK, 4000);
    fake_advance(&f, 3000);
    ck_assert_int_eq(f.published, 1);
    ck_assert_int_eq(waiting_jobs(), 0);
    fake_advance(&f, 1001);
    ck_assert_int_eq(waiting_jobs(), 1);
    fake_end(&f, fake_take(&f), LC_OUTCOME_DONE, SK_OK, 0);
    ck_assert_int_eq(results(), 1);
    fake_stop(&f);
}
END_TEST

START_TEST(test_outage_never_kills_a_command)
{
    fake_start(&f, NULL);
    fake_send(&f, "ensure", ID, "1", ",\"deadlineMs\":1000");
    for (int i = 0; i < 50; i++) {
        struct lc_job *job = fake_take(&f);

        if (job != NULL)
            fake_end(&f, job, LC_OUTCOME_OUTAGE, SK_ERR_STORE_UNAVAILABLE, 0);
        fake_advance(&f, 500);
    }
    ck_assert_int_eq(f.published, 1);
    ck_assert_ptr_nonnull(strstr(f.last_body, "store_unavailable"));
    ck_assert_int_eq(results(), 0);
    ck_assert_int_eq(atomic_load(&f.replica->held_count), 1);
    /* A provider that is away ends it at the deadline: nothing was claimed. */
    fake_send(&f, "ensure", OTHER, "2", ",\"deadlineMs\":1000");
    while (results() == 0) {
        struct lc_job *job = fake_take(&f);

        if (job != NULL)
            fake_end(&f, job, LC_OUTCOME_OUTAGE, SK_ERR_PROVIDER_ERROR, 0);
        fake_advance(&f, 500);
    }
    ck_assert_int_eq(finish_all(), SK_ERR_PROVIDER_ERROR);
    fake_stop(&f);
}
END_TEST

/* Answered at its deadline while its job still asked the provider: it must not look again for as long as that fails. */
START_TEST(test_provider_outage_ends_a_command_that_was_answered_before)
{
    struct lc_job *job;

    fake_start(&f, NULL);
    fake_send(&f, "ensure", ID, "1", ",\"deadlineMs\":1000");
    job = fake_take(&f);
    fake_advance(&f, 2000);
    ck_assert_int_eq(f.published, 1);
    ck_assert_ptr_nonnull(strstr(f.last_body, "deadline_exceeded"));
    fake_end(&f, job, LC_OUTCOME_OUTAGE, SK_ERR_PROVIDER_TIMEOUT, 0);
    for (int i = 0; i < 60 && results() == 0; i++) {
        job = fake_take(&f);
        if (job != NULL)
            fake_end(&f, job, LC_OUTCOME_OUTAGE, SK_ERR_PROVIDER_TIMEOUT, 0);
        fake_advance(&f, 500);
    }
    ck_assert_int_eq(finish_all(), SK_ERR_PROVIDER_TIMEOUT);
    ck_assert_int_eq(f.published, 1);
    ck_assert_int_eq(atomic_load(&f.replica->held_count), 0);
    fake_stop(&f);
}
END_TEST

START_TEST(test_signs_of_life)
{
    fake_start(&f, NULL);
    fake_send(&f, "ensure", ID, "1", ",\"deadlineMs\":3600000");
    fake_send(&f, "stop", ID, "2", ",\"deadlineMs\":3600000");
    fake_end(&f, fake_take(&f), LC_OUTCOME_BUSY, SK_ERR_SANDBOX_BUSY, 0);
    for (int i = 0; i < 60; i++)
        fake_advance(&f, 1000);
    /* Two commands, one sign each 10 s. */
    ck_assert_int_eq(f.in_progress, 12);
    fake_stop(&f);
}
END_TEST

static void see(const char *sandbox_id, bool runnable)
{
    struct sk_list *item = sk_list_pop_front(&f.replica->polls), views;
    struct lc_view *view;

    ck_assert_ptr_nonnull(item);
    view = SK_LIST_ENTRY(struct lc_view, item, link);
    ck_assert_str_eq(view->sandbox_id, sandbox_id);
    view->known = true;
    view->runnable = runnable;
    if (!runnable) {
        view->busy.present = true;
        memcpy(view->busy.phase, "claimed", 8);
        view->busy.status = SK_STATUS_STOPPING;
    }
    sk_list_init(&views);
    sk_list_push_back(&views, &view->link);
    lc_dispatch_view(f.replica, &views);
    lc_dispatch_inbox(f.replica);
}

START_TEST(test_hints_and_polls_wake)
{
    fake_start(&f, NULL);
    fake_send(&f, "ensure", ID, "1", "");
    lc_dispatch_hint(f.replica, ID);
    ck_assert(sk_list_empty(&f.replica->polls)); /* it runs: nothing to look for */
    fake_end(&f, fake_take(&f), LC_OUTCOME_BUSY, SK_ERR_SANDBOX_BUSY, 0);
    lc_dispatch_hint(f.replica, OTHER);
    ck_assert(sk_list_empty(&f.replica->polls));
    lc_dispatch_hint(f.replica, ID);
    lc_dispatch_hint(f.replica, ID);
    ck_assert_uint_eq(sk_list_length(&f.replica->polls), 1);
    see(ID, false);
    /* Not yet: the one who waits hears how far it is, once per phase. */
    ck_assert_int_eq(f.published, 1);
    ck_assert_int_eq(waiting_jobs(), 0);
    fake_advance(&f, 1001);
    see(ID, false);
    ck_assert_int_eq(f.published, 1);
    fake_advance(&f, 1001);
    see(ID, true);
    ck_assert_int_eq(waiting_jobs(), 1);
    fake_end(&f, fake_take(&f), LC_OUTCOME_DONE, SK_OK, 0);
    fake_stop(&f);
}
END_TEST

START_TEST(test_a_twin_waits_for_the_stored_result)
{
    struct lc_held *held;

    fake_start(&f, NULL);
    fake_send(&f, "ensure", ID, "same", "");
    fake_end(&f, fake_take(&f), LC_OUTCOME_DONE, SK_OK, 0);
    held = fake_result(&f);
    fake_send(&f, "ensure", ID, "same", "");
    ck_assert_int_eq(waiting_jobs(), 0);
    fake_send(&f, "ensure", OTHER, "same", "");
    ck_assert_int_eq(waiting_jobs(), 1); /* ids are per sandbox */
    fake_finished(&f, held);
    ck_assert_int_eq(waiting_jobs(), 2);
    fake_stop(&f);
}
END_TEST

START_TEST(test_own_failures_end_in_the_dead_letters)
{
    int tries = 0;

    fake_start(&f, NULL);
    fake_send(&f, "ensure", ID, "1", ",\"deadlineMs\":3600000");
    while (results() == 0 && tries < 100) {
        struct lc_job *job = fake_take(&f);

        if (job != NULL) {
            tries++;
            fake_end(&f, job, LC_OUTCOME_BROKEN, SK_ERR_INTERNAL, 0);
        }
        fake_advance(&f, 3000);
    }
    ck_assert_int_eq(tries, 20);
    ck_assert_int_eq(SK_LIST_ENTRY(struct lc_held, f.replica->finishes.next, finish)->kind, LC_FINISH_DEAD);
    fake_stop(&f);
}
END_TEST

START_TEST(test_bad_input_is_refused_at_once)
{
    fake_start(&f, NULL);
    fake_send(&f, "explode", ID, "1", "");
    fake_send(&f, "ensure", "nobody", "1", "");
    fake_send(&f, "ensure", ID, "1", ",\"deadlineMs\":-1");
    ck_assert_int_eq(results(), 3);
    SK_LIST_FOREACH (struct lc_held, held, &f.replica->finishes, finish)
        ck_assert_int_eq(held->kind, LC_FINISH_REJECT);
    ck_assert_int_eq(waiting_jobs(), 0);
    finish_all();
    ck_assert_int_eq(atomic_load(&f.replica->held_count), 0);
    fake_stop(&f);
}
END_TEST

START_TEST(test_drain)
{
    struct lc_job *job;

    fake_start(&f, NULL);
    fake_send(&f, "ensure", ID, "1", "");
    fake_send(&f, "stop", ID, "2", "");
    job = fake_take(&f);
    ck_assert_int_gt(lc_dispatch_want(f.replica), 0);
    lc_replica_drain(f.replica);
    ck_assert_int_eq(lc_dispatch_want(f.replica), 0);
    lc_dispatch_inbox(f.replica);
    ck_assert_int_eq(lc_job_cancelled(job), LC_CANCEL_DRAIN);
    ck_assert_int_eq(results(), 1);
    fake_send(&f, "ensure", OTHER, "3", ""); /* came while the pull was being stopped */
    ck_assert_int_eq(waiting_jobs(), 0);
    ck_assert(!lc_replica_drained(f.replica));
    fake_end(&f, job, LC_OUTCOME_CALLED_BACK, SK_ERR_CANCELLED, 0);
    ck_assert_int_eq(results(), 3);
    SK_LIST_FOREACH (struct lc_held, held, &f.replica->finishes, finish)
        ck_assert_int_eq(held->kind, LC_FINISH_NAK);
    finish_all();
    ck_assert(lc_replica_drained(f.replica));
    fake_stop(&f);
}
END_TEST

static void tiny(struct lc_settings *s)
{
    s->total_limit = 2;
}

START_TEST(test_back_pressure)
{
    fake_start(&f, tiny);
    ck_assert_int_eq(lc_dispatch_want(f.replica), 2);
    fake_send(&f, "ensure", ID, "1", "");
    fake_send(&f, "ensure", ID, "2", "");
    ck_assert_int_eq(lc_dispatch_want(f.replica), 0);
    fake_end(&f, fake_take(&f), LC_OUTCOME_DONE, SK_OK, 0);
    finish_all();
    ck_assert_int_eq(lc_dispatch_want(f.replica), 1);
    lc_note_store(f.replica, false);
    ck_assert_int_eq(lc_dispatch_want(f.replica), 0);
    lc_note_store(f.replica, true);
    lc_note_lease(f.replica, false);
    ck_assert_int_eq(lc_dispatch_want(f.replica), 0);
    fake_stop(&f);
}
END_TEST

START_TEST(test_backoff)
{
    fake_start(&f, NULL);
    for (int n = 0; n < 200; n++) {
        int64_t expected = n < 6 ? 1000LL << n : 60000;
        int64_t ms = lc_backoff_ms(&f.sched, 1000, 60000, n);

        ck_assert_int_ge(ms, expected * 8 / 10);
        ck_assert_int_le(ms, expected * 12 / 10);
    }
    ck_assert_int_le(lc_backoff_ms(&f.sched, 1000, 60000, 1000000), 72000);
    fake_stop(&f);
}
END_TEST

/* A provider that says when to come again is believed, within reason; nobody else's hint counts. */
START_TEST(test_retry_after)
{
    static const struct {
        enum sk_code code;
        int64_t asked_ms, backoff_ms, expected_ms;
    } rows[] = {
        {SK_ERR_PROVIDER_ERROR, 0, 1000, 1000},
        {SK_ERR_PROVIDER_ERROR, 7000, 1000, 7000},
        {SK_ERR_PROVIDER_TIMEOUT, 7000, 1000, 7000},
        {SK_ERR_PROVIDER_ERROR, 500, 1000, 1000},
        {SK_ERR_PROVIDER_ERROR, 86400000, 1000, LC_RETRY_AFTER_MAX_MS},
        {SK_ERR_PROVIDER_ERROR, 86400000, 600000, 600000},
        {SK_ERR_LEASE_UNAVAILABLE, 7000, 1000, 1000},
    };
    struct lc_job *job;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sk_error cause = {.code = rows[i].code, .retry_after_ms = rows[i].asked_ms};

        ck_assert_int_eq(lc_retry_in_ms(&cause, rows[i].backoff_ms), rows[i].expected_ms);
    }
    /* Also before anything is claimed: the commands wait with their job. */
    fake_start(&f, NULL);
    fake_send(&f, "ensure", ID, "a", ",\"deadlineMs\":60000");
    job = fake_take(&f);
    sk_fail(&job->err, SK_ERR_PROVIDER_ERROR, "find: HTTP 429");
    job->err.retry_after_ms = 9000;
    fake_end(&f, job, LC_OUTCOME_OUTAGE, SK_OK, 0);
    fake_advance(&f, 8900);
    ck_assert_int_eq(waiting_jobs(), 0);
    fake_advance(&f, 200);
    ck_assert_int_eq(waiting_jobs(), 1);
    fake_stop(&f);
}
END_TEST

START_TEST(test_internal_jobs)
{
    struct lc_job *job;

    fake_start(&f, NULL);
    lc_dispatch_post(f.replica, LC_JOB_RECOVER, ID);
    lc_dispatch_post(f.replica, LC_JOB_RECOVER, ID);
    lc_dispatch_inbox(f.replica);
    ck_assert_int_eq(waiting_jobs(), 1);
    job = fake_take(&f);
    ck_assert_int_eq(job->kind, LC_JOB_RECOVER);
    /* Somebody works on it: a second post is superfluous. */
    lc_dispatch_post(f.replica, LC_JOB_IDLE_STOP, ID);
    lc_dispatch_inbox(f.replica);
    fake_end(&f, job, LC_OUTCOME_DONE, SK_OK, 0);
    ck_assert_int_eq(waiting_jobs(), 0);
    ck_assert_uint_eq(sk_map_count(&f.replica->queues), 0);
    fake_stop(&f);
}
END_TEST

SK_CHECK_MAIN("lifecycle dispatcher", test_one_worker_per_sandbox, test_commands_do_not_wait_behind_housekeeping,
              test_hints_reach_those_that_wait_for_a_retry,
              test_a_parked_command_that_matters_twice_asks_for_its_result_again, test_a_thousand_are_one,
              test_only_neighbours_of_one_meaning_ride_together, test_delete_overtakes,
              test_delete_wakes_a_parked_queue, test_waiting_is_bounded, test_deadline_while_busy,
              test_deadline_while_its_own_operation_goes_on, test_outage_never_kills_a_command,
              test_provider_outage_ends_a_command_that_was_answered_before, test_signs_of_life,
              test_hints_and_polls_wake, test_a_twin_waits_for_the_stored_result,
              test_own_failures_end_in_the_dead_letters, test_bad_input_is_refused_at_once, test_drain,
              test_back_pressure, test_backoff, test_retry_after, test_internal_jobs)
