# SPDX-License-Identifier: Apache-2.0
"""The machine-readable contract as one object: proto/asyncapi.yaml says which subject carries which message, the JSON
Schemas say what that message may look like, proto/states.def and proto/errors.def are the tables behind the lists.

A check returns a list of sentences; an empty list means the message is as the contract says."""

import json
import re
from functools import lru_cache
from pathlib import Path

import jsonschema
import yaml
from referencing import Registry, Resource

ROOT = Path(__file__).resolve().parents[2]
PROTO = ROOT / "proto"
BASE = "https://sandkeep.dev/schemas/"


def load_schemas():
    schemas = {}
    for path in sorted((PROTO / "schemas").rglob("*.json")):
        schemas[path.relative_to(PROTO / "schemas").as_posix()] = json.loads(path.read_text("utf-8"))
    return schemas


def x_macro(path, name):
    """The argument lists of SK_<NAME>(…) in a .def file, as lists of strings."""
    rows = []
    for match in re.finditer(r"^%s\((.*)\)\s*$" % re.escape(name), path.read_text("utf-8"), re.M):
        rows.append([re.sub(r'^"(.*)"$', r"\1", part.strip()) for part in re.split(r',(?=(?:[^"]*"[^"]*")*[^"]*$)', match[1])])
    return rows


class States:
    """proto/states.def as sets of wire names."""

    def __init__(self):
        path = PROTO / "states.def"
        statuses = x_macro(path, "SK_STATUS")
        operations = x_macro(path, "SK_OPERATION")
        wire = {row[0]: row[1] for row in statuses}
        self.statuses = [row[1] for row in statuses]
        self.stable = [row[1] for row in statuses if row[2] == "1"]
        self.operations = [row[1] for row in operations]
        self.transitional = {row[1]: wire[row[2]] for row in operations}
        self.terminal = {row[1]: wire.get(row[3], "none") for row in operations}
        self.phases = {}
        names = {row[0]: row[1] for row in operations}
        for row in x_macro(path, "SK_PHASE"):
            self.phases.setdefault(names[row[0]], []).append(row[3])
        self.claims = {(names[row[0]], wire.get(row[1], "none")) for row in x_macro(path, "SK_CLAIM")}


class Catalog:
    def __init__(self, prefix="sandbox"):
        self.prefix = prefix
        self.schemas = load_schemas()
        self.asyncapi = yaml.safe_load((PROTO / "asyncapi.yaml").read_text("utf-8"))
        self.registry = Registry().with_resources(
            [(BASE + name, Resource.from_contents(schema)) for name, schema in self.schemas.items()]
        )
        self.states = States()
        self.routes = []
        for name, channel in self.asyncapi["channels"].items():
            if channel.get("address") is None:
                continue
            many = set(channel.get("x-multi-token", []))
            pattern = ""
            for token in re.split(r"(\{[^}]+\})", channel["address"]):
                if token.startswith("{"):
                    pattern += "(?P<%s>.+)" % token[1:-1] if token[1:-1] in many else r"(?P<%s>[^.]+)" % token[1:-1]
                else:
                    pattern += re.escape(token)
            if prefix != "sandbox":
                pattern = pattern.replace("sandbox", re.escape(prefix), 1)
            self.routes.append((re.compile("^" + pattern + "$"), name))

    @lru_cache(maxsize=None)
    def validator(self, name):
        schema = self.schemas[name]
        return jsonschema.Draft202012Validator(schema, registry=self.registry)

    def route(self, subject):
        """(channel name, subject parameters), or (None, {})."""
        for pattern, name in self.routes:
            match = pattern.match(subject)
            if match:
                return name, match.groupdict()
        return None, {}

    def messages(self, channel):
        """The messages of a channel: [(key, payload schema name, header schema name or None)]."""
        out = []
        for reference in self.asyncapi["channels"][channel]["messages"].values():
            key = reference["$ref"].rsplit("/", 1)[1]
            message = self.asyncapi["components"]["messages"][key]
            headers = message.get("headers")
            out.append((key, self.schema_name(message["payload"]), self.schema_name(headers) if headers else None))
        return out

    @staticmethod
    def schema_name(multi):
        reference = multi["schema"]["$ref"]
        assert reference.startswith("./schemas/"), reference
        return reference[len("./schemas/") :]

    def errors(self, schema, value):
        found = []
        for error in self.validator(schema).iter_errors(value):
            best = jsonschema.exceptions.best_match([error]) or error
            where = "/".join(str(part) for part in best.absolute_path) or "(top)"
            found.append("%s: %s: %s" % (schema, where, best.message[:300]))
        return found

    def check(self, channel, headers, payload, only=None):
        """Checks one message against the messages of a channel; with several, against the one that `only` names."""
        candidates = [m for m in self.messages(channel) if only is None or m[0] == only]
        assert len(candidates) == 1, (channel, only)
        _, schema, header_schema = candidates[0]
        found = self.errors(schema, payload)
        if header_schema:
            found += self.errors(header_schema, headers)
        return found

    def check_reply(self, method, payload):
        return self.check("rpc.%s.reply" % method, {}, payload)

    def check_answer(self, headers, payload):
        """A message on the inbox of a command."""
        if "Sandbox-Progress" in headers:
            key = "progress"
        else:
            key = "result.ok" if isinstance(payload, dict) and payload.get("ok") is True else "result.failed"
        return self.check("inbox", headers, payload, only=key)

    def check_event(self, subject, headers, payload):
        """Beyond the schemas: headers, subject and data must say the same."""
        channel, parameters = self.route(subject)
        found = self.check(channel, headers, payload)
        kind = channel[len("event.") :]
        want = {
            "ce-type": "dev.sandkeep.%s.v1" % kind,
            "ce-subject": parameters["sandboxId"],
            "Nats-Msg-Id": headers.get("ce-id"),
        }
        for name, value in want.items():
            if headers.get(name) != value:
                found.append("%s: header %s is %r, not %r" % (kind, name, headers.get(name), value))
        sandbox = payload.get("sandboxId") if isinstance(payload, dict) else None
        if sandbox is not None and parameters["sandboxId"] not in (sandbox, "unknown"):
            found.append("%s: data.sandboxId is %r, the subject says %r" % (kind, sandbox, parameters["sandboxId"]))
        return found


