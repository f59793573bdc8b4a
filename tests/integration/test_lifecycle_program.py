# SPDX-License-Identifier: Apache-2.0
"""sk-lifecycle as a program (contract/service.md §1): options, configuration, admin pages, start without dependencies,
setup, logs, the end."""
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import threading

import pytest
from live import ROOT, bin_dir, clean_environment, free_port, http_get, new_box
from waiting import eventually

GOOD = {"AGENT_SANDBOX_OPENSANDBOX_BASEURL": "http://127.0.0.1:9", "AGENT_SANDBOX_OPENSANDBOX_IMAGE": "local:1"}


def program(*arguments, expect=0, base=GOOD, seconds=60, **environment):
    done = subprocess.run([bin_dir() / "sk-lifecycle", *arguments], env={**clean_environment(), **base, **environment}, capture_output=True, text=True,
                          timeout=seconds, check=False)
    assert done.returncode == expect, (done.returncode, done.stdout, done.stderr)
    return done


def test_help_and_version():
    shown = program("--help").stdout
    assert {"--check-config", "--print-config", "--env-file", "--setup", "--version"} <= set(re.findall(r"--[a-z-]+", shown))
    version = program("--version").stdout
    assert re.search(r"\d+\.\d+\.\d+", version) and "nats" in version and "mongo" in version
    assert program("--frobnicate", expect=2).stderr


def test_a_good_configuration_passes_and_is_printed(tmp_path):
    assert program("--check-config").stdout is not None
    secret = tmp_path / "key"
    secret.write_text("s3cret-key\n")
    shown = json.loads(program("--print-config", "--json", SANDKEEP_MONGODB_URI="mongodb://me:hunter2@db/fastgpt", SANDKEEP_NATS_TOKEN="t0ken",
                               AGENT_SANDBOX_OPENSANDBOX_API_KEY_FILE=str(secret), AGENT_SANDBOX_MAX="7").stdout)
    text = json.dumps(shown)
    assert "hunter2" not in text and "t0ken" not in text and "s3cret" not in text
    rows = {row["name"]: row for row in (shown if isinstance(shown, list) else shown["keys"])}
    assert str(rows["AGENT_SANDBOX_MAX"]["value"]) == "7" and rows["AGENT_SANDBOX_MAX"]["source"] == "environment"
    assert str(rows["AGENT_SANDBOX_SUSPEND_MINUTES"]["value"]) == "60" and rows["AGENT_SANDBOX_SUSPEND_MINUTES"]["source"] == "default"
    assert rows["AGENT_SANDBOX_OPENSANDBOX_API_KEY"]["source"] == "file"


BAD = {
    "SANDKEEP_NATS_URL": "http://x", "SANDKEEP_MONGODB_URI": "postgres://x", "SANDKEEP_REDIS_URL": "not a url", "AGENT_SANDBOX_PROVIDER": "docker",
    "AGENT_SANDBOX_CPU_COUNT": "many", "AGENT_SANDBOX_MEMORY_MIB": "-1", "AGENT_SANDBOX_STORAGE_SIZE_GI": "0.29", "AGENT_SANDBOX_SUSPEND_MINUTES": "1.5",
    "AGENT_SANDBOX_MAX": "99999999999999999999", "SANDKEEP_SOURCE_CHECK": "perhaps", "SANDKEEP_LIFECYCLE_ADMIN_LISTEN": "nowhere",
    "SANDKEEP_LIFECYCLE_WORKERS": "0", "SANDKEEP_LIFECYCLE_PARK_LIMIT": "x", "SANDKEEP_DRAIN_SECONDS": "", "SANDKEEP_LOG_LEVEL": "loud",
    "SANDKEEP_NATS_ACK_WAIT_MS": "12 s", "SANDKEEP_LIFECYCLE_RETRY_LIMIT": "0",
}


def test_every_bad_value_is_listed_at_once():
    done = program("--check-config", expect=2, **BAD)
    for name, value in BAD.items():
        if value == "":  # counts as unset
            assert name not in done.stderr
            continue
        line = next((line for line in done.stderr.splitlines() if name in line), None)
        assert line, f"{name} is not listed: {done.stderr}"
        if "://" not in value:
            assert value in line, line
    assert program(expect=2, **BAD).stderr  # nor does it start


