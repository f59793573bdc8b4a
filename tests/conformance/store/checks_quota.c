/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks of quota reservations: never more than the limit, whoever comes at once, and a recount that mends what crashes
 * and changed limits leave behind. */
#include "tests/conformance/store/fixture.h"

#include <stdio.h>
#include <string.h>

#define TASKS_MAX 64

static void scope_name(struct sk_store_conformance *c, char out[SK_TEAM_ID_SIZE + 8], const char *kind)
{
    char id[SK_ULID_SIZE];

    sk_ulid(c->sched, id);
    /* A hostile team id, as far as separators go. */
    snprintf(out, SK_TEAM_ID_SIZE + 8, "team:conformance-%s-%s#00000001/x", kind, id);
}

static bool reserve(struct sk_store_conformance *c, const char *scope, int64_t limit, const char *holder, bool expected)
{
    struct sk_error err = {0};
    bool granted = !expected;

    CHECK(OPS->quota_reserve(SELF, NULL, scope, limit, holder, &granted, &err) == 0, "reserve: %s", err.message);
    CHECK(granted == expected, "%s of limit %lld: %s", holder, (long long)limit, granted ? "granted" : "refused");
    return true;
}

static bool release(struct sk_store_conformance *c, const char *scope, const char *holder)
{
    struct sk_error err = {0};

    CHECK(OPS->quota_release(SELF, scope, holder, &err) == 0, "release: %s", err.message);
    return true;
}

static bool check_order(struct sk_store_conformance *c)
{
    char scope[SK_TEAM_ID_SIZE + 8], other[SK_TEAM_ID_SIZE + 8];

    scope_name(c, scope, "order");
    scope_name(c, other, "other");
    return reserve(c, scope, 0, "app-a", false) && reserve(c, scope, 2, "app-a", true) &&
           reserve(c, scope, 2, "app-a", true) && reserve(c, scope, 2, "app-b", true) &&
           reserve(c, scope, 2, "app-c", false) && reserve(c, other, 2, "app-c", true) &&
           release(c, scope, "app-nobody") && release(c, scope, "app-a") && release(c, scope, "app-a") &&
           reserve(c, scope, 2, "app-c", true) && reserve(c, scope, 2, "app-a", false) &&
           reserve(c, scope, 2, "app-b", true) &&
           /* A raised limit, then a lowered one: nothing new until enough are gone, wherever their slots are. */
           reserve(c, scope, 5, "app-d", true) && reserve(c, scope, 5, "app-e", true) &&
           reserve(c, scope, 5, "app-f", true) && release(c, scope, "app-b") && release(c, scope, "app-c") &&
           reserve(c, scope, 3, "app-g", false) && release(c, scope, "app-d") && reserve(c, scope, 3, "app-g", true) &&
           reserve(c, scope, 3, "app-h", false) && reserve(c, scope, 3, "app-e", true);
}

struct crowd {
    struct sk_store_conformance *c;
    char scope[SK_TEAM_ID_SIZE + 8];
    int64_t limit;
    int turns;
    bool same_holder;
    atomic_int held, most, granted, refused, failed;
};

static void crowd_in(void *arg, int index)
{
    struct crowd *crowd = arg;
    struct sk_store_conformance *c = crowd->c;
    char holder[SK_SANDBOX_ID_SIZE];

    snprintf(holder, sizeof(holder), "app-%016d", crowd->same_holder ? 0 : index);
    for (int turn = 0; turn < crowd->turns; turn++) {
        struct sk_error err = {0};
        bool granted = false;
        int now, most;

        if (OPS->quota_reserve(SELF, NULL, crowd->scope, crowd->limit, holder, &granted, &err) != 0) {
            atomic_fetch_add(&crowd->failed, 1);
            continue;
        }
        atomic_fetch_add(granted ? &crowd->granted : &crowd->refused, 1);
        if (!granted || crowd->same_holder)
            continue;
        /* Counted only while surely held: from after the grant to before the release. */
        now = atomic_fetch_add(&crowd->held, 1) + 1;
        for (most = atomic_load(&crowd->most); now > most && !atomic_compare_exchange_weak(&crowd->most, &most, now);)
            ;
        if (turn + 1 == crowd->turns)
            continue; /* the last one is kept */
        atomic_fetch_sub(&crowd->held, 1);
        if (OPS->quota_release(SELF, crowd->scope, holder, &err) != 0)
            atomic_fetch_add(&crowd->failed, 1);
    }
}

