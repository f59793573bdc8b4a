# SPDX-License-Identifier: Apache-2.0
"""Requests of tasks that do reach a server (A5, A6, A11, A12; contract §5). Loopback is never asked, so that the server listens on
an address of this machine in a private network, and CHECK_INTERNAL_IP is off; without such an address the tests skip."""
import gzip
import http.server
import ipaddress
import json
import pathlib
import re
import socket
import struct
import subprocess
import threading
import time

import pytest
from code_server import CodeServer
from waiting import eventually
from wire import LIGHT, begin

MIB = 1024 * 1024
PRIVATE = [ipaddress.ip_network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")]


def private_address():
    """An address of this machine in a private network, or None."""
    found = []
    for line in pathlib.Path("/proc/net/if_inet6").read_text().splitlines():
        found.append(str(ipaddress.IPv6Address(bytes.fromhex(line.split()[0]))))
    shown = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()
    for text in shown + found:
        if any(ipaddress.ip_address(text) in network for network in PRIVATE):
            return text
    return None


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body, **headers):
        self.send_response(status, headers.pop("reason", None))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        self.server.seen.append(self.path)
        path = self.path.split("?")[0]
        if path == "/echo":
            told = {"method": self.command, "path": self.path, "body": body.decode("utf-8", "replace"), "headers": {name.lower(): value for name, value in self.headers.items()}}
            self.reply(200, json.dumps(told).encode(), Content_Type="application/json", X_Mine="yes")
        elif path == "/redirect":
            self.reply(302, b"over there", Location=self.path.split("?to=")[1])
        elif path == "/teapot":
            self.reply(418, "kein Kaffee: ü".encode(), reason="I am a teapot")
        elif path == "/bytes":
            self.reply(200, b"a\xff\xfeb\x00c")
        elif path == "/large":
            self.reply(200, b"x" * int(self.path.split("?")[1]))
        elif path == "/bomb":
            self.reply(200, gzip.compress(b"\x00" * (64 * MIB)), Content_Encoding="gzip")
        elif path == "/zipped":
            self.reply(200, gzip.compress("gepackt: ü".encode()), Content_Encoding="gzip")
        elif path == "/hang":
            self.server.hanging += 1
            try:
                self.server.released.wait(20)
                self.connection.settimeout(10)
                if self.connection.recv(1) == b"":
                    self.server.left += 1
            except OSError:
                self.server.left += 1
            finally:
                self.server.hanging -= 1
            self.close_connection = True
        elif path == "/drip":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            try:
                for _ in range(100):
                    self.wfile.write(b"x")
                    time.sleep(0.1)
            except OSError:
                pass
            self.close_connection = True
        elif path == "/cut":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"only this")
            self.close_connection = True
        else:
            self.reply(404, b"")

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = answer


class Peer(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address):
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.seen, self.hanging, self.left, self.released = [], 0, 0, threading.Event()
        super().__init__((address, 0), Handler)
        self.url = f"http://[{address}]:{self.server_port}" if ":" in address else f"http://{address}:{self.server_port}"

    def handle_error(self, *_):
        pass  # clients that leave are what is tested


@pytest.fixture(scope="module")
def peer():
    address = private_address()
    if address is None:
        pytest.skip("this machine has no address in a private network")
    server = Peer(address)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def server(peer):
    proxies = {"http_proxy": "http://127.0.0.1:9", "ALL_PROXY": "http://127.0.0.1:9"}  # no business of the broker's
    env = {**LIGHT, **proxies, "CHECK_INTERNAL_IP": "false", "SANDBOX_REQUEST_MAX_RESPONSE_MB": 2, "SANDBOX_REQUEST_TIMEOUT": 5000}
    with CodeServer(env) as running:
        yield running


def js(server, body, **variables):
    return server.value("js", "async function main(v) {\n" + body + "\n}", variables)


def py(server, body, **variables):
    return server.value("python", "def main():\n" + "\n".join("    " + line for line in body.split("\n")), variables)


