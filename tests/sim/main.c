/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulator's command line: one seed, or a batch of seeds over several processes, with a summary of what was seen.
 * See docs/simulator.md. Exit status: 0 = all runs passed, 1 = a run failed or a rare path never happened, 2 = usage.
 */
#include "tests/sim/batch.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum lc_mutation lc_mutation = LC_MUTATION_NONE;

static const char *const mutation_names[LC_MUTATION_COUNT] = {
    [LC_MUTATION_NONE] = "none",
    [LC_MUTATION_SKIP_EPOCH_CHECK] = "skip-epoch-check",
    [LC_MUTATION_CLEAR_OUTBOX_EARLY] = "clear-outbox-early",
    [LC_MUTATION_FORGET_HEARTBEAT] = "forget-heartbeat",
    [LC_MUTATION_RELEASE_FOREIGN_LEASE] = "release-foreign-lease",
    [LC_MUTATION_PROVISION_WITHOUT_QUOTA] = "provision-without-quota",
    [LC_MUTATION_DELETE_RECORD_FIRST] = "delete-record-first",
    [LC_MUTATION_RENEW_PAST_DEADLINE] = "renew-past-deadline",
    [LC_MUTATION_RETRY_CREATE_BLINDLY] = "retry-create-blindly",
    [LC_MUTATION_PARK_WITHOUT_IN_PROGRESS] = "park-without-in-progress",
    [LC_MUTATION_ACK_BEFORE_STORE] = "ack-before-store",
    [LC_MUTATION_SKIP_TERMINAL_FENCE] = "skip-terminal-fence",
    [LC_MUTATION_REPEAT_LOST_INSERT] = "repeat-lost-insert",
    [LC_MUTATION_ANSWER_ANEW] = "answer-anew",
    [LC_MUTATION_TAKE_OVER_EARLY] = "take-over-early",
    [LC_MUTATION_CAS_WITHOUT_SEQUENCE] = "cas-without-sequence",
    [LC_MUTATION_CLEAN_WHAT_IS_NEEDED] = "clean-what-is-needed",
    [LC_MUTATION_FORGET_RECALL] = "forget-recall",
    [LC_MUTATION_TAKE_STOP_FOR_NEW] = "take-stop-for-new",
};
_Static_assert(LC_MUTATION_TAKE_STOP_FOR_NEW + 1 == LC_MUTATION_COUNT, "a mutation has no name here");

static int usage(FILE *out)
{
    fputs("usage: sim --seed N [--trace] [--twice] [--mutation NAME]\n"
          "       sim --seeds COUNT|A..B [--first A] [--jobs N] [--until-failure] [--sometimes] [--twice] [--mutation "
          "NAME]\n"
          "       sim --list-mutations\n"
          "  --trace          print every call\n"
          "  --twice          run each seed twice and compare the hashes of all calls\n"
          "  --until-failure  stop at the first seed that fails\n"
          "  --sometimes      fail when a rare path was never seen (implied by 2,000 seeds and more)\n"
          "  --no-sometimes   never\n"
          "  --stats          print every counter\n"
          "  --mutation NAME  run with a deliberate bug\n",
          out);
    return 2;
}

static bool parse_range(const char *text, struct sim_batch *batch)
{
    char *end;
    unsigned long long first = strtoull(text, &end, 10), last;

    if (end == text)
        return false;
    if (*end == '\0') {
        batch->count = first;
        return first > 0;
    }
    if (strncmp(end, "..", 2) != 0)
        return false;
    last = strtoull(end + 2, &end, 10);
    if (*end != '\0' || last < first)
        return false;
    batch->first = first;
    batch->count = last - first + 1;
    return true;
}

static int list_mutations(void)
{
    for (int i = LC_MUTATION_NONE + 1; i < LC_MUTATION_COUNT; i++)
        puts(mutation_names[i]);
    return 0;
}

static bool set_mutation(const char *name)
{
    for (int i = 0; i < LC_MUTATION_COUNT; i++) {
        if (strcmp(mutation_names[i], name) == 0) {
            lc_mutation = (enum lc_mutation)i;
            return true;
        }
    }
    fprintf(stderr, "sim: there is no mutation \"%s\" (--list-mutations)\n", name);
    return false;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"seed", required_argument, NULL, 's'},     {"seeds", required_argument, NULL, 'n'},
        {"first", required_argument, NULL, 'f'},    {"jobs", required_argument, NULL, 'j'},
        {"trace", no_argument, NULL, 't'},          {"twice", no_argument, NULL, '2'},
        {"until-failure", no_argument, NULL, 'u'},  {"sometimes", no_argument, NULL, 'o'},
        {"no-sometimes", no_argument, NULL, 'O'},   {"stats", no_argument, NULL, 'S'},
        {"mutation", required_argument, NULL, 'm'}, {"list-mutations", no_argument, NULL, 'l'},
        {"help", no_argument, NULL, 'h'},           {NULL, 0, NULL, 0},
    };
    struct sim_batch batch = {.first = 1, .jobs = 2};
    bool one = false, sometimes = false, no_sometimes = false, trace = false, first_given = false;
    uint64_t first = 1;
    int c;

    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (c) {
        case 's':
            one = true;
            batch.first = strtoull(optarg, NULL, 10);
            batch.count = 1;
            break;
        case 'n':
            if (!parse_range(optarg, &batch))
                return usage(stderr);
            break;
        case 'f':
            first = strtoull(optarg, NULL, 10);
            first_given = true;
            break;
        case 'j':
            batch.jobs = atoi(optarg);
            break;
        case 't':
            trace = true;
            break;
        case '2':
            batch.twice = true;
            break;
        case 'u':
            batch.until_failure = true;
            break;
        case 'o':
            sometimes = true;
            break;
        case 'O':
            no_sometimes = true;
            break;
        case 'S':
            batch.stats = true;
            break;
        case 'm':
            if (!set_mutation(optarg))
                return 2;
            break;
        case 'l':
            return list_mutations();
        case 'h':
            usage(stdout);
            return 0;
        default:
            return usage(stderr);
        }
    }
    if (batch.count == 0 || optind != argc || batch.jobs < 1 || batch.jobs > SIM_JOBS_MAX)
        return usage(stderr);
    if (first_given)
        batch.first = first;
    batch.mutation = lc_mutation == LC_MUTATION_NONE ? NULL : mutation_names[lc_mutation];
    if (one)
        return sim_one(&batch, trace);
    batch.sometimes = sometimes || (!no_sometimes && lc_mutation == LC_MUTATION_NONE && batch.count >= 2000);
    return sim_batch(&batch);
}
