/* SPDX-License-Identifier: Apache-2.0
 *
 * What a Python task sees and gives back (reference A6, A7, A8, A12): how main is called, the globals and helpers,
 * values, errors, and every module of the default list. Lean kind. */
#include "tests/unit/code/python/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

START_TEST(test_main_forms)
{
    static const struct row rows[] = {
        {"def main():\n    return {'x': 1}\n", NULL, "{\"ok\":true,\"value\":{\"x\":1},\"log\":\"\"}"},
        {"def main():\n    return variables['a']\n", "{\"a\":7}", "{\"value\":7}"},
        {"def main(a):\n    return a\n", "{\"a\":7,\"b\":8}", "{\"value\":7}"},
        {"def main(params):\n    return params\n", "{\"a\":7,\"b\":8}", "{\"value\":{\"a\":7,\"b\":8}}"},
        {"def main(a=5):\n    return a\n", "{\"b\":8}", "{\"value\":{\"b\":8}}"},
        {"def main(data1, data2):\n    return {'result': data1, 'data2': data2}\n",
         "{\"data2\":[1],\"data1\":\"\xe4\xb8\xad\"}", "{\"value\":{\"result\":\"\xe4\xb8\xad\",\"data2\":[1]}}"},
        {"def main(a, b):\n    return a\n", "{\"a\":1}",
         "{\"ok\":false,\"code\":\"error\",\"message\":\"Missing required argument: 'b'\",\"value!\":0}"},
        {"def main(a, b=2):\n    return a + b\n", "{\"a\":1}", "{\"value\":3}"},
        {"def main(a=None, b=None):\n    return [a, b]\n", "{\"b\":1}", "{\"value\":[null,1]}"},
        {"def main(a, *, b):\n    return [a, b]\n", "{\"b\":1,\"a\":2}", "{\"value\":[2,1]}"},
        {"def main(a, *, b=9):\n    return [a, b]\n", "{\"a\":2}", "{\"value\":[2,9]}"},
        {"def main(*, b):\n    return b\n", "{\"b\":1}", "{\"value\":1}"},
        {"def main(a, /, b):\n    return [a, b]\n", "{\"b\":1,\"a\":2}", "{\"value\":[2,1]}"},
        {"def main(a=3, b=4, /):\n    return [a, b]\n", "{\"b\":1}", "{\"value\":[3,1]}"},
        {"def main(**kw):\n    return kw\n", "{\"b\":1,\"a\":2}", "{\"value\":{\"a\":2,\"b\":1}}"},
        {"def main(a, **kw):\n    return [a, kw]\n", "{\"b\":1,\"a\":2}", "{\"value\":[2,{\"b\":1}]}"},
        {"def main(*args):\n    return len(args)\n", "{\"b\":1}", "{\"value\":1}"},
        {"main = lambda a, b: a * b\n", "{\"a\":3,\"b\":4}", "{\"value\":12}"},
        {"import functools\ndef f(x, a, b): return [x, a, b]\nmain = functools.partial(f, 0)\n", "{\"a\":3,\"b\":4}",
         "{\"value\":[0,3,4]}"},
        {"import functools\ndef deco(f):\n    @functools.wraps(f)\n    def inner(*a, **k): return ['d', f(*a, **k)]\n"
         "    return inner\n@deco\ndef main(a, b=1): return a + b\n",
         "{\"a\":3}", "{\"value\":[\"d\",4]}"},
        {"class Main:\n    def __init__(self, a): self.a = a\n    def __str__(self): return f'Main {self.a}'\nmain = "
         "Main\n",
         "{\"a\":3}", "{\"value\":\"Main 3\"}"},
        {"async def helper(x): return x + 1\nasync def main(a):\n    return await helper(a)\n", "{\"a\":3}",
         "{\"value\":4}"},
        {"x = 1\n", NULL, "{\"ok\":false,\"code\":\"error\",\"message\":\"No 'main' function defined\"}"},
        {"main = 5\n", NULL, "{\"ok\":false,\"message\":\"No 'main' function defined\"}"},
        {"def main(): pass\n", NULL, "{\"ok\":true,\"value\":null}"},
        {"\xef\xbb\xbf"
         "def main(): return 1\n",
         NULL, "{\"value\":1}"},
        {"# -*- coding: gbk -*-\ndef main(): return '\xe4\xb8\xad'\n", NULL, "{\"value\":\"\xe4\xb8\xad\"}"},
        {"def main():\r\n    return 1\r\n", NULL, "{\"value\":1}"},
        {"class A:\n    def __init__(self): self.x = 1\nclass B(A):\n    def __init__(self):\n        "
         "super().__init__()\n"
         "        self.y = 2\ndef main(): return [vars(B()), B().__class__.__name__, 'y' in dir(B()), B().__dict__]\n",
         NULL, "{\"value\":[{\"x\":1,\"y\":2},\"B\",true,{\"x\":1,\"y\":2}]}"},
        {"from dataclasses import dataclass, asdict\nfrom typing import List, get_type_hints\n@dataclass\nclass P:\n   "
         " x: 'int'\n"
         "    y: List[int]\ndef main(): return [asdict(P(1, [2])), str(get_type_hints(P)['x'])]\n",
         NULL, "{\"value\":[{\"x\":1,\"y\":[2]},\"<class 'int'>\"]}"},
        {"T = type('X', (object,), {'v': 4})\ndef main(): return T().v\n", NULL, "{\"value\":4}"},
    };

    check_rows(&code_runtime_python, false, rows, LENGTH(rows));
}
END_TEST