# ---- what comes back ----
def test_js_shape(server, peer):
    got = js(server, "return await httpRequest(v.url + '/echo?a=1')", url=peer.url)
    assert set(got) == {"status", "statusText", "headers", "data"}
    assert (got["status"], got["statusText"], got["headers"]["x-mine"]) == (200, "OK", "yes")
    told = json.loads(got["data"])  # data is a text, whatever the type
    assert (told["method"], told["path"], told["body"]) == ("GET", "/echo?a=1", "")
    assert told["headers"]["host"] == peer.url[7:]


def test_python_shape(server, peer):
    got = py(server, "return http_request(url + '/echo?a=1')", url=peer.url)
    assert set(got) == {"status", "statusText", "headers", "data"}
    assert (got["status"], got["statusText"], got["headers"]["x-mine"]) == (200, "OK", "yes")
    assert json.loads(got["data"])["method"] == "GET"


@pytest.mark.parametrize("name", ["system_helper.http_request", "SystemHelper.httpRequest", "system_helper.httpRequest"])
def test_python_names(server, peer, name):
    assert py(server, f"return {name}(url + '/echo')['status']", url=peer.url) == 200


def test_a_status_is_no_error(server, peer):
    for got in (js(server, "return await SystemHelper.httpRequest(v.url + '/teapot')", url=peer.url), py(server, "return http_request(url + '/teapot')", url=peer.url)):
        assert (got["status"], got["statusText"], got["data"]) == (418, "I am a teapot", "kein Kaffee: ü")


def test_bytes_become_text(server, peer):
    for got in (js(server, "return await httpRequest(v.url + '/bytes')", url=peer.url), py(server, "return http_request(url + '/bytes')", url=peer.url)):
        assert got["data"] == "a\ufffd\ufffdb\x00c"


def test_packed_answers_are_unpacked(server, peer):
    assert js(server, "return (await httpRequest(v.url + '/zipped')).data", url=peer.url) == "gepackt: ü"


# ---- what is sent ----
def test_js_bodies(server, peer):
    told = json.loads(js(server, "return (await httpRequest(v.url + '/echo', { method: 'post', body: { a: ['ü'] }, headers: { 'X-Task': 'mine' } })).data", url=peer.url))
    assert (told["method"], json.loads(told["body"]), told["headers"]["content-type"], told["headers"]["x-task"]) == ("POST", {"a": ["ü"]}, "application/json", "mine")
    told = json.loads(js(server, "return (await httpRequest(v.url + '/echo', { method: 'PUT', body: 'a=1', headers: { 'content-type': 'text/x' } })).data", url=peer.url))
    assert (told["method"], told["body"], told["headers"]["content-type"]) == ("PUT", "a=1", "text/x")
    told = json.loads(js(server, "return (await httpRequest(v.url + '/echo', { method: 'DELETE' })).data", url=peer.url))
    assert (told["method"], told["body"]) == ("DELETE", "") and "content-type" not in told["headers"]


def test_python_bodies(server, peer):
    told = json.loads(py(server, "return http_request(url + '/echo', 'POST', {'X-Task': 'mine'}, {'a': ['ü']})['data']", url=peer.url))
    assert (told["method"], json.loads(told["body"]), told["headers"]["content-type"], told["headers"]["x-task"]) == ("POST", {"a": ["ü"]}, "application/json", "mine")
    told = json.loads(py(server, "return http_request(url + '/echo', method='PATCH', body='a=1', headers={'content-type': 'text/x'})['data']", url=peer.url))
    assert (told["method"], told["body"], told["headers"]["content-type"]) == ("PATCH", "a=1", "text/x")


def test_headers_that_a_task_cannot_choose(server, peer):
    told = json.loads(js(server, """return (await httpRequest(v.url + '/echo', { method: 'POST', body: 'four', headers: {
        Host: 'other.example', 'Content-Length': '9', 'Transfer-Encoding': 'chunked', Connection: 'upgrade', 'Proxy-Authorization': 'x' } })).data""", url=peer.url))
    assert told["headers"]["host"] == peer.url[7:]
    assert told["headers"]["content-length"] == "4" and told["body"] == "four"
    assert "transfer-encoding" not in told["headers"] and "proxy-authorization" not in told["headers"]


