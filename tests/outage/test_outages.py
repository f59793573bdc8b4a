# SPDX-License-Identifier: Apache-2.0
"""A dependency goes away under load: NATS, Redis, Mongo, sk-localbox are killed or restarted, and NATS and Redis lose all
they had, while fifty sandboxes are created, stopped and deleted. Afterwards every command has its answer, no workspace is
lost, nothing is stuck and nothing is left over (contract/service.md §1, messaging.md §1).

A client here does what a client has to: it sends a command again, under the same id, when it got no answer in time or one
that says that it may be tried again."""
import contextlib
import os
import random
import shutil
import signal
import threading
import time

import pytest
from live import Site, in_parallel, new_box
from waiting import eventually

SANDBOXES = 50
ROUNDS = 1  # ensure and stop of each sandbox, before the last ensure and its delete
ANSWER_SECONDS = 8  # then it is asked again
GIVE_UP_SECONDS = 90  # of one command, with all its repetitions


class Life:
    """One sandbox and its user: the workspace must hold what was written last."""

    def __init__(self, site, number):
        self.site, self.box, self.chance = site, new_box(f"outage-{number}"), random.Random(number)
        self.failed, self.commands, self.repeated = None, 0, 0

    def command(self, op):
        """Sends it until it is answered for good."""
        ident = f"o-{self.box.id[-8:]}-{self.commands}"
        self.commands += 1
        give_up = time.monotonic() + GIVE_UP_SECONDS
        while True:
            answer = None
            with contextlib.suppress(Exception):  # the bus is away: again
                sent = self.site.bus.send(op, self.box, ident=ident, deadline_ms=ANSWER_SECONDS * 1000)
                if sent.arrived.wait(ANSWER_SECONDS + 2):
                    answer = sent.answers[0]
            if answer and answer["ok"]:
                return answer
            if answer and not answer["error"]["retryable"]:
                raise AssertionError(f"{op} of {self.box}: {answer}")
            assert time.monotonic() < give_up, f"{op} of {self.box} has no answer after {GIVE_UP_SECONDS} s; the last one: {answer}; {self.site.record(self.box)}"
            self.repeated += 1
            time.sleep(0.2 + self.chance.random() * 0.3)

    def through_the_provider(self, action):
        """The provider may be the one that is away."""
        give_up = time.monotonic() + GIVE_UP_SECONDS
        while True:
            try:
                return action()
            except Exception as failure:
                assert time.monotonic() < give_up, f"{self.box}: {failure}"
                time.sleep(0.3)
                self.command("ensure")  # a sandbox may have gone with it: that is what ensure is for

    def run(self):
        try:
            for number in range(ROUNDS):
                assert self.command("ensure")["status"] == "running"
                if number == 0:
                    self.through_the_provider(lambda: self.site.provider.upload(self.box, "/workspace/mine", self.box.id.encode()))
                if self.chance.random() < 0.3:
                    self.command("touch")
                assert self.command("stop")["status"] == "stopped"
            assert self.command("ensure")["status"] == "running"
            found = self.through_the_provider(lambda: self.site.provider.download(self.box, "/workspace/mine"))
            assert found == self.box.id.encode(), f"{self.box}: the workspace is lost: {found!r}"
            assert self.command("delete")["status"] == "none"
        except BaseException as failure:
            self.failed = failure


def wipe_nats(site):
    shutil.rmtree(site.folder / "state" / "data" / "nats" / "jetstream")


def wipe_redis(site):
    for path in (site.folder / "state" / "data" / "redis").iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def outage(name, wipe=None, seconds=2.0, orderly=False):
    """Kill (or stop), stay away for a while, lose the data, come back."""
    def happen(site):
        if orderly:
            site.stack("restart", name)
            return
        site.stack("kill", name)
        time.sleep(seconds)  # this is the outage itself, nothing is waited for
        if wipe:
            wipe(site)
        site.stack("restart", name)
    return happen


def frozen(name, seconds):
    """It is there and says nothing: worse than gone."""
    def happen(site):
        pid = site.pid(name)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
    return happen


