# SPDX-License-Identifier: Apache-2.0
"""The lifecycle API beyond what the SDKs do: bad input with its exact answers, filters, pages, expiry, volumes, endpoints."""
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import KEY, alive

GOOD = {"image": {"uri": "a:1"}, "entrypoint": ["tail", "-f", "/dev/null"], "resourceLimits": {"cpu": "1"}}
INVALID = "GENERAL::VALIDATION_ERROR"

BAD_CREATE = {
    "not JSON": (b"{", 400, "GENERAL::INVALID_JSON"),
    "empty": (b"", 400, "GENERAL::INVALID_JSON"),
    "invalid UTF-8": (b'{"a":"\xff"}', 400, "GENERAL::INVALID_JSON"),
    "duplicate key": (b'{"image":1,"image":2}', 400, "GENERAL::INVALID_JSON"),
    "deep": (b"[" * 100000, 400, "GENERAL::INVALID_JSON"),
    "list": (b"[]", 422, INVALID),
    "no image": ({**GOOD, "image": None}, 422, INVALID),
    "image text": ({**GOOD, "image": "a"}, 422, INVALID),
    "image number": ({**GOOD, "image": {"uri": 1}}, 422, INVALID),
    "snapshot": ({"snapshotId": "x", "resourceLimits": {}}, 501, "SANDBOX::API_NOT_SUPPORTED"),
    "image and snapshot": ({**GOOD, "snapshotId": "x"}, 400, "SANDBOX::INVALID_PARAMETER"),
    "no entrypoint": ({**GOOD, "entrypoint": []}, 422, INVALID),
    "entrypoint text": ({**GOOD, "entrypoint": "tail"}, 422, INVALID),
    "entrypoint numbers": ({**GOOD, "entrypoint": [1]}, 422, INVALID),
    "entrypoint NUL": (b'{"image":{"uri":"a"},"entrypoint":["a\\u0000b"],"resourceLimits":{}}', 400, "GENERAL::INVALID_JSON"),
    "no limits": ({**GOOD, "resourceLimits": None}, 422, INVALID),
    "limits numbers": ({**GOOD, "resourceLimits": {"cpu": 1}}, 422, INVALID),
    "short timeout": ({**GOOD, "timeout": 59}, 422, INVALID),
    "text timeout": ({**GOOD, "timeout": "600"}, 422, INVALID),
    "fraction timeout": ({**GOOD, "timeout": 600.5}, 422, INVALID),
    "huge timeout": ({**GOOD, "timeout": 2**62}, 400, "SANDBOX::INVALID_PARAMETER"),
    "env number": ({**GOOD, "env": {"A": 1}}, 422, INVALID),
    "env list": ({**GOOD, "env": []}, 422, INVALID),
    "metadata value": ({**GOOD, "metadata": {"a": "b c"}}, 400, "SANDBOX::INVALID_METADATA_LABEL"),
    "metadata long": ({**GOOD, "metadata": {"a": "b" * 64}}, 400, "SANDBOX::INVALID_METADATA_LABEL"),
    "metadata reserved": ({**GOOD, "metadata": {"opensandbox.io/id": "b"}}, 400, "SANDBOX::INVALID_METADATA_LABEL"),
    "metadata number": ({**GOOD, "metadata": {"a": 1}}, 400, "SANDBOX::INVALID_METADATA_LABEL"),
    "renew low": ({**GOOD, "extensions": {"access.renew.extend.seconds": "299"}}, 400, "SANDBOX::INVALID_PARAMETER"),
    "volumes object": ({**GOOD, "volumes": {}}, 422, INVALID),
}


def volume(**changes):
    return {"name": "w", "mountPath": "/workspace", "pvc": {"claimName": "c1"}, **changes}


