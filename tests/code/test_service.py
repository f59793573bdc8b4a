# SPDX-License-Identifier: Apache-2.0
"""sk-code as a service: health before it is ready, tokens, metrics, drain, configuration, and what it leaves behind (contract §6,
service §1)."""
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

import pytest
from code_server import CodeServer, bin_dir, why_not
from waiting import eventually
from wire import LIGHT, OK_JS, RUNS, Wire, begin, task

LABELS = {
    "language": {"js", "python"}, "kind": {"js", "python", "python-full"}, "dependency": {"js", "python"},
    "end": {"done", "error", "timeout", "memory", "output", "processes", "killed", "crashed", "cancelled"},
    "reason": {"queue_full", "buffers_full", "draining", "not_ready", "auth", "invalid", "too_large", "slow_body"},
}
OPEN_LABELS = {"le", "version", "revision"}


# ---- health ----
def test_health_from_the_beginning():
    """Not ready: 503, "degraded", and tasks are told so. Then ready, in the end within seconds."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = CodeServer({**LIGHT, "SANDBOX_PORT": port}, wait=False)
    server.port = port
    failure = []

    def start():
        try:
            server.start()
        except BaseException as error:  # pytest's skip is one
            failure.append(error)
    starting = threading.Thread(target=start)
    starting.start()
    seen, refusals = set(), set()
    try:
        while True:
            try:
                status, body = server.health()
            except OSError:
                if not starting.is_alive():
                    break
                continue
            seen.add((status, body["status"]))
            if status == 200:
                break
            assert body["pools"]["js"]["total"] == (4 if body["pools"]["js"]["ready"] else 0)
            if server.token and not body["pools"]["python"]["ready"]:
                answer = server.run("python", "def main(): return 1")
                refusals.add((answer[0], answer[1].get("message", "")))
        starting.join()
        if failure:
            raise failure[0]
        assert (503, "degraded") in seen and (200, "ok") in seen
        assert (200, "Python isolated runner is not ready") in refusals
        assert server.value("python", "def main(): return 1") == 1
    finally:
        starting.join()
        server.close()


def test_admin_routes(server):
    assert server.request("GET", "/livez", admin=True)[0] == 200
    status, _, body = server.request("GET", "/readyz?verbose", admin=True)
    assert status == 200
    assert {one["name"]: one["state"] for one in json.loads(body)["dependencies"]} == {"js": "up", "python": "up"}
    assert server.request("GET", "/metrics")[0] == 404  # not where tenants are


def test_processes(server):
    """One launcher, one host, a template and a zygote for each kind; the host is nobody."""
    expected = ["host", "launcher", *["template"] * 3, *["zygote"] * 3]

    def look():  # what a template forked to make a zygote ends a moment after that
        found = server.children()
        return sorted(kind for _, kind in found) == expected and found
    found = {}
    for pid, kind in eventually(look, what=server.children):
        found.setdefault(kind, []).append(pid)
    status = open(f"/proc/{found['host'][0]}/status").read()
    assert re.search(r"^Uid:\s+(\d+)\s+\1\s+\1", status, re.M)[1] != "0"
    assert re.search(r"^CapEff:\s+0+$", status, re.M)
    assert re.search(r"^NoNewPrivs:\s+1$", status, re.M)


def test_the_token_is_in_no_other_process(server):
    """Only the host has a use for it: launcher, templates and zygotes do not have it in their environment."""
    for pid, kind in server.children():
        if kind == "host":
            continue
        with open(f"/proc/{pid}/environ", "rb") as file:
            assert server.token.encode() not in file.read(), kind


def test_both_ways_to_give_the_token(server):
    body = task(OK_JS)
    for headers in ({"Authorization": f"Bearer {server.token}"}, {"Authorization": f"bearer   {server.token} "}, {"X-Api-Key": server.token}):
        status, _, text = server.request("POST", "/sandbox/js", body, headers)
        assert (status, json.loads(text)) == (200, RUNS), headers


def test_without_a_token_everybody_may():
    with CodeServer({**LIGHT, "SANDBOX_TOKEN": ""}) as server:
        for headers in ({}, {"Authorization": "Bearer whatever"}, {"Authorization": "nonsense"}):
            status, _, text = server.request("POST", "/sandbox/js", task(OK_JS), headers)
            assert (status, json.loads(text)) == (200, RUNS)
        assert server.request("GET", "/sandbox/modules")[0] == 200
        assert "SANDBOX_TOKEN is not set" in server.log()


def test_lists_of_modules_are_what_is_allowed():
    lists = {"SANDBOX_JS_ALLOWED_MODULES": "dayjs, lodash", "SANDBOX_PYTHON_ALLOWED_MODULES": "math,json"}
    with CodeServer(lists) as server:
        assert server.modules() == {"js": ["dayjs", "lodash"], "python": ["math", "json"], "builtinGlobals": ["SystemHelper.httpRequest"]}
        assert server.value("js", "function main() { return require('lodash').sum([1, 2]) }") == 3
        assert server.run("js", "function main() { return require('moment') }")[1]["message"] == "Module 'moment' is not allowed in sandbox"
        assert server.run("python", "import pandas\ndef main(): pass")[1]["message"] == "Module 'pandas' is not in the allowlist."


def test_the_log_has_nothing_of_a_tenant():
    """Whatever level: no code, variable, result, output, message or token."""
    with CodeServer({**LIGHT, "SANDKEEP_LOG_LEVEL": "debug"}) as server:
        server.run("js", "async function main(v) { console.log('marker-out'); return { r: 'marker-result', v } }", {"k": "marker-variable"})
        server.run("js", "function main() { /* marker-code */ throw new Error('marker-message') }")
        server.run("python", "def main():\n    print('marker-out')\n    raise ValueError('marker-message')")
        server.run("python", "def main():\n    x = 'marker-code'\n    while True: pass", timeoutMs=50)
        server.run("js", "function main() { return httpRequest('http://127.0.0.1/marker-path?marker-query', { headers: { a: 'marker-header' }, body: 'marker-body' }) }")
        server.post_raw("/sandbox/js", b'{"code":"marker-code"')
        server.request("POST", "/sandbox/js", b"marker-body", {"Authorization": "Bearer marker-token"})
        server.request("GET", "/marker-path")
        server.wait_idle()
        assert "marker-" not in server.log() and server.token not in server.log()


@pytest.mark.parametrize("host,address", [("::1", "::1"), ("localhost", "127.0.0.1"), ("0.0.0.0", "127.0.0.1")])
def test_addresses_to_listen_on(host, address):
    if ":" in host and not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("no IPv6 here")
    with CodeServer({**LIGHT, "SANDBOX_HOST": host}, wait=False) as server:
        with socket.create_connection((address, server.port), timeout=10) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200")


# ---- metrics ----
def test_metrics(server):
    before = server.metrics()
    server.value("js", OK_JS, queueId="a-tenant-with-a-name")
    server.run("python", "def main():\n    while True: pass", timeoutMs=50)
    server.value("python", "def main():\n    return __import__('num' + 'py').__name__")
    server.request("POST", "/sandbox/js", b"", {"Authorization": "Bearer wrong"})
    after = server.metrics()

    def grown(name):
        return after[name] - before.get(name, 0)
    assert grown('sandkeep_code_tasks_total{language="js",end="done"}') == 1
    assert grown('sandkeep_code_tasks_total{language="python",end="timeout"}') == 1
    assert grown('sandkeep_code_refused_total{reason="auth"}') == 1
    assert grown("sandkeep_code_moved_total") == 1
    assert grown('sandkeep_code_run_seconds_count{kind="python-full"}') == 1
    assert grown('sandkeep_code_wait_seconds_count{language="js"}') == 1
    assert after["sandkeep_code_isolation_level"] == {"full": 3, "container": 2, "shared-uid": 1}[server.health()[1]["isolation"]]
    for name in ("sandkeep_code_tasks_waiting", "sandkeep_code_js_tasks_running", "sandkeep_code_python_tasks_running", "sandkeep_code_buffered_bytes",
                 "sandkeep_code_http_requests_total", "sandkeep_code_zygotes_lost_total", "process_resident_memory_bytes"):
        assert name in after


def test_labels_are_a_closed_set(server):
    """No name, id or path of a tenant, whatever was sent."""
    for text in ("a-tenant", "ein-µandant", "x" * 128, "../../etc"):
        server.run("js", f"function main() {{ throw new Error({json.dumps(text)}) }}", queueId=text)
    server.request("GET", "/nowhere-a-tenant")
    text = server.request("GET", "/metrics", admin=True)[2].decode()
    assert "tenant" not in text and "andant" not in text and "nowhere" not in text
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        for label, value in re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', line):
            assert label in OPEN_LABELS or value in LABELS[label], line


# ---- drain ----
def test_drain():
    """SIGTERM: what runs and what waits gets its answer, whoever comes is refused, then it ends with 0."""
    with CodeServer({**LIGHT, "SANDBOX_POOL_SIZE": 1}) as server:
        running = begin(server, "js", code="async function main() { await delay(4000); return { ok: true } }")
        eventually(lambda: server.health()[1]["pools"]["js"]["busy"] == 1)
        waiting = begin(server, "js", 3, code=OK_JS)
        eventually(lambda: server.health()[1]["pools"]["js"]["queued"] == 3)
        late = Wire(server)
        request = late.post(task(OK_JS))
        late.send(request[:-1])
        eventually(lambda: server.metrics()["sandkeep_code_connections"] == 5)
        server.terminate()
        eventually(lambda: server.request("GET", "/readyz", admin=True)[0] == 503)
        assert server.request("GET", "/livez", admin=True)[0] == 200
        with pytest.raises(OSError):
            server.connect()
        late.send(request[-1:])
        assert late.answer().json == {"success": False, "message": "Pool is shutting down"}
        assert [wire.answer().json for wire in running + waiting] == [RUNS] * 4
        assert server.join(10) == 0
        for wire in running + waiting + [late]:
            wire.close()


def test_drain_that_is_over():
    """SANDKEEP_DRAIN_SECONDS: what waits is refused, what runs is ended, and nobody is left without an end."""
    with CodeServer({**LIGHT, "SANDBOX_POOL_SIZE": 1, "SANDKEEP_DRAIN_SECONDS": 1}) as server:
        running = begin(server, "python")
        eventually(lambda: server.health()[1]["pools"]["python"]["busy"] == 1)
        waiting = begin(server, "python", 2)
        eventually(lambda: server.health()[1]["pools"]["python"]["queued"] == 2)
        start = time.monotonic()
        server.terminate()
        assert [wire.answer().json for wire in waiting] == [{"success": False, "message": "Pool is shutting down"}] * 2
        answer = running[0].answer()
        assert answer is None or answer.json["success"] is False
        assert server.join(10) == 0
        assert 0.9 < time.monotonic() - start < 6
        for wire in running + waiting:
            wire.close()


def test_a_second_signal_ends_at_once():
    server = CodeServer(LIGHT).start()
    try:
        running = begin(server, "js")
        eventually(lambda: server.health()[1]["pools"]["js"]["busy"] == 1)
        server.terminate()
        eventually(lambda: server.request("GET", "/readyz", admin=True)[0] == 503)
        start = time.monotonic()
        server.terminate()
        server.join(10)
        assert time.monotonic() - start < 3
        eventually(lambda: not server.left(), what=lambda: f"left: {server.left()}")
        running[0].close()
    finally:
        server.close(check=False)


def test_idle_ends_at_once():
    with CodeServer(LIGHT) as server:
        start = time.monotonic()
        server.terminate()
        assert server.join(10) == 0
        assert time.monotonic() - start < 3


@pytest.mark.parametrize("victim", ["launcher", "host"])
def test_a_killed_half_takes_the_other_with_it(victim):
    """Neither serves without the other, and no task outlives both."""
    server = CodeServer(LIGHT).start()
    try:
        running = begin(server, "js", 2) + begin(server, "python", 2)
        eventually(lambda: len(server.tasks()) == 4)
        os.kill(server.pid if victim == "launcher" else server.host_pid, signal.SIGKILL)
        server.join(10)
        eventually(lambda: not server.left(), 10, lambda: f"left: {server.left()}")
        for wire in running:
            wire.close()
    finally:
        server.close(check=False)


# ---- tasks that do not end by themselves ----
@pytest.mark.parametrize("language,name", [("js", "Worker crashed during execution"), ("python", "Python runner exited before result")])
def test_a_task_that_is_killed_from_outside(server, language, name):
    """In the original's words (A3); the log goes with the process, and the next task is served."""
    (wire,) = begin(server, language)
    eventually(lambda: len(server.tasks()) == 1)
    os.kill(server.tasks()[0], signal.SIGKILL)
    answer = wire.answer()
    assert answer.status == 200
    assert answer.json["message"] == f"{name} (exit code: null, signal: SIGKILL)"
    assert answer.json["data"]["error"]["code"] == "killed"
    wire.close()
    server.wait_idle()
    assert server.value(language, OK_JS if language == "js" else "def main(): return {'ok': True}") == {"ok": True}


