# SPDX-License-Identifier: Apache-2.0
"""A provider that has more objects of a sandbox than are looked at in one go, objects that make no sense, and one that asks
to come again later."""
import http.client
import http.server
import json
import threading
import time
import urllib.parse
import uuid

import pytest
from live import Site, in_parallel, new_box
from waiting import eventually

SHOWN = 16  # SK_REMOTES_MAX
MANY = 2 * SHOWN + 8  # three goes
ASKED_S = 3
TRIES = 3


def add_objects(site, box, count, epoch):
    """Objects of former lives or claims, as calls leave them whose answers were lost."""
    labels = [{"sandkeep.dev/epoch": str(epoch + index), "sandkeep.dev/operation": str(uuid.uuid4())} for index in range(count)]
    in_parallel(lambda metadata: site.provider.create(box, metadata), labels, width=4)


def test_delete_gets_through_any_number_of_objects(site, box):
    site.bus.run("ensure", box)
    add_objects(site, box, MANY, 1)
    assert len(site.provider.objects(box)) == MANY + 1
    site.bus.run("delete", box, deadline_ms=60000)
    site.gone(box)


def test_ensure_leaves_one_object_of_many(site, box):
    site.bus.run("ensure", box)
    site.provider.upload(box, "/workspace/note", b"kept")
    site.bus.run("stop", box)
    add_objects(site, box, MANY, 1)
    site.bus.run("ensure", box, deadline_ms=60000)
    # A sweep may have come first, or come after: in the end the record's own object is left, and nothing else.
    eventually(lambda: len(site.provider.objects(box)) == 1, 30, lambda: f"{len(site.provider.objects(box))} objects are left")
    assert int(site.provider.only(box)["metadata"]["sandkeep.dev/epoch"]) == site.record(box)["epoch"]
    assert site.provider.download(box, "/workspace/note") == b"kept"


class Between:
    """A provider in front of the provider: passes everything on but what it is told to answer by itself."""

    def __init__(self, provider):
        outer, target = self, urllib.parse.urlsplit(provider.url)
        self.seen = []  # (monotonic time, method, path)
        self.answer = lambda method, path: None  # -> (status, headers, body) instead of passing it on
        self.change = lambda method, path, body: body

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def serve(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.seen.append((time.monotonic(), self.command, self.path))
                own = outer.answer(self.command, self.path)
                if own is None:
                    connection = http.client.HTTPConnection(target.hostname, target.port, timeout=60)
                    headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "content-length")}
                    connection.request(self.command, self.path, body=body or None, headers=headers)
                    answer = connection.getresponse()
                    data = outer.change(self.command, self.path, answer.read())
                    own = answer.status, {"Content-Type": answer.getheader("Content-Type", "application/json")}, data
                    connection.close()
                status, headers, data = own
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if status != 204:
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PATCH = do_DELETE = serve

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_port}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    """A stack whose only replica sees its provider through somebody in between."""
    with Site(tmp_path_factory.mktemp("apart"), replicas=0) as one:
        one.between = Between(one.provider)
        try:
            one.replica = one.start("apart", AGENT_SANDBOX_OPENSANDBOX_BASEURL=one.between.url, SANDKEEP_LIFECYCLE_ORPHAN_REMOVE="true",
                                    SANDKEEP_LIFECYCLE_ORPHAN_GRACE_MS="0", SANDKEEP_LIFECYCLE_ORPHAN_SWEEP_MS="500", SANDKEEP_LIFECYCLE_RETRY_LIMIT=str(TRIES),
                                    SANDKEEP_LIFECYCLE_RETRY_FIRST_MS="50").ready()
            yield one
        finally:
            one.between.close()


