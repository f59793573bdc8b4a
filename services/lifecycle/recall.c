/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands that come again although they did their work, because their replica died before the result was stored. What
 * was made since is not what they were about: a delete, a stop or the abandoning of an operation must not be done to
 * it. The timeline tells which operation a command had and how it ended; the answer is made from that.
 *
 * An ensure that comes again is run again: it leaves what its requester waits for. So are commands that rode along with
 * another one: the operation has the head's id alone. Nobody can tell that these were done before, because they were
 * never answered and no event names them; until it is answered, a command may take effect at any time. */
#include "services/lifecycle/internal.h"

#include <stdlib.h>
#include <string.h>

/* Operations that are looked at: for each command, and in all at the least. */
#define ENTRIES_EACH 4
#define ENTRIES_MIN  16

/* Of a life that ended before this record was made? Epochs rise over all lives; a record that FastGPT made has none. */
static bool of_former_life(const struct lc_run *run, const struct sk_timeline_entry *entry)
{
    return run->record.epoch == 0 || entry->epoch < run->record.epoch;
}

static bool ended(const struct sk_timeline_entry *entry, enum sk_op type, const char *result)
{
    return entry->type == type && strcmp(entry->result, result) == 0;
}

/* Is this entry what the command asked for? *answer: what it would have been told then. */
static bool is_work_of(const struct lc_run *run, const struct lc_command *command,
                       const struct sk_timeline_entry *entry, struct lc_answer *answer)
{
    bool deleted = ended(entry, SK_OP_DELETE, "deleted") && of_former_life(run, entry), stopped = false;

    if (strcmp(entry->command_id, command->id) != 0)
        return false;
    if (command->verb == LC_VERB_STOP)
        stopped = ended(entry, SK_OP_STOP, "completed");
    else if (command->verb == LC_VERB_RECOVER)
        stopped = ended(entry, SK_OP_PROVISION, "compensated");
    memset(answer, 0, sizeof(*answer));
    answer->ok = true;
    answer->status = stopped ? SK_STATUS_STOPPED : SK_STATUS_NONE;
    answer->epoch = stopped ? entry->epoch : 0;
    memcpy(answer->operation_id, entry->operation_id, sizeof(answer->operation_id));
    return stopped || (deleted && command->verb != LC_VERB_STOP);
}

static int answer_held(struct lc_run *run, struct lc_held *held, const struct lc_answer *answer)
{
    held->stored = lc_answer_text(answer, &held->command);
    held->recalled = true;
    if (held->stored == NULL)
        return sk_fail(&run->err, SK_ERR_INTERNAL, "out of memory");
    lc_count(run->replica, LC_COUNT_COMMANDS_RECALLED, 1);
    return 0;
}

static int answer_those_done(struct lc_run *run, const struct sk_timeline_entry *entries, int count)
{
    SK_LIST_FOREACH (struct lc_held, held, &run->job->members, link) {
        struct lc_answer answer;

        /* Newest first: who abandoned an operation may have removed its record, too. */
        for (int i = 0; i < count && !lc_held_answered(held); i++) {
            if (is_work_of(run, &held->command, &entries[i], &answer) && answer_held(run, held, &answer) != 0)
                return -1;
        }
    }
    return 0;
}

/* ---- events of this life of the record that are not in the timeline yet ------------------------------- */
struct pending {
    struct lc_run *run;
    bool same; /* the record is still as it was read */
    bool all;  /* and these are all of its events */
    int rc;
};

/* As timeline entries they tell the same. */
static bool look_at_events(void *arg, const struct sk_instance *record, const struct sk_event *events, int count)
{
    struct pending *pending = arg;
    const struct sk_instance *read = &pending->run->record;

    pending->same = record->epoch == read->epoch && record->sequence == read->sequence;
    pending->all = pending->same && count == record->outbox_count;
    for (int i = 0; pending->same && i < count; i++)
        lc_history_note(pending->run, events[i].command_id);
    for (int i = 0; i < count && pending->rc == 0; i++) {
        struct sk_timeline_entry entry = {.type = events[i].operation_type, .epoch = events[i].epoch};

        if (events[i].type != SK_EVENT_COMPLETED)
            continue;
        memcpy(entry.command_id, events[i].command_id, sizeof(entry.command_id));
        memcpy(entry.operation_id, events[i].operation_id, sizeof(entry.operation_id));
        strcpy(entry.result, "completed");
        pending->rc = answer_those_done(pending->run, &entry, 1);
    }
    return true;
}

/* Events leave the record only when they are in the timeline: who looks here first and there afterwards sees them all.
 * *all: every one of them was noted in the sandbox's history. */
