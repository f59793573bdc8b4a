# SPDX-License-Identifier: Apache-2.0
"""The life of a sandbox through the whole stack: what a user does, and what the records, events and the provider show."""
import json
import uuid

import pytest
from live import Box, ago, fastgpt_record, in_parallel, new_box, now, stamp
from waiting import eventually

CHAIN = ("claimed", "phase", "completed")


def kinds(site, box, after=0):
    return [event.kind.removeprefix("lifecycle.") for event in site.bus.heard(box.id) if event.kind.startswith("lifecycle.")][after:]


def test_a_whole_life(site, box):
    first = site.bus.send("ensure", box, deadline_ms=30000, params={"teamId": "team-life", "versionId": "v1", "reason": "chat"})
    answer = first.ok()
    assert answer["id"] == first.id and answer["sandboxId"] == box.id and answer["status"] == "running"
    view = answer["instance"]
    assert {name: view[name] for name in ("sandboxId", "provider", "sourceType", "sourceId", "userId", "status", "teamId", "versionId")} == {
        "sandboxId": box.id, "provider": "opensandbox", **box.source, "status": "running", "teamId": "team-life", "versionId": "v1"}
    assert "outbox" not in view and "operation" not in view and view["lastOperation"]["id"] == answer["operationId"]
    assert [step["phase"] for step in first.progress] == ["claimed", "providerEnsured"]
    assert {step["status"] for step in first.progress} == {"provisioning"}
    site.bus.hear(box.id, "lifecycle.completed")
    assert kinds(site, box) == ["claimed", "phase", "completed"]
    claimed = site.bus.heard(box.id, "lifecycle.claimed")[0].data
    assert claimed["from"] == "none" and claimed["to"] == "provisioning" and claimed["commandId"] == first.id
    assert claimed["reason"] == "chat" and claimed["teamId"] == "team-life" and claimed["sequence"] == 1
    assert site.bus.hear(box.id, "command.completed").data["commandId"] == first.id

    # The second one starts nothing and says so.
    again = site.bus.send("ensure", box).ok()
    assert again["status"] == "running" and "operationId" not in again and again["epoch"] == answer["epoch"]
    assert len(site.provider.objects(box)) == 1

    # A command and a file go in and come back, over the provider's own API.
    assert site.provider.shell(box, "echo hello; id -u >/dev/null") == (0, "hello")
    site.provider.upload(box, "/workspace/kept.txt", b"still here\n")
    assert site.provider.download(box, "/workspace/kept.txt") == b"still here\n"
    labels = site.provider.only(box)["metadata"]
    assert labels["sessionId"] == box.id and int(labels["sandkeep.dev/epoch"]) == answer["epoch"]

    stopped = site.bus.run("stop", box, params={"reason": "done"})
    assert stopped["status"] == "stopped" and stopped["epoch"] == answer["epoch"] + 1 and stopped["operationId"] != answer["operationId"]
    assert site.provider.objects(box) == [] and box.claim in site.provider.volumes()
    assert "operationId" not in site.bus.run("stop", box)  # nothing to do

    resumed = site.bus.run("ensure", box)
    assert resumed["status"] == "running" and resumed["epoch"] == answer["epoch"] + 2
    assert site.provider.download(box, "/workspace/kept.txt") == b"still here\n"

    deleted = site.bus.run("delete", box, params={"reason": "gone"})
    assert deleted["status"] == "none" and "instance" not in deleted and deleted["operationId"]
    site.bus.hear(box.id, "lifecycle.deleted")
    site.gone(box)
    assert [item for item in site.doctor() if item[0] == box.id] == []
    assert site.bus.run("delete", box)["status"] == "none"  # succeeds without a record

    # The timeline outlives the record.
    def complete():
        entries = site.timeline(box)
        return [(entry["type"], entry["result"]) for entry in entries] == [
            ("delete", "deleted"), ("provision", "completed"), ("stop", "completed"), ("provision", "completed")] and entries
    entries = eventually(complete, 10, lambda: site.timeline(box))
    assert [phase["name"] for phase in entries[0]["phases"]] == ["claimed", "providerDeleted", "volumeDeleted", "archiveDeleted"]
    assert all(entry["durationMs"] >= 0 and entry["owner"] and entry["epoch"] for entry in entries)
    assert entries[3]["commandId"] == first.id and entries[0]["reason"] == "gone"


