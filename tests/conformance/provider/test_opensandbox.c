/* SPDX-License-Identifier: Apache-2.0
 *
 * The OpenSandbox adapter against a scripted server: what it sends, and what it makes of every kind of bad answer. */
#define SK_CHECK_TIMEOUT 120
#include "common/http/client.h"
#include "common/provider/execd.h"
#include "common/provider/provider.h"
#include "tests/conformance/provider/script.h"
#include "tests/unit/check_main.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define ID      "0d9c6f1e-7d7e-4c5a-9f0a-0123456789ab"
#define SANDBOX "app-0123456789abcdef"
#define JOB     "11111111-1111-4111-8111-111111111111"
#define CLAIM   "fastgpt-session-app-0123456789abcdef-0"
#define OBJECT                                                                                                         \
    "{\"id\":\"" ID "\",\"status\":{\"state\":\"Running\"},\"metadata\":{\"sessionId\":\"" SANDBOX                     \
    "\",\"sandkeep.dev/epoch\":\"7\",\"sandkeep.dev/operation\":\"" JOB "\"},\"createdAt\":\"2026-11-30T08:00:00Z\"}"
#define LAST_PAGE "\"pagination\":{\"page\":1,\"pageSize\":17,\"totalItems\":1,\"totalPages\":1,\"hasNextPage\":false}"

struct fixture {
    struct script script;
    struct sk_provider provider;
    struct sk_call call;
    struct sk_error err;
};

static void begin(struct fixture *f, int64_t timeout_ms, bool volumes)
{
    memset(f, 0, sizeof(*f));
    script_start(&f->script);
    sk_call_init(&f->call, &sk_sched_system);
    const struct sk_opensandbox_config config = {.base_url = peer_url(f->script.peer),
                                                 .api_key = "secret-key",
                                                 .use_server_proxy = true,
                                                 .volume_manager_url = volumes ? peer_url(f->script.peer) : "",
                                                 .volume_manager_token = "secret-token",
                                                 .entrypoint = "/home/sandbox/entrypoint.sh",
                                                 .request_timeout_ms = timeout_ms,
                                                 .answer_max_bytes = 2 * 1024 * 1024};
    ck_assert_int_eq(sk_opensandbox_new(&config, &sk_sched_system, &f->provider, &f->err), 0);
}

static void end(struct fixture *f)
{
    sk_http_call_release(&f->call);
    sk_opensandbox_free(&f->provider);
    script_stop(&f->script);
}

/* ---- every operation under one roof ----------------------------------------------------------------------------- */

enum op { FIND, LIST, GET, CREATE, RESUME, REMOVE, RELABEL, PROBE, VOLUME_ENSURE, VOLUME_REMOVE, PING, OP_COUNT };
static const char *const op_names[] = {"find",    "list",  "get",           "create",        "resume", "remove",
                                       "relabel", "probe", "volume_ensure", "volume_remove", "ping"};

static const struct sk_image image = {.present = true, .repository = "repo/image", .tag = "v1"};
static const struct sk_limit limit = {.present = true, .cpu_count = 0.5, .memory_mib = 512, .storage_size = "1Gi"};
static const struct sk_storage storage = {
    .present = true, .volume_name = "workspace", .claim_name = CLAIM, .volume_mount_path = "/workspace"};
static const struct sk_create_spec spec = {
    .sandbox_id = SANDBOX, .epoch = 7, .job_id = JOB, .image = &image, .limit = &limit, .storage = &storage};

/* *flag: found, gone, ready or more; -1 where the operation has none. */
static int run(struct fixture *f, enum op op, int *flag)
{
    const struct sk_provider_ops *ops = f->provider.ops;
    void *self = f->provider.self;
    struct sk_remote remotes[SK_REMOTES_MAX];
    bool value = false;
    int rc = -1, count = 0, unreadable = 0;

    *flag = -1;
    sk_error_clear(&f->err);
    switch (op) {
    case FIND:
        rc = ops->find(self, &f->call, SANDBOX, remotes, &count, &value, &f->err);
        *flag = count;
        return rc;
    case LIST:
        rc = ops->list(self, &f->call, 1, remotes, SK_REMOTES_MAX, &count, &unreadable, &value, &f->err);
        *flag = count;
        return rc;
    case GET:
        rc = ops->get(self, &f->call, ID, remotes, &value, &f->err);
        break;
    case CREATE:
        return ops->create(self, &f->call, &spec, remotes, &f->err);
    case RESUME:
        return ops->resume(self, &f->call, ID, &f->err);
    case REMOVE:
        rc = ops->remove(self, &f->call, ID, &value, &f->err);
        break;
    case RELABEL:
        rc = ops->relabel(self, &f->call, ID, 7, JOB, &value, &f->err);
        break;
    case PROBE:
        rc = ops->probe(self, &f->call, ID, &value, &f->err);
        break;
    case VOLUME_ENSURE:
        return ops->volume_ensure(self, &f->call, CLAIM, "1Gi", &f->err);
    case VOLUME_REMOVE:
        return ops->volume_remove(self, &f->call, CLAIM, &f->err);
    case PING:
        return ops->ping(self, &f->call, &f->err);
    default:
        break;
    }
    *flag = value;
    return rc;
}

