/* SPDX-License-Identifier: Apache-2.0
 *
 * sk-lifecycle: wiring only. The loop thread owns the dispatcher, timers, signals and the admin listener; workers are
 * started when jobs wait for them; one thread each keeps heartbeats, relays events, finishes commands, polls and
 * sweeps; the keeper waits for the dependencies at start and watches them afterwards. */
#include "common/base/loop.h"
#include "common/base/version.h"
#include "common/bus/service.h"
#include "common/faults/faults.h"
#include "common/http/admin.h"
#include "common/http/client.h"
#include "common/log/log.h"
#include "proto/subjects.h"
#include "services/lifecycle/service.h"

#include <curl/curl.h>
#include <malloc.h>
#include <mongoc/mongoc.h>
#include <nats/nats.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#define WORKER_LOOK_MS   2
#define STRAY_SWEEP_MS   300000
#define KEEPER_PERIOD_MS 2000
#define PROVIDER_EVERY   5 /* periods: the provider is asked less often */
#define TRIM_EVERY       15
#define KEEPER_SLACK_NS  200000000UL /* its timers may be that late, to fire together with others */
#define RETRY_FIRST_MS   100
#define RETRY_MAX_MS     2000
#define PING_MS          3000
#define CONNECT_MS       200 /* the bus connects in its own thread: it gets a moment before it counts as away */
#define RPC_STOP_MS      2000
#define END_MS           5000 /* of the drain time at most: publishing, answering and ending the threads */
#define JOIN_MIN_MS      100
#define EXIT_UNREACHABLE 69
#define STACK_BYTES      (256 * 1024) /* measured: at most 48 KiB are touched */
#define WORKER_STACK     (512 * 1024)
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STACK_FACTOR 8
#else
#define STACK_FACTOR 1
#endif

static struct lc_config values;
static struct sk_config config = {.program = "sk-lifecycle", .keys = lc_config_keys, .values = &values};

static struct service {
    struct sk_loop *loop;
    struct sk_health *health;
    struct sk_dependency *nats_up, *mongo_up, *redis_up, *provider_up;
    struct sk_admin *admin;
    struct lc_settings settings;
    struct sk_store store;
    struct sk_lease_service lease;
    struct sk_provider provider;
    struct sk_bus_nats *nats;
    struct sk_bus bus;
    struct lc_replica *replica;
    struct sk_workers *rpc_workers;
    struct sk_bus_service *rpc;
    uv_async_t bell;
    struct sk_timer *tick;
    pthread_t mains[6], keeper, drainer, *workers;
    int main_count, worker_count;
    bool has_keeper, has_drainer;
    atomic_int transit; /* deliveries between the bus and the dispatcher */
    atomic_bool stopping;
    bool serving;
    struct sk_gate *gate; /* wakes the keeper */
    int status;
} s;

static bool setup_only;

/* ---- threads ------------------------------------------------------------------------------------ */
/* Signals belong to the loop thread. */
static int start_thread(pthread_t *thread, size_t stack, void *(*run)(void *), void *arg, const char *name)
{
    pthread_attr_t attr;
    sigset_t all, old;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, stack * STACK_FACTOR);
    rc = pthread_create(thread, &attr, run, arg);
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0)
        SK_LOG_ERROR("cannot start a thread", SK_F("thread", name), SK_F("reason", strerror(rc)));
    else
        pthread_setname_np(*thread, name);
    return rc == 0 ? 0 : -1;
}

static void *run_worker(void *arg)
{
    lc_worker_main(arg);
    return NULL;
}

struct main_thread {
    void (*run)(struct lc_replica *replica);
    const char *name;
};

static void *run_main(void *arg)
{
    const struct main_thread *thread = arg;

    thread->run(s.replica);
    return NULL;
}

static int start_mains(void)
{
    static struct main_thread mains[] = {{lc_heartbeat_main, "lc-heartbeat"}, {lc_lease_main, "lc-lease"},
                                         {lc_relay_main, "lc-relay"},         {lc_finisher_main, "lc-finisher"},
                                         {lc_sweep_main, "lc-sweep"},         {lc_poller_main, "lc-poller"}};

    for (size_t i = 0; i < sizeof(mains) / sizeof(mains[0]); i++) {
        if (start_thread(&s.mains[s.main_count], STACK_BYTES, run_main, &mains[i], mains[i].name) != 0)
            return -1;
        s.main_count++;
    }
    return 0;
}

