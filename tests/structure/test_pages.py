# SPDX-License-Identifier: Apache-2.0
"""The committed pages that are made from the programs are current."""
import os
import pathlib
import re
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


def test_the_tests_that_the_threat_model_names_exist():
    page = (ROOT / "docs" / "code-sandbox.md").read_text()
    known = set()
    for path in [*(ROOT / "tests").rglob("*.c"), *(ROOT / "tests").rglob("*.py")]:
        if not {"node_modules", ".venv"} & set(path.parts):
            known.add(path.stem)
            known |= set(re.findall(r"(?:START_TEST\(|^def )(\w+)", path.read_text(errors="replace"), re.M))
    known |= {name for path in (ROOT / "tests").rglob("CMakeLists.txt") for name in re.findall(r"\b(?:test|fuzz)_\w+", path.read_text())}
    named = set(re.findall(r"`((?:test|fuzz)_\w+)`", page))
    assert len(named) > 15 and named <= known, named - known
    for place in re.findall(r"`(tests/[\w./-]+)`", page):
        assert (ROOT / place).exists(), place
