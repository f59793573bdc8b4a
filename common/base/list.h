/* SPDX-License-Identifier: Apache-2.0
 *
 * An intrusive doubly linked list: the link is a member of the caller's struct, so nothing is allocated and an element
 * removes itself in constant time. No locking; the list does not own its elements.
 *
 *     struct waiter { struct sk_list link; … };
 *     struct sk_list waiters;
 *     sk_list_init(&waiters);
 *     sk_list_push_back(&waiters, &waiter->link);
 *     SK_LIST_FOREACH(struct waiter, w, &waiters, link) { … }   (w may be removed and freed inside, others may not) */
#ifndef SK_BASE_LIST_H
#define SK_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct sk_list {
    struct sk_list *next, *prev;
};

#define SK_LIST_ENTRY(type, item, member) ((type *)(void *)((char *)(item)-offsetof(type, member)))
#define SK_LIST_FOREACH(type, var, list, member)                                                                       \
    for (type *var = SK_LIST_ENTRY(type, (list)->next, member),                                                        \
              *var##_next_ = SK_LIST_ENTRY(type, var->member.next, member);                                            \
         &var->member != (list); var = var##_next_, var##_next_ = SK_LIST_ENTRY(type, var->member.next, member))

/* A list head or an element outside of any list: both point at themselves. */
static inline void sk_list_init(struct sk_list *list)
{
    list->next = list->prev = list;
}

static inline bool sk_list_empty(const struct sk_list *list)
{
    return list->next == list;
}

static inline void sk_list_insert_before(struct sk_list *at, struct sk_list *item)
{
    item->prev = at->prev;
    item->next = at;
    at->prev->next = item;
    at->prev = item;
}

static inline void sk_list_push_back(struct sk_list *list, struct sk_list *item)
{
    sk_list_insert_before(list, item);
}

static inline void sk_list_push_front(struct sk_list *list, struct sk_list *item)
{
    sk_list_insert_before(list->next, item);
}

/* Harmless for an element that is in no list (but initialised). */
static inline void sk_list_remove(struct sk_list *item)
{
    item->prev->next = item->next;
    item->next->prev = item->prev;
    sk_list_init(item);
}

/* The first element, removed; NULL when the list is empty. */
static inline struct sk_list *sk_list_pop_front(struct sk_list *list)
{
    struct sk_list *item = list->next;

    if (item == list)
        return NULL;
    sk_list_remove(item); /* NOLINT(clang-analyzer-unix.Malloc): the analyser loses sight of the unlinking */
    return item;
}

/* Walks the list. */
static inline size_t sk_list_length(const struct sk_list *list)
{
    size_t count = 0;

    for (const struct sk_list *item = list->next; item != list; item = item->next)
        count++;
    return count;
}

#endif
