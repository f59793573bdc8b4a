# SPDX-License-Identifier: Apache-2.0
"""Commands as such: the same id again, deadlines, waiting, many at once (contract/messaging.md §2). sk-localbox is paused
where an operation has to stay in its middle."""
import secrets
import time

import pytest
from live import ago, new_box, now, stamp
from waiting import eventually


def claims(site, box):
    return len(site.bus.heard(box.id, "lifecycle.claimed"))


def held(site, box, ident=None, **fields):
    """An ensure that is under way: its claim is in the record (call with the provider paused)."""
    sent = site.bus.send("ensure", box, ident=ident, **fields)
    eventually(lambda: (site.record(box) or {}).get("operation"), 15, "nobody claimed it")
    return sent


# ---- the same id again -------------------------------------------------------------------------------------------------
def test_the_same_id_after_the_end(site, box):
    first = site.bus.send("ensure", box, deadline_ms=30000)
    answer = first.ok()
    for _ in range(3):
        assert site.bus.send("ensure", box, ident=first.id).ok() == answer
    site.bus.run("stop", box)
    again = site.bus.send("ensure", box, ident=first.id).ok()
    assert again == answer and site.state(box) == "stopped"  # told what was, nothing ran
    assert claims(site, box) == 2


def test_the_same_id_while_it_runs(site, box):
    ident = f"twice-{secrets.token_hex(6)}"
    with site.provider_paused():
        sent = [held(site, box, ident, deadline_ms=30000)] + [site.bus.send("ensure", box, ident=ident, deadline_ms=30000) for _ in range(5)]
        time.sleep(0.3)  # the others arrive while nothing can move
        assert not any(one.answers for one in sent)
    answers = [one.ok() for one in sent]
    assert all(answer == answers[0] for answer in answers) and answers[0]["operationId"]
    assert claims(site, box) == 1
    # At least once for who listens, once in the stream: one id.
    assert len({event.headers["ce-id"] for event in site.bus.heard(box.id, "command.completed", commandId=ident)}) == 1


def test_twenty_at_once_on_two_replicas(site, box):
    ident = f"crowd-{secrets.token_hex(6)}"
    sent = site.bus.send_many(site.bus.prepare("ensure", box, ident=ident, deadline_ms=30000) for _ in range(20))
    answers = [one.ok() for one in sent]
    assert all(answer == answers[0] for answer in answers)
    assert claims(site, box) == 1


def test_the_same_id_with_another_meaning(site, box):
    first = site.bus.send("ensure", box, deadline_ms=30000)
    answer = first.ok()
    for op, fields in (("stop", {}), ("ensure", {"params": {"reason": "other"}}), ("delete", {})):
        error = site.bus.send(op, box, ident=first.id, **fields).error("idempotency_conflict")
        assert error["status"] == 422 and error["retryable"] is False
    assert site.bus.send("ensure", box, ident=first.id).ok() == answer  # the first meaning is still the one
    assert site.state(box) == "running"


def test_what_is_the_same_meaning(site, box):
    """Another deadline, another time, other unknown fields, members in another order: the same command."""
    first = site.bus.send("ensure", box, params={"teamId": "t", "reason": "r"}, deadline_ms=30000)
    answer = first.ok()
    again = site.bus.send("ensure", box, ident=first.id, params={"reason": "r", "teamId": "t"}, deadline_ms=777, more={"requestedAt": stamp(ago(days=1)), "new": 1})
    assert again.ok() == answer


def test_a_failure_is_kept_and_a_retryable_one_is_not(site, box):
    first = site.bus.send("stop", box)
    first.error("sandbox_not_found")
    site.bus.run("ensure", box)
    site.bus.send("stop", box, ident=first.id).error("sandbox_not_found")
    assert site.state(box) == "running"
    late = site.bus.send("stop", box, ident=None)
    assert late.ok()["status"] == "stopped"
    # Busy is not an outcome: the same id tries again.
    with site.provider_paused():
        holder = held(site, box, deadline_ms=30000)
        ident = f"retry-{secrets.token_hex(6)}"
        site.bus.send("stop", box, ident=ident, deadline_ms=300).error("sandbox_busy")
    holder.ok()
    assert site.bus.send("stop", box, ident=ident, deadline_ms=30000).ok()["status"] == "stopped"