START_TEST(test_globals_and_helpers)
{
    static const struct row rows[] = {
        {"y = a + 1\ndef main():\n    return [a, y]\n", "{\"a\":1}", "{\"value\":[1,2]}"},
        {"def main():\n    return [print.__name__, json.dumps([1]), math.floor(time.time() / 1e9) > 0]\n",
         "{\"print\":1,\"json\":2,\"__name__\":3}", "{\"value\":[\"print\",\"[1]\",true]}"},
        {"def main():\n    return [count_token('abcde'), count_token(''), str_to_base64('h\xc3\xa9', 'p:'),"
         " SystemHelper.count_token('a'), system_helper.countToken('abcd')]\n",
         NULL, "{\"value\":[2,0,\"p:aMOp\",1,1]}"},
        {"import base64, hmac\nfrom urllib import parse\ndef main(): pass\n", NULL,
         "{\"ok\":false,\"message\":\"Module 'urllib' is not in the allowlist.\",\"type\":\"ImportError\",\"line\":2}"},
        {"import base64, hmac\ndef main():\n    r = create_hmac('sha256', 's')\n"
         "    sign = base64.b64encode(hmac.new(b's', (r['timestamp'] + '\\ns').encode(), 'sha256').digest()).decode()\n"
         "    return [sign.replace('+', '%2B').replace('=', '%3D') == r['sign'], abs(int(r['timestamp']) - time.time() "
         "* 1000) "
         "< 5000]\n",
         NULL, "{\"value\":[true,true]}"},
        {"def main():\n    t = time.monotonic()\n    delay(60)\n    return 0.05 < time.monotonic() - t < 5\n", NULL,
         "{\"value\":true}"},
        {"def main():\n    delay(10001)\n", NULL,
         "{\"ok\":false,\"type\":\"ValueError\",\"message\":\"Delay must be <= 10000ms\",\"line\":2}"},
        {"print('a', 1, None, sep='-', end='!')\nprint()\nprint('x\\ny')\ndef main():\n    print([1], {'k': "
         "'\xe4\xb8\xad'})\n",
         NULL, "{\"log\":\"a 1 None\\n\\nx\\ny\\n[1] {'k': '\xe4\xb8\xad'}\"}"},
        {"import pprint, logging\ndef main():\n    pprint.pprint({'a': 1})\n    logging.warning('w')\n    return 1\n",
         NULL, "{\"log\":\"{'a': 1}\\nWARNING:root:w\",\"value\":1}"},
        {"import warnings\ndef main():\n    warnings.warn('x')\n    return 1\n", NULL, "{\"log\":\"\",\"value\":1}"},
        {"SystemHelper.http_request = 1\ndef main(): pass\n", NULL, "{\"ok\":false,\"message~\":\"read-only\"}"},
        {"def main():\n    return variables\n",
         "  {\"n\":{\"a\":[1,{\"b\":null}]},\"q\":\"\\\"\\\\\\n\\u0000\",\"f\":0.1}",
         "{\"value\":{\"n\":{\"a\":[1,{\"b\":null}]},\"q\":\"\\\"\\\\\\n\\u0000\",\"f\":0.1}}"},
        {"import io, logging\ndef main():\n    with open('\xe4\xb8\xad.txt', 'w') as f: f.write('\xe4\xb8\xad')\n"
         "    with io.open(task_tmpdir + '/\xe4\xb8\xad.txt') as f: return [f.read(), "
         "logging.sys.getfilesystemencoding()]\n",
         NULL, "{\"value\":[\"\xe4\xb8\xad\",\"utf-8\"]}"},
        {"def main():\n    with open(task_tmpdir + '/a.txt', 'w') as f: f.write('h\xc3\xa9')\n    with open('a.txt') "
         "as f: return "
         "f.read()\n",
         NULL, "{\"value\":\"h\xc3\xa9\"}"},
    };

    check_rows(&code_runtime_python, false, rows, LENGTH(rows));
}
END_TEST

