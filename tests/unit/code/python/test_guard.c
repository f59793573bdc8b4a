/* SPDX-License-Identifier: Apache-2.0
 *
 * What the language refuses, with upstream's texts (reference A6, A10): imports, the rules on the syntax tree in both
 * settings of the strict switch, files, processes; and what it must not refuse. */
#include "tests/unit/code/python/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

START_TEST(test_imports_refused)
{
    static const char *const names[] = {
        "os",
        "subprocess",
        "sys",
        "shutil",
        "pickle",
        "multiprocessing",
        "threading",
        "ctypes",
        "signal",
        "gc",
        "tempfile",
        "pathlib",
        "importlib",
        "socket",
        "urllib.request",
        "http.client",
        "requests",
        "glob",
        "concurrent.futures",
        "runpy",
        "code",
        "codeop",
        "compileall",
        "ftplib",
        "smtplib",
        "poplib",
        "imaplib",
        "xmlrpc.client",
        "socketserver",
        "ssl",
        "asyncio",
        "selectors",
        "select",
        "resource",
        "pty",
        "termios",
        "tty",
        "fcntl",
        "mmap",
        "dbm",
        "sqlite3",
        "shelve",
        "webbrowser",
        "turtle",
        "tkinter",
        "idlelib",
        "venv",
        "ensurepip",
        "pip",
        "site",
        "marshal",
        "_socket",
        "_ctypes",
        "posix",
        "_posixsubprocess",
        "_thread",
        "_signal",
        "_imp",
        "os.path",
        "nowhere",
        "__main__",
    };
    int failed = 0;

    for (size_t i = 0; i < LENGTH(names); i++) {
        static const char *const forms[] = {
            "import %s\ndef main(): return 1\n",
            "def main():\n    if True:\n        import %s as x\n    return 1\n",
            "from %s import path\ndef main(): return 1\n",
            "def main():\n    return str(__import__('%s'))\n",
            "n = '%s'\ndef main():\n    return str(__import__(n[:1] + n[1:], fromlist=['x']))\n",
            "def f(): import %s\ndef main():\n    import builtins\n    try: builtins.__import__ = None\n    except "
            "Exception: pass\n"
            "    try: f()\n    except ValueError: pass\n    return 1\n",
        };

        for (size_t f = 0; f < LENGTH(forms); f++) {
            char code[512], want[256], *said;
            struct code_task task;
            struct outcome outcome;

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
            (void)snprintf(code, sizeof(code), forms[f], names[i]);
#pragma GCC diagnostic pop
            (void)snprintf(want, sizeof(want),
                           "{\"ok\":false,\"code\":\"error\",\"type\":\"ImportError\",\"message\":\"Module '%s' is not "
                           "in the allowlist.\"}",
                           names[i]);
            task = task_of(code, NULL);
            outcome = run_task(&code_runtime_python, &task, NULL, NULL);
            said = difference(&outcome, want);
            if (said != NULL) {
                failed++;
                (void)fprintf(stderr, "%s: %s\n", code, said);
            }
            free(said);
            outcome_free(&outcome);
        }
    }
    ck_assert_int_eq(failed, 0);
}
END_TEST

