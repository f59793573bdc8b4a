/* SPDX-License-Identifier: Apache-2.0
 *
 * Making and ending the Mongo store, and its table of operations. */
#include "common/store/mongo.h"

#include <stdlib.h>
#include <string.h>

#define LIST_BUDGET_US 1000000
#define SCAN_BUDGET_US 2000000

static const struct sk_store_ops mongo_ops = {
    .get = sk_mongo_get,
    .find = sk_mongo_find_identity,
    .insert = sk_mongo_insert,
    .cas = sk_mongo_cas,
    .remove = sk_mongo_remove,
    .heartbeat = sk_mongo_heartbeat,
    .scan = sk_mongo_scan,
    .scan_idle = sk_mongo_scan_idle,
    .get_many = sk_mongo_get_many,
    .outbox_pull = sk_mongo_outbox_pull,
    .timeline_apply = sk_mongo_timeline_apply,
    .timeline_list = sk_mongo_timeline_list,
    .timeline_of_commands = sk_mongo_timeline_of_commands,
    .command_find = sk_mongo_command_find,
    .command_find_many = sk_mongo_command_find_many,
    .command_put = sk_mongo_command_put,
    .quota_reserve = sk_mongo_quota_reserve,
    .quota_release = sk_mongo_quota_release,
    .quota_recount = sk_mongo_quota_recount,
    .quota_list = sk_mongo_quota_list,
    .source_state = sk_mongo_source_state,
    .list = sk_mongo_list,
    .stats = sk_mongo_stats,
    .setup = sk_mongo_setup,
    .ping = sk_mongo_ping,
};

static const char *const own_names[SK_MONGO_COLLECTION_COUNT] = {
    [SK_MONGO_INSTANCES] = "agent_sandbox_instances_v2",
    [SK_MONGO_OPERATIONS] = "sandkeep_operations",
    [SK_MONGO_COMMANDS] = "sandkeep_commands",
    [SK_MONGO_QUOTA] = "sandkeep_quota",
    [SK_MONGO_APPS] = "apps",
    [SK_MONGO_SKILLS] = "agent_skills",
};

static bool copy_names(struct sk_store_mongo *store, const struct sk_store_mongo_config *config)
{
    for (int i = 0; i < SK_MONGO_COLLECTION_COUNT; i++) {
        const char *name = own_names[i];

        if (i == SK_MONGO_APPS && config->apps_collection != NULL)
            name = config->apps_collection;
        if (i == SK_MONGO_SKILLS && config->skills_collection != NULL)
            name = config->skills_collection;
        if (name[0] == '\0' || !sk_copy(store->names[i], sizeof(store->names[i]), name))
            return false;
    }
    return true;
}

int sk_store_mongo_new(const struct sk_store_mongo_config *config, const struct sk_sched *sched, struct sk_store *out,
                       struct sk_error *err)
{
    struct sk_store_mongo *store = calloc(1, sizeof(*store));

    memset(out, 0, sizeof(*out));
    if (store == NULL)
        return sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    store->sched = sched;
    store->source_check = config->source_check;
    store->list_budget_us = LIST_BUDGET_US;
    store->scan_budget_us = SCAN_BUDGET_US;
    pthread_mutex_init(&store->lock, NULL);
    sk_mongo_combiner_init(&store->records, SK_MONGO_INSTANCES, SK_MONGO_GET, "sandboxId");
    sk_mongo_combiner_init(&store->results, SK_MONGO_COMMANDS, SK_MONGO_COMMAND, "_id");
    pthread_mutex_init(&store->stats_lock, NULL);
    pthread_mutex_init(&store->source_lock, NULL);
    out->ops = &mongo_ops;
    out->self = store;
    if (!copy_names(store, config)) {
        sk_fail(err, SK_ERR_INVALID_REQUEST, "the name of a source collection is empty or too long");
        goto fail;
    }
    if (sk_mongo_connect(store, config, err) != 0)
        goto fail;
    return 0;
fail:
    sk_store_mongo_free(out);
    return -1;
}

void sk_store_mongo_free(struct sk_store *store)
{
    struct sk_store_mongo *self = store->self;

    if (self == NULL)
        return;
    sk_mongo_disconnect(self);
    sk_mongo_combiner_fini(&self->records);
    sk_mongo_combiner_fini(&self->results);
    pthread_mutex_destroy(&self->lock);
    pthread_mutex_destroy(&self->stats_lock);
    pthread_mutex_destroy(&self->source_lock);
    free(self);
    memset(store, 0, sizeof(*store));
}
