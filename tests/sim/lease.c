/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated lease service: keys with a token and an expiry, which can be lost one by one or all together. The seam
 * follows lease.h: an ambiguous acquisition is resolved by reading the token back. */
#include "tests/sim/monitor.h"
#include "tests/sim/servers.h"

#include <stdlib.h>
#include <string.h>

struct sim_lease_server *sim_lease_new(struct sim_world *w)
{
    struct sim_lease_server *server = calloc(1, sizeof(*server));

    if (server == NULL)
        abort();
    server->w = w;
    return server;
}

void sim_lease_free(struct sim_lease_server *server)
{
    free(server);
}

static void drop_at(struct sim_lease_server *server, int i)
{
    server->keys[i] = server->keys[--server->count];
}

static struct sim_lease_key *lookup(struct sim_world *w, const char *name)
{
    struct sim_lease_server *server = w->lease;

    for (int i = 0; i < server->count;) {
        if (server->keys[i].expires_us <= sim_now_us(w->sched)) {
            drop_at(server, i);
            continue;
        }
        if (strcmp(server->keys[i].name, name) == 0)
            return &server->keys[i];
        i++;
    }
    return NULL;
}

static struct sim_lease_key *set_if_absent(struct sim_world *w, const char *name, const char *token, int64_t ttl_ms)
{
    struct sim_lease_key *key;

    if (lookup(w, name) != NULL || w->lease->count == (int)(sizeof(w->lease->keys) / sizeof(w->lease->keys[0])))
        return NULL;
    key = &w->lease->keys[w->lease->count++];
    memset(key, 0, sizeof(*key));
    sk_copy_cut(key->name, sizeof(key->name), name);
    sk_copy_cut(key->token, sizeof(key->token), token);
    key->expires_us = sim_now_us(w->sched) + ttl_ms * SIM_MS;
    return key;
}

bool sim_lease_take(struct sim_world *w, const char *name, const char *token, int64_t ttl_ms)
{
    return set_if_absent(w, name, token, ttl_ms) != NULL;
}

void sim_lease_drop(struct sim_world *w, const char *name, const char *token)
{
    struct sim_lease_key *key = lookup(w, name);

    if (key != NULL && strcmp(key->token, token) == 0)
        drop_at(w->lease, (int)(key - w->lease->keys));
}

void sim_lease_wipe(struct sim_world *w)
{
    SIM_TRACE(w, "the lease service lost all %d keys", w->lease->count);
    sim_monitor_lease_lost(w, NULL);
    w->lease->count = 0;
}

void sim_lease_vanish(struct sim_world *w)
{
    int i;

    if (w->lease->count == 0)
        return;
    i = (int)sim_below(&w->faults, (uint64_t)w->lease->count);
    SIM_TRACE(w, "the lease %s vanished", w->lease->keys[i].name);
    sim_monitor_lease_lost(w, w->lease->keys[i].name);
    drop_at(w->lease, i);
}

void sim_lease_lose(struct sim_world *w, const char *name)
{
    struct sim_lease_key *key = lookup(w, name);

    sim_monitor_lease_lost(w, name);
    if (key != NULL)
        drop_at(w->lease, (int)(key - w->lease->keys));
}

static enum sk_lease_result seam_acquire(void *self, struct sk_call *call, const char *name, int64_t ttl_ms,
                                         struct sk_lease *out, struct sk_error *err)
{
    struct sim_io io = {.inc = self, .call = call, .kind = SIM_LEASE_ACQUIRE, .about = name, .write = true};
    struct sim_inc *inc = self;
    struct sim_world *w = inc->w;
    struct sim_lease_key *key = NULL;
    int64_t start_us = sk_mono_us(&inc->clock);