BAD_VOLUMES = {
    "no name": (volume(name=None), "VOLUME::INVALID_NAME"),
    "upper name": (volume(name="W"), "VOLUME::INVALID_NAME"),
    "relative mount": (volume(mountPath="workspace"), "VOLUME::INVALID_MOUNT_PATH"),
    "dots in mount": (volume(mountPath="/a/../etc"), "VOLUME::INVALID_MOUNT_PATH"),
    "root mount": (volume(mountPath="/"), "VOLUME::INVALID_MOUNT_PATH"),
    "over etc": (volume(mountPath="/etc"), "VOLUME::INVALID_MOUNT_PATH"),
    "inside proc": (volume(mountPath="/proc/x"), "VOLUME::INVALID_MOUNT_PATH"),
    "over init": (volume(mountPath="/run"), "VOLUME::INVALID_MOUNT_PATH"),
    "sub dots": (volume(subPath="../x"), "VOLUME::INVALID_SUB_PATH"),
    "sub absolute": (volume(subPath="/etc"), "VOLUME::INVALID_SUB_PATH"),
    "no backend": ({"name": "w", "mountPath": "/workspace"}, "VOLUME::INVALID_BACKEND"),
    "two backends": (volume(host={"path": "/tmp"}), "VOLUME::INVALID_BACKEND"),
    "host": ({"name": "w", "mountPath": "/workspace", "host": {"path": "/etc"}}, "VOLUME::HOST_PATH_NOT_ALLOWED"),
    "absent claim": (volume(pvc={"claimName": "absent", "createIfNotExists": False}), "VOLUME::PVC_NOT_FOUND"),
}


def count(daemon):
    return daemon.request("GET", "/v1/sandboxes").json["pagination"]["totalItems"]


@pytest.mark.parametrize("name", BAD_CREATE)
def test_bad_create(daemon, name):
    body, status, code = BAD_CREATE[name]
    before = count(daemon)
    answer = daemon.request("POST", "/v1/sandboxes", body)
    assert (answer.status, answer.code) == (status, code), answer.body
    assert answer.json["message"]
    if status == 422:
        assert answer.json["detail"][0]["loc"][0] == "body"
    assert count(daemon) == before


@pytest.mark.parametrize("name", BAD_VOLUMES)
def test_bad_volume(daemon, name):
    one, code = BAD_VOLUMES[name]
    answer = daemon.request("POST", "/v1/sandboxes", {**GOOD, "volumes": [one]})
    assert (answer.status, answer.code) == (400, code), answer.body


@pytest.mark.parametrize("claim", ["..", "a/b", "A", "", "-a", "a" * 300])
def test_bad_claim(daemon, claim):
    answer = daemon.request("POST", "/v1/sandboxes", {**GOOD, "volumes": [volume(pvc={"claimName": claim})]})
    assert (answer.status, answer.code) == (422, INVALID), answer.body


ROUTES = [("GET", "/", 404), ("GET", "/v1", 404), ("GET", "/v1/nothing", 404), ("PUT", "/v1/sandboxes", 405), ("GET", "/v1/sandboxes/absent", 404),
          ("DELETE", "/v1/sandboxes/absent", 404), ("POST", "/v1/sandboxes/absent/pause", 404), ("GET", "/v1/sandboxes/" + "x" * 500, 404),
          ("GET", "/v1/sandboxes/..%2f..", 404), ("GET", "/v1/sandboxes/absent/proxy/44772/ping", 404),
          ("GET", "/v1/sandboxes/absent/proxy/0/", 400), ("GET", "/v1/sandboxes/absent/proxy/99999/", 400),
          ("GET", "/v1/sandboxes/absent/proxy/x/", 404)]


@pytest.mark.parametrize("method,path,status", ROUTES)
def test_routes(daemon, method, path, status):
    answer = daemon.request(method, path)
    assert answer.status == status
    assert answer.code and answer.json["message"]


def test_both_mounts(daemon):
    assert daemon.request("GET", "/sandboxes").status == daemon.request("GET", "/v1/sandboxes").status == 200
    assert daemon.request("GET", "/health", key=None).json["status"] == "healthy"


