/* SPDX-License-Identifier: Apache-2.0
 *
 * Many seeds over several processes. A worker that dies (a crash, a sanitizer's verdict, a hang) takes one seed with
 * it: the parent reports that seed and starts another worker behind it. */
#include "tests/sim/batch.h"

#include "tests/sim/context.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SECONDS_PER_SEED 60 /* of real time: more is a hang */
#define TAIL_LINES       120
#define REPORTED_MAX     10 /* failures shown at length */
#define DEATHS_MAX       10 /* processes that died: then something is wrong with all of them */

/* Shared by parent and workers. */
struct worker {
    uint64_t next, current; /* seeds */
    bool done;
    uint64_t runs, failures;
    struct sim_result sum; /* of counters only */
};

struct shared {
    struct worker workers[SIM_JOBS_MAX];
    uint64_t first_failure; /* lowest failing seed, 0 = none */
    uint64_t reported;
    bool stop;
};

static struct shared *shared;
static uint64_t running_seed;
static char replay_text[256];

static void describe_replay(const struct sim_batch *batch, uint64_t seed, char *out, size_t size)
{
    snprintf(out, size, "tests/sim/run --seed %" PRIu64 " --trace%s%s", seed,
             batch->mutation == NULL ? "" : " --mutation ", batch->mutation == NULL ? "" : batch->mutation);
}

static void write_text(const char *text)
{
    ssize_t n = write(STDERR_FILENO, text, strlen(text));

    (void)n;
}

static void on_fatal(int number, siginfo_t *info, void *context)
{
    (void)context;
    write_text("\nsim: ");
    write_text(number == SIGALRM ? "the run hangs" : number == SIGABRT ? "aborted" : "crashed");
    if ((number == SIGSEGV || number == SIGBUS) && sim_context_is_guard(info->si_addr))
        write_text(" (a fibre's stack overflowed)");
    write_text("\n  replay: ");
    write_text(replay_text);
    write_text("\n");
    signal(number, SIG_DFL);
    raise(number == SIGALRM ? SIGKILL : number);
}

static void catch_fatal(void)
{
    static char stack[64 * 1024];
    stack_t alternative = {.ss_sp = stack, .ss_size = sizeof(stack)};
    struct sigaction action = {.sa_sigaction = on_fatal, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGALRM};

    sigaltstack(&alternative, NULL);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        sigaction(numbers[i], &action, NULL);
}

static void run(const struct sim_batch *batch, uint64_t seed, bool trace, FILE *out, struct sim_result *result)
{
    struct sim_options options = {.seed = seed, .trace = trace, .out = out};
    struct itimerval limit = {.it_value = {.tv_sec = SECONDS_PER_SEED}}, none = {.it_value = {0}};
    struct sim_result again;

    running_seed = seed;
    describe_replay(batch, seed, replay_text, sizeof(replay_text));
    setitimer(ITIMER_REAL, &limit, NULL);
    sim_run_seed(&options, result);
    if (batch->twice && !trace) {
        sim_run_seed(&options, &again);
        if (again.hash != result->hash && !result->failed) {
            result->failed = true;
            snprintf(result->monitor, sizeof(result->monitor), "replay");
            snprintf(result->failure, sizeof(result->failure), "the same seed gave %016" PRIx64 " and %016" PRIx64,
                     result->hash, again.hash);
        }
    }
    setitimer(ITIMER_REAL, &none, NULL);
}

/* Does the seed fail without the deliberate bug, too? Then it says nothing about the bug. In a process of its own, as
 * the run with the bug may have left anything behind. */
static bool fails_anyway(uint64_t seed)
{
    struct sim_options options = {.seed = seed, .out = stdout};
    struct sim_result result;
    int status;
    pid_t pid;

    if (lc_mutation == LC_MUTATION_NONE)
        return false;
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        lc_mutation = LC_MUTATION_NONE;
        sim_run_seed(&options, &result);
        _exit(result.failed ? 1 : 0);
    }
    return pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

