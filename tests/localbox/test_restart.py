# SPDX-License-Identifier: Apache-2.0
"""The daemon dies, stops, comes back: sandboxes go on, nothing leaks, nothing is lost."""
import json
import os
import random
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import BIN, Daemon, alive, free_of_leaks


def wait_gone(pid, seconds=10):
    deadline = time.monotonic() + seconds
    while alive(pid):
        assert time.monotonic() < deadline, f"{pid} still lives"
        time.sleep(0.02)


def sandboxed_processes(daemon):
    """Processes of any sandbox of this daemon, seen from outside (by their cgroup or by sk-init's file)."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/exe").endswith(("/sk-init", "/bwrap")) and str(daemon.data).replace(" ", "\\040") in open(f"/proc/{pid}/mountinfo").read():
                found.append(int(pid))
        except OSError:
            pass
    return found


@pytest.mark.parametrize("how", ["kill", "term"])
def test_re_adoption(make_daemon, how):
    daemon = make_daemon()
    volume = {"name": "w", "mountPath": "/workspace", "pvc": {"claimName": "kept"}}
    box = daemon.create(metadata={"sessionId": "s"}, volumes=[volume], timeout=3600)
    paused = daemon.create()
    command = box.events("echo $$ > /workspace/pid; while :; do echo x >> /workspace/tick; sleep 0.02; done", background=True)[0]["text"]
    session = box.execd("POST", "/session", {}).json["session_id"]
    assert box.run("test -s /workspace/pid || sleep 0.2; cat /workspace/pid")[0] == 0
    daemon.request("POST", f"/v1/sandboxes/{paused.id}/pause")
    record = daemon.record(box.id)
    before = box.info().json
    if how == "kill":
        daemon.kill()
    else:
        assert daemon.stop() == 0
    assert alive(record["initPid"])
    daemon.start()
    assert box.info().json == before
    assert paused.state == "Paused"
    assert box.execd("GET", f"/command/status/{command}").json["running"] is True  # the same process, not a new one
    assert box.execd("POST", f"/session/{session}/run", {"command": "echo in session"}).status == 200
    assert box.run("kill -0 $(cat /workspace/pid) && echo same")[1] == "same"
    assert daemon.request("POST", f"/v1/sandboxes/{paused.id}/resume").status == 202
    assert paused.run("echo awake")[1] == "awake"
    assert box.delete().status == 204 and paused.delete().status == 204
    wait_gone(record["initPid"])
    assert not free_of_leaks(daemon)


def test_many_restarts(make_daemon):
    daemon = make_daemon()
    boxes = [daemon.create() for _ in range(5)]
    for _ in range(5):
        daemon.kill()
        daemon.start()
        assert [box.run("echo here")[1] for box in boxes] == ["here"] * 5


def test_sandbox_that_died_meanwhile_is_terminated_not_lost(make_daemon):
    daemon = make_daemon()
    killed, ended, failed = daemon.create(), daemon.create(entrypoint=["sh", "-c", "while [ ! -e /workspace/end ]; do sleep 0.05; done"]), daemon.create(
        entrypoint=["sh", "-c", "while [ ! -e /workspace/end ]; do sleep 0.05; done; exit 5"])
    pids = [daemon.record(box.id)["initPid"] for box in (killed, ended, failed)]
    for box in (ended, failed):
        box.events("sleep 0.5; touch /workspace/end", background=True)
    daemon.kill()
    os.kill(pids[0], signal.SIGKILL)
    for pid in pids:
        wait_gone(pid)
    daemon.start()
    killed.wait_state("Terminated")
    ended.wait_state("Terminated")
    failed.wait_state("Failed")
    assert killed.info().json["status"]["reason"] == "SANDBOX_LOST"
    assert failed.info().json["status"]["message"] == "the entrypoint ended with status 5"
    daemon.kill()
    daemon.start()
    assert [box.state for box in (killed, ended, failed)] == ["Terminated", "Terminated", "Failed"]
    for box in (killed, ended, failed):
        assert box.delete().status == 204
    assert not free_of_leaks(daemon)


def test_init_killed_while_the_daemon_lives(make_daemon):
    daemon = make_daemon()
    box = daemon.create()
    os.kill(daemon.record(box.id)["initPid"], signal.SIGKILL)
    box.wait_state("Terminated")
    deadline = time.monotonic() + 5
    while daemon.record(box.id)["state"] != "Terminated":
        assert time.monotonic() < deadline


def test_a_record_of_another_boot_is_terminated(make_daemon):
    daemon = make_daemon()
    box = daemon.create()
    daemon.stop()
    path = daemon.data / "sandboxes" / box.id / "record.json"
    record = json.loads(path.read_text())
    innocent = subprocess.Popen(["sleep", "60"])
    path.write_text(json.dumps({**record, "bootId": "00000000-0000-0000-0000-000000000000", "initPid": innocent.pid}))
    os.kill(record["initPid"], signal.SIGKILL)
    daemon.start()
    box.wait_state("Terminated")
    assert box.delete().status == 204
    assert innocent.poll() is None, "a process with a reused pid must not be touched"
    innocent.kill()
    innocent.wait()


def start_ticks(pid):
    """When it began, in the kernel's ticks: what tells two processes of one pid apart."""
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[19])


