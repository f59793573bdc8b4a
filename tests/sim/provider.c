/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated sandbox provider and its volume manager: objects that take time to run and to answer, requests that are
 * carried out although the caller saw a failure, creates whose object appears after everybody gave up, lists that lag.
 */
#include "tests/sim/monitor.h"
#include "tests/sim/servers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HANG_SLICE_MS 50 /* how often a hanging call sees that the faults have stopped */

struct sim_provider_server *sim_provider_new(struct sim_world *w)
{
    struct sim_provider_server *server = calloc(1, sizeof(*server));

    if (server == NULL)
        abort();
    server->w = w;
    return server;
}

void sim_provider_free(struct sim_provider_server *server)
{
    for (size_t i = 0; i < server->object_count; i++)
        free(server->objects[i]);
    free(server->objects);
    free(server->volumes);
    free(server);
}

/* Brings the state of an object up to now. */
static struct sim_object *at_now(struct sim_world *w, struct sim_object *object)
{
    if (object->remote.state == SK_REMOTE_PENDING && object->running_us <= sim_now_us(w->sched))
        object->remote.state = SK_REMOTE_RUNNING;
    return object;
}

struct sim_object *sim_provider_object(struct sim_world *w, const char *remote_id)
{
    for (size_t i = 0; i < w->provider->object_count; i++) {
        if (strcmp(w->provider->objects[i]->remote.id, remote_id) == 0)
            return at_now(w, w->provider->objects[i]);
    }
    return NULL;
}

static struct sim_object *existing(struct sim_world *w, const char *remote_id)
{
    struct sim_object *object = sim_provider_object(w, remote_id);

    return object == NULL || object->gone ? NULL : object;
}

struct sim_volume *sim_provider_volume(struct sim_world *w, const char *claim_name)
{
    for (size_t i = 0; i < w->provider->volume_count; i++) {
        if (!w->provider->volumes[i].gone && strcmp(w->provider->volumes[i].claim_name, claim_name) == 0)
            return &w->provider->volumes[i];
    }
    return NULL;
}

struct sim_volume *sim_provider_add_volume(struct sim_world *w, const char *claim_name)
{
    struct sim_provider_server *server = w->provider;
    struct sim_volume *volume;

    volume = sim_provider_volume(w, claim_name);
    if (volume != NULL) {
        volume->stray_of = NULL;
        return volume;
    }
    server->volumes = sim_grow(server->volumes, server->volume_count, &server->volume_size, sizeof(*server->volumes));
    volume = &server->volumes[server->volume_count++];
    memset(volume, 0, sizeof(*volume));
    sk_copy_cut(volume->claim_name, sizeof(volume->claim_name), claim_name);
    volume->created_us = sim_now_us(w->sched);
    return volume;
}

struct sim_object *sim_provider_add(struct sim_world *w, const char *sandbox_id, int64_t epoch, const char *job_id)
{
    struct sim_provider_server *server = w->provider;
    struct sim_object *object = calloc(1, sizeof(*object));
    int64_t now = sim_now_us(w->sched);

    if (object == NULL)
        abort();
    server->objects = sim_grow(server->objects, server->object_count, &server->object_size, sizeof(*server->objects));
    server->objects[server->object_count++] = object;
    snprintf(object->remote.id, sizeof(object->remote.id), "obj-%zu", server->object_count);
    sk_copy_cut(object->remote.sandbox_id, sizeof(object->remote.sandbox_id), sandbox_id);
    object->remote.state = SK_REMOTE_PENDING;
    object->remote.epoch = epoch;
    sk_copy_cut(object->remote.job_id, sizeof(object->remote.job_id), job_id);
    sk_copy_cut(object->creator_job, sizeof(object->creator_job), job_id);
    object->remote.created_at = sim_wall(w);
    object->created_us = object->label_us = object->visible_us = now;
    object->running_us = now + sim_between(&w->faults, 1 * SIM_MS, 60 * SIM_MS);
    object->ready_us = object->running_us + sim_between(&w->faults, 0, 60 * SIM_MS);
    if (sim_strike(w, SIM_FAULT_PROVIDER_LAG))
        object->visible_us = now + sim_between(&w->faults, 10 * SIM_MS, 1500 * SIM_MS);
    if (sim_strike(w, SIM_FAULT_PROVIDER_NOT_READY))
        object->ready_us = sim_percent(&w->faults, 25)
                               ? -1
                               : now + sim_between(&w->faults, 500 * SIM_MS, w->scenario.lc.ready_timeout_ms * SIM_MS);
    return object;
}

