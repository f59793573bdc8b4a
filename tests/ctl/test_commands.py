# SPDX-License-Identifier: Apache-2.0
"""Commands: what is published, progress, results, exit statuses, interruption, a bus that goes away."""
import json
import re
import signal
import time

import pytest
from conftest import IDENTITY, SANDBOX, wait_for

RUNNING = {"sandboxId": SANDBOX, "status": "running", "provider": "opensandbox", "epoch": 7}


def ok(command, **more):
    return {"id": command["id"], "ok": True, "sandboxId": SANDBOX, "status": "running", "epoch": 7, "operationId": "op-1", "instance": RUNNING, **more}


def failed(command, code, status, **more):
    return {"id": command["id"], "ok": False, "error": {"type": f"https://sandkeep.dev/errors/{code}", "title": "no", "status": status, "code": code,
                                                        "detail": "because", "retryable": False, **more}}


def progress(command, phase):
    return {"Sandbox-Progress": "1"}, {"id": command["id"], "phase": phase, "status": "provisioning"}


def test_ensure_publishes_the_whole_command_and_prints_the_instance(skctl, service):
    service.answers["ensure"] = lambda c: [progress(c, "claimed"), progress(c, "providerEnsured"), ({}, ok(c))]
    done = skctl("ensure", *IDENTITY, "--team=t1", "--image=host:5000/img:v2", "--cpu=0.5", "--memory=512", "--reason=tour")
    assert done.status == 0
    assert f"{SANDBOX}  running  epoch 7" in done.out
    assert "claimed" in done.err and "providerEnsured" in done.err and "claimed" not in done.out
    (command,) = service.commands
    body = command["body"]
    assert command["subject"] == f"sandbox.cmd.lifecycle.ensure.{SANDBOX}"
    assert command["headers"]["Nats-Msg-Id"] == body["id"] and re.fullmatch(r"[0-9A-HJKMNP-TV-Z]{26}", body["id"])
    assert body["source"] == {"sourceType": "app", "sourceId": IDENTITY[1], "userId": IDENTITY[3]}
    assert body["sandboxId"] == SANDBOX and body["deadlineMs"] == 120000 and body["op"] == "ensure"
    assert body["params"] == {"image": {"repository": "host:5000/img", "tag": "v2"}, "teamId": "t1", "reason": "tour",
                              "limit": {"cpuCount": 0.5, "memoryMiB": 512}}


def test_json_is_pure_and_quiet_is_quiet(skctl, service):
    service.answers["ensure"] = lambda c: [progress(c, "claimed"), ({}, ok(c))]
    done = skctl("ensure", *IDENTITY, "--json")
    assert done.json["instance"] == RUNNING and "claimed" in done.err
    assert skctl("ensure", *IDENTITY, "--json", "--quiet").err == ""


def test_nothing_to_do_is_told(skctl, service):
    service.answers["ensure"] = lambda c: [({}, {**ok(c), "operationId": None})]
    assert "nothing to do" in skctl("ensure", SANDBOX).out


@pytest.mark.parametrize("code,status,expected", [
    ("provider_error", 502, 1), ("operation_blocked", 409, 1), ("sandbox_not_found", 404, 3), ("source_missing", 404, 3), ("sandbox_busy", 409, 4),
    ("limit_reached", 409, 4), ("idempotency_conflict", 422, 4), ("deadline_exceeded", 504, 5), ("something_new", 500, 1)])
def test_error_codes_become_exit_statuses(skctl, service, code, status, expected):
    service.answers["stop"] = lambda c: [({}, failed(c, code, status))]
    done = skctl("stop", SANDBOX)
    assert done.status == expected and done.out == "" and f"{code}: because" in done.err
    done = skctl("stop", SANDBOX, "--json")
    assert done.status == expected and done.json["error"]["code"] == code


def test_busy_tells_what_is_in_the_way(skctl, service):
    service.answers["stop"] = lambda c: [({}, failed(c, "sandbox_busy", 409, retryable=True, retryAfterMs=1500,
                                                     operation={"id": "op-9", "type": "provision", "phase": "claimed"}))]
    err = skctl("stop", SANDBOX).err
    assert "provision op-9, phase claimed" in err and "1.5 s" in err