/* ---- bad answers ------------------------------------------------------------------------------------------------ */

static char deep[200 * 1024], mebibyte[1024 * 1024 + 1];

static bool run_close(struct script *s, const struct peer_request *r, int fd)
{
    (void)s;
    (void)r;
    (void)fd;
    return false;
}

static bool run_reset(struct script *s, const struct peer_request *r, int fd)
{
    (void)s;
    (void)r;
    peer_reset_on_close(fd);
    return false;
}

static bool run_stall(struct script *s, const struct peer_request *r, int fd)
{
    (void)r;
    peer_stall(s->peer, fd, -1);
    return false;
}

static bool run_drip(struct script *s, const struct peer_request *r, int fd)
{
    (void)r;
    peer_text(fd, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n");
    peer_drip(s->peer, fd, "{\"id\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", 20);
    return false;
}

static bool run_gigabyte(struct script *s, const struct peer_request *r, int fd)
{
    (void)s;
    (void)r;
    peer_text(fd, "HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n");
    for (int i = 0; i < 1024 && peer_write(fd, mebibyte, 1024 * 1024); i++)
        ;
    return false;
}

static bool run_deep(struct script *s, const struct peer_request *r, int fd)
{
    (void)s;
    (void)r;
    peer_answer(fd, 200, "application/json", deep);
    return true;
}

enum verdict {
    ERR_UNKNOWN, /* error, outcome unknown */
    ERR_FAILED,  /* error, certainly no effect */
    GOOD,        /* no error */
    ABSENT,      /* no error, and the object is absent */
    NOT_READY,   /* no error, probe says no */
};

struct row {
    const char *what;
    struct script_rule rule;
    enum sk_code code;
    bool retryable;
    int status; /* provider_status, -1 = whatever had come in time */
    enum verdict usual;
    /* Operations that see it differently: one character per operation, '.' = as usual, u f g a n. */
    const char *others;
};

#define JSON(s, b)                                                                                                     \
    {                                                                                                                  \
        .status = (s), .body = (b)                                                                                     \
    }
#define TEXT(s, t, b)                                                                                                  \
    {                                                                                                                  \
        .status = (s), .type = (t), .body = (b)                                                                        \
    }
#define RAW(t)                                                                                                         \
    {                                                                                                                  \
        .raw = (t)                                                                                                     \
    }
#define PE SK_ERR_PROVIDER_ERROR

/* others:                              find list get create resume remove relabel probe vol+ vol- ping */
static const struct row rows[] = {
    {"closed without an answer", {.run = run_close}, PE, true, 0, ERR_UNKNOWN, ""},
    {"reset without an answer", {.run = run_reset}, PE, true, 0, ERR_UNKNOWN, ""},
    {"no answer", {.run = run_stall}, SK_ERR_PROVIDER_TIMEOUT, true, 0, ERR_UNKNOWN, ""},
    {"a byte now and then", {.run = run_drip}, SK_ERR_PROVIDER_TIMEOUT, true, -1, ERR_UNKNOWN, ""},
    {"1 GiB", {.run = run_gigabyte}, PE, false, 200, ERR_UNKNOWN, ""},
    {"cut in the body", RAW("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"id\""), PE, true, 200, ERR_UNKNOWN, ""},
    {"cut headers", RAW("HTTP/1.1 200 OK\r\nCont"), PE, true, 200, ERR_UNKNOWN, ""},
    {"broken chunks", RAW("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n{}\r\n"), PE, true, 200,
     ERR_UNKNOWN, ""},
    {"not HTTP", RAW("220 smtp.example.com ESMTP\r\n"), PE, true, 0, ERR_UNKNOWN, ""},
    {"500 with a code", JSON(500, "{\"code\":\"DOCKER::SANDBOX_START_FAILED\",\"message\":\"x\"}"), PE, true, 500,
     ERR_UNKNOWN, ""},
    {"502 page", TEXT(502, "text/html", "<html><h1>Bad Gateway</h1></html>"), PE, true, 502, ERR_UNKNOWN, ""},
    {"503 text", TEXT(503, "text/plain", "Service Unavailable"), PE, true, 503, ERR_UNKNOWN, ""},
    {"503 with a code", JSON(503, "{\"code\":\"DOCKER::INITIALIZATION_ERROR\",\"message\":\"x\"}"), PE, true, 503,
     ERR_UNKNOWN, ".......n..."},
    {"504 with a code", JSON(504, "{\"code\":\"KUBERNETES::POD_READY_TIMEOUT\",\"message\":\"x\"}"),
     SK_ERR_PROVIDER_TIMEOUT, true, 504, ERR_UNKNOWN, ""},
    {"599 empty", JSON(599, ""), PE, true, 599, ERR_UNKNOWN, ""},
    {"400 with a code", JSON(400, "{\"code\":\"SANDBOX::INVALID_PARAMETER\",\"message\":\"no\"}"), PE, false, 400,
     ERR_FAILED, ""},
    {"401", JSON(401, "{\"code\":\"INVALID_API_KEY\",\"message\":\"no\"}"), PE, true, 401, ERR_FAILED, ""},
    {"401 of execd's shape", JSON(401, "{\"error\":\"Unauthorized: x\"}"), PE, true, 401, ERR_FAILED, ""},
    {"403 page", TEXT(403, "text/html", "<html>"), PE, true, 403, ERR_FAILED, ""},
    {"404 of the API", JSON(404, "{\"code\":\"DOCKER::SANDBOX_NOT_FOUND\",\"message\":\"x\"}"), PE, true, 404,
     ERR_FAILED, "..a..aan.g."},
    {"404 of an unknown route", JSON(404, "{\"detail\":\"Not Found\"}"), PE, true, 404, ERR_FAILED, ".........g."},
    {"404 page of a gateway", TEXT(404, "text/html", "<html>default backend</html>"), PE, true, 404, ERR_FAILED, ""},
    {"404 text of a gateway", TEXT(404, "text/plain", "default backend - 404"), PE, true, 404, ERR_FAILED, ""},
    {"404 empty", JSON(404, ""), PE, true, 404, ERR_FAILED, ".........g."},
    {"405", JSON(405, "{\"detail\":\"Method Not Allowed\"}"), PE, false, 405, ERR_FAILED, ""},
    {"409 not paused", JSON(409, "{\"code\":\"DOCKER::SANDBOX_NOT_PAUSED\",\"message\":\"x\"}"), PE, true, 409,
     ERR_FAILED, "....g..n..."},
    {"409 not running", JSON(409, "{\"code\":\"DOCKER::SANDBOX_NOT_RUNNING\",\"message\":\"x\"}"), PE, true, 409,
     ERR_FAILED, ".......n..."},
    {"413 page", TEXT(413, "text/html", "<html>"), PE, false, 413, ERR_FAILED, ""},
    {"422 validation",
     JSON(422, "{\"detail\":[{\"type\":\"missing\",\"loc\":[\"body\",\"image\",0],\"msg\":\"Field required\"}]}"), PE,
     false, 422, ERR_FAILED, ""},
    {"429", RAW("HTTP/1.1 429 X\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n"), PE, true, 429, ERR_FAILED, ""},
    {"302", RAW("HTTP/1.1 302 X\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"), PE, true, 302,
     ERR_UNKNOWN, ""},
    {"200 page", TEXT(200, "text/html", "<html>log in</html>"), PE, true, 200, ERR_UNKNOWN, "....gg...g."},
    {"200 truncated JSON", JSON(200, "{\"items\":[{\"id\":\"abc\",\"status\":{\"sta"), PE, true, 200, ERR_UNKNOWN,
     "....gg...g."},
    {"200 empty", JSON(200, ""), PE, true, 200, ERR_UNKNOWN, "....gg...g."},
    {"200 an array", JSON(200, "[1,2]"), PE, true, 200, ERR_UNKNOWN, "....gg...g."},
    {"200 {}", JSON(200, "{}"), PE, true, 200, ERR_UNKNOWN, "....gg...gg"},
    {"200 null", JSON(200, "null"), PE, true, 200, ERR_UNKNOWN, "....gg...g."},
    {"204", {.status = 204}, PE, true, 204, ERR_UNKNOWN, "....gg...g."},
    {"200 100k deep", {.run = run_deep}, PE, true, 200, ERR_UNKNOWN, "....gg...g."},
    {"200 not UTF-8", JSON(200, "{\"id\":\"\xff\xfe\"}"), PE, true, 200, ERR_UNKNOWN, "....gg...g."},
    {"200 duplicate keys", JSON(200, "{\"id\":\"a\",\"id\":\"b\"}"), PE, true, 200, ERR_UNKNOWN, "....gg...g."},
    {"200 numbers out of range", JSON(200, "{\"id\":1e999}"), PE, true, 200, ERR_UNKNOWN, "....gg...g."},
    {"200 NUL in the id", JSON(200, "{\"id\":\"a\\u0000b\",\"status\":{\"state\":\"Running\"}}"), PE, true, 200,
     ERR_UNKNOWN, "....gg...gg"},
    {"200 wrong types",
     JSON(200, "{\"id\":7,\"status\":\"Running\",\"items\":{},\"pagination\":[],\"endpoint\":7,\"claimName\":[],"
               "\"metadata\":3}"),
     PE, true, 200, ERR_UNKNOWN, "....gg...gg"},
    {"200 an id that climbs", JSON(200, "{\"id\":\"../../x\",\"status\":{\"state\":\"Running\"}}"), PE, true, 200,
     ERR_UNKNOWN, "....gg...gg"},
    {"200 another object",
     JSON(200,
          "{\"id\":\"other\",\"status\":{\"state\":\"Running\"},\"endpoint\":\"evil@host\",\"claimName\":\"other\"}"),
     PE, true, 200, ERR_UNKNOWN, "...ggg...gg"},
    {"200 items without pagination", JSON(200, "{\"items\":[]}"), PE, true, 200, ERR_UNKNOWN, "....gg...gg"},
    {"200 items of junk", JSON(200, "{\"items\":[7]," LAST_PAGE "}"), PE, true, 200, ERR_UNKNOWN, ".g..gg...gg"},
    {"200 items of others",
     JSON(200, "{\"items\":[{\"id\":\"x\",\"status\":{\"state\":\"Running\"},\"metadata\":{\"sessionId\":\"app-"
               "ffffffffffffffff\"}}]," LAST_PAGE "}"),
     PE, true, 200, ERR_UNKNOWN, ".g..gg...gg"},
};

static enum verdict verdict_of(const struct row *row, enum op op)
{
    switch (strlen(row->others) == OP_COUNT ? row->others[op] : '.') {
    case 'u':
        return ERR_UNKNOWN;
    case 'f':
        return ERR_FAILED;
    case 'g':
        return GOOD;
    case 'a':
        return ABSENT;
    case 'n':
        return NOT_READY;
    default:
        return row->usual;
    }
}

START_TEST(test_bad_answers)
{
    struct fixture f;

    memset(deep, '[', 100 * 1024);
    memset(mebibyte, 'm', sizeof(mebibyte) - 1);
    begin(&f, 250, true);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct row *row = &rows[i];

        ck_assert_msg(row->others[0] == '\0' || strlen(row->others) == OP_COUNT, "%s", row->what);
        for (int op = 0; op < OP_COUNT; op++) {
            struct script_rule rule = row->rule;
            int flag, rc, before = peer_request_count(f.script.peer);
            enum verdict verdict = verdict_of(row, (enum op)op);

            rule.method = rule.prefix = "";
            script_clear(&f.script);
            script_add(&f.script, rule);
            rc = run(&f, (enum op)op, &flag);
            ck_assert_msg(rc == (verdict <= ERR_FAILED ? -1 : 0), "%s: %s: %d %s", op_names[op], row->what, rc,
                          f.err.message);
            ck_assert_msg(verdict != ABSENT || flag == (op == REMOVE), "%s: %s: not absent", op_names[op], row->what);
            ck_assert_msg(verdict != NOT_READY || flag == 0, "%s: %s: ready", op_names[op], row->what);
            if (rc != 0) {
                /* What does not mend its ways by itself: a volume manager that answers another name, an object of the
                 * sandbox's own that cannot be read. */
                bool stays = (op == VOLUME_ENSURE && strcmp(row->what, "200 another object") == 0) ||
                             (op == FIND && strcmp(row->what, "200 items of junk") == 0);

                ck_assert_msg(f.err.code == row->code, "%s: %s: %s", op_names[op], row->what, f.err.message);
                ck_assert_msg(f.err.outcome == (verdict == ERR_UNKNOWN ? SK_OUTCOME_UNKNOWN : SK_OUTCOME_FAILED),
                              "%s: %s: outcome %d: %s", op_names[op], row->what, f.err.outcome, f.err.message);
                ck_assert_msg(f.err.retryable == (row->retryable && !stays), "%s: %s: retryable %d", op_names[op],
                              row->what, f.err.retryable);
                ck_assert_msg(row->status < 0 || f.err.provider_status == row->status, "%s: %s: status %d",
                              op_names[op], row->what, f.err.provider_status);
                ck_assert_msg(strstr(f.err.message, "secret") == NULL, "%s", f.err.message);
            }
            /* One request and not one more, whatever came back. */
            ck_assert_msg(peer_request_count(f.script.peer) == before + 1 + (op == PING && rc == 0),
                          "%s: %s: %d requests", op_names[op], row->what, peer_request_count(f.script.peer) - before);
        }
    }
    end(&f);
}
END_TEST

