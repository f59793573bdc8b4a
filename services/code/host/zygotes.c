/* SPDX-License-Identifier: Apache-2.0
 *
 * Sockets of zygotes on the loop. Every message is small and whole; what a socket does not take waits in the child that
 * it is about, so that nothing here grows beyond the tasks there are. */
#include "services/code/host/zygotes.h"

#include "common/log/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WATCH_MS          50 /* how often open questions are looked at */
#define LATE_MS           50 /* a watch that comes so much later than that was itself not let run: no verdict */
#define MESSAGES_PER_TURN 128

struct code_zygote {
    struct sk_list link;
    struct code_zygotes *owner;
    uint64_t id;
    enum code_kind_index kind;
    uv_poll_t poll;
    int fd, events;
    bool hello, retiring, suspect, broken;
    struct sk_list children;
    /* Questions without an answer yet, and since when it has been silent about them. */
    int questions;
    bool pinged;
    int64_t silent_since_ms, born_ms;
};

struct code_zygotes {
    struct sk_loop *loop;
    struct code_zygotes_events events;
    int launcher;
    uv_poll_t *poll;
    struct sk_timer *ping, *watch;
    int64_t watch_due_ms;
    uint64_t last_task, last_ping;
    struct sk_list zygotes; /* oldest first */
    struct code_zygotes_counts counts;
};

const char *code_kind_name(enum code_kind_index kind)
{
    static const char *const names[CODE_KINDS] = {"js", "python", "python-full"};

    return names[kind];
}

static void free_poll(uv_handle_t *handle)
{
    free(handle);
}

static void free_zygote(uv_handle_t *handle)
{
    struct code_zygote *z = handle->data;

    close(z->fd);
    free(z);
}

/* The youngest; one that is to retire only until another has said HELLO. */
static struct code_zygote *serving(const struct code_zygotes *zygotes, enum code_kind_index kind)
{
    struct code_zygote *retiring = NULL;

    for (struct sk_list *at = zygotes->zygotes.prev; at != &zygotes->zygotes; at = at->prev) {
        struct code_zygote *z = SK_LIST_ENTRY(struct code_zygote, at, link);
        if (z->kind != kind || !z->hello || z->suspect || z->broken)
            continue;
        if (!z->retiring)
            return z;
        if (retiring == NULL)
            retiring = z;
    }
    return retiring;
}

bool code_zygotes_serving(const struct code_zygotes *zygotes, enum code_kind_index kind)
{
    return serving(zygotes, kind) != NULL;
}

int code_zygotes_warming(const struct code_zygotes *zygotes, enum code_kind_index kind)
{
    int warming = 0, all = 0;

    SK_LIST_FOREACH (struct code_zygote, z, &zygotes->zygotes, link) {
        all += z->kind == kind;
        warming += z->kind == kind && !z->hello;
    }
    return all == 0 ? 1 : warming;
}

struct code_zygotes_counts code_zygotes_counts(const struct code_zygotes *zygotes)
{
    return zygotes->counts;
}

/* ---- children ----------------------------------------------------------------------------------- */
static void close_fds(struct code_child *child)
{
    for (size_t i = 0; i < sizeof(child->fds) / sizeof(child->fds[0]); i++) {
        if (child->fds[i] >= 0)
            close(child->fds[i]);
        child->fds[i] = -1;
    }
}

static void leave(struct code_child *child)
{
    sk_list_remove(&child->link);
    close_fds(child);
    child->zygote = NULL;
}

static void ask(struct code_zygote *z)
{
    struct code_zygotes *owner = z->owner;

    if (z->questions++ == 0)
        z->silent_since_ms = sk_mono_ms(&sk_sched_system);
    if (!sk_timer_active(owner->watch)) {
        owner->watch_due_ms = sk_mono_ms(&sk_sched_system) + WATCH_MS;
        sk_timer_start(owner->watch, WATCH_MS, 0);
    }
}

static void on_zygote(uv_poll_t *poll, int status, int events);

static void listen_for(struct code_zygote *z, int events)
{
    if (z->events != events)
        uv_poll_start(&z->poll, events, on_zygote);
    z->events = events;
}

enum sent { SENT, SENT_LATER, SENT_NEVER };

static enum sent put(struct code_zygote *z, const struct code_message *message, const int *fds, size_t count)
{
    if (code_send(z->fd, message, fds, count))
        return SENT;
    return errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM || errno == ETOOMANYREFS ? SENT_LATER : SENT_NEVER;
}

