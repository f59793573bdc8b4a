/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads by a unique key, many callers' in one command. A read by key costs the server and us ten times what the
 * document itself does, and a replica's workers ask at the same moments: those that come while one such read is under
 * way wait for its end, and the first of them asks for all. Nobody waits beside an idle connection: who comes alone
 * asks alone. Each caller's document was read after it had asked. */
#include "common/store/mongo.h"

#include <string.h>
#include <time.h>

/* Longer than any healthy read; whoever waited so long for another's answer asks for itself: one connection that hangs
 * must not hold up the others. */
#define WAIT_US 100000

struct asking {
    struct sk_list link; /* combiner->waiting, then the batch of who asks for it; under the combiner's lock */
    pthread_cond_t changed;
    const char *key;
    sk_mongo_doc_fn fn;
    void *arg;
    bool leads; /* its turn to ask, for all that wait */
    bool found, answered, failed;
};

void sk_mongo_combiner_init(struct sk_mongo_combiner *combiner, enum sk_mongo_collection collection,
                            enum sk_mongo_kind kind, const char *field)
{
    memset(combiner, 0, sizeof(*combiner));
    pthread_mutex_init(&combiner->lock, NULL);
    sk_list_init(&combiner->waiting);
    combiner->collection = collection;
    combiner->kind = kind;
    combiner->field = field;
}

void sk_mongo_combiner_fini(struct sk_mongo_combiner *combiner)
{
    pthread_mutex_destroy(&combiner->lock);
}

static int ask_alone(struct sk_store_mongo *store, const struct sk_mongo_combiner *combiner, struct sk_call *call,
                     const char *key, sk_mongo_doc_fn fn, void *arg, bool *found, struct sk_error *err)
{
    bson_t filter = BSON_INITIALIZER;
    struct sk_mongo_op op;
    int result;

    BSON_APPEND_UTF8(&filter, combiner->field, key);
    result = sk_mongo_begin(store, call, combiner->kind, &op, err);
    if (result == 0) {
        result = sk_mongo_find_one(&op, combiner->collection, &filter, NULL, fn, arg, found, err);
        sk_mongo_end(&op);
    }
    bson_destroy(&filter);
    return result;
}

/* ---- for all that wait --------------------------------------------------------------------------- */
struct batch {
    struct sk_mongo_combiner *combiner;
    struct sk_list askers; /* whoever waited for too long has left it */
};

/* One document for all that asked for it. */
static bool hand_out(void *arg, const bson_t *doc)
{
    struct batch *batch = arg;
    bson_iter_t iter;
    const char *key;

    if (!bson_iter_init_find(&iter, doc, batch->combiner->field) || !BSON_ITER_HOLDS_UTF8(&iter))
        return true;
    key = bson_iter_utf8(&iter, NULL);
    pthread_mutex_lock(&batch->combiner->lock);
    SK_LIST_FOREACH (struct asking, asking, &batch->askers, link) {
        if (asking->found || strcmp(asking->key, key) != 0)
            continue;
        asking->found = true;
        (void)asking->fn(asking->arg, doc);
    }
    pthread_mutex_unlock(&batch->combiner->lock);
    return true;
}

/* Moves those that wait into the batch, and their keys into the filter. Under the lock. */
static int gather(struct batch *batch, bson_t *filter)
{
    bson_t in, list;
    struct sk_list *item;
    const char *position;
    char index[16];
    int count = 0;

    BSON_APPEND_DOCUMENT_BEGIN(filter, batch->combiner->field, &in);
    BSON_APPEND_ARRAY_BEGIN(&in, "$in", &list);
    while (count < SK_MONGO_COMBINE_MAX && (item = sk_list_pop_front(&batch->combiner->waiting)) != NULL) {
        bson_uint32_to_string((uint32_t)count++, &position, index, sizeof(index));
        BSON_APPEND_UTF8(&list, position, SK_LIST_ENTRY(struct asking, item, link)->key);
        sk_list_push_back(&batch->askers, item);
    }
    bson_append_array_end(&in, &list);
    bson_append_document_end(filter, &in);
    return count;
}

