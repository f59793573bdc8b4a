/* SPDX-License-Identifier: Apache-2.0
 *
 * The tables of skctl: options and verbs. Parser, help, manual page and shell completion are all made from them, so a
 * new verb is one row here, one function, and nothing else. */
#include "services/ctl/ctl.h"

#include <string.h>

#define OPTION(var, nm, val, ty, field, doc)                                                                           \
    static const struct ctl_option var = {                                                                             \
        .name = nm, .value = val, .type = ty, .offset = offsetof(struct ctl_args, field), .help = doc}
#define CHOICE(var, nm, val, ty, field, set, doc)                                                                      \
    static const struct ctl_option var = {                                                                             \
        .name = nm, .value = val, .type = ty, .offset = offsetof(struct ctl_args, field), .help = doc, .choices = set}

static const char *const statuses[] = {
#define SK_STATUS(name, wire, stable, counts, operation) wire,
#define SK_OPERATION(...)
#define SK_PHASE(...)
#define SK_CLAIM(...)
#include "proto/states.def"
#undef SK_STATUS
#undef SK_OPERATION
#undef SK_PHASE
#undef SK_CLAIM
    NULL};
static const char *const source_types[] = {"app", "skillEdit", "workflowBuilder", NULL};
static const char *const sorts[] = {"-lastActiveAt", "lastActiveAt", "-createdAt", "sandboxId", NULL};
static const char *const actions[] = {"retry", "abandon", NULL};

OPTION(o_json, "json", NULL, CTL_OPTION_FLAG, json,
       "print one JSON document (streams: one per line) on stdout and nothing else there");
OPTION(o_quiet, "quiet", NULL, CTL_OPTION_FLAG, quiet, "no progress and no notes on stderr");
OPTION(o_help, "help", NULL, CTL_OPTION_FLAG, help, "help for this verb");

OPTION(o_app, "app", "ID", CTL_OPTION_TEXT, app, "App of the sandbox (write --app=-x when the id starts with a dash)");
OPTION(o_workflow, "workflow", "ID", CTL_OPTION_TEXT, workflow, "App whose workflow builder the sandbox belongs to");
OPTION(o_skill, "skill", "ID", CTL_OPTION_TEXT, skill, "Skill that is edited in the sandbox (needs no --user)");
OPTION(o_user, "user", "ID", CTL_OPTION_TEXT, user, "effective user of --app or --workflow");

OPTION(o_wait, "wait", NULL, CTL_OPTION_FLAG, wait,
       "wait for the result (default); --wait=false returns when the command is stored");
OPTION(o_deadline, "deadline", "TIME", CTL_OPTION_DURATION, deadline_ms,
       "give up waiting after this long (2m); the operation goes on");
OPTION(o_id, "id", "ID", CTL_OPTION_TEXT, id,
       "command id: the same id again gives the same result and runs nothing twice");
OPTION(o_reason, "reason", "TEXT", CTL_OPTION_TEXT, reason, "why; shown in events and the timeline");
OPTION(o_image, "image", "REPOSITORY[:TAG]", CTL_OPTION_TEXT, image, "image to run");
OPTION(o_provider, "provider", "NAME", CTL_OPTION_TEXT, provider, "provider of the sandbox");
OPTION(o_team, "team", "ID", CTL_OPTION_TEXT, team, "team of the sandbox (counts against its quota)");
OPTION(o_version_id, "version-id", "ID", CTL_OPTION_TEXT, version_id, "version of the Skill");
OPTION(o_cpu, "cpu", "NUMBER", CTL_OPTION_REAL, cpu, "CPUs, such as 0.5");
OPTION(o_memory, "memory", "MIB", CTL_OPTION_COUNT, memory_mib, "memory in MiB");
OPTION(o_storage, "storage", "SIZE", CTL_OPTION_TEXT, storage, "size of the workspace, such as 2Gi");
OPTION(o_restore, "restore", NULL, CTL_OPTION_FLAG, restore,
       "restore an archived workspace (default); --restore=false refuses");
OPTION(o_if_idle, "if-idle-since", "TIME", CTL_OPTION_TEXT, if_idle_since,
       "only when not used since then: RFC 3339, or 30m for so long ago");
OPTION(o_force, "force", NULL, CTL_OPTION_FLAG, force, "archive although it is in use");
CHOICE(o_action, "action", "retry|abandon", CTL_OPTION_TEXT, action, actions,
       "retry (default), or end the operation by its compensating step");

