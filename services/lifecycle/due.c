/* SPDX-License-Identifier: Apache-2.0
 *
 * May somebody else continue this operation now? One answer for sweeps, the poller and every job (contract/lifecycle.md
 * §3, reference §2.4). A silent owner is judged on this observer's own monotonic clock: wall clocks are for people. */
#include "services/lifecycle/internal.h"

#include <string.h>

#include "services/lifecycle/observed.h"

bool lc_observed_silent(struct lc_replica *r, const struct sk_instance *record)
{
    const struct lc_observed *seen;
    bool silent;

    pthread_mutex_lock(&r->observed_lock);
    seen = sk_map_get(&r->observed, record->sandbox_id);
    silent = seen != NULL && strcmp(seen->operation_id, record->operation.id) == 0 &&
             seen->heartbeat_at == record->operation.heartbeat_at &&
             seen->silent_ms >= r->settings.takeover_ms / (LC_MUTATE(TAKE_OVER_EARLY) ? 2 : 1);
    pthread_mutex_unlock(&r->observed_lock);
    return silent;
}

int64_t lc_attempt_in_ms(const struct lc_replica *r, const struct sk_instance *record)
{
    int64_t left = record->operation.next_attempt_at - sk_wall_ms(r->sched);

    /* Longer than any pause can be: written by a clock that is ahead. */
    if (left > r->settings.retry_max_ms * 2)
        return 0;
    return left > 0 ? left : 0;
}

/* How long this observer has seen the operation unchanged. */
static int64_t observed_ms(struct lc_replica *r, const struct sk_instance *record)
{
    const struct lc_observed *seen;
    int64_t ms = 0;

    pthread_mutex_lock(&r->observed_lock);
    seen = sk_map_get(&r->observed, record->sandbox_id);
    if (seen != NULL && strcmp(seen->operation_id, record->operation.id) == 0 &&
        seen->heartbeat_at == record->operation.heartbeat_at)
        ms = seen->silent_ms;
    pthread_mutex_unlock(&r->observed_lock);
    return ms;
}

/* FastGPT has no heartbeat: an error is taken as the end of its work, else only age tells. Its clock may be ahead of
 * ours, or wrong altogether: what this observer saw unchanged for as long is as old. */
static enum lc_due due_of_fastgpt(struct lc_replica *r, const struct sk_instance *record)
{
    const struct sk_operation *op = &record->operation;
    bool short_window = record->status == SK_STATUS_PROVISIONING || record->status == SK_STATUS_STOPPING ||
                        record->status == SK_STATUS_DELETING;
    int64_t window = short_window ? r->settings.fastgpt_short_stale_ms : r->settings.fastgpt_long_stale_ms;

    if (op->failed_at != 0 || op->error.code[0] != '\0' || op->error.detail[0] != '\0')
        return LC_DUE_NOW;
    if (op->heartbeat_at < sk_wall_ms(r->sched) - window || observed_ms(r, record) >= window)
        return LC_DUE_NOW;
    return LC_DUE_NO;
}

enum lc_due lc_due(struct lc_replica *r, const struct sk_instance *record)
{
    const struct sk_operation *op = &record->operation;

    if (record->malformed || !record->has_operation)
        return LC_DUE_NO;
    if (op->blocked[0] != '\0')
        return LC_DUE_BLOCKED;
    if (op->job_id[0] == '\0')
        return due_of_fastgpt(r, record);
    /* Ours, and this replica never has two workers on one sandbox: whoever asks is the only one. */
    if (strcmp(op->owner, r->settings.replica_id) == 0)
        return LC_DUE_NOW;
    if (op->owner[0] == '\0')
        return lc_attempt_in_ms(r, record) == 0 ? LC_DUE_NOW : LC_DUE_NO;
    return lc_observed_silent(r, record) ? LC_DUE_NOW : LC_DUE_NO;
}