START_TEST(test_rules)
{
    static const struct row rows[] = {
        {"def main(): return eval('1')\n", NULL,
         "{\"ok\":false,\"code\":\"error\",\"message\":\"Use of eval is not allowed in "
         "sandbox\",\"line\":1,\"traceback!\":0}"},
        {"def main(): return exec(\"import subprocess\")\n", NULL,
         "{\"message\":\"Use of exec is not allowed in sandbox\"}"},
        {"def main(): return exec(\"imp\"+\"ort os\")\n", NULL,
         "{\"message\":\"Use of exec is not allowed in sandbox\"}"},
        {"def main():\n    c = compile('import os', '<test>', 'exec')\n    exec(c)\n", NULL,
         "{\"message\":\"Use of compile is not allowed in sandbox\",\"line\":2}"},
        {"def main(): return globals()['__builtins__']\n", NULL,
         "{\"message\":\"Use of globals is not allowed in sandbox\"}"},
        {"def main(): return locals()\n", NULL, "{\"message\":\"Use of locals is not allowed in sandbox\"}"},
        {"def main(): return breakpoint()\n", NULL, "{\"message\":\"Use of breakpoint is not allowed in sandbox\"}"},
        {"def main(): return input('x')\n", NULL, "{\"message\":\"Use of input is not allowed in sandbox\"}"},
        {"def main(): return setattr(main, 'x', 1)\n", NULL,
         "{\"message\":\"Use of setattr is not allowed in sandbox\"}"},
        {"def main(): return delattr(main, 'x')\n", NULL, "{\"message\":\"Use of delattr is not allowed in sandbox\"}"},
        {"def main(): return object.__subclasses__()\n", NULL,
         "{\"message\":\"Access to __subclasses__ is not allowed in sandbox\"}"},
        {"def main(): return ().__class__.__bases__[0].__subclasses__()\n", NULL,
         "{\"ok\":false,\"message~\":\"Access to __\"}"},
        {"def main(): return type(1).__base__.__subclasses__()\n", NULL,
         "{\"ok\":false,\"message~\":\"Access to __\"}"},
        {"def main(): return (1).__class__.__base__\n", NULL,
         "{\"message\":\"Access to __base__ is not allowed in sandbox\"}"},
        {"def main(): return getattr(object,\"__sub\"+\"classes__\")()\n", NULL,
         "{\"message\":\"Dynamic getattr is not allowed in sandbox\"}"},
        {"def main(): return getattr(object,\"__subclasses__\")()\n", NULL,
         "{\"message\":\"Access to __subclasses__ is not allowed in sandbox\"}"},
        {"def main():\n    match object:\n        case type(__subclasses__=x): return x()\n", NULL,
         "{\"message\":\"Access to __subclasses__ is not allowed in sandbox\"}"},
        {"def main(): return main.__globals__\n", NULL,
         "{\"message\":\"Access to __globals__ is not allowed in sandbox\"}"},
        {"def main(): return main.__code__.replace()\n", NULL,
         "{\"message\":\"Access to __code__ is not allowed in sandbox\"}"},
        {"def main(): return print.__self__\n", NULL, "{\"message\":\"Access to __self__ is not allowed in sandbox\"}"},
        {"def main(): return (lambda: 1).__closure__\n", NULL,
         "{\"message\":\"Access to __closure__ is not allowed in sandbox\"}"},
        {"def main(): return int.__mro__\n", NULL, "{\"message\":\"Access to __mro__ is not allowed in sandbox\"}"},
        {"def main(): return object.__getattribute__(1, 'x')\n", NULL,
         "{\"message\":\"Access to __getattribute__ is not allowed in sandbox\"}"},
        /* The same words in letters that Python takes for them: identifiers are compared in NFKC. */
        {"def main(): return \xef\xbd\x85val('1')\n", NULL, "{\"message\":\"Use of eval is not allowed in sandbox\"}"},
        {"def main(): return object._\xef\xbc\xbfsubclasses__()\n", NULL,
         "{\"message\":\"Access to __subclasses__ is not allowed in sandbox\"}"},
        {"def main(): return \xf0\x9d\x91\x92xec('1')\n", NULL,
         "{\"message\":\"Use of exec is not allowed in sandbox\"}"},
        /* What is allowed though it looks alike. */
        {"import json\ndef main():\n    evaluate = 'eval( exec( import os __subclasses__'\n    return [evaluate[:5], "
         "getattr(json, "
         "'dumps')(1), json.__name__]\n",
         NULL, "{\"value\":[\"eval(\",\"1\",\"json\"]}"},
        {"class A:\n    def __init__(self): self.x = 1\n    def eval(self): return 2\n    def __getattr__(self, n): "
         "return n\n"
         "def main(): return [A().eval(), A().y, A().__class__.__name__]\n",
         NULL, "{\"value\":[2,\"y\",\"A\"]}"},
        /* Aliases reach the functions, which still find the guarded import. */
        {"e = eval\ndef main(): return e(\"__import__('os')\")\n", NULL,
         "{\"message\":\"Module 'os' is not in the allowlist.\"}"},
        {"e = exec\ndef main(): e('import os', {})\n", NULL, "{\"message\":\"Module 'os' is not in the allowlist.\"}"},
        {"def main(): return __builtins__.__import__('os')\n", NULL, "{\"ok\":false,\"type\":\"AttributeError\"}"},
        {"def main(): return __builtins__['__import__']('os')\n", NULL,
         "{\"message\":\"Module 'os' is not in the allowlist.\"}"},
        {"import builtins\nbuiltins.__import__ = lambda *a: 1\ndef main(): pass\n", NULL,
         "{\"ok\":false,\"type\":\"PermissionError\",\"line\":2}"},
        {"import builtins\nd = delattr\nd(builtins, '__import__')\ndef main(): pass\n", NULL,
         "{\"ok\":false,\"type\":\"PermissionError\",\"line\":3}"},
        {"import builtins\ns = setattr\ns(builtins, 'open', 1)\ndef main(): pass\n", NULL,
         "{\"ok\":false,\"type\":\"PermissionError\"}"},
        {"import builtins\ndef main(): return builtins.len([1])\n", NULL, "{\"value\":1}"},
        {"def main(): return _original_import\n", NULL, "{\"type\":\"NameError\"}"},
        {"def main(): return _os\n", NULL, "{\"type\":\"NameError\"}"},
        {"def main(): return _socket\n", NULL, "{\"type\":\"NameError\"}"},
        {"from __future__ import annotations\ndef main(): return 1\n", NULL, "{\"value\":1}"},
    };
    static const struct row strict[] = {
        {"class A:\n    def __init__(self): super().__init__()\ndef main(): pass\n", NULL,
         "{\"message\":\"Use of super is not allowed in sandbox\",\"line\":2}"},
        {"def main(): return dir()\n", NULL, "{\"message\":\"Use of dir is not allowed in sandbox\"}"},
        {"def main(): return vars()\n", NULL, "{\"message\":\"Use of vars is not allowed in sandbox\"}"},
        {"def main(): return (1).__class__\n", NULL, "{\"message\":\"Access to __class__ is not allowed in sandbox\"}"},
        {"def main(): return main.__dict__\n", NULL, "{\"message\":\"Access to __dict__ is not allowed in sandbox\"}"},
        {"def main(): return eval('1')\n", NULL, "{\"message\":\"Use of eval is not allowed in sandbox\"}"},
        {"def main(): return type('X',(object,),{'v': 2}).v\n", NULL, "{\"value\":2}"},
    };

    check_rows(&code_runtime_python, false, rows, LENGTH(rows));
    check_rows(&code_runtime_python, true, strict, LENGTH(strict));
}
END_TEST