/* The end of a turn: the first of those that came meanwhile has the next one. */
static void pass_on(struct sk_store_mongo *store, struct sk_mongo_combiner *combiner)
{
    int64_t now_us = sk_mono_us(store->sched);

    pthread_mutex_lock(&combiner->lock);
    combiner->busy = !sk_list_empty(&combiner->waiting);
    combiner->since_us = now_us;
    if (combiner->busy) {
        struct asking *next = SK_LIST_ENTRY(struct asking, combiner->waiting.next, link);

        next->leads = true;
        pthread_cond_signal(&next->changed);
    }
    pthread_mutex_unlock(&combiner->lock);
}

/* With `self` first in line; the lock is held, and is given back. */
static int ask_for_all(struct sk_store_mongo *store, struct sk_mongo_combiner *combiner, struct sk_call *call,
                       struct asking *self, struct sk_error *err)
{
    struct batch batch = {.combiner = combiner};
    bson_t filter = BSON_INITIALIZER;
    struct sk_mongo_op op;
    int result;

    sk_list_init(&batch.askers);
    (void)gather(&batch, &filter);
    pthread_mutex_unlock(&combiner->lock);
    result = sk_mongo_begin(store, call, combiner->kind, &op, err);
    if (result == 0) {
        result = sk_mongo_find(&op, combiner->collection, &filter, NULL, hand_out, &batch, err);
        sk_mongo_end(&op);
    }
    bson_destroy(&filter);
    pthread_mutex_lock(&combiner->lock);
    SK_LIST_FOREACH (struct asking, asking, &batch.askers, link) {
        sk_list_remove(&asking->link);
        asking->answered = true;
        asking->failed = result != 0 && !asking->found;
        if (asking != self)
            pthread_cond_signal(&asking->changed);
    }
    pthread_mutex_unlock(&combiner->lock);
    pass_on(store, combiner);
    return result != 0 && !self->found ? -1 : 0;
}

/* ---- one caller ---------------------------------------------------------------------------------- */
static struct timespec until_us(int64_t us)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += us / 1000000;
    until.tv_nsec += us % 1000000 * 1000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    return until;
}

static void wait_for_turn(struct sk_mongo_combiner *combiner, struct sk_call *call, struct asking *self)
{
    struct timespec until = until_us(call != NULL ? sk_call_budget_ms(call, WAIT_US / 1000) * 1000 : WAIT_US);
    pthread_condattr_t attributes;
    int status = 0;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&self->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    sk_list_push_back(&combiner->waiting, &self->link);
    while (!self->leads && !self->answered && status == 0)
        status = pthread_cond_timedwait(&self->changed, &combiner->lock, &until);
    if (!self->leads)
        sk_list_remove(&self->link); /* from wherever it is; once more does no harm */
}

int sk_mongo_find_by_key(struct sk_store_mongo *store, struct sk_mongo_combiner *combiner, struct sk_call *call,
                         const char *key, sk_mongo_doc_fn fn, void *arg, bool *found, struct sk_error *err)
{
    struct asking self = {.key = key, .fn = fn, .arg = arg};
    int64_t now_us = sk_mono_us(store->sched);
    bool alone, first;
    int result;

    *found = false;
    sk_list_init(&self.link);
    pthread_mutex_lock(&combiner->lock);
    first = !combiner->busy;
    alone = first || now_us - combiner->since_us > WAIT_US;
    if (first) {
        combiner->busy = true;
        combiner->since_us = now_us;
    }
    if (alone) {
        pthread_mutex_unlock(&combiner->lock);
        result = ask_alone(store, combiner, call, key, fn, arg, found, err);
        if (first)
            pass_on(store, combiner);
        return result;
    }
    wait_for_turn(combiner, call, &self);
    if (self.leads) {
        result = ask_for_all(store, combiner, call, &self, err);
        *found = self.found;
    } else {
        pthread_mutex_unlock(&combiner->lock);
        *found = self.found;
        result = 0;
        if (!self.found && (!self.answered || self.failed))
            result = ask_alone(store, combiner, call, key, fn, arg, found, err);
    }
    pthread_cond_destroy(&self.changed);
    return result;
}
