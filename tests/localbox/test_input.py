# SPDX-License-Identifier: Apache-2.0
"""Numbers, quantities and sizes from outside: what is wrong is refused with a code, never left out or cut."""
import json
import urllib.parse

import pytest

GOOD = {"image": {"uri": "a:1"}, "entrypoint": ["tail", "-f", "/dev/null"], "resourceLimits": {"cpu": "1"}}
INVALID = (422, "GENERAL::VALIDATION_ERROR")
PARAMETER = (400, "SANDBOX::INVALID_PARAMETER")
NOT_JSON = (400, "GENERAL::INVALID_JSON")

# No processor count and no quantity, whatever the field.
NO_NUMBER = ["", " ", "-1", "+1", "0", "0m", "1e3", "1e400", "nan", "inf", "0x10", "1,5", "1.", ".5", "1 ", " 1", "one", "1;2", "١",
             "9" * 30, "1" + "0" * 400, "-0", "--1", "1mm"]
NO_CPU = [*NO_NUMBER, "1Gi", "0.0001", "10001", "10000001m", "1.5m", "1M"]
NO_QUANTITY = [*NO_NUMBER, "0Gi", "1Pi", "1.5.5Gi", "1Gi1", "Gi", "1 Gi", "2.5", "99999999999Ti", "1048576Ti", "9223372036854775807"]

LIMITS = [("cpu", value) for value in NO_CPU] + [(name, value) for name in ("memory", "disk", "storage", "ephemeral-storage")
                                                  for value in NO_QUANTITY]


def create(daemon, body):
    return daemon.request("POST", "/v1/sandboxes", body)


def refused(answer):
    return answer.status, answer.code


@pytest.mark.parametrize("name,value", LIMITS)
def test_resource_limits(daemon, name, value):
    answer = create(daemon, {**GOOD, "resourceLimits": {name: value}})
    assert refused(answer) == PARAMETER, answer.body
    assert f"resourceLimits.{name}" in answer.json["message"]


def volume(**changes):
    return {"name": "w", "mountPath": "/workspace", "pvc": {"claimName": "input-1"}, **changes}


