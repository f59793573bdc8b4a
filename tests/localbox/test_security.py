# SPDX-License-Identifier: Apache-2.0
"""What a hostile user inside a sandbox cannot do."""
import os
import time

import pytest

from conftest import members


@pytest.fixture(scope="module")
def inside(daemon):
    made = daemon.create(resourceLimits={"cpu": "1", "memory": "256Mi"})
    yield made
    made.delete()


REFUSED = {
    "kernel settings": "echo x > /proc/sys/kernel/core_pattern",
    "sysrq": "echo b > /proc/sysrq-trigger",
    "write to the system": "touch /usr/bin/x",
    "write to the root": "touch /x",
    "write to etc": "touch /etc/x",
    "write to dev": "touch /dev/x",
    "host passwords": "cat /etc/shadow",
    "host ssh": "ls /etc/ssh",
    "root's home": "ls /root",
    "new user namespace": "unshare -U true",
    "new mount namespace": "unshare -m true",
    "mount": "mount -t tmpfs x /tmp",
    "chroot": "chroot /workspace true",
    "make a device": "mknod /workspace/d b 8 0",
    "read init's memory": "head -c 1 /proc/1/mem",
    "init's environment": "cat /proc/1/environ",
    "init's descriptors": "ls /proc/1/fd",
    "trace init": "python3 -c \"import ctypes,sys; sys.exit(ctypes.CDLL(None).ptrace(16, 1, 0, 0) and 1)\"",
    "raw sockets": "python3 -c \"import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)\"",
    "vsock": "python3 -c \"import socket; socket.socket(40, socket.SOCK_STREAM)\"",
    "the network": "timeout 3 bash -c '</dev/tcp/192.0.2.1/80'",
    "bpf": "python3 -c \"import ctypes,sys; sys.exit(ctypes.CDLL(None).syscall(321, 0, 0, 0) and 1)\"",
    "keyring": "python3 -c \"import ctypes,sys; sys.exit(ctypes.CDLL(None).syscall(250, 0, -3, 1) < 0 and 1)\"",
    "a setuid program": "su -c true",
    "change host name": "hostname x",
    "set the clock": "date -s 2001-01-01",
    "kernel log": "dmesg",
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(inside, name):
    code, out, _ = inside.run(REFUSED[name])
    assert code not in (0, None), out


EMPTY = ["/proc/kallsyms", "/proc/keys", "/proc/timer_list", "/proc/cmdline"]


@pytest.mark.parametrize("path", EMPTY)
def test_masked(inside, path):
    if os.path.exists(path):
        assert inside.run(f"wc -c < {path}")[1] == "0"


def test_identity(inside):
    assert inside.run("id -u; id -g; id -un; hostname; cat /proc/self/status | grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):'")[1].split() == [
        "1000", "1000", "sandbox", "sandbox", "CapEff:", "0000000000000000", "CapBnd:", "0000000000000000", "NoNewPrivs:", "1", "Seccomp:", "2"]


def test_only_what_belongs_there(inside):
    assert inside.run("ls -A /")[1].split() == [name for name in (
        "bin dev etc home lib lib32 lib64 libx32 proc run sbin tmp usr var workspace").split() if name in (
        "dev etc home proc run tmp usr var workspace".split()) or os.path.lexists("/" + name)]
    assert inside.run("ls -A /home /run /var /tmp /home/sandbox /workspace")[1].split("\n") == [
        "/home:", "sandbox", "", "/home/sandbox:", "", "/run:", "sandkeep", "", "/tmp:", "", "/var:", "tmp", "", "/workspace:"]


def test_host_secrets_are_unreadable(inside, daemon, tmp_path):
    """A root-only file of the host, by every path that could lead to it."""
    secret = tmp_path / "secret"
    secret.write_text("host secret")
    secret.chmod(0o600)
    for path in (str(secret), f"/proc/1/root{secret}", f"/proc/self/root{secret}", f"/proc/1/cwd{secret}", str(daemon.data / "sandboxes")):
        assert inside.run(f"cat '{path}' 2>/dev/null; ls '{path}' 2>/dev/null")[1] == ""
    assert inside.execd("GET", f"/files/download?path={secret}").status == 404
    if os.geteuid() == 0:
        pid = daemon.record(inside.id)["initPid"]
        status = open(f"/proc/{pid}/status").read()
        uids = status.split("Uid:")[1].split("\n")[0].split()
        assert all(int(uid) >= 2000000 for uid in uids), "a sandbox must not be a user of the host"
        assert status.split("Groups:")[1].split("\n")[0].strip() == ""


def test_every_sandbox_has_its_own_host_user(daemon):
    if os.geteuid() != 0:
        pytest.skip("only as root")
    made = [daemon.create() for _ in range(3)]
    assert len({daemon.record(one.id)["uid"] for one in made}) == 3
    for one in made:
        one.delete()


def test_init_cannot_be_killed_from_inside(inside):
    inside.run("kill -9 1; kill -STOP 1; kill -TERM 1; kill -SEGV 1; kill -CHLD 1")
    assert inside.run("echo alive")[1] == "alive"


def test_host_processes_are_invisible(inside):
    assert inside.run(f"kill -0 {os.getpid()} 2>&1; ls -d /proc/[0-9]* | wc -l")[1].split("\n")[-1] < "9"
    assert os.path.exists(f"/proc/{os.getpid()}")


def test_tokens_do_not_reach_the_sandbox(inside, daemon):
    record = daemon.record(inside.id)
    text = inside.run("cat /proc/*/cmdline /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; env")[1]
    assert record["token"] not in text and record["nonce"] not in text and "test-key" not in text


def test_symlink_out_of_a_volume(daemon, tmp_path):
    """Links in a volume lead nowhere: not for the file API, not for a later mount of a sub path, not for deletion."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("host")
    volume = {"name": "w", "mountPath": "/workspace", "pvc": {"claimName": "evil"}}
    made = daemon.create(volumes=[volume])
    assert made.run(f"ln -s '{outside}' /workspace/out; ln -s / /workspace/root; ln -s /etc/passwd /workspace/etc; mkdir /workspace/ok")[0] == 0
    assert made.execd("GET", "/files/download?path=/workspace/out/file").status == 404
    assert made.execd("GET", "/files/download?path=/workspace/etc").body.startswith(b"root:x:0:0:root:/:")  # its own etc
    assert made.upload("/workspace/out/new", b"x").status in (404, 500)
    made.delete()
    for sub in ("out", "root", "root/etc", "etc", "etc/x", "out/new/er"):
        answer = daemon.request("POST", "/v1/sandboxes", {"image": {"uri": "x"}, "entrypoint": ["true"], "resourceLimits": {},
                                                          "volumes": [{**volume, "subPath": sub}]})
        assert (answer.status, answer.code) == (400, "VOLUME::INVALID_SUB_PATH"), answer.body
    answer = daemon.request("DELETE", "/v1/volumes/evil", key=None, headers={"Authorization": "Bearer test-key"})
    assert answer.status == 204
    assert (outside / "file").read_text() == "host"


def test_memory_bomb_is_bounded(daemon):
    made = daemon.create(resourceLimits={"cpu": "1", "memory": "128Mi"})
    code, out, _ = made.run("python3 -c \"x = bytearray(600 * 1024 * 1024); print(len(x))\"")
    assert code not in (0, None) and out == ""
    assert made.run("echo alive")[1] == "alive"
    code, _, _ = made.run("head -c 200000000 /dev/zero > /dev/shm/x")
    assert code not in (0, None)
    made.run("rm -f /dev/shm/x")
    assert made.state == "Running"
    made.delete()


def test_host_volumes_need_the_allow_list(make_daemon, tmp_path):
    allowed, secret = tmp_path / "allowed", tmp_path / "secret"
    allowed.mkdir()
    secret.mkdir()
    (allowed / "f").write_text("shared")
    (allowed / "out").symlink_to(secret)
    for folder in (tmp_path, allowed):
        folder.chmod(0o755)
    daemon = make_daemon(host_paths=str(allowed))
    host = lambda path: {"name": "h", "mountPath": "/data", "readOnly": True, "host": {"path": str(path)}}  # noqa: E731
    made = daemon.create(volumes=[host(allowed)])
    assert made.run("cat /data/f")[1] == "shared"
    assert made.run("ls /data/out/")[0] != 0
    for bad in (secret, allowed / "out", tmp_path):
        answer = daemon.request("POST", "/v1/sandboxes", {"image": {"uri": "x"}, "entrypoint": ["true"], "resourceLimits": {}, "volumes": [host(bad)]})
        assert (answer.status, answer.code) == (400, "VOLUME::HOST_PATH_NOT_ALLOWED"), answer.body


def test_pause_catches_everybody(daemon):
    made = daemon.create()
    made.events("for i in $(seq 40); do (while :; do :; done) & done; wait", background=True)
    made.events("setsid sh -c 'while :; do :; done'", background=True)
    pid = daemon.record(made.id)["initPid"]
    deadline = time.monotonic() + 10
    while len(members(pid)) < 42:
        assert time.monotonic() < deadline
    daemon.request("POST", f"/v1/sandboxes/{made.id}/pause")
    # The signal is there for all of them at once; a process that waits for a processor takes it when it gets one, before
    # it runs another instruction of its own.
    while {open(f"/proc/{p}/stat").read().rsplit(")", 1)[1].split()[0] for p in members(pid)} != {"T"}:
        assert time.monotonic() < deadline
    assert made.delete().status == 204