def test_ids_are_per_sandbox(site, box):
    other = new_box("other")
    ident = f"shared-{secrets.token_hex(6)}"
    assert site.bus.send("ensure", box, ident=ident, deadline_ms=30000).ok()["sandboxId"] == box.id
    assert site.bus.send("ensure", other, ident=ident, deadline_ms=30000).ok()["sandboxId"] == other.id
    site.bus.run("delete", other)


def test_jetstream_drops_a_repeat(site, box):
    headers = {"Nats-Msg-Id": f"m-{secrets.token_hex(6)}"}
    first = site.bus.send("ensure", box, headers=headers, deadline_ms=30000)
    first.ok()
    second = site.bus.send("ensure", box, headers=headers)
    assert second.ack.duplicate is True
    site.settle()
    assert second.answers == []


def test_results_are_kept_for_a_day(site, box):
    sent = site.bus.send("ensure", box, deadline_ms=30000)
    sent.ok()
    stored = site.db["sandkeep_commands"].find_one({"_id": f"{box.id}/{sent.id}"})
    assert abs((now() - stored["at"]).total_seconds()) < 60
    indexes = site.db["sandkeep_commands"].index_information().values()
    assert any(index.get("expireAfterSeconds") == 86400 for index in indexes)


# ---- deadlines -----------------------------------------------------------------------------------------------------------
def test_its_own_operation_runs_on_past_the_deadline(site, box):
    with site.provider_paused():
        sent = held(site, box, deadline_ms=600)
        error = sent.error("deadline_exceeded", 5)
        assert error["retryable"] is True and error["operation"]["type"] == "provision" and error["operation"]["phase"] == "claimed"
        assert 0.55 <= sent.seconds <= 3
    # It goes on, its outcome is published, and stored under the id; the requester is not told a second time.
    done = site.bus.hear(box.id, "command.completed", commandId=sent.id, seconds=20)
    assert done.data["status"] == "running" and len(sent.answers) == 1
    assert site.bus.send("ensure", box, ident=sent.id).ok()["operationId"] == done.data["operationId"]


def test_waiting_for_somebody_else_ends_at_the_deadline(site, box):
    with site.provider_paused():
        holder = held(site, box, deadline_ms=30000)
        operation = site.record(box)["operation"]
        for op, params in (("stop", None), ("recover", {"action": "retry"})):
            sent = site.bus.send(op, box, deadline_ms=500, params=params)
            error = sent.error("sandbox_busy", 5)
            assert error["operation"] == {"id": operation["id"], "type": "provision", "phase": "claimed"}
            assert error["status"] == 409 and error["retryable"] is True and error["retryAfterMs"] > 0
            assert 0.45 <= sent.seconds <= 3
    holder.ok()
    site.settle()
    assert site.state(box) == "running"  # a command that was told busy does not run later


def test_waiting_pays_off(site, box):
    with site.provider_paused():
        holder = held(site, box, deadline_ms=30000)
        waiting = [site.bus.send("stop", box, deadline_ms=30000), site.bus.send("ensure", box, deadline_ms=30000), site.bus.send("touch", box, deadline_ms=30000)]
    assert holder.ok()["status"] == "running"
    assert waiting[0].ok()["status"] == "stopped"
    assert waiting[1].ok()["status"] == "running"
    assert waiting[2].ok()["status"] in ("running", "stopped")  # no order among replicas (contract §2)


def test_a_waiting_requester_hears_of_progress(site, box):
    with site.provider_paused():
        held(site, box, deadline_ms=30000)
        # Whichever replica holds it: the one that waits tells what is in the way.
        waiting = [site.bus.send("stop", box, deadline_ms=30000) for _ in range(4)]
        eventually(lambda: sum(bool(one.progress) for one in waiting) >= 1, 10, "nobody was told what it waits for")
    for one in waiting:
        one.ok()
    assert {step["phase"] for one in waiting for step in one.progress} <= {"claimed", "providerEnsured", "providerStopped"}


def test_a_command_that_names_no_deadline_waits_ten_seconds(site, box):
    with site.provider_paused():
        first = held(site, box, deadline_ms=60000)
        sent = site.bus.send("stop", box)
        assert sent.error("sandbox_busy", 20) and 9.5 <= sent.seconds <= 13
    assert first.ok(60)["status"] == "running"


