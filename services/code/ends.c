/* SPDX-License-Identifier: Apache-2.0
 *
 * Why a task ended. */
#include "services/code/ends.h"

#include <signal.h>
#include <sys/wait.h>

enum code_end code_end_of(const struct code_ending *ending)
{
    int signal = WIFSIGNALED(ending->status) ? WTERMSIG(ending->status) : 0;

    if (ending->walls && WIFEXITED(ending->status) && WEXITSTATUS(ending->status) == 0)
        return ending->leftover ? CODE_END_PROCESSES : CODE_END_DONE;
    if (ending->killed)
        return ending->cause;
    if (!ending->walls)
        return signal == SIGKILL ? CODE_END_KILLED : CODE_END_WALLS;
    if (ending->oom || ending->peak_bytes >= ending->budget_bytes / 100 * CODE_MEMORY_PERCENT)
        return CODE_END_MEMORY;
    if (ending->leftover)
        return CODE_END_PROCESSES;
    if (signal == SIGXCPU || (signal == SIGKILL && ending->cpu_out))
        return CODE_END_TIMEOUT;
    if (signal == SIGXFSZ)
        return CODE_END_OUTPUT;
    return signal == SIGKILL ? CODE_END_KILLED : CODE_END_CRASHED;
}
