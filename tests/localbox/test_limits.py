# SPDX-License-Identifier: Apache-2.0
"""Limits that hold against whoever is inside: processes (fork bombs) and disk (files without a name included)."""
import os
import pathlib
import shutil
import time

import pytest

from conftest import BIN, alive, members

RESERVE = 32  # SK_INIT_PROCESS_RESERVE


def wait_for(what, seconds=20):
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def terminal(events):
    return next(event for event in events if event["type"] in ("error", "execution_complete"))


# ---- fork bombs ----

BOMBS = {
    "sleeping": "bomb(){ bomb|bomb& wait; }; bomb",
    "spinning": "exec python3 -c 'import os\nwhile True:\n try: os.fork()\n except OSError: pass'",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_fork_bomb(make_daemon, bomb):
    """Bounded, no trouble for the machine; commands go on beside it, and interrupting it is the end of it."""
    daemon = make_daemon(processes=100)
    made, other = daemon.create(resourceLimits={"cpu": "0.5", "memory": "256Mi"}), daemon.create()
    init = daemon.record(made.id)["initPid"]
    command = made.events(BOMBS[bomb], background=True)[0]["text"]
    wait_for(lambda: len(members(init)) >= 90)
    begun = time.monotonic()
    assert daemon.request("GET", "/health").status == 200
    assert other.run("echo unharmed")[1] == "unharmed"
    assert time.monotonic() - begun < 2
    assert len(members(init)) <= 100
    assert made.run("echo alive")[:2] == (0, "alive")
    assert made.run("echo one | cat; true")[:2] == (0, "one")  # a few processes of its own
    for _ in range(3):  # jobs of the pool: its threads are not made under the bomb
        assert made.execd("GET", "/files/info?path=/workspace").status == 200
    assert made.upload("/workspace/f", b"x").status == 200
    assert made.execd("GET", "/metrics").status == 200
    assert made.execd("DELETE", f"/command?id={command}").status == 200
    wait_for(lambda: len(members(init)) <= 2)
    assert made.run("for i in $(seq 20); do true | true; done; echo back")[:2] == (0, "back")
    assert made.state == "Running"


def test_fork_bomb_that_left_its_group(make_daemon):
    """It cannot be interrupted as a command, but be stopped and killed from a command beside it."""
    daemon = make_daemon(processes=60)
    made = daemon.create(entrypoint=["sleep", "10000"], resourceLimits={"cpu": "0.5", "memory": "256Mi"})
    init = daemon.record(made.id)["initPid"]
    made.events("exec python3 -c 'import os\nwhile True:\n try:\n  if os.fork() == 0: os.setsid()\n except OSError: pass'", background=True)
    wait_for(lambda: len(members(init)) >= 50)
    made.run("kill -STOP -1; pkill -KILL python3; kill -CONT -1", timeout=60000)
    wait_for(lambda: len(members(init)) <= 2)
    assert made.run("true | true; echo back")[:2] == (0, "back")
    assert made.state == "Running"


def test_full_process_table_is_answered_as_a_limit(make_daemon):
    """Commands that fill even init's reserve: the next is told so before its stream begins, and may be tried again."""
    daemon = make_daemon(processes=20)
    made = daemon.create()
    init = daemon.record(made.id)["initPid"]
    background = [made.execd("POST", "/command", {"argv": ["sleep", "10000"], "background": True}) for _ in range(80)]
    assert {answer.status for answer in background} == {200, 429}
    assert len(members(init)) <= 20 + RESERVE
    refused = made.execd("POST", "/command", {"command": "true"})
    assert (refused.status, refused.code) == (429, "PROCESS_LIMIT") and refused.json["message"]
    session = made.execd("POST", "/session", {}).json["session_id"]
    for _ in range(2):  # the session is not left busy
        refused = made.execd("POST", f"/session/{session}/run", {"command": "true"})
        assert (refused.status, refused.code) == (429, "PROCESS_LIMIT")
    first = next(answer for answer in background if answer.status == 200).body.decode().split('"text":"')[1][:32]
    assert made.execd("DELETE", f"/command?id={first}").status == 200
    assert made.run("echo room", timeout=5000)[:2] == (0, "room")
    logs = made.execd("GET", "/directories/list?path=/tmp/opensandbox-execd").json
    assert len(logs) == sum(answer.status == 200 for answer in background)  # refused ones leave nothing
    begun = time.monotonic()
    assert daemon.request("POST", f"/v1/sandboxes/{made.id}/pause").status == 202
    assert daemon.request("POST", f"/v1/sandboxes/{made.id}/resume").status == 202
    assert made.delete().status == 204
    assert time.monotonic() - begun < 10
    assert not alive(init)


@pytest.mark.parametrize("bomb", BOMBS)
def test_delete_under_a_fork_bomb(daemon, bomb):
    made = daemon.create(resourceLimits={"cpu": "0.5", "memory": "256Mi"})
    init = daemon.record(made.id)["initPid"]
    made.events(BOMBS[bomb], background=True)
    wait_for(lambda: len(members(init)) > 200)
    assert made.delete().status == 204
    wait_for(lambda: not alive(init) and not members(init))


def test_groups_go_with_the_sandboxes(make_daemon):
    daemon = make_daemon()
    if "cgroup" not in daemon.request("GET", "/health").json["limits"]["processes"]:
        pytest.skip("no control groups here")
    made = daemon.create()
    init = daemon.record(made.id)["initPid"]
    path = next(line.split(":", 2)[2] for line in open(f"/proc/{init}/cgroup").read().split("\n") if ":pids:" in line or line.startswith("0::/sandkeep"))
    group = pathlib.Path("/sys/fs/cgroup/pids" if os.path.isdir("/sys/fs/cgroup/pids") else "/sys/fs/cgroup") / path.strip("/")
    assert group.is_dir() and group.parent.name.startswith("sandkeep-")
    daemon.end_sandboxes()
    wait_for(lambda: not group.parent.exists())
    again = daemon.create()  # the daemon that still lives makes them again, limits included
    assert int((group.parent / again.id / "pids.max").read_text()) > 512


# ---- disk ----

def test_storage_limit_stops_writers(make_daemon):
    daemon = make_daemon(scan_ms=100)
    made = daemon.create(resourceLimits={"cpu": "1", "disk": "20Mi"}, volumes=[{"name": "w", "mountPath": "/workspace", "pvc": {"claimName": "full"}}])
    code, _, _ = made.run("exec cat /dev/zero > /workspace/big", timeout=20000)
    assert code == -1  # killed by the limit, long before its own time limit
    size = made.execd("GET", "/files/info?path=/workspace/big").json["/workspace/big"]["size"]
    assert 20 << 20 < size
    assert made.upload("/workspace/more", b"x").status == 507
    made.run("rm /workspace/big")
    wait_for(lambda: made.upload("/workspace/more", b"x").status == 200)
    assert made.state == "Running"


def test_volume_storage_size_is_enforced(make_daemon):
    daemon = make_daemon(scan_ms=100)
    daemon.request("POST", "/v1/volumes/ensure", {"claimName": "small", "storageSize": "5Mi"}, key=None, headers={"Authorization": "Bearer test-key"})
    made = daemon.create(volumes=[{"name": "w", "mountPath": "/workspace", "pvc": {"claimName": "small"}}])
    assert made.run("exec cat /dev/zero > /workspace/big", timeout=20000)[0] == -1


# Each writes 60 MiB to a file that has no name any more and then waits. {} is a folder.
NAMELESS = {
    "open": "exec 5>{}/x; rm {}/x; head -c 62914560 /dev/zero >&5; exec sleep 60",
    "open for reading": "head -c 62914560 /dev/zero > {}/x; exec 5<{}/x; rm {}/x; exec sleep 60",
    "mapped": "exec python3 -c 'import mmap,os,time\nf=os.open(\"{}/x\",os.O_RDWR|os.O_CREAT)\nos.ftruncate(f,60<<20)\nm=mmap.mmap(f,60<<20)\n"
              "os.close(f)\nos.unlink(\"{}/x\")\nfor i in range(0,60<<20,4096): m[i]=1\nm.flush()\ntime.sleep(60)'",
    "hidden": "exec python3 -c 'import ctypes,os,time\nctypes.CDLL(None).prctl(4,0,0,0,0)\nf=os.open(\"{}/x\",os.O_RDWR|os.O_CREAT)\nos.unlink(\"{}/x\")\n"
              "for i in range(60): os.write(f,bytes(1<<20))\ntime.sleep(60)'",
    "no name ever": "exec python3 -c 'import os,time\nf=os.open(\"{}\",os.O_RDWR|os.O_TMPFILE)\nfor i in range(60): os.write(f,bytes(1<<20))\ntime.sleep(60)'",
}


@pytest.mark.parametrize("how", NAMELESS)
def test_files_without_a_name_count(make_daemon, how):
    if how == "hidden" and os.geteuid() != 0:
        pytest.skip("an ordinary user's daemon cannot look into processes that are not dumpable")
    daemon = make_daemon(scan_ms=100)
    made = daemon.create(resourceLimits={"cpu": "1", "disk": "20Mi"})
    begun = time.monotonic()
    assert made.run(NAMELESS[how].format("/workspace", "/workspace", "/workspace"), timeout=50000)[0] == -1
    assert time.monotonic() - begun < 30
    wait_for(lambda: made.upload("/workspace/more", b"x").status == 200)  # and what it held is given back
    assert made.state == "Running"


def test_removed_files_of_the_system_do_not_count(make_daemon, tmp_path):
    """An upgrade of the machine replaces what sandboxes have open and mapped: nobody is charged, nobody is killed for it."""
    image = tmp_path / "images/upgraded"
    for name in ("bin", "sbin", "lib", "lib64"):
        if os.path.islink("/" + name):
            (image / name).parent.mkdir(parents=True, exist_ok=True)
            (image / name).symlink_to(os.readlink("/" + name))
    (image / "usr/bin").mkdir(parents=True)
    shutil.copytree("/usr/lib/x86_64-linux-gnu", image / "usr/lib/x86_64-linux-gnu", symlinks=True,
                    ignore=lambda folder, names: [n for n in names if not n.startswith(("libc.", "libc-", "ld-", "libtinfo"))])
    (image / "usr/lib64").mkdir()
    (image / "usr/lib64/ld-linux-x86-64.so.2").symlink_to("../lib/x86_64-linux-gnu/ld-linux-x86-64.so.2")
    for name in ("bash", "sleep", "tail", "cat", "head", "rm"):
        shutil.copy(os.path.realpath(f"/usr/bin/{name}"), image / "usr/bin" / name)
    (image / "usr/share").mkdir()
    (image / "usr/share/large").write_bytes(bytes(60 << 20))
    os.chmod(tmp_path, 0o755)
    daemon = make_daemon(scan_ms=100, scratch_mb=20, images_dir=str(tmp_path / "images"))
    made = daemon.create(image={"uri": "upgraded"}, entrypoint=["/usr/bin/sleep", "1000"])
    holder = made.events("exec 5</usr/share/large >/dev/null 2>&1; exec sleep 1000", background=True)[0]["text"]
    writer = made.events("exec 5>/workspace/log; exec sleep 1000", background=True)[0]["text"]
    time.sleep(0.5)
    (image / "usr/share/large").unlink()
    (image / "usr/bin/sleep").unlink()
    time.sleep(1)  # several scans
    running = lambda command: made.execd("GET", f"/command/status/{command}").json["running"]  # noqa: E731
    assert running(holder) and running(writer) and "writers are stopped" not in daemon.log()
    made.run("head -c 40000000 /dev/zero > /workspace/big")
    wait_for(lambda: not running(writer))
    assert running(holder) and made.state == "Running"


def test_files_without_a_name_count_where_they_lie(make_daemon):
    """A volume's size is held against its own files only, the sandbox's folders against theirs."""
    daemon = make_daemon(scan_ms=100, scratch_mb=20)
    daemon.request("POST", "/v1/volumes/ensure", {"claimName": "small", "storageSize": "100Mi"}, key=None, headers={"Authorization": "Bearer test-key"})
    made = daemon.create(volumes=[{"name": "w", "mountPath": "/work space", "pvc": {"claimName": "small"}}])
    assert made.run(NAMELESS["open"].format("'/work space'", "'/work space'").replace("sleep 60", "sleep 2"), timeout=50000)[0] == 0
    assert made.run(NAMELESS["open"].format("/tmp", "/tmp"), timeout=50000)[0] == -1
    assert "SCRATCH_MB" in daemon.log() and "a volume's size" not in daemon.log()
    wait_for(lambda: made.upload("/tmp/more", b"x").status == 200)
    for size in ("1Mi",):
        daemon.request("POST", "/v1/volumes/ensure", {"claimName": "small", "storageSize": size}, key=None, headers={"Authorization": "Bearer test-key"})
    assert made.run(NAMELESS["open"].format("'/work space'", "'/work space'"), timeout=50000)[0] == -1
    assert "a volume's size" in daemon.log()


@pytest.mark.parametrize("folder", ["/tmp", "/home/sandbox", "/workspace"])
def test_private_folders_have_a_limit(make_daemon, folder):
    daemon = make_daemon(scan_ms=100, scratch_mb=20)
    made = daemon.create()
    assert made.run(f"exec cat /dev/zero > {folder}/big", timeout=20000)[0] == -1
    assert made.upload("/tmp/more", b"x").status == 507
    made.run(f"rm {folder}/big")
    wait_for(lambda: made.upload("/tmp/more", b"x").status == 200)


def test_private_folders_have_a_limit_by_default():
    import subprocess
    text = subprocess.run([BIN / "sk-localbox", "--print-config"], capture_output=True, text=True, env={"SANDKEEP_LOCALBOX_DATA_DIR": "/nowhere"}).stdout
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    assert int(values["SANDKEEP_LOCALBOX_SCRATCH_MB"].split()[0]) == 10240 and int(values["SANDKEEP_LOCALBOX_FREE_MB"].split()[0]) == 256


def test_disk_request_rules_over_the_default(make_daemon):
    daemon = make_daemon(scan_ms=100, scratch_mb=5)
    made = daemon.create(resourceLimits={"disk": "200Mi"})
    assert made.run("head -c 30000000 /dev/zero > /tmp/f; sleep 1; head -c 30000000 /dev/zero > /tmp/g")[0] == 0
    assert made.upload("/tmp/more", b"x").status == 200


def test_empty_files_count(make_daemon):
    """They take inodes, which a disk has a fixed number of."""
    daemon = make_daemon(scan_ms=100, scratch_mb=4)
    made = daemon.create()
    made.run("cd /workspace; seq 2000 | xargs touch")
    wait_for(lambda: made.upload("/tmp/more", b"x").status == 507)
    made.run("cd /workspace; seq 2000 | xargs rm")
    wait_for(lambda: made.upload("/tmp/more", b"x").status == 200)


def test_entrypoint_is_spared_until_it_goes_on(make_daemon):
    daemon = make_daemon(scan_ms=100)
    quiet = daemon.create(resourceLimits={"disk": "5Mi"}, entrypoint=["sh", "-c", "exec 5>/workspace/log; echo begun >&5; exec sleep 1000"])
    loud = daemon.create(resourceLimits={"disk": "5Mi"}, entrypoint=["sh", "-c", "exec cat /dev/zero > /workspace/log"])
    loud.wait_state("Failed", 30)
    quiet.run("head -c 10000000 /dev/zero > /workspace/big")
    wait_for(lambda: quiet.upload("/tmp/more", b"x").status == 507)
    time.sleep(1)  # several scans
    assert quiet.state == "Running"


def test_upload_under_way_is_ended(make_daemon):
    daemon = make_daemon(scan_ms=50)
    made = daemon.create(resourceLimits={"disk": "5Mi"})
    answer = made.upload("/workspace/big", bytes(200 << 20))
    assert answer.status in (200, 507)  # 200: faster than the scan
    if answer.status == 200:
        wait_for(lambda: made.upload("/workspace/more", b"x").status == 507)
    else:
        assert made.execd("GET", "/directories/list?path=/workspace").json == []


def test_removed_logs_are_given_back(make_daemon):
    """Logs of background commands that were removed while sk-init holds them open."""
    daemon = make_daemon(scan_ms=100)
    made = daemon.create(resourceLimits={"disk": "20Mi"})
    for _ in range(2):
        command = made.events("head -c 15000000 /dev/zero", background=True)[0]["text"]
        wait_for(lambda: not made.execd("GET", f"/command/status/{command}").json["running"])
        made.run("rm /tmp/opensandbox-execd/*")
    wait_for(lambda: made.upload("/tmp/more", b"x").status == 200)
    assert made.execd("GET", f"/command/status/{command}").json["exit_code"] == 0


def test_room_is_told_after_a_restart(make_daemon):
    daemon = make_daemon(scan_ms=100)
    made = daemon.create(resourceLimits={"disk": "5Mi"})
    made.run("head -c 10000000 /dev/zero > /workspace/big")
    wait_for(lambda: made.upload("/tmp/more", b"x").status == 507)
    daemon.kill()
    os.unlink(daemon.data / "sandboxes" / made.id / "workspace/big")
    daemon.start()
    wait_for(lambda: made.upload("/tmp/more", b"x").status == 200)


def test_reserve_of_the_machine(make_daemon):
    """Below the reserve of free space writers are stopped even where no limit is passed."""
    free = os.statvfs("/tmp")
    daemon = make_daemon(scan_ms=100, free_mb=(free.f_bavail * free.f_frsize >> 20) * 2)
    made = daemon.create()
    assert made.run("exec 5>/workspace/x; exec sleep 60", timeout=30000)[0] == -1
    assert made.upload("/tmp/more", b"x").status == 507
    assert "SANDKEEP_LOCALBOX_FREE_MB" in daemon.log()
    assert made.run("echo alive")[1] == "alive"