CHOICE(o_status, "status", "STATUS", CTL_OPTION_TEXT, status, statuses, "only this status");
CHOICE(o_source_type, "source-type", "TYPE", CTL_OPTION_TEXT, source_type, source_types,
       "only sandboxes of this kind of source");
OPTION(o_source_id, "source", "ID", CTL_OPTION_TEXT, source_id, "only sandboxes of this App or Skill");
OPTION(o_blocked, "blocked", NULL, CTL_OPTION_FLAG, blocked, "only those that wait for an operator");
OPTION(o_older, "older-than", "TIME", CTL_OPTION_DURATION, older_than_ms,
       "only those not active for so long (stuck: without progress)");
CHOICE(o_sort, "sort", "FIELD", CTL_OPTION_TEXT, sort, sorts,
       "lastActiveAt, createdAt (newest first with a dash) or sandboxId");
OPTION(o_list_user, "user", "ID", CTL_OPTION_TEXT, user, "only sandboxes of this user");
OPTION(o_list_team, "team", "ID", CTL_OPTION_TEXT, team, "only sandboxes of this team");
OPTION(o_list_provider, "provider", "NAME", CTL_OPTION_TEXT, provider, "only sandboxes of this provider");
OPTION(o_limit, "limit", "N", CTL_OPTION_COUNT, limit, "entries per page (50, at most 500)");
OPTION(o_cursor, "cursor", "TEXT", CTL_OPTION_TEXT, cursor, "go on where nextCursor of the last page says");
OPTION(o_all, "all", NULL, CTL_OPTION_FLAG, all, "all pages");

OPTION(o_since, "since", "TIME", CTL_OPTION_TEXT, since,
       "start in the past: RFC 3339, 10m for so long ago, or \"all\"");
OPTION(o_type, "type", "PATTERN", CTL_OPTION_LIST, types,
       "only these event types, such as lifecycle.* (may be repeated)");
OPTION(o_count, "count", "N", CTL_OPTION_COUNT, count, "end after N events");
OPTION(o_for, "for", "TIME", CTL_OPTION_DURATION, for_ms, "end after this long");

OPTION(o_repair, "repair", NULL, CTL_OPTION_FLAG, repair, "offer the safe repair of each finding; asks before each");
OPTION(o_yes, "yes", NULL, CTL_OPTION_FLAG, yes, "do not ask (with --repair)");
OPTION(o_grace, "grace", "TIME", CTL_OPTION_DURATION, grace_ms,
       "ignore what is younger than this and may be in flight (30s)");

OPTION(o_cwd, "cwd", "DIR", CTL_OPTION_TEXT, cwd, "working directory inside the sandbox");
OPTION(o_timeout, "timeout", "TIME", CTL_OPTION_DURATION, timeout_ms, "kill the command after this long");

OPTION(o_vars, "vars", "JSON|@FILE", CTL_OPTION_TEXT, vars, "variables of the code: a JSON object, or @FILE with one");
OPTION(
    o_code_timeout, "timeout", "TIME", CTL_OPTION_DURATION, timeout_ms,
    "stop the code after this long, such as 500ms or 5s; the service's limit (SANDBOX_MAX_TIMEOUT, 1 min where nothing "
    "else is set) holds all the same");
OPTION(o_queue, "queue", "ID", CTL_OPTION_TEXT, queue, "queueId: tasks of one id take turns with those of others");
OPTION(o_code_deadline, "deadline", "TIME", CTL_OPTION_DURATION, deadline_ms,
       "give up waiting after this long (3m, or the timeout and a minute); the task is cancelled");
OPTION(o_url, "url", "URL", CTL_OPTION_TEXT, url, "code sandbox to ask, instead of SANDKEEP_CODE_URL");
OPTION(o_token, "token", "TOKEN", CTL_OPTION_TEXT, token,
       "its token, instead of SANDKEEP_CODE_TOKEN (others on the machine can see it)");

const struct ctl_option *const ctl_common_options[] = {&o_json, &o_quiet, &o_help, NULL};

#define IDENTITY &o_app, &o_workflow, &o_skill, &o_user
#define WAITING  &o_wait, &o_deadline, &o_id