/* Sends what its task has to say; false when the socket takes no more now. One that is broken is told by reading. */
static bool send_child(struct code_zygote *z, struct code_child *child)
{
    struct code_message message;
    enum sent sent = SENT;

    if (!child->sent) {
        memset(&message, 0, sizeof(message));
        message.kind = CODE_MSG_START;
        message.u.start.task = child->id;
        message.u.start.memory_bytes = child->limits.memory_bytes;
        message.u.start.wall_ms = child->limits.wall_ms;
        message.u.start.cpu_ms = child->limits.cpu_ms;
        message.u.start.tmp_bytes = child->limits.tmp_bytes;
        sent = put(z, &message, child->fds, 3);
        if (sent == SENT) {
            child->sent = true;
            close_fds(child);
            ask(z);
        }
    }
    if (sent == SENT && child->kill && !child->kill_sent) {
        memset(&message, 0, sizeof(message));
        message.kind = CODE_MSG_KILL;
        message.u.kill.task = child->id;
        message.u.kill.end = child->cause;
        sent = put(z, &message, NULL, 0);
        child->kill_sent = sent == SENT;
    }
    return sent != SENT_LATER;
}

static void flush(struct code_zygote *z)
{
    SK_LIST_FOREACH (struct code_child, child, &z->children, link) {
        if ((!child->sent || (child->kill && !child->kill_sent)) && !send_child(z, child)) {
            listen_for(z, UV_READABLE | UV_WRITABLE);
            return;
        }
    }
    listen_for(z, UV_READABLE);
}

bool code_zygotes_start(struct code_zygotes *zygotes, enum code_kind_index kind, struct code_child *child,
                        const int fds[3])
{
    struct code_zygote *z = serving(zygotes, kind);

    if (z == NULL)
        return false;
    child->zygote = z;
    child->id = ++zygotes->last_task;
    child->sent = child->started = child->kill = child->kill_sent = false;
    memcpy(child->fds, fds, sizeof(child->fds));
    sk_list_push_back(&z->children, &child->link);
    if (!send_child(z, child))
        listen_for(z, UV_READABLE | UV_WRITABLE);
    return true;
}

void code_child_kill(struct code_child *child, enum code_end cause)
{
    if (child->zygote == NULL || child->kill)
        return;
    child->kill = true;
    child->cause = cause;
    if (!send_child(child->zygote, child))
        listen_for(child->zygote, UV_READABLE | UV_WRITABLE);
}

/* ---- zygotes ------------------------------------------------------------------------------------ */
static void close_zygote(struct code_zygote *z)
{
    sk_list_remove(&z->link);
    z->poll.data = z;
    uv_close((uv_handle_t *)&z->poll, free_zygote);
}

/* It has ended, by GONE or by its socket: whatever it had to do is lost. */
static void lose(struct code_zygote *z)
{
    struct code_zygotes *owner = z->owner;
    enum code_kind_index kind = z->kind;
    bool served = serving(owner, kind) == z, retired = z->retiring && sk_list_empty(&z->children);
    struct sk_list children;

    sk_list_init(&children);
    z->broken = true;
    while (!sk_list_empty(&z->children)) {
        struct code_child *child = SK_LIST_ENTRY(struct code_child, z->children.next, link);
        leave(child);
        sk_list_push_back(&children, &child->link);
    }
    close_zygote(z);
    if (!retired)
        owner->counts.lost[kind]++;
    if (served && serving(owner, kind) == NULL)
        owner->events.changed(owner->events.arg);
    while (!sk_list_empty(&children)) {
        struct code_child *child = SK_LIST_ENTRY(struct code_child, sk_list_pop_front(&children), link);
        child->ops->lost(child, child->started);
    }
}

/* Lets go of those that are to retire and have nothing left to do. */
static void release_retired(struct code_zygotes *zygotes)
{
    SK_LIST_FOREACH (struct code_zygote, z, &zygotes->zygotes, link) {
        if (z->retiring && sk_list_empty(&z->children) && serving(zygotes, z->kind) != z)
            lose(z);
    }
}

static struct code_child *find_child(struct code_zygote *z, uint64_t id)
{
    SK_LIST_FOREACH (struct code_child, child, &z->children, link) {
        if (child->id == id)
            return child;
    }
    return NULL;
}

static void answered(struct code_zygote *z)
{
    if (z->questions > 0)
        z->questions--;
}

