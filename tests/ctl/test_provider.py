# SPDX-License-Identifier: Apache-2.0
"""exec, cp and doctor against a real sk-localbox."""
import http.server
import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest
from conftest import IDENTITY, SANDBOX, bin_dir, wait_for

KEY = "test-key"
OTHER = "app-1111111111111111"


class Localbox:
    def __init__(self, folder):
        self.folder, self.port_file = folder, folder / "port"
        folder.mkdir()
        environment = {**os.environ, "SANDKEEP_LOCALBOX_LISTEN": "127.0.0.1:0", "SANDKEEP_LOCALBOX_KEY": KEY,
                       "SANDKEEP_LOCALBOX_DATA_DIR": str(folder / "data"), "SANDKEEP_LOCALBOX_PORT_FILE": str(self.port_file)}
        self.log = open(folder / "log", "wb")
        self.process = subprocess.Popen([bin_dir() / "sk-localbox"], env=environment, stdout=self.log, stderr=self.log)
        wait_for(lambda: self.port_file.exists() and self.port_file.read_text().strip(), 20)
        self.url = f"http://127.0.0.1:{self.port_file.read_text().strip()}"

    def call(self, method, path, body=None):
        request = urllib.request.Request(self.url + path, method=method, data=json.dumps(body).encode() if body is not None else None,
                                         headers={"OPEN-SANDBOX-API-KEY": KEY, "Authorization": f"Bearer {KEY}", "Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read()!r}") from error

    def create(self, sandbox_id=SANDBOX, epoch=1):
        return self.call("POST", "/v1/sandboxes", {
            "image": {"uri": "localbox/default:1"}, "entrypoint": ["tail", "-f", "/dev/null"], "resourceLimits": {"cpu": "1", "memory": "512Mi"},
            "metadata": {"sessionId": sandbox_id, "sandkeep.dev/epoch": str(epoch)}})["id"]

    def objects(self):
        return {item["id"]: item for item in self.call("GET", "/v1/sandboxes?pageSize=200")["items"]}

    def close(self):
        for one in self.objects():
            self.call("DELETE", f"/v1/sandboxes/{one}")
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        self.log.close()


@pytest.fixture
def localbox(tmp_path, environment):
    one = Localbox(tmp_path / "local box")
    environment.update(SANDKEEP_LOCALBOX_URL=one.url, SANDKEEP_LOCALBOX_KEY=KEY)
    yield one
    one.close()


# ---- exec ---------------------------------------------------------------------------------------------------------------
def test_exec_hands_output_and_exit_status_on(offline, localbox):
    localbox.create()
    done = offline("exec", *IDENTITY, "--", "echo out; echo err >&2; exit 7")
    assert (done.status, done.out, done.err) == (7, "out\n", "err\n")
    assert offline("exec", SANDBOX, "--cwd=/tmp", "--", "pwd").out == "/tmp\n"


def test_exec_of_several_words_quotes_them(offline, localbox):
    localbox.create()
    words = ["printf", "%s|", "a  b", "it's", "$HOME", "*", ""]
    assert offline("exec", SANDBOX, "--", *words).out.rstrip("\n") == "a  b|it's|$HOME|*||"


def test_exec_json_is_lines(offline, localbox):
    localbox.create()
    lines = [json.loads(line) for line in offline("exec", SANDBOX, "--json", "--", "echo hi; exit 3").out.splitlines()]
    assert "".join(line["text"] for line in lines[:-1]) == "hi\n"
    assert lines[-1]["end"] == "exited" and lines[-1]["exitCode"] == 3


def test_exec_time_out_and_signal_are_125(offline, localbox):
    localbox.create()
    done = offline("exec", SANDBOX, "--timeout=300ms", "--", "sleep 20")
    assert done.status == 125 and "timed" in done.err
    assert offline("exec", SANDBOX, "--", "kill -9 $$").status == 125


def test_interrupted_exec_ends_the_command(localbox, environment):
    localbox.create()
    process = subprocess.Popen([bin_dir() / "skctl", "exec", SANDBOX, "--", "echo go; sleep 77"], env=environment, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "go\n"
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=15)
    assert process.returncode == 130, err
    assert "told to end" in err and time.monotonic() - began < 10
    left = subprocess.run([bin_dir() / "skctl", "exec", SANDBOX, "--", "ls -d /proc/[0-9]* | while read p; do tr '\\0' ' ' <$p/cmdline 2>/dev/null; done; true"],
                          env=environment, capture_output=True, text=True, check=True).stdout
    assert "sleep 77" not in left


def test_exec_without_a_running_sandbox_is_3(offline, localbox):
    done = offline("exec", SANDBOX, "--", "true")
    assert done.status == 3 and "skctl ensure" in done.err
    one = localbox.create()
    localbox.call("POST", f"/v1/sandboxes/{one}/pause")
    assert offline("exec", SANDBOX, "--", "true").status == 3


def test_without_a_provider_or_with_a_dead_one(offline, environment):
    assert offline("exec", SANDBOX, "--", "true").status == 2
    environment["SANDKEEP_LOCALBOX_URL"] = "http://127.0.0.1:1"
    assert offline("exec", SANDBOX, "--", "true").status == 6


# ---- cp -----------------------------------------------------------------------------------------------------------------
def test_cp_there_and_back(offline, localbox, tmp_path):
    localbox.create()
    source = tmp_path / "a file.bin"
    source.write_bytes(os.urandom(300_000))
    source.chmod(0o750)
    assert offline("cp", str(source), f"{SANDBOX}:/workspace/").status == 0
    assert offline("exec", SANDBOX, "--", "stat -c '%a %s' '/workspace/a file.bin'").out == "750 300000\n"
    assert offline("cp", ":/workspace/a file.bin", str(tmp_path / "back"), *IDENTITY, "--json").json == {"sandboxId": SANDBOX, "bytes": 300000}
    assert (tmp_path / "back").read_bytes() == source.read_bytes()
    (tmp_path / "folder").mkdir()
    offline("cp", f"{SANDBOX}:/workspace/a file.bin", str(tmp_path / "folder"))
    assert (tmp_path / "folder" / "a file.bin").exists()


def test_cp_from_stdin_to_stdout(offline, localbox):
    localbox.create()
    assert offline("cp", "-", f"{SANDBOX}:/workspace/n", stdin="text\n").status == 0
    assert offline("cp", f"{SANDBOX}:/workspace/n", "-").out == "text\n"


def test_a_failed_download_leaves_the_old_file_alone(offline, localbox, tmp_path):
    localbox.create()
    (tmp_path / "old").write_text("old")
    assert offline("cp", f"{SANDBOX}:/workspace/missing", str(tmp_path / "old")).status == 3
    assert (tmp_path / "old").read_text() == "old" and list(tmp_path.glob("old.*")) == []
    assert offline("cp", str(tmp_path), f"{SANDBOX}:/workspace/x").status == 2


def test_a_download_writes_to_what_is_there_and_never_replaces_a_device(offline, localbox, tmp_path):
    localbox.create()
    assert offline("cp", "-", f"{SANDBOX}:/workspace/n", stdin="text\n").status == 0
    # A device or a pipe is written to. (Renaming onto it would turn /dev/null of the whole machine into a file.)
    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    failed = offline("cp", f"{SANDBOX}:/workspace/n", str(full))
    assert failed.status == 1 and "copied" not in failed.err
    null = tmp_path / "null"
    null.symlink_to("/dev/null")
    assert offline("cp", f"{SANDBOX}:/workspace/n", str(null)).status == 0
    assert full.is_symlink() and full.is_char_device() and null.is_symlink() and null.is_char_device()
    # A file keeps its mode, a link its target; a new file is as private as the caller wants.
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to("real")
    assert offline("cp", f"{SANDBOX}:/workspace/n", str(link)).status == 0
    assert link.is_symlink() and real.read_text() == "text\n" and real.stat().st_mode & 0o777 == 0o600
    mask = os.umask(0o077)
    try:
        assert offline("cp", f"{SANDBOX}:/workspace/n", str(tmp_path / "new")).status == 0
    finally:
        os.umask(mask)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir() if "." in path.name) == []


