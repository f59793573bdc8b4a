# SPDX-License-Identifier: Apache-2.0
"""Every operation on every state a record can be in, also the ones that only FastGPT writes and leaves behind: what is
answered, and what becomes of the record. The states come from proto/states.def, the table below says what is right.

All cells run at once (a sandbox each), then each is judged by a test of its own."""
import uuid

import pytest
from catalog import States
from live import Box, ago, fastgpt_operation, fastgpt_record, in_parallel, now

STATES = States()
TRANSITIONAL = [status for status in STATES.statuses if status not in STATES.stable and status != "none"]
# live: FastGPT works on it now · stale: it stopped long ago · failed: it gave up · waiting: ours, for its next try ·
# blocked: ours, and it gave up.
KINDS = ("live", "stale", "failed", "blocked")
CELLS = (["none", "running", "running:lost", "stopped", "archived"]
         + [f"{status}:{kind}" for status in TRANSITIONAL for kind in KINDS] + ["provisioning:waiting", "stopping:waiting"])
OPS = {
    "ensure": {}, "provision": {}, "stop": {}, "archive": {}, "restore": {}, "delete": {}, "touch": {},
    "converge": {"image": {"repository": "localbox/other"}, "provider": "opensandbox"},
    "recover": {"action": "retry"}, "abandon": {"action": "abandon"},
}
NOT_YET = {"archiving", "restoring"}  # this release shows them as blocked
BUSY_MS = 1500
AT_ONCE = 70

# What a stale or failed operation of FastGPT's comes to, all by itself; "+": it stays, blocked.
SETTLES = {"provisioning": "running", "stopping": "stopped", "deleting": "none", "legacyMigrating": "stopped",
           "archiving": "archiving", "restoring": "restoring"}


def on_stable(op, status, lost=False):
    """(code or None, answered status, is there an operation, status afterwards) for a record at rest, or none."""
    changed = {"none": "running", "stopped": "running"}
    if op in ("ensure", "provision"):
        if status == "archived":
            return "operation_blocked", None, False, status
        return None, "running", status in changed or lost, "running"
    if op == "delete":
        return None, "none", status != "none", "none"
    if status == "none":
        return "sandbox_not_found", None, False, "none"
    if op == "stop":
        return None, ("stopped" if status == "running" else status), status == "running", "stopped" if status == "running" else status
    if op == "archive":
        return (None, status, False, status) if status == "archived" else ("operation_blocked", None, False, status)
    if op == "restore":
        return (None, status, False, status) if status == "running" else ("operation_blocked", None, False, status)
    if op == "converge":
        return "operation_blocked", None, False, status
    return None, status, False, status  # touch, recover: nothing to do


def allowed(op, cell):
    """All that may be answered and left, as a set of (code or None, answered status, operation?, afterwards): where a
    sweep works on the same record, the command may come before, in between or after it. None: not looked at."""
    status, _, kind = cell.partition(":")
    if status in STATES.stable or status == "none":
        return {on_stable(op, status, kind == "lost")}
    settled = SETTLES[status]
    if kind == "live":
        if op == "delete":
            return {(None, "none", True, "none")}
        if op in ("archive", "restore", "converge"):
            return {("operation_blocked", None, False, status)}
        if op == "touch":
            return {(None, status, False, status)}
        return {("sandbox_busy", None, False, status)}
    if kind == "blocked":
        if op == "delete":
            return {(None, "none", True, "none")}
        if op == "touch":
            return {(None, status, False, status)}
        if op in ("recover", "abandon") and status in ("provisioning", "stopping", "deleting"):
            after = "stopped" if (op, status) == ("abandon", "provisioning") else settled
            return {(None, after, True, after)}
        return {("operation_blocked", None, False, status)}
    # stale, failed, waiting: it goes on, and the command finds it before, while or after it does.
    if op == "delete":
        return {(None, "none", True, "none"), (None, "none", False, "none")}
    if settled in NOT_YET:
        touched = {(None, status, False, status)}
        return touched if op == "touch" else {("operation_blocked", None, False, status)}
    found = {on_stable(op, settled)}
    if op in ("ensure", "provision", "stop"):  # whether it was this command that did it
        found |= {(code, status, not done, after) for code, status, done, after in found if code is None}
    if op in ("archive", "restore", "converge"):
        found.add(("operation_blocked", None, False, settled))
    if op == "touch":
        found |= {(None, status, False, settled), (None, settled, False, settled)}
    if op in ("recover", "abandon"):
        found |= {(None, settled, True, settled), (None, settled, False, settled)}
        if op == "abandon" and status == "provisioning":
            found |= {(None, "stopped", True, "stopped")}
        if settled == "none":
            found.add(("sandbox_not_found", None, False, "none"))
    return found