bool sim_provider_in_use(struct sim_world *w, const struct sim_object *object)
{
    const struct sim_doc *doc = sim_store_doc(w, object->remote.sandbox_id);
    int64_t highest = doc == NULL || doc->i.sequence == 0 ? 0 : doc->i.epoch;

    /* Raced: the one it ran in was deleted by somebody else; what is left is no sandbox of it. */
    if (doc == NULL || doc->raced || doc->i.malformed || doc->i.status != SK_STATUS_RUNNING || object->gone ||
        object->remote.state == SK_REMOTE_STOPPING || object->remote.epoch > highest)
        return false;
    for (size_t i = 0; i < w->provider->object_count; i++) {
        const struct sim_object *other = w->provider->objects[i];

        if (other != object && !other->gone && other->remote.state != SK_REMOTE_STOPPING &&
            strcmp(other->remote.sandbox_id, object->remote.sandbox_id) == 0 &&
            other->remote.epoch >= object->remote.epoch && other->remote.epoch <= highest)
            return false;
    }
    return true;
}

static struct sim_object *pick_running(struct sim_world *w)
{
    struct sim_provider_server *server = w->provider;
    struct sim_object *found = NULL;
    size_t seen = 0;

    for (size_t i = 0; i < server->object_count; i++) {
        struct sim_object *object = at_now(w, server->objects[i]);

        if (!object->gone && object->remote.state == SK_REMOTE_RUNNING && sim_below(&w->faults, ++seen) == 0)
            found = object;
    }
    return found;
}

static void note_raced(struct sim_world *w, const char *sandbox_id)
{
    struct sim_doc *doc = sim_store_doc(w, sandbox_id);

    if (doc != NULL)
        doc->raced = true;
}

void sim_provider_gone(struct sim_world *w)
{
    struct sim_object *object = pick_running(w);

    if (object == NULL)
        return;
    SIM_TRACE(w, "somebody deletes %s of %s", object->remote.id, object->remote.sandbox_id);
    object->gone = true;
    note_raced(w, object->remote.sandbox_id);
}

void sim_provider_pause(struct sim_world *w)
{
    struct sim_object *object = pick_running(w);

    if (object == NULL)
        return;
    SIM_TRACE(w, "somebody pauses %s of %s", object->remote.id, object->remote.sandbox_id);
    object->remote.state = SK_REMOTE_PAUSED;
}

/* ---- errors of HTTP answers ---------------------------------------------------------------------------------------
 */

static int http_error(struct sk_error *err, int status, bool unknown, const char *what)
{
    if (unknown)
        sk_fail_unknown(err, SK_ERR_PROVIDER_ERROR, "%s: HTTP %d", what, status);
    else
        sk_fail(err, SK_ERR_PROVIDER_ERROR, "%s: HTTP %d", what, status);
    if (err != NULL) {
        err->provider_status = status;
        err->retryable = status >= 500 || status == 409 || status == 429;
    }
    return -1;
}

/* What the server decides to answer instead of doing it: 0 = nothing special; after = it does it all the same. */
static int bad_answer(struct sim_world *w, bool write, bool *after)
{
    *after = false;
    if (sim_strike(w, SIM_FAULT_PROVIDER_5XX))
        return 500;
    if (write && sim_strike(w, SIM_FAULT_PROVIDER_CONFLICT))
        return 409;
    if (write && sim_strike(w, SIM_FAULT_PROVIDER_PARTIAL)) {
        *after = true;
        return 500;
    }
    return 0;
}

/* The answer does not come, and calling back does not help: the transport hangs. */
static void hang(struct sim_io *io)
{
    struct sim_world *w = io->inc->w;

    if (!sim_strike(w, SIM_FAULT_PROVIDER_STUCK))
        return;
    sim_saw(w, SIM_SOME_STUCK_CALL);
    SIM_TRACE(w, "%-22s hangs", sim_call_name(io->kind));
    for (int64_t left_ms = sim_between(&w->faults, 500, w->scenario.lc.stuck_grace_ms * 3 + 30000);
         left_ms > 0 && w->faults_on && !io->inc->group.dead; left_ms -= HANG_SLICE_MS)
        sim_sleep_us(w->sched, HANG_SLICE_MS * SIM_MS);
}