OTHERS = {
    "cpu number": ({"resourceLimits": {"cpu": 1}}, INVALID),
    "cpu null": ({"resourceLimits": {"cpu": None}}, INVALID),
    "memory list": ({"resourceLimits": {"memory": []}}, INVALID),
    "timeout zero": ({"timeout": 0}, INVALID),
    "timeout negative": ({"timeout": -60}, INVALID),
    "timeout true": ({"timeout": True}, INVALID),
    "timeout text": ({"timeout": "60"}, INVALID),
    "timeout fraction": ({"timeout": 60.5}, INVALID),
    "timeout a hundred years and a second": ({"timeout": 3155760001}, PARAMETER),
    "renew empty": ({"extensions": {"access.renew.extend.seconds": ""}}, PARAMETER),
    "renew signed": ({"extensions": {"access.renew.extend.seconds": "+300"}}, PARAMETER),
    "renew negative": ({"extensions": {"access.renew.extend.seconds": "-300"}}, PARAMETER),
    "renew fraction": ({"extensions": {"access.renew.extend.seconds": "300.5"}}, PARAMETER),
    "renew exponent": ({"extensions": {"access.renew.extend.seconds": "3e2"}}, PARAMETER),
    "renew high": ({"extensions": {"access.renew.extend.seconds": "86401"}}, PARAMETER),
    "renew huge": ({"extensions": {"access.renew.extend.seconds": "9" * 40}}, PARAMETER),
    "entrypoint too many": ({"entrypoint": ["true"] * 1025}, INVALID),
    "entrypoint word too long": ({"entrypoint": ["true", "x" * 131072]}, INVALID),
    "entrypoint first word empty": ({"entrypoint": [""]}, INVALID),
    "entrypoint null": ({"entrypoint": ["true", None]}, INVALID),
    "env without a name": ({"env": {"": "x"}}, INVALID),
    "env name with =": ({"env": {"A=B": "x"}}, INVALID),
    "env too long": ({"env": {"A": "x" * 131070}}, INVALID),
    "env true": ({"env": {"A": True}}, INVALID),
    "image name too long": ({"image": {"uri": "x" * 513}}, INVALID),
    "too many volumes": ({"volumes": [volume(name=f"w{i}", mountPath=f"/m{i}") for i in range(17)]}, INVALID),
    "readOnly text": ({"volumes": [volume(readOnly="true")]}, INVALID),
    "readOnly number": ({"volumes": [volume(readOnly=1)]}, INVALID),
    "createIfNotExists text": ({"volumes": [volume(pvc={"claimName": "input-1", "createIfNotExists": "false"})]}, INVALID),
    "deleteOnSandboxTermination number": ({"volumes": [volume(pvc={"claimName": "input-1", "deleteOnSandboxTermination": 0})]}, INVALID),
    "subPath number": ({"volumes": [volume(subPath=1)]}, (400, "VOLUME::INVALID_SUB_PATH")),
    "subPath name too long": ({"volumes": [volume(subPath="a/" + "b" * 256)]}, (400, "VOLUME::INVALID_SUB_PATH")),
    "mountPath name too long": ({"volumes": [volume(mountPath="/" + "b" * 256)]}, (400, "VOLUME::INVALID_MOUNT_PATH")),
    "mountPath too long": ({"volumes": [volume(mountPath="/b" * 500)]}, (400, "VOLUME::INVALID_MOUNT_PATH")),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_fields(daemon, name):
    changes, expected = OTHERS[name]
    answer = create(daemon, {**GOOD, **changes})
    assert refused(answer) == expected, answer.body


@pytest.mark.parametrize("text", ['{"timeout":1e400}', '{"timeout":NaN}', '{"timeout":99999999999999999999}', '{"env":{"A":"\\u0000"}}'])
def test_json_that_holds_no_value(daemon, text):
    assert refused(create(daemon, (json.dumps(GOOD)[:-1] + "," + text[1:]).encode())) == NOT_JSON


ACCEPTED = [({"cpu": "0.5"}, "cpuMilli", 500), ({"cpu": "250m"}, "cpuMilli", 250), ({"cpu": "1.25"}, "cpuMilli", 1250), ({"cpu": "10000"}, "cpuMilli", 10000000),
            ({"cpu": "0.3000000004"}, "cpuMilli", 300), ({"cpu": "1m"}, "cpuMilli", 1), ({"gpu": "1"}, "cpuMilli", 0),
            ({"memory": "128Mi"}, "memoryBytes", 128 << 20), ({"memory": "1.5Gi"}, "memoryBytes", 3 << 29), ({"memory": "200M"}, "memoryBytes", 200000000),
            ({"memory": "300kb"}, "memoryBytes", 16 << 20), ({"memory": "134217728"}, "memoryBytes", 128 << 20),
            ({"disk": "1Gi"}, "diskBytes", 1 << 30), ({"storage": "1gb"}, "diskBytes", 10**9), ({"ephemeral-storage": "7t"}, "diskBytes", 7 * 10**12)]


@pytest.mark.parametrize("limits,field,value", ACCEPTED)
def test_accepted_limits(daemon, limits, field, value):
    made = daemon.create(resourceLimits=limits)
    assert daemon.record(made.id)[field] == value
    assert made.run("echo alive")[1] == "alive"
    made.delete()


def test_largest_accepted_sizes(daemon):
    """What is just within the bounds starts, too."""
    made = daemon.create(entrypoint=["tail", "-f", "/dev/null", "x" * 131071], env={"A": "y" * 131069, "B": None}, timeout=60)
    assert made.run("echo ${#A}")[1] == "131069"
    assert made.delete().status == 204


# ---- queries: one that cannot be decoded is not one that is absent ----

BAD_QUERIES = [("/v1/sandboxes?metadata=%00", "INVALID_METADATA_FORMAT"), ("/v1/sandboxes?metadata=a%3D%2500", "INVALID_METADATA_FORMAT"),
               ("/v1/sandboxes?metadata=%zz", "INVALID_METADATA_FORMAT"), ("/v1/sandboxes?metadata=", None),
               ("/v1/sandboxes?metadata=a%3D1&metadata=b%3D2", "INVALID_METADATA_FORMAT"), ("/v1/sandboxes?state=%00", "GENERAL::INVALID_QUERY"),
               ("/v1/sandboxes?page=%00", "GENERAL::INVALID_QUERY"), ("/v1/sandboxes?%00=1", "GENERAL::INVALID_QUERY"),
               ("/v1/sandboxes?pageSize=1%", "GENERAL::INVALID_QUERY"), ("/sandboxes?metadata=%00", "INVALID_METADATA_FORMAT")]


@pytest.mark.parametrize("path,code", BAD_QUERIES)
def test_bad_queries(daemon, path, code):
    answer = daemon.request("GET", path)
    if code is None:
        assert answer.status == 200
    else:
        assert refused(answer) == (400, code), answer.body


NO_COUNT = ["+1", " 1", "1 ", "0x1", "1.0", "1e1", "", "-1", "0", "9" * 30]


@pytest.mark.parametrize("text", NO_COUNT)
def test_pages(daemon, text):
    quoted = urllib.parse.quote(text)
    assert refused(daemon.request("GET", f"/v1/sandboxes?page={quoted}")) == INVALID
    assert refused(daemon.request("GET", f"/v1/sandboxes?pageSize={quoted}")) == INVALID


@pytest.mark.parametrize("port", ["0", "65536", "+80", "-80", "80x", "x", "", "0x50", "99999999999999999999", "80.0", "%38%30"])
def test_ports(daemon, box, port):
    assert refused(daemon.request("GET", f"/v1/sandboxes/{box.id}/endpoints/{port}")) == (400, "DOCKER::INVALID_PORT")
    if port.isdigit():
        assert refused(daemon.request("GET", f"/v1/sandboxes/{box.id}/proxy/{port}/")) == (400, "DOCKER::INVALID_PORT")


def test_endpoint_query(daemon, box):
    answer = daemon.request("GET", f"/v1/sandboxes/{box.id}/endpoints/80?use_server_proxy=%00")
    assert refused(answer) == (400, "GENERAL::INVALID_QUERY")


# ---- volume manager ----

def volumes(daemon, method, path, body=None):
    return daemon.request(method, path, body, key=None, headers={"Authorization": "Bearer test-key"})


SIZES = [*NO_QUANTITY, -1, 0, 1.5, True, False, [], {}, 2**62]


@pytest.mark.parametrize("size", SIZES, ids=repr)
def test_volume_sizes(daemon, size):
    answer = volumes(daemon, "POST", "/v1/volumes/ensure", {"claimName": "sized", "storageSize": size})
    assert refused(answer) == (400, "VOLUME::INVALID_SIZE") and answer.json["error"], answer.body
    assert not (daemon.data / "volumes/sized").exists()


def test_volume_requests(daemon):
    for body in ({"claimName": 1, "sessionId": "0123456789abcdef01234567"}, {"claimName": ["a"], "sessionId": "0123456789abcdef01234567"},
                 {"sessionId": 12345}, {"claimName": "a" * 254}, {"claimName": "a..b"}):
        assert refused(volumes(daemon, "POST", "/v1/volumes/ensure", body)) == (400, "VOLUME::INVALID_NAME")
    assert volumes(daemon, "POST", "/v1/volumes/ensure", {"claimName": "sized-1", "storageSize": 1048576}).status == 201
    assert (daemon.data / "limits/sized-1").read_text() == "1048576"
    assert volumes(daemon, "POST", "/v1/volumes/ensure", {"claimName": "sized-1", "storageSize": "1.5Gi"}).status == 200
    assert (daemon.data / "limits/sized-1").read_text() == str(3 << 29)
    assert volumes(daemon, "DELETE", "/v1/volumes/sized-1").status == 204
    for text in NO_COUNT + ["1001"]:
        assert refused(volumes(daemon, "GET", f"/v1/volumes?limit={urllib.parse.quote(text)}")) == (400, "VOLUME::INVALID_LIMIT")
    assert refused(volumes(daemon, "GET", "/v1/volumes?limit=%00")) == (400, "GENERAL::INVALID_QUERY")
    assert refused(volumes(daemon, "GET", "/v1/volumes?after=%00")) == (400, "GENERAL::INVALID_QUERY")


# ---- sub paths ----

def test_sub_paths_of_host_volumes(make_daemon, tmp_path):
    allowed = tmp_path / "allowed"
    (allowed / "inner/deep").mkdir(parents=True)
    (allowed / "inner/deep/f").write_text("deep")
    (allowed / "link").symlink_to("inner")
    (allowed / "up").symlink_to("..")
    (allowed / "far").symlink_to("/etc")
    for folder in (tmp_path, allowed, allowed / "inner", allowed / "inner/deep"):
        folder.chmod(0o755)
    daemon = make_daemon(host_paths=str(allowed))
    host = lambda sub: {"name": "h", "mountPath": "/data", "host": {"path": str(allowed)}, "subPath": sub}  # noqa: E731
    for sub in ("inner/deep", "link/deep"):  # links within the allowed folder are the host's own business
        made = daemon.create(volumes=[host(sub)])
        assert made.run("cat /data/f")[1] == "deep"
    for sub in ("up", "far", "far/ssl", "absent", "inner/deep/f/x"):
        assert refused(create(daemon, {**GOOD, "volumes": [host(sub)]})) == (400, "VOLUME::INVALID_SUB_PATH"), sub


# ---- execd ----

BAD_COMMANDS = [{"command": "true", "timeout": -1}, {"command": "true", "timeout": 1.5}, {"command": "true", "timeout": "1"},
                {"command": "true", "envs": {"": "x"}}, {"command": "true", "envs": {"A=B": "x"}}, {"command": "true", "envs": {"A": 1}},
                {"command": "true", "cwd": "/tmp\0x"}, {"command": "true", "cwd": 1}, {"command": "true", "background": "yes"},
                {"command": "true", "uid": 0}, {"command": "true", "uid": "1000"}, {"command": "true", "gid": 1000}]


@pytest.mark.parametrize("body", BAD_COMMANDS, ids=repr)
def test_bad_commands(box, body):
    assert refused(box.execd("POST", "/command", body)) == (400, "INVALID_REQUEST_BODY")


def test_bad_session_and_log_numbers(box):
    session = box.execd("POST", "/session", {}).json["session_id"]
    for body in ({"command": "true", "timeout": -1}, {"command": "true", "timeout": "5"}, {"command": "true", "cwd": 1}):
        assert refused(box.execd("POST", f"/session/{session}/run", body)) == (400, "INVALID_REQUEST_BODY")
    command = box.events("echo x", background=True)[0]["text"]
    for cursor in ("-1", "x", "1x", "1.5"):
        assert refused(box.execd("GET", f"/command/{command}/logs?cursor={cursor}")) == (400, "INVALID_REQUEST_BODY")
    assert refused(box.execd("GET", f"/command/{command}/logs?cursor=%00")) == (400, "MISSING_QUERY")
    assert refused(box.execd("DELETE", "/command?id=%00")) == (400, "MISSING_QUERY")
    assert refused(box.execd("GET", "/directories/list?path=/tmp&depth=%00")) == (400, "MISSING_QUERY")
    assert refused(box.execd("GET", "/files/search?path=/tmp&pattern=%00")) == (400, "MISSING_QUERY")
    assert refused(box.execd("GET", "/files/download?path=/etc/passwd&offset=%00")) == (400, "MISSING_QUERY")