static void add(struct sim_result *sum, const struct sim_result *one)
{
    sum->virtual_ms += one->virtual_ms;
    sum->steps += one->steps;
    sum->calls += one->calls;
    sum->hash += one->hash;
    for (int i = 0; i < LC_COUNTER_COUNT; i++)
        sum->counters[i] += one->counters[i];
    for (int i = 0; i < SIM_SOMETIMES_COUNT; i++)
        sum->sometimes[i] += one->sometimes[i];
    for (int i = 0; i < SIM_CALL_COUNT; i++) {
        sum->call_counts[i] += one->call_counts[i];
        sum->crashes[i] += one->crashes[i];
    }
}

/* Runs the seed once more, traced, and shows the end of it. Only a part, as a trace has thousands of lines. */
static void show_tail(const struct sim_batch *batch, uint64_t seed)
{
    FILE *file = tmpfile();
    struct sim_result result;
    char line[2048];
    long lines = 0, skip;

    if (file == NULL)
        return;
    run(batch, seed, true, file, &result);
    rewind(file);
    while (fgets(line, sizeof(line), file) != NULL)
        lines += strchr(line, '\n') != NULL;
    rewind(file);
    skip = lines - TAIL_LINES;
    while (fgets(line, sizeof(line), file) != NULL) {
        if (skip <= 0)
            fputs(line, stdout);
        skip -= strchr(line, '\n') != NULL;
    }
    fclose(file);
}

static void report(const struct sim_batch *batch, uint64_t seed, const struct sim_result *result, bool tail)
{
    char replay[256];

    describe_replay(batch, seed, replay, sizeof(replay));
    printf("FAILED seed %" PRIu64 ": %s: %s\n  replay: %s\n", seed, result->monitor, result->failure, replay);
    if (tail) {
        printf("  the end of its trace:\n");
        show_tail(batch, seed);
    }
    fflush(stdout);
}

int sim_one(const struct sim_batch *batch, bool trace)
{
    struct sim_result result;

    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    catch_fatal();
    run(batch, batch->first, trace, stdout, &result);
    if (result.failed)
        report(batch, batch->first, &result, !trace);
    else
        printf("seed %" PRIu64 " passed: %.1f s of virtual time, %" PRIu64 " calls, %" PRIu64
               " switches, hash %016" PRIx64 "\n",
               batch->first, (double)result.virtual_ms / 1000, result.calls, result.steps, result.hash);
    return result.failed ? 1 : 0;
}

/* ---- workers
 * --------------------------------------------------------------------------------------------------------- */

