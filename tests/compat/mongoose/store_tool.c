/* SPDX-License-Identifier: Apache-2.0
 *
 * The store from the command line, for tests in other languages: makes records and moves them the way the engine does.
 * Usage: sk-test-store URI COMMAND [ARGUMENTS]; prints one JSON document, exits 1 with a message when it cannot.
 *   setup                      creates the indexes
 *   new                        a new record, provisioning; prints its public view
 *   get ID                     the public view (with "malformed" when it is)
 *   claim ID OPERATION         claims, as an owner that takes over if it must
 *   phase ID PHASE | complete ID
 *   fail ID                    a failed try: released, with an error and the time of the next
 *   touch ID                   lastActiveAt = now */
#include "common/log/log.h"
#include "tests/conformance/store/fixture.h"

#include <mongoc/mongoc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int refuse(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    return 1;
}

static int show(const struct sk_instance *record)
{
    json_t *view = sk_instance_public_json(record);
    char *text = view != NULL ? json_dumps(view, JSON_COMPACT) : NULL;

    if (text == NULL)
        return refuse("show", "out of memory");
    puts(text);
    free(text);
    json_decref(view);
    return 0;
}

static void fail_try(struct sk_instance *after)
{
    after->operation.attempt++;
    after->operation.failed_at = sk_wall_ms(&sk_sched_system);
    after->operation.next_attempt_at = after->operation.failed_at + 1000;
    after->operation.owner[0] = '\0';
    strcpy(after->operation.error.code, "provider_error");
    strcpy(after->operation.error.detail, "HTTP 502");
}

static int run(struct sk_store_conformance *c, int argc, char **argv)
{
    static struct sk_instance record, after;
    const char *command = argv[2], *id = argc > 3 ? argv[3] : "", *argument = argc > 4 ? argv[4] : "";
    struct sk_error err = {0};
    struct sk_event event;
    bool found = false, has_event = true;

    if (strcmp(command, "setup") == 0)
        return OPS->setup(SELF, NULL, &err) == 0 ? 0 : refuse(command, err.message);
    if (strcmp(command, "new") == 0)
        return sc_insert(c, &record) ? show(&record) : refuse(command, c->failure);
    if (OPS->get(SELF, NULL, id, &record, &found, &err) != 0)
        return refuse(command, err.message);
    if (!found)
        return refuse(command, "no such record");
    if (strcmp(command, "get") == 0)
        return show(&record);
    if (strcmp(command, "claim") == 0) {
        sc_claim(c, &record, &after, &event, sk_op_parse(argument), "compat");
        if (after.operation.job_id[0] == '\0')
            sk_uuid4(&sk_sched_system, after.operation.job_id);
    } else if (strcmp(command, "phase") == 0) {
        sc_phase(c, &record, &after, &event, argument);
    } else if (strcmp(command, "complete") == 0) {
        sc_complete(c, &record, &after, &event);
    } else {
        after = record;
        has_event = false;
        if (strcmp(command, "fail") == 0)
            fail_try(&after);
        else if (strcmp(command, "touch") == 0)
            after.last_active_at = sk_wall_ms(&sk_sched_system);
        else
            return refuse(command, "unknown command");
    }
    if (!sc_apply(c, &record, &after, has_event ? &event : NULL, command))
        return refuse(command, c->failure);
    return show(&record);
}

int main(int argc, char **argv)
{
    struct sk_store store;
    struct sk_store_conformance c = {.store = &store, .sched = &sk_sched_system};
    struct sk_error err = {0};
    int status;

    if (argc < 3) {
        fprintf(stderr, "usage: %s URI COMMAND [ARGUMENTS]\n", argv[0]);
        return 2;
    }
    sk_log_set_level(SK_LOG_LEVEL_WARN);
    sk_store_mongo_init();
    if (sk_store_mongo_new(&(struct sk_store_mongo_config){.uri = argv[1], .pool_size = 1}, &sk_sched_system, &store,
                           &err) != 0)
        return refuse("store", err.message);
    status = run(&c, argc, argv);
    sk_store_mongo_free(&store);
    mongoc_cleanup();
    return status;
}