@pytest.mark.parametrize("name,environment", [
    ("SANDKEEP_LIFECYCLE_TAKEOVER_MS", {"SANDKEEP_LIFECYCLE_TAKEOVER_MS": "14000"}),
    ("SANDKEEP_LIFECYCLE_TAKEOVER_MS", {"SANDKEEP_LIFECYCLE_TAKEOVER_MS": "15000", "SANDKEEP_LIFECYCLE_HEARTBEAT_MS": "1000"}),
    ("SANDKEEP_LIFECYCLE_LEASE_TTL_MS", {"SANDKEEP_LIFECYCLE_LEASE_RENEW_MS": "10000"}),
    ("SANDKEEP_LIFECYCLE_IN_PROGRESS_MS", {"SANDKEEP_NATS_ACK_WAIT_MS": "15000"}),
    ("SANDKEEP_SUBJECT_PREFIX", {"SANDKEEP_SUBJECT_PREFIX": "a.b"}),
    ("SANDKEEP_SUBJECT_PREFIX", {"SANDKEEP_SUBJECT_PREFIX": "x>"}),
    ("SANDKEEP_SUBJECT_PREFIX", {"SANDKEEP_SUBJECT_PREFIX": "_INBOX"}),
    ("SANDKEEP_SUBJECT_PREFIX", {"SANDKEEP_SUBJECT_PREFIX": "$JS"}),
    ("SANDKEEP_SUBJECT_PREFIX", {"SANDKEEP_SUBJECT_PREFIX": ""}),
    ("SANDKEEP_NATS_REPLICAS", {"SANDKEEP_NATS_REPLICAS": "2"}),
    ("AGENT_SANDBOX_OPENSANDBOX_VOLUME_NAME_PREFIX", {"AGENT_SANDBOX_OPENSANDBOX_VOLUME_NAME_PREFIX": "under_score"}),
    ("AGENT_SANDBOX_OPENSANDBOX_IMAGE", {"AGENT_SANDBOX_OPENSANDBOX_IMAGE": ""}),
    ("AGENT_SANDBOX_OPENSANDBOX_BASEURL", {"AGENT_SANDBOX_OPENSANDBOX_BASEURL": ""}),
    ("AGENT_SANDBOX_PROVIDER", {"AGENT_SANDBOX_PROVIDER": "sealosdevbox"}),
    ("SANDKEEP_NATS_TOKEN", {"SANDKEEP_NATS_TOKEN": "x", "SANDKEEP_NATS_TOKEN_FILE": "/etc/hostname"}),
    ("SANDKEEP_NATS_TOKEN_FILE", {"SANDKEEP_NATS_TOKEN_FILE": "/does/not/exist"}),
])
def test_rules_between_values(name, environment):
    assert name in program("--check-config", expect=2, **environment).stderr


def test_an_env_file(tmp_path):
    path = tmp_path / "service.env"
    path.write_text("# comment\nAGENT_SANDBOX_MAX=11\nAGENT_SANDBOX_MAX_PER_TEAM='3'\n")
    rows = {row["name"]: row for row in (lambda shown: shown if isinstance(shown, list) else shown["keys"])(
        json.loads(program("--print-config", "--json", "--env-file", str(path), AGENT_SANDBOX_MAX="12").stdout))}
    assert str(rows["AGENT_SANDBOX_MAX"]["value"]) == "12" and str(rows["AGENT_SANDBOX_MAX_PER_TEAM"]["value"]) == "3"
    path.write_text("what is this\n")
    program("--check-config", "--env-file", str(path), expect=2)


def test_fault_points_are_listed():
    rows = [line.split("\t") for line in program("--list-fault-points").stdout.splitlines()]
    names = re.findall(r'^SK_FAULT_POINT\(\w+,\s*"([^"]+)"', (ROOT / "common/faults/faults.def").read_text(), re.M)
    assert [row[0] for row in rows] == names and all(row[1] for row in rows)