static void note_failure(uint64_t seed)
{
    uint64_t old = __atomic_load_n(&shared->first_failure, __ATOMIC_SEQ_CST);

    while ((old == 0 || seed < old) &&
           !__atomic_compare_exchange_n(&shared->first_failure, &old, seed, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
}

static void work(const struct sim_batch *batch, struct worker *me)
{
    struct sim_result result;

    catch_fatal();
    while (me->next < batch->first + batch->count && !shared->stop) {
        me->current = me->next;
        me->next += (uint64_t)batch->jobs;
        run(batch, me->current, false, stdout, &result);
        me->runs++;
        add(&me->sum, &result);
        if (!result.failed || fails_anyway(me->current))
            continue;
        me->failures++;
        note_failure(me->current);
        if (__atomic_fetch_add(&shared->reported, 1, __ATOMIC_SEQ_CST) < REPORTED_MAX)
            report(batch, me->current, &result, false);
        if (batch->until_failure)
            shared->stop = true;
    }
    me->done = true;
}

static pid_t start(const struct sim_batch *batch, int i)
{
    pid_t pid;

    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        work(batch, &shared->workers[i]);
        fflush(NULL);
        /* The leak checker of a sanitizer build runs at exit. */
        exit(0);
    }
    return pid;
}

static void supervise(const struct sim_batch *batch)
{
    pid_t pids[SIM_JOBS_MAX];
    int live = 0, deaths = 0, status;
    pid_t pid;

    for (int i = 0; i < batch->jobs; i++) {
        shared->workers[i].next = batch->first + (uint64_t)i;
        pids[i] = start(batch, i);
        live += pids[i] > 0;
    }
    while (live > 0 && (pid = wait(&status)) > 0) {
        for (int i = 0; i < batch->jobs; i++) {
            struct worker *worker = &shared->workers[i];

            if (pids[i] != pid)
                continue;
            live--;
            pids[i] = -1;
            if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
                break;
            if (++deaths == DEATHS_MAX) {
                printf("%d processes died: the batch ends\n", deaths);
                shared->stop = true;
            }
            if (!worker->done && fails_anyway(worker->current)) {
                if (!shared->stop) {
                    pids[i] = start(batch, i);
                    live++;
                }
                break;
            }
            worker->failures++;
            note_failure(worker->current);
            printf("FAILED seed %" PRIu64 ": the process %s\n", worker->current,
                   worker->done ? "failed at its end (leaks?)" : "died");
            fflush(stdout);
            if (!worker->done && !batch->until_failure && !shared->stop) {
                pids[i] = start(batch, i);
                live++;
            }
        }
    }
}

/* ---- summary
 * ------------------------------------------------------------------------------------------------------------ */

static int never_seen(const struct sim_result *sum, bool print)
{
    int missing = 0;

    for (int i = 0; i < SIM_SOMETIMES_COUNT; i++) {
        if (sum->sometimes[i] == 0) {
            missing++;
            if (print)
                printf("  never seen: %s\n", sim_sometimes_name((enum sim_sometimes)i));
        }
    }
    for (int i = 0; i < LC_COUNTER_COUNT; i++) {
        if (sum->counters[i] == 0) {
            missing++;
            if (print)
                printf("  never counted: %s\n", lc_counter_name((enum lc_counter)i));
        }
    }
    return missing;
}

static void print_stats(const struct sim_result *sum)
{
    for (int i = 0; i < SIM_SOMETIMES_COUNT; i++)
        printf("  sometimes %-28s %12" PRId64 "\n", sim_sometimes_name((enum sim_sometimes)i), sum->sometimes[i]);
    for (int i = 0; i < LC_COUNTER_COUNT; i++)
        printf("  counter   %-28s %12" PRId64 "\n", lc_counter_name((enum lc_counter)i), sum->counters[i]);
    for (int i = 0; i < SIM_CALL_COUNT; i++)
        printf("  call      %-28s %12" PRId64 "  crashes %8" PRId64 "\n", sim_call_name((enum sim_call)i),
               sum->call_counts[i], sum->crashes[i]);
}

static double seconds_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int sim_batch(const struct sim_batch *batch)
{
    double began = seconds_now(), took;
    struct sim_result sum;
    uint64_t runs = 0, failures = 0;
    int missing;
    char replay[256];

    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        perror("sim: mmap");
        return 2;
    }
    supervise(batch);
    took = seconds_now() - began;
    memset(&sum, 0, sizeof(sum));
    for (int i = 0; i < batch->jobs; i++) {
        runs += shared->workers[i].runs;
        failures += shared->workers[i].failures;
        add(&sum, &shared->workers[i].sum);
    }
    if (batch->stats)
        print_stats(&sum);
    missing = never_seen(&sum, batch->sometimes && failures == 0);
    printf("%" PRIu64 " seeds in %.1f s (%.0f seeds/s): %" PRIu64 " failed; %.1f h of virtual time, %" PRIu64
           " calls; hash %016" PRIx64 "\n",
           runs, took, (double)runs / (took > 0 ? took : 1), failures, (double)sum.virtual_ms / 3600000, sum.calls,
           sum.hash);
    if (failures > 0) {
        describe_replay(batch, shared->first_failure, replay, sizeof(replay));
        printf("first failing seed %" PRIu64 "; replay: %s\n", shared->first_failure, replay);
        return 1;
    }
    if (batch->sometimes && missing > 0) {
        printf("%d rare paths never happened: the faults or the workload do not reach them\n", missing);
        return 1;
    }
    return 0;
}