/* ---- the dispatcher on the loop ----------------------------------------------------------------- */
static void pump(void)
{
    lc_dispatch_inbox(s.replica);
    sk_timer_start(s.tick, (uint64_t)lc_dispatch_tick(s.replica), 0);
    while (s.worker_count < s.settings.workers && lc_worker_wanted(s.replica)) {
        if (start_thread(&s.workers[s.worker_count], WORKER_STACK, run_worker, s.replica, "lc-worker") != 0)
            break;
        s.worker_count++;
        if (s.worker_count > 1) {
            /* The new one may take it all: looked at again in a moment, because it may also stay away for long. */
            sk_timer_start(s.tick, WORKER_LOOK_MS, 0);
            break;
        }
    }
}

static void on_bell(uv_async_t *bell)
{
    (void)bell;
    pump();
}

static void on_tick(void *arg)
{
    (void)arg;
    pump();
}

/* Any thread. */
static void wake_dispatcher(void *arg)
{
    (void)arg;
    uv_async_send(&s.bell);
}

/* Only while it is so: a worker that comes back after all ends what it did, and works on. */
static bool no_worker_stuck(void *arg, char *why, size_t size)
{
    struct lc_gauges gauges = {.stuck_workers = 0};

    (void)arg;
    if (s.replica != NULL)
        lc_replica_gauges(s.replica, &gauges);
    if (gauges.stuck_workers > 0)
        snprintf(why, size, "%lld did not come back from a cancelled call", (long long)gauges.stuck_workers);
    return gauges.stuck_workers == 0;
}

static void worker_end(void *arg, struct sk_call *call)
{
    (void)arg;
    sk_http_call_release(call);
}

/* ---- from the bus: hand over only --------------------------------------------------------------- */
struct arrival {
    struct sk_loop_task task;
    struct sk_delivery *delivery;
};

static void arrive(struct sk_loop_task *task)
{
    struct arrival *arrival = (struct arrival *)(void *)task;

    lc_dispatch_delivery(s.replica, arrival->delivery);
    atomic_fetch_sub(&s.transit, 1);
    free(arrival);
    pump();
}

static void on_delivery(void *arg, struct sk_delivery *delivery)
{
    struct arrival *arrival = malloc(sizeof(*arrival));

    (void)arg;
    if (arrival == NULL) {
        sk_delivery_drop(delivery);
        return;
    }
    arrival->task.run = arrive;
    arrival->delivery = delivery;
    atomic_fetch_add(&s.transit, 1);
    sk_loop_post_task(s.loop, &arrival->task);
}

static int want(void *arg)
{
    int room = lc_dispatch_want(s.replica) - atomic_load(&s.transit);

    (void)arg;
    return room > 0 ? room : 0;
}

static void hint(void *arg)
{
    lc_dispatch_hint(s.replica, arg);
    free(arg);
}

static void hint_all(void *arg)
{
    (void)arg;
    lc_dispatch_hint(s.replica, NULL);
}

/* "<prefix>.evt.<sandboxId>.lifecycle.<end>": somebody may wait for this. */
static void on_event(void *arg, const char *subject, const char *reply, const char *body, size_t len)
{
    const char *id = subject + strlen(values.subject_prefix) + strlen(".evt.");
    char *copy;

    (void)arg;
    (void)reply;
    (void)body;
    (void)len;
    if (!lc_dispatch_hint_wanted(s.replica))
        return;
    copy = strndup(id, strcspn(id, "."));
    if (copy != NULL && !sk_loop_post(s.loop, hint, copy))
        free(copy); /* the poll sees it */
}

static void on_wake(void *arg, const char *subject, const char *reply, const char *body, size_t len)
{
    (void)arg;
    (void)subject;
    (void)reply;
    (void)body;
    (void)len;
    (void)!sk_loop_post(s.loop, hint_all, NULL);
}

static char *answer_request(void *arg, const char *method, const char *body, size_t len)
{
    (void)arg;
    return lc_rpc(s.replica, method, body, len);
}

