/* SPDX-License-Identifier: Apache-2.0
 *
 * A bounded hash map from strings to pointers, for tables of the living: sandboxes that have a parked queue, commands
 * in flight. Keys are copied; values belong to the caller. Hashing is seeded per map, so that keys that come from
 * outside cannot be chosen to collide. No locking: one thread, or the caller's mutex. */
#ifndef SK_BASE_MAP_H
#define SK_BASE_MAP_H

#include "common/base/error.h"

struct sk_map_entry;

struct sk_map {
    struct sk_map_entry **slots;
    size_t slot_count, count, limit;
    uint64_t seed[2];
};

/* Allocates nothing yet. `limit` = entries at most. The seed comes from the kernel unless `seed` (not 0) fixes it, as
 * the simulator needs. */
void sk_map_init(struct sk_map *map, size_t limit, uint64_t seed);
/* Frees keys and table, not the values. */
void sk_map_fini(struct sk_map *map);
static inline size_t sk_map_count(const struct sk_map *map)
{
    return map->count;
}

/* NULL when there is none. */
void *sk_map_get(const struct sk_map *map, const char *key);
/* Adds or replaces; *replaced (may be NULL) gets the former value or NULL. `value` must not be NULL. False when the map
 * is full or memory is out: then nothing changed. */
SK_MUST_USE bool sk_map_set(struct sk_map *map, const char *key, void *value, void **replaced);
/* Removes and returns the value; NULL when there is none. */
void *sk_map_remove(struct sk_map *map, const char *key);
/* Calls `visit` for every entry in no particular order, until it returns false. `visit` may remove the entry it is
 * called for, nothing else, and must not add. */
void sk_map_visit(struct sk_map *map, bool (*visit)(void *arg, const char *key, void *value), void *arg);

#endif
