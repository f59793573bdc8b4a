# SPDX-License-Identifier: Apache-2.0
"""The short form of tests/code/soak."""
import os

import code_soak
from code_server import CodeServer
from table import need_full

TASKS = int(os.environ.get("SANDKEEP_CODE_SOAK", "4000"))


def test_nothing_grows():
    with CodeServer({"SANDBOX_POOL_SIZE": 4, "SANDKEEP_LOG_LEVEL": "warn"}) as server:
        need_full(server)
        report = code_soak.run(server, TASKS, rounds=8)
    print(report.text())
    assert not report.faults, report.text() + "\n" + "\n".join(report.faults)