    memset(out, 0, sizeof(*out));
    sk_copy_cut(out->name, sizeof(out->name), name);
    sk_uuid4(&inc->clock, out->token);
    if (sim_send(&io, err) == SIM_REFUSED)
        goto failed;
    if (io.arrival == SIM_ARRIVED)
        key = set_if_absent(w, name, out->token, ttl_ms);
    if (sim_reply(&io, err) != 0) {
        /* Read the token back once; what cannot be read is left to expire. */
        if (inc->group.dead || (call != NULL && sk_call_cancelled(call)) || sim_down(w, SIM_LEASE) ||
            sim_percent(&w->faults, 30))
            goto failed;
        sim_sleep_us(w->sched, sim_between(&w->faults, 100, 600));
        if (inc->group.dead)
            goto failed;
        key = lookup(w, name);
        if (key != NULL && strcmp(key->token, out->token) != 0)
            key = NULL;
    }
    if (key != NULL)
        key = lookup(w, name);
    if (key == NULL || strcmp(key->token, out->token) != 0) {
        sim_done(&io, 0, "busy");
        return SK_LEASE_BUSY;
    }
    atomic_store(&out->valid_until_us, start_us + ttl_ms * 1000);
    out->held = true;
    sim_monitor_acquired(w, inc, out);
    sim_done(&io, 1, "acquired");
    return SK_LEASE_ACQUIRED;
failed:
    sim_done(&io, -1, "failed");
    if (err != NULL && err->code != SK_ERR_CANCELLED)
        sk_fail(err, SK_ERR_LEASE_UNAVAILABLE, "lease %s: no answer", name);
    return SK_LEASE_ERROR;
}

static int seam_renew(void *self, struct sk_lease *const *leases, int count, int64_t ttl_ms, struct sk_error *err)
{
    struct sim_io io = {
        .inc = self, .kind = SIM_LEASE_RENEW, .about = count > 0 ? leases[0]->name : NULL, .write = true};
    struct sim_inc *inc = self;
    struct sim_world *w = inc->w;
    int64_t start_us = sk_mono_us(&inc->clock);
    bool *ours = calloc((size_t)count + 1, sizeof(*ours));
    char(*tokens)[SK_UUID_SIZE] = calloc((size_t)count + 1, sizeof(*tokens));
    int status = -1, lost = 0;

    if (ours == NULL || tokens == NULL)
        abort();
    for (int i = 0; i < count; i++)
        memcpy(tokens[i], leases[i]->token, sizeof(tokens[i]));
    if (sim_send(&io, err) == SIM_REFUSED)
        goto out;
    for (int i = 0; io.arrival == SIM_ARRIVED && i < count; i++) {
        struct sim_lease_key *key = lookup(w, leases[i]->name);

        ours[i] = key != NULL && strcmp(key->token, tokens[i]) == 0;
        if (ours[i])
            key->expires_us = sim_now_us(w->sched) + ttl_ms * SIM_MS;
    }
    if (sim_reply(&io, err) != 0)
        goto out;
    for (int i = 0; i < count; i++) {
        if (ours[i]) {
            atomic_store(&leases[i]->valid_until_us, start_us + ttl_ms * 1000);
        } else {
            atomic_store(&leases[i]->lost, true);
            sim_saw(w, SIM_SOME_LEASE_LOST_IN_OPERATION);
            lost++;
        }
    }
    status = 0;
out:
    sim_done(&io, status == 0 ? lost : -1, status == 0 ? "%d leases, %d lost" : "failed", count, lost);
    free(ours);
    free(tokens);
    return status;
}

static void seam_release(void *self, struct sk_lease *lease)
{
    struct sim_io io = {.inc = self, .kind = SIM_LEASE_RELEASE, .about = lease->name, .write = true};
    struct sim_inc *inc = self;
    struct sim_world *w = inc->w;
    struct sim_lease_key *key;
    bool deleted = false;

    if (!lease->held)
        return;
    sim_monitor_released(w, lease);
    lease->held = false;
    if (sim_send(&io, NULL) == SIM_REFUSED)
        return;
    if (io.arrival == SIM_ARRIVED) {
        key = lookup(w, lease->name);
        deleted =
            key != NULL && (strcmp(key->token, lease->token) == 0 || lc_mutation == LC_MUTATION_RELEASE_FOREIGN_LEASE);
        if (deleted)
            drop_at(w->lease, (int)(key - w->lease->keys));
    }
    (void)sim_reply(&io, NULL);
    sim_done(&io, deleted, "%s", deleted ? "released" : "was not ours any more");
}

static int seam_ping(void *self, struct sk_call *call, struct sk_error *err)
{
    struct sim_io io = {.inc = self, .call = call, .kind = SIM_LEASE_PING};

    if (sim_send(&io, err) == SIM_REFUSED || sim_reply(&io, err) != 0) {
        sim_done(&io, -1, "failed");
        return -1;
    }
    sim_done(&io, 0, "ok");
    return 0;
}

static const struct sk_lease_ops lease_ops = {
    .acquire = seam_acquire,
    .renew = seam_renew,
    .release = seam_release,
    .ping = seam_ping,
};

void sim_lease_seam(struct sim_inc *inc)
{
    inc->lease = (struct sk_lease_service){.ops = &lease_ops, .self = inc};
}