static int subscribe(struct sk_error *err)
{
    /* What ends an operation. Claims and phases wake nobody: each would cost every replica a message. */
    static const char *const ends[] = {"completed", "failed", "blocked", "deleted"};
    static char commands[SK_SUBJECT_SIZE];
    /* Exactly the filters of consumers that exist: a command of a service that is not there yet must be answered, too,
     * and would wait for a day. A new consumer adds its filter here, one release before it is started. */
    const char *const known[] = {commands};
    char events[SK_SUBJECT_SIZE], wake[SK_SUBJECT_SIZE];
    const char *prefix = values.subject_prefix;
    const struct sk_bus_service_config service = {
        .service = "lifecycle", .workers = s.rpc_workers, .handler = answer_request};

    snprintf(commands, sizeof(commands), SK_SUBJECT_FILTER_LIFECYCLE_FMT, prefix);
    for (int i = 0; i < 4; i++) {
        snprintf(events, sizeof(events), "%s.evt.*.lifecycle.%s", prefix, ends[i]);
        if (sk_bus_nats_subscribe(s.nats, events, NULL, on_event, NULL, err) != 0)
            return -1;
    }
    snprintf(wake, sizeof(wake), SK_SUBJECT_WAKE_FMT, prefix);
    if (sk_bus_nats_subscribe(s.nats, wake, NULL, on_wake, NULL, err) != 0 ||
        sk_bus_service_start(s.nats, &service, &s.rpc, err) != 0 ||
        sk_bus_nats_strays(s.nats, known, 1, STRAY_SWEEP_MS, on_delivery, NULL, err) != 0)
        return -1;
    return sk_bus_nats_pull(s.nats, SK_CONSUMER_LIFECYCLE, commands, want, on_delivery, NULL, err);
}

/* ---- dependencies ------------------------------------------------------------------------------- */
static void open_call(struct sk_call *call)
{
    sk_call_init(call, &sk_sched_system);
    call->deadline_us = sk_mono_us(&sk_sched_system) + PING_MS * 1000;
}

static bool report(struct sk_dependency *dependency, int rc, const struct sk_error *err)
{
    if (rc == 0)
        sk_dependency_up(dependency);
    else
        sk_dependency_down(dependency, err);
    return rc == 0;
}

static bool check_nats(void)
{
    struct sk_error err = {.code = SK_OK};

    return report(s.nats_up, s.bus.ops->connected(s.bus.self) ? 0 : sk_bus_nats_wait(s.nats, CONNECT_MS, &err), &err);
}

static bool check_mongo(void)
{
    struct sk_error err = {.code = SK_OK};
    struct sk_call call;

    open_call(&call);
    return report(s.mongo_up, s.store.ops->ping(s.store.self, &call, &err), &err);
}

static bool check_redis(void)
{
    struct sk_error err = {.code = SK_OK};
    struct sk_call call;

    open_call(&call);
    return report(s.redis_up, s.lease.ops->ping(s.lease.self, &call, &err), &err);
}

/* The connection is kept with the call: a new one each time would cost more than the question. */
static void check_provider(struct sk_call *call)
{
    struct sk_error err = {.code = SK_OK};

    call->deadline_us = sk_mono_us(&sk_sched_system) + PING_MS * 1000;
    (void)report(s.provider_up, s.provider.ops->ping(s.provider.self, call, &err), &err);
}

static void pause_keeper(int64_t ms)
{
    uint64_t ticket = sk_gate_ticket(&sk_sched_system, s.gate);

    if (!atomic_load(&s.stopping))
        sk_gate_wait(&sk_sched_system, s.gate, ticket, ms);
}

/* Streams, consumers, indexes: idempotent, at every start. */
static int set_up(struct sk_error *err)
{
    struct sk_call call;

    if (sk_bus_nats_setup(s.nats, err) != 0)
        return -1;
    sk_call_init(&call, &sk_sched_system);
    return s.store.ops->setup(s.store.self, &call, err);
}

