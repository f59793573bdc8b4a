/* SPDX-License-Identifier: Apache-2.0
 *
 * The state table against contract/lifecycle.md §2.4 and §3, written out here a second time by hand, and against the
 * list that the generator makes of it. */
#include "common/sm/sm.h"
#include "tests/unit/check_main.h"

#include <jansson.h>
#include <string.h>

#define BIT(s) (1u << SK_STATUS_##s)

static const struct {
    enum sk_status status;
    const char *name;
    bool stable, counts;
    enum sk_op operation;
} statuses[] = {
    {SK_STATUS_PROVISIONING, "provisioning", false, true, SK_OP_PROVISION},
    {SK_STATUS_LEGACY_MIGRATING, "legacyMigrating", false, true, SK_OP_LEGACY_MIGRATION},
    {SK_STATUS_RUNNING, "running", true, true, SK_OP_NONE},
    {SK_STATUS_STOPPING, "stopping", false, true, SK_OP_STOP},
    {SK_STATUS_STOPPED, "stopped", true, false, SK_OP_NONE},
    {SK_STATUS_ARCHIVING, "archiving", false, true, SK_OP_ARCHIVE},
    {SK_STATUS_ARCHIVED, "archived", true, false, SK_OP_NONE},
    {SK_STATUS_RESTORING, "restoring", false, true, SK_OP_RESTORE},
    {SK_STATUS_DELETING, "deleting", false, false, SK_OP_DELETE},
};

static const struct {
    enum sk_op op;
    const char *name;
    enum sk_status transitional, terminal;
    unsigned from;
    const char *phases; /* separated by spaces */
} operations[] = {
    {SK_OP_PROVISION, "provision", SK_STATUS_PROVISIONING, SK_STATUS_RUNNING,
     BIT(NONE) | BIT(STOPPED) | BIT(PROVISIONING), "claimed providerEnsured"},
    {SK_OP_STOP, "stop", SK_STATUS_STOPPING, SK_STATUS_STOPPED, BIT(RUNNING) | BIT(STOPPING),
     "claimed providerStopped"},
    {SK_OP_ARCHIVE, "archive", SK_STATUS_ARCHIVING, SK_STATUS_ARCHIVED, BIT(RUNNING) | BIT(STOPPED) | BIT(ARCHIVING),
     "claimed archiveUploaded providerDeleted volumeDeleted"},
    {SK_OP_RESTORE, "restore", SK_STATUS_RESTORING, SK_STATUS_RUNNING, BIT(ARCHIVED) | BIT(RESTORING),
     "claimed previousProviderDeleted previousVolumeDeleted volumeAssigned archiveInstalled"},
    {SK_OP_DELETE, "delete", SK_STATUS_DELETING, SK_STATUS_NONE,
     BIT(PROVISIONING) | BIT(LEGACY_MIGRATING) | BIT(RUNNING) | BIT(STOPPING) | BIT(STOPPED) | BIT(ARCHIVING) |
         BIT(ARCHIVED) | BIT(RESTORING) | BIT(DELETING),
     "claimed providerDeleted volumeDeleted archiveDeleted"},
    {SK_OP_LEGACY_MIGRATION, "legacyMigration", SK_STATUS_LEGACY_MIGRATING, SK_STATUS_STOPPED,
     BIT(NONE) | BIT(RUNNING) | BIT(STOPPED) | BIT(ARCHIVED) | BIT(LEGACY_MIGRATING),
     "claimed volumeAssigned targetEnsured installed"},
};

START_TEST(test_statuses)
{
    ck_assert_int_eq(SK_STATUS_COUNT, (int)(sizeof(statuses) / sizeof(statuses[0])) + 1);
    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        const struct sk_status_info *info = sk_status_info(statuses[i].status);

        ck_assert_str_eq(info->name, statuses[i].name);
        ck_assert_str_eq(sk_status_name(statuses[i].status), statuses[i].name);
        ck_assert_int_eq(sk_status_parse(statuses[i].name), statuses[i].status);
        ck_assert_int_eq(info->stable, statuses[i].stable);
        ck_assert_int_eq(info->counts_for_quota, statuses[i].counts);
        ck_assert_int_eq(info->operation, statuses[i].operation);
        ck_assert_int_eq(info->stable, info->operation == SK_OP_NONE);
    }
}
END_TEST

