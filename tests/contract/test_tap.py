# SPDX-License-Identifier: Apache-2.0
"""The tap on a real NATS server: what it must notice, and what it must let pass. The messages are the examples."""

import asyncio
import copy
import json
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import nats
import pytest
from catalog import PROTO
from tap import Tap

HERE = Path(__file__).resolve().parent
EXAMPLES = {path.stem: json.loads(path.read_text("utf-8")) for path in (PROTO / "examples").glob("*.json")}
SANDBOX = EXAMPLES["command.ensure"]["payload"]["sandboxId"]

pytestmark = pytest.mark.skipif(shutil.which("nats-server") is None, reason="needs nats-server")


class Server:
    def __init__(self, folder):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.folder, self.url, self.process = folder, "nats://127.0.0.1:%d" % self.port, None

    def start(self):
        self.process = subprocess.Popen(
            ["nats-server", "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self.folder)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return self
            time.sleep(0.05)
        raise AssertionError("nats-server does not listen")

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def server(tmp_path):
    server = Server(tmp_path / "nats").start()
    yield server
    server.kill()


def say(url, messages):
    """Publishes (subject, headers, payload[, reply]) in order."""

    async def run():
        nc = await nats.connect(url)
        for subject, headers, payload, *reply in messages:
            data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
            await nc.publish(subject, data, headers=headers or None, reply=reply[0] if reply else "")
        await nc.flush()
        await nc.close()

    asyncio.run(run())


def example(key):
    item = copy.deepcopy(EXAMPLES[key])
    return item["subject"], item.get("headers"), item["payload"]


def event(sequence, kind, start, end, operation, phase, epoch, event_id=None, **more):
    subject, headers, data = example("event.lifecycle." + kind)
    data.update(sequence=sequence, epoch=epoch, **{"from": start, "to": end}, **more)
    data["operation"].update(type=operation, phase=phase)
    event_id = event_id or "id-%d-%d" % (epoch, sequence)
    headers.update({"ce-id": event_id, "Nats-Msg-Id": event_id})
    return subject, headers, data


RUN = [
    event(1, "claimed", "none", "provisioning", "provision", "claimed", 100),
    event(2, "phase", "provisioning", "provisioning", "provision", "providerEnsured", 100),
    event(3, "completed", "provisioning", "running", "provision", "providerEnsured", 100),
    event(4, "claimed", "running", "stopping", "stop", "claimed", 101),
]
CONVERSATION = [
    example("command.ensure"),
    example("progress"),
    example("result.ok"),
    ("sandbox.rpc.lifecycle.get", None, {"sandboxId": SANDBOX}, "_INBOX.rpc.1"),
    ("_INBOX.rpc.1", None, EXAMPLES["rpc.get.reply"]["payload"]),
    example("event.command.completed"),
    example("event.command.rejected"),
    example("event.quota.rejected"),
    example("rpc.wake"),
    ("sandbox.dead.lifecycle.ensure.nonsense", EXAMPLES["dead"]["headers"], b"\xff\x00 anything"),
    ("sandbox.cmd.lifecycle.ensure." + SANDBOX, None, b"not JSON, on purpose"),
    ("_INBOX.somebody.else", None, b"none of our business"),
    ("other.service", None, b"neither"),
]


def listen(server, messages, **options):
    with Tap(server.url, **options) as tap:
        say(server.url, messages)
        tap.stop(settle=0.3)
    return tap


def test_good_traffic_is_clean(server):
    tap = listen(server, CONVERSATION + RUN + [RUN[1]])
    assert tap.faults == []
    tap.assert_clean()
    assert tap.counts["events"] == 7 and tap.counts["events again"] == 1
    assert tap.counts["answers"] == 1 and tap.counts["progress"] == 1 and tap.counts["replies"] == 1
    assert tap.counts["dead letters"] == 1 and tap.counts["commands"] == 2 and tap.counts["commands_invalid"] == 1
    assert tap.unanswered() == []


def changed(key, change):
    subject, headers, payload = example(key)
    change(subject, headers, payload)
    return subject, headers, payload


ASK = example("command.ensure")
BAD = {
    "unknown subject": [("sandbox.evt.%s.lifecycle.exploded" % SANDBOX, EXAMPLES["event.lifecycle.claimed"]["headers"], {})],
    "unknown branch": [("sandbox.news.today", None, {})],
    "event is not JSON": [(RUN[0][0], RUN[0][1], b"{")],
    "event with an undocumented member": [changed("event.lifecycle.claimed", lambda s, h, p: p.update(secret=1))],
    "event without a header": [changed("event.lifecycle.claimed", lambda s, h, p: h.pop("ce-time"))],
    "event type and subject differ": [changed("event.lifecycle.claimed", lambda s, h, p: h.update({"ce-type": "dev.sandkeep.lifecycle.phase.v1"}))],
    "event of another sandbox": [changed("event.lifecycle.claimed", lambda s, h, p: p.update(sandboxId="app-0000000000000000"))],
    "message id and ce-id differ": [changed("event.lifecycle.claimed", lambda s, h, p: h.update({"Nats-Msg-Id": "x"}))],
    "one id, two events": [RUN[0], (RUN[0][0], RUN[0][1], dict(RUN[0][2], reason="other"))],
    "gap": [RUN[0], RUN[2]],
    "starts late": [RUN[1]],
    "sequence twice": [RUN[0], event(1, "claimed", "none", "provisioning", "provision", "claimed", 100, event_id="another")],
    "chain broken": [RUN[0], RUN[1], event(3, "completed", "provisioning", "stopped", "provision", "providerEnsured", 100)],
    "epoch does not rise": RUN[:3] + [event(4, "claimed", "running", "stopping", "stop", "claimed", 100)],
    "dead letter without a reason": [changed("dead", lambda s, h, p: h.pop("Sandbox-Reason"))],
    "answer is not JSON": [ASK, (ASK[1]["Sandbox-Reply-To"], None, b"oops")],
    "answer of the wrong shape": [ASK, (ASK[1]["Sandbox-Reply-To"], None, {"id": ASK[2]["id"], "ok": True})],
    "answer to nobody's command": [ASK, (ASK[1]["Sandbox-Reply-To"], None, dict(EXAMPLES["result.ok"]["payload"], id="other"))],
    "two final answers": [ASK, example("result.ok"), example("result.ok")],
    "progress after the end": [ASK, example("result.ok"), example("progress")],
    "reply of the wrong shape": [CONVERSATION[3], ("_INBOX.rpc.1", None, {"ok": True, "data": {"sandboxId": 7}})],
    "reply is not JSON": [CONVERSATION[3], ("_INBOX.rpc.1", None, b"<html>")],
}


@pytest.mark.parametrize("name", sorted(BAD))
def test_bad_traffic_is_noticed(server, name):
    tap = listen(server, BAD[name])
    assert tap.fault_count > 0, tap.summary()
    with pytest.raises(AssertionError):
        tap.assert_clean()


def test_a_late_tap_accepts_any_first_sequence(server):
    assert listen(server, RUN[1:], from_start=False).faults == []


def test_what_was_stored_while_it_was_away_counts(server):
    async def stream():
        nc = await nats.connect(server.url)
        await nc.jetstream().add_stream(name="SANDBOX_EVENTS", subjects=["sandbox.evt.>"])
        await nc.close()

    asyncio.run(stream())
    say(server.url, RUN[:2])
    with Tap(server.url) as tap:  # comes after two events: reads them from the stream
        say(server.url, RUN[2:])
        tap.stop(settle=0.3)
    assert tap.faults == [] and tap.counts["events"] == 4
    with Tap(server.url) as tap:
        server.kill()
        server.start()
        time.sleep(1)
        tap.stop(settle=0.3)
    assert tap.disconnects > 0 and tap.faults == [] and tap.counts["events"] == 4


def test_gaps_while_the_server_was_away_are_no_fault(server):
    with Tap(server.url) as tap:
        say(server.url, RUN[:1])
        server.kill()
        server.start()
        for _ in range(100):
            if tap._nc.is_connected:
                break
            time.sleep(0.1)
        say(server.url, RUN[2:3])
        tap.stop(settle=0.5)
    assert tap.faults == [] and tap.counts["gaps while the server was away"] == 1


def test_the_program_wraps_a_run(server, tmp_path):
    script = tmp_path / "run.py"
    script.write_text("import sys; sys.path.insert(0, %r)\nfrom test_tap import *\nsay(%r, %s)\nsys.exit(int(sys.argv[1]))\n"
                      % (str(HERE), server.url, "CONVERSATION if sys.argv[2] == 'good' else BAD['unknown branch']"), "utf-8")

    def run(status, kind):
        report = tmp_path / "report.json"
        done = subprocess.run([sys.executable, str(HERE / "tap.py"), "--url", server.url, "--report", str(report), "--",
                               sys.executable, str(script), status, kind], capture_output=True, text=True, timeout=60)
        return done.returncode, json.loads(report.read_text("utf-8")), done.stderr

    assert run("0", "good")[0] == 0
    assert run("3", "good")[0] == 3
    status, report, text = run("0", "bad")
    assert status == 1 and report["faultCount"] == 1 and "FAULT sandbox.news.today" in text


def test_the_fixture(server, nats_tap):
    tap = nats_tap(server.url)
    say(server.url, CONVERSATION)
    tap.stop(settle=0.3)
    assert tap.counts["answers"] == 1
