# SPDX-License-Identifier: Apache-2.0
"""Python against its own language and what the operating system shows it: class walks, frames, imports, files, and every
shape of too much. What the kernel answers when the language is out of the way stands in cases_raw.py."""
from table import OS_PRELUDE, PYTHON_PRELUDE, Row, anything, either, fails, refused, texts, value

ROWS = []


def row(name, code, gets, **options):
    ROWS.append(Row(name, "python", code, gets, **options))


def tries(name, *expressions, prelude=PYTHON_PRELUDE, gets=refused, **options):
    listed = ", ".join(f"attempt(lambda: {expression})" for expression in expressions)
    row(name, prelude + f"def main():\n    return [{listed}]\n", gets, **options)


def os_tries(name, *calls, gets=refused, **options):
    """Calls of functions, by os as a library has it: the name of the error of each."""
    listed = ", ".join(f"name_of(lambda: {call})" for call in calls)
    row(name, OS_PRELUDE + f"def main():\n    return [{listed}]\n", gets, **options)


# ---- walks that the rules refuse in plain words ----
for expression in ("().__class__.__bases__[0].__subclasses__()", "(1).__class__.__base__", "object.__subclasses__()", "type(1).__base__.__subclasses__()",
                   "main.__globals__", "main.__code__", "main.__closure__", "print.__self__", "''.join.__self__", "object.__getattribute__(1, 'real')",
                   "type.mro(int)[1].__subclasses__()", "main.__code__.replace(co_names=())"):
    row(f"rule: {expression}", f"def main():\n    return str({expression})\n", fails(message="not allowed in sandbox"))
row("rule: NFKC spelling", "def main():\n    return str(().__ｃlass__.__ｂases__)\n", fails(message="not allowed in sandbox"))
row("rule: getattr with a made name", "def main():\n    return getattr(object, '__sub' + 'classes__')()\n", fails(message="Dynamic getattr"))
row("rule: a class pattern", "def main():\n    match 1:\n        case object(__globals__=x):\n            return x\n", fails(message="not allowed in sandbox"))
for call in ("eval('1')", "exec('x = 1')", "compile('1', '<test>', 'eval')", "globals()", "locals()", "breakpoint()", "input()", "setattr(main, 'x', 1)",
             "delattr(main, 'x')"):
    row(f"rule: {call}", f"def main():\n    return str({call})\n", fails(message="not allowed in sandbox"))

