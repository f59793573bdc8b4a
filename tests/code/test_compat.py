# SPDX-License-Identifier: Apache-2.0
"""The compatibility table (compat/) against sk-code, or against the server that SANDKEEP_CODE_COMPAT_URL and
SANDKEEP_CODE_COMPAT_TOKEN name; compat/run.py does the latter without pytest."""
import os
import pathlib
import re
import subprocess
import sys

import pytest
from code_server import CodeServer
from compat import rows_http, rows_js, rows_network, rows_python
from compat.table import Target, wanted

RUN = pathlib.Path(__file__).resolve().parent / "compat" / "run.py"
ELSEWHERE = os.environ.get("SANDKEEP_CODE_COMPAT_URL", "")
CONFIGURATIONS = {
    "default": {},
    "small": {"SANDBOX_API_MAX_BODY_MB": 1, "SANDBOX_MAX_OUTPUT_MB": 1, "SANDBOX_MAX_TIMEOUT": 1000, "SANDBOX_MAX_TMP_MB": 1,
              "SANDBOX_REQUEST_MAX_COUNT": 2, "SANDBOX_REQUEST_MAX_BODY_MB": 1},
    "strict": {"SANDBOX_COMPAT_STRICT": "true"},
}
ROWS = [row for row in rows_http.ROWS + rows_js.ROWS + rows_python.ROWS + rows_network.ROWS
        if wanted(row, not ELSEWHERE, network=bool(os.environ.get("SANDKEEP_TEST_NETWORK")))]
ROWS.sort(key=lambda row: list(CONFIGURATIONS).index(row.server))  # one server after the other


@pytest.fixture(scope="module")
def targets():
    """A server for each configuration that is asked for, started at the first row that wants it."""
    if ELSEWHERE:
        target = Target(ELSEWHERE, os.environ.get("SANDKEEP_CODE_COMPAT_TOKEN", ""))
        yield lambda name: target
        target.close()
        return
    running = {}

    def target(name):
        if name not in running:
            server = CodeServer(CONFIGURATIONS[name]).start()
            running[name] = (server, Target(server.url, server.token, ours=True))
        return running[name][1]
    yield target
    for server, connection in running.values():
        connection.close()
        server.close()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.language or 'http'}-{row}")
def test_row(targets, row):
    fault = targets(row.server).judge(row)
    assert not fault, fault


@pytest.mark.skipif(bool(ELSEWHERE), reason="this is about our own server")
def test_the_door_to_other_servers():
    """compat/run.py against our own server as if it were not ours: with the strict switch it is what the original is. And it
    fails where a row does not hold."""
    with CodeServer(CONFIGURATIONS["strict"]) as server:
        command = [sys.executable, RUN, server.url, "--token", server.token, "--fast"]
        done = subprocess.run([*command, "-k", "A1 ", "A5", "A8"], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and re.search(r"^\d{3} rows hold, 0 do not$", done.stdout, re.M), done.stdout + done.stderr
        wrong = subprocess.run([*command[:-1], "--ours", "-k", "big integers"], capture_output=True, text=True, timeout=60)
        assert wrong.returncode == 1 and "0 rows hold, 1 do not" in wrong.stdout, wrong.stdout


def test_names_are_unique():
    names = [(row.language, str(row)) for row in rows_http.ROWS + rows_js.ROWS + rows_python.ROWS + rows_network.ROWS]
    assert len(names) == len(set(names)), sorted({name for name in names if names.count(name) > 1})
