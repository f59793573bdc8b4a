# SPDX-License-Identifier: Apache-2.0
"""Limits, sources and the sweeps, on a stack of its own with short periods: quotas as reservations, the check of FastGPT's
App and Skill collections, idle stop, orphans."""
import secrets

import bson
import pytest
from live import Box, Site, ago, fastgpt_operation, fastgpt_record, in_parallel, now
from waiting import eventually

ALL, PER_TEAM = 14, 3
SETTINGS = {
    "AGENT_SANDBOX_MAX": str(ALL), "AGENT_SANDBOX_MAX_PER_TEAM": str(PER_TEAM), "SANDKEEP_SOURCE_CHECK": "on",
    "SANDKEEP_LIFECYCLE_QUOTA_RECOUNT_MS": "700", "SANDKEEP_LIFECYCLE_QUOTA_GRACE_MS": "1500", "SANDKEEP_LIFECYCLE_IDLE_SWEEP_MS": "300",
    "SANDKEEP_LIFECYCLE_ORPHAN_SWEEP_MS": "500", "SANDKEEP_LIFECYCLE_ORPHAN_GRACE_MS": "2000", "SANDKEEP_LIFECYCLE_ORPHAN_REMOVE": "on",
}


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    def sources(site):
        site.db.create_collection("apps")
        site.db.create_collection("agent_skills")
    with Site(tmp_path_factory.mktemp("limits"), before=sources, **SETTINGS) as one:
        yield one
        one.settle()
        assert one.doctor() == [] and one.slots() == []


@pytest.fixture
def app(strict):
    """app(team) -> the Box of an App that exists; all are deleted after the test."""
    made = []

    def make(team=None, **fields):
        ident = bson.ObjectId()
        strict.db["apps"].insert_one({"_id": ident, "deleteTime": None, **({"teamId": bson.ObjectId(team)} if team else {}), **fields})
        made.append(Box(str(ident), "u"))
        return made[-1]
    yield make
    strict.db["apps"].update_many({}, {"$set": {"deleteTime": None}})
    strict.delete_all(made)
    strict.gone(*made)


def team():
    return secrets.token_hex(12)


def ensure(strict, box, **fields):
    return strict.bus.send("ensure", box, deadline_ms=30000, **fields)


# ---- quotas --------------------------------------------------------------------------------------------------------------
def test_a_team_has_its_limit_and_gets_slots_back(strict, app):
    ours, other = team(), team()
    boxes = [app(ours) for _ in range(PER_TEAM + 1)]
    for box in boxes[:PER_TEAM]:
        assert ensure(strict, box).ok()["instance"]["teamId"] == ours
    error = ensure(strict, boxes[-1]).error("team_limit_reached")
    assert error["status"] == 409 and error["fastgptCode"] == 510005 and error["retryable"] is False
    rejected = strict.bus.hear(boxes[-1].id, "quota.rejected").data
    assert rejected["scope"] == f"team:{ours}" and rejected["limit"] == PER_TEAM
    assert strict.record(boxes[-1]) is None and strict.provider.objects(boxes[-1]) == []
    assert ensure(strict, app(other)).ok()  # another team is not concerned
    assert ensure(strict, boxes[0]).ok() and strict.bus.run("touch", boxes[0])  # who has a slot keeps it
    strict.bus.run("stop", boxes[0])
    assert ensure(strict, boxes[-1]).ok()["status"] == "running"
    ensure(strict, boxes[0]).error("team_limit_reached")
    assert strict.state(boxes[0]) == "stopped"
    strict.bus.run("delete", boxes[1])
    assert ensure(strict, boxes[0]).ok()["status"] == "running"


def test_all_together_have_a_limit(strict, app):
    boxes = [app(team()) for _ in range(ALL + 2)]
    sent = strict.bus.send_many(strict.bus.prepare("ensure", box, deadline_ms=30000) for box in boxes)
    answers = [one.result(60) for one in sent]
    refused = [answer["error"] for answer in answers if not answer["ok"]]
    assert len(refused) == 2 and all(error["code"] == "limit_reached" and error["fastgptCode"] == 510004 for error in refused)
    assert strict.instances.count_documents({"status": "running"}) == ALL


def test_who_comes_at_once_is_counted_exactly(strict, app):
    ours = team()
    boxes = [app(ours) for _ in range(12)]
    sent = strict.bus.send_many(strict.bus.prepare("ensure", box, deadline_ms=30000) for box in boxes)
    answers = [one.result(60) for one in sent]
    assert sum(answer["ok"] for answer in answers) == PER_TEAM
    assert {answer["error"]["code"] for answer in answers if not answer["ok"]} == {"team_limit_reached"}
    assert len([slot for slot in strict.slots() if slot["scope"] == f"team:{ours}"]) == PER_TEAM