@pytest.mark.parametrize("language", ["js", "python"])
def test_a_task_that_is_stopped(server, language):
    """SIGSTOP from outside: the host's own clock ends it."""
    (wire,) = begin(server, language, timeoutMs=1000)
    eventually(lambda: len(server.tasks()) == 1)
    os.kill(server.tasks()[0], signal.SIGSTOP)
    answer = wire.answer()
    assert answer.json["message"] == "Script execution timed out after 1000ms"
    assert answer.json["data"]["error"]["code"] == "timeout"
    wire.close()
    server.wait_idle()


# ---- the program ----
def program(*arguments, **env):
    reason = why_not()
    if reason:
        pytest.skip(reason)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SANDBOX_", "SANDKEEP_", "LOG_", "CHECK_"))}
    return subprocess.run([bin_dir() / "sk-code", *arguments], env={**clean, **env}, capture_output=True, text=True, timeout=20)


def test_check_config():
    assert program("--check-config").returncode == 0
    bad = program("--check-config", SANDBOX_PORT="70000", SANDBOX_POOL_SIZE="0", SANDBOX_TOKEN="two words", SANDBOX_MAX_TIMEOUT="soon", CHECK_INTERNAL_IP="maybe",
                  SANDBOX_JS_ALLOWED_MODULES="../x", SANDBOX_NET_POLICY="relative")
    assert bad.returncode == 2
    said = bad.stdout + bad.stderr
    for name in ("SANDBOX_PORT", "SANDBOX_POOL_SIZE", "SANDBOX_MAX_TIMEOUT", "CHECK_INTERNAL_IP"):
        assert name in said
    assert "two words" not in said


