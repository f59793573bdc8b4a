# SPDX-License-Identifier: Apache-2.0
"""skctl against a real NATS server and a service of ours that says what the test tells it to."""
import asyncio
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import threading
import time

import nats
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLEARED = ("SANDKEEP_", "AGENT_SANDBOX_")
SANDBOX = "app-8a3cb7a4e074fa1d"
IDENTITY = ("--app", "66a1f0c2b7d4e8a1c0d3e501", "--user", "66b2aa10c4f3d5e7a9b1c201")


def bin_dir():
    if os.environ.get("SANDKEEP_BIN_DIR"):
        return pathlib.Path(os.environ["SANDKEEP_BIN_DIR"])
    found = [ROOT / "build" / preset / "bin" for preset in ("debug", "release", "asan")]
    return next((folder for folder in found if (folder / "skctl").exists()), found[0])


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """One nats-server that may be stopped and started again on the same port and store."""

    def __init__(self, folder):
        self.folder, self.port, self.process = folder, free_port(), None
        self.url = f"nats://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        program = shutil.which("nats-server") or "/usr/sbin/nats-server"
        self.process = subprocess.Popen([program, "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self.folder)],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert time.monotonic() < deadline, "nats-server did not start"
                time.sleep(0.02)

    def stop(self):
        self.process.kill()
        self.process.wait()


class Service:
    """Runs on a thread of its own. `answers` maps an op to a function (command, headers) -> list of (headers, body)."""

    def __init__(self, url):
        self.url, self.commands, self.requests = url, [], []
        self.answers, self.rpc = {}, {}
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.wait(self.connect())

    def wait(self, coroutine, timeout=20):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout)

    async def connect(self):
        self.nc = await nats.connect(self.url, max_reconnect_attempts=-1, reconnect_time_wait=0.1)
        self.js = self.nc.jetstream()
        for name, subjects in (("SANDBOX_COMMANDS", ["sandbox.cmd.>"]), ("SANDBOX_EVENTS", ["sandbox.evt.>"])):
            await self.js.add_stream(name=name, subjects=subjects)
        await self.nc.subscribe("sandbox.cmd.>", cb=self.on_command)

    async def on_command(self, message):
        command = json.loads(message.data)
        self.commands.append({"subject": message.subject, "headers": dict(message.headers or {}), "body": command})
        answer = self.answers.get(message.subject.split(".")[3])
        inbox = (message.headers or {}).get("Sandbox-Reply-To")
        if answer and inbox:
            for headers, body in answer(command) or []:
                await self.nc.publish(inbox, json.dumps(body).encode(), headers=headers)

    def serve(self, method, answer):
        async def handler(message):
            self.requests.append((method, json.loads(message.data)))
            await message.respond(json.dumps(answer(json.loads(message.data))).encode())
        self.wait(self.nc.subscribe(f"sandbox.rpc.lifecycle.{method}", queue="lifecycle", cb=handler))
        self.wait(self.nc.flush())

    def event(self, event_type, sandbox=SANDBOX, **data):
        async def publish():
            headers = {"ce-id": data.pop("id", f"e{time.monotonic_ns()}"), "ce-type": f"dev.sandkeep.{event_type}.v1", "ce-subject": sandbox,
                       "ce-source": "/sandkeep/lifecycle", "ce-specversion": "1.0", "ce-time": "2026-11-30T08:00:00.000Z",
                       "content-type": "application/json"}
            await self.js.publish(f"sandbox.evt.{sandbox}.{event_type}", json.dumps(data).encode(), headers=headers)
        self.wait(publish())

    def close(self):
        async def end():
            await self.nc.close()
        self.wait(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


@pytest.fixture
def server(tmp_path):
    one = Server(tmp_path / "jetstream")
    yield one
    one.stop()


@pytest.fixture
def service(server):
    one = Service(server.url)
    yield one
    one.close()


@pytest.fixture
def environment():
    return {name: value for name, value in os.environ.items() if not name.startswith(CLEARED)}


class Result:
    def __init__(self, done):
        self.status, self.out, self.err = done.returncode, done.stdout, done.stderr

    @property
    def json(self):
        return json.loads(self.out)  # fails when anything else stands on stdout


@pytest.fixture
def offline(environment):
    def run(*arguments, stdin=None):
        return Result(subprocess.run([bin_dir() / "skctl", *arguments], env=environment, capture_output=True, text=True, timeout=60, input=stdin,
                                     check=False))
    return run


@pytest.fixture
def skctl(server, environment):
    environment["SANDKEEP_NATS_URL"] = server.url

    def run(*arguments, stdin=None):
        return Result(subprocess.run([bin_dir() / "skctl", *arguments], env=environment, capture_output=True, text=True, timeout=60, input=stdin,
                                     check=False))
    return run


@pytest.fixture
def start(server, environment):
    """Starts skctl in the background; it is ended after the test."""
    environment["SANDKEEP_NATS_URL"] = server.url
    running = []

    def run(*arguments):
        running.append(subprocess.Popen([bin_dir() / "skctl", *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return running[-1]

    yield run
    for process in running:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()


def wait_for(condition, seconds=15):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)