static void hear(struct code_zygote *z, const struct code_message *message)
{
    struct code_zygotes *owner = z->owner;
    struct code_child *child;

    z->silent_since_ms = sk_mono_ms(&sk_sched_system);
    switch (message->kind) {
    case CODE_MSG_HELLO:
        if (z->hello)
            break;
        z->hello = true;
        SK_LOG_INFO("zygote serves", SK_F("kind", code_kind_name(z->kind)), SK_FI("zygote", z->id));
        owner->events.changed(owner->events.arg);
        break;
    case CODE_MSG_STARTED:
        answered(z);
        child = find_child(z, message->u.started.task);
        if (child != NULL)
            child->started = true;
        break;
    case CODE_MSG_REFUSED:
        answered(z);
        child = find_child(z, message->u.refused.task);
        if (child == NULL)
            break;
        leave(child);
        child->ops->refused(child, (enum code_refusal)message->u.refused.why);
        break;
    case CODE_MSG_ENDED:
        child = find_child(z, message->u.ended.task);
        if (child == NULL)
            break;
        leave(child);
        child->ops->ended(child, message);
        break;
    case CODE_MSG_PONG:
        if (z->pinged)
            answered(z);
        z->pinged = false;
        break;
    default:
        break;
    }
}

static void on_zygote(uv_poll_t *poll, int status, int events)
{
    struct code_zygote *z = SK_LIST_ENTRY(struct code_zygote, poll, poll);
    struct code_zygotes *owner = z->owner;
    bool gone = status < 0;

    for (int i = 0; !gone && i < MESSAGES_PER_TURN; i++) {
        struct code_message message;
        int fds[CODE_FDS_MAX];
        size_t count;
        enum code_receive got = code_receive(z->fd, &message, fds, &count);

        if (got == CODE_NOTHING)
            break;
        if (got == CODE_RECEIVED) {
            code_fds_close(fds);
            hear(z, &message); /* only our own free() takes a zygote away from under us, and that is not called here */
        } else {
            gone = true; /* one that speaks nonsense is as good as dead: closing its socket ends it */
        }
    }
    if (gone)
        lose(z);
    else if ((events & UV_WRITABLE) != 0)
        flush(z);
    release_retired(owner);
}

/* ---- questions ---------------------------------------------------------------------------------- */
static void suspect(struct code_zygote *z)
{
    struct code_zygotes *owner = z->owner;
    struct code_message message = {.kind = CODE_MSG_SUSPECT};
    bool served = serving(owner, z->kind) == z;

    message.u.zygote.zygote = z->id;
    message.u.zygote.language = z->kind;
    if (!code_send(owner->launcher, &message, NULL, 0))
        return; /* tried again at the next watch */
    SK_LOG_WARN("a zygote has not answered", SK_F("kind", code_kind_name(z->kind)), SK_FI("zygote", z->id),
                SK_FI("ms", sk_mono_ms(&sk_sched_system) - (z->hello ? z->silent_since_ms : z->born_ms)));
    z->suspect = true;
    owner->counts.suspects[z->kind]++;
    if (served && serving(owner, z->kind) == NULL)
        owner->events.changed(owner->events.arg);
}

static void on_ping(void *arg)
{
    struct code_zygotes *zygotes = arg;

    SK_LIST_FOREACH (struct code_zygote, z, &zygotes->zygotes, link) {
        struct code_message message = {.kind = CODE_MSG_PING};

        if (!z->hello && !z->suspect && sk_mono_ms(&sk_sched_system) - z->born_ms >= CODE_HELLO_MS)
            suspect(z);
        if (z->pinged || !z->hello)
            continue;
        message.u.ping.number = ++zygotes->last_ping;
        if (put(z, &message, NULL, 0) != SENT)
            continue;
        z->pinged = true;
        ask(z);
    }
}

void code_child_suspect(struct code_child *child)
{
    if (child->zygote != NULL && !child->zygote->suspect)
        suspect(child->zygote);
}

static void on_watch(void *arg)
{
    struct code_zygotes *zygotes = arg;
    int64_t now = sk_mono_ms(&sk_sched_system);
    bool late = now > zygotes->watch_due_ms + LATE_MS, open = false;

    SK_LIST_FOREACH (struct code_zygote, z, &zygotes->zygotes, link) {
        if (z->questions == 0 || z->suspect)
            continue;
        open = true;
        if (late) /* we were not let run, so perhaps it was not either: its time begins again */
            z->silent_since_ms = now;
        else if (now - z->silent_since_ms >= CODE_ANSWER_MS)
            suspect(z);
    }
    if (open) {
        zygotes->watch_due_ms = now + WATCH_MS;
        sk_timer_start(zygotes->watch, WATCH_MS, 0);
    }
}

