/* SPDX-License-Identifier: Apache-2.0
 *
 * Stored results of commands: sandkeep_commands, _id = "<sandboxId>/<commandId>", kept for 24 h by a TTL index
 * (contract/lifecycle.md §2.2, contract/messaging.md §2). A result that is there already is never changed: the first
 * answer is the answer. */
#include "common/store/instance_bson.h"
#include "common/store/mongo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECORD_ID_SIZE (SK_SANDBOX_ID_SIZE + SK_COMMAND_ID_SIZE + 1)
#define PUT_MAX        1000              /* documents of one insert */
#define PUT_BYTES_MAX  (8 * 1024 * 1024) /* bytes of one insert: well below a message's limit of 48 MB */
#define RESULT_MAX     (1024 * 1024)

void sk_command_record_fini(struct sk_command_record *record)
{
    free(record->result);
    record->result = NULL;
}

static void record_id(char out[RECORD_ID_SIZE], const char *sandbox_id, const char *command_id)
{
    snprintf(out, RECORD_ID_SIZE, "%s/%s", sandbox_id, command_id);
}

static bool decode_record(void *arg, const bson_t *doc)
{
    struct sk_command_record *out = arg;
    uint32_t length;
    bson_iter_t iter;
    const char *text;

    if (!bson_iter_init(&iter, doc))
        return false;
    while (bson_iter_next(&iter)) {
        const char *key = bson_iter_key(&iter);

        if (strcmp(key, "bodyHash") == 0) {
            (void)sk_bson_text(&iter, out->body_hash, sizeof(out->body_hash));
        } else if (strcmp(key, "at") == 0) {
            (void)sk_bson_date(&iter, &out->at);
        } else if (strcmp(key, "result") == 0 && BSON_ITER_HOLDS_UTF8(&iter) && out->result == NULL) {
            text = bson_iter_utf8(&iter, &length);
            out->result = strndup(text, length);
        }
    }
    return true;
}

int sk_mongo_command_find(void *self, struct sk_call *call, const char *sandbox_id, const char *command_id,
                          struct sk_command_record *out, bool *found, struct sk_error *err)
{
    struct sk_store_mongo *store = sk_mongo_self(self);
    char id[RECORD_ID_SIZE];
    int result;

    memset(out, 0, sizeof(*out));
    sk_copy_cut(out->sandbox_id, sizeof(out->sandbox_id), sandbox_id);
    sk_copy_cut(out->command_id, sizeof(out->command_id), command_id);
    record_id(id, sandbox_id, command_id);
    result = sk_mongo_find_by_key(store, &store->results, call, id, decode_record, out, found, err);
    if (result == 0 && *found && out->result == NULL) {
        *found = false;
        result = sk_fail(err, SK_ERR_INTERNAL, "the stored result of the command cannot be read");
    }
    if (result != 0)
        sk_command_record_fini(out);
    return result;
}

struct find_many {
    bool (*fn)(void *arg, struct sk_command_record *record);
    void *arg;
    size_t prefix; /* of every _id: "<sandboxId>/" */
    struct sk_command_record record;
    bool unreadable;
};

static bool hand_out_record(void *arg, const bson_t *doc)
{
    struct find_many *many = arg;
    char id[RECORD_ID_SIZE];
    bson_iter_t iter;
    bool more = true;

    many->record.body_hash[0] = '\0';
    many->record.at = 0;
    if (!bson_iter_init_find(&iter, doc, "_id") || !sk_bson_text(&iter, id, sizeof(id)) || strlen(id) < many->prefix)
        return true;
    sk_copy_cut(many->record.command_id, sizeof(many->record.command_id), id + many->prefix);
    if (!decode_record(&many->record, doc) || many->record.result == NULL)
        many->unreadable = true;
    else
        more = many->fn(many->arg, &many->record);
    sk_command_record_fini(&many->record);
    return more && !many->unreadable;
}

int sk_mongo_command_find_many(void *self, struct sk_call *call, const char *sandbox_id, const char *const *command_ids,
                               int count, bool (*fn)(void *arg, struct sk_command_record *record), void *arg,
                               struct sk_error *err)
{
    struct find_many many = {.fn = fn, .arg = arg, .prefix = strlen(sandbox_id) + 1};
    bson_t filter = BSON_INITIALIZER, opts = BSON_INITIALIZER, in, list;
    char id[RECORD_ID_SIZE], index[16];
    const char *position;
    struct sk_mongo_op op;
    int result;

