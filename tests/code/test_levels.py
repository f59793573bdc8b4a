# SPDX-License-Identifier: Apache-2.0
"""Which level of isolation is measured in which surroundings: the pods of docs/code-sandbox.md, imitated with setpriv and user
namespaces. Where this machine cannot imitate one (no user namespaces, Landlock too old), its row skips."""
import ctypes
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading

import pytest
from code_server import CodeServer, PROGRAMS, bin_dir, status_bytes, why_not

NOT_ROOT = 65534
DOCKER = "chown,dac_override,fowner,fsetid,kill,setgid,setuid,setpcap,net_bind_service,net_raw,sys_chroot,mknod,audit_write,setfcap"
# A process in a user namespace with 65536 users, as Kubernetes makes it for a pod with hostUsers: false.
POD = """import ctypes, os, sys
ready, mapped = os.pipe(), os.pipe()
me, first = os.getpid(), sys.argv[1]
if os.fork() == 0:
    os.read(ready[0], 1)
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/{me}/{name}", "w") as file:
            file.write(f"0 {first} 65536")
    os.write(mapped[1], b"x")
    os._exit(0)
if ctypes.CDLL(None).unshare(0x10000000) != 0:
    sys.exit(77)
os.write(ready[1], b"x")
os.read(mapped[0], 1)
os.wait()
os.setgroups([])
os.setgid(0)
os.setuid(0)
os.execvp(sys.argv[2], sys.argv[2:])
"""


def landlock():
    return ctypes.CDLL(None).syscall(444, None, 0, 1)


def capabilities(names):
    kept = ",".join(f"+{name}" for name in names.split(","))
    return ["setpriv", f"--bounding-set=-all,{kept}", "--inh-caps=-all", "--no-new-privs"]


ORDINARY_USER = ["setpriv", f"--reuid={NOT_ROOT}", f"--regid={NOT_ROOT}", "--clear-groups", "--no-new-privs"]
POD_USERS = [sys.executable, "-c", POD, "800000000"]
# What an ordinary pod does not see of /proc: in a user namespace below it no new one can be mounted. And no control groups.
MASKED = ["unshare", "--mount", "--propagation", "private", "sh", "-c",
          'mount -t tmpfs -o ro tmpfs /proc/acpi && for one in /sys/fs/cgroup /sys/fs/cgroup/*; do mount -o remount,ro,bind "$one" 2>/dev/null; done; exec "$@"', "sh"]
# name: (command in front, level, whether user namespaces are needed)
SURROUNDINGS = {
    "root": ([], "full", False),
    "ordinary container": (capabilities(DOCKER), "full", True),
    "three capabilities": (capabilities("setuid,setgid,setfcap"), "full", True),
    "four capabilities, no user namespace": (capabilities("setuid,setgid,kill,sys_chroot"), "container", False),
    "pod with users of its own": ([*POD_USERS], "full", True),
    "pod with users of its own and a masked /proc": ([*MASKED, *POD_USERS], "full", True),
    "pod with users of its own, three capabilities": ([*POD_USERS, *capabilities("setuid,setgid,setfcap")], "full", True),
    "ordinary user": (ORDINARY_USER, "shared-uid", False),
}