# ---- walks round the rules: what they find must be of no use ----
row("subclasses by operator.attrgetter", OS_PRELUDE + """import operator
def main():
    found = []
    for c in operator.attrgetter('__class__.__base__.__subclasses__')(())():
        try:
            g = operator.attrgetter('__init__.__globals__')(c)
        except AttributeError:
            continue
        for word in ('popen', 'system', 'fork', 'execv', 'spawnv', 'posix_spawn'):
            if word in g:
                found.append(name_of(g[word], *([['/bin/id'], ['/bin/id']] if word != 'fork' else [])))
    return sorted(set(found)) or ['none']
""", texts("PermissionError|TypeError|none|ValueError|EPERM|NameError"))
row("frames of an exception", OS_PRELUDE + """def main():
    try:
        1 / 0
    except ZeroDivisionError as error:
        frame = error.__traceback__.tb_frame
    seen = []
    while frame:
        seen += [str(k) for k in frame.f_globals if 'token' in k.lower() and k not in ('count_token', 'countToken')]
        frame = frame.f_back
    return seen
""", value([]))
row("frames of a generator and of inspect", OS_PRELUDE + """import inspect
def main():
    g = (i for i in range(3))
    names = set(g.gi_frame.f_builtins) | set(sys._getframe().f_globals)
    real = g.gi_frame.f_builtins['__import__']
    return [name_of(real, 'subprocess'), name_of(real, 'ctypes'), name_of(real, 'socket')]
""", texts("ImportError"))
row("a frame of a library and its real import", OS_PRELUDE + """import json
def main():
    real = json.__builtins__['__import__'] if isinstance(json.__builtins__, dict) else json.__builtins__.__import__
    socket = name_of(lambda: real('socket').socket())
    process = name_of(lambda: real('subprocess').run(['/bin/id']))
    return [socket, process, name_of(lambda: real('ctypes').CDLL(None)), name_of(lambda: real('multiprocessing').Process(target=main).start())]
""", refused)
row("gc shows no secret of the host", OS_PRELUDE + """def main():
    gc = sys.modules['gc'] if 'gc' in sys.modules else sys.modules['builtins'].__import__('gc')
    words = [o for o in gc.get_objects() if isinstance(o, dict)]
    keys = {str(k) for d in words for k in list(d)[:200] if isinstance(k, str)}
    return sorted(k for k in keys if 'SANDBOX_' in k or 'SANDKEEP_' in k)
""", value([]))
row("the audit hook cannot be taken out", OS_PRELUDE + """def main():
    sys.addaudithook(lambda event, arguments: None)
    return [name_of(os.system, 'id'), name_of(lambda: sys.modules['builtins'].open('/etc/passwd').read()), name_of(lambda: sys._clear_type_cache() or os.fork())]
""", refused)
row("a filename that claims to be a library", PYTHON_PRELUDE + """import json, codeop
def main():
    return attempt(lambda: 1)
""", fails(message="allowlist"))
row("code made by replace", OS_PRELUDE + """def main():
    real = sys.modules['builtins']
    code = real.compile("import subprocess; subprocess.run(['/bin/id'])", '/usr/lib/python3.11/json/__init__.py', 'exec')
    return [name_of(lambda: real.exec(code, {'__builtins__': real})), name_of(lambda: real.exec(code.replace(co_filename='<string>'), {}))]
""", refused)
row("bytecode without an end of its constants", """def f(): return 1
import types
def main():
    code = types.FunctionType(f.__getattribute__('__co' + 'de__'), {})
    return str(code)
""", fails(message="not allowed in sandbox"))
row("forged bytecode that crashes", OS_PRELUDE + """import operator
def f():
    return 1
def main():
    code = operator.attrgetter('__code__')(f)
    broken = code.replace(co_code=bytes([100, 255] * 20 + [83, 0]), co_consts=())
    return str(type(sys.modules['builtins'].eval(broken)))
""", either(fails("crashed|error|memory"), anything))
row("format strings walk attributes", """class A:
    pass
def main():
    return ['SANDBOX_' in '{0.__globals__}'.format(f) for f in (http_request, A, delay) if hasattr(f, '__globals__')]
""", value([False, False]))
row("__init_subclass__ and metaclasses run code, and no more", PYTHON_PRELUDE + """class M(type):
    def __call__(cls, *a):
        import os
class A(metaclass=M):
    def __init_subclass__(cls):
        import subprocess
def main():
    return [attempt(A), attempt(lambda: type('B', (A,), {}))]
""", texts("ImportError"))
row("pickle by numpy", PYTHON_PRELUDE + """import io, numpy as np, base64
class E:
    def __reduce__(self):
        return (print, ('mine',))
def main():
    evil = b"cos\\nsystem\\n(S'id'\\ntR."
    head = b"\\x93NUMPY\\x01\\x00v\\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(127) + b"\\n"
    return [attempt(lambda: np.load(io.BytesIO(head + evil), allow_pickle=True)), attempt(lambda: np.load(io.BytesIO(head + evil)))]
""", refused)

# ---- modules ----
for module in ("os", "subprocess", "sys", "shutil", "pickle", "multiprocessing", "threading", "ctypes", "signal", "gc", "tempfile", "pathlib", "importlib",
               "socket", "urllib.request", "http.client", "requests", "asyncio", "mmap", "fcntl", "resource", "select", "code", "builtins.os"):
    row(f"import {module}", f"import {module}\ndef main():\n    return 1\n", fails(message="allowlist|No module|not a package", kind="ImportError|ModuleNotFoundError"))
row("import by __import__ in many spellings", PYTHON_PRELUDE + """import builtins
def main():
    return [attempt(lambda: __import__('o' + 's').system), attempt(lambda: builtins.__import__('subprocess')),
            attempt(lambda: __builtins__['__import__']('socket'))]
""", texts("ImportError"))
row("builtins put back", PYTHON_PRELUDE + """import builtins
def main():
    def replace():
        builtins.__import__ = lambda *a: 1
    def remove():
        del builtins.open
    try:
        import os
    except ImportError:
        pass
    return [attempt(replace), attempt(remove), attempt(lambda: _original_import), attempt(lambda: _os), attempt(lambda: native.rpc)]
""", refused)

