# SPDX-License-Identifier: Apache-2.0
"""The queue as a client sees it (A3, contract §4): how many tasks run, who is next, and who is refused at once."""
import concurrent.futures
import json
import time

import pytest
from code_server import CodeServer
from waiting import eventually
from wire import LIGHT, OK_JS, RUNS, Wire, begin, chunked, task

MIB = 1024 * 1024
SPAN = {  # says when it ran, in milliseconds of one clock for both languages
    "js": "async function main({ ms }) { const from = Date.now(); await delay(ms); return [from, Date.now()] }",
    "python": "import time\ndef main(ms):\n    start = time.time() * 1000\n    time.sleep(ms / 1000)\n    return [start, time.time() * 1000]",
}
FULL = {"success": False, "message": "Too many tasks are waiting, try again later"}
NO_ROOM = {"success": False, "message": "Too many request bodies at once, try again later"}


@pytest.fixture(scope="module")
def small():
    with CodeServer({"SANDBOX_POOL_SIZE": 2, "SANDBOX_MAX_QUEUE": 3, "SANDBOX_API_MAX_BODY_MB": 1, "SANDBOX_MAX_BUFFERED_MB": 4}) as server:
        yield server


@pytest.fixture(scope="module")
def limited():
    with CodeServer({"SANDBOX_POOL_SIZE": 4, "SANDBOX_QUEUE_ID_CONCURRENCY": 1}) as server:
        yield server


@pytest.fixture(scope="module")
def single():
    with CodeServer({**LIGHT, "SANDBOX_POOL_SIZE": 1}) as server:
        yield server


def spans(server, jobs):
    """When each of (language, queueId, milliseconds) ran; all are asked for at the same time."""
    def one(job):
        language, queue_id, ms = job
        return server.value(language, SPAN[language], {"ms": ms}, **({"queueId": queue_id} if queue_id else {}))
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(one, jobs))


def most_at_once(ran):
    edges = sorted([(start, 1) for start, _ in ran] + [(end, -1) for _, end in ran])
    now = most = 0
    for _, step in edges:
        now += step
        most = max(most, now)
    return most


def overlap(a, b):
    return a[0] < b[1] and b[0] < a[1]


def run_at_once(server, *queue_ids):
    """A task of each runs at the same time, however slowly they are started."""
    wires = [wire for queue_id in queue_ids for wire in begin(server, "js", **({"queueId": queue_id} if queue_id else {}))]
    eventually(lambda: pool_of(server, "js")["busy"] == len(wires))
    for wire in wires:
        wire.close()
    server.wait_idle()


def pool_of(server, language):
    return server.health()[1]["pools"][language]


# ---- pools ----
@pytest.mark.parametrize("language", ["js", "python"])
def test_pool_size(small, language):
    assert most_at_once(spans(small, [(language, "", 100)] * 5)) <= 2
    wires = begin(small, language, 5)
    eventually(lambda: (pool_of(small, language)["busy"], pool_of(small, language)["queued"]) == (2, 3))
    for wire in wires:
        wire.close()
    small.wait_idle()


def test_each_language_has_its_pool(small):
    wires = begin(small, "js", 2) + begin(small, "python", 2)
    eventually(lambda: [pool_of(small, language)["busy"] for language in ("js", "python")] == [2, 2])
    for wire in wires:
        wire.close()
    small.wait_idle()


def test_lean_and_full_python_share_a_pool(small):
    full = "import numpy\n" + SPAN["python"]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        ran = list(pool.map(lambda code: small.value("python", code, {"ms": 300}), [full, full, SPAN["python"], SPAN["python"]]))
    assert most_at_once(ran) <= 2
    wires = [wire for code in (full, SPAN["python"]) for wire in begin(small, "python", 2, code=code, variables={"ms": 9000})]
    eventually(lambda: (pool_of(small, "python")["busy"], pool_of(small, "python")["queued"]) == (2, 2))
    for wire in wires:
        wire.close()
    small.wait_idle()


def test_one_at_a_time_keeps_the_order(single):
    """As the original's pool of one: ten tasks, one after the other, first come first served."""
    blocker = begin(single, "js")
    eventually(lambda: pool_of(single, "js")["busy"] == 1)
    wires = []
    for n in range(10):
        wires += begin(single, "js", code=f"async function main() {{ const from = Date.now(); await delay(5); return [{n}, from, Date.now()] }}")
        eventually(lambda n=n: pool_of(single, "js")["queued"] == n + 1)
    blocker[0].close()
    ran = [wire.answer().json["data"]["codeReturn"] for wire in wires]
    assert [n for n, _, _ in sorted(ran, key=lambda one: one[1])] == list(range(10))
    assert most_at_once([(start, end) for _, start, end in ran]) == 1
    for wire in wires:
        wire.close()


