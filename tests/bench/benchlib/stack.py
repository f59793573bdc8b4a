# SPDX-License-Identifier: Apache-2.0
"""The servers of a benchmark, in a folder and on ports of their own: Mongo-wire server, NATS, Redis, a provider that
answers at once, and sk-lifecycle from the release build. Standard library only. Everything that was started is ended."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[3]
SECANTUS_VERSION = "0.7.0b3"
SECANTUS_FAST_VERSION = "0.5.3-beta.193"
SERVERS = {"fast": "secantusd-rs (fast twin)", "embedded": "secantusd-py (embedded)", "other": "SANDKEEP_MONGODB_URI"}
# docs and deploy/local/README.md: the documented fast profile.
FAST_PROFILE = {
    "SANDKEEP_LIFECYCLE_HEARTBEAT_MS": "500", "SANDKEEP_LIFECYCLE_LEASE_TTL_MS": "1500", "SANDKEEP_LIFECYCLE_LEASE_RENEW_MS": "400",
    "SANDKEEP_LIFECYCLE_TAKEOVER_MS": "3000", "SANDKEEP_LIFECYCLE_STALE_SWEEP_MS": "500",
    "SANDKEEP_NATS_ACK_WAIT_MS": "4000", "SANDKEEP_LIFECYCLE_IN_PROGRESS_MS": "1000",
}


def bin_dir():
    return pathlib.Path(os.environ.get("SANDKEEP_BIN_DIR", ROOT / "build/release/bin"))


def tools_dir():
    if os.environ.get("SANDKEEP_TOOLS_DIR"):
        return pathlib.Path(os.environ["SANDKEEP_TOOLS_DIR"])
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "sandkeep" / "tools"


def program(name):
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin")
    if not found:
        raise SystemExit(f"{name} is not installed: run make install-deps")
    return found


def has_fast():
    return (tools_dir() / f"secantus-mdb-{SECANTUS_FAST_VERSION}" / "bin" / "secantusd-rs").exists()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(check, seconds, what, pause=0.005):
    """The first true value of check()."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = check()
        if value:
            return value
        time.sleep(pause)
    raise SystemExit(f"{what} within {seconds} s: it did not happen")


def port_open(port):
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def http_get(url, seconds=10):
    with urllib.request.urlopen(url, timeout=seconds) as answer:
        return answer.status, answer.read().decode()


class Process:
    """One server. `cpu_us`, `rss_kib` look at /proc."""

    def __init__(self, name, command, log, environment=None):
        self.name, self.log, self.started = name, log, time.monotonic()
        with open(log, "ab") as out:
            self.popen = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment,
                                          start_new_session=True)

    @property
    def pid(self):
        return self.popen.pid

    def cpu_us(self):
        """User and system time in microseconds, in whole ticks (10 ms), of threads that have ended too."""
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * 1e6 / os.sysconf("SC_CLK_TCK")

    def rss_kib(self):
        return int(pathlib.Path(f"/proc/{self.pid}/status").read_text().split("VmRSS:")[1].split()[0])

    def alive(self):
        return self.popen.poll() is None

    def stop(self, how=signal.SIGTERM, seconds=20):
        if self.alive():
            self.popen.send_signal(how)
            try:
                self.popen.wait(seconds)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait(10)
        return self.popen.returncode

    def tail(self, lines=8):
        return "\n".join(pathlib.Path(self.log).read_text(errors="replace").splitlines()[-lines:])


class Replica(Process):
    """One sk-lifecycle; `metrics` reads its admin listener."""

    def __init__(self, site, name, program="sk-lifecycle", **settings):
        self.port = free_port()
        environment = {
            "PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"),
            "SANDKEEP_NATS_URL": site.nats_url, "SANDKEEP_MONGODB_URI": site.mongo_uri, "SANDKEEP_REDIS_URL": site.redis_url,
            "SANDKEEP_SOURCE_CHECK": "off", "AGENT_SANDBOX_PROVIDER": "opensandbox", "AGENT_SANDBOX_OPENSANDBOX_BASEURL": site.provider_url,
            "AGENT_SANDBOX_OPENSANDBOX_API_KEY": "bench", "AGENT_SANDBOX_OPENSANDBOX_IMAGE": "bench/instant:1",
            "AGENT_SANDBOX_OPENSANDBOX_VOLUME_MANAGER_URL": site.provider_url, "AGENT_SANDBOX_OPENSANDBOX_VOLUME_MANAGER_TOKEN": "bench",
            "SANDKEEP_LIFECYCLE_ADMIN_LISTEN": f"127.0.0.1:{self.port}", **{key: str(value) for key, value in settings.items()},
        }
        super().__init__(name, [bin_dir() / program], site.folder / f"{name}.log", environment)

    def is_ready(self):
        with contextlib.suppress(OSError):
            return http_get(f"http://127.0.0.1:{self.port}/readyz", 2)[0] == 200
        return False

    def ready(self, seconds=30):
        wait_for(lambda: not self.alive() or self.is_ready(), seconds, f"{self.name} ready")
        if not self.alive():
            raise SystemExit(f"{self.name} ended:\n{self.tail()}")
        return self

    def metrics(self):
        """{name{labels}: value} of the Prometheus text."""
        out = {}
        for line in http_get(f"http://127.0.0.1:{self.port}/metrics")[1].splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                out[name] = float(value)
        return out


