/* SPDX-License-Identifier: Apache-2.0
 *
 * Running commands and naming their errors. The one question that matters after a failed write is whether it may have
 * been applied: the server's answer says so by its code, and without an answer the stream says whether the command had
 * left. Text is never looked at. A command that certainly had no effect is sent once more (when the URI's retryWrites
 * allows it); the driver's own retries are not used for writes, as they depend on the server's memory of the first
 * attempt, which a restart of the embedded server loses. */
#include "common/store/mongo.h"

#include <string.h>

static const char *const outcome_names[] = {"failed", "unknown", "cancelled", NULL};
static struct sk_metric failures = {
    .name = "sandkeep_store_failures_total",
    .help = "Store commands that failed, by what is known of their effect",
    .kind = SK_METRIC_COUNTER,
    .labels = {{"outcome", outcome_names}},
};
static struct sk_metric retries = {
    .name = "sandkeep_store_retries_total",
    .help = "Store commands sent a second time",
    .kind = SK_METRIC_COUNTER,
};

void sk_mongo_command_metrics(void)
{
    sk_metric_register(&failures);
    sk_metric_register(&retries);
}

/* Codes of the server (base/error_codes.yml of MongoDB). */
enum {
    CODE_HOST_UNREACHABLE = 6,
    CODE_HOST_NOT_FOUND = 7,
    CODE_UNAUTHORIZED = 13,
    CODE_AUTHENTICATION_FAILED = 18,
    CODE_LOCK_TIMEOUT = 24,
    CODE_LOCK_BUSY = 46,
    CODE_MAX_TIME_EXPIRED = 50,
    CODE_WRITE_CONCERN_FAILED = 64,
    CODE_NETWORK_TIMEOUT = 89,
    CODE_SHUTDOWN_IN_PROGRESS = 91,
    CODE_WRITE_CONFLICT = 112,
    CODE_PRIMARY_STEPPED_DOWN = 189,
    CODE_EXCEEDED_TIME_LIMIT = 262,
    CODE_SOCKET_EXCEPTION = 9001,
    CODE_NOT_PRIMARY_LEGACY = 10058,
    CODE_NOT_WRITABLE_PRIMARY = 10107,
    CODE_DUPLICATE_KEY = 11000,
    CODE_DUPLICATE_KEY_UPDATE = 11001,
    CODE_INTERRUPTED_AT_SHUTDOWN = 11600,
    CODE_INTERRUPTED_BY_STATE_CHANGE = 11602,
    CODE_DUPLICATE_KEY_CAPPED = 12582,
    CODE_NOT_PRIMARY_NO_SECONDARY_OK = 13435,
    CODE_NOT_PRIMARY_OR_SECONDARY = 13436,
};

enum verdict {
    VERDICT_REFUSED, /* our fault or a misconfiguration: certainly without effect, no use in repeating */
    VERDICT_FAILED,  /* the store's state: certainly without effect, may be repeated */
    VERDICT_UNKNOWN, /* may have been applied, or may be rolled back */
};

static enum verdict judge(int code)
{
    switch (code) {
    case CODE_NOT_PRIMARY_LEGACY:
    case CODE_NOT_WRITABLE_PRIMARY:
    case CODE_NOT_PRIMARY_NO_SECONDARY_OK:
    case CODE_LOCK_TIMEOUT:
    case CODE_LOCK_BUSY:
    case CODE_WRITE_CONFLICT:
    case CODE_UNAUTHORIZED:
    case CODE_AUTHENTICATION_FAILED:
        return VERDICT_FAILED;
    case CODE_HOST_UNREACHABLE:
    case CODE_HOST_NOT_FOUND:
    case CODE_MAX_TIME_EXPIRED:
    case CODE_WRITE_CONCERN_FAILED:
    case CODE_NETWORK_TIMEOUT:
    case CODE_SHUTDOWN_IN_PROGRESS:
    case CODE_PRIMARY_STEPPED_DOWN:
    case CODE_EXCEEDED_TIME_LIMIT:
    case CODE_SOCKET_EXCEPTION:
    case CODE_INTERRUPTED_AT_SHUTDOWN:
    case CODE_INTERRUPTED_BY_STATE_CHANGE:
    case CODE_NOT_PRIMARY_OR_SECONDARY:
        return VERDICT_UNKNOWN;
    default:
        return VERDICT_REFUSED;
    }
}

