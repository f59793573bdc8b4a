# SPDX-License-Identifier: Apache-2.0
"""The compatibility table (compat/) against sk-code, or against the server that SANDKEEP_CODE_COMPAT_URL and
SANDKEEP_CODE_COMPAT_TOKEN name; compat/run.py does the latter without pytest."""
import os

import pytest
from code_server import CodeServer
from compat import rows_http, rows_js, rows_network, rows_python
from compat.table import Target, wanted

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


def test_names_are_unique():
    names = [(row.language, str(row)) for row in rows_http.ROWS + rows_js.ROWS + rows_python.ROWS + rows_network.ROWS]
    assert len(names) == len(set(names)), sorted({name for name in names if names.count(name) > 1})
