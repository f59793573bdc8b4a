# SPDX-License-Identifier: Apache-2.0
"""What reality did to a running stack and nobody had planned for: commands of services that are not there, records that
somebody broke or wrote with a wrong clock, limits that are reached."""
import os
import signal
import time

import bson
import pytest
from live import Site, ago, fastgpt_operation, fastgpt_record, new_box, now
from waiting import eventually

BROKEN = 350  # more than one batch of the relay
EPOCH = 1_700_000_000_000


@pytest.mark.parametrize("rest", ["archive.create.app-0123456789abcdef", "archive.unheard-of", "source.delete.app.66a1f0c2",
                                  "migration.run", "migration.cancel"])
def test_commands_of_later_services_are_refused_not_kept(site, rest):
    subject = f"sandbox.cmd.{rest}"
    box = new_box("later")
    command = site.bus.send("ensure", box, subject=subject)
    error = command.error("operation_blocked")
    assert "release" in error["detail"] and error["retryable"] is False
    letter = site.bus.letter(lambda letter: letter.subject == f"sandbox.dead.{rest}" and command.id.encode() in letter.data)
    assert letter.headers["Sandbox-Reason"] == "operation_blocked"
    eventually(lambda: subject not in site.bus.stored("SANDBOX_COMMANDS"), 10, "it stays in the command stream")


def pending_event(document, ident):
    """A lifecycle event that a replica committed and could not publish any more."""
    return {"id": ident, "type": "lifecycle.completed", "time": now(), "epoch": bson.Int64(document["epoch"]),
            "sequence": bson.Int64(document["sequence"]), "from": "stopping", "to": "stopped",
            "operationId": "6d1c8a60-2f4b-4f0e-9c0a-111111111111", "operationType": "stop", "phase": "providerStopped", "durationMs": 5.0}


def test_broken_outboxes_hide_no_event(site):
    box, broken = new_box("pending"), []
    for index in range(BROKEN):  # their ids are the oldest of the index
        document = fastgpt_record(new_box(f"broken{index}"), "stopped", epoch=bson.Int64(EPOCH), sequence=bson.Int64(1))
        document["outbox"] = [{"id": f"00000000000000000000000{index:03d}", "type": "lifecycle.completed", "sequence": "seven"}]
        broken.append(document)
    # This one even has an event that can be read, but no subject to publish it to.
    document = fastgpt_record(new_box("subject"), "stopped", epoch=bson.Int64(EPOCH), sequence=bson.Int64(1))
    document["sandboxId"] = "app->.*"
    document["outbox"] = [pending_event(document, "00000000000000000000000999")]
    broken.append(document)
    site.instances.insert_many(broken)
    try:
        document = fastgpt_record(box, "stopped", epoch=bson.Int64(EPOCH), sequence=bson.Int64(1))
        document["outbox"] = [pending_event(document, "01KBA000000000000000000000")]
        site.tap.older.add(box.id)
        site.instances.insert_one(document)
        site.bus.hear(box.id, "lifecycle.completed", 10)
        eventually(lambda: not site.record(box).get("outbox"), 5, "the outbox is not emptied")
        assert site.instances.count_documents({"_id": {"$in": [item["_id"] for item in broken]}, "outbox.id": {"$gte": ""}}) == len(broken)
    finally:
        site.instances.delete_many({"_id": {"$in": [item["_id"] for item in broken]}})
    site.bus.run("delete", box)


def test_a_frozen_store_does_not_stretch_the_drain_time(site):
    replica = site.start("frozen", SANDKEEP_DRAIN_SECONDS="4").ready()
    mongo = site.pid("mongo")
    boxes = [new_box(f"frozen{index}") for index in range(6)]
    commands = [site.bus.send("ensure", box, deadline_ms=60000) for box in boxes]
    os.kill(mongo, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        assert replica.terminate(20) == 0
        took = time.monotonic() - begun
    finally:
        os.kill(mongo, signal.SIGCONT)
    assert took < 4 + 3 + 1, f"{took:.1f} s"  # the drain time, one ping of the store that is under way, and the rest
    for command in commands:
        command.ok(60)
    site.delete_all(boxes)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    """A stack of one place, and of short patience with FastGPT."""
    with Site(tmp_path_factory.mktemp("narrow"), replicas=1, AGENT_SANDBOX_MAX="1", SANDKEEP_FASTGPT_SHORT_STALE_MS="2000",
              SANDKEEP_LIFECYCLE_QUOTA_GRACE_MS="0") as one:
        yield one


def test_an_operation_of_fastgpt_from_a_clock_far_ahead_is_taken_over(narrow):
    box = new_box("ahead")
    beat = ago(days=-365)
    narrow.instances.insert_one(fastgpt_record(box, "stopping", fastgpt_operation("stopping", heartbeat=beat)))
    eventually(lambda: narrow.state(box) == "stopped", 20, lambda: f"it is still {narrow.record(box)}")
    narrow.bus.run("delete", box)
    assert narrow.remains(box) == []


def test_a_refusal_names_its_sandbox_and_a_take_over_needs_no_new_place(narrow):
    first, second, third = new_box("first"), new_box("second"), new_box("third")
    narrow.bus.run("ensure", first)
    refused = narrow.bus.send("ensure", second)
    refused.error("limit_reached")
    event = narrow.bus.hear(second.id, "quota.rejected")
    assert event.data == {"sandboxId": second.id, "scope": "global", "limit": 1, "commandId": refused.id}
    assert event.headers["ce-subject"] == second.id and narrow.bus.heard("unknown", "quota.rejected") == []
    # FastGPT let this one in: it is finished, not thrown out.
    narrow.instances.insert_one(fastgpt_record(third, "provisioning", fastgpt_operation("provisioning", heartbeat=ago(minutes=5))))
    eventually(lambda: narrow.state(third) == "running", 20, lambda: f"it is still {narrow.record(third)}")
    narrow.delete_all([first, third])
    assert narrow.remains(first) + narrow.remains(second) + narrow.remains(third) == []
