# SPDX-License-Identifier: Apache-2.0
"""Every slot of both languages busy on a machine with few processors: nobody is taken for dead, nobody is forgotten."""
import threading

from code_server import CodeServer

POOL = 20
LOOP = "function main() { const end = Date.now() + 2500; let n = 0; while (Date.now() < end) n++; return 1 }"
NUMBERS = """
import numpy, time
def main():
    end, n = time.time() + 2.5, 0
    while time.time() < end:
        numpy.random.rand(200, 200).sum()
        n += 1
    return 1
"""


def test_busy_tasks_leave_the_zygotes_time_to_answer():
    with CodeServer({"SANDBOX_POOL_SIZE": POOL, "SANDBOX_MAX_TIMEOUT": 60000}) as server:
        answers = []

        def one(language, code):
            answers.append(server.run(language, code, timeoutMs=30000, timeout=90))

        for _ in range(2):
            crowd = [threading.Thread(target=one, args=case) for case in [("js", LOOP), ("python", NUMBERS)] * POOL]
            for thread in crowd:
                thread.start()
            for thread in crowd:
                thread.join()
        assert len(answers) == 4 * POOL
        assert all(status == 200 and body["success"] and body["data"]["codeReturn"] == 1 for status, body in answers), \
            [body for _, body in answers if not body.get("success")][:3]
        assert server.metrics().get("sandkeep_code_zygotes_suspect_total", 0) == 0, server.log()[-2000:]
