# SPDX-License-Identifier: Apache-2.0
"""The summary of the test runner counts what each runner really said."""
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import tally  # noqa: E402


@pytest.mark.parametrize("text,expected", [
    ("100% tests passed, 0 tests failed out of 28\n", (28, 0, 0)),
    ("93% tests passed, 2 tests failed out of 28\n", (26, 2, 0)),
    ("2 failed, 127 passed in 28.82s\n", (127, 2, 0)),
    ("\x1b[32m======= \x1b[1m3 passed\x1b[0m, 1 skipped, 2 warnings in 0.1s (0:00:01) =======\x1b[0m\n", (3, 0, 1)),
    ("1 error in 0.5s\n", (0, 1, 0)),
    ("# pass 5\n# fail 1\n# skipped 2\n", (5, 1, 2)),
    ("ℹ pass 5\nℹ fail 0\nℹ skipped 0\n", (5, 0, 0)),
    ("4 passed, 0 failed\nsim: 1 passed, 1 failed, 2 skipped\n", (5, 1, 2)),
    ("we passed 4 of them\n100 passed the gate\n", (0, 0, 0)),
])
def test_counts(text, expected):
    assert tally.counts(text) == expected


def run(folder, *arguments):
    return subprocess.run([sys.executable, ROOT / "scripts/tally.py", folder, *arguments], capture_output=True, text=True, check=False)


def test_a_suite_that_failed_without_a_count_is_a_failure(tmp_path):
    (tmp_path / "unit.log").write_text("100% tests passed, 0 tests failed out of 3\n")
    (tmp_path / "lint.log").write_text("clean\n")
    done = run(tmp_path, "unit", "lint", "--")
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "4 passed, 0 failed"
    done = run(tmp_path, "unit", "lint", "--", "unit")
    assert done.returncode == 1 and done.stdout.splitlines()[-1] == "4 passed, 1 failed"
    done = run(tmp_path, "unit", "gone", "--", "gone")
    assert done.returncode == 1 and done.stdout.splitlines()[-1] == "3 passed, 1 failed"
