/* SPDX-License-Identifier: Apache-2.0
 *
 * The real languages behind the real walls: that they run there at all, with what they need and no more. What they
 * answer in every detail is tested beside them. */
#define SK_CHECK_TIMEOUT 170
#include "tests/unit/check_main.h"
#include "tree.h"

#include <stdio.h>
#include <string.h>

struct row {
    const char *program, *expected; /* a part of the result frame */
};

static void run_rows(const struct tree_options *options, const struct row *rows, size_t count,
                     const struct tree_task *task)
{
    static struct tree_outcome out;
    struct tree t;

    if (!tree_start(&t, options))
        return;
    for (size_t i = 0; i < count; i++) {
        tree_run(&t, rows[i].program, task, &out);
        ck_assert_msg(!out.refused && out.ended.u.ended.end == CODE_END_DONE,
                      "%s: %s, signal %d, exit %d, stage %u, error %d, %s", rows[i].program,
                      code_end_name((enum code_end)out.ended.u.ended.end), out.ended.u.ended.signal,
                      out.ended.u.ended.exit_status, out.ended.u.ended.stage, out.ended.u.ended.stage_error, out.text);
        ck_assert_msg(strstr(out.text, rows[i].expected) != NULL, "%s gives %s", rows[i].program, out.text);
    }
    tree_end(&t);
}

static const struct tree_task roomy = {.memory_mb = 256, .tmp_mb = 16};
static const struct row js_rows[] = {
    {"function main(){ return {a: 1 + 1} }", "\"value\":{\"a\":2}"},
    {"async function main(){ await delay(20); return new Date(0).toISOString() }", "1970-01-01T00:00:00.000Z"},
    {"function main(){ let s = 0; for (let i = 0; i < 3000000; i++) s += Math.sqrt(i); return s > 1 }",
     "\"value\":true"},
    {"function main(){ const a = []; for (let i = 0; i < 300000; i++) a.push({i, s: 'x' + i}); return a.length }",
     "300000"},
    {"function main(){ return new Intl.NumberFormat('de-DE').format(1234567.5) }", "1.234.567,5"},
    {"function main(){ throw new TypeError('no') }", "\"ok\":false"},
    {"function main(){ const a = []; while (true) a.push(new Array(100000).fill(7)) }", "\"ok\":false"},
};

START_TEST(test_js)
{
    const struct tree_options options = {.kind = "js", .program = "../bin/sk-code-js"};

    run_rows(&options, js_rows, sizeof(js_rows) / sizeof(js_rows[0]), &roomy);
}
END_TEST

START_TEST(test_js_without_jit)
{
    static const char *const environment[] = {"SANDBOX_JS_JIT=off", NULL};
    const struct tree_options options = {.kind = "js", .program = "../bin/sk-code-js", .environment = environment};

    run_rows(&options, js_rows, sizeof(js_rows) / sizeof(js_rows[0]), &roomy);
}
END_TEST

START_TEST(test_js_container)
{
    const struct tree_options options = {.kind = "js", .program = "../bin/sk-code-js", .highest = CODE_LEVEL_CONTAINER};

    run_rows(&options, js_rows, 4, &roomy);
}
END_TEST

