/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the decoder of instance documents: any bytes that pass for BSON. Whatever comes out must either keep the
 * invariants or be marked, must be showable, and what is not marked must survive being encoded and decoded again. */
#include "common/store/instance_bson.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVENTS_MAX 8

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* The rest of a record that was understood: nothing of it gets lost on the way to the store and back. */
static void check_round_trip(const struct sk_instance *instance, const struct sk_event *events, int count)
{
    static struct sk_instance again;
    bson_t doc = BSON_INITIALIZER, set = BSON_INITIALIZER, unset = BSON_INITIALIZER;

    sk_instance_encode(instance, events, count, &doc);
    sk_instance_decode(&doc, &again);
    require(!again.malformed);
    /* Volumes of others stand in front of ours in the original only. */
    again.storage.volume_index = instance->storage.volume_index;
    sk_instance_encode_change(instance, &again, &set, &unset);
    if (!bson_empty(&set) || !bson_empty(&unset)) {
        fprintf(stderr, "set %s unset %s\n", bson_as_json(&set, NULL), bson_as_json(&unset, NULL));
        abort();
    }
    bson_destroy(&doc);
    bson_destroy(&set);
    bson_destroy(&unset);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct sk_instance instance;
    static struct sk_event events[EVENTS_MAX];
    bson_t doc;
    json_t *shown;
    int count;

    if (!bson_init_static(&doc, data, size))
        return 0;
    sk_instance_decode(&doc, &instance);
    require(instance.malformed || sk_instance_invariant(&instance) == NULL);
    require(!instance.malformed || instance.malformed_reason[0] != '\0');
    require(instance.pin_count >= 0 && instance.pin_count <= SK_PINS_MAX && instance.outbox_count >= 0);
    count = sk_outbox_decode(&doc, &instance, events, EVENTS_MAX);
    require(count >= 0 && count <= EVENTS_MAX);
    shown = sk_instance_public_json(&instance);
    require(shown != NULL);
    json_decref(shown);
    for (int i = 0; i < count; i++) {
        shown = sk_event_data_json(&events[i]);
        require(shown != NULL);
        json_decref(shown);
    }
    if (!instance.malformed)
        check_round_trip(&instance, events, count);
    return 0;
}