def test_no_password_of_a_url_is_shown(offline, environment):
    environment.update(SANDKEEP_LOCALBOX_URL="http://bob:hunter2@127.0.0.1:1", SANDKEEP_LOCALBOX_KEY="k")
    shown = offline("exec", SANDBOX, "--", "true")
    assert shown.status == 2 and "hunter2" not in shown.err + shown.out


# ---- doctor ---------------------------------------------------------------------------------------------------------------
def record(sandbox_id=SANDBOX, status="running", epoch=1, **more):
    return {"sandboxId": sandbox_id, "status": status, "sourceType": "app", "sourceId": IDENTITY[1], "userId": IDENTITY[3], "provider": "opensandbox",
            "epoch": epoch, "sequence": 2, "lastActiveAt": "2026-11-30T08:00:00.000Z", "createdAt": "2026-11-30T07:00:00.000Z", **more}


@pytest.fixture
def records(service):
    held = []
    service.serve("list", lambda r: {"ok": True, "data": {"items": held, "nextCursor": None}})
    return held


def test_doctor_of_a_healthy_system_is_0(skctl, records, localbox):
    records.append(record())
    localbox.create()
    assert skctl("doctor", "--grace=0s", "--json").json == {"findings": []}
    done = skctl("doctor", "--grace=0s")
    assert done.status == 0 and "1 records, 1 provider objects" in done.out