def test_nothing_of_the_service_is_sent(server, peer):
    told = js(server, "return (await httpRequest(v.url + '/echo')).data", url=peer.url)
    assert server.token not in told and "authorization" not in json.loads(told)["headers"]


# ---- redirects ----
def test_redirects_are_answers(server, peer):
    for got in (js(server, "return await httpRequest(v.url + '/redirect?to=/echo')", url=peer.url), py(server, "return http_request(url + '/redirect?to=/echo')", url=peer.url)):
        assert (got["status"], got["headers"]["location"]) == (302, "/echo")


def test_redirects_that_are_followed_are_judged(server, peer):
    got = js(server, "return await httpRequest(v.url + '/redirect?to=/echo', { followRedirects: true })", url=peer.url)
    assert got["status"] == 200 and json.loads(got["data"])["path"] == "/echo"
    for target in ("http://127.0.0.1/", "http://169.254.169.254/latest", "file:///etc/passwd", "/redirect?to=/redirect?to=/redirect?to=/redirect?to=/redirect?to=/redirect?to=/echo"):
        said = js(server, "try { return await httpRequest(v.url + '/redirect?to=' + v.to, { followRedirects: true }) } catch (e) { return e.message }", url=peer.url, to=target)
        assert isinstance(said, str) or said["status"] == 302, said


# ---- limits ----
def test_a_response_that_is_too_large(server, peer):
    assert js(server, "return (await httpRequest(v.url + '/large?2097152')).data.length", url=peer.url) == 2 * MIB
    for path in ("/large?2097153", "/bomb"):
        assert server.run("js", "async function main(v) { await httpRequest(v.url) }", {"url": peer.url + path})[1]["message"] == "Response too large"
        assert server.run("python", "def main(u):\n    http_request(u['url'])", {"url": peer.url + path})[1]["success"] is False
    said = py(server, "try:\n    http_request(url)\nexcept Exception as e:\n    return str(e)", url=peer.url + "/bomb")
    assert said == "Response too large"


@pytest.mark.parametrize("path", ["/hang", "/drip"])
def test_a_request_that_takes_too_long(server, peer, path):
    """`timeout` is in seconds, timeoutMs in milliseconds; a body that drips does not get around it."""
    for options in ("{ timeout: 0.5 }", "{ timeoutMs: 500 }"):
        start = time.monotonic()
        assert js(server, f"try {{ await httpRequest(v.url, {options}); return '' }} catch (e) {{ return e.message }}", url=peer.url + path) == "Request timeout"
        assert 0.4 < time.monotonic() - start < 4
    assert py(server, "try:\n    http_request(url, timeout=0.5)\nexcept Exception as e:\n    return str(e)", url=peer.url + path) == "Request timeout"


def test_an_answer_that_is_cut(server, peer):
    assert server.run("js", "async function main(v) { await httpRequest(v.url) }", {"url": peer.url + "/cut"})[1]["success"] is False


@pytest.mark.parametrize("language, code", [("js", "async function main(v) {\n\n  return await httpRequest(v.url)\n}"), ("python", "def main():\n\n    return http_request(url)\n")])
def test_a_failed_request_has_a_line(server, peer, language, code):
    """Also where the failure is the server's, long after the call."""
    for url in ("http://127.0.0.1/", peer.url + "/cut"):
        error = server.run(language, code, {"url": url})[1]["data"]["error"]
        assert error["line"] == 3 and "main" in error["traceback"], error


def test_30_requests_at_once(server, peer):
    got = js(server, "const all = await Promise.allSettled(Array.from({ length: 32 }, (_, n) => httpRequest(v.url + '/echo?n=' + n)));"
             "return [all.filter((r) => r.status === 'fulfilled').map((r) => JSON.parse(r.value.data).path.split('=')[1]), all.filter((r) => r.status !== 'fulfilled').map((r) => r.reason.message)]", url=peer.url)
    assert got == [[str(n) for n in range(30)], ["Request limit exceeded"] * 2]


