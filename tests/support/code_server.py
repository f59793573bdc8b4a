# SPDX-License-Identifier: Apache-2.0
"""A running sk-code for tests and benchmarks: its own folders, its own block of uids, ports that it picks itself, and an
end after which none of its processes is left. Standard library only, so that every suite can use it.

    with CodeServer({"SANDBOX_POOL_SIZE": 4}) as server:
        status, body = server.run("js", "function main() { return {n: 1} }")

Nothing here sleeps to let something happen: waiting is for a condition, with a deadline."""
import contextlib
import fcntl
import http.client
import json
import os
import pathlib
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from waiting import eventually

ROOT = pathlib.Path(__file__).resolve().parents[2]
READY_SECONDS = 60  # generous: templates load numpy, pandas and matplotlib, perhaps under a sanitizer
END_SECONDS = 40    # the drain of 25 s and a little
UID_FIRST = 300_000  # above what people, services and user namespaces of ordinary machines have
UID_BLOCK = 1_400    # ZYGOTES_PER_KIND (4) x 3 kinds x (the largest pool, 100, and 8 spare slots), and the host
UID_BLOCKS = 50
LOCKS = pathlib.Path(tempfile.gettempdir()) / "sandkeep-code-uids"
PROGRAMS = ("sk-code", "sk-code-js", "sk-code-python")
CLEARED = ("SANDBOX_", "SANDKEEP_", "LOG_", "CHECK_INTERNAL_IP", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
SANITIZER = re.compile(r"(Address|Leak|UndefinedBehavior|Thread)Sanitizer|: runtime error: ")
KINDS = {"sk-template": "template", "sk-zygote": "zygote", "sk-task": "task"}


def bin_dir():
    if os.environ.get("SANDKEEP_BIN_DIR"):
        return pathlib.Path(os.environ["SANDKEEP_BIN_DIR"])
    found = [ROOT / "build" / preset / "bin" for preset in ("release", "debug", "asan")]
    return next((folder for folder in found if (folder / "sk-code").exists()), found[0])


def why_not(folder=None):
    """Why no server can be started here; None when one can."""
    folder = pathlib.Path(folder or bin_dir())
    missing = [name for name in PROGRAMS if not (folder / name).exists()]
    if missing:
        return f"{', '.join(missing)} not built in {folder}"
    if os.geteuid() != 0:
        return "root is needed: tasks get uids of their own"
    return None


class UidBlock:
    """Uids that no other server of this machine's tests has, as long as the lock is held (the kernel drops it with the
    process)."""

    def __init__(self):
        LOCKS.mkdir(exist_ok=True)
        for number in range(UID_BLOCKS):
            handle = open(LOCKS / str(number), "a")  # closed by release(), or below
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                handle.close()
                continue
            self.handle, self.base = handle, UID_FIRST + number * UID_BLOCK
            return
        raise RuntimeError(f"all {UID_BLOCKS} blocks of uids are taken")

    def release(self):
        self.handle.close()


class CodeServer:
    """`env`: variables on top of the defaults below; a value of None takes one away. `bin_dir`: folder of the programs
    (SANDKEEP_BIN_DIR). `wait=False` does not wait for readiness (for tests of what happens before)."""

    def __init__(self, env=None, bin_dir=None, wait=True):
        self.bin = pathlib.Path(bin_dir) if bin_dir else globals()["bin_dir"]()
        self.token = secrets.token_hex(16)
        self.changes, self.wait = dict(env or {}), wait
        self.process = self.folder = self.uids = None
        self.port = self.admin_port = None

    # ---- life ----
    def __enter__(self):
        return self.start()

    def __exit__(self, kind, error, trace):
        self.close(check=kind is None)

    def environment(self):
        env = {name: value for name, value in os.environ.items() if not name.upper().startswith(CLEARED)}
        settings = {
            "SANDBOX_HOST": "127.0.0.1", "SANDBOX_PORT": "0", "SANDBOX_TOKEN": self.token, "SANDBOX_POOL_SIZE": "4",
            "SANDKEEP_CODE_PORT_FILE": str(self.folder / "port"), "SANDKEEP_CODE_ADMIN_LISTEN": "127.0.0.1:0",
            "SANDKEEP_CODE_ADMIN_PORT_FILE": str(self.folder / "admin-port"), "SANDKEEP_CODE_UID_BASE": str(self.uids.base),
            "SANDKEEP_CODE_RUN_DIR": str(self.folder / "run"), "SANDKEEP_LOG_LEVEL": "info",
        }
        settings.update({name: value if value is None else str(value) for name, value in self.changes.items()})
        env.update({name: value for name, value in settings.items() if value is not None})
        return env

    def start(self):
        reason = why_not(self.bin)
        if reason:
            import pytest
            pytest.skip(reason)
        self.uids = UidBlock()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="sandkeep-code-"))
        self.folder.chmod(0o755)  # tasks have other uids
        (self.folder / "run").mkdir()
        env = self.environment()
        self.token = env.get("SANDBOX_TOKEN", "")
        try:
            with open(self.folder / "log", "wb") as log:
                self.process = subprocess.Popen([self.bin / "sk-code"], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                start_new_session=True)
            self.port = self._port("port")
            self.admin_port = self._port("admin-port")
            if self.wait:
                eventually(self.ready, READY_SECONDS, lambda: "not ready\n" + self.log()[-4000:])
        except BaseException:
            self.close(check=False)
            raise
        return self

    def _port(self, name):
        path = self.folder / name

        def read():
            assert self.process.poll() is None, f"sk-code ended with {self.process.returncode}\n{self.log()[-4000:]}"
            return path.exists() and path.read_text().strip()
        return int(eventually(read, READY_SECONDS, lambda: f"no {name}\n{self.log()[-4000:]}"))

    @property
    def pid(self):
        """The launcher's."""
        return self.process.pid

    @property
    def host_pid(self):
        return next(pid for pid, kind in self.children() if kind == "host")

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin(self):
        return f"http://127.0.0.1:{self.admin_port}"

    def log(self):
        with contextlib.suppress(OSError):
            return (self.folder / "log").read_text(errors="replace")
        return ""

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def join(self, seconds=END_SECONDS):
        """The exit status of the launcher, once it has ended."""
        return self.process.wait(timeout=seconds)

    def close(self, check=True):
        """Ends it. With `check`, it must end by itself, with 0, and leave no process of its uids or its tree."""
        status, left = None, []
        try:
            if self.process is not None:
                tree = {pid: started(pid) for pid, _ in self.children()}
                if self.process.poll() is None:
                    self.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = self.process.wait(timeout=END_SECONDS if check else 10)
                left = self.left(tree, 5 if check else 0)
                for pid in ([self.pid] if status is None else []) + left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                self.process.wait(timeout=30)
            if check:
                assert status == 0, f"sk-code ended with {status}\n{self.log()[-4000:]}"
                assert not left, f"processes were left: {left}\n{self.log()[-4000:]}"
                assert not SANITIZER.search(self.log()), self.log()[-8000:]
        finally:
            if self.folder is not None:
                shutil.rmtree(self.folder, ignore_errors=True)
            if self.uids is not None:
                self.uids.release()

    def left(self, tree=(), seconds=0):
        """Members of the tree ({pid: when it started}, as a pid is used again) and processes with its uids, the launcher left
        out, that are still there after `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            alive = processes()
            left = [pid for pid, p in alive.items() if pid != self.pid and p.state != "Z" and
                    ((pid in tree and p.comm.startswith("sk-") and started(pid) == tree[pid]) or self.uids.base <= p.uid < self.uids.base + UID_BLOCK)]
            if not left or time.monotonic() >= deadline:
                return left
            time.sleep(0.01)

    @property
    def sanitized(self):
        """Whether it is built with a sanitizer, which keeps memory for itself."""
        return b"__asan_init" in (self.bin / "sk-code").read_bytes()

    # ---- requests ----
    def connect(self, timeout=60, admin=False):
        """A socket to it, for tests that speak for themselves."""
        return socket.create_connection(("127.0.0.1", self.admin_port if admin else self.port), timeout=timeout)

    def request(self, method, path, body=None, headers=None, timeout=60, admin=False):
        """(status, headers with small letters, bytes). The token is not added."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port if admin else self.port, timeout=timeout)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def authorization(self):
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def post_raw(self, path, body, headers=None, timeout=60):
        """(status, headers, bytes) of a body as it is, with the token unless `headers` bring their own."""
        given = {"Content-Type": "application/json", **self.authorization(), **(headers or {})}
        return self.request("POST", path, body, given, timeout)

    def run(self, language, code, variables=None, timeout=60, **members):
        """(status, body as a dict). `members` are further members of the request (queueId, timeoutMs)."""
        body = {"code": code, **members}
        if variables is not None:
            body["variables"] = variables
        status, _, text = self.post_raw(f"/sandbox/{language}", json.dumps(body).encode(), timeout=timeout)
        return status, json.loads(text)

    def value(self, language, code, variables=None, **options):
        """codeReturn of a task that must succeed."""
        status, body = self.run(language, code, variables, **options)
        assert status == 200 and body["success"], body
        return body["data"]["codeReturn"]

    def health(self):
        status, _, body = self.request("GET", "/health")
        return status, json.loads(body)

    def modules(self):
        status, _, body = self.request("GET", "/sandbox/modules", headers=self.authorization())
        assert status == 200, body
        return json.loads(body)["data"]

    def ready(self):
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.request("GET", "/readyz", admin=True, timeout=5)[0] == 200
        return False

    def metrics(self):
        """{"name{label=\"value\"}": number} of everything but comments."""
        status, _, body = self.request("GET", "/metrics", admin=True)
        assert status == 200, body
        found = {}
        for line in body.decode().splitlines():
            match = re.fullmatch(r"([a-zA-Z_:][\w:]*(?:\{.*\})?) (\S+)(?: \d+)?", line)
            if match and not line.startswith("#"):
                found[match[1]] = float(match[2])
        return found

    # ---- processes ----
    def children(self):
        """[(pid, kind)] of its whole tree, kind = launcher, host, template, zygote, task, other."""
        found = processes()
        tree, wanted = [(self.pid, "launcher")] if self.pid in found else [], {self.pid}
        grown = True
        while grown:
            grown = False
            for pid, p in found.items():
                if p.parent in wanted and pid not in wanted:
                    wanted.add(pid)
                    grown = True
        for pid in sorted(wanted - {self.pid}):
            p = found[pid]
            kind = KINDS.get(p.comm)
            if kind is None:
                kind = "host" if p.parent == self.pid and p.comm.startswith("sk-code") and p.state != "Z" else "other"
            tree.append((pid, kind))
        return tree

    def tasks(self):
        return [pid for pid, kind in self.children() if kind == "task"]

    def idle(self):
        """Nothing runs, nothing waits."""
        pools = self.health()[1]["pools"]
        return all(pool["busy"] == 0 and pool["queued"] == 0 for pool in pools.values())

    def wait_idle(self, seconds=15):
        eventually(lambda: self.idle() and not self.tasks(), seconds, lambda: f"still busy: {self.health()[1]} {self.tasks()}")

    def descriptors(self, pid=None):
        return len(os.listdir(f"/proc/{pid or self.host_pid}/fd"))

    def memory(self, pid=None):
        """Resident bytes (of the host unless another process is named)."""
        return status_bytes(pid or self.host_pid, "VmRSS")


class Process:
    def __init__(self, parent, state, comm, uid):
        self.parent, self.state, self.comm, self.uid = parent, state, comm, uid


def processes():
    """{pid: Process} of the machine. From status and not from the owner of the folder, which is root for a process that
    is not dumpable."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError, KeyError, ValueError):
            lines = pathlib.Path("/proc", name, "status").read_text(errors="replace").splitlines()
            field = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            found[int(name)] = Process(int(field["PPid"]), field["State"][0], field["Name"], int(field["Uid"].split()[0]))
    return found


def started(pid):
    """When the process began, in ticks since the machine did; None when it is gone."""
    with contextlib.suppress(OSError, IndexError):
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    return None


def status_bytes(pid, field):
    """VmRSS, VmHWM, VmData … of a process in bytes; 0 when it is gone."""
    with contextlib.suppress(OSError):
        match = re.search(rf"^{field}:\s+(\d+) kB$", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M)
        return int(match[1]) * 1024 if match else 0
    return 0
