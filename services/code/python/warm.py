# SPDX-License-Identifier: Apache-2.0
"""Loads and warms up everything a task may use, in the template. After it no extension module is loaded any more, so that
a task never maps executable memory, and nothing random has been drawn. `full`, `modules` and `own`, the folder of a task,
are set before."""
import importlib
import os
import sys

HEAVY = ("numpy", "pandas", "matplotlib")
# The home while everything is loaded, as root: nobody can put anything there, neither fonts nor settings.
NOWHERE = "/dev/null/nowhere"
# Refused by name (A6), and the modules in C below them.
DENIED = frozenset("""os subprocess shutil pathlib glob tempfile multiprocessing threading concurrent ctypes importlib runpy code
    codeop compileall socket http urllib ftplib smtplib poplib imaplib xmlrpc socketserver ssl asyncio selectors select signal
    resource pty termios tty fcntl mmap dbm sqlite3 shelve webbrowser turtle tkinter idlelib venv ensurepip pip site gc sys
    builtins marshal pickle
    posix posixpath ntpath nt _posixsubprocess _posixshmem _socket _ssl _ctypes _thread _signal _multiprocessing _asyncio _imp
    _frozen_importlib _frozen_importlib_external _pickle _sqlite3 _dbm _gdbm _tkinter _curses _testcapi _xxsubinterpreters
    _bootsubprocess pwd grp spwd nis curses readline faulthandler""".split())
# Extension modules of the standard library that stay out: refused above, or of no use without a terminal or display.
SKIPPED = frozenset("""_ctypes _ctypes_test _curses _curses_panel _dbm _multiprocessing _posixshmem _sqlite3 _ssl _testbuffer
    _testcapi _testclinic _testimportmultiple _testinternalcapi _testmultiphase _tkinter _xxsubinterpreters _xxtestfuzz nis
    ossaudiodev readline resource termios xxlimited xxlimited_35 _crypt _lsprof _asyncio mmap""".split())
COMMON = """math cmath decimal fractions random statistics collections array heapq bisect queue copy itertools functools operator
    string re difflib textwrap unicodedata codecs datetime time calendar _strptime json csv base64 binascii struct hashlib hmac
    secrets uuid typing abc enum dataclasses contextlib pprint weakref zoneinfo html html.parser urllib.parse types numbers
    warnings traceback inspect logging io zlib gzip bz2 lzma platform xml.etree.ElementTree ipaddress locale stringprep graphlib
    reprlib ast collections.abc zipfile configparser argparse shlex tomllib colorsys fnmatch tokenize dis contextvars
    html.entities sched quopri copyreg""".split()
CODECS = """utf-8 utf-8-sig utf-16 utf-32 latin-1 ascii cp1252 gbk gb2312 gb18030 big5 shift_jis euc_jp euc_kr iso2022_jp idna
    punycode unicode_escape raw_unicode_escape base64 hex""".split()


def extensions(folder, package):
    """Dotted names of the extension modules below a folder."""
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in ("tests", "testing", "__pycache__")]
        inner = os.path.relpath(root, folder)
        prefix = package if inner == "." else ".".join(filter(None, (package, inner.replace("/", "."))))
        for name in files:
            if name.endswith(".so"):
                yield ".".join(filter(None, (prefix, name.split(".")[0])))


def load(name, needed):
    try:
        return importlib.import_module(name)
    except Exception as error:  # a broken or partial installation says so in many ways
        if needed:
            raise ImportError(f"{name}: {type(error).__name__}: {error}") from error
        return None


def quietly(work):
    """Runs `work` with no program started, no thread and no folder made: matplotlib tries all three."""
    import subprocess
    import tempfile
    import threading

    class Timer:
        daemon = True

        def __init__(self, *args, **kwargs):
            pass

        start = cancel = lambda self: None

    def no_program(*args, **kwargs):
        raise FileNotFoundError("no programs while loading")

    kept = subprocess.check_output, subprocess.Popen, threading.Timer, tempfile.mkdtemp
    subprocess.check_output, subprocess.Popen, threading.Timer = no_program, no_program, Timer
    tempfile.mkdtemp = lambda *args, **kwargs: NOWHERE
    try:
        return work()
    finally:
        subprocess.check_output, subprocess.Popen, threading.Timer, tempfile.mkdtemp = kept


class Unwritten:
    """Instead of matplotlib's lock on its list of fonts: what it writes there, and cannot, is not missed."""

    def __init__(self, path):
        pass

    def __enter__(self):
        pass

    def __exit__(self, kind, error, trace):
        return kind is not None and issubclass(kind, OSError)


def load_lean():
    dynload = next((folder for folder in sys.path if folder.endswith("lib-dynload")), None)
    for name in COMMON:
        load(name, True)
    for name in sorted(extensions(dynload, "")) if dynload else ():
        if name not in SKIPPED:
            load(name, False)
    for name in CODECS:
        importlib.import_module("codecs").lookup(name)
    for name in modules:
        if name not in HEAVY:
            load(name, True)


def load_alone(package):
    """The extension modules of a package, without the package: it is large, and few tasks need it (PDF)."""
    import importlib.util
    for folder in sys.path:
        for name in sorted(extensions(os.path.join(folder, package), package)):
            parent = os.path.join(folder, *name.split(".")[:-1])
            file = next(os.path.join(parent, found) for found in os.listdir(parent)
                        if found.startswith(name.rsplit(".", 1)[-1] + ".") and found.endswith(".so"))
            spec = importlib.util.spec_from_file_location(name, file)
            try:
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
            except Exception:  # it needs its package: then a task is told that it cannot be loaded
                continue
            sys.modules.setdefault(name, module)