@pytest.mark.parametrize("key,code", [(None, "MISSING_API_KEY"), ("wrong", "INVALID_API_KEY"), (KEY + "x", "INVALID_API_KEY"), ("", "INVALID_API_KEY")])
def test_authentication(daemon, key, code):
    answer = daemon.request("GET", "/v1/sandboxes", key=key)
    assert (answer.status, answer.code) == (401, code)
    assert answer.headers["X-Request-ID"]


def test_proxy_authentication(daemon, box):
    assert box.execd("GET", "/ping", key=None).status == 401
    endpoint = daemon.request("GET", f"/v1/sandboxes/{box.id}/endpoints/44772?use_server_proxy=true").json
    assert endpoint["endpoint"] == f"127.0.0.1:{daemon.port}/v1/sandboxes/{box.id}/proxy/44772"
    assert box.execd("GET", "/ping", key=None, headers=endpoint["headers"]).status == 200
    other = daemon.create()
    assert other.execd("GET", "/ping", key=None, headers=endpoint["headers"]).status == 401
    other.delete()


def test_empty_answers_have_a_length(daemon, box):
    ping = box.execd("GET", "/ping")
    assert ping.headers["Content-Length"] == "0"
    paused = daemon.request("POST", f"/v1/sandboxes/{box.id}/pause")
    assert (paused.status, paused.headers["Content-Length"]) == (202, "0")
    assert daemon.request("POST", f"/v1/sandboxes/{box.id}/resume").status == 202


def test_state_conflicts(daemon, box):
    assert daemon.request("POST", f"/v1/sandboxes/{box.id}/resume").code == "DOCKER::SANDBOX_NOT_PAUSED"
    assert daemon.request("POST", f"/v1/sandboxes/{box.id}/pause").status == 202
    assert daemon.request("POST", f"/v1/sandboxes/{box.id}/pause").code == "DOCKER::SANDBOX_NOT_RUNNING"
    refused = box.execd("POST", "/command", {"command": "true"})
    assert (refused.status, refused.code) == (409, "SANDBOX_PAUSED")
    assert daemon.request("GET", box.path(8080, "/")).status == 409
    assert daemon.request("POST", f"/v1/sandboxes/{box.id}/resume").status == 202
    assert box.run("echo back")[1] == "back"


def test_delete_is_final(daemon):
    made = daemon.create()
    folder = daemon.data / "sandboxes" / made.id
    assert folder.exists()
    pid = daemon.record(made.id)["initPid"]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: made.delete().status, range(4)))
    assert 204 in answers and set(answers) <= {204, 404}
    assert made.info().status == 404
    assert not folder.exists()
    assert not alive(pid)


def test_list_pages_and_filters(make_daemon):
    daemon = make_daemon()
    made = [daemon.create(metadata={"n": str(i), "k": "a.b"}) for i in range(5)]
    page = daemon.request("GET", "/v1/sandboxes?page=2&pageSize=2").json
    assert [item["id"] for item in page["items"]] == [made[2].id, made[1].id]
    assert page["pagination"] == {"page": 2, "pageSize": 2, "totalItems": 5, "totalPages": 3, "hasNextPage": True}
    ids = lambda query: [item["id"] for item in daemon.request("GET", "/v1/sandboxes?" + query).json["items"]]  # noqa: E731
    assert ids("metadata=n%3D3%26k%3Da.b") == [made[3].id]
    assert ids("metadata=n%3D3%26k%3Dother") == []
    daemon.request("POST", f"/v1/sandboxes/{made[0].id}/pause")
    assert ids("state=paused") == [made[0].id]
    assert len(ids("state=Paused&state=RUNNING")) == 5
    assert ids("state=nonsense") == []
    assert daemon.request("GET", "/v1/sandboxes?metadata=nonsense").code == "INVALID_METADATA_FORMAT"
    for bad in ("page=0", "pageSize=201", "pageSize=x", "page=-1"):
        assert daemon.request("GET", "/v1/sandboxes?" + bad).status == 422


