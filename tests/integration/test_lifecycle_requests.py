# SPDX-License-Identifier: Apache-2.0
"""Requests (contract/messaging.md §3): get, find, list with filters and pages, exists, status, timeline, stats."""
import asyncio
import collections
import json
import secrets
import uuid

import pytest
from live import Box, ago, fastgpt_operation, fastgpt_record, new_box, now, stamp
from waiting import eventually

TEAM = f"team-{secrets.token_hex(4)}"


@pytest.fixture(scope="module")
def many(site):
    """130 records as FastGPT wrote them, of one team; {sandboxId: document}."""
    documents = {}
    for index in range(130):
        kind = ("app", "skillEdit", "workflowBuilder")[index % 3]
        box = Box(f"list-{index % 7}-{TEAM}" if kind != "skillEdit" else f"list-{index}-{TEAM}", f"user-{index}", kind)
        status = ("stopped", "archived", "archiving", "stopped")[index % 4]
        operation = None
        if status == "archiving":
            operation = fastgpt_operation("archiving", previous="stopped")
            if index % 8 == 2:
                operation.update(jobId=str(uuid.uuid4()), attempt=8, blocked="gave up after 8 tries: provider_error", error="provider_error: no", failedAt=now())
        # Some share their moment with others: a page must not lose or repeat one at its edge.
        moment = ago(minutes=200 - index // 5 * 5)
        documents[box.id] = fastgpt_record(box, status, operation, teamId=TEAM, at=moment, provider="opensandbox" if index % 10 else "sealosdevbox",
                                           **({"epoch": 3, "sequence": 3} if operation and "jobId" in operation else {}))
        documents[box.id]["createdAt"] = moment
    site.instances.insert_many(documents.values())
    yield documents
    site.instances.delete_many({"teamId": TEAM})


def pages(site, limit, **query):
    items, cursor, count = [], None, 0
    while True:
        page = site.bus.ask("list", limit=limit, cursor=cursor, **query)
        assert len(page["items"]) <= limit
        items += page["items"]
        cursor, count = page["nextCursor"], count + 1
        if cursor is None:
            return items, count
        assert count < 500


@pytest.mark.parametrize("limit", [1, 7, 50, 129, 130, 500])
@pytest.mark.parametrize("sort", ["-lastActiveAt", "lastActiveAt", "-createdAt", "sandboxId"])
def test_pages_show_each_record_once_and_in_order(site, many, sort, limit):
    if limit == 1 and sort != "lastActiveAt":
        limit = 13
    items, count = pages(site, limit, sort=sort, filter={"teamId": TEAM})
    assert sorted(item["sandboxId"] for item in items) == sorted(many)
    key = sort.lstrip("-")
    values = [item[key] for item in items]
    assert values == sorted(values, reverse=sort.startswith("-"))
    assert count >= len(many) / limit


@pytest.mark.parametrize("name,filters,keep", [
    ("status", {"status": "archived"}, lambda doc: doc["status"] == "archived"),
    ("statuses", {"status": ["archived", "archiving"]}, lambda doc: doc["status"] in ("archived", "archiving")),
    ("no-status", {"status": "running"}, lambda doc: False),
    ("sourceType", {"sourceType": "skillEdit"}, lambda doc: doc["sourceType"] == "skillEdit"),
    ("sourceId", {"sourceId": f"list-3-{TEAM}"}, lambda doc: doc["sourceId"] == f"list-3-{TEAM}"),
    ("userId", {"userId": "user-17"}, lambda doc: doc["userId"] == "user-17"),
    ("provider", {"provider": "sealosdevbox"}, lambda doc: doc["provider"] == "sealosdevbox"),
    ("blocked", {"blocked": True}, lambda doc: bool(doc.get("operation", {}).get("blocked"))),
    ("not-blocked", {"blocked": False}, lambda doc: not doc.get("operation", {}).get("blocked")),
    ("several", {"status": "stopped", "sourceType": "app", "provider": "opensandbox"},
     lambda doc: (doc["status"], doc["sourceType"], doc["provider"]) == ("stopped", "app", "opensandbox")),
    ("nobody", {"userId": "nobody"}, lambda doc: False),
])
def test_filters(site, many, name, filters, keep):
    items, _ = pages(site, 20, filter={"teamId": TEAM, **filters})
    assert sorted(item["sandboxId"] for item in items) == sorted(ident for ident, doc in many.items() if keep(doc))


def test_older_than(site, many):
    edge = ago(minutes=120)
    items, _ = pages(site, 20, filter={"teamId": TEAM, "olderThan": stamp(edge)})
    assert sorted(item["sandboxId"] for item in items) == sorted(ident for ident, doc in many.items() if doc["lastActiveAt"] < edge)


def test_a_cursor_belongs_to_its_question(site, many):
    cursor = site.bus.ask("list", limit=5, filter={"teamId": TEAM})["nextCursor"]
    for other in ({"sort": "sandboxId", "filter": {"teamId": TEAM}}, {"filter": {"teamId": "another"}}, {}):
        reply = site.bus.request("list", {"limit": 5, "cursor": cursor, **other})
        assert reply["ok"] is False and reply["error"]["code"] == "invalid_request"
    for damaged in (cursor[:-2], cursor + "x", cursor[::-1], "A" * 2000):
        assert site.bus.request("list", {"limit": 5, "cursor": damaged, "filter": {"teamId": TEAM}})["ok"] is False


def test_a_list_that_changes_while_it_is_read(site, many):
    """What was there all the time is shown exactly once, whatever comes and goes in between."""
    first = site.bus.ask("list", limit=40, sort="lastActiveAt", filter={"teamId": TEAM})
    extra = [fastgpt_record(new_box("extra"), "stopped", teamId=TEAM, at=ago(minutes=minutes)) for minutes in (0, 100, 250)]
    site.instances.insert_many(extra)
    gone = first["items"][-1]["sandboxId"]
    document = site.instances.find_one_and_delete({"sandboxId": gone})
    items, cursor = first["items"], first["nextCursor"]
    while cursor:
        page = site.bus.ask("list", limit=40, sort="lastActiveAt", filter={"teamId": TEAM}, cursor=cursor)
        items, cursor = items + page["items"], page["nextCursor"]
    counted = collections.Counter(item["sandboxId"] for item in items)
    site.instances.insert_one(document)
    site.instances.delete_many({"_id": {"$in": [doc["_id"] for doc in extra]}})
    assert {ident for ident, count in counted.items() if count > 1} == set()
    assert set(many) <= set(counted)


def test_get_find_exists(site, box):
    assert site.bus.ask("find", **box.source) is None
    assert site.bus.ask("exists", sandboxId=box.id) == {"exists": False}
    assert site.bus.ask("exists", **box.source) == {"exists": False}
    site.bus.run("ensure", box, params={"teamId": "t9"})
    view = site.bus.ask("get", sandboxId=box.id)
    assert view == site.bus.ask("find", **box.source) and view["status"] == "running" and view["teamId"] == "t9"
    assert "outbox" not in view and "_id" not in view and "__v" not in view
    assert site.bus.ask("exists", sandboxId=box.id) == {"exists": True, "status": "running"}


# Reference §7: what FastGPT's pages show. (record, expected status, lastError?)
STATUSES = {
    "none": (None, "readyToInit", None),
    "archived": (("archived", None), "readyToInit", None),
    "stopped": (("stopped", None), "readyToInit", None),
    "restoring": (("restoring", {}), "upgrading", None),
    "restoring-failed": (("restoring", {"error": "no space"}), "readyToInit", None),
    "provisioning": (("provisioning", {}), "upgrading", None),
    "archiving": (("archiving", {}), "upgrading", None),
    "stopping": (("stopping", {}), "upgrading", None),
    "deleting": (("deleting", {}), "upgrading", None),
    "legacyMigrating": (("legacyMigrating", {"previous": "stopped"}), "upgrading", None),
}


@pytest.mark.parametrize("name", STATUSES)
def test_runtime_status(site, name):
    record, wanted, error = STATUSES[name]
    box = new_box("status")
    if record:
        status, operation = record
        # FastGPT at work now: nothing takes it over while we look (what failed is taken over at once: it is asked quickly).
        site.instances.insert_one(fastgpt_record(box, status, None if operation is None else fastgpt_operation(status, **operation)))
    data = site.bus.ask("status", **box.source)
    assert data["status"] == wanted and data.get("lastError") == error
    if record and name != "restoring-failed":
        assert data["instanceStatus"] == record[0] and data["sandboxId"] == box.id
    if record:
        site.bus.run("delete", box)
        site.gone(box)


def test_another_image_wants_an_upgrade(site):
    box = new_box("image")
    site.instances.insert_one(fastgpt_record(box, "stopped", image={"repository": "localbox/default", "tag": "0.9"}))
    assert site.bus.ask("status", sandboxId=box.id)["status"] == "upgradeRequired"
    site.instances.update_one({"sandboxId": box.id}, {"$unset": {"image": 1}})
    assert site.bus.ask("status", sandboxId=box.id)["status"] == "upgradeRequired"
    site.bus.run("delete", box)


def test_timeline_of_nobody_is_empty(site):
    assert site.bus.ask("timeline", sandboxId=new_box("nobody").id)["items"] == []


def test_timeline_tells_who_did_what(site, box):
    sent = site.bus.send("ensure", box, deadline_ms=30000, params={"reason": "for the timeline"})
    sent.ok()
    entry = eventually(lambda: [one for one in site.timeline(box) if one["result"] == "completed"], 10)[0]
    assert entry["type"] == "provision" and entry["commandId"] == sent.id and entry["attempt"] == 0 and entry["reason"] == "for the timeline"
    assert [phase["name"] for phase in entry["phases"]] == ["claimed", "providerEnsured"]
    assert entry["phases"][1]["durationMs"] >= 0 and entry["durationMs"] >= entry["phases"][1]["durationMs"]
    owners = {int(row["pid"]) for name, row in site.status().items() if name.startswith("lifecycle-")}
    assert int(entry["owner"].split(":")[-2]) in owners


def test_stats(site, many):
    def counted():
        data = site.bus.ask("stats")
        return data if data["statuses"]["archived"] >= sum(doc["status"] == "archived" for doc in many.values()) else None
    data = eventually(counted, 10)
    assert set(data["statuses"]) == {"provisioning", "legacyMigrating", "running", "stopping", "stopped", "archiving", "archived", "restoring", "deleting"}
    assert data["blocked"] >= sum(bool(doc.get("operation", {}).get("blocked")) for doc in many.values())
    assert data["replica"]["counters"]["commands"] >= 0 and data["replica"]["id"]


def test_requests_are_shared_among_the_replicas(site):
    seen = {site.bus.ask("stats")["replica"]["id"] for _ in range(60)}
    assert len(seen) == 2


def test_a_thousand_requests_at_once(site, box):
    """Each gets an answer; a replica takes 256 at a time and tells the rest so."""
    site.bus.run("ensure", box)

    async def burst():
        return await asyncio.gather(*(site.bus.nc.request("sandbox.rpc.lifecycle.get", b'{"sandboxId":"%s"}' % box.id.encode(), timeout=30) for _ in range(1000)))
    replies = site.bus.wait(burst(), 60)
    answers = [json.loads(reply.data) for reply in replies]
    refused = [answer["error"] for answer in answers if not answer["ok"]]
    assert all(error["code"] == "sandbox_busy" and error["retryable"] for error in refused)
    assert len(answers) == 1000 and len(refused) <= 1000 - 256