static int recall_pending(struct lc_run *run, bool *all)
{
    const struct sk_store *store = run->replica->seams.store;
    struct pending pending = {.run = run};
    char ids[1][SK_SANDBOX_ID_SIZE];

    memcpy(ids[0], run->record.sandbox_id, sizeof(ids[0]));
    if (store->ops->get_many(store->self, lc_commit_call(run), (const char(*)[SK_SANDBOX_ID_SIZE])ids, 1,
                             look_at_events, &pending, &run->err) != 0 ||
        pending.rc != 0)
        return -1;
    *all = pending.all;
    return pending.same ? 0 : sk_fail(&run->err, SK_ERR_LOST_OWNERSHIP, "the record changed");
}

/* Ids of the members that are not answered yet. */
static int open_members(struct lc_run *run, char (*ids)[SK_COMMAND_ID_SIZE])
{
    int count = 0;

    SK_LIST_FOREACH (struct lc_held, held, &run->job->members, link) {
        if (!lc_held_answered(held))
            memcpy(ids[count++], held->command.id, sizeof(ids[0]));
    }
    return count;
}

static int recall_ended(struct lc_run *run)
{
    const struct sk_store *store = run->replica->seams.store;
    size_t waiting = sk_list_length(&run->job->members);
    char(*ids)[SK_COMMAND_ID_SIZE] = calloc(waiting + 1, sizeof(*ids));
    /* The newest operation of a command tells how it ended; the tries before it are of no interest. */
    int count = waiting < SK_TIMELINE_KEEP / ENTRIES_EACH ? (int)waiting * ENTRIES_EACH : SK_TIMELINE_KEEP;
    struct sk_timeline_entry *entries;
    int members, rc = -1;

    count = count > ENTRIES_MIN ? count : ENTRIES_MIN;
    entries = malloc((size_t)count * sizeof(*entries));
    if (ids == NULL || entries == NULL) {
        sk_fail(&run->err, SK_ERR_INTERNAL, "out of memory");
        goto out;
    }
    members = open_members(run, ids);
    if (members > 0 && store->ops->timeline_of_commands(store->self, lc_commit_call(run), run->job->sandbox_id,
                                                        (const char(*)[SK_COMMAND_ID_SIZE])ids, members, entries,
                                                        &count, &run->err) != 0)
        goto out;
    rc = members > 0 ? answer_those_done(run, entries, count) : 0;
out:
    free(entries);
    free(ids);
    return rc;
}

/* All that the timeline has of this sandbox: with it the history is complete, and the next stop asks nobody. */
static int recall_whole(struct lc_run *run, bool all_noted)
{
    const struct sk_store *store = run->replica->seams.store;
    struct sk_timeline_entry *entries = malloc(SK_TIMELINE_KEEP * sizeof(*entries));
    int count = SK_TIMELINE_KEEP, rc = -1;

    if (entries == NULL)
        return sk_fail(&run->err, SK_ERR_INTERNAL, "out of memory");
    if (store->ops->timeline_list(store->self, lc_commit_call(run), run->job->sandbox_id, entries, &count, &run->err) !=
        0)
        goto out;
    for (int i = 0; i < count; i++)
        lc_history_note(run, entries[i].command_id);
    if (all_noted)
        lc_history_complete(run);
    rc = answer_those_done(run, entries, count);
out:
    free(entries);
    return rc;
}

static int recall_stops(struct lc_run *run)
{
    enum lc_known known = lc_history_of(run);
    bool all_noted = true;

    if (known == LC_KNOWN_NEW) {
        lc_count(run->replica, LC_COUNT_COMMANDS_KNOWN_NEW, 1);
        return 0;
    }
    if (known == LC_KNOWN_NOTHING)
        lc_history_follow(run);
    if (run->record.outbox_count > 0 && recall_pending(run, &all_noted) != 0)
        return -1;
    return known == LC_KNOWN_FOLLOWED ? recall_whole(run, all_noted) : recall_ended(run);
}

int lc_recall(struct lc_run *run)
{
    const enum lc_verb verb = run->command->verb;

    if (LC_MUTATE(FORGET_RECALL))
        return 0;
    if (verb == LC_VERB_STOP)
        return recall_stops(run);
    /* Former lives were in the timeline before their record went; an abandoned operation is rare, and waits for it. */
    if (verb == LC_VERB_RECOVER && run->record.outbox_count > 0) {
        if (lc_relay_flush(run) != 0)
            return -1;
        return sk_fail(&run->err, SK_ERR_LOST_OWNERSHIP, "the record is looked at again");
    }
    return recall_ended(run);
}
