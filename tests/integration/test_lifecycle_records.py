# SPDX-License-Identifier: Apache-2.0
"""Documents that others wrote: of the wrong shape (left alone, reported, never in the way), and FastGPT's own, which are
upgraded in place (contract/lifecycle.md §2.2)."""
import secrets

import bson
import pytest
from live import Box, ago, fastgpt_operation, fastgpt_record, new_box, now
from waiting import eventually

OPS = {"ensure": None, "stop": None, "touch": None, "delete": None, "recover": {"action": "retry"}, "archive": None}


def operation(status="stopping", **changes):
    out = fastgpt_operation(status, ago(hours=5))
    out.update(changes)
    return {name: value for name, value in out.items() if value is not None}


# What is wrong: (status, changes to the document).
SHAPES = {
    "status-unknown": ("sleeping", {}),
    "status-number": (7, {}),
    "status-object": ({"a": 1}, {}),
    "provider-number": ("stopped", {"provider": 5}),
    "user-array": ("stopped", {"lastActiveAt": now(), "teamId": ["t"]}),
    "time-text": ("stopped", {"lastActiveAt": "yesterday"}),
    "time-number": ("stopped", {"createdAt": 1700000000000}),
    "limit-text": ("stopped", {"limit": "1 CPU"}),
    "cpu-text": ("stopped", {"limit": {"cpuCount": "many", "memoryMiB": 512}}),
    "storage-array": ("stopped", {"storage": []}),
    "volume-nameless": ("stopped", {"storage": {"volumes": [{"claimName": "x"}]}}),
    "volume-number": ("stopped", {"storage": {"volumes": [5]}}),
    "image-text": ("stopped", {"image": "a:b"}),
    "epoch-text": ("stopped", {"epoch": "7"}),
    "epoch-negative": ("stopped", {"epoch": -4, "sequence": 1}),
    "sequence-fraction": ("stopped", {"epoch": 1, "sequence": 1.5}),
    "outbox-text": ("stopped", {"outbox": "full"}),
    "pins-object": ("running", {"pins": {"a": 1}}),
    "pins-nameless": ("running", {"pins": [{"expiresAt": now()}]}),
    "stable-with-operation": ("stopped", {"operation": operation()}),
    "no-operation": ("stopping", {}),
    "other-operation": ("stopping", {"operation": operation(type="archive")}),
    "operation-array": ("stopping", {"operation": [operation()]}),
    "operation-text": ("stopping", {"operation": "stop"}),
    "operation-unknown": ("stopping", {"operation": operation(type="explode")}),
    "phase-unknown": ("stopping", {"operation": operation(phase="warpDrive")}),
    "phase-number": ("stopping", {"operation": operation(phase=3)}),
    "id-missing": ("stopping", {"operation": operation(id=None)}),
    "heartbeat-text": ("stopping", {"operation": operation(heartbeatAt="now")}),
    "heartbeat-missing": ("stopping", {"operation": operation(heartbeatAt=None)}),
    "attempt-text": ("stopping", {"operation": operation(attempt="2")}),
    "outbox-null": ("stopped", {"outbox": None}),
    "source-type-unknown": ("stopped", {"sourceType": "toaster"}),
    "legacy-phase": ("restoring", {"operation": {**fastgpt_operation("restoring", ago(hours=5)), "phase": "installed"}}),
}


@pytest.fixture(scope="module")
def broken(site):
    """{name: (box, document)}; removed by hand at the end, as an operator would."""
    out = {}
    for name, (status, changes) in SHAPES.items():
        box = Box(f"broken-{name}", secrets.token_hex(5))
        document = fastgpt_record(box, status, changes.get("operation"))
        document.update(changes)
        site.instances.insert_one(document)
        out[name] = (box, site.instances.find_one({"_id": document["_id"]}))
    yield out
    site.instances.delete_many({"_id": {"$in": [document["_id"] for _, document in out.values()]}})


@pytest.mark.parametrize("name", SHAPES)
def test_a_broken_document_is_left_alone(site, broken, name):
    box, document = broken[name]
    sent = site.bus.send_many(site.bus.prepare(op, box, params=params, source=name != "source-type-unknown", deadline_ms=5000)
                              for op, params in OPS.items())
    for one in sent:
        error = one.error("operation_blocked", 15)
        assert error["retryable"] is False and error["detail"]
    assert site.instances.find_one({"_id": document["_id"]}) == document  # not a byte changed
    assert site.provider.objects(box) == []


def test_broken_documents_are_reported(site, broken):
    found = {(sandbox, invariant) for sandbox, invariant, _ in site.doctor()}
    missing = {name for name, (box, _) in broken.items() if (box.id, "record-malformed") not in found}
    assert missing == set()
    assert site.metric("sandkeep_lifecycle_malformed_total") >= len(broken)
    view = site.bus.ask("get", sandboxId=broken["phase-unknown"][0].id)
    assert view["malformed"] and view["sandboxId"] == broken["phase-unknown"][0].id


def test_broken_documents_are_in_nobodys_way(site, broken, box):
    assert site.bus.run("ensure", box)["status"] == "running"
    items = site.bus.ask("list", limit=500, sort="sandboxId")["items"]
    assert {box.id for box, _ in broken.values()} <= {item["sandboxId"] for item in items}
    assert site.bus.ask("stats")["statuses"]["running"] >= 1
    # A stale operation of FastGPT's beside them is recovered as always.
    stale = new_box("stale")
    site.instances.insert_one(fastgpt_record(stale, "stopping", fastgpt_operation("stopping", ago(hours=1))))
    eventually(lambda: site.state(stale) == "stopped", 15, lambda: site.record(stale))
    site.bus.run("delete", stale)


