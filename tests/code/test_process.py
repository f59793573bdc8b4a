# SPDX-License-Identifier: Apache-2.0
"""sk-code as a process: its signals, what it does when a language cannot come back, and when the machine has no
descriptors for another task."""
import contextlib
import json
import os
import pathlib
import secrets
import signal
import socket
import subprocess
import threading
import time

import pytest
from code_server import CodeServer, PROGRAMS, bin_dir
from waiting import eventually

SLOW = "async function main() { await delay(1500); return 7 }"


def wrapped(tmp_path, prefix, arguments=""):
    """A folder in which sk-code is a script that starts the real one behind `prefix`."""
    real = bin_dir().resolve()
    for name in PROGRAMS[1:]:
        (tmp_path / name).symlink_to(real / name)
    script = tmp_path / "sk-code"
    script.write_text(f'#!/bin/sh\nexec {prefix} "{real}/sk-code" {arguments}\n')
    script.chmod(0o755)
    tmp_path.chmod(0o755)
    return tmp_path


class Running:
    """A slow task on its way, and its answer."""

    def __init__(self, server, code=SLOW, language="js"):
        self.answer = None
        self.thread = threading.Thread(target=self._run, args=(server, language, code))
        self.thread.start()
        eventually(lambda: server.tasks(), what="the task did not start")

    def _run(self, server, language, code):
        try:
            self.answer = server.run(language, code)
        except OSError as error:
            self.answer = error

    def result(self):
        self.thread.join(30)
        return self.answer


def assert_drains(server, tell):
    running = Running(server)
    tell()
    status, body = running.result()
    assert (status, body["data"]["codeReturn"]) == (200, 7)
    assert server.join(10) == 0


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_drains_once(sign):
    with CodeServer() as server:
        assert_drains(server, lambda: os.killpg(server.pid, sign))


def test_hangup_is_no_end():
    with CodeServer() as server:
        os.killpg(server.pid, signal.SIGHUP)
        assert server.value("js", "function main() { return 1 }") == 1
        assert server.process.poll() is None


def test_drains_in_a_user_namespace(tmp_path):
    """Where the launcher may not mount, it may not signal the host either."""
    folder = wrapped(tmp_path, "setpriv --bounding-set=-sys_admin --inh-caps=-all")
    with CodeServer(bin_dir=folder) as server:
        if server.health()[1]["isolation"] != "full":
            pytest.skip("no user namespace to be had here")
        assert_drains(server, server.terminate)


def test_a_language_that_cannot_come_back_is_told_so(tmp_path):
    real = bin_dir().resolve()
    for name in PROGRAMS:
        (tmp_path / name).write_bytes((real / name).read_bytes())
        (tmp_path / name).chmod(0o755)
    tmp_path.chmod(0o755)
    with CodeServer(bin_dir=tmp_path) as server:
        (tmp_path / "gone").write_text("#!/bin/false\n")
        (tmp_path / "gone").chmod(0o755)
        (tmp_path / "gone").replace(tmp_path / "sk-code-js")
        for pid, _ in server.children():
            try:
                line = open(f"/proc/{pid}/cmdline", "rb").read()
            except OSError:
                continue
            if b"sk-code-js" in line.split(b"\0")[0]:
                os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        status, body = server.run("js", "function main() { return 1 }", timeout=30)
        assert (status, body) == (200, {"success": False, "message": "JS process pool is not ready"})
        assert time.monotonic() - began < 20
        status, body = server.run("js", "function main() { return 1 }", timeout=5)
        assert (status, body["message"]) == (200, "JS process pool is not ready")
        assert server.value("python", "def main():\n    return 2") == 2
        assert server.health()[0] == 503


def test_programs_of_two_builds_do_not_start(tmp_path):
    real = bin_dir().resolve()
    revision = subprocess.run([real / "sk-code", "--version"], capture_output=True, text=True, check=True).stdout.split("(")[1]
    revision = revision.split(")")[0].encode()
    for name in PROGRAMS:
        (tmp_path / name).write_bytes((real / name).read_bytes())
        (tmp_path / name).chmod(0o755)
    other = (tmp_path / "sk-code-js").read_bytes().replace(revision, b"#" + revision[1:])
    (tmp_path / "sk-code-js").write_bytes(other)
    tmp_path.chmod(0o755)
    server = CodeServer(bin_dir=tmp_path, wait=False)
    try:
        with contextlib.suppress(AssertionError):  # it may end before its port is known
            server.start()
            assert server.join(20) != 0
            assert "sk-code-js is of another build" in server.log()
            return
    finally:
        server.close(check=False)


