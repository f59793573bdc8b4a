/* SPDX-License-Identifier: Apache-2.0
 *
 * The forms of main, its variables, timers and promises, the console, the helpers, errors and where they are. */
#include "tests/unit/code/js/cases.h"

#define NOT_DEFINED "No 'main' function defined"

const struct js_case cases_basic[] = {
    {"async main", "async function main(v) { return { r: v.a + 1 } }", "{\"a\":1}", "{\"r\":2}"},
    {"plain main", "function main(v) { return { r: v.a + 1 } }", "{\"a\":1}", "{\"r\":2}"},
    {"template of the node",
     "function main({data1, data2}){\n    return {\n        result: data1,\n        data2\n    }\n}",
     "{\"data1\":\"x\",\"data2\":[1]}", "{\"result\":\"x\",\"data2\":[1]}"},
    {"main reads the free variable", "async function main() { return variables.name + variables.age }",
     "{\"name\":\"a\",\"age\":3}", "\"a3\""},
    {"main with an extra parameter",
     "async function main(variables, extra) { return [variables.a, extra === undefined] }", "{\"a\":1}", "[1,true]"},
    {"main as a constant arrow", "const main = async ({ a }) => a * 2", "{\"a\":4}", "8"},
    {"main as an assigned function", "let main; main = function (v) { return v.a }", "{\"a\":4}", "4"},
    {"main ends in a comment", "function main() { return 1 } // done", NULL, "1"},
    {"main returns a promise", "function main() { return new Promise((resolve) => setTimeout(resolve, 5, 'late')) }",
     NULL, "\"late\""},
    {"main returns a thenable", "function main() { return { then(resolve) { resolve(7) } } }", NULL, "7"},
    {"helpers beside main",
     "const twice = (x) => x * 2\nfunction add(a, b) { return a + b }\nasync function main() { return add(twice(2), 1) "
     "}",
     NULL, "5"},
    {"array result", "function main() { return [1, 'b', null] }", NULL, "[1,\"b\",null]"},
    {"no main", "const x = 1", NULL, .message = NOT_DEFINED},
    {"main is no function", "const main = 42", NULL, .message = NOT_DEFINED},
    {"empty code", "", NULL, .message = NOT_DEFINED},
    {"user names of ours",
     "const console = 1, delay = 2, require = 3, crypto = 4, url = 5\nfunction main() { return [console, delay, "
     "require, crypto] }",
     NULL, "[1,2,3,4]"},
    {"strict mode", "function main() { secretData = 'leak'; return 1 }", NULL, .part = "secretData",
     .type = "ReferenceError", .line = 1},
    {"this is undefined", "function main() { return this === undefined }", NULL, "true"},

    {"delay", "async function main() { const t = Date.now(); await delay(30); return Date.now() - t >= 29 }", NULL,
     "true"},
    {"delay too long", "async function main() { await delay(10001) }", NULL, .message = "Delay must be <= 10000ms",
     .line = 1},
    {"order of tasks",
     "async function main() { const o = [], last = new Promise((r) => setTimeout(() => r(o.push('t2')), 500)); "
     "setTimeout(() => o.push('t1'), 1); queueMicrotask(() => o.push('m1')); Promise.resolve().then(() => "
     "o.push('m2')); o.push('s'); await last; return o.join() }",
     NULL, "\"s,m1,m2,t1,t2\""},
    {"same due, in order",
     "async function main() { const o = []; for (let i = 0; i < 50; i++) setTimeout(() => o.push(i), 1); await "
     "delay(20); return o.every((v, i) => v === i) && o.length }",
     NULL, "50"},
    {"interval",
     "async function main() { let n = 0; const id = setInterval(() => { if (++n === 3) clearInterval(id) }, 1); while "
     "(n < 3) "
     "await delay(1); await delay(5); return n }",
     NULL, "3"},
    {"clearTimeout",
     "async function main() { let hit = false; clearTimeout(setTimeout(() => { hit = true }, 1)); await delay(10); "
     "return hit }",
     NULL, "false"},
    {"timer arguments", "function main() { return new Promise((r) => setTimeout((a, b) => r([a, b]), 1, 'x', 2)) }",
     NULL, "[\"x\",2]"},
    {"timer without a function", "function main() { setTimeout('return process', 0) }", NULL,
     .message = "setTimeout expects a function"},
    {"interval without a function", "function main() { setInterval(1, 0) }", NULL,
     .message = "setInterval expects a function"},
    {"throw in a timer is logged",
     "async function main() { setTimeout(() => { throw new TypeError('in timer') }, 1); await delay(10); return 1 }",
     NULL, "1", .log = "Uncaught TypeError: in timer"},
    {"unhandled rejection is logged",
     "async function main() { Promise.reject(new Error('nobody')); await delay(5); return 1 }", NULL, "1",
     .log = "Uncaught (in promise) Error: nobody"},
    {"handled rejection is not",
     "async function main() { await Promise.reject(new Error('x')).catch(() => 0); return 1 }", NULL, "1"},
    {"timers end with main",
     "function main() { setInterval(() => console.log('no'), 1); setTimeout(() => console.log('no'), 50); return 1 }",
     NULL, "1"},
    {"many timers",
     "async function main() { let n = 0; for (let i = 0; i < 100000; i++) setTimeout(() => n++, 1); await delay(1); "
     "await delay(1); return n }",
     NULL, "100000"},
    {"parallel delays",
     "async function main() { const o = [], of = (ms) => delay(ms).then(() => o.push(ms)); "
     "await Promise.all([of(900), of(450), of(1)]); return o }",
     NULL, "[1,450,900]"},
    {"async generators",
     "async function main() { async function* g() { yield 1; await delay(1); yield 2 } const o = []; for await (const "
     "v of g()) o.push(v); return o }",
     NULL, "[1,2]"},
    {"promise helpers",
     "async function main() { return [(await Promise.allSettled([1, Promise.reject(2)])).map((r) => r.status), await "
     "Promise.any([Promise.reject(1), 5]), await Promise.race([3, delay(50)])] }",
     NULL, "[[\"fulfilled\",\"rejected\"],5,3]"},

    {"console",
     "function main() { console.log('a', 1, true, null, undefined, { x: [1] }, [2], Symbol('s'), 5n); return 1 }", NULL,
     "1", .log = "a 1 true null undefined {\"x\":[1]} [2] Symbol(s) 5"},
    {"console methods",
     "function main() { for (const m of ['log', 'info', 'warn', 'error', 'debug', 'trace', 'dir', 'table']) "
     "console[m](m); return 1 }",
     NULL, "1", .log = "log\ninfo\nwarn\nerror\ndebug\ntrace\ndir\ntable"},
    {"console prints an error as JSON",
     "function main() { console.log(new Error('x')); console.log(() => 1); return 1 }", NULL, "1",
     .log = "{}\n() => 1"},
    {"console of a cycle", "function main() { const a = {}; a.a = a; console.log(a) }", NULL, .part = "cyclic",
     .type = "TypeError"},
    {"console text",
     "function main() { console.log('\\u4f60\\u597d \\\"q\\\" \\\\ \\t\\n\\u0001', '\\ud83d\\ude00', '\\ud800!'); "
     "return 1 }",
     NULL, "1", .log = "\xe4\xbd\xa0\xe5\xa5\xbd \"q\" \\ \t\n\x01 \xf0\x9f\x98\x80 \xef\xbf\xbd!"},
    {"the log is kept on failure", "function main() { console.log('before'); throw new Error('bad') }", NULL,
     .message = "bad", .log = "before"},
    {"empty line", "function main() { console.log(); console.log('x'); return 1 }", NULL, "1", .log = "\nx"},

    {"countToken",
     "function main() { return [countToken(''), countToken('abcd'), countToken('abcde'), countToken(12345)] }", NULL,
     "[0,1,2,2]"},
    {"strToBase64",
     "function main() { return [strToBase64('hello'), strToBase64('\\u4f60', 'data:x;base64,'), strToBase64('')] }",
     NULL, "[\"aGVsbG8=\",\"data:x;base64,5L2g\",\"\"]"},
    {"createHmac",
     "function main() { const { timestamp, sign } = createHmac('sha256', 'secret'); const C = require('crypto-js');"
     " return [Math.abs(Date.now() - timestamp) < 5000, sign === "
     "encodeURIComponent(C.enc.Base64.stringify(C.HmacSHA256(timestamp + '\\nsecret', 'secret')))] }",
     NULL, "[true,true]"},
    {"createHmac of others",
     "function main() { return ['md5', 'sha1', 'sha512', 'SHA256'].map((a) => createHmac(a, '').sign.length > 20) }",
     NULL, "[true,true,true,true]"},
    {"createHmac unknown", "function main() { createHmac('nope', 'x') }", NULL, .message = "Invalid digest: nope"},

    {"error line", "\n\nfunction main() {\n  null.x\n}", NULL, .part = "null", .type = "TypeError", .line = 4,
     .traceback = "TypeError: null is not an object (evaluating 'null.x')\n    at main (code.js:4:7)"},
    {"frames of the user only",
     "function inner() { throw new RangeError('deep') }\nasync function main() {\n  await delay(1)\n  "
     "require('lodash').map([1], inner)\n}",
     NULL, .message = "deep", .type = "RangeError", .line = 1,
     .traceback = "RangeError: deep\n    at inner (code.js:1:40)\n    at main (code.js:4:24)"},
    {"error in a module has the caller's line",
     "function main() {\n  const { v5 } = require('uuid')\n  v5('x', 'no namespace')\n}", NULL, .part = "UUID",
     .line = 3},
    {"syntax error", "function main() {\n  let x = ;\n}", NULL, .type = "SyntaxError", .part = "Unexpected token",
     .line = 2, .traceback = "SyntaxError: Unexpected token ';'\n    at code.js:2"},
    {"a bracket too many", "function main() {\n}\n}", NULL, .type = "SyntaxError", .part = "bracket", .line = 3},
    {"a bracket too few", "function main() {\n  if (1) {\n}", NULL, .type = "SyntaxError", .part = "bracket",
     .line = 3},
    {"throw of text", "function main() { throw 'plain' }", NULL, .message = "plain", .type = "string"},
    {"throw of nothing", "function main() { throw undefined }", NULL, .message = "undefined", .type = "undefined"},
    {"throw of null", "function main() { throw null }", NULL, .message = "null", .type = "null"},
    {"throw of an object", "function main() { throw { message: 'own', code: 3 } }", NULL, .message = "own"},
    {"throw of a getter",
     "function main() { throw { get message() { throw new Error('no') }, get stack() { throw 1 }, get name() { throw 2 "
     "}, toString() { throw 3 } } }",
     NULL, .message = "Unknown error", .type = "Error"},
    {"throw of a proxy", "function main() { throw new Proxy({}, { get() { throw 1 }, getPrototypeOf() { throw 2 } }) }",
     NULL, .message = "Unknown error"},
    {"error of a class",
     "class MyError extends Error { constructor(m) { super(m); this.name = 'MyError' } }\nfunction main() {\n  throw "
     "new MyError('mine')\n}",
     NULL, .message = "mine", .type = "MyError", .line = 1},
    {"error by rejection", "function main() { return Promise.reject(new Error('later')) }", NULL, .message = "later",
     .line = 1},
    {"recursion", "function main() { return main() }", NULL, .message = "Maximum call stack size exceeded.",
     .type = "RangeError"},

    {"variables", "function main(v) { return v }",
     "{\"s\":\"a\\\"b\\n\\u4f60\",\"n\":[1,[2,{\"x\":null}]],\"a.b\":1,\"t\":true}",
     "{\"s\":\"a\\\"b\\n\\u4f60\",\"n\":[1,[2,{\"x\":null}]],\"a.b\":1,\"t\":true}"},
    {"__proto__ in variables",
     "function main(v) { return [Object.keys(v), ({}).polluted === undefined, v.polluted === undefined] }",
     "{\"__proto__\":{\"polluted\":1}}", "[[\"__proto__\"],true,true]"},
    {"nul in variables", "function main(v) { return v.a.length }", "{\"a\":\"x\\u0000y\"}", "3"},
    {"float", "function main() { return 0.1 + 0.2 }", NULL, "0.30000000000000004"},
    {"modern syntax",
     "class P { #x = 1; static s = 2; get x() { return this.#x } static { P.t = 3 } }\n"
     "function* g() { yield* [1, 2] }\nfunction main({ a: { b = 5, ...rest } = {} }) { label: for (;;) break label;"
     " return [new P().x, P.s, P.t, [...g()], b, rest, null ?? 1, ({}).x?.y ?? 'z', 'ab'.at(-1), [3, 1].toSorted(), "
     "Object.groupBy([1, 2], (n) => n % 2 ? 'o' : 'e'), /(?<y>\\d+)(?<!x)/u.exec('a42').groups.y, 2n ** 10n, 1_000] }",
     "{\"a\":{\"c\":1}}", "[1,2,3,[1,2],5,{\"c\":1},1,\"z\",\"b\",[1,3],{\"o\":[1],\"e\":[2]},\"42\",1024,1000]"},
    {"intl",
     "function main() { return [new Date(0).toLocaleString('zh-CN', { timeZone: 'Asia/Shanghai' }), "
     "(1234.5).toLocaleString('de-DE'), new Intl.DateTimeFormat('en-US', { timeZone: 'UTC', dateStyle: 'medium' "
     "}).format(0)] }",
     NULL, "[\"1970/1/1 08:00:00\",\"1.234,5\",\"Jan 1, 1970\"]"},
};
CASES(cases_basic);
