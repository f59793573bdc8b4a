# SPDX-License-Identifier: Apache-2.0
"""A clone of the stack's own files in a folder of its own (with a space in its path), ended and removed after the test."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BACK_ENDS = "nats,redis,mongo"
# Nothing of the caller's shell may choose what a test runs on.
CLEARED = ("SANDKEEP_", "AGENT_SANDBOX_", "SANDBOX_", "CHECK_INTERNAL_IP")


def default_bin_dir():
    if os.environ.get("SANDKEEP_BIN_DIR"):
        return pathlib.Path(os.environ["SANDKEEP_BIN_DIR"])
    found = [ROOT / "build" / preset / "bin" for preset in ("debug", "release", "asan")]
    return next((folder for folder in found if (folder / "sk-lifecycle").exists()), found[0])


class Clone:
    """Runs deploy/local/stack of a copy and remembers what it has to end."""

    def __init__(self, folder):
        self.folder, self.ids = folder, set()
        (folder / "deploy").mkdir(parents=True)
        shutil.copytree(ROOT / "deploy" / "local", folder / "deploy" / "local", ignore=shutil.ignore_patterns("__pycache__"))
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(CLEARED)}
        self.environment["SANDKEEP_BIN_DIR"] = str(default_bin_dir())
        for name in ("SANDKEEP_TOOLS_DIR",):
            if name in os.environ:
                self.environment[name] = os.environ[name]

    def run(self, *arguments, expect=0, **environment):
        done = subprocess.run([str(self.folder / "deploy" / "local" / "stack"), *arguments], capture_output=True, text=True,
                              env={**self.environment, **environment}, timeout=150, check=False)
        with contextlib.suppress(OSError, ValueError, KeyError):
            self.ids.add(self.state["id"])  # kept, so that its processes are found when the folder is gone
        if expect is not None:
            assert done.returncode == expect, f"stack {' '.join(arguments)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def status(self):
        return {row["name"]: row for row in json.loads(self.run("status", "--json", expect=None).stdout)}

    def pids(self):
        return {name: row["pid"] for name, row in self.status().items()}

    def env(self, *arguments):
        return json.loads(self.run("env", "--json", *arguments).stdout)

    @property
    def state(self):
        return json.loads((self.folder / ".local" / "stack.json").read_text())


@pytest.fixture
def make_clone(tmp_path):
    made = []

    def make(name="a clone"):
        made.append(Clone(tmp_path / name))
        return made[-1]

    yield make
    for clone in made:
        with contextlib.suppress(OSError):
            clone.run("down", expect=None)
        for pid in marked_pids(clone):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def clone(make_clone):
    return make_clone()


def marked_pids(clone):
    """Every process that carries the mark of this clone's stack."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        clone.ids.add(clone.state["id"])
    wanted = {f"SANDKEEP_STACK_ID={one}".encode() for one in clone.ids}
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if wanted.intersection((entry / "environ").read_bytes().split(b"\0")):
                    found.append(int(entry.name))
            except OSError:
                pass
    return found
