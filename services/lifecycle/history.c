/* SPDX-License-Identifier: Apache-2.0
 *
 * Which commands had operations of a sandbox: known without asking the store as long as nobody but this replica changes
 * its record. A replica that stops the same sandbox a second time, and wrote everything that came between, reads the
 * whole timeline once; from there on its own commits tell the rest. Epoch and sequence of the record say whether
 * somebody else was at it: then nothing is known any more. It saves reads and nothing else: what is not known is asked
 * for (recall.c). */
#include "services/lifecycle/internal.h"

#include <stdlib.h>
#include <string.h>

/* Of command ids only a hash is kept: two that hash alike cost one look into the timeline. */
struct history {
    int64_t epoch, sequence; /* of the record as this replica read or wrote it last */
    bool complete;           /* every operation up to there that had a command is among these */
    int count;
    uint64_t commands[LC_HISTORY_COMMANDS];
};

static uint64_t hash_of(const char *command_id)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (const char *c = command_id; *c != '\0'; c++)
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
    return hash;
}

static bool contains(const struct history *history, const char *command_id)
{
    uint64_t hash = hash_of(command_id);

    for (int i = 0; i < history->count; i++) {
        if (history->commands[i] == hash)
            return true;
    }
    return false;
}

static void add(struct history *history, const char *command_id)
{
    if (command_id[0] == '\0' || contains(history, command_id))
        return;
    if (history->count == LC_HISTORY_COMMANDS) {
        history->complete = false; /* the oldest are out of the timeline by now: it is read anew */
        history->count = 0;
        return;
    }
    history->commands[history->count++] = hash_of(command_id);
}

static bool free_one(void *arg, const char *key, void *value)
{
    (void)arg;
    (void)key;
    free(value);
    return true;
}

/* Under history_lock. */
static void forget_all(struct lc_replica *r)
{
    struct sk_map *map = &r->histories;

    sk_map_visit(map, free_one, NULL);
    sk_map_fini(map);
    sk_map_init(map, LC_HISTORIES_MAX, r->map_seed);
}

void lc_histories_free(struct lc_replica *r)
{
    sk_map_visit(&r->histories, free_one, NULL);
    sk_map_fini(&r->histories);
}

static void drop(struct lc_replica *r, const char *sandbox_id)
{
    free(sk_map_remove(&r->histories, sandbox_id));
}

/* The one of this very state of the record; one of another state is of no use to anybody. Under history_lock. */
static struct history *of_state(struct lc_replica *r, const char *sandbox_id, int64_t epoch, int64_t sequence)
{
    struct history *history = sk_map_get(&r->histories, sandbox_id);

    if (history == NULL || (history->epoch == epoch && history->sequence == sequence))
        return history;
    drop(r, sandbox_id);
    return NULL;
}

enum lc_known lc_history_of(struct lc_run *run)
{
    struct lc_replica *r = run->replica;
    const struct sk_instance *record = &run->record;
    enum lc_known known = LC_KNOWN_NOTHING;
    struct history *history;

    if (LC_MUTATE(TAKE_STOP_FOR_NEW))
        return LC_KNOWN_NEW;
    pthread_mutex_lock(&r->history_lock);
    history = of_state(r, record->sandbox_id, record->epoch, record->sequence);
    if (history != NULL) {
        known = history->complete ? LC_KNOWN_NEW : LC_KNOWN_FOLLOWED;
        SK_LIST_FOREACH (struct lc_held, held, &run->job->members, link) {
            if (known == LC_KNOWN_NEW && !lc_held_answered(held) && contains(history, held->command.id))
                known = LC_KNOWN_NOTHING;
        }
    }
    pthread_mutex_unlock(&r->history_lock);
    return known;
}

void lc_history_follow(struct lc_run *run)
{
    struct lc_replica *r = run->replica;
    struct history *history = calloc(1, sizeof(*history));

    if (history == NULL)
        return;
    history->epoch = run->record.epoch;
    history->sequence = run->record.sequence;
    pthread_mutex_lock(&r->history_lock);
    drop(r, run->record.sandbox_id);
    if (sk_map_count(&r->histories) >= LC_HISTORIES_MAX)
        forget_all(r); /* those that are in use come back */
    if (sk_map_set(&r->histories, run->record.sandbox_id, history, NULL))
        history = NULL;
    pthread_mutex_unlock(&r->history_lock);
    free(history);
}

void lc_history_note(struct lc_run *run, const char *command_id)
{
    struct lc_replica *r = run->replica;
    struct history *history;

    pthread_mutex_lock(&r->history_lock);
    history = of_state(r, run->record.sandbox_id, run->record.epoch, run->record.sequence);
    if (history != NULL)
        add(history, command_id);
    pthread_mutex_unlock(&r->history_lock);
}

void lc_history_complete(struct lc_run *run)
{
    struct lc_replica *r = run->replica;
    struct history *history;

    pthread_mutex_lock(&r->history_lock);
    history = of_state(r, run->record.sandbox_id, run->record.epoch, run->record.sequence);
    if (history != NULL)
        history->complete = true;
    pthread_mutex_unlock(&r->history_lock);
}

void lc_history_wrote(struct lc_run *run)
{
    struct lc_replica *r = run->replica;
    const struct sk_instance *before = &run->before, *after = &run->after;
    struct history *history;

    pthread_mutex_lock(&r->history_lock);
    history = of_state(r, after->sandbox_id, before->epoch, before->sequence);
    if (history != NULL) {
        history->epoch = after->epoch;
        history->sequence = after->sequence;
        if (before->has_operation)
            add(history, before->operation.command_id);
        if (after->has_operation)
            add(history, after->operation.command_id);
    }
    pthread_mutex_unlock(&r->history_lock);
}