def test_renew_rules(daemon):
    plain, limited = daemon.create(), daemon.create(timeout=60)
    renew = lambda box, body: daemon.request("POST", f"/v1/sandboxes/{box.id}/renew-expiration", body)  # noqa: E731
    assert renew(plain, {"expiresAt": "2100-01-01T00:00:00Z"}).code == "DOCKER::INVALID_EXPIRATION"
    assert renew(plain, {"expiresAt": "2100-01-01T00:00:00Z"}).status == 409
    assert renew(limited, {"expiresAt": "2001-01-01T00:00:00Z"}).status == 400
    for bad in ({}, {"expiresAt": 1}, {"expiresAt": "soon"}, []):
        assert renew(limited, bad).status == 422
    assert renew(limited, {"expiresAt": "2100-01-01T00:00:00+02:00"}).json["expiresAt"] == "2099-12-31T22:00:00.000Z"
    assert limited.info().json["expiresAt"] == "2099-12-31T22:00:00.000Z"
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 2))
    assert renew(limited, {"expiresAt": soon}).status == 200
    deadline = time.monotonic() + 10
    while limited.info().status != 404 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert limited.info().status == 404
    plain.delete()


def test_metadata_patch_rules(daemon, box):
    patch = lambda body: daemon.request("PATCH", f"/v1/sandboxes/{box.id}/metadata", body)  # noqa: E731
    assert patch({"a": "1", "b": "2"}).json["metadata"] == {"a": "1", "b": "2"}
    assert patch({"a": None}).json["metadata"] == {"b": "2"}
    assert patch({"x y": "1"}).code == "INVALID_METADATA_LABEL"
    assert patch(b"nonsense").status == 400
    assert daemon.record(box.id)["metadata"] == {"b": "2"}


@pytest.mark.parametrize("entrypoint,state,reason", [(["true"], "Terminated", "CONTAINER_EXITED"),
                                                     (["sh", "-c", "exit 3"], "Failed", "CONTAINER_EXITED_ERROR")])
def test_entrypoint_end(daemon, entrypoint, state, reason):
    made = daemon.create(entrypoint=entrypoint)
    made.wait_state(state)
    assert made.info().json["status"]["reason"] == reason
    assert daemon.request("POST", f"/v1/sandboxes/{made.id}/resume").status == 409
    refused = made.execd("GET", "/ping")
    assert (refused.status, refused.code) == (409, "DOCKER::SANDBOX_NOT_RUNNING")
    assert made.delete().status == 204


def test_entrypoints_that_end_at_once(make_daemon):
    """However early it ends, the sandbox was made and is there with its end: never an error of the creation."""
    daemon = make_daemon()
    with ThreadPoolExecutor(12) as pool:
        made = list(pool.map(lambda _: daemon.create(entrypoint=["true"]), range(60)))
    for one in made:
        one.wait_state("Terminated")
        assert one.info().json["status"]["reason"] == "CONTAINER_EXITED"
        assert one.delete().status == 204


def test_missing_entrypoint_is_left_out(daemon):
    made = daemon.create(entrypoint=["/home/sandbox/entrypoint.sh"])
    assert made.state == "Running"
    assert "entrypoint" in made.info().json["status"]["message"]
    assert made.run("echo alive")[1] == "alive"
    made.delete()


def test_create_does_not_hold_up_others(daemon):
    with ThreadPoolExecutor(9) as pool:
        creating = [pool.submit(daemon.create) for _ in range(8)]
        slowest = 0.0
        while not all(one.done() for one in creating):
            begun = time.monotonic()
            daemon.request("GET", "/health")
            slowest = max(slowest, time.monotonic() - begun)
    assert slowest < 0.5
    for one in creating:
        one.result().delete()


