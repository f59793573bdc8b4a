# SPDX-License-Identifier: Apache-2.0
"""Requests that leave: what a server outside gets to see, where it may send a task, and what becomes of a request when its
task is gone. The server is on a private address of this machine, which CHECK_INTERNAL_IP=false opens; loopback stays shut."""
import threading
import time

import pytest
from code_server import CodeServer
from waiting import eventually
from sink import Sink, eventually_closed, private_address


@pytest.fixture(scope="module")
def outside():
    address = private_address()
    if address is None:
        pytest.skip("this machine has no private address")
    sink = Sink(address)
    yield sink
    sink.close()


@pytest.fixture(scope="module")
def loopback():
    sink = Sink()
    yield sink
    assert sink.connections == 0
    sink.close()


@pytest.fixture(scope="module")
def server():
    with CodeServer({"SANDBOX_POOL_SIZE": 4, "CHECK_INTERNAL_IP": "false", "SANDBOX_MAX_TIMEOUT": 10000}) as running:
        yield running


def ask(server, url, options="{}", **members):
    """The answer to a JavaScript task's request, or its refusal."""
    code = f"""async function main({{ url }}) {{
        try {{ const r = await httpRequest(url, {options}); return {{ status: r.status, data: r.data.slice(0, 100000), headers: r.headers }} }}
        catch (error) {{ return {{ error: error.message }} }} }}"""
    return server.value("js", code, {"url": url}, **members)


def test_it_can_be_reached(server, outside):
    assert ask(server, outside.url)["status"] == 200
    value = server.value("python", "def main(url):\n    return http_request(url)['status']\n", {"url": outside.url})
    assert value == 200


@pytest.mark.parametrize("target", ["http://127.0.0.1:{}/", "http://169.254.169.254/latest", "http://[::1]:{}/", "//localhost:{}/", "http://2130706433:{}/", "file:///etc/passwd",
                                    "ftp://127.0.0.1/", "http://metadata.google.internal/", "http://[::ffff:127.0.0.1]:{}/"])
def test_redirects_are_judged(server, outside, loopback, target):
    url = f"{outside.url}/redirect?{target.format(loopback.port)}"
    assert ask(server, url)["status"] == 302
    answer = ask(server, url, "{ followRedirects: true }")
    assert answer.get("status") in (None, 302) and (answer.get("status") == 302 or answer["error"]), answer
    assert loopback.connections == 0


def test_redirects_without_an_end(server, outside):
    before = outside.connections
    answer = ask(server, outside.url + "/again", "{ followRedirects: true }")
    assert "error" in answer or answer["status"] == 302, answer
    assert 1 < outside.connections - before <= 6


def test_a_redirect_that_is_followed_sheds_secrets(server, outside):
    other = Sink(private_address())
    try:
        answer = ask(server, f"{outside.url}/redirect?{other.url}/", "{ followRedirects: true, headers: { Authorization: 'Bearer secret', Cookie: 'a=secret', 'X-Own': 'kept' } }")
        assert answer["status"] == 200 and "secret" not in answer["data"], answer
    finally:
        other.close()


def test_headers_cannot_smuggle(server, outside):
    answer = ask(server, outside.url + "/x", """{ headers: { Host: 'evil.example', Connection: 'upgrade', 'Transfer-Encoding': 'chunked', 'Content-Length': '1', 'Proxy-Authorization': 'x', Expect: '100-continue',
        Upgrade: 'h2c', TE: 'trailers', 'Keep-Alive': '1', Trailer: 'x', 'X-Own': 'kept' }, body: 'abc', method: 'POST' }""")
    seen = outside.requests[-1].lower()
    assert answer["status"] == 200
    assert b"evil.example" not in seen and b"chunked" not in seen and b"proxy-" not in seen and b"upgrade" not in seen and b"expect" not in seen
    assert seen.count(b"content-length") == 1 and b"content-length: 3" in seen and b"x-own: kept" in seen and seen.count(b"host:") == 1