@pytest.mark.parametrize("status", [429, 503])
def test_the_next_attempt_waits_as_long_as_the_provider_asks(apart, status):
    box, between, refused = new_box("later"), apart.between, []
    begin = len(between.seen)

    def answer(method, path):
        if method != "POST" or path != "/v1/sandboxes" or refused:
            return None
        refused.append(time.monotonic())
        return status, {"Retry-After": str(ASKED_S), "Content-Type": "application/json"}, b'{"code":"X::BUSY","message":"later"}'

    between.answer = answer
    command = apart.bus.send("ensure", box, deadline_ms=60000)
    operation = eventually(lambda: (apart.record(box) or {}).get("operation", {}).get("nextAttemptAt") and apart.record(box)["operation"],
                           10, "no further attempt is planned")
    wait = (operation["nextAttemptAt"] - operation["failedAt"]).total_seconds()
    assert wait == ASKED_S
    command.ok(30)
    creates = [at for at, method, path in between.seen[begin:] if method == "POST" and path == "/v1/sandboxes"]
    assert len(creates) == 2 and creates[1] - creates[0] >= ASKED_S - 0.1, creates
    apart.bus.run("delete", box)
    assert apart.remains(box) == []


def test_one_object_that_makes_no_sense_does_not_end_the_sweep(apart):
    orphan = new_box("orphan")

    def change(method, path, body):
        if method == "GET" and path.startswith("/v1/sandboxes?page="):
            page = json.loads(body)
            page["items"] = [{"id": "../../etc", "status": 7}, *page["items"]]
            return json.dumps(page).encode()
        return body

    apart.between.change = change
    add_objects(apart, orphan, 1, 1)
    eventually(lambda: not apart.provider.objects(orphan), 20, "the orphan is still there")
    assert "sandkeep_provider_unreadable_objects_total 0" not in apart.replica.get("/metrics")[1]
    told = [line for line in apart.replica.log.read_text().splitlines() if "cannot be read; it is left out" in line]
    assert len(told) == 1, told
    apart.provider.remove_volume(orphan.claim)


def looks(apart, box):
    return [path for _, method, path in apart.between.seen if method == "GET" and path.startswith("/v1/sandboxes?metadata=") and box.id in path]


@pytest.mark.parametrize("op,to", [("stop", "stopping"), ("delete", "deleting"), ("ensure", "provisioning")])
def test_an_object_without_a_usable_id_blocks_its_sandbox_and_no_other(apart, op, to):
    """It may be the one that counts: nothing passes it over, and nobody tries for ever."""
    box, other = new_box("noid"), new_box("other")

    def change(method, path, body):
        if method == "GET" and path.startswith("/v1/sandboxes?metadata=") and box.id in path:
            page = json.loads(body)
            page["items"] = [*page["items"], {"id": "../../etc", "status": {"state": "Running"}, "metadata": {"sessionId": box.id}}]
            return json.dumps(page).encode()
        return body

    if op != "ensure":
        apart.bus.run("ensure", box)
    apart.between.change = change
    if op != "ensure":  # nothing is in progress: whoever asks is told at once
        error = apart.bus.send("ensure", box, deadline_ms=30000).error("provider_error", seconds=10)
        assert '(id "../../etc") cannot be read' in error["detail"] and not error["retryable"], error
    detail = apart.bus.send(op, box, deadline_ms=30000).error("operation_blocked")["detail"]
    assert f"gave up after {TRIES} tries: provider_error" in detail and '(id "../../etc") cannot be read' in detail
    record = apart.record(box)
    assert record["status"] == to and record["operation"]["attempt"] == TRIES and record["operation"]["blocked"], record
    row = next(line for line in apart.skctl("stuck").stdout.splitlines() if box.id in line)
    assert "blocked" in row and '(id "../../etc") cannot be read: its id is missing or not usable; mend or remove it there first' in row
    seen = len(looks(apart, box))
    apart.bus.run("ensure", other)
    apart.bus.run("delete", other)
    assert len(looks(apart, box)) == seen, "it is tried for ever"

    apart.between.change = lambda method, path, body: body  # somebody removed it there
    apart.bus.run("recover", box, params={"action": "retry"})
    if op != "delete":
        assert apart.record(box)["status"] == ("stopped" if op == "stop" else "running")
        apart.bus.run("delete", box)
    apart.gone(box)
