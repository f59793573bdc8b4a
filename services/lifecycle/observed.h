/* SPDX-License-Identifier: Apache-2.0
 *
 * What this replica has seen of operations it does not run: the memory of the stale sweep. */
#ifndef SK_LIFECYCLE_OBSERVED_H
#define SK_LIFECYCLE_OBSERVED_H

#include "common/instance/instance.h"

/* Value of replica->observed, by sandbox id; under observed_lock. */
struct lc_observed {
    char operation_id[SK_UUID_SIZE];
    int64_t heartbeat_at; /* as written in the record: compared, never interpreted */
    int64_t silent_ms;    /* time this value was seen unchanged, counted between scans that worked */
    uint64_t scan;        /* the last scan that saw the record */
};

#endif