def test_a_record_under_another_identitys_id(site):
    """Not a broken document, but a broken promise: shown by the doctor, and never used for the wrong one."""
    box = new_box("swapped")
    site.instances.insert_one(fastgpt_record(box, "stopped", sourceId="somebody-elses"))
    site.bus.send("ensure", box).error("identity_mismatch")
    site.bus.send("delete", box).error("identity_mismatch")
    assert (box.id, "identity-mismatch") in {(sandbox, invariant) for sandbox, invariant, _ in site.doctor()}
    assert site.bus.run("delete", box, source=False)["status"] == "none"  # whoever names it by its id may wind it down


# ---- FastGPT's records ---------------------------------------------------------------------------------------------------
def test_a_record_is_upgraded_by_its_first_change(site, box):
    """Fields that we do not know stay, also inside of what we write."""
    site.provider.create(box)
    moment = ago(minutes=3).replace(microsecond=0)  # BSON keeps milliseconds
    document = fastgpt_record(box, "running", at=moment, teamId="fastgpt-team", versionId="v7", notOurs={"deep": [1, {"x": bson.Int64(2)}]})
    document["storage"]["volumes"].append({"name": "skills", "claimName": "shared-skills", "mountPath": "/skills", "subPath": "a"})
    document["storage"]["notOurs"] = True
    site.instances.insert_one(document)
    assert "operationId" not in site.bus.run("ensure", box)  # what runs is used as it is
    changed = site.record(box)
    assert {name: changed[name] for name in document if name != "lastActiveAt"} == {name: document[name] for name in document if name != "lastActiveAt"}
    stopped = site.bus.run("stop", box)
    assert stopped["epoch"] > 1_600_000_000_000 and stopped["instance"]["sequence"] == 3
    changed = site.record(box)
    for name in ("notOurs", "storage", "teamId", "versionId", "limit", "__v", "createdAt", "provider"):
        assert changed[name] == document[name], name
    assert site.bus.run("ensure", box)["status"] == "running"
    assert site.record(box)["storage"] == document["storage"] and site.record(box)["notOurs"] == document["notOurs"]


def test_fields_inside_an_operation_of_fastgpt_do_not_get_lost_before_it_is_ours(site, box):
    """A live operation of FastGPT's is not touched at all, with everything in it."""
    operation = {**fastgpt_operation("archiving", previous="running"), "notOurs": "x"}
    document = fastgpt_record(box, "archiving", operation)
    site.instances.insert_one(document)
    stored = site.record(box)
    site.bus.send("stop", box, deadline_ms=300).error("sandbox_busy")
    assert site.record(box) == stored


@pytest.mark.parametrize("limit,storage", [(None, None), ({"cpuCount": 2, "memoryMiB": 1024, "diskGiB": 3}, None), ({"cpuCount": 0.5, "memoryMiB": 300, "storageSize": "1Gi"}, {})])
def test_older_generations_of_records(site, box, limit, storage):
    """Without limit, with the older one, without a volume."""
    document = fastgpt_record(box, "stopped", limit=limit, storage=storage, image=None)
    site.instances.insert_one(document)
    assert site.bus.run("ensure", box)["status"] == "running"
    assert site.provider.shell(box, "echo fine >/workspace/x && cat /workspace/x") == (0, "fine")


def test_null_is_as_good_as_absent(site, box):
    document = fastgpt_record(box, "stopped")
    document.update(teamId=None, versionId=None, operation=None, image=None, pins=None, lastOperation=None, epoch=None, sequence=None)
    site.instances.insert_one(document)
    assert site.bus.run("ensure", box)["status"] == "running"


def test_numbers_as_javascript_writes_them(site, box):
    document = fastgpt_record(box, "stopped", epoch=1764500000000.0, sequence=4.0)
    site.tap.older.add(box.id)
    site.instances.insert_one(document)
    answer = site.bus.run("ensure", box)
    assert answer["epoch"] == 1764500000001 and answer["instance"]["sequence"] == 7
    assert isinstance(site.record(box)["epoch"], int)


def test_a_record_that_vanishes_and_comes_back(site, box):
    """FastGPT deletes and makes records too; an epoch never falls."""
    first = site.bus.run("ensure", box)
    site.bus.run("delete", box)
    site.instances.insert_one(fastgpt_record(box, "stopped"))
    site.provider.ensure_volume(box.claim)
    second = site.bus.run("ensure", box)
    assert second["epoch"] > first["epoch"] and second["status"] == "running"


def test_a_delete_that_goes_on_looks_again_at_what_holds_its_volume(site, box):
    """A create that was given up came through after the provider step: the volume is in use, and it must not stay so."""
    site.provider.create(box, {"sandkeep.dev/epoch": "4", "sandkeep.dev/operation": "0f7c2b0e-3a5e-4a67-9a3b-6b1f6d4f2a11"})
    operation = {**fastgpt_operation("deleting", phase="providerDeleted", previous="stopped"), "jobId": "1f7c2b0e-3a5e-4a67-9a3b-6b1f6d4f2a11", "attempt": 1,
                 "nextAttemptAt": now(), "error": "provider_error: cannot remove the volume", "failedAt": now()}
    site.tap.older.add(box.id)
    site.instances.insert_one(fastgpt_record(box, "deleting", operation, epoch=5, sequence=5))
    site.bus.hear(box.id, "lifecycle.deleted", 15)
    site.gone(box)