/* ---- the launcher ------------------------------------------------------------------------------- */
static struct code_zygote *find_zygote(struct code_zygotes *zygotes, uint64_t id)
{
    SK_LIST_FOREACH (struct code_zygote, z, &zygotes->zygotes, link) {
        if (z->id == id)
            return z;
    }
    return NULL;
}

static void take(struct code_zygotes *zygotes, const struct code_message *message, int *fd)
{
    struct code_zygote *z;

    if (*fd < 0 || message->u.zygote.language >= CODE_KINDS)
        return;
    z = calloc(1, sizeof(*z));
    if (z == NULL || uv_poll_init(sk_loop_uv(zygotes->loop), &z->poll, *fd) != 0) {
        SK_LOG_ERROR("no room for a zygote"); /* closing its socket ends it, and another is made */
        free(z);
        return;
    }
    z->fd = *fd;
    *fd = -1;
    z->owner = zygotes;
    z->born_ms = sk_mono_ms(&sk_sched_system);
    z->id = message->u.zygote.zygote;
    z->kind = (enum code_kind_index)message->u.zygote.language;
    sk_list_init(&z->children);
    sk_list_push_back(&zygotes->zygotes, &z->link);
    listen_for(z, UV_READABLE);
}

static void on_launcher(uv_poll_t *poll, int status, int events)
{
    struct code_zygotes *zygotes = poll->data;
    enum code_receive got = status < 0 ? CODE_CLOSED : CODE_NOTHING;
    struct code_message message;
    struct code_zygote *z;
    int fds[CODE_FDS_MAX];
    size_t count;

    (void)events;
    while (status >= 0 && (got = code_receive(zygotes->launcher, &message, fds, &count)) == CODE_RECEIVED) {
        z = find_zygote(zygotes, message.u.zygote.zygote);
        if (message.kind == CODE_MSG_LEVEL)
            zygotes->events.level(zygotes->events.arg, &message);
        else if (message.kind == CODE_MSG_ZYGOTE)
            take(zygotes, &message, &fds[0]);
        else if (message.kind == CODE_MSG_RETIRING && z != NULL)
            z->retiring = true;
        else if (message.kind == CODE_MSG_GONE && z != NULL)
            lose(z);
        else if (message.kind == CODE_MSG_DRAIN)
            zygotes->events.drain(zygotes->events.arg);
        else if (message.kind == CODE_MSG_RELOAD)
            zygotes->events.reload(zygotes->events.arg);
        code_fds_close(fds);
    }
    if (got == CODE_NOTHING) {
        release_retired(zygotes);
        return;
    }
    uv_poll_stop(poll);
    zygotes->events.launcher_gone(zygotes->events.arg);
}

struct code_zygotes *code_zygotes_new(struct sk_loop *loop, int launcher, const struct code_zygotes_events *events)
{
    struct code_zygotes *zygotes = calloc(1, sizeof(*zygotes));

    if (zygotes == NULL)
        return NULL;
    zygotes->loop = loop;
    zygotes->events = *events;
    zygotes->launcher = launcher;
    sk_list_init(&zygotes->zygotes);
    zygotes->poll = calloc(1, sizeof(*zygotes->poll));
    zygotes->ping = sk_timer_new(loop, on_ping, zygotes);
    zygotes->watch = sk_timer_new(loop, on_watch, zygotes);
    if (zygotes->poll == NULL || zygotes->ping == NULL || zygotes->watch == NULL ||
        uv_poll_init(sk_loop_uv(loop), zygotes->poll, launcher) != 0) {
        sk_timer_free(zygotes->ping);
        sk_timer_free(zygotes->watch);
        free(zygotes->poll);
        free(zygotes);
        return NULL;
    }
    zygotes->poll->data = zygotes;
    uv_poll_start(zygotes->poll, UV_READABLE, on_launcher);
    sk_timer_start(zygotes->ping, CODE_PING_MS, CODE_PING_MS);
    return zygotes;
}

void code_zygotes_free(struct code_zygotes *zygotes)
{
    if (zygotes == NULL)
        return;
    while (!sk_list_empty(&zygotes->zygotes)) {
        struct code_zygote *z = SK_LIST_ENTRY(struct code_zygote, zygotes->zygotes.next, link);
        while (!sk_list_empty(&z->children))
            leave(SK_LIST_ENTRY(struct code_child, z->children.next, link));
        close_zygote(z);
    }
    sk_timer_free(zygotes->ping);
    sk_timer_free(zygotes->watch);
    uv_close((uv_handle_t *)zygotes->poll, free_poll);
    free(zygotes);
}
