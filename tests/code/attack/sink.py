# SPDX-License-Identifier: Apache-2.0
"""What the requests of attackers must not, or may, reach: a server that notes every connection and the raw bytes of each
request, and answers by path: /redirect?URL, /slow, /drip, /big, /bomb; anything else 200 with what it was sent."""
import gzip
import ipaddress
import json
import socket
import subprocess
import threading
import time


class Sink:
    def __init__(self, address="127.0.0.1"):
        self.family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.listener = socket.create_server((address, 0), family=self.family, backlog=64)
        self.port = self.listener.getsockname()[1]
        self.url = f"http://[{address}]:{self.port}" if ":" in address else f"http://{address}:{self.port}"
        self.connections, self.requests, self.open, self.lock = 0, [], 0, threading.Lock()
        self.ended = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self.ended.set()
        self.listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            with self.lock:
                self.connections += 1
                self.open += 1
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        try:
            client.settimeout(30)
            data = b""
            while b"\r\n\r\n" not in data:
                more = client.recv(65536)
                if not more:
                    return
                data += more
            client.settimeout(0.05)
            try:
                while len(data) < 1 << 20 and (more := client.recv(65536)):
                    data += more
            except TimeoutError:
                pass
            client.settimeout(30)
            self.requests.append(data)
            self._answer(client, data.split(b" ")[1].decode("latin-1"), data)
        except OSError:
            pass
        finally:
            client.close()
            with self.lock:
                self.open -= 1

    def _answer(self, client, path, data):
        def send(body, status="200 OK", *headers):
            head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
            client.sendall("\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body)
        name, _, argument = path.partition("?")
        if name == "/redirect":
            send(b"moved", "302 Found", "Location: " + argument)
        elif name == "/again":
            send(b"moved", "302 Found", "Location: " + path)
        elif name == "/slow":
            while not self.ended.wait(0.05):  # until the other side has gone
                client.settimeout(0.001)
                try:
                    if not client.recv(1):
                        return
                except TimeoutError:
                    pass
        elif name == "/drip":
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not self.ended.wait(0.05):
                client.sendall(b"x")
        elif name == "/big":
            client.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
            for _ in range(200):
                client.sendall(b"x" * (1 << 20))
        elif name == "/bomb":
            send(gzip.compress(b"0" * (200 << 20), 1), "200 OK", "Content-Encoding: gzip")
        elif name == "/broken":
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\nContent-Length: 20\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
        elif name == "/headers":
            client.sendall(b"HTTP/1.1 200 OK\r\n" + b"X-Many: y\r\n" * 200000 + b"\r\n")
        else:
            send(json.dumps(data.decode("latin-1")).encode())


def private_address():
    """An address of this machine that CHECK_INTERNAL_IP=false opens; None when it has none."""
    allowed = [ipaddress.ip_network(net) for net in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")]
    told = subprocess.run(["ip", "-j", "addr"], capture_output=True, text=True)
    for interface in json.loads(told.stdout) if told.returncode == 0 else []:
        for entry in interface.get("addr_info", []):
            address = ipaddress.ip_address(entry["local"])
            if any(address.version == net.version and address in net for net in allowed):
                return str(address)
    return None


def eventually_closed(sink, seconds=15):
    deadline = time.monotonic() + seconds
    while sink.open and time.monotonic() < deadline:
        time.sleep(0.01)
    return sink.open == 0