#define IO(kind_, about_, write_)                                                                                      \
    {                                                                                                                  \
        .inc = self, .call = call, .kind = (kind_), .about = (about_), .write = (write_)                               \
    }

/* The common course of a call. After it returned 0 `status` is the HTTP error to answer, or 0. */
struct exchange {
    int status;
    bool carried_out; /* the effect is to happen (now, or late) */
};

static int begin(struct sim_io *io, struct exchange *x, struct sk_error *err)
{
    bool after;

    x->status = 0;
    x->carried_out = false;
    if (sim_send(io, err) == SIM_REFUSED) {
        sim_done(io, -1, "failed");
        return -1;
    }
    if (io->arrival == SIM_ARRIVED) {
        x->status = bad_answer(io->inc->w, io->write, &after);
        x->carried_out = x->status == 0 || after;
    }
    return 0;
}

static int end(struct sim_io *io, const struct exchange *x, struct sk_error *err)
{
    if (io->arrival == SIM_ARRIVED)
        hang(io);
    if (sim_reply(io, err) != 0) {
        sim_done(io, -1, "failed%s", x->carried_out && io->write ? " [was carried out]" : "");
        return -1;
    }
    if (x->status != 0) {
        sim_done(io, -x->status, "HTTP %d%s", x->status, x->carried_out ? " [was carried out]" : "");
        return http_error(err, x->status, io->write && x->status >= 500, sim_call_name(io->kind));
    }
    return 0;
}

/* ---- reads
 * ----------------------------------------------------------------------------------------------------------- */

static bool listed(struct sim_world *w, struct sim_object *object)
{
    return !at_now(w, object)->gone && object->visible_us <= sim_now_us(w->sched);
}

static int seam_find(void *self, struct sk_call *call, const char *sandbox_id, struct sk_remote *out, int *count,
                     bool *more, struct sk_error *err)
{
    struct sim_io io = IO(SIM_PROVIDER_FIND, sandbox_id, false);
    struct sim_world *w = io.inc->w;
    struct exchange x;
    bool left_out = false;
    int found = 0;

    *count = 0;
    *more = false;
    if (begin(&io, &x, err) != 0)
        return -1;
    for (size_t i = 0; i < w->provider->object_count; i++) {
        struct sim_object *object = w->provider->objects[i];

        if (strcmp(object->remote.sandbox_id, sandbox_id) == 0 && listed(w, object))
            sk_remotes_offer(out, &found, &left_out, &object->remote);
    }
    if (end(&io, &x, err) != 0)
        return -1;
    *count = found;
    *more = left_out;
    for (int i = 0; i < found; i++)
        sim_monitor_seen(w, io.inc, &out[i]);
    sim_done(&io, found, "= %d%s%s", found, found > 0 ? ", last " : "", found > 0 ? out[found - 1].id : "");
    return 0;
}

static int seam_get(void *self, struct sk_call *call, const char *remote_id, struct sk_remote *out, bool *found,
                    struct sk_error *err)
{
    struct sim_io io = IO(SIM_PROVIDER_GET, remote_id, false);
    struct sim_world *w = io.inc->w;
    struct sim_object *object;
    struct exchange x;

    *found = false;
    if (begin(&io, &x, err) != 0)
        return -1;
    object = existing(w, remote_id);
    if (object != NULL)
        *out = object->remote;
    if (end(&io, &x, err) != 0)
        return -1;
    *found = object != NULL;
    if (*found)
        sim_monitor_seen(w, io.inc, out);
    sim_done(&io, *found, "%s", *found ? "there" : "404");
    return 0;
}

static int seam_probe(void *self, struct sk_call *call, const char *remote_id, bool *ready, struct sk_error *err)
{
    struct sim_io io = IO(SIM_PROVIDER_PROBE, remote_id, false);
    struct sim_world *w = io.inc->w;
    struct sim_object *object;
    struct exchange x;
    bool answer;

    *ready = false;
    if (begin(&io, &x, err) != 0)
        return -1;
    object = existing(w, remote_id);
    answer = object != NULL && object->remote.state == SK_REMOTE_RUNNING && object->ready_us >= 0 &&
             object->ready_us <= sim_now_us(w->sched);
    if (end(&io, &x, err) != 0)
        return -1;
    *ready = answer;
    sim_done(&io, answer, "%s", answer ? "ready" : "not ready");
    return 0;
}

