/* SPDX-License-Identifier: Apache-2.0
 *
 * A client that pages through `list` (contract/messaging.md §3): one request after the other, following the cursor and
 * beginning anew at the end. */
#include "tests/bench/programs/commands.h"
#include "tests/bench/programs/load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUEST_MS 30000

struct walk {
    const struct load_options *options;
    natsConnection *nc;
    char cursor[512];
    int64_t items;
    int pages, short_pages, rounds, errors;
    char error_text[512];
};

/* One page; false when it was refused. */
static bool ask(struct walk *walk)
{
    const char *filter = walk->options->filter != NULL ? walk->options->filter : "{}";
    const char *sort = walk->options->sort;
    json_t *request = json_pack("{s:i,s:o}", "limit", walk->options->limit, "filter", json_loads(filter, 0, NULL));
    json_t *answer, *data;
    natsMsg *reply = NULL;
    char *text;
    bool ok;

    if (sort != NULL)
        json_object_set_new(request, "sort", json_string(sort));
    if (walk->cursor[0] != '\0')
        json_object_set_new(request, "cursor", json_string(walk->cursor));
    text = json_dumps(request, JSON_COMPACT);
    json_decref(request);
    commands_check(natsConnection_RequestString(&reply, walk->nc, PREFIX ".rpc.lifecycle.list", text, REQUEST_MS),
                   "list");
    free(text);
    answer = json_loadb(natsMsg_GetData(reply), (size_t)natsMsg_GetDataLength(reply), 0, NULL);
    ok = json_is_true(json_object_get(answer, "ok"));
    data = json_object_get(answer, "data");
    if (ok) {
        size_t count = json_array_size(json_object_get(data, "items"));
        const char *next = json_string_value(json_object_get(data, "nextCursor"));

        walk->items += (int64_t)count;
        walk->pages++;
        walk->short_pages += next != NULL && count < (size_t)walk->options->limit;
        walk->rounds += next == NULL;
        snprintf(walk->cursor, sizeof(walk->cursor), "%s", next != NULL ? next : "");
    } else {
        walk->errors++;
        snprintf(walk->error_text, sizeof(walk->error_text), "%.*s", natsMsg_GetDataLength(reply),
                 natsMsg_GetData(reply));
    }
    json_decref(answer);
    natsMsg_Destroy(reply);
    return ok;
}

int load_pages(const struct load_options *options)
{
    struct walk walk = {.options = options};
    struct samples all, first;
    int64_t end_us;
    json_t *out;

    samples_init(&all);
    samples_init(&first);
    commands_check(natsConnection_ConnectTo(&walk.nc, options->nats), "NATS");
    for (end_us = load_now_us() + (int64_t)(options->warm_up * 1e6); load_now_us() < end_us;)
        (void)ask(&walk);
    walk.cursor[0] = '\0';
    walk.items = walk.pages = walk.short_pages = walk.rounds = 0;
    for (end_us = load_now_us() + (int64_t)(options->seconds * 1e6); load_now_us() < end_us && walk.errors < 10;) {
        bool is_first = walk.cursor[0] == '\0';
        int64_t begun_us = load_now_us();

        if (!ask(&walk))
            continue;
        samples_add(&all, load_now_us() - begun_us);
        if (is_first)
            samples_add(&first, load_now_us() - begun_us);
        /* Everyone looks at the first pages most: after 20 the walk begins anew. */
        if (walk.pages % 20 == 0)
            walk.cursor[0] = '\0';
    }
    out = json_pack("{s:i,s:I,s:i,s:i,s:i,s:s,s:o,s:o}", "pages", walk.pages, "items", (json_int_t)walk.items,
                    "shortPages", walk.short_pages, "rounds", walk.rounds, "errors", walk.errors, "lastError",
                    walk.error_text, "all", samples_json(&all), "first", samples_json(&first));
    json_dumpf(out, stdout, JSON_COMPACT);
    printf("\n");
    natsConnection_Destroy(walk.nc);
    return walk.errors == 0 ? 0 : 1;
}
