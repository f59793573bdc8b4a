/* SPDX-License-Identifier: Apache-2.0
 *
 * Who holds which quota slot, page by page, for the doctor: slots as they are, also such as no record explains. */
#include "common/store/instance_bson.h"
#include "common/store/quota.h"

#include <string.h>

struct page {
    bool (*fn)(void *arg, const struct sk_quota_holding *holding);
    void *arg;
};

static bool hand_out(void *arg, const bson_t *doc)
{
    const struct page *page = arg;
    struct sk_quota_holding holding;
    struct sk_quota_slot slot;
    bson_iter_t iter;

    memset(&holding, 0, sizeof(holding));
    if (!bson_iter_init_find(&iter, doc, "held") || !sk_bson_text(&iter, holding.position, sizeof(holding.position)) ||
        !bson_iter_init_find(&iter, doc, "scope") || !sk_bson_text(&iter, holding.scope, sizeof(holding.scope)) ||
        !sk_quota_decode_slot(doc, &slot))
        return true; /* written by somebody else: nobody's slot */
    memcpy(holding.sandbox_id, slot.holder, sizeof(holding.sandbox_id));
    holding.taken_at = slot.at;
    return page->fn(page->arg, &holding);
}

int sk_mongo_quota_list(void *self, struct sk_call *call, const char *after, int limit,
                        bool (*fn)(void *arg, const struct sk_quota_holding *holding), void *arg, struct sk_error *err)
{
    struct page page = {.fn = fn, .arg = arg};
    bson_t *filter, *opts;
    struct sk_mongo_op op;
    int result;

    if (sk_mongo_begin(sk_mongo_self(self), call, SK_MONGO_QUOTA_CALL, &op, err) != 0)
        return -1;
    filter = BCON_NEW("held", "{", "$gt", BCON_UTF8(after), "}");
    opts = BCON_NEW("sort", "{", "held", BCON_INT32(1), "}", "limit", BCON_INT64(limit));
    result = sk_mongo_find(&op, SK_MONGO_QUOTA, filter, opts, hand_out, &page, err);
    bson_destroy(opts);
    bson_destroy(filter);
    sk_mongo_end(&op);
    return result;
}
