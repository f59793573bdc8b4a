# SPDX-License-Identifier: Apache-2.0
"""The stack with its back ends only (NATS, Redis, Mongo-wire server): identity of processes, ports, data, locks."""
import json
import os
import signal
import socket
import subprocess
import time
import urllib.parse

import pymongo
import pytest
import redis
from conftest import BACK_ENDS, marked_pids

ONLY = ("--only", BACK_ENDS)


def port_of(url):
    return urllib.parse.urlsplit(url).port


def listeners(pid):
    """Local addresses (hex) on which a process listens."""
    inodes = set()
    for handle in os.listdir(f"/proc/{pid}/fd"):
        try:
            inodes.add(os.readlink(f"/proc/{pid}/fd/{handle}"))
        except OSError:
            continue
    out = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in open(table).read().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                out.add(fields[1].split(":")[0])
    return out


def test_up_down_and_up_again_keeps_ports_and_data(clone):
    shown = clone.run("up", *ONLY).stdout
    assert "nats" in shown and "mongodb://127.0.0.1:" in shown
    before = clone.env()
    redis.Redis.from_url(before["SANDKEEP_REDIS_URL"]).set("kept", "yes")
    pymongo.MongoClient(before["SANDKEEP_MONGODB_URI"]).get_default_database().kept.insert_one({"_id": 1})

    clone.run("down")
    assert marked_pids(clone) == []
    assert {row["state"] for row in clone.status().values()} == {"down"}

    clone.run("up", *ONLY)
    assert clone.env() == before
    assert redis.Redis.from_url(before["SANDKEEP_REDIS_URL"]).get("kept") == b"yes"
    assert pymongo.MongoClient(before["SANDKEEP_MONGODB_URI"]).get_default_database().kept.count_documents({}) == 1


def test_up_twice_changes_nothing(clone):
    clone.run("up", *ONLY)
    pids = clone.pids()
    clone.run("up", *ONLY)
    assert clone.pids() == pids
    assert sorted(marked_pids(clone)) == sorted(pids.values())


def test_everything_listens_on_loopback_only(clone):
    clone.run("up", *ONLY)
    for name, pid in clone.pids().items():
        found = listeners(pid)
        assert found, name
        assert found <= {"0100007F", "00000000000000000000000001000000"}, (name, found)


def test_status_tells_what_is_down_and_up_brings_it_back(clone):
    clone.run("up", *ONLY)
    pids = clone.pids()
    clone.run("kill", "redis")
    rows = clone.status()
    assert rows["redis"]["state"] == "down" and rows["redis"]["pid"] is None
    assert clone.run("status", expect=3).returncode == 3
    time.sleep(0.5)  # nothing restarts it meanwhile
    assert clone.status()["redis"]["state"] == "down"
    clone.run("up", *ONLY)
    after = clone.pids()
    assert after["redis"] != pids["redis"]
    assert {name: after[name] for name in ("nats", "mongo")} == {name: pids[name] for name in ("nats", "mongo")}
    assert clone.run("kill", "nobody", expect=1).stderr.startswith("stack: there is no member")


def test_restart_replaces_one_process(clone):
    clone.run("up", *ONLY)
    pids = clone.pids()
    clone.run("restart", "nats")
    after = clone.pids()
    assert after["nats"] not in (None, pids["nats"])
    assert after["redis"] == pids["redis"]
    clone.run("kill", "nats")
    clone.run("restart", "nats")
    assert clone.status()["nats"]["state"] == "up"


