# SPDX-License-Identifier: Apache-2.0
"""skctl code against a code sandbox that says what the test tells it to."""
import http.server
import json
import signal
import socket
import subprocess
import threading

import pytest
from conftest import bin_dir, wait_for

TOKEN = "code-token"


class CodeSandbox:
    """Answers every request with `status` and `body`, or not at all while `hold` is set; remembers what came."""

    def __init__(self):
        self.requests, self.status, self.body, self.hold, self.gone = [], 200, b"{}", False, threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                length = int(self.headers["Content-Length"])
                outer.requests.append({"path": self.path, "headers": dict(self.headers), "body": self.rfile.read(length)})
                if outer.hold:
                    self.connection.settimeout(30)
                    if self.connection.recv(1) == b"":  # the client left
                        outer.gone.set()
                    return
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(outer.body)))
                self.end_headers()
                self.wfile.write(outer.body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def says(self, body, status=200):
        self.status, self.body = status, body if isinstance(body, bytes) else json.dumps(body).encode()

    def sent(self):
        return json.loads(self.requests[-1]["body"])

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def sandbox(environment):
    one = CodeSandbox()
    environment.update(SANDKEEP_CODE_URL=one.url, SANDKEEP_CODE_TOKEN=TOKEN)
    yield one
    one.close()


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "a file.js"
    path.write_text('function main({n}) { return "é\\n" + n }\n')
    return path


def answer(value, log=""):
    return {"success": True, "data": {"codeReturn": value, "log": log}}


def failure(message, code="error", log="", **error):
    return {"success": False, "message": message, "data": {"codeReturn": None, "log": log, "error": {"code": code, **error}}}


def test_the_result_is_on_stdout_and_the_log_on_stderr(offline, sandbox, script):
    sandbox.says(answer({"b": 1, "a": [True, None]}, "one\ntwo"))
    done = offline("code", "js", str(script), "--vars", '{"n": 7}')
    assert (done.status, done.json, done.err) == (0, {"b": 1, "a": [True, None]}, "one\ntwo\n")
    request = sandbox.requests[-1]
    assert request["path"] == "/sandbox/js" and request["headers"]["Authorization"] == f"Bearer {TOKEN}"
    assert request["headers"]["Content-Type"] == "application/json"
    assert sandbox.sent() == {"code": script.read_text(), "variables": {"n": 7}}


def test_what_can_be_said_of_a_task_is_sent(offline, sandbox, tmp_path):
    sandbox.says(answer(None))
    variables = tmp_path / "vars.json"
    variables.write_text('{"deep": [[["\\u0000"]]], "n": 0.1}')
    code = 'def main(n):\n\treturn "\\\\" + str(n) # \x01 \u2028 \U0001f600\n'
    done = offline("code", "python", "-", f"--vars=@{variables}", "--timeout=1500ms", "--queue=team a", stdin=code)
    assert (done.status, done.out, done.err) == (0, "null\n", "")
    assert sandbox.requests[-1]["path"] == "/sandbox/python"
    assert sandbox.sent() == {"code": code, "variables": {"deep": [[["\0"]]], "n": 0.1}, "timeoutMs": 1500, "queueId": "team a"}


def test_url_and_token_of_the_command_line_win(offline, sandbox, script, environment):
    sandbox.says(answer(1))
    environment["SANDKEEP_CODE_URL"] = "http://127.0.0.1:1"
    assert offline("code", "js", str(script), f"--url={sandbox.url}/base/", "--token=other").out == "1\n"
    assert sandbox.requests[-1]["path"] == "/base/sandbox/js"
    assert sandbox.requests[-1]["headers"]["Authorization"] == "Bearer other"
    environment["SANDKEEP_CODE_TOKEN"] = ""
    offline("code", "js", str(script), f"--url={sandbox.url}")
    assert "Authorization" not in sandbox.requests[-1]["headers"]


@pytest.mark.parametrize("text", ['1e400', '123456789012345678901234567890', '0.10', '"\\ud800"', "[" * 100_000 + "]" * 100_000, '{"a" : [ 1 , "}" ] }', "null",
                                  '"\\""', "[]", "{}", "-0"])
def test_results_are_printed_as_they_came(offline, sandbox, script, text):
    for body in ('{"success":true,"data":{"codeReturn":%s,"log":""}}', ' {"data" : { "log":"x", "codeReturn": %s } , "success" : true } \n'):
        sandbox.says((body % text).encode())
        assert offline("code", "js", str(script)).out == text + "\n"
        whole = offline("code", "js", str(script), "--json")
        assert (whole.out, whole.err) == ((body % text).strip() + "\n", "")


@pytest.mark.parametrize("body,status,expected,told", [
    (failure("x is not defined", type="ReferenceError", line=3, traceback="main (code.js:3)", log="before"), 200, 1,
     ["before\n", "main (code.js:3)\n", "skctl: ReferenceError: x is not defined (line 3)\n"]),
    (failure("ValueError: no", type="ValueError"), 200, 1, ["skctl: ValueError: no\n"]),
    (failure("Exception", type="Exception", line=2), 200, 1, ["skctl: Exception (line 2)\n"]),
    (failure("invalid syntax (<string>, line 12)", type="SyntaxError", line=12), 200, 1, ["skctl: SyntaxError: invalid syntax (<string>, line 12)\n"]),
    (failure("invalid syntax (<string>, line 12)", type="SyntaxError", line=2), 200, 1, ["skctl: SyntaxError: invalid syntax (<string>, line 12) (line 2)\n"]),
    (failure("2)", type="E", line=2), 200, 1, ["skctl: E: 2) (line 2)\n"]),
    (failure("Script execution timed out after 1000ms", "timeout"), 200, 5, ["timed out after 1000ms"]),
    (failure("Memory limit exceeded", "memory"), 200, 1, ["Memory limit exceeded"]),
    ({"success": False, "message": "Code cannot be empty"}, 200, 1, ["Code cannot be empty"]),
    ({"success": False, "message": "Too many tasks are waiting, try again later"}, 429, 4, ["Too many"]),
    ({"success": False, "message": "The task could not be started, try again later"}, 503, 4, ["could not be started"]),
    ({"success": False, "message": "Invalid request: queueId"}, 400, 2, ["Invalid request"]),
    ({"success": False, "message": "Request body too large, max 8MB"}, 413, 2, ["too large"]),
    ({"success": False, "message": "Out of memory"}, 500, 1, ["Out of memory"]),
    (b"Unauthorized", 401, 1, ["SANDKEEP_CODE_TOKEN"]),
    (b"<html>not here</html>", 404, 1, ["HTTP 404", "SANDKEEP_CODE_URL"]),
    (b"{}", 200, 1, ["HTTP 200"]), (b"", 200, 1, ["HTTP 200"]), (b'{"success":true}', 200, 1, ["HTTP 200"]), (b"[[[[", 200, 1, ["HTTP 200"]),
    (b'{"success":true,"data":{"codeReturn":1', 200, 1, ["HTTP 200"]), (b'{"success":true,"data":{}} tail', 200, 1, ["HTTP 200"]),
    (failure("\x1b[2Jboo", type="\x07", log="\x1b[31m"), 200, 1, ["?: ?[2Jboo"]),
])
def test_failures(offline, sandbox, script, body, status, expected, told):
    sandbox.says(body, status)
    done = offline("code", "js", str(script))
    assert (done.status, done.out) == (expected, "")
    assert all(text in done.err for text in told), done.err
    whole = offline("code", "js", str(script), "--json")
    assert whole.status == expected and whole.json["success"] is False
    if isinstance(body, dict):
        assert whole.json == body


def test_nobody_there_is_6(offline, sandbox, script, environment):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        environment["SANDKEEP_CODE_URL"] = f"http://127.0.0.1:{closed.getsockname()[1]}"
        done = offline("code", "js", str(script))
        assert (done.status, done.out) == (6, "") and "cannot be reached" in done.err and TOKEN not in done.err
        assert offline("code", "js", str(script), "--json").json["ok"] is False


def test_a_deadline_ends_the_waiting_and_the_connection(offline, sandbox, script):
    sandbox.hold = True
    done = offline("code", "js", str(script), "--deadline=300ms")
    assert (done.status, done.out) == (5, "") and "the task is cancelled" in done.err
    assert sandbox.gone.wait(20)


def test_an_interrupt_cancels_the_task(environment, sandbox, script):
    sandbox.hold = True
    with subprocess.Popen([bin_dir() / "skctl", "code", "js", script], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: sandbox.requests)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "") and "the task is cancelled" in err
    assert sandbox.gone.wait(20)