def test_print_config_hides_the_token():
    shown = program("--print-config", "--json", SANDBOX_TOKEN="secret-token-123")
    assert shown.returncode == 0 and "secret-token-123" not in shown.stdout
    assert "SANDBOX_TOKEN" in shown.stdout and "SANDBOX_MAX_QUEUE" in shown.stdout


def test_version_and_help():
    assert program("--version").returncode == 0
    text = program("--help").stdout
    assert "--check-config" in text


def test_the_original_variables_are_understood():
    """An environment as FastGPT's deployment has it starts as it is."""
    assert program("--check-config", SANDBOX_PORT="3000", SANDBOX_TOKEN="abc", SANDBOX_POOL_SIZE="5", SANDBOX_DISABLE_SECCOMP="false", SANDBOX_API_MAX_BODY_MB="8",
                   SANDBOX_MAX_TIMEOUT="60000", SANDBOX_MAX_MEMORY_MB="256", SANDBOX_MAX_TMP_MB="16", SANDBOX_MAX_OUTPUT_MB="10", CHECK_INTERNAL_IP="true",
                   SANDBOX_REQUEST_MAX_COUNT="30", SANDBOX_REQUEST_TIMEOUT="60000", SANDBOX_REQUEST_MAX_RESPONSE_MB="10", SANDBOX_REQUEST_MAX_BODY_MB="5",
                   LOG_ENABLE_CONSOLE="true", LOG_CONSOLE_LEVEL="info", LOG_ENABLE_OTEL="false", LOG_OTEL_LEVEL="info", LOG_OTEL_SERVICE_NAME="x", LOG_OTEL_URL="http://x/").returncode == 0


def test_a_port_that_is_taken(server):
    other = CodeServer({**LIGHT, "SANDBOX_PORT": server.port}, wait=False)
    with pytest.raises(AssertionError, match="ended with 1"):
        other.start()
    assert server.value("js", OK_JS) == {"ok": True}
