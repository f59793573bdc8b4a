# SPDX-License-Identifier: Apache-2.0
"""execd's API in detail: exact events, streams and their limits, files with hostile names, bad input."""
import http.client
import json
import socket
import threading
import time

import pytest

from conftest import KEY, resident_kb, resident_limit_kb


def types(events):
    return [event["type"] for event in events]


def test_event_names_order_and_texts(box):
    events = box.events("printf 'a\\n\\nb\\r\\nc\\rlast'; exit 0")
    assert types(events) == ["init", "ping"] + ["stdout"] * 5 + ["execution_complete"]
    assert [e["text"] for e in events[2:-1]] == ["a", "\n", "b", "c", "last"]
    assert len(events[0]["text"]) == 32 and events[1]["text"] == "pong"
    assert all(isinstance(e["timestamp"], int) for e in events)
    failed = box.events("exit 9")
    assert types(failed) == ["init", "ping", "error"]
    assert failed[-1]["error"] == {"ename": "CommandExecError", "evalue": "9", "traceback": ["exit status 9"]}
    killed = box.events("kill -9 $$")[-1]["error"]
    assert (killed["evalue"], killed["traceback"]) == ("-1", ["signal: killed"])
    timed_out = box.events("sleep 30", timeout=200)[-1]["error"]
    assert (timed_out["evalue"], timed_out["traceback"]) == ("-1", ["signal: killed"])


def test_ping_every_three_seconds(box):
    assert types(box.events("sleep 3.5")) == ["init", "ping", "ping", "execution_complete"]


def test_odd_bytes(box):
    events = box.events(r"printf '\377\001\"\\<>\n'; head -c 300000 /dev/zero | tr '\0' x")
    texts = [e["text"] for e in events if e["type"] == "stdout"]
    assert texts[0] == '\ufffd\x01"\\<>'
    assert texts[1] == "x" * 300000


def test_large_output_arrives_whole(box):
    code, out, _ = box.run("seq 1 200000")
    assert code == 0 and out.split("\n") == [str(i) for i in range(1, 200001)]


def test_argv_form(box):
    events = [json.loads(e) for e in box.execd("POST", "/command", {"argv": ["printf", "%s|", "a b", "$HOME"]}).body.decode().split("\n\n") if e]
    assert events[2]["text"] == "a b|$HOME|"
    missing = [json.loads(e) for e in box.execd("POST", "/command", {"argv": ["/absent"]}).body.decode().split("\n\n") if e]
    assert types(missing) == ["init", "ping", "error"] and "No such file" in missing[-1]["error"]["evalue"]


def test_environment_is_only_what_was_asked_for(daemon):
    made = daemon.create(env={"A": "1", "N": None})
    _, out, _ = made.run("env -u PWD -u SHLVL -u _ | sort", envs={"B": "2"})
    assert out.split("\n") == ["A=1", "B=2", "HOME=/home/sandbox", "LANG=C.UTF-8",
                               "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM=xterm"]
    made.delete()


def test_grandchild_survives_a_foreground_command(box):
    assert box.run("(sleep 0.3; echo later; echo done > /workspace/g) & echo now")[1] == "now"
    assert box.run("for i in $(seq 100); do [ -f /workspace/g ] && break; sleep 0.05; done; cat /workspace/g")[1] == "done"