# ---- many at once --------------------------------------------------------------------------------------------------------
def test_three_hundred_ensures_are_one_operation(site, box):
    before = site.metric("sandkeep_lifecycle_commands_coalesced_total")
    with site.provider_paused():
        sent = [held(site, box, deadline_ms=60000)]
        sent += site.bus.send_many(site.bus.prepare("ensure", box, deadline_ms=60000) for _ in range(299))
    for one in sent:
        assert one.ok(60)["status"] == "running"
    assert claims(site, box) == 1
    assert all(len(one.answers) == 1 for one in sent)
    assert site.metric("sandkeep_lifecycle_commands_coalesced_total") > before
    eventually(lambda: len({event.data["commandId"] for event in site.bus.heard(box.id, "command.completed")}) == 300, 10, "not each had its event")


def test_a_thousand_on_one_do_not_hold_up_another(site, box):
    other = new_box("calm")
    site.bus.run("ensure", other)
    with site.provider_paused():
        held(site, box, deadline_ms=60000)
        sent = site.bus.send_many(site.bus.prepare("ensure", box, deadline_ms=60000) for _ in range(1000))
        started = time.monotonic()
        assert site.bus.send("touch", other).ok()["status"] == "running"
        assert time.monotonic() - started < 3
    for one in sent:
        assert one.result(60)["ok"] or one.answers[0]["error"]["code"] == "sandbox_busy"
    assert claims(site, box) == 1
    site.bus.run("delete", other)


def test_too_many_waiting_are_told_at_once(site, box):
    """At most 1,024 wait for one sandbox and replica; what is beyond is told busy without waiting for its deadline."""
    with site.provider_paused():
        held(site, box, deadline_ms=60000)
        sent = site.bus.send_many(site.bus.prepare("stop", box, deadline_ms=60000) for _ in range(2600))
        refused = eventually(lambda: [one for one in sent if one.answers] if sum(bool(one.answers) for one in sent) >= 2600 - 2 * 1025 else None, 20,
                             lambda: f"{sum(bool(one.answers) for one in sent)} were refused")
        assert all(one.answers[0]["error"]["code"] == "sandbox_busy" and one.answers[0]["error"]["retryAfterMs"] > 0 for one in refused)
    for one in sent:
        one.result(90)
    assert site.metric("sandkeep_lifecycle_park_refused_total") >= len(refused)
    assert sum(one.answers[0]["ok"] for one in sent) >= 1024
    site.settle(60)


def test_a_large_command_does_not_wait(site, box):
    large = {"filler": "x" * 2000}
    with site.provider_paused():
        held(site, box, deadline_ms=60000)
        sent = [site.bus.send("stop", box, more=large, deadline_ms=20000) for _ in range(4)]
        for one in sent:  # on whichever replica
            assert one.error("sandbox_busy", 10) and one.seconds < 10
    site.settle()
    assert site.bus.send("stop", box, more=large, deadline_ms=20000).ok()["status"] == "stopped"  # no waiting, no matter


# ---- delete wins -----------------------------------------------------------------------------------------------------------
def test_delete_overtakes_what_runs_and_what_waits(site, box):
    with site.provider_paused():
        first = held(site, box, deadline_ms=60000)
        waiting = [site.bus.send(op, box, deadline_ms=60000) for op in ("ensure", "stop", "ensure")]
        delete = site.bus.send("delete", box, deadline_ms=60000)
        site.bus.hear(box.id, "lifecycle.claimed", operation__type="delete")  # at once, whoever holds the lease
    assert delete.ok(60)["status"] == "none"
    results = [one.result(60) for one in [first, *waiting]]  # each of them is answered, whatever it found
    assert all("ok" in result for result in results)
    site.settle()
    site.bus.run("delete", box)
    site.gone(box)


@pytest.mark.parametrize("op", ["stop", "delete"])
def test_the_opposite_in_a_row(site, box, op):
    """ensure, stop|delete, ensure, … without waiting for anything: each is answered, and the last one stands."""
    sent = []
    for _ in range(6):
        sent += [site.bus.send("ensure", box, deadline_ms=60000), site.bus.send(op, box, deadline_ms=60000)]
    for one in sent:
        one.result(60)
    site.settle()
    assert site.bus.run("ensure", box)["status"] == "running"
    assert len(site.provider.objects(box)) == 1 and [item for item in site.doctor() if item[0] == box.id] == []
