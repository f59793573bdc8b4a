# SPDX-License-Identifier: Apache-2.0
"""get, find, list, stats, stuck, timeline and watch."""
import json
import signal

from conftest import IDENTITY, SANDBOX, wait_for

ITEM = {"sandboxId": SANDBOX, "status": "running", "sourceType": "app", "sourceId": "s", "userId": "u", "provider": "opensandbox", "epoch": 3,
        "lastActiveAt": "2026-11-30T08:00:00.000Z", "createdAt": "2026-11-30T07:00:00.000Z"}


def good(data):
    return {"ok": True, "data": data}


def stuck_item(sandbox, **operation):
    return {**ITEM, "sandboxId": sandbox, "status": "provisioning",
            "operation": {"id": "o", "type": "provision", "phase": "claimed", "heartbeatAt": "2099-01-01T00:00:00.000Z", "attempt": 0, **operation}}


def test_get_and_find(skctl, service):
    service.serve("get", lambda r: good(ITEM) if r["sandboxId"] == SANDBOX else {"ok": False, "error": {"code": "sandbox_not_found", "detail": "x"}})
    service.serve("find", lambda r: good(None))
    assert skctl("get", SANDBOX, "--json").json == ITEM
    shown = skctl("get", *IDENTITY).out
    assert "running" in shown and "epoch          3" in shown
    assert skctl("get", "app-0000000000000000").status == 3
    missing = skctl("find", *IDENTITY, "--json")
    assert missing.status == 3 and missing.json is None
    assert service.requests[-1] == ("find", {"sourceType": "app", "sourceId": IDENTITY[1], "userId": IDENTITY[3]})


def test_nobody_answers_is_6(skctl, service):
    done = skctl("stats")
    assert done.status == 6 and "no sk-lifecycle answers" in done.err


def test_list_filters_and_pages(skctl, service):
    pages = {None: ([ITEM], "c1"), "c1": ([{**ITEM, "sandboxId": "app-1111111111111111"}], None)}
    service.serve("list", lambda r: good(dict(zip(("items", "nextCursor"), pages[r.get("cursor")]))))
    one = skctl("list", "--status=running", "--source-type=app", "--source=s", "--user=u", "--team=t", "--provider=p", "--blocked", "--limit=7", "--json")
    assert one.json == {"items": [ITEM], "nextCursor": "c1"}
    assert service.requests[0][1] == {"filter": {"status": "running", "sourceType": "app", "sourceId": "s", "userId": "u", "teamId": "t",
                                                 "provider": "p", "blocked": True}, "limit": 7}
    assert [i["sandboxId"] for i in skctl("list", "--all", "--json").json["items"]] == [SANDBOX, "app-1111111111111111"]
    human = skctl("list")
    assert human.out.splitlines()[0].startswith("SANDBOX") and "--cursor=c1" in human.err
    skctl("list", "--cursor=c1", "--older-than=1h")
    assert service.requests[-1][1]["cursor"] == "c1" and service.requests[-1][1]["filter"]["olderThan"].endswith("Z")


def test_stats(skctl, service):
    service.serve("stats", lambda r: good({"byStatus": {"running": 2}, "blocked": 0}))
    assert skctl("stats", "--json").json["byStatus"] == {"running": 2}
    assert "byStatus.running" in skctl("stats").out


def test_stuck_shows_blocked_failing_and_silent_only(skctl, service):
    rows = [stuck_item("app-0000000000000001", blocked="gave up", error="provider_error: it has no id"), stuck_item("app-0000000000000002", attempt=3),
            stuck_item("app-0000000000000003", heartbeatAt="2026-01-01T00:00:00.000Z"), stuck_item("app-0000000000000004")]
    service.serve("list", lambda r: good({"items": rows if "provisioning" in r["filter"]["status"] and "running" not in r["filter"]["status"] else [], "nextCursor": None}))
    found = {item["sandboxId"][-1]: item["why"] for item in skctl("stuck", "--json").json["items"]}
    assert found == {"1": "blocked", "2": "retrying", "3": "silent"}
    assert "skctl recover" in skctl("stuck").out and "gave up; provider_error: it has no id" in skctl("stuck").out
    rows.clear()
    assert "nothing is stuck" in skctl("stuck").err


