# SPDX-License-Identifier: Apache-2.0
"""Rows of attacks and what an attacker may get. A row's code tells what it got in its result; `gets` judges it. The check
that nobody else was harmed is the same for every row: see test_attacks.py."""
import dataclasses
import pathlib
import re

import pytest

JS_PRELUDE = """const attempt = (f) => {
    try { const value = f(); return 'got ' + typeof value + ' ' + String(value).slice(0, 200) } catch (error) { return String(error?.name) } };
"""
PYTHON_PRELUDE = """def attempt(f, *arguments, **named):
    try:
        return "got " + repr(f(*arguments, **named))[:200]
    except BaseException as error:
        return type(error).__name__
"""
# A module that upstream lets through and that has `os` in it: the way past the list of modules.
OS_PRELUDE = PYTHON_PRELUDE + """import platform
os = platform.os
sys = platform.sys
def name_of(f, *arguments):
    try:
        return "got " + repr(f(*arguments))[:200]
    except OSError as error:
        if error.errno is None:
            return type(error).__name__
        return {1: "EPERM", 2: "ENOENT", 9: "EBADF", 11: "EAGAIN", 12: "ENOMEM", 13: "EACCES", 22: "EINVAL", 24: "EMFILE", 25: "ENOTTY",
                27: "EFBIG", 28: "ENOSPC", 30: "EROFS", 32: "EPIPE", 40: "ELOOP"}.get(error.errno, str(error.errno) + str(error))
    except BaseException as error:
        return type(error).__name__
"""
RAW_PRELUDE = (pathlib.Path(__file__).parent / "raw_calls.py").read_text()


@dataclasses.dataclass
class Outcome:
    """What a client saw."""
    status: int
    body: dict

    @property
    def ok(self):
        return self.body["success"]

    @property
    def value(self):
        return self.body["data"]["codeReturn"]

    @property
    def error(self):
        return (self.body.get("data") or {}).get("error") or {}

    @property
    def message(self):
        return self.body.get("message", "")


@dataclasses.dataclass
class Row:
    name: str
    language: str
    code: str
    gets: object
    variables: dict = None
    timeout_ms: int = 5000
    at_most_s: float = 8  # from the request to its answer; the machine may be busy

    def __str__(self):
        return f"{self.language}: {self.name}"


def need_full(server):
    """Skips where the machine cannot have all walls: what is weaker then is measured by test_levels.py."""
    level = server.health()[1]["isolation"]
    if level != "full":
        pytest.skip(f"this machine has level {level}")


# ---- what an attacker may get ----
def value(expected):
    def judge(outcome):
        assert outcome.ok, outcome
        assert outcome.value == expected, outcome.value
    return judge


def texts(pattern):
    """A success whose value is a text, or a list or object of texts, that all match."""
    def judge(outcome):
        assert outcome.ok, outcome
        got = outcome.value
        items = got.items() if isinstance(got, dict) else enumerate(got if isinstance(got, list) else [got])
        wrong = {name: item for name, item in items if not re.fullmatch(pattern, str(item))}
        assert not wrong and got not in ([], {}), f"{wrong or got} is not {pattern}"
    return judge


# A name of an error and never "got …".
refused = texts(r"(Permission|Import|ModuleNotFound|Attribute|Name|Type|Value|Key|OS|Runtime|FileNotFound|NotImplemented|BlockingIO|Reference|Syntax|Range|UnsupportedOperation)?"
                r"(Error)?|E[A-Z]+|PermissionError|undefined|null")


def fails(code="error", message="", kind=None):
    """A failure with this code (a pattern), a part of its message (a pattern), and perhaps its type."""
    def judge(outcome):
        assert not outcome.ok, outcome
        assert re.fullmatch(code, outcome.error.get("code", "")), outcome
        assert re.search(message, outcome.message), outcome
        assert kind is None or re.fullmatch(kind, outcome.error.get("type", "")), outcome
    return judge


def either(*judges):
    def judge(outcome):
        reasons = []
        for one in judges:
            try:
                return one(outcome)
            except AssertionError as error:
                reasons.append(str(error))
        raise AssertionError(" and ".join(reasons))
    return judge


def anything(outcome):
    """Whatever it is: the row is about the others."""
    assert outcome.status == 200, outcome