START_TEST(test_files)
{
    static const struct row rows[] = {
        {"def main(): open('/etc/passwd')\n", NULL,
         "{\"ok\":false,\"type\":\"PermissionError\",\"message\":\"File system access is not allowed in "
         "sandbox\",\"line\":1}"},
        {"def main(): open('/proc/self/environ')\n", NULL,
         "{\"message\":\"File system access is not allowed in sandbox\"}"},
        {"def main(): open('/tmp/evil.txt', 'w')\n", NULL,
         "{\"message\":\"File system access is not allowed in sandbox\"}"},
        {"def main(): open(0)\n", NULL, "{\"message\":\"File system access is not allowed in sandbox\"}"},
        {"def main(): open(task_tmpdir + '/../evil.txt', 'w')\n", NULL,
         "{\"message\":\"File system access is not allowed in sandbox\"}"},
        {"def main(): open(task_tmpdir + 'x', 'w')\n", NULL,
         "{\"message\":\"File system access is not allowed in sandbox\"}"},
        {"import platform\ndef main(): platform.os.symlink('/etc', task_tmpdir + '/l')\n", NULL,
         "{\"message\":\"File writes are only allowed in the task temporary directory\"}"},
        {"import io\ndef main(): io.open('/etc/passwd')\n", NULL,
         "{\"message\":\"File system access is not allowed in sandbox\"}"},
        {"import io\ndef main(): io.FileIO('/etc/passwd')\n", NULL,
         "{\"message\":\"File system access is not allowed in sandbox\"}"},
        {"import platform\ndef main(): platform.os.system('id')\n", NULL,
         "{\"ok\":false,\"type\":\"PermissionError\",\"message\":\"os.system is not allowed in sandbox\"}"},
        {"import platform\ndef main(): platform.os.fork()\n", NULL, "{\"ok\":false,\"type\":\"PermissionError\"}"},
        {"import platform\ndef main(): platform.os.execv('/bin/sh', ['sh'])\n", NULL,
         "{\"ok\":false,\"type\":\"PermissionError\"}"},
        {"import platform\ndef main(): platform.os.kill(1, 0)\n", NULL, "{\"ok\":false,\"type\":\"PermissionError\"}"},
        {"import platform\ndef main(): platform.os.listdir('/')\n", NULL,
         "{\"message\":\"File system access is not allowed in sandbox\"}"},
        {"import platform\ndef main(): platform.os.open('/etc/passwd', 0)\n", NULL,
         "{\"message\":\"File system access is not allowed in sandbox\"}"},
        {"import platform\ndef main(): platform.os.makedirs('/tmp/shared-blocked')\n", NULL,
         "{\"message\":\"File writes are only allowed in the task temporary directory\"}"},
        {"import platform\ndef main():\n    os = platform.os\n    os.makedirs(task_tmpdir + '/d')\n"
         "    fd = os.open(task_tmpdir + '/d/f', os.O_CREAT | os.O_WRONLY, 0o600)\n    os.write(fd, b'x')\n    "
         "os.close(fd)\n"
         "    n = os.listdir(task_tmpdir + '/d')\n    os.remove(task_tmpdir + '/d/f')\n    os.rmdir(task_tmpdir + "
         "'/d')\n    return n\n",
         NULL, "{\"value\":[\"f\"]}"},
        {"import platform\ndef main(): return [k for k in platform.os.environ if 'SANDBOX' in k or 'SECRET' in k]\n",
         NULL, "{\"value\":[]}"},
        {"import logging\ndef main():\n    s = logging.sys.modules['socket']\n    s.socket()\n", NULL,
         "{\"ok\":false}"},
    };

    check_rows(&code_runtime_python, false, rows, LENGTH(rows));
}
END_TEST