def test_the_document_in_mongo_is_what_fastgpt_reads(site, box):
    answer = site.bus.run("ensure", box, params={"teamId": "t1"})
    document = site.record(box)
    assert {"provider", "sandboxId", "sourceType", "sourceId", "userId", "status", "lastActiveAt", "createdAt", "limit", "storage", "teamId",
            "image"} <= set(document)
    assert document["limit"] == {"cpuCount": 1, "memoryMiB": 2048, "storageSize": "1Gi"}
    assert document["image"] == {"repository": "localbox/default", "tag": "1"}
    assert document["storage"]["volumes"] == [{"name": "workspace", "claimName": box.claim, "mountPath": "/workspace"}]
    assert document["lastActiveAt"].year and document["createdAt"] <= document["lastActiveAt"]
    assert isinstance(document["epoch"], int) and document["epoch"] == answer["epoch"] > 1_600_000_000_000
    assert "operation" not in document and document["lastOperation"]["result"] == "completed"
    eventually(lambda: not site.record(box).get("outbox"), 5, "the outbox is not emptied")
    assert site.record(box)["sequence"] == 3


def test_a_new_life_has_a_higher_epoch_and_another_volume(site, box):
    first = site.bus.run("ensure", box)
    site.provider.upload(box, "/workspace/old", b"x")
    site.bus.run("delete", box)
    second = site.bus.run("ensure", box)
    assert second["epoch"] > first["epoch"]
    claim = site.record(box)["storage"]["volumes"][0]["claimName"]
    assert claim != box.claim and claim.startswith(f"fastgpt-session-{box.id}-")
    assert site.provider.shell(box, "ls /workspace") == (0, "")


@pytest.mark.parametrize("box_of", [
    lambda unique: Box(unique, "user", "workflowBuilder"), lambda unique: Box(unique, source_type="skillEdit"),
    lambda unique: Box("源-" + unique, "пользователь/../…?&%"), lambda unique: Box(unique, "-" * 128), lambda unique: Box(unique.ljust(64, "x"), "u")],
    ids=["workflowBuilder", "skillEdit", "unicode", "long-user", "long-source"])
def test_identities(site, box_of):
    box = box_of(new_box("id").source_id)
    answer = site.bus.run("ensure", box)
    assert answer["sandboxId"] == box.id and answer["instance"]["sourceId"] == box.source_id and answer["instance"]["userId"] == box.user_id
    assert site.bus.ask("find", **box.source)["sandboxId"] == box.id
    site.bus.run("delete", box)
    site.gone(box)


def test_skill_edit_has_one_user(site):
    box = Box(new_box("skill").source_id, source_type="skillEdit")
    command = site.bus.send("ensure", box, more={"source": {**box.source, "userId": "somebody"}}, deadline_ms=30000)
    assert command.ok()["instance"]["userId"] == "skillEdit"
    site.bus.run("delete", box)


def test_two_identities_that_hash_alike_are_never_merged(site):
    unique = new_box("x").source_id
    first, second = Box(unique + "-b", "c"), Box(unique, "b-c")
    assert first.id == second.id
    site.bus.run("ensure", first)
    site.bus.send("ensure", second).error("identity_mismatch")
    site.bus.send("delete", second).error("identity_mismatch")
    assert site.record(first)["sourceId"] == first.source_id
    site.bus.run("delete", first)


def test_commands_without_source_work_on_a_record(site, box):
    site.bus.run("ensure", box)
    assert site.bus.run("touch", box, source=False)["status"] == "running"
    assert site.bus.run("stop", box, source=False)["status"] == "stopped"
    assert site.bus.run("ensure", box, source=False)["status"] == "running"  # the record knows it
    assert site.bus.run("delete", box, source=False)["status"] == "none"
    error = site.bus.send("ensure", box, source=False).error("invalid_request")
    assert error["retryable"] is False and error["status"] == 400