static int seam_list(void *self, struct sk_call *call, int page, struct sk_remote *out, int capacity, int *count,
                     int *unreadable, bool *more, struct sk_error *err)
{
    struct sim_io io = IO(SIM_PROVIDER_LIST, NULL, false);
    struct sim_world *w = io.inc->w;
    int skip = (page - 1) * capacity, found = 0;
    bool rest = false;
    struct exchange x;

    *count = *unreadable = 0;
    *more = false;
    if (begin(&io, &x, err) != 0)
        return -1;
    for (size_t i = 0; i < w->provider->object_count; i++) {
        if (!listed(w, w->provider->objects[i]) || skip-- > 0)
            continue;
        if (found == capacity) {
            rest = true;
            break;
        }
        out[found++] = w->provider->objects[i]->remote;
    }
    if (end(&io, &x, err) != 0)
        return -1;
    *count = found;
    *more = rest;
    for (int i = 0; i < found; i++)
        sim_monitor_seen(w, io.inc, &out[i]);
    sim_done(&io, found, "page %d = %d", page, found);
    return 0;
}

static int seam_ping(void *self, struct sk_call *call, struct sk_error *err)
{
    struct sim_io io = IO(SIM_PROVIDER_PING, NULL, false);
    struct exchange x;

    if (begin(&io, &x, err) != 0 || end(&io, &x, err) != 0)
        return -1;
    sim_done(&io, 0, "ok");
    return 0;
}

/* ---- effects
 * ------------------------------------------------------------------------------------------------------------ */

/* An effect that happens when nobody waits for it any more: the ghost of a create, a removal on its way. */
struct late_effect {
    struct sim_world *w;
    struct sim_actor actor;
    char sandbox_id[SK_SANDBOX_ID_SIZE];
    char job_id[SK_UUID_SIZE];
    char remote_id[SK_REMOTE_ID_SIZE]; /* "" = create */
    int64_t epoch;
};

static void begin_removal(struct sim_world *w, struct sim_actor actor, struct sim_object *object);

static void late_happens(void *arg)
{
    struct late_effect *late = arg;
    struct sim_world *w = late->w;
    struct sim_object *object;

    w->provider->ghosts--;
    if (late->remote_id[0] != '\0') {
        object = existing(w, late->remote_id);
        if (object != NULL) {
            SIM_TRACE(w, "a late removal of %s arrives", late->remote_id);
            begin_removal(w, late->actor, object);
        }
    } else {
        const struct sim_doc *doc = sim_store_doc(w, late->sandbox_id);

        object = sim_provider_add(w, late->sandbox_id, late->epoch, late->job_id);
        object->creator = late->actor.fiber;
        SIM_TRACE(w, "ghost: %s of %s appears with epoch %lld", object->remote.id, late->sandbox_id,
                  (long long)late->epoch);
        sim_saw(w, SIM_SOME_GHOST_APPEARED);
        if (doc == NULL || doc->i.status == SK_STATUS_STOPPED)
            sim_saw(w, SIM_SOME_GHOST_OF_DELETED);
    }
    sim_mark(w, 2000, late->epoch, (int64_t)w->provider->object_count);
    free(late);
}

static void send_late(struct sim_io *io, const char *sandbox_id, int64_t epoch, const char *job_id,
                      const char *remote_id)
{
    struct late_effect *late = calloc(1, sizeof(*late));

    if (late == NULL)
        abort();
    late->w = io->inc->w;
    late->actor = sim_actor_of(io->inc);
    sk_copy_cut(late->sandbox_id, sizeof(late->sandbox_id), sandbox_id);
    sk_copy_cut(late->job_id, sizeof(late->job_id), job_id);
    sk_copy_cut(late->remote_id, sizeof(late->remote_id), remote_id);
    late->epoch = epoch;
    late->w->provider->ghosts++;
    sim_at_own(late->w->sched, io->late_us, late_happens, late);
}

static int seam_create(void *self, struct sk_call *call, const struct sk_create_spec *spec, struct sk_remote *out,
                       struct sk_error *err)
{
    struct sim_io io = IO(SIM_PROVIDER_CREATE, spec->sandbox_id, true);
    struct sim_world *w = io.inc->w;
    struct sim_object *object = NULL;
    struct exchange x;

