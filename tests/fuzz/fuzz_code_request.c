/* SPDX-License-Identifier: Apache-2.0
 *
 * libFuzzer: the body of a code request. What is accepted keeps the promises of request.h; what is refused has a status
 * and a message; and whether a body is JSON at all is what another parser says too, as far as both can tell. */
#include "common/base/id.h"
#include "services/code/host/request.h"
#include "services/code/host/scan.h"

#include <assert.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *body = malloc(size > 0 ? size : 1);
    struct code_rejection rejection = {.status = 0};
    struct code_scan_fault fault;
    struct code_request request;
    struct code_span root;
    json_t *value;
    bool good;

    if (body == NULL)
        return 0;
    memcpy(body, data, size);
    good = code_scan(body, size, 100, NULL, NULL, &root, &fault);
    value = memchr(body, 0, size) == NULL ? json_loadb(body, size, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL) : NULL;
    /* All that jansson takes is taken (it is lax only about bytes of 0 behind the document). */
    assert(value == NULL || good || strcmp(fault.what, "it is nested too deeply") == 0);
    json_decref(value);
    if (!good)
        assert(fault.what != NULL && fault.offset <= size && fault.line >= 1 && fault.column >= 1);
    if (code_request_parse(body, size, 60000, &request, &rejection)) {
        assert(request.code_length > 0 && request.code[request.code_length] == '\0');
        assert(sk_utf8_length(request.code, request.code_length) > 0);
        assert(request.variables[0] == '{' && request.variables[request.variables_length] == '\0');
        assert(
            code_scan(request.variables, request.variables_length, CODE_REQUEST_DEPTH_MAX, NULL, NULL, &root, &fault));
        assert(root.kind == CODE_SCAN_OBJECT && root.length == request.variables_length);
        assert(request.timeout_ms >= 1 && request.timeout_ms <= 60000);
        assert(strlen(request.queue_id) < sizeof(request.queue_id));
        assert(sk_utf8_length(request.queue_id, strlen(request.queue_id)) >= 0);
    } else {
        assert(rejection.status == 400 || rejection.status == 200);
        assert(rejection.message[0] != '\0' && sk_utf8_length(rejection.message, strlen(rejection.message)) > 0);
    }
    free(body);
    return 0;
}