def test_foreground_command_survives_its_client(box):
    lost = socket.create_connection(("127.0.0.1", box.daemon.port))
    body = json.dumps({"command": "echo start; sleep 0.5; seq 1 100000; echo ok > /workspace/survived"})
    lost.sendall(f"POST {box.path(44772, '/command')} HTTP/1.1\r\nHost: x\r\nOPEN-SANDBOX-API-KEY: {KEY}\r\n"
                 f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
    data = b""
    while b"start" not in data:
        data += lost.recv(4096)
    command = json.loads(data.split(b'{"type":"init"')[1].join([b'{"type":"init"', b""]).split(b"\n")[0])["text"]
    lost.close()
    deadline = time.monotonic() + 10
    while box.execd("GET", f"/command/status/{command}").json["running"] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert box.execd("GET", f"/command/status/{command}").json["exit_code"] == 0
    assert box.run("cat /workspace/survived")[1] == "ok"


def test_slow_reader_slows_the_command_not_the_memory(box):
    connection = http.client.HTTPConnection("127.0.0.1", box.daemon.port, timeout=30)
    connection.request("POST", box.path(44772, "/command"), json.dumps({"command": "head -c 50000000 /dev/zero | tr '\\0' 'y' | fold -w 100"}),
                       {"OPEN-SANDBOX-API-KEY": KEY})
    answer = connection.getresponse()
    time.sleep(1)
    pid = box.daemon.record(box.id)["initPid"]
    for process in (pid, box.daemon.process.pid):
        assert resident_kb(process) < resident_limit_kb()
    total = sum(1 for block in answer.read().decode().split("\n\n") if '"stdout"' in block)
    assert total == 500000


def test_background_ends_with_its_leader(box):
    events = box.events("sleep 100 & echo $! > /workspace/pid; setsid sleep 101 & sleep 0.2", background=True)
    assert types(events) == ["init", "ping", "execution_complete"]
    command = events[0]["text"]
    deadline = time.monotonic() + 5
    while box.execd("GET", f"/command/status/{command}").json["running"] and time.monotonic() < deadline:
        time.sleep(0.02)
    # what stayed in the group is gone, what left it on purpose lives
    assert box.run("sleep 0.1; kill -0 $(cat /workspace/pid) 2>/dev/null && echo alive; pgrep -f 'sleep 101' >/dev/null && echo kept")[1] == "kept"


def test_interrupt_kills_what_ignores_it(box):
    started = box.events("trap '' TERM; touch /workspace/trapped; sleep 60", background=True)[0]["text"]
    assert_until(lambda: box.execd("GET", "/files/info?path=/workspace/trapped").status == 200)
    begun = time.monotonic()
    assert box.execd("DELETE", f"/command?id={started}").status == 200
    assert 2 < time.monotonic() - begun < 5
    assert box.execd("DELETE", f"/command?id={started}").status == 500


BAD = [("POST", "/command", b"{", 400, "INVALID_REQUEST_BODY"), ("POST", "/command", {}, 400, "INVALID_REQUEST_BODY"),
       ("POST", "/command", {"command": ""}, 400, "INVALID_REQUEST_BODY"), ("POST", "/command", {"command": 1}, 400, "INVALID_REQUEST_BODY"),
       ("POST", "/command", {"command": "x", "argv": ["x"]}, 400, "INVALID_REQUEST_BODY"),
       ("POST", "/command", {"command": "x", "cwd": "/absent"}, 400, "INVALID_REQUEST_BODY"),
       ("POST", "/command", {"command": "x", "cwd": "/etc/passwd"}, 400, "INVALID_REQUEST_BODY"),
       ("POST", "/command", {"command": "x", "cwd": "$UNDEFINED/x"}, 400, "INVALID_REQUEST_BODY"),
       ("POST", "/command", {"command": "x", "gid": 1}, 400, "INVALID_REQUEST_BODY"),
       ("POST", "/command", {"command": "x", "uid": 0}, 400, "INVALID_REQUEST_BODY"),
       ("POST", "/command", {"command": "x", "timeout": "1"}, 400, "INVALID_REQUEST_BODY"),
       ("POST", "/command", {"command": "x", "timeout": -1}, 400, "INVALID_REQUEST_BODY"),
       ("POST", "/command", {"command": "x", "envs": {"A": 1}}, 400, "INVALID_REQUEST_BODY"),
       ("POST", "/command", {"command": "x", "background": "yes"}, 400, "INVALID_REQUEST_BODY"),
       ("POST", "/command", b'{"command":"a\\u0000b"}', 400, "INVALID_REQUEST_BODY"), ("POST", "/command", b"[" * 100000, 400, "INVALID_REQUEST_BODY"),
       ("DELETE", "/command", None, 400, "MISSING_QUERY"), ("DELETE", "/command?id=absent", None, 500, "RUNTIME_ERROR"),
       ("GET", "/command/status/absent", None, 404, "INVALID_REQUEST_BODY"), ("GET", "/command/absent/logs", None, 400, "INVALID_REQUEST_BODY"),
       ("GET", "/nothing", None, 404, "NOT_FOUND"), ("PUT", "/command", b"", 405, "METHOD_NOT_ALLOWED"), ("GET", "/pty/x", None, 501, "NOT_SUPPORTED"),
       ("POST", "/code", {}, 501, "NOT_SUPPORTED"), ("GET", "/files/info?path=/absent", None, 404, "FILE_NOT_FOUND"),
       ("GET", "/files/info?path=%zz", None, 400, "MISSING_QUERY"), ("GET", "/files/download", None, 400, "MISSING_QUERY"),
       ("GET", "/files/download?path=/absent", None, 404, "FILE_NOT_FOUND"), ("GET", "/files/download?path=/etc", None, 400, "INVALID_FILE"),
       ("GET", "/files/download?path=/dev/zero", None, 400, "INVALID_FILE"), ("GET", "/files/download?path=/etc/passwd&offset=0", None, 400, "INVALID_REQUEST_BODY"),
       ("DELETE", "/files?path=/workspace", None, 500, "RUNTIME_ERROR"), ("POST", "/files/permissions", [], 400, "INVALID_REQUEST_BODY"),
       ("POST", "/files/permissions", {"/etc/passwd": {"mode": 999}}, 400, "INVALID_REQUEST_BODY"),
       ("POST", "/files/permissions", {"/absent": {"mode": 644}}, 404, "FILE_NOT_FOUND"), ("POST", "/files/mv", {}, 400, "INVALID_REQUEST_BODY"),
       ("POST", "/files/mv", [{"src": "/absent", "dest": "/tmp/x"}], 404, "FILE_NOT_FOUND"), ("GET", "/files/search", None, 400, "MISSING_QUERY"),
       ("POST", "/files/replace", {"/etc/passwd": {"old": "", "new": "x"}}, 400, "INVALID_REQUEST_BODY"),
       ("POST", "/files/upload", b"x", 400, "INVALID_FILE"), ("GET", "/directories/list?path=/etc/passwd", None, 400, "INVALID_REQUEST_BODY"),
       ("GET", "/directories/list?path=/absent", None, 404, "FILE_NOT_FOUND"), ("GET", "/directories/list?path=/tmp&depth=-1", None, 400, "INVALID_REQUEST_BODY"),
       ("POST", "/session/absent/run", {"command": "x"}, 500, "RUNTIME_ERROR"), ("DELETE", "/session/absent", None, 404, "CONTEXT_NOT_FOUND")]


@pytest.fixture(scope="module")
def shared(daemon):
    made = daemon.create()
    yield made
    made.delete()


@pytest.mark.parametrize("method,path,body,status,code", BAD)
def test_bad_input(shared, method, path, body, status, code):
    answer = shared.execd(method, path, body)
    assert (answer.status, answer.code) == (status, code), answer.body
    assert answer.json["message"]


# ---- files ----

RANGES = [("bytes=0-4", 206, b"01234", "bytes 0-4/10"), ("bytes=5-", 206, b"56789", "bytes 5-9/10"), ("bytes=-3", 206, b"789", "bytes 7-9/10"),
          ("bytes=-100", 206, b"0123456789", "bytes 0-9/10"), ("bytes=8-100", 206, b"89", "bytes 8-9/10"), ("bytes=0-0,5-6", 206, b"0", "bytes 0-0/10"),
          ("bytes=10-", 416, None, "bytes */10"), ("bytes=-0", 416, None, "bytes */10"), ("bytes=99999999999999999999-", 416, None, "bytes */10"),
          ("bytes=x", 200, b"0123456789", None), ("bytes=5-2", 200, b"0123456789", None), ("lines=1-2", 200, b"0123456789", None),
          ("bytes=1-2x", 200, b"0123456789", None), ("bytes=", 200, b"0123456789", None), ("bytes=--1", 200, b"0123456789", None)]


@pytest.mark.parametrize("text,status,body,content_range", RANGES)
def test_ranges(shared, text, status, body, content_range):
    assert shared.upload("/workspace/ten", b"0123456789").status == 200
    answer = shared.execd("GET", "/files/download?path=/workspace/ten", headers={"Range": text})
    assert (answer.status, answer.headers["Content-Range"]) == (status, content_range)
    assert int(answer.headers["Content-Length"]) == len(answer.body)
    if body is not None:
        assert answer.body == body


def test_head_and_names(shared):
    name = "/workspace/ä ü%#?&+.txt"
    assert shared.upload(name, b"abc", mode=640).status == 200
    quoted = "/files/download?path=" + __import__("urllib.parse").parse.quote(name)
    head = shared.execd("HEAD", quoted)
    assert (head.status, head.headers["Content-Length"], head.body) == (200, "3", b"")
    assert "filename*=UTF-8''%C3%A4%20%C3%BC%25%23%3F%26%2B.txt" in head.headers["Content-Disposition"]
    assert shared.execd("GET", quoted).body == b"abc"


def test_lines(shared):
    shared.upload("/workspace/lines", b"one\r\ntwo\n\nfour\n")
    get = lambda query: shared.execd("GET", "/files/download?path=/workspace/lines&" + query).body  # noqa: E731
    assert get("offset=1&limit=1") == b"one"
    assert get("offset=2") == b"two\n\nfour"
    assert get("offset=2&limit=2") == b"two\n"
    assert get("offset=9") == b""
    assert shared.execd("GET", "/files/download?path=/workspace/lines&offset=1", headers={"Range": "bytes=0-1"}).status == 400


def test_upload_is_atomic_and_keeps_modes(shared):
    assert shared.upload("/workspace/m/x", b"1", mode=600).status == 200
    assert shared.upload("/workspace/m/x", b"22").status == 200
    info = shared.execd("GET", "/files/info?path=/workspace/m/x").json["/workspace/m/x"]
    assert (info["mode"], info["size"]) == (600, 2)
    # the target is whole at every moment: a reader that opened the old file keeps it
    shared.run("ln -s /workspace/m/x /workspace/m/link")
    assert shared.upload("/workspace/m/link", b"333").status == 200
    assert shared.run("cat /workspace/m/x; readlink /workspace/m/link")[1] == "333/workspace/m/x"
    assert shared.upload("/workspace/m", b"x").status == 500
    assert shared.upload("/etc/x", b"x").status == 500
    assert shared.upload("/workspace/bad-mode", b"x", mode=888).status == 400
    assert shared.run("ls -A /workspace/m; ls /workspace/bad-mode 2>/dev/null")[1] == "link\nx"


def multipart(*parts):
    body = b""
    for name, data in parts:
        body += f'--B\r\nContent-Disposition: form-data; name="{name}"; filename="x"\r\n\r\n'.encode() + data + b"\r\n"
    return body + b"--B--\r\n"


MULTIPART = {"type": {"Content-Type": "multipart/form-data; boundary=B"}}


def test_upload_orders_and_pairs(shared):
    meta = lambda path: json.dumps({"path": path}).encode()  # noqa: E731
    send = lambda body: shared.execd("POST", "/files/upload", body, headers=MULTIPART["type"])  # noqa: E731
    assert send(multipart(("file", b"late"), ("metadata", meta("/workspace/u1")))).status == 200
    assert send(multipart(("metadata", meta("/workspace/u2")), ("metadata", meta("/workspace/u3")), ("file", b"2"), ("file", b"3\r\n--"))).status == 200
    assert shared.run("cat /workspace/u1 /workspace/u2 /workspace/u3")[1] == "late23\n--"
    for bad in (multipart(("metadata", meta("/workspace/u4"))), multipart(("file", b"x")), multipart(("metadata", b"{"), ("file", b"x")),
                multipart(("metadata", b"{}"), ("file", b"x")), multipart(), multipart(("metadata", meta("/workspace/u5")), ("file", b"x"))[:-9],
                multipart(("metadata", b"{" + b" " * 70000 + b"}"), ("file", b"x")), b"--B\r\n" + b"x" * 30000):
        answer = send(bad)
        assert answer.status == 400 and answer.code in ("INVALID_FILE", "INVALID_FILE_METADATA"), answer.body
    assert shared.run("ls -A /workspace /tmp | grep -c sk-upload")[1] == "0"


def test_aborted_upload_leaves_nothing(shared):
    half = socket.create_connection(("127.0.0.1", shared.daemon.port))
    body = multipart(("metadata", b'{"path":"/workspace/aborted"}'), ("file", b"x" * 500000))
    half.sendall(f"POST {shared.path(44772, '/files/upload')} HTTP/1.1\r\nHost: x\r\nOPEN-SANDBOX-API-KEY: {KEY}\r\n"
                 f"Content-Type: multipart/form-data; boundary=B\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body[:300000])
    assert_until(lambda: shared.run("ls -A /workspace | grep -c sk-upload")[1] == "1")
    half.close()
    assert_until(lambda: shared.run("ls -A /workspace | grep -c sk-upload")[1] == "0")
    assert shared.execd("GET", "/files/info?path=/workspace/aborted").status == 404


def assert_until(check, seconds=5):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if check():
            return
        time.sleep(0.02)
    raise AssertionError("not reached in time")


def test_large_file_streams_through(shared):
    shared.run("head -c 200000000 /dev/zero > /workspace/large")
    connection = http.client.HTTPConnection("127.0.0.1", shared.daemon.port, timeout=60)
    connection.request("GET", shared.path(44772, "/files/download?path=/workspace/large"), headers={"OPEN-SANDBOX-API-KEY": KEY})
    answer = connection.getresponse()
    total = 0
    while piece := answer.read(1 << 20):
        total += len(piece)
    assert total == 200000000
    for process in (shared.daemon.record(shared.id)["initPid"], shared.daemon.process.pid):
        assert resident_kb(process) < resident_limit_kb()
    shared.run("rm /workspace/large")


def test_move_rules(shared):
    shared.run("mkdir -p /tmp/tree/a; echo 1 > /tmp/tree/a/f; ln -s f /tmp/tree/a/l; chmod 700 /tmp/tree/a; echo old > /workspace/old")
    move = lambda src, dest: shared.execd("POST", "/files/mv", [{"src": src, "dest": dest}])  # noqa: E731
    assert move("/tmp/tree", "/workspace/new/tree").status == 200  # another mount, parents made
    assert shared.run("cat /workspace/new/tree/a/l; stat -c %a /workspace/new/tree/a; ls -d /tmp/tree 2>/dev/null")[1] == "1\n700"
    assert move("/workspace/new/tree", "/workspace/old").status == 500
    assert shared.run("cat /workspace/old")[1] == "old"


def test_search_patterns(shared):
    shared.run("mkdir -p /workspace/q/r; touch /workspace/q/a.js /workspace/q/r/b.ts /workspace/q/r/.hid; ln -s / /workspace/q/loop; mkdir -m 0 /workspace/q/closed")
    search = lambda pattern: sorted(f["path"].removeprefix("/workspace/q/") for f in shared.execd(  # noqa: E731
        "GET", f"/files/search?path=/workspace/q&pattern={pattern}").json)
    assert search("*.%7Bjs,ts%7D") == ["a.js", "r/b.ts"]
    assert search("**") == ["a.js", "loop", "r/.hid", "r/b.ts"]
    assert search("%3F.js") == ["a.js"]
    shared.run("chmod 700 /workspace/q/closed")


def test_invalid_utf8_names_do_not_break_listings(shared):
    shared.run(r"mkdir -p /workspace/n; touch /workspace/n/$'bad\377name'")
    listed = shared.execd("GET", "/directories/list?path=/workspace/n").json
    assert [f["path"] for f in listed] == ["/workspace/n/bad\ufffdname"]
    assert shared.execd("DELETE", "/directories?path=/workspace/n").status == 200


def test_deep_folders(shared):
    shared.run("cd /workspace; for i in $(seq 1 600); do mkdir d; cd d; done; touch x")
    assert shared.execd("GET", "/files/search?path=/workspace&pattern=x").status == 200
    assert shared.execd("GET", "/directories/list?path=/workspace&depth=100000").status == 200


def test_one_hundred_commands_at_once(shared):
    results = []

    def one(i):
        results.append(shared.run(f"sleep 0.2; echo {i}")[1] == str(i))

    threads = [threading.Thread(target=one, args=(i,)) for i in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 100
