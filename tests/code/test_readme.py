# SPDX-License-Identifier: Apache-2.0
"""The examples of the service's README: each one, run in a shell as it stands there, prints what stands below it."""
import os
import pathlib
import re
import shutil
import subprocess

import pytest

PAGE = (pathlib.Path(__file__).resolve().parents[2] / "services/code/README.md").read_text()
EXAMPLES = re.findall(r"```sh\n(curl .*?)```", PAGE, re.S)


def test_there_are_examples():
    assert len(EXAMPLES) >= 5


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_example(server, example):
    missing = [tool for tool in ("curl", "jq") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")
    wanted = "".join(line[2:] + "\n" for line in example.splitlines() if line.startswith("# "))
    done = subprocess.run(["bash", "-c", example], env={**os.environ, "SANDKEEP_CODE_URL": server.url, "SANDKEEP_CODE_TOKEN": server.token}, capture_output=True,
                          text=True, timeout=60, check=False)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.rstrip("\n") + "\n" == wanted
