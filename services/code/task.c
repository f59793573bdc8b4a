/* SPDX-License-Identifier: Apache-2.0
 *
 * The walls of one task, built by itself from outside to inside: each step needs what a later one takes away. */
#include "services/code/task.h"

#include "services/code/input.h"
#include "services/code/landlock.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define OOM_SCORE "500"
#define TASK_NICE 10 /* host and zygotes have to answer while tasks use every processor there is */

/* When the machine runs out of memory, a task goes before anybody else. Where it cannot be said, it is not. */
static void go_first(const struct code_walls *walls)
{
    int fd = walls->proc_fd < 0 ? -1 : openat(walls->proc_fd, "self/oom_score_adj", O_WRONLY | O_CLOEXEC);

    if (fd < 0)
        return;
    (void)!write(fd, OOM_SCORE, sizeof(OOM_SCORE) - 1);
    close(fd);
}

/* Our pid as the zygote's /proc knows it. */
static void tell_pid(const struct code_walls *walls, const struct code_task_start *start)
{
    char text[16];
    ssize_t n = readlinkat(walls->proc_fd, "self", text, sizeof(text) - 1);

    text[n > 0 ? n : 0] = '\0';
    start->note->pid = (int32_t)strtol(text, NULL, 10);
}

static bool session(const struct code_walls *walls, const struct code_task_start *start)
{
    sigset_t none;

    go_first(walls);
    if (walls->outside)
        tell_pid(walls, start);
    sigemptyset(&none);
    prctl(PR_SET_NAME, "sk-task"); /* for people who look */
    /* A process group and no session: of each session the kernel makes a group that gets as much time as all of host,
     * launcher and zygotes (sched_autogroup), so that a pool of busy tasks would starve them. */
    return setpgid(0, 0) == 0 && setpriority(PRIO_PROCESS, 0, TASK_NICE) == 0 && signal(SIGCHLD, SIG_DFL) != SIG_ERR &&
           sigprocmask(SIG_SETMASK, &none, NULL) == 0;
}

static bool descriptors(const struct code_walls *walls, const struct code_task_start *start)
{
    int keep[CODE_KEPT_MAX + 8];
    size_t count = 0;

    /* The log of the service is behind 2: nobody's output but ours. */
    for (int fd = 0; fd < 3; fd++) {
        if (dup2(walls->null_fd, fd) < 0)
            return false;
    }
    keep[count++] = start->input;
    keep[count++] = start->result;
    keep[count++] = start->rpc;
    keep[count++] = start->cgroup->join; /* until the group is entered */
    keep[count++] = start->cgroup->join_pids;
    for (size_t i = 0; i < walls->kept_count; i++)
        keep[count++] = walls->kept[i];
    return code_fds_keep(keep, count);
}

static bool enter_cgroup(const struct code_task_start *start)
{
    if (!code_cgroup_slot_join(start->cgroup))
        return false;
    if (start->cgroup->join >= 0)
        close(start->cgroup->join);
    if (start->cgroup->join_pids >= 0)
        close(start->cgroup->join_pids);
    return true;
}

static bool own_tmp(const struct code_task_start *start)
{
    char options[160];

    snprintf(options, sizeof(options), "size=%lld,nr_inodes=%d,mode=0700,uid=%u,gid=%u", (long long)start->tmp_bytes,
             CODE_TMP_INODES, start->uid, start->uid);
    return unshare(CLONE_NEWNS) == 0 &&
           mount("tmpfs", CODE_TMP_DIR, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, options) == 0;
}

static bool limit(__rlimit_resource_t resource, int64_t value)
{
    struct rlimit both = {(rlim_t)value, (rlim_t)value};

    return setrlimit(resource, &both) == 0;
}

/* A second between the limits, so that the first signal is the one that tells. */
static bool processor(int64_t cpu_ms)
{
    rlim_t seconds = (rlim_t)(cpu_ms + 999) / 1000;
    struct rlimit both = {seconds, seconds + 1};

    return setrlimit(RLIMIT_CPU, &both) == 0;
}