/* Until everything needed is there. False: stopped, or the start limit has passed (then s.status says so). */
static bool wait_for_dependencies(void)
{
    int64_t end_us = sk_mono_us(&sk_sched_system) + values.start_limit_seconds * 1000000;
    int64_t pause_ms = RETRY_FIRST_MS;
    bool told = false;

    while (!atomic_load(&s.stopping)) {
        struct sk_error err = {.code = SK_OK};
        bool nats = check_nats(), redis = check_redis(), mongo = check_mongo(); /* the slowest to fail comes last */

        if (nats && mongo && redis) {
            if (set_up(&err) == 0)
                return true;
            if (!told)
                SK_LOG_WARN("setting up streams and indexes failed and is tried again", SK_FE(&err));
            told = true;
        }
        if (values.start_limit_seconds > 0 && sk_mono_us(&sk_sched_system) >= end_us) {
            SK_LOG_ERROR("dependencies stayed unreachable", SK_FI("seconds", values.start_limit_seconds),
                         SK_FB("nats", nats), SK_FB("mongo", mongo), SK_FB("redis", redis), SK_FE(&err));
            s.status = EXIT_UNREACHABLE;
            return false;
        }
        pause_keeper(pause_ms);
        pause_ms = pause_ms * 2 > RETRY_MAX_MS ? RETRY_MAX_MS : pause_ms * 2;
    }
    return false;
}

static void finish_loop(void *arg);

static void serve(void *arg)
{
    struct sk_error err = {.code = SK_OK};

    (void)arg;
    if (atomic_load(&s.stopping))
        return;
    if (start_mains() != 0 || subscribe(&err) != 0) {
        SK_LOG_ERROR("cannot start", SK_FE(&err));
        s.status = 1;
        raise(SIGTERM);
        return;
    }
    s.serving = true;
    sk_health_set_started(s.health);
    SK_LOG_INFO("serving", SK_F("replica", s.settings.replica_id));
    pump();
}

static void *run_keeper(void *arg)
{
    int64_t next_us, now_us;
    struct sk_call provider;

    (void)arg;
    /* Also of the threads made from here: the Mongo driver's monitors, which look twice a second for nothing. */
    (void)prctl(PR_SET_TIMERSLACK, KEEPER_SLACK_NS, 0, 0, 0);
    if (!wait_for_dependencies()) {
        if (s.status != 0)
            (void)!sk_loop_post(s.loop, finish_loop, NULL);
        return NULL;
    }
    (void)!sk_loop_post(s.loop, serve, NULL);
    sk_call_init(&provider, &sk_sched_system);
    next_us = sk_mono_us(&sk_sched_system);
    for (unsigned turn = 0; !atomic_load(&s.stopping); turn++) {
        (void)check_nats();
        /* Who was just heard of is not asked: the relay's scan speaks with the store every second. */
        if (lc_replica_store_sign(s.replica) != LC_SIGN_GOOD)
            (void)check_mongo();
        else
            sk_dependency_up(s.mongo_up);
        if (lc_replica_lease_sign(s.replica) != LC_SIGN_GOOD)
            (void)check_redis();
        else
            sk_dependency_up(s.redis_up);
        if (turn % PROVIDER_EVERY == 0)
            check_provider(&provider);
        if (turn % TRIM_EVERY == TRIM_EVERY - 1 && atomic_load(&s.transit) == 0 && lc_replica_drained(s.replica))
            malloc_trim(0); /* what a burst of commands took goes back when nothing is left of it */
        now_us = sk_mono_us(&sk_sched_system);
        next_us += KEEPER_PERIOD_MS * 1000;
        if (next_us <= now_us)
            next_us = now_us + KEEPER_PERIOD_MS * 1000;
        pause_keeper((next_us - now_us + 999) / 1000);
    }
    sk_http_call_release(&provider);
    return NULL;
}

/* A signal that comes before there is a loop to take it must not kill: it waits, then ends the service in order. */
static void hold_signals(bool hold)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(hold ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
}

/* ---- the end ------------------------------------------------------------------------------------ */
static void admin_gone(void *arg)
{
    (void)arg;
    s.admin = NULL;
    sk_loop_stop(s.loop);
}

static void finish_loop(void *arg)
{
    (void)arg;
    atomic_store(&s.stopping, true);
    sk_timer_free(s.tick);
    s.tick = NULL;
    uv_close((uv_handle_t *)&s.bell, NULL);
    sk_admin_stop(s.admin, admin_gone, NULL);
}