def test_doctor_finds_what_is_wrong_on_both_sides(skctl, records, localbox):
    records.append(record())
    orphan = localbox.create(OTHER)
    done = skctl("doctor", "--grace=0s", "--json")
    assert done.status == 1
    found = {(finding["sandboxId"], finding["invariant"]) for finding in done.json["findings"]}
    assert found == {(SANDBOX, "remote-missing"), (OTHER, "remote-orphan")}
    assert all(set(finding) == {"sandboxId", "invariant", "detail"} for finding in done.json["findings"])
    assert "VIOLATION" in skctl("doctor", "--grace=0s").out
    assert orphan in localbox.objects()  # looking changed nothing


def test_doctor_judges_volumes_page_by_page(skctl, records, localbox):
    localbox.call("POST", "/v1/volumes/ensure", {"claimName": "fastgpt-session-app-1111111111111111-0"})
    done = skctl("doctor", "--grace=0s", "--json")
    assert [finding["invariant"] for finding in done.json["findings"]] == ["volume-orphan"]
    held = f"fastgpt-session-{SANDBOX}-0"
    records.append(record(status="stopped", storage={"volume": {"name": "workspace", "claimName": held, "mountPath": "/workspace"},
                                                     "volumes": [{"name": "workspace", "pvc": {"claimName": held}, "mountPath": "/workspace"}],
                                                     "mountPath": "/workspace"}))
    for number in range(1200):
        os.mkdir(localbox.folder / "data/volumes" / f"a-{number:04}")
    found = {finding["detail"] for finding in skctl("doctor", "--grace=0s", "--json").json["findings"]}
    assert sum("a-0" in detail or "a-1" in detail for detail in found) == 1200


def test_volume_list_pages_and_refuses_nonsense(localbox):
    for number in range(5):
        localbox.call("POST", "/v1/volumes/ensure", {"claimName": f"v-{number}"})
    first = localbox.call("GET", "/v1/volumes?limit=3")
    assert [item["claimName"] for item in first["items"]] == ["v-0", "v-1", "v-2"] and first["next"] == "v-2"
    assert all(item["createdAt"].endswith("Z") for item in first["items"])
    rest = localbox.call("GET", "/v1/volumes?after=v-2")
    assert [item["claimName"] for item in rest["items"]] == ["v-3", "v-4"] and rest["next"] is None
    for bad in ("?limit=0", "?limit=x", "?limit=1001", "?after=..%2F", "?after=" + "a" * 300):
        with pytest.raises(AssertionError, match=": 400 "):
            localbox.call("GET", "/v1/volumes" + bad)
    request = urllib.request.Request(localbox.url + "/v1/volumes")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(request, timeout=10)


