# SPDX-License-Identifier: Apache-2.0
"""Starting and stopping: the part of the stack that changes something. Every change is written to the state file right
after it happened, so that an interrupted run leaves nothing that the next `down` does not find."""
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import sys
import threading
import time
import urllib.parse

from . import members, probes, process
from .state import State, StackError

START_TRIES = 4
SCALE_LIMIT = 32


def note(text):
    print(text, file=sys.stderr, flush=True)


class Stack:
    def __init__(self, clone):
        self.clone = pathlib.Path(clone)
        self.state = State(clone)
        self.guard = threading.RLock()  # the state file and the port table, among the threads of one run

    # ---- what the stack looks like --------------------------------------------------------------------------------
    @property
    def bin_dir(self):
        return pathlib.Path(self.state.data.get("bin_dir") or self.clone / "build" / "release" / "bin")

    @property
    def profile(self):
        return self.state.data.get("profile") or "default"

    @property
    def external(self):
        return self.state.data["external"]

    @property
    def key(self):
        return self.state.data.get("external_key") or "" if "localbox" in self.external else self.state.data["key"]

    @property
    def code_token(self):
        if "code" in self.external:
            return self.state.data.get("external_code_token") or ""
        return self.state.data.get("code_token", "")

    @property
    def code_runs(self):
        """Tasks of the code sandbox need users of their own; without root it runs only for whoever asked for less."""
        return self.state.data.get("code", os.geteuid() == 0)

    def members(self):
        return members.members_of(self)

    def member(self, name):
        for member in self.members():
            if member.name == name:
                return member
        raise StackError(f"there is no member {name!r}; members: {' '.join(m.name for m in self.members())}")

    def wanted(self):
        """The members that should run here: all but external ones, or those of `up --only`."""
        only = self.state.data.get("only")
        return [m for m in self.members() if m.name not in self.external and (not only or m.name in only)]

    def url(self, name):
        return self.external.get(name) or self.member(name).address

    def provider_settings(self):
        """How a client of the provider finds it: FastGPT's variable names."""
        url = self.url("localbox")
        return {
            "AGENT_SANDBOX_OPENSANDBOX_BASEURL": url,
            "AGENT_SANDBOX_OPENSANDBOX_API_KEY": self.key,
            "AGENT_SANDBOX_OPENSANDBOX_VOLUME_MANAGER_URL": url,
            "AGENT_SANDBOX_OPENSANDBOX_VOLUME_MANAGER_TOKEN": self.key,
        }

    def client_environment(self):
        """What `stack env` prints: how anything outside finds the stack."""
        out = {
            "SANDKEEP_NATS_URL": self.url("nats"),
            "SANDKEEP_MONGODB_URI": self.url("mongo"),
            "SANDKEEP_REDIS_URL": self.url("redis"),
            "SANDKEEP_LOCALBOX_URL": self.url("localbox"),
            "SANDKEEP_LOCALBOX_KEY": self.key,
        }
        if "localbox" not in self.external:
            out["SANDKEEP_LOCALBOX_ADMIN_URL"] = self.member("localbox").admin_address
        if self.code_runs or "code" in self.external:
            out.update(SANDKEEP_CODE_URL=self.url("code"), SANDKEEP_CODE_TOKEN=self.code_token)
            if "code" not in self.external:
                out["SANDKEEP_CODE_ADMIN_URL"] = self.member("code").admin_address
        for member in self.members():
            if member.name.startswith("lifecycle-"):
                index = member.name.rpartition("-")[2]
                out[f"SANDKEEP_LIFECYCLE_{index}_ADMIN_URL"] = member.address
                if index == "1":
                    out["SANDKEEP_LIFECYCLE_ADMIN_URL"] = member.address
        return out

    def fingerprint(self, member):
        """What a running service depends on; when it changes, `up` restarts the service."""
        if not isinstance(member, members.Service):
            return {}
        settings = member.settings()
        # Rebuilt since: the running one is not what the user means any more.
        found = {"program": " ".join(f"{program.st_ino}:{program.st_mtime_ns}" for program in map(os.stat, member.programs()))}
        found.update({name: value for name, value in settings.items()
                      if name.endswith(("_URL", "_URI", "_LISTEN", "BASEURL", "_KEY", "_TOKEN", "_DIR", "_MS", "_PORT", "_BASE"))})
        return found

    def service_environment(self, member):
        """The whole environment of a member: the one it runs with, or the one it would be started with."""
        record = self.state.record(member.name)
        if process.alive(record) and "env" in record:
            return record["env"]
        return member.environment()

    def probe(self, member):
        record = self.state.record(member.name)
        if not process.owns_port(record, member.port()):
            return "does not listen yet"
        return member.probe()

    def describe(self):
        """Rows for status: name, address, pid, log, state (up | unready | down | external | unreachable) and why."""
        def row(member):
            out = {"name": member.name, "address": self.external.get(member.name) or member.address, "pid": None, "log": str(member.log)}
            if member.name in self.external:
                host, port = probes.url_address(out["address"], members.DEFAULT_PORTS[member.name])
                reason = probes.tcp(host, port)
                out.update(log=None, state="unreachable" if reason else "external")
            elif self.state.alive(member.name):
                reason = self.probe(member)
                out.update(pid=self.state.record(member.name)["pid"], state="unready" if reason else "up")
            else:
                reason, out["state"] = None, "down"
            if reason:
                out["reason"] = reason
            return out

        only = self.state.data.get("only")
        shown = [m for m in self.members() if not only or m.name in only or m.name in self.external]
        with concurrent.futures.ThreadPoolExecutor(len(shown) or 1) as pool:
            return list(pool.map(row, shown))

    # ---- up -------------------------------------------------------------------------------------------------------
    def choose(self, scale, only):
        """Takes over what the command line and the environment say. A running stack keeps what is not said anew."""
        data = self.state.data
        if not any(self.state.alive(name) for name in data["members"]):
            for name in ("bin_dir", "profile", "mongo", "mongo_sync"):
                data.pop(name, None)
        if os.environ.get("SANDKEEP_BIN_DIR"):
            data["bin_dir"] = str(pathlib.Path(os.environ["SANDKEEP_BIN_DIR"]).absolute())
        for name, variable, choices in (("profile", "SANDKEEP_STACK_PROFILE", tuple(members.PROFILES)),
                                        ("mongo", "SANDKEEP_STACK_MONGO", ("python", "fast")),
                                        ("mongo_sync", "SANDKEEP_STACK_MONGO_SYNC", ("on", "off"))):
            value = os.environ.get(variable)
            if value and value not in choices:
                raise StackError(f"{variable}={value}: must be one of {', '.join(choices)}")
            if value and (name == "profile" or not self.state.alive("mongo")):
                data[name] = value if name != "mongo_sync" else value == "on"
        data["scale"].update(scale)
        data["only"] = only
        for name, variable in members.EXTERNAL.items():
            value = os.environ.get(variable)
            if value and value not in data["own_urls"]:
                data["external"][name] = value
            else:
                data["external"].pop(name, None)
        if not self.state.alive("code"):
            data["code"] = os.geteuid() == 0 or os.environ.get("SANDBOX_ALLOW_UNSAFE", "").lower() in ("true", "1", "on", "yes")
        data["external_code_token"] = os.environ.get("SANDKEEP_CODE_TOKEN", "") if "code" in data["external"] else None
        data["external_key"] = os.environ.get("SANDKEEP_LOCALBOX_KEY", "") if "localbox" in data["external"] else None
        self.state.save()

    def up(self, scale, only):
        with self.state.locked():
            for service, count in scale.items():
                if service not in self.state.data["scale"] or not 0 <= count <= SCALE_LIMIT:
                    raise StackError(f"--scale {service}={count}: services that scale: "
                                     f"{', '.join(self.state.data['scale'])}; 0 to {SCALE_LIMIT}")
            self.state.save()
            self.choose(scale, only)
            wanted = self.wanted()
            known = {member.name for member in self.members()}
            if "code" not in known and (not only or "code" in only):
                reason = ("code is left out: its tasks need users of their own, which only root can give them "
                          "(SANDBOX_ALLOW_UNSAFE=true runs them as you, behind the other walls)")
                if only:
                    raise StackError(reason)
                note(reason)
            for name in only or []:
                if name not in known:
                    raise StackError(f"there is no member {name!r}; members: {' '.join(sorted(known))}")
            for member in wanted:
                member.check()
            for member in self.members():
                for port in member.ports:
                    self.state.port(port)
                self.remember_url(member)
            self.state.save()
            names = {member.name for member in wanted}
            self.stop_all([name for name in self.state.data["members"] if name not in names and self.state.alive(name)])
            for first in (True, False):
                self.parallel(self.ensure, [m for m in wanted if (m.tier < 2) is first])

    def parallel(self, action, items):
        """Runs the action for all; then the first failure is raised (the others are noted)."""
        if not items:
            return
        with concurrent.futures.ThreadPoolExecutor(len(items)) as pool:
            futures = [pool.submit(action, item) for item in items]
        failures = [future.exception() for future in futures if future.exception()]
        for failure in failures[1:]:
            note(f"also: {failure}")
        if failures:
            raise failures[0]

    def ensure(self, member):
        """Leaves a running member alone (unless what it depends on moved) and starts a missing one."""
        record = self.state.record(member.name)
        if process.alive(record):
            if record.get("fingerprint", {}) == self.fingerprint(member):
                self.wait_ready(member, record)
                return
            note(f"{member.name}: its program or its surroundings changed, restarting")
            self.stop(member.name)
        self.start(member)

    def start(self, member):
        # Two servers on one data folder would ruin it: one that an interrupted run started is ended first.
        self.end_processes(process.marked(self.state.data["id"], member.name, str(member.command()[0])))
        refused = []
        for attempt in range(START_TRIES):
            with self.guard:
                for port in member.ports:
                    chosen = self.state.port(port, refused)
                    if not process.port_free(chosen):
                        refused.append(chosen)
                        self.state.port(port, refused)
                self.remember_url(member)
                member.prepare()
                environment = member.environment()
                record = process.spawn(member.command(), environment, member.log, member.data)
                record.update(log=str(member.log), env=environment, fingerprint=self.fingerprint(member))
                self.state.data["members"][member.name] = record
                self.state.save()
            status = self.wait_ready(member, record, may_end=True)
            if status is None:
                return
            taken = [self.state.port(port) for port in member.ports if not process.port_free(self.state.port(port))]
            if not taken:
                raise StackError(f"{member.name} ended with status {status} before it was ready; {member.log}:\n{tail(member.log)}")
            note(f"{member.name}: port {taken[0]} was taken meanwhile, choosing another")
            refused += taken
        raise StackError(f"{member.name}: no port could be had in {START_TRIES} tries")

    def remember_url(self, member):
        known = self.state.data["own_urls"]
        if member.name in members.EXTERNAL and member.address not in known:
            known.append(member.address)
            del known[:-64]

    def wait_ready(self, member, record, may_end=False):
        """Waits until the probe passes. With may_end an exit status is returned when the process ends first."""
        seconds = float(os.environ.get("SANDKEEP_STACK_READY_SECONDS") or member.ready_seconds)
        end = time.monotonic() + seconds
        pause, reason = 0.01, "not probed"
        while time.monotonic() < end:
            status = process.reap(record["pid"])
            if not process.alive(record):
                if may_end:
                    return status if status is not None else "unknown"
                raise StackError(f"{member.name} ended; {member.log}:\n{tail(member.log)}")
            reason = self.probe(member)
            if reason is None:
                return None
            time.sleep(pause)
            pause = min(pause * 1.5, 0.25)
        raise StackError(f"{member.name} was not ready after {seconds:g} s: {reason}; {member.log}:\n{tail(member.log)}")

    # ---- down -----------------------------------------------------------------------------------------------------
    def stop(self, name):
        """SIGTERM, then SIGKILL when its time is over; then what it left in its own session (never sandboxes)."""
        record = self.state.record(name)
        if not process.alive(record):
            return
        seconds = next((m.stop_seconds for m in self.members() if m.name == name), 35)
        process.send(record, signal.SIGTERM)
        if not process.wait_gone(record, seconds):
            note(f"{name}: did not end within {seconds} s of SIGTERM, killing it")
            process.send(record, signal.SIGKILL)
            process.wait_gone(record, 5)

    def stop_all(self, names):
        """Services first, then the provider, then what they stood on."""
        def tier(name):
            return 2 if name.startswith(("lifecycle-", "code")) else 1 if name == "localbox" else 0
        for level in (2, 1, 0):
            self.parallel(self.stop, [name for name in names if tier(name) == level])

    def down(self, purge):
        if not self.state.root.exists():
            return False
        with self.state.locked():
            names = [name for name in self.state.data["members"] if self.state.alive(name)]
            self.stop_all([name for name in names if name.startswith(("lifecycle-", "code"))])
            if "localbox" not in self.external:
                self.end_sandboxes()
            self.stop_all([name for name in self.state.data["members"] if self.state.alive(name)])
            self.end_marked()
            for member in self.members():
                if self.state.record(member.name):
                    member.clean(self.state.record(member.name))
            for record in self.state.data["members"].values():
                record["pid"] = None
            if self.state.exists():
                self.state.save()
            if purge:
                self.purge()
        return True

    def end_marked(self):
        """What an interrupted run started and could not write down, and what a member left behind."""
        if self.state.data.get("id"):
            self.end_processes(process.marked(self.state.data["id"]))

    @staticmethod
    def end_processes(left):
        for record in left:
            process.send(record, signal.SIGTERM)
        for record in left:
            if not process.wait_gone(record, 3):
                process.send(record, signal.SIGKILL)
                process.wait_gone(record, 3)

    def end_sandboxes(self):
        """Ends every sandbox of our provider. They outlive its daemon, so that one is started for this when it is dead."""
        member = self.member("localbox")
        if not (member.data.exists() and any(member.data.iterdir())):
            return
        try:
            if not self.state.alive("localbox"):
                member.check()
                self.start(member)
            ended = Provider(member.address, self.key).end_all()
            if ended:
                note(f"ended {ended} sandbox{'es' if ended > 1 else ''}")
        except (StackError, OSError, http.client.HTTPException, ValueError) as error:
            note(f"sandboxes could not be ended through the provider: {error}")

    def purge(self):
        for folder in (self.state.data_dir, self.state.logs, self.state.root / "tour"):
            shutil.rmtree(folder, ignore_errors=True)
        for name in ("stack.json", "stack.lock"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.state.root / name)
        with contextlib.suppress(OSError):  # something of somebody else is in it
            self.state.root.rmdir()

    # ---- one member -----------------------------------------------------------------------------------------------
    def restart(self, name):
        with self.state.locked():
            member = self.member(name)
            if name in self.external:
                raise StackError(f"{name} is an external server: {self.external[name]}")
            member.check()
            self.stop(name)
            self.start(member)

    def kill(self, name):
        with self.state.locked():
            self.member(name)
            record = self.state.record(name)
            if not process.send(record, signal.SIGKILL):
                raise StackError(f"{name} is not running")
            if not process.wait_gone(record, 10):
                raise StackError(f"{name} (pid {record['pid']}) did not end")