def test_up_after_kill_9_of_everything(clone):
    """What a reboot leaves: no process, the same files."""
    clone.run("up", *ONLY)
    url = clone.env()["SANDKEEP_MONGODB_URI"]
    pymongo.MongoClient(url).get_default_database().kept.insert_one({"_id": 1})
    for pid in clone.pids().values():
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while any(row["state"] != "down" for row in clone.status().values()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    clone.run("up", *ONLY)
    assert clone.env()["SANDKEEP_MONGODB_URI"] == url
    assert pymongo.MongoClient(url).get_default_database().kept.count_documents({}) == 1


def test_a_port_taken_meanwhile_is_changed_and_only_that_one(clone):
    clone.run("up", *ONLY)
    before = clone.env()
    clone.run("down")
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind(("127.0.0.1", port_of(before["SANDKEEP_REDIS_URL"])))
        thief.listen()
        clone.run("up", *ONLY)
        after = clone.env()
        assert after["SANDKEEP_REDIS_URL"] != before["SANDKEEP_REDIS_URL"]
        assert after["SANDKEEP_NATS_URL"] == before["SANDKEEP_NATS_URL"]
        assert redis.Redis.from_url(after["SANDKEEP_REDIS_URL"]).ping()


def test_a_recycled_pid_is_never_signalled(clone):
    clone.run("up", *ONLY)
    clone.run("kill", "redis")
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        path = clone.folder / ".local" / "stack.json"
        state = json.loads(path.read_text())
        state["members"]["redis"]["pid"] = stranger.pid  # as if the pid had been given out again
        path.write_text(json.dumps(state))
        assert clone.status()["redis"]["state"] == "down"
        clone.run("kill", "redis", expect=1)
        clone.run("down")
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_two_clones_side_by_side(make_clone):
    first, second = make_clone("one"), make_clone("the other one")
    starts = [subprocess.Popen([str(c.folder / "deploy/local/stack"), "up", *ONLY], env=c.environment, stdout=subprocess.DEVNULL)
              for c in (first, second)]
    assert [start.wait(120) for start in starts] == [0, 0]
    assert not set(first.env().values()) & set(second.env().values())
    kept = second.pids()
    first.run("down")
    assert second.pids() == kept
    assert {row["state"] for row in second.status().values()} == {"up"}


def test_concurrent_ups_of_one_clone_start_one_set(clone):
    starts = [subprocess.Popen([str(clone.folder / "deploy/local/stack"), "up", *ONLY], env=clone.environment,
                               stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [start.wait(120) for start in starts] == [0] * 4
    assert sorted(marked_pids(clone)) == sorted(clone.pids().values())


def test_an_interrupted_up_leaves_nothing_that_down_does_not_find(clone):
    start = subprocess.Popen([str(clone.folder / "deploy/local/stack"), "up", *ONLY], env=clone.environment,
                             stdout=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 20
    while not marked_pids(clone):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    start.kill()
    start.wait()
    # Forget what was written down, as if the kill had come before the write.
    path = clone.folder / ".local" / "stack.json"
    state = json.loads(path.read_text())
    state["members"] = {}
    path.write_text(json.dumps(state))
    clone.run("down")
    assert marked_pids(clone) == []


def test_external_server_is_used_and_left_alone(make_clone):
    owner, user = make_clone("owner"), make_clone("user")
    owner.run("up", "--only", "redis")
    url = owner.env()["SANDKEEP_REDIS_URL"]
    user.run("up", *ONLY, SANDKEEP_REDIS_URL=url)
    rows = user.status()
    assert rows["redis"]["state"] == "external" and rows["redis"]["address"] == url and rows["redis"]["pid"] is None
    assert user.env()["SANDKEEP_REDIS_URL"] == url
    user.run("status")  # exit 0: all that should run here does
    user.run("restart", "redis", expect=1)
    user.run("down")
    assert redis.Redis.from_url(url).ping()


def test_own_addresses_in_the_shell_do_not_make_the_stack_external(clone):
    """eval "$(stack env)"; stack up."""
    clone.run("up", *ONLY)
    clone.run("up", *ONLY, **clone.env())
    assert {row["state"] for row in clone.status().values()} == {"up"}
    exported = clone.env()
    clone.run("down")
    clone.run("up", *ONLY, **exported)
    assert {row["state"] for row in clone.status().values()} == {"up"}


def test_purge_removes_everything(clone):
    clone.run("up", *ONLY)
    state_id = clone.state["id"]
    clone.run("down", "--purge")
    assert not (clone.folder / ".local").exists()
    assert clone.run("status", expect=3).stdout.strip() == "the stack was never started"
    clone.run("up", *ONLY)
    assert clone.state["id"] != state_id


def test_purge_leaves_foreign_files(clone):
    clone.run("up", "--only", "redis")
    (clone.folder / ".local" / "mine.txt").write_text("keep")
    clone.run("down", "--purge")
    assert (clone.folder / ".local" / "mine.txt").read_text() == "keep"
    assert [entry.name for entry in (clone.folder / ".local").iterdir()] == ["mine.txt"]


def test_state_dir_elsewhere(clone, tmp_path):
    elsewhere = tmp_path / "state of it"
    clone.run("up", "--only", "redis", SANDKEEP_STATE_DIR=str(elsewhere))
    assert (elsewhere / "stack.json").exists() and not (clone.folder / ".local").exists()
    assert (elsewhere / "stack.json").stat().st_mode & 0o777 == 0o600  # it holds the key
    clone.run("down", "--purge", SANDKEEP_STATE_DIR=str(elsewhere))
    assert not elsewhere.exists()


@pytest.mark.parametrize("arguments", [["up", "--scale", "lifecycle"], ["up", "--scale", "lifecycle=x"], ["frobnicate"], ["kill"], []])
def test_usage_errors(clone, arguments):
    assert clone.run(*arguments, expect=2).stderr


def test_missing_program_is_named_before_anything_starts(clone, tmp_path):
    done = clone.run("up", expect=1, SANDKEEP_BIN_DIR=str(tmp_path))
    assert "sk-localbox does not exist: run make build" in done.stderr
    assert marked_pids(clone) == []


def test_a_broken_server_is_shown_with_its_log(clone):
    clone.run("up", "--only", "redis")
    clone.run("down")
    (clone.folder / ".local/data/redis/appendonlydir/appendonly.aof.manifest").write_text("nonsense\n")
    done = clone.run("up", "--only", "redis", expect=1)
    assert "redis ended with status" in done.stderr and "AOF" in done.stderr
    assert clone.status()["redis"]["state"] == "down"


def test_logs_shows_the_end_of_each_log(clone):
    clone.run("up", *ONLY)
    assert "Ready to accept connections" in clone.run("logs", "redis").stdout
    assert "==> nats <==" in clone.run("logs", "-n", "3").stdout