@pytest.mark.parametrize("arguments", [
    [], ["js"], ["ruby", "FILE"], ["js", "FILE", "more"], ["js", "/nonexistent"], ["js", "/"], ["js", "FILE", "--vars=[1]"], ["js", "FILE", "--vars={"],
    ["js", "FILE", "--vars=@/nonexistent"], ["js", "FILE", "--vars"], ["js", "FILE", "--timeout=soon"], ["js", "FILE", "--timeout=0"],
    ["js", "FILE", "--url=ftp://x"], ["js", "FILE", "--url=http://u:p@127.0.0.1"], ["js", "FILE", "--token=a\nb"], ["js", "-", "--vars=@-"],
])
def test_usage(offline, sandbox, script, arguments):
    done = offline("code", *[str(script) if word == "FILE" else word for word in arguments], stdin="")
    assert (done.status, done.out) == (2, "") and done.err.strip()
    assert sandbox.requests == []


@pytest.mark.parametrize("content,told", [
    (b"", "{} is empty"), (b"x" * 5242881, "{} has 5242881 characters: the code sandbox takes 5242880 at most"),
    ("\U0001f600".encode() * 2621441, "{} has 5242882 characters: the code sandbox takes 5242880 at most"),
], ids=["empty", "large", "large-in-utf-16"])
def test_what_the_service_would_refuse_is_told_by_its_file(offline, sandbox, tmp_path, content, told):
    path = tmp_path / "code"
    path.write_bytes(content)
    done = offline("code", "js", str(path))
    assert (done.status, done.out, done.err) == (2, "", f"skctl: {told.format(path)}\n") and sandbox.requests == []


