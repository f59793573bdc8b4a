/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON over HTTP for provider adapters: nothing here trusts an answer to be what its status says. */
#define SK_WIRE_IMPLEMENTATION
#include "common/provider/wire.h"

#include "common/base/id.h"
#include "common/base/json.h"
#include "common/metrics/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define HEADERS_MAX 16

static const char *const operation_names[] = {
    [SK_WIRE_FIND] = "find",
    [SK_WIRE_LIST] = "list",
    [SK_WIRE_GET] = "get",
    [SK_WIRE_CREATE] = "create",
    [SK_WIRE_RESUME] = "resume",
    [SK_WIRE_REMOVE] = "remove",
    [SK_WIRE_RELABEL] = "relabel",
    [SK_WIRE_PROBE] = "probe",
    [SK_WIRE_PING] = "ping",
    [SK_WIRE_ENDPOINT] = "endpoint",
    [SK_WIRE_VOLUME_ENSURE] = "volume_ensure",
    [SK_WIRE_VOLUME_REMOVE] = "volume_remove",
    [SK_WIRE_EXEC] = "exec",
    [SK_WIRE_CONTROL] = "exec_control",
    [SK_WIRE_FILES] = "files",
    [SK_WIRE_OPERATION_COUNT] = NULL,
};

enum result { RESULT_OK, RESULT_REJECTED, RESULT_FAILED, RESULT_UNREACHABLE, RESULT_TIMEOUT, RESULT_CANCELLED };
static const char *const result_names[] = {"ok", "rejected", "failed", "unreachable", "timeout", "cancelled", NULL};

static struct sk_metric requests_total = {
    .name = "sandkeep_provider_requests_total",
    .help =
        "Requests to the sandbox provider by operation and result: ok (2xx), rejected (4xx), failed (5xx or another "
        "status), unreachable (refused, cut, not HTTP, too large), timeout, cancelled.",
    .kind = SK_METRIC_COUNTER,
    .labels = {{"operation", operation_names}, {"result", result_names}},
};

static struct sk_metric request_seconds = {
    .name = "sandkeep_provider_request_seconds",
    .help = "Time of a request to the sandbox provider, from its start to the end of the answer.",
    .kind = SK_METRIC_HISTOGRAM,
    .labels = {{"operation", operation_names}},
    .buckets = sk_buckets_latency,
};

static struct sk_metric unreadable_total = {
    .name = "sandkeep_provider_unreadable_objects_total",
    .help = "Objects in lists of the sandbox provider that make no sense and were left out; one that stays is counted "
            "in each sweep.",
    .kind = SK_METRIC_COUNTER,
};

const char *sk_wire_operation_name(enum sk_wire_operation operation)
{
    return operation_names[operation];
}

void sk_wire_metrics_register(void)
{
    sk_metric_register(&requests_total);
    sk_metric_register(&request_seconds);
    sk_metric_register(&unreadable_total);
}

void sk_wire_count_unreadable(void)
{
    sk_metric_add(&unreadable_total, 0, 0, 1);
}

void sk_wire_count(enum sk_wire_operation operation, const struct sk_http_response *response)
{
    enum result result = RESULT_UNREACHABLE;

    if (response->end == SK_HTTP_DONE)
        result = response->status / 100 == 2   ? RESULT_OK
                 : response->status / 100 == 4 ? RESULT_REJECTED
                                               : RESULT_FAILED;
    else if (response->end == SK_HTTP_TIMEOUT)
        result = RESULT_TIMEOUT;
    else if (response->end == SK_HTTP_CANCELLED || response->end == SK_HTTP_ABORTED)
        result = RESULT_CANCELLED;
    sk_metric_add(&requests_total, (int)operation, (int)result, 1);
    sk_metric_observe(&request_seconds, (int)operation, 0, (double)response->duration_us / 1e6);
}

int sk_wire_send(struct sk_call *call, enum sk_wire_operation operation, const struct sk_http_request *request,
                 struct sk_http_response *response, struct sk_error *err)
{
    struct sk_http_client *client = sk_http_call_client(call, NULL);
    int rc = sk_http_request(client, call, request, response, err);

    sk_wire_count(operation, response);
    return rc;
}

const char *sk_wire_text(const json_t *value)
{
    const char *text = json_string_value(value);

    return text != NULL && strlen(text) == json_string_length(value) ? text : NULL;
}

void sk_wire_clean(char *out, size_t size, const char *text)
{
    sk_copy_cut(out, size, text);
    for (unsigned char *p = (unsigned char *)out; *p != '\0'; p++) {
        if (*p < ' ' || *p == 0x7f)
            *p = ' ';
    }
}

/* {"detail":[{"loc":["body","image"],"msg":"field required"}]} -> "body.image: field required" */
static void read_validation(struct sk_wire_answer *answer, const json_t *detail)
{
    const json_t *first = json_array_get(detail, 0), *loc = json_object_get(first, "loc");
    const char *message = sk_wire_text(json_object_get(first, "msg"));
    char text[2 * SK_WIRE_DETAIL_SIZE];
    struct sk_buf path;
    size_t i;
    json_t *step;

    sk_buf_init(&path, 200);
    json_array_foreach (loc, i, step) {
        if (json_is_string(step))
            sk_buf_printf(&path, "%s%s", i > 0 ? "." : "", json_string_value(step));
        else if (json_is_integer(step))
            sk_buf_printf(&path, "%s%d", i > 0 ? "." : "", (int)json_integer_value(step));
    }
    snprintf(text, sizeof(text), "%s: %s", sk_buf_data(&path), message == NULL ? "not valid" : message);
    sk_buf_fini(&path);
    sk_wire_clean(answer->detail, sizeof(answer->detail), text);
}

