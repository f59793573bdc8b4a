/* SPDX-License-Identifier: Apache-2.0
 * Lists of the OpenSandbox adapter: more objects of one sandbox than fit, pages that move, objects that make no sense.
 */
#include "common/provider/opensandbox.h"
#include "tests/conformance/provider/script.h"
#include "tests/unit/check_main.h"

#include "common/base/buf.h"

#include <stdio.h>
#include <string.h>

#define SANDBOX "app-0123456789abcdef"
#define ID      "3f2a0c9e-sandbox"
#define OBJECT                                                                                                         \
    "{\"id\":\"" ID "\",\"status\":{\"state\":\"Running\"},\"metadata\":{\"sessionId\":\"" SANDBOX                     \
    "\",\"sandkeep.dev/epoch\":\"7\"}}"
#define LAST_PAGE "\"pagination\":{\"page\":1,\"pageSize\":200,\"totalItems\":1,\"totalPages\":1,\"hasNextPage\":false}"
#define NEXT_PAGE "\"pagination\":{\"page\":1,\"pageSize\":200,\"hasNextPage\":true}"

struct fixture {
    struct script script;
    struct sk_provider provider;
    struct sk_call call;
    struct sk_error err;
};

static void begin(struct fixture *f)
{
    char url[64];
    struct sk_opensandbox_config config = {
        .base_url = url, .api_key = "secret-key", .entrypoint = "", .request_timeout_ms = 1000};

    memset(f, 0, sizeof(*f));
    script_start(&f->script);
    sk_call_init(&f->call, &sk_sched_system);
    snprintf(url, sizeof(url), "http://127.0.0.1:%d", peer_port(f->script.peer));
    ck_assert_int_eq(sk_opensandbox_new(&config, &sk_sched_system, &f->provider, &f->err), 0);
}

static void end(struct fixture *f)
{
    sk_http_call_release(&f->call);
    sk_opensandbox_free(&f->provider);
    script_stop(&f->script);
}

static int list_page(struct fixture *f, int *count)
{
    struct sk_remote remotes[SK_REMOTES_MAX];
    int unreadable;
    bool more;

    return f->provider.ops->list(f->provider.self, &f->call, 1, remotes, SK_REMOTES_MAX, count, &unreadable, &more,
                                 &f->err);
}

/* A page of objects o<first>, o<first + 1>, …, whose epochs are their numbers. */
static void add_numbered(struct fixture *f, const char *path, int first, int count, const char *state, const char *page,
                         struct sk_buf *text)
{
    sk_buf_init(text, 1 << 20);
    sk_buf_append_text(text, "{\"items\":[");
    for (int i = first; i < first + count; i++)
        sk_buf_printf(text,
                      "%s{\"id\":\"o%d\",\"status\":{\"state\":\"%s\"},\"metadata\":{\"sessionId\":\"" SANDBOX
                      "\",\"sandkeep.dev/epoch\":\"%d\"}}",
                      i > first ? "," : "", i, state, i);
    sk_buf_printf(text, "],%s}", page);
    script_json(&f->script, "GET", path, 200, sk_buf_data(text));
}

static bool holds_epoch(const struct sk_remote *remotes, int count, int64_t epoch)
{
    for (int i = 0; i < count; i++) {
        if (remotes[i].epoch == epoch)
            return true;
    }
    return false;
}

START_TEST(test_too_many_objects)
{
    const char *filter = "/v1/sandboxes?metadata=sessionId%3D" SANDBOX;
    char first_path[256], second_path[256];
    struct sk_remote found[SK_REMOTES_MAX];
    struct sk_buf first, second;
    struct fixture f;
    bool more = false;
    int flag, count = 0;

    snprintf(first_path, sizeof(first_path), "%s&page=1&pageSize=200", filter);
    snprintf(second_path, sizeof(second_path), "%s&page=2&pageSize=200", filter);
    begin(&f);
    /* The newest of all are on their way out, and the highest epoch that is not stands on the second page. */
    add_numbered(&f, first_path, 100, 20, "Stopping", NEXT_PAGE, &first);
    add_numbered(&f, second_path, 1, 15, "Running", LAST_PAGE, &second);
    ck_assert_int_eq(f.provider.ops->find(f.provider.self, &f.call, SANDBOX, found, &count, &more, &f.err), 0);
    ck_assert_int_eq(count, SK_REMOTES_MAX);
    ck_assert(more);
    for (int epoch = 1; epoch <= 15; epoch++)
        ck_assert_msg(holds_epoch(found, count, epoch), "epoch %d was left out", epoch);
    ck_assert(holds_epoch(found, count, 119)); /* and of those that leave the newest */
    sk_buf_fini(&first);
    sk_buf_fini(&second);

    /* All fit: there is no more. The one that slid from the first page to the second counts once. */
    script_clear(&f.script);
    add_numbered(&f, first_path, 1, 9, "Running", NEXT_PAGE, &first);
    add_numbered(&f, second_path, 9, 8, "Running", LAST_PAGE, &second);
    ck_assert_int_eq(f.provider.ops->find(f.provider.self, &f.call, SANDBOX, found, &count, &more, &f.err), 0);
    ck_assert_int_eq(count, 16);
    ck_assert(!more);
    sk_buf_fini(&first);
    sk_buf_fini(&second);

    /* A list without end is left after a bounded number of pages, and what fits is said not to be all. */
    script_clear(&f.script);
    add_numbered(&f, "", 1, 2, "Running", NEXT_PAGE, &first);
    ck_assert_int_eq(f.provider.ops->find(f.provider.self, &f.call, SANDBOX, found, &count, &more, &f.err), 0);
    ck_assert_int_eq(count, 2);
    ck_assert(more);
    sk_buf_fini(&first);

    /* The second page fails: what the first one showed is not an answer. */
    script_clear(&f.script);
    add_numbered(&f, first_path, 1, 9, "Running", NEXT_PAGE, &first);
    script_json(&f.script, "GET", second_path, 503, "{\"code\":\"X\",\"message\":\"busy\"}");
    ck_assert_int_eq(f.provider.ops->find(f.provider.self, &f.call, SANDBOX, found, &count, &more, &f.err), -1);
    ck_assert_int_eq(count, 0);
    sk_buf_fini(&first);

    script_clear(&f.script);
    add_numbered(&f, "", 1, SK_REMOTES_MAX + 1, "Running", LAST_PAGE, &first);
    ck_assert_int_eq(list_page(&f, &flag), -1); /* more than asked for */
    sk_buf_fini(&first);
    script_clear(&f.script);
    script_json(&f.script, "GET", "", 200, "{\"items\":[],\"pagination\":{\"hasNextPage\":true}}");
    ck_assert_int_eq(f.provider.ops->find(f.provider.self, &f.call, SANDBOX, found, &flag, &more, &f.err), -1);
    ck_assert_int_eq(list_page(&f, &flag), 0);
    end(&f);
}
END_TEST

