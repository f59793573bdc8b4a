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

/* The shortest history with a stop before the present run: two events of each. */
#define EVENTS_WITH_A_STOP 4

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

static int answer_those_done(struct lc_run *run, const struct sk_timeline_entry *entries, int count)
{
    SK_LIST_FOREACH (struct lc_held, held, &run->job->members, link) {
        struct lc_answer answer;

        /* Newest first: who abandoned an operation may have removed its record, too. */
        for (int i = 0; i < count && !lc_held_answered(held); i++) {
            if (!is_work_of(run, &held->command, &entries[i], &answer))
                continue;
            held->stored = lc_answer_text(&answer, &held->command);
            held->recalled = true;
            if (held->stored == NULL)
                return sk_fail(&run->err, SK_ERR_INTERNAL, "out of memory");
            lc_count(run->replica, LC_COUNT_COMMANDS_RECALLED, 1);
        }
    }
    return 0;
}

/* Events of this life of the record may still be on their way to the timeline; those of former lives were in it before
 * their record went. */
static bool may_be_incomplete(const struct lc_run *run)
{
    const struct sk_instance *record = &run->record;

    if (run->command->verb == LC_VERB_DELETE || record->outbox_count == 0)
        return false;
    /* The common case, a stop soon after the first start, need not wait. */
    return record->has_operation || record->last_operation.type != SK_OP_PROVISION ||
           record->sequence >= EVENTS_WITH_A_STOP;
}

int lc_recall(struct lc_run *run)
{
    const struct sk_store *store = run->replica->seams.store;
    struct sk_timeline_entry *entries;
    int count = SK_TIMELINE_KEEP, rc;

    if (LC_MUTATE(FORGET_RECALL))
        return 0;
    if (may_be_incomplete(run)) {
        if (lc_relay_flush(run) != 0)
            return -1;
        return sk_fail(&run->err, SK_ERR_LOST_OWNERSHIP, "the record is looked at again");
    }
    entries = calloc(SK_TIMELINE_KEEP, sizeof(*entries));
    if (entries == NULL)
        return sk_fail(&run->err, SK_ERR_INTERNAL, "out of memory");
    rc = store->ops->timeline_list(store->self, lc_commit_call(run), run->job->sandbox_id, entries, &count, &run->err);
    if (rc == 0)
        rc = answer_those_done(run, entries, count);
    free(entries);
    return rc;
}
