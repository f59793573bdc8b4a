# SPDX-License-Identifier: Apache-2.0
"""Requests of tasks (A5, A6, A11): what is refused, in which words, and the limits of one task. Nothing here leaves the machine
but the rows that say `network`."""
import json
import re

from compat.table import ANY, OneOf, Row

PRIVATE = "Request to private network not allowed"
PROTOCOL = "Protocol not allowed"

# A11: hosts that are always refused, in the spellings that upstream's tests name.
ALWAYS = """localhost localhost:8080 LOCALHOST localhost. metadata.google.internal METADATA.google.internal metadata metadata.tencentyun.com
    kubernetes.default.svc kubernetes.default kubernetes Kubernetes.Default.Svc kubernetes.default.svc. 127.0.0.1 127.0.0.1:8080 127.255.255.254 [::1] 0.0.0.0 [::]
    169.254.169.254 169.254.0.1 100.100.100.200 [fd00:ec2::254] 2130706433 0x7f000001 0177.0.0.01 127.1 [::ffff:127.0.0.1] 2852039166""".split()
# … and with CHECK_INTERNAL_IP, the default.
INTERNAL = "10.0.0.1 10.255.255.255 172.16.0.1 172.31.255.255 192.168.0.1 192.168.255.255 [fc00::1] [fdff::1] 224.0.0.1 255.255.255.255 198.18.0.1".split()


def js(name, statements, value=ANY, *, reference="A11", **rest):
    return Row(f"js: {name}", reference, language="js", code="async function main(v) {\n" + statements + "\n}", value=value, **rest)


def py(name, statements, value=ANY, *, reference="A11", **rest):
    return Row(f"python: {name}", reference, language="python", code="def main():\n" + "\n".join("    " + line for line in statements.split("\n")), value=value, **rest)


def request(url, message, **rest):
    yield js(url, f"await httpRequest({json.dumps(url)}, {{ timeout: 5 }})", fails=message, **rest)
    yield py(url, f"http_request({url!r}, timeout=5)", fails=message, **rest)


ROWS = [
    *(row for host in ALWAYS for row in request(f"http://{host}/x", PRIVATE)),
    *(row for host in INTERNAL for row in request(f"http://{host}/", PRIVATE)),
    *(row for url in ("ftp://example.com/", "file:///etc/passwd", "FTP://example.com/", "gopher://example.com/") for row in request(url, PROTOCOL)),
    *(row for url in ("http://user:secret@127.0.0.1/", "http://127.0.0.1:80\\@example.com/", "https://localhost/", "http://[0:0:0:0:0:0:0:1]/", "http://017700000001/") for row in request(url, OneOf(PRIVATE, re.compile("URL"))) if url),
    *(row for url in ("not a url", "http://", "") for row in request(url, str)),
    js("SystemHelper.httpRequest is refused likewise", "await SystemHelper.httpRequest('http://127.0.0.1/')", fails=PRIVATE),
    *(py(f"{name} is refused likewise", f"{name}('http://127.0.0.1/')", fails=PRIVATE) for name in ("system_helper.http_request", "SystemHelper.httpRequest")),
    js("a refusal can be caught", "try { await httpRequest('http://127.0.0.1/') } catch (e) { return e.message }", PRIVATE),
    py("a refusal can be caught", "try:\n    http_request('http://127.0.0.1/')\nexcept Exception as e:\n    return str(e)", PRIVATE),
    js("the 31st request", "const said = []; for (let i = 0; i < 31; i++) try { await httpRequest('http://127.0.0.1/') } catch (e) { said.push(e.message) } return [said.length, said[29], said[30]]", [31, PRIVATE, "Request limit exceeded"]),
    js("31 requests at once", "const all = await Promise.allSettled(Array.from({ length: 31 }, () => httpRequest('http://127.0.0.1/'))); return all.map((r) => r.reason.message).filter((m) => m === 'Request limit exceeded').length", 1),
    py("the 31st request", "said = []\nfor i in range(31):\n    try:\n        http_request('http://127.0.0.1/')\n    except Exception as e:\n        said.append(str(e))\nreturn [len(said), said[29], said[30]]", [31, PRIVATE, "Request limit exceeded"]),
    js("the count is each task's own", "await httpRequest('http://127.0.0.1/')", fails=PRIVATE),
    js("a body of 5 MB and one", "await httpRequest('http://example.invalid/', { method: 'POST', body: 'x'.repeat(5 * 1024 * 1024 + 1) })", fails="Request body too large"),
    py("a body of 5 MB and one", "http_request('http://example.invalid/', 'POST', body='x' * (5 * 1024 * 1024 + 1))", fails="Request body too large"),
    js("the scheme comes before the size", "await httpRequest('ftp://x/', { body: 'x'.repeat(5 * 1024 * 1024 + 1) })", fails=PROTOCOL),
    js("a body of 1 MB and one where 1 is the limit", "await httpRequest('http://example.invalid/', { method: 'POST', body: 'x'.repeat(1024 * 1024 + 1) })", fails="Request body too large", reference="A4", server="small"),
    js("the third request where 2 are the limit", "const said = []; for (let i = 0; i < 3; i++) try { await httpRequest('http://127.0.0.1/') } catch (e) { said.push(e.message) } return said", [PRIVATE, PRIVATE, "Request limit exceeded"], reference="A4", server="small"),
    js("a name that is not there", "await httpRequest('http://nowhere.invalid/', { timeout: 5 })", fails=str, reference="§5", ours=True),
    js("a request that nobody awaits ends with the task", "httpRequest('http://127.0.0.1/').catch(() => 0); return 1", 1, reference="A3"),
    *(row for url in ("http://1.1.1.1/", "http://8.8.8.8:53/") for row in (
        js(f"{url} is not private", f"try {{ await httpRequest('{url}', {{ timeout: 2 }}); return '' }} catch (e) {{ return e.message }}", re.compile("^((?!private network).)*$"), network=True),)),
    js("a page", "const r = await httpRequest('http://example.com/'); return [r.status, r.statusText, typeof r.headers, typeof r.data]", [200, "OK", "object", "string"], reference="A5", network=True),
    py("a page", "r = http_request('http://example.com/')\nreturn [sorted(r), r['status'], type(r['data']).__name__]", [["data", "headers", "status", "statusText"], 200, "str"], reference="A6", network=True),
]