static bool is_duplicate(int code)
{
    return code == CODE_DUPLICATE_KEY || code == CODE_DUPLICATE_KEY_UPDATE || code == CODE_DUPLICATE_KEY_CAPPED;
}

/* ---- answers -------------------------------------------------------------------------------- */

/* A number of an answer, 0 when absent: servers write counts as int32, int64 or double. */
static int64_t reply_number(const bson_t *reply, const char *path)
{
    bson_iter_t iter, value;

    if (!bson_iter_init(&iter, reply) || !bson_iter_find_descendant(&iter, path, &value))
        return 0;
    return bson_iter_as_int64(&value);
}

static void reply_text(const bson_t *reply, const char *path, char *out, size_t size)
{
    bson_iter_t iter, value;

    out[0] = '\0';
    if (bson_iter_init(&iter, reply) && bson_iter_find_descendant(&iter, path, &value) && BSON_ITER_HOLDS_UTF8(&value))
        sk_copy_cut(out, size, bson_iter_utf8(&value, NULL));
}

int sk_mongo_reply_code(const bson_t *reply)
{
    return (int)reply_number(reply, "code");
}

static bool answered(const bson_t *reply)
{
    return bson_has_field(reply, "ok");
}

static void count_failure(const struct sk_error *err)
{
    sk_metric_add(&failures, err->code == SK_ERR_CANCELLED ? 2 : err->outcome == SK_OUTCOME_UNKNOWN ? 1 : 0, 0, 1);
}

static int fail_by_code(bool write, int code, const char *text, struct sk_error *err)
{
    enum verdict verdict = judge(code);

    if (verdict == VERDICT_REFUSED)
        return sk_fail(err, SK_ERR_INTERNAL, "the store refused the command: code %d: %s", code, text);
    if (verdict == VERDICT_UNKNOWN && write)
        return sk_fail_unknown(err, SK_ERR_STORE_UNAVAILABLE, "the store answered code %d: %s", code, text);
    return sk_fail(err, SK_ERR_STORE_UNAVAILABLE, "the store answered code %d: %s", code, text);
}

/* No answer came. `left` = the command had left in full. */
static int fail_without_answer(const struct sk_mongo_op *op, bool write, bool left, const bson_error_t *error,
                               struct sk_error *err)
{
    enum sk_code code = op->call != NULL && sk_call_cancelled(op->call) ? SK_ERR_CANCELLED : SK_ERR_STORE_UNAVAILABLE;

    if (write && left)
        return sk_fail_unknown(err, code, "no answer from the store: %s", error->message);
    return sk_fail(err, code, "the store could not be asked: %s", error->message);
}

/* ---- choosing the server -------------------------------------------------------------------- */

/* While the monitors know a writable server this costs one load. Else it waits for one, in steps short enough for a
 * cancel to be seen. */
static int wait_for_server(struct sk_mongo_op *op, struct sk_error *err)
{
    struct sk_store_mongo *store = op->store;
    int64_t end_us = sk_mono_us(store->sched) + store->selection_ms * 1000;
    mongoc_server_description_t *server;
    bson_error_t error;

    while (!atomic_load(&store->selectable)) {
        server = mongoc_client_select_server(op->client->driver, true, NULL, &error);
        if (server != NULL) {
            mongoc_server_description_destroy(server);
            return 0;
        }
        if (op->call != NULL && sk_call_cancelled(op->call))
            return sk_fail(err, SK_ERR_CANCELLED, "the call was cancelled while no store could be reached");
        if (sk_mono_us(store->sched) >= end_us || (op->call != NULL && sk_call_budget_ms(op->call, 1) == 0))
            return sk_fail(err, SK_ERR_STORE_UNAVAILABLE, "no writable store can be reached: %s", error.message);
    }
    return 0;
}

/* May a failed command be sent again? (One for which no server was found has waited long enough.) Once, when it
 * certainly had no effect or when its effect may come twice. */