def test_doctor_repairs_only_after_a_yes(skctl, records, localbox, service):
    localbox.create(OTHER)
    refused = skctl("doctor", "--grace=0s", "--repair", stdin="n\n")
    assert refused.status == 1 and len(localbox.objects()) == 1
    assert skctl("doctor", "--grace=0s", "--repair", stdin="").status == 1 and len(localbox.objects()) == 1
    agreed = skctl("doctor", "--grace=0s", "--repair", stdin="y\n")
    assert agreed.status == 0 and localbox.objects() == {}
    assert skctl("doctor", "--repair", "--json").status == 2


def test_doctor_repairs_records_with_commands(skctl, records, localbox, service):
    records.append(record())
    service.answers["stop"] = lambda c: [({}, {"id": c["id"], "ok": True, "sandboxId": SANDBOX, "status": "stopped"})]
    assert skctl("doctor", "--grace=0s", "--repair", "--yes").status == 0
    assert [c["body"]["op"] for c in service.commands] == ["stop"]


def test_doctor_without_a_provider_judges_records(skctl, records):
    records.append(record(status="stopping"))
    done = skctl("doctor", "--json")
    assert done.status == 1 and {f["invariant"] for f in done.json["findings"]} >= {"operation-missing"}
    assert "only records are judged" in done.err


def test_doctor_that_cannot_look_does_not_say_healthy(skctl, records, environment):
    environment["SANDKEEP_LOCALBOX_URL"] = "http://127.0.0.1:1"
    done = skctl("doctor")
    assert done.status == 6 and "0 findings" not in done.out


