/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of the library on their way out. natsMsg_Destroy hands each to a collector thread and wakes it: freed one by
 * one they cost two context switches each, more than everything else that is done with a small message. So they are
 * kept until some have come together. */
#include "common/bus/internal.h"

#include <string.h>

#define DISCARD_MAX       64   /* messages kept */
#define DISCARD_BYTES_MAX 4096 /* a larger one is freed at once: at most 64 of these are kept */

static struct {
    pthread_mutex_t mu;
    natsMsg *messages[DISCARD_MAX];
    int count;
} kept = {.mu = PTHREAD_MUTEX_INITIALIZER};

static void discard(natsMsg *message, int enough)
{
    natsMsg *gone[DISCARD_MAX];
    int count = 0;

    pthread_mutex_lock(&kept.mu);
    if (message != NULL)
        kept.messages[kept.count++] = message;
    if (kept.count >= enough) {
        count = kept.count;
        memcpy(gone, kept.messages, (size_t)count * sizeof(gone[0]));
        kept.count = 0;
    }
    pthread_mutex_unlock(&kept.mu);
    for (int i = 0; i < count; i++)
        natsMsg_Destroy(gone[i]);
}

void sk_bus_discard(natsMsg *message)
{
    if (message == NULL)
        return;
    if (natsMsg_GetDataLength(message) > DISCARD_BYTES_MAX)
        natsMsg_Destroy(message);
    else
        discard(message, DISCARD_MAX);
}

void sk_bus_discard_kept(void)
{
    discard(NULL, 1);
}
