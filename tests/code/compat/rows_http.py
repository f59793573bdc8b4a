# SPDX-License-Identifier: Apache-2.0
"""Routes, authorization, bodies and their limits (A1, A3, A4; contract §1, §4)."""
import json
import re

from compat.table import ANY, Has, OneOf, Row

MIB = 1024 * 1024
OK_JS = "async function main() { return { ok: true } }"
OK_PYTHON = "def main():\n    return {'ok': True}"
CODES = {"js": OK_JS, "python": OK_PYTHON}
JSON = {"Content-Type": "application/json"}
POOL = {"total": int, "idle": int, "busy": int, "warming": int, "queued": int, "poolSize": int, "ready": True}
BOTH = ("js", "python")

JS_MODULES = "lodash dayjs moment uuid crypto-js qs url querystring".split()
PYTHON_MODULES = """math cmath decimal fractions random statistics collections array heapq bisect queue copy itertools functools operator string re
    difflib textwrap unicodedata codecs datetime time calendar _strptime json csv base64 binascii struct hashlib hmac secrets uuid typing abc enum
    dataclasses contextlib pprint weakref numpy pandas matplotlib""".split()


def post(name, body, *, language="js", reference="A1", **rest):
    return Row(name, reference, path=f"/sandbox/{language}", body=body, headers=rest.pop("headers", JSON), **rest)


def refused(name, body, message, *, status=400, **rest):
    """A body that is refused with a message, in the JSON shape."""
    return post(name, body, status=status, answer={"success": False, "message": message}, **rest)


def text(body):
    return json.dumps(body).encode()


def with_code(code, **members):
    return text({"code": code, **members})


def long_code(units):
    """A program of exactly so many characters."""
    return OK_JS + "\n//" + "x" * (units - len(OK_JS) - 3)


def long_body(size, language="js"):
    head = b'{"code":' + json.dumps(CODES[language]).encode() + b',"variables":{"text":"'
    return head + b"x" * (size - len(head) - 3) + b'"}}'


INVALID = re.compile("^Invalid request: ")
NO_JSON = re.compile("^Invalid JSON body: ")
RUNS = {"success": True, "data": {"codeReturn": {"ok": True}, "log": ""}}