def namespace(name):
    """A package of packages, as its .pth file makes it where site is loaded: its own file would load pkg_resources for that."""
    folders = [os.path.join(folder, name) for folder in sys.path if os.path.isdir(os.path.join(folder, name))]
    if folders and name not in sys.modules:
        sys.modules[name] = module = type(sys)(name)
        module.__path__ = folders


def load_full():
    import logging
    for name in ("matplotlib", "PIL", "fontTools"):  # their remarks are for a terminal, not for the task's log
        logging.getLogger(name).addHandler(logging.NullHandler())
    namespace("mpl_toolkits")
    wanted = [name for name in HEAVY if name in modules]
    if "matplotlib" in wanted:
        load("matplotlib.cbook", True)._lock_path = Unwritten
    for name in wanted:
        load(name, True)
    if "numpy" in wanted or "pandas" in wanted:
        for name in ("numpy.random", "numpy.linalg", "numpy.fft", "numpy.polynomial", "numpy.ma"):
            load(name, True)
    if "matplotlib" in wanted:
        import matplotlib
        matplotlib.use("Agg")
        for name in ("matplotlib.pyplot", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg", "matplotlib.dates"):
            load(name, True)
        # Titles in Chinese, Japanese or Korean, where a font for them is installed.
        wide = sorted({font.name for font in matplotlib.font_manager.fontManager.ttflist
                       if any(word in font.name for word in ("CJK SC", "WenQuanYi", "Source Han Sans", "SimHei"))})
        matplotlib.rcParams["font.family"] = ["sans-serif"] + wide[:1]
    if "matplotlib" in wanted:
        load_alone("fontTools")
    for package in HEAVY + ("PIL", "kiwisolver", "contourpy", "dateutil", "pytz"):
        found = sys.modules.get(package)
        if found is None:
            continue
        for folder in getattr(found, "__path__", ()):
            for name in sorted(extensions(folder, package)):
                if not name.rsplit(".", 1)[-1].startswith(("_tk", "_imagingtk", "_macosx", "_umath_tests", "_rational", "_operand",
                                                           "_struct_ufunc", "_multiarray_tests", "_simd")):
                    load(name, False)


def use_lean():
    import calendar, csv, datetime, decimal, hashlib, hmac, io, json, re, statistics, time, zoneinfo  # noqa: E401
    for name in ("md5", "sha1", "sha256", "sha512"):
        hmac.new(b"k", b"m", name).hexdigest()
        hashlib.new(name, b"m").hexdigest()
    for _ in range(10):  # so that the interpreter has specialised what every task runs
        json.loads(json.dumps({"a": [1, 2.5, None, "x\u4e2d"], "b": {"c": True}}, ensure_ascii=False, default=str))
        datetime.datetime.strptime("2024-01-02 03:04:05", "%Y-%m-%d %H:%M:%S").isoformat()
        re.sub(r"(\w+)\s(?P<x>\d{1,3})", r"\2", "abc 12")
        list(csv.DictReader(io.StringIO("a,b\n1,2\n")))
        decimal.Decimal("1.10") + 1
        statistics.mean([1, 2, 3])
    time.localtime()
    calendar.monthrange(2024, 2)
    datetime.datetime(2024, 1, 1).strftime("%Y %B %A")
    try:
        zoneinfo.ZoneInfo("Asia/Shanghai")
    except Exception:  # no zone data installed: a task is told so
        pass


def use_full():
    import io
    if "matplotlib" in sys.modules:
        from matplotlib import pyplot
        for kind in ("png", "svg"):
            figure, axes = pyplot.subplots()
            axes.plot([1, 2, 3], [1, 4, 9], label="a")
            axes.set_title("t")
            axes.legend()
            figure.savefig(io.BytesIO(), format=kind)
            pyplot.close("all")
    if "pandas" in sys.modules:
        import pandas as pd
        for _ in range(3):
            frame = pd.DataFrame({"k": ["a", "b", "a"], "v": [1, 2.5, 3], "d": pd.to_datetime(["2024-01-01"] * 3)})
            frame.groupby("k")["v"].agg(["sum", "mean"]).reset_index().to_dict("records")
            frame.sort_values("v").merge(frame, on="k").describe()
            pd.read_csv(io.StringIO(frame.to_csv(index=False)))
            str(frame)
            frame.pivot_table(index="k", values="v", aggfunc="sum")
        for _ in range(10):
            frame = pd.DataFrame({"k": [i % 3 for i in range(30)], "v": list(range(30))})
            list(frame.groupby("k")["v"].sum())


def forget_machine():
    """What libraries hold of the template's folders and files: a task has its own folders, and of files none that is open."""
    os.environ.update({"HOME": own, "TMPDIR": own, "MPLCONFIGDIR": own + "/matplotlib"})
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].tempdir = own
    if "matplotlib" in sys.modules:
        # A font keeps its file open: the task would read from whatever has that descriptor.
        sys.modules["matplotlib.font_manager"]._get_font.cache_clear()
        for function in (sys.modules["matplotlib"].get_configdir, sys.modules["matplotlib"].get_cachedir):
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
                if name == "called":
                    cell.cell_contents = False


def no_extension(spec, file=None):
    raise ImportError(f"Module '{spec.name}' cannot be loaded in sandbox", name=spec.name)


def run():
    """Everything; then the door is shut: no extension module after this."""
    os.register_at_fork = lambda **hooks: None  # the child is forked in C and reseeded in C
    os.environ.update({"HOME": NOWHERE, "TMPDIR": NOWHERE, "MPLCONFIGDIR": NOWHERE})
    os.chdir("/")  # where libraries look for settings too
    load_lean()
    use_lean()
    if full:
        quietly(load_full)
        quietly(use_full)
    forget_machine()
    sys.modules["_imp"].create_dynamic = no_extension
    importlib.invalidate_caches()
