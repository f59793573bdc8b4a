# SPDX-License-Identifier: Apache-2.0
"""memcheck.py BUILD-DIR: every unit test of a build under valgrind, two at a time. Only errors and definite leaks count.
Those with the label no-valgrind are left out (an engine with a heap, a compiler and a start of its own).
Ends with one line "N passed, N failed"."""
import concurrent.futures
import json
import os
import subprocess
import sys

TIMEOUT = 600
VALGRIND = ["valgrind", "-q", "--error-exitcode=99", "--leak-check=full", "--show-leak-kinds=definite", "--errors-for-leak-kinds=definite", "--num-callers=20"]


def unit_tests(build):
    shown = subprocess.run(["ctest", "--test-dir", build, "-L", "^unit$", "-LE", "^no-valgrind$", "--show-only=json-v1"], capture_output=True, text=True, check=True)
    for test in json.loads(shown.stdout)["tests"]:
        command = test.get("command", [])
        if command and "/tests/" in command[0] and os.access(command[0], os.X_OK):
            yield test["name"], command


def run(item):
    name, command = item
    try:
        # Time-outs inside a test are those of a machine that is twenty times faster.
        done = subprocess.run(VALGRIND + command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT, check=False,
                              env={**os.environ, "CK_TIMEOUT_MULTIPLIER": "20"})
        return name, done.returncode, (done.stdout + done.stderr)[-6000:]
    except subprocess.TimeoutExpired:
        return name, -1, f"did not end within {TIMEOUT} s"


def main():
    failed = passed = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for name, status, text in pool.map(run, list(unit_tests(sys.argv[1]))):
            print(f"{'ok  ' if status == 0 else 'FAIL'} {name}", flush=True)
            if status != 0:
                print(text)
            passed, failed = passed + (status == 0), failed + (status != 0)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
