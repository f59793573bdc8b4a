# SPDX-License-Identifier: Apache-2.0
"""The unmodified npm SDK of OpenSandbox against sk-localbox (sdk.mjs does the work)."""
import pathlib
import shutil
import subprocess

import pytest

from conftest import KEY, ROOT

STEPS = ["create", "info", "run", "stream", "background", "files", "metrics", "sessions", "renew", "metadata and endpoints", "list",
         "pause and resume", "kill"]


def test_npm_sdk(daemon):
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    assert (ROOT / "tests/node/node_modules").is_dir(), "run scripts/install-deps"
    script = pathlib.Path(__file__).with_name("sdk.mjs")
    done = subprocess.run(["node", script, f"127.0.0.1:{daemon.port}", KEY], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line[3:] for line in done.stdout.splitlines()] == STEPS
