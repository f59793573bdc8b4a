# SPDX-License-Identifier: Apache-2.0
"""Requests of tasks to where none may go, in every spelling. A sink on loopback notes whoever comes: nobody may. Names are
not resolved here; what rebinding and look-ups do is tested beside the broker, whose resolver can be replaced there."""
from sink import Sink
from table import Row, either, fails, texts, value

ROWS = []
SINK = Sink()
PORT = SINK.port
PRIVATE = "Request to private network not allowed"
REFUSED = PRIVATE + "|Protocol not allowed|Invalid URL.*|.*not allowed.*|.*[Uu]rl.*|.*URL.*|.*[Pp]ort.*"

SPELLINGS = {
    "127.0.0.1": "http://127.0.0.1:{}/", "localhost": "http://localhost:{}/", "capitals": "http://LOCALHOST:{}/", "trailing dot": "http://localhost.:{}/",
    "below localhost": "http://a.b.localhost:{}/", "address with a dot": "http://127.0.0.1.:{}/", "short": "http://127.1:{}/", "three parts": "http://127.0.1:{}/",
    "decimal": "http://2130706433:{}/", "hexadecimal": "http://0x7f000001:{}/", "hexadecimal parts": "http://0x7f.0x0.0x0.0x1:{}/", "octal": "http://017700000001:{}/",
    "octal parts": "http://0177.0.0.01:{}/", "mixed": "http://0x7f.1:{}/", "another of 127/8": "http://127.255.255.254:{}/", "any": "http://0.0.0.0:{}/",
    "zero": "http://0:{}/", "overflow": "http://4294967297:{}/", "percent": "http://%31%32%37.0.0.1:{}/", "percent name": "http://%6cocalhost:{}/",
    "full-width": "http://\uff11\uff12\uff17.0.0.1:{}/", "ideographic dots": "http://127\u30020\u30020\u30021:{}/", "circled": "http://\u2460\u2461\u2466.0.0.1:{}/",
    "::1": "http://[::1]:{}/", "::1 in full": "http://[0:0:0:0:0:0:0:1]:{}/", "::": "http://[::]:{}/", "mapped": "http://[::ffff:127.0.0.1]:{}/",
    "mapped hexadecimal": "http://[::ffff:7f00:1]:{}/", "compatible": "http://[::127.0.0.1]:{}/", "NAT64": "http://[64:ff9b::7f00:1]:{}/",
    "local NAT64": "http://[64:ff9b:1::7f00:1]:{}/", "6to4": "http://[2002:7f00:1::]:{}/", "Teredo": "http://[2001:0:0:0:0:0:80ff:fffe]:{}/",
    "zone": "http://[::1%25lo]:{}/", "link-local": "http://[fe80::1%25eth0]:{}/", "user": "http://a@127.0.0.1:{}/", "user that looks like a host": "http://example.com@127.0.0.1:{}/",
    "user and password": "http://example.com:80@127.0.0.1:{}/", "backslash": "http://127.0.0.1:{}\\@example.com/", "backslash slashes": "http:\\\\127.0.0.1:{}\\",
    "fragment": "http://127.0.0.1:{}#@example.com/", "query": "http://127.0.0.1:{}?@example.com/", "no slashes": "http:127.0.0.1:{}/", "many slashes": "http:////127.0.0.1:{}/",
    "tab": "http://127.0.\t0.1:{}/", "newline": "http://127.0.0.1\n:{}/", "leading space": " http://127.0.0.1:{}/", "null": "http://127.0.0.1\0.example.com:{}/",
    "soft hyphen": "http://local\u00adhost:{}/", "kelvin": "http://\u2113ocalhost:{}/",
}
INSIDE = {
    "metadata": "http://169.254.169.254/latest/meta-data/", "metadata decimal": "http://2852039166/", "metadata hexadecimal": "http://0xA9FEA9FE/",
    "metadata mapped": "http://[::ffff:169.254.169.254]/", "metadata of AWS by IPv6": "http://[fd00:ec2::254]/", "metadata of Alibaba": "http://100.100.100.200/",
    "metadata of Google": "http://metadata.google.internal/", "metadata with a dot": "http://metadata.google.internal./", "metadata short": "http://metadata/",
    "metadata of Tencent": "http://metadata.tencentyun.com/", "kubernetes": "https://kubernetes.default.svc/", "kubernetes short": "https://kubernetes/",
    "kubernetes in full": "https://kubernetes.default.svc.cluster.local/", "ten": "http://10.0.0.1/", "172.16": "http://172.31.255.254/", "192.168": "http://192.168.0.1/",
    "carrier": "http://100.64.0.1/", "documentation": "http://192.0.2.2/", "benchmark": "http://198.18.0.1/", "multicast": "http://224.0.0.1/", "broadcast": "http://255.255.255.255/",
    "reserved": "http://240.0.0.1/", "unique local": "http://[fd00::2]/", "link-local": "http://169.254.0.1/", "one label": "http://redis/", "internal": "http://db.internal/",
    "port 0": "http://1.1.1.1:0/", "ssh": "http://1.1.1.1:22/", "smtp": "http://1.1.1.1:25/", "redis": "http://1.1.1.1:6379/", "a port too large": "http://1.1.1.1:65536/",
}
SCHEMES = ("file:///etc/passwd", "ftp://127.0.0.1/", "gopher://127.0.0.1:6379/_x", "dict://127.0.0.1:11211/", "ldap://127.0.0.1/", "tftp://127.0.0.1/", "data:text/plain,x",
           "jar:http://127.0.0.1!/", "ws://127.0.0.1/", "javascript:1", "unix:/var/run/docker.sock", "//127.0.0.1/", "", "http://", "127.0.0.1", "HTTPS+unix://x/", "scp://127.0.0.1/x", "smb://127.0.0.1/x")
