# SPDX-License-Identifier: Apache-2.0
"""What a stack remembers between runs: ports, key, processes, scale. One JSON file, replaced atomically, mode 0600; one
lock file for the verbs that change something."""
import contextlib
import fcntl
import json
import os
import pathlib
import random
import secrets
import tempfile
import time

from . import process

# Below the kernel's ephemeral range (32768..), so that no outgoing connection takes a remembered port.
PORT_FIRST, PORT_LAST = 20000, 32000
# Users of the code sandbox's tasks: 12 x (the largest pool, 100, + 8) + 1 in a block, above what people, services and
# sk-localbox have; where fewer users are mapped (containers), from UID_LOW on.
UID_BLOCK, UID_FIRST, UID_LAST, UID_LOW = 1300, 3_000_000, 130_000_000, 10_000
LOCK_SECONDS = 300


class StackError(Exception):
    """An error that is shown as one sentence; the exit status is 1."""


def uid_blocks():
    """First uids of the blocks that exist in this user namespace."""
    mapped = [(int(first), int(count)) for first, _, count in
              (line.split() for line in pathlib.Path("/proc/self/uid_map").read_text().splitlines())]

    def blocks(low, high):
        return [range(max(low, first), min(high, first + count) - UID_BLOCK, UID_BLOCK) for first, count in mapped]

    found = [block for block in blocks(UID_FIRST, UID_LAST) if block] or [block for block in blocks(UID_LOW, UID_FIRST) if block]
    if not found:
        raise StackError("no block of users for the code sandbox is mapped here")
    return max(found, key=len)


class State:
    def __init__(self, root):
        self.clone = pathlib.Path(root)
        self.root = pathlib.Path(os.environ.get("SANDKEEP_STATE_DIR") or self.clone / ".local").absolute()
        self.file = self.root / "stack.json"
        self.data = {}
        self.load()

    def load(self):
        try:
            self.data = json.loads(self.file.read_text())
        except FileNotFoundError:
            self.data = {}
        except (OSError, ValueError) as error:
            raise StackError(f"{self.file} cannot be read: {error}") from error
        for name, empty in (("ports", {}), ("members", {}), ("scale", {"lifecycle": 2}), ("external", {}), ("own_urls", [])):
            self.data.setdefault(name, empty)

    def exists(self):
        return self.file.exists()

    def save(self):
        self.data.setdefault("version", 1)
        self.data.setdefault("id", secrets.token_hex(16))
        self.data.setdefault("key", secrets.token_hex(24))
        self.data.setdefault("code_token", secrets.token_hex(24))
        self.root.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix="stack.", suffix=".tmp", dir=self.root)  # made with mode 0600
        try:
            with os.fdopen(handle, "w") as out:
                json.dump(self.data, out, indent=1)
                out.flush()
                os.fsync(out.fileno())
            os.replace(name, self.file)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise

    @contextlib.contextmanager
    def locked(self):
        """Holds the stack's lock: one changing verb at a time; the others wait."""
        self.root.mkdir(parents=True, exist_ok=True)
        with open(self.root / "stack.lock", "a+") as lock:
            end = time.monotonic() + LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise StackError(f"another stack command has held {lock.name} for {LOCK_SECONDS} s") from None
                    time.sleep(0.05)
            self.load()
            yield

    def port(self, name, avoid=()):
        """The remembered port of this name, or a new free one (also when the remembered one is in `avoid`)."""
        ports = self.data["ports"]
        if name in ports and ports[name] not in avoid:
            return ports[name]
        taken = set(ports.values()) | set(avoid)
        for _ in range(400):
            candidate = random.randint(PORT_FIRST, PORT_LAST)
            if candidate not in taken and process.port_free(candidate):
                ports[name] = candidate
                return candidate
        raise StackError("no free port found on 127.0.0.1")

    def uid_block(self, wait=0):
        """The remembered first uid of this stack's block, or a new free one. With `wait`, a remembered block must be free
        within so many seconds, else another one is taken."""
        first = self.data.get("uid_base")
        end = time.monotonic() + wait
        while first is not None and wait and process.uids_in_use(first, UID_BLOCK):
            if time.monotonic() >= end:
                first = None
            time.sleep(0.02)
        for _ in range(400):
            if first is not None:
                self.data["uid_base"] = first
                return first
            first = random.choice(uid_blocks())
            if process.uids_in_use(first, UID_BLOCK):
                first = None
        raise StackError("no block of users for the code sandbox is free")

    @property
    def logs(self):
        return self.root / "logs"

    @property
    def data_dir(self):
        return self.root / "data"

    def record(self, name):
        return self.data["members"].get(name)

    def alive(self, name):
        return process.alive(self.record(name))