/* Memory in shapes that an engine keeps where no rlimit counts: it ends, by whichever fence, near the budget. */
START_TEST(test_js_bombs)
{
    static const char *const programs[] = {
        "function main(){ const a = []; let i = 0; while (true) { const o = {}; for (let k = 0; k < 30; k++) o['k' + "
        "(i++)] = 1; a.push(o) } }",
        "function main(){ let s = 'x'; const a = []; while (true) { a.push(s + a.length); s = s.length < 1e6 ? s + s : "
        "s } }",
        "function main(){ const m = new Map(); for (let i = 0; ; i++) m.set({}, () => i) }",
        "function main(){ const a = []; while (true) a.push(new Uint8Array(1 << 20).fill(1)) }",
        "function main(){ const a = []; for (let i = 0; ; i++) a.push(Symbol('s' + i)) }",
    };
    static struct tree_outcome out;

    for (int no_cgroup = 0; no_cgroup < 2; no_cgroup++) {
        const struct tree_options options = {.kind = "js", .program = "../bin/sk-code-js", .no_cgroup = no_cgroup != 0};
        struct tree t;

        if (!tree_start(&t, &options))
            return;
        for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++) {
            tree_run(&t, programs[i], &roomy, &out);
            ck_assert_msg(out.ended.u.ended.end == CODE_END_DONE || out.ended.u.ended.end == CODE_END_MEMORY, "%s: %s",
                          programs[i], code_end_name((enum code_end)out.ended.u.ended.end));
            ck_assert(strstr(out.text, "\"ok\":true") == NULL);
            ck_assert_int_lt(out.ended.u.ended.peak_rss_bytes, 2 * (roomy.memory_mb << 20));
        }
        tree_end(&t);
    }
}
END_TEST

static const char *const python_modules[] = {"math",  "json",   "statistics", "decimal",
                                             "numpy", "pandas", "matplotlib", NULL};

START_TEST(test_python)
{
    static const struct row rows[] = {
        {"def main():\n    return {'a': 1 + 1}\n", "\"a\":2"},
        {"import statistics\ndef main():\n    return statistics.mean([1, 2, 3])\n", "\"value\":2"},
        {"def main():\n    with open(task_tmpdir + '/x', 'w') as f:\n        f.write('hello')\n    return "
         "open(task_tmpdir + '/x').read()\n",
         "hello"},
        {"def main():\n    return open('/etc/passwd').read()\n", "\"ok\":false"},
        {"def main():\n    a = []\n    while True:\n        a.append('x' * 1000000 + str(len(a)))\n", "memory"},
        {"def main():\n    raise ValueError('no')\n", "\"ok\":false"},
    };
    const struct tree_options options = {
        .kind = "python", .program = "../bin/sk-code-python", .modules = python_modules};

    run_rows(&options, rows, sizeof(rows) / sizeof(rows[0]), &roomy);
}
END_TEST

/* Without mounts there is neither /tmp nor the interpreter's files: what is loaded works. */
START_TEST(test_python_container)
{
    static const struct row rows[] = {
        {"def main():\n    return {'a': 1 + 1}\n", "\"a\":2"},
        {"import statistics\ndef main():\n    return statistics.mean([1, 2, 3])\n", "\"value\":2"},
        {"def main():\n    return open('/etc/passwd').read()\n", "\"ok\":false"},
    };
    const struct tree_options options = {.kind = "python",
                                         .program = "../bin/sk-code-python",
                                         .modules = python_modules,
                                         .highest = CODE_LEVEL_CONTAINER};

    run_rows(&options, rows, sizeof(rows) / sizeof(rows[0]), &roomy);
}
END_TEST

START_TEST(test_python_full)
{
    static const struct row rows[] = {
        {"import numpy as np\ndef main():\n    return float(np.arange(10).sum())\n", "45"},
        {"import pandas as pd\ndef main():\n    return pd.DataFrame({'a': [1, 1, 2], 'b': [1, 2, "
         "3]}).groupby('a').sum().to_dict()\n",
         "\"ok\":true"},
        {"import matplotlib.pyplot as plt, io, base64\ndef main():\n    plt.plot([1, 2]); b = io.BytesIO(); "
         "plt.savefig(b); return base64.b64encode(b.getvalue()).decode()[:8]\n",
         "iVBORw0K"},
    };
    const struct tree_options options = {
        .kind = "python-full", .program = "../bin/sk-code-python", .modules = python_modules};

    run_rows(&options, rows, sizeof(rows) / sizeof(rows[0]), &roomy);
}
END_TEST

SK_CHECK_MAIN("code languages", test_js, test_js_without_jit, test_js_container, test_js_bombs, test_python,
              test_python_container, test_python_full)
