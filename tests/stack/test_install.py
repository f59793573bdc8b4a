# SPDX-License-Identifier: Apache-2.0
"""An installation of the code sandbox: what cmake --install puts into a folder runs from there, with the notices of what it holds."""
import json
import pathlib
import subprocess
import sys

import pytest
from conftest import default_bin_dir

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from code_server import CodeServer  # noqa: E402


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    build = default_bin_dir().parent
    if not (build / "cmake_install.cmake").exists():
        pytest.skip(f"{build} is no build folder")
    prefix = tmp_path_factory.mktemp("an installation")
    for folder in (prefix, *prefix.parents):
        if not folder.stat().st_mode & 1:
            folder.chmod(folder.stat().st_mode | 0o011)  # pytest makes folders for their owner alone
    for component in ("code", "ctl"):
        subprocess.run(["cmake", "--install", build, "--prefix", prefix, "--component", component, "--strip"], check=True, capture_output=True)
    return prefix


def test_nothing_is_missing(installed):
    found = {str(path.relative_to(installed)) for path in installed.rglob("*") if path.is_file()}
    assert found == {"bin/sk-code", "bin/sk-code-js", "bin/sk-code-python", "bin/skctl", "share/man/man1/skctl.1", "share/doc/sandkeep/LICENSE",
                     "share/doc/sandkeep/THIRD-PARTY-NOTICES.txt"}


def test_the_notices_name_every_module_that_is_inside(installed):
    """The packages that the bundle was made of, by name and exact version, each with a licence text."""
    notices = (installed / "share/doc/sandkeep/THIRD-PARTY-NOTICES.txt").read_text()
    locked = json.loads((ROOT / "services/code/js/package-lock.json").read_text())["packages"]
    for name, entry in locked.items():
        package = name.rpartition("node_modules/")[2]
        if package and not entry.get("dev") and not entry.get("optional"):
            assert f"{package} {entry['version']}" in notices or f"{package}@{entry['version']}" in notices, package
    assert notices.count("Permission is hereby granted") >= 5


def test_it_runs_from_there(installed):
    with CodeServer(bin_dir=installed / "bin") as server:
        done = subprocess.run([installed / "bin" / "skctl", "code", "python", "-", f"--url={server.url}", f"--token={server.token}"], capture_output=True, text=True,
                              input="import numpy\ndef main():\n    return numpy.arange(3)\n", timeout=60, check=False)
        assert (done.returncode, done.stdout) == (0, "[0,1,2]\n"), done.stderr
        assert server.value("js", "function main() { return require('crypto-js').MD5('hello').toString() }") == "5d41402abc4b2a76b9719d911017c592"