# ---- the bound ----
def test_a_full_queue_refuses_at_once(small):
    running = begin(small, "js", 2)
    eventually(lambda: pool_of(small, "js")["busy"] == 2)
    waiting = begin(small, "js", 3)
    eventually(lambda: pool_of(small, "js")["queued"] == 3)
    for pool, expected in (("js", (2, 0, 2, 3)), ("python", (2, 2, 0, 0))):
        shown = pool_of(small, pool)
        assert (shown["total"], shown["idle"], shown["busy"], shown["queued"]) == expected
    name = 'sandkeep_code_refused_total{reason="queue_full"}'
    before = small.metrics()[name]
    for _ in range(20):
        start = time.monotonic()
        assert small.run("js", OK_JS) == (429, FULL)
        assert time.monotonic() - start < 0.5
    assert small.metrics()[name] - before == 20
    assert small.value("python", "def main(): return 1") == 1  # it does not wait: the bound is not its affair
    waiting.pop().close()
    eventually(lambda: pool_of(small, "js")["queued"] == 2)
    # The bound counts both languages together: with two Python tasks running, one more can wait, and a second cannot.
    running += begin(small, "python", 2)
    eventually(lambda: pool_of(small, "python")["busy"] == 2)
    waiting += begin(small, "python")
    eventually(lambda: pool_of(small, "python")["queued"] == 1)
    assert small.run("python", "def main(): return 1") == (429, FULL)
    for wire in running + waiting:
        wire.close()
    small.wait_idle()
    assert small.value("js", OK_JS) == {"ok": True}


def test_what_waits_is_served_when_there_is_room(small):
    running = begin(small, "js", 2)
    eventually(lambda: pool_of(small, "js")["busy"] == 2)
    waiting = begin(small, "js", 3, code=OK_JS)
    eventually(lambda: pool_of(small, "js")["queued"] == 3)
    for wire in running:
        wire.close()
    assert [wire.answer().json for wire in waiting] == [RUNS] * 3
    for wire in waiting:
        wire.close()


def test_time_in_the_queue_does_not_count(single):
    blocker = begin(single, "js")
    eventually(lambda: pool_of(single, "js")["busy"] == 1)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(single.value, "js", OK_JS, timeoutMs=300)
        eventually(lambda: pool_of(single, "js")["queued"] == 1)
        with pytest.raises(concurrent.futures.TimeoutError):
            waiting.result(timeout=0.8)
        blocker[0].close()
        assert waiting.result(timeout=10) == {"ok": True}


# ---- queueId ----
def test_one_queue_id_at_a_time(limited):
    ran = spans(limited, [("js", "same", 200)] * 3)
    assert most_at_once(ran) == 1


def test_a_queue_id_counts_both_languages(limited):
    ran = spans(limited, [("js", "both", 300), ("python", "both", 300)])
    assert not overlap(*ran)


def test_space_around_a_queue_id_does_not_count(limited):
    ran = spans(limited, [("js", "trim", 200), ("js", "  trim\t", 200)])
    assert not overlap(*ran)


def test_other_queue_ids_run_meanwhile(limited):
    run_at_once(limited, "one", "two")


def test_no_queue_id_is_not_limited(limited):
    run_at_once(limited, None, None, None)
    run_at_once(limited, "  ", "  ", "  ")


def test_a_queue_id_that_waits_holds_nobody_up(limited):
    """A tenant at its limit with a long line; another is served at once."""
    blocker = begin(limited, "js", queueId="crowd")
    eventually(lambda: pool_of(limited, "js")["busy"] == 1)
    line = begin(limited, "js", 50, queueId="crowd")
    eventually(lambda: pool_of(limited, "js")["queued"] == 50)
    start = time.monotonic()
    assert limited.value("js", OK_JS, queueId="other") == {"ok": True}
    assert limited.value("js", OK_JS) == {"ok": True}
    assert time.monotonic() - start < 2
    assert pool_of(limited, "js")["busy"] == 1
    for wire in line + blocker:
        wire.close()
    limited.wait_idle()