def started_after(ticks):
    """A process of another tick. The kernel gives no pid out twice within one (10 ms); the test could."""
    while True:
        process = subprocess.Popen(["sleep", "60"])
        if start_ticks(process.pid) != ticks:
            return process
        process.kill()
        process.wait()


def test_reused_pid_is_not_touched(make_daemon):
    daemon = make_daemon()
    box = daemon.create()
    daemon.stop()
    path = daemon.data / "sandboxes" / box.id / "record.json"
    record = json.loads(path.read_text())
    os.kill(record["initPid"], signal.SIGKILL)
    wait_gone(record["initPid"])
    innocent = started_after(record["startTime"])
    path.write_text(json.dumps({**record, "initPid": innocent.pid}))
    daemon.start()
    box.wait_state("Terminated")
    assert box.delete().status == 204
    assert innocent.poll() is None
    innocent.kill()
    innocent.wait()


def test_broken_record_is_cleared(make_daemon):
    daemon = make_daemon()
    box = daemon.create()
    pid = daemon.record(box.id)["initPid"]
    daemon.kill()
    (daemon.data / "sandboxes" / box.id / "record.json").write_text("{half")
    daemon.start()
    assert box.info().status == 404
    wait_gone(pid)
    assert not free_of_leaks(daemon)


def test_expiry_while_the_daemon_is_away(make_daemon):
    daemon = make_daemon()
    box = daemon.create(timeout=60)
    pid = daemon.record(box.id)["initPid"]
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 2))
    assert daemon.request("POST", f"/v1/sandboxes/{box.id}/renew-expiration", {"expiresAt": soon}).status == 200
    daemon.kill()
    wait_gone(pid)  # init ends by itself
    daemon.start()
    deadline = time.monotonic() + 5
    while box.info().status != 404:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not free_of_leaks(daemon)