START_TEST(test_refused)
{
    struct sk_opensandbox_config config = {.base_url = "", .request_timeout_ms = 1000};
    char url[64];
    struct fixture f = {0};

    snprintf(url, sizeof(url), "http://127.0.0.1:%d", peer_refused_port());
    config.base_url = config.volume_manager_url = url;
    sk_call_init(&f.call, &sk_sched_system);
    ck_assert_int_eq(sk_opensandbox_new(&config, &sk_sched_system, &f.provider, &f.err), 0);
    for (int op = 0; op < OP_COUNT; op++) {
        int flag;

        ck_assert_msg(run(&f, (enum op)op, &flag) == -1, "%s", op_names[op]);
        ck_assert_int_eq(f.err.code, SK_ERR_PROVIDER_ERROR);
        ck_assert_msg(f.err.outcome == SK_OUTCOME_FAILED, "%s: %s", op_names[op], f.err.message);
        ck_assert(f.err.retryable);
    }
    sk_http_call_release(&f.call);
    sk_opensandbox_free(&f.provider);
}
END_TEST

START_TEST(test_details_of_errors)
{
    struct fixture f;
    int flag;

    begin(&f, 1000, true);
    script_json(&f.script, "POST", "/v1/sandboxes", 422,
                "{\"detail\":[{\"loc\":[\"body\",\"image\",0],\"msg\":\"Field required\"},{}]}");
    ck_assert_int_eq(run(&f, CREATE, &flag), -1);
    ck_assert_ptr_nonnull(strstr(f.err.message, "body.image.0: Field required"));

    script_clear(&f.script);
    script_json(&f.script, "POST", "/v1/sandboxes", 400,
                "{\"code\":\"VOLUME::PVC_NOT_FOUND\",\"message\":\"line\\r\\n\\u001b[31mtwo\"}");
    ck_assert_int_eq(run(&f, CREATE, &flag), -1);
    ck_assert_ptr_nonnull(strstr(f.err.message, "HTTP 400 VOLUME::PVC_NOT_FOUND: line   [31mtwo"));
    ck_assert(f.err.retryable); /* the claim was ensured a moment ago */

    script_clear(&f.script);
    script_add(&f.script, (struct script_rule){.method = "",
                                               .prefix = "",
                                               .raw = "HTTP/1.1 429 X\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n"});
    ck_assert_int_eq(run(&f, REMOVE, &flag), -1);
    ck_assert_int_eq(f.err.retry_after_ms, 3000);
    end(&f);
}
END_TEST

