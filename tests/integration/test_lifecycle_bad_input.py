# SPDX-License-Identifier: Apache-2.0
"""Bad input (contract/messaging.md §2, lifecycle.md §6): each row is answered with its code, shown as a rejected command,
kept as a dead letter with its headers, and never stands in anybody's way."""
import json
import secrets
import uuid

import pytest
from live import Box, new_box

OWN = "own"  # the subject is the command's own
MAX = 256 * 1024


def command(**changes):
    """A body that is fine but for the changes; a change to None leaves the member out."""
    def make(op, box):
        body = {"id": f"bad-{secrets.token_hex(6)}", "op": op, "sandboxId": box.id, "source": box.source, "deadlineMs": 5000}
        body.update(changes)
        return json.dumps({name: value for name, value in body.items() if value is not LEFT_OUT}).encode()
    return make


def params(**members):
    return command(params=members)


def source(**members):
    def make(op, box):
        changed = {**box.source, **members}
        return command(source={name: value for name, value in changed.items() if value is not LEFT_OUT})(op, box)
    return make


def raw(data):
    return lambda op, box: data


def text(before, after):
    """The fine body with a piece of its text replaced: for what json.dumps would not write."""
    def make(op, box):
        data = command()(op, box)
        assert before in data
        return data.replace(before, after)
    return make


def padded(size):
    def make(op, box):
        data = command()(op, box)
        return data[:-1] + b" " * (size - len(data)) + b"}"
    return make