def test_a_slot_is_not_lost_in_a_row_of_stops_and_starts(strict, app):
    ours = team()
    boxes = [app(ours) for _ in range(PER_TEAM)]
    for _ in range(5):
        in_parallel(lambda box: ensure(strict, box).ok(), boxes)
        assert len([slot for slot in strict.slots() if slot["scope"] == f"team:{ours}"]) == PER_TEAM
        in_parallel(lambda box: strict.bus.run("stop", box), boxes)
    eventually(lambda: [slot for slot in strict.slots() if slot["scope"] == f"team:{ours}"] == [], 15, "slots were not given back")


def test_the_recount_puts_right_what_is_wrong(strict, app):
    """A slot of nobody goes, a record of FastGPT's that counts gets one."""
    ours = team()
    box = app(ours)
    ensure(strict, box).ok()
    strict.bus.run("stop", box)
    slot = strict.db["sandkeep_quota"].find_one({"scope": f"team:{ours}"})
    strict.db["sandkeep_quota"].update_one({"_id": slot["_id"]}, {"$set": {"holder": "app-ffffffffffffffff", "held": f"team:{ours}/app-ffffffffffffffff", "at": ago(minutes=9)},
                                                                  "$unset": {"free": 1}})
    eventually(lambda: not strict.db["sandkeep_quota"].find_one({"holder": "app-ffffffffffffffff"}), 20, "a leaked slot stays")
    foreign = app(ours)
    strict.provider.create(foreign)
    strict.instances.insert_one(fastgpt_record(foreign, "running", teamId=ours, at=now()))
    eventually(lambda: strict.slots(foreign), 20, "a record that counts got no slot")
    eventually(lambda: strict.metric("sandkeep_lifecycle_quota_returned_total") > 0, 5)


def test_a_failed_start_gives_its_slot_back(strict, app):
    """Not a word about quotas is left behind a source that is gone."""
    box = app(team())
    strict.db["apps"].update_one({"_id": bson.ObjectId(box.source_id)}, {"$set": {"deleteTime": now()}})
    ensure(strict, box).error("source_missing")
    assert strict.slots(box) == [] and strict.record(box) is None


# ---- sources -------------------------------------------------------------------------------------------------------------
def test_a_source_that_is_missing_or_deleted(strict, app):
    missing = Box(str(bson.ObjectId()), "u")
    error = ensure(strict, missing).error("source_missing")
    assert error["status"] == 404 and error["retryable"] is False and strict.record(missing) is None
    deleted = app(team(), deleteTime=now())
    ensure(strict, deleted).error("source_missing")
    builder = Box(missing.source_id, "u", "workflowBuilder")  # belongs to an App too
    ensure(strict, builder).error("source_missing")
    skill = Box(missing.source_id, source_type="skillEdit")
    ensure(strict, skill).error("source_missing")
    strict.db["agent_skills"].insert_one({"_id": bson.ObjectId(skill.source_id)})
    assert ensure(strict, skill).ok()["status"] == "running"
    strict.bus.run("delete", skill)


def test_a_sandbox_of_a_deleted_app_is_not_started_again(strict, app):
    box = app(team())
    ensure(strict, box).ok()
    strict.bus.run("stop", box)
    strict.db["apps"].update_one({"_id": bson.ObjectId(box.source_id)}, {"$set": {"deleteTime": now()}})
    ensure(strict, box).error("source_missing")
    assert strict.state(box) == "stopped"
    for op, status in (("stop", "stopped"), ("touch", "stopped"), ("delete", "none")):  # what winds it down still works
        assert strict.bus.run(op, box)["status"] == status


def test_ids_that_are_no_object_ids(strict, app):
    ident = f"plain-{secrets.token_hex(4)}"
    strict.db["apps"].insert_one({"_id": ident, "teamId": "plain-team"})
    box = Box(ident, "u")
    assert ensure(strict, box).ok()["instance"]["teamId"] == "plain-team"
    strict.bus.run("delete", box)


def test_a_team_that_the_command_names_is_kept(strict, app):
    box = app(team())
    assert ensure(strict, box, params={"teamId": "named"}).ok()["instance"]["teamId"] == "named"
    strict.bus.run("stop", box)
    assert ensure(strict, box, params={"teamId": "other"}).ok()["instance"]["teamId"] == "named"


# ---- idle stop -----------------------------------------------------------------------------------------------------------
def idle(strict, box, **more):
    strict.instances.update_one({"sandboxId": box.id}, {"$set": {"lastActiveAt": ago(minutes=61), **more}})