/* A link that the walls did not keep out of the task's directory is followed by nobody. */
START_TEST(test_link)
{
    static const struct row rows[] = {
        {"def main(): open('link')\n", NULL, "{\"message\":\"File system access is not allowed in sandbox\"}"},
    };
    char path[256];

    (void)snprintf(path, sizeof(path), "%s/link", task_directory());
    ck_assert_int_eq(symlink("/etc/passwd", path), 0);
    check_rows(&code_runtime_python, false, rows, LENGTH(rows));
}
END_TEST

/* Lean starts over in full when a large module is wanted, and only as long as nobody has heard of the task. */
static json_t *always_ok(const json_t *request)
{
    (void)request;
    return json_pack("{s:b,s:i,s:s,s:{},s:s}", "ok", 1, "status", 200, "statusText", "OK", "headers", "data", "");
}

START_TEST(test_move)
{
    static const char *const moves[] = {
        "import numpy as np\ndef main(): pass\n",
        "def main():\n    try:\n        return __import__('num' + 'py')\n    except BaseException: return 1\n",
        "from numpy.linalg import norm\n",
    };
    struct code_task task;
    struct outcome outcome;
    char *said;

    for (size_t i = 0; i < LENGTH(moves); i++) {
        task = task_of(moves[i], NULL);
        outcome = run_task(&code_runtime_python, &task, NULL, NULL);
        said = difference(&outcome, "{\"move\":\"numpy\",\"ok!\":0}");
        ck_assert_msg(said == NULL, "%s: %s", moves[i], said);
        ck_assert_int_eq(outcome.status, 0);
        outcome_free(&outcome);
    }
    task = task_of("def main():\n    http_request('http://x')\n    import pandas\n", NULL);
    outcome = run_task(&code_runtime_python, &task, always_ok, NULL);
    said = difference(
        &outcome,
        "{\"ok\":false,\"type\":\"ImportError\",\"message\":\"Module 'pandas' must be imported by name at the "
        "top\",\"line\":3}");
    ck_assert_msg(said == NULL, "%s", said);
    outcome_free(&outcome);
}
END_TEST

PYTHON_CHECK_MAIN("code python guard", &code_runtime_python, test_imports_refused, test_rules, test_files, test_link,
                  test_move)
