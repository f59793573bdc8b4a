/* SPDX-License-Identifier: Apache-2.0
 *
 * Indexes (reference §1.4 and what our own queries need), ping, and the check of a sandbox's source. Indexes that exist
 * with the same keys are left as they are, whoever made them and whatever they are called. FastGPT may drop those it
 * does not know when it synchronises its models, so setup may be run again at any time. */
#include "common/log/log.h"
#include "common/store/instance_bson.h"
#include "common/store/mongo.h"

#include <stdio.h>
#include <string.h>

#define CODE_NAMESPACE_NOT_FOUND   26
#define CODE_OPTIONS_CONFLICT      85
#define CODE_KEY_SPECS_CONFLICT    86
#define CODE_DUPLICATE_KEY         11000
#define SOURCE_COLLECTION_CHECK_US (30LL * 1000000) /* how long the existence of a source collection is believed */
#define INDEX_KEYS_MAX             3

struct index_spec {
    enum sk_mongo_collection collection;
    struct {
        const char *field;
        int direction;
    } keys[INDEX_KEYS_MAX];
    bool unique, sparse;
    int64_t expire_seconds;  /* -1 = no TTL */
    bool unique_if_possible; /* made without `unique` when documents that are there already forbid it */
};

static const struct index_spec specs[] = {
    /* FastGPT's own. */
    {SK_MONGO_INSTANCES, {{"provider", 1}, {"sandboxId", 1}}, .unique = true, .expire_seconds = -1},
    {SK_MONGO_INSTANCES, {{"sourceType", 1}, {"sourceId", 1}, {"userId", 1}}, .unique = true, .expire_seconds = -1},
    {SK_MONGO_INSTANCES, {{"sourceType", 1}, {"status", 1}, {"provider", 1}}, .expire_seconds = -1},
    {SK_MONGO_INSTANCES, {{"status", 1}, {"lastActiveAt", 1}}, .expire_seconds = -1},
    {SK_MONGO_INSTANCES, {{"status", 1}, {"operation.heartbeatAt", 1}}, .expire_seconds = -1},
    /* Ours. A sandbox id is one record, at whatever provider. */
    {SK_MONGO_INSTANCES, {{"sandboxId", 1}}, .unique = true, .expire_seconds = -1, .unique_if_possible = true},
    {SK_MONGO_INSTANCES, {{"outbox.id", 1}}, .sparse = true, .expire_seconds = -1},
    {SK_MONGO_INSTANCES, {{"lastActiveAt", 1}}, .expire_seconds = -1},
    {SK_MONGO_INSTANCES, {{"createdAt", 1}}, .expire_seconds = -1},
    {SK_MONGO_INSTANCES, {{"teamId", 1}, {"lastActiveAt", 1}}, .expire_seconds = -1},
    {SK_MONGO_INSTANCES, {{"sourceId", 1}, {"lastActiveAt", 1}}, .expire_seconds = -1},
    {SK_MONGO_INSTANCES, {{"userId", 1}, {"lastActiveAt", 1}}, .expire_seconds = -1},
    {SK_MONGO_OPERATIONS, {{"sandboxId", 1}, {"epoch", -1}}, .expire_seconds = -1},
    {SK_MONGO_OPERATIONS, {{"expiresAt", 1}}, .expire_seconds = 0},
    {SK_MONGO_COMMANDS, {{"at", 1}}, .expire_seconds = 86400},
    {SK_MONGO_QUOTA, {{"held", 1}}, .unique = true, .sparse = true, .expire_seconds = -1},
    {SK_MONGO_QUOTA, {{"free", 1}}, .sparse = true, .expire_seconds = -1},
};
#define SPEC_COUNT (sizeof(specs) / sizeof(specs[0]))

struct existing {
    const struct index_spec *spec;
    bool found, unique;
};

/* Has this index of the server the keys of the wanted one, in the same order and direction? */
static bool compare_index(void *arg, const bson_t *index)
{
    struct existing *existing = arg;
    bson_iter_t iter, keys;
    int count = 0;

    if (!bson_iter_init_find(&iter, index, "key") || !bson_iter_recurse(&iter, &keys))
        return true;
    for (; bson_iter_next(&keys); count++) {
        if (count == INDEX_KEYS_MAX || existing->spec->keys[count].field == NULL ||
            strcmp(existing->spec->keys[count].field, bson_iter_key(&keys)) != 0 || !BSON_ITER_HOLDS_NUMBER(&keys) ||
            bson_iter_as_int64(&keys) != existing->spec->keys[count].direction)
            return true;
    }
    if (count < INDEX_KEYS_MAX && existing->spec->keys[count].field != NULL)
        return true;
    existing->found = true;
    existing->unique = bson_iter_init_find(&iter, index, "unique") && bson_iter_as_bool(&iter);
    return false;
}

