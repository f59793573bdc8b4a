# SPDX-License-Identifier: Apache-2.0
"""Every row of the tables against a running sk-code at level full: what the attacker gets, and that nobody else was
harmed: the same processes, no task left, a service that is well and tasks that run as before. The rows of each language
run one after another, those of different languages side by side on a server each; a test is the outcome of its row."""
import concurrent.futures
import contextlib
import threading
import time

import cases_js
import cases_network
import cases_python
import cases_raw
import pytest
from code_server import CodeServer
from waiting import eventually
from table import Outcome, need_full

ROWS = cases_js.ROWS + cases_python.ROWS + cases_raw.ROWS + cases_network.ROWS


def standing(server):
    """The processes that no task may touch."""
    return [(pid, kind) for pid, kind in server.children() if kind != "task"]


def unharmed(server, before):
    eventually(server.idle, 5, lambda: f"still busy: {server.health()}")
    assert server.value("js", "function main() { return { n: 1 + 1 } }") == {"n": 2}
    assert server.value("python", "def main():\n    return {'n': 1 + 1}\n") == {"n": 2}
    status, health = server.health()
    assert (status, health["status"], health["isolation"]) == (200, "ok", "full")
    eventually(lambda: standing(server) == before and not server.tasks(), 5, lambda: f"{server.children()} is not {before}\n{server.log()[-2000:]}")


def attack(server, row):
    before = standing(server)
    begin = time.monotonic()
    status, body = server.run(row.language, row.code, row.variables, timeoutMs=row.timeout_ms)
    took = time.monotonic() - begin
    try:
        row.gets(Outcome(status, body))
        assert took < row.at_most_s, took
    finally:
        unharmed(server, before)


class Lane(threading.Thread):
    """The rows of one language on a server of their own; each row's outcome is a future."""

    def __init__(self, rows):
        super().__init__(daemon=True)
        self.rows, self.outcomes = rows, {str(row): concurrent.futures.Future() for row in rows}

    def run(self):
        for row in self.rows:
            outcome = self.outcomes[str(row)]
            try:
                outcome.set_result(attack(self.server, row))
            except BaseException as error:
                outcome.set_exception(error)

    def begin(self, stack):
        self.server = stack.enter_context(CodeServer({"SANDBOX_POOL_SIZE": 2, "SANDBOX_MAX_TIMEOUT": 10000}))
        need_full(self.server)
        self.server.value("python", "import numpy\ndef main():\n    return 1\n")  # all three kinds serve
        self.start()


@pytest.fixture(scope="module")
def lanes(request):
    wanted = [item.callspec.params["row"] for item in request.session.items if getattr(item, "callspec", None) and "row" in item.callspec.params and item.module is request.module]
    with contextlib.ExitStack() as stack:
        found = {language: Lane([row for row in wanted if row.language == language]) for language in ("js", "python")}
        for lane in found.values():
            lane.begin(stack)
        yield found
        for lane in found.values():
            lane.join()


def test_enough():
    assert len(ROWS) >= 150
    assert len({str(row) for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_attack(lanes, row):
    lanes[row.language].outcomes[str(row)].result(timeout=300)


def test_nobody_came_to_the_sink():
    assert cases_network.SINK.connections == 0
