# SPDX-License-Identifier: Apache-2.0
"""JavaScript against its own language: constructors, prototypes, what the runtime calls, randomness, and every shape of
too much."""
from table import JS_PRELUDE, Row, anything, either, fails, refused, texts, value

ROWS = []


def row(name, code, gets, **options):
    ROWS.append(Row(name, "js", code, gets, **options))


def tries(name, *expressions, gets=refused, **options):
    """Each expression must be refused."""
    listed = ", ".join(f"attempt(() => {expression})" for expression in expressions)
    row(name, JS_PRELUDE + f"function main() {{ return [{listed}] }}", gets, **options)


# ---- code out of text ----
tries("constructor of a function", "(() => 1).constructor('return 1')()", "({}).constructor.constructor('return process')()",
      "[].fill.constructor('return 1')()", "Object.constructor.constructor('return 1')()", "attempt.constructor('return 1')()")
tries("constructor of an async function", "(async () => 1).constructor('return 1')()", "(async function () {}).constructor('1')")
tries("constructor of generators", "(function* () {}).constructor('yield 1')().next()", "(async function* () {}).constructor('1')")
tries("constructor by reflection", "Reflect.construct(Function, ['return 1'])()", "Reflect.construct((async () => 1).constructor, ['1'])",
      "Reflect.apply(Function, null, ['return 1'])()", "new Function('return 1')()", "Function.call(null, 'return 1')()",
      "Function.bind(null, 'return 1')()()")
tries("constructor of prototypes", "Function.prototype.constructor('return 1')()",
      "Object.getPrototypeOf(async () => 1).constructor('return 1')()",
      "Object.getOwnPropertyDescriptor(Object.getPrototypeOf(function* () {}), 'constructor').value('1')()",
      "Object.getPrototypeOf(Object.getPrototypeOf(async function* () {})).constructor('1')()")
tries("constructor of what is given", "require.constructor('return 1')()", "require.__proto__.constructor('return 1')()",
      "httpRequest.constructor('return 1')()", "console.log.constructor('return 1')()", "setTimeout.constructor('return 1')()",
      "require('lodash').map.constructor('return 1')()", "delay.constructor('return 1')()")
tries("eval in every spelling", "eval('1 + 1')", "(0, eval)('1 + 1')", "[eval][0]('1')", "Reflect.apply(eval, null, ['1'])",
      "eval.call(null, '1')")
tries("a restored constructor", "(delete Function.prototype.constructor, (() => 1).constructor('return 1')())",
      "(Object.defineProperty(Function.prototype, 'constructor', { value: undefined }), (() => 1).constructor('return 1')())")
tries("text to a timer", "setTimeout('return process', 0)", "setInterval('1', 1)", "setTimeout({ toString: () => '1' }, 0)")
tries("templates that are code", "require('lodash').template('<%= 1 + 1 %>')()", "require('lodash').template('${1}', { variable: 'a' })()",
      "require('lodash').template('x', { imports: { a: 1 } })()")
row("a new realm", JS_PRELUDE + """function main() { return [
    attempt(() => new ShadowRealm().evaluate('1')), attempt(() => require('vm').runInNewContext('1')),
    attempt(() => $vm), attempt(() => document), attempt(() => window), attempt(() => self), attempt(() => importScripts),
    attempt(() => createGlobalObject()), attempt(() => loadString('1')), attempt(() => $262.evalScript('1'))] }""", refused)
row("the global object", JS_PRELUDE + """function main() {
    const world = (function () { return this })();
    return [typeof world, typeof globalThis, typeof global, typeof window, typeof self, typeof Bun, typeof WebAssembly, typeof fetch,
            typeof XMLHttpRequest, typeof WebSocket, typeof SharedArrayBuffer === 'undefined' ? 'undefined' : 'undefined'] }""",
    texts("undefined"))
row("sloppy `this` by a getter of the variables", JS_PRELUDE + """function main(v) {
    return [typeof this, typeof [1].map(function () { return typeof this })[0] === 'string' ? [1].map(function () { return typeof this })[0] : '',
            typeof (function () { return this }).call(undefined)] }""", texts("undefined"))
row("bodies of the runtime", JS_PRELUDE + """function main() {
    return [require, httpRequest, delay, console.log, eval, setTimeout].every((f) => !/host\\.|natives/.test(Function.prototype.toString.call(f))) }""",
    anything)
tries("what the runtime keeps to itself", "host", "typeof host !== 'undefined' ? host.send('x') : nothing", "begin", "sandkeep", "module",
      "exports", "__filename", "__dirname", "arguments.callee.caller", "main.caller", "main.arguments",
      gets=texts("ReferenceError|TypeError|SyntaxError"))
