/* SPDX-License-Identifier: Apache-2.0
 *
 * libFuzzer: the command parser. Input = subject, newline, value of Sandbox-Reply-To, newline, body. Whatever comes,
 * the parser must end with a verdict; and what it accepts must keep its promises. */
#include "services/lifecycle/command.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char name_reply[] = "Sandbox-Reply-To";
    struct sk_delivery delivery = {.header_count = 0};
    struct lc_command command;
    struct sk_error err = {.code = SK_OK};
    char reply[SK_BUS_HEADER_VALUE_MAX] = "";
    const uint8_t *end = memchr(data, '\n', size);

    if (end == NULL || (size_t)(end - data) >= sizeof(delivery.subject) ||
        memchr(data, 0, (size_t)(end - data)) != NULL)
        return 0;
    memcpy(delivery.subject, data, (size_t)(end - data));
    size -= (size_t)(end - data) + 1;
    data = end + 1;
    end = memchr(data, '\n', size);
    if (end == NULL || (size_t)(end - data) >= sizeof(reply))
        return 0;
    memcpy(reply, data, (size_t)(end - data));
    size -= (size_t)(end - data) + 1;
    data = end + 1;
    if (reply[0] != '\0')
        delivery.headers[delivery.header_count++] = (struct sk_header){name_reply, reply};
    delivery.body = malloc(size + 1);
    if (delivery.body == NULL)
        return 0;
    memcpy(delivery.body, data, size);
    delivery.body[size] = '\0';
    delivery.body_len = size;
    if (lc_command_parse(&delivery, "sandbox", 10000, &command, &err) == 0) {
        assert(command.verb != LC_VERB_NONE && command.id[0] != '\0' && strlen(command.hash) == 64);
        assert(sk_sandbox_id_valid(command.sandbox_id));
        assert(command.deadline_ms >= 1 && command.deadline_ms <= LC_DEADLINE_MS_MAX);
        assert(strncmp(command.reply_to, "sandbox.", 8) != 0 && command.reply_to[0] != '$');
    } else {
        assert(err.code == SK_ERR_INVALID_REQUEST || err.code == SK_ERR_IDENTITY_MISMATCH ||
               err.code == SK_ERR_SOURCE_UNSUPPORTED || err.code == SK_ERR_OPERATION_BLOCKED);
        assert(err.message[0] != '\0' && !err.retryable);
    }
    free(delivery.body);
    return 0;
}