# ---- the admin pages ---------------------------------------------------------------------------------------------------
def test_admin_pages(site, box):
    site.bus.run("ensure", box)
    for index in (1, 2):
        assert site.admin(index, "/livez") == (200, "ok") or site.admin(index, "/livez")[0] == 200
        status, body = site.admin(index, "/readyz?verbose")
        ready = json.loads(body)
        assert status == 200 and {"nats", "mongo", "redis", "provider"} <= {item["name"] for item in ready["dependencies"]} if isinstance(ready.get("dependencies"), list) \
            else {"nats", "mongo", "redis", "provider"} <= set(ready["dependencies"])
        assert site.admin(index, "/nothing")[0] == 404
        status, text = site.admin(index, "/metrics")
        assert status == 200
        names = set(re.findall(r"^# TYPE (\S+)", text, re.M))
        wanted = {f"sandkeep_lifecycle_{wire}_total" for wire in re.findall(r'^LC_COUNTER\(\w+,\s*"(\w+)"', (ROOT / "services/lifecycle/counters.def").read_text(), re.M)}
        assert wanted <= names, wanted - names
        assert {"sandkeep_ready", "sandkeep_dependency_up"} <= names
        # No ids as labels, ever.
        assert box.id not in text and not re.search(r'"[0-9a-f]{8}-[0-9a-f]{4}-', text)
    assert site.metric("sandkeep_lifecycle_claims_total") >= 1 and site.metric("sandkeep_lifecycle_commands_total") >= 1


def test_logs_are_json_lines_without_secrets(site, box):
    site.bus.run("ensure", box, params={"reason": "very-private-reason"})
    key = site.client["SANDKEEP_LOCALBOX_KEY"]
    for index in (1, 2):
        written = (site.folder / "state" / "logs" / f"lifecycle-{index}.log").read_text()
        lines = written[:written.rfind("\n") + 1].splitlines()  # the last one may be on its way to the file
        assert lines
        for line in lines:
            entry = json.loads(line)
            assert {"ts", "level", "service", "msg"} <= set(entry) and entry["service"] == "sk-lifecycle"
        text = "\n".join(lines)
        assert key not in text and "very-private-reason" not in text


def test_a_killed_replica_leaves_nothing_in_shared_memory(site):
    """Counters of the Mongo driver; the next program of that pid would complain of them, not in JSON."""
    assert not pathlib.Path(f"/dev/shm/mongoc-{site.pid('lifecycle-1')}").exists()


def test_sighup_keeps_it_running(site, box):
    pid = site.pid("lifecycle-1")
    os.kill(pid, signal.SIGHUP)
    assert site.bus.run("ensure", box)["status"] == "running"
    assert site.pid("lifecycle-1") == pid


# ---- start and end -------------------------------------------------------------------------------------------------------
def test_setup_is_idempotent_and_complete(site):
    before = {name: site.bus.stream(name).config for name in ("SANDBOX_COMMANDS", "SANDBOX_EVENTS", "SANDBOX_DEAD")}
    for _ in range(2):
        program("--setup", base=site.service_environment())
    streams = {name: site.bus.stream(name).config for name in before}
    assert streams == before
    commands, events, dead = (streams[name] for name in ("SANDBOX_COMMANDS", "SANDBOX_EVENTS", "SANDBOX_DEAD"))
    assert (commands.subjects, commands.retention, commands.storage, commands.discard) == (["sandbox.cmd.>"], "workqueue", "file", "new")
    assert (commands.max_age, commands.max_bytes, commands.duplicate_window) == (86400, 1 << 30, 120)
    assert (events.subjects, events.retention, events.discard) == (["sandbox.evt.>"], "limits", "old")
    assert (events.max_age, events.max_bytes, events.duplicate_window) == (7 * 86400, 2 << 30, 600)
    assert dead.subjects == ["sandbox.dead.>"] and dead.max_age == 30 * 86400
    consumer = site.bus.consumer().config
    assert (consumer.filter_subject, consumer.ack_policy, consumer.max_deliver, consumer.max_ack_pending) == ("sandbox.cmd.lifecycle.>", "explicit", -1, 20000)
    keys = {tuple(index["key"]) for index in site.instances.index_information().values()}
    for wanted in ((("provider", 1), ("sandboxId", 1)), (("sourceType", 1), ("sourceId", 1), ("userId", 1)), (("status", 1), ("lastActiveAt", 1)),
                   (("status", 1), ("operation.heartbeatAt", 1)), (("sourceType", 1), ("status", 1), ("provider", 1)), (("outbox.id", 1),)):
        assert wanted in keys, keys


