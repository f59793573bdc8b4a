/* SPDX-License-Identifier: Apache-2.0
 *
 * A provider that answers at once, behind the provider seam itself: linked into sk-bench-lifecycle in place of the
 * OpenSandbox adapter, it leaves what the control plane costs without any provider's wire (docs/benchmarks.md). */
#include "common/base/id.h"
#include "common/base/list.h"
#include "common/base/map.h"
#include "common/provider/provider.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define OBJECTS_MAX 300000

struct object {
    struct sk_list link; /* of its sandbox */
    struct sk_remote remote;
};

struct group {
    struct sk_list objects;
};

struct instant {
    const struct sk_sched *sched;
    pthread_mutex_t lock;
    struct sk_map objects, groups;
};

static struct group *group_of(struct instant *p, const char *sandbox_id)
{
    struct group *group = sk_map_get(&p->groups, sandbox_id);

    if (group != NULL)
        return group;
    group = calloc(1, sizeof(*group));
    if (group == NULL)
        return NULL;
    sk_list_init(&group->objects);
    if (!sk_map_set(&p->groups, sandbox_id, group, NULL)) {
        free(group);
        return NULL;
    }
    return group;
}

static int instant_find(void *self, struct sk_call *call, const char *sandbox_id, struct sk_remote *out, int *count,
                        bool *more, struct sk_error *err)
{
    struct instant *p = self;
    struct group *group;

    (void)call;
    (void)err;
    *count = 0;
    *more = false;
    pthread_mutex_lock(&p->lock);
    group = sk_map_get(&p->groups, sandbox_id);
    if (group != NULL) {
        SK_LIST_FOREACH (struct object, object, &group->objects, link)
            sk_remotes_offer(out, count, more, &object->remote);
    }
    pthread_mutex_unlock(&p->lock);
    return 0;
}

static int instant_get(void *self, struct sk_call *call, const char *remote_id, struct sk_remote *out, bool *found,
                       struct sk_error *err)
{
    struct instant *p = self;
    struct object *object;

    (void)call;
    (void)err;
    pthread_mutex_lock(&p->lock);
    object = sk_map_get(&p->objects, remote_id);
    *found = object != NULL;
    if (object != NULL)
        *out = object->remote;
    pthread_mutex_unlock(&p->lock);
    return 0;
}

static int instant_create(void *self, struct sk_call *call, const struct sk_create_spec *spec, struct sk_remote *out,
                          struct sk_error *err)
{
    struct instant *p = self;
    struct object *object = calloc(1, sizeof(*object));
    struct group *group;
    int result = 0;

    (void)call;
    if (object == NULL)
        return sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    sk_uuid4(p->sched, object->remote.id);
    sk_copy_cut(object->remote.sandbox_id, sizeof(object->remote.sandbox_id), spec->sandbox_id);
    sk_copy_cut(object->remote.job_id, sizeof(object->remote.job_id), spec->job_id);
    object->remote.state = SK_REMOTE_RUNNING;
    object->remote.epoch = spec->epoch;
    object->remote.created_at = sk_wall_ms(p->sched);
    *out = object->remote;
    pthread_mutex_lock(&p->lock);
    group = group_of(p, spec->sandbox_id);
    if (group != NULL && sk_map_set(&p->objects, object->remote.id, object, NULL))
        sk_list_push_back(&group->objects, &object->link);
    else
        result = sk_fail(err, SK_ERR_PROVIDER_ERROR, "no room for another object");
    pthread_mutex_unlock(&p->lock);
    if (result != 0)
        free(object);
    return result;
}

static int instant_resume(void *self, struct sk_call *call, const char *remote_id, struct sk_error *err)
{
    (void)self;
    (void)call;
    (void)remote_id;
    (void)err;
    return 0; /* nothing is ever paused */
}