LEFT_OUT = object()
BAD = "invalid_request"
# name: (op, body, code). The op of the subject is the first one; the body says the same unless it is about that.
ROWS = {
    # Not a command at all.
    "empty": ("ensure", raw(b""), BAD),
    "blanks": ("ensure", raw(b"  \n "), BAD),
    "no-json": ("ensure", raw(b"hello"), BAD),
    "cut": ("ensure", lambda op, box: command()(op, box)[:-7], BAD),
    "two-values": ("ensure", lambda op, box: command()(op, box) * 2, BAD),
    "array": ("ensure", raw(b"[]"), BAD),
    "number": ("ensure", raw(b"17"), BAD),
    "null": ("ensure", raw(b"null"), BAD),
    "string": ("ensure", raw(b'"ensure"'), BAD),
    "empty-object": ("ensure", raw(b"{}"), BAD),
    "deep-arrays": ("ensure", raw(b"[" * 100_000), BAD),
    "deep-objects": ("ensure", raw(b'{"a":' * 40_000 + b"1" + b"}" * 40_000), BAD),
    "deep-inside": ("ensure", lambda op, box: command(future=json.loads("[" * 200 + "]" * 200))(op, box), BAD),
    "too-large": ("ensure", padded(MAX + 1), BAD),
    "much-too-large": ("ensure", padded(900 * 1024), BAD),
    "invalid-utf8": ("ensure", text(b'"id": "bad', b'"id": "\xff\xfe bad'), BAD),
    "cut-utf8": ("ensure", text(b'"id": "bad', b'"id": "\xe2\x82 bad'), BAD),
    "surrogate": ("ensure", text(b'"id": "bad', b'"id": "\\ud800 bad'), BAD),
    "bom": ("ensure", lambda op, box: b"\xef\xbb\xbf" + command()(op, box), BAD),
    "nul-byte": ("ensure", text(b'"id": "bad', b'"id": "\x00bad'), BAD),
    "nul-after": ("ensure", lambda op, box: command()(op, box) + b"\x00", BAD),
    "duplicate-key": ("ensure", text(b'{"id"', b'{"op": "ensure", "id"'), BAD),
    "binary": ("ensure", raw(bytes(range(256)) * 16), BAD),
    "huge-number": ("ensure", text(b"5000", b"1e999"), BAD),
    "nan": ("ensure", text(b"5000", b"NaN"), BAD),
    # id
    "id-missing": ("ensure", command(id=LEFT_OUT), BAD),
    "id-null": ("ensure", command(id=None), BAD),
    "id-number": ("ensure", command(id=17), BAD),
    "id-object": ("ensure", command(id={"a": 1}), BAD),
    "id-empty": ("ensure", command(id=""), BAD),
    "id-65": ("ensure", command(id="x" * 65), BAD),
    "id-65-wide": ("ensure", command(id="\U0001f600" * 65), BAD),
    "id-nul": ("ensure", command(id="a\x00b"), BAD),
    "id-newline": ("ensure", command(id="a\nb"), BAD),
    # op and sandboxId against the subject
    "op-unknown": ("ensure", command(op="explode"), BAD),
    "op-number": ("ensure", command(op=1), BAD),
    "op-null": ("ensure", command(op=None), BAD),
    "op-other": ("ensure", command(op="delete"), BAD),
    "op-unknown-subject": ("explode", command(), BAD),
    "op-long-subject": ("x" * 300, command(op="ensure"), BAD),
    "id-other": ("ensure", command(sandboxId="app-0123456789abcdef"), "identity_mismatch"),
    "sandbox-number": ("ensure", command(sandboxId=5), BAD),
    "sandbox-null": ("ensure", command(sandboxId=None), BAD),
    "foreign": ("ensure", source(sourceId="somebody-elses"), "identity_mismatch"),
    "foreign-user": ("delete", source(userId="somebody-else"), "identity_mismatch"),
    "foreign-type": ("ensure", source(sourceType="workflowBuilder"), "identity_mismatch"),
    # source
    "source-text": ("ensure", command(source="app"), BAD),
    "source-array": ("ensure", command(source=[]), BAD),
    "source-empty": ("ensure", command(source={}), BAD),
    "type-helper": ("ensure", source(sourceType="chatAgentHelper"), "source_unsupported"),
    "type-unknown": ("ensure", source(sourceType="toaster"), BAD),
    "type-number": ("ensure", source(sourceType=1), BAD),
    "type-missing": ("ensure", source(sourceType=LEFT_OUT), BAD),
    "source-id-missing": ("ensure", source(sourceId=LEFT_OUT), BAD),
    "source-id-number": ("ensure", source(sourceId=7), BAD),
    "source-id-empty": ("ensure", source(sourceId=""), BAD),
    "source-id-65": ("ensure", source(sourceId="s" * 65), BAD),
    "source-id-nul": ("ensure", source(sourceId="s\x00"), BAD),
    "source-id-control": ("ensure", source(sourceId="s\x1b[31m"), BAD),
    "source-id-del": ("ensure", source(sourceId="s\x7f"), BAD),
    "user-missing": ("ensure", source(userId=LEFT_OUT), BAD),
    "user-null": ("ensure", source(userId=None), BAD),
    "user-number": ("ensure", source(userId=7), BAD),
    "user-empty": ("ensure", source(userId=""), BAD),
    "user-129": ("ensure", source(userId="u" * 129), BAD),
    "user-nul": ("ensure", source(userId="a\x00b"), BAD),
    # the rest
    "deadline-zero": ("ensure", command(deadlineMs=0), BAD),
    "deadline-negative": ("ensure", command(deadlineMs=-5), BAD),
    "deadline-long": ("ensure", command(deadlineMs=3_600_001), BAD),
    "deadline-huge": ("ensure", command(deadlineMs=2**63), BAD),
    "deadline-fraction": ("ensure", command(deadlineMs=1.5), BAD),
    "deadline-text": ("ensure", command(deadlineMs="10"), BAD),
    "requested-text": ("ensure", command(requestedAt="yesterday"), BAD),
    "requested-number": ("ensure", command(requestedAt=1700000000), BAD),
    "params-array": ("ensure", command(params=[]), BAD),
    "params-text": ("ensure", command(params="x"), BAD),
    "restore-text": ("ensure", params(restore="yes"), BAD),
    "image-text": ("ensure", params(image="a:b"), BAD),
    "image-empty": ("ensure", params(image={}), BAD),
    "image-number": ("ensure", params(image={"repository": 1}), BAD),
    "image-blank": ("ensure", params(image={"repository": "a b"}), BAD),
    "image-option": ("ensure", params(image={"repository": "a\n--privileged"}), BAD),
    "image-tag": ("ensure", params(image={"repository": "a", "tag": "b/c"}), BAD),
    "provider-number": ("ensure", params(provider=1), BAD),
    "provider-path": ("ensure", params(provider="../x"), BAD),
    "limit-array": ("ensure", params(limit=[1]), BAD),
    "cpu-negative": ("ensure", params(limit={"cpuCount": -1}), BAD),
    "cpu-text": ("ensure", params(limit={"cpuCount": "1"}), BAD),
    "cpu-huge": ("ensure", params(limit={"cpuCount": 1e300}), BAD),
    "memory-zero": ("ensure", params(limit={"memoryMiB": 0}), BAD),
    "storage-text": ("ensure", params(limit={"storageSize": "a lot"}), BAD),
    "storage-exponent": ("ensure", params(limit={"storageSize": "1e9Gi"}), BAD),
    "storage-number": ("ensure", params(limit={"storageSize": 5}), BAD),
    "team-number": ("ensure", params(teamId=5), BAD),
    "team-long": ("ensure", params(teamId="t" * 300), BAD),
    "version-object": ("ensure", params(versionId={}), BAD),
    "reason-long": ("stop", params(reason="r" * 3000), BAD),
    "idle-text": ("stop", params(ifIdleSince="yesterday"), BAD),
    "idle-number": ("stop", params(ifIdleSince=1700000000), BAD),
    "idle-no-zone": ("stop", params(ifIdleSince="2026-11-30T08:00:00"), BAD),
    "force-text": ("archive", params(force="yes"), BAD),
    "converge-nothing": ("converge", command(), BAD),
    "converge-half": ("converge", params(image={"repository": "a"}), BAD),
    "recover-nothing": ("recover", command(), BAD),
    "recover-action": ("recover", params(action="explode"), BAD),
    "recover-number": ("recover", params(action=1), BAD),
}
# Subjects below sandbox.cmd.lifecycle. that name no sandbox: {box} is a good id.
SUBJECTS = {
    "no-id": "ensure", "nothing": "x", "capitals": "ensure.APP-0123456789ABCDEF", "other-kind": "ensure.chatagenthelper-0123456789abcdef",
    "short-id": "ensure.app-0123", "two-ids": "ensure.{box}.{box}", "unicode": "ensure.прил-0123456789abcdef", "long": "ensure." + "a" * 400,
}


