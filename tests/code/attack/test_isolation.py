# SPDX-License-Identifier: Apache-2.0
"""Nothing of one task is seen by another, before it, beside it or after it: 10,000 tasks of all kinds at once, each of which
leaves marks wherever it can and looks for those of others. SANDKEEP_CODE_TASKS sets another number."""
import collections
import concurrent.futures
import http.client
import json
import os
import random
import threading

import pytest
from code_server import CodeServer
from waiting import eventually
from table import RAW_PRELUDE, need_full

TASKS = int(os.environ.get("SANDKEEP_CODE_TASKS", "10000"))
THREADS = 8

JS = """
const seen = [];
const look = (what, value) => { if (value !== undefined) seen.push(what + ' ' + String(value)) };
const marked = [Array.prototype, Object.prototype, Function.prototype, String.prototype, Promise.prototype, JSON, Math, Symbol, console, Buffer, Error, Map.prototype, Intl, Date];
async function main({ mark }) {
    look('array prototype', [].leak); look('object prototype', ({}).leak); look('function prototype', (() => 1).leak); look('string prototype', ''.leak);
    look('promise prototype', Promise.resolve().leak); look('JSON', JSON.leak); look('Math', Math.leak); look('symbol', Symbol.leak);
    look('console', console.leak); look('process', process.leak); look('helper', SystemHelper.leak); look('buffer', Buffer.leak); look('error', Error.leak);
    look('stack limit', Error.stackTraceLimit === 7 ? 7 : undefined); look('regexp', RegExp.$1 === '' ? undefined : RegExp.$1);
    look('map', Map.prototype.leak); look('intl', Intl.leak); look('date', Date.leak); look('stringify', /native/.test(String(JSON.stringify)) ? undefined : 1);
    try { look('bare name', leak) } catch (error) { look('wrong error', error instanceof ReferenceError ? undefined : error) }
    const left = [], random = [String(Math.random())], bytes = new Uint8Array(8);
    MODULES
    for (const o of marked) try { Object.defineProperty(o, 'leak', { value: mark, enumerable: false, configurable: true }) } catch (error) {}
    /(mark.*)/.exec('mark' + mark); Error.stackTraceLimit = 7;
    try { JSON.stringify = () => mark } catch (error) {}
    setTimeout(() => console.log(mark), 1e6);
    setInterval(() => console.log('late ' + mark), 1);
    console.log(mark);
    crypto.getRandomValues(bytes);
    left.push([].leak, ({}).leak, Math.leak, RegExp.$1);
    return { mark, left, seen, random: [...random, [...bytes].join()] }
}
"""
MODULES = """
    const lodash = require('lodash'), moment = require('moment'), dayjs = require('dayjs'), { lib } = require('crypto-js'), { formats } = require('qs');
    look('lodash', lodash.leak); look('lodash setting', lodash.templateSettings.leak); look('moment', moment.locale() === 'en' ? undefined : 'fr');
    look('dayjs locale', dayjs.locale() === 'en' ? undefined : 'xx'); look('crypto', lib.leak); look('qs', formats.leak);
    moment.locale('fr'); dayjs.locale({ name: 'xx' }, null, true); dayjs.locale('xx');
    marked.push(lodash.templateSettings, lib, formats);
    left.push(moment.locale(), dayjs.locale());
    random.push(require('uuid').v4(), String(lodash.random(0, 1, true)), String(lib.WordArray.random(8)));
"""
PYTHON = """
import builtins, collections, copy, datetime, decimal, json, locale, math, platform, random, re, secrets, string, time, uuid
os, sys = platform.os, platform.sys
seen = []
def look(what, thing):
    if getattr(thing, 'leak', None) is not None:
        seen.append(what)
def main(mark):
    born = time.monotonic()
    for module in (builtins, collections, copy, datetime, decimal, json, math, platform, random, re, string, time, uuid, os, sys):
        look(module.__name__, module)
        try:
            module.leak = mark
        except Exception:
            pass
    if decimal.getcontext().prec != 28: seen.append('decimal')
    decimal.getcontext().prec = 7
    if 'LEAK' in os.environ: seen.append('environment')
    os.environ['LEAK'] = mark
    if 'leak' in sys.modules: seen.append('sys.modules')
    sys.modules['leak'] = sys
    if json.loads('1') != 1: seen.append('json')
    json.loads = lambda text: 2
    if sys.getrecursionlimit() == 777: seen.append('recursion')
    sys.setrecursionlimit(777)
    own = os.listdir(task_tmpdir)
    if own: seen.append('files ' + repr(own))
    with open('mark', 'w') as f: f.write(mark)
    for folder in ('/tmp', '/', '/dev/shm', '/var/tmp'):
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            try:
                if os.stat(folder + '/' + name + '/mark').st_uid != os.getuid(): seen.append('file of another ' + name)
            except OSError:
                pass
    for pid in range(1, 60):
        try:
            os.getpgid(pid) and seen.append('process')
        except OSError:
            pass
    if 'previous' in builtins.__dict__.get('leaks', ''): seen.append('builtins')
    print(mark)
    numbers = [repr(random.random()), str(uuid.uuid4()), secrets.token_hex(8), repr(random.Random().random()), os.urandom(8).hex()]
    FULL
    time.sleep(random.random() / 500)
    left = [json.leak, os.environ['LEAK'], decimal.getcontext().prec, sys.getrecursionlimit(), open('mark').read()]
    return {'mark': mark, 'left': left, 'seen': seen, 'random': numbers, 'uid': os.getuid(), 'born': born, 'died': time.monotonic()}
"""
FULL = """
    import numpy, pandas, matplotlib
    for module in (numpy, pandas, matplotlib): look(module.__name__, module)
    numpy.leak = pandas.leak = matplotlib.leak = mark
    if numpy.geterr()['divide'] != 'warn' or pandas.get_option('display.width') == 7 or matplotlib.rcParams['lines.linewidth'] == 7: seen.append('options')
    numpy.seterr(divide='raise'); pandas.set_option('display.width', 7); matplotlib.rcParams['lines.linewidth'] = 7
    numbers += [repr(numpy.random.rand()), repr(numpy.random.default_rng().random())]
"""
# code, how often of 100, and what it must have left behind for itself, which shows that the marks are real
KINDS = (
    ("js", JS.replace("MODULES", ""), 40, lambda mark: [mark, mark, mark, "mark" + mark]),
    ("js", JS.replace("MODULES", MODULES), 15, lambda mark: ["fr", "xx", mark, mark, mark, "mark" + mark]),
    ("python", PYTHON.replace("FULL", "pass"), 40, lambda mark: [mark, mark, 7, 777, mark]),
    ("python", PYTHON.replace("FULL", FULL.strip()), 5, lambda mark: [mark, mark, 7, 777, mark]),
)