# ---- files ----
FILES = ("/etc/passwd", "/etc/shadow", "/proc/self/environ", "/proc/1/environ", "/proc/self/mem", "/proc/self/maps", "/sys/kernel/notes", "/dev/mem",
         "/etc/ssh/ssh_host_rsa_key", "../../etc/passwd", "/tmp/../etc/passwd", "file:///etc/passwd", "/var/run/secrets/kubernetes.io/serviceaccount/token")
for path in FILES:
    row(f"open {path}", PYTHON_PRELUDE + f"def main():\n    return [attempt(lambda: open({path!r}).read()), attempt(lambda: open({path!r}.encode()).read())]\n", refused)
tries("open of descriptors", *[f"open({n}, 'rb', closefd=False).read(1)" for n in (0, 1, 2, 3, 4, 5, 6)])
tries("an opener", "open('x', opener=lambda path, flags: 0)")
for path in ("/etc/passwd", "/proc/self/environ", "/proc/1/maps", "/sys/kernel/notes", "/etc/hostname", "/run/secrets", "/dev/kmsg", "/proc/1/cwd/etc/passwd"):
    os_tries(f"os.open {path}", f"os.open({path!r}, 0)", f"os.open({path!r}, os.O_PATH)", f"os.stat({path!r})", f"os.readlink({path!r})", f"os.access({path!r}, 0) or nothing")
os_tries("what is in the root", "[n for n in os.listdir('/') if n not in ('etc', 'usr', 'var', 'tmp', 'lib', 'lib64', 'dev', 'proc')] or nothing",
         "os.listdir('/proc') or nothing", "os.listdir('/sys') or nothing", "os.listdir('/root')", "os.listdir('/home')", "os.listdir('/dev') or nothing",
         "[n for n in os.listdir('/etc') if n not in ('fonts', 'matplotlibrc', 'localtime')] or nothing")
os_tries("writing outside of the folder", "os.open('/x', os.O_WRONLY | os.O_CREAT)", "os.mkdir('/usr/lib/python3.11/x')", "os.open('/usr/lib/python3.11/os.py', os.O_RDWR)",
         "os.rename('/usr/lib/python3.11/os.py', '/tmp/x')", "os.unlink('/usr/lib/python3.11/os.py')", "os.truncate('/usr/lib/python3.11/os.py', 0)",
         "os.chmod('/usr/lib/python3.11', 0o777)", "os.mkfifo('/tmp/f')", "os.mknod('/tmp/n')", "os.chroot('/tmp')", "os.chdir('/')", "os.fchdir(0)")
os_tries("links", "os.symlink('/etc/passwd', task_tmpdir + '/l')", "os.link('/usr/lib/python3.11/os.py', task_tmpdir + '/l')",
         "os.symlink('..', task_tmpdir + '/up') or open(task_tmpdir + '/up/etc/passwd').read()")
os_tries("processes by os", "os.fork()", "os.system('id')", "os.popen('id').read()", "os.execv('/bin/id', ['id'])", "os.posix_spawn('/bin/id', ['id'], {})",
         "os.spawnv(0, '/bin/id', ['id'])", "os.forkpty()", "os.kill(1, 9)", "os.kill(os.getpid(), 0)", "os.killpg(0, 9)", "os.pidfd_open(1)",
         "os.kill(-1, 9)", "os.waitpid(-1, 0)", "os.setsid()", "os.setpgid(0, 0)", "os.getpgid(1)")
os_tries("raising what one may", "os.setuid(0)", "os.setgid(0)", "os.setresuid(0, 0, 0)", "os.setgroups([0])", "os.nice(-5)", "os.setpriority(0, 0, -5)",
         "os.sched_setaffinity(0, [0])", "os.sched_setscheduler(0, 1, os.sched_param(1))", "os.unshare(0) if hasattr(os, 'unshare') else nothing",
         "os.initgroups('root', 0)", "os.setxattr(task_tmpdir, 'user.x', b'1')")
os_tries("descriptors that hide things", "os.memfd_create('x')", "os.eventfd(0)", "os.pipe()", "os.dup2(0, 200)", "os.openpty()", "os.sendfile(1, 0, 0, 10)",
         "os.splice(0, 1, 10)", "os.copy_file_range(0, 1, 10)", "os.get_blocking(99)", "os.set_blocking(1, False)", "os.ttyname(0)", "os.lockf(1, 0, 0)")
