# SPDX-License-Identifier: Apache-2.0
"""The whole stack: services, replicas, sandboxes."""
import contextlib
import ctypes
import fcntl
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request

import pytest
from conftest import default_bin_dir, marked_pids

ALL = {"nats", "redis", "mongo", "localbox", "code", "lifecycle-1", "lifecycle-2"}
PROGRAMS = ("sk-lifecycle", "sk-localbox", "sk-init", "sk-code", "sk-code-js", "sk-code-python")
SCRIPT = "function main({a}) { return {twice: 2 * a} }"


@pytest.fixture
def up(clone):
    clone.environment["SANDKEEP_STACK_PROFILE"] = "fast"
    clone.run("up")
    return clone


def skctl(clone, *arguments, expect=0):
    done = subprocess.run([default_bin_dir() / "skctl", *arguments], env={**clone.environment, **clone.env()}, capture_output=True, text=True, timeout=120,
                          check=False)
    assert done.returncode == expect, done.stderr
    return done


def run_code(clone, a=21):
    """What the code sandbox of this stack makes of a number."""
    done = subprocess.run([default_bin_dir() / "skctl", "code", "js", "-", "--vars", json.dumps({"a": a})], input=SCRIPT, env={**clone.environment, **clone.env()},
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["twice"]


def parent(pid):
    return int(re.search(r"^PPid:\s*(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M)[1])


def users(first, count=1300):
    """Pids of all that runs as one of these users."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "status").read_text()
            except OSError:
                continue
            uid = int(re.search(r"^Uid:\s*(\d+)", status, re.M)[1])
            if "State:\tZ" not in status and first <= uid < first + count:
                found.append(int(entry.name))
    return found


def sandbox_inits(clone):
    """Process 1 of each sandbox, as sk-localbox's records name it, when that process lives."""
    found = []
    for record in (clone.folder / ".local/data/localbox/sandboxes").glob("*/record.json"):
        pid = json.loads(record.read_text()).get("initPid")
        if pid and pathlib.Path(f"/proc/{pid}/comm").exists():
            found.append(pid)
    return found


def test_all_members_and_their_addresses(up):
    rows = up.status()
    assert set(rows) == ALL and {row["state"] for row in rows.values()} == {"up"}
    environment = up.env()
    for name in ("SANDKEEP_NATS_URL", "SANDKEEP_MONGODB_URI", "SANDKEEP_REDIS_URL", "SANDKEEP_LOCALBOX_URL", "SANDKEEP_LOCALBOX_KEY",
                 "SANDKEEP_LIFECYCLE_ADMIN_URL", "SANDKEEP_LIFECYCLE_1_ADMIN_URL", "SANDKEEP_LIFECYCLE_2_ADMIN_URL", "SANDKEEP_LOCALBOX_ADMIN_URL",
                 "SANDKEEP_CODE_URL", "SANDKEEP_CODE_TOKEN", "SANDKEEP_CODE_ADMIN_URL"):
        assert environment[name]
    assert environment["SANDKEEP_LIFECYCLE_ADMIN_URL"] == environment["SANDKEEP_LIFECYCLE_1_ADMIN_URL"]
    assert environment["SANDKEEP_MONGODB_URI"].endswith("/fastgpt")
    for name in ("SANDKEEP_LIFECYCLE_1_ADMIN_URL", "SANDKEEP_LIFECYCLE_2_ADMIN_URL", "SANDKEEP_LOCALBOX_ADMIN_URL", "SANDKEEP_CODE_ADMIN_URL"):
        for page in ("livez", "readyz", "metrics"):
            assert urllib.request.urlopen(f"{environment[name]}/{page}", timeout=10).status == 200
    shell = subprocess.run(["bash", "-c", 'eval "$("$0" env)"; printf %s "$SANDKEEP_NATS_URL"', str(up.folder / "deploy/local/stack")], text=True,
                           env=up.environment, capture_output=True, check=True)
    assert shell.stdout == environment["SANDKEEP_NATS_URL"]


def test_every_metric_of_the_operations_page_exists(up):
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()
    documented = set(re.findall(r"\bsandkeep_[a-z_]+\b", page))
    environment, scraped = up.env(), ""
    for name in ("SANDKEEP_LIFECYCLE_1_ADMIN_URL", "SANDKEEP_LOCALBOX_ADMIN_URL", "SANDKEEP_CODE_ADMIN_URL"):
        scraped += urllib.request.urlopen(f"{environment[name]}/metrics", timeout=10).read().decode()
    existing = set(re.findall(r"^# TYPE (\S+)", scraped, re.M))
    for name in re.findall(r"^# TYPE (\S+) histogram", scraped, re.M):
        existing |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    assert documented and documented <= existing, documented - existing


@pytest.mark.parametrize("name,program", [("lifecycle-1", "sk-lifecycle"), ("lifecycle-2", "sk-lifecycle"), ("localbox", "sk-localbox"), ("code", "sk-code")])
def test_the_environment_of_a_service_passes_its_own_check(up, name, program):
    done = subprocess.run([default_bin_dir() / program, "--check-config"], env=up.env("--service", name), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_scale_adjusts_a_running_stack_and_leaves_the_rest_alone(up):
    before = up.pids()
    up.run("up", "--scale", "lifecycle=3")
    more = up.pids()
    assert set(more) == ALL | {"lifecycle-3"} and {name: more[name] for name in ALL} == before
    up.run("up")  # the scale is remembered
    assert up.pids() == more
    up.run("up", "--scale", "lifecycle=1")
    fewer = up.pids()
    assert set(fewer) == ALL - {"lifecycle-2"} and all(fewer[name] == before[name] for name in fewer)
    # The code sandbox is two processes: the one that was started, and the one that talks to clients.
    assert sorted(pid for pid in marked_pids(up) if parent(pid) != fewer["code"]) == sorted(fewer.values())


@pytest.fixture
def code(clone):
    clone.run("up", "--only", "code")
    return clone


def test_the_code_sandbox_is_killed_and_comes_back_as_it_was(code):
    assert run_code(code) == 42
    environment, first = code.env(), code.state["uid_base"]
    assert int(code.env("--service", "code")["SANDKEEP_CODE_UID_BASE"]) == first and users(first)
    code.run("kill", "code")
    assert code.status()["code"]["state"] == "down"
    code.run("restart", "code")
    assert code.env() == environment and code.state["uid_base"] == first and run_code(code) == 42
    code.run("kill", "code")
    code.run("down")
    assert users(first) == [] and marked_pids(code) == []


@pytest.mark.parametrize("purge", [[], ["--purge"]], ids=["down", "purge"])
def test_a_killed_code_sandbox_leaves_no_folder_after_down(clone, tmp_path, purge):
    run = tmp_path / "run"
    run.mkdir()
    clone.run("up", "--only", "code", SANDKEEP_CODE_RUN_DIR=str(run))
    pid = clone.pids()["code"]
    assert [folder.name.startswith(f"sandkeep-code-{pid}-") for folder in run.iterdir()] == [True]
    others = run / f"sandkeep-code-{pid}-aaaaaa", run / f"sandkeep-code-{pid + 1}-aaaaaa", run / f"sandkeep-code-{pid}-bbbbbb"
    for folder in others:
        folder.mkdir()
    (others[2] / "file").touch()
    clone.run("kill", "code")
    with contextlib.ExitStack() as held:
        lock = os.open(others[0], os.O_RDONLY)
        held.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)  # of another launcher, to which the pid was given meanwhile
        clone.run("down", *purge)
    assert sorted(run.iterdir()) == sorted(others)


def test_the_code_sandbox_takes_its_settings_and_no_others(code):
    environment = code.env("--service", "code")
    assert environment["SANDBOX_HOST"] == "127.0.0.1" and "SANDKEEP_LOCALBOX_KEY" not in environment
    code.run("down")
    code.run("up", "--only", "code", SANDBOX_MAX_TIMEOUT="1234", SANDBOX_PORT="1", SANDKEEP_LOCALBOX_KEY="secret", AGENT_SANDBOX_OPENSANDBOX_API_KEY="secret")
    environment = code.env("--service", "code")
    assert environment["SANDBOX_MAX_TIMEOUT"] == "1234" and environment["SANDBOX_PORT"] != "1" and "secret" not in environment.values()
    seen = pathlib.Path(f"/proc/{code.pids()['code']}/environ").read_bytes()
    assert b"secret" not in seen and environment["SANDBOX_TOKEN"].encode() not in seen  # a launcher forgets what is its host's


def test_users_of_others_are_not_taken(code):
    """A process that runs as one of our users meanwhile: another block is chosen, as with ports."""
    first = code.state["uid_base"]
    code.run("down")
    with subprocess.Popen(["sleep", "1000"], user=first + 7, group=first + 7, extra_groups=[]) as stranger:
        try:
            code.run("up", "--only", "code")
            assert abs(code.state["uid_base"] - first) >= 1300 and run_code(code) == 42
        finally:
            stranger.kill()


def test_a_code_sandbox_of_others_is_used_and_left_alone(code, make_clone):
    user, environment = make_clone("user"), code.env()
    user.run("up", "--only", "redis", SANDKEEP_CODE_URL=environment["SANDKEEP_CODE_URL"], SANDKEEP_CODE_TOKEN=environment["SANDKEEP_CODE_TOKEN"])
    assert user.status()["code"]["state"] == "external"
    assert run_code(user) == 42 and "SANDKEEP_CODE_ADMIN_URL" not in user.env()
    user.run("down")
    assert run_code(code) == 42


def test_without_root_there_is_no_code_sandbox_unless_asked_for(clone, tmp_path):
    """As an ordinary user: refused with the reason; with SANDBOX_ALLOW_UNSAFE it serves, and says at which level."""
    for folder in (clone.folder, *clone.folder.parents):
        if folder.stat().st_uid == 0 and not folder.stat().st_mode & 1:
            folder.chmod(folder.stat().st_mode | 0o011)  # pytest makes folders for their owner alone
    for path in (clone.folder, *clone.folder.rglob("*")):
        os.chown(path, 65534, 65534)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in PROGRAMS:
        shutil.copy2(default_bin_dir() / name, programs / name)
    programs.chmod(0o755)

    def stack(*arguments, **environment):
        return subprocess.run([shutil.which("python3", path="/usr/bin"), str(clone.folder / "deploy/local/stack"), *arguments], capture_output=True, text=True, check=False,
                              env={"PATH": "/usr/bin:/bin", "HOME": "/", "SANDKEEP_BIN_DIR": str(programs), **environment}, user=65534, group=65534,
                              extra_groups=[], timeout=120)

    done = stack("up", "--only", "code")
    assert done.returncode == 1 and "only root" in done.stderr and "SANDBOX_ALLOW_UNSAFE" in done.stderr
    done = stack("up", "--only", "code", SANDBOX_ALLOW_UNSAFE="true")
    if ctypes.CDLL(None).syscall(444, None, 0, 1) < 6:  # Landlock cannot hold tasks of one user apart: not even then
        assert done.returncode == 1 and "shared-uid" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    try:
        environment = json.loads(stack("env", "--json").stdout)
        health = json.loads(urllib.request.urlopen(environment["SANDKEEP_CODE_URL"] + "/health", timeout=10).read())
        assert health["isolation"] == "shared-uid" and health["status"] == "ok"
    finally:
        assert stack("down").returncode == 0


def test_a_killed_replica_stays_down_until_asked_for(up):
    up.run("kill", "lifecycle-1")
    assert up.status()["lifecycle-1"]["state"] == "down"
    assert skctl(up, "ensure", "--app=a", "--user=u", "--json")  # the other one does the work
    up.run("restart", "lifecycle-1")
    assert up.status()["lifecycle-1"]["state"] == "up"
    up.run("kill", "lifecycle-2")
    up.run("up")
    assert {row["state"] for row in up.status().values()} == {"up"}


def test_sandboxes_survive_a_restart_of_localbox_and_end_with_down(up):
    skctl(up, "ensure", "--app=a", "--user=u")
    skctl(up, "exec", "--app=a", "--user=u", "--", "echo kept >/workspace/file; (sleep 1000 &)")
    up.run("restart", "localbox")
    assert skctl(up, "exec", "--app=a", "--user=u", "--", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -q 'sleep 1000'; echo $?").stdout == "0\n"
    up.run("kill", "localbox")
    (init,) = sandbox_inits(up)
    up.run("down")
    deadline = time.monotonic() + 10
    while pathlib.Path(f"/proc/{init}").exists():
        assert time.monotonic() < deadline, "a sandbox outlived down"
        time.sleep(0.1)
    assert marked_pids(up) == []
    up.run("up")
    skctl(up, "ensure", "--app=a", "--user=u")
    assert skctl(up, "exec", "--app=a", "--user=u", "--", "cat /workspace/file").stdout == "kept\n"


def test_services_follow_when_an_address_has_to_move(up):
    """Redis comes back elsewhere: whoever talks to it is restarted, the rest is not."""
    before, address = up.pids(), up.env()["SANDKEEP_REDIS_URL"]
    up.run("kill", "redis")
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind(("127.0.0.1", urllib.parse.urlsplit(address).port))
        thief.listen()
        up.run("up")
    after = up.pids()
    assert up.env()["SANDKEEP_REDIS_URL"] != address
    assert {name for name in after if after[name] == before[name]} == {"nats", "mongo", "localbox", "code"}
    skctl(up, "ensure", "--app=a", "--user=u")


def test_a_rebuilt_program_is_restarted_by_up(up, tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in PROGRAMS:
        shutil.copy2(default_bin_dir() / name, programs / name)
    up.environment["SANDKEEP_BIN_DIR"] = str(programs)
    up.run("up")
    before = up.pids()
    up.run("up")
    assert up.pids() == before
    shutil.copy2(programs / "sk-lifecycle", programs / "new")
    os.replace(programs / "new", programs / "sk-lifecycle")
    up.run("up")
    after = up.pids()
    assert {name for name in after if after[name] != before[name]} == {"lifecycle-1", "lifecycle-2"}
    shutil.copy2(programs / "sk-code-js", programs / "new")  # what it starts itself counts, too
    os.replace(programs / "new", programs / "sk-code-js")
    up.run("up")
    assert {name for name, pid in up.pids().items() if pid != after[name]} == {"code"}


def test_two_whole_stacks_side_by_side(make_clone):
    first, second = make_clone("one"), make_clone("two")
    for clone in (first, second):
        clone.environment["SANDKEEP_STACK_PROFILE"] = "fast"
        clone.run("up")
    skctl(first, "ensure", "--app=a", "--user=u")
    skctl(second, "get", "--app=a", "--user=u", expect=3)
    assert [run_code(clone) for clone in (first, second)] == [42, 42]
    assert abs(first.state["uid_base"] - second.state["uid_base"]) >= 1300
    first.run("down")
    assert users(first.state["uid_base"]) == [] and run_code(second) == 42
    assert {row["state"] for row in second.status().values()} == {"up"}
    skctl(second, "ensure", "--app=a", "--user=u")


def test_the_tour(up):
    """make demo without its installing and building; twice, because it must leave nothing behind."""
    (up.folder / "examples").symlink_to(pathlib.Path(__file__).resolve().parents[2] / "examples")
    for _ in range(2):
        done = subprocess.run([up.folder / "deploy/local/tour"], env=up.environment, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        for number in range(1, 13):
            assert f"\n{number}. " in done.stdout
    assert json.loads(skctl(up, "list", "--json").stdout)["items"] == []
    volumes = up.folder / ".local/data/localbox/volumes"
    assert [name for name in os.listdir(volumes) if "app-" in name] == []


def test_the_tour_fails_when_something_is_wrong(up):
    up.run("kill", "lifecycle-2")
    done = subprocess.run([up.folder / "deploy/local/tour"], env=up.environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1 and "not everything is up" in done.stderr
