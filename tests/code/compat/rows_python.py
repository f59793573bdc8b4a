# SPDX-License-Identifier: Apache-2.0
"""Python tasks (A6, A7, A8, A10, A12; contract §2, §4)."""
import re

from compat.rows_http import PYTHON_MODULES
from compat.table import ANY, OneOf, Row

FAILS = str  # any message
NO_FILES = re.compile("not allowed")
TIMED_OUT = re.compile("timed out")


def py(name, code, value=ANY, *, reference="A6", **rest):
    return Row(name, reference, language="python", code=code, value=value, **rest)


def does(name, body, value=ANY, *, top="", **rest):
    """A row whose code is the body of main()."""
    return py(name, f"{top}\ndef main():\n" + "\n".join("    " + line for line in body.split("\n")), value, **rest)


def gives(name, expression, value=ANY, **rest):
    return does(name, f"return {expression}", value, **rest)


def refused(name, expression, message, **rest):
    return gives(name, expression, fails=message, **rest)


def blocked(name, statements, top="", **rest):
    """An attempt that must not come to its end: it fails, or an exception says no."""
    body = "try:\n" + "\n".join("    " + line for line in statements.split("\n")) + "\n    return {'escaped': True}\nexcept BaseException:\n    return {'escaped': False}"
    return does(name, body, {"escaped": False}, top=top, reference=rest.pop("reference", "A10"), fails=FAILS, either=True, **rest)


def not_listed(module):
    return f"Module '{module}' is not in the allowlist."


# A7: each listed module is imported and used.
MODULES = {
    "math": "math.sqrt(9) == 3", "cmath": "cmath.sqrt(-1) == 1j", "decimal": "str(decimal.Decimal('0.1') + decimal.Decimal('0.2')) == '0.3'",
    "fractions": "str(fractions.Fraction(1, 3) + fractions.Fraction(1, 6)) == '1/2'", "random": "(random.seed(1), random.randint(1, 10))[1] == 3",
    "statistics": "statistics.mean([1, 2, 3]) == 2", "collections": "collections.Counter('aa')['a'] == 2", "array": "array.array('i', [1, 2]).tolist() == [1, 2]",
    "heapq": "heapq.nsmallest(1, [3, 1, 2]) == [1]", "bisect": "bisect.bisect_left([1, 3, 5], 3) == 1", "queue": "(lambda q: (q.put('ok'), q.get())[1])(queue.Queue()) == 'ok'",
    "copy": "copy.deepcopy([[1]]) == [[1]]", "itertools": "list(itertools.combinations([1, 2, 3], 2))[0] == (1, 2)", "functools": "functools.reduce(lambda a, b: a + b, [1, 2, 3]) == 6",
    "operator": "operator.itemgetter('a')({'a': 1}) == 1", "string": "string.ascii_lowercase[:3] == 'abc'", "re": "re.search(r'\\d+', 'a123').group(0) == '123'",
    "difflib": "list(difflib.ndiff(['a'], ['b']))[0][0] == '-'", "textwrap": "textwrap.shorten('hello world', width=8, placeholder='...') == 'hello...'",
    "unicodedata": "unicodedata.name('A') == 'LATIN CAPITAL LETTER A'", "codecs": "codecs.decode(b'Zm9v', 'base64') == b'foo'", "datetime": "datetime.datetime(2024, 1, 1).year == 2024",
    "time": "isinstance(time.time(), float)", "calendar": "calendar.monthrange(2024, 2)[1] == 29", "_strptime": "_strptime._strptime_time('2024-01-02', '%Y-%m-%d').tm_year == 2024",
    "json": "json.loads('{\"a\":1}')['a'] == 1", "csv": "list(csv.reader(['a,b'])) == [['a', 'b']]", "base64": "base64.b64encode(b'ok') == b'b2s='", "binascii": "binascii.hexlify(b'ok') == b'6f6b'",
    "struct": "struct.unpack('>I', bytes([0, 0, 0, 42]))[0] == 42", "hashlib": "hashlib.sha256(b'fastgpt').hexdigest() == '046ca27ed8a95d7aaec3fd577ba8d9eabd7f7915de4e7c0e120d06d758bff75a'",
    "hmac": "len(hmac.new(b'k', b'v', 'sha256').hexdigest()) == 64", "secrets": "len(secrets.token_hex(4)) == 8", "uuid": "str(uuid.uuid5(uuid.NAMESPACE_DNS, 'fastgpt')) == '8df8855a-2990-5a63-831d-be4be1d105bb'",
    "typing": "str(typing.List[int]) == 'typing.List[int]'", "abc": "isinstance(abc.ABC, abc.ABCMeta)", "enum": "enum.Enum('Color', 'RED').RED.name == 'RED'",
    "dataclasses": "dataclasses.asdict(dataclasses.make_dataclass('Item', ['name'])('ok')) == {'name': 'ok'}", "contextlib": "contextlib.suppress(ValueError) is not None",
    "pprint": "\"'a': 1\" in pprint.pformat({'b': 2, 'a': 1})", "weakref": "(lambda o: weakref.ref(o)() is o)(type('T', (), {})())",
    "numpy": "float(numpy.array([[1, 2, 3], [4, 5, 6]]).mean()) == 3.5", "pandas": "int(pandas.DataFrame([{'t': 'a', 's': 1}, {'t': 'a', 's': 3}]).groupby('t')['s'].sum()['a']) == 4",
    "matplotlib": "bool(matplotlib.__version__)",
}
DENIED = """os subprocess sys shutil pickle multiprocessing threading ctypes signal gc tempfile pathlib importlib socket urllib.request http.client requests glob
    concurrent.futures runpy code codeop compileall ftplib smtplib poplib imaplib xmlrpc.client socketserver ssl asyncio selectors select resource pty termios
    tty fcntl mmap dbm sqlite3 shelve webbrowser turtle tkinter idlelib venv ensurepip pip site marshal""".split()