/* ---- what is sent ----------------------------------------------------------------------------------------------- */

static void check_header(const struct peer_request *seen, const char *name, const char *expected)
{
    char value[256] = "(absent)";

    peer_header(seen, name, value, sizeof(value));
    ck_assert_str_eq(value, expected == NULL ? "(absent)" : expected);
}

START_TEST(test_requests)
{
    struct peer_request seen;
    struct sk_remote remote;
    struct fixture f;
    bool found = false;
    int flag;

    begin(&f, 5000, true);
    script_json(&f.script, "GET", "/v1/sandboxes?", 200, "{\"items\":[" OBJECT "]," LAST_PAGE "}");
    script_json(&f.script, "GET", "/v1/sandboxes/" ID, 200, OBJECT);
    script_json(&f.script, "POST", "/v1/sandboxes/" ID "/resume", 202, "");
    script_json(&f.script, "POST", "/v1/sandboxes", 202, OBJECT);
    script_json(&f.script, "PATCH", "/v1/sandboxes/" ID "/metadata", 200, OBJECT);
    script_json(&f.script, "DELETE", "/v1/sandboxes/" ID, 204, "");
    script_json(&f.script, "POST", "/v1/volumes/ensure", 201, "{\"claimName\":\"" CLAIM "\",\"created\":true}");
    script_json(&f.script, "DELETE", "/v1/volumes/" CLAIM, 204, "");
    script_json(&f.script, "GET", "/health", 200, "{\"status\":\"healthy\"}");

    ck_assert_int_eq(run(&f, FIND, &flag), 0);
    ck_assert_int_eq(flag, 1);
    ck_assert(peer_last(f.script.peer, "GET", "", &seen));
    ck_assert_str_eq(seen.target, "/v1/sandboxes?metadata=sessionId%3D" SANDBOX "&page=1&pageSize=200");
    check_header(&seen, "OPEN-SANDBOX-API-KEY", "secret-key");
    check_header(&seen, "Authorization", NULL);
    peer_request_free(&seen);

    ck_assert_int_eq(run(&f, LIST, &flag), 0);
    ck_assert(peer_last(f.script.peer, "GET", "", &seen));
    ck_assert_str_eq(seen.target, "/v1/sandboxes?page=1&pageSize=16");
    peer_request_free(&seen);

    ck_assert_int_eq(f.provider.ops->get(f.provider.self, &f.call, ID, &remote, &found, &f.err), 0);
    ck_assert(found);
    ck_assert_str_eq(remote.id, ID);
    ck_assert_str_eq(remote.sandbox_id, SANDBOX);
    ck_assert_str_eq(remote.job_id, JOB);
    ck_assert_int_eq(remote.epoch, 7);
    ck_assert_int_eq(remote.state, SK_REMOTE_RUNNING);
    ck_assert_int_eq(remote.created_at, 1796025600000);

    ck_assert_int_eq(run(&f, CREATE, &flag), 0);
    ck_assert(peer_last(f.script.peer, "POST", "/v1/sandboxes", &seen));
    ck_assert_str_eq(seen.target, "/v1/sandboxes");
    check_header(&seen, "Content-Type", "application/json");
    check_header(&seen, "OPEN-SANDBOX-API-KEY", "secret-key");
    json_t *body = json_loads(seen.body, JSON_REJECT_DUPLICATES, NULL);
    json_t *expected = json_loads(
        "{\"image\":{\"uri\":\"repo/image:v1\"},\"entrypoint\":[\"/home/sandbox/entrypoint.sh\"],"
        "\"resourceLimits\":{\"cpu\":\"0.5\",\"memory\":\"512Mi\"},"
        "\"env\":{\"FASTGPT_SESSION_ID\":\"" SANDBOX
        "\",\"FASTGPT_WORKDIR\":\"/workspace\",\"IDE_AGENT_ENABLED\":\"true\","
        "\"FASTGPT_IDE_MAX_FILE_BYTES\":\"379584512\"},"
        "\"metadata\":{\"sessionId\":\"" SANDBOX "\",\"sandkeep.dev/epoch\":\"7\",\"sandkeep.dev/operation\":\"" JOB
        "\"},"
        "\"volumes\":[{\"name\":\"workspace\",\"pvc\":{\"claimName\":\"" CLAIM
        "\",\"createIfNotExists\":false,\"deleteOnSandboxTermination\":false},\"mountPath\":\"/workspace\"}],"
        "\"extensions\":{},\"secureAccess\":false}",
        0, NULL);
    ck_assert_ptr_nonnull(expected);
    ck_assert_msg(json_equal(body, expected), "%s", seen.body);
    json_decref(body);
    json_decref(expected);
    peer_request_free(&seen);

    ck_assert_int_eq(run(&f, RESUME, &flag), 0);
    ck_assert(peer_last(f.script.peer, "POST", "", &seen));
    ck_assert_str_eq(seen.target, "/v1/sandboxes/" ID "/resume");
    check_header(&seen, "Content-Length", "0");
    peer_request_free(&seen);

    ck_assert_int_eq(run(&f, RELABEL, &flag), 0);
    ck_assert(peer_last(f.script.peer, "PATCH", "", &seen));
    ck_assert_str_eq(seen.target, "/v1/sandboxes/" ID "/metadata");
    ck_assert_str_eq(seen.body, "{\"sandkeep.dev/epoch\":\"7\",\"sandkeep.dev/operation\":\"" JOB "\"}");
    peer_request_free(&seen);

    ck_assert_int_eq(run(&f, REMOVE, &flag), 0);
    ck_assert_int_eq(flag, 0);
    ck_assert(peer_last(f.script.peer, "DELETE", "", &seen));
    ck_assert_str_eq(seen.target, "/v1/sandboxes/" ID);
    check_header(&seen, "Content-Length", NULL);
    peer_request_free(&seen);

    ck_assert_int_eq(run(&f, VOLUME_ENSURE, &flag), 0);
    ck_assert(peer_last(f.script.peer, "POST", "", &seen));
    ck_assert_str_eq(seen.target, "/v1/volumes/ensure");
    ck_assert_str_eq(seen.body, "{\"claimName\":\"" CLAIM "\",\"storageSize\":\"1Gi\"}");
    check_header(&seen, "Authorization", "Bearer secret-token");
    check_header(&seen, "OPEN-SANDBOX-API-KEY", NULL);
    peer_request_free(&seen);

    ck_assert_int_eq(run(&f, VOLUME_REMOVE, &flag), 0);
    ck_assert(peer_last(f.script.peer, "DELETE", "", &seen));
    ck_assert_str_eq(seen.target, "/v1/volumes/" CLAIM);
    check_header(&seen, "Authorization", "Bearer secret-token");
    peer_request_free(&seen);

    ck_assert_int_eq(run(&f, PING, &flag), 0);
    end(&f);
}
END_TEST

