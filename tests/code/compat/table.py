# SPDX-License-Identifier: Apache-2.0
"""The form of the compatibility table, and how a row is held against a server.

A row is what a client sends and what it must get. Expected values are data: a plain value must be equal, and
    str, int, bool, list, dict …   stands for any value of that type
    re.compile(…)                  for a text in which it is found
    Has({…})                       for an object with at least these members
    OneOf(a, b)                    for one of several
`reference` names the section that the row comes from (A1 … A12 of the facts about the original service, or "§4" of our own
contract). `ours` marks what the original does otherwise or not at all: such rows are left out for other servers. What a
task's error says of itself beyond its message (type, line, code: `error`) is ours in every row and looked at only here."""
import dataclasses
import http.client
import json
import re
import typing
import urllib.parse

ANY = object()


@dataclasses.dataclass(frozen=True)
class Has:
    members: dict


class OneOf(tuple):
    def __new__(cls, *values):
        return super().__new__(cls, values)


def difference(expected, actual, where="it"):
    """What is not as expected, as a text; None when all is."""
    if expected is ANY:
        return None
    if isinstance(expected, OneOf):
        return None if any(difference(one, actual) is None for one in expected) else f"{where} is {brief(actual)}, not one of {tuple(expected)}"
    if isinstance(expected, type):
        fits = isinstance(actual, expected) and (expected is bool or not isinstance(actual, bool))
        return None if fits else f"{where} is {brief(actual)}, not {expected.__name__}"
    if isinstance(expected, re.Pattern):
        fits = isinstance(actual, str) and expected.search(actual)
        return None if fits else f"{where} is {brief(actual)}, not like /{expected.pattern}/"
    if isinstance(expected, Has):
        if not isinstance(actual, dict):
            return f"{where} is {brief(actual)}, not an object"
        for name, value in expected.members.items():
            if name not in actual:
                return f"{where} has no {name}: {brief(actual)}"
            found = difference(value, actual[name], f"{where}.{name}")
            if found:
                return found
        return None
    if isinstance(expected, dict) and isinstance(actual, dict):
        if set(expected) != set(actual):
            return f"{where} has the members {sorted(actual)}, not {sorted(expected)}"
        return difference(Has(expected), actual, where)
    if isinstance(expected, (list, tuple)) and isinstance(actual, list):
        if len(expected) != len(actual):
            return f"{where} has {len(actual)} elements, not {len(expected)}: {brief(actual)}"
        found = (difference(one, other, f"{where}[{n}]") for n, (one, other) in enumerate(zip(expected, actual)))
        return next((text for text in found if text), None)
    equal = expected == actual and isinstance(expected, bool) == isinstance(actual, bool)
    return None if equal else f"{where} is {brief(actual)}, not {brief(expected)}"


def brief(value):
    text = value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False, default=str)
    text = text.decode(errors="replace") if isinstance(text, bytes) else text
    return text if len(text) <= 300 else f"{text[:200]}… ({len(text)} characters)"


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    reference: str
    # what is sent: a task …
    language: str = ""  # "js", "python"
    code: typing.Any = ""
    variables: typing.Any = None
    members: dict = dataclasses.field(default_factory=dict)  # further members of the body
    before: tuple = ()  # codes of tasks that run first; their answers are not looked at
    # … or a request as it is; `body` may be a function (large bodies are made when they are sent)
    method: str = "POST"
    path: str = ""
    headers: dict = dataclasses.field(default_factory=dict)
    body: typing.Any = None
    authorized: bool = True
    # what must come back
    status: typing.Any = 200
    answer: typing.Any = ANY  # the whole body, when it is JSON
    text: typing.Any = ANY  # the whole body, when it is not
    answer_headers: dict = dataclasses.field(default_factory=dict)
    value: typing.Any = ANY  # codeReturn; the task must succeed
    log: typing.Any = ANY
    fails: typing.Any = None  # its message; the task must fail
    error: dict = None  # members of data.error; ours
    either: bool = False  # it may fail or return `value`: what counts is that it does not return anything else
    # where it runs
    ours: bool = False
    server: str = "default"  # which configuration (conftest): "small" is left out elsewhere, "strict" is the original's
    slow: bool = False  # elsewhere it takes as long as SANDBOX_MAX_TIMEOUT
    network: bool = False  # needs the Internet

    def __str__(self):
        return f"{self.reference} {self.name}"

    def request(self):
        """(method, path, headers, body)"""
        if not self.language:
            return self.method, self.path, self.headers, self.body() if callable(self.body) else self.body
        body = {"code": self.code() if callable(self.code) else self.code, **self.members}
        if self.variables is not None:
            body["variables"] = self.variables() if callable(self.variables) else self.variables
        return "POST", f"/sandbox/{self.language}", {"Content-Type": "application/json"}, json.dumps(body).encode()


