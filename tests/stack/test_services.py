# SPDX-License-Identifier: Apache-2.0
"""The whole stack: services, replicas, sandboxes."""
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

ALL = {"nats", "redis", "mongo", "localbox", "lifecycle-1", "lifecycle-2"}


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
                 "SANDKEEP_LIFECYCLE_ADMIN_URL", "SANDKEEP_LIFECYCLE_1_ADMIN_URL", "SANDKEEP_LIFECYCLE_2_ADMIN_URL", "SANDKEEP_LOCALBOX_ADMIN_URL"):
        assert environment[name]
    assert environment["SANDKEEP_LIFECYCLE_ADMIN_URL"] == environment["SANDKEEP_LIFECYCLE_1_ADMIN_URL"]
    assert environment["SANDKEEP_MONGODB_URI"].endswith("/fastgpt")
    for name in ("SANDKEEP_LIFECYCLE_1_ADMIN_URL", "SANDKEEP_LIFECYCLE_2_ADMIN_URL", "SANDKEEP_LOCALBOX_ADMIN_URL"):
        for page in ("livez", "readyz", "metrics"):
            assert urllib.request.urlopen(f"{environment[name]}/{page}", timeout=10).status == 200
    shell = subprocess.run(["bash", "-c", 'eval "$("$0" env)"; printf %s "$SANDKEEP_NATS_URL"', str(up.folder / "deploy/local/stack")], text=True,
                           env=up.environment, capture_output=True, check=True)
    assert shell.stdout == environment["SANDKEEP_NATS_URL"]


def test_every_metric_of_the_operations_page_exists(up):
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()
    documented = set(re.findall(r"\bsandkeep_[a-z_]+\b", page))
    environment, scraped = up.env(), ""
    for name in ("SANDKEEP_LIFECYCLE_1_ADMIN_URL", "SANDKEEP_LOCALBOX_ADMIN_URL"):
        scraped += urllib.request.urlopen(f"{environment[name]}/metrics", timeout=10).read().decode()
    existing = set(re.findall(r"^# TYPE (\S+)", scraped, re.M))
    for name in re.findall(r"^# TYPE (\S+) histogram", scraped, re.M):
        existing |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    assert documented and documented <= existing, documented - existing


@pytest.mark.parametrize("name,program", [("lifecycle-1", "sk-lifecycle"), ("lifecycle-2", "sk-lifecycle"), ("localbox", "sk-localbox")])
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
    assert sorted(marked_pids(up)) == sorted(fewer.values())


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
    assert {name for name in after if after[name] == before[name]} == {"nats", "mongo", "localbox"}
    skctl(up, "ensure", "--app=a", "--user=u")


def test_a_rebuilt_program_is_restarted_by_up(up, tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sk-lifecycle", "sk-localbox", "sk-init"):
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


def test_two_whole_stacks_side_by_side(make_clone):
    first, second = make_clone("one"), make_clone("two")
    for clone in (first, second):
        clone.environment["SANDKEEP_STACK_PROFILE"] = "fast"
        clone.run("up")
    skctl(first, "ensure", "--app=a", "--user=u")
    skctl(second, "get", "--app=a", "--user=u", expect=3)
    first.run("down")
    assert {row["state"] for row in second.status().values()} == {"up"}
    skctl(second, "ensure", "--app=a", "--user=u")


def test_the_tour(up):
    """make demo without its installing and building; twice, because it must leave nothing behind."""
    (up.folder / "examples").symlink_to(pathlib.Path(__file__).resolve().parents[2] / "examples")
    for _ in range(2):
        done = subprocess.run([up.folder / "deploy/local/tour"], env=up.environment, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        for number in range(1, 7):
            assert f"\n{number}. " in done.stdout
    assert json.loads(skctl(up, "list", "--json").stdout)["items"] == []
    volumes = up.folder / ".local/data/localbox/volumes"
    assert [name for name in os.listdir(volumes) if "app-" in name] == []


def test_the_tour_fails_when_something_is_wrong(up):
    up.run("kill", "lifecycle-2")
    done = subprocess.run([up.folder / "deploy/local/tour"], env=up.environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1 and "not everything is up" in done.stderr
