# SPDX-License-Identifier: Apache-2.0
"""Many tasks through one sk-code, and whether its own processes stay as they are: resident memory and open descriptors of
launcher, host, templates and zygotes, looked at between rounds when nothing runs. `run()` gives a report; its `faults` are
what is wrong, as texts. Driven by tests/code/soak and by a short test."""
import collections
import contextlib
import http.client
import json
import os
import pathlib
import random
import threading
import time

from code_server import status_bytes

GROWTH_KIB = 2048       # over all counted rounds together, by the slope: a leak of 10 bytes a task is 2 MiB in 200,000
NOISE_KIB = 512         # what a short run may show of caches that fill
WARM_SHARE = 0.25       # rounds that do not count: caches and pools fill
CLIENTS = 8

JS = "function main(v) { const a = []; for (let i = 0; i < 100; i++) a.push({ i, t: 'x' + i }); console.log(v.n); return { n: v.n, sum: a.length } }"
PYTHON = "import json\ndef main(n):\n    print(n)\n    return {'n': n, 'sum': len(json.dumps([{'i': i} for i in range(100)]))}\n"
# share per 1,000, language, code, members of the request, how it ends
MIX = (
    (540, "js", JS, {}, None),
    (382, "python", PYTHON, {}, None),
    (20, "python", "import numpy\ndef main(n):\n    return {'n': n, 'sum': float(numpy.arange(100).sum())}\n", {}, None),
    (10, "js", "function main() { throw new TypeError('mine') }", {}, "error"),
    (10, "python", "def main():\n    return open('/etc/passwd').read()\n", {}, "error"),
    (10, "js", "async function main() { await httpRequest('http://127.0.0.1/') }", {}, "error"),
    (10, "python", "def main():\n    http_request('http://169.254.169.254/')\n", {}, "error"),
    (5, "python", "import platform\ndef main():\n    platform.os._exit(3)\n", {}, "crashed"),
    (4, "js", "function main() { for (;;); }", {"timeoutMs": 20}, "timeout"),
    (4, "python", "def main():\n    while 1: pass\n", {"timeoutMs": 20}, "timeout"),
    (3, "python", "def main():\n    with open('x', 'w') as f: f.write('x' * 100000)\n    return {'n': 1}\n", {}, None),
    (1, "python", "def main():\n    return 'x' * 2 ** 31\n", {}, "memory"),
    (1, "js", "function main() { return 'x'.repeat(11000000) }", {}, "output"),
)


class Series:
    """One process's figures, round by round."""

    def __init__(self, name):
        self.name, self.points, self.descriptors, self.pids = name, [], [], set()

    def add(self, tasks, pid):
        self.pids.add(pid)
        self.points.append((tasks, status_bytes(pid, "VmRSS") / 1024))
        self.descriptors.append(self._open(pid))

    def _open(self, pid):
        """Open descriptors; what is more than the first time has a second to go: connections of ours that we just closed."""
        deadline = time.monotonic() + 1
        while True:
            count = len(os.listdir(f"/proc/{pid}/fd"))
            if not self.descriptors or count <= min(self.descriptors) or time.monotonic() > deadline:
                return count
            time.sleep(0.01)

    def slope(self):
        """KiB of resident memory per task: least squares over the rounds that count."""
        counted = self.counted()
        x, y = [p[0] for p in counted], [p[1] for p in counted]
        middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
        below = sum((a - middle_x) ** 2 for a in x)
        return sum((a - middle_x) * (b - middle_y) for a, b in counted) / below if below else 0.0

    def counted(self):
        return self.points[int(len(self.points) * WARM_SHARE):]

    def growth(self):
        counted = self.counted()
        return self.slope() * (counted[-1][0] - counted[0][0])

    def line(self):
        return (f"{self.name:<22}{self.points[0][1]:>10.0f}{self.points[-1][1]:>10.0f}{self.slope() * 1000:>14.3f}{self.growth():>12.0f}"
                f"{min(self.descriptors):>8}{max(self.descriptors):>6}{len(self.pids):>6}")


class Report:
    def __init__(self, tasks, limit):
        self.tasks, self.limit, self.seconds = tasks, limit, 0.0
        self.series, self.ends, self.wrong = {}, collections.Counter(), []

    @property
    def faults(self):
        faults = [f"{len(self.wrong)} tasks ended otherwise than they should, the first: {self.wrong[0]}"] if self.wrong else []
        if sum(self.ends.values()) != self.tasks:
            faults.append(f"{sum(self.ends.values())} answers to {self.tasks} tasks")
        for one in self.series.values():
            if len(one.pids) == 1 and one.growth() > self.limit:  # a template that was renewed begins anew
                faults.append(f"{one.name} grows: {one.growth():.0f} KiB, {self.limit:.0f} are allowed")
            counted = one.descriptors[int(len(one.descriptors) * WARM_SHARE):]
            if len(one.pids) == 1 and min(counted) != max(counted):
                faults.append(f"{one.name} has {min(counted)} to {max(counted)} descriptors")
        return faults

    def text(self):
        head = f"{'process':<22}{'RSS KiB':>10}{'last':>10}{'KiB/1000 tasks':>14}{'growth KiB':>12}{'fds':>8}{'max':>6}{'pids':>6}"
        ends = ", ".join(f"{name} {count}" for name, count in self.ends.most_common())
        return "\n".join([head, *(one.line() for one in self.series.values()),
                          f"{self.tasks} tasks in {self.seconds:.0f} s = {self.tasks / self.seconds:.0f}/s; {ends}"])


def process_names(server):
    """{name: pid} of launcher, host, templates and zygotes, those with their kind."""
    found = {}
    for pid, kind in server.children():
        if kind in ("template", "zygote"):
            with contextlib.suppress(OSError):
                maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
                kind += " js" if "libjavascriptcore" in maps else " python-full" if "_multiarray_umath" in maps else " python"
        if kind != "task":
            found[kind] = pid
    return found


def _round(server, report, jobs):
    lock = threading.Lock()

    def client():
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        while True:
            with lock:
                n, (_, language, code, members, expected) = next(jobs, (None, (None,) * 5))
            if n is None:
                connection.close()
                return
            body = json.dumps({"code": code, "variables": {"n": n}, "queueId": f"team-{n % 5}", **members})
            connection.request("POST", f"/sandbox/{language}", body, server.authorization())
            answer = json.loads(connection.getresponse().read())
            end = None if answer["success"] else (answer.get("data") or {}).get("error", {}).get("code", answer.get("message"))
            with lock:
                report.ends[end or "done"] += 1
                if end != expected or (answer["success"] and "sum" in answer["data"]["codeReturn"] and answer["data"]["codeReturn"]["n"] != n):
                    report.wrong.append((language, code[:60], answer))
    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run(server, tasks, rounds=20, seed=1, say=lambda text: None):
    report = Report(tasks, max(NOISE_KIB, GROWTH_KIB * min(1, tasks / 200_000)))
    order = random.Random(seed)
    kinds = order.choices(MIX, [row[0] for row in MIX], k=tasks)
    begin = time.monotonic()
    for number in range(rounds):
        first, last = tasks * number // rounds, tasks * (number + 1) // rounds
        _round(server, report, iter([(n, kinds[n]) for n in range(first, last)]))
        server.wait_idle()
        for name, pid in process_names(server).items():
            report.series.setdefault(name, Series(name)).add(last, pid)
        say(f"{last} tasks after {time.monotonic() - begin:.0f} s, host {report.series['host'].points[-1][1]:.0f} KiB")
    report.seconds = time.monotonic() - begin
    return report