def test_five_setups_at_once(site):
    done = [subprocess.Popen([bin_dir() / "sk-lifecycle", "--setup"], env=site.service_environment(), stderr=subprocess.PIPE) for _ in range(5)]
    for one in done:
        assert one.wait(60) == 0, one.stderr.read()


def test_it_waits_for_what_is_not_there_yet(site):
    """No crash loop: alive, not ready, and it says what is missing."""
    dead = free_port()
    replica = site.start("early", SANDKEEP_NATS_URL=f"nats://127.0.0.1:{dead}", SANDKEEP_REDIS_URL=f"redis://127.0.0.1:{free_port()}")

    def answers():
        with contextlib.suppress(OSError):
            return replica.get("/readyz")
    status, body = eventually(answers, 15)
    eventually(lambda: '"nats"' in replica.get("/readyz?verbose")[1] and replica.get("/readyz")[0] == 503, 10)
    assert replica.get("/livez")[0] == 200 and replica.process.poll() is None
    assert replica.terminate() == 0


def test_it_gives_up_where_it_was_told_to(site):
    environment = {**site.service_environment(), "SANDKEEP_NATS_URL": f"nats://127.0.0.1:{free_port()}", "SANDKEEP_START_LIMIT_SECONDS": "1",
                   "SANDKEEP_LIFECYCLE_ADMIN_LISTEN": "127.0.0.1:0"}
    program(base=environment, expect=69, seconds=30)
    program("--setup", base=environment, expect=69, seconds=30)


def test_a_port_that_is_taken(site):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = program(base={**site.service_environment(), "SANDKEEP_LIFECYCLE_ADMIN_LISTEN": f"127.0.0.1:{taken.getsockname()[1]}"}, expect=2, seconds=30)
    assert "listen" in done.stderr or "address" in done.stderr.lower()


def test_ready_soon_and_gone_soon(site, capsys):
    replica = site.start("quick").ready(10)
    import time
    started = time.monotonic()
    assert replica.terminate() == 0
    took = time.monotonic() - started
    with capsys.disabled():
        print(f"\nended {took * 1000:.0f} ms after SIGTERM with nothing to do", flush=True)
    assert took < 5


def test_a_second_signal_ends_it_at_once(site, box):
    with site.provider_paused():
        replica = site.start("impatient").ready(10)
        os.kill(replica.pid, signal.SIGTERM)
        os.kill(replica.pid, signal.SIGTERM)
        assert replica.died(10) is not None


def test_it_drains_without_losing_requests(site, box):
    """Requests that come while a replica leaves are answered, by it or by the other."""
    site.bus.run("ensure", box)
    replica = site.start("leaving").ready(10)
    stop, replies = threading.Event(), []

    def asking():
        while not stop.is_set():
            replies.append(site.bus.request("get", {"sandboxId": box.id}))
    thread = threading.Thread(target=asking)
    thread.start()
    eventually(lambda: len(replies) > 50, 20)
    assert replica.terminate() == 0
    count = len(replies)
    eventually(lambda: len(replies) > count + 50, 20)
    stop.set()
    thread.join(20)
    assert all(reply["ok"] for reply in replies)


def test_ready_becomes_false_when_a_dependency_goes(site, box):
    site.bus.run("ensure", box)
    os.kill(site.pid("redis"), signal.SIGSTOP)
    try:
        eventually(lambda: site.admin(1, "/readyz")[0] == 503 and "redis" in site.admin(1, "/readyz?verbose")[1], 20, "it stays ready without Redis")
        assert site.admin(1, "/livez")[0] == 200
    finally:
        os.kill(site.pid("redis"), signal.SIGCONT)
    eventually(lambda: site.admin(1, "/readyz")[0] == 200, 20, "it does not become ready again")
    assert site.bus.run("stop", box)["status"] == "stopped"


def test_the_pages_are_for_get_only(site):
    address = site.client["SANDKEEP_LIFECYCLE_1_ADMIN_URL"].removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1])), 10) as connection:
        connection.sendall(b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        assert b" 405 " in connection.recv(200)
    assert http_get(site.client["SANDKEEP_LIFECYCLE_1_ADMIN_URL"] + "/livez")[0] == 200