static bool again(struct sk_mongo_op *op, bool write, int attempt, const struct sk_error *err)
{
    if (attempt > 0 || err->code != SK_ERR_STORE_UNAVAILABLE ||
        !(write ? op->store->retry_writes : op->store->retry_reads))
        return false;
    if (op->call != NULL && sk_call_budget_ms(op->call, 1) == 0)
        return false;
    if (write && err->outcome == SK_OUTCOME_UNKNOWN && !op->idempotent)
        return false;
    sk_metric_add(&retries, 0, 0, 1);
    return true;
}

/* ---- writes --------------------------------------------------------------------------------- */

/* Reads the answer of a write that came in whole. */
static int read_answer(const bson_t *reply, struct sk_mongo_written *written, struct sk_error *err)
{
    bson_iter_t iter, errors, item;
    char text[256];
    int code;

    memset(written, 0, sizeof(*written));
    written->matched = reply_number(reply, "n");
    written->modified = reply_number(reply, "nModified");
    if (reply_number(reply, "ok") != 1) {
        code = (int)reply_number(reply, "code");
        /* findAndModify reports a duplicate key like this. */
        if (is_duplicate(code)) {
            written->duplicate = true;
            return 0;
        }
        reply_text(reply, "errmsg", text, sizeof(text));
        return fail_by_code(true, code, text, err);
    }
    if (bson_iter_init_find(&iter, reply, "writeErrors") && BSON_ITER_HOLDS_ARRAY(&iter) &&
        bson_iter_recurse(&iter, &errors)) {
        while (bson_iter_next(&errors)) {
            code =
                bson_iter_recurse(&errors, &item) && bson_iter_find(&item, "code") ? (int)bson_iter_as_int64(&item) : 0;
            if (!is_duplicate(code)) {
                reply_text(reply, "writeErrors.0.errmsg", text, sizeof(text));
                return fail_by_code(true, code, text, err);
            }
            written->duplicate = true;
        }
    }
    /* Applied here, but perhaps not for good. */
    if (bson_has_field(reply, "writeConcernError")) {
        reply_text(reply, "writeConcernError.errmsg", text, sizeof(text));
        return sk_fail_unknown(err, SK_ERR_STORE_UNAVAILABLE, "the write was not confirmed: code %d: %s",
                               (int)reply_number(reply, "writeConcernError.code"), text);
    }
    return 0;
}

int sk_mongo_write(struct sk_mongo_op *op, const bson_t *command, struct sk_mongo_written *written, bson_t *reply,
                   struct sk_error *err)
{
    struct sk_mongo_written local_written;
    struct sk_error local;
    bson_error_t error;
    bool unknown = false, waited;
    bson_t answer;
    int result;

    if (written == NULL)
        written = &local_written;
    memset(written, 0, sizeof(*written));
    if (reply != NULL)
        bson_init(reply);
    for (int attempt = 0;; attempt++) {
        unsigned sent = op->client->sent;

        sk_error_clear(&local);
        memset(&error, 0, sizeof(error));
        waited = wait_for_server(op, &local) != 0;
        if (waited) {
            result = -1;
        } else {
            mongoc_client_write_command_with_opts(op->client->driver, op->store->database, command, NULL, &answer,
                                                  &error);
            if (answered(&answer))
                result = read_answer(&answer, written, &local);
            else
                result = fail_without_answer(op, true, op->client->sent != sent, &error, &local);
            op->resent = op->resent || op->client->sent - sent > 1 || (unknown && op->client->sent != sent);
            if (result == 0 && reply != NULL) {
                bson_destroy(reply);
                bson_steal(reply, &answer);
                bson_init(&answer);
            }
            bson_destroy(&answer);
        }
        if (result == 0)
            return 0;
        count_failure(&local);
        unknown = unknown || local.outcome == SK_OUTCOME_UNKNOWN;
        if (!waited && again(op, true, attempt, &local))
            continue;
        /* A second attempt that failed for certain does not make up for a first one that may have been applied. */
        if (unknown)
            local.outcome = SK_OUTCOME_UNKNOWN;
        if (err != NULL)
            *err = local;
        return -1;
    }
}

