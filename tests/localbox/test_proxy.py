# SPDX-License-Identifier: Apache-2.0
"""The proxy to any port of a sandbox: plain requests, streams in both directions, HEAD, Range, Upgrade, errors."""
import base64
import hashlib
import http.client
import json
import os
import socket
import threading
import time

import pytest

from conftest import KEY, resident_kb, resident_limit_kb

# Runs inside the sandbox. Answers /echo with what it got, /slow as a stream, /count with the size of the body, /ws as an
# echoing WebSocket, anything else as a file server with ranges would.
SERVER = r'''
import hashlib, base64, json, socket, sys, threading, time
threading.stack_size(512 << 10)  # where memory is held by rlimits, a thread's stack counts whole
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class H(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *a): pass
    def body(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            out = 0
            while True:
                n = int(self.rfile.readline(), 16)
                data = self.rfile.read(n); self.rfile.readline(); out += n
                if n == 0: return out
        n = int(self.headers.get("Content-Length") or 0)
        left = n
        while left: left -= len(self.rfile.read(min(left, 65536)))
        return n
    def reply(self, status, data, **headers):
        self.send_response(status)
        for k, v in headers.items(): self.send_header(k.replace("_", "-"), v)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD": self.wfile.write(data)
    def handle_any(self):
        if self.path.startswith("/ws"):
            key = self.headers["Sec-WebSocket-Key"]
            accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
            self.wfile.write(("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n" % accept).encode())
            self.wfile.flush()
            while True:
                data = self.connection.recv(65536)
                if not data: break
                self.connection.sendall(data)
            self.close_connection = True
        elif self.path.startswith("/slow"):
            self.send_response(200); self.send_header("Transfer-Encoding", "chunked"); self.end_headers()
            for i in range(5):
                self.wfile.write(b"5\r\npart%d\r\n" % i); self.wfile.flush(); time.sleep(0.2)
            self.wfile.write(b"0\r\n\r\n")
        elif self.path.startswith("/headers"):
            self.reply(200, b"", **{"X-%d" % i: "v" for i in range(200)})
        elif self.path.startswith("/cut"):
            self.send_response(200); self.send_header("Content-Length", "100"); self.end_headers()
            self.wfile.write(b"short"); self.wfile.flush(); self.close_connection = True
        elif self.path.startswith("/eof"):
            self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\nuntil the end"); self.close_connection = True
        elif self.path.startswith("/count"):
            self.reply(200, str(self.body()).encode())
        elif self.path.startswith("/range"):
            self.reply(206, b"234", Content_Range="bytes 2-4/10", X_Got=self.headers.get("Range", "none"))
        elif self.path.startswith("/early"):
            self.reply(413, b"too much", Connection="close"); self.close_connection = True
        else:
            self.reply(200, json.dumps({"method": self.command, "path": self.path, "headers": dict(self.headers)}).encode(), Set_Cookie="a=b")
    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = handle_any
ThreadingHTTPServer.request_queue_size = 512
s = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), H)
open("/workspace/ready", "w").close()
s.serve_forever()
'''


@pytest.fixture(scope="module")
def served(daemon):
    made = daemon.create()
    assert made.upload("/workspace/server.py", SERVER.encode()).status == 200
    made.events("exec python3 /workspace/server.py 3000", background=True)
    deadline = time.monotonic() + 10
    while made.execd("GET", "/files/info?path=/workspace/ready").status != 200:
        assert time.monotonic() < deadline
    yield made
    made.delete()


def test_what_arrives_inside(served):
    answer = served.daemon.request("PATCH", served.path(3000, "/a%2Fb/../c?q=%20x"), b"{}", headers={
        "X-Mine": "1", "Cookie": "secret=1", "Authorization": "Bearer secret", "X-EXECD-ACCESS-TOKEN": "t"})
    assert answer.json["method"] == "PATCH"
    assert answer.json["path"] == "/a%2Fb/../c?q=%20x"
    headers = {name.lower(): value for name, value in answer.json["headers"].items()}
    assert headers["x-mine"] == "1" and headers["host"] == "127.0.0.1:3000"
    assert headers["x-forwarded-host"] == f"127.0.0.1:{served.daemon.port}" and headers["x-forwarded-for"] == "127.0.0.1"
    assert not set(headers) & {"cookie", "authorization", "open-sandbox-api-key", "x-execd-access-token"}
    assert answer.headers["Set-Cookie"] == "a=b"


def test_root_path_without_slash(served):
    assert served.daemon.request("GET", f"/sandboxes/{served.id}/proxy/3000").json["path"] == "/"
    assert served.daemon.request("GET", f"/v1/sandboxes/{served.id}/proxy/3000?x=1").json["path"] == "/?x=1"


def test_head_and_range(served):
    head = served.daemon.request("HEAD", served.path(3000, "/x"))
    assert head.status == 200 and int(head.headers["Content-Length"]) > 50 and head.body == b""
    ranged = served.daemon.request("GET", served.path(3000, "/range"), headers={"Range": "bytes=2-4"})
    assert (ranged.status, ranged.body, ranged.headers["X-Got"], ranged.headers["Content-Range"]) == (206, b"234", "bytes=2-4", "bytes 2-4/10")