def check_chain(states, events, from_start=True):
    """The lifecycle events of one record in order of sequence, as [(ce-id, kind, data)]: strictly +1, no id twice, no
    sequence twice, each `from` is the `to` before, only legal moves, epochs that rise with claims and only then."""
    found, ids, previous = [], set(), None
    events = sorted(events, key=lambda item: item[2]["sequence"])
    for event_id, kind, data in events:
        label = "%s #%d %s" % (data["sandboxId"], data["sequence"], kind)
        operation, start, end = data["operation"]["type"], data["from"], data["to"]
        transitional = states.transitional[operation]
        if event_id in ids:
            found.append("%s: event id %s is used twice" % (label, event_id))
        ids.add(event_id)
        if previous is None:
            if from_start and data["sequence"] != 1:
                found.append("%s: the first event must have sequence 1" % label)
        else:
            gap = data["sequence"] != previous[2]["sequence"] + 1  # what stood there may have been a claim
            if gap:
                found.append("%s: sequence follows %d" % (label, previous[2]["sequence"]))
            elif start != previous[2]["to"]:
                found.append("%s: from is %s, the event before went to %s" % (label, start, previous[2]["to"]))
            if data["epoch"] < previous[2]["epoch"]:
                found.append("%s: epoch fell from %d to %d" % (label, previous[2]["epoch"], data["epoch"]))
            claims = kind in ("lifecycle.claimed", "lifecycle.takenover")
            if claims and data["epoch"] <= previous[2]["epoch"]:
                found.append("%s: a claim must raise the epoch %d" % (label, previous[2]["epoch"]))
            if not claims and not gap and data["epoch"] != previous[2]["epoch"]:
                found.append("%s: only a claim may change the epoch" % label)
        if data["operation"]["phase"] not in states.phases[operation]:
            found.append("%s: %s has no phase %s" % (label, operation, data["operation"]["phase"]))
        if kind in ("lifecycle.claimed", "lifecycle.takenover"):
            if (operation, start) not in states.claims or end != transitional:
                found.append("%s: %s cannot be claimed from %s to %s" % (label, operation, start, end))
        elif kind in ("lifecycle.phase", "lifecycle.blocked"):
            if start != transitional or end != transitional:
                found.append("%s: %s -> %s while %s" % (label, start, end, operation))
        elif kind == "lifecycle.completed":
            if start != transitional or end != states.terminal[operation]:
                found.append("%s: %s ends %s -> %s" % (label, operation, start, end))
        elif kind == "lifecycle.failed":
            if start != transitional:
                found.append("%s: %s fails from %s" % (label, operation, start))
        elif kind == "lifecycle.deleted":
            if start != states.transitional["delete"] or end != "none":
                found.append("%s: %s -> %s" % (label, start, end))
        previous = (event_id, kind, data)
    return found


def split_records(events):
    """Cuts the events of one sandbox id into those of its records: a record ends with lifecycle.deleted, and the next
    one starts at sequence 1 with a higher epoch. Works on events in any order."""
    ends = sorted(data["epoch"] for _, kind, data in events if kind == "lifecycle.deleted")
    records = {}
    for item in events:
        records.setdefault(sum(1 for end in ends if item[2]["epoch"] > end), []).append(item)
    return list(records.values())
