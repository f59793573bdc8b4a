# SPDX-License-Identifier: Apache-2.0
"""The fixed peer of the code sandbox (docs/benchmarks.md): a stock of pre-warmed one-shot node or python3 processes with the
listed imports, four tasks at a time, each process killed and replaced after its one task, as FastGPT's own sandbox of today
works. It is driven in this process, without HTTP, without walls, and only the workers' own processor time is counted: all
that it leaves out is in its favour.

    peer.py js|python|pandas [--seconds N]      prints one JSON object
"""
import argparse
import json
import os
import pathlib
import queue
import resource
import select
import signal
import subprocess
import sys
import threading
import time

FOLDER = pathlib.Path(__file__).resolve().parent
STOCK = 4        # warm processes that wait
CONCURRENCY = 4  # tasks at the same time
WAIT_SECONDS = 60

JS_MODULES = "lodash,dayjs,moment,uuid,crypto-js,qs,url,querystring"
PYTHON_MODULES = ("math,cmath,decimal,fractions,random,statistics,collections,array,heapq,bisect,queue,copy,itertools,functools,operator,"
                  "string,re,difflib,textwrap,unicodedata,codecs,datetime,time,calendar,_strptime,json,csv,base64,binascii,struct,hashlib,hmac,"
                  "secrets,uuid,typing,abc,enum,dataclasses,contextlib,pprint,weakref")
PYTHON_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "TMPDIR": "/tmp", "PYTHONDONTWRITEBYTECODE": "1", "MPLCONFIGDIR": "/tmp/matplotlib",
                      "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NUMEXPR_NUM_THREADS": "1"}


def command(kind, node_modules):
    """Arguments and environment of one worker. `pandas` loads numpy and pandas before, which is what its task needs; the lean one
    loads neither, as ours."""
    if kind == "js":
        return (["node", str(FOLDER / "worker.js"), JS_MODULES],
                {"PATH": os.environ["PATH"], "NODE_PATH": str(node_modules)})
    modules = PYTHON_MODULES + (",numpy,pandas" if kind == "pandas" else "")
    return ["/usr/bin/python3", "-u", str(FOLDER / "worker.py"), modules], PYTHON_ENVIRONMENT


class Worker:
    def __init__(self, arguments, environment):
        self.popen = subprocess.Popen(arguments, env=environment, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self.buffer = b""

    def line(self):
        while b"\n" not in self.buffer:
            if not select.select([self.popen.stdout], [], [], WAIT_SECONDS)[0]:
                raise RuntimeError("a worker does not answer")
            piece = os.read(self.popen.stdout.fileno(), 1 << 16)
            if not piece:
                raise RuntimeError("a worker ended without an answer")
            self.buffer += piece
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def warm(self):
        if self.line() != b"ready":
            raise RuntimeError("a worker did not start")
        return self

    def run(self, task):
        self.popen.stdin.write(task)
        return json.loads(self.line())

    def end(self):
        """Kills it; its processor time in seconds."""
        os.kill(self.popen.pid, signal.SIGKILL)  # not send_signal(), which may reap it unseen
        _, status, usage = os.wait4(self.popen.pid, 0)
        self.popen.returncode = os.waitstatus_to_exitcode(status)
        self.popen.stdin.close()
        self.popen.stdout.close()
        return usage.ru_utime + usage.ru_stime


class Peer:
    """`run(task)` may be called by CONCURRENCY threads."""

    def __init__(self, kind, node_modules=None):
        self.command = command(kind, node_modules)
        self.stock, self.lock, self.cpu, self.tasks = queue.Queue(), threading.Lock(), 0.0, 0
        for _ in range(STOCK):
            self.add()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        while not self.stock.empty():
            self.stock.get().end()

    def add(self):
        self.stock.put(Worker(*self.command))

    def run(self, task):
        worker = self.stock.get().warm()
        try:
            return worker.run(task)
        finally:
            used = worker.end()
            self.add()
            with self.lock:
                self.cpu += used
                self.tasks += 1


def body(code, variables=None):
    return json.dumps({"code": code, "variables": variables or {}}).encode() + b"\n"


def measure(kind, code, seconds, node_modules=None, expect=None, warm_up=2.0):
    """{perSecond, cpuMs, tasks} of a closed load of CONCURRENCY clients."""
    task = body(code)
    with Peer(kind, node_modules) as peer:
        started = time.monotonic()
        ends = started + warm_up + seconds
        wrong = []

        def client():
            try:
                while time.monotonic() < ends:
                    answer = peer.run(task)
                    if not answer["success"] or (expect is not None and answer["data"]["codeReturn"] != expect):
                        raise RuntimeError(f"unexpected answer: {str(answer)[:300]}")
            except (RuntimeError, OSError) as error:
                wrong.append(error)

        threads = [threading.Thread(target=client) for _ in range(CONCURRENCY)]
        for thread in threads:
            thread.start()
        time.sleep(warm_up)
        own = resource.getrusage(resource.RUSAGE_SELF)
        cpu, tasks, begun = peer.cpu, peer.tasks, time.monotonic()
        time.sleep(max(0.0, ends - time.monotonic()))
        cpu, tasks, passed = peer.cpu - cpu, peer.tasks - tasks, time.monotonic() - begun
        after = resource.getrusage(resource.RUSAGE_SELF)
        for thread in threads:
            thread.join()
        if wrong:
            raise wrong[0]
    used = after.ru_utime + after.ru_stime - own.ru_utime - own.ru_stime
    return {"perSecond": tasks / passed, "cpuMs": cpu * 1e3 / tasks, "tasks": tasks, "driverCpuMs": used * 1e3 / tasks}


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("kind", choices=("js", "python", "pandas"))
    arguments.add_argument("--seconds", type=float, default=10)
    arguments.add_argument("--node-modules", type=pathlib.Path)
    options = arguments.parse_args()
    sys.path.insert(0, str(FOLDER.parent / "code"))
    import shapes
    print(json.dumps(measure(options.kind, shapes.TRIVIAL[options.kind], options.seconds, options.node_modules)))


if __name__ == "__main__":
    main()