START_TEST(test_values)
{
    static const struct row rows[] = {
        {"def main(): return [float('nan'), float('inf'), -float('inf'), 0.1 + 0.2, 1e300, -0.0, 5.0]\n", NULL,
         "{\"value\":[null,null,null,0.30000000000000004,1e300,-0.0,5.0]}"},
        {"def main(): return [2**53 + 1, -2**53 - 1, 2**63 - 1, -2**63, True, False]\n", NULL,
         "{\"value\":[9007199254740993,-9007199254740993,9223372036854775807,-9223372036854775808,true,false]}"},
        {"def main(): return 10**5000\n", NULL, "{\"ok\":false,\"code\":\"error\",\"type\":\"ValueError\"}"},
        {"from decimal import Decimal as D\ndef main(): return [D('1.10'), D('3'), D('1.23456789012345678901'), "
         "D('NaN'), "
         "D('-Infinity'), D('1E+20'), D('1E+2')]\n",
         NULL, "{\"value\":[1.1,3,\"1.23456789012345678901\",null,null,\"1E+20\",100]}"},
        {"import datetime as d\ndef main(): return [d.datetime(2024,1,1,12), d.date(2024,1,2), d.time(3,4), "
         "d.datetime(2024,1,1,tzinfo=d.timezone.utc), d.timedelta(days=1)]\n",
         NULL,
         "{\"value\":[\"2024-01-01T12:00:00\",\"2024-01-02\",\"03:04:00\",\"2024-01-01T00:00:00+00:00\",\"1 day, "
         "0:00:00\"]}"},
        {"def main(): return [b'', b'a', b'ab', b'abc', bytearray(b'\\xff\\xfe'), memoryview(b'x')]\n", NULL,
         "{\"value\":[\"\",\"YQ==\",\"YWI=\",\"YWJj\",\"//4=\",\"eA==\"]}"},
        {"from collections import *\nimport array\nclass N(namedtuple('N', 'a b')): pass\ndef main(): return [{3, 1, "
         "2}, "
         "frozenset('a'), deque([1]), range(3), {'k': 1}.keys(), {'k': 1}.values(), (1, 2), N(1, 2), Counter('aa'), "
         "array.array('i', [4])]\n",
         NULL, "{\"value\":[[1,2,3],[\"a\"],[1],[0,1,2],[\"k\"],[1],[1,2],[1,2],{\"a\":2},[4]]}"},
        {"def main(): return {7: 'i', None: 'n', True: 't', 2.5: 'f', (1, 'a'): 'tuple', 's': 's'}\n", NULL,
         "{\"value\":{\"7\":\"i\",\"true\":\"t\",\"null\":\"n\",\"2.5\":\"f\",\"(1, 'a')\":\"tuple\",\"s\":\"s\"}}"},
        {"from collections import OrderedDict\nimport enum, uuid, fractions\nclass C(enum.Enum):\n    A = 1\nclass "
         "I(enum.IntEnum):\n"
         "    B = 2\ndef main(): return [OrderedDict(a=1), C.A, I.B, uuid.UUID(int=1), fractions.Fraction(1, 3), 1j, "
         "...]\n",
         NULL,
         "{\"value\":[{\"a\":1},\"C.A\",2,\"00000000-0000-0000-0000-000000000001\",\"1/3\",\"1j\",\"Ellipsis\"]}"},
        {"def main(): return 'a\\ud800b\\x01\\x7f\"\\\\/\\u2028\\U0001F600'\n", NULL,
         "{\"value\":\"a\\ufffdb\\u0001\\u007f\\\"\\\\/\\u2028\xf0\x9f\x98\x80\"}"},
        {"class S(str):\n    def __str__(self): return 'no'\nclass I(int):\n    __repr__ = __str__ = lambda self: "
         "'no'\n"
         "def main(): return [S('yes'), I(5), I(2**60)]\n",
         NULL, "{\"value\":[\"yes\",5,1152921504606846976]}"},
        {"def main():\n    a = []\n    a.append({'x': a})\n    return a\n", NULL,
         "{\"ok\":false,\"code\":\"error\",\"type\":\"ValueError\",\"message\":\"Circular reference detected\"}"},
        {"def main():\n    s = [1]\n    return [s, s, {'a': s}]\n", NULL, "{\"value\":[[1],[1],{\"a\":[1]}]}"},
        {"def main():\n    a = 0\n    for i in range(100000): a = [a]\n    return a\n", NULL,
         "{\"ok\":false,\"type\":\"RecursionError\"}"},
        {"class X:\n    def __str__(self): raise KeyError('k')\ndef main(): return [X()]\n", NULL,
         "{\"ok\":false,\"type\":\"KeyError\",\"message\":\"'k'\",\"line\":2}"},
        {"class X:\n    def __str__(self): return 5\ndef main(): return [X()]\n", NULL,
         "{\"ok\":false,\"type\":\"TypeError\"}"},
        {"class G:\n    def __str__(self):\n        d.clear(); return 'x'\nd = {'a': G(), 'b': 2}\ndef main(): return "
         "d\n",
         NULL, "{\"ok\":false,\"type\":\"RuntimeError\"}"},
        {"class G:\n    def __str__(self):\n        l.clear(); return 'x'\nl = [G(), 2, 3]\ndef main(): return l\n",
         NULL, "{\"value\":[\"x\"]}"},
        {"def main(): return main\n", NULL, "{\"ok\":true}"},
        {"def main(): return [list(range(10000)), 'x' * 100000]\n", NULL, "{\"ok\":true}"},
    };

    check_rows(&code_runtime_python, false, rows, LENGTH(rows));
}
END_TEST