def test_the_smallest_command_and_unknown_fields(site, box):
    site.bus.run("ensure", box)
    command, subject, _, headers = site.bus.prepare("touch", box, ident=f"small-{uuid.uuid4()}")
    small = json.dumps({"id": command.id}).encode()
    site.bus.send_many([(command, subject, small, headers)])
    assert command.ok()["status"] == "running"
    more = {"future": {"deep": [1, 2, {"x": None}]}, "params": {"reason": "r", "alsoNew": True}}
    assert site.bus.send("stop", box, more=more, deadline_ms=20000).ok()["status"] == "stopped"


def test_touch_is_activity_and_looking_is_not(site, box):
    site.bus.run("ensure", box)
    site.instances.update_one({"sandboxId": box.id}, {"$set": {"lastActiveAt": ago(minutes=5)}})
    before = site.record(box)["lastActiveAt"]
    site.bus.ask("get", sandboxId=box.id)
    site.bus.ask("status", **box.source)
    site.bus.ask("exists", sandboxId=box.id)
    site.doctor()
    assert site.record(box)["lastActiveAt"] == before
    site.bus.run("touch", box)
    assert site.record(box)["lastActiveAt"] > ago(minutes=1)
    events = len(site.bus.heard(box.id))
    site.bus.run("ensure", box)
    assert kinds(site, box, after=3) == [], events


def test_stop_if_idle_since(site, box):
    site.bus.run("ensure", box)
    active = site.record(box)["lastActiveAt"]
    late = site.bus.run("stop", box, params={"ifIdleSince": stamp(ago(hours=1))})
    assert late["status"] == "running" and "operationId" not in late and site.record(box)["lastActiveAt"] == active
    done = site.bus.run("stop", box, params={"ifIdleSince": stamp(now())})
    assert done["status"] == "stopped" and done["operationId"]


def test_pins_hold_off_an_idle_stop_but_not_one_that_was_asked_for(site, box):
    site.bus.run("ensure", box)
    pin = {"id": "p1", "kind": "editor", "expiresAt": ago(hours=-1)}
    site.instances.update_one({"sandboxId": box.id}, {"$set": {"pins": [pin]}})
    kept = site.bus.run("stop", box, params={"ifIdleSince": stamp(now())})
    assert kept["status"] == "running" and "operationId" not in kept and kept["instance"]["pins"][0]["id"] == "p1"
    site.instances.update_one({"sandboxId": box.id}, {"$set": {"pins": [{**pin, "expiresAt": ago(minutes=1)}]}})
    assert site.bus.run("stop", box, params={"ifIdleSince": stamp(now())})["status"] == "stopped"
    site.bus.run("ensure", box)
    site.instances.update_one({"sandboxId": box.id}, {"$set": {"pins": [pin]}})
    assert site.bus.run("stop", box)["status"] == "stopped"


def test_a_sandbox_removed_behind_our_back_is_repaired(site, box):
    first = site.bus.run("ensure", box)
    site.provider.upload(box, "/workspace/kept", b"1")
    site.provider.remove(site.provider.only(box)["id"])
    assert ("remote-missing" in {item[1] for item in site.doctor() if item[0] == box.id})
    second = site.bus.run("ensure", box)
    assert second["status"] == "running" and second["epoch"] == first["epoch"] + 2
    assert site.provider.download(box, "/workspace/kept") == b"1"
    site.bus.hear(box.id, "lifecycle.completed", count=3)
    reasons = [event.data.get("reason") for event in site.bus.heard(box.id, "lifecycle.claimed")]
    assert reasons[1:] == ["remote_missing", "remote_missing"]
    assert [item for item in site.doctor() if item[0] == box.id] == []


def test_a_paused_sandbox_is_resumed(site, box):
    site.bus.run("ensure", box)
    ident = site.provider.only(box)["id"]
    assert site.provider.call("POST", f"/v1/sandboxes/{ident}/pause")[0] == 202
    eventually(lambda: site.provider.only(box)["status"]["state"] == "Paused", 10)
    assert "operationId" not in site.bus.run("ensure", box)
    assert site.provider.only(box)["id"] == ident and site.provider.shell(box, "echo up") == (0, "up")