def test_answers_are_not_buffered(served):
    connection = http.client.HTTPConnection("127.0.0.1", served.daemon.port, timeout=10)
    begun = time.monotonic()
    connection.request("GET", served.path(3000, "/slow"), headers={"OPEN-SANDBOX-API-KEY": KEY})
    answer = connection.getresponse()
    assert answer.read(5) == b"part0"
    assert time.monotonic() - begun < 0.5
    assert answer.read() == b"part1part2part3part4"


def test_large_upload_with_constant_memory(served):
    size = 100_000_000
    connection = http.client.HTTPConnection("127.0.0.1", served.daemon.port, timeout=60)

    def pieces():
        for _ in range(size // 1_000_000):
            yield b"x" * 1_000_000

    connection.request("POST", served.path(3000, "/count"), pieces(), {"OPEN-SANDBOX-API-KEY": KEY}, encode_chunked=True)
    assert int(connection.getresponse().read()) == size
    assert resident_kb(served.daemon.process.pid) < resident_limit_kb()


def test_cut_answers_stay_cut(served):
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        served.daemon.request("GET", served.path(3000, "/cut"))
    assert served.daemon.request("GET", served.path(3000, "/eof")).body == b"until the end"


def test_early_answer_to_a_large_body(served):
    answer = served.daemon.request("POST", served.path(3000, "/early"), b"x" * 3_000_000)
    assert (answer.status, answer.body) == (413, b"too much")


def test_websocket(served):
    raw = socket.create_connection(("127.0.0.1", served.daemon.port), timeout=10)
    key = base64.b64encode(os.urandom(16)).decode()
    raw.sendall(f"GET {served.path(3000, '/ws')} HTTP/1.1\r\nHost: x\r\nOPEN-SANDBOX-API-KEY: {KEY}\r\nUpgrade: websocket\r\n"
                f"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode() + b"early")
    data = b""
    while b"\r\n\r\nearly" not in data:
        piece = raw.recv(4096)
        assert piece, data
        data += piece
    head = data.split(b"\r\n\r\n")[0].decode()
    accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
    assert head.startswith("HTTP/1.1 101") and f"Sec-WebSocket-Accept: {accept}" in head
    sent = os.urandom(5_000_000)
    got = bytearray()
    sender = threading.Thread(target=raw.sendall, args=(sent,))
    sender.start()
    while len(got) < len(sent):
        got += raw.recv(65536)
    sender.join()
    assert bytes(got) == sent
    raw.shutdown(socket.SHUT_WR)
    assert raw.recv(1) == b""


def test_nobody_listens(served):
    answer = served.daemon.request("GET", served.path(3999, "/"))
    assert answer.status == 502 and answer.code == "GENERAL::UNKNOWN_ERROR" and "3999" in answer.json["message"]


def test_ipv6_only_server(served):
    code = "import socket;s=socket.socket(socket.AF_INET6);s.setsockopt(41,26,1);s.bind(('::1',3002));s.listen();open('/workspace/six','w');c,_=s.accept();c.recv(4096);c.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: 3\\r\\n\\r\\nsix');c.close()"
    served.events(f'exec python3 -c "{code}"', background=True)
    while served.execd("GET", "/files/info?path=/workspace/six").status != 200:
        pass
    assert served.daemon.request("GET", served.path(3002, "/")).body == b"six"


def test_garbage_from_inside(served):
    code = "import socket;s=socket.socket();s.bind(('127.0.0.1',3003));s.listen();open('/workspace/garbage','w');c,_=s.accept();c.recv(4096);c.sendall(b'nonsense\\r\\n\\r\\n');c.close()"
    served.events(f'exec python3 -c "{code}"', background=True)
    while served.execd("GET", "/files/info?path=/workspace/garbage").status != 200:
        pass
    assert served.daemon.request("GET", served.path(3003, "/")).status == 502


def test_egress_endpoint(served):
    policy = served.daemon.request("GET", served.path(18080, "/policy"))
    assert policy.status == 200 and policy.json["policy"]["defaultAction"] == "deny"
    assert served.daemon.request("PATCH", served.path(18080, "/policy"), []).status == 501


def test_many_headers_arrive(served):
    with socket.create_connection(("127.0.0.1", served.daemon.port), timeout=10) as raw:
        raw.sendall(f"GET {served.path(3000, '/headers')} HTTP/1.1\r\nHost: a\r\nOPEN-SANDBOX-API-KEY: {KEY}\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: raw.recv(65536), b"")).decode()
    assert answer.startswith("HTTP/1.1 200 ") and {f"X-{i}: v" for i in range(200)} <= set(answer.split("\r\n"))


def test_two_hundred_streams_at_once(served):
    connections = []
    for _ in range(200):
        connection = http.client.HTTPConnection("127.0.0.1", served.daemon.port, timeout=30)
        connection.request("GET", served.path(3000, "/slow"), headers={"OPEN-SANDBOX-API-KEY": KEY})
        connections.append(connection)
    answers = [connection.getresponse() for connection in connections]
    assert {(answer.status, answer.read()) for answer in answers} == {(200, b"part0part1part2part3part4")}


def test_sandboxes_do_not_reach_each_other(served):
    other = served.daemon.create()
    assert served.daemon.request("GET", other.path(3000, "/")).status == 502
    assert other.run("timeout 2 bash -c '</dev/tcp/127.0.0.1/3000'")[0] != 0
    other.delete()
    assert json.loads(served.daemon.request("GET", served.path(3000, "/")).body)["path"] == "/"
