# SPDX-License-Identifier: Apache-2.0
"""What the user's code is given besides the language (reference A6): helper functions, open(), builtins, streams.
Runs once in the template; `native` is the module in C. Everything used later is bound here, so that a task that replaces
something in a module hurts itself in plain ways only."""
import base64 as _base64
import builtins as _builtins
import hmac as _hmac
import inspect as _inspect
import io as _io
import json
import math
import os.path as _path
import sys as _sys
import time
import types as _types
import urllib.parse as _parse
import warnings as _warnings

_DELAY_MAX_MS = 10000
_dumps, _fspath, _sleep, _now = json.dumps, _path.os.fspath, time.sleep, time.time
_next_id = 0


def count_token(text):
    """A rough count of tokens: a quarter of the characters, rounded up."""
    return -(-len(str(text)) // 4)


def str_to_base64(text, prefix=""):
    return prefix + _base64.b64encode(str(text).encode("utf-8", "surrogatepass")).decode("ascii")


def create_hmac(algorithm, secret):
    """{"timestamp": milliseconds as text, "sign": HMAC of timestamp and secret, base64 and percent-encoded}"""
    timestamp = str(round(_now() * 1000))
    key, message = str(secret).encode(), f"{timestamp}\n{secret}".encode()
    try:
        digest = _hmac.new(key, message, algorithm).digest()
    except (AttributeError, TypeError, ValueError):  # whatever the layers below say of it; JavaScript's words
        raise ValueError(f"Invalid digest: {algorithm}") from None
    return {"timestamp": timestamp, "sign": _parse.quote(_base64.b64encode(digest).decode("ascii"))}


def delay(ms):
    """Waits; at most ten seconds at a time."""
    if ms > _DELAY_MAX_MS:
        raise ValueError(f"Delay must be <= {_DELAY_MAX_MS}ms")
    if ms > 0:
        _sleep(ms / 1000)


def http_request(url, method="GET", headers=None, body=None, timeout=None, timeout_ms=None):
    """Asks the host for one HTTP request: {"status", "statusText", "headers", "data"}; data is always text.
    A body that is not text is sent as JSON. timeout is in seconds."""
    global _next_id
    url, headers = str(url), {str(name): str(value) for name, value in dict(headers or {}).items()}
    if body is not None:
        if isinstance(body, (bytes, bytearray)):
            body = bytes(body).decode("utf-8")
        elif not isinstance(body, str):
            body = _dumps(body, ensure_ascii=False, default=str)
        if not any(name.lower() == "content-type" for name in headers):
            headers["Content-Type"] = "application/json"
        if len(body) > native.body_max() or len(body.encode("utf-8", "replace")) > native.body_max():
            if _parse.urlsplit(url).scheme.lower() not in ("http", "https"):
                raise RuntimeError("Protocol not allowed")
            raise RuntimeError("Request body too large")
    _next_id += 1
    request = {"id": _next_id, "type": "http_request", "url": url, "method": str(method).upper(), "headers": headers}
    if body is not None:
        request["body"] = body
    if timeout_ms is not None:
        request["timeoutMs"] = int(timeout_ms)
    elif timeout is not None:
        request["timeoutMs"] = int(timeout * 1000)
    answer = native.rpc(request)
    if not answer.get("ok"):
        raise RuntimeError(answer.get("message") or "Request failed")
    return {"status": answer.get("status"), "statusText": answer.get("statusText", ""), "headers": answer.get("headers", {}),
            "data": answer.get("data", "")}


class _SystemHelper:
    """Read-only: the helpers under one name, in the spelling of both languages."""
    __slots__ = ()
    http_request = httpRequest = staticmethod(http_request)
    count_token = countToken = staticmethod(count_token)
    str_to_base64 = strToBase64 = staticmethod(str_to_base64)
    create_hmac = createHmac = staticmethod(create_hmac)
    delay = staticmethod(delay)

    def __setattr__(self, name, value):
        raise AttributeError("SystemHelper is read-only")

    def __delattr__(self, name):
        raise AttributeError("SystemHelper is read-only")


SystemHelper = system_helper = _SystemHelper()


def open(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, closefd=True, opener=None):
    """open() of the user's code: below the task's own directory, where a relative name is looked up as well."""
    root = native.tmp_dir()
    if isinstance(file, int) or opener is not None or not root:
        raise PermissionError("File system access is not allowed in sandbox")
    name = _fspath(file)
    if isinstance(name, bytes):
        name = name.decode("utf-8", "surrogateescape")
    full, real = _path.realpath(_path.join(root, name)), _path.realpath(root)
    if full != real and not full.startswith(real + "/"):
        raise PermissionError("File system access is not allowed in sandbox")
    # In the spelling that the host gave: what it resolves to has just been checked.
    return _io.open(root + full[len(real):], mode, buffering, encoding or "utf-8" if "b" not in mode else None, errors, newline)


def input(prompt=""):
    raise PermissionError("Use of input is not allowed in sandbox")


def exit(code=None):
    raise SystemExit if code is None else SystemExit(code)


class _Stream(_io.TextIOBase):
    """sys.stdout and sys.stderr of a task: whole lines go to the log."""

    def __init__(self):
        self._rest = ""

    def writable(self):
        return True

    def write(self, text):
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            native.print(line)
        return len(text)

    def finish(self):
        if self._rest:
            native.print(self._rest)
            self._rest = ""


streams = (_Stream(), _Stream())
_sys.stdout, _sys.stderr = streams
_sys.stdin = None
# Warnings name files of the interpreter, and upstream's log has none.
_warnings.showwarning = lambda *args, **kwargs: None


def finish_streams():
    for stream in streams:
        stream.finish()


class _Builtins(_types.ModuleType):
    """What `import builtins` gives: the user's own builtins, of which nothing can be replaced or removed."""

    def __setattr__(self, name, value):
        if name in user_builtins:
            raise PermissionError(f"Modification of builtins.{name} is not allowed in sandbox")
        user_builtins[name] = value
        super().__setattr__(name, value)

    def __delattr__(self, name):
        raise PermissionError(f"Modification of builtins.{name} is not allowed in sandbox")


user_builtins = dict(vars(_builtins))
user_builtins.update(__import__=native.__import__, print=native.print, open=open, input=input, exit=exit, quit=exit)
builtins_proxy = _Builtins("builtins")
vars(builtins_proxy).update(user_builtins)

given = {"SystemHelper": SystemHelper, "system_helper": system_helper, "count_token": count_token, "str_to_base64": str_to_base64,
         "create_hmac": create_hmac, "delay": delay, "http_request": http_request, "print": native.print, "json": json,
         "math": math, "time": time}
reserved = frozenset(given) | {"variables", "task_tmpdir"}


def bind(main, variables):
    """(args, kwargs) for a `main` that is not a plain function: a class, a partial, a decorated function (A6)."""
    try:
        parameters = list(_inspect.signature(main).parameters.values())
    except (TypeError, ValueError):
        return (variables,), {}
    if not parameters:
        return (), {}
    if len(parameters) == 1:
        parameter = parameters[0]
        if parameter.kind is parameter.VAR_KEYWORD:
            return (), dict(variables)
        value = variables.get(parameter.name, variables)
        return ((), {parameter.name: value}) if parameter.kind is parameter.KEYWORD_ONLY else ((value,), {})
    args, kwargs = [], {}
    for parameter in parameters:
        name = parameter.name
        if parameter.kind is parameter.VAR_POSITIONAL:
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            taken = {other.name for other in parameters if other.kind is not other.POSITIONAL_ONLY}
            kwargs.update((key, value) for key, value in variables.items() if key not in taken)
        elif name in variables and parameter.kind is parameter.POSITIONAL_ONLY:
            args.append(variables[name])
        elif name in variables:
            kwargs[name] = variables[name]
        elif parameter.default is parameter.empty:
            raise TypeError(f"Missing required argument: {name!r}")
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            args.append(parameter.default)
    return tuple(args), kwargs
