# SPDX-License-Identifier: Apache-2.0
"""A running Sandkeep for tests: a one-machine stack in a folder of its own, and the clients that look at it from every
side (NATS as FastGPT would, Mongo, Redis, the provider's own API, skctl). Nothing here sleeps to let something happen:
waiting is for a condition, with a deadline."""
import asyncio
import collections
import concurrent.futures
import contextlib
import datetime
import hashlib
import http.client
import itertools
import json
import os
import pathlib
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid

import bson
import nats
import pymongo
import redis

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "contract"))

from tap import Tap  # noqa: E402
from waiting import eventually  # noqa: E402

CLEARED = ("SANDKEEP_", "AGENT_SANDBOX_")  # nothing of the caller's shell may choose what a test runs on
KEPT = ("SANDKEEP_TOOLS_DIR",)
IMAGE = {"repository": "localbox/default", "tag": "1"}
BACK_ENDS = "nats,redis,mongo,localbox"
INSTANCES = "agent_sandbox_instances_v2"
FAULT_STATUS = 86
TAPPED = "_TAPPED"  # inboxes of these clients, so that the tap need not listen to those of the replicas


def bin_dir():
    if os.environ.get("SANDKEEP_BIN_DIR"):
        return pathlib.Path(os.environ["SANDKEEP_BIN_DIR"])
    found = [ROOT / "build" / preset / "bin" for preset in ("debug", "release", "asan")]
    return next((folder for folder in found if (folder / "sk-lifecycle").exists()), found[0])


def clean_environment():
    return {name: value for name, value in os.environ.items() if not name.startswith(CLEARED) or name in KEPT}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def now():
    return datetime.datetime.now(datetime.timezone.utc)


def ago(**how_long):
    return now() - datetime.timedelta(**how_long)


