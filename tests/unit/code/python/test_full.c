/* SPDX-License-Identifier: Apache-2.0
 *
 * The full kind: numpy, pandas and matplotlib loaded before (reference A7, A8), their values in a result, and that
 * using them opens no executable mapping, starts no thread and draws no number that another task draws too. */
#include "tests/unit/code/python/harness.h"

#include <seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define FAULTS_MAX    1500 /* measured: about 450 for trivial code */

START_TEST(test_values)
{
    static const struct row rows[] = {
        {"import numpy as np\ndef main(): return [np.int64(5), np.float32(1.5), np.float64('nan'), np.bool_(True), "
         "np.uint8(255), "
         "np.str_('s'), np.bytes_(b'a'), np.longdouble(2.5), np.int64(2**62), np.float64(0.1), np.complex128(1j)]\n",
         NULL, "{\"value\":[5,1.5,null,true,255,\"s\",\"YQ==\",2.5,4611686018427387904,0.1,\"1j\"]}"},
        {"import numpy as np\ndef main(): return [np.arange(4).reshape(2, 2), np.array([1.5, np.nan, np.inf]), "
         "np.array([]), np.array(7), "
         "np.array(['a', 'b']), np.array([True]), np.array([{'k': 1}, None], dtype=object), np.ma.array([1, 2], "
         "mask=[0, 1])]\n",
         NULL, "{\"value\":[[[0,1],[2,3]],[1.5,null,null],[],7,[\"a\",\"b\"],[true],[{\"k\":1},null],[1,null]]}"},
        {"import numpy as np\ndef main(): return [np.datetime64('2024-01-02'), np.datetime64('NaT'), "
         "np.array(['2024-01-02', 'NaT'], dtype='M8[D]'), np.array(['2024-01-02T03:04:05'], dtype='M8[ns]')]\n",
         NULL, "{\"value\":[\"2024-01-02\",null,[\"2024-01-02\",null],[\"2024-01-02T03:04:05.000000000\"]]}"},
        {"import pandas as pd\ndef main():\n    df = pd.DataFrame({'a': [1, 2], 'b': [1.5, None], 'c': ['x', None], "
         "'d': "
         "pd.to_datetime(['2024-01-01', None])})\n    return df\n",
         NULL,
         "{\"value\":[{\"a\":1,\"b\":1.5,\"c\":\"x\",\"d\":\"2024-01-01T00:00:00\"},{\"a\":2,\"b\":null,\"c\":null,"
         "\"d\":null}]}"},
        {"import pandas as pd\ndef main(): return [pd.Series([1, None]), pd.Index(['a']), pd.NaT, pd.NA, "
         "pd.Timestamp('2024-01-01 12:00'), "
         "pd.Series(['2024-01-01'], dtype='datetime64[ns]'), pd.Categorical(['u']), pd.Timedelta(days=1), "
         "pd.Period('2024-01'), "
         "pd.array([1, None], dtype='Int64'), pd.DataFrame()]\n",
         NULL,
         "{\"value\":[[1.0,null],[\"a\"],null,null,\"2024-01-01T12:00:00\",[\"2024-01-01T00:00:00\"],[\"u\"],\"1 days "
         "00:00:00\","
         "\"2024-01\",[1,null],[]]}"},
        {"import pandas as pd\ndef main(): return pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([('a', "
         "'x'), ('a', 'y')]))\n",
         NULL, "{\"value\":[{\"('a', 'x')\":1,\"('a', 'y')\":2}]}"},
        {"import numpy as np\ndef main(): return {np.int64(1): 'a', np.float64(2.5): 'b'}\n", NULL,
         "{\"value\":{\"1\":\"a\",\"2.5\":\"b\"}}"},
        {"import numpy as np\na = np.empty(1, dtype=object)\na[0] = a\ndef main(): return a\n", NULL, "{\"ok\":false}"},
        {"import numpy as np\ndef main(): return np.zeros((10**6,))\n", NULL, "{\"ok\":true}"},
        {"import numpy as np\ndef main(): np.zeros(3)[5]\n", NULL, "{\"ok\":false,\"type\":\"IndexError\",\"line\":2}"},
        {"import pandas as pd\ndef main(): pd.DataFrame({'a': [1]})['zz']\n", NULL,
         "{\"ok\":false,\"type\":\"KeyError\",\"message\":\"'zz'\",\"line\":2,\"traceback\":\"Traceback (most recent "
         "call last):\\n  File "
         "\\\"<string>\\\", line 2, in main\\n    def main(): pd.DataFrame({'a': [1]})['zz']\\nKeyError: 'zz'\"}"},
    };

    check_rows(&code_runtime_python_full, false, rows, LENGTH(rows));
}
END_TEST