START_TEST(test_relabel_is_checked)
{
    struct fixture f;
    bool found = true;

    begin(&f, 1000, false);
    script_json(&f.script, "PATCH", "", 200, OBJECT); /* still epoch 7: another writer won */
    ck_assert_int_eq(f.provider.ops->relabel(f.provider.self, &f.call, ID, 8, JOB, &found, &f.err), -1);
    ck_assert_int_eq(f.err.outcome, SK_OUTCOME_UNKNOWN);
    ck_assert(!found);
    end(&f);
}
END_TEST

START_TEST(test_volumes_off)
{
    struct fixture f;
    int flag;

    begin(&f, 1000, false);
    ck_assert(!f.provider.ops->has_volumes);
    ck_assert_int_eq(run(&f, VOLUME_ENSURE, &flag), 0);
    ck_assert_int_eq(run(&f, VOLUME_REMOVE, &flag), 0);
    ck_assert_int_eq(peer_request_count(f.script.peer), 0);
    end(&f);
}
END_TEST

/* ---- the command channel ---------------------------------------------------------------------------------------- */

static void add_endpoint(struct fixture *f, const char *endpoint, const char *headers, char *text, size_t size)
{
    snprintf(text, size, "{\"endpoint\":\"%s\"%s%s}", endpoint,
             headers == NULL ? "" : ",\"headers\":", headers == NULL ? "" : headers);
    script_json(&f->script, "GET", "/v1/sandboxes/" ID "/endpoints/44772?use_server_proxy=true", 200, text);
}

