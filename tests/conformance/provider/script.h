/* SPDX-License-Identifier: Apache-2.0
 *
 * Canned answers for the scriptable peer: the first rule whose method and target prefix match a request answers it. */
#ifndef SK_TEST_SCRIPT_H
#define SK_TEST_SCRIPT_H

#include "tests/conformance/provider/peer.h"

#include <pthread.h>

#define SCRIPT_RULES_MAX 16

struct script;

struct script_rule {
    const char *method, *prefix; /* "" = any */
    int status;                  /* with `type` and `body` */
    const char *type, *body;
    const char *raw; /* written as it is, then the connection is closed */
    /* Writes the answer itself; as peer_handler, with the script as first argument. */
    bool (*run)(struct script *script, const struct peer_request *request, int fd);
    int times; /* used so often, then the next rule that matches; 0 = always */
};

struct script {
    struct peer *peer;
    struct script_rule rules[SCRIPT_RULES_MAX];
    int used[SCRIPT_RULES_MAX];
    int count;
    void *arg;
    pthread_mutex_t lock;
    char **owned; /* copies of bodies, kept to the end: a connection may still be writing one */
    size_t owned_count;
};

void script_start(struct script *script);
void script_stop(struct script *script);
/* Forgets the rules so far. */
void script_clear(struct script *script);
/* body and raw are copied. */
void script_add(struct script *script, struct script_rule rule);
/* {method, prefix} -> JSON */
void script_json(struct script *script, const char *method, const char *prefix, int status, const char *body);

#endif