def test_what_a_client_asks_for_is_what_it_gets(site, box):
    limit = {"cpuCount": 0.5, "memoryMiB": 256, "storageSize": "512Mi"}
    answer = site.bus.run("ensure", box, params={"limit": limit, "image": {"repository": "localbox/other", "tag": "7"}, "provider": "opensandbox"})
    assert answer["instance"]["limit"] == limit and answer["instance"]["image"] == {"repository": "localbox/other", "tag": "7"}
    # The recorded image is kept by later ensures that name none, and by those that name the same.
    site.bus.run("stop", box)
    assert site.bus.run("ensure", box)["instance"]["image"]["tag"] == "7"
    assert site.bus.run("ensure", box, params={"image": {"repository": "localbox/other", "tag": "7"}})["status"] == "running"
    # Another image would be a convergence: not yet, and nothing happens.
    error = site.bus.send("ensure", box, params={"image": {"repository": "localbox/other", "tag": "8"}}).error("operation_blocked")
    assert error["status"] == 409 and error["retryable"] is False
    site.bus.send("ensure", box, params={"provider": "elsewhere"}).error("operation_blocked")
    assert site.bus.ask("status", sandboxId=box.id)["status"] == "upgradeRequired"


def test_a_provider_that_is_not_configured(site, box):
    site.bus.send("ensure", box, params={"provider": "sealosdevbox"}).error("invalid_request")
    site.instances.insert_one(fastgpt_record(box, "stopped", provider="sealosdevbox"))
    for op in ("ensure", "delete"):
        site.bus.send(op, box).error("operation_blocked")
    assert site.record(box)["status"] == "stopped"
    site.instances.delete_one({"sandboxId": box.id})


def test_a_trace_goes_through(site, box):
    trace = f"00-{uuid.uuid4().hex}-{uuid.uuid4().hex[:16]}-01"
    state = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
    site.bus.send("ensure", box, headers={"traceparent": trace, "tracestate": state}, deadline_ms=30000).ok()
    for kind in ("lifecycle.claimed", "lifecycle.completed", "command.completed"):
        headers = site.bus.hear(box.id, kind).headers
        assert headers["traceparent"] == trace
        # The record keeps the traceparent only, and lifecycle events come out of it.
        assert headers.get("tracestate") == (state if kind == "command.completed" else None)


def test_nobody_asks(site, box):
    """Without an inbox the outcome is an event, and is stored."""
    command = site.bus.send("ensure", box, reply=False)
    assert site.bus.hear(box.id, "command.completed", commandId=command.id).data["status"] == "running"
    assert site.db["sandkeep_commands"].find_one({"_id": f"{box.id}/{command.id}"})


def test_many_sandboxes_at_once(site):
    boxes = [new_box("many") for _ in range(40)]
    for command in site.bus.send_many(site.bus.prepare("ensure", box, deadline_ms=60000) for box in boxes):
        assert command.ok(60)["status"] == "running"
    assert all(in_parallel(lambda box: site.provider.shell(box, "echo x") == (0, "x"), boxes))
    site.delete_all(boxes)
    site.gone(*boxes)


def test_the_timeline_keeps_the_last_fifty(site, box):
    for _ in range(27):
        site.bus.run("ensure", box)
        site.bus.run("stop", box)

    def kept():
        entries = site.timeline(box)
        return len(entries) == 50 and entries[0]["type"] == "stop" and entries  # written a moment after the command's end
    entries = eventually(kept, 10, lambda: len(site.timeline(box)))
    assert [entry["type"] for entry in entries] == ["stop", "provision"] * 25
    assert [entry["epoch"] for entry in entries] == sorted((entry["epoch"] for entry in entries), reverse=True)
    assert site.db["sandkeep_operations"].count_documents({"sandboxId": box.id}) <= 60  # trimmed, if not at once
