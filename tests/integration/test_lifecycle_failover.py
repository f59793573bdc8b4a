# SPDX-License-Identifier: Apache-2.0
"""Replicas that die, leave, hang, or work side by side: what becomes of their operations, and how soon. The bounds are
those of the fast profile (deploy/local/README.md); measured times are printed."""
import contextlib
import os
import signal
import time

import pytest
from live import in_parallel, new_box
from waiting import eventually

TAKEOVER_SECONDS = 10  # issue: at most that, with the fast profile
HANDOVER_SECONDS = 1


@pytest.fixture(autouse=True)
def replicas_die(site):
    site.tap.repeats = True


def owner_pid(site, box):
    owner = eventually(lambda: ((site.record(box) or {}).get("operation") or {}).get("owner"), 15, "nobody owns it")
    return int(owner.split(":")[-2])


def member_of(site, pid):
    return next(name for name, row in site.status().items() if row["pid"] == pid)


@contextlib.contextmanager
def in_the_middle(site, box, op="ensure"):
    """The command is under way, its owner waits for the provider: yields (command, owner's pid, member)."""
    with site.provider_paused():
        sent = site.bus.send(op, box, deadline_ms=60000)
        pid = owner_pid(site, box)
        yield sent, pid, member_of(site, pid)


@pytest.mark.parametrize("op", ["ensure", "stop", "delete"])
def test_another_replica_takes_over_after_kill_9(site, box, op, capsys):
    if op != "ensure":
        site.bus.run("ensure", box)
        site.provider.upload(box, "/workspace/kept", b"1")
    with in_the_middle(site, box, op) as (sent, pid, member):
        before = site.record(box)
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        taken = site.bus.hear(box.id, "lifecycle.takenover", TAKEOVER_SECONDS + 5)
    took = taken.at - killed
    done = site.bus.hear(box.id, "lifecycle.deleted" if op == "delete" else "lifecycle.completed", 20, operation__type={"ensure": "provision"}.get(op, op))
    answer = sent.ok(30)
    site.stack("restart", member)
    with capsys.disabled():
        print(f"\n{op}: taken over {took:.1f} s after kill -9, answered after {sent.answered_at - killed:.1f} s", flush=True)
    assert took <= TAKEOVER_SECONDS
    assert taken.data["epoch"] == before["epoch"] + 1 and taken.data["operation"]["phase"] == before["operation"]["phase"]
    assert done.data["epoch"] == taken.data["epoch"]
    assert answer["status"] == {"ensure": "running", "stop": "stopped", "delete": "none"}[op]
    entries = eventually(lambda: (lambda found: found if len(found) >= 2 and found[0]["result"] != "running" else None)(site.timeline(box)), 10)
    owners = [entry["owner"].split(":")[-2] for entry in entries[:2]]
    assert owners[1] == str(pid) and owners[0] != str(pid)  # who did what, with which epoch
    if op == "stop":
        site.bus.run("ensure", box)
        assert site.provider.download(box, "/workspace/kept") == b"1"
    if op != "delete":
        assert len(site.provider.objects(box)) == 1


@pytest.mark.parametrize("op", ["ensure", "stop", "delete"])
def test_a_replica_that_is_asked_to_end_hands_over(site, box, op, capsys):
    """The lease is free and the owner gone at once: the other one continues within a second."""
    if op != "ensure":
        site.bus.run("ensure", box)
    with in_the_middle(site, box, op) as (sent, pid, member):
        before = site.record(box)
        claims = len(site.bus.heard(box.id, "lifecycle.claimed")) + len(site.bus.heard(box.id, "lifecycle.takenover"))
        os.kill(pid, signal.SIGTERM)
        asked = time.monotonic()

        def continued():
            found = [event for event in site.bus.heard(box.id) if event.kind in ("lifecycle.claimed", "lifecycle.takenover")]
            return found[claims] if len(found) > claims else None
        again = eventually(continued, 10, lambda: f"nobody continues: {site.record(box)}")
    took = again.at - asked
    answer = sent.ok(30)
    eventually(lambda: not os.path.exists(f"/proc/{pid}") or open(f"/proc/{pid}/stat").read().split(")")[1].split()[0] == "Z", 30, "it did not end")
    site.stack("restart", member)
    with capsys.disabled():
        print(f"\n{op}: continued {took * 1000:.0f} ms after SIGTERM, answered after {(sent.answered_at - asked):.1f} s", flush=True)
    assert took <= HANDOVER_SECONDS
    assert again.data["epoch"] == before["epoch"] + 1
    assert answer["status"] == {"ensure": "running", "stop": "stopped", "delete": "none"}[op]


def test_kill_9_of_both(site, box):
    """Nobody is left; whoever comes next finishes it."""
    with in_the_middle(site, box) as (sent, pid, _):
        for name in site.members():
            site.stack("kill", name)
    assert site.record(box)["operation"]["owner"].split(":")[-2] == str(pid)
    site.stack("up")
    assert sent.ok(40)["status"] == "running"
    assert len(site.provider.objects(box)) == 1