def growth(before, after, prefix, labels=""):
    """How much all series of that name have grown."""
    return sum(value - before.get(name, 0) for name, value in after.items()
               if (name == prefix or name.startswith(prefix + "{")) and labels in name)


def histogram_share(before, after, name, limit):
    """The share of the observations between two readings that were at most `limit` (a bucket's bound); None = none."""
    buckets = {}
    for series in after:
        if series.startswith(name + "_bucket{"):
            bound = series.split('le="')[1].split('"')[0]
            buckets[bound] = buckets.get(bound, 0) + after[series] - before.get(series, 0)
    within = [value for bound, value in buckets.items() if bound != "+Inf" and abs(float(bound) - limit) < 1e-9]
    return within[0] / buckets["+Inf"] if within and buckets.get("+Inf") else None


class Site:
    """Back ends and replicas. `mongo`: fast, embedded, or auto (fast when it is in the tools cache)."""

    def __init__(self, mongo="auto", sync=True):
        if mongo == "auto":
            mongo = "fast" if has_fast() else "embedded"
        self.kind, self.sync = mongo, sync
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="sk-bench-", dir=os.environ.get("SANDKEEP_BENCH_DIR")))
        self.processes, self.count = [], 0
        self.tag = f"{os.getpid():x}"

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for process in reversed(self.processes):
            process.stop(seconds=30)
        if os.environ.get("SANDKEEP_BENCH_KEEP"):
            print(f"kept: {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)

    def add(self, process):
        self.processes.append(process)
        return process

    def run(self, name, command):
        return self.add(Process(name, command, self.folder / f"{name}.log"))

    def _mongo(self):
        port, data = free_port(), self.folder / "mongo"
        if self.kind == "fast":
            start, extra = [tools_dir() / f"secantus-mdb-{SECANTUS_FAST_VERSION}" / "bin" / "secantusd-rs"], ["--cache-size", "256M"]
        else:
            venv = tools_dir() / f"secantusdb-{SECANTUS_VERSION}" / "bin"
            start, extra = [venv / "python", venv / "secantusd-py"], []
        self.mongo = self.run("mongo", [*start, *(["--sync-on-commit"] if self.sync else []), "--host", "127.0.0.1", "--port", port,
                                        "--storage-path", data, "--log-level", "WARNING", *extra])
        self.mongo_uri = f"mongodb://127.0.0.1:{port}/fastgpt"
        return port

    def _start(self):
        mongo = self._mongo()
        nats, redis = free_port(), free_port()
        self.nats = self.run("nats", [program("nats-server"), "-a", "127.0.0.1", "-p", nats, "-js", "-sd", self.folder / "jetstream"])
        self.redis = self.run("redis", [program("redis-server"), "--bind", "127.0.0.1", "--port", redis, "--save", "", "--appendonly", "no",
                                        "--dir", self.folder])
        self.nats_url, self.redis_url = f"nats://127.0.0.1:{nats}", f"redis://127.0.0.1:{redis}"
        provider = free_port()
        self.provider = self.run("provider", [bin_dir() / "sk-bench-provider", provider])
        self.provider_url = f"http://127.0.0.1:{provider}"
        for port in (mongo, nats, redis, provider):
            wait_for(lambda: port_open(port), 60, "servers start", 0.02)

    def replica(self, seconds=30, program="sk-lifecycle", **settings):
        self.count += 1
        return self.add(Replica(self, f"lifecycle-{self.count}", program, **settings)).ready(seconds)

    def load_command(self, load, **options):
        options = {"mongo": self.mongo_uri, "nats": self.nats_url, **options}
        out = [str(bin_dir() / "sk-bench-load"), load]
        for name, value in options.items():
            if value is True:
                out.append(f"--{name}")
            elif value is not None:
                out.append(f"--{name.replace('_', '-')}={value}")
        return out

    def load(self, load, check=True, **options):
        """Runs one load to its end; its JSON."""
        done = subprocess.run(self.load_command(load, **options), capture_output=True, text=True, timeout=600, check=False)
        if check and done.returncode != 0:
            raise SystemExit(f"{load} failed: {done.stdout} {done.stderr}")
        return json.loads(done.stdout)

    def start_load(self, load, **options):
        return subprocess.Popen(self.load_command(load, **options), stdout=subprocess.PIPE, text=True)

    def delay(self, ms, sandbox=None):
        http_get(f"{self.provider_url}/bench/delay?ms={ms}" + (f"&sandbox={sandbox}" if sandbox else ""))

    def provider_requests(self):
        return json.loads(http_get(f"{self.provider_url}/bench/stats")[1])["requests"]
