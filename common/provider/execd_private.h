/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by execd.c (commands) and execd_files.c. */
#ifndef SK_PROVIDER_EXECD_PRIVATE_H
#define SK_PROVIDER_EXECD_PRIVATE_H

#include "common/provider/execd.h"
#include "common/provider/wire.h"

/* Fills `out` (SK_EXECD_HEADERS_MAX entries) and returns their number. */
size_t sk_execd_headers(const struct sk_execd *execd, struct sk_http_header *out);
/* execd.url + "/" + segments (NULL-terminated) + one optional query. NULL = cannot be built. */
char *sk_execd_url(const struct sk_execd *execd, const char *const *segments, const char *query, const char *value);
/* One JSON call to execd; as sk_wire_json, which frees `url`. */
int sk_execd_json(const struct sk_execd *execd, struct sk_call *call, enum sk_wire_operation operation,
                  const char *method, char *url, struct sk_wire_answer *answer, struct sk_error *err);

#endif