# ---- the end of a task ----
def test_what_is_under_way_ends_with_the_task(server, peer):
    """A task that does not wait for its requests, one that runs out of time, one whose client leaves: the peer sees the end."""
    peer.released.set()
    eventually(lambda: peer.hanging == 0)  # those of other tests
    for how in ("result", "timeout", "leave"):
        left = peer.left
        if how == "result":
            assert js(server, "httpRequest(v.url + '/hang').catch(() => 0); await delay(1500); return 1", url=peer.url) == 1
        elif how == "timeout":
            status, body = server.run("js", "async function main(v) { await httpRequest(v.url + '/hang') }", {"url": peer.url}, timeoutMs=1500)
            assert body["data"]["error"]["code"] == "timeout"
        else:
            (wire,) = begin(server, "js", code="async function main(v) { await httpRequest(v.url + '/hang') }", variables={"url": peer.url})
            eventually(lambda: peer.hanging == 1)
            wire.close()
        eventually(lambda: peer.left == left + 1, what=how)
    server.wait_idle()
    eventually(lambda: not any(server.metrics()[f"sandkeep_code_http_{name}"] for name in ("requests_running", "held_bytes")))


def test_requests_are_told_to_the_operator(server, peer):
    """One line each: where to, what came of it; nothing of path, query, headers or body."""
    js(server, "return (await httpRequest(v.url + '/echo?secret-query', { method: 'POST', body: 'secret-body', headers: { 'X-Key': 'secret-key' } })).status", url=peer.url)
    lines = [line for line in server.log().splitlines() if str(peer.server_port) in line]
    assert lines and '"POST"' in lines[-1]
    assert not re.search("secret-(query|body|key)", server.log())


def test_a_reset_in_the_middle(server, peer):
    """A client that is cut while its task talks costs nothing."""
    (wire,) = begin(server, "python", code="def main(v):\n    while True:\n        http_request(v['url'] + '/echo')", variables={"url": peer.url})
    eventually(lambda: server.health()[1]["pools"]["python"]["busy"] == 1)
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.close()
    server.wait_idle()


# ---- the operator's policy ----
def test_policy_file(peer, tmp_path):
    """Rules per queueId; private networks only where a rule names the host; loopback never."""
    tmp_path.chmod(0o755)
    host = peer.url[7:]
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"default": "none", "rules": [
        {"queueId": "team-denied", "deny": ["*"]},
        {"queueId": "team-a", "allow": [host, "127.0.0.1"]},
        {"queueId": "*", "allow": ["*.example.invalid"]}]}))
    code = "async function main(v) { try { return (await httpRequest(v.url, { timeout: 3 })).status } catch (e) { return e.message } }"
    with CodeServer({**LIGHT, "SANDBOX_NET_POLICY": policy}) as server:
        def said(queue_id, url):
            return server.value("js", code, {"url": url}, **({"queueId": queue_id} if queue_id else {}))
        assert said("team-a", peer.url + "/echo") == 200
        assert said(" team-a ", peer.url + "/echo") == 200
        for queue_id in ("team-b", "team-denied", ""):
            assert isinstance(said(queue_id, peer.url + "/echo"), str), queue_id
        assert said("team-a", "http://127.0.0.1/") == "Request to private network not allowed"
        assert isinstance(said("team-a", "http://other.example/"), str)


@pytest.mark.parametrize("text", ["", "{", '{"default":"all"}', '{"rules":[{"queueId":"a","alow":["x"]}]}', '{"rules":[{"queueId":"a","allow":["http://x/"]}]}'])
def test_policy_files_that_are_wrong(tmp_path, text):
    """The service does not start with rules that it does not understand."""
    policy = tmp_path / "policy.json"
    policy.write_text(text)
    with pytest.raises(AssertionError, match="ended with [12]"):
        CodeServer({**LIGHT, "SANDBOX_NET_POLICY": policy}, wait=False).start()