static const struct ctl_option *const ensure_options[] = {IDENTITY,      WAITING,    &o_team,   &o_image,
                                                          &o_provider,   &o_cpu,     &o_memory, &o_storage,
                                                          &o_version_id, &o_restore, &o_reason, NULL};
static const struct ctl_option *const stop_options[] = {IDENTITY, WAITING, &o_if_idle, &o_reason, NULL};
static const struct ctl_option *const archive_options[] = {IDENTITY, WAITING, &o_if_idle, &o_force, NULL};
static const struct ctl_option *const restore_options[] = {IDENTITY, WAITING, NULL};
static const struct ctl_option *const delete_options[] = {IDENTITY, WAITING, &o_reason, NULL};
static const struct ctl_option *const converge_options[] = {IDENTITY, WAITING, &o_image, &o_provider, NULL};
static const struct ctl_option *const recover_options[] = {IDENTITY, WAITING, &o_action, NULL};
static const struct ctl_option *const touch_options[] = {IDENTITY, WAITING, NULL};
static const struct ctl_option *const identity_options[] = {IDENTITY, NULL};
static const struct ctl_option *const list_options[] = {
    &o_status, &o_source_type, &o_source_id, &o_list_user, &o_list_team, &o_list_provider, &o_blocked, &o_older,
    &o_sort,   &o_limit,       &o_cursor,    &o_all,       NULL};
static const struct ctl_option *const find_options[] = {&o_app, &o_workflow, &o_skill, &o_user, NULL};
static const struct ctl_option *const none[] = {NULL};
static const struct ctl_option *const stuck_options[] = {&o_older, NULL};
static const struct ctl_option *const watch_options[] = {IDENTITY, &o_since, &o_type, &o_count, &o_for, NULL};
static const struct ctl_option *const doctor_options[] = {&o_grace, &o_repair, &o_yes, NULL};
static const struct ctl_option *const exec_options[] = {IDENTITY, &o_cwd, &o_timeout, NULL};

static const struct ctl_option *const code_options[] = {&o_vars, &o_code_timeout, &o_queue, &o_code_deadline,
                                                        &o_url,  &o_token,        NULL};

#define TARGET "[SANDBOX-ID]"

