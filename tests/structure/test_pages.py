# SPDX-License-Identifier: Apache-2.0
"""The committed pages that are made from the programs are current."""
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_generated_pages_are_current():
    done = subprocess.run([ROOT / "scripts" / "docs", "--check"], capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stdout + done.stderr


def test_make_help_names_every_target():
    targets = {line.split(":")[0] for line in (ROOT / "Makefile").read_text().splitlines() if "##" in line and ":" in line and not line.startswith("#")}
    wanted = {"build", "demo", "test", "check", "sim", "bench", "fuzz", "down", "format", "lint", "install-deps", "help", "tools-fast-mongo"}
    assert wanted <= targets
    shown = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert all(f"  {target} " in shown for target in wanted)
