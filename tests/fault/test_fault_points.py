# SPDX-License-Identifier: Apache-2.0
"""Death at every fault point of every operation that passes it (common/faults/faults.def), in the real stack: a replica
is told to end there, gets the command, dies; another one finishes; then Mongo, Redis, NATS, sk-localbox and the doctor are
looked at. A point or an operation that nobody planned a case for fails the suite.

The cases run on a few lanes side by side. A lane is a stack of its own whose back ends stay up; only the replicas change.
They wait for each other most of the time, so that two cores are enough."""
import concurrent.futures
import os
import queue
import re
import signal
import subprocess
import threading
import time

import pytest
from live import FAULT_STATUS, ROOT, Site, bin_dir, clean_environment, fastgpt_operation, fastgpt_record, new_box, ago
from waiting import eventually

LANES = int(os.environ.get("SANDKEEP_FAULT_LANES", "4"))
POINTS = re.findall(r'^SK_FAULT_POINT\(\w+,\s*"([^"]+)"', (ROOT / "common/faults/faults.def").read_text(), re.M)
TEAM = "team-fault"
SETTINGS = {"AGENT_SANDBOX_MAX": "1000", "AGENT_SANDBOX_MAX_PER_TEAM": "500", "SANDKEEP_LIFECYCLE_QUOTA_RECOUNT_MS": "1000",
            "SANDKEEP_LIFECYCLE_QUOTA_GRACE_MS": "1000", "SANDKEEP_LIFECYCLE_ORPHAN_SWEEP_MS": "1000", "SANDKEEP_LIFECYCLE_RETRY_FIRST_MS": "200"}
FAILS = "provider.created@provision=error"


def planned():
    """(name, fault, command): every point that each command passes. "resume" is an ensure of a stopped sandbox, "repair"
    one of a sandbox that is missing at its provider; "legacy" and "foreign" are what FastGPT left and a sweep finds."""
    out = []

    def add(point, operation, command, nth=None, more=""):
        fault = f"{point}{'@' + operation if operation else ''}=exit{f'#{nth}' if nth else ''}"
        name = f"{command}-{point}{'@' + operation if operation else ''}{f'-{nth}' if nth else ''}"
        out.append((name, f"{more},{fault}" if more else fault, command))
    for command in ("ensure", "resume", "stop", "delete", "repair", "recover"):
        add("lease.acquired", {"resume": "ensure", "repair": "ensure"}.get(command, command), command)
    for command in ("ensure", "resume"):
        add("quota.reserved", "provision", command)
        for point in ("claim.committed", "volume.ensured", "provider.created", "provider.ready", "phase.committed", "terminal.committed"):
            add(point, "provision", command)
    for command in ("stop", "repair"):
        for point in ("claim.committed", "provider.removed", "phase.committed", "terminal.committed"):
            add(point, "stop", command)
    add("claim.committed", "provision", "repair")
    add("terminal.committed", "provision", "repair")
    for point in ("claim.committed", "provider.removed", "volume.removed", "deleted-event.published", "record.removed"):
        add(point, "delete", "delete")
    for nth in (1, 2):  # two phases are committed that way
        add("phase.committed", "delete", "delete", nth)
    for point in ("claim.committed", "terminal.committed"):  # what FastGPT left in its first phase goes back
        add(point, "legacyMigration", "legacy")
    add("claim.committed", "archive", "foreign")
    add("claim.committed", "restore", "foreign")
    for command in ("ensure", "stop", "delete", "touch", "archive"):
        for point in ("result.stored", "result.published", "command.acked"):
            add(point, None, command)
    for command in ("ensure", "stop", "delete"):
        for point in ("outbox.published", "timeline.written"):
            add(point, None, command)
    for command in ("ensure", "resume"):
        add("failure.recorded", "provision", command, more=FAILS)
    add("failure.recorded", "stop", "stop", more="provider.removed@stop=error")
    add("failure.recorded", "delete", "delete", more="volume.removed@delete=error")
    for command, operation, slow in (("ensure", "provision", "provider.created@provision=delay:1500"), ("stop", "stop", "provider.removed@stop=delay:1500"),
                                     ("delete", "delete", "provider.removed@delete=delay:1500")):
        add("handed-over", operation, command, more=slow)
    return out


CASES = planned()


def supported():
    """Is this a build with fault points? One without takes no notice of a misspelt one."""
    return misspelt().returncode == 2


def misspelt():
    environment = {**clean_environment(), "SANDKEEP_FAULT": "no.such.point=exit", "AGENT_SANDBOX_OPENSANDBOX_BASEURL": "http://127.0.0.1:9",
                   "AGENT_SANDBOX_OPENSANDBOX_IMAGE": "local:1", "SANDKEEP_START_LIMIT_SECONDS": "1", "SANDKEEP_NATS_URL": "nats://127.0.0.1:9"}
    return subprocess.run([bin_dir() / "sk-lifecycle"], env=environment, capture_output=True, text=True, timeout=30, check=False)


