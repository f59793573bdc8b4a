/* SPDX-License-Identifier: Apache-2.0
 *
 * The template program of Python, lean and full. A task reads the interpreter's own files (late imports, fonts, time
 * zones) and writes in its /tmp. */
#include "services/code/template.h"

/* RLIMIT_AS counts what RLIMIT_DATA does not: maps of files. */
static const char *const calls[] = {"openat",     "newfstatat", "stat",       "lstat",      "statx",
                                    "access",     "faccessat",  "faccessat2", "getdents64", "readlink",
                                    "readlinkat", "getcwd",     "mkdir",      "unlink",     "rmdir",
                                    "rename",     "ftruncate",  "pwrite64",   "sysinfo",    NULL};
static const char *const readable[] = {
    "/usr/lib/python3.11", "/usr/lib/python3",  "/usr/share/matplotlib", "/usr/share/fonts",      "/usr/share/zoneinfo",
    "/etc/fonts",          "/etc/matplotlibrc", "/etc/localtime",        "/var/cache/fontconfig", NULL};
static const struct code_kind kind_lean = {
    .runtime = &code_runtime_python, .calls = calls, .readable = readable, .tmp = true, .address_space = true};
static const struct code_kind kind_full = {
    .runtime = &code_runtime_python_full, .calls = calls, .readable = readable, .tmp = true, .address_space = true};

int main(int argc, char **argv)
{
    static const struct code_kind *const kinds[] = {&kind_lean, &kind_full};

    return code_template_main(argc, argv, kinds, sizeof(kinds) / sizeof(kinds[0]));
}