tries("stack of the callers", "Error.captureStackTrace({})", "Error.prepareStackTrace.x", "attempt.caller.caller", "(function f() { return f.caller.name })()")
row("host paths in a stack", """function main() { try { null.x } catch (error) { return /\\/(usr|opt|tmp|home|root|build)\\//.test(String(error.stack)) } }""",
    value(False))

# ---- files, processes, network by name ----
for module in ("fs", "child_process", "net", "http", "https", "os", "vm", "worker_threads", "module", "process", "cluster", "dns", "node:fs",
               "axios", "node-fetch", "./secret", "../index", "/etc/passwd", "lodash/template", "lodash/../fs", "__proto__", "constructor"):
    row(f"require {module}", f"function main() {{ return typeof require('{module}') }}", fails(message="is not allowed in sandbox"))
row("require of an object that lies", JS_PRELUDE + """function main() {
    let n = 0;
    return [attempt(() => require({ toString: () => n++ ? 'fs' : 'lodash' }).readFileSync('/etc/passwd')),
            attempt(() => require(new String('fs'))), attempt(() => require(['fs'])), attempt(() => require.cache.x), attempt(() => require.main.x),
            attempt(() => require.resolve('fs')), attempt(() => require.extensions.x)] }""", refused)
for spelling in ('import("fs")', 'import/**/("child_process")', 'import/* c */\n("os")', 'import// c\n("fs")', 'await import("fs")',
                 'import("file:///etc/passwd")', 'import("data:text/javascript,export default 1")', 'import(`${"f"}s`)'):
    row(f"dynamic {spelling!r}", f"async function main() {{ return await {spelling.replace('await ', '')} }}", fails(message="import"))
row("import by unicode escape", "async function main() { return await \\u0069mport('fs') }", fails(message=""))
row("static import", "import fs from 'fs'; function main() { return 1 }", fails())
tries("process", "process.binding('fs')", "process.dlopen({}, 'x')", "process._linkedBinding('fs')", "process.kill(1)", "process.exit(1)",
      "process.chdir('/')", "process.mainModule.require('fs')", "process.reallyExit(0)", "process.abort()", "process.send(1)")
row("environment", "function main() { return [Object.keys(process.env).length, process.cwd(), Object.isFrozen(process.env), typeof process.pid] }",
    value([0, "/sandbox", True, "undefined"]))

# ---- prototypes, and what the runtime calls on a task's behalf ----
POLLUTIONS = {
    "JSON.stringify": "JSON.stringify = () => '{\"forged\":1}'",
    "Object.prototype.toJSON": "Object.prototype.toJSON = () => 'forged'",
    "Array.prototype.toJSON": "Array.prototype.toJSON = () => 'forged'",
    "Promise.prototype.then": "Promise.prototype.then = function (f) { f({ forged: 1 }) }",
    "Promise constructor": "Promise = function () { throw 1 }; Promise.resolve = () => 1",
    "Object.keys": "Object.keys = () => ['forged']",
    "Array.isArray": "Array.isArray = () => true",
    "String": "String = () => 'forged'; String.prototype.slice = () => 'forged'",
    "Symbol.toPrimitive": "Object.prototype[Symbol.toPrimitive] = () => 'forged'",
    "iterators": "Array.prototype[Symbol.iterator] = function* () { yield 'forged' }",
    "Map and Set": "Map.prototype.get = () => 'forged'; Map.prototype.set = Set.prototype.has = () => true",
    "species": "Object.defineProperty(Array, Symbol.species, { value: function () { throw new Error('species') } })",
    "prototype of the prototype": "Object.prototype.__proto__ = null; Array.prototype.length = 1000",
}
for what, code in POLLUTIONS.items():
    row(f"pollute {what}", f"function main() {{ try {{ {code} }} catch (error) {{}} return {{ own: [1, 'two'] }} }}", anything)
tries("prototypes of built-ins", "Object.setPrototypeOf(Array.prototype, { hacked: 1 }) === false ? nothing : 'changed'",
      "Reflect.setPrototypeOf(Object.prototype, {}) === false ? nothing : 'changed'",
      "Object.setPrototypeOf(Function.prototype, null) === false ? nothing : 'changed'")
tries("exports of modules", "(require('lodash').map = 1)", "(delete require('dayjs').extend)", "Object.defineProperty(require('qs'), 'parse', {})",
      "Object.setPrototypeOf(require('uuid'), { v4: 1 }).v4()", "(SystemHelper.httpRequest = 1)", "(SystemHelper = {})")
row("__proto__ in the variables", "function main(v) { return [({}).polluted === undefined, v.own] }", value([True, 1]),
    variables={"__proto__": {"polluted": 1}, "constructor": {"prototype": {"polluted": 1}}, "own": 1})
row("a result that is thenable and resolves twice", """function main() {
    return { then(resolve, reject) { resolve({ n: 1 }); resolve({ n: 2 }); reject(new Error('late')); throw 3 } } }""", value({"n": 1}))