    if (count <= 0)
        return 0;
    if (count > SK_COMMANDS_FIND_MAX)
        return sk_fail(err, SK_ERR_INTERNAL, "at most %d results can be looked for at once", SK_COMMANDS_FIND_MAX);
    sk_copy_cut(many.record.sandbox_id, sizeof(many.record.sandbox_id), sandbox_id);
    BSON_APPEND_DOCUMENT_BEGIN(&filter, "_id", &in);
    BSON_APPEND_ARRAY_BEGIN(&in, "$in", &list);
    for (int i = 0; i < count; i++) {
        record_id(id, sandbox_id, command_ids[i]);
        bson_uint32_to_string((uint32_t)i, &position, index, sizeof(index));
        BSON_APPEND_UTF8(&list, position, id);
    }
    bson_append_array_end(&in, &list);
    bson_append_document_end(&filter, &in);
    result = sk_mongo_begin(sk_mongo_self(self), call, SK_MONGO_COMMAND, &op, err);
    if (result == 0) {
        result = sk_mongo_find(&op, SK_MONGO_COMMANDS, &filter, &opts, hand_out_record, &many, err);
        sk_mongo_end(&op);
    }
    bson_destroy(&filter);
    bson_destroy(&opts);
    if (result == 0 && many.unreadable)
        result = sk_fail(err, SK_ERR_INTERNAL, "the stored result of a command cannot be read");
    return result;
}

static void mark_existing(const bson_t *reply, const struct sk_command_record *records, int count)
{
    bool refused[PUT_MAX] = {false};

    sk_mongo_mark_refused(reply, refused, count);
    for (int i = 0; i < count; i++) {
        if (refused[i] && records[i].existed != NULL)
            *records[i].existed = true;
    }
}

int sk_mongo_command_put(void *self, const struct sk_command_record *records, int count, struct sk_error *err)
{
    struct sk_store_mongo *store = sk_mongo_self(self);
    struct sk_mongo_op op;
    int result = 0;

    for (int i = 0; i < count; i++) {
        if (records[i].result == NULL || strlen(records[i].result) > RESULT_MAX)
            return sk_fail(err, SK_ERR_INTERNAL, "a command result has no text or more than %d bytes", RESULT_MAX);
    }
    if (count <= 0)
        return 0;
    if (sk_mongo_begin(store, NULL, SK_MONGO_COMMAND, &op, err) != 0)
        return -1;
    op.idempotent = true;
    for (int done = 0; done < count && result == 0;) {
        bson_t command = BSON_INITIALIZER, documents, document, reply;
        char id[RECORD_ID_SIZE], index[16];
        const char *position;
        size_t bytes = 0;
        int first = done;

        BSON_APPEND_UTF8(&command, "insert", store->names[SK_MONGO_COMMANDS]);
        BSON_APPEND_BOOL(&command, "ordered", false);
        BSON_APPEND_ARRAY_BEGIN(&command, "documents", &documents);
        for (; done < count && done - first < PUT_MAX && bytes < PUT_BYTES_MAX; done++) {
            const struct sk_command_record *record = &records[done];

            record_id(id, record->sandbox_id, record->command_id);
            bson_uint32_to_string((uint32_t)(done - first), &position, index, sizeof(index));
            BSON_APPEND_DOCUMENT_BEGIN(&documents, position, &document);
            BSON_APPEND_UTF8(&document, "_id", id);
            BSON_APPEND_UTF8(&document, "bodyHash", record->body_hash);
            BSON_APPEND_UTF8(&document, "result", record->result);
            BSON_APPEND_DATE_TIME(&document, "at", record->at);
            bson_append_document_end(&documents, &document);
            bytes += strlen(record->result) + RECORD_ID_SIZE;
        }
        bson_append_array_end(&command, &documents);
        /* Duplicates are results that are there already; everything else was written. */
        result = sk_mongo_write(&op, &command, NULL, &reply, err);
        if (result == 0)
            mark_existing(&reply, records + first, done - first);
        bson_destroy(&reply);
        bson_destroy(&command);
    }
    sk_mongo_end(&op);
    return result;
}
