# SPDX-License-Identifier: Apache-2.0
"""Measures sk-localbox on this machine: python3 bench.py [--bin DIR] [--execs N] [--alive N] [--json].

create -> ready (the answered create plus the first /ping), exec of `true` over HTTP on a kept connection, sandboxes alive
at once with their memory, and growth of memory and descriptors of daemon and init over many exec calls. The peer of create is
a bare bubblewrap start, and of exec a bare `bash -c true`, both in the same run. Exit status 1 when a bar is missed."""
import argparse
import http.client
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/localbox"))
BARS = {"create_ready_p50_ms": 25, "exec_true_p50_ms": 4, "alive": 200}


def p(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


class Client:
    def __init__(self, port, key):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.headers = {"OPEN-SANDBOX-API-KEY": key}

    def call(self, method, path, body=None):
        self.connection.request(method, path, json.dumps(body) if body is not None else None, self.headers)
        answer = self.connection.getresponse()
        return answer.status, answer.read()


def resources(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]), len(os.listdir(f"/proc/{pid}/fd"))


def memory_of(pids):
    """Proportional set size in MiB: shared pages are counted once."""
    total = 0
    for pid in pids:
        try:
            total += int(pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().split("Pss:")[1].split()[0])
        except OSError:
            pass
    return total / 1024


def timed(run):
    begun = time.perf_counter()
    run()
    return (time.perf_counter() - begun) * 1000


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--bin", default=os.environ.get("SANDKEEP_BIN_DIR", str(ROOT / "build/release/bin")))
    arguments.add_argument("--creates", type=int, default=60)
    arguments.add_argument("--execs", type=int, default=10000)
    arguments.add_argument("--alive", type=int, default=200)
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    os.environ["SANDKEEP_BIN_DIR"] = options.bin
    from conftest import KEY, Daemon
    folder = pathlib.Path(tempfile.mkdtemp(prefix="sk-localbox-bench-"))
    daemon = Daemon(folder / "data").start()
    client = Client(daemon.port, KEY)
    body = {"image": {"uri": "bench"}, "entrypoint": ["tail", "-f", "/dev/null"], "resourceLimits": {"cpu": "1", "memory": "512Mi"}}
    out = {}
    try:
        ids = []

        def create():
            status, answer = client.call("POST", "/v1/sandboxes", body)
            assert status == 202, answer
            ids.append(json.loads(answer)["id"])
            assert client.call("GET", f"/sandboxes/{ids[-1]}/proxy/44772/ping")[0] == 200

        times = [timed(create) for _ in range(options.creates)]
        bare = [timed(lambda: subprocess.run(["bwrap", "--unshare-all", "--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
                                              "--proc", "/proc", "--dev", "/dev", "/usr/bin/true"], check=True)) for _ in range(20)]
        out.update(create_ready_p50_ms=p(times, .5), create_ready_p95_ms=p(times, .95), bare_bwrap_p50_ms=p(bare, .5))

        path = f"/sandboxes/{ids[0]}/proxy/44772/command"

        def execute():
            status, answer = client.call("POST", path, {"command": "true"})
            assert status == 200 and b"execution_complete" in answer

        init = daemon.record(ids[0])["initPid"]
        times = []
        for _ in range(2000):  # past the bounded table of finished commands
            times.append(timed(execute))
        bare = [timed(lambda: subprocess.run(["/bin/bash", "--noprofile", "--norc", "-c", "true"], check=True)) for _ in range(200)]
        out.update(exec_true_p50_ms=p(times, .5), exec_true_p95_ms=p(times, .95), bare_bash_p50_ms=p(bare, .5))
        before = {"daemon": resources(daemon.process.pid), "init": resources(init)}
        for _ in range(options.execs):
            execute()
        after = {"daemon": resources(daemon.process.pid), "init": resources(init)}
        for name in before:
            out[f"{name}_rss_growth_kb"] = after[name][0] - before[name][0]
            out[f"{name}_fd_growth"] = after[name][1] - before[name][1]
            out[f"{name}_rss_kb"] = after[name][0]

        while len(ids) < options.alive:
            create()
        alive = sum(client.call("GET", f"/sandboxes/{box}/proxy/44772/ping")[0] == 200 for box in ids)
        inits = [daemon.record(box)["initPid"] for box in ids]
        family = set(inits)
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                parts = pathlib.Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
                if int(parts[1]) in family:  # entrypoints
                    family.add(int(entry))
            except (OSError, IndexError):
                pass
        outer = {int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]) for pid in inits}
        out.update(alive=alive, alive_memory_mib=memory_of(family | outer | {daemon.process.pid}))
        times = [timed(execute) for _ in range(300)]
        out["exec_true_p50_ms_with_all_alive"] = p(times, .5)
        idle = os.times()
        ticks = lambda: sum(map(int, pathlib.Path(f"/proc/{daemon.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))  # noqa: E731
        first = ticks()
        time.sleep(5)
        out["daemon_idle_cpu_percent"] = (ticks() - first) / os.sysconf("SC_CLK_TCK") / 5 * 100
        del idle
        times = [timed(lambda box=box: client.call("DELETE", f"/v1/sandboxes/{box}")) for box in ids]
        out["delete_p50_ms"] = statistics.median(times)
    finally:
        daemon.close()
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        print(json.dumps(out))
    else:
        for name, value in out.items():
            bar = BARS.get(name)
            print(f"{name:36} {value:10.2f}" + (f"   bar {bar}" if bar else ""))
    missed = [name for name in ("create_ready_p50_ms", "exec_true_p50_ms") if out[name] > BARS[name]]
    missed += ["alive"] if out["alive"] < options.alive else []
    missed += [name for name in out if name.endswith("fd_growth") and out[name] > 0]
    missed += [name for name in out if name.endswith("rss_growth_kb") and out[name] > 512]
    if missed:
        print("missed: " + ", ".join(missed), file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