def stamp(moment):
    return moment.astimezone(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


# ---- identities and records ------------------------------------------------------------------------------------------
class Box:
    """A business identity and the sandbox id that follows from it (contract/lifecycle.md §1)."""

    def __init__(self, source_id, user_id="user", source_type="app"):
        self.source_type, self.source_id = source_type, source_id
        self.user_id = "skillEdit" if source_type == "skillEdit" else user_id
        digest = hashlib.sha256(f"{self.source_id}-{self.user_id}".encode()).hexdigest()
        self.id = f"{source_type.lower()}-{digest[:16]}"

    @property
    def source(self):
        return {"sourceType": self.source_type, "sourceId": self.source_id, "userId": self.user_id}

    @property
    def claim(self):
        return f"fastgpt-session-{self.id}-0"

    def __repr__(self):
        return f"{self.id} ({self.source_id}/{self.user_id})"


def new_box(name="box"):
    return Box(f"{name}-{secrets.token_hex(5)}")


PHASE_ONE = {"provisioning": "provision", "legacyMigrating": "legacyMigration", "stopping": "stop", "archiving": "archive",
             "restoring": "restore", "deleting": "delete"}


def fastgpt_operation(status, heartbeat=None, error=None, phase="claimed", previous=None):
    """The `operation` of a transitional record as FastGPT writes it (reference §1.3): no owner, no job id."""
    beat = heartbeat or now()
    out = {"id": str(uuid.uuid4()), "type": PHASE_ONE[status], "phase": phase, "startedAt": beat, "heartbeatAt": beat}
    if previous:
        out["previousStatus"] = previous
    if error:
        out.update(failedAt=beat, error=error)
    return out


def fastgpt_record(box, status, operation=None, **more):
    """An instance document as FastGPT's mongoose model saves it (reference §1.1)."""
    moment = more.pop("at", None) or now()
    document = {
        "_id": bson.ObjectId(), "provider": "opensandbox", "sandboxId": box.id, **box.source, "status": status,
        "lastActiveAt": moment, "createdAt": moment, "limit": {"cpuCount": 1, "memoryMiB": 512, "storageSize": "1Gi"},
        "storage": {"volumes": [{"name": "workspace", "claimName": box.claim, "mountPath": "/workspace"}], "mountPath": "/workspace"},
        "image": dict(IMAGE), "__v": 0,
    }
    if operation:
        document["operation"] = operation
    document.update(more)
    return {name: value for name, value in document.items() if value is not None}


# ---- NATS, as FastGPT would ------------------------------------------------------------------------------------------
class Command:
    """One command that was published: its progress and its answers."""

    def __init__(self, ident, op, box, inbox):
        self.id, self.op, self.box, self.inbox = ident, op, box, inbox
        self.sent_at = time.monotonic()
        self.progress, self.answers = [], []
        self.answered_at = None
        self.arrived = threading.Event()

    def result(self, seconds=30):
        assert self.arrived.wait(seconds), f"no answer to {self.op} of {self.box} within {seconds} s"
        return self.answers[0]

    def ok(self, seconds=30):
        result = self.result(seconds)
        assert result["ok"] is True, result
        return result

    def error(self, code, seconds=30):
        result = self.result(seconds)
        assert result["ok"] is False and result["error"]["code"] == code, result
        return result["error"]

    @property
    def seconds(self):
        return self.answered_at - self.sent_at


Event = collections.namedtuple("Event", "kind sandbox headers data at")
Letter = collections.namedtuple("Letter", "subject headers data")


class Bus:
    """A NATS client on a thread of its own. Keeps every event and dead letter it hears."""

    def __init__(self, url):
        self.url = url
        self.commands, self.events, self.letters = {}, [], []
        self.changed = threading.Condition()
        self.root = f"replies.{secrets.token_hex(6)}"
        self.number = itertools.count()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="bus", daemon=True)
        self.thread.start()
        self.wait(self._connect())

    def wait(self, coroutine, seconds=30):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(seconds)

    async def _connect(self):
        async def quiet(_):
            pass
        self.nc = await nats.connect(self.url, max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=quiet,
                                     pending_size=64 * 1024 * 1024, inbox_prefix=TAPPED.encode())
        self.js = self.nc.jetstream(timeout=5)
        await self.nc.subscribe(f"{self.root}.>", cb=self._on_answer, pending_msgs_limit=-1, pending_bytes_limit=-1)
        await self.nc.subscribe("sandbox.evt.>", cb=self._on_event, pending_msgs_limit=-1, pending_bytes_limit=-1)
        await self.nc.subscribe("sandbox.dead.>", cb=self._on_letter, pending_msgs_limit=-1, pending_bytes_limit=-1)
        await self.nc.flush()

    async def _on_answer(self, message):
        command = self.commands.get(message.subject)
        if command is None:
            return
        body = json.loads(message.data)
        if "Sandbox-Progress" in (message.headers or {}):
            command.progress.append(body)
            return
        command.answers.append(body)
        command.answered_at = command.answered_at or time.monotonic()
        command.arrived.set()

    async def _on_event(self, message):
        if message.reply.startswith("$JS.ACK."):
            return
        _, _, sandbox, kind = message.subject.split(".", 3)
        event = Event(kind, sandbox, dict(message.headers or {}), json.loads(message.data), time.monotonic())
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    async def _on_letter(self, message):
        with self.changed:
            self.letters.append(Letter(message.subject, dict(message.headers or {}), message.data))
            self.changed.notify_all()

    # ---- commands ----
    def body(self, op, box, ident, params=None, deadline_ms=None, source=True, more=None):
        body = {"id": ident, "op": op, "sandboxId": box.id, "requestedAt": stamp(now())}
        if source:
            body["source"] = box.source
        if deadline_ms is not None:
            body["deadlineMs"] = deadline_ms
        if params is not None:
            body["params"] = params
        body.update(more or {})
        return body

    def prepare(self, op, box, ident=None, headers=None, reply=True, raw=None, subject=None, **fields):
        """(Command, subject, body, headers); raw replaces the whole body."""
        ident = ident or f"c-{secrets.token_hex(8)}"
        inbox = f"{self.root}.{next(self.number)}"
        command = self.commands[inbox] = Command(ident, op, box, inbox)
        data = raw if raw is not None else json.dumps(self.body(op, box, ident, **fields)).encode()
        out = {"Sandbox-Reply-To": inbox} if reply else {}
        out.update(headers or {})
        return command, subject or f"sandbox.cmd.lifecycle.{op}.{box.id}", data, out

    def send(self, op, box, **fields):
        """Publishes one command and waits until JetStream has stored it."""
        command, subject, data, headers = self.prepare(op, box, **fields)
        command.ack = self.wait(self.js.publish(subject, data, headers=headers))
        return command

    def send_many(self, prepared):
        """Publishes what `prepare` returned, as fast as it goes; all are stored when it returns."""
        prepared = list(prepared)

        async def publish():
            for begin in range(0, len(prepared), 200):
                await asyncio.gather(*(self.js.publish(subject, data, headers=headers, timeout=10)
                                       for _, subject, data, headers in prepared[begin:begin + 200]))
        for command, _, _, _ in prepared:
            command.sent_at = time.monotonic()
        self.wait(publish(), 120)
        return [command for command, _, _, _ in prepared]

    def run(self, op, box, seconds=30, **fields):
        """The result of a command that succeeds."""
        return self.send(op, box, deadline_ms=fields.pop("deadline_ms", int(seconds * 1000)), **fields).ok(seconds + 5)

    def request(self, method, body=None, raw=None, seconds=10):
        """A request, and its whole reply."""
        data = raw if raw is not None else json.dumps(body or {}).encode()
        return json.loads(self.wait(self.nc.request(f"sandbox.rpc.lifecycle.{method}", data, timeout=seconds), seconds + 5).data)

    def ask(self, method, **body):
        reply = self.request(method, body)
        assert reply["ok"] is True, reply
        return reply["data"]

    # ---- what was heard ----
    def heard(self, sandbox=None, kind=None, **fields):
        """Events so far; `fields` are compared with the data (operation__type=…: nested)."""
        def fits(event):
            if (sandbox and event.sandbox != sandbox) or (kind and event.kind != kind):
                return False
            for name, wanted in fields.items():
                value = event.data
                for part in name.split("__"):
                    value = value.get(part) if isinstance(value, dict) else None
                if value != wanted:
                    return False
            return True
        with self.changed:
            return [event for event in self.events if fits(event)]

    def hear(self, sandbox, kind, seconds=15, count=1, **fields):
        """Waits until `count` such events were heard; returns the last of them."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.heard(sandbox, kind, **fields)
            if len(found) >= count:
                return found[count - 1]
            left = deadline - time.monotonic()
            assert left > 0, f"no {kind} of {sandbox} {fields} within {seconds} s; heard: {[(e.kind, e.data) for e in self.heard(sandbox)]}"
            with self.changed:
                self.changed.wait(min(left, 0.25))

    def letter(self, check, seconds=15):
        def found():
            with self.changed:
                return next((letter for letter in self.letters if check(letter)), None)
        return eventually(found, seconds, "no such dead letter")

    def consumer(self):
        return self.wait(self.js.consumer_info("SANDBOX_COMMANDS", "lifecycle"))

    def stream(self, name, **options):
        return self.wait(self.js.stream_info(name, **options))

    def stored(self, name):
        """Subjects of the messages in a stream."""
        return sorted(self.stream(name, subjects_filter=">").state.subjects or {})

    def close(self):
        async def end():
            await self.nc.close()
        with contextlib.suppress(Exception):
            self.wait(end(), 10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)


# ---- the provider's own API ------------------------------------------------------------------------------------------
class Provider:
    """sk-localbox as any client of OpenSandbox sees it."""

    def __init__(self, url, key):
        self.url, self.key = url, key

    def call(self, method, path, body=None, headers=None, seconds=30):
        parts = urllib.parse.urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=seconds)
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        send = {"OPEN-SANDBOX-API-KEY": self.key, "Authorization": f"Bearer {self.key}", **(headers or {})}
        if data is not None:
            send.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, body=data, headers=send)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def objects(self, box=None):
        """Sandboxes at the provider: of this identity, or all."""
        found, query = [], ""
        if box is not None:
            query = "&metadata=" + urllib.parse.quote(f"sessionId={urllib.parse.quote(box.id)}")
        for page in itertools.count(1):
            status, body = self.call("GET", f"/v1/sandboxes?page={page}&pageSize=200{query}")
            assert status == 200, body
            answer = json.loads(body)
            found += answer["items"]
            if not answer["pagination"]["hasNextPage"]:
                return found

    def volumes(self):
        found, after = [], ""
        while True:
            status, body = self.call("GET", "/v1/volumes" + (f"?after={urllib.parse.quote(after)}" if after else ""))
            assert status == 200, body
            answer = json.loads(body)
            found += [item["claimName"] for item in answer["items"]]
            after = answer.get("next") or ""
            if not after:
                return found

    def ensure_volume(self, claim):
        status, body = self.call("POST", "/v1/volumes/ensure", {"claimName": claim, "storageSize": "1Gi"})
        assert status in (200, 201), body

    def remove_volume(self, claim):
        status, body = self.call("DELETE", f"/v1/volumes/{urllib.parse.quote(claim)}")
        assert status in (200, 202, 204, 404), body

    def create(self, box, metadata=None, claim=None):
        """A sandbox as FastGPT makes it: labelled with the session id alone."""
        claim = claim or box.claim
        self.ensure_volume(claim)
        status, body = self.call("POST", "/v1/sandboxes", {
            "image": {"uri": f"{IMAGE['repository']}:{IMAGE['tag']}"}, "entrypoint": ["tail", "-f", "/dev/null"],
            "resourceLimits": {"cpu": "1", "memory": "512Mi"}, "metadata": {"sessionId": box.id, **(metadata or {})},
            "volumes": [{"name": "workspace", "mountPath": "/workspace", "pvc": {"claimName": claim}}]})
        assert status == 202, body
        ident = json.loads(body)["id"]
        eventually(lambda: json.loads(self.call("GET", f"/v1/sandboxes/{ident}")[1])["status"]["state"] == "Running",
                   10, f"{ident} does not run")
        return ident

    def remove(self, ident):
        status, body = self.call("DELETE", f"/v1/sandboxes/{ident}")
        assert status in (200, 202, 204, 404), body
        eventually(lambda: self.call("GET", f"/v1/sandboxes/{ident}")[0] == 404, 10, f"{ident} is still there")

    def only(self, box):
        items = self.objects(box)
        assert len(items) == 1, items
        return items[0]

    def execd(self, box, method, path, body=None, headers=None):
        return self.call(method, f"/v1/sandboxes/{self.only(box)['id']}/proxy/44772{path}", body, headers)

    def shell(self, box, command):
        """(exit code, stdout) of a command inside."""
        status, body = self.execd(box, "POST", "/command", {"command": command})
        assert status == 200, body
        out, code = [], None
        for block in body.decode().split("\n\n"):
            if not block:
                continue
            event = json.loads(block.removeprefix("data: "))
            if event["type"] == "stdout":
                out.append(event["text"])
            elif event["type"] == "execution_complete":
                code = 0
            elif event["type"] == "error":
                code = int(event["error"]["evalue"])
        return code, "\n".join(out)

    def upload(self, box, path, data):
        body = b"".join(b'--B\r\nContent-Disposition: form-data; name="%s"; filename="x"\r\n\r\n%s\r\n' % part
                        for part in ((b"metadata", json.dumps({"path": path}).encode()), (b"file", data))) + b"--B--\r\n"
        status, answer = self.execd(box, "POST", "/files/upload", body, {"Content-Type": "multipart/form-data; boundary=B"})
        assert status == 200, answer

    def download(self, box, path):
        status, body = self.execd(box, "GET", f"/files/download?path={urllib.parse.quote(path)}")
        assert status == 200, body
        return body


# ---- processes -------------------------------------------------------------------------------------------------------
class Replica:
    """One sk-lifecycle that the test itself started."""

    def __init__(self, site, name, fault=None, **settings):
        self.site, self.name = site, name
        self.port = free_port()
        self.environment = {**site.service_environment(), "SANDKEEP_LIFECYCLE_ADMIN_LISTEN": f"127.0.0.1:{self.port}", **settings}
        if fault:
            self.environment["SANDKEEP_FAULT"] = fault
        self.log = site.folder / f"{name}.log"
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([bin_dir() / "sk-lifecycle"], env=self.environment, stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, cwd=site.folder)

    @property
    def pid(self):
        return self.process.pid

    def get(self, path):
        return http_get(f"http://127.0.0.1:{self.port}{path}")

    def ready(self, seconds=20):
        def check():
            status = self.process.poll()
            assert status is None, f"{self.name} ended with {status}: {self.tail()}"
            with contextlib.suppress(OSError):
                return self.get("/readyz")[0] == 200
            return False
        eventually(check, seconds, lambda: f"{self.name} is not ready: {self.tail()}")
        return self

    def died(self, seconds=30):
        """The exit status once it ended."""
        return self.process.wait(seconds)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)

    def terminate(self, seconds=30):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def tail(self, lines=12):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def http_get(url, seconds=10):
    try:
        with urllib.request.urlopen(url, timeout=seconds) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Site:
    """A stack of its own: everything below `folder`. Use it as a context manager, or up() and close()."""

    def __init__(self, folder, replicas=2, sync=False, from_start=True, before=None, **settings):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.count = replicas
        self.environment = {**clean_environment(), "SANDKEEP_STATE_DIR": str(self.folder / "state"), "SANDKEEP_STACK_PROFILE": "fast",
                            "SANDKEEP_BIN_DIR": str(bin_dir()), "SANDKEEP_STACK_MONGO": os.environ.get("SANDKEEP_STACK_MONGO", "python")}
        if not sync:
            self.environment["SANDKEEP_STACK_MONGO_SYNC"] = "off"
        self.environment.update(settings)
        self.from_start = from_start
        self.before = before  # called with the site when the back ends are up and no replica is
        self.bus = self.tap = None
        self.replicas = []

    # ---- life ----
    def stack(self, *arguments, expect=0):
        done = subprocess.run([ROOT / "deploy" / "local" / "stack", *arguments], env=self.environment, capture_output=True, text=True,
                              timeout=150, check=False)
        if expect is not None:
            assert done.returncode == expect, f"stack {' '.join(arguments)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def up(self):
        if self.count:
            # The tap has to listen before the first replica speaks.
            self.stack("up", "--only", BACK_ENDS)
            self._connect()
            self.stack("up", "--scale", f"lifecycle={self.count}", "--only", ",".join([BACK_ENDS] + self.members()))
        else:
            self.stack("up", "--only", BACK_ENDS)
            self._connect()
        return self

    def members(self):
        return [f"lifecycle-{index}" for index in range(1, self.count + 1)]

    def _connect(self):
        self.client = json.loads(self.stack("env", "--json").stdout)
        self.client.pop("SANDKEEP_CODE_URL", None)  # no site starts the code sandbox, and the doctor would miss it
        self.tap = Tap(self.client["SANDKEEP_NATS_URL"], from_start=self.from_start, subjects=("sandbox.>", "replies.>", f"{TAPPED}.>"))
        self.tap.__enter__()
        self.bus = Bus(self.client["SANDKEEP_NATS_URL"])
        self.mongo = pymongo.MongoClient(self.client["SANDKEEP_MONGODB_URI"], tz_aware=True, serverSelectionTimeoutMS=15000)
        self.db = self.mongo.get_default_database()
        self.instances = self.db[INSTANCES]
        self.redis = redis.Redis.from_url(self.client["SANDKEEP_REDIS_URL"])
        self.provider = Provider(self.client["SANDKEEP_LOCALBOX_URL"], self.client["SANDKEEP_LOCALBOX_KEY"])
        if self.before:
            self.before(self)

    def close(self):
        """Ends everything; then the tap must be clean."""
        for replica in self.replicas:
            replica.kill()
        try:
            if self.tap:
                self.tap.stop()
            if self.bus:
                self.bus.close()
        finally:
            self.stack("down", *([] if os.environ.get("KEEP_STACK") else ["--purge"]), expect=None)
        if self.tap:
            self.tap.assert_clean()
        print(self.tap.summary(), file=sys.stderr)

    def __enter__(self):
        try:
            return self.up()
        except BaseException:
            self.stack("down", "--purge", expect=None)
            raise

    def __exit__(self, *_):
        self.close()

    # ---- processes ----
    def service_environment(self):
        if not hasattr(self, "_service"):
            self._service = json.loads(self.stack("env", "--service", "lifecycle-1", "--json").stdout)
        return dict(self._service)

    def start(self, name, fault=None, **settings):
        self.replicas.append(Replica(self, name, fault, **settings))
        return self.replicas[-1]

    def status(self):
        return {row["name"]: row for row in json.loads(self.stack("status", "--json", expect=None).stdout)}

    def pid(self, member):
        return self.status()[member]["pid"]

    def admin(self, index, path):
        return http_get(self.client[f"SANDKEEP_LIFECYCLE_{index}_ADMIN_URL"] + path)

    def metric(self, name, labels=""):
        """The sum of a metric over the stack's replicas."""
        total = 0.0
        for index in range(1, self.count + 1):
            for line in self.admin(index, "/metrics")[1].splitlines():
                if line.startswith((name + " ", name + "{")) and labels in line:
                    total += float(line.rsplit(" ", 1)[1])
        return total

    def skctl(self, *arguments, expect=0, seconds=120):
        done = subprocess.run([bin_dir() / "skctl", *arguments], env={**self.environment, **self.client}, capture_output=True, text=True,
                              timeout=seconds, check=False)
        if expect is not None:
            assert done.returncode == expect, f"skctl {' '.join(arguments)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    @contextlib.contextmanager
    def provider_paused(self):
        """sk-localbox stands still meanwhile: every operation stays where it is."""
        pid = self.pid("localbox")
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    # ---- what is there ----
    def record(self, box):
        return self.instances.find_one({"sandboxId": box.id})

    def state(self, box):
        found = self.record(box)
        return found["status"] if found else "none"

    def slots(self, box=None):
        return [slot for slot in self.db["sandkeep_quota"].find({"held": {"$gte": ""}}) if box is None or slot["holder"] == box.id]

    def leases(self, box=None):
        return [key.decode() for key in self.redis.scan_iter(match=f"*{box.id if box else 'agent-sandbox'}*", count=1000)]

    def remains(self, box):
        """What is left of a sandbox anywhere, as texts; nothing is left when it is empty."""
        left = []
        if self.record(box):
            left.append(f"record: {self.record(box)}")
        left += [f"provider object {item['id']}" for item in self.provider.objects(box)]
        left += [f"volume {name}" for name in self.provider.volumes() if box.id in name]
        left += [f"lease {name}" for name in self.leases(box)]
        left += [f"slot {slot['_id']}" for slot in self.slots(box)]
        return left

    def gone(self, *boxes, seconds=10):
        """Nothing is left of these sandboxes (a lease may outlive the answer by a moment)."""
        eventually(lambda: not any(self.remains(box) for box in boxes), seconds,
                   lambda: f"left: {[(box, self.remains(box)) for box in boxes if self.remains(box)]}")

    def settle(self, seconds=30, stream=True):
        """Waits until no command, event or lease is under way. Without `stream` only the consumer is asked about commands:
        a NATS server that was killed may keep messages in a work queue that its consumer knows to be acknowledged."""
        def busy():
            out = []
            info = self.bus.consumer()
            if info.num_pending or info.num_ack_pending:
                out.append(f"{info.num_pending} commands wait, {info.num_ack_pending} are not acknowledged")
            if stream and self.bus.stream("SANDBOX_COMMANDS").state.messages:
                out.append(f"in the command stream: {self.bus.stored('SANDBOX_COMMANDS')}")
            out += [f"outbox of {doc['sandboxId']}" for doc in self.instances.find({"outbox.id": {"$gte": ""}}).limit(3)]
            out += [f"lease {name}" for name in self.leases()[:3]]
            return out
        eventually(lambda: not busy(), seconds, lambda: f"not at rest: {busy()}")

    def doctor(self, grace="0s", ignore=()):
        """Findings of skctl doctor, as (sandboxId, invariant, detail)."""
        done = self.skctl("doctor", "--json", f"--grace={grace}", expect=None)
        assert done.returncode in (0, 1), done.stderr
        found = [(item["sandboxId"], item["invariant"], item["detail"]) for item in json.loads(done.stdout)["findings"]]
        return [item for item in found if item[1] not in ignore]

    def delete_all(self, boxes, seconds=90):
        commands = self.bus.send_many(self.bus.prepare("delete", box, deadline_ms=int(seconds * 1000)) for box in boxes)
        for command in commands:
            command.ok(seconds)

    def timeline(self, box):
        return self.bus.ask("timeline", sandboxId=box.id)["items"]


def in_parallel(action, items, width=8):
    """[action(item) …], several at a time; the first failure is raised."""
    with concurrent.futures.ThreadPoolExecutor(width) as pool:
        return list(pool.map(action, items))
