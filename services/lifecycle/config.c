/* SPDX-License-Identifier: Apache-2.0
 *
 * Configuration of sk-lifecycle: FastGPT's variables by their own names (reference §9), ours as SANDKEEP_*; the rules
 * between them; and how they become the settings of a replica. */
#include "services/lifecycle/service.h"

#include "proto/subjects.h"

#include <ctype.h>
#include <string.h>
#include <unistd.h>

#define MIN_MS(m)                               (m) * 60000
#define INT(field, env, def, lo, hi, unit, doc) SK_CONFIG_INT(struct lc_config, field, env, def, lo, hi, unit, doc)
#define STR(field, env, def, flags, doc)        SK_CONFIG_STRING(struct lc_config, field, env, def, flags, doc)

static const char *const provider_choices[] = {"opensandbox", "sealosdevbox", NULL};
static const char *const runtime_choices[] = {"none", "docker", "kubernetes", NULL};
static const char *const nats_schemes[] = {"nats", "tls", NULL};
static const char *const mongo_schemes[] = {"mongodb", "mongodb+srv", NULL};
static const char *const redis_schemes[] = {"redis", NULL};
static const char *const http_schemes[] = {"http", "https", NULL};

const struct sk_config_key lc_config_keys[] = {
    SK_CONFIG_URL(struct lc_config, nats_url, "SANDKEEP_NATS_URL", "nats://127.0.0.1:4222", nats_schemes,
                  SK_CONFIG_REQUIRED, "NATS servers, separated by commas."),
    STR(nats_token, "SANDKEEP_NATS_TOKEN", "", SK_CONFIG_SECRET, "Token for NATS; empty = none."),
    STR(nats_credentials_file, "SANDKEEP_NATS_CREDENTIALS_FILE", "", 0, "NATS credentials file; empty = none."),
    STR(subject_prefix, "SANDKEEP_SUBJECT_PREFIX", SK_SUBJECT_PREFIX_DEFAULT, SK_CONFIG_REQUIRED | SK_CONFIG_TOKEN,
        "First token of all subjects."),
    INT(ack_wait_ms, "SANDKEEP_NATS_ACK_WAIT_MS", 30000, 1000, 3600000, "ms",
        "A command without a sign of life for so long is delivered again."),
    INT(max_ack_pending, "SANDKEEP_NATS_MAX_ACK_PENDING", 20000, 1, 1000000, "count",
        "Commands delivered and not acknowledged, all replicas together."),
    INT(stream_replicas, "SANDKEEP_NATS_REPLICAS", 1, 1, 5, "count", "Replicas of each stream."),
    INT(commands_max_bytes, "SANDKEEP_NATS_COMMANDS_MAX_BYTES", 1073741824, 1048576, 1099511627776, "bytes",
        "Size of the command stream; new commands are refused when it is full."),
    INT(events_max_bytes, "SANDKEEP_NATS_EVENTS_MAX_BYTES", 2147483648, 1048576, 1099511627776, "bytes",
        "Size of the event stream; the oldest events go when it is full."),
    SK_CONFIG_URL(struct lc_config, mongodb_uri, "SANDKEEP_MONGODB_URI", "mongodb://127.0.0.1:27017/fastgpt",
                  mongo_schemes, SK_CONFIG_REQUIRED, "Mongo server and database."),
    INT(mongodb_pool, "SANDKEEP_MONGODB_POOL", 16, 1, 512, "count",
        "Connections to Mongo at most; at most 16 with the embedded server."),
    SK_CONFIG_BOOL(struct lc_config, source_check, "SANDKEEP_SOURCE_CHECK", on,
                   "Look in FastGPT's collections whether the App or Skill still exists."),
    STR(apps_collection, "SANDKEEP_APPS_COLLECTION", "apps", SK_CONFIG_REQUIRED, "FastGPT's collection of Apps."),
    STR(skills_collection, "SANDKEEP_SKILLS_COLLECTION", "agent_skills", SK_CONFIG_REQUIRED,
        "FastGPT's collection of Skills."),
    SK_CONFIG_URL(struct lc_config, redis_url, "SANDKEEP_REDIS_URL", "redis://127.0.0.1:6379", redis_schemes,
                  SK_CONFIG_REQUIRED, "Redis server for leases."),
    STR(redis_key_prefix, "SANDKEEP_REDIS_KEY_PREFIX", "fastgpt:", 0,
        "Prefix of all keys, as FastGPT's client adds it."),
    INT(redis_connections, "SANDKEEP_REDIS_CONNECTIONS", 16, 1, 256, "count", "Connections to Redis at most."),
    INT(redis_timeout_ms, "SANDKEEP_REDIS_TIMEOUT_MS", 1000, 10, 60000, "ms", "Connecting to Redis, and each command."),

    SK_CONFIG_ENUM(struct lc_config, provider, "AGENT_SANDBOX_PROVIDER", "opensandbox", provider_choices,
                   "Sandbox provider of new sandboxes."),
    SK_CONFIG_URL(struct lc_config, opensandbox_url, "AGENT_SANDBOX_OPENSANDBOX_BASEURL", "", http_schemes, 0,
                  "OpenSandbox server."),
    STR(opensandbox_key, "AGENT_SANDBOX_OPENSANDBOX_API_KEY", "", SK_CONFIG_SECRET, "Its API key."),
    STR(opensandbox_image, "AGENT_SANDBOX_OPENSANDBOX_IMAGE", "", 0, "Image of new sandboxes: repository[:tag]."),
    STR(opensandbox_entrypoint, "SANDKEEP_OPENSANDBOX_ENTRYPOINT", "", 0,
        "Entry point of sandboxes: a path or a JSON array; empty = tail -f /dev/null."),
    SK_CONFIG_ENUM(struct lc_config, opensandbox_runtime, "AGENT_SANDBOX_OPENSANDBOX_RUNTIME", "none", runtime_choices,
                   "Runtime behind OpenSandbox; docker sends FastGPT's network policy."),
    SK_CONFIG_BOOL(struct lc_config, opensandbox_proxy, "AGENT_SANDBOX_OPENSANDBOX_USE_SERVER_PROXY", true,
                   "Reach sandboxes through the OpenSandbox server."),
    SK_CONFIG_URL(struct lc_config, volume_manager_url, "AGENT_SANDBOX_OPENSANDBOX_VOLUME_MANAGER_URL", "",
                  http_schemes, 0, "Volume manager; empty = sandboxes without volumes."),
    STR(volume_manager_token, "AGENT_SANDBOX_OPENSANDBOX_VOLUME_MANAGER_TOKEN", "", SK_CONFIG_SECRET, "Its token."),
    STR(volume_prefix, "AGENT_SANDBOX_OPENSANDBOX_VOLUME_NAME_PREFIX", "fastgpt-session", SK_CONFIG_REQUIRED,
        "Prefix of new volume names: lower-case letters, digits and '-'."),
    STR(mount_path, "SANDKEEP_LIFECYCLE_MOUNT_PATH", "/workspace", SK_CONFIG_REQUIRED, "Where a volume is mounted."),
    INT(provider_timeout_ms, "SANDKEEP_PROVIDER_TIMEOUT_MS", 120000, 100, 3600000, "ms",
        "One request to the provider."),
    SK_CONFIG_DOUBLE(struct lc_config, cpu_count, "AGENT_SANDBOX_CPU_COUNT", 1, 0.01, 1024, "cores",
                     "CPU of a sandbox."),
    INT(memory_mib, "AGENT_SANDBOX_MEMORY_MIB", 2048, 16, 4194304, "MiB", "Memory of a sandbox."),
    SK_CONFIG_DOUBLE(struct lc_config, storage_gi, "AGENT_SANDBOX_STORAGE_SIZE_GI", 1, 0.3, 1048576, "GiB",
                     "Volume of a sandbox."),
    INT(suspend_minutes, "AGENT_SANDBOX_SUSPEND_MINUTES", 60, 0, 525600, "min",
        "An idle sandbox is stopped after so long; 0 = never."),
    INT(max_active, "AGENT_SANDBOX_MAX", 0, 0, 100000000, "count", "Active sandboxes at most; 0 = no limit."),
    INT(max_per_team, "AGENT_SANDBOX_MAX_PER_TEAM", 0, 0, 100000000, "count",
        "Active sandboxes of a team at most; 0 = no limit."),

    SK_CONFIG_LISTEN(struct lc_config, admin_listen, "SANDKEEP_LIFECYCLE_ADMIN_LISTEN", "127.0.0.1:0",
                     "Address of /livez, /readyz and /metrics."),
    INT(drain_seconds, "SANDKEEP_DRAIN_SECONDS", 25, 0, 3600, "s", "How long handing over may take after SIGTERM."),
    INT(start_limit_seconds, "SANDKEEP_START_LIMIT_SECONDS", 0, 0, 86400, "s",
        "Give up (exit 69) when a dependency cannot be reached for so long at start; 0 = wait for ever."),
    INT(workers, "SANDKEEP_LIFECYCLE_WORKERS", 64, 1, 512, "count", "Operations that run at the same time."),
    INT(rpc_workers, "SANDKEEP_LIFECYCLE_RPC_WORKERS", 8, 1, 128, "count", "Requests answered at the same time."),
    INT(park_limit, "SANDKEEP_LIFECYCLE_PARK_LIMIT", 1024, 1, 100000, "count", "Commands that wait for one sandbox."),
    INT(park_body_max, "SANDKEEP_LIFECYCLE_PARK_BODY_MAX", 1024, 64, 262144, "bytes",
        "Size of a command that may wait."),
    INT(total_limit, "SANDKEEP_LIFECYCLE_TOTAL_LIMIT", 20000, 16, 1000000, "count", "Commands held by this replica."),
    INT(default_deadline_ms, "SANDKEEP_LIFECYCLE_DEADLINE_MS", 10000, 1, 3600000, "ms",
        "Deadline of a command that names none."),
    INT(in_progress_ms, "SANDKEEP_LIFECYCLE_IN_PROGRESS_MS", 10000, 100, 3600000, "ms",
        "How often a held command gives a sign of life; less than half of the ack wait."),
    INT(poll_ms, "SANDKEEP_LIFECYCLE_POLL_MS", 1000, 10, 60000, "ms",
        "How often waiting commands look at their records."),
    INT(heartbeat_ms, "SANDKEEP_LIFECYCLE_HEARTBEAT_MS", 5000, 50, 600000, "ms", "Heartbeat of running operations."),
    INT(lease_ttl_ms, "SANDKEEP_LIFECYCLE_LEASE_TTL_MS", 15000, 200, 3600000, "ms", "Life of a lease without renewal."),
    INT(lease_renew_ms, "SANDKEEP_LIFECYCLE_LEASE_RENEW_MS", 2500, 20, 1200000, "ms",
        "How often leases are renewed; at most a third of their life."),
    INT(takeover_ms, "SANDKEEP_LIFECYCLE_TAKEOVER_MS", 30000, 500, 7200000, "ms",
        "Silence of an owner before its operation is taken over; at least three heartbeats and longer than a lease."),
    INT(stuck_grace_ms, "SANDKEEP_LIFECYCLE_STUCK_GRACE_MS", 10000, 100, 600000, "ms",
        "A worker that does not come back from a cancelled call for so long fails /livez."),
    INT(fastgpt_short_stale_ms, "SANDKEEP_FASTGPT_SHORT_STALE_MS", 900000, 1000, 86400000, "ms",
        "Age at which provisioning, stopping and deleting written by FastGPT are taken over."),
    INT(fastgpt_long_stale_ms, "SANDKEEP_FASTGPT_LONG_STALE_MS", 2700000, 1000, 86400000, "ms",
        "The same for its other transitional states."),
    INT(retry_limit, "SANDKEEP_LIFECYCLE_RETRY_LIMIT", 8, 1, 1000, "count",
        "Tries of an operation before it is blocked."),
    INT(retry_first_ms, "SANDKEEP_LIFECYCLE_RETRY_FIRST_MS", 1000, 1, 3600000, "ms",
        "Pause after the first failed try."),
    INT(retry_max_ms, "SANDKEEP_LIFECYCLE_RETRY_MAX_MS", 60000, 1, 3600000, "ms", "Longest pause between tries."),
    INT(command_failures_limit, "SANDKEEP_LIFECYCLE_COMMAND_FAILURES", 20, 1, 10000, "count",
        "Failures of our own before a command goes to the dead letters."),
    INT(relay_batch, "SANDKEEP_LIFECYCLE_RELAY_BATCH", 300, 1, 5000, "count", "Events published at once."),
    INT(relay_window_ms, "SANDKEEP_LIFECYCLE_RELAY_WINDOW_MS", 20, 0, 10000, "ms",
        "How long published events are collected before the timeline is written."),
    INT(relay_poll_ms, "SANDKEEP_LIFECYCLE_RELAY_POLL_MS", 1000, 10, 60000, "ms",
        "How often outboxes that others left are looked for."),
    INT(publish_timeout_ms, "SANDKEEP_LIFECYCLE_PUBLISH_TIMEOUT_MS", 5000, 50, 60000, "ms",
        "Waiting for the confirmation of a stream."),
    INT(stale_sweep_ms, "SANDKEEP_LIFECYCLE_STALE_SWEEP_MS", 2000, 50, 3600000, "ms", "Period of the stale sweep."),
    INT(idle_sweep_ms, "SANDKEEP_LIFECYCLE_IDLE_SWEEP_MS", 30000, 50, 3600000, "ms", "Period of the idle sweep."),
    INT(idle_look_max, "SANDKEEP_LIFECYCLE_IDLE_LOOK_MAX", 65536, 16, 1000000, "count",
        "Idle sandboxes that one idle sweep looks at; the next one goes on behind them."),
    INT(orphan_sweep_ms, "SANDKEEP_LIFECYCLE_ORPHAN_SWEEP_MS", 300000, 100, 86400000, "ms",
        "Period of the orphan sweep."),
    INT(quota_recount_ms, "SANDKEEP_LIFECYCLE_QUOTA_RECOUNT_MS", 600000, 100, 86400000, "ms",
        "Period of the quota recount."),
    INT(orphan_grace_ms, "SANDKEEP_LIFECYCLE_ORPHAN_GRACE_MS", 600000, 0, 604800000, "ms",
        "A provider object without a record is left alone for so long."),
    SK_CONFIG_BOOL(struct lc_config, orphan_remove, "SANDKEEP_LIFECYCLE_ORPHAN_REMOVE", false,
                   "Remove such objects; else they are only reported."),
    INT(quota_grace_ms, "SANDKEEP_LIFECYCLE_QUOTA_GRACE_MS", 60000, 0, 86400000, "ms",
        "A quota slot younger than this is never counted away."),
    INT(ready_timeout_ms, "SANDKEEP_LIFECYCLE_READY_TIMEOUT_MS", 300000, 100, 3600000, "ms",
        "How long a new sandbox may take to answer."),
    INT(phase_deadline_scale_pct, "SANDKEEP_LIFECYCLE_PHASE_DEADLINE_PERCENT", 100, 1, 1000, "%",
        "Scales the deadlines of all phases; tests shorten them."),
    SK_CONFIG_LOG_LEVEL(struct lc_config, log_level),
};
const size_t lc_config_key_count = sizeof(lc_config_keys) / sizeof(lc_config_keys[0]);

