# SPDX-License-Identifier: Apache-2.0
"""JavaScript tasks (A5, A8, A9, A12; contract §2, §4). Where the original's message is V8's, a row asks for failure, and for type
and line where they are told."""
import re

from compat.rows_http import JS_MODULES
from compat.table import ANY, Has, OneOf, Row

NO_MAIN = re.compile("main")
NO_FUNCTION = re.compile("Function constructor is not allowed in sandbox")
NO_EVAL = "Code generation with eval() is not allowed in sandbox."
NO_IMPORT = "Dynamic import() is not allowed in sandbox. Use require() instead."
FAILS = str  # any message
MAIN = "async function main(v) {\n%s\n}"


def js(name, code, value=ANY, *, reference="A5", **rest):
    return Row(name, reference, language="js", code=code, value=value, **rest)


def does(name, body, value=ANY, **rest):
    """A row whose code is the body of main(v)."""
    return js(name, MAIN % body, value, **rest)


def gives(name, expression, value, **rest):
    return does(name, f"return {expression}", value, **rest)


def caught(name, statements, **rest):
    """An attempt that must not come to its end, whether it throws or not."""
    return does(name, "try { %s; return { escaped: true } } catch (e) { return { escaped: false } }" % statements, {"escaped": False}, reference="A9", **rest)


def attempts(attempt):
    """An attempt that must fail, or be caught by itself with `escaped` false."""
    name, statements = attempt
    return does(name, "try { %s; return { escaped: true } } catch (e) { return { escaped: false } }" % statements, {"escaped": False},
                reference="A9", fails=FAILS, either=True)


def same_name(names):
    return [gives(f"typeof {name}", f"typeof {name}", kind) for name, kind in names]


