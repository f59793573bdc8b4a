/* SPDX-License-Identifier: Apache-2.0
 *
 * The process_* metrics, read from /proc at scrape time. What cannot be read is left out. */
#include "common/metrics/private.h"

#include <dirent.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

struct process_stat {
    unsigned long user_ticks, system_ticks, virtual_bytes;
    long threads, resident_pages;
    unsigned long long start_ticks;
};

static bool read_stat(struct process_stat *stat)
{
    char text[1024];
    FILE *in = fopen("/proc/self/stat", "re");
    const char *after_name;
    size_t len;

    if (in == NULL)
        return false;
    len = fread(text, 1, sizeof(text) - 1, in);
    fclose(in);
    text[len] = '\0';
    after_name = strrchr(text, ')'); /* the name may hold blanks and parentheses */
    /* Fields 3.. of proc(5): utime 14, stime 15, num_threads 20, starttime 22, vsize 23, rss 24. */
    return after_name != NULL &&
           sscanf(after_name + 1,
                  " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %*d %*d %*d %*d %ld %*d %llu %lu %ld",
                  &stat->user_ticks, &stat->system_ticks, &stat->threads, &stat->start_ticks, &stat->virtual_bytes,
                  &stat->resident_pages) == 6;
}

static long long boot_time(void)
{
    char line[256];
    long long seconds = 0;
    FILE *in = fopen("/proc/stat", "re");

    if (in == NULL)
        return 0;
    while (fgets(line, sizeof(line), in) != NULL) {
        if (sscanf(line, "btime %lld", &seconds) == 1)
            break;
    }
    fclose(in);
    return seconds;
}

static long open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    long count = -3; /* ".", ".." and the directory itself */

    if (dir == NULL)
        return -1;
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

static void write_one(FILE *out, const char *name, const char *kind, const char *help, double value)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n%s %.15g\n", name, help, name, kind, name, value);
}

void sk_metrics_write_process(FILE *out)
{
    double ticks = (double)sysconf(_SC_CLK_TCK);
    struct process_stat stat;
    struct rlimit limit;
    long fds = open_fds();

    if (read_stat(&stat)) {
        long long boot = boot_time();
        write_one(out, "process_cpu_seconds_total", "counter", "User and system CPU time.",
                  (double)(stat.user_ticks + stat.system_ticks) / ticks);
        write_one(out, "process_resident_memory_bytes", "gauge", "Resident memory.",
                  (double)stat.resident_pages * (double)sysconf(_SC_PAGESIZE));
        write_one(out, "process_virtual_memory_bytes", "gauge", "Virtual memory.", (double)stat.virtual_bytes);
        write_one(out, "process_threads", "gauge", "Threads.", (double)stat.threads);
        if (boot > 0)
            write_one(out, "process_start_time_seconds", "gauge", "Start time since the Unix epoch.",
                      (double)boot + (double)stat.start_ticks / ticks);
    }
    if (fds >= 0)
        write_one(out, "process_open_fds", "gauge", "Open file descriptors.", (double)fds);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        write_one(out, "process_max_fds", "gauge", "Limit of open file descriptors.", (double)limit.rlim_cur);
}