/* Used as a task uses them: files only below its directory, one thread, everything loaded before. */
static const struct row use[] = {
    {"import numpy as np\ndef main(): return int(np.dot(np.ones((200, 200)), np.ones((200, 200)))[0, 0]) + "
     "int(np.linalg.det(np.eye(3)))\n",
     NULL, "{\"value\":201}"},
    {"import numpy as np\ndef main(): return [len(np.random.rand(3)), int(abs(np.fft.fft(np.ones(4)))[0]), "
     "float(np.polyfit([0, 1], [1, 3], 1)[0].round(6))]\n",
     NULL, "{\"value\":[3,4,2.0]}"},
    {"import pandas as pd\ndef main():\n    df = pd.DataFrame({'k': ['a', 'b'] * 5000, 'v': range(10000)})\n"
     "    return df.groupby('k')['v'].sum().reset_index()\n",
     NULL, "{\"value\":[{\"k\":\"a\",\"v\":24995000},{\"k\":\"b\",\"v\":25000000}]}"},
    {"import pandas as pd, io\ndef main():\n    df = pd.read_csv(io.StringIO('a,b\\n1,2\\n3,4'))\n"
     "    return [df.describe().loc['mean', 'a'], df.merge(df, on='a').shape, df.pivot_table(index='a', "
     "values='b').shape, "
     "df.query('a > 1').shape, df.to_csv(index=False), str(df).count('\\n')]\n",
     NULL, "{\"value\":[2.0,[2,3],[2,1],[1,2],\"a,b\\n1,2\\n3,4\\n\",2]}"},
    {"import pandas as pd\ndef main():\n    p = task_tmpdir + '/x.csv'\n    pd.DataFrame({'a': [1]}).to_csv(p)\n    "
     "return "
     "pd.read_csv(p)\n",
     NULL, "{\"value\":[{\"Unnamed: 0\":0,\"a\":1}]}"},
    {"import pandas as pd\ndef main(): pd.DataFrame({'a': [1]}).to_csv('/tmp/shared-blocked.csv')\n", NULL,
     "{\"ok\":false,\"message\":\"File writes are only allowed in the task temporary directory\"}"},
    {"import pandas as pd\ndef main(): pd.read_csv('/etc/passwd')\n", NULL,
     "{\"ok\":false,\"message\":\"File system access is not allowed in sandbox\",\"line\":2}"},
    {"import numpy as np\ndef main(): np.load('/proc/self/environ', allow_pickle=True)\n", NULL,
     "{\"ok\":false,\"message\":\"File system access is not allowed in sandbox\",\"line\":2}"},
    {"import numpy as np\ndef main(): np.fromfile('/etc/passwd')\n", NULL,
     "{\"ok\":false,\"message\":\"File system access is not allowed in sandbox\",\"line\":2}"},
    {"import pandas as pd\ndef main(): return str(pd.Timestamp('2024-01-01', tz='Asia/Shanghai').tz_convert('UTC'))\n",
     NULL, "{\"value\":\"2023-12-31 16:00:00+00:00\"}"},
    {"import pandas as pd\ndef main():\n    df = pd.DataFrame({'a': [1]})\n    return "
     "df.query('@__import__(\"os\").system(\"id\")')\n",
     NULL, "{\"ok\":false}"},
    {"import pandas as pd\ndef main(): return pd.eval('@__builtins__')\n", NULL, "{\"ok\":false}"},
    {"import pandas as pd\ndef main(): return pd.read_pickle('http://127.0.0.1/')\n", NULL, "{\"ok\":false}"},
    {"import numpy as np\ndef main(): return np.ctypeslib.ctypes.CDLL(None).getpid()\n", NULL, "{\"ok\":false}"},
    {"import pandas as pd\ndef main(): pd.read_csv('http://127.0.0.1/x.csv')\n", NULL, "{\"ok\":false}"},
    {"import matplotlib.pyplot as plt, io\ndef main():\n    fig, ax = plt.subplots()\n    ax.bar(['a', 'b'], [1, 2])\n"
     "    ax.set_title('\xe4\xb8\xad t $x^2$')\n    b = io.BytesIO()\n    fig.savefig(b, format='png')\n    return "
     "b.getvalue()[:8].hex()\n",
     NULL, "{\"value\":\"89504e470d0a1a0a\",\"log\":\"\"}"},
    {"import matplotlib.pyplot as plt\ndef main():\n    plt.plot([1, 2])\n    plt.savefig(task_tmpdir + '/p.png')\n"
     "    plt.savefig(task_tmpdir + '/p.svg')\n    return open('p.png', 'rb').read()[:4].hex() + "
     "open('p.svg').read()[:5]\n",
     NULL, "{\"value\":\"89504e47<?xml\"}"},
    {"import matplotlib.pyplot as plt\ndef main():\n    plt.plot([1, 2])\n    plt.savefig('/tmp/shared-blocked.png')\n",
     NULL, "{\"ok\":false,\"type\":\"PermissionError\"}"},
    {"import matplotlib\ndef main():\n    matplotlib.use('Agg')\n    return matplotlib.get_backend().lower()\n", NULL,
     "{\"value\":\"agg\"}"},
    {"import statistics, json\ndef main(a): return [statistics.median([1, 2]), a]\n", "{\"a\":1}",
     "{\"value\":[1.5,1]}"},
};