class Target:
    """Where rows are held against: one connection, opened again when the server closed it."""

    def __init__(self, url, token="", ours=False, timeout=120):
        parsed = urllib.parse.urlsplit(url)
        kind = http.client.HTTPSConnection if parsed.scheme == "https" else http.client.HTTPConnection
        self.prefix, self.token, self.ours = parsed.path.rstrip("/"), token, ours
        self.connection = kind(parsed.hostname, parsed.port, timeout=timeout)

    def close(self):
        self.connection.close()

    def send(self, method, path, headers, body, authorized=True):
        """(status, headers with small letters, bytes). A server may refuse a large body before it has read it."""
        headers = dict(headers)
        if authorized and self.token:
            headers.setdefault("Authorization", f"Bearer {self.token}")
        for last in (False, True):
            try:
                self.connection.request(method, self.prefix + path, body, headers, encode_chunked="Transfer-Encoding" in headers)
            except (BrokenPipeError, ConnectionResetError):
                pass  # it has answered already, or has closed an idle connection
            try:
                answer = self.connection.getresponse()
                return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
            except (http.client.HTTPException, ConnectionError, OSError):
                self.connection.close()
                if last:
                    raise

    def judge(self, row):
        """What is not as the row says, as a text; None when all is."""
        for code in row.before:
            self.send("POST", f"/sandbox/{row.language}", {"Content-Type": "application/json"}, json.dumps({"code": code}).encode())
        method, path, headers, body = row.request()
        status, got, text = self.send(method, path, headers, body, row.authorized)
        return next((fault for fault in self.faults(row, status, got, text) if fault), None)

    def faults(self, row, status, headers, text):
        yield difference(row.status, status, "status") and f"status is {status}, not {row.status}: {brief(text)}"
        for name, value in row.answer_headers.items():
            yield difference(value, headers.get(name), name)
        if row.text is not ANY:
            yield difference(row.text, text.decode(errors="replace"), "body")
        if row.text is not ANY or (row.answer is ANY and not row.language):
            return
        yield difference(re.compile("^application/json"), headers.get("content-type"), "content-type")
        try:
            answer = json.loads(text)
        except ValueError as error:
            yield f"no JSON ({error}): {brief(text)}"
            return
        yield difference(row.answer, answer, "body")
        if not row.language or row.status != 200:
            return
        yield difference(Has({"success": bool}), answer, "body")
        if row.fails is not None and (not row.either or not answer["success"]):
            yield difference(Has({"success": False, "message": row.fails}), answer, "body")
            if self.ours:
                yield difference(Has({"data": Has({"codeReturn": None, "log": row.log if row.log is not ANY else str,
                                                   "error": Has({"code": "error", **(row.error or {})})})}), answer, "body")
        else:
            yield difference({"success": True, "data": {"codeReturn": row.value, "log": row.log if row.log is not ANY else str}}, answer, "body")


def wanted(row, ours, slow=True, network=False):
    """Whether a row says something about a server that is (not) ours."""
    if row.network and not network:
        return False
    return ours or not (row.ours or row.server == "small" or (row.slow and not slow))
