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
LOCK_SECONDS = 300


class StackError(Exception):
    """An error that is shown as one sentence; the exit status is 1."""


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