/* False: a thread hangs in a call that does not come back. All of them share what is left of the drain time: dozens
 * that hang must not get their patience one after the other. */
static bool join(pthread_t thread, const struct timespec *until)
{
    return pthread_clockjoin_np(thread, NULL, CLOCK_MONOTONIC, until) == 0;
}

static void end_threads(int64_t end_us)
{
    int64_t least_us = sk_mono_us(&sk_sched_system) + JOIN_MIN_MS * 1000;
    int64_t until_us = end_us > least_us ? end_us : least_us;
    struct timespec until = {.tv_sec = until_us / 1000000, .tv_nsec = until_us % 1000000 * 1000};
    bool hung = false;

    lc_replica_stop(s.replica);
    for (int i = 0; i < s.worker_count; i++)
        hung = !join(s.workers[i], &until) || hung;
    for (int i = 0; i < s.main_count; i++)
        hung = !join(s.mains[i], &until) || hung;
    if (hung) {
        /* Everything that could be handed over was; memory that a hung thread may still use cannot be freed. */
        SK_LOG_ERROR("ending with a thread that does not come back");
        _exit(s.status);
    }
}

/* Blocks, so it has a thread: stop the pull, hand over, flush, end. */
static void *run_drainer(void *arg)
{
    int64_t drain_us = values.drain_seconds * 1000000;
    int64_t end_us = sk_mono_us(&sk_sched_system) + drain_us;
    int64_t hand_over_us = end_us - (drain_us / 5 < END_MS * 1000 ? drain_us / 5 : END_MS * 1000);

    (void)arg;
    if (s.serving) {
        sk_bus_nats_pull_stop(s.nats);
        lc_replica_drain(s.replica);
        while (sk_mono_us(&sk_sched_system) < hand_over_us &&
               (atomic_load(&s.transit) > 0 || !lc_replica_drained(s.replica)))
            sk_sleep_ms(&sk_sched_system, 5);
        if (!lc_replica_drained(s.replica))
            SK_LOG_WARN("drain time is over", SK_FI("seconds", values.drain_seconds));
        if (sk_bus_nats_drain(s.nats, 1000) != 0)
            SK_LOG_WARN("not everything that was published left in time");
        if (s.rpc != NULL && sk_bus_service_stop(s.rpc, RPC_STOP_MS) != 0)
            SK_LOG_WARN("requests were left without an answer");
    }
    end_threads(end_us);
    (void)!sk_loop_post(s.loop, finish_loop, NULL);
    return NULL;
}

static void on_drain(void *arg, int signal)
{
    (void)arg;
    SK_LOG_INFO("draining", SK_FI("signal", signal));
    sk_health_set_draining(s.health);
    atomic_store(&s.stopping, true);
    sk_gate_notify(&sk_sched_system, s.gate);
    s.has_drainer = start_thread(&s.drainer, STACK_BYTES, run_drainer, NULL, "lc-drainer") == 0;
    if (!s.has_drainer)
        finish_loop(NULL);
}

static void on_reload(void *arg)
{
    (void)arg;
    if (sk_config_reload(&config, stderr) == 0)
        sk_log_set_level((enum sk_log_level)values.log_level);
    SK_LOG_INFO("log level re-read");
}

