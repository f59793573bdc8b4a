/* SPDX-License-Identifier: Apache-2.0
 *
 * The broker's judgement of a URL under libFuzzer. The first byte chooses how the text is read (alone, or as a redirect
 * from a fixed page) and under which policy; the rest is the URL. What passes must be what is sent: its canonical text,
 * read again, is the same target and passes again, and holds no user, control character or address inside. */
#include "services/code/broker/policy.h"

#include <stdlib.h>
#include <string.h>

static const char rules[] =
    "{\"default\":\"public\",\"rules\":[{\"queueId\":\"q\",\"allow\":[\"intranet\",\"10.0.0.1:8080\","
    "\"*.example.com\"],\"deny\":[\"*.evil.example\",\"9.9.9.9\"]}]}";

static void check(const struct code_target *target, const struct code_policy *policy, const char *queue_id)
{
    struct code_target again;
    char *text = NULL;

    if (target->literal && code_address_class((const struct sockaddr *)&target->address) == CODE_ADDRESS_NEVER)
        abort();
    if (target->port < 1 || target->port > 65535 || target->host[0] == '\0')
        abort();
    for (const char *p = target->host; *p != '\0'; p++)
        if ((unsigned char)*p <= ' ' || (unsigned char)*p >= 0x7f || strchr("/\\@#?[]%", *p) != NULL)
            abort();
    if (curl_url_get(target->url, CURLUPART_URL, &text, 0) != CURLUE_OK)
        abort();
    for (const char *p = text; *p != '\0'; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            abort();
    /* Encoding may make it longer than what is taken. */
    if (strlen(text) <= CODE_URL_MAX) {
        if (code_target_parse(&again, text, strlen(text), NULL) != CODE_REFUSED_NOT ||
            code_target_judge(&again, policy, queue_id) != CODE_REFUSED_NOT || strcmp(again.host, target->host) != 0 ||
            again.port != target->port || again.tls != target->tls || again.literal != target->literal)
            abort();
        code_target_fini(&again);
    }
    curl_free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct code_policy *policies[2];
    static CURLU *base;
    struct code_target target;
    const char *queue_id;
    struct code_policy *policy;

    if (base == NULL) {
        struct code_policy_options options = {.check_internal = true, .own_host = "sandbox"};
        struct sk_error err;

        policies[0] = code_policy_new(&options, &err);
        options = (struct code_policy_options){.text = rules, .length = sizeof(rules) - 1};
        policies[1] = code_policy_new(&options, &err);
        base = curl_url();
        if (policies[0] == NULL || policies[1] == NULL ||
            curl_url_set(base, CURLUPART_URL, "https://example.com/a/b?c", 0) != CURLUE_OK)
            abort();
    }
    if (size < 1)
        return 0;
    policy = policies[data[0] & 1];
    queue_id = (data[0] & 2) != 0 ? "q" : NULL;
    if (code_target_parse(&target, (const char *)data + 1, size - 1, (data[0] & 4) != 0 ? base : NULL) ==
            CODE_REFUSED_NOT &&
        code_target_judge(&target, policy, queue_id) == CODE_REFUSED_NOT)
        check(&target, policy, queue_id);
    code_target_fini(&target);
    return 0;
}