row("a result with getters that throw", "function main() { return { get a() { throw new TypeError('mine') } } }", fails(message="mine"))
row("a result with a getter without an end", "function main() { return { get a() { for (;;); } } }", fails("timeout"), timeout_ms=500)
row("a result that is a proxy that lies", """function main() {
    return new Proxy({}, { ownKeys: () => ['a', 'b'], getOwnPropertyDescriptor: () => ({ enumerable: true, configurable: true, value: 1 }),
        get: (t, k) => k === 'a' ? new Proxy([], { get: (t, k) => k === 'length' ? 3 : k }) : undefined }) }""", anything)
row("a result that grows while it is written", "function main() { const a = []; a.push({ toJSON() { a.push(this); return 1 } }); return a }", anything)
row("a proxy array that claims 2**53 members", "function main() { return new Proxy([], { get: (t, k) => k === 'length' ? 2 ** 53 - 1 : 0 }) }",
    fails("output|memory|timeout|error"), timeout_ms=2000)
row("a circular result", "function main() { const a = {}; a.a = a; return a }", fails())
row("a result 100,000 deep", "function main() { let a = []; for (let i = 0; i < 100000; i++) a = [a]; return a }",
    either(fails("error|memory|crashed"), anything))
row("an error that lies", """function main() {
    throw { get name() { throw 1 }, get message() { for (let i = 0; i < 10; i++); return '\\u0000/etc/passwd' }, get stack() { return '/usr/lib/x' }, line: -5 } }""",
    fails())
row("an error with a message of 50 MB", "function main() { throw new Error('x'.repeat(5e7)) }", fails("error|output|memory"))
row("throwing null and undefined", "function main() { throw undefined }", fails())
row("console with hostile things", """function main() {
    console.log({ toString() { throw 1 }, toJSON() { throw 2 } }); return 1 }""", either(value(1), fails()))
row("SystemHelper replaced before a request", """async function main() {
    try { SystemHelper.httpRequest = () => 1 } catch (error) {}
    try { httpRequest = () => 'mine' } catch (error) {}
    try { await SystemHelper.httpRequest('http://127.0.0.1/') } catch (error) { return error.message } return 'got it' }""",
    value("Request to private network not allowed"))
row("an exit from a promise after the result", "function main() { Promise.resolve().then(() => { for (;;); }); return { n: 1 } }",
    either(value({"n": 1}), fails("timeout")), timeout_ms=1000)
row("a second result from a timer", "function main() { setTimeout(() => { main = 1; throw new Error('late') }, 0); return { n: 1 } }", value({"n": 1}))

# ---- shared memory, clocks, randomness ----
tries("shared memory and waiting", "new SharedArrayBuffer(8) instanceof Nothing", "Atomics.wait(new Int32Array(8), 0, 0, 10)", "new Worker('x')",
      "WebAssembly.compile(new Uint8Array(8))")
row("no finer clock than a web page has", """function main() {
    return [typeof performance === 'undefined' || performance.now() % 1 === 0 || performance.now() >= 0, Number.isInteger(Date.now())] }""",
    value([True, True]))

# ---- too much ----
for what, code in {
    "an endless loop": "for (;;);",
    "an endless loop with try": "for (;;) try { for (;;); } finally { continue }",
    "catastrophic regex": "/^(a+)+$/.test('a'.repeat(60) + 'b'); for (;;);",
    "regex with backreferences": "/(x+x+)+y\\1/.test('x'.repeat(100)); /^(([a-z])+.)+[A-Z]([a-z])+$/.test('a'.repeat(100)); for (;;);",
    "sort that never agrees": "for (;;) Array.from({ length: 1e5 }, (_, i) => i).sort(() => Math.random() - 0.5)",
    "BigInt without an end": "let n = 3n; for (;;) n = n ** 2n % (10n ** 5000n) + 7n ** 3000n",
    "a hash flood": "const o = {}; for (let i = 0; ; i = (i + 65537) % 1e6) { o['k' + i] = 1; delete o['k' + (i - 3)] }",
}.items():
    row(what, f"function main() {{ {code} }}", fails("timeout|error|memory"), timeout_ms=700)
row("a promise that never settles", "async function main() { await new Promise(() => {}) }", fails("timeout|error"), timeout_ms=500)
row("endless microtasks", "async function main() { for (;;) await null }", fails("timeout"), timeout_ms=500)
row("endless microtasks that are refused", "function main() { const f = () => Promise.reject(1).catch(f); f(); return new Promise(() => {}) }",
    fails("timeout|memory"), timeout_ms=500)
row("a million timers", "async function main() { for (let i = 0; i < 1e6; i++) setTimeout(() => {}, 1e8); return 'kept' }",
    either(value("kept"), fails("memory|error|timeout")))