os_tries("modules of the machine", "sys.modules['builtins'].__import__('ctypes').CDLL(None)", "sys.modules['builtins'].__import__('_ctypes').dlopen(None, 2)",
         "sys.modules['builtins'].__import__('mmap').mmap(-1, 4096)", "sys.modules['builtins'].__import__('fcntl').fcntl(1, 1)",
         "sys.modules['builtins'].__import__('_socket').socket()", "sys.modules['builtins'].__import__('_posixsubprocess').fork_exec(*[None] * 21)",
         "sys.modules['builtins'].__import__('resource').setrlimit(7, (10 ** 6, 10 ** 6))", "sys.modules['builtins'].__import__('resource').prlimit(1, 7)",
         "sys.modules['builtins'].__import__('_thread').start_new_thread(main, ())",
         "sys.modules['builtins'].__import__('select').epoll()", "sys.modules['builtins'].__import__('_posixshmem').shm_open('/x', 66)",
         "sys.modules['builtins'].__import__('_multiprocessing').SemLock(0, 0, 1, '/x', True)", "sys.modules['builtins'].__import__('cffi').FFI().dlopen(None)")
row("a signal to a thread that is none", OS_PRELUDE + """def main():
    return name_of(lambda: sys.modules['builtins'].__import__('signal').pthread_kill(1, 9))
""", either(fails("crashed"), texts("EPERM|ProcessLookupError")))
row("fork_exec with right arguments", OS_PRELUDE + """def main():
    f = sys.modules['builtins'].__import__('_posixsubprocess').fork_exec
    r, w = 0, 1
    return name_of(lambda: f([b'/bin/id'], (b'/bin/id',), True, (1,), None, None, -1, -1, -1, -1, -1, -1, 0, w, False, False, 0, None, None, None, -1, None, False))
""", texts("EPERM|EAGAIN|TypeError|ValueError|ImportError|PermissionError"))
row("libraries that read files", PYTHON_PRELUDE + """import pandas as pd, numpy as np
def main():
    return [attempt(lambda: pd.read_csv('/etc/passwd')), attempt(lambda: pd.read_csv('http://169.254.169.254/')), attempt(lambda: pd.read_csv('s3://a/b')),
            attempt(lambda: np.loadtxt('/proc/self/environ')), attempt(lambda: np.fromfile('/proc/self/mem')), attempt(lambda: np.memmap('/etc/passwd')),
            attempt(lambda: pd.read_pickle('/etc/passwd')), attempt(lambda: pd.read_json('file:///etc/passwd')), attempt(lambda: pd.read_html('http://127.0.0.1/')),
            attempt(lambda: np.genfromtxt('/etc/shadow')), attempt(lambda: pd.read_sql('select 1', 'sqlite:////etc/passwd')),
            attempt(lambda: pd.DataFrame({'a': [1]}).to_csv('/x.csv')), attempt(lambda: np.save('/usr/lib/x', np.zeros(1)))]
""", texts(r"\w*Error"))
row("numpy.ctypeslib and f2py", OS_PRELUDE + """import numpy as np
def main():
    return [attempt(lambda: np.ctypeslib.load_library('libc.so.6', '/lib/x86_64-linux-gnu')), attempt(lambda: np.ctypeslib.ctypes.CDLL(None).getpid()),
            attempt(lambda: np.zeros(1).ctypes.data_as(1)), attempt(lambda: __import__('numpy.f2py').f2py.compile(b'x') == 0 or nothing)]
""", refused)
row("pandas.eval and query", PYTHON_PRELUDE + """import pandas as pd
def main():
    d = pd.DataFrame({'a': [1]})
    return [attempt(lambda: pd.eval("__import__('os').system('id')")), attempt(lambda: d.query("@pd.compat.os.system('id') == 0")),
            attempt(lambda: d.query('a.__class__.__base__')), attempt(lambda: pd.eval('@print(1)', engine='python')),
            attempt(lambda: d.eval("b = @open('/etc/passwd').read()"))]
""", texts(r"\w*Error|PermissionError|UndefinedVariable\w*"))
row("matplotlib that writes and runs", PYTHON_PRELUDE + """import matplotlib, matplotlib.pyplot as plt
def main():
    plt.plot([1])
    return [attempt(lambda: plt.savefig('/x.png')), attempt(lambda: matplotlib.texmanager.TexManager().make_dvi('x', 10)),
            attempt(lambda: plt.imread('http://127.0.0.1/x.png')), attempt(lambda: matplotlib.use('TkAgg') or plt.figure()), attempt(lambda: plt.savefig('/tmp/../x'))]
""", texts(r"\w*Error|\w*Exception"))