/* ---- start -------------------------------------------------------------------------------------- */
static int open_seams(struct sk_error *err)
{
    const struct sk_store_mongo_config mongo = {
        .uri = values.mongodb_uri,
        .pool_size = (int)values.mongodb_pool,
        .apps_collection = values.apps_collection,
        .skills_collection = values.skills_collection,
        .source_check = values.source_check,
    };
    const struct sk_lease_redis_config redis = {
        .url = values.redis_url,
        .key_prefix = values.redis_key_prefix,
        .connections = (int)values.redis_connections,
        .timeout_ms = values.redis_timeout_ms,
    };
    const struct sk_opensandbox_config opensandbox = {
        .base_url = values.opensandbox_url,
        .api_key = values.opensandbox_key,
        .use_server_proxy = values.opensandbox_proxy,
        .volume_manager_url = values.volume_manager_url,
        .volume_manager_token = values.volume_manager_token,
        .entrypoint = values.opensandbox_entrypoint,
        .request_timeout_ms = values.provider_timeout_ms,
        .answer_max_bytes = 8 * 1024 * 1024,
        .runtime = values.opensandbox_runtime == 1 ? "docker" : NULL,
    };
    const struct sk_bus_nats_config nats = {
        .url = values.nats_url,
        .credentials_file = values.nats_credentials_file,
        .token = values.nats_token,
        .prefix = values.subject_prefix,
        .client_name = s.settings.replica_id,
        .ack_wait_ms = values.ack_wait_ms,
        .max_ack_pending = (int)values.max_ack_pending,
        .pull_batch = 256,
        .stream_replicas = (int)values.stream_replicas,
        .commands_max_bytes = values.commands_max_bytes,
        .events_max_bytes = values.events_max_bytes,
    };

    if (sk_store_mongo_new(&mongo, &sk_sched_system, &s.store, err) != 0)
        return sk_fail_context(err, "SANDKEEP_MONGODB_URI");
    if (sk_lease_redis_new(&redis, &sk_sched_system, &s.lease, err) != 0)
        return sk_fail_context(err, "SANDKEEP_REDIS_URL");
    if (sk_opensandbox_new(&opensandbox, &sk_sched_system, &s.provider, err) != 0)
        return sk_fail_context(err, "AGENT_SANDBOX_OPENSANDBOX_*");
    if (sk_bus_nats_new(&nats, &sk_sched_system, &s.nats, &s.bus, err) != 0)
        return sk_fail_context(err, "SANDKEEP_NATS_URL");
    return 0;
}

static int make_replica(struct sk_error *err)
{
    const struct lc_seams seams = {.sched = &sk_sched_system,
                                   .store = &s.store,
                                   .lease = &s.lease,
                                   .bus = &s.bus,
                                   .providers = &s.provider,
                                   .provider_count = 1};
    const struct lc_hooks hooks = {.wake_dispatcher = wake_dispatcher,
                                   .counted = lc_metrics_counted,
                                   .ended = lc_metrics_ended,
                                   .published = lc_metrics_published,
                                   .worker_end = worker_end};
    const struct sk_workers_options rpc = {
        .name = "lc-rpc", .max_threads = (size_t)values.rpc_workers, .queue_capacity = SK_SERVICE_REQUESTS_MAX};

    s.workers = calloc((size_t)s.settings.workers, sizeof(pthread_t));
    s.replica = lc_replica_new(&s.settings, &seams, &hooks);
    s.rpc_workers = sk_workers_new(&rpc, err);
    if (s.workers == NULL || s.replica == NULL || s.rpc_workers == NULL)
        return sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    return 0;
}

static int start(struct sk_error *err)
{
    const struct sk_loop_signals signals = {.drain = on_drain, .reload = on_reload};

    s.loop = sk_loop_new(0, err);
    if (s.loop == NULL)
        return -1;
    s.health = sk_health_new(&sk_sched_system);
    s.gate = sk_gate_new(&sk_sched_system);
    if (s.health == NULL || s.gate == NULL)
        return sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    s.nats_up = sk_health_add(s.health, "nats", true);
    s.mongo_up = sk_health_add(s.health, "mongo", true);
    s.redis_up = sk_health_add(s.health, "redis", true);
    s.provider_up = sk_health_add(s.health, "provider", false);
    if (!sk_health_add_live_check(s.health, "workers", no_worker_stuck, NULL))
        return sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    if (open_seams(err) != 0 || make_replica(err) != 0)
        return -1;
    if (uv_async_init(sk_loop_uv(s.loop), &s.bell, on_bell) != 0)
        return sk_fail(err, SK_ERR_INTERNAL, "cannot make the doorbell");
    s.tick = sk_timer_new(s.loop, on_tick, NULL);
    s.admin = s.tick != NULL ? sk_admin_start(s.loop, values.admin_listen, s.health, err) : NULL;
    if (s.admin == NULL)
        return -1;
    sk_health_register_metrics(s.health);
    lc_metrics_register(s.replica);
    if (sk_loop_on_signals(s.loop, &signals, err) != 0)
        return -1;
    s.has_keeper = start_thread(&s.keeper, STACK_BYTES, run_keeper, NULL, "lc-keeper") == 0;
    return s.has_keeper ? 0 : sk_fail(err, SK_ERR_INTERNAL, "cannot start a thread");
}