static void append_index(bson_t *indexes, const struct index_spec *spec, bool unique)
{
    bson_t index, keys;
    char name[128];
    size_t used = 0;

    BSON_APPEND_DOCUMENT_BEGIN(indexes, "0", &index);
    BSON_APPEND_DOCUMENT_BEGIN(&index, "key", &keys);
    for (int i = 0; i < INDEX_KEYS_MAX && spec->keys[i].field != NULL; i++) {
        BSON_APPEND_INT32(&keys, spec->keys[i].field, spec->keys[i].direction);
        /* The name that every driver gives by default, mongoose included. */
        used += (size_t)snprintf(name + used, sizeof(name) - used, "%s%s_%d", i > 0 ? "_" : "", spec->keys[i].field,
                                 spec->keys[i].direction);
    }
    bson_append_document_end(&index, &keys);
    BSON_APPEND_UTF8(&index, "name", name);
    if (unique)
        BSON_APPEND_BOOL(&index, "unique", true);
    if (spec->sparse)
        BSON_APPEND_BOOL(&index, "sparse", true);
    if (spec->expire_seconds >= 0)
        BSON_APPEND_INT64(&index, "expireAfterSeconds", spec->expire_seconds);
    bson_append_document_end(indexes, &index);
}

static int create_index(struct sk_mongo_op *op, const struct index_spec *spec, bool unique, int *code,
                        struct sk_error *err)
{
    bson_t command = BSON_INITIALIZER, indexes;
    int result;

    BSON_APPEND_UTF8(&command, "createIndexes", op->store->names[spec->collection]);
    BSON_APPEND_ARRAY_BEGIN(&command, "indexes", &indexes);
    append_index(&indexes, spec, unique);
    bson_append_array_end(&command, &indexes);
    result = sk_mongo_admin(op, &command, code, err);
    bson_destroy(&command);
    return result;
}

static int ensure_index(struct sk_mongo_op *op, const struct index_spec *spec, struct sk_error *err)
{
    struct existing existing = {.spec = spec};
    bson_t *command = BCON_NEW("listIndexes", BCON_UTF8(op->store->names[spec->collection]));
    bson_t reply;
    int result = sk_mongo_ask(op, command, &reply, err), code = 0;

    if (result == 0)
        sk_mongo_first_batch(&reply, compare_index, &existing);
    else if (sk_mongo_reply_code(&reply) == CODE_NAMESPACE_NOT_FOUND)
        result = 0; /* no collection yet: creating the index makes it */
    bson_destroy(&reply);
    bson_destroy(command);
    if (result != 0)
        return -1;
    if (existing.found) {
        if (spec->unique && !existing.unique && !spec->unique_if_possible)
            SK_LOG_WARN("index exists but is not unique", SK_F("collection", op->store->names[spec->collection]),
                        SK_F("field", spec->keys[0].field));
        return 0;
    }
    result = create_index(op, spec, spec->unique, &code, err);
    if (result != 0 && code == CODE_DUPLICATE_KEY && spec->unique_if_possible) {
        SK_LOG_WARN("index cannot be unique: two records hold the same value",
                    SK_F("collection", op->store->names[spec->collection]), SK_F("field", spec->keys[0].field));
        result = create_index(op, spec, false, &code, err);
    }
    /* Somebody made it at the same moment, in other words. */
    if (result != 0 && (code == CODE_OPTIONS_CONFLICT || code == CODE_KEY_SPECS_CONFLICT))
        result = 0;
    return result;
}

int sk_mongo_setup(void *self, struct sk_call *call, struct sk_error *err)
{
    struct sk_mongo_op op;
    int result = 0;

    if (sk_mongo_begin(sk_mongo_self(self), call, SK_MONGO_SETUP, &op, err) != 0)
        return -1;
    op.client->timeout_ms = SK_MONGO_SETUP_MS;
    for (size_t i = 0; i < SPEC_COUNT && result == 0; i++) {
        result = ensure_index(&op, &specs[i], err);
        if (result != 0)
            sk_fail_context(err, "index %s.%s", op.store->names[specs[i].collection], specs[i].keys[0].field);
    }
    sk_mongo_end(&op);
    return result;
}

int sk_mongo_ping(void *self, struct sk_call *call, struct sk_error *err)
{
    bson_t *command = BCON_NEW("ping", BCON_INT32(1));
    struct sk_mongo_op op;
    bson_t reply;
    int result;

    result = sk_mongo_begin(sk_mongo_self(self), call, SK_MONGO_PING, &op, err);
    if (result == 0) {
        result = sk_mongo_ask(&op, command, &reply, err);
        bson_destroy(&reply);
        sk_mongo_end(&op);
    }
    bson_destroy(command);
    return result;
}