int sk_mongo_admin(struct sk_mongo_op *op, const bson_t *command, int *code, struct sk_error *err)
{
    struct sk_error local;
    bson_error_t error;
    bson_t answer;
    char text[256];
    int result = 0;

    *code = 0;
    memset(&error, 0, sizeof(error));
    sk_error_clear(&local);
    if (wait_for_server(op, &local) != 0) {
        result = -1;
    } else {
        mongoc_client_write_command_with_opts(op->client->driver, op->store->database, command, NULL, &answer, &error);
        if (!answered(&answer)) {
            result = fail_without_answer(op, true, true, &error, &local);
        } else if (reply_number(&answer, "ok") != 1) {
            *code = (int)reply_number(&answer, "code");
            reply_text(&answer, "errmsg", text, sizeof(text));
            result = fail_by_code(true, *code, text, &local);
        }
        bson_destroy(&answer);
    }
    if (result != 0) {
        count_failure(&local);
        if (err != NULL)
            *err = local;
    }
    return result;
}

/* ---- reads ---------------------------------------------------------------------------------- */

/* The server should not go on for a caller that has left. */
static void append_max_time(const struct sk_mongo_op *op, bson_t *command)
{
    int64_t left = op->client->timeout_ms;

    if (op->call != NULL)
        left = sk_call_budget_ms(op->call, left);
    if (left > 0)
        BSON_APPEND_INT64(command, "maxTimeMS", left);
}

/* `plain`: without the read concern of the URI, which commands about the server itself do not take. */
static int run_read(struct sk_mongo_op *op, bool plain, const bson_t *command, bson_t *reply, struct sk_error *err)
{
    mongoc_client_t *driver = op->client->driver;
    const char *database = op->store->database;
    struct sk_error local;
    bson_error_t error;
    char text[256];
    bool waited;
    int result;

    for (int attempt = 0;; attempt++) {
        sk_error_clear(&local);
        memset(&error, 0, sizeof(error));
        waited = wait_for_server(op, &local) != 0;
        if (waited) {
            bson_init(reply);
            result = -1;
        } else {
            if (plain)
                mongoc_client_command_with_opts(driver, database, command, NULL, NULL, reply, &error);
            else
                mongoc_client_read_command_with_opts(driver, database, command, NULL, NULL, reply, &error);
            result = 0;
            if (!answered(reply)) {
                result = fail_without_answer(op, false, false, &error, &local);
            } else if (reply_number(reply, "ok") != 1) {
                reply_text(reply, "errmsg", text, sizeof(text));
                result = fail_by_code(false, (int)reply_number(reply, "code"), text, &local);
            }
        }
        if (result == 0)
            return 0;
        count_failure(&local);
        if (waited || !again(op, false, attempt, &local))
            break;
        bson_destroy(reply);
    }
    if (err != NULL)
        *err = local;
    return -1;
}

int sk_mongo_read(struct sk_mongo_op *op, const bson_t *command, bson_t *reply, struct sk_error *err)
{
    return run_read(op, false, command, reply, err);
}

int sk_mongo_ask(struct sk_mongo_op *op, const bson_t *command, bson_t *reply, struct sk_error *err)
{
    return run_read(op, true, command, reply, err);
}

/* {"writeErrors": [{"index": n, …}…]} */
void sk_mongo_mark_refused(const bson_t *reply, bool *refused, int count)
{
    bson_iter_t iter, errors, error;

    if (!bson_iter_init_find(&iter, reply, "writeErrors") || !BSON_ITER_HOLDS_ARRAY(&iter) ||
        !bson_iter_recurse(&iter, &errors))
        return;
    while (bson_iter_next(&errors)) {
        int64_t index;

        if (!BSON_ITER_HOLDS_DOCUMENT(&errors) || !bson_iter_recurse(&errors, &error) ||
            !bson_iter_find(&error, "index") || !BSON_ITER_HOLDS_NUMBER(&error))
            continue;
        index = bson_iter_as_int64(&error);
        if (index >= 0 && index < count)
            refused[index] = true;
    }
}

