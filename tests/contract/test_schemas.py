# SPDX-License-Identifier: Apache-2.0
"""proto/ against itself: schemas are valid, every message has an example that passes and broken ones that do not, the
lists in the schemas are the tables of the code, and asyncapi.yaml names what subjects.h names."""

import copy
import hashlib
import json
import re

import jsonschema
import pytest
from catalog import BASE, PROTO, ROOT, Catalog, check_chain, split_records, x_macro

CATALOG = Catalog()
MESSAGES = {
    key: message
    for key, message in CATALOG.asyncapi["components"]["messages"].items()
}
EXAMPLES = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted((PROTO / "examples").glob("*.json"))}


def payload_schema(key):
    return CATALOG.schema_name(MESSAGES[key]["payload"])


@pytest.mark.parametrize("name", sorted(CATALOG.schemas))
def test_schema_is_valid_and_its_references_resolve(name):
    schema = CATALOG.schemas[name]
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"] == BASE + name
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"] and "description" in schema

    def references(node):
        if isinstance(node, dict):
            if "$ref" in node:
                yield node["$ref"]
            for value in node.values():
                yield from references(value)
        elif isinstance(node, list):
            for value in node:
                yield from references(value)

    resolver = CATALOG.registry.resolver(schema["$id"])
    for reference in references(schema):
        assert resolver.lookup(reference).contents is not None


def test_every_schema_is_used():
    used = set()

    def follow(name):
        if name in used:
            return
        used.add(name)
        for reference in re.findall(r'"\$ref": "([^"#]+)', json.dumps(CATALOG.schemas[name])):
            parts = (name.rsplit("/", 1)[0].split("/") if "/" in name else []) + reference.split("/")
            path = []
            for part in parts:
                path.pop() if part == ".." else path.append(part)
            follow("/".join(path))

    for message in MESSAGES.values():
        follow(CATALOG.schema_name(message["payload"]))
        if "headers" in message:
            follow(CATALOG.schema_name(message["headers"]))
    for name in re.findall(r"\$ref: \./schemas/(\S+)", (PROTO / "openapi-code.yaml").read_text("utf-8")):
        follow(name)
    assert used == set(CATALOG.schemas)


def test_one_example_per_message():
    assert sorted(EXAMPLES) == sorted(MESSAGES)
    for key, message in MESSAGES.items():
        assert message["x-example"] == "./examples/%s.json" % key


@pytest.mark.parametrize("key", sorted(MESSAGES))
def test_example_is_valid(key):
    example = EXAMPLES[key]
    assert CATALOG.errors(payload_schema(key), example["payload"]) == []
    if "headers" in MESSAGES[key]:
        assert CATALOG.errors(CATALOG.schema_name(MESSAGES[key]["headers"]), example.get("headers", {})) == []
    channel, parameters = CATALOG.route(example["subject"])
    if key.startswith(("result", "progress")) or key.endswith(".reply"):
        assert channel is None  # an inbox
    else:
        assert key in [message[0] for message in CATALOG.messages(channel)]
    if key.startswith("event."):
        assert CATALOG.check_event(example["subject"], example["headers"], example["payload"]) == []
    if key.startswith("command."):
        assert parameters["sandboxId"] == example["payload"]["sandboxId"]
        source = example["payload"].get("source")
        if source:
            text = "%s-%s" % (source["sourceId"], source["userId"])
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            assert example["payload"]["sandboxId"] == "%s-%s" % (source["sourceType"].lower(), digest)


@pytest.mark.parametrize("key", sorted(set(MESSAGES) - {"dead", "rpc.wake", "rpc.stats.request"}))
def test_example_with_one_fault_is_not_valid(key):
    """A schema that accepts everything would pass the test above: each required member is removed, each typed one
    replaced, and at least one of these must be refused for every schema."""
    schema, payload = payload_schema(key), EXAMPLES[key]["payload"]
    refused = 0
    for member in payload:
        without = {name: value for name, value in payload.items() if name != member}
        wrong = dict(payload, **{member: {"not": ["this"]} if not isinstance(payload[member], dict) else 7})
        refused += bool(CATALOG.errors(schema, without))
        assert CATALOG.errors(schema, wrong), member
    if not key.startswith("rpc.") or key.endswith("reply"):
        assert refused > 0
    assert CATALOG.errors(schema, []) and CATALOG.errors(schema, "text")