@pytest.fixture(scope="module")
def server():
    with CodeServer({"SANDBOX_POOL_SIZE": 4, "SANDKEEP_LOG_LEVEL": "warn"}) as running:
        need_full(running)
        yield running


def run_all(server, plan):
    """[(mark, log, codeReturn)] of (kind, mark) in `plan`, run by THREADS clients that keep their connections."""
    answers, lock = [], threading.Lock()
    jobs = iter(plan)

    def client():
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        while True:
            with lock:
                job = next(jobs, None)
            if job is None:
                connection.close()
                return
            language, code, *_ = KINDS[job[0]]
            connection.request("POST", f"/sandbox/{language}", json.dumps({"code": code, "variables": {"mark": job[1]}, "queueId": f"team-{len(job[1]) % 3}"}), server.authorization())
            body = json.loads(connection.getresponse().read())
            assert body["success"], (job, body)
            with lock:
                answers.append((job[0], job[1], body["data"]["log"], body["data"]["codeReturn"]))
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        for running in [pool.submit(client) for _ in range(THREADS)]:
            running.result()
    return answers


def test_nothing_is_seen_by_another(server):
    order = random.Random(7)
    plan = [(order.choices(range(len(KINDS)), [share for *_, share, _ in KINDS])[0], f"mark-{n}-{order.getrandbits(40):x}") for n in range(TASKS)]
    answers = run_all(server, plan)
    assert len(answers) == TASKS
    randoms, lives = collections.Counter(), collections.defaultdict(list)
    for kind, mark, log, value in answers:
        assert value["mark"] == mark and value["seen"] == [], (kind, mark, value)
        assert log.split("\n") == [mark], (kind, log)
        assert value["left"] == KINDS[kind][3](mark), value["left"]
        randoms.update(value["random"])
        if "uid" in value:
            lives[value["uid"]].append((value["born"], value["died"]))
    assert [text for text, count in randoms.items() if count > 1] == []
    for uid, spans in lives.items():
        spans.sort()
        assert all(before[1] <= after[0] for before, after in zip(spans, spans[1:])), f"two tasks were {uid} at the same time"
    assert len(lives) >= 4
    server.wait_idle()


def test_no_secret_of_the_service_is_in_a_template_or_zygote(server):
    """Neither the token nor the environment of the service is anywhere in the memory that tasks are forked from."""
    needle, looked = server.token.encode(), 0
    for pid, kind in server.children():
        if kind not in ("template", "zygote"):
            continue
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
            for line in maps:
                span, rights, *_ = line.split()
                if "r" not in rights or "[v" in line:
                    continue
                begin, end = (int(edge, 16) for edge in span.split("-"))
                while begin < end:  # JavaScriptCore reserves gigabytes: what was never touched reads as an error or zeros
                    size = min(end - begin, 64 << 20)
                    if end - begin > 1 << 30:
                        break
                    memory.seek(begin)
                    try:
                        assert needle not in memory.read(size), f"the token is in {kind} {pid}: {line}"
                    except OSError:
                        break
                    looked += size
                    begin += size
    assert looked > 20 << 20