static int instant_remove(void *self, struct sk_call *call, const char *remote_id, bool *gone, struct sk_error *err)
{
    struct instant *p = self;
    struct object *object;

    (void)call;
    (void)err;
    pthread_mutex_lock(&p->lock);
    object = sk_map_remove(&p->objects, remote_id);
    if (object != NULL)
        sk_list_remove(&object->link);
    pthread_mutex_unlock(&p->lock);
    free(object);
    *gone = true;
    return 0;
}

static int instant_relabel(void *self, struct sk_call *call, const char *remote_id, int64_t epoch, const char *job_id,
                           bool *found, struct sk_error *err)
{
    struct instant *p = self;
    struct object *object;

    (void)call;
    (void)err;
    pthread_mutex_lock(&p->lock);
    object = sk_map_get(&p->objects, remote_id);
    *found = object != NULL;
    if (object != NULL) {
        object->remote.epoch = epoch;
        sk_copy_cut(object->remote.job_id, sizeof(object->remote.job_id), job_id);
    }
    pthread_mutex_unlock(&p->lock);
    return 0;
}

static int instant_probe(void *self, struct sk_call *call, const char *remote_id, bool *ready, struct sk_error *err)
{
    (void)self;
    (void)call;
    (void)remote_id;
    (void)err;
    *ready = true;
    return 0;
}

static int instant_volume_ensure(void *self, struct sk_call *call, const char *claim_name, const char *storage_size,
                                 struct sk_error *err)
{
    (void)self;
    (void)call;
    (void)claim_name;
    (void)storage_size;
    (void)err;
    return 0;
}

static int instant_volume_remove(void *self, struct sk_call *call, const char *claim_name, struct sk_error *err)
{
    (void)self;
    (void)call;
    (void)claim_name;
    (void)err;
    return 0;
}

/* Nobody looks for orphans here. */
static int instant_list(void *self, struct sk_call *call, int page, struct sk_remote *out, int capacity, int *count,
                        int *unreadable, bool *more, struct sk_error *err)
{
    (void)self;
    (void)call;
    (void)page;
    (void)out;
    (void)capacity;
    (void)err;
    *count = *unreadable = 0;
    *more = false;
    return 0;
}

static int instant_ping(void *self, struct sk_call *call, struct sk_error *err)
{
    (void)self;
    (void)call;
    (void)err;
    return 0;
}

static const struct sk_provider_ops instant_ops = {
    .find = instant_find,
    .get = instant_get,
    .create = instant_create,
    .resume = instant_resume,
    .remove = instant_remove,
    .relabel = instant_relabel,
    .probe = instant_probe,
    .volume_ensure = instant_volume_ensure,
    .volume_remove = instant_volume_remove,
    .list = instant_list,
    .ping = instant_ping,
    .has_volumes = true,
    .name = "opensandbox",
};

int sk_opensandbox_new(const struct sk_opensandbox_config *config, const struct sk_sched *sched,
                       struct sk_provider *out, struct sk_error *err)
{
    struct instant *p = calloc(1, sizeof(*p));

    (void)config;
    if (p == NULL)
        return sk_fail(err, SK_ERR_INTERNAL, "out of memory");
    p->sched = sched;
    pthread_mutex_init(&p->lock, NULL);
    sk_map_init(&p->objects, OBJECTS_MAX, 0);
    sk_map_init(&p->groups, OBJECTS_MAX, 0);
    out->ops = &instant_ops;
    out->self = p;
    return 0;
}

static bool free_object(void *arg, const char *key, void *value)
{
    (void)arg;
    (void)key;
    free(value);
    return true;
}

void sk_opensandbox_free(struct sk_provider *provider)
{
    struct instant *p = provider->self;

    if (p == NULL)
        return;
    sk_map_visit(&p->objects, free_object, NULL);
    sk_map_visit(&p->groups, free_object, NULL);
    sk_map_fini(&p->objects);
    sk_map_fini(&p->groups);
    pthread_mutex_destroy(&p->lock);
    free(p);
    provider->self = NULL;
}