START_TEST(test_operations)
{
    ck_assert_int_eq(SK_OP_COUNT, (int)(sizeof(operations) / sizeof(operations[0])) + 1);
    for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]); i++) {
        const struct sk_op_info *info = sk_op_info(operations[i].op);
        char phases[256], *rest = phases, *phase;
        int count = 0;

        ck_assert_str_eq(info->name, operations[i].name);
        ck_assert_int_eq(sk_op_parse(operations[i].name), operations[i].op);
        ck_assert_int_eq(info->transitional, operations[i].transitional);
        ck_assert_int_eq(info->terminal, operations[i].terminal);
        ck_assert_int_eq(sk_status_info(info->transitional)->operation, operations[i].op);
        for (int s = 0; s < SK_STATUS_COUNT; s++)
            ck_assert_msg(sk_op_claimable(operations[i].op, (enum sk_status)s) == ((operations[i].from & 1u << s) != 0),
                          "%s from %s", info->name, sk_status_name((enum sk_status)s));
        strcpy(phases, operations[i].phases);
        while ((phase = strsep(&rest, " ")) != NULL) {
            ck_assert_int_lt(count, info->phase_count);
            ck_assert_str_eq(info->phases[count].name, phase);
            ck_assert_int_eq(sk_op_phase_index(operations[i].op, phase), count);
            ck_assert_int_gt(info->phases[count].deadline_ms, 0);
            count++;
        }
        ck_assert_int_eq(info->phase_count, count);
        ck_assert_int_eq(sk_op_phase_index(operations[i].op, "elsewhere"), -1);
        ck_assert_int_eq(sk_op_phase_index(operations[i].op, ""), -1);
        ck_assert_int_eq(sk_op_phase_index(operations[i].op, NULL), -1);
    }
}
END_TEST

/* Whatever comes from outside: no name, no index beyond the tables. */
START_TEST(test_unknown)
{
    static const char *const names[] = {"", "none", "invalid", "Running", "running ", "unning", "provision\n"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        ck_assert_int_eq(sk_status_parse(names[i]), SK_STATUS_INVALID);
        ck_assert_int_eq(sk_op_parse(names[i]), SK_OP_INVALID);
    }
    ck_assert_int_eq(sk_status_parse(NULL), SK_STATUS_INVALID);
    ck_assert_int_eq(sk_op_parse(NULL), SK_OP_INVALID);
    for (int bad = -2; bad < 100; bad++) {
        if (bad >= 0 && bad < SK_STATUS_COUNT)
            continue;
        ck_assert_ptr_null(sk_status_info((enum sk_status)bad));
        ck_assert_str_eq(sk_status_name((enum sk_status)bad), "invalid");
        ck_assert(!sk_op_claimable(SK_OP_DELETE, (enum sk_status)bad));
        ck_assert(!sk_status_move_legal((enum sk_status)bad, SK_STATUS_RUNNING));
        ck_assert(!sk_status_move_legal(SK_STATUS_RUNNING, (enum sk_status)bad));
    }
    ck_assert_ptr_null(sk_op_info(SK_OP_INVALID));
    ck_assert_ptr_null(sk_op_info((enum sk_op) - 1));
    ck_assert_str_eq(sk_op_name(SK_OP_INVALID), "invalid");
    ck_assert_int_eq(sk_op_phase_index(SK_OP_INVALID, "claimed"), -1);
    ck_assert(!sk_op_claimable(SK_OP_INVALID, SK_STATUS_RUNNING));
    ck_assert_str_eq(sk_status_name(SK_STATUS_NONE), "none");
    ck_assert_str_eq(sk_op_name(SK_OP_NONE), "none");
}
END_TEST