def test_kill_in_the_middle_of_create_leaves_nothing(make_daemon):
    """Twenty kills at random moments of creation: after the restart every listed sandbox works, everything else is gone."""
    daemon = make_daemon()
    chance = random.Random(7)
    for _ in range(20):
        def create():
            try:
                daemon.create()
            except OSError:
                pass
            except Exception:  # noqa: BLE001 the answer was cut
                pass

        threads = [threading.Thread(target=create) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(chance.uniform(0, 0.06))
        daemon.kill()
        for thread in threads:
            thread.join()
        daemon.start()
        listed = daemon.request("GET", "/v1/sandboxes?pageSize=200").json["items"]
        assert not free_of_leaks(daemon)
        pids = {daemon.record(item["id"])["initPid"] for item in listed}
        inits = {pid for pid in sandboxed_processes(daemon) if os.readlink(f"/proc/{pid}/exe").endswith("/sk-init")}
        assert inits == pids
        for item in listed:
            assert item["status"]["state"] == "Running"
            assert daemon.request("DELETE", f"/v1/sandboxes/{item['id']}").status == 204
    deadline = time.monotonic() + 10
    while sandboxed_processes(daemon):
        assert time.monotonic() < deadline
    while list((daemon.data / "trash").iterdir()):
        assert time.monotonic() < deadline


def test_delete_survives_a_kill(make_daemon):
    daemon = make_daemon()
    for delay in (0, 0.001, 0.003, 0.006, 0.01):
        box = daemon.create()
        thread = threading.Thread(target=lambda: ignore(box.delete))  # noqa: B023
        thread.start()
        time.sleep(delay)
        daemon.kill()
        thread.join()
        daemon.start()
        assert box.info().status in (200, 404)
        assert box.delete().status in (204, 404)
        assert not free_of_leaks(daemon)
    assert sandboxed_processes(daemon) == []


def ignore(call):
    try:
        call()
    except Exception:  # noqa: BLE001 the daemon was killed under it
        pass


def test_only_one_daemon_per_folder(make_daemon):
    daemon = make_daemon()
    second = subprocess.run([BIN / "sk-localbox"], env=daemon.environment(), capture_output=True, text=True, timeout=10)
    assert second.returncode == 1 and "in use" in second.stderr


def test_end_sandboxes(make_daemon):
    daemon = make_daemon()
    box = daemon.create(volumes=[{"name": "w", "mountPath": "/workspace", "pvc": {"claimName": "v"}}])
    box.run("echo kept > /workspace/f")
    pid = daemon.record(box.id)["initPid"]
    daemon.stop()
    assert alive(pid)
    assert daemon.end_sandboxes().returncode == 0
    assert not alive(pid)
    daemon.start()
    box.wait_state("Terminated")
    assert (daemon.data / "volumes/v/f").read_text() == "kept\n"


def test_drain_lets_requests_end(make_daemon):
    daemon = make_daemon(env={"SANDKEEP_DRAIN_SECONDS": "10"})
    box = daemon.create()
    out = []
    thread = threading.Thread(target=lambda: out.append(box.run("echo begun; sleep 1; echo ended")))
    thread.start()
    time.sleep(0.4)
    begun = time.monotonic()
    assert daemon.stop() == 0
    thread.join()
    assert out == [(0, "begun\nended", "")]
    assert time.monotonic() - begun < 5


def test_ordinary_user(tmp_path_factory):
    """The same programs without any privilege (contract: runs as root and as an ordinary user)."""
    if os.geteuid() != 0:
        pytest.skip("this run is one")
    folder = tmp_path_factory.mktemp("user")
    for parent in [folder, *folder.parents]:
        if parent == parent.parent or str(parent) == "/tmp":
            break
        parent.chmod(0o755)
    programs = folder / "bin"
    programs.mkdir()
    for name in ("sk-localbox", "sk-init"):
        subprocess.run(["cp", BIN / name, programs / name], check=True)
    data = folder / "data"
    data.mkdir()
    os.chown(data, 65534, 65534)

    class UserDaemon(Daemon):
        def start(self):
            port_file = data / "port"
            port_file.unlink(missing_ok=True)
            env = {**self.environment(), "SANDKEEP_LOCALBOX_PORT_FILE": str(port_file)}
            self.log_path = str(folder / "log")
            with open(self.log_path, "ab") as log:
                self.process = subprocess.Popen(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", programs / "sk-localbox"],
                                                env=env, stdout=log, stderr=log)
            deadline = time.monotonic() + 10
            while not port_file.exists():
                assert self.process.poll() is None and time.monotonic() < deadline, self.log()
                time.sleep(0.01)
            self.port = int(port_file.read_text())
            return self

    daemon = UserDaemon(data).start()
    try:
        limits = daemon.request("GET", "/health").json["limits"]
        assert limits["processes"] == "rlimit" and limits["memory"] == "rlimit"
        box = daemon.create(resourceLimits={"memory": "256Mi"}, volumes=[{"name": "w", "mountPath": "/workspace", "pvc": {"claimName": "v"}, "subPath": "a"}])
        assert box.run("id -u; echo kept > f; cat f; cat /etc/shadow 2>/dev/null; ls /root 2>/dev/null")[1] == "1000\nkept"
        assert box.run("python3 -c 'bytearray(600 * 1024 * 1024)'")[0] not in (0, None)
        assert box.run("echo x > /proc/sys/kernel/core_pattern")[0] != 0
        code, out, _ = box.run("for i in $(seq 600); do sleep 5 & done 2>/dev/null; jobs -p | wc -l", timeout=4000)
        assert code != 0 or int(out) <= 512
        daemon.kill()
        daemon.start()
        assert box.run("cat f")[1] == "kept"
        assert box.delete().status == 204
        assert not free_of_leaks(daemon)
        assert (data / "volumes/v/a/f").read_text() == "kept\n"
    finally:
        assert daemon.stop() == 0, daemon.log()


def test_sandbox_without_its_daemon_ends(make_daemon):
    daemon = make_daemon(orphan_seconds=1)
    box = daemon.create()
    pid = daemon.record(box.id)["initPid"]
    time.sleep(1.5)
    assert alive(pid)  # the daemon is there
    daemon.kill()
    begun = time.monotonic()
    wait_gone(pid)
    assert 0.5 < time.monotonic() - begun < 5
    daemon.start()
    box.wait_state("Terminated")
    assert "orphan" in box.info().json["status"]["message"]


def test_init_dies_while_records_are_written(daemon):
    """The end is noticed although a save is under way at that moment, and a delete beside them gets its answer."""
    for _ in range(5):
        made = daemon.create()
        pid = daemon.record(made.id)["initPid"]
        patch = lambda n: daemon.request("PATCH", f"/v1/sandboxes/{made.id}/metadata", {"n": str(n)}).status  # noqa: E731, B023
        with ThreadPoolExecutor(6) as pool:
            patches = [pool.submit(patch, n) for n in range(60)]
            os.kill(pid, signal.SIGKILL)
            assert {one.result() for one in patches} <= {200}
        made.wait_state("Terminated")
        with ThreadPoolExecutor(4) as pool:
            patches = [pool.submit(patch, n) for n in range(10)]
            assert made.delete().status == 204
            assert {one.result() for one in patches} <= {200, 404}
        assert made.info().status == 404