@pytest.mark.parametrize("key", sorted(key for key in MESSAGES if key.startswith(("event.", "result", "progress")) or key.endswith("reply")))
def test_what_we_send_is_closed(key):
    payload = dict(EXAMPLES[key]["payload"], undocumented=1)
    assert CATALOG.errors(payload_schema(key), payload)


@pytest.mark.parametrize("key", sorted(key for key in MESSAGES if key.startswith("command.") or key.endswith("request")))
def test_what_we_take_is_open(key):
    payload = copy.deepcopy(EXAMPLES[key]["payload"])
    payload["future"] = {"deep": [1]}
    if isinstance(payload.get("params"), dict):
        payload["params"]["future"] = True
    assert CATALOG.errors(payload_schema(key), payload) == []


COMMAND_FAULTS = [
    {"id": ""},
    {"id": "x" * 65},
    {"id": "a\x00b"},
    {"id": 7},
    {"op": "stop"},
    {"sandboxId": "app-xyz"},
    {"sandboxId": "chatAgentHelper-0123456789abcdef"},
    {"requestedAt": "yesterday"},
    {"deadlineMs": 0},
    {"deadlineMs": 3600001},
    {"deadlineMs": 1.5},
    {"source": {"sourceType": "chatAgentHelper", "sourceId": "a", "userId": "b"}},
    {"source": {"sourceType": "app", "sourceId": "", "userId": "b"}},
    {"source": {"sourceType": "app", "sourceId": "a"}},
    {"source": {"sourceType": "app", "sourceId": "a" * 65, "userId": "b"}},
    {"params": {"image": {"tag": "1"}}},
    {"params": {"image": {"repository": "a b"}}},
    {"params": {"limit": {"cpuCount": -1}}},
    {"params": {"limit": {"storageSize": "1 GB"}}},
    {"params": {"restore": "yes"}},
    {"params": []},
]


@pytest.mark.parametrize("change", COMMAND_FAULTS, ids=lambda change: json.dumps(change)[:60])
def test_bad_commands_are_refused(change):
    payload = dict(EXAMPLES["command.ensure"]["payload"], **change)
    assert CATALOG.errors("command/ensure.json", payload)


def test_odd_but_good_commands_are_accepted():
    base = {"id": "1"}
    assert CATALOG.errors("command/ensure.json", base) == []
    skill = {"id": "ü" * 64, "source": {"sourceType": "skillEdit", "sourceId": "s"}, "requestedAt": "2026-11-30t08:00:00+01:00"}
    assert CATALOG.errors("command/ensure.json", skill) == []
    assert CATALOG.errors("command/recover.json", base)
    assert CATALOG.errors("command/recover.json", dict(base, params={"action": "abandon"})) == []
    assert CATALOG.errors("command/converge.json", dict(base, params={"provider": "opensandbox"}))


# ---- the tables of the code ------------------------------------------------------------------------------------------
DEFS = CATALOG.schemas["common.json"]["$defs"]


def test_error_codes_are_those_of_the_code():
    rows = x_macro(PROTO / "errors.def", "SK_ERROR")
    assert [row[1] for row in rows] == DEFS["errorCode"]["enum"]
    assert len({row[1] for row in rows}) == len(rows)
    fastgpt = sorted(int(row[4]) for row in rows if row[4] != "0")
    assert set(fastgpt) <= set(CATALOG.schemas["problem.json"]["properties"]["fastgptCode"]["enum"])
    for row in rows:
        problem = {
            "type": "https://sandkeep.dev/errors/" + row[1].replace("_", "-"),
            "title": row[5],
            "status": int(row[2]),
            "code": row[1],
            "detail": "",
            "retryable": row[3] == "1",
        }
        assert CATALOG.errors("problem.json", problem) == []


