# SPDX-License-Identifier: Apache-2.0
"""The example client (examples/fastgpt-client) against a service played here: what it sends is as the contract says, and
it prints what comes. The tour runs it against the real service."""

import asyncio
import copy
import hashlib
import json
import os
import shutil
import subprocess
import threading

import nats
import pytest
from catalog import ROOT, Catalog
from tap import Tap
from test_tap import EXAMPLES, server  # noqa: F401  (a fixture)

CLIENT = ROOT / "examples" / "fastgpt-client"
pytestmark = pytest.mark.skipif(
    shutil.which("npm") is None or shutil.which("nats-server") is None or not (CLIENT / "node_modules").exists(),
    reason="needs npm, nats-server and scripts/install-deps")


class Service:
    """Answers commands on a stream of its own: progress, an event, the result; `fail` fails that operation."""

    def __init__(self, url, fail=None):
        self.url, self.fail, self.commands, self.sequence = url, fail, [], 0
        self.loop = asyncio.new_event_loop()
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def __enter__(self):
        self.thread.start()
        assert self.ready.wait(10)
        return self

    def __exit__(self, *_):
        asyncio.run_coroutine_threadsafe(self.nc.close(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)

    def run(self):
        async def start():
            self.nc = await nats.connect(self.url)
            await self.nc.jetstream().add_stream(name="SANDBOX_COMMANDS", subjects=["sandbox.cmd.>"])
            await self.nc.subscribe("sandbox.cmd.lifecycle.>", cb=self.on_command)
            await self.nc.flush()

        self.loop.run_until_complete(start())
        self.ready.set()
        self.loop.run_forever()

    async def on_command(self, message):
        command = json.loads(message.data)
        self.commands.append((message.subject, dict(message.headers), command))
        inbox, sandbox = message.headers["Sandbox-Reply-To"], command["sandboxId"]
        progress = dict(EXAMPLES["progress"]["payload"], id=command["id"])
        await self.nc.publish(inbox, json.dumps(progress).encode(), headers={"Sandbox-Progress": "1"})
        event = copy.deepcopy(EXAMPLES["event.lifecycle.claimed"])
        self.sequence += 1
        event["payload"].update(sandboxId=sandbox, sequence=1, epoch=self.sequence)
        event["headers"].update({"ce-subject": sandbox, "ce-id": "e%d" % self.sequence, "Nats-Msg-Id": "e%d" % self.sequence})
        await self.nc.publish("sandbox.evt.%s.lifecycle.claimed" % sandbox, json.dumps(event["payload"]).encode(), headers=event["headers"])
        if command["op"] == self.fail:
            result = dict(EXAMPLES["result.failed"]["payload"], id=command["id"], sandboxId=sandbox)
        else:
            result = {"id": command["id"], "ok": True, "sandboxId": sandbox, "status": "running"}
        await self.nc.publish(inbox, json.dumps(result).encode())


def run_client(url, *arguments):
    environment = dict(os.environ, SANDKEEP_NATS_URL=url)
    return subprocess.run(["npm", "start", "--silent", "--", *arguments], cwd=CLIENT, env=environment, capture_output=True, text=True, timeout=120)


def test_the_example_client(server):  # noqa: F811
    catalog = Catalog()
    with Service(server.url) as service, Tap(server.url, from_start=False) as tap:
        done = run_client(server.url, "--app", "an app", "--user", "ünser")
        assert done.returncode == 0, done.stdout + done.stderr
        tap.stop(settle=0.2)
    assert [command["op"] for _, _, command in service.commands] == ["ensure", "stop", "delete"]
    want = "app-" + hashlib.sha256("an app-ünser".encode()).hexdigest()[:16]
    for subject, headers, command in service.commands:
        channel, parameters = catalog.route(subject)
        assert catalog.check(channel, headers, command) == []
        assert parameters["sandboxId"] == command["sandboxId"] == want
    assert tap.counts["commands"] == 3 and "commands_invalid" not in tap.counts
    assert tap.counts["answers"] == 3 and tap.unanswered() == []
    for line in ("result   ensure: running", "progress stop: provisioning, claimed", "event    dev.sandkeep.lifecycle.claimed.v1 provisioning"):
        assert line in done.stdout


def test_the_example_client_says_when_it_fails(server):  # noqa: F811
    with Service(server.url, fail="stop"):
        done = run_client(server.url, "--app", "a", "--user", "b")
    assert done.returncode == 1
    assert "result   stop: sandbox_busy: " in done.stdout and "delete" not in done.stdout