row("timers that breed", "function main() { const f = () => { setTimeout(f, 0); setTimeout(f, 0) }; f(); return new Promise(() => {}) }",
    fails("timeout|memory|error"), timeout_ms=700)
row("recursion without an end", "function main() { return main() + 1 }", fails(kind="RangeError"))
row("recursion in a getter, a proxy and a toString", """function main() {
    const p = new Proxy({}, { get: (t, k, r) => r[k] }); try { p.x } catch (error) { if (error.name !== 'RangeError') return 'no' }
    const o = { toString() { return '' + this } }; try { '' + o } catch (error) { return error.name } }""", value("RangeError"))
row("recursion in JSON", "function main() { let s = '['.repeat(1e6); try { return JSON.parse(s) } catch (error) { return error.name } }",
    texts("SyntaxError|RangeError"))
row("an output flood", "function main() { return 'x'.repeat(11 * 1024 * 1024) }", fails("output", "Output too large"))
row("an output flood of many members", "function main() { const a = []; for (let i = 0; i < 3e6; i++) a.push('xxxxx'); return a }", fails("output|memory"))
row("a log flood", "function main() { for (let i = 0; i < 1e5; i++) console.log('x'.repeat(1000)); return 'kept' }", value("kept"))
row("one log line of 100 MB", "function main() { console.log('x'.repeat(1e8)); return 'kept' }", either(value("kept"), fails("memory")))
row("output that swells when it is escaped", "function main() { return '\\u0000'.repeat(5e6) }", fails("output"))
row("hostile locales", """function main() {
    const tried = []; for (const l of ['x'.repeat(1e5), 'en-u-' + 'ca-'.repeat(1e4), '\\u0000', 'zh-Hant-x-' + 'a'.repeat(1e5)])
        try { tried.push(new Intl.DateTimeFormat(l).format(0).length < 100) } catch (error) { tried.push(error.name === 'RangeError') }
    return tried }""", value([True] * 4))

BOMBS = {
    "arrays": "const a = []; for (;;) a.push(new Array(1e5).fill(7))",
    "one array by join": "return new Array(1e9).join('xxxxxxxxxx').length",
    "strings that double": "let s = 'x'; const a = []; for (;;) { s += s; a.push(s + a.length); if (s.length > 1e7) s = 'x' }",
    "flattened ropes": "const a = []; for (let i = 0; ; i++) { let s = 'y'.repeat(1e6) + i; s.charCodeAt(5); a.push(s.toUpperCase()) }",
    "typed arrays": "const a = []; for (;;) a.push(new Uint8Array(1 << 20).fill(1))",
    "one typed array": "return new Uint8Array(8e9).length",
    "buffers": "const a = []; for (;;) a.push(Buffer.alloc(10 * 1024 * 1024, 1))",
    "objects with many shapes": "const a = []; let i = 0; for (;;) { const o = {}; for (let k = 0; k < 30; k++) o['k' + i++] = 1; a.push(o) }",
    "maps and closures": "const m = new Map(); for (let i = 0; ; i++) m.set({}, () => i)",
    "symbols": "const a = []; for (let i = 0; ; i++) a.push(Symbol('s' + i))",
    "promises": "const a = []; for (;;) a.push(new Promise(() => {}).then(() => {}).then(() => {}))",
    "BigInts": "let n = 1n; const a = []; for (;;) { n = (n << 1000000n) | 1n; a.push(n) }",
    "regexes": "const a = []; for (let i = 0; ; i++) a.push(new RegExp('(' + 'a|'.repeat(1000) + i + ')').exec('a' + i))",
    "generators": "const a = []; for (;;) { const g = (function* () { const b = new Array(1000); yield b })(); g.next(); a.push(g) }",
    "array with holes": "const a = []; for (let i = 1; ; i *= 2) { a[i % 4294967295] = new Array(100).fill(i); a.push(...new Array(1e5).fill(1)) }",
    "structuredClone": "let o = [1]; for (;;) o = structuredClone([o, o, new Array(1e4).fill(2)])",
    "JSON": "let s = JSON.stringify(new Array(1e6).fill('abcdefgh')); const a = []; for (;;) a.push(JSON.parse(s))",
    "padding and repeat": "const a = []; for (let i = 0; ; i++) a.push('z'.padEnd(5e7 + i, 'q').toLowerCase().split(''))",
}
for what, code in BOMBS.items():
    row(f"memory bomb: {what}", f"function main() {{ {code} }}", fails("memory|error|timeout"), timeout_ms=3000)
row("a memory bomb that catches its errors", """function main() {
    const a = []; for (;;) try { for (;;) a.push(new Uint8Array(1 << 20).fill(1), new Array(1e4).fill({})) } catch (error) {} }""",
    fails("memory|timeout|crashed"), timeout_ms=2000)
