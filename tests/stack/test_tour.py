# SPDX-License-Identifier: Apache-2.0
"""Steps of the tour that look at the code sandbox, against answers that are not as they should be: it must stop at each."""
import importlib.machinery
import importlib.util
import pathlib

import pytest

PATH = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "local" / "tour"
REFUSED = {"success": False, "message": "Request to private network not allowed", "data": {"codeReturn": None, "log": "", "error": {"code": "error"}}}
FAILED = {"success": False, "message": "Request failed: could not resolve host", "data": {"codeReturn": None, "log": "", "error": {"code": "error"}}}
ANSWERED = {"success": True, "data": {"codeReturn": {"status": 200, "start": "<!doctype html>\n<html>"}, "log": ""}}


@pytest.fixture
def tour(monkeypatch):
    loader = importlib.machinery.SourceFileLoader("tour", str(PATH))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("tour", loader))
    loader.exec_module(module)
    one = module.Tour.__new__(module.Tour)
    one.module, one.said = module, []
    monkeypatch.setattr(one, "told", one.said.append, raising=False)
    return one


def answers(tour, monkeypatch, metadata, public, reason):
    monkeypatch.setattr(tour, "code", lambda language, source, variables: (0.01, metadata if variables["url"] == tour.module.METADATA else public), raising=False)
    monkeypatch.setattr(tour, "unreachable", lambda name: reason, raising=False)


def test_a_public_name_is_asked_where_it_can_be_reached(tour, monkeypatch):
    answers(tour, monkeypatch, REFUSED, ANSWERED, None)
    tour.request()
    assert "status 200" in tour.said[0] and "<!doctype html>" in tour.said[0]


def test_without_a_way_out_it_says_so(tour, monkeypatch):
    answers(tour, monkeypatch, REFUSED, FAILED, "no route to host")
    tour.request()
    assert "cannot be reached from this machine (no route to host)" in tour.said[0]


@pytest.mark.parametrize("metadata,public,reason", [(ANSWERED, ANSWERED, None), (FAILED, ANSWERED, None), (REFUSED, FAILED, None)])
def test_what_is_wrong_stops_it(tour, monkeypatch, metadata, public, reason):
    answers(tour, monkeypatch, metadata, public, reason)
    with pytest.raises(tour.module.Wrong):
        tour.request()
    assert tour.said == []


def test_steps_stop_at_other_answers(tour, monkeypatch):
    monkeypatch.setattr(tour, "code", lambda *arguments, **members: (0.01, ANSWERED), raising=False)
    tour.environment = {"SANDKEEP_CODE_URL": "http://127.0.0.1:1", "SANDKEEP_CODE_TOKEN": ""}
    for step in (tour.functions, tour.failures):
        with pytest.raises((tour.module.Wrong, KeyError)):
            step()
    with pytest.raises(OSError):  # nobody is there
        tour.walls()