/* One object that makes no sense does not hide the others of a list; of a sandbox's own it may be the one that counts.
 */
START_TEST(test_unreadable_objects)
{
    static const char *const bad[] = {
        "7",
        "{}",
        "{\"id\":\"../x\",\"status\":{\"state\":\"Running\"}}",
        "{\"id\":\"x\",\"status\":{\"state\":\"Running\"},\"metadata\":[]}",
        "{\"id\":\"x\",\"metadata\":{\"sessionId\":\"" SANDBOX "\"}}", /* no state */
    };
    struct sk_remote found[SK_REMOTES_MAX];
    char text[2048];
    struct fixture f;
    bool more = true;
    int count, unreadable, flag;

    begin(&f);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(text, sizeof(text), "{\"items\":[%s,%s,%s]," LAST_PAGE "}", bad[i], OBJECT, bad[i]);
        script_clear(&f.script);
        script_json(&f.script, "GET", "", 200, text);
        ck_assert_msg(f.provider.ops->list(f.provider.self, &f.call, 1, found, SK_REMOTES_MAX, &count, &unreadable,
                                           &more, &f.err) == 0,
                      "%s: %s", bad[i], f.err.message);
        ck_assert_msg(count == 1 && unreadable == 2, "%s: %d and %d", bad[i], count, unreadable);
        ck_assert_str_eq(found[0].id, ID);
        ck_assert(!more);
        snprintf(text, sizeof(text), "{\"items\":[%s]," LAST_PAGE "}", bad[i]);
        script_clear(&f.script);
        script_json(&f.script, "GET", "", 200, text);
        if (strstr(bad[i], SANDBOX) == NULL) {
            ck_assert_msg(f.provider.ops->find(f.provider.self, &f.call, SANDBOX, found, &flag, &more, &f.err) == -1,
                          "%s", bad[i]);
            /* Says which one; waiting does not help. It counts as a try of an operation: the provider was there. */
            ck_assert_int_eq(f.err.code, SK_ERR_PROVIDER_ERROR);
            ck_assert(!f.err.retryable);
            ck_assert_int_eq(f.err.provider_status, 200);
            ck_assert_msg(strstr(f.err.message, "object 1 of this sandbox") != NULL, "%s", f.err.message);
        } else { /* known by id and label: it can be removed */
            ck_assert_int_eq(f.provider.ops->find(f.provider.self, &f.call, SANDBOX, found, &count, &more, &f.err), 0);
            ck_assert_int_eq(count, 1);
            ck_assert_int_eq(found[0].state, SK_REMOTE_UNKNOWN);
        }
    }
    /* The others do not stand in for it, on whichever page it is, and no word of its own gets into a log as it is. */
    script_clear(&f.script);
    script_json(&f.script, "GET", "", 200, "{\"items\":[" OBJECT ",{\"id\":\"a\\nb/\u00fc\"}]," LAST_PAGE "}");
    ck_assert_int_eq(f.provider.ops->find(f.provider.self, &f.call, SANDBOX, found, &count, &more, &f.err), -1);
    ck_assert_int_eq(count, 0);
    ck_assert_msg(strstr(f.err.message, "object 2 of this sandbox (id \"a b/\xc3\xbc\") cannot be read: its id is") !=
                      NULL,
                  "%s", f.err.message);
    end(&f);
}
END_TEST

SK_CHECK_MAIN("opensandbox lists", test_too_many_objects, test_unreadable_objects)