@pytest.fixture(scope="module")
def rows(site):
    """Sends everything bad at once: {name: (box, Command, code, data, subject)}."""
    out, prepared = {}, []
    for name, (op, make, code) in ROWS.items():
        box = Box(f"bad-{name}", secrets.token_hex(6))
        data = make(op, box)
        item = site.bus.prepare(op, box, raw=data, headers={"X-Sender": f"{name} \u00fc", "traceparent": f"00-{uuid.uuid4().hex}-{uuid.uuid4().hex[:16]}-01"})
        out[name] = (box, item[0], code, data, item[1])
        prepared.append(item)
    for name, tail in SUBJECTS.items():
        box = Box(f"subject-{name}", secrets.token_hex(6))
        data = command()("ensure", box)
        item = site.bus.prepare("ensure", box, raw=data, subject="sandbox.cmd.lifecycle." + tail.replace("{box}", box.id), headers={"X-Sender": name})
        out[f"subject-{name}"] = (box, item[0], BAD, data, item[1])
        prepared.append(item)
    site.bus.send_many(prepared)
    return out


@pytest.mark.parametrize("name", list(ROWS) + [f"subject-{name}" for name in SUBJECTS])
def test_refused(site, rows, name):
    box, sent, code, data, subject = rows[name]
    answer = sent.result(20)
    assert answer["ok"] is False and answer["error"]["code"] == code, answer
    assert answer["error"]["retryable"] is False and answer["error"]["status"] == 400 and answer["error"]["detail"]
    assert len(sent.answers) == 1 and sent.progress == []

    letter = site.bus.letter(lambda one: one.subject == "sandbox.dead." + subject[len("sandbox.cmd."):] and one.data[:200] == data[:200])
    assert letter.headers["Sandbox-Reason"] == code and int(letter.headers["Sandbox-Deliveries"]) >= 1
    assert letter.headers["Sandbox-Reply-To"] == sent.inbox and letter.headers["X-Sender"].startswith(name.removeprefix("subject-")[:20])
    assert letter.data == data[:len(letter.data)] and len(letter.data) >= min(len(data), MAX)

    ident = answer.get("id")
    where = box.id if not name.startswith("subject-") else "unknown"
    rejected = [event for event in site.bus.heard(where, "command.rejected") if event.data["error"] == answer["error"]]
    assert rejected and all(event.data.get("commandId") == ident for event in rejected if event.sandbox != "unknown")
    assert site.record(box) is None


