# SPDX-License-Identifier: Apache-2.0
"""Readiness by speaking each server's own protocol. A probe returns None when the server is ready, else a short reason."""
import http.client
import socket
import struct
import urllib.parse

TIMEOUT = 2.0


def http_ok(url, headers=None):
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=TIMEOUT)
    try:
        connection.request("GET", parts.path + (f"?{parts.query}" if parts.query else ""), headers=headers or {})
        answer = connection.getresponse()
        body = answer.read(4096)
        if answer.status == 200:
            return None
        return f"HTTP {answer.status} {body.decode('utf-8', 'replace').strip()[:300]}"
    except (OSError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    finally:
        connection.close()


def tcp(host, port):
    try:
        socket.create_connection((host, port), timeout=TIMEOUT).close()
        return None
    except OSError as error:
        return str(error)


def nats(host, port):
    """The first line of a NATS server is INFO."""
    try:
        with socket.create_connection((host, port), timeout=TIMEOUT) as link:
            greeting = link.recv(64)
    except OSError as error:
        return str(error)
    return None if greeting.startswith(b"INFO ") else "no INFO line"


def redis(host, port):
    try:
        with socket.create_connection((host, port), timeout=TIMEOUT) as link:
            link.sendall(b"*1\r\n$4\r\nPING\r\n")
            answer = link.recv(256)
    except OSError as error:
        return str(error)
    if answer.startswith((b"+PONG", b"-NOAUTH")):
        return None
    return answer.decode("utf-8", "replace").strip() or "connection closed"


def mongo(host, port):
    """One `hello` in OP_MSG, written out by hand."""
    elements = b"\x10hello\0" + struct.pack("<i", 1) + b"\x02$db\0" + struct.pack("<i", 6) + b"admin\0"
    document = struct.pack("<i", len(elements) + 5) + elements + b"\0"
    body = struct.pack("<I", 0) + b"\0" + document
    message = struct.pack("<iiii", 16 + len(body), 1, 0, 2013) + body
    try:
        with socket.create_connection((host, port), timeout=TIMEOUT) as link:
            link.sendall(message)
            answer = b""
            while len(answer) < 4 or len(answer) < struct.unpack_from("<i", answer)[0]:
                part = link.recv(65536)
                if not part:
                    return "connection closed"
                answer += part
    except OSError as error:
        return str(error)
    return None if b"\x01ok\0" + struct.pack("<d", 1.0) in answer else "hello was refused"


def url_address(url, default_port):
    """Host and port of the first server named in a URL (nats://a:1,b:2 · mongodb://u:p@h:1/db · redis://h)."""
    rest = url.split("://", 1)[-1].split("/", 1)[0].split(",", 1)[0].rsplit("@", 1)[-1]
    host, _, port = rest.rpartition(":") if ":" in rest else (rest, "", "")
    return host or "127.0.0.1", int(port) if port.isdigit() else default_port