def test_timeline_reads_from_old_to_new(skctl, service):
    entries = [{"operationId": "new", "type": "stop", "epoch": 8, "owner": "b", "result": "completed", "startedAt": "2026-11-30T08:01:00.000Z",
                "endedAt": "2026-11-30T08:01:00.250Z", "phases": []},
               {"operationId": "old", "type": "provision", "epoch": 7, "owner": "a", "commandId": "cmd", "result": "completed",
                "startedAt": "2026-11-30T08:00:00.000Z", "endedAt": "2026-11-30T08:00:04.200Z",
                "phases": [{"name": "providerEnsured", "at": "2026-11-30T08:00:04.000Z", "durationMs": 3900}]}]
    service.serve("timeline", lambda r: good({"items": entries}))
    assert skctl("timeline", SANDBOX, "--json").json == {"items": entries}
    out = skctl("timeline", SANDBOX).out
    assert out.index("operation old") < out.index("operation new")
    for text in ("epoch 7", "by a", "for command cmd", "providerEnsured", "after 3.9 s", "completed in 4.2 s"):
        assert text in out


def test_answers_that_are_no_json_fail(skctl, service):
    async def garbage(message):
        await message.respond(b"<html>")
    service.wait(service.nc.subscribe("sandbox.rpc.lifecycle.stats", cb=garbage))
    service.wait(service.nc.flush())
    assert skctl("stats").status == 1


# ---- watch -------------------------------------------------------------------------------------------------------------
def test_watch_from_the_past_as_json_lines(skctl, service):
    for number in range(5):
        service.event("lifecycle.phase", sequence=number)
    service.event("command.completed", sequence=99)
    service.event("lifecycle.phase", sandbox="app-1111111111111111", sequence=50)
    lines = [json.loads(line) for line in skctl("watch", SANDBOX, "--since=all", "--type=lifecycle.*", "--count=5", "--json").out.splitlines()]
    assert [line["data"]["sequence"] for line in lines] == [0, 1, 2, 3, 4]
    assert lines[0]["type"] == "dev.sandkeep.lifecycle.phase.v1" and lines[0]["specversion"] == "1.0" and lines[0]["subject"] == SANDBOX
    everything = skctl("watch", "--since=1h", "--for=1s", "--json").out.splitlines()
    assert len(everything) == 7


def test_watch_live_is_readable_and_ends_with_130(start, service):
    process = start("watch", SANDBOX)
    seen = []

    def shown():
        service.event("lifecycle.completed", to="running", epoch=7, sequence=3, durationMs=1200, **{"from": "provisioning"})
        return True
    import threading
    reader = threading.Thread(target=lambda: seen.append(process.stdout.readline()))
    reader.start()
    wait_for(lambda: shown() and seen)
    assert "lifecycle.completed" in seen[0] and "provisioning -> running" in seen[0] and "1.2 s" in seen[0]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 130


def test_watch_survives_a_restart_of_the_bus_without_gap_or_repeat(start, service, server):
    process = start("watch", "--since=all", "--count=40", "--json")
    for number in range(20):
        service.event("lifecycle.phase", sequence=number)
    first = process.stdout.readline()  # it is connected and reads
    server.stop()
    server.start()
    wait_for(lambda: service.nc.is_connected)
    for number in range(20, 40):
        service.event("lifecycle.phase", sequence=number)
    out = process.stdout.read()
    assert process.wait(40) == 0, process.stderr.read()
    assert [json.loads(line)["data"]["sequence"] for line in (first + out).splitlines()] == list(range(40))


def test_watch_of_many_events_is_complete(skctl, service):
    async def flood():
        for number in range(5000):
            await service.nc.publish(f"sandbox.evt.{SANDBOX}.lifecycle.phase", json.dumps({"sequence": number}).encode())
        await service.nc.flush()
    service.wait(flood(), 60)
    lines = skctl("watch", "--since=all", "--count=5000", "--json").out.splitlines()
    assert [json.loads(line)["data"]["sequence"] for line in lines] == list(range(5000))