def test_limit_of_sandboxes(make_daemon):
    daemon = make_daemon(max_sandboxes=2)
    first, second = daemon.create(), daemon.create()
    refused = daemon.request("POST", "/v1/sandboxes", GOOD)
    assert (refused.status, refused.code) == (429, "SANDBOX::LIMIT_REACHED")
    first.delete()
    daemon.create()
    second.delete()


# ---- volume manager ----

def volumes(daemon, method, path, body=None, token=KEY):
    return daemon.request(method, path, body, key=None, headers={"Authorization": f"Bearer {token}"})


def test_volume_manager(daemon):
    assert volumes(daemon, "POST", "/v1/volumes/ensure", {"claimName": "vm-1", "storageSize": "1Gi"}).status == 201
    again = volumes(daemon, "POST", "/v1/volumes/ensure", {"claimName": "vm-1", "storageSize": "1Gi"})
    assert (again.status, again.json) == (200, {"claimName": "vm-1", "created": False})
    old = volumes(daemon, "POST", "/v1/volumes/ensure", {"sessionId": "0123456789ABCDEF01234567"})
    assert (old.status, old.json["claimName"]) == (201, "fastgpt-session-0123456789abcdef01234567")
    assert volumes(daemon, "DELETE", "/v1/volumes/0123456789abcdef01234567").status == 204
    assert not (daemon.data / "volumes" / old.json["claimName"]).exists()
    made = daemon.create(volumes=[volume(pvc={"claimName": "vm-1", "createIfNotExists": False})])
    assert made.run("echo kept > /workspace/f")[0] == 0
    in_use = volumes(daemon, "DELETE", "/v1/volumes/vm-1")
    assert (in_use.status, in_use.code) == (409, "VOLUME::IN_USE")
    made.delete()
    assert (daemon.data / "volumes/vm-1/f").read_text() == "kept\n"
    assert volumes(daemon, "DELETE", "/v1/volumes/vm-1").status == 204
    assert volumes(daemon, "DELETE", "/v1/volumes/vm-1").status == 204
    assert not (daemon.data / "volumes/vm-1").exists()


@pytest.mark.parametrize("body", [{}, {"claimName": "../x"}, {"claimName": 1}, {"sessionId": "short"}, {"claimName": "a", "storageSize": "much"}, [], b"{"])
def test_bad_volume_requests(daemon, body):
    answer = volumes(daemon, "POST", "/v1/volumes/ensure", body)
    assert answer.status == 400 and answer.json["error"]


def test_volume_manager_authentication(daemon):
    for token in ("wrong", ""):
        assert volumes(daemon, "POST", "/v1/volumes/ensure", {"claimName": "x"}, token).json["error"] == "Unauthorized"
    assert daemon.request("DELETE", "/v1/volumes/x").status == 401
    for bad in ("..", "a%2fb", "%00", "A"):
        assert volumes(daemon, "DELETE", f"/v1/volumes/{bad}").status == 400


def test_sub_path_and_read_only(daemon):
    first = daemon.create(volumes=[volume(pvc={"claimName": "sub-1"}, subPath="a/b")])
    assert first.run("echo x > /workspace/f; touch /workspace/g")[0] == 0
    first.delete()
    assert (daemon.data / "volumes/sub-1/a/b/f").exists()
    second = daemon.create(volumes=[volume(pvc={"claimName": "sub-1"}, readOnly=True)])
    code, out, err = second.run("cat /workspace/a/b/f; touch /workspace/a/b/h")
    assert out == "x" and code != 0 and "Read-only" in err
    second.delete()


def test_delete_on_termination(daemon):
    made = daemon.create(volumes=[volume(pvc={"claimName": "short-lived", "deleteOnSandboxTermination": True})])
    assert (daemon.data / "volumes/short-lived").exists()
    made.delete()
    assert not (daemon.data / "volumes/short-lived").exists()


def test_events_are_accepted(daemon):
    assert daemon.request("POST", "/v1/metrics/events", {"events": []}).status == 204
    assert json.loads(daemon.request("GET", "/version").body)["version"]