class Lane:
    """One stack, and one case at a time on it."""

    def __init__(self, folder, number):
        self.site = Site(folder, replicas=0, **SETTINGS)
        self.number, self.count, self.helper = number, 0, None

    def up(self):
        self.site.up()
        self.site.tap.repeats = True
        return self

    def calm(self):
        """A replica without faults runs; it is the one that finishes and prepares."""
        if self.helper is None:
            self.count += 1
            self.helper = self.site.start(f"survivor-{self.count}").ready()
        return self.helper

    def alone(self, fault):
        """Only a replica with this fault runs."""
        if self.helper is not None:
            self.helper.terminate()
            self.helper = None
        self.count += 1
        return self.site.start(f"victim-{self.count}", fault=fault).ready()

    def run(self, fault, command):
        return Case(self, fault, command).run()


class Case:
    def __init__(self, lane, fault, command):
        self.lane, self.site, self.fault, self.command = lane, lane.site, fault, command
        self.box = new_box("fault")
        self.began = time.monotonic()

    # ---- before ----
    def prepare(self):
        site, box, command = self.site, self.box, self.command
        params = {"teamId": TEAM}
        if command in ("resume", "stop", "delete", "repair", "touch", "archive"):
            self.lane.calm()
            site.bus.run("ensure", box, params=params)
            site.provider.upload(box, "/workspace/kept", b"precious")
        if command == "resume":
            site.bus.run("stop", box)
        if command == "repair":
            site.provider.remove(site.provider.only(box)["id"])
        if command == "recover":
            site.provider.ensure_volume(box.claim)
            operation = {**fastgpt_operation("provisioning", ago(minutes=5), "provider_error: it broke"), "attempt": 8, "jobId": "0f7c2b0e-3a5e-4a67-9a3b-6b1f6d4f2a11",
                         "blocked": "gave up after 8 tries: provider_error"}
            self.record(fastgpt_record(box, "provisioning", operation, epoch=5, sequence=5, teamId=TEAM))

    def record(self, document):
        self.site.tap.older.add(self.box.id)
        self.site.instances.insert_one(document)

    def leave(self):
        """What a sweep finds, without any command."""
        status = "legacyMigrating" if self.command == "legacy" else "archiving" if "@archive" in self.fault else "restoring"
        previous = "archived" if status == "restoring" else "stopped"
        self.record(fastgpt_record(self.box, status, fastgpt_operation(status, ago(hours=2), previous=previous), teamId=TEAM))

    # ---- the death ----
    def run(self):
        site, box = self.site, self.box
        self.prepare()
        victim = self.lane.alone(self.fault)
        sent = None
        if self.command in ("legacy", "foreign"):
            self.leave()
        else:
            op = {"resume": "ensure", "repair": "ensure"}.get(self.command, self.command)
            params = {"recover": {"action": "retry"}, "ensure": {"teamId": TEAM}}.get(self.command)
            sent = site.bus.send(op, box, params=params, deadline_ms=120000)
        if "handed-over" in self.fault:
            eventually(lambda: ((site.record(box) or {}).get("operation") or {}).get("owner"), 15, "nobody claimed it")
            victim.process.send_signal(signal.SIGTERM)
        status = victim.died(30)
        died = time.monotonic()
        assert status == FAULT_STATUS, f"the victim ended with {status}, not at {self.fault}: {victim.tail()}"
        self.lane.calm()
        self.finish(sent, died)
        return time.monotonic() - self.began

    # ---- afterwards ----
    def finish(self, sent, died):
        site, box, command = self.site, self.box, self.command
        if sent is None:
            wanted = "stopped" if command == "legacy" else None
            eventually(lambda: site.state(box) == wanted if wanted else site.record(box)["operation"].get("blocked"), 20, lambda: site.record(box))
        elif command == "archive":
            sent.error("operation_blocked", 40)
        else:
            answer = sent.result(40)
            # Who died after its answer was stored may have told it; whoever is told again is told the same.
            assert answer["ok"] is True, answer
            assert answer["status"] == {"stop": "stopped", "delete": "none"}.get(command, "running"), answer
        site.settle(20)
        self.timing = time.monotonic() - died
        if sent is not None:
            assert len({str(answer) for answer in sent.answers}) == 1, sent.answers
            stored = site.db["sandkeep_commands"].find_one({"_id": f"{box.id}/{sent.id}"})
            assert stored, "the result is not stored"
        self.look(command)
        self.clean_up()

    def look(self, command):
        """Everything about this sandbox is as it should be, wherever one looks."""
        site, box = self.site, self.box
        record, objects = site.record(box), site.provider.objects(box)
        volumes = [name for name in site.provider.volumes() if box.id in name]
        if command == "delete":
            site.gone(box)
            assert site.bus.heard(box.id, "lifecycle.deleted"), "the deleted event was never published"
        elif command in ("legacy", "foreign"):
            assert objects == []
        elif command == "stop":
            assert record["status"] == "stopped" and objects == [] and len(volumes) == 1
            eventually(lambda: site.slots(box) == [], 15, lambda: site.slots(box))
        else:
            assert record["status"] == "running" and "operation" not in record
            assert len(objects) == 1 and int(objects[0]["metadata"]["sandkeep.dev/epoch"]) <= record["epoch"], objects
            assert len(volumes) == 1
            eventually(lambda: len(site.slots(box)) == 2, 15, lambda: site.slots(box))  # all together, and its team
            assert site.provider.shell(box, "echo alive") == (0, "alive")
        if command in ("resume", "repair", "touch", "archive"):
            assert site.provider.download(box, "/workspace/kept") == b"precious"
        if command == "stop":
            site.bus.run("ensure", box)
            assert site.provider.download(box, "/workspace/kept") == b"precious"
        ignore = ("operation-blocked", "remote-missing", "archive-missing", "volume-missing") if command == "foreign" else ()
        found = [item for item in site.doctor(ignore=ignore) if item[0] == box.id]
        assert found == []
        eventually(self.events_complete, 10, lambda: [(event.kind, event.data["sequence"]) for event in site.bus.heard(box.id) if "sequence" in event.data])

    def events_complete(self):
        """Each change of the record is told: 1, 2, 3, … up to what the record counts, of each of its lives."""
        record = self.site.record(self.box)
        heard = {(event.data["epoch"] if record is None else 0, event.data["sequence"]) for event in self.site.bus.heard(self.box.id) if event.kind.startswith("lifecycle.")}
        numbers = sorted({number for _, number in heard})
        if not numbers:
            return False
        first = numbers[0]
        if numbers != list(range(first, first + len(numbers))):
            return False
        return record is None or numbers[-1] == record["sequence"]

    def clean_up(self):
        self.site.bus.run("delete", self.box)
        self.site.gone(self.box)