ROWS = [
    # ---- main (A5, A12) ----
    js("the node's template", "function main({data1, data2}){\n    return {\n        result: data1,\n        data2\n    }\n}", {"result": "x", "data2": [1]},
       variables={"data1": "x", "data2": [1]}, reference="A1"),
    js("async main", "async function main(v) { return { r: v.a + 1 } }", {"r": 2}, variables={"a": 1}),
    js("plain main", "function main(v) { return { r: v.a + 1 } }", {"r": 2}, variables={"a": 1}),
    js("main() reads the free variable", "async function main() { return { n: variables.name, a: variables.age } }", {"n": "x", "a": 3}, variables={"name": "x", "age": 3}, reference="A12"),
    js("main(variables, extra)", "async function main(variables, extra) { return { name: variables.name, extra: extra === undefined } }", {"name": "x", "extra": True}, variables={"name": "x"}, reference="A12"),
    js("main({name, age})", "async function main({ name, age }) { return { text: name + age } }", {"text": "x3"}, variables={"name": "x", "age": 3}, reference="A12"),
    js("main as an arrow", "const main = async ({ a }) => ({ twice: a * 2 })", {"twice": 8}, variables={"a": 4}),
    js("helpers beside main", "const twice = (x) => x * 2\nfunction add(a, b) { return a + b }\nasync function main() { return add(twice(2), 1) }", 5),
    js("main ends in a comment", "function main() { return 1 } // done", 1),
    js("a list as the result", "async function main(v) { return [v.a, 'b', null] }", [1, "b", None], variables={"a": 1}, reference="A12"),
    js("a thenable as the result", "function main() { return { then(resolve) { resolve(7) } } }", 7),
    js("no main", "const x = 42", fails=NO_MAIN, error={"type": "Error"}),
    js("main is no function", "const main = 42", fails=FAILS),
    js("main returns nothing", "async function main() { }", OneOf(None), reference="A8"),
    js("strict mode", "function main() { secretData = 'leak'; return 1 }", fails=re.compile("secretData"), error={"type": "ReferenceError", "line": 1}),
    js("arguments that are no names of ours", "const console = 1, delay = 2\nfunction main() { return [console, delay] }", [1, 2], reference="§2", ours=True),

    # ---- names that are there, and that are not ----
    *same_name((name, "function") for name in """require countToken strToBase64 createHmac delay httpRequest setTimeout clearTimeout setInterval clearInterval
        Buffer URL URLSearchParams TextEncoder TextDecoder Object Array Map Set WeakMap WeakSet Promise Date RegExp Error TypeError RangeError Symbol Proxy
        Number String Boolean BigInt Uint8Array Float64Array ArrayBuffer DataView parseInt parseFloat isNaN isFinite encodeURIComponent decodeURIComponent""".split()),
    *same_name((name, "object") for name in "console SystemHelper variables process JSON Math Reflect Intl".split()),
    *same_name((name, "undefined") for name in "Bun globalThis global fetch XMLHttpRequest WebSocket".split()),
    gives("SystemHelper.httpRequest is httpRequest", "SystemHelper.httpRequest === httpRequest", True),
    gives("process", "[Object.keys(process.env).length, process.cwd(), typeof process.version, typeof process.platform, Object.isFrozen(process.env)]", [0, "/sandbox", "string", "string", True]),
    gives("process is frozen", "Object.isFrozen(process)", True),

    # ---- helpers ----
    gives("countToken", "[countToken(''), countToken('abcd'), countToken('abcde'), countToken(12345)]", [0, 1, 2, 2]),
    gives("strToBase64", "[strToBase64('Hello, World!'), strToBase64('你好', 'data:;base64,'), strToBase64('')]", ["SGVsbG8sIFdvcmxkIQ==", "data:;base64,5L2g5aW9", ""]),
    does("createHmac of an unknown digest", "return createHmac('nope', 'k')", fails="Invalid digest: nope", error={"type": "Error"}, reference="A5"),
    does("createHmac", """const C = require('crypto-js');
        const { timestamp, sign } = createHmac('sha256', 'secret');
        return [typeof timestamp, Math.abs(Date.now() - Number(timestamp)) < 5000,
                sign === encodeURIComponent(C.enc.Base64.stringify(C.HmacSHA256(timestamp + '\\nsecret', 'secret')))]""", ["string", True, True]),
    gives("createHmac of other digests", "['md5', 'sha1', 'sha512'].map((name) => decodeURIComponent(createHmac(name, 'k').sign).length)", [24, 28, 88]),
    does("delay", "const start = Date.now(); await delay(100); return { waited: Date.now() - start >= 95 }", {"waited": True}),
    does("delay of 10 s and one", "await delay(10001)", fails="Delay must be <= 10000ms", error={"type": "Error"}),
    gives("delay returns a promise", "delay(1) instanceof Promise", True),

    # ---- the console ----
    does("console.log of values", "console.log('a', 1, true, null, { x: [1] }, [2]); console.log('b'); return 1", 1, log='a 1 true null {"x":[1]} [2]\nb'),
    *(does(f"console.{method}", f"console.{method}('said by {method}'); return 1", 1, log=f"said by {method}") for method in "log info warn error debug trace dir table".split()),
    does("console of undefined, functions and symbols", "console.log(undefined, Symbol('s')); return 1", 1, log="undefined Symbol(s)"),
    does("console of an error", "console.log(new Error('x')); return 1", 1, log="{}"),
    does("console of a circle", "const a = {}; a.a = a; console.log(a)", fails=FAILS, error={"type": "TypeError"}),
    does("1,000 lines", "for (let i = 0; i < 1000; i++) console.log('line ' + i); return { done: true }", {"done": True},
         log=re.compile("\\Aline 0\nline 1\n(.*\n)*line 999\\Z"), reference="A12"),
    does("a line that would overflow the log is dropped whole", "console.log('kept'); console.log('x'.repeat(1024 * 1024)); console.log('too'); return 1", 1, log="kept\ntoo", reference="A4"),
    does("the log is kept on failure", "console.log('before'); throw new Error('bad')", fails="bad", log="before", reference="§4", ours=True),

    # ---- timers ----
    does("setTimeout", "return new Promise((resolve) => setTimeout(() => resolve({ ok: true }), 20))", {"ok": True}),
    does("setTimeout with arguments", "return new Promise((resolve) => setTimeout((a, b) => resolve([a, b]), 1, 'x', 2))", ["x", 2]),
    does("setInterval", "let n = 0; await new Promise((resolve) => { const t = setInterval(() => { if (++n === 3) { clearInterval(t); resolve() } }, 1) }); return n", 3),
    does("clearTimeout", "let hit = false; clearTimeout(setTimeout(() => { hit = true }, 1)); await delay(20); return hit", False),
    does("setTimeout of a text", "setTimeout('return process', 0); return {}", fails="setTimeout expects a function", error={"line": 2}),
    does("setInterval of a number", "setInterval(1, 0); return {}", fails="setInterval expects a function"),
    does("a throw in a timer is a line of the log", "setTimeout(() => { throw new Error('in a timer') }, 1); await delay(20); return 1", 1, log=re.compile("in a timer")),
    does("timers end with main", "setTimeout(() => console.log('no'), 30); setInterval(() => console.log('no'), 1); return 1", 1, log=""),

    # ---- modules (A5, A12) ----
    *(gives(f"require {name}", f"[typeof require('{name}'), require.resolve('{name}') !== undefined]", [OneOf("function", "object"), True]) for name in JS_MODULES),
    gives("crypto-js MD5", "require('crypto-js').MD5('hello').toString()", "5d41402abc4b2a76b9719d911017c592", reference="A12"),
    gives("crypto-js SHA256", "require('crypto-js').SHA256('fastgpt').toString()", "046ca27ed8a95d7aaec3fd577ba8d9eabd7f7915de4e7c0e120d06d758bff75a", reference="A12"),
    does("crypto-js AES", "const C = require('crypto-js'); return C.AES.decrypt(C.AES.encrypt('text', 'key').toString(), 'key').toString(C.enc.Utf8)", "text", reference="A12"),
    gives("uuid v4", "/^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/.test(require('uuid').v4())", True),
    does("uuid v5", "const { v5, validate } = require('uuid'); return [v5('fastgpt', v5.URL), validate(v5('x', v5.URL))]", ["8d10dc2b-3d86-5ae4-b41b-a42c6000e3eb", True], reference="A12"),
    gives("qs.stringify", "require('qs').stringify({ a: { b: 1, c: [2, 3] } })", "a%5Bb%5D=1&a%5Bc%5D%5B0%5D=2&a%5Bc%5D%5B1%5D=3", reference="A12"),
    gives("qs.parse", "require('qs').parse('a%5Bb%5D=1').a.b", "1"),
    gives("lodash", "[require('lodash').chunk([1, 2, 3], 2), require('lodash').sum([1, 2, 3])]", [[[1, 2], [3]], 6]),
    js("lodash groupBy of variables", "async function main({ items }) { const _ = require('lodash'); return _.mapValues(_.groupBy(items, 'type'), (list) => list.length) }", {"a": 2, "b": 1},
       variables={"items": [{"type": "a"}, {"type": "b"}, {"type": "a"}]}),
    gives("dayjs", "require('dayjs')('2024-01-15').add(1, 'day').format('YYYY/MM/DD')", "2024/01/16"),
    gives("moment", "[require('moment')('2024-01-15').format('YYYY/MM/DD'), require('moment').utc('2024-01-01').add(1, 'day').format('YYYY-MM-DD')]", ["2024/01/15", "2024-01-02"]),
    does("url.parse", "const u = require('url').parse('https://example.com/a?b=1', true); return [u.hostname, u.query.b]", ["example.com", "1"]),
    gives("querystring", "[require('querystring').parse('a=1').a, require('querystring').stringify({ b: 'x y' })]", ["1", "b=x%20y"]),
    does("exports are read-only", "require('lodash').map = null", fails=FAILS, error={"type": OneOf("Error", "TypeError")}),
    does("exports are read-only, in words", "require('lodash').map = null", fails="Sandbox module exports are read-only", ours=True),
    *(gives(f"require {name}", f"require('{name}')", fails=f"Module '{name}' is not allowed in sandbox", value=ANY, reference="A9", error={"line": 2})
      for name in "child_process fs net http https axios node-fetch os vm worker_threads node:fs".split()),
    gives("require of a sub-path", "require('lodash/fp')", fails="Module 'lodash/fp' is not allowed in sandbox", value=ANY, reference="§2"),
    gives("require.resolve", "require.resolve('child_process')", fails="Module 'child_process' is not allowed in sandbox", value=ANY, reference="A9"),
    gives("require has no more", "[typeof require.cache, typeof require.extensions, typeof require.main]", ["undefined"] * 3, reference="A9"),

    # ---- import() (A5, A9, A14) ----
    *(does(f"refused: {code!r}", f"await {code}; return {{}}", fails=NO_IMPORT, reference="A9") for code in (
        'import("fs")', 'import("child_process")', 'import("os")', 'import/**/("child_process")', 'import/* comment */("child_process")',
        'import/* comment */\n("child_process")', 'import// comment\n("child_process")')),
    does("refused where it is never reached", "if (0) await import('fs'); return 1", fails=NO_IMPORT, reference="A9"),
    *(js(f"runs: {code.splitlines()[0]!r}", code, value, reference="A9") for code, value in (
        ("async function main() { return \"use require not import('xx')\" }", "use require not import('xx')"),
        ("async function main() { const n = 'fs'; return `never import('${n}')` }", "never import('fs')"),
        ("// import('fs')\nasync function main() { return 1 }", 1),
        ("/* import('fs') */\nasync function main() { return 1 }", 1),
        ("/** @example const x = await import('fs'); */\nasync function main() { return 3 }", 3),
        ("async function main() { return /\\bimport\\s*\\(/.test(\"import('x')\") }", True),
        ("async function main() { const importPath = '/etc/hosts'; return importPath.length }", 10),
        ("async function main() { return Object.keys({ import: 1, export: 2 }).sort() }", ["export", "import"]))),

    # ---- code that makes code (A5, A9) ----
    gives("eval", "eval('1 + 1')", fails=NO_EVAL, value=ANY, reference="A9", error={"line": 2}),
    does("eval is caught", "try { eval('1'); return 'ran' } catch (e) { return e.message }", NO_EVAL, reference="A9"),
    *(does(name, statement, fails=NO_FUNCTION, reference="A9") for name, statement in (
        ("new Function", "return new Function('return 1')()"),
        ("the constructor of an object's constructor", "return ({}).constructor.constructor('return process')()"),
        ("[].fill.constructor", "return [].fill.constructor('return 1')()"),
        ("Object.constructor.constructor", "return Object.constructor.constructor('return process')()"))),
    *(attempts(attempt) for attempt in (
        ("({}).constructor.constructor", "({}).constructor.constructor('return process')()"),
        ("[].fill.constructor to mainModule", "new ([].fill.constructor)('return this.process.mainModule.require(\"child_process\").execSync(\"id\").toString()')()"),
        ("Object.constructor.constructor, caught", "Object.constructor.constructor('return process')()"),
        ("require.__proto__.constructor", "require.__proto__.constructor('return process')()"),
        ("the async constructor", "await (async function(){}).constructor('return import(\"child_process\")')()"),
        ("the generator constructor", "(function*(){}).constructor('yield 1')()"),
        ("the async generator constructor", "(async function*(){}).constructor('yield 1')()"),
        ("new Function, caught", "new Function('return process.env')"),
        ("Reflect.construct(Function)", "Reflect.construct(Function, ['return 42'])"),
        ("Bun.spawn", "Bun.spawn(['ls'])"), ("Bun.spawnSync", "Bun.spawnSync(['ls'])"), ("Bun.serve", "Bun.serve({ port: 9999, fetch() {} })"),
        ("Bun.write", "await Bun.write('/tmp/evil.txt', 'x')"),
        ("process.binding", "process.binding('fs')"), ("process.chdir", "process.chdir('/')"), ("process.exit", "process.exit(1)"),
        ("assigning globalThis.process", "globalThis.process = { env: {} }"),
        ("process.env cannot be written", "process.env.X = '1'; if (process.env.X === undefined) throw 1"),
        ("require.cache has no require", "Object.values(require.cache ?? {}).find((m) => m && typeof m.require === 'function').require('child_process').execSync('id')"))),
    *(gives(f"process.{name} is no function", f"typeof process.{name} === 'function'", False, reference="A9")
      for name in "binding dlopen _linkedBinding kill chdir exit send disconnect reallyExit umask setuid abort emitWarning".split()),
    gives("nothing of the host's environment", "['PATH', 'HOME', 'SECRET_KEY', 'API_KEY', 'AWS_SECRET_ACCESS_KEY', 'SANDBOX_TOKEN'].filter((name) => process.env[name] !== undefined)", [], reference="A9"),

    # ---- hardening (A5, A9) ----
    gives("setPrototypeOf of built-ins", "[Object.setPrototypeOf(Array.prototype, null), Reflect.setPrototypeOf(Object, {})]", [False, False], reference="A9"),
    gives("setPrototypeOf of own objects", "Object.setPrototypeOf({}, { x: 1 }).x", 1, reference="§4", ours=True),
    gives("setPrototypeOf of any object", "[Object.setPrototypeOf({}, {}), Reflect.setPrototypeOf({}, {})]", [False, False], reference="A9", server="strict"),
    gives("stack hooks", "[typeof Error.prepareStackTrace, typeof Error.captureStackTrace]", ["undefined", "undefined"], reference="A9"),
    does("a stack tells nothing of the host", "try { null.x } catch (e) { return ['node_modules', '/src/pool/', 'process-pool', 'sk-code', '/usr'].filter((word) => String(e.stack).includes(word)) }", [], reference="A9"),
    does("__proto__ can be read", "const proto = ({}).__proto__; return typeof proto", OneOf("object", "undefined"), reference="A9"),
    does("pollution stays inside", "try { ({}).__proto__.polluted = true } catch (e) {} return { done: true }", {"done": True}, reference="A9"),
    does("Symbol.unscopables", "const o = { [Symbol.unscopables]: { process: false } }; return typeof process", "object", reference="A9"),
    does("a proxy", "const p = new Proxy({}, { get: (t, k) => k === 'secret' ? 'mine' : Reflect.get(t, k) }); return p.secret", "mine", reference="A9"),
    does("SystemHelper cannot be replaced in part", "try { SystemHelper.httpRequest = async () => ({ status: 200 }) } catch (e) {} return SystemHelper.httpRequest === httpRequest", True, reference="A9"),
    js("__proto__ in variables is text", "async function main(v) { return [v.text, ({}).polluted === undefined] }", ['{"__proto__":{"polluted":true}}', True],
       variables={"text": '{"__proto__":{"polluted":true}}'}, reference="A9"),
    js("code in variables is text", "async function main(v) { return v.code }", "require('child_process').execSync('id')", variables={"code": "require('child_process').execSync('id')"}, reference="A9"),
    js("a key with a dot", "async function main(v) { return v['a.b'] }", 1, variables={"a.b": 1}, reference="A9"),

    # ---- one task and the next (A9) ----
    does("an implicit global", "try { return { leaked: typeof secretData !== 'undefined' } } catch (e) { return { leaked: false } }", {"leaked": False}, reference="A9",
         before=(MAIN % "try { secretData = 'leaked' } catch (e) {} return {}",)),
    gives("Array.prototype", "[].hacked === undefined", True, reference="A9", before=(MAIN % "Array.prototype.hacked = () => 1; return {}",)),
    does("the log", "return { ok: true }", {"ok": True}, log="", reference="A9", before=(MAIN % "console.log('secret_token_abc123'); return {}",)),
    gives("variables", "Object.keys(v)", [], reference="A9", before=("async function main(v) { v.apiKey = 'sk-secret'; variables.apiKey = 'sk-secret'; return {} }",)),
    gives("a module", "typeof require('lodash').map", "function", reference="A9", before=(MAIN % "try { require('lodash').map = null } catch (e) {} return {}",)),
    gives("a class of the platform", "[Date.now() > 0, JSON.stringify([1])]", [True, "[1]"], reference="A9", before=(MAIN % "Date.now = () => -1; JSON.stringify = () => 'forged'; return {}",)),

    # ---- values (A8, A12) ----
    gives("null", "null", None, reference="A8"),
    gives("undefined", "undefined", None, reference="A8"),
    gives("a function as the whole result", "() => 1", None, reference="A8", ours=True),
    gives("a symbol as the whole result", "Symbol('x')", None, reference="A8", ours=True),
    gives("not numbers", "[NaN, Infinity, -Infinity]", [None, None, None], reference="A8"),
    gives("a date", "[new Date(0)]", ["1970-01-01T00:00:00.000Z"], reference="A8"),
    gives("a buffer", "Buffer.from('hi')", {"type": "Buffer", "data": [104, 105]}, reference="A8"),
    gives("a map and a set", "{ m: new Map([['a', 1], [2, 'b']]), s: new Set([1, [2]]) }", {"m": {"a": 1, "2": "b"}, "s": [1, [2]]}, reference="A8", ours=True),
    gives("a map and a set, as the original has them", "{ m: new Map([['a', 1]]), s: new Set([1]) }", {"m": {}, "s": {}}, reference="A8", server="strict"),
    gives("big integers", "[5n, 9007199254740993n]", [5, "9007199254740993"], reference="A8", ours=True),
    gives("a big integer, as the original has it", "{ x: 1n }", fails=re.compile("BigInt"), value=ANY, reference="A8", server="strict"),
    gives("typed arrays", "[new Uint8Array([1, 2]), new Float64Array([0.5, NaN])]", [[1, 2], [0.5, None]], reference="A8", ours=True),
    gives("a circle", "(() => { const o = {}; o.self = o; return o })()", fails=FAILS, value=ANY, reference="A8", error={"type": "TypeError"}),
    gives("what JSON leaves out", "{ a: undefined, f() {}, b: 1, l: [undefined, () => 1] }", {"b": 1, "l": [None, None]}, reference="A8"),
    gives("toJSON", "{ a: { toJSON() { return 'j' } } }", {"a": "j"}, reference="A8"),
    gives("2 ** 53", "2 ** 53", 9007199254740992, reference="A8"),
    gives("a float", "0.1 + 0.2", 0.30000000000000004, reference="A12"),
    gives("10,000 elements", "Array.from({ length: 10000 }, (_, i) => i)", list(range(10000)), reference="A12"),
    js("100,000 characters", "async function main(v) { return v.text.length }", 100000, variables=lambda: {"text": "a" * 100000}, reference="A12"),
    js("nested variables", "async function main(v) { return v.a.b.c }", 42, variables={"a": {"b": {"c": 42}}}, reference="A12"),
    js("list variables", "async function main(v) { return [v.items.length, v.items[0]] }", [3, 1], variables={"items": [1, 2, 3]}, reference="A12"),
    js("unicode, newlines and quotes", "async function main(v) { return v.name }", "你好\n\"world\"<script>alert(1)</script>\\\t😀\u2028", variables={"name": "你好\n\"world\"<script>alert(1)</script>\\\t😀\u2028"}, reference="A12"),
    js("half a surrogate pair in variables", "async function main(v) { return v.a.length }", 1, variables={"a": "\ud800"}, reference="A12"),
    gives("half a surrogate pair in the result", "'a\\ud800'", "a\ufffd", reference="§4", ours=True),

    # ---- the language (A12) ----
    does("private fields", "class P { #x = 1; get x() { return this.#x } } return new P().x", 1, reference="A12"),
    gives("BigInt", "(2n ** 64n).toString()", "18446744073709551616", reference="A12"),
    does("generators", "function* g() { yield 1; yield 2 } return [...g()]", [1, 2], reference="A12"),
    gives("Promise.all", "await Promise.all([1, Promise.resolve(2), delay(1).then(() => 3)])", [1, 2, 3], reference="A12"),
    gives("a regular expression", "'mail: test@example.com'.match(/[\\w.]+@[\\w.]+/)[0]", "test@example.com", reference="A12"),
    does("destructuring", "const { a, ...rest } = { a: 1, b: 2 }; const [x, , y = 9] = [7, 8]; return [a, rest, x, y]", [1, {"b": 2}, 7, 9], reference="A12"),
    does("try and catch", "try { JSON.parse('invalid') } catch (e) { return [e instanceof SyntaxError, typeof e.message] }", [True, "string"], reference="A12"),

    # ---- errors (A8, A9) ----
    does("an error's message", "throw new Error('boom')", fails="boom", error={"type": "Error", "line": 2, "traceback": str}, reference="A8"),
    does("a rejection", "await Promise.reject(new Error('rejected'))", fails="rejected", error={"type": "Error"}, reference="A12"),
    does("a property of null", "null.x", fails=re.compile("null"), error={"type": "TypeError", "line": 2}, reference="A9"),
    does("a message without paths", "null.x", fails=re.compile("^((?!node_modules|/src/pool/|process-pool).)*$"), reference="A9"),
    does("a name that is not there", "return undefinedVar", fails=re.compile("undefinedVar"), error={"type": "ReferenceError", "line": 2}, reference="A12"),
    js("a syntax error", "async function main() {\n  return {{{ }", fails=FAILS, error={"type": "SyntaxError", "line": int}, reference="A12"),
    js("infinite recursion", "function recurse() { return recurse() }\nasync function main() { return recurse() }", fails=FAILS, error={"type": "RangeError"}, reference="A12"),
    *(does(f"{thrown} without a message", f"throw {thrown}", fails=told, error={"type": told}, reference="§4", ours=True)
      for thrown, told in (("new Error()", "Error"), ("new RangeError('')", "RangeError"), ("Object.assign(new Error(), { name: 'Mine' })", "Mine"),
                           ("{ message: '' }", "Error"), ("''", "string"))),
    does("a timer's error without a message", "setTimeout(() => { throw new TypeError() }, 1); Promise.reject(new Error()); await delay(20); return 1", 1,
         log="Uncaught (in promise) Error\nUncaught TypeError", reference="§4", ours=True),
    does("a text is thrown", "throw 'plain'", fails="plain", reference="A8", ours=True),

    # ---- limits (A3, A12) ----
    does("an endless loop", "while (true) {}", fails=re.compile("timed out after \\d+ms"), error={"code": "timeout"}, members={"timeoutMs": 300}, reference="A12", slow=True),
    does("a loop of Math", "for (;;) Math.sqrt(Math.random())", fails=re.compile("timed out after \\d+ms"), error={"code": "timeout"}, members={"timeoutMs": 300}, reference="A12", slow=True),
    does("sleep past the limit", "for (;;) await delay(10000)", fails=re.compile("timed out after \\d+ms"), error={"code": "timeout"}, members={"timeoutMs": 300}, reference="A12", slow=True),
    does("the time of every task is bounded", "for (;;);", fails="Script execution timed out after 1000ms", error={"code": "timeout"}, reference="A3", server="small"),
    does("40 buffers of 10 MB", "const kept = []; for (let i = 0; i < 40; i++) { kept.push(Buffer.alloc(10 * 1024 * 1024, 1)); await delay(20) } return kept.length",
         fails=OneOf(re.compile("^Memory limit exceeded"), re.compile("Worker crashed")), error={"code": "memory"}, reference="A12"),
    gives("after that the pool works", "{ ok: true }", {"ok": True}, reference="A12"),
    gives("10 MB are fine", "Buffer.alloc(10 * 1024 * 1024, 1).length", 10485760, reference="A12"),
    gives("10 MB of output and one", "'x'.repeat(10 * 1024 * 1024 + 1)", fails="Output too large (limit: 10485760 bytes)", value=ANY, error={"code": "output"}, reference="A12"),
    gives("after that too", "{ ok: true }", {"ok": True}, reference="A12"),
    gives("9 MB of output", "'x'.repeat(9 * 1024 * 1024)", re.compile("^x{9437184}$"), reference="A12"),
    gives("1 MB of output and one where 1 is the limit", "'x'.repeat(1024 * 1024 + 1)", fails="Output too large (limit: 1048576 bytes)", value=ANY, error={"code": "output"}, reference="A4", server="small"),
]