/* ---- the source of a sandbox ---------------------------------------------------------------- */

static bool decode_source(void *arg, const bson_t *doc)
{
    struct sk_source_state *out = arg;
    char oid[25];
    bson_iter_t iter;

    out->active = true;
    if (bson_iter_init_find(&iter, doc, "deleteTime"))
        out->active = BSON_ITER_HOLDS_NULL(&iter) || BSON_ITER_HOLDS_UNDEFINED(&iter);
    if (bson_iter_init_find(&iter, doc, "teamId")) {
        if (BSON_ITER_HOLDS_OID(&iter)) {
            bson_oid_to_string(bson_iter_oid(&iter), oid);
            sk_copy_cut(out->team_id, sizeof(out->team_id), oid);
        } else if (!sk_bson_text(&iter, out->team_id, sizeof(out->team_id))) {
            out->team_id[0] = '\0';
        }
    }
    return true;
}

static bool note_collection(void *arg, const bson_t *doc)
{
    (void)doc;
    *(bool *)arg = true;
    return false;
}

/* Does FastGPT's collection exist? Without it there is nothing to check against (one-machine stack). */
static int collection_exists(struct sk_mongo_op *op, enum sk_mongo_collection collection, bool *exists,
                             struct sk_error *err)
{
    struct sk_store_mongo *store = op->store;
    int slot = collection == SK_MONGO_APPS ? 0 : 1;
    int64_t now_us = sk_mono_us(store->sched);
    bson_t *command, reply;
    int result;

    pthread_mutex_lock(&store->source_lock);
    *exists = store->source_exists[slot];
    result =
        store->source_checked_us[slot] != 0 && now_us - store->source_checked_us[slot] < SOURCE_COLLECTION_CHECK_US;
    pthread_mutex_unlock(&store->source_lock);
    if (result)
        return 0;
    command = BCON_NEW("listCollections", BCON_INT32(1), "filter", "{", "name", BCON_UTF8(store->names[collection]),
                       "}", "nameOnly", BCON_BOOL(true));
    result = sk_mongo_ask(op, command, &reply, err);
    *exists = false;
    if (result == 0) {
        sk_mongo_first_batch(&reply, note_collection, exists);
        pthread_mutex_lock(&store->source_lock);
        store->source_exists[slot] = *exists;
        store->source_checked_us[slot] = now_us;
        pthread_mutex_unlock(&store->source_lock);
    }
    bson_destroy(&reply);
    bson_destroy(command);
    return result;
}

int sk_mongo_source_state(void *self, struct sk_call *call, const struct sk_identity *identity,
                          struct sk_source_state *out, struct sk_error *err)
{
    struct sk_store_mongo *store = sk_mongo_self(self);
    /* workflowBuilder sandboxes belong to an App, as their leases do. */
    enum sk_mongo_collection collection =
        identity->source_type == SK_SOURCE_SKILL_EDIT ? SK_MONGO_SKILLS : SK_MONGO_APPS;
    bson_t *projection, filter = BSON_INITIALIZER;
    bool found = false, exists = true;
    struct sk_mongo_op op;
    bson_oid_t oid;
    int result = 0;

    memset(out, 0, sizeof(*out));
    if (!store->source_check) {
        out->known = out->active = true;
        bson_destroy(&filter);
        return 0;
    }
    if (sk_mongo_begin(store, call, SK_MONGO_SOURCE, &op, err) != 0) {
        bson_destroy(&filter);
        return -1;
    }
    projection = BCON_NEW("deleteTime", BCON_INT32(1), "teamId", BCON_INT32(1));
    if (bson_oid_is_valid(identity->source_id, strlen(identity->source_id))) {
        bson_oid_init_from_string(&oid, identity->source_id);
        BSON_APPEND_OID(&filter, "_id", &oid);
        result = sk_mongo_find_one(&op, collection, &filter, projection, decode_source, out, &found, err);
    }
    if (result == 0 && !found) {
        bson_reinit(&filter);
        BSON_APPEND_UTF8(&filter, "_id", identity->source_id);
        result = sk_mongo_find_one(&op, collection, &filter, projection, decode_source, out, &found, err);
    }
    if (result == 0 && !found)
        result = collection_exists(&op, collection, &exists, err);
    sk_mongo_end(&op);
    bson_destroy(projection);
    bson_destroy(&filter);
    if (result != 0)
        return -1;
    out->known = found || !exists;
    if (!exists && !found)
        out->active = true;
    return 0;
}