def test_stdin_that_is_empty_is_told(offline, sandbox):
    assert offline("code", "py", "-", stdin="").err == "skctl: stdin is empty\n" and sandbox.requests == []


def test_the_largest_code_is_sent(offline, sandbox, tmp_path):
    sandbox.says(answer(1))
    (tmp_path / "code").write_bytes("é".encode() * 5242880)
    assert offline("code", "js", str(tmp_path / "code")).out == "1\n" and len(sandbox.sent()["code"]) == 5242880


def test_python_by_its_short_name(offline, sandbox, script):
    sandbox.says(answer(1))
    assert offline("code", "py", str(script)).status == 0 and sandbox.requests[-1]["path"] == "/sandbox/python"


@pytest.mark.parametrize("argument,told", [
    ("--vars={bad", 'a JSON object such as {"name": "Ada"}'), ("--vars=[1]", "must be an object"), ("--timeout=99h", "longer than 10 minutes"),
    ("--timeout=600001ms", "longer than 10 minutes"),
])
def test_options_that_cannot_be_meant_say_what_can(offline, sandbox, script, argument, told):
    done = offline("code", "js", str(script), argument)
    assert done.status == 2 and told in done.err and sandbox.requests == []
    sandbox.says(answer(1))
    assert offline("code", "js", str(script), "--timeout=10m").status == 0 and sandbox.sent()["timeoutMs"] == 600000


def test_without_a_sandbox_it_says_what_to_set(offline, script):
    done = offline("code", "js", str(script))
    assert done.status == 2 and "SANDKEEP_CODE_URL" in done.err


def test_code_that_is_no_text_is_refused(offline, sandbox, tmp_path):
    (tmp_path / "bad").write_bytes(b"return '\xff'")
    assert offline("code", "js", str(tmp_path / "bad")).status == 2
    (tmp_path / "large").write_bytes(b"x" * (17 * 1024 * 1024))
    assert offline("code", "js", str(tmp_path / "large")).status == 2
    assert sandbox.requests == []
