/* SPDX-License-Identifier: Apache-2.0
 *
 * The serving zygote: pid 1 of its namespace, forks one child per task, kills, reaps, and tells why each ended. */
#ifndef SK_CODE_ZYGOTE_H
#define SK_CODE_ZYGOTE_H

#include "services/code/walls.h"

#define CODE_MEMORY_MIN ((int64_t)1 << 20)
#define CODE_MEMORY_MAX ((int64_t)1 << 36)
#define CODE_TIME_MAX   ((int64_t)3600 * 1000)
#define CODE_TMP_MAX    ((int64_t)1 << 30)

/* Exit statuses of a zygote. */
#define CODE_ZYGOTE_RELEASED  0 /* its host or the launcher closed the socket */
#define CODE_ZYGOTE_NO_WALLS  2
#define CODE_ZYGOTE_NO_MEMORY 3

/* Builds the walls and serves until the host's socket or the lifeline closes; then its tasks die with it. The template
 * has called fork() for it just now (in a new pid namespace at level full). Never returns; blocking; one thread. */
_Noreturn void code_zygote_run(struct code_walls *walls, int host, int lifeline);

#endif
