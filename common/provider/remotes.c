/* SPDX-License-Identifier: Apache-2.0
 *
 * Which objects of one sandbox are looked at when there are more than fit: shared by the adapters and the simulated
 * provider. */
#include "common/provider/provider.h"

#include <string.h>

/* Does `a` matter more than `b`? */
static bool before(const struct sk_remote *a, const struct sk_remote *b)
{
    bool leaves_a = a->state == SK_REMOTE_STOPPING, leaves_b = b->state == SK_REMOTE_STOPPING;

    if (leaves_a != leaves_b)
        return leaves_b;
    if (a->epoch != b->epoch)
        return a->epoch > b->epoch;
    return a->created_at > b->created_at;
}

void sk_remotes_offer(struct sk_remote *list, int *count, bool *more, const struct sk_remote *remote)
{
    int last = 0;

    for (int i = 0; i < *count; i++) {
        if (strcmp(list[i].id, remote->id) == 0) {
            list[i] = *remote;
            return;
        }
        if (before(&list[last], &list[i]))
            last = i;
    }
    if (*count < SK_REMOTES_MAX) {
        list[(*count)++] = *remote;
        return;
    }
    *more = true;
    if (before(remote, &list[last]))
        list[last] = *remote;
}