def test_nothing_is_wedged(site, rows):
    for _, sent, *_ in rows.values():
        sent.result(20)
    site.settle()
    info = site.bus.consumer()
    assert (info.num_pending, info.num_ack_pending) == (0, 0)
    # The very sandboxes that got the bad commands work as any other.
    boxes = [rows[name][0] for name in ("empty", "too-large", "foreign", "deep-arrays", "id-nul")]
    for sent in site.bus.send_many(site.bus.prepare("ensure", box, deadline_ms=30000) for box in boxes):
        assert sent.ok(30)["status"] == "running"
    site.delete_all(boxes)


def test_good_input_at_the_edges(site, box):
    """What is just allowed is allowed."""
    site.bus.run("ensure", box)
    wide = "\U0001f600" * 64
    for make in (command(id=wide), command(id="x" * 64), padded(MAX), command(deadlineMs=1000.0), command(deadlineMs=3_600_000), command(params={}),
                 command(future=json.loads("[" * 20 + "]" * 20)), command(requestedAt="2026-11-30T08:00:00+02:00"), command(id='quote " back \\ slash')):
        data = make("touch", box)
        sent = site.bus.prepare("touch", box, raw=data, ident=json.loads(data)["id"])
        site.bus.send_many([sent])
        assert sent[0].ok(20)["id"] == json.loads(data)["id"]


@pytest.mark.parametrize("value", [
    "sandbox.evt.x", "sandbox.cmd.lifecycle.delete.app-0123456789abcdef", "$SYS.REQ.SERVER.PING", "$JS.API.STREAM.DELETE.SANDBOX_COMMANDS", "a.*", "a.>", ">", ".",
    "a..b", "a b", "inbox." + "x" * 600, "tab\there"])
def test_an_inbox_that_is_not_usable_is_ignored(site, box, value):
    site.bus.run("ensure", box)
    before = site.bus.stream("SANDBOX_COMMANDS")
    sent = site.bus.send("touch", box, headers={"Sandbox-Reply-To": value})
    site.bus.hear(box.id, "command.completed", commandId=sent.id)
    assert sent.answers == [] and site.bus.stream("SANDBOX_COMMANDS").created == before.created


def test_hostile_headers(site, box):
    site.bus.run("ensure", box)
    many = {f"X-Header-{number}": "v" * 100 for number in range(60)}
    sent = site.bus.send("touch", box, headers={**many, "traceparent": "garbage", "tracestate": "x" * 3000, "X-Long": "y" * 20000, "Ce-Id": "mine", "Nats-Msg-Id": f"m-{secrets.token_hex(6)}"})
    assert sent.ok()["status"] == "running"
    assert not {"traceparent", "tracestate"} & set(site.bus.hear(box.id, "command.completed", commandId=sent.id).headers)
    # The same on a command that becomes a dead letter: nothing of it steers the stream it goes to.
    steer = {"Nats-Msg-Id": f"steer-{secrets.token_hex(6)}", "Sandbox-Reason": "all is well", "Sandbox-Deliveries": "0", "ce-type": "dev.evil.v1", **many}
    bad = site.bus.prepare("touch", box, raw=b"{", headers=steer)
    site.bus.send_many([bad])
    assert bad[0].result()["error"]["code"] == BAD
    letter = site.bus.letter(lambda one: one.headers.get("Sandbox-Original-Nats-Msg-Id") == steer["Nats-Msg-Id"])
    assert letter.headers["Sandbox-Reason"] == BAD and letter.headers["Sandbox-Deliveries"] == "1"