class Runner:
    """Hands the cases to the lanes, in the order of the tests."""

    def __init__(self, folder, names):
        self.lanes = [Lane(folder / f"lane{number}", number) for number in range(LANES)]
        with concurrent.futures.ThreadPoolExecutor(LANES) as pool:
            list(pool.map(Lane.up, self.lanes))
        self.queue, self.results = queue.Queue(), {name: concurrent.futures.Future() for name in names}
        for case in CASES:
            if case[0] in self.results:
                self.queue.put(case)
        self.threads = [threading.Thread(target=self.work, args=(lane,), daemon=True) for lane in self.lanes]
        for thread in self.threads:
            thread.start()

    def work(self, lane):
        while True:
            try:
                name, fault, command = self.queue.get_nowait()
            except queue.Empty:
                return
            future = self.results[name]
            try:
                future.set_result(lane.run(fault, command))
            except BaseException as failure:
                future.set_exception(failure)

    def close(self):
        while not self.queue.empty():
            self.queue.get_nowait()
        for thread in self.threads:
            thread.join(120)
        failures = []
        for lane in self.lanes:
            try:
                lane.calm()
                lane.site.settle()
                assert lane.site.doctor() == [] and lane.site.slots() == [] and lane.site.provider.objects() == []
            except BaseException as failure:
                failures.append(failure)
            try:
                lane.site.close()
            except BaseException as failure:
                failures.append(failure)
        if failures:
            raise failures[0]


@pytest.fixture(scope="module")
def runner(tmp_path_factory, request):
    if not supported():
        pytest.skip("this build has no fault points")
    names = [item.callspec.params["name"] for item in request.session.items if getattr(item, "callspec", None) and item.module is request.module
             and "name" in item.callspec.params]
    one = Runner(tmp_path_factory.mktemp("fault"), names)
    yield one
    one.close()


@pytest.mark.parametrize("name", [case[0] for case in CASES])
def test_death_at(runner, name):
    runner.results[name].result(400)


def test_every_point_has_a_case():
    assert {case[1].split(",")[-1].split("@")[0].split("=")[0] for case in CASES} == set(POINTS)
    assert len({case[0] for case in CASES}) == len(CASES)


def test_a_misspelt_fault_is_refused():
    """A test that asks for a fault which does not exist must not pass as if it had no effect."""
    if not supported():
        pytest.skip("this build has no fault points")
    assert "no.such.point" in misspelt().stderr