/* ---- rules between keys ------------------------------------------------------------------------- */
static bool label(const char *text)
{
    size_t len = strlen(text);

    for (size_t i = 0; i < len; i++) {
        if (!islower((unsigned char)text[i]) && !isdigit((unsigned char)text[i]) && (text[i] != '-' || i == 0))
            return false;
    }
    return len > 0 && len <= 180;
}

int lc_config_check(void *values, FILE *problems)
{
    const struct lc_config *c = values;
    int n = 0;

    n += sk_config_rule(c->takeover_ms >= 3 * c->heartbeat_ms, problems,
                        "SANDKEEP_LIFECYCLE_TAKEOVER_MS must be at least three times SANDKEEP_LIFECYCLE_HEARTBEAT_MS");
    n += sk_config_rule(c->takeover_ms > c->lease_ttl_ms, problems,
                        "SANDKEEP_LIFECYCLE_TAKEOVER_MS must be more than SANDKEEP_LIFECYCLE_LEASE_TTL_MS");
    n += sk_config_rule(
        c->lease_ttl_ms >= 3 * c->lease_renew_ms, problems,
        "SANDKEEP_LIFECYCLE_LEASE_TTL_MS must be at least three times SANDKEEP_LIFECYCLE_LEASE_RENEW_MS");
    n += sk_config_rule(c->in_progress_ms * 2 < c->ack_wait_ms, problems,
                        "SANDKEEP_LIFECYCLE_IN_PROGRESS_MS must be less than half of SANDKEEP_NATS_ACK_WAIT_MS");
    n += sk_config_rule(c->retry_first_ms <= c->retry_max_ms, problems,
                        "SANDKEEP_LIFECYCLE_RETRY_FIRST_MS must not be more than SANDKEEP_LIFECYCLE_RETRY_MAX_MS");
    n += sk_config_rule(c->stale_sweep_ms <= c->takeover_ms, problems,
                        "SANDKEEP_LIFECYCLE_STALE_SWEEP_MS must not be more than SANDKEEP_LIFECYCLE_TAKEOVER_MS");
    n += sk_config_rule(c->stream_replicas % 2 == 1, problems, "SANDKEEP_NATS_REPLICAS must be 1, 3 or 5");
    n += sk_config_rule(c->provider == 0, problems,
                        "AGENT_SANDBOX_PROVIDER: sealosdevbox is not available in this release");
    if (c->provider == 0)
        n += sk_config_rule(c->opensandbox_url[0] != '\0' && c->opensandbox_image[0] != '\0', problems,
                            "AGENT_SANDBOX_OPENSANDBOX_BASEURL and AGENT_SANDBOX_OPENSANDBOX_IMAGE are required when "
                            "AGENT_SANDBOX_PROVIDER is opensandbox");
    n += sk_config_rule(label(c->volume_prefix), problems,
                        "AGENT_SANDBOX_OPENSANDBOX_VOLUME_NAME_PREFIX must be lower-case letters, digits and '-'");
    n += sk_config_rule(c->mount_path[0] == '/' && strlen(c->mount_path) < SK_PATH_SIZE, problems,
                        "SANDKEEP_LIFECYCLE_MOUNT_PATH must be an absolute path");
    return n;
}

