/* SPDX-License-Identifier: Apache-2.0
 *
 * What the Mongo tests share: one server for the whole program, a fresh database per test, raw access beside the store,
 * threads for the checks that run at once. */
#ifndef SK_TEST_STORE_MONGO_FIXTURE_H
#define SK_TEST_STORE_MONGO_FIXTURE_H

#include "tests/conformance/store/store_conformance.h"
#include "tests/support/server.h"

#include <check.h>
#include <mongoc/mongoc.h>

#define INSTANCES "agent_sandbox_instances_v2"

extern struct sk_test_server mf_server; /* started by mf_main */

/* Starts the server, runs the tests and ends it; 77 (skipped) when no server is installed. */
int mf_main(const char *name, const TTest *const *tests, int count, int timeout_s);
/* The same; `looped` is run for each of `rows` first. */
int mf_main_loop(const char *name, const TTest *looped, int rows, const TTest *const *tests, int count, int timeout_s);

struct mf {
    struct sk_store store;
    struct sk_store_conformance c; /* ready for the checks */
    mongoc_client_t *client;       /* raw access, straight to the server */
    mongoc_database_t *db;
    char database[64];
    char uri[256]; /* of the store */
};

/* Opens a store on a fresh database. `port` 0 = the server's own; `options` go into the URI ("" or "a=b&c=d"). */
void mf_open(struct mf *f, int port, const char *options, int pool_size);
void mf_close(struct mf *f);
/* Initialises the driver; mf_open does it too. */
void mf_driver(void);
void mf_parallel(int count, void (*task)(void *arg, int index), void *arg);
mongoc_collection_t *mf_collection(struct mf *f, const char *name); /* destroy it */
void mf_put(struct mf *f, const char *collection, const bson_t *doc);
/* { sandboxId } -> the raw document; destroy it. NULL when there is none. */
bson_t *mf_raw(struct mf *f, const char *sandbox_id);
/* Runs {q: {sandboxId}, u: update}. */
void mf_update(struct mf *f, const char *sandbox_id, const bson_t *update);

#endif