def test_states_are_those_of_the_code():
    states = CATALOG.states
    assert DEFS["status"]["enum"] == states.statuses
    assert DEFS["statusOrNone"]["enum"] == ["none"] + states.statuses
    assert sorted(DEFS["stableStatus"]["enum"]) == sorted(states.stable)
    assert sorted(DEFS["transitionalStatus"]["enum"]) == sorted(states.transitional.values())
    assert sorted(DEFS["operationType"]["enum"]) == sorted(states.operations)
    assert set(DEFS["phase"]["enum"]) == {phase for phases in states.phases.values() for phase in phases}
    stats = CATALOG.schemas["rpc/stats.reply.json"]["oneOf"][0]["properties"]["data"]["properties"]["statuses"]["properties"]
    assert sorted(stats) == sorted(states.statuses)


def c_strings(path, pattern):
    return set(re.findall(pattern, (ROOT / path).read_text("utf-8")))


def test_events_and_commands_are_those_of_the_code():
    events = {key[len("event.") :] for key in MESSAGES if key.startswith("event.")}
    lifecycle = c_strings("common/instance/json.c", r'"(lifecycle\.[a-z]+)",?\s*(?:\[|\n|\})')
    assert lifecycle and {event for event in events if event.startswith("lifecycle.")} == lifecycle
    sent = set()
    for path in sorted((ROOT / "services").rglob("*.c")):
        if path.parts[-2] == "ctl":
            continue
        sent |= c_strings(path, r'"((?:command|quota|archive|runtime|preview|migration)\.(?:completed|failed|rejected|[a-z]+ed))"')
    assert sent and sent <= events
    verbs = c_strings("services/lifecycle/command.c", r"\[LC_VERB_[A-Z]+\] = \"([a-z]+)\"")
    assert verbs == set(DEFS["commandOp"]["enum"])
    assert verbs == {key[len("command.") :] for key in MESSAGES if key.startswith("command.")}


def defines():
    text = (PROTO / "subjects.h").read_text("utf-8")
    return dict(re.findall(r'^#define\s+(SK_[A-Z_]+)\s+"([^"]*)"', text, re.M))


def test_subjects_header_and_asyncapi_agree():
    names = defines()
    channels = CATALOG.asyncapi["channels"]
    jetstream = CATALOG.asyncapi["x-jetstream"]
    streams = {names["SK_STREAM_COMMANDS"]: "cmd", names["SK_STREAM_EVENTS"]: "evt", names["SK_STREAM_DEAD"]: "dead"}
    assert set(jetstream["streams"]) == set(streams)
    for stream, token in streams.items():
        assert jetstream["streams"][stream]["subjects"] == ["sandbox.%s.>" % token]
    assert names["SK_SUBJECT_COMMANDS_FMT"] % "sandbox" == "sandbox.cmd.>"
    assert names["SK_SUBJECT_EVENTS_FMT"] % "sandbox" == "sandbox.evt.>"
    consumer = jetstream["consumers"][names["SK_CONSUMER_LIFECYCLE"]]
    assert consumer["filterSubject"] == names["SK_SUBJECT_FILTER_LIFECYCLE_FMT"] % "sandbox"
    for name, channel in channels.items():
        address = channel.get("address")
        if name.startswith("command."):
            want = names["SK_SUBJECT_COMMAND_LIFECYCLE_FMT"] % ("sandbox", name[len("command.") :], "{sandboxId}")
            assert channel["x-stream"] == names["SK_STREAM_COMMANDS"]
        elif name.startswith("event."):
            want = names["SK_SUBJECT_EVENT_FMT"] % ("sandbox", "{sandboxId}", name[len("event.") :])
            assert channel["x-stream"] == names["SK_STREAM_EVENTS"]
        elif name == "dead":
            want = names["SK_SUBJECT_DEAD_FMT"] % ("sandbox", "{rest}")
            assert channel["x-stream"] == names["SK_STREAM_DEAD"]
        elif name == "rpc.wake":
            want = names["SK_SUBJECT_WAKE_FMT"] % "sandbox"
        elif name.startswith("rpc.") and not name.endswith(".reply"):
            want = names["SK_SUBJECT_RPC_FMT"] % ("sandbox", "lifecycle", name[len("rpc.") :])
        else:
            want = None
        assert address == want, name
    event_headers = CATALOG.schemas["header/event.json"]["required"]
    assert {value for key, value in names.items() if key.startswith("SK_HEADER_CE_")} <= set(event_headers)
    assert names["SK_HEADER_REPLY_TO"] in CATALOG.schemas["header/command.json"]["properties"]
    assert names["SK_HEADER_PROGRESS"] in CATALOG.schemas["header/progress.json"]["required"]
    assert {names["SK_HEADER_REASON"], names["SK_HEADER_DELIVERIES"]} <= set(CATALOG.schemas["header/dead.json"]["required"])
    assert CATALOG.schemas["problem.json"]["properties"]["type"]["pattern"].startswith("^" + re.escape(names["SK_ERROR_TYPE_URI"]).replace(r"\:", ":"))