START_TEST(test_probe)
{
    struct peer_request seen;
    char text[512], endpoint[128];
    struct fixture f;
    int flag;

    begin(&f, 1000, false);
    snprintf(endpoint, sizeof(endpoint), "127.0.0.1:%d/v1/sandboxes/" ID "/proxy/44772/", peer_port(f.script.peer));
    add_endpoint(&f, endpoint, "{\"X-EXECD-ACCESS-TOKEN\":\"tok\"}", text, sizeof(text));
    script_json(&f.script, "GET", "/v1/sandboxes/" ID "/proxy/44772/ping", 200, "");
    ck_assert_int_eq(run(&f, PROBE, &flag), 0);
    ck_assert_int_eq(flag, 1);
    ck_assert(peer_last(f.script.peer, "GET", "/v1/sandboxes/" ID "/proxy/44772/ping", &seen));
    check_header(&seen, "X-EXECD-ACCESS-TOKEN", "tok");
    check_header(&seen, "OPEN-SANDBOX-API-KEY", "secret-key"); /* it is the lifecycle server itself */
    peer_request_free(&seen);

    static const struct {
        int status;
        const char *type, *body;
        int rc, ready;
    } pings[] = {
        {204, "", "", 0, 1},
        {200, "text/html", "<html>wait</html>", 0, 0},
        {404, "application/json", "{\"code\":\"DOCKER::SANDBOX_NOT_FOUND\",\"message\":\"x\"}", 0, 0},
        {409, "application/json", "{\"code\":\"DOCKER::SANDBOX_NOT_RUNNING\",\"message\":\"x\"}", 0, 0},
        {500, "text/plain", "x", 0, 0},
        {502, "application/json", "{\"code\":\"GENERAL::UNKNOWN_ERROR\",\"message\":\"x\"}", 0, 0},
        {503, "text/plain", "no healthy upstream", 0, 0},
        {401, "application/json", "{\"error\":\"Unauthorized\"}", -1, 0},
        {302, "text/plain", "", -1, 0},
    };
    for (size_t i = 0; i < sizeof(pings) / sizeof(pings[0]); i++) {
        script_clear(&f.script);
        add_endpoint(&f, endpoint, NULL, text, sizeof(text));
        script_add(&f.script, (struct script_rule){.method = "GET",
                                                   .prefix = "/v1/sandboxes/" ID "/proxy",
                                                   .status = pings[i].status,
                                                   .type = pings[i].type,
                                                   .body = pings[i].body});
        ck_assert_msg(run(&f, PROBE, &flag) == pings[i].rc, "ping %d: %s", pings[i].status, f.err.message);
        ck_assert_msg(flag == pings[i].ready, "ping %d: ready %d", pings[i].status, flag);
    }
    /* Kubernetes: it exists and has no address yet, which is a 404 with another code. */
    script_clear(&f.script);
    script_json(&f.script, "GET", "", 404, "{\"code\":\"KUBERNETES::POD_IP_NOT_AVAILABLE\",\"message\":\"x\"}");
    ck_assert_int_eq(run(&f, PROBE, &flag), 0);
    ck_assert_int_eq(flag, 0);
    struct sk_execd execd;
    bool found = true;
    ck_assert_int_eq(sk_opensandbox_execd(&f.provider, &f.call, ID, &execd, &found, &f.err), -1);
    ck_assert(!found);
    end(&f);
}
END_TEST