class Health:
    """A code sandbox as far as /health, which says `status`."""

    def __init__(self):
        self.status, self.asked, outer = 200, [], self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked.append(self.path)
                self.send_response(outer.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def health(environment):
    one = Health()
    environment["SANDKEEP_CODE_URL"] = f"{one.url}/base"
    yield one
    one.close()


def test_doctor_asks_the_code_sandbox(skctl, records, health):
    done = skctl("doctor")
    assert (done.status, health.asked) == (0, ["/base/health"]) and "code sandbox ready: 0 findings" in done.out
    assert skctl("doctor", "--json").json == {"findings": []}
    health.status = 503
    done = skctl("doctor", "--json")
    assert (done.status, done.json) == (1, {"findings": [{"sandboxId": None, "invariant": "code-down",
                                                          "detail": f"{health.url}/base/health answers HTTP 503: it is not ready"}]})


def test_doctor_sees_a_dead_code_sandbox(skctl, records, environment):
    environment["SANDKEEP_CODE_URL"] = "http://127.0.0.1:1"
    done = skctl("doctor")
    assert done.status == 1 and "VIOLATION -  code-down: http://127.0.0.1:1/health gave no answer" in done.out and "1 finding\n" in done.out
    assert [(finding["sandboxId"], finding["invariant"]) for finding in skctl("doctor", "--json").json["findings"]] == [(None, "code-down")]
    assert "no safe repair" in skctl("doctor", "--repair", "--yes").err


def test_doctor_does_not_wait_for_a_code_sandbox_that_hangs(skctl, records, environment):
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        environment["SANDKEEP_CODE_URL"] = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        began = time.monotonic()
        done = skctl("doctor", "--json")
        assert [finding["invariant"] for finding in done.json["findings"]] == ["code-down"]
        assert time.monotonic() - began < 30  # two looks of 3 s each, and the time between them


@pytest.fixture
def held(service):
    """Slots and leases as the service tells them, three entries a page."""
    kinds = {"slots": [], "leases": [], "limits": {"global": 0, "perTeam": 0}}

    def answer(request):
        items, start = kinds[request["kind"]], int(request.get("cursor") or 0)
        return {"ok": True, "data": {"items": items[start : start + 3], "limits": kinds["limits"],
                                     "nextCursor": str(start + 3) if start + 3 < len(items) else None}}
    service.serve("held", answer)
    return kinds


def invariants(done):
    assert done.status in (0, 1), done.err
    return sorted((finding["sandboxId"], finding["invariant"]) for finding in done.json["findings"])


def test_doctor_judges_slots(skctl, records, held):
    old = {"takenAt": "2026-11-29T08:00:00.000Z"}
    records.append(record(teamId="t1", lastOperation={"endedAt": "2026-11-29T08:00:00.000Z"}))
    held["limits"] = {"global": 5, "perTeam": 5}
    held["slots"] += [{"scope": "global", "sandboxId": SANDBOX, **old}, {"scope": "team:t1", "sandboxId": SANDBOX, **old}]
    assert invariants(skctl("doctor", "--json")) == []
    held["slots"] += [{"scope": "global", "sandboxId": f"app-000000000000000{n}", **old} for n in range(4)]
    assert invariants(skctl("doctor", "--json")) == [(f"app-000000000000000{n}", "slot-leaked") for n in range(4)]
    held["slots"][:] = [{"scope": "global", "sandboxId": SANDBOX, **old}]
    assert invariants(skctl("doctor", "--json")) == [(SANDBOX, "slot-missing")]
    held["limits"] = {"global": 0, "perTeam": 0}
    assert invariants(skctl("doctor", "--json")) == []


def test_doctor_judges_leases(skctl, records, held):
    records.append(record())
    records.append(record(OTHER, "stopping", sourceId="x", operation={"id": "o", "type": "stop", "phase": "claimed", "jobId": "j", "owner": "me",
                                                                     "heartbeatAt": "2099-01-01T00:00:00.000Z"}))
    held["leases"] += [{"name": f"agent-sandbox:init:app-{number}", "ttlMs": 1000} for number in range(7)]
    held["leases"] += [{"name": f"agent-sandbox:lifecycle:{SANDBOX}", "ttlMs": 9000}, {"name": f"agent-sandbox:lifecycle:{OTHER}", "ttlMs": 600000}]
    mine = ("identity-mismatch",)  # the second record is made up
    assert [item for item in invariants(skctl("doctor", "--json")) if item[1] not in mine] == []
    held["leases"][7]["ttlMs"] = 600000
    held["leases"][8]["ttlMs"] = None
    found = [item for item in invariants(skctl("doctor", "--json")) if item[1] not in mine]
    assert found == [(OTHER, "lease-endless"), (SANDBOX, "lease-idle")]


def claim(service, sequence, kind, before, after, epoch=1, sandbox=SANDBOX):
    service.event(f"lifecycle.{kind}", sandbox=sandbox, sandboxId=sandbox, epoch=epoch, sequence=sequence, operation={"id": "o"},
                  **{"from": before, "to": after, "id": f"{sandbox[-4:]}{epoch:04}{sequence:018}"})


def test_doctor_judges_the_event_history(skctl, records, service):
    records.append(record(sequence=4))
    claim(service, 1, "claimed", "none", "provisioning")
    claim(service, 2, "phase", "provisioning", "provisioning")
    claim(service, 2, "phase", "provisioning", "provisioning")  # published twice: legal
    for number in range(700):  # of others, more than a batch; theirs begins where the stream does
        claim(service, number + 7, "phase", "provisioning", "provisioning", sandbox=OTHER)
    claim(service, 3, "completed", "provisioning", "running")
    assert invariants(skctl("doctor", "--json")) == []
    assert "704 events" in skctl("doctor").out
    claim(service, 5, "claimed", "running", "stopping", epoch=2)
    found = invariants(skctl("doctor", "--json"))
    assert (SANDBOX, "event-gap") in found and (SANDBOX, "event-ahead") in found


def test_doctor_says_what_it_cannot_judge(skctl, records, service):
    records.append(record())
    done = skctl("doctor")
    assert done.status == 0 and "quota slots are not judged: nobody answers" in done.err and "leases are not judged" in done.err
    service.serve("held", lambda request: {"ok": False, "error": {"code": "lease_unavailable", "detail": "Redis: gone"}})
    done = skctl("doctor")
    assert done.status == 0 and "leases are not judged: Redis: gone" in done.err
    service.wait(service.js.delete_stream("SANDBOX_EVENTS"))
    done = skctl("doctor")
    assert done.status == 0 and "events are not judged" in done.err


# ---- interruption -------------------------------------------------------------------------------------------------------
class Mute:
    """Takes connections and never says a word, as a server behind a broken network does."""

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.connection = None

    def wait(self):
        self.socket.settimeout(15)
        self.connection, _ = self.socket.accept()
        assert self.connection.recv(1)

    def close(self):
        if self.connection:
            self.connection.close()
        self.socket.close()


@pytest.fixture
def mute(environment):
    one = Mute()
    environment.update(SANDKEEP_LOCALBOX_URL=one.url, SANDKEEP_LOCALBOX_KEY=KEY)
    yield one
    one.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("arguments", [("exec", SANDBOX, "--", "true"), ("cp", f"{SANDBOX}:/etc/hosts", "-"), ("doctor",),
                                       ("exec", SANDBOX, "--json", "--", "true"), ("doctor", "--json")], ids=lambda words: "-".join(words[:2]))
def test_interrupted_while_the_provider_is_silent(start, mute, arguments, number):
    process = start(*arguments)
    mute.wait()
    began = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=15)
    assert process.returncode == 130 and out == ""
    assert err.startswith("skctl: interrupted: ") and err.count("\n") == 1 and "internal" not in err, err
    assert time.monotonic() - began < 5