START_TEST(test_moves)
{
    static const struct {
        enum sk_status from;
        unsigned to;
    } legal[] = {
        {SK_STATUS_NONE, BIT(PROVISIONING) | BIT(LEGACY_MIGRATING)},
        {SK_STATUS_PROVISIONING, BIT(PROVISIONING) | BIT(RUNNING) | BIT(STOPPED) | BIT(NONE) | BIT(DELETING)},
        {SK_STATUS_LEGACY_MIGRATING,
         BIT(LEGACY_MIGRATING) | BIT(STOPPED) | BIT(RUNNING) | BIT(ARCHIVED) | BIT(NONE) | BIT(DELETING)},
        {SK_STATUS_RUNNING, BIT(RUNNING) | BIT(STOPPING) | BIT(ARCHIVING) | BIT(LEGACY_MIGRATING) | BIT(DELETING)},
        {SK_STATUS_STOPPING, BIT(STOPPING) | BIT(STOPPED) | BIT(DELETING)},
        {SK_STATUS_STOPPED, BIT(STOPPED) | BIT(PROVISIONING) | BIT(ARCHIVING) | BIT(LEGACY_MIGRATING) | BIT(DELETING)},
        {SK_STATUS_ARCHIVING, BIT(ARCHIVING) | BIT(ARCHIVED) | BIT(STOPPED) | BIT(DELETING)},
        {SK_STATUS_ARCHIVED, BIT(ARCHIVED) | BIT(RESTORING) | BIT(LEGACY_MIGRATING) | BIT(DELETING)},
        {SK_STATUS_RESTORING, BIT(RESTORING) | BIT(RUNNING) | BIT(ARCHIVED) | BIT(DELETING)},
        {SK_STATUS_DELETING, BIT(DELETING) | BIT(NONE)},
    };

    ck_assert_int_eq((int)(sizeof(legal) / sizeof(legal[0])), SK_STATUS_COUNT);
    for (size_t i = 0; i < sizeof(legal) / sizeof(legal[0]); i++) {
        for (int to = 0; to < SK_STATUS_COUNT; to++)
            ck_assert_msg(sk_status_move_legal(legal[i].from, (enum sk_status)to) == ((legal[i].to & 1u << to) != 0),
                          "%s -> %s", sk_status_name(legal[i].from), sk_status_name((enum sk_status)to));
    }
}
END_TEST

/* Only what this release can do says so. */
START_TEST(test_available)
{
    ck_assert(sk_op_info(SK_OP_PROVISION)->available && sk_op_info(SK_OP_STOP)->available &&
              sk_op_info(SK_OP_DELETE)->available);
    ck_assert(!sk_op_info(SK_OP_ARCHIVE)->available && !sk_op_info(SK_OP_RESTORE)->available &&
              !sk_op_info(SK_OP_LEGACY_MIGRATION)->available);
}
END_TEST

static enum sk_status status_of(const json_t *value)
{
    return json_is_null(value) ? SK_STATUS_NONE : sk_status_parse(json_string_value(value));
}

START_TEST(test_list)
{
    json_error_t error;
    json_t *list = json_load_file(SK_STATES_JSON, 0, &error), *item, *phase;
    size_t index, p, moves = 0;

    ck_assert_msg(list != NULL, "%s", error.text);
    ck_assert_uint_eq(json_array_size(json_object_get(list, "statuses")), SK_STATUS_COUNT - 1);
    json_array_foreach (json_object_get(list, "statuses"), index, item) {
        const struct sk_status_info *info = sk_status_info(status_of(json_object_get(item, "name")));

        ck_assert_ptr_nonnull(info);
        ck_assert_int_eq(json_is_true(json_object_get(item, "stable")), info->stable);
        ck_assert_int_eq(json_is_true(json_object_get(item, "countsForQuota")), info->counts_for_quota);
    }
    ck_assert_uint_eq(json_array_size(json_object_get(list, "operations")), SK_OP_COUNT - 1);
    json_array_foreach (json_object_get(list, "operations"), index, item) {
        const struct sk_op_info *info = sk_op_info(sk_op_parse(json_string_value(json_object_get(item, "name"))));

        ck_assert_ptr_nonnull(info);
        ck_assert_int_eq(status_of(json_object_get(item, "transitional")), info->transitional);
        ck_assert_int_eq(status_of(json_object_get(item, "terminal")), info->terminal);
        ck_assert_int_eq(json_is_true(json_object_get(item, "available")), info->available);
        ck_assert_uint_eq(json_array_size(json_object_get(item, "phases")), (size_t)info->phase_count);
        json_array_foreach (json_object_get(item, "phases"), p, phase) {
            ck_assert_str_eq(json_string_value(json_object_get(phase, "name")), info->phases[p].name);
            ck_assert_int_eq(json_integer_value(json_object_get(phase, "deadlineMs")), info->phases[p].deadline_ms);
        }
    }
    json_array_foreach (json_object_get(list, "claims"), index, item)
        ck_assert(sk_op_claimable(sk_op_parse(json_string_value(json_object_get(item, "operation"))),
                                  status_of(json_object_get(item, "from"))));
    ck_assert_uint_eq(index, 24);
    for (int from = 0; from < SK_STATUS_COUNT; from++) {
        for (int to = 0; to < SK_STATUS_COUNT; to++)
            moves += from != to && sk_status_move_legal((enum sk_status)from, (enum sk_status)to);
    }
    ck_assert_uint_eq(json_array_size(json_object_get(list, "moves")), moves);
    json_decref(list);
}
END_TEST

SK_CHECK_MAIN("sm", test_statuses, test_operations, test_unknown, test_moves, test_available, test_list)