static void close_all(void)
{
    atomic_store(&s.stopping, true);
    if (s.gate != NULL)
        sk_gate_notify(&sk_sched_system, s.gate);
    if (s.has_keeper)
        pthread_join(s.keeper, NULL);
    if (s.has_drainer)
        pthread_join(s.drainer, NULL);
    lc_metrics_forget();
    if (s.nats != NULL)
        sk_bus_nats_free(s.nats);
    sk_workers_free(s.rpc_workers);
    lc_replica_free(s.replica);
    sk_store_mongo_free(&s.store);
    sk_lease_redis_free(&s.lease);
    sk_opensandbox_free(&s.provider);
    (void)sk_loop_free(s.loop);
    sk_health_free(s.health);
    sk_gate_free(&sk_sched_system, s.gate);
    free(s.workers);
    sk_bus_nats_library_close();
    mongoc_cleanup();
    curl_global_cleanup();
}

/* `--setup`: streams, consumers and indexes, then the end. */
static int run_setup(void)
{
    struct sk_error err = {.code = SK_OK};

    s.health = sk_health_new(&sk_sched_system);
    s.gate = sk_gate_new(&sk_sched_system);
    if (values.start_limit_seconds == 0)
        values.start_limit_seconds = 60;
    if (s.health == NULL || s.gate == NULL || open_seams(&err) != 0) {
        SK_LOG_ERROR("cannot set up", SK_FE(&err));
        return 1;
    }
    if (!wait_for_dependencies())
        return s.status != 0 ? s.status : 1;
    SK_LOG_INFO("streams, consumers and indexes are set up");
    return 0;
}

static void print_fault_point(void *arg, const char *name, const char *doc)
{
    (void)arg;
    printf("%s\t%s\n", name, doc);
}

static bool extra_flag(void *arg, int argc, char **argv, int *index)
{
    (void)arg;
    (void)argc;
    if (strcmp(argv[*index], "--setup") == 0) {
        setup_only = true;
        return true;
    }
    if (strcmp(argv[*index], "--list-fault-points") == 0) {
        sk_fault_list(print_fault_point, NULL);
        exit(0);
    }
    return false;
}

static const char *curl_text(void)
{
    return curl_version_info(CURLVERSION_NOW)->version;
}

static const struct sk_version_library libraries[] = {
    {"libuv", uv_version_string, NULL},           {"nats.c", nats_GetVersion, NULL},
    {"mongo-c-driver", mongoc_get_version, NULL}, {"libcurl", curl_text, NULL},
    {"jansson", NULL, JANSSON_VERSION},           {NULL, NULL, NULL}};

int main(int argc, char **argv)
{
    const struct sk_service_cli cli = {
        .config = &config,
        .summary = "the lifecycle of sandboxes: create, start, stop, delete, recover",
        .extra_help = "  --setup               create streams, consumers and indexes, then exit\n"
                      "  --list-fault-points   names of the fault points of test builds\n",
        .extra = extra_flag,
        .check = lc_config_check,
        .libraries = libraries,
    };
    struct sk_error err = {.code = SK_OK};
    int status;

    config.count = lc_config_key_count;
    status = sk_service_cli(&cli, argc, argv);
    if (status >= 0)
        return status;
    sk_fault_check();
    if (!setup_only)
        hold_signals(true);
    /* Dozens of mostly sleeping threads: one heap each would cost more than the service itself. */
    mallopt(M_ARENA_MAX, 2);
    sk_log_init("sk-lifecycle", (enum sk_log_level)values.log_level);
    sk_store_mongo_init();
    curl_global_init(CURL_GLOBAL_DEFAULT);
    lc_config_settings(&values, &sk_sched_system, &s.settings);
    if (setup_only) {
        s.status = run_setup();
    } else if (start(&err) != 0) {
        SK_LOG_ERROR("cannot start", SK_FE(&err));
        s.status = err.code == SK_ERR_INVALID_REQUEST ? 2 : 1;
    } else {
        hold_signals(false);
        sk_loop_run(s.loop);
    }
    close_all();
    SK_LOG_INFO("stopped");
    sk_config_fini(&config);
    return s.status;
}