def test_a_replica_that_stood_still_does_no_harm(site, box):
    """SIGSTOP past the take-over, then it wakes up in the middle of its work: it must not commit or remove anything."""
    with in_the_middle(site, box) as (sent, pid, _):
        os.kill(pid, signal.SIGSTOP)
        try:
            site.bus.hear(box.id, "lifecycle.takenover", TAKEOVER_SECONDS + 5)
            os.kill(site.pid("localbox"), signal.SIGCONT)
            site.bus.hear(box.id, "lifecycle.completed", 20)
            epoch = site.record(box)["epoch"]
        finally:
            os.kill(pid, signal.SIGCONT)
    assert sent.ok(40)["status"] == "running"
    site.settle()
    record = site.record(box)
    assert record["status"] == "running" and record["epoch"] == epoch
    assert len(site.provider.objects(box)) == 1 and site.provider.shell(box, "echo ok") == (0, "ok")


def test_a_dead_replica_among_many_commands(site):
    """Thirty sandboxes begin, one replica dies: every command has its answer, nothing is left twice."""
    boxes = [new_box("crash") for _ in range(30)]
    with site.provider_paused():
        sent = site.bus.send_many(site.bus.prepare("ensure", box, deadline_ms=90000) for box in boxes)
        eventually(lambda: site.instances.count_documents({"sandboxId": {"$in": [box.id for box in boxes]}}) >= 10, 20)
        site.stack("kill", "lifecycle-1")
    for one in sent:
        assert one.ok(90)["status"] == "running"
    site.stack("restart", "lifecycle-1")
    assert all(len(site.provider.objects(box)) == 1 for box in boxes)
    site.delete_all(boxes)
    site.gone(*boxes)


def test_events_that_a_dead_replica_left_are_published(site, box):
    """Committed, not published: in the outbox. Within 5 s of a replica running they are out (contract §4)."""
    with in_the_middle(site, box) as (sent, pid, member):
        os.kill(site.pid("nats"), signal.SIGSTOP)  # the claim of the next command cannot be told to anybody
        try:
            os.kill(site.pid("localbox"), signal.SIGCONT)
            eventually(lambda: site.state(box) == "running", 20, lambda: site.record(box))
            left = site.record(box)["outbox"]
            for name in site.members():
                site.stack("kill", name)
        finally:
            os.kill(site.pid("nats"), signal.SIGCONT)
    assert [event["type"] for event in left][-1:] == ["lifecycle.completed"]
    started = time.monotonic()
    site.stack("up")
    event = site.bus.hear(box.id, "lifecycle.completed", 20)
    assert event.headers["ce-id"] == left[-1]["id"]
    assert event.at - started < 15
    eventually(lambda: not site.record(box).get("outbox"), 10)
    assert sent.ok(40)["status"] == "running"


def test_four_replicas_share_the_work(site):
    site.stack("up", "--scale", "lifecycle=4", "--only", ",".join(["nats,redis,mongo,localbox"] + [f"lifecycle-{number}" for number in range(1, 5)]))
    boxes = [new_box("four") for _ in range(40)]
    sent = site.bus.send_many(site.bus.prepare("ensure", box, deadline_ms=60000) for box in boxes)
    assert all(one.ok(60)["status"] == "running" for one in sent)
    owners = {entry["owner"] for entries in in_parallel(site.timeline, boxes) for entry in entries}
    assert len(owners) >= 2
    seen = {site.bus.ask("stats")["replica"]["id"] for _ in range(100)}
    assert len(seen) == 4
    site.delete_all(boxes)
    site.stack("up", "--scale", "lifecycle=2", "--only", ",".join(["nats,redis,mongo,localbox"] + site.members()))
    site.gone(*boxes)


def test_a_repeated_command_that_waited_does_not_bring_back_what_was_deleted(site, box):
    """One replica stands still with copies of an ensure that wait there; the other one runs it, and then a delete."""
    site.bus.run("ensure", box)
    with in_the_middle(site, box, "stop") as (stop, pid, _):
        ident = f"again-{box.id}"
        copies = site.bus.send_many(site.bus.prepare("ensure", box, ident=ident, deadline_ms=60000) for _ in range(20))
        eventually(lambda: site.bus.consumer().num_pending == 0, 10, "not all are delivered")
        other = next(row["pid"] for name, row in site.status().items() if name.startswith("lifecycle-") and row["pid"] != pid)
        os.kill(other, signal.SIGSTOP)
        try:
            os.kill(site.pid("localbox"), signal.SIGCONT)
            assert stop.ok(30)["status"] == "stopped"
            first = eventually(lambda: next((copy for copy in copies if copy.answers), None), 30, "no copy was run")
            assert first.answers[0]["status"] == "running"
            assert site.bus.send("delete", box, deadline_ms=60000).ok(60)["status"] == "none"
        finally:
            os.kill(other, signal.SIGCONT)
    for copy in copies:
        assert copy.result(30) == first.answers[0]
    site.settle()
    assert site.state(box) == "none"
    site.gone(box)