START_TEST(test_probe_of_other_hosts)
{
    struct peer_request seen;
    char text[512], endpoint[128];
    struct script direct;
    struct fixture f;
    int flag;

    begin(&f, 1000, false);
    script_start(&direct);
    script_json(&direct, "GET", "/proxy/44772/ping", 200, "");
    snprintf(endpoint, sizeof(endpoint), "127.0.0.1:%d/proxy/44772", peer_port(direct.peer));
    add_endpoint(&f, endpoint, "{\"OpenSandbox-Secure-Access\":\"sa\"}", text, sizeof(text));
    ck_assert_int_eq(run(&f, PROBE, &flag), 0);
    ck_assert_int_eq(flag, 1);
    ck_assert(peer_last(direct.peer, "GET", "", &seen));
    check_header(&seen, "OpenSandbox-Secure-Access", "sa");
    check_header(&seen, "OPEN-SANDBOX-API-KEY", NULL); /* never to a host that runs users' code */
    peer_request_free(&seen);
    script_stop(&direct);

    /* Nobody there, and silence: not ready. */
    script_clear(&f.script);
    snprintf(endpoint, sizeof(endpoint), "127.0.0.1:%d", peer_refused_port());
    add_endpoint(&f, endpoint, NULL, text, sizeof(text));
    ck_assert_int_eq(run(&f, PROBE, &flag), 0);
    ck_assert_int_eq(flag, 0);
    end(&f);
}
END_TEST