START_TEST(test_use)
{
    check_rows(&code_runtime_python_full, false, use, LENGTH(use));
}
END_TEST

static void no_executable_memory(void)
{
    static const int calls[] = {SCMP_SYS(clone), SCMP_SYS(clone3), SCMP_SYS(fork),
                                SCMP_SYS(vfork), SCMP_SYS(execve), SCMP_SYS(socket)};
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    bool ok = filter != NULL;

    ok = ok && seccomp_rule_add(filter, SCMP_ACT_KILL_PROCESS, SCMP_SYS(mmap), 1,
                                SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, PROT_EXEC)) == 0;
    ok = ok && seccomp_rule_add(filter, SCMP_ACT_KILL_PROCESS, SCMP_SYS(mprotect), 1,
                                SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, PROT_EXEC)) == 0;
    for (size_t i = 0; i < LENGTH(calls); i++)
        ok = ok && seccomp_rule_add(filter, SCMP_ACT_KILL_PROCESS, calls[i], 0) == 0;
    if (!ok || seccomp_load(filter) != 0)
        _exit(9);
    seccomp_release(filter);
}

START_TEST(test_no_executable_mapping)
{
    for (size_t i = 0; i < LENGTH(use); i++) {
        struct code_task task = task_of(use[i].code, use[i].variables);
        struct outcome outcome = run_task(&code_runtime_python_full, &task, NULL, no_executable_memory);
        char *said = difference(&outcome, use[i].want);

        ck_assert_msg(said == NULL, "%s: %s", use[i].code, said);
        outcome_free(&outcome);
    }
}
END_TEST

static json_t *numbers(unsigned char fill)
{
    struct code_task task =
        task_of("import numpy as np, random\ndef main(): return [np.random.rand(), random.random()]\n", NULL);
    struct outcome outcome;
    json_t *value;

    memset(task.seed, fill, sizeof(task.seed));
    outcome = run_task(&code_runtime_python_full, &task, NULL, NULL);
    ck_assert_ptr_nonnull(outcome.frame);
    value = json_incref(json_object_get(outcome.frame, "value"));
    outcome_free(&outcome);
    return value;
}

START_TEST(test_seed)
{
    json_t *one = numbers(1), *again = numbers(1), *two = numbers(2);

    ck_assert(json_equal(one, again));
    ck_assert(!json_equal(json_array_get(one, 0), json_array_get(two, 0)));
    ck_assert(!json_equal(json_array_get(one, 1), json_array_get(two, 1)));
    json_decref(one);
    json_decref(again);
    json_decref(two);
}
END_TEST

START_TEST(test_faults)
{
    struct code_task task = task_of("def main(a):\n    print('x')\n    return a\n", "{\"a\":1}");
    struct outcome outcome = run_task(&code_runtime_python_full, &task, NULL, NULL);

    ck_assert_ptr_nonnull(outcome.frame);
    ck_assert_msg(outcome.usage.ru_minflt < FAULTS_MAX, "%ld page faults", outcome.usage.ru_minflt);
    outcome_free(&outcome);
}
END_TEST

/* The bar of an idle zygote; measured: 64,400. */
START_TEST(test_idle_memory)
{
#ifndef __SANITIZE_ADDRESS__
    ck_assert_int_gt(anonymous_kib(), 0);
    ck_assert_int_lt(anonymous_kib(), 70000);
#endif
}
END_TEST

PYTHON_CHECK_MAIN("code python full", &code_runtime_python_full, test_values, test_use, test_no_executable_mapping,
                  test_seed, test_faults, test_idle_memory)
