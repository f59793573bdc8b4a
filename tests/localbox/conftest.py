# SPDX-License-Identifier: Apache-2.0
"""Starts sk-localbox on a free port with a data folder of its own, and ends it and its sandboxes afterwards.

SANDKEEP_BIN_DIR names the folder of the programs (default: build/release/bin of this clone)."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("SANDKEEP_BIN_DIR", ROOT / "build/release/bin"))
KEY = "test-key"


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def code(self):
        return self.json.get("code")


class Daemon:
    def __init__(self, data, **settings):
        self.data = pathlib.Path(data)
        self.settings = settings
        self.process = None
        self.port = None

    def environment(self):
        env = {name: value for name, value in os.environ.items() if not name.startswith("SANDKEEP_")}
        for name in list(env):
            if name.lower().endswith("_proxy"):
                del env[name]
        env.update(SANDKEEP_LOCALBOX_DATA_DIR=str(self.data), SANDKEEP_LOCALBOX_PORT_FILE=str(self.data) + ".port",
                   SANDKEEP_LOCALBOX_KEY=KEY, SANDKEEP_DRAIN_SECONDS="2")
        env.update({f"SANDKEEP_LOCALBOX_{name.upper()}": str(value) for name, value in self.settings.items() if name != "env"})
        env.setdefault("TSAN_OPTIONS", f"suppressions={pathlib.Path(__file__).with_name('tsan.supp')}")
        env.update(self.settings.get("env", {}))
        return env

    def start(self):
        port_file = pathlib.Path(str(self.data) + ".port")
        port_file.unlink(missing_ok=True)
        self.log_path = str(self.data) + ".log"
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen([BIN / "sk-localbox"], env=self.environment(), stdout=log, stderr=log)
        deadline = time.monotonic() + 20
        while not port_file.exists():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.005)
        self.port = int(port_file.read_text())
        return self

    def log(self):
        return pathlib.Path(self.log_path).read_text()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            return self.process.wait(timeout=30)
        return None

    def end_sandboxes(self):
        return subprocess.run([BIN / "sk-localbox", "--end-sandboxes"], env=self.environment(), capture_output=True, timeout=60)

    def close(self):
        status = self.stop()
        self.end_sandboxes()
        assert status in (0, None), self.log()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def request(self, method, path, body=None, headers=None, key=KEY, timeout=30):
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=headers or {})
        if key is not None:
            request.add_header("OPEN-SANDBOX-API-KEY", key)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return Answer(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.headers, error.read())

    def create(self, **changes):
        body = {"image": {"uri": "local:1"}, "entrypoint": ["tail", "-f", "/dev/null"], "resourceLimits": {"cpu": "1", "memory": "512Mi"}}
        body.update(changes)
        answer = self.request("POST", "/v1/sandboxes", body)
        assert answer.status == 202, answer.body
        return Box(self, answer.json["id"])

    def record(self, box_id):
        return json.loads((self.data / "sandboxes" / box_id / "record.json").read_text())


class Box:
    def __init__(self, daemon, box_id):
        self.daemon, self.id = daemon, box_id

    def path(self, port, rest):
        return f"/v1/sandboxes/{self.id}/proxy/{port}{rest}"

    def execd(self, method, rest, body=None, **options):
        return self.daemon.request(method, self.path(44772, rest), body, **options)

    def events(self, command, **options):
        answer = self.execd("POST", "/command", {"command": command, **options}, timeout=120)
        assert answer.status == 200, answer.body
        return [json.loads(block) for block in answer.body.decode().split("\n\n") if block]

    def run(self, command, **options):
        """(exit code, stdout text, stderr text)"""
        out = {"stdout": [], "stderr": []}
        code = None
        for event in self.events(command, **options):
            if event["type"] in out:
                out[event["type"]].append("" if event["text"] == "\n" else event["text"])
            elif event["type"] == "execution_complete":
                code = 0
            elif event["type"] == "error":
                code = int(event["error"]["evalue"])
        return code, "\n".join(out["stdout"]), "\n".join(out["stderr"])

    def info(self):
        return self.daemon.request("GET", f"/v1/sandboxes/{self.id}")

    @property
    def state(self):
        return self.info().json["status"]["state"]

    def wait_state(self, wanted, seconds=10):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.state == wanted:
                return
            time.sleep(0.02)
        raise AssertionError(f"{self.id} is {self.state}, not {wanted}")

    def upload(self, path, data, name="f", **metadata):
        boundary = "xxBOUNDARYxx"
        body = (f'--{boundary}\r\nContent-Disposition: form-data; name="metadata"; filename="metadata"\r\n'
                f"Content-Type: application/json\r\n\r\n{json.dumps({'path': path, **metadata})}\r\n"
                f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n').encode()
        body += data + f"\r\n--{boundary}--\r\n".encode()
        return self.execd("POST", "/files/upload", body, headers={"Content-Type": f"multipart/form-data; boundary={boundary}"})

    def delete(self):
        return self.daemon.request("DELETE", f"/v1/sandboxes/{self.id}")


@pytest.fixture
def make_daemon(tmp_path):
    """Daemons with settings of their own."""
    made = []

    def make(**settings):
        daemon = Daemon(tmp_path / f"data {len(made)}", **settings).start()
        made.append(daemon)
        return daemon

    yield make
    for daemon in made:
        daemon.close()
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.fixture(scope="session")
def daemon(tmp_path_factory):
    folder = tmp_path_factory.mktemp("localbox")
    made = Daemon(folder / "data dir", env={}).start()
    yield made
    made.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def box(daemon):
    made = daemon.create()
    yield made
    made.delete()


def alive(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def same_namespace(pid, init):
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink(f"/proc/{init}/ns/pid")
    except OSError:
        return False


def members(init):
    """The processes of a sandbox, without its init."""
    return [p for p in os.listdir("/proc") if p.isdigit() and p != str(init) and same_namespace(p, init)]


def resident_kb(pid):
    return int(open(f"/proc/{pid}/status").read().split("VmRSS:")[1].split()[0])


def resident_limit_kb():
    """What a process of ours may take while it streams; sanitizers keep freed memory for a while."""
    sanitized = b"__asan_init" in (BIN / "sk-localbox").read_bytes() or b"__tsan_init" in (BIN / "sk-localbox").read_bytes()
    return 400_000 if sanitized else 40_000


def free_of_leaks(daemon):
    """Folders below sandboxes/ that belong to no listed sandbox."""
    listed = {item["id"] for item in daemon.request("GET", "/v1/sandboxes?pageSize=200").json["items"]}
    return {entry.name for entry in (daemon.data / "sandboxes").iterdir()} - listed