static bool limits(const struct code_walls *walls, const struct code_task_start *start)
{
    struct stat input;
    int64_t address_space;
    bool tmp = code_walls_have_tmp(walls);

    if (fstat(start->input, &input) != 0)
        return false;
    address_space = start->base_address_bytes + start->memory_bytes + input.st_size;
    if (!walls->kind->address_space)
        address_space += CODE_ADDRESS_SLACK;
    return limit(RLIMIT_AS, address_space) && limit(RLIMIT_DATA, start->base_data_bytes + start->memory_bytes) &&
           limit(RLIMIT_STACK, CODE_STACK_BYTES) && processor(start->cpu_ms) &&
           limit(RLIMIT_NOFILE, CODE_OPEN_FILES_MAX) && limit(RLIMIT_FSIZE, tmp ? start->tmp_bytes : 0) &&
           limit(RLIMIT_CORE, 0) && limit(RLIMIT_MEMLOCK, 0) && limit(RLIMIT_MSGQUEUE, 0) && limit(RLIMIT_NICE, 0) &&
           limit(RLIMIT_RTPRIO, 0) && limit(RLIMIT_SIGPENDING, 64) &&
           (walls->level == CODE_LEVEL_SHARED_UID || limit(RLIMIT_NPROC, 1));
}

static bool identity(const struct code_walls *walls, const struct code_task_start *start)
{
    uid_t real, effective, saved;

    if (walls->level == CODE_LEVEL_SHARED_UID)
        return true;
    if (setgroups(0, NULL) != 0 || setresgid(start->uid, start->uid, start->uid) != 0 ||
        setresuid(start->uid, start->uid, start->uid) != 0)
        return false;
    if (code_walls_have_tmp(walls) && chdir(CODE_TMP_DIR) != 0) /* the task's alone: root without rights cannot enter */
        return false;
    errno = EPERM;
    return getresuid(&real, &effective, &saved) == 0 && real == start->uid && effective == start->uid &&
           saved == start->uid && setuid(0) != 0;
}

static bool privileges(void)
{
    return prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 0 && prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1;
}

/* Behind a root of its own everything that is there may be read; without one, what the kind names. */
static bool landlock(const struct code_walls *walls)
{
    static const char *const all[] = {"/", NULL};
    const char *const *readable = walls->kind->readable;

    if (walls->landlock_abi == 0)
        return walls->level != CODE_LEVEL_SHARED_UID;
    if (walls->level == CODE_LEVEL_FULL && readable != NULL)
        readable = all;
    return code_landlock_enter(walls->landlock_abi, readable, code_walls_have_tmp(walls) ? CODE_TMP_DIR : "");
}

static bool parent_lives(const struct code_task_start *start)
{
    return prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) == 0 && getppid() == start->parent;
}

static bool seed(struct code_task *task)
{
    size_t done = 0;

    while (done < sizeof(task->seed)) {
        ssize_t n = getrandom(task->seed + done, sizeof(task->seed) - done, 0);

        if (n < 0 && errno != EINTR)
            return false;
        done += n > 0 ? (size_t)n : 0;
    }
    return true;
}

static void reached(const struct code_task_start *start, enum code_stage stage)
{
    start->note->stage = stage;
    errno = 0;
}

static _Noreturn void stop(const struct code_task_start *start)
{
    start->note->error = errno;
    _exit(CODE_EXIT_WALLS);
}

#define BUILD(which, call)                                                                                             \
    do {                                                                                                               \
        reached(start, which);                                                                                         \
        if (!(call))                                                                                                   \
            stop(start);                                                                                               \
    } while (0)

_Noreturn void code_task_main(const struct code_walls *walls, const struct code_task_start *start)
{
    struct code_task task;
    struct code_channel channel = {start->result, start->rpc};

    memset(&task, 0, sizeof(task));
    task.tmp_dir = code_walls_have_tmp(walls) ? CODE_TMP_DIR : "";
    BUILD(CODE_STAGE_SESSION, session(walls, start));
    BUILD(CODE_STAGE_DESCRIPTORS, descriptors(walls, start));
    BUILD(CODE_STAGE_CGROUP, enter_cgroup(start));
    if (code_walls_have_tmp(walls))
        BUILD(CODE_STAGE_TMP, own_tmp(start));
    BUILD(CODE_STAGE_LIMITS, limits(walls, start));
    BUILD(CODE_STAGE_IDENTITY, identity(walls, start));
    BUILD(CODE_STAGE_PARENT, parent_lives(start)); /* a change of uid clears the death signal: only now */
    BUILD(CODE_STAGE_PRIVILEGES, privileges());
    BUILD(CODE_STAGE_LANDLOCK, landlock(walls));
    BUILD(CODE_STAGE_INPUT, code_input_map(start->input, &task) && close(start->input) == 0);
    BUILD(CODE_STAGE_SEED, seed(&task));
    BUILD(CODE_STAGE_FILTER, code_filter_load(&walls->filter));
    reached(start, CODE_STAGE_RUNNING);
    if (munmap(start->notes, start->notes_size) != 0) /* the last thing shared with the zygote */
        _exit(CODE_EXIT_WALLS);
    walls->kind->runtime->run(&task, &channel);
    _exit(0);
}
