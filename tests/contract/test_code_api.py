# SPDX-License-Identifier: Apache-2.0
"""proto/openapi-code.yaml: whole in itself, its examples fit, broken ones do not, its lists are those of the code, and
what a running sk-code answers is what it says."""

import copy
import json
import re
import sys

import pytest
import yaml
from catalog import PROTO, ROOT, Catalog

sys.path.insert(0, str(ROOT / "tests" / "support"))

from code_server import CodeServer  # noqa: E402

CATALOG = Catalog()
API = yaml.safe_load((PROTO / "openapi-code.yaml").read_text("utf-8"))
EXAMPLES = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted((PROTO / "examples/code").glob("*.json"))}


def walk(node):
    yield node
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from walk(value)


def resolve(node):
    while isinstance(node, dict) and node.get("$ref", "").startswith("#/"):
        found = API
        for part in node["$ref"][2:].split("/"):
            found = found[part]
        node = found
    return node


def schemas_of(content):
    """Names of the schemas that a content object allows."""
    schema = content["application/json"]["schema"]
    return [one["$ref"][len("./schemas/"):] for one in schema.get("oneOf", [schema])]


def test_every_reference_leads_somewhere():
    assert API["openapi"] == "3.1.0"
    files = set()
    for node in walk(API):
        if isinstance(node, dict) and "$ref" in node:
            assert resolve(node) is not None
            if not node["$ref"].startswith("#/"):
                files.add(node["$ref"])
        if isinstance(node, dict) and "externalValue" in node:
            files.add(node["externalValue"])
    assert files and all((PROTO / name).is_file() for name in files)
    assert {name for name in CATALOG.schemas if name.startswith("code/")} == {name[len("./schemas/"):] for name in files if "/schemas/" in name}
    assert {f"./examples/code/{name}.json" for name in EXAMPLES} == {name for name in files if "/examples/" in name}
    operations = [operation["operationId"] for path in API["paths"].values() for operation in path.values()]
    assert len(set(operations)) == len(operations)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_examples_fit_and_broken_ones_do_not(name):
    schema, payload = EXAMPLES[name]["schema"], EXAMPLES[name]["payload"]
    assert CATALOG.errors(schema, payload) == []
    assert CATALOG.errors(schema, []) and CATALOG.errors(schema, {})
    for member in payload:
        if member != "timeoutMs":  # any type is taken
            assert CATALOG.errors(schema, {**payload, member: ["not this"]}), member
    if name == "request":
        assert CATALOG.errors(schema, {**payload, "future": 1}) == []
        return
    for path in ((), ("data",), ("data", "error"), ("pools",), ("pools", "js")):
        broken = copy.deepcopy(payload)
        inner = broken
        for part in path:
            inner = inner.get(part) if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            inner["undocumented"] = 1
            assert CATALOG.errors(schema, broken), path


def names_in(path, pattern):
    return re.findall(pattern, (ROOT / path).read_text("utf-8"))


def test_lists_are_those_of_the_code():
    ends = re.search(r"code_end_name\(.*?\{(.*?)\}", (ROOT / "services/code/control.c").read_text("utf-8"), re.S)[1]
    told = {name for name in re.findall(r'"([a-z]+)"', ends)} - {"done", "walls"} | {"error"}
    assert told == set(CATALOG.schemas["code/result.json"]["$defs"]["errorCode"]["enum"])
    levels = re.search(r"code_level_name\(.*?\{(.*?)\}", (ROOT / "services/code/control.c").read_text("utf-8"), re.S)[1]
    assert set(re.findall(r'"([a-z-]+)"', levels)) == set(CATALOG.schemas["code/health.json"]["properties"]["isolation"]["enum"])
    members = names_in("services/code/host/request.c", r'code_scan_equals\(key, "(\w+)"\)')
    assert set(members) == set(CATALOG.schemas["code/request.json"]["properties"])


# ---- a running one ---------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def server():
    with CodeServer({"SANDBOX_POOL_SIZE": 2, "SANDBOX_MAX_MEMORY_MB": 64, "SANDBOX_MAX_OUTPUT_MB": 1, "SANDBOX_API_MAX_BODY_MB": 1}) as one:
        yield one


def fits(path, method, status, body):
    answer = resolve(API["paths"][path][method]["responses"][str(status)])
    problems = [CATALOG.errors(schema, body) for schema in schemas_of(answer["content"])]
    return sum(not problem for problem in problems) == 1, problems


TASKS = [
    ("js", "function main({a}) { console.log('x'); return {a, b: [1, null, 'é']} }"), ("js", "function main() {}"), ("js", "function main() { return () => 1 }"),
    ("js", "function main() { throw new TypeError('no') }"), ("js", "function main() { null.x }"), ("js", "nonsense("), ("js", "const x = 1"),
    ("js", "function main() { while (true); }"), ("js", "function main() { return 'x'.repeat(2000000) }"), ("js", "async function main() { throw 1 }"),
    ("js", "function main() { const a = []; for (;;) a.push(new Uint8Array(1 << 20).fill(1)) }"), ("js", " \n "), ("js", ""),
    ("python", "def main(a):\n    print('x')\n    return {'a': a, 'b': (1, None)}"), ("python", "def main():\n    pass"), ("python", "def main():\n    return 1 / 0"),
    ("python", "import os"), ("python", "def main(:"), ("python", "x = 1"), ("python", "def main():\n    while True: pass"),
    ("python", "def main():\n    return 'x' * 2000000"), ("python", "def main():\n    a = []\n    while True: a.append(bytearray(1 << 20))"),
    ("python", "import numpy\ndef main():\n    return numpy.arange(3)"), ("python", "def main():\n    raise SystemExit(3)"),
]


@pytest.mark.parametrize("language,code", TASKS)
def test_answers_of_tasks_are_as_written(server, language, code):
    status, body = server.run(language, code, {"a": 1}, timeoutMs=1500)
    good, problems = fits(f"/sandbox/{language}", "post", status, body)
    assert good, (status, body, problems)


@pytest.mark.parametrize("status,body", [(400, b""), (400, b"{"), (400, b"[]"), (400, b'{"code":1}'), (400, b'{"code":"x","variables":[]}'), (400, b'{"code":"\xff"}'),
                                         (413, b'{"code":"' + b"x" * 1100000 + b'"}')])
def test_refusals_are_as_written(server, status, body):
    found, headers, text = server.post_raw("/sandbox/js", body)
    assert found == status and headers["content-type"].startswith("application/json")
    assert fits("/sandbox/js", "post", status, json.loads(text))[0], text


def test_the_other_routes_are_as_written(server):
    status, _, body = server.request("GET", "/health")
    assert status == 200 and fits("/health", "get", 200, json.loads(body))[0], body
    status, _, body = server.request("GET", "/sandbox/modules", headers={"X-Api-Key": server.token})
    assert status == 200 and fits("/sandbox/modules", "get", 200, json.loads(body))[0], body
    for headers, name in (({}, "unauthorized"), ({"Authorization": "Bearer wrong"}, "unauthorized"), ({"Authorization": "Basic x"}, "badHeader")):
        status, answered, body = server.request("GET", "/sandbox/modules", headers=headers)
        schema = API["components"]["responses"][name]["content"]["text/plain"]["schema"]
        assert status == (400 if name == "badHeader" else 401) and body.decode() == schema["const"]
        assert answered["content-type"].startswith("text/plain") and "www-authenticate" in answered