void sk_mongo_first_batch(const bson_t *reply, sk_mongo_doc_fn fn, void *arg)
{
    bson_iter_t iter, batch, docs;
    const uint8_t *data;
    uint32_t length;
    bson_t doc;

    if (!bson_iter_init(&iter, reply) || !bson_iter_find_descendant(&iter, "cursor.firstBatch", &batch) ||
        !BSON_ITER_HOLDS_ARRAY(&batch) || !bson_iter_recurse(&batch, &docs))
        return;
    while (bson_iter_next(&docs)) {
        if (!BSON_ITER_HOLDS_DOCUMENT(&docs))
            continue;
        bson_iter_document(&docs, &length, &data);
        if (bson_init_static(&doc, data, length) && !fn(arg, &doc))
            return;
    }
}

struct counted {
    sk_mongo_doc_fn fn;
    void *arg;
    bool found;
};

static bool count_document(void *arg, const bson_t *doc)
{
    struct counted *counted = arg;

    counted->found = true;
    return counted->fn == NULL || counted->fn(counted->arg, doc);
}

int sk_mongo_find_one(struct sk_mongo_op *op, enum sk_mongo_collection collection, const bson_t *filter,
                      const bson_t *projection, sk_mongo_doc_fn fn, void *arg, bool *found, struct sk_error *err)
{
    struct counted counted = {.fn = fn, .arg = arg};
    bson_t command = BSON_INITIALIZER, reply;
    int result;

    BSON_APPEND_UTF8(&command, "find", op->store->names[collection]);
    BSON_APPEND_DOCUMENT(&command, "filter", filter);
    if (projection != NULL)
        BSON_APPEND_DOCUMENT(&command, "projection", projection);
    BSON_APPEND_INT32(&command, "limit", 1);
    BSON_APPEND_BOOL(&command, "singleBatch", true);
    append_max_time(op, &command);
    result = sk_mongo_read(op, &command, &reply, err);
    if (result == 0)
        sk_mongo_first_batch(&reply, count_document, &counted);
    *found = counted.found;
    bson_destroy(&reply);
    bson_destroy(&command);
    return result;
}

int sk_mongo_find(struct sk_mongo_op *op, enum sk_mongo_collection collection, const bson_t *filter, const bson_t *opts,
                  sk_mongo_doc_fn fn, void *arg, struct sk_error *err)
{
    mongoc_collection_t *handle =
        mongoc_client_get_collection(op->client->driver, op->store->database, op->store->names[collection]);
    struct sk_error local;
    int result;

    for (int attempt = 0;; attempt++) {
        bool delivered = false, stopped = false, waited;
        mongoc_cursor_t *cursor;
        const bson_t *doc, *answer;
        bson_error_t error;
        bson_t all = BSON_INITIALIZER;

        sk_error_clear(&local);
        if (opts != NULL)
            bson_concat(&all, opts);
        append_max_time(op, &all);
        result = wait_for_server(op, &local);
        waited = result != 0;
        if (result == 0) {
            cursor = mongoc_collection_find_with_opts(handle, filter, &all, NULL);
            while (!stopped && mongoc_cursor_next(cursor, &doc)) {
                delivered = true;
                stopped = !fn(arg, doc);
                if (!stopped && op->call != NULL && sk_call_cancelled(op->call)) {
                    result = sk_fail(&local, SK_ERR_CANCELLED, "the call was cancelled");
                    break;
                }
            }
            answer = NULL;
            if (result == 0 && !stopped && mongoc_cursor_error_document(cursor, &error, &answer)) {
                if (answer != NULL && answered(answer))
                    result = fail_by_code(false, (int)reply_number(answer, "code"), error.message, &local);
                else
                    result = fail_without_answer(op, false, false, &error, &local);
            }
            mongoc_cursor_destroy(cursor);
        }
        bson_destroy(&all);
        if (result == 0)
            break;
        count_failure(&local);
        /* What was handed out cannot be taken back. */
        if (delivered || waited || !again(op, false, attempt, &local))
            break;
    }
    mongoc_collection_destroy(handle);
    if (result != 0 && err != NULL)
        *err = local;
    return result;
}