@pytest.mark.parametrize("crowd", ["crowd", ""], ids=["a queueId", "tasks without queueId"])
def test_lines_take_turns(single, crowd):
    """Ten of one line and two of another wait for one place: they take turns."""
    blocker = begin(single, "js")
    eventually(lambda: pool_of(single, "js")["busy"] == 1)
    code = "async function main({ name }) { const at = Date.now(); await delay(4); return [at, name] }"
    wires = []
    for name, queue_id, count in (("crowd", crowd, 10), ("late", "late", 2)):
        for _ in range(count):
            members = {"queueId": queue_id} if queue_id else {}
            wires += begin(single, "js", code=code, variables={"name": name}, **members)
            eventually(lambda: pool_of(single, "js")["queued"] == len(wires))
    blocker[0].close()
    ran = sorted(wire.answer().json["data"]["codeReturn"] for wire in wires)
    places = [place for place, (_, name) in enumerate(ran) if name == "late"]
    assert places[0] <= 1 and places[1] <= 3, [name for _, name in ran]
    for wire in wires:
        wire.close()


# ---- bodies ----
def test_bodies_that_are_held_are_bounded(small):
    """SANDBOX_MAX_BUFFERED_MB of declared or received bodies; whoever comes next is refused before its body."""
    body = task(OK_JS + "//" + "x" * (MIB - 200))
    wires = [Wire(small) for _ in range(6)]
    try:
        for wire in wires[:4]:
            wire.send(wire.post(body)[:-1])
        eventually(lambda: small.metrics()["sandkeep_code_buffered_bytes"] == 4 * len(body))
        wires[4].send(wires[4].head(f"Content-Length: {len(body)}"))
        answer = wires[4].answer()
        assert (answer.status, answer.json) == (429, NO_ROOM)
        wires[5].send(wires[5].head("Transfer-Encoding: chunked"), chunked(body))
        answer = wires[5].answer()
        assert (answer.status, answer.json) == (429, NO_ROOM)
        assert small.metrics()['sandkeep_code_refused_total{reason="buffers_full"}'] >= 2
        wires[0].close()  # what it held is free again
        eventually(lambda: small.metrics()["sandkeep_code_buffered_bytes"] == 3 * len(body))
        for wire in wires[1:4]:
            wire.send(body[-1:])
        assert [wire.answer().json for wire in wires[1:4]] == [RUNS] * 3
    finally:
        for wire in wires:
            wire.close()
    eventually(lambda: small.metrics()["sandkeep_code_buffered_bytes"] == 0)
    assert small.post_raw("/sandbox/js", body)[0] == 200


# ---- crowds ----
def test_80_python_tasks_on_4_places(limited):
    with concurrent.futures.ThreadPoolExecutor(80) as pool:
        answers = list(pool.map(lambda n: limited.value("python", "def main(n):\n    return n * 2", {"n": n}), range(80)))
    assert answers == [n * 2 for n in range(80)]


def test_a_task_that_wants_to_end_the_process_hurts_nobody(limited):
    """A12: process.exit(1) beside others; and 20 at once, after which health is what it was."""
    codes = [OK_JS if n % 4 else "async function main() { process.exit(1); return 1 }" for n in range(20)]
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda code: limited.run("js", code)[1], codes))
    assert all(answer == RUNS if n % 4 else answer["success"] is False for n, answer in enumerate(answers))
    status, health = limited.health()
    assert (status, health["status"], health["pools"]["js"]["total"]) == (200, "ok", 4)


def test_a_mixed_crowd_of_tenants(limited):
    """200 tasks of 8 tenants in three kinds, some of which fail: each gets its own answer."""
    kinds = {"js": "function main({ n }) { return { n } }", "python": "def main(n):\n    return {'n': n}", "full": "import numpy\ndef main(n):\n    return {'n': int(numpy.int64(n))}"}

    def one(n):
        kind = list(kinds)[n % 3]
        if n % 10 == 9:
            return limited.run("js", f"function main() {{ throw new Error('number {n}') }}", queueId=f"tenant-{n % 8}")[1].get("message") == f"number {n}"
        return limited.value("js" if kind == "js" else "python", kinds[kind], {"n": n}, queueId=f"tenant-{n % 8}") == {"n": n}
    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        assert all(pool.map(one, range(200)))
    limited.wait_idle()
    assert limited.metrics()["sandkeep_code_queue_ids"] == 0
    assert json.dumps(limited.health()[1]).count("tenant") == 0