START_TEST(test_strict_values)
{
    static const struct row rows[] = {
        {"import datetime as d\ndef main(): return [d.datetime(2024,1,1,12), b'ab']\n", NULL,
         "{\"value\":[\"2024-01-01 12:00:00\",\"b'ab'\"]}"},
    };

    check_rows(&code_runtime_python, true, rows, LENGTH(rows));
}
END_TEST

START_TEST(test_errors)
{
    static const struct row rows[] = {
        {"import math\n\ndef f(x):\n    return 1 / x\n\ndef main(a):\n    print('before')\n    return f(a)\n",
         "{\"a\":0}",
         "{\"ok\":false,\"code\":\"error\",\"message\":\"division by zero\",\"type\":\"ZeroDivisionError\",\"line\":4,"
         "\"traceback\":\"Traceback (most recent call last):\\n  File \\\"<string>\\\", line 8, in main\\n    return "
         "f(a)\\n"
         "  File \\\"<string>\\\", line 4, in f\\n    return 1 / x\\nZeroDivisionError: division by "
         "zero\",\"log\":\"before\"}"},
        {"import json\ndef main():\n    return json.loads('{')\n", NULL,
         "{\"ok\":false,\"type\":\"JSONDecodeError\",\"line\":3,\"traceback\":\"Traceback (most recent call last):\\n"
         "  File \\\"<string>\\\", line 3, in main\\n    return json.loads('{')\\nJSONDecodeError: Expecting property "
         "name enclosed "
         "in double quotes: line 1 column 2 (char 1)\"}"},
        {"def main():\n  return (\n", NULL,
         "{\"ok\":false,\"type\":\"SyntaxError\",\"line\":2,\"message~\":\"never closed\"}"},
        {"def main():\nreturn 1\n", NULL, "{\"ok\":false,\"type\":\"IndentationError\",\"line\":2}"},
        {"from json import nope\ndef main(): pass\n", NULL,
         "{\"ok\":false,\"type\":\"ImportError\",\"message\":\"cannot import name 'nope' from 'json' "
         "(json/__init__.py)\"}"},
        {"import traceback, json\ndef main():\n    try:\n        json.loads('{')\n    except ValueError:\n        "
         "print('/usr/lib/' in traceback.format_exc(), traceback.format_exc())\n",
         NULL, "{\"ok\":true,\"log~\":\"File \\\"json/__init__.py\\\"\"}"},
        {"class E(Exception): pass\ndef main(): raise E('x', 1)\n", NULL,
         "{\"ok\":false,\"type\":\"E\",\"message\":\"('x', 1)\",\"line\":2}"},
        {"class E(Exception):\n    def __str__(self): raise self\ndef main(): raise E\n", NULL,
         "{\"ok\":false,\"type\":\"E\",\"message\":\"E\",\"line\":3}"},
        {"def main(): return main()\n", NULL,
         "{\"ok\":false,\"type\":\"RecursionError\",\"traceback~\":\"more frames\"}"},
        {"def main(): exit(3)\n", NULL, "{\"ok\":false,\"type\":\"SystemExit\",\"message\":\"3\"}"},
        {"def main(): raise KeyboardInterrupt\n", NULL, "{\"ok\":false,\"type\":\"KeyboardInterrupt\"}"},
        {"def main(): raise ValueError('x' * 100000)\n", NULL, "{\"ok\":false,\"type\":\"ValueError\"}"},
        {"def main(): raise OSError(28, 'No space left on device')\n", NULL,
         "{\"ok\":false,\"message~\":\"temporary file limit\"}"},
        {"undefined_name\n", NULL, "{\"ok\":false,\"type\":\"NameError\",\"line\":1}"},
        {"def main(a): return a\n", "{\"a\":[[[[[[[[]]]]]]]]}", "{\"ok\":true}"},
    };

    check_rows(&code_runtime_python, false, rows, LENGTH(rows));
}
END_TEST