    sim_monitor_effect(w, io.inc, io.kind, spec->sandbox_id, "");
    sim_monitor_create(w, io.inc, spec);
    io.can_be_late = true;
    if (begin(&io, &x, err) != 0)
        return -1;
    if (strncmp(spec->image->repository, "bad/", 4) == 0 && io.arrival == SIM_ARRIVED) {
        x.status = 400;
        x.carried_out = false;
    }
    if (w->scenario.has_volumes && io.arrival == SIM_ARRIVED && spec->storage != NULL && spec->storage->present &&
        spec->storage->claim_name[0] != '\0' && sim_provider_volume(w, spec->storage->claim_name) == NULL) {
        x.status = 400;
        x.carried_out = false;
    }
    if (x.carried_out && sim_strike(w, SIM_FAULT_PROVIDER_GHOST)) {
        io.arrival = SIM_LATE;
        io.late_us = sim_now_us(w->sched) + sim_between(&w->faults, 50 * SIM_MS, w->scenario.ghost_max_ms * SIM_MS);
        x.carried_out = false;
    }
    if (x.carried_out) {
        object = sim_provider_add(w, spec->sandbox_id, spec->epoch, spec->job_id);
        object->creator = sim_actor_of(io.inc).fiber;
    } else if (io.arrival == SIM_LATE) {
        send_late(&io, spec->sandbox_id, spec->epoch, spec->job_id, "");
    }
    if (end(&io, &x, err) != 0)
        return -1;
    *out = object->remote;
    sim_monitor_seen(w, io.inc, out);
    sim_done(&io, 1, "epoch %lld = %s", (long long)spec->epoch, out->id);
    return 0;
}

static int seam_resume(void *self, struct sk_call *call, const char *remote_id, struct sk_error *err)
{
    struct sim_io io = IO(SIM_PROVIDER_RESUME, remote_id, true);
    struct sim_world *w = io.inc->w;
    struct sim_object *object;
    struct exchange x;

    if (begin(&io, &x, err) != 0)
        return -1;
    object = existing(w, remote_id);
    if (object == NULL && x.status == 0 && io.arrival == SIM_ARRIVED)
        x.status = 404;
    else if (x.carried_out && object != NULL && object->remote.state == SK_REMOTE_PAUSED)
        object->remote.state = SK_REMOTE_RUNNING;
    if (end(&io, &x, err) != 0)
        return -1;
    sim_done(&io, 1, "resumed");
    return 0;
}

static void removal_ends(void *arg)
{
    struct sim_object *object = arg;

    object->gone = true;
}

static void begin_removal(struct sim_world *w, struct sim_actor actor, struct sim_object *object)
{
    if (object->remote.state == SK_REMOTE_STOPPING)
        return;
    sim_monitor_removed(w, actor, object);
    if (sim_percent(&w->faults, 50)) {
        object->gone = true;
        return;
    }
    object->remote.state = SK_REMOTE_STOPPING;
    sim_after(w->sched, sim_between(&w->faults, 1 * SIM_MS, 400 * SIM_MS), removal_ends, object);
}

static int seam_remove(void *self, struct sk_call *call, const char *remote_id, bool *gone, struct sk_error *err)
{
    struct sim_io io = IO(SIM_PROVIDER_REMOVE, remote_id, true);
    struct sim_world *w = io.inc->w;
    struct sim_object *object = sim_provider_object(w, remote_id);
    bool absent;
    struct exchange x;

    *gone = false;
    if (object != NULL)
        sim_monitor_effect(w, io.inc, io.kind, object->remote.sandbox_id, remote_id);
    sim_monitor_remove(w, io.inc, remote_id);
    io.can_be_late = true;
    if (begin(&io, &x, err) != 0)
        return -1;
    object = existing(w, remote_id);
    absent = object == NULL;
    if (x.carried_out && !absent)
        begin_removal(w, sim_actor_of(io.inc), object);
    else if (io.arrival == SIM_LATE)
        send_late(&io, "", 0, "", remote_id);
    if (end(&io, &x, err) != 0)
        return -1;
    *gone = absent;
    sim_done(&io, 1, "%s", absent ? "404" : "accepted");
    return 0;
}

