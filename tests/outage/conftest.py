# SPDX-License-Identifier: Apache-2.0
"""A stack of its own for each outage: two replicas, the fast profile, and a store that keeps what it acknowledged."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from live import Site  # noqa: E402


@pytest.fixture
def site(tmp_path):
    with Site(tmp_path / "stack", sync=True) as one:
        yield one
