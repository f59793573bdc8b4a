# SPDX-License-Identifier: Apache-2.0
"""skctl doctor on a real stack with quotas: what somebody broke by hand in the stores is found, and nothing else."""
import secrets

import bson
import pytest
from live import Site, ago, new_box, now
from waiting import eventually

TEAM = "team-of-doctor"


@pytest.fixture(scope="module")
def limited(tmp_path_factory):
    with Site(tmp_path_factory.mktemp("limited"), replicas=1, AGENT_SANDBOX_MAX="5", AGENT_SANDBOX_MAX_PER_TEAM="3",
              SANDKEEP_LIFECYCLE_QUOTA_RECOUNT_MS="3600000") as one:
        yield one


@pytest.fixture
def box(limited):
    one = new_box("doctor")
    limited.bus.run("ensure", one, params={"teamId": TEAM})
    limited.settle()
    assert limited.doctor() == []
    yield one
    limited.bus.run("delete", one)
    limited.gone(one)


def findings(site):
    return {(sandbox, invariant) for sandbox, invariant, _ in site.doctor()}


def test_slots(limited, box):
    slots = limited.db["sandkeep_quota"]
    stray = f"app-{secrets.token_hex(8)}"
    number = bson.Int64(77)
    slots.insert_one({"_id": f"global#{number:08}", "scope": "global", "slot": number, "held": f"global/{stray}", "holder": stray, "at": ago(hours=1)})
    assert findings(limited) == {(stray, "slot-leaked")}
    slots.delete_one({"holder": stray})
    mine = slots.find_one({"held": f"team:{TEAM}/{box.id}"})
    slots.update_one({"_id": mine["_id"]}, {"$unset": {"held": 1, "holder": 1}, "$set": {"free": mine["_id"], "at": now()}})
    assert findings(limited) == {(box.id, "slot-missing")}
    slots.replace_one({"_id": mine["_id"]}, mine)
    assert findings(limited) == set()


def test_leases(limited, box):
    name = f"fastgpt:lock:agent-sandbox:lifecycle:{box.id}"
    limited.redis.set(name, "somebody")
    assert findings(limited) == {(box.id, "lease-endless")}
    limited.redis.set(name, "somebody", px=600000)
    assert findings(limited) == {(box.id, "lease-idle")}
    limited.redis.delete(name)
    limited.redis.set("lock:agent-sandbox:lifecycle:of-another-prefix", "somebody")
    assert findings(limited) == set()
    limited.redis.delete("lock:agent-sandbox:lifecycle:of-another-prefix")


def test_an_event_that_is_missing(limited, box):
    stream = limited.bus.js

    async def drop():
        message = await stream.get_last_msg("SANDBOX_EVENTS", f"sandbox.evt.{box.id}.lifecycle.phase")
        assert await stream.delete_msg("SANDBOX_EVENTS", message.seq)
    eventually(lambda: limited.bus.heard(box.id, "lifecycle.completed"), 10)
    limited.bus.wait(drop())
    assert findings(limited) == {(box.id, "event-gap")}
    limited.bus.wait(stream.purge_stream("SANDBOX_EVENTS", subject=f"sandbox.evt.{box.id}.>"))
    assert findings(limited) == set()  # what is older than the stream is not missed


def test_a_lease_service_that_is_away_is_said(limited, box):
    limited.stack("kill", "redis")
    try:
        done = limited.skctl("doctor", "--grace=0s", expect=None)
        assert "leases are not judged" in done.stderr, done.stderr
    finally:
        limited.stack("restart", "redis")
    eventually(lambda: limited.admin(1, "/readyz")[0] == 200, 20)