/* The three shapes of an error (reference/providers.md §1.1) and execd's and the volume manager's {"error"}. */
static void read_error(struct sk_wire_answer *answer)
{
    const json_t *detail = json_object_get(answer->json, "detail");
    const char *code = sk_wire_text(json_object_get(answer->json, "code"));
    const char *message = sk_wire_text(json_object_get(answer->json, "message"));

    if (code != NULL)
        sk_wire_clean(answer->code, sizeof(answer->code), code);
    if (message == NULL)
        message = sk_wire_text(json_object_get(answer->json, "error"));
    if (message == NULL && json_is_object(detail)) {
        /* FastAPI's own wrapping, when a server does not flatten it */
        const char *inner = sk_wire_text(json_object_get(detail, "code"));
        if (inner != NULL && code == NULL)
            sk_wire_clean(answer->code, sizeof(answer->code), inner);
        message = sk_wire_text(json_object_get(detail, "message"));
    }
    if (message == NULL)
        message = sk_wire_text(detail);
    if (message != NULL)
        sk_wire_clean(answer->detail, sizeof(answer->detail), message);
    else if (json_is_array(detail))
        read_validation(answer, detail);
}

static bool is_html(const struct sk_http_response *response)
{
    const char *type = sk_http_response_header(response, "Content-Type", 0);
    const char *p = response->body;

    while (*p == ' ' || *p == '\r' || *p == '\n' || *p == '\t')
        p++;
    return (type != NULL && strncasecmp(type, "text/html", 9) == 0) || *p == '<';
}

void sk_wire_read(struct sk_wire_answer *answer, const struct sk_http_response *response)
{
    const struct sk_json_limits limits = {.max_bytes = SIZE_MAX, .max_depth = SK_WIRE_DEPTH_MAX};

    memset(answer, 0, sizeof(*answer));
    answer->status = response->status;
    answer->retry_after_ms = response->retry_after_ms;
    answer->empty = response->body_len == 0;
    if (answer->empty) {
        snprintf(answer->detail, sizeof(answer->detail), "empty body");
        return;
    }
    answer->json = sk_json_parse_object(response->body, response->body_len, &limits, NULL);
    if (answer->json == NULL) {
        answer->html = is_html(response);
        snprintf(answer->detail, sizeof(answer->detail), "%s of %zu bytes instead of a JSON object",
                 answer->html ? "an HTML page" : "a body", response->body_len);
        return;
    }
    if (response->status / 100 != 2)
        read_error(answer);
}

void sk_wire_answer_fini(struct sk_wire_answer *answer)
{
    json_decref(answer->json);
    answer->json = NULL;
}

int sk_wire_json(struct sk_call *call, const struct sk_wire_request *request, struct sk_wire_answer *answer,
                 struct sk_error *err)
{
    struct sk_http_header headers[HEADERS_MAX + 2];
    struct sk_http_response response = {0};
    char *body = NULL;
    size_t count = 0, body_len = 0;
    int rc = -1;

    memset(answer, 0, sizeof(*answer));
    if (request->url == NULL)
        return sk_fail(err, SK_ERR_INVALID_REQUEST, "%s: the address cannot be built",
                       sk_wire_operation_name(request->operation));
    for (; count < request->header_count && count < HEADERS_MAX; count++)
        headers[count] = request->headers[count];
    headers[count++] = (struct sk_http_header){"Accept", "application/json"};
    if (request->body != NULL) {
        body = sk_json_dump(request->body, false, &body_len, err);
        if (body == NULL)
            goto out;
        headers[count++] = (struct sk_http_header){"Content-Type", "application/json"};
    }
    rc = sk_wire_send(call, request->operation,
                      &(struct sk_http_request){.method = request->method,
                                                .url = request->url,
                                                .headers = headers,
                                                .header_count = count,
                                                .body = body,
                                                .body_len = body_len,
                                                .body_max = request->answer_max,
                                                .idempotent = request->idempotent,
                                                .idle_timeout_ms = -1, /* a create is silent for a minute */
                                                .total_timeout_ms = request->timeout_ms},
                      &response, err);
    if (rc == 0)
        sk_wire_read(answer, &response);
out:
    sk_http_response_fini(&response);
    free(body);
    free(request->url);
    return rc;
}

static bool worth_retrying(int status)
{
    switch (status) {
    case 401: /* a key that is being rotated */
    case 403:
    case 404: /* a gateway that has no route just now */
    case 408:
    case 409:
    case 425:
    case 429:
        return true;
    default:
        return status < 400 || status >= 500;
    }
}

int sk_wire_fail(struct sk_error *err, const struct sk_wire_answer *answer, const char *what)
{
    enum sk_code code = answer->status == 504 ? SK_ERR_PROVIDER_TIMEOUT : SK_ERR_PROVIDER_ERROR;
    const char *space = answer->code[0] != '\0' ? " " : "";

    sk_fail(err, code, "%s: HTTP %d%s%s: %s", what, answer->status, space, answer->code, answer->detail);
    if (err != NULL) {
        err->outcome = answer->status / 100 == 4 ? SK_OUTCOME_FAILED : SK_OUTCOME_UNKNOWN;
        err->retryable = worth_retrying(answer->status);
        err->retry_after_ms = answer->retry_after_ms;
        err->provider_status = answer->status;
    }
    return -1;
}

int sk_wire_fail_body(struct sk_error *err, const struct sk_wire_answer *answer, const char *what, const char *why)
{
    sk_fail_unknown(err, SK_ERR_PROVIDER_ERROR, "%s: HTTP %d but %s", what, answer->status, why);
    if (err != NULL)
        err->provider_status = answer->status;
    return -1;
}

bool sk_wire_absent(const struct sk_wire_answer *answer)
{
    return answer->status == 404 && answer->json != NULL && answer->code[0] != '\0';
}
