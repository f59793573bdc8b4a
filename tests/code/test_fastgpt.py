# SPDX-License-Identifier: Apache-2.0
"""FastGPT's way of calling the code sandbox, with the official axios (tests/node/fastgpt-code.mjs does the work)."""
import pathlib
import shutil
import subprocess

import pytest

NODE = pathlib.Path(__file__).resolve().parents[1] / "node"
STEPS = ["js template", "py template", "log", "errors are rejections with the message", "the node shows an error", "no inputs",
         "results that are no objects", "packages", "a slash at the end of the base", "wrong tokens", "a body that is too large",
         "keep-alive, many at once", "a client that gives up"]


def test_fastgpt_client(server):
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    assert (NODE / "node_modules/axios").is_dir(), "run scripts/install-deps"
    done = subprocess.run(["node", NODE / "fastgpt-code.mjs", server.url, server.token], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line[3:] for line in done.stdout.splitlines()] == STEPS
    server.wait_idle()  # the task that nobody waits for any more has been cancelled