OUTAGES = {
    "nats-restarted": outage("nats", orderly=True), "nats-killed": outage("nats"), "nats-wiped": outage("nats", wipe_nats),
    "redis-killed": outage("redis"), "redis-wiped": outage("redis", wipe_redis), "redis-frozen": frozen("redis", 3),
    "mongo-killed": outage("mongo"), "mongo-frozen": frozen("mongo", 3),
    "localbox-restarted": outage("localbox", orderly=True), "localbox-killed": outage("localbox"), "localbox-frozen": frozen("localbox", 3),
}


def stories(site, boxes, left):
    """What happened to the sandboxes of these provider objects."""
    lines = []
    for box in boxes:
        mine = [item for item in left if item["metadata"].get("sessionId") == box.id]
        if not mine:
            continue
        lines += [f"\n{box}"] + [f"  object {item}" for item in mine] + [f"  operation {entry}" for entry in site.timeline(box)]
        lines += [f"  {event.kind} {event.headers.get('ce-time')} {event.data}" for event in site.bus.heard(box.id)]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Mongo is never killed here, so it need not sync each write."""
    with Site(tmp_path_factory.mktemp("outage"), from_start=False) as one:
        one.tap.repeats = True
        yield one


@pytest.fixture(scope="module")
def durable(tmp_path_factory):
    with Site(tmp_path_factory.mktemp("durable"), sync=True, from_start=False) as one:
        one.tap.repeats = True
        yield one


@pytest.mark.parametrize("name", OUTAGES)
def test_outage(request, name, capsys):
    site = request.getfixturevalue("durable" if name == "mongo-killed" else "quick")
    lives = [Life(site, number) for number in range(SANDBOXES)]
    threads = [threading.Thread(target=life.run, daemon=True) for life in lives]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    # In the midst of it: some have begun, some have not.
    eventually(lambda: sum(life.commands for life in lives) >= SANDBOXES, 60, "the work does not begin")
    OUTAGES[name](site)
    over = time.monotonic()
    for thread in threads:
        thread.join(240)
    took = time.monotonic() - over
    assert [str(life.failed) for life in lives if life.failed] == []
    assert not any(thread.is_alive() for thread in threads)
    site.settle(60, stream=False)
    with capsys.disabled():
        print(f"\n{name}: {sum(life.commands for life in lives)} commands, {sum(life.repeated for life in lives)} repeated; "
              f"the work ended {took:.1f} s after the outage, {time.monotonic() - began:.1f} s in all", flush=True)
    boxes = [life.box for life in lives]
    left = [item for item in site.provider.objects() if item["metadata"].get("sessionId") in {box.id for box in boxes}]
    assert left == [], stories(site, boxes, left)
    assert [volume for volume in site.provider.volumes() if any(box.id in volume for box in boxes)] == []
    assert site.instances.count_documents({"sandboxId": {"$in": [box.id for box in boxes]}}) == 0
    assert site.leases() == []
    assert site.doctor() == []
    assert {row["state"] for row in site.status().values()} == {"up"}
    for index in (1, 2):
        eventually(lambda: site.admin(index, "/readyz")[0] == 200, 20, f"replica {index} is not ready again")
        assert site.admin(index, "/livez")[0] == 200


def test_everything_at_once(durable):
    """Both replicas and all back ends are killed in the middle, and come back: the records say what was going on."""
    site = durable
    boxes = [new_box("all") for _ in range(20)]
    with site.provider_paused():
        sent = site.bus.send_many(site.bus.prepare("ensure", box, deadline_ms=120000) for box in boxes)
        eventually(lambda: site.instances.count_documents({"status": "provisioning"}) >= 5, 30)
    for name in ("lifecycle-1", "lifecycle-2", "localbox", "mongo", "redis", "nats"):
        site.stack("kill", name)
    site.stack("up")
    for one in sent:
        one.result(120)
    in_parallel(lambda box: site.bus.run("ensure", box, seconds=60), boxes)
    assert all(len(site.provider.objects(box)) == 1 for box in boxes)
    site.delete_all(boxes)
    site.settle(60, stream=False)
    site.gone(*boxes)
    assert site.doctor() == []