# ---- the rules for sequences -----------------------------------------------------------------------------------------
def lifecycle(sequence, kind, start, end, operation, phase="claimed", epoch=100, event_id=None):
    data = {"sandboxId": "app-1", "sequence": sequence, "from": start, "to": end, "epoch": epoch,
            "operation": {"id": "o", "type": operation, "phase": phase, "attempt": 0}}
    return (event_id or "e%d-%d" % (epoch, sequence), "lifecycle." + kind, data)


GOOD = [
    lifecycle(1, "claimed", "none", "provisioning", "provision"),
    lifecycle(2, "takenover", "provisioning", "provisioning", "provision", epoch=101),
    lifecycle(3, "phase", "provisioning", "provisioning", "provision", "providerEnsured", epoch=101),
    lifecycle(4, "completed", "provisioning", "running", "provision", "providerEnsured", epoch=101),
    lifecycle(5, "claimed", "running", "stopping", "stop", epoch=102),
    lifecycle(6, "blocked", "stopping", "stopping", "stop", epoch=102),
    lifecycle(7, "failed", "stopping", "deleting", "stop", epoch=102),
    lifecycle(8, "claimed", "deleting", "deleting", "delete", epoch=103),
    lifecycle(9, "deleted", "deleting", "none", "delete", "archiveDeleted", epoch=103),
]


def test_a_good_chain_passes_in_any_order():
    assert check_chain(CATALOG.states, GOOD) == []
    assert check_chain(CATALOG.states, list(reversed(GOOD))) == []
    assert check_chain(CATALOG.states, GOOD[4:], from_start=False) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda e: e.pop(3),
        lambda e: e.pop(0),
        lambda e: e.append(lifecycle(5, "claimed", "running", "stopping", "stop", epoch=102, event_id="again")),
        lambda e: e.__setitem__(3, lifecycle(4, "completed", "provisioning", "stopped", "provision", "providerEnsured", 101)),
        lambda e: e.__setitem__(4, lifecycle(5, "claimed", "stopped", "stopping", "stop", epoch=102)),
        lambda e: e.__setitem__(4, lifecycle(5, "claimed", "running", "stopping", "stop", epoch=101)),
        lambda e: e.__setitem__(5, lifecycle(6, "blocked", "stopping", "stopping", "stop", epoch=103)),
        lambda e: e.__setitem__(6, lifecycle(7, "failed", "stopping", "deleting", "stop", epoch=99)),
        lambda e: e.__setitem__(2, lifecycle(3, "phase", "provisioning", "provisioning", "provision", "providerStopped", 101)),
        lambda e: e.__setitem__(8, lifecycle(9, "deleted", "stopping", "none", "delete", "archiveDeleted", 103)),
        lambda e: e.__setitem__(1, lifecycle(2, "takenover", "provisioning", "provisioning", "provision", epoch=101, event_id=GOOD[0][0])),
    ],
)
def test_a_broken_chain_is_seen(change):
    events = list(GOOD)
    change(events)
    assert check_chain(CATALOG.states, events)


@pytest.mark.parametrize("lost", [1, 4, 7])
def test_a_claim_that_is_missing_is_one_fault(lost):
    """The epoch that changed with it is no fault of the event behind it: a wiped server loses events."""
    events = list(GOOD)
    events.pop(lost)
    assert len(check_chain(CATALOG.states, events)) == 1


def test_records_of_one_id_are_told_apart():
    again = [lifecycle(1, "claimed", "none", "provisioning", "provision", epoch=900)]
    records = split_records(again + GOOD)
    assert sorted(len(record) for record in records) == [1, 9]
    for record in records:
        assert check_chain(CATALOG.states, record) == []
