/* SPDX-License-Identifier: Apache-2.0
 *
 * What the doctor can see: provider objects and volumes by asking the provider, slots, leases and records by asking the
 * service, the event history from its stream, the code sandbox by
 * asking it whether it is ready. What cannot be had is noted and not judged. */
#ifndef SK_CTL_LOOK_H
#define SK_CTL_LOOK_H

#include "common/check/check.h"
#include "services/ctl/provider.h"

#define CTL_EVENTS_MAX 100000 /* the newest of the stream are looked at */

struct ctl_look {
    struct sk_remote *remotes;
    size_t remote_count;
    struct sk_check_volume *volumes;
    size_t volume_count;
    bool volumes_known;
    struct sk_check_record *records;
    size_t record_count;
    struct sk_check_slot *slots;
    size_t slot_count;
    bool slots_known;
    int64_t quota_global, quota_per_team;
    struct sk_check_lease *leases; /* names are owned */
    size_t lease_count;
    bool leases_known;
    struct sk_check_event *events;
    size_t event_count;
    bool events_known;
    bool code_asked;                        /* SANDKEEP_CODE_URL is set */
    char code_trouble[SK_CHECK_DETAIL_MAX]; /* what is wrong with the code sandbox, or "" */
    size_t unreadable;                      /* answers of `list` that are no record */
    size_t unreadable_remotes;              /* objects of the provider that make no sense */
};

/* Looks at everything and judges it. 0, or an exit status after telling why; the look must be freed in both cases. A
 * provider that is not open is not looked at. */
SK_MUST_USE int ctl_look_take(struct ctl *ctl, struct ctl_provider *provider, struct ctl_look *look,
                              struct sk_check_report *report);
void ctl_look_fini(struct ctl_look *look);

/* history.c: the lifecycle events of the stream. 0 (also when there is no stream: noted), or an exit status. */
SK_MUST_USE int ctl_look_events(struct ctl *ctl, struct ctl_look *look);

/* health.c: whether the code sandbox of SANDKEEP_CODE_URL is ready. 0 (also when it is not: code_trouble says so), or
 * an exit status. */
SK_MUST_USE int ctl_look_code(struct ctl *ctl, struct ctl_look *look);

#endif