def make(site, box, op, cell):
    """Puts the record (and what belongs to it at the provider) there."""
    status, _, kind = cell.partition(":")
    if status == "none":
        return None
    operation = None
    if status not in STATES.stable:
        beat = ago(hours=3) if kind in ("stale", "blocked") else now()
        phase = "volumeAssigned" if (status, kind) == ("legacyMigrating", "blocked") else "claimed"
        operation = fastgpt_operation(status, beat, "connect ECONNREFUSED" if kind == "failed" else None, phase,
                                      previous=None if status in ("provisioning",) and kind != "blocked" else "stopped")
        if status == "restoring":
            operation["previousStatus"] = "archived"
        if kind in ("blocked", "waiting"):
            operation.update(jobId=str(uuid.uuid4()), attempt=8 if kind == "blocked" else 1, failedAt=ago(minutes=1), error="provider_error: it broke")
        if kind == "blocked":
            operation["blocked"] = "gave up after 8 tries: provider_error"
        if kind == "waiting":
            operation["nextAttemptAt"] = ago(seconds=-2)
    document = fastgpt_record(box, status, operation, at=ago(minutes=5))
    if kind in ("blocked", "waiting"):
        document.update(epoch=5, sequence=5)
        site.tap.older.add(box.id)
    return document


@pytest.fixture(scope="module")
def cells(site):
    """Runs all cells; {(op, cell): (box, command)}."""
    run = uuid.uuid4().hex[:8]
    wanted = [(op, cell, Box(f"{cell}-{run}", op)) for op in OPS for cell in CELLS]
    in_parallel(lambda item: site.provider.create(item[2]), [item for item in wanted if item[1] in ("running", "stopping:live", "stopping:stale")])
    in_parallel(lambda item: site.provider.ensure_volume(item[2].claim), [item for item in wanted if item[1] in ("running:lost", "stopped")])
    documents = [document for document in (make(site, box, op, cell) for op, cell, box in wanted) if document]
    prepared = []
    for op, cell, box in wanted:
        params = OPS[op] or None
        busy = cell.endswith(":live") and op != "delete"
        prepared.append(site.bus.prepare("recover" if op == "abandon" else op, box, params=params, deadline_ms=BUSY_MS if busy else 60000))
    commands = []
    for begin in range(0, len(prepared), AT_ONCE):
        part = prepared[begin:begin + AT_ONCE]
        here = {command.box.id for command, *_ in part}
        some = [document for document in documents if document["sandboxId"] in here]
        if some:
            site.instances.insert_many(some)
        commands += site.bus.send_many(part)
        for command in commands:
            command.arrived.wait(90)
    found = {(op, cell): (box, command) for (op, cell, box), command in zip(wanted, commands)}
    yield found
    site.delete_all([box for _, _, box in wanted])
    # What FastGPT called archived keeps its volume-less record; whatever the provider had is gone.
    left = [line for _, _, box in wanted for line in [doc["sandboxId"] for doc in site.instances.find({"sandboxId": box.id})]]
    assert left == []
    objects = {item["metadata"].get("sessionId") for item in site.provider.objects()}
    volumes = site.provider.volumes()
    assert [box for _, _, box in wanted if box.id in objects or any(box.id in name for name in volumes)] == []


@pytest.fixture(scope="module")
def settled(site, cells):
    """What became of the records once everything that goes on by itself has."""
    site.settle()
    return {document["sandboxId"]: document for document in site.instances.find({})}


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("op", OPS)
def test_cell(site, cells, settled, op, cell):
    box, command = cells[(op, cell)]
    answer = command.result(0.1)
    document = settled.get(box.id)
    error = answer.get("error")
    seen = (error["code"] if error else None, answer.get("status"), "operationId" in answer, document["status"] if document else "none")
    assert seen in allowed(op, cell), f"{answer}; afterwards {document}"
    assert len(command.answers) == 1
    status, _, kind = cell.partition(":")
    if error and error["code"] == "sandbox_busy":
        assert error["operation"]["type"] == STATES_OF[status] and error["retryable"] and error["retryAfterMs"] > 0
        assert command.seconds >= BUSY_MS / 1000 * 0.9
    if kind == "live" and document:  # FastGPT's own work was left alone
        assert document["operation"]["type"] == STATES_OF[status] and "jobId" not in document["operation"] and "epoch" not in document
    if document and document["status"] in NOT_YET and kind in ("stale", "failed"):
        assert document["operation"]["blocked"] and document["operation"]["error"]


STATES_OF = {status: operation for operation, status in STATES.transitional.items()}


def test_doctor_knows_what_is_left(site, cells, settled):
    mine = {box.id: cell for (_, cell), (box, _) in cells.items()}
    found = {(mine[sandbox], invariant) for sandbox, invariant, _ in site.doctor(grace="30s") if sandbox in mine}
    assert {invariant for _, invariant in found} <= {"operation-blocked", "operation-stuck", "remote-missing", "volume-missing", "archive-missing", "remote-of-stopped"}, found
    assert {cell.partition(":")[0] for cell, invariant in found if invariant == "operation-blocked"} <= set(TRANSITIONAL)