static int seam_relabel(void *self, struct sk_call *call, const char *remote_id, int64_t epoch, const char *job_id,
                        bool *found, struct sk_error *err)
{
    struct sim_io io = IO(SIM_PROVIDER_RELABEL, remote_id, true);
    struct sim_world *w = io.inc->w;
    struct sim_object *object = sim_provider_object(w, remote_id);
    bool there;
    struct exchange x;

    *found = false;
    if (object != NULL)
        sim_monitor_effect(w, io.inc, io.kind, object->remote.sandbox_id, remote_id);
    if (begin(&io, &x, err) != 0)
        return -1;
    object = existing(w, remote_id);
    there = object != NULL;
    if (x.carried_out && there) {
        object->remote.epoch = epoch;
        sk_copy_cut(object->remote.job_id, sizeof(object->remote.job_id), job_id);
        object->label_us = sim_now_us(w->sched);
        sim_saw(w, SIM_SOME_CREATE_ADOPTED);
    }
    if (end(&io, &x, err) != 0)
        return -1;
    *found = there;
    if (there) {
        struct sk_remote seen = object->remote;

        seen.epoch = epoch;
        sim_monitor_seen(w, io.inc, &seen);
    }
    sim_done(&io, there, "epoch %lld: %s", (long long)epoch, there ? "labelled" : "404");
    return 0;
}

/* Does a record that is not being deleted name this volume? */
static bool named_by_record(struct sim_world *w, const char *claim_name)
{
    for (size_t i = 0; i < w->store->doc_count; i++) {
        const struct sim_doc *doc = w->store->docs[i];

        if (doc != NULL && doc->i.status != SK_STATUS_DELETING && strcmp(doc->i.storage.claim_name, claim_name) == 0)
            return true;
    }
    return false;
}

static int seam_volume_ensure(void *self, struct sk_call *call, const char *claim_name, const char *storage_size,
                              struct sk_error *err)
{
    struct sim_io io = IO(SIM_PROVIDER_VOLUME_ENSURE, claim_name, true);
    struct exchange x;

    (void)storage_size;
    if (begin(&io, &x, err) != 0)
        return -1;
    if (x.carried_out) {
        struct sim_volume *volume = sim_provider_add_volume(io.inc->w, claim_name);

        if (!named_by_record(io.inc->w, claim_name))
            volume->stray_of = io.inc;
    }
    if (end(&io, &x, err) != 0)
        return -1;
    sim_done(&io, 1, "there");
    return 0;
}

static int seam_volume_remove(void *self, struct sk_call *call, const char *claim_name, struct sk_error *err)
{
    struct sim_io io = IO(SIM_PROVIDER_VOLUME_REMOVE, claim_name, true);
    struct sim_world *w = io.inc->w;
    struct sim_volume *volume;
    struct exchange x;

    if (begin(&io, &x, err) != 0)
        return -1;
    volume = sim_provider_volume(w, claim_name);
    if (x.carried_out && volume != NULL) {
        sim_monitor_volume_removed(w, sim_actor_of(io.inc), claim_name);
        volume->gone = true;
    }
    if (end(&io, &x, err) != 0)
        return -1;
    sim_done(&io, volume != NULL, "%s", volume != NULL ? "removed" : "404");
    return 0;
}

static const struct sk_provider_ops provider_ops = {
    .find = seam_find,
    .get = seam_get,
    .create = seam_create,
    .resume = seam_resume,
    .remove = seam_remove,
    .relabel = seam_relabel,
    .probe = seam_probe,
    .volume_ensure = seam_volume_ensure,
    .volume_remove = seam_volume_remove,
    .list = seam_list,
    .ping = seam_ping,
    .has_volumes = true,
    .name = "opensandbox",
};

static const struct sk_provider_ops provider_ops_without_volumes = {
    .find = seam_find,
    .get = seam_get,
    .create = seam_create,
    .resume = seam_resume,
    .remove = seam_remove,
    .relabel = seam_relabel,
    .probe = seam_probe,
    .volume_ensure = seam_volume_ensure,
    .volume_remove = seam_volume_remove,
    .list = seam_list,
    .ping = seam_ping,
    .has_volumes = false,
    .name = "opensandbox",
};

void sim_provider_seam(struct sim_inc *inc)
{
    inc->provider = (struct sk_provider){
        .ops = inc->w->scenario.has_volumes ? &provider_ops : &provider_ops_without_volumes,
        .self = inc,
    };
}