# ---- what a task knows of others ----
row("environment and arguments", OS_PRELUDE + """def main():
    return [sorted(k for k in os.environ if 'SAND' in k or 'TOKEN' in k or 'KEY' in k), [k for k in sys.argv if 'sk-' in k][:1], os.getppid() in (0, 1)]
""", texts(r"\[\]|\['.*sk-code-python'\]|True"))
row("pids, uids, host name and load", OS_PRELUDE + """def main():
    return [os.getuid() >= 100000, os.getpid() > 1, os.getgroups() == [], os.uname().nodename in ('sandbox', 'localhost', '(none)')]
""", value([True, True, True, True]))

# ---- too much ----
for what, code in {
    "an endless loop": "while 1: pass",
    "an endless loop that swallows everything": "while 1:\n        try:\n            while 1: pass\n        except BaseException:\n            pass",
    "a loop in C": "10 ** 10 ** 8",
    "catastrophic regex": "import re; re.match('(a+)+$', 'a' * 60 + 'b')",
    "a sum in C": "sum(range(10 ** 12))",
    "a loop of an iterator in C": "import itertools, collections; collections.deque(itertools.repeat(1), maxlen=0)",
    "a huge int to text": "n = 7 ** 3000000\n    while 1: n % 10 ** 1000000",
    "sleep": "import time; time.sleep(100)",
    "a hash flood": "class H(int):\n        def __hash__(self): return 1\n    {H(i): 1 for i in range(10 ** 6)}",
    "a finalizer that never ends": "class F:\n        def __del__(self):\n            while 1: pass\n    F()",
    "signals put off": "import platform\n    s = platform.sys.modules['builtins'].__import__('signal')\n    try:\n        s.signal(s.SIGALRM, s.SIG_IGN); s.pthread_sigmask(0, range(1, 65))\n"
                       "    except Exception: pass\n    while 1: pass",
    "timers put off": "import platform\n    s = platform.sys.modules['builtins'].__import__('signal')\n    while 1:\n        try:\n            s.setitimer(s.ITIMER_REAL, 0); s.alarm(0)\n"
                      "        except BaseException: pass",
}.items():
    row(what, f"def main():\n    {code}\n", fails("timeout|killed"), timeout_ms=700)
row("recursion without an end", "def main():\n    return main()\n", fails(kind="RecursionError"))
row("recursion deeper than the stack", OS_PRELUDE + "def main():\n    sys.setrecursionlimit(10 ** 9)\n    def f(n): return [f(n + 1)]\n    f(0)\n",
    fails("crashed|error|memory|timeout"))
row("recursion in C", OS_PRELUDE + "def main():\n    sys.setrecursionlimit(10 ** 9)\n    a = []\n    for i in range(10 ** 6): a = [a]\n    return len(repr(a))\n",
    fails("crashed|error|memory|timeout"))
row("a result 100,000 deep", "def main():\n    a = []\n    for i in range(100000): a = [a]\n    return a\n", either(fails("error|crashed|memory"), anything))
row("a circular result", "def main():\n    a = []\n    a.append(a)\n    return a\n", fails())
row("a result with methods that throw or never end", "class D(dict):\n    def items(self):\n        while 1: pass\n    def __str__(self):\n        while 1: pass\nclass S:\n    def __str__(self):\n"
    "        while 1: pass\ndef main():\n    return [D(a=1), S()]\n", either(fails("timeout"), anything), timeout_ms=700)
