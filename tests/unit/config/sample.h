/* SPDX-License-Identifier: Apache-2.0
 * A table with a key of every type, and helpers for temporary files; for the two test programs of this folder. */
#ifndef SK_TESTS_CONFIG_SAMPLE_H
#define SK_TESTS_CONFIG_SAMPLE_H

#include "common/config/config.h"

#include <check.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct sample {
    char *name, *token, *listen, *nats, *mongo, *must;
    int64_t workers;
    double ratio;
    bool enabled;
    int mode, log_level;
};

static const char *const sample_modes[] = {"fast", "safe", NULL};
static const char *const sample_nats[] = {"nats", "tls", NULL};
static const char *const sample_mongo[] = {"mongodb", "mongodb+srv", NULL};

static const struct sk_config_key sample_keys[] = {
    SK_CONFIG_STRING(struct sample, name, "SKT_NAME", "somebody", 0, "Name."),
    SK_CONFIG_STRING(struct sample, token, "SKT_TOKEN", "", SK_CONFIG_SECRET, "Token | bearer."),
    SK_CONFIG_STRING(struct sample, must, "SKT_MUST", "given", SK_CONFIG_REQUIRED, "Never empty."),
    SK_CONFIG_INT(struct sample, workers, "SKT_WORKERS", 64, 1, 512, "count", "Worker threads."),
    SK_CONFIG_DOUBLE(struct sample, ratio, "SKT_RATIO", 0.5, 0, 1, "", "A ratio."),
    SK_CONFIG_BOOL(struct sample, enabled, "SKT_ENABLED", true, "A switch."),
    SK_CONFIG_ENUM(struct sample, mode, "SKT_MODE", "safe", sample_modes, "A choice."),
    SK_CONFIG_LISTEN(struct sample, listen, "SKT_LISTEN", ":0", "An address."),
    SK_CONFIG_URL(struct sample, nats, "SKT_NATS_URL", "nats://127.0.0.1:4222", sample_nats, 0, "NATS server."),
    SK_CONFIG_URL(struct sample, mongo, "SKT_MONGO_URI", "", sample_mongo, 0, "Mongo server."),
    SK_CONFIG_LOG_LEVEL(struct sample, log_level),
};
#define SAMPLE_COUNT (sizeof(sample_keys) / sizeof(sample_keys[0]))

static struct sample sample;
static struct sk_config sample_config = {
    .program = "sk-sample", .keys = sample_keys, .count = SAMPLE_COUNT, .values = &sample};

static const char *const sample_names[] = {"SKT_NAME",     "SKT_TOKEN",     "SKT_MUST",          "SKT_WORKERS",
                                           "SKT_RATIO",    "SKT_ENABLED",   "SKT_MODE",          "SKT_LISTEN",
                                           "SKT_NATS_URL", "SKT_MONGO_URI", "SANDKEEP_LOG_LEVEL"};

static inline void sample_clear(void)
{
    char file[64];

    for (size_t i = 0; i < SAMPLE_COUNT; i++) {
        unsetenv(sample_names[i]);
        snprintf(file, sizeof(file), "%s_FILE", sample_names[i]);
        unsetenv(file);
    }
    memset(&sample, 0, sizeof(sample));
}

/* Writes a temporary file and returns its name (unlink it). */
static inline char *sample_file(const char *content, size_t len)
{
    char *path = strdup("/tmp/sk-config-XXXXXX");
    int fd = mkstemp(path);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, content, len), (ssize_t)len);
    close(fd);
    return path;
}

static inline void sample_drop(char *path)
{
    unlink(path);
    free(path);
}

#endif