def test_a_lack_of_descriptors_fails_no_queue(tmp_path):
    """Clients that fill the descriptor table delay tasks; they do not fail those of others."""
    folder = wrapped(tmp_path, "prlimit --nofile=200:200")
    with CodeServer({"SANDBOX_POOL_SIZE": 1}, bin_dir=folder) as server:
        body = json.dumps({"code": "def main():\n    return 1"}).encode()
        head = (f"POST /sandbox/python HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.token}\r\n"
                f"Content-Length: {len(body)}\r\n\r\n").encode()
        clients = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(190)]
        for client in clients:
            client.sendall(head + body)
        good, bad = 0, []
        for client in clients:
            text = b""
            try:
                while b"}}" not in text and b'"}' not in text:
                    piece = client.recv(65536)
                    if not piece:
                        break
                    text += piece
            except OSError as error:
                text = str(error).encode()
            client.close()  # and its descriptor is free for the next
            good += b'"codeReturn":1' in text
            if b'"codeReturn":1' not in text:
                bad.append(text)
        # The service takes as many as leave descriptors for its tasks, and tells the others so at once.
        # A refusal can be overtaken by the reset of a connection whose request nobody read.
        told = [text for text in bad if b"too many connections" in text]
        assert good >= 100 and told and all(text in told or not text or b"reset" in text for text in bad), (good, bad[:3])
        server.wait_idle()
        assert server.value("js", "function main() { return 1 }") == 1


def test_a_flood_of_headers_costs_the_host_nothing():
    with CodeServer() as server:
        server.value("js", "function main() { return 1 }")
        before = server.memory()
        flood = """async function main() {
            const headers = {};
            for (let i = 0; i < 300000; i++) headers["x" + i] = "1";
            try { await httpRequest("http://example.com/", {headers}); } catch (e) { return e.message }
        }"""
        assert server.value("js", flood) == "Request headers too large"
        assert server.memory() - before < 48 * 1024 * 1024
        assert server.metrics()["sandkeep_code_http_held_bytes"] == 0


def roots(run_dir):
    return sorted(path.name for path in run_dir.glob("sandkeep-code-*"))


def test_what_a_killed_launcher_left_goes_with_the_next_start():
    """Even while its pid is still there: nobody has waited for it yet."""
    killed = CodeServer().start()
    try:
        run_dir = killed.folder / "run"
        left = roots(run_dir)
        assert len(left) == 1
        os.kill(killed.pid, signal.SIGKILL)
        eventually(lambda: [kind for _, kind in killed.children()] == ["launcher"], what="its tree lives on")
        assert roots(run_dir) == left
        with CodeServer({"SANDKEEP_CODE_RUN_DIR": run_dir}) as server:
            assert len(roots(run_dir)) == 1 and roots(run_dir) != left
            assert server.value("js", "function main() { return 1 }") == 1
        assert not roots(run_dir)
    finally:
        killed.close(check=False)


def test_two_launchers_share_a_run_folder():
    with CodeServer() as first:
        run_dir = first.folder / "run"
        with CodeServer({"SANDKEEP_CODE_RUN_DIR": run_dir}) as second:
            assert len(roots(run_dir)) == 2
            for server in (first, second):
                assert server.value("python", "def main():\n    return 1") == 1
        assert len(roots(run_dir)) == 1
        assert first.value("js", "function main() { return 2 }") == 2


def readable_memory(pid):
    """Everything a process could read of itself, piece by piece."""
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in (pathlib.Path("/proc") / str(pid) / "maps").read_text().splitlines():
            span, permissions = line.split()[:2]
            start, end = (int(part, 16) for part in span.split("-"))
            if "r" in permissions and end - start < 1 << 30 and "[v" not in line:
                with contextlib.suppress(OSError):
                    memory.seek(start)
                    yield memory.read(end - start)


@pytest.mark.parametrize("way", ["environment", "file", "env-file"])
def test_only_the_host_has_the_token(tmp_path, way):
    token = "tok-" + secrets.token_hex(20)
    (tmp_path / "secret").write_text(token + "\n")
    (tmp_path / "settings").write_text(f"SANDBOX_TOKEN={token}\n")
    env = {"environment": {"SANDBOX_TOKEN": token}, "file": {"SANDBOX_TOKEN": None, "SANDBOX_TOKEN_FILE": str(tmp_path / "secret")},
           "env-file": {"SANDBOX_TOKEN": None}}[way]
    folder = wrapped(tmp_path, "", f'--env-file "{tmp_path}/settings"' if way == "env-file" else "")
    with CodeServer(env, bin_dir=folder) as server:
        server.token = token
        assert server.value("js", "function main() { return 1 }") == 1
        for pid, kind in server.children():
            found = any(token.encode() in piece for piece in readable_memory(pid))
            assert found == (kind == "host"), (way, kind)


def test_idle_connections_leave_descriptors_for_tasks(tmp_path):
    """They need no token. The limit of descriptors is far below what the pool and 4,096 connections take."""
    folder = wrapped(tmp_path, "prlimit --nofile=700")
    with CodeServer({"SANDBOX_POOL_SIZE": 20}, bin_dir=folder) as server:
        idle = []
        try:
            for _ in range(600):
                with contextlib.suppress(OSError):
                    idle.append(server.connect(timeout=5))
            assert "fewer client connections are taken" in server.log()
            for one in idle[50:]:
                one.close()
            eventually(lambda: server.run("js", "function main() { return 1 }")[0] == 200)
        finally:
            for one in idle:
                one.close()
        assert "cannot be begun" not in server.log()