@pytest.mark.parametrize("options", ["{ headers: { 'X': 'a\\r\\nEvil: 1' } }", "{ headers: { 'X\\r\\nEvil': '1' } }", "{ headers: { 'X\\nEvil': '1' } }", "{ headers: { X: 'a\\nEvil: 1' } }",
                                     "{ method: 'GET /evil HTTP/1.1\\r\\nEvil: 1\\r\\n\\r\\nGET' }", "{ method: 'G E T' }", "{ headers: { 'X Y': '1' } }", "{ headers: { 'X': 'a\\0b' } }"])
def test_line_ends_are_refused(server, outside, options):
    before = len(outside.requests)
    answer = ask(server, outside.url + "/x", options)
    assert not any(b"\nEvil" in seen or b"evil" in seen.split(b"\r\n\r\n")[0].lower() for seen in outside.requests[before:]), outside.requests[before:]
    assert "error" in answer or len(outside.requests) == before + 1


def test_line_ends_in_a_path(server, outside):
    before = len(outside.requests)
    ask(server, outside.url + "/a\r\nEvil: 1\r\n\r\n")
    ask(server, outside.url + "/a%0d%0aEvil: 1")
    ask(server, outside.url + "/a HTTP/1.1\r\nEvil: 1")
    assert not any(b"\nEvil" in seen for seen in outside.requests[before:])


@pytest.mark.parametrize("path", ["/big", "/bomb"])
def test_answers_are_bounded(server, outside, path):
    memory = server.memory()
    assert "Response too large" in ask(server, outside.url + path)["error"]
    assert server.memory() - memory < 64 << 20
    assert eventually_closed(outside)


def test_a_broken_answer(server, outside):
    for path in ("/broken", "/headers"):
        answer = ask(server, outside.url + path, "{ timeoutMs: 2000 }")
        assert "error" in answer or answer["status"] == 200, answer
    assert eventually_closed(outside)


def test_slow_answers_end_with_their_time(server, outside):
    for path in ("/slow", "/drip"):
        begin = time.monotonic()
        assert "timeout" in ask(server, outside.url + path, "{ timeoutMs: 300 }")["error"].lower()
        assert time.monotonic() - begin < 3
    assert eventually_closed(outside)


@pytest.mark.parametrize("language,code", [
    ("js", "async function main({ url }) { await httpRequest(url) }"),
    ("js", "function main({ url }) { httpRequest(url); httpRequest(url); return { done: 1 } }"),
    ("python", "def main(url):\n    http_request(url)\n"),
])
def test_a_task_that_ends_takes_its_requests_along(server, outside, language, code):
    before = outside.connections
    status, body = server.run(language, code, {"url": outside.url + "/slow"}, timeoutMs=500)
    assert status == 200 and (body["success"] or body["data"]["error"]["code"] == "timeout"), body
    assert eventually_closed(outside)
    assert outside.connections - before <= 2
    server.wait_idle()


def test_a_client_that_leaves_takes_the_request_along(server, outside):
    before = outside.connections
    connection = server.connect()
    body = b'{"code":"async function main(v) { await httpRequest(v.url) }","variables":{"url":"' + outside.url.encode() + b'/slow"}}'
    connection.sendall(b"POST /sandbox/js HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + server.token.encode() + b"\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body)
    eventually(lambda: outside.connections > before)
    connection.close()
    assert eventually_closed(outside)
    server.wait_idle()


def test_no_more_than_four_at_a_time(server, outside):
    code = "async function main({ url }) { await Promise.allSettled(Array.from({ length: 20 }, () => httpRequest(url))); return 1 }"
    before = outside.connections
    runner = threading.Thread(target=server.run, args=("js", code, {"url": outside.url + "/slow"}), kwargs={"timeoutMs": 3000})
    runner.start()
    eventually(lambda: outside.connections - before >= 4)
    runner.join()
    assert outside.connections - before == 4
    assert eventually_closed(outside)
