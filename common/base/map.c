/* SPDX-License-Identifier: Apache-2.0
 *
 * Chained hashing with SipHash-1-3 over the key, doubling at load 1. */
#include "common/base/map.h"

#include "common/base/sched.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_SLOTS 16 /* a power of two */

struct sk_map_entry {
    struct sk_map_entry *next;
    uint64_t hash;
    void *value;
    char key[];
};

#define ROTATE(x, n) (((x) << (n)) | ((x) >> (64 - (n))))

static void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = ROTATE(v[1], 13) ^ v[0];
    v[0] = ROTATE(v[0], 32);
    v[2] += v[3];
    v[3] = ROTATE(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = ROTATE(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = ROTATE(v[1], 17) ^ v[2];
    v[2] = ROTATE(v[2], 32);
}

static uint64_t hash_key(const struct sk_map *map, const char *key)
{
    const unsigned char *p = (const unsigned char *)key;
    size_t len = strlen(key), left = len;
    uint64_t v[4] = {map->seed[0] ^ 0x736f6d6570736575ULL, map->seed[1] ^ 0x646f72616e646f6dULL,
                     map->seed[0] ^ 0x6c7967656e657261ULL, map->seed[1] ^ 0x7465646279746573ULL};
    uint64_t word;

    for (; left >= 8; left -= 8, p += 8) {
        memcpy(&word, p, 8);
        v[3] ^= word;
        sip_round(v);
        v[0] ^= word;
    }
    word = 0;
    memcpy(&word, p, left);
    word |= (uint64_t)len << 56;
    v[3] ^= word;
    sip_round(v);
    v[0] ^= word;
    v[2] ^= 0xff;
    sip_round(v);
    sip_round(v);
    sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

void sk_map_init(struct sk_map *map, size_t limit, uint64_t seed)
{
    memset(map, 0, sizeof(*map));
    map->limit = limit;
    map->seed[0] = map->seed[1] = seed;
    if (seed == 0)
        sk_random(&sk_sched_system, map->seed, sizeof(map->seed));
}

void sk_map_fini(struct sk_map *map)
{
    for (size_t i = 0; i < map->slot_count; i++) {
        for (struct sk_map_entry *entry = map->slots[i], *next; entry != NULL; entry = next) {
            next = entry->next;
            free(entry);
        }
    }
    free(map->slots);
    map->slots = NULL;
    map->slot_count = map->count = 0;
}

/* The place that points at the entry of `key`, or at the NULL that ends its chain. */
static struct sk_map_entry **find(const struct sk_map *map, const char *key, uint64_t hash)
{
    struct sk_map_entry **at = &map->slots[hash & (map->slot_count - 1)];

    while (*at != NULL && ((*at)->hash != hash || strcmp((*at)->key, key) != 0))
        at = &(*at)->next;
    return at;
}

static bool grow(struct sk_map *map)
{
    size_t count = map->slot_count > 0 ? map->slot_count * 2 : FIRST_SLOTS;
    struct sk_map_entry **slots = calloc(count, sizeof(*slots));

    if (slots == NULL)
        return false;
    for (size_t i = 0; i < map->slot_count; i++) {
        for (struct sk_map_entry *entry = map->slots[i], *next; entry != NULL; entry = next) {
            struct sk_map_entry **slot = &slots[entry->hash & (count - 1)];
            next = entry->next;
            entry->next = *slot;
            *slot = entry;
        }
    }
    free(map->slots);
    map->slots = slots;
    map->slot_count = count;
    return true;
}

void *sk_map_get(const struct sk_map *map, const char *key)
{
    struct sk_map_entry *entry;

    if (map->count == 0)
        return NULL;
    entry = *find(map, key, hash_key(map, key));
    return entry != NULL ? entry->value : NULL;
}

bool sk_map_set(struct sk_map *map, const char *key, void *value, void **replaced)
{
    uint64_t hash = hash_key(map, key);
    struct sk_map_entry *entry = map->slot_count > 0 ? *find(map, key, hash) : NULL, **slot;
    size_t size = strlen(key) + 1;

    if (replaced != NULL)
        *replaced = entry != NULL ? entry->value : NULL;
    if (entry != NULL) {
        entry->value = value;
        return true;
    }
    if (map->count >= map->limit)
        return false;
    /* A table that cannot grow still works, only slower; the first one it cannot do without. */
    if (map->count >= map->slot_count && !grow(map) && map->slot_count == 0)
        return false;
    entry = malloc(sizeof(*entry) + size);
    if (entry == NULL)
        return false;
    entry->hash = hash;
    entry->value = value;
    memcpy(entry->key, key, size);
    slot = &map->slots[hash & (map->slot_count - 1)];
    entry->next = *slot;
    *slot = entry;
    map->count++;
    return true;
}

void *sk_map_remove(struct sk_map *map, const char *key)
{
    struct sk_map_entry **at, *entry;
    void *value;

    if (map->count == 0)
        return NULL;
    at = find(map, key, hash_key(map, key));
    entry = *at;
    if (entry == NULL)
        return NULL;
    *at = entry->next;
    value = entry->value;
    free(entry);
    map->count--;
    return value;
}

void sk_map_visit(struct sk_map *map, bool (*visit)(void *arg, const char *key, void *value), void *arg)
{
    for (size_t i = 0; i < map->slot_count; i++) {
        for (struct sk_map_entry *entry = map->slots[i], *next; entry != NULL; entry = next) {
            next = entry->next;
            if (!visit(arg, entry->key, entry->value))
                return;
        }
    }
}