def test_text_of_others_cannot_move_the_cursor(skctl, service):
    service.answers["stop"] = lambda c: [({}, {**failed(c, "provider_error", 502), "error": {"code": "provider_error", "detail": "a\x1b[2Jb\x9bc\r"}})]
    err = skctl("stop", SANDBOX).err
    assert "\x1b" not in err and "\x9b" not in err and "a?[2Jb?c?" in err


def test_no_wait_returns_when_stored(skctl, service):
    done = skctl("ensure", *IDENTITY, "--wait=false", "--json")
    assert done.status == 0 and done.json["stored"] is True and done.json["sequence"] == 1
    wait_for(lambda: service.commands)
    assert "Sandbox-Reply-To" not in service.commands[0]["headers"]
    assert done.json["id"] == service.commands[0]["body"]["id"]


def test_own_id_can_be_repeated(skctl, service):
    service.answers["ensure"] = lambda c: [({}, ok(c))]
    for _ in range(2):  # JetStream must not drop the second one
        assert skctl("ensure", *IDENTITY, "--id=mine").status == 0
    assert [c["body"]["id"] for c in service.commands] == ["mine", "mine"]
    assert all("Nats-Msg-Id" not in c["headers"] for c in service.commands)


def test_deadline_without_an_answer_is_5(skctl, service):
    began = time.monotonic()
    done = skctl("ensure", *IDENTITY, "--deadline=300ms")
    assert done.status == 5 and "may go on" in done.err and time.monotonic() - began < 8
    assert service.commands[0]["body"]["deadlineMs"] == 300


def test_messages_of_others_on_the_inbox_are_ignored(skctl, service):
    service.answers["ensure"] = lambda c: [({}, {"id": "other", "ok": False}), ({}, ["noise"]), ({}, ok(c))]
    assert skctl("ensure", *IDENTITY).status == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_says_that_the_operation_goes_on(start, service, number):
    process = start("ensure", *IDENTITY)
    wait_for(lambda: service.commands)
    process.send_signal(number)
    out, err = process.communicate(timeout=10)
    assert process.returncode == 130 and out == ""
    assert "the operation goes on" in err and service.commands[0]["body"]["id"] in err


def test_a_result_missed_while_the_bus_was_away_is_asked_for_again(start, service, server):
    process = start("ensure", *IDENTITY)
    wait_for(lambda: service.commands)
    server.stop()
    service.answers["ensure"] = lambda c: [({}, ok(c))]  # from now on: what the service has stored
    time.sleep(0.3)
    server.start()
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert "running" in out and "asking again" in err
    assert {c["body"]["id"] for c in service.commands} == {service.commands[0]["body"]["id"]}


def test_without_streams_the_reason_is_told(skctl):
    done = skctl("ensure", *IDENTITY)
    assert done.status == 6 and "the command stream does not exist" in done.err
    done = skctl("watch", "--for=1s")
    assert done.status == 6 and "no event stream" in done.err


@pytest.mark.parametrize("verb,arguments,params", [
    ("stop", ["--if-idle-since=2026-11-30T08:00:00+01:00", "--reason=r"], {"ifIdleSince": "2026-11-30T07:00:00.000Z", "reason": "r"}),
    ("archive", ["--force"], {"force": True}), ("restore", [], {}), ("delete", ["--reason=bye"], {"reason": "bye"}),
    ("converge", ["--image=a", "--provider=p"], {"image": {"repository": "a"}, "provider": "p"}), ("recover", [], {"action": "retry"}),
    ("recover", ["--action=abandon"], {"action": "abandon"}), ("touch", [], {}), ("ensure", ["--restore=false"], {"restore": False})])
def test_params_of_each_command(skctl, service, verb, arguments, params):
    service.answers[verb] = lambda c: [({}, ok(c))]
    assert skctl(verb, SANDBOX, *arguments).status == 0
    assert service.commands[0]["body"]["params"] == params
    assert "source" not in service.commands[0]["body"]


@pytest.mark.parametrize("status", [{}, {"status": "none"}])
def test_a_delete_reads_well(skctl, service, status):
    service.answers["delete"] = lambda c: [({}, {"id": c["id"], "ok": True, "sandboxId": SANDBOX, **status})]
    assert f"{SANDBOX}  deleted" in skctl("delete", SANDBOX).out


def test_results_are_json_documents_even_when_huge(skctl, service):
    service.answers["ensure"] = lambda c: [({}, ok(c, note="x" * 500000))]
    assert len(json.dumps(skctl("ensure", SANDBOX, "--json").json)) > 500000
