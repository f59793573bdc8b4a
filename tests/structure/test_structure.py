# SPDX-License-Identifier: Apache-2.0
"""The tree obeys its own rules, and the rules catch what they are for."""
import structure


def test_the_tree_has_no_faults():
    assert list(structure.faults()) == []


def test_wrong_includes_are_seen():
    edges = {}
    look = lambda name, text: list(structure.include_faults(name, text, edges))  # noqa: E731
    assert look("services/a/x.c", '#include "services/b/b.h"\n')
    assert look("common/bus/x.c", '#include "services/b/b.h"\n')
    assert look("services/a/x.c", '#include "tests/support/server.h"\n')
    assert look("proto/x.h", '#include "common/base/id.h"\n')
    assert not look("services/a/x.c", '#include "services/a/a.h"\n#include "common/bus/bus.h"\n#include <nats/nats.h>\n')


def test_include_cycles_are_seen():
    edges = {"a": {"b": "common/a/x.c"}, "b": {"c": "common/b/x.c"}, "c": {"a": "common/c/x.c"}}
    assert any("a -> b -> c -> a" in fault for fault in structure.cycle_faults(edges))
    assert not list(structure.cycle_faults({"a": {"b": "x"}, "b": {"c": "x"}, "d": {"b": "x"}}))