@pytest.mark.parametrize("subject", ["sandbox.cmd.whatever", "sandbox.cmd.lifecycles.ensure.app-0123456789abcdef", "sandbox.cmd.foo.bar.baz"])
def test_commands_of_nobody(site, subject):
    """No consumer takes them: they are rejected, dead-lettered, and deleted from the stream."""
    sent, _, data, headers = site.bus.prepare("ensure", new_box("stray"))
    site.bus.send_many([(sent, subject, data, headers)])
    assert sent.result()["error"]["code"] == BAD
    letter = site.bus.letter(lambda one: one.subject == "sandbox.dead." + subject[len("sandbox.cmd."):] and one.data == data)
    assert letter.headers["Sandbox-Reason"] == BAD
    site.settle()


@pytest.mark.parametrize("subject", ["sandbox.cmd.source.delete.app.66a1f0c2b7d4e8a1c0d3e501", "sandbox.cmd.archive.create.app-0123456789abcdef", "sandbox.cmd.migration.run"])
def test_commands_of_services_that_are_not_there_yet(site, subject):
    """They are answered too, and nothing is left in the stream for ever."""
    sent, _, data, headers = site.bus.prepare("ensure", new_box("later"))
    site.bus.send_many([(sent, subject, data, headers)])
    assert sent.result()["error"]["code"] in ("operation_blocked", BAD)
    site.settle()


# ---- requests ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method,body,code", [
    ("get", b"", BAD), ("get", b"{", BAD), ("get", b"[]", BAD), ("get", b"{}", BAD), ("get", b'{"sandboxId":7}', BAD), ("get", b'{"sandboxId":"nope"}', BAD),
    ("get", b'{"sandboxId":"app-0123456789abcdef\\u0000"}', BAD), ("get", b'{"sandboxId":"app-0123456789abcdef"}', "sandbox_not_found"),
    ("get", b"[" * 100_000, BAD), ("get", b'{"sandboxId":"\xff"}', BAD),
    ("find", b'{"sourceType":"app"}', BAD), ("find", b'{"sourceType":"chatAgentHelper","sourceId":"x","userId":"u"}', "source_unsupported"),
    ("find", b'{"sourceType":"app","sourceId":"' + b"x" * 65 + b'","userId":"u"}', BAD), ("find", b'{"sourceType":"app","sourceId":5,"userId":"u"}', BAD),
    ("list", b'{"limit":0}', BAD), ("list", b'{"limit":501}', BAD), ("list", b'{"limit":"5"}', BAD), ("list", b'{"sort":"size"}', BAD),
    ("list", b'{"cursor":"garbage"}', BAD), ("list", b'{"cursor":7}', BAD), ("list", b'{"filter":[]}', BAD), ("list", b'{"filter":{"status":"sleeping"}}', BAD),
    ("list", b'{"filter":{"status":[1]}}', BAD), ("list", b'{"filter":{"sourceType":"toaster"}}', BAD), ("list", b'{"filter":{"blocked":"yes"}}', BAD),
    ("list", b'{"filter":{"olderThan":"long ago"}}', BAD), ("list", b'{"filter":{"userId":5}}', BAD), ("timeline", b"{}", BAD), ("timeline", b'{"sandboxId":"x"}', BAD),
    ("exists", b"{}", BAD), ("status", b"{}", BAD)])
def test_bad_requests(site, method, body, code):
    reply = site.bus.request(method, raw=body)
    assert reply["ok"] is False and reply["error"]["code"] == code, reply


def test_a_method_that_does_not_exist(site):
    reply = site.bus.request("explode", {})
    assert reply["ok"] is False and reply["error"]["code"] == BAD