def test_an_idle_sandbox_is_stopped(strict, app):
    box, busy = app(), app()
    ensure(strict, box).ok(), ensure(strict, busy).ok()
    strict.provider.upload(box, "/workspace/kept", b"1")
    idle(strict, box)
    event = strict.bus.hear(box.id, "lifecycle.completed", operation__type="stop")
    assert event.data["to"] == "stopped" and strict.state(box) == "stopped" and strict.state(busy) == "running"
    assert strict.bus.heard(box.id, "lifecycle.claimed", operation__type="stop")[0].data["reason"] == "idle"
    assert strict.provider.objects(box) == []
    ensure(strict, box).ok()
    assert strict.provider.download(box, "/workspace/kept") == b"1"
    assert strict.record(box)["lastActiveAt"] > ago(minutes=1)


def test_activity_and_pins_keep_it(strict, app):
    pinned, expired, touched = app(), app(), app()
    in_parallel(lambda box: ensure(strict, box).ok(), [pinned, expired, touched])
    idle(strict, pinned, pins=[{"id": "stream", "kind": "preview", "expiresAt": ago(minutes=-10)}])
    idle(strict, expired, pins=[{"id": "stream", "kind": "preview", "expiresAt": ago(minutes=10)}])
    strict.bus.run("touch", touched)
    strict.bus.hear(expired.id, "lifecycle.completed", operation__type="stop")
    # The sweep that stopped one of them has seen the others as well; one more, to be sure.
    idle(strict, touched)
    strict.bus.hear(touched.id, "lifecycle.completed", operation__type="stop")
    assert strict.state(pinned) == "running"
    strict.instances.update_one({"sandboxId": pinned.id}, {"$set": {"pins": []}})
    strict.bus.hear(pinned.id, "lifecycle.completed", operation__type="stop")


def test_an_idle_sandbox_of_fastgpt(strict, app):
    box = app()
    strict.provider.create(box)
    strict.instances.insert_one(fastgpt_record(box, "running", at=ago(hours=2)))
    strict.bus.hear(box.id, "lifecycle.completed", operation__type="stop")
    assert strict.provider.objects(box) == [] and box.claim in strict.provider.volumes()
    assert strict.record(box)["epoch"] > 1_600_000_000_000


# ---- what nobody owns ----------------------------------------------------------------------------------------------------
def test_an_object_without_a_record_is_removed_after_its_grace(strict):
    """Where it is switched on, and only what carries our labels."""
    ours, foreign = Box(secrets.token_hex(6), "u"), Box(secrets.token_hex(6), "u")
    labelled = strict.provider.create(ours, {"sandkeep.dev/epoch": "17", "sandkeep.dev/operation": "0f7c2b0e-3a5e-4a67-9a3b-6b1f6d4f2a11"})
    plain = strict.provider.create(foreign)
    eventually(lambda: strict.provider.objects(ours) == [], 20, f"{labelled} stays")
    assert [item["id"] for item in strict.provider.objects(foreign)] == [plain]
    assert ours.claim in strict.provider.volumes()  # a volume is never removed by a sweep
    strict.provider.remove(plain)
    for box in (ours, foreign):
        strict.provider.remove_volume(box.claim)


def test_an_object_of_a_stopped_record_is_removed(strict, app):
    box = app()
    ensure(strict, box).ok()
    strict.bus.run("stop", box)
    epoch = strict.record(box)["epoch"]
    strict.provider.create(box, {"sandkeep.dev/epoch": str(epoch - 1), "sandkeep.dev/operation": "0f7c2b0e-3a5e-4a67-9a3b-6b1f6d4f2a11"})
    eventually(lambda: strict.provider.objects(box) == [], 20, "it still runs")
    assert strict.state(box) == "stopped"


def test_one_object_too_many_is_removed(strict, app):
    box = app()
    answer = ensure(strict, box).ok()
    ours = strict.provider.only(box)["id"]
    strict.provider.create(box, {"sandkeep.dev/epoch": str(answer["epoch"] - 1), "sandkeep.dev/operation": "0f7c2b0e-3a5e-4a67-9a3b-6b1f6d4f2a11"})
    eventually(lambda: [item["id"] for item in strict.provider.objects(box)] == [ours], 20, lambda: strict.provider.objects(box))


def test_nothing_of_fastgpts_own_work_is_touched(strict, app):
    """A provider object beside a record that FastGPT works on."""
    box = app()
    strict.provider.create(box)
    document = fastgpt_record(box, "provisioning", fastgpt_operation("provisioning"))
    strict.instances.insert_one(document)
    other = app()
    ensure(strict, other).ok()
    idle(strict, other)
    strict.bus.hear(other.id, "lifecycle.completed", operation__type="stop")  # sweeps have passed
    assert strict.state(box) == "provisioning" and len(strict.provider.objects(box)) == 1
    assert "epoch" not in strict.record(box)
