/* SPDX-License-Identifier: Apache-2.0
 *
 * Sending commands and hearing their answers, as any client of the public contract would (contract/messaging.md §2). */
#ifndef SK_BENCH_COMMANDS_H
#define SK_BENCH_COMMANDS_H

#include <nats/nats.h>
#include <stdbool.h>

#define PREFIX "sandbox"

struct commands {
    natsConnection *nc;
    natsSubscription *answers;
    char inbox[64]; /* answers come to <inbox>.<index> */
    char run[32];   /* makes command ids unique */
};

/* Ends the process when NATS cannot be reached. `on_answer` gets progress too. */
void commands_open(struct commands *commands, const char *url, natsMsgHandler on_answer, void *arg);
void commands_close(struct commands *commands);
/* Publishes one; the answer's subject ends in `index`. Ids are unique by (index, number). */
void commands_send(struct commands *commands, const char *op, const char *source_id, const char *sandbox_id, int index,
                   long number);
/* For a message on the inbox: false = progress. */
bool commands_is_result(natsMsg *message, int *index, bool *ok);
void commands_check(natsStatus status, const char *what);

#endif