@pytest.fixture
def folder():
    """Programs that everybody can reach, and a wrapper in sk-code's place."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="sandkeep-code-levels-") as made:
        made = pathlib.Path(made)
        made.chmod(0o755)
        for name in PROGRAMS:
            shutil.copy2(bin_dir() / name, made / (name if name != "sk-code" else "real"))
        (made / "inner").mkdir(mode=0o755)
        for name in PROGRAMS[1:]:
            os.link(made / name, made / "inner" / name)
        os.link(made / "real", made / "inner" / "sk-code")
        yield made


def wrap(folder, command):
    script = "#!/usr/bin/env python3\nimport os\ncommand = %r\nos.execvp(command[0], command)\n" % ([*command, str(folder / "inner" / "sk-code")],)
    (folder / "sk-code").write_text(script)
    (folder / "sk-code").chmod(0o755)


def needs(name, users):
    if "masked" in name and not os.path.isdir("/proc/acpi"):
        pytest.skip("nothing in /proc to mask")
    if users and int(pathlib.Path("/proc/sys/user/max_user_namespaces").read_text()) == 0:
        pytest.skip("no user namespaces here")
    if name == "ordinary user" and landlock() < 6:
        pytest.skip("Landlock is too old to hold tasks of one user apart")


SHAPES = "function main() { const a = []; let i = 0; for (;;) { const o = {}; for (let k = 0; k < 30; k++) o['k' + i++] = 1; a.push(o) } }"


def peak_of(server, code):
    """(answer, largest resident memory of its task that was seen) of JavaScript."""
    answer, peak = [], 0
    thread = threading.Thread(target=lambda: answer.append(server.run("js", code, timeoutMs=30000, timeout=90)))
    thread.start()
    while thread.is_alive():
        peak = max([peak, *(status_bytes(pid, "VmRSS") for pid in server.tasks())])
    thread.join()
    return answer[0], peak


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_level(folder, name):
    command, level, users = SURROUNDINGS[name]
    needs(name, users)
    wrap(folder, command)
    settings = {"SANDBOX_POOL_SIZE": 2, "SANDBOX_ALLOW_UNSAFE": "true" if level == "shared-uid" else None}
    if "pod with users" in name:
        settings["SANDKEEP_CODE_UID_BASE"] = 10000
    if level == "shared-uid" or "pod with users" in name:
        (folder / "run").mkdir()
        (folder / "run").chmod(0o777)
        settings.update({"SANDKEEP_CODE_RUN_DIR": folder / "run", "SANDKEEP_CODE_PORT_FILE": folder / "run/port",
                         "SANDKEEP_CODE_ADMIN_PORT_FILE": folder / "run/admin-port"})
    server = CodeServer(settings, bin_dir=folder)
    server._port = lambda which, plain=server._port: plain(os.path.join(folder / "run", which)) if "SANDKEEP_CODE_RUN_DIR" in settings else plain(which)
    with server:
        assert server.health()[1]["isolation"] == level
        assert server.value("js", "function main() { return 1 }") == 1
        assert server.value("python", "import numpy\ndef main():\n    return numpy.int64(2)") == 2
        # Files of tasks are there at level full only; everywhere they are told so, not lied to.
        status, body = server.run("python", "def main():\n    with open(f'{task_tmpdir}/x', 'w') as f:\n        f.write('a')\n    return open(f'{task_tmpdir}/x').read()")
        assert (status, body["success"]) == (200, level == "full"), body
        # An engine reserves address space that the rlimits allow: what is used of it is looked at.
        answer, peak = peak_of(server, SHAPES)
        assert answer[1]["data"]["error"]["code"] == "memory" and peak < 500 << 20, (answer, peak >> 20)  # 360 and what it gets between two looks
        _, body = server.run("python", "import platform\ndef main():\n    return platform.os.listdir('/')")
        assert not body["success"] or "home" not in body["data"]["codeReturn"], body


@pytest.mark.parametrize("name", ["ordinary user", "root without a level"])
def test_no_level_no_service(folder, name):
    """Without SANDBOX_ALLOW_UNSAFE nothing is served below container; with no usable level nothing at all."""
    command = ORDINARY_USER if name == "ordinary user" else capabilities("setuid,setgid,kill")
    (folder / "run").mkdir()
    (folder / "run").chmod(0o777)
    environment = {"PATH": "/usr/bin:/bin", "SANDBOX_PORT": "0", "SANDBOX_TOKEN": "t", "SANDKEEP_CODE_RUN_DIR": str(folder / "run"), "SANDKEEP_CODE_UID_BASE": "399000000",
                   "SANDKEEP_CODE_PORT_FILE": str(folder / "run/port")}
    done = subprocess.run([*command, folder / "inner" / "sk-code"], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    told = [json.loads(line) for line in done.stderr.splitlines()]
    assert any("no level of isolation that may serve" in line.get("error.message", "") for line in told)
