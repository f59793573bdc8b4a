# SPDX-License-Identifier: Apache-2.0
"""A dependency goes away while 50 sandboxes are created, stopped and deleted: NATS restarted and wiped, Redis restarted
and wiped, the Mongo-wire server and sk-localbox killed and restarted. Afterwards every command has its answer, nothing is
stuck and nothing is leaked.

A command that was in a wiped JetStream is lost by design (the store of commands is no store of record): its sender asks
again under the same id, as FastGPT does, and gets the one answer of that id."""
import os
import pathlib
import shutil
import signal
import threading
import time

import pytest
from live import eventually, new_box

BOXES = 50
STEPS = ("ensure", "stop", "ensure", "delete")
ROUND_SECONDS = 25      # the patience of a sender before it asks again
ANSWER_SECONDS = 180    # for all that one box asks for
OUTAGE_AFTER_STEPS = 30 # answers that were seen when the dependency goes away: the load is in full swing
RETRYABLE = {"sandbox_busy", "store_unavailable", "lease_unavailable", "provider_error", "provider_timeout", "deadline_exceeded",
             "internal", "agent_sandbox_initializing"}


class Load:
    """Every box goes through STEPS on a thread of its own; each step is asked for until it is answered for good."""

    def __init__(self, site, width=16):
        self.site, self.width = site, width
        self.boxes = [new_box(f"outage-{index}") for index in range(BOXES)]
        self.answered, self.repeats, self.problems = 0, 0, []
        self.lock = threading.Lock()
        self.swing = threading.Event()
        self.todo = list(self.boxes)
        self.threads = [threading.Thread(target=self._work, daemon=True) for _ in range(width)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            for thread in self.threads:
                thread.join(ANSWER_SECONDS * 2)
            assert not any(thread.is_alive() for thread in self.threads), "the load did not end"
            assert self.problems == []

    def _work(self):
        while True:
            with self.lock:
                if not self.todo:
                    return
                box = self.todo.pop()
            try:
                for number, op in enumerate(STEPS):
                    self._step(box, number, op)
            except Exception as error:  # noqa: BLE001 - reported by the main thread
                with self.lock:
                    self.problems.append(f"{box.id}: {type(error).__name__}: {error}")

    def _step(self, box, number, op):
        deadline = time.monotonic() + ANSWER_SECONDS
        ident = f"{box.id}-{number}"
        while True:
            assert time.monotonic() < deadline, f"{op} of {box.id} has no answer; record: {self.site.record(box)}"
            try:
                command = self.site.bus.send(op, box, ident=ident, deadline_ms=ROUND_SECONDS * 1000)
            except Exception:  # noqa: BLE001 - no PubAck: the bus is away, ask again
                self._again()
                continue
            if not command.arrived.wait(ROUND_SECONDS + 5):
                self._again()
                continue
            result = command.answers[0]
            if not result["ok"] and result["error"]["code"] in RETRYABLE:
                self._again()
                continue
            assert result["ok"], result
            with self.lock:
                self.answered += 1
                if self.answered >= OUTAGE_AFTER_STEPS:
                    self.swing.set()
            return

    def _again(self):
        with self.lock:
            self.repeats += 1


def wipe(site, member, *names):
    """Kills a member, takes its data away and starts it again."""
    site.stack("kill", member)
    state = pathlib.Path(site.environment["SANDKEEP_STATE_DIR"])
    for name in names:
        found = list(state.rglob(name))
        assert found, f"no {name} below {state}"
        for path in found:
            shutil.rmtree(path, ignore_errors=True)  # one may lie inside another
            assert not path.exists(), path
    site.stack("restart", member)


def restart(site, member):
    site.stack("kill", member)
    site.stack("restart", member)


OUTAGES = {
    "nats-restarted": lambda site: restart(site, "nats"),
    "nats-wiped": lambda site: wipe(site, "nats", "jetstream"),
    "redis-restarted": lambda site: restart(site, "redis"),
    "redis-wiped": lambda site: (site.redis.flushall(), restart(site, "redis"), site.redis.flushall()),
    "mongo-killed": lambda site: restart(site, "mongo"),
    "localbox-killed": lambda site: restart(site, "localbox"),
}


@pytest.mark.parametrize("name", OUTAGES)
def test_nothing_is_lost_or_stuck(site, name, capsys):
    began = time.monotonic()
    with Load(site) as load:
        assert load.swing.wait(120), f"the load did not get going: {load.answered} answers, {load.problems}"
        OUTAGES[name](site)
    site.settle(60)
    for box in load.boxes:
        assert site.record(box) is None, site.record(box)
    eventually(lambda: not site.doctor(), 60, lambda: f"findings: {site.doctor()}")
    site.gone(*load.boxes, seconds=60)
    with capsys.disabled():
        print(f"\n{name}: {len(load.boxes) * len(STEPS)} commands answered, {load.repeats} asked again, "
              f"{time.monotonic() - began:.0f} s", flush=True)


@pytest.mark.parametrize("member", ["redis", "nats", "mongo", "localbox"])
def test_a_hung_dependency_delays_and_loses_nothing(site, member):
    """SIGSTOP for longer than a lease lives: connections stay open and nobody answers."""
    boxes = [new_box(f"hung-{index}") for index in range(6)]
    for box in boxes:
        site.bus.run("ensure", box)
        site.provider.upload(box, "/workspace/kept", box.id.encode())
    pid = site.pid(member)
    commands = [site.bus.prepare("stop", box, deadline_ms=120000) for box in boxes]
    sent = site.bus.send_many(commands[:3])
    os.kill(pid, signal.SIGSTOP)
    try:
        # Longer than lease (1.5 s) and take-over (3 s) of the fast profile: virtual time does not exist out here.
        threading.Event().wait(6)
    finally:
        os.kill(pid, signal.SIGCONT)
    sent += site.bus.send_many(commands[3:])
    for command in sent:
        result = command.result(120)
        assert result["ok"] or result["error"]["retryable"], result
    for box in boxes:
        site.bus.run("stop", box, 60)
        site.bus.run("ensure", box, 60)
        assert len(site.provider.objects(box)) == 1
        assert site.provider.download(box, "/workspace/kept") == box.id.encode()
    site.delete_all(boxes)
    site.settle(60)
    eventually(lambda: not site.doctor(), 30, lambda: f"findings: {site.doctor()}")
