/* SPDX-License-Identifier: Apache-2.0
 *
 * sk-code-try-python lean|full FILE [VARIABLES]: runs one file as a task without walls or broker and prints its frame,
 * the page faults and the times. For developers; not installed. */
#include "tests/unit/code/python/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    const struct code_runtime *runtime;
    struct outcome outcome;
    struct code_task task;
    static char code[1 << 20];
    FILE *file;
    int times = argc > 4 ? atoi(argv[4]) : 1;

    if (argc < 3 || (file = fopen(argv[2], "r")) == NULL) {
        (void)fprintf(stderr, "sk-code-try-python lean|full FILE [VARIABLES [TIMES]]\n");
        return EXIT_FAILURE;
    }
    code[fread(code, 1, sizeof(code) - 1, file)] = '\0';
    (void)fclose(file);
    runtime = strcmp(argv[1], "full") == 0 ? &code_runtime_python_full : &code_runtime_python;
    prepare_or_exit(runtime);
    task = task_of(code, argc > 3 ? argv[3] : NULL);
    for (int i = 0; i < times; i++) {
        outcome = run_task(runtime, &task, NULL, NULL);
        if (i == 0 && outcome.frame != NULL)
            (void)json_dumpf(outcome.frame, stdout, JSON_INDENT(2));
        (void)printf("\nframes %d, status %#x, faults %ld, wall %lld ms, user %ld us, system %ld us\n", outcome.frames,
                     (unsigned)outcome.status, outcome.usage.ru_minflt, (long long)outcome.wall_ms,
                     outcome.usage.ru_utime.tv_usec, outcome.usage.ru_stime.tv_usec);
        outcome_free(&outcome);
    }
    return EXIT_SUCCESS;
}
