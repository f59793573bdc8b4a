/* SPDX-License-Identifier: Apache-2.0
 *
 * The program around lc_core: its configuration and the pieces that main.c wires. */
#ifndef SK_LIFECYCLE_SERVICE_H
#define SK_LIFECYCLE_SERVICE_H

#include "common/config/config.h"
#include "common/health/health.h"
#include "services/lifecycle/lifecycle.h"

/* Filled by sk_config from the environment; docs/configuration.md is made from the table in config.c. */
struct lc_config {
    int log_level;
    char *admin_listen;
    int64_t drain_seconds, start_limit_seconds;
    /* NATS */
    char *nats_url, *nats_token, *nats_credentials_file, *subject_prefix;
    int64_t ack_wait_ms, max_ack_pending, stream_replicas, commands_max_bytes, events_max_bytes;
    /* Mongo, Redis */
    char *mongodb_uri, *apps_collection, *skills_collection;
    int64_t mongodb_pool;
    bool source_check;
    char *redis_url, *redis_key_prefix;
    int64_t redis_connections, redis_timeout_ms;
    /* Provider: FastGPT's names */
    int provider;
    char *opensandbox_url, *opensandbox_key, *opensandbox_image, *opensandbox_entrypoint;
    int opensandbox_runtime;
    bool opensandbox_proxy;
    char *volume_manager_url, *volume_manager_token, *volume_prefix, *mount_path;
    int64_t provider_timeout_ms;
    double cpu_count, storage_gi;
    int64_t memory_mib;
    int64_t suspend_minutes, max_active, max_per_team;
    /* One key per bound of struct lc_settings */
    int64_t workers, rpc_workers, park_limit, park_body_max, total_limit, default_deadline_ms, in_progress_ms, poll_ms;
    int64_t heartbeat_ms, lease_ttl_ms, lease_renew_ms, takeover_ms, stuck_grace_ms;
    int64_t fastgpt_short_stale_ms, fastgpt_long_stale_ms;
    int64_t retry_limit, retry_first_ms, retry_max_ms, command_failures_limit;
    int64_t relay_batch, relay_window_ms, relay_poll_ms, publish_timeout_ms;
    int64_t idle_look_max;
    int64_t stale_sweep_ms, idle_sweep_ms, orphan_sweep_ms, quota_recount_ms, orphan_grace_ms, quota_grace_ms;
    bool orphan_remove;
    int64_t ready_timeout_ms, phase_deadline_scale_pct;
};

extern const struct sk_config_key lc_config_keys[];
extern const size_t lc_config_key_count;
/* Rules between keys; one line per problem. Returns their number. */
int lc_config_check(void *values, FILE *problems);
/* `sched` makes the replica id. */
void lc_config_settings(const struct lc_config *config, const struct sk_sched *sched, struct lc_settings *out);

/* Metrics: sandkeep_lifecycle_<counter>_total and gauges; the hook that counts. */
void lc_metrics_register(struct lc_replica *replica);
void lc_metrics_counted(void *arg, enum lc_counter counter, int64_t delta);
void lc_metrics_ended(void *arg, enum sk_op op, enum lc_ending ending, int64_t duration_us);
void lc_metrics_published(void *arg, int64_t delay_us);
void lc_metrics_forget(void); /* before the replica is freed */

#endif
