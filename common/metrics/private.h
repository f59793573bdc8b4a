/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SK_METRICS_PRIVATE_H
#define SK_METRICS_PRIVATE_H

#include <stdio.h>

/* process_cpu_seconds_total, process_resident_memory_bytes, process_open_fds, … in Prometheus' usual names. */
void sk_metrics_write_process(FILE *out);

#endif
