# SPDX-License-Identifier: Apache-2.0
"""Raw sockets against the streaming HTTP server: framing that two readers could read differently is refused."""
import re
import socket
import time

import pytest

from conftest import KEY


class Raw:
    def __init__(self, daemon, timeout=10):
        self.socket = socket.create_connection(("127.0.0.1", daemon.port), timeout=timeout)
        self.buffer = b""

    def send(self, data):
        self.socket.sendall(data)
        return self

    def answer(self, head=False):
        """(status, headers, body) of one answer; None at end of file."""
        while b"\r\n\r\n" not in self.buffer:
            data = self.socket.recv(65536)
            if not data:
                return None
            self.buffer += data
        text, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        lines = text.decode().split("\r\n")
        status = int(lines[0].split()[1])
        headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines[1:])}
        length = 0 if head or status in (204, 304) or status < 200 else int(headers["content-length"])
        while len(self.buffer) < length:
            data = self.socket.recv(65536)
            assert data
            self.buffer += data
        body, self.buffer = self.buffer[:length], self.buffer[length:]
        return status, headers, body

    def closed(self):
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True


@pytest.fixture
def raw(daemon):
    made = Raw(daemon)
    yield made
    made.socket.close()


GET = b"GET /health HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /v1/metrics/events HTTP/1.1\r\nHost: x\r\nOPEN-SANDBOX-API-KEY: " + KEY.encode() + b"\r\n"

REFUSED = {
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", 400),
    "two hosts": (GET + b"Host: y\r\n\r\n", 400),
    "bad host": (b"GET /health HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
    "folded header": (GET + b"X: a\r\n b\r\n\r\n", 400),
    "folded first header": (b"GET /health HTTP/1.1\r\n X: a\r\nHost: x\r\n\r\n", 400),
    "bare line feed": (b"GET /health HTTP/1.1\nHost: x\n\n", 400),
    "bare carriage return": (GET + b"X: a\rb\r\n\r\n", 400),
    "nul in header": (GET + b"X: a\0b\r\n\r\n", 400),
    "control in header": (GET + b"X: a\x01b\r\n\r\n", 400),
    "space before colon": (GET + b"X : a\r\n\r\n", 400),
    "no colon": (GET + b"nonsense\r\n\r\n", 400),
    "empty name": (GET + b": a\r\n\r\n", 400),
    "length and chunked": (POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "chunked and length": (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400),
    "two lengths": (POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nabc", 400),
    "two equal lengths": (POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400),
    "length list": (POST + b"Content-Length: 2, 2\r\n\r\n{}", 400),
    "negative length": (POST + b"Content-Length: -1\r\n\r\n", 400),
    "plus length": (POST + b"Content-Length: +1\r\n\r\nx", 400),
    "hex length": (POST + b"Content-Length: 0x1\r\n\r\nx", 400),
    "huge length": (POST + b"Content-Length: 99999999999999999999999\r\n\r\n", 400),
    "gzip, chunked": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    "identity": (POST + b"Transfer-Encoding: identity\r\n\r\n", 400),
    "chunked twice": (POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "chunked in 1.0": (POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "version": (b"GET /health HTTP/2.0\r\nHost: x\r\n\r\n", 505),
    "not HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    "connect": (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", 501),
    "relative target": (b"GET health HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "huge head": (GET + b"X: " + b"a" * 40000 + b"\r\n\r\n", 431),
    "too many headers": (GET + b"".join(b"X%d: a\r\n" % i for i in range(200)) + b"\r\n", 431),
    "bad chunk size": (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    "unknown expectation": (POST + b"Content-Length: 2\r\nExpect: magic\r\n\r\n", 417),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(raw, name):
    data, status = REFUSED[name]
    got, headers, body = raw.send(data).answer()
    assert got == status
    assert headers["connection"] == "close"
    assert body.startswith(b"{") and len(body) > 10
    assert raw.closed()


def test_pipelined_requests_are_answered_in_order(raw):
    raw.send(GET + b"\r\n" + POST + b"Content-Length: 2\r\n\r\n{}" + GET.replace(b"health", b"version") + b"\r\n")
    assert b"healthy" in raw.answer()[2]
    assert raw.answer()[0] == 204
    assert b"version" in raw.answer()[2]


def test_head_has_no_body(raw):
    status, headers, _ = raw.send(b"HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n").answer(head=True)
    assert status == 200 and int(headers["content-length"]) > 0
    assert raw.send(GET + b"\r\n").answer()[2].startswith(b"{")  # the connection is in step


def test_expect_continue(raw):
    raw.send(POST + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n")
    assert raw.answer()[0] == 100
    assert raw.send(b"{}").answer()[0] == 204


def test_http_1_0_closes(raw):
    status, headers, _ = raw.send(b"GET /health HTTP/1.0\r\n\r\n").answer()
    assert status == 200 and headers["connection"] == "close"
    assert raw.closed()


def test_byte_by_byte(raw):
    for byte in GET + b"\r\n":
        raw.send(bytes([byte]))
    assert raw.answer()[0] == 200
    for byte in POST + b"Transfer-Encoding: chunked\r\n\r\n1;x=y\r\n{\r\n1\r\n}\r\n0\r\nTrailer: z\r\n\r\n":
        raw.send(bytes([byte]))
    assert raw.answer()[0] == 204


def test_slow_head_is_answered_408(daemon):
    slow = Raw(daemon, timeout=20)
    slow.send(b"GET /health HTT")
    begun = time.monotonic()
    assert slow.answer()[0] == 408
    assert 8 < time.monotonic() - begun < 13
    assert slow.closed()


def test_slow_body_is_answered_408(daemon):
    slow = Raw(daemon, timeout=20)
    slow.send(POST + b"Content-Length: 1000\r\n\r\n")
    begun = time.monotonic()
    try:
        for _ in range(60):  # a byte now and then does not buy time
            slow.send(b"x")
            slow.socket.settimeout(0.25)
            try:
                slow.buffer += slow.socket.recv(1, socket.MSG_PEEK) and b""
                break
            except TimeoutError:
                pass
    except OSError:
        pass
    slow.socket.settimeout(10)
    assert slow.answer()[0] == 408
    assert 8 < time.monotonic() - begun < 14


def test_large_body_is_refused_early(raw):
    status, _, body = raw.send(POST + b"Content-Length: 100000000\r\n\r\n").answer()
    assert status == 413 and b"BODY_TOO_LARGE" in body


def test_large_chunked_body_is_refused(raw):
    raw.send(POST + b"Transfer-Encoding: chunked\r\n\r\n")
    try:
        for _ in range(40):
            raw.send(b"10000\r\n" + b"a" * 65536 + b"\r\n")
    except OSError:
        pass
    assert raw.answer()[0] == 413


def test_absolute_form(raw):
    assert raw.send(b"GET http://x/health HTTP/1.1\r\nHost: x\r\n\r\n").answer()[0] == 200


def test_response_splitting(raw):
    status, headers, _ = raw.send(GET + b"X-Request-ID: a%0d%0aSet-Cookie: b\r\n\r\n").answer()
    assert status == 200 and "set-cookie" not in headers
    assert re.fullmatch("[0-9a-f]{32}", headers["x-request-id"])
    raw.send(GET + b"X-Request-ID: mine-1\r\n\r\n")
    assert raw.answer()[1]["x-request-id"] == "mine-1"