def tail(path, lines=15):
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 64 * 1024))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return "  (no log)"
    return "\n".join("  " + line for line in text.splitlines()[-lines:])


class Provider:
    """As much of the OpenSandbox API as ending everything takes."""

    def __init__(self, url, key):
        self.parts, self.key = urllib.parse.urlsplit(url), key

    def call(self, method, path):
        connection = http.client.HTTPConnection(self.parts.hostname, self.parts.port, timeout=30)
        try:
            connection.request(method, path, headers={"OPEN-SANDBOX-API-KEY": self.key})
            answer = connection.getresponse()
            return answer.status, answer.read(8 * 1024 * 1024)
        finally:
            connection.close()

    def end_all(self):
        ended = 0
        for _ in range(100):  # pages; each pass deletes what it saw
            status, body = self.call("GET", "/v1/sandboxes?page=1&pageSize=200")
            if status != 200:
                raise StackError(f"listing sandboxes: HTTP {status}")
            items = [item["id"] for item in json.loads(body).get("items", [])]
            if not items:
                return ended
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                for status, _ in pool.map(lambda item: self.call("DELETE", f"/v1/sandboxes/{item}"), items):
                    if status not in (202, 204, 404):
                        raise StackError(f"ending a sandbox: HTTP {status}")
                    ended += status != 404
        raise StackError("sandboxes keep appearing")