START_TEST(test_bad_endpoints)
{
    static const char *const bad[] = {
        "{}",
        "{\"endpoint\":7}",
        "{\"endpoint\":\"\"}",
        "{\"endpoint\":\"user@host:1/x\"}",
        "{\"endpoint\":\"host:1/x?y\"}",
        "{\"endpoint\":\"host:99999/x\"}",
        "{\"endpoint\":\"host/\\r\\nX: y\"}",
        "{\"endpoint\":\"h\",\"headers\":[]}",
        "{\"endpoint\":\"h\",\"headers\":{\"A\":1}}",
        "{\"endpoint\":\"h\",\"headers\":{\"A\":\"x\\r\\nB: y\"}}",
        "{\"endpoint\":\"h\",\"headers\":{\"\":\"x\"}}",
        "{\"endpoint\":\"h\",\"headers\":{\"Host\":\"x\"}}",
        "{\"endpoint\":\"h\",\"headers\":{\"Content-Length\":\"9\"}}",
        ("{\"endpoint\":\"h\",\"headers\":{\"a\":\"1\",\"b\":\"1\",\"c\":\"1\",\"d\":\"1\",\"e\":\"1\",\"f\":\"1\","
         "\"g\":\"1\",\"h\":\"1\",\"i\":\"1\"}}"),
    };
    struct sk_execd execd;
    struct fixture f;
    bool found;

    begin(&f, 1000, false);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        script_clear(&f.script);
        script_json(&f.script, "GET", "", 200, bad[i]);
        ck_assert_msg(sk_opensandbox_execd(&f.provider, &f.call, ID, &execd, &found, &f.err) == -1, "%s", bad[i]);
        ck_assert_int_eq(f.err.code, SK_ERR_PROVIDER_ERROR);
        ck_assert(!found);
    }
    script_clear(&f.script);
    script_json(&f.script, "GET", "", 200, "{\"endpoint\":\"[::1]:8/x/\",\"headers\":null}");
    ck_assert_int_eq(sk_opensandbox_execd(&f.provider, &f.call, ID, &execd, &found, &f.err), 0);
    ck_assert(found);
    ck_assert_str_eq(execd.url, "http://[::1]:8/x");
    ck_assert_int_eq(execd.header_count, 0);
    end(&f);
}
END_TEST

START_TEST(test_bad_ids)
{
    static const char *const bad[] = {"", ".", "..", "a/b", "a b", "a?b", "%2e%2e", "a\nb"};
    struct sk_remote remote;
    struct fixture f;
    bool flag;
    int count;

    begin(&f, 1000, false);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ck_assert_int_eq(f.provider.ops->get(f.provider.self, &f.call, bad[i], &remote, &flag, &f.err), -1);
        ck_assert_int_eq(f.err.code, SK_ERR_INVALID_REQUEST);
        ck_assert_int_eq(f.provider.ops->remove(f.provider.self, &f.call, bad[i], &flag, &f.err), -1);
        ck_assert_int_eq(f.provider.ops->find(f.provider.self, &f.call, bad[i], &remote, &count, &flag, &f.err), -1);
    }
    ck_assert_int_eq(peer_request_count(f.script.peer), 0);
    end(&f);
}
END_TEST

START_TEST(test_call_ended_before)
{
    struct fixture f;

    begin(&f, 1000, true);
    sk_call_cancel(&f.call);
    for (int op = 0; op < OP_COUNT; op++) {
        int flag;

        ck_assert_msg(run(&f, (enum op)op, &flag) == -1, "%s", op_names[op]);
        ck_assert_int_eq(f.err.code, SK_ERR_CANCELLED);
        ck_assert_int_eq(f.err.outcome, SK_OUTCOME_FAILED);
    }
    ck_assert_int_eq(peer_request_count(f.script.peer), 0);
    end(&f);
}
END_TEST

SK_CHECK_MAIN("opensandbox adapter", test_bad_answers, test_refused, test_details_of_errors, test_requests,
              test_relabel_is_checked, test_volumes_off, test_probe, test_probe_of_other_hosts, test_bad_endpoints,
              test_bad_ids, test_call_ended_before)