ROWS = [
    # ---- health ----
    Row("GET /health", "A1", method="GET", path="/health", authorized=False, answer=Has({"status": "ok", "pools": {"js": Has(POOL), "python": Has(POOL)}}),
        answer_headers={"content-type": re.compile("^application/json")}),
    Row("GET /health has nothing else in a pool", "A1", method="GET", path="/health", authorized=False,
        answer=Has({"pools": {"js": POOL, "python": POOL}}), ours=True),
    Row("GET /health tells the isolation", "§3", method="GET", path="/health", authorized=False,
        answer={"status": "ok", "pools": dict, "isolation": OneOf("full", "container", "shared-uid")}, ours=True),
    Row("GET /health with a wrong token", "A1", method="GET", path="/health", authorized=False, headers={"Authorization": "Bearer wrong"},
        answer=Has({"status": "ok"})),

    # ---- modules ----
    Row("GET /sandbox/modules", "A1", method="GET", path="/sandbox/modules",
        answer={"success": True, "data": {"js": JS_MODULES, "python": PYTHON_MODULES, "builtinGlobals": ["SystemHelper.httpRequest"]}},
        answer_headers={"content-type": re.compile("^application/json")}),
    Row("GET /sandbox/modules without a token", "A1", method="GET", path="/sandbox/modules", authorized=False, status=401, text=re.compile("^Unauthorized")),

    # ---- routes ----
    Row("an unknown route", "A1", method="GET", path="/nowhere", status=404),
    Row("an unknown route below /sandbox", "A1", method="POST", path="/sandbox/ruby", headers=JSON, body=with_code(OK_JS), status=404),
    Row("the root", "A1", method="GET", path="/", status=404),
    Row("GET of a task", "A1", method="GET", path="/sandbox/js", status=OneOf(404, 405)),
    Row("PUT of a task", "A1", method="PUT", path="/sandbox/python", headers=JSON, body=with_code(OK_PYTHON), status=OneOf(404, 405)),
    Row("POST of the modules", "A1", method="POST", path="/sandbox/modules", headers=JSON, body=b"{}", status=OneOf(404, 405)),
    Row("a query string changes nothing", "A1", path="/sandbox/js?x=1", headers=JSON, body=with_code(OK_JS), answer=RUNS),

    # ---- tokens ----
    *(post(f"{language}: no token", with_code(CODES[language]), language=language, authorized=False, status=401, text=re.compile("^Unauthorized"),
           answer_headers={"www-authenticate": re.compile("^Bearer")}) for language in BOTH),
    post("a wrong token", with_code(OK_JS), authorized=False, headers={**JSON, "Authorization": "Bearer wrong"}, status=401, text=re.compile("^Unauthorized")),
    post("a token in the query does not count", with_code(OK_JS), authorized=False, headers={**JSON, "Authorization": "Bearer "}, status=OneOf(400, 401)),
    post("another scheme", with_code(OK_JS), authorized=False, headers={**JSON, "Authorization": "Basic eDp5"}, status=400, text=re.compile("^Bad Request")),
    post("no scheme", with_code(OK_JS), authorized=False, headers={**JSON, "Authorization": "token"}, status=400, text=re.compile("^Bad Request")),
    post("two words", with_code(OK_JS), authorized=False, headers={**JSON, "Authorization": "Bearer a b"}, status=400, text=re.compile("^Bad Request")),
    post("no token comes before a bad body", b"nonsense", authorized=False, status=401, text=re.compile("^Unauthorized")),
    Row("an unknown route below /sandbox without a token", "A1", method="POST", path="/sandbox/ruby", headers=JSON, body=b"{}", authorized=False, status=401),

    # ---- tasks that run ----
    *(post(f"{language}: runs", with_code(CODES[language]), language=language, answer=RUNS,
           answer_headers={"content-type": re.compile("^application/json")}) for language in BOTH),
    *(post(f"{language}: variables", with_code(code, variables={"name": "world"}), language=language,
           answer={"success": True, "data": {"codeReturn": {"hello": "world"}, "log": ""}})
      for language, code in (("js", "async function main(v) { return { hello: v.name } }"), ("python", "def main(variables):\n    return {'hello': variables['name']}"))),
    *(post(f"{language}: no variables", with_code(code), language=language, answer={"success": True, "data": {"codeReturn": 0, "log": ""}})
      for language, code in (("js", "function main(v) { return Object.keys(v).length }"), ("python", "def main(v):\n    return len(v)"))),
    post("unknown members are ignored", with_code(OK_JS, limits={"timeoutMs": 1, "memoryMB": 1}, language="ruby", x=None), answer=RUNS),
    post("without a content type", with_code(OK_JS), headers={}, answer=RUNS),
    post("with another content type", with_code(OK_JS), headers={"Content-Type": "text/plain"}, answer=RUNS),
    post("space around the body", b" \r\n\t" + with_code(OK_JS) + b"\n", answer=RUNS),
    post("members twice: the last counts", b'{"code":"no","code":' + json.dumps(OK_JS).encode() + b"}", answer=RUNS),
    post("escapes in names of members", b'{"c\\u006fde":' + json.dumps(OK_JS).encode() + b"}", answer=RUNS),
    post("a byte order mark", b"\xef\xbb\xbf" + with_code(OK_JS), answer=RUNS),

    # ---- queueId ----
    post("a queueId", with_code(OK_JS, queueId="team-1"), answer=RUNS),
    post("a blank queueId is none", with_code(OK_JS, queueId="  \t "), answer=RUNS),
    post("an empty queueId is none", with_code(OK_JS, queueId=""), answer=RUNS),
    post("a queueId of 128 characters", with_code(OK_JS, queueId="é" * 128), answer=RUNS),
    post("a queueId of 128 characters with space around it", with_code(OK_JS, queueId=" " + "q" * 128 + "\n"), answer=RUNS),
    refused("a queueId of 129 characters", with_code(OK_JS, queueId="q" * 129), "Invalid request: Too big: expected string to have <=128 characters"),
    refused("a queueId of 65 characters that count twice", with_code(OK_JS, queueId="😀" * 65), INVALID),
    refused("a queueId that is a number", with_code(OK_JS, queueId=123), "Invalid request: Invalid input: expected string, received number"),
    refused("a queueId that is null", with_code(OK_JS, queueId=None), "Invalid request: Invalid input: expected string, received null"),
    refused("a queueId that is a list", with_code(OK_JS, queueId=["q"]), "Invalid request: Invalid input: expected string, received array"),

    # ---- bodies that are refused ----
    *(refused(f"{language}: an empty body", b"", "Request body is empty", language=language) for language in BOTH),
    *(refused(f"{language}: not JSON", b"this is not json", NO_JSON, language=language) for language in BOTH),
    refused("half a body", b'{"code":"x"', NO_JSON),
    refused("two documents", with_code(OK_JS) + b"{}", NO_JSON),
    refused("a comma too many", b'{"code":"x",}', NO_JSON),
    refused("single quotes", b"{'code':'x'}", NO_JSON),
    refused("a control character in a text", b'{"code":"a\nb"}', NO_JSON),
    refused("NaN is no JSON", b'{"code":"x","variables":{"a":NaN}}', NO_JSON),
    refused("only a byte order mark", b"\xef\xbb\xbf", NO_JSON),
    *(refused(f"{language}: a body that is {kind}", body, f"Invalid request: Invalid input: expected object, received {kind}", language=language)
      for language, kind, body in (("js", "array", b"[]"), ("python", "null", b"null"), ("js", "string", b'"x"'), ("python", "number", b"1"), ("js", "boolean", b"true"))),
    *(refused(f"{language}: no code", text({"variables": {}}), "Invalid request: Invalid input: expected string, received undefined", language=language) for language in BOTH),
    *(refused(f"{language}: code that is {kind}", with_code(value), f"Invalid request: Invalid input: expected string, received {kind}", language=language)
      for language in BOTH for kind, value in (("number", 123), ("null", None), ("boolean", True), ("array", ["x"]), ("object", {}))),
    *(refused(f"{language}: empty code", with_code(""), "Invalid request: Too small: expected string to have >=1 characters", language=language) for language in BOTH),
    *(refused(f"variables that are {kind}", with_code(OK_JS, variables=value), f"Invalid request: Invalid input: expected record, received {kind}")
      for kind, value in (("null", None), ("array", [1]), ("string", "{}"), ("number", 3), ("boolean", False))),
    refused("the first complaint is the code's", text({"code": 1, "variables": 2, "queueId": 3}), re.compile("expected string, received number")),
    refused("variables before queueId", with_code(OK_JS, variables=2, queueId=3), re.compile("expected record")),
    *(post(f"{language}: blank code", with_code(" \n\t"), language=language, reference="A1", answer=Has({"success": False, "message": "Code cannot be empty"})) for language in BOTH),
    post("blank in Unicode's sense", with_code("\u00a0\u3000\ufeff\u2003"), answer=Has({"success": False, "message": "Code cannot be empty"})),

    # ---- sizes ----
    post("code of 5 MiB", lambda: with_code(long_code(5 * MIB)), answer=RUNS),
    refused("code of 5 MiB and one", lambda: with_code(long_code(5 * MIB + 1)), "Invalid request: Too big: expected string to have <=5242880 characters"),
    post("a body of 8 MiB", lambda: long_body(8 * MIB), answer=RUNS),
    *(refused(f"{language}: a body of 8 MiB and one", lambda: long_body(8 * MIB + 1), "Request body too large, max 8MB", status=413, language=language) for language in BOTH),
    refused("chunked, of 8 MiB and one", lambda: iter([long_body(8 * MIB + 1)]), "Request body too large, max 8MB", status=413, headers={**JSON, "Transfer-Encoding": "chunked"}),
    post("chunked", lambda: iter([with_code(OK_JS)[:9], with_code(OK_JS)[9:]]), headers={**JSON, "Transfer-Encoding": "chunked"}, answer=RUNS),
    refused("chunked and empty", lambda: iter([]), "Request body is empty", headers={**JSON, "Transfer-Encoding": "chunked"}),
    refused("a body of 1 MiB and one where 1 is the limit", lambda: long_body(MIB + 1), "Request body too large, max 1MB", status=413, server="small", reference="A4"),
    post("a body of 1 MiB where 1 is the limit", lambda: long_body(MIB), answer=RUNS, server="small", reference="A4"),

    # ---- where the original has no answer, or another ----
    refused("invalid UTF-8", b'{"code":"\xff"}', NO_JSON, reference="§4", ours=True),
    refused("invalid UTF-8 where it does not count", b'{"code":"x","y":"\xc0\xaf"}', NO_JSON, reference="§4", ours=True),
    refused("half a surrogate pair in the code", b'{"code":"\\ud800"}', "Invalid request: code must be well-formed text", reference="§4", ours=True),
    refused("half a surrogate pair in the queueId", b'{"code":"x","queueId":"\\udc00"}', "Invalid request: queueId must be well-formed text", reference="§4", ours=True),
    refused("variables 10,000 deep", lambda: b'{"code":"x","variables":{"a":' + b"[" * 10000 + b"]" * 10000 + b"}}", NO_JSON, reference="§4", ours=True),
    post("X-Api-Key instead of Authorization, wrong", with_code(OK_JS), authorized=False, headers={**JSON, "X-Api-Key": "wrong"}, reference="§1", status=401, text=re.compile("^Unauthorized")),
    *(post(f"timeoutMs that is {name}", with_code(OK_JS, timeoutMs=value), reference="§4", answer=RUNS)
      for name, value in (("negative", -1), ("zero", 0), ("a text", "100"), ("null", None), ("huge", 10 ** 15), ("a fraction", 5000.5), ("an object", {}), ("beyond every number", 1e308))),
    *(post(f"timeoutMs counts, {language}", with_code(code, timeoutMs=200), language=language, reference="§4", ours=True,
           answer=Has({"success": False, "message": "Script execution timed out after 200ms", "data": Has({"error": Has({"code": "timeout"})})}))
      for language, code in (("js", "function main() { for (;;); }"), ("python", "def main():\n    while True: pass"))),
]

assert all(row.answer is not ANY or row.text is not ANY or row.status != 200 for row in ROWS)