JS = "async function main({ url, urls, options }) { const got = {}; for (const one of urls ?? [url]) try { got[one] = 'got ' + (await httpRequest(one, {})).status } catch (error) { got[one] = error.message } return got }"
PYTHON = """def main(urls):
    got = {}
    for one in urls:
        try:
            got[one] = 'got ' + str(http_request(one)['status'])
        except Exception as error:
            got[one] = str(error)
    return got
"""
for _what, _url in SPELLINGS.items():
    ROWS.append(Row(f"SSRF: loopback, {_what}", "js", JS, texts(REFUSED), variables={"url": _url.format(PORT)}))
for _what, _url in INSIDE.items():
    ROWS.append(Row(f"SSRF: {_what}", "js", JS, texts(REFUSED), variables={"url": _url}))
_all = [url.format(PORT) for url in SPELLINGS.values()] + list(INSIDE.values())
for _at in range(0, len(_all), 20):
    ROWS.append(Row(f"SSRF: {len(_all[_at:_at + 20])} spellings from the {_at}th", "python", PYTHON, texts(REFUSED), variables={"urls": _all[_at:_at + 20]}))
for _language, _code in (("js", JS), ("python", PYTHON)):
    ROWS.append(Row("SSRF: schemes", _language, _code, texts(REFUSED), variables={"urls": list(SCHEMES)}))
    ROWS.append(Row("SSRF: redirects asked for change nothing", _language, _code.replace("one, {}", "one, { followRedirects: true }"), texts(REFUSED),
                    variables={"urls": [f"http://127.0.0.1:{PORT}/redirect?http://example.com/", f"http://[::1]:{PORT}/"]}))
ROWS.append(Row("SSRF: methods and headers that would smuggle", "js", """async function main({ port }) {
    const got = [], url = `http://127.0.0.1:${port}/`;
    for (const o of [{ method: 'GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\nGET' }, { method: 'CONNECT' }, { method: 'TRACE' }, { headers: { 'X\\r\\nHost': 'y' } }, { headers: { X: 'a\\r\\nHost: y' } },
                     { headers: { Host: 'example.com' } }, { headers: { 'Transfer-Encoding': 'chunked', 'Content-Length': '5' }, body: 'x' }, { headers: { X: '\\0' } },
                     { headers: { '': 'x' } }, { headers: { ':authority': 'x' } }, { headers: { X: 'y'.repeat(100000) } }])
        try { got.push('got ' + (await httpRequest(url, o)).status) } catch (error) { got.push(error.message) }
    return got }""", texts("(?!got).+"), variables={"port": PORT}))
ROWS.append(Row("SSRF: options that are not what they seem", "js", """async function main({ port }) {
    let n = 0; const got = [], url = `http://127.0.0.1:${port}/`;
    for (const [u, o] of [[{ toString: () => n++ ? url : 'http://1.1.1.1:0/' }, {}], [url, new Proxy({}, { get: () => '127.0.0.1' })], [[url], {}], [new URL(url), {}], [url, null], [url, { timeout: 1e308 }],
                          [url, { timeoutMs: NaN }], [url, { body: { toJSON() { return 'x'.repeat(100) } } }]])
        try { got.push('got ' + (await httpRequest(u, o)).status) } catch (error) { got.push(error.message) }
    return got }""", texts("(?!got).+"), variables={"port": PORT}))
ROWS.append(Row("31 requests in bursts", "js", """async function main({ port }) {
    const all = await Promise.allSettled(Array.from({ length: 100 }, () => httpRequest(`http://127.0.0.1:${port}/`)));
    return [all.filter((r) => r.reason?.message === 'Request to private network not allowed').length, all.filter((r) => r.reason?.message === 'Request limit exceeded').length] }""",
    value([30, 70]), variables={"port": PORT}))
ROWS.append(Row("a body beyond the limit", "js", "async function main() { await httpRequest('http://1.1.1.1/', { method: 'POST', body: 'x'.repeat(5 * 1024 * 1024 + 1) }) }",
                fails(message="Request body too large")))
ROWS.append(Row("a body beyond the limit", "python", "def main():\n    http_request('http://1.1.1.1/', 'POST', body='x' * (5 * 1024 * 1024 + 1))\n", fails(message="Request body too large")))
for _language, _code in (("js", "async function main() { try { await httpRequest('http://no-such-name.invalid/') } catch (error) { return error.message } }"),
                         ("python", "def main():\n    try:\n        http_request('http://no-such-name.invalid/')\n    except Exception as error:\n        return str(error)\n")):
    ROWS.append(Row("a name that cannot be looked up", _language, _code, either(texts("(?!got).+"), fails("timeout")), timeout_ms=3000))
