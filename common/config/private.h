/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared between the files of this folder only: the env-file table and how values are shown. */
#ifndef SK_CONFIG_PRIVATE_H
#define SK_CONFIG_PRIVATE_H

#include "common/config/config.h"

#define SK_CONFIG_VALUE_MAX    65536 /* bytes of one value; longer ones are refused */
#define SK_CONFIG_ENV_FILE_MAX (1024 * 1024)

/* The value that an --env-file gave to a variable that was not in the environment before, else NULL. */
const char *sk_config_env_file_get(const char *name);
/* Reads the env-files again into the private table (the environment itself is left alone: setenv is not thread-safe).
 * On a bad file the problem is written and the old table kept. */
int sk_config_env_file_reload(FILE *problems);
/* Forgets all (tests). */
void sk_config_env_file_reset(void);

/* Reads a whole file of at most `max` bytes, without NUL. Returns a string to be freed, NULL with err. */
char *sk_config_read_file(const char *path, size_t max, struct sk_error *err);

/* True when the value may be shown only in part; `out` gets the text to show (always filled, cut to size). */
void sk_config_mask(const struct sk_config_key *key, const char *value, char *out, size_t size);
/* "1..512 count", "one of debug, info", "true or false" … */
void sk_config_range(const struct sk_config_key *key, char *out, size_t size);

#endif
