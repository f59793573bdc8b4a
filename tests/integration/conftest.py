# SPDX-License-Identifier: Apache-2.0
"""One whole stack (two replicas, fast profile) for all tests that can share it, and a way to get others. A tap listens to
everything that is said on each of them; whatever is not as proto/ says fails the run at its end."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from live import Site, new_box  # noqa: E402


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    with Site(tmp_path_factory.mktemp("stack")) as one:
        yield one
        # Whatever the tests left: nothing may be broken, only what they broke on purpose may want a look.
        one.settle()
        findings = [item for item in one.doctor() if item[1] not in ("record-malformed", "operation-blocked")]
        assert findings == []


@pytest.fixture
def box(site, request):
    """An identity that nobody had before; its sandbox is deleted after the test."""
    one = new_box(request.node.name[:30])
    yield one
    if site.record(one):
        site.bus.run("delete", one)
    site.gone(one)