const struct ctl_verb ctl_verbs[] = {
    {"ensure", TARGET, "bring a sandbox to running, whatever that takes",
     "Creates, starts or waits, whatever leads to a running sandbox, and prints it. A sandbox that runs already is "
     "answered at once. "
     "An id alone is enough for a sandbox that exists; a new one needs --app and --user, --workflow and --user, or "
     "--skill.",
     ensure_options, 1, false, ctl_command},
    {"stop", TARGET, "stop a sandbox; its workspace stays",
     "Ends the processes and gives the compute back. The next ensure finds the workspace as it was.", stop_options, 1,
     false, ctl_command},
    {"archive", TARGET, "move the workspace of a sandbox to the object store",
     "Not available in this release: the service answers operation_blocked.", archive_options, 1, false, ctl_command},
    {"restore", TARGET, "bring an archived workspace back",
     "Not available in this release: the service answers operation_blocked.", restore_options, 1, false, ctl_command},
    {"delete", TARGET, "remove a sandbox and everything that belongs to it",
     "Works from every state at once and wins over any operation in flight. The workspace is gone for good. Deleting "
     "what does not exist succeeds.",
     delete_options, 1, false, ctl_command},
    {"converge", TARGET, "move a sandbox to another image or provider",
     "Not available in this release: the service answers operation_blocked.", converge_options, 1, false, ctl_command},
    {"recover", TARGET, "decide about a blocked operation",
     "--action=retry clears the block and tries again at once; --action=abandon ends the operation by its compensating "
     "step. "
     "A healthy sandbox is left alone.",
     recover_options, 1, false, ctl_command},
    {"touch", TARGET, "mark a running sandbox as used now", "Postpones the idle stop.", touch_options, 1, false,
     ctl_command},
    {"get", TARGET, "show one sandbox", "Prints the record as the service sees it.", identity_options, 1, false,
     ctl_get},
    {"list", "", "list sandboxes, page by page",
     "Filters are joined by AND. The answer holds at most --limit entries; nextCursor (a note on stderr) leads to the "
     "next page.",
     list_options, 0, false, ctl_list},
    {"find", "", "show the sandbox of an identity",
     "Looks a sandbox up by App, workflow or Skill and user. Exit status 3 when there is none.", find_options, 0, false,
     ctl_find},
    {"stats", "", "numbers: sandboxes by status, work in flight", "Prints what the service counts.", none, 0, false,
     ctl_stats},
    {"stuck", "", "show what does not move: blocked, failing or silent operations",
     "Lists sandboxes whose operation is blocked, has failed tries, or shows no sign of life for --older-than (60s), "
     "with the reason and what to do.",
     stuck_options, 0, false, ctl_stuck},
    {"timeline", TARGET, "the last operations of a sandbox: who did what, when, how long",
     "Shows the last 50 operations with epoch, owner, phases and durations. It outlives the sandbox.", identity_options,
     1, false, ctl_timeline},
    {"watch", TARGET, "follow events as they happen",
     "Prints events of one sandbox or of all, live or from --since on. With --json each line is one CloudEvent. "
     "Survives a restart of the bus.",
     watch_options, 1, false, ctl_watch},
    {"id", "", "print the sandbox id of an identity (offline)", "Needs no connection.", identity_options, 0, false,
     ctl_id},
    {"doctor", "", "check the invariants on live data",
     "Reads records, quota slots and leases through the service, objects through the provider and events from their "
     "stream, and prints every contradiction as {sandboxId, invariant, detail}; with SANDKEEP_CODE_URL also whether "
     "the code sandbox there is ready. What cannot be had is not judged, and a note says so. "
     "Read-only unless --repair is given, which offers safe commands (recover, stop, delete of an object without a "
     "record) and asks before each. "
     "Exit status 1 when there are findings.",
     doctor_options, 0, false, ctl_doctor},
    {"exec", TARGET " -- COMMAND [ARGUMENT…]", "run a command in a sandbox, straight at the provider",
     "A stop-gap until the runtime service exists: talks to the provider of SANDKEEP_LOCALBOX_URL or "
     "AGENT_SANDBOX_OPENSANDBOX_BASEURL itself, "
     "and does not count as activity. One argument is run as shell text; several are quoted for the shell. Output is "
     "streamed line by line; the "
     "exit status is that of the command (125 when it was killed by a signal or its end was not seen).",
     exec_options, 1, true, ctl_exec},
    {"cp", "FROM TO", "copy a file into or out of a sandbox, straight at the provider",
     "A stop-gap until the runtime service exists. The side in the sandbox is written SANDBOX-ID:PATH, or :PATH with "
     "identity flags; - is "
     "stdin or stdout. Directories are not copied.",
     identity_options, 2, false, ctl_cp},
    {"code", "js|py|python FILE", "run JavaScript or Python in the code sandbox",
     "Sends the file (- is stdin) to the code sandbox of SANDKEEP_CODE_URL and prints what its main function returns, "
     "as "
     "JSON, on stdout, and what it printed on stderr. It needs no bus. With --json the whole answer of the service "
     "goes to "
     "stdout. Exit status: 0 it returned, 1 the code failed (message, line and traceback on stderr), 4 the service has "
     "too much to do, 5 time is over, 6 it cannot be reached. An interrupt cancels the task.",
     code_options, 2, false, ctl_code},
    {"help", "[VERB]", "help for a verb", "Without a verb: all verbs. `help man` prints the manual page.", none, 1,
     false, ctl_help},
    {"completion", "bash|zsh", "print a shell completion script",
     "bash: source <(skctl completion bash). zsh: skctl completion zsh >\"${fpath[1]}/_skctl\".", none, 1, false,
     ctl_completion},
    {0},
};

const struct ctl_verb *ctl_verb_find(const char *name)
{
    for (const struct ctl_verb *verb = ctl_verbs; verb->name != NULL; verb++) {
        if (strcmp(verb->name, name) == 0)
            return verb;
    }
    return NULL;
}

static const struct ctl_option *find_in(const struct ctl_option *const *options, const char *name, size_t len)
{
    for (; *options != NULL; options++) {
        if (strlen((*options)->name) == len && memcmp((*options)->name, name, len) == 0)
            return *options;
    }
    return NULL;
}

const struct ctl_option *ctl_option_find(const struct ctl_verb *verb, const char *name, size_t len)
{
    const struct ctl_option *found = find_in(ctl_common_options, name, len);

    return found != NULL ? found : find_in(verb->options, name, len);
}
