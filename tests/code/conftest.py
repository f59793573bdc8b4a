# SPDX-License-Identifier: Apache-2.0
"""Servers of the code sandbox for the tests of this folder. SANDKEEP_BIN_DIR names the folder of the programs; without root, or
where they are not built, the tests skip and say so."""
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "support"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import wire  # noqa: E402
from code_server import CodeServer  # noqa: E402


@pytest.fixture(scope="module")
def server():
    """One for the whole module, with the default configuration but for four tasks at a time."""
    with CodeServer() as running:
        yield running


@pytest.fixture(autouse=True)
def no_connection_is_left():
    yield
    wire.close_begun()