row("surrogates in a result", "def main():\n    return '\\ud800 \\udfff'\n", value("\ufffd \ufffd"))
row("an output flood", "def main():\n    return 'x' * (11 * 1024 * 1024)\n", fails("output", "Output too large"))
row("output that swells", "def main():\n    return '\\0' * 5000000\n", fails("output"))
row("a log flood", "def main():\n    for i in range(100000): print('x' * 1000)\n    return 'kept'\n", value("kept"))
row("a log line of 100 MB", "def main():\n    print('x' * 10 ** 8)\n    return 'kept'\n", value("kept"))
row("a file flood", "def main():\n    with open('big', 'wb') as f:\n        while 1: f.write(b'x' * 65536)\n", fails("error|output", "No space|too large|File|temporary|Output"))
row("a million files", "def main():\n    n = 0\n    try:\n        while 1:\n            open(f'f{n}', 'w').close()\n            n += 1\n    except OSError:\n        return n <= 1024\n", value(True))
row("descriptor exhaustion", "def main():\n    kept = []\n    try:\n        while 1: kept.append(open(f'f{len(kept)}', 'w'))\n    except OSError:\n        return len(kept) <= 64\n", value(True))
row("thread exhaustion", OS_PRELUDE + """def main():
    t = sys.modules['builtins'].__import__('_thread')
    return [name_of(t.start_new_thread, print, ()) for i in range(100)]
""", texts("RuntimeError|EPERM|error"))
row("a fork bomb", OS_PRELUDE + "def main():\n    return [name_of(os.fork) for i in range(1000)]\n", texts("PermissionError|EPERM"))
row("a fork bomb without the hook", OS_PRELUDE + """def main():
    f = sys.modules['builtins'].__import__('_posixsubprocess').fork_exec
    return [name_of(lambda: f([b'/bin/id'], (b'/bin/id',), True, (1,), None, None, -1, -1, -1, -1, -1, -1, 0, 1, False, False, 0, None, None, None, -1, None, True)) for i in range(200)]
""", texts("EPERM|EAGAIN|TypeError|ValueError|ImportError|PermissionError"))

BOMBS = {
    "one text": "'a' * 2 ** 31",
    "texts": "a = []\n    while 1: a.append('x' * 1000000 + str(len(a)))",
    "lists": "a = []\n    while 1: a.append([0] * 100000)",
    "small objects": "a = []\n    while 1: a.append({len(a): object()})",
    "sets": "a = set()\n    while 1: a.update(range(len(a), len(a) + 100000))",
    "ints": "n = 1\n    a = []\n    while 1:\n        n <<= 10000000\n        a.append(n)",
    "bytearray that grows": "b = bytearray()\n    while 1: b.extend(b'x' * 1000000)",
    "tuples in a tuple": "t = ()\n    while 1: t = (t, (0,) * 100000)",
    "a generator of generators": "import itertools\n    return len(list(itertools.product(range(1000), repeat=4)))",
    "permutations": "import itertools\n    return len(sorted(itertools.permutations(range(11))))",
    "format width": "f'{1:>{10 ** 10}}'",
    "decimal": "import decimal\n    decimal.getcontext().prec = decimal.MAX_PREC\n    return str(decimal.Decimal(1) / 3)",
    "json": "import json\n    a = []\n    while 1: a.append(json.loads('[' + '1,' * 1000000 + '1]'))",
    "exceptions that hold frames": "a = []\n    while 1:\n        try:\n            x = [0] * 10000\n            raise ValueError(x)\n        except ValueError as e:\n            a.append(e)",
    "a file in memory": "import io\n    b = io.BytesIO()\n    while 1: b.write(b'x' * 1000000)",
    "zeros of numpy": "import numpy\n    return float(numpy.ones(10 ** 9).sum())",
    "many arrays of numpy": "import numpy\n    a = []\n    while 1: a.append(numpy.ones(10 ** 6))",
    "broadcasting": "import numpy\n    a = numpy.ones((20000, 1))\n    return float((a + a.T).sum() + (a * a.T).sum())",
    "a frame of pandas": "import pandas\n    d = pandas.DataFrame({'a': range(1000)})\n    while 1: d = pandas.concat([d, d])",
    "a cross join": "import pandas\n    d = pandas.DataFrame({'a': range(20000)})\n    return len(d.merge(d, how='cross'))",
    "a picture": "import matplotlib.pyplot as plt\n    plt.figure(figsize=(600, 600), dpi=300)\n    plt.savefig('x.png')",
    "decompression": "import io, numpy\n    zlib = platform.sys.modules['builtins'].__import__('zlib')\n    c = zlib.compress(b'0' * 10 ** 8)\n    a = []\n    while 1: a.append(zlib.decompress(c))",
    "regex": "import re\n    a = []\n    while 1: a.append(re.compile('(x{1,%d})' % (len(a) + 1000) * 50))",
}
for what, code in BOMBS.items():
    row(f"memory bomb: {what}", f"import platform\ndef main():\n    {code}\n", fails("memory|error|timeout|crashed"), timeout_ms=3000)
row("a memory bomb that catches its errors", "def main():\n    a = []\n    while 1:\n        try:\n            while 1: a.append('x' * 100000 + str(len(a)))\n        except MemoryError:\n            pass\n",
    fails("memory|timeout|crashed"), timeout_ms=1500)
