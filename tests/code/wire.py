# SPDX-License-Identifier: Apache-2.0
"""HTTP spoken by hand, for what no client library would send, and many connections at once."""
import contextlib
import json
import resource
import selectors
import socket
import struct
import threading

# For servers whose Python need not have numpy, pandas and matplotlib: they start in half the time.
LIGHT = {"SANDBOX_PYTHON_ALLOWED_MODULES": "math,json,time"}
OK_JS = "async function main() { return { ok: true } }"
FOREVER = {"js": "async function main() { for (;;) await delay(10000) }", "python": "import time\ndef main():\n    while True:\n        time.sleep(10)"}
RUNS = {"success": True, "data": {"codeReturn": {"ok": True}, "log": ""}}


BEGUN = []


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"{self.status} {self.headers} {self.body[:300]!r}"


class Wire:
    """One connection."""

    def __init__(self, server, timeout=20):
        self.server = server
        self.socket = server.connect(timeout)
        self.file = self.socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.file.close()
        self.socket.close()

    def send(self, *pieces):
        self.socket.sendall(b"".join(piece if isinstance(piece, bytes) else piece.encode() for piece in pieces))

    def head(self, *headers, method="POST", path="/sandbox/js", token=True, version="HTTP/1.1", host=True):
        lines = [f"{method} {path} {version}"] + (["Host: x"] if host else []) + list(headers)
        if token:
            lines.append(f"Authorization: Bearer {self.server.token}")
        return "\r\n".join(lines) + "\r\n\r\n"

    def post(self, body, *headers, **rest):
        """A request with Content-Length, as bytes."""
        return self.head(f"Content-Length: {len(body)}", *headers, **rest).encode() + body

    def half_close(self):
        self.socket.shutdown(socket.SHUT_WR)

    def reset(self):
        """RST instead of FIN."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def answer(self, method="POST"):
        """The next response; None when the connection ended before its first byte."""
        while True:
            line = self.file.readline()
            if not line:
                return None
            status = int(line.split()[1])
            headers = {}
            while (line := self.file.readline().strip()):
                name, value = line.decode().split(":", 1)
                headers[name.strip().lower()] = value.strip()
            if status >= 200:
                break
            self.interim = status
        if method == "HEAD" or status == 204:
            body = b""
        elif headers.get("transfer-encoding") == "chunked":
            body = b""
            while (size := int(self.file.readline().split(b";")[0], 16)):
                body += self.file.read(size)
                self.file.readline()
            self.file.readline()
        else:
            body = self.file.read(int(headers["content-length"]))
        return Answer(status, headers, body)

    def ended(self):
        """True when the other side closed and nothing more came."""
        with contextlib.suppress(ConnectionResetError):
            return self.file.read(1) == b""
        return True


def task(code, **members):
    return json.dumps({"code": code, **members}).encode()


def chunked(*pieces):
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces if piece) + b"0\r\n\r\n"


def more_descriptors(count):
    """Lets this process have so many descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, max(hard, count)))


def begin(server, language, count=1, code=None, **members):
    """Connections on which a task was asked for that never ends."""
    wires = []
    for _ in range(count):
        wire = Wire(server)
        wire.send(wire.post(task(code or FOREVER[language], **members), path=f"/sandbox/{language}"))
        wires.append(wire)
    BEGUN.extend(wires)
    return wires


def close_begun():
    """What begin() left, also when a test failed in the middle: its tasks would hold the places of the next test's."""
    while BEGUN:
        BEGUN.pop().close()


def all_at_once(server, requests, timeout=60):
    """Opens one connection for each request, then sends them all, then reads one answer from each: [(status, body)], in the
    order of the requests; status None = the connection ended without an answer. One thread."""
    more_descriptors(len(requests) + 200)
    sockets = [server.connect(timeout) for _ in requests]
    picked = selectors.DefaultSelector()
    got = [b""] * len(sockets)
    out = list(requests)
    answers = [(None, b"")] * len(sockets)
    for number, connection in enumerate(sockets):
        connection.setblocking(False)
        picked.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE, number)
    left = len(sockets)
    try:
        while left:
            events = picked.select(timeout)
            assert events, f"{left} of {len(sockets)} requests have no answer after {timeout} s"
            for key, mask in events:
                number, connection = key.data, key.fileobj
                try:
                    if mask & selectors.EVENT_WRITE:
                        out[number] = out[number][connection.send(out[number]):]
                        if not out[number]:
                            picked.modify(connection, selectors.EVENT_READ, number)
                    piece = connection.recv(65536) if mask & selectors.EVENT_READ else None
                except BlockingIOError:
                    continue
                except OSError:
                    piece = b""
                if piece:
                    got[number] += piece
                whole = complete(got[number]) if piece else None
                if whole or piece == b"":
                    answers[number] = whole or (None, got[number])
                    picked.unregister(connection)
                    left -= 1
    finally:
        picked.close()
        for connection in sockets:
            connection.close()
    return answers


def complete(data):
    """(status, body) of a response with Content-Length that is all there, else None."""
    head, found, body = data.partition(b"\r\n\r\n")
    if not found:
        return None
    length = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
    return (int(head.split()[1]), body[:length]) if len(body) >= length else None


@contextlib.contextmanager
def watching(measure):
    """The highest value of measure() while the block runs: a list with one element."""
    highest, over = [measure()], threading.Event()

    def watch():
        while not over.wait(0.005):
            highest[0] = max(highest[0], measure())
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield highest
    finally:
        over.set()
        thread.join()