/* ---- settings ----------------------------------------------------------------------------------- */
/* At the last colon, unless a '/' follows it: then it belongs to a port (reference §7). */
static void split_image(const char *text, struct sk_image *out)
{
    const char *colon = strrchr(text, ':');

    memset(out, 0, sizeof(*out));
    if (colon != NULL && strchr(colon, '/') != NULL)
        colon = NULL;
    snprintf(out->repository, sizeof(out->repository), "%.*s", colon != NULL ? (int)(colon - text) : (int)strlen(text),
             text);
    if (colon != NULL)
        sk_copy_cut(out->tag, sizeof(out->tag), colon + 1);
    out->present = out->repository[0] != '\0';
}

static void replica_id(const struct sk_sched *sched, char *out, size_t size)
{
    char host[32] = "localhost";
    uint32_t chance;

    if (gethostname(host, sizeof(host)) != 0)
        memcpy(host, "localhost", sizeof("localhost"));
    host[sizeof(host) - 1] = '\0';
    sk_random(sched, &chance, sizeof(chance));
    snprintf(out, size, "%s:%d:%08x", host, (int)getpid(), chance);
}

void lc_config_settings(const struct lc_config *c, const struct sk_sched *sched, struct lc_settings *s)
{
    memset(s, 0, sizeof(*s));
    replica_id(sched, s->replica_id, sizeof(s->replica_id));
    sk_copy_cut(s->subject_prefix, sizeof(s->subject_prefix), c->subject_prefix);
    s->workers = (int)c->workers;
    s->park_limit = (int)c->park_limit;
    s->park_body_max = (int)c->park_body_max;
    s->total_limit = (int)c->total_limit;
    s->default_deadline_ms = c->default_deadline_ms;
    s->in_progress_every_ms = c->in_progress_ms;
    s->poll_parked_ms = c->poll_ms;
    s->heartbeat_ms = c->heartbeat_ms;
    s->lease_ttl_ms = c->lease_ttl_ms;
    s->lease_renew_ms = c->lease_renew_ms;
    s->takeover_ms = c->takeover_ms;
    s->stuck_grace_ms = c->stuck_grace_ms;
    s->fastgpt_short_stale_ms = c->fastgpt_short_stale_ms;
    s->fastgpt_long_stale_ms = c->fastgpt_long_stale_ms;
    s->retry_limit = (int)c->retry_limit;
    s->retry_first_ms = c->retry_first_ms;
    s->retry_max_ms = c->retry_max_ms;
    s->command_failures_limit = (int)c->command_failures_limit;
    s->relay_batch = (int)c->relay_batch;
    s->relay_window_ms = c->relay_window_ms;
    s->relay_poll_ms = c->relay_poll_ms;
    s->publish_timeout_ms = c->publish_timeout_ms;
    s->stale_sweep_ms = c->stale_sweep_ms;
    s->idle_sweep_ms = c->idle_sweep_ms;
    s->orphan_sweep_ms = c->orphan_sweep_ms;
    s->quota_recount_ms = c->quota_recount_ms;
    s->orphan_grace_ms = c->orphan_grace_ms;
    s->orphan_remove = c->orphan_remove;
    s->idle_stop_ms = c->suspend_minutes * 60000;
    s->idle_look_max = (int)c->idle_look_max;
    s->quota_global = c->max_active;
    s->quota_per_team = c->max_per_team;
    s->quota_grace_ms = c->quota_grace_ms;
    s->ready_timeout_ms = c->ready_timeout_ms;
    s->phase_deadline_scale_pct = c->phase_deadline_scale_pct;
    s->default_limit =
        (struct sk_limit){.present = true, .cpu_count = c->cpu_count, .memory_mib = (double)c->memory_mib};
    snprintf(s->default_limit.storage_size, sizeof(s->default_limit.storage_size), "%gGi", c->storage_gi);
    split_image(c->opensandbox_image, &s->default_image);
    sk_copy_cut(s->volume_prefix, sizeof(s->volume_prefix), c->volume_prefix);
    sk_copy_cut(s->mount_path, sizeof(s->mount_path), c->mount_path);
}