/* A7: each module of the default list, imported and used. The three large ones have their tests in test_full.c. */
static const struct {
    const char *name, *expression, *value;
} modules[] = {
    {"math", "math.sqrt(16)", "4.0"},
    {"cmath", "str(cmath.sqrt(-1))", "\"1j\""},
    {"decimal", "decimal.Decimal('0.1') + decimal.Decimal('0.2') == decimal.Decimal('0.3')", "true"},
    {"fractions", "str(fractions.Fraction(1, 3) + fractions.Fraction(1, 6))", "\"1/2\""},
    {"random", "(random.seed(1), random.randint(1, 10))[1]", "3"},
    {"statistics", "statistics.mean([1, 2, 3])", "2"},
    {"collections", "collections.Counter('aab').most_common(1)", "[[\"a\",2]]"},
    {"array", "array.array('i', [1, 2]).tolist()", "[1,2]"},
    {"heapq", "heapq.nsmallest(2, [3, 1, 2])", "[1,2]"},
    {"bisect", "bisect.bisect([1, 3], 2)", "1"},
    {"queue", "(lambda q: (q.put(1), q.get())[1])(queue.Queue())", "1"},
    {"copy", "copy.deepcopy([[1]])", "[[1]]"},
    {"itertools", "list(itertools.chain([1], [2]))", "[1,2]"},
    {"functools", "functools.reduce(lambda a, b: a + b, [1, 2, 3])", "6"},
    {"operator", "operator.add(1, 2)", "3"},
    {"string", "string.digits", "\"0123456789\""},
    {"re", "re.findall(r'\\d+', 'a1b22')", "[\"1\",\"22\"]"},
    {"difflib", "difflib.get_close_matches('appel', ['apple', 'x'])", "[\"apple\"]"},
    {"textwrap", "textwrap.shorten('a b c', 4, placeholder='')", "\"a b\""},
    {"unicodedata", "unicodedata.name('a')", "\"LATIN SMALL LETTER A\""},
    {"codecs", "[codecs.encode('ab', 'rot13'), '\xe4\xb8\xad'.encode('gbk').hex()]", "[\"no\",\"d6d0\"]"},
    {"datetime", "datetime.datetime.strptime('2024-01-02', '%Y-%m-%d')", "\"2024-01-02T00:00:00\""},
    {"time", "time.strftime('%Y', time.gmtime(0))", "\"1970\""},
    {"calendar", "calendar.monthrange(2024, 2)[1]", "29"},
    {"_strptime", "_strptime._strptime('2024', '%Y')[0][0]", "2024"},
    {"json", "json.loads(json.dumps({'a': 1}))", "{\"a\":1}"},
    {"csv", "list(csv.reader(['a,b']))", "[[\"a\",\"b\"]]"},
    {"base64", "base64.b64encode(b'hi').decode()", "\"aGk=\""},
    {"binascii", "binascii.hexlify(b'hi').decode()", "\"6869\""},
    {"struct", "struct.unpack('<H', b'\\x01\\x02')", "[513]"},
    {"hashlib", "[hashlib.md5(b'hello').hexdigest(), hashlib.sha256(b'fastgpt').hexdigest()]",
     "[\"5d41402abc4b2a76b9719d911017c592\",\"046ca27ed8a95d7aaec3fd577ba8d9eabd7f7915de4e7c0e120d06d758bff75a\"]"},
    {"hmac", "hmac.new(b'k', b'm', 'sha1').hexdigest()", "\"772b71c8a2997e768be01d9711e4a4f34a24ef33\""},
    {"secrets", "len(secrets.token_hex(8))", "16"},
    {"uuid", "[str(uuid.uuid5(uuid.NAMESPACE_DNS, 'fastgpt')), len(str(uuid.uuid4()))]",
     "[\"8df8855a-2990-5a63-831d-be4be1d105bb\",36]"},
    {"typing", "str(typing.Optional[int])", "\"typing.Optional[int]\""},
    {"abc", "issubclass(abc.ABC, object)", "true"},
    {"enum", "enum.IntEnum('E', 'A B').B", "2"},
    {"dataclasses", "dataclasses.asdict(dataclasses.make_dataclass('C', ['x'])(1))", "{\"x\":1}"},
    {"contextlib", "contextlib.nullcontext(3).enter_result", "3"},
    {"pprint", "pprint.pformat({'a': 1})", "\"{'a': 1}\""},
    {"weakref", "(lambda o: weakref.ref(o)() is o)(type('T', (), {})())", "true"},
};