def test_a_second_signal_ends_at_once(start, mute):
    process = start("doctor")
    mute.wait()
    os.kill(process.pid, signal.SIGSTOP)  # both are pending when it goes on
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    os.kill(process.pid, signal.SIGCONT)
    assert process.wait(15) == 130


@pytest.mark.parametrize("way", ["upload", "download"])
def test_interrupted_cp_that_waits_for_a_pipe(localbox, environment, way):
    localbox.create()
    if way == "download":
        subprocess.run([bin_dir() / "skctl", "exec", SANDBOX, "--", "head -c 3000000 /dev/zero >/tmp/big"], env=environment, check=True)
    arguments = ["-", f"{SANDBOX}:/tmp/file"] if way == "upload" else [f"{SANDBOX}:/tmp/big", "-"]
    process = subprocess.Popen([bin_dir() / "skctl", "cp", *arguments], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    if way == "upload":  # more than the pipe holds, so that it is being read; then nobody writes any more
        process.stdin.write(b"x" * 200000)
        process.stdin.flush()
    else:  # nobody reads on: the pipe is full
        assert process.stdout.read(1) == b"\0"
    process.send_signal(signal.SIGINT)
    try:
        assert process.wait(10) == 130
    finally:
        process.kill()
    err = process.stderr.read().decode()
    assert err.startswith("skctl: interrupted: "), err


def test_interrupted_download_leaves_nothing_behind(localbox, environment, tmp_path):
    localbox.create()
    subprocess.run([bin_dir() / "skctl", "exec", SANDBOX, "--", "mkfifo /tmp/slow"], env=environment, check=True)
    folder = tmp_path / "here"
    folder.mkdir()
    process = subprocess.Popen([bin_dir() / "skctl", "cp", f"{SANDBOX}:/tmp/slow", str(folder / "file")], env=environment,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: any(folder.iterdir()) or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        process.wait(15)
    finally:
        process.kill()
    assert list(folder.iterdir()) == []