static bool check_crowd(struct sk_store_conformance *c)
{
    int tasks = c->tasks < TASKS_MAX ? c->tasks : TASKS_MAX;
    struct crowd crowd = {.c = c, .limit = tasks / 3, .turns = 3};

    scope_name(c, crowd.scope, "crowd");
    sc_parallel(c, tasks, crowd_in, &crowd);
    CHECK(crowd.failed == 0, "%d reservations failed", crowd.failed);
    CHECK(crowd.most <= crowd.limit, "%d slots of %lld were held at once", crowd.most, (long long)crowd.limit);
    CHECK(crowd.granted > 0, "nobody got a slot");
    /* What was kept and what is free add up to the limit. */
    for (int64_t i = crowd.held; i < crowd.limit; i++) {
        char holder[SK_SANDBOX_ID_SIZE];

        snprintf(holder, sizeof(holder), "app-later-%lld", (long long)i);
        if (!reserve(c, crowd.scope, crowd.limit, holder, true))
            return false;
    }
    if (!reserve(c, crowd.scope, crowd.limit, "app-one-more", false))
        return false;

    /* Everybody for the same sandbox: one slot. */
    crowd = (struct crowd){.c = c, .limit = 4, .turns = 1, .same_holder = true};
    scope_name(c, crowd.scope, "same");
    sc_parallel(c, tasks < 16 ? tasks : 16, crowd_in, &crowd);
    CHECK(crowd.failed == 0 && crowd.refused == 0, "%d failed, %d refused for one sandbox", crowd.failed,
          crowd.refused);
    return reserve(c, crowd.scope, 4, "app-x", true) && reserve(c, crowd.scope, 4, "app-y", true) &&
           reserve(c, crowd.scope, 4, "app-z", true) && reserve(c, crowd.scope, 4, "app-too-many", false);
}

static bool recount(struct sk_store_conformance *c, const char *scope, int64_t grace_ms, int64_t expected)
{
    struct sk_error err = {0};
    int64_t changed = -1;

    CHECK(OPS->quota_recount(SELF, NULL, scope, grace_ms, &changed, &err) == 0, "recount: %s", err.message);
    CHECK(changed == expected, "a recount changed %lld slots instead of %lld", (long long)changed, (long long)expected);
    return true;
}

/* A record of a team of its own, running. */
static bool team_record(struct sk_store_conformance *c, const char *team, struct sk_instance *out)
{
    struct sk_instance after;

    if (!sc_running(c, out))
        return false;
    after = *out;
    sk_copy_cut(after.team_id, sizeof(after.team_id), team);
    return sc_apply(c, out, &after, NULL, "team");
}

static bool check_recount(struct sk_store_conformance *c)
{
    char scope[SK_TEAM_ID_SIZE + 8];
    struct sk_instance held, unheld, stopped, after;
    struct sk_event event;

    scope_name(c, scope, "recount");
    if (!team_record(c, scope + 5, &held) || !team_record(c, scope + 5, &unheld) ||
        !team_record(c, scope + 5, &stopped))
        return false;
    sc_claim(c, &stopped, &after, &event, SK_OP_STOP, "replica-a");
    if (!sc_apply(c, &stopped, &after, &event, "stop"))
        return false;
    sc_complete(c, &stopped, &after, &event);
    if (!sc_apply(c, &stopped, &after, &event, "stop"))
        return false;
    if (!reserve(c, scope, 3, held.sandbox_id, true) || !reserve(c, scope, 3, stopped.sandbox_id, true) ||
        !reserve(c, scope, 3, "app-dead00000000dead", true) || !reserve(c, scope, 3, unheld.sandbox_id, false))
        return false;
    /* Young reservations are left alone, but the record without one gets it, limit or not. */
    if (!recount(c, scope, 3600000, 1) || !recount(c, scope, 3600000, 0) || !reserve(c, scope, 4, "app-more", false))
        return false;
    /* Old ones: the stopped record and the one without a record lose theirs. */
    sk_sleep_ms(c->sched, 5);
    if (!recount(c, scope, 1, 2) || !recount(c, scope, 1, 0))
        return false;
    return reserve(c, scope, 4, "app-more", true) && reserve(c, scope, 4, "app-even-more", true) &&
           reserve(c, scope, 4, "app-too-much", false) && reserve(c, scope, 4, held.sandbox_id, true) &&
           reserve(c, scope, 4, unheld.sandbox_id, true);
}

/* A recount of everything mends this scope too, also when nobody holds a slot of it any more. */
static bool check_recount_all(struct sk_store_conformance *c)
{
    char scope[SK_TEAM_ID_SIZE + 8];
    struct sk_instance running;
    struct sk_error err = {0};
    int64_t changed = -1;

    scope_name(c, scope, "all");
    if (!reserve(c, scope, 1, "app-dead00000000beef", true))
        return false;
    sk_sleep_ms(c->sched, 5);
    CHECK(OPS->quota_recount(SELF, NULL, NULL, 1, &changed, &err) == 0, "recount: %s", err.message);
    CHECK(changed >= 1, "a recount of all scopes changed nothing");
    if (!reserve(c, scope, 1, "app-next", true) || !release(c, scope, "app-next") ||
        !team_record(c, scope + 5, &running))
        return false;
    CHECK(OPS->quota_recount(SELF, NULL, NULL, 3600000, &changed, &err) == 0, "recount: %s", err.message);
    return reserve(c, scope, 1, "app-next", false) && reserve(c, scope, 1, running.sandbox_id, true);
}

bool sk_store_check_quota(struct sk_store_conformance *c)
{
    return check_order(c) && check_crowd(c) && check_recount(c) && check_recount_all(c);
}