def test_the_environment_of_templates_is_their_own(server):
    for pid, kind in server.children():
        if kind in ("template", "zygote"):
            with open(f"/proc/{pid}/environ", "rb") as file:
                assert server.token.encode() not in file.read()


def test_a_sibling_is_out_of_reach(server):
    """A task that makes any system call it likes, beside one that has a secret in its memory and in its files."""
    victim = """import time
def main(secret):
    kept = [secret + str(i) for i in range(1000)]
    with open('secret', 'w') as f: f.write(secret)
    end = time.monotonic() + 1.5
    while time.monotonic() < end: pass
    return [kept[999] == secret + '999', open('secret').read() == secret]
"""
    attacker = RAW_PRELUDE + """
def main():
    answers = set()
    local, remote = buffer(bytes(32)), buffer(bytes(32))
    for pid in range(1, 400):
        if pid == raw(39)[0]:
            continue
        for number, *arguments in ((62, pid, 9), (62, pid, 0), (62, -pid, 9), (200, pid, 9), (234, pid, pid, 9), (101, 16, pid), (310, pid, local, 1, remote, 1), (311, pid, local, 1, remote, 1),
                                   (434, pid, 0), (302, pid, 7, 0, local), (141, 0, pid, 19), (203, pid, 8, local), (279, pid, 0, 0, 0, 0), (274, pid, local, local), (129, pid, 9, local)):
            answers.add(attempt(number, *arguments))
        for name in ("mem", "maps", "environ", "fd/4", "exe", "cwd/secret"):
            answers.add(attempt(257, -100, buffer(f"/proc/{pid}/{name}".encode()), 0))
    import platform
    os, found = platform.os, []
    for folder in ("/tmp", "..", "/tmp/..", "/dev/shm", "/proc/1/cwd/tmp"):
        fd = raw(257, -100, buffer(folder.encode()), 0x10000)[0]
        if fd >= 0:
            block = buffer(size=32768)
            n = raw(217, fd, block, 32768)[0]
            found.append(b"secret" in (text(block, n) if n > 0 else b""))
    return [sorted(answers), found]
"""
    results = []
    victims = [threading.Thread(target=lambda: results.append(server.value("python", victim, {"secret": "s3cret-value"}))) for _ in range(2)]
    for thread in victims:
        thread.start()
    eventually(lambda: len(server.tasks()) == 2)
    answers, found = server.value("python", attacker)
    assert set(answers) <= {"EPERM", "ENOENT"} and not any(found), (answers, found)
    for thread in victims:
        thread.join()
    assert results == [[True, True]] * 2


def shared_memory_kib():
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Shmem:"))


def test_files_of_tasks_are_gone_with_them(server):
    """Their /tmp is memory: 60 tasks fill it, as far as they may, by 900 MB in all."""
    code = "def main():\n    n = 0\n    try:\n        with open('big', 'wb', 0) as f:\n            while 1: n += f.write(b'x' * 65536)\n    except OSError:\n        return n\n"
    before = shared_memory_kib()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        filled = list(pool.map(lambda _: server.value("python", code), range(60)))
    server.wait_idle()
    assert all(15 << 20 <= n <= 16 << 20 for n in filled), filled
    eventually(lambda: shared_memory_kib() - before < 128 << 10, 30)  # others have such memory too


def test_half_requests_hold_no_more_than_the_budget():
    """Tasks that announce the largest frame there may be and send all of it but its end: the host holds at most its budget
    of 256 MiB for all of them, and nothing afterwards."""
    code = """import platform, stat, time
os = platform.os
def main():
    line = [fd for fd in range(3, 256) if exists(fd) and stat.S_ISSOCK(os.fstat(fd).st_mode)][0]
    os.write(line, (30 << 20).to_bytes(4, 'little'))
    sent, block = 0, b' ' * 65536
    while sent < 29 << 20:
        sent += os.write(line, block)
    time.sleep(3)
    return sent
def exists(fd):
    try:
        return os.fstat(fd) is not None
    except OSError:
        return False
"""
    with CodeServer({"SANDBOX_POOL_SIZE": 12}) as server:
        need_full(server)
        server.value("python", "def main():\n    return 1\n")
        before, peak, ended = server.memory(), [0], threading.Event()

        def watch():
            while not ended.wait(0.01):
                peak[0] = max(peak[0], server.memory())
        watcher = threading.Thread(target=watch)
        watcher.start()
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(lambda _: server.run("python", code, timeoutMs=9000), range(12)))
        ended.set()
        watcher.join()
        assert all(body["success"] or body["data"]["error"]["code"] == "timeout" for _, body in answers), answers
        assert 200 << 20 < peak[0] - before < 360 << 20, (before, peak)  # a buffer that grows is there twice for a moment
        eventually(lambda: server.memory() - before < 32 << 20, 5, lambda: f"{server.memory()} after {before}")
        server.wait_idle()