START_TEST(test_modules)
{
    int failed = 0;

    for (size_t i = 0; python_default_modules[i] != NULL; i++) {
        const char *name = python_default_modules[i];
        bool large = strcmp(name, "numpy") == 0 || strcmp(name, "pandas") == 0 || strcmp(name, "matplotlib") == 0,
             found = large;

        for (size_t m = 0; !large && m < LENGTH(modules); m++) {
            char code[512], want[512], *said;
            struct code_task task;
            struct outcome outcome;

            if (strcmp(modules[m].name, name) != 0)
                continue;
            found = true;
            (void)snprintf(code, sizeof(code), "import %s\ndef main():\n    return %s\n", name, modules[m].expression);
            (void)snprintf(want, sizeof(want), "{\"ok\":true,\"value\":%s}", modules[m].value);
            task = task_of(code, NULL);
            outcome = run_task(&code_runtime_python, &task, NULL, NULL);
            said = difference(&outcome, want);
            if (said != NULL) {
                failed++;
                (void)fprintf(stderr, "%s: %s\n", name, said);
            }
            free(said);
            outcome_free(&outcome);
        }
        ck_assert_msg(found, "no run test for %s", name);
    }
    ck_assert_int_eq(failed, 0);
}
END_TEST

PYTHON_CHECK_MAIN("code python language", &code_runtime_python, test_main_forms, test_globals_and_helpers, test_values,
                  test_strict_values, test_errors, test_modules)