ROWS = [
    # ---- main (A6, A12) ----
    py("the node's template", "def main(data1, data2):\n    return {\n        \"result\": data1,\n        \"data2\": data2\n    }", {"result": "x", "data2": [1]},
       variables={"data1": "x", "data2": [1]}, reference="A1"),
    py("main()", "def main():\n    return {'ok': True}", {"ok": True}),
    py("main(p) where p is a variable", "def main(a):\n    return a", 7, variables={"a": 7, "b": 8}),
    py("main(p) where it is not", "def main(variables):\n    return {'name': variables['name'], 'age': variables['age']}", {"name": "FastGPT", "age": 3}, variables={"name": "FastGPT", "age": 3}),
    py("main(v) without variables", "def main(v):\n    return v", {}),
    py("main(a, b)", "def main(a, b):\n    return {'sum': a + b}", {"sum": 30}, variables={"b": 20, "a": 10}),
    py("main(a, b, c)", "def main(a, b, c):\n    return a * b + c", 17, variables={"a": 3, "b": 4, "c": 5}),
    py("an argument is missing", "def main(a, b, c):\n    return a", fails="Missing required argument: 'c'", variables={"a": 1, "b": 2}, error={"type": str}),
    py("a default", "def main(name, greeting='Hello'):\n    return f'{greeting}, {name}!'", "Hello, World!", variables={"name": "World"}),
    py("an earlier default", "def main(a=None, b=None):\n    return {'a': a, 'b': b}", {"a": None, "b": "d2"}, variables={"b": "d2"}),
    py("no main", "x = 1", fails="No 'main' function defined", error={"type": "NameError"}),
    py("main is no function", "main = 42", fails=FAILS, reference="A12"),
    py("a global beside main", "prefix = name + '_suffix'\ndef main(name, age):\n    return [prefix, name, age]", ["hello_suffix", "hello", 18], variables={"name": "hello", "age": 18}),
    py("a global inside main", "def main():\n    return {'name': name, 'age': age}", {"name": "test", "age": 25}, variables={"name": "test", "age": 25}),
    py("reserved names keep their meaning", "def main():\n    return [json.dumps([1]), str_to_base64('a')]", ["[1]", "YQ=="], variables={"json": 1, "str_to_base64": 2, "print": 3}),
    py("helper functions beside main", "def tax(amount, rate):\n    return round(amount * rate, 2)\ndef main(variables):\n    t = tax(variables['amount'], 0.13)\n    return {'tax': t, 'total': variables['amount'] + t}",
       {"tax": 13, "total": 113}, variables={"amount": 100}, reference="A12"),
    py("a list as the result", "def main(variables):\n    return [variables['a'], variables['b'], variables['a'] + variables['b']]", [1, 2, 3], variables={"a": 1, "b": 2}, reference="A12"),
    py("a date", "from datetime import datetime, timedelta\ndef main(variables):\n    day = datetime.strptime(variables['date'], '%Y-%m-%d')\n    return [(day + timedelta(days=1)).strftime('%Y-%m-%d'), day.strftime('%A')]",
       ["2024-01-02", "Monday"], variables={"date": "2024-01-01"}, reference="A12"),
    py("async main", "async def main(a):\n    return a + 1", 4, variables={"a": 3}, reference="§4", ours=True),
    py("line ends of Windows", "def main():\r\n    return 1\r\n", 1),

    # ---- globals and helpers (A6) ----
    gives("globals", "[type(x).__name__ in ('function', 'builtin_function_or_method') for x in (count_token, str_to_base64, create_hmac, delay, http_request, print)] + [json.__name__, math.__name__, time.__name__]",
          [True] * 6 + ["json", "math", "time"], reference="A6"),
    gives("SystemHelper", "[callable(x) for x in (SystemHelper.http_request, SystemHelper.httpRequest, system_helper.http_request, system_helper.httpRequest)]", [True] * 4),
    gives("count_token", "[count_token(''), count_token('abcd'), count_token('abcde')]", [0, 1, 2]),
    gives("str_to_base64", "[str_to_base64('Hello, World!'), str_to_base64('你好', 'data:;base64,')]", ["SGVsbG8sIFdvcmxkIQ==", "data:;base64,5L2g5aW9"]),
    does("create_hmac of an unknown digest", "return create_hmac('nope', 'k')", fails="Invalid digest: nope", error={"type": "ValueError", "line": 3}, reference="A6", ours=True),
    *(does(f"create_hmac of {name}", f"return create_hmac({name}, 'k')", fails=f"Invalid digest: {text}", error={"type": "ValueError"}, reference="A6", ours=True)
      for name, text in (("''", ""), ("5", "5"), ("'shake128'", "shake128"), ("None", "None"))),
    does("create_hmac", "r = create_hmac('sha256', 'secret')\nsign = base64.b64encode(hmac.new(b'secret', (r['timestamp'] + '\\nsecret').encode(), 'sha256').digest()).decode()\n"
         "return [sorted(r), abs(int(r['timestamp']) / 1000 - time.time()) < 5, r['sign'] == sign.replace('+', '%2B').replace('=', '%3D')]",
         [["sign", "timestamp"], True, True], top="import base64, hmac"),
    does("delay", "start = time.time()\ndelay(100)\nreturn {'waited': time.time() - start >= 0.095}", {"waited": True}),
    does("delay of 10 s and one", "delay(10001)", fails="Delay must be <= 10000ms", error={"type": "ValueError", "line": 3}),
    py("print", "def main(variables):\n    print('debug step 1')\n    print('processing', variables['name'], 3, None)\n    return {'done': True}", {"done": True},
       variables={"name": "x"}, log="debug step 1\nprocessing x 3 None"),
    does("print ignores sep and end", "print('a', 'b', sep='-', end='!')\nprint('c')\nreturn 1", 1, log="a b\nc"),
    does("1,000 lines", "for i in range(1000):\n    print(f'line {i}')\nreturn {'done': True}", {"done": True}, log=re.compile("\\Aline 0\nline 1\n(.*\n)*line 999\\Z"), reference="A12"),
    does("a line that would overflow the log is dropped whole", "print('kept')\nprint('x' * (1024 * 1024))\nprint('too')\nreturn 1", 1, log="kept\ntoo", reference="A4"),
    does("the log is kept on failure", "print('before')\nraise ValueError('bad')", fails="bad", log="before", reference="§4", ours=True),

    # ---- modules (A6, A7) ----
    *(gives(f"import {name}", MODULES[name], True, top=f"import {name}", reference="A7") for name in PYTHON_MODULES),
    gives("matplotlib draws", "[b.getvalue()[:8].hex(), matplotlib.get_backend().lower()]", ["89504e470d0a1a0a", "agg"], reference="A12",
          top="import io, matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as plt\nfig, ax = plt.subplots(figsize=(2, 1))\nax.plot([1, 2, 3], [1, 4, 9])\nb = io.BytesIO()\nfig.savefig(b, format='png')"),
    gives("a library module that is not listed", "[platform.system(), string.Template('$a').substitute(a=1)]", ["Linux", "1"], top="import platform, string", reference="A6"),
    *(py(f"import {name}", f"import {name}\ndef main():\n    return {{}}", fails=not_listed(name), reference="A10", error={"type": "ImportError", "line": 1}) for name in DENIED),
    *(py(code, f"{code}\ndef main():\n    return {{}}", fails=not_listed(name), reference="A10")
      for code, name in (("from os import path", "os"), ("from subprocess import Popen", "subprocess"), ("from importlib import import_module", "importlib"), ("from sys import path", "sys"))),
    does("import inside an if", "if True:\n    import os\n    return os.getcwd()\nreturn {}", fails=not_listed("os"), reference="A10"),
    does("__import__", "__import__('subprocess')\nreturn {}", fails=not_listed("subprocess"), reference="A10"),
    *(does(f"__import__({name!r}) is told by name", f"try:\n    __import__({name!r})\n    return 'no'\nexcept Exception as e:\n    return str(e)", re.compile(name), reference="A10")
      for name in "os subprocess sys socket threading multiprocessing signal".split()),
    does("a name put together", "__import__('o' + 's')\nreturn {}", fails=not_listed("os"), reference="A10"),
    gives("the words in a text", "'import os; import subprocess'", "import os; import subprocess", reference="A10"),

    # ---- rules on the syntax (A6, A10) ----
    *(refused(f"{name}()", expression, f"Use of {name.split()[0]} is not allowed in sandbox", reference="A10", error={"line": 3})
      for name, expression in (("eval", "eval(\"__import__('os')\")"), ("exec", "exec('import subprocess')"), ("exec of a text put together", "exec('imp' + 'ort os')"), ("compile", "compile('import os', '<test>', 'exec')"),
                               ("globals", "globals()['__builtins__']"), ("locals", "locals()"), ("breakpoint", "breakpoint()"), ("input", "input()"), ("setattr", "setattr(main, 'x', 1)"), ("delattr", "delattr(main, 'x')"))),
    *(refused(expression, expression, re.compile("^Access to __\\w+__ is not allowed in sandbox$"), reference="A10")
      for expression in ("object.__subclasses__()", "().__class__.__bases__[0].__subclasses__()", "type(1).__base__.__subclasses__()", "(1).__class__.__base__", "getattr(object, '__subclasses__')()",
                         "main.__globals__", "main.__code__", "main.__closure__", "print.__self__", "int.__mro__", "object.__getattribute__(1, 'real')", "[].append.__func__", "main.__setattr__('x', 1)", "main.__getattr__")),
    *(refused(expression, expression, "Dynamic getattr is not allowed in sandbox", reference="A10") for expression in ("getattr(object, '__sub' + 'classes__')()", "getattr(object, name)")),
    does("GHSA-5jmh-5f2m-89jg", "name = '__subcl' + 'asses__'\nbase = (1).__class__.__base__\nfor c in getattr(base, name)():\n    if 'popen' in c.__init__.__globals__:\n        return c.__init__.__globals__['popen']('id').read()",
         fails=re.compile("not allowed in sandbox"), reference="A10"),
    does("type() tells and makes classes", "C = type('C', (object,), {'x': 42})\nreturn [type(1) == int, C().x]", [True, 42], reference="A10"),
    does("getattr with a constant", "return getattr([1], 'count')(1)", 1, reference="A6"),
    py("super, vars, dir, __class__, __dict__", "class A:\n    def __init__(self):\n        self.x = 1\nclass B(A):\n    def __init__(self):\n        super().__init__()\n        self.y = 2\n"
       "def main():\n    return [vars(B()), 'y' in dir(B()), B().__class__.__name__, B().__dict__]", [{"x": 1, "y": 2}, True, "B", {"x": 1, "y": 2}], reference="§4", ours=True),
    *(refused(f"{name}() is banned", expression, f"Use of {name} is not allowed in sandbox", server="strict") for name, expression in (("super", "super()"), ("vars", "vars(main)"), ("dir", "dir(main)"))),
    *(refused(f"{name} is banned", f"main.{name}", f"Access to {name} is not allowed in sandbox", server="strict") for name in ("__class__", "__dict__")),

    # ---- builtins (A10) ----
    does("assigning builtins.__import__", "changed = False\ntry:\n    builtins.__import__ = lambda *a, **kw: None\n    changed = True\nexcept Exception:\n    pass\ntry:\n    import os\n    escaped = True\nexcept Exception:\n"
         "    escaped = False\nreturn [changed, escaped]", [False, False], top="import builtins", reference="A10"),
    does("setattr and delattr by another name", "blocked = []\nfor fn in (setter, deleter):\n    try:\n        fn(builtins, '__import__', 1) if fn is setter else fn(builtins, '__import__')\n        blocked.append(False)\n"
         "    except Exception:\n        blocked.append(True)\nreturn blocked", [True, True], top="import builtins\nsetter = setattr\ndeleter = delattr", reference="A10"),
    blocked("__builtins__.__import__", "__builtins__.__import__('os')"),
    blocked("builtins.__import__ after an ImportError", "try:\n    import os\nexcept ImportError:\n    pass\nbuiltins.__import__('os')", top="import builtins"),
    *(refused(f"{name} is not there", name, re.compile("not defined"), reference="A10", error={"type": "NameError"}) for name in ("_original_import", "_os", "_socket", "_urllib_request")),

    # ---- files (A6, A10) ----
    *(does(f"open {path}", f"with open({path!r}) as f:\n    return f.read()", fails=NO_FILES, reference="A10", error={"type": "PermissionError", "line": 3}) for path in ("/etc/passwd", "/proc/self/environ")),
    does("open, in words", "open('/etc/passwd')", fails="File system access is not allowed in sandbox"),
    does("open to write", "with open('/tmp/evil.txt', 'w') as f:\n    f.write('x')", fails=NO_FILES, reference="A10"),
    does("open a descriptor", "open(0)", fails=NO_FILES, reference="A10"),
    does("open below the task's folder", "with open(task_tmpdir + '/a.txt', 'w') as f:\n    f.write('x' * 1024)\nwith open(task_tmpdir + '/a.txt') as f:\n    return len(f.read())", 1024, reference="A12"),
    gives("the task's folder", "task_tmpdir", re.compile("^/tmp/task-[^/]+$"), reference="A6"),
    does("matplotlib's own folders", "import matplotlib\nreturn [matplotlib.get_configdir(), matplotlib.get_cachedir()]", [re.compile("^/tmp/.*/matplotlib")] * 2, reference="A10"),
    does("open beside it", "open(task_tmpdir + '/../evil.txt', 'w')", fails=NO_FILES, reference="A10"),
    does("17 MB in the task's folder", "with open(task_tmpdir + '/big', 'wb') as f:\n    f.write(b'x' * (17 * 1024 * 1024))\nreturn 'written'", fails=re.compile("temporary file limit"), reference="A12"),
    does("system_helper has no files", "return [hasattr(system_helper, 'fs'), hasattr(SystemHelper, 'fs')]", [False, False], reference="A10"),
    does("platform.os cannot run commands", "try:\n    platform.os.system('id')\n    ran = True\nexcept Exception:\n    ran = False\nenv = dict(platform.os.environ)\nreturn [ran, 'SANDBOX_TOKEN' in env]", [False, False],
         top="import platform", reference="A10"),
    does("platform.os cannot read the machine", "blocked = []\nfor attempt in (lambda: os.open('/etc/passwd', 0), lambda: os.listdir('/'), lambda: os.stat('/etc/passwd')):\n    try:\n        attempt()\n        blocked.append(False)\n"
         "    except Exception:\n        blocked.append(True)\nreturn blocked", [True] * 3, top="import platform\nos = getattr(platform, 'os')", reference="A10"),
    does("platform.os in the task's folder", "path = task_tmpdir + '/allowed.txt'\nfd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)\nos.write(fd, b'ok')\nos.close(fd)\nreturn [open(path).read(), os.listdir(task_tmpdir)]",
         ["ok", ["allowed.txt"]], top="import platform\nos = platform.os", reference="A10"),
    does("folders below the task's folder, none beside it", "os.makedirs(task_tmpdir + '/nested/cache', exist_ok=True)\ntry:\n    os.makedirs('/tmp/shared-blocked', exist_ok=True)\n    said = ''\nexcept Exception as e:\n    said = str(e)\n"
         "return [os.path.isdir(task_tmpdir + '/nested/cache'), said]", [True, re.compile("task temporary directory|not allowed")], top="import platform\nos = platform.os", reference="A10"),
    does("pandas writes into the task's folder only", "pandas.DataFrame({'a': [1]}).to_csv(task_tmpdir + '/allowed.csv', index=False)\ntry:\n    pandas.DataFrame({'a': [2]}).to_csv('/tmp/shared.csv', index=False)\n    outside = True\n"
         "except Exception:\n    outside = False\nreturn [open(task_tmpdir + '/allowed.csv').read(), outside]", ["a\n1\n", False], top="import pandas", reference="A10"),
    blocked("os.system", "import os\nos.system('id')"),
    blocked("a process", "platform.os.posix_spawn('/bin/true', ['true'], {})", top="import platform"),
    py("code in variables is text", "def main(v):\n    return v['code']", "__import__('os').system('id')", variables={"code": "__import__('os').system('id')"}, reference="A10"),

    # ---- one task and the next (A10) ----
    does("a global", "try:\n    return {'leaked': secret_data}\nexcept NameError:\n    return {'leaked': False}", {"leaked": False}, reference="A10",
         before=("def main():\n    global secret_data\n    secret_data = 'leaked'\n    return {}",)),
    gives("a module", "[hasattr(json, '_polluted'), json.dumps([1])]", [False, "[1]"], top="import json", reference="A10",
          before=("import json\ndef main():\n    json._polluted = True\n    json.dumps = lambda *a: 'forged'\n    return {}",)),
    gives("the log", "{'ok': True}", {"ok": True}, log="", reference="A10", before=("def main():\n    print('secret_token_abc123')\n    return {}",)),
    does("variables", "try:\n    return apiKey\nexcept NameError:\n    return sorted(variables)", [], reference="A10", before=("def main():\n    global apiKey\n    apiKey = 'sk-secret'\n    variables['apiKey'] = 'sk-secret'\n    return {}",)),
    gives("files", "platform.os.listdir(task_tmpdir)", [], top="import platform", reference="A10", before=("def main():\n    open(task_tmpdir + '/left.txt', 'w').write('x')\n    return {}",)),

    # ---- values (A8, A12) ----
    does("nothing", "pass", OneOf(None), reference="A8"),
    gives("True, False and None", "{'active': True, 'deleted': False, 'extra': None}", {"active": True, "deleted": False, "extra": None}, reference="A12"),
    gives("a function", "main", str, reference="A8"),
    gives("not numbers", "[float('nan'), float('inf'), -float('inf')]", [None] * 3, reference="A8", ours=True),
    gives("dates", "[datetime.datetime(2024, 1, 1, 12), datetime.date(2024, 1, 2), datetime.time(3, 4)]", ["2024-01-01T12:00:00", "2024-01-02", "03:04:00"], top="import datetime", reference="A8", ours=True),
    gives("a date, as the original has it", "[datetime.datetime(2024, 1, 1, 12)]", ["2024-01-01 12:00:00"], top="import datetime", reference="A8", server="strict"),
    gives("bytes", "[b'abc', bytearray(b'\\xff')]", ["YWJj", "/w=="], reference="A8", ours=True),
    gives("bytes, as the original has them", "[b'abc']", ["b'abc'"], reference="A8", server="strict"),
    gives("a set", "[{3, 1, 2}]", [[1, 2, 3]], reference="A8", ours=True),
    gives("integers", "[2 ** 53 + 1, -(2 ** 63), 2 ** 64, 10 ** 30, {7: 3 ** 50}]", [9007199254740993, -(2 ** 63), 2 ** 64, 10 ** 30, {"7": 3 ** 50}], reference="A8"),
    gives("an integer that would write itself otherwise", "Odd(10 ** 20)", 10 ** 20, top="class Odd(int):\n    __repr__ = __str__ = lambda self: 'no'", reference="A8"),
    gives("an integer of numpy", "numpy.array([2 ** 64 - 1, 1], dtype=numpy.uint64)", [2 ** 64 - 1, 1], top="import numpy", reference="A8", ours=True),
    gives("an integer with more digits than Python writes", "10 ** 5000", fails=re.compile("4300"), error={"type": "ValueError"}, reference="A8"),
    py("long integers in variables", "def main(v):\n    return [v['n'] + 1, v['n']]", [10 ** 30 + 1, 10 ** 30], variables={"n": 10 ** 30}, reference="A8"),
    gives("2 ** 53", "2 ** 53", 9007199254740992, reference="A12"),
    gives("Decimal", "[decimal.Decimal('1.10'), decimal.Decimal('1.23456789012345678901')]", [1.1, "1.23456789012345678901"], top="import decimal", reference="§4", ours=True),
    gives("keys that are tuples", "{(1, 'a'): 1}", {"(1, 'a')": 1}, reference="A8", ours=True),
    gives("keys that are no texts", "{7: 'i', None: 'n', True: 't'}", {"7": "i", "null": "n", "true": "t"}, reference="A8"),
    gives("numpy", "[numpy.float64(1.5), numpy.int32(3), numpy.array([[1, 2]]), numpy.bool_(True)]", [1.5, 3, [[1, 2]], True], top="import numpy", reference="A8", ours=True),
    gives("pandas", "pandas.DataFrame({'a': [1, 2], 'b': ['x', None]})", [{"a": 1, "b": "x"}, {"a": 2, "b": None}], top="import pandas", reference="A8", ours=True),
    does("a circle", "a = []\na.append(a)\nreturn a", fails=FAILS, reference="A8", error={"type": "ValueError"}),
    gives("a float", "0.1 + 0.2", 0.30000000000000004, reference="A12"),
    gives("10,000 elements", "list(range(10000))", list(range(10000)), reference="A12"),
    py("100,000 characters", "def main(v):\n    return len(v['text'])", 100000, variables=lambda: {"text": "a" * 100000}, reference="A12"),
    py("nested variables", "def main(v):\n    return v['a']['b']['c']", 42, variables={"a": {"b": {"c": 42}}}, reference="A12"),
    py("list variables", "def main(v):\n    return [len(v['items']), v['items'][0]]", [3, 1], variables={"items": [1, 2, 3]}, reference="A12"),
    py("unicode, newlines and quotes", "def main(v):\n    return v['name']", "你好\n\"world\"<script>alert(1)</script>\\\t😀\u2028", variables={"name": "你好\n\"world\"<script>alert(1)</script>\\\t😀\u2028"}, reference="A12"),
    py("half a surrogate pair in variables", "def main(v):\n    return len(v['a'])", 1, variables={"a": "\ud800"}, reference="A12"),
    gives("half a surrogate pair in the result", "'a\\ud800'", "a\ufffd", reference="§4", ours=True),

    # ---- errors (A8) ----
    does("an exception's message", "raise ValueError('boom')", fails="boom", error={"type": "ValueError", "line": 3, "traceback": str}, reference="A8"),
    *(does(f"{statement} without a message", statement, fails=told, error={"type": told, "traceback": re.compile(f"\n{told}$")}, reference="§4", ours=True)
      for statement, told in (("raise Exception", "Exception"), ("raise ValueError('')", "ValueError"), ("assert False", "AssertionError"), ("exit()", "SystemExit"),
                              ("quit(None)", "SystemExit"), ("raise type('Mine', (Exception,), {})", "Mine"))),
    does("exit with a reason", "exit('enough')", fails="enough", error={"type": "SystemExit"}, reference="A6"),
    does("a division by zero", "return 1 / 0", fails="division by zero", error={"type": "ZeroDivisionError", "line": 3}, reference="A8"),
    py("a syntax error", "def main():\n    return (\n", fails=FAILS, error={"type": "SyntaxError", "line": 2}, reference="A8"),
    py("a wrong indentation", "def main():\nreturn 1", fails=FAILS, error={"type": "IndentationError", "line": 2}, reference="A8"),
    does("a name that is not there", "return undefined_name", fails=re.compile("undefined_name"), error={"type": "NameError", "line": 3}, reference="A8"),
    does("infinite recursion", "return main()", fails=re.compile("recursion"), error={"type": "RecursionError"}, reference="A12"),
    does("a message without paths", "return json.loads('{')", fails=re.compile("^((?!/usr/|/lib/|python3|sk-code).)*$"), error={"type": "JSONDecodeError", "line": 3}, reference="A8"),

    # ---- limits (A3, A12) ----
    does("an endless loop", "while True:\n    pass", fails=TIMED_OUT, error={"code": "timeout"}, members={"timeoutMs": 300}, reference="A12", slow=True),
    does("a loop of math", "while True:\n    math.sqrt(2)", fails=TIMED_OUT, error={"code": "timeout"}, members={"timeoutMs": 300}, reference="A12", slow=True),
    does("sleep past the limit", "while True:\n    time.sleep(10)", fails=TIMED_OUT, error={"code": "timeout"}, members={"timeoutMs": 300}, reference="A12", slow=True),
    does("an except that swallows the time-out", "while True:\n    try:\n        while True: pass\n    except BaseException: pass", fails=TIMED_OUT, error={"code": "timeout"}, members={"timeoutMs": 300}, reference="A6", slow=True),
    does("the time of every task is bounded", "while True: pass", fails="Script execution timed out after 1000ms", error={"code": "timeout"}, reference="A3", server="small"),
    does("40 buffers of 10 MB", "kept = []\nfor i in range(40):\n    kept.append(bytearray(10 * 1024 * 1024))\n    time.sleep(0.02)\nreturn len(kept)",
         fails=OneOf(re.compile("^Memory limit exceeded"), re.compile("exited before result")), error={"code": "memory"}, reference="A12"),
    gives("after that the pool works", "{'ok': True}", {"ok": True}, reference="A12"),
    gives("10 MB are fine", "len(bytearray(10 * 1024 * 1024))", 10485760, reference="A12"),
    gives("10 MB of output and one", "'x' * (10 * 1024 * 1024 + 1)", fails="Output too large (limit: 10485760 bytes)", error={"code": "output"}, reference="A12"),
    gives("9 MB of output", "'x' * (9 * 1024 * 1024)", re.compile("^x{9437184}$"), reference="A12"),
    gives("1 MB of output and one where 1 is the limit", "'x' * (1024 * 1024 + 1)", fails="Output too large (limit: 1048576 bytes)", error={"code": "output"}, reference="A4", server="small"),
    does("2 MB of files where 1 is the limit", "open(task_tmpdir + '/big', 'wb').write(b'x' * 2000000)\nreturn 1", fails=re.compile("temporary file limit"), reference="A4", server="small"),
]
assert set(MODULES) == set(PYTHON_MODULES)
